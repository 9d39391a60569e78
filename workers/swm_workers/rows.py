"""Rows of one shard on their way between two processes that share no memory; no I/O.

Both sides keep blocks of the same layout, each its own. A command brings the shard's inputs,
its reply what the environments that took part have written::

    pool    mask, actions ──────────────────────────────────▶ worker    with a command
    pool    infos (where the pool wrote into them) ─────────▶ worker    with a command
    pool ◀── rewards, flags, observations, infos ──── worker            with a reply

Columns are packed one after the other, in the order of the layout, without gaps: their sizes
follow from the layout and the number of rows, which both sides know.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from swm_workers.layout import Array, Kind, Layout, itemsize
from swm_workers.protocol import ALL, Command
from swm_workers.spaces import Leaf, control_views

_HEAD: Final = struct.Struct("<BB?IQ")
_REPLY_HEAD: Final = struct.Struct("<Q")


class Frame(NamedTuple):
    """One command: what is asked, the pickled body, and packed rows behind it."""

    kind: int
    flags: int
    has_infos: bool
    """Whether the shard's infos as the pool has them follow the inputs."""
    version: int
    payload: bytes | memoryview
    rows: bytes | memoryview


def pack_frame(frame: Frame) -> bytes:
    """A command as one piece of memory."""
    kind, flags, has_infos, version, payload, rows = frame
    return b"".join((_HEAD.pack(kind, flags, has_infos, version, len(payload)), payload, rows))


def unpack_frame(data: bytes) -> Frame:
    """What ``pack_frame`` has packed."""
    kind, flags, has_infos, version, length = _HEAD.unpack_from(data)
    view = memoryview(data)
    end = _HEAD.size + length
    return Frame(kind, flags, has_infos, version, view[_HEAD.size : end], view[end:])


class Columns:
    """Some columns of a shard, each ``(n, bytes of a row) uint8``, as live views on blocks."""

    def __init__(self, parts: Sequence[Array]) -> None:
        self._parts = [part for part in parts if part.shape[1]]
        self.row_bytes = sum(part.shape[1] for part in self._parts)
        """Bytes of one environment in all columns."""

    def gather(self, rows: Array | None, out: Array) -> None:
        """Copy these rows, None = all, into ``out``, ``(len(rows) * row_bytes,) uint8``."""
        offset = 0
        for part in self._parts:
            chosen = part if rows is None else part[rows]
            out[offset : offset + chosen.size] = chosen.reshape(-1)
            offset += chosen.size

    def scatter(self, rows: Array | None, data: Array, taken: Array | None = None) -> None:
        """Copy what ``gather`` has packed into these rows.

        Args:
            rows: ``(n,)``, None = all.
            data: ``(n * row_bytes,) uint8``.
            taken: ``(n,) bool``, False = the row stays as it is; None = all are written.
        """
        offset = 0
        for part in self._parts:
            width = part.shape[1]
            count = len(part) if rows is None else len(rows)
            values = data[offset : offset + count * width].reshape(count, width)
            offset += count * width
            if taken is not None:
                part[np.flatnonzero(taken) if rows is None else rows[taken]] = values[taken]
            elif rows is None:
                part[...] = values
            else:
                part[rows] = values


