"""Reaching into the environments of an engine: handles, calls and attributes.

What ``EnvPool`` and ``VectorEnv`` share; each gives it the form that its users know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from swm_async.arguments import check_mask
from swm_async.errors import EnvError
from swm_async.handles import RemoteEnvs, RemoteMethod, RemotePart
from swm_async.overlapping import OverlappingEngine
from swm_workers import snapshot
from swm_workers.attributes import Found, Operation, Result, Verb
from swm_workers.spaces import Space


class EnvAccess:
    """Handles, calls and attributes of the environments of an engine."""

    num_envs: int

    def __init__(self, engine: OverlappingEngine) -> None:
        self._engine = engine
        self._handle_spaces: dict[tuple[int, str], Space] = {}

    @property
    def envs(self) -> RemoteEnvs:
        """A handle for each environment, which behaves like the environment itself."""
        return RemoteEnvs(self)

    def operate(self, env_index: int, operation: Operation) -> Result:
        """Carry out one operation in one environment; what handles are made of.

        Raises:
            BaseException: what the environment raised, with its own type where possible.
        """
        with self._engine.lock:
            self._engine.check_usable()
            self._engine.make_way(np.array([env_index]))
            results, errors = self._engine.operate({env_index: operation})
            if errors:
                own = errors[0].failures[0].exception if isinstance(errors[0], EnvError) else None
                raise errors[0] if own is None else own
            if operation.path == () and operation.verb is Verb.CALL:
                self._note_handle(env_index, operation)
            self._note_set(env_index, operation)
            return results[env_index]

    def handle_space(self, env_index: int, name: str) -> Any:
        """The space of an environment's handle, kept so that sampling advances it."""
        key = (env_index, name)
        if key not in self._handle_spaces:
            self._handle_spaces[key] = self.operate(env_index, Operation(Verb.GET, (), name)).value
        return self._handle_spaces[key]

    def _note_set(self, env_index: int, operation: Operation) -> None:
        """A space that was set is not the one that was kept."""
        if operation.verb is Verb.SET:
            self._handle_spaces.pop((env_index, operation.name), None)

    def _note_handle(self, env_index: int, operation: Operation) -> None:
        """A reset or step through a handle counts, although the pool's rows do not change."""
        if operation.name == "reset":
            _, kwargs = snapshot.loads(operation.arguments or b"")
            self._engine.note_reset(env_index, kwargs.get("seed"))
        elif operation.name == "step":
            self._engine.episode_steps[env_index] += 1

    def _operate_all(self, mask: Any, make: Callable[[int], Operation]) -> list[Any]:
        with self._engine.lock:
            self._engine.check_usable()
            selected = check_mask(mask, self.num_envs)
            rows = range(self.num_envs) if selected is None else np.flatnonzero(selected).tolist()
            operations = {i: make(i) for i in rows}
            self._engine.make_way(np.array(rows, np.int64))
            results, errors = self._engine.operate(operations)
            answers: list[Any] = [None] * self.num_envs
            for i, result in results.items():
                self._note_set(i, operations[i])
                answers[i] = self._answer(i, operations[i].name, result)
            if errors:
                errors[0].result = answers
                errors[0].others = tuple(errors[1:])
                raise errors[0]
            self._engine.store.warn()
            return answers

    def _answer(self, i: int, name: str, result: Result) -> Any:
        if result.found is Found.METHOD:
            return RemoteMethod(self, i, (), name)
        if result.found is Found.PART:
            return RemotePart(self, i, (name,), result.value)
        return result.value
