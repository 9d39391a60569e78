"""A World evaluates every episode as a plain loop would, whatever it runs on."""

import functools
import inspect
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_pool import ByNumber, Countdown
from swm_async import EnvPool, PointGoalExpert, RandomPolicy, World
from swm_async.evaluation import Tally
from swm_async.rollout import TimeStep

POINT_GOAL = "swm_async/PointGoal-v0"
RESULT_DTYPES = {
    "episode_successes": bool,
    "seeds": np.int64,
    "episode_returns": np.float64,
    "episode_lengths": np.int64,
    "episode_terminated": bool,
    "episode_truncated": bool,
}

both_kinds = pytest.mark.parametrize("num_workers", [0, 2])


def countdown_world(num_envs=3, num_workers=0, env=Countdown, **arguments):
    world = World(env, num_envs, add_pixels=False, num_workers=num_workers, **arguments)
    world.set_policy(ByNumber())
    return world


def play_alone(seed: int, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """One episode of `Countdown` in a plain loop, with the draw of an id after its reset."""
    env = Countdown()
    _, info = env.reset(seed=seed, options=options)
    env.np_random.integers(0, 2**63 - 1)
    rewards, ended = [], False
    while not ended:
        action = np.array([info["number"], info["number"] - 1.0])
        observation, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        ended = terminated or truncated
    return {
        "return": functools.reduce(float.__add__, rewards, 0.0),
        "length": len(rewards),
        "terminated": terminated,
        "observation": observation.tolist(),
        "info": info,
    }


def expected_results(seed, episodes, options=None):
    alone = [play_alone(seed + k, None if options is None else options[k]) for k in range(episodes)]
    terminated = [one["terminated"] for one in alone]
    return {
        "success_rate": 100 * sum(terminated) / episodes,
        "episode_successes": terminated,
        "seeds": [seed + k for k in range(episodes)],
        "episode_returns": [one["return"] for one in alone],
        "episode_lengths": [one["length"] for one in alone],
        "episode_terminated": terminated,
        "episode_truncated": [not one for one in terminated],
    }


def as_lists(results):
    return {key: np.asarray(value).tolist() for key, value in results.items()}


# evaluate


@both_kinds
@pytest.mark.parametrize("num_envs", [2, 5])
@pytest.mark.parametrize("mode", ["auto", "wait"])
def test_evaluate_gives_what_a_plain_loop_gives(num_envs, num_workers, mode):
    with countdown_world(num_envs, num_workers) as world:
        results = world.evaluate(episodes=13, seed=40, reset_mode=mode)
    assert as_lists(results) == expected_results(40, 13)
    assert isinstance(results, dict)
    assert type(results["success_rate"]) is float
    for key, dtype in RESULT_DTYPES.items():
        assert (results[key].shape, results[key].dtype) == ((13,), np.dtype(dtype))


@settings(deadline=None)
@given(
    num_envs=st.integers(1, 8),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=16),
    mode=st.sampled_from(["auto", "wait"]),
    seed=st.integers(0, 2**62),
)
def test_evaluate_gives_what_a_plain_loop_gives_for_any_lengths(num_envs, lengths, mode, seed):
    options = [{"length": length} for length in lengths]
    with countdown_world(num_envs) as world:
        results = world.evaluate(len(lengths), seed, options, reset_mode=mode)
    assert as_lists(results) == expected_results(seed, len(lengths), options)


def test_the_expert_of_point_goal_is_judged_alike_on_any_number_of_environments_and_workers():
    found = []
    for num_envs, num_workers in ((1, 0), (3, 0), (8, 0), (3, 2), (8, 2)):
        with World(POINT_GOAL, num_envs, add_pixels=False, num_workers=num_workers) as world:
            world.set_policy(PointGoalExpert())
            found.append(as_lists(world.evaluate(episodes=20, seed=0)))
    assert found == [found[0]] * len(found)
    assert found[0]["success_rate"] == 100
    assert len(set(found[0]["episode_lengths"])) > 3


