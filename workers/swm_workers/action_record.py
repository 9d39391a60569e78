"""Actions of one environment, in the dtypes of its space: as infos, and as a step takes them.

It knows one action and its space; no environment, and no batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from swm_workers.spaces import Leaf, assemble, leaves, pick

Infos: TypeAlias = dict[str, Any]


class ActionRecord:
    """Turns an action into infos of the space's dtype, one per leaf of Dict and Tuple spaces.

    Attributes:
        unknown: The infos while there is no action: NaN, for integers the lowest, for bool False,
            for spaces without a dtype (Text, Graph, Sequence, ...) None. Read-only arrays.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        """Plan the infos of the actions of `space`."""
        self._space = space
        keys = {".".join(map(str, ("action", *leaf.path))): leaf for leaf in leaves(space)}
        self.unknown: Infos = {key: _unknown(leaf) for key, leaf in keys.items()}
        self._plan = tuple((key, leaf.path, _cast(leaf)) for key, leaf in keys.items())

    def record(self, action: Any) -> Infos:
        """Return copies of the parts of `action`, keyed `action` or `action.<name>`."""
        return {key: cast(pick(action, path)) for key, path, cast in self._plan}

    def conform(self, action: Any) -> Any:
        """Return a copy of `action` in the form in which a pool hands actions over.

        Raises:
            ValueError: It does not fit the space.
        """
        parts = []
        for leaf in leaves(self._space):
            try:
                part = _cast(leaf)(pick(action, leaf.path))
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise self._misfit(action) from error
            if leaf.dtype is not None and np.shape(part) != leaf.shape:
                raise self._misfit(action)
            parts.append(part)
        return assemble(self._space, parts)

    def _misfit(self, action: Any) -> ValueError:
        return ValueError(f"a policy's action must fit {self._space}, found {action!r}")


def _cast(leaf: Leaf) -> Callable[[Any], Any]:
    if leaf.dtype is None:
        return _as_given
    return partial(np.array, dtype=leaf.dtype) if leaf.shape else leaf.dtype.type


def _as_given(action: Any) -> Any:
    return action


def _unknown(leaf: Leaf) -> Any:
    if leaf.dtype is None:
        return None
    value: Any = np.nan
    if leaf.dtype.kind == "b":
        value = False
    elif leaf.dtype.kind in "iu":
        value = np.iinfo(leaf.dtype).min
    array = np.full(leaf.shape, value, leaf.dtype)
    array.setflags(write=False)
    return array if leaf.shape else array[()]
