"""What it gains and costs to stay awake (`spin`) and to pin workers to cores (`pin_workers`).

    python benchmarks/waiting.py            # about three minutes
    python benchmarks/waiting.py --quick    # every fourth scenario

Each scenario runs the same steps on pools of all four combinations and on one with the defaults,
in turns; quoted are multiples of the speed asleep and unpinned. The scenarios: environments that
do nothing and that burn 100 µs; one worker, as many as cores, and more than cores; a policy that
computes in the caller, also one with several threads; other programs that keep cores busy.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from environments import Burn, Nothing
from reporting import parser, publish, read, timed

from swm_async import EnvPool
from swm_async.arguments import awake_seconds, cores_to_pin, usable_cores
from swm_async.benchmarking import Side, Spread, in_words, machine, measure, opened
from swm_async.terminal import markdown_table, text_table

NUM_ENVS = 8
BURN = partial(Burn, 100e-6)
MATRIX = 384
_BUSY = "while True: pass"


class Combination(NamedTuple):
    """The two switches; None = what the pool decides."""

    label: str
    spin: bool | None
    pin_workers: bool | None


REFERENCE = Combination("asleep", False, False)
COMBINATIONS = (
    REFERENCE,
    Combination("awake", True, False),
    Combination("asleep, pinned", False, True),
    Combination("awake, pinned", True, True),
    Combination("defaults", None, None),
)


class Scenario(NamedTuple):
    """Environments, workers, and what else happens."""

    title: str
    env_fn: Callable[[], Any]
    num_workers: int
    policy: Callable[[], Callable[[], object]] | None = None
    hogs: int = 0


def burn_here(seconds: float) -> Callable[[], object]:
    """A policy that computes in the caller for so long."""

    def compute() -> None:
        end = perf_counter() + seconds
        while perf_counter() < end:
            pass

    return compute


def multiply() -> Callable[[], object]:
    """A policy whose matrix product numpy's library may share out to threads."""
    matrix = np.random.default_rng(0).random((MATRIX, MATRIX), np.float32)
    return partial(np.matmul, matrix, matrix)


def scenarios() -> list[Scenario]:
    """All scenarios of this machine."""
    cores = usable_cores()
    few, many = max(2, cores), 4 * cores
    return [
        Scenario("nothing", Nothing, 1),
        Scenario("nothing", Nothing, few),
        Scenario("nothing", Nothing, 2 * cores),
        Scenario("burns 100 µs", BURN, 1),
        Scenario("burns 100 µs", BURN, few),
        Scenario("burns 100 µs", BURN, many),
        Scenario("nothing, policy burns 0.1 ms", Nothing, few, partial(burn_here, 100e-6)),
        Scenario("nothing, policy burns 1 ms", Nothing, few, partial(burn_here, 1e-3)),
        Scenario("nothing, policy multiplies matrices", Nothing, few, multiply),
        Scenario("burns 100 µs, policy multiplies matrices", BURN, few, multiply),
        Scenario("nothing, 1 other program", Nothing, few, hogs=1),
        Scenario("nothing, 2 other programs", Nothing, few, hogs=2),
        Scenario("burns 100 µs, 1 other program", BURN, few, hogs=1),
        Scenario("burns 100 µs, 2 other programs", BURN, few, hogs=2),
    ]


class WaitingSide:
    """Steps of a pool that waits in its way, with what the caller computes in between."""

    def __init__(self, scenario: Scenario, combination: Combination) -> None:
        self.label, spin, pin = combination
        count = max(NUM_ENVS, scenario.num_workers)
        self._pool = EnvPool(
            [scenario.env_fn] * count, num_workers=scenario.num_workers, spin=spin, pin_workers=pin
        )
        self._compute = None if scenario.policy is None else scenario.policy()
        self._actions = np.zeros(count, np.int64)

    def restart(self) -> None:
        self._pool.reset(seed=0)

    def run(self, passes: int) -> float:
        step, actions, compute = self._pool.step, self._actions, self._compute
        started = perf_counter()
        for _ in range(passes):
            if compute is not None:
                compute()
            step(actions)
        return passes / (perf_counter() - started)

    def close(self) -> None:
        self._pool.close()


@contextmanager
def other_programs(count: int) -> Iterator[list[int]]:
    """So many processes that keep a core busy each; yields their numbers."""
    hogs = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield [hog.pid for hog in hogs]
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


class Outcome(NamedTuple):
    """What a scenario gave: seconds per step asleep, and multiples of that speed."""

    scenario: Scenario
    asleep: Spread
    ratios: dict[str, Spread]

    def cells(self) -> list[str]:
        others = [str(self.ratios[combination.label]) for combination in COMBINATIONS[1:]]
        low, high = 1e6 / self.asleep.high, 1e6 / self.asleep.low
        asleep = f"{1e6 / self.asleep.median:,.0f} ({low:,.0f}–{high:,.0f})"
        return [self.scenario.title, str(self.scenario.num_workers), asleep, *others]

    def data(self) -> dict[str, Any]:
        scenario = self.scenario
        return {
            "scenario": scenario.title,
            "workers": scenario.num_workers,
            "other programs": scenario.hogs,
            "steps per second asleep": self.asleep._asdict(),
            "times as fast": {label: found._asdict() for label, found in self.ratios.items()},
            "defaults": {
                "spin": awake_seconds(scenario.num_workers, None) > 0,
                "pin_workers": bool(cores_to_pin(scenario.num_workers, None)),
            },
        }


def measure_scenario(scenario: Scenario, rounds: int, seconds: float) -> Outcome:
    """Run all combinations in turns."""
    makers: list[Callable[[], Side]] = [
        partial(WaitingSide, scenario, combination) for combination in COMBINATIONS
    ]
    with opened(makers) as sides, other_programs(scenario.hogs):
        found = measure(sides, rounds=rounds, seconds=seconds)
    ratios = {c.label: found.ratio(c.label, REFERENCE.label) for c in COMBINATIONS[1:]}
    return Outcome(scenario, found.rate(REFERENCE.label), ratios)


def main(arguments: Sequence[str] | None = None) -> None:
    given = read(parser(__doc__, rounds=11, seconds=0.15), arguments)
    described = machine()
    print(in_words(described), flush=True)
    outcomes = []
    for scenario in scenarios()[:: 4 if given.quick else 1]:
        with timed(f"{scenario.title}, {scenario.num_workers} workers"):
            outcomes.append(measure_scenario(scenario, given.rounds, given.seconds))
    labels = [combination.label for combination in COMBINATIONS[1:]]
    heading = ["scenario", "workers", "asleep, µs per step", *labels]
    cells = [heading, *(outcome.cells() for outcome in outcomes)]
    both = (
        f"All columns: the same {NUM_ENVS} environments (or as many as workers, where those are "
        "more), actions and computations of the caller; multiples of the speed asleep and unpinned."
    )
    print(f"{text_table(cells)}\n{both}")
    data = {
        "machine": described,
        "rounds": given.rounds,
        "all columns": both,
        "scenarios": [outcome.data() for outcome in outcomes],
    }
    publish(given, "waiting", data, {"waiting": f"{markdown_table(cells)}\n\n{both}"})


if __name__ == "__main__":
    main()
