"""``pool.envs[i]`` behaves like the environment, wherever that is."""

import contextlib
import copy
import pickle
import weakref
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded

import envs
from conftest import plain_id
from pools import forget_arguments, shared_pool
from swm_async import EnvError, EnvPool, VectorEnv

COUNT = 3
ACTIONS = np.zeros((COUNT, 1), np.float32)


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """The shared pool renews its memory while it lives; what it leaves is checked at its end."""
    if "lent" not in request.fixturenames:
        request.getfixturevalue("nothing_left_behind")


def make_robot(i):
    return envs.Layer(gymnasium.wrappers.OrderEnforcing(envs.Robot(i)))


@pytest.fixture(scope="module", params=[0, 2])
def lent(request):
    factories = [partial(make_robot, i) for i in range(COUNT)]
    with shared_pool(request, factories, num_workers=request.param) as loan:
        yield loan


@pytest.fixture
def pool(lent, request):
    """A shared pool whose environments have just been reset."""
    yield lent.ready(start_over)
    forget_arguments(request)


def start_over(pool):
    pool.call("start_over")
    pool.reset(seed=0)


# Attributes


def test_an_attribute_is_that_of_the_environment(pool):
    assert [handle.index for handle in pool.envs] == [0, 1, 2]
    assert pool.envs[1].limits == {"low": [0, 1], "high": [8, 9]}
    assert pool.envs[2].label == "outer"  # of the wrapper
    assert pool.envs[2].metadata == envs.Robot.metadata


def test_a_value_that_can_be_copied_is_a_copy(pool):
    limits = pool.envs[0].limits
    limits["low"].append(2)
    assert pool.envs[0].limits == {"low": [0, 1], "high": [8, 9]}


def test_names_with_one_underscore_are_forwarded(pool):
    assert pool.envs[1]._secret == "secret of 1"
    pool.envs[1]._secret = "told"
    assert pool.get_attr("_secret") == ["secret of 0", "told", "secret of 2"]


def test_what_cannot_be_copied_is_a_handle_of_its_own(pool):
    sensor = pool.envs[1].sensor
    assert sensor.gain == 2.0
    assert sensor.inner.gain == 3.0
    assert sensor.inner.inner is None
    assert sensor.scaled(4.0, offset=1.0) == 9.0
    assert sensor.inner.scaled(2.0) == 6.0
    sensor.inner.gain = 5.0
    assert pool.envs[1].sensor.inner.gain == 5.0
    assert pool.envs[0].sensor.inner.gain == 3.0
    assert repr(sensor) == "<Sensor at envs[1].sensor>"
    assert repr(sensor.inner.scaled) == "<method envs[1].sensor.inner.scaled>"


def test_get_attr_gives_such_handles_too(pool):
    sensors = pool.get_attr("sensor", mask=[True, False, True])
    assert sensors[1] is None
    sensors[2].gain = 7.0
    assert sensors[0].gain == 2.0
    assert sensors[2].scaled(2.0) == 14.0


def test_an_attribute_is_set_on_the_object_that_owns_it(pool):
    pool.envs[1].speed = 4.5
    assert pool.envs[1].speed == 4.5
    assert pool.envs[1].unwrapped.speed == 4.5
    assert pool.call("current_speed") == [1.0, 4.5, 1.0]
    pool.envs[1].label = "inner"
    assert pool.envs[1].labelled("text") == "inner text"
    assert not hasattr(pool.envs[1].unwrapped, "label")


def test_set_attr_reaches_the_owner_too(pool):
    pool.set_attr("speed", [2.0, 3.0, 4.0])
    assert pool.call("current_speed") == [2.0, 3.0, 4.0]


def test_a_new_attribute_can_be_set_and_read(pool):
    pool.envs[0].unwrapped.note = {"new": 1}
    assert pool.envs[0].note == {"new": 1}
    assert not hasattr(pool.envs[1], "note")


def test_hasattr_tells_the_truth(pool):
    handle = pool.envs[0]
    for name in (
        "index",
        "label",
        "step",
        "join",
        "sensor",
        "unwrapped",
        "action_space",
        "_secret",
    ):
        assert hasattr(handle, name)
    for name in ("nothing", "_nothing", "__len__", "__array__"):
        assert not hasattr(handle, name)
    assert hasattr(handle.sensor, "gain")
    assert not hasattr(handle.sensor, "loss")
    assert getattr(handle, "nothing", 5) == 5


def test_an_attribute_that_is_not_there_raises_as_it_would_locally(pool):
    with pytest.raises(AttributeError, match="nothing"):
        _ = pool.envs[0].nothing
    with pytest.raises(AttributeError, match="nothing"):
        pool.envs[0].nothing()


def test_a_property_that_raises_does_so_with_its_own_type(pool):
    with pytest.raises(ZeroDivisionError, match="broken by design"):
        _ = pool.envs[0].broken


# Methods


