"""Pictures of PointGoal; knows what a room looks like and nothing of how one moves in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from swm_workers.point_goal.room import (
    AGENT_RADIUS,
    GAP_HALF_HEIGHT,
    GOAL_RADIUS,
    VELOCITY_LIMIT,
    WALL_HALF_WIDTH,
    Array,
    Color,
)

_BORDER_SHARE = 0.04
_SHADOW_SHIFT = 0.03
_SHADOW_OPACITY = 0.2
_FLOOR: Color = (244, 240, 232)
_TILE: Color = (237, 232, 222)
_WALL: Color = (59, 66, 86)
_SHADOW: Color = (40, 40, 60)
_WHITE: Color = (255, 255, 255)
_TILES_PER_SIDE = 8


class Scene(NamedTuple):
    """What stays the same in the pictures of one episode; lengths in room units."""

    wall: float
    gap: float
    goal_x: float
    goal_y: float
    goal_color: Sequence[int]
    agent_color: Sequence[int]


class Painter:
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

    def paint_room(self, scene: Scene) -> None:
        """Paint goal and inner wall of an episode; its frames start from this picture."""
        room = self._floor.copy()
        color = scene.goal_color
        ring, inside, centre = GOAL_RADIUS + 0.05, GOAL_RADIUS + 0.005, GOAL_RADIUS - 0.065
        area = self._area(scene.goal_x, scene.goal_y, ring, ring)
        discs = ((ring, color, 1.0), (inside, _WHITE, 0.8), (centre, color, 1.0))
        self._discs(room[area], area, scene.goal_x, scene.goal_y, discs)
        area = self._area(scene.wall, 0.0, WALL_HALF_WIDTH + _SHADOW_SHIFT, 1.0)
        for shift, color, opacity in ((_SHADOW_SHIFT, _SHADOW, _SHADOW_OPACITY), (0, _WALL, 1)):
            left, low = scene.wall - WALL_HALF_WIDTH, scene.gap - GAP_HALF_HEIGHT - shift
            right, high = scene.wall + WALL_HALF_WIDTH, scene.gap + GAP_HALF_HEIGHT - shift
            columns = self._covered(self._xs[area[1]], left + shift, right + shift)
            rows = self._covered(self._ys[area[0]], -1.0, 1.0)
            rows = rows - self._covered(self._ys[area[0]], low, high)
            _blend(room[area], columns * rows[:, None] * np.float32(opacity), color)
        self._room = room
        self._room_bytes = (room + np.float32(0.5)).astype(np.uint8)
        agent_color = scene.agent_color
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
