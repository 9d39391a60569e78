from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from swm_workers import point_goal
from swm_workers.point_goal import PointGoal, VariationSpace

DEFAULTS = {
    "agent_color": [220, 70, 52],
    "gap_position": 0.0,
    "goal_color": [42, 157, 143],
    "speed": 0.06,
    "wall_position": 0.0,
}
WORLD_KEYS = {"proprio", "state", "reward", "terminated", "truncated", "action", "step_idx", "id"}
WORLD_KEYS |= {"pixels", "render_time"}

# With the wall at 0, the agent's centre stops at x = ±(0.05 + 0.12); with the gap at 0, it passes
# where |y| <= 0.30 - 0.12.
EDGE = 0.17
FREE = 0.18

RIGHT, LEFT, UP, DOWN, STAY = (
    np.array(a, dtype=np.float32) for a in ([1, 0], [-1, 0], [0, 1], [0, -1], [0, 0])
)


def state(
    x: float,
    y: float,
    vx: float = 0.0,
    vy: float = 0.0,
    wall: float = 0.0,
    gap: float = 0.0,
    speed: float = 0.06,
) -> np.ndarray:
    return np.array([x, y, vx, vy, wall, gap, speed])


def placed(
    start: np.ndarray,
    goal: np.ndarray | None = None,
    render_mode: str | None = None,
    render_size: tuple[int, int] = (96, 96),
) -> PointGoal:
    env = PointGoal(render_mode, render_size)
    goal = state(0.8, 0.8) if goal is None else goal
    env.reset(seed=0, options={"state": start, "goal_state": goal})
    return env


def play(env: PointGoal, *actions: np.ndarray) -> np.ndarray:
    for action in actions:
        observation = env.step(action)[0]
    return observation["state"]


@pytest.fixture
def made() -> Iterator[gymnasium.Env]:
    point_goal.register()
    env = gymnasium.make("swm_async/PointGoal-v0", render_mode="rgb_array")
    yield env
    env.close()


# --- registration and spaces ---------------------------------------------------------------------


def test_gymnasium_finds_nothing_to_object_to(made: gymnasium.Env) -> None:
    check_env(made.unwrapped)


def test_registering_twice_changes_nothing() -> None:
    point_goal.register()
    spec = gymnasium.registry["swm_async/PointGoal-v0"]
    point_goal.register()
    assert gymnasium.registry["swm_async/PointGoal-v0"] is spec


def test_an_episode_without_success_is_truncated_after_100_steps(made: gymnasium.Env) -> None:
    made.reset(seed=0)
    flags = [made.step(STAY)[2:4] for _ in range(100)]
    assert flags == [(False, False)] * 99 + [(False, True)]


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys, swm_workers.point_goal\n"
        "heavy = {'swm_async', 'torch', 'PIL', 'matplotlib'} & sys.modules.keys()\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_observations_stay_in_their_space() -> None:
    env = PointGoal()
    actions = np.random.default_rng(0).uniform(-1, 1, (40, 15, 2)).astype(np.float32)
    for seed, episode in enumerate(actions):
        observation, _ = env.reset(seed=seed, options={"variation": ["all"]})
        assert env.observation_space.contains(observation)
        # Held for 8 steps each, so that the agent reaches walls and its highest speed.
        for action in np.repeat(episode, 8, axis=0):
            observation = env.step(action)[0]
            assert env.observation_space.contains(observation)


def test_proprio_is_position_and_velocity_of_the_state() -> None:
    observation = placed(state(-0.5, 0.25, 0.03125, -0.0625)).step(STAY)[0]
    expected = np.array([-0.484375, 0.21875, 0.015625, -0.03125], dtype=np.float32)
    assert observation["proprio"].dtype == np.float32
    np.testing.assert_array_equal(observation["proprio"], expected)


# --- movement, by hand ---------------------------------------------------------------------------


def test_the_velocity_closes_half_of_its_gap_each_step() -> None:
    env = placed(state(-0.8, 0.0))
    np.testing.assert_allclose(play(env, RIGHT)[:4], [-0.77, 0, 0.03, 0], rtol=1e-12)
    np.testing.assert_allclose(play(env, RIGHT)[:4], [-0.725, 0, 0.045, 0], rtol=1e-12)
    np.testing.assert_allclose(play(env, STAY)[:4], [-0.7025, 0, 0.0225, 0], rtol=1e-12)