def test_methods_take_arguments_and_keywords(pool):
    assert pool.envs[2].join("a", "b", by="-") == "2-a-b"
    assert pool.envs[2].labelled("x") == "outer x"
    join = pool.envs[0].join
    assert join.__name__ == "join"
    assert callable(join)
    assert join("late") == "0 late"
    assert repr(join) == "<method envs[0].join>"


def test_a_method_whose_result_cannot_be_copied_says_so(pool):
    with pytest.raises(TypeError, match=r"own_sensor\(\) returned a Sensor.*cannot be pickled"):
        pool.envs[0].own_sensor()


@pytest.mark.parametrize("error", [KeyError("k"), ValueError("v"), LookupError(1, 2)], ids=plain_id)
def test_exceptions_keep_their_type_and_bring_their_traceback(pool, error):
    with pytest.raises(type(error)) as caught:
        pool.envs[1].fail(error)
    assert type(caught.value) is type(error)
    assert caught.value.args == error.args
    assert "_raise" in str(caught.value.__cause__)
    assert pool.envs[1].join("still here") == "1 still here"


@pytest.mark.parametrize("name", ["unpicklable", "two arguments"])
def test_exceptions_that_cannot_travel_are_pool_errors(pool, name):
    kind = {"unpicklable": "Unpicklable", "two arguments": "TwoArguments"}[name]
    with pytest.raises(EnvError, match=f"environment 1, call: envs.{kind}") as caught:
        pool.envs[1].fail(name)
    assert caught.value.env_indices == (1,)
    pool.step(ACTIONS)


def test_an_argument_that_cannot_be_pickled_moves_nothing(pool):
    with pytest.raises((TypeError, pickle.PicklingError)):
        pool.envs[0].join(x for x in ())
    with pytest.raises((TypeError, pickle.PicklingError)):
        pool.envs[0].speed = (x for x in ())
    assert pool.envs[0].speed == 1.0
    pool.step(ACTIONS)


# What belongs to Gymnasium's interface


def test_unwrapped_is_the_innermost_environment(pool):
    inner = pool.envs[1].unwrapped
    assert inner.index == 1
    assert inner.unwrapped.index == 1
    assert inner.join("x") == "1 x"
    inner.speed = 6.0
    assert pool.envs[1].speed == 6.0
    assert repr(inner) == "<environment at envs[1].unwrapped>"
    # Between the two there is the wrapper of Gymnasium.
    assert pool.envs[1].env.has_reset is True
    assert not hasattr(pool.envs[1].env, "label")


def test_spaces_are_kept_so_that_sampling_advances_them(pool):
    handle, again = pool.envs[0], pool.envs[0]
    assert handle.action_space is again.action_space
    assert handle.observation_space == envs.Robot.observation_space
    local = spaces.Box(-1.0, 1.0, (1,), np.float32)
    assert handle.action_space == local
    handle.action_space.seed(3)
    local.seed(3)
    for _ in range(3):
        np.testing.assert_array_equal(again.action_space.sample(), local.sample())
    assert pool.envs[1].action_space is not handle.action_space


def test_a_space_that_was_set_is_the_one_that_is_read(pool):
    assert pool.envs[0].action_space.shape == (1,)
    pool.envs[0].action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
    assert pool.envs[0].action_space.high == 2.0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_space_that_was_set_through_the_pool_is_the_one_that_is_read(num_workers):
    wide = spaces.Box(-2.0, 2.0, (1,), np.float32)
    with EnvPool([envs.Robot] * 2, num_workers=num_workers) as pool:
        before = [handle.action_space for handle in pool.envs]
        pool.set_attr("action_space", wide, mask=[False, True])
        assert pool.envs[0].action_space is before[0]
        assert pool.envs[1].action_space == wide


@pytest.mark.parametrize("num_workers", [0, 1])
def test_spec_is_that_of_the_registered_environment(num_workers):
    factories = [partial(gymnasium.make, "CartPole-v1", max_episode_steps=7)]
    with EnvPool(factories, num_workers=num_workers) as pool:
        assert pool.envs[0].spec.id == "CartPole-v1"
        assert pool.envs[0].spec.max_episode_steps == 7
        assert pool.envs[0].unwrapped.spec.id == "CartPole-v1"
        assert pool.envs[0].render_mode is None


def test_an_environment_that_was_not_registered_has_no_spec(pool):
    assert pool.envs[0].spec is None


# Reset and step through a handle


