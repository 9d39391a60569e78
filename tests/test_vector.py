"""VectorEnv gives what SyncVectorEnv gives, value for value, whatever the worker count."""

import multiprocessing
import os
import tempfile
from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
    ResetNeeded,
)
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from conftest import WORKER_COUNTS
from probe_env import Probe
from swm_async import EnvError, VectorEnv, WorkerDied, make_vec

N = 4
MODES = list(AutoresetMode)


class Countdown(gymnasium.Env):
    """Episodes of a length drawn by the seed; infos of many kinds, now there and now not."""

    observation_space = spaces.Dict(
        {"left": spaces.Box(0, 99, (1,), np.int64), "parts": spaces.Tuple([spaces.Discrete(9)])}
    )
    action_space = spaces.Tuple([spaces.Discrete(5), spaces.Box(-1, 1, (2,), np.float32)])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 6)) + (options or {}).get("longer", 0)
        self.total = 0.0
        return self._observe(), {"begun": True, "options": None if options is None else options}

    def step(self, action):
        self.left -= 1
        self.total += float(action[1].sum()) + int(action[0])
        info = {"total": self.total, "count": self.left, "small": np.float32(self.left)}
        if self.left % 2:
            info["odd"] = {"nested": np.arange(3) * self.left, "text": f"left {self.left}"}
        if self.left % 3 == 0:
            info["flag"] = np.bool_(True)
        return self._observe(), self.total, self.left <= 0, self.left == -1, info

    def _observe(self):
        return {"left": np.array([max(self.left, 0)]), "parts": (max(self.left, 0) % 9,)}


