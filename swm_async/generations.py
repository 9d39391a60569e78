"""The shared memory of a pool: its blocks, and the live arrays that lie in them.

Slots never move. A full reset starts a new generation of arrays; the one before is used again
once nobody holds any of its arrays. Knows layouts and blocks; which slots there are to be, and
what is written into them, is decided by ``infos``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from swm_workers.layout import (
    Array,
    Form,
    Kind,
    Layout,
    ObservationSlot,
    Place,
    Slot,
    array_view,
    fill_value,
    flags_view,
    itemsize,
    start_of,
    tensor_view,
)
from swm_workers.memory import Block
from swm_workers.spaces import Leaf


class Generation:
    """One set of live arrays and the layout under which they are written."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.values: dict[str, Any] = {}
        self.flags: dict[str, tuple[Array, Array]] = {}
        self.observations: list[Array | list[Any]] = []
        self.blocks: set[int] = set()
        self.sent_with: set[int] = set()
        """The blocks that were live when workers were told of the layout."""


class Blocks:
    """Every block by its number, and the numbers of layouts.

    Args:
        form: what all arrays have in common.
        leaves: the leaves of the observation space; none = observations are not kept.
        control: block 0, which holds actions, rewards and flags.
        new_block: makes shared memory of a size.
    """

    def __init__(
        self,
        form: Form,
        leaves: Sequence[Leaf],
        control: Block,
        new_block: Callable[[int], Block],
    ) -> None:
        self.form = form
        self._leaves = tuple(leaves)
        self._new_block = new_block
        self._blocks: dict[int, Block] = {0: control}
        self._next_block = 1
        self._next_version = 1

    def __getitem__(self, number: int) -> Block:
        return self._blocks[number]

    def close(self) -> None:
        """Give back the descriptors of all blocks; arrays stay readable."""
        for block in self._blocks.values():
            block.close()

    def fresh_generation(self, slots: dict[str, Slot]) -> Generation:
        """Lay all slots and observations out in one new block."""
        count, offset = self.form.num_envs, 0
        placed: dict[str, Slot] = {}
        number = self._next_block
        for key, slot in slots.items():
            place = None
            if slot.kind is not Kind.OBJECT:
                size = row_bytes(slot.kind, slot.dtype, slot.shape)
                place = Place(number, start_of(offset, size, self.form.seam))
                offset = place.offset + count * size
            flags = Place(number, start_of(offset, 1, self.form.seam))
            placed[key] = slot._replace(place=place, flags=flags)
            offset = flags.offset + 2 * count
        observed: list[ObservationSlot | None] = []
        for leaf in self._leaves:
            if leaf.dtype is None:
                observed.append(None)
                continue
            size = leaf.dtype.itemsize * math.prod(leaf.shape)
            place = Place(number, start_of(offset, size, self.form.seam))
            observed.append(ObservationSlot(leaf.dtype, leaf.shape, place))
            offset = place.offset + count * size
        layout = Layout(self.take_version(), self.form, 0, placed, tuple(observed))
        made = Generation(layout)
        if slots or self._leaves:
            made.blocks.add(self.allocate(offset))
            self._make_views(made)
        return made

    def _make_views(self, made: Generation) -> None:
        count = self.form.num_envs
        for key, slot in made.layout.slots.items():
            buffer = self._blocks[slot.flags.block].buffer
            made.flags[key] = flags_view(buffer, count, slot.flags)
            if slot.kind is not Kind.OBJECT:
                made.values[key] = self.view(slot)
        for observed in made.layout.observations:
            if observed is None:
                made.observations.append([None] * count)
                continue
            buffer, offset = self._blocks[observed.place.block].buffer, observed.place.offset
            array: Array = np.ndarray((count, *observed.shape), observed.dtype, buffer, offset)
            array[...] = fill_value(observed.dtype)
            made.observations.append(array)

    def view(self, slot: Slot) -> Any:
        """The array or tensor ``(N, 1, ...)`` over a slot."""
        if slot.place is None:
            raise AssertionError("objects have no place in shared memory")
        buffer, offset = self._blocks[slot.place.block].buffer, slot.place.offset
        if slot.kind is Kind.TENSOR:
            import torch

            return tensor_view(torch, buffer, self.form.num_envs, slot.dtype, slot.shape, offset)
        return array_view(buffer, self.form.num_envs, slot.dtype, slot.shape, offset)

    def allocate(self, size: int) -> int:
        """Make a block of so many bytes; returns its number."""
        number = self._next_block
        self._blocks[number] = self._new_block(size)
        self._next_block += 1
        return number

    def drop(self, numbers: set[int]) -> None:
        """Give these blocks back; arrays over them stay readable."""
        for number in numbers:
            self._blocks.pop(number).close()

    def take_version(self) -> int:
        """A number that no layout has had."""
        version = self._next_version
        self._next_version += 1
        return version


def row_bytes(kind: Kind, dtype: Any, shape: tuple[int, ...]) -> int:
    """Bytes that one row of a slot takes."""
    return itemsize(kind, dtype) * math.prod(shape)


def same_slots(first: Layout, second: Layout) -> bool:
    """Whether two layouts have the same keys of the same form."""

    def forms(layout: Layout) -> list[tuple[Any, ...]]:
        return [(k, *s[:3], s.companion, s.losses) for k, s in layout.slots.items()]

    return forms(first) == forms(second)


def is_free(generation: Generation) -> bool:
    """Whether nobody but this module holds an array of this generation.

    Views keep their array alive, so counting the references to the arrays is enough. Who
    holds the storage of a tensor cannot be told, so these are never used again.
    """
    arrays: list[Any] = [array for pair in generation.flags.values() for array in pair]
    arrays += [value for value in generation.values.values() if not isinstance(value, list)]
    arrays += [part for part in generation.observations if not isinstance(part, list)]
    if not all(isinstance(array, np.ndarray) for array in arrays):
        return False
    return max(_references(arrays), default=0) <= _REFERENCES_OF_A_FREE_ARRAY


def _references(arrays: Sequence[Any]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


_held_once = {"by": np.empty(0)}
# Measured and not counted by hand, since it differs between versions of the interpreter.
_REFERENCES_OF_A_FREE_ARRAY: Final = _references([_held_once["by"]])[0]
