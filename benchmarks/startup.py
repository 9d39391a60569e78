"""How long 64 CartPoles take from nothing to their first observations, and to their end: row P11.

    python benchmarks/startup.py            # about three minutes
    python benchmarks/startup.py --rounds 5

A pass is: construct, reset all with seeds, close. The reference is AsyncVectorEnv, whose processes
are forked, or spawned as fresh interpreters, which is what the workers of a pool are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from time import perf_counter
from types import ModuleType
from typing import Any, Literal

import gymnasium
from gymnasium.vector import AsyncVectorEnv
from reporting import parser, progress, read
from rows import Bound, RowOutcome, publish_rows

from swm_async import VectorEnv
from swm_async.benchmarking import in_words, machine, measure

NUM_ENVS, NUM_WORKERS, SEED = 64, 2, 5
CARTPOLE = partial(gymnasium.make, "CartPole-v1")

Start = Literal["fork", "spawn"]

ROWS: dict[Start, Bound] = {
    "fork": Bound("speed", 1.2, 1.5),
    "spawn": Bound("speed", 10.0, 30.0),
}
BOTH_DID = (
    f"{NUM_ENVS} CartPoles constructed, reset with the same seeds to the same observations, and "
    f"closed; one process each, or {NUM_WORKERS} workers"
)


@contextmanager
def empty_main() -> Iterator[None]:
    """Let spawned processes find an empty script: importing this one again would be no fair start.

    `multiprocessing` imports the main module again in each process that it spawns.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def opened_async(start: Start, num_envs: int) -> Any:
    """Gymnasium's AsyncVectorEnv of so many CartPoles; the caller closes it."""
    with empty_main():
        return AsyncVectorEnv([CARTPOLE] * num_envs, context=start, copy=False)


def opened_pool(num_envs: int) -> Any:
    """The same of this library."""
    return VectorEnv([CARTPOLE] * num_envs, num_workers=NUM_WORKERS, copy=False)


class Start64:
    """Constructs, resets and closes at each pass."""

    def __init__(self, label: str, make: Any, num_envs: int = NUM_ENVS) -> None:
        self.label, self._make, self._num_envs = label, make, num_envs

    def restart(self) -> Any:
        """One pass; returns the observations."""
        with closing(self._make(self._num_envs)) as envs:
            return envs.reset(seed=SEED)[0].copy()

    def run(self, passes: int) -> float:
        started = perf_counter()
        for _ in range(passes):
            self.restart()
        return passes / (perf_counter() - started)

    def close(self) -> None:
        """Nothing is open between two passes."""


def main(arguments: Sequence[str] | None = None) -> None:
    given = read(parser(__doc__), arguments)
    described = machine()
    print(in_words(described), flush=True)
    outcomes = []
    for start, bound in ROWS.items():
        sides = [
            Start64(f"AsyncVectorEnv, {start}", partial(opened_async, start)),
            Start64(f"VectorEnv, {NUM_WORKERS} workers", opened_pool),
        ]
        labels = sides[1].label, sides[0].label
        if given.quick and start == "spawn":
            reason = "left out of a quick run, for it takes tens of seconds"
            outcomes.append(RowOutcome("P11", bound, *labels, None, reason))
            continue
        # A spawned start takes tens of seconds; five pairs are what the rules ask for.
        rounds = min(given.rounds, 5) if start == "spawn" else given.rounds
        found = measure(sides, rounds=rounds, seconds=given.seconds, passes=1)
        outcomes.append(RowOutcome("P11", bound, *labels, found.ratio(*labels), BOTH_DID))
        times = {side.label: 1 / found.rate(side.label).median for side in sides}
        progress(", ".join(f"{label} {seconds:.2f} s" for label, seconds in times.items()))
    publish_rows(given, "startup", described, outcomes)


if __name__ == "__main__":
    main()
