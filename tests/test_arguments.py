"""Arguments are checked before anything moves, and what is kept of them is private."""

import os
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import envs
from conftest import plain_id
from swm_async import EnvPool, arguments
from swm_async.arguments import (
    check_mask,
    check_num_workers,
    check_options,
    check_seconds,
    check_seeds,
    split,
    usable_cores,
)
from swm_workers import snapshot

# Masks


def test_no_mask_stays_no_mask():
    assert check_mask(None, 3) is None


@pytest.mark.parametrize(
    "mask",
    [
        [True, False, True],
        (True, False, True),
        [np.True_, np.False_, np.True_],
        np.array([True, False, True]),
        np.array([True, True, False, False, True])[::2],
        np.array([1, 0, 1], np.uint8).view(np.bool_),
        np.array([[True, False, True]])[0],
        np.array([True, False, True]).view(np.recarray),
    ],
)
def test_a_mask_becomes_a_private_array(mask):
    checked = check_mask(mask, 3)
    np.testing.assert_array_equal(checked, [True, False, True], strict=True)
    assert not np.shares_memory(checked, np.asarray(mask))
    assert checked.flags.writeable
    assert checked.flags.c_contiguous


@pytest.mark.parametrize(
    ("mask", "error", "texts"),
    [
        ([1, 0, 1], TypeError, ["3 bools", "int64", "not indices"]),
        ([0, 2], TypeError, ["not indices: write mask[indices] = True"]),
        (np.uint8([1, 0, 1]), TypeError, ["uint8", "not indices"]),
        ([1.0, 0.0, 1.0], TypeError, ["float64", "not indices"]),
        ([True, 0, 1], TypeError, ["int64"]),
        ([True, None, False], TypeError, ["object"]),
        (["True", "", "True"], TypeError, ["<U4"]),
        (2, TypeError, ["int64"]),
        ([], TypeError, ["3 bools"]),
        ({0, 2}, TypeError, ["object"]),
        ([True, False], ValueError, ["(3,)", "(2,)"]),
        (np.zeros((3, 1), bool), ValueError, ["(3,)", "(3, 1)"]),
        (True, ValueError, ["(3,)", "()"]),
    ],
    ids=plain_id,
)
def test_what_is_no_mask_is_refused_with_what_was_found(mask, error, texts):
    with pytest.raises(error, match="mask") as caught:
        check_mask(mask, 3)
    for text in texts:
        assert text in str(caught.value)


# Seeds


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (None, None),
        (0, [0, 1, 2]),
        (np.int32(7), [7, 8, 9]),
        (np.array(7), [7, 8, 9]),
        (2**63 - 3, [2**63 - 3, 2**63 - 2, 2**63 - 1]),
        (np.uint64(2**63 - 3), [2**63 - 3, 2**63 - 2, 2**63 - 1]),
        ([2**63 - 1, 0, None], [2**63 - 1, 0, None]),
        ([None] * 3, [None] * 3),
        (np.array([3, None, 1], object), [3, None, 1]),
        (np.uint8([250, 251, 252]), [250, 251, 252]),
        (range(3), [0, 1, 2]),
    ],
)
def test_seeds_become_python_integers_by_env_index(seed, expected):
    checked = check_seeds(seed, 3)
    assert checked == expected
    assert all(type(each) in (int, type(None)) for each in checked or ())


@pytest.mark.parametrize(
    ("seed", "error", "text"),
    [
        (-1, ValueError, "from 0 to"),
        (0.5, ValueError, "integer"),
        (np.float32(1), ValueError, "integer"),
        (2**63, ValueError, "2\\*\\*63"),
        (2**63 - 2, ValueError, "2\\*\\*63"),
        ([0, 1], ValueError, "3 seeds.*found 2"),
        ([0, -1, 2], ValueError, r"seed\[1\]"),
        ([0, 1, 2.5], ValueError, r"seed\[2\]"),
        ([False, 1, 2], ValueError, r"seed\[0\]"),
        ([[0], 1, 2], ValueError, "."),
        (np.zeros((3, 1), int), ValueError, r"seed\[0\]"),
        (False, TypeError, "bool"),
        ("123", TypeError, "str"),
        (b"123", TypeError, "bytes"),
        ({0: 1, 1: 2, 2: 3}, TypeError, "dict"),
    ],
    ids=plain_id,
)
def test_what_is_no_seed_is_refused(seed, error, text):
    with pytest.raises(error, match=text):
        check_seeds(seed, 3)


def test_the_callers_seeds_are_not_kept():
    given = [1, 2, 3]
    checked = check_seeds(given, 3)
    given[0] = 9
    assert checked == [1, 2, 3]


# Options


def test_options_are_pickled_once_for_all_or_for_each():
    assert check_options(None, 2) is None
    assert snapshot.loads(check_options({"a": 1}, 2)) == {"a": 1}
    first, second = check_options([{"a": 1}, None], 2)
    assert snapshot.loads(first) == {"a": 1}
    assert second is None


def test_options_may_be_any_mapping_in_any_sequence():
    class Own(dict):
        pass

    checked = check_options((Own(a=1), MappingProxyType({})), 2)
    assert [snapshot.loads(each) for each in checked] == [{"a": 1}, {}]
    (only,) = check_options(np.array([{"a": 1}], object), 1)
    assert snapshot.loads(only) == {"a": 1}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ([{}], ValueError, "expected 2 options.*found 1"),
        ([{}, {}, {}], ValueError, "expected 2 options.*found 3"),
        ("ab", TypeError, "str"),
        (b"ab", TypeError, "bytes"),
        (5, TypeError, "int"),
        ({1, 2}, TypeError, "set"),
        ([{}, "b"], TypeError, r"options\[1\].*str"),
        ([{}, [("a", 1)]], TypeError, r"options\[1\].*list"),
        ({"a": (i for i in ())}, TypeError, "options cannot be pickled"),
        ([None, {"a": (i for i in ())}], TypeError, r"options\[1\] cannot be pickled"),
        (MappingProxyType({"a": (i for i in ())}), TypeError, "options cannot be pickled"),
    ],
    ids=plain_id,
)
def test_what_is_no_option_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        check_options(options, 2)


