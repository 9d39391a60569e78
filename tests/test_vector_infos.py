"""Infos of VectorEnv: what SyncVectorEnv makes of the same infos, whatever form they have.

Infos of the same form travel key by key and are added up at once, all others one by one; nobody
must be able to tell which way they took.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import example, given
from hypothesis import strategies as st

from same import assert_same
from swm_async import VectorEnv
from swm_workers.protocol import Role
from swm_workers.whole_infos import WholeInfos, as_parts
from vector_envs import Telling

N = 4
ACTIONS = np.zeros(N, np.int64)
EVERYONE = np.ones(N, np.bool_)

# What one key may hold, in groups that an environment would use for the same key.
KINDS: list[list[Any]] = [
    [0.5, -1.0, float("inf"), 1e300],
    [0, 7, -(2**62)],
    [True, False],
    ["", "a text", "another"],
    [b"ab", b""],
    [None],
    [1 + 2j, 0j],
    [np.float32(0.1), np.float32(3)],
    [np.float64(0.1)],
    [np.int8(3), np.int8(-1)],
    [np.uint64(2**63)],
    [np.bool_(True), np.bool_(False)],
    [np.complex64(1j)],
    [np.array([1.5, 2.5]), np.array([0.0, -1.0])],
    [np.zeros((2, 3), np.uint8), np.full((2, 3), 255, np.uint8)],
    [np.array([1, 2], ">i4"), np.array([3, 4], ">i4")],
    [np.zeros((0,), np.float32)],
    [np.array(3.5), np.array(1)],
    [np.array(["ab", "c"]), np.array(["defg", ""])],
    [np.array([1, None], object)],
    [np.str_("text"), np.datetime64("2020-01-01")],
    [[1, 2], (3,), {4}],
    [{"x": 0.5, "y": 1}, {"x": 1.5, "y": 2}, {"y": 1, "x": 2.5}],
    [OrderedDict(x=1)],
]
NAMES = ("distance", "is_success", "t", "_t", "final_obs", "final_info", "final_score")


@st.composite
def programs(draw: st.DrawFn) -> list[list[tuple[dict[Any, Any], bool]]]:
    """A script for each environment: what it tells, mostly in the form of the others."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    kinds = {name: draw(st.sampled_from(KINDS)) for name in names}
    scripts: list[list[tuple[dict[Any, Any], bool]]] = [[] for _ in range(N)]
    for _ in range(draw(st.integers(2, 5))):
        is_uniform = draw(st.integers(0, 3)) > 0
        for script in scripts:
            info: dict[Any, Any] = {name: draw(st.sampled_from(kinds[name])) for name in names}
            if not is_uniform:
                change = draw(st.sampled_from(["nothing", "none", "less", "order", "kind", "key"]))
                if change == "none":
                    info = {}
                elif change == "less":
                    del info[names[-1]]
                elif change == "order":
                    info = dict(reversed(info.items()))
                elif change == "kind":
                    info[names[0]] = draw(st.sampled_from(draw(st.sampled_from(KINDS))))
                elif change == "key":
                    info[draw(st.sampled_from([3, "more"]))] = 0.25
            script.append((info, not is_uniform and draw(st.integers(0, 3)) == 0))
    return scripts


