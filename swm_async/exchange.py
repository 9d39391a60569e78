"""Commands out, replies in: numbering, layouts that workers have seen, interrupted calls.

Sends one command to each worker that is asked and reads every reply before it returns.
Knows the backend and the version of the layout; what commands and replies mean is the
pool's affair.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gymnasium.error import AlreadyPendingCallError

from swm_async.backends.base import Backend, Lost
from swm_async.infos import InfoStore
from swm_workers.protocol import FORGET, NO_LAYOUT, Command, CommandBody

_NONE: Final[Mapping[int, Lost | None]] = {}


class Exchange:
    """The pool's only way to its workers."""

    def __init__(self, backend: Backend, store: InfoStore) -> None:
        self._backend = backend
        self._store = store
        self._number = 0
        count = len(backend.shards)
        self._known: list[set[int]] = [set() for _ in range(count)]
        self._given: list[set[int]] = [set() for _ in range(count)]
        self._doubtful: dict[int, Lost | None] = {}
        """Workers to be told that replies may have got lost, and those that are lost."""
        self._unread: set[int] = set()
        """Those of them from whom replies may be on their way."""
        self._is_under_way = False
        self._all_know = NO_LAYOUT
        """A version that every worker knows, and none of them is doubtful."""

    def distrust(self, workers: Sequence[int]) -> None:
        """A call to these workers was cut short: replies may be on their way, or lost."""
        self._all_know = NO_LAYOUT
        for w in workers:
            self._doubtful.setdefault(w, None)
        self._unread.update(workers)

    def forget(self, worker: int) -> None:
        """This worker is a new process: it has seen no layout and owes no reply."""
        self._all_know = NO_LAYOUT
        self._known[worker], self._given[worker] = set(), set()
        self._doubtful.pop(worker, None)
        self._unread.discard(worker)

    def resynchronise(self, timeout_s: float | None) -> None:
        """Wait until the doubtful workers have done what they were told, and drop their replies.

        One that is lost meanwhile is told of by the next command.
        """
        self.refuse_nesting()
        try:
            self._is_under_way = True
            self._read_all(list(self._doubtful), timeout_s)
        finally:
            self._is_under_way = False

    def run(
        self,
        kind: Command,
        workers: Sequence[int],
        flags: Sequence[int],
        arguments: Mapping[int, Any] | None,
        timeout_s: float | None,
    ) -> list[Any]:
        """Send one command to each worker and read all replies.

        Args:
            kind: the command.
            workers: who is asked; the others hear nothing.
            flags: the command's flags, for each of ``workers``.
            arguments: by worker, for those whose command has any.
            timeout_s: seconds until an overdue worker is killed; None = never.

        Returns:
            For each of ``workers`` the payload of its reply, None where there was none, or
            ``Lost``.
        """
        if self._is_under_way:
            self.refuse_nesting()
        try:
            self._is_under_way = True
            backend, version = self._backend, self._store.version
            if version == self._all_know and workers:
                number = self._number = self._number + 1
                bodies: Sequence[CommandBody | None] | None = None
                if arguments is not None:
                    own = map(arguments.get, workers)
                    bodies = [None if each is None else (None, each) for each in own]
                if timeout_s is None:
                    return backend.broadcast(workers, number, kind, flags, version, None, bodies)
                ends = time.monotonic() + timeout_s
                replies = backend.broadcast(workers, number, kind, flags, version, ends, bodies)
                return [_late(r, timeout_s) if isinstance(r, Lost) else r for r in replies]
            doubtful = self._read_all(workers, timeout_s) if self._doubtful else _NONE
            number = self._number = self._number + 1
            replies = [None] * len(workers)
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            for k, w in enumerate(workers):
                replies[k] = doubtful.get(w)
                if replies[k] is not None:
                    continue
                try:
                    body = None
                    if arguments is not None or version not in self._known[w]:
                        body = self._body(w, version, arguments)
                    extra = FORGET if w in doubtful else 0
                    backend.send(w, number, kind, flags[k] | extra, version, body, deadline)
                except Lost as lost:
                    replies[k] = _late(lost, timeout_s)
            for k, w in enumerate(workers):
                if replies[k] is None:
                    try:
                        replies[k] = backend.receive(w, number, deadline)
                    except Lost as lost:
                        replies[k] = _late(lost, timeout_s)
            if doubtful:
                for w in doubtful:
                    self._doubtful.pop(w, None)
            if not self._doubtful and all(version in known for known in self._known):
                self._all_know = version
            return replies
        finally:
            self._is_under_way = False

    def refuse_nesting(self) -> None:
        """Refuse a call from a signal's handler or a finaliser in the middle of another call."""
        if self._is_under_way:
            raise AlreadyPendingCallError(
                "another call of this pool is under way in this thread; a signal's handler and a "
                "finaliser may only close it",
                "call",
            )

    @property
    def version(self) -> int:
        """The layout under which a worker writes that is told of a command now."""
        return self._store.version

    def next_number(self) -> int:
        """A number that no command has had."""
        self._number += 1
        return self._number

    def post(
        self,
        kind: Command,
        worker: int,
        flags: int,
        own: Any,
        number: int,
        timeout_s: float | None,
    ) -> None:
        """Send one command and do not wait for its reply.

        Raises:
            Lost: the worker has ended, or was killed since it did not take the command.
        """
        self.refuse_nesting()
        try:
            self._is_under_way = True
            version = self._store.version
            doubtful = self._read_all([worker], timeout_s) if self._doubtful else _NONE
            lost = doubtful.get(worker)
            if lost is not None:
                raise lost
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            body = None
            if own is not None or version not in self._known[worker]:
                body = self._body(worker, version, {worker: own})
            forget = FORGET if doubtful else 0
            self._backend.send(worker, number, kind, flags | forget, version, body, deadline)
            self._doubtful.pop(worker, None)
        finally:
            self._is_under_way = False

    def collect(self, worker: int, number: int, deadline: float | None) -> Any:
        """Read the reply to a command that was posted.

        Raises:
            Lost: the worker has ended, or was killed at the deadline.
        """
        self.refuse_nesting()
        try:
            self._is_under_way = True
            return self._backend.receive(worker, number, deadline)
        finally:
            self._is_under_way = False

    def _body(
        self, worker: int, version: int, arguments: Mapping[int, Any] | None
    ) -> CommandBody | None:
        """The command's payload, with the layout and its blocks if the worker lacks them."""
        own = None if arguments is None else arguments.get(worker)
        if version in self._known[worker]:
            return None if own is None else (None, own)
        update = self._store.update()
        live = {block.block for block in update.blocks}
        for number in sorted(live - self._given[worker]):
            self._backend.share(worker, number, self._store.block(number))
        self._given[worker] = live
        # A worker keeps earlier layouts as long as all their blocks are among the live ones.
        self._known[worker] = self._store.live_versions() & (self._known[worker] | {version})
        return update, own

    def _read_all(self, workers: Sequence[int], timeout_s: float | None) -> dict[int, Lost | None]:
        """Read what is still on its way from the doubtful ones; tells which are lost."""
        found = [w for w in workers if w in self._doubtful]
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for w in found:
            self._known[w], self._given[w] = set(), set()
            if w not in self._unread or self._doubtful[w] is not None:
                continue
            try:
                self._backend.resynchronise(w, int.from_bytes(os.urandom(8), "little"), deadline)
            except Lost as lost:
                self._doubtful[w] = lost
            self._unread.discard(w)
        return {w: self._doubtful[w] for w in found}


def _late(lost: Lost, timeout_s: float | None) -> Lost:
    """Count the time spent on workers before this one as waiting for it too."""
    if timeout_s is not None and lost.waited_s is not None:
        lost.waited_s = max(lost.waited_s, timeout_s)
    return lost
