"""What infos and masks cost: rows P8, P9 and P10 of the targets.

    python benchmarks/infos.py                 # a few minutes
    python benchmarks/infos.py --rounds 5 --seconds 0.05

P8   a mask that selects 8 of 256 environments, all in one shard, against a pool of 8 alone.
P9   World's infos (10 keys, one of 64×64×3 pixels) of an environment that does nothing, against
     two forked processes with an in-process pool of half the environments each.
P10  an info of 224×224×3 bytes per environment, against one `numpy.copyto` per frame.
And what a VectorEnv pays for infos at every step, three numbers of environments that do nothing or
burn 100 µs, against SyncVectorEnv.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from environments import Burn, Nothing
from gymnasium.vector import SyncVectorEnv
from harness import ForkedProcesses
from rows import Bound, run_rows

from swm_async import EnvPool, VectorEnv
from swm_async.arguments import split
from swm_async.benchmarking import Side

ROWS = {
    "P8 CartPole": Bound("time", 1.4, 1.1),
    "P8 nothing": Bound("time", 2.0, 1.3),
    "P9": Bound("speed", 0.75, 0.85),
    "P10": Bound("time", 0.7, 0.6),
    "VectorEnv, N = 8": Bound("speed"),
    "VectorEnv, N = 32": Bound("speed"),
    "VectorEnv, 100 µs, N = 8": Bound("speed"),
}
_TELLING = "one step of environments that tell three numbers each, added up as Gymnasium does"
_MASKED = (
    "one step of the same 8 environments with a mask of 256 in which they lie in one shard, and of "
    "a pool of them alone; both hand out observations, rewards, flags and infos"
)
BOTH_DID = {
    "P8 CartPole": _MASKED,
    "P8 nothing": _MASKED,
    "P9": "one step of 32 environments with the same infos into arrays (N, 1, ...); the reference "
    "as two forked in-process pools of 16 each, which exchange nothing: the sum of their speeds",
    "P10": "32 pictures of 224×224×3 bytes laid down in an array (32, 1, 224, 224, 3): by a step "
    "of 2 workers, and by a loop of `numpy.copyto` in one process",
    **dict.fromkeys((row for row in ROWS if row.startswith("VectorEnv")), _TELLING),
}


class WorldLike(Nothing):
    """Reports what World's environments report, made beforehand, so that only the way costs."""

    def __init__(self) -> None:
        super().__init__()
        pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
        self._info = {
            "observation": np.zeros(4, np.float32),
            "reward": 0.5,
            "terminated": False,
            "truncated": False,
            "action": np.zeros(2, np.float32),
            "step_idx": 7,
            "id": 2**40,
            "pixels": pixels,
            "render_time": 0.001,
            "success": False,
        }

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self._observation, self._info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation, 0.0, False, False, self._info


class Frames(Nothing):
    """Reports one picture of 224×224 pixels, each environment its own."""

    def __init__(self) -> None:
        super().__init__()
        self._info = {"pixels": np.full((224, 224, 3), 7, np.uint8)}

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self._observation, self._info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation, 0.0, False, False, self._info


