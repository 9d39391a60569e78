"""Evaluation from recorded states starts where the dataset says and aims where it says."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import swm_async as swm
from recorded import Recorded, record_point_goal
from swm_async import EnvPool, NoisyPolicy, PointGoalExpert, RandomPolicy, World, load_dataset
from swm_async.passages import as_image, load_passages
from swm_workers.point_goal import PointGoal

POINT_GOAL = "swm_async/PointGoal-v0"
IDX, STARTS, OFFSET = [2, 0, 4, 1, 0], [0, 29, 7, 12, 3], 30

both_kinds = pytest.mark.parametrize("num_workers", [0, 2])


@pytest.fixture(scope="module")
def walks():
    return record_point_goal(episodes=5, length=60)


class Watching:
    """Passes on to another policy and keeps copies of the infos that it was given, by row."""

    def __init__(self, policy):
        self.policy = policy
        self.seen = []

    def set_env(self, pool):
        if hasattr(self.policy, "set_env"):
            self.policy.set_env(pool)

    def get_action(self, infos):
        copies = {}
        for key, value in infos.items():
            copies[key] = [list(v) for v in value] if isinstance(value, list) else value.copy()
        self.seen.append(copies)
        return self.policy.get_action(infos)


def point_goal_world(num_envs=5, num_workers=0, policy=None, image_shape=(64, 64), **arguments):
    world = World(POINT_GOAL, num_envs, image_shape, num_workers=num_workers, **arguments)
    world.set_policy(PointGoalExpert() if policy is None else policy)
    return world


def play_alone(walks, e, budget=100):
    """Episode e of the run in a plain loop: from a recorded state to a recorded goal."""
    columns = walks.episodes[IDX[e]]
    state, goal = columns["state"][STARTS[e]], columns["state"][STARTS[e] + OFFSET]
    env = PointGoal()
    env.reset(options={"state": state, "goal_state": goal})
    expert, states, total = PointGoalExpert(), [state], 0.0
    for _ in range(budget):
        infos = {"state": states[-1][None, None], "goal_state": goal[None, None]}
        observation, reward, terminated, _, _ = env.step(expert.get_action(infos)[0])
        states.append(observation["state"])
        total += reward
        if terminated:
            break
    return {"states": states, "return": total, "terminated": terminated}


# The run


def test_the_example_of_an_evaluation_from_a_dataset(walks):
    my_dataset = walks
    world = swm.World(
        env_name=POINT_GOAL,
        num_envs=3,
        image_shape=(64, 64),
    )
    world.set_policy(swm.RandomPolicy(world.envs.action_space))
    results = world.evaluate(
        dataset=my_dataset,
        episodes_idx=[0, 1, 2],
        start_steps=[0, 10, 20],
        goal_offset=30,
        eval_budget=100,
        reset_mode="wait",
    )
    assert results["episode_lengths"].shape == (3,)
    assert (results["episode_terminated"] != results["episode_truncated"]).all()
    world.close()


@both_kinds
@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("mode", [None, "wait", "auto"])
def test_every_episode_is_what_a_plain_loop_makes_of_it(walks, num_envs, num_workers, mode):
    if num_workers > num_envs:
        return
    policy = Watching(PointGoalExpert())
    with point_goal_world(num_envs, num_workers, policy) as world:
        results = world.evaluate(
            dataset=walks,
            episodes_idx=IDX,
            start_steps=STARTS,
            goal_offset=OFFSET,
            eval_budget=12,
            reset_mode=mode,
            seed=5,
        )
    alone = [play_alone(walks, e, budget=12) for e in range(5)]
    assert results["episode_returns"].tolist() == [one["return"] for one in alone]
    assert results["episode_lengths"].tolist() == [len(one["states"]) - 1 for one in alone]
    assert results["episode_terminated"].tolist() == [one["terminated"] for one in alone]
    assert results["episode_truncated"].tolist() == [not one["terminated"] for one in alone]
    assert {True, False} == {one["terminated"] for one in alone}
    assert results["seeds"].tolist() == [5, 6, 7, 8, 9]


def test_the_expert_reaches_recorded_goals():
    walks = record_point_goal(episodes=30, length=60, size=(16, 16))
    rng = np.random.default_rng(0)
    with point_goal_world(num_envs=8, add_pixels=False, image_shape=None) as world:
        results = world.evaluate(
            dataset=walks,
            episodes_idx=np.repeat(np.arange(30), 4),
            start_steps=rng.integers(0, 30, 120),
            goal_offset=29,
            eval_budget=100,
        )
    assert results["success_rate"] >= 95
    assert len(set(results["episode_lengths"].tolist())) > 10


@both_kinds
def test_every_episode_starts_in_its_recorded_state(walks, num_workers):
    policy = Watching(PointGoalExpert())
    with point_goal_world(5, num_workers, policy) as world:
        world.evaluate(
            dataset=walks, episodes_idx=IDX, start_steps=STARTS, goal_offset=OFFSET, eval_budget=2
        )
    first = policy.seen[0]
    for e in range(5):
        columns = walks.episodes[IDX[e]]
        for key in ("state", "proprio", "pixels"):
            np.testing.assert_array_equal(first[key][e, 0], columns[key][STARTS[e]])
        # Of the run itself, not of the recording.
        assert np.isnan(first["reward"][e, 0])
        assert first["step_idx"][e, 0] == 0
        # The environment is there too: its next state follows from this one.
        after = policy.seen[1]["state"][e, 0]
        np.testing.assert_array_equal(after, play_alone(walks, e)["states"][1])


@both_kinds
def test_goals_are_in_the_infos_at_every_step(walks, num_workers):
    policy = Watching(PointGoalExpert())
    with point_goal_world(5, num_workers, policy) as world:
        world.evaluate(
            dataset=walks, episodes_idx=IDX, start_steps=STARTS, goal_offset=OFFSET, eval_budget=8
        )
    assert len(policy.seen) == 8
    for infos in policy.seen:
        for e in range(5):
            columns = walks.episodes[IDX[e]]
            np.testing.assert_array_equal(
                infos["goal"][e, 0], columns["pixels"][STARTS[e] + OFFSET]
            )
            for key in ("state", "proprio", "distance"):
                expected = columns[key][STARTS[e] + OFFSET]
                np.testing.assert_array_equal(infos[f"goal_{key}"][e, 0], expected)
        assert "_goal" not in infos
        # A column of goals is no state: there is no goal of a goal.
        assert "goal_goal_state" not in infos


def test_goals_once_handed_out_stay_as_they_were(walks):
    class Keeping(PointGoalExpert):
        def get_action(self, infos):
            kept.append(infos["goal_proprio"])
            return super().get_action(infos)

    kept = []
    with point_goal_world(1, policy=Keeping()) as world:
        world.evaluate(
            dataset=walks, episodes_idx=IDX[:2], start_steps=STARTS[:2], goal_offset=OFFSET,
            eval_budget=1,
        )  # fmt: skip
    for e in range(2):
        expected = walks.episodes[IDX[e]]["proprio"][STARTS[e] + OFFSET]
        np.testing.assert_array_equal(kept[e][0, 0], expected)


def test_the_world_shows_the_infos_that_the_policy_sees_while_the_run_lasts(walks):
    class Comparing(PointGoalExpert):
        def get_action(self, infos):
            assert set(world.infos) == set(infos) - {"_needs_flush"}
            for key, value in world.infos.items():
                np.testing.assert_array_equal(value, infos[key])
            return super().get_action(infos)

    with point_goal_world(2, policy=Comparing()) as world:
        world.evaluate(
            dataset=walks, episodes_idx=IDX[:3], start_steps=STARTS[:3], goal_offset=OFFSET
        )
        assert "goal_proprio" not in world.infos


@both_kinds
def test_wait_keeps_the_rows_of_finished_environments(walks, num_workers):
    alone = [play_alone(walks, e) for e in range(5)]
    policy = Watching(PointGoalExpert())
    with point_goal_world(5, num_workers, policy) as world:
        world.evaluate(dataset=walks, episodes_idx=IDX, start_steps=STARTS, goal_offset=OFFSET)
    lengths = [len(one["states"]) - 1 for one in alone]
    assert len(set(lengths)) > 1
    for t, infos in enumerate(policy.seen):
        for e in range(5):
            expected = alone[e]["states"][min(t, lengths[e])]
            np.testing.assert_array_equal(infos["state"][e, 0], expected)


def test_fewer_episodes_than_environments_leave_the_others_unused(walks):
    with point_goal_world(4) as world:
        world.evaluate(
            dataset=walks, episodes_idx=[0, 1], start_steps=[0, 0], goal_offset=3, seed=9
        )
        assert world.envs.seeds.tolist() == [9, 10, -1, -1]


def test_a_copying_pool_shows_starts_and_goals_too(walks):
    policy = Watching(PointGoalExpert())
    with point_goal_world(2, policy=policy, copy=True) as world:
        world.evaluate(
            dataset=walks, episodes_idx=IDX[:2], start_steps=STARTS[:2], goal_offset=OFFSET
        )
    for infos in policy.seen:
        for e in range(2):
            columns = walks.episodes[IDX[e]]
            np.testing.assert_array_equal(
                infos["goal_proprio"][e, 0], columns["proprio"][STARTS[e] + OFFSET]
            )
    np.testing.assert_array_equal(
        policy.seen[0]["pixels"][1, 0], walks.episodes[IDX[1]]["pixels"][STARTS[1]]
    )


def test_an_environment_built_anew_begins_again_in_the_recorded_state(walks):
    failures = []

    class FailsOnce(gymnasium.Wrapper):
        steps = 0

        def step(self, action):
            self.steps += 1
            if not failures and self.steps == 3:
                failures.append(self.steps)
                raise OSError("once")
            return super().step(action)

    world = point_goal_world(2, on_failure="restart", pre_wrappers=[FailsOnce])
    with world, pytest.warns(UserWarning, match="once"):
        results = world.evaluate(
            dataset=walks, episodes_idx=IDX[:2], start_steps=STARTS[:2], goal_offset=OFFSET
        )
    assert failures
    returns = [play_alone(walks, e)["return"] for e in range(2)]
    assert results["episode_returns"].tolist() == returns


# How the dataset is read


def test_the_dataset_is_asked_once_for_the_rows_from_start_to_goal(walks):
    walks.calls.clear()
    with point_goal_world(2) as world:
        world.evaluate(
            dataset=walks, episodes_idx=[3, 1, 3], start_steps=[4, 0, 29], goal_offset=30,
            eval_budget=1,
        )  # fmt: skip
    assert walks.calls == [([3, 1, 3], [4, 0, 29], [35, 31, 60])]


def test_images_with_channels_first_are_read_with_channels_last():
    image = np.arange(24, dtype=np.uint8)
    assert as_image(image.reshape(3, 2, 4)).shape == (2, 4, 3)
    assert as_image(image.reshape(3, 2, 4))[1, 2].tolist() == [6, 14, 22]
    assert as_image(image.reshape(1, 4, 6)).shape == (4, 6, 1)
    assert as_image(image.reshape(2, 4, 3)).shape == (2, 4, 3)
    assert as_image(image[:9].reshape(3, 1, 3)).shape == (3, 1, 3)
    assert as_image(image.reshape(2, 3, 4)).shape == (2, 3, 4)
    assert as_image(image.reshape(2, 6, 2)) is None
    assert as_image(image.reshape(2, 4, 3).astype(float)) is None
    assert as_image(image.reshape(24, 1)) is None


def test_images_are_resized_to_the_shape_of_the_world(walks):
    first = [{**e, "pixels": np.moveaxis(e["pixels"], 3, 1)} for e in walks.episodes]
    policy = Watching(PointGoalExpert())
    with point_goal_world(1, policy=policy, image_shape=(32, 48)) as world:
        world.evaluate(
            dataset=Recorded(first), episodes_idx=[1], start_steps=[4], goal_offset=9, eval_budget=2
        )
    pixels = walks.episodes[1]["pixels"]
    for key, image in (("pixels", pixels[4]), ("goal", pixels[13])):
        expected = Image.fromarray(image).resize((48, 32), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(policy.seen[0][key][0, 0], np.asarray(expected))


@pytest.mark.torch
def test_torch_tensors_are_read_like_arrays(walks):
    import torch

    def tensors(episode):
        return {
            name: torch.from_numpy(np.moveaxis(v, 3, 1).copy() if name == "pixels" else v)
            for name, v in episode.items()
        }

    def run(dataset):
        policy = Watching(PointGoalExpert())
        with point_goal_world(2, policy=policy) as world:
            results = world.evaluate(
                dataset=dataset, episodes_idx=[0, 1], start_steps=[3, 4], goal_offset=9, seed=0
            )
        return results, policy.seen

    found, found_infos = run(Recorded([tensors(episode) for episode in walks.episodes]))
    expected, expected_infos = run(walks)
    np.testing.assert_equal(dict(found), dict(expected))
    for one, other in zip(found_infos, expected_infos, strict=True):
        for key in one.keys() - {"render_time"}:
            np.testing.assert_array_equal(one[key], other[key], strict=True)


def test_goal_transform_shapes_the_goals_of_the_dataset(walks):
    policy = Watching(PointGoalExpert())
    with point_goal_world(1, policy=policy, goal_transform=lambda goal: goal[:2, :3, 0]) as world:
        world.evaluate(
            dataset=walks, episodes_idx=[1], start_steps=[4], goal_offset=9, eval_budget=1
        )
    expected = walks.episodes[1]["pixels"][13][:2, :3, 0]
    np.testing.assert_array_equal(policy.seen[0]["goal"][0, 0], expected)


def test_a_column_of_seeds_seeds_the_episodes(walks):
    seeded = [{**e, "seed": np.full(60, 40 + k)} for k, e in enumerate(walks.episodes)]
    policy = Watching(PointGoalExpert())
    with point_goal_world(2, policy=policy) as world:
        results = world.evaluate(
            dataset=Recorded(seeded), episodes_idx=[3, 0, 3], start_steps=[0, 1, 2],
            goal_offset=3, seed=7, eval_budget=1,
        )  # fmt: skip
        assert results["seeds"].tolist() == [43, 40, 43]
        # As in stable-worldmodel, the goal's row has every column.
        assert policy.seen[0]["goal_seed"].tolist() == [[43], [40]]
        assert world.envs.seeds.tolist() == [43, 40]


class WithEpisodeData(Recorded):
    episode_column_names = ("color", "seed", "goal_color")

    def get_episode_data(self, episode):
        return {"color": f"color {episode}", "seed": 100 + episode, "goal_color": "no", "more": 1}


def test_columns_of_the_whole_episode_join_the_initial_row(walks):
    passages = load_passages(WithEpisodeData(walks.episodes), [2, 0], [0, 0], 1)
    assert [p.init_row["color"] for p in passages] == ["color 2", "color 0"]
    assert [p.init_row["seed"] for p in passages] == [102, 100]
    for passage in passages:
        assert not {"goal_color", "more"} & passage.init_row.keys()
        assert not {"goal_seed", "goal_goal_color"} & passage.goal_row.keys()


# Environments that are brought into a state by calls


class Slider(gymnasium.Env):
    """A position that moves by its action; nothing about it is drawn from a dataset by itself."""

    action_space = spaces.Box(-9, 9, (1,), np.float64)
    observation_space = spaces.Box(-99, 99, (1,), np.float64)
    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.aim, self.calls = -50.0, 0.0, []
        return np.array([self.position]), self._info(label="reset", once=1.5)

    def step(self, action):
        self.position += action[0]
        observation = np.array([self.position])
        done = self.position == self.aim
        return observation, self.position, done, False, self._info(late=2)

    def _info(self, **more):
        image = np.full((4, 6, 3), 7, np.uint8)
        return {"image": image, "planes": np.moveaxis(image, 2, 0), "count": 3, "aim": 1j, **more}

    def put(self, position, speed="default"):
        self.position = float(position)
        self.calls.append(("put", type(position), speed))

    def aim_at(self, aim, scale):
        self.aim = float(aim) * scale
        self.calls.append(("aim_at", scale))


class TowardsGoal:
    """Moves each row by what lies between it and its goal, half of it at the first step."""

    def get_action(self, infos):
        distance = infos["goal_observation"][:, 0] - infos["observation"][:, 0]
        return np.where(infos["step_idx"] == 0, distance / 2, distance)


SLIDES = Recorded(
    [
        {
            "observation": np.arange(10.0, 18.0)[:, None] + 100 * k,
            "position": np.arange(10.0, 18.0) + 100 * k,
            "label": [f"row {t}" for t in range(8)],
            "once": np.arange(8) + 0.25,
            "late": np.arange(8),
            "count": np.arange(8) + 0.5,
            "aim": np.zeros((8, 2)),
            "image": np.stack([np.full((2, 3, 3), t, np.uint8) for t in range(8)]),
            "planes": np.stack([np.full((3, 4, 6), t, np.uint8) for t in range(8)]),
            "reward": np.ones(8),
            "terminated": np.ones(8, bool),
            "unknown": np.ones(8),
        }
        for k in range(3)
    ]
)
PUT = {"method": "put", "args": {"position": {"value": "position"}, "speed": {"value": "speed"}}}
AIM = {
    "method": "aim_at",
    "args": {
        "aim": {"value": "goal_position", "in_dataset": True},
        "scale": {"value": 1.0, "in_dataset": False},
    },
}


def slide(num_envs=3, num_workers=0, episodes=3, callables=(PUT, AIM), **arguments):
    policy = Watching(TowardsGoal())
    world = World(Slider, num_envs, add_pixels=False, num_workers=num_workers)
    with world:
        world.set_policy(policy)
        results = world.evaluate(
            dataset=SLIDES,
            episodes_idx=list(range(episodes)),
            start_steps=[2] * episodes,
            goal_offset=4,
            callables=callables,
            **arguments,
        )
        calls = world.envs.get_attr("calls")
    return results, policy.seen, calls


@both_kinds
@pytest.mark.parametrize("mode", ["wait", "auto"])
def test_callables_bring_an_environment_into_the_recorded_state(num_workers, mode):
    for num_envs in (2, 3):
        results, _, calls = slide(num_envs, num_workers, reset_mode=mode)
        # From 12 half of the way to 16, then the rest of it.
        assert results["episode_returns"].tolist() == [14 + 16, 114 + 116, 214 + 216]
        assert results["episode_terminated"].all()
        # Columns are copies in numpy's types; an argument whose column is missing is left out.
        assert calls[0] == [("put", np.float64, "default"), ("aim_at", 1.0)]


def test_callables_are_for_environments_that_cannot_take_options_from_a_dataset(walks):
    with point_goal_world(2) as world:
        results = world.evaluate(
            dataset=walks, episodes_idx=IDX[:2], start_steps=STARTS[:2], goal_offset=OFFSET,
            callables=[{"method": "fly"}],
        )  # fmt: skip
    assert results["episode_returns"].tolist() == [play_alone(walks, e)["return"] for e in (0, 1)]


def test_recorded_values_replace_those_that_the_reset_reported():
    _, seen, _ = slide()
    first, second = seen[:2]
    assert first["observation"][:, 0, 0].tolist() == [12, 112, 212]
    assert first["label"] == [["row 2"]] * 3
    assert first["once"][:, 0].tolist() == [2.25] * 3
    # An image of another size is resized, one with channels first stays so.
    assert first["image"].shape == (3, 1, 4, 6, 3)
    assert (first["image"] == 2).all()
    assert first["planes"].shape == (3, 1, 3, 4, 6)
    assert (first["planes"] == 2).all()
    # Another shape, a value that the type cannot hold, and what is the run's own stay.
    assert first["aim"].tolist() == [[1j]] * 3
    assert first["count"].tolist() == [[3]] * 3
    assert np.isnan(first["reward"]).all()
    assert not first["terminated"].any()
    assert first["step_idx"].tolist() == [[0]] * 3
    assert "unknown" not in first
    # At the steps the environment reports itself.
    assert second["observation"][:, 0, 0].tolist() == [14, 114, 214]
    assert (second["image"] == 7).all()


def test_a_key_that_the_reset_did_not_report_is_not_replaced():
    for num_envs in (1, 3):
        _, seen, _ = slide(num_envs)
        for infos in seen:
            begun = infos["step_idx"][:, 0] == 0
            if "late" in infos:
                assert (infos["late"][begun, 0] == 0).all()


def test_starts_and_goals_never_reach_the_arrays_of_the_pool():
    class Comparing(TowardsGoal):
        def get_action(self, infos):
            if (infos["step_idx"] == 0).all():
                assert world.envs.infos["observation"].tolist() == [[[-50.0]]] * 2
                assert world.envs.infos["label"] == [["reset"]] * 2
            assert "goal_observation" not in world.envs.infos
            return super().get_action(infos)

    world = World(Slider, 2, add_pixels=False, num_workers=0)
    with world:
        world.set_policy(Comparing())
        world.evaluate(
            dataset=SLIDES, episodes_idx=[0, 1], start_steps=[0, 0], goal_offset=4,
            callables=[PUT, AIM],
        )  # fmt: skip


def test_the_options_of_the_caller_join_those_from_the_dataset(walks):
    class Noting(gymnasium.Wrapper):
        def reset(self, *, seed=None, options=None):
            observation, info = super().reset(seed=seed, options=options)
            return observation, {**info, "options": sorted(options)}

    policy = Watching(PointGoalExpert())
    with point_goal_world(2, policy=policy, pre_wrappers=[Noting]) as world:
        world.evaluate(
            dataset=walks, episodes_idx=[0, 1], start_steps=[0, 0], goal_offset=4, eval_budget=1,
            options=[{"mine": 1, "state": "replaced"}, None],
        )  # fmt: skip
    own = ["goal_state", "state", "variation"]
    assert policy.seen[0]["options"] == [[["goal_state", "mine", "state", "variation"]], [own]]


def test_a_pool_of_ones_own_can_be_evaluated_from_a_dataset(walks):
    pool = EnvPool([lambda: gymnasium.make(POINT_GOAL)] * 2, num_workers=0)

    class State(gymnasium.Wrapper):
        def reset(self, **arguments):
            observation, info = super().reset(**arguments)
            return observation, {**info, "state": observation["state"]}

        def step(self, action):
            observation, *rest, info = super().step(action)
            return observation, *rest, {**info, "state": observation["state"]}

    pool.close()
    pool = EnvPool([lambda: State(gymnasium.make(POINT_GOAL))] * 2, num_workers=0)
    with World.from_pool(pool) as world:
        world.set_policy(PointGoalExpert())
        results = world.evaluate(
            dataset=walks, episodes_idx=IDX, start_steps=STARTS, goal_offset=OFFSET
        )
    lengths = [len(play_alone(walks, e)["states"]) - 1 for e in range(5)]
    assert results["episode_lengths"].tolist() == lengths


# What is refused

GOOD = {"episodes_idx": [0, 1], "start_steps": [0, 10], "goal_offset": 30}


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"episodes_idx": None}, ValueError, "episodes_idx must be a list of integers.*None"),
        ({"start_steps": None}, ValueError, "start_steps must be a list"),
        ({"goal_offset": None}, ValueError, "goal_offset must be an integer, found None"),
        ({"goal_offset": -1}, ValueError, "goal_offset.*-1"),
        ({"episodes_idx": 3}, ValueError, "episodes_idx.*3"),
        ({"episodes_idx": [], "start_steps": []}, ValueError, "episodes_idx.*none"),
        ({"episodes_idx": [0, 1.5]}, ValueError, r"episodes_idx\[1\].*1.5"),
        ({"episodes_idx": [7, 1]}, ValueError, r"unknown episodes \[7\].*0 to 4"),
        ({"episodes_idx": [-1, 9]}, ValueError, r"unknown episodes \[-1, 9\]"),
        ({"start_steps": [0]}, ValueError, "found 2 and 1"),
        ({"start_steps": [-2, 0]}, ValueError, r"start_steps\[0\] = -2 of episode 0"),
        ({"start_steps": [0, 60]}, ValueError, r"start_steps\[1\] = 60 of episode 1.*0 to 59"),
        (
            {"start_steps": [30, 41]},
            ValueError,
            r"goal of start_steps\[0\] = 30, row 60 of episode 0.*goal of start_steps\[1\] = 41",
        ),
        ({"episodes": 3}, ValueError, "episodes_idx, 2, or None, found 3"),
        ({"eval_budget": 0}, ValueError, "max_episode_steps.*0"),
        ({"options": [{}]}, ValueError, "found 1 for 2 episodes"),
        ({"callables": {"method": "put"}}, TypeError, "callables must be a list"),
        ({"callables": ["put"]}, ValueError, "callables must be mappings.*'put'"),
        ({"callables": [{"args": {}}]}, ValueError, "callables must be mappings"),
        (
            {"callables": [{"method": "put", "args": {"position": "position"}}]},
            ValueError,
            "callables must be mappings",
        ),
        ({"dataset": {"pixels": 3}}, TypeError, "load_chunk"),
    ],
)
def test_wrong_arguments_are_named_before_anything_moves(walks, arguments, error, words):
    with point_goal_world(2) as world:
        with pytest.raises(error, match=words):
            world.evaluate(**{"dataset": walks, **GOOD, **arguments})
        assert world.envs.seeds.tolist() == [-1, -1]
        assert world.infos == {}


def test_a_missing_method_is_named_before_anything_moves():
    with World(Slider, 2, add_pixels=False, num_workers=0) as world:
        world.set_policy(RandomPolicy())
        with pytest.raises(ValueError, match="method 'fly', which environment 0 does not have"):
            world.evaluate(dataset=SLIDES, **{**GOOD, "start_steps": [0, 0], "goal_offset": 1},
                           callables=[PUT, {"method": "fly"}])  # fmt: skip
        assert world.infos == {}


def test_a_missing_column_is_named_by_the_environment_that_needs_it(walks):
    stateless = [{k: v for k, v in e.items() if k != "state"} for e in walks.episodes]
    with point_goal_world(2) as world:
        with pytest.raises(ValueError, match="PointGoal needs the dataset column 'state'"):
            world.evaluate(dataset=Recorded(stateless), **GOOD)
        assert world.infos == {}


@pytest.mark.parametrize("bad", [-1, 0.5, np.nan, "seven"])
def test_a_column_of_seeds_that_holds_none_is_refused(walks, bad):
    seeded = [{**e, "seed": np.array([3] * 59 + [3] if k else [bad] * 60)}
              for k, e in enumerate(walks.episodes)]  # fmt: skip
    with point_goal_world(2) as world, pytest.raises(ValueError, match=r"'seed'.* in passage 0"):
        world.evaluate(dataset=Recorded(seeded), **GOOD)


def test_a_dataset_that_tells_no_lengths_is_checked_by_the_rows_it_gives(walks):
    class Plain:
        load_chunk = walks.load_chunk

    passages = load_passages(Plain(), [0], [29], 30)
    np.testing.assert_array_equal(passages[0].init_row["state"], walks.episodes[0]["state"][29])
    with pytest.raises(ValueError, match=r"episode 0 has no rows 30 to 60: .* 30 of 31 rows"):
        load_passages(Plain(), [0], [30], 30)


# From recordings of a World


@both_kinds
@pytest.mark.parametrize("name", ["walks", "walks.h5"])
def test_a_recording_is_evaluated_from_and_every_episode_starts_in_its_recorded_state(
    tmp_path, num_workers, name
):
    if name.endswith(".h5"):
        pytest.importorskip("h5py")
    path = tmp_path / name
    options = {"variation": ["all"]}
    with point_goal_world(3, num_workers, NoisyPolicy(PointGoalExpert(), 0.8)) as world:
        world.collect(path, episodes=6, seed=2, options=options, progress=False)
        dataset = load_dataset(path)
        lengths = np.asarray(dataset.lengths)
        starts = lengths // 3
        offset = int((lengths - starts).min()) - 1
        policy = Watching(PointGoalExpert())
        world.set_policy(policy)
        results = world.evaluate(
            dataset=dataset,
            episodes_idx=list(range(6)),
            start_steps=starts.tolist(),
            goal_offset=offset,
            eval_budget=100,
        )
    assert results["success_rate"] == 100
    # In rounds of three: the first infos of each round are those of its starts.
    rounds = [infos for infos in policy.seen if (infos["step_idx"] == 0).all()]
    assert len(rounds) == 2
    for e in range(6):
        recorded = dataset.load_episode(e)
        seen = rounds[e // 3]
        for key in ("state", "proprio", "pixels", "distance", "variation.agent_color"):
            np.testing.assert_array_equal(seen[key][e % 3, 0], recorded[key][starts[e]])
        goal = starts[e] + offset
        np.testing.assert_array_equal(seen["goal"][e % 3, 0], recorded["pixels"][goal])
        np.testing.assert_array_equal(seen["goal_state"][e % 3, 0], recorded["state"][goal])
    if hasattr(dataset, "close"):
        dataset.close()
