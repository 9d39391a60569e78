"""Policies: the protocol that a World drives, random actions, and experts for PointGoal.

They read infos, shaped `(num_envs, 1, ...)`, and return actions; they know no pool and no worker.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from swm_async.ready import takes_mask
from swm_async.worker_policy import WorkerPolicy
from swm_workers.point_goal.room import (
    AGENT_RADIUS,
    GAP_HALF_HEIGHT,
    RESPONSE,
    WALL_HALF_WIDTH,
)

Floats = NDArray[np.float64]

# The slab of x in which the agent's centre lies between the two parts of PointGoal's inner wall,
# and the half height that its centre has there. The expert aims _CLEARANCE beside the slab and
# keeps _SAFETY from the ends of the gap, since it overshoots a little.
_SLAB_HALF_WIDTH = WALL_HALF_WIDTH + AGENT_RADIUS
_FREE_HALF_HEIGHT = GAP_HALF_HEIGHT - AGENT_RADIUS
_CLEARANCE = 0.02
_SAFETY = 0.06

# Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; the
# multipliers are those of Sebastiano Vigna's splitmix64.c.
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = 0xFFFFFFFFFFFFFFFF

# Of the sum of eight independent numbers, uniform on 0 ... 65535.
_IRWIN_HALL_DEVIATION = (8 * (2.0**32 - 1) / 12) ** 0.5


class Policy(Protocol):
    """Anything that turns infos into actions.

    A policy may also have `set_env(pool)`, called when a World takes it, `seed` with
    `set_seed(seed)` or `_set_seed(seed)`, called then if the seed is not None, and `unset_env()`,
    called when the World takes another policy.

    With schedule "ready" the policy is asked for some environments while others are still moving.
    If its `get_action` has a parameter named `mask`, it is then called
    `get_action(infos, mask=ready)`, `(num_envs,) bool`, True = this row's action will be taken;
    rows outside may change while it looks. A policy whose action depends on its row's infos alone
    needs none. One that keeps something between calls, such as a plan, a recurrent state or a
    history, must take it (with the default None = all rows, for lock-step gives no mask), and
    change what it keeps in the rows of the mask alone.
    """

    def get_action(self, infos: Mapping[str, Any]) -> Any:
        """Choose an action for each environment.

        Args:
            infos: the pool's infos, arrays `(num_envs, 1, ...)`.

        Returns:
            Actions `(num_envs, ...)`; for Dict and Tuple spaces dicts and tuples of them.
        """
        ...


class RandomPolicy:
    """Samples a batched action space and reads no infos.

    Without a seed it samples the space itself, so `action_space.seed()` by its owner counts. With
    a seed it samples a private copy, and the space's own generator is not touched. All rows come
    from one generator: what an environment gets depends on num_envs, and with schedule "ready" on
    which of them are ready when.

    Args:
        action_space: the batched space; None = the `action_space` of the pool that `set_env` gives.
        seed: seeds the private copy.
    """

    def __init__(
        self, action_space: gymnasium.Space[Any] | None = None, seed: int | None = None
    ) -> None:
        self.seed = seed
        self._given_space = action_space
        self._space = action_space
        if seed is not None:
            self._set_seed(seed)

    def set_env(self, pool: Any) -> None:
        """Take the pool's `action_space`, unless one was given at construction."""
        if self._given_space is None:
            self._space = pool.action_space
            if self.seed is not None:
                self._set_seed(self.seed)

    def get_action(self, infos: Mapping[str, Any]) -> Any:
        """Sample one action per environment, `(num_envs, ...)`.

        Raises:
            RuntimeError: no action space yet.
        """
        if self._space is None:
            raise RuntimeError(
                "RandomPolicy has no action space: pass action_space, or call set_env(pool) "
                "(World.set_policy does)"
            )
        return self._space.sample()

    def _set_seed(self, seed: int) -> None:
        """Start again from `seed`, on a private copy of the space."""
        self.seed = seed
        if self._space is not None:
            self._space = copy.deepcopy(self._space)
            self._space.seed(seed)


