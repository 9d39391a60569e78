"""Ctrl-C at every moment of a call: the pool can be used again and rows are never mixed up.

Python looks for signals when a function begins and when one written in C has returned. The
profiler stops at the same places, so an interrupt is tried at each of them, one after the other.
"""

import contextlib
import os
import signal
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.error import NoAsyncCallError, ResetNeeded

from swm_async import EnvError, EnvPool
from swm_async.backends import process
from swm_async.backends.worker import WorkerProcess

N = 3
FAIL = 4
STRIKES_PER_POOL = 60
TRY_EVERY_MOMENT = "SWM_ASYNC_EXAMPLES" in os.environ
STRIDES = {0: 1, 2: 1} if TRY_EVERY_MOMENT else {0: 3, 2: 11}
"""By the number of workers: each how manieth moment is tried."""
SOME = np.array([True, False, True])
STEP = np.ones(N, np.int64)
FAILING = np.array([FAIL, FAIL, 1])


class Counter(gymnasium.Env):
    """Tells in every way how it was reset, and how often it has been stepped since."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(FAIL + 1)

    start, count = -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start = int(self.np_random.integers(1000))
        self.count = 0
        return self._observation(), self._info()

    def step(self, action):
        if action == FAIL:
            raise ArithmeticError("as asked for")
        self.count += 1
        return self._observation(), self.count, False, False, self._info()

    def pid(self):
        return os.getpid()

    def state(self):
        return self.start, self.count

    def _observation(self):
        return np.array([self.start, self.count], np.float64)

    def _info(self):
        # Most episodes bring a key that was never seen before.
        return {"text": f"{self.start} {self.count}", f"count {self.start % 97}": self.count}


class Strike:
    """Interrupts its body at the given moment, counted from 0, if it lasts that long."""

    def __init__(self, moment):
        self._left = moment
        self.has_struck = False

    def __enter__(self):
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _look(self, frame, event, argument):
        if event not in ("call", "c_return", "c_exception"):
            return
        self._left -= 1
        if self._left < 0:
            sys.setprofile(None)
            self.has_struck = True
            signal.raise_signal(signal.SIGINT)


def send_and_receive(pool, actions):
    for group in (SOME, ~SOME):
        pool.send(actions, mask=group)
    return pool.recv()


def reset_apart(pool):
    pool.send_reset(seed=50, mask=SOME)
    return pool.recv()


FAILS = "failing"
CALLS = {
    "reset": lambda pool: pool.reset(seed=50),
    "reset of some": lambda pool: pool.reset(seed=50, mask=SOME),
    "step": lambda pool: pool.step(STEP),
    "step of some": lambda pool: pool.step(STEP, mask=SOME),
    "failing step": lambda pool: pool.step(FAILING),
    "send and recv": lambda pool: send_and_receive(pool, STEP),
    "failing send and recv": lambda pool: send_and_receive(pool, FAILING),
    "send_reset and recv": reset_apart,
    "call": lambda pool: pool.call("state"),
}


def check_rows(rows, result, states):
    """Compare what a pool shows of these rows with what their environments say."""
    observations, infos = result[0], result[-1]
    for i in rows:
        start, count = states[i]
        assert observations[i].tolist() == [start, count]
        assert infos["text"][i] == [f"{start} {count}"]
        assert infos[f"count {start % 97}"][i].tolist() == [count]


def settle(pool):
    """Receive what is still busy."""
    for _ in range(N):
        if pool.busy.any():
            with contextlib.suppress(EnvError, NoAsyncCallError):
                pool.recv()
    assert not pool.busy.any()


def check_usable(pool, seed):
    settle(pool)
    for i in range(N):
        mask = np.arange(N) == i
        try:
            result = pool.step(STEP, mask=mask)[:5]
        except ResetNeeded:
            continue
        check_rows([i], result, pool.call("state"))
    result = pool.reset(seed=seed)
    states = [(int(np.random.default_rng(seed + i).integers(1000)), 0) for i in range(N)]
    check_rows(range(N), result, states)
    for count in (1, 2):
        result = pool.step(STEP)
        check_rows(range(N), result, [(start, count) for start, _ in states])


# An interrupt while Python drops a half-used generator is printed and forgotten.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*built anew:UserWarning")
@pytest.mark.parametrize(
    ("name", "on_failure"),
    [(name, "raise") for name in CALLS] + [(name, "restart") for name in CALLS if FAILS in name],
)
@pytest.mark.parametrize("num_workers", STRIDES)
def test_after_an_interrupt_at_any_moment_a_pool_can_be_used_again(num_workers, name, on_failure):
    moment, has_struck = 0, True
    while has_struck:
        with EnvPool([Counter] * N, num_workers=num_workers, on_failure=on_failure,
                     max_restarts=1000) as pool:  # fmt: skip
            with contextlib.suppress(EnvError):
                check_usable(pool, 0)
                CALLS[name](pool)  # numpy imports on demand, and would not survive an interrupt
            check_usable(pool, 0)
            for _ in range(STRIKES_PER_POOL):
                strike = Strike(moment)
                try:
                    with strike:
                        CALLS[name](pool)
                except KeyboardInterrupt:
                    assert strike.has_struck
                except EnvError:
                    assert FAILS in name
                has_struck = strike.has_struck
                check_usable(pool, moment)
                moment += STRIDES[num_workers]
                if not has_struck:
                    break
    assert moment > 1


@pytest.mark.parametrize("kind", [TimeoutError, ConnectionError])
def test_an_error_of_a_signals_handler_does_not_send_a_command_twice(monkeypatch, kind):
    written = []

    def interrupted(fd, data):
        written.append(os.write(fd, data))
        raise kind(
            "of a handler"
        )  # what the handler raises comes out where Python looks for signals next

    with EnvPool([Counter] * N, num_workers=1) as pool:
        pool.reset(seed=0)
        pool.step(STEP)
        with monkeypatch.context() as patched:
            patched.setattr(process, "os", SimpleNamespace(write=interrupted, read=os.read))
            with pytest.raises(kind, match="of a handler"):
                pool.step(STEP)
        assert len(written) == 1
        assert [count for _, count in pool.call("state")] == [2] * N
        with pytest.raises(ResetNeeded, match=r"\[0, 1, 2\]"):
            pool.step(STEP)


def test_a_worker_that_reads_its_mask_late_reads_that_of_its_command(monkeypatch):
    with EnvPool([Counter] * N, num_workers=1) as pool:
        pool.reset(seed=0)
        (pid,) = {*pool.call("pid")}
        resynchronise = WorkerProcess.resynchronise

        def interrupted(*_):
            raise KeyboardInterrupt

        def awoken(*args):
            os.kill(pid, signal.SIGCONT)
            return resynchronise(*args)

        os.kill(pid, signal.SIGSTOP)
        with monkeypatch.context() as patched:
            patched.setattr(process, "os", SimpleNamespace(write=os.write, read=interrupted))
            with pytest.raises(KeyboardInterrupt):
                pool.step(STEP, mask=SOME)
        monkeypatch.setattr(WorkerProcess, "resynchronise", awoken)
        result = pool.step(STEP, mask=~SOME)
        assert result[0][1, 1] == 1
        assert [count for _, count in pool.call("state")] == [1, 1, 1]
        with pytest.raises(ResetNeeded, match=r"\[0, 2\]"):
            pool.step(STEP)
