"""The World's wrapper puts everything that an environment reports into its infos."""

import enum
import os
import subprocess
import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

import swm_workers.wrappers
from swm_workers.wrappers import InfoSettings, InfoWrapper, WorldEnvFactory

PLAIN = InfoSettings(add_pixels=False)
LOWEST = np.iinfo(np.int64).min


class Scripted(gymnasium.Env):
    """Reports what it was told to, and changes the action that it was given."""

    def __init__(self, action_space=None, observation=(1.5, 2.5), info=None, frame=None, **report):
        self.action_space = action_space or spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Box(-9, 9, (2,), np.float64)
        self.observation = observation if isinstance(observation, dict) else np.array(observation)
        self.info = {} if info is None else info
        self.report = {"reward": 0.25, "terminated": False, "truncated": False, **report}
        self.frame = frame
        self.render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation, self.info

    def step(self, action):
        if isinstance(action, np.ndarray):
            action[...] = 0
        return self.observation, *self.report.values(), self.info

    def render(self):
        return self.frame


def wrapped(settings=PLAIN, **arguments):
    return InfoWrapper(Scripted(**arguments), settings)


def assert_same(found, expected):
    """Equal values of equal types, for scalars and arrays."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


# The table


def test_the_infos_after_a_reset():
    _, info = wrapped(info={"extra": 3}).reset(seed=5)
    drawn = int(np.random.default_rng(5).integers(0, 2**63 - 1))
    expected = {
        "extra": 3,
        "observation": np.array([1.5, 2.5]),
        "reward": float("nan"),
        "terminated": False,
        "truncated": False,
        "action": np.array([np.nan, np.nan], np.float32),
        "step_idx": 0,
        "id": drawn,
    }
    assert info.keys() == expected.keys()
    for key, value in expected.items():
        assert_same(info[key], value)


def test_the_infos_after_a_step():
    env = wrapped(reward=np.float32(0.1), terminated=np.True_, truncated=np.array([False]))
    _, first = env.reset(seed=5)
    env.step(np.zeros(2))
    observation, reward, terminated, truncated, info = env.step(np.array([0.5, -1.0]))
    assert_same(observation, np.array([1.5, 2.5]))
    assert_same(reward, np.float32(0.1))
    assert (terminated, truncated) == (True, False)
    expected = {
        "observation": np.array([1.5, 2.5]),
        "reward": 0.10000000149011612,  # the float32 nearest to 0.1, nothing rounded away
        "terminated": True,
        "truncated": False,
        "action": np.array([0.5, -1.0], np.float32),
        "step_idx": 2,
        "id": first["id"],
    }
    assert info.keys() == expected.keys()
    for key, value in expected.items():
        assert_same(info[key], value)


def test_each_key_of_a_dict_observation_becomes_an_info():
    observation = {"proprio": np.arange(3), "pose": {"x": 1}}
    _, info = wrapped(observation=observation).reset()
    assert info["proprio"] is observation["proprio"]
    assert info["pose"] == {"x": 1}
    assert "observation" not in info


def test_step_idx_starts_again_and_id_is_drawn_again_at_each_reset():
    env = wrapped()
    generator = np.random.default_rng(8)
    env.reset(seed=8)
    env.step(np.zeros(2))
    generator.integers(0, 2**63 - 1)
    _, info = env.reset()
    assert info["step_idx"] == 0
    assert info["id"] == int(generator.integers(0, 2**63 - 1))


@pytest.mark.parametrize(
    ("reward", "expected"), [(3, 3.0), (True, 1.0), (np.array([0.5]), 0.5), (np.array(2), 2.0)]
)
def test_rewards_of_other_kinds_are_floats_in_the_infos(reward, expected):
    env = wrapped(reward=reward)
    env.reset()
    found = env.step(np.zeros(2))
    assert found[1] is reward
    assert_same(found[4]["reward"], expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [("reward", np.zeros(2)), ("reward", None), ("terminated", np.zeros(3, bool))],
)
def test_a_reward_or_flag_that_is_no_scalar_is_an_error_that_says_which(name, value):
    env = wrapped(**{name: value})
    env.reset()
    with pytest.raises(ValueError, match=f"{name} must be one .* of shape"):
        env.step(np.zeros(2))


# Actions

ACTIONS = {
    "float64 box": (
        spaces.Box(-1, 1, (1, 2), np.float64),
        np.array([[0.1, 0.2]]),
        {"action": (np.full((1, 2), np.nan), np.array([[0.1, 0.2]]))},
    ),
    "uint8 box": (
        spaces.Box(0, 255, (1,), np.uint8),
        np.array([7]),
        {"action": (np.zeros(1, np.uint8), np.array([7], np.uint8))},
    ),
    "discrete": (
        spaces.Discrete(3, start=-1),
        np.int64(-1),
        {"action": (np.int64(LOWEST), np.int64(-1))},
    ),
    "multi-discrete": (
        spaces.MultiDiscrete([2, 3]),
        np.array([1, 2]),
        {"action": (np.full(2, LOWEST), np.array([1, 2]))},
    ),
    "multi-binary": (
        spaces.MultiBinary(2),
        np.array([1, 0]),
        {"action": (np.full(2, -128, np.int8), np.array([1, 0], np.int8))},
    ),
    "dict": (
        spaces.Dict({"arm": spaces.Dict({"grip": spaces.Discrete(2)}), "move": spaces.Box(0, 1)}),
        {"arm": {"grip": np.int64(1)}, "move": np.array([0.5])},
        {
            "action.arm.grip": (np.int64(LOWEST), np.int64(1)),
            "action.move": (np.array([np.nan], np.float32), np.array([0.5], np.float32)),
        },
    ),
    "tuple": (
        spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)]),
        (np.int64(1), np.array([0.5])),
        {
            "action.0": (np.int64(LOWEST), np.int64(1)),
            "action.1": (np.array([np.nan], np.float32), np.array([0.5], np.float32)),
        },
    ),
    "text": (spaces.Text(5), "left", {"action": (None, "left")}),
}


@pytest.mark.parametrize("case", ACTIONS)
def test_the_action_is_recorded_in_the_dtype_of_its_space(case):
    space, action, expected = ACTIONS[case]
    env = wrapped(action_space=space)
    _, after_reset = env.reset()
    after_step = env.step(action)[4]
    for info, position in ((after_reset, 0), (after_step, 1)):
        assert {key for key in info if key.startswith("action")} == expected.keys()
        for key, values in expected.items():
            assert_same(info[key], values[position])


def test_the_recorded_action_is_the_one_given_though_the_environment_changes_it():
    env = wrapped()
    env.reset()
    action = np.ones(2, np.float32)
    info = env.step(action)[4]
    np.testing.assert_array_equal(action, [0, 0])
    np.testing.assert_array_equal(info["action"], [1, 1])


def test_the_fill_value_of_the_action_survives_a_consumer_that_writes():
    env = wrapped()
    with pytest.raises(ValueError, match="read-only"):
        env.reset()[1]["action"][:] = 1
    np.testing.assert_array_equal(env.reset()[1]["action"], [np.nan, np.nan])


# Pixels


def frame(height, width, channels=3, seed=0):
    shape = (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def checkerboard(channels):
    """Pixels of 0 and 255 in turn, `(8, 8, channels)`."""
    board = (np.indices((8, 8)).sum(axis=0) % 2 * 255).astype(np.uint8)
    return np.repeat(board[..., None], channels, axis=2)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_frames_are_resized_with_antialiasing(channels):
    settings = InfoSettings((2, 4))
    _, info = wrapped(settings, frame=checkerboard(channels)).reset()
    assert info["pixels"].shape == (2, 4, channels)
    assert info["pixels"].dtype == np.uint8
    # Any average of a whole neighbourhood is grey; single samples would be black and white.
    np.testing.assert_allclose(info["pixels"], 127.5, atol=3)


def test_the_resample_filter_is_the_one_asked_for():
    pixels = frame(4, 6)
    means = pixels.reshape(2, 2, 3, 2, 3).mean(axis=(1, 3))
    for box in ("box", "BOX", 4, enum.Enum("Filter", {"BOX": "box"}).BOX):
        _, info = wrapped(InfoSettings((2, 3), image_resample=box), frame=pixels).reset()
        np.testing.assert_allclose(info["pixels"], means, atol=1)
    _, info = wrapped(InfoSettings((8, 12), image_resample="nearest"), frame=pixels).reset()
    np.testing.assert_array_equal(info["pixels"], pixels.repeat(2, axis=0).repeat(2, axis=1))


def test_the_fourth_channel_does_not_weigh_the_colours():
    pixels = frame(6, 6, 4)
    pixels[..., 3] = 0
    opaque = np.ascontiguousarray(pixels[..., :3])
    _, four = wrapped(InfoSettings((3, 3)), frame=pixels).reset()
    _, three = wrapped(InfoSettings((3, 3)), frame=opaque).reset()
    np.testing.assert_array_equal(four["pixels"][..., :3], three["pixels"])
    np.testing.assert_array_equal(four["pixels"][..., 3], 0)


def test_a_frame_of_the_right_shape_passes_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    pixels = frame(5, 7)
    env = wrapped(InfoSettings((5, 7)), frame=pixels)
    assert env.reset()[1]["pixels"] is pixels
    assert env.step(np.zeros(2))[4]["pixels"] is pixels


def test_a_missing_pillow_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    env = wrapped(InfoSettings((5, 5)), frame=frame(5, 7))
    with pytest.raises(ImportError, match=r"pip install swm_async\[pixels\]"):
        env.reset()


def test_image_transform_takes_the_place_of_the_resize():
    pixels = frame(4, 4)
    settings = InfoSettings((2, 2), image_transform=lambda image: image[::4, ::4] / 255)
    _, info = wrapped(settings, frame=pixels).reset()
    np.testing.assert_array_equal(info["pixels"], pixels[:1, :1] / 255)


def test_several_frames_have_a_key_each():
    left, right = frame(4, 4, seed=1), frame(4, 4, seed=2)
    _, info = wrapped(InfoSettings((4, 4)), frame={"left": left, "right": right}).reset()
    assert info["pixels.left"] is left
    assert info["pixels.right"] is right
    _, info = wrapped(InfoSettings((4, 4)), frame=[left, right]).reset()
    assert info["pixels.0"] is left
    assert info["pixels.1"] is right
    assert "pixels" not in info


def test_render_multiview_comes_first_also_through_wrappers():
    class MultiView(Scripted):
        def render_multiview(self):
            return {"top": self.frame}

        def render(self):
            raise AssertionError("render_multiview comes first")

    env = gymnasium.wrappers.OrderEnforcing(MultiView(frame=frame(4, 4)))
    _, info = InfoWrapper(env, InfoSettings((4, 4))).reset()
    assert "pixels.top" in info


def test_render_time_is_the_time_of_rendering_alone(monkeypatch):
    clock = iter([10.0, 12.5, 100.0])
    monkeypatch.setattr(swm_workers.wrappers, "perf_counter", lambda: next(clock))
    _, info = wrapped(InfoSettings((2, 2)), frame=frame(4, 4)).reset()
    assert_same(info["render_time"], 2.5)


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (None, r"NoneType \(\)"),
        (np.zeros((4, 4, 3)), r"float64 \(4, 4, 3\)"),
        (np.zeros((4, 4), np.uint8), r"uint8 \(4, 4\)"),
    ],
)
def test_what_is_no_frame_is_refused_with_a_remedy(bad, found):
    with pytest.raises(ValueError, match=f"{found}.*rgb_array.*add_pixels=False"):
        wrapped(InfoSettings((4, 4)), frame=bad).reset()


# Goals


def test_goal_images_are_resized_like_pixels():
    pixels = frame(8, 8)
    settings = InfoSettings((4, 4), image_resample="box")
    _, info = wrapped(settings, frame=pixels, info={"goal": pixels.copy()}).reset()
    np.testing.assert_array_equal(info["goal"], info["pixels"])
    assert info["goal"].shape == (4, 4, 3)


def test_a_goal_that_changes_in_place_is_resized_again():
    goal = np.zeros((8, 8, 3), np.uint8)
    env = wrapped(InfoSettings((4, 4), add_pixels=False), info={"goal": goal})
    np.testing.assert_array_equal(env.reset()[1]["goal"], 0)
    goal[:] = 200
    np.testing.assert_array_equal(env.step(np.zeros(2))[4]["goal"], 200)
    np.testing.assert_array_equal(env.step(np.zeros(2))[4]["goal"], 200)


@pytest.mark.parametrize("goal", [np.zeros(4), np.zeros((8, 8, 7), np.uint8), "door", None])
def test_a_goal_that_is_no_image_passes_unchanged(goal):
    env = wrapped(InfoSettings((4, 4), add_pixels=False), info={"goal": goal})
    assert env.reset()[1]["goal"] is goal


def test_without_an_image_shape_goals_keep_theirs():
    assert wrapped(info={"goal": frame(8, 8)}).reset()[1]["goal"].shape == (8, 8, 3)


def test_goal_transform_takes_the_place_of_the_resize():
    settings = InfoSettings((4, 4), add_pixels=False, goal_transform=lambda goal: goal[:2])
    assert wrapped(settings, info={"goal": frame(8, 8)}).reset()[1]["goal"].shape == (2, 8, 3)


# Variation


class Varied(Scripted):
    """Factors `color` and `wall.width`, whose values tell how often they were reset."""

    class Space(spaces.Dict):
        value = None

    variation_space = Space({"color": spaces.Box(0, 255)})
    resets = 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        self.variation_space.value = {
            "color": np.array([self.resets]),
            "wall": {"width": self.resets + 0.5},
        }
        return super().reset(seed=seed)


def variations(info):
    return {key: value for key, value in info.items() if key.startswith("variation")}


def varied():
    return InfoWrapper(gymnasium.wrappers.OrderEnforcing(Varied()), PLAIN)


def test_the_named_factors_are_reported_at_every_step_and_after_later_resets():
    env = varied()
    assert variations(env.reset()[1]) == {}
    _, info = env.reset(options={"variation": ["wall.width"]})
    assert variations(info) == {"variation.wall.width": 2.5}
    assert variations(env.step(np.zeros(2))[4]) == {"variation.wall.width": 2.5}
    assert variations(env.reset(options={"other": 1})[1]) == {"variation.wall.width": 3.5}
    assert variations(env.reset(options={"variation": ["color"]})[1]) == {"variation.color": 5 - 1}
    assert variations(env.reset(options={"variation": []})[1]) == {}


def test_all_names_every_factor():
    _, info = varied().reset(options={"variation": ["all"]})
    assert variations(info) == {"variation.color": np.array([1]), "variation.wall.width": 1.5}


def test_a_group_of_factors_is_reported_whole():
    _, info = varied().reset(options={"variation": ["wall"]})
    assert variations(info) == {"variation.wall": {"width": 1.5}}


def test_an_unknown_factor_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'wall.height'.*'color', 'wall.width'"):
        varied().reset(options={"variation": ["wall.height"]})


def test_environments_without_factors_may_give_the_option_a_meaning_of_their_own():
    _, info = wrapped().reset(options={"variation": ["wind"]})
    assert variations(info) == {}


# Collisions

OWN = ("observation", "reward", "terminated", "truncated", "action", "step_idx", "id")


@pytest.mark.parametrize("key", [*OWN, "pixels", "render_time"])
def test_an_info_that_the_world_writes_itself_is_refused_by_name(key):
    env = wrapped(InfoSettings((4, 4)), frame=frame(4, 4), info={"fine": 1, key: 2})
    with pytest.raises(ValueError, match=f"reports '{key}' in its info"):
        env.reset()


def test_collisions_are_found_at_any_step_and_for_keys_of_any_source():
    env = wrapped()
    env.reset()
    env.unwrapped.info = {"id": 1}
    with pytest.raises(ValueError, match="'id'"):
        env.step(np.zeros(2))
    with pytest.raises(ValueError, match="'state'"):
        wrapped(observation={"state": 1}, info={"state": 1}).reset()
    with pytest.raises(ValueError, match="'step_idx'"):
        wrapped(observation={"step_idx": 1}).reset()
    with pytest.raises(ValueError, match=r"'pixels\.top'"):
        wrapped(InfoSettings((4, 4)), frame={"top": frame(4, 4)}, info={"pixels.top": 1}).reset()
    env = InfoWrapper(Varied(info={"variation.color": 1}), PLAIN)
    with pytest.raises(ValueError, match=r"'variation\.color'"):
        env.reset(options={"variation": ["all"]})


def test_keys_that_this_world_does_not_write_are_the_environments():
    _, info = wrapped(observation={"pixels": 1}, info={"observation": 2}).reset()
    assert (info["pixels"], info["observation"]) == (1, 2)


def test_the_environments_own_info_is_left_as_it_is():
    own = {"extra": 1}
    env = wrapped(info=own)
    env.reset()
    env.step(np.zeros(2))
    assert own == {"extra": 1}


# Settings


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ValueError, "add_pixels=True needs image_shape"),
        ({"image_shape": 64}, ValueError, "image_shape must be .*found 64"),
        ({"image_shape": (64, 0)}, ValueError, "image_shape"),
        ({"image_shape": (64, 64, 3)}, ValueError, "image_shape"),
        ({"image_shape": (64.0, 64)}, ValueError, "image_shape"),
        ({"image_shape": (8, 8), "image_resample": "cubic"}, ValueError, "bilinear.*'cubic'"),
        ({"image_shape": (8, 8), "image_resample": 9}, ValueError, "image_resample"),
        ({"image_shape": (8, 8), "image_transform": 1}, TypeError, "image_transform"),
        ({"image_shape": (8, 8), "goal_transform": 1}, TypeError, "goal_transform"),
    ],
)
def test_wrong_settings_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        InfoSettings(**arguments)


def test_image_shapes_of_lists_and_numpy_integers_are_accepted():
    assert InfoSettings([np.int64(3), 4]).image_shape == (3, 4)


# The factory

SPEC = EnvSpec(
    "test/Scripted-v0", entry_point=Scripted, max_episode_steps=7, disable_env_checker=True
)


class Named(gymnasium.Wrapper):
    def __init__(self, env, name):
        super().__init__(env)
        self.name = name


def chain(env):
    """The wrappers from the outside in, by name."""
    names = []
    while isinstance(env, gymnasium.Wrapper):
        names.append(env.name if isinstance(env, Named) else type(env).__name__)
        env = env.env
    return names


def test_wrappers_are_applied_in_the_documented_order():
    factory = WorldEnvFactory(
        Scripted,
        PLAIN,
        max_episode_steps=3,
        pre_wrappers=(lambda env: Named(env, "p1"), lambda env: Named(env, "p2")),
        extra_wrappers=(lambda env: Named(env, "e1"), lambda env: Named(env, "e2")),
    )
    assert chain(factory()) == ["e2", "e1", "InfoWrapper", "p2", "p1", "TimeLimit"]


@pytest.mark.parametrize("limit", [None, -1])
def test_a_factorys_environment_gets_no_time_limit_unasked(limit):
    assert chain(WorldEnvFactory(Scripted, PLAIN, limit)()) == ["InfoWrapper"]


@pytest.mark.parametrize(("limit", "expected"), [(None, 7), (3, 3)])
def test_a_specs_environment_has_the_limit_given_or_its_own(limit, expected):
    env = WorldEnvFactory(SPEC, PLAIN, limit)()
    env.reset()
    flags = [env.step(np.zeros(2, np.float32))[4]["truncated"] for _ in range(expected)]
    assert flags == [False] * (expected - 1) + [True]


class Rendering(Scripted):
    def __init__(self, render_mode=None, render_fps=None):
        super().__init__(frame=frame(4, 4))
        self.render_mode = render_mode
        self.render_fps = render_fps
        self.metadata = {"render_modes": ["rgb_array", "other"], "render_fps": 1}


@pytest.mark.parametrize(
    ("settings", "given", "expected"),
    [
        (InfoSettings((4, 4)), {}, "rgb_array"),
        (InfoSettings((4, 4)), {"render_mode": "other"}, "other"),
        (PLAIN, {}, None),
        (PLAIN, {"render_mode": "other"}, "other"),
    ],
)
def test_made_environments_render_arrays_where_pixels_are_wanted(settings, given, expected):
    Rendering.metadata = {"render_modes": ["rgb_array", "other"], "render_fps": 1}
    spec = EnvSpec("test/Rendering-v0", entry_point=Rendering)
    env = WorldEnvFactory(spec, settings, make_kwargs={**given, "render_fps": 5})()
    assert env.unwrapped.render_mode == expected
    assert env.unwrapped.render_fps == 5
    spec_with_mode = EnvSpec("test/Rendering-v0", entry_point=Rendering, kwargs=given)
    env = WorldEnvFactory(spec_with_mode, settings)()
    assert env.unwrapped.render_mode == expected


def test_what_is_no_environment_is_refused():
    with pytest.raises(TypeError, match=r"gymnasium.Env, found int"):
        WorldEnvFactory(lambda: 3, PLAIN)()


def test_a_pickled_factory_needs_neither_the_agent_side_nor_pillow():
    factory = WorldEnvFactory(_cartpole, PLAIN, pre_wrappers=(lambda env: env,))
    code = (
        "import pickle, sys; env = pickle.loads(sys.stdin.buffer.read())();"
        "env.reset(seed=0); info = env.step(1)[4]; assert info['step_idx'] == 1;"
        "assert not {'swm_async', 'PIL'} & sys.modules.keys(), sys.modules.keys()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(
        [sys.executable, "-c", code],
        input=cloudpickle.dumps(factory),
        env=environment,
        check=True,
        timeout=60,
    )


def _cartpole():
    return gymnasium.make("CartPole-v1")
