"""The embedded environment `swm_async/PointGoal-v0`: a point finds its way through a gap to a goal.

It knows numpy and gymnasium only: nothing of workers, of the World's wrappers or of `swm_async`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[Any]
Color = tuple[int, int, int]

ENV_ID = "swm_async/PointGoal-v0"
MAX_EPISODE_STEPS = 100

# Lengths in room units (the room is [-1, 1] x [-1, 1]), speeds in room units per step; RESPONSE is
# the share of the wanted change of velocity that one step brings.
AGENT_RADIUS = 0.12
GOAL_RADIUS = 0.14
WALL_HALF_WIDTH = 0.05
GAP_HALF_HEIGHT = 0.30
RESPONSE = 0.5
POSITION_LIMIT = 1.0 - AGENT_RADIUS
VELOCITY_LIMIT = 0.12
SPAWN_MARGIN = 0.07
GOAL_BONUS = 1.0

_BORDER_SHARE = 0.04
_SHADOW_SHIFT = 0.03
_SHADOW_OPACITY = 0.2
_FLOOR: Color = (244, 240, 232)
_TILE: Color = (237, 232, 222)
_WALL: Color = (59, 66, 86)
_SHADOW: Color = (40, 40, 60)
_WHITE: Color = (255, 255, 255)
_TILES_PER_SIDE = 8


class _Factor(NamedTuple):
    """One factor of variation: an array of `dtype` whose every entry lies in [low, high]."""

    low: float
    high: float
    default: float | Color
    dtype: type[np.generic] = np.float64


_FACTORS: dict[str, _Factor] = {
    "agent_color": _Factor(20, 220, (220, 70, 52), np.uint8),
    "gap_position": _Factor(-0.55, 0.55, 0.0),
    "goal_color": _Factor(20, 220, (42, 157, 143), np.uint8),
    "speed": _Factor(0.04, 0.10, 0.06),
    "wall_position": _Factor(-0.3, 0.3, 0.0),
}
# The factors that move the agent; they are the last entries of a state, in this order.
_PHYSICS = ("wall_position", "gap_position", "speed")


class VariationSpace(spaces.Dict):
    """The space of an environment's factors of variation, which also tells their current values.

    Attributes:
        value: current value of each factor by name, arrays of the factor's own shape and dtype.
    """

    def __init__(self) -> None:
        boxes: dict[str, spaces.Space[Any]] = {}
        for name, factor in _FACTORS.items():
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
        drawn = {name: _draw(factor, rng) for name, factor in _FACTORS.items()}
        names = [request] if isinstance(request, str) else list(request)
        if "all" in names:
            names = list(_FACTORS)
        if unknown := [name for name in names if name not in _FACTORS]:
            raise ValueError(
                f"unknown factors of variation {unknown}, expected some of {list(_FACTORS)}"
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
    return {name: np.array(f.default, dtype=f.dtype) for name, f in _FACTORS.items()}


def _draw(factor: _Factor, rng: Generator) -> Array:
    shape = np.shape(factor.default)
    if factor.dtype is np.uint8:
        return rng.integers(int(factor.low), int(factor.high) + 1, size=shape, dtype=np.uint8)
    return np.asarray(rng.uniform(factor.low, factor.high, size=shape or None))


class PointGoal(gymnasium.Env[dict[str, Any], Array]):
    """A point in a walled room moves through the gap of an inner wall to a goal.

    The room is the square [-1, 1] x [-1, 1], x to the right and y upwards. The agent is a disc of
    radius 0.12. An upright wall, 0.1 wide, stands at x = `wall_position`; its gap, 0.6 high, is
    centred at y = `gap_position`. Start and goal are drawn in different halves.

    Action, `(2,) float32`, clipped to [-1, 1]: the wanted velocity as a share of `speed` (room
    units per step); longer than 1, it is shortened to 1. Each step, with w = speed * action:

        velocity += 0.5 * (w - velocity)
        x += velocity_x, then y += velocity_y

    Each of the two moves stops at a wall, which sets that component of the velocity to zero (a
    wall acts as if the agent were a square of side 0.24).

    Reward, float64: -distance to the goal after the step, plus 1 where the goal is reached.
    Terminated: the goal is reached, i.e. the distance is at most 0.14 (`success`). The registered
    environment is truncated after 100 steps.

    Observation:
        proprio: `(4,) float32`, x, y, velocity_x, velocity_y.
        state: `(7,) float64`, the same four, wall_position, gap_position, speed. It determines,
            with the goal and the actions, the whole future.

    Infos of reset and step:
        goal_state: `(7,) float64`, the goal as a state; only its x and y matter.
        success: bool. distance: float, room units.
        goal: `(H, W, 3) uint8`, the room with the agent at the goal; after a reset with
            `render_mode="rgb_array"` only.

    Reset options, all optional:
        state, goal_state: `(7,)`, set exactly; `state` overrides the factors wall_position,
            gap_position and speed.
        variation: names of factors to draw afresh (`["all"]` = every one), or a mapping
            name → value; see `variation_space`. Factors not named take their defaults at every
            reset, so an episode depends on seed, options and actions alone.

    Args:
        render_mode: None or "rgb_array".
        render_size: height and width of the frames in pixels.

    Raises:
        ValueError: an unknown render mode, a size below 16 pixels.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(
        self, render_mode: str | None = None, render_size: tuple[int, int] = (96, 96)
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', found {render_mode!r}")
        if min(render_size) < 16:
            raise ValueError(f"render_size must be at least (16, 16), found {render_size}")
        self.render_mode = render_mode
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        limits = [POSITION_LIMIT] * 2 + [VELOCITY_LIMIT] * 2
        physics = [_FACTORS[name] for name in _PHYSICS]
        low = np.array([-limit for limit in limits] + [factor.low for factor in physics])
        high = np.array(limits + [factor.high for factor in physics])
        proprio = spaces.Box(low[:4].astype(np.float32), high[:4].astype(np.float32))
        self._state_space = spaces.Box(low, high, dtype=np.float64)
        self.observation_space = spaces.Dict({"proprio": proprio, "state": self._state_space})
        self.variation_space = VariationSpace()
        self._painter = None if render_mode is None else _Painter(*render_size)
        self._is_reset = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode.

        Args:
            seed: seeds the environment's generator; None goes on with it.
            options: see the class.

        Returns:
            The observation and the infos described in the class.

        Raises:
            ValueError: an unknown or impossible factor, a state outside the room or in a wall.
        """
        super().reset(seed=seed)
        options = options or {}
        variation = options.get("variation")
        self.variation_space.choose(() if variation is None else variation, self.np_random)
        side, *places = self.np_random.random(5).tolist()
        start, goal = options.get("state"), options.get("goal_state")
        if start is not None:
            start = self._in_space("state", start)
            for name, entry in zip(_PHYSICS, start[4:], strict=True):
                self.variation_space.value[name] = np.array(entry)
        self._set_room()
        if goal is not None:
            goal = self._in_free_space("goal_state", self._in_space("goal_state", goal))
        if start is None:
            left = side < 0.5 if goal is None else goal[0] > self._wall
            start = self._place(left, *places[:2])
        start = self._in_free_space("state", start)
        if goal is None:
            goal = self._place(start[0] > self._wall, *places[2:])
        self._x, self._y, self._vx, self._vy = start[:4]
        self._goal_state = np.array(goal)
        self._goal_x, self._goal_y = goal[:2]
        self._is_reset = True
        info = self._info(self._distance())
        if self._painter is not None:
            self._painter.paint_room(self)
            info["goal"] = self._painter.frame(*goal[:4])
        return self._observation(), info

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Move the agent by one step.

        Args:
            action: `(2,)`, finite; entries beyond [-1, 1] are clipped.

        Returns:
            Observation, reward, terminated, truncated (always False), infos; see the class.

        Raises:
            ValueError: an action of another shape, or not finite.
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if not self._is_reset:
            raise gymnasium.error.ResetNeeded("PointGoal must be reset before it is stepped")
        self._move(*self._unit_disc(action))
        distance = self._distance()
        success = distance <= GOAL_RADIUS
        reward = GOAL_BONUS - distance if success else -distance
        return self._observation(), reward, success, False, self._info(distance)

    def render(self) -> Array | None:
        """Draw the room, `(H, W, 3) uint8`; None where the render mode is None.

        The light spot on the agent is shifted by its velocity, so one frame shows the whole state
        but `speed`.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self._painter is None:
            gymnasium.logger.warn("PointGoal.render() needs render_mode='rgb_array'")
            return None
        if not self._is_reset:
            raise gymnasium.error.ResetNeeded("PointGoal must be reset before it is rendered")
        return self._painter.frame(self._x, self._y, self._vx, self._vy)

    @staticmethod
    def reset_options_from_dataset(
        init_row: Mapping[str, Any], goal_row: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Turn dataset rows into the options of a reset that starts and aims there.

        Args:
            init_row: column `state` `(7,)`, and `variation.<name>` for factors that were varied;
                a fill value (NaN, or zero for a colour) means that the factor was not.
            goal_row: column `goal_state` `(7,)`.

        Returns:
            Options with `state`, `goal_state` and, where factors were varied, the mapping
            `variation`.

        Raises:
            ValueError: a column is missing.
        """
        for column, row in (("state", init_row), ("goal_state", goal_row)):
            if column not in row:
                raise ValueError(
                    f"PointGoal needs the dataset column {column!r}, found {sorted(row)}"
                )
        variation = {}
        for name, factor in _FACTORS.items():
            if (column := f"variation.{name}") in init_row:
                value = np.reshape(np.asarray(init_row[column]), np.shape(factor.default))
                is_black = factor.dtype is np.uint8 and not value.any()
                if not (is_black or np.isnan(value).all()):
                    variation[name] = value
        options = {
            "state": np.array(init_row["state"], dtype=np.float64),
            "goal_state": np.array(goal_row["goal_state"], dtype=np.float64),
        }
        return options | ({"variation": variation} if variation else {})

    def get_episode_data(self) -> dict[str, float]:
        """Return what stays constant in an episode: wall_position, gap_position and speed."""
        return {name: float(self.variation_space.value[name]) for name in _PHYSICS}

    def _set_room(self) -> None:
        """Derive the limits of the agent's centre from the current factors."""
        value = self.variation_space.value
        self._wall, self._gap, self._speed = (float(value[name]) for name in _PHYSICS)
        self._wall_left = self._wall - (WALL_HALF_WIDTH + AGENT_RADIUS)
        self._wall_right = self._wall + (WALL_HALF_WIDTH + AGENT_RADIUS)
        self._gap_low = self._gap - (GAP_HALF_HEIGHT - AGENT_RADIUS)
        self._gap_high = self._gap + (GAP_HALF_HEIGHT - AGENT_RADIUS)

    def _place(self, left: bool, u: float, v: float) -> list[float]:
        """A resting state in the left or right half; u and v in [0, 1) choose the place."""
        outer = POSITION_LIMIT - SPAWN_MARGIN
        low, high = (
            (-outer, self._wall_left - SPAWN_MARGIN)
            if left
            else (self._wall_right + SPAWN_MARGIN, outer)
        )
        x, y = low + u * (high - low), -outer + v * (2.0 * outer)
        return [x, y, 0.0, 0.0, self._wall, self._gap, self._speed]

    def _in_space(self, name: str, value: Any) -> list[float]:
        state = np.asarray(value, dtype=np.float64)
        if not self._state_space.contains(state):
            raise ValueError(f"options[{name!r}] must lie in {self._state_space}, found {value!r}")
        entries: list[float] = state.tolist()
        return entries

    def _in_free_space(self, name: str, state: list[float]) -> list[float]:
        x, y = state[:2]
        in_wall = self._wall_left < x < self._wall_right
        if in_wall and not self._gap_low <= y <= self._gap_high:
            raise ValueError(f"options[{name!r}] puts the agent into the inner wall: x={x}, y={y}")
        return state

    @staticmethod
    def _unit_disc(action: Array) -> tuple[float, float]:
        entries = np.asarray(action, dtype=np.float64)
        if entries.shape != (2,):
            raise ValueError(f"action must have shape (2,), found {entries.shape}")
        x, y = entries.tolist()
        if not (math.isfinite(x) and math.isfinite(y)):
            raise ValueError(f"action must be finite, found {action}")
        x, y = min(max(x, -1.0), 1.0), min(max(y, -1.0), 1.0)
        square = x * x + y * y
        if square <= 1.0:
            return x, y
        # math.sqrt is correctly rounded everywhere; math.hypot is not.
        length = math.sqrt(square)
        return x / length, y / length

    def _move(self, action_x: float, action_y: float) -> None:
        x, y, speed = self._x, self._y, self._speed
        self._vx += RESPONSE * (speed * action_x - self._vx)
        self._vy += RESPONSE * (speed * action_y - self._vy)
        wanted = x + self._vx
        new_x = min(max(wanted, -POSITION_LIMIT), POSITION_LIMIT)
        if not self._gap_low <= y <= self._gap_high:
            if x <= self._wall_left < new_x:
                new_x = self._wall_left
            elif new_x < self._wall_right <= x:
                new_x = self._wall_right
        if new_x != wanted:
            self._vx = 0.0
        wanted = y + self._vy
        new_y = min(max(wanted, -POSITION_LIMIT), POSITION_LIMIT)
        if self._wall_left < new_x < self._wall_right:
            new_y = min(max(new_y, self._gap_low), self._gap_high)
        if new_y != wanted:
            self._vy = 0.0
        self._x, self._y = new_x, new_y

    def _distance(self) -> float:
        dx, dy = self._x - self._goal_x, self._y - self._goal_y
        return math.sqrt(dx * dx + dy * dy)

    def _observation(self) -> dict[str, Array]:
        motion = (self._x, self._y, self._vx, self._vy)
        state = np.array((*motion, self._wall, self._gap, self._speed))
        return {"proprio": np.array(motion, dtype=np.float32), "state": state}

    def _info(self, distance: float) -> dict[str, Any]:
        return {
            "goal_state": self._goal_state.copy(),
            "success": distance <= GOAL_RADIUS,
            "distance": distance,
        }


class _Painter:
    """Draws a PointGoal: the empty floor once, the room once per episode, the agent per frame."""

    def __init__(self, height: int, width: int) -> None:
        self._height, self._width = height, width
        border = max(1, round(_BORDER_SHARE * min(height, width)))  # whole pixels: crisp walls
        self._scale = min(height, width) / 2 - border  # pixels per room unit
        # Room coordinates of the pixel centres.
        self._xs = ((np.arange(width) + 0.5 - width / 2) / self._scale).astype(np.float32)
        self._ys = ((height / 2 - np.arange(height) - 0.5) / self._scale).astype(np.float32)
        self._floor = self._paint_floor()

    def _paint_floor(self) -> Array:
        """A chequered floor inside the outer walls, `(H, W, 3) float32`."""
        floor = np.empty((self._height, self._width, 3), dtype=np.float32)
        floor[:] = _FLOOR
        columns = np.floor((self._xs + 1) * (_TILES_PER_SIDE / 2)).astype(np.int64)
        rows = np.floor((self._ys + 1) * (_TILES_PER_SIDE / 2)).astype(np.int64)
        floor[(columns + rows[:, None]) % 2 == 1] = _TILE
        for shift, color, opacity in ((_SHADOW_SHIFT, _SHADOW, _SHADOW_OPACITY), (0, _WALL, 1)):
            columns = self._covered(self._xs, -1.0 + shift, 1.0)
            rows = self._covered(self._ys, -1.0, 1.0 - shift)
            _blend(floor, (1.0 - columns * rows[:, None]) * np.float32(opacity), color)
        return floor

    def paint_room(self, env: PointGoal) -> None:
        """Paint goal and inner wall of an episode; its frames start from this picture."""
        room = self._floor.copy()
        color = env.variation_space.value["goal_color"].tolist()
        ring, inside, centre = GOAL_RADIUS + 0.05, GOAL_RADIUS + 0.005, GOAL_RADIUS - 0.065
        area = self._area(env._goal_x, env._goal_y, ring, ring)
        discs = ((ring, color, 1.0), (inside, _WHITE, 0.8), (centre, color, 1.0))
        self._discs(room[area], area, env._goal_x, env._goal_y, discs)
        area = self._area(env._wall, 0.0, WALL_HALF_WIDTH + _SHADOW_SHIFT, 1.0)
        for shift, color, opacity in ((_SHADOW_SHIFT, _SHADOW, _SHADOW_OPACITY), (0, _WALL, 1)):
            left, low = env._wall - WALL_HALF_WIDTH, env._gap - GAP_HALF_HEIGHT - shift
            right, high = env._wall + WALL_HALF_WIDTH, env._gap + GAP_HALF_HEIGHT - shift
            columns = self._covered(self._xs[area[1]], left + shift, right + shift)
            rows = self._covered(self._ys[area[0]], -1.0, 1.0)
            rows = rows - self._covered(self._ys[area[0]], low, high)
            _blend(room[area], columns * rows[:, None] * np.float32(opacity), color)
        self._room = room
        self._room_bytes = (room + np.float32(0.5)).astype(np.uint8)
        agent_color = env.variation_space.value["agent_color"].tolist()
        self._agent_discs = (
            (AGENT_RADIUS, [0.65 * channel for channel in agent_color], 1.0),
            (AGENT_RADIUS - 0.022, agent_color, 1.0),
        )

    def frame(self, x: float, y: float, vx: float, vy: float) -> Array:
        """Return a new frame, `(H, W, 3) uint8`, with the agent at (x, y)."""
        frame: Array = self._room_bytes.copy()
        reach = AGENT_RADIUS + _SHADOW_SHIFT
        area = self._area(x, y, reach, reach)
        patch = self._room[area].copy()
        shadow = (AGENT_RADIUS, _SHADOW, _SHADOW_OPACITY)
        self._discs(patch, area, x + _SHADOW_SHIFT, y - _SHADOW_SHIFT, (shadow,))
        self._discs(patch, area, x, y, self._agent_discs)
        spot_shift = 0.5 * AGENT_RADIUS / VELOCITY_LIMIT
        spot = (0.38 * AGENT_RADIUS, _WHITE, 0.9)
        self._discs(patch, area, x + vx * spot_shift, y + vy * spot_shift, (spot,))
        patch += 0.5
        frame[area] = patch
        return frame

    def _area(self, x: float, y: float, reach_x: float, reach_y: float) -> tuple[slice, slice]:
        """Rows and columns within reach of (x, y), and at least one pixel more on each side."""
        column, row = self._width / 2 + x * self._scale, self._height / 2 - y * self._scale
        half_width, half_height = reach_x * self._scale + 2, reach_y * self._scale + 2
        return (
            slice(max(int(row - half_height), 0), int(row + half_height)),
            slice(max(int(column - half_width), 0), int(column + half_width)),
        )

    def _discs(
        self,
        patch: Array,
        area: tuple[slice, slice],
        x: float,
        y: float,
        discs: Iterable[tuple[float, Sequence[float], float]],
    ) -> None:
        """Blend discs (radius, color, opacity) with centre (x, y) into the part `area`."""
        dx, dy = self._xs[area[1]] - x, self._ys[area[0]] - y
        distance = np.sqrt(dx * dx + (dy * dy)[:, None]) * self._scale
        for radius, color, opacity in discs:
            coverage = np.minimum((radius * self._scale + 0.5) - distance, 1.0)
            _blend(patch, np.maximum(coverage, 0.0) * opacity, color)

    def _covered(self, centres: Array, low: float, high: float) -> Array:
        """The share of each pixel, along one axis, that lies between low and high."""
        half = 0.5 / self._scale
        length = np.minimum(centres + half, high) - np.maximum(centres - half, low)
        share: Array = np.clip(length * self._scale, 0.0, 1.0)
        return share


def _blend(picture: Array, coverage: Array, color: Sequence[float]) -> None:
    picture += coverage[:, :, None] * (np.array(color, dtype=np.float32) - picture)


def register() -> None:
    """Register `swm_async/PointGoal-v0` with Gymnasium; a second call changes nothing."""
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(
            ENV_ID,
            entry_point="swm_workers.point_goal:PointGoal",
            max_episode_steps=MAX_EPISODE_STEPS,
        )
