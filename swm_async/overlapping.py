"""The engine with commands that are under way while the caller does something else."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError

from swm_async.engine import Engine
from swm_async.errors import PoolError
from swm_async.hosting import InFlight
from swm_async.infos import LateRows
from swm_async.overlap import Arrived, Overlap, Task
from swm_async.tracing import Trace
from swm_workers.layout import Array
from swm_workers.protocol import ALL, Command, Part, Report
from swm_workers.whole_infos import as_parts


class OverlappingEngine(Engine):
    """An engine whose steps and resets can be started and received separately."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # It is handed no method of this object: a cycle would keep a dropped pool open.
        self.overlap = Overlap(
            self.num_envs, self.shards, self._backend, self._exchange, self._timeout_s
        )
        self._unraised: list[PoolError] = []
        self._whole_gathered: list[Part] = []

    def is_plain(self) -> bool:
        """Whether every environment can be stepped at once: no check would find anything."""
        return not (
            self._some_need_reset
            or self.overlap.any
            or self._in_flight is not None
            or self.closed_because is not None
        )

    def make_way(self, rows: Array | None) -> None:
        """Let the workers of these rows, which must be idle, finish what they are at.

        Raises:
            AlreadyPendingCallError: one of the rows is busy.
        """
        if not self.overlap.any:
            return
        rows = self._all_rows if rows is None else rows
        self.check_idle(rows)
        self._let_finish(sorted(set(self._worker_of[rows].tolist())))

    def let_all_finish(self) -> None:
        """Let every worker finish what was sent to it; what is done stays to be received."""
        if self.overlap.any:
            self._let_finish(self._all_workers)

    def forsake(self) -> None:
        """Let everything finish that was started, and drop it: the call was interrupted.

        For callers who know of nothing that is under way; its rows need a reset.
        """
        if not self.overlap.any:
            return
        self._let_finish(self._all_workers)
        rows = np.flatnonzero(self.overlap.busy)
        self.need_reset[rows] = self._some_need_reset = True
        self.hand_over(rows)
        self.whole = []

    def begin_trace(self) -> Trace:
        """Note from now on when each worker is busy, and when they are waited for."""
        return Trace(self, self._backend)

    def _let_finish(self, workers: Sequence[int]) -> None:
        while occupied := self.overlap.occupied(workers):
            self._advance(occupied, None, None)
        self._take_in()

    def check_idle(self, rows: Array) -> None:
        """Raise ``AlreadyPendingCallError`` if one of these rows is busy."""
        busy = rows[self.overlap.busy[rows]]
        if len(busy):
            raise AlreadyPendingCallError(
                f"environments {busy.tolist()} are busy; recv their results first", "send"
            )

    def start_step(self, rows: Array, objects: Sequence[tuple[Any, ...]] | None) -> None:
        """Start steps of idle rows, with the actions in shared memory."""
        workers = sorted(set(self._worker_of[rows].tolist()))
        self.put_in_doubt(workers)
        arguments = None if objects is None else self._object_arguments(rows, workers, objects)
        if self._recorder.with_actions:
            self._recorder.add(self.action_space, rows, self.control.actions, objects)
        self.episode_steps[rows] += 1
        self._start(Command.STEP, rows, workers, arguments)

    def start_reset(
        self,
        rows: Array,
        seeds: Sequence[int | None] | None,
        options: bytes | tuple[bytes | None, ...] | None,
    ) -> None:
        """Start resets of idle rows; the arrays stay the same objects."""
        workers = sorted(set(self._worker_of[rows].tolist()))
        self.put_in_doubt(workers, rows)
        arguments = self._reset_arguments(rows, workers, seeds, options)
        self._note_resets(rows, seeds, options)
        for part in (self.control.rewards, self.control.terminateds, self.control.truncateds):
            part[rows] = 0
        self._start(Command.RESET, rows, workers, arguments)
        self._some_need_reset = bool(self.need_reset.any())

    def await_rows(
        self,
        wanted: Array,
        need: int,
        timeout_s: float | None,
    ) -> bool:
        """Wait until ``need`` of the wanted busy rows are done; meanwhile other threads may send.

        Args:
            wanted: env indices.
            need: how many of them are enough.
            timeout_s: seconds; None = any time.

        Returns:
            Whether all of them are done.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while workers := self.overlap.concerned(wanted):
            patience = None if deadline is None else max(0.0, deadline - time.monotonic())
            if self.overlap.count_arrived(wanted) >= need:
                patience = 0.0  # enough; what else has come by now is taken along
            has_come = self._advance(workers, patience, self.lock)
            # What has come may have been read by another thread, so nothing new is no timeout.
            if self.closed_because is not None or (patience == 0.0 and not has_come):
                break
        self._take_in()
        return not self.overlap.concerned(wanted)

    def hand_over(self, wanted: Array) -> tuple[Array, list[PoolError]]:
        """Make the wanted rows idle that are done; returns them and the errors that they met."""
        rows = self.overlap.done(wanted)
        taken = set(rows.tolist())
        mine = tuple(part for part in self._whole_gathered if part[0] in taken)
        self.whole = [(mine, (), {})] if mine else []
        self._whole_gathered = [part for part in self._whole_gathered if part[0] not in taken]
        is_over = self.closed_because is not None
        errors = [e for e in self._unraised if is_over or taken & set(e.env_indices)]
        self._unraised = [e for e in self._unraised if e not in errors]
        self.overlap.hand_over(rows)
        return rows, errors

    def _start(
        self,
        kind: Command,
        rows: Array,
        workers: Sequence[int],
        arguments: Mapping[int, Any] | None,
    ) -> None:
        hosts = self._worker_of[rows]
        self.overlap.start(
            [
                Task(kind, w, rows[hosts == w], None if arguments is None else arguments[w])
                for w in workers
            ],
            self._show_mask,
        )
        self._in_flight = None

    def _advance(
        self,
        workers: Sequence[int],
        timeout_s: float | None,
        lock: threading.RLock | None,
    ) -> bool:
        """Read replies that have come and send what waits for them; False = none has come."""
        arrived = self.overlap.wait(workers, timeout_s, lock, self.put_in_doubt)
        try:
            if any(_went_wrong(each) for each in arrived):
                self._take_in()  # what failed is built anew before its worker goes on
            if self.closed_because is None:
                self.put_in_doubt([each.sent.task.worker for each in arrived])
                for each in arrived:
                    self.overlap.go_on(each.sent.task.worker, self._show_mask)
        except BaseException:  # Ctrl-C: nobody would tell the workers what waits for them
            rows = self._all_rows[:0] if self._in_flight is None else self._in_flight.rows
            self._in_flight = InFlight(self._all_workers, rows)
            raise
        self._in_flight = None
        return bool(arrived)

    def _take_in(self) -> None:
        """Digest everything that has arrived, all at once so that its order does not matter."""
        for kind, command in ((Command.RESET, "reset"), (Command.STEP, "step")):
            group = self.overlap.arrived(kind)
            if not group:
                continue
            tasks = [each.sent.task for each in group]
            rows = tasks[0].rows if len(tasks) == 1 else np.concatenate([t.rows for t in tasks])
            workers = [task.worker for task in tasks]
            self._in_flight = InFlight(workers, rows)
            self.overlap.take(group)
            if kind == Command.STEP and self._are_all_in_place(group):
                self._in_flight = None
                self._note_finished(rows)
                continue
            late = [LateRows(each.sent.version, each.sent.task.rows.tolist()) for each in group]
            outcome = self._digest(rows, workers, [each.reply for each in group], late=late)
            self._whole_gathered += as_parts(self.whole)
            errors = self._judge(command, rows, outcome)
            self._unraised += errors
            if kind == Command.RESET and outcome.failed and not errors:
                again = [_only(task, self.need_reset) for task in tasks]
                self._repeat([task for task in again if len(task.rows)])
            elif kind == Command.STEP:
                self._note_finished(rows)
        self._some_need_reset = bool(self.need_reset.any())

    def _repeat(self, tasks: Sequence[Task]) -> None:
        """Start resets once more, of environments that were built anew."""
        for task in tasks:
            self._in_flight = InFlight([task.worker], task.rows)
            self._note_repeated(task.rows)
            self.overlap.start([task], self._show_mask)
            self._in_flight = None

    def _are_all_in_place(self, arrived: Sequence[Arrived]) -> bool:
        """Whether all that these replies tell lies in shared memory, where it belongs."""
        version = self._exchange.version
        return all(each.reply is None and each.sent.version == version for each in arrived)

    def _note_finished(self, rows: Array) -> None:
        if self.restarts is not None:
            self.restarts.note_finished(rows, self.control.terminateds, self.control.truncateds)

    def _show_mask(self, task: Task) -> int:
        """Write the mask of one worker's rows, which it reads when its command begins."""
        first, last = self.shards[task.worker]
        resets = self._resets if task.kind == Command.STEP else 0
        if len(task.rows) == last - first:
            return ALL | resets
        self.control.mask[first:last] = False
        self.control.mask[task.rows] = True
        return resets

    def _moving_rows(self) -> Sequence[int]:
        if not self.overlap.any:
            return ()
        moving: list[int] = np.flatnonzero(self.overlap.in_flight).tolist()
        return moving

    def _recover(self) -> None:
        doubt = self._in_flight
        if doubt is not None:
            self.need_reset[self.overlap.drop(doubt.workers, doubt.rows)] = True
        super()._recover()


def _went_wrong(arrived: Arrived) -> bool:
    reply = arrived.reply
    if isinstance(reply, Report):
        return bool(reply.failures)
    return reply is not None and reply.__class__ is not tuple


def _only(task: Task, need_reset: Array) -> Task:
    """The same reset for those of its rows that need it again."""
    positions = np.flatnonzero(need_reset[task.rows]).tolist()
    arguments = task.arguments
    if arguments is not None:
        seeds, options = arguments
        arguments = (
            None if seeds is None else tuple(seeds[j] for j in positions),
            tuple(options[j] for j in positions) if isinstance(options, tuple) else options,
        )
    return task._replace(rows=task.rows[positions], arguments=arguments)
