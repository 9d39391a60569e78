"""Folders of npz files: what they hold as numpy reads them, and how they grow."""

from __future__ import annotations

import json

import numpy as np
import pytest

from swm_async.data import NpzDataset, NpzWriter, load_dataset


def write(path, *episodes, mode="append"):
    writer = NpzWriter(path, mode)
    for episode in episodes:
        writer.write_episode(episode)
    writer.close()


def content(path, number: int) -> dict[str, np.ndarray]:
    with np.load(path / f"episode_{number}.npz", allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def assert_arrays(found, wanted):
    assert sorted(found) == sorted(wanted)
    for name, values in wanted.items():
        values = np.asarray(values)
        assert (found[name].dtype.kind, found[name].shape) == (values.dtype.kind, values.shape)
        np.testing.assert_array_equal(found[name], values, err_msg=name)


# Files.


def test_each_episode_is_a_file_with_a_key_per_column(tmp_path):
    write(tmp_path, {"x": np.arange(3), "word": ["a", "bcd", ""]}, {"x": [5], "word": ["e"]})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["episode_0.npz", "episode_1.npz"]
    assert_arrays(content(tmp_path, 0), {"x": [0, 1, 2], "word": ["a", "bcd", ""]})
    assert_arrays(content(tmp_path, 1), {"x": [5], "word": ["e"]})


def test_appending_continues_the_numbers(tmp_path):
    for k in range(11):
        write(tmp_path, {"x": [k]})
    (tmp_path / "episode_3.npz").unlink()
    write(tmp_path, {"x": [11]})
    assert content(tmp_path, 11)["x"].tolist() == [11]
    dataset = NpzDataset(tmp_path)
    assert [dataset.load_episode(k)["x"][0] for k in range(11)] == [0, 1, 2, *range(4, 12)]


def test_overwriting_replaces_episodes_and_nothing_else(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, {"x": [1]}, {"x": [2]})
    write(tmp_path, {"y": [3]}, mode="overwrite")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["episode_0.npz", "notes.txt"]
    assert_arrays(content(tmp_path, 0), {"y": [3]})


def test_the_mode_error_refuses_episodes_that_exist(tmp_path):
    write(tmp_path / "new" / "folder", {"x": [1]}, mode="error")
    with pytest.raises(FileExistsError, match='mode="append" adds'):
        NpzWriter(tmp_path / "new" / "folder", "error")
    assert content(tmp_path / "new" / "folder", 0)["x"].tolist() == [1]


def test_two_writers_at_once_are_refused(tmp_path):
    writer = NpzWriter(tmp_path)
    with pytest.raises(BlockingIOError, match="someone else"):
        NpzWriter(tmp_path)
    writer.close()
    write(tmp_path, {"x": [1]})


def test_a_file_where_the_folder_should_be_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a folder"):
        NpzWriter(tmp_path / "file")


# Columns over several episodes.


@pytest.mark.parametrize("sessions", [1, 2])
def test_a_late_column_is_filled_in_the_files_before_it(tmp_path, sessions):
    late = {
        "x": [1],
        "f": [0.5],
        "n": [2],
        "b": [True],
        "s": ["w"],
        "d": np.array(["2020"], "M8[D]"),
    }
    if sessions == 1:
        write(tmp_path, {"x": [0, 0]}, late)
    else:
        write(tmp_path, {"x": [0, 0]})
        write(tmp_path, late)
    nothing = {"f": [np.nan] * 2, "n": [0, 0], "b": [False] * 2, "s": ["", ""]}
    times = np.full(2, "NaT", "M8[D]")
    assert_arrays(content(tmp_path, 0), {"x": [0, 0], **nothing, "d": times})


def test_a_column_that_an_episode_lacks_is_filled(tmp_path):
    write(tmp_path, {"x": [0], "f": [0.5], "s": ["w"]}, {"x": [1, 2]})
    wanted = {"x": [1, 2], "f": [np.nan, np.nan], "s": ["", ""]}
    assert_arrays(content(tmp_path, 1), wanted)


def test_dtypes_widen_in_all_files_and_filled_rows_become_nan(tmp_path):
    write(tmp_path, {"a": [1]}, {"a": [2], "x": [3]}, {"a": [4], "x": [0.5]})
    found = [content(tmp_path, k)["x"] for k in range(3)]
    assert [values.dtype for values in found] == [np.float64] * 3
    np.testing.assert_array_equal(found, [[np.nan], [3.0], [0.5]])


@pytest.mark.parametrize(
    ("first", "second", "texts"),
    [
        ([1, 2], ["a"], [["1", "2"], ['"a"']]),
        ([2**53 + 1], [0.5], [["9007199254740993"], ["0.5"]]),
        (np.ones((1, 2)), np.ones((1, 3)), [["[1, 1]"], ["[1, 1, 1]"]]),
        ([True, False], [None], [["1", "0"], ["null"]]),
        ([None], [1.0, -0.0], [["null"], ["1", "-0.0"]]),
        ([{"a": [1, {"b": 2.0}]}], ["a"], [['{"a": [1, {"b": 2.0}]}'], ['"a"']]),
        (["plain"], ["nul\0"], [['"plain"'], ['"nul\\u0000"']]),
        (["plain"], ["\ud800"], [['"plain"'], ['"\\ud800"']]),
        ([2**70], [1], [[str(2**70)], ["1"]]),
        ([float("nan")], [[]], [["NaN"], ["[]"]]),
    ],
)
def test_values_that_do_not_fit_together_are_json(tmp_path, first, second, texts):
    write(tmp_path / "forth", {"x": first}, {"x": second})
    write(tmp_path / "back", {"x": second}, {"x": first})
    assert [content(tmp_path / "forth", k)["x"].tolist() for k in (0, 1)] == texts
    assert [content(tmp_path / "back", k)["x"].tolist() for k in (1, 0)] == texts
    assert content(tmp_path / "forth", 0)["_json"].tolist() == ["x"]
    for text in texts[0]:
        json.loads(text)


def test_a_json_column_goes_on_in_another_session(tmp_path):
    write(tmp_path, {"x": [{"a": 1}]})
    write(tmp_path, {"x": ["text"]}, {"y": [1]})
    dataset = NpzDataset(tmp_path)
    found = [dataset.load_episode(k)["x"].tolist() for k in range(3)]
    assert found == [['{"a": 1}'], ['"text"'], [""]]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ([object()], "a value of object"),
        ([np.bytes_(b"bytes"), "text"], "values of dtype"),
        ([{1, 2}], "a value of set"),
        ([1 + 2j, "text"], "values of dtype complex128 beside"),
    ],
)
def test_what_cannot_be_stored_is_an_error_that_names_its_column(tmp_path, column, text):
    writer = NpzWriter(tmp_path)
    writer.write_episode({"x": np.arange(2)})
    with pytest.raises(TypeError, match=f"column 'odd' cannot be recorded: {text}"):
        writer.write_episode({"x": np.arange(len(column)), "odd": column})
    writer.write_episode({"x": np.arange(3)})
    writer.close()
    assert_arrays(content(tmp_path, 1), {"x": [0, 1, 2]})


