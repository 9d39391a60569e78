"""What all tests share: nothing may be left behind, how many examples, which worker counts."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import select
import sys
import time
import warnings
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import on_ray
from swm_async import EnvPool

# The contract holds for pools of NUM_ENVS environments in this process (0), with all of them in one
# worker, shared out between two, and alone in one worker each:
# `@pytest.mark.parametrize("num_workers", WORKER_COUNTS)`.
NUM_ENVS = 4
# An actor of Ray takes seconds to start, so there one number has to do.
WORKER_COUNTS = (2,) if on_ray.ENABLED else (0, 1, 2, NUM_ENVS)

# Deterministic, so that a red run can be repeated anywhere; no deadline, for a pool's first example
# starts processes.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=int(os.environ.get("SWM_ASYNC_EXAMPLES", "25")),
)
settings.load_profile("suite")

# Marker → the module without which its tests are skipped.
OPTIONAL_MODULES = {"ray": "ray", "torch": "torch", "upstream": "stable_worldmodel"}

# Seconds that processes which are on their way out are given to get there.
EXIT_GRACE_S = 2.0

_raised = pytest.StashKey[bool]()

if on_ray.ENABLED:
    on_ray.make_default()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, module in OPTIONAL_MODULES.items():
        if item.get_closest_marker(marker) and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo is not None:
        item.stash[_raised] = True
    return (yield)


def array(values: Any, dtype: Any) -> np.ndarray:
    """An array; numpy warns of times without a unit from 2.5 on, which exist all the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The 'generic' unit", DeprecationWarning)
        return np.array(values, dtype)


@pytest.fixture(scope="session", autouse=True)
def ray_if_it_hosts_the_tests() -> Iterator[None]:
    """The Ray on which pools have their actors, where the tests are run on Ray."""
    if not on_ray.ENABLED:
        yield
        return
    with on_ray.local_ray():
        yield


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pools have actors by default, whose calls are carried out in this process."""
    monkeypatch.setitem(EnvPool.__init__.__kwdefaults__, "backend", "ray")
    undo = on_ray.pretend()
    yield
    undo()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, a file descriptor or a mapped memory file behind.

    It is set up before the test's own fixtures of the same scope and torn down after them. What
    fixtures of wider scope hold was there before.
    """
    if on_ray.ENABLED:  # whose own processes and descriptors come and go as it likes
        yield from _no_actors_left(request)
        return
    if not sys.platform.startswith("linux"):
        yield
        return
    before = _held()
    yield
    if request.node.stash.get(_raised, False):
        return  # the traceback keeps the test's variables alive, and the test is red already
    if not _held().keys() - before.keys():
        return
    # Only now, because it takes longer than many a test: free what only a cycle keeps, or pytest,
    # which drops the values of a test's fixtures after their teardown.
    request.node.funcargs.clear()
    gc.collect()
    left = _left_after_exits(before)
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


def _no_actors_left(request: pytest.FixtureRequest) -> Iterator[None]:
    before = on_ray.living_actors()
    yield
    if request.node.stash.get(_raised, False):
        return
    request.node.funcargs.clear()
    left = on_ray.actors_left(before)
    if left:
        pytest.fail(f"left behind: actors {', '.join(left)}", pytrace=False)


# A thing held is (kind, its identity in the system); the description is for people.
Held = dict[tuple[str, object], str]


def _held() -> Held:
    return _processes() | _descriptors() | _memory_files()


def _left_after_exits(before: Held) -> list[str]:
    deadline = time.monotonic() + EXIT_GRACE_S
    while True:
        left = {key: text for key, text in _held().items() if key not in before}
        # A zombie has ended and waits for its parent to notice; waiting longer changes nothing.
        leaving = [
            identity[0]
            for (kind, identity), text in left.items()
            if kind == "process" and isinstance(identity, tuple) and not text.endswith("(zombie)")
        ]
        remaining_s = deadline - time.monotonic()
        if not leaving or remaining_s <= 0:
            return list(left.values())
        _wait_for_an_exit(leaving, remaining_s)


def _wait_for_an_exit(pids: list[int], timeout_s: float) -> None:
    poller = select.poll()
    pidfds = []
    try:
        for pid in pids:
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                return  # that one has left since
            pidfds.append(pidfd)
            poller.register(pidfd, select.POLLIN)
        poller.poll(timeout_s * 1000)
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


def _processes() -> Held:
    """All descendants, by (pid, start time), since a pid may be used again."""
    try:
        # Says in a microsecond whether there is any child, and reaps none; most tests have none.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return {}
    children: dict[int, list[tuple[int, int, str]]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/stat", errors="replace") as file:
                stat = file.read()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        # proc(5): pid (name) state ppid … with the start time as field 22. The name may hold
        # spaces and parentheses, so the fields count from its end.
        name, _, rest = stat.partition("(")[2].rpartition(")")
        fields = rest.split()
        state = " (zombie)" if fields[0] == "Z" else ""
        text = f"process {entry} {name}{state}"
        children.setdefault(int(fields[1]), []).append((int(entry), int(fields[19]), text))
    found: Held = {}
    parents = [os.getpid()]
    while parents:
        for pid, start_time, text in children.get(parents.pop(), ()):
            found["process", (pid, start_time)] = text
            parents.append(pid)
    return found


def _descriptors() -> Held:
    found: Held = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue  # the descriptor with which the directory was listed
        if "/pym-" in target:
            continue  # multiprocessing, as in Gymnasium's AsyncVectorEnv, keeps its heap for reuse
        found["descriptor", (fd, target)] = f"file descriptor {fd} → {target}"
    return found


def _memory_files() -> Held:
    """Mapped memory files, by inode: a file may have several mappings, and they may move."""
    with open("/proc/self/maps", errors="replace") as file:
        maps = file.read()
    found: Held = {}
    if "/memfd:" in maps:  # spares nearly every test the walk over thousands of lines
        for line in maps.splitlines():
            # proc(5): address perms offset device inode path
            fields = line.split(maxsplit=5)
            if fields[-1].startswith("/memfd:"):
                inode, path = fields[4:]
                found["mapping", inode] = f"mapping of {path}, inode {inode}"
    return found


def plain_id(value):
    """The text of a value without addresses, which differ from one process of xdist to another."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
