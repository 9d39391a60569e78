"""The rules of PointGoal: how the point moves, and what is told of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from swm_workers.point_goal.painting import Painter, Scene
from swm_workers.point_goal.room import (
    AGENT_RADIUS,
    GAP_HALF_HEIGHT,
    GOAL_BONUS,
    GOAL_RADIUS,
    POSITION_LIMIT,
    RESPONSE,
    SPAWN_MARGIN,
    VELOCITY_LIMIT,
    WALL_HALF_WIDTH,
    Array,
)
from swm_workers.point_goal.variation import FACTORS, PHYSICS, VariationSpace


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
        physics = [FACTORS[name] for name in PHYSICS]
        low = np.array([-limit for limit in limits] + [factor.low for factor in physics])
        high = np.array(limits + [factor.high for factor in physics])
        proprio = spaces.Box(low[:4].astype(np.float32), high[:4].astype(np.float32))
        self._state_space = spaces.Box(low, high, dtype=np.float64)
        self.observation_space = spaces.Dict({"proprio": proprio, "state": self._state_space})
        self.variation_space = VariationSpace()
        self._painter = None if render_mode is None else Painter(*render_size)
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
            for name, entry in zip(PHYSICS, start[4:], strict=True):
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
            self._painter.paint_room(self._scene())
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
        for name, factor in FACTORS.items():
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
        return {name: float(self.variation_space.value[name]) for name in PHYSICS}

    def _set_room(self) -> None:
        """Derive the limits of the agent's centre from the current factors."""
        value = self.variation_space.value
        self._wall, self._gap, self._speed = (float(value[name]) for name in PHYSICS)
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

    def _scene(self) -> Scene:
        value = self.variation_space.value
        return Scene(
            self._wall,
            self._gap,
            self._goal_x,
            self._goal_y,
            value["goal_color"].tolist(),
            value["agent_color"].tolist(),
        )

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
