"""The only home of auto and wait: which environment runs which episode, and when it is reset.

It knows anything with `num_envs`, `reset` and `step`. It must not know processes, pipes, files,
policies' internals or what is done with the time steps; it imports numpy alone.

Letters: `N` = num_envs, `i` = env index, `k` = episode, counted from 0 in start order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

Bools: TypeAlias = npt.NDArray[np.bool_]
Ints: TypeAlias = npt.NDArray[np.int64]
Infos: TypeAlias = dict[str, Any]
Options: TypeAlias = Mapping[str, Any]
Mode: TypeAlias = Literal["auto", "wait"]

MAX_SEED = 2**63 - 1
DRAWN_SEEDS = 2**31
"""Where no seed is given, one below this is drawn: environments of 32-bit seeds take it too."""


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


@dataclass(frozen=True, slots=True)
class TimeStep:
    """What one reset or one step brought.

    The masks and episode numbers are arrays of this time step alone; the arrays in `infos` are
    the pool's, which its next reset or step may overwrite.

    Attributes:
        infos: The pool's infos, `(N, 1, ...)` each. The policy sees this dict next.
        rewards: `(N,) float32`, 0 after a reset and for rows outside `mask`.
        terminateds: `(N,) bool`, False after a reset and for rows outside `mask`.
        truncateds: `(N,) bool`, the same.
        mask: `(N,) bool`, True = this time step is about the row.
        first: `(N,) bool`, True = the row was just reset. All False after a step.
        ended: `(N,) bool`, True = the row's episode ended with this step.
        broken: `(N,) bool`, True = the row's episode was lost with its environment: it does not
            count, and begins again with the next time step.
        episode: `(N,) int64`, the episode each row belongs to (a frozen row's last one), -1 none.
        seeds: `(N,) int64`, the seed of that episode, -1 where there is none.
    """

    infos: Infos
    rewards: npt.NDArray[Any]
    terminateds: Bools
    truncateds: Bools
    mask: Bools
    first: Bools
    ended: Bools
    broken: Bools
    episode: Ints
    seeds: Ints


def rollout(
    pool: Steppable,
    act: Callable[[Infos], Any],
    *,
    episodes: int | None = None,
    max_steps: int | None = None,
    seed: int | Sequence[int] | None = None,
    options: Options | Sequence[Options | None] | None = None,
    mode: Mode = "auto",
    max_episode_steps: int | None = None,
) -> Iterator[TimeStep]:
    """Drive `act` over a pool; yields one time step after each reset and each step.

    The consumer runs between an episode's last step and the reset that follows it. At the first
    action of an episode `infos["_needs_flush"]` `(N,) bool` is True in its row.

    Args:
        pool: The environments. They are used by this run alone until it ends.
        act: From infos to actions `(N, ...)`; rows that take no part are ignored.
        episodes: How many episodes are run, each of which counts. None: without end in mode auto
            (`max_steps` ends the run), one per environment in mode wait.
        max_steps: How often the pool is stepped at most.
        seed: Episode `k` is reset with `seed + k`, or with entry `k` of a list of one per episode.
            None draws a seed afresh.
        options: Reset options, one mapping for all episodes or one entry per episode.
        mode: "auto" resets a finished environment at once for the next episode not yet started;
            "wait" freezes it until all have finished, then starts the next round.
        max_episode_steps: An episode that is not over after so many steps counts as truncated.
            None leaves the length of episodes to the environments.

    Raises:
        ValueError, TypeError: An argument is wrong; raised by this call, nothing has moved.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {get_args(Mode)}, found {mode!r}")
    if episodes is None and max_steps is None:
        raise ValueError("a rollout needs an end: give episodes, max_steps or both, found neither")
    episodes = None if episodes is None else _integer("episodes", episodes, 1)
    max_steps = None if max_steps is None else _integer("max_steps", max_steps, 1)
    if episodes is None and mode == "wait":
        episodes = pool.num_envs
    if max_episode_steps is not None:
        max_episode_steps = _integer("max_episode_steps", max_episode_steps, 1)
    schedule = Schedule(pool.num_envs, episodes, seed, options, mode, max_episode_steps)
    return _lockstep(pool, act, schedule, max_steps)


class Schedule:
    """Which episode each environment runs, and which one it runs next; moves nothing itself.

    Attributes:
        running: `(N,) bool`, True = the environment is in the middle of an episode.
        episode: `(N,) int64`, see `TimeStep`.
        seeds: `(N,) int64`, see `TimeStep`.
    """

    def __init__(
        self,
        num_envs: int,
        episodes: int | None,
        seed: int | Sequence[int] | None,
        options: Options | Sequence[Options | None] | None,
        mode: Mode,
        max_episode_steps: int | None = None,
    ) -> None:
        """Plan `episodes` episodes (None = without end); see `rollout` for the arguments."""
        self._seed = _checked_seed(seed, episodes)
        self._options = _checked_options(options, episodes)
        self._episodes = episodes
        self._waits = mode == "wait"
        self._started = 0
        self._limit = max_episode_steps
        self._steps: Ints = np.zeros(num_envs, np.int64)
        self.running: Bools = np.zeros(num_envs, np.bool_)
        self.episode: Ints = np.full(num_envs, -1, np.int64)
        self.seeds: Ints = np.full(num_envs, -1, np.int64)

    def begin(self) -> Bools:
        """Start the next episodes on all environments; return the rows `(N,) bool` to be reset."""
        return self._start(np.arange(len(self.running)))

    def advance(self, ended: Bools, broken: Bools) -> Bools:
        """Take note of ended and broken episodes `(N,) bool`; return the rows to be reset.

        A broken episode starts again in its row. An ended one is followed by the next episode,
        in mode wait not before all have ended.
        """
        self.running &= ~ended
        if self._waits:
            over = not np.count_nonzero(self.running)
            return self.begin() if over else broken.copy()
        starting = self._start(np.flatnonzero(ended))
        starting |= broken
        return starting

    def note_reset(self, rows: Bools) -> None:
        """Take note that the episodes of `rows` `(N,) bool` are at their first step."""
        self._steps[rows] = 0

    def overdue(self, stepped: Bools) -> Bools | None:
        """Count a step of the rows `stepped`; return those whose steps are used up, None = none."""
        if self._limit is None:
            return None
        self._steps += stepped
        return _some(stepped & (self._steps >= self._limit))

    def reset_arguments(
        self, rows: Bools
    ) -> tuple[list[int | None], Options | list[Options | None] | None]:
        """Return seeds and options of a reset of `rows`, one entry per environment."""
        selected = np.flatnonzero(rows).tolist()
        seeds: list[int | None] = [None] * len(rows)
        for i in selected:
            seeds[i] = int(self.seeds[i])
        if not isinstance(self._options, list):
            return seeds, self._options
        options: list[Options | None] = [None] * len(rows)
        for i in selected:
            options[i] = self._options[self.episode[i]]
        return seeds, options

    def _start(self, rows: Ints) -> Bools:
        """Give the next episodes to `rows` in this order, as long as there are any."""
        if self._episodes is not None:
            rows = rows[: self._episodes - self._started]
        starting = np.zeros(len(self.running), np.bool_)
        starting[rows] = True
        self.episode[rows] = np.arange(self._started, self._started + len(rows))
        if isinstance(self._seed, int):
            self.seeds[rows] = self.episode[rows] + self._seed
        else:
            self.seeds[rows] = self._seed[self.episode[rows]]
        self.running |= starting
        self._started += len(rows)
        return starting


def _lockstep(
    pool: Steppable, act: Callable[[Infos], Any], schedule: Schedule, max_steps: int | None
) -> Iterator[TimeStep]:
    """Reset what has to start, then step all running environments at once, over and over."""
    starting: Bools | None = schedule.begin()
    unseen: Bools | None = None
    passes = 0
    while True:
        while starting is not None:
            unseen = starting if unseen is None else unseen | starting
            time_step = _reset(pool, schedule, starting)
            infos, starting = time_step.infos, _some(time_step.broken.copy())
            yield time_step
            starting = _and_lost(starting, schedule, infos)
        if unseen is not None:
            infos["_needs_flush"], unseen = unseen, None
        time_step = _step(pool, schedule, act(infos))
        infos, passes = time_step.infos, passes + 1
        if np.count_nonzero(time_step.ended) or np.count_nonzero(time_step.broken):
            # Decided before the consumer gets the arrays, which it may write into.
            starting = _some(schedule.advance(time_step.ended, time_step.broken))
        yield time_step
        if passes == max_steps or not np.count_nonzero(schedule.running):
            return
        starting = _and_lost(starting, schedule, infos)


def _reset(pool: Steppable, schedule: Schedule, rows: Bools) -> TimeStep:
    seeds, options = schedule.reset_arguments(rows)
    _, infos = pool.reset(seed=seeds, options=options, mask=_mask(rows))
    schedule.note_reset(rows)
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
        broken=_lost(schedule.running & ~rows, infos),
        episode=schedule.episode.copy(),
        seeds=schedule.seeds.copy(),
    )


