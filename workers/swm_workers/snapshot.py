"""Pickled snapshots of values that have no fixed layout; no I/O.

Plain pickle is tried first since it is several times faster; cloudpickle takes what plain
pickle cannot: lambdas, closures and classes of the user's script.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import cloudpickle


def dumps(value: Any) -> bytes:
    """Pickle a value.

    Raises:
        Exception: whatever the value's own reduction raises; it cannot be pickled.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:  # anything may come from a user's __reduce__; cloudpickle decides
        buffer = io.BytesIO()
        _MainPickler(buffer).dump(value)
        return buffer.getvalue()


def loads(data: bytes) -> Any:
    """Rebuild a value."""
    return pickle.loads(data)


class _MainPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle is untyped
    """Sends classes of the user's script home by name.

    In a worker they exist by value only. Sent back by value, cloudpickle would rebuild the
    parent's own class in place, methods and all; by name the parent just finds it.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj.__module__ == "__main__" and _is_top_level(obj):
            return _class_of_main, (obj.__qualname__, cloudpickle.dumps(obj))
        return super().reducer_override(obj)


def _is_top_level(cls: type) -> bool:
    return "<locals>" not in cls.__qualname__


def _class_of_main(qualname: str, by_value: bytes) -> Any:
    found: Any = sys.modules.get("__main__")
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) else cloudpickle.loads(by_value)
