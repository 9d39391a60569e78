"""Driving a policy over a pool: what a World does, wherever its environments come from.

It hands out what a rollout brings. It must not know how environments are made or reached, nor which
episode runs where: that is the business of the World, the pool and the rollout.

Letters: `N` = num_envs, `k` = episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from swm_async.policy import Policy
from swm_async.pool import EnvPool
from swm_async.replay import Replay
from swm_async.rollout import Bools, Infos, Mode, Options, Schedule, TimeStep, rollout

if TYPE_CHECKING:
    from typing_extensions import Self


class Driver:
    """A pool, a policy, and the flags of the last time step.

    Attributes:
        envs: The EnvPool.
        num_envs: `N`.
        policy: What `set_policy` took, else None.
        rewards: `(N,) float32`, terminateds, truncateds: `(N,) bool`. Those of the last time step
            of a rollout; a reset zeroes its rows; free to be assigned.
    """

    def __init__(self, pool: EnvPool) -> None:
        """Drive the environments of `pool`; `close` closes it."""
        self.envs = pool
        self.num_envs = pool.num_envs
        self.policy: Policy | None = None
        self._replay: Replay | None = None
        self._zero()

    def _zero(self) -> None:
        self.rewards: npt.NDArray[Any] = np.zeros(self.num_envs, np.float32)
        self.terminateds: Bools = np.zeros(self.num_envs, np.bool_)
        self.truncateds: Bools = np.zeros(self.num_envs, np.bool_)

    @property
    def infos(self) -> Infos:
        """The pool's latest infos, `(N, 1, ...)` each; `{}` before the first reset.

        While an evaluation from a dataset runs, they hold what its policy sees, goals included.
        """
        infos = self.envs.infos
        if self._replay is not None:
            self._replay.show(infos)
        return infos

    def set_policy(self, policy: Policy) -> None:
        """Take a policy, tell it of the pool and, where it has a seed, seed it.

        Args:
            policy: Has `get_action(infos)`. Where there is a `set_env` it is called with the pool;
                where there are `seed` (not None) and `set_seed` or else `_set_seed`, the one is
                passed to the other: policies of stable-worldmodel have the former since 0.1.
                The policy before it is told by its `unset_env()`, if there is one.
        """
        if not callable(getattr(policy, "get_action", None)):
            raise TypeError(f"a policy must have get_action(infos), found {policy!r}")
        previous: Any = self.policy
        if previous is not policy and hasattr(previous, "unset_env"):
            previous.unset_env()
        if hasattr(policy, "set_env"):
            policy.set_env(self.envs)
        seed = getattr(policy, "seed", None)
        if seed is not None:
            for name in ("set_seed", "_set_seed"):
                if hasattr(policy, name):
                    getattr(policy, name)(seed)
                    break
        self.policy = policy

    def reset(
        self,
        seed: int | Sequence[int | None] | None = None,
        options: Options | Sequence[Options | None] | None = None,
        mask: Any = None,
    ) -> tuple[Any, Infos]:
        """Reset the environments of `mask` (`(N,) bool`, None = all) and zero their rows here.

        The arguments and the result are those of `EnvPool.reset`.
        """
        result = self.envs.reset(seed=seed, options=options, mask=mask)
        if mask is None:
            self._zero()
        else:
            self.rewards = np.where(mask, np.zeros_like(self.rewards), self.rewards)
            self.terminateds = np.where(mask, False, self.terminateds)
            self.truncateds = np.where(mask, False, self.truncateds)
        return result

    def rollout(
        self,
        episodes: int | None = None,
        max_steps: int | None = None,
        seed: int | None = None,
        options: Options | Sequence[Options | None] | None = None,
        mode: Mode = "auto",
        schedule: Schedule = "lockstep",
        min_ready: int | None = None,
    ) -> Iterator[TimeStep]:
        """Drive the policy; yields one `TimeStep` after each reset and each step.

        Args:
            episodes, max_steps, seed, options, mode: See `swm_async.rollout.rollout`.
            schedule: "lockstep": all running environments are stepped at once, and waited for.
                "ready": the policy is asked as soon as `min_ready` of them wait for an action; one
                that keeps something between calls must take a `mask`, see `Policy`.
            min_ready: For "ready": 1 ... N, None = 1.

        Raises:
            RuntimeError: No policy is set.
            ValueError, TypeError: An argument is wrong; nothing has moved.
        """
        return self._run(
            episodes, max_steps, seed, options, mode, schedule=schedule, min_ready=min_ready
        )

    def _run(
        self,
        episodes: int | None,
        max_steps: int | None,
        seed: int | Sequence[int] | None,
        options: Options | Sequence[Options | None] | None,
        mode: Mode,
        max_episode_steps: int | None = None,
        replay: Replay | None = None,
        schedule: Schedule = "lockstep",
        min_ready: int | None = None,
    ) -> Iterator[TimeStep]:
        steps = rollout(
            self.envs,
            self._policy().get_action,
            episodes=episodes,
            max_steps=max_steps,
            seed=seed,
            options=options,
            mode=mode,
            max_episode_steps=max_episode_steps,
            schedule=schedule,
            min_ready=min_ready,
        )
        return self._follow(steps, replay)

    def _policy(self) -> Policy:
        if self.policy is None:
            raise RuntimeError("no policy set: call world.set_policy(policy) first")
        return self.policy

    def _follow(self, steps: Iterator[TimeStep], replay: Replay | None) -> Iterator[TimeStep]:
        self._replay = replay
        try:
            for step in steps:
                self.rewards = step.rewards
                self.terminateds = step.terminateds
                self.truncateds = step.truncateds
                if replay is not None:
                    replay.note(step)
                    replay.show(step.infos)
                yield step
        finally:
            self._replay = None

    def close(self) -> None:
        """Close the pool; a second call does nothing."""
        self.envs.close()

    def __enter__(self) -> Self:
        """Return the World itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the World; an error under way is not replaced by one of closing."""
        self.envs.__exit__(kind, error, trace)
