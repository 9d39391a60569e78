"""Sending infos as the dicts that they are, for callers who want them in another form.

Has the methods of ``InfoWriter`` that a shard uses, and those for what a reset within a step
would hide. Infos without keys are not sent.

``as_parts``, ``values_of`` and ``added_up`` are for the other side, which takes them apart.

Most infos hold nothing but numbers, texts and arrays, and those of one step have the same form
in all environments. These are copied and not pickled one by one, and travel key by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from swm_workers import snapshot
from swm_workers.infos import plain_dict
from swm_workers.layout import Array, Layout
from swm_workers.protocol import Column, Extra, Part, Problem, Role, Whole

_IMMUTABLE: Final = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None), np.bool_),
        *(np.float64, np.float32, np.float16, np.complex64, np.complex128),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    }
)
_NUMBERS: Final = frozenset({bool, int, float})


class WholeInfos:
    """Gathers the infos of the environments from ``first`` on."""

    def __init__(self, first: int, count: int) -> None:
        self._first = first
        self.settled = [True] * count
        """Rows in which an empty info changes nothing: all."""
        self._parts: list[Part] = []
        self._problems: list[Problem] = []
        self._keys: list[str] = []
        """The keys of the columns that were told last."""

    def bind(self, layout: Layout, buffers: Mapping[int, Any]) -> None:
        """Nothing lies in shared memory."""

    def forget(self) -> None:
        """Drop what was gathered."""
        self._parts, self._problems = [], []

    def write(self, k: int, info: Mapping[str, Any]) -> None:
        """Take what the environment in row k reported."""
        if info.__class__ is not dict:
            info = plain_dict(info)
        if info:
            self.add(k, Role.INFO, info)

    write_fresh = write

    def add(self, k: int, role: str, value: Any) -> None:
        """Copy or pickle a part at once: the environment may change it in its next step."""
        copied = _plain_copy(value) if value.__class__ is dict else None
        try:
            data = snapshot.dumps(value) if copied is None else copied
            self._parts.append((self._first + k, role, data))
        except Exception as error:  # whatever a value's own pickling raises, the pool goes on
            culprit = _culprit(value) if isinstance(value, Mapping) else ""
            text = f"{role}{culprit} of environment {self._first + k} cannot be pickled: {error}"
            self._problems.append(Problem(self._first + k, role, text))

    def has_news(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._parts or self._problems)

    def take(self) -> tuple[tuple[Extra, ...], tuple[tuple[int, str], ...], tuple[Problem, ...]]:
        """Hand over the problems gathered so far; there are no keys of their own."""
        problems, self._problems = tuple(self._problems), []
        return (), (), problems

    def take_parts(self) -> Whole:
        """Hand over the parts gathered so far."""
        parts, self._parts = self._parts, []
        columns = self._columns(parts)
        if columns is None:
            return tuple(parts), (), {}
        return (), [part[0] for part in parts], columns

    def _columns(self, parts: Sequence[Part]) -> dict[str, Column] | None:
        """Infos of the same form key by key; None = they differ, or are not only infos."""
        infos = []
        for _, role, value in parts:
            if role != Role.INFO or isinstance(value, bytes):
                return None
            infos.append(value)
        keys = list(infos[0]) if infos else []
        if keys != self._keys:
            # Gymnasium treats final_obs in its own way, and a mask may have another key's name.
            if not keys or any(key[:1] == "_" or key[:6] == "final_" for key in keys):
                return None
            self._keys = keys
        for info in infos:
            if list(info) != keys:
                return None
        columns: dict[str, Column] = {}
        for key, values in zip(keys, zip(*map(dict.values, infos), strict=True), strict=True):
            column = _column(values)
            if column is None:
                return None
            columns[key] = column
        return columns


def as_parts(replies: Iterable[Whole]) -> Iterator[Part]:
    """Everything that was sent, environment by environment."""
    for parts, rows, columns in replies:
        yield from parts
        for j, env_index in enumerate(rows):
            info = {
                key: column[j].copy() if _holds_arrays(column) else column[j]
                for key, column in columns.items()
            }
            yield env_index, Role.INFO, info


def values_of(replies: Iterable[Whole]) -> Iterator[tuple[int, str, Any]]:
    """The same with what was pickled rebuilt: env index, role and value."""
    for env_index, role, data in as_parts(replies):
        yield env_index, role, snapshot.loads(data) if isinstance(data, bytes) else data


def added_up(replies: Sequence[Whole], num_envs: int) -> dict[str, Any] | None:
    """The infos of a step as ``gymnasium.vector.VectorEnv._add_info`` adds them up.

    None = they have to be added one by one, since their forms differ.
    """
    heads = replies[0][2]
    keys = list(heads)
    reporting: list[int] = []
    for parts, rows, columns in replies:
        if parts or list(columns) != keys:
            return None
        reporting += rows
    infos: dict[str, Any] = {}
    for key, head in heads.items():
        values = _joined(head, [columns[key] for _, _, columns in replies[1:]])
        if values is None:
            return None
        if len(reporting) == num_envs:
            array, mask = values, np.ones(num_envs, np.bool_)
        else:
            array, mask = _empty(values, num_envs), np.zeros(num_envs, np.bool_)
            array[reporting] = values
            mask[reporting] = True
        infos[key], infos["_" + key] = array, mask
    return infos


def _plain_copy(info: dict[Any, Any]) -> dict[str, Any] | None:
    """A copy of a dict of numbers, texts and arrays; None = it holds something else."""
    copied = info.copy()
    for key, value in info.items():
        if key.__class__ is not str:
            return None
        if value.__class__ not in _IMMUTABLE:
            if value.__class__ is not np.ndarray or value.dtype.hasobject:
                return None
            copied[key] = value.copy()
    return copied


def _column(values: tuple[Any, ...]) -> Column | None:
    """The values of one key in the form of ``Column``; None = they are of several kinds."""
    head = values[0]
    cls = head.__class__
    if len(set(map(type, values))) > 1:
        return None
    if cls is np.ndarray:
        dtype, shape = head.dtype, head.shape
        if not shape or any(v.dtype != dtype or v.shape != shape for v in values):
            return None
        stacked = np.empty((len(values), *shape), dtype)
        for row, value in zip(stacked, values, strict=True):
            row[...] = value
        return stacked
    return np.array(values, cls) if issubclass(cls, np.generic) else values


def _holds_arrays(column: Column) -> bool:
    return not isinstance(column, tuple) and column.ndim > 1


def _joined(head: Column, others: Sequence[Column]) -> Array | None:
    """The array that Gymnasium makes of values of this kind; None = they are of several kinds."""
    if isinstance(head, tuple):
        cls, values = head[0].__class__, head
        for other in others:
            if not isinstance(other, tuple) or other[0].__class__ is not cls:
                return None
            values += other
        return np.array(values, cls) if cls in _NUMBERS else _objects(values)
    for other in others:
        if isinstance(other, tuple) or (other.dtype, other.shape[1:]) != (
            head.dtype,
            head.shape[1:],
        ):
            return None
    array = np.concatenate([head, *others], dtype=head.dtype)
    # To Gymnasium, numpy's own bools are no numbers.
    return _objects(list(array)) if array.ndim == 1 and array.dtype == np.bool_ else array


def _objects(values: Sequence[Any]) -> Array:
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array


def _empty(values: Array, num_envs: int) -> Array:
    """Zeros for ``num_envs`` values like these, or as many objects None."""
    if values.dtype == np.object_:
        return np.full(num_envs, None, np.object_)
    return np.zeros((num_envs, *values.shape[1:]), values.dtype)


def _culprit(info: Mapping[Any, Any]) -> str:
    for key, value in info.items():
        try:
            snapshot.dumps(value)
        except Exception:  # whatever it raises, this is the one
            return f" {key!r} ({type(value).__qualname__})"
    return ""
