"""A rollout runs exactly the episodes asked for, in order, and touches no other environment."""

import ast
import importlib
import inspect
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_pool import ByNumber, Countdown, FakePool, play_alone
from swm_async.rollout import rollout

HAND_LENGTHS = [{"length": length} for length in (1, 3, 2, 1)]


def make_pool(num_envs: int) -> FakePool:
    return FakePool([Countdown() for _ in range(num_envs)])


def run(pool, **arguments):
    """All time steps, with what the live arrays held at their time."""
    policy = ByNumber()
    steps = []
    for step in rollout(pool, policy.get_action, **arguments):
        held = {key: value.copy() for key, value in step.infos.items()}
        steps.append((step, held))
    return steps, policy


def by_episode(steps):
    """What a consumer sees of each episode: numbers, rewards, flags, seed; broken ones dropped."""
    episodes = {}
    for step, held in steps:
        for i in np.flatnonzero(step.mask):
            k = int(step.episode[i])
            if step.first[i]:
                episodes[k] = {"numbers": [], "rewards": [], "seed": int(step.seeds[i])}
            else:
                episodes[k]["rewards"].append(float(step.rewards[i]))
            episodes[k]["numbers"].append(float(held["number"][i, 0]))
            if step.ended[i]:
                episodes[k]["terminated"] = bool(step.terminateds[i])
                episodes[k]["truncated"] = bool(step.truncateds[i])
    return episodes


def assert_played(episodes, seed, count, lengths=None):
    assert sorted(episodes) == list(range(count))
    for k, seen in episodes.items():
        alone = play_alone(seed + k, None if lengths is None else lengths[k])
        assert seen["seed"] == seed + k
        assert seen["numbers"] == alone["numbers"]
        assert seen["rewards"] == [float(np.float32(r)) for r in alone["rewards"]]
        assert (seen["terminated"], seen["truncated"]) == (alone["terminated"], alone["truncated"])


# Which environment runs which episode


def test_auto_resets_a_finished_environment_at_once_for_the_next_episode():
    pool = make_pool(2)
    steps, _ = run(pool, episodes=4, seed=10, options=HAND_LENGTHS)
    assert pool.calls == [
        ("reset", [0, 1]),
        ("step", [0, 1]),
        ("reset", [0]),
        ("step", [0, 1]),
        ("step", [0, 1]),
        ("reset", [0]),
        ("step", [0]),
    ]
    assert [step.episode.tolist() for step, _ in steps] == [
        [0, 1],
        [0, 1],
        [2, 1],
        [2, 1],
        [2, 1],
        [3, 1],
        [3, 1],
    ]
    assert [np.flatnonzero(step.ended).tolist() for step, _ in steps] == [
        [],
        [0],
        [],
        [],
        [0, 1],
        [],
        [0],
    ]


def test_wait_freezes_a_finished_environment_until_the_round_is_over():
    pool = make_pool(2)
    steps, _ = run(pool, episodes=4, seed=10, options=HAND_LENGTHS, mode="wait")
    assert pool.calls == [
        ("reset", [0, 1]),
        ("step", [0, 1]),
        ("step", [1]),
        ("step", [1]),
        ("reset", [0, 1]),
        ("step", [0, 1]),
        ("step", [0]),
    ]
    assert [step.episode.tolist() for step, _ in steps] == [[0, 1]] * 4 + [[2, 3]] * 3
    # Row 0 keeps what its last step left there.
    first_round = [held["number"][0, 0] for _, held in steps[1:4]]
    assert first_round == [play_alone(10, 1)["numbers"][-1]] * 3


def test_wait_begins_a_last_round_with_as_many_environments_as_episodes_are_left():
    pool = make_pool(3)
    run(pool, episodes=4, seed=0, options={"length": 1}, mode="wait")
    assert pool.calls == [
        ("reset", [0, 1, 2]),
        ("step", [0, 1, 2]),
        ("reset", [0]),
        ("step", [0]),
    ]


def test_wait_without_episodes_runs_one_round():
    pool = make_pool(3)
    steps, _ = run(pool, max_steps=50, seed=0, mode="wait")
    assert_played(by_episode(steps), 0, 3)
    assert [rows for name, rows in pool.calls if name == "reset"] == [[0, 1, 2]]


