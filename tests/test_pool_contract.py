"""A pool does what its contract says, in this process and with any number of workers."""

import os
import random
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

import envs
from conftest import NUM_ENVS, WORKER_COUNTS, plain_id
from pools import forget_arguments, open_descriptors, shared_pool
from swm_async import EnvError, EnvPool

SOME = np.array([True, False, False, True])
OTHERS = [1, 2]
ACTIONS = np.arange(2.0 * NUM_ENVS, dtype=np.float32).reshape(NUM_ENVS, 2)

every_number_of_workers = pytest.mark.parametrize("num_workers", WORKER_COUNTS)
# Where the number of workers can play no part, one pool of each kind is enough.
both_kinds = pytest.mark.parametrize("num_workers", [0, 2])


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """The shared pool renews its memory while it lives; what it leaves is checked at its end."""
    if "lent" not in request.fixturenames:
        request.getfixturevalue("nothing_left_behind")


@pytest.fixture(scope="module", params=WORKER_COUNTS)
def lent(request):
    factories = [partial(envs.Ledger, i) for i in range(NUM_ENVS)]
    with shared_pool(request, factories, num_workers=request.param) as loan:
        yield loan


@pytest.fixture
def pool(lent, request):
    """A shared pool whose environments have just had their first reset."""
    yield lent.ready(start_over)
    forget_arguments(request)


def start_over(pool):
    pool.call("start_over")
    pool.reset()
    pool.call("taken")


def ledgers(count=NUM_ENVS):
    return [partial(envs.Ledger, i) for i in range(count)]


def moves(pool):
    """How many resets and steps each environment has had since the last look."""
    return [len(received) for received in pool.call("taken")]


def assert_nothing_moved(pool):
    assert moves(pool) == [0] * NUM_ENVS


def row(i, observations, infos):
    """Everything that a caller holds of one environment, bit by bit."""
    return observations[i].tobytes(), {key: value[i].tobytes() for key, value in infos.items()}


def step(pool, mask=None):
    return pool.step(ACTIONS, mask)


# Shapes, dtypes and values


def test_a_reset_returns_observations_and_infos_of_every_environment(pool):
    observations, infos = pool.reset()
    assert observations.dtype == np.float64
    np.testing.assert_array_equal(observations, [[2, 0]] * NUM_ENVS)
    assert sorted(infos) == ["draw", "index", "odd", "steps"]
    np.testing.assert_array_equal(infos["index"], [[0], [1], [2], [3]])
    assert infos["index"].dtype == np.int64
    np.testing.assert_array_equal(infos["odd"], [[False]] * NUM_ENVS)
    assert infos["draw"].shape == (NUM_ENVS, 1)


def test_a_step_returns_observations_rewards_flags_and_infos(pool):
    pool.reset(options=[{"terminated": i == 1, "truncated": i == 2} for i in range(NUM_ENVS)])
    step(pool)
    observations, rewards, terminateds, truncateds, infos = step(pool)
    np.testing.assert_array_equal(observations, [[2, 2]] * NUM_ENVS)
    np.testing.assert_array_equal(rewards, np.full(NUM_ENVS, 2, np.float32), strict=True)
    np.testing.assert_array_equal(terminateds, [False, True, False, False], strict=True)
    np.testing.assert_array_equal(truncateds, [False, False, True, False], strict=True)
    np.testing.assert_array_equal(infos["steps"], [[2]] * NUM_ENVS)


def test_each_environment_receives_its_own_row_of_the_actions(pool):
    step(pool)
    received = pool.call("taken")
    for i in range(NUM_ENVS):
        ((kind, action),) = received[i]
        assert kind == "step"
        np.testing.assert_array_equal(action, np.float32([2 * i, 2 * i + 1]), strict=True)


# Masks


def test_a_mask_of_all_is_the_same_as_no_mask(pool):
    observations, rewards, *_ = step(pool, np.ones(NUM_ENVS, bool))
    np.testing.assert_array_equal(observations, [[1, 1]] * NUM_ENVS)
    np.testing.assert_array_equal(rewards, [1] * NUM_ENVS)
    assert moves(pool) == [1] * NUM_ENVS


def test_a_mask_of_none_changes_nothing(pool):
    observations, _, _, _, infos = step(pool)
    before = [row(i, observations, infos) for i in range(NUM_ENVS)]
    pool.call("taken")
    nobody = [False] * NUM_ENVS
    again, rewards, terminateds, truncateds, infos_again = step(pool, nobody)
    reset_observations, reset_infos = pool.reset(seed=3, mask=nobody)
    assert again is reset_observations is observations
    np.testing.assert_array_equal(rewards, np.zeros(NUM_ENVS, np.float32), strict=True)
    assert not terminateds.any()
    assert not truncateds.any()
    for key, value in infos.items():
        assert infos_again[key] is reset_infos[key] is value
    assert [row(i, observations, infos) for i in range(NUM_ENVS)] == before
    assert_nothing_moved(pool)


def test_a_masked_step_moves_some_and_leaves_the_rows_of_the_others_bit_by_bit(pool):
    observations, _, _, _, infos = step(pool)
    pool.call("taken")
    infos["draw"][1] = -np.nan  # a caller's own marks in rows that take no part stay as well
    observations[2] = -0.0
    before = [row(i, observations, infos) for i in OTHERS]
    same, rewards, *_, infos = step(pool, SOME)
    assert same is observations
    assert [row(i, observations, infos) for i in OTHERS] == before
    np.testing.assert_array_equal(observations[SOME], [[1, 2], [1, 2]])
    np.testing.assert_array_equal(infos["steps"], [[2], [1], [1], [2]])
    np.testing.assert_array_equal(rewards, [2, 0, 0, 2])
    assert moves(pool) == [1, 0, 0, 1]


def test_a_masked_reset_moves_some_and_leaves_the_rows_of_the_others_bit_by_bit(pool):
    observations, _, _, _, infos = step(pool)
    pool.call("taken")
    before = [row(i, observations, infos) for i in OTHERS]
    same, infos = pool.reset(seed=7, mask=SOME)
    assert same is observations
    assert [row(i, observations, infos) for i in OTHERS] == before
    np.testing.assert_array_equal(observations, [[2, 0], [1, 1], [1, 1], [2, 0]])
    np.testing.assert_array_equal(infos["steps"], [[0], [1], [1], [0]])
    assert moves(pool) == [1, 0, 0, 1]


