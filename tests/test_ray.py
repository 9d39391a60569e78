"""Pools whose workers are actors of Ray: what they must do as others do, and what they add."""

import gc
import json
import os
import signal
from functools import partial

import gymnasium
import numpy as np
import pytest

from on_ray import ENABLED, actors_left, living_actors, local_ray
from probe_env import Probe
from processes import has_gone, run_script
from swm_async import (
    EnvPool,
    PointGoalExpert,
    VectorEnv,
    WorkerDied,
    WorkerTimeout,
    World,
)

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(ENABLED, reason="has a Ray of its own"),
    pytest.mark.timeout(300),
]

POINT_GOAL = "swm_async/PointGoal-v0"
ALL = [0] * 4


@pytest.fixture(scope="module")
def cluster():
    with local_ray(num_cpus=4) as ray:
        yield ray


@pytest.fixture(autouse=True)
def nothing_left_behind(request, cluster):
    """No actor; Ray's own processes and descriptors come and go as it likes."""
    before = living_actors()
    yield
    request.node.funcargs.clear()
    assert actors_left(before) == []


class Large(gymnasium.Env):
    """Observations that Ray puts into its store; row i shows the environment and its steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (200, 200, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(9)

    def __init__(self, index):
        self._index = index

    def reset(self, *, seed=None, options=None):
        self._count = 0
        return self._seen(), {}

    def step(self, action):
        self._count += int(action)
        return self._seen(), float(action), False, False, {"action": int(action)}

    def _seen(self):
        seen = np.full((200, 200, 3), self._index, np.uint8)
        seen[-1] = self._count
        return seen


class Interrupts(Probe):
    """Interrupts the pool's process in a step, which then lasts until the other side has opened."""

    def interrupt(self, pid, path):
        self._pid, self._path = pid, path
        self.plan("step", None)

    def _do(self, when):
        if (when, None) == self._plan:
            self.plan(None, None)
            os.kill(self._pid, signal.SIGINT)
            with open(self._path):  # a named pipe: until somebody opens it for writing
                pass
        else:
            super()._do(when)


def pool_of(*args, **kwargs):
    return EnvPool([partial(Probe, *args)] * 4, num_workers=2, backend="ray", **kwargs)


def arrays_in(folder):
    """Everything that was recorded but how long drawing took."""
    found = {}
    for path in sorted(folder.glob("**/*.npz")):
        with np.load(path) as file:
            for key in file.files:
                if "render_time" not in key:
                    found[path.name, key] = file[key]
    return found


def test_evaluate_and_collect_give_what_environments_in_this_process_give(tmp_path, cluster):
    results, recorded = [], []
    for name, arguments in (
        ("here", {"num_workers": 0}),
        ("ray", {"num_workers": 2, "backend": "ray"}),
    ):
        with World(POINT_GOAL, 4, (24, 24), max_episode_steps=15, **arguments) as world:
            world.set_policy(PointGoalExpert())
            options = {"variation": ["all"]}
            results.append(world.evaluate(6, seed=3, options=options))
            world.collect(tmp_path / name, 5, seed=8, options=options)
        recorded.append(arrays_in(tmp_path / name))
    here, there = results
    assert here.keys() == there.keys()
    for key in here:
        np.testing.assert_equal(there[key], here[key])
    assert len({name for name, _ in recorded[0]}) >= 5
    assert recorded[0].keys() == recorded[1].keys()
    for key, values in recorded[0].items():
        np.testing.assert_array_equal(recorded[1][key], values, strict=True)