def test_a_diagonal_action_is_no_faster_than_a_straight_one() -> None:
    moved = play(placed(state(-0.8, 0.0)), np.array([1, -1], dtype=np.float32))
    np.testing.assert_allclose(moved[2:4], [0.03 / 2**0.5, -0.03 / 2**0.5], rtol=1e-12)


def test_actions_are_clipped_to_their_space() -> None:
    wild = play(placed(state(-0.8, 0.0)), np.array([7, 0], dtype=np.float32))
    np.testing.assert_array_equal(wild, play(placed(state(-0.8, 0.0)), RIGHT))


@pytest.mark.parametrize(
    ("start", "action", "axis", "stop"),
    [
        (state(-0.86, 0.0), LEFT, 0, -0.88),
        (state(0.86, 0.0), RIGHT, 0, 0.88),
        (state(-0.5, 0.86), UP, 1, 0.88),
        (state(-0.5, -0.86), DOWN, 1, -0.88),
        (state(-0.19, 0.5), RIGHT, 0, -EDGE),
        (state(0.19, -0.5), LEFT, 0, EDGE),
        (state(0.0, 0.16), UP, 1, FREE),
        (state(0.0, -0.16), DOWN, 1, -FREE),
    ],
)
def test_every_wall_stops_the_agent_at_its_radius(
    start: np.ndarray, action: np.ndarray, axis: int, stop: float
) -> None:
    moved = play(placed(start), action)
    assert moved[axis] == pytest.approx(stop, abs=1e-12)
    assert moved[2 + axis] == 0.0
    assert play(placed(start), *[action] * 5)[axis] == moved[axis]


def test_the_agent_slides_along_a_wall_that_stops_it() -> None:
    diagonal = np.array([0.6, -0.8], dtype=np.float32)
    moved = play(placed(state(-EDGE, 0.5)), diagonal)
    np.testing.assert_allclose(moved[:4], [-EDGE, 0.476, 0, -0.024], atol=1e-8)


def test_the_fastest_agent_does_not_jump_through_the_wall() -> None:
    assert play(placed(state(-0.2, 0.5, 0.12, 0, speed=0.1)), RIGHT)[0] == pytest.approx(-EDGE)


def test_the_gap_lets_the_agent_through() -> None:
    assert play(placed(state(-0.3, 0.17), state(0.8, -0.8)), *[RIGHT] * 12)[0] > EDGE


def test_wall_and_gap_stand_where_the_state_puts_them() -> None:
    def end(y: float) -> float:
        start = state(-0.5, y, wall=-0.2, gap=0.4)
        return float(play(placed(start, state(0.8, -0.8)), *[RIGHT] * 20)[0])

    assert end(0.0) == pytest.approx(-0.2 - EDGE)
    assert end(0.4) > -0.2 + EDGE


@pytest.mark.parametrize("action", [[np.nan, 0.0], [0.0, np.inf], [0.0], [[0.0, 0.0]], 0.0])
def test_an_action_of_another_shape_or_not_finite_is_refused(action: Any) -> None:
    with pytest.raises(ValueError, match=r"action must (be finite|have shape)"):
        placed(state(-0.5, 0.0)).step(np.array(action, dtype=np.float32))


def test_stepping_and_rendering_need_a_reset() -> None:
    env = PointGoal("rgb_array")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(STAY)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.render()


# --- reward and goal -----------------------------------------------------------------------------


def test_the_reward_is_minus_the_distance() -> None:
    env = placed(state(-0.5, 0.0), state(-0.2, 0.4))
    _, reward, terminated, truncated, info = env.step(STAY)
    assert reward == pytest.approx(-0.5, abs=1e-15)
    assert (terminated, truncated, info["success"]) == (False, False, False)
    assert info["distance"] == -reward


