"""``send`` and ``recv``: the same trajectories as lock-step, and nothing lost."""

import threading
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import WORKER_COUNTS
from probe_env import Probe
from swm_async import EnvError, EnvPool, WorkerDied, WorkerTimeout

N = 4


class Drifter(gymnasium.Env):
    """Adds its actions to a start drawn by its seed; its infos change kind on the way."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(size=2)
        self.count = 0
        return self.place.copy(), self._info()

    def step(self, action):
        self.count += 1
        self.place[int(action) % 2] += int(action)
        return self.place.copy(), self.place[0], self.count % 7 == 0, False, self._info()

    def _info(self):
        info = {"place": self.place, "count": self.count, "name": f"at {self.count // 3}"}
        info["grows"] = 0.5 if self.count == 4 else self.count
        if self.count % 3 == 2:
            info["sometimes"] = self.count
        if self.count == 5:
            info["late"] = np.arange(3)
        return info


def rows_of(result):
    """What a call says of each row: observation, reward, flags and infos."""
    observations, rewards, terminateds, truncateds, infos = result[:5]
    return [
        {
            "observation": observations[i].tolist(),
            "reward": float(rewards[i]),
            "terminated": bool(terminateds[i]),
            "truncated": bool(truncateds[i]),
            "place": infos["place"][i].tolist(),
            "count": infos["count"][i].tolist(),
            "name": infos["name"][i],
            "grows": float(infos["grows"][i, 0]),
            "sometimes": float(infos["sometimes"][i, 0]) if "sometimes" in infos else None,
            "late": infos["late"][i].tolist() if "late" in infos else None,
        }
        for i in range(len(rewards))
    ]


def plain_rows(env, action=None, seed=None):
    """The same of one environment in a plain loop, for the keys that are always reported."""
    if action is None:
        observation, info = env.reset(seed=seed)
        reward, terminated, truncated = 0.0, False, False
    else:
        observation, reward, terminated, truncated, info = env.step(action)
    return {
        "observation": observation.tolist(),
        "reward": float(np.float32(reward)),
        "terminated": terminated,
        "truncated": truncated,
        "place": [info["place"].tolist()],
        "count": [info["count"]],
        "name": [info["name"]],
        "grows": float(info["grows"]),
    }


masks = st.lists(st.booleans(), min_size=N, max_size=N)
moves = st.lists(
    st.tuples(
        st.sampled_from(["send", "reset", "recv", "recv one", "look", "step"]),
        masks,
        st.lists(st.integers(0, 4), min_size=N, max_size=N),
    ),
    max_size=30,
)


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_any_program_of_sends_and_receives_gives_the_trajectories_of_a_plain_loop(num_workers):
    with EnvPool([Drifter] * N, num_workers=num_workers) as pool:

        @settings(parent=settings())
        @given(moves, st.integers(0, 1000))
        def run(program, seed):
            play(pool, program, seed)

        run()


def play(pool, program, seed):
    plain = [Drifter() for _ in range(N)]
    pool.reset(seed=seed)
    expected = [plain_rows(plain[i], seed=seed + i) for i in range(N)]
    busy = np.zeros(N, bool)
    received = [None] * N
    for what, mask, actions in program:
        mask = np.array(mask)
        if what in ("send", "reset", "step"):
            chosen = mask & ~busy
            if what == "reset":
                pool.send_reset(seed=seed, mask=chosen)
            elif what == "send":
                pool.send(actions, mask=chosen)
            else:
                rows = rows_of(pool.step(actions, mask=chosen))
            for i in np.flatnonzero(chosen):
                if what == "reset":
                    expected[i] = plain_rows(plain[i], seed=seed + int(i))
                else:
                    expected[i] = plain_rows(plain[i], action=actions[i])
                if what == "step":
                    check(rows[i], expected[i])
            busy |= chosen if what != "step" else False
        elif (busy & mask).any():
            before = busy & mask
            kwargs = {"recv one": {"min_envs": 1}, "look": {"timeout": 0}}.get(what, {})
            *result, ready = pool.recv(mask=mask, **kwargs)
            rows = rows_of(result)
            assert not (ready & ~before).any()
            assert ready.sum() >= {"recv one": 1, "look": 0}.get(what, before.sum())
            for i in np.flatnonzero(ready):
                check(rows[i], expected[i])
                received[i] = rows[i]
            busy &= ~ready
        assert pool.busy.tolist() == busy.tolist()
    if busy.any():
        *result, ready = pool.recv()
        assert ready.tolist() == busy.tolist()
        rows = rows_of(result)
        for i in np.flatnonzero(ready):
            check(rows[i], expected[i])


def check(found, expected):
    assert {key: found[key] for key in expected} == expected


# One rule at a time.


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_step_is_send_then_recv(num_workers):
    actions = [1, 2, 3, 4]
    with EnvPool([Drifter] * N, num_workers=num_workers) as pool:
        pool.reset(seed=3)
        stepped = rows_of(pool.step(actions, mask=[True, False, True, True]))
        pool.reset(seed=3, mask=[True] * N)
        pool.send(actions, mask=[True, False, True, True])
        *result, ready = pool.recv()
    assert ready.tolist() == [True, False, True, True]
    assert rows_of(result) == stepped


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_busy_environments_accept_nothing_else(num_workers):
    with EnvPool([Drifter] * N, num_workers=num_workers) as pool:
        with pytest.raises(ResetNeeded):
            pool.send([0] * N)
        pool.reset(seed=0)
        with pytest.raises(NoAsyncCallError):
            pool.recv()
        first = [True, False, False, False]
        pool.send([1] * N, mask=first)
        for call in (
            lambda: pool.send([0] * N, mask=first),
            lambda: pool.send_reset(mask=first),
            lambda: pool.step([0] * N),
            lambda: pool.reset(),
            lambda: pool.reset(mask=first),
            lambda: pool.call("render"),
            lambda: pool.envs[0].count,
        ):
            with pytest.raises(AlreadyPendingCallError, match=r"\[0\]"):
                call()
        with pytest.raises(NoAsyncCallError):
            pool.recv(mask=[False, True, True, True])
        assert pool.envs[1].count == 0
        assert (
            pool.step([1] * N, mask=[False, True, True, True])[4]["count"][1:].tolist() == [[1]] * 3
        )
        assert pool.busy.tolist() == first
        assert pool.recv()[4]["count"].tolist() == [[1]] * N


def test_bad_arguments_of_recv_are_refused_and_lose_nothing():
    with EnvPool([Drifter] * N, num_workers=2) as pool:
        pool.reset(seed=0)
        pool.send([1] * N)
        with pytest.raises(ValueError, match="min_envs"):
            pool.recv(min_envs=0)
        with pytest.raises(ValueError, match="timeout"):
            pool.recv(timeout=-1)
        assert pool.recv()[5].all()


class Gate(Probe):
    """A step with action 1 waits until a file appears."""

    def open_at(self, path):
        self.path = path

    def step(self, action):
        if action == 1:
            with open(self.path) as pipe:  # blocks until somebody writes
                pipe.read()
        return super().step(action)


@pytest.fixture
def gate(tmp_path):
    import os

    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def test_a_timeout_returns_what_is_ready_and_loses_nothing(gate):
    with EnvPool([Gate] * N, num_workers=N) as pool:
        pool.reset(seed=0)
        pool.call("open_at", str(gate))
        pool.send([0, 1, 0, 0])
        *_, ready = pool.recv(min_envs=3)
        assert ready.tolist() == [True, False, True, True]
        *_, infos, ready = pool.recv(timeout=0.01)
        assert not ready.any()
        assert pool.busy.tolist() == [False, True, False, False]
        pool.send([0] * N, mask=[True, False, True, True])
        gate.write_text("")
        *_, infos, ready = pool.recv()
        assert ready.all()
        assert infos["count"].ravel().tolist() == [2, 1, 2, 2]


def test_commands_for_idle_mates_wait_for_their_busy_worker(gate):
    with EnvPool([Gate] * N, num_workers=2) as pool:
        pool.reset(seed=0)
        pool.call("open_at", str(gate))
        pool.send([1, 0, 0, 0], mask=[True, False, False, False])
        pool.send([0] * N, mask=[False, True, True, False])
        *_, ready = pool.recv(min_envs=1)
        assert ready.tolist() == [False, False, True, False]
        gate.write_text("")
        *_, infos, ready = pool.recv()
        assert ready.tolist() == [True, True, False, False]
        assert infos["count"].ravel().tolist() == [1, 1, 1, 0]


def test_rows_outside_the_mask_are_left_for_a_later_call():
    with EnvPool([Drifter] * N, num_workers=2) as pool:
        pool.reset(seed=0)
        pool.send([1] * N)
        *_, ready = pool.recv(mask=[False, True, False, True])
        assert ready.tolist() == [False, True, False, True]
        assert pool.busy.tolist() == [True, False, True, False]
        *result, ready = pool.recv()
        assert ready.tolist() == [True, False, True, False]
        assert result[1].tolist() == [
            pytest.approx(result[0][i, 0]) if ready[i] else 0 for i in range(N)
        ]


def test_a_thread_may_send_while_another_waits_in_recv(gate):
    with EnvPool([Gate] * 2, num_workers=2) as pool:
        pool.reset(seed=0)
        pool.call("open_at", str(gate))
        pool.send([1, 0], mask=[True, False])
        results = []
        waiter = threading.Thread(target=lambda: results.append(pool.recv(mask=[True, False])))
        waiter.start()
        pool.send([0, 0], mask=[False, True])
        assert pool.recv(mask=[False, True])[5].tolist() == [False, True]
        assert not results
        gate.write_text("")
        waiter.join()
        assert results[0][5].tolist() == [True, False]


# Failures.


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_an_exception_is_raised_by_the_recv_that_returns_its_row(num_workers):
    with EnvPool([Probe] * N, num_workers=num_workers) as pool:
        pool.reset(seed=0)
        pool.envs[2].plan("step", "raise")
        pool.send([0] * N)
        if num_workers == N:
            pool.recv(mask=[True, True, False, True])
        with pytest.raises(EnvError, match="environment 2") as caught:
            pool.recv()
        result = caught.value.result
        assert result[5][2]
        assert result[1][2] == 0
        assert not pool.busy.any()
        pool.envs[2].plan(None, None)
        pool.reset(mask=[False, False, True, False])
        assert pool.step([0] * N)[4]["count"].ravel().tolist() == [2, 2, 1, 2]


@pytest.mark.parametrize(("deed", "error"), [("kill", WorkerDied), ("spin", WorkerTimeout)])
def test_a_lost_worker_is_an_error_of_recv(deed, error):
    pool = EnvPool([Probe] * N, num_workers=2, step_timeout=0.5)
    pool.reset(seed=0)
    pool.envs[3].plan("step", deed)
    pool.send([0] * N)
    with pytest.raises(error) as caught:
        pool.recv()
    assert caught.value.env_indices == (2, 3)
    assert pool.closed


@pytest.mark.parametrize("deed", ["kill", "raise", "spin"])
def test_what_failed_in_flight_is_built_anew_where_asked_for(deed):
    with EnvPool([Probe] * N, num_workers=N, step_timeout=0.5, on_failure="restart") as pool:
        pool.reset(seed=0)
        pool.envs[1].plan("step", deed)
        pool.send([0] * N)
        with pytest.warns(UserWarning, match="environment 1 built anew"):
            _, rewards, _, truncateds, infos, ready = pool.recv()
        assert ready.all()
        assert rewards.tolist() == [1, 0, 1, 1]
        assert truncateds.tolist() == [False, True, False, False]
        assert infos["_restarted"].tolist() == [False, True, False, False]
        pool.send_reset(mask=infos["_restarted"])
        pool.recv()
        assert pool.step([0] * N)[4]["count"].ravel().tolist() == [2, 1, 2, 2]


@pytest.mark.parametrize("deed", ["kill", "raise"])
def test_a_reset_that_failed_in_flight_is_repeated(deed):
    with EnvPool([Probe] * N, num_workers=N, on_failure="restart") as pool:
        pool.reset(seed=0)
        pool.envs[1].plan("reset", deed)
        pool.send_reset(seed=9)
        with pytest.warns(UserWarning, match="environment 1 built anew"):
            *_, infos, ready = pool.recv()
        while not ready[1]:
            *_, infos, ready = pool.recv()
        assert not infos["_restarted"].any()
        assert pool.seeds.tolist() == [9, 10, 11, 12]
        assert pool.step([0] * N)[4]["count"].ravel().tolist() == [1] * N


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_a_pool_can_be_closed_with_commands_under_way(num_workers):
    pool = EnvPool([Drifter] * N, num_workers=num_workers)
    pool.reset(seed=0)
    pool.send([1] * N)
    pool.close()
    assert pool.closed


# Layouts that grow under way.


class Grower(Gate):
    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"x": 0.5 if action == 2 else self.count}

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"x": 10}


def test_rows_that_are_late_for_a_wider_array_move_there(gate):
    with EnvPool([Grower] * 3, num_workers=3) as pool:
        _, infos = pool.reset(seed=0)
        narrow = infos["x"]
        pool.call("open_at", str(gate))
        pool.send([1, 2, 0])
        *_, infos, ready = pool.recv(min_envs=2)
        assert ready.tolist() == [False, True, True]
        assert infos["x"].dtype == np.float64
        assert infos["x"][1:].ravel().tolist() == [0.5, 1.0]
        assert narrow[1:].ravel().tolist() == [10, 1]
        gate.write_text("")
        *_, infos, ready = pool.recv()
        assert ready.tolist() == [True, False, False]
        assert infos["x"].ravel().tolist() == [1.0, 0.5, 1.0]


class Namer(Gate):
    """Reports a number at reset and a text at each step: the array becomes a list."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"x": 2.5}

    def step(self, action):
        *outcome, _ = super().step(action)
        return *outcome, {"x": f"step {self.count}"}


