"""What a new worker is given: command line, environment variables, factories; no I/O."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import swm_workers
from swm_async.backends.base import EnvFn
from swm_workers import factories

_BOOTSTRAP: Final = """
import sys
sys.path[:] = sys.argv[6:]
del sys.argv[6:]
try:
    from swm_workers.serve import main
except BaseException:
    import os, traceback
    os.write(int(sys.argv[5]), traceback.format_exc().encode(errors="replace"))
    os._exit(70)
main()
"""
"""Sets the path before the first import, lest a user's file hide a module; the traceback of
an import that fails goes where the pool looks for last words."""

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
    path = search_path()
    home = str(Path(swm_workers.__file__).resolve().parent.parent)
    if home not in path:
        path.append(home)
    flags = _interpreter_flags()
    if sys.version_info >= (3, 11):
        # The path is ours. Looking for the directory of a script fails where that was removed.
        flags.append("-P")
    return [sys.executable, *flags, "-c", _BOOTSTRAP, *(str(fd) for fd in passed), *path]


def search_path() -> list[str]:
    """Where modules are found: what the import system itself would pay attention to."""
    found: list[Any] = sys.path  # people put paths and worse into it
    path = [entry for entry in found if isinstance(entry, str)]
    if "" not in path:
        return path
    # An empty entry stands for the working directory of now, not of whenever it is looked at.
    try:
        here = os.getcwd()
    except OSError:  # it has been removed
        return [entry for entry in path if entry]
    return [entry or here for entry in path]


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
    return {**os.environ, **thread_variables(threads)}


def thread_variables(threads: int | None) -> dict[str, str]:
    """The variables that cap threads; none for no cap."""
    return {} if threads is None else dict.fromkeys(_THREAD_VARIABLES, str(threads))


def standard_stream(fd: int) -> int | None:
    """What ``Popen`` needs to give the caller's stream to a worker; nothing if it is closed."""
    try:
        os.fstat(fd)
    except OSError:
        return subprocess.DEVNULL
    return None


def pickle_factories(env_fns: Sequence[EnvFn], first: int) -> bytes:
    """Pickle a shard's factories together, so that what they share stays shared.

    Raises:
        TypeError: a factory cannot be pickled; names it.
    """
    try:
        return factories.dumps(env_fns, first)
    except Exception:  # anything may come from a user's reduction; find the factory
        for k, env_fn in enumerate(env_fns):
            try:
                factories.dumps([env_fn], first + k)
            except Exception as error:
                raise TypeError(
                    f"env_fns[{first + k}] cannot be sent to a worker process: {error} "
                    f"(create the object inside the factory, or use num_workers=0)"
                ) from error
        raise
