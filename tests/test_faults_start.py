"""Whatever a program looks like, its workers start, or an error says why not."""

import os
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from processes import has_gone, run_script
from rogue_env import Rogue
from swm_async import EnvError, EnvPool, PoolError, WorkerDied

CELLS = [
    """
import gymnasium, numpy
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(1, numpy.float32), {"of a cell": helper()}
    def step(self, action):
        raise Refusal("no")
class Refusal(Exception):
    pass
""",
    "def helper(): return 41",
    "def helper(): return 42",
    """
from swm_async import EnvError, EnvPool
pool = EnvPool([lambda: Env() for _ in range(2)], num_workers=2)
print(pool.reset(seed=0)[1]["of a cell"].ravel().tolist())
try:
    pool.step([0, 0])
except EnvError as error:
    print(type(error.__cause__) is Refusal)
""",
]


def test_cells_of_a_notebook_may_define_environments_and_what_they_need():
    script = run_script(f"""
        import sys
        for cell in {CELLS}:  # as the kernel of a notebook does it
            exec(compile(cell, "<cell>", "exec"), vars(sys.modules["__main__"]))
    """)
    assert (script.stdout, script.stderr) == ("[42, 42]\nTrue\n", "")


@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1, 2)])
def test_a_parent_may_have_closed_its_standard_streams(closed):
    read, write = os.pipe()
    with os.fdopen(read) as told:
        script = run_script(
            f"""
            import os
            from rogue_env import Rogue
            from swm_async import EnvPool
            for fd in {closed}:
                os.close(fd)
            with EnvPool([Rogue] * 2, num_workers=2) as pool:
                pool.reset(seed=0)
                pool.call("do", "print in threads", 1)
                text = pool.step([0, 0])[1].tolist()
            os.write({write}, repr(text).encode())
            """,
            pass_fds=(write,),
        )
        os.close(write)
        assert told.read() == "[1.0, 1.0]", script.stderr


def test_standard_input_of_an_environment_is_at_its_end():
    script = run_script(
        """
        from rogue_env import Rogue
        from swm_async import EnvPool
        with EnvPool([Rogue], num_workers=1) as pool:
            print(pool.call("do", "read standard input"))
        print(input())
        """,
        stdin="for the parent\n",
    )
    assert (script.stdout, script.stderr) == ("['']\nfor the parent\n", "")


def test_the_working_directory_may_have_been_removed(monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    gone.rmdir()
    with EnvPool([Rogue], num_workers=1) as pool:
        pool.reset(seed=0)
        assert pool.step([0])[1].tolist() == [1]


def test_modules_come_from_whatever_the_path_holds(monkeypatch, tmp_path):
    archive = tmp_path / "library.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("packed_env.py", "from rogue_env import Rogue\nclass Packed(Rogue): pass\n")
    monkeypatch.setattr(sys, "path", [Path("x"), None, 3, b"y", str(archive), *sys.path])
    import packed_env

    try:
        with EnvPool([packed_env.Packed], num_workers=1) as pool:
            pool.reset(seed=0)
            assert pool.step([0])[1].tolist() == [1]
    finally:
        del sys.modules["packed_env"]


def test_variables_of_any_bytes_reach_the_workers():
    def factory():
        env = Rogue()
        env.found = os.environb[b"SWM_ASYNC_TEST\xff"], os.environ["SWM_ASYNC_TEST"]
        return env

    os.environb[b"SWM_ASYNC_TEST\xff"] = b"\xfe\n\xff"
    os.environ["SWM_ASYNC_TEST"] = "ä ☃"
    try:
        with EnvPool([factory], num_workers=1) as pool:
            assert pool.get_attr("found") == [(b"\xfe\n\xff", "ä ☃")]
    finally:
        del os.environb[b"SWM_ASYNC_TEST\xff"], os.environ["SWM_ASYNC_TEST"]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_factory_that_cannot_be_pickled_is_named_before_anything_starts(num_workers):
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"env_fns\[1\] cannot be sent .* '_thread.lock'"):
        EnvPool([Rogue, lambda: lock and Rogue(), Rogue], num_workers=num_workers)


IMPORTS = {
    "raise RuntimeError('bad at import')": (EnvError, "environment 1, build: RuntimeError: bad"),
    "raise SystemExit('bad at import')": (EnvError, "environment 1, build: SystemExit: bad"),
    "import os; os._exit(9)": (WorkerDied, "died during construction: exit code 9"),
}


@pytest.mark.parametrize("source", IMPORTS)
def test_a_module_that_fails_when_it_is_imported_in_a_worker_is_told(monkeypatch, tmp_path, source):
    module = tmp_path / "moody_env.py"
    module.write_text("from rogue_env import Rogue\nclass Moody(Rogue): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import moody_env

    try:
        module.write_text(source)
        error, text = IMPORTS[source]
        with pytest.raises(error, match=text):
            EnvPool([Rogue, moody_env.Moody], num_workers=1)
    finally:
        del sys.modules["moody_env"]


def test_a_worker_that_cannot_import_what_it_needs_says_so(monkeypatch, tmp_path, capfd):
    (tmp_path / "numpy.py").write_text("raise RuntimeError('this is no numpy')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(WorkerDied, match="died during construction") as caught:
        EnvPool([Rogue], num_workers=1)
    assert "RuntimeError: this is no numpy" in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_worker_that_cannot_be_started_stops_those_that_were(monkeypatch):
    started = []

    class Scarce(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            if len(started) == 2:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            super().__init__(*args, **kwargs)
            started.append(self.pid)

    monkeypatch.setattr(subprocess, "Popen", Scarce)
    with pytest.raises(PoolError, match=r"worker 3 of 4 could not be started.*ulimit -u") as caught:
        EnvPool([Rogue] * 4, num_workers=4)
    assert caught.value.env_indices == (2,)
    assert len(started) == 2
    assert all(has_gone(pid, 0) for pid in started)


def test_a_failed_start_leaves_neither_processes_nor_descriptors():
    def held():
        return sorted(os.listdir("/proc/self/fd"))

    before = held()
    for factory in (lambda: 1 / 0, lambda: os._exit(1), lambda: None):
        with pytest.raises(PoolError):
            EnvPool([Rogue, factory], num_workers=2)
        assert held() == before
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)


def test_an_interrupted_start_leaves_nothing():
    def factory():
        os.kill(os.getppid(), signal.SIGINT)
        return Rogue()

    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt):
        EnvPool([Rogue, factory], num_workers=2)
    assert sorted(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_pool_may_be_built_and_closed_by_threads_that_end():
    made = []
    builder = threading.Thread(target=lambda: made.append(EnvPool([Rogue], num_workers=1)))
    builder.start()
    builder.join()
    (pool,) = made
    pool.reset(seed=0)
    stepper = threading.Thread(target=lambda: made.append(pool.step([0])[1].tolist()))
    stepper.start()
    stepper.join()
    assert made[1] == [1.0]
    closer = threading.Thread(target=pool.close)
    closer.start()
    closer.join()
    assert pool.closed