@pytest.mark.parametrize("mode", ["auto", "wait"])
def test_environments_beyond_the_number_of_episodes_are_never_touched(mode):
    pool = make_pool(5)
    steps, _ = run(pool, episodes=2, seed=3, mode=mode)
    assert {i for _, rows in pool.calls for i in rows} == {0, 1}
    assert_played(by_episode(steps), 3, 2)
    for step, _ in steps:
        assert step.episode[2:].tolist() == [-1, -1, -1]
        assert step.seeds[2:].tolist() == [-1, -1, -1]


@settings(deadline=None, max_examples=150)
@given(
    num_envs=st.integers(1, 8),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=20),
    mode=st.sampled_from(["auto", "wait"]),
    seed=st.integers(0, 2**40),
)
def test_every_episode_is_the_one_that_a_plain_loop_plays(num_envs, lengths, mode, seed):
    pool = make_pool(num_envs)
    options = [{"length": length} for length in lengths]
    steps, _ = run(pool, episodes=len(lengths), seed=seed, options=options, mode=mode)
    assert_played(by_episode(steps), seed, len(lengths), lengths)
    assert sum(len(rows) for name, rows in pool.calls if name == "step") == sum(lengths)
    assert sum(env.resets for env in pool.envs) == len(lengths)
    assert sum(int(step.ended.sum()) for step, _ in steps) == len(lengths)
    started = [int(k) for step, _ in steps for k in np.sort(step.episode[step.first])]
    assert started == list(range(len(lengths)))


@settings(deadline=None, max_examples=60)
@given(
    num_envs=st.integers(1, 8),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=20),
)
def test_auto_never_idles_while_an_episode_is_left_to_start(num_envs, lengths):
    pool = make_pool(num_envs)
    options = [{"length": length} for length in lengths]
    unstarted = len(lengths)
    for name, rows in run(pool, episodes=len(lengths), options=options)[0] and pool.calls:
        if name == "reset":
            unstarted -= len(rows)
        elif unstarted:
            assert len(rows) == num_envs


def test_all_rows_taking_part_is_told_by_no_mask():
    pool = make_pool(2)
    run(pool, episodes=4, seed=10, options=HAND_LENGTHS)
    whole = [mask is None for mask in pool.masks]
    assert whole == [len(rows) == 2 for _, rows in pool.calls]


# What a time step tells


def test_the_consumer_sees_the_end_before_the_reset():
    pool = make_pool(2)
    ends = 0
    for step in rollout(pool, ByNumber().get_action, episodes=9, seed=0):
        for i in np.flatnonzero(step.ended):
            ends += 1
            assert pool.envs[i].left == 0
            assert step.infos["left"][i, 0] == 0
            assert step.terminateds[i] != step.truncateds[i]
    assert ends == 9


def test_a_time_step_after_a_reset_is_about_the_rows_just_reset():
    pool = make_pool(3)
    for step, held in run(pool, episodes=8, seed=1)[0]:
        if step.first.any():
            np.testing.assert_array_equal(step.mask, step.first)
            assert not step.ended.any()
            assert not (step.terminateds | step.truncateds).any()
            np.testing.assert_array_equal(step.rewards, np.zeros(3, np.float32))
            assert (held["left"][step.first] > 0).all()
        else:
            np.testing.assert_array_equal(step.ended, step.terminateds | step.truncateds)
            assert not (step.ended & ~step.mask).any()


def test_shapes_and_dtypes_are_those_documented():
    expected = {
        "rewards": np.float32,
        "terminateds": bool,
        "truncateds": bool,
        "mask": bool,
        "first": bool,
        "ended": bool,
        "broken": bool,
        "episode": np.int64,
        "seeds": np.int64,
    }
    for step, _ in run(make_pool(3), episodes=4, seed=0)[0]:
        for name, dtype in expected.items():
            array = getattr(step, name)
            assert (array.shape, array.dtype) == ((3,), np.dtype(dtype))


