"""Memory of a pool and its workers over a long run with infos that never settle.

    python benchmarks/memory.py            # 100,000 and 10,000 steps, about a minute
    python benchmarks/memory.py --quick    # a tenth of that

First every environment's infos keep changing between two dtypes, two shapes and two kinds, with
keys that come and go; then each step reports a string that was never seen before. Both must leave
memory flat: the last column is what has been added since the first tenth of the run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from environments import Nothing

from swm_async import EnvPool

NUM_ENVS = 4
NUM_WORKERS = 2
STEPS_PER_EPISODE = 500
TEXT_LENGTH = 1000

Infos = Iterator[dict[str, Any]]


def two_of_everything() -> Infos:
    """Infos in turns of two: what fits one array, what makes a list, and keys that go away."""
    picture = np.zeros((16, 16, 3), np.uint8)
    return itertools.cycle(
        [
            {"number": 1, "width": np.float32(0.5), "shape": np.zeros(3), "kind": "text", "a": 1.0},
            {"number": 0.5, "width": 0.25, "shape": np.zeros((2, 2)), "kind": picture, "b": [1, 2]},
        ]
    )


def new_strings() -> Infos:
    """A new string at every step, which always has to travel."""
    drawn = random.Random(0)
    for number in itertools.count():
        yield {"text": f"{number} " + drawn.randbytes(TEXT_LENGTH // 2).hex(), "number": number}


class Restless(Nothing):
    """Does nothing but report the next of some infos."""

    def __init__(self, infos: Callable[[], Infos]) -> None:
        super().__init__()
        self._infos = infos()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0], next(self._infos)

    def step(self, action: Any) -> Any:
        return *super().step(action)[:-1], next(self._infos)

    def pid(self) -> int:
        return os.getpid()


class Sample(NamedTuple):
    """Resident memory in bytes after so many steps: of this process, and of all workers."""

    step: int
    parent: int
    workers: int


def run(infos: Callable[[], Infos], steps: int, samples: int = 10) -> Iterator[Sample]:
    """Step a pool so often; yields the memory after each of so many equal parts."""
    actions = np.zeros(NUM_ENVS, np.int64)
    env_fns = [partial(Restless, infos)] * NUM_ENVS
    with EnvPool(env_fns, num_workers=NUM_WORKERS) as pool:
        pids = set(pool.call("pid"))
        for step in range(steps):
            if step % STEPS_PER_EPISODE == 0:
                pool.reset()
            pool.step(actions)
            if (step + 1) % (steps // samples) == 0:
                workers = sum(resident_bytes(pid) for pid in pids)
                yield Sample(step + 1, resident_bytes(os.getpid()), workers)


def resident_bytes(pid: int) -> int:
    """Of a process, by the second field of proc(5)'s statm."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    divisor = 10 if parser.parse_args(arguments).quick else 1
    if not sys.platform.startswith("linux"):
        parser.error("resident memory is read from Linux's /proc")
    for infos, steps in ((two_of_everything, 100_000), (new_strings, 10_000)):
        print(f"\n{infos.__name__}: {NUM_ENVS} environments, {NUM_WORKERS} workers, MiB")
        print(f"{'steps':>8} {'parent':>8} {'workers':>8} {'added':>8}")
        first = None
        for sample in run(infos, steps // divisor):
            first = first or sample
            added = sample.parent + sample.workers - first.parent - first.workers
            mebibytes = (count / 2**20 for count in (sample.parent, sample.workers, added))
            print(f"{sample.step:>8}", *(f"{count:8.2f}" for count in mebibytes), flush=True)


if __name__ == "__main__":
    main()
