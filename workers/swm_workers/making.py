"""Factories of registered environments that a worker can unpickle without the agent side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium


def make_wrapped(
    env_id: Any, wrappers: Sequence[Callable[[Any], Any]], kwargs: Mapping[str, Any]
) -> Any:
    """``gymnasium.make``, then each wrapper from first to last."""
    env = gymnasium.make(env_id, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env
