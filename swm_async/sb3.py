"""VecEnv: the engine of the pool behind the interface of Stable-Baselines3.

Gives what ``DummyVecEnv`` gives, value for value, from worker processes. It knows VectorEnv,
EnvPool and Stable-Baselines3, which is optional and imported only here; it must not know
processes, pipes or memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from swm_async.backends.base import EnvFn
from swm_async.copies import private_copy
from swm_async.errors import EnvError
from swm_async.evaluation import row_infos
from swm_async.handles import RemoteEnvs
from swm_async.pool import EnvPool
from swm_async.vector import VectorEnv
from swm_workers import snapshot
from swm_workers.attributes import Operation, Verb, has_wrapper, set_outermost
from swm_workers.layout import Array
from swm_workers.protocol import Role
from swm_workers.spaces import Space, assemble, leaves, pick
from swm_workers.whole_infos import values_of

try:
    from stable_baselines3.common.vec_env import VecEnv as _Base
except ImportError as error:
    raise ImportError(
        "swm_async.sb3 needs stable-baselines3: pip install 'swm_async[sb3]'"
    ) from error

TIME_LIMIT: Final = "TimeLimit.truncated"
TERMINAL_OBSERVATION: Final = "terminal_observation"

Indices: TypeAlias = int | Iterable[int] | None

_VECTOR_ARGUMENTS: Final = frozenset(
    ("num_workers", "start_timeout", "step_timeout", "threads_per_worker", "pin_workers", "spin")
)


class _Step(NamedTuple):
    """A step of all environments, with the resets of those that it finished."""

    observations: Any
    """``(N, *shape)``, those of the resets where there was one; private copies."""
    rewards: Array
    terminations: Array
    truncations: Array
    infos: list[dict[str, Any]]
    """N dicts, what the step reported."""
    final_observations: dict[int, Any]
    """What the finished environments observed before their resets, by env index."""
    reset_infos: dict[int, dict[str, Any]]
    """What the resets reported, by env index."""


class _Source(Protocol):
    """Where steps come from."""

    @property
    def access(self) -> VectorEnv | EnvPool:
        """The environments themselves."""

    def reset(
        self, seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None]
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Reset all environments; returns observations and N infos."""

    def send(self, actions: Any) -> None:
        """Start a step of all environments."""

    def receive(self) -> _Step:
        """Wait for the step that was started."""


