"""Where each info key lives and which values fit there; no I/O, no processes.

This module holds the table and the widening rules of ``docs/contract.md``, Infos. Both
sides use it, so that a value is judged in the same way wherever it is looked at.

Letters: ``N`` = number of environments, ``i`` = env index. A slot of per-environment shape
``(...)`` is an array ``(N, 1, ...)`` in a block of shared memory.
"""

from __future__ import annotations

import enum
import math
import sys
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes; a cache line, and enough for every dtype."""

Array: TypeAlias = npt.NDArray[Any]
Dtype: TypeAlias = np.dtype[Any]

_PYTHON_NUMBERS = frozenset({bool, int, float, complex})
_NUMBER_KINDS = frozenset("biufc")
_FIXED_KINDS = frozenset("biufcmMSUV")
_TENSOR_DTYPES = frozenset(
    {
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    }
)
"""What torch can copy and fill: not quantized, not bare bits, not several in one byte."""


class Kind(enum.Enum):
    """How the values of one key are kept."""

    ARRAY = "numpy"
    TENSOR = "torch"
    OBJECT = "object"


class Place(NamedTuple):
    """A position in shared memory: which block, and the offset in bytes."""

    block: int
    offset: int


class Slot(NamedTuple):
    """Where one key lives: ``(N, 1, *shape)`` values, ``(2, N)`` bool flags.

    Row 0 of the flags says whether environment i's last report held the key, row 1 whether
    it has held it since the environment's last reset.
    """

    kind: Kind
    dtype: Any
    """numpy dtype, name of a torch dtype, or None for objects."""
    shape: tuple[int, ...]
    place: Place | None
    """None for objects, which lie in lists."""
    flags: Place
    companion: bool
    """Whether the key has been missing from some report, so that ``_key`` exists."""
    losses: int = 0
    """Counts values that the pool could not rebuild: what was sent before is sent again."""


class ObservationSlot(NamedTuple):
    """Where one leaf of the batched observation lives: ``(N, *shape)`` values."""

    dtype: Dtype
    shape: tuple[int, ...]
    place: Place


class Form(NamedTuple):
    """What all arrays of a pool have in common, under every layout."""

    num_envs: int
    seam: int
    """The first row of the second worker: in every array it begins a cache line."""
    rewards: Dtype
    """float32, or float64 where they are handed out as exactly as they were reported."""


class Layout(NamedTuple):
    """All slots of a pool at one moment; every change has a new version."""

    version: int
    form: Form
    control: int
    """The block with actions, mask, rewards and flags (see ``spaces.Control``)."""
    slots: dict[str, Slot]
    observations: tuple[ObservationSlot | None, ...]


class Natural(NamedTuple):
    """The form in which a value would be stored if it were the only one of its key."""

    kind: Kind
    dtype: Any
    shape: tuple[int, ...]
    value: Any
    """A native numpy array, a detached dense tensor on the CPU, or the value itself."""


def natural(value: Any) -> Natural:
    """Classify an info value by the table of ``docs/contract.md``, Infos."""
    cls = value.__class__
    if cls in _PYTHON_NUMBERS:
        return _natural_number(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return _natural_array(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _natural_tensor(torch, value)
    return Natural(Kind.OBJECT, None, (), value)


def _natural_number(value: Any) -> Natural:
    if value.__class__ is int:
        if -(2**63) <= value < 2**63:
            array = np.array(value, np.int64)
        elif 0 <= value < 2**64:
            array = np.array(value, np.uint64)
        else:
            return Natural(Kind.OBJECT, None, (), value)
    else:
        array = np.array(value)
    return Natural(Kind.ARRAY, array.dtype, (), array)


def _natural_array(value: Any) -> Natural:
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(value, masked.MaskedArray):
        return Natural(Kind.OBJECT, None, (), value)
    # A scalar keeps trailing NULs, an array of strings does not: storing would lose them.
    if isinstance(value, (np.str_, np.bytes_)) and value[-1:] in ("\0", b"\0"):
        return Natural(Kind.OBJECT, None, (), value)
    array = np.asarray(value)
    dtype = storable(array.dtype)
    if dtype is None:
        return Natural(Kind.OBJECT, None, (), value)
    return Natural(Kind.ARRAY, dtype, array.shape, array.astype(dtype, copy=False))


def _natural_tensor(torch: Any, value: Any) -> Natural:
    name = str(value.dtype).removeprefix("torch.")
    # Nested tensors claim to be strided, and have no shape.
    dense = value.layout is torch.strided and not value.is_nested and not value.is_meta
    if not dense or name not in _TENSOR_DTYPES:
        return Natural(Kind.OBJECT, None, (), value)
    tensor = value.detach().as_subclass(torch.Tensor).cpu().resolve_conj().resolve_neg()
    return Natural(Kind.TENSOR, name, tuple(value.shape), tensor)


def storable(dtype: Dtype) -> Dtype | None:
    """The native dtype that stores ``dtype`` in shared memory; None = it cannot be stored."""
    if dtype.hasobject or dtype.kind not in _FIXED_KINDS:
        return None
    if dtype.itemsize == 0:
        # Arrays of empty strings have no bytes of their own; empty records have no content.
        return np.dtype(dtype.kind + "1") if dtype.kind in "SU" else None
    # Of a structure, isnative does not tell: it overlooks the byte order within subarrays.
    return dtype if dtype.isnative and dtype.names is None else dtype.newbyteorder("=")


def fill_value(dtype: Dtype) -> Array:
    """The value ``()`` of a row without a report: NaN, NaT, 0, False or the empty string."""
    fill = np.zeros((), dtype)
    if dtype.names is not None:
        for name in dtype.names:
            fill[name] = fill_value(fill[name].dtype)
    elif dtype.kind == "f":
        fill[...] = math.nan
    elif dtype.kind == "c":
        fill[...] = complex(math.nan, math.nan)
    elif dtype.kind in "mM":
        # By its bits: from numpy 2.5 on, text for times without a unit is warned of.
        fill[...] = np.array(np.iinfo(np.int64).min).view(dtype.newbyteorder("="))
    return fill


def fill_number(torch: Any, dtype_name: str) -> Any:
    """The fill value of a torch dtype as a Python number."""
    dtype = getattr(torch, dtype_name)
    if dtype.is_complex:
        return complex(math.nan, math.nan)
    return math.nan if dtype.is_floating_point else 0


def common_dtype(kind: Kind, first: Any, second: Any) -> Any:
    """The dtype that may hold values of both, by type alone; None = there is none.

    Numbers widen among {bool, integers, floats, complex}, strings, bytes, dates and spans
    among themselves, by ``numpy.result_type`` or ``torch.promote_types``.
    """
    if first == second:
        return first
    if kind is Kind.TENSOR:
        torch = sys.modules["torch"]
        try:
            widened = torch.promote_types(getattr(torch, first), getattr(torch, second))
        except (RuntimeError, TypeError):
            return None  # float8 and the like have no promotion
        return str(widened).removeprefix("torch.")
    same_group = first.kind == second.kind and first.kind in "SUmM"
    if not same_group and not (first.kind in _NUMBER_KINDS and second.kind in _NUMBER_KINDS):
        return None
    try:
        return np.result_type(first, second)
    except (TypeError, OverflowError):
        return None  # units of time that cannot be converted into each other


def survives(value: Any, kind: Kind, dtype: Any) -> bool:
    """Whether every element of an array or tensor can be had back after a cast to dtype."""
    if kind is Kind.TENSOR:
        return _tensor_survives(sys.modules["torch"], value, dtype)
    if value.dtype == dtype or value.size == 0:
        return True
    with np.errstate(all="ignore"):
        try:
            cast = value.astype(dtype)
            if value.dtype.kind in "iu" and dtype.kind in "fc":
                return _integers_survive(value, cast.real)
            back = (cast.real if value.dtype.kind != "c" else cast).astype(value.dtype)
        except (OverflowError, ValueError):
            return False  # dates beyond the range of the finer unit
    if value.dtype.kind in "mM":
        return bool((back.view(np.int64) == value.view(np.int64)).all())
    return np.array_equal(value, back, equal_nan=value.dtype.kind in "fc")


def _integers_survive(value: Array, cast: Array) -> bool:
    """Integers in floats, without casting back a float that lies beyond the integers."""
    bits = value.dtype.itemsize * 8 - (value.dtype.kind == "i")
    inside = cast < math.ldexp(1.0, bits)
    return bool(inside.all()) and np.array_equal(value, cast.astype(value.dtype))


def _tensor_survives(torch: Any, value: Any, dtype_name: str) -> bool:
    if str(value.dtype) == f"torch.{dtype_name}":
        return True
    cast = value.to(getattr(torch, dtype_name))
    is_integer = not (value.dtype.is_floating_point or value.dtype.is_complex)
    if is_integer and (cast.dtype.is_floating_point or cast.dtype.is_complex):
        real = cast.real if cast.dtype.is_complex else cast
        if not bool((real.double() < math.ldexp(1.0, 63)).all()):
            return False
        return bool(torch.equal(real.to(value.dtype), value))
    real = cast.real if cast.dtype.is_complex and not value.dtype.is_complex else cast
    back = real.to(value.dtype)
    same = (back == value) | ((back != back) & (value != value))
    return bool(same.all())


def fits(value: Natural, slot: Slot) -> bool:
    """Whether a value can be written into a slot as it is."""
    if value.kind is not slot.kind or value.kind is Kind.OBJECT or value.shape != slot.shape:
        return False
    dtype = common_dtype(value.kind, slot.dtype, value.dtype)
    # None has to be asked for first: numpy takes it for float64 in a comparison.
    if dtype is None or dtype != slot.dtype:
        return False
    return survives(value.value, value.kind, dtype)


def itemsize(kind: Kind, dtype: Any) -> int:
    """Bytes of one element."""
    if kind is Kind.TENSOR:
        return int(getattr(sys.modules["torch"], dtype).itemsize)
    return int(dtype.itemsize)


def aligned(size: int) -> int:
    """The next multiple of ``ALIGNMENT``."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def start_of(free: int, row_bytes: int, seam: int) -> int:
    """Where an array begins so that its row ``seam`` begins a cache line.

    The rows of a bool take one byte each. Two workers that write into the same line take it
    from each other with every write.

    Args:
        free: the first byte that is not taken; in its line nothing else will lie.
        row_bytes: the bytes of one environment.
        seam: the row.
    """
    return aligned(free) + -seam * row_bytes % ALIGNMENT


def array_view(
    buffer: Any, num_envs: int, dtype: Dtype, shape: tuple[int, ...], offset: int
) -> Array:
    """The values of an array slot as ``(N, 1, *shape)``, a live view on a block."""
    view: Array = np.ndarray((num_envs, 1, *shape), dtype, buffer, offset)
    return view


def tensor_view(
    torch: Any, buffer: Any, num_envs: int, dtype_name: str, shape: tuple[int, ...], offset: int
) -> Any:
    """The values of a tensor slot as ``(N, 1, *shape)``, a live view on a block."""
    full = (num_envs, 1, *shape)
    count = math.prod(full)
    dtype = getattr(torch, dtype_name)
    if count == 0:
        return torch.empty(full, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset).reshape(full)


def flags_view(buffer: Any, num_envs: int, place: Place) -> tuple[Array, Array]:
    """The two flag rows of a slot, each ``(N,) bool``: in the last report, since the reset."""
    present = np.ndarray((num_envs,), np.bool_, buffer, place.offset)
    held = np.ndarray((num_envs,), np.bool_, buffer, place.offset + num_envs)
    return present, held
