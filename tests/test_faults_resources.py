"""Nothing is left behind, whatever the caller's program does with signals and descriptors."""

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings

import pytest

from processes import has_gone, run_script
from rogue_env import Rogue
from swm_async import EnvPool, WorkerDied


def holdings():
    """Descriptors, mapped memory files and children of this process."""
    with open("/proc/self/maps") as maps:
        mapped = [line.split()[4] for line in maps if "/memfd:" in line]
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        children = 1
    except ChildProcessError:
        children = 0
    return len(os.listdir("/proc/self/fd")), len(set(mapped)), children


def test_thirty_pools_one_after_the_other_keep_everything_flat():
    gc.collect()
    before = holdings()
    for _ in range(30):
        with EnvPool([Rogue], num_workers=1) as pool:
            pool.reset(seed=0)
            pool.step([0])
    del pool
    gc.collect()
    assert holdings() == before


def test_twenty_pools_at_once():
    pools = [EnvPool([Rogue], num_workers=1) for _ in range(20)]
    for pool in pools:
        pool.reset(seed=0)
    for _ in range(3):
        for pool in pools:
            pool.step([0])
    assert [int(pool.infos["count"][0, 0]) for pool in pools] == [3] * 20
    for pool in pools:
        pool.close()


def test_neither_named_memory_nor_a_tracker_of_resources_is_used():
    def shared():
        return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()

    before = shared()
    script = run_script("""
        import multiprocessing.resource_tracker as tracker, os, sys
        from rogue_env import Rogue
        from swm_async import EnvPool
        pool = EnvPool([Rogue] * 2, num_workers=2)
        pool.reset(seed=0)
        print([name for name in os.listdir("/dev/shm") if "swm" in name])
        print(tracker._resource_tracker._pid)
    """)
    assert (script.stdout, script.stderr) == ("[]\nNone\n", "")
    assert not {name for name in shared() - before if "swm" in name}


class Setting:
    """A disposition of a signal, for a while."""

    def __init__(self, number, disposition):
        self._number, self._disposition = number, disposition

    def __enter__(self):
        self._before = signal.signal(self._number, self._disposition)

    def __exit__(self, *_):
        signal.signal(self._number, self._before)


def test_workers_end_and_deaths_are_noticed_where_the_system_reaps_children():
    with Setting(signal.SIGCHLD, signal.SIG_IGN):
        with EnvPool([Rogue] * 2, num_workers=2) as pool:
            pool.reset(seed=0)
            pids = pool.call("pid")
        assert all(has_gone(pid, 0) for pid in pids)
        pool = EnvPool([Rogue] * 2, num_workers=2, step_timeout=30)
        pool.reset(seed=0)
        pool.envs[0].plan("step", "kill")
        with pytest.raises(WorkerDied, match="exit code unknown") as caught:
            pool.step([0, 0])
        assert caught.value.exit_code is None


def test_a_worker_that_somebody_else_has_reaped_is_reported():
    pool = EnvPool([Rogue] * 2, num_workers=2, step_timeout=30)
    pool.reset(seed=0)
    pids = pool.call("pid")
    os.kill(pids[1], signal.SIGKILL)
    os.waitpid(pids[1], 0)
    with pytest.raises(WorkerDied, match=r"environment 1 .*exit code unknown"):
        pool.step([0, 0])


def test_a_dead_worker_is_no_broken_pipe_that_kills_the_program():
    with Setting(signal.SIGPIPE, signal.SIG_DFL):
        pool = EnvPool([Rogue], num_workers=1)
        pool.reset(seed=0)
        pool.step([0])
        (pid,) = pool.call("pid")
        os.kill(pid, signal.SIGKILL)
        assert has_gone(pid)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            pool.reset()  # which shares new memory first


