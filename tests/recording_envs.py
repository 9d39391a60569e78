"""An environment whose reports come and go and change their kind, and what a file holds of them.

What is expected is worked out in a plain loop, column by column, without the library.
"""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Moody(gymnasium.Env):
    """Reports by its seed: which keys, of which kind, and for how long; `fail_at` raises.

    An option `length` sets the length of the episode, which is 1 to 7 else.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-10.0, 10.0, (2,), np.float64)

    def __init__(self, fail_at: tuple[int, int] | None = None) -> None:
        self.fail_at = fail_at
        self.seed = self.steps = self.length = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.steps = seed, 0
        self.length = (options or {}).get("length", 1 + seed * 5 % 7)
        return np.zeros(2), self._info()

    def step(self, action):
        self.steps += 1
        if (self.seed, self.steps) == self.fail_at:
            raise ZeroDivisionError("out of luck")
        ended = self.steps == self.length
        return np.array(action), 0.5 * self.steps, ended, False, self._info()

    def _info(self) -> dict[str, Any]:
        seed, t = self.seed, self.steps
        info: dict[str, Any] = {
            "number": float(self.np_random.random()),
            "widening": 3 * t if seed % 3 else t + 0.5,
            "narrow": np.array([t, seed], np.uint8 if seed % 2 else np.int16),
            "ragged": np.full(seed % 3 + 1, t, np.float32),
            "word": "x" * (seed % 4) + f"é{t}",
            "mood": None if t % 2 else {"seed": seed, "t": t},
            "_private": t,
        }
        if t >= 2 and seed % 2:
            # In each odd episode from the third row on; whole numbers but for some.
            info["late"] = 10 * t if seed % 3 else 10 * t + 0.25
        if t == 1:
            info["once"] = True
        if seed % 4 == 1 and t == 0:
            info["rare"] = np.array(["a", "b" * seed])
        return info

    def get_episode_data(self) -> dict[str, Any]:
        return {"seed": self.seed, "name": f"episode of {self.seed}"}


class ByNumber:
    """Acts by its row's `number` alone."""

    def get_action(self, infos):
        number = infos["number"]
        return np.concatenate([number, number - 1.0], axis=1)


def play(seed: int, length: int | None = None) -> list[dict[str, Any]]:
    """The infos of one episode as the environment reported them, with what a World adds."""
    env = Moody()
    observation, info = env.reset(seed=seed, options={} if length is None else {"length": length})
    number = int(env.np_random.integers(0, 2**63 - 1))
    nothing = {"reward": np.nan, "terminated": False, "action": np.full(2, np.nan)}
    rows = [{**info, **nothing, "observation": observation, "id": number, "step_idx": 0}]
    while not rows[-1]["terminated"]:
        action = np.array([rows[-1]["number"], rows[-1]["number"] - 1.0])
        observation, reward, terminated, _, info = env.step(action)
        own = {"reward": reward, "terminated": terminated, "action": action}
        rows.append(
            {**info, **own, "observation": observation, "id": number, "step_idx": len(rows)}
        )
    return rows


def expected(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The columns of one episode in a file of at least twelve, of seeds from 0 on."""
    count = len(rows)
    columns: dict[str, Any] = {
        key: np.array([row[key] for row in rows])
        for key in ("number", "observation", "reward", "terminated", "id", "step_idx", "word")
    }
    columns["truncated"] = np.zeros(count, bool)
    columns["action"] = np.array([row["action"] for row in rows[1:]] + [np.full(2, np.nan)])
    columns["widening"] = np.array([float(row["widening"]) for row in rows])
    columns["narrow"] = np.array([row["narrow"] for row in rows], np.int16)
    columns["ragged"] = np.array([json.dumps([int(x) for x in row["ragged"]]) for row in rows])
    columns["mood"] = np.array([json.dumps(row["mood"]) for row in rows])
    columns["late"] = carried([row.get("late") for row in rows], np.nan, np.float64)
    columns["once"] = carried([row.get("once") for row in rows], False, np.bool_)
    columns["rare"] = np.array([rows[0].get("rare", np.array(["", ""]))] * count)
    return columns


def carried(values: list[Any], fill: Any, dtype: Any) -> np.ndarray:
    """A value that is missing is the one before it, or the fill."""
    rows = [fill]
    for value in values:
        rows.append(rows[-1] if value is None else value)
    return np.array(rows[1:], dtype)


def assert_same_columns(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert sorted(found) == sorted(wanted)
    for name, values in wanted.items():
        assert found[name].shape == values.shape, name
        assert found[name].dtype.kind == values.dtype.kind, name
        if values.dtype.kind != "U":
            assert found[name].dtype == values.dtype, name
        np.testing.assert_array_equal(found[name], values, err_msg=name)
