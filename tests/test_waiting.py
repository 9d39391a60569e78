"""Waiting awake changes nothing but the time that it takes, and never goes on in vain."""

import math
import os
import select
import time
from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import envs
from swm_async import EnvPool, VectorEnv, arguments
from swm_async.arguments import awake_seconds, usable_cores
from swm_async.backends import process
from swm_workers import protocol, waiting
from swm_workers.waiting import AWAKE_S, Waiter

NOW = math.inf
"""There was no work before the wait."""


class Sight:
    """Counts the looks at a pipe, and how often the core was given away between them."""

    def __init__(self, monkeypatch, comes_after=None, clock=None):
        self.looks = 0
        self.gifts = 0
        self.comes_after = comes_after
        self.now = 0.0
        monkeypatch.setattr(waiting.select, "poll", lambda: self)
        monkeypatch.setattr(waiting.os, "sched_yield", self.give_way)
        monkeypatch.setattr(waiting.time, "perf_counter", lambda: self.now)

    def register(self, fd, event):
        assert event == select.POLLIN

    def poll(self, timeout_ms):
        assert timeout_ms == 0
        self.looks += 1
        found = self.comes_after is not None and self.gifts >= self.comes_after
        return [(0, select.POLLIN)] if found else []

    def give_way(self):
        self.gifts += 1
        self.now += 1.0


def test_what_is_there_is_seen_at_the_first_look(monkeypatch):
    sight = Sight(monkeypatch, comes_after=0)
    Waiter(0, 10.0).look(NOW)
    assert (sight.looks, sight.gifts) == (1, 0)


def test_whoever_has_just_looked_gives_way_first(monkeypatch):
    sight = Sight(monkeypatch, comes_after=0)
    Waiter(0, 10.0).look_again(NOW)
    assert (sight.looks, sight.gifts) == (1, 1)


def test_the_core_is_given_away_between_two_looks(monkeypatch):
    sight = Sight(monkeypatch, comes_after=4)
    Waiter(0, 10.0).look(NOW)
    assert (sight.looks, sight.gifts) == (5, 4)


def test_without_seconds_nobody_looks(monkeypatch):
    sight = Sight(monkeypatch)
    waiter = Waiter(0, 0.0)
    for _ in range(1000):
        waiter.look(NOW)
        waiter.look_again(NOW)
    assert (sight.looks, sight.gifts) == (0, 0)


@pytest.mark.parametrize(
    ("work_s", "awake_s"), [(0, 10), (80, 10), (160, 20), (400, 50), (1e6, 50)]
)
def test_after_long_work_a_wait_stays_awake_for_longer_but_not_for_ever(
    monkeypatch, work_s, awake_s
):
    sight = Sight(monkeypatch)
    sight.now = 1e6
    Waiter(0, 10.0).look(sight.now - work_s)
    assert sight.now - 1e6 == awake_s + 1  # the clock ticks once between two looks


def test_whoever_shares_a_core_with_the_writer_does_not_look(monkeypatch):
    sight = Sight(monkeypatch)
    waiter = Waiter(0, 10.0)
    for _ in range(1000):
        waiter.look_again(NOW, protocol.NEAR)
    assert (sight.looks, sight.gifts) == (0, 0)
    sight.comes_after = 1
    waiter.look_again(NOW)  # nothing was in vain
    assert (sight.looks, sight.gifts) == (1, 1)


@pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")
def test_only_the_worker_on_the_pools_own_core_is_told_that_it_is_near(monkeypatch):
    with EnvPool([envs.Ledger] * 4, num_workers=2, pin_workers=True) as pool:
        backend = pool._engine._backend
        cores = backend._cores
        actions = np.zeros((4, 2), np.float32)
        pool.reset(seed=0)
        pool.step(actions)  # the first one tells of the layout, too
        written = {}

        def write(fd, data):
            written[fd] = protocol.HEADER.unpack(data)[2] & protocol.NEAR
            return os.write(fd, data)

        monkeypatch.setattr(
            process, "os", SimpleNamespace(write=write, read=os.read, urandom=os.urandom)
        )
        for here in (*cores, cores[0]):
            monkeypatch.setattr(process, "current_core", lambda here=here: here)
            pool.step(actions)
            told = dict(zip(cores, (written[w.command_fd] for w in backend.workers), strict=True))
            assert told == {core: protocol.NEAR if core == here else 0 for core in cores}


def test_looks_in_vain_are_followed_by_more_and_more_waits_asleep(monkeypatch):
    sight = Sight(monkeypatch)
    waiter = Waiter(0, 10.0)
    asleep_between = []
    for _ in range(12):
        waits = 0
        gifts = sight.gifts
        while sight.gifts == gifts:
            waiter.look(NOW)
            waits += 1
        asleep_between.append(waits - 1)
        assert sight.gifts - gifts == 11  # of 1 s each: one more than 10 s hold
    assert asleep_between == [0, 1, 3, 7, 15, 31, 63, 127, 255, 255, 255, 255]


def test_what_comes_in_time_makes_the_next_waits_awake_again(monkeypatch):
    sight = Sight(monkeypatch)
    waiter = Waiter(0, 10.0)
    for _ in range(1 + 1 + 1 + 3):
        waiter.look(NOW)
    sight.comes_after = 0
    for _ in range(3):
        looks = sight.looks
        waiter.look(NOW)
        assert sight.looks == looks + 1


