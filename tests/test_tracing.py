"""A trace tells what the workers did and when, in agreement with every other measure of it."""

import gc
import json
import time
from array import array
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from conftest import NUM_ENVS, WORKER_COUNTS
from probe_env import Probe
from swm_async import EnvError, EnvPool
from swm_async.tracing import WAITS
from swm_workers import tracing
from swm_workers.protocol import Command
from swm_workers.tracing import SpanLog

ALL = [0] * NUM_ENVS
ROUNDING_US = 0.002
every_count = pytest.mark.parametrize("num_workers", WORKER_COUNTS)


class Watched(gymnasium.Env):
    """Reports when its last step began and ended, on the clock of all processes."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(9)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {"began": 0.0, "ended": 0.0}

    def step(self, action):
        began = time.perf_counter()
        sum(range(100))
        info = {"began": began, "ended": time.perf_counter()}
        return np.zeros(1, np.float32), 0.0, False, False, info


def load(path):
    """Tracks by name, each a list of spans in order of their beginning."""
    events = json.loads(path.read_text())
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    tracks = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            tracks[names[event["tid"]]].append(event)
    return {
        name.split(":")[0]: sorted(spans, key=lambda e: e["ts"]) for name, spans in tracks.items()
    }


def workers(tracks):
    return [spans for name, spans in tracks.items() if name.startswith("worker")]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


@every_count
def test_spans_follow_each_other_without_gaps_within_the_traced_time(num_workers, path):
    with EnvPool([Watched] * NUM_ENVS, num_workers=num_workers) as pool:
        pool.reset(seed=0)
        before = time.perf_counter()
        with pool.trace(path):
            for _ in range(3):
                pool.step(ALL)
            pool.step(ALL, mask=[True, False, False, False])
            pool.reset(mask=[False, False, False, True])
        lasted_us = (time.perf_counter() - before) * 1e6
    tracks = load(path)
    assert len(workers(tracks)) == max(1, num_workers)
    for spans in tracks.values():
        assert all(span["dur"] >= 0 for span in spans)
        for this, following in pairwise(spans):
            assert following["ts"] >= this["ts"] + this["dur"] - ROUNDING_US
        if spans:
            assert spans[0]["ts"] >= 0
            assert spans[-1]["ts"] + spans[-1]["dur"] <= lasted_us
    for spans in workers(tracks):
        for this, following in pairwise(spans):
            gap = following["ts"] - this["ts"] - this["dur"]
            # In process there is some time between the seconds that are counted.
            assert gap <= ROUNDING_US or num_workers == 0
        assert [span["name"] == "idle" for span in spans] == [k % 2 == 0 for k in range(len(spans))]


@every_count
def test_commands_and_environment_steps_are_those_that_were_sent(num_workers, path):
    shards = {0: [4], 1: [4], 2: [2, 2], 4: [1, 1, 1, 1]}[num_workers]
    with EnvPool([Probe] * NUM_ENVS, num_workers=num_workers) as pool, pool.trace(path):
        pool.reset(seed=0)
        pool.step(ALL)
        pool.step(ALL, mask=[True, False, False, False])
    expected = [
        [("reset", 0), ("step", size)] + ([("step", 1)] if w == 0 else [])
        for w, size in enumerate(shards)
    ]
    found = [
        [(s["name"], s["args"]["environment steps"]) for s in spans if s["name"] != "idle"]
        for spans in workers(load(path))
    ]
    assert found == expected


@every_count
def test_busy_and_idle_sums_agree_with_the_stats(num_workers, path):
    with EnvPool([Probe] * NUM_ENVS, num_workers=num_workers) as pool:
        pool.reset(seed=0)
        with pool.trace(path):
            before = pool.stats()
            for _ in range(20):
                pool.step(ALL)
            pool.reset(mask=[True, False, True, False])
            after = pool.stats()
    for w, spans in enumerate(workers(load(path))):
        # In worker processes the figures of one command go from its own reply to the next one's:
        # of the two `stats` the first lies within, and the waiting up to the second does.
        stats = [k for k, span in enumerate(spans) if span["name"] == "stats"]
        assert len(stats) == (0 if num_workers == 0 else 2)
        within = spans[slice(*stats)] if stats else spans
        seconds = {True: 0.0, False: 0.0}
        for span in within:
            seconds[span["name"] == "idle"] += span["dur"] / 1e6
        tolerance = 1e-9 * len(spans) + 1e-9
        assert seconds[False] == pytest.approx(
            after["busy_s"][w] - before["busy_s"][w], abs=tolerance
        )
        if num_workers:
            assert seconds[True] == pytest.approx(
                after["waiting_s"][w] - before["waiting_s"][w], abs=tolerance
            )


@every_count
def test_every_step_of_an_environment_lies_in_a_span_of_its_worker(num_workers, path):
    steps = []
    with EnvPool([Watched] * NUM_ENVS, num_workers=num_workers) as pool:
        pool.reset(seed=0)
        with pool.trace(path):
            for _ in range(5):
                infos = pool.step(ALL)[4]
                steps.append((infos["began"][:, 0].copy(), infos["ended"][:, 0].copy()))
    origin = json.loads(path.read_text())[0]["args"]["origin_s"]
    size = NUM_ENVS // max(1, num_workers)
    for w, spans in enumerate(workers(load(path))):
        spans = [span for span in spans if span["name"] == "step"]
        own = slice(w * size, (w + 1) * size)
        for span, (began, ended) in zip(spans, steps, strict=True):
            begins, ends = (began[own] - origin) * 1e6, (ended[own] - origin) * 1e6
            assert span["ts"] - ROUNDING_US <= begins.min()
            assert ends.max() <= span["ts"] + span["dur"] + ROUNDING_US


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_in_lockstep_the_coordinator_waits_while_the_workers_step(num_workers, path):
    with EnvPool([Watched] * NUM_ENVS, num_workers=num_workers) as pool:
        pool.reset(seed=0)
        with pool.trace(path):
            for _ in range(4):
                pool.step(ALL)
    tracks = load(path)
    waits = [s for s in tracks["coordinator"] if s["name"] == "send and wait"]
    assert len(waits) == 4
    for spans in workers(tracks):
        steps = [span for span in spans if span["name"] == "step"]
        for wait, step in zip(waits, steps, strict=True):
            assert wait["ts"] <= step["ts"]
            assert step["ts"] + step["dur"] <= wait["ts"] + wait["dur"]


def test_waits_of_recv_are_told(path):
    with EnvPool([Probe] * NUM_ENVS, num_workers=2) as pool:
        pool.reset(seed=0)
        with pool.trace(path):
            pool.send(ALL)
            pool.recv()
    names = [span["name"] for span in load(path)["coordinator"]]
    assert "wait for any" in names
    assert "wait for a reply" in names


def test_what_is_under_way_at_both_ends_is_not_lost(path):
    with EnvPool([Probe] * NUM_ENVS, num_workers=2) as pool:
        pool.reset(seed=0)
        pool.send(ALL, mask=[True, False, False, True])
        pool.send(ALL, mask=[False, True, False, False])  # waits for its busy worker
        with pool.trace(path):
            assert pool.busy.tolist() == [True, True, False, True]
            pool.recv(mask=[True, False, False, True])
            pool.send(ALL, mask=[True, False, False, True])
        *_, infos, ready = pool.recv()
    assert ready.tolist() == [True, True, False, True]
    assert infos["count"].ravel().tolist() == [2, 1, 0, 2]
    found = [[s["name"] for s in spans if s["name"] != "idle"] for spans in workers(load(path))]
    assert found == [["step"], ["step"]]


def test_a_second_trace_holds_only_its_own_spans(path, tmp_path):
    with EnvPool([Probe] * NUM_ENVS, num_workers=2) as pool:
        pool.reset(seed=0)
        with pool.trace(tmp_path / "first.json"):
            pool.step(ALL)
        pool.step(ALL)
        with pool.trace(path):
            pool.reset()
    for spans in workers(load(path)):
        assert [span["name"] for span in spans] == ["idle", "reset", "idle"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_a_trace_nothing_is_in_the_way(num_workers, path):
    with EnvPool([Probe] * NUM_ENVS, num_workers=num_workers) as pool:
        backend = pool._engine._backend
        before = set(vars(backend))
        with pool.trace(path):
            assert set(vars(backend)) - before == (set(WAITS) if num_workers else {"_move"})
        assert set(vars(backend)) == before


# Trouble.


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        (3, TypeError, "path.*found int"),
        (None, TypeError, "path.*NoneType"),
        ("no/such/folder/trace.json", FileNotFoundError, "no/such/folder"),
    ],
)
def test_a_path_that_will_not_do_is_told_before_anything_is_noted(path, error, words):
    with EnvPool([Probe] * NUM_ENVS, num_workers=0) as pool:
        pool.reset(seed=0)
        with pytest.raises(error, match=words), pool.trace(path):
            pytest.fail("the block must not begin")
        assert pool.step(ALL)[4]["count"].ravel().tolist() == [1] * NUM_ENVS


def test_one_trace_at_a_time(path, tmp_path):
    with EnvPool([Probe] * NUM_ENVS, num_workers=2) as pool, pool.trace(path):
        with pytest.raises(RuntimeError, match="one trace at a time"), pool.trace(tmp_path / "b"):
            pytest.fail("the block must not begin")
        pool.reset(seed=0)
    assert [s["name"] for s in workers(load(path))[0]] == ["idle", "reset", "idle"]


def test_a_closed_pool_takes_no_trace(path):
    pool = EnvPool([Probe], num_workers=0)
    pool.close()
    with pytest.raises(ClosedEnvironmentError), pool.trace(path):
        pytest.fail("the block must not begin")
    assert not path.exists()


def test_a_trace_is_written_where_the_block_raises(path):
    with EnvPool([Probe] * NUM_ENVS, num_workers=2) as pool:
        pool.reset(seed=0)
        pool.envs[3].plan("step", "raise")
        with pytest.raises(EnvError), pool.trace(path):
            pool.step(ALL)
        assert pool.step(ALL, mask=[True, True, True, False])[4]["count"][0, 0] == 2
    assert [s["name"] for s in workers(load(path))[1]] == ["idle", "step", "idle"]


def test_of_a_pool_that_is_closed_meanwhile_the_waits_are_left(path):
    pool = EnvPool([Probe] * NUM_ENVS, num_workers=2)
    with pool.trace(path):
        pool.reset(seed=0)
        pool.close()
    assert list(load(path)) == ["coordinator"]


def test_a_worker_that_is_replaced_tells_no_more(path):
    with EnvPool([Probe] * NUM_ENVS, num_workers=2, on_failure="restart") as pool:
        pool.reset(seed=0)
        pool.envs[3].plan("step", "kill")
        with pool.trace(path), pytest.warns(UserWarning, match="built anew"):
            pool.step(ALL)
        pool.reset(mask=[False, False, True, True])
        assert pool.step(ALL)[4]["count"].ravel().tolist() == [2, 2, 1, 1]
    first, second = workers(load(path))
    assert [span["name"] for span in first] == ["idle", "step", "idle"]
    assert second == []


def test_spans_beyond_the_limit_are_counted(monkeypatch):
    monkeypatch.setattr(tracing, "LIMIT", 2)
    log = SpanLog()
    log.begin(1.0)
    for k in range(5):
        log.note(2.0 + k, 2.5 + k, Command.STEP, 3)
    spans = log.finish(9.0)
    assert array("d", spans.edges).tolist() == [1.0, 2.0, 2.5, 3.0, 3.5]
    assert (list(spans.kinds), array("q", spans.steps).tolist()) == ([3, 3], [3, 3])
    assert spans.dropped == 3


def test_a_traced_pool_that_is_dropped_is_closed():
    # The functions in place of the backend's methods must not keep it for ever.
    pool = EnvPool([Probe], num_workers=1)
    process = pool._engine._backend.workers[0]
    with pool.trace("/dev/null"):
        pool.reset(seed=0)
    del pool
    gc.collect()
    assert process.gone
