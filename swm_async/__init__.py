"""swm_async: many Gymnasium environments on every core of a machine.

``EnvPool`` steps and resets any subset of its environments in worker processes, and keeps
all that they report in arrays ``(num_envs, 1, ...)``. ``World`` drives a policy over it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from swm_async.data import load_dataset
from swm_async.errors import (
    EnvError,
    EnvFailure,
    InfoTypeError,
    InfoValueError,
    PoolError,
    WorkerDied,
    WorkerTimeout,
)
from swm_async.policy import NoisyPolicy, PointGoalExpert, Policy, RandomPolicy
from swm_async.pool import EnvPool
from swm_async.results import Results
from swm_async.rollout import TimeStep, rollout
from swm_async.vector import VectorEnv, make_vec
from swm_async.worker_policy import WorkerPolicy
from swm_async.world import World
from swm_workers.point_goal import register as _register

if TYPE_CHECKING:
    from swm_async.tuning import Tuning, autotune

__version__ = "0.1.0"

__all__ = [
    "EnvError",
    "EnvFailure",
    "EnvPool",
    "InfoTypeError",
    "InfoValueError",
    "NoisyPolicy",
    "PointGoalExpert",
    "Policy",
    "PoolError",
    "RandomPolicy",
    "Results",
    "TimeStep",
    "Tuning",
    "VectorEnv",
    "WorkerDied",
    "WorkerPolicy",
    "WorkerTimeout",
    "World",
    "autotune",
    "load_dataset",
    "make_vec",
    "rollout",
]

_register()

if not TYPE_CHECKING:  # a type checker must not take any name for one of this package

    def __getattr__(name: str) -> Any:
        # What measures is loaded only where it is used.
        if name in ("Tuning", "autotune"):
            return getattr(importlib.import_module("swm_async.tuning"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
