"""The scripts on growth, waiting, the parts of a step and the model of its time."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from swm_async import EnvPool

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import all as everything  # noqa: E402  # a script's directory becomes part of the path only above
import growth  # noqa: E402  # as above
import profile_step  # noqa: E402  # as above
import scaling_model  # noqa: E402  # as above
import waiting  # noqa: E402  # as above
from environments import Nothing  # noqa: E402  # as above
from fits import errors, fit, fit_line  # noqa: E402  # as above
from reporting import fill_in, pass_times  # noqa: E402  # as above
from scaling import (  # noqa: E402  # as above
    Constants,
    Load,
    Network,
    balance,
    machines_seconds,
    step_seconds,
)

# The floor forks, and pytest-xdist has threads; no lock is held here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is that of /proc"),
]
MARKED = "<!-- measured: {} -->\nold\n<!-- end of measured -->\n"
TINY = ["--rounds", "1", "--seconds", "0.001", "--out"]
ROUND = Constants(step=10, row=1, message=5, wake=40, command=20, env=2, byte=0.5)


class Ticking:
    """Makes so many passes per second and writes down how many were asked for."""

    def __init__(self, label, rate):
        self.label, self.rate, self.asked = label, rate, []

    def restart(self):
        self.asked.append("restart")

    def run(self, passes):
        self.asked.append(passes)
        return self.rate

    def close(self):
        pass


# Lines.


def test_a_line_through_points_on_a_line_is_that_line():
    found = fit_line([1, 10, 1000], [5.0, 23.0, 2003.0])
    assert found.start == pytest.approx(3)
    assert found.slope == pytest.approx(2)
    assert found.worst_error == pytest.approx(0, abs=1e-9)


def test_coefficients_of_two_terms_are_found():
    terms = [[1.0, w, n] for w in (1, 2, 4) for n in (3, 9)]
    found = fit(terms, [7 + 2 * w + 0.5 * n for _, w, n in terms])
    assert found == pytest.approx([7, 2, 0.5])


def test_errors_are_relative():
    mean, worst = errors([110.0, 6.0], [100.0, 10.0])
    assert mean == pytest.approx(np.sqrt((0.1**2 + 0.4**2) / 2))
    assert worst == pytest.approx(0.4)


def test_each_side_makes_as_many_passes_as_fit():
    slow, fast = Ticking("slow", 10.0), Ticking("fast", 1000.0)
    found = pass_times([slow, fast], rounds=2, seconds=1.0)
    assert (found["slow"].median, found["fast"].median) == (0.1, 0.001)
    assert slow.asked[-2:] == [10, 10]
    assert fast.asked[-2:] == [1000, 1000]


# The model, with constants that can be added in one's head.


def test_the_time_of_a_step_is_the_sum_of_its_parts():
    # 3 of 5 environments in one worker: 20 + 3 · (2 + 100 + 0.5 · 8) = 338.
    load = Load(num_envs=5, num_workers=2, env_s=100, env_bytes=8, policy_s=1000)
    assert step_seconds(ROUND, load, cores=2) == 1000 + 10 + 5 + 2 * 5 + 40 + 338
    assert step_seconds(ROUND, load, cores=1) == 1000 + 10 + 5 + 2 * 5 + 40 + 2 * 338


def test_staying_awake_saves_where_everybody_has_a_core_and_never_more_than_there_is():
    awake = replace(ROUND, wake=-8)
    load = Load(num_envs=5, num_workers=2, env_s=100, env_bytes=20, policy_s=1000)
    assert step_seconds(awake, load, cores=2) == 1000 + 10 + 5 + 2 * 5 - 8 + 356
    assert step_seconds(awake, load, cores=1) == 1000 + 10 + 5 + 2 * 5 + 2 * 356
    assert step_seconds(replace(ROUND, wake=-999), load, cores=2) == 1000 + 356


def test_at_the_balance_the_coordinator_is_as_busy_as_a_worker():
    workers = balance(ROUND, envs_per_worker=4, env_s=100)
    # A worker: 20 + 4 · 102 = 428 = 10 + w · (5 + 4).
    assert workers == pytest.approx((428 - 10) / 9)


def test_a_coordinator_that_costs_nothing_has_no_balance():
    free = Constants(step=10, row=0, message=0, wake=40, command=20, env=2, byte=0)
    assert balance(free, 4, 100) == float("inf")


def test_machines_add_a_round_trip_their_messages_and_what_they_report():
    load, network = Load(4, 2, env_bytes=10), Network(100, 7, 2)
    one = step_seconds(ROUND, load, 2)
    assert machines_seconds(ROUND, load, 2, 1, network) == one
    assert machines_seconds(ROUND, load, 2, 3, network) == one + 100 + 3 * 7 + 2 * 4 * 10 / 2


# The scripts.


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """The directory of a tiny run; of a module, since matplotlib keeps files of fonts open."""
    out = tmp_path_factory.mktemp("growth")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "COUNTS", (1, 16, 64))
        patch.setattr(growth, "SIZES", (8, 64))
        patch.setattr(growth, "START_COUNTS", (1, 2))
        growth.main([*TINY, str(out)])
    return out


@pytest.fixture(scope="module")
def modelled(tmp_path_factory):
    """The same of the model, with a page."""
    out = tmp_path_factory.mktemp("model")
    page = out / "page.md"
    names = ("scaling_constants", "scaling_check", "scaling_predicted", "scaling_machines")
    page.write_text("".join(map(MARKED.format, names)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling_model, "COORDINATOR_WORKERS", (1, 2))
        patch.setattr(scaling_model, "COORDINATOR_ENVS", (4, 8))
        patch.setattr(scaling_model, "WORKER_ENVS", (2, 8))
        patch.setattr(scaling_model, "DRAWN", {"100 µs": 100e-6})
        patch.setattr(scaling_model, "checks", lambda: [("nothing", Load(4, 2))])
        scaling_model.main([*TINY, str(out), "--markdown", str(page)])
    return out


def test_growth_writes_its_series_their_lines_and_a_picture(grown):
    written = json.loads((grown / "growth.json").read_text())
    assert set(written["series"]) == {"envs", "bytes", "masked", "memory", "start"}
    steps = written["series"]["envs"][0]["points"]
    assert [point["x"] for point in steps] == [1, 16, 64]
    assert {"envs, 2 workers", "bytes, 2 workers", "masked, 8 of N"} <= written["fits"].keys()
    assert (grown / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_a_start_that_does_not_fit_into_memory_is_left_out_with_the_reason(monkeypatch):
    monkeypatch.setattr(growth, "available_bytes", lambda: 10 * 2**20)
    series, skipped = growth.start_up([1, 300], 1)
    assert series.x == [1]
    assert len(skipped) == 1
    assert skipped[0].startswith("300 workers: they would take")


def test_the_pool_reports_the_bytes_that_are_copied_on_the_other_side():
    pool, copies = growth._reporting(100), growth._copies(100)
    try:
        for side in (pool, copies):
            side.restart()
            side.run(1)
        np.testing.assert_array_equal(pool._pool.infos["data"], copies._target)
    finally:
        pool.close()


def test_other_programs_run_for_as_long_as_they_are_wanted():
    with waiting.other_programs(2) as pids:
        assert [Path(f"/proc/{pid}/stat").exists() for pid in pids] == [True, True]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_every_way_of_waiting_hands_out_the_same():
    scenario = waiting.Scenario("nothing", Nothing, 2)
    found = []
    for combination in waiting.COMBINATIONS:
        side = waiting.WaitingSide(scenario, combination)
        try:
            side.restart()
            assert side.run(3) > 0
            found.append([side._pool.stats()["steps"].tolist(), side._pool.step(side._actions)[:4]])
        finally:
            side.close()
    for steps, outputs in found:
        assert steps == [12, 12]
        for mine, others in zip(outputs, found[0][1], strict=True):
            np.testing.assert_array_equal(mine, others)


def test_the_script_on_waiting_compares_all_combinations(monkeypatch, tmp_path):
    scenarios = waiting.scenarios()
    busy = [each for each in scenarios if each.hogs][:1]
    thinking = [each for each in scenarios if each.policy is waiting.multiply][:1]
    monkeypatch.setattr(waiting, "scenarios", lambda: busy + thinking)
    waiting.main([*TINY, str(tmp_path)])
    written = json.loads((tmp_path / "waiting.json").read_text())["scenarios"]
    assert [each["other programs"] for each in written] == [1, 0]
    labels = {"awake", "asleep, pinned", "awake, pinned", "defaults"}
    assert all(each["times as fast"].keys() == labels for each in written)


@pytest.mark.parametrize("with_infos", [False, True])
def test_the_moments_of_a_step_follow_each_other_on_both_sides(with_infos):
    fns = [lambda: profile_step.Noted(with_infos)] * 5
    with EnvPool(fns, num_workers=2) as pool:
        pool.reset(seed=0)
        pool.step(np.zeros(5, np.int64))
        steps = profile_step.noted_steps(pool, np.zeros(5, np.int64), 4)
    assert len(steps) == 4
    for step in steps:
        for w in range(2):
            moments = [
                step.began, step.writes[w][0], step.worker_read[w], step.worker_began[w],
                step.worker_ended[w], step.worker_done[w], step.reads[w], step.ended,
            ]  # fmt: skip
            assert all(a <= b + 1e-7 for a, b in pairwise(moments))  # sums of floats differ a bit
        assert sum(step.parts()) == pytest.approx(step.ended - step.began)
    assert profile_step.worker.os is os


def test_the_profile_has_every_part(monkeypatch, tmp_path):
    monkeypatch.setattr(profile_step, "COUNTS", (2,))
    profile_step.main([*TINY, str(tmp_path), "--steps", "3"])
    written = json.loads((tmp_path / "profile_step.json").read_text())
    parts = {*profile_step.PARTS, *profile_step.DETAILS}
    assert {name: set(found) for name, found in written["profiles"].items()} == {
        "N = 2": parts,
        "N = 2, infos": parts,
    }


def test_the_model_is_fitted_checked_and_drawn(modelled):
    page = (modelled / "page.md").read_text()
    written = json.loads((modelled / "scaling_model.json").read_text())
    constants = written["constants, s"]
    assert min(value for name, value in constants.items() if name != "wake") >= 0
    (check,) = written["checked"]
    error = check["predicted_s"] / check["measured_s"]["median"] - 1
    assert written["worst error"] == pytest.approx(abs(error))
    assert "old" not in page
    assert "| message | coordinator, per worker |" in page
    assert (modelled / "scaling.png").read_bytes().startswith(b"\x89PNG")


# All of them.


def test_every_script_exists_and_says_how_to_run_it():
    for script in everything.SCRIPTS:
        text = (ROOT / "benchmarks" / f"{script.name}.py").read_text()
        assert f"python benchmarks/{script.name}.py" in text


def test_a_full_run_fills_in_pages_and_a_quick_one_does_not():
    for script in everything.SCRIPTS:
        full = everything.command(script, quick=False, out=Path("here"))
        quick = everything.command(script, quick=True, out=Path("here"))
        assert full[full.index("--markdown") + 1 :] == list(script.pages)
        assert "--markdown" not in quick


def test_a_script_that_fails_is_named_and_the_others_run(monkeypatch, tmp_path, capfd):
    for name, text in {"bad": "raise SystemExit(3)", "good": "print('here I am')"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "drawn.png").write_bytes(b"a picture")
    monkeypatch.setattr(everything, "HERE", tmp_path)
    scripts = (everything.Script("bad"), everything.Script("good"))
    monkeypatch.setattr(everything, "SCRIPTS", scripts)
    assert everything.main(["--out", str(tmp_path)]) == 1
    printed = capfd.readouterr().out
    assert "here I am" in printed
    assert "failed: bad" in printed
    assert (tmp_path / "pictures" / "drawn.png").read_bytes() == b"a picture"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        (
            "benchmarks/README.md",
            [
                "infos",
                "overlap",
                "startup",
                "footprint",
                "libraries",
                "growth",
                "waiting",
                "profile",
            ],
        ),
        (
            "docs/scaling.md",
            ["scaling_constants", "scaling_check", "scaling_predicted", "scaling_machines"],
        ),
    ],
)
def test_the_pages_have_a_place_for_every_result(page, names):
    text = (ROOT / page).read_text()
    for name in names:
        assert fill_in(text, {name: "measured"}) != text, name
