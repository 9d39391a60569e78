"""The command `swm-async evaluate`: a policy's success in an environment, with videos.

It turns names into an environment and a policy, lets a World evaluate them and prints what came of
it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from swm_async.cli_types import count, keyword, positive
from swm_async.errors import PoolError
from swm_async.policy import RandomPolicy
from swm_async.terminal import UserError, need, one_line
from swm_async.worker_policy import WorkerPolicy
from swm_async.world import World

VIDEO_SHAPE = (256, 256)
"""Height and width of videos where no other is asked for."""


def add_parser(commands: Any) -> None:
    """Add the command to those of `swm-async`."""
    parser = commands.add_parser(
        "evaluate",
        help="run episodes of a policy and print its success rate, returns and lengths",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "env_id", metavar="ENV_ID", help="as gymnasium.make takes it, also module:Id-v0"
    )
    parser.add_argument(
        "--policy",
        metavar="MODULE:FACTORY",
        help="makes the policy when called without arguments; None = random actions",
    )
    parser.add_argument("--episodes", type=positive, default=100, metavar="E")
    parser.add_argument("--num-envs", type=positive, default=16, metavar="N")
    parser.add_argument(
        "--num-workers",
        type=count,
        metavar="W",
        help="worker processes, 0 = in this process; None = one per usable core",
    )
    parser.add_argument("--seed", type=count, default=0)
    parser.add_argument(
        "--max-episode-steps",
        type=positive,
        metavar="T",
        help="time limit; None = the environment's own",
    )
    parser.add_argument(
        "--success", metavar="KEY", help="info that tells success at the end; None = terminated"
    )
    parser.add_argument(
        "--image-shape",
        type=positive,
        nargs=2,
        metavar=("H", "W"),
        help="size of the pixels in the infos; None = no pixels, with --video 256 256",
    )
    parser.add_argument("--video", type=Path, metavar="DIR", help="where to write one per episode")
    parser.add_argument(
        "--env-kwarg",
        type=keyword,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of gymnasium.make; may be repeated",
    )


def run(given: argparse.Namespace) -> None:
    """Evaluate and print the summary.

    Raises:
        UserError: An argument cannot be met, or a package is missing.
    """
    shape = tuple(given.image_shape) if given.image_shape else None
    if given.video is not None:
        need("imageio", "video", "a video")
        need("imageio_ffmpeg", "video", "a video")
        shape = shape or VIDEO_SHAPE
    if shape is not None:
        need("PIL", "pixels", "resizing pixels")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file there can hide an installed module
    policy = _policy(given.policy)
    with _world(given, shape) as world:
        try:
            world.set_policy(policy)
        except (TypeError, PoolError) as error:
            raise UserError(f"--policy {given.policy}: {one_line(error)}") from error
        results = world.evaluate(
            given.episodes,
            seed=given.seed,
            video=given.video,
            success=None if given.success is None else partial(_truth, given.success),
            progress=True,
        )
    print(results.summary())
    if given.video is not None:
        print(f"videos        {given.video.resolve()}")


def _truth(key: str, infos: Mapping[str, Any]) -> bool:
    """Read an episode's last info of this key."""
    value = infos.get(key)
    if value is None or np.size(value) != 1:
        raise UserError(f"--success {key}: no info of one value; there are {sorted(infos)}")
    return bool(value) and value == value  # NaN, the fill value, differs from itself


def _world(given: argparse.Namespace, shape: Any) -> World:
    try:
        return World(
            given.env_id,
            given.num_envs,
            shape,
            given.max_episode_steps,
            add_pixels=shape is not None,
            num_workers=given.num_workers,
            **dict(given.env_kwarg),
        )
    except (gymnasium.error.Error, ImportError, TypeError, ValueError, PoolError) as error:
        raise UserError(f"cannot make {given.env_id}: {one_line(error)}") from error


def _policy(name: str | None) -> Any:
    if name is None:
        return RandomPolicy()
    module, separator, factory = name.partition(":")
    if not (separator and module and factory):
        raise UserError(f"--policy must be MODULE:FACTORY, found {name!r}")
    try:
        made: Any = importlib.import_module(module)
        for part in factory.split("."):
            made = getattr(made, part)
        policy = made()
    except Exception as error:  # a user's module and factory may raise anything
        raise UserError(f"--policy {name}: {one_line(error)}") from error
    if not callable(getattr(policy, "get_action", None)):
        raise UserError(
            f"--policy {name} must make a policy with get_action(infos), or a "
            f"{WorkerPolicy.__name__}; it made {policy!r}"
        )
    return policy
