"""The format `npz`: a folder with one `episode_<k>.npz` per episode, a key per column.

It needs numpy alone. What belongs to a whole episode has the key `_episode_data.<name>` and no axis
of time; `_json` lists the columns whose texts are JSON. A file takes its name once it is whole.

Letters: `T` = rows of an episode.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from swm_async.data.columns import (
    TEXT_DTYPE,
    Array,
    Form,
    Kind,
    converted,
    filled_rows,
    joint,
)
from swm_async.data.episodes import EPISODE_DATA, Dataset, parts
from swm_async.data.files import Mode, check_mode, lock, refuse_existing, temporary
from swm_async.data.schema import Schema, reformed

_PREFIX = f"{EPISODE_DATA}."
_JSON = "_json"
_FILE = re.compile(r"episode_(\d+)\.npz")
_DATE = (1980, 1, 1, 0, 0, 0)
"""The first that a zip file can hold; the same episodes are to give the same bytes."""


class NpzWriter:
    """Adds episodes to a folder; each is there as a whole or not at all.

    Where a column is new or gets a wider form, the files before are written anew, so that all
    files of a folder have the same columns in the same forms.

    Args:
        path: The folder; made where it is missing.
        mode: What to do with episodes in it: "append" behind them, "overwrite", or "error"
            (`FileExistsError`). Other files are left alone.
    """

    takes_episode_data = True

    def __init__(self, path: str | os.PathLike[str], mode: Mode = "append") -> None:
        check_mode(mode)
        self._path = Path(path)
        if numbered_files(self._path):
            refuse_existing(self._path, mode)
        self._path.mkdir(parents=True, exist_ok=True)
        self._descriptor: int | None = os.open(self._path, os.O_RDONLY)
        try:
            lock(self._descriptor, self._path)
            for left in self._path.glob(".episode_*.npz.*.tmp"):  # by a process that was killed
                left.unlink()
            if mode == "overwrite":
                for file in numbered_files(self._path):
                    file.unlink()
            self._begin()
        except BaseException:
            self.close()
            raise

    def write_episode(self, episode: Mapping[str, Any]) -> None:
        """Add an episode: arrays `(T, ...)` or sequences of T values, by column.

        Raises:
            TypeError, ValueError: It cannot be stored; names the column.
        """
        columns, data, length = parts(episode)
        changed = self._rows.changes(columns, self._stored)
        changed_data = self._data.changes(data, self._stored)
        if changed or changed_data:
            self._reform(changed, changed_data)
        values = {name: self._rows.values(columns, name, length) for name in self._rows.forms}
        for name in self._data.forms:
            values[name] = self._data.values(data, name, 1)[0, ...]
        number = 1 + int(self._files[-1].stem.removeprefix("episode_")) if self._files else 0
        file = self._path / f"episode_{number}.npz"
        self._save(file, values)
        self._files.append(file)
        self._lengths.append(length)
        self._rows.note(columns, length)
        self._data.note(data, 1)

    def close(self) -> None:
        """Let others write; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _begin(self) -> None:
        """Find out what the folder holds, and finish what a killed process has begun."""
        self._files = numbered_files(self._path)
        rows, data = folder_forms(self._files)
        self._lengths = [_length(file) for file in self._files]
        self._rows, self._data = Schema(rows), Schema(data)
        self._reform({}, {})
        self._rows.rows, self._data.rows = sum(self._lengths), len(self._files)

    def _stored(self, name: str) -> Iterator[Array]:
        for file in self._files:
            with np.load(file) as arrays:
                yield arrays[name]

    def _reform(self, changed: Mapping[str, Form], changed_data: Mapping[str, Form]) -> None:
        """Bring all files into these forms; they are known to hold every value."""
        forms, data = {**self._rows.forms, **changed}, {**self._data.forms, **changed_data}
        start = 0
        for k, (file, length) in enumerate(zip(self._files, self._lengths, strict=True)):
            arrays, found, found_data = _load(file)
            if (found, found_data) != (forms, data):
                for name, form in forms.items():
                    filled = self._rows.filled(name, start, start + length)
                    arrays[name] = _brought(
                        arrays.get(name), name, found.get(name), form, length, filled
                    )
                for name, form in data.items():
                    filled = self._data.filled(name, k, k + 1)
                    value = None if name not in arrays else arrays[name][None]
                    arrays[name] = _brought(value, name, found_data.get(name), form, 1, filled)[
                        0, ...
                    ]
                self._save(file, arrays, forms | data)
            start += length
        self._rows.adopt(changed)
        self._data.adopt(changed_data)

    def _save(
        self, file: Path, arrays: Mapping[str, Array], forms: Mapping[str, Form] | None = None
    ) -> None:
        forms = self._rows.forms | self._data.forms if forms is None else forms
        json = sorted(name for name, form in forms.items() if form.kind is Kind.JSON)
        marked = {**arrays, _JSON: np.array(json)} if json else arrays
        unfinished = temporary(file)
        try:
            with zipfile.ZipFile(unfinished, "w") as archive:
                for name in sorted(marked):
                    member = zipfile.ZipInfo(f"{name}.npy", _DATE)
                    with archive.open(member, "w", force_zip64=True) as target:
                        np.lib.format.write_array(
                            target, np.asarray(marked[name]), allow_pickle=False
                        )
            os.replace(unfinished, file)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