class PointGoalExpert:
    """Solves `swm_async/PointGoal-v0`: through the gap on the shortest safe way, then to the goal.

    It keeps no state, and each row is computed by elementwise operations that IEEE 754 rounds
    exactly, so an action depends on its row's infos alone, to the last bit, for every num_envs.
    """

    def get_action(self, infos: Mapping[str, Any]) -> NDArray[np.float32]:
        """Compute the actions.

        Args:
            infos: `state` and `goal_state`, `(num_envs, 1, 7) float64`; rows that were never reset
                may hold NaN and get an action without meaning.

        Returns:
            `(num_envs, 2) float32`, no longer than 1.

        Raises:
            ValueError: an info is missing or has another shape.
        """
        x, y, velocity_x, velocity_y, wall, gap, speed = _columns(infos, "state")
        goal_x, goal_y = _columns(infos, "goal_state")[:2]
        target_x, target_y = _waypoint(x, y, wall, gap, goal_x, goal_y)
        # The action that PointGoal's velocity update turns into a move onto the target.
        speed = np.maximum(speed, 1e-6)
        action_x = (velocity_x + (target_x - x - velocity_x) / RESPONSE) / speed
        action_y = (velocity_y + (target_y - y - velocity_y) / RESPONSE) / speed
        length = np.maximum(np.sqrt(action_x * action_x + action_y * action_y), 1.0)
        actions = np.empty((len(x), 2), dtype=np.float32)
        actions[:, 0] = action_x / length
        actions[:, 1] = action_y / length
        return actions


class NoisyPolicy:
    """Adds noise to the actions of another policy.

    The noise of a row is a hash of the seed and of the row's `id` and `step_idx`: it is the same
    for every num_envs and every packing, and two calls with the same infos agree. Each entry is
    the sum of eight 16-bit uniform numbers (Irwin-Hall), centred and scaled: close to a normal
    distribution, never beyond 4.9 standard deviations, and exact on every machine, unlike one
    made with logarithms and cosines.

    Args:
        policy: gives actions `(num_envs, ...)` in [-1, 1].
        scale: standard deviation of the noise, before the sum is clipped to [-1, 1].
        seed: another seed, another noise.

    Raises:
        TypeError: a WorkerPolicy, whose actions are chosen elsewhere.
        ValueError: a scale that is negative or not finite.
    """

    def __init__(self, policy: Policy, scale: float = 0.3, seed: int = 0) -> None:
        if not 0.0 <= scale < float("inf"):
            raise ValueError(f"scale must be finite and at least 0, found {scale}")
        if isinstance(policy, WorkerPolicy):
            raise TypeError(
                "noise cannot be added to a WorkerPolicy: add it in the worker's policy"
            )
        self.policy = policy
        self.scale = scale
        self.seed = seed

    def set_env(self, pool: Any) -> None:
        """Hand the pool on to the policy underneath, if it wants one."""
        if hasattr(self.policy, "set_env"):
            self.policy.set_env(pool)

    def get_action(
        self, infos: Mapping[str, Any], mask: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float32]:
        """Compute the actions.

        Args:
            infos: what the policy underneath reads, and `id` and `step_idx`, `(num_envs, 1) int64`,
                which World's wrapper reports.
            mask: handed on to the policy underneath, if it takes one.

        Returns:
            `(num_envs, ...) float32` in [-1, 1].

        Raises:
            ValueError: `id` or `step_idx` is missing.
        """
        get_action: Any = self.policy.get_action
        with_mask = mask is not None and takes_mask(get_action)
        chosen = get_action(infos, mask=mask) if with_mask else get_action(infos)
        actions = np.asarray(chosen, dtype=np.float64)
        ids, steps = (_info(infos, key).reshape(-1) for key in ("id", "step_idx"))
        entries = actions[0].size if len(actions) else 0
        noise = _noise(self.seed, ids, steps, entries).reshape(actions.shape)
        return np.clip(actions + self.scale * noise, -1.0, 1.0).astype(np.float32)

    def _set_seed(self, seed: int) -> None:
        self.seed = seed


