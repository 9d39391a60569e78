"""Pictures that the commands write: a contact sheet of frames, a chart of speeds.

It knows frames and rows of a comparison. Pillow and matplotlib are optional and imported only
where a picture is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from swm_async.contenders import Row

Frame = npt.NDArray[np.uint8]

_GAP = 4
_MARGIN = 12
_PAPER = (250, 249, 246)
_COLORS = {
    "SyncVectorEnv": "#8d99ae",
    "AsyncVectorEnv": "#c9ada7",
    "EnvPool, in process": "#e9c46a",
}
_POOL_COLORS = ("#2a9d8f", "#1d6f72", "#264653", "#14213d")


def moments(length: int, count: int) -> list[int]:
    """Choose `count` positions of a sequence, evenly spread, the first and the last among them."""
    return [round(k * (length - 1) / max(count - 1, 1)) for k in range(count)]


def contact_sheet(episodes: Sequence[Sequence[Frame]], columns: int) -> Frame:
    """Lay out episodes below each other, each as `columns` frames from its first to its last.

    Args:
        episodes: Frames `(H, W, 3) uint8` in order of time, at least one per episode.
        columns: Frames of a row.

    Returns:
        The sheet, `(height, width, 3) uint8`, with thin gaps between the frames.
    """
    height, width, _ = episodes[0][0].shape
    rows = len(episodes)
    shape = (
        2 * _MARGIN + rows * (height + _GAP) - _GAP,
        2 * _MARGIN + columns * (width + _GAP) - _GAP,
        3,
    )
    sheet = np.full(shape, _PAPER, np.uint8)
    for row, frames in enumerate(episodes):
        top = _MARGIN + row * (height + _GAP)
        for column, t in enumerate(moments(len(frames), columns)):
            left = _MARGIN + column * (width + _GAP)
            sheet[top : top + height, left : left + width] = frames[t]
    return sheet


def save_png(picture: Frame, path: Path) -> None:
    """Write a picture `(H, W, 3) uint8`; needs pillow."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path, format="PNG", optimize=True)


def plot_speeds(panels: Mapping[str, Sequence[Row]], caption: str, path: Path) -> None:
    """Draw how many times as fast as SyncVectorEnv each side is; needs matplotlib.

    Args:
        panels: For each environment the rows of a comparison, of one or more `num_envs`.
        caption: One line under the picture, for the machine.
        path: Where the PNG goes.
    """
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(max(7.0, 3.4 * len(panels)), 4.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        _draw_panel(axis, title, rows)
    axes[0].set_ylabel("speed, SyncVectorEnv = 1")
    handles, labels = axes[0].get_legend_handles_labels()
    columns = len(labels) if len(panels) > 1 else 3
    figure.legend(
        handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=8
    )
    figure.supxlabel(f"number of environments\n{caption}", fontsize=7, color="#555555")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _draw_panel(axis: Any, title: str, rows: Sequence[Row]) -> None:
    """Draw one group of bars per number of environments; whiskers are quartiles."""
    sizes = sorted({row.num_envs for row in rows})
    labels = list(dict.fromkeys(row.label for row in rows))
    width = 0.8 / len(labels)
    colors = _colors(labels)
    for k, label in enumerate(labels):
        for row in (row for row in rows if row.label == label):
            value, low, high = row.against_sync or (1.0, 1.0, 1.0)
            place = sizes.index(row.num_envs) + (k - (len(labels) - 1) / 2) * width
            first = row.num_envs == sizes[0]
            axis.bar(
                place, value, 0.92 * width, color=colors[label], label=label if first else None
            )
            axis.vlines(place, low, high, color="#333333", linewidth=0.8)
            axis.annotate(
                f"{value:.2f}",
                (place, max(value, high)),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=6,
            )
    axis.axhline(1.0, color="#333333", linewidth=0.8, linestyle=":")
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)


def _colors(labels: Sequence[str]) -> dict[str, str]:
    pools = [label for label in labels if label not in _COLORS]
    shades = {label: _POOL_COLORS[k % len(_POOL_COLORS)] for k, label in enumerate(pools)}
    return _COLORS | shades
