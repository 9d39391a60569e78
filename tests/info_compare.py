"""Whether two values of an info are the same, and where they differ if they are not."""

from __future__ import annotations

from typing import Any

import numpy as np


def difference(found: Any, expected: Any, _within: tuple[int, ...] = ()) -> str:
    """Empty if both are the same: class, dtype, shape and every element.

    NaN equals NaN, and 0.0 does not equal -0.0.
    """
    if type(found) is not type(expected):
        return f"found a {type(found)}, expected a {type(expected)}: {found!r}, {expected!r}"
    if id(expected) in _within:
        return ""  # an info that contains itself: this part is being compared already
    within = (*_within, id(expected))
    if isinstance(expected, np.ma.MaskedArray):
        parts = [(found.mask, expected.mask), (found.filled(), expected.filled())]
        return next(filter(None, (difference(*pair, within) for pair in parts)), "")
    if isinstance(expected, (np.ndarray, np.generic)):
        return _array_difference(np.asarray(found), np.asarray(expected), within)
    if isinstance(expected, dict):
        if list(found) != list(expected):
            return f"found keys {list(found)}, expected {list(expected)}"
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, (list, tuple)):
        if len(found) != len(expected):
            return f"found {len(found)} items, expected {len(expected)}"
        for k, pair in enumerate(zip(found, expected, strict=True)):
            if text := difference(*pair, within):
                return f"item {k}: {text}"
        return ""
    if isinstance(expected, (float, complex)):
        return _array_difference(np.array(found), np.array(expected), within)
    return "" if found == expected else f"found {found!r}, expected {expected!r}"


def _array_difference(found: np.ndarray, expected: np.ndarray, within: tuple[int, ...]) -> str:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return (
            f"found {found.dtype} {found.shape}, expected {expected.dtype} {expected.shape}: "
            f"{found!r}, {expected!r}"
        )
    if expected.dtype.names is not None:
        for name in expected.dtype.names:
            if text := _array_difference(found[name], expected[name], within):
                return f"field {name}: {text}"
        return ""
    if expected.dtype.hasobject:
        return difference(found.tolist(), expected.tolist(), within)
    return "" if _elements_are_same(found, expected) else f"found {found!r}, expected {expected!r}"


def _elements_are_same(found: np.ndarray, expected: np.ndarray) -> bool:
    kind = expected.dtype.kind
    if kind == "c":
        parts = [(found.real, expected.real), (found.imag, expected.imag)]
        return all(_elements_are_same(*pair) for pair in parts)
    if kind == "f":
        same = (found == expected) & (np.signbit(found) == np.signbit(expected))
        return bool((same | (np.isnan(found) & np.isnan(expected))).all())
    if kind in "mM":
        return np.array_equal(found.view(np.int64), expected.view(np.int64))
    return np.array_equal(found, expected)
