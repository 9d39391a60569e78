"""Workers, spaces and shared memory of an engine: how they come to be, and how they end.

Knows nothing of resets, steps and calls.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from swm_async.actions import ActionWriter
from swm_async.backends.base import Backend, Lost, ShardRange
from swm_async.diagnosis import env_error, lost_error, warn_of
from swm_async.errors import SpacesDiffer
from swm_async.exchange import Exchange
from swm_async.infos import InfoStore
from swm_async.reproduce import Recorder
from swm_async.restarts import Restarts
from swm_workers import snapshot
from swm_workers.layout import Array, Form
from swm_workers.protocol import ALL, NEXT_STEP, SAME_STEP, Built, Failure, Whole
from swm_workers.spaces import Space, control_size, control_views, leaves, same_space

_MOST_ENDS = 256
"""Ends of episodes that are noted at most before they are added up."""

_all: weakref.WeakSet[Hosting] = weakref.WeakSet()


class InFlight(NamedTuple):
    """What an interrupted call leaves in doubt: whom it asked, and which rows it moved."""

    workers: Sequence[int]
    rows: Array


class Hosting:
    """``num_envs`` environments on the workers of a backend, and the state of each.

    Args:
        backend: hosts the shards.
        num_envs: N.
        observations: whether batched observations are kept.
        start_timeout_s: seconds for construction; None = any.
        step_timeout_s: seconds for each command of a worker; None = any.
        recorder: remembers how running episodes began.
        restarts: counts failures where what failed is built anew; None = it is not.
        check_spaces: whether all environments must have equal spaces.
        resets: the flag of resets within steps; 0 = there are none.
        reward_dtype: float32 or float64.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        num_envs: int,
        observations: bool,
        start_timeout_s: float | None,
        step_timeout_s: float | None,
        recorder: Recorder,
        restarts: Restarts | None = None,
        check_spaces: bool = True,
        resets: int = 0,
        reward_dtype: Any = np.float32,
    ) -> None:
        self.num_envs = num_envs
        self.whole: list[Whole] = []
        """What travelled whole in the last step's or reset's replies."""
        self.lock = threading.RLock()
        """Held by whoever drives the engine, so that calls of several threads take turns."""
        self._check_spaces = check_spaces
        self._resets = resets
        self._reward_dtype = np.dtype(reward_dtype)
        self.restarts = restarts
        self._recorder = recorder
        self.shards: Sequence[ShardRange] = backend.shards
        self.closed_because: str | None = None
        self.seeds: Array = np.full(num_envs, -1, np.int64)
        self._episode_steps: Array = np.zeros(num_envs, np.int64)
        self._steps_of_all = 0
        self._ends: list[tuple[int, list[int]]] = []
        """Which rows' episodes ended after how many of these steps, in order."""
        self.need_reset: Array = np.ones(num_envs, np.bool_)
        self._some_need_reset = True
        self._backend = backend
        self._timeout_s = step_timeout_s
        self._start_timeout_s = start_timeout_s
        self._in_flight: InFlight | None = None
        try:
            self.action_space, self.observation_space = self._build()
            self._set_up(observations)
        except BaseException:
            backend.close(10.0, polite=True)
            raise
        self.close_at_exit = weakref.finalize(self, _finalize, backend, self.store)
        _all.add(self)

    @property
    def episode_steps(self) -> Array:
        """``(N,) int64``: steps of each running episode."""
        if self._steps_of_all or self._ends:
            self._add_up_steps()
        return self._episode_steps

    def note_ends(self, rows: list[int]) -> None:
        """Episodes of these rows ended in the last step; a reset within steps follows."""
        # A next step that is a reset is none of the new episode.
        unpaid = 1 if self._resets == NEXT_STEP else 0
        self._ends.append((self._steps_of_all + unpaid, rows))
        if len(self._ends) == _MOST_ENDS:
            self._add_up_steps()

    def _add_up_steps(self) -> None:
        """Count the steps without a mask, and the ends, which are noted as they come."""
        self._episode_steps += self._steps_of_all
        for before, rows in self._ends:
            self._episode_steps[rows] = self._steps_of_all - before
        self._steps_of_all = 0
        self._ends.clear()

    def _build(self) -> tuple[Space, Space]:
        results = self._backend.build(self._start_deadline())
        failures = [f for r in results if isinstance(r, Built) for f in r.failures]
        if failures:
            raise env_error(failures, None, None)
        lost = [(s, r) for s, r in zip(self.shards, results, strict=True) if isinstance(r, Lost)]
        if lost:
            raise lost_error(lost, "construction")
        built = [result for result in results if isinstance(result, Built)]
        spaces = [snapshot.loads(result.spaces or b"") for result in built]
        for shard, result, found in zip(self.shards, built, spaces, strict=True):
            if not self._check_spaces:
                break
            for k, name in enumerate(("action_space", "observation_space")):
                if not same_space(spaces[0][k], found[k]):
                    raise _different(shard.first, name, repr(spaces[0][k]), repr(found[k]))
            if result.mismatch is not None:
                raise _different(*result.mismatch)
        return spaces[0]  # type: ignore[no-any-return]  # unpickled

    def _set_up(self, observations: bool) -> None:
        count, backend = self.num_envs, self._backend
        action_leaves = leaves(self.action_space)
        observed = leaves(self.observation_space) if observations else ()
        # What a reset within a step would hide has places of its own behind the others.
        kept = observed * 2 if self._resets == SAME_STEP else observed
        form = Form(count, self.shards[0].last, self._reward_dtype)
        block = backend.new_block(control_size(form, action_leaves))
        self.control = control_views(block.buffer, form, action_leaves)
        self.actions = ActionWriter(self.action_space, action_leaves, count, self.control.actions)
        try:
            self.store = InfoStore(form, kept, block, backend.new_block)
        except BaseException:
            block.close()
            raise
        if self.restarts is not None:
            self.store.add_entry("_restarted", self.restarts.lost_state)
        self._exchange = Exchange(backend, self.store)
        self.has_one_observation_array = (
            len(observed) == 1 and observed[0].path == () and observed[0].dtype is not None
        )
        self._all_rows = np.arange(count)
        self._restarts_of_workers = np.zeros(len(self.shards), np.int64)
        self._all_workers = range(len(self.shards))
        self._all_in_flight = InFlight(self._all_workers, self._all_rows)
        self._all_flags: Sequence[int] = [ALL] * len(self.shards)
        self._all_step_flags: Sequence[int] = [ALL | self._resets] * len(self.shards)
        self._worker_of = np.repeat(
            np.arange(len(self.shards)), [s.last - s.first for s in self.shards]
        )

    def _start_deadline(self) -> float | None:
        return None if self._start_timeout_s is None else time.monotonic() + self._start_timeout_s

    def close(self, timeout_s: float, reason: str) -> list[Failure]:
        """End every worker; returns what closing environments raised. Later calls do nothing."""
        if self.closed_because is not None:
            return []
        self.closed_because = reason
        self.close_at_exit.detach()
        self._in_flight = None
        try:
            return self._backend.close(timeout_s, polite=True)
        finally:
            self.store.close()

    def abandon(self) -> None:
        """In a forked child: refuse every further call, and leave the parent's workers alone."""
        self.lock = threading.RLock()  # another thread of the parent may have held the old one
        if self.closed_because is None and not self._backend.in_process:
            self.closed_because = (
                "this process was forked from the one that built it; build a pool of its own here"
            )
            self.close_at_exit.detach()


def _different(env_index: int, name: str, expected: str, found: str) -> SpacesDiffer:
    return SpacesDiffer(
        f"all environments need the same {name}; environments 0 and {env_index} differ: "
        f"{expected} and {found}"
    )


def _abandon_all() -> None:
    for hosting in list(_all):
        hosting.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def _finalize(backend: Backend, store: InfoStore) -> None:
    """The engine was dropped without being closed, or the interpreter ends."""
    warn_of(backend.close(10.0, polite=True))
    store.close()
