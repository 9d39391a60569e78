"""VecEnv gives what Stable-Baselines3's DummyVecEnv gives, value for value."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from hypothesis import given
from hypothesis import strategies as st

from conftest import WORKER_COUNTS
from envs import Robot
from probe_env import Probe
from same import assert_same
from swm_async import EnvError, EnvPool, WorkerDied
from vector_envs import Doubling, OddInfos, OneStep, Pair, Walk, WildInfos, cart_pole

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize

from swm_async.sb3 import VecEnv

N = 4


ENVIRONMENTS = {
    "CartPole": cart_pole,
    "Walk": Walk,
    "OddInfos": OddInfos,
    "WildInfos": WildInfos,
    "Doubling": Doubling,
    "Pair": Pair,
}

SUBSETS = st.none() | st.integers(0, N - 1) | st.lists(st.integers(-N, N - 1), max_size=5)
START = st.fixed_dictionaries({"start": st.floats(-1, 1)})
COMMANDS = st.one_of(
    *[st.tuples(st.just("step"))] * 8,
    st.tuples(st.just("reset")),
    st.tuples(st.just("seed"), st.integers(0, 99)),
    st.tuples(
        st.just("set_options"),
        st.none() | START | st.lists(st.just({}) | START, min_size=N, max_size=N),
    ),
    st.tuples(st.just("get"), st.sampled_from(["count", "render_mode", "pace"]), SUBSETS),
    st.tuples(st.just("set"), st.sampled_from(["pace", "label"]), st.floats(0, 2), SUBSETS),
    st.tuples(st.just("call"), SUBSETS),
)
"""What is done with a VecEnv, one after the other."""


def carry_out(env: Any, command: tuple[Any, ...], actions: Any) -> Any:
    """Everything that comes of a command, also errors, in the form of plain values."""
    name, *arguments = command
    try:
        if name == "step":
            *batches, infos = env.step(actions)
            for info in infos:  # Python's or numpy's, by the operands that met in DummyVecEnv
                info["TimeLimit.truncated"] = bool(info["TimeLimit.truncated"])
            return (*batches, infos), env.reset_infos
        if name == "reset":
            return env.reset(), env.reset_infos
        if name == "seed":
            return env.seed(*arguments)
        if name == "set_options":
            return env.set_options(*arguments)
        if name == "get":
            return env.get_attr(*arguments)
        if name == "set":
            attribute, value, indices = arguments
            return env.set_attr(attribute, value, indices)
        return env.env_method("leap", 0.25, indices=arguments[0], again=True)
    except AttributeError:
        return AttributeError


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_any_program_gives_what_dummy_vec_env_gives(name, num_workers):
    factories = [ENVIRONMENTS[name]] * N
    with closing(VecEnv(factories, num_workers=num_workers)) as ours:
        check_programs(ours, DummyVecEnv(factories), assert_same)


def check_programs(ours, theirs, check):
    @given(st.integers(0, 10**6), st.lists(COMMANDS, min_size=5, max_size=40))
    def run(seed, program):
        theirs.action_space.seed(seed)
        for command in (("seed", seed), ("reset",), *program):
            actions = np.array([theirs.action_space.sample() for _ in range(N)])
            found = carry_out(ours, command, actions)
            check(found, carry_out(theirs, command, actions), str(command))

    run()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", ["CartPole", "Walk"])
def test_a_pool_gives_the_same_but_for_the_types_of_numbers(name, num_workers):
    factories = [ENVIRONMENTS[name]] * N
    with closing(VecEnv(EnvPool(factories, num_workers=num_workers))) as ours:
        check_programs(ours, DummyVecEnv(factories), assert_same_numbers)


def assert_same_numbers(found, expected, where):
    assert_same(plain(found), plain(expected), where)


def plain(value):
    """Numpy scalars as Python's numbers, dicts in the order of their keys."""
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(part) for part in value)
    return value.item() if isinstance(value, np.generic) else value


