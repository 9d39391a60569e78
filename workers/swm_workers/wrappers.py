"""What a World wraps around each environment, so that the infos hold everything it reports.

It runs inside a worker and knows one environment at a time. It must not know batches or pools, and
it must never import swm_async.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, SupportsFloat, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from swm_workers.action_record import ActionRecord
from swm_workers.images import GoalImages, InfoSettings, resize
from swm_workers.spaces import pick

Env: TypeAlias = "gymnasium.Env[Any, Any]"
Infos: TypeAlias = dict[str, Any]
EnvPolicy: TypeAlias = Callable[[Env, Infos], Any]
"""From an environment and its last report to its next action."""

ALWAYS = ("reward", "terminated", "truncated", "step_idx", "id")
"""The info keys that every wrapped environment reports."""


@dataclass(frozen=True)
class WorldEnvFactory:
    """Builds one wrapped environment in its worker.

    From the inside out: the environment, its time limit, `pre_wrappers`, `InfoWrapper`,
    `extra_wrappers`.

    Attributes:
        env: An id or a spec for `gymnasium.make`, or a factory without arguments.
        settings: The settings of `InfoWrapper`.
        max_episode_steps: Given to `gymnasium.make` (None = the environment's own limit); on the
            environment of a factory it becomes a TimeLimit (None = none).
        pre_wrappers: Functions environment → environment, applied in this order.
        extra_wrappers: The same, outside of `InfoWrapper`.
        make_kwargs: More arguments of `gymnasium.make`.
    """

    env: str | EnvSpec | Callable[[], Env]
    settings: InfoSettings
    max_episode_steps: int | None = None
    pre_wrappers: tuple[Callable[[Env], Env], ...] = ()
    extra_wrappers: tuple[Callable[[Env], Env], ...] = ()
    make_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Env:
        """Build the environment and everything around it."""
        env = self._make()
        for wrap in self.pre_wrappers:
            env = wrap(env)
        env = InfoWrapper(env, self.settings)
        for wrap in self.extra_wrappers:
            env = wrap(env)
        return env

    def _make(self) -> Env:
        if isinstance(self.env, str | EnvSpec):
            kwargs = dict(self.make_kwargs)
            given = kwargs.keys() | (self.env.kwargs if isinstance(self.env, EnvSpec) else {})
            if self.settings.add_pixels and "render_mode" not in given:
                kwargs["render_mode"] = "rgb_array"
            return gymnasium.make(self.env, max_episode_steps=self.max_episode_steps, **kwargs)
        env = self.env()
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"the factory must return a gymnasium.Env, found {type(env).__name__}")
        if self.max_episode_steps in (None, -1):
            return env
        return gymnasium.wrappers.TimeLimit(env, self.max_episode_steps)


class InfoWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts observation, reward, flags, action, pixels and more into each info.

    Keys beside the environment's own: `observation` (or each key of a dict observation), `reward`
    (float, NaN after reset), `terminated`, `truncated`, `action` (`action.<name>` per entry of a
    Dict space, `action.<k>` of a Tuple space; NaN or the lowest integer after reset), `step_idx`,
    `id` (drawn from the environment's generator after each reset), with pixels `pixels`
    (`pixels.<view>` or `pixels.<k>` for several frames) and `render_time` (seconds), and
    `variation.<name>` for the factors that `options["variation"]` last named.

    Values may be objects that the environment keeps: whoever holds them past the next step copies.

    With a policy of its own (`install_policy`) the environment takes that one's actions in place of
    those that come with `step`.
    """

    def __init__(self, env: Env, settings: InfoSettings) -> None:
        """Wrap `env`, which must offer `render_multiview` or `render` if pixels are wanted."""
        super().__init__(env)
        self._settings = settings
        self._actions = ActionRecord(env.action_space)
        self._goals = GoalImages(settings)
        self._multiview = env.has_wrapper_attr("render_multiview")
        self._watched: tuple[str, ...] = ()
        self._variation: Infos = {}
        self._id = 0
        self._step_idx = 0
        self._policy: EnvPolicy | None = None
        self._last: Infos = {}

    def install_policy(self, factory: Callable[[], EnvPolicy] | None) -> None:
        """Take actions from `factory()` from now on; None = from the caller of `step` again."""
        policy = None if factory is None else factory()
        if not (policy is None or callable(policy)):
            raise TypeError(
                "the factory of a worker policy must return a function policy(env, info), "
                f"found {policy!r}"
            )
        self._policy = policy

    def has_policy(self) -> bool:
        """Whether the environment takes its actions from a policy of its own."""
        return self._policy is not None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Reset the environment; the info then holds the fill values of reward and action."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._id = int(self.env.unwrapped.np_random.integers(0, 2**63 - 1))
        self._step_idx = 0
        if options is not None and options.get("variation") is not None:
            names = options["variation"]
            self._watched = (names,) if isinstance(names, str) else tuple(names)
        self._variation = variation_infos(self.env, self._watched) if self._watched else {}
        unknown = self._actions.unknown
        lifted = self._lift(observation, info, unknown, float("nan"), False, False)
        self._last = lifted
        return observation, lifted

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, Infos]:
        """Step the environment; the action is recorded as given, before anyone can change it."""
        if self._policy is not None:
            action = self._actions.conform(self._policy(self.env, self._last))
        recorded = self._actions.record(action)
        report: tuple[Any, Any, Any, Any, Infos] = self.env.step(action)
        observation, reward, terminated, truncated, info = report
        self._step_idx += 1
        lifted = self._lift(
            observation,
            info,
            recorded,
            reward if type(reward) is float else _scalar(reward, float, "reward"),
            terminated if type(terminated) is bool else _scalar(terminated, bool, "terminated"),
            truncated if type(truncated) is bool else _scalar(truncated, bool, "truncated"),
        )
        self._last = lifted
        return observation, reward, terminated, truncated, lifted

    def _lift(
        self,
        observation: Any,
        info: Infos,
        action: Infos,
        reward: float,
        terminated: bool,
        truncated: bool,
    ) -> Infos:
        if not isinstance(observation, dict):
            observation = {"observation": observation}
        pixels = self._pixels() if self._settings.add_pixels else {}
        lifted = {
            **info,
            **observation,
            **action,
            **pixels,
            **self._variation,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "step_idx": self._step_idx,
            "id": self._id,
        }
        # A key reported twice makes the union smaller than its parts: far cheaper than comparing.
        own = len(action) + len(pixels) + len(self._variation) + len(ALWAYS)
        if len(lifted) != len(info) + len(observation) + own:
            raise _collision(info, observation, action, pixels, self._variation, ALWAYS)
        if "goal" in lifted:
            lifted["goal"] = self._goals.shape(lifted["goal"])
        return lifted

    def _pixels(self) -> Infos:
        multiview = self._multiview
        render = self.env.get_wrapper_attr("render_multiview") if multiview else self.env.render
        start = perf_counter()
        frames: Any = render()
        seconds = perf_counter() - start
        if isinstance(frames, Mapping):
            views = {f"pixels.{view}": self._pixel_info(frame) for view, frame in frames.items()}
        elif isinstance(frames, list | tuple):
            views = {f"pixels.{k}": self._pixel_info(frame) for k, frame in enumerate(frames)}
        else:
            views = {"pixels": self._pixel_info(frames)}
        views["render_time"] = seconds
        return views

    def _pixel_info(self, frame: Any) -> Any:
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3:
            found = f"{getattr(frame, 'dtype', type(frame).__name__)} {np.shape(frame)}"
            raise ValueError(
                f"pixels need frames (height, width, channels) of uint8, found {found} from an "
                f"environment of render_mode {self.env.render_mode!r}; give it "
                "render_mode='rgb_array', or the World add_pixels=False"
            )
        if self._settings.image_transform is not None:
            return self._settings.image_transform(frame)
        assert self._settings.image_shape is not None  # InfoSettings has seen to it
        return resize(frame, self._settings.image_shape, self._settings.image_resample)


