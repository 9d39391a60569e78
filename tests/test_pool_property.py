"""Any program of resets and steps gives what a plain loop gives, with any number of workers.

The loop is written here without the library. It keeps what every environment has reported and
works out, for the keys of ``envs.Mixed`` alone, what a caller must see.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import envs
from conftest import NUM_ENVS, WORKER_COUNTS
from swm_async import EnvPool

Mask = list[bool] | None

FILLS = {
    "draw": np.float64("nan"),
    "left": np.int64(0),
    "goal": np.zeros(2, np.uint8),
    "late": np.int64(0),
    "result": np.float64("nan"),
    "verdict": None,
}
"""What each key of ``envs.Mixed`` holds in a row without a report; None: values are in a list."""


class PlainLoop:
    """``NUM_ENVS`` environments in a list, stepped one after the other."""

    def __init__(self) -> None:
        self.envs = [envs.Mixed(i) for i in range(NUM_ENVS)]
        self.observations = np.full((NUM_ENVS, 3), np.nan, np.float32)
        self.episodes: list[dict[str, Any]] = [{} for _ in self.envs]  # since the last reset
        self.reports: list[list[set[str]]] = [[] for _ in self.envs]  # the keys of each report

    def reset(self, seed: Any, options: Any, mask: Mask) -> tuple[Any, ...]:
        for i, env in enumerate(self.envs):
            if mask is None or mask[i]:
                seed_i = seed + i if isinstance(seed, int) else seed[i] if seed else None
                options_i = options[i] if isinstance(options, list) else options
                observation, info = env.reset(seed=seed_i, options=options_i)
                self.episodes[i] = {}
                self.note(i, observation, info)
        return self.observations, self.infos()

    def step(self, actions: np.ndarray, mask: Mask) -> tuple[Any, ...]:
        rewards = np.zeros(NUM_ENVS, np.float32)
        terminateds, truncateds = np.zeros(NUM_ENVS, bool), np.zeros(NUM_ENVS, bool)
        for i, env in enumerate(self.envs):
            if mask is None or mask[i]:
                observation, rewards[i], terminateds[i], truncateds[i], info = env.step(actions[i])
                self.note(i, observation, info)
        return self.observations, rewards, terminateds, truncateds, self.infos()

    def note(self, i: int, observation: np.ndarray, info: dict[str, Any]) -> None:
        self.observations[i] = observation
        self.episodes[i].update(info)
        self.reports[i].append(set(info))

    def infos(self) -> dict[str, Any]:
        all_reports = [report for reports in self.reports for report in reports]
        infos: dict[str, Any] = {}
        for key in set().union(*all_reports):
            column = [[episode.get(key, FILLS[key])] for episode in self.episodes]
            infos[key] = column if FILLS[key] is None else np.array(column)
            if any(key not in report for report in all_reports):
                last = [reports[-1] if reports else () for reports in self.reports]
                infos["_" + key] = np.array([key in report for report in last])
        return infos


def assert_equal(found: Any, expected: Any) -> None:
    """The same, bit by bit."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_equal(found[key], value)
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    else:
        assert found == expected


class Call(NamedTuple):
    """One line of a program; ``actions`` None = a reset."""

    mask: Mask
    actions: np.ndarray | None
    seed: Any
    options: Any
    hold: bool
    """Whether arrays from before this reset of all are still held when the program ends."""


masks = st.none() | st.lists(st.booleans(), min_size=NUM_ENVS, max_size=NUM_ENVS)


def one_each(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.none() | values, min_size=NUM_ENVS, max_size=NUM_ENVS)


seeds = st.integers(0, 1000)
lengths = st.fixed_dictionaries({"length": st.integers(1, 4)})
resets = st.builds(
    Call,
    mask=masks,
    actions=st.none(),
    seed=st.none() | seeds | one_each(seeds),
    options=st.none() | lengths | one_each(lengths),
    hold=st.booleans(),
)
steps = st.builds(
    Call,
    mask=masks,
    actions=seeds.map(lambda seed: np.random.default_rng(seed).uniform(-1, 1, (NUM_ENVS, 2))),
    seed=st.none(),
    options=st.none(),
    hold=st.just(False),
)


