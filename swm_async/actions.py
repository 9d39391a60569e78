"""Taking a batch of actions apart, checking it and writing it into shared memory; no I/O.

First the rows that take part are selected, then they are checked, then they are cast; all
checks come before anything is written.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from swm_workers import snapshot
from swm_workers.layout import Array
from swm_workers.spaces import Leaf, Space, pick


class ActionWriter:
    """Writes the actions of ``num_envs`` environments.

    Args:
        space: one environment's action space.
        leaves: its leaves.
        num_envs: N.
        targets: ``(N, *shape)`` per leaf in shared memory, None for leaves that are objects.
    """

    def __init__(
        self, space: Space, leaves: Sequence[Leaf], num_envs: int, targets: Sequence[Array | None]
    ) -> None:
        self._space = space
        self._leaves = tuple(leaves)
        self._num_envs = num_envs
        self._targets = tuple(targets)
        self.has_objects = any(target is None for target in targets)
        whole = len(leaves) == 1 and leaves[0].path == ()
        self._only = targets[0] if whole else None
        self._dtype = None if self._only is None else self._only.dtype
        self._shape = None if self._only is None else self._only.shape

    def write(self, actions: Any, rows: Array | None) -> list[tuple[Any, ...]] | None:
        """Check and write the actions of these rows.

        Args:
            actions: one row per environment; see ``EnvPool.step``.
            rows: ``(n,)`` env indices that take part, None = all.

        Returns:
            For each row a tuple of the leaves that are objects; None if the space has none.

        Raises:
            TypeError: values of the wrong kind.
            ValueError: wrong number or shape of rows, or values that would change.
        """
        only = self._only
        if (
            only is not None
            and actions.__class__ is np.ndarray
            and actions.dtype == self._dtype
            and actions.shape == self._shape
        ):
            if rows is None:
                only[...] = actions
            else:
                only[rows] = actions[rows]
            return None
        parts = self._parts(actions, rows)
        checked = [
            part if target is None else _checked(part, leaf)
            for part, leaf, target in zip(parts, self._leaves, self._targets, strict=True)
        ]
        for values, target in zip(checked, self._targets, strict=True):
            if target is not None:
                target[... if rows is None else rows] = values
        if not self.has_objects:
            return None
        objects = [v for v, t in zip(checked, self._targets, strict=True) if t is None]
        return list(zip(*objects, strict=True))

    def _parts(self, actions: Any, rows: Array | None) -> list[Any]:
        """For each leaf the values of the rows that take part."""
        nested = isinstance(self._space, (spaces.Dict, spaces.Tuple))
        if nested and _is_list(actions):
            self._check_count(len(actions), "actions")
            chosen = [actions[i] for i in self._chosen(rows)]
            return [[_pick(row, leaf) for row in chosen] for leaf in self._leaves]
        return [self._select(_pick(actions, leaf), leaf, rows) for leaf in self._leaves]

    def _select(self, batch: Any, leaf: Leaf, rows: Array | None) -> Any:
        name = f"actions{leaf.name}"
        if leaf.dtype is None or isinstance(batch, tuple) or _is_list(batch):
            if not hasattr(batch, "__len__") or isinstance(batch, (str, bytes, Mapping)):
                raise TypeError(
                    f"{name} must be a sequence of {self._num_envs} actions; "
                    f"found {type(batch).__name__}"
                )
            self._check_count(len(batch), name)
            return [batch[i] for i in self._chosen(rows)]
        array = _to_numpy(batch)
        if array.ndim == 0:
            raise ValueError(f"{name} must have {self._num_envs} rows; found a single value")
        self._check_count(len(array), name)
        return array if rows is None else array[rows]

    def _chosen(self, rows: Array | None) -> Any:
        return range(self._num_envs) if rows is None else rows.tolist()

    def _check_count(self, found: int, name: str) -> None:
        if found != self._num_envs:
            raise ValueError(
                f"{name} must have {self._num_envs} rows, one per environment; found {found}"
            )


def pickle_objects(objects: Sequence[tuple[Any, ...]]) -> bytes:
    """Pickle the object leaves of some rows, each row for itself: no two share an object."""
    try:
        return pickle.dumps([snapshot.dumps_by_value(row) for row in objects])
    except Exception as error:  # anything may come from a user's reduction
        raise TypeError(f"actions cannot be pickled: {error}") from error


def _is_list(actions: Any) -> bool:
    """Whether it is a list of actions, which an array of objects is as well."""
    return isinstance(actions, list) or (
        isinstance(actions, np.ndarray) and actions.dtype == np.object_
    )


def _pick(actions: Any, leaf: Leaf) -> Any:
    try:
        return pick(actions, leaf.path)
    except (KeyError, IndexError, TypeError) as error:
        found = sorted(map(str, actions)) if isinstance(actions, Mapping) else type(actions)
        raise ValueError(f"actions{leaf.name} is missing; found {found}") from error


def _to_numpy(value: Any) -> Array:
    if type(value).__module__.split(".")[0] == "torch":
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        return np.asarray(value.numpy())
    return np.asarray(value)


def _checked(values: Any, leaf: Leaf) -> Array:
    """The rows of one leaf in its dtype, if they can be had in it without loss.

    Floats of any width may be rounded to the width of a floating-point space.
    """
    name, dtype = f"actions{leaf.name}", leaf.dtype
    if dtype is None:
        raise AssertionError("objects are not checked")
    if isinstance(values, list):
        values = [_to_numpy(value) for value in values]
        shapes = {value.shape for value in values} - {leaf.shape}
        if shapes:
            raise ValueError(
                f"each row of {name} must have shape {leaf.shape}; found {shapes.pop()}"
            )
        values = np.stack(values) if values else np.empty((0, *leaf.shape), dtype)
    if values.shape[1:] != leaf.shape:
        raise ValueError(
            f"each row of {name} must have shape {leaf.shape}; found {values.shape[1:]}"
        )
    if values.dtype == dtype:
        return np.asarray(values)
    allowed = "biuf" if dtype.kind in "fiub" else dtype.kind
    if values.dtype.kind not in allowed:
        raise TypeError(f"{name} must be convertible to {dtype}; found {values.dtype}")
    if dtype.kind == "f":
        return np.asarray(values.astype(dtype))
    return _integral(values, dtype, name)


def _integral(values: Array, dtype: Any, name: str) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(dtype)
    wrong = ~np.isfinite(values) | (cast.astype(values.dtype) != values)
    if dtype.kind != "b" and values.dtype.kind != "b":
        # An integer beyond the dtype may come back the same when it is cast to and fro.
        limits = np.iinfo(dtype)
        wrong |= (values < limits.min) | (values > limits.max)
    if wrong.any():
        raise ValueError(
            f"{name} must be exact {dtype} values; found {values[wrong].ravel()[0].item()!r}"
        )
    return np.asarray(cast)
