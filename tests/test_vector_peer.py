"""What Gymnasium promises of AsyncVectorEnv, kept by its own class and by VectorEnv.

Each test runs against both. Where VectorEnv differs on purpose, a test tells how and why.
"""

from __future__ import annotations

import multiprocessing
import os
from contextlib import closing
from typing import Any

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

from probe_env import Probe
from same import assert_same
from swm_async import EnvError, VectorEnv
from vector_envs import OddInfos, Walk, cart_pole, limited_walk

# Gymnasium's class forks here, which is quick, and tells of failures by warnings.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning"),
]

N = 3
WALKS = [limited_walk] * N
STILL = np.zeros((N, 2), np.float32)


def theirs(env_fns: Any, **kwargs: Any) -> AsyncVectorEnv:
    env = AsyncVectorEnv.__new__(AsyncVectorEnv)
    try:
        env.__init__(env_fns, context="fork", **kwargs)
    except BaseException:
        if hasattr(env, "_state"):  # its workers run already, and nobody else will end them
            env.close(terminate=True)
        raise
    return env


def ours(env_fns: Any, **kwargs: Any) -> VectorEnv:
    return VectorEnv(env_fns, num_workers=min(2, len(env_fns)), **kwargs)


BOTH = pytest.mark.parametrize("make", [theirs, ours], ids=["AsyncVectorEnv", "VectorEnv"])


class Gate(Probe):
    """A step with the action 1 lasts until somebody opens the pipe at ``path``."""

    path = ""

    def step(self, action):
        if action == 1:
            with open(self.path) as pipe:
                pipe.read()
        return super().step(action)

    def open_at(self, path):
        self.path = path


# Construction.


@BOTH
def test_it_has_the_attributes_of_a_vector_env(make):
    with closing(make(WALKS, autoreset_mode=AutoresetMode.SAME_STEP)) as env:
        assert isinstance(env, gymnasium.vector.VectorEnv)
        assert env.num_envs == N
        assert env.single_observation_space == Walk.observation_space
        assert env.single_action_space == Walk.action_space
        assert env.action_space == spaces.Box(-1, 1, (N, 2), np.float32)
        assert env.observation_space["image"] == spaces.Box(0, 255, (N, 4, 4, 3), np.uint8)
        assert env.metadata == {**Walk.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        assert env.render_mode == "rgb_array"
        assert env.unwrapped is env
        assert env.spec is None
        assert not env.closed
        assert repr(env) == f"{type(env).__name__}(num_envs={N})"
    assert "autoreset_mode" not in Walk.metadata


@BOTH
def test_the_autoreset_mode_may_be_given_by_its_name(make):
    with closing(make(WALKS, autoreset_mode="SameStep")) as env:
        assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    with pytest.raises(ValueError, match="Sometimes"):
        make(WALKS, autoreset_mode="Sometimes")


class Wide(Probe):
    observation_space = spaces.Box(-9, 9, (1,), np.float32)


class Long(Probe):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)


class Handed(Probe):
    action_space = spaces.Discrete(3)


@BOTH
@pytest.mark.parametrize(
    ("other", "mode"),
    [(Wide, "same"), (Long, "different"), (Handed, "same"), (Handed, "different")],
)
def test_environments_with_other_spaces_are_refused(make, other, mode):
    # RuntimeError is documented, ValueError is what batching raises; VectorEnv's error is both.
    with pytest.raises((RuntimeError, ValueError), match=r"space|shape") as caught:
        make([Probe, other], observation_mode=mode)
    assert make is theirs or isinstance(caught.value, RuntimeError)


@BOTH
def test_observation_modes_tell_which_spaces_may_differ(make):
    pair = (spaces.Box(-9, 9, (2, 1), np.float32), Wide.observation_space)
    with closing(make([Probe, Wide], observation_mode="different")) as env:
        assert env.single_observation_space == Probe.observation_space
        np.testing.assert_array_equal(env.observation_space.high, [[1], [9]])
    with closing(make([Probe, Wide], observation_mode=pair)) as env:
        assert (env.observation_space, env.single_observation_space) == pair
    with pytest.raises(ValueError, match="observation_mode"):
        make([Probe], observation_mode="other")
    with pytest.raises(TypeError, match="observation_mode"):
        make([Probe], observation_mode=("a", "b"))


