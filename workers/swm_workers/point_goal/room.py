"""The measures of PointGoal's room, and the limits of what moves in it."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
Color = tuple[int, int, int]

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
