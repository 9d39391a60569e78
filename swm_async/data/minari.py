"""Minari's datasets behind the interface of those of this package.

It knows their attributes and does not import Minari. Columns are named and aligned as `collect`
does: an episode of L steps has L+1 rows, `action` at row t is the one taken there, and `reward`,
`terminated` and `truncated` at row t are those of the step that led there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from swm_async.data.columns import Array
from swm_async.data.episodes import Dataset


def as_dataset(source: Any) -> Any:
    """Return a dataset for what `minari.load_dataset` gave; anything else as it is."""
    has_own = callable(getattr(source, "load_chunk", None))
    if not has_own and hasattr(source, "iterate_episodes") and hasattr(source, "total_episodes"):
        return MinariEpisodes(source)
    return source


class MinariEpisodes(Dataset):
    """Reads a Minari dataset; the episode read last is kept.

    Observations are the column `observation`, or one per entry of a dict, nested names joined by
    dots; so are infos under their own names, where they have a value for every row.

    Args:
        source: What `minari.load_dataset` returns.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        indices = getattr(source, "episode_indices", None)
        self._indices = list(range(source.total_episodes)) if indices is None else list(indices)
        self.lengths = np.array([steps + 1 for steps in self._steps()], np.int64)
        self._last: tuple[int, dict[str, Array]] | None = None
        self.column_names = sorted(self._episode(0)) if self._indices else []
        self.episode_column_names = []

    def _steps(self) -> Iterator[int]:
        storage: Any = getattr(self._source, "storage", None)
        if hasattr(storage, "get_episode_metadata"):
            for entry in storage.get_episode_metadata(self._indices):
                yield int(entry["total_steps"])
            return
        for episode in self._source.iterate_episodes():
            yield len(episode.rewards)

    def _rows(self, k: int, start: int, stop: int) -> dict[str, Array]:
        return {name: values[start:stop] for name, values in self._episode(k).items()}

    def _data(self, k: int) -> dict[str, Array]:
        return {}

    def _episode(self, k: int) -> dict[str, Array]:
        if self._last is None or self._last[0] != k:
            (episode,) = self._source.iterate_episodes([self._indices[k]])
            self._last = k, _columns(episode)
        return self._last[1]


def _columns(episode: Any) -> dict[str, Array]:
    count = len(episode.rewards) + 1
    columns = dict(_flat(getattr(episode, "infos", None) or {}, ""))
    columns |= dict(
        _flat(episode.observations, "" if _nested(episode.observations) else "observation")
    )
    columns = {name: values for name, values in columns.items() if len(values) == count}
    for name, values in _flat(episode.actions, "action"):
        columns[name] = np.concatenate([values, _unknown(values)])
    rewards = np.asarray(episode.rewards, np.float64)
    columns["reward"] = np.concatenate([[np.nan], rewards])
    for name, flags in (("terminated", episode.terminations), ("truncated", episode.truncations)):
        columns[name] = np.concatenate([[False], np.asarray(flags, np.bool_)])
    columns["step_idx"] = np.arange(count)
    return columns


def _nested(values: Any) -> bool:
    return isinstance(values, Mapping)


def _flat(values: Any, name: str) -> Iterator[tuple[str, Array]]:
    """Name the arrays of nested dicts and tuples, joined by dots."""
    if isinstance(values, Mapping):
        parts: Any = values.items()
    elif isinstance(values, tuple):
        parts = enumerate(values)
    else:
        yield name, np.asarray(values)
        return
    for part, value in parts:
        yield from _flat(value, f"{name}.{part}" if name else str(part))


def _unknown(actions: Array) -> Array:
    """Return one row `(1, ...)` for the action that was not taken."""
    value: Any = np.nan
    if actions.dtype.kind in "iu":
        value = np.iinfo(actions.dtype).min
    elif actions.dtype.kind not in "fc":
        value = np.zeros((), actions.dtype)
    return np.full((1, *actions.shape[1:]), value, actions.dtype)