@pytest.mark.parametrize("mode", ["auto", "wait"])
def test_a_consumer_may_keep_the_arrays_and_write_into_them(mode):
    names = ("mask", "first", "ended", "broken", "episode", "seeds", "terminateds", "truncateds")
    lengths = [{"length": length} for length in (1, 4, 3, 2, 2)]

    def lossy_run(spoil):
        pool, policy, kept, seen = make_pool(2), ByNumber(), [], []
        pool.lost_at_step, pool.lost_at_reset = {0: [0]}, {1: [1]}
        run = rollout(pool, policy.get_action, episodes=5, seed=5, options=lengths, mode=mode)
        for step in run:
            kept.append(step)
            for name in names:
                seen.append(getattr(step, name).tolist())
                if spoil:
                    getattr(step, name)[:] = 1
        left = [getattr(step, name).tolist() for step in kept for name in names]
        return seen, left, policy.flushes, pool.calls

    seen, left, *rest = lossy_run(spoil=False)
    assert left == seen
    spoiled, _, *spoiled_rest = lossy_run(spoil=True)
    assert spoiled == seen
    assert spoiled_rest == rest


def test_the_first_action_of_each_episode_is_announced_to_the_policy():
    _, policy = run(make_pool(2), episodes=4, seed=10, options=HAND_LENGTHS)
    assert policy.flushes == [[True, True], [True, False], [False, False], [True, False]]


def test_the_policy_sees_what_the_consumer_put_into_the_infos():
    seen = []

    def act(infos):
        seen.append(infos.get("goal"))
        return np.zeros((1, 2))

    for number, step in enumerate(rollout(make_pool(1), act, max_steps=3, seed=0)):
        step.infos["goal"] = number
    assert seen[0] == 0
    assert all(goal is not None for goal in seen)


# Where a run ends


def test_max_steps_counts_passes_and_ends_the_run_without_a_last_reset():
    pool = make_pool(2)
    run(pool, max_steps=3, seed=0, options={"length": 1})
    both = [0, 1]
    assert pool.calls == [("reset", both), ("step", both)] * 3


def test_whichever_of_episodes_and_max_steps_comes_first_ends_the_run():
    pool = make_pool(1)
    steps, _ = run(pool, episodes=2, max_steps=3, seed=0, options={"length": 2})
    assert [int(step.ended.sum()) for step, _ in steps] == [0, 0, 1, 0, 0]
    steps, _ = run(make_pool(1), episodes=1, max_steps=3, seed=0, options={"length": 2})
    assert len(steps) == 3


def test_a_consumer_that_leaves_ends_the_run():
    pool = make_pool(2)
    for step in rollout(pool, ByNumber().get_action, episodes=9, seed=0):
        if not step.first.any():
            break
    assert pool.calls == [("reset", [0, 1]), ("step", [0, 1])]


def test_a_run_knows_nothing_of_the_run_before():
    pool = make_pool(3)
    for _ in zip(rollout(pool, ByNumber().get_action, episodes=9, seed=0), range(4), strict=False):
        pass
    steps, _ = run(pool, episodes=7, seed=20)
    assert_played(by_episode(steps), 20, 7)


# Seeds and options


def test_without_a_seed_one_is_drawn_and_reported():
    state = np.random.get_state()[1].tolist()
    steps, _ = run(make_pool(2), episodes=5)
    other, _ = run(make_pool(2), episodes=5)
    seed = by_episode(steps)[0]["seed"]
    assert by_episode(other)[0]["seed"] != seed
    assert_played(by_episode(steps), seed, 5)
    assert np.random.get_state()[1].tolist() == state


def test_numpy_seeds_and_seeds_beyond_32_bits_count_up():
    for seed in (np.int32(7), np.uint8(255), 2**63 - 5):
        steps, _ = run(make_pool(2), episodes=5, seed=seed)
        assert_played(by_episode(steps), int(seed), 5)


@pytest.mark.parametrize("mode", ["auto", "wait"])
def test_a_list_of_seeds_holds_one_for_each_episode(mode):
    seeds = [70, 3, 2**63 - 1, 3]
    steps, _ = run(make_pool(2), episodes=4, seed=seeds, mode=mode)
    episodes = by_episode(steps)
    assert [episodes[k]["seed"] for k in range(4)] == seeds
    for k, seed in enumerate(seeds):
        assert episodes[k]["numbers"] == play_alone(seed)["numbers"]


# The limit of steps

LIMITED_LENGTHS = [{"length": length} for length in (1, 5, 3, 6, 2, 4)]


