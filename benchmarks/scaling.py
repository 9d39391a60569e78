"""A model of the time of a step; it measures nothing.

Letters: N environments, W workers, C cores. The coordinator is the caller's process::

    T = policy + step + row N + message W + wake + ⌈W / C⌉ · max over workers of worker(n)
    worker(n) = command + Σ over its n environments of (env + environment's own time
                                                        + bytes / bandwidth)

All terms are added as if nothing overlapped. In truth the first workers begin while the last
commands are written, and the first replies are read while the last workers work: with many workers
the model is on the careful side.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf


@dataclass(frozen=True)
class Constants:
    """What a machine needs for each part, in seconds.

    Attributes:
        step: The coordinator, per step.
        row: The coordinator, per environment.
        message: The coordinator, per worker: one command written, one reply read.
        wake: What a step takes beyond all work, two wake-ups. Less than nothing where everybody
            has a core and stays awake: work is measured in processes that sleep between messages,
            and takes less in one that does not.
        command: A worker, per command.
        env: A worker, per environment, on top of the environment's own time.
        byte: A worker, per byte of infos.
    """

    step: float
    row: float
    message: float
    wake: float
    command: float
    env: float
    byte: float


@dataclass(frozen=True)
class Load:
    """What is stepped.

    Attributes:
        env_s: An environment's own time per step, the same for all.
        env_bytes: What each reports per step.
        policy_s: What the caller computes between two steps.
    """

    num_envs: int
    num_workers: int
    env_s: float = 0.0
    env_bytes: int = 0
    policy_s: float = 0.0


def coordinator_seconds(constants: Constants, load: Load, cores: int) -> float:
    """How long a step is the coordinator's alone on so many cores, without the policy."""
    c = constants
    is_awake = load.num_workers <= cores
    wake = c.wake if is_awake else max(c.wake, 0.0)  # who shares a core sleeps
    return max(0.0, c.step + c.row * load.num_envs + c.message * load.num_workers + wake)


def worker_seconds(constants: Constants, load: Load) -> float:
    """What the worker with most environments does for a step."""
    c = constants
    shard = ceil(load.num_envs / load.num_workers)
    return c.command + shard * (c.env + load.env_s + c.byte * load.env_bytes)


def step_seconds(constants: Constants, load: Load, cores: int) -> float:
    """The time of a step on so many cores."""
    turns = ceil(load.num_workers / cores)
    messages = coordinator_seconds(constants, load, cores)
    return load.policy_s + messages + turns * worker_seconds(constants, load)


def balance(constants: Constants, envs_per_worker: int, env_s: float, env_bytes: int = 0) -> float:
    """How many workers keep the coordinator as busy as each is itself.

    With more of them, each with a core of its own, most of a step is the coordinator's.
    """
    c = constants
    work = worker_seconds(c, Load(envs_per_worker, 1, env_s, env_bytes))
    each = c.message + c.row * envs_per_worker
    return max(0.0, (work - c.step) / each) if each else inf


@dataclass(frozen=True)
class Network:
    """Between machines; these are assumptions, not measured here.

    Attributes:
        round_trip_s: Of an empty message.
        message_s: What the coordinator computes for one machine's command and reply.
        bytes_per_s: Into the coordinator's machine.
    """

    round_trip_s: float = 100e-6
    message_s: float = 20e-6
    bytes_per_s: float = 1.25e9


def machines_seconds(
    constants: Constants, load: Load, cores: int, num_machines: int, network: Network
) -> float:
    """The time of a step of such machines, a pool on each, and one coordinator of them all.

    `load` is what each of them steps; its infos travel to the coordinator's machine.
    """
    here = step_seconds(constants, load, cores)
    if num_machines == 1:
        return here
    arriving = (num_machines - 1) * load.num_envs * load.env_bytes
    return (
        here
        + network.round_trip_s
        + num_machines * network.message_s
        + arriving / network.bytes_per_s
    )
