"""Facts about worker processes: what they know, and how they and their pool end."""

import contextlib
import gc
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import gymnasium
import pytest
from gymnasium.error import ClosedEnvironmentError

from probe_env import Probe
from swm_async import EnvError, EnvPool, WorkerDied
from swm_async.arguments import usable_cores

SCRIPT_PATH = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def wait_until_gone(pid, seconds):
    """True once the process has ended, also if it is not our child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))
    finally:
        os.close(fd)


def run_script(source, *arguments, stdin=None):
    """Run a script to its end: by ``-c``, or from standard input."""
    source = textwrap.dedent(source)
    command = ["-c", source, *arguments] if stdin is None else ["-", *arguments]
    return subprocess.run(
        [sys.executable, *command],
        input=None if stdin is None else source,
        capture_output=True,
        text=True,
        timeout=60,
        env=SCRIPT_PATH,
        check=False,
    )


@contextlib.contextmanager
def running_script(source):
    """A script that runs; whatever happens, it has ended afterwards."""
    script = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=SCRIPT_PATH,
        start_new_session=True,
    )
    with script:
        try:
            yield script
        finally:
            script.kill()


# What a worker knows.


def test_a_worker_imports_neither_swm_async_nor_torch():
    with EnvPool([Probe], num_workers=1) as pool:
        loaded = set(pool.call("look", "set(sys.modules)")[0])
    assert "swm_workers" in loaded
    assert not {"swm_async", "torch", "tqdm", "matplotlib", "pytest"} & loaded


def test_environments_of_one_shard_share_a_process_and_others_do_not():
    with EnvPool([Probe] * 5, num_workers=2) as pool:
        pids = pool.call("pid")
    assert len(set(pids[:3])) == len(set(pids[3:])) == 1
    assert len({os.getpid(), *pids}) == 3


def test_without_workers_the_environments_are_in_this_process():
    with EnvPool([Probe] * 2, num_workers=0) as pool:
        assert pool.call("pid") == [os.getpid()] * 2


def test_a_worker_has_the_path_directory_and_variables_of_now(monkeypatch, tmp_path):
    monkeypatch.setenv("SWM_ASYNC_TEST", "set just before")
    monkeypatch.chdir(tmp_path)
    with EnvPool([Probe], num_workers=1) as pool:
        assert pool.call("look", "os.environ['SWM_ASYNC_TEST']") == ["set just before"]
        assert pool.call("look", "os.getcwd()") == [str(tmp_path)]
        (path,) = pool.call("look", "sys.path")
    assert [entry or str(tmp_path) for entry in sys.path] == path[: len(sys.path)]


def test_a_file_of_the_user_hides_no_module_of_a_worker(monkeypatch, tmp_path):
    (tmp_path / "numpy.py").write_text("raise RuntimeError('the wrong numpy')")
    (tmp_path / "pickle.py").write_text("raise RuntimeError('the wrong pickle')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    with EnvPool([Probe], num_workers=1) as pool:
        assert pool.call("look", "os.getcwd()") == [str(tmp_path)]


def test_threads_are_capped_over_inherited_variables(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    source = "(os.environ['OMP_NUM_THREADS'], os.environ.get('OPENBLAS_NUM_THREADS'))"
    with EnvPool([Probe], num_workers=1) as pool:
        assert pool.call("look", source) == [("1", "1")]
    with EnvPool([Probe], num_workers=1, threads_per_worker=2) as pool:
        assert pool.call("look", source) == [("2", "2")]
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with EnvPool([Probe], num_workers=1, threads_per_worker=None) as pool:
        assert pool.call("look", source) == [("7", None)]


def test_ids_registered_by_the_caller_are_known_in_workers():
    gymnasium.register("swm_async_test/ByClass-v0", entry_point=Probe, max_episode_steps=5)
    gymnasium.register("swm_async_test/ByLambda-v0", entry_point=lambda **kwargs: Probe(**kwargs))
    try:
        for env_id in ("swm_async_test/ByClass-v0", "swm_async_test/ByLambda-v0"):
            with EnvPool([partial(gymnasium.make, env_id)] * 2, num_workers=2) as pool:
                pool.reset(seed=0)
                assert pool.envs[1].spec.id == env_id
    finally:
        del gymnasium.registry["swm_async_test/ByClass-v0"]
        del gymnasium.registry["swm_async_test/ByLambda-v0"]


def test_pointgoal_is_known_in_workers():
    with EnvPool([partial(gymnasium.make, "swm_async/PointGoal-v0")], num_workers=1) as pool:
        assert "goal_state" in pool.reset(seed=0)[1]


SCRIPT_ENV = """
import gymnasium, numpy, os, sys, time
from swm_async import EnvPool
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(1, numpy.float32), {}
    def step(self, action):
        if action == 1:
            print("stepping", os.getpid(), flush=True)
            while True:
                pass
        return numpy.zeros(1, numpy.float32), 1.0, False, False, {}
    def pid(self):
        return os.getpid()
