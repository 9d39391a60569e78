"""Double buffering: one half of the environments steps while the policy works on the other.

    python examples/double_buffering.py

In lock-step the policy waits for the environments and the environments for the policy. With two
halves neither does: where both cost the same, that is twice as fast. Environments and policy only
wait here, in place of a simulator and of a network on an accelerator, so the figure does not depend
on the number of cores; both cost as much per row, whatever the size of the batch.

Letters: `N` = num_envs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from swm_async import EnvPool

Policy = Callable[[Any, Any], Any]
"""From observations `(N, 1)` and a mask `(N,) bool` to actions `(N, 1)`."""


class Walk(gymnasium.Env):
    """Adds up its actions, starting from a place drawn by its seed; a step takes some seconds."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._place = np.zeros(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Draw a place."""
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-1, 1, 1)
        return self._place.copy(), {}

    def step(self, action: Any) -> Any:
        """Move by the action."""
        time.sleep(self._seconds)
        self._place = self._place + action
        return self._place.copy(), float(-abs(self._place[0])), False, False, {}


def policy_of(seconds_per_row: float) -> Policy:
    """A policy that walks halfway to 0 and takes so long for each row of the mask."""

    def act(observations: Any, mask: Any) -> Any:
        time.sleep(seconds_per_row * np.count_nonzero(mask))
        return -0.5 * observations

    return act


def in_lockstep(pool: EnvPool, act: Policy, steps: int) -> Any:
    """Step all environments, then ask the policy for all; returns the last observations."""
    everyone = np.ones(pool.num_envs, bool)
    observations, _ = pool.reset(seed=0)
    for _ in range(steps):
        observations, *_ = pool.step(act(observations, everyone))
    return observations


def double_buffered(pool: EnvPool, act: Policy, steps: int) -> Any:
    """Step one half while the policy works on the other; returns the last observations."""
    halves = two_halves(pool)
    observations, _ = pool.reset(seed=0)
    for half in halves:
        pool.send(act(observations, half), mask=half)
    for _ in range(steps - 1):
        for half in halves:
            observations, *_ = pool.recv(mask=half)  # the other half is being stepped
            pool.send(act(observations, half), mask=half)
    observations, *_ = pool.recv()
    return observations


def two_halves(pool: EnvPool) -> tuple[Any, Any]:
    """Two masks, each with half of every worker's environments, so that no worker rests.

    With one worker these are `pool.groups(2)`. With more, those would be the environments of one
    half of the workers and of the other: they fit where the policy is the slower side.
    """
    parts = pool.groups(2 * max(1, pool.num_workers))
    return np.logical_or.reduce(parts[0::2]), np.logical_or.reduce(parts[1::2])


def main() -> None:
    """Measure both in turns and print how many times as fast double buffering is."""
    parser = argparse.ArgumentParser(description="Measure the gain of double buffering.")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--milliseconds", type=float, default=5.0, help="of a batch, on each side")
    parser.add_argument("--steps", type=int, default=100, help="of each environment in a sample")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if given.num_envs % (2 * given.num_workers):
        parser.error(
            f"--num-envs must be a multiple of twice --num-workers, {2 * given.num_workers}; "
            f"found {given.num_envs}"
        )
    seconds = given.milliseconds / 1000
    per_worker = given.num_envs // given.num_workers
    act = policy_of(seconds / given.num_envs)
    gains = []
    factories = [lambda: Walk(seconds / per_worker)] * given.num_envs
    with EnvPool(factories, num_workers=given.num_workers) as pool:
        for _ in range(given.rounds):
            took = []
            for way in (in_lockstep, double_buffered):
                started = time.perf_counter()
                way(pool, act, given.steps)
                took.append((time.perf_counter() - started) / given.steps)
            gains.append(took[0] / took[1])
            print(f"lock-step {1000 * took[0]:.2f} ms, double-buffered {1000 * took[1]:.2f} ms")
    print(f"gain over lock-step: {np.median(gains):.2f} × (at best 2)")


if __name__ == "__main__":
    main()
