"""Whatever environments report, the infos are those of the reference model.

A script says what every environment reports at every call. It is played in this process by a
pool of its own; pools with workers live on for many scripts, which saves the start of their
processes. The keys of a pool never go away, so each script there uses names of its own, and the
model lives as long as its pool. SWM_ASYNC_EXAMPLES is the number of scripts for each number of
workers; without it there are fewer of those that need messages.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import NUM_ENVS, WORKER_COUNTS, array
from info_compare import difference
from info_envs import (
    Colour,
    Count,
    Made,
    Name,
    ScriptedEnv,
    containing_itself,
    made,
    masked,
    memory_mapped,
    read_only,
    strided,
    subclassed,
    swapped,
    unpicklable,
    unrebuildable,
)
from info_model import InfoModel, Outcome
from swm_async import EnvPool
from swm_async.errors import EnvError, InfoTypeError, InfoValueError

EXAMPLES = os.environ.get("SWM_ASYNC_EXAMPLES")
SCRIPTS_PER_POOL = 40
"""A pool with workers is replaced after so many: with each key that it has seen it gets slower."""

NAMES = (("a", "b"), ("a",), ("a", "b", "c"), ("a", "b", "c"), ("a", "_a"))
"""The keys of a script; the last pair collides as soon as "a" is missing somewhere."""


class Call(NamedTuple):
    """One reset or step of a script."""

    reset: bool
    mask: tuple[bool, ...] | None
    infos: tuple[dict[Any, Any], ...]
    """What each environment reports, should it take part."""
    hold: str
    """What the caller keeps of the infos returned: "all" of them, "views" of arrays, "nothing"."""

    @property
    def rows(self) -> list[int]:
        return [i for i in range(NUM_ENVS) if self.mask is None or self.mask[i]]


# Values.

NUMBER_DTYPES = (
    *("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "q", "Q"),
    *("f2", "f4", "f8", "g", "c8", "c16", "G"),
)
OTHER_DTYPES = (
    *("S0", "S1", "S3", "U0", "U1", "U4", "V3"),
    *("M8", "M8[Y]", "M8[D]", "M8[s]", "M8[ns]", "M8[as]"),
    *("m8", "m8[Y]", "m8[D]", "m8[7s]", "m8[ns]"),
)
STRUCTURES = (
    np.dtype([("x", "f4"), ("n", "i8")]),
    np.dtype([("x", "f4"), ("n", "i8")], align=True),
    np.dtype([("place", [("x", ">f8", (2,)), ("t", "M8[s]")]), ("name", "U2")]),
    np.dtype([("nothing", "S0")]),
)
INTEGERS = (0, 1, -1, 200, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
LARGE = (-(2**63), -(2**63) - 1, 2**64, 10**30)
FLOATS = (0.0, -0.0, 0.5, 1e300, 2.0**53, 65504.0, np.nan, np.inf, -np.inf)
TIMES = ("NaT", -1, 0, 365, 30_000, 2**40)
TEXTS = ("", "a", "1.5", "longer text", "a\0", "\ud800")
OBJECTS = (
    *(None, b"", b"bytes", b"a\0", [], [1, [2.5, None]], {}, {"r": 1.0, "l": np.int64(3)}, (1, 2)),
    *({"deep": {"er": np.arange(3)}}, Colour.RED, Colour.BLUE, Count(3), Name("me"), range(3)),
)


def numbers(dtype: str) -> st.SearchStrategy[np.generic]:
    candidates = FLOATS if np.dtype(dtype).kind in "fc" else INTEGERS

    def cast(number: float) -> np.generic:
        with np.errstate(all="ignore"):
            return np.array(number).astype(dtype)[()]

    return st.sampled_from(candidates).map(cast)


def scalars(dtype: str) -> st.SearchStrategy[np.generic]:
    """Numpy scalars of a dtype."""
    kind = np.dtype(dtype).kind
    if kind in "SU":
        class_ = np.bytes_ if kind == "S" else np.str_
        texts = ["", "a", "1.5", "a\0"]
        return st.sampled_from([class_(t.encode() if kind == "S" else t) for t in texts])
    if kind == "V":
        return st.sampled_from([np.void(b"abc"), np.void(b"\0\0\0")])
    if kind in "mM":
        times = ["NaT"] if dtype == "M8" else TIMES  # without a unit there is no date
        return st.sampled_from(times).map(lambda time: array(time, dtype)[()])
    return numbers(dtype)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from([*NUMBER_DTYPES, *OTHER_DTYPES]))
    shape = draw(st.sampled_from([(), (), (1,), (3,), (0,), (2, 2)]))
    array = np.empty(shape, np.dtype(dtype))
    elements = scalars(dtype)
    for index in np.ndindex(shape):
        array[index] = draw(elements)
    oddities = [None, None, strided, read_only, swapped, memory_mapped, subclassed, masked]
    make = draw(st.sampled_from(oddities))
    return array if make is None else Made(make, (array,))


@st.composite
def structures(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(STRUCTURES))
    shape = draw(st.sampled_from([(), (2,)]))
    array = np.zeros(shape, dtype)
    if dtype.itemsize:
        first = array[dtype.names[0]]
        if first.dtype.names is None:
            first[...] = draw(st.sampled_from([0.5, np.nan]))
        else:
            first["x"] = draw(st.sampled_from([0.5, np.nan]))
    return array[()] if shape == () and draw(st.booleans()) else array


OBJECT_ARRAYS = st.sampled_from([np.array([1, None]), np.array("text", object)])

VALUES = st.one_of(
    st.booleans(),
    st.sampled_from(INTEGERS + LARGE),
    st.sampled_from(FLOATS),
    st.sampled_from([0j, 1 + 2j, complex(np.nan, -0.0), complex(-0.0, np.inf)]),
    st.sampled_from(NUMBER_DTYPES).flatmap(numbers),
    st.sampled_from(OTHER_DTYPES).flatmap(scalars),
    arrays(),
    arrays(),
    structures(),
    st.sampled_from(TEXTS),
    st.sampled_from(OBJECTS),
    OBJECT_ARRAYS,
    st.sampled_from([Made(containing_itself), Made(unpicklable), Made(unrebuildable)]),
)

# A key's values are mostly of related kinds: else it is a list nearly at once.
MOST_VALUES = 5
ANY_NUMBER = st.one_of(*(numbers(dtype) for dtype in NUMBER_DTYPES))
PYTHON_NUMBER = st.sampled_from((True, *INTEGERS, *FLOATS))
PYTHON_INTEGER = st.sampled_from((*INTEGERS, *LARGE))


def of_kind(kind: str) -> st.SearchStrategy[np.generic]:
    return st.one_of(*(scalars(dtype) for dtype in OTHER_DTYPES if dtype.startswith(kind)))


RELATED = st.one_of(
    *(
        st.lists(values, min_size=2, max_size=MOST_VALUES)
        for values in (
            *(ANY_NUMBER, PYTHON_NUMBER, PYTHON_INTEGER),
            *map(of_kind, ("M8", "m8", "S", "U")),
        )
    ),
    st.lists(VALUES, min_size=1, max_size=MOST_VALUES),
    st.lists(VALUES, min_size=1, max_size=MOST_VALUES),
)


# Scripts.

ABSENT = -1
LATER_NAMES = st.sampled_from("bc")


@st.composite
def scripts(draw: st.DrawFn) -> list[Call]:
    """Two to ten calls, the first of them a reset; only what was reset is stepped."""
    names = draw(st.sampled_from(NAMES))
    values = {name: draw(RELATED) for name in names}
    # Arrays of old are used again only after several resets without any growth.
    is_calm = draw(st.sampled_from([False, False, True]))
    resets = [True, True, False] if is_calm else [False, False, True]
    # Infos of as many keys as the one before, but of other keys.
    takes_turns = not is_calm and len(names) > 2 and draw(st.booleans())
    calls: list[Call] = []
    ready: set[int] = set()
    for number in range(draw(st.sampled_from([2, 4, 6, 8, 10, 10]))):
        reset = number == 0 or draw(st.sampled_from(resets))
        allowed = set(range(NUM_ENVS)) if reset else ready
        mask = None
        if len(allowed) < NUM_ENVS or (draw(st.booleans()) and not is_calm):
            chosen = draw(st.sets(st.sampled_from(sorted(allowed)), min_size=1))
            mask = tuple(i in chosen for i in range(NUM_ENVS))
        # Values come in one after the other, so that arrays change when they hold something.
        newest = MOST_VALUES if is_calm else number // 2
        choices = st.fixed_dictionaries(
            {
                name: st.integers(0 if is_calm else ABSENT, min(newest, len(values[name]) - 1))
                for name in names
            }
        )
        infos = []
        for i in range(NUM_ENVS):
            if mask is not None and not mask[i]:
                infos.append({})
                continue
            choice = draw(choices)
            if takes_turns:
                first = max(choice[names[0]], 0)
                choice = {**choice, names[0]: first, draw(LATER_NAMES): ABSENT}
            infos.append({n: values[n][k] for n, k in choice.items() if k != ABSENT})
            ready.add(i)
        if draw(st.integers(0, 30)) == 30:
            infos[draw(st.sampled_from(sorted(ready)))][7] = "a key that is no string"
        hold = draw(st.sampled_from(["all", "views", "nothing", "nothing"]))
        calls.append(Call(reset, mask, tuple(infos), hold))
    return calls


# Playing a script.


@dataclass
class Kept:
    """An array, a view of one, or a list that the caller holds on to."""

    key: str
    value: Any
    copied: Any
    """What it must show for good once it is not live any more."""
    is_live: bool = True


class Player:
    """A pool, the model of it, and what a caller has kept of earlier results."""

    def __init__(self, num_workers: int) -> None:
        self.pool = EnvPool([ScriptedEnv] * NUM_ENVS, num_workers=num_workers)
        self.model = InfoModel(NUM_ENVS)
        self.scripts = 0
        self.expected_warnings: list[str] = []
        self.objects: dict[str, Any] = {}
        """Weak references to the arrays of the last result, and the ids of its lists."""
        self.kept: dict[int, Kept] = {}
        """What the caller holds on to, by id."""

    def play(self, script: list[Call]) -> None:
        self.scripts += 1
        self.kept = {}
        prefix = "" if self.scripts == 1 else f"{self.scripts}."
        plan = [[rename(call.infos[i], prefix) for call in script if i in call.rows]
                for i in range(NUM_ENVS)]  # fmt: skip
        with self.expecting_warnings():
            self.pool.call_each("load", [(own,) for own in plan])
        for call in script:
            reports = {
                i: {k: made(v) for k, v in rename(call.infos[i], prefix).items()} for i in call.rows
            }
            outcome = self.model.take(reports, reset=call.reset, masked=call.mask is not None)
            self.expected_warnings += outcome.warned
            infos = self.call(call, outcome)
            self.check(infos, reports, outcome)
            self.keep(infos, call.hold)

    def call(self, call: Call, outcome: Outcome) -> dict[str, Any]:
        mask = None if call.mask is None else np.array(call.mask)
        error = None
        try:
            with self.expecting_warnings():
                if call.reset:
                    result = self.pool.reset(mask=mask)
                else:
                    result = self.pool.step(np.zeros(NUM_ENVS, np.int64), mask=mask)
        except EnvError as raised:
            error, result = raised, raised.result
        self.check_error(error, outcome)
        return result[-1]

    @contextmanager
    def expecting_warnings(self) -> Iterator[None]:
        """One for each key that has become a list, with the first result that is returned."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            except EnvError:
                assert not caught
                raise
        found = sorted(str(warning.message).split("'")[1] for warning in caught)
        assert found == sorted(self.expected_warnings)
        self.expected_warnings = []

    def check_error(self, error: EnvError | None, outcome: Outcome) -> None:
        names = [repr(key) for _, key in outcome.type_errors]
        names += [repr(key) for key in outcome.value_errors]
        if not names:
            assert error is None, error
            return
        assert error is not None
        assert isinstance(error, InfoTypeError if outcome.type_errors else InfoValueError)
        found = [failure.message for failure in error.failures]
        # A longer name first: the key 7 is found in the text about '17.a', too.
        for name in sorted(names, key=len, reverse=True):
            message = next(text for text in found if name in text)
            found.remove(message)
        assert not found
        for i, key in outcome.type_errors:
            assert any(f.env_index == i and repr(key) in f.message for f in error.failures)

    def check(self, infos: dict[str, Any], reports: Mapping[int, Any], outcome: Outcome) -> None:
        expected = self.model.expected()
        assert list(infos) == list(expected)
        for key, value in expected.items():
            assert not difference(infos[key], value), (key, difference(infos[key], value))
        for key, before in self.objects.items():
            is_same = (before() if isinstance(before, weakref.ref) else before) is infos[key]
            is_new = outcome.starts_anew or key in outcome.replaced
            assert is_same is not is_new, key
        self.check_kept(reports, outcome)
        self.objects = {
            key: weakref.ref(value) if isinstance(value, np.ndarray) else value
            for key, value in infos.items()
        }

    def check_kept(self, reports: Mapping[int, Any], outcome: Outcome) -> None:
        for kept in self.kept.values():
            if kept.is_live and (outcome.starts_anew or kept.key in outcome.replaced):
                kept.is_live = False
                # Before an array widened, rows of this call may have been written to it.
                for i in range(NUM_ENVS):
                    if outcome.starts_anew or i not in reports:
                        assert not difference(kept.value[i], kept.copied[i]), (kept.key, i)
            elif not kept.is_live:
                assert not difference(kept.value, kept.copied), f"{kept.key} was replaced"
            kept.copied = copied(kept.value)

    def keep(self, infos: dict[str, Any], hold: str) -> None:
        if hold == "nothing":
            return
        for key, value in infos.items():
            is_view = hold == "views" and isinstance(value, np.ndarray)
            held = value[:] if is_view else value
            self.kept.setdefault(id(held), Kept(key, held, copied(held)))


def rename(info: Mapping[Any, Any], prefix: str) -> dict[Any, Any]:
    """The same info under other keys; a leading underscore stays in front."""
    return {
        (f"_{prefix}{key[1:]}" if key.startswith("_") else prefix + key)
        if isinstance(key, str)
        else key: value
        for key, value in info.items()
    }


def copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else [[row[0]] for row in value]


class Players:
    """One player for each script in this process; else one for as many as a pool is good for."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.player: Player | None = None

    def play(self, script: list[Call]) -> None:
        if self.player is None:
            self.player = Player(self.num_workers)
        try:
            self.player.play(script)
        except BaseException:
            self.close()  # model and pool may have parted
            raise
        if self.num_workers == 0 or self.player.scripts == SCRIPTS_PER_POOL:
            self.close()

    def close(self) -> None:
        player, self.player = self.player, None
        if player is not None:
            player.pool.close()


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_infos_are_those_of_the_model_whatever_environments_report(num_workers: int) -> None:
    players = Players(num_workers)

    @settings(max_examples=int(EXAMPLES or (40 if num_workers else 100)))
    @given(scripts())
    def play(script: list[Call]) -> None:
        players.play(script)

    try:
        play()
    finally:
        players.close()