def test_flags_of_rows_that_take_no_part_are_false(pool):
    pool.reset(options={"terminated": True, "truncated": True})
    step(pool)
    _, _, terminateds, truncateds, _ = step(pool, SOME)
    np.testing.assert_array_equal(terminateds, SOME)
    np.testing.assert_array_equal(truncateds, SOME)


def test_a_masked_step_works_before_any_step_of_all(pool):
    _, rewards, *_ = step(pool, SOME)
    np.testing.assert_array_equal(rewards, [1, 0, 0, 1])
    _, rewards, *_ = step(pool, ~SOME)
    np.testing.assert_array_equal(rewards, [0, 1, 1, 0])


@pytest.mark.parametrize("mask", [[True, False, False, True], (True, False, False, True), SOME])
def test_a_mask_may_be_a_list_a_tuple_or_an_array_of_bools(pool, mask):
    step(pool, mask)
    pool.reset(mask=mask)
    assert moves(pool) == [2, 0, 0, 2]


@pytest.mark.torch
def test_a_mask_may_be_a_tensor_of_bools(pool):
    import torch

    step(pool, torch.tensor(SOME))
    assert moves(pool) == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("mask", "error", "text"),
    [
        ([1, 0, 0, 1], TypeError, r"mask\[indices\] = True"),
        ([0, 3], TypeError, r"mask\[indices\] = True"),
        (np.array([0, 3]), TypeError, r"mask\[indices\] = True"),
        (SOME.astype(np.float32), TypeError, "float32"),
        (["yes", "no", "no", "yes"], TypeError, "bools"),
        ([True, False], ValueError, r"\(4,\); found \(2,\)"),
        (SOME[:, None], ValueError, r"\(4,\); found \(4, 1\)"),
        (True, ValueError, r"\(4,\); found \(\)"),
    ],
)
def test_anything_else_is_no_mask_and_moves_nothing(pool, mask, error, text):
    calls = [
        lambda: pool.reset(mask=mask),
        lambda: step(pool, mask),
        lambda: pool.call("start_over", mask=mask),
        lambda: pool.get_attr("index", mask=mask),
        lambda: pool.set_attr("index", 9, mask=mask),
        lambda: pool.render(mask=mask),
    ]
    for call in calls:
        with pytest.raises(error, match=text):
            call()
    assert_nothing_moved(pool)
    assert pool.get_attr("index") == [0, 1, 2, 3]


def test_the_callers_mask_is_neither_changed_nor_kept(pool):
    mask = SOME.copy()
    step(pool, mask)
    pool.reset(mask=mask)
    np.testing.assert_array_equal(mask, SOME)
    pool.call("taken")
    mask[:] = False
    step(pool)
    assert moves(pool) == [1] * NUM_ENVS


def test_a_read_only_mask_will_do(pool):
    mask = SOME.copy()
    mask.flags.writeable = False
    step(pool, mask)
    assert moves(pool) == [1, 0, 0, 1]


def test_a_mask_may_be_a_view_of_what_the_call_is_about_to_change(pool):
    step(pool, SOME)
    _, infos = pool.reset(mask=[False] * NUM_ENVS)
    alive = infos["odd"][:, 0]  # each step turns it over, while the call is under way
    np.testing.assert_array_equal(alive, SOME)
    pool.call("taken")
    _, rewards, *_ = step(pool, alive)
    np.testing.assert_array_equal(rewards, [2, 0, 0, 2])
    assert moves(pool) == [1, 0, 0, 1]
    assert not alive.any()


def test_a_mask_may_be_made_of_the_flags_that_the_last_call_returned(pool):
    pool.reset(options=[{"terminated": bool(wanted)} for wanted in SOME])
    _, _, terminateds, _, _ = step(pool)
    pool.call("taken")
    pool.reset(mask=terminateds)
    assert moves(pool) == [1, 0, 0, 1]
    np.testing.assert_array_equal(terminateds, SOME)


@every_number_of_workers
def test_the_first_calls_may_leave_some_or_all_environments_out(num_workers):
    with EnvPool(ledgers(), num_workers=num_workers) as pool:
        observations, infos = pool.reset(mask=[False] * NUM_ENVS)
        assert infos == {}
        assert np.isnan(observations).all()
        with pytest.raises(ResetNeeded, match="0, 1, 2, 3"):
            step(pool)

        partial_observations, infos = pool.reset(seed=10, mask=SOME)
        assert partial_observations is observations
        np.testing.assert_array_equal(observations[SOME], [[1, 0], [1, 0]])
        assert np.isnan(observations[OTHERS]).all()
        np.testing.assert_array_equal(infos["index"], [[0], [0], [0], [3]])
        assert np.isnan(infos["draw"][OTHERS]).all()
        np.testing.assert_array_equal(infos["odd"], [[False]] * NUM_ENVS)
        np.testing.assert_array_equal(pool.seeds, [10, -1, -1, 13])

        pool.call("taken")
        for mask in (None, ~SOME, [True, True, False, False]):
            with pytest.raises(ResetNeeded, match=r"\[1"):
                step(pool, mask)
        assert_nothing_moved(pool)
        _, rewards, *_ = step(pool, SOME)
        np.testing.assert_array_equal(rewards, [1, 0, 0, 1])

        pool.reset(mask=~SOME)
        _, rewards, *_ = step(pool)
        np.testing.assert_array_equal(rewards, [2, 1, 1, 2])
        np.testing.assert_array_equal(pool.seeds, [10, -1, -1, 13])


# Seeds


def seeds_received(pool):
    return [[seed for _, seed, _ in received] for received in pool.call("taken")]


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (5, [5, 6, 7, 8]),
        (np.int64(5), [5, 6, 7, 8]),
        (np.uint8(254), [254, 255, 256, 257]),
        (2**63 - 4, [2**63 - 4, 2**63 - 3, 2**63 - 2, 2**63 - 1]),
        ([4, None, 0, np.int32(9)], [4, None, 0, 9]),
        ((4, 3, 2, 1), [4, 3, 2, 1]),
        (np.array([4, 3, 2, 1]), [4, 3, 2, 1]),
        (range(4), [0, 1, 2, 3]),
        (None, [None] * NUM_ENVS),
    ],
)
def test_environments_receive_seeds_as_python_integers(pool, seed, expected):
    before = pool.seeds.tolist()
    pool.reset(seed=seed)
    received = seeds_received(pool)
    assert received == [[seed] for seed in expected]
    assert {type(seeds[0]) for seeds in received} <= {int, type(None)}
    kept = [b if s is None else s for b, s in zip(before, expected, strict=True)]
    np.testing.assert_array_equal(pool.seeds, np.array(kept, np.int64), strict=True)


