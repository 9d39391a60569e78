"""The rollout that asks the policy as soon as some environments wait for an action.

It knows the overlapping half of a pool: `send`, `send_reset`, `recv`. Which environment runs which
episode is told by `plan`; like that it imports numpy alone.

Each environment is, at any time, in one of these states::

    frozen ── send_reset ──▶ resetting ── recv ──▶ waiting ── send ──▶ stepping ── recv ──▶ waiting
       ▲                                                                                │
       └───────────────────────────── its episode has ended ────────────────────────────┘

Letters: `N` = num_envs.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from swm_async.plan import Bools, Infos, Options, Plan, TimeStep, lost_rows


class Overlapping(Protocol):
    """What such a rollout needs of a pool; masks are `(N,) bool`, True = takes part."""

    @property
    def num_envs(self) -> int:
        """Number of environments, `N`."""

    @property
    def busy(self) -> Bools:
        """`(N,) bool`: environments that were sent something and not received since."""

    def send(self, actions: Any, mask: Bools | None = None) -> None:
        """Start steps of idle environments."""

    def send_reset(
        self,
        *,
        seed: Sequence[int | None],
        options: Options | Sequence[Options | None] | None,
        mask: Bools | None,
    ) -> None:
        """Start resets of idle environments."""

    def recv(
        self, mask: Bools | None = None, min_envs: int | None = None
    ) -> tuple[Any, npt.NDArray[Any], Bools, Bools, Infos, Bools]:
        """Wait for busy environments: what `step` returns, and the rows that are idle again."""


def takes_mask(act: Callable[..., Any]) -> bool:
    """Whether a policy's function has a parameter named `mask`; one of `**kwargs` is none."""
    try:
        parameter = inspect.signature(act).parameters.get("mask")
    except (TypeError, ValueError):  # some compiled functions do not tell
        return False
    return parameter is not None and parameter.kind in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )


def overlapped(
    pool: Overlapping, act: Callable[..., Any], plan: Plan, max_steps: int | None, min_ready: int
) -> Iterator[TimeStep]:
    """Drive `act` over a pool; see `swm_async.rollout.rollout`, whose schedule "ready" this is."""
    run = _Run(pool, act, plan, max_steps, min_ready)
    try:
        yield from run.time_steps()
    finally:
        run.finish()


class _Run:
    """One run: which of its environments are resetting, waiting and stepping."""

    def __init__(
        self,
        pool: Overlapping,
        act: Callable[..., Any],
        plan: Plan,
        max_steps: int | None,
        min_ready: int,
    ) -> None:
        self._pool = pool
        self._act = act
        self._with_mask = takes_mask(act)
        self._plan = plan
        self._passes_left = max_steps
        self._min_ready = min_ready
        self._infos: Infos = {}
        self._starting = plan.begin()
        self._resetting, self._waiting, self._stepping, self._unseen = np.zeros(
            (4, pool.num_envs), np.bool_
        )
        """`_unseen`: at the first step of an episode, which the policy has not seen yet."""

    def time_steps(self) -> Iterator[TimeStep]:
        while True:
            if self._passes_left != 0:
                self._begin_again()
                if self._is_enough_waiting():
                    self._step()
            if not np.count_nonzero(self._resetting | self._stepping):
                return
            yield from self._receive()

    def finish(self) -> None:
        """Leave the pool idle: whoever uses it next must find nothing under way.

        What fails now can no longer be raised, since an error may be under way, or the consumer
        has left.
        """
        pool, before = self._pool, -1
        while not getattr(pool, "closed", False):
            busy = int(np.count_nonzero(pool.busy))
            if busy in (0, before):
                return  # another try would not change anything either
            before = busy
            try:
                pool.recv()
            except Exception as error:
                warnings.warn(f"in a step that nobody waited for: {error}", stacklevel=2)

    def _begin_again(self) -> None:
        """Reset what has to start, and what a call of the consumer has cost its worker."""
        idle = ~(self._resetting | self._stepping)
        rows = self._starting | lost_rows(self._plan.running & idle, self._infos)
        self._starting = np.zeros_like(rows)
        if not np.count_nonzero(rows):
            return
        self._waiting &= ~rows
        seeds, options = self._plan.reset_arguments(rows)
        self._pool.send_reset(seed=seeds, options=options, mask=rows)
        self._resetting |= rows

    def _is_enough_waiting(self) -> bool:
        count = int(np.count_nonzero(self._waiting))
        if count >= self._min_ready:
            return True
        is_any_busy = np.count_nonzero(self._resetting | self._stepping) > 0
        return count > 0 and not is_any_busy

    def _step(self) -> None:
        """Ask the policy for those that wait, and start their steps."""
        ready, infos = self._waiting.copy(), self._infos
        flushed = self._unseen & ready
        if np.count_nonzero(flushed):
            infos["_needs_flush"] = flushed
        actions = self._act(infos, mask=ready.copy()) if self._with_mask else self._act(infos)
        self._pool.send(actions, mask=ready)
        self._unseen &= ~ready
        self._waiting &= ~ready
        self._stepping |= ready
        if self._passes_left is not None:
            self._passes_left -= 1

    def _receive(self) -> Iterator[TimeStep]:
        """Wait for as many as are missing; yields what their steps brought, then their resets."""
        busy = np.count_nonzero(self._resetting | self._stepping)
        missing = self._min_ready - np.count_nonzero(self._waiting)
        _, rewards, terminateds, truncateds, infos, ready = self._pool.recv(
            min_envs=int(min(max(missing, 1), busy))
        )
        self._infos = infos
        stepped, reset = ready & self._stepping, ready & self._resetting
        self._stepping &= ~ready
        self._resetting &= ~ready
        # A worker that died took waiting environments of its shard along, too.
        broken = lost_rows(self._plan.running & ~(self._resetting | self._stepping), infos)
        reset &= ~broken
        self._waiting = (self._waiting | ready) & ~broken
        self._unseen = (self._unseen | reset) & ~broken
        self._plan.note_reset(reset)
        overdue = self._plan.overdue(stepped)
        if overdue is not None:
            truncateds = truncateds | (overdue & ~terminateds)
        ended = (terminateds | truncateds) & stepped & ~broken
        self._waiting &= ~ended
        plan, nothing = self._plan, np.zeros_like(ready)
        # Steps first: whoever adds starts of episodes to the infos must know who has left his.
        found = (
            [
                TimeStep(
                    infos=infos,
                    rewards=rewards,
                    terminateds=terminateds,
                    truncateds=truncateds,
                    mask=stepped,
                    first=nothing,
                    ended=ended,
                    broken=broken,
                    episode=plan.episode.copy(),
                    seeds=plan.seeds.copy(),
                )
            ]
            if np.count_nonzero(stepped | broken)
            else []
        )
        if np.count_nonzero(reset):
            found.append(_first_step(infos, reset, plan))
        if np.count_nonzero(ended | broken):
            # Decided before the consumer gets the arrays, which it may write into.
            self._starting = plan.advance(ended, broken)
        yield from found


def _first_step(infos: Infos, reset: Bools, plan: Plan) -> TimeStep:
    count = len(reset)
    return TimeStep(
        infos=infos,
        rewards=np.zeros(count, np.float32),
        terminateds=np.zeros(count, np.bool_),
        truncateds=np.zeros(count, np.bool_),
        mask=reset.copy(),
        first=reset,
        ended=np.zeros(count, np.bool_),
        broken=np.zeros(count, np.bool_),
        episode=plan.episode.copy(),
        seeds=plan.seeds.copy(),
    )