def test_reset_and_step_move_that_environment_only_and_leave_the_rows_of_the_pool(pool):
    observations, *_, infos = pool.step(ACTIONS + 0.5)
    copied = observations.copy()
    observation, reward, terminated, truncated, info = pool.envs[1].step(np.float32([0.25]))
    np.testing.assert_array_equal(observation, np.float32([0.25]), strict=True)
    assert (reward, terminated, truncated, info) == (1.0, False, False, {"steps": 2})
    assert pool.get_attr("steps") == [1, 2, 1]
    observation, info = pool.envs[2].reset(seed=9, options={})
    np.testing.assert_array_equal(observation, np.zeros(1, np.float32), strict=True)
    assert info == {"steps": 0}
    assert pool.get_attr("steps") == [1, 2, 0]
    np.testing.assert_array_equal(observations, copied)
    np.testing.assert_array_equal(infos["steps"], [[1]] * COUNT)
    np.testing.assert_array_equal(pool.seeds, [0, 1, 9])
    again, *_, infos = pool.step(ACTIONS)
    assert again is observations
    np.testing.assert_array_equal(infos["steps"], [[2], [3], [1]])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_reset_through_a_handle_counts_as_a_reset(num_workers):
    with EnvPool([envs.Robot] * COUNT, num_workers=num_workers) as pool:
        for i in (0, 2):
            pool.envs[i].reset(seed=i)
        with pytest.raises(ResetNeeded, match=r"\[1\]"):
            pool.step(ACTIONS)
        _, rewards, *_ = pool.step(ACTIONS, [True, False, True])
        np.testing.assert_array_equal(rewards, [1, 0, 1])
        pool.envs[1].reset()
        _, rewards, *_ = pool.step(ACTIONS)
        np.testing.assert_array_equal(rewards, [1, 1, 1])
        np.testing.assert_array_equal(pool.seeds, [0, -1, 2])


def test_after_a_failure_a_reset_through_a_handle_is_enough(pool):
    pool.envs[1].fail_next_step = True
    with pytest.raises(EnvError):
        pool.step(ACTIONS)
    with pytest.raises(ResetNeeded):
        pool.step(ACTIONS)
    pool.envs[1].reset()
    pool.step(ACTIONS)


def test_a_step_through_a_handle_raises_what_the_environment_raises(pool):
    pool.envs[1].fail_next_step = True
    with pytest.raises(ArithmeticError, match="asked to fail"):
        pool.envs[1].step(ACTIONS[1])


# Arguments

WAYS_IN = {
    "call": lambda pool, thing: pool.call("take", thing),
    "call_each": lambda pool, thing: pool.call_each("take", [(thing,)]),
    "set_attr": lambda pool, thing: pool.set_attr("taken", thing),
    "set_attr of each": lambda pool, thing: pool.set_attr("taken", [thing]),
    "a handle's method": lambda pool, thing: pool.envs[0].take(thing),
    "a handle's attribute": lambda pool, thing: setattr(pool.envs[0], "taken", thing),
    "options": lambda pool, thing: pool.reset(options={"thing": thing}),
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("kind", [EnvPool, VectorEnv])
def test_arguments_leave_a_class_that_only_a_function_knows_as_it_is(kind, way, num_workers):
    class Thing:
        def name(self):
            return "thing"

    class Taker(envs.Robot):
        taken = None

        def reset(self, *, seed=None, options=None):
            if options:
                self.taken = options["thing"]
            return super().reset(seed=seed)

        def take(self, thing):
            self.taken = thing

        def name_of_taken(self):
            return self.taken.name()

    if way == "call_each" and not hasattr(kind, way):
        pytest.skip("Gymnasium's vector environments have no such method")
    name = Thing.name
    with contextlib.closing(kind([Taker], num_workers=num_workers)) as pool:
        pool.reset()
        WAYS_IN[way](pool, Thing())
        assert list(pool.call("name_of_taken")) == ["thing"]
        assert type(pool.get_attr("taken")[0]) is Thing
    assert Thing.name is name


# The sequence of handles


def test_the_handles_are_a_sequence(pool):
    assert len(pool.envs) == COUNT
    assert pool.envs[-1].index == 2
    assert pool.envs[np.int64(1)].index == 1
    assert [handle.index for handle in pool.envs[1:]] == [1, 2]
    assert [handle.index for handle in reversed(pool.envs)] == [2, 1, 0]
    for index in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError):
            pool.envs[index]
    with pytest.raises(TypeError):
        pool.envs["1"]
    assert repr(pool.envs[1]) == "<environment at envs[1]>"


def test_a_handle_can_neither_be_copied_nor_pickled(pool):
    for handle in (pool.envs[0], pool.envs[0].unwrapped):
        for deed in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="stays with its pool"):
                deed(handle)


def test_a_handle_is_no_argument_for_an_environment(pool):
    with pytest.raises(TypeError, match="stays with its pool"):
        pool.envs[0].limits = pool.envs[1]


def test_handles_do_not_keep_their_pool_from_being_dropped():
    pool = EnvPool([envs.Robot], num_workers=0)
    handle = pool.envs[0]
    assert handle.unwrapped.sensor.gain == 2.0
    assert handle.action_space.shape == (1,)
    alive = weakref.ref(pool)
    del pool
    assert alive() is not None
    del handle
    assert alive() is None  # at once, without the collector of cycles
