"""Lines through measured points, and how well they fit; no measuring, no output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from swm_async.benchmarking import Spread


@dataclass(frozen=True)
class Series:
    """Measured points of one side."""

    name: str
    unit: str
    """Of x: `"N"` or `"bytes"`."""
    x: list[int]
    y: list[Spread]

    def data(self) -> dict[str, Any]:
        return {
            "side": self.name,
            "x": self.unit,
            "points": [{"x": x, **y._asdict()} for x, y in zip(self.x, self.y, strict=True)],
        }


class Fit(NamedTuple):
    """A line y = start + slope · x."""

    start: float
    slope: float
    mean_error: float
    """Root of the mean squared relative error: 0.1 = the points are 10 % off the line."""
    worst_error: float

    def at(self, x: float) -> float:
        return self.start + self.slope * x

    def in_words(self, key: str, unit: str) -> list[str]:
        """Start, slope and error as text, in the units of a series of `growth`."""
        error = f"{self.mean_error:.0%}, at most {self.worst_error:.0%}"
        if key == "memory":
            start = f"{self.start / 2**20:,.1f} MiB"
            slope = f"{self.slope:.2f} B/B" if unit == "bytes" else f"{self.slope / 1024:.2f} KiB/N"
        elif key == "start":
            start, slope = f"{self.start:.2f} s", f"{self.slope * 1e3:.1f} ms/N"
        else:
            start = f"{self.start * 1e6:.1f} µs"
            digits = 3 if unit == "bytes" else 0 if self.slope > 1e-7 else 1
            slope = f"{self.slope * 1e9:,.{digits}f} ns/{'B' if unit == 'bytes' else 'N'}"
        return [start, slope, error]


def fit_line(x: Sequence[float], y: Sequence[float]) -> Fit:
    """The line of the smallest sum of squared relative errors, through two points or more.

    Relative, since x and y span decades: the smallest of them would have no say otherwise.
    """
    start, slope = fit([[1.0, value] for value in x], y)
    return Fit(start, slope, *errors([start + slope * value for value in x], y))


def fit(terms: Sequence[Sequence[float]], y: Sequence[float]) -> list[float]:
    """Coefficients of the terms, one row of them for each y, by least relative squares."""
    rows, values = np.asarray(terms, float), np.asarray(y, float)
    found, *_ = np.linalg.lstsq(rows / values[:, None], np.ones(len(values)), rcond=None)
    return [float(value) for value in found]


def errors(predicted: Sequence[float], measured: Sequence[float]) -> tuple[float, float]:
    """Relative errors: the root of their mean square, and the largest."""
    found = np.asarray(predicted, float) / np.asarray(measured, float) - 1
    return float(np.sqrt(np.mean(found**2))), float(np.max(np.abs(found)))
