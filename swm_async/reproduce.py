"""Telling how to repeat a failure, and repeating it from a file.

Remembers how each running episode began and, where asked to, its actions. Writes a file only
when an environment fails and actions were recorded.
"""

from __future__ import annotations

import itertools
import os
import pickle
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from swm_async.backends.base import EnvFn
from swm_workers import snapshot
from swm_workers.layout import Array
from swm_workers.spaces import Space, assemble

_numbers = itertools.count()


@dataclass
class Episode:
    """How an episode began, and the actions since: what a failure can be repeated from."""

    seed: int | None = None
    options: bytes | None = None
    actions: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Recording:
    """The content of a file that ``swm-async replay`` plays back."""

    env_fn: EnvFn
    env_index: int
    seed: int | None
    options: Mapping[str, Any] | None
    actions: Sequence[Any]


class Recorder:
    """Remembers the running episode of each environment.

    Args:
        env_fns: the factories, for the files.
        with_actions: whether actions are kept and files written.
    """

    def __init__(self, env_fns: Sequence[EnvFn], *, with_actions: bool) -> None:
        self._env_fns = list(env_fns)
        self._episodes = [Episode() for _ in env_fns]
        self.with_actions = with_actions

    def begin(
        self,
        rows: Array,
        seeds: Sequence[int | None] | None,
        options: bytes | tuple[bytes | None, ...] | None,
    ) -> None:
        """These environments are about to be reset."""
        for i in rows.tolist():
            seed = None if seeds is None else seeds[i]
            own = options[i] if isinstance(options, tuple) else options
            self._episodes[i] = Episode(seed, own)

    def add(
        self,
        space: Space,
        rows: Array,
        parts: Sequence[Array | None],
        objects: Sequence[tuple[Any, ...]] | None,
    ) -> None:
        """These environments are about to be stepped with the actions in shared memory."""
        for j, i in enumerate(rows.tolist()):
            given = iter(objects[j]) if objects is not None else iter(())
            leaves = [next(given) if part is None else part[i].copy() for part in parts]
            self._episodes[i].actions.append(assemble(space, leaves))

    def advice(self, env_index: int) -> str:
        """How to repeat what has just happened to an environment; writes the file if it can."""
        episode = self._episodes[env_index]
        options = None if episode.options is None else snapshot.loads(episode.options)
        text = (
            f"To repeat it in one process: EnvPool([env_fns[{env_index}]], num_workers=0), then "
            f"reset(seed={episode.seed}, options={reprlib.repr(options)})"
        )
        if episode.seed is None:
            text += " (it was reset without a seed: an earlier one may have to be given)"
        if not self.with_actions:
            return f"{text}, then its actions; EnvPool(record_actions=True) keeps them in a file."
        path = self._save(env_index, episode, options)
        return f"{text}, then its {len(episode.actions)} actions, or: swm-async replay {path}"

    def _save(self, env_index: int, episode: Episode, options: Any) -> Path:
        recording = Recording(
            self._env_fns[env_index], env_index, episode.seed, options, episode.actions
        )
        name = f"swm_async-failure-{os.getpid()}-{next(_numbers)}-env{env_index}.pkl"
        path = Path.cwd() / name
        path.write_bytes(cloudpickle.dumps(recording))
        return path


def load_recording(path: str | os.PathLike[str]) -> Recording:
    """Read a file that a failure has left; only files from a source that you trust.

    Raises:
        ValueError: it is no such file.
    """
    try:
        recording = pickle.loads(Path(path).read_bytes())
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"{path} is not a recording of swm_async: {error}") from error
    if not isinstance(recording, Recording):
        raise ValueError(f"{path} is not a recording of swm_async")
    return recording


def play(recording: Recording) -> list[float]:
    """Repeat a recorded episode in this process; returns the rewards if nothing fails.

    Raises:
        BaseException: what the environment raises.
    """
    env = recording.env_fn()
    try:
        options = None if recording.options is None else dict(recording.options)
        env.reset(seed=recording.seed, options=options)
        return [float(np.asarray(env.step(action)[1]).item()) for action in recording.actions]
    finally:
        env.close()
