"""Figures of workers and environments are those that a plain count gives."""

import math
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from conftest import NUM_ENVS, WORKER_COUNTS
from probe_env import Probe
from swm_async import EnvPool
from swm_async.backends.base import ShardRange
from swm_async.worker_stats import summed_up
from swm_workers import step_times
from swm_workers.protocol import WorkerStats
from swm_workers.step_times import SAMPLED_EVERY, StepTimes

ALL = [0] * NUM_ENVS


class Clock:
    """Time that passes only where somebody lets it."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Lasting(gymnasium.Env):
    """Step t of environment i lasts (t + 1) * 2**i seconds of a clock of its own process."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(9)

    def __init__(self, i):
        if not isinstance(getattr(step_times.time, "perf_counter", None), Clock):
            step_times.time = SimpleNamespace(perf_counter=Clock())
        self.clock = step_times.time.perf_counter
        self.i = i
        self.t = 0

    def reset(self, *, seed=None, options=None):
        self.clock.now += 1000.0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        self.clock.now += self.t * 2.0**self.i
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(step_times, "time", SimpleNamespace(perf_counter=clock))
    return clock


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_step_times_are_those_of_one_step_in_seventeen(num_workers, clock):
    with EnvPool(
        [lambda i=i: Lasting(i) for i in range(NUM_ENVS)], num_workers=num_workers
    ) as pool:
        unknown = pool.stats()
        assert np.isnan(unknown["step_mean_s"]).all()
        assert np.isnan(unknown["step_worst_s"]).all()
        pool.reset(seed=0)
        for _ in range(40):
            pool.step(ALL)
        pool.reset()
        stats = pool.stats()
    sampled = [t + 1 for t in range(40) if t % 17 == 0]
    for key, value in (("step_mean_s", np.mean(sampled)), ("step_worst_s", max(sampled))):
        assert (stats[key].dtype, stats[key].shape) == (np.float64, (NUM_ENVS,))
        assert stats[key].tolist() == [value * 2.0**i for i in range(NUM_ENVS)]


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_groups_that_take_turns_are_all_sampled(num_workers, clock):
    with EnvPool(
        [lambda i=i: Lasting(i) for i in range(NUM_ENVS)], num_workers=num_workers
    ) as pool:
        pool.reset(seed=0)
        for _ in range(SAMPLED_EVERY):
            for group in pool.groups(2):
                pool.step(ALL, mask=group)
        assert not np.isnan(pool.stats()["step_mean_s"]).any()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_steps_that_are_sampled_do_what_the_others_do_also_after_a_rebuild(num_workers):
    with EnvPool([Probe] * NUM_ENVS, num_workers=num_workers, on_failure="restart") as pool:
        pool.reset(seed=0)
        pool.envs[1].plan("step", "raise")
        with pytest.warns(UserWarning, match="built anew"):
            pool.step(ALL)
        pool.reset(mask=[False, True, False, False])
        for t in range(2 * SAMPLED_EVERY):
            counts = pool.step(ALL)[4]["count"].ravel().tolist()
            assert counts == [t + 2, t + 1, t + 2, t + 2]


def test_a_step_that_raises_is_not_among_the_times(clock):
    def step(action):
        clock.now += 5.0
        if action == "fail":
            raise RuntimeError("no")
        return action

    times = StepTimes(2)
    timed = times.timed(1, step)
    assert timed("a") == "a"
    with pytest.raises(RuntimeError, match="no"):
        timed("fail")
    assert times.mean_s()[1] == times.worst_s()[1] == 5.0
    assert math.isnan(times.mean_s()[0])


def test_figures_are_put_together_by_worker_and_environment():
    replies = [
        WorkerStats(7, 1.0, 3.0, (0.5, 0.25), (1.0, 2.0)),
        None,  # lost
        WorkerStats(4, 0.0, 0.0, (0.125,), (0.5,)),
    ]
    found = summed_up(replies, [ShardRange(0, 2), ShardRange(2, 4), ShardRange(4, 5)])
    nan = np.nan
    for key, expected in {
        "steps": [7, 0, 4],
        "busy_s": [1.0, 0.0, 0.0],
        "waiting_s": [3.0, 0.0, 0.0],
        "waiting_share": [0.75, nan, nan],
        "step_mean_s": [0.5, 0.25, nan, nan, 0.125],
        "step_worst_s": [1.0, 2.0, nan, nan, 0.5],
    }.items():
        np.testing.assert_array_equal(found[key], expected, err_msg=key, strict=False)
    assert found["steps"].dtype == np.int64


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_the_waiting_share_is_that_of_the_seconds(num_workers):
    with EnvPool([Probe] * NUM_ENVS, num_workers=num_workers) as pool:
        pool.reset(seed=0)
        pool.step(ALL)
        stats = pool.stats()
    assert stats["waiting_share"].shape == (max(1, num_workers),)
    total = stats["busy_s"] + stats["waiting_s"]
    np.testing.assert_allclose(stats["waiting_share"] * total, stats["waiting_s"], atol=1e-12)
    if num_workers == 0:
        assert stats["waiting_share"].tolist() == [0.0]


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_figures_of_busy_environments_wait_for_their_step_and_lose_nothing(num_workers):
    with EnvPool([Probe] * NUM_ENVS, num_workers=num_workers) as pool:
        pool.reset(seed=0)
        pool.send(ALL, mask=[True, False, True, True])
        assert pool.stats()["steps"].sum() == 3
        assert pool.busy.tolist() == [True, False, True, True]
        *_, infos, ready = pool.recv()
    assert ready.tolist() == [True, False, True, True]
    assert infos["count"].ravel().tolist() == [1, 0, 1, 1]
