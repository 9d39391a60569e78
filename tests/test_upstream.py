"""stable-worldmodel's own World, environments, policies and datasets run on this pool unchanged.

`make test-upstream` installs it beside this project and runs these tests; elsewhere they are
skipped. It is used as its users do: nothing of it is changed but the name of its pool.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from swm_async import EnvPool, World, load_dataset

pytestmark = [
    pytest.mark.upstream,
    # Its imports alone, torch among them, take half a minute in each worker of a busy machine.
    pytest.mark.timeout(900),
    # Of the packages that it brings; they are not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]

PUSH_T, CART_POLE, TWO_ROOM = "swm/PushT-v1", "swm/CartPoleControl-v1", "swm/TwoRoom-v1"
SHAPE = (64, 64)
SUFFIXES = {"hdf5": ".h5", "lance": ".lance"}
OWN_TIME = {"render_time"}
"""Seconds, which no two runs share."""


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Takes the place of the suite's check: Lance keeps descriptors, but no process may stay."""
    yield
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


@pytest.fixture(scope="module")
def upstream():
    """Its modules, behind a stand-in for torchvision's compiled half where that does not load."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame would ask for a screen
    check = [sys.executable, "-c", "import torchvision"]
    stub = str(Path(__file__).parent / "upstream_stub")
    if subprocess.run(check, capture_output=True, check=False).returncode != 0:
        sys.path.insert(0, stub)
    try:
        package = importlib.import_module("stable_worldmodel")
        yield SimpleNamespace(
            package=package,
            module=importlib.import_module("stable_worldmodel.world.world"),
            policies=importlib.import_module("stable_worldmodel.policy"),
            weak=importlib.import_module("stable_worldmodel.envs.pusht.expert_policy").WeakPolicy,
        )
    finally:
        if stub in sys.path:
            sys.path.remove(stub)


@pytest.fixture
def worlds(upstream, monkeypatch):
    """Build their World on their pool, or on ours with so many workers."""
    built = []

    def build(num_workers=None, env=PUSH_T, num_envs=3, **arguments):
        if num_workers is not None:
            ours = functools.partial(EnvPool, num_workers=num_workers, start_timeout=600)
            monkeypatch.setattr(upstream.module, "EnvPool", ours)
        world = upstream.package.World(env, num_envs=num_envs, image_shape=SHAPE, **arguments)
        monkeypatch.undo()
        assert isinstance(world.envs, EnvPool) == (num_workers is not None)
        built.append(world)
        return world

    yield build
    for world in built:
        world.close()


def kept(infos):
    """Copies of the infos as arrays, without what no two runs share."""
    return {
        key: np.array(value.numpy() if hasattr(value, "numpy") else value)
        for key, value in infos.items()
        if key not in OWN_TIME
    }


def drive(world, steps, options=None):
    """Step a World's pool with fixed actions; finished rows are reset with seeds of their own."""
    pool, rng = world.envs, np.random.default_rng(0)
    world.reset(seed=3, options=options)
    seen = [(kept(world.infos),)]
    for t in range(steps):
        space = pool.single_action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            actions = rng.integers(space.n, size=pool.num_envs)
        else:
            actions = rng.uniform(-1, 1, (pool.num_envs, *space.shape)).astype(np.float32)
        _, *flags, infos = pool.step(actions)
        seen.append((kept(infos), *(np.array(flag) for flag in flags)))
        ended = np.array(flags[1] | flags[2])
        if ended.any():
            _, infos = pool.reset(seed=[100 + t] * pool.num_envs, mask=ended)
            seen.append((kept(infos),))
    return seen


def assert_same(found, expected):
    """Equal in everything but the dtypes of variations.

    A factor may be float32 once and float64 at a later reset. Their arrays keep the dtype of the
    first value and round the later ones, ours widen.
    """
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one[0].keys() == other[0].keys()
        for key, value in other[0].items():
            mine = one[0][key]
            if key.startswith("variation.") and np.can_cast(value.dtype, mine.dtype):
                mine = mine.astype(value.dtype)
            np.testing.assert_array_equal(mine, value, strict=True, err_msg=key)
        for mine, theirs in zip(one[1:], other[1:], strict=True):
            np.testing.assert_array_equal(mine, theirs)


