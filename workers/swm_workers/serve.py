"""The worker process: read a command, let the shard carry it out, reply.

::

    pool ── command pipe ──▶ serve ── reply pipe ──▶ pool      every command has one reply
    pool ── socket ────────▶ descriptors of new blocks          nothing else travels there
    pool ── lifeline ──────▶ SIGKILL from the kernel            when the pool's process ends

End of file on the command pipe means: close the environments and leave. Should the pool's
process end while an environment keeps this one busy, the kernel kills it: the lifeline's
other end is held by the pool's process alone, and its closing is signalled as SIGKILL.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

from swm_workers import factories, registrations
from swm_workers.attributes import Operation
from swm_workers.failures import capture
from swm_workers.memory import Block
from swm_workers.protocol import (
    ALL,
    AT_ONCE,
    FORGET,
    HEADER,
    NEAR,
    NO_LAYOUT,
    BuildArguments,
    Built,
    Command,
    CommandBody,
    LayoutUpdate,
    Returned,
    WorkerSpans,
    WorkerStats,
)
from swm_workers.shard import Shard
from swm_workers.tracing import SpanRecorder
from swm_workers.waiting import Waiter

STACK_SIGNAL: Final = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Asks a worker that is overdue to write its Python stack into the fault file."""

_HIGH: Final = 64
"""The lowest number of a worker's own descriptors."""

_NO_PAYLOAD: Final[CommandBody] = (None, None)


def main() -> None:
    """Serve until the pool closes the command pipe; descriptors come by ``sys.argv``."""
    # Ctrl-C is for the pool. It was blocked until here, so that none can strike in between.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    own = tuple(_move_up(int(argument)) for argument in sys.argv[1:6])
    command_fd, reply_fd, lifeline_fd, socket_fd, fault_fd = own
    # A child that an environment forks must not hold our ends of the pipes.
    os.register_at_fork(after_in_child=lambda: _close_all(own))
    _tie_to(lifeline_fd)
    faulthandler.enable(fault_fd)
    faulthandler.register(STACK_SIGNAL, fault_fd)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Whole lines, also where an unbuffered interpreter would write them in pieces.
            stream.reconfigure(line_buffering=True, write_through=False)
    server = _Server(command_fd, reply_fd, socket.socket(fileno=socket_fd))
    pid = os.getpid()
    try:
        server.run()
    except BrokenPipeError:
        os._exit(0)  # the pool's process has ended: nobody is left to tell
    except BaseException:
        if os.getpid() != pid:
            text = "swm_async: a process that an environment forked came back from it, and ends\n"
            os.write(2, text.encode())
            os._exit(70)
        os.write(fault_fd, traceback.format_exc().encode(errors="replace"))
        os._exit(70)


