"""`collect` writes what a plain loop over the environments reports, in the order of the starts."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import swm_async
from fake_pool import ByNumber as ByCountdown
from fake_pool import Countdown, FakePool, play_alone
from recording_envs import ByNumber, Moody, assert_same_columns, expected, play
from swm_async import EnvError, EnvPool, NoisyPolicy, PointGoalExpert, RandomPolicy, World, rollout
from swm_async.data import Writer, load_dataset
from swm_async.recording import Recorder

POINT_GOAL = "swm_async/PointGoal-v0"
PATHS = {"npz": "episodes", "hdf5": "episodes.h5"}

has_h5py = importlib.util.find_spec("h5py") is not None
needs_h5py = pytest.mark.skipif(not has_h5py, reason="h5py is not installed")
both_formats = pytest.mark.parametrize("format", ["npz", pytest.param("hdf5", marks=needs_h5py)])
# Which episode runs beside which one, and where, is different in each of these.
packings = pytest.mark.parametrize(
    ("num_envs", "num_workers"), [(1, 0), (3, 0), (8, 0), (3, 2), (8, 2)]
)
# Keys that turn into lists are what these tests are about.
turns_into_lists = pytest.mark.filterwarnings("ignore:info .* becomes a list:UserWarning")


class Kept:
    """A writer that keeps the episodes it is given."""

    def __init__(self, takes_episode_data: bool = False) -> None:
        self.episodes: list[dict] = []
        self.closed = False
        self.takes_episode_data = takes_episode_data

    def write_episode(self, episode):
        self.episodes.append(episode)

    def close(self):
        self.closed = True


def moody_world(num_envs=3, num_workers=0, env=Moody):
    world = World(env, num_envs, add_pixels=False, num_workers=num_workers)
    world.set_policy(ByNumber())
    return world


def collect(world: World, path: Path, episodes: int, seed: int = 0, **arguments):
    return world.collect(path, episodes, seed, progress=False, **arguments)


def read(path: Path) -> list[dict[str, np.ndarray]]:
    with load_dataset(path) as dataset:
        return [dataset.load_episode(k) for k in range(len(dataset))]


# What is recorded.


@turns_into_lists
@both_formats
@packings
def test_a_file_holds_what_a_plain_loop_reports(format, num_envs, num_workers, tmp_path):
    path = tmp_path / PATHS[format]
    with moody_world(num_envs, num_workers) as world:
        result = collect(world, path, 14)
    alone = [play(seed) for seed in range(14)]
    found = read(path)
    assert len(found) == 14
    for episode, rows in zip(found, alone, strict=True):
        assert_same_columns(episode, expected(rows))
    assert result["path"] == path
    assert result["seeds"].tolist() == list(range(14))
    assert result["episode_lengths"].tolist() == [len(rows) - 1 for rows in alone]


@turns_into_lists
def test_npz_files_are_equal_to_the_byte_whatever_runs_beside_them(tmp_path):
    for number, (num_envs, num_workers) in enumerate([(1, 0), (3, 0), (8, 0), (3, 2), (8, 2)]):
        with moody_world(num_envs, num_workers) as world:
            collect(world, tmp_path / str(number), 14)
    names = sorted(file.name for file in (tmp_path / "0").iterdir())
    assert len(names) == 14
    for number in range(1, 5):
        assert sorted(file.name for file in (tmp_path / str(number)).iterdir()) == names
        for name in names:
            first, other = ((tmp_path / k / name).read_bytes() for k in ("0", str(number)))
            assert first == other, (number, name)


@turns_into_lists
def test_what_the_pool_has_seen_before_leaves_no_trace(tmp_path):
    with moody_world(3) as world:
        world.evaluate(20, seed=50)  # by now its arrays are wide and some are lists
        collect(world, tmp_path / "episodes", 2, seed=1, options={"length": 3})
    first, second = read(tmp_path / "episodes")
    assert first["ragged"].tolist() == ["[0, 0]", "[1, 1]", "[2, 2]", "[3, 3]"]
    assert second["ragged"].tolist() == ["[0, 0, 0]", "[1, 1, 1]", "[2, 2, 2]", "[3, 3, 3]"]
    with moody_world(1) as world:
        world.evaluate(20, seed=50)
        collect(world, tmp_path / "single", 1, seed=1, options={"length": 3})
    (alone,) = read(tmp_path / "single")
    assert alone["ragged"].dtype == np.float32
    assert alone["ragged"].tolist() == [[t, t] for t in range(4)]


@both_formats
def test_an_image_is_recorded_as_rendered(format, tmp_path):
    path = tmp_path / PATHS[format]
    with World(POINT_GOAL, 3, (64, 64), num_workers=2, render_size=(64, 64)) as world:
        world.set_policy(PointGoalExpert())
        collect(world, path, 4, seed=7, options={"variation": ["all"]})
    found = read(path)
    env = gymnasium.make(POINT_GOAL, render_mode="rgb_array", render_size=(64, 64))
    for k, episode in enumerate(found):
        _, info = env.reset(seed=7 + k, options={"variation": ["all"]})
        frames, goals = [env.render()], [info["goal"]]
        for action in episode["action"][:-1]:
            env.step(action)
            frames.append(env.render())
            goals.append(info["goal"])
        np.testing.assert_array_equal(episode["pixels"], frames)
        np.testing.assert_array_equal(episode["goal"], goals)
        assert np.isnan(episode["action"][-1]).all()
        assert episode["terminated"].tolist() == [False] * (len(frames) - 1) + [True]


class Picks(gymnasium.Env):
    """Observes the whole number that it was given."""

    observation_space = gymnasium.spaces.Discrete(9)
    action_space = gymnasium.spaces.Discrete(9)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        return int(action), 0.0, self.steps == 5, False, {}


def test_a_row_holds_the_action_taken_there_and_the_last_the_lowest_integer(tmp_path):
    with World(Picks, 2, add_pixels=False, num_workers=0) as world:
        world.set_policy(RandomPolicy(seed=3))
        collect(world, tmp_path / "episodes", 3)
    for episode in read(tmp_path / "episodes"):
        assert episode["action"].dtype == np.int64
        assert episode["action"][:-1].tolist() == episode["observation"][1:].tolist()
        assert episode["action"][-1] == -(2**63)


@turns_into_lists
@both_formats
def test_what_belongs_to_a_whole_episode_is_read_for_itself(format, tmp_path):
    path = tmp_path / PATHS[format]
    with moody_world(3, 2) as world:
        collect(world, path, 5, seed=4)
    with load_dataset(path) as dataset:
        assert dataset.episode_column_names == ["name", "seed"]
        assert "seed" not in dataset.column_names
        for k in range(5):
            data = dataset.get_episode_data(k)
            assert data == {"name": f"episode of {4 + k}", "seed": 4 + k}


# Order, and what a writer gets.


@pytest.mark.parametrize("num_envs", [1, 2, 5])
def test_a_writer_gets_the_episodes_in_the_order_of_their_starts(num_envs):
    lengths = [6, 1, 2, 5, 1, 1, 3]
    writer = Kept()
    with World(Countdown, num_envs, add_pixels=False, num_workers=0) as world:
        world.set_policy(ByCountdown())
        options = [{"length": length} for length in lengths]
        result = world.collect(episodes=7, seed=30, options=options, writer=writer, progress=False)
    assert [len(episode["left"]) - 1 for episode in writer.episodes] == lengths
    assert [episode["left"][0] for episode in writer.episodes] == lengths
    assert result["path"] is None
    assert result["episode_lengths"].tolist() == lengths
    assert not writer.closed


@turns_into_lists
@pytest.mark.parametrize("takes", [True, False])
def test_a_writer_gets_episode_data_if_it_says_that_it_takes_them(takes):
    writer = Kept(takes)
    taken: Writer = writer
    with moody_world(2) as world:
        world.collect(episodes=2, seed=8, writer=taken, progress=False)
    found = [episode.get("_episode_data") for episode in writer.episodes]
    data = [{"seed": seed, "name": f"episode of {seed}"} for seed in (8, 9)]
    assert found == (data if takes else [None, None])


def test_environments_without_episode_data_have_none(tmp_path):
    with World(Countdown, 2, add_pixels=False, num_workers=0) as world:
        world.set_policy(ByCountdown())
        collect(world, tmp_path / "episodes", 2)
    with load_dataset(tmp_path / "episodes") as dataset:
        assert dataset.episode_column_names == []
        assert dataset.get_episode_data(1) == {}


def test_an_episode_that_was_lost_is_recorded_in_its_second_attempt():
    pool = FakePool([Countdown() for _ in range(3)])
    pool.lost_at_step = {1: [0], 3: [1, 2]}
    episodes = []
    recorder = Recorder(3, 6, episodes.append)
    lengths = [4, 3, 6, 2, 5, 1]
    options = [{"length": length} for length in lengths]
    written = [
        recorder.add(step)
        for step in rollout(pool, ByCountdown().get_action, episodes=6, seed=11, options=options)
    ]
    assert sum(written) == 6
    for k, episode in enumerate(episodes):
        assert episode["number"].tolist() == play_alone(11 + k, lengths[k])["numbers"]
        assert episode["left"].tolist() == list(range(lengths[k], -1, -1))


# Failures.


@turns_into_lists
@both_formats
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_leaves_the_episodes_before_it(format, num_workers, tmp_path):
    path = tmp_path / PATHS[format]
    env = functools.partial(Moody, (4, 2))
    with moody_world(2, num_workers, env) as world, pytest.raises(EnvError, match="out of luck"):
        collect(world, path, 9, options={"length": 3})
    found = read(path)
    assert len(found) == 4
    for seed, episode in enumerate(found):
        assert episode["number"].tolist() == [row["number"] for row in play(seed, 3)]


class Interrupted(ByNumber):
    """Acts a few times, then the user loses patience."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def get_action(self, infos):
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt
        return super().get_action(infos)


