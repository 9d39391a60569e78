"""What a new worker is given: command line, environment variables, factories; no I/O."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import cloudpickle

import swm_workers
from swm_async.backends.base import EnvFn

_BOOTSTRAP: Final = (
    "import sys; sys.path[:] = sys.argv[6:]; del sys.argv[6:]; "
    "from swm_workers.serve import main; main()"
)
"""Sets the path before the first import, lest a user's file hide a module."""

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)


def bootstrap_command(passed: Sequence[int]) -> list[str]:
    """The command line of a worker that gets these descriptors."""
    if not sys.executable:
        raise RuntimeError(
            "this Python does not know its own executable (sys.executable is empty), so no "
            "worker can be started; use num_workers=0"
        )
    # An empty entry stands for the working directory of now, not of whenever it is looked at.
    path = [entry or os.getcwd() for entry in sys.path]
    home = str(Path(swm_workers.__file__).resolve().parent.parent)
    if home not in path:
        path.append(home)
    flags = _interpreter_flags()
    return [sys.executable, *flags, "-c", _BOOTSTRAP, *(str(fd) for fd in passed), *path]


def _interpreter_flags() -> list[str]:
    """The flags that change what user code does: assertions, warnings, development mode."""
    flags = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    for option in sys.warnoptions:
        flags += ["-W", option]
    for name, value in sys._xoptions.items():
        flags += ["-X", name if value is True else f"{name}={value}"]
    return flags


def environment(threads: int | None) -> dict[str, str]:
    """The variables of a worker: the caller's as they are now, with capped threads."""
    variables = dict(os.environ)
    if threads is not None:
        variables.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    return variables


def pickle_factories(env_fns: Sequence[EnvFn], first: int) -> bytes:
    """Pickle a shard's factories together, so that what they share stays shared.

    Raises:
        TypeError: a factory cannot be pickled; names it.
    """
    try:
        return bytes(cloudpickle.dumps(tuple(env_fns)))
    except Exception:  # anything may come from a user's reduction; find the factory
        for k, env_fn in enumerate(env_fns):
            try:
                cloudpickle.dumps(env_fn)
            except Exception as error:
                raise TypeError(
                    f"env_fns[{first + k}] cannot be sent to a worker process: {error} "
                    f"(create the object inside the factory, or use num_workers=0)"
                ) from error
        raise
