"""Which form a value takes, what fits where, and what becomes of what does not.

The expected values are written down from the table and the rules of docs/contract.md, Infos.
"""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import array, plain_id
from info_envs import Count, Length, Name, memory_mapped, read_only, strided, swapped
from swm_workers.layout import (
    ALIGNMENT,
    Kind,
    Natural,
    Place,
    Slot,
    aligned,
    array_view,
    common_dtype,
    fill_value,
    fits,
    flags_view,
    itemsize,
    natural,
    start_of,
    storable,
    survives,
)


class Level(enum.IntEnum):
    LOW = 1


def slot(dtype: Any, shape: tuple[int, ...] = ()) -> Slot:
    return Slot(Kind.ARRAY, np.dtype(dtype), shape, Place(1, 0), Place(1, 64), False)


# Forms.


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "bool"),
        (7, "int64"),
        (-(2**63), "int64"),
        (2**63 - 1, "int64"),
        (2**63, "uint64"),
        (2**64 - 1, "uint64"),
        (0.5, "float64"),
        (1j, "complex128"),
        (np.bool_(True), "bool"),
        (np.float16(0.5), "float16"),
        (np.longdouble(0.5), "longdouble"),
        (np.complex64(1j), "complex64"),
        (np.uint8(3), "uint8"),
        (np.longlong(3), "int64"),
        (np.datetime64("2024-02-29"), "datetime64[D]"),
        (np.timedelta64(3, "ms"), "timedelta64[ms]"),
        (np.str_("abc"), "U3"),
        (np.str_(""), "U1"),
        (np.bytes_(b"ab"), "S2"),
        (np.void(b"abc"), "V3"),
        (array(2.5, "f4"), "float32"),
    ],
)
def test_a_number_or_numpy_scalar_is_an_array_without_axes(value: Any, dtype: str) -> None:
    found = natural(value)
    assert (found.kind, found.dtype, found.shape) == (Kind.ARRAY, np.dtype(dtype), ())
    assert found.value.dtype == np.dtype(dtype)
    assert found.value[()] == value


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (array([1, 2], ">i4"), "int32"),
        (array([1.5, 2.5], ">f2"), "float16"),
        (array(["a", "bc"], ">U2"), "U2"),
        (array(["2024", "NaT"], ">M8[D]"), "datetime64[D]"),
        (array([(1, "a")], [("n", ">i4"), ("s", ">U1")]), [("n", "i4"), ("s", "U1")]),
        # A structure whose only part in the other byte order is an array of its own.
        (array([([2, 3],)], [("m", ">i2", (2,))]), [("m", "i2", (2,))]),
    ],
)
def test_an_array_is_stored_in_native_byte_order(value: np.ndarray, dtype: Any) -> None:
    found = natural(value)
    assert found.dtype == np.dtype(dtype)
    assert found.value.dtype == np.dtype(dtype)
    assert str(found.value) == str(value)


@pytest.mark.parametrize(
    "value",
    [
        strided(np.arange(6).reshape(3, 2)),
        read_only(np.arange(6).reshape(3, 2)),
        swapped(np.arange(6).reshape(3, 2)),
        memory_mapped(np.arange(6).reshape(3, 2)),
        np.asfortranarray(np.arange(6).reshape(3, 2)),
        np.arange(6).reshape(3, 2).view(Length),
        np.arange(6).reshape(3, 2).view(np.matrix),
    ],
    ids=["strided", "read-only", "swapped", "memory-mapped", "Fortran", "subclass", "matrix"],
)
def test_an_odd_array_has_the_form_of_a_plain_one(value: np.ndarray) -> None:
    found = natural(value)
    assert (found.kind, found.dtype, found.shape) == (Kind.ARRAY, np.dtype(np.int64), (3, 2))
    assert type(found.value) is np.ndarray
    assert found.value.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_an_empty_array_has_a_form() -> None:
    assert natural(np.empty((0, 3), np.float32))[:3] == (Kind.ARRAY, np.float32, (0, 3))


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        b"bytes",
        [1, 2],
        (1, 2),
        {"a": 1},
        range(3),
        2**64,
        -(2**63) - 1,
        Level.LOW,
        Count(3),
        Name("x"),
        array([1, None], object),
        array([(1, None)], [("n", "i4"), ("o", object)]),
        np.ma.masked_array([1, 2], mask=[True, False]),
        np.ma.masked,
        np.str_("ends in\0"),
        np.bytes_(b"ends in\0"),
        np.void(b""),
    ],
    ids=plain_id,
)
def test_everything_else_is_an_object(value: Any) -> None:
    found = natural(value)
    assert found.kind is Kind.OBJECT
    assert found.value is value


