"""World: environments that put everything into the infos, and a policy driven over them.

It builds the pool and hands out what a rollout brings. It must not know how environments are
reached, nor which episode runs where: that is the business of the pool and of the rollout.

Letters: `N` = num_envs, `i` = env index, `k` = episode, `E` = episodes, `H`, `W` = image size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from tqdm import tqdm

from swm_async.evaluation import Success, Tally
from swm_async.policy import Policy
from swm_async.pool import EnvPool
from swm_async.rollout import Bools, Infos, Mode, Options, TimeStep, rollout
from swm_workers.wrappers import Env, InfoSettings, WorldEnvFactory

EnvFactory = Callable[[], Env]
EnvWrapper = Callable[[Env], Env]


class _Default(int):
    """A default that can be told from the same number given by the caller."""


DEFAULT_MAX_EPISODE_STEPS = _Default(100)


class World:
    """A policy, and a pool of environments whose infos hold all that the policy may see.

    From the inside out, an environment is what `env` gives, its time limit, `pre_wrappers`, the
    wrapper that fills the infos (`swm_workers.wrappers.InfoWrapper`), and `extra_wrappers`.

    Args:
        env: An id or an `EnvSpec`, made by `gymnasium.make` with `render_mode="rgb_array"` unless
            another is given or `add_pixels=False`; or a factory without arguments. `env_name` is
            another name of this argument.
        num_envs: `N`.
        image_shape: `(H, W)` of `pixels` and of goal images.
        max_episode_steps: Time limit. None = the environment's own. An environment of a factory
            gets a limit only if this argument is given.
        goal_conditioned: Without effect, accepted for compatibility.
        pre_wrappers: Functions environment → environment, applied in this order.
        extra_wrappers: The same, outside of the wrapper that fills the infos.
        image_transform: Called with each frame `(h, w, C) uint8` in place of the resize; what it
            returns is the info `pixels`.
        goal_transform: The same for the info `goal`, whatever it is.
        image_resample: Pillow's filter, by name, number or enum; None is bilinear. All but nearest
            are antialiased.
        add_pixels: Whether every reset and step renders the environment.
        num_workers, …, ray_options: Those of `EnvPool`.
        **make_kwargs: More arguments of `gymnasium.make`.

    Attributes:
        envs: The EnvPool.
        num_envs: `N`.
        policy: What `set_policy` took, else None.
        rewards: `(N,) float32`, terminateds, truncateds: `(N,) bool`. Those of the last time step
            of a rollout; a reset zeroes its rows; free to be assigned.

    Raises:
        TypeError, ValueError: An argument is wrong; no environment has been built.
    """

    def __init__(
        self,
        env: str | EnvSpec | EnvFactory | None = None,
        num_envs: int | None = None,
        image_shape: tuple[int, int] | None = None,
        max_episode_steps: int | None = DEFAULT_MAX_EPISODE_STEPS,
        goal_conditioned: bool = True,
        pre_wrappers: Sequence[EnvWrapper] | None = None,
        extra_wrappers: Sequence[EnvWrapper] | None = None,
        image_transform: Callable[[Any], Any] | None = None,
        goal_transform: Callable[[Any], Any] | None = None,
        image_resample: Any = None,
        add_pixels: bool = True,
        *,
        env_name: str | EnvSpec | EnvFactory | None = None,
        num_workers: int | None = None,
        backend: Literal["process", "ray"] = "process",
        copy: bool = False,
        start_timeout: float | None = 60.0,
        step_timeout: float | None = None,
        on_failure: Literal["raise", "restart"] = "raise",
        max_restarts: int = 3,
        threads_per_worker: int | None = 1,
        ray_options: Mapping[str, Any] | None = None,
        **make_kwargs: Any,
    ) -> None:
        if (env is None) == (env_name is None):
            found = "neither" if env is None else "both"
            raise TypeError(f"World needs exactly one of env and env_name, found {found}")
        factory = _wrapped(
            env if env_name is None else env_name,
            InfoSettings(image_shape, add_pixels, image_transform, goal_transform, image_resample),
            max_episode_steps,
            pre_wrappers,
            extra_wrappers,
            make_kwargs,
        )
        factories = [factory] * _num_envs(num_envs)
        self._take(
            EnvPool(
                factories,
                num_workers=num_workers,
                backend=backend,
                observations=False,
                copy=copy,
                start_timeout=start_timeout,
                step_timeout=step_timeout,
                on_failure=on_failure,
                max_restarts=max_restarts,
                threads_per_worker=threads_per_worker,
                ray_options=ray_options,
            )
        )

    @classmethod
    def from_env_fns(
        cls,
        env_fns: Sequence[EnvFactory],
        image_shape: tuple[int, int] | None = None,
        max_episode_steps: int | None = DEFAULT_MAX_EPISODE_STEPS,
        goal_conditioned: bool = True,
        pre_wrappers: Sequence[EnvWrapper] | None = None,
        extra_wrappers: Sequence[EnvWrapper] | None = None,
        image_transform: Callable[[Any], Any] | None = None,
        goal_transform: Callable[[Any], Any] | None = None,
        image_resample: Any = None,
        add_pixels: bool = True,
        **pool_options: Any,
    ) -> World:
        """Build a World of environments of several kinds, one of each of the N `env_fns`.

        All other arguments are those of `World`; `pool_options` are `num_workers` and those after
        it.
        """
        settings = InfoSettings(
            image_shape, add_pixels, image_transform, goal_transform, image_resample
        )
        factories = [
            _wrapped(env_fn, settings, max_episode_steps, pre_wrappers, extra_wrappers, {})
            for env_fn in env_fns
        ]
        return cls._over(EnvPool(factories, observations=False, **pool_options))

    @classmethod
    def from_pool(cls, pool: EnvPool) -> World:
        """Take over a pool and its environments as they are; `close` closes it."""
        for name in ("num_envs", "reset", "step"):
            if not hasattr(pool, name):
                raise TypeError(f"from_pool takes an EnvPool, found {pool!r} without {name}")
        return cls._over(pool)

    @classmethod
    def _over(cls, pool: EnvPool) -> World:
        world = cls.__new__(cls)
        world._take(pool)
        return world

    def _take(self, pool: EnvPool) -> None:
        self.envs = pool
        self.num_envs = pool.num_envs
        self.policy: Policy | None = None
        self._zero()

    def _zero(self) -> None:
        self.rewards: npt.NDArray[Any] = np.zeros(self.num_envs, np.float32)
        self.terminateds: Bools = np.zeros(self.num_envs, np.bool_)
        self.truncateds: Bools = np.zeros(self.num_envs, np.bool_)

    @property
    def infos(self) -> Infos:
        """The pool's latest infos, `(N, 1, ...)` each; `{}` before the first reset."""
        return self.envs.infos

    def set_policy(self, policy: Policy) -> None:
        """Take a policy, tell it of the pool and, where it has a seed, seed it.

        Args:
            policy: Has `get_action(infos)`. Where there is a `set_env` it is called with the pool;
                where there are `seed` (not None) and `_set_seed`, the one is passed to the other.
        """
        if not callable(getattr(policy, "get_action", None)):
            raise TypeError(f"a policy must have get_action(infos), found {policy!r}")
        if hasattr(policy, "set_env"):
            policy.set_env(self.envs)
        seed = getattr(policy, "seed", None)
        if seed is not None and hasattr(policy, "_set_seed"):
            policy._set_seed(seed)
        self.policy = policy

    def reset(
        self,
        seed: int | Sequence[int | None] | None = None,
        options: Options | Sequence[Options | None] | None = None,
        mask: Any = None,
    ) -> tuple[Any, Infos]:
        """Reset the environments of `mask` (`(N,) bool`, None = all) and zero their rows here.

        The arguments and the result are those of `EnvPool.reset`.
        """
        result = self.envs.reset(seed=seed, options=options, mask=mask)
        if mask is None:
            self._zero()
        else:
            self.rewards = np.where(mask, np.zeros_like(self.rewards), self.rewards)
            self.terminateds = np.where(mask, False, self.terminateds)
            self.truncateds = np.where(mask, False, self.truncateds)
        return result

    def rollout(
        self,
        episodes: int | None = None,
        max_steps: int | None = None,
        seed: int | None = None,
        options: Options | Sequence[Options | None] | None = None,
        mode: Mode = "auto",
        schedule: str = "lockstep",
        min_ready: int | None = None,
    ) -> Iterator[TimeStep]:
        """Drive the policy; yields one `TimeStep` after each reset and each step.

        Args:
            episodes, max_steps, seed, options, mode: See `swm_async.rollout.rollout`.
            schedule: "lockstep": all running environments are stepped at once.
            min_ready: Has no meaning with lockstep.

        Raises:
            RuntimeError: No policy is set.
            ValueError, TypeError: An argument is wrong; nothing has moved.
        """
        if schedule != "lockstep":
            raise ValueError(
                f"schedule must be 'lockstep', the only one so far, found {schedule!r}"
            )
        if min_ready is not None:
            raise ValueError(f"min_ready has no meaning with lockstep, found {min_ready!r}")
        if self.policy is None:
            raise RuntimeError("no policy set: call world.set_policy(policy) first")
        steps = rollout(
            self.envs,
            self.policy.get_action,
            episodes=episodes,
            max_steps=max_steps,
            seed=seed,
            options=options,
            mode=mode,
        )
        return self._follow(steps)

    def _follow(self, steps: Iterator[TimeStep]) -> Iterator[TimeStep]:
        for step in steps:
            self.rewards = step.rewards
            self.terminateds = step.terminateds
            self.truncateds = step.truncateds
            yield step

    def evaluate(
        self,
        episodes: int | None = None,
        seed: int | None = None,
        options: Options | Sequence[Options | None] | None = None,
        video: Any = None,
        reset_mode: Mode | None = None,
        dataset: Any = None,
        episodes_idx: Any = None,
        start_steps: Any = None,
        goal_offset: int | None = None,
        eval_budget: int | None = None,
        callables: Any = None,
        success: Success = None,
        progress: bool = False,
    ) -> dict[str, Any]:
        """Run `E` episodes and return what each came to, in the order in which they started.

        Args:
            episodes: `E`; None = one per environment.
            seed: Episode `k` is seeded `seed + k`; None draws a seed, see `seeds` of the result.
            options: Reset options, one mapping or a list of one per episode.
            reset_mode: "auto" (None) or "wait", see `swm_async.rollout.rollout`.
            video, dataset, …, callables: Not available yet.
            success: An episode succeeds if it terminated (None), if its last info of this key is
                true, or if this function of its last infos (a dict of its own values) says so.
            progress: Show a progress bar of episodes on standard error.

        Returns:
            `success_rate` (percent) and the arrays over episodes `episode_successes` `(E,) bool`,
            `seeds` `(E,) int64`, `episode_returns` `(E,) float64` (sums of the float64 rewards),
            `episode_lengths` `(E,) int64`, `episode_terminated`, `episode_truncated` `(E,) bool`.

        Raises:
            RuntimeError: No policy is set.
            ValueError, TypeError: An argument is wrong; nothing has moved.
        """
        later = {
            "video": video,
            "dataset": dataset,
            "episodes_idx": episodes_idx,
            "start_steps": start_steps,
            "goal_offset": goal_offset,
            "eval_budget": eval_budget,
            "callables": callables,
        }
        if unavailable := [name for name, value in later.items() if value is not None]:
            raise ValueError(f"evaluate cannot take {', '.join(unavailable)} yet: episodes only")
        count = self.num_envs if episodes is None else episodes
        mode: Mode = "auto" if reset_mode is None else reset_mode
        steps = self.rollout(count, seed=seed, options=options, mode=mode)
        tally = Tally(self.num_envs, count, success)
        with _progress_bar(count, progress) as advance:
            for step in steps:
                advance(tally.add(step))
        return tally.results()

    def collect(self, path: Any = None, **arguments: Any) -> None:
        """Record episodes. Not available yet.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("World.collect is not available yet: iterate over World.rollout instead")

    def render_grid(self, path: Any = None) -> Any:
        """Draw all environments in one picture. Not available yet.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("World.render_grid is not available yet: use world.envs.render()")

    def close(self) -> None:
        """Close the pool; a second call does nothing."""
        self.envs.close()

    def __enter__(self) -> World:
        """Return the World itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the World."""
        self.close()


def _num_envs(num_envs: Any) -> int:
    if num_envs is None:
        raise TypeError("World needs num_envs, the number of environments")
    if isinstance(num_envs, bool) or not hasattr(num_envs, "__index__") or num_envs < 1:
        raise ValueError(f"num_envs must be an integer >= 1, found {num_envs!r}")
    return int(num_envs)


def _wrapped(
    source: Any,
    settings: InfoSettings,
    max_episode_steps: int | None,
    pre_wrappers: Any,
    extra_wrappers: Any,
    make_kwargs: dict[str, Any],
) -> WorldEnvFactory:
    """Check what one environment is made of and return its factory."""
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
        make_kwargs,
    )


@contextmanager
def _progress_bar(total: int, shown: bool) -> Iterator[Callable[[int], object]]:
    """Yield a function that moves the bar on by so many episodes."""
    if not shown:
        yield _ignore
        return
    with tqdm(total=total, desc="evaluate", unit="episode") as bar:
        yield bar.update


def _ignore(count: int) -> None:
    """Show nothing."""
