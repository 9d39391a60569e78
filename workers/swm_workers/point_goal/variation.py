"""What varies between PointGoal's episodes: colours, the wall, the speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.random import Generator

from swm_workers.point_goal.room import Array, Color


class Factor(NamedTuple):
    """One factor of variation: an array of `dtype` whose every entry lies in [low, high]."""

    low: float
    high: float
    default: float | Color
    dtype: type[np.generic] = np.float64


FACTORS: dict[str, Factor] = {
    "agent_color": Factor(20, 220, (220, 70, 52), np.uint8),
    "gap_position": Factor(-0.55, 0.55, 0.0),
    "goal_color": Factor(20, 220, (42, 157, 143), np.uint8),
    "speed": Factor(0.04, 0.10, 0.06),
    "wall_position": Factor(-0.3, 0.3, 0.0),
}
# The factors that move the agent; they are the last entries of a state, in this order.
PHYSICS = ("wall_position", "gap_position", "speed")


class VariationSpace(spaces.Dict):
    """The space of an environment's factors of variation, which also tells their current values.

    Attributes:
        value: current value of each factor by name, arrays of the factor's own shape and dtype.
    """

    def __init__(self) -> None:
        boxes: dict[str, spaces.Space[Any]] = {}
        for name, factor in FACTORS.items():
            dtype: Any = factor.dtype
            boxes[name] = spaces.Box(
                factor.low, factor.high, shape=np.shape(factor.default), dtype=dtype
            )
        super().__init__(boxes)
        self.value: dict[str, Array] = _default_values()

    def choose(self, request: Sequence[str] | Mapping[str, Any], rng: Generator) -> None:
        """Set the requested factors and return all others to their defaults.

        Every call draws all factors from `rng`, asked for or not, so that what is drawn later does
        not depend on the request.

        Args:
            request: names of factors to draw afresh (`["all"]` = every one), or a mapping
                name → value.
            rng: where the values come from.

        Raises:
            ValueError: an unknown name, or a value outside its factor's box.
        """
        drawn = {name: _draw(factor, rng) for name, factor in FACTORS.items()}
        names = [request] if isinstance(request, str) else list(request)
        if "all" in names:
            names = list(FACTORS)
        if unknown := [name for name in names if name not in FACTORS]:
            raise ValueError(
                f"unknown factors of variation {unknown}, expected some of {list(FACTORS)}"
            )
        if isinstance(request, Mapping):
            chosen = {name: self._checked(name, request[name]) for name in names}
        else:
            chosen = {name: drawn[name] for name in names}
        self.value = _default_values() | chosen

    def _checked(self, name: str, value: Any) -> Array:
        box = self.spaces[name]
        found = np.asarray(value)
        with np.errstate(invalid="ignore"):  # a NaN that becomes an integer is refused below
            array = found.astype(box.dtype)
        if not (np.array_equal(array, found) and box.contains(array)):
            raise ValueError(f"factor of variation {name!r} must lie in {box}, found {value!r}")
        return array


def _default_values() -> dict[str, Array]:
    return {name: np.array(f.default, dtype=f.dtype) for name, f in FACTORS.items()}


def _draw(factor: Factor, rng: Generator) -> Array:
    shape = np.shape(factor.default)
    if factor.dtype is np.uint8:
        return rng.integers(int(factor.low), int(factor.high) + 1, size=shape, dtype=np.uint8)
    return np.asarray(rng.uniform(factor.low, factor.high, size=shape or None))
