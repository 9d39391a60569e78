"""The environment of the soak: every number follows from seed, options and actions."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

FATAL = 7
"""The action at which every environment raises."""

_MODULUS = 2**64


class Walker(gymnasium.Env[Any, Any]):
    """Walks through 64 bits and reports infos whose keys, kinds, shapes and sizes change."""

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float64)
    action_space = spaces.Discrete(8)

    def __init__(self, index: int) -> None:
        self.index = index
        self.state = 0
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        options = options or {}
        if options.get("fail"):
            raise LookupError("the options say so")
        start = int(self.np_random.integers(2**62))
        self.state = (start + options.get("start", 0) + len(options.get("load", b""))) % _MODULUS
        self.steps = 0
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == FATAL:
            raise ArithmeticError(f"action {action} in state {self.state}")
        # Knuth's multiplier of MMIX, as in every textbook's linear congruential generator.
        self.state = (self.state * 6364136223846793005 + 2 * int(action) + 1) % _MODULUS
        self.steps += 1
        reward = (self.state >> 40) / 2**24
        return (
            self._observation(),
            reward,
            self.state % 19 == 0,
            self.state % 31 == 0,
            self._info(),
        )

    def stir(self, amount: int) -> int:
        """Change the state from outside."""
        self.state = (self.state + amount) % _MODULUS
        return self.state

    def complain(self) -> None:
        raise OSError(f"environment {self.index} complains")

    def pid(self) -> int:
        return os.getpid()

    def _observation(self) -> Any:
        return np.array([(self.state >> shift & 0xFFFF) / 0xFFFF for shift in (0, 16, 32)])

    def _info(self) -> dict[str, Any]:
        """Twelve bits of the state choose what is reported, and as what."""
        bits, number = self.state >> 20 & 0xFFF, self.state >> 48
        info: dict[str, Any] = {"steps": self.steps, "odd": self.steps % 2 == 1}
        info["text"] = "x" * (number % 40)
        info["number"] = number if bits & 1 else number / 2
        if bits & 6:
            info["vector"] = np.full(2, number, np.float32 if bits & 8 else np.int32)
        if bits & 16:
            info["shape"] = np.arange(bits % 4)
        if bits & 96 == 0:
            info["thing"] = [None, {"nested": number}, (1, "two"), b"bytes"][bits % 4]
        if bits & 128 and self.index % 2:
            info["own"] = np.uint8(number % 256)
        if bits & 0x700 == 0x700:
            info["big"] = self.state
        if bits & 0x0F0 == 0x0F0:
            info["heavy"] = np.full(30_000, bits, np.int64)
        return info
