"""The environments of one worker: reset, step and call those that are asked.

Writes rewards, flags, observations and infos into the blocks it was given and returns a
report of what has no place there. Knows nothing of pipes and processes, so the same class
serves the pool that keeps its environments in the caller's process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from swm_workers import snapshot
from swm_workers.attributes import Operation, perform
from swm_workers.failures import capture
from swm_workers.infos import InfoWriter
from swm_workers.layout import Layout
from swm_workers.protocol import (
    NEXT_STEP,
    SAME_STEP,
    Failure,
    Report,
    ResetArguments,
    Returned,
    Role,
    Whole,
    WorkerStats,
)
from swm_workers.spaces import Control, Leaf, assemble, control_views, leaves, pick, same_space
from swm_workers.step_times import SAMPLED_EVERY, StepTimes
from swm_workers.whole_infos import WholeInfos

_REALS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_})
_ndarray = np.ndarray


class Shard:
    """Environments ``first`` … ``first + len(env_fns) - 1`` of a pool of ``num_envs``.

    Rows are counted from 0 within the shard: row ``k`` is environment ``first + k``.
    """

    def __init__(
        self, first: int, num_envs: int, *, in_process: bool, whole_infos: bool = False
    ) -> None:
        self.first = first
        self.num_envs = num_envs
        self.envs: list[Any] = []
        self.all: Sequence[int] = ()
        """All rows."""
        self.steps_done = 0
        self.times = StepTimes(0)
        self._timed_steps: list[Callable[[Any], Any]] = []
        self._until_sampled = 0
        self._in_process = in_process
        self._env_fns: tuple[Callable[[], Any], ...] = ()
        self._steps: list[Callable[[Any], Any]] = []
        self._infos: InfoWriter | WholeInfos
        self._are_infos_whole = whole_infos
        self._whole_infos: WholeInfos | None = None
        self._control: Control
        self._action_leaves: tuple[Leaf, ...] = ()
        self._observation_leaves: tuple[Leaf, ...] = ()
        self._observation_rows: list[list[Any] | None] = []
        self._observe: bool = False
        self._final_box: Any = None
        self._only_action: Any = None
        self._failures: list[Failure] = []
        self._some_flags = True
        """Whether any flag of a row may be set."""
        self._objects: list[tuple[int, int, bytes]] = []

    def build(self, env_fns: Iterable[Callable[[], Any]]) -> tuple[Failure, ...]:
        """Call every factory once; stops at the first that raises and returns its failure."""
        self._env_fns = tuple(env_fns)
        for env_fn in self._env_fns:
            index = self.first + len(self.envs)
            try:
                env = env_fn()
                self._check(env)
            except BaseException as error:  # user code: SystemExit counts as a failure too
                self._reraise_interrupt(error)
                return (capture(index, "build", error),)
            self.envs.append(env)
        self._steps = [env.step for env in self.envs]
        self.times = StepTimes(len(self.envs))
        self._timed_steps = [self.times.timed(k, step) for k, step in enumerate(self._steps)]
        self._action_leaves = leaves(self.envs[0].action_space)
        self._observation_leaves = leaves(self.envs[0].observation_space)
        if self._are_infos_whole:
            self._infos = self._whole_infos = WholeInfos(self.first, len(self.envs))
        else:
            self._infos = InfoWriter(self.first, len(self.envs))
        self._ended = [False] * len(self.envs)
        self.all = range(len(self.envs))
        return ()

    def rebuild(self, rows: Sequence[int]) -> tuple[Failure, ...]:
        """Close these environments and make them anew; returns the factories' failures."""
        failures: list[Failure] = []
        self._some_flags = True  # the pool calls what was broken truncated
        for k in rows:
            try:
                self.envs[k].close()
            except BaseException as error:  # it has failed before: that error is the one told
                self._reraise_interrupt(error)
            try:
                env = self._env_fns[k]()
                self._check(env)
            except BaseException as error:  # user code: SystemExit counts as a failure too
                self._reraise_interrupt(error)
                failures.append(capture(self.first + k, "build", error))
                continue
            self.envs[k] = env
            self._steps[k] = env.step
            self._timed_steps[k] = self.times.timed(k, env.step)
            self._ended[k] = False
        return tuple(failures)

    def _check(self, env: Any) -> None:
        for name in ("reset", "step", "action_space", "observation_space"):
            if not hasattr(env, name):
                raise TypeError(
                    f"the factory must return a Gymnasium environment; it returned a "
                    f"{type(env).__qualname__}, which has no {name!r}"
                )
        if any(env is other for other in self.envs):
            raise ValueError("the factory returned an object that another factory returned")

    def mismatch(self) -> tuple[int, str, str, str] | None:
        """The first environment whose spaces differ from those of the shard's first one."""
        reference = self.envs[0]
        for k, env in enumerate(self.envs):
            for name in ("action_space", "observation_space"):
                expected, found = getattr(reference, name), getattr(env, name)
                if not same_space(expected, found):
                    return self.first + k, name, repr(expected), repr(found)
        return None

    def spaces(self) -> bytes:
        """Pickled ``(action_space, observation_space)`` of the shard's first environment."""
        return snapshot.dumps((self.envs[0].action_space, self.envs[0].observation_space))

    def bind(self, layout: Layout, buffers: Mapping[int, Any]) -> None:
        """Write under another layout from now on."""
        first, last = self.first, self.first + len(self.envs)
        control = control_views(buffers[layout.control], layout.form, self._action_leaves)
        self._control = Control(
            control.mask[first:last],
            control.rewards[first:last],
            control.terminateds[first:last],
            control.truncateds[first:last],
            tuple(None if part is None else part[first:last] for part in control.actions),
        )
        # Items of a memoryview are assigned at half the cost of those of an array.
        self._rewards: Any = memoryview(self._control.rewards)  # type: ignore[arg-type]  # ndarray has the buffer protocol
        self._terminateds = memoryview(self._control.terminateds)  # type: ignore[arg-type]  # as above
        self._truncateds = memoryview(self._control.truncateds)  # type: ignore[arg-type]  # as above
        self._observation_rows = []
        for slot in layout.observations:
            if slot is None:
                self._observation_rows.append(None)
                continue
            block, offset = buffers[slot.place.block], slot.place.offset
            array: Any = np.ndarray((self.num_envs, *slot.shape), slot.dtype, block, offset)
            self._observation_rows.append([array[i, ...] for i in range(first, last)])
        self._observe = bool(layout.observations)
        # A Dict or Tuple space may have no leaves at all.
        whole = [leaf for leaf in self._observation_leaves if leaf.path == ()]
        is_box = self._observe and any(leaf.dtype is not None and leaf.shape for leaf in whole)
        box = self._observation_rows[0] if is_box else [None] * (last - first)
        self._final_box = self._observation_rows[-1] if is_box else None
        form = (whole[0].dtype, whole[0].shape) if is_box else (None, None)
        acted = [leaf for leaf in self._action_leaves if leaf.path == ()]
        self._only_action = self._control.actions[0] if acted else None
        self._is_scalar_box = bool(acted) and acted[0].is_scalar_box
        self._infos.bind(layout, buffers)
        # What every step needs, unpacked at once.
        self._hot = (
            self._steps, self._infos, self._infos.settled,
            self._rewards, self._terminateds, self._truncateds,
        )  # fmt: skip
        self._hot_observations = (box, *form, self._ended)
        self._no_flags = memoryview(np.zeros(last - first, np.bool_))  # type: ignore[arg-type]  # as above

    def forget(self) -> None:
        """Rely on nothing that was reported before: replies may have been lost."""
        self._failures, self._objects = [], []
        self._infos.forget()

    def selected(self) -> list[int]:
        """The rows that the mask in shared memory selects."""
        return list(compress(range(len(self.envs)), self._control.mask.tobytes()))

    def reset(self, rows: Sequence[int], arguments: ResetArguments | None) -> Report | Whole | None:
        """Reset these rows; seeds and options are given by position in ``rows``."""
        seeds, options = arguments if arguments is not None else (None, None)
        for j, k in enumerate(rows):
            try:
                chosen = options[j] if isinstance(options, tuple) else options
                observation, info = self.envs[k].reset(
                    seed=None if seeds is None else seeds[j],
                    options=None if chosen is None else snapshot.loads(chosen),
                )
                self._ended[k] = False
                self._place_observation(k, observation)
                self._infos.write_fresh(k, info)
            except BaseException as error:  # user code: SystemExit counts as a failure too
                self._fail(k, "reset", error)
        return self._report()

    def step(
        self, rows: Sequence[int], pickled_objects: bytes | None, flags: int = 0
    ) -> Report | Whole | None:
        """Step these rows with the actions in shared memory.

        The flags ``SAME_STEP`` and ``NEXT_STEP`` ask for resets of what finishes.

        ``pickled_objects`` holds, for each of ``rows``, a pickled tuple of the action leaves
        that have no dtype; None where the action space has no such leaves.
        """
        objects = None
        if pickled_objects is not None:
            rows, objects = self._load_objects(rows, pickled_objects)
        steps, infos, settled, rewards, terminateds, truncateds = self._hot
        box, dtype, shape, ended = self._hot_observations
        if self._until_sampled:
            self._until_sampled -= 1
        else:
            self._until_sampled = SAMPLED_EVERY - 1
            steps = self._timed_steps
        resets = flags & (SAME_STEP | NEXT_STEP)
        some_ended = resets == NEXT_STEP and True in ended
        if self._some_flags:
            self._clear_flags(rows)
        if rows is not self.all:
            steps, box = [steps[k] for k in rows], [box[k] for k in rows]
        actions = self._actions(rows, objects)
        for k, action, step, place in zip(rows, actions, steps, box, strict=True):
            try:
                if some_ended and ended[k]:
                    self._reset_instead(k)
                    continue
                observation, reward, terminated, truncated, info = step(action)
                # One class is compared sooner than it is found among some.
                is_real = reward.__class__ is float or reward.__class__ in _REALS
                rewards[k] = reward if is_real else _real(reward)
                if terminated is not False or truncated is not False:
                    self._some_flags = True
                    terminateds[k] = terminated = _flag(terminated, "terminated")
                    truncateds[k] = truncated = _flag(truncated, "truncated")
                    if resets and (terminated or truncated):
                        if resets == NEXT_STEP:
                            ended[k] = True
                        else:
                            self._keep_final(k, observation, info)
                            observation, info = self.envs[k].reset()
                if (
                    observation.__class__ is _ndarray
                    and observation.dtype is dtype
                    and observation.shape == shape
                ):
                    place[...] = observation
                elif self._observe:
                    self._write_observation(k, observation)
                if info or not settled[k] or info.__class__ is not dict:
                    infos.write(k, info)
            except BaseException as error:  # user code: SystemExit counts as a failure too
                rewards[k], terminateds[k], truncateds[k] = 0.0, False, False
                self._fail(k, "step", error)
        self.steps_done += len(rows)
        return self._report()

    def _clear_flags(self, rows: Sequence[int]) -> None:
        if rows is self.all:
            self._terminateds[:] = self._truncateds[:] = self._no_flags
            self._some_flags = False
            return
        for k in rows:
            self._terminateds[k] = self._truncateds[k] = False

    def stats(self, busy_s: float, waiting_s: float) -> WorkerStats:
        """What was done so far, with the seconds that its host has counted."""
        times = self.times
        return WorkerStats(self.steps_done, busy_s, waiting_s, times.mean_s(), times.worst_s())

    def _reset_instead(self, k: int) -> None:
        """The environment has finished in its last step: this one is its reset."""
        observation, info = self.envs[k].reset()
        self._ended[k] = False
        self._rewards[k], self._terminateds[k], self._truncateds[k] = 0.0, False, False
        self._place_observation(k, observation)
        self._infos.write_fresh(k, info)

    def _keep_final(self, k: int, observation: Any, info: Any) -> None:
        """Save what the reset within this step is about to hide.

        A final observation lies in a slot of its own where it can be had back exactly.
        """
        if self._whole_infos is None:
            raise AssertionError("resets within a step are for infos that travel whole")
        if info:
            self._whole_infos.add(k, Role.FINAL_INFO, info)
        if not self._write_exactly(k, observation):
            self._whole_infos.add(k, Role.FINAL_OBSERVATION, observation)

    def _write_exactly(self, k: int, observation: Any) -> bool:
        if self._is_usual(observation):
            self._final_box[k][...] = observation
            return True
        count = len(self._observation_leaves)
        targets = self._observation_rows[count:]
        parts = []
        for leaf, rows in zip(self._observation_leaves, targets, strict=True):
            part = pick(observation, leaf.path)
            same = part.__class__ is np.ndarray and part.dtype == leaf.dtype
            if rows is None or not same or part.shape != leaf.shape:
                return False
            parts.append(part)
        if any(leaf.path for leaf in self._observation_leaves) and type(observation) not in (
            dict,
            tuple,
        ):
            return False
        for part, rows in zip(parts, targets, strict=True):
            if rows is not None:
                rows[k][...] = part
        return True

    def call(self, rows: Sequence[int], operations: Sequence[Operation]) -> Returned:
        """Carry out one operation for each of these rows."""
        results: list[bytes | None] = []
        for k, operation in zip(rows, operations, strict=True):
            try:
                results.append(perform(self.envs[k], operation))
            except BaseException as error:  # user code: SystemExit counts as a failure too
                results.append(None)
                self._fail(k, "call", error)
        failures, self._failures = tuple(self._failures), []
        return Returned(tuple(results), failures)

    def close(self) -> Returned:
        """Close every environment; one that raises does not keep the others open."""
        for k, env in enumerate(self.envs):
            try:
                if hasattr(env, "close"):
                    env.close()
            except BaseException as error:  # user code: SystemExit counts as a failure too
                self._fail(k, "close", error)
        self.envs, self._steps, self._timed_steps = [], [], []
        failures, self._failures = tuple(self._failures), []
        return Returned((), failures)

    def _actions(
        self, rows: Sequence[int], objects: Sequence[tuple[Any, ...]] | None
    ) -> Iterable[Any]:
        """One action for each row, in memory of its own: an environment may keep it."""
        only = self._only_action
        if only is not None:
            # Iterating gives numpy scalars for Discrete, arrays for everything else.
            taken: Iterable[Any] = only.copy() if len(rows) == len(only) else only[list(rows)]
            # Indexing a Box of shape () gives scalars too, where arrays are wanted.
            return [np.array(action) for action in taken] if self._is_scalar_box else taken
        return self._nested_actions(rows, objects)

    def _load_objects(
        self, rows: Sequence[int], pickled: bytes
    ) -> tuple[list[int], list[tuple[Any, ...]]]:
        """The rows whose objects can be rebuilt, and these: each its own, shared by no two."""
        loaded: list[int] = []
        objects: list[tuple[Any, ...]] = []
        for k, data in zip(rows, snapshot.loads(pickled), strict=True):
            try:
                objects.append(snapshot.loads(data))
                loaded.append(k)
            except BaseException as error:  # a class's own reconstruction may raise anything
                self._fail(k, "step", error)
        return loaded, objects

    def _nested_actions(
        self, rows: Sequence[int], objects: Sequence[tuple[Any, ...]] | None
    ) -> Iterator[Any]:
        space = self.envs[0].action_space
        for j, k in enumerate(rows):
            given = iter(objects[j]) if objects is not None else iter(())
            yield assemble(
                space,
                [
                    next(given)
                    if part is None
                    else np.array(part[k])
                    if leaf.is_scalar_box
                    else part[k].copy()
                    for leaf, part in zip(self._action_leaves, self._control.actions, strict=True)
                ],
            )

    def _place_observation(self, k: int, observation: Any) -> None:
        if self._is_usual(observation):
            self._hot_observations[0][k][...] = observation
        elif self._observe:
            self._write_observation(k, observation)

    def _is_usual(self, observation: Any) -> bool:
        """Whether it can be copied as it is; a step asks the same without this call."""
        _, dtype, shape, _ = self._hot_observations
        return (
            observation.__class__ is _ndarray
            and observation.dtype is dtype
            and bool(observation.shape == shape)
        )

    def _write_observation(self, k: int, observation: Any) -> None:
        for number, leaf in enumerate(self._observation_leaves):
            part = pick(observation, leaf.path)
            rows = self._observation_rows[number]
            if rows is None:
                try:
                    data = snapshot.dumps(part)
                except Exception as error:
                    raise TypeError(
                        f"observation{leaf.name} cannot be pickled: "
                        f"{type(part).__qualname__} ({error})"
                    ) from error
                self._objects.append((self.first + k, number, data))
                continue
            array = np.asarray(part)
            if array.shape != leaf.shape:
                raise _wrong_shape(leaf, array.shape)
            np.copyto(rows[k], array, casting="same_kind")  # as SyncVectorEnv does

    def _fail(self, k: int, command: str, error: BaseException) -> None:
        self._reraise_interrupt(error)
        self._failures.append(capture(self.first + k, command, error))

    def _reraise_interrupt(self, error: BaseException) -> None:
        """In the caller's process Ctrl-C belongs to the caller, not to an environment."""
        if self._in_process and isinstance(error, KeyboardInterrupt):
            raise error

    def _report(self) -> Report | Whole | None:
        if not (self._failures or self._objects or self._infos.has_news()):
            return None
        extras, missing, problems = self._infos.take()
        if self._whole_infos is None:
            whole: Whole = (), (), {}
        else:
            whole = self._whole_infos.take_parts()
            if not (self._failures or self._objects or problems):
                return whole
        failures, self._failures = tuple(self._failures), []
        objects, self._objects = tuple(self._objects), []
        return Report(extras, missing, objects, problems, failures, whole)


def _real(value: Any) -> float:
    """A reward as a Python float; arrays of shape ``()`` and ``(1,)`` will do."""
    scalar = _only_entry(value, "reward")
    if not isinstance(scalar, (int, float)):
        raise TypeError(f"reward must be a real number; found {type(value).__qualname__}")
    return float(scalar)


def _flag(value: Any, name: str) -> bool:
    """A flag as a Python bool; integers 0 and 1 and arrays of one flag will do."""
    if value.__class__ is bool:
        return bool(value)
    scalar = _only_entry(value, name)
    if not isinstance(scalar, (int, float)) or scalar not in (0, 1):
        raise TypeError(f"{name} must be a bool; found {type(value).__qualname__} {scalar!r}")
    return bool(scalar)


def _only_entry(value: Any, name: str) -> Any:
    array = np.asarray(value)
    if array.shape not in ((), (1,)):
        raise ValueError(f"{name} must be a scalar; found an array of shape {array.shape}")
    return array.reshape(()).item()


def _wrong_shape(leaf: Leaf, found: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"observation{leaf.name} has another shape than its space: "
        f"expected {leaf.shape}, found {found}"
    )