def _move_up(fd: int) -> int:
    """Out of the way of programs that close every low descriptor; no child inherits it."""
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # so high a number is not allowed here
        os.set_inheritable(fd, False)
        return fd
    os.close(fd)
    return moved


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _tie_to(lifeline_fd: int) -> None:
    """Be killed when the pool's process ends, however that happens.

    The signal goes to the whole process group, which this process leads: what environments
    have started goes with it.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        ends = select.poll()
        ends.register(lifeline_fd, 0)
        if ends.poll(0):  # it ended before we were ready
            os._exit(0)
        return
    # Elsewhere a thread has to do, which cannot help while compiled code holds the lock.
    threading.Thread(target=_watch, args=(lifeline_fd,), daemon=True).start()


def _watch(lifeline_fd: int) -> None:
    os.read(lifeline_fd, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


class _Server:
    """The command loop and what it needs to remember between two commands."""

    def __init__(self, command_fd: int, reply_fd: int, descriptors: socket.socket) -> None:
        self._command_fd = command_fd
        self._reply_fd = reply_fd
        self._descriptors = descriptors
        self._waiter: Waiter | SpanRecorder = Waiter(command_fd, 0.0)
        self._recorder: SpanRecorder | None = None
        self._born_s = 0.0
        self._shard: Shard | None = None
        self._busy_s = 0.0
        self._waiting_s = 0.0
        self._version = NO_LAYOUT
        self._updates: dict[int, LayoutUpdate] = {}
        self._blocks: dict[int, Block] = {}
        self._handlers: dict[int, Callable[[int, Any], Any]] = {
            Command.BUILD: self._build,
            Command.RESET: self._reset,
            Command.STEP: self._step,
            Command.CALL: self._call,
            Command.REBUILD: self._rebuild,
            Command.SYNC: lambda flags, arguments: None,
            Command.CLOSE: self._close,
            Command.STATS: self._stats,
            Command.TRACE: self._trace,
        }

    def run(self) -> None:
        read, write, clock = os.read, os.write, time.perf_counter
        pack, unpack, size = HEADER.pack, HEADER.unpack, HEADER.size
        command_fd, reply_fd, handlers = self._command_fd, self._reply_fd, self._handlers
        self._born_s = busy_since = idle_since = clock()
        flags = 0
        while True:
            # Nothing comes before the reply to the last was read.
            self._waiter.look_again(busy_since, flags & NEAR)
            if not (data := read(command_fd, size)):
                break
            busy_since = clock()
            self._waiting_s += busy_since - idle_since
            number, kind, flags, _, version, length = unpack(data)
            arguments = None
            if length or version != self._version or flags & FORGET:
                arguments = self._prepare(version, flags, length)
            result = handlers[kind](flags, arguments)
            payload = b"" if result is None else pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
            idle_since = clock()
            if length or payload:
                data = pack(number, 0, 0, 0, version, len(payload))
                if len(payload) <= AT_ONCE - size:
                    data, payload = data + payload, b""
            write(reply_fd, data)
            if payload:
                self._write_all(payload)
            self._busy_s += idle_since - busy_since
        self._close(0, None)
        self._descriptors.close()

    def _prepare(self, version: int, flags: int, length: int) -> Any:
        """Take in the payload and the layout of a command; returns its arguments."""
        update, arguments = pickle.loads(self._read_exactly(length)) if length else _NO_PAYLOAD
        if version not in (self._version, NO_LAYOUT):
            self._bind(version, update)
        if flags & FORGET:
            self._built().forget()
            self._bind(version, update)
        return arguments

    def _close(self, flags: int, arguments: None) -> Returned | None:
        # A worker may be stopped before it was told what to build.
        return self._shard.close() if self._shard is not None else None

    def _stats(self, flags: int, arguments: None) -> WorkerStats:
        return self._built().stats(self._busy_s, self._waiting_s)

    def _trace(self, flags: int, begin: bool) -> WorkerSpans:
        """Hand over the spans of the trace that ends, if there is one; begin another if asked."""
        spans, recorder = WorkerSpans(), self._recorder
        if recorder is not None:
            spans = recorder.finish()
            self._waiter = recorder.waiter
            self._handlers.update(recorder.handlers)
            self._recorder = None
        if begin and isinstance(self._waiter, Waiter):
            recorder = SpanRecorder(
                self._waiter,
                self._handlers,
                lambda: (self._busy_s, self._waiting_s),
                self._born_s,
                lambda: self._built().steps_done,
            )
            for kind in set(self._handlers) - {Command.TRACE}:
                self._handlers[kind] = recorder.noting(kind)
            self._waiter = self._recorder = recorder
        return spans

    def _built(self) -> Shard:
        if self._shard is None:
            raise AssertionError("the first command of a worker is BUILD")
        return self._shard

    def _reset(self, flags: int, arguments: Any) -> Any:
        shard = self._built()
        return shard.reset(shard.all if flags & ALL else shard.selected(), arguments)

    def _step(self, flags: int, arguments: Any) -> Any:
        shard = self._shard or self._built()
        return shard.step(shard.all if flags & ALL else shard.selected(), arguments, flags)

    def _call(self, flags: int, arguments: dict[int, Operation]) -> Returned:
        return self._built().call(list(arguments), list(arguments.values()))

    def _rebuild(self, flags: int, rows: list[int]) -> Built:
        return Built(os.getpid(), None, None, self._built().rebuild(rows))

    def _build(self, flags: int, arguments: BuildArguments) -> Built:
        sys.argv[:] = arguments.argv
        self._waiter = Waiter(self._command_fd, arguments.awake_s)
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

    def _bind(self, version: int, update: LayoutUpdate | None) -> None:
        if update is None:
            update = self._updates[version]
        else:
            self._receive_blocks(update)
            live = {block.block for block in update.blocks}
            for number in set(self._blocks) - live:
                self._blocks.pop(number).close()
            self._updates = {
                known: old
                for known, old in self._updates.items()
                if {block.block for block in old.blocks} <= live
            }
            self._updates[version] = update
        self._built().bind(update.layout, {n: block.buffer for n, block in self._blocks.items()})
        self._version = version

    def _receive_blocks(self, update: LayoutUpdate) -> None:
        """Map the blocks that are new; repeated descriptors of an interrupted pool are closed."""
        sizes = dict(update.blocks)
        while set(sizes) - set(self._blocks):
            message, fds, _, _ = socket.recv_fds(self._descriptors, 8, 1)
            self._receive_block(message, fds, sizes)
        # After an interrupt some come twice: left there, they would fill the socket one day.
        more = select.poll()
        more.register(self._descriptors, select.POLLIN)
        while more.poll(0):
            message, fds, _, _ = socket.recv_fds(self._descriptors, 8, 1)
            if not fds:
                break  # the pool's process has ended
            self._receive_block(message, fds, sizes)

    def _receive_block(self, message: bytes, fds: list[int], sizes: dict[int, int]) -> None:
        number = int.from_bytes(message, "little")
        if number in self._blocks or number not in sizes:
            os.close(fds[0])
        else:
            self._blocks[number] = Block.received(fds[0], sizes[number])

    def _write_all(self, payload: bytes) -> None:
        view = memoryview(payload)
        while view:
            view = view[os.write(self._reply_fd, view) :]

    def _read_exactly(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            count = os.readv(self._command_fd, [view])
            if count == 0:
                os._exit(0)  # the pool's process has ended in the middle of a command
            view = view[count:]
        return data
