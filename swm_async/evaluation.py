"""The accounts of an evaluation: returns, lengths and outcomes of whole episodes.

It knows time steps and nothing of what produced them: no pool, policy or World.

Letters: `N` = num_envs, `E` = episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from swm_async.results import Results
from swm_async.rollout import Infos, TimeStep

Success: TypeAlias = str | Callable[[Infos], Any] | None


class Tally:
    """Adds up the time steps of a rollout, row by row, and keeps what each episode came to."""

    def __init__(self, num_envs: int, episodes: int, success: Success = None) -> None:
        """Account for `episodes` episodes on `num_envs` environments.

        Args:
            num_envs: Rows of the time steps.
            episodes: Episodes of the run, numbered from 0.
            success: What makes an episode a success. None: that it terminated. An info key: the
                truth of its last value (NaN, the fill value, is false). A function: what it
                returns for the episode's last infos, see `row_infos`.
        """
        if not (success is None or isinstance(success, str) or callable(success)):
            raise TypeError(f"success must be an info key or a function, found {success!r}")
        self._success = success
        self._running_returns = np.zeros(num_envs, np.float64)
        self._running_lengths = np.zeros(num_envs, np.int64)
        self._successes = np.zeros(episodes, np.bool_)
        self._seeds = np.full(episodes, -1, np.int64)
        self._returns = np.zeros(episodes, np.float64)
        self._lengths = np.zeros(episodes, np.int64)
        self._terminated = np.zeros(episodes, np.bool_)
        self._truncated = np.zeros(episodes, np.bool_)

    def add(self, step: TimeStep) -> int:
        """Account for one time step; returns how many episodes ended with it."""
        if np.count_nonzero(step.first):
            self._running_returns[step.first] = 0.0
            self._running_lengths[step.first] = 0
            return 0
        returns = self._running_returns
        np.add(returns, float64_rewards(step), out=returns, where=step.mask)
        self._running_lengths += step.mask
        ended = step.ended.nonzero()[0].tolist()
        for i in ended:
            self._close(i, step)
        return len(ended)

    def results(self) -> Results:
        """Return `success_rate` (percent) and the arrays `(E,)` over episodes in start order."""
        return Results(
            success_rate=100.0 * sum(self._successes.tolist()) / len(self._successes),
            episode_successes=self._successes,
            seeds=self._seeds,
            episode_returns=self._returns,
            episode_lengths=self._lengths,
            episode_terminated=self._terminated,
            episode_truncated=self._truncated,
        )

    def _close(self, i: int, step: TimeStep) -> None:
        episode = step.episode[i]
        self._seeds[episode] = step.seeds[i]
        self._returns[episode] = self._running_returns[i]
        self._lengths[episode] = self._running_lengths[i]
        self._terminated[episode] = step.terminateds[i]
        self._truncated[episode] = step.truncateds[i]
        self._successes[episode] = self._succeeded(i, step)

    def _succeeded(self, i: int, step: TimeStep) -> bool:
        if self._success is None:
            return bool(step.terminateds[i])
        if callable(self._success):
            return bool(self._success(row_infos(step.infos, i)))
        if self._success not in step.infos:
            raise ValueError(
                f"success={self._success!r} is not in the infos, which hold {sorted(step.infos)}"
            )
        value = _row_value(step.infos[self._success], i)
        if np.size(value) != 1:
            raise ValueError(
                f"success={self._success!r} must be an info of one value per environment, "
                f"found shape {np.shape(value)}"
            )
        return bool(value) and value == value  # NaN differs from itself


def float64_rewards(step: TimeStep) -> npt.NDArray[Any]:
    """Return the rewards of a time step, `(N,)`, as exactly as they were reported.

    A World's environments report them in the infos as float64, where every environment reported
    one; rows outside the time step's mask are stale there.
    """
    reported = step.infos.get("reward")
    if not isinstance(reported, np.ndarray) or "_reward" in step.infos:
        return step.rewards
    return reported[:, 0] if reported.shape == (len(step.mask), 1) else step.rewards


def row_infos(infos: Infos, i: int) -> Infos:
    """Return copies of environment i's infos, without the axes `(N, 1)`, by key."""
    return {key: _row_value(value, i) for key, value in infos.items()}


def _row_value(value: Any, i: int) -> Any:
    """Return environment i's value of an info `(N, 1, ...)`, a list `[[v]]` or flags `(N,)`."""
    if isinstance(value, list):
        return value[i][0]
    row = value[i] if value.ndim == 1 else value[i, 0]
    if isinstance(row, np.ndarray):
        return row.copy()
    return row.clone() if hasattr(row, "clone") else row  # a tensor, else a numpy scalar
