"""What a pool must show: the same environments in a plain loop. Knows nothing of faults."""

from __future__ import annotations

from typing import Any

import numpy as np
from soak_environment import Walker


class Wrong(Exception):
    """A pool and the plain loop disagree, or a call did what it should not."""


class Reference:
    """The same environments in a plain loop, and what a caller should see of them.

    ``known`` rows are those whose state is the pool's: a fault makes a row unknown until it is
    reset with a seed.
    """

    def __init__(self, num_envs: int) -> None:
        self.envs = [Walker(i) for i in range(num_envs)]
        self.known = [False] * num_envs
        self.observations: list[Any] = [None] * num_envs
        self.values: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self.reported: list[set[str]] = [set() for _ in range(num_envs)]

    def reset(self, i: int, seed: int | None, options: dict[str, Any] | None) -> None:
        if seed is not None:
            self.envs[i].close()
            self.envs[i], self.known[i] = Walker(i), True
        self.values[i] = {}
        self._take(i, *self.envs[i].reset(seed=seed, options=options))

    def step(self, i: int, action: int) -> tuple[float, bool, bool]:
        observation, reward, terminated, truncated, info = self.envs[i].step(action)
        self._take(i, observation, info)
        return reward, terminated, truncated

    def _take(self, i: int, observation: Any, info: dict[str, Any]) -> None:
        self.observations[i] = observation
        self.values[i].update(info)
        self.reported[i] = set(info)

    def check(self, observations: Any, infos: dict[str, Any]) -> int:
        """Compare every known row; returns how many there are."""
        for i in [i for i, known in enumerate(self.known) if known]:
            demand(np.array_equal(observations[i], self.observations[i]), f"observation of {i}")
            for key, value in self.values[i].items():
                demand(same(value, infos[key][i][0]), f"info {key!r} of {i}: {value!r} expected")
            for key in set(infos) - {"_restarted"}:
                if key.startswith("_"):
                    found = bool(infos[key][i])
                    demand(found == (key[1:] in self.reported[i]), f"companion {key!r} of {i}")
        return sum(self.known)


def same(expected: Any, found: Any) -> bool:
    """Equality of an info value with what a row holds; integers may have become floats."""
    if isinstance(expected, np.ndarray) or isinstance(found, np.ndarray):
        return np.shape(expected) == np.shape(found) and np.array_equal(expected, found)
    return bool(expected == found)


def demand(truth: Any, text: str) -> None:
    if not truth:
        raise Wrong(text)
