"""Throughput of the pool: a table against Gymnasium's vector environments, and the targets.

    python benchmarks/throughput.py            # everything, under 15 minutes
    python benchmarks/throughput.py --quick    # roughly, under 2 minutes
    python benchmarks/throughput.py --only P1,P3
    python benchmarks/throughput.py --markdown README.md benchmarks/README.md

Writes throughput.json and, where the table is measured, throughput.png. The marked parts of
Markdown files that it fills in are `machine`, `summary`, `targets` and `table`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments import ENVIRONMENTS
from peers import versions
from reporting import fill_in, progress
from targets import HEADING, NAMES, NUM_WORKERS, Outcome, measure_targets

from swm_async.arguments import usable_cores
from swm_async.benchmarking import in_words, machine
from swm_async.comparison import WHAT_BOTH_SIDES_DO, row_data, table
from swm_async.contenders import ASYNC, SYNC, Row, Work, compare, pool_label
from swm_async.pictures import plot_speeds
from swm_async.terminal import markdown_table, need, text_table

TABLE = "table"


@dataclass
class Results:
    """What a run has measured.

    Attributes:
        rows: By key of ENVIRONMENTS.
    """

    described: Mapping[str, Any]
    rounds: int
    rows: dict[str, list[Row]] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        return {
            "machine": self.described,
            "peers": versions(),
            "rounds": self.rounds,
            "units": {"rate": "environment steps per second", "against": "times as fast"},
            "spread": "first and third quartile over the rounds",
            "table": {key: [row_data(row) for row in rows] for key, rows in self.rows.items()},
            "both sides of the table": WHAT_BOTH_SIDES_DO,
            "targets": [outcome.data() for outcome in self.outcomes],
        }


def main(arguments: Sequence[str] | None = None) -> None:
    given = _parse(arguments)
    need("matplotlib", "plot", "the chart")
    results = Results(machine(), given.rounds)
    print(in_words(results.described), flush=True)
    targets = [name for name in given.only if name != TABLE]
    results.outcomes = measure_targets(
        targets, rounds=given.rounds, seconds=given.seconds, report=progress
    )
    if TABLE in given.only:
        _measure_table(results, given)
    _print(results)
    given.out.mkdir(parents=True, exist_ok=True)
    written = [given.out / "throughput.json"]
    written[0].write_text(json.dumps(results.data(), indent=2, ensure_ascii=False) + "\n")
    if results.rows:
        panels = {ENVIRONMENTS[key].title: rows for key, rows in results.rows.items()}
        written.append(given.out / "throughput.png")
        plot_speeds(panels, in_words(results.described), written[-1])
    sections = markdown_sections(results)
    for path in given.markdown:
        path.write_text(fill_in(path.read_text(), sections))
    print("\nwritten: " + ", ".join(str(path) for path in [*written, *given.markdown]))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    everything = [*NAMES, TABLE]
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples")
    parser.add_argument(
        "--only", type=_names(everything), default=everything, help=",".join(everything)
    )
    parser.add_argument(
        "--environments", type=_names(list(ENVIRONMENTS)), default=list(ENVIRONMENTS)
    )
    parser.add_argument("--num-envs", type=int, nargs="+", default=[8, 32], help="of the table")
    parser.add_argument("--rounds", type=int, help="samples of each side")
    parser.add_argument("--seconds", type=float, help="length of a sample of the slowest side")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    parser.add_argument("--markdown", type=Path, nargs="+", default=[], metavar="FILE")
    given = parser.parse_args(arguments)
    given.rounds = given.rounds or (4 if given.quick else 12)
    given.seconds = given.seconds or (0.05 if given.quick else 0.4)
    return given


def _names(known: Sequence[str]) -> Any:
    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown {unknown}, expected some of {known}")
        return names

    return read


def _measure_table(results: Results, given: argparse.Namespace) -> None:
    for key in given.environments:
        results.rows[key] = []
        for num_envs in given.num_envs:
            counts = sorted({0, 1, NUM_WORKERS, usable_cores()})
            results.rows[key] += compare(
                Work.of(ENVIRONMENTS[key].env_fn, num_envs),
                [count for count in counts if count <= num_envs],
                rounds=given.rounds,
                seconds=given.seconds,
            )
            progress(f"{ENVIRONMENTS[key].title}, {num_envs} environments: measured")


def _print(results: Results) -> None:
    for outcome in results.outcomes:
        name, title, num_envs, *others = outcome.cells()
        print(f"\n{name}  {title}, N = {num_envs}, {NUM_WORKERS} workers")
        named = zip(HEADING[3:], others, strict=True)
        print("    " + "; ".join(f"{what} {text}" for what, text in named if text))
        print(f"    {outcome.target.what_both_did}")
    for key, rows in results.rows.items():
        print(f"\n{ENVIRONMENTS[key].title}\n{text_table(table(rows))}")
    if results.rows:
        print(f"\n{WHAT_BOTH_SIDES_DO}")


def markdown_sections(results: Results) -> dict[str, str]:
    """What was measured, as Markdown by name; `machine` always, the others where measured."""
    rounds = f"medians of {results.rounds} rounds in turns, with their quartiles"
    sections = {"machine": f"{in_words(results.described)}; {rounds}."}
    if results.outcomes:
        cells = [HEADING, *(outcome.cells() for outcome in results.outcomes)]
        did = dict.fromkeys(
            f"- against the {o.target.reference}: {o.target.what_both_did}."
            for o in results.outcomes
        )
        sections["targets"] = markdown_table(cells) + "\n\n" + "\n".join(did)
    if results.rows:
        parts = [
            f"{ENVIRONMENTS[key].title}:\n\n{markdown_table(table(rows))}"
            for key, rows in results.rows.items()
        ]
        sections[TABLE] = "\n\n".join(parts) + "\n\n" + WHAT_BOTH_SIDES_DO
        sections["summary"] = markdown_table(_summary(results.rows))
    return sections


def _summary(rows: Mapping[str, Sequence[Row]]) -> list[list[str]]:
    """Speeds as multiples of SyncVectorEnv's, one row per environment and number of them."""
    labels = [ASYNC, pool_label(0), pool_label(NUM_WORKERS)]
    summary = [["environment", "N", "SyncVectorEnv, steps/s", *labels]]
    for key, found in rows.items():
        by_place = {(row.num_envs, row.label): row for row in found}
        for num_envs in sorted({row.num_envs for row in found}):
            spreads = [by_place[num_envs, label].against_sync for label in labels]
            summary.append(
                [
                    ENVIRONMENTS[key].title,
                    str(num_envs),
                    f"{by_place[num_envs, SYNC].rate.median:,.0f}",
                    *(f"{spread.median:.2f} ×" for spread in spreads if spread is not None),
                ]
            )
    return summary


if __name__ == "__main__":
    main()