def test_shapes_and_dtypes_are_those_of_stable_baselines3():
    with closing(VecEnv([Walk] * 3, num_workers=2)) as env:
        assert (env.num_envs, env.num_workers) == (3, 2)
        assert (env.observation_space, env.action_space) == (
            Walk.observation_space,
            Walk.action_space,
        )
        observations = env.reset()
        assert {key: (part.shape, part.dtype) for key, part in observations.items()} == {
            "vector": ((3, 2), np.float32),
            "image": ((3, 4, 4, 3), np.uint8),
        }
        _, rewards, dones, infos = env.step(np.zeros((3, 2), np.float32))
        assert (rewards.shape, rewards.dtype) == ((3,), np.float32)
        assert (dones.shape, dones.dtype) == ((3,), np.bool_)
        assert [type(info) for info in infos] == [dict] * 3
        assert all(info["TimeLimit.truncated"] is False for info in infos)
        assert env.metadata == Walk.metadata


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_finished_environment_tells_its_last_observation_and_why(num_workers):
    def long():
        return gymnasium.wrappers.TimeLimit(Robot(), 2)

    with closing(VecEnv([long, Robot], num_workers=num_workers)) as env:
        env.reset()
        actions = np.array([[0.5], [0.25]], np.float32)
        _, _, dones, infos = env.step(actions)
        assert dones.tolist() == [False, False]
        assert infos == [{"steps": 1, "TimeLimit.truncated": False}] * 2
        observations, _, dones, infos = env.step(actions)
        assert dones.tolist() == [True, False]
        assert observations.tolist() == [[0.0], [0.25]]
        assert infos[0].pop("terminal_observation").tolist() == [0.5]
        assert infos == [
            {"steps": 2, "TimeLimit.truncated": True},
            {"steps": 2, "TimeLimit.truncated": False},
        ]
        assert env.reset_infos == [{"steps": 0}] * 2


def test_what_was_returned_is_not_changed_by_later_steps():
    with closing(VecEnv([cart_pole] * 2, num_workers=2)) as env:
        first = env.reset()
        kept = first.copy()
        env.step(np.ones(2, np.int64))
        np.testing.assert_array_equal(first, kept)


# Attributes and methods.


def test_indices_choose_environments():
    with closing(VecEnv([Walk] * N, num_workers=2)) as env:
        env.set_attr("pace", 5.0, indices=[3, 1])
        assert env.get_attr("pace") == [1.0, 5.0, 1.0, 5.0]
        assert env.get_attr("pace", indices=-1) == [5.0]
        assert env.get_attr("pace", indices=range(2)) == [1.0, 5.0]
        assert env.get_attr("pace", indices=[]) == []
        env.set_attr("place", np.zeros(2))
        leaps = env.env_method("leap", 1.0, indices=[0, 1, 0])
        assert leaps == [([1.0, 1.0], False), ([1.0, 1.0], False), ([2.0, 2.0], False)]
        with pytest.raises(IndexError):
            env.get_attr("pace", indices=N)


def test_attributes_are_found_through_wrappers_and_set_on_the_outermost():
    def wrapped():
        return gymnasium.wrappers.TimeLimit(Walk(), 9)

    with closing(VecEnv([wrapped] * 2, num_workers=2)) as env:
        assert env.get_attr("pace") == [1.0, 1.0]
        env.set_attr("pace", 2.0)
        assert env.get_attr("pace") == [2.0, 2.0]
        assert [env.envs[i].unwrapped.pace for i in range(2)] == [1.0, 1.0]
        env.env_method("__delattr__", "pace")
        env.env_method("set_wrapper_attr", "pace", 3.0, indices=0)
        assert [env.envs[i].unwrapped.pace for i in range(2)] == [3.0, 1.0]
        assert env.has_attr("pace")
        assert not env.has_attr("place")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_an_attribute_or_method_keeps_its_type(num_workers):
    with closing(VecEnv([Walk] * 2, num_workers=num_workers)) as env:
        with pytest.raises(AttributeError):
            env.get_attr("nothing")
        with pytest.raises(ZeroDivisionError, match="broken by design"):
            env.get_attr("broken")
        with pytest.raises(TypeError):
            env.env_method("leap")
        env.reset()
        env.step(np.zeros((2, 2)))


def test_an_error_that_cannot_travel_is_an_env_error():
    with closing(VecEnv([Robot] * 2, num_workers=2)) as env:
        env.reset()
        with pytest.raises(EnvError, match="the lock is mine"):
            env.env_method("fail", "unpicklable", indices=1)
        env.step(np.zeros((2, 1), np.float32))


def test_a_method_may_reset_an_environment():
    with closing(VecEnv([Walk] * 2, num_workers=2)) as env, closing(DummyVecEnv([Walk] * 2)) as sb3:
        assert_same(env.env_method("reset", seed=3), sb3.env_method("reset", seed=3))
        actions = np.zeros((2, 2), np.float32)
        assert_same(env.step(actions), sb3.step(actions))


