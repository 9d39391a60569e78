"""Videos of episodes: frames of time steps gathered row by row, one file for each episode.

It knows time steps, passages and files; imageio, which is optional, is imported only here.

Letters: `N` = num_envs, `i` = env index, `L` = steps of an episode.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swm_async.evaluation import row_infos
from swm_async.frames import Frame, even_sized, frame_of, side_by_side
from swm_async.passages import Passage
from swm_async.rollout import Infos, TimeStep
from swm_workers.images import InfoSettings, resize

FRAMES_PER_SECOND = 15


class EpisodeVideos:
    """Writes one video for each episode that ends, `L + 1` frames: its reset's and its steps'.

    The frames of running episodes are held in memory until then; an episode that is lost or left
    unfinished leaves no file.
    """

    def __init__(self, folder: str | os.PathLike[str], num_envs: int) -> None:
        """Write into `folder`, which is made if need be.

        Raises:
            ImportError: imageio or its ffmpeg is missing.
        """
        check_installed()
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._frames: list[list[Frame]] = [[] for _ in range(num_envs)]

    def add(self, step: TimeStep) -> None:
        """Take in one time step, and write the videos of the episodes that it ends."""
        for i in step.mask.nonzero()[0].tolist():
            if step.first[i]:
                self._frames[i] = []
            episode = int(step.episode[i])
            frame = self._frame(_images(step.infos, i), episode, len(self._frames[i]))
            self._frames[i].append(frame)
            if step.ended[i]:
                write_video(self._folder / self._name(episode), self._frames[i])
                self._frames[i] = []

    def _frame(self, row: Infos, episode: int, t: int) -> Frame:
        return frame_of(row)

    def _name(self, episode: int) -> str:
        return f"episode_{episode}.mp4"


class ReplayVideos(EpisodeVideos):
    """The same for episodes from recorded states: agent, dataset and goal side by side."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        num_envs: int,
        passages: Sequence[Passage],
        settings: InfoSettings,
    ) -> None:
        """Show `passages`, one for each episode, loaded with their images.

        Raises:
            ImportError: imageio or its ffmpeg is missing.
            ValueError: The passages have no column `pixels`.
        """
        if not any(name.split(".")[0] == "pixels" for name in passages[0].images):
            raise ValueError(
                "a video of recorded episodes needs the dataset column 'pixels' or "
                f"'pixels.<view>', found {sorted(passages[0].init_row)}"
            )
        super().__init__(folder, num_envs)
        self._passages = passages
        self._resample = settings.image_resample

    def _frame(self, row: Infos, episode: int, t: int) -> Frame:
        agent = frame_of(row)
        images = self._passages[episode].images
        # Once the passage is over, its last frame stays.
        recorded = frame_of({name: part[min(t, len(part) - 1)] for name, part in images.items()})
        goal = frame_of({name: part[-1] for name, part in images.items()})
        shape = agent.shape[:2]
        return side_by_side(
            [agent, resize(recorded, shape, self._resample), resize(goal, shape, self._resample)]
        )

    def _name(self, episode: int) -> str:
        return f"env_{episode}.mp4"


def check_installed() -> None:
    """Raise if videos cannot be written.

    Raises:
        ImportError: A package is missing; says how to install it.
    """
    for module in ("imageio", "imageio_ffmpeg"):
        if importlib.util.find_spec(module) is None:
            raise ImportError(f'writing a video needs {module}: pip install "swm_async[video]"')


def write_video(path: Path, frames: Sequence[Frame]) -> None:
    """Write frames `(H, W, 3) uint8` of one size as an mp4 file, 15 per second."""
    import imageio.v2

    # Macro blocks of 1: imageio would otherwise stretch the frames to a multiple of 16.
    writer: Any = imageio.v2.get_writer(
        path,
        format="FFMPEG",
        mode="I",
        fps=FRAMES_PER_SECOND,
        codec="libx264",
        quality=8,
        macro_block_size=1,
        ffmpeg_log_level="error",
    )
    try:
        for frame in frames:
            writer.append_data(np.ascontiguousarray(even_sized(frame)))
    finally:
        writer.close()


def _images(infos: Infos, i: int) -> Infos:
    """Return copies of environment i's images."""
    return row_infos({key: v for key, v in infos.items() if key.split(".")[0] == "pixels"}, i)
