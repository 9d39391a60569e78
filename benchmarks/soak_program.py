"""Random calls to one pool, and faults in the middle of them; a plain loop says what is right."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from gymnasium.error import NoAsyncCallError, ResetNeeded
from soak_environment import FATAL, Walker
from soak_reference import Reference, demand

from swm_async import EnvError, EnvPool, WorkerDied, WorkerTimeout

HANG_S = 60.0
"""Seconds after which a call counts as hanging; some wait for a timeout and a restart."""
STEP_TIMEOUT_S = 2.0
"""Long enough for a busy machine, short enough for a soak with many stopped workers."""
START_TIMEOUT_S = 20.0
CALLS = 400
"""At most so many in a program."""


class Interrupter:
    """Strikes once, a little later, from another thread: by a signal to this or that process."""

    def __init__(self) -> None:
        self.armed_for_us = False
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: Any) -> None:
        # One that comes late, when the call has returned, is for nobody.
        if self.armed_for_us:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def striking(self, blow: Callable[[], None] | None, delay_s: float) -> Iterator[None]:
        """Let a blow fall within or shortly after the body."""
        if blow is None:
            yield
            return
        timer = threading.Timer(delay_s, blow)
        timer.start()
        try:
            self.armed_for_us = True
            yield
        finally:
            self.armed_for_us = False
            timer.join()


class Program:
    """One pool, the plain loop beside it, and calls drawn at random."""

    def __init__(self, rng: random.Random, counts: Counter[str], interrupter: Interrupter) -> None:
        self.rng = rng
        self.counts = counts
        self.interrupter = interrupter
        self.num_envs = rng.randint(1, 6)
        self.num_workers = rng.choice([0, 1, 2, self.num_envs])
        self.num_workers = min(self.num_workers, self.num_envs)
        self.restarts = rng.random() < 0.6
        self.timeout_s = STEP_TIMEOUT_S if rng.random() < 0.5 and self.num_workers else None
        self.violence = rng.choice([0.0, 0.05, 0.2, 0.5])
        self.rate = rng.choice([300.0, 3000.0])
        self.reference = Reference(self.num_envs)
        self.hit: set[int] = set()
        """Rows whose worker was struck, or that failed by themselves, and may be lost."""
        self.pids: list[int] | None = None
        self.log: deque[str] = deque(maxlen=6)
        self.under_attack = False
        """Whether something happened during, or right after, the last call."""

    def __str__(self) -> str:
        return (
            f"{self.num_envs} environments, {self.num_workers} workers, "
            f"{'restart' if self.restarts else 'raise'}, timeout {self.timeout_s}, "
            f"violence {self.violence}"
        )

    def run(self, ends: float) -> None:
        """Carry out the program, or as much of it as there is time for.

        Args:
            ends: by ``time.monotonic``.
        """
        pool = self._build()
        if pool is None:
            return
        try:
            for _ in range(self.rng.randint(1, CALLS)):
                kind = self.rng.choices(
                    [self._reset, self._step, self._send, self._call, self._complain],
                    [2, 8, 2, 2, 0.3],
                )[0]
                if not self._guarded(kind, pool) or time.monotonic() >= ends:
                    break
        finally:
            self._close(pool)
        self.counts["programs"] += 1

    def _build(self) -> EnvPool | None:
        blow = self._interrupt if self.rng.random() < self.violence / 2 else None
        factories = [partial(Walker, i) for i in range(self.num_envs)]
        try:
            with self.interrupter.striking(blow, self.rng.uniform(0, 1.5)):
                return EnvPool(
                    factories,
                    num_workers=self.num_workers,
                    on_failure="restart" if self.restarts else "raise",
                    step_timeout=self.timeout_s,
                    start_timeout=START_TIMEOUT_S,
                    max_restarts=self.rng.choice([1, 1000]),
                )
        except KeyboardInterrupt:
            self.counts["interrupted starts"] += 1
            return None

    def _close(self, pool: EnvPool) -> None:
        blow = self._interrupt if self.rng.random() < self.violence / 2 else None
        try:
            with self.interrupter.striking(blow, self.rng.expovariate(100)):
                pool.close()
        except KeyboardInterrupt:
            pool.close()
        demand(pool.closed, "a closed pool says that it is open")

    def _guarded(self, call: Callable[[EnvPool], None], pool: EnvPool) -> bool:
        """Carry out one call under fire; False = the pool is closed."""
        try:
            if self.num_workers and self.pids is None:
                self.pids = self._ask_pids(pool)
            call(pool)
        except (WorkerDied, WorkerTimeout) as error:
            self.counts[type(error).__name__] += 1
            demand(bool(self.hit & set(error.env_indices)), f"nobody has struck: {error}")
            demand(pool.closed, f"the pool goes on after {error}")
            return False
        return not pool.closed

    # Faults.

    def _blow(self) -> Callable[[], None] | None:
        """What will happen during the next call, mostly nothing."""
        if self.rng.random() >= self.violence:
            return None
        kinds: list[Callable[[], None]] = [self._interrupt]
        if self.num_workers and self.pids is not None:
            kinds += [self._kill, self._kill, self._hold_up]
            if self.timeout_s is not None:
                kinds.append(self._stop)
        return self.rng.choice(kinds)

    def _ask_pids(self, pool: EnvPool) -> list[int] | None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pids = pool.call("pid")
        self._note_lost(pool.infos)
        return None if caught or None in pids else pids

    def _interrupt(self) -> None:
        self.counts["interrupts"] += 1
        os.kill(os.getpid(), signal.SIGINT)

    def _kill(self) -> None:
        self._strike(signal.SIGKILL, "kills")

    def _stop(self) -> None:
        self._strike(signal.SIGSTOP, "stops")

    def _hold_up(self) -> None:
        """Stop a worker for a moment that is shorter than the timeout."""
        victim = self._victim()
        if victim is not None:
            fd, _ = victim
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGSTOP)
                time.sleep(0.02)  # the fault itself lasts that long
                signal.pidfd_send_signal(fd, signal.SIGCONT)
                self.counts["hold-ups"] += 1
            os.close(fd)

    def _strike(self, number: int, name: str) -> None:
        victim = self._victim()
        if victim is None:
            return
        fd, rows = victim
        self.hit |= rows
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, number)
            self.counts[name] += 1
        os.close(fd)

    def _victim(self) -> tuple[int, set[int]] | None:
        """A descriptor of one of our workers, and the rows that it hosts."""
        pids = self.pids
        self.pids = None  # they may change now
        if pids is None:
            return None
        pid = self.rng.choice(pids)
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        with open(f"/proc/{pid}/stat") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
        if parent != os.getpid():
            os.close(fd)
            return None
        return fd, {i for i, other in enumerate(pids) if other == pid}

    # Calls.

    def _under_fire(self, pool: EnvPool, rows: list[int], call: Callable[[], Any]) -> Any:
        """The result of a call, None if it was interrupted; notes what was lost."""
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        blow = self._blow()
        self.under_attack = blow is not None
        self.log.append(f"{call.__qualname__} of {rows} under {getattr(blow, '__name__', 'peace')}")
        self.counts["calls"] += 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with self.interrupter.striking(blow, self.rng.expovariate(self.rate)):
                    result = call()
            except KeyboardInterrupt:
                self.log.append(f"interrupted, busy: {pool.busy.tolist()}")
                self._doubt(rows)
                self._settle(pool)
                self._note_lost(pool.infos)
                return None
        for warning in caught:
            text = str(warning.message)
            demand("built anew" in text or "becomes a list" in text or "complains" in text, text)
            self.counts["warnings of restarts"] += "built anew" in text
        return result, any("built anew" in str(warning.message) for warning in caught)

    def _settle(self, pool: EnvPool) -> None:
        """Receive what was sent before an interrupt came."""
        if not pool.closed and pool.busy.any():
            self._doubt([int(i) for i in np.flatnonzero(pool.busy)])
            with contextlib.suppress(EnvError, NoAsyncCallError):
                pool.recv()

    def _doubt(self, rows: list[int]) -> None:
        for i in rows:
            self.reference.known[i] = False

    def _note_lost(self, infos: dict[str, Any]) -> None:
        """Rows that lost their state must be among those that were hit."""
        if not self.restarts:
            return
        lost = {int(i) for i in np.flatnonzero(infos.get("_restarted", []))}
        innocent = [i for i in lost - self.hit if self.reference.known[i]]
        demand(not innocent, f"environments {innocent} were restarted, and nobody has struck")
        self._doubt(sorted(lost))

    def _mask(self, of: list[int]) -> list[int]:
        return [i for i in of if self.rng.random() < 0.7]

    def _bools(self, rows: list[int]) -> Any:
        mask = np.zeros(self.num_envs, np.bool_)
        mask[rows] = True
        return mask

    def _reset(self, pool: EnvPool) -> None:
        everyone = list(range(self.num_envs))
        unknown = [i for i in everyone if not self.reference.known[i]]
        rows = everyone if self.rng.random() < 0.4 else sorted({*self._mask(everyone), *unknown})
        seeds = [
            self.rng.randrange(2**31) if i in unknown or self.rng.random() < 0.6 else None
            for i in everyone
        ]
        options = [self._options() for _ in everyone]
        failing = [i for i in rows if options[i] is not None and options[i].get("fail")]
        if failing and self.restarts:
            options, failing = [None] * self.num_envs, []  # it would fail again and again
        mask = None if len(rows) == self.num_envs else self._bools(rows)
        try:
            returned = self._under_fire(
                pool, rows, lambda: pool.reset(seed=seeds, options=options, mask=mask)
            )
        except EnvError as error:
            self._expect(error, failing, LookupError)
            returned = error.result, False
        if returned is None:
            return
        (observations, infos), rebuilt = returned
        for i in rows:
            if i in failing:
                self.reference.known[i] = False
            elif rebuilt and seeds[i] is None:
                self.reference.known[i] = False  # perhaps by a new generator
            else:
                self.reference.reset(i, seeds[i], options[i])
                if not self.under_attack:
                    self.hit.discard(i)
        self._note_lost(infos)
        self.counts["rows compared"] += self.reference.check(observations, infos)

    def _options(self) -> dict[str, Any] | None:
        draw = self.rng.random()
        if draw < 0.03:
            return {"fail": True}
        if draw < 0.1:
            return {"load": bytes(self.rng.choice([10, 300_000]))}
        return {"start": self.rng.randrange(100)} if draw < 0.4 else None

    def _ready_rows(self, pool: EnvPool) -> list[int]:
        """Rows that can be stepped, after a reset of those that cannot."""
        if not all(self.reference.known) and self.rng.random() < 0.7:
            self._reset(pool)
        return [i for i, known in enumerate(self.reference.known) if known]

    def _step(self, pool: EnvPool) -> None:
        rows = self._mask(self._ready_rows(pool))
        actions = self._actions()
        mask = None if len(rows) == self.num_envs else self._bools(rows)
        self._compare_step(pool, rows, actions, lambda: pool.step(actions, mask=mask))

    def _send(self, pool: EnvPool) -> None:
        """A step in two halves, perhaps of two groups one after the other."""
        rows = self._mask(self._ready_rows(pool))
        if not rows:
            return
        actions = self._actions()
        middle = self.rng.randint(0, len(rows))
        sent: list[int] = []

        def call() -> Any:
            for part in filter(None, (rows[:middle], rows[middle:])):
                sent.extend(part)
                try:
                    pool.send(actions, mask=self._bools(part))
                except ResetNeeded:
                    # The first half may have found that the worker of the second one is lost.
                    demand(self.hit & set(part), "a reset is needed, and nobody has struck")
                    del sent[-len(part) :]
            return pool.recv()[:5]

        self._compare_step(pool, sent, actions, call)

    def _actions(self) -> list[int]:
        fatal = self.rng.random() < 0.05
        return [
            FATAL if fatal and self.rng.random() < 0.3 else self.rng.randrange(FATAL)
            for _ in range(self.num_envs)
        ]

    def _compare_step(
        self, pool: EnvPool, rows: list[int], actions: list[int], call: Callable[[], Any]
    ) -> None:
        fatal = {i for i, action in enumerate(actions) if action == FATAL}
        self.hit |= fatal
        try:
            returned = self._under_fire(pool, rows, call)
        except EnvError as error:
            self._expect(error, sorted(fatal), ArithmeticError)
            returned = error.result[:5], False
        if returned is None:
            return
        failing = fatal & set(rows)
        (observations, rewards, terminateds, truncateds, infos), _ = returned
        self._note_lost(infos)
        for i in range(self.num_envs):
            expected: tuple[float, bool, bool] = (0.0, False, False)
            if i in failing:
                self.reference.known[i] = False
                self.counts["exceptions"] += 1
            if not self.reference.known[i]:
                continue
            if i in rows:
                expected = self.reference.step(i, actions[i])
                self.counts["steps"] += 1
            found = (rewards[i], bool(terminateds[i]), bool(truncateds[i]))
            demand(found == (np.float32(expected[0]), *expected[1:]), f"step of {i}: {found}")
        self.counts["rows compared"] += self.reference.check(observations, infos)

    def _call(self, pool: EnvPool) -> None:
        rows = self._mask(list(range(self.num_envs)))
        amount = self.rng.randrange(2**40)
        returned = self._under_fire(
            pool, rows, lambda: pool.call("stir", amount, mask=self._bools(rows))
        )
        if returned is None:
            return
        self._note_lost(pool.infos)
        results, _ = returned
        for i in rows:
            if self.reference.known[i]:
                expected = self.reference.envs[i].stir(amount)
                demand(results[i] == expected, f"call of {i}: {results[i]}, not {expected}")

    def _complain(self, pool: EnvPool) -> None:
        try:
            returned = self._under_fire(pool, [], lambda: pool.call("complain"))
        except EnvError as error:
            demand(not self.restarts, f"raised in spite of restarts: {error}")
            self._expect(error, list(range(self.num_envs)), OSError)
            return
        if returned is not None:
            self._note_lost(pool.infos)
            demand(returned[0] == [None] * self.num_envs, f"complaints: {returned[0]}")

    def _expect(self, error: EnvError, failing: list[int], kind: type[Exception]) -> None:
        self.counts["EnvError"] += 1
        found = set(error.env_indices)
        demand(found <= set(failing), f"{sorted(found)} failed, {failing} should: {error}")
        demand(isinstance(error.__cause__, kind), f"cause {error.__cause__!r}")
        if self.restarts:
            demand(error.env_indices != (), "an error of nobody")
