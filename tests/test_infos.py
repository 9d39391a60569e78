"""The infos of a pool, rule by rule of docs/contract.md, Infos, with values worked out by hand.

What environments report is scripted: one info per reset or step. Rules about messages, memory and
the user's script are tested with worker processes; the others there and in this process.
"""

from __future__ import annotations

import enum
import gc
import os
import subprocess
import sys
from collections import OrderedDict, UserDict, defaultdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics

from conftest import plain_id
from info_compare import difference
from info_envs import (
    Colour,
    Made,
    ScriptedEnv,
    containing_itself,
    masked,
    memory_mapped,
    unpicklable,
    unrebuildable,
)
from on_ray import processes_only
from swm_async import EnvPool
from swm_async.backends import process
from swm_async.backends.worker import WorkerProcess
from swm_async.errors import EnvError, InfoTypeError, InfoValueError
from swm_workers.protocol import HEADER

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import memory  # noqa: E402  # a script's directory becomes part of the path only above

both_kinds = pytest.mark.parametrize("num_workers", [0, 2])
needs_proc = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="resident memory is read from Linux's /proc"
)


def pool_of(*scripts: Any, num_workers: int = 0, **options: Any) -> EnvPool:
    """One scripted environment per script, and at most as many workers."""
    env_fns = [partial(ScriptedEnv, script) for script in scripts]
    return EnvPool(env_fns, num_workers=min(num_workers, len(scripts)), **options)


def step(pool: EnvPool, mask: Any = None) -> dict[str, Any]:
    return pool.step(np.zeros(pool.num_envs, np.int64), mask=mask)[-1]


def only(pool: EnvPool, *rows: int) -> np.ndarray:
    return np.isin(np.arange(pool.num_envs), rows)


def values(array: np.ndarray) -> list[Any]:
    """The scalars of an array `(N, 1)`."""
    assert array.shape == (len(array), 1)
    return array[:, 0].tolist()


def test_two_workers_never_write_into_the_same_cache_line() -> None:
    first = {"done": True, "reward": 0.5, "pair": np.zeros(2, np.float32), "name": np.array("abc")}
    later = {"late": np.int8(3)}
    with pool_of(*[[first, first | later]] * 6, num_workers=2, observations=True) as pool:
        observations, _ = pool.reset()
        infos = step(pool)
        assert list(infos) == ["done", "reward", "pair", "name", "late", "_late"]
        for array in (observations, *infos.values()):
            assert array[3:].ctypes.data % 64 == 0


# Keys: which there are, what they hold, and who reported them.


