"""A worker or an environment fails, and the caller learns what has happened."""

import os
import pickle
import signal
import time
from functools import partial

import pytest
from gymnasium.error import ClosedEnvironmentError

from on_ray import KILLED, processes_only
from processes import has_gone
from rogue_env import RaisesWhenItGoes, Rogue
from swm_async import EnvError, EnvPool, WorkerDied
from swm_workers.failures import capture

SOON_S = 5.0
"""Far more than an error takes to come, far less than any wait of the pool's for something."""


@processes_only
def test_a_crash_in_compiled_code_names_the_signal_and_shows_where_python_stood():
    pool = EnvPool([Rogue], num_workers=1)
    pool.reset(seed=0)
    pool.envs[0].plan("step", "crash")
    with pytest.raises(WorkerDied, match=r"SIGSEGV.*segmentation fault") as caught:
        pool.step([0])
    assert caught.value.exit_code == -signal.SIGSEGV
    assert "rogue_env.py" in str(caught.value)


def test_workers_that_die_in_the_same_step_are_all_named():
    pool = EnvPool([Rogue] * 5, num_workers=3)
    pool.reset(seed=0)
    pids = pool.call("pid")
    pool.call("plan", "step", "kill", mask=[True, False, True, False, False])
    with pytest.raises(WorkerDied, match="died during step") as caught:
        pool.step([0] * 5)
    assert caught.value.env_indices == (0, 1, 2, 3)
    assert caught.value.result[1].tolist() == [0, 0, 0, 0, 1]
    assert all(has_gone(pid) for pid in pids)


@processes_only
def test_an_exception_in_one_worker_does_not_hide_the_death_of_another():
    pool = EnvPool([Rogue] * 2, num_workers=2)
    pool.reset(seed=0)
    pool.envs[0].plan("step", "raise", "like an end of file")
    pool.envs[1].plan("step", "exit", 4)
    with pytest.raises(WorkerDied, match=r"environment 1 .*exit code 4") as caught:
        pool.step([0, 0])
    (other,) = caught.value.others
    assert isinstance(other, EnvError)
    assert (other.env_index, other.failures[0].message) == (0, "of the environment")


