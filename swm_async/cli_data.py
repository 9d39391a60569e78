"""The commands `swm-async collect` and `swm-async inspect`: datasets made and looked at."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from swm_async.cli_types import positive
from swm_async.cli_worlds import add_world_arguments, make_policy, make_world, set_policy
from swm_async.data import format_for, load_dataset
from swm_async.data.files import Mode
from swm_async.errors import PoolError
from swm_async.passages import as_image
from swm_async.pictures import Frame, contact_sheet, moments, save_png
from swm_async.terminal import UserError, need, one_line, text_table

_SHEET_EPISODES, _SHEET_MOMENTS = 6, 8
_FRAME_HEIGHT = 96
"""Smaller frames are enlarged to at least this height."""


def add_parsers(commands: Any) -> None:
    """Add the commands to those of `swm-async`."""
    _add_collect(commands)
    _add_inspect(commands)


def _add_collect(commands: Any) -> None:
    parser = commands.add_parser(
        "collect",
        help="record episodes of a policy as a dataset",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(run=_collect)
    parser.add_argument(
        "env_id", metavar="ENV_ID", help="as gymnasium.make takes it, also module:Id-v0"
    )
    parser.add_argument(
        "out", metavar="OUT", type=Path, help="a folder of npz files, or a file .h5 or .hdf5"
    )
    add_world_arguments(parser)
    parser.add_argument(
        "--image-size",
        "--image-shape",
        type=positive,
        nargs=2,
        metavar=("H", "W"),
        help="size of the recorded pixels; None = no pixels",
    )
    parser.add_argument("--format", help="npz, hdf5, or one of stable-worldmodel's; None = by OUT")
    parser.add_argument(
        "--mode", choices=get_args(Mode), default="append", help="what to do with episodes in OUT"
    )


def _collect(given: argparse.Namespace) -> None:
    """Record episodes and tell how many.

    Raises:
        UserError: An argument cannot be met, or a package is missing.
    """
    shape = tuple(given.image_size) if given.image_size else None
    if shape is not None:
        need("PIL", "pixels", "resizing pixels")
    try:
        if format_for(given.out, given.format).name == "hdf5":
            need("h5py", "hdf5", "the format hdf5")
    except ValueError as error:
        raise UserError(str(error)) from error
    policy = make_policy(given.policy)
    with make_world(given, shape) as world:
        set_policy(world, policy, given.policy)
        try:
            found = world.collect(
                given.out, given.episodes, given.seed, format=given.format, mode=given.mode
            )
        except PoolError:
            raise  # of an environment, which may look like an error of values
        except (OSError, ValueError) as error:
            raise UserError(one_line(error)) from error
    steps = int(found["episode_lengths"].sum())
    print(f"recorded {given.episodes} episodes of {steps} steps: {given.out.resolve()}")


def _add_inspect(commands: Any) -> None:
    parser = commands.add_parser("inspect", help="tell what a dataset holds, and draw it")
    parser.set_defaults(run=_inspect)
    parser.add_argument("dataset", metavar="DATASET", type=Path)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where to draw a contact sheet of the pixels, PNG"
    )


def _inspect(given: argparse.Namespace) -> None:
    """Print columns and lengths, draw a contact sheet.

    Raises:
        UserError: There is no such dataset, it has no pixels to draw, or a package is missing.
    """
    if given.out is not None:
        need("PIL", "pixels", "the contact sheet")
    try:
        dataset = load_dataset(given.dataset)
    except (OSError, ValueError, ImportError) as error:
        text = str(error) if isinstance(error, ImportError) else one_line(error)
        raise UserError(f"cannot read {given.dataset}: {text}") from error
    lengths = np.asarray(dataset.lengths)
    print(f"{given.dataset.resolve()}: {len(lengths)} episodes, {int(lengths.sum())} rows")
    if not len(lengths):
        return
    low, middle, high = np.quantile(lengths, [0, 0.5, 1])
    print(f"rows of an episode: {low:.0f} to {high:.0f}, half of them up to {middle:g}\n")
    print(text_table(_columns(dataset)))
    images = [name for name in dataset.column_names if name.split(".")[0] == "pixels"]
    if given.out is None:
        if images:
            print("\nits pixels are drawn with --out FILE")
        return
    if not images:
        raise UserError(f"{given.dataset} has no column of pixels to draw")
    save_png(contact_sheet(_frames(dataset, images[0]), _SHEET_MOMENTS), given.out)
    print(f"\ncontact sheet of {images[0]}: {given.out.resolve()}")


def _columns(dataset: Any) -> list[tuple[str, str, str]]:
    """Return a table of the columns, by their first rows."""
    first, single = (np.array([number]) for number in (0, 1))
    (chunk,) = dataset.load_chunk(first, first, single)
    rows = [("column", "dtype", "shape")]
    for name in sorted(chunk):
        rows.append((name, *_kind(chunk[name][0])))
    for name in getattr(dataset, "episode_column_names", None) or ():
        rows.append((f"{name} (per episode)", *_kind(dataset.get_episode_data(0)[name])))
    return rows


def _kind(value: Any) -> tuple[str, str]:
    array = np.asarray(value)
    dtype = "text" if array.dtype.kind == "U" else str(array.dtype)
    return dtype, "×".join(map(str, array.shape)) or "-"


def _frames(dataset: Any, name: str) -> list[list[Frame]]:
    """Return frames of some episodes, evenly spread over the dataset, at some moments of each."""
    count = len(dataset.lengths)
    chosen = sorted(set(moments(count, min(count, _SHEET_EPISODES))))
    episodes = []
    for k in chosen:
        times = moments(int(dataset.lengths[k]), _SHEET_MOMENTS)
        # One by one, not as a whole: an episode may be long.
        chunks = dataset.load_chunk(*(np.array(part) for part in _single_rows(k, times)))
        episodes.append([_frame(chunk[name][0]) for chunk in chunks])
    return episodes


def _single_rows(k: int, times: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    return [k] * len(times), list(times), [t + 1 for t in times]


def _frame(value: Any) -> Frame:
    """Return a picture `(H, W, 3) uint8`, large enough to be looked at."""
    image = as_image(np.asarray(value))
    if image is None:
        raise UserError(f"the pixels are no images: {np.asarray(value).dtype} {np.shape(value)}")
    colours = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image[:, :, :3]
    times = -(-_FRAME_HEIGHT // colours.shape[0])
    return colours.repeat(times, axis=0).repeat(times, axis=1)
