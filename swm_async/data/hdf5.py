"""The format `hdf5`: one file, one dataset per column, the rows of all episodes in a row.

`ep_len` and `ep_offset` tell where the episodes lie, as stable-worldmodel's files do. It knows
columns and h5py, which it imports where a file is opened.

What belongs to a whole episode is a column `_episode_data.<name>` that repeats its value at each
row: readers that take every dataset for a column stumble over groups.

Letters: `E` = episodes, `T` = rows of an episode.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from swm_async.data.columns import Array, Column, Form, Kind, fill
from swm_async.data.episodes import EPISODE_DATA, Dataset, parts
from swm_async.data.files import Mode, check_mode, lock, refuse_existing, temporary
from swm_async.data.hdf5_files import (
    LENGTHS,
    OFFSETS,
    WholeFile,
    chunk_rows,
    column_datasets,
    extents,
    form_of,
    import_h5py,
    link_name,
    needs_filling,
    new_file,
    put_rows,
    ranges,
    read_rows,
    stored_dtype,
)
from swm_async.data.schema import Schema, reformed

_PREFIX = f"{EPISODE_DATA}."
_CHUNK_EPISODES = 4096


class Hdf5Writer:
    """Adds episodes to a file; each is there as a whole or not at all.

    An episode's rows are written before `ep_len` tells of them, so whenever the process ends,
    every episode that was written can be read.

    Args:
        path: The file; missing folders are made.
        mode: What to do where it exists: "append", "overwrite", or "error" (`FileExistsError`).
    """

    takes_episode_data = True

    def __init__(self, path: str | os.PathLike[str], mode: Mode = "append") -> None:
        check_mode(mode)
        h5py = import_h5py()
        self._path = Path(path)
        if self._path.exists():
            refuse_existing(self._path, mode)
        fresh = mode == "overwrite" or not self._path.exists()
        self._raw = new_file(self._path) if fresh else WholeFile(self._path, "r+")
        try:
            lock(self._raw.fileno(), self._path)
            # This format's index of chunks grows without moving what was there. Written by way of
            # a Python file, a file of a killed process is not taken for one that is in use.
            self._file = h5py.File(
                self._raw, "w" if fresh else "r+", driver="fileobj", libver=("v110", "latest")
            )
            try:
                self._begin(fresh)
            except BaseException:
                self._file.close()
                raise
        except BaseException:
            self._raw.close()
            if fresh:
                temporary(self._path).unlink(missing_ok=True)
            raise

    def write_episode(self, episode: Mapping[str, Any]) -> None:
        """Add an episode: arrays `(T, ...)` or sequences of T values, by column.

        Raises:
            TypeError, ValueError: It cannot be stored; names the column. The file is as before.
        """
        columns, data, length = parts(episode)
        for name, column in data.items():
            columns[name] = Column(column.form, np.repeat(column.values, length, axis=0))
        if reserved := {LENGTHS, OFFSETS} & columns.keys():
            raise ValueError(f"hdf5 needs the names {sorted(reserved)} itself; rename the columns")
        self._reform(self._schema.changes(columns, self._pieces))
        start = self._schema.rows
        for name in self._schema.forms:
            values = self._schema.values(columns, name, length)
            put_rows(self._datasets[name], start, values)
        # All rows are on the disk, and the way to them, before the length tells of them.
        for name, number in ((OFFSETS, start), (LENGTHS, length)):
            put_rows(self._datasets[name], self._episodes, np.array([number]))
            self._file.flush()
        self._episodes += 1
        self._schema.note(columns, length)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        try:
            self._file.close()
        finally:
            self._raw.close()

    def _begin(self, fresh: bool) -> None:
        """Make the file's frame, or find out what it holds."""
        if fresh:
            for name in (OFFSETS, LENGTHS):
                self._file[name] = self._made(np.zeros(0, np.int64), _CHUNK_EPISODES)
            self._file.flush()
            os.replace(temporary(self._path), self._path)
        lengths, offsets = extents(self._file, self._path)
        self._episodes = len(lengths)
        rows = int((lengths + offsets).max(initial=0))
        # Kept open: to look them up for each episode would take longer than to write it.
        self._datasets = column_datasets(self._file, rows)
        forms = {name: form_of(dataset) for name, dataset in self._datasets.items()}
        self._schema = Schema(forms, rows)
        for name, values in ((OFFSETS, offsets), (LENGTHS, lengths)):
            self._datasets[name] = self._file[name]
            if self._file[name].maxshape[0] is not None:
                self._replace(name, self._made(values, _CHUNK_EPISODES))
        self._reform({name: form for name, form in forms.items() if self._is_rigid(name, form)})

    def _is_rigid(self, name: str, form: Form) -> bool:
        """Whether a dataset, made by someone else, takes no more rows or only texts of a width."""
        dataset = self._datasets[name]
        text = import_h5py().check_string_dtype(dataset.dtype)
        narrow = form.kind is not Kind.ARRAY and text is not None and text.length is not None
        return dataset.maxshape[0] is not None or dataset.chunks is None or narrow

    def _reform(self, forms: Mapping[str, Form]) -> None:
        """Make datasets for new columns and wider ones for others.

        They have no name until everything in them is on the disk.
        """
        links = {link_name(name): name for name in self._datasets}
        for name in forms:
            if links.setdefault(link_name(name), name) != name:
                other = links[link_name(name)]
                raise ValueError(f"columns {name!r} and {other!r} have one name in an hdf5 file")
        made = {name: self._made_column(name, form) for name, form in forms.items()}
        if made:
            self._file.flush()
        for name, dataset in made.items():
            self._replace(name, dataset)
            self._schema.adopt({name: forms[name]})

    def _replace(self, name: str, dataset: Any) -> None:
        link, before = link_name(name), self._datasets.get(name)
        try:
            if before is not None:
                del self._file[link]
            self._file[link] = dataset
        except BaseException:  # an interrupt between the two
            if before is not None and link not in self._file:
                self._file[link] = before
            raise
        self._datasets[name] = dataset
        self._file.flush()

    def _made_column(self, name: str, form: Form) -> Any:
        known = name in self._schema.forms
        dataset = self._new_dataset(name, form)
        if known or needs_filling(form):
            for start, stop in ranges(dataset, self._schema.rows):
                put_rows(dataset, start, self._reformed(name, form, start, stop))
        return dataset

    def _reformed(self, name: str, form: Form, start: int, stop: int) -> Array:
        filled = self._schema.filled(name, start, stop)
        if name not in self._schema.forms:
            return np.full((stop - start, *form.shape), fill(form), form.dtype)
        before = self._schema.forms[name]
        values = read_rows(self._datasets[name], before, start, stop)
        return reformed(values, name, before, form, filled)

    def _new_dataset(self, name: str, form: Form) -> Any:
        shape = (self._schema.rows, *form.shape)
        value = fill(form)
        try:
            dataset = self._file.create_dataset(
                None,
                shape,
                maxshape=(None, *(size or None for size in form.shape)),
                chunks=(chunk_rows(form), *(size or 1 for size in form.shape)),
                dtype=stored_dtype(form),
                fillvalue=value[()] if form.dtype.kind in "fc" else None,
            )
        except TypeError as error:
            raise TypeError(f"column {name!r} of dtype {form.dtype}: {error}") from error
        if form.kind is Kind.JSON or form.dtype.kind == "S":
            dataset.attrs["kind"] = "json" if form.kind is Kind.JSON else "bytes"
        if link_name(name) != name:
            dataset.attrs["name"] = name
        return dataset

    def _made(self, values: Array, rows: int) -> Any:
        dataset = self._file.create_dataset(
            None, values.shape, maxshape=(None,), chunks=(rows,), dtype=np.int64
        )
        dataset[...] = values
        return dataset

    def _pieces(self, name: str) -> Iterator[Array]:
        dataset = self._datasets[name]
        for start, stop in ranges(dataset, self._schema.rows):
            yield read_rows(dataset, self._schema.forms[name], start, stop)