def _step(pool: Steppable, schedule: Schedule, actions: Any) -> TimeStep:
    mask = schedule.running.copy()
    _, rewards, terminateds, truncateds, infos = pool.step(actions, mask=_mask(mask))
    overdue = schedule.overdue(mask)
    if overdue is not None:
        truncateds = truncateds | (overdue & ~terminateds)
    ended, broken = terminateds | truncateds, _lost(mask, infos)
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
        episode=schedule.episode.copy(),
        seeds=schedule.seeds.copy(),
    )


def _mask(rows: Bools) -> Bools | None:
    return None if np.count_nonzero(rows) == len(rows) else rows


def _some(rows: Bools) -> Bools | None:
    return rows if np.count_nonzero(rows) else None


def _lost(rows: Bools, infos: Infos) -> Bools:
    """Return those of `rows` whose environment a pool had to build anew."""
    restarted: Bools | None = infos.get("_restarted")
    return np.zeros(len(rows), np.bool_) if restarted is None else rows & restarted


def _and_lost(starting: Bools | None, schedule: Schedule, infos: Infos) -> Bools | None:
    """Add to the rows to be reset those whose worker a call of the consumer has cost."""
    if "_restarted" not in infos:
        return starting
    lost = _lost(schedule.running, infos)
    return _some(lost if starting is None else starting | lost)


