"""From passages of recorded episodes to resets that start there, and infos that tell the goals.

It knows passages, time steps, and of a pool its handles; which episode runs where is the rollout's
affair. The pool's arrays are never written: what it adds goes into the dict of the time step.

Letters: `N` = num_envs, `i` = env index, `E` = episodes, `e` = episode of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from swm_async.overlays import batched_goals, overlaid, with_rows
from swm_async.passages import Passage, Row, column_seeds
from swm_async.rollout import Bools, Infos, Options, TimeStep
from swm_workers.images import InfoSettings

HOOK = "reset_options_from_dataset"
"""A method of environments: from a start's and a goal's row to options of a reset."""

OWN = frozenset(
    ("action", "reward", "terminated", "truncated", "step_idx", "id", "render_time"),
)
"""Infos of the run itself: recorded values do not replace them."""


class Replay:
    """Starts each episode of a run in its recorded state and shows its recorded goal.

    Attributes:
        passages: One for each episode.
        seeds: One seed for each episode, None where the passages tell none.
        options: Reset options, one mapping for each episode.
    """

    def __init__(
        self,
        pool: Any,
        passages: Sequence[Passage],
        *,
        settings: InfoSettings,
        options: Options | Sequence[Options | None] | None = None,
        callables: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Plan the resets; nothing moves.

        Args:
            pool: Its environments are asked by their handles, `pool.envs[i]`. Environment `e % N`
                is the one whose `reset_options_from_dataset` makes the options of episode `e`.
            passages: One for each episode.
            settings: How images are shaped.
            options: More options of the resets; those made from a passage win.
            callables: For environments without that method: `{"method": name, "args": {argument:
                {"value": column or value, "in_dataset": bool}}}`, called after each reset on the
                unwrapped environment. With `in_dataset` (default) the value is the passage's
                column of that name, and the argument is left out where there is none.

        Raises:
            TypeError, ValueError: Callables that are no such mappings, or name a method that an
                environment does not have; a column `seed` that holds no seeds.
        """
        self._pool = pool
        self.passages = passages
        self._settings = settings
        self._calls = _checked_calls(callables)
        self.seeds = column_seeds(passages)
        used = range(min(len(passages), pool.num_envs))
        self._hooked = [hasattr(pool.envs[i], HOOK) for i in used]
        for i in used:
            self._check_methods(i)
        self.options = self._make_options(options)
        self._goals = batched_goals(passages, settings)
        self._shown: Infos = {}
        self._fresh: Bools = np.zeros(pool.num_envs, np.bool_)
        self._episode = np.full(pool.num_envs, -1, np.int64)

    def count(self, episodes: int | None) -> int:
        """Return the number of episodes; `episodes` must be that or None."""
        if episodes is not None and episodes != len(self.passages):
            raise ValueError(
                f"episodes must be the number of episodes_idx, {len(self.passages)}, or None, "
                f"found {episodes!r}"
            )
        return len(self.passages)

    def note(self, step: TimeStep) -> None:
        """Take note of a time step; carries out the callables of episodes that begin with it."""
        begun = step.first.nonzero()[0].tolist()
        if not begun:
            self._fresh &= ~step.mask
            return
        self._fresh |= step.first
        self._episode = step.episode
        for i in begun:
            if not self._hooked[i]:
                self._call(i)
        for key, goals in self._goals.items():
            self._shown[key] = with_rows(
                self._shown.get(key), goals, begun, step.episode, len(step.first)
            )

    def show(self, infos: Infos) -> None:
        """Put the goals into a dict of infos and, where nothing has moved since, the starts."""
        for key, values in self._shown.items():
            infos[key] = values
            infos.pop(f"_{key}", None)
        fresh = self._fresh.nonzero()[0].tolist()
        starts = {i: self.passages[self._episode[i]].init_row for i in fresh}
        for key in set().union(*starts.values()) & infos.keys() - OWN:
            present = infos.get(f"_{key}")
            recorded = {
                i: row[key]
                for i, row in starts.items()
                if key in row and (present is None or present[i])
            }
            infos[key] = overlaid(infos[key], recorded, self._settings)

    def _call(self, i: int) -> None:
        passage = self.passages[self._episode[i]]
        row = passage.init_row | passage.goal_row
        for call in self._calls:
            env = self._pool.envs[i].unwrapped
            getattr(env, call.method)(**call.arguments(row))

    def _check_methods(self, i: int) -> None:
        if self._hooked[i]:
            return
        for call in self._calls:
            if not hasattr(self._pool.envs[i].unwrapped, call.method):
                raise ValueError(
                    f"callables name the method {call.method!r}, which environment {i} does not "
                    "have"
                )

    def _make_options(
        self, options: Options | Sequence[Options | None] | None
    ) -> list[Options | None]:
        count = len(self.passages)
        if options is None or isinstance(options, Mapping):
            given: list[Any] = [options] * count
        else:
            given = list(options)
        if len(given) != count:
            raise ValueError(
                f"options must be one mapping or a list of one per episode, found {len(given)} "
                f"for {count} episodes"
            )
        made = []
        for e, (passage, more) in enumerate(zip(self.passages, given, strict=True)):
            i = e % self._pool.num_envs
            own = None
            if self._hooked[i]:
                own = getattr(self._pool.envs[i], HOOK)(passage.init_row, passage.goal_row)
            made.append(more if own is None else {**(more or {}), **own})
        return made


@dataclass(frozen=True)
class _Call:
    """A method to be called after a reset; see `Replay`."""

    method: str
    columns: Mapping[str, str]
    constants: Mapping[str, Any]

    def arguments(self, row: Row) -> dict[str, Any]:
        """Return the arguments, of which some are columns of `row`."""
        found = {name: row[column] for name, column in self.columns.items() if column in row}
        return found | dict(self.constants)


def refuse_without_dataset(**arguments: Any) -> None:
    """Raise if one of these arguments, which mean nothing without a dataset, is not None."""
    needless = [name for name, value in arguments.items() if value is not None]
    if needless:
        raise ValueError(f"without a dataset evaluate cannot take {', '.join(needless)}")


def _checked_calls(callables: Any) -> list[_Call]:
    if isinstance(callables, Mapping | str):
        raise TypeError(f"callables must be a list of mappings, found {callables!r}")
    calls = []
    for given in callables or ():
        method = given.get("method") if isinstance(given, Mapping) else None
        args = given.get("args", {}) if isinstance(method, str) else None
        if not isinstance(args, Mapping) or not all(
            isinstance(arg, Mapping) and "value" in arg for arg in args.values()
        ):
            raise ValueError(
                "callables must be mappings {'method': name, 'args': {argument: {'value': ..., "
                f"'in_dataset': bool}}}}, found {given!r}"
            )
        read = {name for name, arg in args.items() if arg.get("in_dataset", True)}
        calls.append(
            _Call(
                str(method),
                {name: args[name]["value"] for name in read},
                {name: arg["value"] for name, arg in args.items() if name not in read},
            )
        )
    return calls
