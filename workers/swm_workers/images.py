"""How images in the infos are shaped: frames and goals, resized to one height and width.

It knows single images. It must not know environments, and it must never import swm_async; pillow is
imported only to resize.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLINGS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
"""Pillow's filters and their numbers (PIL.Image.Resampling); all but nearest are antialiased."""


@dataclass(frozen=True)
class InfoSettings:
    """What the wrapper adds to the infos, and how images in them are shaped.

    Attributes:
        image_shape: `(H, W)` to which pixels and goal images are resized; None leaves goals alone.
        add_pixels: Whether every reset and step renders the environment.
        image_transform: Called with each frame, `(h, w, C) uint8` as rendered, in place of the
            resize; its result is the info.
        goal_transform: The same for the info `goal`, with whatever the environment reports there.
        image_resample: One of Pillow's filters: its name, its number or an enum of either.
            None is bilinear.
    """

    image_shape: tuple[int, int] | None = None
    add_pixels: bool = True
    image_transform: Callable[[Any], Any] | None = None
    goal_transform: Callable[[Any], Any] | None = None
    image_resample: Any = None

    def __post_init__(self) -> None:
        """Check the settings and bring them into one form."""
        if self.image_shape is not None:
            object.__setattr__(self, "image_shape", _image_shape(self.image_shape))
        elif self.add_pixels:
            raise ValueError(
                "add_pixels=True needs image_shape=(height, width); "
                "give one, or add_pixels=False for infos without pixels"
            )
        object.__setattr__(self, "image_resample", _resampling(self.image_resample))
        for name in ("image_transform", "goal_transform"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function of one frame, found {function!r}")


class GoalImages:
    """Shapes goals like pixels; a goal that is no image passes unchanged.

    Most environments report one goal at every step of an episode, so the last one is kept.
    """

    def __init__(self, settings: InfoSettings) -> None:
        """Shape goals by `settings`."""
        self._settings = settings
        self._last: npt.NDArray[np.uint8] | None = None
        self._resized: Any = None

    def shape(self, goal: Any) -> Any:
        """Return the transformed goal; else one `(h, w, 1 | 3 | 4) uint8` in the image shape."""
        if self._settings.goal_transform is not None:
            return self._settings.goal_transform(goal)
        target = self._settings.image_shape
        image = isinstance(goal, np.ndarray) and goal.dtype == np.uint8 and goal.ndim == 3
        if target is None or not image or goal.shape[2] not in (1, 3, 4):
            return goal
        if goal.shape[:2] == target:
            return goal
        if self._last is None or not np.array_equal(goal, self._last):
            self._last = goal.copy()
            self._resized = resize(goal, target, self._settings.image_resample)
        return self._resized


def resize(
    frame: npt.NDArray[np.uint8], shape: tuple[int, int], resample: int
) -> npt.NDArray[np.uint8]:
    """Resize `frame` `(h, w, C)` to `shape` `(H, W)`, each channel on its own, antialiased.

    A frame that has the shape is returned itself.

    Raises:
        ImportError: Pillow is needed and missing.
    """
    height, width, channels = frame.shape
    if (height, width) == shape:
        return frame
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            f"resizing a frame of {(height, width)} to {shape} needs pillow: "
            "pip install swm_async[pixels]"
        ) from error
    size = (shape[1], shape[0])
    if channels == 3:
        return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling(resample)))
    # One by one: as RGBA, Pillow would weigh the colours by the fourth channel.
    planes = [
        np.asarray(Image.fromarray(frame[..., k]).resize(size, Image.Resampling(resample)))
        for k in range(channels)
    ]
    return np.stack(planes, axis=-1)


def _image_shape(shape: Any) -> tuple[int, int]:
    try:
        height, width = (operator.index(length) for length in shape)
    except (TypeError, ValueError):
        height = width = 0
    if height < 1 or width < 1:
        raise ValueError(f"image_shape must be (height, width) in pixels, found {shape!r}")
    return height, width


def _resampling(resample: Any) -> int:
    found = resample.value if isinstance(resample, Enum) else resample
    number = RESAMPLINGS.get(found.lower()) if isinstance(found, str) else found
    if number is None and resample is None:
        return RESAMPLINGS["bilinear"]
    if type(number) is not int or number not in RESAMPLINGS.values():
        raise ValueError(f"image_resample must be one of {list(RESAMPLINGS)}, found {resample!r}")
    return number