def test_a_masked_reset_counts_seeds_by_env_index(pool):
    pool.reset(seed=100)
    pool.call("taken")
    pool.reset(seed=5, mask=SOME)
    assert seeds_received(pool) == [[5], [], [], [8]]
    np.testing.assert_array_equal(pool.seeds, [5, 101, 102, 8])
    pool.reset(seed=[1, 2, 3, None], mask=~SOME)
    assert seeds_received(pool) == [[], [2], [3], []]
    np.testing.assert_array_equal(pool.seeds, [5, 2, 3, 8])


@pytest.mark.parametrize(
    "seed",
    [
        -1,
        np.int64(-1),
        1.5,
        1.0,
        np.float64(2),
        2**63,
        2**63 - 3,  # seed + i would be 2**63
        "abcd",
        True,
        [0, 1, 2],
        [0, 1, 2, 3, 4],
        [],
        [0, 1, 2, -3],
        [0, 1, 2, 0.5],
        [0, 1, 2, 2**63],
        [0, 1, 2, True],
        np.array([0.0, 1.0, 2.0, 3.0]),
        np.array([[0, 1], [2, 3]]),
    ],
    ids=plain_id,
)
def test_other_seeds_are_refused_before_anything_moves(pool, seed):
    before = pool.seeds
    with pytest.raises((TypeError if isinstance(seed, (str, bool)) else ValueError), match="seed"):
        pool.reset(seed=seed)
    assert_nothing_moved(pool)
    np.testing.assert_array_equal(pool.seeds, before)


def test_seeds_are_a_copy(pool):
    pool.reset(seed=5)
    pool.seeds[:] = 0
    np.testing.assert_array_equal(pool.seeds, [5, 6, 7, 8])


def test_later_resets_without_a_seed_continue_the_generators(pool):
    generators = [np.random.default_rng(40 + i) for i in range(NUM_ENVS)]
    _, infos = pool.reset(seed=40)
    for call in (partial(step, pool), pool.reset, partial(step, pool), pool.reset):
        np.testing.assert_array_equal(infos["draw"], [[g.random()] for g in generators])
        *_, infos = call()


def test_without_a_seed_the_environments_differ(pool):
    pool.reset(seed=[1] * NUM_ENVS)
    _, infos = pool.reset()
    assert len(set(infos["draw"].ravel().tolist())) == 1
    with EnvPool(ledgers(), num_workers=0) as fresh:
        _, infos = fresh.reset()
        assert len(set(infos["draw"].ravel().tolist())) == NUM_ENVS
        np.testing.assert_array_equal(fresh.seeds, [-1] * NUM_ENVS)


def test_the_callers_global_generators_are_left_alone(pool):
    state, numpy_state = random.getstate(), np.random.get_state()
    pool.reset(seed=1)
    step(pool)
    pool.reset()
    assert random.getstate() == state
    for part, before in zip(np.random.get_state(), numpy_state, strict=True):
        np.testing.assert_array_equal(part, before)


# Options


def options_received(pool):
    return [[options for _, _, options in received] for received in pool.call("taken")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, [None] * NUM_ENVS),
        ({"a": 1}, [{"a": 1}] * NUM_ENVS),
        ({}, [{}] * NUM_ENVS),
        ([{"a": 1}, None, {}, {"b": [2]}], [{"a": 1}, None, {}, {"b": [2]}]),
        (({"a": 0},) * NUM_ENVS, [{"a": 0}] * NUM_ENVS),
    ],
)
def test_environments_receive_their_options(pool, options, expected):
    pool.reset(options=options)
    assert options_received(pool) == [[each] for each in expected]


def test_a_masked_reset_gives_options_by_env_index(pool):
    pool.reset(options=[{"a": i} for i in range(NUM_ENVS)], mask=SOME)
    assert options_received(pool) == [[{"a": 0}], [], [], [{"a": 3}]]
    pool.reset(options={"b": 1}, mask=~SOME)
    assert options_received(pool) == [[], [{"b": 1}], [{"b": 1}], []]
    pool.reset()
    assert options_received(pool) == [[None]] * NUM_ENVS


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ([{}] * 3, ValueError, "expected 4 options.*found 3"),
        ([], ValueError, "expected 4 options.*found 0"),
        ([{}, {}, {}, 5], TypeError, r"options\[3\].*int"),
        (5, TypeError, "options.*int"),
        ("four", TypeError, "options.*str"),
        ({"a": (x for x in ())}, TypeError, "options cannot be pickled"),
        ([None, None, None, {"a": (x for x in ())}], TypeError, r"options\[3\] cannot be pickled"),
    ],
)
def test_other_options_are_refused_before_anything_moves(pool, options, error, text):
    before = pool.seeds
    with pytest.raises(error, match=text):
        pool.reset(seed=77, options=options)
    assert_nothing_moved(pool)
    np.testing.assert_array_equal(pool.seeds, before)


def test_environments_share_options_neither_with_the_caller_nor_with_each_other(pool):
    shared = {"seen": []}
    for options in (shared, [shared] * NUM_ENVS):
        pool.reset(options=options)
        for i in range(NUM_ENVS):
            pool.envs[i].change_options(i)
        assert shared == {"seen": []}
        assert options_received(pool) == [[{"seen": [i]}] for i in range(NUM_ENVS)]


# Arrays and their lifetime


def test_arrays_stay_the_same_objects_over_steps_and_masked_resets(pool):
    observations, infos = pool.reset()
    calls = [
        partial(step, pool),
        partial(step, pool, SOME),
        partial(pool.reset, mask=SOME),
        partial(pool.reset, seed=3, mask=np.ones(NUM_ENVS, bool)),
        partial(step, pool),
    ]
    for call in calls:
        first, *_, later = call()
        assert first is observations
        assert later is not infos
        assert later.keys() == infos.keys()
        assert all(later[key] is infos[key] for key in infos)
    np.testing.assert_array_equal(infos["steps"], [[1]] * NUM_ENVS)
    np.testing.assert_array_equal(observations, [[3 + some, 1] for some in SOME])


def test_a_full_reset_starts_new_arrays_and_the_old_ones_keep_their_values(pool):
    old_observations, _, _, _, old = step(pool)
    before = [row(i, old_observations, old) for i in range(NUM_ENVS)]
    observations, infos = pool.reset()
    step(pool)
    step(pool, SOME)
    assert [row(i, old_observations, old) for i in range(NUM_ENVS)] == before
    arrays = [(observations, old_observations), *((infos[key], old[key]) for key in old)]
    assert not any(np.shares_memory(new, before) for new, before in arrays)
    np.testing.assert_array_equal(infos["steps"], [[2], [1], [1], [2]])


