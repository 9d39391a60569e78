"""swm_async: many Gymnasium environments on every core of a machine.

``EnvPool`` steps and resets any subset of its environments in worker processes, and keeps
all that they report in arrays ``(num_envs, 1, ...)``. ``World`` drives a policy over it.
"""

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
    "VectorEnv",
    "WorkerDied",
    "WorkerPolicy",
    "WorkerTimeout",
    "World",
    "load_dataset",
    "make_vec",
    "rollout",
]

_register()