@pytest.mark.parametrize("episode", [{}, {"x": []}, {"x": [1], "y": [1, 2]}, {"x": [1], "_y": [1]}])
def test_an_episode_needs_named_columns_of_one_length(tmp_path, episode):
    writer = NpzWriter(tmp_path)
    with pytest.raises(ValueError, match=r"an episode needs|a column needs|underscore"):
        writer.write_episode(episode)
    writer.close()


def test_every_dtype_comes_back_as_it_went(tmp_path):
    point = np.dtype([("x", np.float32), ("n", np.int8)])
    columns = {
        "half": np.array([0.5, np.nan], np.float16),
        "big": np.array([1, 2], ">i4"),
        "complex": np.array([1j, 2]),
        "record": np.array([(1, 2), (3, 4)], point),
        "bytes": np.array([b"ab", b""]),
        "span": np.array([1, "NaT"], "m8[ms]"),
        "empty": np.zeros((2, 0, 3)),
        "names": np.array([["a", "bc"], ["", "é"]]),
        "slash/ed": np.array([1, 2], np.uint64),
    }
    write(tmp_path, columns)
    assert_arrays(NpzDataset(tmp_path).load_episode(0), columns)
    assert content(tmp_path, 0)["big"].dtype == np.dtype("i4")


# What belongs to whole episodes.


