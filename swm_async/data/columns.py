"""What a column of a dataset holds, and how two columns of one name become one; no I/O.

A column is an array, a text or a JSON column. Values of different episodes meet in the narrowest
form that holds all of them unchanged, whatever the order in which they come; so a file does not
depend on which episodes ran side by side.

Letters: `T` = rows, `(...)` = the shape of one row's value.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from swm_workers.layout import Kind as Natural
from swm_workers.layout import common_dtype, fill_value, natural, survives

Array: TypeAlias = npt.NDArray[Any]
Ranges: TypeAlias = Sequence[tuple[int, int]]

TEXT_DTYPE = np.dtype(np.str_)
_INTEGER_LIMIT = 2.0**64
_SINGLE_FLOATS = ("bfloat16", "float8_")


class Kind(enum.Enum):
    """How the values of a column are kept."""

    ARRAY = "array"
    TEXT = "text"
    JSON = "json"


class Form(NamedTuple):
    """What one row of a column looks like."""

    kind: Kind
    dtype: np.dtype[Any]
    """Of an array column; `TEXT_DTYPE` for text and JSON, whatever the width."""
    shape: tuple[int, ...]


class Column(NamedTuple):
    """The values of one column in one episode."""

    form: Form
    values: Array
    """`(T, ...)`; texts and JSON as an array of `str`."""
    first: int = 0
    """The first row that was reported; those before it are filled."""


class JsonText(str):
    """A value without a column form of its own, as JSON."""

    __slots__ = ()


JSON_FORM = Form(Kind.JSON, TEXT_DTYPE, ())


def row_value(value: Any) -> Array | JsonText:
    """Return what is recorded of one reported value: an array of its own, or JSON.

    Raises:
        TypeError: The value has no form: it is no number, array, tensor or text, nor made of them.
    """
    found = natural(value)
    if found.kind is Natural.ARRAY:
        array: Array = np.array(found.value)
        return (
            array if array.dtype.kind != "U" or _plain(array.reshape(-1).tolist()) else _json(array)
        )
    if found.kind is Natural.TENSOR:
        return np.array(tensor_values(found.value))
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        text = str.__str__(value)
        return np.array(text) if _plain([text]) else _json(text)
    return _json(value)


def tensor_values(tensor: Any) -> Array:
    """Return a tensor on the CPU as an array, over the same memory where numpy has its dtype."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith(_SINGLE_FLOATS):
        tensor = tensor.float()
    elif name == "complex32":
        tensor = tensor.cfloat()
    array: Array = tensor.detach().numpy()
    return array


def column_of(values: Sequence[Array | JsonText], first: int = 0) -> Column:
    """Put the values of an episode's rows, each from `row_value`, into one column."""
    forms = [_row_form(value) for value in values[first:]]
    form = reduce(joint, dict.fromkeys(forms))
    arrays: list[Any] = list(values[first:])
    if form.kind is Kind.ARRAY and not all(survives(a, Natural.ARRAY, form.dtype) for a in arrays):
        form = JSON_FORM
    if form.kind is Kind.JSON:
        arrays = [value if isinstance(value, JsonText) else _json(value) for value in arrays]
    if form.kind is Kind.ARRAY:
        stacked = np.stack([array.astype(form.dtype, copy=False) for array in arrays])
    else:
        stacked = np.array([np.asarray(text) for text in arrays]).reshape(-1, *form.shape)
    return _led(Column(form, stacked), first)


def column_of_array(values: Array, first: int = 0) -> Column:
    """Make a column of an array `(T, ...)` without objects; rows before `first` are filled."""
    array = np.asarray(values)
    if array.dtype.kind == "U":
        if not _plain(array[first:].reshape(-1).tolist()):
            return column_of([row_value(row) for row in array], first)
        # As narrow as these texts allow: the pool's array is as wide as any environment's were.
        array = np.array(array.tolist(), np.str_).reshape(array.shape)
        return _led(Column(Form(Kind.TEXT, TEXT_DTYPE, array.shape[1:]), array[first:]), first)
    form = Form(Kind.ARRAY, array.dtype, array.shape[1:])
    if first:
        array = array.copy()
        array[:first] = fill_value(array.dtype)
    return Column(form, array, first)


def as_column(values: Any) -> Column:
    """Make a column of what a caller has: an array `(T, ...)`, or a sequence of T values."""
    array = values if isinstance(values, np.ndarray) else None
    if array is not None and array.ndim and natural(array).kind is Natural.ARRAY:
        return column_of_array(natural(array).value)
    if natural(values).kind is Natural.TENSOR:
        return column_of_array(tensor_values(values))
    rows = [row_value(value) for value in values]
    if not rows:
        raise ValueError("a column needs a row, found none")
    return column_of(rows)


