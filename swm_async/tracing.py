"""Traces of a pool's work: collecting spans, and writing them as Chrome's trace events.

The format is that of "Trace Event Format" by Google, JSON Array Format, complete events (``X``).
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np

from swm_async.backends.base import Backend, ShardRange
from swm_workers.protocol import Command, WorkerSpans

Event: TypeAlias = dict[str, Any]

WAITS: Final = {
    "broadcast": "send and wait",
    "receive": "wait for a reply",
    "ready": "wait for any",
    "resynchronise": "resynchronise",
}
"""The methods of a backend in which the coordinator waits, and what its spans are called."""

_COORDINATOR: Final = 0


class Trace:
    """A trace that is being taken of an engine and its backend from now on."""

    def __init__(self, engine: Any, backend: Backend) -> None:
        self._engine = engine
        self._backend = backend
        self._waits: list[tuple[str, float, float]] = []
        self._started = time.perf_counter()
        engine.ask_all(Command.TRACE, True)
        if not self._backend.in_process:
            for method, name in WAITS.items():
                self._shadow(method, name)

    def _shadow(self, method: str, name: str) -> None:
        """Put a function that notes its time in place of a method of this backend alone."""
        call: Callable[..., Any] = getattr(self._backend, method)
        clock, waits = time.perf_counter, self._waits

        @functools.wraps(call)
        def noted(*args: Any, **kwargs: Any) -> Any:
            started = clock()
            try:
                return call(*args, **kwargs)
            finally:
                waits.append((name, started, clock()))

        setattr(self._backend, method, noted)

    def finish(self) -> list[Event]:
        """End it; returns its events, of workers only where the pool can still be asked."""
        for method in WAITS:
            self._backend.__dict__.pop(method, None)
        engine = self._engine
        replies: Sequence[Any] = ()
        if engine.closed_because is None:
            engine.check_usable()  # an interrupted call may have left something behind
            engine.let_all_finish()
        if engine.closed_because is None:
            replies = engine.ask_all(Command.TRACE, False)
        events = _coordinator_events(self._waits, self._started)
        for w, reply in enumerate(replies):
            if isinstance(reply, WorkerSpans):
                events += _worker_events(w, engine.shards[w], reply, self._started)
        return events


def write_events(path: str | os.PathLike[str], events: Sequence[Event]) -> None:
    """Write a JSON array, one event per line."""
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n")
        file.write(",\n".join(json.dumps(event) for event in events))
        file.write("\n]\n")


def _coordinator_events(waits: Sequence[tuple[str, float, float]], origin: float) -> list[Event]:
    events = [
        _named("process_name", _COORDINATOR, f"EnvPool in process {os.getpid()}"),
        _named("thread_name", _COORDINATOR, "coordinator"),
    ]
    # Where 0 lies on the clock of ``time.perf_counter``: to find a program's own times again.
    events[0]["args"]["origin_s"] = origin
    for name, started, ended in waits:
        events.append(_span(name, "coordinator", _COORDINATOR, started - origin, ended - origin))
    return events


def _worker_events(w: int, shard: ShardRange, spans: WorkerSpans, origin: float) -> list[Event]:
    track = w + 1
    title = f"worker {w}: environments {shard.first} to {shard.last - 1}"
    events = [_named("thread_name", track, title)]
    edges = (np.frombuffer(spans.edges, np.float64) - origin).tolist()
    kinds = np.frombuffer(spans.kinds, np.uint8).tolist()
    steps = np.frombuffer(spans.steps, np.int64).tolist()
    for k, (started, ended) in enumerate(pairwise(edges)):
        if k % 2 == 0:
            events.append(_span("idle", "idle", track, started, ended))
            continue
        event = _span(Command(kinds[k // 2]).name.lower(), "busy", track, started, ended)
        event["args"] = {"environment steps": steps[k // 2]}
        events.append(event)
    if spans.dropped:
        events.append(_instant(f"{spans.dropped} later commands were not kept", track, edges[-1]))
    return events


def _span(name: str, category: str, track: int, started: float, ended: float) -> Event:
    """A complete event; times are in microseconds, to the nanosecond."""
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": round(started * 1e6, 3),
        "dur": round((ended - started) * 1e6, 3),
        "pid": os.getpid(),
        "tid": track,
    }


def _instant(name: str, track: int, moment: float) -> Event:
    return {
        "name": name,
        "ph": "i",
        "s": "t",
        "ts": round(moment * 1e6, 3),
        "pid": os.getpid(),
        "tid": track,
    }


def _named(what: str, track: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": os.getpid(), "tid": track, "args": {"name": name}}
