"""The constants of the model of a step's time, how well it predicts, and what it predicts.

    python benchmarks/scaling_model.py            # about two minutes
    python benchmarks/scaling_model.py --markdown docs/scaling.md

The model is in scaling.py. Its constants are fitted to what the coordinator's and the workers'
parts take in pools of some sizes; then the model is compared with the time of steps of other sizes
and loads. Writes scaling_model.json and scaling.png.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import numpy as np
from charts import plot_scaling
from environments import Burn, Nothing
from fits import errors, fit
from growth import Reporting
from reporting import in_microseconds, parser, pass_times, publish, read, timed
from scaling import (
    Constants,
    Load,
    Network,
    balance,
    coordinator_seconds,
    machines_seconds,
    step_seconds,
)
from waiting import burn_here

from swm_async import EnvPool
from swm_async.arguments import usable_cores
from swm_async.benchmarking import Spread, in_words, machine
from swm_async.terminal import markdown_table, need, text_table

COORDINATOR_WORKERS, COORDINATOR_ENVS = (1, 2, 4, 8, 16), (16, 64, 256)
WORKER_ENVS = (4, 16, 64, 256)
REPORTED, REPORTED_SIZES = 16, (4096, 150528)
CORES, ENVS_PER_WORKER = (16, 64, 256), 8
OWN_TIMES = (10e-6, 100e-6, 1e-3, 5e-3)
MACHINES, MACHINE_CORES, PIXELS = (1, 4, 16), 64, 64 * 64 * 3
DRAWN = {"10 µs per environment": 10e-6, "100 µs": 100e-6, "1 ms": 1e-3}


def env_fn_of(load: Load) -> Callable[[], Any]:
    """The factory of environments that take so long, or report so many bytes; not both."""
    if load.env_bytes:
        return partial(Reporting, load.env_bytes)
    return partial(Burn, load.env_s) if load.env_s else Nothing


class LoadSide:
    """Steps of a load; `run` counts what the coordinator and the workers were busy, too."""

    def __init__(self, label: str, load: Load, spin: bool | None = None) -> None:
        self.label = label
        self._pool = EnvPool(
            [env_fn_of(load)] * load.num_envs,
            num_workers=load.num_workers,
            spin=spin,
            observations=not load.env_bytes,
        )
        self._actions = np.zeros(load.num_envs, np.int64)
        self._compute = burn_here(load.policy_s) if load.policy_s else None
        self.coordinator_s: list[float] = []
        self.worker_s: list[float] = []

    def restart(self) -> None:
        self._pool.reset(seed=0)

    def run(self, passes: int) -> float:
        step, actions, compute = self._pool.step, self._actions, self._compute
        busy_before = self._pool.stats()["busy_s"]
        cpu_before, started = thread_time(), perf_counter()
        for _ in range(passes):
            if compute is not None:
                compute()
            step(actions)
        seconds, cpu = perf_counter() - started, thread_time() - cpu_before
        busy = self._pool.stats()["busy_s"] - busy_before
        self.coordinator_s.append(cpu / passes)
        self.worker_s.append(float(busy.mean()) / passes)
        return passes / seconds

    def close(self) -> None:
        self._pool.close()


class Figures(NamedTuple):
    """Medians of a load: a step, and how long the coordinator and a worker were busy in it."""

    step_s: Spread
    coordinator_s: float
    worker_s: float


def figures_of(load: Load, rounds: int, seconds: float, spin: bool | None = None) -> Figures:
    """Measure a load alone."""
    with closing(LoadSide("", load, spin)) as side:
        step_s = pass_times([side], rounds=rounds, seconds=seconds)[""]
        # The warm-up's passes come first.
        busy = (side.coordinator_s[-rounds:], side.worker_s[-rounds:])
        return Figures(step_s, *(float(np.median(each)) for each in busy))


def measure_constants(rounds: int, seconds: float) -> tuple[Constants, dict[str, float]]:
    """Fit the constants; returns them and the fits' mean relative errors.

    The coordinator's own time is that of its thread while it sleeps in its waits (`spin=False`),
    which does not depend on how many cores the workers have.
    """
    terms, found = [], []
    for workers in COORDINATOR_WORKERS:
        for envs in COORDINATOR_ENVS:
            load = Load(envs, workers)
            terms.append([1.0, envs, workers])
            found.append(figures_of(load, rounds, seconds, spin=False).coordinator_s)
    step, row, message = (max(value, 0.0) for value in fit(terms, found))
    coordinator = errors([step + row * n + message * w for _, n, w in terms], found)[0]

    shards, works, walls = [], [], []
    for workers in range(1, min(2, usable_cores()) + 1):
        for envs in WORKER_ENVS:
            load = Load(envs * workers, workers)
            figures = figures_of(load, rounds, seconds)
            shards.append([1.0, envs])
            works.append(figures.worker_s)
            rest = figures.worker_s + step + row * load.num_envs + message * workers
            walls.append(figures.step_s.median - rest)
    command, env = (max(value, 0.0) for value in fit(shards, works))
    worker = errors([command + env * n for _, n in shards], works)[0]

    small, large = (
        figures_of(Load(REPORTED, 1, env_bytes=size), rounds, seconds).worker_s
        for size in REPORTED_SIZES
    )
    byte = max(large - small, 0.0) / (REPORTED * (REPORTED_SIZES[1] - REPORTED_SIZES[0]))
    wake = float(np.median(walls))
    constants = Constants(step, row, message, wake, command, env, byte)
    return constants, {"coordinator": coordinator, "worker": worker}


def checks() -> list[tuple[str, Load]]:
    """Loads to compare the model with; none of them has been fitted to."""
    two = min(2, usable_cores())
    return [
        *((f"nothing, N = {n}", Load(n, w)) for w in (1, two) for n in (8, 32, 128, 512)),
        *((f"burns 100 µs, N = {n}", Load(n, w, 100e-6)) for w in (1, two) for n in (8, 32)),
        ("burns 1 ms, N = 8", Load(8, two, 1e-3)),
        ("12 KB each, N = 32", Load(32, two, env_bytes=PIXELS)),
        ("150 KB each, N = 32", Load(32, two, env_bytes=150528)),
        ("burns 100 µs, N = 8, policy 1 ms", Load(8, two, 100e-6, policy_s=1e-3)),
        ("nothing, N = 512, 4 workers per core", Load(512, 4 * usable_cores())),
    ]


def constants_table(constants: Constants, error: dict[str, float]) -> list[list[str]]:
    c = constants
    per_gb = f"{1e-9 / c.byte:,.1f} GB/s" if c.byte else "too fast to tell"
    coordinator, worker = (f"{error[name]:.0%}" for name in ("coordinator", "worker"))
    return [
        ["constant", "what", "value", "error of the fit"],
        ["step", "coordinator, per step", _us(c.step), coordinator],
        ["row", "coordinator, per environment", _ns(c.row), coordinator],
        ["message", "coordinator, per worker", _us(c.message), coordinator],
        ["wake", "two wake-ups, or what staying awake saves", _us(c.wake), "a median"],
        ["command", "worker, per step", _us(c.command), worker],
        ["env", "worker, per environment", _ns(c.env), worker],
        ["bandwidth", "worker, infos", per_gb, "two points"],
    ]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.2f} µs"


def _ns(seconds: float) -> str:
    return f"{seconds * 1e9:,.0f} ns"


def predicted_table(constants: Constants) -> list[list[str]]:
    """Speed, share of what the cores could do, and the coordinator's part, for large machines."""
    heading = ["environment's own time"]
    for cores in CORES:
        heading += [f"{cores} cores, steps/s", "of the ideal", "coordinator's part"]
    cells = [[*heading, "workers at balance"]]
    for env_s in OWN_TIMES:
        line = [f"{env_s * 1e6:,.0f} µs"]
        for cores in CORES:
            load = Load(ENVS_PER_WORKER * cores, cores, env_s)
            seconds = step_seconds(constants, load, cores)
            line += [
                f"{load.num_envs / seconds:,.0f}",
                f"{ENVS_PER_WORKER * env_s / seconds:.0%}",
                f"{coordinator_seconds(constants, load, cores) / seconds:.0%}",
            ]
        cells.append([*line, f"{balance(constants, ENVS_PER_WORKER, env_s):,.0f}"])
    return cells


