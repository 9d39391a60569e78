"""Passages of recorded episodes: the state an episode shall start in, and the one it aims at.

It reads any dataset that has `load_chunk` and knows no environment, pool or World. Everything that
may be wrong with a choice of passages is found here, before anything moves.

Letters: `E` = passages, `e` = position of a passage, `T` = rows of a passage.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from swm_async.rollout import MAX_SEED

Row: TypeAlias = dict[str, Any]
Ints: TypeAlias = npt.NDArray[np.int64]

GOAL = "goal"
"""What the names of goals begin with; columns whose names do are not read."""
SEED = "seed"
"""The column that seeds the resets."""


@dataclass(frozen=True)
class Passage:
    """One part of a recorded episode; images are numpy arrays `(height, width, channels)`.

    Attributes:
        init_row: The columns at the first row, and those that belong to the whole episode.
        goal_row: The columns at the last row, named `goal` (from `pixels`) and `goal_<column>`.
        images: The columns of images at each row, `(T, height, width, channels)`, where asked for.
    """

    init_row: Row
    goal_row: Row
    images: Row


def load_passages(
    dataset: Any,
    episodes_idx: Sequence[int] | None,
    start_steps: Sequence[int] | None,
    goal_offset: int | None,
    *,
    with_images: bool = False,
) -> list[Passage]:
    """Load the passages that start at `start_steps[e]` of episode `episodes_idx[e]`.

    Args:
        dataset: Has `load_chunk(episodes, starts, ends)`: three `(E,) int64` in, a list of dicts
            out, from columns to arrays or torch tensors `(T, ...)`. Where it has `lengths` (steps
            of each episode) they are checked; where it has `episode_column_names` and
            `get_episode_data(episode)`, those columns join `init_row`.
        episodes_idx: Which episodes, `(E,)`; one may be there more than once.
        start_steps: The first row in each, `(E,)`.
        goal_offset: The goal lies so many rows later: `T = goal_offset + 1`.
        with_images: Whether the images between start and goal are kept too.

    Raises:
        TypeError: The dataset has no `load_chunk`.
        ValueError: An argument is None, an episode, start or goal does not exist, or lengths
            differ; names them.
    """
    if not callable(getattr(dataset, "load_chunk", None)):
        raise TypeError(
            f"a dataset must have load_chunk(episodes, starts, ends), found {dataset!r}"
        )
    episodes = _integers("episodes_idx", episodes_idx)
    starts = _integers("start_steps", start_steps)
    if len(episodes) != len(starts):
        raise ValueError(
            f"episodes_idx and start_steps must have one entry for each episode of the run, found "
            f"{len(episodes)} and {len(starts)}"
        )
    offset = _integer("goal_offset", goal_offset)
    _check_range(dataset, episodes, starts, offset)
    chunks = dataset.load_chunk(episodes, starts, starts + offset + 1)
    if len(chunks) != len(episodes):
        raise ValueError(
            f"load_chunk must return one dict for each of {len(episodes)} episodes, found "
            f"{len(chunks)}"
        )
    return [
        _passage(dataset, chunk, int(episode), int(start), offset, with_images)
        for chunk, episode, start in zip(chunks, episodes, starts, strict=True)
    ]


def column_seeds(passages: Sequence[Passage]) -> list[int] | None:
    """Return the seeds in the column `seed`, one for each passage; None where there is none.

    Raises:
        ValueError: A passage has none, or one that is no seed; names its position.
    """
    if not any(SEED in passage.init_row for passage in passages):
        return None
    seeds = []
    for e, passage in enumerate(passages):
        found = np.asarray(passage.init_row.get(SEED, np.nan))
        value = found.item() if found.size == 1 and found.dtype.kind in "iuf" else -1
        if not 0 <= value <= MAX_SEED or value != int(value):
            raise ValueError(
                f"column 'seed' must hold integers from 0 to 2**63 - 1, found "
                f"{passage.init_row.get(SEED)!r} in passage {e}"
            )
        seeds.append(int(value))
    return seeds


def as_image(value: Any) -> npt.NDArray[np.uint8] | None:
    """Return an image `(height, width, 1 | 3 | 4) uint8`, None for all that is no image.

    Args:
        value: A numpy array. A first axis of 1 or 3 holds the channels, unless the last one does.
    """
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 3:
        return None
    if value.shape[0] in (1, 3) and value.shape[2] not in (1, 3):
        return np.moveaxis(value, 0, 2)
    return value if value.shape[2] in (1, 3, 4) else None


def _passage(
    dataset: Any, chunk: Mapping[str, Any], episode: int, start: int, offset: int, images: bool
) -> Passage:
    columns = {name: values for name, values in chunk.items() if not name.startswith(GOAL)}
    for name, values in columns.items():
        if len(values) != offset + 1:
            raise ValueError(
                f"episode {episode} has no rows {start} to {start + offset}: column {name!r} ends "
                f"after {len(values)} of {offset + 1} rows"
            )
    init_row = {name: _entry(values[0]) for name, values in columns.items()}
    goal_row = {_goal_name(name): _entry(values[-1]) for name, values in columns.items()}
    frames = {}
    for name, values in columns.items() if images else ():
        if as_image(_as_numpy(values[0])) is not None:
            frames[name] = np.stack([_entry(value) for value in values])
    return Passage(_episode_columns(dataset, episode) | init_row, goal_row, frames)


def _goal_name(column: str) -> str:
    return GOAL if column == "pixels" else f"{GOAL}_{column}"


def _episode_columns(dataset: Any, episode: int) -> Row:
    names = getattr(dataset, "episode_column_names", None)
    if not names or not callable(getattr(dataset, "get_episode_data", None)):
        return {}
    data = dataset.get_episode_data(episode)
    return {
        name: _entry(data[name]) for name in names if name in data and not name.startswith(GOAL)
    }


def _entry(value: Any) -> Any:
    """Return one row's value as numpy, a copy, with channels last in images."""
    value = _as_numpy(value)
    image = as_image(value)
    if image is not None:
        return np.ascontiguousarray(image)
    return value.copy() if isinstance(value, np.ndarray) else value