def test_episode_data_have_keys_of_their_own_without_time(tmp_path):
    write(
        tmp_path,
        {"x": [1, 2], "_episode_data": {"size": 3, "map": np.eye(2), "name": "a"}},
        {"x": [3], "_episode_data": {"size": 0.5}},
        {"x": [4]},
    )
    found = content(tmp_path, 0)
    assert_arrays({k: v for k, v in found.items() if k != "x"}, {
        "_episode_data.size": 3.0, "_episode_data.map": np.eye(2), "_episode_data.name": "a"
    })  # fmt: skip
    dataset = NpzDataset(tmp_path)
    assert dataset.column_names == ["x"]
    assert dataset.episode_column_names == ["map", "name", "size"]
    assert dataset.get_episode_data(1)["size"] == 0.5
    assert np.isnan(dataset.get_episode_data(2)["size"])
    assert dataset.get_episode_data(2)["name"] == ""


# Reading.


@pytest.fixture
def dataset(tmp_path):
    write(tmp_path, *({"x": 10 * k + np.arange(k + 2), "y": np.ones((k + 2, 2))} for k in range(3)))
    return load_dataset(tmp_path)


def test_a_dataset_tells_lengths_and_columns(dataset):
    assert len(dataset) == 3
    assert dataset.lengths.tolist() == [2, 3, 4]
    assert dataset.lengths.dtype == np.int64
    assert dataset.column_names == ["x", "y"]
    assert dataset.load_episode(2)["y"].shape == (4, 2)


def test_chunks_are_read_up_to_their_ends(dataset):
    chunks = dataset.load_chunk(np.array([2, 0, 2]), np.array([1, 0, 4]), np.array([3, 2, 4]))
    assert [chunk["x"].tolist() for chunk in chunks] == [[21, 22], [0, 1], []]
    assert [chunk["y"].shape for chunk in chunks] == [(2, 2), (2, 2), (0, 2)]
    assert dataset.load_chunk([], [], []) == []


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        (([3], [0], [1]), "one of 0 to 2, found 3"),
        (([-1], [0], [1]), "found -1"),
        (([0], [1], [3]), "episode 0 has rows 0 to 1; there are no rows from 1 up to 3"),
        (([0], [-1], [1]), "from -1"),
        (([0], [1], [0]), "from 1 up to 0"),
        (([0, 1], [0], [1]), "arguments of one length"),
        (([0.5], [0], [1]), "episodes must be a one-dimensional array of integers"),
    ],
)
def test_rows_that_do_not_exist_are_errors(dataset, chunk, text):
    with pytest.raises(ValueError, match=text):
        dataset.load_chunk(*chunk)


def test_an_unknown_episode_is_an_error(dataset):
    for read in (dataset.load_episode, dataset.get_episode_data):
        with pytest.raises(ValueError, match="found 3"):
            read(3)


def test_what_is_no_dataset_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no dataset"):
        load_dataset(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="none of npz, hdf5"):
        load_dataset(tmp_path / "empty")


# A writer that was killed.


def test_an_unfinished_file_is_not_read_and_goes_away(tmp_path):
    write(tmp_path, {"x": [1]})
    (tmp_path / ".episode_1.npz.77.tmp").write_bytes(b"half an epi")
    assert len(NpzDataset(tmp_path)) == 1
    write(tmp_path, {"x": [2]})
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["episode_0.npz", "episode_1.npz"]


def test_files_brought_into_new_forms_by_half_are_read_alike_and_finished(tmp_path):
    np.savez(tmp_path / "episode_0.npz", x=np.array([1.0]), y=np.array([""]))
    np.savez(tmp_path / "episode_1.npz", x=np.array([2]))
    np.savez(tmp_path / "episode_2.npz", x=np.array([3]))
    wanted = [{"x": [k + 1.0], "y": [""]} for k in range(3)]
    dataset = NpzDataset(tmp_path)
    for k in range(3):
        assert_arrays(dataset.load_episode(k), wanted[k])
    write(tmp_path, {"x": [0.5], "y": ["a"]})
    for k in range(3):
        assert_arrays(content(tmp_path, k), wanted[k])