def joint(first: Form, second: Form) -> Form:
    """Return the form that holds the values of both, as far as types tell; at worst it is JSON."""
    if first == second:
        return first
    if first.kind is Kind.ARRAY and second.kind is Kind.ARRAY and first.shape == second.shape:
        dtype = common_dtype(Natural.ARRAY, first.dtype, second.dtype)
        if dtype is not None:
            return Form(Kind.ARRAY, dtype, first.shape)
    return JSON_FORM


def widened(form: Form, column: Column, stored: Iterable[Array]) -> Form:
    """Return the form for values that are stored in `form` and those of another episode.

    Args:
        form: What the stored values have.
        column: The new values.
        stored: All stored values in pieces `(T, ...)`, read only where the dtype changes.
    """
    wanted = joint(form, column.form)
    if wanted.kind is not Kind.ARRAY or wanted.dtype == form.dtype == column.form.dtype:
        return wanted
    pieces = [column.values] if wanted.dtype != column.form.dtype else []
    if all(survives(piece, Natural.ARRAY, wanted.dtype) for piece in pieces) and (
        wanted.dtype == form.dtype
        or all(survives(piece, Natural.ARRAY, wanted.dtype) for piece in stored)
    ):
        return wanted
    return JSON_FORM


def converted(values: Array, form: Form, wanted: Form, filled: Ranges = ()) -> Array:
    """Bring values `(T, ...)` of one form into a wider one.

    Args:
        values: What is stored.
        form: Its form.
        wanted: The form to be had.
        filled: The rows `(start, stop)` that nobody reported: they get the new form's fill.
    """
    if form.kind is wanted.kind and form.shape == wanted.shape:
        array = values if wanted.kind is not Kind.ARRAY else values.astype(wanted.dtype, copy=False)
    elif wanted.kind is Kind.JSON:
        rows = np.ones(len(values), np.bool_)
        for start, stop in filled:
            rows[start:stop] = False
        texts = [_json(row) if reported else "" for row, reported in zip(values, rows, strict=True)]
        return np.array(texts, np.str_).reshape(len(values))
    else:
        raise ValueError(f"{form} cannot become {wanted}")
    if filled:
        array = array.copy()
    for start, stop in filled:
        array[start:stop] = fill(wanted)
    return array


def fill(form: Form) -> Array:
    """Return the value of a row that nobody reported: NaN, NaT, 0, False or an empty text."""
    return np.array("") if form.kind is not Kind.ARRAY else fill_value(form.dtype)


def filled_rows(form: Form, count: int) -> Array:
    """Return `count` rows that nobody reported, `(count, ...)`."""
    value = fill(form)
    return np.full((count, *form.shape), value, value.dtype)


def _led(column: Column, first: int) -> Column:
    """Put `first` filled rows before the values."""
    if not first:
        return column
    values = np.concatenate([filled_rows(column.form, first), column.values])
    return Column(column.form, values, first)


def _row_form(value: Array | JsonText) -> Form:
    if isinstance(value, JsonText):
        return JSON_FORM
    if value.dtype.kind == "U":
        return Form(Kind.TEXT, TEXT_DTYPE, value.shape)
    return Form(Kind.ARRAY, value.dtype, value.shape)


def _plain(texts: Iterable[str]) -> bool:
    """Whether every format can store these: no NUL, which numpy strips, and valid Unicode."""
    together = "".join(texts)
    try:
        together.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in together


def _json(value: Any) -> JsonText:
    """Write a value as JSON; numbers and arrays by their value alone, whatever their dtype.

    An array's dtype depends on what it has been widened to, so True, 1 and 1.0 are all `1`.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in "biufU":
            raise TypeError(f"values of dtype {value.dtype} beside values of another kind")
        value = _by_value(value.tolist())
    return JsonText(json.dumps(value, default=_jsonable))


def _by_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_by_value(part) for part in value]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < _INTEGER_LIMIT:
        negative_zero = value == 0 and np.signbit(value)
        return value if negative_zero else int(value)
    return value


def _jsonable(value: Any) -> Any:
    """Help `json` with what it does not know, inside of a value."""
    found = natural(value)
    if found.kind is Natural.TENSOR:
        found = natural(tensor_values(found.value))
    if found.kind is Natural.ARRAY and found.dtype.kind in "biufU":
        return found.value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of {type(value).__qualname__}")
