"""Both sides of a benchmark do the same work, and the script writes what it promises."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from PIL import Image

from same import assert_same
from swm_async.benchmarking import Measurement, Spread, in_words, machine, measure
from swm_async.contenders import ASYNC, SYNC, OwnVectorSide, PoolSide, VectorSide, Work

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import infos  # noqa: E402  # a script's directory becomes part of the path only above
import overlap  # noqa: E402  # as above
import targets  # noqa: E402  # as above
import throughput  # noqa: E402  # as above
from environments import ENVIRONMENTS  # noqa: E402  # as above
from harness import Ceiling, PlainLoop, RawFloor  # noqa: E402  # as above
from reporting import fill_in  # noqa: E402  # as above

# AsyncVectorEnv and the ceiling fork, and pytest-xdist has threads; no lock is held here.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

SIDES = {
    "AsyncVectorEnv": lambda work: VectorSide(work, ASYNC),
    "in process": lambda work: PoolSide(work, 0),
    "2 workers": lambda work: PoolSide(work, 2),
    "VectorEnv, 2 workers": lambda work: OwnVectorSide(work, 2),
}


class EveryThird(gymnasium.Env):
    """Ends at every third step and writes down how often it was reset, and with which seeds."""

    observation_space = gymnasium.spaces.Box(0, 3, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(5)
    made: list[EveryThird] = []

    def __init__(self):
        self.seeds = []
        self.actions = []
        self.made.append(self)

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.steps = 0
        return np.zeros(1), {}

    def step(self, action):
        self.actions.append(int(action))
        self.steps += 1
        return np.array([self.steps], np.float64), 1.0, self.steps == 3, False, {}


class FakeSide:
    """Makes `rate` passes per second and writes down what it is asked, in a common book."""

    def __init__(self, label, rate, book):
        self.label, self.rate, self.book = label, rate, book

    def restart(self):
        self.book.append((self.label, "restart"))

    def run(self, passes):
        self.book.append((self.label, passes))
        return self.rate

    def close(self):
        pass


# The same work.


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_both_sides_hand_out_the_same(environment, side):
    work = Work.of(ENVIRONMENTS[environment].env_fn, 2, seed=3)
    passes = 60 if environment == "cartpole" else 3
    ends = 0
    mine, reference = SIDES[side](work), VectorSide(work, SYNC)
    try:
        pairs = [(mine.restart(), reference.restart())]
        for _ in range(passes):
            pairs.append((mine.advance(), reference.advance()))
            # Both overwrite their arrays with the next pass.
            found, expected = pairs.pop()
            for name in ("observations", "terminateds", "truncateds"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
            rewards = np.float32(found.rewards), np.float32(expected.rewards)  # the pool's dtype
            np.testing.assert_array_equal(*rewards)
            ends += int(np.sum(expected.terminateds | expected.truncateds))
        np.testing.assert_array_equal(pairs[0][0].rewards, pairs[0][1].rewards)
    finally:
        mine.close()
        reference.close()
    assert (ends > 2) == (environment == "cartpole")


def test_a_restart_brings_back_the_first_actions_and_seeds():
    work = Work.of(ENVIRONMENTS["cartpole"].env_fn, 2)
    side = PoolSide(work, 0)
    try:
        side.restart()
        first = [side.advance().observations.copy() for _ in range(5)]
        side.run(30)
        side.restart()
        again = [side.advance().observations.copy() for _ in range(5)]
    finally:
        side.close()
    np.testing.assert_array_equal(first, again)


def test_the_loop_of_the_ceiling_resets_finished_environments_and_plays_its_own_columns():
    work = Work.of(EveryThird, 4, seed=10)
    EveryThird.made.clear()
    loop = PlainLoop(work, 1, 3)
    loop.restart()
    loop.run(3)
    loop.run(5)
    # 8 steps hold two ends, at the third and the sixth.
    assert [env.seeds for env in EveryThird.made] == [[11, None, None], [12, None, None]]
    taken = [[int(batch[i]) for batch in work.actions[:8]] for i in (1, 2)]
    assert [env.actions for env in EveryThird.made] == taken


@pytest.mark.parametrize("make", [lambda: Ceiling(Work.of(EveryThird, 3), 2), partial(RawFloor, 2)])
def test_forked_references_run_and_leave_nothing_behind(make):
    side = make()
    side.restart()
    assert side.run(5) > 0
    side.close()


def test_a_ceiling_whose_process_fails_says_so(capfd):
    class Broken(EveryThird):
        def step(self, action):
            raise RuntimeError("worn out")

    side = Ceiling(Work.of(Broken, 2), 2)
    side.restart()
    with pytest.raises(RuntimeError, match="has died"):
        side.run(1)
    side.close()
    assert "worn out" in capfd.readouterr().err


# Measuring.


def test_sides_take_turns_in_the_order_a_b_b_a():
    book = []
    sides = [FakeSide("A", 10.0, book), FakeSide("B", 20.0, book)]
    found = measure(sides, rounds=2, seconds=1.0, passes=7)
    assert book == [("A", "restart"), ("B", "restart"), ("A", 7), ("B", 7), ("B", 7), ("A", 7)]
    assert found == Measurement(7, {"A": [10.0, 10.0], "B": [20.0, 20.0]})


@pytest.mark.parametrize(("seconds", "passes"), [(2.0, 200), (0.1, 10), (0.001, 1)])
def test_the_slowest_side_sets_the_number_of_passes(seconds, passes):
    sides = [FakeSide("A", 100.0, []), FakeSide("B", 5000.0, [])]
    assert measure(sides, rounds=1, seconds=seconds).passes == passes


def test_ratios_are_taken_round_by_round_and_then_summed_up():
    found = Measurement(1, {"pool": [2.0, 30.0, 8.0], "sync": [1.0, 10.0, 2.0]})
    assert found.ratio("pool", "sync") == Spread(median=3.0, low=2.5, high=3.5)
    assert found.rate("pool") == Spread(8.0, 5.0, 19.0)
    assert Spread.of([4.0]) == Spread(4.0, 4.0, 4.0)


@pytest.mark.parametrize(
    ("reference", "least", "measured", "verdict"),
    [
        ("SyncVectorEnv", 1.9, 1.9, "reached"),
        ("SyncVectorEnv", 1.9, 1.8, "missed"),
        ("raw floor", 1.8, 1.7, "reached"),
        ("raw floor", 1.8, 1.9, "missed"),
        ("ceiling", None, 0.5, "stated"),
    ],
)
def test_a_verdict_knows_whether_less_is_better(reference, least, measured, verdict):
    target = targets.Target("P0", "nothing", 8, reference, least, least)
    spread = Spread(measured, measured, measured)
    assert targets.Outcome(target, spread).verdict == verdict


@pytest.mark.parametrize(("share", "is_busy"), [(0.05, False), (0.4, True), (None, False)])
def test_a_machine_in_words_tells_whether_it_was_busy(share, is_busy):
    described = machine() | {"usable cores": 2, "share of the cores in use before": share}
    assert ("too noisy" in in_words(described)) == is_busy
    assert f"numpy {np.__version__}" in in_words(described)


# The script.

MARKED = "before\n<!-- measured: {} -->\nold\n<!-- end of measured -->\nafter\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory and the Markdown file of a tiny run."""
    out = tmp_path_factory.mktemp("benchmarks")
    page = out / "page.md"
    page.write_text("".join(map(MARKED.format, ("targets", "table", "summary", "machine"))))
    options = "--only P3,P7,table --environments nothing --num-envs 2 --rounds 2 --seconds 0.001"
    with pytest.MonkeyPatch.context() as patch:
        series = [t for t in targets.TARGETS if t.num_envs <= 8]
        patch.setattr(targets, "TARGETS", series)
        throughput.main([*options.split(), "--out", str(out), "--markdown", str(page)])
    return out


