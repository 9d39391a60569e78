"""The example of double buffering plays the same episodes in both ways, and runs."""

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from swm_async import EnvPool

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "double_buffering.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(SCRIPT))


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_both_ways_walk_as_a_plain_loop_does(example, num_workers):
    expected = []
    for i in range(4):
        env = example["Walk"](0.0)
        place, _ = env.reset(seed=i)
        for _ in range(7):
            place, *_ = env.step(-0.5 * place)
        expected.append(place)
    with EnvPool([lambda: example["Walk"](0.0)] * 4, num_workers=num_workers) as pool:
        for way in ("in_lockstep", "double_buffered"):
            found = example[way](pool, example["policy_of"](0.0), 7)
            np.testing.assert_array_equal(found, expected)
        assert not pool.busy.any()


def test_the_policy_works_on_one_half_while_the_other_is_under_way(example):
    seen = []

    def act(observations, mask):
        seen.append((np.flatnonzero(mask).tolist(), np.flatnonzero(pool.busy).tolist()))
        return -0.5 * observations

    with EnvPool([lambda: example["Walk"](0.0)] * 4, num_workers=2) as pool:
        example["double_buffered"](pool, act, 3)
    first, second = [0, 2], [1, 3]  # of the workers' shards 0, 1 and 2, 3 one each
    assert seen == [(first, []), (second, first), *[(first, second), (second, first)] * 2]


def test_with_one_worker_the_halves_are_its_groups(example):
    with EnvPool([lambda: example["Walk"](0.0)] * 6, num_workers=1) as pool:
        found = np.stack(example["two_halves"](pool))
        np.testing.assert_array_equal(found, np.stack(pool.groups(2)))


def test_a_short_run_prints_the_gain():
    command = [sys.executable, "-W", "error", str(SCRIPT)]
    command += ["--num-envs", "4", "--steps", "3", "--rounds", "2", "--milliseconds", "0.1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("lock-step ") for line in lines[:2])
    assert lines[-1].startswith("gain over lock-step: ")
    assert float(lines[-1].split()[3]) > 0


def test_halves_that_do_not_come_out_even_are_refused():
    command = [sys.executable, str(SCRIPT), "--num-envs", "6", "--num-workers", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "multiple of twice --num-workers, 4; found 6" in result.stderr
