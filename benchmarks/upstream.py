"""stable-worldmodel's environments on its own pool and on this one: row P13 of the targets.

Needs what `make test-upstream` installs::

    make bench-upstream
    .venv-upstream/bin/python benchmarks/upstream.py --rounds 5

Its World makes the factories: PushT with pictures of 64×64 pixels and all its wrappers. The pools
step all environments with the same actions and reset the finished ones by a mask; the ceiling is
that of the other rows.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space
from harness import CEILING, Ceiling

from swm_async.benchmarking import Side, in_words, machine, measure, opened
from swm_async.contenders import PoolSide, Stepper, Work, pool_label
from swm_async.terminal import text_table

ENV_ID, NUM_ENVS, NUM_WORKERS, SHAPE = "swm/PushT-v1", 8, 2, (64, 64)
THEIRS = "stable-worldmodel's EnvPool"
LEAST = {THEIRS: 1.8, CEILING: 0.95}


class TheirSide(PoolSide):
    """stable-worldmodel's own pool, driven as ours is."""

    def __init__(self, work: Work, make_pool: Callable[[Sequence[Any]], Any]) -> None:
        Stepper.__init__(self, work)  # and not that of PoolSide, which builds a pool of ours
        self.label = THEIRS
        self._pool = make_pool(work.env_fns)


def import_theirs() -> Any:
    """Its module of World, behind a stand-in for torchvision where that does not load."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame would ask for a screen
    check = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True)
    if check.returncode != 0:
        sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "upstream_stub"))
    warnings.simplefilter("ignore")  # of the packages that it brings
    return importlib.import_module("stable_worldmodel.world.world")


def factories(module: Any, num_envs: int) -> list[Callable[[], Any]]:
    """The factories that its World hands to its pool."""
    taken: list[Callable[[], Any]] = []

    class Enough(Exception):
        pass

    def take(env_fns: Sequence[Callable[[], Any]], *_: Any, **__: Any) -> None:
        taken.extend(env_fns)
        raise Enough

    theirs, module.EnvPool = module.EnvPool, take
    try:
        module.World(ENV_ID, num_envs=num_envs, image_shape=SHAPE)
    except Enough:
        return taken
    finally:
        module.EnvPool = theirs
    raise RuntimeError("its World has built no pool")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=11, help="samples of each side")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a sample")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    given = parser.parse_args()
    described = machine()
    print(in_words(described), flush=True)
    module = import_theirs()
    env_fns = factories(module, NUM_ENVS)
    env = env_fns[0]()
    space = batch_space(env.action_space, NUM_ENVS)
    env.close()
    rng = np.random.default_rng(0)
    actions = [rng.uniform(-1, 1, space.shape).astype(space.dtype) for _ in range(64)]
    work = Work(env_fns, actions)
    makers: list[Callable[[], Side]] = [
        partial(Ceiling, work, NUM_WORKERS),  # first: it forks this process
        partial(TheirSide, work, module.EnvPool),
        partial(PoolSide, work, NUM_WORKERS),
    ]
    ours = pool_label(NUM_WORKERS)
    with opened(makers) as sides:
        found = measure(sides, rounds=given.rounds, seconds=given.seconds)
    lines = [["row", "environments", "against", "at least", "measured", "verdict"]]
    data = {}
    for reference, least in LEAST.items():
        ratio = found.ratio(ours, reference)
        verdict = "reached" if ratio.median >= least else "missed"
        lines.append(["P13", f"{NUM_ENVS} {ENV_ID}", reference, str(least), str(ratio), verdict])
        data[reference] = {"least": least, "measured": ratio._asdict(), "verdict": verdict}
    print(text_table(lines))
    rates = {side: NUM_ENVS * found.rate(side).median for side in (THEIRS, CEILING, ours)}
    print("environment steps per second: " + ", ".join(f"{s} {r:,.0f}" for s, r in rates.items()))
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "upstream.json"
    content = {"machine": described, "rounds": given.rounds, "P13": data, "rates": rates}
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