def variation_infos(env: Env, names: tuple[str, ...]) -> Infos:
    """Return `variation.<name>` → current value of each named factor of `env`.

    Args:
        env: An environment; without a `variation_space`, whose `value` holds the current values
            by name (nested dicts for nested spaces), there is nothing to return.
        names: Factors, nested ones joined by dots; `all` stands for every one.
    """
    if not env.has_wrapper_attr("variation_space"):
        return {}
    values = env.get_wrapper_attr("variation_space").value
    factors = list(_factor_names(values, ""))
    infos = {}
    for name in factors if "all" in names else names:
        try:
            infos[f"variation.{name}"] = pick(values, tuple(name.split(".")))
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"options['variation'] names {name!r}, expected 'all' or some of {factors}"
            ) from error
    return infos


def _factor_names(values: Any, prefix: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _factor_names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _scalar(value: Any, kind: Callable[[Any], Any], name: str) -> Any:
    """Return `value`, a scalar or an array that holds one, as a Python `kind`."""
    try:
        return kind(value.item() if getattr(value, "ndim", 0) else value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be one {kind.__name__}, found {type(value).__name__} of shape "
            f"{np.shape(value)}"
        ) from error


def _collision(*reports: Iterable[str]) -> ValueError:
    """Return the error for the keys that appear in more than one of `reports`."""
    counts = Counter(key for report in reports for key in report)
    twice = ", ".join(repr(key) for key, count in counts.items() if count > 1)
    return ValueError(
        f"the environment reports {twice} in its info, where the World puts a value of its own; "
        "rename it in the environment or in one of pre_wrappers"
    )