def test_env_is_wrapped_knows_classes_also_of_the_script():
    class Own(gymnasium.Wrapper):
        pass

    class Derived(Own):
        pass

    class Other(gymnasium.Wrapper):
        pass

    namesake = type("Own", (gymnasium.Wrapper,), {"__module__": Own.__module__})
    factories = [lambda: Derived(cart_pole()), lambda: Own(cart_pole()), cart_pole]
    with closing(VecEnv(factories, num_workers=2)) as env, closing(DummyVecEnv(factories)) as sb3:
        for wrapper in (Own, Derived, Other, namesake, gymnasium.wrappers.TimeLimit, Monitor):
            assert env.env_is_wrapped(wrapper) == sb3.env_is_wrapped(wrapper)
        assert env.env_is_wrapped(Own) == [True, True, False]
        assert env.env_is_wrapped(Own, indices=[2, 0]) == [False, True]
        assert env.env_is_wrapped(namesake) == [False, False, False]


def test_asking_for_a_monitor_does_not_import_it_in_the_workers():
    with closing(VecEnv([Walk] * 2, num_workers=2)) as env:
        assert env.env_is_wrapped(Monitor) == [False, False]
        for modules in env.env_method("modules"):
            assert "gymnasium" in modules
            assert not {"torch", "stable_baselines3"} & set(modules)


def test_render_tiles_the_frames_of_all_environments():
    factories = [partial(Walk, "rgb_array")] * 3
    with closing(VecEnv(factories, num_workers=2)) as env, closing(DummyVecEnv(factories)) as sb3:
        for each in (env, sb3):
            each.seed(0)
            each.reset()
        assert_same(env.get_images(), sb3.get_images())
        assert env.render().shape == (64, 64, 3)
        assert_same(env.render("rgb_array"), sb3.render("rgb_array"))


def test_frames_need_a_render_mode():
    with closing(VecEnv([Walk] * 2, num_workers=2)) as env:
        with pytest.warns(UserWarning, match="rgb_array"):
            assert env.get_images() == [None, None]
        with pytest.warns(UserWarning, match="render"):
            assert env.render() is None


# The order of calls, and the end.


@pytest.mark.parametrize("make", [VecEnv, lambda fns: VecEnv(EnvPool(fns))], ids=["own", "pool"])
def test_calls_at_the_wrong_moment_are_refused(make):
    actions = np.ones(2, np.int64)
    with closing(make([cart_pole] * 2)) as env:
        env.reset()
        with pytest.raises(NoAsyncCallError):
            env.step_wait()
        env.step_async(actions)
        with pytest.raises(AlreadyPendingCallError):
            env.step_async(actions)
        env.step_wait()
    env.close()
    for call in (env.reset, lambda: env.step(actions), lambda: env.get_attr("spec")):
        with pytest.raises(ClosedEnvironmentError):
            call()


@pytest.mark.parametrize("make", [VecEnv, lambda fns: VecEnv(EnvPool(fns))], ids=["own", "pool"])
def test_a_reset_cancels_a_step_that_nobody_waited_for(make):
    with make([cart_pole] * 2) as env:
        env.seed(5)
        first = env.reset()
        env.step_async(np.ones(2, np.int64))
        env.seed(5)
        assert_same(env.reset(), first)
        with pytest.raises(NoAsyncCallError):
            env.step_wait()


def test_failures_are_the_errors_of_the_pool():
    with VecEnv([Probe] * 2, num_workers=2) as env:
        env.reset()
        env.env_method("plan", "step", "raise", indices=1)
        with pytest.raises(EnvError, match="environment 1") as caught:
            env.step(np.ones(2, np.int64))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        env.env_method("plan", "step", "kill", indices=1)
        env.reset()
        with pytest.raises(WorkerDied):
            env.step(np.ones(2, np.int64))


def test_a_pool_that_restarts_ends_the_episode_of_a_lost_environment():
    pool = EnvPool([Probe] * 3, num_workers=3, on_failure="restart")
    with VecEnv(pool) as env:
        env.reset()
        env.step(np.zeros(3, np.int64))
        env.env_method("plan", "step", "kill", indices=1)
        with pytest.warns(UserWarning, match="built anew"):
            _, rewards, dones, infos = env.step(np.zeros(3, np.int64))
        assert rewards.tolist() == [1.0, 0.0, 1.0]
        assert dones.tolist() == [False, True, False]
        assert [info["TimeLimit.truncated"] for info in infos] == [False, True, False]
        _, _, dones, infos = env.step(np.zeros(3, np.int64))
        assert not dones.any()
        assert [info["count"] for info in infos] == [3, 1, 3]


