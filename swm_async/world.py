"""World: environments that put everything into the infos, and a policy driven over them.

It builds the pool and says what is done with a rollout. It must not know how environments are
reached, nor which episode runs where: that is the business of the pool and of the rollout.

Letters: `N` = num_envs, `i` = env index, `k` = episode, `E` = episodes, `H`, `W` = image size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gymnasium.envs.registration import EnvSpec

from swm_async.data import as_dataset
from swm_async.data.episodes import Writer
from swm_async.data.files import Mode as WriteMode
from swm_async.driver import Driver
from swm_async.evaluation import Success, Tally
from swm_async.factories import (
    DEFAULT_MAX_EPISODE_STEPS,
    EnvFactory,
    EnvWrapper,
    check_num_envs,
    world_env_factory,
)
from swm_async.frames import Frame, rendered_grid, save_picture
from swm_async.passages import load_passages
from swm_async.pool import EnvPool
from swm_async.progress import progress_bar
from swm_async.recording import collect
from swm_async.replay import Replay, refuse_without_dataset
from swm_async.results import Results
from swm_async.rollout import Mode, Options, Schedule
from swm_async.video import EpisodeVideos, ReplayVideos
from swm_workers.images import InfoSettings

UNKNOWN_SETTINGS = InfoSettings(add_pixels=False)
"""Those of environments that the World has not wrapped itself."""


class World(Driver):
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
        settings = InfoSettings(
            image_shape, add_pixels, image_transform, goal_transform, image_resample
        )
        factory = world_env_factory(
            env if env_name is None else env_name,
            settings,
            max_episode_steps,
            pre_wrappers,
            extra_wrappers,
            make_kwargs,
        )
        factories = [factory] * check_num_envs(num_envs)
        super().__init__(
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
        self._settings = settings

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
            world_env_factory(env_fn, settings, max_episode_steps, pre_wrappers, extra_wrappers, {})
            for env_fn in env_fns
        ]
        return cls._over(EnvPool(factories, observations=False, **pool_options), settings)

    @classmethod
    def from_pool(cls, pool: EnvPool) -> World:
        """Take over a pool and its environments as they are; `close` closes it."""
        for name in ("num_envs", "reset", "step"):
            if not hasattr(pool, name):
                raise TypeError(f"from_pool takes an EnvPool, found {pool!r} without {name}")
        return cls._over(pool, UNKNOWN_SETTINGS)

    @classmethod
    def _over(cls, pool: EnvPool, settings: InfoSettings) -> World:
        world = cls.__new__(cls)
        Driver.__init__(world, pool)
        world._settings = settings
        return world

    def evaluate(
        self,
        episodes: int | None = None,
        seed: int | None = None,
        options: Options | Sequence[Options | None] | None = None,
        video: str | os.PathLike[str] | None = None,
        reset_mode: Mode | None = None,
        dataset: Any = None,
        episodes_idx: Sequence[int] | None = None,
        start_steps: Sequence[int] | None = None,
        goal_offset: int | None = None,
        eval_budget: int | None = None,
        callables: Sequence[Mapping[str, Any]] | None = None,
        success: Success = None,
        progress: bool = False,
        schedule: Schedule = "lockstep",
        min_ready: int | None = None,
    ) -> Results:
        """Run `E` episodes and return what each came to, in the order in which they started.

        With a `dataset`, episode `e` starts in the state that was recorded at step
        `start_steps[e]` of episode `episodes_idx[e]`, and aims at the one `goal_offset` steps
        later: `swm_async.replay.Replay` tells how the environments are brought there, and
        `docs/contract.md`, Dataset evaluation, every rule.

        Args:
            episodes: `E`; None = one per environment, or per entry of `episodes_idx`.
            seed: Episode `k` is seeded `seed + k`; None draws a seed, see `seeds` of the result. A
                dataset's column `seed` counts in its place.
            options: Reset options, one mapping or a list of one per episode.
            video: A folder for one video per episode: `episode_<k>.mp4`, or with a dataset
                `env_<e>.mp4` with agent, dataset and goal side by side.
            reset_mode: "auto" or "wait", see `swm_async.rollout.rollout`. None is "auto", with a
                dataset "wait".
            dataset: Has `load_chunk`, see `swm_async.passages.load_passages`; or Minari's.
            episodes_idx: `(E,)` episodes of the dataset.
            start_steps: `(E,)` steps at which the episodes start.
            goal_offset: The goal is the state so many steps later.
            eval_budget: An episode that is not over after so many steps counts as truncated.
            callables: How environments without `reset_options_from_dataset` are brought into the
                recorded state: see `Replay`.
            success: An episode succeeds if it terminated (None), if its last info of this key is
                true, or if this function of its last infos (a dict of its own values) says so.
            progress: Show a progress bar of episodes on standard error.
            schedule, min_ready: When the policy is asked, see `rollout`. For policies whose action
                depends on its row's infos alone the results are the same.

        Returns:
            A dict with `success_rate` (percent) and the arrays over episodes `episode_successes`
            `(E,) bool`, `seeds` `(E,) int64`, `episode_returns` `(E,) float64` (sums of the
            float64 rewards), `episode_lengths` `(E,) int64`, `episode_terminated`,
            `episode_truncated` `(E,) bool`; printed, it shows its summary.

        Raises:
            RuntimeError: No policy is set.
            ImportError: A video is wanted and imageio is missing.
            ValueError, TypeError: An argument is wrong; nothing has moved.
        """
        self._policy()
        if video is not None:
            self._check_pixels()
        replay: Replay | None = None
        if dataset is None:
            refuse_without_dataset(
                episodes_idx=episodes_idx,
                start_steps=start_steps,
                goal_offset=goal_offset,
                eval_budget=eval_budget,
                callables=callables,
            )
        else:
            replay = Replay(
                self.envs,
                load_passages(
                    as_dataset(dataset),
                    episodes_idx,
                    start_steps,
                    goal_offset,
                    with_images=video is not None,
                ),
                settings=self._settings,
                options=options,
                callables=callables,
            )
            episodes, options = replay.count(episodes), replay.options
        if reset_mode is None:
            reset_mode = "auto" if replay is None else "wait"
        count = self.num_envs if episodes is None else episodes
        seeds = seed if replay is None or replay.seeds is None else replay.seeds
        steps = self._run(
            count, None, seeds, options, reset_mode, eval_budget, replay, schedule, min_ready
        )
        tally = Tally(self.num_envs, count, success)
        videos = None if video is None else self._videos(video, replay)
        with progress_bar(count, "evaluate", shown=progress) as advance:
            for step in steps:
                if videos is not None:
                    videos.add(step)
                advance(tally.add(step))
        return tally.results()

    def _check_pixels(self) -> None:
        if not self._settings.add_pixels and self._settings is not UNKNOWN_SETTINGS:
            raise ValueError("a video needs pixels: give the World add_pixels=True and image_shape")

    def _videos(self, folder: str | os.PathLike[str], replay: Replay | None) -> EpisodeVideos:
        if replay is None:
            return EpisodeVideos(folder, self.num_envs)
        return ReplayVideos(folder, self.num_envs, replay.passages, self._settings)

    def collect(
        self,
        path: str | os.PathLike[str] | None = None,
        episodes: int | None = None,
        seed: int | None = None,
        options: Options | Sequence[Options | None] | None = None,
        format: str | None = None,
        writer: Writer | None = None,
        mode: WriteMode = "append",
        progress: bool = True,
        schedule: Schedule = "lockstep",
        min_ready: int | None = None,
    ) -> dict[str, Any]:
        """Record `E` episodes, in the order in which they started; `load_dataset` reads them.

        An episode of L steps has L+1 rows, one of the reset and one per step, and a column for
        each key that its environment reported. Row t of `action` is the action taken there; the
        last row's is NaN, for integers the lowest. `docs/contract.md`, Collect, has every rule.

        Args:
            path: A folder (format npz) or a file `.h5` or `.hdf5` (hdf5). Either this or `writer`.
            episodes: `E`; None = one per environment.
            seed: Episode `k` is seeded `seed + k`; None draws a seed, see `seeds` of the result.
            options: Reset options, one mapping or a list of one per episode.
            format: "npz", "hdf5", or one that stable-worldmodel has, where it is installed. None
                = by the path.
            writer: Has `write_episode(episode)`, see `swm_async.data.Writer`; it is not closed.
            mode: What to do where there are episodes: "append" behind them, "overwrite", "error".
            progress: Show a progress bar of episodes on standard error.
            schedule, min_ready: When the policy is asked, see `rollout`. For policies whose action
                depends on its row's infos alone the file is the same, byte for byte.

        Returns:
            `path`, and over the episodes recorded now `episode_lengths` `(E,) int64`, in steps,
            and `seeds` `(E,) int64`.

        Raises:
            RuntimeError: No policy is set.
            ValueError, TypeError, ImportError, FileExistsError: An argument is wrong; nothing has
                moved.
            TypeError: A value cannot be recorded; names its key. As after every failure, all
                episodes before the first that is not over have been written.
        """
        return collect(
            self,
            path,
            episodes,
            seed=seed,
            options=options,
            format=format,
            writer=writer,
            mode=mode,
            progress=progress,
            schedule=schedule,
            min_ready=min_ready,
        )

    def render_grid(self, path: str | os.PathLike[str] | None = None) -> Frame:
        """Render all environments into one picture, as nearly square as possible.

        Environments that were never reset leave their place empty.

        Args:
            path: Where to write it, in the format that the suffix tells; needs pillow.

        Returns:
            The picture, `(H, W, 3) uint8`.

        Raises:
            ValueError: An environment renders no image.
            ImportError: A path is given and pillow is missing.
        """
        picture = rendered_grid(self.envs)
        if path is not None:
            save_picture(picture, Path(path))
        return picture
