"""Toy environments whose every number can be worked out by hand.

Worker processes import this module by its name, through the path of the process that runs the
tests. It imports nothing of the library.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding


class Ledger(gymnasium.Env):
    """Books what it is given, and answers by its count of resets and steps.

    It observes ``[resets, steps]`` and is rewarded with the number of steps since its reset, unless
    its options say otherwise:

    - ``observation``, ``reward``, ``terminated``, ``truncated``, ``info``: what a step returns;
    - ``reset_observation``: what the reset returns;
    - ``reset_error``, ``step_error``: an exception, or the name of one of ``ERRORS``, to raise.

    Attributes:
        index: what the factory gave it, also an info.
        received: ``("reset", seed, options)`` or ``("step", action)``, in order.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-10.0, 10.0, (2,), np.float32)

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.received: list[tuple[Any, ...]] = []
        self.resets = 0
        self.steps = 0
        self.script: dict[str, Any] = {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.received.append(("reset", seed, options))
        self.script = dict(options or {})
        _raise(self.script.get("reset_error"))
        self.resets += 1
        self.steps = 0
        return self.script.get("reset_observation", self._counts()), self._info()

    def step(self, action):
        self.received.append(("step", np.array(action)))
        script = self.script
        _raise(script.get("step_error"))
        self.steps += 1
        return (
            script.get("observation", self._counts()),
            script.get("reward", float(self.steps)),
            script.get("terminated", False),
            script.get("truncated", False),
            script.get("info", self._info()),
        )

    def render(self):
        return np.full((2, 3, 3), self.index, np.uint8)

    # To be called from outside.

    def start_over(self) -> None:
        """Be as after the construction, but for the generator."""
        self.received, self.resets, self.steps = [], 0, 0

    def taken(self) -> list[tuple[Any, ...]]:
        """Hand over what it received since the last time."""
        received, self.received = self.received, []
        return received

    def twice(self, numbers: list[int]) -> list[int]:
        """Change the argument in place."""
        numbers += numbers
        return numbers

    def add(self, *numbers: float, times: float = 1) -> float:
        return self.index + times * sum(numbers)

    def fail(self, error: Any) -> None:
        _raise(error)

    def fail_or_double(self, given: Any) -> float:
        _raise(given if isinstance(given, Exception) else None)
        return 2 * given

    def break_next_step(self, error: Any) -> None:
        self.script["step_error"] = error

    def change_options(self, mark: int) -> None:
        """Change in place what the last reset was given."""
        self.received[-1][2]["seen"].append(mark)

    def change_notes(self) -> None:
        self.notes["list"] += self.notes["list"]

    def lock(self) -> Any:
        return threading.Lock()

    def pid(self) -> int:
        return os.getpid()

    def _counts(self) -> np.ndarray:
        return np.array([self.resets, self.steps], np.float64)

    def _info(self) -> dict[str, Any]:
        draw = float(self.np_random.random())
        return {"index": self.index, "steps": self.steps, "odd": self.steps % 2 == 1, "draw": draw}


class WideLedger(Ledger):
    action_space = spaces.Box(-10.0, 20.0, (2,), np.float32)


class SingleLedger(Ledger):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Unpicklable(Exception):
    """Holds what cannot leave its process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class TwoArguments(Exception):
    """Pickles well and cannot be rebuilt: its constructor wants more than it has stored."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} (code {code})")


class Mute(Exception):
    """Fails when it is asked for its text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


ERRORS = {
    "unpicklable": lambda: Unpicklable("the lock is mine"),
    "two arguments": lambda: TwoArguments(7, "out of paint"),
    "mute": lambda: Mute(),
}
"""Exceptions that must be made where they are raised, since they cannot travel."""


def _raise(error: Any) -> None:
    if error is not None:
        raise ERRORS[error]() if isinstance(error, str) else error


class Mixed(gymnasium.Env):
    """Episodes of mixed length, and infos that come and go; all of it follows from its seed.

    The length is drawn from 1 to 5, or is ``options["length"]``. Stepped beyond its end it goes on.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float64)

    def __init__(self, index: int) -> None:
        self.index = index
        # Resets without a seed, also the very first, must be the same in every pool.
        self._np_random, _ = seeding.np_random(index)
        self.length = self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(1, 6))
        self.length = drawn if options is None else options["length"]
        self.steps = 0
        info = self._info()
        info["goal"] = self.np_random.integers(0, 256, 2, dtype=np.uint8)
        return self._observation(0.0), info

    def step(self, action):
        self.steps += 1
        reward = float(self.np_random.random() + action[0])
        ended = self.steps >= self.length
        even = self.length % 2 == 0
        info = self._info()
        if ended:
            info["result"] = reward
            info["verdict"] = "even" if even else "odd"
        return self._observation(action[1]), reward, ended and even, ended and not even, info

    def _observation(self, number: float) -> np.ndarray:
        return np.array([self.steps, number, self.np_random.random()], np.float32)

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"draw": float(self.np_random.random()), "left": self.left}
        if self.index % 2 == 1 and self.steps >= 2:
            info["late"] = self.steps * self.index
        return info

    @property
    def left(self) -> int:
        return self.length - self.steps


