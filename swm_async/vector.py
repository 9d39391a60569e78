"""VectorEnv: the engine of the pool behind Gymnasium's vector interface.

Gives what ``gymnasium.vector.SyncVectorEnv`` gives, value for value, from worker processes,
and a mask besides. Resets of the autoreset modes happen in the worker, within the step.
"""

from __future__ import annotations

import copy as copying
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from swm_async.access import EnvAccess
from swm_async.arguments import (
    check_mask,
    check_options,
    check_seconds,
    check_seeds,
)
from swm_async.backends.base import EnvFn
from swm_async.backends.choice import choose_backend
from swm_async.copies import private_copy
from swm_async.diagnosis import env_error, warn_of
from swm_async.errors import PoolError, SpacesDiffer
from swm_async.overlapping import OverlappingEngine
from swm_async.reproduce import Recorder
from swm_workers import snapshot
from swm_workers.attributes import Operation, Verb
from swm_workers.layout import Array
from swm_workers.making import make_wrapped
from swm_workers.protocol import NEXT_STEP, SAME_STEP, Role
from swm_workers.spaces import Space, assemble, same_form
from swm_workers.whole_infos import added_up, values_of

_RESETS: Final = {
    AutoresetMode.NEXT_STEP: NEXT_STEP,
    AutoresetMode.SAME_STEP: SAME_STEP,
    AutoresetMode.DISABLED: 0,
}

StepResult: TypeAlias = tuple[Any, Array, Array, Array, dict[str, Any]]


class WaitTimeout(multiprocessing.TimeoutError, TimeoutError):
    """A ``*_wait`` call ended before the environments did; nothing is lost, wait again."""


