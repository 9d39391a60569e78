"""Taking spaces apart into leaves that are arrays, and batches together again; no I/O.

A leaf is a part of a Dict or Tuple space that is neither. Box, Discrete, MultiDiscrete and
MultiBinary leaves have a dtype and a shape and live in shared memory; every other leaf
(Text, Graph, Sequence, OneOf, custom spaces) is an object that travels pickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces

from swm_workers.layout import Array, Dtype, Form, start_of, storable

Space: TypeAlias = "spaces.Space[Any]"

_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class Leaf(NamedTuple):
    """One part of a space: the way to it, and its dtype and shape (None = an object)."""

    path: tuple[Any, ...]
    space: Space
    dtype: Dtype | None
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The path in words, empty for a space that is itself a leaf."""
        return "".join(f"[{part!r}]" for part in self.path)

    @property
    def is_scalar_box(self) -> bool:
        """Whether its values are arrays of shape ``()``, which indexing turns into scalars."""
        return self.shape == () and isinstance(self.space, spaces.Box)


def leaves(space: Space, path: tuple[Any, ...] = ()) -> tuple[Leaf, ...]:
    """All leaves of a space, in the order of the space."""
    if isinstance(space, spaces.Dict):
        parts = [leaves(part, (*path, key)) for key, part in space.spaces.items()]
        return tuple(leaf for part in parts for leaf in part)
    if isinstance(space, spaces.Tuple):
        parts = [leaves(part, (*path, k)) for k, part in enumerate(space.spaces)]
        return tuple(leaf for part in parts for leaf in part)
    if isinstance(space, _ARRAY_SPACES) and space.shape is not None and space.dtype is not None:
        dtype = storable(np.dtype(space.dtype))
        if dtype is not None:
            return (Leaf(path, space, dtype, tuple(space.shape)),)
    return (Leaf(path, space, None, ()),)


def pick(value: Any, path: tuple[Any, ...]) -> Any:
    """The part of a nested value that belongs to a leaf."""
    for part in path:
        value = value[part]
    return value


def assemble(space: Space, parts: Sequence[Any]) -> Any:
    """Put the values of all leaves together in the form of the space.

    Dicts and tuples are made anew, the parts are passed on as they are.
    """
    return _assemble(space, iter(parts))


def _assemble(space: Space, parts: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _assemble(part, parts) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_assemble(part, parts) for part in space.spaces)
    return next(parts)


def same_space(first: Space, second: Space) -> bool:
    """Whether two environments' spaces are equal, down to the order of their parts.

    Actions and observations are laid out in that order, by each worker for itself. Custom
    spaces that do not define equality are compared by type, shape, dtype and text.
    """
    if type(first) is not type(second):
        return False
    if isinstance(first, spaces.Dict) and isinstance(second, spaces.Dict):
        return list(first.spaces) == list(second.spaces) and all(
            map(same_space, first.spaces.values(), second.spaces.values())
        )
    if isinstance(first, spaces.Tuple) and isinstance(second, spaces.Tuple):
        return len(first.spaces) == len(second.spaces) and all(
            map(same_space, first.spaces, second.spaces)
        )
    if type(first).__eq__ is not object.__eq__:
        return bool(first == second)
    return (first.shape, first.dtype, repr(first)) == (second.shape, second.dtype, repr(second))


def same_form(first: Space, second: Space) -> bool:
    """Whether two spaces have leaves of equal places, dtypes and shapes; bounds may differ."""
    ours, theirs = leaves(first), leaves(second)
    return len(ours) == len(theirs) and all(
        (a.path, a.dtype, a.shape) == (b.path, b.dtype, b.shape)
        and (a.dtype is not None or same_space(a.space, b.space))
        for a, b in zip(ours, theirs, strict=True)
    )


class Control(NamedTuple):
    """The fixed part of what pool and workers share, as live views on one block."""

    mask: Array
    """``(N,) bool``: who takes part; only the rows of the worker just asked are valid."""
    rewards: Array
    """``(N,) float32`` or ``float64``"""
    terminateds: Array
    """``(N,) bool``"""
    truncateds: Array
    """``(N,) bool``"""
    actions: tuple[Array | None, ...]
    """``(N, *shape)`` for each leaf of the action space, None for objects."""


def control_size(form: Form, action_leaves: Sequence[Leaf]) -> int:
    """Bytes that ``control_views`` needs."""
    return _control_places(form, action_leaves)[1]


def control_views(buffer: Any, form: Form, action_leaves: Sequence[Leaf]) -> Control:
    """Lay the fixed part over a block."""
    places, _ = _control_places(form, action_leaves)
    views: Iterator[Array] = (
        np.ndarray((form.num_envs, *shape), dtype, buffer, start) for shape, dtype, start in places
    )
    return Control(
        mask=next(views),
        rewards=next(views),
        terminateds=next(views),
        truncateds=next(views),
        actions=tuple(None if leaf.dtype is None else next(views) for leaf in action_leaves),
    )


def _control_places(
    form: Form, action_leaves: Sequence[Leaf]
) -> tuple[list[tuple[tuple[int, ...], Any, int]], int]:
    """Shape of a row, dtype and offset of each array, in the order of ``Control``; their end."""
    columns: list[tuple[tuple[int, ...], Any]] = [
        ((), np.dtype(dtype)) for dtype in (np.bool_, form.rewards, np.bool_, np.bool_)
    ]
    columns += [(leaf.shape, leaf.dtype) for leaf in action_leaves if leaf.dtype is not None]
    places, end = [], 0
    for shape, dtype in columns:
        row_bytes = dtype.itemsize * math.prod(shape)
        start = start_of(end, row_bytes, form.seam)
        places.append((shape, dtype, start))
        end = start + form.num_envs * row_bytes
    return places, end
