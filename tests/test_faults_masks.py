"""Masked resets and steps touch what they should, and nothing that is kept changes later."""

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from swm_async import EnvPool

N = 3
BOTH = pytest.mark.parametrize("num_workers", [0, 2])


class Counter(gymnasium.Env):
    """Counts, in arrays that it keeps and changes at every step."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-9, 9, (2,), np.float64)

    def __init__(self):
        self.counts = np.zeros(2)
        self.info = {"counts": self.counts, "notes": [0], "kept": {"inner": self.counts}}

    def reset(self, *, seed=None, options=None):
        self.counts[:] = 0
        self.options = options
        return self.counts, self.info

    def step(self, action):
        self.counts += action
        self.info["notes"][0] += 1
        action[:] = np.nan  # it is the environment's own
        return self.counts, float(self.counts[0]), False, False, self.info

    def seen_options(self):
        return self.options


@BOTH
def test_the_time_limit_of_an_environment_counts_from_its_own_reset(num_workers):
    def factory():
        return TimeLimit(Counter(), 3)

    ones = np.ones((N, 2))
    with EnvPool([factory] * N, num_workers=num_workers) as pool:
        pool.reset(seed=0)
        pool.step(ones)
        pool.step(ones)
        pool.reset(mask=[True, False, False])
        ends = [pool.step(ones, mask=[True, True, False])[3].tolist() for _ in range(3)]
        assert ends == [[False, True, False], [False, True, False], [True, True, False]]
        assert pool.step(ones, mask=[False, False, True])[3].tolist() == [False, False, True]


@BOTH
def test_the_last_values_of_an_episode_stay_until_that_environment_is_reset(num_workers):
    with EnvPool([Counter] * N, num_workers=num_workers) as pool:
        pool.reset(seed=0)
        observations, rewards, *_, infos = pool.step(np.arange(6.0).reshape(N, 2))
        assert rewards.tolist() == [0, 2, 4]
        pool.reset(mask=[True, True, False])
        assert observations.tolist() == [[0, 0], [0, 0], [4, 5]]
        assert infos["counts"].tolist() == [[[0, 0]], [[0, 0]], [[4, 5]]]


@BOTH
def test_what_an_environment_keeps_and_changes_changes_nothing_that_a_caller_keeps(num_workers):
    with EnvPool([Counter] * N, num_workers=num_workers) as pool:
        pool.reset(seed=0)
        actions = np.full((N, 2), 2.0)
        infos = pool.step(actions)[4]
        notes, kept = infos["notes"][0][0], infos["kept"][0][0]
        pool.step(actions)
        assert actions.tolist() == [[2, 2]] * N
        assert notes == [1]
        assert kept["inner"].tolist() == [2, 2]
        assert infos["counts"][0].tolist() == [[4, 4]]  # live, as promised


@BOTH
def test_a_caller_may_write_into_live_arrays_without_reaching_an_environment(num_workers):
    with EnvPool([Counter] * N, num_workers=num_workers) as pool:
        observations, infos = pool.reset(seed=0)
        pool.step(np.ones((N, 2)))
        observations[...] = infos["counts"][...] = 77
        pool.step(np.ones((N, 2)), mask=[True, False, False])
        assert observations.tolist() == [[2, 2], [77, 77], [77, 77]]
        assert infos["counts"].tolist() == [[[2, 2]], [[77, 77]], [[77, 77]]]
        assert pool.get_attr("counts")[1].tolist() == [1, 1]


@BOTH
def test_options_reach_every_later_reset_whatever_they_are_called(num_workers):
    options = {"reset_mask": [True], "mask": 3, "seed": 4}
    with EnvPool([Counter] * N, num_workers=num_workers) as pool:
        for _ in range(2):
            pool.reset(options=options)
            assert pool.call("seen_options") == [options] * N
        pool.reset(options=[None, {"a": 1}, None], mask=[False, True, True])
        assert pool.call("seen_options") == [options, {"a": 1}, None]
    assert options == {"reset_mask": [True], "mask": 3, "seed": 4}


@BOTH
def test_flags_that_a_call_returned_are_masks_for_the_next(num_workers):
    def factory(limit):
        return lambda: TimeLimit(Counter(), limit)

    ones = np.ones((N, 2))
    with EnvPool([factory(limit) for limit in (1, 2, 3)], num_workers=num_workers) as pool:
        pool.reset(seed=0)
        alive = np.ones(N, bool)
        seen = []
        while alive.any():
            _, _, terminateds, truncateds, _ = pool.step(ones, mask=alive)
            seen.append(truncateds.tolist())
            alive &= ~(terminateds | truncateds)
        assert seen == [[True, False, False], [False, True, False], [False, False, True]]
        assert pool.infos["counts"][:, 0, 0].tolist() == [1, 2, 3]
