"""``on_failure="restart"``: what failed is built anew, and nothing is hidden."""

import os
import signal
import warnings

import pytest

from on_ray import ENABLED, KILLED
from probe_env import Probe
from processes import has_gone
from swm_async import EnvError, EnvPool, WorkerDied, WorkerTimeout

ALL = [0, 0, 0, 0]
# Ray takes a while to tell that an actor has died, which must not be taken for an overdue one.
STEP_TIMEOUT = 5.0 if ENABLED else 0.5


def pool_of(num_workers, **kwargs):
    return EnvPool([Probe] * 4, num_workers=num_workers, on_failure="restart", **kwargs)


def mates(num_workers):
    """The environments that share a worker with environment 3."""
    return {1: [0, 1, 2, 3], 2: [2, 3], 4: [3]}[num_workers]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_an_exception_in_a_step_ends_only_that_environments_episode(num_workers):
    with pool_of(num_workers) as pool:
        _, infos = pool.reset(seed=0)
        assert infos["_restarted"].tolist() == [False] * 4
        pool.envs[3].plan("step", "raise")
        with pytest.warns(UserWarning, match="environment 3 built anew.*ZeroDivisionError"):
            _, rewards, terminateds, truncateds, infos = pool.step(ALL)
        assert rewards.tolist() == [1, 1, 1, 0]
        assert terminateds.tolist() == [False] * 4
        assert truncateds.tolist() == [False, False, False, True]
        assert infos["_restarted"].tolist() == [False, False, False, True]
        assert infos["count"].ravel().tolist() == [1, 1, 1, 0]
        _, infos = pool.reset(mask=infos["_restarted"])
        assert infos["_restarted"].tolist() == [False] * 4
        _, _, _, truncateds, infos = pool.step(ALL)
        assert truncateds.tolist() == [False] * 4
        assert infos["count"].ravel().tolist() == [2, 2, 2, 1]


@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize(
    ("deed", "text"), [("kill", KILLED), ("spin", r"step within \d\.\d+ seconds")]
)
def test_a_lost_worker_takes_its_shard_along_and_comes_back(num_workers, deed, text):
    with pool_of(num_workers, step_timeout=STEP_TIMEOUT) as pool:
        pool.reset(seed=0)
        pool.step(ALL)
        before = pool.call("pid")
        pool.envs[3].plan("step", deed)
        mask = [True, False, False, True]
        with pytest.warns(UserWarning, match=text):
            _, rewards, _, truncateds, infos = pool.step(ALL, mask=mask)
        lost = mates(num_workers)
        assert infos["_restarted"].tolist() == [i in lost for i in range(4)]
        assert truncateds.tolist() == [mask[i] and i in lost for i in range(4)]
        assert rewards.tolist() == [1.0 if mask[i] and i not in lost else 0.0 for i in range(4)]
        after = pool.call("pid")
        assert [a != b for a, b in zip(after, before, strict=True)] == [i in lost for i in range(4)]
        pool.reset(seed=5, mask=infos["_restarted"])
        _, _, _, truncateds, infos = pool.step(ALL)
        assert truncateds.tolist() == [False] * 4
        counts = infos["count"].ravel().tolist()
        assert counts == [1 if i in lost else 3 if mask[i] else 2 for i in range(4)]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_a_failed_reset_is_repeated_with_the_same_seed_and_options(num_workers):
    with pool_of(num_workers) as pool:
        pool.reset(seed=0)
        pool.step(ALL)
        pool.envs[3].plan("reset", "raise")
        with pytest.warns(UserWarning, match="environment 3 built anew"):
            _, infos = pool.reset(seed=7, mask=[False, True, False, True])
        assert infos["_restarted"].tolist() == [False] * 4
        assert infos["count"].ravel().tolist() == [1, 0, 1, 0]
        assert pool.seeds.tolist() == [0, 8, 2, 10]
        assert pool.step(ALL)[4]["count"].ravel().tolist() == [2, 1, 2, 1]


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_a_worker_that_dies_in_a_reset_is_replaced_and_the_reset_repeated(num_workers):
    with pool_of(num_workers) as pool:
        pool.reset(seed=0)
        pool.step(ALL)
        pool.envs[3].plan("reset", "kill")
        with pytest.warns(UserWarning, match=KILLED):
            _, infos = pool.reset(mask=[False, False, False, True])
        innocent = [i for i in mates(num_workers) if i != 3]
        assert infos["_restarted"].tolist() == [i in innocent for i in range(4)]
        pool.reset(mask=infos["_restarted"])
        counts = pool.step(ALL)[4]["count"].ravel().tolist()
        assert counts == [1 if i in mates(num_workers) else 2 for i in range(4)]


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_a_failed_call_gives_none_and_a_death_in_a_call_is_mended(num_workers):
    with pool_of(num_workers) as pool:
        pool.reset(seed=0)
        pool.envs[3].plan("call", "raise")
        with pytest.warns(UserWarning, match="ZeroDivisionError"):
            assert pool.call("act") == [None] * 4
        assert not pool.infos["_restarted"].any()
        pool.envs[3].plan("call", "kill")
        with pytest.warns(UserWarning, match=KILLED):
            assert pool.call("act") == [None] * 4
        assert pool.infos["_restarted"].tolist() == [i in mates(num_workers) for i in range(4)]


