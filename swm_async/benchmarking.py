"""Measuring throughput: sides that do the same work, run in turns, and what came of it.

It knows nothing of what the sides are, and nothing of commands, tables, files or pictures.

A *pass* is one step of all `N` environments, with the reset of those that it finished. Shared
machines are noisy, so only ratios between samples of one round count: in each round every side
makes the same number of passes, in the order A B C and in the next round C B A, and what is quoted
is the median over the rounds and its quartiles.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep, strftime
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np

from swm_async.arguments import usable_cores


class Spread(NamedTuple):
    """The median of some samples, and their first and third quartile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Sum up one sample or more."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(statistics.median(samples), low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


class Side(Protocol):
    """One of the things that are compared."""

    @property
    def label(self) -> str:
        """Its name, unique among the sides of a comparison."""

    def restart(self) -> object:
        """Begin again at the first action, with the environments reset to their seeds."""

    def run(self, passes: int) -> float:
        """Make so many passes; returns passes per second."""

    def close(self) -> None:
        """End what it has started."""


@dataclass(frozen=True)
class Measurement:
    """The samples of some sides: passes per second, one per round, by label."""

    passes: int
    samples: dict[str, list[float]]

    def rate(self, label: str) -> Spread:
        """Passes per second of one side."""
        return Spread.of(self.samples[label])

    def ratio(self, label: str, reference: str) -> Spread:
        """How many times as fast as the reference a side is, round by round."""
        pairs = zip(self.samples[label], self.samples[reference], strict=True)
        return Spread.of([mine / other for mine, other in pairs])


def measure(
    sides: Sequence[Side], *, rounds: int, seconds: float, passes: int | None = None
) -> Measurement:
    """Run the sides in turns.

    Args:
        sides: What is compared.
        rounds: Samples per side.
        seconds: How long the slowest side's sample should take.
        passes: Passes of one sample; None = as many as `seconds` allow.
    """
    for side in sides:
        side.restart()
    if passes is None:
        passes = _calibrate(sides, seconds)
    samples: dict[str, list[float]] = {side.label: [] for side in sides}
    for k in range(rounds):
        for side in sides if k % 2 == 0 else reversed(sides):
            samples[side.label].append(side.run(passes))
    return Measurement(passes, samples)


def _calibrate(sides: Sequence[Side], seconds: float) -> int:
    """Find the number of passes that the slowest side makes in so many seconds; warms all up."""
    passes = 1
    while True:
        slowest = min(side.run(passes) for side in sides)
        if passes >= seconds * slowest / 4:
            return max(1, round(seconds * slowest))
        passes *= 4


@contextmanager
def opened(makers: Sequence[Callable[[], Side]]) -> Iterator[list[Side]]:
    """Make some sides and close them in the end, whatever happens."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(make())) for make in makers]


def machine() -> dict[str, Any]:
    """Describe where and when a measurement is made."""
    return {
        "cpu": _cpu(),
        "usable cores": usable_cores(),
        "share of the cores in use before": _share_in_use(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
        "date": strftime("%Y-%m-%d"),
    }


def in_words(described: Mapping[str, Any]) -> str:
    """A machine in one line, which also says whether it was busy with something else."""
    share = described["share of the cores in use before"]
    is_busy = share is not None and share > 0.2
    use = "" if share is None else f"; other programs used {share:.0%} of the cores' time before"
    return (
        f"{described['cpu']}, {described['usable cores']} usable cores, {described['system']}; "
        f"Python {described['python']}, numpy {described['numpy']}, "
        f"gymnasium {described['gymnasium']}; {described['date']}{use}"
        + (": too noisy to judge by" if is_busy else "")
    )


def _share_in_use(seconds: float = 0.5) -> float | None:
    """The share of all cores' time that is used while this process sleeps; None = unknown.

    Not the load average, in which the programs of a minute ago still count.
    """
    before = _core_times()
    sleep(seconds)
    after = _core_times()
    if before is None or after is None:
        return None
    idle, total = (b - a for a, b in zip(before, after, strict=True))
    return round(1 - idle / total, 2) if total else None


def _core_times() -> tuple[int, int] | None:
    """Idle and all ticks of all cores so far."""
    try:
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return None
    ticks = [
        int(word) for word in line.split()[1:9]
    ]  # user nice system idle iowait irq softirq steal
    return ticks[3] + ticks[4], sum(ticks)


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
