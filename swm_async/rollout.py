"""Driving a policy over a pool: in lock-step here, as environments get ready in `ready`.

Which environment runs which episode is told by `plan`. This knows anything with `num_envs`, `reset`
and `step`. It must not know processes, pipes, files, policies' internals or what is done with the
time steps; all three import numpy alone.

Letters: `N` = num_envs, `i` = env index, `k` = episode, counted from 0 in start order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast, get_args

import numpy as np
import numpy.typing as npt

from swm_async.plan import (
    MAX_SEED,
    Bools,
    Infos,
    Ints,
    Mode,
    Options,
    Plan,
    Schedule,
    TimeStep,
    checked_integer,
    lost_rows,
    some_rows,
)
from swm_async.ready import Overlapping, overlapped

__all__ = [
    "MAX_SEED", "Bools", "Infos", "Ints", "Mode", "Options", "Schedule", "Steppable", "TimeStep",
    "rollout",
]  # fmt: skip


class Steppable(Protocol):
    """What a rollout needs of a pool; masks are `(N,) bool`, True = takes part, None = all."""

    @property
    def num_envs(self) -> int:
        """Number of environments, `N`."""

    def reset(
        self,
        *,
        seed: Sequence[int | None],
        options: Options | Sequence[Options | None] | None,
        mask: Bools | None,
    ) -> tuple[Any, Infos]:
        """Reset the environments of `mask` with their entries of `seed` and `options`."""

    def step(
        self, actions: Any, mask: Bools | None = None
    ) -> tuple[Any, npt.NDArray[Any], Bools, Bools, Infos]:
        """Step the environments of `mask`: observations, rewards, two flags, infos."""


def rollout(
    pool: Steppable,
    act: Callable[..., Any],
    *,
    episodes: int | None = None,
    max_steps: int | None = None,
    seed: int | Sequence[int] | None = None,
    options: Options | Sequence[Options | None] | None = None,
    mode: Mode = "auto",
    max_episode_steps: int | None = None,
    schedule: Schedule = "lockstep",
    min_ready: int | None = None,
) -> Iterator[TimeStep]:
    """Drive `act` over a pool; yields one time step after each reset and each step.

    The consumer runs between an episode's last step and the reset that follows it. At the first
    action of an episode `infos["_needs_flush"]` `(N,) bool` is True in its row.

    In lock-step all running environments are stepped at once, and the slowest is waited for. With
    schedule "ready" the policy chooses actions as soon as `min_ready` environments wait for one,
    and those begin to step while others are still at their last. The rows of others may change
    while it looks, and what it returns for them is ignored. A policy that keeps something between
    two calls must know whom it is asked for: where `act` has a parameter named `mask`, it is called
    `act(infos, mask=ready)`, `(N,) bool`, True = the action will be taken. Where the action depends
    on its row's infos alone, and all environments are alike, both schedules run the same episodes.

    Args:
        pool: The environments. They are used by this run alone until it ends.
        act: From infos to actions `(N, ...)`; rows that take no part are ignored. "ready" gives it
            the mask too, see above.
        episodes: How many episodes are run, each of which counts. None: without end in mode auto
            (`max_steps` ends the run), one per environment in mode wait.
        max_steps: How often the policy is asked, and the pool stepped, at most. What is under way
            then is still yielded.
        seed: Episode `k` is reset with `seed + k`, or with entry `k` of a list of one per episode.
            None draws a seed afresh.
        options: Reset options, one mapping for all episodes or one entry per episode.
        mode: "auto" resets a finished environment at once for the next episode not yet started;
            "wait" freezes it until all have finished, then starts the next round.
        max_episode_steps: An episode that is not over after so many steps counts as truncated.
            None leaves the length of episodes to the environments.
        schedule: "lockstep" or "ready"; the latter needs a pool with `send`, `send_reset`, `recv`
            and `busy`.
        min_ready: For "ready": how many waiting environments are enough, 1 ... N; None = 1. Where
            fewer are running, all of them are.

    Raises:
        ValueError, TypeError: An argument is wrong; raised by this call, nothing has moved.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {get_args(Mode)}, found {mode!r}")
    if episodes is None and max_steps is None:
        raise ValueError("a rollout needs an end: give episodes, max_steps or both, found neither")
    episodes = None if episodes is None else checked_integer("episodes", episodes, 1)
    max_steps = None if max_steps is None else checked_integer("max_steps", max_steps, 1)
    if episodes is None and mode == "wait":
        episodes = pool.num_envs
    if max_episode_steps is not None:
        max_episode_steps = checked_integer("max_episode_steps", max_episode_steps, 1)
    enough = _checked_schedule(pool, schedule, min_ready)
    plan = Plan(pool.num_envs, episodes, seed, options, mode, max_episode_steps)
    if enough is None:
        return _lockstep(pool, act, plan, max_steps)
    return overlapped(cast(Overlapping, pool), act, plan, max_steps, enough)