CALLS = {
    "a step": lambda pool: pool.step([0, 0]),
    "a masked reset": lambda pool: pool.reset(mask=[True, True]),
    "a reset of all, which shares new memory": lambda pool: pool.reset(),
    "a call": lambda pool: pool.call("pid"),
    "a send and a recv": lambda pool: pool.send([0, 0]) or pool.recv(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_worker_that_dies_right_after_its_reply_is_reported_by_the_next_call(call):
    pool = EnvPool([Rogue] * 2, num_workers=2)
    pool.reset(seed=0)
    pool.step([0, 0])
    victim = pool.call("pid")[0]
    os.kill(victim, signal.SIGKILL)  # and it is not waited for
    started = time.monotonic()
    with pytest.raises(WorkerDied, match=rf"(?s)environment 0 .*{KILLED}") as caught:
        call(pool)
    assert time.monotonic() - started < SOON_S
    assert (caught.value.env_indices, caught.value.pid) == ((0,), victim)
    with pytest.raises(ClosedEnvironmentError, match="died during"):
        pool.step([0, 0])


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_worker_that_dies_right_after_its_reply_is_replaced_by_the_next_call(call):
    with EnvPool([Rogue] * 2, num_workers=2, on_failure="restart") as pool:
        pool.reset(seed=0)
        pool.step([0, 0])
        victim, other = pool.call("pid")
        os.kill(victim, signal.SIGKILL)
        with pytest.warns(UserWarning, match=f"(?s)environment 0 built anew.*{KILLED}"):
            call(pool)
        pids = pool.call("pid")
        assert pids[0] != victim
        assert pids[1] == other
        _, infos = pool.reset(seed=1, mask=[True, False])
        before = int(infos["count"][1, 0])
        assert pool.step([0, 0])[4]["count"].ravel().tolist() == [1, before + 1]


EXPECTED = {
    "text raises": ("rogue_env.TextRaises", "<text of the exception not available: SystemExit>"),
    "text is odd": ("rogue_env.TextIsOdd", "an odd text"),
    "syntax is odd": ("rogue_env.SyntaxIsOdd", "strange"),
    "reduction exits": ("rogue_env.ReductionExits", "apart"),
    "rebuilding exits": ("rogue_env.RebuildingExits", "together"),
    "ten megabytes": ("ValueError", "x" * 10_000_000),
    "not in UTF-8": ("ValueError", "a\udc80b\0c"),
    "causes in a circle": ("ValueError", "first"),
    "like a broken pipe": ("BrokenPipeError", "of the environment"),
    "like an end of file": ("EOFError", "of the environment"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_exception_of_any_class_arrives_by_name_and_text(name):
    with EnvPool([Rogue] * 3, num_workers=1) as pool:
        pool.reset(seed=0)
        pool.envs[1].plan("step", "raise", name)
        with pytest.raises(EnvError) as caught:
            pool.step([0, 0, 0])
        (failure,) = caught.value.failures
        assert (failure.env_index, failure.type_name, failure.message) == (1, *EXPECTED[name])
        assert "rogue_env.py" in failure.traceback
        assert caught.value.result[1].tolist() == [1, 0, 1]
        pool.envs[1].plan(None)
        pool.reset(seed=0)
        assert pool.step([0, 0, 0])[1].tolist() == [1, 1, 1]


def test_the_record_of_an_exception_is_made_of_plain_strings():
    class Text(str):
        pass

    class Odd(Exception):
        __module__ = Text("somewhere")

        def __str__(self):
            return Text("something")

    record = capture(2, "step", Odd())
    assert pickle.loads(pickle.dumps(record)) == record
    for text in (record.type_name, record.message, record.traceback):
        assert type(text) is str


class Unloadable:
    """A factory that can be pickled, and not unpickled."""

    def __reduce__(self):
        return _fail_to_load, ()

    def __call__(self):
        return Rogue()


def _fail_to_load():
    raise ImportError("no such simulator here")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_factory_that_cannot_be_loaded_is_named_among_its_shard(num_workers):
    factories = [Rogue, Rogue, Unloadable(), Rogue]
    with pytest.raises(EnvError, match="environment 2, build: ImportError: no such") as caught:
        EnvPool(factories, num_workers=num_workers)
    assert caught.value.env_index == 2


def test_what_factories_share_stays_shared_within_a_worker():
    boxes = [0]

    def factory():
        boxes[0] += 1
        env = Rogue()
        env.built = boxes[0]
        return env

    with EnvPool([factory, partial(factory), factory], num_workers=1) as pool:
        assert pool.get_attr("built") == [1, 2, 3]
    assert boxes == [0]


def _fail_with_a_destructor():
    kept = RaisesWhenItGoes()
    raise ValueError(f"the first error, before {type(kept).__name__}")


@processes_only
def test_a_destructor_that_raises_does_not_hide_the_error(capfd):
    with pytest.raises(EnvError) as caught:
        EnvPool([_fail_with_a_destructor], num_workers=1)
    assert [f.headline for f in caught.value.failures] == [
        "environment 0, build: ValueError: the first error, before RaisesWhenItGoes"
    ]
    # The interpreter of the worker says that it has ignored the other one.
    assert "Exception ignored in" in capfd.readouterr().err


@processes_only
@pytest.mark.parametrize("then", ["return", "raise"])
def test_a_forked_child_that_comes_back_from_its_environment_ends(capfd, then):
    with EnvPool([Rogue] * 2, num_workers=2) as pool:
        pool.reset(seed=0)
        assert pool.call("do", "fork", then, mask=[True, False]) == [70, None]
        assert pool.step([0, 0])[1].tolist() == [1, 1]
    errors = capfd.readouterr().err
    assert errors.count("\n") == errors.count("a process that an environment forked came back") == 1