# Seconds


@pytest.mark.parametrize("seconds", [1, 0.5, np.float32(2), np.int64(3), float("inf")])
def test_seconds_are_any_positive_number(seconds):
    checked = check_seconds(seconds, "timeout")
    assert type(checked) is float
    assert checked == seconds


def test_no_seconds_are_no_bound():
    assert check_seconds(None, "timeout") is None


@pytest.mark.parametrize("seconds", [0, -1, 0.0, -0.5, float("nan")])
def test_seconds_that_are_not_positive_are_refused(seconds):
    with pytest.raises(ValueError, match="timeout must be above 0"):
        check_seconds(seconds, "timeout")


@pytest.mark.parametrize("seconds", ["1", True, np.True_, [1], 1j])
def test_seconds_that_are_no_number_are_refused(seconds):
    with pytest.raises(TypeError, match="timeout must be seconds"):
        check_seconds(seconds, "timeout")


# Workers and shards


@pytest.mark.parametrize("number", [0, 1, 3, np.int64(2)])
def test_any_number_of_workers_up_to_that_of_environments(number):
    checked = check_num_workers(number, 3)
    assert checked == number
    assert type(checked) is int


@pytest.mark.parametrize(
    ("num_envs", "num_workers", "expected"),
    [
        (1, 1, [(0, 1)]),
        (4, 2, [(0, 2), (2, 4)]),
        (7, 3, [(0, 3), (3, 5), (5, 7)]),
        (8, 3, [(0, 3), (3, 6), (6, 8)]),
        (3, 3, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_shards_are_contiguous_and_as_equal_as_possible(num_envs, num_workers, expected):
    assert split(num_envs, num_workers) == expected
    assert [list(shard.indices) for shard in split(num_envs, num_workers)] == [
        list(range(first, last)) for first, last in expected
    ]


# Usable cores


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of 8 cores, of which 6 may be used, whose system files are made up."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.setattr(arguments, "Path", lambda path: tmp_path / path.lstrip("/"))

    def write(path: str, text: str) -> None:
        file: Path = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


def test_without_control_groups_the_affinity_counts(machine):
    assert usable_cores() == 6
    assert check_num_workers(None, 4) == 4
    assert check_num_workers(None, 20) == 6


def test_without_affinity_all_cores_count(machine, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == 8
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 6),
        ("200000 100000", 2),
        ("250000 100000", 3),
        ("50000 100000", 1),
        ("900000 100000", 6),
        ("", 6),
    ],
)
def test_the_quota_of_a_control_group_counts(machine, quota, cores):
    machine("/proc/self/cgroup", "0::/\n")
    machine("/sys/fs/cgroup/cpu.max", quota)
    assert usable_cores() == cores


def test_the_least_quota_on_the_way_to_the_root_counts(machine):
    machine("/proc/self/cgroup", "0::/outer/inner\n")
    machine("/sys/fs/cgroup/outer/cpu.max", "300000 100000")
    machine("/sys/fs/cgroup/outer/inner/cpu.max", "400000 100000")
    assert usable_cores() == 3


@pytest.mark.parametrize(("quota", "cores"), [("-1", 6), ("150000", 2)])
def test_the_quota_of_a_control_group_of_version_1_counts(machine, quota, cores):
    machine("/proc/self/cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n")
    machine("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", quota)
    machine("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000")
    assert usable_cores() == cores


def test_the_quota_of_a_container_of_version_1_is_that_of_its_root(machine):
    machine("/proc/self/cgroup", "4:cpu,cpuacct:/docker/outside\n")
    machine("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000")
    machine("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert usable_cores() == 4


# The pool's own arguments


def never():
    raise AssertionError("a factory was called although the arguments are wrong")


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"backend": "threads"}, ValueError, "backend.*'threads'"),
        ({"on_failure": "ignore"}, ValueError, "on_failure.*'ignore'"),
        ({"num_workers": 3}, ValueError, "num_workers"),
        ({"num_workers": 1.5}, TypeError, "num_workers"),
        ({"start_timeout": 0}, ValueError, "start_timeout"),
        ({"start_timeout": "soon"}, TypeError, "start_timeout"),
        ({"step_timeout": -1}, ValueError, "step_timeout"),
        ({"step_timeout": True}, TypeError, "step_timeout"),
        ({"max_restarts": -1}, ValueError, "max_restarts"),
        ({"max_restarts": 1.0}, TypeError, "max_restarts"),
        ({"threads_per_worker": 0}, ValueError, "threads_per_worker"),
        ({"threads_per_worker": 1.0}, TypeError, "threads_per_worker"),
        ({"threads_per_worker": True}, TypeError, "threads_per_worker"),
    ],
    ids=plain_id,
)
def test_wrong_arguments_of_a_pool_start_nothing(changed, error, text):
    with pytest.raises(error, match=text):
        EnvPool([never, never], **{"num_workers": 0, **changed})


def test_no_cap_on_threads_is_allowed():
    EnvPool([envs.Ledger], num_workers=0, threads_per_worker=None).close()


def test_a_step_timeout_in_this_process_is_warned_of_once():
    with pytest.warns(UserWarning, match="step_timeout cannot be enforced") as caught:
        pool = EnvPool([envs.Ledger], num_workers=0, step_timeout=5.0)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pool:
        pool.reset()
        pool.step(np.zeros((1, 2)))  # where any further warning is an error
