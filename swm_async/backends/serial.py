"""All environments in the caller's process, one after the other: the reference.

The same shard that a worker process runs, without pipes. A command is carried out when its
reply is asked for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from swm_async.backends.base import EnvFn, Lost, ShardRange
from swm_workers.memory import Block
from swm_workers.protocol import ALL, FORGET, Built, Command, CommandBody, LayoutUpdate, WorkerSpans
from swm_workers.shard import Shard
from swm_workers.tracing import SpanLog


class SerialBackend:
    """One shard that holds every environment."""

    in_process = True

    def __init__(self, env_fns: Sequence[EnvFn], *, whole_infos: bool = False) -> None:
        self.shards: Sequence[ShardRange] = [ShardRange(0, len(env_fns))]
        self._env_fns = list(env_fns)
        self._shard = Shard(0, len(env_fns), in_process=True, whole_infos=whole_infos)
        self._blocks: dict[int, Any] = {}
        self._updates: dict[int, LayoutUpdate] = {}
        self._version = 0
        self._busy_s = 0.0
        self._spans: SpanLog | None = None
        self._pending: tuple[int, int, CommandBody | None] | None = None

    def build(self, deadline: float | None) -> list[Built | Lost]:
        """Build the environments here and now; the deadline cannot be enforced."""
        failures = self._shard.build(self._env_fns)
        if failures:
            self._shard.close()
            return [Built(os.getpid(), None, None, failures)]
        return [Built(os.getpid(), self._shard.spaces(), self._shard.mismatch(), ())]

    def replace(self, worker: int, deadline: float | None) -> Built | Lost:
        """The only worker is the caller's process, which cannot be lost."""
        raise AssertionError("the caller's process is not lost while it calls")

    def new_block(self, size: int) -> Block:
        """Memory of this process."""
        return Block.private(size)

    def share(self, worker: int, number: int, block: Block) -> None:
        """Nothing has to travel."""
        self._blocks[number] = block.buffer

    def send(
        self,
        worker: int,
        number: int,
        kind: int,
        flags: int,
        version: int,
        body: CommandBody | None,
        deadline: float | None,
    ) -> None:
        """Note the command."""
        # Whoever asks to forget may have interrupted the binding of this version.
        if version != self._version or flags & FORGET:
            self._bind(version, body[0] if body is not None else None)
        if flags & FORGET:
            self._shard.forget()
        self._pending = (kind, flags, body)

    def receive(self, worker: int, number: int, deadline: float | None) -> Any:
        """Carry out the command; the deadline cannot be enforced."""
        if self._pending is None:
            raise AssertionError("a reply was asked for without a command")
        kind, flags, body = self._pending
        self._pending = None
        arguments: Any = body[1] if body is not None else None
        shard = self._shard
        if kind == Command.CALL:
            return shard.call(list(arguments), list(arguments.values()))
        if kind == Command.REBUILD:
            return Built(os.getpid(), None, None, shard.rebuild(arguments))
        if kind == Command.STATS:
            return shard.stats(self._busy_s, 0.0)
        if kind == Command.TRACE:
            return self._trace(arguments)
        return self._move(kind, flags, arguments)

    def _move(self, kind: int, flags: int, arguments: Any) -> Any:
        shard = self._shard
        rows = shard.all if flags & ALL else shard.selected()
        started = time.perf_counter()
        if kind == Command.STEP:
            report = shard.step(rows, arguments, flags)
        else:
            report = shard.reset(rows, arguments)
        self._busy_s += time.perf_counter() - started
        return report

    def _trace(self, begin: bool) -> WorkerSpans:
        """Hand over the spans of the trace that ends, if there is one; begin another if asked."""
        spans = WorkerSpans()
        if self._spans is not None:
            del self._move  # the method is back
            spans, self._spans = self._spans.finish(time.perf_counter()), None
        if begin:
            log = self._spans = SpanLog()
            log.begin(time.perf_counter())
            # In place of the method, so that without a trace nothing is in the way.
            self._move = partial(self._move_traced, log)  # type: ignore[method-assign]  # as said
        return spans

    def _move_traced(self, log: SpanLog, kind: int, flags: int, arguments: Any) -> Any:
        started, busy_s, steps = time.perf_counter(), self._busy_s, self._shard.steps_done
        report = SerialBackend._move(self, kind, flags, arguments)
        ended = started + (self._busy_s - busy_s)
        log.note(started, ended, kind, self._shard.steps_done - steps)
        return report

    def broadcast(
        self,
        workers: Sequence[int],
        number: int,
        kind: int,
        flags: Sequence[int],
        version: int,
        deadline: float | None,
        bodies: Sequence[CommandBody | None] | None,
    ) -> list[Any]:
        """Carry out a command."""
        self.send(0, number, kind, flags[0], version, bodies[0] if bodies else None, None)
        return [self.receive(0, number, None)]

    def ready(self, workers: Sequence[int], timeout_s: float | None) -> Collection[int]:
        """The work is done when the reply is asked for, so it can be asked for at once."""
        return workers

    def resynchronise(self, worker: int, number: int, deadline: float | None) -> None:
        """There is never a reply on its way."""
        self._pending = None

    def close(self, timeout: float, *, polite: bool) -> list[Any]:
        """Close the environments."""
        self._pending = None
        failures = list(self._shard.close().failures)
        self._blocks = {}
        return failures

    def _bind(self, version: int, update: LayoutUpdate | None) -> None:
        if update is None:
            update = self._updates[version]
        else:
            live = {block.block for block in update.blocks}
            self._blocks = {n: buffer for n, buffer in self._blocks.items() if n in live}
            self._updates = {
                known: old
                for known, old in self._updates.items()
                if {block.block for block in old.blocks} <= live
            }
            self._updates[version] = update
        self._shard.bind(update.layout, self._blocks)
        self._version = version
