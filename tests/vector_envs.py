"""Environments for the vector interfaces, which batch infos or hand them on one by one.

Worker processes import this module by its name; it imports nothing of the library.
"""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
from gymnasium import spaces

from probe_env import Probe


class Countdown(gymnasium.Env):
    """Episodes of a length drawn by the seed; infos of many kinds, now there and now not."""

    observation_space = spaces.Dict(
        {"left": spaces.Box(0, 99, (1,), np.int64), "parts": spaces.Tuple([spaces.Discrete(9)])}
    )
    action_space = spaces.Tuple([spaces.Discrete(5), spaces.Box(-1, 1, (2,), np.float32)])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 6)) + (options or {}).get("longer", 0)
        self.total = 0.0
        return self._observe(), {"begun": True, "options": None if options is None else options}

    def step(self, action):
        self.left -= 1
        self.total += float(action[1].sum()) + int(action[0])
        info = {"total": self.total, "count": self.left, "small": np.float32(self.left)}
        if self.left % 2:
            info["odd"] = {"nested": np.arange(3) * self.left, "text": f"left {self.left}"}
        if self.left % 3 == 0:
            info["flag"] = np.bool_(True)
        return self._observe(), self.total, self.left <= 0, self.left == -1, info

    def _observe(self):
        return {"left": np.array([max(self.left, 0)]), "parts": (max(self.left, 0) % 9,)}


class Doubling(gymnasium.Env):
    """Observes in another dtype than its space's, and ends by truncation."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        return self.place.copy(), {}

    def step(self, action):
        self.place = 2 * self.place + action
        return self.place.copy(), np.float64(self.place[0]), False, abs(self.place[0]) > 50, {}


class Walk(gymnasium.Env):
    """Observes a Dict of a vector and an image, and tells numbers, texts and arrays.

    It ends where it leaves its field, or after 12 steps, or both; ``options["start"]`` places it.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}
    observation_space = spaces.Dict(
        {
            "vector": spaces.Box(-9, 9, (2,), np.float32),
            "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        }
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.pace = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-2, 2, 2) + (options or {}).get("start", 0.0)
        self.count = 0
        return self._observe(), {"start": self.place.copy(), "goal": "the border"}

    def step(self, action):
        self.place += self.pace * action + self.np_random.normal(size=2) / 4
        self.count += 1
        distance = float(np.abs(self.place).max())
        info = {"distance": distance, "count": self.count, "place": self.place.astype(np.float32)}
        if self.count % 3 == 0:
            info["mark"] = "third"
        return self._observe(), distance / 3, distance > 3, self.count >= 12, info

    def render(self):
        return self._observe()["image"].repeat(8, 0).repeat(8, 1)

    def _observe(self):
        image = np.zeros((4, 4, 3), np.uint8)
        image[tuple(self.place.astype(int) % 4)] = self.count
        return {"vector": self.place.astype(np.float32), "image": image}

    def leap(self, far, *, again=False):
        self.place += far
        return self.place.tolist(), again

    def modules(self):
        """The names of what its process has imported."""
        return sorted(sys.modules)

    @property
    def broken(self):
        raise ZeroDivisionError("broken by design")


class OddInfos(gymnasium.Env):
    """Has infos of no fixed form: each step reports something else, or nothing.

    It observes and takes plain integers. Its episodes end after 1 to 7 steps.
    """

    observation_space = spaces.Discrete(10)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.count = int(self.np_random.integers(1, 8)), 0
        return 0, {"begin": None} if self.length % 2 else {}

    def step(self, action):
        self.count += 1
        ended = self.count == self.length
        reports = [
            {},
            {"none": None, "list": [1, [2.5, "x"]], "bytes": b"\x00"},
            {"text": "é", "flag": bool(action), "_own": (1, None)},
            {"nested": {"deep": {"array": np.eye(2) * self.count}, "number": self.count}},
            {"small": np.float32(0.1), "when": np.datetime64("2024-02-29"), "set": {3}},
        ]
        return self.count, 0.1 * action, ended, ended and bool(action), reports[self.count % 5]


class WildInfos(OddInfos):
    """Besides, has values under one key that no array holds, and names that others use."""

    def step(self, action):
        *step, info = super().step(action)
        wild = [
            {"ragged": np.arange(self.count), "number": 2**70},
            {"ragged": "text", "number": 1.5, "TimeLimit.truncated": "mine"},
            {"ragged": None, "terminal_observation": 5, "episode": {"r": 1.0}},
        ]
        return *step, {**wild[self.count % 3], **info}


class Pair(gymnasium.Env):
    """Observes a Tuple of a number and a vector."""

    observation_space = spaces.Tuple([spaces.Discrete(50), spaces.Box(-1, 1, (2,), np.float32)])
    action_space = spaces.MultiDiscrete([3, 4])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return (0, np.zeros(2, np.float32)), {}

    def step(self, action):
        self.count += int(action.sum()) + 1
        observation = (self.count, self.np_random.random(2).astype(np.float32))
        return observation, -1.0, self.count > 20, False, {}


class OneStep(Probe):
    """Has episodes of one step."""

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, True, False, info


def cart_pole():
    return gymnasium.make("CartPole-v1", max_episode_steps=15)


def limited_walk():
    """Five steps at most, by a wrapper."""
    return gymnasium.wrappers.TimeLimit(Walk("rgb_array"), 5)


class ThreeSteps(gymnasium.Env):
    """Episodes of three steps; one step raises, which is told by its episode and number."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    episodes = 0

    def __init__(self, raises_at=None):
        self.raises_at = raises_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes += 1
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if (self.episodes, self.steps) == self.raises_at:
            raise RuntimeError("here")
        return np.zeros(1, np.float32), 0.0, self.steps == 3, False, {}


class Telling(gymnasium.Env):
    """Tells what its script says, one line for each call: an info, and whether the episode ends."""

    observation_space = spaces.Box(-9, 9, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.script = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), self._next()[0]

    def step(self, action):
        info, ends = self._next()
        return np.full(2, len(self.script), np.float32), 0.5, ends, False, info

    def _next(self):
        return self.script.pop(0) if self.script else ({}, False)