@pytest.mark.parametrize("num_envs", [1, 2, 4])
@pytest.mark.parametrize("mode", ["auto", "wait"])
def test_an_episode_that_has_used_up_its_steps_counts_as_truncated(num_envs, mode):
    pool = make_pool(num_envs)
    steps, _ = run(
        pool, episodes=6, seed=8, options=LIMITED_LENGTHS, mode=mode, max_episode_steps=3
    )
    episodes = by_episode(steps)
    lengths = [len(episodes[k]["rewards"]) for k in range(6)]
    assert lengths == [1, 3, 3, 3, 2, 3]
    # Even lengths end terminated, odd ones truncated; those beyond 3 end by the limit.
    assert [episodes[k]["terminated"] for k in range(6)] == [
        False,
        False,
        False,
        False,
        True,
        False,
    ]
    assert [episodes[k]["truncated"] for k in range(6)] == [True, True, True, True, False, True]


def test_an_episode_that_terminates_with_its_last_step_is_not_truncated():
    options = {"length": 2}
    steps, _ = run(make_pool(1), episodes=2, seed=0, options=options, max_episode_steps=2)
    assert [(e["terminated"], e["truncated"]) for e in by_episode(steps).values()] == [
        (True, False),
        (True, False),
    ]


def test_a_broken_episode_has_all_its_steps_again():
    pool = make_pool(2)
    pool.lost_at_step = {1: [1]}
    steps, _ = run(pool, episodes=2, seed=4, options={"length": 9}, max_episode_steps=3)
    assert [len(e["rewards"]) for e in by_episode(steps).values()] == [3, 3]


def test_options_reach_each_episode_and_stay_the_callers():
    options = [{"length": 2}, None, {"length": 5}]
    steps, _ = run(make_pool(2), episodes=3, seed=0, options=options)
    assert options == [{"length": 2}, None, {"length": 5}]
    seen = by_episode(steps)
    assert [len(seen[0]["rewards"]), len(seen[2]["rewards"])] == [2, 5]
    assert seen[1]["numbers"] == play_alone(1)["numbers"]


def test_a_list_of_options_changed_during_the_run_has_no_effect():
    options = [{"length": 2}, {"length": 2}, {"length": 2}]
    lengths = [0, 0, 0]
    for step in rollout(make_pool(1), ByNumber().get_action, episodes=3, options=options):
        options[:] = [{"length": 9}]
        lengths[int(step.episode[0])] += not step.first[0]
    assert lengths == [2, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ValueError, "episodes, max_steps"),
        ({"episodes": 0}, ValueError, "episodes must be an integer >= 1, found 0"),
        ({"episodes": True}, ValueError, "episodes"),
        ({"episodes": 2.5}, ValueError, "episodes.*2.5"),
        ({"max_steps": -1}, ValueError, "max_steps.*-1"),
        ({"episodes": 1, "mode": "later"}, ValueError, "'auto', 'wait'.*'later'"),
        ({"episodes": 1, "seed": -1}, ValueError, "seed.*-1"),
        ({"episodes": 1, "seed": 0.5}, ValueError, "seed.*0.5"),
        ({"episodes": 2, "seed": 2**63 - 1}, ValueError, "seed"),
        ({"episodes": 2, "seed": [1]}, ValueError, "seed.* found 1 for 2 episodes"),
        ({"max_steps": 2, "seed": [1]}, ValueError, "seed.* found 1 for no number of episodes"),
        ({"episodes": 2, "seed": [1, -1]}, ValueError, r"seed\[1\].*-1"),
        ({"episodes": 1, "seed": "1"}, ValueError, "seed.*'1'"),
        ({"episodes": 1, "max_episode_steps": 0}, ValueError, "max_episode_steps.*0"),
        ({"episodes": 2, "options": [{}]}, ValueError, "found 1 for 2 episodes"),
        ({"max_steps": 2, "options": [{}]}, ValueError, "found 1 for no number of episodes"),
        ({"episodes": 1, "options": "far"}, TypeError, "options.*'far'"),
        ({"episodes": 1, "options": [3]}, TypeError, r"options\[0\].*3"),
    ],
)
def test_wrong_arguments_are_refused_by_the_call_before_anything_moves(arguments, error, words):
    pool = make_pool(2)
    with pytest.raises(error, match=words):
        rollout(pool, ByNumber().get_action, **arguments)
    assert pool.calls == []