def test_an_interrupted_close_kills_and_leaves_nothing():
    pool = EnvPool([Rogue] * 2, num_workers=2)
    pids = pool.call("pid")
    pool.envs[0].plan("close", "spin")
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pool.close(timeout=1000)
    timer.join()
    assert all(has_gone(pid, 0) for pid in pids)
    assert pool.closed
    pool.close()


def test_an_interrupt_after_a_late_reply_does_not_hide_what_closing_raises():
    pool = EnvPool([Rogue], num_workers=1)
    pool.reset(seed=0)
    pool.envs[0].plan("step", "interrupt the pool")
    with pytest.raises(KeyboardInterrupt):
        pool.step([0])
    pool.envs[0].plan("close", "raise", "like a broken pipe")
    with pytest.raises(BaseException, match="environment 0, close: BrokenPipeError"):
        pool.close()


def test_a_dropped_pool_may_be_collected_in_the_middle_of_another_pools_call():
    class Actions:
        """Looked at in the middle of a step."""

        def __array__(self, dtype=None, copy=None):
            import numpy as np

            gc.collect()
            return np.zeros(1, np.int64)

    gc.disable()
    try:
        with EnvPool([Rogue], num_workers=1) as pool:
            pool.reset(seed=0)
            dropped = EnvPool([Rogue], num_workers=1)
            pids = dropped.call("pid")
            circle = [dropped]
            circle.append(circle)
            del dropped, circle
            assert pool.step(Actions())[1].tolist() == [1]
            assert has_gone(pids[0])
    finally:
        gc.enable()


def test_threads_that_use_a_pool_until_the_end_of_the_interpreter_do_not_keep_it():
    script = run_script("""
        import threading
        from rogue_env import Rogue
        from swm_async import EnvPool
        pool = EnvPool([Rogue] * 2, num_workers=2)
        pool.reset(seed=0)
        print(*pool.call("pid"), flush=True)
        def steps(count):
            for _ in range(count):
                pool.step([0, 0])
            print("done", flush=True)
        threading.Thread(target=steps, args=(50,)).start()
    """)
    pids, done = script.stdout.splitlines()
    assert (done, script.stderr) == ("done", "")
    assert all(has_gone(int(pid)) for pid in pids.split())


def test_what_threads_of_an_environment_print_arrives_in_whole_lines():
    script = run_script("""
        from rogue_env import Rogue
        from swm_async import EnvPool
        with EnvPool([Rogue] * 2, num_workers=2) as pool:
            pool.call("do", "print in threads", 3)
    """)
    expected = [f"thread {name} line {k}" for name in range(3) for k in range(100)] * 2
    assert sorted(script.stdout.splitlines()) == sorted(expected)


def test_logs_and_warnings_of_an_environment_arrive_once():
    script = run_script("""
        from rogue_env import Rogue
        from swm_async import EnvPool
        with EnvPool([Rogue], num_workers=1) as pool:
            pool.call("do", "log")
    """)
    assert script.stdout == ""
    assert script.stderr.count("logged\n") == 1
    assert script.stderr.count("UserWarning: warned\n") == 1


def test_a_program_that_turns_warnings_into_errors_can_start_workers():
    script = subprocess.run(
        [sys.executable, "-W", "error", "-c", "from test_faults_resources import run; run()"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )
    assert (script.stdout, script.stderr) == ("[1.0]\n", "")


def run():
    with EnvPool([Rogue], num_workers=1) as pool:
        pool.reset(seed=0)
        print(pool.step([0])[1].tolist())


def test_nothing_is_left_of_a_pool_whose_failure_is_mended():
    with EnvPool([Rogue] * 2, num_workers=2, on_failure="restart", max_restarts=99) as pool:
        pool.reset(seed=0)
        pool.reset(seed=0)
        before = holdings()
        children = []
        for _ in range(3):
            children += [child for child in pool.call("do", "daemon", "fork") if child]
            pool.envs[1].plan("step", "kill")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pool.step([0, 0])
            pool.reset(seed=0, mask=[False, True])
        assert holdings() == before
    assert all(has_gone(child) for child in children)
