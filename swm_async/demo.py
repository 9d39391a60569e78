"""The command `swm-async demo`: an expert drives the embedded environment on all cores.

It shows what a World does, measures it against the same evaluation in this process, and draws a
contact sheet. It knows World and policies, nothing of pools.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from tqdm import tqdm

from swm_async.arguments import usable_cores
from swm_async.pictures import Frame, contact_sheet, save_png
from swm_async.policy import PointGoalExpert
from swm_async.terminal import UserError, need
from swm_async.world import World

ENV_ID = "swm_async/PointGoal-v0"
IMAGE_SHAPE = (192, 192)
OPTIONS = {"variation": ["all"]}
"""Every episode has walls, colours and a speed of its own."""

_PAIRS = 5
_SHEET_EPISODES, _SHEET_MOMENTS = 6, 8


@dataclass(frozen=True)
class Request:
    """What to show; see the options of the command."""

    num_envs: int
    num_workers: int | None
    episodes: int
    seed: int
    out: Path


def run(request: Request) -> None:
    """Evaluate, compare, draw; prints what came of it.

    Raises:
        UserError: An argument cannot be met, or pillow is missing.
    """
    need("PIL", "pixels", "the contact sheet")
    try:
        world = _world(request.num_envs, request.num_workers)
    except ValueError as error:
        raise UserError(str(error)) from error
    with world:
        workers = world.envs.num_workers
        print(
            f"{ENV_ID}: {request.num_envs} environments with {IMAGE_SHAPE[0]}×{IMAGE_SHAPE[1]} "
            f"pixels on {workers} worker{'' if workers == 1 else 's'} "
            f"({usable_cores()} usable cores)",
            flush=True,
        )
        results = _evaluate(world, request, progress=True)
        rate = results["success_rate"]
        print(f"success rate: {rate:.1f} % of {request.episodes} episodes", flush=True)
        if workers == 0:
            _print_speed(_time([world], request, results)[0], results)
        else:
            with _world(request.num_envs, 0) as reference:
                _evaluate(reference, request)  # warm, as the other one is
                seconds, alone = _time([world, reference], request, results)
            _print_speed(seconds, results)
            _print_speed_up(seconds, alone)
        save_png(contact_sheet(_frames(world, request), _SHEET_MOMENTS), request.out)
    print(f"contact sheet: {request.out.resolve()}")


def _world(num_envs: int, num_workers: int | None) -> World:
    world = World(ENV_ID, num_envs, IMAGE_SHAPE, num_workers=num_workers, render_size=IMAGE_SHAPE)
    world.set_policy(PointGoalExpert())
    return world


def _evaluate(world: World, request: Request, *, progress: bool = False) -> dict[str, Any]:
    return world.evaluate(request.episodes, seed=request.seed, options=OPTIONS, progress=progress)


def _time(worlds: Sequence[World], request: Request, expected: dict[str, Any]) -> list[list[float]]:
    """Let all do the same evaluation in turns, A B B A; returns the seconds of each."""
    seconds: list[list[float]] = [[] for _ in worlds]
    order = list(range(len(worlds)))
    turns = [k for pair in range(_PAIRS) for k in (order if pair % 2 == 0 else reversed(order))]
    for k in tqdm(turns, desc="measure", unit="run"):
        started = perf_counter()
        found = _evaluate(worlds[k], request)
        seconds[k].append(perf_counter() - started)
        if any(not np.array_equal(found[key], expected[key]) for key in expected):
            raise AssertionError("the same evaluation came out differently the second time")
    return seconds


def _print_speed(seconds: Sequence[float], results: dict[str, Any]) -> None:
    steps = int(results["episode_lengths"].sum())
    rate = steps / statistics.median(seconds)
    print(f"speed: {rate:,.0f} environment steps per second")


def _print_speed_up(seconds: Sequence[float], alone: Sequence[float]) -> None:
    ratios = [one / other for one, other in zip(alone, seconds, strict=True)]
    print(
        f"speed-up over num_workers=0: {statistics.median(ratios):.2f} times ({min(ratios):.2f} "
        f"to {max(ratios):.2f} in {len(ratios)} pairs), with equal results"
    )


def _frames(world: World, request: Request) -> list[list[Frame]]:
    """The frames of the first episodes of the evaluation, which are run again."""
    count = min(_SHEET_EPISODES, request.episodes)
    frames: list[list[Frame]] = [[] for _ in range(count)]
    for step in world.rollout(count, seed=request.seed, options=OPTIONS):
        for i in np.flatnonzero(step.mask):
            frames[step.episode[i]].append(step.infos["pixels"][i, 0].copy())
    return frames
