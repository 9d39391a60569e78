"""HDF5 files: what they hold as h5py reads them, how they grow, and what a kill leaves of them."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from swm_async.data import Hdf5Dataset, Hdf5Writer, load_dataset
from swm_async.data.formats import format_for

h5py = pytest.importorskip("h5py")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "episodes.h5"


def write(path, *episodes, mode="append"):
    writer = Hdf5Writer(path, mode)
    for episode in episodes:
        writer.write_episode(episode)
    writer.close()


def content(path) -> dict[str, np.ndarray]:
    """All datasets of a file, read with h5py alone; texts as lists of str."""
    with h5py.File(path, "r") as file:
        return {
            name: dataset.asstr()[...].astype(str)
            if h5py.check_string_dtype(dataset.dtype)
            else dataset[...]
            for name, dataset in file.items()
        }


def assert_arrays(found, wanted):
    assert sorted(found) == sorted(wanted)
    for name, values in wanted.items():
        values = np.asarray(values)
        assert (found[name].dtype.kind, found[name].shape) == (values.dtype.kind, values.shape)
        np.testing.assert_array_equal(found[name], values, err_msg=name)


# Files.


def test_the_rows_of_all_episodes_follow_each_other(path):
    write(
        path,
        {"x": np.arange(3), "pixels": np.full((3, 4, 5, 3), 7, np.uint8), "word": ["a", "bé", ""]},
        {"x": [5, 6], "pixels": np.full((2, 4, 5, 3), 8, np.uint8), "word": ["c", "d"]},
    )
    pixels = np.concatenate(
        [np.full((3, 4, 5, 3), 7, np.uint8), np.full((2, 4, 5, 3), 8, np.uint8)]
    )
    wanted = {"x": [0, 1, 2, 5, 6], "pixels": pixels, "word": ["a", "bé", "", "c", "d"]}
    assert_arrays(content(path), {**wanted, "ep_len": [3, 2], "ep_offset": [0, 3]})
    assert content(path)["pixels"].dtype == np.uint8


def test_appending_overwriting_and_refusing(path):
    write(path, {"x": [1, 2]}, mode="error")
    write(path, {"x": [3]})
    assert_arrays(content(path), {"x": [1, 2, 3], "ep_len": [2, 1], "ep_offset": [0, 2]})
    with pytest.raises(FileExistsError, match='mode="append" adds'):
        Hdf5Writer(path, "error")
    write(path, {"y": [0.5]}, mode="overwrite")
    assert_arrays(content(path), {"y": [0.5], "ep_len": [1], "ep_offset": [0]})
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_without_episodes_can_be_read_and_appended_to(path):
    write(path)
    with load_dataset(path) as dataset:
        assert len(dataset) == 0
        assert dataset.column_names == []
    write(path, {"x": [1]})
    assert content(path)["ep_len"].tolist() == [1]


def test_two_writers_at_once_are_refused(path):
    writer = Hdf5Writer(path)
    with pytest.raises(BlockingIOError, match="someone else"):
        Hdf5Writer(path)
    writer.close()
    write(path, {"x": [1]})


def test_another_file_is_not_taken_for_a_dataset(path):
    with h5py.File(path, "w") as file:
        file["x"] = [1]
    for use in (Hdf5Dataset, Hdf5Writer):
        with pytest.raises(ValueError, match="no ep_len and ep_offset"):
            use(path)
    (path.parent / "text.h5").write_text("text")
    with pytest.raises(ValueError, match="is no dataset"):
        load_dataset(path.parent / "text.h5")


# Columns over several episodes.


@pytest.mark.parametrize("sessions", [1, 2])
def test_late_and_missing_columns_are_filled(path, sessions):
    late = {"x": [1], "f": [0.5], "n": [2], "b": [True], "s": ["w"], "c": [1j]}
    episodes = [{"x": [0, 0]}, late, {"x": [2]}]
    if sessions == 1:
        write(path, *episodes)
    else:
        for episode in episodes:
            write(path, episode)
    nan = np.nan
    wanted = {
        "x": [0, 0, 1, 2], "f": [nan, nan, 0.5, nan], "n": [0, 0, 2, 0], "s": ["", "", "w", ""],
        "b": [False, False, True, False],
        "c": [complex(nan, nan), complex(nan, nan), 1j, complex(nan, nan)],
    }  # fmt: skip
    assert_arrays(content(path), {**wanted, "ep_len": [2, 1, 1], "ep_offset": [0, 2, 3]})


def test_times_that_nobody_reported_are_no_times(path):
    write(path, {"x": [0]}, {"x": [1], "t": np.array(["2020-02-03"], "M8[D]")}, {"x": [2]})
    with load_dataset(path) as dataset:
        found = [dataset.load_episode(k)["t"] for k in range(3)]
    np.testing.assert_array_equal(found, np.array([["NaT"], ["2020-02-03"], ["NaT"]], "M8[D]"))


def test_dtypes_widen_and_filled_rows_become_nan(path):
    write(path, {"a": [1]}, {"a": [2], "x": [3]}, {"a": [4], "x": [0.5]}, {"a": [5], "x": [2]})
    assert content(path)["x"].dtype == np.float64
    np.testing.assert_array_equal(content(path)["x"], [np.nan, 3, 0.5, 2])


def test_a_long_column_is_brought_into_a_wider_form_as_a_whole(path):
    ten = [np.arange(1000 * k, 1000 * (k + 1)) for k in range(10)]
    frames = np.arange(3000)[:, None, None] + np.zeros((1, 20, 20), np.int64)
    last = {"x": [0.5], "big": frames[:1] + 0.25}
    write(path, *({"x": x} for x in ten), {"x": np.arange(3000), "big": frames}, last)
    found = content(path)
    assert found["x"].tolist() == [*range(10000), *range(3000), 0.5]
    assert np.isnan(found["big"][:10000]).all()
    np.testing.assert_array_equal(found["big"][10000:13000], frames)
    np.testing.assert_array_equal(found["big"][13000:], frames[:1] + 0.25)


def test_values_that_do_not_fit_together_are_json(path):
    write(path, {"x": [1, 2], "y": ["a", "b"]}, {"x": ["a"], "y": [None]})
    write(path, {"x": [{"deep": [1.5]}], "y": ["c"]})
    found = content(path)
    assert found["x"].tolist() == ["1", "2", '"a"', '{"deep": [1.5]}']
    assert found["y"].tolist() == ['"a"', '"b"', "null", '"c"']


def test_every_dtype_comes_back_as_it_went(path):
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
    write(path, columns, columns)
    write(path, columns)
    with load_dataset(path) as dataset:
        assert dataset.column_names == sorted(columns)
        for k in range(3):
            assert_arrays(dataset.load_episode(k), columns)
    with h5py.File(path) as file:  # no reader of columns likes groups
        assert all(isinstance(entry, h5py.Dataset) for entry in file.values())


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"ep_len": [1]}, "needs the names \\['ep_len'\\] itself"),
        ({"a/b": [1], "a|b": [2]}, "have one name in an hdf5 file"),
        ({"a": np.array([("ä", 1)], [("s", "U3"), ("n", "i4")])}, "column 'a' of dtype"),
    ],
)
def test_columns_that_hdf5_cannot_hold_are_errors_and_leave_the_file_as_it_was(path, columns, text):
    writer = Hdf5Writer(path)
    writer.write_episode({"x": [1, 2]})
    with pytest.raises((TypeError, ValueError), match=text):
        writer.write_episode(columns)
    writer.write_episode({"x": [3]})
    writer.close()
    with load_dataset(path) as dataset:
        assert [dataset.load_episode(k)["x"].tolist() for k in range(2)] == [[1, 2], [3]]


def test_episode_data_are_repeated_at_each_row_and_read_for_themselves(path):
    write(
        path,
        {"x": [1, 2], "_episode_data": {"size": 3, "map": np.eye(2), "name": "a"}},
        {"x": [3], "_episode_data": {"size": 0.5}},
    )
    found = content(path)
    np.testing.assert_array_equal(found["_episode_data.size"], [3, 3, 0.5])
    assert found["_episode_data.name"].tolist() == ["a", "a", ""]
    with load_dataset(path) as dataset:
        assert dataset.column_names == ["x"]
        assert dataset.episode_column_names == ["map", "name", "size"]
        np.testing.assert_array_equal(dataset.get_episode_data(0)["map"], np.eye(2))
        assert dataset.get_episode_data(1)["size"] == 0.5


# Files of others.


@pytest.fixture
def foreign(path):
    """A file as another library lays it out: fixed sizes, fixed widths, narrow integers."""
    with h5py.File(path, "w") as file:
        file["ep_len"] = np.array([2, 3], np.int32)
        file["ep_offset"] = np.array([0, 2], np.int32)
        file["x"] = np.arange(5, dtype=">f4")
        file["word"] = np.array([b"a", b"b", b"c", b"d", b"e"])
        file["about"] = "not a column"
        file.create_group("more")["y"] = [1]
    return path


def test_a_file_of_another_library_is_read(foreign):
    with load_dataset(foreign) as dataset:
        assert dataset.column_names == ["word", "x"]
        assert dataset.lengths.tolist() == [2, 3]
        assert dataset.lengths.dtype == np.int64
        assert_arrays(dataset.load_episode(1), {"x": [2.0, 3.0, 4.0], "word": ["c", "d", "e"]})
        assert dataset.load_chunk([0], [1], [2])[0]["x"].tolist() == [1.0]


def test_a_file_of_another_library_is_appended_to(foreign):
    write(foreign, {"x": [7.5, 8], "word": ["longer", "words"]})
    with load_dataset(foreign) as dataset:
        assert dataset.lengths.tolist() == [2, 3, 2]
        assert_arrays(dataset.load_episode(2), {"x": [7.5, 8], "word": ["longer", "words"]})
        assert_arrays(dataset.load_episode(0), {"x": [0.0, 1.0], "word": ["a", "b"]})


# A writer that was killed.


def test_rows_of_an_unfinished_episode_are_not_read_and_go_away(path):
    write(path, {"x": [1, 2], "y": [1, 2]})
    with h5py.File(path, "r+") as file:  # as far as a killed process may have come
        file["x"].resize(7, axis=0)
        file["x"][2:] = 9
        file["ep_offset"].resize(2, axis=0)
        file["ep_offset"][1] = 2
    with load_dataset(path) as dataset:
        assert len(dataset) == 1
    write(path, {"x": [3], "y": [3]})
    assert_arrays(
        content(path), {"x": [1, 2, 3], "y": [1, 2, 3], "ep_len": [2, 1], "ep_offset": [0, 2]}
    )


def episode(k: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(k)
    rows = int(rng.integers(1, 60))
    return {
        "pixels": rng.integers(0, 256, (rows, 40, 40, 3), np.uint8),
        "state": rng.random((rows, 7)),
        "word": np.array([f"é{k}:{t}" for t in range(rows)]),
        "n": np.arange(rows) * k,
    }


class Logged(io.BytesIO):
    """A file in memory that keeps every write."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[int, bytes | None]] = []

    def write(self, data):
        self.log.append((self.tell(), bytes(data)))
        return super().write(data)

    def truncate(self, size=None):
        size = self.tell() if size is None else size
        self.log.append((size, None))
        current = len(self.getvalue())
        if size > current:  # as files do, unlike buffers
            position = self.tell()
            self.seek(current)
            super().write(b"\0" * (size - current))
            self.seek(position)
        return super().truncate(size)

    def fileno(self):
        return self.handle.fileno()


