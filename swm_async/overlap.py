"""Commands that are under way while the caller does something else.

Keeps, for each worker, the task it carries out and those that wait for it, and for each
environment whether it is idle, in flight, or done and not yet handed over. A worker carries
out one task at a time. What a task and its reply mean is the engine's affair.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from swm_async.backends.base import Backend, Lost, ShardRange
from swm_async.exchange import Exchange
from swm_workers.layout import Array
from swm_workers.protocol import Command

_IDLE: Final = 0
_IN_FLIGHT: Final = 1
_ARRIVED: Final = 2
_DONE: Final = 3


class Task(NamedTuple):
    """One command for some environments of one worker."""

    kind: Command
    worker: int
    rows: Array
    arguments: Any


class Sent(NamedTuple):
    """A task that its worker has been told of."""

    task: Task
    number: int
    version: int
    """The layout under which the worker writes."""
    deadline: float | None


class Arrived(NamedTuple):
    """A task and its reply, or ``Lost``."""

    sent: Sent
    reply: Any


ShowMask: TypeAlias = Callable[[Task], int]
"""Writes the rows of a task into the shared mask; returns the flags of the command."""


class Overlap:
    """The tasks of a pool's workers.

    Args:
        num_envs: N.
        shards: which environments each worker hosts.
        backend: tells which replies have come.
        exchange: posts commands and collects replies.
        timeout_s: seconds that a worker may take for one task; None = any.
    """

    def __init__(
        self,
        num_envs: int,
        shards: Sequence[ShardRange],
        backend: Backend,
        exchange: Exchange,
        timeout_s: float | None,
    ) -> None:
        self._state = np.zeros(num_envs, np.int8)
        self._worker_of = np.repeat(np.arange(len(shards)), [s.last - s.first for s in shards])
        self._backend = backend
        self._exchange = exchange
        self._timeout_s = timeout_s
        self._running: dict[int, Sent] = {}
        self._waiting: dict[int, deque[Task]] = {w: deque() for w in range(len(shards))}
        self._arrived: list[Arrived] = []
        self.any = False
        """Whether any environment is in flight or waits to be handed over."""

    @property
    def busy(self) -> Array:
        """``(N,) bool``: in flight, or done and not yet handed over."""
        return np.asarray(self._state != _IDLE)

    @property
    def in_flight(self) -> Array:
        """``(N,) bool``: a worker writes, or will write, this row."""
        return np.asarray(self._state == _IN_FLIGHT)

    def start(self, tasks: Sequence[Task], show_mask: ShowMask) -> None:
        """Tell the workers, or let the tasks wait for those that are busy."""
        for task in tasks:
            self._state[task.rows] = _IN_FLIGHT
            self.any = True
            self._waiting[task.worker].append(task)
            self.go_on(task.worker, show_mask)

    def go_on(self, worker: int, show_mask: ShowMask) -> None:
        """Give a worker that has nothing to do the next of its tasks."""
        if worker in self._running or not self._waiting[worker]:
            return
        task = self._waiting[worker].popleft()
        flags = show_mask(task)
        timeout_s = self._timeout_s
        number, version = self._exchange.next_number(), self._exchange.version
        sent = Sent(task, number, version, None)
        try:
            self._exchange.post(task.kind, worker, flags, task.arguments, number, timeout_s)
        except Lost as lost:
            self._lose(sent, lost)
            return
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._running[worker] = sent._replace(deadline=deadline)

    def concerned(self, rows: Array) -> list[int]:
        """Workers that run, or have waiting, a task with one of these rows in flight."""
        if not self._running:
            return []
        hosts = set(self._worker_of[rows[self._state[rows] == _IN_FLIGHT]].tolist())
        return [w for w in self._running if w in hosts]

    def wait(
        self,
        workers: Sequence[int],
        timeout_s: float | None,
        lock: threading.RLock | None,
        put_in_doubt: Callable[[Sequence[int]], None],
    ) -> list[Arrived]:
        """Wait until one of these workers has replied; reads every reply that has come.

        They are kept until ``take`` as well, so that whoever needs their rows can take them in.

        Args:
            workers: busy ones.
            timeout_s: seconds; None = as long as they live, 0 = only look.
            lock: held by the caller, and given up while waiting, so that other threads may send.
            put_in_doubt: told of workers whose replies are lost should an interrupt come now.

        Returns:
            What has arrived; nothing after a timeout.
        """
        now = time.monotonic()
        deadlines = [self._running[w].deadline for w in workers]
        patience = [deadline - now for deadline in deadlines if deadline is not None]
        if timeout_s is not None:
            patience.append(timeout_s)
        ready = self._await_any(workers, max(0.0, min(patience)) if patience else None, lock)
        overdue = [
            w
            for w, deadline in zip(workers, deadlines, strict=True)
            if deadline is not None and time.monotonic() >= deadline
        ]
        # Another thread may have read a reply meanwhile.
        due = [w for w in workers if (w in ready or w in overdue) and w in self._running]
        put_in_doubt(due)
        arrived: list[Arrived] = []
        for w in due:
            arrived += self._collect(w, self._running[w])
        return arrived

    def _await_any(
        self, workers: Sequence[int], timeout_s: float | None, lock: threading.RLock | None
    ) -> Collection[int]:
        if lock is None:
            return self._backend.ready(workers, timeout_s)
        # Ctrl-C may come anywhere, also at the beginning of a context manager's methods; the
        # caller is to find the lock as it was.
        try:
            lock.release()
            return self._backend.ready(workers, timeout_s)
        finally:
            try:
                lock.acquire()
            except BaseException:
                with suppress(RuntimeError):
                    lock.release()  # it came when the lock was ours already
                lock.acquire()
                raise

    def _collect(self, worker: int, sent: Sent) -> Sequence[Arrived]:
        try:
            reply = self._exchange.collect(worker, sent.number, sent.deadline)
        except Lost as lost:
            del self._running[worker]
            return self._lose(sent, lost)
        del self._running[worker]
        self._state[sent.task.rows] = _ARRIVED
        arrived = (Arrived(sent, reply),)
        self._arrived += arrived
        return arrived

    def _lose(self, sent: Sent, lost: Lost) -> Sequence[Arrived]:
        """A lost worker takes the tasks that wait for it along."""
        tasks = [sent.task, *self._waiting[sent.task.worker]]
        self._waiting[sent.task.worker].clear()
        for task in tasks:
            self._state[task.rows] = _ARRIVED
        arrived = [Arrived(sent._replace(task=task), lost) for task in tasks]
        self._arrived += arrived
        return arrived

    def count_arrived(self, rows: Array) -> int:
        """How many of these rows have their results, handed over or not taken in yet."""
        return int((self._state[rows] >= _ARRIVED).sum())

    def arrived(self, kind: Command) -> list[Arrived]:
        """The tasks of a kind that have arrived and were not taken in, in order of their rows."""
        found = [each for each in self._arrived if each.sent.task.kind == kind]
        return sorted(found, key=lambda each: int(each.sent.task.rows[0]))

    def take(self, arrived: Sequence[Arrived]) -> None:
        """These are being taken in: their rows can be handed over."""
        taken = {id(each) for each in arrived}
        self._arrived = [each for each in self._arrived if id(each) not in taken]
        for each in arrived:
            self._state[each.sent.task.rows] = _DONE

    def done(self, rows: Array) -> Array:
        """Those of these rows that can be handed over."""
        return np.asarray(rows[self._state[rows] == _DONE])

    def hand_over(self, rows: Array) -> None:
        """Make rows idle that are done."""
        self._state[rows] = _IDLE
        self.any = bool(self._state.any())

    def drop(self, workers: Sequence[int], rows: Array) -> Array:
        """Forget rows, and the tasks of workers whose reply has not come or has got lost.

        Returns:
            All rows whose state is unknown now.
        """
        lost = np.zeros(len(self._state), np.bool_)
        for w in workers:
            self._running.pop(w, None)
            self._waiting[w].clear()
            is_on_its_way = (self._state == _IN_FLIGHT) | (self._state == _ARRIVED)
            lost |= is_on_its_way & (self._worker_of == w)
        for each in self._arrived:
            lost[each.sent.task.rows] = False
        lost[rows] = True
        self._state[lost] = _IDLE
        self.any = bool(self._state.any())
        return np.flatnonzero(lost)

    def occupied(self, workers: Sequence[int]) -> list[int]:
        """Those of these workers that carry out a task."""
        return [w for w in workers if w in self._running]