class VectorEnv(EnvAccess, gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Environments on every core, behind ``gymnasium.vector.VectorEnv``.

    Letters: ``N`` = num_envs. Observations are ``(N, *shape)``, rewards ``(N,) float64``,
    terminations and truncations ``(N,) bool``, infos Gymnasium's dict of arrays with a mask
    ``_key`` for each key.

    Args:
        env_fns: N factories without arguments, each called once, in its worker.
        num_workers: worker processes; None = min(N, usable cores), 0 = in this process.
        backend, ray_options: those of ``EnvPool``.
        autoreset_mode: what happens to an environment that has finished; see Gymnasium.
        copy: whether observations are private copies, or live arrays that the next step
            overwrites.
        observation_mode: ``"same"``, ``"different"`` (bounds may differ), or a pair of
            (batched, single) observation space, as for ``SyncVectorEnv``.
        start_timeout: seconds for construction; None = no bound.
        step_timeout: seconds for each step and reset of a worker; an overdue one is killed.
        threads_per_worker: cap for OpenMP, BLAS, torch and OpenCV threads; None = no cap.
        pin_workers: keep worker k, and what its environments start, on one core; None = where
            there is exactly one worker per usable core.
        spin: let the environments and their workers look for each other's messages for up to
            0.2 ms (after long steps 1 ms) before they sleep, giving way to whoever needs the core;
            None = where every worker has one.

    Raises:
        RuntimeError, ValueError: the environments' spaces differ.
        EnvError: a factory raised.
        WorkerDied, WorkerTimeout: a worker did not come up.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        *,
        num_workers: int | None = None,
        backend: Literal["process", "ray"] = "process",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        observation_mode: Literal["same", "different"] | tuple[Space, Space] = "same",
        start_timeout: float | None = 60.0,
        step_timeout: float | None = None,
        threads_per_worker: int | None = 1,
        pin_workers: bool | None = None,
        spin: bool | None = None,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self._may_have_ended = self.autoreset_mode is AutoresetMode.DISABLED
        self._resets_at_once = self.autoreset_mode is AutoresetMode.SAME_STEP
        self.observation_mode = observation_mode
        self.copy = copy
        self.env_fns = list(env_fns)
        if not self.env_fns:
            raise ValueError("env_fns must hold at least one factory; found none")
        self.num_envs = len(self.env_fns)
        start_timeout_s = check_seconds(start_timeout, "start_timeout")
        step_timeout_s = check_seconds(step_timeout, "step_timeout")
        hosts = choose_backend(
            self.env_fns,
            num_workers,
            backend,
            threads=threads_per_worker,
            step_timeout=None,  # in this process it is ignored without a warning
            pin_workers=pin_workers,
            spin=spin,
            ray_options=ray_options,
            whole_infos=True,
        )
        self.num_workers = 0 if hosts.in_process else len(hosts.shards)
        engine = OverlappingEngine(
            hosts,
            num_envs=self.num_envs,
            observations=True,
            start_timeout_s=start_timeout_s,
            step_timeout_s=step_timeout_s,
            recorder=Recorder(self.env_fns, with_actions=False),
            check_spaces=observation_mode == "same",
            resets=_RESETS[self.autoreset_mode],
            reward_dtype=np.float64,
        )
        super().__init__(engine)
        self._pending: str | None = None
        self._called: Callable[[], tuple[Any, ...]] | None = None
        self._ended: Array = np.zeros(self.num_envs, np.bool_)
        self._leaf_count = len(engine.store.observations) // (2 if self._resets_at_once else 1)
        self._one_array = engine.has_one_observation_array
        try:
            self._set_spaces()
            self.metadata = {
                **self._ask(0, "metadata"),
                "autoreset_mode": self.autoreset_mode,
            }
            self.render_mode = self._ask(0, "render_mode")
        except BaseException:
            engine.close(10.0, "its construction failed")
            raise

    def _set_spaces(self) -> None:
        engine, mode = self._engine, self.observation_mode
        self.single_action_space = engine.action_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.single_observation_space = engine.observation_space
        if isinstance(mode, tuple) and len(mode) == 2:
            if not all(isinstance(space, gymnasium.Space) for space in mode):
                found = [type(space).__name__ for space in mode]
                raise TypeError(f"observation_mode must be a pair of spaces; found {found}")
            self.observation_space, self.single_observation_space = mode
        elif mode == "same":
            self.observation_space = batch_space(self.single_observation_space, self.num_envs)
            return
        elif mode != "different":
            raise ValueError(
                f'observation_mode must be "same", "different" or a pair of spaces; found {mode!r}'
            )
        every = [self._ask(i, "observation_space") for i in range(self.num_envs)]
        for i, space in enumerate(every):
            if not same_form(space, self.single_observation_space):
                raise SpacesDiffer(
                    f"observation spaces must have one shape and dtype; environment {i} differs: "
                    f"expected {self.single_observation_space}, found {space}"
                )
            action_space = self._ask(i, "action_space")
            if action_space != self.single_action_space:
                raise SpacesDiffer(
                    f"all environments need the same action_space; environment {i} differs: "
                    f"expected {self.single_action_space}, found {action_space}"
                )
        if mode == "different":
            self.observation_space = batch_differing_spaces(every)

    def _ask(self, env_index: int, name: str) -> Any:
        return self.operate(env_index, Operation(Verb.GET, (), name)).value

    # Reset.

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``.

        Args:
            seed: None, an integer (environment i gets ``seed + i``), or N integers and Nones.
            options: None, a dict for all, which may hold a ``"reset_mask"`` ``(N,) bool``, or
                N dicts and Nones. The caller's objects are not changed.

        Returns:
            Observations ``(N, *shape)`` and Gymnasium's infos.
        """
        self._check_not_pending("reset")
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            selected, seeds, pickled = self._reset_arguments(seed, options)
            rows = None if selected is None else np.flatnonzero(selected)
            engine.make_way(rows)
            errors = engine.reset(selected, rows, seeds, pickled)
            return self._reset_result(selected, errors)

    def reset_async(self, seed: Any = None, options: Any = None) -> None:
        """Start a reset; ``reset_wait`` returns its result."""
        self._check_not_pending("reset_async")
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            selected, seeds, pickled = self._reset_arguments(seed, options)
            rows = np.arange(self.num_envs) if selected is None else np.flatnonzero(selected)
            engine.check_idle(rows)
            engine.start_reset(rows, seeds, pickled)
            self._pending, self._pending_mask = "reset", selected

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the reset that was started.

        Raises:
            NoAsyncCallError: none was started.
            TimeoutError: it has not ended within ``timeout`` seconds; wait again.
        """
        errors = self._wait("reset", timeout)
        with self._engine.lock:
            return self._reset_result(self._pending_mask, errors)

    def _reset_arguments(
        self, seed: Any, options: Any
    ) -> tuple[Array | None, list[int | None] | None, bytes | tuple[bytes | None, ...] | None]:
        selected = None
        if isinstance(options, Mapping) and "reset_mask" in options:
            options = dict(options)
            selected = _check_reset_mask(options.pop("reset_mask"), self.num_envs)
        return (
            selected,
            check_seeds(seed, self.num_envs),
            check_options(options, self.num_envs),
        )

    def _reset_result(
        self, selected: Array | None, errors: Sequence[PoolError]
    ) -> tuple[Any, dict[str, Any]]:
        if selected is None:
            self._ended[:] = False
        else:
            self._ended[selected] = False
        nobody = np.zeros(self.num_envs, np.bool_)
        result = self._observations(), self._infos((), nobody)
        _raise(errors, result)
        return result

    # Step.

    def step(self, actions: Any, mask: Any = None) -> StepResult:
        """Step all environments, or those that the mask selects.

        Args:
            actions: N rows, a batch of ``action_space`` or a list of N actions.
            mask: ``(N,) bool``, True = is stepped; the other rows keep their observation and
                get reward 0 and False.

        Returns:
            ``(observations, rewards, terminations, truncations, infos)``.

        Raises:
            TypeError, ValueError: wrong arguments; no environment has moved.
            ResetNeeded: an environment was never reset, has failed, or has finished and
                resets are disabled.
            EnvError, WorkerDied, WorkerTimeout: an environment or a worker failed.
        """
        if self._pending is not None:
            self._check_not_pending("step")
        engine = self._engine
        with engine.lock:
            is_plain = engine.is_plain()
            if not is_plain:
                self._check_not_pending("step")
            selected = None if mask is None else check_mask(mask, self.num_envs)
            rows = None if selected is None else np.flatnonzero(selected)
            if not is_plain:
                engine.make_way(rows)
                engine.check_ready(rows)
            if self._may_have_ended:
                self._check_not_ended(rows)
            objects = engine.actions.write(actions, rows)
            errors: Sequence[PoolError] = ()
            if rows is None or len(rows):
                errors = engine.step(selected, rows, objects)
            return self._step_result(rows, errors)

    def step_async(self, actions: Any) -> None:
        """Start a step of all environments; ``step_wait`` returns its result."""
        self._check_not_pending("step_async")
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            rows = np.arange(self.num_envs)
            engine.check_idle(rows)
            engine.check_ready(None)
            if self._may_have_ended:
                self._check_not_ended(None)
            objects = engine.actions.write(actions, None)
            engine.start_step(rows, objects)
            self._pending = "step"

    def step_wait(self, timeout: float | None = None) -> StepResult:
        """Wait for the step that was started.

        Raises:
            NoAsyncCallError: none was started.
            TimeoutError: it has not ended within ``timeout`` seconds; wait again.
        """
        errors = self._wait("step", timeout)
        with self._engine.lock:
            return self._step_result(None, errors)

    def _check_not_ended(self, rows: Array | None) -> None:
        late = self._ended if rows is None else self._ended[rows]
        if late.any():
            indices = np.flatnonzero(late) if rows is None else rows[late]
            raise ResetNeeded(
                f"environments {indices.tolist()} have finished and autoreset is disabled: "
                'reset(options={"reset_mask": ...})'
            )

    def _step_result(self, rows: Array | None, errors: Sequence[PoolError]) -> StepResult:
        control = self._engine.control
        if rows is None:
            rewards = control.rewards.copy()
            terminations, truncations = control.terminateds.copy(), control.truncateds.copy()
        else:
            rewards = np.zeros(self.num_envs, np.float64)
            terminations = np.zeros(self.num_envs, np.bool_)
            truncations = np.zeros(self.num_envs, np.bool_)
            rewards[rows] = control.rewards[rows]
            terminations[rows] = control.terminateds[rows]
            truncations[rows] = control.truncateds[rows]
        finished = terminations | truncations
        done = _places(finished)
        if self._may_have_ended:
            self._ended[slice(None) if rows is None else rows] = False
            self._ended[done] = True
        elif done:
            self._engine.note_ends(done)
        infos = self._infos(done if self._resets_at_once else (), finished)
        result = self._observations(), rewards, terminations, truncations, infos
        if errors:
            _raise(errors, result)
        return result

    # What both give.

    def _observations(self) -> Any:
        parts = self._engine.store.observations
        if self._one_array:
            return parts[0].copy() if self.copy else parts[0]
        given = [tuple(p) if isinstance(p, list) else p for p in parts[: self._leaf_count]]
        if self.copy:
            given = [private_copy(part) for part in given]
        return assemble(self.single_observation_space, given)

    def _infos(self, done: Sequence[int], finished: Array) -> dict[str, Any]:
        """Gymnasium's infos of the last call, added up environment by environment.

        Args:
            done: environments that finished in this step and were reset in it.
            finished: ``(N,) bool`` of these; it may be handed out.
        """
        whole = self._engine.whole
        if not whole:
            return self._only_final_observations(done, finished) if done else {}
        infos = None if done else added_up(whole, self.num_envs)
        if infos is not None:
            return infos
        infos = {}
        parts: dict[int, dict[str, Any]] = {i: {Role.FINAL_INFO: {}} for i in done}
        for i, role, value in values_of(whole):
            parts.setdefault(i, {})[role] = value
        for i in sorted(parts):
            part = parts[i]
            if Role.FINAL_INFO in part:
                final = {
                    "final_obs": part[Role.FINAL_OBSERVATION]
                    if Role.FINAL_OBSERVATION in part
                    else self._final_observation(i),
                    "final_info": part[Role.FINAL_INFO],
                }
                infos = self._add_info(infos, final, i)
            if Role.INFO in part:
                infos = self._add_info(infos, part[Role.INFO], i)
        return infos

    def _only_final_observations(self, done: Sequence[int], finished: Array) -> dict[str, Any]:
        """What ``_infos`` gives where no environment has reported any key."""
        observations = np.empty(self.num_envs, np.object_)
        if self._one_array:
            rows = self._engine.store.observations[1]
            for i in done:
                observations[i] = rows[i].copy()
        else:
            for i in done:
                observations[i] = self._final_observation(i)
        return {
            "final_obs": observations,
            "_final_obs": finished,
            "final_info": {},
            "_final_info": finished.copy(),
        }

    def _final_observation(self, i: int) -> Any:
        if self._one_array:
            return self._engine.store.observations[1][i].copy()
        parts = [part[i].copy() for part in self._engine.store.observations[self._leaf_count :]]
        return assemble(self._engine.observation_space, parts)

    def _check_not_pending(self, name: str) -> None:
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            if self._pending is not None:
                raise AlreadyPendingCallError(
                    f"{name} was called while a {self._pending} is pending; call "
                    f"{self._pending}_wait first",
                    self._pending,
                )
            engine.forsake()  # Ctrl-C has come between the start and its being noted

    def _wait(self, name: str, timeout: float | None) -> list[PoolError]:
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            if self._pending != name:
                raise NoAsyncCallError(
                    f"{name}_wait was called without a {name}_async before it", name
                )
            timeout_s = check_seconds(timeout, "timeout", zero=True)
            wanted = np.flatnonzero(engine.overlap.busy)
            if not engine.await_rows(wanted, len(wanted), timeout_s):
                raise WaitTimeout(f"the {name} has not ended within {timeout_s:g} seconds")
            self._pending = None
            return engine.hand_over(wanted)[1]

    # Calls and attributes.

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment, or get an attribute; N results."""
        self._check_not_pending("call")
        pickled = snapshot.dumps_by_value((args, kwargs))
        operation = Operation(Verb.CALL, (), name, pickled)
        return tuple(self._operate_all(None, lambda i: operation))

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Note a call, which ``call_wait`` carries out."""
        self._check_not_pending("call_async")
        self._called = partial(self.call, name, *args, **kwargs)
        self._pending = "call"

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Carry out the call that was noted; the time is that of the environments."""
        self._engine.check_usable()
        check_seconds(timeout, "timeout", zero=True)
        called = self._called
        if self._pending != "call" or called is None:
            raise NoAsyncCallError("call_wait was called without a call_async before it", "call")
        self._pending = self._called = None
        return called()

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """N values of an attribute."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: a list or tuple of N values, or one value for all."""
        self._check_not_pending("set_attr")
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"expected one value or {self.num_envs} values; found {len(values)}")
        pickled = [snapshot.dumps_by_value(value) for value in values]
        self._operate_all(None, lambda i: Operation(Verb.SET, (), name, pickled[i]))

    def render(self) -> tuple[Any, ...]:
        """N frames."""
        return self.call("render")

    @property  # type: ignore[misc]  # read-only, as in Gymnasium's own subclasses
    def np_random(self) -> Any:
        """N copies of the environments' generators."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> Any:
        """N seeds of the environments' generators."""
        return self.get_attr("np_random_seed")

    # The end.

    def __enter__(self) -> VectorEnv:
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

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **_: Any) -> None:
        """End every worker; ``close`` calls this once.

        Args:
            timeout: seconds that the environments may take to close; None = 10.
            terminate: kill at once.

        Raises:
            EnvError: environments raised while they closed; everything has ended all the same.
        """
        if not hasattr(self, "_engine"):
            return  # construction failed before there was anything to close
        seconds = 10.0 if timeout is None else float(timeout)
        with self._engine.lock:
            failures = self._engine.close(0.0 if terminate else seconds, "it was closed")
        if failures:
            raise env_error(failures, None, None)