def test_the_script_writes_machine_units_rows_and_what_both_sides_did(run):
    written = json.loads((run / "throughput.json").read_text())
    assert {"cpu", "usable cores", "python", "numpy", "gymnasium"} <= written["machine"].keys()
    assert written["units"]["rate"] == "environment steps per second"
    assert written["rounds"] == 2
    rows = written["table"]["nothing"]
    labels = {"SyncVectorEnv", "AsyncVectorEnv", "EnvPool, in process", "EnvPool, 2 workers"}
    assert labels <= {row["label"] for row in rows}
    assert [(t["name"], t["num_envs"]) for t in written["targets"]] == [("P3", 8), ("P7", 2)]
    for target in written["targets"]:
        assert target["measured"]["median"] > 0
        assert "EnvPool.step" in target["both sides"]


def test_the_script_draws_a_chart(run):
    with Image.open(run / "throughput.png") as chart:
        assert chart.format == "PNG"
        assert min(chart.size) > 300


def test_the_script_replaces_the_marked_parts_of_a_page_and_nothing_else(run):
    page = (run / "page.md").read_text()
    assert page.count("before\n<!-- measured: ") == page.count("<!-- end of measured -->\nafter\n")
    assert "old" not in page
    assert "| P7 | does nothing | 2 | raw floor | at most 1.8 |" in page
    assert "| does nothing | 2 |" in page
    assert "EnvPool, 2 workers" in page


