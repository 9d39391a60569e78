"""How much memory 64 CartPoles take: row P12 of the targets.

    python benchmarks/footprint.py          # about a minute

Each side lives in a process of its own, which holds nothing of the other one; what is counted is
the proportional set size (PSS) of that process and of all processes below it, after a reset and
ten steps: a page that several of them share is counted once. Linux only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from reporting import parser, progress, read
from rows import Bound, RowOutcome, publish_rows

from swm_async.benchmarking import Spread, in_words, machine

BOUND = Bound("memory", 0.05, 0.03)
NUM_ENVS, STEPS = 64, 10
POOL, SPAWN, FORK = "VectorEnv, 2 workers", "AsyncVectorEnv, spawn", "AsyncVectorEnv, fork"
SIDES = (SPAWN, POOL, FORK)
BOTH_DID = (
    f"PSS of all processes, the caller's too, of {NUM_ENVS} CartPoles after a reset and {STEPS} "
    "steps, with the same seeds, actions and observations"
)


def opened(side: str, num_envs: int) -> Any:
    """The vector environment of a side; the caller closes it."""
    import startup

    if side == POOL:
        return startup.opened_pool(num_envs)
    return startup.opened_async("spawn" if side == SPAWN else "fork", num_envs)


def measure_here(side: str, num_envs: int = NUM_ENVS) -> dict[str, Any]:
    """Open a side in this process, and count; returns bytes and a sum of what it observed."""
    with closing(opened(side, num_envs)) as envs:
        observed = envs.reset(seed=0)[0].copy()
        for t in range(STEPS):
            observed += envs.step(np.full(num_envs, t % 2))[0]
        pids = tree()
        return {
            "bytes": sum(pss_bytes(pid) for pid in pids),
            "processes": len(pids),
            "observed": observed.tolist(),
        }


def tree(pid: int | str = "self") -> list[int]:
    """A process and all below it, by proc(5)."""
    found = [int(Path(f"/proc/{pid}").resolve().name)]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += tree(child)
    return found


def pss_bytes(pid: int) -> int:
    """The proportional set size of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no Pss in /proc/{pid}/smaps_rollup")


def measure_apart(side: str) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", side]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    found = parser(__doc__, rounds=3)
    found.add_argument("--one", choices=SIDES, help="count this side in this process, and no more")
    given = read(found, arguments)
    if not sys.platform.startswith("linux"):
        found.error("memory is read from Linux's /proc")
    if given.one:
        print(json.dumps(measure_here(given.one)))
        return
    given.rounds = 1 if given.quick else given.rounds
    described = machine()
    print(in_words(described), flush=True)
    samples: dict[str, list[float]] = {side: [] for side in SIDES}
    for k in range(given.rounds):
        for side in SIDES if k % 2 == 0 else reversed(SIDES):
            samples[side].append(measure_apart(side)["bytes"])
    outcomes = []
    for reference, bound in ((SPAWN, BOUND), (FORK, Bound("memory"))):
        pairs = zip(samples[POOL], samples[reference], strict=True)
        ratio = Spread.of([mine / other for mine, other in pairs])
        row = "P12" if reference == SPAWN else "with fork"
        outcomes.append(RowOutcome(row, bound, POOL, reference, ratio, BOTH_DID))
    for side in SIDES:
        progress(f"{side}: {Spread.of(samples[side]).median / 2**20:,.0f} MiB")
    publish_rows(given, "footprint", described, outcomes)


if __name__ == "__main__":
    main()