@pytest.mark.parametrize(
    "hold",
    [
        lambda observations, infos: [observations, *infos.values()],
        lambda observations, infos: [observations[1:3, 1]],
        lambda observations, infos: [infos["draw"][2]],
        lambda observations, infos: [infos["steps"].T],
    ],
    ids=["all", "part of the observations", "one row of an info", "a transposed info"],
)
def test_whatever_a_caller_holds_outlives_many_full_resets(pool, hold):
    kept = []
    for k in range(8):
        observations, _ = pool.reset(seed=10 * k)
        *_, infos = step(pool, SOME if k % 2 else None)
        held = hold(observations, infos)
        kept.append((held, [array.copy() for array in held]))
        del observations, infos, held
    for held, copies in kept:
        for array, copied in zip(held, copies, strict=True):
            np.testing.assert_array_equal(array, copied)


def test_arrays_that_are_let_go_after_a_while_may_be_used_again(pool):
    held = []
    for k in range(12):
        observations, infos = pool.reset()
        step(pool)
        np.testing.assert_array_equal(observations, [[2 + k, 1]] * NUM_ENVS)
        np.testing.assert_array_equal(infos["steps"], [[1]] * NUM_ENVS)
        held.append(infos["draw"])
        del observations, infos
        held = held[-(k % 4) :] if k % 4 else []


def test_full_resets_whose_arrays_nobody_holds_need_no_more_memory(pool):
    for _ in range(3):
        pool.reset()
    before = open_descriptors()
    for k in range(30):
        observations, infos = pool.reset(seed=k)
        step(pool)
        np.testing.assert_array_equal(observations, [[5 + k, 1]] * NUM_ENVS)
        np.testing.assert_array_equal(infos["steps"], [[1]] * NUM_ENVS)
    assert open_descriptors() <= before


@pytest.mark.parametrize("mask", [None, SOME], ids=["all", "some"])
def test_rewards_and_flags_are_fresh_arrays_at_each_call(pool, mask):
    taken = np.ones(NUM_ENVS, bool) if mask is None else mask
    pool.reset(options={"terminated": True, "truncated": True})
    first = step(pool, mask)[1:4]
    pool.reset()
    second = step(pool, mask)[1:4]
    np.testing.assert_array_equal(first, [taken] * 3)
    np.testing.assert_array_equal(second, [taken, [False] * NUM_ENVS, [False] * NUM_ENVS])
    for array in second:
        array[:] = 1
    third = step(pool, mask)[1:4]
    np.testing.assert_array_equal(third, [2 * taken, [False] * NUM_ENVS, [False] * NUM_ENVS])


@pytest.mark.parametrize("mask", [None, SOME], ids=["all", "some"])
def test_rewards_of_any_kind_are_rounded_to_float32(pool, mask):
    reported = [0.1, np.float64(-1e300), 2**40 + 1, np.float16(0.1)]
    pool.reset(options=[{"reward": reward} for reward in reported])
    _, rewards, *_ = step(pool, mask)
    expected = np.array([0.1, -np.inf, 2.0**40, np.float16(0.1)], np.float32)
    expected = expected if mask is None else np.where(mask, expected, np.float32(0))
    np.testing.assert_array_equal(rewards, expected, strict=True)


def test_a_caller_may_change_the_returned_dict(pool):
    *_, infos = step(pool)
    steps = infos["steps"]
    infos["mine"] = infos.pop("index")
    infos["steps"] = None
    *_, infos = step(pool)
    assert sorted(infos) == ["draw", "index", "odd", "steps"]
    assert infos["steps"] is steps
    np.testing.assert_array_equal(steps, [[2]] * NUM_ENVS)


@both_kinds
def test_private_copies_on_demand(num_workers):
    with EnvPool(ledgers(), num_workers=num_workers, copy=True) as pool:
        first, infos = pool.reset()
        second, _, _, _, later = step(pool)
        later["steps"][:] = 7
        second[:] = 7
        third, _, _, _, latest = step(pool, SOME)
        np.testing.assert_array_equal(first, [[1, 0]] * NUM_ENVS)
        np.testing.assert_array_equal(infos["steps"], [[0]] * NUM_ENVS)
        np.testing.assert_array_equal(third, [[1, 2], [1, 1], [1, 1], [1, 2]])
        np.testing.assert_array_equal(latest["steps"], [[2], [1], [1], [2]])


@both_kinds
def test_without_observations_the_first_item_is_none(num_workers):
    with EnvPool(ledgers(), num_workers=num_workers, observations=False) as pool:
        observations, infos = pool.reset()
        assert observations is None
        observations, rewards, *_, infos = step(pool)
        assert observations is None
        np.testing.assert_array_equal(rewards, [1] * NUM_ENVS)
        np.testing.assert_array_equal(infos["steps"], [[1]] * NUM_ENVS)


# Rewards and flags


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (2, 2),
        (-0.1, np.float32(-0.1)),
        (True, 1),
        (np.True_, 1),
        (np.float16(0.5), 0.5),
        (np.float32(0.1), np.float32(0.1)),
        (np.float64(0.1), np.float32(0.1)),
        (np.int8(-3), -3),
        (np.uint64(2**60), 2**60),
        (np.array(1.5), 1.5),
        (np.array([1.5]), 1.5),
        (np.array([2], np.int32), 2),
        (np.array([True]), 1),
        (float("nan"), np.nan),
        (float("-inf"), -np.inf),
        (2**24 + 1, 2**24),  # the nearest float32, a tie going to the even one
    ],
    ids=plain_id,
)
def test_a_reward_is_any_real_scalar(pool, reward, expected):
    pool.reset(options={"reward": reward})
    for mask in (None, np.ones(NUM_ENVS, bool)):
        _, rewards, *_ = step(pool, mask)
        np.testing.assert_array_equal(rewards, np.full(NUM_ENVS, expected, np.float32), strict=True)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        (True, True),
        (np.True_, True),
        (np.False_, False),
        (1, True),
        (0, False),
        (np.array(True), True),
        (np.array([True]), True),
        (np.array([False]), False),
        (np.int64(1), True),
    ],
    ids=plain_id,
)
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_a_flag_is_any_scalar(pool, name, flag, expected):
    pool.reset(options={name: flag})
    _, _, *flags, _ = step(pool)
    other = [False] * NUM_ENVS
    mine = [expected] * NUM_ENVS
    np.testing.assert_array_equal(flags, [mine, other] if name == "terminated" else [other, mine])


