"""Writing one shard's infos into their slots, and collecting what has no slot.

Knows the layout and the blocks; knows nothing of environments, pipes or the pool. The rules
are those of ``docs/contract.md``, Infos. An info of the same keys as the one before goes
through a plan that was made for exactly these keys; everything else takes the long way.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from swm_workers import snapshot
from swm_workers.layout import (
    Dtype,
    Kind,
    Layout,
    Natural,
    Slot,
    array_view,
    common_dtype,
    fill_number,
    fill_value,
    fits,
    flags_view,
    natural,
    survives,
    tensor_view,
)
from swm_workers.protocol import Extra, Problem

_ITEM_DTYPES: Final = [np.dtype(c) for c in ("?", *"bBhHiIlL", "f", "d")]
"""The dtypes whose items a memoryview can set."""

_EXACT_IN_FLOAT64: Final = 2**53
"""Integers up to here, and their negatives, are exact in a float64."""


def _scalar_classes(dtype: Dtype) -> frozenset[type]:
    """Classes whose instances may be stored in such a slot without another look at the value."""
    if dtype == np.bool_:
        return frozenset((bool, np.bool_))
    found: set[type] = {bool}  # numpy's is no number, and is stored the long way
    for other in (*_ITEM_DTYPES[1:], np.dtype(np.float16)):
        ends = [] if other.kind == "f" else [np.iinfo(other).min, np.iinfo(other).max]
        widest = np.array(ends, other)
        if common_dtype(Kind.ARRAY, dtype, other) == dtype and survives(widest, Kind.ARRAY, dtype):
            found.add(other.type)
    if dtype == np.int64:
        found.add(int)
    if dtype == np.float64:
        found.add(float)
    return frozenset(found)


_SCALAR_CLASSES: Final = {dtype.str: _scalar_classes(dtype) for dtype in _ITEM_DTYPES}

_COMPARABLE = frozenset({str, bytes, int, bool, type(None)})
"""Immutable classes of which equal instances of the same class cannot be told apart."""

_MAX_PLANS = 256
"""Key sets remembered at once; an environment that invents new ones forever stays bounded."""

_UNKNOWN: Final = object()
"""Nothing is known of what the pool holds for this row."""
_CLEARED: Final = object()
"""The pool holds the fill value for this row."""


class _Target:
    """One key as the rows of this shard write it."""

    __slots__ = (
        "dtype", "fill", "held", "is_float64", "items", "key", "present", "rows", "scalars",
        "sent", "shape", "slot", "tensor",
    )  # fmt: skip

    def __init__(self, key: str, slot: Slot, sent: list[Any]) -> None:
        self.key = key
        self.slot = slot
        self.sent = sent
        self.scalars: frozenset[type] = frozenset()
        self.items: Any = None
        self.is_float64 = False
        self.dtype: Any = None
        # Not the slot's shape where there is no dtype: compared to one, None passes for float64.
        self.shape: tuple[int, ...] | None = None
        self.rows: list[Any] = []
        self.fill: Any = None
        self.tensor: Any = None
        self.present: Any = None
        self.held: Any = None

    def map(self, buffers: Mapping[int, Any], num_envs: int, first: int, count: int) -> None:
        """Make the views on the rows ``first`` to ``first + count`` of the slot."""
        slot = self.slot
        present, held = flags_view(buffers[slot.flags.block], num_envs, slot.flags)
        self.present = memoryview(present)[first : first + count]  # type: ignore[arg-type]  # ndarray has the buffer protocol
        self.held = memoryview(held)[first : first + count]  # type: ignore[arg-type]  # as above
        if slot.place is None:
            return
        buffer, offset = buffers[slot.place.block], slot.place.offset
        if slot.kind is Kind.TENSOR:
            import torch

            self.tensor = tensor_view(torch, buffer, num_envs, slot.dtype, slot.shape, offset)
            self.rows = [self.tensor[first + k, 0] for k in range(count)]
            self.fill = fill_number(torch, slot.dtype)
            return
        array = array_view(buffer, num_envs, slot.dtype, slot.shape, offset)
        self.rows = [array[first + k, 0, ...] for k in range(count)]
        self.dtype, self.shape = slot.dtype, slot.shape
        self.fill = fill_value(slot.dtype)
        if slot.shape == () and slot.dtype.str in _SCALAR_CLASSES:
            self.scalars = _SCALAR_CLASSES[slot.dtype.str]
            self.is_float64 = bool(slot.dtype == np.float64)
            self.items = memoryview(array.reshape(num_envs))[first : first + count]  # type: ignore[arg-type]  # as above


class _Plan:
    """What to do with an info of exactly these keys."""

    __slots__ = ("absent", "complete", "fields", "missing", "present", "size")

    def __init__(self, keys: frozenset[Any], targets: Mapping[str, _Target]) -> None:
        self.size = len(keys)
        self.present = [target for key, target in targets.items() if key in keys]
        self.absent = [target for key, target in targets.items() if key not in keys]
        self.missing = [target.key for target in self.absent if not target.slot.companion]
        self.complete = len(self.present) == len(keys)
        """Whether every key has a slot; of the others nothing is remembered."""
        self.fields = [
            (t.key, t.scalars, t.items, t.dtype, t.shape, t.rows, t) for t in self.present
        ]


_NO_PLAN: Final = _Plan(frozenset(), {})
_NO_PLAN.size = -1


class InfoWriter:
    """Writes the infos of the environments ``first`` … ``first + count - 1``.

    Between two calls of ``take`` it gathers what has to travel in the reply.
    """

    def __init__(self, first: int, count: int) -> None:
        self._first = first
        self._count = count
        self._targets: dict[str, _Target] = {}
        self._plans: dict[frozenset[Any], _Plan] = {}
        self._current: list[_Plan] = [_NO_PLAN] * count
        self.settled = [False] * count
        """Rows in which an empty info changes nothing."""
        self._sent: dict[str, tuple[int, list[Any]]] = {}
        self._extras: dict[tuple[int, str], Extra] = {}
        self._missing: list[tuple[int, str]] = []
        self._problems: dict[tuple[int, str], Problem] = {}

    def bind(self, layout: Layout, buffers: Mapping[int, Any]) -> None:
        """Write under another layout from now on."""
        first, count = self._first, self._count
        self._targets = {}
        for key, slot in layout.slots.items():
            losses, sent = self._sent.get(key, (slot.losses, []))
            if slot.kind is Kind.OBJECT and (not sent or losses != slot.losses):
                sent = [_UNKNOWN] * count
                self._sent[key] = slot.losses, sent
            target = _Target(key, slot, sent)
            target.map(buffers, layout.form.num_envs, first, count)
            self._targets[key] = target
        self._plans = {}
        self._unsettle()

    def forget(self) -> None:
        """Rely on nothing that was reported before: replies may have been lost."""
        self.take()
        for _, sent in self._sent.values():
            sent[:] = [_UNKNOWN] * self._count
        self._unsettle()

    def _unsettle(self) -> None:
        self._current = [_NO_PLAN] * self._count
        self.settled[:] = [False] * self._count

    def write(self, k: int, info: Mapping[str, Any]) -> _Plan:
        """Take what the environment in row k of the shard reported at a step."""
        if info.__class__ is not dict:
            info = plain_dict(info)
        plan = self._current[k]
        switched = len(info) != plan.size
        if switched:
            plan = self._switch(k, info)
        try:
            self._write_fields(k, info, plan)
        except (KeyError, ValueError):
            # Other keys of the same number, or an integer beyond its slot, or both.
            plan = self._switch(k, info)
            switched = True
            self._write_known(k, info, plan)
        if switched:
            self._finish_switch(k, info, plan)
        return plan

    def write_fresh(self, k: int, info: Mapping[str, Any]) -> None:
        """Take what the environment reported at a reset: keys that it lacks lose their value."""
        plan = self.write(k, info)
        for target in plan.absent:
            self._clear(k, target)

    def has_news(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._extras or self._missing or self._problems)

    def take(self) -> tuple[tuple[Extra, ...], tuple[tuple[int, str], ...], tuple[Problem, ...]]:
        """Hand over the extras, the missing keys and the problems gathered so far."""
        extras, problems = tuple(self._extras.values()), tuple(self._problems.values())
        missing = tuple(self._missing)
        self._extras, self._missing, self._problems = {}, [], {}
        return extras, missing, problems

    def _write_fields(self, k: int, info: Mapping[str, Any], plan: _Plan) -> None:
        for key, scalars, items, dtype, shape, rows, target in plan.fields:
            value = info[key]
            cls = value.__class__
            if cls in scalars:
                items[k] = value
            elif cls is np.ndarray and value.dtype == dtype and value.shape == shape:
                rows[k][...] = value
            else:
                self._write_other(k, value, target)

    def _write_known(self, k: int, info: Mapping[str, Any], plan: _Plan) -> None:
        try:
            self._write_fields(k, info, plan)
        except ValueError:
            self._write_slowly(k, info, plan)

    def _write_slowly(self, k: int, info: Mapping[str, Any], plan: _Plan) -> None:
        for target in plan.present:
            self._write_other(k, info[target.key], target)

    def _write_other(self, k: int, value: Any, target: _Target) -> None:
        slot = target.slot
        if slot.kind is Kind.OBJECT:
            self._send_object(k, value, target)
            return
        if target.is_float64 and value.__class__ is int and abs(value) <= _EXACT_IN_FLOAT64:
            target.items[k] = value
            return
        if target.tensor is not None and _is_same_tensor(value, target.rows[k]):
            target.rows[k].copy_(value.detach())
            return
        found = natural(value)
        if not fits(found, slot):
            self._send_misfit(k, target.key, found, value)
        elif slot.kind is Kind.TENSOR:
            target.rows[k].copy_(found.value)
        else:
            target.rows[k][...] = found.value

    def _send_object(self, k: int, value: Any, target: _Target) -> None:
        last = target.sent[k]
        cls = value.__class__
        comparable = cls in _COMPARABLE
        if comparable and last.__class__ is cls and last == value:
            return
        data = self._snapshot(k, target.key, value)
        # Wrapped in a list, the pickle is not taken for a value of class bytes.
        if data is not None and last != [data]:
            self._put(k, target.key, True, data)
            target.sent[k] = value if comparable else [data]

    def _send_misfit(self, k: int, key: str, found: Natural, value: Any) -> None:
        # Values travel as they are, since the key may become a list; tensors without their graph.
        data = self._snapshot(k, key, found.value if found.kind is Kind.TENSOR else value)
        if data is not None:
            self._put(k, key, found.kind is Kind.OBJECT, data)

    def _snapshot(self, k: int, key: str, value: Any) -> bytes | None:
        """Pickle a value; one that cannot be pickled leaves its row without any."""
        try:
            return snapshot.dumps(value)
        except Exception as error:  # whatever a value's own pickling raises, the pool goes on
            text = (
                f"info {key!r} of environment {self._first + k} cannot be pickled: "
                f"{type(value).__qualname__} ({type(error).__name__}: {error})"
            )
            self._problems[k, key] = Problem(self._first + k, key, text)
        target = self._targets.get(key)
        if target is not None:
            target.present[k] = False
            if not target.slot.companion:
                self._missing.append((self._first + k, key))
            self._clear(k, target)
            self._current[k] = _NO_PLAN
        return None

    def _put(self, k: int, key: str, is_object: bool, data: bytes | None) -> None:
        self._extras[k, key] = self._first + k, key, is_object, data

    def _clear(self, k: int, target: _Target) -> None:
        target.held[k] = False
        if target.slot.kind is Kind.OBJECT:
            if target.sent[k] is not _CLEARED:
                self._put(k, target.key, True, None)
                target.sent[k] = _CLEARED
        elif target.slot.kind is Kind.TENSOR:
            target.rows[k].fill_(target.fill)
        else:
            target.rows[k][...] = target.fill

    def _switch(self, k: int, info: Mapping[str, Any]) -> _Plan:
        """Find the plan for the keys of this info and note which keys came and went."""
        keys = frozenset(info)
        plan = self._plans.get(keys)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            plan = self._plans[keys] = _Plan(keys, self._targets)
        # Which keys have no slot is not remembered: they are looked at again each time, and so
        # are those that miss a companion, until they have it.
        is_known = plan.complete and not plan.missing
        self._current[k] = plan if is_known else _NO_PLAN
        self.settled[k] = is_known and not keys
        for target in plan.present:
            target.present[k] = True
        for target in plan.absent:
            target.present[k] = False
        self._missing += [(self._first + k, key) for key in plan.missing]
        return plan

    def _finish_switch(self, k: int, info: Mapping[str, Any], plan: _Plan) -> None:
        """Note which keys hold a value now, and look at those without a slot."""
        for target in plan.present:
            target.held[k] = target.held[k] or target.present[k]
        if not plan.complete:
            self._write_unknown(k, info)

    def _write_unknown(self, k: int, info: Mapping[str, Any]) -> None:
        for key in info:
            if not isinstance(key, str):
                text = (
                    f"info keys must be strings; environment {self._first + k} reported "
                    f"{key!r} ({type(key).__qualname__})"
                )
                self._problems[k, repr(key)] = Problem(self._first + k, repr(key), text)
            elif key not in self._targets:
                # The text itself: str() of a string's subclass may say something else.
                self._send_misfit(k, str.__str__(key), natural(info[key]), info[key])


def plain_dict(info: Any) -> dict[str, Any]:
    """Any mapping as a dict: a defaultdict would invent the keys that it is asked for."""
    if not isinstance(info, Mapping):
        raise TypeError(f"info must be a dict; found {type(info).__qualname__}")
    return dict(info)


def _is_same_tensor(value: Any, row: Any) -> bool:
    torch = sys.modules["torch"]
    return (
        isinstance(value, torch.Tensor)
        and value.dtype == row.dtype
        and value.shape == row.shape
        and value.layout is torch.strided
        and not value.is_meta
    )
