"""The engine behind EnvPool: resets, steps and calls, one after the other.

Takes arguments that have been checked, carries commands out and returns the errors that
they met; what is raised and what is returned to a caller is decided by whoever drives it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from swm_async.actions import pickle_objects
from swm_async.backends.base import Lost, ShardRange
from swm_async.backends.interrupts import interrupts_held
from swm_async.diagnosis import env_error, info_error, lost_error, warn_of
from swm_async.errors import PoolError, name_environments
from swm_async.hosting import Hosting, InFlight
from swm_async.infos import LateRows
from swm_async.worker_stats import summed_up
from swm_workers import snapshot
from swm_workers.attributes import Operation, Result
from swm_workers.layout import Array
from swm_workers.protocol import (
    ALL,
    Built,
    Command,
    Failure,
    Problem,
    Report,
    ResetArguments,
)


class _Outcome(NamedTuple):
    """What went wrong in one exchange."""

    lost: Mapping[int, Lost]
    failures: Sequence[Failure]
    problems: Sequence[Problem]
    failed: Sequence[int]
    """Env indices whose environment raised, or took part and lost its worker."""


class Engine(Hosting):
    """``num_envs`` environments on the workers of a backend.

    Letters: ``N`` = num_envs. ``rows`` are ``(n,)`` ascending env indices, None = all.
    """

    def check_usable(self) -> None:
        """Raise if the engine is closed; deal with what an interrupted call left behind."""
        if self.closed_because is not None:
            raise ClosedEnvironmentError(f"this pool is closed: {self.closed_because}")
        if self._in_flight is not None:
            self._exchange.refuse_nesting()
            with interrupts_held():
                self._recover()
            # Before anything is written: workers may be about to read the mask and the actions.
            self._exchange.resynchronise(self._timeout_s)
            self._in_flight = None

    def check_ready(self, rows: Array | None) -> None:
        """Raise ``ResetNeeded`` if one of these rows cannot be stepped."""
        if not self._some_need_reset:
            return
        late = self.need_reset if rows is None else self.need_reset[rows]
        if late.any():
            indices = np.flatnonzero(late) if rows is None else rows[late]
            raise ResetNeeded(
                f"environments {indices.tolist()} need a reset before they can be stepped"
            )

    def reset(
        self,
        selected: Array | None,
        rows: Array | None,
        seeds: Sequence[int | None] | None,
        options: bytes | tuple[bytes | None, ...] | None,
    ) -> Sequence[PoolError]:
        """Reset the rows that a mask selects; both None = all, into new arrays."""
        rows = self._all_rows if rows is None else rows
        workers, flags = self._select(selected)
        arguments = self._reset_arguments(rows, workers, seeds, options)
        renewed = selected is None and self.store.has_reports
        self._in_flight = InFlight(workers, rows)
        if renewed:
            with interrupts_held():
                self.store.renew()
        self._note_resets(rows, seeds, options)
        replies = self._exchange.run(Command.RESET, workers, flags, arguments, self._timeout_s)
        if self._some_need_reset:
            self._some_need_reset = bool(self.need_reset.any())
        if not renewed and all(reply is None or reply.__class__ is tuple for reply in replies):
            self.whole = [reply for reply in replies if reply is not None]
            self.store.has_reports = True
            self._in_flight = None
            return ()
        outcome = self._digest(rows, workers, replies, renewed=renewed)
        errors = self._judge("reset", rows, outcome)
        self._some_need_reset = bool(self.need_reset.any())
        if not errors and outcome.failed:
            # What failed was built anew: the same reset once more, for these rows.
            again = np.zeros(self.num_envs, np.bool_)
            again[rows] = self.need_reset[rows]
            return self.reset(again, np.flatnonzero(again), seeds, options)
        return errors

    def step(
        self,
        selected: Array | None,
        rows: Array | None,
        objects: Sequence[tuple[Any, ...]] | None,
    ) -> Sequence[PoolError]:
        """Step the rows that a mask selects, with the actions in shared memory.

        ``objects`` are the action leaves of these rows that are not in shared memory.
        """
        if rows is None:
            in_flight, flags = self._all_in_flight, self._all_step_flags
        else:
            chosen, flags = self._select(selected, self._resets)
            in_flight = InFlight(chosen, rows)
        workers, taken = in_flight
        arguments = None if objects is None else self._object_arguments(taken, workers, objects)
        if self._recorder.with_actions:
            self._recorder.add(self.action_space, taken, self.control.actions, objects)
        self._in_flight = in_flight
        replies = self._exchange.run(Command.STEP, workers, flags, arguments, self._timeout_s)
        if rows is None:
            self._steps_of_all += 1
        else:
            self.episode_steps[rows] += 1
        errors: Sequence[PoolError] = ()
        self.whole = []
        for reply in replies:
            if reply is not None and reply.__class__ is not tuple:
                errors = self._judge("step", taken, self._digest(taken, workers, replies))
                break
        else:
            self.whole = [reply for reply in replies if reply is not None]
        self._in_flight = None
        if self.restarts is not None:
            self.restarts.note_finished(taken, self.control.terminateds, self.control.truncateds)
        return errors

    def operate(
        self, operations: Mapping[int, Operation]
    ) -> tuple[dict[int, Result], list[PoolError]]:
        """Carry out one operation in each of these environments, in parallel."""
        arguments: dict[int, dict[int, Operation]] = {}
        for i, operation in operations.items():
            w = int(self._worker_of[i])
            arguments.setdefault(w, {})[i - self.shards[w].first] = operation
        workers = list(arguments)
        self.put_in_doubt(workers)
        replies = self._exchange.run(
            Command.CALL, workers, [0] * len(workers), arguments, self._timeout_s
        )
        self._in_flight = None
        pairs = list(zip(workers, replies, strict=True))
        results: dict[int, Result] = {}
        failures: list[Failure] = []
        for w, returned in pairs:
            if isinstance(returned, Lost):
                continue
            for k, data in zip(arguments[w], returned.results, strict=True):
                if data is not None:
                    results[self.shards[w].first + k] = snapshot.loads(data)
            failures += returned.failures
        lost = {w: reply for w, reply in pairs if isinstance(reply, Lost)}
        rows = np.array([i for w in lost for i in self.shards[w].indices if i in operations], int)
        self.need_reset[rows] = True
        return results, self._judge("call", rows, _Outcome(lost, failures, [], rows.tolist()))

    def ask_all(self, kind: Command, arguments: Any = None) -> list[Any]:
        """Send every worker a command that moves no environment; returns what they reply."""
        workers = list(self._all_workers)
        self.put_in_doubt(workers)
        bodies = None if arguments is None else dict.fromkeys(workers, arguments)
        replies = self._exchange.run(kind, workers, [0] * len(workers), bodies, self._timeout_s)
        self._in_flight = None
        return replies

    def stats(self) -> dict[str, Any]:
        """What each worker has done so far; see ``EnvPool.stats``."""
        figures = summed_up(self.ask_all(Command.STATS), self.shards)
        figures["restarts"] = self._restarts_of_workers.copy()
        figures["extra_keys"] = dict(self.store.extra_bytes)
        return figures

    def put_in_doubt(self, workers: Sequence[int], rows: Array | None = None) -> None:
        """Should the call be interrupted from here on, these workers' replies may be lost.

        The rows, None = none, need a reset then in any case.
        """
        if self.closed_because is not None:
            raise ClosedEnvironmentError(f"this pool was closed meanwhile: {self.closed_because}")
        self._in_flight = InFlight(workers, self._all_rows[:0] if rows is None else rows)

    def note_reset(self, env_index: int, seed: int | None) -> None:
        """An environment was reset by another way than ``reset``."""
        if seed is not None:
            self.seeds[env_index] = seed
        self.need_reset[env_index] = False
        self._some_need_reset = bool(self.need_reset.any())
        self.episode_steps[env_index] = 0

    def _note_resets(
        self,
        rows: Array,
        seeds: Sequence[int | None] | None,
        options: bytes | tuple[bytes | None, ...] | None,
    ) -> None:
        """These rows are about to be reset."""
        if seeds is not None:
            for i in rows.tolist():
                self.seeds[i] = self.seeds[i] if seeds[i] is None else seeds[i]
        self._recorder.begin(rows, seeds, options)
        self._note_repeated(rows)

    def _note_repeated(self, rows: Array) -> None:
        """These rows are about to be reset as they were before."""
        self.need_reset[rows] = False
        self.episode_steps[rows] = 0
        if self.restarts is not None:
            self.restarts.lost_state[rows] = False

    def _reset_arguments(
        self,
        rows: Array,
        workers: Sequence[int],
        seeds: Sequence[int | None] | None,
        options: bytes | tuple[bytes | None, ...] | None,
    ) -> dict[int, ResetArguments] | None:
        if seeds is None and options is None:
            return None
        asked = rows.tolist()
        return {w: _of_shard(asked, self.shards[w], seeds, options) for w in workers}

    def _object_arguments(
        self, rows: Array, workers: Sequence[int], objects: Sequence[tuple[Any, ...]]
    ) -> dict[int, bytes]:
        hosts = self._worker_of[rows]
        return {
            w: pickle_objects([objects[j] for j in np.flatnonzero(hosts == w).tolist()])
            for w in workers
        }

    def _select(
        self, selected: Array | None, resets: int = 0
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Which workers to ask, with which flags; writes the mask where it is needed."""
        if selected is None:
            return self._all_workers, self._all_flags
        raw = selected.tobytes()
        workers, flags = [], []
        for w, (first, last) in enumerate(self.shards):
            taking_part = raw.count(1, first, last)
            if taking_part:
                workers.append(w)
                flags.append(resets | (ALL if taking_part == last - first else 0))
        self.control.mask[...] = selected
        return workers, flags

    def _digest(
        self,
        rows: Array,
        workers: Sequence[int],
        replies: Sequence[Any],
        *,
        renewed: bool = False,
        late: Sequence[LateRows] = (),
    ) -> _Outcome:
        """Take in everything that the replies say."""
        pairs = list(zip(workers, replies, strict=True))
        reports = [reply for _, reply in pairs if isinstance(reply, Report)]
        lost = {w: reply for w, reply in pairs if isinstance(reply, Lost)}
        failures = [failure for report in reports for failure in report.failures]
        self.whole = [report.whole for report in reports if any(report.whole)]
        self.whole += [reply for reply in replies if reply.__class__ is tuple]
        failed = {failure.env_index for failure in failures}
        failed |= {i for w in lost for i in rows.tolist() if i in self.shards[w].indices}
        if failed:
            self._void(sorted(failed))
        reported = [i for i in rows.tolist() if i not in failed]
        # Growing half a layout would be worse than a Ctrl-C that comes a moment later.
        with interrupts_held():
            if renewed:
                self.store.settle(sorted(failed))
            problems = self.store.absorb(reports, reported, late, self._moving_rows())
            self._in_flight = None
        return _Outcome(lost, failures, problems, sorted(failed))

    def _moving_rows(self) -> Sequence[int]:
        """Rows that a worker may be writing at this moment."""
        return ()

    def _void(self, failed: list[int]) -> None:
        """Rows whose environment failed: reward 0, flags False, a reset is needed."""
        self.need_reset[failed] = True
        self._some_need_reset = True
        self.control.rewards[failed] = 0.0
        self.control.terminateds[failed] = False
        self.control.truncateds[failed] = False

    def _judge(self, command: str, rows: Array, outcome: _Outcome) -> list[PoolError]:
        """Turn what went wrong into errors, or mend it where restarts are allowed."""
        causes: list[PoolError] = []
        if outcome.lost:
            hosts = [(self.shards[w], lost) for w, lost in outcome.lost.items()]
            # Of what took part in the command; a worker that dies in a call repeats nothing.
            repeat = [
                i for i in outcome.failed for w in outcome.lost if i in self.shards[w].indices
            ]
            advice = [self._recorder.advice(i) for i in repeat if command != "call"]
            causes.append(lost_error(hosts, command, "\n".join(advice)))
        if outcome.failures:
            first = outcome.failures[0].env_index
            advice = [self._recorder.advice(first)] if command != "call" else []
            causes.append(
                env_error(outcome.failures, self.seeds, self.episode_steps, "\n".join(advice))
            )
        if causes and self.restarts is not None:
            causes = self._mend(command, rows, outcome, causes)
        elif outcome.lost:
            self._give_up(causes[0])
        if outcome.problems:
            causes.append(info_error(outcome.problems, command, self.seeds, self.episode_steps))
        return causes

    def _mend(
        self, command: str, rows: Array, outcome: _Outcome, causes: list[PoolError]
    ) -> list[PoolError]:
        """Build anew what failed; returns no errors if that was possible."""
        restarts = self.restarts
        if restarts is None:
            raise AssertionError("there is nothing to mend without restarts")
        broken = sorted(
            {f.env_index for f in outcome.failures if command != "call"}
            | {i for w in outcome.lost for i in self.shards[w].indices}
        )
        if not restarts.allow(outcome.failed):
            if outcome.lost:
                self._give_up(causes[0])
            return causes
        # Before they are: an interrupt may come while they are built.
        self.need_reset[broken] = True
        self._some_need_reset = self._some_need_reset or bool(broken)
        restarts.lost_state[broken] = True
        errors = self._rebuild(outcome.lost, [i for i in broken if i in set(outcome.failed)])
        if errors:
            self._give_up(errors[0])
            return errors
        if command == "step":
            self.control.truncateds[np.intersect1d(broken, rows)] = True
        anew = f"{name_environments(broken)} built anew after " if broken else ""
        self.store.notes += [f"{anew}{cause}" for cause in causes]
        return []

    def _rebuild(self, lost: Mapping[int, Lost], broken: Sequence[int]) -> list[PoolError]:
        """Start lost workers again, and build broken environments of living ones anew."""
        results: list[tuple[ShardRange, Built | Lost]] = []
        for w in lost:
            self._restarts_of_workers[w] += 1
            self._exchange.forget(w)
            results.append((self.shards[w], self._backend.replace(w, self._start_deadline())))
        by_worker: dict[int, list[int]] = {}
        for i in broken:
            w = int(self._worker_of[i])
            if w not in lost:
                by_worker.setdefault(w, []).append(i - self.shards[w].first)
                self._restarts_of_workers[w] += 1
        if by_worker:
            workers = list(by_worker)
            self._in_flight = InFlight(workers, self._all_rows[:0])
            replies = self._exchange.run(
                Command.REBUILD, workers, [0] * len(workers), by_worker, self._start_timeout_s
            )
            self._in_flight = None
            results += [(self.shards[w], r) for w, r in zip(workers, replies, strict=True)]
        failures = [f for _, r in results if isinstance(r, Built) for f in r.failures]
        gone = [(shard, r) for shard, r in results if isinstance(r, Lost)]
        errors: list[PoolError] = []
        if gone:
            errors.append(lost_error(gone, "construction"))
        if failures:
            errors.append(env_error(failures, None, None))
        return errors

    def _give_up(self, error: PoolError) -> None:
        """Without one of its workers the engine is closed for good."""
        warn_of(self.close(10.0, str(error).splitlines()[0]))

    def _recover(self) -> None:
        """The call before this one was interrupted: its rows are in an unknown state."""
        doubt = self._in_flight
        if doubt is not None:
            self._exchange.distrust(doubt.workers)
            self.need_reset[doubt.rows] = True
            self._some_need_reset = bool(self.need_reset.any())


def _of_shard(
    rows: list[int],
    shard: ShardRange,
    seeds: Sequence[int | None] | None,
    options: bytes | tuple[bytes | None, ...] | None,
) -> ResetArguments:
    inside = rows[bisect_left(rows, shard.first) : bisect_left(rows, shard.last)]
    return (
        None if seeds is None else tuple([seeds[i] for i in inside]),
        tuple([options[i] for i in inside]) if isinstance(options, tuple) else options,
    )