@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize(
    "flag", [None, "x", "", 2, 0.5, np.nan, [1, 2], {}, object()], ids=plain_id
)
def test_a_flag_that_is_no_bool_is_an_error_that_says_which(pool, name, flag):
    pool.reset(options=[None, {name: flag}, None, None])
    with pytest.raises(EnvError, match=name) as caught:
        step(pool)
    assert caught.value.env_indices == (1,)
    assert not np.any(caught.value.result[2:4])


@pytest.mark.parametrize("info", [None, 5, "text", [("a", 1)]], ids=plain_id)
def test_an_info_that_is_no_dict_is_an_error(pool, info):
    for _ in range(2):  # also where there was nothing to report before
        pool.reset(options=[None, {"info": {}}, None, None])
        step(pool)
        pool.reset(options=[None, {"info": info}, None, None])
        with pytest.raises(EnvError, match="info must be a dict; found") as caught:
            step(pool)
        assert caught.value.env_indices == (1,)


@pytest.mark.parametrize("name", ["reward", "terminated", "truncated"])
@pytest.mark.parametrize("shape", [(3,), (0,), (1, 1)])
def test_a_reward_or_flag_of_another_shape_is_an_error_that_says_which(pool, name, shape):
    pool.reset(options=[{name: np.zeros(shape)} if i == 2 else None for i in range(NUM_ENVS)])
    with pytest.raises(EnvError, match=f"{name} .*{shape}".replace("(", r"\(")[:-1]) as caught:
        step(pool)
    assert caught.value.env_indices == (2,)
    np.testing.assert_array_equal(caught.value.result[1], [1, 1, 0, 1])


@pytest.mark.parametrize("reward", [None, "1.0", 1j, [1, 2]], ids=plain_id)
def test_a_reward_that_is_no_number_is_an_error(pool, reward):
    # A reward of None is one of the environment's, not a missing option.
    pool.reset(options=[{"reward": reward}, None, None, None])
    with pytest.raises(EnvError, match="reward") as caught:
        step(pool)
    assert caught.value.env_index == 0


# Order of calls


def test_a_finished_environment_may_be_stepped(pool):
    pool.reset(options={"terminated": True})
    pool.call("taken")
    for count in (1, 2, 3):
        _, rewards, terminateds, _, _ = step(pool)
        assert terminateds.all()
        np.testing.assert_array_equal(rewards, [count] * NUM_ENVS)
    assert moves(pool) == [3] * NUM_ENVS


def test_pools_do_not_disturb_each_other(pool):
    pool.reset(seed=0)
    with EnvPool([partial(envs.Ledger, 10 + i) for i in range(2)], num_workers=0) as other:
        other_observations, _ = other.reset(seed=50)
        observations, *_ = step(pool)
        other.step(ACTIONS[:2], [False, True])
        _, rewards, _, _, infos = step(pool)
        *_, other_infos = other.step(ACTIONS[:2])
        np.testing.assert_array_equal(rewards, [2] * NUM_ENVS)
        np.testing.assert_array_equal(infos["index"], [[0], [1], [2], [3]])
        np.testing.assert_array_equal(other_infos["index"], [[10], [11]])
        np.testing.assert_array_equal(other_infos["steps"], [[1], [2]])
        np.testing.assert_array_equal(other_observations, [[1, 1], [1, 2]])
        np.testing.assert_array_equal(observations, [[2, 2]] * NUM_ENVS)
        np.testing.assert_array_equal(pool.seeds, [0, 1, 2, 3])


def test_two_pools_of_workers_step_in_turns():
    with EnvPool(ledgers(), num_workers=2) as first, EnvPool(ledgers(2), num_workers=1) as second:
        first.reset()
        second.reset()
        for count in (1, 2):
            _, rewards, *_ = step(first)
            np.testing.assert_array_equal(rewards, [count] * NUM_ENVS)
            _, rewards, *_ = second.step(ACTIONS[:2])
            np.testing.assert_array_equal(rewards, [count] * 2)


# Environments that fail


def failing(**errors):
    """Options under which environment 2 raises."""
    return [errors if i == 2 else None for i in range(NUM_ENVS)]


def test_an_exception_in_step_names_everything_and_the_others_have_done_their_step(pool):
    pool.reset(seed=30)
    step(pool)
    step(pool)
    pool.envs[2].break_next_step(KeyError("lost key"))
    with pytest.raises(EnvError) as caught:
        step(pool)
    error = caught.value
    assert error.env_indices == (2,)
    assert (error.env_index, error.command, error.seed) == (2, "step", 32)
    assert error.episode_step == 3
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.args == ("lost key",)
    for text in ("environment 2", "step", "seed 32", "KeyError", "lost key", "envs.py", "_raise"):
        assert text in str(error)
    assert "_raise" in str(error.__cause__.__cause__)

    observations, rewards, terminateds, truncateds, infos = error.result
    np.testing.assert_array_equal(rewards, np.float32([3, 3, 0, 3]), strict=True)
    assert not terminateds.any()
    assert not truncateds.any()
    np.testing.assert_array_equal(infos["steps"], [[3], [3], [2], [3]])
    np.testing.assert_array_equal(observations, [[2, 3], [2, 3], [2, 2], [2, 3]])


def test_after_an_exception_the_pool_goes_on_once_the_environment_is_reset(pool):
    pool.reset(options=failing(step_error=ValueError("no")))
    with pytest.raises(EnvError):
        step(pool)
    pool.call("taken")
    with pytest.raises(ResetNeeded, match=r"\[2\]"):
        step(pool)
    assert_nothing_moved(pool)
    _, rewards, *_ = step(pool, [True, True, False, True])
    np.testing.assert_array_equal(rewards, [2, 2, 0, 2])
    pool.reset(mask=[False, False, True, False])
    _, rewards, *_ = step(pool)
    np.testing.assert_array_equal(rewards, [3, 3, 1, 3])


def test_a_row_that_fails_under_a_mask_has_reward_zero_and_no_flags(pool):
    pool.reset(options=[{"terminated": True, "truncated": True}] * NUM_ENVS)
    step(pool)
    pool.envs[3].break_next_step(ValueError("no"))
    with pytest.raises(EnvError) as caught:
        step(pool, SOME)
    _, rewards, terminateds, truncateds, _ = caught.value.result
    np.testing.assert_array_equal(rewards, [2, 0, 0, 0])
    np.testing.assert_array_equal(terminateds, [True, False, False, False])
    np.testing.assert_array_equal(truncateds, [True, False, False, False])


