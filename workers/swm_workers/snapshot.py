"""Pickled snapshots of values that have no fixed layout; no I/O.

Plain pickle is tried first since it is several times faster; cloudpickle takes what plain
pickle cannot: lambdas, closures and classes of the user's script. Torch's tensors are taken
as their bytes: detached, on the CPU, whatever their dtype.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import cloudpickle

from swm_workers.layout import Kind, natural


def dumps(value: Any) -> bytes:
    """Pickle a value.

    Raises:
        Exception: whatever the value's own reduction raises; it cannot be pickled.
    """
    try:
        if "torch" not in sys.modules:
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        return _dump(_TensorPickler, value)
    except Exception:  # anything may come from a user's __reduce__; cloudpickle decides
        return _dump(_ClassPickler, value)


def dumps_by_value(value: Any) -> bytes:
    """Pickle a value for a process that may lack the script's own classes and functions.

    Raises:
        Exception: whatever the value's own reduction raises; it cannot be pickled.
    """
    return _dump(_ClassPickler, value)


def _dump(make_pickler: Callable[..., Any], value: Any) -> bytes:
    buffer = io.BytesIO()
    make_pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    """Rebuild a value."""
    return pickle.loads(data)


def class_name(data: bytes) -> str:
    """The first class or function that a pickle names, to tell of one that cannot be rebuilt."""
    import pickletools  # large, and needed only when something has gone wrong

    names: list[str] = []
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "STACK_GLOBAL":
            return ".".join(names[-2:])
        if isinstance(argument, str):
            names.append(argument)
    return "unknown class"


class _TensorReducers(dict[Any, Any]):
    """What reduces the instances of a class: one entry for tensors, besides the usual ones."""

    def __missing__(self, cls: type) -> Any:
        torch = sys.modules.get("torch")
        if cls is getattr(torch, "Tensor", None):
            self[cls] = _reduce_tensor
            return _reduce_tensor
        return copyreg.dispatch_table[cls]


class _TensorPickler(pickle.Pickler):
    """Plain pickle, except for tensors."""

    dispatch_table = _TensorReducers()


class _ClassPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle is untyped
    """Cloudpickle that leaves classes alone which the receiving process knows already.

    A class of the user's script travels to a worker by value. When an instance comes back,
    cloudpickle finds the class it belongs to, and then gives it the methods and attributes of
    the worker's copy: the user's own class would change under their hands.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is getattr(sys.modules.get("torch"), "Tensor", None):
            return _reduce_tensor(obj)
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6:
            make, arguments, state, _, _, set_state = reduced
            name = cloudpickle.cloudpickle._get_or_create_tracker_id(obj)
            return _class, (name, make, arguments), (set_state, state), None, None, _complete
        return reduced


# By the name under which cloudpickle knows them in every process that they have been to.
_known_classes: Final[Mapping[str, type]] = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
_incomplete_classes: Final[set[int]] = set()


def _class(name: str, make: Callable[..., type], arguments: tuple[Any, ...]) -> type:
    known = _known_classes.get(name)
    if known is not None:
        return known
    made = make(*arguments)
    _incomplete_classes.add(id(made))
    return made


def _complete(cls: type, completion: tuple[Callable[[type, Any], Any], Any]) -> None:
    if id(cls) in _incomplete_classes:
        _incomplete_classes.discard(id(cls))
        set_state, state = completion
        set_state(cls, state)


def _reduce_tensor(value: Any) -> Any:
    # Torch's own way takes a view's whole storage along, and cannot rebuild newer dtypes.
    found = natural(value)
    if found.kind is not Kind.TENSOR:
        return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    torch = sys.modules["torch"]
    flat = found.value.contiguous().reshape(-1)
    return _tensor, (found.dtype, found.shape, flat.view(torch.uint8).numpy().tobytes())


def _tensor(dtype_name: str, shape: tuple[int, ...], data: bytes) -> Any:
    import torch

    dtype = getattr(torch, dtype_name)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
