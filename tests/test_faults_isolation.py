"""What an environment does to its process reaches no other, and what the parent does no worker."""

import logging
import os
import select
import signal
import threading
from functools import partial

import pytest
from gymnasium.error import ClosedEnvironmentError

from processes import has_gone, run_script
from rogue_env import Rogue
from swm_async import EnvPool, WorkerDied


def test_an_environment_is_only_ever_called_from_one_thread():
    with EnvPool([Rogue] * 2, num_workers=1) as pool:
        pool.reset(seed=0)
        pool.step([0, 0])
        pool.call("do", "nothing")
        callers = [threading.Thread(target=pool.step, args=([0, 0],)) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        for threads in pool.get_attr("threads"):
            assert threads.keys() == {"build", "reset", "step", "call"}
            assert len(set(threads.values())) == 1


def test_a_worker_has_none_of_the_locks_that_the_parents_threads_hold():
    """As a forked one would, and wait for ever when it logs."""
    held, done = threading.Event(), threading.Event()
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)

    def hold():
        handler.acquire()
        logging._lock.acquire()
        held.set()
        done.wait()
        logging._lock.release()
        handler.release()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        with EnvPool([Rogue], num_workers=1, step_timeout=30) as pool:
            pool.call("do", "log")
    finally:
        done.set()
        holder.join()
        logging.getLogger().removeHandler(handler)


def _meet(directory, index):
    """Return once the other environment is being built as well."""
    ours, theirs = (os.open(directory / f"fifo{k}", os.O_RDWR) for k in (index, 1 - index))
    os.write(theirs, b"x")
    assert os.read(ours, 1) == b"x"
    os.close(ours)
    os.close(theirs)
    return Rogue()


def test_heavy_constructors_run_in_all_workers_at_the_same_time(tmp_path):
    for k in range(2):
        os.mkfifo(tmp_path / f"fifo{k}")
    factories = [partial(_meet, tmp_path, k) for k in range(2)]
    with EnvPool(factories, num_workers=2, start_timeout=30) as pool:
        pool.reset(seed=0)


def test_what_environments_do_to_their_process_leaves_the_pool_alone(tmp_path):
    here = os.getcwd()
    with EnvPool([Rogue] * 2, num_workers=2, step_timeout=30) as pool:
        pool.reset(seed=0)
        for count, deed in enumerate(
            (
                "change signals",
                "change directory",
                "replace stdout",
                "daemon thread",
                "close low descriptors",
                "close standard streams",
            ),
            start=1,
        ):
            pool.call("do", deed, mask=[True, False])
            steps = pool.step([0, 0])[4]["count"].ravel().tolist()
            assert steps == [count, count], deed
    assert os.getcwd() == here
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_DFL


def test_an_alarm_that_an_environment_sets_kills_its_worker_alone():
    pool = EnvPool([Rogue] * 2, num_workers=2)
    pool.reset(seed=0)
    pool.envs[0].plan("step", "alarm")
    with pytest.raises(WorkerDied, match=r"environment 0 .*SIGALRM") as caught:
        pool.step([0, 0])
    assert caught.value.result[1].tolist() == [0, 1]


def test_an_exception_of_a_signals_handler_between_two_commands_is_told():
    pool = EnvPool([Rogue], num_workers=1)
    pool.reset(seed=0)
    (pid,) = pool.call("pid")
    with open_process(pid) as ended:
        pool.call("do", "alarm later", 0.05)
        assert ended.poll(10_000)
    with pytest.raises(WorkerDied, match="exit code 70") as caught:
        pool.step([0])
    assert "RuntimeError: the alarm of the environment" in str(caught.value)


class open_process:  # noqa: N801  # used like a function
    """A poller that finds something when the process has ended."""

    def __init__(self, pid):
        self._fd = os.pidfd_open(pid)

    def __enter__(self):
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return poller

    def __exit__(self, *_):
        os.close(self._fd)


def test_a_forked_child_may_end_in_any_way_and_build_a_pool_of_its_own():
    with EnvPool([Rogue] * 2, num_workers=2) as pool:
        pool.reset(seed=0)
        for deed in (pool.close, lambda: pool.__exit__(None, None, None), _use_a_new_pool):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    deed()
                    pool.step([0, 0])
                except ClosedEnvironmentError:
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert pool.step([0, 0])[1].tolist() == [1, 1]


def _use_a_new_pool():
    with EnvPool([Rogue], num_workers=1) as pool:
        pool.reset(seed=0)
        assert pool.step([0])[1].tolist() == [1]


def test_pools_of_two_programs_do_not_disturb_each_other():
    source = """
        from rogue_env import Rogue
        from swm_async import EnvPool
        with EnvPool([Rogue] * 2, num_workers=2) as pool:
            pool.reset(seed=0)
            pool.step([0, 0])
            print(pool.step([0, 0])[4]["count"].ravel().tolist())
            print(*pool.call("pid"))
    """
    with EnvPool([Rogue] * 2, num_workers=2) as pool:
        pool.reset(seed=0)
        script = run_script(source)
        counts, pids = script.stdout.splitlines()
        assert counts == "[2, 2]"
        assert all(has_gone(int(pid)) for pid in pids.split())
        assert pool.step([0, 0])[4]["count"].ravel().tolist() == [1, 1]
