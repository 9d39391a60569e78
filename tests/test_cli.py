"""The commands do what they say, write what they promise, and put errors into one line."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import cloudpickle
import gymnasium
import numpy as np
import pytest
from PIL import Image

import swm_async
from envs import Ledger
from swm_async import EnvError, EnvPool, comparison
from swm_async.benchmarking import Spread
from swm_async.cli import main
from swm_async.contenders import Row
from swm_async.pictures import contact_sheet, moments, plot_speeds
from swm_async.reproduce import Recording
from swm_async.terminal import markdown_table, text_table

# AsyncVectorEnv forks, and pytest-xdist has threads; that warning is about programs of one's own.
forks = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def private_path(monkeypatch):
    """`bench` adds the working directory to the path, for modules of the user."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def error_of(capsys, *arguments: str) -> str:
    """What the command prints on standard error, where it must be a single line."""
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("swm-async: error: ")
    assert printed.count("\n") == 1
    return printed


# The command line.


def test_the_installed_command_tells_its_version():
    command = Path(sys.executable).with_name("swm-async")
    if not command.exists():
        pytest.skip("the project is not installed in this environment")
    result = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"swm-async {swm_async.__version__}\n"


def test_the_package_can_be_run_as_the_command():
    command = [sys.executable, "-m", "swm_async", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == f"swm-async {swm_async.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["bench"],
        ["bench", "CartPole-v1", "--num-envs", "0"],
        ["bench", "CartPole-v1", "--num-workers", "-1"],
        ["bench", "CartPole-v1", "--seconds", "0"],
        ["bench", "CartPole-v1", "--seconds", "1", "--steps", "1"],
        ["bench", "CartPole-v1", "--env-kwarg", "no separator"],
        ["demo", "--episodes", "0"],
    ],
)
def test_wrong_arguments_end_with_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch, capsys):
    def interrupt(request):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "run", interrupt)
    assert main(["bench", "CartPole-v1"]) == 130
    assert capsys.readouterr().err == "swm-async: interrupted\n"


# The demonstration.


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_demo_prints_its_results_and_draws_the_episodes(num_workers, tmp_path, capsys):
    out = tmp_path / "new" / "sheet.png"
    arguments = ["--num-envs", "2", "--num-workers", str(num_workers), "--episodes", "3"]
    assert main(["demo", *arguments, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "success rate: 100.0 % of 3 episodes" in printed
    assert "environment steps per second" in printed
    assert ("speed-up over num_workers=0: " in printed) == (num_workers > 0)
    assert str(out) in printed
    with Image.open(out) as sheet:
        # 8 frames of 192 pixels side by side, 3 below each other, 4 apart, a margin of 12.
        assert sheet.size == (8 * 192 + 7 * 4 + 2 * 12, 3 * 192 + 2 * 4 + 2 * 12)
        assert sheet.mode == "RGB"


def test_the_demo_tells_which_extra_is_missing(monkeypatch, tmp_path, capsys):
    _hide(monkeypatch, "PIL")
    printed = error_of(capsys, "demo", "--out", str(tmp_path / "sheet.png"))
    assert 'pip install "swm_async[pixels]"' in printed


def test_the_demo_refuses_more_workers_than_environments(tmp_path, capsys):
    out = str(tmp_path / "sheet.png")
    printed = error_of(capsys, "demo", "--num-envs", "2", "--num-workers", "3", "--out", out)
    assert "num_workers" in printed


def _hide(monkeypatch, module: str) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == module else find_spec(name)
    )


@pytest.mark.parametrize(
    ("length", "chosen"),
    [(8, [0, 1, 2, 3, 4, 5, 6, 7]), (15, [0, 2, 4, 6, 8, 10, 12, 14]), (1, [0] * 8)],
)
def test_moments_are_evenly_spread_from_first_to_last(length, chosen):
    assert moments(length, 8) == chosen


def test_a_contact_sheet_holds_each_chosen_frame_in_its_place():
    episodes = [
        [np.full((3, 5, 3), 10 * row + t, np.uint8) for t in range(4 + row)] for row in range(2)
    ]
    sheet = contact_sheet(episodes, columns=2)
    assert sheet.shape == (2 * 3 + 4 + 24, 2 * 5 + 4 + 24, 3)
    for (row, column), shade in {(0, 0): 0, (0, 1): 3, (1, 0): 10, (1, 1): 14}.items():
        top, left = 12 + row * 7, 12 + column * 9
        frame = sheet[top : top + 3, left : left + 5]
        assert (frame == shade).all()
        border = sheet[top - 1 : top + 4, left - 1 : left + 6].astype(int).sum() - frame.sum()
        assert border == (5 * 7 - 3 * 5) * (250 + 249 + 246)


# The comparison.


@pytest.fixture(scope="module")
def fonts(tmp_path_factory):
    """matplotlib keeps the fonts of its first chart open for as long as the process lives."""
    row = Row(2, "SyncVectorEnv", Spread(1, 1, 1), None, None)
    plot_speeds({"any": [row]}, "any", tmp_path_factory.mktemp("fonts") / "any.png")


@forks
@pytest.mark.usefixtures("fonts")
def test_bench_prints_a_table_and_writes_json_and_a_chart(tmp_path, capsys):
    out = tmp_path / "results"
    arguments = [
        "--num-envs",
        "3",
        "2",
        "--num-workers",
        "1",
        "0",
        "3",
        "--steps",
        "3",
        "--rounds",
        "2",
        "--out",
    ]
    assert main(["bench", "CartPole-v1", *arguments, str(out)]) == 0
    printed = capsys.readouterr().out
    for word in ("env steps/s", "Python", "numpy", "gymnasium", "usable cores", "SAME_STEP"):
        assert word in printed
    written = json.loads((out / "bench-CartPole-v1.json").read_text())
    assert written["environment"] == "CartPole-v1"
    assert [(row["num_envs"], row["label"]) for row in written["rows"]] == [
        (2, "SyncVectorEnv"),
        (2, "AsyncVectorEnv"),
        (2, "EnvPool, in process"),
        (2, "EnvPool, 1 worker"),
        (3, "SyncVectorEnv"),
        (3, "AsyncVectorEnv"),
        (3, "EnvPool, in process"),
        (3, "EnvPool, 1 worker"),
        (3, "EnvPool, 3 workers"),
    ]
    assert all(row["rate"]["median"] > 0 for row in written["rows"])
    with Image.open(out / "bench-CartPole-v1.png") as chart:
        assert chart.format == "PNG"


@forks
def test_bench_finds_a_module_of_the_working_directory(tmp_path, monkeypatch, capsys):
    (tmp_path / "made_for_bench.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Longer(CartPoleEnv):\n"
        "    def __init__(self, length, name):\n"
        "        super().__init__()\n"
        "        assert (length, name) == (2.5, 'long one')\n"
        "gymnasium.register('Longer-v0', entry_point=Longer, max_episode_steps=50)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", gymnasium.registry.copy())
    monkeypatch.delitem(sys.modules, "made_for_bench", raising=False)
    arguments = ["--num-envs", "2", "--num-workers", "2", "--steps", "2", "--rounds", "1"]
    kwargs = ["--env-kwarg", "length=2.5", "--env-kwarg", "name=long one"]
    try:
        assert main(["bench", "made_for_bench:Longer-v0", *arguments, *kwargs]) == 0
    finally:
        gymnasium.registry.pop("Longer-v0", None)
        sys.modules.pop("made_for_bench", None)
    assert "EnvPool, 2 workers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["CartPole-v99"], "CartPole-v99"),
        (["NoSuchEnvironment-v0"], "NoSuchEnvironment"),
        (["no_such_module:CartPole-v1"], "no_such_module"),
        (["CartPole-v1", "--env-kwarg", "colour=blue"], "colour"),
    ],
)
def test_an_environment_that_cannot_be_made_is_one_line(arguments, expected, capsys):
    assert expected in error_of(capsys, "bench", *arguments)


