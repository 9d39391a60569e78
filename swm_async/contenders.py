"""The sides of a comparison with Gymnasium: its vector environments, and pools.

It knows EnvPool and Gymnasium's vector environments. It must not know commands, tables, files or
pictures.

Both kinds of side do the same work: the same environments, seeds and actions, finished ones reset
at once; and hand out the same: observations, rewards, flags and infos, none of them copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Final, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from swm_async.advice import Figures
from swm_async.benchmarking import Measurement, Side, Spread, measure, opened
from swm_async.pool import EnvPool
from swm_async.vector import VectorEnv

EnvFn = Callable[[], "gymnasium.Env[Any, Any]"]

SYNC: Final = "SyncVectorEnv"
ASYNC: Final = "AsyncVectorEnv"
_BATCHES = 64


class Outputs(NamedTuple):
    """What a pass hands to its caller; observations are those after the resets."""

    observations: Any
    rewards: Any
    terminateds: Any
    truncateds: Any


@dataclass(frozen=True)
class Work:
    """What every side does: these environments, seeded from `seed`, these actions over and over.

    Attributes:
        env_fns: `N` factories.
        actions: Batches `(N, ...)` of actions.
        seed: Environment i starts with `seed + i`; later resets go on with its generator.
    """

    env_fns: Sequence[EnvFn]
    actions: Sequence[Any]
    seed: int = 0

    @classmethod
    def of(cls, env_fn: EnvFn, num_envs: int, seed: int = 0) -> Work:
        """Plan for `num_envs` environments of a kind; builds one to learn its action space."""
        with closing(env_fn()) as env:
            space = batch_space(env.action_space, num_envs)
        space.seed(seed)
        return cls([env_fn] * num_envs, [space.sample() for _ in range(_BATCHES)], seed)


class Stepper:
    """A side that makes its passes in this process, one call after the other."""

    label: str

    def __init__(self, work: Work) -> None:
        self._work = work
        self._next = 0

    def restart(self) -> Outputs:
        """Begin again; returns the outputs of the reset, rewards and flags all zero."""
        self._next = 0
        count = len(self._work.env_fns)
        no = np.zeros(count, np.bool_)
        return Outputs(self._reset(self._work.seed), np.zeros(count), no, no)

    def advance(self) -> Outputs:
        """Make one pass with the next actions."""
        self._next += 1
        return self._pass(self._work.actions[(self._next - 1) % len(self._work.actions)])

    def run(self, passes: int) -> float:
        """Make so many passes; returns passes per second."""
        actions, count, one = self._work.actions, len(self._work.actions), self._pass
        first = self._next
        self._next += passes
        started = perf_counter()
        for t in range(first, first + passes):
            one(actions[t % count])
        return passes / (perf_counter() - started)

    def _reset(self, seed: int) -> Any:
        """Reset all environments; returns the observations."""
        raise NotImplementedError

    def _pass(self, actions: Any) -> Outputs:
        raise NotImplementedError


class VectorSide(Stepper):
    """One of Gymnasium's vector environments; it resets within the step, and copies nothing."""

    def __init__(self, work: Work, label: Literal["SyncVectorEnv", "AsyncVectorEnv"]) -> None:
        super().__init__(work)
        self.label = label
        make: Any = SyncVectorEnv if label == SYNC else AsyncVectorEnv
        mode = AutoresetMode.SAME_STEP
        self._envs = make(work.env_fns, copy=False, autoreset_mode=mode)

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _reset(self, seed: int) -> Any:
        return self._envs.reset(seed=seed)[0]

    def _pass(self, actions: Any) -> Outputs:
        return Outputs(*self._envs.step(actions)[:4])


class OwnVectorSide(Stepper):
    """A VectorEnv of this library; it resets within the step, and copies nothing.

    Args:
        work: what is done.
        num_workers: 0 = in this process.
        mode: when a finished environment is reset.
    """

    def __init__(
        self, work: Work, num_workers: int, mode: AutoresetMode = AutoresetMode.SAME_STEP
    ) -> None:
        super().__init__(work)
        self.label = own_vector_label(num_workers, mode)
        self._envs = VectorEnv(
            work.env_fns, num_workers=num_workers, copy=False, autoreset_mode=mode
        )

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _reset(self, seed: int) -> Any:
        return self._envs.reset(seed=seed)[0]

    def _pass(self, actions: Any) -> Outputs:
        return Outputs(*self._envs.step(actions)[:4])