def test_arguments_about_processes_are_not_taken():
    # VectorEnv's workers are always fresh interpreters with shared memory that may have children;
    # how many of them run at once is num_workers.
    unknown = {
        "shared_memory": True,
        "context": "spawn",
        "daemon": False,
        "worker": None,
        "max_concurrency": 2,
    }
    for name, value in unknown.items():
        with pytest.raises(TypeError, match=name):
            VectorEnv([Probe], num_workers=0, **{name: value})


def test_spaces_without_a_fixed_size_need_no_other_setting():
    # AsyncVectorEnv can only take them without shared memory.
    class Talking(Probe):
        observation_space = spaces.Sequence(spaces.Discrete(3))

        def reset(self, *, seed=None, options=None):
            return (1, 2), {}

    class Custom(gymnasium.Space):
        pass

    class Strange(Probe):
        observation_space = Custom()

    with pytest.raises(ValueError, match="shared_memory"):
        theirs([Strange])
    with closing(ours([Strange])) as env:
        observations, _ = env.reset()
        assert len(observations) == 1
    with closing(ours([Talking] * 2)) as env:
        assert env.reset()[0] == ((1, 2), (1, 2))


# Reset.


@BOTH
@pytest.mark.parametrize(
    ("seed", "seeds"), [(7, [7, 8, 9]), ([5, 5, 1], [5, 5, 1]), ([2, None, 2], [2, None, 2])]
)
def test_reset_seeds_each_environment(make, seed, seeds):
    with closing(make(WALKS)) as env:
        observations, infos = env.reset(seed=seed)
        assert observations in env.observation_space
        for i, own in enumerate(seeds):
            alone, info = limited_walk().reset(seed=own)
            if own is not None:
                np.testing.assert_array_equal(observations["vector"][i], alone["vector"])
                np.testing.assert_array_equal(infos["start"][i], info["start"])
        assert infos["_start"].tolist() == [True] * N
        assert infos["goal"].tolist() == ["the border"] * N


@BOTH
def test_seeds_of_another_number_are_refused(make):
    with closing(make(WALKS)) as env:
        with pytest.raises(ValueError, match="2"):
            env.reset(seed=[1, 2])
        env.reset(seed=[1, 2, 3])


@BOTH
def test_reset_hands_the_options_on(make):
    with closing(make(WALKS)) as env:
        plain, _ = env.reset(seed=0)
        moved, _ = env.reset(seed=0, options={"start": 1.0})
        np.testing.assert_allclose(moved["vector"], plain["vector"] + 1, rtol=1e-6)


@BOTH
def test_a_reset_mask_resets_only_what_it_selects(make):
    with closing(make(WALKS)) as env:
        env.reset(seed=0)
        before, *_ = env.step(STILL)
        mask = np.array([True, False, True])
        observations, infos = env.reset(seed=[4, 5, 6], options={"reset_mask": mask})
        assert infos["_start"].tolist() == mask.tolist()
        np.testing.assert_array_equal(observations["vector"][1], before["vector"][1])
        for i in (0, 2):
            alone, _ = limited_walk().reset(seed=4 + i)
            np.testing.assert_array_equal(observations["vector"][i], alone["vector"])
        assert env.step(STILL)[4]["count"].tolist() == [1, 2, 1]


@BOTH
@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True] * N, TypeError),
        (np.ones(N), TypeError),
        (np.ones(N + 1, bool), ValueError),
        (np.zeros(N, bool), ValueError),
    ],
    ids=["list", "floats", "too long", "empty"],
)
def test_wrong_reset_masks_are_refused(make, mask, error):
    with closing(make(WALKS)) as env:
        env.reset(seed=0)
        with pytest.raises(error, match="reset_mask"):
            env.reset(options={"reset_mask": mask})


