"""Nothing waits for what will never come."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError

from processes import has_gone
from rogue_env import Rogue
from swm_async import EnvPool, WorkerDied, WorkerTimeout

SOON_S = 10.0
"""Far more than is needed, far less than what never ends."""


@contextlib.contextmanager
def within(seconds):
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


@contextlib.contextmanager
def handler(number, function):
    """Handle a signal of this process while the body runs."""
    before = signal.signal(number, function)
    try:
        yield
    finally:
        signal.signal(number, before)


LARGE = {"load": np.zeros(1_000_000)}
"""Options beyond any pipe's capacity."""


def test_a_large_command_to_a_worker_that_stands_still_is_bounded():
    pool = EnvPool([Rogue] * 2, num_workers=2, step_timeout=0.5)
    pool.reset(seed=0)
    pids = pool.call("pid")
    os.kill(pids[1], signal.SIGSTOP)
    with within(SOON_S), pytest.raises(WorkerTimeout, match="did not finish reset") as caught:
        pool.reset(options=LARGE)
    assert caught.value.env_indices == (1,)
    assert caught.value.seconds >= 0.5
    assert "serve.py" in caught.value.stack  # it was woken up to tell where it stood
    assert has_gone(pids[1])


def test_an_interrupt_ends_the_sending_to_a_worker_that_stands_still():
    pool = EnvPool([Rogue], num_workers=1)
    pool.reset(seed=0)
    os.kill(pool.call("pid")[0], signal.SIGSTOP)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with within(SOON_S), pytest.raises(KeyboardInterrupt):
        pool.reset(options=LARGE)
    timer.join()
    with pytest.raises(WorkerDied):
        pool.reset()


def test_a_large_command_to_a_dead_worker_reports_the_death():
    pool = EnvPool([Rogue], num_workers=1)
    pool.reset(seed=0)
    os.kill(pool.call("pid")[0], signal.SIGKILL)
    with within(SOON_S), pytest.raises(WorkerDied, match="SIGKILL"):
        pool.reset(options=LARGE)


def test_after_an_interrupted_step_that_never_ends_the_next_call_is_bounded():
    pool = EnvPool([Rogue] * 2, num_workers=2, step_timeout=0.5)
    pool.reset(seed=0)
    pool.envs[1].plan("step", "interrupt the pool and spin")
    with pytest.raises(KeyboardInterrupt):
        pool.step([0, 0])
    with within(SOON_S), pytest.raises(WorkerTimeout, match="environment 1") as caught:
        pool.reset()
    assert "rogue_env.py" in caught.value.stack


def test_after_any_number_of_interrupts_a_pool_goes_on():
    with EnvPool([Rogue], num_workers=1) as pool:
        pool.reset(seed=0)
        pool.reset(seed=0)
        for _ in range(1000):  # each has the memory's descriptors sent again
            pool._engine._exchange.distrust([0])
            pool.step([0])
        assert pool.step([0])[4]["count"].tolist() == [[1001]]


def test_a_death_is_noticed_though_a_child_of_this_process_holds_the_pipes():
    read, write = os.pipe()
    pool = EnvPool([Rogue], num_workers=1)
    pool.reset(seed=0)
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    pool.envs[0].plan("step", "kill")
    with within(SOON_S), pytest.raises(WorkerDied):
        pool.step([0])
    os.close(write)
    os.waitpid(child, 0)


def test_a_death_is_noticed_though_a_child_in_compiled_code_holds_the_pipes():
    """Where a wait is bounded, or several are waited for: these look at the process as well."""
    bounded = EnvPool([Rogue], num_workers=1, step_timeout=60)
    unbounded = EnvPool([Rogue], num_workers=1)
    for pool, wait in ((bounded, lambda: bounded.step([0])), (unbounded, unbounded.recv)):
        pool.reset(seed=0)
        (child,) = pool.call("do", "fork in compiled code")
        pool.envs[0].plan("step", "kill")
        if pool is unbounded:
            pool.send([0])
        with within(SOON_S), pytest.raises(WorkerDied, match="SIGKILL"):
            wait()
        assert has_gone(child)


def test_environments_may_have_children_of_every_kind():
    with EnvPool([Rogue] * 2, num_workers=2) as pool:
        pool.reset(seed=0)
        assert pool.call("do", "fork", "leave") == [0, 0]
        assert pool.call("do", "subprocess") == ["42\n", "42\n"]
        assert pool.call("do", "multiprocessing", "fork") == [[1, 2, 3]] * 2
        daemons = pool.call("do", "daemon", "fork")
        assert pool.call("do", "executor") == [[1, 2]] * 2
        pool.call("do", "daemon thread")
        assert pool.step([0, 0])[1].tolist() == [1, 1]
        with within(SOON_S):
            pool.close()
    assert all(has_gone(pid) for pid in daemons)


def test_a_pool_can_be_closed_while_a_step_that_never_ends_is_in_flight():
    pool = EnvPool([Rogue], num_workers=1)
    pool.reset(seed=0)
    pids = pool.call("pid")
    pool.envs[0].plan("step", "spin")
    pool.send([0])
    with within(SOON_S):
        pool.close(timeout=0.1)
    assert has_gone(pids[0])


def test_an_error_that_the_handler_of_a_signal_raises_passes_and_the_pool_goes_on():
    class Late(OSError):
        """Like the timeouts of other libraries, which are OSErrors too."""

    def strike(number, frame):
        raise Late("of the user's own")

    with EnvPool([Rogue] * 2, num_workers=2) as pool, handler(signal.SIGALRM, strike):
        pool.reset(seed=0)
        pids = pool.call("pid")
        os.kill(pids[1], signal.SIGSTOP)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Late):
            pool.step([0, 0])
        os.kill(pids[1], signal.SIGCONT)
        pool.reset(seed=0)
        assert pool.step([0, 0])[4]["count"].ravel().tolist() == [1, 1]
        assert pool.call("pid") == pids


def test_a_call_from_the_handler_of_a_signal_in_the_middle_of_a_call_is_refused():
    met = []

    def strike(number, frame):
        try:
            pool.call("pid")
        except AlreadyPendingCallError as error:
            met.append(str(error))
        os.kill(pids[0], signal.SIGCONT)

    with EnvPool([Rogue], num_workers=1) as pool, handler(signal.SIGALRM, strike):
        pool.reset(seed=0)
        pids = pool.call("pid")
        os.kill(pids[0], signal.SIGSTOP)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert pool.step([0])[4]["count"].tolist() == [[1]]
        assert len(met) == 1
        assert "another call of this pool is under way" in met[0]


def test_the_handler_of_a_signal_may_close_the_pool_in_the_middle_of_a_call():
    def strike(number, frame):
        pool.close(timeout=0.1)

    pool = EnvPool([Rogue], num_workers=1)
    pool.reset(seed=0)
    pids = pool.call("pid")
    pool.envs[0].plan("step", "spin")
    with handler(signal.SIGALRM, strike):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with within(SOON_S), pytest.raises((WorkerDied, ClosedEnvironmentError)):
            pool.step([0])
    assert pool.closed
    assert has_gone(pids[0])
