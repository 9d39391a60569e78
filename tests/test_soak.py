"""The soak of `benchmarks/`, for a minute."""

import subprocess
import sys
from pathlib import Path

import pytest

SEED = "1084"
"""Its first programs lose workers at once, with restarts and without."""
# What a minute reaches also on a machine that has other things to do.
COUNTED = (
    *("programs", "calls", "steps", "rows compared", "interrupts", "exceptions"),
    *("hold-ups", "kills", "WorkerDied", "warnings of restarts"),
)
SOAK = Path(__file__).parent.parent / "benchmarks" / "soak.py"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_minute_of_faults_leaves_no_hang_no_wrong_row_and_nothing_behind(tmp_path):
    run = subprocess.run(
        [sys.executable, str(SOAK), "--seconds", "60", "--seed", SEED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    counts = dict(line.split(": ", 1) for line in run.stdout.splitlines() if ": " in line)
    for nothing in ("wrong", "unexpected errors", "left over"):
        assert counts[nothing] == "0", run.stdout
    for something in COUNTED:
        assert int(counts.get(something, "0")) > 0, run.stdout
