"""One worker process and everything that is done to it: start, talk, wait, kill, reap.

A worker is a fresh interpreter: nothing of the caller's threads, locks or devices is copied
into it, and the caller's script is not run again. ``swm_workers.serve`` is its other half.
This module knows nothing of masks, layouts or infos.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import pickle
import select
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from swm_async.backends.base import Lost
from swm_async.backends.interrupts import Caught, interrupts_held
from swm_async.backends.starting import bootstrap_command, environment, standard_stream
from swm_workers.memory import above_standard, anonymous_file
from swm_workers.protocol import AT_ONCE, HEADER, NO_LAYOUT, Command, pack
from swm_workers.serve import STACK_SIGNAL
from swm_workers.waiting import Waiter

_REAP_S: Final = 5.0
"""How long a process that was killed may take until it can be reaped."""
_LEAVE_S: Final = 1.0
"""How long a process that has closed its pipe may take to end by itself."""
_STACK_S: Final = 1.0
"""How long an overdue worker may take to write down its stack."""
_PATIENCE_S: Final = 1.0
"""How long Ctrl-C waits for a worker that does not read the rest of its command."""
_SLICE_S: Final = 1.0
"""How often a long wait for any of many workers looks for those that died unnoticed."""
_CHUNK: Final = 1 << 20
_CLOSED: Final = -1

_live: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


class WorkerProcess:
    """One worker: its process, and our ends of its pipes.

    Whoever makes one holds Ctrl-C back until it is kept somewhere: nobody else ends it.
    """

    def __init__(self, threads: int | None, awake_s: float) -> None:
        self.exit_code: int | None = None
        self.gone = False
        self.reads = HEADER.size
        """Bytes to read of a reply at first: more, once one has had a payload."""
        self._fds: list[int] = []
        self._theirs: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._process_fd = _CLOSED
        _live.add(self)
        try:
            command_read, self.command_fd = self._pipe(ours=1)
            # With both ends open here, writing to a dead worker is no SIGPIPE, which may kill.
            self._theirs.remove(command_read)
            self._fds.append(command_read)
            self.reply_fd, reply_write = self._pipe(ours=0)
            lifeline_read, _ = self._pipe(ours=1)
            ours, theirs = socket.socketpair()
            self._theirs.append(above_standard(theirs.detach()))
            self._socket = socket.socket(fileno=above_standard(ours.detach()))
            self._fault_fd = anonymous_file()
            self._fds.append(self._fault_fd)
            os.set_blocking(self.command_fd, False)
            self._socket.setblocking(False)
            passed = (command_read, reply_write, lifeline_read, self._theirs[-1], self._fault_fd)
            self._process = self._spawn(passed, threads)
        except BaseException:
            self.release()
            raise
        finally:
            self._close_theirs()
        self.pid = self._process.pid
        self._process_fd = _open_process(self.pid)
        self._reply_poller = self._poller(self.reply_fd, select.POLLIN)
        self.waiter = Waiter(self.reply_fd, awake_s)

    def _pipe(self, *, ours: int) -> tuple[int, int]:
        read, write = os.pipe()
        ends = (above_standard(read), above_standard(write))
        self._fds.append(ends[ours])
        self._theirs.append(ends[1 - ours])
        return ends

    def _spawn(self, passed: Sequence[int], threads: int | None) -> subprocess.Popen[bytes]:
        # Ctrl-C stays blocked in the worker until it has learned to ignore it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return subprocess.Popen(
                bootstrap_command(passed),
                stdin=subprocess.DEVNULL,
                stdout=standard_stream(1),
                stderr=standard_stream(2),
                pass_fds=passed,
                env=environment(threads),
                # A group of its own, so that what environments start can be ended with it.
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    # Talking.

    def share(self, number: int, fd: int) -> None:
        """Send the descriptor of a block."""
        if self._socket is None:
            raise self._lost()
        message = [number.to_bytes(8, "little")]
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        try:
            self._socket.sendmsg(message, passed, socket.MSG_NOSIGNAL)
        except BlockingIOError as error:  # hundreds wait for it: it stands still
            self.kill()
            raise self._lost() from error
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._lost() from error

    def send(self, header: bytes, payload: bytes, deadline: float | None) -> None:
        """Write a command; it is either written whole or the worker is lost."""
        if len(header) + len(payload) > AT_ONCE:
            self._send_parts((header, payload), deadline)
            return
        try:
            os.write(self.command_fd, header + payload)
        except BlockingIOError:
            self._send_parts((header + payload,), deadline)
        except OSError as error:
            if error.errno != errno.EBADF:  # from the handler of a signal
                raise
            raise self._lost() from error

    def _send_parts(self, parts: Sequence[bytes], deadline: float | None) -> None:
        # A command cut in half by Ctrl-C could never be put right again.
        with interrupts_held() as caught:
            try:
                for part in parts:
                    view = memoryview(part)
                    while view:
                        view = view[self._write_some(view, deadline, caught) :]
            except Lost:
                raise
            except BaseException:  # another signal's handler has raised
                self.kill()
                raise

    def _write_some(self, view: memoryview, deadline: float | None, caught: Caught) -> int:
        while True:
            try:
                return os.write(self.command_fd, view)
            except BlockingIOError:
                self._await_room(deadline, caught)
            except OSError as error:
                if error.errno != errno.EBADF:  # from the handler of a signal
                    raise
                raise self._lost() from error

    def _await_room(self, deadline: float | None, caught: Caught) -> None:
        started = time.monotonic()
        poller = self._poller(self.command_fd, select.POLLOUT)
        while True:
            step_end = time.monotonic() + _PATIENCE_S
            ends = step_end if deadline is None else min(deadline, step_end)
            ready = dict(poller.poll(_milliseconds(ends)))
            if self.command_fd in ready:
                return
            if ready:
                raise self._lost()
            if deadline is not None and time.monotonic() >= deadline:
                raise self._overdue(started)
            if caught:
                self.kill()
                raise self._lost()

    def receive(self, number: int, deadline: float | None, data: bytes = b"") -> Any:
        """Read the reply to command ``number``; ``data`` is what has been read of it."""
        if not data:
            if deadline is not None or self.gone:
                self._await_reply(deadline)
            try:
                data = os.read(self.reply_fd, AT_ONCE)
            except OSError as error:
                if error.errno != errno.EBADF:  # from the handler of a signal
                    raise
                raise self._lost() from error
        if len(data) < HEADER.size:
            raise self._lost()
        found, _, _, _, _, length = HEADER.unpack_from(data)
        if found != number:
            raise AssertionError(f"reply {found} came in place of reply {number}")
        if not length:
            return None
        self.reads = AT_ONCE
        payload = data[HEADER.size :]
        if len(payload) < length:
            payload += self._read_exactly(length - len(payload), deadline)
        return pickle.loads(payload)

    def _read_exactly(self, length: int, deadline: float | None) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            if deadline is not None:
                self._await_reply(deadline)
            count = os.readv(self.reply_fd, [view])
            if count == 0:
                raise self._lost()
            view = view[count:]
        return data

    def resynchronise(self, number: int, deadline: float | None) -> None:
        """Read and drop everything up to the reply to a SYNC command of this number."""
        self.send(pack(number, Command.SYNC, 0, NO_LAYOUT, 0), b"", deadline)
        tail = b""
        while True:
            if deadline is not None:
                self._await_reply(deadline)
            data = os.read(self.reply_fd, _CHUNK)
            if not data:
                raise self._lost()
            tail = (tail + data)[-HEADER.size :]
            # The number is drawn at random: no payload ends with it by accident.
            if len(tail) == HEADER.size and HEADER.unpack(tail)[0] == number:
                return

    # Waiting.

    def _poller(self, fd: int, event: int) -> select.poll:
        """Waits for a pipe and for the end of the process, whoever else holds the pipe."""
        poller = select.poll()
        poller.register(fd, event)
        if self._process_fd >= 0:
            poller.register(self._process_fd, select.POLLIN)
        return poller

    def register(self, poller: select.poll) -> None:
        """Let a poller wake up when this worker replies or dies."""
        poller.register(self.reply_fd, select.POLLIN)
        if self._process_fd >= 0:
            poller.register(self._process_fd, select.POLLIN)

    def _await_reply(self, deadline: float | None) -> None:
        """Wait until there is something to read.

        Raises:
            Lost: the process has ended and left nothing to read, or the deadline passed and
                it was killed.
        """
        started = time.monotonic()
        ready = dict(self._reply_poller.poll(_milliseconds(deadline)))
        if self.reply_fd in ready:
            return
        if ready:
            raise self._lost()
        raise self._overdue(started)

    def _overdue(self, started: float) -> Lost:
        """The worker has not answered in time: it is killed."""
        waited_s = time.monotonic() - started
        stack = self._ask_for_stack()
        self.kill()
        return Lost(self.pid, self.exit_code, stack, waited_s)

    def _ask_for_stack(self) -> str:
        """Let the worker's fault handler, which needs no lock, write down where it stands."""
        size = os.fstat(self._fault_fd).st_size
        try:
            os.kill(self.pid, STACK_SIGNAL)
            os.kill(self.pid, signal.SIGCONT)  # a process that was stopped cannot tell
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
        return self._last_words(size)

    def _lost(self) -> Lost:
        """The worker has closed its pipe, so it has ended or is about to."""
        words = ""
        if not self._wait_for_exit(time.monotonic() + _LEAVE_S):
            words = "it had closed its pipe without ending, and was killed\n"
        self.kill()
        return Lost(self.pid, self.exit_code, words + self._last_words(0))

    def _last_words(self, start: int) -> str:
        if self._fault_fd not in self._fds:
            return ""  # given back
        return os.pread(self._fault_fd, _CHUNK, start).decode(errors="replace")

    def _wait_for_exit(self, deadline: float) -> bool:
        """Wait for the end of the process; where there are process descriptors, unreaped."""
        if self.gone or self._process is None:
            return True
        if self._process_fd >= 0:
            poller = select.poll()
            poller.register(self._process_fd, select.POLLIN)
            return bool(poller.poll(_milliseconds(deadline)))
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._wait_for_exit(0.0)

    # Ending.

    def kill(self) -> None:
        """Kill the worker and what its environments started, and reap it; never raises."""
        if self.gone:
            return
        if not self.has_ended():
            _kill_group(self.pid)
            self._wait_for_exit(time.monotonic() + _REAP_S)
        self._reap()

    def _reap(self) -> None:
        """Take note of the exit code of a process that has ended; end what it left behind."""
        process = self._process
        if self.gone or process is None:
            return
        self.gone = True
        reaped_by_others = False
        if process.returncode is None:
            try:
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            except ChildProcessError:
                reaped_by_others = True
        # Before the reaping: until then, and while the group has members, no other has this id.
        if not (reaped_by_others and _exists(self.pid)):
            _kill_group(self.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_REAP_S)
            self.exit_code = None if reaped_by_others else code

    def has_replied_or_died(self, events: Mapping[int, int]) -> bool:
        """Whether ``poll`` has found something about this worker."""
        if self.reply_fd in events:
            return True
        if self._process_fd not in events and not (self._process_fd < 0 and self.has_ended()):
            return False
        self.kill()  # whoever may still hold its pipe: there will be no reply
        return True

    def start_closing(self, number: int) -> None:
        """Ask the worker to close its environments and leave."""
        if self.command_fd == _CLOSED:
            return
        try:
            os.write(self.command_fd, pack(number, Command.CLOSE, 0, NO_LAYOUT, 0))
        except BlockingIOError:
            return  # it is stuck: the end of file or the kill will do
        finally:
            self._fds.remove(self.command_fd)
            os.close(self.command_fd)
            self.command_fd = _CLOSED

    def finish_closing(self, number: int, deadline: float) -> Any:
        """Wait for the end; returns the reply to CLOSE ``number``, None if there is none."""
        data = bytearray()
        while ready := dict(self._reply_poller.poll(_milliseconds(deadline))):
            chunk = os.read(self.reply_fd, _CHUNK) if self.reply_fd in ready else b""
            if not chunk:
                break
            data += chunk
        self._wait_for_exit(deadline)
        self.kill()
        # Late replies to interrupted commands may come first.
        _, found, reply = bytes(data).partition(number.to_bytes(8, "little"))
        header, payload = (found + reply)[: HEADER.size], (found + reply)[HEADER.size :]
        if len(header) < HEADER.size or not payload or HEADER.unpack(header)[-1] != len(payload):
            return None
        return pickle.loads(payload)

    def release(self) -> None:
        """Give back every descriptor; the process has ended."""
        self.command_fd = self.reply_fd = _CLOSED
        fds, self._fds = self._fds, []
        if self._process_fd >= 0:
            fds.append(self._process_fd)
            self._process_fd = _CLOSED
        for fd in fds:
            os.close(fd)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def abandon(self) -> None:
        """In a forked child: let go of what belongs to the parent, and touch nothing."""
        self.gone = True
        self.release()
        self._close_theirs()  # another thread was just making this one
        if self._process is not None:
            self._process.returncode = 0

    def _close_theirs(self) -> None:
        fds, self._theirs = self._theirs, []
        for fd in fds:
            os.close(fd)