class VecEnv(_Base):  # type: ignore[misc]  # its types are those of an optional package
    """Environments on every core, for the algorithms of Stable-Baselines3.

    Letters: ``N`` = num_envs. Observations are ``(N, *shape)`` in the dtype of their space, dicts
    or tuples of them for Dict and Tuple spaces; rewards ``(N,) float32``, dones ``(N,) bool``,
    infos a list of N dicts. All of them are private copies. A finished environment is reset within
    the step: its info then holds ``terminal_observation``, and ``reset_infos[i]`` what its reset
    reported. Every step's info says ``TimeLimit.truncated``.

    Where values differ from those of ``DummyVecEnv``: actions are cast to the dtype of the action
    space and checked, and whatever leaves an environment is a copy of it.

    Args:
        envs: N factories without arguments, each called once, in its worker; or an ``EnvPool``,
            which is then closed with this environment. With a pool that restarts what fails, the
            episode of a lost environment ends as truncated, and training goes on; its infos are
            the pool's, in which numbers are numpy scalars.
        **vector_kwargs: of factories only: ``num_workers``, ``start_timeout``, ``step_timeout``,
            ``threads_per_worker``, ``pin_workers`` and ``spin`` of ``VectorEnv``.

    Raises:
        TypeError, ValueError: wrong arguments, environments whose spaces differ.
        EnvError: a factory raised.
        WorkerDied, WorkerTimeout: a worker did not come up.
    """

    def __init__(self, envs: Sequence[EnvFn] | EnvPool, **vector_kwargs: Any) -> None:
        self._source: _Source
        allowed = frozenset() if isinstance(envs, EnvPool) else _VECTOR_ARGUMENTS
        if not vector_kwargs.keys() <= allowed:
            raise TypeError(
                f"arguments beyond envs must be among {sorted(allowed)}; "
                f"found {sorted(vector_kwargs)}"
            )
        self._source = (
            _PoolSource(envs) if isinstance(envs, EnvPool) else _OwnSource(envs, vector_kwargs)
        )
        access = self._source.access
        self.num_workers = access.num_workers
        self._is_stepping = False
        try:
            super().__init__(
                access.num_envs, access.single_observation_space, access.single_action_space
            )
            (self.metadata,) = self.get_attr("metadata", 0)
        except BaseException:
            access.close()
            raise

    @property
    def envs(self) -> RemoteEnvs:
        """A handle for each environment, which behaves like the environment itself."""
        return self._source.access.envs

    # Reset and step.

    def reset(self) -> Any:
        """Reset all environments, with what ``seed`` and ``set_options`` have left for it.

        A step that nobody has waited for is dropped.

        Returns:
            Observations ``(N, *shape)``; the infos are then in ``reset_infos``.

        Raises:
            EnvError, WorkerDied, WorkerTimeout: an environment or a worker failed.
        """
        if self._is_stepping:  # a step that nobody will wait for
            self._is_stepping = False
            with suppress(EnvError):
                self._source.receive()
        options = [each or None for each in self._options]
        observations, self.reset_infos = self._source.reset(self._seeds, options)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: Any) -> None:
        """Start a step of all environments.

        Args:
            actions: ``(N, *shape)``.

        Raises:
            TypeError, ValueError: wrong actions; no environment has moved.
            AlreadyPendingCallError: a step has been started already.
            ResetNeeded: an environment was never reset, or has failed.
        """
        self._source.send(actions)
        self._is_stepping = True

    def step_wait(self) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        """Wait for the step that was started.

        Returns:
            ``(observations, rewards, dones, infos)``.

        Raises:
            NoAsyncCallError: none was started.
            EnvError, WorkerDied, WorkerTimeout: an environment or a worker failed.
        """
        self._is_stepping = False
        step = self._source.receive()
        dones = step.terminations | step.truncations
        limited = (step.truncations & ~step.terminations).tolist()
        for info, is_limited in zip(step.infos, limited, strict=True):
            info[TIME_LIMIT] = is_limited
        for i in np.flatnonzero(dones).tolist():
            step.infos[i][TERMINAL_OBSERVATION] = step.final_observations[i]
            self.reset_infos[i] = step.reset_infos[i]
        return step.observations, step.rewards.astype(np.float32), dones, step.infos

    # Reaching into the environments.

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Copies of an attribute, found through wrappers; a handle for what cannot be copied."""
        return self._perform(indices, Operation(Verb.GET, (), attr_name))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of the outermost wrapper, as Stable-Baselines3 does.

        ``env_method("set_wrapper_attr", name, value)`` sets it where it is.
        """
        self._apply(indices, partial(set_outermost, name=attr_name, value=value), attr_name)

    def env_method(
        self, method_name: str, *args: Any, indices: Indices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method, found through wrappers, in all workers at once.

        Raises:
            BaseException: what an environment raised, with its own type where possible; the
                others have carried out their call.
        """
        arguments = snapshot.dumps_by_value((args, kwargs))
        return self._perform(indices, Operation(Verb.CALL, (), method_name, arguments))

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """Whether environments have a wrapper of this class, or of one derived from it."""
        # Stable-Baselines3 asks for its Monitor. The class itself would have every worker import
        # torch, so it is unpickled only where a class of its name is met.
        name = (wrapper_class.__module__, wrapper_class.__name__)
        test = partial(has_wrapper, class_name=name, pickled=snapshot.dumps_by_value(wrapper_class))
        return self._apply(indices, test, "env_is_wrapped")

    def get_images(self) -> list[Any]:
        """N frames; N Nones with a warning unless the render mode is ``"rgb_array"``."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f'frames need the render mode "rgb_array"; found {self.render_mode!r}', stacklevel=2
            )
            return [None] * self.num_envs
        return self.env_method("render")

    def _apply(self, indices: Indices, function: Any, name: str) -> list[Any]:
        operation = Operation(Verb.APPLY, (), name, snapshot.dumps_by_value(function))
        return self._perform(indices, operation)

    def _perform(self, indices: Indices, operation: Operation) -> list[Any]:
        """The operation's results in the order of the indices, which may repeat and be negative."""
        every = range(self._source.access.num_envs)
        rows = [every[i] for i in self._get_indices(indices)]
        results: list[Any] = []
        while rows:
            together = _distinct_beginning(rows)
            results += self._perform_together(together, operation)
            del rows[: len(together)]
        return results

    def _perform_together(self, rows: list[int], operation: Operation) -> list[Any]:
        access = self._source.access
        mask = np.zeros(access.num_envs, np.bool_)
        mask[rows] = True
        try:
            results = access._operate_all(mask, lambda i: operation)
        except EnvError as error:
            own = error.failures[0].exception
            if own is None:
                raise
        else:
            if operation.verb is Verb.CALL:
                for i in rows:
                    access._note_handle(i, operation)
            return [results[i] for i in rows]
        raise own  # its cause is the worker's traceback

    # The end.

    def close(self) -> None:
        """Close the environments and end the workers; a second call does nothing."""
        self._source.access.close()

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._source.access.__exit__(kind, error, traceback)


