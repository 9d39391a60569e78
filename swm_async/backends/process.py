"""Worker processes and everything that is done to them: start, talk, wait, kill, reap.

A worker is a fresh interpreter: nothing of the caller's threads, locks or devices is copied
into it, and the caller's script is not run again. ``swm_workers.serve`` is its other half.
This module knows nothing of masks, layouts or infos.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from swm_async.backends.base import EnvFn, Lost, ShardRange
from swm_async.backends.interrupts import interrupts_held
from swm_async.backends.starting import bootstrap_command, environment, pickle_factories
from swm_async.errors import PoolError
from swm_workers import registrations
from swm_workers.memory import Block, anonymous_file
from swm_workers.protocol import (
    HEADER,
    NO_LAYOUT,
    BuildArguments,
    Built,
    Command,
    CommandBody,
    pack,
)
from swm_workers.serve import STACK_SIGNAL

_REAP_S: Final = 5.0
"""How long a process that has closed its pipe may take until it can be reaped."""
_STACK_S: Final = 1.0
"""How long an overdue worker may take to write down its stack."""
_SLICE_S: Final = 0.5
"""How often a long wait looks whether the processes still live."""
_CHUNK: Final = 1 << 20

_live: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


class WorkerProcess:
    """One worker: its process, and our ends of its pipes."""

    def __init__(self, threads: int | None) -> None:
        self.abandoned = False
        self.is_suspect = False
        """It has ended, although its pipe may still be held open by somebody."""
        self.exit_code: int | None = None
        self.gone = False
        self._fds: list[int] = []
        theirs: list[int] = []
        _live.add(self)
        try:
            command_read, self._command_fd = self._pipe(theirs, ours=1)
            self.reply_fd, reply_write = self._pipe(theirs, ours=0)
            lifeline_read, _ = self._pipe(theirs, ours=1)
            self._socket, other = socket.socketpair()
            theirs.append(other.detach())
            self._fault_fd = anonymous_file()
            self._fds.append(self._fault_fd)
            os.set_blocking(self._command_fd, False)
            passed = (command_read, reply_write, lifeline_read, theirs[-1], self._fault_fd)
            self._process = self._spawn(passed, threads)
            self.pid = self._process.pid
        except BaseException:
            self._close_descriptors()
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    def _pipe(self, theirs: list[int], *, ours: int) -> tuple[int, int]:
        ends = os.pipe()
        self._fds.append(ends[ours])
        theirs.append(ends[1 - ours])
        return ends

    def _spawn(self, passed: Sequence[int], threads: int | None) -> subprocess.Popen[bytes]:
        # Ctrl-C stays blocked in the worker until it has learned to ignore it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return subprocess.Popen(
                bootstrap_command(passed),
                stdin=subprocess.DEVNULL,
                pass_fds=passed,
                env=environment(threads),
                # A group of its own, so that what environments start can be ended with it.
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def share(self, number: int, fd: int) -> None:
        """Send the descriptor of a block."""
        try:
            socket.send_fds(self._socket, [number.to_bytes(8, "little")], [fd])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._lost() from error

    def send(self, header: bytes, payload: bytes, deadline: float | None) -> None:
        """Write a command; it is either written whole or the worker is lost."""
        try:
            if not payload:
                os.write(self._command_fd, header)
                return
            # A payload cut in half by Ctrl-C could never be put right again.
            with interrupts_held():
                os.write(self._command_fd, header)
                view = memoryview(payload)
                while view:
                    view = view[self._write_some(view, deadline) :]
        except BrokenPipeError as error:
            raise self._lost() from error

    def _write_some(self, view: memoryview, deadline: float | None) -> int:
        while True:
            try:
                return os.write(self._command_fd, view)
            except BlockingIOError:
                self._wait(self._command_fd, select.POLLOUT, deadline)

    def receive(self, number: int, deadline: float | None) -> Any:
        """Read the reply to command ``number``."""
        if deadline is not None or self.is_suspect:
            self._wait(self.reply_fd, select.POLLIN, deadline)
        data = os.read(self.reply_fd, HEADER.size)
        if len(data) != HEADER.size:
            raise self._lost()
        found, _, _, _, _, length = HEADER.unpack(data)
        if found != number:
            raise AssertionError(f"reply {found} came in place of reply {number}")
        return pickle.loads(self._read_exactly(length, deadline)) if length else None

    def _read_exactly(self, length: int, deadline: float | None) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            if deadline is not None:
                self._wait(self.reply_fd, select.POLLIN, deadline)
            count = os.readv(self.reply_fd, [view])
            if count == 0:
                raise self._lost()
            view = view[count:]
        return data

    def resynchronise(self, number: int, deadline: float | None) -> None:
        """Read and drop everything up to the reply to a SYNC command of this number."""
        self.send(pack(number, Command.SYNC, 0, NO_LAYOUT, 0), b"", None)
        tail = b""
        while True:
            if deadline is not None:
                self._wait(self.reply_fd, select.POLLIN, deadline)
            data = os.read(self.reply_fd, _CHUNK)
            if not data:
                raise self._lost()
            tail = (tail + data)[-HEADER.size :]
            # The number is drawn at random: no payload ends with it by accident.
            if len(tail) == HEADER.size and HEADER.unpack(tail)[0] == number:
                return

    def _wait(self, fd: int, event: int, deadline: float | None) -> None:
        """Wait until a pipe is ready or has lost its other end.

        Raises:
            Lost: the process ended although somebody still holds the pipe's other end, or
                the deadline passed and the worker was killed.
        """
        started = time.monotonic()
        poller = select.poll()
        poller.register(fd, event)
        with _process_descriptor(self.pid) as process_fd:
            if process_fd >= 0:
                poller.register(process_fd, select.POLLIN)
            ready = dict(poller.poll(_milliseconds(deadline)))
        if fd in ready:
            return
        if ready:
            raise self._lost()
        waited_s = time.monotonic() - started
        stack = self._ask_for_stack()
        self.kill()
        raise Lost(self.pid, self.exit_code, stack, waited_s)

    def _ask_for_stack(self) -> str:
        """Let the worker's fault handler, which needs no lock, write down where it stands."""
        size = os.fstat(self._fault_fd).st_size
        try:
            os.kill(self.pid, STACK_SIGNAL)
        except ProcessLookupError:
            return ""
        ends = time.monotonic() + _STACK_S
        last = size
        while time.monotonic() < ends:
            time.sleep(0.01)  # a file's growth cannot be waited for
            now = os.fstat(self._fault_fd).st_size
            if now == last > size:
                break
            last = now
        return os.pread(self._fault_fd, _CHUNK, size).decode(errors="replace")

    def _lost(self) -> Lost:
        """The worker has closed its pipe, so it has ended or is about to."""
        if not self._wait_for_exit(time.monotonic() + _REAP_S):
            self.kill()
        self.reap()
        trace = os.pread(self._fault_fd, _CHUNK, 0).decode(errors="replace")
        return Lost(self.pid, self.exit_code, trace)

    def _wait_for_exit(self, deadline: float) -> bool:
        """Wait for the end of the process without reaping it."""
        if self.gone:
            return True
        with _process_descriptor(self.pid) as process_fd:
            if process_fd >= 0:
                poller = select.poll()
                poller.register(process_fd, select.POLLIN)
                return bool(poller.poll(_milliseconds(deadline)))
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def has_ended(self) -> bool:
        """Whether the process has ended, without waiting."""
        return self._wait_for_exit(time.monotonic())

    def kill(self) -> None:
        """Kill the worker and what its environments started, and reap it."""
        if not self.gone:
            _kill_group(self.pid)
            self._wait_for_exit(time.monotonic() + _REAP_S)
            self.reap()

    def reap(self) -> None:
        """Take note of the exit code of a process that has ended; end what it left behind."""
        if self.gone:
            return
        self.gone = True
        _kill_group(self.pid)  # before the reaping: until then no other group has this id
        known = self._process.returncode is not None
        try:
            status = None if known else os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # somebody else has reaped it: its exit code is not known
            self._process.poll()
            return
        code = self._process.wait(_REAP_S)
        self.exit_code = code if known or status is not None else None

    def start_closing(self, number: int) -> None:
        """Ask the worker to close its environments and leave."""
        try:
            os.write(self._command_fd, pack(number, Command.CLOSE, 0, NO_LAYOUT, 0))
        except (BrokenPipeError, BlockingIOError):
            return  # it has ended, or it is stuck: the end of file or the kill will do
        finally:
            self._fds.remove(self._command_fd)
            os.close(self._command_fd)

    def finish_closing(self, number: int, deadline: float) -> Any:
        """Wait for the end; returns the reply to CLOSE ``number``, None if there is none."""
        data = b""
        poller = select.poll()
        poller.register(self.reply_fd, select.POLLIN)
        with _process_descriptor(self.pid) as process_fd:
            if process_fd >= 0:
                poller.register(process_fd, select.POLLIN)
            while ready := dict(poller.poll(_milliseconds(deadline))):
                chunk = os.read(self.reply_fd, _CHUNK) if self.reply_fd in ready else b""
                if not chunk:
                    break
                data += chunk
        if not self._wait_for_exit(deadline):
            self.kill()
        self.reap()
        if len(data) < HEADER.size or HEADER.unpack(data[: HEADER.size])[0] != number:
            return None
        payload = data[HEADER.size :]
        return pickle.loads(payload) if payload else None

    def release(self) -> None:
        """Give back every descriptor; the process has ended."""
        self._close_descriptors()

    def abandon(self) -> None:
        """In a forked child: let go of what belongs to the parent, and touch nothing."""
        self.abandoned = True
        self.gone = True
        self._close_descriptors()
        if hasattr(self, "_process"):
            self._process.returncode = 0

    def _close_descriptors(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)
        if hasattr(self, "_socket"):
            self._socket.close()


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
    ) -> None:
        self._whole_infos = whole_infos
        self.shards: Sequence[ShardRange] = list(shards)
        self._env_fns = list(env_fns)
        self._threads = threads
        self._payloads: list[bytes] = []
        self.workers: list[WorkerProcess] = []

    def build(self, deadline: float | None) -> list[Built | Lost]:
        """Start every worker and let it build its environments, all in parallel."""
        self._payloads = self._build_payloads()
        for w in range(len(self.shards)):
            try:
                self.workers.append(WorkerProcess(self._threads))
            except OSError as error:
                raise PoolError(
                    f"worker {w + 1} of {len(self.shards)} could not be started: {error}. Each "
                    "needs a process and up to seven descriptors; use fewer workers or raise the "
                    "limits (ulimit -n, ulimit -u)."
                ) from error
        started = [self._start_building(w, deadline) for w in range(len(self.shards))]
        return [self._finish_building(w, lost, deadline) for w, lost in enumerate(started)]

    def replace(self, worker: int, deadline: float | None) -> Built | Lost:
        """Start a worker anew in place of one that is lost."""
        old = self.workers[worker]
        old.kill()
        old.release()
        self.workers[worker] = WorkerProcess(self._threads)
        return self._finish_building(worker, self._start_building(worker, deadline), deadline)

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
            )
            body = CommandBody(None, arguments)
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
    ) -> None:
        """Send one command."""
        payload = b"" if body is None else pickle.dumps(body, pickle.HIGHEST_PROTOCOL)
        header = HEADER.pack(number, kind, flags, 0, version, len(payload))
        self.workers[worker].send(header, payload, None)

    def receive(self, worker: int, number: int, deadline: float | None) -> Any:
        """Wait for the reply to a command."""
        return self.workers[worker].receive(number, deadline)

    def ready(self, workers: Sequence[int], timeout_s: float | None) -> Collection[int]:
        """Wait until one of these busy workers has replied or died; returns all that have."""
        by_fd = {self.workers[w].reply_fd: w for w in workers}
        poller = select.poll()
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            slice_end = time.monotonic() + _SLICE_S
            ends = slice_end if deadline is None else min(deadline, slice_end)
            found = poller.poll(_milliseconds(ends))
            if found:
                return [by_fd[fd] for fd, _ in found]
            # A pipe stays open if somebody else holds its end: look at the processes too.
            dead = [w for w in workers if self.workers[w].has_ended()]
            for w in dead:
                self.workers[w].is_suspect = True
            if dead or (deadline is not None and time.monotonic() >= deadline):
                return dead

    def resynchronise(self, worker: int, number: int, deadline: float | None) -> None:
        """Read and drop every outstanding reply."""
        self.workers[worker].resynchronise(number, deadline)

    def close(self, timeout: float, *, polite: bool) -> list[Any]:
        """Stop every worker."""
        workers, self.workers = self.workers, []
        failures: list[Any] = []
        deadline = time.monotonic() + timeout
        number = int.from_bytes(os.urandom(8), "little")
        living = [w for w in workers if not w.gone]
        if polite:
            for worker in living:
                worker.start_closing(number)
            for worker in living:
                returned = worker.finish_closing(number, deadline)
                failures += returned.failures if returned is not None else ()
        for worker in workers:
            worker.kill()
            if not worker.abandoned:
                worker.release()
        return failures


@contextmanager
def _process_descriptor(pid: int) -> Iterator[int]:
    """A descriptor that becomes readable when a process ends; -1 where there is none."""
    fd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    try:
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)


def _milliseconds(deadline: float | None) -> int | None:
    if deadline is None:
        return None
    return max(0, round((deadline - time.monotonic()) * 1000 + 0.5))


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nobody is left, or the leader has not become one yet and ends by itself


def _abandon_all() -> None:
    for worker in list(_live):
        worker.abandon()


os.register_at_fork(after_in_child=_abandon_all)