def test_without_episodes_each_environment_runs_one():
    with countdown_world(4) as world:
        assert as_lists(world.evaluate(seed=2)) == expected_results(2, 4)


def test_a_second_evaluation_knows_nothing_of_the_first():
    with countdown_world(3) as world:
        for _ in zip(world.rollout(episodes=9, seed=1), range(4), strict=False):
            pass
        assert as_lists(world.evaluate(7, seed=20)) == expected_results(20, 7)
        assert as_lists(world.evaluate(2, seed=30)) == expected_results(30, 2)


def test_a_drawn_seed_replays_the_evaluation():
    with countdown_world(3) as world:
        first = world.evaluate(5)
        again = world.evaluate(5, seed=first["seeds"][0])
        other = world.evaluate(5)
    assert as_lists(first) == as_lists(again) == expected_results(int(first["seeds"][0]), 5)
    assert as_lists(other)["seeds"] != as_lists(first)["seeds"]


class Payday(gymnasium.Env):
    """Three steps of 0.1, which float32 cannot hold; `won` and `score` tell of success."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Discrete(9)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = seed
        self.count = 0
        return 0, {"note": "begin"}

    def step(self, action):
        self.count += 1
        info = {"note": "go", "won": self.seed % 2 == 0, "pair": np.zeros(2)}
        if self.seed % 3 == 0:
            info["score"] = 1.5
        return self.count, 0.1, False, self.count == 3, info


def payday_world(**arguments):
    world = countdown_world(2, env=Payday, **arguments)
    world.set_policy(RandomPolicy())
    return world


def test_a_row_that_sits_out_in_the_middle_of_its_episode_gains_nothing():
    tally = Tally(num_envs=2, episodes=2)
    nobody, both, first = [False, False], [True, True], [True, False]

    def add(mask, reward, reset=nobody, ended=nobody):
        arrays = dict.fromkeys(("terminateds", "truncateds", "broken"), np.array(nobody))
        return tally.add(
            TimeStep(
                infos={"reward": np.array(reward)[:, None]},
                rewards=np.zeros(2, np.float32),
                mask=np.array(mask),
                first=np.array(reset),
                ended=np.array(ended),
                episode=np.array([0, 1]),
                seeds=np.array([5, 6]),
                **arrays,
            )
        )

    assert add(both, [np.nan, np.nan], reset=both) == 0
    assert add(first, [1.0, np.nan]) == 0
    assert add(both, [2.0, 10.0], ended=first) == 1
    assert add([False, True], [2.0, 20.0], ended=[False, True]) == 1
    results = tally.results()
    assert results["episode_returns"].tolist() == [3.0, 30.0]
    assert results["episode_lengths"].tolist() == [2, 2]
    assert results["seeds"].tolist() == [5, 6]


def test_returns_are_sums_of_the_float64_rewards():
    with payday_world() as world:
        returns = world.evaluate(3, seed=0)["episode_returns"].tolist()
    assert returns == [0.1 + 0.1 + 0.1] * 3


@pytest.mark.parametrize(
    ("success", "expected"),
    [
        (None, [False] * 6),
        ("won", [True, False, True, False, True, False]),
        ("truncated", [True] * 6),
        # Reported by the episodes of seeds 0 and 3 alone; the fill value of the others is NaN.
        ("score", [True, False, False, True, False, False]),
        (lambda infos: infos["id"] >= 0 and infos["step_idx"] == 3, [True] * 6),
        (lambda infos: infos["won"] and infos["note"] == "go", [True, False] * 3),
        (lambda infos: infos["pair"].shape == (2,) and infos["_score"], [True, False, False] * 2),
    ],
)
def test_success_is_what_the_caller_says(success, expected):
    with payday_world() as world:
        results = world.evaluate(6, seed=0, success=success)
    assert results["episode_successes"].tolist() == expected
    assert results["success_rate"] == pytest.approx(100 * sum(expected) / 6)


def test_the_infos_given_to_a_success_function_are_the_rows_own_and_may_be_kept():
    kept = []
    with countdown_world(2) as world:
        world.evaluate(6, seed=0, success=kept.append)
    by_id = {}
    for k in range(6):
        env = Countdown()
        env.reset(seed=k)
        by_id[int(env.np_random.integers(0, 2**63 - 1))] = play_alone(k)
    assert len(kept) == 6
    for infos in kept:
        alone = by_id[infos["id"]]
        assert infos["number"] == alone["info"]["number"]
        assert infos["step_idx"] == alone["length"]
        assert infos["observation"].tolist() == alone["observation"]


@pytest.mark.parametrize(
    ("success", "words"), [("wun", "'wun' is not in the infos.*'won'"), ("pair", r"\(2,\)")]
)
def test_a_success_key_without_one_truth_is_refused(success, words):
    with payday_world() as world, pytest.raises(ValueError, match=words):
        world.evaluate(2, seed=0, success=success)


def test_progress_is_shown_on_standard_error_if_asked_for(capsys):
    with countdown_world() as world:
        world.evaluate(4, seed=0)
        assert capsys.readouterr().err == ""
        world.evaluate(4, seed=0, progress=True)
    captured = capsys.readouterr()
    assert "4/4" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"episodes": 0}, ValueError, "episodes"),
        ({"reset_mode": "never"}, ValueError, "'never'"),
        ({"seed": -1}, ValueError, "seed"),
        ({"success": 3}, TypeError, "success.*3"),
        ({"video": "out"}, ValueError, "add_pixels=True"),
        ({"dataset": []}, TypeError, "load_chunk"),
        ({"episodes_idx": [0], "eval_budget": 3}, ValueError, "cannot take episodes_idx, eval_b"),
        ({"options": [{}]}, ValueError, "options"),
    ],
)
def test_wrong_arguments_of_evaluate_move_nothing(arguments, error, words):
    with countdown_world(2) as world:
        with pytest.raises(error, match=words):
            world.evaluate(**{"episodes": 2, **arguments})
        assert world.envs.seeds.tolist() == [-1, -1]
        assert world.infos == {}


# rollout


@both_kinds
def test_wait_keeps_the_last_values_of_finished_rows(num_workers):
    lengths = [{"length": length} for length in (1, 4, 2)]
    with countdown_world(3, num_workers) as world:
        *_, last = world.rollout(3, seed=0, options=lengths, mode="wait")
        final = world.infos
        assert last.mask.tolist() == [False, True, False]
        assert final["step_idx"].ravel().tolist() == [1, 4, 2]
        assert final["left"].ravel().tolist() == [0, 0, 0]
        numbers = [play_alone(k, lengths[k])["info"]["number"] for k in range(3)]
        assert final["number"].ravel().tolist() == numbers


@both_kinds
def test_auto_shows_the_end_of_an_episode_before_its_row_is_reset(num_workers):
    with countdown_world(3, num_workers) as world:
        ends = 0
        for step in world.rollout(episodes=8, seed=0):
            for i in np.flatnonzero(step.ended):
                alone = play_alone(int(step.seeds[i]))
                assert step.infos["number"][i, 0] == alone["info"]["number"]
                assert step.infos["terminated"][i, 0] == alone["terminated"]
                ends += 1
        assert ends == 8


def test_the_world_shows_the_flags_of_the_last_time_step():
    with countdown_world(3) as world:
        for step in world.rollout(episodes=5, seed=0):
            np.testing.assert_array_equal(world.rewards, step.rewards)
            np.testing.assert_array_equal(world.terminateds, step.terminateds)
            np.testing.assert_array_equal(world.truncateds, step.truncateds)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"schedule": "later"}, "schedule.*'later'"),
        ({"min_ready": 1}, "min_ready.*1 in lock-step"),
        ({"schedule": "ready", "min_ready": 4}, r"min_ready.*\[1, 3\], found 4"),
    ],
)
def test_a_wrong_schedule_is_refused(arguments, words):
    with countdown_world() as world, pytest.raises(ValueError, match=words):
        world.rollout(episodes=1, **arguments)


# Policies


def test_without_a_policy_nothing_runs():
    with World(Countdown, 2, add_pixels=False, num_workers=0) as world:
        with pytest.raises(RuntimeError, match="set_policy"):
            world.rollout(episodes=1)
        with pytest.raises(RuntimeError, match="set_policy"):
            world.evaluate(1)
        assert world.infos == {}


class Told:
    """A policy that notes what it was told."""

    def __init__(self, seed):
        self.seed = seed
        self.told = []

    def set_env(self, pool):
        self.told.append(pool)

    def _set_seed(self, seed):
        self.told.append(seed)

    def get_action(self, infos):
        raise AssertionError("not asked yet")


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_a_policy_is_told_of_the_pool_and_of_its_seed(seed):
    policy = Told(seed)
    with countdown_world() as world:
        world.set_policy(policy)
        assert world.policy is policy
        assert policy.told == [world.envs, *([] if seed is None else [seed])]


def test_a_policy_with_set_seed_is_seeded_by_that_alone():
    class PublicToo(Told):
        def set_seed(self, seed):
            self.told.append(("set_seed", seed))

    policy = PublicToo(7)
    with countdown_world() as world:
        world.set_policy(policy)
        assert policy.told == [world.envs, ("set_seed", 7)]


def test_what_has_no_get_action_is_no_policy():
    with countdown_world() as world, pytest.raises(TypeError, match="get_action"):
        world.set_policy(lambda infos: 0)


# reset, infos and the loop of one's own


@both_kinds
def test_a_loop_of_ones_own_steps_the_environments_that_are_alive(num_workers):
    with World(POINT_GOAL, 3, image_shape=(24, 24), num_workers=num_workers) as world:
        world.set_policy(PointGoalExpert())
        expected = world.evaluate(3, seed=42)["episode_lengths"]
        world.reset(seed=42)
        while not world.terminateds.all():
            actions = world.policy.get_action(world.infos)
            mask = ~world.terminateds
            _, _, terminated, _, _ = world.envs.step(actions, mask=mask)
            world.terminateds |= terminated
        np.testing.assert_array_equal(world.infos["step_idx"][:, 0], expected)


def test_the_infos_are_always_the_pools_latest():
    with countdown_world(2) as world:
        assert world.infos == {}
        _, infos = world.reset(seed=0, options={"length": 3})
        assert world.infos.keys() == infos.keys()
        world.envs.step(np.zeros((2, 2)))
        assert world.infos["step_idx"].ravel().tolist() == [1, 1]


def test_a_reset_zeroes_the_flags_of_its_rows():
    with countdown_world(3) as world:
        ones = np.ones(3, bool)
        world.rewards, world.terminateds, world.truncateds = ones * np.float32(2), ones, ones
        world.reset(seed=0)
        world.rewards, world.terminateds, world.truncateds = ones * np.float32(2), ones, ones
        world.reset(mask=[True, False, True])
        assert world.rewards.tolist() == [0, 2, 0]
        assert world.rewards.dtype == np.float32
        assert world.terminateds.tolist() == world.truncateds.tolist() == [False, True, False]
        assert ones.all()
        world.reset()
        assert not np.any([world.rewards, world.terminateds, world.truncateds])
        assert world.terminateds.dtype == world.truncateds.dtype == bool


@both_kinds
def test_the_infos_hold_the_whole_table(num_workers):
    with World(POINT_GOAL, 2, image_shape=(32, 48), num_workers=num_workers) as world:
        world.set_policy(RandomPolicy(seed=0))
        world.reset(seed=[3, 4], options={"variation": ["all"]})
        table = {
            "proprio": ((4,), np.float32),
            "state": ((7,), np.float64),
            "reward": ((), np.float64),
            "terminated": ((), bool),
            "truncated": ((), bool),
            "action": ((2,), np.float32),
            "step_idx": ((), np.int64),
            "id": ((), np.int64),
            "pixels": ((32, 48, 3), np.uint8),
            "render_time": ((), np.float64),
            "goal": ((32, 48, 3), np.uint8),
            "variation.agent_color": ((3,), np.uint8),
        }
        for key, (shape, dtype) in table.items():
            array = world.infos[key]
            assert (key, array.shape, array.dtype) == (key, (2, 1, *shape), np.dtype(dtype))
        assert np.isnan(world.infos["reward"]).all()
        assert np.isnan(world.infos["action"]).all()
        actions = np.array([[0.5, -0.5], [1, 0]], np.float32)
        observations, rewards, *_ = world.envs.step(actions)
        assert observations is None
        np.testing.assert_array_equal(world.infos["action"][:, 0], actions)
        np.testing.assert_array_equal(world.infos["reward"][:, 0].astype(np.float32), rewards)


# Construction


class Endless(gymnasium.Env):
    action_space = spaces.Discrete(2)
    observation_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}


ENDLESS = EnvSpec("test/Endless-v0", entry_point=Endless, max_episode_steps=9)


@pytest.mark.parametrize(
    ("env", "limit", "expected"),
    [
        (ENDLESS, {}, 100),
        (ENDLESS, {"max_episode_steps": None}, 9),
        (ENDLESS, {"max_episode_steps": 5}, 5),
        (Endless, {"max_episode_steps": 100}, 100),
        (Endless, {"max_episode_steps": 5}, 5),
        (Endless, {}, None),
        (Endless, {"max_episode_steps": None}, None),
    ],
)
def test_time_limits(env, limit, expected):
    with World(env, 2, add_pixels=False, num_workers=0, **limit) as world:
        world.set_policy(RandomPolicy())
        lengths = [
            step.infos["step_idx"].max()
            for step in world.rollout(max_steps=110, seed=0)
            if step.ended.any()
        ]
    assert lengths[:1] == ([] if expected is None else [expected])


def test_the_signature_is_the_documented_one():
    documented = [
        *("image_shape", "max_episode_steps", "goal_conditioned", "pre_wrappers"),
        *("extra_wrappers", "image_transform", "goal_transform", "image_resample", "add_pixels"),
    ]
    world = inspect.signature(World).parameters
    assert list(world)[:11] == ["env", "num_envs", *documented]
    assert str(world["max_episode_steps"].default) == "100"
    assert list(inspect.signature(World.from_env_fns).parameters)[:10] == ["env_fns", *documented]
    assert list(inspect.signature(World.evaluate).parameters)[1:] == [
        *("episodes", "seed", "options", "video", "reset_mode", "dataset", "episodes_idx"),
        *("start_steps", "goal_offset", "eval_budget", "callables", "success", "progress"),
        *("schedule", "min_ready"),
    ]


def test_env_name_is_another_name_of_env():
    with World(env_name=POINT_GOAL, num_envs=2, image_shape=(16, 16), num_workers=0) as world:
        world.reset(seed=0)
        assert world.infos["pixels"].shape == (2, 1, 16, 16, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, TypeError, "exactly one of env and env_name, found neither"),
        ({"env": POINT_GOAL, "env_name": POINT_GOAL, "num_envs": 2}, TypeError, "both"),
        ({"env": Countdown}, TypeError, "num_envs"),
        ({"env": Countdown, "num_envs": 0}, ValueError, "num_envs must be .* found 0"),
        ({"env": Countdown, "num_envs": 1.5}, ValueError, "num_envs"),
        ({"env": Countdown, "num_envs": True}, ValueError, "num_envs"),
        ({"env": 3, "num_envs": 2}, TypeError, "factory, found 3"),
        ({"env": Countdown(), "num_envs": 2}, TypeError, "factory, found <"),
        ({"env": Countdown, "num_envs": 2, "longest": 3}, TypeError, r"\['longest'\]"),
        ({"env": Countdown, "num_envs": 2, "max_episode_steps": 0}, ValueError, "found 0"),
        ({"env": Countdown, "num_envs": 2, "max_episode_steps": 2.5}, ValueError, "2.5"),
        ({"env": Countdown, "num_envs": 2, "pre_wrappers": Countdown}, TypeError, "pre_wrappers"),
        ({"env": Countdown, "num_envs": 2, "extra_wrappers": [1]}, TypeError, "extra_wrappers"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        World(**arguments, add_pixels=False, num_workers=0)


def test_pixels_need_an_image_shape():
    with pytest.raises(ValueError, match="add_pixels=True needs image_shape"):
        World(POINT_GOAL, 2)
    with pytest.raises(ValueError, match="add_pixels=True needs image_shape"):
        World.from_env_fns([Countdown])


@both_kinds
def test_wrappers_and_transforms_reach_the_environments(num_workers):
    class AddInfo(gymnasium.Wrapper):
        def step(self, action):
            *report, info = super().step(action)
            return *report, {**info, "inside": "pixels" not in info}

    class SeeInfo(gymnasium.Wrapper):
        def step(self, action):
            *report, info = super().step(action)
            return *report, {**info, "outside": info["inside"] and "pixels" in info}

    with World(
        POINT_GOAL,
        2,
        image_shape=(8, 8),
        pre_wrappers=[AddInfo],
        extra_wrappers=[SeeInfo],
        image_transform=lambda frame: frame[:2, :3, 0] / 2,
        goal_transform=lambda goal: goal.shape,
        num_workers=num_workers,
        render_size=(20, 30),
    ) as world:
        world.reset(seed=0)
        world.envs.step(np.zeros((2, 2), np.float32))
        assert world.infos["outside"].ravel().tolist() == [True, True]
        assert world.infos["pixels"].shape == (2, 1, 2, 3)
        assert world.infos["goal"] == [[(20, 30, 3)], [(20, 30, 3)]]


def test_a_worker_of_a_world_does_not_load_the_agent_side():
    class Local(gymnasium.Env):  # travels by value, so that this module stays here
        action_space = observation_space = spaces.Discrete(2)

        def modules(self):
            return set(sys.modules)

    with World(Local, 2, add_pixels=False, num_workers=2) as world:
        for modules in world.envs.call("modules"):
            assert "swm_workers.wrappers" in modules
            assert not modules & {"swm_async", "PIL", "torch", "tqdm"}


@both_kinds
def test_from_env_fns_builds_one_environment_with_each_factory(num_workers):
    env_fns = [functools.partial(Countdown, longest) for longest in (1, 1, 6)]
    world = World.from_env_fns(env_fns, add_pixels=False, num_workers=num_workers)
    with world:
        world.set_policy(ByNumber())
        assert (world.num_envs, world.envs.num_workers) == (3, num_workers)
        world.reset(seed=0)
        six = Countdown(6)
        six.reset(seed=2)
        assert world.infos["left"].ravel().tolist() == [1, 1, six.left]


def test_from_env_fns_takes_a_time_limit():
    world = World.from_env_fns([Endless] * 2, None, 4, add_pixels=False, num_workers=0)
    with world:
        world.set_policy(RandomPolicy())
        assert world.evaluate(3, seed=0)["episode_lengths"].tolist() == [4, 4, 4]


def test_from_pool_takes_the_environments_as_they_are():
    pool = EnvPool([Countdown] * 2, num_workers=0)
    with World.from_pool(pool) as world:
        assert world.envs is pool
        world.set_policy(ByNumber())
        results = world.evaluate(3, seed=0)
        assert set(world.infos) == {"number", "left"}
    assert pool.closed
    env = Countdown()
    _, info = env.reset(seed=1)
    total = np.float64(0)
    while env.left:
        _, reward, _, _, info = env.step(np.array([info["number"], info["number"] - 1.0]))
        total += np.float32(reward)
    assert results["episode_returns"][1] == total


def test_from_pool_refuses_what_is_no_pool():
    with pytest.raises(TypeError, match=r"EnvPool, found .* without num_envs"):
        World.from_pool([Countdown])


def test_close_may_be_called_twice():
    world = countdown_world()
    world.close()
    world.close()
    assert world.envs.closed


def test_an_error_in_the_block_is_not_replaced_by_one_of_closing():
    class Clinging(Countdown):
        def close(self):
            raise OSError("clings")

    world = countdown_world(env=Clinging)
    with pytest.warns(Warning, match="clings"), pytest.raises(KeyError, match="mine"), world:
        raise KeyError("mine")
    assert world.envs.closed