class Doubling(gymnasium.Env):
    """Observes in another dtype than its space's, and ends by truncation."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        return self.place.copy(), {}

    def step(self, action):
        self.place = 2 * self.place + action
        return self.place.copy(), np.float64(self.place[0]), False, abs(self.place[0]) > 50, {}


ENVIRONMENTS = {
    "CartPole": lambda: gymnasium.make("CartPole-v1", max_episode_steps=15),
    "Countdown": Countdown,
    "Doubling": Doubling,
}


def assert_same(found, expected, where=""):
    """Equal in structure, type, dtype, shape and value."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        assert list(found) == list(expected), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, tuple):
        assert isinstance(found, tuple), where
        for k, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}[{k}]")
    elif isinstance(expected, np.ndarray) and expected.dtype == object:
        assert found.dtype == object, where
        for k, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}[{k}]")
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype, where
        np.testing.assert_array_equal(found, expected, err_msg=where)
    else:
        assert type(found) is type(expected), where
        assert found == expected, where


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_any_program_gives_what_sync_vector_env_gives(name, mode, num_workers):
    factory = ENVIRONMENTS[name]
    ours = VectorEnv([factory] * N, num_workers=num_workers, autoreset_mode=mode)
    theirs = SyncVectorEnv([factory] * N, autoreset_mode=mode)

    @given(st.integers(0, 10**6), st.integers(5, 25), st.sampled_from([None, {}, {"longer": 2}]))
    def run(seed, steps, options):
        assert_same(
            ours.reset(seed=seed, options=options), theirs.reset(seed=seed, options=options)
        )
        theirs.action_space.seed(seed)
        ended = np.zeros(N, bool)
        for _ in range(steps):
            if mode is AutoresetMode.DISABLED and ended.any():
                mine = {**(options or {}), "reset_mask": ended.copy()}
                kept = dict(mine)
                result = ours.reset(options=mine)
                assert list(mine) == list(kept)
                assert_same(result, theirs.reset(options=kept))
            actions = theirs.action_space.sample()
            result = ours.step(actions)
            assert_same(result, theirs.step(actions))
            ended = result[2] | result[3]

    with ours, closing(theirs):
        run()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_spaces_that_cannot_be_batched_come_as_tuples(num_workers):
    class Talking(Probe):
        observation_space = spaces.Dict({"word": spaces.Text(5), "n": spaces.Discrete(100)})

        def reset(self, *, seed=None, options=None):
            super().reset()
            return {"word": "abc", "n": 7}, {}

        def step(self, action):
            _, reward, _, truncated, info = super().step(action)
            return {"word": "x" * self.count, "n": 7}, reward, self.count == 2, truncated, info

    ours = VectorEnv([Talking] * 2, num_workers=num_workers, autoreset_mode="SameStep")
    theirs = SyncVectorEnv([Talking] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with ours, closing(theirs):
        assert_same(ours.reset(seed=0), theirs.reset(seed=0))
        for _ in range(5):
            actions = np.zeros(2, np.int64)
            assert_same(ours.step(actions), theirs.step(actions))


def test_observation_modes_follow_sync_vector_env():
    class Wide(Probe):
        observation_space = spaces.Box(-9, 9, (1,), np.float32)

    with pytest.raises(RuntimeError, match="observation_space"):
        VectorEnv([Probe, Wide], num_workers=2)
    theirs = SyncVectorEnv([Probe, Wide], observation_mode="different")
    with (
        closing(theirs),
        VectorEnv([Probe, Wide], num_workers=2, observation_mode="different") as ours,
    ):
        assert ours.observation_space == theirs.observation_space
        assert ours.single_observation_space == theirs.single_observation_space
    pair = (spaces.Box(-9, 9, (2, 1), np.float32), Wide.observation_space)
    with VectorEnv([Probe, Wide], num_workers=2, observation_mode=pair) as ours:
        assert ours.observation_space is pair[0]
        assert ours.single_observation_space is pair[1]
        assert ours.reset(seed=0)[0].shape == (2, 1)
    with pytest.raises(ValueError, match="observation_mode"):
        VectorEnv([Probe], num_workers=0, observation_mode="other")


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_a_mask_steps_only_what_it_selects(num_workers):
    with VectorEnv([ENVIRONMENTS["CartPole"]] * N, num_workers=num_workers) as env:
        before, _ = env.reset(seed=0)
        mask = np.array([True, False, False, True])
        observations, rewards, *_ = env.step(np.ones(N, np.int64), mask=mask)
        assert rewards.tolist() == [1, 0, 0, 1]
        assert rewards.dtype == np.float64
        assert ((observations == before).all(axis=1) == ~mask).all()


def test_copy_decides_whether_observations_are_live():
    for copy in (True, False):
        with VectorEnv([ENVIRONMENTS["CartPole"]] * 2, num_workers=2, copy=copy) as env:
            first, _ = env.reset(seed=0)
            kept = first.copy()
            second = env.step(np.ones(2, np.int64))[0]
            assert (first is second) == (not copy)
            assert np.array_equal(first, kept) == copy


@pytest.mark.parametrize(
    "value",
    [[True] * N, np.ones(N), np.ones(N + 1, bool), np.zeros(N, bool)],
    ids=["list", "floats", "too long", "empty"],
)
def test_reset_masks_are_checked_as_sync_vector_env_checks_them(value):
    theirs = SyncVectorEnv([Probe] * N)
    with closing(theirs), VectorEnv([Probe] * N, num_workers=0) as ours:
        with pytest.raises((TypeError, ValueError)) as expected:
            theirs.reset(options={"reset_mask": value})
        with pytest.raises(expected.type, match="reset_mask"):
            ours.reset(options={"reset_mask": value})


def test_with_resets_disabled_a_finished_environment_is_not_stepped():
    with VectorEnv([Countdown] * 2, num_workers=2, autoreset_mode="Disabled") as env:
        env.reset(seed=0)
        actions = env.action_space.sample()
        while not (ended := np.logical_or(*env.step(actions)[2:4])).any():
            pass
        with pytest.raises(ResetNeeded, match="reset_mask"):
            env.step(actions)
        env.step(actions, mask=~ended)


# What Gymnasium promises for the two halves of a call, against both classes.


def async_of(factories, **kwargs):
    return AsyncVectorEnv(factories, context="fork", **kwargs)


def ours_of(factories, **kwargs):
    return VectorEnv(factories, num_workers=2, **kwargs)


@pytest.fixture(params=[async_of, ours_of], ids=["AsyncVectorEnv", "VectorEnv"])
def make(request):
    return request.param


CARTPOLES = [lambda: gymnasium.make("CartPole-v1")] * 2
ACTIONS = np.ones(2, np.int64)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_halves_give_what_the_whole_gives(make):
    with closing(make(CARTPOLES)) as env, closing(SyncVectorEnv(CARTPOLES)) as sync:
        env.reset_async(seed=3)
        assert_same(env.reset_wait(), sync.reset(seed=3))
        for _ in range(3):
            env.step_async(ACTIONS)
            assert_same(env.step_wait(timeout=30), sync.step(ACTIONS))
        env.call_async("get_wrapper_attr", "gravity")
        assert env.call_wait() == (9.8, 9.8)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("pending", ["reset", "step", "call"])
@pytest.mark.parametrize("second", ["reset", "step", "call", "set_attr"])
def test_a_second_call_before_the_first_was_waited_for_is_refused(make, pending, second):
    calls = {
        "reset": lambda env: env.reset_async(),
        "step": lambda env: env.step_async(ACTIONS),
        "call": lambda env: env.call_async("get_wrapper_attr", "gravity"),
        "set_attr": lambda env: env.set_attr("gravity", 9.8),
    }
    with closing(make(CARTPOLES)) as env:
        env.reset(seed=0)
        calls[pending](env)
        with pytest.raises(AlreadyPendingCallError) as caught:
            calls[second](env)
        assert caught.value.name == pending
        getattr(env, f"{pending}_wait")()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", ["reset", "step", "call"])
def test_waiting_for_nothing_is_refused(make, name):
    with closing(make(CARTPOLES)) as env:
        env.reset(seed=0)
        with pytest.raises(NoAsyncCallError) as caught:
            getattr(env, f"{name}_wait")()
        assert caught.value.name == name


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_closed_environment_says_so(make):
    env = make(CARTPOLES)
    env.close()
    env.close()
    for call in (env.reset, lambda: env.step(ACTIONS), lambda: env.call("render")):
        with pytest.raises(ClosedEnvironmentError):
            call()


def test_a_wait_that_times_out_loses_nothing():
    # Gymnasium's class forgets the call here and takes its late reply for the next one's.
    class Slow(Probe):
        def step(self, action):
            if action == 1:
                with open(self.path) as pipe:
                    pipe.read()
            return super().step(action)

        def open_at(self, path):
            self.path = path

    with tempfile.TemporaryDirectory() as folder, VectorEnv([Slow] * 2, num_workers=2) as env:
        gate = os.path.join(folder, "gate")
        os.mkfifo(gate)
        env.reset(seed=0)
        env.call("open_at", gate)
        env.step_async(np.array([1, 0]))
        for _ in range(3):
            with pytest.raises(multiprocessing.TimeoutError):
                env.step_wait(timeout=0)
        with open(gate, "w") as pipe:
            pipe.write("")
        assert env.step_wait()[4]["count"].tolist() == [1, 1]


def test_failures_are_the_errors_of_the_pool():
    env = VectorEnv([Probe] * 2, num_workers=2)
    with env:
        env.reset(seed=0)
        env.envs[1].plan("step", "raise")
        with pytest.raises(EnvError, match="environment 1") as caught:
            env.step(ACTIONS)
        assert caught.value.result[1].tolist() == [1, 0]
        with pytest.raises(ResetNeeded):
            env.step(ACTIONS)
        env.envs[1].plan("step", "kill")
        env.reset(seed=0)
        with pytest.raises(WorkerDied):
            env.step(ACTIONS)


# Around it.


def test_make_vec_makes_what_gymnasium_makes():
    env = make_vec(
        "CartPole-v1",
        3,
        num_workers=2,
        autoreset_mode=AutoresetMode.SAME_STEP,
        max_episode_steps=7,
        render_mode="rgb_array",
        wrappers=[gymnasium.wrappers.TimeAwareObservation],
    )
    with env:
        assert env.spec.id == "CartPole-v1"
        assert (env.num_envs, env.num_workers, env.render_mode) == (3, 2, "rgb_array")
        assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert env.single_observation_space.shape == (5,)
        env.reset(seed=0)
        assert [spec.max_episode_steps for spec in env.get_attr("spec")] == [7, 7, 7]


def test_attributes_of_all_environments_are_tuples():
    with VectorEnv(CARTPOLES, num_workers=2) as env:
        env.reset(seed=5)
        assert env.get_attr("gravity") == (9.8, 9.8)
        env.set_attr("gravity", [1.0, 2.0])
        assert env.get_attr("gravity") == (1.0, 2.0)
        assert env.np_random_seed == (5, 6)
        expected = [np.random.Generator(np.random.PCG64(s)).bit_generator.state for s in (5, 6)]
        assert len({str(r.bit_generator.state) for r in env.np_random}) == len(expected)
        with pytest.raises(ValueError, match="2 values"):
            env.set_attr("gravity", [1.0])


@pytest.mark.parametrize(
    "wrap",
    [
        gymnasium.wrappers.vector.RecordEpisodeStatistics,
        gymnasium.wrappers.vector.NormalizeObservation,
        gymnasium.wrappers.vector.DictInfoToList,
        lambda env: gymnasium.wrappers.vector.ClipReward(env, 0, 0.5),
        gymnasium.wrappers.vector.NormalizeReward,
    ],
)
def test_vector_wrappers_of_gymnasium_work_on_it(wrap):
    factory = ENVIRONMENTS["CartPole"]
    ours, theirs = wrap(VectorEnv([factory] * N, num_workers=2)), wrap(SyncVectorEnv([factory] * N))
    with closing(ours), closing(theirs):
        found, expected = ours.reset(seed=1), theirs.reset(seed=1)
        np.testing.assert_array_equal(found[0], expected[0])
        for _ in range(40):
            actions = theirs.action_space.sample()
            found, expected = ours.step(actions), theirs.step(actions)
            for one, other in zip(found[:4], expected[:4], strict=True):
                np.testing.assert_array_equal(one, other)