def wait_for_any(workers: Mapping[int, WorkerProcess], timeout_s: float | None) -> Collection[int]:
    """Wait until one of these has replied or died; returns all that have, by their keys.

    Args:
        workers: those that owe a reply.
        timeout_s: seconds to wait; None = any time, 0 = only look.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    poller = select.poll()
    for worker in workers.values():
        worker.register(poller)
    while True:
        slice_end = time.monotonic() + _SLICE_S
        ends = slice_end if deadline is None else min(deadline, slice_end)
        events = dict(poller.poll(_milliseconds(ends)))
        found = [w for w, worker in workers.items() if worker.has_replied_or_died(events)]
        if found or (deadline is not None and time.monotonic() >= deadline):
            return found


def _open_process(pid: int) -> int:
    """A descriptor that becomes readable when a process ends; -1 where there is none."""
    if not hasattr(os, "pidfd_open"):
        return _CLOSED
    try:
        return above_standard(os.pidfd_open(pid))
    except OSError:  # an old kernel, or somebody has reaped it already
        return _CLOSED


def _milliseconds(deadline: float | None) -> int | None:
    if deadline is None:
        return None
    return max(0, round((deadline - time.monotonic()) * 1000 + 0.5))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nobody is left, or the leader has not become one yet and ends by itself


def _abandon_all() -> None:
    for worker in list(_live):
        worker.abandon()


os.register_at_fork(after_in_child=_abandon_all)
