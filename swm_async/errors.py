"""The errors of a pool whose environments or workers fail; plain data, no I/O.

::

    PoolError(RuntimeError)        env_indices, result, others
    ├── EnvError                   user code raised, in a factory, reset, step, call or close
    │   ├── InfoTypeError          also a TypeError: an info that cannot be delivered
    │   └── InfoValueError         also a ValueError: an info key that collides
    ├── WorkerDied                 the process that hosts the environments has ended
    └── WorkerTimeout              also a TimeoutError: a worker was killed as overdue

Wrong arguments are plain ``TypeError`` and ``ValueError``; calls that come at the wrong
moment are Gymnasium's own ``ResetNeeded``, ``ClosedEnvironmentError``,
``AlreadyPendingCallError`` and ``NoAsyncCallError``.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "EnvError",
    "EnvFailure",
    "InfoTypeError",
    "InfoValueError",
    "PoolError",
    "RemoteTraceback",
    "SpacesDiffer",
    "WorkerDied",
    "WorkerTimeout",
]


class SpacesDiffer(ValueError, RuntimeError):
    """The environments of a pool do not have equal spaces.

    Gymnasium's vector environments raise ``RuntimeError`` here, so this is one as well.
    """


class PoolError(RuntimeError):
    """An environment or a worker failed.

    Attributes:
        env_indices: the environments that are concerned, in ascending order.
        others: further errors of the same call.
        result: what the call would have returned, with rewards 0 and flags False in the
            rows that failed; None where the call had nothing to return.
    """

    def __init__(self, message: str, env_indices: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.env_indices = tuple(env_indices)
        self.result: Any = None
        self.others: tuple[PoolError, ...] = ()


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker, as text; the cause of that exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text.rstrip()}\n"


@dataclass(frozen=True)
class EnvFailure:
    """One exception in one environment.

    Attributes:
        env_index: which environment raised.
        command: ``"build"``, ``"reset"``, ``"step"``, ``"call"`` or ``"close"``.
        seed: the seed of its last seeded reset, None if it never had one.
        episode_step: which step of the episode it was; 0 = its reset, 1 = the first step.
        type_name: the exception's class, with its module.
        message: the exception's text.
        traceback: the traceback in the worker.
        exception: the exception itself, None where it cannot leave its process.
    """

    env_index: int
    command: str
    seed: int | None
    episode_step: int
    type_name: str
    message: str
    traceback: str
    exception: BaseException | None

    @property
    def headline(self) -> str:
        """One line: where, when and what."""
        when = f" (seed {self.seed}, episode step {self.episode_step})"
        where = when if self.command in ("reset", "step") else ""
        text = f": {self.message}" if self.message else ""
        return f"environment {self.env_index}, {self.command}{where}: {self.type_name}{text}"


class EnvError(PoolError):
    """User code raised an exception; its worker lives and the pool goes on.

    The original exception is ``__cause__`` where it could be brought over; the worker's
    traceback is part of the text. After a failed reset or step the environment needs a
    reset; after a failed call it does not.

    Attributes:
        failures: every exception of this call, by env index.
        env_index, command, seed, episode_step: those of the first one.
    """

    def __init__(self, failures: Sequence[EnvFailure], advice: str = "") -> None:
        first = failures[0]
        lines = [failure.headline for failure in failures]
        if len(lines) > 1:
            lines.insert(0, f"{len(failures)} environments failed")
        text = "\n".join(lines)
        super().__init__(
            f"{text}\n\n{first.traceback.rstrip()}" + (f"\n\n{advice}" if advice else ""),
            [failure.env_index for failure in failures],
        )
        self.failures = tuple(failures)
        self.env_index = first.env_index
        self.command = first.command
        self.seed = first.seed
        self.episode_step = first.episode_step
        if first.exception is not None:
            first.exception.__cause__ = RemoteTraceback(first.traceback)
        self.__cause__ = first.exception or RemoteTraceback(first.traceback)


class InfoTypeError(EnvError, TypeError):
    """An info value cannot be pickled or an info key is no string; the step was done."""


class InfoValueError(EnvError, ValueError):
    """An info key has the name of another key's companion; the step was done."""


class WorkerDied(PoolError):
    """The process that hosts some environments ended without being asked to.

    Attributes:
        pid: its process id.
        exit_code: its exit code; negative = the signal that ended it, None = unknown.
    """

    def __init__(
        self,
        env_indices: Sequence[int],
        pid: int,
        exit_code: int | None,
        command: str,
        trace: str,
        advice: str = "",
    ) -> None:
        which = name_environments(env_indices)
        text = (
            f"the worker of {which} (pid {pid}) died during {command}: {describe_exit(exit_code)}"
        )
        if trace.strip():
            text += f"\n\nIts last words:\n{trace.rstrip()}"
        if advice:
            text += f"\n\n{advice}"
        super().__init__(text, env_indices)
        self.pid = pid
        self.exit_code = exit_code


class WorkerTimeout(PoolError, TimeoutError):
    """A worker did not answer in time and was killed.

    Attributes:
        pid: its process id.
        seconds: how long the pool waited.
        stack: where the worker's Python stood, as text; empty if it could not tell.
    """

    def __init__(
        self,
        env_indices: Sequence[int],
        pid: int,
        seconds: float,
        command: str,
        stack: str,
        advice: str = "",
    ) -> None:
        where = f"\n\nWhere it stood:\n{stack.rstrip()}" if stack.strip() else ""
        super().__init__(
            f"the worker of {name_environments(env_indices)} (pid {pid}) did not finish {command} "
            f"within {seconds:.2f} seconds and was killed{where}"
            + (f"\n\n{advice}" if advice else ""),
            env_indices,
        )
        self.pid = pid
        self.seconds = seconds
        self.stack = stack


def describe_exit(exit_code: int | None) -> str:
    """An exit code in words: the signal's name and its usual cause."""
    if exit_code is None:
        return "exit code unknown"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    causes = {
        signal.SIGKILL: "killed; possibly out of memory",
        signal.SIGSEGV: "segmentation fault in compiled code",
        signal.SIGABRT: "aborted by compiled code",
        signal.SIGBUS: "bus error; possibly out of memory",
        signal.SIGTERM: "asked to end by another process",
    }
    try:
        number = signal.Signals(-exit_code)
    except ValueError:
        return f"signal {-exit_code}"
    cause = f" ({causes[number]})" if number in causes else ""
    return f"signal {number.value}, {number.name}{cause}"


def name_environments(env_indices: Sequence[int]) -> str:
    """Environments in words."""
    numbers = list(env_indices)
    if len(numbers) == 1:
        return f"environment {numbers[0]}"
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"environments {numbers[0]} to {numbers[-1]}"
    return "environments " + ", ".join(map(str, numbers))