@pytest.mark.parametrize("mask", [None, [False, True, True, False]], ids=["all", "some"])
def test_an_exception_in_reset_leaves_an_environment_that_needs_a_reset(pool, mask):
    old_observations, _, _, _, old = step(pool)
    before = [row(i, old_observations, old) for i in range(NUM_ENVS)]
    with pytest.raises(EnvError, match="bad start") as caught:
        pool.reset(seed=60, options=failing(reset_error=RuntimeError("bad start")), mask=mask)
    error = caught.value
    assert (error.env_index, error.command, error.seed) == (2, "reset", 62)
    assert isinstance(error.__cause__, RuntimeError)
    observations, infos = error.result
    np.testing.assert_array_equal(observations[1], [2, 0])
    np.testing.assert_array_equal(infos["steps"][1], [0])
    if mask is None:
        assert [row(i, old_observations, old) for i in range(NUM_ENVS)] == before
    else:
        assert observations is old_observations
        assert row(0, observations, infos) == before[0]
    with pytest.raises(ResetNeeded, match=r"\[2\]"):
        step(pool)
    pool.reset(seed=60, mask=[False, False, True, False])
    _, rewards, *_ = step(pool)
    assert rewards[2] == 1


@both_kinds
def test_an_exception_in_the_very_first_reset(num_workers):
    with EnvPool(ledgers(), num_workers=num_workers) as pool:
        everyone = [{"reset_error": RuntimeError("not yet")}] * NUM_ENVS
        with pytest.raises(EnvError, match="not yet") as caught:
            pool.reset(options=everyone)
        assert caught.value.env_indices == (0, 1, 2, 3)
        observations, infos = caught.value.result
        assert np.isnan(observations).all()
        assert infos == {}
        with pytest.raises(EnvError) as caught:
            pool.reset(options=failing(reset_error=RuntimeError("not yet")))
        observations, infos = caught.value.result
        np.testing.assert_array_equal(infos["index"], [[0], [1], [0], [3]])
        assert np.isnan(observations[2]).all()
        pool.reset(mask=[False, False, True, False])
        _, rewards, _, _, infos = step(pool)
        np.testing.assert_array_equal(rewards, [1] * NUM_ENVS)
        np.testing.assert_array_equal(infos["index"], [[0], [1], [2], [3]])


def test_several_that_fail_at_once_are_all_reported_in_order(pool):
    errors = [{"step_error": ValueError(f"error {i}")} for i in range(NUM_ENVS)]
    errors[1] = None
    pool.reset(options=errors)
    with pytest.raises(EnvError) as caught:
        step(pool)
    error = caught.value
    assert error.env_indices == (0, 2, 3)
    assert [failure.env_index for failure in error.failures] == [0, 2, 3]
    assert [failure.message for failure in error.failures] == ["error 0", "error 2", "error 3"]
    assert [str(failure.exception) for failure in error.failures] == [
        "error 0",
        "error 2",
        "error 3",
    ]
    assert all("_raise" in failure.traceback for failure in error.failures)
    for text in ("3 environments", "error 0", "error 2", "error 3"):
        assert text in str(error)
    np.testing.assert_array_equal(error.result[1], [0, 1, 0, 0])


def test_a_call_that_raises_is_an_error_after_which_no_reset_is_needed(pool):
    error = ValueError("cannot")
    with pytest.raises(EnvError, match="cannot") as caught:
        pool.call_each("fail_or_double", [0, 1, error, 3])
    assert caught.value.command == "call"
    assert caught.value.env_indices == (2,)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.result == [0, 2, None, 6]
    _, rewards, *_ = step(pool)
    np.testing.assert_array_equal(rewards, [1] * NUM_ENVS)


@pytest.mark.parametrize(
    ("name", "type_name", "text"),
    [
        ("unpicklable", "envs.Unpicklable", "the lock is mine"),
        ("two arguments", "envs.TwoArguments", r"out of paint \(code 7\)"),
        ("mute", "envs.Mute", "not available"),
    ],
)
def test_exceptions_that_cannot_travel_are_told_by_name_and_text(pool, name, type_name, text):
    pool.reset(options=failing(step_error=name))
    with pytest.raises(EnvError, match=f"{type_name}.*{text}") as caught:
        step(pool)
    (failure,) = caught.value.failures
    assert failure.type_name == type_name
    assert failure.exception is None or name == "mute"
    assert "_raise" in str(caught.value)
    assert caught.value.__cause__ is not None
    with pytest.raises(EnvError, match=type_name):
        pool.call("fail", name)
    pool.reset()
    step(pool)


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit()], ids=plain_id)
def test_an_exception_that_would_end_a_program_is_only_an_error(pool, error):
    pool.reset(options=failing(step_error=error))
    with pytest.raises(EnvError, match=type(error).__name__) as caught:
        step(pool)
    assert isinstance(caught.value.__cause__, type(error))
    with pytest.raises(EnvError):
        pool.reset(options=failing(reset_error=error))
    with pytest.raises(EnvError):
        pool.call("fail", error)
    pool.reset()
    _, rewards, *_ = step(pool)
    np.testing.assert_array_equal(rewards, [1] * NUM_ENVS)


def test_an_observation_of_another_shape_names_environment_and_shapes(pool):
    pool.reset(options=failing(observation=np.zeros((2, 1))))
    with pytest.raises(EnvError, match=r"environment 2.*expected \(2,\), found \(2, 1\)"):
        step(pool)
    with pytest.raises(EnvError, match=r"environment 2.*expected \(2,\), found \(3,\)"):
        pool.reset(options=failing(reset_observation=[1.0, 2.0, 3.0]))
    with pytest.raises(EnvError, match=r"environment 2.*expected \(2,\), found \(\)"):
        pool.reset(options=failing(reset_observation=None))


# Calls and attributes


def test_call_returns_one_result_for_each_environment_that_took_part(pool):
    assert pool.call("add", 10, 5, times=2) == [30, 31, 32, 33]
    assert pool.call("add", 10, mask=SOME) == [10, None, None, 13]
    assert pool.call("add", mask=[False] * NUM_ENVS) == [None] * NUM_ENVS
    assert pool.call("index") == [0, 1, 2, 3]


def test_no_two_environments_share_an_argument(pool):
    numbers = [1]
    assert pool.call("twice", numbers) == [[1, 1]] * NUM_ENVS
    assert pool.call_each("twice", [(numbers,)] * NUM_ENVS) == [[1, 1]] * NUM_ENVS
    pool.set_attr("notes", {"list": numbers})
    assert pool.envs[0].notes == {"list": [1]}
    pool.envs[0].change_notes()
    assert pool.get_attr("notes") == [{"list": [1, 1]}, *[{"list": [1]}] * 3]
    assert numbers == [1]


