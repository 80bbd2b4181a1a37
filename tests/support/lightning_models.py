"""Models of Lightning that write down the samples that they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
import torch

from zarrfeed import ZarrDataLoader


class Recorder(lightning.LightningModule):
    """Learns nothing, and writes down what it is given, epoch by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.epochs: dict[int, list[list[int]]] = {}

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        samples, index = batch
        assert torch.equal(samples[:, 0], index)
        self.epochs.setdefault(self.current_epoch, []).append(index.tolist())
        return self.weight.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Scheduled(Recorder):
    """Asks how many steps there will be, as a schedule of learning rates does: before the checkpoint is read."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        steps = int(self.trainer.estimated_stepping_batches)
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)]


class OfBoth(Scheduled):
    """Reads two loaders side by side, and writes down what the second one delivers."""

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return super().training_step(batch["second"], number)


class Overfitting(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.validated: list[list[int]] = []

    def validation_step(self, batch: Any, _: int) -> None:
        self.validated.append(batch[1].tolist())

    def predict_step(self, batch: Any, _: int) -> Any:
        return batch[1]


class Line(lightning.LightningModule):
    """Fits a line, and writes down which samples it was given."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.scale = samples
        self.layer = torch.nn.Linear(3, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        samples, index = batch
        self.seen.append(index.tolist())
        self.log("progress", float(self.global_step))
        return torch.nn.functional.mse_loss(self.layer(samples / self.scale)[:, 0], index / self.scale)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.1)


class InModule(lightning.LightningDataModule):
    def __init__(self, make_loader: Callable[[], ZarrDataLoader]) -> None:
        super().__init__()
        self._make_loader = make_loader

    def train_dataloader(self) -> ZarrDataLoader:
        return self._make_loader()
