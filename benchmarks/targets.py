"""What the pool must reach, row by row, and how each row is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Any

from environments import ENVIRONMENTS
from gymnasium.vector import AutoresetMode
from harness import CEILING, RAW_FLOOR, BareSteps, Ceiling, RawFloor
from peers import CPP, SHMEM, SUBPROC, missing, peer_side

from swm_async.benchmarking import Side, Spread, measure, opened
from swm_async.contenders import (
    ASYNC,
    SYNC,
    OwnVectorSide,
    PoolSide,
    VectorSide,
    Work,
    own_vector_label,
    pool_label,
)

NUM_WORKERS = 2

_WHAT_BOTH_DID = {
    SYNC: "SyncVectorEnv(copy=False, SAME_STEP); EnvPool.step, then reset(mask=finished); the same "
    "environments, seeds, actions and resets; both hand out observations, rewards, flags and infos",
    ASYNC: "AsyncVectorEnv(copy=False, SAME_STEP), one process per environment, and VectorEnv("
    "copy=False, SAME_STEP); the same environments, seeds, actions, resets and outputs",
    CEILING: f"{NUM_WORKERS} forked processes, each stepping and resetting its half of the "
    "environments in a plain loop, exchanging nothing; EnvPool.step, then reset(mask=finished)",
    SUBPROC: "SubprocVecEnv(start_method='fork') of stable-baselines3, one process per "
    "environment, and VectorEnv(copy=False, SAME_STEP); the same environments, seeds, actions, "
    "resets and outputs",
    SHMEM: "ShmemVectorEnv of Tianshou, one process per environment, the finished ones reset by "
    "their numbers, and VectorEnv(copy=False, SAME_STEP); the same environments, seeds, actions, "
    "resets and outputs",
    CPP: f"envpool.make('CartPole-v1') of sail-sg with num_threads={NUM_WORKERS}, which steps "
    "a CartPole of its own in C++ and resets in the step after, and VectorEnv(copy=False, "
    "NEXT_STEP) with Gymnasium's in Python; the same actions and outputs, other initial states",
    RAW_FLOOR: f"16 bytes to each of {NUM_WORKERS} forked processes and back over bare pipes; "
    "EnvPool.step of one environment per worker; compared is the time",
}


@dataclass(frozen=True)
class Target:
    """One figure to reach; without one (`least` None) it is only stated.

    Attributes:
        name: P1 and so on.
        environment: A key of ENVIRONMENTS.
        reference: The label of the side to compare with.
        least: The smallest speed, as a multiple of the reference's; against the raw floor the
            longest time, as a multiple of its time.
        aim: What is hoped for, in the same terms.
        mode: Resets within the steps of VectorEnv; None = EnvPool and masked resets.
    """

    name: str
    environment: str
    num_envs: int
    reference: str
    least: float | None = None
    aim: float | None = None
    mode: AutoresetMode | None = None

    @property
    def is_time(self) -> bool:
        """Whether less is better."""
        return self.reference == RAW_FLOOR

    @property
    def what_both_did(self) -> str:
        text = _WHAT_BOTH_DID[self.reference]
        if self.mode is None:
            return text
        own = f"VectorEnv(copy=False, {self.mode.name})"
        return text.replace("EnvPool.step, then reset(mask=finished)", own)

    @property
    def label(self) -> str:
        """The label of the side that is to reach it."""
        if self.mode is None:
            return pool_label(NUM_WORKERS)
        return own_vector_label(NUM_WORKERS, self.mode)


def _series(
    name: str,
    environment: str,
    reference: str,
    figures: dict[int, tuple[float, float]],
    mode: AutoresetMode | None = None,
) -> list[Target]:
    return [
        Target(name, environment, num_envs, reference, least, aim, mode)
        for num_envs, (least, aim) in figures.items()
    ]


TARGETS: list[Target] = [
    *_series("P1", "burn-100us", SYNC, {8: (1.85, 1.95), 32: (1.93, 1.98)}),
    Target("P1", "burn-100us", 8, CEILING),
    Target("P1", "burn-100us", 32, CEILING),
    *_series("P2", "burn-1ms", SYNC, {8: (1.95, 1.98)}),
    Target("P2", "burn-1ms", 8, CEILING),
    *_series("P3", "nothing", SYNC, {8: (0.85, 1.0), 32: (1.7, 2.2)}),
    *_series(
        "P4",
        "cartpole",
        CEILING,
        {8: (0.4, 0.6), 32: (0.6, 0.8), 64: (0.7, 0.85), 256: (0.8, 0.92)},
        AutoresetMode.SAME_STEP,
    ),
    *_series(
        "P4",
        "cartpole",
        CEILING,
        {8: (0.45, 0.6), 32: (0.7, 0.85), 64: (0.85, 0.92), 256: (0.9, 0.96)},
        AutoresetMode.NEXT_STEP,
    ),
    *_series(
        "P4b",
        "cartpole",
        SYNC,
        {8: (0.95, 1.2), 32: (1.6, 1.8), 64: (1.8, 2.0), 256: (1.9, 2.2)},
        AutoresetMode.SAME_STEP,
    ),
    *_series("P5", "cartpole", ASYNC, {32: (8.0, 10.0)}, AutoresetMode.SAME_STEP),
    *_series("P5", "cartpole", SUBPROC, {32: (8.0, 10.0)}, AutoresetMode.SAME_STEP),
    *_series("P5", "cartpole", SHMEM, {32: (8.0, 10.0)}, AutoresetMode.SAME_STEP),
    *_series("P6", "cartpole", CPP, {32: (0.7, 0.9)}, AutoresetMode.NEXT_STEP),
    *_series("P7", "nothing", RAW_FLOOR, {2: (1.8, 1.4)}),
]
NAMES = list(dict.fromkeys(target.name for target in TARGETS))


@dataclass(frozen=True)
class Outcome:
    """A target and what was measured; None = skipped, for the reason stated."""

    target: Target
    measured: Spread | None
    skipped: str = ""

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return f"skipped: {self.skipped}"
        least, found = self.target.least, self.measured.median
        if least is None:
            return "stated"
        return (
            "reached" if (found <= least if self.target.is_time else found >= least) else "missed"
        )

    def cells(self) -> list[str]:
        target = self.target
        bound = "at most" if target.is_time else "at least"
        return [
            target.name,
            ENVIRONMENTS[target.environment].title,
            str(target.num_envs),
            target.reference + (f", {target.mode.value}" if target.mode is not None else ""),
            "" if target.least is None else f"{bound} {target.least:g}",
            "" if target.aim is None else f"{target.aim:g}",
            "" if self.measured is None else str(self.measured),
            self.verdict,
        ]

    def data(self) -> dict[str, Any]:
        mode = self.target.mode
        return asdict(self.target) | {
            "mode": None if mode is None else mode.value,
            "compared": "time" if self.target.is_time else "speed",
            "measured": None if self.measured is None else self.measured._asdict(),
            "verdict": self.verdict,
            "both sides": self.target.what_both_did,
        }


HEADING = ["row", "environment", "N", "against", "target", "aim", "measured", "verdict"]


def measure_targets(
    names: Sequence[str], *, rounds: int, seconds: float, report: Callable[[str], object]
) -> list[Outcome]:
    """Measure the targets of these names; those of the same work are measured in one run."""

    def work_of(target: Target) -> tuple[str, int, str]:
        # The others are so much slower that they would shorten the samples of these.
        alone = "" if target.reference in (SYNC, CEILING) else target.reference
        return target.environment, target.num_envs, alone

    chosen = [target for target in TARGETS if target.name in names]
    found: dict[Target, Spread] = {}
    reasons: dict[Target, str] = {}
    for (environment, num_envs, alone), group in groupby(sorted(chosen, key=work_of), work_of):
        targets = list(group)
        if reason := missing(alone):
            reasons |= dict.fromkeys(targets, reason)
            continue
        work = Work.of(ENVIRONMENTS[environment].env_fn, num_envs)
        makers = _sides(work, targets)
        with opened(makers) as sides:
            result = measure(sides, rounds=rounds, seconds=seconds)
        for target in targets:
            mine, other = target.label, target.reference
            found[target] = result.ratio(*(other, mine) if target.is_time else (mine, other))
        report(f"{ENVIRONMENTS[environment].title}, {num_envs} environments: measured")
    return [Outcome(each, found.get(each), reasons.get(each, "")) for each in chosen]


def _sides(work: Work, targets: Sequence[Target]) -> list[Callable[[], Side]]:
    """The sides that these targets need; those that fork come first."""
    if targets[0].is_time:
        return [partial(RawFloor, NUM_WORKERS), partial(BareSteps, work, NUM_WORKERS)]
    references: dict[str, Callable[[], Side]] = {
        ASYNC: partial(VectorSide, work, ASYNC),
        CEILING: partial(Ceiling, work, NUM_WORKERS),
        SYNC: partial(VectorSide, work, SYNC),
        **{label: peer_side(label, work, NUM_WORKERS) for label in (SUBPROC, SHMEM, CPP)},
    }
    needed = {target.reference for target in targets}
    chosen = [make for label, make in references.items() if label in needed]
    for mode in dict.fromkeys(target.mode for target in targets):
        if mode is None:
            chosen.append(partial(PoolSide, work, NUM_WORKERS))
        else:
            chosen.append(partial(OwnVectorSide, work, NUM_WORKERS, mode))
    return chosen