def test_environments_lost_with_the_worker_of_another_ones_reset_end_their_episode():
    pool = EnvPool([OneStep, Probe], num_workers=1, on_failure="restart")
    with VecEnv(pool) as env:
        env.reset()
        env.env_method("plan", "reset", "kill", indices=0)
        with pytest.warns(UserWarning, match="built anew"):
            _, _, dones, infos = env.step(np.zeros(2, np.int64))
        assert dones.tolist() == [True, True]
        assert [info["TimeLimit.truncated"] for info in infos] == [False, True]
        _, _, dones, infos = env.step(np.zeros(2, np.int64))
        assert [info["count"] for info in infos] == [1, 1]


@pytest.mark.parametrize(
    ("kwargs", "vector_kwargs", "error"),
    [({}, {"num_workers": 2}, TypeError), ({"observations": False}, {}, ValueError)],
)
def test_a_pool_is_taken_as_it_is(kwargs, vector_kwargs, error):
    with (
        EnvPool([cart_pole], num_workers=0, **kwargs) as pool,
        pytest.raises(error, match="found"),
    ):
        VecEnv(pool, **vector_kwargs)


def test_arguments_that_would_break_its_promises_are_refused():
    with pytest.raises(TypeError, match=r"found \['copy'\]"):
        VecEnv([cart_pole], copy=False)


# What Stable-Baselines3 does with it.


@pytest.fixture
def one_thread():
    """Torch's threads wait for each other by spinning, which is slow where cores are short."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def monitored(env):
    return VecMonitor(env)


def normalized(env):
    return VecNormalize(VecMonitor(env), clip_obs=1.5)


def stacked(env):
    return VecFrameStack(env, 3)


@pytest.mark.parametrize("wrap", [monitored, normalized, stacked])
def test_its_wrappers_give_the_same_as_around_dummy_vec_env(wrap):
    ours, theirs = wrap(VecEnv([cart_pole] * N, num_workers=2)), wrap(DummyVecEnv([cart_pole] * N))
    with closing(ours), closing(theirs):
        for env in (ours, theirs):
            env.seed(3)
        assert_same(ours.reset(), theirs.reset())
        theirs.action_space.seed(3)
        for _ in range(40):
            actions = np.array([theirs.action_space.sample() for _ in range(N)])
            found, expected = ours.step(actions), theirs.step(actions)
            for infos in (found[3], expected[3]):
                for info in infos:
                    info.get("episode", {}).pop("t", None)  # seconds
            assert_same(found, expected)


@pytest.mark.usefixtures("one_thread")
def test_an_algorithm_learns_the_same_to_the_bit():
    learnt = []
    for make in (DummyVecEnv, partial(VecEnv, num_workers=2)):
        with closing(VecMonitor(make([cart_pole] * 2))) as env:
            model = PPO("MlpPolicy", env, n_steps=32, batch_size=16, n_epochs=2, seed=7)
            model.learn(192)
            returns = evaluate_policy(model, env, 4, return_episode_rewards=True)
            learnt.append((returns, model.get_parameters()["policy"]))
    (first, expected), (second, found) = learnt
    assert second == first
    for name, tensor in expected.items():
        assert (found[name] == tensor).all(), name


@pytest.mark.usefixtures("one_thread")
def test_an_algorithm_takes_dict_observations():
    def small():  # its images are too small for the networks of Stable-Baselines3
        return gymnasium.wrappers.FilterObservation(Walk(), ["vector"])

    with closing(VecMonitor(VecEnv([small] * 2, num_workers=2))) as env:
        model = PPO("MultiInputPolicy", env, n_steps=8, batch_size=16, n_epochs=1, seed=0)
        model.learn(32)
        assert model.num_timesteps == 32


def test_make_vec_env_takes_it_as_a_class():
    options = {"n_envs": 2, "seed": 11, "vec_env_cls": VecEnv, "vec_env_kwargs": {"num_workers": 1}}
    with (
        closing(make_vec_env(cart_pole, **options)) as ours,
        closing(make_vec_env(cart_pole, n_envs=2, seed=11)) as theirs,
    ):
        assert ours.env_is_wrapped(Monitor) == [True, True]
        assert_same(ours.reset(), theirs.reset())
