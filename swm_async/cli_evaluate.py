"""The command `swm-async evaluate`: a policy's success in an environment, with videos.

It turns names into an environment and a policy, lets a World evaluate them and prints what came of
it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from swm_async.cli_types import positive
from swm_async.cli_worlds import add_world_arguments, make_policy, make_world, set_policy
from swm_async.terminal import UserError, need

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
    add_world_arguments(parser)
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
    policy = make_policy(given.policy)
    with make_world(given, shape) as world:
        set_policy(world, policy, given.policy)
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
