"""What the scripts have in common around a measurement: arguments, JSON, and pages of Markdown.

In Markdown files the text between `<!-- measured: NAME -->` and `<!-- end of measured -->` is
replaced by what was measured under that name; a part that was not measured stays as it is.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from swm_async.benchmarking import Side, Spread

QUICK_ROUNDS, QUICK_SECONDS = 3, 0.02


def parser(description: str | None, *, rounds: int = 11, seconds: float = 0.2) -> Any:
    """A parser of the arguments that every script takes; `read` finishes it."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--quick", action="store_true", help="few and short samples")
    found.add_argument("--rounds", type=int, help=f"samples of each side ({rounds})")
    found.add_argument("--seconds", type=float, help=f"length of a sample ({seconds:g})")
    found.add_argument("--out", type=Path, default=Path("out/benchmarks"), metavar="DIR")
    found.add_argument(
        "--markdown", type=Path, nargs="+", default=[], metavar="FILE", help="pages to fill in"
    )
    found.set_defaults(full=(rounds, seconds))
    return found


def read(found: Any, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments and settle the number of rounds and their length."""
    given: argparse.Namespace = found.parse_args(arguments)
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if given.quick else given.full
    given.rounds = given.rounds or rounds
    given.seconds = given.seconds or seconds
    return given


def publish(
    given: argparse.Namespace,
    name: str,
    data: Mapping[str, Any],
    sections: Mapping[str, str],
    pictures: Sequence[Path] = (),
) -> None:
    """Write `NAME.json`, fill in the pages, and say what was written."""
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{name}.json"
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    for page in given.markdown:
        page.write_text(fill_in(page.read_text(), sections))
    print("\nwritten: " + ", ".join(map(str, [path, *pictures, *given.markdown])), flush=True)


def fill_in(text: str, sections: Mapping[str, str]) -> str:
    """Replace the marked parts of a Markdown text whose section was measured."""

    def replace(found: re.Match[str]) -> str:
        begin, name, end = found["begin"], found["name"], found["end"]
        return f"{begin}\n\n{sections[name]}\n\n{end}" if name in sections else found[0]

    marked = r"(?P<begin><!-- measured: (?P<name>\w+) -->).*?(?P<end><!-- end of measured -->)"
    return re.sub(marked, replace, text, flags=re.DOTALL)


def progress(text: str) -> None:
    """Say how far it has come, where it is not part of the result."""
    print(text, file=sys.stderr, flush=True)


def pass_times(
    sides: Sequence[Side], *, rounds: int, seconds: float, restart: bool = True
) -> dict[str, Spread]:
    """Seconds per pass of each side, in turns A B C, C B A.

    Unlike `measure` each side makes as many passes as fit into so many seconds: for sides whose
    passes differ by orders of magnitude, where the ratios of a round do not matter.
    """
    passes = {}
    for side in sides:
        if restart:
            side.restart()
        passes[side.label] = fitting_passes(side, seconds)
    samples: dict[str, list[float]] = {side.label: [] for side in sides}
    for k in range(rounds):
        for side in sides if k % 2 == 0 else reversed(sides):
            samples[side.label].append(1 / side.run(passes[side.label]))
    return {label: Spread.of(found) for label, found in samples.items()}


def fitting_passes(side: Side, seconds: float) -> int:
    """How many passes a side makes in so many seconds; warms it up."""
    passes = 1
    while True:
        rate = side.run(passes)
        if passes >= seconds * rate / 4:
            return max(1, round(seconds * rate))
        passes *= 4


def in_microseconds(spread: Spread) -> str:
    """A spread of seconds as text, with as many digits as it is worth."""
    digits = 1 if spread.median < 100e-6 else 0
    median, low, high = (f"{value * 1e6:,.{digits}f}" for value in spread)
    return f"{median} ({low}–{high})"


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say how long a part of a script took."""
    started = perf_counter()
    yield
    progress(f"{what}: measured in {perf_counter() - started:.0f} s")