def _info(infos: Mapping[str, Any], key: str) -> NDArray[Any]:
    if key not in infos:
        raise ValueError(f"the policy needs infos[{key!r}], found {sorted(infos)}")
    return np.asarray(infos[key])


def _columns(infos: Mapping[str, Any], key: str) -> Floats:
    """A PointGoal state `(num_envs, 1, 7)` as its seven columns, `(7, num_envs)`, 0 for NaN."""
    states = _info(infos, key)
    if states.ndim != 3 or states.shape[1:] != (1, 7):
        raise ValueError(f"infos[{key!r}] must have shape (num_envs, 1, 7), found {states.shape}")
    columns = states[:, 0].T
    return np.where(np.isfinite(columns), columns, 0.0)


def _waypoint(
    x: Floats, y: Floats, wall: Floats, gap: Floats, goal_x: Floats, goal_y: Floats
) -> tuple[Floats, Floats]:
    """Where to head for: the goal, or a point in front of the gap, or one behind it.

    All arguments and both results are `(num_envs,)`.
    """
    from_wall, goal_from_wall = x - wall, goal_x - wall
    edge = _SLAB_HALF_WIDTH + _CLEARANCE
    same_side = from_wall * goal_from_wall > 0
    outside = np.minimum(np.abs(from_wall), np.abs(goal_from_wall)) >= _SLAB_HALF_WIDTH
    direct = same_side & outside
    # Where the straight line meets the wall, or a goal inside the gap; clear of the gap's ends.
    run = np.where(np.abs(goal_x - x) < 1e-9, 1e-9, goal_x - x)
    share = np.minimum(np.maximum(-from_wall / run, 0.0), 1.0)
    share = np.where(np.abs(goal_from_wall) < _SLAB_HALF_WIDTH, 1.0, share)
    room = _FREE_HALF_HEIGHT - _SAFETY
    through_y = np.minimum(np.maximum(y + (goal_y - y) * share, gap - room), gap + room)
    aligned = np.abs(y - gap) <= _FREE_HALF_HEIGHT - _CLEARANCE
    entering = aligned | (np.abs(from_wall) < _SLAB_HALF_WIDTH)
    behind_x = wall + np.minimum(np.maximum(goal_from_wall, -edge), edge)
    before_x = wall + np.where(from_wall < 0, -edge, edge)
    target_x = np.where(direct, goal_x, np.where(entering, behind_x, before_x))
    return target_x, np.where(direct, goal_y, through_y)


def _noise(seed: int, ids: NDArray[Any], steps: NDArray[Any], entries: int) -> Floats:
    """Noise of mean 0 and standard deviation 1, `(num_envs, entries)`; ids and steps 1-d.

    Row i reads the splitmix64 stream that starts at the hash of seed and id, at the place that
    the step tells: two 64-bit numbers, which are eight of 16 bits, per entry.
    """
    hashed_seed = _mix(np.array([(seed + _GAMMA) & _MASK], dtype=np.uint64))
    start = _mix(ids.astype(np.uint64) + hashed_seed)
    place = np.arange(1, 2 * entries + 1, dtype=np.uint64)
    place = place + steps.astype(np.uint64)[:, None] * np.uint64(2 * entries)
    words = _mix(start[:, None] + place * np.uint64(_GAMMA))
    uniforms = words.view(np.uint16).reshape(len(words), entries, 8)
    total = uniforms.sum(axis=2, dtype=np.int64) - 4 * 0xFFFF
    noise: Floats = total / _IRWIN_HALL_DEVIATION
    return noise


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64, elementwise."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MULTIPLIERS[0])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MULTIPLIERS[1])
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed
