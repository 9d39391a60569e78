"""Sharing one pool among tests: starting worker processes is what takes their time."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from on_ray import ENABLED
from swm_async import EnvPool


class Loan:
    """One pool for many tests; the next test after one that broke it gets another pool."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._arguments = args, kwargs
        self._pool: EnvPool | None = None

    def ready(self, prepare: Callable[[EnvPool], object]) -> EnvPool:
        """The pool, brought into the state that every test starts from."""
        if self._pool is None:
            args, kwargs = self._arguments
            self._pool = EnvPool(*args, **kwargs)
        try:
            prepare(self._pool)
        except BaseException:
            self.end()
            raise
        return self._pool

    def end(self) -> None:
        """Close the pool and let go of it, though tests' fixtures may still hold this."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


@contextmanager
def shared_pool(request: pytest.FixtureRequest, *args: Any, **kwargs: Any) -> Iterator[Loan]:
    """Lend one pool to many tests; when it has been closed, its descriptors must be gone.

    The fixture that hands the pool to a test must let go of it by ``forget_arguments``.
    """
    before, failed = open_descriptors(), request.session.testsfailed
    loan = Loan(*args, **kwargs)
    yield loan
    loan.end()
    gc.collect()
    # The traceback of a test that failed keeps its arrays alive.
    assert open_descriptors() <= before or request.session.testsfailed > failed


def forget_arguments(request: pytest.FixtureRequest) -> None:
    """Drop the values of a test's fixtures, which pytest holds until all of them are torn down."""
    request.node.funcargs.clear()


def open_descriptors() -> int:
    """How many files this process has open; each mapped block of shared memory counts.

    On Ray no block has a descriptor, and those of its connections come and go.
    """
    if ENABLED or not sys.platform.startswith("linux"):
        return 0
    return len(os.listdir("/proc/self/fd"))
