"""A small model that reconstructs a temperature field from 63 stations, trained through `ZarrIterableDataset`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from zarrfeed.engine.stats import Stats
from zarrfeed.report.explain import Explanation
from zarrfeed.tools.demo.climate import STATION_SPACING, ClimateStore
from zarrfeed.torch.datasets.iterable_dataset import ZarrIterableDataset

#: Chosen with years 1860 to 2049 of scenario A1B for training and its later ones for comparison.
_NUM_PATTERNS = 32
_LEARNING_RATE = 3e-3
_WEIGHT_DECAY = 0.1
_BATCH_SIZE = 16


class Reconstruction(nn.Module):
    """Stations -> field, both in kelvin: interpolation, and a learned correction on top of it.

    The correction is a linear map of low rank: the anomalies at the stations become amounts of a few learned
    patterns, and these are added up. It begins as zero, so that the untrained model is the baseline.

    Parameters
    ----------
    climatology
        Mean of the training fields, shape (latitude, longitude).
    scale_k
        Standard deviation of the training fields around it.
    """

    def __init__(self, climatology: torch.Tensor, scale_k: float) -> None:
        super().__init__()
        self.climatology: torch.Tensor
        self.register_buffer("climatology", climatology)
        self.scale_k = scale_k
        stations = climatology[::STATION_SPACING, ::STATION_SPACING]
        self.amounts = nn.Linear(stations.numel(), _NUM_PATTERNS)
        self.patterns = nn.Linear(_NUM_PATTERNS, climatology.numel())
        nn.init.zeros_(self.patterns.weight)
        nn.init.zeros_(self.patterns.bias)

    def baseline(self, stations: torch.Tensor) -> torch.Tensor:
        """Reconstruct without learning: the climatology, plus the anomalies at the stations, interpolated bilinearly.

        Parameters
        ----------
        stations
            Shape (batch, 7, 9).

        Returns
        -------
        Shape (batch, 37, 49).
        """
        anomalies = (stations - self._station_climatology)[:, None]
        # the corners of the grid are stations: aligned, the stations keep their values
        between = nn.functional.interpolate(anomalies, size=self.climatology.shape, mode="bilinear", align_corners=True)
        return self.climatology + between[:, 0]

    def forward(self, stations: torch.Tensor) -> torch.Tensor:
        """Reconstruct the field; shapes as in `baseline`."""
        anomalies = (stations - self._station_climatology).flatten(1) / self.scale_k
        correction: torch.Tensor = self.patterns(self.amounts(anomalies))
        return self.baseline(stations) + self.scale_k * correction.view(-1, *self.climatology.shape)

    @property
    def _station_climatology(self) -> torch.Tensor:
        return self.climatology[::STATION_SPACING, ::STATION_SPACING]


@dataclass(frozen=True)
class EpochLoss:
    """Root mean square errors of an epoch, in kelvin: while training, and on held-out fields after it."""

    train_rmse_k: float
    held_out_rmse_k: float


@dataclass(frozen=True)
class Training:
    """The result of the training.

    Attributes
    ----------
    baseline_rmse_k
        Error of the baseline on held-out fields.
    epochs
        One entry per epoch.
    num_parameters
        Number of parameters of the model.
    explanation, stats
        The `explain()` and the `stats()` of the dataset of training.
    """

    baseline_rmse_k: float
    epochs: tuple[EpochLoss, ...]
    num_parameters: int
    explanation: Explanation
    stats: Stats

    @property
    def rmse_k(self) -> float:
        """Error of the trained model on held-out fields: of the last epoch, not of the best one."""
        return self.epochs[-1].held_out_rmse_k

    @property
    def beats_baseline(self) -> bool:
        """True if the model predicts better than the baseline."""
        return self.rmse_k < self.baseline_rmse_k


def train(
    train_store: ClimateStore,
    held_out_store: ClimateStore,
    *,
    epochs: int,
    seed: int,
    on_epoch: Callable[[EpochLoss, float], None],
) -> Training:
    """Train the model.

    Parameters
    ----------
    train_store, held_out_store
        Fields to learn from, and fields to be judged by.
    epochs, seed
        Number of epochs of the training; seed of the weights and of the order of samples.
    on_epoch
        Called after each epoch, with its errors and with the error of the baseline.
    """
    with _one_torch_thread():
        return _train(train_store, held_out_store, epochs=epochs, seed=seed, on_epoch=on_epoch)


@contextlib.contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Keep torch to one thread: it is as fast for a model of this size, and never waits for a busy core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(
    train_store: ClimateStore,
    held_out_store: ClimateStore,
    *,
    epochs: int,
    seed: int,
    on_epoch: Callable[[EpochLoss, float], None],
) -> Training:
    climatology, scale_k = _normals(train_store)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        torch.manual_seed(seed)
        model = Reconstruction(climatology, scale_k)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=_WEIGHT_DECAY)

    held_out = ZarrIterableDataset(held_out_store.stations, held_out_store.field, batch_size=64)
    dataset = ZarrIterableDataset(
        train_store.stations, train_store.field, batch_size=_BATCH_SIZE, shuffle=True, seed=seed
    )
    with held_out, dataset:
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=_LEARNING_RATE, total_steps=epochs * len(dataset)
        )
        baseline_rmse_k = _rmse(model.baseline, held_out)
        losses = []
        for epoch in range(epochs):
            dataset.set_epoch(epoch)
            squares, elements = 0.0, 0
            for stations, field in dataset:
                loss = nn.functional.mse_loss(model(stations), field)
                optimizer.zero_grad()
                (loss / scale_k**2).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                squares += float(loss.detach()) * field.numel()
                elements += field.numel()
            losses.append(EpochLoss(math.sqrt(squares / elements), _rmse(model, held_out)))
            on_epoch(losses[-1], baseline_rmse_k)
        return Training(
            baseline_rmse_k=baseline_rmse_k,
            epochs=tuple(losses),
            num_parameters=sum(p.numel() for p in model.parameters()),
            explanation=dataset.explain(),
            stats=dataset.stats(),
        )


def _normals(store: ClimateStore) -> tuple[torch.Tensor, float]:
    """Return mean (latitude, longitude) and standard deviation around it, of the training fields only."""
    with ZarrIterableDataset(store.field, batch_size=64) as dataset:
        fields = torch.cat([batch.double() for batch in _tensors(dataset)])
    climatology = fields.mean(dim=0)
    return climatology.float(), float((fields - climatology).square().mean().sqrt())


def _tensors(dataset: ZarrIterableDataset) -> Iterator[torch.Tensor]:
    for batch in dataset:
        assert isinstance(batch, torch.Tensor)
        yield batch


@torch.no_grad()
def _rmse(model: Callable[[torch.Tensor], torch.Tensor], dataset: ZarrIterableDataset) -> float:
    squares, elements = 0.0, 0
    for stations, field in dataset:
        squares += float((model(stations) - field).double().square().sum())
        elements += field.numel()
    return math.sqrt(squares / elements)
