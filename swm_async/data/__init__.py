"""Recorded episodes: the formats they are written in, and datasets to read them.

`load_dataset` opens what `World.collect` wrote. The package knows files and columns, and neither
pools nor Worlds.
"""

from swm_async.data.episodes import Dataset, Episode, Writer
from swm_async.data.formats import Format, format_for, load_dataset, register_format
from swm_async.data.hdf5 import Hdf5Dataset, Hdf5Writer
from swm_async.data.minari import MinariEpisodes, as_dataset
from swm_async.data.npz import NpzDataset, NpzWriter

__all__ = [
    "Dataset",
    "Episode",
    "Format",
    "Hdf5Dataset",
    "Hdf5Writer",
    "MinariEpisodes",
    "NpzDataset",
    "NpzWriter",
    "Writer",
    "as_dataset",
    "format_for",
    "load_dataset",
    "register_format",
]