def test_call_each_gives_every_environment_arguments_of_its_own(pool):
    assert pool.call_each("add", [(1,), (2, 3), (), (4,)]) == [1, 6, 2, 7]
    assert pool.call_each("add", [1, None, None, 4], mask=SOME) == [1, None, None, 7]
    for wrong in ([(1,)] * 3, [(1,)] * 5, []):
        with pytest.raises(ValueError, match=f"4 entries.*found {len(wrong)}"):
            pool.call_each("add", wrong)


def test_attributes_are_read_and_set_by_mask(pool):
    assert pool.get_attr("index") == [0, 1, 2, 3]
    assert pool.get_attr("index", mask=SOME) == [0, None, None, 3]
    pool.set_attr("steps", 7)
    assert pool.get_attr("steps") == [7] * NUM_ENVS
    pool.set_attr("steps", [1, 2, 3, 4], mask=SOME)
    assert pool.get_attr("steps") == [1, 7, 7, 4]
    pool.set_attr("steps", np.array([5, 6, 7, 8]))  # an array is one value
    assert [value.tolist() for value in pool.get_attr("steps")] == [[5, 6, 7, 8]] * NUM_ENVS
    for wrong in ([1, 2, 3], (1, 2, 3, 4, 5), []):
        with pytest.raises(ValueError, match=f"4 entries.*found {len(wrong)}"):
            pool.set_attr("steps", wrong)


def test_a_method_as_an_attribute_can_be_called_and_says_where_it_is(pool):
    methods = pool.get_attr("add", mask=SOME)
    assert methods[1] is methods[2] is None
    assert methods[3](5, times=2) == 13
    assert repr(methods[3]) == "<method envs[3].add>"


def test_an_environment_is_never_copied_and_always_a_handle(pool):
    inner = pool.get_attr("unwrapped")
    inner[1].steps = 40
    assert pool.get_attr("steps") == [0, 40, 0, 0]
    assert repr(inner[1]) == "<Ledger at envs[1].unwrapped>"


def test_an_attribute_that_is_not_there_is_an_error_of_every_environment(pool):
    with pytest.raises(EnvError, match="nowhere") as caught:
        pool.get_attr("nowhere", mask=SOME)
    assert caught.value.env_indices == (0, 3)
    assert isinstance(caught.value.__cause__, AttributeError)
    with pytest.raises(EnvError, match="nowhere"):
        pool.call("nowhere")
    step(pool)


def test_a_result_that_cannot_be_pickled_is_an_error_and_the_pool_goes_on(pool):
    with pytest.raises(EnvError, match=r"lock\(\) returned.*cannot be pickled") as caught:
        pool.call("lock")
    assert isinstance(caught.value.__cause__, TypeError)
    step(pool)


def test_render_returns_a_frame_of_each_environment(pool):
    frames = pool.render()
    for i in range(NUM_ENVS):
        np.testing.assert_array_equal(frames[i], np.full((2, 3, 3), i, np.uint8), strict=True)
    frames = pool.render(mask=SOME)
    assert [frame is None for frame in frames] == [False, True, True, False]


def test_the_pool_has_no_attributes_of_its_environments(pool):
    for name in ("index", "received", "spec", "unwrapped", "metadata"):
        assert not hasattr(pool, name)


# Spaces


def test_the_batched_spaces_are_made_once_and_their_generator_advances(pool):
    assert pool.action_space is pool.action_space
    assert pool.observation_space is pool.observation_space
    assert pool.single_action_space == envs.Ledger.action_space
    assert pool.single_observation_space == envs.Ledger.observation_space
    expected = spaces.Box(-10, 10, (NUM_ENVS, 2), np.float32)
    assert pool.action_space == expected
    pool.action_space.seed(4)
    expected.seed(4)
    for _ in range(3):
        np.testing.assert_array_equal(pool.action_space.sample(), expected.sample())
    pool.action_space.seed(4)
    pool.reset()
    step(pool)
    expected.seed(4)
    np.testing.assert_array_equal(pool.action_space.sample(), expected.sample())


@both_kinds
def test_the_variation_space_is_that_of_environment_0_as_it_is_now(num_workers):
    factories = [partial(envs.Varied, i) for i in range(2)]
    with EnvPool(factories, num_workers=num_workers) as pool:
        space = pool.variation_space
        assert space["size"].value == 1.0
        assert space["size"].constrain_fn is None
        assert space["pair"][1].value == 4.0
        assert space["pair"][1].constrain_fn is None
        pool.call("grow", mask=[True, False])
        assert pool.variation_space["size"].value == 2.0
        assert pool.single_variation_space["size"].value == 2.0
        assert pool.call("constrained") == [True, True]  # the environments keep their functions


def test_without_a_variation_space_there_is_none(pool):
    assert pool.variation_space is None
    assert pool.single_variation_space is None


@both_kinds
@pytest.mark.parametrize(
    ("kinds", "index", "texts"),
    [
        ("..ww", 2, ["action_space", "-10.0, 10.0", "-10.0, 20.0"]),
        (".s.w", 1, ["observation_space", "float64", "float32"]),
    ],
)
def test_environments_with_different_spaces_are_an_error_that_names_the_pair(
    num_workers, kinds, index, texts
):
    factories = {".": envs.Ledger, "w": envs.WideLedger, "s": envs.SingleLedger}
    with pytest.raises(ValueError, match=f"environments 0 and {index}") as caught:
        EnvPool([factories[kind] for kind in kinds], num_workers=num_workers)
    for text in texts:
        assert text in str(caught.value)


# Construction


@every_number_of_workers
def test_each_factory_is_called_once_and_in_its_worker_alone(tmp_path, num_workers):
    book = tmp_path / "diary"
    factories = [partial(envs.Diary, book, i) for i in range(NUM_ENVS)]
    pool = EnvPool(factories, num_workers=num_workers)
    pids = pool.call("pid")
    pool.reset()
    step(pool)
    pool.close()
    pool.close()
    lines = [line.split() for line in book.read_text().splitlines()]
    assert sorted(lines) == sorted(
        [event, str(i), str(pid)] for event in ("built", "closed") for i, pid in enumerate(pids)
    )
    here = [pid == os.getpid() for pid in pids]
    assert here == [num_workers == 0] * NUM_ENVS
    assert len(set(pids)) == max(num_workers, 1)
    shards = {1: [0, 0, 0, 0], 2: [0, 0, 1, 1], 4: [0, 1, 2, 3]}.get(num_workers, [0] * 4)
    assert [sorted(set(pids), key=pids.index).index(pid) for pid in pids] == shards