class PoolSide(Stepper):
    """An EnvPool: a step, then a masked reset of the environments that it finished."""

    def __init__(self, work: Work, num_workers: int) -> None:
        super().__init__(work)
        self.label = pool_label(num_workers)
        self._pool = EnvPool(work.env_fns, num_workers=num_workers)

    def close(self) -> None:
        """Close the pool."""
        self._pool.close()

    def _reset(self, seed: int) -> Any:
        return self._pool.reset(seed=seed)[0]

    def _pass(self, actions: Any) -> Outputs:
        observations, rewards, terminateds, truncateds, _ = self._pool.step(actions)
        finished = terminateds | truncateds
        if np.count_nonzero(finished):
            observations, _ = self._pool.reset(mask=finished)
        return Outputs(observations, rewards, terminateds, truncateds)


class WatchedPoolSide(PoolSide):
    """The same, with the figures of its samples: what lies between two of them does not count."""

    def __init__(self, work: Work, num_workers: int) -> None:
        super().__init__(work, num_workers)
        self._busy_s, self._waiting_s = np.zeros((2, max(1, num_workers)))

    def run(self, passes: int) -> float:
        """Make so many passes; returns passes per second."""
        before = self._pool.stats()
        rate = super().run(passes)
        after = self._pool.stats()
        self._busy_s += after["busy_s"] - before["busy_s"]
        self._waiting_s += after["waiting_s"] - before["waiting_s"]
        return rate

    def figures(self) -> Figures:
        """What the pool tells of all samples so far."""
        stats = self._pool.stats()
        return Figures(
            stats["step_mean_s"].tolist(),
            stats["step_worst_s"].tolist(),
            (self._waiting_s / (self._busy_s + self._waiting_s)).tolist(),
        )


def own_vector_label(num_workers: int, mode: AutoresetMode) -> str:
    """The label of a VectorEnv of so many workers."""
    return pool_label(num_workers).replace("EnvPool", f"VectorEnv, {mode.value}")


def pool_label(num_workers: int) -> str:
    """The label of a pool of so many workers."""
    if num_workers == 0:
        return "EnvPool, in process"
    return f"EnvPool, {num_workers} worker{'s' if num_workers > 1 else ''}"


@dataclass(frozen=True)
class Row:
    """What one side reached with `num_envs` environments, against Gymnasium's vector environments.

    Attributes:
        rate: Environment steps per second.
        against_sync, against_async: How many times as fast it is; None for the side itself.
        samples: The rates, one per round; the rounds of Gymnasium's AsyncVectorEnv are others.
        num_workers, figures: Of pools alone.
    """

    num_envs: int
    label: str
    rate: Spread
    against_sync: Spread | None
    against_async: Spread | None
    samples: tuple[float, ...] = ()
    num_workers: int | None = None
    figures: Figures | None = None


def compare(
    work: Work,
    worker_counts: Sequence[int],
    *,
    rounds: int,
    seconds: float,
    passes: int | None = None,
) -> list[Row]:
    """Measure pools of several worker counts against SyncVectorEnv and AsyncVectorEnv.

    AsyncVectorEnv may be many times slower than the others; so that it does not shorten their
    samples, it is measured in a second comparison. Arguments beyond `work` are those of `measure`.
    """
    with opened([partial(VectorSide, work, ASYNC)]) as (slow,):  # first: it forks this process
        makers: list[Callable[[], Side]] = [partial(VectorSide, work, SYNC)]
        makers += [partial(WatchedPoolSide, work, count) for count in worker_counts]
        with opened(makers) as sides:
            fast = measure(sides, rounds=rounds, seconds=seconds, passes=passes)
            every = measure([slow, *sides], rounds=rounds, seconds=seconds, passes=passes)
            pools = [side for side in sides if isinstance(side, WatchedPoolSide)]
            figures = [side.figures() for side in pools]
    count = len(work.env_fns)

    def row(label: str, found: Measurement) -> Row:
        rate = Spread(*(count * value for value in found.rate(label)))
        sync = None if label == SYNC else found.ratio(label, SYNC)
        slow = None if label == ASYNC else every.ratio(label, ASYNC)
        samples = tuple(count * value for value in found.samples[label])
        return Row(count, label, rate, sync, slow, samples)

    rows = [row(SYNC, fast), row(ASYNC, every)]
    for number, shown in zip(worker_counts, figures, strict=True):
        pool = row(pool_label(number), fast)
        rows.append(replace(pool, num_workers=number, figures=shown))
    return rows