"""


@pytest.mark.parametrize("stdin", [None, "yes"])
def test_a_script_needs_no_main_guard_and_is_not_run_again(stdin):
    source = SCRIPT_ENV + textwrap.dedent("""
        print("the script runs")
        with EnvPool([lambda: Env()] * 2, num_workers=2) as pool:
            pool.reset(seed=0)
            print(pool.step([0, 0])[1].tolist())
    """)
    script = run_script(source, stdin=stdin)
    assert (script.stdout, script.stderr) == ("the script runs\n[1.0, 1.0]\n", "")


# How a pool ends.


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "raise ValueError('the end')",
        "sys.exit(0)",
        "os._exit(0)",
        "del pool",
        "pool = None; time.sleep(0)",
    ],
)
def test_workers_end_with_the_interpreter_however_it_ends(ending):
    source = SCRIPT_ENV + textwrap.dedent(f"""
        pool = EnvPool([Env] * 2, num_workers=2)
        pool.reset(seed=0)
        print(*pool.call("pid"), flush=True)
        {ending}
    """)
    script = run_script(source)
    pids = [int(pid) for pid in script.stdout.split()]
    assert len(pids) == 2
    assert all(wait_until_gone(pid, 2) for pid in pids)
    expected = "ValueError: the end" if "raise" in ending else ""
    assert script.stderr.strip().splitlines()[-1:] == ([expected] if expected else [])
    assert "swm_workers" not in script.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("doing", ["time.sleep(1000)", "pool.step([1, 1])"])
def test_workers_end_with_a_parent_that_is_killed_also_inside_a_step(number, doing):
    source = SCRIPT_ENV + textwrap.dedent(f"""
        pool = EnvPool([Env] * 2, num_workers=2)
        pool.reset(seed=0)
        print(*pool.call("pid"), flush=True)
        {doing}
    """)
    with running_script(source) as script:
        pids = [int(pid) for pid in script.stdout.readline().split()]
        if "step" in doing:
            assert script.stdout.readline().startswith("stepping")
            assert script.stdout.readline().startswith("stepping")
        script.send_signal(number)
        if number == signal.SIGINT and "step" in doing:
            # The parent closes its pool at exit and gives the spinning workers ten seconds.
            assert all(wait_until_gone(pid, 14) for pid in pids)
        else:
            assert all(wait_until_gone(pid, 2) for pid in pids)
        errors = script.stderr.read()
    assert errors.count("Traceback") == (1 if number == signal.SIGINT else 0)


def test_dropping_the_last_reference_ends_the_workers():
    pool = EnvPool([Probe] * 2, num_workers=2)
    pids = pool.call("pid")
    handle = pool.envs[0]
    gc.disable()  # what is left to the collector may come late, or never
    try:
        del pool
        found = handle.pid()
        assert found == pids[0]  # a handle keeps its pool
        del handle
        assert all(wait_until_gone(pid, 5) for pid in pids)
    finally:
        gc.enable()


def test_a_pool_is_closed_by_its_context_and_by_an_exception_in_it():
    with EnvPool([Probe], num_workers=1) as pool:
        pids = pool.call("pid")
    assert wait_until_gone(pids[0], 2)
    pool = EnvPool([Probe], num_workers=1)
    pids = pool.call("pid")
    with pytest.raises(KeyError, match="mine"), pool:
        raise KeyError("mine")
    assert wait_until_gone(pids[0], 2)
    assert pool.closed


def test_what_an_environment_has_started_ends_with_its_worker():
    with EnvPool([Probe] * 2, num_workers=2) as pool:
        children = pool.call("start_child") + pool.call("fork_child")
        pool.close(timeout=5)
    assert all(wait_until_gone(pid, 2) for pid in children)


def test_a_child_that_an_environment_forked_does_not_hide_its_death():
    with EnvPool([Probe] * 2, num_workers=2) as pool:
        pool.reset(seed=0)
        pool.call("fork_child")
        pool.envs[1].plan("step", "kill")
        with pytest.raises(WorkerDied):
            pool.step([0, 0])


def test_an_environment_that_does_not_close_is_killed_after_the_timeout():
    pool = EnvPool([Probe] * 2, num_workers=2)
    pids = pool.call("pid")
    pool.envs[0].plan("close", "spin")
    started = time.monotonic()
    pool.close(timeout=0.5)
    assert 0.4 < time.monotonic() - started < 8
    assert all(wait_until_gone(pid, 0) for pid in pids)


def test_an_environment_that_raises_while_closing_is_reported_after_the_cleaning_up():
    pool = EnvPool([Probe] * 3, num_workers=2)
    pids = pool.call("pid")
    pool.envs[2].plan("close", "raise")
    with pytest.raises(EnvError, match="environment 2, close: ZeroDivisionError") as caught:
        pool.close()
    assert caught.value.env_indices == (2,)
    assert all(wait_until_gone(pid, 0) for pid in pids)
    pool.close()


def test_arrays_outlive_the_pool_and_its_descriptors():
    with EnvPool([Probe] * 2, num_workers=2) as pool:
        observations, infos = pool.reset(seed=0)
        pool.step([0, 0])
    assert infos["count"].tolist() == [[1], [1]]
    assert observations.shape == (2, 1)
    observations[...] = 7
    assert observations.tolist() == [[7], [7]]


def test_twenty_pools_one_after_the_other_leave_nothing():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with EnvPool([Probe], num_workers=1) as pool:
            pool.reset(seed=0)
    del pool
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# Death.


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_a_killed_worker_is_reported_while_the_pool_waits(num_workers):
    pool = EnvPool([Probe] * 4, num_workers=num_workers)
    pool.reset(seed=0)
    pids = pool.call("pid")
    pool.envs[3].plan("step", "kill")
    started = time.monotonic()
    with pytest.raises(WorkerDied, match=r"signal 9, SIGKILL.*out of memory") as caught:
        pool.step([0, 0, 0, 0])
    assert time.monotonic() - started < 1
    error = caught.value
    mates = tuple(i for i, pid in enumerate(pids) if pid == pids[3])
    assert (error.env_indices, error.exit_code, error.pid) == (mates, -9, pids[3])
    rewards = error.result[1]
    assert rewards.tolist() == [0.0 if i in mates else 1.0 for i in range(4)]
    with pytest.raises(ClosedEnvironmentError, match="died during step"):
        pool.reset()
    assert all(wait_until_gone(pid, 2) for pid in pids)


@pytest.mark.parametrize("when", ["reset", "step", "call"])
@pytest.mark.parametrize(
    ("deed", "exit_code", "text"),
    [
        ("kill", -9, "SIGKILL"),
        ("terminate", -15, "SIGTERM"),
        ("exit", 3, "exit code 3"),
        ("abort", -6, "SIGABRT"),
    ],
)
def test_every_way_to_die_is_named(when, deed, exit_code, text):
    pool = EnvPool([Probe] * 2, num_workers=2)
    pool.reset(seed=0)
    pool.envs[1].plan(when, deed)
    calls = {
        "reset": pool.reset,
        "step": lambda: pool.step([0, 0]),
        "call": lambda: pool.call("act"),
    }
    with pytest.raises(WorkerDied, match=text) as caught:
        calls[when]()
    assert caught.value.env_indices == (1,)
    assert caught.value.exit_code == exit_code
    assert when in str(caught.value)


def test_a_worker_that_dies_between_two_calls_is_reported_at_the_next():
    pool = EnvPool([Probe] * 2, num_workers=2)
    pool.reset(seed=0)
    pids = pool.call("pid")
    os.kill(pids[0], signal.SIGKILL)
    assert wait_until_gone(pids[0], 2)
    with pytest.raises(WorkerDied, match="environment 0"):
        pool.step([0, 0])


@pytest.mark.parametrize("deed", ["kill", "exit"])
def test_a_worker_that_dies_in_construction_is_reported_and_the_others_are_stopped(deed):
    with pytest.raises(WorkerDied, match=r"environment 1 .*construction") as caught:
        EnvPool([Probe, partial(Probe, "build", deed)], num_workers=2)
    assert caught.value.env_indices == (1,)


def test_a_crash_in_compiled_code_shows_where_python_stood():
    with pytest.raises(WorkerDied, match="SIGABRT") as caught:
        EnvPool([partial(Probe, "build", "abort")], num_workers=1)
    assert "probe_env.py" in str(caught.value)


def test_a_factory_that_exits_is_an_error_of_its_environment():
    with pytest.raises(EnvError, match="environment 1, build: SystemExit: enough"):
        EnvPool([Probe, partial(Probe, "build", "sys.exit")], num_workers=2)


# Time.


@pytest.mark.parametrize("deed", ["sleep", "spin", "stop"])
@pytest.mark.parametrize("when", ["reset", "step", "call"])
def test_an_overdue_worker_is_killed_and_named(deed, when):
    pool = EnvPool([Probe] * 2, num_workers=2, step_timeout=0.5)
    pool.reset(seed=0)
    pids = pool.call("pid")
    pool.envs[1].plan(when, deed)
    calls = {
        "reset": pool.reset,
        "step": lambda: pool.step([0, 0]),
        "call": lambda: pool.call("act"),
    }
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=f"{when} within") as caught:
        calls[when]()
    assert time.monotonic() - started < 5
    assert caught.value.env_indices == (1,)
    if deed != "stop":
        assert "probe_env.py" in caught.value.stack
    assert all(wait_until_gone(pid, 2) for pid in pids)


def test_a_constructor_that_hangs_is_bounded_by_start_timeout():
    with pytest.raises(TimeoutError, match="construction within") as caught:
        EnvPool([Probe, partial(Probe, "build", "sleep")], num_workers=2, start_timeout=3)
    assert caught.value.env_indices == (1,)


# Interrupts and forks.


def test_an_interrupted_step_leaves_a_pool_that_can_be_used_again():
    source = SCRIPT_ENV + textwrap.dedent("""
        import signal, threading
        class Slow(Env):
            n = 0
            def step(self, action):
                if action == 1:
                    os.kill(os.getppid(), signal.SIGINT)
                    time.sleep(0.3)
                self.n += 1
                return numpy.zeros(1, numpy.float32), 1.0, False, False, {"n": self.n}
        with EnvPool([Slow] * 4, num_workers=2) as pool:
            pool.reset(seed=0)
            for _ in range(3):
                try:
                    pool.step([0, 0, 1, 0])
                except KeyboardInterrupt:
                    print("interrupted")
                try:
                    pool.step([0] * 4)
                except Exception as error:
                    print(type(error).__name__, error)
                pool.reset()
                print(pool.step([0] * 4)[4]["n"].ravel().tolist())
    """)
    script = run_script(source)
    assert script.stderr == ""
    assert script.stdout.splitlines() == [
        line
        for k in range(3)
        for line in (
            "interrupted",
            "ResetNeeded environments [0, 1, 2, 3] need a reset before they can be stepped",
            str([2 * k + 2] * 4),
        )
    ]


def test_a_forked_child_may_not_use_the_pool_and_does_not_end_it():
    with EnvPool([Probe] * 2, num_workers=2) as pool:
        pool.reset(seed=0)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                pool.step([0, 0])
            except BaseException as error:
                os.write(write, f"{type(error).__name__}: {error}".encode())
            del pool
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        assert text.startswith("ClosedEnvironmentError")
        assert "forked" in text
        assert pool.step([0, 0])[1].tolist() == [1.0, 1.0]


# Limits and logs.


def test_too_few_descriptors_are_a_clear_error_and_leave_nothing_behind():
    source = SCRIPT_ENV + textwrap.dedent("""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
        before = len(os.listdir("/proc/self/fd"))
        try:
            EnvPool([Env] * 32, num_workers=32)
        except Exception as error:
            print(type(error).__name__, error)
        print(len(os.listdir("/proc/self/fd")) - before)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("no children")
    """)
    script = run_script(source)
    lines = script.stdout.splitlines()
    assert lines[0].startswith("PoolError worker ")
    assert "ulimit -n" in lines[0]
    assert lines[1:] == ["0", "no children"]
    assert script.stderr == ""


def test_memory_that_is_not_there_is_an_error_before_it_is_touched():
    class Huge(Probe):
        observation_space = gymnasium.spaces.MultiBinary(2**40)

    with pytest.raises(MemoryError, match="bytes of shared memory"):
        EnvPool([Huge] * 2, num_workers=2)


def test_lines_that_environments_print_arrive_whole_and_once():
    source = SCRIPT_ENV + textwrap.dedent("""
        class Loud(Env):
            def step(self, action):
                for k in range(200):
                    print("a line of", "several", "parts", k)
                    print("and one", "on stderr", k, file=sys.stderr)
                return super().step(0)
        with EnvPool([Loud] * 4, num_workers=4) as pool:
            pool.reset(seed=0)
            pool.step([0] * 4)
    """)
    script = run_script(source)
    assert sorted(script.stdout.splitlines()) == sorted(
        f"a line of several parts {k}" for k in range(200) for _ in range(4)
    )
    assert sorted(script.stderr.splitlines()) == sorted(
        f"and one on stderr {k}" for k in range(200) for _ in range(4)
    )


def test_what_an_environment_printed_before_it_died_is_not_lost():
    source = SCRIPT_ENV + textwrap.dedent("""
        class Dying(Env):
            def step(self, action):
                print("last words")
                os._exit(1)
        pool = EnvPool([Dying], num_workers=1)
        pool.reset(seed=0)
        try:
            pool.step([0])
        except Exception as error:
            print(type(error).__name__)
    """)
    assert run_script(source).stdout.splitlines() == ["last words", "WorkerDied"]


def test_stats_count_steps_time_and_what_did_not_fit():
    with EnvPool([Probe] * 3, num_workers=2) as pool:
        pool.reset(seed=0)
        for _ in range(10):
            pool.step([0] * 3)
        pool.step([0] * 3, mask=[False, False, True])
        stats = pool.stats()
    assert stats["steps"].tolist() == [20, 11]
    assert stats["restarts"].tolist() == [0, 0]
    assert (stats["busy_s"] > 0).all()
    assert (stats["waiting_s"] > 0).all()
    assert stats["extra_keys"].keys() == {"count"}


@pytest.mark.parametrize(("pinned", "num_workers"), [(None, 1), (None, 4), (True, 4), (False, 2)])
def test_workers_are_pinned_where_there_is_one_per_core_or_where_asked_for(pinned, num_workers):
    cores = sorted(os.sched_getaffinity(0))
    with EnvPool([Probe] * 4, num_workers=num_workers, pin_workers=pinned) as pool:
        found = pool.call("look", "sorted(os.sched_getaffinity(0))")
    shards = [w for w in range(num_workers) for _ in range(4 // num_workers)]
    is_pinned = pinned or (pinned is None and 1 < num_workers == len(cores) == usable_cores())
    expected = [[cores[w % len(cores)]] if is_pinned else cores for w in shards]
    assert found == expected
