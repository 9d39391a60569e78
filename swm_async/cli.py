"""The command `swm-async`: arguments in, exit code out.

It reads the command line and says what went wrong; what the commands do is told by `demo`,
`comparison`, `cli_evaluate`, `cli_data` and `reproduce`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import swm_async
from swm_async import cli_data, cli_evaluate, comparison, demo, reproduce
from swm_async.arguments import usable_cores
from swm_async.cli_types import count, keyword, positive, seconds
from swm_async.terminal import UserError, one_line

INTERRUPTED = 130
"""The exit code of a shell command that Ctrl-C has ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, 2 for the user's errors, 130 after Ctrl-C.

    Args:
        arguments: Those of the command line; None = of this process.
    """
    given = _parser().parse_args(arguments)
    try:
        given.run(given)
    except UserError as error:
        print(f"swm-async: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("swm-async: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "swm-async", description="Many Gymnasium environments on all cores of a machine."
    )
    parser.add_argument("--version", action="version", version=f"swm-async {swm_async.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_bench(commands)
    cli_evaluate.add_parser(commands)
    cli_data.add_parsers(commands)
    _add_replay(commands)
    return parser


def _add_demo(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="drive the embedded environment on all cores and draw a contact sheet",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(run=_demo)
    cores = usable_cores()
    parser.add_argument("--num-envs", type=positive, default=max(16, 2 * cores), metavar="N")
    parser.add_argument(
        "--num-workers",
        type=count,
        metavar="W",
        help="worker processes, 0 = in this process; None = one per usable core",
    )
    parser.add_argument("--episodes", type=positive, default=max(64, 8 * cores), metavar="E")
    parser.add_argument("--seed", type=count, default=0)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo/contact_sheet.png"),
        metavar="FILE",
        help="where the contact sheet goes",
    )


def _demo(given: argparse.Namespace) -> None:
    demo.run(demo.Request(given.num_envs, given.num_workers, given.episodes, given.seed, given.out))


def _add_bench(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure an environment of your own against Gymnasium's vector environments",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(run=_bench)
    parser.add_argument(
        "env_id", metavar="ENV_ID", help="as gymnasium.make takes it, also module:Id-v0"
    )
    parser.add_argument("--num-envs", type=positive, nargs="+", default=[8, 32], metavar="N")
    parser.add_argument(
        "--num-workers",
        type=count,
        nargs="+",
        default=sorted({0, 1, usable_cores()}),
        metavar="W",
        help="worker processes, 0 = in this process",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=seconds, default=0.2, help="length of a sample of the slowest side"
    )
    length.add_argument(
        "--steps", type=positive, help="steps of all environments in a sample, instead"
    )
    parser.add_argument("--rounds", type=positive, default=12, help="samples of each side")
    parser.add_argument("--seed", type=count, default=0)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write JSON and a chart")
    parser.add_argument(
        "--env-kwarg",
        type=keyword,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of gymnasium.make; may be repeated",
    )


def _bench(given: argparse.Namespace) -> None:
    comparison.run(
        comparison.Request(
            env_id=given.env_id,
            env_kwargs=dict(given.env_kwarg),
            num_envs=given.num_envs,
            worker_counts=given.num_workers,
            rounds=given.rounds,
            seconds=given.seconds,
            passes=given.steps,
            out=given.out,
            seed=given.seed,
        )
    )


def _add_replay(commands: Any) -> None:
    parser = commands.add_parser(
        "replay", help="repeat a failure from the file that EnvPool(record_actions=True) has left"
    )
    parser.set_defaults(run=_replay)
    parser.add_argument("file", type=Path, help="it runs code: only files that you trust")


def _replay(given: argparse.Namespace) -> None:
    """Repeat an episode in this process; what its environment raises is shown as it is."""
    try:
        recording = reproduce.load_recording(given.file)
    except Exception as error:  # loading imports user code, which may raise anything
        raise UserError(f"cannot read {given.file}: {one_line(error)}") from error
    print(
        f"environment {recording.env_index}: reset(seed={recording.seed}, "
        f"options={recording.options!r}), then {len(recording.actions)} steps",
        flush=True,
    )
    rewards = reproduce.play(recording)
    print(f"nothing was raised; the rewards of {len(rewards)} steps sum to {sum(rewards):g}")


if __name__ == "__main__":
    sys.exit(main())
