"""Other libraries do the same work as this one, or are left out with a reason."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from swm_async.benchmarking import Spread
from swm_async.contenders import SYNC, OwnVectorSide, VectorSide, Work

BENCHMARKS = str(Path(__file__).resolve().parents[1] / "benchmarks")
sys.path.append(BENCHMARKS)

import footprint  # noqa: E402  # a script's directory becomes part of the path only above
import libraries  # noqa: E402  # as above
import startup  # noqa: E402  # as above
import targets  # noqa: E402  # as above
from environments import ENVIRONMENTS  # noqa: E402  # as above
from peers import CPP, SHMEM, SUBPROC, missing, peer_side, versions  # noqa: E402  # as above
from rows import Bound, RowOutcome  # noqa: E402  # as above

# The peers' own warnings are not ours; they fork, and pytest-xdist has threads.
pytestmark = pytest.mark.filterwarnings("ignore")

CARTPOLE = ENVIRONMENTS["cartpole"].env_fn


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    # Here and not in a test: an import that keeps a traceback keeps all that the test has opened.
    REASONS = {label: missing(label) for label in (SUBPROC, SHMEM, CPP)}


def needs(label):
    """The side of a peer; the test is skipped where it is missing."""
    if reason := REASONS[label]:
        pytest.skip(reason)
    return label


@pytest.mark.parametrize("label", [SUBPROC, SHMEM])
def test_a_peer_hands_out_what_gymnasium_does(label):
    work = Work.of(CARTPOLE, 3, seed=3)
    ends = 0
    with (
        closing(peer_side(needs(label), work, 2)()) as peer,
        closing(VectorSide(work, SYNC)) as reference,
    ):
        np.testing.assert_array_equal(peer.restart().observations, reference.restart().observations)
        for _ in range(60):
            found, expected = peer.advance(), reference.advance()
            np.testing.assert_array_equal(found.observations, expected.observations)
            np.testing.assert_array_equal(found.rewards, expected.rewards)
            finished = expected.terminateds | expected.truncateds
            np.testing.assert_array_equal(found.terminateds, finished)
            ends += int(finished.sum())
    assert ends > 2


def test_the_cartpole_in_c_goes_from_its_states_where_gymnasiums_goes():
    work = Work.of(CARTPOLE, 3)
    envs = [gymnasium.make("CartPole-v1").unwrapped for _ in range(3)]
    with closing(peer_side(needs(CPP), work, 2)()) as peer:
        for env, state in zip(envs, peer.restart().observations, strict=True):
            env.reset()
            env.state = np.float64(state)
        for t in range(6):
            found = peer.advance()
            for i, env in enumerate(envs):
                observation, reward, terminated, truncated, _ = env.step(work.actions[t][i])
                np.testing.assert_allclose(found.observations[i], observation, rtol=1e-4, atol=1e-6)
                assert (found.rewards[i], found.terminateds[i], found.truncateds[i]) == (
                    reward,
                    terminated,
                    truncated,
                )


def test_the_cartpole_in_c_is_reset_in_the_step_after_as_it_is_on_our_side():
    work = Work.of(CARTPOLE, 4)
    ours = OwnVectorSide(work, 2, AutoresetMode.NEXT_STEP)
    resets = 0
    with closing(peer_side(needs(CPP), work, 2)()) as peer, closing(ours):
        for side in (peer, ours):
            side.restart()
            ended = np.zeros(4, np.bool_)
            for _ in range(60):
                outputs = side.advance()
                observations = np.array(outputs.observations)
                # Initial states lie within 0.05, and a reset is worth no reward.
                assert (np.abs(observations[ended]) <= 0.05).all()
                assert (np.array(outputs.rewards)[ended] == 0).all()
                ended = np.array(outputs.terminateds | outputs.truncateds)
                resets += int(ended.sum())
    assert resets > 8


def test_a_peer_that_is_missing_is_named_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", None)
    reason = missing(SUBPROC)
    assert reason is not None
    assert reason.startswith("stable_baselines3 cannot be imported")
    assert missing(SYNC) is None
    series = [t for t in targets.TARGETS if t.reference == SUBPROC]
    monkeypatch.setattr(targets, "TARGETS", series)
    (outcome,) = targets.measure_targets(["P5"], rounds=1, seconds=0.001, report=print)
    assert outcome.verdict == f"skipped: {reason}"
    assert outcome.data()["measured"] is None


def test_versions_are_those_of_the_peers_that_are_installed():
    names = {"stable-baselines3": SUBPROC, "tianshou": SHMEM, "envpool": CPP}
    installed = {name for name, label in names.items() if REASONS[label] is None}
    assert installed <= versions().keys() <= names.keys()


@pytest.mark.parametrize(
    ("bound", "median", "verdict"),
    [
        (Bound("speed", 1.2, 1.5), 1.2, "reached"),
        (Bound("speed", 1.2, 1.5), 1.1, "missed"),
        (Bound("memory", 0.05, 0.03), 0.05, "reached"),
        (Bound("memory", 0.05, 0.03), 0.06, "missed"),
        (Bound("time"), 7.0, "stated"),
    ],
)
def test_the_verdict_of_a_row(bound, median, verdict):
    spread = Spread(median, median, median)
    assert RowOutcome("P0", bound, "a", "b", spread, "the same").verdict == verdict


def test_a_row_that_was_left_out_says_why():
    outcome = RowOutcome("P0", Bound("speed", 1.2), "a", "b", None, "too slow")
    assert outcome.cells()[-2:] == ["", "skipped"]
    assert outcome.data()["both sides"] == "too slow"


# Start and memory.


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_both_sides_start_with_the_same_observations(start):
    # In a process of its own, since spawning leaves multiprocessing's tracker behind.
    script = f"""if True:
        import sys
        sys.path.append({BENCHMARKS!r})
        import startup
        main = sys.modules["__main__"]
        side = startup.Start64("theirs", lambda n: startup.opened_async({start!r}, n), 2)
        print(side.restart().tolist())
        assert sys.modules["__main__"] is main
    """
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True
    )
    ours = startup.Start64("ours", startup.opened_pool, 2).restart()
    np.testing.assert_array_equal(ours, json.loads(done.stdout))
    assert ours.shape == (2, 4)


def test_a_quick_run_leaves_out_what_is_spawned(monkeypatch, tmp_path):
    monkeypatch.setattr(startup.Start64, "run", lambda self, passes: 2.0)
    startup.main(["--quick", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "startup.json").read_text())["rows"]
    assert [row["verdict"] for row in rows] == ["missed", "skipped"]
    assert rows[0]["measured"]["median"] == 1.0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's /proc")
def test_both_sides_are_counted_with_all_their_processes_and_observe_the_same():
    found = []
    for side in (footprint.POOL, footprint.FORK):  # each in a process that has no other children
        script = f"""if True:
            import sys, json
            sys.path.append({BENCHMARKS!r})
            import footprint
            print(json.dumps(footprint.measure_here({side!r}, 2)))
        """
        done = subprocess.run(
            [sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True
        )
        found.append(json.loads(done.stdout))
    pool, fork = found
    assert pool["observed"] == fork["observed"]
    assert pool["processes"] == fork["processes"] == 3
    # An interpreter with numpy takes megabytes; a kilobyte would be another unit.
    assert min(pool["bytes"], fork["bytes"]) > 5_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a tiny run; of a module, since matplotlib keeps files of fonts open."""
    out = tmp_path_factory.mktemp("libraries")
    options = ["--num-envs", "2", "4", "--rounds", "1", "--seconds", "0.001", "--out"]
    libraries.main([*options, str(out)])
    return out


def test_libraries_are_drawn_over_the_number_of_environments(run):
    written = json.loads((run / "libraries.json").read_text())
    assert {"SyncVectorEnv", "AsyncVectorEnv", "ceiling"} <= written["rates"].keys()
    assert all(set(rates) == {"2", "4"} for rates in written["rates"].values())
    left_out = [text.partition(":")[0] for text in written["left out"]]
    assert set(left_out) == {label for label, reason in REASONS.items() if reason}
    assert (run / "libraries.png").read_bytes().startswith(b"\x89PNG")


def test_no_more_processes_than_allowed_are_started_for_a_peer():
    work = Work.of(CARTPOLE, 2)
    few, many = libraries.makers_of(work, 2), libraries.makers_of(work, 256)
    assert "AsyncVectorEnv" in few
    assert not set(libraries.ONE_EACH) & many.keys()