@turns_into_lists
@both_formats
def test_an_interrupt_leaves_the_episodes_before_it_and_more_can_follow(format, tmp_path):
    path = tmp_path / PATHS[format]
    with moody_world(2) as world:
        world.set_policy(Interrupted(7))
        with pytest.raises(KeyboardInterrupt):
            collect(world, path, 9, options={"length": 3})
        assert len(read(path)) == 4
        world.set_policy(ByNumber())
        collect(world, path, 10, seed=4)
    found = read(path)
    wanted = [play(seed, 3 if seed < 4 else None) for seed in range(14)]
    for episode, rows in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(episode["number"], [row["number"] for row in rows])
        np.testing.assert_array_equal(episode["late"], expected(rows)["late"])
        np.testing.assert_array_equal(episode["widening"], expected(rows)["widening"])


@both_formats
def test_a_killed_process_leaves_every_episode_that_was_complete(format, tmp_path):
    script = """
        import os, signal, sys, warnings
        from recording_envs import ByNumber, Moody
        from swm_async import World

        class Deadly(Moody):
            def step(self, action):
                if (self.seed, self.steps) == (6, 1):
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().step(action)

        warnings.simplefilter("ignore")
        with World(Deadly, 2, add_pixels=False, num_workers=0) as world:
            world.set_policy(ByNumber())
            world.collect(sys.argv[1], 20, 0, {"length": 2}, progress=False)
    """
    path = tmp_path / PATHS[format]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    killed = subprocess.run(command, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    found = read(path)
    assert len(found) == 6
    for seed, episode in enumerate(found):
        assert episode["number"].tolist() == [row["number"] for row in play(seed, 2)]


class Strange(Countdown):
    def _info(self):
        return {**super()._info(), "thing": object}


def test_a_value_without_a_form_is_an_error_that_names_it(tmp_path):
    with World(Strange, 2, add_pixels=False, num_workers=0) as world:
        world.set_policy(ByCountdown())
        with pytest.raises(TypeError, match="info 'thing' cannot be recorded: a value of type"):
            collect(world, tmp_path / "episodes", 2)


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, ValueError, "exactly one of path and writer, found neither"),
        ({"path": "e", "writer": Kept()}, ValueError, "found both"),
        ({"path": "e", "mode": "a"}, ValueError, "mode must be one of"),
        ({"path": "e", "format": "csv"}, ValueError, "format must be one of .*'npz', 'hdf5'"),
        ({"path": "e.csv"}, ValueError, "no format has the suffix '.csv'"),
        ({"writer": print}, TypeError, "must have write_episode"),
        ({"writer": Kept(), "format": "npz"}, ValueError, "format belongs to a path"),
        ({"path": "e", "episodes": 0}, ValueError, "episodes must be an integer >= 1"),
        ({"path": "e", "seed": -1}, ValueError, "seed must be an integer"),
        ({"path": "e", "episodes": 2, "options": [{}]}, ValueError, "found 1 for 2 episodes"),
    ],
)
def test_wrong_arguments_move_nothing(arguments, error, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with moody_world(2) as world:
        with pytest.raises(error, match=text):
            world.collect(**arguments, progress=False)
        assert world.infos == {}
    assert list(tmp_path.iterdir()) == []


def test_without_a_policy_nothing_is_written(tmp_path):
    world = World(Countdown, 2, add_pixels=False, num_workers=0)
    with world, pytest.raises(RuntimeError, match="no policy"):
        collect(world, tmp_path / "episodes", 2)
    assert list(tmp_path.iterdir()) == []


def test_without_a_number_each_environment_records_one_episode_and_a_seed_is_drawn(tmp_path):
    with World(Countdown, 3, add_pixels=False, num_workers=0) as world:
        world.set_policy(ByCountdown())
        seeds = world.collect(tmp_path / "episodes", progress=False)["seeds"]
    for seed, episode in zip(seeds.tolist(), read(tmp_path / "episodes"), strict=True):
        assert episode["number"][0] == play_alone(seed)["numbers"][0]


def test_progress_is_shown_unless_it_is_not_wanted(tmp_path, capsys):
    with World(Countdown, 2, add_pixels=False, num_workers=0) as world:
        world.set_policy(ByCountdown())
        world.collect(tmp_path / "shown", 4)
        assert "4/4" in capsys.readouterr().err
        world.collect(tmp_path / "silent", 4, progress=False)
        assert capsys.readouterr().err == ""


def test_a_pool_of_bare_environments_can_be_recorded(tmp_path):
    with World.from_pool(EnvPool([Countdown] * 2, num_workers=0)) as world:
        world.set_policy(ByCountdown())
        collect(world, tmp_path / "episodes", 3, seed=5)
    env = Countdown()
    for k, episode in enumerate(read(tmp_path / "episodes")):
        _, info = env.reset(seed=5 + k)
        numbers = [info["number"]]
        while env.left:
            *_, info = env.step(np.array([info["number"], info["number"] - 1.0]))
            numbers.append(info["number"])
        assert episode["number"].tolist() == numbers
        assert sorted(episode) == ["left", "number"]


# Evaluation from what was recorded.


class Seen(PointGoalExpert):
    """Keeps the states that it saw at the first step."""

    first = None

    def get_action(self, infos):
        if self.first is None:
            self.first = infos["state"][:, 0].copy()
        return super().get_action(infos)


@both_formats
def test_an_expert_reaches_recorded_goals_from_recorded_states(format, tmp_path):
    path = tmp_path / PATHS[format]
    with World(POINT_GOAL, 4, add_pixels=False, num_workers=2) as world:
        world.set_policy(NoisyPolicy(PointGoalExpert(), 0.4, seed=1))
        collect(world, path, 20, seed=100, options={"variation": ["all"]})
        policy = Seen()
        world.set_policy(policy)
        with swm_async.load_dataset(path) as dataset:
            chosen = np.flatnonzero(dataset.lengths > 12)[:8]
            assert len(chosen) == 8
            starts = np.arange(8) % 3
            results = world.evaluate(
                dataset=dataset,
                episodes_idx=chosen,
                start_steps=starts,
                goal_offset=9,
                eval_budget=40,
            )
            states = [
                dataset.load_episode(k)["state"][t] for k, t in zip(chosen, starts, strict=True)
            ]
    np.testing.assert_array_equal(policy.first, states[:4])
    assert results["success_rate"] >= 95
