"""HDF5 files as the format `hdf5` uses them: datasets as columns, rows read and written.

It knows h5py and forms of columns, and no episodes but for their lengths and offsets.

Letters: `E` = episodes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from swm_async.data.columns import TEXT_DTYPE, Array, Form, Kind, fill
from swm_async.data.files import temporary

LENGTHS, OFFSETS = "ep_len", "ep_offset"
_CHUNK_BYTES, _PIECE_BYTES, _CHUNK_ROWS = 2**17, 2**22, 1024
_TEXT_BYTES = 16
"""What a text takes in its dataset; the characters lie elsewhere."""


class WholeFile(io.FileIO):
    """A file whose every write is complete, or an error."""

    def write(self, data: Any) -> int:
        """Write all bytes."""
        rest = memoryview(data).cast("B")
        while len(rest):
            rest = rest[super().write(rest) or 0 :]
        return memoryview(data).nbytes


def import_h5py() -> Any:
    """Import h5py, or say how to install it."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            'datasets of the format hdf5 need h5py: pip install "swm_async[hdf5]"'
        ) from error
    return h5py


def new_file(path: Path) -> WholeFile:
    """Open a file that takes its name once its frame is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return WholeFile(temporary(path), "w+")


def extents(file: Any, path: Path) -> tuple[Array, Array]:
    """Return lengths and offsets of the episodes, `(E,) int64` each."""
    if LENGTHS not in file or OFFSETS not in file:
        raise ValueError(f"{path} is no dataset of episodes: it has no {LENGTHS} and {OFFSETS}")
    lengths, offsets = (file[name][...].astype(np.int64).reshape(-1) for name in (LENGTHS, OFFSETS))
    count = min(len(lengths), len(offsets))  # of a process killed between the two, one is longer
    return lengths[:count], offsets[:count]


def column_datasets(file: Any, rows: int) -> dict[str, Any]:
    """Return the datasets that have a value for every row."""
    h5py = import_h5py()
    found = {}
    for link, dataset in file.items():
        if link in (LENGTHS, OFFSETS) or not isinstance(dataset, h5py.Dataset):
            continue
        if dataset.ndim and len(dataset) >= rows:
            found[str(dataset.attrs.get("name", link))] = dataset
    return found


def form_of(dataset: Any) -> Form:
    """Return the form of a dataset's rows."""
    kind = dataset.attrs.get("kind")
    if import_h5py().check_string_dtype(dataset.dtype) is not None and kind != "bytes":
        return Form(Kind.JSON if kind == "json" else Kind.TEXT, TEXT_DTYPE, dataset.shape[1:])
    return Form(Kind.ARRAY, dataset.dtype.newbyteorder("="), dataset.shape[1:])


def stored_dtype(form: Form) -> Any:
    """Return what h5py needs to be told for a dataset of this form."""
    h5py = import_h5py()
    if form.kind is not Kind.ARRAY:
        return h5py.string_dtype()
    return h5py.opaque_dtype(form.dtype) if form.dtype.kind in "mM" else form.dtype


def read_rows(dataset: Any, form: Form, start: int, stop: int) -> Array:
    """Read rows `(stop - start, ...)`."""
    if form.kind is not Kind.ARRAY:
        texts: Array = dataset.asstr()[start:stop]
        return texts.astype(np.str_)
    values: Array = dataset[start:stop]
    return values.astype(form.dtype, copy=False)


def put_rows(dataset: Any, start: int, values: Array) -> None:
    """Write rows from `start` on; they become the dataset's last ones."""
    stop, shape = start + len(values), values.shape[1:]
    # Several times faster than the same by indexing, and a file has many columns.
    dataset.id.set_extent((stop, *shape))
    if not values.size:
        return
    if values.dtype.kind in "biuf":
        h5s = import_h5py().h5s
        place = dataset.id.get_space()
        place.select_hyperslab((start, *(0,) * len(shape)), values.shape)
        dataset.id.write(h5s.create_simple(values.shape), place, np.ascontiguousarray(values))
    elif values.dtype.kind == "U":
        dataset[start:stop] = values.astype(object)
    elif values.dtype.kind in "mM":
        dataset[start:stop] = values.astype(import_h5py().opaque_dtype(values.dtype))
    else:
        dataset[start:stop] = values


def needs_filling(form: Form) -> bool:
    """Whether rows that are not written read as something else than the fill value."""
    return form.dtype.kind not in "fcU" and any(fill(form).tobytes())


def _row_bytes(form: Form) -> int:
    size = form.dtype.itemsize if form.kind is Kind.ARRAY else _TEXT_BYTES
    return max(size * int(np.prod(form.shape, dtype=np.int64)), 1)


def chunk_rows(form: Form) -> int:
    """Return how many rows lie together on the disk: 128 KiB, 1024 rows at most."""
    return min(max(_CHUNK_BYTES // _row_bytes(form), 1), _CHUNK_ROWS)


def ranges(dataset: Any, rows: int) -> Iterator[tuple[int, int]]:
    """Cut rows into ranges of a few megabytes, along the chunks' borders where there are any."""
    row_bytes = max(dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=np.int64)), 1)
    chunk = dataset.chunks[0] if dataset.chunks else 1
    step = max(_PIECE_BYTES // row_bytes // chunk, 1) * chunk
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def link_name(name: str) -> str:
    """Return the name under which a column lies in the file, where a slash would make a group."""
    return name.replace("/", "|") if name != "." else "|"
