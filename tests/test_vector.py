"""VectorEnv gives what SyncVectorEnv gives, value for value, whatever the worker count.

What Gymnasium promises of AsyncVectorEnv besides is in `test_vector_peer.py`.
"""

import multiprocessing
import os
import tempfile
from contextlib import closing
from copy import deepcopy
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers
from hypothesis import given
from hypothesis import strategies as st

from conftest import WORKER_COUNTS
from probe_env import Probe
from same import assert_same
from swm_async import EnvError, VectorEnv, WorkerDied, make_vec
from vector_envs import Countdown, Doubling, OddInfos, ThreeSteps, Walk, cart_pole

N = 4
MODES = list(AutoresetMode)


ENVIRONMENTS = {
    "CartPole": cart_pole,
    "Countdown": Countdown,
    "Doubling": Doubling,
    "OddInfos": OddInfos,
    "Walk": Walk,
}
"""With observations of Dict, Tuple, Box and Discrete spaces, actions of Tuple, Box and Discrete."""


SEEDS = (
    st.none()
    | st.integers(0, 99)
    | st.lists(st.none() | st.integers(0, 99), min_size=N, max_size=N)
)
MASKS = st.lists(st.booleans(), min_size=N, max_size=N).filter(any).map(np.array)
RESETS = st.tuples(SEEDS, st.sampled_from([None, {}, {"longer": 2}]), st.none() | MASKS)
"""Resets in the middle of a program: seed, options and mask."""
PROGRAM_STEPS = st.one_of(st.none(), st.none(), st.none(), RESETS)
"""Most are not preceded by a reset, so that episodes come to their end."""


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_any_program_gives_what_sync_vector_env_gives(name, mode, num_workers):
    factory = ENVIRONMENTS[name]
    ours = VectorEnv([factory] * N, num_workers=num_workers, autoreset_mode=mode)
    theirs = SyncVectorEnv([factory] * N, autoreset_mode=mode)

    def reset(seed, options, mask):
        mine = options if mask is None else {**(options or {}), "reset_mask": mask}
        kept = deepcopy(mine)
        result = ours.reset(seed=seed, options=mine)
        assert_same(mine, kept)
        assert_same(result, theirs.reset(seed=seed, options=kept))

    @given(st.integers(0, 10**6), st.lists(PROGRAM_STEPS, min_size=3, max_size=25))
    def run(first_seed, program):
        reset(first_seed, None, None)
        theirs.action_space.seed(first_seed)
        ended = np.zeros(N, bool)
        for asked in program:
            # Gymnasium's class refuses to step finished environments where it resets none.
            due = mode is AutoresetMode.DISABLED and ended.any()
            if asked or due:
                seed, options, mask = asked or (None, None, ended)
                if mask is not None:
                    mask = (mask | ended) if due else mask
                reset(seed, options, mask)
            actions = theirs.action_space.sample()
            result = ours.step(actions)
            assert_same(result, theirs.step(actions))
            ended = result[2] | result[3]

    with ours, closing(theirs):
        run()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_spaces_that_cannot_be_batched_come_as_tuples(num_workers):
    class Talking(Probe):
        observation_space = spaces.Dict({"word": spaces.Text(5), "n": spaces.Discrete(100)})

        def reset(self, *, seed=None, options=None):
            super().reset()
            return {"word": "abc", "n": 7}, {}

        def step(self, action):
            _, reward, _, truncated, info = super().step(action)
            return {"word": "x" * self.count, "n": 7}, reward, self.count == 2, truncated, info

    ours = VectorEnv([Talking] * 2, num_workers=num_workers, autoreset_mode="SameStep")
    theirs = SyncVectorEnv([Talking] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with ours, closing(theirs):
        assert_same(ours.reset(seed=0), theirs.reset(seed=0))
        for _ in range(5):
            actions = np.zeros(2, np.int64)
            assert_same(ours.step(actions), theirs.step(actions))


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_a_mask_steps_only_what_it_selects(num_workers):
    with VectorEnv([cart_pole] * N, num_workers=num_workers) as env:
        before, _ = env.reset(seed=0)
        mask = np.array([True, False, False, True])
        observations, rewards, *_ = env.step(np.ones(N, np.int64), mask=mask)
        assert rewards.tolist() == [1, 0, 0, 1]
        assert rewards.dtype == np.float64
        assert ((observations == before).all(axis=1) == ~mask).all()


def test_copy_decides_whether_observations_are_live():
    for copy in (True, False):
        with VectorEnv([cart_pole] * 2, num_workers=2, copy=copy) as env:
            first, _ = env.reset(seed=0)
            kept = first.copy()
            second = env.step(np.ones(2, np.int64))[0]
            assert (first is second) == (not copy)
            assert np.array_equal(first, kept) == copy


def test_with_resets_disabled_a_finished_environment_is_not_stepped():
    with VectorEnv([Countdown] * 2, num_workers=2, autoreset_mode="Disabled") as env:
        env.reset(seed=0)
        actions = env.action_space.sample()
        while not (ended := np.logical_or(*env.step(actions)[2:4])).any():
            pass
        with pytest.raises(ResetNeeded, match="reset_mask"):
            env.step(actions)
        env.step(actions, mask=~ended)


ACTIONS = np.ones(2, np.int64)


def test_a_wait_that_times_out_loses_nothing():
    # Gymnasium's class forgets the call here and takes its late reply for the next one's.
    class Slow(Probe):
        def step(self, action):
            if action == 1:
                with open(self.path) as pipe:
                    pipe.read()
            return super().step(action)

        def open_at(self, path):
            self.path = path

    with tempfile.TemporaryDirectory() as folder, VectorEnv([Slow] * 2, num_workers=2) as env:
        gate = os.path.join(folder, "gate")
        os.mkfifo(gate)
        env.reset(seed=0)
        env.call("open_at", gate)
        env.step_async(np.array([1, 0]))
        for _ in range(3):
            with pytest.raises(multiprocessing.TimeoutError):
                env.step_wait(timeout=0)
        with open(gate, "w") as pipe:
            pipe.write("")
        assert env.step_wait()[4]["count"].tolist() == [1, 1]


def test_failures_are_the_errors_of_the_pool():
    env = VectorEnv([Probe] * 2, num_workers=2)
    with env:
        env.reset(seed=0)
        env.envs[1].plan("step", "raise")
        with pytest.raises(EnvError, match="environment 1") as caught:
            env.step(ACTIONS)
        assert caught.value.result[1].tolist() == [1, 0]
        with pytest.raises(ResetNeeded):
            env.step(ACTIONS)
        env.envs[1].plan("step", "kill")
        env.reset(seed=0)
        with pytest.raises(WorkerDied):
            env.step(ACTIONS)


# Around it.


def test_make_vec_makes_what_gymnasium_makes():
    env = make_vec(
        "CartPole-v1",
        3,
        num_workers=2,
        autoreset_mode=AutoresetMode.SAME_STEP,
        max_episode_steps=7,
        render_mode="rgb_array",
        wrappers=[gymnasium.wrappers.TimeAwareObservation],
    )
    with env:
        assert env.spec.id == "CartPole-v1"
        assert (env.num_envs, env.num_workers, env.render_mode) == (3, 2, "rgb_array")
        assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert env.single_observation_space.shape == (5,)
        env.reset(seed=0)
        assert [spec.max_episode_steps for spec in env.get_attr("spec")] == [7, 7, 7]


# Gymnasium's wrappers around it.


def without_times(infos):
    """Infos without the seconds that an episode took, which RecordEpisodeStatistics tells."""
    if isinstance(infos, dict):
        return {k: without_times(v) for k, v in infos.items() if k not in ("t", "_t")}
    if isinstance(infos, list):
        return [without_times(info) for info in infos]
    return infos


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize(
    "wrap",
    [
        wrappers.RecordEpisodeStatistics,
        wrappers.NormalizeReward,
        wrappers.DictInfoToList,
        lambda env: wrappers.ClipReward(env, 0, 0.5),
        lambda env: wrappers.DictInfoToList(wrappers.RecordEpisodeStatistics(env)),
    ],
    ids=["RecordEpisodeStatistics", "NormalizeReward", "DictInfoToList", "ClipReward", "two"],
)
def test_vector_wrappers_of_gymnasium_work_on_it(wrap, mode):
    check_wrapper(wrap, mode)


def test_normalized_observations_are_those_of_sync_vector_env():
    # Gymnasium's wrapper refuses resets within the step.
    check_wrapper(wrappers.NormalizeObservation, AutoresetMode.NEXT_STEP)


def check_wrapper(wrap, mode):
    ours = wrap(VectorEnv([cart_pole] * N, num_workers=2, autoreset_mode=mode))
    theirs = wrap(SyncVectorEnv([cart_pole] * N, autoreset_mode=mode))
    with closing(ours), closing(theirs):
        assert_same(ours.reset(seed=1), theirs.reset(seed=1))
        theirs.action_space.seed(1)
        for _ in range(40):
            actions = theirs.action_space.sample()
            found, expected = ours.step(actions), theirs.step(actions)
            assert_same(found[:4], expected[:4])
            assert_same(without_times(found[4]), without_times(expected[4]))


def test_episode_statistics_are_those_of_the_episodes():
    env = wrappers.RecordEpisodeStatistics(
        VectorEnv([Countdown] * 2, num_workers=2, autoreset_mode=AutoresetMode.SAME_STEP)
    )
    with closing(env):
        # The lengths that seeds 3 and 4 draw: the first draw of 1 to 5 of their generators.
        lengths = [int(np.random.default_rng(seed).integers(1, 6)) for seed in (3, 4)]
        env.reset(seed=3)
        # With these actions every step of Countdown is rewarded by 2 more than the one before.
        actions = (np.array([2, 2]), np.zeros((2, 2), np.float32))
        found = {}
        for _ in range(5):
            *_, infos = env.step(actions)
            for i in np.flatnonzero(infos.get("_episode", np.zeros(2, bool))).tolist():
                found.setdefault(i, (infos["episode"]["l"][i], infos["episode"]["r"][i]))
        assert found == {i: (n, n * (n + 1)) for i, n in enumerate(lengths)}


@pytest.mark.torch
def test_numpy_to_torch_makes_tensors_of_its_arrays():
    pytest.importorskip("array_api_compat", reason="Gymnasium's NumpyToTorch needs it")
    import torch

    env = wrappers.NumpyToTorch(VectorEnv([cart_pole] * N, num_workers=2))
    theirs = SyncVectorEnv([cart_pole] * N)
    with closing(env), closing(theirs):
        found, _ = env.reset(seed=0)
        expected, _ = theirs.reset(seed=0)
        assert torch.equal(found, torch.from_numpy(expected))
        step = env.step(torch.ones(N, dtype=torch.int64))
        assert all(isinstance(batch, torch.Tensor) for batch in step[:4])
        for batch, array in zip(step[:4], theirs.step(np.ones(N, np.int64))[:4], strict=True):
            assert torch.equal(batch, torch.from_numpy(array))


def test_record_video_films_all_environments(tmp_path):
    pytest.importorskip("moviepy", reason="Gymnasium's RecordVideo needs moviepy")
    factories = [partial(Walk, "rgb_array")] * 2
    sides = {"ours": VectorEnv(factories, num_workers=2), "theirs": SyncVectorEnv(factories)}
    frames = {}
    for name, env in sides.items():
        with closing(wrappers.RecordVideo(env, str(tmp_path / name), video_length=100)) as filmed:
            filmed.reset(seed=0)
            for _ in range(4):
                filmed.step(np.zeros((2, 2), np.float32))
            frames[name] = list(filmed.recorded_frames)
        (film,) = (tmp_path / name).glob("*.mp4")
        assert film.stat().st_size > 0
    assert len(frames["theirs"]) == 5
    assert_same(frames["ours"], frames["theirs"])


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("start", ["start_step", "start_reset"])
def test_a_start_that_ctrl_c_leaves_unnoted_is_dropped(start, num_workers, monkeypatch):
    ours = VectorEnv([cart_pole] * 2, num_workers=num_workers)
    theirs = SyncVectorEnv([cart_pole] * 2)
    actions = np.array([0, 1])

    def begin():
        ours.step_async(actions) if start == "start_step" else ours.reset_async(seed=5)

    with ours, closing(theirs):
        for call in ("reset", "step", "step_async"):
            ours.reset(seed=0)
            engine = ours._engine
            started = getattr(engine, start)

            def interrupted(*args, started=started):
                started(*args)
                raise KeyboardInterrupt

            with monkeypatch.context() as patched:
                patched.setattr(engine, start, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    begin()
            if call != "reset":
                with pytest.raises(ResetNeeded, match=r"\[0, 1\]"):
                    getattr(ours, call)(actions)
            assert_same(ours.reset(seed=3), theirs.reset(seed=3))
            assert_same(ours.step(actions), theirs.step(actions))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("mode", "good_steps"), [("NextStep", 3 + 1 + 1), ("SameStep", 3 + 1)])
def test_an_error_names_the_step_of_the_episode_after_resets_within_steps(
    mode, good_steps, num_workers
):
    makers = [partial(ThreeSteps, raises_at=(2, 2))] * 2
    with VectorEnv(makers, num_workers=num_workers, autoreset_mode=mode) as env:
        env.reset(seed=0)
        for _ in range(good_steps):
            env.step(np.zeros(2, np.int64))
        with pytest.raises(EnvError) as caught:
            env.step(np.zeros(2, np.int64))
        assert [failure.episode_step for failure in caught.value.failures] == [2, 2]


@pytest.mark.parametrize(("mode", "period"), [("NextStep", 4), ("SameStep", 3)])
def test_many_ends_of_episodes_are_counted_and_not_kept(mode, period):
    with VectorEnv([ThreeSteps] * 2, num_workers=0, autoreset_mode=mode) as env:
        env.reset(seed=0)
        kept = []
        for _ in range(1000 * period + 2):
            env.step(np.zeros(2, np.int64))
            kept.append(len(env._engine._ends))
        assert 100 < max(kept) < 256
        # In next-step mode the first step after the end is a reset, and counts for nothing.
        assert env._engine.episode_steps.tolist() == [2, 2]
