"""An environment that tells about its process and does what environments should not do.

Imports nothing of the library, so that a worker that hosts it can be asked what it imported.
"""

import os
import signal
import subprocess
import sys
import time

import gymnasium
import numpy as np

DEEDS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit("enough"),
    "abort": os.abort,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": lambda: 1 / 0,
    "sleep": lambda: time.sleep(1000),
    "spin": lambda: [None for _ in iter(int, 1)],
}


class Probe(gymnasium.Env):
    """Does a deed at a moment, both given by name; counts its steps in the infos."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(9)

    def __init__(self, when=None, deed=None):
        self.plan(when, deed)
        self.children = []
        self.count = 0
        self._do("build")

    def plan(self, when, deed):
        self._plan = (when, deed)

    def reset(self, *, seed=None, options=None):
        self._do("reset")
        self.count = 0
        return np.zeros(1, np.float32), {"count": 0}

    def step(self, action):
        self._do("step")
        self.count += 1
        return np.zeros(1, np.float32), 1.0, False, False, {"count": self.count}

    def act(self):
        self._do("call")

    def close(self):
        self._do("close")

    def _do(self, when):
        if self._plan[0] == when:
            DEEDS[self._plan[1]]()

    def pid(self):
        return os.getpid()

    def look(self, source):
        """The value of an expression in this process."""
        return eval(source, {"gymnasium": gymnasium, "os": os, "signal": signal, "sys": sys})

    def start_child(self):
        """Start a process that would outlive its parent; returns its id."""
        self.children.append(
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"])
        )
        return self.children[-1].pid

    def fork_child(self):
        """Fork a process that holds copies of all descriptors; returns its id."""
        pid = os.fork()
        if pid == 0:
            time.sleep(999)
            os._exit(0)
        return pid
