"""Which environment runs which episode, and what a run hands out of it; moves nothing itself.

It knows the masks and numbers of a run alone, neither pools nor policies; it imports numpy alone.

Letters: `N` = num_envs, `k` = episode, counted from 0 in start order.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Bools: TypeAlias = npt.NDArray[np.bool_]
Ints: TypeAlias = npt.NDArray[np.int64]
Infos: TypeAlias = dict[str, Any]
Options: TypeAlias = Mapping[str, Any]
Mode: TypeAlias = Literal["auto", "wait"]
Schedule: TypeAlias = Literal["lockstep", "ready"]

MAX_SEED = 2**63 - 1
DRAWN_SEEDS = 2**31
"""Where no seed is given, one below this is drawn: environments of 32-bit seeds take it too."""


@dataclass(frozen=True, slots=True)
class TimeStep:
    """What one reset or one step brought.

    The masks and episode numbers are arrays of this time step alone; the arrays in `infos` are
    the pool's, which its next reset or step may overwrite. With schedule "ready" rows outside of
    `mask` may be moving while the consumer looks.

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


class Plan:
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
        return some_rows(stepped & (self._steps >= self._limit))

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


def some_rows(rows: Bools) -> Bools | None:
    """Return `rows`, None where there are none."""
    return rows if np.count_nonzero(rows) else None


def lost_rows(rows: Bools, infos: Infos) -> Bools:
    """Return those of `rows` whose environment a pool had to build anew."""
    restarted: Bools | None = infos.get("_restarted")
    return np.zeros(len(rows), np.bool_) if restarted is None else rows & restarted


def checked_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return an integer within its bounds; `ValueError` says what was expected and found."""
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
        last = MAX_SEED - (1 if episodes is None else episodes) + 1
        return checked_integer("seed", seed, 0, last)
    if len(seed) != episodes:
        raise ValueError(
            f"seed must be one integer or a list of one per episode, found {len(seed)} "
            f"for {'no number of' if episodes is None else episodes} episodes"
        )
    seeds = [checked_integer(f"seed[{k}]", entry, 0, MAX_SEED) for k, entry in enumerate(seed)]
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
