"""Finding the number of workers that suits some environments, by a short measurement.

It knows pools and how they are measured; no commands, files or pictures.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from swm_async.advice import confidences, fastest, in_words
from swm_async.arguments import check_num_workers, check_seconds, usable_cores
from swm_async.benchmarking import Side, Spread, measure, opened
from swm_async.contenders import PoolSide, Stepper, Work, pool_label
from swm_async.pool import EnvPool

_BATCHES = 64


@dataclass(frozen=True)
class Candidate:
    """One number of workers, and what it reached.

    Attributes:
        num_workers: 0 = in this process.
        rate: Environment steps per second: median and quartiles over the rounds.
        confidence: How sure it is, from 0 to 1, that it is the fastest; see `swm_async.advice`.
    """

    num_workers: int
    rate: Spread
    confidence: float


@dataclass(frozen=True)
class Tuning:
    """What `autotune` found; printed, it shows a table and its verdict.

    Attributes:
        num_workers: The fastest.
        confidence: How sure that is, from 0 to 1.
        verdict: The same in words.
        candidates: All that were tried, in ascending order.
    """

    num_workers: int
    confidence: float
    verdict: str
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        lines = [
            f"{each.num_workers:>11}  {each.rate.median:>13,.0f}  "
            f"{each.rate.low:,.0f}–{each.rate.high:,.0f}"
            for each in self.candidates
        ]
        return "\n".join(["num_workers  env steps/s    quartiles", *lines, self.verdict])


def autotune(
    env_fns: Iterable[Callable[[], Any]],
    *,
    candidates: Iterable[int] | None = None,
    seconds: float = 0.2,
    rounds: int = 7,
    seed: int = 0,
    **pool_options: Any,
) -> Tuning:
    """Measure which `num_workers` steps some environments fastest.

    All candidates are built, and then take turns with the same random actions; finished
    environments are reset at once. On a busy machine, or for environments whose steps differ much,
    the answer is less sure, which the result tells.

    Args:
        env_fns: N factories, as `EnvPool` takes them. Each is called once for each candidate.
        candidates: Numbers of workers, 0 (in this process) to N; None = 0, 1, 2, 4 … up to the
            usable cores, these, and twice as many.
        seconds: How long the slowest candidate's sample should take; it is one step of all
            environments at least.
        rounds: Samples of each, 3 or more.
        seed: Seeds environments and actions.
        **pool_options: More arguments of `EnvPool`.

    Returns:
        A `Tuning`; `EnvPool(env_fns, num_workers=autotune(env_fns).num_workers)`.

    Raises:
        TypeError, ValueError: An argument is wrong; nothing has been built.
        EnvError, WorkerDied, WorkerTimeout: An environment or a worker failed.
    """
    factories = list(env_fns)
    counts = _checked_candidates(candidates, len(factories))
    seconds_s = check_seconds(seconds, "seconds")
    if seconds_s is None:
        raise TypeError("seconds must be a number; found None")
    rounds, seed = _at_least("rounds", rounds, 3), _at_least("seed", seed, 0)
    if "num_workers" in pool_options:
        raise TypeError("num_workers is what autotune looks for; it takes candidates instead")
    makers: list[Callable[[], Side]] = [
        partial(_Tried, factories, count, seed, pool_options) for count in counts
    ]
    with opened(makers) as sides:
        found = measure(sides, rounds=rounds, seconds=seconds_s)
    samples = {
        count: [len(factories) * rate for rate in found.samples[pool_label(count)]]
        for count in counts
    }
    sure, best = confidences(samples), fastest(samples)
    tried = [Candidate(count, Spread.of(samples[count]), sure[count]) for count in counts]
    return Tuning(best, sure[best], in_words(samples), tuple(tried))


class _Tried(PoolSide):
    """A pool of one candidate, with actions of its own space."""

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        num_workers: int,
        seed: int,
        options: dict[str, Any],
    ) -> None:
        self._pool = EnvPool(env_fns, num_workers=num_workers, **options)
        space = self._pool.action_space
        space.seed(seed)
        actions = [space.sample() for _ in range(_BATCHES)]
        Stepper.__init__(self, Work(env_fns, actions, seed))
        self.label = pool_label(num_workers)


def default_candidates(num_envs: int, cores: int) -> list[int]:
    """Numbers of workers worth trying: around the number of cores, none, and few."""
    powers = {2**k for k in range(cores.bit_length())}
    counts = {0, cores, 2 * cores} | {power for power in powers if power <= cores}
    return sorted({min(count, num_envs) for count in counts})


def _checked_candidates(candidates: Iterable[int] | None, num_envs: int) -> list[int]:
    if num_envs == 0:
        raise ValueError("env_fns must hold at least one factory; found none")
    if candidates is None:
        return default_candidates(num_envs, usable_cores())
    if isinstance(candidates, (str, bytes)) or not isinstance(candidates, Iterable):
        raise TypeError(f"candidates must be numbers of workers; found {candidates!r}")
    given = list(candidates)
    if None in given:
        raise TypeError("candidates must be integers; found None")
    counts = sorted({check_num_workers(count, num_envs) for count in given})
    if len(counts) < 2:
        raise ValueError(f"candidates must be two or more different numbers; found {given}")
    return counts


def _at_least(name: str, value: Any, low: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer; found {type(value).__name__}") from None
    if isinstance(value, bool) or number < low:
        raise ValueError(f"{name} must be an integer of at least {low}; found {value!r}")
    return number
