"""The pictures of the benchmarks; needs matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fits import Fit, Series

from swm_async.benchmarking import Spread

INK, MUTED = "#264653", "#8d99ae"
COLORS = ("#2a9d8f", "#e76f51", "#3d5a80", "#e9c46a", "#6d597a", "#264653", "#c9ada7", "#bc4749")


def _figure(width: float, height: float, columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, which="major", color="#e5e5e5", linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def _save(figure: Any, caption: str, path: Path) -> None:
    width = int(18 * figure.get_figwidth())
    lines = [part for line in caption.splitlines() for part in textwrap.wrap(line, width)]
    figure.supxlabel("\n".join(lines), fontsize=7, color="#555555")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def plot_growth(
    series: Mapping[str, Sequence[Series]],
    fits: Mapping[tuple[str, str], Fit],
    caption: str,
    path: Path,
) -> None:
    """Draw the series of `growth` with their fitted lines; floors are dashed."""
    panels: dict[str, tuple[str, str, Callable[[float], float]]] = {
        "envs": ("environments that do nothing", "time of a step, µs", lambda y: y * 1e6),
        "bytes": ("bytes that all 32 report", "time of a step, µs", lambda y: y * 1e6),
        "masked": ("N, of which 8 are stepped", "time of a step, µs", lambda y: y * 1e6),
        "start": ("workers", "start, s", lambda y: y),
    }
    figure, axes = _figure(16, 4.2, len(panels))
    for axis, (key, (xlabel, ylabel, scaled)) in zip(axes, panels.items(), strict=True):
        for k, each in enumerate(series[key]):
            color = COLORS[0] if k == 0 else MUTED
            _points(axis, each.x, each.y, scaled, color, each.name)
            if fit := fits.get((key, each.name)):
                # No line where it would be below zero, which this scale cannot show.
                smooth = [x for x in _between(each.x) if fit.at(x) > 0]
                axis.plot(smooth, [scaled(fit.at(x)) for x in smooth], color=color,
                          linestyle="-" if k == 0 else "--", linewidth=1)  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        _plain_numbers(axis.yaxis)
        if key != "bytes":
            ticks = series[key][0].x
            axis.set_xticks(ticks, [str(x) for x in ticks], minor=False)
            axis.set_xticks([], minor=True)
        axis.set_xlabel(xlabel, fontsize=9)
        axis.set_ylabel(ylabel, fontsize=9)
        axis.legend(frameon=False, fontsize=8)
    _save(figure, f"points: medians and quartiles; lines: fitted y = a + b x\n{caption}", path)


def plot_libraries(
    rates: Mapping[str, Mapping[int, Spread]], title: str, caption: str, path: Path
) -> None:
    """Draw environment steps per second over N, a line for each library."""
    figure, (axis,) = _figure(8.5, 5.2, 1)
    for k, (label, found) in enumerate(rates.items()):
        ours, bound = label.startswith("VectorEnv, "), label == "ceiling"
        color = MUTED if bound else COLORS[k % len(COLORS)]
        _points(axis, list(found), list(found.values()), float, color, label)
        axis.plot(
            list(found), [spread.median for spread in found.values()],
            color=color, linewidth=2.2 if ours else 1.1, linestyle="--" if bound else "-",
        )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    sizes = sorted({n for found in rates.values() for n in found})
    axis.set_xticks(sizes, [str(n) for n in sizes])
    axis.set_xlabel("number of environments", fontsize=9)
    axis.set_ylabel("environment steps per second", fontsize=9)
    axis.set_title(title, fontsize=10)
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(figure, caption, path)


def plot_scaling(
    panels: Mapping[str, tuple[Mapping[int, float], Mapping[int, Spread]]],
    caption: str,
    path: Path,
) -> None:
    """Draw the speed over workers, each with a core of its own: the model, and what was measured.

    Args:
        panels: By title, times as fast as one worker: what the model says, and measured points.
        caption: Under the picture.
        path: Where the PNG goes.
    """
    figure, axes = _figure(4.2 * len(panels), 4.4, len(panels))
    for axis, (title, (model, measured)) in zip(axes, panels.items(), strict=True):
        workers = list(model)
        axis.plot(workers, workers, color=MUTED, linestyle=":", linewidth=1, label="as many times")
        axis.plot(workers, list(model.values()), color=COLORS[0], linewidth=1.8, label="model")
        _points(axis, list(measured), list(measured.values()), float, COLORS[1], "measured")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        ticks = [w for w in workers if w.bit_count() == 1]
        axis.set_xticks(ticks, [str(w) for w in ticks])
        axis.set_yticks(ticks, [str(w) for w in ticks])
        axis.set_ylim(0.7, 1.4 * max(workers))
        axis.set_xlabel("workers", fontsize=9)
        axis.set_title(title, fontsize=10)
    axes[0].set_ylabel("speed, 1 worker = 1", fontsize=9)
    axes[0].legend(frameon=False, fontsize=8)
    _save(figure, caption, path)


def _points(
    axis: Any,
    x: Sequence[int],
    spreads: Sequence[Spread],
    scaled: Callable[[float], float],
    color: str,
    label: str,
) -> None:
    """Medians with whiskers from quartile to quartile."""
    middle = [scaled(spread.median) for spread in spreads]
    below = [scaled(spread.median) - scaled(spread.low) for spread in spreads]
    above = [scaled(spread.high) - scaled(spread.median) for spread in spreads]
    axis.errorbar(
        x, middle, yerr=[below, above], fmt="o", color=color, markersize=4, linewidth=0.9,
        label=label,
    )  # fmt: skip


def _plain_numbers(axis: Any) -> None:
    """Write 100 and not a power of ten, with fewer numbers where there are many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _between(x: Sequence[int]) -> list[float]:
    """Positions from the first to the last, even on a scale of logarithms."""
    first, last, count = min(x), max(x), 60
    return [first * (last / first) ** (k / (count - 1)) for k in range(count)]
