"""Lightning: a DataModule with a training and a validation part of a store, and a Trainer.

python examples/lightning_module.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import lightning
import torch
from synthetic import SIZE, open_or_make_store

import zarrfeed as zf


class Maps(lightning.LightningDataModule):
    """Nine tenths of the chunks are for training, the others for validation."""

    def __init__(self, store: Path) -> None:
        super().__init__()
        self.train, self.valid = zf.open(*open_or_make_store(store)).split((0.9, 0.1), by="chunk", seed=0)

    def train_dataloader(self) -> zf.ZarrDataLoader:
        return zf.ZarrDataLoader(zf.ZarrIterableDataset(self.train, batch_size=64, shuffle=True, seed=0))

    def val_dataloader(self) -> zf.ZarrDataLoader:
        return zf.ZarrDataLoader(zf.ZarrIterableDataset(self.valid, batch_size=64))


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIZE * SIZE, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.model(batch[0]).squeeze(1), batch[1])

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        self.log("loss", torch.nn.functional.mse_loss(self.model(batch[0]).squeeze(1), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    """Train for three epochs, and say the loss of the validation part."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        trainer = lightning.Trainer(accelerator="cpu", max_epochs=3, default_root_dir=folder, **quiet)
        trainer.fit(Regression(), datamodule=Maps(Path(folder) / "train.zarr"))
        print(f"validation loss {float(trainer.callback_metrics['loss']):.3f}")


if __name__ == "__main__":
    main()
