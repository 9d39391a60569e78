"""Scripts that measure some rows of the targets: arguments in, a table and JSON out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from reporting import parser, progress, publish, read

from swm_async.benchmarking import Side, Spread, in_words, machine, measure, opened
from swm_async.terminal import markdown_table, text_table

HEADING = ["row", "side", "against", "compared", "target", "aim", "measured", "verdict"]


class Bound(NamedTuple):
    """What a row is to reach: a speed as a multiple of the reference's, or a time or memory."""

    kind: str
    """`"speed"`, at least; `"time"` or `"memory"`, at most."""
    least: float | None = None
    """None = it is only stated."""
    aim: float | None = None

    def verdict(self, median: float) -> str:
        if self.least is None:
            return "stated"
        good = median >= self.least if self.kind == "speed" else median <= self.least
        return "reached" if good else "missed"


class RowOutcome(NamedTuple):
    """A row of a table: what was compared with what, and what came of it."""

    row: str
    bound: Bound
    side: str
    reference: str
    measured: Spread | None
    """The ratio of the side to the reference; None = skipped."""
    both_did: str
    """What both sides did, or why the row was skipped."""

    @property
    def verdict(self) -> str:
        return "skipped" if self.measured is None else self.bound.verdict(self.measured.median)

    def cells(self) -> list[str]:
        kind, least, aim = self.bound
        found = "" if self.measured is None else _spread(self.measured)
        at = "at least" if kind == "speed" else "at most"
        limit = "" if least is None else f"{at} {least:g}"
        hoped = "" if aim is None else f"{aim:g}"
        return [self.row, self.side, self.reference, kind, limit, hoped, found, self.verdict]

    def data(self) -> dict[str, Any]:
        return {
            "row": self.row,
            "side": self.side,
            "against": self.reference,
            "compared": self.bound.kind,
            "least": self.bound.least,
            "aim": self.bound.aim,
            "measured": None if self.measured is None else self.measured._asdict(),
            "verdict": self.verdict,
            "both sides": self.both_did,
        }


def _spread(found: Spread) -> str:
    """With a digit more where it is small."""
    return str(found) if found.median >= 0.1 else "{:.3f} ({:.3f}–{:.3f})".format(*found)


def run_rows(
    description: str,
    name: str,
    rows: Mapping[str, Bound],
    sides_of: Callable[[str], Sequence[Callable[[], Side]]],
    both_did: Mapping[str, str],
    arguments: Sequence[str] | None = None,
    *,
    seconds: float = 0.3,
) -> None:
    """Measure the rows one after the other.

    Args:
        description: The script's docstring.
        name: Of the JSON file and of the part of pages.
        rows: What each is to reach.
        sides_of: Makes the reference of a row, then its other side.
        both_did: By row, what both sides do.
        arguments: Of the command line.
        seconds: Length of a sample of the slower side.
    """
    given = read(parser(description, rounds=12, seconds=seconds), arguments)
    described = machine()
    print(in_words(described), flush=True)
    outcomes = []
    for row, bound in rows.items():
        with opened(sides_of(row)) as (reference, mine):
            result = measure([reference, mine], rounds=given.rounds, seconds=given.seconds)
            pair = (mine.label, reference.label)
            found = result.ratio(*pair if bound.kind == "speed" else pair[::-1])
        outcomes.append(RowOutcome(row, bound, *pair, found, both_did[row]))
        progress(f"{row}: measured")
    publish_rows(given, name, described, outcomes)


def publish_rows(
    given: Any, name: str, described: Mapping[str, Any], outcomes: Sequence[RowOutcome]
) -> None:
    """Print the rows, write them as JSON and into the pages."""
    cells = [HEADING, *(outcome.cells() for outcome in outcomes)]
    did = "\n".join(f"- {outcome.row}: {outcome.both_did}." for outcome in outcomes)
    print(f"{text_table(cells)}\n{did}")
    data = {
        "machine": described,
        "rounds": given.rounds,
        "rows": [outcome.data() for outcome in outcomes],
    }
    publish(given, name, data, {name: f"{markdown_table(cells)}\n\n{did}"})
