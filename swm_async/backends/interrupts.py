"""Holding Ctrl-C back for the few moments in which it would cut a message in half."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

Caught: TypeAlias = "list[tuple[int, FrameType | None]]"


@contextmanager
def interrupts_held() -> Iterator[Caught]:
    """Deliver a SIGINT that arrives inside only at the end.

    Python runs signal handlers in the main thread alone, so elsewhere there is nothing to do.
    Yields the list of those that have arrived so far.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    if not in_main_thread or not callable(handler):
        yield []
        return
    caught: Caught = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[0])