def test_bench_tells_which_extra_is_missing_before_it_measures(monkeypatch, tmp_path, capsys):
    _hide(monkeypatch, "matplotlib")
    printed = error_of(capsys, "bench", "CartPole-v1", "--out", str(tmp_path))
    assert 'pip install "swm_async[plot]"' in printed
    assert list(tmp_path.iterdir()) == []


def test_a_table_of_rows_names_its_units_and_leaves_out_what_was_not_compared():
    rows = [
        Row(8, "SyncVectorEnv", Spread(1200.4, 1100, 1300), None, Spread(5, 4, 6)),
        Row(8, "AsyncVectorEnv", Spread(240, 230, 250), Spread(0.2, 0.19, 0.21), None),
    ]
    cells = comparison.table(rows)
    assert cells == [
        ["side", "N", "env steps/s", "× SyncVectorEnv", "× AsyncVectorEnv"],
        ["SyncVectorEnv", "8", "1,200", "", "5.00 (4.00–6.00)"],
        ["AsyncVectorEnv", "8", "240", "0.20 (0.19–0.21)", ""],
    ]
    assert text_table([["a", "bb"], ["ccc", "1"]]) == "a    bb\n---  --\nccc   1"
    assert markdown_table([["a", "b"], ["c", "1"]]) == "| a | b |\n| --- | ---: |\n| c | 1 |"


# The replay.


def test_replay_raises_again_what_a_pool_has_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with EnvPool([Ledger] * 2, num_workers=0, record_actions=True) as pool:
        pool.reset(seed=5, options=[None, {"step_error": OverflowError("worn out")}])
        with pytest.raises(EnvError):
            pool.step(np.ones((2, 2)))
    (file,) = tmp_path.glob("*.pkl")
    with pytest.raises(OverflowError, match="worn out"):
        main(["replay", str(file)])
    assert "environment 1: reset(seed=6, options=" in capsys.readouterr().out


def test_replay_tells_where_nothing_fails_any_more(tmp_path, capsys):
    file = tmp_path / "mended.pkl"
    recording = Recording(Ledger, 3, 8, None, [np.zeros(2), np.zeros(2)])
    file.write_bytes(cloudpickle.dumps(recording))
    assert main(["replay", str(file)]) == 0
    # Ledger rewards a step with its number: 1 + 2.
    assert "nothing was raised; the rewards of 2 steps sum to 3\n" in capsys.readouterr().out


def test_replay_of_something_else_is_one_line(tmp_path, capsys):
    (tmp_path / "other.pkl").write_bytes(b"no pickle")
    assert "other.pkl" in error_of(capsys, "replay", str(tmp_path / "other.pkl"))
    assert "none.pkl" in error_of(capsys, "replay", str(tmp_path / "none.pkl"))
