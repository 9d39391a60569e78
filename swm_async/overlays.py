"""Values of recorded episodes in the shape of infos; no I/O, and nothing is written in place.

It knows arrays and images: no pools, time steps or datasets.

Letters: `N` = num_envs, `i` = env index, `E` = episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from swm_async.passages import GOAL, Passage, as_image
from swm_workers.images import GoalImages, InfoSettings, resize
from swm_workers.layout import fill_value


def batched_goals(passages: Sequence[Passage], settings: InfoSettings) -> dict[str, Any]:
    """Return each goal as one array `(E, ...)`, else as a list of E values."""
    names = dict.fromkeys(name for passage in passages for name in passage.goal_row)
    batched: dict[str, Any] = {}
    for name in names:
        shape = _goal_shaper(name, settings)
        values = [shape(passage.goal_row.get(name)) for passage in passages]
        arrays = [np.asarray(value) for value in values]
        same = len({array.shape for array in arrays}) == 1
        if same and all(array.dtype.kind in "biufc" for array in arrays):
            batched[name] = np.stack(arrays)
        else:
            batched[name] = values
    return batched


def _goal_shaper(name: str, settings: InfoSettings) -> Callable[[Any], Any]:
    if name == GOAL:
        return GoalImages(settings).shape

    def shaped(value: Any) -> Any:
        if settings.image_shape is None or as_image(value) is None:
            return value
        return resize(value, settings.image_shape, settings.image_resample)

    return shaped


def with_rows(shown: Any, goals: Any, rows: Sequence[int], episode: Any, num_envs: int) -> Any:
    """Return the goals `(N, 1, ...)`, those of `rows` anew; a list `[[v]]` where they are one."""
    if isinstance(goals, list):
        lists = [[None] for _ in range(num_envs)] if shown is None else list(shown)
        for i in rows:
            lists[i] = [goals[episode[i]]]
        return lists
    if shown is None:
        shown = np.full((num_envs, 1, *goals.shape[1:]), fill_value(goals.dtype), dtype=goals.dtype)
    array = shown.copy()
    array[rows, 0] = goals[episode[rows]]
    return array


def overlaid(values: Any, recorded: Mapping[int, Any], settings: InfoSettings) -> Any:
    """Return a copy of an info with the rows of `recorded`, as far as they fit.

    Args:
        values: `(N, 1, ...)`, an array or a torch tensor, or a list `[[v]]`.
        recorded: By env index, values of a passage.
        settings: How images are resized.
    """
    if isinstance(values, list):
        strings = {i: str(v) for i, v in recorded.items() if isinstance(v, str)}
        return [
            [strings[i]] if i in strings and isinstance(entry[0], str) else entry
            for i, entry in enumerate(values)
        ]
    shape = tuple(values.shape[2:])
    copy: Any = None
    for i, value in recorded.items():
        fitted = _fitted(value, shape, settings)
        if values.ndim < 2 or fitted is None:
            continue
        if hasattr(values, "clone"):
            copy = values.clone() if copy is None else copy
            copy[i, 0] = values.new_tensor(fitted)
        elif np.can_cast(fitted.dtype, values.dtype, "same_kind"):
            copy = values.copy() if copy is None else copy
            copy[i, 0] = fitted
    return values if copy is None else copy


def _fitted(recorded: Any, shape: tuple[int, ...], settings: InfoSettings) -> Any:
    """Return a recorded value in this shape, None if it has another one and is no image."""
    value = np.asarray(recorded)
    if value.shape == shape:
        return value
    image = as_image(value)
    if image is None or len(shape) != 3:
        return None
    if image.shape[2] == shape[2]:
        return resize(image, (shape[0], shape[1]), settings.image_resample)
    first = np.moveaxis(image, 2, 0)  # recorded with its channels first, as the info has them
    return first if first.shape == shape else None
