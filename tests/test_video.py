"""Videos and pictures show what each environment showed, frame by frame."""

import importlib.util
import re
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from fake_pool import ByNumber, Countdown
from recorded import Recorded, record_point_goal
from swm_async import EnvError, PointGoalExpert, RandomPolicy, World
from swm_async.frames import as_frame, even_sized, frame_of, grid, side_by_side

POINT_GOAL = "swm_async/PointGoal-v0"
TOLERANCE = 12
"""The codec is lossy; frames of one colour come back within a few levels of 255."""

needs_ffmpeg = pytest.mark.skipif(
    importlib.util.find_spec("imageio_ffmpeg") is None, reason="imageio[ffmpeg] is not installed"
)
both_kinds = pytest.mark.parametrize("num_workers", [0, 2])


def read_video(path):
    """The size as the file tells it, frames per second, and all frames `(T, H, W, 3)`."""
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path)]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    stream = next(line for line in told.splitlines() if "Video: h264" in line)
    width, height = map(int, re.search(r", (\d+)x(\d+)[, ]", stream).groups())
    rate = float(stream.split(" fps")[0].split()[-1])
    raw = [*command, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    data = subprocess.run(raw, capture_output=True, check=True).stdout
    return rate, np.frombuffer(data, np.uint8).reshape(-1, height, width, 3)


class Colors(gymnasium.Env):
    """Every frame of every episode has a colour of its own, told by the episode's seed and step."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Discrete(99)
    render_mode = "rgb_array"
    size = (32, 48)
    seed = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.steps = seed, 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        return self.steps, 1.0, self.steps == length_of(self.seed), False, {}

    def render(self):
        if self.seed is None:
            raise gymnasium.error.ResetNeeded("there is nothing to see yet")
        return np.full((*self.size, 3), color_of(self.seed, self.steps), np.uint8)

    def jump(self, steps):
        self.steps = int(steps)


def length_of(seed):
    return 2 + 3 * seed % 5


def color_of(seed, step):
    return 20 + 30 * seed, 40 + 25 * step, 100


def color_world(num_envs=3, num_workers=0, size=(32, 48), **arguments):
    world = World(Colors, num_envs, size, num_workers=num_workers, **arguments)
    world.set_policy(RandomPolicy())
    return world


def assert_color(frames, color):
    np.testing.assert_allclose(
        frames.astype(int), np.broadcast_to(color, frames.shape), atol=TOLERANCE
    )


# One video per episode


@needs_ffmpeg
@both_kinds
@pytest.mark.parametrize("mode", ["auto", "wait"])
def test_a_video_holds_the_frames_of_its_own_episode_each_once(tmp_path, num_workers, mode):
    folder = tmp_path / "new" / "videos"
    with color_world(3, num_workers) as world:
        results = world.evaluate(5, seed=0, video=folder, reset_mode=mode)
    lengths = [length_of(k) for k in range(5)]
    assert results["episode_lengths"].tolist() == lengths
    assert sorted(p.name for p in folder.iterdir()) == [f"episode_{k}.mp4" for k in range(5)]
    for k in range(5):
        rate, frames = read_video(folder / f"episode_{k}.mp4")
        assert rate == 15
        assert frames.shape == (lengths[k] + 1, 32, 48, 3)
        for t, frame in enumerate(frames):
            assert_color(frame, color_of(k, t))


@needs_ffmpeg
def test_frames_of_odd_sizes_are_padded_by_their_last_row_and_column(tmp_path):
    with color_world(1, size=(17, 25), image_resample="nearest") as world:
        world.evaluate(1, seed=0, video=str(tmp_path))
    _, frames = read_video(tmp_path / "episode_0.mp4")
    assert frames.shape == (length_of(0) + 1, 18, 26, 3)
    assert_color(frames[1], color_of(0, 1))


@needs_ffmpeg
def test_several_views_are_shown_side_by_side(tmp_path):
    class Views(Colors):
        def render_multiview(self):
            frame = self.render()
            return {"left": frame, "right": 255 - frame}

    world = World(Views, 1, (32, 48), num_workers=0)
    with world:
        world.set_policy(RandomPolicy())
        world.evaluate(1, seed=1, video=tmp_path)
    _, frames = read_video(tmp_path / "episode_0.mp4")
    assert frames.shape[1:] == (32, 96, 3)
    # A few columns at the seam are a mixture.
    assert_color(frames[2][:, :40], color_of(1, 2))
    assert_color(frames[2][:, 56:], np.subtract(255, color_of(1, 2)))


@needs_ffmpeg
def test_a_lost_episode_begins_its_video_again(tmp_path):
    failures = []

    class FailsOnce(gymnasium.Wrapper):
        def step(self, action):
            if not failures and self.env.unwrapped.steps == 1:
                failures.append(1)
                raise OSError("once")
            return super().step(action)

    world = color_world(2, on_failure="restart", pre_wrappers=[FailsOnce])
    with world, pytest.warns(UserWarning, match="once"):
        world.evaluate(2, seed=0, video=tmp_path)
    for k in range(2):
        _, frames = read_video(tmp_path / f"episode_{k}.mp4")
        assert len(frames) == length_of(k) + 1
        assert_color(frames[1], color_of(k, 1))


@needs_ffmpeg
def test_a_failure_leaves_the_videos_of_complete_episodes(tmp_path):
    class Fails(gymnasium.Wrapper):
        def step(self, action):
            if self.env.unwrapped.seed == 1 and self.env.unwrapped.steps == 3:
                raise OSError("now")
            return super().step(action)

    with color_world(2, pre_wrappers=[Fails]) as world, pytest.raises(EnvError, match="now"):
        world.evaluate(2, seed=0, video=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["episode_0.mp4"]
    _, frames = read_video(tmp_path / "episode_0.mp4")
    assert len(frames) == length_of(0) + 1


# From recorded states


@needs_ffmpeg
@both_kinds
def test_agent_dataset_and_goal_are_shown_side_by_side(tmp_path, num_workers):
    def recorded(k):
        frames = np.zeros((9, 16, 24, 3), np.uint8)
        frames[..., 2] = 200
        frames[..., 0] = 10 + 20 * np.arange(9)[:, None, None]
        frames[..., 1] = 60 * k
        return {"pixels": frames, "step": np.arange(9)}

    dataset = Recorded([recorded(k) for k in range(3)])
    jump = {"method": "jump", "args": {"steps": {"value": 0, "in_dataset": False}}}
    with color_world(2, num_workers) as world:
        results = world.evaluate(
            dataset=dataset,
            episodes_idx=[2, 0, 1],
            start_steps=[0, 5, 3],
            goal_offset=3,
            eval_budget=5,
            seed=0,
            callables=[jump],
            video=tmp_path,
        )
    lengths = [min(length_of(e), 5) for e in range(3)]
    assert results["episode_lengths"].tolist() == lengths
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"env_{e}.mp4" for e in range(3)]
    for e, (episode, start) in enumerate([(2, 0), (0, 5), (1, 3)]):
        rate, frames = read_video(tmp_path / f"env_{e}.mp4")
        assert rate == 15
        assert frames.shape == (lengths[e] + 1, 32, 3 * 48, 3)
        for t, frame in enumerate(frames):
            agent, dataset, goal = frame[:, 4:44], frame[:, 52:92], frame[:, 100:140]
            # The recorded frame replaces that of the reset; the passage ends with its goal.
            row = start + min(t, 3)
            shown = (10 + 20 * row, 60 * episode, 200)
            assert_color(agent, shown if t == 0 else color_of(e, t))
            assert_color(dataset, shown)
            assert_color(goal, (10 + 20 * (start + 3), 60 * episode, 200))


@needs_ffmpeg
def test_a_dataset_without_images_makes_no_video(tmp_path):
    walks = record_point_goal(1, 6)
    blind = Recorded([{k: v for k, v in e.items() if k != "pixels"} for e in walks.episodes])
    with World(POINT_GOAL, 1, (16, 16), num_workers=0) as world:
        world.set_policy(PointGoalExpert())
        with pytest.raises(ValueError, match="needs the dataset column 'pixels'"):
            world.evaluate(
                dataset=blind,
                episodes_idx=[0],
                start_steps=[0],
                goal_offset=3,
                video=tmp_path / "v",
            )
        assert world.infos == {}
    assert not (tmp_path / "v").exists()


# What is missing


@pytest.mark.parametrize("module", ["imageio", "imageio_ffmpeg"])
def test_a_missing_imageio_is_named_with_its_remedy_before_anything_moves(
    monkeypatch, tmp_path, module
):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == module else find_spec(name, *a),
    )
    with color_world(1) as world:
        with pytest.raises(ImportError, match=r'pip install "swm_async\[video\]"'):
            world.evaluate(1, video=tmp_path / "videos")
        assert world.infos == {}
    assert not (tmp_path / "videos").exists()


def test_a_world_without_pixels_makes_no_video(tmp_path):
    with World(Countdown, 1, add_pixels=False, num_workers=0) as world:
        world.set_policy(ByNumber())
        with pytest.raises(ValueError, match="add_pixels=True and image_shape"):
            world.evaluate(1, video=tmp_path)
        assert world.infos == {}


def test_what_is_no_image_makes_no_video(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    world = color_world(1, image_transform=lambda frame: frame / 255)
    with world, pytest.raises(ValueError, match=r"found float64 \(32, 48, 3\)"):
        world.evaluate(1, video=tmp_path)


# Frames


def test_frames_have_three_channels():
    gray = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    assert as_frame(gray)[1, 2].tolist() == [5, 5, 5]
    four = np.arange(8, dtype=np.uint8).reshape(1, 2, 4)
    assert as_frame(four).tolist() == [[[0, 1, 2], [4, 5, 6]]]
    for wrong in (np.zeros((2, 2), np.uint8), np.zeros((2, 2, 2), np.uint8), np.zeros((2, 2, 3))):
        with pytest.raises(ValueError, match="found"):
            as_frame(wrong)


def test_frames_of_several_heights_are_put_side_by_side():
    both = side_by_side([np.full((2, 1, 3), 5, np.uint8), np.full((3, 2, 3), 9, np.uint8)])
    assert both[..., 0].tolist() == [[5, 9, 9], [5, 9, 9], [0, 9, 9]]


def test_even_sizes_repeat_the_last_row_and_column():
    frame = np.arange(9, dtype=np.uint8).reshape(3, 3, 1).repeat(3, axis=2)
    padded = even_sized(frame)[..., 0].tolist()
    assert padded == [[0, 1, 2, 2], [3, 4, 5, 5], [6, 7, 8, 8], [6, 7, 8, 8]]
    even = np.zeros((2, 4, 3), np.uint8)
    assert even_sized(even) is even


def test_infos_without_an_image_are_named():
    with pytest.raises(ValueError, match=r"'pixels' or 'pixels.<view>', found \['state'\]"):
        frame_of({"state": 3})


# The picture of all environments


def test_a_grid_is_nearly_square_with_gaps_between_its_frames():
    frames = [np.full((3, 5, 3), 50 + k, np.uint8) for k in range(5)]
    picture = grid(frames)
    # 3 columns and 2 rows; 2 pixels around each frame.
    assert picture.shape == (2 * (3 + 2) + 2, 3 * (5 + 2) + 2, 3)
    for k in range(5):
        top, left = 2 + k // 3 * 5, 2 + k % 3 * 7
        assert (picture[top : top + 3, left : left + 5] == 50 + k).all()
        assert (picture[top - 2 : top, left] == 24).all()
    assert (picture[7:10, 16:21] == 24).all()


@both_kinds
def test_render_grid_shows_every_environment_as_it_is_now(tmp_path, num_workers):
    path = tmp_path / "new" / "grid.png"
    with color_world(4, num_workers, size=(8, 8)) as world:
        world.reset(seed=0, mask=[True, True, True, False])
        world.envs.envs[1].unwrapped.jump(3)
        picture = world.render_grid(path)
    assert picture.dtype == np.uint8
    # As rendered, not as resized for the policy; the last one was never reset.
    assert picture.shape == (2 * 34 + 2, 2 * 50 + 2, 3)
    assert picture[10, 10].tolist() == list(color_of(0, 0))
    assert picture[10, 60].tolist() == list(color_of(1, 3))
    assert picture[50, 10].tolist() == list(color_of(2, 0))
    assert picture[50, 60].tolist() == [24, 24, 24]
    with Image.open(path) as image:
        np.testing.assert_array_equal(np.asarray(image), picture)


def test_an_environment_that_fails_to_render_is_named():
    class Blind(Colors):
        def render(self):
            raise OSError("no light")

    with World(Blind, 2, add_pixels=False, num_workers=0) as world:
        world.reset(seed=0)
        with pytest.raises(EnvError, match="no light"):
            world.render_grid()


def test_a_picture_without_pillow_names_its_remedy(monkeypatch, tmp_path):
    with color_world(1) as world:
        world.reset(seed=0)
        monkeypatch.setitem(sys.modules, "PIL", None)
        with pytest.raises(ImportError, match=r'pip install "swm_async\[pixels\]"'):
            world.render_grid(tmp_path / "grid.png")