# Environments that were lost and built anew


def test_a_broken_episode_begins_again_at_once_and_counts_once():
    pool = make_pool(2)
    pool.lost_at_step = {1: [1]}
    steps, policy = run(pool, episodes=3, seed=4, options=[{"length": 3}] * 3)
    assert pool.calls[:4] == [("reset", [0, 1]), ("step", [0, 1]), ("step", [0, 1]), ("reset", [1])]
    broken = [np.flatnonzero(step.broken).tolist() for step, _ in steps]
    assert broken == [[], [], [1], *([[]] * (len(steps) - 3))]
    assert not steps[2][0].ended[1]
    assert_played(by_episode(steps), 4, 3, [3, 3, 3])
    assert policy.flushes[2] == [False, True]


def test_a_broken_episode_does_not_wait_for_its_round():
    pool = make_pool(2)
    pool.lost_at_step = {0: [0]}
    steps, _ = run(pool, episodes=2, seed=4, options=[{"length": 2}] * 2, mode="wait")
    assert pool.calls == [
        ("reset", [0, 1]),
        ("step", [0, 1]),
        ("reset", [0]),
        ("step", [0, 1]),
        ("step", [0]),
    ]
    assert_played(by_episode(steps), 4, 2, [2, 2])


@pytest.mark.parametrize("mode", ["auto", "wait"])
@pytest.mark.parametrize("moment", [0, 1, 2])
def test_an_episode_that_the_consumer_lost_between_two_steps_begins_again(mode, moment):
    pool = make_pool(2)
    pool.lost_at_step = {99: []}  # so that the infos tell of losses
    steps = []
    for number, step in enumerate(
        rollout(pool, ByNumber().get_action, episodes=2, seed=4, options={"length": 3}, mode=mode)
    ):
        steps.append((step, {key: value.copy() for key, value in step.infos.items()}))
        if number == moment:
            pool._lost[1] = True
    assert_played(by_episode(steps), 4, 2, [3, 3])
    assert [rows for name, rows in pool.calls if name == "reset"] == [[0, 1], [1]]


def test_episodes_lost_in_the_reset_of_another_row_begin_again():
    pool = make_pool(2)
    pool.lost_at_reset = {1: [1]}
    steps, _ = run(pool, episodes=3, seed=4, options=[{"length": n} for n in (1, 4, 3)])
    assert pool.calls[2:4] == [("reset", [0]), ("reset", [1])]
    assert steps[2][0].broken.tolist() == [False, True]
    assert_played(by_episode(steps), 4, 3, [1, 4, 3])


def test_a_lost_environment_that_had_finished_changes_nothing():
    pool = make_pool(2)
    pool.lost_at_step = {1: [0]}
    steps, _ = run(pool, episodes=2, seed=4, options=[{"length": n} for n in (1, 3)])
    assert not any(step.broken.any() for step, _ in steps)
    assert [rows for name, rows in pool.calls if name == "reset"] == [[0, 1]]
    assert_played(by_episode(steps), 4, 2, [1, 3])


@settings(deadline=None, max_examples=100)
@given(data=st.data(), num_envs=st.integers(1, 6), mode=st.sampled_from(["auto", "wait"]))
def test_results_do_not_depend_on_what_was_lost(data, num_envs, mode):
    rows = st.lists(st.integers(0, num_envs - 1), max_size=num_envs, unique=True)
    pool = make_pool(num_envs)
    pool.lost_at_step = data.draw(st.dictionaries(st.integers(0, 12), rows, min_size=1))
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
    options = [{"length": length} for length in lengths]
    steps, _ = run(pool, episodes=len(lengths), seed=9, options=options, mode=mode)
    assert_played(by_episode(steps), 9, len(lengths), lengths)


# What the module knows


@pytest.mark.parametrize("name", ["rollout", "ready", "plan"])
def test_the_modules_import_numpy_and_the_standard_library_and_each_other_alone(name):
    module = importlib.import_module(f"swm_async.{name}")
    imported = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module)
    own = {"swm_async.plan", "swm_async.ready"}
    packages = {name.split(".")[0] for name in imported - own}
    assert packages - set(sys.stdlib_module_names) == {"numpy"}
