"""`collect` records what was asked for; `inspect` tells and draws what a dataset holds."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from PIL import Image

from swm_async import PointGoalExpert, World
from swm_async.cli import main
from swm_async.data import NpzWriter, load_dataset

POINT_GOAL = "swm_async/PointGoal-v0"
ALONE = ("--num-envs", "2", "--num-workers", "0")


@pytest.fixture(autouse=True)
def private_place(monkeypatch, tmp_path):
    """The commands add the working directory to the path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


def error_of(capsys, *arguments: str) -> str:
    """What the command prints on standard error, where it must be a single line."""
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    lines = [line for line in printed.splitlines() if not line.startswith("\rcollect")]
    assert len(lines) == 1
    assert lines[0].startswith("swm-async: error: ")
    return lines[0]


def hide(monkeypatch, module: str) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == module else find_spec(name)
    )


# collect


@pytest.mark.parametrize("out", ["folder", "file.h5"])
def test_collect_records_what_a_world_does(out, tmp_path, capsys):
    if out.endswith("h5"):
        pytest.importorskip("h5py")
    policy = ("--policy", "swm_async:PointGoalExpert", "--image-size", "20", "24")
    numbers = ("--episodes", "3", "--seed", "5", "--max-episode-steps", "12")
    assert main(["collect", POINT_GOAL, out, *ALONE, *policy, *numbers]) == 0
    printed = capsys.readouterr()
    assert "3/3" in printed.err
    with World(POINT_GOAL, 1, (20, 24), 12, num_workers=0) as world:
        world.set_policy(PointGoalExpert())
        found = world.collect("other", 3, 5, progress=False)
    assert f"recorded 3 episodes of {found['episode_lengths'].sum()} steps: " in printed.out
    assert str(tmp_path / out) in printed.out
    with load_dataset(out) as dataset, load_dataset("other") as other:
        assert dataset.column_names == other.column_names
        for k in range(3):
            episode, wanted = dataset.load_episode(k), other.load_episode(k)
            for name in set(wanted) - {"render_time"}:
                np.testing.assert_array_equal(episode[name], wanted[name])
    assert wanted["pixels"].shape[1:] == (20, 24, 3)


def test_collect_appends_overwrites_or_refuses(capsys):
    record = ("collect", POINT_GOAL, "out", *ALONE, "--episodes", "2", "--max-episode-steps", "2")
    assert main(record) == main(record) == 0
    assert len(load_dataset("out")) == 4
    assert main([*record, "--mode", "overwrite", "--env-kwarg", "render_mode=None"]) == 0
    assert len(load_dataset("out")) == 2
    capsys.readouterr()
    assert "holds episodes already" in error_of(capsys, *record, "--mode", "error")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((POINT_GOAL, "out.csv"), "no format has the suffix '.csv'"),
        ((POINT_GOAL, "out", "--format", "csv"), "format must be one of"),
        (("Unknown-v0", "out"), "cannot make Unknown-v0"),
        ((POINT_GOAL, "out", "--policy", "nothing"), "--policy must be MODULE:FACTORY"),
        ((POINT_GOAL, "out", "--policy", "nothing:here"), "No module named 'nothing'"),
    ],
)
def test_collect_tells_what_is_wrong_in_one_line(arguments, text, tmp_path, capsys):
    assert text in error_of(capsys, "collect", *arguments, *ALONE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [("h5py", ("out.h5",), "hdf5"), ("PIL", ("out", "--image-size", "8", "8"), "pixels")],
)
def test_collect_tells_which_extra_is_missing(monkeypatch, capsys, module, arguments, extra):
    hide(monkeypatch, module)
    printed = error_of(capsys, "collect", POINT_GOAL, *arguments, *ALONE)
    assert f'pip install "swm_async[{extra}]"' in printed


# inspect


def write(path, *episodes):
    writer = NpzWriter(path)
    for episode in episodes:
        writer.write_episode(episode)
    writer.close()


def test_inspect_tells_columns_and_lengths(capsys):
    rows = [{"x": np.zeros((n, 7)), "word": ["a"] * n} for n in (3, 9, 4)]
    write("out", *({**row, "_episode_data": {"size": 2}} for row in rows))
    assert main(["inspect", "out"]) == 0
    printed = capsys.readouterr().out
    assert "3 episodes, 16 rows" in printed
    assert "rows of an episode: 3 to 9, half of them up to 4" in printed
    lines = [line.split() for line in printed.splitlines()]
    assert ["word", "text", "-"] in lines
    assert ["x", "float64", "7"] in lines
    assert ["size", "(per", "episode)", "int64", "-"] in lines
    assert "--out" not in printed


def test_inspect_draws_episodes_below_each_other(capsys):
    def frames(red):
        green = np.arange(15)[:, None, None, None] * 10
        image = np.zeros((15, 60, 50, 3), np.uint8)
        image[..., 0], image[..., 1:2] = red, green
        return image

    write("out", *({"pixels": frames(10 * k)} for k in range(11)))
    assert main(["inspect", "out"]) == 0
    assert "--out" in capsys.readouterr().out
    assert main(["inspect", "out", "--out", "new/sheet.png"]) == 0
    with Image.open("new/sheet.png") as sheet:
        picture = np.asarray(sheet)
    # Frames of twice their size: 6 rows of 8, 4 apart, within a margin of 12.
    assert picture.shape == (6 * 120 + 5 * 4 + 2 * 12, 8 * 100 + 7 * 4 + 2 * 12, 3)
    centres = picture[12 + 60 :: 124, 12 + 50 :: 104]
    assert centres[:, 0, 0].tolist() == [0, 20, 40, 60, 80, 100]
    assert centres[0, :, 1].tolist() == [0, 20, 40, 60, 80, 100, 120, 140]


@pytest.mark.parametrize("channels", [1, 4])
def test_inspect_draws_grey_and_transparent_frames(channels):
    write("out", {"pixels.side": np.full((2, 96, 10, channels), 77, np.uint8)})
    assert main(["inspect", "out", "--out", "sheet.png"]) == 0
    with Image.open("sheet.png") as sheet:
        assert np.asarray(sheet)[50, 15].tolist() == [77, 77, 77]


def test_inspect_tells_what_is_wrong_in_one_line(tmp_path, capsys):
    assert "no dataset" in error_of(capsys, "inspect", "missing")
    (tmp_path / "empty").mkdir()
    assert "is no dataset" in error_of(capsys, "inspect", "empty")
    write("out", {"x": [1]})
    assert "no column of pixels" in error_of(capsys, "inspect", "out", "--out", "sheet.png")


def test_inspect_tells_which_extra_is_missing(monkeypatch, capsys):
    hide(monkeypatch, "PIL")
    printed = error_of(capsys, "inspect", "out", "--out", "sheet.png")
    assert 'pip install "swm_async[pixels]"' in printed
