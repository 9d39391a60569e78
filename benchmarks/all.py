"""Run every benchmark of this machine, one after the other, and fill in the pages.

    python benchmarks/all.py            # under 20 minutes on 2 cores; writes the pages
    python benchmarks/all.py --quick    # under 2 minutes, rough; leaves the pages alone

Each script is a process of its own. One that fails does not keep the others from running; it is
named in the end, and the exit code says so. Left out: upstream.py, which needs an environment of
its own, and soak.py and memory.py, which test rather than measure.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

HERE = Path(__file__).parent
PAGE = "benchmarks/README.md"


class Script(NamedTuple):
    """A script, the pages that it fills in, and its arguments of a full and of a quick run."""

    name: str
    pages: tuple[str, ...] = (PAGE,)
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = ("--quick",)
    """None = left out of a quick run."""


SCRIPTS = (
    Script(
        "throughput",
        ("README.md", PAGE),
        ("--rounds", "11", "--seconds", "0.2"),
        ("--only", "P1,P3,P5,P6,P7", "--rounds", "3", "--seconds", "0.02"),
    ),
    Script("infos"),
    Script("overlap", full=("--seconds", "0.5"), quick=("--rounds", "2", "--seconds", "0.1")),
    Script("startup"),
    Script("footprint", quick=None),
    Script("libraries"),
    Script("growth"),
    Script("waiting", full=("--seconds", "0.1")),
    Script("profile_step"),
    Script("scaling_model", ("docs/scaling.md",)),
)


def command(script: Script, *, quick: bool, out: Path) -> list[str]:
    """The command line of a script; its pages are filled in by a full run."""
    arguments = script.quick if quick else (*script.full, "--markdown", *script.pages)
    path = str(HERE / f"{script.name}.py")
    return [sys.executable, path, "--out", str(out), *(arguments or ())]


def show(out: Path) -> None:
    """Put the pictures where the pages show them."""
    pictures = HERE / "pictures"
    pictures.mkdir(exist_ok=True)
    for picture in sorted(out.glob("*.png")):
        shutil.copy(picture, pictures)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few and short samples")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"), metavar="DIR")
    given = parser.parse_args(arguments)
    started, failed = perf_counter(), []
    for script in SCRIPTS:
        if given.quick and script.quick is None:
            continue
        began = perf_counter()
        print(f"\n== {script.name} ==", flush=True)
        line = command(script, quick=given.quick, out=given.out)
        if subprocess.run(line, cwd=HERE.parent).returncode != 0:
            failed.append(script.name)
        print(f"{script.name}: {perf_counter() - began:.0f} s", flush=True)
    if not given.quick:
        show(given.out)
    print(f"\nall: {(perf_counter() - started) / 60:.1f} minutes")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