def test_a_part_that_was_not_measured_stays_as_it_is():
    text = MARKED.format("table") + MARKED.format("machine")
    filled = fill_in(text, {"machine": "here"})
    assert filled.startswith(MARKED.format("table"))
    assert filled.endswith("-->\n\nhere\n\n<!-- end of measured -->\nafter\n")


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("README.md", {"machine", "summary"}),
        ("benchmarks/README.md", {"machine", "targets", "table"}),
    ],
)
def test_the_pages_of_the_project_have_their_marked_parts(page, names):
    text = (ROOT / page).read_text()
    parts = {name for name in ("machine", "summary", "targets", "table")
             if fill_in(text, {name: "other"}) != text}  # fmt: skip
    assert parts == names


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        throughput.main(["--only", "P1,P99"])
    assert "P99" in capsys.readouterr().err


# Infos and masks.


def test_both_sides_of_the_rows_on_infos_hand_out_the_same():
    pool = infos.PoolSteps("", infos.WorldLike, 4, 2, None, False)
    alone = infos.PoolSteps("", infos.WorldLike, 4, 0, None, False)
    try:
        for side in (pool, alone):
            side.restart()
            side.run(3)
        found, expected = pool._pool.infos, alone._pool.infos
        assert list(found) == list(expected)
        for key in expected:
            np.testing.assert_array_equal(found[key], expected[key])
    finally:
        pool.close()
        alone.close()


def test_both_sides_of_the_rows_on_vector_infos_hand_out_the_same():
    sides = [make() for make in infos.sides_of("VectorEnv, N = 8")]
    try:
        expected, found = (side._envs for side in sides)
        for side in sides:
            side.restart()
            side.run(2)
        actions = np.zeros(8, np.int64)
        assert_same(found.step(actions), expected.step(actions))
        assert found.step(actions)[4]["count"].tolist() == [3] * 8
    finally:
        for side in sides:
            side.close()


def test_the_copies_of_the_last_row_are_the_pictures_that_the_pool_hands_out():
    pool, copies = infos.PoolSteps("", infos.Frames, 2, 2, None, False), infos.Copies(2)
    try:
        for side in (pool, copies):
            side.restart()
            side.run(1)
        np.testing.assert_array_equal(pool._pool.infos["pixels"], copies._target)
    finally:
        pool.close()


def test_the_script_on_infos_measures_every_row(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(infos, "ROWS", {"P9": infos.ROWS["P9"], "P10": infos.ROWS["P10"]})
    page = tmp_path / "page.md"
    page.write_text(MARKED.format("infos"))
    options = "--rounds", "1", "--seconds", "0.001", "--out", str(tmp_path)
    infos.main([*options, "--markdown", str(page)])
    rows = json.loads((tmp_path / "infos.json").read_text())["rows"]
    assert [row["row"] for row in rows] == ["P9", "P10"]
    assert all("both sides" in row for row in rows)
    assert "| P10 | EnvPool, 2 workers | numpy.copyto | time | at most 0.7 |" in page.read_text()
    assert "P10" in capsys.readouterr().out


# Overlap.


def test_one_of_the_naps_lasts_twenty_times_as_long():
    assert sorted(fn.args[0] for fn in overlap.naps()) == [1e-3] * 7 + [20e-3]


def test_what_is_ready_is_stepped_as_often_as_in_lockstep_and_nothing_stays_under_way():
    side = overlap.Ready([EveryThird] * 2)
    try:
        side.restart()
        assert side.run(5) > 0
        assert not side._pool.busy.any()
        # Two are sent more than are counted: those that belong to no sample.
        assert side._pool.stats()["steps"].sum() >= 10
    finally:
        side.close()


def test_both_schedules_evaluate_the_same_episodes(monkeypatch):
    monkeypatch.setattr(overlap, "NUM_ENVS", 3)
    monkeypatch.setattr(overlap, "EPISODES", 7)
    sides = [overlap.Evaluation(schedule) for schedule in ("lockstep", "ready")]
    try:
        first, second = (side.evaluate() for side in sides)
    finally:
        for side in sides:
            side.close()
    lengths = first["episode_lengths"]
    assert (lengths.min() >= 5) & (lengths.max() <= 50)
    assert len(set(lengths.tolist())) > 1
    for key in first:
        np.testing.assert_array_equal(first[key], second[key])


def test_the_script_on_overlap_measures_every_row(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(overlap, "EPISODES", 2)
    overlap.main(["--rounds", "1", "--seconds", "0.001", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "overlap.json").read_text())["rows"]
    assert [row["row"] for row in rows] == list(overlap.ROWS)
    assert "P14" in capsys.readouterr().out
