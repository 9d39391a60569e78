"""The values of one info key in the episodes that are running, row by row.

It knows infos as a pool gives them and columns as writers want them; no time steps, no files.

Letters: `N` = num_envs, `i` = env index, `T` = rows of an episode, `(...)` = shape of a value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from swm_async.data.columns import (
    Array,
    Column,
    JsonText,
    column_of,
    column_of_array,
    row_value,
    tensor_values,
)
from swm_async.rollout import Bools, Ints
from swm_workers.layout import Kind, survives

_FIRST_ROWS = 32


class Track:
    """Keeps what each environment reports under one key, from its reset on.

    Values lie in one array as long as they fit; from then on each is kept by itself.
    """

    def __init__(self, num_envs: int) -> None:
        self._first = np.full(num_envs, -1, np.int64)
        """The first row of the episode in which the key was reported, -1 = none yet."""
        self._rows: Array | None = None
        """`(N, capacity, ...)`; None before the first values and while they lie in lists."""
        self._lists: list[list[Array | JsonText]] | None = None
        self._seen: list[Any] = [None] * num_envs
        """The object that was last put into each list, to know it again."""

    def restart(self, envs: Ints) -> None:
        """Forget the episodes of these environments."""
        self._first[envs] = -1

    def put(self, values: Any, envs: Ints, rows: Ints, present: Bools | None) -> None:
        """Keep one row of each of these environments.

        Args:
            values: The pool's: an array or tensor `(N, 1, ...)`, or a list `[[v_0], [v_1], ...]`.
            envs: `(n,)` environments.
            rows: `(n,)` the row of the episode that each is at.
            present: `(N,) bool`, True = its last report held the key. None = all did. Of one that
                did not, the pool keeps the value from the row before.
        """
        fresh = self._first[envs] < 0
        if present is not None:
            fresh &= present[envs]
        self._first[envs[fresh]] = rows[fresh]
        if isinstance(values, list):
            self._put_objects(values, envs, rows)
            return
        array = values if isinstance(values, np.ndarray) else tensor_values(values)
        if self._lists is None:
            self._make_room(array, int(rows.max()) + 1)
        if self._lists is not None:
            self._put_objects([[row[0]] for row in array], envs, rows)
        elif self._rows is not None:
            self._rows[envs, rows] = array[envs, 0]

    def column(self, i: int, length: int) -> Column | None:
        """Return the values of environment i's episode, `(T, ...)`; None if it reported none.

        Raises:
            TypeError: Values of different kinds have no form that holds them all.
        """
        first = int(self._first[i])
        if first < 0:
            return None
        if self._rows is not None:
            return column_of_array(self._rows[i, :length].copy(), first)
        assert self._lists is not None  # it has a first row
        return column_of(self._lists[i][:length], first)

    def _make_room(self, array: Array, count: int) -> None:
        """Bring the array into the dtype of these values and make it long enough for `count` rows.

        Where that cannot be done the values move to lists.
        """
        rows, shape = self._rows, array.shape[2:]
        if rows is None:
            capacity = max(count, _FIRST_ROWS)
            self._rows = np.zeros((len(array), capacity, *shape), array.dtype)
            return
        if rows.dtype != array.dtype or rows.shape[2:] != shape:
            if rows.shape[2:] != shape or not survives(rows, Kind.ARRAY, array.dtype):
                self._to_lists()
                return
            self._rows = rows = rows.astype(array.dtype)
        if count > rows.shape[1]:
            room = np.zeros(
                (len(rows), max(rows.shape[1], count - rows.shape[1]), *shape), rows.dtype
            )
            self._rows = np.concatenate([rows, room], axis=1)

    def _to_lists(self) -> None:
        assert self._rows is not None  # values lie there
        self._lists = [[row_value(value) for value in values] for values in self._rows]
        self._rows = None

    def _put_objects(self, values: list[Any], envs: Ints, rows: Ints) -> None:
        if self._lists is None:
            if self._rows is None:
                self._lists = [[] for _ in values]
            else:
                self._to_lists()
        assert self._lists is not None  # made above
        for i, row in zip(envs.tolist(), rows.tolist(), strict=True):
            kept = self._lists[i]
            del kept[row:]
            kept += [_NOTHING] * (row - len(kept))
            if self._first[i] < 0:
                continue
            value = values[i][0]
            known = row > self._first[i] and value is self._seen[i]
            kept.append(kept[-1] if known else row_value(value))
            self._seen[i] = value


_NOTHING = JsonText()
"""In rows before the first that was reported."""