def test_rows_that_go_through_the_store_of_objects_land_where_they_belong():
    with EnvPool([partial(Large, i) for i in range(4)], num_workers=2, backend="ray") as pool:
        observations, _ = pool.reset()
        assert observations[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
        pool.step([1, 2, 3, 4])
        before = observations.copy()
        _, rewards, _, _, infos = pool.step([5, 5, 5, 5], mask=[False, True, True, True])
        assert rewards.tolist() == [0, 5, 5, 5]
        assert observations[:, -1, 0, 0].tolist() == [1, 7, 8, 9]
        assert observations[:, -1].min(axis=(1, 2)).tolist() == [1, 7, 8, 9]
        np.testing.assert_array_equal(observations[:, :-1], before[:, :-1])
        assert infos["action"].ravel().tolist() == [1, 5, 5, 5]


def test_values_that_the_pool_itself_has_stored_last_as_long_as_those_of_workers():
    """A new key comes in a reply, and its row is the pool's work: the actor must learn of it."""
    with EnvPool([partial(Once, i) for i in range(4)], num_workers=2, backend="ray") as pool:
        pool.reset()
        for count in range(1, 6):
            infos = pool.step(ALL)[4]
            assert infos["count"].ravel().tolist() == [count] * 4
        assert infos["once"].ravel().tolist() == [0.5, 1.5, 2.5, 3.5]
        assert infos["_once"].tolist() == [False] * 4


class Once(Probe):
    """Reports a key in its second step and never again."""

    def __init__(self, index):
        super().__init__()
        self._index = index

    def step(self, action):
        *result, info = super().step(action)
        return *result, {**info, "once": self._index + 0.5} if self.count == 2 else info


@pytest.mark.parametrize("deed", ["kill", "exit"])
def test_an_actor_that_dies_names_its_environments_and_closes_the_pool(deed):
    pool = pool_of()
    pool.reset()
    pids = pool.call("pid")
    pool.envs[3].plan("step", deed)
    with pytest.raises(WorkerDied, match=r"environments 2, 3|environments 2 to 3") as caught:
        pool.step(ALL)
    assert caught.value.env_indices == (2, 3)
    assert caught.value.pid == pids[2]
    assert pool.closed
    assert all(has_gone(pid, 10.0) for pid in pids)


def test_an_actor_that_dies_is_built_anew_where_that_is_wanted():
    with pool_of(on_failure="restart") as pool:
        pool.reset(seed=0)
        before = pool.call("pid")
        pool.envs[1].plan("step", "kill")
        with pytest.warns(UserWarning, match="built anew after the worker of environments 0"):
            _, rewards, _, truncateds, infos = pool.step(ALL)
        assert rewards.tolist() == [0, 0, 1, 1]
        assert truncateds.tolist() == [True, True, False, False]
        pool.reset(mask=infos["_restarted"])
        assert pool.step(ALL)[4]["count"].ravel().tolist() == [1, 1, 2, 2]
        after = pool.call("pid")
        assert [a == b for a, b in zip(after, before, strict=True)] == [False, False, True, True]


def test_an_overdue_actor_is_killed():
    pool = pool_of(step_timeout=3.0)
    pool.reset()
    pids = pool.call("pid")
    pool.envs[0].plan("step", "spin")
    with pytest.raises(WorkerTimeout, match=r"step within 3\.\d\d seconds") as caught:
        pool.step(ALL)
    assert caught.value.env_indices == (0, 1)
    assert all(has_gone(pid, 10.0) for pid in pids)


def test_actors_for_which_there_is_no_room_are_an_error_that_says_what_they_need():
    with pytest.raises(WorkerTimeout, match=r"needs \{'num_cpus': 1, 'telescope': 1\}.*CPU: "):
        pool_of(ray_options={"resources": {"telescope": 1}}, start_timeout=1.0)


def test_a_pool_that_is_dropped_ends_its_actors():
    pool = pool_of()
    pids = pool.call("pid")
    del pool
    gc.collect()
    assert all(has_gone(pid, 10.0) for pid in pids)


def test_after_ctrl_c_the_environments_concerned_need_a_reset_and_the_pool_goes_on(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with EnvPool([Interrupts] * 4, num_workers=2, backend="ray") as pool:
        pool.reset()
        pool.envs[2].interrupt(os.getpid(), str(pipe))
        with pytest.raises(KeyboardInterrupt):
            pool.step(ALL)
        with open(pipe, "w"):
            pass
        with pytest.raises(gymnasium.error.ResetNeeded):
            pool.step(ALL)
        pool.reset()
        assert pool.step(ALL)[4]["count"].ravel().tolist() == [1] * 4


def test_sent_steps_are_received_from_whichever_actor_is_done():
    with pool_of() as pool:
        pool.reset()
        first, second = pool.groups(2)
        pool.send(ALL, mask=first)
        pool.send(ALL, mask=second)
        ready = np.zeros(4, bool)
        while not ready.all():
            *_, done = pool.recv(min_envs=1)
            assert done.any()
            assert not (done & ready).any()
            ready |= done
        assert pool.infos["count"].ravel().tolist() == [1] * 4


def test_figures_and_traces_tell_of_actors(tmp_path):
    with pool_of() as pool:
        pool.reset()
        with pool.trace(tmp_path / "trace.json"):
            for _ in range(3):
                pool.step(ALL)
        assert pool.stats()["steps"].tolist() == [6, 6]
    events = json.loads((tmp_path / "trace.json").read_text())
    waits = [event for event in events if event["ph"] == "X" and event["tid"] == 0]
    start, end = waits[0]["ts"], waits[-1]["ts"] + waits[-1]["dur"]
    for track in (1, 2):
        steps = [e for e in events if e["tid"] == track and e["name"] == "step"]
        assert [step["args"]["environment steps"] for step in steps] == [2, 2, 2]
        # Clocks of two processes are compared by the time of day, to a millisecond at least.
        assert all(start - 1000 <= step["ts"] <= end + 1000 for step in steps)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_vector_env_gives_what_gymnasium_gives(mode):
    factories = [partial(gymnasium.make, "CartPole-v1", max_episode_steps=7)] * 4
    plain = gymnasium.vector.SyncVectorEnv(factories, autoreset_mode=mode)
    ours = VectorEnv(factories, num_workers=2, backend="ray", autoreset_mode=mode)
    try:
        np.testing.assert_equal(ours.reset(seed=4), plain.reset(seed=4))
        for actions in np.random.default_rng(2).integers(0, 2, (25, 4)):
            found, expected = ours.step(actions), plain.step(actions)
            np.testing.assert_equal(found[:4], expected[:4])
            assert found[4].keys() == expected[4].keys()
    finally:
        ours.close()
        plain.close()


def test_without_a_number_there_are_as_many_actors_as_the_cluster_has_cpus_for():
    with EnvPool([Probe] * 6, backend="ray", ray_options={"num_cpus": 2}) as pool:
        assert pool.num_workers == 2


def test_a_ray_that_is_started_for_a_pool_says_so_and_ends_with_it():
    script = """
        import logging, sys
        logging.basicConfig(format="%(name)s: %(message)s")
        import gymnasium
        from swm_async import EnvPool
        assert "ray" not in sys.modules
        make = lambda: gymnasium.make("CartPole-v1")
        with EnvPool([make], num_workers=1, backend="ray", start_timeout=120) as pool:
            import ray
            assert ray.is_initialized()
            assert pool.reset()[0].shape == (1, 4)
        assert not ray.is_initialized()
        print("ended")
    """
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("ended\n")
    assert "swm_async: no Ray is running" in done.stderr
