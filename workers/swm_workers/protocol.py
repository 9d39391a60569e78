"""The messages between a pool and its workers, and their framing; no I/O.

Every command has exactly one reply with the same number. Both start with a header of
``HEADER.size`` bytes; a payload of the length stated there follows only if there is
something that did not fit into shared memory::

    command   number | kind | flags | - | layout version | payload length
    reply     number | 0    | 0     | - | layout version | payload length

Where neither the command nor its reply has a payload, the command itself comes back.

A pipe write of one header is atomic (far below ``PIPE_BUF``), so a header is either sent
whole or not at all, also when a signal interrupts the writer. A short payload goes with it.
"""

from __future__ import annotations

import enum
import select
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy.typing as npt

from swm_workers.layout import Layout

HEADER: Final = struct.Struct("<QBBHIQ")
AT_ONCE: Final = min(select.PIPE_BUF, 4096)
"""Bytes of a header and a short payload that are written and read in one piece."""
NO_LAYOUT: Final = 0
"""The layout version of commands that move no environment."""


class Command(enum.IntEnum):
    """What a worker is asked to do."""

    BUILD = 1
    RESET = 2
    STEP = 3
    CALL = 4
    SYNC = 5
    CLOSE = 6
    REBUILD = 7
    STATS = 8
    TRACE = 9


# Flags of a command. Plain integers, since those of enum cost microseconds to test.
ALL: Final = 1
"""Every environment of the shard takes part: the mask in shared memory is not read."""
FORGET: Final = 2
"""Replies were lost: the worker must not rely on anything it has reported before."""


SAME_STEP: Final = 4
"""An environment that finishes in a step is reset in it."""
NEXT_STEP: Final = 8
"""An environment that finished in its last step is reset instead of stepped."""
NEAR: Final = 16
"""The pool is on the worker's own core: to look for the next command would take that from it."""


class Role:
    """What a part that travels whole is; plain strings, for the same reason as the flags."""

    INFO: Final = "info"
    FINAL_INFO: Final = "final_info"
    FINAL_OBSERVATION: Final = "final_obs"


class BlockSize(NamedTuple):
    """A block of shared memory that the worker may have to receive and map."""

    block: int
    size: int


class LayoutUpdate(NamedTuple):
    """Everything that a worker needs to write under a layout it has not seen yet."""

    layout: Layout
    blocks: tuple[BlockSize, ...]


class BuildArguments(NamedTuple):
    """What a worker needs to build its environments."""

    first: int
    num_envs: int
    env_fns: bytes
    """The shard's factories, as ``factories.dumps`` gives them."""
    registrations: bytes
    whole_infos: bool
    """Whether infos travel as whole dicts instead of key by key in shared memory."""
    argv: tuple[str, ...]
    awake_s: float
    """How long the worker looks for its next command before it sleeps."""


class Problem(NamedTuple):
    """An info that cannot be delivered although its environment did its step."""

    env_index: int
    key: str
    message: str
    collision: bool = False
    """Whether it is a ``ValueError``, for the name of the key; else it is a ``TypeError``."""


class Failure(NamedTuple):
    """An exception in an environment, in a form that always survives the transport."""

    env_index: int
    command: str
    type_name: str
    message: str
    traceback: str
    pickled: bytes | None
    """The exception itself where it can be pickled and rebuilt."""


# Plain tuples, since pickling one of a class of its own takes longer than all that it holds.
CommandBody: TypeAlias = "tuple[LayoutUpdate | None, Any]"
"""The payload of a command: a layout that is new to the worker, and the arguments."""
ResetArguments: TypeAlias = (
    "tuple[tuple[int | None, ...] | None, tuple[bytes | None, ...] | bytes | None]"
)
"""Seeds and options of a reset, by position among the rows; None = none for any. The options are
one pickled mapping for all, or one per environment: each gets a copy of its own."""
Extra: TypeAlias = "tuple[int, str, bool, bytes | None]"
"""An info value that has no slot, or does not fit the one it has: env index, key, whether it is
kept as an object, and the pickled value. None = the row goes back to its fill value."""
Column: TypeAlias = "tuple[Any, ...] | npt.NDArray[Any]"
"""One info key of several environments: a tuple of Python's values of one class, an array
``(n,)`` of numpy's scalars of one class, or an array ``(n, *shape)`` of arrays."""
Part: TypeAlias = "tuple[int, str, bytes | dict[str, Any]]"
"""What travels whole of one environment: its index, a ``Role``, and what it is, pickled or a dict
of which every value is immutable or a copy."""
Whole: TypeAlias = "tuple[tuple[Part, ...], Sequence[int], Mapping[str, Column]]"
"""The payload of a reply to RESET or STEP that tells nothing but what travels whole: parts, and
infos key by key of environments in which they have the same form."""


class Report(NamedTuple):
    """The payload of any other reply to RESET or STEP."""

    extras: tuple[Extra, ...] = ()
    missing: tuple[tuple[int, str], ...] = ()
    """``(env_index, key)``: keys that a report lacked and that have no companion yet."""
    observations: tuple[tuple[int, int, bytes], ...] = ()
    """``(env_index, leaf, pickled)``: observations of spaces that cannot be batched."""
    problems: tuple[Problem, ...] = ()
    failures: tuple[Failure, ...] = ()
    whole: Whole = ((), (), {})


class Built(NamedTuple):
    """The payload of a reply to BUILD."""

    pid: int
    spaces: bytes | None
    """Pickled ``(action_space, observation_space)`` of the shard's first environment."""
    mismatch: tuple[int, str, str, str] | None
    """``(env_index, which space, expected, found)`` where a shard's own spaces differ."""
    failures: tuple[Failure, ...] = ()


class Returned(NamedTuple):
    """The payload of a reply to CALL or CLOSE: a pickled result per environment asked."""

    results: tuple[bytes | None, ...] = ()
    failures: tuple[Failure, ...] = ()


class WorkerStats(NamedTuple):
    """The payload of a reply to STATS: what a worker has done so far."""

    steps: int
    """Environment steps."""
    busy_s: float
    """Seconds spent on commands."""
    waiting_s: float
    """Seconds spent waiting for them."""
    step_mean_s: tuple[float, ...]
    """Of each environment of the shard, from a sample of its steps; NaN = none yet."""
    step_worst_s: tuple[float, ...]
    """The same for the longest."""


class WorkerSpans(NamedTuple):
    """The payload of a reply to TRACE: what a worker did since the TRACE before this one."""

    edges: bytes = b""
    """float64, seconds of ``time.perf_counter``: idle until the second, busy until the third …"""
    kinds: bytes = b""
    """uint8: the command of each span in which it was busy."""
    steps: bytes = b""
    """int64: environment steps in each of these."""
    dropped: int = 0
    """Commands whose spans were too many to be kept."""


def pack(number: int, kind: int, flags: int, version: int, length: int) -> bytes:
    """Frame one command or reply header."""
    return HEADER.pack(number, kind, flags, 0, version, length)
