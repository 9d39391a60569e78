"""Checking masks, seeds, options and worker counts before anything moves; no I/O.

Everything here returns private copies: a caller's object is never kept or changed.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from swm_async.backends.base import ShardRange
from swm_workers import snapshot
from swm_workers.layout import Array
from swm_workers.waiting import AWAKE_S

_SEED_LIMIT: Final = 2**63


def check_mask(mask: Any, num_envs: int) -> Array | None:
    """A private ``(num_envs,) bool`` copy, True = takes part; None = all take part.

    Raises:
        TypeError: it is not a mask of bools.
        ValueError: it has another length.
    """
    if mask is None:
        return None
    if mask.__class__ is np.ndarray and mask.dtype == np.bool_ and mask.shape == (num_envs,):
        copied: Array = mask.copy()
        return copied
    if type(mask).__module__.startswith("torch"):
        mask = mask.detach().cpu().numpy()
    array = np.asarray(mask)
    if array.dtype != np.bool_:
        hint = " (not indices: write mask[indices] = True into an array of False)"
        raise TypeError(
            f"mask must be {num_envs} bools, True = takes part; found dtype {array.dtype}"
            f"{hint if array.dtype.kind in 'iuf' else ''}"
        )
    if array.shape != (num_envs,):
        raise ValueError(f"mask must have shape ({num_envs},); found {array.shape}")
    return np.array(array)


def check_seeds(seed: Any, num_envs: int) -> list[int | None] | None:
    """One Python integer or None per environment; None = no environment is seeded.

    An integer gives environment i the seed ``seed + i``, as ``SyncVectorEnv.reset`` does.

    Raises:
        TypeError: it is neither an integer nor a sequence.
        ValueError: negative, fractional or beyond 63 bits, or another length.
    """
    if seed is None:
        return None
    if isinstance(seed, (bool, np.bool_, str, bytes, Mapping)):
        raise TypeError(f"seed must be an integer or a sequence; found {type(seed).__name__}")
    if not isinstance(seed, (list, tuple)) and np.ndim(seed) == 0:
        first = _seed(seed, "seed")
        if first + num_envs > _SEED_LIMIT:
            raise ValueError(f"seed + num_envs must not exceed 2**63; found {first}")
        return [first + i for i in range(num_envs)]
    seeds = list(seed)
    if len(seeds) != num_envs:
        raise ValueError(f"expected {num_envs} seeds, one per environment; found {len(seeds)}")
    return [None if s is None else _seed(s, f"seed[{i}]") for i, s in enumerate(seeds)]


def _seed(value: Any, name: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer; found {value!r}") from None
    if isinstance(value, (bool, np.bool_)) or not 0 <= number < _SEED_LIMIT:
        raise ValueError(f"{name} must be an integer from 0 to 2**63 - 1; found {value!r}")
    return number


def check_options(options: Any, num_envs: int) -> bytes | tuple[bytes | None, ...] | None:
    """Pickled options: one mapping for all, or one or None per environment.

    Raises:
        TypeError: not a mapping, or it cannot be pickled.
        ValueError: another length.
    """
    if options is None:
        return None
    if isinstance(options, Mapping):
        return _pickle(options, "options")
    if isinstance(options, (str, bytes)) or not isinstance(options, (Sequence, np.ndarray)):
        raise TypeError(
            f"options must be a mapping or one per environment; found {type(options).__name__}"
        )
    if len(options) != num_envs:
        raise ValueError(f"expected {num_envs} options, one per environment; found {len(options)}")
    for i, each in enumerate(options):
        if each is not None and not isinstance(each, Mapping):
            raise TypeError(f"options[{i}] must be a mapping or None; found {type(each).__name__}")
    return tuple(
        None if each is None else _pickle(each, f"options[{i}]") for i, each in enumerate(options)
    )


def _pickle(value: Any, name: str) -> bytes:
    try:
        return snapshot.dumps_by_value(value)
    except Exception as error:  # anything may come from a user's reduction
        raise TypeError(f"{name} cannot be pickled: {error}") from error


def check_seconds(seconds: Any, name: str, *, zero: bool = False) -> float | None:
    """A positive number of seconds, or 0 where it is allowed; None = no bound."""
    if seconds is None:
        return None
    if isinstance(seconds, (bool, np.bool_)) or not isinstance(seconds, (int, float, np.number)):
        raise TypeError(f"{name} must be seconds or None; found {type(seconds).__name__}")
    if not (float(seconds) > 0 or (zero and float(seconds) == 0)):
        raise ValueError(f"{name} must be {'at least' if zero else 'above'} 0; found {seconds}")
    return float(seconds)


def check_num_workers(num_workers: Any, num_envs: int) -> int:
    """How many workers to start; 0 = none, the environments live in this process.

    Raises:
        TypeError: not an integer.
        ValueError: below 0 or above ``num_envs``.
    """
    if num_workers is None:
        return min(num_envs, usable_cores())
    if isinstance(num_workers, (bool, np.bool_)):
        raise TypeError("num_workers must be an integer; found a bool")
    try:
        number = operator.index(num_workers)
    except TypeError:
        raise TypeError(
            f"num_workers must be an integer or None; found {type(num_workers).__name__}"
        ) from None
    if not 0 <= number <= num_envs:
        raise ValueError(f"num_workers must be from 0 to {num_envs} (num_envs); found {number}")
    return number


def cores_to_pin(num_workers: int, pin_workers: bool | None) -> list[int]:
    """The core for each worker; empty = the kernel places them.

    After load in the parent the kernel leaves two workers on one core for whole stretches,
    which doubles the time of a step. So with exactly one worker per core each gets its own.
    """
    if pin_workers is not None and not isinstance(pin_workers, bool):
        raise TypeError(f"pin_workers must be a bool or None; found {type(pin_workers).__name__}")
    if pin_workers is False or not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    if pin_workers is None and not 1 < num_workers == len(cores) == usable_cores():
        return []
    return [cores[w % len(cores)] for w in range(num_workers)]


def awake_seconds(num_workers: int, spin: bool | None) -> float:
    """How long the pool and its workers look for messages before they sleep; 0 = not at all.

    By default only where every worker has a core. Where a quota limits the time on the cores,
    it must be enough for the workers and the caller: what is looked away is lost.
    """
    if spin is not None and not isinstance(spin, bool):
        raise TypeError(f"spin must be a bool or None; found {type(spin).__name__}")
    if spin is None:
        quota = _quota()
        needed = num_workers if quota is None else num_workers + 1
        spin = usable_cores() > 1 and needed <= usable_cores()
    return AWAKE_S if spin and hasattr(os, "sched_yield") else 0.0


def split(num_envs: int, num_workers: int) -> list[ShardRange]:
    """Contiguous shards, as equal as possible; the longer ones come first."""
    size, longer = divmod(num_envs, num_workers)
    borders = [w * size + min(w, longer) for w in range(num_workers + 1)]
    return [ShardRange(a, b) for a, b in pairwise(borders)]


def usable_cores() -> int:
    """Cores that this process may use: affinity and the quota of its control group."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota() -> float | None:
    """Cores by the CPU quota of version 2 or 1 of Linux control groups, None = unlimited."""
    quotas = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += _quotas_v2(Path("/sys/fs/cgroup"), path)
        elif "cpu" in controllers.split(","):
            quotas += _quotas_v1(Path("/sys/fs/cgroup/cpu"), path)
    return min(quotas, default=None)


def _quotas_v2(root: Path, path: str) -> list[float]:
    found = []
    group = root / path.lstrip("/")
    for level in (group, *group.parents):
        words = _read_words(level / "cpu.max")
        if len(words) == 2 and words[0] != "max":
            found.append(int(words[0]) / int(words[1]))
        if level == root:
            break
    return found


def _quotas_v1(root: Path, path: str) -> list[float]:
    for level in (root / path.lstrip("/"), root):
        quota, period = (
            _read_words(level / "cpu.cfs_quota_us"),
            _read_words(level / "cpu.cfs_period_us"),
        )
        if quota and period and int(quota[0]) > 0:
            return [int(quota[0]) / int(period[0])]
    return []


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
