"""What both formats share about files: modes of opening, and one writer at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

try:
    import fcntl
except ImportError:  # not on this platform: writers are not told of each other
    fcntl = None  # type: ignore[assignment]  # the module or nothing

Mode: TypeAlias = Literal["append", "overwrite", "error"]


def check_mode(mode: Any) -> None:
    """Raise `ValueError` for a mode that there is not."""
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {get_args(Mode)}, found {mode!r}")


def refuse_existing(path: Path, mode: Mode) -> None:
    """Raise `FileExistsError` where there are episodes and the mode is "error"."""
    if mode == "error":
        raise FileExistsError(
            f'{path} holds episodes already; mode="append" adds to them, "overwrite" replaces them'
        )


def lock(descriptor: int, path: Path) -> None:
    """Hold a file or folder for one writer until its descriptor is closed.

    Raises:
        BlockingIOError: Another writer holds it.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(f"{path} is being written or read by someone else") from error


def temporary(path: Path) -> Path:
    """Return where to write what shall become `path` at once, in the same folder."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
