"""A pool made of plain lists, and an environment whose episodes are known in advance.

Both are written for tests of rollouts: no process, no shared memory, nothing of the library.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Countdown(gymnasium.Env):
    """An episode of known length, whose every number follows from seed, options and actions.

    The length is `options["length"]`, else drawn from 1 to `longest`. Even lengths end terminated,
    odd ones truncated. The info `number` is what a policy may look at. Stepping before a reset or
    after the end is an error.
    """

    def __init__(self, longest: int = 6) -> None:
        self.longest = longest
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Box(-10.0, 10.0, (2,), np.float64)
        self.resets = 0
        self.left = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        length = int(self.np_random.integers(1, self.longest + 1))
        self.left = self.length = (options or {}).get("length", length)
        self.resets += 1
        return np.zeros(2), self._info()

    def step(self, action):
        assert self.left > 0, "stepped without a reset, or after its end"
        self.left -= 1
        reward = float(self.np_random.random() + action.sum())
        ended = self.left == 0
        even = self.length % 2 == 0
        return np.asarray(action), reward, ended and even, ended and not even, self._info()

    def _info(self) -> dict[str, Any]:
        return {"number": float(self.np_random.random()), "left": self.left}


class ByNumber:
    """A policy that looks at its row's `number` alone; it keeps the flush flags that it saw."""

    def __init__(self) -> None:
        self.flushes: list[list[bool]] = []

    def get_action(self, infos: dict[str, Any]) -> np.ndarray:
        number = infos["number"]
        self.flushes.append(infos.get("_needs_flush", np.zeros(len(number), bool)).tolist())
        return np.concatenate([number, number - 1.0], axis=1)


class FakePool:
    """Environments in a list, stepped one by one; infos are live arrays `(N, 1)`.

    Attributes:
        calls: `("reset" | "step", rows)` for each call, in order.
        masks: the mask of each call as given.
        lost_at_step: n-th step (from 0) → rows that lose their environment in it.
        lost_at_reset: n-th reset (from 0) → rows, not among those reset, that lose it.
    """

    def __init__(self, envs: list[gymnasium.Env]) -> None:
        self.envs = envs
        self.num_envs = len(envs)
        self.calls: list[tuple[str, list[int]]] = []
        self.masks: list[Any] = []
        self.lost_at_step: dict[int, list[int]] = {}
        self.lost_at_reset: dict[int, list[int]] = {}
        self._lost = np.zeros(self.num_envs, bool)
        self._values: dict[str, np.ndarray] = {}

    def reset(self, *, seed=None, options=None, mask=None):
        rows = self._rows("reset", mask)
        assert len(seed) == self.num_envs
        number = sum(name == "reset" for name, _ in self.calls) - 1
        for i in rows:
            chosen = options[i] if isinstance(options, list) else options
            assert type(seed[i]) is int
            _, info = self.envs[i].reset(seed=seed[i], options=dict(chosen or {}))
            self._lost[i] = False
            self._write(i, info)
        for i in self.lost_at_reset.get(number, []):
            assert i not in rows
            self._lost[i] = True
        return None, self._infos()

    def step(self, actions, mask=None):
        rows = self._rows("step", mask)
        lost = self.lost_at_step.get(sum(name == "step" for name, _ in self.calls) - 1, [])
        rewards = np.zeros(self.num_envs, np.float32)
        terminateds, truncateds = np.zeros((2, self.num_envs), bool)
        for i in rows:
            assert not self._lost[i], "stepped before the reset that a lost environment needs"
            if i in lost:
                truncateds[i] = True
                continue
            _, rewards[i], terminateds[i], truncateds[i], info = self.envs[i].step(actions[i])
            self._write(i, info)
        self._lost[lost] = True
        return None, rewards, terminateds, truncateds, self._infos()

    def _rows(self, name: str, mask: Any) -> list[int]:
        if mask is not None:
            assert mask.dtype == bool
            assert mask.shape == (self.num_envs,)
            mask = mask.copy()
        rows = [i for i in range(self.num_envs) if mask is None or mask[i]]
        self.calls.append((name, rows))
        self.masks.append(mask)
        return rows

    def _write(self, i: int, info: dict[str, Any]) -> None:
        for key, value in info.items():
            array = self._values.setdefault(key, np.zeros((self.num_envs, 1), type(value)))
            array[i, 0] = value

    def _infos(self) -> dict[str, Any]:
        infos = dict(self._values)
        if self.lost_at_step or self.lost_at_reset:
            infos["_restarted"] = self._lost
        return infos


