"""Snapshots of values: what can be pickled at all, and whose classes come out of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from info_envs import Colour, unrebuildable
from swm_workers import snapshot


def class_of_a_function() -> type:
    class Thing:
        count = 0

        def name(self) -> str:
            return "thing"

    return Thing


@pytest.mark.parametrize("value", [None, 1, "text", [1, {"a": (2.0,)}], Colour.RED, int, len])
def test_a_value_is_rebuilt(value: Any) -> None:
    assert snapshot.loads(snapshot.dumps(value)) == value
    assert snapshot.loads(snapshot.dumps_by_value(value)) == value


def test_functions_without_a_name_are_rebuilt() -> None:
    number = 3
    assert snapshot.loads(snapshot.dumps(lambda: number))() == 3


@pytest.mark.parametrize("dumps", [snapshot.dumps, snapshot.dumps_by_value])
def test_a_class_that_is_known_stays_as_it_is(dumps: Any) -> None:
    cls = class_of_a_function()
    name = cls.name
    data = dumps([cls(), cls])
    cls.count = 5
    thing, found = snapshot.loads(data)
    assert type(thing) is cls
    assert found is cls
    assert cls.name is name
    assert cls.count == 5


def test_a_class_that_is_not_known_is_made_and_known_from_then_on() -> None:
    cls: Any = class_of_a_function()
    data = snapshot.dumps(cls())
    # Whoever loads this knows neither the class nor the name under which it travels.
    other = data.replace(tracker_id(cls), b"0" * 32)
    first, second = snapshot.loads(other), snapshot.loads(other)
    assert type(first) is not cls
    assert first.name() == "thing"
    assert type(second) is type(first)


def tracker_id(cls: type) -> bytes:
    import cloudpickle

    return cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[cls].encode()


def test_what_cannot_be_pickled_raises_what_pickle_says() -> None:
    with pytest.raises(TypeError, match="lock"):
        snapshot.dumps([threading.Lock()])


def test_a_pickle_names_the_class_that_cannot_be_rebuilt() -> None:
    data = snapshot.dumps({"why": unrebuildable()})
    with pytest.raises(TypeError, match="missing 1 required"):
        snapshot.loads(data)
    assert snapshot.class_name(data) == "info_envs.TwoPartError"
    assert snapshot.class_name(snapshot.dumps([1])) == "unknown class"
