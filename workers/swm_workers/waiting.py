"""Waiting for a pipe: awake for a moment, then asleep.

A core that has nothing to do goes idle, and calling it back takes 30 to 60 µs on virtual machines,
longer than a step of cheap environments. So whoever waits looks again and again for a moment, and
between two looks gives its core to anybody who has work for it. Where that was in vain, since
nothing came or somebody else had the core, the next waits are asleep at once: one of them, then
three, then seven ...

Where what was waited for had come before the first look a hundred times on end, the look itself is
saved, until it comes late once.
"""

from __future__ import annotations

import os
import select
import time
from typing import Final

AWAKE_S: Final = 200e-6
"""How long a wait stays awake; some times as long as it takes to call an idle core back."""
_SHARE: Final = 8
_MOST: Final = 5
"""It stays awake for an eighth of the work before it where that is longer, up to five times as
long: workers that need some milliseconds for a step seldom end it in the same 0.2 ms."""
_LONGEST_REST: Final = 255
"""After how many waits asleep, at most, one is awake again."""
_SURE_AFTER: Final = 100
"""So that one wait asleep, which may cost 60 µs, is less than what the looks before it cost."""
LATE_S: Final = 10e-6
"""A read that takes longer has slept."""
_FOREVER: Final = 1 << 62


class Waiter:
    """Waits for one pipe.

    Args:
        fd: the end that is read.
        awake_s: seconds for which it looks before it sleeps; 0 = it never looks.
    """

    def __init__(self, fd: int, awake_s: float) -> None:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        self._poll = poller.poll
        self._awake_s = awake_s
        self._rest = 0
        self._asleep = 0 if awake_s else _FOREVER
        self._in_time = 0
        self.is_sure = False
        """Whether there has always been something to read of late: look no more, but time it."""

    def look(self, since: float) -> None:
        """Return when there is something to read, or when it is time to sleep.

        Args:
            since: when the work began whose end is waited for, on the clock of
                ``time.perf_counter``.
        """
        if not self._asleep and self._poll(0):
            self._in_time += 1
            self.is_sure = self._in_time >= _SURE_AFTER
            return
        self._in_time = 0
        self.look_again(since)

    def doubt(self) -> None:
        """It was sure and wrong: look again before the next reads."""
        self._in_time, self.is_sure = 0, False

    def look_again(self, since: float, near: int = 0) -> None:
        """The same for whoever has just looked: it gives way first.

        Args:
            since: when the work began that was done just now.
            near: not 0 = who writes is on this core and would have to wait for it; sleep at once.
        """
        if near:
            return
        if self._asleep:
            self._asleep -= 1
            return
        poll, give_way, clock = self._poll, os.sched_yield, time.perf_counter
        now, awake_s = clock(), self._awake_s
        end = now + min(max(awake_s, (now - since) / _SHARE), _MOST * awake_s)
        while True:
            give_way()
            if clock() > end:
                self._asleep = self._rest = min(2 * self._rest + 1, _LONGEST_REST)
                return
            if poll(0):
                self._rest = 0
                return
