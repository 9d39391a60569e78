"""Turning the records of workers into the errors that a caller sees; no I/O."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from swm_async.backends.base import Lost, ShardRange
from swm_async.errors import (
    EnvError,
    EnvFailure,
    InfoTypeError,
    InfoValueError,
    PoolError,
    WorkerDied,
    WorkerTimeout,
)
from swm_workers import snapshot
from swm_workers.layout import Array
from swm_workers.protocol import Failure, Problem


def env_error(
    failures: Sequence[Failure],
    seeds: Array | None,
    episode_steps: Array | None,
    advice: str = "",
) -> EnvError:
    """The error for exceptions in one or more environments.

    Args:
        failures: the records, in order of their environments.
        seeds: ``(N,) int64``, -1 = never seeded; None = seeds play no part.
        episode_steps: ``(N,) int64`` steps of the episode; None = they play no part.
        advice: how to repeat it.
    """
    return EnvError([_env_failure(f, seeds, episode_steps) for f in failures], advice)


def _env_failure(failure: Failure, seeds: Array | None, episode_steps: Array | None) -> EnvFailure:
    i = failure.env_index
    seed = None if seeds is None or seeds[i] < 0 else int(seeds[i])
    return EnvFailure(
        i,
        failure.command,
        seed,
        0 if episode_steps is None else int(episode_steps[i]),
        failure.type_name,
        failure.message,
        failure.traceback,
        _exception(failure),
    )


def _exception(failure: Failure) -> BaseException | None:
    if failure.pickled is None:
        return None
    try:
        loaded = snapshot.loads(failure.pickled)
    except Exception:  # a class that cannot be rebuilt here: name and text remain
        return None
    return loaded if isinstance(loaded, BaseException) else None


def info_error(
    problems: Sequence[Problem], command: str, seeds: Array, episode_steps: Array
) -> EnvError:
    """The error for infos that could not be delivered although the step was done."""
    kind, cause = (InfoValueError, "ValueError") if problems[0].collision else (
        InfoTypeError, "TypeError")  # fmt: skip
    return kind(
        [
            _env_failure(
                Failure(p.env_index, command, cause, p.message, p.message, None),
                seeds,
                episode_steps,
            )
            for p in problems
        ]
    )


def lost_error(
    lost: Sequence[tuple[ShardRange, Lost]], command: str, advice: str = ""
) -> PoolError:
    """The error for workers that have died, or were killed as overdue."""
    shard, first = lost[0]
    indices = [i for other, _ in lost for i in other.indices]
    error: PoolError
    if first.waited_s is None:
        error = WorkerDied(shard.indices, first.pid, first.exit_code, command, first.trace, advice)
    else:
        error = WorkerTimeout(
            shard.indices, first.pid, first.waited_s, command, first.trace, advice
        )
    error.env_indices = tuple(indices)
    return error


def warn_of(failures: Sequence[Failure]) -> None:
    """Tell of failures where raising would hide another error or is not possible."""
    for failure in failures:
        warnings.warn(
            f"environment {failure.env_index} raised while it was closed:\n{failure.traceback}",
            RuntimeWarning,
            stacklevel=2,
        )
