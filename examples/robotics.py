"""Robotics: windows of a replay buffer, padded at the ends of episodes; a policy learns the actions from two frames.

python examples/robotics.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import zarr

import zarrfeed as zf

AHEAD = 4


def write_episodes(path: Path) -> None:
    """Write 60 episodes: a dot goes to the middle of a picture, by a fifth in each step, which is the action."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 30, 60)
    position = np.concatenate([rng.uniform(-1, 1, 2) * 0.8 ** np.arange(n)[:, None] for n in lengths]).astype("f4")
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, 16)], indexing="ij"))
    dots = np.exp(-20 * ((grid - position[:, :, None, None]) ** 2).sum(1))
    buffer = zarr.create_group(path)
    data = buffer.create_group("data")
    data.create_array("img", data=(255 * dots).astype("u1"), chunks=(32, 16, 16))
    data.create_array("action", data=-0.2 * position, chunks=(64, 2))
    buffer.create_group("meta").create_array("episode_ends", data=np.cumsum(lengths), chunks=(60,))


def main() -> None:
    """Train on every step of every episode, and say how far the actions are off."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "robot.zarr"
        write_episodes(store)
        offsets = {"img": (-1, 0), "action": tuple(range(AHEAD))}
        data = zf.open(store).window(offsets, pad="edge", mask=True).cast({"img": "float32"})
        dataset = zf.ZarrIterableDataset(data, batch_size=32, shuffle=True, seed=0)
        hidden, out = torch.nn.Linear(2 * 16 * 16, 64), torch.nn.Linear(64, 2 * AHEAD)
        model = torch.nn.Sequential(torch.nn.Flatten(), hidden, torch.nn.ReLU(), out)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(10):
            off = steps = 0.0
            for batch in dataset:
                wrong = (model(batch["img"] / 255).view(-1, AHEAD, 2) - batch["action"]).square().sum(2)
                loss = wrong[~batch["action_is_pad"].bool()].mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                off, steps = off + float(loss.detach()), steps + 1
        print(f"{len(data)} steps of 60 episodes, epoch 9: actions are off by {(off / steps) ** 0.5:.3f}")


if __name__ == "__main__":
    main()
