"""How the time of a step, memory and start-up grow with environments and with bytes.

    python benchmarks/growth.py            # about three minutes
    python benchmarks/growth.py --quick

Five series, each with a fitted line y = a + b x and its error (N = 1 has one worker, the others
have two, so it is no part of the line):

envs     a step of N environments that do nothing, N from 1 to 1024
bytes    a step of 32 environments that report 8 bytes to 150 KB each
masked   a step of 8 of N environments, all in one shard: may grow with N by the mask alone
memory   proportional set size of this process and the workers, over N and over bytes
start    construction, first reset and end, one worker per environment

The environments do nothing, so what grows is the pool. The floors: two forked processes that step
half of the environments each in a plain loop; one `numpy.copyto` per environment for the bytes.
Writes growth.json and growth.png.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from time import perf_counter
from typing import Any

import numpy as np
from charts import plot_growth
from environments import Nothing
from fits import Fit, Series, fit_line
from footprint import pss_bytes, tree
from harness import Ceiling
from infos import PoolSteps
from reporting import in_microseconds, parser, pass_times, publish, read, timed

from swm_async import EnvPool
from swm_async.benchmarking import Side, Spread, in_words, machine, opened
from swm_async.contenders import Work
from swm_async.errors import PoolError
from swm_async.terminal import markdown_table, need, text_table

NUM_WORKERS = 2
COUNTS = (1, 4, 16, 64, 256, 1024)
SIZES = (8, 512, 4096, 16384, 65536, 150528)
REPORTING_ENVS = 32
MASKED = 8
START_COUNTS = (1, 4, 16, 64, 256)
DESCRIPTORS_PER_WORKER = 10


class Reporting(Nothing):
    """Reports so many bytes, made beforehand."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._info = {"data": np.full(size, 7, np.uint8)}

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self._observation, self._info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation, 0.0, False, False, self._info


class Copies:
    """One `numpy.copyto` of so many bytes for each environment."""

    def __init__(self, label: str, size: int) -> None:
        self.label = label
        self._sources = [np.full(size, 7, np.uint8) for _ in range(REPORTING_ENVS)]
        self._target = np.zeros((REPORTING_ENVS, 1, size), np.uint8)

    def restart(self) -> None:
        """There is nothing to begin again."""

    def run(self, passes: int) -> float:
        started = perf_counter()
        for _ in range(passes):
            for i, source in enumerate(self._sources):
                np.copyto(self._target[i, 0], source)
        return passes / (perf_counter() - started)

    def close(self) -> None:
        """Nothing is open."""


class MaskAlone:
    """What a mask of N costs wherever it is read: checked, copied, searched once on each side."""

    def __init__(self, label: str, mask: Any) -> None:
        self.label, self._mask, self._copy = label, mask, np.zeros_like(mask)

    def restart(self) -> None:
        """There is nothing to begin again."""

    def run(self, passes: int) -> float:
        mask, copy, rows = self._mask, self._copy, range(len(self._mask))
        started = perf_counter()
        for _ in range(passes):
            np.copyto(copy, mask)
            copy.nonzero()
            list(compress(rows, copy.tobytes()))
        return passes / (perf_counter() - started)

    def close(self) -> None:
        """Nothing is open."""


def workers_for(num_envs: int) -> int:
    return min(NUM_WORKERS, num_envs)


def mask_of(num_envs: int) -> Any:
    mask = np.zeros(num_envs, np.bool_)
    mask[:MASKED] = True
    return mask


def by_envs(counts: Sequence[int], rounds: int, seconds: float) -> list[Series]:
    """The time of a step, and of a plain loop on both cores, over N."""
    found = []
    for name, make in (("2 workers", _steps), ("floor: forked loops", _floor)):
        makers = [partial(make, n) for n in counts]
        found.append(Series(name, "N", list(counts), _times(makers, rounds, seconds)))
    return found


def _steps(num_envs: int) -> Side:
    return PoolSteps(str(num_envs), Nothing, num_envs, workers_for(num_envs))


def _floor(num_envs: int) -> Side:
    side = Ceiling(Work.of(Nothing, num_envs), workers_for(num_envs))
    side.label = str(num_envs)
    return side


def by_bytes(sizes: Sequence[int], rounds: int, seconds: float) -> list[Series]:
    """The time of a step, and of bare copies in one process, over the bytes that all report."""
    found = []
    for name, make in (("2 workers", _reporting), ("floor: numpy.copyto", _copies)):
        times = _times([partial(make, size) for size in sizes], rounds, seconds)
        found.append(Series(name, "bytes", [REPORTING_ENVS * size for size in sizes], times))
    return found


def _reporting(size: int) -> Side:
    return PoolSteps(str(size), partial(Reporting, size), REPORTING_ENVS, NUM_WORKERS, None, False)


def _copies(size: int) -> Side:
    return Copies(str(size), size)


def masked(counts: Sequence[int], rounds: int, seconds: float) -> list[Series]:
    """The time of a step of 8 of N environments, and what the mask alone costs."""
    counts = [n for n in counts if n >= 2 * MASKED]
    found = []
    for name, make in (("8 of N", _masked_steps), ("the mask alone", _mask_alone)):
        makers = [partial(make, n) for n in counts]
        found.append(Series(name, "N", counts, _times(makers, rounds, seconds)))
    return found


def _masked_steps(num_envs: int) -> Side:
    return PoolSteps(str(num_envs), Nothing, num_envs, NUM_WORKERS, mask_of(num_envs))


def _mask_alone(num_envs: int) -> Side:
    return MaskAlone(str(num_envs), mask_of(num_envs))


def _times(makers: Sequence[Callable[[], Side]], rounds: int, seconds: float) -> list[Spread]:
    with opened(makers) as sides:
        return list(pass_times(sides, rounds=rounds, seconds=seconds).values())


