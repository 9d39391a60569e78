"""What a pool asks of a backend; no I/O.

A backend hosts the shards of a pool, carries commands to them and replies back, one command
at a time per worker. It knows nothing of masks, seeds, layouts or infos.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from swm_workers.memory import Block
from swm_workers.protocol import Built, CommandBody

EnvFn: TypeAlias = Callable[[], Any]


class ShardRange(NamedTuple):
    """The contiguous env indices ``first`` … ``last - 1`` that one worker hosts."""

    first: int
    last: int

    @property
    def indices(self) -> range:
        """The env indices of the shard."""
        return range(self.first, self.last)


class Lost(Exception):
    """A worker has gone: internal, translated by the pool into one of its errors."""

    def __init__(
        self, pid: int, exit_code: int | None, trace: str, waited_s: float | None = None
    ) -> None:
        super().__init__(f"worker {pid} lost: {exit_code}")
        self.pid = pid
        self.exit_code = exit_code
        self.trace = trace
        self.waited_s = waited_s
        """Seconds waited before it was killed as overdue; None = it died by itself."""


class Backend(Protocol):
    """Workers by number, 0 … num_workers - 1."""

    shards: Sequence[ShardRange]
    in_process: bool
    """Whether the environments live in the caller's process."""

    def build(self, deadline: float | None) -> list[Built | Lost]:
        """Start every worker and let it build its environments, all in parallel."""

    def replace(self, worker: int, deadline: float | None) -> Built | Lost:
        """Start a worker anew in place of one that is lost, with its environments."""

    def new_block(self, size: int) -> Block:
        """Memory that every worker can be given."""

    def share(self, worker: int, number: int, block: Block) -> None:
        """Let a worker have a block; it maps it when a layout update names it."""

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
        """Send one command.

        Raises:
            Lost: the worker has ended, or was killed since it did not take the command.
        """

    def receive(self, worker: int, number: int, deadline: float | None) -> Any:
        """Wait for the reply to command ``number``; returns its payload or None.

        Args:
            worker: which one.
            number: the number of the command.
            deadline: on the clock of ``time.monotonic``; None = as long as the worker lives.

        Raises:
            Lost: the worker has ended, or was killed at the deadline.
        """

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
        """Send one command and wait for the replies: the quick way.

        Args:
            workers: one or more.
            number: the number of the command.
            kind: the command.
            flags: for each of ``workers``.
            version: the layout, which all of them know.
            deadline: on the clock of ``time.monotonic``; None = as long as the workers live.
            bodies: for each of ``workers``; None = none for any.

        Returns:
            For each of ``workers`` the payload of its reply or None, or ``Lost``.
        """

    def ready(self, workers: Sequence[int], timeout_s: float | None) -> Collection[int]:
        """Wait until one of these busy workers has replied or died; returns all that have.

        Args:
            workers: busy ones.
            timeout_s: seconds to wait; None = any time, 0 = only look.
        """

    def resynchronise(self, worker: int, number: int, deadline: float | None) -> None:
        """After an interrupt: read and drop every outstanding reply, by a SYNC ``number``.

        Raises:
            Lost: the worker has ended, or was killed at the deadline.
        """

    def close(self, timeout: float, *, polite: bool) -> list[Any]:
        """Stop every worker; returns what their closing environments raised.

        Args:
            timeout: seconds that environments may take to close; then workers are killed.
            polite: False = kill at once.
        """