def programs(fewest: int, most: int) -> st.SearchStrategy[list[Call]]:
    """A first reset, perhaps of some only, and then further calls."""
    later = st.lists(steps | steps | steps | resets, min_size=fewest, max_size=most)
    return st.tuples(resets, later).map(lambda parts: [parts[0], *parts[1]])


def run(program: list[Call], pool: EnvPool) -> None:
    """Run a program in a pool and in a plain loop, and compare them at each call."""
    loop = PlainLoop()
    started = np.zeros(NUM_ENVS, bool)
    held: list[tuple[Any, Any]] = []
    observations, infos = None, {}
    for call in program:
        mask = call.mask
        if call.actions is None:
            if mask is None and infos and call.hold:
                held.append(((observations, infos), _copy((observations, infos))))
            found = pool.reset(call.seed, call.options, None if mask is None else np.array(mask))
            expected = loop.reset(call.seed, call.options, mask)
            started |= True if mask is None else mask
        else:
            if not (started if mask is None else started[mask]).all():
                mask = [bool(a and b) for a, b in zip(mask or started, started, strict=True)]
            found = pool.step(call.actions, mask)
            expected = loop.step(call.actions, mask)
        assert_equal(dict(enumerate(found)), dict(enumerate(expected)))
        if infos and not (call.actions is None and mask is None):
            assert found[0] is observations
            assert all(found[-1][key] is value for key, value in infos.items())
        observations, infos = found[0], found[-1]
        del found
    for live, copied in held:
        assert_equal(dict(enumerate(live)), dict(enumerate(copied)))


def _copy(result: tuple[np.ndarray, dict[str, Any]]) -> tuple[np.ndarray, dict[str, Any]]:
    observations, infos = result
    return observations.copy(), {
        key: value.copy() if isinstance(value, np.ndarray) else [list(row) for row in value]
        for key, value in infos.items()
    }


FACTORIES = [partial(envs.Mixed, i) for i in range(NUM_ENVS)]


@settings(max_examples=4 * settings().max_examples)
@given(programs(0, 40))
def test_a_pool_in_this_process_gives_what_a_plain_loop_gives(program):
    with EnvPool(FACTORIES, num_workers=0) as pool:
        run(program, pool)


# An example starts seven processes: a few programs, but long ones, and none is made shorter when it
# fails. The test above shortens those that fail for a reason that has nothing to do with processes.
@settings(
    max_examples=max(1, settings().max_examples // 6),
    phases=[Phase.explicit, Phase.generate],
)
@given(programs(30, 60))
def test_every_number_of_workers_gives_what_a_plain_loop_gives(program):
    for num_workers in WORKER_COUNTS:
        with EnvPool(FACTORIES, num_workers=num_workers) as pool:
            run(program, pool)


def test_the_plain_loop_fills_carries_and_tells_what_is_missing():
    """Guards the guard, with numbers worked out by hand."""
    loop = PlainLoop()
    options = [{"length": 1}, {"length": 3}, {"length": 2}, {"length": 2}]
    _, infos = loop.reset(0, options, [True, True, True, False])
    assert sorted(infos) == ["draw", "goal", "left"]
    assert infos["left"].tolist() == [[1], [3], [2], [0]]
    assert np.isnan(infos["draw"]).tolist() == [[False], [False], [False], [True]]
    goals = infos["goal"]
    assert goals.shape == (NUM_ENVS, 1, 2)

    _, rewards, terminateds, truncateds, infos = loop.step(
        np.zeros((NUM_ENVS, 2)), [True] * 2 + [False] * 2
    )
    assert truncateds.tolist() == [True, False, False, False]
    assert not terminateds.any()
    assert rewards[2:].tolist() == [0, 0]
    np.testing.assert_array_equal(infos["goal"], goals)
    assert infos["_goal"].tolist() == [False, False, True, False]
    assert infos["verdict"] == [["odd"], [None], [None], [None]]
    assert infos["_verdict"].tolist() == [True, False, False, False]

    loop.step(np.zeros((NUM_ENVS, 2)), [False, True, False, False])
    _, infos = loop.reset(None, options, [True, False, False, False])
    assert infos["verdict"] == [[None]] * NUM_ENVS
    assert infos["late"].tolist() == [[0], [2], [0], [0]]
    assert infos["_late"].tolist() == [False, True, False, False]
    assert "_left" not in infos