def test_strings_of_variable_width_are_objects() -> None:
    dtypes = getattr(np, "dtypes", None)
    if not hasattr(dtypes, "StringDType"):
        pytest.skip("numpy 1 has no strings of variable width")
    assert natural(np.array(["a"], dtypes.StringDType())).kind is Kind.OBJECT


def test_a_structure_without_content_cannot_be_stored() -> None:
    assert storable(np.dtype([("nothing", "S0")])) is None


# Fill values.


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g"])
def test_floats_are_filled_with_nan(dtype: str) -> None:
    assert np.isnan(fill_value(np.dtype(dtype)))


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_complex_numbers_are_filled_with_nan_in_both_parts(dtype: str) -> None:
    fill = fill_value(np.dtype(dtype))
    assert np.isnan(fill.real)
    assert np.isnan(fill.imag)


@pytest.mark.parametrize("dtype", ["M8[D]", "M8", "m8[ns]"])
def test_times_are_filled_with_not_a_time(dtype: str) -> None:
    assert np.isnat(fill_value(np.dtype(dtype)))


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("bool", False), ("u1", 0), ("i8", 0), ("U3", ""), ("S3", b""), ("V2", b"\0\0")],
)
def test_other_dtypes_are_filled_with_zeros(dtype: str, fill: Any) -> None:
    assert fill_value(np.dtype(dtype)).item() == fill


def test_a_structure_is_filled_field_by_field() -> None:
    inner = np.dtype([("x", "f4", (2,)), ("t", "M8[s]")])
    fill = fill_value(np.dtype([("n", "i4"), ("inner", inner), ("name", "U2")]))
    assert fill["n"] == 0
    assert fill["name"] == ""
    assert np.isnan(fill["inner"]["x"]).all()
    assert np.isnat(fill["inner"]["t"])


# Common dtypes.


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        ("bool", "i1", "i1"),
        ("i1", "u1", "i2"),
        ("i8", "u8", "f8"),
        ("i8", "f4", "f8"),
        ("f2", "i1", "f2"),
        ("f2", "i2", "f4"),
        ("f4", "c8", "c8"),
        ("f8", "c8", "c16"),
        ("S2", "S5", "S5"),
        ("U7", "U3", "U7"),
        ("M8[D]", "M8[ns]", "M8[ns]"),
        ("M8[Y]", "M8[D]", "M8[D]"),
        ("m8", "m8[s]", "m8[s]"),
        ("m8[4s]", "m8[6s]", "m8[2s]"),
    ],
)
def test_dtypes_of_one_group_have_numpys_common_dtype(first: str, second: str, common: str) -> None:
    for pair in ((first, second), (second, first)):
        assert common_dtype(Kind.ARRAY, *map(np.dtype, pair)) == np.dtype(common)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("bool", "U1"),
        ("f8", "U3"),
        ("S3", "U3"),
        ("i8", "m8[s]"),
        ("M8[D]", "m8[D]"),
        ("m8[Y]", "m8[D]"),
        ("M8[as]", "M8[Y]"),
        ("V3", "V4"),
        ([("x", "f4")], [("x", "f8")]),
        ([("x", "f4")], "f4"),
    ],
)
def test_dtypes_of_different_groups_have_none(first: Any, second: Any) -> None:
    assert common_dtype(Kind.ARRAY, np.dtype(first), np.dtype(second)) is None


def test_equal_structures_have_themselves_in_common() -> None:
    dtype = np.dtype([("x", "f4")])
    assert common_dtype(Kind.ARRAY, dtype, np.dtype([("x", "f4")])) == dtype