@every_number_of_workers
def test_a_factory_that_raises_is_named_and_everything_else_is_stopped(tmp_path, num_workers):
    book = tmp_path / "diary"
    factories = [partial(envs.Diary, book, i) for i in range(NUM_ENVS)]
    factories[2] = partial(envs.Diary, book, "not an index")
    with pytest.raises(
        EnvError, match=r"environment 2, build: ValueError: .*not an index"
    ) as caught:
        EnvPool(factories, num_workers=num_workers)
    error = caught.value
    assert (error.env_index, error.env_indices, error.command) == (2, (2,), "build")
    assert isinstance(error.__cause__, ValueError)
    assert "envs.py" in str(error)
    events = [line.split()[:2] for line in book.read_text().splitlines()]
    assert sorted(events) == sorted(
        [event, i] for event in ("built", "closed") for i in {i for _, i in events}
    )


@pytest.mark.parametrize("made", [None, 5, object()], ids=["None", "int", "object"])
def test_a_factory_that_makes_no_environment_is_named(made):
    with pytest.raises(EnvError, match=r"environment 1, build: TypeError.*Gymnasium") as caught:
        EnvPool([envs.Ledger, lambda: made], num_workers=0)
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_factories_that_return_one_object_are_an_error(num_workers):
    shared = envs.Ledger()
    with pytest.raises(EnvError, match=r"environment 2, build: .*another factory"):
        EnvPool([envs.Ledger, lambda: shared, lambda: shared], num_workers=num_workers)


@pytest.mark.parametrize(
    ("env_fns", "error", "text"),
    [
        ([], ValueError, "at least one"),
        ((), ValueError, "at least one"),
        (envs.Ledger(), TypeError, "sequence of factories"),
        (envs.Ledger, TypeError, "sequence of factories"),
        ([envs.Ledger(), envs.Ledger()], TypeError, r"env_fns\[0\].*Ledger"),
        ([envs.Ledger, envs.Ledger()], TypeError, r"env_fns\[1\].*Ledger"),
        ([envs.Ledger, "CartPole-v1"], TypeError, r"env_fns\[1\].*str"),
    ],
)
def test_anything_but_factories_is_refused(env_fns, error, text):
    with pytest.raises(error, match=text):
        EnvPool(env_fns)


def test_factories_may_come_from_a_generator_and_stay_callable():
    factories = ledgers()
    with EnvPool((factory for factory in factories), num_workers=0) as pool:
        assert pool.num_envs == NUM_ENVS
    assert [factory().index for factory in factories] == [0, 1, 2, 3]


@pytest.mark.parametrize("num_workers", [-1, 5, 100])
def test_a_number_of_workers_that_cannot_be_is_refused(num_workers):
    with pytest.raises(ValueError, match=f"0 to 4.*found {num_workers}"):
        EnvPool(ledgers(), num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [1.0, "2", True])
def test_a_number_of_workers_that_is_no_integer_is_refused(num_workers):
    with pytest.raises(TypeError, match="num_workers"):
        EnvPool(ledgers(), num_workers=num_workers)


def test_by_default_there_are_as_many_workers_as_environments_or_usable_cores():
    with EnvPool(ledgers(1)) as pool:
        assert (pool.num_envs, pool.num_workers) == (1, 1)
        pool.reset()
        _, rewards, *_ = pool.step(ACTIONS[:1])
        np.testing.assert_array_equal(rewards, [1])


@both_kinds
def test_lambdas_see_late_bindings_as_in_a_plain_loop(num_workers):
    late = [lambda: envs.Ledger(i) for i in range(3)]  # noqa: B023  # this is what is tested
    bound = [lambda i=i: envs.Ledger(i) for i in range(3)]
    factories = [*late, *bound]
    expected = [factory().index for factory in factories]
    assert expected == [2, 2, 2, 0, 1, 2]
    with EnvPool(factories, num_workers=num_workers) as pool:
        assert pool.get_attr("index") == expected


@both_kinds
def test_environments_and_errors_of_classes_that_only_a_function_knows(num_workers):
    class LocalError(Exception):
        pass

    class Local(envs.Ledger):
        def step(self, action):
            if self.index == 1:
                raise LocalError("from inside")
            return super().step(action)

    with EnvPool([partial(Local, i) for i in range(2)], num_workers=num_workers) as pool:
        pool.reset()
        with pytest.raises(EnvError, match="LocalError: from inside") as caught:
            pool.step(ACTIONS[:2])
        np.testing.assert_array_equal(caught.value.result[1], [1, 0])


# The end


@every_number_of_workers
def test_after_close_every_call_is_refused_and_arrays_can_still_be_read(num_workers):
    with EnvPool(ledgers(), num_workers=num_workers) as pool:
        assert not pool.closed
        observations, infos = pool.reset(seed=2)
        _, rewards, *_ = step(pool)
        handle = pool.envs[0]
    assert pool.closed
    pool.close()
    for call in (
        pool.reset,
        partial(step, pool),
        partial(pool.call, "add"),
        partial(pool.call_each, "add", [()] * NUM_ENVS),
        partial(pool.get_attr, "index"),
        partial(pool.set_attr, "index", 1),
        pool.render,
        partial(getattr, handle, "index"),
        partial(setattr, handle, "index", 1),
        partial(getattr, pool, "variation_space"),
    ):
        with pytest.raises(ClosedEnvironmentError, match="closed"):
            call()
    np.testing.assert_array_equal(observations, [[1, 1]] * NUM_ENVS)
    np.testing.assert_array_equal(infos["steps"], [[1]] * NUM_ENVS)
    np.testing.assert_array_equal(rewards, [1] * NUM_ENVS)
    infos["steps"][:] = 5
    np.testing.assert_array_equal(infos["steps"], [[5]] * NUM_ENVS)
    assert pool.num_envs == NUM_ENVS
    np.testing.assert_array_equal(pool.seeds, [2, 3, 4, 5])


@both_kinds
def test_an_exception_inside_the_context_closes_the_pool_and_passes(num_workers):
    with pytest.raises(KeyError, match="mine"), EnvPool(ledgers(), num_workers=num_workers) as pool:
        raise KeyError("mine")
    assert pool.closed


def test_nothing_is_busy_between_calls(pool):
    np.testing.assert_array_equal(pool.busy, [False] * NUM_ENVS, strict=True)
    assert (pool.num_envs, pool.closed) == (NUM_ENVS, False)
