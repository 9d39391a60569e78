"""The pool's side of the infos: what their arrays hold, and how they grow.

Plans where each key lives, adds slots when a report shows that one is missing or too narrow,
keeps the lists of values that have no fixed layout, and says which keys have a companion.
The rules are those of ``docs/contract.md``, Infos. Knows nothing of workers or commands.

A key that widens gets a slot in a new block; everything else stays where it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from swm_async.generations import Blocks, Generation, is_free, row_bytes, same_slots
from swm_async.info_rows import copy_row, fill, python_value
from swm_workers import snapshot
from swm_workers.layout import (
    Array,
    Form,
    Kind,
    Natural,
    Place,
    Slot,
    common_dtype,
    fits,
    flags_view,
    natural,
    start_of,
    survives,
)
from swm_workers.memory import Block
from swm_workers.protocol import BlockSize, LayoutUpdate, Problem, Report
from swm_workers.spaces import Leaf


class _Value(NamedTuple):
    """The value of an extra, rebuilt and classified."""

    env_index: int
    found: Natural
    original: Any


class _Wish(NamedTuple):
    """A slot that is to be made: its kind, dtype and shape, and whether it has a companion."""

    kind: Kind
    dtype: Any
    shape: tuple[int, ...]
    companion: bool


class LateRows(NamedTuple):
    """Rows that were written under an earlier layout than the one in force."""

    version: int
    rows: Sequence[int]


class _Replaced(NamedTuple):
    """The array of a key before the layout ``version``."""

    version: int
    key: str
    values: Any
    slot: Slot


class InfoStore:
    """The observations and infos of a pool.

    Args:
        form: what all arrays have in common.
        leaves: the leaves of the observation space; none = observations are not kept.
        control: the number and the block that hold actions, rewards and flags.
        new_block: makes shared memory of a size.
    """

    def __init__(
        self,
        form: Form,
        leaves: Sequence[Leaf],
        control: Block,
        new_block: Callable[[int], Block],
    ) -> None:
        self._num_envs = form.num_envs
        self._blocks = Blocks(form, leaves, control, new_block)
        self._spare: Generation | None = None
        self._previous: Generation | None = None
        self._replaced: list[_Replaced] = []
        self._moving: frozenset[int] = frozenset()
        self.notes: list[str] = []
        """Warnings to issue once the call at hand has come to its end."""
        self.extra_bytes: dict[str, int] = {}
        """Keys whose values have travelled in replies, with the bytes of all so far."""
        self.always: dict[str, Any] = {}
        """Entries that every dict of infos holds besides what environments report."""
        self.has_reports = False
        """Whether any environment has ever reported an info."""
        self._now = self._blocks.fresh_generation({})
        self.version = self._now.layout.version
        """The version of the layout in force."""
        self.infos: dict[str, Any] = {}
        """The values and companions, as a caller sees them; hand out copies of this dict."""

    @property
    def observations(self) -> Sequence[Array | list[Any]]:
        """One ``(N, *shape)`` array per observation leaf, or a list of N objects."""
        return self._now.observations

    def block(self, number: int) -> Block:
        """A block by its number."""
        return self._blocks[number]

    def update(self) -> LayoutUpdate:
        """What a worker has to know to write under the layout in force."""
        live = self._now.sent_with = self._live_blocks()
        sizes = tuple(BlockSize(number, self._blocks[number].size) for number in sorted(live))
        return LayoutUpdate(self._now.layout, sizes)

    def live_versions(self) -> set[int]:
        """The layouts that can come into force again without being sent anew."""
        spare = self._spare
        # A worker forgets a layout with the first of the blocks that it came with.
        if spare is None or not spare.sent_with <= self._live_blocks():
            return {self._now.layout.version}
        return {self._now.layout.version, spare.layout.version}

    def _live_blocks(self) -> set[int]:
        spare = set() if self._spare is None else self._spare.blocks
        return {0} | self._now.blocks | spare

    def renew(self) -> None:
        """Start new arrays for a full reset; those handed out before keep their values."""
        before = self._now
        spare = self._spare
        if spare is not None and same_slots(spare.layout, before.layout) and is_free(spare):
            self._now = spare
        else:
            if spare is not None:
                self._blocks.drop(spare.blocks)
            self._now = self._blocks.fresh_generation(before.layout.slots)
        self._spare = before
        if len(before.blocks) != len(self._now.blocks):
            self._blocks.drop(
                before.blocks
            )  # it grew in parts: its arrays live on, its blocks do not
            self._spare = None
        for key, value in before.values.items():
            if before.layout.slots[key].kind is Kind.OBJECT:
                self._now.values[key] = [[row[0]] for row in value]
        for leaf, part in enumerate(before.observations):
            if isinstance(part, list):
                self._now.observations[leaf] = list(part)
        self._publish()
        self._previous = before

    def settle(self, failed: Sequence[int]) -> None:
        """A full reset is complete: rows that failed get back the values from before it."""
        before, now = self._previous, self._now
        self._previous = None
        if before is None or not failed:
            return
        for key, slot in now.layout.slots.items():
            for new, old in zip(now.flags[key], before.flags[key], strict=True):
                new[failed] = old[failed]
            if slot.kind is not Kind.OBJECT:
                for i in failed:
                    copy_row(now.values[key], before.values[key], i, slot)
        for part, old_part in zip(now.observations, before.observations, strict=True):
            if isinstance(part, np.ndarray) and isinstance(old_part, np.ndarray):
                part[failed] = old_part[failed]

    def absorb(
        self,
        reports: Sequence[Report],
        reported: Sequence[int],
        late: Sequence[LateRows] = (),
        moving: Sequence[int] = (),
    ) -> list[Problem]:
        """Take in what did not go through shared memory.

        Args:
            reports: the payloads of all replies, in order of their shards.
            reported: the environments that reported an info in this exchange.
            late: the layouts under which rows were written.
            moving: rows that a worker may be writing now, under whatever layout it knows.

        Returns:
            What could not be delivered.
        """
        problems: list[Problem] = []
        by_key: dict[str, list[_Value]] = {}
        missing: dict[str, int] = {}
        lost: dict[str, list[int]] = {}
        slots = self._now.layout.slots
        for report in reports:
            for env_index, leaf, data in report.observations:
                try:
                    self._now.observations[leaf][env_index] = snapshot.loads(data)
                except Exception as error:  # a value's own reconstruction may raise anything
                    self._now.observations[leaf][env_index] = None
                    problems.append(_not_rebuilt(data, env_index, f"observation {leaf}", error))
            for env_index, key, is_object, pickled in report.extras:
                if pickled is None:
                    self._now.values[key][env_index][0] = None
                    continue
                self.extra_bytes[key] = self.extra_bytes.get(key, 0) + len(pickled)
                try:
                    original = snapshot.loads(pickled)
                except Exception as error:  # a value's own reconstruction may raise anything
                    problems.append(_not_rebuilt(pickled, env_index, f"info {key!r}", error))
                    lost.setdefault(key, []).append(env_index)
                    continue
                if is_object and not late and key in slots and slots[key].kind is Kind.OBJECT:
                    # Nothing can come of it but this: the usual case, and the quick one.
                    self._now.values[key][env_index][0] = original
                    for flags in self._now.flags[key]:
                        flags[env_index] = True
                    continue
                # An object may look like something else once it has been rebuilt.
                found = Natural(Kind.OBJECT, None, (), original) if is_object else natural(original)
                by_key.setdefault(key, []).append(_Value(env_index, found, original))
            for env_index, key in report.missing:
                missing.setdefault(key, env_index)
            problems += report.problems
        self._moving = frozenset(moving)
        self._gather_late(late, by_key)
        self._lose(lost, missing)
        self._grow(by_key, missing, set(reported), problems)
        self.has_reports = self.has_reports or bool(reported)
        if not moving:
            self._replaced = []
        return problems

    def _gather_late(self, late: Sequence[LateRows], by_key: dict[str, list[_Value]]) -> None:
        """Take rows that lie in arrays replaced meanwhile for values reported just now."""
        for version, rows in late:
            seen: set[str] = set()
            for replaced in self._replaced:
                key = replaced.key
                if replaced.version <= version or key in seen:
                    continue
                seen.add(key)
                values = by_key.setdefault(key, [])
                sent = {value.env_index for value in values}
                held = self._now.flags[key][1]
                values += [_late_value(replaced, i) for i in rows if held[i] and i not in sent]
                values.sort(key=lambda value: value.env_index)
                if not values:
                    del by_key[key]

    def _lose(self, lost: Mapping[str, Sequence[int]], missing: dict[str, int]) -> None:
        """Rows whose value could not be rebuilt hold none; it is missing from their report."""
        now = self._now
        slots = dict(now.layout.slots)
        known = [key for key in lost if key in slots]
        for key in known:
            slot = slots[key]
            for i in lost[key]:
                for flags in now.flags[key]:
                    flags[i] = False
                if slot.kind is Kind.OBJECT:
                    now.values[key][i][0] = None
                else:
                    fill(now.values[key][i], slot)
            missing.setdefault(key, lost[key][0])
            # The workers have to send again what they believe to have sent.
            slots[key] = slot._replace(losses=slot.losses + 1)
        if known:
            self.version = self._blocks.take_version()
            now.layout = now.layout._replace(version=self.version, slots=slots)

    def add_entry(self, name: str, value: Any) -> None:
        """Put a value of the pool's own into every dict of infos."""
        self.always[name] = value
        self.infos[name] = value

    def warn(self) -> None:
        """Issue the warnings that have gathered; those after one that raises come next time."""
        while self.notes:
            warnings.warn(self.notes.pop(0), UserWarning, stacklevel=4)

    def close(self) -> None:
        """Give back the descriptors of all blocks; arrays stay readable."""
        self._spare = None
        self._blocks.close()

    # Growth.

    def _grow(
        self,
        by_key: dict[str, list[_Value]],
        missing: Mapping[str, int],
        reported: set[int],
        problems: list[Problem],
    ) -> None:
        """Make the slots that these values ask for, then write the values."""
        slots = self._now.layout.slots
        self._refuse_names(by_key, problems)
        wishes: dict[str, _Wish] = {}
        for key, values in by_key.items():
            slot = slots.get(key)
            if slot is None:
                companion = self.has_reports or {v.env_index for v in values} != reported
                wishes[key] = self._wish(key, values[0].found, [], values, companion)
            elif slot.kind is not Kind.OBJECT and not all(fits(v.found, slot) for v in values):
                known = Natural(slot.kind, slot.dtype, slot.shape, None)
                stored = [self._now.values[key][i] for i in self._kept_rows(key, values)]
                wishes[key] = self._wish(key, known, stored, values, slot.companion)
        for key in missing:
            lacking = wishes.get(key) or slots[key]
            if not lacking.companion:
                wishes[key] = _Wish(lacking.kind, lacking.dtype, lacking.shape, True)
        self._refuse_companions(wishes, by_key, missing, problems)
        if wishes:
            self._add_slots(wishes, by_key)
        for key, values in by_key.items():
            self._write(key, values)

    def _kept_rows(self, key: str, values: Sequence[_Value]) -> list[int]:
        """The rows that hold a value which none of these replaces."""
        held = self._now.flags[key][1].copy()
        held[[value.env_index for value in values]] = False
        held[list(self._moving)] = False
        return [int(i) for i in np.flatnonzero(held)]

    def _wish(
        self,
        key: str,
        known: Natural,
        stored: Sequence[Any],
        values: Sequence[_Value],
        companion: bool,
    ) -> _Wish:
        """The slot for a key, decided once for all values of an exchange.

        Args:
            key: the info key.
            known: the form of the slot it has, or of its first value.
            stored: rows that its array holds now.
            values: what was reported, in order of the environments.
            companion: whether it is to have a companion.
        """
        founds = [value.found for value in values]
        for found in founds:
            if (found.kind, found.shape) != (known.kind, known.shape):
                return self._as_list(key, known, found, companion)
        if known.kind is Kind.OBJECT:
            return _Wish(Kind.OBJECT, None, (), companion)
        dtype = known.dtype
        for found in founds:
            dtype = common_dtype(known.kind, dtype, found.dtype)
            if dtype is None:
                return self._as_list(key, known, found, companion)
        survivors = [*stored, *(found.value for found in founds)]
        if not all(survives(value, known.kind, dtype) for value in survivors):
            other = next((found for found in founds if found.dtype != known.dtype), known)
            return self._as_list(key, known, other, companion)
        return _Wish(known.kind, dtype, known.shape, companion)

    def _as_list(self, key: str, first: Natural, second: Natural, companion: bool) -> _Wish:
        self.notes.append(
            f"info {key!r} becomes a list of objects: {_describe(first)} and "
            f"{_describe(second)} do not fit into one array"
        )
        return _Wish(Kind.OBJECT, None, (), companion)

    def _refuse_names(self, by_key: dict[str, list[_Value]], problems: list[Problem]) -> None:
        """A key that is new must not have the name of a companion, or of the pool's own array."""
        slots = self._now.layout.slots
        for key in [key for key in by_key if key.startswith("_") and key not in slots]:
            owner = slots.get(key[1:])
            if key in self.always or (owner is not None and owner.companion):
                problems.append(_collision(by_key.pop(key)[0].env_index, key))

    def _refuse_companions(
        self,
        wishes: dict[str, _Wish],
        by_key: Mapping[str, Sequence[_Value]],
        missing: Mapping[str, int],
        problems: list[Problem],
    ) -> None:
        """A companion must not have the name of another key, or of the pool's own array."""
        slots = self._now.layout.slots
        for key, wish in list(wishes.items()):
            name = "_" + key
            is_taken = name in slots or name in by_key or name in self.always
            if not is_taken or not wish.companion or (key in slots and slots[key].companion):
                continue
            reporters = by_key.get(name) or by_key.get(key)
            env_index = reporters[0].env_index if reporters else missing[key]
            problems.append(_collision(env_index, name))
            wishes[key] = wish._replace(companion=False)
            if key in slots and slots[key][:3] == wish[:3]:
                del wishes[key]

    def _add_slots(
        self, wishes: Mapping[str, _Wish], by_key: Mapping[str, Sequence[_Value]]
    ) -> None:
        """Put slots for these keys into a block of their own; the others stay where they are."""
        now, count = self._now, self._num_envs
        offset, places, flag_places = 0, {}, {}
        for key, wish in wishes.items():
            old = now.layout.slots.get(key)
            changed = old is None or old[:3] != wish[:3]
            if wish.kind is not Kind.OBJECT and changed:
                size = row_bytes(wish.kind, wish.dtype, wish.shape)
                places[key] = start_of(offset, size, self._blocks.form.seam)
                offset = places[key] + count * size
            if old is None:
                flag_places[key] = start_of(offset, 1, self._blocks.form.seam)
                offset = flag_places[key] + 2 * count
        number = self._blocks.allocate(offset) if offset else 0
        before = now.layout.slots
        slots = dict(before)
        for key, wish in wishes.items():
            old = slots.get(key)
            place = old.place if old is not None and wish.kind is not Kind.OBJECT else None
            if key in places:
                place = Place(number, places[key])
            flags = Place(number, flag_places[key]) if old is None else old.flags
            losses = 0 if old is None else old.losses
            slots[key] = Slot(
                wish.kind, wish.dtype, wish.shape, place, flags, wish.companion, losses
            )
        if offset:
            now.blocks.add(number)
        now.layout = now.layout._replace(version=self._blocks.take_version(), slots=slots)
        for key in wishes:
            if key in flag_places:
                place = slots[key].flags
                now.flags[key] = flags_view(self._blocks[place.block].buffer, count, place)
            if key in places or slots[key].kind is Kind.OBJECT:
                self._replace_values(key, before.get(key), slots[key], by_key.get(key, ()))
        if self._spare is not None:
            self._blocks.drop(self._spare.blocks)
            self._spare = None
        self._publish()

    def _replace_values(
        self, key: str, old_slot: Slot | None, slot: Slot, values: Sequence[_Value]
    ) -> None:
        """Make the array or list of a key's new slot and move the rows that keep their value."""
        now = self._now
        old = now.values.get(key)
        if isinstance(old, list):
            return
        rows = [] if old is None else self._kept_rows(key, values)
        if slot.kind is Kind.OBJECT:
            new: Any = [[None] for _ in range(self._num_envs)]
            for i in rows:
                new[i][0] = python_value(old, i)
        else:
            new = self._blocks.view(slot)
            fill(new, slot)
            for i in rows:
                copy_row(new, old, i, slot)
        now.values[key] = new
        if old_slot is not None and self._moving:
            self._replaced.append(_Replaced(now.layout.version, key, old, old_slot))

    def _write(self, key: str, values: Sequence[_Value]) -> None:
        slot = self._now.layout.slots[key]
        target = self._now.values[key]
        present, held = self._now.flags[key]
        for env_index, found, original in values:
            present[env_index] = held[env_index] = True
            if slot.kind is Kind.OBJECT:
                target[env_index][0] = original
            elif slot.kind is Kind.TENSOR:
                target[env_index, 0].copy_(found.value)
            else:
                target[env_index, 0, ...] = found.value

    def _publish(self) -> None:
        """Put together what callers see, in the order in which keys appeared."""
        self.version = self._now.layout.version
        slots = self._now.layout.slots
        self.infos = {key: self._now.values[key] for key in slots}
        for key, slot in slots.items():
            if slot.companion:
                self.infos["_" + key] = self._now.flags[key][0]
        self.infos.update(self.always)


def _not_rebuilt(data: bytes, env_index: int, what: str, error: Exception) -> Problem:
    text = (
        f"{what} of environment {env_index} cannot be rebuilt: {snapshot.class_name(data)} "
        f"({type(error).__name__}: {error})"
    )
    return Problem(env_index, what, text)


def _describe(found: Natural) -> str:
    if found.kind is Kind.OBJECT:
        return f"a {type(found.value).__qualname__}"
    library = "an array" if found.kind is Kind.ARRAY else "a tensor"
    return f"{library} of {found.dtype} {found.shape}"


def _collision(env_index: int, name: str) -> Problem:
    text = (
        f"info {name!r} of environment {env_index} collides with the array that tells of which "
        f"environments {name[1:]!r} is true or reported; rename it"
    )
    return Problem(env_index, name, text, collision=True)


def _late_value(replaced: _Replaced, i: int) -> _Value:
    """What environment i has written into an array that is not in force any more."""
    kind, dtype, shape = replaced.slot[:3]
    row = replaced.values[i, 0]
    copied = row.clone() if kind is Kind.TENSOR else np.array(row, dtype)
    return _Value(i, Natural(kind, dtype, shape, copied), python_value(replaced.values, i))
