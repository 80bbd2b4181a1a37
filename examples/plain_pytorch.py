"""Train with plain PyTorch; stop in the middle of an epoch; go on with exactly the samples that were not used yet.

    python examples/plain_pytorch.py

makes a small store in a temporary directory, trains, stops after 40 batches as if the machine had gone down, and starts
again from the checkpoint. To do that by hand, give a place for the data (made if it is not there) and the checkpoint
(read if it is there), and interrupt the run when you like:

    python examples/plain_pytorch.py --data train.zarr --checkpoint run.pt
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from synthetic import SIZE, open_or_make_store

from zarrfeed import ZarrDataLoader, ZarrIterableDataset

EPOCHS = 3
SAVE_EVERY = 10  # batches


def train(data: Path, checkpoint: Path, *, stop_after: int | None = None) -> None:
    """Train until the last epoch ends, or stop after so many batches, without any farewell."""
    samples, targets = open_or_make_store(data)
    dataset = ZarrIterableDataset(samples, targets, batch_size=64, shuffle=True, seed=42)
    loader = ZarrDataLoader(dataset)  # no workers needed: the engine has threads of its own
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIZE * SIZE, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    epoch, step, seen = 0, 0, 0

    def save() -> None:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),  # a small dict: which epoch, and how far in it
            "progress": (epoch, step, seen),
        }
        partial = checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(checkpoint)  # never half a checkpoint

    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        epoch, step, seen = saved["progress"]
        print(f"continuing in epoch {epoch} after {seen} samples")

    while epoch < EPOCHS:
        for x, y in loader:  # every pass is the next epoch, in an order of its own; the first one here may be a rest
            loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step, seen = step + 1, seen + len(x)
            if step % SAVE_EVERY == 0:
                save()
                print(f"epoch {epoch}, step {step}: loss {loss.item():.4f}")
            if step == stop_after:
                print(f"stopped in epoch {epoch} after {seen} samples")
                return
        print(f"epoch {epoch} is over: {seen} samples")
        epoch, seen = epoch + 1, 0
        save()


def main() -> None:
    """Train where the arguments say, or show a stop and a new start in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory with the Zarr arrays samples and targets")
    parser.add_argument("--checkpoint", type=Path, default=Path("run.pt"))
    arguments = parser.parse_args()
    if arguments.data is not None:
        train(arguments.data, arguments.checkpoint)
        return
    with tempfile.TemporaryDirectory() as directory:
        data, checkpoint = Path(directory) / "train.zarr", Path(directory) / "run.pt"
        train(data, checkpoint, stop_after=40)
        train(data, checkpoint)


if __name__ == "__main__":
    main()
