"""Private copies of what a pool returns; no I/O."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np


def private_copy(value: Any) -> Any:
    """A copy that no later step touches: of arrays, tensors, lists and what they hold."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: private_copy(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(private_copy(part) for part in value)
    if type(value).__module__.split(".")[0] == "torch" and hasattr(value, "clone"):
        return value.clone()
    return copy.deepcopy(value)
