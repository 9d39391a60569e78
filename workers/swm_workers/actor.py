"""A worker that shares no memory with its pool: what a Ray actor does.

Takes a command as one piece of memory, lets the shard carry it out in blocks of its own, and
replies with one piece of memory; ``rows`` says what lies in them. Knows nothing of Ray, which
only calls ``run``, one command after the other.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from swm_workers import factories, registrations
from swm_workers.failures import capture
from swm_workers.layout import Array
from swm_workers.memory import Block
from swm_workers.protocol import (
    ALL,
    FORGET,
    NO_LAYOUT,
    BuildArguments,
    Built,
    Command,
    CommandBody,
    LayoutUpdate,
    WorkerSpans,
)
from swm_workers.rows import RowPlan, pack_reply, unpack_frame
from swm_workers.shard import Shard
from swm_workers.spaces import leaves
from swm_workers.tracing import SpanLog

_SMALL: Final = 100_000
"""Bytes up to which Ray sends a result along with its reply, and not through its store."""

_NO_BODY: Final[CommandBody] = (None, None)


class ShardHost:
    """One shard and its blocks.

    Args:
        path: where the pool's process finds modules; what exists here is appended to ``sys.path``.
        variables: environment variables to set before the environments are built.
    """

    def __init__(self, path: Sequence[str], variables: Mapping[str, str]) -> None:
        sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]
        os.environ.update(variables)
        self._shard: Shard | None = None
        self._blocks: dict[int, Block] = {}
        self._updates: dict[int, LayoutUpdate] = {}
        self._plans: dict[int, RowPlan] = {}
        self._version = NO_LAYOUT
        self._busy_s = 0.0
        self._waiting_s = 0.0
        self._idle_since = time.perf_counter()
        self._log: SpanLog | None = None

    def run(self, data: bytes) -> bytes | Array:
        """Carry out one command, see ``rows.Frame``; returns what ``rows.pack_reply`` packs."""
        busy_since = time.perf_counter()
        self._waiting_s += busy_since - self._idle_since
        kind, flags, has_infos, version, payload, packed = unpack_frame(data)
        update, arguments = pickle.loads(payload) if payload else _NO_BODY
        if version not in (self._version, NO_LAYOUT) or flags & FORGET:
            self._bind(version, flags, update)
        plan = self._plans.get(self._version)
        if plan is not None:
            plan.unpack_inputs(kind, flags, packed, has_infos=has_infos)
        log = self._log
        steps = 0 if self._shard is None else self._shard.steps_done
        result = self._carry_out(kind, flags, arguments)
        columns = None if plan is None else plan.written_by(kind)
        if plan is None or columns is None:
            reply = pack_reply(result, None, None, 0)
        else:
            rows = plan.rows(flags)
            reply = pack_reply(result, columns, rows, plan.count if rows is None else len(rows))
        self._idle_since = time.perf_counter()
        self._busy_s += self._idle_since - busy_since
        if log is not None and kind != Command.TRACE:
            log.note(busy_since, self._idle_since, kind, self._built().steps_done - steps)
        return reply.tobytes() if reply.nbytes <= _SMALL else reply

    def _carry_out(self, kind: int, flags: int, arguments: Any) -> Any:
        if kind == Command.BUILD:
            return self._build(arguments)
        if kind == Command.SYNC:
            return None
        if kind == Command.CLOSE:
            return self._shard.close() if self._shard is not None else None
        shard = self._built()
        if kind == Command.CALL:
            return shard.call(list(arguments), list(arguments.values()))
        if kind == Command.REBUILD:
            return Built(os.getpid(), None, None, shard.rebuild(arguments))
        if kind == Command.STATS:
            return shard.stats(self._busy_s, self._waiting_s)
        if kind == Command.TRACE:
            return self._trace(arguments)
        rows = shard.all if flags & ALL else shard.selected()
        if kind == Command.STEP:
            return shard.step(rows, arguments, flags)
        return shard.reset(rows, arguments)

    def _built(self) -> Shard:
        if self._shard is None:
            raise AssertionError("the first command of a worker is BUILD")
        return self._shard

    def _build(self, arguments: BuildArguments) -> Built:
        sys.argv[:] = arguments.argv
        registrations.restore(arguments.registrations)
        shard = self._shard = Shard(
            arguments.first, arguments.num_envs, in_process=False, whole_infos=arguments.whole_infos
        )
        try:
            env_fns = factories.loads(arguments.env_fns)
        except BaseException as error:  # loading imports user code, which may raise anything
            return Built(os.getpid(), None, None, (capture(factories.reached(), "build", error),))
        failures = shard.build(env_fns)
        if failures:
            return Built(os.getpid(), None, None, failures)
        return Built(os.getpid(), shard.spaces(), shard.mismatch(), ())

    def _bind(self, version: int, flags: int, update: LayoutUpdate | None) -> None:
        shard = self._built()
        if flags & FORGET:
            shard.forget()
        is_new = update is not None
        if update is None:
            update = self._updates[version]
        else:
            self._take_blocks(update)
            self._updates[version] = update
        buffers = {number: block.buffer for number, block in self._blocks.items()}
        shard.bind(update.layout, buffers)
        if is_new:
            last = shard.first + len(shard.envs)
            acted = leaves(shard.envs[0].action_space)
            self._plans[version] = RowPlan(update.layout, buffers, shard.first, last, acted)
        self._version = version

    def _take_blocks(self, update: LayoutUpdate) -> None:
        """Make the blocks that are new, and forget layouts with blocks that have gone."""
        sizes = dict(update.blocks)
        for number in set(self._blocks) - set(sizes):
            self._blocks.pop(number).close()
        for number in set(sizes) - set(self._blocks):
            self._blocks[number] = Block.private(sizes[number])
        for version, old in list(self._updates.items()):
            if not {block.block for block in old.blocks} <= set(sizes):
                del self._updates[version], self._plans[version]

    def _trace(self, begin: bool) -> WorkerSpans:
        """Hand over the spans of the trace that ends, if there is one; begin another if asked.

        Their edges are in seconds since the epoch: another machine's clock began elsewhere.
        """
        spans = WorkerSpans()
        now = time.perf_counter()
        if self._log is not None:
            spans = self._log.finish(now)
            edges = np.frombuffer(spans.edges, np.float64) + (time.time() - now)
            spans = spans._replace(edges=edges.tobytes())
            self._log = None
        if begin:
            self._log = SpanLog()
            self._log.begin(now)
        return spans
