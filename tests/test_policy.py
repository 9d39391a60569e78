from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from swm_async import policy as policy_module
from swm_async.policy import NoisyPolicy, PointGoalExpert, Policy, RandomPolicy
from swm_workers.point_goal import PointGoal

NUM_ENVS = 5


class FakePool:
    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space


def batched(seed: int = 0) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, (NUM_ENVS, 2), np.float32, seed=seed)


def samples(space: spaces.Space[Any], count: int) -> list[Any]:
    return [space.sample().tolist() for _ in range(count)]


def chosen(policy: Policy, count: int) -> list[Any]:
    return [policy.get_action({}).tolist() for _ in range(count)]


# --- RandomPolicy --------------------------------------------------------------------------------


def test_random_policy_needs_a_space() -> None:
    with pytest.raises(RuntimeError, match="no action space"):
        RandomPolicy(seed=0).get_action({})


def test_without_a_seed_it_samples_the_space_it_was_given() -> None:
    assert chosen(RandomPolicy(batched(seed=7)), 3) == samples(batched(seed=7), 3)


def test_without_a_seed_it_follows_the_pools_space() -> None:
    pool = FakePool(batched(seed=1))
    policy = RandomPolicy()
    policy.set_env(pool)
    pool.action_space.seed(7)
    assert chosen(policy, 3) == samples(batched(seed=7), 3)


@pytest.mark.parametrize("from_pool", [False, True])
def test_a_seeded_policy_leaves_the_spaces_generator_alone(from_pool: bool) -> None:
    space = batched(seed=1)
    policy = RandomPolicy(None if from_pool else space, seed=7)
    policy.set_env(FakePool(space))
    assert chosen(policy, 3) == samples(batched(seed=7), 3)
    assert samples(space, 3) == samples(batched(seed=1), 3)


def test_setting_the_seed_starts_again() -> None:
    policy = RandomPolicy(batched(), seed=7)
    first = chosen(policy, 3)
    policy._set_seed(7)
    assert chosen(policy, 3) == first
    policy._set_seed(8)
    assert chosen(policy, 3) == samples(batched(seed=8), 3)


def test_a_seed_set_before_the_pool_counts() -> None:
    policy = RandomPolicy()
    policy._set_seed(7)
    policy.set_env(FakePool(batched(seed=1)))
    assert chosen(policy, 3) == samples(batched(seed=7), 3)


def test_a_given_space_wins_over_the_pools() -> None:
    policy = RandomPolicy(batched(seed=3))
    policy.set_env(FakePool(spaces.MultiDiscrete([2] * NUM_ENVS)))
    assert chosen(policy, 1) == samples(batched(seed=3), 1)


def test_actions_of_dict_spaces_are_dicts_of_batches() -> None:
    space = batch_space(
        spaces.Dict({"push": spaces.Discrete(3), "move": spaces.Box(0, 1, (2,))}), 4
    )
    action = RandomPolicy(space, seed=0).get_action({})
    assert action["push"].shape == (4,)
    assert action["move"].shape == (4, 2)


# --- PointGoalExpert -----------------------------------------------------------------------------


def rows(states: Any, goals: Any) -> dict[str, np.ndarray]:
    return {
        "state": np.array(states, dtype=np.float64)[:, None],
        "goal_state": np.array(goals, dtype=np.float64)[:, None],
    }


def play(policy: Policy, seeds: Sequence[int], options: Any = None) -> tuple[list[int], list[bool]]:
    """Lengths and successes of one episode per seed, in one environment and a plain loop."""
    env = gymnasium.wrappers.TimeLimit(PointGoal(), 100)
    lengths, successes = [], []
    for seed in seeds:
        observation, info = env.reset(seed=seed, options=options)
        ended, step = False, 0
        while not ended:
            infos = rows([observation["state"]], [info["goal_state"]])
            infos |= {"id": np.array([[seed]]), "step_idx": np.array([[step]])}
            observation, _, terminated, truncated, info = env.step(policy.get_action(infos)[0])
            ended, step = terminated or truncated, step + 1
        lengths.append(step)
        successes.append(info["success"])
    return lengths, successes