class Reach(gymnasium.Env):
    """In the style of Gymnasium-Robotics: success is told at steps, the goal's picture at reset."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Dict(
        dict.fromkeys(
            ("observation", "achieved_goal", "desired_goal"),
            gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64),
        )
    )

    def __init__(self, distance: int) -> None:
        self.distance = distance

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.position = 0
        picture = np.full((2, 2, 3), self.distance, np.uint8)
        return self._observation(), {"goal": picture}

    def step(self, action: Any) -> Any:
        self.position += int(action)
        success = np.float32(self.position == self.distance)
        return self._observation(), float(success) - 1.0, False, False, {"is_success": success}

    def _observation(self) -> dict[str, np.ndarray]:
        position, goal = np.array([float(self.position)]), np.array([float(self.distance)])
        return {"observation": position, "achieved_goal": position, "desired_goal": goal}


@both_kinds
def test_success_that_only_steps_report_is_unknown_after_a_reset(num_workers: int) -> None:
    with EnvPool([partial(Reach, 1), partial(Reach, 2)], num_workers=num_workers) as pool:
        _, infos = pool.reset()
        assert "is_success" not in infos
        infos = pool.step([1, 1])[-1]
        success, reported = infos["is_success"], infos["_is_success"]
        assert success.dtype == np.float32
        assert values(success) == [1.0, 0.0]
        assert reported.tolist() == [True, True]
        pool.reset(mask=[True, False])
        np.testing.assert_array_equal(success, [[np.nan], [0.0]])
        assert reported.tolist() == [False, True]
        pool.step([1, 1], mask=[False, True])
        np.testing.assert_array_equal(success, [[np.nan], [1.0]])
        _, infos = pool.reset()
        np.testing.assert_array_equal(infos["is_success"], [[np.nan], [np.nan]])
        assert infos["_is_success"].tolist() == [False, False]


@both_kinds
def test_a_goal_that_only_resets_report_stays_readable_during_the_episode(
    num_workers: int,
) -> None:
    with EnvPool([partial(Reach, 1), partial(Reach, 2)], num_workers=num_workers) as pool:
        _, infos = pool.reset()
        assert list(infos) == ["goal"]  # reported by all so far: no companion
        goal = infos["goal"]
        assert (goal.dtype, goal.shape) == (np.uint8, (2, 1, 2, 2, 3))
        infos = pool.step([1, 1])[-1]
        assert infos["goal"] is goal
        assert (goal[0] == 1).all()
        assert (goal[1] == 2).all()
        assert infos["_goal"].tolist() == [False, False]
        _, infos = pool.reset(mask=[False, True])
        assert infos["_goal"].tolist() == [False, True]
        assert infos["goal"] is goal
        assert (goal[0] == 1).all()


def cartpole() -> gymnasium.Env:
    return RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))


@both_kinds
def test_the_statistics_of_an_episode_arrive_with_its_last_step_and_go_with_its_reset(
    num_workers: int,
) -> None:
    plain = cartpole()
    plain.reset(seed=7)
    length, over = 0, False
    while not over:
        *_, over, _, info = plain.step(1)
        length += 1
    assert info["episode"]["l"] == length
    with EnvPool([cartpole, cartpole], num_workers=num_workers) as pool:
        _, infos = pool.reset(seed=[7, 8])
        for _ in range(length - 1):
            infos = pool.step([1, 0])[-1]
            assert "episode" not in infos or infos["episode"][0] == [None]
        infos = pool.step([1, 0], mask=[True, False])[-1]
        episode = infos["episode"][0][0]
        assert {k: episode[k] for k in "rl"} == {k: info["episode"][k] for k in "rl"}
        assert infos["_episode"][0]
        _, infos = pool.reset(mask=[True, False])
        assert infos["episode"][0] == [None]
        assert not infos["_episode"][0]


@both_kinds
def test_a_key_that_first_appears_later_was_missing_before(num_workers: int) -> None:
    first, second = [{"a": 1}, {"a": 2, "b": 0.5}], [{"a": 3}, {"a": 4}]
    with pool_of(first, second, num_workers=num_workers) as pool:
        _, infos = pool.reset()
        assert list(infos) == ["a"]
        infos = step(pool)
        assert list(infos) == ["a", "b", "_b"]
        np.testing.assert_array_equal(infos["b"], [[0.5], [np.nan]])
        assert infos["_b"].tolist() == [True, False]
        infos = step(pool)
        assert infos["_a"].tolist() == infos["_b"].tolist() == [False, False]
        np.testing.assert_array_equal(infos["b"], [[0.5], [np.nan]])


@both_kinds
def test_rows_never_reset_hold_the_fill_value(num_workers: int) -> None:
    info = {
        "float": 0.5,
        "integer": 3,
        "flag": True,
        "time": np.datetime64("2024-02-29"),
        "name": np.str_("ab"),
        "word": "ab",
        "record": np.array((1.5, 2), [("x", "f4"), ("n", "i4")]),
    }
    with pool_of([info], [info], num_workers=num_workers) as pool:
        _, infos = pool.reset(mask=[True, False])
        assert np.isnan(infos["float"][1])
        assert infos["integer"][1] == 0
        assert not infos["flag"][1]
        assert np.isnat(infos["time"][1])
        assert infos["name"][1] == ""
        assert infos["word"][1] == [None]
        assert np.isnan(infos["record"]["x"][1])
        assert infos["record"]["n"][1] == 0
        assert not [key for key in infos if key.startswith("_")]


@both_kinds
def test_environments_with_keys_of_the_same_number_in_turns_lose_nothing(num_workers: int) -> None:
    script = [{"a": 1, "b": 10}, {"a": 2, "c": 20}, {"b": 30, "c": 40}, {"a": 3, "b": 50}]
    with pool_of(script, num_workers=num_workers) as pool:
        pool.reset()
        for expected in ([2, 10, 20], [2, 30, 40], [3, 50, 40]):
            infos = step(pool)
            assert [infos[key].item() for key in "abc"] == expected
        assert [infos["_" + key].item() for key in "abc"] == [True, True, False]


@both_kinds
def test_an_integer_beyond_its_array_may_come_with_other_keys_of_the_same_number(
    num_workers: int,
) -> None:
    known = [{"a": 1, "b": 10}, {"a": 2, "c": 20}, {"a": 3, "b": 30}]
    with pool_of([*known, {"a": 2**63, "c": 40}], num_workers=num_workers) as pool:
        pool.reset()
        for expected in ([2, 10, 20], [3, 30, 20], [2**63, 30, 40]):
            infos = step(pool)
            assert [infos[key].item() for key in "abc"] == expected
        assert [infos["_" + key].item() for key in "bc"] == [False, True]


@both_kinds
def test_an_info_that_would_invent_missing_keys_is_not_asked_for_them(num_workers: int) -> None:
    first = Made(partial(defaultdict, int), ({"a": 1, "b": 2},))
    second = Made(partial(defaultdict, int), ({"a": 3, "c": 4},))
    with pool_of([first, first, second], num_workers=num_workers) as pool:
        pool.reset()
        step(pool)
        infos = step(pool)
        assert [infos[key].item() for key in "abc"] == [3, 2, 4]
        assert not infos["_b"]


@both_kinds
@pytest.mark.parametrize(
    "make", [MappingProxyType, OrderedDict, partial(defaultdict, int), UserDict]
)
def test_an_info_may_be_any_mapping(num_workers: int, make: Any) -> None:
    script = [{}, *[Made(make, ({"a": 1},)), Made(make, ({},))] * 2]
    with pool_of(script, num_workers=num_workers) as pool:
        pool.reset()
        for expected in (True, False) * 2:
            infos = step(pool)
            assert infos["a"] == 1
            assert infos["_a"] == expected


class Key(str, enum.Enum):
    SPEED = "speed"


@both_kinds
def test_keys_of_a_subclass_of_str_are_their_text(num_workers: int) -> None:
    with pool_of([{Key.SPEED: 1.0}, {Key.SPEED: 2.0}], num_workers=num_workers) as pool:
        pool.reset()
        infos = step(pool)
        assert list(infos) == ["speed"]
        assert infos[Key.SPEED] == 2.0


def test_a_key_that_is_no_string_is_named_and_the_others_are_delivered() -> None:
    with pool_of([{"a": 1, 7: 2}, {"a": 2}], [{"a": 3}, {"a": 4}]) as pool:
        with pytest.raises(InfoTypeError, match=r"environment 0 reported 7 \(int\)") as caught:
            pool.reset()
        assert isinstance(caught.value, EnvError)
        assert isinstance(caught.value, TypeError)
        assert values(caught.value.result[1]["a"]) == [1, 3]
        assert values(step(pool)["a"]) == [2, 4]


def test_a_key_like_the_companion_of_another_is_refused_each_time() -> None:
    with pool_of([{"a": 1}, {}, {"_a": 2}, {"_a": 3, "b": 4}]) as pool:
        pool.reset()
        assert step(pool)["_a"].tolist() == [False]
        for _ in range(2):
            with pytest.raises(InfoValueError, match="info '_a' of environment 0") as caught:
                step(pool)
            assert isinstance(caught.value, ValueError)
        infos = caught.value.result[-1]
        assert infos["_a"].dtype == np.bool_
        assert infos["b"] == 4


def test_a_companion_like_a_key_that_was_there_before_is_refused_each_time() -> None:
    with pool_of([{"a": 1, "_a": 2}, {"_a": 3}, {"_a": 4}, {"a": 5, "_a": 6}]) as pool:
        pool.reset()
        for expected in (3, 4):
            with pytest.raises(InfoValueError, match="info '_a' of environment 0") as caught:
                step(pool)
            infos = caught.value.result[-1]
            assert (infos["a"], infos["_a"]) == (1, expected)
        infos = step(pool)
        assert (infos["a"], infos["_a"]) == (5, 6)


# Widening.


@both_kinds
def test_a_number_that_does_not_fit_widens_its_array_and_nothing_else(num_workers: int) -> None:
    first = [{"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": 0.5, "b": 3}]
    second = [{"a": 4, "b": 4}, {"a": 5, "b": 5}, {"a": 6, "b": 6}, {"a": 7, "b": 7}]
    with pool_of(first, second, second, num_workers=num_workers) as pool:
        _, infos = pool.reset(mask=[True, True, False])
        step(pool, only(pool, 0, 1))
        before = dict(infos)
        infos = step(pool, only(pool, 0))
        assert infos["a"].dtype == np.float64
        # Row 2 holds no value, so it holds the fill value of the dtype of now.
        np.testing.assert_array_equal(infos["a"], [[0.5], [5.0], [np.nan]])
        assert infos["a"] is not before["a"]
        assert values(before["a"]) == [2, 5, 0]
        assert infos["b"] is before["b"]
        assert values(infos["b"]) == [3, 5, 0]
        wider = infos["a"]
        infos = step(pool, only(pool, 1))
        assert infos["a"] is wider
        assert values(before["a"]) == [2, 5, 0]
        np.testing.assert_array_equal(wider, [[0.5], [6.0], [np.nan]])


@both_kinds
def test_a_row_whose_value_a_reset_took_away_is_filled_anew_when_its_array_changes(
    num_workers: int,
) -> None:
    first = [{"a": 1, "b": 1}, {}]
    second = [{"a": 2, "b": 2}, {"a": 0.5, "b": "text"}]
    with pool_of(first, second, num_workers=num_workers) as pool:
        pool.reset()
        _, infos = pool.reset(mask=[True, False])
        assert values(infos["a"]) == values(infos["b"]) == [0, 2]
        with pytest.warns(UserWarning, match="'b' becomes a list"):
            infos = step(pool, [False, True])
        np.testing.assert_array_equal(infos["a"], [[np.nan], [0.5]])
        assert infos["b"] == [[None], ["text"]]


@both_kinds
def test_several_values_of_one_call_are_one_decision_in_the_order_of_environments(
    num_workers: int,
) -> None:
    scripts = [[{"a": np.int8(1)}, {"a": value}] for value in (np.int16(2), np.float32(0.5), 1j)]
    with pool_of(*scripts, num_workers=num_workers) as pool:
        _, infos = pool.reset()
        assert infos["a"].dtype == np.int8
        infos = step(pool)
        assert infos["a"].dtype == np.complex128
        assert values(infos["a"]) == [2, 0.5, 1j]


@both_kinds
def test_strings_of_numpy_are_never_cut(num_workers: int) -> None:
    with pool_of([{"a": np.str_("ab")}, {"a": np.str_("abcdef")}], num_workers=num_workers) as pool:
        _, infos = pool.reset()
        assert infos["a"].dtype == np.dtype("U2")
        assert values(step(pool)["a"]) == ["abcdef"]


@both_kinds
def test_an_integer_that_would_be_rounded_makes_a_list(num_workers: int) -> None:
    with pool_of([{"a": 7}, {"a": 0.5}], [{"a": 2**53 + 1}], num_workers=num_workers) as pool:
        _, infos = pool.reset()
        before = infos["a"]
        with pytest.warns(UserWarning, match="'a' becomes a list") as caught:
            infos = step(pool, only(pool, 0))
        assert infos["a"] == [[0.5], [2**53 + 1]]
        assert type(infos["a"][1][0]) is int
        assert values(before) == [7, 2**53 + 1]
        text = str(caught[0].message)
        assert "array of int64 ()" in text
        assert "array of float64 ()" in text
        assert caught[0].filename == __file__


@both_kinds
def test_a_number_that_is_replaced_in_the_same_call_need_not_survive(num_workers: int) -> None:
    first = [{"a": 2**53 + 1}, {"a": 0.5}]
    with pool_of(first, [{"a": 7}], num_workers=num_workers) as pool:
        _, infos = pool.reset()
        before = infos["a"]
        infos = step(pool, only(pool, 0))
        assert infos["a"].dtype == np.float64
        assert values(infos["a"]) == [0.5, 7.0]
        assert values(before) == [2**53 + 1, 7]


@both_kinds
def test_rows_of_an_array_that_becomes_a_list_keep_their_value_and_their_kind(
    num_workers: int,
) -> None:
    number = {"python": 1, "numpy": np.float32(0.5), "array": np.arange(2), "none": 1}
    texts = dict.fromkeys(number, "text")
    with pool_of([number], [number, texts], [number], num_workers=num_workers) as pool:
        _, before = pool.reset(mask=[True, True, False])
        with pytest.warns(UserWarning, match="becomes a list") as caught:
            infos = step(pool, only(pool, 1))
        assert sorted(str(warning.message).split("'")[1] for warning in caught) == sorted(number)
        for key, value in number.items():
            assert not difference(infos[key], [[value], ["text"], [None]]), key
        assert not np.shares_memory(infos["array"][0][0], before["array"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (0.5, 2**53 + 1),
        (0.5, -(2**53) - 1),
        (0.5, np.int64(2**53 + 1)),
        (0.5, np.uint64(2**64 - 1)),
        (1j, 2**53 + 1),
        (np.zeros(1), np.zeros(3)),
        (np.zeros(3), 0.0),
        (1.0, "1.5"),
        (1, None),
        (1, 2**64),
        (np.str_("a"), np.bytes_(b"a")),
        (np.timedelta64(1, "Y"), np.timedelta64(1, "D")),
        (np.datetime64("2024", "Y"), np.datetime64(1, "as")),
        (np.zeros((), [("x", "f4")]), np.zeros((), [("x", "f8")])),
        (np.zeros(2), Made(masked, (np.zeros(2),))),
    ],
    ids=plain_id,
)
def test_values_of_two_kinds_make_a_list_with_one_warning(first: Any, second: Any) -> None:
    with pool_of([{"a": first}, {"a": second}, {"a": first}]) as pool:
        pool.reset()
        with pytest.warns(UserWarning, match="'a' becomes a list") as caught:
            found = step(pool)["a"]
        assert len(caught) == 1
        assert isinstance(found, list)
        assert step(pool)["a"] is found
        assert not difference(found, [[first]])


def test_warnings_that_are_errors_come_one_by_one_and_leave_the_pool_as_it_should_be() -> None:
    with pool_of([{"a": 1, "b": 1}, *[{"a": "x", "b": "y"}] * 3]) as pool:
        pool.reset()
        for key in "ab":
            with pytest.raises(UserWarning, match=f"'{key}' becomes a list"):
                step(pool)
        infos = step(pool)
        assert (infos["a"], infos["b"]) == ([["x"]], [["y"]])


def test_two_kinds_in_the_first_report_make_a_list_with_one_warning() -> None:
    with pool_of([{"a": "one"}], [{"a": "two"}], [{"a": 3.0}]) as pool:
        with pytest.warns(UserWarning, match="a str and an array of float64") as caught:
            _, infos = pool.reset()
        assert len(caught) == 1
        assert infos["a"] == [["one"], ["two"], [3.0]]


def test_a_key_first_seen_as_an_object_is_a_list_without_a_warning() -> None:
    with pool_of([{"a": "one"}, {"a": 2}, {"a": np.array(0.5)}, {"a": None}]) as pool:
        assert pool.reset()[1]["a"] == [["one"]]
        found = step(pool)["a"]
        assert found == [[2]]
        assert not difference(step(pool)["a"], [[np.array(0.5)]])
        assert step(pool)["a"] == [[None]]


# Arrays: live, replaced, private.


@both_kinds
def test_an_array_that_the_environment_changes_in_place_is_taken_as_it_is_now(
    num_workers: int,
) -> None:
    class Growing(ScriptedEnv):
        own = np.zeros(2)

        def _report(self) -> Any:
            self.own += 1.0
            return {"array": self.own, "list": [self.own], "dict": {"inner": self.own}}

    with EnvPool([Growing], num_workers=min(num_workers, 1)) as pool:
        _, infos = pool.reset()
        for number in (2.0, 3.0):
            before = infos["dict"][0][0]["inner"].copy()
            infos = step(pool)
            assert before.tolist() == [number - 1.0] * 2
            assert infos["array"].tolist() == [[[number] * 2]]
            assert infos["list"][0][0][0].tolist() == [number] * 2
            assert infos["dict"][0][0]["inner"].tolist() == [number] * 2


@both_kinds
def test_an_info_that_contains_itself_does_so_when_it_arrives(num_workers: int) -> None:
    with pool_of([{"a": Made(containing_itself)}] * 3, num_workers=num_workers) as pool:
        pool.reset()
        found = step(pool)["a"][0][0]
        assert found["outer"] is found
        assert found["inner"] == [1]


@both_kinds
def test_a_caller_may_change_the_dict_that_a_call_returns(num_workers: int) -> None:
    with pool_of([{"a": 1}, {"a": 2}, {"a": 3}], num_workers=num_workers) as pool:
        _, infos = pool.reset()
        array = infos["a"]
        infos["a"] = "mine"
        infos["b"] = "mine too"
        infos = step(pool)
        assert list(infos) == ["a"]
        assert infos["a"] is array
        infos.clear()
        assert step(pool)["a"] == 3


@both_kinds
def test_private_copies_change_no_more(num_workers: int) -> None:
    first = {"array": np.zeros(2), "list": ["one"], "late": 1}
    second = {"array": np.ones(2), "list": ["two"]}
    with pool_of([first, second], num_workers=num_workers, copy=True) as pool:
        _, before = pool.reset()
        after = step(pool)
        assert before["array"].tolist() == [[[0.0, 0.0]]]
        assert before["list"] == [[["one"]]]
        assert after["array"].tolist() == [[[1.0, 1.0]]]
        assert after["list"] == [[["two"]]]
        assert after["_late"].tolist() == [False]
        after["list"][0][0].append("mine")
        after["array"][...] = 7.0
        assert pool.infos["list"] == [[["two"]]]
        assert pool.infos["array"].tolist() == [[[1.0, 1.0]]]


@both_kinds
def test_arrays_that_nobody_holds_are_used_again(num_workers: int) -> None:
    with pool_of([{"a": 1.0}] * 20, num_workers=num_workers) as pool:
        pool.reset()  # its arrays lie in two pieces, which are not used again
        places = set()
        for _ in range(19):
            places.add(pool.reset()[1]["a"].ctypes.data)
        assert len(places) == 2


@both_kinds
def test_arrays_that_somebody_holds_in_turns_keep_their_values(num_workers: int) -> None:
    # Which of two sets of arrays is used again depends on who holds the one before the last.
    script = [{"a": number, "b": str(number)} for number in range(20)]
    with pool_of(script, num_workers=num_workers) as pool:
        kept: dict[int, Any] = {}
        for number in range(20):
            _, infos = pool.reset()
            if number % 5 < 2:
                kept[number] = infos["a"][0] if number % 2 else infos["a"], infos["b"]
            assert (infos["a"].item(), infos["b"]) == (number, [[str(number)]])
            del infos
        for number, (array, texts) in kept.items():
            assert (array.item(), texts) == (number, [[str(number)]])


@both_kinds
def test_a_row_whose_reset_failed_keeps_its_values_in_the_new_arrays(num_workers: int) -> None:
    first = [{"a": 1, "b": "one"}, ValueError("no"), {"a": 3, "b": "three"}]
    second = [{"a": 4, "b": "four", "c": 0.5}, {"a": 5}, {"a": 6}]
    with pool_of(first, second, num_workers=num_workers) as pool:
        _, before = pool.reset()
        with pytest.raises(EnvError, match="no") as caught:
            pool.reset()
        infos = caught.value.result[1]
        assert infos["a"] is not before["a"]
        assert values(infos["a"]) == [1, 5]
        assert infos["b"] == [["one"], [None]]
        assert infos["_b"].tolist() == [True, False]
        assert values(before["a"]) == [1, 4]
        _, infos = pool.reset(mask=[True, False])
        assert values(infos["a"]) == [3, 5]
        assert infos["b"] == [["three"], [None]]


@both_kinds
def test_a_memory_mapped_array_arrives_though_its_file_has_gone(num_workers: int) -> None:
    array = np.arange(6.0).reshape(2, 3)
    with pool_of([{"a": Made(memory_mapped, (array,))}] * 2, num_workers=num_workers) as pool:
        _, infos = pool.reset()
        assert type(infos["a"]) is np.ndarray
        infos["a"][...] = 0.0
        assert not difference(step(pool)["a"], array[None, None])


# Values that cannot be delivered.


@both_kinds
@pytest.mark.parametrize("make", [unpicklable, unrebuildable])
def test_a_value_that_cannot_be_delivered_is_named_and_the_pool_goes_on(
    num_workers: int, make: Any
) -> None:
    bad = Made(make)
    first = [{"a": 1, "b": "x"}, {"a": 2, "b": bad}, {"a": bad, "b": bad}, {"a": 4, "b": "x"}]
    second = [{"a": 5, "b": "y"}, {"a": 6, "b": "y"}, {"a": 7, "b": "y"}, {"a": 8, "b": "y"}]
    with pool_of(first, second, num_workers=num_workers) as pool:
        pool.reset()
        with pytest.raises(InfoTypeError, match="info 'b' of environment 0 cannot be") as caught:
            step(pool)
        error = caught.value
        assert isinstance(error, EnvError)
        assert isinstance(error, TypeError)
        assert ("lock" if make is unpicklable else "info_envs.TwoPartError") in str(error)
        assert (error.env_index, error.command, error.episode_step) == (0, "step", 1)
        infos = error.result[-1]
        assert values(infos["a"]) == [2, 6]
        # No value of an earlier step poses as that of this one.
        assert infos["b"] == [[None], ["y"]]
        assert infos["_b"].tolist() == [False, True]
        with pytest.raises(InfoTypeError) as caught:
            step(pool)
        assert [failure.message.split("'")[1] for failure in caught.value.failures] == ["a", "b"]
        infos = caught.value.result[-1]
        assert values(infos["a"]) == [0, 7]
        assert infos["_a"].tolist() == [False, True]
        infos = step(pool)
        assert values(infos["a"]) == [4, 8]
        assert infos["b"] == [["x"], ["y"]]
        assert infos["_a"].tolist() == infos["_b"].tolist() == [True, True]


@both_kinds
@pytest.mark.parametrize("make", [unpicklable, unrebuildable])
def test_a_value_that_cannot_be_delivered_is_an_error_each_time(
    num_workers: int, make: Any
) -> None:
    script = [{"a": "x"}, *[{"a": Made(make)}] * 3, {"a": "x"}]
    with pool_of(script, num_workers=num_workers) as pool:
        pool.reset()
        for _ in range(3):
            with pytest.raises(InfoTypeError):
                step(pool)
        infos = step(pool)
        assert infos["a"] == [["x"]]
        assert infos["_a"].tolist() == [True]


@both_kinds
def test_a_value_that_cannot_be_rebuilt_is_an_error_at_each_reset(num_workers: int) -> None:
    with pool_of(
        [{"a": "x"}] * 3 + [{"a": Made(unrebuildable)}] * 6, num_workers=num_workers
    ) as pool:
        for _ in range(3):
            pool.reset()
        for _ in range(6):
            gc.collect()  # errors hold their results: now arrays are used again, in turns
            with pytest.raises(InfoTypeError, match="'a'"):
                pool.reset()


def test_what_follows_a_value_that_could_not_be_delivered_has_been_reported() -> None:
    with pool_of([{"a": 1}, {}, {"a": Made(unpicklable)}, {"a": 2}]) as pool:
        pool.reset()
        assert step(pool)["_a"].tolist() == [False]
        with pytest.raises(InfoTypeError):
            step(pool)
        infos = step(pool)
        assert infos["a"] == 2
        assert infos["_a"].tolist() == [True]


def test_a_value_that_cannot_be_delivered_makes_no_key() -> None:
    with pool_of([{"a": Made(unpicklable), "b": 1}, {"a": 0.5, "b": 2}]) as pool:
        with pytest.raises(InfoTypeError) as caught:
            pool.reset()
        assert list(caught.value.result[1]) == ["b"]
        infos = step(pool)
        assert infos["a"] == 0.5
        assert infos["_a"].tolist() == [True]


def test_a_row_whose_reset_reports_what_cannot_be_delivered_holds_no_value() -> None:
    with pool_of([{"a": 0.5}, {"a": Made(unpicklable)}], [{"a": 1.5}, {"a": 2.5}]) as pool:
        pool.reset()
        for mask in ([True, False], None):
            with pytest.raises(InfoTypeError) as caught:
                pool.reset(mask=mask)
            np.testing.assert_array_equal(caught.value.result[1]["a"][0], [np.nan])
            pool.call("load", [{"a": Made(unpicklable)}])
            if mask is None:
                break


# Messages.


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts the commands to workers and their replies, and those with a payload."""
    counts = dict.fromkeys(("commands", "long commands", "replies", "long replies"), 0)
    send, receive = WorkerProcess.send, WorkerProcess.receive

    def counting_send(self: Any, header: bytes, payload: bytes, deadline: Any) -> None:
        counts["commands"] += 1
        counts["long commands"] += bool(payload)
        send(self, header, payload, deadline)

    class CountingOs:
        """What the backend sees as ``os``: it writes commands and reads replies itself."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, fd: int, data: bytes) -> int:
            counts["commands"] += 1
            counts["long commands"] += len(data) != HEADER.size or HEADER.unpack(data)[-1] > 0
            return os.write(fd, data)

        def read(self, fd: int, size: int) -> bytes:
            data = os.read(fd, size)
            counts["replies"] += 1
            counts["long replies"] += HEADER.unpack_from(data)[-1] > 0
            return data

    def counting_receive(self: Any, number: int, deadline: Any, data: bytes = b"") -> Any:
        reply = receive(self, number, deadline, data)
        if not data:
            counts["replies"] += 1
            counts["long replies"] += reply is not None
        return reply

    monkeypatch.setattr(WorkerProcess, "send", counting_send)
    monkeypatch.setattr(process, "os", CountingOs())
    monkeypatch.setattr(WorkerProcess, "receive", counting_receive)
    return counts


EQUAL_INFO = {
    "number": 0.5,
    "count": 3,
    "flag": True,
    "picture": np.zeros((8, 8, 3), np.uint8),
    "task": "a constant string",
    "settings": {"speed": [1.0, 2.0]},
}


@processes_only
def test_steps_whose_infos_fit_send_no_payload_with_a_constant_string_among_them(
    messages: dict[str, int],
) -> None:
    with pool_of([EQUAL_INFO] * 12, [EQUAL_INFO] * 12, num_workers=2) as pool:
        pool.reset()
        step(pool)  # from here on the workers know what the pool holds
        messages.update(dict.fromkeys(messages, 0))
        for _ in range(8):
            infos = step(pool)
        _, infos = pool.reset(mask=[True, True])
        assert messages == {"commands": 18, "long commands": 0, "replies": 18, "long replies": 0}
        assert infos["task"] == [["a constant string"]] * 2


@processes_only
def test_a_string_that_comes_back_after_another_one_is_sent_again(
    messages: dict[str, int],
) -> None:
    texts = ["x", "x", "y", "x", "x", None, None, "x"]
    with pool_of([{"a": text} for text in texts], num_workers=1) as pool:
        pool.reset()
        replies = []
        for text in texts[1:]:
            messages["long replies"] = 0
            assert step(pool)["a"] == [[text]]
            replies.append(messages["long replies"])
        # The first step repeats the value: until then the worker did not know that it is a list.
        assert replies == [1, 1, 1, 0, 1, 0, 1]


@processes_only
def test_a_value_that_a_reset_took_away_is_sent_again(messages: dict[str, int]) -> None:
    with pool_of([{"a": "x"}, {"a": "x"}, {}, {}, {"a": "x"}], num_workers=1) as pool:
        pool.reset()
        step(pool)
        for number_of_long_replies in (1, 0):
            messages["long replies"] = 0
            assert pool.reset(mask=[True])[1]["a"] == [[None]]
            assert messages["long replies"] == number_of_long_replies
        assert step(pool)["a"] == [["x"]]


# Memory.


@needs_proc
@processes_only
@pytest.mark.filterwarnings("ignore:.*becomes a list")
@pytest.mark.parametrize("infos", [memory.two_of_everything, memory.new_strings])
def test_memory_stays_flat_whatever_infos_keep_changing(infos: Any) -> None:
    first, *_, last = memory.run(infos, 2500, samples=5)
    # One byte in five of the text that is reported would add up to more than that.
    assert last.parent - first.parent < 2**20
    assert last.workers - first.workers < 2**20


# The user's own classes.

SCRIPT = """
import enum
import gymnasium
import numpy as np
from swm_async import EnvPool

