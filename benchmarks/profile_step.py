"""Where each microsecond of a step goes, on both sides of the pipes.

    python benchmarks/profile_step.py            # under a minute
    python benchmarks/profile_step.py --quick

N = 8, 32 and 256 environments that do nothing, with and without World's infos (10 keys, one of
64×64×3 pixels), 2 workers. Both sides read the same clock (`time.perf_counter`, which on Linux is
CLOCK_MONOTONIC for all processes) and are instrumented from outside: in this process the `os` that
the modules of the backend see writes down when it reads and writes; in the workers an environment's
factory finds the server and wraps what carries out its steps.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from infos import WorldLike
from reporting import parser, progress, publish, read

from swm_async import EnvPool
from swm_async.backends import process, worker
from swm_async.benchmarking import Spread, in_words, machine
from swm_async.terminal import markdown_table, text_table
from swm_workers import serve
from swm_workers.protocol import Command

NUM_WORKERS = 2
COUNTS = (8, 32, 256)

PARTS = (
    "before the first write",
    "until the last worker has read",
    "that worker's work",
    "its reply until it is read",
    "outputs",
)
"""They add up to the step: the way over the worker that ends last."""
DETAILS = (
    "all writes (the worker on this core runs within the last)",
    "a command until it is read",
    "a worker's work",
    "of it the steps themselves",
    "a reply until it is read",
    "step, not instrumented",
)
"""Over both workers alike; these overlap."""


class StepNotes:
    """Wraps the step command of the server in this process; writes down when it was carried out.

    The server's two sums of seconds tell the moments around it: when the command was read, and
    when the last reply was about to be written.
    """

    def __init__(self, server: Any) -> None:
        self.notes: list[tuple[float, float, float, float]] = []
        """Per command: the end of the last, when this was read, its steps' beginning and end."""
        handlers, before = server._handlers, 0.0
        step = handlers[Command.STEP]

        def noted(flags: int, arguments: Any) -> Any:
            nonlocal before
            began = perf_counter()
            read = server._born_s + server._busy_s + server._waiting_s
            ended = server._born_s + server._busy_s + before
            result = step(flags, arguments)
            before = server._waiting_s
            self.notes.append((ended, read, began, perf_counter()))
            return result

        handlers[Command.STEP] = noted


class Noted(WorldLike):
    """An environment that does nothing; `take` hands over and forgets the notes of its process."""

    _book: StepNotes | None = None

    def __init__(self, with_infos: bool) -> None:
        super().__init__()
        if not with_infos:
            self._info = {}
        if Noted._book is None:
            (server,) = (each for each in gc.get_objects() if isinstance(each, serve._Server))
            Noted._book = StepNotes(server)

    def take(self) -> list[tuple[float, float, float, float]]:
        if Noted._book is None:
            raise AssertionError("the first environment makes it")
        taken, Noted._book.notes = Noted._book.notes, []
        return taken


