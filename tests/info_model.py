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
    if dtype.itemsize == 0:
        # Empty strings have room for one character; a structure of nothing has no place at all.
        return Form(np.dtype(f"{dtype.kind}1"), value.shape) if dtype.kind in "SU" else None
    if dtype.hasobject or dtype.kind not in "biufcmMSUV":
        return None
    return Form(dtype, value.shape)


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
        try:
            cast = array.astype(dtype)
        except OverflowError:
            return False  # from years to attoseconds there is no factor
        if array.dtype.kind in "mM":
            # Units of time are compared in the old unit, where not-a-time equals itself.
            back = cast.astype(array.dtype)
            return np.array_equal(back.view(np.int64), array.view(np.int64))
    cast = cast if array.dtype.kind == "c" or dtype.kind != "c" else cast.real
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
    if dtype.kind in "mM":
        return np.array(np.iinfo(np.int64).min).view(dtype)  # not a time
    if dtype.kind in "fc":
        fill[...] = np.nan if dtype.kind == "f" else complex(np.nan, np.nan)
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

    def take(
        self, reports: Mapping[int, Mapping[Any, Any]], *, reset: bool, masked: bool
    ) -> Outcome:
        """One call: what each environment that took part reported, by env index, ascending."""
        outcome = Outcome(starts_anew=reset and not masked and self.any_reports)
        values = self._deliverable(reports, outcome)
        if reset:
            for known in self.keys.values():
                for i in reports:
                    known.rows[i] = EMPTY
        first_seen = values.keys() - self.keys.keys()
        for key, reported in values.items():
            if key in first_seen:
                self.keys[key] = self._new(key, reported, outcome)
            else:
                self._update(key, reported, outcome)
        for key, known in self.keys.items():
            for i in reports:
                known.present[i] = i in values.get(key, {})
            was_missing = key in first_seen and self.any_reports
            if (was_missing or not all(known.present[i] for i in reports)) and not known.companion:
                if f"_{key}" in self.keys:
                    outcome.value_errors.append(f"_{key}")
                else:
                    known.companion = True
        self.any_reports = True
        return outcome

    def expected(self) -> dict[str, Any]:
        """The dict of infos, in the order in which keys appeared, companions last."""
        infos = {key: self._value(known) for key, known in self.keys.items()}
        companions = {
            f"_{key}": np.array(known.present)
            for key, known in self.keys.items()
            if known.companion
        }
        return infos | companions

    def _deliverable(
        self, reports: Mapping[int, Mapping[Any, Any]], outcome: Outcome
    ) -> dict[str, dict[int, Any]]:
        """The values by key and environment. What cannot be delivered leaves its row empty."""
        values: dict[str, dict[int, Any]] = {}
        for i, info in reports.items():
            for key, value in info.items():
                if not isinstance(key, str):
                    outcome.type_errors.append((i, key))
                    continue
                try:
                    snapshot = pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
                except TypeError:
                    outcome.type_errors.append((i, key))
                    if key in self.keys:
                        self.keys[key].rows[i] = EMPTY
                    continue
                values.setdefault("".join(key), {})[i] = snapshot
        for key in values.keys() - self.keys.keys():
            owner = self.keys.get(key[1:]) if key.startswith("_") else None
            if owner is not None and owner.companion:
                outcome.value_errors.append(key)
                del values[key]
        return values

    def _new(self, key: str, reported: Mapping[int, Any], outcome: Outcome) -> Key:
        """A key that was never seen before: one decision for all who report it."""
        forms = [form_of(value) for value in reported.values()]
        form = joined_all(forms)
        if form is not None and not all(survives(v, form.dtype) for v in reported.values()):
            form = None
        if form is None and any(forms):
            outcome.warned.append(key)
        new = Key(form, [EMPTY] * self.num_envs, [False] * self.num_envs)
        for i, value in reported.items():
            new.rows[i] = value if form is None else np.asarray(value).astype(form.dtype)
        return new

    def _update(self, key: str, reported: Mapping[int, Any], outcome: Outcome) -> None:
        """Store what fits; then one decision for all that does not."""
        known = self.keys[key]
        if known.form is None:
            for i, value in reported.items():
                known.rows[i] = value
            return
        misfits = {i: value for i, value in reported.items() if not fits(value, known.form)}
        for i in reported.keys() - misfits.keys():
            known.rows[i] = np.asarray(reported[i]).astype(known.form.dtype)
        if not misfits:
            return
        outcome.replaced.add(key)
        form = joined_all([known.form, *(form_of(value) for value in misfits.values())])
        kept = {i: row for i, row in enumerate(known.rows) if row is not EMPTY and i not in misfits}
        present = kept | misfits
        if form is not None and all(survives(value, form.dtype) for value in present.values()):
            known.rows = [
                np.asarray(present[i]).astype(form.dtype) if i in present else EMPTY
                for i in range(self.num_envs)
            ]
            known.form = form
            return
        outcome.warned.append(key)
        known.form = None
        known.rows = [
            misfits[i] if i in misfits else as_reported(kept[i]) if i in kept else EMPTY
            for i in range(self.num_envs)
        ]

    def _value(self, known: Key) -> Any:
        if known.form is None:
            return [[None if row is EMPTY else row] for row in known.rows]
        dtype, shape = known.form
        array = np.empty((self.num_envs, 1, *shape), dtype)
        for i, row in enumerate(known.rows):
            array[i, 0] = fill_of(dtype) if row is EMPTY else row
        return array