# Survival.


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (array([True, False], bool), "f8"),
        (array([-128, 127], "i1"), "f2"),
        (array(2**53, "i8"), "f8"),
        (array(2**63, "u8"), "f8"),
        (array(-(2**63), "i8"), "f8"),
        (array([0.1, math.nan, math.inf, -0.0], "f4"), "f8"),
        (array([0.1, math.nan], "f4"), "c16"),
        (array([complex(math.nan, 1.0)], "c8"), "c16"),
        (array(["", "abc"], "U3"), "U9"),
        (array(["2024-02-29", "NaT"], "M8[D]"), "M8[ns]"),
        (array([5, "NaT"], "m8"), "m8[s]"),
        (array([], "i8"), "f2"),
    ],
    ids=str,
)
def test_a_value_survives_a_dtype_that_can_hold_it(value: np.ndarray, dtype: str) -> None:
    assert survives(value, Kind.ARRAY, np.dtype(dtype))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (array(2**53 + 1, "i8"), "f8"),
        (array([0, 2**53 + 1], "i8"), "c16"),
        (array(2**63 - 1, "i8"), "f8"),
        (array(2**64 - 1, "u8"), "f8"),
        (array(2049, "i2"), "f2"),
        # Beyond 584 years around 1970 there are no nanoseconds; the cast wraps around.
        (array("3000-01-01", "M8[D]"), "M8[ns]"),
        (array("NaT", "M8[Y]"), "M8[as]"),
    ],
    ids=str,
)
def test_a_value_does_not_survive_a_dtype_that_rounds_it(value: np.ndarray, dtype: str) -> None:
    assert not survives(value, Kind.ARRAY, np.dtype(dtype))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "bool"),
        (True, "i8"),
        (3, "f8"),
        (np.int8(3), "i8"),
        (np.float32(0.1), "f8"),
        (0.5, "c16"),
        (np.str_("ab"), "U3"),
        (np.datetime64("2024-02-29"), "M8[ns]"),
        (array(0.5, ">f8"), "f8"),
    ],
)
def test_a_value_fits_a_slot_of_a_wider_dtype(value: Any, dtype: str) -> None:
    assert fits(natural(value), slot(dtype))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, "bool"),
        (0.5, "i8"),
        (1.0, "i8"),  # its value would survive; the dtype alone decides first
        (np.int64(3), "i1"),
        (3, "u8"),
        (2**53 + 1, "f8"),
        (1j, "f8"),
        (np.str_("abcd"), "U3"),
        (np.str_("1.5"), "f8"),
        (None, "f8"),
        ("1.5", "f8"),
        (array([0.5], "f8"), "f8"),
        (np.datetime64("2024", "Y"), "m8[Y]"),
        (np.datetime64("3000-01-01"), "M8[ns]"),
    ],
)
def test_a_value_does_not_fit_another_kind_or_shape_or_a_narrower_dtype(
    value: Any, dtype: str
) -> None:
    assert not fits(natural(value), slot(dtype))


def test_one_element_is_not_spread_over_an_array() -> None:
    assert not fits(natural(array([1.0], "f8")), slot("f8", (3,)))
    assert not fits(natural(1.0), slot("f8", (1,)))


def test_nothing_fits_a_list() -> None:
    objects = Slot(Kind.OBJECT, None, (), None, Place(1, 0), False)
    assert not fits(natural(0.5), objects)
    assert not fits(natural("text"), objects)


def test_a_tensor_does_not_fit_an_array() -> None:
    tensor = Natural(Kind.TENSOR, "float64", (), None)
    assert not fits(tensor, slot("f8"))


# Places.


def test_views_of_a_slot_share_its_memory() -> None:
    buffer = bytearray(256)
    view = array_view(buffer, 3, np.dtype(np.int16), (2,), ALIGNMENT)
    assert view.shape == (3, 1, 2)
    view[2, 0] = [1, 2]
    assert buffer[ALIGNMENT + 8 : ALIGNMENT + 12] == b"\1\0\2\0"


def test_the_flags_of_a_slot_are_two_rows() -> None:
    buffer = bytearray(256)
    present, held = flags_view(buffer, 3, Place(1, 64))
    present[0] = held[2] = True
    assert buffer[64:70] == b"\1\0\0\0\0\1"


def test_sizes_are_in_bytes_and_offsets_in_whole_cache_lines() -> None:
    assert itemsize(Kind.ARRAY, np.dtype("U3")) == 12
    assert [aligned(size) for size in (0, 1, 64, 65)] == [0, 64, 64, 128]


@pytest.mark.parametrize(
    ("free", "row_bytes", "seam", "expected"),
    [
        (0, 1, 16, 48),  # 16 flags end at 64
        (10, 1, 16, 64 + 48),
        (64, 8, 4, 64 + 32),  # 4 float64 end at 128
        (64, 8, 8, 64),  # a line is full
        (0, 20, 3, 4),  # "U5": 60 bytes
        (0, 12288, 5, 0),
        (130, 0, 7, 192),
    ],
)
def test_the_row_of_the_second_worker_begins_a_cache_line(
    free: int, row_bytes: int, seam: int, expected: int
) -> None:
    assert start_of(free, row_bytes, seam) == expected


@given(st.integers(0, 10**6), st.integers(0, 1000), st.integers(1, 500), st.integers(0, 6))
def test_arrays_begin_at_a_multiple_of_their_dtypes_alignment(
    free: int, items: int, seam: int, power: int
) -> None:
    size = 2**power
    start = start_of(free, items * size, seam)
    assert free <= start < free + 2 * ALIGNMENT
    assert start // ALIGNMENT >= -(-free // ALIGNMENT)
    assert start % size == 0
    assert (start + seam * items * size) % ALIGNMENT == 0
