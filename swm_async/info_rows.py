"""Single rows of infos: copied, filled, and read as the values that they were; no state."""

from __future__ import annotations

import copy
import sys
from typing import Any, Final

import numpy as np

from swm_workers.layout import Kind, Slot, fill_number, fill_value

_PYTHON_DTYPES: Final = frozenset(np.dtype(t) for t in (bool, np.int64, np.uint64, float, complex))


def python_value(values: Any, i: int) -> Any:
    """The value of one row as an environment may have reported it."""
    row = values[i, 0]
    if not isinstance(values, np.ndarray):
        return row.clone()
    if row.shape == () and values.dtype in _PYTHON_DTYPES:
        return row.item()
    return copy.copy(row)


def copy_row(new: Any, old: Any, i: int, slot: Slot) -> None:
    """Copy row i; one at a time, since torch indexes not all dtypes that it can copy."""
    if slot.kind is Kind.TENSOR:
        new[i].copy_(old[i])
    else:
        new[i] = old[i].astype(slot.dtype)


def fill(values: Any, slot: Slot) -> None:
    """Set rows to the fill value of their slot."""
    if slot.kind is Kind.TENSOR:
        values.fill_(fill_number(sys.modules["torch"], slot.dtype))
    else:
        values[...] = fill_value(slot.dtype)
