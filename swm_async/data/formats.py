"""The formats of datasets by name, by suffix and by what a path holds.

Those of stable-worldmodel are asked for only by name or suffix, and only then is it imported.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swm_async.data.episodes import EPISODE_DATA, Writer
from swm_async.data.files import Mode
from swm_async.data.hdf5 import Hdf5Dataset, Hdf5Writer
from swm_async.data.npz import NpzDataset, NpzWriter, numbered_files

_UPSTREAM = "stable_worldmodel"
_UPSTREAM_SUFFIXES = {".lance": "lance"}


@dataclass(frozen=True)
class Format:
    """One way to store episodes.

    Attributes:
        name: What it is called.
        suffixes: Those of its paths, with their dots; a path without any is a folder of `npz`.
        open_writer: Called with the path and the mode.
        open_dataset: Called with the path; None where it can only be written.
        recognises: Whether a path that exists holds such a dataset.
    """

    name: str
    suffixes: tuple[str, ...]
    open_writer: Callable[[Path, Mode], Writer]
    open_dataset: Callable[[Path], Any] | None
    recognises: Callable[[Path], bool]


_formats: dict[str, Format] = {}


def register_format(format: Format) -> None:
    """Add a format, or replace the one of that name."""
    _formats[format.name] = format


def format_for(path: Path, name: str | None = None) -> Format:
    """Return the format to write `path` in.

    Args:
        path: Where to write.
        name: The format's name; None = by the path's suffix, a folder is `npz`.

    Raises:
        ValueError: There is no such format; names those there are.
        ImportError: It is stable-worldmodel's, which is not installed.
    """
    if name is not None:
        return _formats.get(name) or _upstream_format(name)
    if path.is_dir() and path.suffix not in _UPSTREAM_SUFFIXES:
        return _formats["npz"]
    for format in _formats.values():
        if path.suffix in format.suffixes:
            return format
    if path.suffix in _UPSTREAM_SUFFIXES:
        return _upstream_format(_UPSTREAM_SUFFIXES[path.suffix])
    suffixes = sorted(
        suffix for format in _formats.values() for suffix in format.suffixes if suffix
    )
    raise ValueError(
        f"no format has the suffix {path.suffix!r}: give a path without suffix (a folder of npz "
        f"files), one with {', '.join(suffixes)}, or format=..."
    )


def load_dataset(path: Any) -> Any:
    """Open recorded episodes: a folder of `npz` files, an `hdf5` file, or another known format.

    Returns:
        A `Dataset`. What only stable-worldmodel can read, it opens itself.

    Raises:
        FileNotFoundError: There is nothing.
        ValueError: No format recognises it.
        ImportError: The format needs a package that is not installed.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no dataset {path}")
    for format in _formats.values():
        if format.open_dataset is not None and format.recognises(path):
            return format.open_dataset(path)
    if importlib.util.find_spec(_UPSTREAM) is not None:
        found = importlib.import_module(f"{_UPSTREAM}.data").detect_format(str(path))
        if found is not None:
            return found.open_reader(str(path))
    raise ValueError(f"{path} is no dataset: it is none of {', '.join(_formats)}")


def _upstream_format(name: str) -> Format:
    """Wrap a format that stable-worldmodel has registered."""
    if importlib.util.find_spec(_UPSTREAM) is None:
        raise ValueError(
            f"format must be one of {list(_formats)}, found {name!r}; stable-worldmodel, which "
            "has more, is not installed"
        )
    upstream: Any = importlib.import_module(f"{_UPSTREAM}.data")
    known = list(upstream.list_formats())
    if name not in known:
        raise ValueError(f"format must be one of {[*_formats, *known]}, found {name!r}")
    found = upstream.get_format(name)
    return Format(
        name,
        (),
        lambda path, mode: _UpstreamWriter(found.open_writer(str(path), mode=mode)),
        found.open_reader,
        found.detect,
    )


class _UpstreamWriter:
    """A writer that is entered and left, and takes each column as a list of its rows."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        writer.__enter__()

    def write_episode(self, episode: Mapping[str, Any]) -> None:
        self._writer.write_episode(
            {name: list(values) for name, values in episode.items() if name != EPISODE_DATA}
        )

    def close(self) -> None:
        self._writer.__exit__(None, None, None)


def _is_hdf5(path: Path) -> bool:
    """Whether a file begins as HDF5 files do (after no user block)."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


register_format(
    Format(
        "npz",
        ("",),
        NpzWriter,
        NpzDataset,
        lambda path: path.is_dir() and bool(numbered_files(path)),
    )
)
register_format(Format("hdf5", (".h5", ".hdf5"), Hdf5Writer, Hdf5Dataset, _is_hdf5))
