"""A WorkerPolicy acts next to each environment, and everybody else sees what it did."""

import os
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from fake_pool import ByNumber, Countdown
from on_ray import KILLED
from swm_async import (
    EnvError,
    EnvPool,
    NoisyPolicy,
    PointGoalExpert,
    RandomPolicy,
    WorkerPolicy,
    World,
)

POINT_GOAL = "swm_async/PointGoal-v0"

both_kinds = pytest.mark.parametrize("num_workers", [0, 2])


class Simulator(gymnasium.Env):
    """What its policy must know is inside: the next key, which no info tells."""

    observation_space = spaces.Discrete(2)

    def __init__(self, action_space=None):
        self.action_space = spaces.Discrete(1000) if action_space is None else action_space
        self.given = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.count, self.key = seed, 0, int(self.np_random.integers(1000))
        return 0, {"count": 0}

    def step(self, action):
        right = isinstance(self.action_space, spaces.Discrete) and action == self.key
        self.given.append((type(action), action))
        self.count += 1
        self.key = int(self.np_random.integers(1000))
        return 0, float(right), self.count == 3 + self.seed % 4, False, {"count": self.count}

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


def reads_the_key():
    return lambda env, info: env.unwrapped.key


def simulator_world(num_envs=3, num_workers=0, policy=None, env=Simulator, **arguments):
    world = World(env, num_envs, add_pixels=False, num_workers=num_workers, **arguments)
    world.set_policy(WorkerPolicy(reads_the_key) if policy is None else policy)
    return world


# What it does


@pytest.mark.parametrize(("num_envs", "num_workers"), [(1, 0), (1, 1), (3, 0), (3, 2), (8, 2)])
def test_results_are_the_same_on_any_number_of_environments_and_workers(num_envs, num_workers):
    with simulator_world(num_envs, num_workers) as world:
        results = world.evaluate(9, seed=4)
    lengths = [3 + (4 + k) % 4 for k in range(9)]
    assert results["episode_lengths"].tolist() == lengths
    assert results["episode_returns"].tolist() == lengths  # right at every step


@both_kinds
def test_the_infos_tell_the_actions_that_were_taken(num_workers):
    with simulator_world(2, num_workers) as world:
        keys = []
        for step in world.rollout(episodes=2, seed=0, mode="wait"):
            if step.first.any():
                assert (step.infos["action"] == np.iinfo(np.int64).min).all()
            for i in np.flatnonzero(step.mask & ~step.first):
                assert step.infos["action"][i, 0] == keys[i]
            keys = world.envs.get_attr("key")


@both_kinds
def test_the_policy_is_given_the_environment_and_its_last_report(num_workers):
    def make():
        def policy(env, info):
            assert env.unwrapped.count == info["count"] == info["step_idx"]
            assert ("pixels" in info) == ("render_time" in info)
            assert isinstance(info["reward"], float)
            return info["count"] + (500 if np.isnan(info["reward"]) else 0)

        return policy

    with simulator_world(2, num_workers, WorkerPolicy(make)) as world:
        world.evaluate(2, seed=3, reset_mode="wait")
        given = world.envs.get_attr("given")
    # Seeds 3 and 4: 6 and 3 steps.
    assert [[int(action) for _, action in each] for each in given] == [
        [500, 1, 2, 3, 4, 5],
        [500, 1, 2],
    ]


@both_kinds
def test_the_factory_is_called_once_for_each_environment_in_its_worker(num_workers):
    def make():
        calls = []

        def policy(env, info):
            calls.append(1)
            env.unwrapped.pid, env.unwrapped.calls = os.getpid(), len(calls)
            return 0

        return policy

    with simulator_world(4, num_workers, WorkerPolicy(make)) as world:
        world.evaluate(8, seed=0, reset_mode="wait")
        calls, pids = world.envs.get_attr("calls"), world.envs.get_attr("pid")
    # Of its own steps alone: those of the seeds i and 4 + i.
    assert calls == [2 * (3 + i) for i in range(4)]
    assert (os.getpid() in pids) == (num_workers == 0)
    assert len(set(pids)) == max(num_workers, 1)