class Colour(enum.Enum):
    RED = 1

class Base:
    count = 0
    def name(self):
        return type(self).__name__

class Thing(Base):
    def __init__(self, number):
        self.number = number

def make_local():
    class Local(Base):
        pass
    return Local

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        Base.count += 1
        Thing.seen = True
        info = {"thing": Thing(3), "colour": Colour.RED, "type": Thing, "local": local()}
        return np.zeros(1, np.float32), {**info, "new": make_local()()}
    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {"thing": Thing(4)}

local = make_local()
methods = Base.name, Thing.__init__
attributes = [dict(vars(cls)) for cls in (Base, Thing, local, Colour)]
with EnvPool([Env, Env], num_workers=2) as pool:
    _, infos = pool.reset()
    for row in range(2):
        thing = infos["thing"][row][0]
        assert type(thing) is Thing and thing.number == 3 and thing.name() == "Thing"
        assert infos["colour"][row][0] is Colour.RED
        assert infos["type"][row][0] is Thing
        assert type(infos["local"][row][0]) is local
        new = infos["new"][row][0]
        assert isinstance(new, Base) and new.name() == "Local" and type(new) is not local
    infos = pool.step([0, 0])[-1]
    assert type(infos["thing"][0][0]) is Thing and infos["thing"][0][0].number == 4
assert (Base.name, Thing.__init__) == methods
assert [dict(vars(cls)) for cls in (Base, Thing, local, Colour)] == attributes
print("all is well")
"""


def test_instances_of_the_scripts_own_classes_come_back_and_the_classes_stay_as_they_are(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT), str(ROOT / "workers")])
    run = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "all is well\n"


@both_kinds
def test_instances_of_a_class_that_only_a_function_knows_leave_it_as_it_is(
    num_workers: int,
) -> None:
    class Thing:
        def name(self) -> str:
            return "thing"

    class Reporting(ScriptedEnv):
        def _report(self) -> Any:
            return {"thing": Thing(), "colour": Colour.BLUE}

    name = Thing.name
    with EnvPool([Reporting], num_workers=min(num_workers, 1)) as pool:
        _, infos = pool.reset()
        assert type(infos["thing"][0][0]) is Thing
        assert infos["colour"] == [[Colour.BLUE]]
    assert Thing.name is name
