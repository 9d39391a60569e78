"""Environments that report what a script tells them to; they need nothing but gymnasium.

Some values lose what is odd about them on the way to a worker: an array that arrives is
contiguous and writable. ``Made`` says how to make such a value where it is reported.
"""

from __future__ import annotations

import enum
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

OBSERVATION = np.zeros(1, np.float32)

Info = Mapping[Any, Any]


class Made(NamedTuple):
    """A value that is made where it is reported, by a function of this module."""

    make: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


def made(value: Any) -> Any:
    return value.make(*value.arguments) if isinstance(value, Made) else value


class ScriptedEnv(gymnasium.Env):
    """Reports one info of its script at each reset and each step; then empty ones.

    An exception in place of an info is raised.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, script: Sequence[Info | Exception] = ()) -> None:
        self.load(script)

    def load(self, script: Sequence[Info | Exception]) -> None:
        self._script = list(script)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return OBSERVATION, self._report()

    def step(self, action: Any) -> Any:
        return OBSERVATION, 0.0, False, False, self._report()

    def descriptors(self) -> list[str]:
        """What files the process has open; Linux alone can tell."""
        return os.listdir("/proc/self/fd")

    def _report(self) -> Any:
        info = self._script.pop(0) if self._script else {}
        if isinstance(info, Exception):
            raise info
        if type(info) is not dict:
            return made(info)
        return {key: made(value) for key, value in info.items()}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Count(int):
    """An integer that is more than an integer."""


class Name(str):
    """A string whose ``str()`` says something else."""

    def __str__(self) -> str:
        return "somebody"


class Length(np.ndarray):
    """An array with a class of its own."""


class TwoPartError(Exception):
    """An exception that pickles, and cannot be rebuilt: it stores other arguments than it takes."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def strided(array: Any) -> Any:
    """Every other element of a longer array, backwards."""
    return np.repeat(array, 2, axis=0)[::-2][::-1] if array.ndim else array


def read_only(array: Any) -> Any:
    own = array.copy()
    own.flags.writeable = False
    return own


def swapped(array: Any) -> Any:
    """The same values in the other byte order."""
    return array.astype(array.dtype.newbyteorder("S"))


def memory_mapped(array: Any) -> Any:
    if array.size == 0:
        return array  # a file of no bytes cannot be mapped
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, array.dtype, "w+", shape=array.shape)
        mapped[...] = array
    return mapped


def subclassed(array: Any) -> Any:
    return np.asarray(array).view(Length)


def masked(array: Any) -> Any:
    return np.ma.masked_array(array, mask=np.ones(np.shape(array), np.bool_))


def containing_itself() -> Any:
    info: dict[str, Any] = {"inner": [1]}
    info["outer"] = info
    return info


def unpicklable() -> Any:
    return threading.Lock()


def unrebuildable() -> Any:
    return TwoPartError("two", "parts")