def _checked_schedule(pool: Steppable, schedule: Schedule, min_ready: int | None) -> int | None:
    """Return how many waiting environments are enough, None in lock-step."""
    if schedule not in get_args(Schedule):
        raise ValueError(f"schedule must be one of {get_args(Schedule)}, found {schedule!r}")
    if schedule == "lockstep":
        if min_ready is not None:
            raise ValueError(f"min_ready is for schedule='ready', found {min_ready!r} in lock-step")
        return None
    missing = [name for name in ("send", "send_reset", "recv", "busy") if not hasattr(pool, name)]
    if missing:
        raise TypeError(
            f"schedule='ready' needs a pool with send, send_reset, recv and busy, found "
            f"{type(pool).__name__} without {', '.join(missing)}"
        )
    return 1 if min_ready is None else checked_integer("min_ready", min_ready, 1, pool.num_envs)


def _lockstep(
    pool: Steppable, act: Callable[[Infos], Any], plan: Plan, max_steps: int | None
) -> Iterator[TimeStep]:
    """Reset what has to start, then step all running environments at once, over and over."""
    starting: Bools | None = plan.begin()
    unseen: Bools | None = None
    passes = 0
    while True:
        while starting is not None:
            unseen = starting if unseen is None else unseen | starting
            time_step = _reset(pool, plan, starting)
            infos, starting = time_step.infos, some_rows(time_step.broken.copy())
            yield time_step
            starting = _and_lost(starting, plan, infos)
        if unseen is not None:
            infos["_needs_flush"], unseen = unseen, None
        time_step = _step(pool, plan, act(infos))
        infos, passes = time_step.infos, passes + 1
        if np.count_nonzero(time_step.ended) or np.count_nonzero(time_step.broken):
            # Decided before the consumer gets the arrays, which it may write into.
            starting = some_rows(plan.advance(time_step.ended, time_step.broken))
        yield time_step
        if passes == max_steps or not np.count_nonzero(plan.running):
            return
        starting = _and_lost(starting, plan, infos)


def _reset(pool: Steppable, plan: Plan, rows: Bools) -> TimeStep:
    seeds, options = plan.reset_arguments(rows)
    _, infos = pool.reset(seed=seeds, options=options, mask=_mask(rows))
    plan.note_reset(rows)
    num_envs = len(rows)
    return TimeStep(
        infos=infos,
        rewards=np.zeros(num_envs, np.float32),
        terminateds=np.zeros(num_envs, np.bool_),
        truncateds=np.zeros(num_envs, np.bool_),
        mask=rows.copy(),
        first=rows.copy(),
        ended=np.zeros(num_envs, np.bool_),
        # A worker that died in this reset took the running episodes of its shard along.
        broken=lost_rows(plan.running & ~rows, infos),
        episode=plan.episode.copy(),
        seeds=plan.seeds.copy(),
    )


def _step(pool: Steppable, plan: Plan, actions: Any) -> TimeStep:
    mask = plan.running.copy()
    _, rewards, terminateds, truncateds, infos = pool.step(actions, mask=_mask(mask))
    overdue = plan.overdue(mask)
    if overdue is not None:
        truncateds = truncateds | (overdue & ~terminateds)
    ended, broken = terminateds | truncateds, lost_rows(mask, infos)
    ended &= ~broken
    return TimeStep(
        infos=infos,
        rewards=rewards,
        terminateds=terminateds,
        truncateds=truncateds,
        mask=mask,
        first=np.zeros(len(mask), np.bool_),
        ended=ended,
        broken=broken,
        episode=plan.episode.copy(),
        seeds=plan.seeds.copy(),
    )


def _mask(rows: Bools) -> Bools | None:
    return None if np.count_nonzero(rows) == len(rows) else rows


def _and_lost(starting: Bools | None, plan: Plan, infos: Infos) -> Bools | None:
    """Add to the rows to be reset those whose worker a call of the consumer has cost."""
    if "_restarted" not in infos:
        return starting
    lost = lost_rows(plan.running, infos)
    return some_rows(lost if starting is None else starting | lost)