class FakeOverlappingPool(FakePool):
    """The same with `send`, `send_reset` and `recv`: who is done first is drawn by a generator.

    What an environment does happens when it is received. While it is busy its row holds NaN:
    whoever uses it notices.

    Attributes:
        slow: rows that are done only when all that are waited for would be too few without them.
        lost_at_recv: n-th recv (from 0) → rows, not busy after it, that lose their environment.
        seeds: those of all resets, in the order in which they were sent.
    """

    def __init__(self, envs: list[gymnasium.Env], seed: int = 0) -> None:
        super().__init__(envs)
        self.busy = np.zeros(self.num_envs, bool)
        self.slow: list[int] = []
        self.lost_at_recv: dict[int, list[int]] = {}
        self.seeds: list[int] = []
        self._rng = np.random.default_rng(seed)
        self._sent: dict[int, Any] = {}
        self._recvs = 0

    def reset(self, **_):
        raise AssertionError("a rollout that overlaps must not wait for a reset")

    def step(self, *_, **__):
        raise AssertionError("a rollout that overlaps must not wait for a step")

    def send(self, actions, mask=None):
        for i in self._send("step", mask):
            assert not self._lost[i], "stepped before the reset that a lost environment needs"
            self._sent[i] = np.array(actions[i])

    def send_reset(self, *, seed, options, mask):
        assert len(seed) == self.num_envs
        for i in self._send("reset", mask):
            assert type(seed[i]) is int
            chosen = options[i] if isinstance(options, list) else options
            self._sent[i] = (seed[i], dict(chosen or {}))
            self.seeds.append(seed[i])
            self._lost[i] = False

    def recv(self, mask=None, min_envs=None):
        assert mask is None
        assert self.busy.any()
        rows = self._choose(np.flatnonzero(self.busy), min_envs)
        lost = self.lost_at_recv.get(self._recvs, [])
        self._recvs += 1
        rewards = np.zeros(self.num_envs, np.float32)
        terminateds, truncateds, ready = np.zeros((3, self.num_envs), bool)
        ready[rows] = True
        self.busy &= ~ready
        for i in rows:
            sent = self._sent.pop(i)
            if isinstance(sent, tuple):
                _, info = self.envs[i].reset(seed=sent[0], options=sent[1])
            elif i in lost:
                truncateds[i] = True
                continue
            else:
                _, rewards[i], terminateds[i], truncateds[i], info = self.envs[i].step(sent)
            self._write(i, info)
        self._lost[[i for i in lost if not self.busy[i]]] = True
        self.calls.append(("recv", rows))
        return None, rewards, terminateds, truncateds, self._infos(), ready

    def _send(self, name, mask):
        rows = self._rows(name, mask)
        assert not self.busy[rows].any(), "sent to a busy environment"
        self.busy[rows] = True
        for array in self._values.values():
            array[rows] = np.nan if array.dtype.kind == "f" else -1
        return rows

    def _choose(self, busy, min_envs):
        count = len(busy) if min_envs is None else int(self._rng.integers(min_envs, len(busy) + 1))
        quick = [i for i in self._rng.permutation(busy).tolist() if i not in self.slow]
        if self.slow and min_envs is not None:
            count = min(count, max(min_envs, len(quick)))
        return sorted([*quick, *(i for i in busy.tolist() if i in self.slow)][:count])

    def _infos(self):
        infos = super()._infos()
        if self.lost_at_recv:
            infos["_restarted"] = self._lost
        return infos


def play_alone(seed: int, length: int | None = None, longest: int = 6) -> dict[str, Any]:
    """Run one episode of `Countdown` with `ByNumber`'s rule in a plain loop."""
    env = Countdown(longest)
    _, info = env.reset(seed=seed, options={} if length is None else {"length": length})
    numbers, rewards, ended = [info["number"]], [], False
    while not ended:
        action = np.array([info["number"], info["number"] - 1.0])
        _, reward, terminated, truncated, info = env.step(action)
        ended = terminated or truncated
        numbers.append(info["number"])
        rewards.append(reward)
    return {
        "numbers": numbers,
        "rewards": rewards,
        "terminated": terminated,
        "truncated": truncated,
    }
