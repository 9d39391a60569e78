"""The workers of a pool as processes of this machine.

Starts one process per shard, gives each its factories, and carries commands to them and
replies back. How one process is talked to and ended is the affair of ``worker``; this module
knows nothing of masks, layouts or infos.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import sys
import time
from collections.abc import Collection, Sequence
from typing import Any, Final, TypeAlias

from swm_async.backends.base import EnvFn, Lost, ShardRange
from swm_async.backends.cores import NO_CORE, current_core
from swm_async.backends.interrupts import interrupts_held
from swm_async.backends.starting import pickle_factories
from swm_async.backends.worker import WorkerProcess, wait_for_any
from swm_async.errors import PoolError
from swm_workers import registrations
from swm_workers.memory import Block
from swm_workers.protocol import (
    AT_ONCE,
    HEADER,
    NEAR,
    NO_LAYOUT,
    BuildArguments,
    Built,
    Command,
    CommandBody,
    pack,
)
from swm_workers.waiting import LATE_S

_NOT_WRITTEN: Final = (errno.EAGAIN, errno.EBADF, errno.EPIPE)
"""The pipe is full, closed by another thread, or has lost its worker."""
_Turn: TypeAlias = tuple[int, WorkerProcess, int]
"""The position of a worker among those that are asked, its process, and ``NEAR`` or 0."""


class ProcessBackend:
    """A pool's workers, one shard each."""

    in_process = False

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        shards: Sequence[ShardRange],
        threads: int | None,
        *,
        whole_infos: bool = False,
        cores: Sequence[int] = (),
        awake_s: float = 0.0,
    ) -> None:
        self._cores = list(cores)
        self._awake_s = awake_s
        self._orders: dict[int, Sequence[_Turn]] = {}
        """In which order replies of all workers are read, by the core that this process is on."""
        self._whole_infos = whole_infos
        self.shards: Sequence[ShardRange] = list(shards)
        self._env_fns = list(env_fns)
        self._threads = threads
        self._payloads: list[bytes] = []
        self.workers: list[WorkerProcess] = []
        self._is_closed = False

    def build(self, deadline: float | None) -> list[Built | Lost]:
        """Start every worker and let it build its environments, all in parallel."""
        self._payloads = self._build_payloads()
        for w in range(len(self.shards)):
            with interrupts_held():
                self.workers.append(self._start(w))
        started = [self._start_building(w, deadline) for w in range(len(self.shards))]
        return [self._finish_building(w, lost, deadline) for w, lost in enumerate(started)]

    def replace(self, worker: int, deadline: float | None) -> Built | Lost:
        """Start a worker anew in place of one that is lost."""
        try:
            with interrupts_held():
                old = self.workers[worker]
                old.kill()
                old.release()
                if self._is_closed:  # by another thread, or by a signal's handler
                    return Lost(old.pid, old.exit_code, "")
                self.workers[worker] = self._start(worker)
                self._orders.clear()
            return self._finish_building(worker, self._start_building(worker, deadline), deadline)
        except BaseException:  # Ctrl-C: whoever uses the pool again finds this worker lost
            self.workers[worker].kill()
            raise

    def _start(self, worker: int) -> WorkerProcess:
        try:
            core = self._cores[worker] if self._cores else NO_CORE
            started = WorkerProcess(self._threads, self._awake_s)
        except OSError as error:
            raise PoolError(
                f"worker {worker + 1} of {len(self.shards)} could not be started: {error}. Each "
                "needs a process and up to ten descriptors; use fewer workers or raise the "
                "limits (ulimit -n, ulimit -u).",
                self.shards[worker].indices,
            ) from error
        if core >= 0:
            with contextlib.suppress(OSError):  # it has ended, or the core was taken from us
                os.sched_setaffinity(started.pid, {core})
        return started

    def _build_payloads(self) -> list[bytes]:
        registered = registrations.collect()
        payloads = []
        for first, last in self.shards:
            factories = pickle_factories(self._env_fns[first:last], first)
            arguments = BuildArguments(
                first,
                len(self._env_fns),
                factories,
                registered,
                self._whole_infos,
                tuple(sys.argv),
                self._awake_s,
            )
            body = None, arguments
            payloads.append(pickle.dumps(body, pickle.HIGHEST_PROTOCOL))
        return payloads

    def _start_building(self, worker: int, deadline: float | None) -> Lost | None:
        payload = self._payloads[worker]
        header = pack(0, Command.BUILD, 0, NO_LAYOUT, len(payload))
        try:
            self.workers[worker].send(header, payload, deadline)
        except Lost as lost:
            return lost
        return None

    def _finish_building(
        self, worker: int, lost: Lost | None, deadline: float | None
    ) -> Built | Lost:
        if lost is not None:
            return lost
        try:
            built: Built = self.workers[worker].receive(0, deadline)
        except Lost as error:
            return error
        return built

    def new_block(self, size: int) -> Block:
        """Memory that can be sent to the workers."""
        return Block.shared(size)

    def share(self, worker: int, number: int, block: Block) -> None:
        """Let a worker have a block."""
        self.workers[worker].share(number, block.fd)

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
        payload = _pickled(body)
        header = HEADER.pack(number, kind, flags, 0, version, len(payload))
        self.workers[worker].send(header, payload, deadline)

    def receive(self, worker: int, number: int, deadline: float | None) -> Any:
        """Wait for the reply to a command."""
        return self.workers[worker].receive(number, deadline)

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
        """Send one command and wait for the replies.

        The worker on our own core is told last, since it may take the core from us at once, and
        its reply comes first: while we sleep it runs, and we are back as soon as it sleeps. Woken
        from another core we would come late.
        """
        write, read, clock = os.write, os.read, time.perf_counter
        replies: list[Any] = [None] * len(workers)
        core = current_core() if self._cores else NO_CORE
        known = self._orders.get(core) if len(workers) == len(self.workers) else None
        order = known or self._order(core, workers)
        payloads = None if bodies is None else [_pickled(body) for body in bodies]
        asked, header, payload = -1, b"", b""
        headers = [header] * len(workers)
        for k, process, near in reversed(order):
            if payloads is not None:
                asked, payload = -1, payloads[k]
            if flags[k] | near != asked:
                asked = flags[k] | near
                header = HEADER.pack(number, kind, asked, 0, version, len(payload))
            headers[k] = header
            if len(payload) <= AT_ONCE - HEADER.size:
                try:
                    write(process.command_fd, header + payload)
                    continue
                except OSError as error:
                    if error.errno not in _NOT_WRITTEN:  # from the handler of a signal
                        raise
            try:
                process.send(header, payload, deadline)
            except Lost as lost:
                replies[k] = lost
        sent_s = clock()
        for k, process, near in order:
            if replies[k] is not None:
                continue
            sure_s = 0.0
            if self._awake_s and not near:
                if process.waiter.is_sure:
                    sure_s = clock()
                else:
                    process.waiter.look(sent_s)
            data = b""
            if deadline is None and not process.gone:
                try:
                    data = read(process.reply_fd, process.reads)
                except OSError as error:
                    if error.errno != errno.EBADF:  # from the handler of a signal
                        raise
            if sure_s and clock() > sure_s + LATE_S:
                process.waiter.doubt()
            if data != headers[k]:
                try:
                    replies[k] = process.receive(number, deadline, data)
                except Lost as lost:
                    replies[k] = lost
        return replies

    def _order(self, core: int, workers: Sequence[int]) -> Sequence[_Turn]:
        """In which order to read the replies of these workers: first whoever is on this core."""
        turns = [(k, self.workers[w], self._nearness(w, core)) for k, w in enumerate(workers)]
        order = sorted(turns, key=lambda turn: not turn[2])
        if len(workers) == len(self.workers):
            self._orders[core] = order
        return order

    def _nearness(self, worker: int, core: int) -> int:
        return NEAR if self._cores and self._cores[worker] == core else 0

    def ready(self, workers: Sequence[int], timeout_s: float | None) -> Collection[int]:
        """Wait until one of these busy workers has replied or died; returns all that have."""
        return wait_for_any({w: self.workers[w] for w in workers}, timeout_s)

    def resynchronise(self, worker: int, number: int, deadline: float | None) -> None:
        """Read and drop every outstanding reply."""
        self.workers[worker].resynchronise(number, deadline)

    def close(self, timeout: float, *, polite: bool) -> list[Any]:
        """Stop every worker, also if it is interrupted while environments close."""
        failures: list[Any] = []
        try:
            if polite:
                self._close_politely(timeout, failures)
        finally:
            self._is_closed = True
            with interrupts_held():
                for worker in self.workers:
                    worker.kill()
                    worker.release()
        return failures

    def _close_politely(self, timeout: float, failures: list[Any]) -> None:
        deadline = time.monotonic() + timeout
        number = int.from_bytes(os.urandom(8), "little")
        living = [worker for worker in self.workers if not worker.gone]
        for worker in living:
            worker.start_closing(number)
        for worker in living:
            returned = worker.finish_closing(number, deadline)
            failures += returned.failures if returned is not None else ()


def _pickled(body: CommandBody | None) -> bytes:
    return b"" if body is None else pickle.dumps(body, pickle.HIGHEST_PROTOCOL)
