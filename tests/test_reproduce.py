"""A failure tells how it can be repeated, and leaves a file that does so where asked to."""

import pickle
import re

import gymnasium
import numpy as np
import pytest

from probe_env import Probe
from swm_async import EnvError, EnvPool, WorkerDied
from swm_async.reproduce import load_recording, play


class Fragile(gymnasium.Env):
    """Adds up its actions from a start drawn by its seed; breaks when the sum passes a limit."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.limit = (options or {}).get("limit", np.inf)
        self.total = self.np_random.uniform()
        return np.array([self.total]), {}

    def step(self, action):
        self.total += action.sum()
        if self.total > self.limit:
            raise OverflowError(repr(float(self.total)))
        return np.array([self.total]), self.total, False, False, {}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_text_names_seed_step_and_options(num_workers):
    with EnvPool([Fragile] * 3, num_workers=num_workers) as pool:
        pool.reset(seed=40, options={"limit": 4.0})
        pool.step(np.ones((3, 2)))
        with pytest.raises(EnvError) as caught:
            pool.step(np.ones((3, 2)), mask=[False, False, True])
    error = caught.value
    assert (error.env_index, error.seed, error.episode_step) == (2, 42, 2)
    assert "EnvPool([env_fns[2]], num_workers=0)" in str(error)
    assert "reset(seed=42, options={'limit': 4.0})" in str(error)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_recorded_failure_is_repeated_from_its_file(num_workers, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)

    def step_on(pool):
        while True:
            pool.step(rng.uniform(0, 1, (3, 2)))

    with EnvPool([Fragile] * 3, num_workers=num_workers, record_actions=True) as pool:
        pool.reset(seed=1)
        pool.step(np.ones((3, 2)))
        pool.reset(seed=9, options=[None, {"limit": 4.0}, None])
        with pytest.raises(EnvError, match="swm-async replay") as caught:
            step_on(pool)
    (file,) = tmp_path.iterdir()
    assert re.search(r"swm-async replay (\S+)", str(caught.value))[1] == str(file)
    recording = load_recording(file)
    assert (recording.env_index, recording.seed, recording.options) == (1, 10, {"limit": 4.0})
    assert len(recording.actions) == caught.value.episode_step
    with pytest.raises(OverflowError) as again:
        play(recording)
    assert str(again.value) == caught.value.failures[0].message


def test_a_death_is_recorded_for_each_environment_that_took_part(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    pool = EnvPool([Probe] * 4, num_workers=2, record_actions=True)
    pool.reset(seed=0)
    pool.step([1, 2, 3, 4])
    pool.envs[3].plan("step", "exit")
    with pytest.raises(WorkerDied, match="swm-async replay"):
        pool.step([5, 6, 7, 8], mask=[True, False, False, True])
    (file,) = tmp_path.iterdir()
    recording = load_recording(file)
    assert recording.env_index == 3
    assert [int(action) for action in recording.actions] == [4, 8]
    assert play(recording) == [1.0, 1.0]


def test_without_failures_no_file_is_written(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with EnvPool([Probe], num_workers=1, record_actions=True) as pool:
        pool.reset(seed=0)
        pool.step([0])
    assert list(tmp_path.iterdir()) == []


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "other.pkl"
    path.write_bytes(pickle.dumps({"env_index": 3}))
    with pytest.raises(ValueError, match="is not a recording"):
        load_recording(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is not a recording"):
        load_recording(path)