class RowPlan:
    """Where the rows of a shard lie under one layout.

    Args:
        layout: the layout.
        buffers: its blocks, by their numbers.
        first: the shard's first environment.
        last: the one after its last.
        action_leaves: those of the action space.
    """

    def __init__(
        self,
        layout: Layout,
        buffers: Mapping[int, Any],
        first: int,
        last: int,
        action_leaves: Sequence[Leaf],
    ) -> None:
        self.count = last - first
        count = layout.form.num_envs

        def column(block: int, offset: int, width: int) -> Array:
            place = offset + first * width
            view: Array = np.ndarray((last - first, width), np.uint8, buffers[block], place)
            return view

        control = control_views(buffers[layout.control], layout.form, action_leaves)
        self.mask: Array = control.mask[first:last]
        self.actions = Columns(
            [_bytes_of(part[first:last]) for part in control.actions if part is not None]
        )
        outcome = (control.rewards, control.terminateds, control.truncateds)
        observed, infos = [], []
        for seen in layout.observations:
            if seen is not None:
                width = seen.dtype.itemsize * math.prod(seen.shape)
                observed.append(column(*seen.place, width))
        for slot in layout.slots.values():
            infos.append(column(*slot.flags, 1))
            infos.append(column(slot.flags.block, slot.flags.offset + count, 1))
            if slot.kind is not Kind.OBJECT and slot.place is not None:
                width = itemsize(slot.kind, slot.dtype) * math.prod(slot.shape)
                infos.append(column(*slot.place, width))
        self.infos = Columns(infos)
        self._after_reset = Columns([*observed, *infos])
        self._after_step = Columns(
            [*(_bytes_of(part[first:last]) for part in outcome), *observed, *infos]
        )

    def written_by(self, kind: int) -> Columns | None:
        """What a command of this kind writes; None = nothing."""
        if kind == Command.STEP:
            return self._after_step
        return self._after_reset if kind == Command.RESET else None

    def rows(self, flags: int) -> Array | None:
        """The rows of the shard that the mask selects; None = all."""
        return None if flags & ALL else np.flatnonzero(self.mask)

    # Inputs.

    def pack_inputs(self, kind: int, flags: int, *, has_infos: bool) -> bytes:
        """The mask and the actions of the rows that take part, and all infos if asked."""
        parts: list[bytes] = []
        if kind in (Command.STEP, Command.RESET) and not flags & ALL:
            parts.append(self.mask.tobytes())
        if kind == Command.STEP:
            parts.append(self._packed(self.actions, self.rows(flags)))
        if has_infos:
            parts.append(self._packed(self.infos, None))
        return b"".join(parts)

    def unpack_inputs(
        self, kind: int, flags: int, data: bytes | memoryview, *, has_infos: bool
    ) -> None:
        """Write what ``pack_inputs`` has packed into the blocks of this side."""
        packed: Array = np.frombuffer(data, np.uint8)
        offset = 0
        if kind in (Command.STEP, Command.RESET) and not flags & ALL:
            self.mask[...] = packed[: self.count].view(np.bool_)
            offset = self.count
        if kind == Command.STEP:
            rows = self.rows(flags)
            end = offset + self.actions.row_bytes * (self.count if rows is None else len(rows))
            self.actions.scatter(rows, packed[offset:end])
            offset = end
        if has_infos:
            self.infos.scatter(None, packed[offset:])

    def _packed(self, columns: Columns, rows: Array | None) -> bytes:
        count = self.count if rows is None else len(rows)
        out: Array = np.empty(count * columns.row_bytes, np.uint8)
        columns.gather(rows, out)
        return out.tobytes()


def pack_reply(result: Any, columns: Columns | None, rows: Array | None, count: int) -> Array:
    """A reply as one piece of memory ``(bytes,) uint8``.

    Args:
        result: what is pickled; None = nothing.
        columns: what was written; None = nothing.
        rows: which rows took part, None = all.
        count: how many these are.
    """
    payload = b"" if result is None else pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
    start = _REPLY_HEAD.size + len(payload)
    size = 0 if columns is None else count * columns.row_bytes
    out: Array = np.empty(start + size, np.uint8)
    out[: _REPLY_HEAD.size] = np.frombuffer(_REPLY_HEAD.pack(len(payload)), np.uint8)
    out[_REPLY_HEAD.size : start] = np.frombuffer(payload, np.uint8)
    if columns is not None:
        columns.gather(rows, out[start:])
    return out


def unpack_reply(reply: bytes | Array) -> tuple[Any, Array]:
    """The result of a reply, and its packed rows as a view."""
    view = memoryview(reply)  # type: ignore[arg-type]  # ndarray has the buffer protocol
    (length,) = _REPLY_HEAD.unpack_from(view)
    start = _REPLY_HEAD.size + length
    packed: Array = np.frombuffer(view[start:], np.uint8)
    return pickle.loads(view[_REPLY_HEAD.size : start]) if length else None, packed


def _bytes_of(part: Array) -> Array:
    """A contiguous array ``(n, ...)`` as ``(n, bytes of a row) uint8``, a live view."""
    if not part.size:
        return np.empty((len(part), 0), np.uint8)
    return part.reshape(len(part), -1).view(np.uint8)