@pytest.mark.parametrize("options", [None, {"variation": ["all"]}], ids=["plain", "varied"])
def test_the_expert_reaches_the_goal_well_within_the_limit(options: Any) -> None:
    lengths, successes = play(PointGoalExpert(), range(300), options)
    assert sum(successes) >= 297
    assert max(lengths) <= 75
    assert len(set(lengths)) > 15


@pytest.mark.parametrize("options", [None, {"variation": ["all"]}], ids=["plain", "varied"])
def test_the_noisy_expert_mostly_reaches_the_goal_but_takes_longer(options: Any) -> None:
    seeds = range(100)
    lengths, successes = play(NoisyPolicy(PointGoalExpert(), scale=0.5), seeds, options)
    assert sum(successes) >= 90
    assert np.mean(lengths) > np.mean(play(PointGoalExpert(), seeds, options)[0]) + 3


def test_the_expert_gets_from_any_free_place_to_any_other() -> None:
    rng = np.random.default_rng(0)
    failures = []
    for case in range(300):
        start = rng.uniform([-0.88, -0.88, -0.08, -0.08, -0.3, -0.5, 0.04], [0.88] * 2 + [0.08] * 5)
        wall, gap = start[4:6]
        goal = np.array([*rng.uniform(-0.88, 0.88, 2), 0, 0, *start[4:]])
        in_gap = np.array([wall, gap]) + rng.uniform(-0.17, 0.17, (2, 2))
        places = (start[:2], goal[:2])
        for end, place in enumerate(places):
            # Inside the gap by turns: neither end, the start, the goal, both.
            if case >> end & 1:
                place[:] = in_gap[end]
            elif abs(place[0] - wall) < 0.17:
                place[0] = -0.8
        _, successes = play(PointGoalExpert(), [0], {"state": start, "goal_state": goal})
        failures += [] if successes[0] else [(start, goal)]
    assert failures == []


def test_at_rest_near_the_goal_it_aims_to_land_on_it() -> None:
    # One step moves by 0.5 * 0.06 * action, so 0.012 and -0.018 need 0.4 and -0.6.
    start, goal = [-0.5, 0.3, 0, 0, 0, 0, 0.06], [-0.488, 0.282, 0, 0, 0, 0, 0.06]
    action = PointGoalExpert().get_action(rows([start], [goal]))
    np.testing.assert_allclose(action, [[0.4, -0.6]], rtol=1e-6)


def test_behind_the_wall_it_aims_for_the_mouth_of_the_gap() -> None:
    # Along y = 0.8 the wall bars the way. The agent's centre passes at |y| <= 0.18, kept to 0.12
    # for safety, and 0.02 before the wall's own 0.17: the target (-0.19, 0.12) lies 0.61 to the
    # right and 0.68 down. At rest the action points there at full length.
    start, goal = [-0.8, 0.8, 0, 0, 0, 0, 0.06], [0.8, 0.8, 0, 0, 0, 0, 0.06]
    action = PointGoalExpert().get_action(rows([start], [goal]))
    length = (0.61**2 + 0.68**2) ** 0.5
    np.testing.assert_allclose(action, [[0.61 / length, -0.68 / length]], rtol=1e-6)


def test_before_the_gap_it_goes_straight_through() -> None:
    start, goal = [-0.3, 0.1, 0, 0, 0, 0, 0.06], [0.5, 0.1, 0, 0, 0, 0, 0.06]
    action = PointGoalExpert().get_action(rows([start], [goal]))
    np.testing.assert_allclose(action, [[1.0, 0.0]], atol=1e-6)


def situations(count: int, seed: int) -> dict[str, np.ndarray]:
    low = np.array([-0.88, -0.88, -0.1, -0.1, -0.3, -0.55, 0.04])
    rng = np.random.default_rng(seed)
    infos = rows(*rng.uniform(low, [0.88, 0.88, 0.1, 0.1, 0.3, 0.55, 0.1], (2, count, 7)))
    infos["id"] = rng.integers(0, 2**63 - 1, (count, 1))
    infos["step_idx"] = rng.integers(0, 100, (count, 1))
    return infos