class Echo(gymnasium.Env):
    """Observes the action that it was given; before that, ``options["observation"]`` or a sample.

    Attributes:
        kept: the very objects that it was given as actions.
        spoil: whether to overwrite each action that is an array once it has been observed.
    """

    def __init__(self, space: gymnasium.Space[Any], spoil: bool = False) -> None:
        self.action_space = space
        self.observation_space = space
        self.kept: list[Any] = []
        self.spoil = spoil
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if options is not None:
            return options["observation"], {}
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        self.kept.append(action)
        observation = action
        if self.spoil:
            observation = action.copy()
            action[...] = 0
        return observation, 0.0, False, False, {}

    def append_to_last_action(self, value: Any) -> None:
        self.kept[-1].append(value)


class Brittle:
    """Pickles well and cannot be rebuilt."""

    def __reduce__(self):
        return int, ("no number",)


class Word(gymnasium.Space):
    """A space that only this module knows; it has neither shape nor dtype nor equality."""

    def __init__(self, *words: str) -> None:
        super().__init__()
        self.words = words

    def sample(self, mask=None, probability=None):
        return str(self.np_random.choice(self.words))

    def contains(self, x):
        return x in self.words

    def __repr__(self) -> str:
        return f"Word{self.words}"


class Sensor:
    """A part of an environment that cannot be copied: it holds a lock."""

    def __init__(self, gain: float, inner: Any = None) -> None:
        self.gain = gain
        self.inner = inner
        self._lock = threading.Lock()

    def scaled(self, value: float, offset: float = 0.0) -> float:
        return self.gain * value + offset


class Robot(gymnasium.Env):
    """Has attributes of every kind for handles to reach."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.start_over()

    def start_over(self) -> None:
        """Be as after the construction."""
        self.limits = {"low": [0, 1], "high": [8, 9]}
        self.sensor = Sensor(2.0, Sensor(3.0))
        self.speed = 1.0
        self.steps = 0
        self.fail_next_step = False
        self._secret = f"secret of {self.index}"
        self.__dict__.pop("note", None)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {"steps": 0}

    def step(self, action):
        if self.fail_next_step:
            self.fail_next_step = False
            raise ArithmeticError("asked to fail")
        self.steps += 1
        return np.array(action), 1.0, False, False, {"steps": self.steps}

    def current_speed(self) -> float:
        return self.speed

    def join(self, *parts: str, by: str = " ") -> str:
        return by.join([str(self.index), *parts])

    def own_sensor(self) -> Sensor:
        return self.sensor

    def fail(self, error: Any) -> None:
        _raise(error)

    @property
    def broken(self) -> int:
        raise ZeroDivisionError("broken by design")


class Layer(gymnasium.Wrapper):
    """A wrapper with an attribute and a method of its own."""

    def __init__(self, env: gymnasium.Env, label: str = "outer") -> None:
        super().__init__(env)
        self.label = label

    def start_over(self) -> None:
        self.label = "outer"
        self.action_space = None
        self.env.get_wrapper_attr("start_over")()

    def labelled(self, text: str) -> str:
        return f"{self.label} {text}"


class Limited(spaces.Box):
    """A Box with a current value and a function that constrains it."""

    def __init__(self, value: float) -> None:
        super().__init__(-10.0, 10.0, (), np.float64)
        self.value = value
        self.constrain_fn = lambda number: number < 5


class Varied(Ledger):
    """Has factors of variation, and a method that changes one of them."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.variation_space = spaces.Dict(
            {"size": Limited(1.0 + index), "pair": spaces.Tuple([Limited(3.0), Limited(4.0)])}
        )

    def grow(self) -> None:
        self.variation_space["size"].value += 1

    def constrained(self) -> bool:
        size, pair = self.variation_space["size"], self.variation_space["pair"]
        return all(callable(part.constrain_fn) for part in (size, *pair))


class Diary(Ledger):
    """Writes into a file when it is built and when it is closed: ``event index pid``."""

    def __init__(self, path: Path, index: int) -> None:
        super().__init__(int(index))
        self.path = path
        self._write("built")

    def close(self) -> None:
        self._write("closed")

    def _write(self, event: str) -> None:
        # One short write to a file opened for appending is not mixed with those of other processes.
        with open(self.path, "a") as file:
            file.write(f"{event} {self.index} {os.getpid()}\n")
