"""Every kind of space is batched, and every kind of action reaches its environment unharmed."""

import pickle
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import envs
from conftest import plain_id
from swm_async import EnvError, EnvPool
from swm_async.actions import ActionWriter
from swm_workers.spaces import assemble, leaves, pick, same_space

COUNT = 3
SOME = np.array([True, False, True])

ARRAY_SPACES = {
    "box float32": spaces.Box(-5.0, 5.0, (2,), np.float32),
    "box float64": spaces.Box(-5.0, 5.0, (2, 3), np.float64),
    "box float16": spaces.Box(-5.0, 5.0, (2,), np.float16),
    "box without bounds": spaces.Box(-np.inf, np.inf, (1,), np.float32),
    "box uint8": spaces.Box(0, 255, (2, 2, 3), np.uint8),
    "box int64": spaces.Box(-(2**60), 2**60, (2,), np.int64),
    "box scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    "box of nothing": spaces.Box(-1.0, 1.0, (0, 2), np.float32),
    "discrete": spaces.Discrete(4),
    "discrete with start": spaces.Discrete(3, start=-1),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-discrete 2-D with start": spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[1, 2], [3, 4]]),
    "multi-binary": spaces.MultiBinary(3),
    "multi-binary 2-D": spaces.MultiBinary((2, 2)),
}
NESTED_SPACES = {
    "dict": spaces.Dict(
        {"b": spaces.Box(-1.0, 1.0, (2,), np.float32), "a": spaces.Discrete(3, start=5)}
    ),
    "dict of one": spaces.Dict({"only": spaces.Box(-1.0, 1.0, (2,), np.float64)}),
    "tuple": spaces.Tuple([spaces.MultiBinary(2), spaces.Box(0, 9, (1,), np.int16)]),
    "tuple of one": spaces.Tuple([spaces.Discrete(3)]),
    "nested": spaces.Dict(
        {
            "image": spaces.Box(0, 255, (2, 2), np.uint8),
            "parts": spaces.Tuple(
                [spaces.Discrete(3), spaces.Dict({"x": spaces.MultiDiscrete([2, 3])})]
            ),
        }
    ),
    "scalars": spaces.Dict({"f": spaces.Box(-1.0, 1.0, (), np.float64), "i": spaces.Discrete(2)}),
    "empty dict": spaces.Dict({}),
    "empty tuple": spaces.Tuple([]),
}
OBJECT_SPACES = {
    "text": spaces.Text(5, min_length=0),
    "sequence": spaces.Sequence(spaces.Box(-1.0, 1.0, (2,), np.float32)),
    "graph": spaces.Graph(spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(4)),
    "one of": spaces.OneOf([spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,), np.float32)]),
    "custom": envs.Word("up", "down", "left"),
    "dict with text": spaces.Dict({"text": spaces.Text(4), "number": spaces.Discrete(9)}),
    "tuple with custom": spaces.Tuple([spaces.MultiBinary(2), envs.Word("yes", "no")]),
}
ALL_SPACES = {**ARRAY_SPACES, **NESTED_SPACES, **OBJECT_SPACES}
# The same shard hosts environments in this process and in workers: of each kind one, to see that
# it can travel.
ON_WORKERS = [
    ("box float32", 2),
    ("box scalar", 1),
    ("discrete with start", 2),
    ("multi-binary 2-D", 1),
    ("nested", 2),
    ("empty dict", 1),
    ("graph", 1),
    ("one of", 1),
    ("tuple with custom", 2),
    ("dict with text", 2),
]


def make_pool(space, num_workers=0, **arguments):
    """Environments that observe their actions, and remember them."""
    factories = [partial(envs.Echo, space, **arguments) for _ in range(COUNT)]
    return EnvPool(factories, num_workers=num_workers)