PORTABLE_POLICIES = {
    "expert": PointGoalExpert,
    "noisy": lambda: NoisyPolicy(PointGoalExpert(), scale=0.4, seed=3),
}


@pytest.mark.parametrize("make", PORTABLE_POLICIES.values(), ids=PORTABLE_POLICIES)
@given(count=st.integers(1, 70), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_a_rows_action_depends_on_that_row_alone(
    make: Callable[[], Policy], count: int, seed: int, data: st.DataObject
) -> None:
    infos = situations(count, seed)
    together = make().get_action(infos)
    alone = [make().get_action({k: v[i : i + 1] for k, v in infos.items()}) for i in range(count)]
    np.testing.assert_array_equal(together, np.concatenate(alone))
    order = data.draw(st.permutations(range(count)))
    some = order[: data.draw(st.integers(1, count))]
    subset = make().get_action({key: value[some] for key, value in infos.items()})
    np.testing.assert_array_equal(subset, together[some])


@pytest.mark.parametrize("make", PORTABLE_POLICIES.values(), ids=PORTABLE_POLICIES)
def test_actions_lie_in_the_action_space(make: Callable[[], Policy]) -> None:
    actions = make().get_action(situations(500, seed=0))
    assert (actions.shape, actions.dtype) == ((500, 2), np.float32)
    assert all(PointGoal().action_space.contains(action) for action in actions)


@pytest.mark.parametrize("make", PORTABLE_POLICIES.values(), ids=PORTABLE_POLICIES)
def test_rows_never_reset_get_a_finite_action_and_disturb_no_other(
    make: Callable[[], Policy],
) -> None:
    infos = situations(4, seed=0)
    expected = make().get_action(infos)
    for key in ("state", "goal_state"):
        infos[key][1] = np.nan
    for key in ("id", "step_idx"):
        infos[key][1] = 0
    actions = make().get_action(infos)
    assert np.isfinite(actions).all()
    np.testing.assert_array_equal(actions[[0, 2, 3]], expected[[0, 2, 3]])


@pytest.mark.parametrize("make", PORTABLE_POLICIES.values(), ids=PORTABLE_POLICIES)
def test_infos_are_left_unchanged(make: Callable[[], Policy]) -> None:
    infos = situations(4, seed=0)
    make().get_action(infos)
    for key, value in situations(4, seed=0).items():
        np.testing.assert_array_equal(infos[key], value)


@pytest.mark.parametrize("missing", ["state", "goal_state", "id", "step_idx"])
def test_a_missing_info_is_named(missing: str) -> None:
    infos = situations(2, seed=0)
    del infos[missing]
    with pytest.raises(ValueError, match=rf"needs infos\['{missing}'\]"):
        NoisyPolicy(PointGoalExpert()).get_action(infos)


def test_an_info_of_another_shape_is_refused() -> None:
    infos = situations(2, seed=0)
    infos["state"] = infos["state"][:, 0]
    with pytest.raises(ValueError, match=r"must have shape \(num_envs, 1, 7\), found \(2, 7\)"):
        PointGoalExpert().get_action(infos)


# --- NoisyPolicy ---------------------------------------------------------------------------------

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def splitmix64(state: int, count: int) -> list[int]:
    outputs = []
    for _ in range(count):
        state = (state + GAMMA) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        outputs.append(z ^ (z >> 31))
    return outputs


class Still:
    """Stands still in every environment."""

    def get_action(self, infos: Any) -> np.ndarray:
        return np.zeros((len(infos["id"]), 2), dtype=np.float32)


def keys(ids: Any, steps: Any) -> dict[str, np.ndarray]:
    return {
        "id": np.array(ids, dtype=np.int64)[:, None],
        "step_idx": np.array(steps, dtype=np.int64)[:, None],
    }


def test_the_hash_is_splitmix64() -> None:
    # The first outputs for the seed 1234567 as published with several implementations.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(1234567, 5) == published
    counter = 1234567 + np.arange(1, 6, dtype=np.uint64) * np.uint64(GAMMA)
    assert policy_module._mix(counter).tolist() == published


@pytest.mark.parametrize("seed", [0, 3, -1, 2**70])
def test_the_noise_is_that_of_a_plain_loop(seed: int) -> None:
    ids, steps = [0, 1, 2**63 - 2, 12345], [0, 7, 99, 0]
    expected = []
    for id_, step in zip(ids, steps, strict=True):
        (seed_hash,) = splitmix64(seed & MASK, 1)
        # The hash of the sum is the generator's output for the state one increment earlier.
        (start,) = splitmix64((id_ + seed_hash - GAMMA) & MASK, 1)
        words = splitmix64(start, 4 * (step + 1))[4 * step :]
        parts = [[(word >> shift) & 0xFFFF for shift in (0, 16, 32, 48)] for word in words]
        sums = [sum(parts[0] + parts[1]), sum(parts[2] + parts[3])]
        deviation = (8 * (65536**2 - 1) / 12) ** 0.5
        expected.append([0.1 * (total - 8 * 65535 / 2) / deviation for total in sums])
    actions = NoisyPolicy(Still(), scale=0.1, seed=seed).get_action(keys(ids, steps))
    np.testing.assert_allclose(actions, np.array(expected), rtol=1e-6)


def test_the_noise_has_the_mean_and_deviation_it_promises() -> None:
    ids, steps = np.divmod(np.arange(100_000), 100)
    noise = NoisyPolicy(Still(), scale=0.1).get_action(keys(ids, steps)).astype(np.float64)
    # Of 100 000 numbers of deviation 0.1 the mean lies within five standard errors of 0.
    np.testing.assert_allclose(noise.mean(axis=0), 0.0, atol=5 * 0.1 / 100_000**0.5)
    np.testing.assert_allclose(noise.std(axis=0), 0.1, rtol=0.01)
    assert np.abs(noise).max() <= 0.49
    for other in (noise[1:, 0], noise[:-1, 1]):
        assert abs(np.corrcoef(noise[:-1, 0], other)[0, 1]) < 5 / 100_000**0.5


def test_id_step_and_seed_each_change_the_noise_and_nothing_else_does() -> None:
    infos = keys([5, 6, 5], [3, 3, 4])
    first = NoisyPolicy(Still(), seed=1).get_action(infos)
    assert len(np.unique(first)) == 6
    np.testing.assert_array_equal(first, NoisyPolicy(Still(), seed=1).get_action(infos))
    assert not np.isin(NoisyPolicy(Still(), seed=2).get_action(infos), first).any()


def test_the_seed_can_be_set_later() -> None:
    infos = keys([5, 6], [0, 0])
    policy = NoisyPolicy(Still(), seed=1)
    policy._set_seed(2)
    expected = NoisyPolicy(Still(), seed=2).get_action(infos)
    np.testing.assert_array_equal(policy.get_action(infos), expected)


def test_without_noise_the_action_is_the_policys_own() -> None:
    infos = situations(20, seed=0)
    quiet = NoisyPolicy(PointGoalExpert(), scale=0.0).get_action(infos)
    np.testing.assert_array_equal(quiet, PointGoalExpert().get_action(infos))


def test_no_environments_no_actions() -> None:
    assert NoisyPolicy(Still()).get_action(keys([], [])).shape == (0, 2)


@pytest.mark.parametrize("scale", [-0.1, np.nan, np.inf])
def test_an_impossible_scale_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be finite and at least 0"):
        NoisyPolicy(Still(), scale=scale)


def test_the_pool_reaches_the_policy_underneath() -> None:
    inner = RandomPolicy()
    NoisyPolicy(inner).set_env(FakePool(batched(seed=7)))
    assert chosen(inner, 1) == samples(batched(seed=7), 1)
    NoisyPolicy(PointGoalExpert()).set_env(FakePool(batched()))