@BOTH
def test_the_options_of_the_caller(make):
    options = {"reset_mask": np.ones(N, bool), "start": 0.0}
    with closing(make(WALKS)) as env:
        env.reset(seed=0, options=options)
    # AsyncVectorEnv takes the mask out of the caller's dict; VectorEnv changes no argument.
    assert ("reset_mask" in options) == (make is ours)


# Step.


@BOTH
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_step_gives_the_batch_of_what_the_environments_give(make, mode):
    alone = [limited_walk() for _ in range(N)]
    with closing(make(WALKS, autoreset_mode=mode)) as env:
        env.reset(seed=3)
        for i, each in enumerate(alone):
            each.reset(seed=3 + i)
        actions = np.linspace(-0.3, 0.3, 2 * N, dtype=np.float32).reshape(N, 2)
        for _ in range(2):  # so early, no episode ends
            observations, rewards, terminations, truncations, infos = env.step(actions)
            expected = [each.step(action) for each, action in zip(alone, actions, strict=True)]
            assert [rewards.dtype, terminations.dtype] == [np.float64, np.bool_]
            assert truncations.dtype == np.bool_
            assert rewards.tolist() == [step[1] for step in expected]
            assert terminations.tolist() == [step[2] for step in expected]
            assert truncations.tolist() == [step[3] for step in expected]
            assert not (terminations | truncations).any()
            for i, (observation, *_, info) in enumerate(expected):
                np.testing.assert_array_equal(observations["image"][i], observation["image"])
                assert infos["distance"][i] == info["distance"]


@BOTH
def test_a_finished_environment_is_reset_in_the_next_step(make):
    with closing(make(WALKS)) as env:
        env.reset(seed=0, options={"start": 50.0})
        _, rewards, terminations, *_ = env.step(STILL)
        assert terminations.all()
        assert (rewards > 10).all()
        observations, rewards, terminations, truncations, infos = env.step(STILL)
        assert rewards.tolist() == [0.0] * N
        assert not (terminations | truncations).any()
        assert (np.abs(observations["vector"]) <= 2).all()
        assert "distance" not in infos
        assert infos["_goal"].all()


@BOTH
def test_a_finished_environment_is_reset_in_the_same_step(make):
    with closing(make(WALKS, autoreset_mode=AutoresetMode.SAME_STEP)) as env:
        env.reset(seed=0, options={"start": 50.0})
        observations, rewards, terminations, _, infos = env.step(STILL)
        assert terminations.all()
        assert (rewards > 10).all()
        assert (np.abs(observations["vector"]) <= 2).all()
        assert infos["_final_obs"].all()
        assert all((final["vector"] > 40).all() for final in infos["final_obs"])
        assert (infos["final_info"]["distance"] > 40).all()
        assert infos["goal"].tolist() == ["the border"] * N


@BOTH
def test_with_resets_disabled_only_a_mask_resets(make):
    with closing(make(WALKS, autoreset_mode=AutoresetMode.DISABLED)) as env:
        env.reset(seed=0, options={"start": 50.0})
        *_, infos = env.step(STILL)
        assert "goal" not in infos
        observations, _ = env.reset(options={"reset_mask": np.array([True, True, False])})
        far = (np.abs(observations["vector"]) > 40).all(axis=1)
        assert far.tolist() == [False, False, True]
        if make is theirs:
            env.step(STILL)
        else:
            # SyncVectorEnv refuses this by an assertion, AsyncVectorEnv steps beyond the end.
            with pytest.raises(ResetNeeded):
                env.step(STILL)


@BOTH
@pytest.mark.parametrize("copy", [True, False])
def test_copy_tells_whether_observations_are_private(make, copy):
    with closing(make([cart_pole] * 2, copy=copy)) as env:
        first, _ = env.reset(seed=0)
        kept = first.copy()
        second, *_ = env.step(np.ones(2, np.int64))
        assert np.array_equal(first, kept) == copy
        assert np.array_equal(first, second) == (not copy)


