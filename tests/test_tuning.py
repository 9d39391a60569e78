"""`autotune` names the fastest candidate and says how sure that is; `bench` explains its speeds."""

import json
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from probe_env import Probe
from swm_async import Tuning, autotune, comparison, tuning
from swm_async.advice import Figures, confidences, fastest, held_up_by, in_words
from swm_async.benchmarking import Measurement, Spread
from swm_async.contenders import Row
from swm_async.errors import EnvError
from swm_async.tuning import default_candidates


@pytest.fixture
def measured(monkeypatch):
    """What the measurement of `autotune` shall have found, by label."""
    samples = {}

    def measure(sides, *, rounds, seconds):
        samples["asked"] = ([side.label for side in sides], rounds, seconds)
        return Measurement(1, samples["found"])

    monkeypatch.setattr(tuning, "measure", measure)
    return samples


def test_the_fastest_is_chosen_and_rates_are_environment_steps(measured):
    measured["found"] = {
        "EnvPool, in process": [10.0, 11.0, 12.0, 11.0, 10.0],
        "EnvPool, 1 worker": [5.0] * 5,
        "EnvPool, 2 workers": [20.0, 22.0, 24.0, 23.0, 21.0],
    }
    found = autotune([Probe] * 4, candidates=[2, 0, 1], rounds=5, seconds=0.5)
    assert measured["asked"] == (list(measured["found"]), 5, 0.5)
    assert found.num_workers == 2
    assert [each.num_workers for each in found.candidates] == [0, 1, 2]
    # Four environments make four steps in a pass.
    assert found.candidates[0].rate == Spread(44.0, 40.0, 44.0)
    assert found.candidates[1].rate == Spread(20.0, 20.0, 20.0)
    assert found.confidence == found.candidates[2].confidence == 1 - 2**-5
    assert [each.confidence for each in found.candidates[:2]] == [0.0, 0.0]
    assert found.verdict.startswith("num_workers=2 (sure, confidence 97 %: 2.00 × num_workers=0)")
    lines = str(found).splitlines()
    assert lines[1].split() == ["0", "44", "40–44"]
    assert lines[-1] == found.verdict


def test_a_real_measurement_tries_every_candidate_and_leaves_nothing_behind():
    found = autotune([Probe] * 3, candidates=[0, 1, 3], seconds=0.001, rounds=3, copy=True)
    assert isinstance(found, Tuning)
    assert [each.num_workers for each in found.candidates] == [0, 1, 3]
    assert all(each.rate.median > 0 for each in found.candidates)
    best = max(found.candidates, key=lambda each: each.rate.median)
    assert found.num_workers == best.num_workers
    assert found.confidence == best.confidence <= 1 - 2**-3