class Fixed:
    """The same actions for the same number of environments; keeps the infos that it was given."""

    def __init__(self):
        self.seen = []

    def set_env(self, pool):
        self.shape = (pool.num_envs, *pool.single_action_space.shape)
        self.rng = np.random.default_rng(1)

    def get_action(self, infos):
        self.seen.append(kept(infos))
        return self.rng.uniform(-1, 1, self.shape).astype(np.float32)


def opened(upstream, path, name):
    """Open a dataset; of videos it must be told which columns they are."""
    if name == "video":
        return upstream.package.data.VideoDataset(path=str(path), video_keys=["pixels", "goal"])
    return upstream.package.data.load_dataset(str(path))


# Their World on our pool


def test_push_t_gives_the_same_infos_rewards_and_frames_for_200_steps(worlds):
    expected = drive(worlds(num_envs=4, max_episode_steps=70), 200)
    found = drive(worlds(2, num_envs=4, max_episode_steps=70), 200)
    assert_same(found, expected)
    assert len(expected) > 201  # there were resets among them
    assert len({row.tobytes() for one in expected for row in one[0]["pixels"]}) > 400


def test_cart_pole_is_the_same_until_it_falls_and_after(worlds):
    expected = drive(worlds(env=CART_POLE), 40)
    assert_same(drive(worlds(0, env=CART_POLE), 40), expected)
    assert len(expected) > 41


def test_variations_are_the_same(worlds):
    options = {"variation": ["all"]}
    expected = drive(worlds(max_episode_steps=8), 12, options)
    assert any(key.startswith("variation.") for key in expected[0][0])
    assert_same(drive(worlds(0, max_episode_steps=8), 12, options), expected)


@pytest.mark.parametrize("mode", ["auto", "wait"])
@pytest.mark.parametrize("kind", ["random", "weak"])
def test_their_evaluation_is_the_same(upstream, worlds, tmp_path, kind, mode):
    make = upstream.policies.RandomPolicy if kind == "random" else upstream.weak
    found = []
    for num_workers in (None, 0):
        world = worlds(num_workers, max_episode_steps=10)
        world.set_policy(make(seed=5))
        folder = tmp_path / f"{num_workers}"
        results = world.evaluate(episodes=3, seed=7, reset_mode=mode, video=folder)
        videos = {path.name: path.read_bytes() for path in folder.iterdir()}
        found.append(({k: np.asarray(v).tolist() for k, v in results.items()}, videos))
    assert found[0] == found[1]
    assert found[0][1]


@pytest.mark.parametrize("name", ["hdf5", "lance", "folder", "video"])
def test_their_writers_write_the_same(upstream, worlds, tmp_path, name):
    contents = []
    for num_workers in (None, 0):
        world = worlds(num_workers, max_episode_steps=9)
        world.set_policy(upstream.weak(seed=2))
        path = tmp_path / f"{num_workers}{SUFFIXES.get(name, '')}"
        world.collect(path, episodes=4, seed=1, format=name, progress=False)
        dataset = opened(upstream, path, name)
        assert len(dataset.lengths) == 4
        episodes = [dataset.load_episode(k) for k in range(4)]
        contents.append([{k: np.asarray(v) for k, v in episode.items()} for episode in episodes])
    for found, expected in zip(*contents, strict=True):
        assert found.keys() == expected.keys()
        for key in expected.keys() - OWN_TIME:
            np.testing.assert_array_equal(found[key], expected[key], err_msg=key)


def test_their_expert_reads_the_simulators_through_our_handles(upstream, worlds):
    expert = importlib.import_module("stable_worldmodel.envs.two_room.expert_policy").ExpertPolicy
    found = []
    for num_workers in (None, 0):
        world = worlds(
            num_workers, env=TWO_ROOM, num_envs=2, max_episode_steps=60, add_pixels=False
        )
        world.set_policy(expert())
        found.append(world.evaluate(episodes=2, seed=3))
    assert found[0]["success_rate"] == found[1]["success_rate"] == 100
    np.testing.assert_array_equal(found[0]["seeds"], found[1]["seeds"])


# Our World with their environments, policies and datasets


@pytest.mark.parametrize(("env", "num_workers"), [(PUSH_T, 0), (CART_POLE, 0), (CART_POLE, 2)])
def test_our_world_puts_the_same_into_the_infos(upstream, worlds, env, num_workers):
    options = {"variation": ["all"]} if env == PUSH_T else None
    expected = drive(worlds(env=env, max_episode_steps=7), 16, options)
    world = World(env, 3, SHAPE, max_episode_steps=7, num_workers=num_workers, start_timeout=600)
    with world:
        assert_same(drive(world, 16, options), expected)