class NotingOs:
    """What a module sees as `os`: notes when it has written, and when it has read."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, float, float]] = []
        """Descriptor, beginning and end."""
        self.reads: list[tuple[int, float]] = []
        """Descriptor and end."""

    def write(self, fd: int, data: Any) -> int:
        began = perf_counter()
        count = os.write(fd, data)
        self.writes.append((fd, began, perf_counter()))
        return count

    def read(self, fd: int, size: int) -> bytes:
        data = os.read(fd, size)
        self.reads.append((fd, perf_counter()))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@contextmanager
def noting() -> Iterator[NotingOs]:
    """Let the modules that talk to workers see a noting `os`."""
    noted = NotingOs()
    process.os = worker.os = noted  # type: ignore[assignment, attr-defined]
    try:
        yield noted
    finally:
        process.os = worker.os = os  # type: ignore[attr-defined]


class StepTimes(NamedTuple):
    """All moments of one step; lists are by worker."""

    began: float
    ended: float
    writes: list[tuple[float, float]]
    reads: list[float]
    worker_read: list[float]
    worker_began: list[float]
    worker_ended: list[float]
    worker_done: list[float]

    def parts(self) -> list[float]:
        """Seconds of PARTS."""
        last = max(range(len(self.reads)), key=lambda w: self.worker_done[w])
        last_read = max(self.reads)
        first_write = min(began for began, _ in self.writes)
        return [
            first_write - self.began,
            self.worker_read[last] - first_write,
            self.worker_done[last] - self.worker_read[last],
            last_read - self.worker_done[last],
            self.ended - last_read,
        ]

    def details(self) -> list[float]:
        """Seconds of DETAILS but the last."""
        workers = range(len(self.reads))
        return [
            max(ended for _, ended in self.writes) - min(began for began, _ in self.writes),
            float(np.mean([self.worker_read[w] - self.writes[w][0] for w in workers])),
            float(np.mean([self.worker_done[w] - self.worker_read[w] for w in workers])),
            float(np.mean([self.worker_ended[w] - self.worker_began[w] for w in workers])),
            float(np.mean([self.reads[w] - self.worker_done[w] for w in workers])),
        ]


def noted_steps(pool: EnvPool, actions: Any, steps: int) -> list[StepTimes]:
    """Make so many instrumented steps, and one more whose commands tell the end of the last."""
    backend: Any = pool._engine._backend
    command_fds = [each.command_fd for each in backend.workers]
    reply_fds = [each.reply_fd for each in backend.workers]
    first_rows = [shard.first for shard in backend.shards]
    spans, parents = [], []
    _take(pool, first_rows)
    with noting() as notes:
        for _ in range(steps + 1):
            notes.writes, notes.reads = [], []
            began = perf_counter()
            pool.step(actions)
            spans.append((began, perf_counter()))
            parents.append((notes.writes, notes.reads))
    books = _take(pool, first_rows)
    found = []
    for t in range(steps):
        writes = {fd: (began, ended) for fd, began, ended in parents[t][0]}
        reads = dict(parents[t][1])
        now, following = [book[t] for book in books], [book[t + 1] for book in books]
        found.append(
            StepTimes(
                *spans[t],
                [writes[fd] for fd in command_fds],
                [reads[fd] for fd in reply_fds],
                [note[1] for note in now],
                [note[2] for note in now],
                [note[3] for note in now],
                [note[0] for note in following],
            )
        )
    return found


def _take(pool: EnvPool, first_rows: Sequence[int]) -> list[Any]:
    mask = np.zeros(pool.num_envs, np.bool_)
    mask[list(first_rows)] = True
    taken = pool.call("take", mask=mask)
    return [taken[row] for row in first_rows]


def bare_steps(pool: EnvPool, actions: Any, steps: int) -> list[float]:
    """Seconds of steps that are not instrumented in this process."""
    found = []
    for _ in range(steps):
        began = perf_counter()
        pool.step(actions)
        found.append(perf_counter() - began)
    return found


def profile(num_envs: int, with_infos: bool, rounds: int, steps: int) -> dict[str, Spread]:
    """Medians over the steps of a round, and over the rounds with their quartiles."""
    samples: dict[str, list[float]] = {name: [] for name in (*PARTS, *DETAILS)}
    env_fns: list[Callable[[], Any]] = [partial(Noted, with_infos)] * num_envs
    actions = np.zeros(num_envs, np.int64)
    with EnvPool(env_fns, num_workers=NUM_WORKERS, observations=not with_infos) as pool:
        pool.reset(seed=0)
        bare_steps(pool, actions, 50)
        for _ in range(rounds):
            bare = bare_steps(pool, actions, steps)
            noted = noted_steps(pool, actions, steps)
            rows = np.median([[*each.parts(), *each.details()] for each in noted], axis=0)
            for name, value in zip((*PARTS, *DETAILS), [*rows, np.median(bare)], strict=True):
                samples[name].append(float(value))
    return {name: Spread.of(found) for name, found in samples.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    found = parser(__doc__, rounds=11)
    found.add_argument("--steps", type=int, help="of a round (500)")
    given = read(found, arguments)
    steps = given.steps or (50 if given.quick else 500)
    described = machine()
    print(in_words(described), flush=True)
    profiles: dict[str, dict[str, Spread]] = {}
    for with_infos in (False, True):
        for num_envs in COUNTS:
            name = f"N = {num_envs}" + (", infos" if with_infos else "")
            profiles[name] = profile(num_envs, with_infos, given.rounds, steps)
            progress(f"{name}: measured")
    tables = [_table(profiles, PARTS, "in all"), _table(profiles, DETAILS, "")]
    words = (
        "Medians over the steps, in µs. The first table follows the worker that ends last, and its "
        "lines add up to the step up to the difference of medians; in the second, lines are means "
        "over both workers and overlap. Its last line is the step as it is without notes."
    )
    print(f"{words}\n\n" + "\n\n".join(text_table(table) for table in tables))
    data = {
        "machine": described,
        "rounds": given.rounds,
        "steps of a round": steps,
        "unit": "seconds",
        "profiles": {
            name: {part: spread._asdict() for part, spread in found.items()}
            for name, found in profiles.items()
        },
    }
    text = words + "\n\n" + "\n\n".join(markdown_table(table) for table in tables)
    publish(given, "profile_step", data, {"profile": text})


def _table(
    profiles: dict[str, dict[str, Spread]], parts: Sequence[str], total: str
) -> list[list[str]]:
    cells = [["part, µs", *profiles]]
    for part in parts:
        cells.append([part, *(f"{found[part].median * 1e6:.1f}" for found in profiles.values())])
    if total:
        sums = [sum(found[part].median for part in parts) for found in profiles.values()]
        cells.append([total, *(f"{value * 1e6:.1f}" for value in sums)])
    return cells


if __name__ == "__main__":
    main()
