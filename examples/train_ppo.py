"""PPO in one file: CartPole-v1 learnt on environments in worker processes.

    python examples/train_ppo.py --out learning_curve.png

Proximal policy optimization (Schulman et al., 2017, arXiv:1707.06347) with generalized advantage
estimation (Schulman et al., 2016, arXiv:1506.02438). Needs torch, and matplotlib for the picture:
pip install 'swm_async[torch,plot]'.

Letters: `T` = steps of an update, `N` = num_envs, `B` = T * N.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.distributions import Categorical

from swm_async import make_vec


@dataclass(frozen=True)
class Settings:
    """What PPO is run with; learning rate and clip are those of the start, and go to 0."""

    steps: int = 32
    epochs: int = 20
    minibatches: int = 1
    learning_rate: float = 1e-3
    discount: float = 0.98
    gae_lambda: float = 0.8
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.0
    max_gradient_norm: float = 0.5


@dataclass
class Curve:
    """How the returns rose: every episode that ended, and the environment step at which it did."""

    env_steps: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)

    def recent_return(self, episodes: int = 100) -> float:
        """The mean return of the last episodes; NaN before the first."""
        return float(np.mean(self.returns[-episodes:])) if self.returns else float("nan")


class Agent(nn.Module):
    """A policy and a value function, two layers each."""

    def __init__(self, observation_size: int, num_actions: int) -> None:
        super().__init__()
        self.policy = _layers(observation_size, num_actions, 0.01)
        self.value = _layers(observation_size, 1, 1.0)

    def distribution(self, observations: torch.Tensor) -> Categorical:
        """The policy's distribution over actions, for observations `(..., observation_size)`."""
        return Categorical(logits=self.policy(observations))

    def values(self, observations: torch.Tensor) -> torch.Tensor:
        """The expected returns `(...)` of observations `(..., observation_size)`."""
        return self.value(observations).squeeze(-1)


def _layers(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    sizes, gains = [inputs, 64, 64, outputs], [2**0.5, 2**0.5, last_gain]
    layers: list[nn.Module] = []
    for k, gain in enumerate(gains):
        linear = nn.Linear(sizes[k], sizes[k + 1])
        nn.init.orthogonal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Rollout:
    """Plays `T` steps at a time and keeps what PPO learns from.

    Finished environments must be reset within the step, so that every row is a real transition.
    """

    def __init__(self, envs: gymnasium.vector.VectorEnv, agent: Agent, seed: int) -> None:
        if envs.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise ValueError(f"needs SAME_STEP, found {envs.metadata['autoreset_mode']}")
        self.envs, self.agent, self.curve = envs, agent, Curve()
        self._observations = _tensor(envs.reset(seed=seed)[0])
        self._returns = np.zeros(envs.num_envs)
        self._env_steps = 0

    @torch.no_grad()
    def play(self, settings: Settings) -> dict[str, torch.Tensor]:
        """Returns tensors `(B, ...)` by name."""
        kept: dict[str, list[torch.Tensor]] = {}
        advantages = []
        for _ in range(settings.steps):
            observations = self._observations
            distribution = self.agent.distribution(observations)
            actions = distribution.sample()
            step = self.envs.step(actions.numpy())
            rewards, next_values = self._account(*step)
            values = self.agent.values(observations)
            transition = {
                "observations": observations,
                "actions": actions,
                "log_probabilities": distribution.log_prob(actions),
                "values": values,
                "errors": rewards + settings.discount * next_values - values,
                "goes_on": _tensor(~(step[2] | step[3])),
            }
            for name, tensor in transition.items():
                kept.setdefault(name, []).append(tensor)
        advantage = torch.zeros(self.envs.num_envs)
        decay = settings.discount * settings.gae_lambda
        for error, goes_on in zip(reversed(kept["errors"]), reversed(kept["goes_on"]), strict=True):
            advantage = error + decay * goes_on * advantage
            advantages.append(advantage)
        kept["advantages"] = advantages[::-1]
        return {name: torch.stack(tensors).flatten(0, 1) for name, tensors in kept.items()}

    def _account(self, observations, rewards, terminations, truncations, infos):
        """Take in a step; returns its rewards and the values `(N,)` of what it led to."""
        self._observations = _tensor(observations)
        self._env_steps += len(rewards)
        self._returns += rewards
        next_values = self.agent.values(self._observations)
        for i in np.flatnonzero(terminations | truncations):
            self.curve.env_steps.append(self._env_steps)
            self.curve.returns.append(float(self._returns[i]))
            self._returns[i] = 0.0
            # The new observation is that of the next episode. Only a termination is worth 0: a
            # truncated episode would have gone on from its last observation.
            last = _tensor(infos["final_obs"][i])
            next_values[i] = 0.0 if terminations[i] else self.agent.values(last)
        return _tensor(rewards), next_values


def train(
    envs: gymnasium.vector.VectorEnv,
    updates: int,
    seed: int = 0,
    settings: Settings | None = None,
    progress: bool = False,
) -> Curve:
    """Run PPO on any vector environment that resets within the step.

    For environments that are determined by seed and actions, the curve is so too.
    """
    settings = settings or Settings()
    torch.manual_seed(seed)
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), settings.learning_rate, eps=1e-5)
    rollout = Rollout(envs, agent, seed)
    for update in range(updates):
        left = 1 - update / updates
        optimizer.param_groups[0]["lr"] = settings.learning_rate * left
        batch = rollout.play(settings)
        learn(agent, optimizer, batch, replace(settings, clip=settings.clip * left))
        if progress and (update + 1) % 20 == 0:
            recent = rollout.curve.recent_return()
            print(f"update {update + 1} of {updates}: return {recent:.1f}", flush=True)
    return rollout.curve


