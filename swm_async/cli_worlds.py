"""From names on the command line to a World and a policy; what is wrong becomes one line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

import gymnasium

from swm_async.cli_types import count, keyword, positive
from swm_async.errors import PoolError
from swm_async.policy import RandomPolicy
from swm_async.terminal import UserError, one_line
from swm_async.worker_policy import WorkerPolicy
from swm_async.world import World


def add_world_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that tell which World, which policy and how many episodes."""
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
        "--env-kwarg",
        type=keyword,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of gymnasium.make; may be repeated",
    )


def make_world(given: argparse.Namespace, shape: Any) -> World:
    """Build the World of `add_world_arguments`, with pixels of `shape` `(H, W)`, None = without.

    Raises:
        UserError: It cannot be built.
    """
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


def make_policy(name: str | None) -> Any:
    """Make the policy of `MODULE:FACTORY`, also from the working directory; None = random.

    Raises:
        UserError: It cannot be made, or is no policy.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file there can hide an installed module
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


def set_policy(world: World, policy: Any, name: str | None) -> None:
    """Let the World take a policy of this name.

    Raises:
        UserError: It does not.
    """
    try:
        world.set_policy(policy)
    except (TypeError, PoolError) as error:
        raise UserError(f"--policy {name}: {one_line(error)}") from error
