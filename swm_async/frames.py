"""Frames: taken from infos or rendered, put side by side, laid out as one picture.

A frame is `(H, W, 3) uint8`, red, green, blue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, sqrt
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from swm_async.errors import EnvError

Frame: TypeAlias = npt.NDArray[np.uint8]

_GAP = 2
_PAPER = 24


def frame_of(row: Mapping[str, Any], name: str = "pixels") -> Frame:
    """Return the frame in one environment's infos, or in a row of a dataset.

    Args:
        row: Values by key: an image `name`, or several of them, `<name>.<view>`, which are put
            side by side.
        name: Of the key.

    Raises:
        ValueError: There is none, or what is there is no image.
    """
    views = [name] if name in row else [key for key in row if key.startswith(f"{name}.")]
    if not views:
        raise ValueError(
            f"a video needs the info {name!r} or {name + '.<view>'!r}, found {sorted(row)}; "
            "give the World add_pixels=True and image_shape"
        )
    return side_by_side([as_frame(row[view]) for view in views])


def as_frame(value: Any) -> Frame:
    """Return an image `(H, W, 1 | 3 | 4) uint8` as a frame; a fourth channel is left out.

    Raises:
        ValueError: It is no such image.
    """
    image: npt.NDArray[Any] = np.asarray(value)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3, 4):
        raise ValueError(
            "a frame must be an image (height, width, 1, 3 or 4 channels) of uint8, found "
            f"{image.dtype} {image.shape}"
        )
    if image.shape[2] == 1:
        image = np.repeat(image, 3, axis=2)
    frame: Frame = image[:, :, :3]
    return frame


def side_by_side(frames: Sequence[Frame]) -> Frame:
    """Put frames next to each other, from left to right; lower ones get a margin below."""
    height = max(len(frame) for frame in frames)
    padded = [np.pad(f, ((0, height - len(f)), (0, 0), (0, 0))) for f in frames]
    return np.concatenate(padded, axis=1)


def even_sized(frame: Frame) -> Frame:
    """Return a frame of even height and width, its last row or column repeated if need be.

    Video of 4:2:0 colours, the kind that every player knows, comes in even sizes alone.
    """
    height, width, _ = frame.shape
    if height % 2 == 0 and width % 2 == 0:
        return frame
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def grid(frames: Sequence[Frame | None]) -> Frame:
    """Lay frames out in rows, as nearly square as possible, with thin gaps between them.

    Args:
        frames: One per place, of any sizes; None leaves a place empty.

    Returns:
        The picture `(H, W, 3) uint8`.
    """
    columns = ceil(sqrt(len(frames)))
    rows = ceil(len(frames) / columns)
    shown = [frame for frame in frames if frame is not None]
    height = max((frame.shape[0] for frame in shown), default=1) + _GAP
    width = max((frame.shape[1] for frame in shown), default=1) + _GAP
    picture = np.full((rows * height + _GAP, columns * width + _GAP, 3), _PAPER, np.uint8)
    for k, frame in enumerate(frames):
        if frame is not None:
            top, left = k // columns * height + _GAP, k % columns * width + _GAP
            picture[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
    return picture


def rendered_grid(pool: Any) -> Frame:
    """Render all environments of a pool into one picture; see `grid`.

    Environments that were never reset leave their place empty.

    Raises:
        EnvError: An environment raised while it rendered.
        ValueError: An environment renders no image.
    """
    try:
        rendered = pool.render()
    except EnvError as error:
        if not all(isinstance(f.exception, ResetNeeded) for f in error.failures):
            raise
        rendered = error.result
    return grid([None if frame is None else _rendered(frame) for frame in rendered])


def _rendered(frame: Any) -> Frame:
    if isinstance(frame, list | tuple):
        return side_by_side([as_frame(part) for part in frame])
    return as_frame(frame)


def save_picture(picture: Frame, path: Path) -> None:
    """Write a picture in the format that the suffix tells.

    Raises:
        ImportError: Pillow is missing.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            'writing a picture needs pillow: pip install "swm_async[pixels]"'
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path)
