"""Stable-Baselines3's PPO on environments in worker processes.

    python examples/sb3_ppo.py

Needs Stable-Baselines3: pip install 'swm_async[sb3]'.
"""

from __future__ import annotations

import argparse

import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from swm_async.sb3 import VecEnv


def main() -> None:
    """Train, then evaluate."""
    parser = argparse.ArgumentParser(description="Train Stable-Baselines3's PPO.")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-workers", type=int, help="default: one per usable core")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps to train for")
    parser.add_argument(
        "--rollout", type=int, default=128, help="steps of an environment per update"
    )
    parser.add_argument("--episodes", type=int, default=20, help="episodes of the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the networks are small, and the workers need the cores
    factories = [lambda: gymnasium.make(arguments.env)] * arguments.num_envs
    # VecMonitor keeps the episodes' returns in this process: with a Monitor around each
    # environment, every worker would import torch.
    env = VecMonitor(VecEnv(factories, num_workers=arguments.num_workers))
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=arguments.rollout,
        batch_size=arguments.rollout * arguments.num_envs // 4,
        learning_rate=lambda remaining: 1e-3 * remaining,
        n_epochs=4,
        ent_coef=0.01,
        seed=arguments.seed,
        device="cpu",
    )
    model.learn(arguments.steps)
    mean, deviation = evaluate_policy(model, env, arguments.episodes)
    print(f"return of {arguments.episodes} episodes: {mean:.1f} ± {deviation:.1f}")
    env.close()


if __name__ == "__main__":
    main()
