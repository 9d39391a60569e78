"""What a World wraps around each environment, so that the infos hold everything it reports.

It runs inside a worker and knows one environment at a time. It must not know batches, pools or
policies, and it must never import swm_async; pillow is imported only to resize a frame.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from time import perf_counter
from typing import Any, SupportsFloat, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from swm_workers.spaces import Leaf, leaves, pick

Env: TypeAlias = "gymnasium.Env[Any, Any]"
Infos: TypeAlias = dict[str, Any]

RESAMPLINGS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
"""Pillow's filters and their numbers (PIL.Image.Resampling); all but nearest are antialiased."""

ALWAYS = ("reward", "terminated", "truncated", "step_idx", "id")
"""The info keys that every wrapped environment reports."""


@dataclass(frozen=True)
class InfoSettings:
    """What the wrapper adds to the infos, and how images in them are shaped.

    Attributes:
        image_shape: `(H, W)` to which pixels and goal images are resized; None leaves goals alone.
        add_pixels: Whether every reset and step renders the environment.
        image_transform: Called with each frame, `(h, w, C) uint8` as rendered, in place of the
            resize; its result is the info.
        goal_transform: The same for the info `goal`, with whatever the environment reports there.
        image_resample: One of Pillow's filters: its name, its number or an enum of either.
            None is bilinear.
    """

    image_shape: tuple[int, int] | None = None
    add_pixels: bool = True
    image_transform: Callable[[Any], Any] | None = None
    goal_transform: Callable[[Any], Any] | None = None
    image_resample: Any = None

    def __post_init__(self) -> None:
        """Check the settings and bring them into one form."""
        if self.image_shape is not None:
            object.__setattr__(self, "image_shape", _image_shape(self.image_shape))
        elif self.add_pixels:
            raise ValueError(
                "add_pixels=True needs image_shape=(height, width); "
                "give one, or add_pixels=False for infos without pixels"
            )
        object.__setattr__(self, "image_resample", _resampling(self.image_resample))
        for name in ("image_transform", "goal_transform"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function of one frame, found {function!r}")


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
        return observation, self._lift(observation, info, unknown, float("nan"), False, False)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, Infos]:
        """Step the environment; the action is recorded as given, before anyone can change it."""
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


class ActionRecord:
    """Turns an action into infos of the space's dtype, one per leaf of Dict and Tuple spaces.

    Attributes:
        unknown: The infos while there is no action: NaN, for integers the lowest, for bool False,
            for spaces without a dtype (Text, Graph, Sequence, ...) None. Read-only arrays.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        """Plan the infos of the actions of `space`."""
        keys = {".".join(map(str, ("action", *leaf.path))): leaf for leaf in leaves(space)}
        self.unknown: Infos = {key: _unknown(leaf) for key, leaf in keys.items()}
        self._plan = tuple((key, leaf.path, _cast(leaf)) for key, leaf in keys.items())

    def record(self, action: Any) -> Infos:
        """Return copies of the parts of `action`, keyed `action` or `action.<name>`."""
        return {key: cast(pick(action, path)) for key, path, cast in self._plan}


class GoalImages:
    """Shapes goals like pixels; a goal that is no image passes unchanged.

    Most environments report one goal at every step of an episode, so the last one is kept.
    """

    def __init__(self, settings: InfoSettings) -> None:
        """Shape goals by `settings`."""
        self._settings = settings
        self._last: npt.NDArray[np.uint8] | None = None
        self._resized: Any = None

    def shape(self, goal: Any) -> Any:
        """Return the transformed goal; else one `(h, w, 1 | 3 | 4) uint8` in the image shape."""
        if self._settings.goal_transform is not None:
            return self._settings.goal_transform(goal)
        target = self._settings.image_shape
        image = isinstance(goal, np.ndarray) and goal.dtype == np.uint8 and goal.ndim == 3
        if target is None or not image or goal.shape[2] not in (1, 3, 4):
            return goal
        if goal.shape[:2] == target:
            return goal
        if self._last is None or not np.array_equal(goal, self._last):
            self._last = goal.copy()
            self._resized = resize(goal, target, self._settings.image_resample)
        return self._resized


def resize(
    frame: npt.NDArray[np.uint8], shape: tuple[int, int], resample: int
) -> npt.NDArray[np.uint8]:
    """Resize `frame` `(h, w, C)` to `shape` `(H, W)`, each channel on its own, antialiased.

    A frame that has the shape is returned itself.

    Raises:
        ImportError: Pillow is needed and missing.
    """
    height, width, channels = frame.shape
    if (height, width) == shape:
        return frame
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            f"resizing a frame of {(height, width)} to {shape} needs pillow: "
            "pip install swm_async[pixels]"
        ) from error
    size = (shape[1], shape[0])
    if channels == 3:
        return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling(resample)))
    # One by one: as RGBA, Pillow would weigh the colours by the fourth channel.
    planes = [
        np.asarray(Image.fromarray(frame[..., k]).resize(size, Image.Resampling(resample)))
        for k in range(channels)
    ]
    return np.stack(planes, axis=-1)


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


def _cast(leaf: Leaf) -> Callable[[Any], Any]:
    if leaf.dtype is None:
        return _as_given
    return partial(np.array, dtype=leaf.dtype) if leaf.shape else leaf.dtype.type


def _as_given(action: Any) -> Any:
    return action


def _unknown(leaf: Leaf) -> Any:
    if leaf.dtype is None:
        return None
    value: Any = np.nan
    if leaf.dtype.kind == "b":
        value = False
    elif leaf.dtype.kind in "iu":
        value = np.iinfo(leaf.dtype).min
    array = np.full(leaf.shape, value, leaf.dtype)
    array.setflags(write=False)
    return array if leaf.shape else array[()]


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


def _image_shape(shape: Any) -> tuple[int, int]:
    try:
        height, width = (operator.index(length) for length in shape)
    except (TypeError, ValueError):
        height = width = 0
    if height < 1 or width < 1:
        raise ValueError(f"image_shape must be (height, width) in pixels, found {shape!r}")
    return height, width


def _resampling(resample: Any) -> int:
    found = resample.value if isinstance(resample, Enum) else resample
    number = RESAMPLINGS.get(found.lower()) if isinstance(found, str) else found
    if number is None and resample is None:
        return RESAMPLINGS["bilinear"]
    if type(number) is not int or number not in RESAMPLINGS.values():
        raise ValueError(f"image_resample must be one of {list(RESAMPLINGS)}, found {resample!r}")
    return number