class Telling(Burn):
    """Burns so many seconds and reports three numbers at each step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        info = {"distance": 0.5, "success": False, "count": 3}
        return (*super().step(action)[:4], info)


class VectorSteps:
    """Steps of a vector environment whose environments report infos."""

    def __init__(self, label: str, make: Callable[..., Any], num_envs: int, seconds: float) -> None:
        self.label = label
        self._envs = make([partial(Telling, seconds)] * num_envs)
        self._actions = np.zeros(num_envs, np.int64)

    def restart(self) -> None:
        self._envs.reset(seed=0)

    def run(self, passes: int) -> float:
        step, actions = self._envs.step, self._actions
        started = perf_counter()
        for _ in range(passes):
            step(actions)
        return passes / (perf_counter() - started)

    def close(self) -> None:
        self._envs.close()


class PoolSteps:
    """Steps of a pool, with a mask or without."""

    def __init__(
        self,
        label: str,
        env_fn: Callable[[], Any],
        num_envs: int,
        num_workers: int,
        mask: Any = None,
        observations: bool = True,
    ) -> None:
        self.label = label
        self._pool = EnvPool([env_fn] * num_envs, num_workers=num_workers,
                             observations=observations)  # fmt: skip
        self._actions = np.zeros(num_envs, np.int64)
        self._mask = mask

    def restart(self) -> None:
        self._pool.reset(seed=0)

    def run(self, passes: int) -> float:
        step, actions, mask = self._pool.step, self._actions, self._mask
        started = perf_counter()
        for _ in range(passes):
            step(actions, mask)
        return passes / (perf_counter() - started)

    def close(self) -> None:
        self._pool.close()


class ForkedPools:
    """W forked processes with an in-process pool of N/W environments each; the sum of speeds."""

    label = "ceiling"

    def __init__(self, env_fn: Callable[[], Any], num_envs: int, num_workers: int) -> None:
        self._env_fn, self._num_envs = env_fn, num_envs
        self._shards = split(num_envs, num_workers)
        self._processes = ForkedProcesses(self._serve, num_workers)

    def restart(self) -> None:
        self._ask(0)

    def run(self, passes: int) -> float:
        seconds = self._ask(passes)
        sizes = [shard.last - shard.first for shard in self._shards]
        steps = sum(passes * n / s for n, s in zip(sizes, seconds, strict=True))
        return steps / self._num_envs

    def close(self) -> None:
        self._processes.close()

    def _ask(self, passes: int) -> list[float]:
        for fd in self._processes.writes:
            os.write(fd, np.int64(passes).tobytes())
        return [float(np.frombuffer(os.read(fd, 8))[0]) for fd in self._processes.reads]

    def _serve(self, w: int, read_fd: int, write_fd: int) -> None:
        first, last = self._shards[w]
        side = PoolSteps("", self._env_fn, last - first, 0, observations=False)
        side.restart()
        while data := os.read(read_fd, 8):
            passes = int(np.frombuffer(data, np.int64)[0])
            speed = side.run(max(passes, 1))
            os.write(write_fd, np.float64(max(passes, 1) / speed).tobytes())


class Copies:
    """One `numpy.copyto` per frame into an array `(N, 1, 224, 224, 3)`, in this process."""

    label = "numpy.copyto"

    def __init__(self, num_envs: int) -> None:
        self._frames = [np.full((224, 224, 3), 7, np.uint8) for _ in range(num_envs)]
        self._target = np.zeros((num_envs, 1, 224, 224, 3), np.uint8)

    def restart(self) -> None:
        pass

    def run(self, passes: int) -> float:
        started = perf_counter()
        for _ in range(passes):
            for i, frame in enumerate(self._frames):
                np.copyto(self._target[i, 0], frame)
        return passes / (perf_counter() - started)

    def close(self) -> None:
        pass


def sides_of(row: str) -> list[Callable[[], Side]]:
    """The reference, then the side that is to reach the target."""
    if row.startswith("P8"):
        env_fn = Nothing if "nothing" in row else partial(gymnasium.make, "CartPole-v1")
        mask = np.zeros(256, np.bool_)
        mask[8:16] = True
        return [
            partial(PoolSteps, "8 alone, 1 worker", env_fn, 8, 1),
            partial(PoolSteps, "8 of 256, 2 workers", env_fn, 256, 2, mask),
        ]
    if row == "P9":
        return [
            partial(ForkedPools, WorldLike, 32, 2),
            partial(PoolSteps, "EnvPool, 2 workers", WorldLike, 32, 2, None, False),
        ]
    if row.startswith("VectorEnv"):
        work = int(row.split("N = ")[1]), 1e-4 if "100 µs" in row else 0.0
        return [
            partial(VectorSteps, "SyncVectorEnv", SyncVectorEnv, *work),
            partial(VectorSteps, "VectorEnv, 2 workers", partial(VectorEnv, num_workers=2), *work),
        ]
    return [
        partial(Copies, 32),
        partial(PoolSteps, "EnvPool, 2 workers", Frames, 32, 2, None, False),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    run_rows(__doc__ or "", "infos", ROWS, sides_of, BOTH_DID, arguments)


if __name__ == "__main__":
    main()
