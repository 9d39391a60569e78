"""`swm-async evaluate` says what an evaluation in Python says, and puts errors into one line."""

import importlib.util
import re
import sys

import pytest

from swm_async import PointGoalExpert, RandomPolicy, World
from swm_async.cli import main

POINT_GOAL = "swm_async/PointGoal-v0"
EXPERT = "swm_async:PointGoalExpert"

MODULE = """
import gymnasium
import numpy as np
from gymnasium import spaces
from swm_async import WorkerPolicy


class Short(gymnasium.Env):
    observation_space = action_space = spaces.Discrete(9)

    def __init__(self, length=2, render_mode=None):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return 0, {}

    def step(self, action):
        self.count += 1
        return 0, float(action), False, self.count == self.length, {"won": True, "pair": np.ones(2)}


gymnasium.register("made/Short-v0", entry_point=Short)


class Fives:
    def get_action(self, infos):
        return np.full(len(infos["step_idx"]), 5)


class Kinds:
    sevens = staticmethod(lambda: WorkerPolicy(lambda: lambda env, info: 7))


def broken():
    raise LookupError("no weights\\nhere")
"""


@pytest.fixture(autouse=True)
def private_path(monkeypatch):
    """The command adds the working directory to the path, for modules of the user."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def module(monkeypatch, tmp_path):
    import gymnasium

    (tmp_path / "made_for_evaluate.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", gymnasium.registry.copy())
    monkeypatch.delitem(sys.modules, "made_for_evaluate", raising=False)
    return "made_for_evaluate"


def run(capsys, *arguments):
    assert main(["evaluate", *arguments]) == 0
    return capsys.readouterr()


def error_of(capsys, *arguments):
    assert main(["evaluate", *arguments]) == 2
    printed = capsys.readouterr().err.splitlines()[-1]
    assert printed.startswith("swm-async: error: ")
    return printed


def summary(policy, episodes, num_envs, **arguments):
    with World(POINT_GOAL, num_envs, add_pixels=False, num_workers=0) as world:
        world.set_policy(policy)
        return world.evaluate(episodes, **arguments).summary()


@pytest.mark.parametrize("num_workers", ["0", "2"])
def test_it_prints_the_summary_and_shows_a_progress_bar(capsys, num_workers):
    arguments = [
        POINT_GOAL,
        "--policy",
        EXPERT,
        "--episodes",
        "5",
        "--num-envs",
        "3",
        "--seed",
        "4",
    ]
    captured = run(capsys, *arguments, "--num-workers", num_workers)
    assert captured.out == summary(PointGoalExpert(), 5, 3, seed=4) + "\n"
    assert "5/5" in captured.err


def test_without_a_policy_actions_are_random_and_the_limit_is_the_environments_own(capsys):
    printed = run(
        capsys, POINT_GOAL, "--episodes", "2", "--num-envs", "2", "--num-workers", "0"
    ).out
    assert re.search(r"length +100 on average", printed)
    assert RandomPolicy.__name__ not in printed


def test_modules_of_the_working_directory_are_found(capsys, module):
    arguments = [f"{module}:made/Short-v0", "--policy", f"{module}:Fives", "--episodes", "3"]
    printed = run(capsys, *arguments, "--num-envs", "2", "--num-workers", "1").out
    assert re.search(r"return +10 on average", printed)
    arguments = [*arguments, "--num-workers", "0", "--env-kwarg", "length=6"]
    printed = run(capsys, *arguments, "--max-episode-steps", "4", "--success", "won").out
    assert re.search(r"return +20 on average", printed)
    assert "success rate  100.0 %" in printed


def test_a_policy_may_act_in_the_workers(capsys, module):
    arguments = [f"{module}:made/Short-v0", "--policy", f"{module}:Kinds.sevens"]
    printed = run(
        capsys, *arguments, "--episodes", "3", "--num-envs", "2", "--num-workers", "2"
    ).out
    assert re.search(r"return +14 on average", printed)


@pytest.mark.parametrize(
    ("shape", "size"), [([], "256x256"), (["--image-shape", "32", "48"], "48x32")]
)
def test_videos_go_into_the_folder(capsys, tmp_path, shape, size):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    folder = tmp_path / "videos"
    arguments = ["--policy", EXPERT, "--episodes", "2", "--num-envs", "2", "--num-workers", "0"]
    printed = run(capsys, POINT_GOAL, *arguments, *shape, "--video", str(folder)).out
    assert str(folder) in printed
    assert sorted(p.name for p in folder.iterdir()) == ["episode_0.mp4", "episode_1.mp4"]
    reader = imageio_ffmpeg.read_frames(str(folder / "episode_0.mp4"))
    found = next(reader)["source_size"]
    reader.close()
    assert "{}x{}".format(*found) == size


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere/Nothing-v0"], "cannot make nowhere/Nothing-v0: "),
        (["no_such_module:Nothing-v0"], "cannot make no_such_module:Nothing-v0: .*ModuleNotFound"),
        ([POINT_GOAL, "--env-kwarg", "walls=3"], "cannot make .*walls"),
        ([POINT_GOAL, "--policy", "swm_async"], "MODULE:FACTORY, found 'swm_async'"),
        ([POINT_GOAL, "--policy", "swm_async:Nobody"], "--policy swm_async:Nobody: AttributeError"),
        ([POINT_GOAL, "--policy", "nowhere:Nobody"], "--policy nowhere:Nobody: ModuleNotFound"),
        ([POINT_GOAL, "--policy", "builtins:dict"], "must make a policy with get_action"),
        ([POINT_GOAL, "--num-workers", "3"], "num_workers must be from 0 to 2"),
        ([POINT_GOAL, "--success", "wun"], "--success wun: no info of one value; .*'success'"),
        ([POINT_GOAL, "--success", "state"], "--success state: no info of one value"),
    ],
)
def test_errors_are_told_in_one_line(capsys, arguments, words):
    more = ["--num-envs", "2", "--episodes", "2"]
    workers = [] if "--num-workers" in arguments else ["--num-workers", "0"]
    assert re.search(words, error_of(capsys, *arguments, *more, *workers))


def test_a_policy_that_cannot_be_made_is_told_in_one_line(capsys, module):
    arguments = [POINT_GOAL, "--policy", f"{module}:broken", "--num-workers", "0"]
    assert error_of(capsys, *arguments).endswith(
        "made_for_evaluate:broken: LookupError: no weights"
    )


def test_a_missing_extra_is_told_before_anything_is_built(capsys, monkeypatch, tmp_path):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "imageio" else find_spec(name)
    )
    printed = error_of(capsys, "nowhere/Nothing-v0", "--video", str(tmp_path / "videos"))
    assert 'pip install "swm_async[video]"' in printed


@pytest.mark.parametrize(
    "arguments", [[], [POINT_GOAL, "--episodes", "0"], [POINT_GOAL, "--image-shape", "3"]]
)
def test_wrong_arguments_end_with_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", *arguments])
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
