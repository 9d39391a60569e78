"""Throughput against the number of environments: CartPole in this library and in others.

    python benchmarks/libraries.py            # about three minutes
    python benchmarks/libraries.py --num-envs 4 16

Needs the extra `bench` for the libraries beyond Gymnasium; those that are missing are left out,
with the reason. Writes libraries.json and libraries.png.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from charts import plot_libraries
from environments import ENVIRONMENTS
from gymnasium.vector import AutoresetMode
from harness import CEILING, Ceiling
from peers import CPP, SHMEM, SUBPROC, missing, peer_side, versions
from reporting import parser, pass_times, publish, read, timed

from swm_async.benchmarking import Side, Spread, in_words, machine, opened
from swm_async.contenders import ASYNC, SYNC, OwnVectorSide, VectorSide, Work, own_vector_label
from swm_async.terminal import markdown_table, need, text_table

NUM_WORKERS = 2
COUNTS = (4, 16, 64, 256)
MOST_PROCESSES = 64
"""With a process per environment more of them are not started."""
ONE_EACH = (ASYNC, SUBPROC, SHMEM)
BOTH_DID = (
    "All sides: CartPole-v1 with the same actions, finished environments reset at once (same-step; "
    f"{CPP} in the step after), observations, rewards, flags and infos handed out without a copy "
    "where that can be chosen. The same seeds, but for the one in C++, whose draws are its own."
)


def makers_of(work: Work, num_envs: int) -> dict[str, Callable[[], Side]]:
    """All sides by label, those that fork first."""
    workers = min(NUM_WORKERS, num_envs)
    same = AutoresetMode.SAME_STEP
    makers: dict[str, Callable[[], Side]] = {
        CEILING: partial(Ceiling, work, workers),
        ASYNC: partial(VectorSide, work, ASYNC),
        **{label: peer_side(label, work, NUM_WORKERS) for label in (SUBPROC, SHMEM, CPP)},
        SYNC: partial(VectorSide, work, SYNC),
        own_vector_label(0, same): partial(OwnVectorSide, work, 0),
        own_vector_label(1, same): partial(OwnVectorSide, work, 1),
        own_vector_label(workers, same): partial(OwnVectorSide, work, workers),
    }
    return {
        label: make
        for label, make in makers.items()
        if missing(label) is None and not (label in ONE_EACH and num_envs > MOST_PROCESSES)
    }


def measure_libraries(
    counts: Sequence[int], rounds: int, seconds: float
) -> dict[str, dict[int, Spread]]:
    """Environment steps per second of every side, by label and N."""
    found: dict[str, dict[int, Spread]] = {}
    for num_envs in counts:
        work = Work.of(ENVIRONMENTS["cartpole"].env_fn, num_envs)
        makers = list(makers_of(work, num_envs).values())
        # The processes of all others sleep while one side is measured.
        with timed(f"{num_envs} environments"), opened(makers) as sides:
            times = pass_times(sides, rounds=rounds, seconds=seconds)
        for label, spread in times.items():
            low, high = num_envs / spread.high, num_envs / spread.low
            found.setdefault(label, {})[num_envs] = Spread(num_envs / spread.median, low, high)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    found = parser(__doc__, rounds=11, seconds=0.2)
    found.add_argument("--num-envs", type=int, nargs="+", help=f"{COUNTS}")
    given = read(found, arguments)
    need("matplotlib", "plot", "the picture")
    described = machine()
    print(in_words(described), flush=True)
    skipped = [f"{label}: {why}" for label in (SUBPROC, SHMEM, CPP) if (why := missing(label))]
    counts = given.num_envs or (COUNTS[:2] if given.quick else COUNTS)
    rates = measure_libraries(counts, given.rounds, given.seconds)
    cells = [["environment steps per second", *(f"N = {n}" for n in counts)]]
    for label, by_count in rates.items():
        cells.append([label, *(_rate(by_count.get(n)) for n in counts)])
    print(text_table(cells))
    print("\n".join([BOTH_DID, *(f"left out: {text}" for text in skipped)]))
    given.out.mkdir(parents=True, exist_ok=True)
    picture = given.out / "libraries.png"
    known = ", ".join(f"{name} {version}" for name, version in versions().items())
    caption = "\n".join(text for text in (in_words(described), known) if text)
    plot_libraries(rates, "CartPole-v1", caption, picture)
    data: dict[str, Any] = {
        "machine": described,
        "peers": versions(),
        "rounds": given.rounds,
        "unit": "environment steps per second",
        "all sides": BOTH_DID,
        "left out": skipped,
        "rates": {
            label: {str(n): spread._asdict() for n, spread in by_count.items()}
            for label, by_count in rates.items()
        },
    }
    left_out = "".join(f"\n\nLeft out: {text}." for text in skipped)
    text = f"{markdown_table(cells)}\n\n{BOTH_DID}{left_out}"
    publish(given, "libraries", data, {"libraries": text}, [picture])


def _rate(found: Spread | None) -> str:
    return "" if found is None else "{:,.0f} ({:,.0f}–{:,.0f})".format(*found)


if __name__ == "__main__":
    main()