@BOTH
def test_actions_of_another_number_are_refused(make):
    env = make(WALKS)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r".+"):
        env.step(STILL[:2])
    if make is ours:
        # Here no environment has moved; AsyncVectorEnv has sent two of the actions by then.
        assert env.step(STILL)[4]["count"].tolist() == [1] * N
    env.close(terminate=True)


# The two halves of a call.

STARTS = {
    "reset": lambda env: env.reset_async(seed=0),
    "step": lambda env: env.step_async(STILL),
    "call": lambda env: env.call_async("pace"),
}
WAITS = {
    "reset": lambda env, **kwargs: env.reset_wait(**kwargs),
    "step": lambda env, **kwargs: env.step_wait(**kwargs),
    "call": lambda env, **kwargs: env.call_wait(**kwargs),
}
WHOLE = {
    "reset()": lambda env: env.reset(),
    "step()": lambda env: env.step(STILL),
    "call()": lambda env: env.call("pace"),
    "get_attr()": lambda env: env.get_attr("pace"),
    "set_attr()": lambda env: env.set_attr("pace", 1.0),
    "render()": lambda env: env.render(),
}


@BOTH
def test_the_halves_give_what_the_whole_gives(make):
    with closing(make(WALKS)) as env, closing(SyncVectorEnv(WALKS)) as sync:
        env.reset_async(seed=3, options={"start": 0.5})
        assert_same(env.reset_wait(), sync.reset(seed=3, options={"start": 0.5}))
        for _ in range(8):
            env.step_async(STILL)
            assert_same(env.step_wait(timeout=60), sync.step(STILL))
        env.call_async("leap", 1.0, again=True)
        assert_same(env.call_wait(timeout=60), sync.call("leap", 1.0, again=True))


@BOTH
@pytest.mark.parametrize("first", STARTS)
def test_a_call_while_another_is_pending_is_refused(make, first):
    with closing(make(WALKS)) as env:
        env.reset(seed=0)
        STARTS[first](env)
        for call in (STARTS | WHOLE).values():
            with pytest.raises(AlreadyPendingCallError) as caught:
                call(env)
            assert caught.value.name == first
        WAITS[first](env)
        env.step(STILL)


@BOTH
@pytest.mark.parametrize("pending", [None, *STARTS])
def test_a_wait_for_what_was_not_started_is_refused(make, pending):
    with closing(make(WALKS)) as env:
        env.reset(seed=0)
        if pending is not None:
            STARTS[pending](env)
        for waited in WAITS.keys() - {pending}:
            with pytest.raises(NoAsyncCallError) as caught:
                WAITS[waited](env)
            assert caught.value.name == waited
        if pending is not None:
            WAITS[pending](env)


@BOTH
def test_a_wait_ends_at_its_timeout(make, tmp_path):
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    env = make([Gate] * 2)
    env.reset()
    env.call("open_at", gate)
    env.step_async(np.array([1, 0]))
    with pytest.raises(multiprocessing.TimeoutError):
        env.step_wait(timeout=0.01)
    with open(gate, "w"):
        pass
    if make is theirs:
        with pytest.raises(NoAsyncCallError):
            env.step_wait()
    else:
        # AsyncVectorEnv forgets the call and takes its late reply for that of the next one. Here
        # nothing is lost.
        assert env.step_wait()[4]["count"].tolist() == [1, 1]
    env.close(terminate=True)


# Calls and attributes.


@BOTH
def test_call_reaches_methods_and_attributes_through_wrappers(make):
    with closing(make(WALKS)) as env:
        env.reset(seed=0)
        env.set_attr("place", [np.full(2, float(i)) for i in range(N)])
        assert env.call("leap", 1.0) == (([1, 1], False), ([2, 2], False), ([3, 3], False))
        assert env.call("leap", far=0.0, again=True)[0] == ([1, 1], True)
        assert env.call("pace") == env.get_attr("pace") == (1.0,) * N


