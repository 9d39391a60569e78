"""The Ray that pools share: options, finding or starting a cluster, letting it go.

The only module that starts or ends Ray. It must not be imported before a pool asks for Ray,
so that nobody else needs it installed.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

_LOGGER: Final = logging.getLogger("swm_async")

_STRATEGIES: Final = {"pack": "DEFAULT", "spread": "SPREAD"}

_PLAIN: Final = ("num_cpus", "num_gpus", "memory", "resources", "runtime_env")

_RESERVED: Final = {"max_restarts": 0, "max_task_retries": 0}
"""A Ray that restarted actors or repeated commands by itself would lose their state."""


def actor_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of each actor for Ray.

    Raises:
        TypeError: not a mapping.
        ValueError: a key or a placement that is not known.
    """
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise TypeError(f"ray_options must be a mapping; found {type(given).__name__}")
    allowed = (*_PLAIN, "placement")
    unknown = [key for key in given if key not in allowed]
    if unknown:
        raise ValueError(
            f"ray_options may have {', '.join(allowed)}; found {', '.join(map(repr, unknown))}"
        )
    placement = given.get("placement", "pack")
    if placement not in _STRATEGIES:
        raise ValueError(f'placement must be "pack" or "spread"; found {placement!r}')
    chosen = {key: given[key] for key in _PLAIN if given.get(key) is not None}
    for key in ("num_cpus", "num_gpus", "memory"):
        number = chosen.get(key, 0)
        if isinstance(number, bool) or not isinstance(number, (int, float)) or number < 0:
            raise ValueError(f"ray_options[{key!r}] must be a number from 0; found {number!r}")
    return {"num_cpus": 1, **chosen, "scheduling_strategy": _STRATEGIES[placement], **_RESERVED}


class _Here:
    """What this process has to do with Ray."""

    started: str | None = None
    """The address of the Ray that was started for pools; None = there is none."""


_here = _Here()
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def connect(user: Any) -> Any:
    """The module ``ray``, connected to a cluster; started here if there is none.

    Args:
        user: has ``close(timeout, polite=...)``, called should the interpreter end before.

    Raises:
        ImportError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "backend=\"ray\" needs Ray, which is not installed: pip install 'swm_async[ray]'"
        ) from error
    if not ray.is_initialized():
        _here.started = None
        if os.environ.get("RAY_ADDRESS"):
            ray.init()
        else:
            _LOGGER.warning(
                "no Ray is running (RAY_ADDRESS is not set): starting one for this machine alone, "
                "which ends with the last pool"
            )
            with on_this_machine_alone(ray):
                ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1")
            _here.started = _address(ray)
    if not _open:
        # Ray has its own such function, which would come before that of a pool's finaliser.
        atexit.unregister(_close_all)
        atexit.register(_close_all, os.getpid())
    _open.add(user)
    return ray


@contextmanager
def on_this_machine_alone(ray: Any) -> Iterator[None]:
    """Let a Ray that is started inside listen on 127.0.0.1, where no other machine reaches it.

    Ray takes a public address in place of this one, and then listens on all, unless it believes
    that there are no clusters, as it does on macOS.
    """
    constants = ray._private.ray_constants
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def disconnect(ray: Any, user: Any) -> None:
    """This user has ended its actors; Ray is ended with the last one if it was started here."""
    if user not in _open:
        return
    _open.discard(user)
    if _open or _here.started is None:
        return
    is_ours = ray.is_initialized() and _address(ray) == _here.started
    _here.started = None
    if is_ours:
        ray.shutdown()


def count_workers(ray: Any, num_envs: int, options: Mapping[str, Any]) -> int:
    """As many workers as the cluster has CPUs for, at least one, at most one per environment."""
    cpus = float(ray.cluster_resources().get("CPU", 1.0))
    each = float(options["num_cpus"]) or 1.0
    return max(1, min(num_envs, int(cpus / each)))


def _address(ray: Any) -> str:
    return str(ray.get_runtime_context().gcs_address)


def _close_all(pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has none of the parent's threads, without which Ray hangs
    for user in list(_open):
        close: Callable[..., Any] = user.close
        with contextlib.suppress(Exception):  # whatever a broken cluster raises, Python ends
            close(10.0, polite=True)
