"""The environments of the benchmarks, from one that costs nothing to one that draws pictures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import AddRenderObservation

import swm_async  # noqa: F401  # registers PointGoal

Env = gymnasium.Env[Any, Any]


class Nothing(Env):
    """Does nothing at all and never ends: what is measured is the way to it and back."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._observation = np.zeros(4, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation, 0.0, False, False, {}


class Burn(Nothing):
    """Keeps its core busy for so many seconds per step."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = perf_counter() + self._seconds
        while perf_counter() < end:
            pass
        return super().step(action)


def point_goal() -> Env:
    """PointGoal whose observation is a picture of 96×96 pixels, drawn at every step."""
    env = gymnasium.make("swm_async/PointGoal-v0", render_mode="rgb_array")
    return AddRenderObservation(env, render_only=True)


class Kind(NamedTuple):
    """An environment of the benchmarks: what it is called, and its factory."""

    title: str
    env_fn: Callable[[], Env]


ENVIRONMENTS = {
    "nothing": Kind("does nothing", Nothing),
    "cartpole": Kind("CartPole-v1", partial(gymnasium.make, "CartPole-v1")),
    "burn-100us": Kind("burns 100 µs", partial(Burn, 100e-6)),
    "burn-1ms": Kind("burns 1 ms", partial(Burn, 1e-3)),
    "point-goal": Kind("PointGoal, 96×96 pixels", point_goal),
}
