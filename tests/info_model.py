"""The reference model of the infos: docs/contract.md, Infos, as a program in plain Python.

It keeps each row's value by itself, without buffers, workers or messages, and uses nothing of
the package. What may be stored and what a dtype can hold is asked of numpy and of Python's own
exact comparison of numbers. Torch's tensors are left to tests of their own.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

EMPTY: Any = object()
"""A row that holds no value: never reset, or without a value since its last reset."""

WIDENING_GROUPS = ("biufc", "S", "U", "m", "M")
PYTHON_DTYPES = [np.dtype(t) for t in (bool, np.int64, np.uint64, np.float64, np.complex128)]


class Form(NamedTuple):
    """An array `(N, 1, *shape)`. Values without a form are kept in lists."""

    dtype: np.dtype
    shape: tuple[int, ...]


def form_of(value: Any) -> Form | None:
    """The table of the contract: the array that a value would have if it were the only one."""
    if type(value) in (bool, float, complex):
        return Form(np.dtype(type(value)), ())
    if type(value) is int:
        for dtype in (np.int64, np.uint64):
            if np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
                return Form(np.dtype(dtype), ())
        return None
    if isinstance(value, np.ma.MaskedArray) or not isinstance(value, (np.ndarray, np.generic)):
        return None
    if isinstance(value, (np.str_, np.bytes_)) and np.asarray(value)[()] != value:
        return None  # its trailing NULs would be dropped
    dtype = value.dtype.newbyteorder("=")
    if dtype.hasobject or dtype.kind not in "biufcmMSUV" or dtype == "V0":
        return None
    return Form(np.dtype(f"{dtype.kind}1") if dtype.itemsize == 0 else dtype, value.shape)


def joined(first: Form | None, second: Form | None) -> Form | None:
    """The form that may hold values of both: the same shape, and a dtype of the same group."""
    if first is None or second is None or first.shape != second.shape:
        return None
    if first.dtype == second.dtype:
        return first
    kinds = {first.dtype.kind, second.dtype.kind}
    if not any(kinds <= set(group) for group in WIDENING_GROUPS):
        return None
    try:
        return Form(np.result_type(first.dtype, second.dtype), first.shape)
    except (TypeError, OverflowError):
        return None  # units of time without a common one


def joined_all(forms: list[Form | None]) -> Form | None:
    total = forms[0]
    for form in forms[1:]:
        total = joined(total, form)
    return total


def survives(value: Any, dtype: np.dtype) -> bool:
    """Whether nothing is lost: each element equals what becomes of it."""
    array = np.asarray(value)
    if array.dtype.newbyteorder("=") == dtype:
        return True
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        if array.dtype.kind in "mM":
            # Units of time are compared in the old unit, where not-a-time equals itself.
            back = cast.astype(array.dtype)
            return np.array_equal(back.view(np.int64), array.view(np.int64))
    pairs = zip(array.ravel().tolist(), cast.ravel().tolist(), strict=True)
    return all(old == new or (old != old and new != new) for old, new in pairs)


def fits(value: Any, form: Form) -> bool:
    found = joined(form, form_of(value))
    return found is not None and found.dtype == form.dtype and survives(value, form.dtype)


def fill_of(dtype: np.dtype) -> Any:
    """NaN, NaT, 0, False or the empty string; for structures those of their fields."""
    fill = np.zeros((), dtype)
    for name in dtype.names or ():
        fill[name] = fill_of(dtype[name].base)
    nothing = {"f": np.nan, "c": complex(np.nan, np.nan), "m": "NaT", "M": "NaT"}
    if dtype.kind in nothing:
        fill[...] = np.array(nothing[dtype.kind], dtype)
    return fill


def as_reported(row: np.ndarray) -> Any:
    """A row of an array that becomes a list: a Python number where it may have been one."""
    if row.shape == ():
        return row.item() if row.dtype in PYTHON_DTYPES else row[()]
    return row.copy()


@dataclass
class Key:
    form: Form | None
    rows: list[Any]
    """Arrays of the form, or any objects, or EMPTY."""
    present: list[bool]
    companion: bool = False


@dataclass
class Outcome:
    """What a call must do besides leaving the right values."""

    type_errors: list[tuple[int, Any]] = field(default_factory=list)
    """`(env_index, key)`: no string, or a value that cannot be pickled and rebuilt."""
    value_errors: list[str] = field(default_factory=list)
    """Names that are both an environment's own key and a companion."""
    warned: list[str] = field(default_factory=list)
    """Keys that have become lists although they, or a value of theirs, had an array's form."""
    replaced: set[str] = field(default_factory=set)
    """Keys that have a new array or list; all others keep the object they had."""
    starts_anew: bool = False
    """Whether all arrays, lists and companions are new."""


class InfoModel:
    """What `infos` holds after each reset and step of `num_envs` environments."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.keys: dict[str, Key] = {}
        self.any_reports = False

    def take(self, reports: Mapping[int, Mapping[Any, Any]], *, reset: bool) -> Outcome:
        """One call: what each environment that took part reported, by env index, ascending.

        A reset of all environments starts new arrays.
        """
        outcome = Outcome(
            starts_anew=reset and len(reports) == self.num_envs and self.any_reports
        )
        values = self._deliverable(reports, outcome, reset)
        for key, of_key in values.items():
            if key not in self.keys:
                self.keys[key] = self._new_key(key, of_key, outcome)
                # A key that first appears later was missing before.
                missing = self.any_reports or of_key.keys() != reports.keys()
            else:
                self._report(key, of_key, outcome)
        for key, known in self.keys.items():
            of_key = values.get(key, {})
            for i in reports:
                known.present[i] = i in of_key
            first_seen = key in values and outcome_is_new(known)
            del first_seen
        raise NotImplementedError(missing)
