"""What a pool tells about its own work: figures of workers and environments."""

from __future__ import annotations

from typing import Any

from swm_async.access import EnvAccess


class PoolFigures(EnvAccess):
    """The part of ``EnvPool`` that measures."""

    def stats(self) -> dict[str, Any]:
        """What the workers have done so far, and which environments hold up the others.

        Letters: ``W`` = workers, with ``num_workers=0`` the caller's process as the only one.

        Returns:
            A dict of arrays.

            - ``steps`` ``(W,) int64``: environment steps.
            - ``busy_s``, ``waiting_s`` ``(W,) float64``: seconds spent on commands and waiting for
              them; ``waiting_share`` ``(W,) float64``: the latter's part of both, from 0 to 1.
            - ``step_mean_s``, ``step_worst_s`` ``(N,) float64``: seconds that an environment's own
              ``step`` took on average and at most. They are sampled: one command in 17 is timed,
              the first one included; NaN where none has been. Resets do not count.
            - ``restarts`` ``(W,) int64``: workers replaced and environments built anew.
            - ``extra_keys``: a dict of the info keys that travelled outside shared memory, with
              their bytes.

            All but the last two begin anew with a worker that is replaced.
        """
        with self._engine.lock:
            self._engine.check_usable()
            self._engine.make_way(None)
            return self._engine.stats()
