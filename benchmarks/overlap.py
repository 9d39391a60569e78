"""What overlapping gains where environments differ: row P14 of the targets, and rollouts.

    python benchmarks/overlap.py                 # a few minutes
    python benchmarks/overlap.py --rounds 5 --seconds 0.3

P14      8 environments that sleep, 1 ms per step but one of them 20 ms, a worker each: `recv` of as
         many as are ready, against `step` of all.
rollout  `World.evaluate(schedule="ready")` against lock-step, where steps and episodes are drawn
         from tenfold ranges, a worker each.

The environments sleep, so that the number of cores does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter, sleep
from typing import Any, Literal

import gymnasium
import numpy as np
from environments import Nothing
from rows import Bound, run_rows

from swm_async import EnvPool, World
from swm_async.benchmarking import Side

ROWS = {"P14": Bound("speed", 5.0, 10.0), "rollout": Bound("time", 0.6, 0.5)}
BOTH_DID = {
    "P14": "as many steps of the same sleeping environments in all, by 8 workers",
    "rollout": "the same episodes of the same environments with the same results, by 8 workers",
}

NUM_ENVS = 8
EPISODES = 64


class Nap(Nothing):
    """Sleeps for so many seconds per step and never ends."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        sleep(self._seconds)
        return super().step(action)


class Uneven(Nothing):
    """Draws the steps of an episode from 5 to 50, and how long each lasts from 0.5 to 5 ms.

    Small numbers are as likely as large ones on a scale of logarithms.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self._left = round(5 * 10 ** self.np_random.random())
        return result

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        sleep(0.5e-3 * 10 ** self.np_random.random())
        self._left -= 1
        return self._observation, 1.0, self._left == 0, False, {}


def naps() -> list[Callable[[], gymnasium.Env[Any, Any]]]:
    """Seven environments of 1 ms per step, and one of 20 ms among them."""
    seconds = [1e-3] * NUM_ENVS
    seconds[3] = 20e-3
    return [partial(Nap, each) for each in seconds]


class LockStep:
    """Steps all environments at once, and waits for the slowest."""

    label = "step"

    def __init__(self, env_fns: list[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        self._pool = EnvPool(env_fns, num_workers=len(env_fns))
        self._count = len(env_fns)
        self._actions = np.zeros(self._count, np.int64)

    def restart(self) -> None:
        self._pool.reset(seed=0)

    def run(self, passes: int) -> float:
        started = perf_counter()
        for _ in range(passes):
            self._pool.step(self._actions)
        return passes / (perf_counter() - started)

    def close(self) -> None:
        self._pool.close()


class Ready(LockStep):
    """Steps again whichever environments are done; a pass is as many steps as those of all."""

    label = "recv(min_envs=1)"

    def run(self, passes: int) -> float:
        pool, actions, left = self._pool, self._actions, passes * self._count
        started = perf_counter()
        pool.send(actions)
        while left > 0:
            *_, ready = pool.recv(min_envs=1)
            left -= int(np.count_nonzero(ready))
            pool.send(actions, mask=ready)
        speed = passes / (perf_counter() - started)
        pool.recv()  # what is under way belongs to no sample
        return speed


class Evaluation:
    """Evaluates the same episodes over and over; a pass is one evaluation."""

    def __init__(self, schedule: Literal["lockstep", "ready"]) -> None:
        self.label = f'evaluate(schedule="{schedule}")'
        self._schedule = schedule
        self._world = World(Uneven, NUM_ENVS, add_pixels=False, num_workers=NUM_ENVS)
        self._world.set_policy(Zeros())

    def restart(self) -> None:
        self._world.reset(seed=0)

    def evaluate(self) -> Any:
        return self._world.evaluate(EPISODES, seed=0, schedule=self._schedule)

    def run(self, passes: int) -> float:
        started = perf_counter()
        for _ in range(passes):
            self.evaluate()
        return passes / (perf_counter() - started)

    def close(self) -> None:
        self._world.close()


class Zeros:
    """A policy that always does the same."""

    def get_action(self, infos: dict[str, Any]) -> Any:
        return np.zeros(NUM_ENVS, np.int64)


def sides_of(row: str) -> list[Callable[[], Side]]:
    """The reference, then the side that is to reach the target."""
    if row == "P14":
        return [partial(LockStep, naps()), partial(Ready, naps())]
    return [partial(Evaluation, "lockstep"), partial(Evaluation, "ready")]


def main(arguments: Sequence[str] | None = None) -> None:
    run_rows(__doc__ or "", "overlap", ROWS, sides_of, BOTH_DID, arguments, seconds=1.0)


if __name__ == "__main__":
    main()
