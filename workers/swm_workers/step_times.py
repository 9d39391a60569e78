"""How long the steps of each environment take: a sample of them, so that the others cost nothing.

One call in ``SAMPLED_EVERY`` of a shard's ``step`` goes through functions that look at the clock.
A prime number, so that neither groups that are stepped in turns nor environments with a rhythm of
their own are missed for ever.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final

SAMPLED_EVERY: Final = 17


class StepTimes:
    """Sums, counts and maxima for the environments of a shard, by position."""

    def __init__(self, count: int) -> None:
        self._sums = [0.0] * count
        self._counts = [0] * count
        self._worst = [math.nan] * count

    def timed(self, k: int, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A function that does a step and notes how long it took; one that raises is not noted."""
        clock = time.perf_counter
        sums, counts, worst = self._sums, self._counts, self._worst

        def timed_step(action: Any) -> Any:
            started = clock()
            result = step(action)
            seconds = clock() - started
            sums[k] += seconds
            counts[k] += 1
            if not worst[k] >= seconds:  # NaN = the first
                worst[k] = seconds
            return result

        return timed_step

    def mean_s(self) -> tuple[float, ...]:
        """Seconds of a step on average, by position; NaN where none was sampled."""
        return tuple(
            total / count if count else math.nan
            for total, count in zip(self._sums, self._counts, strict=True)
        )

    def worst_s(self) -> tuple[float, ...]:
        """Seconds of the longest step that was sampled, by position; NaN where there is none."""
        return tuple(self._worst)