def test_a_worker_killed_between_two_calls_is_mended_at_the_next():
    with pool_of(4) as pool:
        pool.reset(seed=0)
        pid = pool.call("pid")[2]
        os.kill(pid, signal.SIGKILL)
        assert has_gone(pid)
        with pytest.warns(UserWarning, match="environment 2"):
            infos = pool.step(ALL)[4]
        assert infos["_restarted"].tolist() == [False, False, True, False]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_failure_more_than_allowed_raises_and_the_pool_goes_on(num_workers):
    with pool_of(num_workers, max_restarts=2) as pool:
        for _ in range(2):
            pool.reset(seed=0)
            pool.envs[1].plan("step", "raise")
            with pytest.warns(UserWarning, match="built anew"):
                pool.step(ALL)
        pool.reset(seed=0)
        pool.envs[1].plan("step", "raise")
        with pytest.raises(EnvError, match="environment 1") as caught:
            pool.step(ALL)
        assert caught.value.result[1].tolist() == [1, 0, 1, 1]
        pool.envs[1].plan(None, None)
        pool.reset(mask=[False, True, False, False])
        assert pool.step(ALL)[4]["count"].ravel().tolist() == [2, 1, 2, 2]


def test_one_death_more_than_allowed_raises_and_closes_the_pool():
    pool = pool_of(2, max_restarts=0)
    pool.reset(seed=0)
    pool.envs[1].plan("step", "kill")
    with pytest.raises(WorkerDied):
        pool.step(ALL)
    assert pool.closed


def test_a_constructor_that_hangs_at_a_rebuild_is_bounded(tmp_path):
    marker = tmp_path / "built"

    def factory():
        hangs = marker.exists()
        marker.touch()
        return Probe("build", "sleep") if hangs else Probe()

    pool = EnvPool([factory], num_workers=1, on_failure="restart", start_timeout=2)
    pool.reset(seed=0)
    pool.envs[0].plan("step", "kill")
    with pytest.raises(WorkerTimeout, match="construction"):
        pool.step([0])
    assert pool.closed


def test_a_factory_that_fails_at_a_rebuild_raises(tmp_path):
    marker = tmp_path / "built"

    def factory():
        fails = marker.exists()
        marker.touch()
        return Probe("build", "raise") if fails else Probe()

    pool = EnvPool([factory], num_workers=1, on_failure="restart")
    pool.reset(seed=0)
    pool.envs[0].plan("step", "raise")
    with pytest.raises(EnvError, match="environment 0, build"):
        pool.step([0])


def test_without_failures_there_are_no_warnings_and_no_other_results():
    with warnings.catch_warnings(), pool_of(2) as pool, EnvPool([Probe] * 4) as plain:
        warnings.simplefilter("error")
        for one in (pool, plain):
            one.reset(seed=0)
        mine, others = pool.step(ALL), plain.step(ALL)
        assert [a.tolist() for a in mine[:4]] == [a.tolist() for a in others[:4]]
        assert set(mine[4]) - set(others[4]) == {"_restarted"}


class Silent(Probe):
    """Reports no infos at all."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0], {}

    def step(self, action):
        return (*super().step(action)[:4], {})


def test_environments_without_infos_tell_of_their_restart_too():
    with EnvPool([Silent] * 2, num_workers=2, on_failure="restart") as pool:
        assert pool.reset(seed=0)[1]["_restarted"].tolist() == [False, False]
        pool.envs[1].plan("step", "raise")
        with pytest.warns(UserWarning, match="built anew"):
            assert pool.step([0, 0])[4]["_restarted"].tolist() == [False, True]