def test_finished_environments_are_reset_and_seeds_and_actions_are_given():
    class Short(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(5)
        seeds, actions = [], []

        def reset(self, *, seed=None, options=None):
            self.left = 2
            self.seeds.append(seed)
            return np.zeros(1, np.float32), {}

        def step(self, action):
            assert self.left, "stepped after its end"
            self.left -= 1
            self.actions.append(int(action))
            return np.zeros(1, np.float32), 0.0, self.left == 0, False, {}

    autotune([Short] * 2, candidates=[0, 1], seconds=0.001, rounds=3, seed=7)
    assert Short.seeds[:2] == [7, 8]
    assert None in Short.seeds
    assert len(set(Short.actions)) > 1


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"candidates": [1]}, ValueError, r"two or more.*found \[1\]"),
        ({"candidates": [2, 2]}, ValueError, r"two or more.*found \[2, 2\]"),
        ({"candidates": [0, 5]}, ValueError, "0 to 4.*found 5"),
        ({"candidates": [0, None]}, TypeError, "found None"),
        ({"candidates": 3}, TypeError, "candidates.*found 3"),
        ({"candidates": "12"}, TypeError, "candidates.*'12'"),
        ({"seconds": 0}, ValueError, "seconds.*found 0"),
        ({"seconds": None}, TypeError, "seconds.*None"),
        ({"rounds": 2}, ValueError, "rounds.*3; found 2"),
        ({"rounds": 3.5}, TypeError, "rounds.*float"),
        ({"seed": -1}, ValueError, "seed.*found -1"),
        ({"num_workers": 2}, TypeError, "candidates"),
        ({"no_such_option": 2}, TypeError, "no_such_option"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_built(arguments, error, words):
    built = []
    with pytest.raises(error, match=words):
        autotune([lambda: built.append(1) or Probe()] * 4, **arguments)
    assert built == []


def test_without_factories_there_is_nothing_to_tune():
    with pytest.raises(ValueError, match="at least one factory; found none"):
        autotune([])


def test_an_environment_that_fails_is_told():
    with pytest.raises(EnvError, match="division by zero"):
        autotune([lambda: Probe("step", "raise")] * 2, candidates=[0, 1], seconds=0.001)


@pytest.mark.parametrize(
    ("num_envs", "cores", "expected"),
    [
        (1, 8, [0, 1]),
        (8, 1, [0, 1, 2]),
        (8, 2, [0, 1, 2, 4]),
        (3, 2, [0, 1, 2, 3]),
        (64, 6, [0, 1, 2, 4, 6, 12]),
        (10, 8, [0, 1, 2, 4, 8, 10]),
    ],
)
def test_candidates_lie_around_the_number_of_cores(num_envs, cores, expected):
    assert default_candidates(num_envs, cores) == expected


def test_it_is_loaded_only_when_it_is_asked_for():
    code = (
        "import sys, swm_async\n"
        "assert 'swm_async.tuning' not in sys.modules\n"
        "assert callable(swm_async.autotune)\n"
        "assert 'swm_async.tuning' in sys.modules\n"
        "try:\n"
        "    swm_async.nothing\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "module 'swm_async' has no attribute 'nothing'\n"


# Which one, and how sure.


def test_one_that_wins_every_round_is_sure_after_enough_of_them():
    samples = {1: [1.0, 2.0, 3.0], 2: [1.5, 2.5, 3.5]}
    assert fastest(samples) == 2
    samples = {1: [1.0] * 7, 2: [2.0] * 7}
    assert confidences(samples) == {1: 0.0, 2: 1 - 2**-7}
    assert "(sure, confidence 99 %: 2.00 × num_workers=1)" in in_words(samples)
    assert "(likely, confidence 88 %: 2" in in_words({n: rates[:3] for n, rates in samples.items()})


def test_the_confidence_is_that_of_a_plain_resampling():
    samples = {0: [3.0, 9.0, 4.0, 8.0, 5.0], 2: [6.0, 5.0, 6.5, 5.5, 7.0]}
    rng = np.random.default_rng(99)
    wins, count = 0, 4000
    for _ in range(count):
        rounds = [int(k) for k in rng.integers(5, size=5)]
        medians = {n: sorted(rates[k] for k in rounds)[2] for n, rates in samples.items()}
        wins += medians[2] > medians[0]
    # Both are shares of thousands of resamples: five standard errors apart at most.
    assert confidences(samples)[2] == pytest.approx(wins / count, abs=5 * 0.5 / 2000**0.5)
    assert in_words(samples).startswith("num_workers=2 (undecided, confidence ")


def test_where_the_most_workers_win_more_may_be_better():
    assert in_words({0: [1.0] * 7, 4: [2.0] * 7}).endswith("; more workers may be faster still")
    assert in_words({0: [2.0] * 7, 4: [1.0] * 7}).endswith("num_workers=4)")
    assert in_words({3: [2.0]}) == "num_workers=3, the only one that was tried"


# What holds a pool up.


def test_the_straggler_is_named():
    figures = Figures([1e-3, 20e-3, 1e-3, 2e-3], [2e-3, 21e-3, 1.5, 2e-3], [0.5, 0.25])
    first, second, third = held_up_by(figures)
    assert first == (
        "a step of one environment takes 6 ms on average, of the slowest (environment 1) 20 ms; "
        "the longest of all took 1.5 s (environment 2)"
    )
    assert second == "the workers wait 38 % of the time"
    assert third.startswith("environment 1 holds up the others")
    alike = Figures([5e-6] * 3, [5e-6] * 3, [0.0])
    assert len(held_up_by(alike)) == 2
    assert "takes 5 µs on average" in held_up_by(alike)[0]


def test_the_first_of_a_shard_is_no_straggler_for_its_cold_caches():
    first_is_cold = Figures([18e-6, 8e-6, 7e-6, 8e-6], [1e-3] * 4, [0.5])
    assert len(held_up_by(first_is_cold)) == 2


def test_bench_explains_each_number_of_environments():
    spread, figures = Spread(1, 1, 1), Figures([1e-3], [1e-3], [0.5])
    rows = [Row(4, "SyncVectorEnv", spread, None, None, (1.0,))]
    for num_envs, best in ((4, 0), (8, 2)):
        for count in (0, 2):
            rate = 2.0 if count == best else 1.0
            label = f"pool of {count}"
            rows.append(Row(num_envs, label, spread, None, None, (rate,) * 7, count, figures))
    lines = comparison.explained(rows)
    assert [line for line in lines if line.endswith("environments:")] == [
        "4 environments:",
        "8 environments:",
    ]
    found = [line.split()[1] for line in lines if "advice" in line]
    assert found == ["num_workers=0", "num_workers=2"]
    assert sum("pool of 2: the workers wait 50 %" in line for line in lines) == 2
    assert not any("pool of 0" in line for line in lines)
    assert json.dumps([comparison.row_data(row) for row in rows])
