"""Sending infos as the dicts that they are, for callers who want them in another form.

Has the methods of ``InfoWriter`` that a shard uses, and those for what a reset within a step
would hide. Infos without keys are not sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swm_workers import snapshot
from swm_workers.infos import plain_dict
from swm_workers.layout import Layout
from swm_workers.protocol import Extra, Problem, Role


class WholeInfos:
    """Gathers the infos of the environments from ``first`` on."""

    def __init__(self, first: int, count: int) -> None:
        self._first = first
        self.settled = [True] * count
        """Rows in which an empty info changes nothing: all."""
        self._parts: list[tuple[int, Role, bytes]] = []
        self._problems: list[Problem] = []

    def bind(self, layout: Layout, buffers: Mapping[int, Any]) -> None:
        """Nothing lies in shared memory."""

    def forget(self) -> None:
        """Drop what was gathered."""
        self._parts, self._problems = [], []

    def write(self, k: int, info: Mapping[str, Any]) -> None:
        """Take what the environment in row k reported."""
        if info.__class__ is not dict:
            info = plain_dict(info)
        if info:
            self.add(k, Role.INFO, info)

    write_fresh = write

    def add(self, k: int, role: Role, value: Any) -> None:
        """Pickle a part at once: the environment may change it in its next step."""
        try:
            self._parts.append((self._first + k, role, snapshot.dumps(value)))
        except Exception as error:  # whatever a value's own pickling raises, the pool goes on
            culprit = _culprit(value) if isinstance(value, Mapping) else ""
            text = (
                f"{role.value}{culprit} of environment {self._first + k} cannot be pickled: {error}"
            )
            self._problems.append(Problem(self._first + k, role.value, text))

    def has_news(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._parts or self._problems)

    def take(self) -> tuple[tuple[Extra, ...], tuple[tuple[int, str], ...], tuple[Problem, ...]]:
        """Hand over the problems gathered so far; there are no keys of their own."""
        problems, self._problems = tuple(self._problems), []
        return (), (), problems

    def take_parts(self) -> tuple[tuple[int, Role, bytes], ...]:
        """Hand over the parts gathered so far."""
        parts, self._parts = tuple(self._parts), []
        return parts


def _culprit(info: Mapping[Any, Any]) -> str:
    for key, value in info.items():
        try:
            snapshot.dumps(value)
        except Exception:  # whatever it raises, this is the one
            return f" {key!r} ({type(value).__qualname__})"
    return ""