def machines_table(constants: Constants) -> list[list[str]]:
    """Environment steps per second of several machines, with what each environment reports."""
    cells = [
        ["environment's own time", "reports", *(f"{m} × {MACHINE_CORES} cores" for m in MACHINES)]
    ]
    for env_s in OWN_TIMES[1:]:
        for size in (0, PIXELS):
            load = Load(ENVS_PER_WORKER * MACHINE_CORES, MACHINE_CORES, env_s, size)
            line = [f"{env_s * 1e6:,.0f} µs", f"{size / 1e3:,.0f} KB"]
            one = step_seconds(constants, load, MACHINE_CORES)
            for count in MACHINES:
                seconds = machines_seconds(constants, load, MACHINE_CORES, count, Network())
                rate, times = count * load.num_envs / seconds, count * one / seconds
                line.append(f"{rate:,.0f} ({times:.1f} ×)")
            cells.append(line)
    return cells


def check_table(
    constants: Constants, measured: dict[tuple[str, Load], Spread]
) -> tuple[list[list[str]], tuple[float, float]]:
    """Predicted and measured steps, and the mean and the worst relative error."""
    cores = usable_cores()
    cells = [["load", "workers", "predicted, µs", "measured, µs", "error"]]
    for (title, load), found in measured.items():
        seconds = step_seconds(constants, load, cores)
        error = f"{seconds / found.median - 1:+.0%}"
        cells.append(
            [title, str(load.num_workers), f"{seconds * 1e6:,.0f}", in_microseconds(found), error]
        )
    predicted = [step_seconds(constants, load, cores) for _, load in measured]
    return cells, errors(predicted, [found.median for found in measured.values()])