def test_a_core_that_is_given_back_late_is_left_to_others(monkeypatch):
    sight = Sight(monkeypatch, comes_after=1)

    def give_way():
        sight.gifts += 1
        sight.now += 300.0

    monkeypatch.setattr(waiting.os, "sched_yield", give_way)
    waiter = Waiter(0, 10.0)
    waiter.look(NOW)
    looks = sight.looks
    waiter.look(NOW)
    assert sight.looks == looks


def test_after_a_hundred_finds_at_the_first_look_a_waiter_is_sure_until_it_is_in_doubt(monkeypatch):
    sight = Sight(monkeypatch, comes_after=0)
    waiter = Waiter(0, 10.0)
    for _ in range(99):
        waiter.look(NOW)
    assert not waiter.is_sure
    sight.comes_after = 1
    waiter.look(NOW)  # found at the second look: it has to begin anew
    sight.comes_after = 0
    for _ in range(99):
        waiter.look(NOW)
    assert not waiter.is_sure
    waiter.look(NOW)
    assert waiter.is_sure
    waiter.doubt()
    assert not waiter.is_sure
    waiter.look(NOW)
    assert not waiter.is_sure


@pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("late_s", [math.inf, -math.inf])
def test_whoever_is_sure_reads_without_a_look_and_doubts_once_that_took_long(monkeypatch, late_s):
    with EnvPool([envs.Ledger] * 4, num_workers=2, pin_workers=True) as pool:
        backend = pool._engine._backend
        actions = np.zeros((4, 2), np.float32)
        pool.reset(seed=0)
        pool.step(actions)
        waiters = [worker.waiter for worker in backend.workers]
        looks = []
        for waiter in waiters:
            waiter.is_sure = True
            waiter.look = looks.append
        monkeypatch.setattr(process, "current_core", lambda: backend._cores[0])
        monkeypatch.setattr(process, "LATE_S", late_s)
        for count in range(2, 5):
            infos = pool.step(actions)[-1]
            np.testing.assert_array_equal(infos["steps"], [[count]] * 4)
        # The reply of worker 0, which is on this core, is read first, asleep.
        assert [waiter.is_sure for waiter in waiters] == [True, late_s > 0]
        assert len(looks) == (0 if late_s > 0 else 2)


def test_a_wait_on_a_pipe_ends_by_itself_and_leaves_what_is_in_it():
    read, write = os.pipe()
    try:
        waiter = Waiter(read, 1e-3)
        waiter.look(NOW)  # nothing there
        os.write(write, b"here")
        waiter.look(NOW)
        waiter.look(NOW)
        assert os.read(read, 16) == b"here"
    finally:
        os.close(read)
        os.close(write)


def test_a_closed_pipe_is_something_to_read():
    read, write = os.pipe()
    os.close(write)
    waiter = Waiter(read, 60.0)
    started = time.monotonic()
    waiter.look_again(NOW)
    assert time.monotonic() - started < 30
    os.close(read)


# Where it is on.


@pytest.fixture
def machine(monkeypatch):
    def of(cores, quota=None):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
        monkeypatch.setattr(arguments, "_quota", lambda: quota)

    return of


@pytest.mark.parametrize(
    ("cores", "quota", "most_workers"),
    [(1, None, 0), (2, None, 2), (8, None, 8), (8, 4.0, 3), (8, 1.5, 1), (8, 1.0, 0)],
)
def test_by_default_it_is_on_where_everybody_has_a_core(machine, cores, quota, most_workers):
    machine(cores, quota)
    on = [w for w in range(1, 12) if awake_seconds(w, None)]
    assert on == list(range(1, most_workers + 1))


def test_the_switch_wins_over_the_number_of_cores(machine):
    machine(2)
    assert awake_seconds(64, True) == AWAKE_S
    assert awake_seconds(1, False) == 0.0


@pytest.mark.parametrize("make", [EnvPool, VectorEnv])
@pytest.mark.parametrize("spin", [1, "yes", np.True_])
def test_the_switch_is_a_bool_or_none(make, spin):
    with pytest.raises(TypeError, match="spin must be a bool or None; found"):
        make([envs.Ledger] * 2, num_workers=1, spin=spin)


@pytest.mark.parametrize("num_workers", [1, usable_cores(), 3])
@pytest.mark.parametrize("spin", [False, True])
def test_the_results_are_the_same_awake_and_asleep(spin, num_workers):
    makers = [partial(gymnasium.make, "CartPole-v1")] * 6
    rng = np.random.default_rng(3)
    with (
        EnvPool(makers, num_workers=num_workers, spin=spin) as pool,
        EnvPool(makers, num_workers=0) as plain,
    ):
        pool.reset(seed=5)
        plain.reset(seed=5)
        for _ in range(600):  # more than the longest rest
            actions, mask = rng.integers(0, 2, 6), rng.random(6) < 0.7
            found, expected = pool.step(actions, mask=mask), plain.step(actions, mask=mask)
            for mine, other in zip(found[:4], expected[:4], strict=True):
                np.testing.assert_array_equal(mine, other, strict=True)
            finished = found[2] | found[3]
            pool.reset(mask=finished)
            plain.reset(mask=finished)
