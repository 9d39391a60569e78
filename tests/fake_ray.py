"""What a pool asks of Ray, in this process: calls of actors are carried out at once.

Rows take the same way as with actors, from blocks to blocks by commands and replies, without the
seconds that it takes to start an actor.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """What Ray's own errors derive from."""


class GetTimeoutError(RayError, TimeoutError):
    """Never raised: there is nothing to wait for."""


class Reference:
    """The result of a call that has been carried out, or the error that it met."""

    def __init__(self, result: Any, error: RayError | None) -> None:
        self.result = result
        self.error = error


class Handle:
    """One actor."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self.run = SimpleNamespace(remote=self._run)

    def _run(self, data: bytes) -> Reference:
        if self._host is None:
            return Reference(None, RayError("the actor has ended"))
        # Ray takes copies too: neither side sees what the other does to its memory.
        reply = self._host.run(bytes(data))
        return Reference(reply if isinstance(reply, bytes) else reply.copy(), None)

    def end(self) -> None:
        self._host = None


class FakeRay:
    """The functions of the module ``ray`` that the backend calls."""

    exceptions = SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError)

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def remote(self, cls: Callable[..., Any]) -> Any:
        def options(**given: Any) -> Any:
            return SimpleNamespace(remote=lambda *args: Handle(cls(*args)))

        return SimpleNamespace(options=options)

    def get(self, reference: Reference, timeout: float | None = None) -> Any:
        if reference.error is not None:
            raise reference.error
        return reference.result

    def wait(
        self, references: list[Reference], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Reference], list[Reference]]:
        return references, []

    def kill(self, handle: Handle, no_restart: bool = True) -> None:
        handle.end()