def test_a_value_that_is_late_for_a_list_is_not_replaced_by_what_was_in_the_array(gate):
    with EnvPool([Namer] * 2, num_workers=2) as pool:
        pool.reset(seed=0)
        pool.call("open_at", str(gate))
        pool.send([1, 0])
        with pytest.warns(UserWarning, match="'x' becomes a list"):
            *_, infos, ready = pool.recv(min_envs=1)
        assert ready.tolist() == [False, True]
        assert infos["x"][1] == ["step 1"]
        gate.write_text("")
        *_, infos, ready = pool.recv()
        assert infos["x"] == [["step 1"], ["step 1"]]
        assert pool.step([0, 0])[4]["x"] == [["step 2"], ["step 2"]]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3, 5])
def test_groups_divide_along_shard_borders(num_workers):
    with EnvPool([Probe] * 5, num_workers=num_workers) as pool:
        for count in range(1, 6):
            groups = pool.groups(count)
            assert len(groups) == count
            assert np.sum(groups, axis=0).tolist() == [1] * 5
            assert all(group.any() for group in groups)
        with pytest.raises(ValueError, match="count"):
            pool.groups(6)
    if num_workers in (2, 3):
        workers = {2: [0, 0, 0, 1, 1], 3: [0, 0, 1, 1, 2]}[num_workers]
        with EnvPool([Probe] * 5, num_workers=num_workers) as pool:
            for group in pool.groups(2):
                inside = {workers[i] for i in np.flatnonzero(group)}
                outside = {workers[i] for i in np.flatnonzero(~group)}
                assert not inside & outside


def test_waiting_for_the_first_does_not_wait_for_the_slowest(gate):
    with EnvPool([Gate] * 8, num_workers=8) as pool:
        pool.reset(seed=0)
        pool.call("open_at", str(gate))
        pool.send([1] + [0] * 7)
        for _ in range(20):
            *_, ready = pool.recv(min_envs=1)
            assert not ready[0]
            pool.send([0] * 8, mask=ready)
        started = time.monotonic()
        gate.write_text("")
        assert pool.recv(mask=[True] + [False] * 7)[5][0]
        assert time.monotonic() - started < 5
        pool.recv()
