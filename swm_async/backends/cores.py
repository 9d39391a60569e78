"""Which core this process is on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

NO_CORE: Final = -1


def _find() -> Callable[[], int]:
    try:
        return ctypes.PyDLL(None).sched_getcpu
    except (AttributeError, OSError):  # not every C library has it
        return lambda: NO_CORE


current_core = _find()
"""The core that the calling thread is on at this moment; ``NO_CORE`` where it cannot be told."""
