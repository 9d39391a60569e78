"""From time steps to whole episodes, and to a writer in the order in which they were started.

It knows time steps, the handles of a pool, and writers; which episode runs where is the rollout's
affair, what a file looks like the formats'.

An episode that is over waits until all that were started before it have been written. In lock-step
no other environment makes more than 2L rows while one of L steps runs, so the memory stays within
some `2NL` rows, as much as a few times all running episodes take. With schedule "ready" quicker
environments make as many times more.

Letters: `N` = num_envs, `i` = env index, `E` = episodes, `T` = rows of an episode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from swm_async.data.columns import Array, Column, Kind, fill
from swm_async.data.episodes import Episode, Writer
from swm_async.data.files import Mode, check_mode
from swm_async.data.formats import format_for
from swm_async.progress import progress_bar
from swm_async.rollout import Infos, Options, Schedule, TimeStep
from swm_async.tracks import Track

HOOK = "get_episode_data"
"""A method of environments: returns a dict of what belongs to the whole episode."""


class Recorder:
    """Gathers the rows of running episodes and hands whole ones over in their start order.

    Attributes:
        written: Episodes handed over.
        lengths: `(E,) int64`, steps of each episode that is over.
        seeds: `(E,) int64`, the seed of each episode that is over, else -1.
    """

    def __init__(
        self,
        num_envs: int,
        episodes: int,
        write: Callable[[Episode], object],
        episode_data: Callable[[int], Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Record `episodes` episodes on `num_envs` environments.

        Args:
            num_envs: Rows of the time steps.
            episodes: Episodes of the run, numbered from 0.
            write: Takes each episode.
            episode_data: Called with i after the last step of an episode: what belongs to the
                whole of it, None = nothing.
        """
        self._write = write
        self._episode_data = episode_data
        self._tracks: dict[str, Track] = {}
        self._rows = np.zeros(num_envs, np.int64)
        self._waiting: dict[int, Episode] = {}
        self.written = 0
        self.lengths = np.zeros(episodes, np.int64)
        self.seeds = np.full(episodes, -1, np.int64)

    def add(self, step: TimeStep) -> int:
        """Keep the rows of one time step; returns how many episodes have been written."""
        started = step.first.nonzero()[0]
        if len(started):
            self._rows[started] = 0
            for track in self._tracks.values():
                track.restart(started)
        # A broken episode begins again with a reset, which discards what there is of it.
        self._keep(step.infos, step.mask.nonzero()[0])
        before = self.written
        for i in step.ended.nonzero()[0].tolist():
            self._end(i, int(step.episode[i]), int(step.seeds[i]))
        while self.written in self._waiting:
            self._write(self._waiting.pop(self.written))
            self.written += 1
        return self.written - before

    def _keep(self, infos: Infos, envs: Any) -> None:
        rows = self._rows[envs]
        for key, values in infos.items():
            if key.startswith("_"):
                continue
            track = self._tracks.get(key)
            if track is None:
                track = self._tracks[key] = Track(len(self._rows))
            try:
                track.put(values, envs, rows, infos.get(f"_{key}"))
            except TypeError as error:
                raise _unrecordable(key, error) from error
        self._rows[envs] += 1

    def _end(self, i: int, episode: int, seed: int) -> None:
        length = int(self._rows[i])
        columns = {}
        for key in sorted(self._tracks):
            try:
                column = self._tracks[key].column(i, length)
            except TypeError as error:
                raise _unrecordable(key, error) from error
            if column is not None:
                is_action = key == "action" or key.startswith("action.")
                columns[key] = shifted(column) if is_action else column
        data = None if self._episode_data is None else self._episode_data(i)
        self._waiting[episode] = Episode(columns, data)
        self.lengths[episode], self.seeds[episode] = length - 1, seed


def shifted(column: Column) -> Column:
    """Move actions up by one row, from the step's report to the row where they were taken.

    The last row, where none was taken, is NaN, the lowest integer, False or an empty text.
    """
    values = np.roll(column.values, -1, axis=0)
    form = column.form
    last: Array | str | int = fill(form)
    if form.kind is Kind.JSON:
        values, last = np.array([*values[:-1].tolist(), "null"]), "null"
    elif form.dtype.kind in "iu":
        last = np.iinfo(form.dtype).min
    values[-1] = last
    return Column(form, values, max(column.first - 1, 0))


def collect(
    world: Any,
    path: str | os.PathLike[str] | None,
    episodes: int | None,
    *,
    seed: int | None,
    options: Options | Sequence[Options | None] | None,
    format: str | None,
    writer: Writer | None,
    mode: Mode,
    progress: bool,
    schedule: Schedule,
    min_ready: int | None,
) -> dict[str, Any]:
    """Record episodes of a World; see `World.collect`, whose body this is."""
    if (path is None) == (writer is None):
        found = "neither" if path is None else "both"
        raise ValueError(f"collect needs exactly one of path and writer, found {found}")
    check_mode(mode)
    if writer is not None and not callable(getattr(writer, "write_episode", None)):
        raise TypeError(f"a writer must have write_episode(episode), found {writer!r}")
    if writer is not None and format is not None:
        raise ValueError("format belongs to a path; a writer has its own")
    chosen = None if path is None else format_for(Path(path), format)
    count = world.num_envs if episodes is None else episodes
    steps = world.rollout(count, seed=seed, options=options, schedule=schedule, min_ready=min_ready)
    with _opened(chosen, path, mode, writer) as target:
        wants_data = getattr(target, "takes_episode_data", False)
        data = EpisodeData(world.envs) if wants_data else None
        recorder = Recorder(world.num_envs, count, target.write_episode, data)
        with progress_bar(count, "collect", shown=progress) as advance:
            for step in steps:
                advance(recorder.add(step))
    return {
        "path": None if path is None else Path(path),
        "episode_lengths": recorder.lengths,
        "seeds": recorder.seeds,
    }


class EpisodeData:
    """Asks the unwrapped environments for what belongs to the whole of their episodes."""

    def __init__(self, pool: Any) -> None:
        """Ask the environments of `pool`, `pool.envs[i]`; a pool without them has no such data."""
        self._envs = getattr(pool, "envs", None)
        self._have: dict[int, bool] = {}

    def __call__(self, i: int) -> Mapping[str, Any] | None:
        """Return what environment i tells of its episode, None if it has no such method."""
        if self._envs is None:
            return None
        env = self._envs[i].unwrapped
        if i not in self._have:
            self._have[i] = hasattr(env, HOOK)
        if not self._have[i]:
            return None
        data = getattr(env, HOOK)()
        if not isinstance(data, Mapping):
            raise TypeError(f"{HOOK}() of environment {i} must return a dict, found {data!r}")
        return data


@contextmanager
def _opened(chosen: Any, path: Any, mode: Mode, writer: Writer | None) -> Iterator[Any]:
    """Yield the caller's writer, which stays open, or one for the path, which is closed."""
    if writer is not None:
        yield writer
        return
    own = chosen.open_writer(Path(path), mode)
    try:
        yield own
    finally:
        own.close()


def _unrecordable(key: str, error: TypeError) -> TypeError:
    return TypeError(
        f"info {key!r} cannot be recorded: {error}; what begins with an underscore is left out"
    )
