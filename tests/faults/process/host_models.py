"""The model that Lightning trains in hosts.py, which imports it only where it is run."""

from __future__ import annotations

from typing import Any

import lightning
import torch


class Model(lightning.LightningModule):
    """Learns nothing, writes down what it is given, and may ask how many steps there will be."""

    def __init__(self, *, asks: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.asks = asks
        self.epochs: dict[int, list[int]] = {}

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Write the samples of a batch down."""
        self.epochs.setdefault(self.current_epoch, []).extend(batch.tolist())
        return self.weight.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make an optimizer, after a look at the number of steps if that is asked for."""
        if self.asks:
            assert self.trainer.estimated_stepping_batches > 0  # which lets the Trainer make its loaders
        return torch.optim.SGD(self.parameters(), lr=0.1)