class Hdf5Dataset(Dataset):
    """Reads a file of this format, whoever wrote it.

    Args:
        path: The file.

    Raises:
        ValueError: It has no `ep_len` and `ep_offset`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # As stable-worldmodel's reader does: one process can then open a file with both.
        self._file = import_h5py().File(path, "r", swmr=True)
        try:
            self.lengths, self._offsets = extents(self._file, Path(path))
            rows = int((self.lengths + self._offsets).max(initial=0))
            found = column_datasets(self._file, rows)
            self._columns = {name: (found[name], form_of(found[name])) for name in sorted(found)}
        except BaseException:
            self._file.close()
            raise
        whole = [name for name in self._columns if name.startswith(_PREFIX)]
        self.column_names = [name for name in self._columns if name not in whole]
        self.episode_column_names = [name.removeprefix(_PREFIX) for name in whole]

    def _rows(self, k: int, start: int, stop: int) -> dict[str, Array]:
        offset = int(self._offsets[k])
        return {
            name: read_rows(*self._columns[name], offset + start, offset + stop)
            for name in self.column_names
        }

    def _data(self, k: int) -> dict[str, Array]:
        row = int(self._offsets[k])
        return {
            name: read_rows(*self._columns[_PREFIX + name], row, row + 1)[0]
            for name in self.episode_column_names
        }

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()
