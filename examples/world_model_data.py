"""From a policy to a dataset to a model: pixels collected by a World, and a network that predicts.

    python examples/world_model_data.py --path data.h5

An expert with noise drives PointGoal; its episodes are recorded, read again in clips, and a small
network learns to tell the next frame from a frame and an action. Needs torch and pillow, and h5py
for `.h5`: pip install 'swm_async[torch,pixels,hdf5]'.

Letters: `B` = clips of a batch, `L` = transitions of a clip, `S` = side of the images.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import swm_async as swm

ENV_ID = "swm_async/PointGoal-v0"


def collect(path: Path, episodes: int, size: int, num_workers: int | None, seed: int) -> None:
    """Record episodes with frames `(S, S, 3)`, coloured and shaped differently from each other."""
    with swm.World(ENV_ID, 8, image_shape=(size, size), num_workers=num_workers) as world:
        world.set_policy(swm.NoisyPolicy(swm.PointGoalExpert(), scale=0.5, seed=seed))
        options = {"variation": ["all"]}
        results = world.collect(path, episodes, seed, options, mode="overwrite", progress=False)
    print(f"recorded {episodes} episodes, {results['episode_lengths'].sum()} steps: {path}")


class Predictor(nn.Module):
    """Tells how a frame changes by an action."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, channels, 4, 2, 1), nn.ReLU(), nn.Conv2d(channels, channels, 4, 2, 1)
        )
        self.action = nn.Linear(2, channels)
        self.decoder = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(channels, channels, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(channels, 3, 4, 2, 1),
        )

    def forward(self, frames: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """The next frames, `(n, 3, S, S)`, of frames of that shape and actions `(n, 2)`."""
        effect = self.action(actions)[..., None, None]
        return frames + self.decoder(self.encoder(frames) + effect)


def load_clips(dataset, count: int, length: int, generator: np.random.Generator):
    """Draw clips: frames `(B, L + 1, 3, S, S)` in [0, 1], and actions `(B, L, 2)`."""
    # Episodes have L + 1 rows and more; each row that can begin a clip is as likely.
    starts_of = np.maximum(dataset.lengths - length, 0)
    episodes = generator.choice(len(dataset), count, p=starts_of / starts_of.sum())
    starts = generator.integers(0, starts_of[episodes])
    clips = dataset.load_chunk(episodes, starts, starts + length + 1)
    pixels = torch.from_numpy(np.stack([clip["pixels"] for clip in clips]))
    actions = torch.from_numpy(np.stack([clip["action"][:-1] for clip in clips]))
    return pixels.movedim(-1, 2).float() / 255, actions.float()


def train(dataset, steps: int, batch: int, length: int, seed: int) -> list[float]:
    """Fit a predictor; returns its loss at each step, the mean squared error of all values."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    model = Predictor()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    losses = []
    for step in range(steps):
        frames, actions = load_clips(dataset, batch, length, generator)
        predicted = model(frames[:, :-1].flatten(0, 1), actions.flatten(0, 1))
        loss = (predicted - frames[:, 1:].flatten(0, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % max(1, steps // 10) == 0 or step == steps - 1:
            print(f"step {step}: loss {losses[-1]:.5f}", flush=True)
    return losses


def main() -> None:
    """Collect, load, train."""
    parser = argparse.ArgumentParser(description="Collect pixels and train a predictor on them.")
    parser.add_argument(
        "--path", type=Path, help="a .h5 file or a folder (npz); default: temporary"
    )
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--size", type=int, default=48, help="side of the images, a multiple of 4")
    parser.add_argument("--num-workers", type=int, help="default: one per usable core")
    parser.add_argument("--steps", type=int, default=200, help="steps of the training")
    parser.add_argument("--batch", type=int, default=16, help="clips per step")
    parser.add_argument("--clip-length", type=int, default=4, help="transitions per clip")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.path or Path(folder) / "episodes"
        collect(path, arguments.episodes, arguments.size, arguments.num_workers, arguments.seed)
        with swm.load_dataset(path) as dataset:
            losses = train(
                dataset, arguments.steps, arguments.batch, arguments.clip_length, arguments.seed
            )
    tenth = max(1, len(losses) // 10)
    first, last = np.mean(losses[:tenth]), np.mean(losses[-tenth:])
    print(f"mean loss of the first tenth {first:.5f}, of the last {last:.5f}")


if __name__ == "__main__":
    main()
