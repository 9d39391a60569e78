"""Running tests of pools on Ray: ``SWM_ASYNC_TEST_BACKEND=ray`` makes its actors the default.

Ray is bound to this machine's own address, without a dashboard, and ends with the session.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from fake_ray import FakeRay
from swm_async import EnvPool, VectorEnv, World
from swm_async.backends.ray_cluster import on_this_machine_alone

ENABLED: Final = os.environ.get("SWM_ASYNC_TEST_BACKEND") == "ray"

INIT: Final[dict[str, Any]] = {
    "address": "local",
    "include_dashboard": False,
    "_node_ip_address": "127.0.0.1",
    "num_cpus": 8,
    "object_store_memory": 200_000_000,
    "log_to_driver": False,
    "logging_level": "error",
}

processes_only = pytest.mark.skipif(
    ENABLED, reason="of processes of its own: their exit codes, output, messages or memory"
)

# Seconds that actors which were killed are given to end.
END_S: Final = 10.0

KILLED: Final = "worker process has died" if ENABLED else "SIGKILL"
"""Part of the text about a worker that was killed; which signal it was, Ray does not tell."""


def make_default() -> None:
    """Let pools that name no backend have actors for workers."""
    for made in (EnvPool, VectorEnv, World):
        made.__init__.__kwdefaults__["backend"] = "ray"


def pretend() -> Callable[[], None]:
    """Let the backend take the fake for Ray; returns what undoes it."""
    from swm_async.backends import ray as backend

    before = backend.connect, backend.disconnect
    backend.connect = lambda user: FakeRay()
    backend.disconnect = lambda ray, user: None

    def undo() -> None:
        backend.connect, backend.disconnect = before

    return undo


@contextmanager
def local_ray(**changes: Any) -> Iterator[Any]:
    """A Ray of this machine, of which nothing stays."""
    import ray

    with on_this_machine_alone(ray):
        ray.init(**{**INIT, **changes})
    try:
        yield ray
    finally:
        ray.shutdown()


def living_actors() -> list[str]:
    """The ids of all actors that have not ended."""
    from ray._private.state import actors

    return [actor_id for actor_id, actor in actors().items() if actor["State"] != "DEAD"]


def actors_left(before: list[str]) -> list[str]:
    """Actors that have not ended within some seconds, besides those that were there before."""
    gc.collect()
    deadline = time.monotonic() + END_S
    left = set(living_actors()) - set(before)
    while left and time.monotonic() < deadline:
        left = set(living_actors()) - set(before)  # asks another process: no spin
    return sorted(left)
