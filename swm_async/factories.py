"""What a World's environments are made of: arguments checked, one factory for each environment.

It builds no environment and knows neither pools nor policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec

from swm_workers.images import InfoSettings
from swm_workers.wrappers import Env, WorldEnvFactory

EnvFactory: TypeAlias = Callable[[], Env]
EnvWrapper: TypeAlias = Callable[[Env], Env]


class _Default(int):
    """A default that can be told from the same number given by the caller."""


DEFAULT_MAX_EPISODE_STEPS = _Default(100)


def world_env_factory(
    source: Any,
    settings: InfoSettings,
    max_episode_steps: int | None,
    pre_wrappers: Any,
    extra_wrappers: Any,
    make_kwargs: Mapping[str, Any],
) -> WorldEnvFactory:
    """Check what one environment is made of and return its factory.

    Args:
        source: An id, an `EnvSpec`, or a factory without arguments.
        settings: What the World's wrapper adds.
        max_episode_steps: Time limit; the default applies to ids and specs alone.
        pre_wrappers: Functions environment → environment, applied before the World's wrapper.
        extra_wrappers: The same, applied after it.
        make_kwargs: More arguments of `gymnasium.make`, for ids and specs alone.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """
    made_by_id = isinstance(source, str | EnvSpec)
    if isinstance(source, gymnasium.Env) or not (made_by_id or callable(source)):
        raise TypeError(
            f"an environment is given by its id, its EnvSpec or a factory, found {source!r}"
        )
    if make_kwargs and not made_by_id:
        raise TypeError(f"a factory takes no arguments, found {sorted(make_kwargs)}")
    for name, wrappers in (("pre_wrappers", pre_wrappers), ("extra_wrappers", extra_wrappers)):
        if callable(wrappers) or not all(map(callable, wrappers or ())):
            raise TypeError(f"{name} must be a list of functions environment -> environment")
    limit: Any = max_episode_steps
    if limit is DEFAULT_MAX_EPISODE_STEPS and not made_by_id:
        limit = None
    if limit is not None and (not isinstance(limit, int) or (limit < 1 and limit != -1)):
        raise ValueError(f"max_episode_steps must be an integer >= 1 or None, found {limit!r}")
    return WorldEnvFactory(
        source,
        settings,
        None if limit is None else int(limit),
        tuple(pre_wrappers or ()),
        tuple(extra_wrappers or ()),
        dict(make_kwargs),
    )


def check_num_envs(num_envs: Any) -> int:
    """Return `N` as a Python integer.

    Raises:
        TypeError: It is missing.
        ValueError: It is no integer of 1 or more.
    """
    if num_envs is None:
        raise TypeError("World needs num_envs, the number of environments")
    if isinstance(num_envs, bool) or not hasattr(num_envs, "__index__") or num_envs < 1:
        raise ValueError(f"num_envs must be an integer >= 1, found {num_envs!r}")
    return int(num_envs)
