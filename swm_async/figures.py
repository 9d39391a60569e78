"""What a pool tells about its own work: figures of workers and environments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from swm_async.access import EnvAccess
from swm_async.overlapping import OverlappingEngine
from swm_async.tracing import Trace, write_events


class PoolFigures(EnvAccess):
    """The part of ``EnvPool`` that measures."""

    def __init__(self, engine: OverlappingEngine) -> None:
        super().__init__(engine)
        self._trace: Trace | None = None

    def stats(self) -> dict[str, Any]:
        """What the workers have done so far, and which environments hold up the others.

        Letters: ``W`` = workers, with ``num_workers=0`` the caller's process as the only one.

        Returns:
            A dict of arrays.

            - ``steps`` ``(W,) int64``: environment steps.
            - ``busy_s``, ``waiting_s`` ``(W,) float64``: seconds spent on commands and waiting for
              them; ``waiting_share`` ``(W,) float64``: the latter's part of both, from 0 to 1.
            - ``step_mean_s``, ``step_worst_s`` ``(N,) float64``: seconds that an environment's own
              ``step`` took on average and at most. They are sampled: one command in 17 is timed,
              the first one included; NaN where none has been. Resets do not count.
            - ``restarts`` ``(W,) int64``: workers replaced and environments built anew.
            - ``extra_keys``: a dict of the info keys that travelled outside shared memory, with
              their bytes.

            All but the last two begin anew with a worker that is replaced.
        """
        with self._engine.lock:
            self._engine.check_usable()
            self._engine.let_all_finish()
            return self._engine.stats()

    @contextmanager
    def trace(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Write down when each worker was busy and when this process waited for workers.

        What was done inside of the ``with`` block is in the file after it: a trace of Chrome's
        format, a JSON array of events, which https://ui.perfetto.dev opens. Each worker has a
        track with its spans, named after the command (``step``, ``reset``, ``call`` …) or
        ``idle``; the track of the coordinator, which is this process, has its waits. Without a
        trace nothing is noted.

        At its beginning and end the workers finish what they are at; what is done stays to be
        received. A worker that is replaced meanwhile, or has carried out a million commands,
        tells no more.

        Args:
            path: the file, which is overwritten.

        Raises:
            TypeError: the path is none.
            OSError: the file cannot be written; nothing has been noted.
            RuntimeError: a trace of this pool is being taken already.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path must be a str or a path; found {type(path).__name__}")
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            if self._trace is not None:
                raise RuntimeError("this pool can take one trace at a time; found one under way")
            with open(path, "w", encoding="utf-8"):
                pass  # better an error now than when there is something to write
            engine.let_all_finish()
            trace = self._trace = engine.begin_trace()
        try:
            yield
        finally:
            with engine.lock:
                self._trace = None
                events = trace.finish()
            write_events(path, events)
