"""What is written and read: whole episodes, the writers that take them, datasets that give them.

It knows columns and nothing of files, pools or Worlds.

Letters: `E` = episodes of a dataset, `n` = episodes of a call, `T` = rows of an episode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from swm_async.data.columns import Array, Column, as_column

Ints: TypeAlias = npt.NDArray[np.int64]

EPISODE_DATA = "_episode_data"
"""The key of what belongs to a whole episode, in the dict that a writer gets."""


class Writer(Protocol):
    """What takes the episodes of `World.collect`, one after the other in their start order.

    A writer with a true attribute `takes_episode_data` also gets what the environment's
    `get_episode_data()` returned, as the entry `_episode_data` of the dict.
    """

    def write_episode(self, episode: dict[str, Any]) -> None:
        """Take one episode: arrays `(T, ...)` by column, texts as arrays of `str`."""

    def close(self) -> None:
        """Finish; nothing follows."""


class Episode(dict[str, Any]):
    """The dict that a writer gets; those of this package look at its columns.

    Attributes:
        columns: The same values, with their forms and the rows that nobody reported.
    """

    def __init__(self, columns: Mapping[str, Column], data: Mapping[str, Any] | None) -> None:
        """Gather columns of equal length, and what belongs to the whole episode."""
        super().__init__({name: column.values for name, column in columns.items()})
        self.columns = dict(columns)
        if data is not None:
            self[EPISODE_DATA] = dict(data)


def parts(episode: Mapping[str, Any]) -> tuple[dict[str, Column], dict[str, Column], int]:
    """Return the columns of an episode, those of one row for the whole of it, and `T`.

    Raises:
        TypeError: A value cannot be recorded.
        ValueError: There is no column, their lengths differ, or a name begins with an underscore.
    """
    columns = episode.columns if isinstance(episode, Episode) else _columns(episode)
    lengths = {name: len(column.values) for name, column in columns.items()}
    if not lengths or len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(f"an episode needs columns of one length, 1 or more; found {lengths}")
    if private := [name for name in columns if name.startswith("_")]:
        raise ValueError(f"names of columns must not begin with an underscore, found {private}")
    data = {
        f"{EPISODE_DATA}.{name}": _named(name, [value])
        for name, value in (episode.get(EPISODE_DATA) or {}).items()
    }
    return columns, data, next(iter(lengths.values()))


def _columns(episode: Mapping[str, Any]) -> dict[str, Column]:
    return {name: _named(name, values) for name, values in episode.items() if name != EPISODE_DATA}


def _named(name: str, values: Any) -> Column:
    try:
        return as_column(values)
    except (TypeError, ValueError) as error:
        raise type(error)(f"column {name!r} cannot be recorded: {error}") from error


class Dataset(ABC):
    """Recorded episodes to read; a context manager.

    Attributes:
        lengths: `(E,) int64`, rows of each episode.
        column_names: The columns with one value per row, sorted.
        episode_column_names: The columns with one value per episode, sorted.
    """

    lengths: Ints
    column_names: list[str]
    episode_column_names: list[str]

    @abstractmethod
    def _rows(self, k: int, start: int, stop: int) -> dict[str, Array]:
        """Read rows of episode `k`, all of which exist, by column."""

    @abstractmethod
    def _data(self, k: int) -> dict[str, Array]:
        """Read the values `()` or `(...)` of episode `k` that belong to the whole of it."""

    def close(self) -> None:  # noqa: B027  # nothing is open unless a subclass says so
        """Close what is open; a second call does nothing."""

    def __len__(self) -> int:
        return len(self.lengths)

    def load_chunk(self, episodes: Any, starts: Any, ends: Any) -> list[dict[str, Array]]:
        """Read passages of episodes.

        Args:
            episodes: `(n,)` integers, numbers of episodes.
            starts: `(n,)` integers, the first row of each passage.
            ends: `(n,)` integers, the row after its last.

        Returns:
            One dict per passage, from columns to arrays `(end - start, ...)`.

        Raises:
            ValueError: Arguments of different lengths, or rows that do not exist; names them.
        """
        arguments = {"episodes": episodes, "starts": starts, "ends": ends}
        arrays = {name: _integers(name, value) for name, value in arguments.items()}
        if len({len(array) for array in arrays.values()}) != 1:
            found = {name: len(array) for name, array in arrays.items()}
            raise ValueError(f"load_chunk needs arguments of one length, found {found}")
        passages = list(zip(*(array.tolist() for array in arrays.values()), strict=True))
        for k, start, end in passages:
            self._check(k, start, end)
        return [self._rows(*passage) for passage in passages]

    def load_episode(self, k: int) -> dict[str, Array]:
        """Read a whole episode: arrays `(T, ...)` by column."""
        self._check(k, 0, 0)
        return self._rows(k, 0, int(self.lengths[k]))

    def get_episode_data(self, k: int) -> dict[str, Array]:
        """Read what belongs to the whole of episode `k`, by `episode_column_names`."""
        self._check(k, 0, 0)
        return self._data(k)

    def _check(self, k: int, start: int, end: int) -> None:
        if not 0 <= k < len(self):
            raise ValueError(f"episode must be one of 0 to {len(self) - 1}, found {k}")
        if not 0 <= start <= end <= self.lengths[k]:
            raise ValueError(
                f"episode {k} has rows 0 to {self.lengths[k] - 1}; there are no rows from {start} "
                f"up to {end}, the end excluded"
            )

    def __enter__(self) -> Dataset:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _integers(name: str, values: Any) -> Ints:
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise ValueError(f"{name} must be a one-dimensional array of integers, found {values!r}")
    return array.astype(np.int64)