def memory(name: str, x: Sequence[int], makers: Sequence[Callable[[], Side]]) -> Series:
    """Bytes of all processes after some steps; x is N or the bytes that all report."""
    found = []
    for make in makers:
        with opened([make]) as (side,):
            side.restart()
            side.run(10)
            total = float(sum(pss_bytes(pid) for pid in tree()))
        found.append(Spread(total, total, total))
    return Series(name, "N" if name.endswith("N") else "bytes", list(x), found)


def start_up(counts: Sequence[int], rounds: int) -> tuple[Series, list[str]]:
    """Seconds to construct and reset N environments with a worker each; and what was left out."""
    done: list[int] = []
    found, skipped, per_worker = [], [], 0.0
    for n in counts:
        if reason := _too_much(n, per_worker):
            skipped.append(f"{n} workers: {reason}")
            continue
        samples = []
        try:
            for _ in range(rounds if n <= 16 else 1):
                started = perf_counter()
                with EnvPool([Nothing] * n, num_workers=n, start_timeout=None) as pool:
                    pool.reset(seed=0)
                    seconds = perf_counter() - started
                    pids = [pid for pid in tree() if pid != os.getpid()]
                    per_worker = sum(pss_bytes(pid) for pid in pids) / n
                samples.append(seconds)
        except PoolError as error:
            skipped.append(f"{n} workers: {str(error).splitlines()[0]}")
            continue
        done.append(n)
        found.append(Spread.of(samples))
    return Series("a worker each", "N", done, found), skipped


def _too_much(num_workers: int, per_worker: float) -> str | None:
    """Why so many workers are not started; None = they fit into half of what is free."""
    needed = num_workers * per_worker
    free = available_bytes()
    if needed > free / 2:
        return f"they would take {needed / 2**30:.1f} GiB of {free / 2**30:.1f} GiB that are free"
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if num_workers * DESCRIPTORS_PER_WORKER > soft != resource.RLIM_INFINITY:
        return f"they need {DESCRIPTORS_PER_WORKER} descriptors each, and {soft} are allowed"
    return None


def available_bytes() -> int:
    """Memory that can be had without swapping, by proc(5)."""
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("no MemAvailable in /proc/meminfo")


def main(arguments: Sequence[str] | None = None) -> None:
    given = read(parser(__doc__, rounds=11, seconds=0.1), arguments)
    need("matplotlib", "plot", "the picture")
    described = machine()
    print(in_words(described), flush=True)
    counts = COUNTS[:-2] if given.quick else COUNTS
    sizes = SIZES[:-1] if given.quick else SIZES
    budget = given.rounds, given.seconds
    series: dict[str, list[Series]] = {}
    with timed("envs"):
        series["envs"] = by_envs(counts, *budget)
    with timed("bytes"):
        series["bytes"] = by_bytes(sizes, *budget)
    with timed("masked"):
        series["masked"] = masked(counts, *budget)
    with timed("memory"):
        series["memory"] = [
            memory("over N", counts, [partial(_steps, n) for n in counts]),
            memory(
                "over bytes",
                [REPORTING_ENVS * size for size in sizes],
                [partial(_reporting, size) for size in sizes],
            ),
        ]
    with timed("start"):
        started, skipped = start_up(
            START_COUNTS[:3] if given.quick else START_COUNTS, min(3, given.rounds)
        )
        series["start"] = [started]
    cells, fits = _lines(series)
    print(text_table(cells))
    points = _points(series)
    print(f"\n{text_table(points)}")
    print("\n".join(f"left out: {text}" for text in skipped))
    picture = given.out / "growth.png"
    given.out.mkdir(parents=True, exist_ok=True)
    plot_growth(series, fits, in_words(described), picture)
    data = {
        "machine": described,
        "rounds": given.rounds,
        "units": {"time": "seconds", "memory": "bytes"},
        "series": {key: [each.data() for each in found] for key, found in series.items()},
        "fits": {f"{key}, {name}": fit._asdict() for (key, name), fit in fits.items()},
        "left out": skipped,
    }
    left_out = "".join(f"\n\nLeft out: {text}." for text in skipped)
    text = f"{markdown_table(cells)}\n\n{markdown_table(points)}{left_out}"
    publish(given, "growth", data, {"growth": text}, [picture])


def _lines(series: dict[str, list[Series]]) -> tuple[list[list[str]], dict[tuple[str, str], Fit]]:
    """The fitted lines as a table, and by series."""
    cells = [["series", "side", "at 0", "slope", "error of the fit", "points"]]
    fits = {}
    for key, group in series.items():
        for each in group:
            points = [(x, y.median) for x, y in zip(each.x, each.y, strict=True)]
            if key in ("envs", "memory"):  # one environment has one worker: another kind of step
                points = [(x, y) for x, y in points if x > 1]
            if len(points) < 2:
                continue
            fit = fits[key, each.name] = fit_line(*zip(*points, strict=True))
            cells.append([key, each.name, *fit.in_words(key, each.unit), str(len(points))])
    return cells, fits


def _points(series: dict[str, list[Series]]) -> list[list[str]]:
    """What was measured, point by point."""
    cells = [["series", "side", "x", "measured", "unit"]]
    for key, group in series.items():
        for each in group:
            for x, y in zip(each.x, each.y, strict=True):
                if key == "memory":
                    found, unit = f"{y.median / 2**20:,.1f}", "MiB"
                elif key == "start":
                    found, unit = str(y), "s"
                else:
                    found, unit = in_microseconds(y), "µs"
                cells.append([key, each.name, f"{x:,}", found, unit])
    return cells


if __name__ == "__main__":
    main()
