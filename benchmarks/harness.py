"""What a machine can do at best, measured in the same run: the ceiling and the raw floor.

Both are sides of `swm_async.benchmarking`, which takes them in turns with the others. They fork,
so they are opened before anything that holds threads, and they end their processes by a kill.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from time import perf_counter
from typing import Any

from gymnasium.vector.utils import batch_space, iterate

from swm_async.arguments import split
from swm_async.contenders import PoolSide, Work

CEILING = "ceiling"
RAW_FLOOR = "raw floor"

_NUMBER = struct.Struct("q")
_SECONDS = struct.Struct("d")
_MESSAGE = bytes(16)


class ForkedProcesses:
    """Forked processes, each with a pipe to it and a pipe back.

    Args:
        serve: Called in process w with `w` and its two descriptors, to read and to write; the
            process ends when it returns.
        count: How many.
    """

    def __init__(self, serve: Callable[[int, int, int], None], count: int) -> None:
        self.writes: list[int] = []
        self.reads: list[int] = []
        self._pids: list[int] = []
        for w in range(count):
            their_read, our_write = os.pipe()
            our_read, their_write = os.pipe()
            pid = os.fork()
            if pid == 0:
                _serve_and_leave(serve, w, their_read, their_write)
            os.close(their_read)
            os.close(their_write)
            self._pids.append(pid)
            self.writes.append(our_write)
            self.reads.append(our_read)

    def close(self) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for fd in self.writes + self.reads:
            os.close(fd)
        self._pids, self.writes, self.reads = [], [], []


def _serve_and_leave(
    serve: Callable[[int, int, int], None], w: int, read_fd: int, write_fd: int
) -> None:
    """The life of a forked process; it must not run on in its parent's program."""
    try:
        serve(w, read_fd, write_fd)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


class Ceiling:
    """W forked processes that step N/W of the environments each and exchange nothing.

    Each runs a plain loop with resets; the speed is the sum of their speeds. No pool can be faster
    than this on the machine of the moment.
    """

    def __init__(self, work: Work, num_workers: int) -> None:
        self.label = CEILING
        self._work = work
        self._count = len(work.env_fns)
        self._shards = split(self._count, num_workers)
        self._processes = ForkedProcesses(self._serve, num_workers)

    def restart(self) -> None:
        self._ask(0)

    def run(self, passes: int) -> float:
        seconds = self._ask(passes)
        sizes = [shard.last - shard.first for shard in self._shards]
        steps = sum(passes * n / s for n, s in zip(sizes, seconds, strict=True))
        return steps / self._count

    def close(self) -> None:
        self._processes.close()

    def _ask(self, passes: int) -> list[float]:
        """Let all run at the same time; returns the seconds that each of them took."""
        for fd in self._processes.writes:
            os.write(fd, _NUMBER.pack(passes))
        replies = [os.read(fd, _SECONDS.size) for fd in self._processes.reads]
        if not all(replies):
            raise RuntimeError("a process of the ceiling has died")
        return [_SECONDS.unpack(reply)[0] for reply in replies]

    def _serve(self, w: int, read_fd: int, write_fd: int) -> None:
        """Answer a number of passes with seconds; 0 = reset to the seeds and start again."""
        loop = PlainLoop(self._work, self._shards[w].first, self._shards[w].last)
        while data := os.read(read_fd, _NUMBER.size):
            passes = _NUMBER.unpack(data)[0]
            if passes == 0:
                loop.restart()
            os.write(write_fd, _SECONDS.pack(loop.run(passes)))


class PlainLoop:
    """The environments `first` to `last` of some work, one after the other, finished ones reset."""

    def __init__(self, work: Work, first: int, last: int) -> None:
        self._seed = work.seed + first
        self._envs = [env_fn() for env_fn in work.env_fns[first:last]]
        space = batch_space(self._envs[0].action_space, len(work.env_fns))
        self._actions = [list(iterate(space, batch))[first:last] for batch in work.actions]
        self._next = 0

    def restart(self) -> list[Any]:
        """Begin again; returns the observations."""
        self._next = 0
        return [env.reset(seed=self._seed + k)[0] for k, env in enumerate(self._envs)]

    def run(self, passes: int) -> float:
        """Make so many passes; returns the seconds that they took."""
        envs, actions, count, first = self._envs, self._actions, len(self._actions), self._next
        self._next += passes
        started = perf_counter()
        for t in range(first, first + passes):
            for env, action in zip(envs, actions[t % count], strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        return perf_counter() - started


class RawFloor:
    """One message of 16 bytes to each of W forked processes and back, over bare pipes."""

    def __init__(self, num_workers: int) -> None:
        self.label = RAW_FLOOR
        self._processes = ForkedProcesses(_echo, num_workers)

    def restart(self) -> None:
        """There is nothing to begin again."""

    def run(self, passes: int) -> float:
        writes, reads = self._processes.writes, self._processes.reads
        started = perf_counter()
        for _ in range(passes):
            for fd in writes:
                os.write(fd, _MESSAGE)
            for fd in reads:
                os.read(fd, len(_MESSAGE))
        return passes / (perf_counter() - started)

    def close(self) -> None:
        self._processes.close()


def _echo(w: int, read_fd: int, write_fd: int) -> None:
    while data := os.read(read_fd, len(_MESSAGE)):
        os.write(write_fd, data)


class BareSteps(PoolSide):
    """An EnvPool of environments that never end: nothing but `step`."""

    def run(self, passes: int) -> float:
        actions, count, step = self._work.actions, len(self._work.actions), self._pool.step
        first = self._next
        self._next += passes
        started = perf_counter()
        for t in range(first, first + passes):
            step(actions[t % count])
        return passes / (perf_counter() - started)
