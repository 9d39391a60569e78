"""What a step costs on Ray, against worker processes of the same number, and where the time goes.

    python benchmarks/ray_cost.py                  # a minute; needs the extra `ray`
    python benchmarks/ray_cost.py --rounds 5 --out cost.json

32 environments that do nothing, without infos and with an info of 64×64×3 bytes each, on two
workers. What is left of a step on Ray after the workers' own time and the copies in this process
is Ray's: its calls, its store of objects, and waking up.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import gymnasium
import numpy as np
from environments import Nothing

from swm_async import EnvPool
from swm_async.backends.ray_cluster import on_this_machine_alone
from swm_async.benchmarking import Side, Spread, in_words, machine, measure, opened
from swm_async.terminal import text_table
from swm_workers.rows import Columns

NUM_ENVS, NUM_WORKERS = 32, 2
LOCAL_RAY: dict[str, Any] = {
    "address": "local",
    "num_cpus": NUM_WORKERS,
    "include_dashboard": False,
    "_node_ip_address": "127.0.0.1",
    "object_store_memory": 200_000_000,
    "log_to_driver": False,
    "logging_level": "error",
}


class Pictures(Nothing):
    """Reports a picture at every step, made beforehand, so that only its way costs."""

    def __init__(self) -> None:
        super().__init__()
        self._info = {"pixels": np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)}

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self._observation, self._info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation, 0.0, False, False, self._info


class Steps:
    """Steps all environments of a pool, and adds up what the pool says of its workers."""

    def __init__(
        self, make: Callable[[], gymnasium.Env[Any, Any]], backend: Literal["process", "ray"]
    ) -> None:
        self.label = "worker processes" if backend == "process" else "Ray actors"
        self._pool = EnvPool([make] * NUM_ENVS, num_workers=NUM_WORKERS, backend=backend)
        self._actions = np.zeros(NUM_ENVS, np.int64)
        self.busy_us: list[float] = []
        """Microseconds per step of the slower worker, a number per sample."""

    def restart(self) -> None:
        self._pool.reset(seed=0)
        self._pool.step(self._actions)
        self.busy_us.clear()

    def run(self, passes: int) -> float:
        step, actions = self._pool.step, self._actions
        before = self._pool.stats()["busy_s"]
        started = perf_counter()
        for _ in range(passes):
            step(actions)
        took_s = perf_counter() - started
        busy_s = self._pool.stats()["busy_s"] - before
        self.busy_us.append(float(busy_s.max()) / passes * 1e6)
        return passes / took_s

    def close(self) -> None:
        self._pool.close()


class Copies:
    """How long this process copies rows out of replies."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self.count = 0

    def install(self) -> None:
        plain = Columns.scatter

        def timed(columns: Columns, *args: Any) -> None:
            started = perf_counter()
            plain(columns, *args)
            self.total_s += perf_counter() - started
            self.count += 1

        Columns.scatter = timed  # type: ignore[method-assign]  # for this script alone


def cost(
    name: str, make: Callable[[], gymnasium.Env[Any, Any]], rounds: int, seconds: float
) -> dict[str, Any]:
    """Measure both sides on one environment; times are microseconds per step of all."""
    copies = Copies()
    makers: list[Callable[[], Side]] = [lambda: Steps(make, "process"), lambda: Steps(make, "ray")]
    with opened(makers) as sides:
        for side in sides:
            side.restart()
        copies.install()
        processes, actors = sides
        result = measure(sides, rounds=rounds, seconds=seconds)
        times = {s.label: Spread.of([1e6 / r for r in result.samples[s.label]]) for s in sides}
        # Each reply is copied by one call; a step has a reply of each actor.
        copied_us = copies.total_s / copies.count * NUM_WORKERS * 1e6
        assert isinstance(actors, Steps)
        busy_us = Spread.of(actors.busy_us[-rounds:]).median
    on_ray = times[actors.label].median
    return {
        "environment": name,
        "worker processes": times[processes.label],
        "Ray actors": times[actors.label],
        "times as long": result.ratio(processes.label, actors.label),
        "actors busy": busy_us,
        "copies here": copied_us,
        "copies here, share": copied_us / on_ray,
        "Ray": on_ray - busy_us - copied_us,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="samples per side")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one sample")
    parser.add_argument("--out", type=Path, default=None, help="a JSON file to write")
    given = parser.parse_args()
    import ray

    described = machine() | {"ray": ray.__version__}
    print(f"{in_words(described)}; ray {ray.__version__}", flush=True)
    with on_this_machine_alone(ray):
        ray.init(**LOCAL_RAY)
    try:
        found = [
            cost(name, make, given.rounds, given.seconds)
            for name, make in (("does nothing", Nothing), ("64×64×3 pixels", Pictures))
        ]
    finally:
        ray.shutdown()
    names = list(found[0])
    cells = [[_in_words(name, row[name]) for name in names] for row in found]
    print(f"\nµs per step of {NUM_ENVS} environments on {NUM_WORKERS} workers")
    print(text_table([names, *cells]))
    if given.out is not None:
        given.out.write_text(json.dumps({"machine": described, "rows": found}, indent=1))


def _in_words(name: str, value: Any) -> str:
    if isinstance(value, Spread):
        digits = 2 if name == "times as long" else 0
        return f"{value.median:.{digits}f} ({value.low:.{digits}f}–{value.high:.{digits}f})"
    if isinstance(value, float):
        return f"{value:.0%}" if name.endswith("share") else f"{value:.0f}"
    return str(value)


if __name__ == "__main__":
    main()