def test_reaching_the_goal_terminates_with_a_bonus() -> None:
    env = placed(state(-0.5, 0.0), state(-0.3, 0.0))
    assert env.step(RIGHT)[2] is False  # 0.17 away
    _, reward, terminated, truncated, info = env.step(RIGHT)
    assert reward == pytest.approx(1.0 - 0.125)
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert info["distance"] == pytest.approx(0.125)


def test_reset_reports_success_and_distance_too() -> None:
    _, info = PointGoal().reset(options={"state": state(0.5, 0), "goal_state": state(0.5, 0.125)})
    assert (info["success"], info["distance"]) == (True, 0.125)


def test_start_and_goal_lie_in_different_halves() -> None:
    env = PointGoal()
    sides = set()
    for seed in range(50):
        observation, info = env.reset(seed=seed, options={"variation": ["wall_position"]})
        x, wall, goal_x = observation["state"][0], observation["state"][4], info["goal_state"][0]
        assert (x - wall) * (goal_x - wall) < 0
        assert min(abs(x - wall), abs(goal_x - wall)) > EDGE
        sides.add(x < wall)
    assert sides == {False, True}


# --- infos and options ---------------------------------------------------------------------------


def test_infos_leave_the_names_of_the_world_alone(made: gymnasium.Env) -> None:
    _, at_reset = made.reset(seed=0, options={"variation": ["all"]})
    at_step = made.step(STAY)[4]
    assert at_reset.keys() == {"goal", "goal_state", "success", "distance"}
    assert at_step.keys() == {"goal_state", "success", "distance"}
    assert not WORLD_KEYS & at_reset.keys()


def test_without_rendering_there_is_no_goal_image() -> None:
    assert "goal" not in PointGoal().reset(seed=0)[1]


def test_infos_and_observations_are_not_shared_with_the_environment() -> None:
    start, goal = state(-0.5, 0.0), state(0.5, 0.0)
    env = placed(start, goal)
    observation, _, _, _, info = env.step(STAY)
    for array in (*observation.values(), info["goal_state"], start, goal):
        array[:] = 0.7
    np.testing.assert_array_equal(env.step(STAY)[0]["state"], state(-0.5, 0.0))
    np.testing.assert_array_equal(env.step(STAY)[4]["goal_state"], state(0.5, 0.0))


def test_options_set_start_and_goal_exactly() -> None:
    start = state(-0.123456789, 0.1, 0.01, -0.02, 0.1, 0.2, 0.05)
    goal = state(0.777, -0.1, 0.03, 0.0, 0.1, 0.2, 0.05)
    observation, info = PointGoal().reset(options={"state": start, "goal_state": goal})
    np.testing.assert_array_equal(observation["state"], start)
    np.testing.assert_array_equal(info["goal_state"], goal)


@pytest.mark.parametrize("name", ["state", "goal_state"])
@pytest.mark.parametrize(
    "value",
    [
        state(0.9, 0.0),
        state(0.0, 0.5),
        state(np.nan, 0.0),
        state(0.5, 0.0, speed=0.5),
        np.zeros(2),
        np.zeros((1, 7)),
    ],
    ids=["outside the room", "in the wall", "NaN", "too fast", "two entries", "two axes"],
)
def test_impossible_states_are_refused_by_name(name: str, value: np.ndarray) -> None:
    options = {"state": state(-0.5, 0.0), "goal_state": state(0.5, 0.0), name: value}
    with pytest.raises(ValueError, match=rf"options\['{name}'\]"):
        PointGoal().reset(options=options)


@pytest.mark.parametrize("seed", range(5))
def test_a_given_end_leaves_the_other_to_the_other_half(seed: int) -> None:
    env = PointGoal()
    _, info = env.reset(seed=seed, options={"state": state(-0.5, 0.1)})
    assert info["goal_state"][0] > EDGE
    observation, _ = env.reset(seed=seed, options={"goal_state": state(-0.5, 0.1)})
    assert observation["state"][0] > EDGE


def test_the_callers_options_stay_as_they_are() -> None:
    options = {"state": state(-0.5, 0.0), "variation": ["all"]}
    PointGoal().reset(seed=0, options=options)
    np.testing.assert_array_equal(options["state"], state(-0.5, 0.0))
    assert options.keys() == {"state", "variation"}
    assert options["variation"] == ["all"]


