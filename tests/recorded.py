"""Recorded episodes in memory, read as datasets are, and a plain loop that records PointGoal."""

from __future__ import annotations

from typing import Any

import numpy as np

from swm_workers.point_goal import PointGoal


class Recorded:
    """A dataset of episodes, dicts of arrays `(T, ...)`; keeps the arguments of `load_chunk`."""

    def __init__(self, episodes: list[dict[str, Any]]) -> None:
        self.episodes = episodes
        self.lengths = np.array([len(next(iter(episode.values()))) for episode in episodes])
        self.column_names = list(episodes[0])
        self.calls: list[tuple[list[int], list[int], list[int]]] = []

    def load_chunk(self, episodes, start, end):
        for argument in (episodes, start, end):
            assert isinstance(argument, np.ndarray)
            assert argument.dtype.kind == "i"
        self.calls.append((episodes.tolist(), start.tolist(), end.tolist()))
        return [
            {name: values[a:b] for name, values in self.episodes[k].items()}
            for k, a, b in zip(episodes, start, end, strict=True)
        ]


def record_point_goal(
    episodes: int = 3, length: int = 60, size: tuple[int, int] = (64, 64), *, variation: bool = True
) -> Recorded:
    """Random walks through rooms of several kinds: columns as a World would record them."""
    recorded = []
    for k in range(episodes):
        env = PointGoal(render_mode="rgb_array", render_size=size)
        options = {"variation": ["all"]} if variation else {}
        observation, info = env.reset(seed=1000 + k, options=options)
        rng = np.random.default_rng(k)
        heading = rng.uniform(0, 2 * np.pi)
        rows = [_row(env, observation, info)]
        for _ in range(length - 1):
            heading += rng.normal(0, 0.3)
            action = np.array([np.cos(heading), np.sin(heading)], np.float32)
            observation, _, _, _, info = env.step(action)
            rows.append(_row(env, observation, info))
        recorded.append({name: np.stack([row[name] for row in rows]) for name in rows[0]})
    return Recorded(recorded)


def _row(env: PointGoal, observation: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    factors = {f"variation.{name}": value for name, value in env.variation_space.value.items()}
    return {
        **observation,
        "goal_state": info["goal_state"],
        "distance": np.float64(info["distance"]),
        "pixels": env.render(),
        "reward": np.float64(-7.0),
        "step_idx": np.int64(77),
        **factors,
    }
