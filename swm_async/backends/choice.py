"""Which backend hosts the environments, by the arguments of ``EnvPool`` and ``VectorEnv``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from swm_async.arguments import awake_seconds, check_num_workers, cores_to_pin, split
from swm_async.backends.base import Backend, EnvFn
from swm_async.backends.process import ProcessBackend
from swm_async.backends.serial import SerialBackend


def check_backend(
    backend: Any, ray_options: Any, pin_workers: bool | None, spin: bool | None
) -> None:
    """Raise ``ValueError`` for a backend that is not known, or options of the other one."""
    if backend not in ("process", "ray"):
        raise ValueError(f'backend must be "process" or "ray"; found {backend!r}')
    if backend == "process" and ray_options is not None:
        raise ValueError('ray_options are for backend="ray"; found backend="process"')
    if backend == "ray" and (pin_workers or spin):
        raise ValueError('pin_workers and spin are for backend="process"; found backend="ray"')


def choose_backend(
    env_fns: Sequence[EnvFn],
    num_workers: int | None,
    backend: str,
    *,
    threads: int | None,
    step_timeout: float | None,
    pin_workers: bool | None,
    spin: bool | None,
    ray_options: Mapping[str, Any] | None,
    whole_infos: bool = False,
) -> Backend:
    """The backend that hosts these environments; its workers are not started yet.

    Raises:
        TypeError, ValueError: wrong arguments.
        ImportError: Ray is asked for and not installed.
    """
    check_backend(backend, ray_options, pin_workers, spin)
    count = len(env_fns)
    if backend == "process" or num_workers is not None:
        num_workers = check_num_workers(num_workers, count)
    if num_workers == 0:
        if step_timeout is not None:
            warnings.warn(
                "step_timeout cannot be enforced with num_workers=0", UserWarning, stacklevel=3
            )
        return SerialBackend(env_fns, whole_infos=whole_infos)
    if backend == "ray":
        # Here and not above: whoever does not ask for Ray needs nothing of it.
        from swm_async.backends.ray import RayBackend

        return RayBackend(env_fns, num_workers, threads, ray_options, whole_infos=whole_infos)
    if num_workers is None:
        raise AssertionError("only Ray counts its workers later")
    shards = split(count, num_workers)
    return ProcessBackend(
        env_fns,
        shards,
        threads,
        whole_infos=whole_infos,
        cores=cores_to_pin(len(shards), pin_workers),
        awake_s=awake_seconds(len(shards), spin),
    )
