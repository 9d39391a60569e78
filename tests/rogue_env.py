"""An environment that can be asked for anything that environments should not do.

Imports nothing of the library. What it does is chosen by name, for a later moment (``plan``) or
at once (``do``).
"""

from __future__ import annotations

import ctypes
import io
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np


class TextRaises(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even a text")


class OddText(str):
    __slots__ = ()

    def __reduce__(self) -> Any:
        raise RuntimeError("stays here")


class TextIsOdd(Exception):
    def __str__(self) -> str:
        return OddText("an odd text")


class SyntaxIsOdd(SyntaxError):
    text = 5
    lineno = "three"
    filename = 7


class ReductionExits(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit("cannot be taken apart")


def _exit() -> None:
    raise SystemExit("cannot be put together")


class RebuildingExits(Exception):
    def __reduce__(self) -> Any:
        return _exit, ()


class RaisesWhenItGoes:
    """Its destructor raises."""

    def __del__(self) -> None:
        raise LookupError("from the destructor")


def _cycle() -> Exception:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    return first


EXCEPTIONS = {
    "text raises": TextRaises,
    "text is odd": TextIsOdd,
    "syntax is odd": lambda: SyntaxIsOdd("strange"),
    "reduction exits": lambda: ReductionExits("apart"),
    "rebuilding exits": lambda: RebuildingExits("together"),
    "ten megabytes": lambda: ValueError("x" * 10_000_000),
    "not in UTF-8": lambda: ValueError("a\udc80b\0c"),
    "causes in a circle": _cycle,
    "like a broken pipe": lambda: BrokenPipeError("of the environment"),
    "like an end of file": lambda: EOFError("of the environment"),
}


def _raise_anything(name: str) -> None:
    raise EXCEPTIONS[name]()


def _fork(then: str) -> int | None:
    pid = os.fork()
    if pid == 0:
        if then == "raise":
            raise RuntimeError("in the child")
        if then == "leave":
            os._exit(0)
        return None
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork_in_c() -> int:
    """A child of compiled code: no handler of Python's runs in it, it holds every descriptor."""
    pid = int(ctypes.CDLL(None).fork())
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


def _multiprocessing(method: str) -> list[int]:
    with multiprocessing.get_context(method).Pool(2) as pool:
        return list(pool.map(abs, [-1, 2, -3]))


def _daemon(method: str) -> int | None:
    process = multiprocessing.get_context(method).Process(target=signal.pause, daemon=True)
    process.start()
    return process.pid


def _change_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _alarm_later(seconds: float) -> None:
    def strike(number: int, frame: Any) -> None:
        raise RuntimeError("the alarm of the environment")

    signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _print_in_threads(count: int) -> None:
    def speak(name: int) -> None:
        for k in range(100):
            print("thread", name, "line", k)

    threads = [threading.Thread(target=speak, args=(name,)) for name in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _log() -> None:
    logging.getLogger("rogue").error("logged")
    warnings.warn("warned", UserWarning, stacklevel=1)


DEEDS: dict[str, Any] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crash": lambda: ctypes.string_at(0),
    "exit": os._exit,
    "spin": lambda: [None for _ in iter(int, 1)],
    "interrupt the pool": lambda: os.kill(os.getppid(), signal.SIGINT),
    "interrupt the pool and spin": lambda: (
        os.kill(os.getppid(), signal.SIGINT),
        [None for _ in iter(int, 1)],
    ),
    "alarm": lambda: (signal.alarm(1), time.sleep(10)),
    "alarm later": _alarm_later,
    "raise": _raise_anything,
    "fork": _fork,
    "fork in compiled code": _fork_in_c,
    "subprocess": lambda: (
        subprocess.run(
            [sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True
        ).stdout
    ),
    "multiprocessing": _multiprocessing,
    "daemon": _daemon,
    "daemon thread": lambda: threading.Thread(target=signal.pause, daemon=True).start(),
    "executor": lambda: list(ThreadPoolExecutor(2).map(abs, [-1, 2])),
    "change signals": _change_signals,
    "change directory": lambda: os.chdir("/"),
    "replace stdout": lambda: setattr(sys, "stdout", io.StringIO()),
    "close low descriptors": lambda: os.closerange(3, 21),
    "close standard streams": lambda: os.closerange(0, 3),
    "read standard input": lambda: sys.stdin.read(),
    "print in threads": _print_in_threads,
    "log": _log,
    "nothing": lambda: None,
}


class Rogue(gymnasium.Env):
    """Counts its steps, and does the deed that was planned for a moment."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, when: str | None = None, deed: str = "nothing", *args: Any) -> None:
        self.count = 0
        self.threads: dict[str, int] = {}
        self.plan(when, deed, *args)
        self._reach("build")

    def plan(self, when: str | None, deed: str = "nothing", *args: Any) -> None:
        self._when, self._deed, self._args = when, deed, args

    def do(self, deed: str, *args: Any) -> Any:
        self._note_thread("call")
        return DEEDS[deed](*args)

    def reset(self, *, seed=None, options=None):
        self._reach("reset")
        self.count = 0
        return np.zeros(1, np.float32), {"count": 0}

    def step(self, action):
        self._reach("step")
        self.count += 1
        return np.zeros(1, np.float32), 1.0, False, False, {"count": self.count}

    def act(self) -> None:
        self._reach("call")

    def pid(self) -> int:
        return os.getpid()

    def close(self) -> None:
        self._reach("close")

    def _reach(self, moment: str) -> None:
        self._note_thread(moment)
        if self._when == moment:
            DEEDS[self._deed](*self._args)

    def _note_thread(self, moment: str) -> None:
        self.threads[moment] = threading.get_ident()
