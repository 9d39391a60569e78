"""The spans of a worker: when it was busy, with what, and when it waited.

A recorder takes the place of what the worker waits with, and of its handlers, for as long as a
trace is taken; at all other times nothing of it is in the way.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from swm_workers.protocol import WorkerSpans
from swm_workers.waiting import Waiter

LIMIT: Final = 1_000_000
"""Commands of which spans are kept; those of later ones are counted."""

Handler: TypeAlias = Callable[[int, Any], Any]


class SpanLog:
    """Edges between waiting and being busy, and what each busy span was for."""

    def __init__(self) -> None:
        self._edges = array("d")
        self._kinds = array("B")
        self._steps = array("q")
        self._dropped = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing has begun yet."""
        return not self._edges

    def begin(self, idle_since: float) -> None:
        """From this time on nothing was done."""
        self._edges.append(idle_since)

    def note(self, busy_since: float, idle_since: float, kind: int, steps: int) -> None:
        """A command of this kind was carried out, with so many environment steps."""
        if len(self._kinds) >= LIMIT:
            self._dropped += 1
            return
        self._edges.append(busy_since)
        self._edges.append(idle_since)
        self._kinds.append(kind)
        self._steps.append(steps)

    def finish(self, busy_since: float) -> WorkerSpans:
        """Everything up to now."""
        if not (self.is_empty or self._dropped):
            self._edges.append(busy_since)
        return WorkerSpans(
            self._edges.tobytes(), self._kinds.tobytes(), self._steps.tobytes(), self._dropped
        )


class SpanRecorder:
    """Notes the edges between waiting and being busy.

    The worker adds up how long it was busy and how long it waited, command by command, which are
    the spans; where they lie in time follows from when it began to count.

    Args:
        waiter: what the worker waits with.
        handlers: what carries out each kind of command.
        totals: tells the seconds busy and waiting so far.
        born_s: the time at which both were 0, on the clock of ``time.perf_counter``.
        steps_done: tells the number of environment steps so far.
    """

    def __init__(
        self,
        waiter: Waiter,
        handlers: Mapping[int, Handler],
        totals: Callable[[], tuple[float, float]],
        born_s: float,
        steps_done: Callable[[], int],
    ) -> None:
        self.waiter = waiter
        self.handlers = dict(handlers)
        self._totals = totals
        self._born_s = born_s
        self._steps_done = steps_done
        self._log = SpanLog()
        self._busy_before_s = 0.0
        self._kind = 0
        self._steps_before = 0

    def noting(self, kind: int) -> Handler:
        """The handler of a kind of command that is noted, too."""
        handler = self.handlers[kind]

        def noted(flags: int, arguments: Any) -> Any:
            self._kind, self._steps_before = kind, self._steps_done()
            return handler(flags, arguments)

        return noted

    def look_again(self, since: float, near: int) -> None:
        """What ``Waiter.look_again`` does, after a command has been noted."""
        busy_s, waiting_s = self._totals()
        end = self._born_s + busy_s + waiting_s
        if self._log.is_empty:
            self._log.begin(end)
        else:
            steps = self._steps_done() - self._steps_before
            self._log.note(end - (busy_s - self._busy_before_s), end, self._kind, steps)
        self._busy_before_s = busy_s
        self.waiter.look_again(since, near)

    def finish(self) -> WorkerSpans:
        """Everything up to now, in the middle of the command that ends the trace."""
        busy_s, waiting_s = self._totals()
        return self._log.finish(self._born_s + busy_s + waiting_s)
