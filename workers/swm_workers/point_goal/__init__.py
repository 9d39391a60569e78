"""The embedded environment `swm_async/PointGoal-v0`: a point finds its way through a gap to a goal.

It knows numpy and gymnasium only: nothing of workers, of the World's wrappers or of `swm_async`.
"""

from __future__ import annotations

import gymnasium

from swm_workers.point_goal.env import PointGoal
from swm_workers.point_goal.variation import VariationSpace

__all__ = ["ENV_ID", "MAX_EPISODE_STEPS", "PointGoal", "VariationSpace", "register"]

ENV_ID = "swm_async/PointGoal-v0"
MAX_EPISODE_STEPS = 100


def register() -> None:
    """Register `swm_async/PointGoal-v0` with Gymnasium; a second call changes nothing."""
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(
            ENV_ID,
            entry_point="swm_workers.point_goal:PointGoal",
            max_episode_steps=MAX_EPISODE_STEPS,
        )
