"""The command `swm-async bench`: the speed of a user's own environment in a pool.

It turns an id into work, lets `contenders` measure it, and makes tables, JSON and a chart of the
rows; it measures nothing itself.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from swm_async import advice
from swm_async.benchmarking import in_words, machine
from swm_async.contenders import EnvFn, Row, Work, compare
from swm_async.pictures import plot_speeds
from swm_async.terminal import UserError, need, one_line, text_table

WHAT_BOTH_SIDES_DO = (
    "All sides: the same environments, seeds and actions, finished environments reset at once, "
    "and\nobservations, rewards, flags and infos handed out without a copy. Gymnasium's resets "
    "happen within\nthe step (SAME_STEP), the pool's by reset(mask=finished) after it."
)


@dataclasses.dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        env_id: As `gymnasium.make` takes it, also `module:Id-v0`.
        env_kwargs: More arguments of `gymnasium.make`.
        num_envs: Numbers of environments.
        worker_counts: Numbers of workers; those above the number of environments are left out.
        rounds, seconds, passes: See `swm_async.benchmarking.measure`.
        out: A directory for JSON and PNG, or None.
        seed: Seeds environments and actions.
    """

    env_id: str
    env_kwargs: Mapping[str, Any]
    num_envs: Sequence[int]
    worker_counts: Sequence[int]
    rounds: int
    seconds: float
    passes: int | None
    out: Path | None
    seed: int


def run(request: Request) -> None:
    """Measure, print a table, and write the files that were asked for.

    Raises:
        UserError: The environment cannot be made, or an optional package is missing.
    """
    if not hasattr(gymnasium.vector, "AutoresetMode"):
        raise UserError(f"bench needs gymnasium 1.1 or newer; found {gymnasium.__version__}")
    if request.out is not None:
        need("matplotlib", "plot", "--out")
    env_fn = find_env(request.env_id, request.env_kwargs)
    described = machine()
    print(f"{request.env_id} on {in_words(described)}\n\n{WHAT_BOTH_SIDES_DO}\n", flush=True)
    rows: list[Row] = []
    for num_envs in sorted(set(request.num_envs)):
        workers = [count for count in sorted(set(request.worker_counts)) if count <= num_envs]
        work = Work.of(env_fn, num_envs, request.seed)
        rows += compare(
            work, workers, rounds=request.rounds, seconds=request.seconds, passes=request.passes
        )
        print(f"{num_envs} environments: measured", file=sys.stderr, flush=True)
    print(text_table(table(rows)))
    print(f"\nMedians of {request.rounds} rounds in turns, with their quartiles.")
    print("\n".join(["", *explained(rows)]))
    if request.out is not None:
        title = request.env_id.rpartition(":")[2]
        stem = request.out / f"bench-{title.replace('/', '-')}"
        write_json(stem.with_suffix(".json"), request.env_id, described, request.rounds, rows)
        plot_speeds({title: rows}, in_words(described), stem.with_suffix(".png"))
        print(f"written: {stem.with_suffix('.json')}, {stem.with_suffix('.png')}")


def find_env(env_id: str, env_kwargs: Mapping[str, Any]) -> EnvFn:
    """Return the factory of an id; its module may lie in the working directory.

    Raises:
        UserError: There is no such id, or it cannot be made with these arguments.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file there can hide an installed module
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        gymnasium.spec(name)
        gymnasium.make(env_id, **env_kwargs).close()
    except Exception as error:  # modules and environments are the user's and may raise anything
        raise UserError(f"cannot make {env_id!r}: {one_line(error)}") from error
    return partial(gymnasium.make, env_id, **env_kwargs)


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Lay out rows as text, with a heading that names the units."""
    heading = ["side", "N", "env steps/s", "× SyncVectorEnv", "× AsyncVectorEnv"]
    return [heading] + [
        [
            row.label,
            str(row.num_envs),
            f"{row.rate.median:,.0f}",
            "" if row.against_sync is None else str(row.against_sync),
            "" if row.against_async is None else str(row.against_async),
        ]
        for row in rows
    ]


def explained(rows: Sequence[Row]) -> list[str]:
    """Say where the time goes in the pool with most workers, and how many workers are best."""
    lines = []
    for num_envs in sorted({row.num_envs for row in rows}):
        pools = {
            row.num_workers: row
            for row in rows
            if row.num_envs == num_envs and row.num_workers is not None
        }
        if not pools:
            continue
        most = pools[max(pools)]
        lines.append(f"{num_envs} environments:")
        if most.figures is not None:
            lines += [f"  {most.label}: {text}" for text in advice.held_up_by(most.figures)]
        lines.append(f"  advice: {advice.in_words({n: pool.samples for n, pool in pools.items()})}")
    return lines


def write_json(
    path: Path, env_id: str, described: Mapping[str, Any], rounds: int, rows: Sequence[Row]
) -> None:
    """Write the rows of one environment and the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "environment": env_id,
        "machine": described,
        "rounds": rounds,
        "units": {"rate": "environment steps per second", "against": "times as fast"},
        "rows": [row_data(row) for row in rows],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def row_data(row: Row) -> dict[str, Any]:
    """A row as plain data."""
    data = dataclasses.asdict(row)
    for name in ("rate", "against_sync", "against_async"):
        spread = getattr(row, name)
        data[name] = None if spread is None else spread._asdict()
    return data
