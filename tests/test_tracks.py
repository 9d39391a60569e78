"""The rows of one key, whatever becomes of its array in the middle of an episode."""

from __future__ import annotations

import numpy as np

from swm_async.data.columns import Kind
from swm_async.tracks import Track

ONE = np.array([0])


def put(track: Track, row: int, values, present: bool = True) -> None:
    track.put(values, ONE, np.array([row]), np.array([present]))


def test_rows_before_the_first_report_are_filled_in_the_dtype_of_the_last():
    track = Track(1)
    put(track, 0, np.array([[0]]), present=False)
    put(track, 1, np.array([[7]]))
    put(track, 2, np.array([[0.5]]))
    column = track.column(0, 3)
    assert column.first == 1
    np.testing.assert_array_equal(column.values, [np.nan, 7, 0.5])


def test_a_value_that_a_wider_dtype_would_change_is_kept_as_json():
    track = Track(1)
    put(track, 0, np.array([[2**53 + 1]]))
    put(track, 1, np.array([[0.5]]))
    column = track.column(0, 2)
    assert column.form.kind is Kind.JSON
    assert column.values.tolist() == ["9007199254740993", "0.5"]


def test_lists_of_values_of_one_kind_are_arrays_again():
    track = Track(1)
    for row in range(40):  # more than there is room for at first
        put(
            track,
            row,
            [[np.full(3, row, np.int8)]] if row > 35 else np.full((1, 1, 3), row, np.int8),
        )
    column = track.column(0, 40)
    assert column.values.dtype == np.int8
    assert column.values.tolist() == [[row] * 3 for row in range(40)]


def test_what_a_policy_changes_later_is_not_recorded():
    track = Track(1)
    mood, array = {"a": 1}, np.ones((1, 1))
    put(track, 0, [[mood]])
    mood["a"] = 2
    assert track.column(0, 1).values.tolist() == ['{"a": 1}']
    track = Track(1)
    put(track, 0, array)
    array[:] = 5
    assert track.column(0, 1).values.tolist() == [1.0]


def test_an_episode_forgets_the_one_before():
    track = Track(2)
    track.put(np.array([[1], [2]]), np.array([0, 1]), np.array([0, 0]), None)
    track.restart(ONE)
    assert track.column(0, 1) is None
    assert track.column(1, 1).values.tolist() == [2]
    put(track, 0, np.array([[3], [4]]))
    assert track.column(0, 1).values.tolist() == [3]