def drawn_panels(
    constants: Constants, rounds: int, seconds: float
) -> dict[str, tuple[dict[int, float], dict[int, Spread]]]:
    """Speed over workers as multiples of one worker's: of the model, and measured."""
    panels = {}
    many = [2**k for k in range(9)]
    for title, env_s in DRAWN.items():
        loads = {w: Load(ENVS_PER_WORKER * w, w, env_s) for w in many}
        times = {w: step_seconds(constants, load, w) for w, load in loads.items()}
        found = {}
        for w in range(1, usable_cores() + 1):
            if w in loads:
                found[w] = figures_of(loads[w], rounds, seconds).step_s
        one = found[1].median
        measured = {
            w: Spread(w * one / step.median, w * one / step.high, w * one / step.low)
            for w, step in found.items()
        }
        panels[title] = ({w: w * times[1] / times[w] for w in many}, measured)
    return panels


def main(arguments: Sequence[str] | None = None) -> None:
    given = read(parser(__doc__, rounds=11, seconds=0.1), arguments)
    need("matplotlib", "plot", "the picture")
    described = machine()
    print(in_words(described), flush=True)
    budget = given.rounds, given.seconds
    with timed("constants"):
        constants, fit_errors = measure_constants(*budget)
    with timed("checks"):
        measured = {(title, load): figures_of(load, *budget).step_s for title, load in checks()}
    with timed("workers"):
        panels = drawn_panels(constants, *budget)
    checked, (mean, worst) = check_table(constants, measured)
    off = f"The model is off by {mean:.0%} (root of the mean square), at most by {worst:.0%}."
    tables = {
        "scaling_constants": constants_table(constants, fit_errors),
        "scaling_check": checked,
        "scaling_predicted": predicted_table(constants),
        "scaling_machines": machines_table(constants),
    }
    sections = {name: markdown_table(table) for name, table in tables.items()}
    sections["scaling_constants"] = f"{in_words(described)}.\n\n{sections['scaling_constants']}"
    sections["scaling_check"] += f"\n\n{off}"
    print("\n\n".join(text_table(table) for table in tables.values()))
    print(off)
    given.out.mkdir(parents=True, exist_ok=True)
    picture = given.out / "scaling.png"
    caption = (
        f"{ENVS_PER_WORKER} environments per worker, a core for each worker\n{in_words(described)}"
    )
    plot_scaling(panels, caption, picture)
    data = {
        "machine": described,
        "rounds": given.rounds,
        "constants, s": asdict(constants),
        "errors of the fits": fit_errors,
        "checked": [
            {
                "load": title,
                **asdict(load),
                "predicted_s": step_seconds(constants, load, usable_cores()),
                "measured_s": found._asdict(),
            }
            for (title, load), found in measured.items()
        ],
        "mean error": mean,
        "worst error": worst,
        "network, assumed": asdict(Network()),
    }
    publish(given, "scaling_model", data, sections, [picture])


if __name__ == "__main__":
    main()