def learn(agent: Agent, optimizer, batch: dict[str, torch.Tensor], settings: Settings) -> None:
    """One update: some epochs over the batch in shuffled minibatches."""
    size = len(batch["actions"])
    targets = batch["advantages"] + batch["values"]
    for _ in range(settings.epochs):
        for rows in torch.randperm(size).chunk(settings.minibatches):
            advantages = batch["advantages"][rows]
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            distribution = agent.distribution(batch["observations"][rows])
            change = (
                distribution.log_prob(batch["actions"][rows]) - batch["log_probabilities"][rows]
            )
            ratio = change.exp()
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
            value_loss = (agent.values(batch["observations"][rows]) - targets[rows]).square().mean()
            loss = (
                policy_loss
                + settings.value_weight * value_loss
                - settings.entropy_weight * distribution.entropy().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), settings.max_gradient_norm)
            optimizer.step()


def draw(curve: Curve, path: Path, env_id: str) -> None:
    """Draw the return of every episode, and the mean of a hundred."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(curve.env_steps, curve.returns, ".", markersize=3, alpha=0.3, label="one episode")
    sums = np.cumsum([0.0, *curve.returns])
    counts = np.arange(1, len(sums))
    firsts = np.maximum(counts - 100, 0)
    means = (sums[counts] - sums[firsts]) / (counts - firsts)
    axes.plot(curve.env_steps, means, label="mean of the last 100")
    axes.set(xlabel="environment steps", ylabel="return", title=f"PPO on {env_id}")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _tensor(array) -> torch.Tensor:
    return torch.as_tensor(np.asarray(array), dtype=torch.float32)


def main() -> None:
    """Train, tell what came of it, draw the curve."""
    parser = argparse.ArgumentParser(description="Train PPO on CartPole in worker processes.")
    parser.add_argument("--env", default="CartPole-v1", help="an id with discrete actions")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-workers", type=int, help="default: one per usable core")
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--steps", type=int, default=32, help="steps of an environment per update")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to draw the learning curve (PNG)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the networks are small, and the workers need the cores
    envs = make_vec(
        arguments.env,
        arguments.num_envs,
        num_workers=arguments.num_workers,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    started = time.perf_counter()
    settings = Settings(steps=arguments.steps)
    with envs:
        curve = train(envs, arguments.updates, arguments.seed, settings, progress=True)
    seconds = time.perf_counter() - started
    steps = arguments.updates * arguments.steps * arguments.num_envs
    print(
        f"{len(curve.returns)} episodes, {steps} steps in {seconds:.0f} s; "
        f"mean return of the last 100: {curve.recent_return():.1f}"
    )
    if arguments.out is not None:
        draw(curve, arguments.out, arguments.env)


if __name__ == "__main__":
    main()