def test_an_expert_in_the_workers_does_what_it_does_outside():
    def make():
        expert = PointGoalExpert()

        def policy(env, info):
            infos = {key: np.asarray(info[key])[None, None] for key in ("state", "goal_state")}
            return expert.get_action(infos)[0]

        return policy

    found = []
    for policy in (PointGoalExpert(), WorkerPolicy(make)):
        with World(POINT_GOAL, 3, add_pixels=False, num_workers=2) as world:
            world.set_policy(policy)
            found.append({k: np.asarray(v).tolist() for k, v in world.evaluate(7, seed=0).items()})
    assert found[0] == found[1]
    assert found[0]["success_rate"] == 100


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), [0.5, 1], np.array([0.5, 1], np.float32)),
        (spaces.Discrete(5), 3, np.int64(3)),
        (spaces.MultiBinary(2), np.array([True, False]), np.array([1, 0], np.int8)),
        (spaces.Text(4), "abc", "abc"),
    ],
)
def test_actions_reach_the_environment_in_the_form_that_a_pool_gives_them(space, action, expected):
    env = lambda: Simulator(space)  # noqa: E731  # a factory
    policy = WorkerPolicy(lambda: lambda env, info: action)
    with simulator_world(1, policy=policy, env=env) as world:
        world.evaluate(1, seed=1)
        kind, given = world.envs.get_attr("given")[0][0]
        assert kind is type(expected)
        np.testing.assert_array_equal(given, expected, strict=not isinstance(expected, str))


def test_actions_of_nested_spaces_are_recorded_part_by_part():
    space = spaces.Dict({"move": spaces.Box(-1, 1, (2,)), "jump": spaces.Discrete(3)})
    action = {"move": np.array([0.25, 1.0]), "jump": 2}
    policy = WorkerPolicy(lambda: lambda env, info: action)
    with simulator_world(1, policy=policy, env=lambda: Simulator(space)) as world:
        *_, last = world.rollout(episodes=1, seed=1)
        assert last.infos["action.move"].tolist() == [[[0.25, 1.0]]]
        assert last.infos["action.move"].dtype == np.float32
        assert last.infos["action.jump"].tolist() == [[2]]


def test_an_environment_may_change_its_action_without_harm_to_the_policy():
    class Clearing(gymnasium.Wrapper):
        def step(self, action):
            action[...] = 0
            return super().step(action)

    def make():
        kept = np.array([0.5, 0.5], np.float32)
        return lambda env, info: kept

    env = lambda: Simulator(spaces.Box(-1, 1, (2,), np.float32))  # noqa: E731  # a factory
    world = simulator_world(1, policy=WorkerPolicy(make), env=env, pre_wrappers=[Clearing])
    with world:
        for step in world.rollout(episodes=1, seed=0):
            if not step.first.any():
                assert step.infos["action"].tolist() == [[[0.5, 0.5]]]


# How it is put in place


def test_a_loop_of_ones_own_is_driven_too():
    with simulator_world(2) as world:
        world.reset(seed=0)
        total = np.zeros(2)
        for _ in range(3):
            actions = world.policy.get_action(world.infos)
            _, rewards, *_ = world.envs.step(actions)
            total += rewards
    assert total.tolist() == [3, 3]


def test_another_policy_takes_over():
    with simulator_world(2) as world:
        assert world.evaluate(2, seed=0)["episode_returns"].tolist() == [3, 4]
        world.set_policy(RandomPolicy(seed=0))
        assert world.evaluate(2, seed=0)["episode_returns"].sum() < 2
        world.set_policy(WorkerPolicy(reads_the_key))
        assert world.evaluate(2, seed=0)["episode_returns"].tolist() == [3, 4]
        world.set_policy(WorkerPolicy(lambda: lambda env, info: -1 + 1))
        assert world.evaluate(2, seed=0)["episode_returns"].sum() < 2
        world.set_policy(world.policy)
        assert world.evaluate(2, seed=0)["episode_returns"].sum() < 2


