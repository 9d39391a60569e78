"""WorkerPolicy: a policy that acts inside the workers, next to each environment.

It knows a pool's calls; what happens in the worker is told by `swm_workers.wrappers.InfoWrapper`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from swm_workers.wrappers import EnvPolicy


class WorkerPolicy:
    """Lets every environment of a World act by a policy of its own, in its worker.

    For experts that read the simulator's internals: no value and no action makes a round trip.
    `factory()` is called once for each environment, in its worker, and gives
    `policy(env, info) → action`. There `env` is the environment inside the World's wrapper
    (`env.unwrapped` is the simulator), and `info` its last report, of a reset or a step, without
    the axes `(N, 1)`; it must not be changed. What the agent's side adds to the infos, as goals of
    a dataset, it does not see. A policy that depends on these two alone gives the same results for
    every number of environments and workers.

    From `World.set_policy` on, until another policy is set, every step of the World's environments
    takes this policy's action, whatever action is passed to it. The infos hold the action taken.

    Args:
        factory: Without arguments; it travels to the workers by cloudpickle.

    Raises:
        TypeError: The factory cannot be called.
    """

    def __init__(self, factory: Callable[[], EnvPolicy]) -> None:
        if not callable(factory):
            raise TypeError(f"WorkerPolicy takes a function without arguments, found {factory!r}")
        self._factory = factory
        self._pool: Any = None
        self._actions: Any = None

    def set_env(self, pool: Any) -> None:
        """Give each environment of the pool its policy.

        Raises:
            TypeError: The environments were not made by a World.
            EnvError: A factory raised.
        """
        if not hasattr(pool.envs[0], "install_policy"):
            raise TypeError(
                "WorkerPolicy needs the environments of a World, which hold its policies; those of "
                "this pool cannot"
            )
        pool.call("install_policy", self._factory)
        space = copy.deepcopy(pool.action_space)
        space.seed(0)
        self._actions = space.sample()
        self._pool = pool

    def unset_env(self) -> None:
        """Take the policies away again; the environments then act as they are told."""
        if self._pool is not None and not self._pool.closed:
            self._pool.call("install_policy", None)
        self._pool = None

    def get_action(self, infos: Mapping[str, Any], mask: Any = None) -> Any:
        """Return actions `(N, ...)` that fit the space; the environments will take their own.

        Args:
            infos: The pool's.
            mask: `(N,) bool`, True = the environment is about to be stepped; None = any may be.

        Raises:
            RuntimeError: No World has taken the policy.
        """
        if self._pool is None:
            raise RuntimeError("WorkerPolicy acts in a World: call world.set_policy(policy) first")
        # A pool that builds failed environments anew shows this key. A new environment has no
        # policy yet; it must be reset before it is stepped, so each reset is the time to look.
        if "_restarted" in infos:
            # The id of a row that was never reset is 0, the fill value.
            begun = (infos["step_idx"][:, 0] == 0) & (infos["id"][:, 0] != 0)
            if mask is not None:
                begun &= mask  # the others may be moving
            if begun.any():
                self._install_again(begun)
        return self._actions

    def _install_again(self, begun: Any) -> None:
        present = self._pool.call("has_policy", mask=begun)
        missing = np.array([found is False for found in present])
        if missing.any():
            self._pool.call("install_policy", self._factory, mask=missing)