def outcome(call: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of a call, or the class of what it raises."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return type(error)


def assert_same_order(found: Any, expected: Any) -> None:
    assert list(found) == list(expected)
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_same_order(found[key], value)


FINE = {"distance": 0.5, "is_success": np.bool_(True), "t": np.zeros(2, np.float32)}


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_infos_of_any_form_are_added_up_as_sync_vector_env_adds_them(
    mode: AutoresetMode, num_workers: int
) -> None:
    ours = VectorEnv([Telling] * N, num_workers=num_workers, autoreset_mode=mode)
    theirs = SyncVectorEnv([Telling] * N, autoreset_mode=mode)

    @given(programs())
    @example([[(FINE, False)] * 3] * N)
    @example([[(FINE, False), (FINE, i == 2), (FINE, False)] for i in range(N)])
    @example([[({"t": 2**70 if i == 3 else 1}, False)] * 2 for i in range(N)])
    @example([[({} if i in (0, 2) else FINE, False)] * 3 for i in range(N)])
    @example([[({"t": 1, "x": 2} if i != 1 else {"x": 3, "t": 4}, False)] * 2 for i in range(N)])
    @example([[({"t": 1, "x": 2} if i != 3 else {"x": 3}, False)] * 2 for i in range(N)])
    @example([[({"t": 1} if i != 3 else {"t": 2, "x": 3}, False)] * 2 for i in range(N)])
    def run(scripts: list[list[tuple[dict[Any, Any], bool]]]) -> None:
        for env in (ours, theirs):
            env.set_attr("script", [list(script) for script in scripts])
        for k in range(len(scripts[0])):
            if k == 0:
                found = outcome(ours.reset, seed=0)
                expected = outcome(theirs.reset, seed=0)
            else:
                found = outcome(ours.step, ACTIONS)
                expected = outcome(theirs.step, ACTIONS)
            assert_same(found, expected)
            if isinstance(expected, type):
                break  # some of Gymnasium's environments have moved, and some have not
            assert_same_order(found[-1], expected[-1])

    with ours, closing(theirs):
        run()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_infos_belong_to_the_caller(num_workers: int) -> None:
    told = {"place": np.zeros(2), "count": 1, "name": "a"}
    with VectorEnv([Telling] * N, num_workers=num_workers) as env:
        env.set_attr("script", [[(told, False)] * 4] * N)
        _, first = env.reset()
        for array in first.values():
            array[...] = array[::-1].copy()
            array[0] = 0
        _, second = env.reset()
        np.testing.assert_array_equal(second["place"], np.zeros((N, 2)), strict=True)
        assert second["count"].tolist() == [1] * N
        assert second["name"].tolist() == ["a"] * N
        for name in told:
            np.testing.assert_array_equal(second["_" + name], EVERYONE, strict=True)
        assert len({id(array) for array in second.values()}) == 6


@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_a_mask_the_others_have_told_nothing(num_workers: int) -> None:
    mask = np.array([False, True, True, True])
    with VectorEnv([Telling] * N, num_workers=num_workers) as env:
        script = [({}, False), ({"x": 2.5, "name": "b"}, False)]
        env.set_attr("script", [script] * N)
        env.reset()
        *_, infos = env.step(ACTIONS, mask=mask)
        np.testing.assert_array_equal(infos["x"], [0.0, 2.5, 2.5, 2.5], strict=True)
        assert infos["name"].tolist() == [None, "b", "b", "b"]
        np.testing.assert_array_equal(infos["_x"], mask, strict=True)
        np.testing.assert_array_equal(infos["_name"], mask, strict=True)


# What travels.


def gathered(*infos: dict[Any, Any]) -> Any:
    writer = WholeInfos(5, len(infos))
    for k, info in enumerate(infos):
        writer.write(k, info)
    return writer.take_parts()


def test_infos_of_the_same_form_travel_key_by_key() -> None:
    parts, rows, columns = gathered({"a": 1, "b": "x"}, {}, {"a": 2, "b": "y"})
    assert (parts, rows, columns) == ((), [5, 7], {"a": (1, 2), "b": ("x", "y")})


@pytest.mark.parametrize(
    "other",
    [
        {"a": 1.0, "b": "x"},
        {"a": True, "b": "x"},
        {"b": "x", "a": 1},
        {"a": 1},
        {"a": 1, "b": "x", "c": 0},
        {"a": 1, "b": ["x"]},
        {"a": np.zeros(2), "b": "x"},
    ],
)
def test_others_travel_one_by_one(other: dict[str, Any]) -> None:
    same = {"a": 1, "b": "x"}
    parts, rows, columns = gathered(same, other)
    assert (list(rows), columns) == ([], {})
    assert [part[:2] for part in parts] == [(5, Role.INFO), (6, Role.INFO)]
    assert parts[0][2] == same


def test_an_array_that_changes_afterwards_has_been_copied() -> None:
    for infos in ([{"a": np.zeros(2)}] * 2, [{"a": np.zeros(2)}, {"a": np.zeros(3)}]):
        reply = gathered(*infos)
        for info in infos:
            info["a"][:] = 9
        told = [value for _, _, value in as_parts([pickle.loads(pickle.dumps(reply))])]
        assert not any(value["a"].any() for value in told)


def test_rows_of_a_column_are_independent() -> None:
    (_, _, first), (_, _, second) = as_parts([gathered(*[{"a": np.zeros(2), "b": 1}] * 2)])
    first["a"][:] = 9
    assert second["a"].tolist() == [0, 0]
    assert first["a"].base is None