def replayed(log, count: int) -> bytes:
    """What a process that was killed after so many writes has left."""
    image = bytearray()
    for place, data in log[:count]:
        if data is None:
            del image[place:]
            image.extend(bytes(place - len(image)))
            continue
        image.extend(bytes(max(place - len(image), 0)))
        image[place : place + len(data)] = data
    return bytes(image)


def test_after_every_single_write_all_complete_episodes_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr("swm_async.data.hdf5_files._CHUNK_BYTES", 4096)  # a frame each: many
    logged = Logged()
    path = tmp_path / "episodes.h5"
    with open(path, "w+b") as logged.handle:
        monkeypatch.setattr("swm_async.data.hdf5.new_file", lambda path: logged)
        monkeypatch.setattr("swm_async.data.hdf5.os.replace", lambda *paths: None)
        path.unlink()
        writer = Hdf5Writer(path)
        complete = []
        for k in range(12):
            writer.write_episode(episode(k))
            complete.append(len(logged.log))
    wanted = [episode(k) for k in range(12)]
    for count in range(complete[0], complete[-1] + 1):
        with h5py.File(io.BytesIO(replayed(logged.log, count)), "r") as file:
            lengths, offsets = file["ep_len"][...], file["ep_offset"][...]
            done = sum(end <= count for end in complete)
            assert done <= len(lengths) <= len(offsets)
            for k in {0, *range(max(len(lengths) - 2, 0), len(lengths))}:
                assert lengths[k] == len(wanted[k]["n"])
                rows = slice(offsets[k], offsets[k] + lengths[k])
                for name, values in wanted[k].items():
                    is_text = values.dtype.kind == "U"
                    found = file[name].asstr()[rows] if is_text else file[name][rows]
                    assert np.array_equal(found, values), (count, k, name)
    writer.close()


# A package that is missing.


def test_without_h5py_the_error_tells_what_to_install(path):
    code = f"""
import sys
sys.modules["h5py"] = None
from swm_async.data import Hdf5Writer, load_dataset
for use in (Hdf5Writer, load_dataset):
    try:
        use({str(path)!r})
    except ImportError as error:
        print(error)
"""
    write(path, {"x": [1]})
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.count('pip install "swm_async[hdf5]"') == 2


def test_the_suffix_chooses_the_format(tmp_path):
    assert format_for(Path("a/b.h5")).name == format_for(Path("b.hdf5")).name == "hdf5"
    assert format_for(Path("a/b")).name == format_for(tmp_path).name == "npz"
    assert format_for(Path("a/b.h5"), "npz").name == "npz"
