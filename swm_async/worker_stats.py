"""The figures of a pool from what its workers count; no I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from swm_async.backends.base import ShardRange
from swm_workers.protocol import WorkerStats


def summed_up(replies: Sequence[Any], shards: Sequence[ShardRange]) -> dict[str, Any]:
    """Arrays over workers and over environments; see ``EnvPool.stats``.

    Args:
        replies: a ``WorkerStats`` of each worker; anything else = it is lost and has none.
        shards: which environments each worker hosts.
    """
    known = []
    for reply, (first, last) in zip(replies, shards, strict=True):
        unknown = (math.nan,) * (last - first)
        is_known = isinstance(reply, WorkerStats)
        known.append(reply if is_known else WorkerStats(0, 0.0, 0.0, unknown, unknown))
    busy_s = np.array([each.busy_s for each in known])
    waiting_s = np.array([each.waiting_s for each in known])
    total_s = busy_s + waiting_s
    share = np.divide(waiting_s, total_s, out=np.full(len(known), np.nan), where=total_s > 0)
    return {
        "steps": np.array([each.steps for each in known], np.int64),
        "busy_s": busy_s,
        "waiting_s": waiting_s,
        "waiting_share": share,
        "step_mean_s": np.array([s for each in known for s in each.step_mean_s]),
        "step_worst_s": np.array([s for each in known for s in each.step_worst_s]),
    }
