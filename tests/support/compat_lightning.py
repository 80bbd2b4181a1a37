"""A Lightning training on two CPU processes, as the README of zarr-torch-dataset has it but for the import line.

Run by tests/integration/test_compat_ranks.py: `python compat_lightning.py DIRECTORY PYTHON`. The samples in DIRECTORY
say which they are; each rank writes the ones that it got to rank-R.json. Lightning starts rank 1 by PYTHON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
import zarr

from zarrfeed.compat.zarrdataset import ZarrDataLoader, ZarrIterableDataset

EPOCHS = 3


class Recorder(lightning.LightningModule):
    """A linear model that notes the samples of each step, by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)
        self.seen: dict[str, dict[int, list[int]]] = {"train": {}, "val": {}}

    def loss(self, batch: list[torch.Tensor], stage: str) -> torch.Tensor:
        assert type(batch) is list
        x, y = batch
        index = x[:, 0, 0].long()
        assert torch.equal(x, index[:, None, None] + torch.arange(6).reshape(2, 3) / 8)
        assert torch.equal(y.long(), index)
        self.seen[stage].setdefault(self.current_epoch, []).extend(index.tolist())
        return torch.nn.functional.mse_loss(self.layer(x.flatten(1)).squeeze(1), y.float())

    def training_step(self, batch: Any) -> torch.Tensor:
        return self.loss(batch, "train")

    def validation_step(self, batch: Any) -> None:
        if not self.trainer.sanity_checking:
            self.log("val_loss", self.loss(batch, "val"), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-4)


def main(directory: Path) -> None:
    train_samples: Any = zarr.open(directory / "train_samples", mode="r")
    train_targets: Any = zarr.open(directory / "train_targets", mode="r")
    validation_samples: Any = zarr.open(directory / "validation_samples", mode="r")
    validation_targets: Any = zarr.open(directory / "validation_targets", mode="r")

    train_dataset = ZarrIterableDataset(
        samples=train_samples,
        targets=train_targets,
        shuffle_chunks=True,
        chunks_shuffle_seed=42,
        shuffle_buffer=True,
        buffer_shuffle_seed=None,
    )
    validation_dataset = ZarrIterableDataset(
        samples=validation_samples, targets=validation_targets, shuffle_chunks=False, shuffle_buffer=False
    )
    options: dict[str, Any] = {"num_workers": 2, "batch_size": 16, "pin_memory": True, "prefetch_factor": 2}
    train_loader = ZarrDataLoader(dataset=train_dataset, drop_last=False, **options)
    validation_loader = ZarrDataLoader(dataset=validation_dataset, drop_last=False, **options)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Recorder()
    trainer.fit(model=model, train_dataloaders=train_loader, val_dataloaders=validation_loader)
    (directory / f"rank-{trainer.global_rank}.json").write_text(
        json.dumps({**model.seen, "steps": trainer.global_step, "batches": len(train_loader)})
    )


if __name__ == "__main__":
    sys.executable = sys.argv[2]
    main(Path(sys.argv[1]))
