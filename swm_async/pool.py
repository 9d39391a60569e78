"""EnvPool: masks, seeds and options in, batched arrays out.

Checks every argument before anything moves, and raises what the engine met. It knows neither
processes nor pipes nor memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium.error import NoAsyncCallError
from gymnasium.vector.utils import batch_space

from swm_async.arguments import (
    check_mask,
    check_options,
    check_seconds,
    check_seeds,
    split,
)
from swm_async.backends.base import EnvFn
from swm_async.backends.choice import choose_backend
from swm_async.copies import private_copy
from swm_async.diagnosis import env_error, warn_of
from swm_async.errors import PoolError
from swm_async.figures import PoolFigures
from swm_async.overlapping import OverlappingEngine
from swm_async.reproduce import Recorder
from swm_async.restarts import Restarts
from swm_workers import snapshot
from swm_workers.attributes import Operation, Verb, variation_space
from swm_workers.layout import Array
from swm_workers.spaces import Space, assemble

StepResult: TypeAlias = tuple[Any, Array, Array, Array, dict[str, Any]]


class EnvPool(PoolFigures):
    """Many environments, stepped in parallel, with masks and shared infos.

    Letters: ``N`` = num_envs. A mask is ``(N,) bool``, True = takes part. Infos are arrays
    ``(N, 1, ...)`` in shared memory, live: the next reset or step of environment i overwrites
    row i. ``docs/contract.md`` states every rule.

    Args:
        env_fns: N factories without arguments, each called once, in its worker.
        num_workers: worker processes; None = min(N, usable cores, or CPUs of the cluster), 0 = in
            this process.
        backend: ``"process"``, or ``"ray"``: each worker is an actor of a Ray cluster.
        observations: whether to keep the batched observations; False returns None for them.
        copy: return private copies instead of live arrays.
        start_timeout: seconds for construction; None = no bound.
        step_timeout: seconds for each reset, step and call of a worker; an overdue worker is
            killed. None = as long as the worker lives.
        on_failure: ``"raise"``, or ``"restart"``: what failed is built anew, with a warning.
        max_restarts: failures that one environment may have until it finishes an episode;
            one more raises.
        threads_per_worker: cap for OpenMP, BLAS, torch and OpenCV threads; None = no cap.
        pin_workers: keep worker k, and what its environments start, on one core; None = where
            there is exactly one worker per usable core.
        spin: let the pool and its workers look for each other's messages for up to 0.2 ms (after
            long steps 1 ms) before they sleep, giving way to whoever needs the core; None = where
            every worker has one.
        record_actions: keep the actions of running episodes; a failure then leaves a file in
            the working directory that ``swm-async replay`` plays back.
        ray_options: for ``backend="ray"``, of each actor: ``num_cpus`` (1), ``num_gpus``,
            ``memory`` (bytes), ``resources``, ``runtime_env``, and ``placement``, ``"pack"`` or
            ``"spread"``.

    Raises:
        TypeError, ValueError: wrong arguments, environments whose spaces differ.
        ImportError: Ray is asked for and not installed.
        EnvError: a factory raised.
        WorkerDied, WorkerTimeout: a worker did not come up.
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        *,
        num_workers: int | None = None,
        backend: Literal["process", "ray"] = "process",
        observations: bool = True,
        copy: bool = False,
        start_timeout: float | None = 60.0,
        step_timeout: float | None = None,
        on_failure: Literal["raise", "restart"] = "raise",
        max_restarts: int = 3,
        threads_per_worker: int | None = 1,
        pin_workers: bool | None = None,
        spin: bool | None = None,
        record_actions: bool = False,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        factories = _check_factories(env_fns)
        if on_failure not in ("raise", "restart"):
            raise ValueError(f'on_failure must be "raise" or "restart"; found {on_failure!r}')
        self.num_envs = len(factories)
        start_timeout_s = check_seconds(start_timeout, "start_timeout")
        step_timeout_s = check_seconds(step_timeout, "step_timeout")
        if threads_per_worker is not None:
            _check_integer(threads_per_worker, "threads_per_worker", 1)
        _check_integer(max_restarts, "max_restarts", 0)
        hosts = choose_backend(
            factories,
            num_workers,
            backend,
            threads=threads_per_worker,
            step_timeout=step_timeout,
            pin_workers=pin_workers,
            spin=spin,
            ray_options=ray_options,
        )
        self.num_workers = 0 if hosts.in_process else len(hosts.shards)
        self._copy = copy
        super().__init__(
            OverlappingEngine(
                hosts,
                num_envs=self.num_envs,
                observations=observations,
                start_timeout_s=start_timeout_s,
                step_timeout_s=step_timeout_s,
                recorder=Recorder(factories, with_actions=record_actions),
                restarts=Restarts(self.num_envs, max_restarts) if on_failure == "restart" else None,
            )
        )
        self._observed = observations
        self._one_array = observations and not copy and self._engine.has_one_observation_array
        self.single_action_space: Space = self._engine.action_space
        self.single_observation_space: Space = self._engine.observation_space
        self.action_space: Space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space: Space = batch_space(self.single_observation_space, self.num_envs)

    # State.

    @property
    def seeds(self) -> Array:
        """``(N,) int64``: the last seed of each environment, -1 = never seeded; a copy."""
        seeds: Array = self._engine.seeds.copy()
        return seeds

    @property
    def busy(self) -> Array:
        """``(N,) bool``: environments that were sent a command and not received since."""
        return self._engine.overlap.busy

    @property
    def closed(self) -> bool:
        """Whether the pool was closed, by its user or since a worker was lost."""
        return self._engine.closed_because is not None

    @property
    def infos(self) -> dict[str, Any]:
        """The latest infos: a fresh dict of the same values; ``{}`` before the first reset."""
        return private_copy(self._engine.store.infos) if self._copy else dict(
            self._engine.store.infos)  # fmt: skip

    @property
    def variation_space(self) -> Any:
        """Environment 0's ``variation_space`` with its current values; None if it has none."""
        operation = Operation(
            Verb.APPLY, (), "variation_space", snapshot.dumps_by_value(variation_space)
        )
        return self.operate(0, operation).value

    @property
    def single_variation_space(self) -> Any:
        """The same as ``variation_space``."""
        return self.variation_space

    # Reset and step.

    def reset(
        self, seed: Any = None, options: Any = None, mask: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments that the mask selects.

        Without a mask all are reset and new arrays begin; those handed out before keep their
        values. With a mask the arrays stay the same objects and other rows are untouched.

        Args:
            seed: None, an integer (environment i gets ``seed + i``), or N integers and Nones.
            options: None, one mapping for all, or N mappings and Nones.
            mask: ``(N,) bool``, True = is reset.

        Returns:
            ``(observations, infos)``: ``(N, *shape)``, and a dict of ``(N, 1, ...)``.

        Raises:
            TypeError, ValueError: wrong arguments; no environment has moved.
            EnvError, WorkerDied, WorkerTimeout: an environment or a worker failed.
        """
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            selected = check_mask(mask, self.num_envs)
            rows = None if selected is None else np.flatnonzero(selected)
            seeds = check_seeds(seed, self.num_envs)
            pickled = check_options(options, self.num_envs)
            errors: Sequence[PoolError] = ()
            if rows is None or len(rows):
                engine.make_way(rows)
                errors = engine.reset(selected, rows, seeds, pickled)
            result = self._observations(), self.infos
            if errors or engine.store.notes:
                self._raise(errors, result)
            return result

    def step(self, actions: Any, mask: Any = None) -> StepResult:
        """Step the environments that the mask selects.

        Args:
            actions: N rows; in those that take no part anything is accepted.
            mask: ``(N,) bool``, True = is stepped.

        Returns:
            ``(observations, rewards, terminateds, truncateds, infos)``: rewards
            ``(N,) float32``, flags ``(N,) bool``, fresh arrays, with 0 and False in the rows
            that took no part.

        Raises:
            TypeError, ValueError: wrong arguments; no environment has moved.
            ResetNeeded: a selected environment was never reset, or has failed.
            EnvError, WorkerDied, WorkerTimeout: an environment or a worker failed.
        """
        engine = self._engine
        with engine.lock:
            is_plain = engine.is_plain()
            if not is_plain:
                engine.check_usable()
            rows = None
            selected = None if mask is None else check_mask(mask, self.num_envs)
            if selected is not None:
                rows = np.flatnonzero(selected)
                if len(rows) == self.num_envs:
                    selected = rows = None
            if not is_plain:
                engine.make_way(rows)
                engine.check_ready(rows)
            objects = engine.actions.write(actions, rows)
            errors = engine.step(selected, rows, objects) if rows is None or len(rows) else ()
            result = self._step_result(rows)
            if errors or engine.store.notes:
                self._raise(errors, result)
            return result

    def _step_result(self, rows: Array | None) -> StepResult:
        control = self._engine.control
        if rows is None:
            rewards = control.rewards.copy()
            terminateds, truncateds = control.terminateds.copy(), control.truncateds.copy()
        else:
            rewards = np.zeros(self.num_envs, np.float32)
            terminateds = np.zeros(self.num_envs, np.bool_)
            truncateds = np.zeros(self.num_envs, np.bool_)
            rewards[rows] = control.rewards[rows]
            terminateds[rows] = control.terminateds[rows]
            truncateds[rows] = control.truncateds[rows]
        infos = self.infos if self._copy else dict(self._engine.store.infos)
        return self._observations(), rewards, terminateds, truncateds, infos

    # Overlap.

    def send(self, actions: Any, mask: Any = None) -> None:
        """Start steps of the selected environments, which must be idle, and return.

        Environments whose worker is busy begin when it has finished. Their rows of the live
        arrays must not be read until ``recv`` has returned them.

        Args:
            actions: N rows; in those that take no part anything is accepted.
            mask: ``(N,) bool``, True = is stepped.

        Raises:
            TypeError, ValueError: wrong arguments; no environment has moved.
            AlreadyPendingCallError: a selected environment is busy.
            ResetNeeded: a selected environment was never reset, or has failed.
        """
        with self._engine.lock:
            self._engine.check_usable()
            rows = self._rows(mask)
            self._engine.check_idle(rows)
            self._engine.check_ready(rows)
            objects = self._engine.actions.write(actions, rows)
            self._engine.start_step(rows, objects)

    def send_reset(self, seed: Any = None, options: Any = None, mask: Any = None) -> None:
        """Start resets of the selected environments, which must be idle, and return.

        The arrays stay the same objects, also without a mask. Arguments and errors are those
        of ``reset`` and ``send``.
        """
        with self._engine.lock:
            self._engine.check_usable()
            rows = self._rows(mask)
            seeds = check_seeds(seed, self.num_envs)
            pickled = check_options(options, self.num_envs)
            self._engine.check_idle(rows)
            self._engine.start_reset(rows, seeds, pickled)

    def recv(
        self, mask: Any = None, min_envs: int | None = None, timeout: float | None = None
    ) -> tuple[Any, Array, Array, Array, dict[str, Any], Array]:
        """Wait for busy environments.

        Args:
            mask: ``(N,) bool``, True = is waited for if it is busy; None = all busy ones.
            min_envs: how many of them are enough; None = all.
            timeout: seconds to wait; None = any time. What is not ready then stays busy.

        Returns:
            ``(observations, rewards, terminateds, truncateds, infos, ready)``: as ``step``,
            and ``ready`` ``(N,) bool``, True = completed by this call and idle again.

        Raises:
            NoAsyncCallError: none of the environments is busy.
            EnvError, WorkerDied, WorkerTimeout: an environment or a worker failed.
        """
        with self._engine.lock:
            engine = self._engine
            engine.check_usable()
            selected = check_mask(mask, self.num_envs)
            if min_envs is not None:
                _check_integer(min_envs, "min_envs", 1)
            timeout_s = check_seconds(timeout, "timeout", zero=True)
            busy = engine.overlap.busy
            wanted = np.flatnonzero(busy if selected is None else busy & selected)
            if not len(wanted):
                raise NoAsyncCallError("no environment of the mask is busy; send first", "recv")
            need = len(wanted) if min_envs is None else min(min_envs, len(wanted))
            engine.await_rows(wanted, need, timeout_s)
            rows, errors = engine.hand_over(wanted)
            ready = np.zeros(self.num_envs, np.bool_)
            ready[rows] = True
            result = (*self._step_result(rows), ready)
            self._raise(errors, result)
            return result

    def groups(self, count: int) -> list[Array]:
        """Masks that divide the environments into contiguous groups along shard borders.

        Args:
            count: how many; more than there are workers, and the borders are those of an
                equal division instead.

        Returns:
            ``count`` masks ``(N,) bool``.
        """
        _check_integer(count, "count", 1)
        if count > self.num_envs:
            raise ValueError(f"count must be at most {self.num_envs} (num_envs); found {count}")
        shards = self._engine.shards
        if count <= len(shards):
            parts = split(len(shards), count)
            ranges = [(shards[a].first, shards[b - 1].last) for a, b in parts]
        else:
            ranges = [(a, b) for a, b in split(self.num_envs, count)]
        masks = []
        for first, last in ranges:
            masks.append(np.zeros(self.num_envs, np.bool_))
            masks[-1][first:last] = True
        return masks

    def _rows(self, mask: Any) -> Array:
        selected = check_mask(mask, self.num_envs)
        return np.arange(self.num_envs) if selected is None else np.flatnonzero(selected)

    def _observations(self) -> Any:
        if self._one_array:
            return self._engine.store.observations[0]
        if not self._observed:
            return None
        parts = [tuple(p) if isinstance(p, list) else p for p in self._engine.store.observations]
        if self._copy:
            parts = [private_copy(part) for part in parts]
        return assemble(self.single_observation_space, parts)

    def _raise(self, errors: Sequence[PoolError], result: Any) -> None:
        """Raise the gravest error, which comes first; warn of what became a list."""
        if errors:
            errors[0].result = result
            errors[0].others = tuple(errors[1:])
            raise errors[0]
        self._engine.store.warn()

    # Calls and attributes.

    def call(self, name: str, *args: Any, mask: Any = None, **kwargs: Any) -> list[Any]:
        """Call a method of every selected environment, in parallel, through its wrappers.

        Returns:
            N results, None in the rows that took no part. An attribute that cannot be called
            gives its value.

        Raises:
            EnvError: a method raised; its environment needs no reset.
        """
        pickled = snapshot.dumps_by_value((args, kwargs))
        return self._operate_all(mask, lambda i: Operation(Verb.CALL, (), name, pickled))

    def call_each(self, name: str, args_list: Sequence[Any], mask: Any = None) -> list[Any]:
        """Call a method of every selected environment with arguments of its own.

        Args:
            name: the method.
            args_list: N tuples of arguments (anything else is a single argument); entries of
                rows that take no part are ignored.
            mask: ``(N,) bool``, True = is called.
        """
        self._check_count(args_list, "args_list")

        def operation(i: int) -> Operation:
            args = args_list[i] if isinstance(args_list[i], (tuple, list)) else (args_list[i],)
            return Operation(Verb.CALL, (), name, snapshot.dumps_by_value((tuple(args), {})))

        return self._operate_all(mask, operation)

    def get_attr(self, name: str, mask: Any = None) -> list[Any]:
        """N values of an attribute, None in the rows that took no part.

        Methods, and objects that cannot be copied, come back as handles.
        """
        return self._operate_all(mask, lambda i: Operation(Verb.GET, (), name))

    def set_attr(self, name: str, values: Any, mask: Any = None) -> None:
        """Set an attribute on the object that owns it, through wrappers.

        Args:
            name: the attribute.
            values: a list or tuple of N values, or one value for all.
            mask: ``(N,) bool``, True = is changed.
        """
        if isinstance(values, (list, tuple)):
            self._check_count(values, "values")
            pickled = [snapshot.dumps_by_value(value) for value in values]
        else:
            pickled = [snapshot.dumps_by_value(values)] * self.num_envs
        self._operate_all(mask, lambda i: Operation(Verb.SET, (), name, pickled[i]))

    def render(self, mask: Any = None) -> list[Any]:
        """N frames, None in the rows that took no part."""
        return self.call("render", mask=mask)

    def _check_count(self, values: Sequence[Any], name: str) -> None:
        if len(values) != self.num_envs:
            raise ValueError(
                f"{name} must have {self.num_envs} entries, one per environment; "
                f"found {len(values)}"
            )

    # The end.

    def close(self, timeout: float = 10.0) -> None:
        """Close every environment and end every worker; arrays stay readable.

        Args:
            timeout: seconds that the environments may take; then their workers are killed.

        Raises:
            EnvError: environments raised while they closed; everything has ended all the same.
        """
        with self._engine.lock:
            failures = self._engine.close(timeout, "it was closed")
        if failures:
            raise env_error(failures, None, None)

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        with self._engine.lock:
            # Raising here would hide the error that is under way.
            warn_of(self._engine.close(10.0, "it was closed"))

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"EnvPool(num_envs={self.num_envs}, num_workers={self.num_workers}{state})"


def _check_factories(env_fns: Any) -> list[EnvFn]:
    if isinstance(env_fns, gymnasium.Env) or callable(env_fns):
        raise TypeError(
            "env_fns must be a sequence of factories, one per environment; found a single "
            f"{type(env_fns).__name__}"
        )
    factories = list(env_fns)
    if not factories:
        raise ValueError("env_fns must hold at least one factory; found none")
    for i, factory in enumerate(factories):
        if isinstance(factory, gymnasium.Env) or not callable(factory):
            raise TypeError(
                f"env_fns[{i}] must be a function without arguments that makes an environment; "
                f"found a {type(factory).__name__}"
            )
    return factories


def _check_integer(number: Any, name: str, least: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{name} must be an integer; found {type(number).__name__}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}; found {number}")
