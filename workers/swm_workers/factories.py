"""Factories on their way to a worker; no I/O.

Those of a shard are pickled together, so that what they share stays shared. Marks between
them tell which one was being loaded when that failed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

EnvFn = Callable[[], Any]

_reached = 0


class _Mark:
    """Says, while it is unpickled, which factory comes next."""

    def __init__(self, env_index: int) -> None:
        self._env_index = env_index

    def __reduce__(self) -> Any:
        return _reach, (self._env_index,)


def _reach(env_index: int) -> None:
    global _reached
    _reached = env_index


def dumps(env_fns: Sequence[EnvFn], first: int) -> bytes:
    """Pickle the factories of the environments from ``first`` on.

    Raises:
        Exception: whatever a factory's own reduction raises.
    """
    return bytes(cloudpickle.dumps([(_Mark(first + k), fn) for k, fn in enumerate(env_fns)]))


def loads(data: bytes) -> list[EnvFn]:
    """Rebuild the factories.

    Raises:
        BaseException: what a factory's own reconstruction raises; ``reached`` says which.
    """
    return [env_fn for _, env_fn in pickle.loads(data)]


def reached() -> int:
    """The environment whose factory was loaded last, or failed to be."""
    return _reached
