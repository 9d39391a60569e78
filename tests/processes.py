"""Scripts that tests run in processes of their own, and waiting for processes to end."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import textwrap
from collections.abc import Sequence

PATH = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


def has_gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether a process has ended, or does so within some seconds; also if it is no child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))
    finally:
        os.close(fd)


def run_script(
    source: str, *, pass_fds: Sequence[int] = (), stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script by ``python -c`` to its end."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env=PATH,
        pass_fds=pass_fds,
        check=False,
    )
