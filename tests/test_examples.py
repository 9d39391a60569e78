"""The examples run, and training in worker processes gives what training in a plain loop gives."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import ModuleType

import gymnasium
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from swm_async import load_dataset, make_vec

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

# What each needs besides the tests' own packages.
NEEDS = {
    "train_ppo.py": ["torch"],
    "sb3_ppo.py": ["torch", "stable_baselines3"],
    "world_model_data.py": ["torch"],
}


def skip_without(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def run(name: str, *arguments: object, folder: Path) -> str:
    """What an example prints; it must print no warning and end well."""
    skip_without(*NEEDS[name])
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    # Torch's threads wait for each other by spinning, which is slow where cores are short.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def load(name: str) -> ModuleType:
    """An example as a module."""
    skip_without(*NEEDS[name])
    spec = importlib.util.spec_from_file_location(Path(name).stem, EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested():
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_example*"))
    assert [path.name for path in EXAMPLES.glob("*.py") if path.stem not in tests] == []


def test_train_ppo_trains_and_draws(tmp_path):
    short = ["--updates", 20, "--num-envs", 3, "--num-workers", 2, "--steps", 8]
    printed = run("train_ppo.py", *short, "--out", "curve.png", folder=tmp_path)
    assert "update 20 of 20: return " in printed
    assert re.search(r"^\d+ episodes, 480 steps in \d+ s", printed, re.MULTILINE)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_sb3_ppo_trains_and_evaluates(tmp_path):
    short = ["--steps", 64, "--num-envs", 2, "--num-workers", 2, "--rollout", 16, "--episodes", 3]
    printed = run("sb3_ppo.py", *short, folder=tmp_path)
    assert re.search(r"^return of 3 episodes: [\d.]+ ± [\d.]+$", printed, re.MULTILINE)


@pytest.mark.parametrize("path", ["data.h5", "data"])
def test_world_model_data_collects_loads_and_learns(tmp_path, path):
    if path.endswith(".h5"):
        skip_without("h5py")
    short = ["--episodes", 4, "--size", 16, "--num-workers", 2, "--steps", 20, "--batch", 4]
    printed = run("world_model_data.py", *short, "--path", path, folder=tmp_path)
    with load_dataset(tmp_path / path) as dataset:
        assert len(dataset) == 4
        assert dataset.load_episode(0)["pixels"].shape[1:] == (16, 16, 3)
        assert f"recorded 4 episodes, {sum(dataset.lengths) - 4} steps" in printed
    first, last = re.search(r"first tenth ([\d.]+), of the last ([\d.]+)", printed).groups()
    assert float(last) < float(first)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The same for torch in this process."""
    skip_without("torch")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def short_curve(envs: gymnasium.vector.VectorEnv, seed: int) -> tuple[list[int], list[float]]:
    ppo = load("train_ppo.py")
    with closing(envs):
        curve = ppo.train(envs, updates=4, seed=seed, settings=ppo.Settings(epochs=4))
    return curve.env_steps, curve.returns


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("max_episode_steps", [500, 15])  # ended by terminations; or by both
def test_ppo_learns_the_same_to_the_bit_in_workers(max_episode_steps):
    make = partial(gymnasium.make, "CartPole-v1", max_episode_steps=max_episode_steps)
    mode = AutoresetMode.SAME_STEP
    expected = short_curve(SyncVectorEnv([make] * 4, autoreset_mode=mode), seed=1)
    envs = make_vec(
        "CartPole-v1",
        4,
        num_workers=2,
        autoreset_mode=mode,
        max_episode_steps=max_episode_steps,
    )
    assert len(expected[1]) > 10
    assert short_curve(envs, seed=1) == expected
    other = short_curve(SyncVectorEnv([make] * 4, autoreset_mode=mode), seed=2)
    assert other != expected


def test_ppo_refuses_environments_that_reset_in_the_next_step():
    ppo = load("train_ppo.py")
    with make_vec("CartPole-v1", 1, num_workers=0) as envs, pytest.raises(ValueError, match="SAME"):
        ppo.train(envs, updates=1)