def _as_numpy(value: Any) -> Any:
    """Return a torch tensor as an array, everything else as it is."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _check_range(dataset: Any, episodes: Ints, starts: Ints, offset: int) -> None:
    lengths = getattr(dataset, "lengths", None)
    if lengths is not None:
        lengths = np.asarray(_as_numpy(lengths)).reshape(-1)
    count = None if lengths is None else len(lengths)
    unknown = [int(k) for k in episodes if k < 0 or (count is not None and k >= count)]
    if unknown:
        known = "" if count is None else f", the dataset has episodes 0 to {count - 1}"
        raise ValueError(f"episodes_idx names unknown episodes {unknown}{known}")
    problems = []
    for e, (episode, start) in enumerate(zip(episodes, starts, strict=True)):
        length = None if lengths is None else int(lengths[episode])
        if start < 0 or (length is not None and start >= length):
            problems.append(f"start_steps[{e}] = {start} of episode {episode}")
        elif length is not None and start + offset >= length:
            problems.append(
                f"the goal of start_steps[{e}] = {start}, row {start + offset} of episode {episode}"
            )
        else:
            continue
        problems[-1] += "" if length is None else f" with rows 0 to {length - 1}"
    if problems:
        raise ValueError(f"outside of the recorded episodes: {'; '.join(problems)}")


def _integers(name: str, values: Any) -> Ints:
    if values is None or isinstance(values, str) or np.ndim(_as_numpy(values)) != 1:
        raise ValueError(f"{name} must be a list of integers, found {values!r}")
    numbers = [_integer(f"{name}[{e}]", value, low=None) for e, value in enumerate(values)]
    if not numbers:
        raise ValueError(f"{name} must have an entry for each episode of the run, found none")
    return np.array(numbers, np.int64)


def _integer(name: str, value: Any, low: int | None = 0) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, found {value!r}") from None
    if isinstance(value, bool) or (low is not None and number < low):
        raise ValueError(f"{name} must be an integer >= {low}, found {value!r}")
    return number