def make_vec(
    env_id: str | gymnasium.envs.registration.EnvSpec,
    num_envs: int = 1,
    *,
    vector_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]] = (),
    **kwargs: Any,
) -> VectorEnv:
    """Make a ``VectorEnv`` of ``num_envs`` copies of a registered environment.

    Args:
        env_id: an id or an ``EnvSpec``.
        num_envs: N.
        vector_kwargs: arguments of ``VectorEnv``; they may be given directly as well.
        wrappers: applied to each environment, first to last.
        **kwargs: arguments of ``VectorEnv`` (``num_workers``, ``autoreset_mode``, …); the rest
            goes to ``gymnasium.make``.
    """
    names = VectorEnv.__init__.__kwdefaults__ or {}
    own = {**(vector_kwargs or {}), **{k: kwargs.pop(k) for k in list(kwargs) if k in names}}
    factory = partial(make_wrapped, env_id, tuple(wrappers), kwargs)
    env = VectorEnv([factory] * num_envs, **own)
    spec = gymnasium.spec(env_id) if isinstance(env_id, str) else env_id
    spec = copying.deepcopy(spec)
    spec.kwargs.update(kwargs)
    env.spec = spec
    return env


def _places(flags: Array) -> list[int]:
    """Where ``flags`` ``(N,) bool`` is True; for few of them sooner than numpy tells."""
    raw = flags.tobytes()
    places = []
    i = raw.find(1)
    while i >= 0:
        places.append(i)
        i = raw.find(1, i + 1)
    return places


def _check_reset_mask(mask: Any, num_envs: int) -> Array:
    name = "options['reset_mask']"
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{name} must be a numpy array; found {type(mask).__name__}")
    if mask.shape != (num_envs,):
        raise ValueError(f"{name} must have shape ({num_envs},); found {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{name} must have dtype bool; found {mask.dtype}")
    if not mask.any():
        raise ValueError(f"{name} must hold at least one True; found {mask}")
    return np.array(mask)


def _raise(errors: Sequence[PoolError], result: Any) -> None:
    if errors:
        errors[0].result = result
        errors[0].others = tuple(errors[1:])
        raise errors[0]