def _integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if isinstance(value, bool) or number < low or (high is not None and number > high):
        expected = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
        raise ValueError(f"{name} must be {expected}, found {value!r}")
    return number


def _checked_seed(seed: Any, episodes: int | None) -> int | Ints:
    """Return the seed of episode 0, or the seeds `(episodes,)` of all."""
    if seed is None:
        seed = int(np.random.default_rng().integers(DRAWN_SEEDS))
    if isinstance(seed, str) or not (isinstance(seed, Sequence) or np.ndim(seed) == 1):
        return _integer("seed", seed, 0, MAX_SEED - (1 if episodes is None else episodes) + 1)
    if len(seed) != episodes:
        raise ValueError(
            f"seed must be one integer or a list of one per episode, found {len(seed)} "
            f"for {'no number of' if episodes is None else episodes} episodes"
        )
    seeds = [_integer(f"seed[{k}]", entry, 0, MAX_SEED) for k, entry in enumerate(seed)]
    return np.array(seeds, np.int64)


def _checked_options(options: Any, episodes: int | None) -> Options | list[Options | None] | None:
    if options is None or isinstance(options, Mapping):
        return options
    if isinstance(options, str) or not isinstance(options, Sequence):
        raise TypeError(f"options must be a mapping or a list of them, found {options!r}")
    if len(options) != episodes:
        raise ValueError(
            f"options must be one mapping or a list of one per episode, found {len(options)} "
            f"for {'no number of' if episodes is None else episodes} episodes"
        )
    for k, entry in enumerate(options):
        if entry is not None and not isinstance(entry, Mapping):
            raise TypeError(f"options[{k}] must be a mapping or None, found {entry!r}")
    return list(options)
