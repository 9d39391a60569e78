"""Whether what two vector environments return is the same."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Equal in structure, type, dtype, shape and value."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, (tuple, list)):
        assert type(found) is type(expected), where
        for k, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}[{k}]")
    elif isinstance(expected, np.ndarray):
        assert isinstance(found, np.ndarray), where
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
        if expected.dtype == object:
            assert_same(found.tolist(), expected.tolist(), where)
        else:
            np.testing.assert_array_equal(found, expected, err_msg=where)
    else:
        assert type(found) is type(expected), where
        assert found == expected, where
