"""Train with Lightning; stop in the middle of an epoch; go on from its checkpoint with exactly the unused samples.

    python examples/lightning_fit.py                                      # 1 process, a temporary directory
    python examples/lightning_fit.py --devices 2 --directory /tmp/run     # 2 processes, strategy "ddp"

Lightning saves and loads the state of a `ZarrDataLoader` by itself; every pass takes the next epoch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import defaultdict
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from synthetic import SIZE, open_or_make_store

from zarrfeed import ZarrDataLoader, ZarrIterableDataset

GLOBAL_BATCH = 64
EPOCHS = 3
STOP_AFTER = 40  # steps of the run that is cut short; an epoch has 32


class Regression(lightning.LightningModule):
    """Finds the strength of the pattern in a map, and remembers which samples it was given in each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIZE * SIZE, 1))
        self.seen: dict[int, list[int]] = defaultdict(list)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        x, y, index = batch
        self.seen[self.current_epoch] += index.tolist()
        return torch.nn.functional.mse_loss(self.model(x).squeeze(1), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit(directory: Path, *, devices: int, max_steps: int = -1, checkpoint: Path | None = None) -> dict[int, list[int]]:
    """Train until the last epoch ends, or for `max_steps` steps; return the samples of each epoch on this rank."""
    samples, targets = open_or_make_store(directory / "train.zarr")
    # the dataset may be made before Lightning connects the ranks: which rank it is, it asks when reading begins
    dataset = ZarrIterableDataset(
        samples, targets, batch_size=GLOBAL_BATCH // devices, shuffle=True, seed=42, return_index=True
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=EPOCHS,
        max_steps=max_steps,
        callbacks=[ModelCheckpoint(directory, filename="{step}", every_n_train_steps=10, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression()
    trainer.fit(model, ZarrDataLoader(dataset), ckpt_path=checkpoint)
    return model.seen


def main() -> None:
    """Train for 40 steps, then again from the checkpoint of step 40, and count what both runs were given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="for data and checkpoints")
    arguments = parser.parse_args()
    if arguments.devices > 1 and arguments.directory is None:
        parser.error("--devices needs --directory: Lightning starts this script once for each rank, and they share it")
    lightning.seed_everything(0)
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        stopped = fit(directory, devices=arguments.devices, max_steps=STOP_AFTER)
        resumed = fit(directory, devices=arguments.devices, checkpoint=directory / f"step={STOP_AFTER}.ckpt")
    for epoch in range(EPOCHS):
        both = stopped[epoch] + resumed[epoch]
        print(
            f"rank {os.environ.get('LOCAL_RANK', '0')}, epoch {epoch}: {len(stopped[epoch])} samples before the stop, "
            f"{len(resumed[epoch])} after it, {len(set(both))} different ones",
            flush=True,
        )


if __name__ == "__main__":
    main()