# --- factors of variation ------------------------------------------------------------------------


def values(env: PointGoal) -> dict[str, Any]:
    return {name: value.tolist() for name, value in env.variation_space.value.items()}


def test_factors_start_at_their_defaults_and_lie_in_their_space() -> None:
    env = PointGoal()
    assert values(env) == DEFAULTS
    for seed in range(20):
        env.reset(seed=seed, options={"variation": ["all"]})
        assert env.variation_space.contains(env.variation_space.value)


@pytest.mark.parametrize("name", list(DEFAULTS))
def test_a_named_factor_is_drawn_and_the_others_keep_their_defaults(name: str) -> None:
    env = PointGoal()
    drawn = []
    for seed in range(3):
        env.reset(seed=seed, options={"variation": [name]})
        found = values(env)
        drawn.append(found.pop(name))
        assert found == {other: value for other, value in DEFAULTS.items() if other != name}
    assert drawn[0] != drawn[1] != drawn[2]


def test_a_later_reset_without_names_returns_to_the_defaults() -> None:
    env = PointGoal()
    env.reset(seed=0, options={"variation": ["all"]})
    assert all(values(env)[name] != DEFAULTS[name] for name in DEFAULTS)
    env.reset(seed=0)
    assert values(env) == DEFAULTS


def test_colours_do_not_change_where_the_agent_starts() -> None:
    env = PointGoal()
    plain, plain_info = env.reset(seed=3)
    varied, varied_info = env.reset(seed=3, options={"variation": ["agent_color", "goal_color"]})
    np.testing.assert_array_equal(plain["state"], varied["state"])
    np.testing.assert_array_equal(plain_info["goal_state"], varied_info["goal_state"])


def test_a_mapping_sets_factors_to_values() -> None:
    env = PointGoal()
    request = {"agent_color": [30, 60, 90], "speed": 0.0625, "wall_position": np.float32(0.25)}
    observation, _ = env.reset(seed=0, options={"variation": request})
    assert values(env) == DEFAULTS | request
    np.testing.assert_array_equal(observation["state"][4:], [0.25, 0.0, 0.0625])


def test_a_state_overrides_the_factors_it_holds() -> None:
    env = PointGoal()
    start = state(-0.8, 0.0, wall=0.1, gap=-0.2, speed=0.05)
    env.reset(seed=0, options={"state": start, "variation": ["all"]})
    found = values(env)
    assert [found[name] for name in ("wall_position", "gap_position", "speed")] == [0.1, -0.2, 0.05]
    assert found["agent_color"] != DEFAULTS["agent_color"]


@pytest.mark.parametrize(
    "request_",
    [
        ["gravity"],
        {"gravity": 1.0},
        {"speed": 1.0},
        {"speed": np.nan},
        {"speed": [0.05]},
        {"agent_color": [300, 60, 90]},
        {"agent_color": [np.nan, 60, 90]},
        {"agent_color": [30.5, 60, 90]},
    ],
)
def test_unknown_factors_and_impossible_values_are_refused_by_name(request_: Any) -> None:
    with pytest.raises(ValueError, match=f"'{next(iter(request_))}'"):
        PointGoal().reset(seed=0, options={"variation": request_})


def test_the_variation_space_travels_with_its_values() -> None:
    env = PointGoal()
    env.reset(seed=0, options={"variation": ["all"]})
    copy = pickle.loads(pickle.dumps(env.variation_space))
    assert isinstance(copy, VariationSpace)
    assert copy == env.variation_space
    assert {name: value.tolist() for name, value in copy.value.items()} == values(env)


def test_episode_data_holds_the_constants_of_the_episode() -> None:
    env = placed(state(-0.8, 0.0, wall=0.1, gap=-0.2, speed=0.05))
    expected = {"wall_position": 0.1, "gap_position": -0.2, "speed": 0.05}
    assert env.get_episode_data() == expected


# --- reproducibility -----------------------------------------------------------------------------


