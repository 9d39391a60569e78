"""The workers of a pool as Ray actors, on this machine or on others.

Each actor hosts one shard in memory of its own. A command is one call of the actor and carries
the rows that it needs; its reply carries the rows that were written, which are copied into the
pool's blocks::

    pool's blocks ── pack ──▶ command ── Ray ──▶ actor's blocks ──▶ environments
    pool's blocks ◀── copy ── reply   ◀── Ray ── pack ◀── actor's blocks ◀── environments

Knows nothing of seeds or infos. What lies in rows is the affair of ``swm_workers.rows``, which
Ray is used that of ``ray_cluster``.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from swm_async.arguments import split
from swm_async.backends.base import EnvFn, Lost, ShardRange
from swm_async.backends.ray_cluster import actor_options, connect, count_workers, disconnect
from swm_async.backends.starting import pickle_factories, search_path, thread_variables
from swm_workers import registrations, snapshot
from swm_workers.actor import ShardHost
from swm_workers.layout import Array
from swm_workers.memory import Block
from swm_workers.protocol import (
    ALL,
    NO_LAYOUT,
    BuildArguments,
    Built,
    Command,
    CommandBody,
    LayoutUpdate,
    Report,
    WorkerSpans,
)
from swm_workers.rows import Columns, Frame, RowPlan, pack_frame, unpack_reply
from swm_workers.spaces import Leaf, leaves


class _Pending(NamedTuple):
    """A command that was sent and whose reply has not been read."""

    reference: Any
    columns: Columns | None
    rows: Array | None


class _Actor:
    """One actor, what it was told, and what it still owes."""

    def __init__(self, handle: Any, shard: ShardRange) -> None:
        self.handle = handle
        self.shard = shard
        self.pid = 0
        self.lost: Lost | None = None
        self.pending: _Pending | None = None
        self.action_leaves: Sequence[Leaf] = ()
        self.buffers: dict[int, Any] = {}
        self.plans: dict[int, RowPlan] = {}
        self.needs: dict[int, set[int]] = {}
        """The blocks that were live when the actor was told of a layout."""
        self.is_behind = False
        """Whether the pool has written into infos that the actor has a slot for."""

    def learn(self, update: LayoutUpdate) -> None:
        """Remember a layout, and forget those with blocks that are not live any more."""
        live = {block.block for block in update.blocks}
        self.buffers = {n: buffer for n, buffer in self.buffers.items() if n in live}
        # The same rule as that of the worker, which must know whatever is known here.
        self.needs = {v: blocks for v, blocks in self.needs.items() if blocks <= live}
        self.plans = {v: plan for v, plan in self.plans.items() if v in self.needs}
        version = update.layout.version
        self.needs[version] = live
        self.plans[version] = RowPlan(update.layout, self.buffers, *self.shard, self.action_leaves)

    def frame(
        self, kind: int, flags: int, version: int, body: CommandBody | None
    ) -> tuple[bytes, Columns | None, Array | None]:
        """The command in one piece; what it writes, and in which rows."""
        update = None if body is None else body[0]
        if update is not None:
            self.learn(update)
        payload = b"" if body is None else pickle.dumps(body, pickle.HIGHEST_PROTOCOL)
        plan = None if version == NO_LAYOUT else self.plans[version]
        if plan is None:
            return pack_frame(Frame(kind, flags, False, version, payload, b"")), None, None
        # A reset of all writes every row, whatever the actor has in it.
        has_infos = (update is not None or self.is_behind) and not (
            kind == Command.RESET and flags & ALL
        )
        packed = plan.pack_inputs(kind, flags, has_infos=has_infos)
        self.is_behind = False
        columns = plan.written_by(kind)
        rows = None if columns is None else plan.rows(flags)
        return pack_frame(Frame(kind, flags, has_infos, version, payload, packed)), columns, rows

    def take_in(self, pending: _Pending, reply: Any) -> Any:
        """Copy the rows of a reply to where they belong; returns its result."""
        result, packed = unpack_reply(reply)
        taken = None
        if isinstance(result, Report):
            # The pool gives these values slots, or writes them into those that it has.
            self.is_behind = self.is_behind or any(
                data is not None and not is_object for _, _, is_object, data in result.extras
            )
            if result.failures:
                taken = self._unharmed(result, pending.rows)
        if pending.columns is not None:
            pending.columns.scatter(pending.rows, packed, taken)
        return _on_our_clock(result) if isinstance(result, WorkerSpans) else result

    def _unharmed(self, report: Report, rows: Array | None) -> Array:
        """Which of these rows did not fail: of the others nobody knows what was written."""
        first, last = self.shard
        moved = np.arange(last - first) if rows is None else rows
        return ~np.isin(moved, [failure.env_index - first for failure in report.failures])


class RayBackend:
    """A pool's workers, one actor and one shard each.

    Args:
        env_fns: the factories.
        num_workers: actors, from 1 to their number; None = by the CPUs of the cluster.
        threads: cap for threads of libraries; None = no cap.
        ray_options: see ``ray_cluster.actor_options``.
        whole_infos: whether infos travel as whole dicts.
    """

    in_process = False

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        num_workers: int | None,
        threads: int | None,
        ray_options: Mapping[str, Any] | None,
        *,
        whole_infos: bool = False,
    ) -> None:
        self._options = actor_options(ray_options)
        self.actors: list[_Actor] = []
        self._env_fns = list(env_fns)
        self._threads = threads
        self._whole_infos = whole_infos
        self._payloads: list[bytes] = []
        self._is_closed = False
        self._ray = connect(self)
        if num_workers is None:
            num_workers = count_workers(self._ray, len(self._env_fns), self._options)
        self.shards: Sequence[ShardRange] = split(len(self._env_fns), num_workers)
        self._errors = self._ray.exceptions
        self._class = self._ray.remote(ShardHost)

    def build(self, deadline: float | None) -> list[Built | Lost]:
        """Start every actor and let it build its environments, all in parallel."""
        self._payloads = self._build_payloads()
        for w in range(len(self.shards)):
            self.actors.append(self._start(w))
        return [self._finish_building(w, deadline) for w in range(len(self.shards))]

    def replace(self, worker: int, deadline: float | None) -> Built | Lost:
        """Start an actor anew in place of one that is lost, on whichever node has room."""
        old = self.actors[worker]
        self._kill(old)
        if self._is_closed:  # by another thread, or by a signal's handler
            return old.lost or Lost(old.pid, None, "")
        self.actors[worker] = self._start(worker)
        try:
            return self._finish_building(worker, deadline)
        except BaseException:  # Ctrl-C: whoever uses the pool again finds this worker lost
            self._lose(self.actors[worker], "its construction was interrupted")
            raise

    def _build_payloads(self) -> list[bytes]:
        registered = registrations.collect()
        payloads = []
        for first, last in self.shards:
            arguments = BuildArguments(
                first,
                len(self._env_fns),
                pickle_factories(self._env_fns[first:last], first),
                registered,
                self._whole_infos,
                tuple(sys.argv),
                0.0,
            )
            body = None, arguments
            payloads.append(pickle.dumps(body, pickle.HIGHEST_PROTOCOL))
        return payloads

    def _start(self, worker: int) -> _Actor:
        """Ask for an actor and let it build, once Ray has found a place for it."""
        handle = self._class.options(**self._options).remote(
            search_path(), thread_variables(self._threads)
        )
        actor = _Actor(handle, self.shards[worker])
        frame = Frame(Command.BUILD, 0, False, NO_LAYOUT, self._payloads[worker], b"")
        actor.pending = _Pending(handle.run.remote(pack_frame(frame)), None, None)
        return actor

    def _finish_building(self, worker: int, deadline: float | None) -> Built | Lost:
        actor = self.actors[worker]
        try:
            built: Built = self._receive(worker, deadline)
        except Lost as lost:
            if lost.waited_s is not None and not lost.trace:
                lost.trace = self._why_late()
            return lost
        actor.pid = built.pid
        if built.spaces is not None:
            actor.action_leaves = leaves(snapshot.loads(built.spaces)[0])
        return built

    def _why_late(self) -> str:
        asked = {k: v for k, v in self._options.items() if k in ("num_cpus", "num_gpus", "memory")}
        asked.update(self._options.get("resources", {}))
        try:
            has = self._ray.cluster_resources()
            free = self._ray.available_resources()
        except Exception as error:  # a cluster that cannot be asked any more
            return f"Ray does not answer: {error}"
        shown = [f"{k}: {free.get(k, 0):g} of {v:g} free" for k, v in sorted(has.items())
                 if not k.startswith(("node:", "object_store"))]  # fmt: skip
        return (
            f"each of {len(self.shards)} actors needs {asked}, besides a fresh interpreter; "
            f"the cluster has {', '.join(shown)}"
        )

    def new_block(self, size: int) -> Block:
        """Memory of this process."""
        return Block.private(size)

    def share(self, worker: int, number: int, block: Block) -> None:
        """Note where the rows of this block's replies are to be copied."""
        self.actors[worker].buffers[number] = block.buffer

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
        """Send one command."""
        actor = self.actors[worker]
        if actor.lost is not None:
            raise actor.lost
        frame, columns, rows = actor.frame(kind, flags, version, body)
        actor.pending = _Pending(actor.handle.run.remote(frame), columns, rows)

    def receive(self, worker: int, number: int, deadline: float | None) -> Any:
        """Wait for the reply to a command."""
        return self._receive(worker, deadline)

    def _receive(self, worker: int, deadline: float | None) -> Any:
        actor = self.actors[worker]
        if actor.lost is not None:
            raise actor.lost
        pending = actor.pending
        if pending is None:
            raise AssertionError("a reply was asked for without a command")
        reply = self._await(actor, pending.reference, deadline)
        actor.pending = None
        return actor.take_in(pending, reply)

    def _await(self, actor: _Actor, reference: Any, deadline: float | None) -> Any:
        """Wait for one result of an actor.

        Raises:
            Lost: the actor has died, or was killed at the deadline.
        """
        started = time.monotonic()
        timeout_s = None if deadline is None else max(0.0, deadline - started)
        try:
            return self._ray.get(reference, timeout=timeout_s)
        except self._errors.GetTimeoutError:
            waited_s = time.monotonic() - started
            self._lose(actor, "", waited_s)
        except self._errors.RayError as error:
            self._lose(actor, str(error))
        raise actor.lost or AssertionError("a lost actor has a record")

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
        """Send one command and wait for the replies."""
        replies: list[Any] = [None] * len(workers)
        for k, w in enumerate(workers):
            try:
                body = bodies[k] if bodies else None
                self.send(w, number, kind, flags[k], version, body, deadline)
            except Lost as lost:
                replies[k] = lost
        for k, w in enumerate(workers):
            if replies[k] is None:
                try:
                    replies[k] = self._receive(w, deadline)
                except Lost as lost:
                    replies[k] = lost
        return replies

    def ready(self, workers: Sequence[int], timeout_s: float | None) -> Collection[int]:
        """Wait until one of these busy workers has replied or died; returns all that have."""
        owed = {}
        for w in workers:
            pending = self.actors[w].pending
            if pending is None or self.actors[w].lost is not None:
                return [w]  # which has died: there is nothing to wait for
            owed[pending.reference] = w
        done, _ = self._ray.wait(list(owed), num_returns=1, timeout=timeout_s)
        if done and len(owed) > 1:
            done, _ = self._ray.wait(list(owed), num_returns=len(owed), timeout=0)
        return [owed[reference] for reference in done]

    def resynchronise(self, worker: int, number: int, deadline: float | None) -> None:
        """Drop every outstanding reply: a call that comes behind them says when they are over."""
        actor = self.actors[worker]
        if actor.lost is not None:
            raise actor.lost
        actor.pending = None
        frame = Frame(Command.SYNC, 0, False, NO_LAYOUT, b"", b"")
        self._await(actor, actor.handle.run.remote(pack_frame(frame)), deadline)

    def close(self, timeout: float, *, polite: bool) -> list[Any]:
        """Stop every actor, also if it is interrupted while environments close."""
        if self._is_closed:
            return []
        self._is_closed = True
        try:
            if not self._ray.is_initialized():
                return []  # somebody has shut Ray down, and all actors with it
            return self._close_environments(timeout) if polite else []
        finally:
            for actor in self.actors:
                self._kill(actor)
            disconnect(self._ray, self)

    def _close_environments(self, timeout_s: float) -> list[Any]:
        frame = pack_frame(Frame(Command.CLOSE, 0, False, NO_LAYOUT, b"", b""))
        references = [a.handle.run.remote(frame) for a in self.actors if a.lost is None]
        if not references:
            return []
        done, _ = self._ray.wait(references, num_returns=len(references), timeout=timeout_s)
        failures: list[Any] = []
        for returned in self._results(done):
            failures += returned.failures if returned is not None else ()
        return failures

    def _results(self, references: Iterable[Any]) -> Iterable[Any]:
        for reference in references:
            # An actor that died has closed no environment, which is not news at the end.
            with contextlib.suppress(self._errors.RayError):
                yield unpack_reply(self._ray.get(reference))[0]

    def _lose(self, actor: _Actor, trace: str, waited_s: float | None = None) -> None:
        """Note that an actor has gone, and see to it that it has."""
        self._kill(actor)
        # The exit code is known to the node alone; Ray puts into words what it knows.
        actor.lost = Lost(actor.pid, None, trace, waited_s)

    def _kill(self, actor: _Actor) -> None:
        actor.pending = None
        with contextlib.suppress(Exception):  # it has died, or its cluster has
            self._ray.kill(actor.handle, no_restart=True)


def _on_our_clock(spans: WorkerSpans) -> WorkerSpans:
    """Edges in seconds since the epoch as those of ``time.perf_counter`` here."""
    offset = time.time() - time.perf_counter()
    edges: Array = np.frombuffer(spans.edges, np.float64) - offset
    return spans._replace(edges=edges.tobytes())
