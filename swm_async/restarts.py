"""Counting failures of environments that are built anew; no I/O."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swm_workers.layout import Array


class Restarts:
    """Who may be built anew, and who has lost its state.

    Args:
        num_envs: N.
        max_restarts: failures that one environment may have until it finishes an episode.
    """

    def __init__(self, num_envs: int, max_restarts: int) -> None:
        self.lost_state: Array = np.zeros(num_envs, np.bool_)
        """``(N,) bool``, True = built anew and not reset since."""
        self.total: Array = np.zeros(num_envs, np.int64)
        """``(N,) int64``: failures of each environment so far."""
        self._recent: Array = np.zeros(num_envs, np.int64)
        self._some_recent = False
        self._max_restarts = max_restarts

    def allow(self, failed: Sequence[int]) -> bool:
        """Count one failure of each of these; False if one of them has had too many."""
        rows = list(failed)
        self.total[rows] += 1
        self._recent[rows] += 1
        self._some_recent = True
        return bool((self._recent[rows] <= self._max_restarts).all())

    def note_finished(self, rows: Array, terminateds: Array, truncateds: Array) -> None:
        """Forgive environments that have finished an episode by themselves."""
        if self._some_recent:
            done = rows[(terminateds[rows] | truncateds[rows]) & ~self.lost_state[rows]]
            self._recent[done] = 0
            self._some_recent = bool(self._recent.any())