@BOTH
def test_set_attr_takes_one_value_or_one_for_each(make):
    with closing(make(WALKS)) as env:
        env.set_attr("pace", 2.0)
        assert env.get_attr("pace") == (2.0,) * N
        for values in ([0.0, 0.5, 1.0], (3.0, 2.0, 1.0)):
            env.set_attr("pace", values)
            assert env.get_attr("pace") == tuple(values)
        with pytest.raises(ValueError, match="2"):
            env.set_attr("pace", [1.0, 2.0])
        # It reached the environment itself and not its wrapper.
        env.reset(seed=0)
        env.set_attr("pace", 100.0)
        assert env.step(np.ones((N, 2), np.float32))[2].all()


@BOTH
def test_render_gives_a_frame_of_each(make):
    with closing(make(WALKS)) as env:
        env.reset(seed=0)
        frames = env.render()
        assert isinstance(frames, tuple)
        assert [(frame.shape, frame.dtype) for frame in frames] == [((32, 32, 3), np.uint8)] * N


@BOTH
def test_generators_are_those_of_the_environments(make):
    with closing(make(WALKS)) as env:
        env.reset(seed=5)
        assert env.np_random_seed == (5, 6, 7)
        for i, generator in enumerate(env.np_random):
            expected = np.random.default_rng(5 + i)
            expected.uniform(-2, 2, 2)  # the draw of its reset
            assert generator.random() == expected.random()


# Failures.


@BOTH
def test_an_error_of_an_environment_reaches_the_caller(make):
    env = make([Probe] * 2)
    env.reset()
    env.call("plan", "step", "raise")
    with pytest.raises((ZeroDivisionError, EnvError)) as caught:
        env.step(np.zeros(2, np.int64))
    if make is ours:
        # AsyncVectorEnv raises the exception itself, and its worker is gone. EnvError also tells
        # which environment failed, and a reset is enough to go on.
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert caught.value.env_indices == (0, 1)
        env.call("plan", None, None)
        env.reset()
        env.step(np.zeros(2, np.int64))
    env.close(terminate=True)


@BOTH
def test_an_error_of_a_called_method_reaches_the_caller(make):
    env = make(WALKS)
    with pytest.raises((AttributeError, EnvError)) as caught:
        env.call("nothing")
    error = caught.value
    assert isinstance(error if make is theirs else error.__cause__, AttributeError)
    env.close(terminate=True)


@BOTH
def test_reset_and_step_through_call(make):
    env = make(WALKS)
    if make is theirs:
        with pytest.raises(ValueError, match="directly"):
            env.call("reset")
    else:
        # There is no harm in it: it moves the environments, and rows stay as they are.
        assert len(env.call("reset", seed=1)) == N
    env.close(terminate=True)


# The end.


@BOTH
def test_after_close_every_call_is_refused(make):
    env = make(WALKS)
    env.reset(seed=0)
    env.close()
    assert env.closed
    env.close()
    for call in (*STARTS.values(), *WAITS.values(), *WHOLE.values()):
        with pytest.raises(ClosedEnvironmentError):
            call(env)


@BOTH
@pytest.mark.parametrize("pending", STARTS)
@pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting:UserWarning")
def test_close_ends_what_is_pending(make, pending):
    env = make(WALKS)
    env.reset(seed=0)
    STARTS[pending](env)
    env.close()
    assert env.closed


@BOTH
@pytest.mark.parametrize("kwargs", [{"timeout": 0}, {"terminate": True}])
@pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting:UserWarning")
def test_close_need_not_wait(make, kwargs, tmp_path):
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    env = make([Gate] * 2)
    env.reset()
    env.call("open_at", gate)
    env.step_async(np.array([1, 1]))
    env.close(**kwargs)  # nobody opens the gate
    assert env.closed


@BOTH
def test_dropping_the_last_reference_closes_it(make):
    env = make([OddInfos] * 2)
    env.reset(seed=0)
    del env  # what it leaves behind fails the test