class NpzDataset(Dataset):
    """Reads a folder of this format.

    Args:
        path: The folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._files = numbered_files(Path(path))
        self._forms, self._data_forms = folder_forms(self._files)
        self.lengths = np.array([_length(file) for file in self._files], np.int64)
        self.column_names = sorted(self._forms)
        self.episode_column_names = sorted(name.removeprefix(_PREFIX) for name in self._data_forms)

    def _rows(self, k: int, start: int, stop: int) -> dict[str, Array]:
        with np.load(self._files[k]) as arrays:
            json = _json_names(arrays)
            found = {name: arrays[name][start:stop] for name in self.column_names if name in arrays}
        return {
            name: _in_form(found.get(name), name in json, self._forms[name], stop - start)
            for name in self.column_names
        }

    def _data(self, k: int) -> dict[str, Array]:
        with np.load(self._files[k]) as arrays:
            json = _json_names(arrays)
            found = {name: arrays[name][None] for name in self._data_forms if name in arrays}
        return {
            name.removeprefix(_PREFIX): _in_form(found.get(name), name in json, form, 1)[0]
            for name, form in sorted(self._data_forms.items())
        }


def numbered_files(path: Path) -> list[Path]:
    """Return the files of a folder's episodes in order of their numbers; `[]` without a folder."""
    if not path.is_dir():
        if path.exists():
            raise NotADirectoryError(f"a dataset of the format npz is a folder, {path} is a file")
        return []
    found = [(_FILE.fullmatch(entry.name), entry) for entry in path.iterdir()]
    return [file for _, file in sorted((int(match[1]), file) for match, file in found if match)]


def folder_forms(files: list[Path]) -> tuple[dict[str, Form], dict[str, Form]]:
    """Return the forms that a folder's columns have or, after a killed process, shall have.

    Files are brought into new forms from the first on, and before a file in new forms is added;
    so the first and the last tell.
    """
    rows: dict[str, Form] = {}
    data: dict[str, Form] = {}
    for file in dict.fromkeys((*files[:1], *files[-1:])):
        _, found, found_data = _load(file)
        for forms, more in ((rows, found), (data, found_data)):
            for name, form in more.items():
                forms[name] = joint(forms.get(name, form), form)
    return rows, data


def _load(file: Path) -> tuple[dict[str, Array], dict[str, Form], dict[str, Form]]:
    """Return an episode's arrays, the forms of its columns, and those of its data."""
    with np.load(file) as arrays:
        json = _json_names(arrays)
        values = {name: arrays[name] for name in arrays.files if name != _JSON}
    rows = {
        name: _form(array.dtype, array.shape[1:], name in json)
        for name, array in values.items()
        if not name.startswith(_PREFIX)
    }
    data = {
        name: _form(array.dtype, array.shape, name in json)
        for name, array in values.items()
        if name.startswith(_PREFIX)
    }
    return values, rows, data


def _json_names(arrays: Any) -> frozenset[str]:
    names: Iterable[str] = arrays[_JSON].tolist() if _JSON in arrays else ()
    return frozenset(names)


def _length(file: Path) -> int:
    """Return `T`, from the smallest column of an episode."""
    with zipfile.ZipFile(file) as archive:
        sizes = {
            entry.filename.removesuffix(".npy"): entry.file_size for entry in archive.infolist()
        }
    columns = [name for name in sizes if not name.startswith("_")]
    if not columns:
        raise ValueError(f"{file} holds no column")
    with np.load(file) as arrays:
        return len(arrays[min(columns, key=sizes.__getitem__)])


def _form(dtype: np.dtype[Any], shape: tuple[int, ...], is_json: bool) -> Form:
    if dtype.kind == "U":
        return Form(Kind.JSON if is_json else Kind.TEXT, TEXT_DTYPE, shape)
    return Form(Kind.ARRAY, dtype, shape)


def _brought(
    values: Array | None,
    name: str,
    form: Form | None,
    wanted: Form,
    length: int,
    filled: list[tuple[int, int]],
) -> Array:
    if values is None or form is None:
        return filled_rows(wanted, length)
    return reformed(values, name, form, wanted, filled)


def _in_form(values: Array | None, is_json: bool, wanted: Form, length: int) -> Array:
    """Return rows as the whole folder has them, also of a file that was not brought there."""
    if values is None:
        return filled_rows(wanted, length)
    form = _form(values.dtype, values.shape[1:], is_json)
    return values if form == wanted else converted(values, form, wanted)