def record(env: PointGoal, actions: np.ndarray, **reset: Any) -> list[tuple[Any, ...]]:
    """One entry per time step: state, proprio, reward, terminated, goal_state, pixels; as bytes."""
    observation, info = env.reset(**reset)
    steps = [(observation, 0.0, False, info, env.render())]
    for action in actions:
        observation, reward, terminated, _, info = env.step(action)
        steps.append((observation, reward, terminated, info, env.render()))
    return [
        (o["state"].tobytes(), o["proprio"].tobytes(), r, t, i["goal_state"].tobytes(), p.tobytes())
        for o, r, t, i, p in steps
    ]


def random_actions(seed: int, steps: int) -> np.ndarray:
    """Actions in runs of four, so that the agent gets as far as the walls and the gap."""
    runs = np.random.default_rng(seed).uniform(-1, 1, (steps // 4 + 1, 2)).astype(np.float32)
    return np.repeat(runs, 4, axis=0)[:steps]


SEEDS = st.integers(0, 2**32 - 1)
VARIATIONS = st.lists(st.sampled_from([*DEFAULTS, "all"]), unique=True)


@given(seed=SEEDS, variation=VARIATIONS, earlier=SEEDS)
def test_seed_options_and_actions_determine_an_episode(
    seed: int, variation: list[str], earlier: int
) -> None:
    fresh, used = (PointGoal("rgb_array", (32, 32)) for _ in range(2))
    record(used, random_actions(earlier, 8), seed=earlier, options={"variation": ["all"]})
    actions = random_actions(seed, 20)
    first, second = (
        record(env, actions, seed=seed, options={"variation": variation}) for env in (fresh, used)
    )
    assert first == second


@given(seed=SEEDS, variation=VARIATIONS, time=st.integers(0, 40))
def test_a_recorded_row_restores_the_rest_of_its_episode(
    seed: int, variation: list[str], time: int
) -> None:
    env = PointGoal("rgb_array", (32, 32))
    actions = random_actions(seed, 50)
    original = record(env, actions, seed=seed, options={"variation": variation})
    row = {"state": np.frombuffer(original[time][0])}
    names = list(DEFAULTS) if "all" in variation else variation
    row |= {f"variation.{name}": env.variation_space.value[name] for name in names}
    goal_row = {"goal_state": np.frombuffer(original[0][4])}

    options = PointGoal.reset_options_from_dataset(row, goal_row)
    other = PointGoal("rgb_array", (32, 32))
    restored = record(other, actions[time:], options=options)

    assert restored[1:] == original[time + 1 :]
    assert (restored[0][0], restored[0][5]) == (original[time][0], original[time][5])


def test_fill_values_of_variation_columns_count_as_not_varied() -> None:
    row = {
        "state": state(-0.5, 0.0),
        "variation.agent_color": np.zeros(3, dtype=np.uint8),
        "variation.goal_color": np.array([30, 60, 90], dtype=np.uint8),
        "variation.speed": np.nan,
    }
    options = PointGoal.reset_options_from_dataset(row, {"goal_state": state(0.5, 0.0)})
    assert options["variation"].keys() == {"goal_color"}
    env = PointGoal()
    env.reset(options=options)
    assert values(env) == DEFAULTS | {"goal_color": [30, 60, 90]}


@pytest.mark.parametrize("missing", ["state", "goal_state"])
def test_a_missing_dataset_column_is_named(missing: str) -> None:
    rows = {"state": {"state": state(-0.5, 0)}, "goal_state": {"goal_state": state(0.5, 0)}}
    rows[missing] = {"other": 1}
    with pytest.raises(ValueError, match=f"'{missing}', found \\['other'\\]"):
        PointGoal.reset_options_from_dataset(rows["state"], rows["goal_state"])


# --- pictures ------------------------------------------------------------------------------------
# At 100 x 100 pixels the outer wall is 4 pixels wide and a room unit 46 pixels long, so that
# (x, y) lies at column 50 + 46 x, row 50 - 46 y.


def colour_at(frame: np.ndarray, x: float, y: float) -> list[int]:
    colour: list[int] = frame[int(50 - 46 * y), int(50 + 46 * x)].tolist()
    return colour


def test_frames_show_agent_goal_walls_and_floor_where_they_are() -> None:
    env = placed(state(-0.5, 0.5, gap=-0.3), state(0.6, 0.2), "rgb_array", (100, 100))
    frame = env.render()
    assert (frame.shape, frame.dtype) == ((100, 100, 3), np.uint8)
    assert colour_at(frame, -0.5 + 0.07, 0.5) == DEFAULTS["agent_color"]
    assert colour_at(frame, 0.6, 0.2) == DEFAULTS["goal_color"]
    assert colour_at(frame, 0.6 + 0.168, 0.2) == DEFAULTS["goal_color"]
    wall = colour_at(frame, -1.04, 0.0)
    assert sum(wall) < 300
    for x, y in ((0.0, 0.5), (0.0, 0.05), (0.0, -0.65), (1.04, -0.9), (0.4, 1.04), (0.4, -1.04)):
        assert colour_at(frame, x, y) == wall
    for x, y in ((0.0, -0.3), (-0.9, -0.9), (0.9, 0.9), (0.2, 0.5)):
        assert min(colour_at(frame, x, y)) > 200


def test_the_drawn_agent_has_the_area_of_its_disc() -> None:
    start = state(-0.437, 0.411)
    dark, light = (PointGoal("rgb_array", (100, 100)) for _ in range(2))
    for env, colour in ((dark, [20] * 3), (light, [220] * 3)):
        variation = {"agent_color": colour}
        env.reset(seed=0, options={"state": start, "variation": variation})
    # The outline has 0.65 of the colour, the spot of radius 0.38 R covers all but a tenth of it.
    difference = light.render().astype(float) - dark.render()
    radius, inner, spot = 46 * 0.12, 46 * (0.12 - 0.022), 46 * 0.38 * 0.12
    area = 0.65 * radius**2 + 0.35 * inner**2 - 0.9 * spot**2
    assert difference[..., 0].sum() == pytest.approx(200 * np.pi * area, rel=0.02)


def test_the_agent_leaves_no_trace_behind() -> None:
    env = placed(state(-0.5, 0.5), state(0.6, 0.2), "rgb_array", (100, 100))
    play(env, *[RIGHT] * 3)
    there = placed(play(env, *[DOWN] * 5), state(0.6, 0.2), "rgb_array", (100, 100))
    np.testing.assert_array_equal(env.render(), there.render())


def test_frames_are_arrays_of_their_own() -> None:
    env = placed(state(-0.5, 0.5), render_mode="rgb_array")
    first = env.render()
    kept = first.copy()
    second = env.render()
    second[:] = 0
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(env.render(), kept)


def test_the_goal_image_is_the_frame_of_an_agent_at_the_goal() -> None:
    goal = state(0.6, -0.2)
    env = PointGoal("rgb_array")
    _, info = env.reset(seed=0, options={"state": state(-0.5, 0.5), "goal_state": goal})
    np.testing.assert_array_equal(
        info["goal"], placed(goal, goal, render_mode="rgb_array").render()
    )


def test_the_picture_tells_where_the_agent_is_going() -> None:
    goal = state(0.6, 0.2)
    resting = placed(state(-0.5, 0.5), goal, render_mode="rgb_array").render()
    moving = placed(state(-0.5, 0.5, 0.06, 0.0), goal, render_mode="rgb_array").render()
    assert not np.array_equal(resting, moving)


@pytest.mark.parametrize("size", [(16, 16), (48, 96), (96, 48), (65, 33)])
def test_frames_have_the_size_asked_for_and_the_room_fits(size: tuple[int, int]) -> None:
    env = PointGoal("rgb_array", size)
    _, info = env.reset(seed=0)
    frame = env.render()
    assert frame.shape == info["goal"].shape == (*size, 3)
    border = [frame[0], frame[-1], frame[:, 0], frame[:, -1]]
    assert all((edge == frame[0, 0]).all() for edge in border)


@pytest.mark.parametrize("kwargs", [{"render_mode": "human"}, {"render_size": (8, 96)}])
def test_impossible_pictures_are_refused(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        PointGoal(**kwargs)


def test_rendering_without_a_render_mode_gives_nothing_and_warns() -> None:
    env = placed(state(-0.5, 0.5))
    with pytest.warns(UserWarning, match="render_mode='rgb_array'"):
        assert env.render() is None