@pytest.mark.parametrize("kind", ["random", "weak"])
def test_our_evaluation_takes_their_policies(upstream, worlds, kind):
    make = upstream.policies.RandomPolicy if kind == "random" else upstream.weak
    theirs = worlds(max_episode_steps=10)
    theirs.set_policy(make(seed=5))
    expected = theirs.evaluate(episodes=3, seed=7)
    with World(PUSH_T, 3, SHAPE, max_episode_steps=10, num_workers=0) as world:
        world.set_policy(make(seed=5))
        found = world.evaluate(3, seed=7)
    np.testing.assert_array_equal(found["episode_successes"], expected["episode_successes"])
    np.testing.assert_array_equal(found["seeds"], expected["seeds"])
    assert found["episode_lengths"].tolist() == [10, 10, 10]


CALLABLES = [
    {"method": "_set_state", "args": {"state": {"value": "state"}}},
    {"method": "_set_goal_state", "args": {"goal_state": {"value": "goal_state"}}},
]
PASSAGES = {
    "episodes_idx": [0, 1, 2],
    "start_steps": [0, 2, 4],
    "goal_offset": 5,
    "eval_budget": 6,
    "callables": CALLABLES,
}


@pytest.fixture(scope="module")
def recording(upstream, tmp_path_factory):
    """Three episodes of PushT, recorded by their World with their writer."""
    path = tmp_path_factory.mktemp("recording") / "push_t.h5"
    world = upstream.package.World(PUSH_T, num_envs=3, image_shape=SHAPE, max_episode_steps=12)
    world.set_policy(upstream.weak(seed=2))
    world.collect(path, episodes=3, seed=1, format="hdf5", progress=False)
    world.close()
    return upstream.package.data.load_dataset(str(path))