class _OwnSource:
    """Factories: a ``VectorEnv`` resets in the workers, within the step."""

    def __init__(self, env_fns: Sequence[EnvFn], vector_kwargs: dict[str, Any]) -> None:
        self.access = _RowInfos(env_fns, autoreset_mode=AutoresetMode.SAME_STEP, **vector_kwargs)

    def reset(
        self, seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None]
    ) -> tuple[Any, list[dict[str, Any]]]:
        observations, reports = self.access.reset(seed=seeds, options=options)
        return observations, reports["infos"]

    def send(self, actions: Any) -> None:
        self.access.step_async(actions)

    def receive(self) -> _Step:
        *batches, reports = self.access.step_wait()
        return _Step(*batches, **reports)


class _RowInfos(VectorEnv):
    """Tells what each environment reported instead of adding it up as Gymnasium does."""

    def _infos(self, done: Sequence[int], finished: Array) -> dict[str, Any]:
        parts: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i, role, value in values_of(self._engine.whole):
            parts[i][role] = value
        ended = frozenset(done)
        return {
            "infos": [
                part.get(Role.FINAL_INFO if i in ended else Role.INFO, {})
                for i, part in enumerate(parts)
            ],
            "final_observations": {
                i: parts[i][Role.FINAL_OBSERVATION]
                if Role.FINAL_OBSERVATION in parts[i]
                else self._final_observation(i)
                for i in done
            },
            "reset_infos": {i: parts[i].get(Role.INFO, {}) for i in done},
        }


class _PoolSource:
    """An ``EnvPool``: a step, then a masked reset of the environments that it finished."""

    def __init__(self, pool: EnvPool) -> None:
        if not pool._observed:
            raise ValueError("the pool must keep observations; found observations=False")
        self.access = pool

    def reset(
        self, seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None]
    ) -> tuple[Any, list[dict[str, Any]]]:
        observations, infos = self.access.reset(seed=seeds, options=options)
        return private_copy(observations), self._reported(infos, range(self.access.num_envs))

    def send(self, actions: Any) -> None:
        self.access.send(actions)

    def receive(self) -> _Step:
        pool = self.access
        observations, rewards, terminations, truncations, infos, _ = pool.recv()
        last = private_copy(observations)
        step_infos = self._reported(infos, range(pool.num_envs))
        reset_infos: dict[int, dict[str, Any]] = {}
        finished = terminations | truncations
        while finished.any():
            observations, infos = pool.reset(mask=finished)
            rows = np.flatnonzero(finished).tolist()
            reset_infos.update(zip(rows, self._reported(infos, rows), strict=True))
            # A worker that is lost in a reset takes along environments that had not finished.
            finished = np.array(infos.get("_restarted", np.zeros_like(finished)))
            finished[rows] = False
            truncations |= finished
        return _Step(
            private_copy(observations),
            rewards,
            terminations,
            truncations,
            step_infos,
            {i: _row(pool.single_observation_space, last, i) for i in reset_infos},
            reset_infos,
        )

    def _reported(self, infos: dict[str, Any], rows: Iterable[int]) -> list[dict[str, Any]]:
        """Copies of what these environments reported last."""
        companions = {f"_{key}" for key in infos}
        every = np.ones(self.access.num_envs, np.bool_)
        return [
            row_infos(
                {
                    key: value
                    for key, value in infos.items()
                    if key not in companions and infos.get(f"_{key}", every)[i]
                },
                i,
            )
            for i in rows
        ]


def _row(space: Space, batch: Any, i: int) -> Any:
    """Environment i's observation, a private copy."""
    parts = [private_copy(pick(batch, leaf.path)[i]) for leaf in leaves(space)]
    return assemble(space, parts)


def _distinct_beginning(rows: Sequence[int]) -> list[int]:
    """As many of the first rows as there are without a repetition."""
    seen: list[int] = []
    for row in rows:
        if row in seen:
            break
        seen.append(row)
    return seen
