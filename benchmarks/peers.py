"""Vector environments of other libraries, as sides of a comparison.

They come with the extra `bench`. `missing` says why one of them cannot be measured here.
Each does the work of the other sides: the same environments, seeds and actions, finished ones
reset at once. They tell that an environment has finished, and not always in which way: both flags
of their outputs hold that.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np

from swm_async.contenders import Outputs, Stepper, Work
from swm_async.terminal import one_line

SUBPROC: Final = "SubprocVecEnv"
SHMEM: Final = "ShmemVectorEnv"
CPP: Final = "EnvPool in C++"

_MODULES: Final = {
    SUBPROC: "stable_baselines3.common.vec_env",
    SHMEM: "tianshou.env",
    CPP: "envpool",
}
_PACKAGES: Final = ("stable-baselines3", "tianshou", "envpool")


def missing(label: str) -> str | None:
    """Why a peer cannot be measured; None = it can."""
    if label not in _MODULES:
        return None
    try:
        importlib.import_module(_MODULES[label])
    except Exception as error:  # foreign packages may raise anything while they are imported
        package = _MODULES[label].partition(".")[0]
        return f"{package} cannot be imported ({one_line(error)})"
    return None


def versions() -> dict[str, str]:
    """The versions of the peers that are installed."""
    found = {}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


class SubprocSide(Stepper):
    """SubprocVecEnv of stable-baselines3: a process per environment, resets within the step."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.label = SUBPROC
        module = importlib.import_module(_MODULES[SUBPROC])
        self._envs = module.SubprocVecEnv(list(work.env_fns), start_method="fork")

    def close(self) -> None:
        self._envs.close()

    def _reset(self, seed: int) -> Any:
        self._envs.seed(seed)  # environment i gets seed + i with the reset
        return self._envs.reset()

    def _pass(self, actions: Any) -> Outputs:
        observations, rewards, finished, _ = self._envs.step(actions)
        return Outputs(observations, rewards, finished, finished)


class ShmemSide(Stepper):
    """ShmemVectorEnv of Tianshou: observations in shared memory; its user resets by number."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.label = SHMEM
        module = importlib.import_module(_MODULES[SHMEM])
        self._envs = module.ShmemVectorEnv(list(work.env_fns))

    def close(self) -> None:
        self._envs.close()

    def _reset(self, seed: int) -> Any:
        count = len(self._work.env_fns)
        return np.concatenate([self._envs.reset(i, seed=seed + i)[0] for i in range(count)])

    def _pass(self, actions: Any) -> Outputs:
        observations, rewards, terminateds, truncateds, _ = self._envs.step(actions)
        finished = terminateds | truncateds
        if finished.any():
            numbers = np.flatnonzero(finished)
            observations[numbers] = self._envs.reset(numbers)[0]
        return Outputs(observations, rewards, finished, finished)


class CppSide(Stepper):
    """CartPole of sail-sg's EnvPool, written in C++, with threads; resets in the step after.

    Its generators are its own: the same seed gives other states than Gymnasium's.
    """

    def __init__(self, work: Work, num_threads: int) -> None:
        super().__init__(work)
        self.label = CPP
        self._envs = importlib.import_module("envpool").make(
            "CartPole-v1",
            env_type="gymnasium",
            num_envs=len(work.env_fns),
            num_threads=num_threads,
            seed=work.seed,
        )
        # In its own dtype, so that nothing is converted in the loop.
        dtype = self._envs.action_space.dtype
        self._work = Work(work.env_fns, [batch.astype(dtype) for batch in work.actions], work.seed)

    def close(self) -> None:
        self._envs.close()

    def _reset(self, seed: int) -> Any:
        return self._envs.reset()[0]

    def _pass(self, actions: Any) -> Outputs:
        observations, rewards, terminateds, truncateds, _ = self._envs.step(actions)
        return Outputs(observations, rewards, terminateds, truncateds)


def peer_side(label: str, work: Work, num_workers: int) -> Callable[[], Stepper]:
    """The maker of a peer's side."""

    def make() -> Stepper:
        if label == CPP:
            return CppSide(work, num_workers)
        return SubprocSide(work) if label == SUBPROC else ShmemSide(work)

    return make