def test_the_pools_space_is_not_advanced():
    with World(Simulator, 2, add_pixels=False, num_workers=0) as world:
        world.envs.action_space.seed(3)
        expected = world.envs.action_space.sample().tolist()
        world.envs.action_space.seed(3)
        world.set_policy(WorkerPolicy(reads_the_key))
        world.evaluate(2, seed=0)
        assert world.envs.action_space.sample().tolist() == expected


def test_a_worker_that_died_gets_its_policies_again():
    returns = {}

    def run(world):
        alive = True
        for step in world.rollout(episodes=8, seed=0):
            for i in np.flatnonzero(step.mask):
                k = int(step.episode[i])
                returns[k] = 0 if step.first[i] else returns[k] + int(step.rewards[i])
            if alive and step.mask.all() and not step.first.any():
                world.envs.call("die", mask=[True, False, False, False])
                alive = False

    world = simulator_world(4, 2, on_failure="restart")
    with world, pytest.warns(UserWarning, match=KILLED):
        run(world)
    assert [returns[k] for k in range(8)] == [3, 4, 5, 6, 3, 4, 5, 6]


@both_kinds
def test_an_environment_that_failed_in_its_reset_gets_its_policy_again(num_workers, tmp_path):
    mark = tmp_path / "failed"

    class FailsOnce(gymnasium.Wrapper):
        def reset(self, *, seed=None, options=None):
            if seed == 1 and not mark.exists():
                mark.touch()
                raise OSError("once")
            return super().reset(seed=seed, options=options)

    world = simulator_world(2, num_workers, on_failure="restart", pre_wrappers=[FailsOnce])
    with world, pytest.warns(UserWarning, match="once"):
        results = world.evaluate(4, seed=0)
    assert mark.exists()
    assert results["episode_returns"].tolist() == [3, 4, 5, 6]


# What goes wrong


@both_kinds
def test_what_a_policy_raises_names_its_environment(num_workers):
    def make():
        def policy(env, info):
            if env.unwrapped.seed == 1:
                raise LookupError("no way")
            return 0

        return policy

    with simulator_world(2, num_workers, WorkerPolicy(make)) as world:
        with pytest.raises(EnvError, match=r"environment 1, step.*LookupError: no way") as caught:
            world.evaluate(2, seed=0)
        assert caught.value.env_index == 1


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ([1.0, 2.0, 3.0], r"must fit Box.* found \[1.0, 2.0, 3.0\]"),
        (0.5, "must fit Box.* found 0.5"),
        ("left", "must fit Box.* found 'left'"),
        (None, "must fit Box.* found None"),
    ],
)
def test_an_action_that_does_not_fit_is_named(action, words):
    env = lambda: Simulator(spaces.Box(-1, 1, (2,), np.float32))  # noqa: E731  # a factory
    policy = WorkerPolicy(lambda: lambda env, info: action)
    with simulator_world(1, policy=policy, env=env) as world, pytest.raises(EnvError, match=words):
        world.evaluate(1)


def test_a_factory_that_makes_no_policy_is_named():
    with World(Simulator, 2, add_pixels=False, num_workers=0) as world:
        with pytest.raises(EnvError, match="must return a function policy"):
            world.set_policy(WorkerPolicy(lambda: 3))
        assert world.policy is None
    with pytest.raises(TypeError, match="without arguments, found 3"):
        WorkerPolicy(3)


def test_environments_without_the_worlds_wrapper_cannot_hold_a_policy():
    with World.from_pool(EnvPool([Countdown] * 2, num_workers=0)) as world:
        with pytest.raises(TypeError, match="needs the environments of a World"):
            world.set_policy(WorkerPolicy(reads_the_key))
        world.set_policy(ByNumber())
        world.evaluate(2, seed=0)


def test_without_a_world_there_is_nobody_to_act():
    with pytest.raises(RuntimeError, match="set_policy"):
        WorkerPolicy(reads_the_key).get_action({})


def test_noise_cannot_be_added_from_outside():
    with pytest.raises(TypeError, match="in the worker's policy"):
        NoisyPolicy(WorkerPolicy(reads_the_key))


def test_a_closed_world_lets_its_policy_go():
    world = simulator_world(2)
    world.close()
    world.policy.unset_env()
    with pytest.raises(RuntimeError, match="set_policy"):
        world.policy.get_action({})
