"""Random programs against pools whose workers are killed and stopped at random.

Every program is carried out by a pool and by a plain loop over the same environments. Meanwhile
workers are killed, stopped until they are overdue, or held up for a moment; environments raise;
and this process interrupts itself. Rows that no fault has hit must be equal at every call, every
call must return, and nothing may be left when a pool is closed::

    python benchmarks/soak.py --seconds 1800 --seed 0
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import random
import sys
import time
from collections import Counter
from functools import partial

from soak_environment import Walker
from soak_program import HANG_S, Interrupter, Program
from soak_reference import Wrong

from swm_async import EnvPool


def held() -> set[str]:
    """Child processes, descriptors and mapped memory files of this process."""
    found = {f"process {pid}" for pid in children()}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"descriptor {fd} of {os.readlink(f'/proc/self/fd/{fd}')}")
    with open("/proc/self/maps") as maps:
        found |= {f"mapping of inode {line.split()[4]}" for line in maps if "/memfd:" in line}
    return found


def children() -> list[int]:
    """All descendants of this process."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                with open(f"/proc/{entry}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        own = parents.get(waiting.pop(), [])
        found += own
        waiting += own
    return found


def soak(seconds: float, seed: int, first: int = 0) -> Counter[str]:
    counts: Counter[str] = Counter()
    interrupter = Interrupter()
    EnvPool([partial(Walker, 0)], num_workers=1).close()  # what is made once and kept is made now
    before = held()
    ends = time.monotonic() + seconds
    number = first
    while time.monotonic() < ends:
        program_seed = f"{seed}/{number}"
        number += 1
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        program = Program(random.Random(program_seed), counts, interrupter)
        try:
            program.run(ends)
        except Exception as error:
            kind = "wrong" if isinstance(error, Wrong) else "unexpected errors"
            counts[kind] += 1
            print(f"program {program_seed} ({program}): {type(error).__name__}: {error}")
            print("Its last calls:", *program.log, sep="\n  ")
            if kind != "wrong":
                sys.excepthook(type(error), error, error.__traceback__)
            del error
        gc.collect()
        left = held() - before
        if left:
            counts["left over"] += len(left)
            print(f"program {program_seed} ({program}) has left: {'; '.join(sorted(left))}")
            before |= left
    faulthandler.cancel_dump_traceback_later()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="of the programs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    options = parser.parse_args()
    counts = soak(options.seconds, options.seed, options.first)
    for name in ("wrong", "unexpected errors", "left over"):
        counts[name] += 0
    print("hangs: 0 (one would have ended this run)")
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    return 1 if counts["wrong"] or counts["unexpected errors"] or counts["left over"] else 0


if __name__ == "__main__":
    sys.exit(main())