def draw(space, seed, count=COUNT):
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def batched(space, samples):
    """The batch of some samples, by the rule of Gymnasium's vector environments."""
    if isinstance(space, spaces.Dict):
        return {key: batched(part, [s[key] for s in samples]) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batched(part, [s[k] for s in samples]) for k, part in enumerate(space))
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return np.stack(samples).astype(space.dtype)
    return tuple(samples)


def assert_same(found, expected):
    """Equal values of equal types, dtypes and shapes, all the way down."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for part, expected_part in zip(found, expected, strict=True):
            assert_same(part, expected_part)
    elif isinstance(expected, (np.ndarray, np.generic)):
        np.testing.assert_array_equal(found, expected, strict=True)
    else:
        assert found == expected


def assert_untouched(pool):
    assert pool.get_attr("steps") == [0] * COUNT


# What goes in comes out


@pytest.mark.parametrize(
    ("name", "num_workers"), [*((name, 0) for name in ALL_SPACES), *ON_WORKERS]
)
def test_observations_and_actions_of_any_space(name, num_workers):
    space = ALL_SPACES[name]
    first, second, third = (draw(space, seed) for seed in (1, 2, 3))
    options = [{"observation": sample} for sample in first]
    with make_pool(space, num_workers) as pool:
        observations, infos = pool.reset(options=options)
        assert_same(observations, batched(space, first))
        assert infos == {}

        observations, *_ = pool.step(batched(space, second))
        assert_same(observations, batched(space, second))

        observations, *_ = pool.step(third, mask=SOME)  # a list of actions
        mixed = [third[i] if SOME[i] else second[i] for i in range(COUNT)]
        assert_same(observations, batched(space, mixed))

        kept = pool.get_attr("kept")
        for i in range(COUNT):
            assert_same(kept[i], [second[i], third[i]] if SOME[i] else [second[i]])


@pytest.mark.parametrize("name", ALL_SPACES)
def test_samples_of_the_batched_action_space_are_actions(name):
    space = ALL_SPACES[name]
    with make_pool(space) as pool:
        pool.reset(seed=0)
        actions = pool.action_space.sample()
        observations, *_ = pool.step(actions)
        assert_same(observations, actions)


@pytest.mark.parametrize("name", sorted(ALL_SPACES.keys() - {"empty dict", "empty tuple"}))
def test_observations_are_those_of_gymnasiums_own_vector_environment(name):
    factories = [partial(envs.Echo, ALL_SPACES[name]) for _ in range(COUNT)]
    samples = [{"observation": sample} for sample in draw(ALL_SPACES[name], 4)]
    peer = SyncVectorEnv([lambda made=made: made() for made in factories])
    peer.action_space.seed(5)
    with EnvPool(factories, num_workers=0) as pool:
        pool.reset(options=samples)
        assert repr(pool.action_space) == repr(peer.action_space)
        assert repr(pool.observation_space) == repr(peer.observation_space)
        peer.reset()
        for _ in range(2):
            actions = peer.action_space.sample()
            expected, *_ = peer.step(actions)
            observations, *_ = pool.step(actions)
            assert_same(observations, expected)
    peer.close()


@pytest.mark.parametrize(
    ("name", "fill"),
    [
        ("box float16", np.full((COUNT, 2), np.nan, np.float16)),
        ("box uint8", np.zeros((COUNT, 2, 2, 3), np.uint8)),
        ("discrete with start", np.zeros(COUNT, np.int64)),
        ("multi-binary", np.zeros((COUNT, 3), np.int8)),
        ("text", (None,) * COUNT),
        ("dict with text", {"number": np.zeros(COUNT, np.int64), "text": (None,) * COUNT}),
        ("tuple of one", (np.zeros(COUNT, np.int64),)),
    ],
)
def test_rows_that_were_never_reset_hold_the_fill_value(name, fill):
    with make_pool(ALL_SPACES[name]) as pool:
        observations, _ = pool.reset(mask=[False] * COUNT)
        assert_same(observations, fill)
        observations, _ = pool.reset(mask=SOME)
        rest = ~SOME

        def others(value):
            if isinstance(value, dict):
                return {key: others(part) for key, part in value.items()}
            if isinstance(value, np.ndarray):
                return value[rest]
            if len(value) == COUNT:
                return tuple(part for part, out in zip(value, rest, strict=True) if out)
            return tuple(others(part) for part in value)

        assert_same(others(observations), others(fill))


@pytest.mark.parametrize("name", ["dict", "tuple", "nested"])
def test_arrays_inside_dicts_and_tuples_stay_the_same_objects(name):
    space = NESTED_SPACES[name]
    parts = leaves(space)
    with make_pool(space) as pool:
        observations, _ = pool.reset()
        before = [pick(observations, leaf.path) for leaf in parts]
        again, *_ = pool.step(draw(space, 1), mask=SOME)
        assert again is not observations
        assert all(pick(again, leaf.path) is b for leaf, b in zip(parts, before, strict=True))
        fresh, _ = pool.reset()
        assert not any(pick(fresh, leaf.path) is b for leaf, b in zip(parts, before, strict=True))


@pytest.mark.parametrize("name", ["box float32", "nested", "text", "dict with text"])
def test_private_copies_of_observations_are_deep(name):
    space = ALL_SPACES[name]
    first, second = draw(space, 1), draw(space, 2)
    with EnvPool([partial(envs.Echo, space)] * COUNT, num_workers=0, copy=True) as pool:
        observations, _ = pool.reset(options=[{"observation": sample} for sample in first])
        later, *_ = pool.step(second)
        assert_same(observations, batched(space, first))
        assert_same(later, batched(space, second))


def test_observations_that_are_objects_are_snapshots():
    class Growing(envs.Echo):
        def step(self, action):
            self.kept.append(action)
            return self.kept, 0.0, False, False, {}

    with EnvPool([partial(Growing, spaces.Sequence(spaces.Discrete(9)))], num_workers=0) as pool:
        pool.reset()
        first, *_ = pool.step([(1, 2)])
        second, *_ = pool.step([(3,)])
        assert first == ([(1, 2)],)
        assert second == ([(1, 2), (3,)],)
        second[0].clear()
        assert pool.get_attr("kept") == [[(1, 2), (3,)]]


# Casts of observations, as SyncVectorEnv makes them

FLOATS = spaces.Box(-1.0, 1.0, (2,), np.float32)
BYTES = spaces.Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (FLOATS, np.array([0.1, 5.0])),  # also outside its bounds
        (FLOATS, np.array([1, 2])),
        (FLOATS, [0.5, 1]),
        (FLOATS, np.array([1.0, 2.0], ">f4")),
        (FLOATS, np.float64([1.0, 9.0, 2.0])[::2]),
        (BYTES, np.array([True, False])),
        (BYTES, np.array([1.0, 2.5])),
        (BYTES, np.array([1, 300])),
        (BYTES, np.array([-1, 0], np.int8)),
        (spaces.Box(-9, 9, (2,), np.int32), np.array([1, -2])),
        (spaces.Box(-1.0, 1.0, (), np.float32), 0.5),
        (spaces.Discrete(5), np.int32(3)),
        (spaces.Discrete(5), np.array(3)),
        (spaces.Discrete(5), True),
        (spaces.Discrete(5), 2.5),
        (spaces.Discrete(5), np.array([3])),
        (spaces.MultiDiscrete([3, 4]), [1, 2]),
        (spaces.MultiBinary(2), np.array([True, False])),
        (FLOATS, np.float32(1)),
        (FLOATS, np.ones((1, 2), np.float32)),
        (FLOATS, ["a", "b"]),
        (spaces.Dict({"a": FLOATS}), {"a": np.array([0.1, 0.2]), "unknown": 1}),
        (spaces.Dict({"a": FLOATS}), {"b": np.zeros(2)}),
        (spaces.Tuple([FLOATS, BYTES]), [np.array([0.1, 0.2]), np.array([1, 2], np.uint8)]),
        (spaces.Tuple([FLOATS, BYTES]), (np.array([0.1, 0.2]), np.array([1.0, 2.0]))),
    ],
    ids=lambda value: " ".join(repr(value).split()),
)
def test_observations_are_cast_where_gymnasium_casts_them_and_refused_where_it_refuses(
    space, observation
):
    class Fixed(envs.Echo):
        def reset(self, *, seed=None, options=None):
            return observation, {}

    peer = SyncVectorEnv([lambda: Fixed(space)] * 2)
    with EnvPool([partial(Fixed, space)] * 2, num_workers=0) as pool:
        try:
            expected, _ = peer.reset()
        except (TypeError, ValueError, KeyError):
            with pytest.raises(EnvError, match="environment 0"):
                pool.reset()
        else:
            found, _ = pool.reset()
            assert_same(found, expected)
    peer.close()


def test_a_part_of_another_shape_is_named():
    space = NESTED_SPACES["nested"]
    (sample,) = draw(space, 0, 1)
    sample["parts"][1]["x"] = np.array([1])
    with (
        make_pool(space) as pool,
        pytest.raises(EnvError, match=r"environment 0.*\['parts'\]\[1\]\['x'\].*\(2,\).*\(1,\)"),
    ):
        pool.reset(options={"observation": sample})


# What an environment receives


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", ["box float32", "multi-discrete"])
def test_an_environment_may_keep_its_action_and_change_it(name, num_workers):
    space = ARRAY_SPACES[name]
    first, second = (np.stack(draw(space, seed)) for seed in (1, 2))
    mine = first.copy()
    with make_pool(space, num_workers, spoil=True) as pool:
        pool.reset()
        observations, *_ = pool.step(mine)
        np.testing.assert_array_equal(observations, first)
        np.testing.assert_array_equal(mine, first)
        observations, *_ = pool.step(second, mask=SOME)
        np.testing.assert_array_equal(observations[SOME], second[SOME])
        np.testing.assert_array_equal(observations[~SOME], first[~SOME])
        # The spoiled action of the first step has not been written to by the second.
        assert not np.any([kept[0] for kept in pool.get_attr("kept")])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_action_that_was_kept_does_not_change_with_the_next_step(num_workers):
    space = NESTED_SPACES["dict"]
    first, second = draw(space, 1), draw(space, 2)
    with make_pool(space, num_workers) as pool:
        pool.reset()
        pool.step(first)
        pool.step(second)
        for i, kept in enumerate(pool.get_attr("kept")):
            assert_same(kept, [first[i], second[i]])


def test_no_two_environments_share_an_action_that_is_an_object():
    shared = [1]
    with make_pool(OBJECT_SPACES["sequence"]) as pool:
        pool.reset()
        pool.step([shared] * COUNT)
        shared.append(2)
        pool.call("append_to_last_action", 3, mask=SOME)
        assert pool.get_attr("kept") == [[[1, 3]], [[1]], [[1, 3]]]
        assert shared == [1, 2]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_action_that_cannot_be_rebuilt_is_an_error_of_its_environment(num_workers):
    with make_pool(OBJECT_SPACES["sequence"], num_workers) as pool:
        pool.reset()
        with pytest.raises(EnvError, match=r"environment 1.*no number") as caught:
            pool.step([(1,), envs.Brittle(), (3,)])
        assert caught.value.env_indices == (1,)
        assert pool.get_attr("steps") == [1, 0, 1]
        pool.reset()
        pool.step([(1,), (2,), (3,)])


# Actions that are accepted

BOX = ARRAY_SPACES["box float32"]
ROWS = [[0.5, 1.0], [2.0, -1.5], [0.0, 3.0]]


@pytest.mark.parametrize(
    "actions",
    [
        np.float64(ROWS),
        np.float16(ROWS),
        np.array(ROWS, ">f4"),
        np.asfortranarray(np.float32(ROWS)),
        np.float64(np.repeat(ROWS, 2, axis=1))[:, ::2],
        ROWS,
        tuple(map(tuple, ROWS)),
        [np.float32(row) for row in ROWS],
        [ROWS[0], np.float64(ROWS[1]), (0, 3)],
        np.array([None, *map(np.float32, ROWS)], object)[1:],
    ],
    ids=[
        "float64",
        "float16",
        "big-endian",
        "Fortran order",
        "strided",
        "list",
        "tuple",
        "list of arrays",
        "mixed list",
        "array of objects",
    ],
)
@pytest.mark.parametrize("mask", [None, SOME], ids=["all", "some"])
def test_actions_of_a_box_are_cast_to_its_dtype(actions, mask):
    with make_pool(BOX) as pool:
        pool.reset()
        pool.step(actions, mask)
        for i, kept in enumerate(pool.get_attr("kept")):
            taken = mask is None or mask[i]
            assert_same(kept, [np.float32(ROWS[i])] if taken else [])


def test_actions_that_are_more_precise_than_the_box_are_rounded():
    with make_pool(BOX) as pool:
        pool.reset()
        observations, *_ = pool.step(np.full((COUNT, 2), 0.1))
        np.testing.assert_array_equal(observations, np.full((COUNT, 2), np.float32(0.1)))


@pytest.mark.parametrize(
    "actions",
    [
        np.int64([2, 0, 3]),
        np.uint64([2, 0, 3]),
        np.int8([2, 0, 3]),
        np.float32([2, 0, 3]),
        np.float64([2, 0, 3]),
        [2, 0, 3],
        (2, 0, 3),
        [np.int64(2), np.array(0), 3.0],
        np.array([2, 0, 3], object),
    ],
    ids=plain_id,
)
@pytest.mark.parametrize("mask", [None, SOME], ids=["all", "some"])
def test_integral_numbers_are_actions_of_a_discrete_space(actions, mask):
    with make_pool(ARRAY_SPACES["discrete"]) as pool:
        pool.reset()
        pool.step(actions, mask)
        for i, kept in enumerate(pool.get_attr("kept")):
            assert_same(kept, [np.int64([2, 0, 3])[i]] if mask is None or mask[i] else [])


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("multi-binary", np.bool_([[1, 0, 1], [0, 0, 0], [1, 1, 1]])),
        ("multi-binary", np.float32([[1, 0, 1], [0, 0, 0], [1, 1, 1]])),
        ("multi-binary", [[True, False, True], [0, 0, 0], [1.0, 1, 1]]),
        ("multi-discrete", np.float64([[2, 3], [0, 0], [1, 2]])),
        ("box int64", [[2**60, 1], [-(2**60), 0], [0, 5]]),
        ("box scalar", [0.5, np.float64(-0.5), 1]),
        ("box scalar", np.float64([0.5, -0.5, 1])),
    ],
)
def test_actions_are_cast_where_they_do_not_change(name, actions):
    space = ARRAY_SPACES[name]
    with make_pool(space) as pool:
        pool.reset()
        pool.step(actions)
        for i, kept in enumerate(pool.get_attr("kept")):
            assert_same(kept, [np.asarray(actions[i]).astype(space.dtype)])


def test_a_caller_gives_a_read_only_array_and_gets_it_back_unchanged():
    actions = np.float32(ROWS)
    actions.flags.writeable = False
    with make_pool(BOX, spoil=True) as pool:
        pool.reset()
        pool.step(actions)
        pool.step(actions, SOME)
    np.testing.assert_array_equal(actions, ROWS)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["plain", "with gradient", "bfloat16", "list"])
def test_actions_may_be_tensors(kind):
    import torch

    rows = torch.tensor(ROWS)
    actions = {
        "plain": rows,
        "with gradient": rows.clone().requires_grad_(),
        "bfloat16": rows.bfloat16(),
        "list": list(rows.clone().requires_grad_()),
    }[kind]
    with make_pool(BOX) as pool:
        pool.reset()
        observations, *_ = pool.step(actions)
        np.testing.assert_array_equal(observations, np.float32(ROWS), strict=True)


# Rows that take no part


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("discrete", np.array([1.0, np.nan, 2.0])),
        ("discrete", np.array([1.0, 0.5, 2.0])),
        ("discrete", np.array([1.0, np.inf, 2.0])),
        ("discrete", np.array([1.0, 2.0**70, 2.0])),
        ("discrete", [1, None, 2]),
        ("discrete", [1, "anything", 2]),
        ("discrete", [1, [[7, 7]], 2]),
        ("discrete", np.array([1, None, 2], object)),
        ("box float32", [[1.0, 2.0], None, [3.0, 4.0]]),
        ("box float32", np.array([[1.0, 2.0], [np.nan, np.inf], [3.0, 4.0]])),
        ("multi-binary", np.array([[1, 0, 1], [np.nan] * 3, [0, 1, 0]])),
        ("dict", {"a": [5, None, 6], "b": [[0.0, 0.0], None, [1.0, 1.0]]}),
        ("dict", [{"a": 5, "b": [0.0, 0.0]}, None, {"a": 6, "b": [1.0, 1.0]}]),
        ("tuple", (np.array([[1, 0], [np.nan, 9], [0, 1]]), np.array([[1], [-(2**40)], [2]]))),
        ("tuple", [([1, 0], [1]), "anything", ([0, 1], [2])]),
        ("text", ["a", 5, "b"]),
        ("dict with text", [{"text": "a", "number": 1}, {}, {"text": "b", "number": 2}]),
    ],
)
def test_rows_that_take_no_part_may_hold_anything(name, actions):
    with make_pool(ALL_SPACES[name]) as pool:
        pool.reset()
        pool.step(actions, SOME)
        assert pool.get_attr("steps") == [1, 0, 1]
        nobody = [False] * COUNT
        pool.step(actions, nobody)
        assert pool.get_attr("steps") == [1, 0, 1]


# Actions that are refused


@pytest.mark.parametrize(
    ("name", "actions", "error", "text"),
    [
        # the number of rows
        ("box float32", np.zeros((2, 2)), ValueError, "3 rows.*found 2"),
        ("box float32", np.zeros((4, 2)), ValueError, "3 rows.*found 4"),
        ("box float32", np.zeros((2, 3)), ValueError, "3 rows.*found 2"),
        ("box float32", [[0.0, 0.0]] * 2, ValueError, "3 rows.*found 2"),
        ("box float32", [], ValueError, "3 rows.*found 0"),
        ("box float32", 0.5, ValueError, "3 rows.*single"),
        ("box float32", None, ValueError, "3 rows.*single"),
        ("discrete", np.zeros(4, int), ValueError, "3 rows.*found 4"),
        ("discrete", 1, ValueError, "3 rows.*single"),
        ("dict", {"a": [5] * 3, "b": np.zeros((2, 2))}, ValueError, r"\['b'\].*3 rows.*found 2"),
        ("dict", [{"a": 5, "b": [0, 0]}] * 4, ValueError, "3 rows.*found 4"),
        ("tuple", (np.zeros((2, 2)), np.zeros((3, 1))), ValueError, r"\[0\].*3 rows.*found 2"),
        ("text", ["a", "b"], ValueError, "3 rows.*found 2"),
        # the shape of a row
        ("box float32", np.zeros(3), ValueError, r"\(2,\); found \(\)"),
        ("box float32", np.zeros((3, 3)), ValueError, r"\(2,\); found \(3,\)"),
        ("box float32", np.zeros((3, 2, 1)), ValueError, r"\(2,\); found \(2, 1\)"),
        ("box float32", [[0, 0], [0, 0], [0]], ValueError, r"\(2,\); found \(1,\)"),
        ("discrete", np.zeros((3, 1), int), ValueError, r"\(\); found \(1,\)"),
        ("discrete", [[0], [1], [2]], ValueError, r"\(\); found \(1,\)"),
        ("discrete", np.eye(3, 4), ValueError, r"\(\); found \(4,\)"),
        ("multi-binary 2-D", np.zeros((3, 4)), ValueError, r"\(2, 2\); found \(4,\)"),
        ("dict", {"a": [[5]] * 3, "b": np.zeros((3, 2))}, ValueError, r"\['a'\].*\(\).*\(1,\)"),
        # values that would change
        ("discrete", [0, 0.5, 1], ValueError, "exact int64.*0.5"),
        ("discrete", np.array([0, np.nan, 1]), ValueError, "exact int64.*nan"),
        ("discrete", np.array([0, np.inf, 1]), ValueError, "exact int64.*inf"),
        ("discrete", np.array([0, 2.0**63, 1]), ValueError, "exact int64"),
        ("discrete", np.array([0, 2**63, 1], np.uint64), ValueError, "exact int64"),
        ("box uint8", np.full((3, 2, 2, 3), 256), ValueError, "exact uint8.*256"),
        ("box uint8", np.full((3, 2, 2, 3), -1), ValueError, "exact uint8.*-1"),
        ("multi-binary", np.full((3, 3), 256), ValueError, "exact int8.*256"),
        ("multi-binary", np.full((3, 3), 0.5), ValueError, "exact int8.*0.5"),
        ("multi-discrete", np.full((3, 2), 1.5), ValueError, "exact int64.*1.5"),
        ("tuple", (np.zeros((3, 2)), np.full((3, 1), 2**20)), ValueError, r"\[1\].*exact int16"),
        # the kind of value
        ("box float32", [["a", "b"]] * 3, TypeError, "float32; found"),
        ("box float32", np.full((3, 2), 1j), TypeError, "float32; found complex128"),
        ("discrete", ["0", "1", "2"], TypeError, "int64; found"),
        ("discrete", [0, None, 1], TypeError, "int64; found object"),
        ("discrete", "012", (TypeError, ValueError), "rows"),
        ("text", "abc", TypeError, "3 actions; found str"),
        ("text", 5, TypeError, "3 actions; found int"),
        ("text", {"a": 1, "b": 2, "c": 3}, TypeError, "3 actions; found dict"),
        # the form
        ("dict", {"a": [5] * 3}, ValueError, r"\['b'\] is missing"),
        ("dict", np.zeros((3, 2)), ValueError, r"\['a'\] is missing"),
        ("dict", None, ValueError, r"\['a'\] is missing"),
        ("dict", [{"a": 5, "b": [0, 0]}, {"a": 5}, {}], ValueError, r"\['.'\] is missing"),
        ("dict", [{"a": 5, "b": [0, 0]}, None, {}], ValueError, r"\['.'\] is missing"),
        ("tuple", (np.zeros((3, 2)),), ValueError, r"\[1\] is missing"),
        ("nested", {"image": np.zeros((3, 2, 2)), "parts": ([0] * 3,)}, ValueError, "missing"),
        ("text", [lambda: 0, (x for x in ()), "c"], TypeError, "cannot be pickled"),
    ],
)
def test_other_actions_are_refused_before_any_environment_moves(name, actions, error, text):
    with make_pool(ALL_SPACES[name]) as pool:
        pool.reset()
        with pytest.raises(error, match=text):
            pool.step(actions)
        assert_untouched(pool)
        pool.step(draw(ALL_SPACES[name], 1))
        assert pool.get_attr("steps") == [1] * COUNT


def test_actions_are_refused_before_any_worker_moves():
    with make_pool(ARRAY_SPACES["discrete"], num_workers=2) as pool:
        pool.reset()
        for actions in ([0, 1, 0.5], [[0], [1], [2]], [0, 1]):
            with pytest.raises(ValueError, match="actions"):
                pool.step(actions)
        assert_untouched(pool)


def test_nothing_is_written_of_actions_of_which_a_part_is_refused():
    space = NESTED_SPACES["dict"]
    parts = leaves(space)
    targets = [np.zeros((COUNT, *leaf.shape), leaf.dtype) for leaf in parts]
    writer = ActionWriter(space, parts, COUNT, targets)
    actions = {"a": [5, 6, 7], "b": np.ones((COUNT, 3))}
    with pytest.raises(ValueError, match="'b'"):
        writer.write(actions, None)
    assert not any(target.any() for target in targets)
    actions["b"] = np.ones((COUNT, 2))
    writer.write(actions, np.array([1]))
    written = dict(zip((leaf.path[0] for leaf in parts), targets, strict=True))
    np.testing.assert_array_equal(written["a"], [0, 6, 0])
    np.testing.assert_array_equal(written["b"], [[0, 0], [1, 1], [0, 0]])


# Taking spaces apart


def test_the_leaves_of_a_space_with_their_ways_and_shapes():
    found = leaves(NESTED_SPACES["nested"])
    assert [(leaf.name, leaf.dtype, leaf.shape) for leaf in found] == [
        ("['image']", np.uint8, (2, 2)),
        ("['parts'][0]", np.int64, ()),
        ("['parts'][1]['x']", np.int64, (2,)),
    ]
    assert [(leaf.name, leaf.dtype) for leaf in leaves(OBJECT_SPACES["tuple with custom"])] == [
        ("[0]", np.int8),
        ("[1]", None),
    ]
    (whole,) = leaves(spaces.Discrete(3))
    assert (whole.path, whole.name) == ((), "")


@pytest.mark.parametrize("name", ALL_SPACES)
def test_what_was_taken_apart_is_put_together_again(name):
    space = ALL_SPACES[name]
    (sample,) = draw(space, 1, 1)
    assert_same(assemble(space, [pick(sample, leaf.path) for leaf in leaves(space)]), sample)


@pytest.mark.parametrize("name", ALL_SPACES)
def test_a_space_is_the_same_as_its_copy_and_as_no_other(name):
    for other_name, other in ALL_SPACES.items():
        travelled = pickle.loads(pickle.dumps(other))
        assert same_space(ALL_SPACES[name], travelled) == (name == other_name)


def test_custom_spaces_without_equality_are_compared_by_what_they_say():
    assert same_space(envs.Word("a", "b"), envs.Word("a", "b"))
    assert not same_space(envs.Word("a", "b"), envs.Word("a", "c"))
    for kind in (lambda part: spaces.Tuple([part]), lambda part: spaces.Dict({"x": part})):
        assert same_space(kind(envs.Word("a")), kind(envs.Word("a")))
        assert not same_space(kind(envs.Word("a")), kind(envs.Word("b")))
    assert not same_space(spaces.Dict({"x": envs.Word("a")}), spaces.Dict({"y": envs.Word("a")}))
    assert not same_space(spaces.Tuple([envs.Word("a")]), spaces.Tuple([envs.Word("a")] * 2))


def test_spaces_of_which_only_a_detail_differs_are_not_the_same():
    one, two = spaces.Discrete(1), spaces.Discrete(2)
    for order in (["a", "b"], ["b", "a"]):
        parts = {"a": one, "b": two}
        other = spaces.Dict({key: parts[key] for key in order}, sort_keys=False)
        assert same_space(spaces.Dict(parts), other) == (order == ["a", "b"])
    assert not same_space(two, spaces.Discrete(2, start=1))
    assert not same_space(spaces.Box(0, 1, (2,), np.float32), spaces.Box(0, 1, (2,), np.float64))