class Seeded:
    """Their dataset with a column of seeds, without which their resets differ from run to run."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.lengths = dataset.lengths
        self.column_names = [*dataset.column_names, "seed"]

    def load_chunk(self, episodes, start, end):
        chunks = self.dataset.load_chunk(episodes, start, end)
        return [
            {**chunk, "seed": np.full(b - a, 50 + k)}
            for chunk, k, a, b in zip(chunks, episodes, start, end, strict=True)
        ]


def test_our_evaluation_from_their_dataset_is_theirs(worlds, recording):
    theirs, ours = Fixed(), Fixed()
    # On our pool, since theirs hands numpy's integers to the environments, which refuse them.
    their_world = worlds(0)
    their_world.set_policy(theirs)
    expected = their_world.evaluate(dataset=Seeded(recording), **PASSAGES)
    with World(PUSH_T, 3, SHAPE, num_workers=0) as world:
        world.set_policy(ours)
        found = world.evaluate(dataset=Seeded(recording), **PASSAGES)
    np.testing.assert_array_equal(found["episode_successes"], expected["episode_successes"])
    assert found["seeds"].tolist() == [50, 51, 52]
    assert len(ours.seen) == len(theirs.seen)
    rows = recording.load_chunk(np.arange(3), np.array([0, 2, 4]), np.array([6, 8, 10]))
    for e, row in enumerate(rows):
        np.testing.assert_array_equal(ours.seen[0]["state"][e, 0], row["state"][0])
        pixels = np.moveaxis(np.asarray(row["pixels"]), 1, 3)
        np.testing.assert_array_equal(ours.seen[0]["pixels"][e, 0], pixels[0])
        for infos in ours.seen:
            np.testing.assert_array_equal(infos["goal"][e, 0], pixels[5])
            np.testing.assert_array_equal(infos["goal_state"][e, 0], row["state"][5])
    # At the first step they show the recording's own action, reward, id and step, we the run's.
    own = {"action", "reward", "id", "step_idx", "_needs_flush"}
    for t, (mine, their) in enumerate(zip(ours.seen, theirs.seen, strict=True)):
        assert mine.keys() - {"_needs_flush"} == their.keys()
        for key in (mine.keys() & their.keys()) - (own if t == 0 else set()):
            if not key.startswith("goal_render_time"):
                np.testing.assert_array_equal(mine[key], their[key], err_msg=f"{key} at {t}")


@pytest.mark.parametrize("name", ["lance", "folder", "video"])
def test_datasets_of_all_their_formats_can_be_evaluated_from(upstream, worlds, tmp_path, name):
    path = tmp_path / f"recording{SUFFIXES.get(name, '')}"
    their_world = worlds(max_episode_steps=12)
    their_world.set_policy(upstream.weak(seed=2))
    their_world.collect(path, episodes=3, seed=1, format=name, progress=False)
    dataset = opened(upstream, path, name)
    policy = Fixed()
    with World(PUSH_T, 2, SHAPE, num_workers=0) as world:
        world.set_policy(policy)
        results = world.evaluate(dataset=dataset, **PASSAGES)
    assert len(results["episode_lengths"]) == 3
    rows = dataset.load_chunk(np.arange(2), np.array([0, 2]), np.array([6, 8]))
    for e, row in enumerate(rows):
        np.testing.assert_allclose(policy.seen[0]["state"][e, 0], row["state"][0], rtol=1e-6)
        goal = np.moveaxis(np.asarray(row["pixels"][5]), 0, 2)
        np.testing.assert_array_equal(policy.seen[0]["goal"][e, 0], goal)


REFUSES_NAN = pytest.mark.xfail(
    reason="Lance refuses NaN in vectors, which the action after an episode's last step is",
    strict=True,
)


@pytest.mark.parametrize(
    "name", ["hdf5", pytest.param("lance", marks=REFUSES_NAN), "folder", "video"]
)
def test_our_recordings_in_their_formats_are_read_by_them(upstream, worlds, tmp_path, name):
    path = tmp_path / f"ours{SUFFIXES.get(name, '')}"
    with World(PUSH_T, 2, SHAPE, max_episode_steps=9, num_workers=0) as world:
        world.set_policy(upstream.weak(seed=2))
        world.collect(tmp_path / "reference", episodes=3, seed=1, progress=False)
        world.set_policy(upstream.weak(seed=2))
        world.collect(path, episodes=3, seed=1, format=name, progress=False)
    reference, dataset = load_dataset(tmp_path / "reference"), opened(upstream, path, name)
    assert dataset.lengths.tolist() == reference.lengths.tolist() == [10, 10, 10]
    for k in range(3):
        expected, found = reference.load_episode(k), dataset.load_episode(k)
        for key in ("state", "action", "goal_state", "reward"):
            np.testing.assert_array_equal(found[key], expected[key], err_msg=key)
        pixels = np.moveaxis(np.asarray(found["pixels"]), 1, 3).astype(int)
        # Of JPEG and of videos, single pixels at sharp edges may be far off.
        error = np.abs(pixels - expected["pixels"]).mean()
        assert error <= (0 if name == "hdf5" else 4)


class Unnamed(gymnasium.Wrapper):
    """Keeps the environment's name out of the infos: their writer has no columns of text."""

    def reset(self, **arguments):
        observation, info = super().reset(**arguments)
        return observation, {key: value for key, value in info.items() if key != "env_name"}

    def step(self, action):
        *report, info = super().step(action)
        return *report, {key: value for key, value in info.items() if key != "env_name"}


def test_their_writer_takes_our_episodes(upstream, tmp_path):
    path = tmp_path / "theirs.h5"
    world = World(PUSH_T, 2, SHAPE, 5, pre_wrappers=[Unnamed], num_workers=0)
    with world, upstream.package.data.HDF5Writer(path) as writer:
        for target in ({"path": tmp_path / "reference"}, {"writer": writer}):
            world.set_policy(upstream.policies.RandomPolicy(seed=2))
            world.collect(**target, episodes=3, seed=1, progress=False)
    reference = load_dataset(tmp_path / "reference")
    for dataset in (load_dataset(path), upstream.package.data.load_dataset(str(path))):
        assert list(dataset.lengths) == [6, 6, 6]
        for k in range(3):
            for key in ("state", "action", "reward"):
                np.testing.assert_array_equal(
                    dataset.load_episode(k)[key], reference.load_episode(k)[key], err_msg=key
                )


# What is left out


@pytest.mark.parametrize(
    ("module", "what"),
    [
        ("lerobot", "the format lerobot"),
        ("dm_control", "the environments of dm_control"),
        ("ogbench", "the environments and experts of ogbench"),
        ("craftax", "the environments of craftax"),
        ("gymnasium_robotics", "the Fetch environments"),
        ("PyFlyt", "the rocket landing"),
    ],
)
def test_what_needs_more_packages(upstream, module, what):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{what}: {module} is not installed by make test-upstream")
    pytest.skip(f"{what}: no test covers them yet, although {module} is installed")
