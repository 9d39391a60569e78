"""Scripts that measure some rows of the targets: arguments in, a table and JSON out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from swm_async.benchmarking import Side, Spread, in_words, machine, measure, opened
from swm_async.terminal import text_table


class Bound(NamedTuple):
    """What a row is to reach: a speed as a multiple of the reference's, or a time."""

    kind: str
    """`"speed"`, at least; `"time"`, at most."""
    least: float
    aim: float


def run_rows(
    description: str,
    rows: Mapping[str, Bound],
    sides_of: Callable[[str], Sequence[Callable[[], Side]]],
    *,
    seconds: float = 0.3,
) -> None:
    """Measure the rows one after the other; `sides_of` makes the reference, then the other side."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="samples per side")
    parser.add_argument("--seconds", type=float, default=seconds, help="of one sample")
    parser.add_argument("--out", type=Path, default=None, help="a JSON file to write")
    given = parser.parse_args()
    described = machine()
    print(in_words(described), flush=True)
    cells, data = [], []
    for row, (kind, least, aim) in rows.items():
        with opened(sides_of(row)) as (reference, mine):
            result = measure([reference, mine], rounds=given.rounds, seconds=given.seconds)
            pair = (reference.label, mine.label)
            found: Spread = result.ratio(*pair if kind == "time" else pair[::-1])
        good = found.median <= least if kind == "time" else found.median >= least
        bound = "at most" if kind == "time" else "at least"
        cells.append(
            [row, mine.label, reference.label, kind, f"{bound} {least:g}", f"{aim:g}", str(found),
             "reached" if good else "missed"]
        )  # fmt: skip
        data.append({"row": row, "compared": kind, "least": least, "measured": found._asdict()})
        print(f"{row}: measured", flush=True)
    heading = ["row", "side", "against", "compared", "target", "aim", "measured", "verdict"]
    print(text_table([heading, *cells]))
    if given.out is not None:
        given.out.write_text(json.dumps({"machine": described, "rows": data}, indent=2) + "\n")
