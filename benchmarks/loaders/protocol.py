"""What every loader is to the benchmark: something that gives the batches of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import torch

#: A tensor of samples, or (samples, targets), each of shape (rows, ...).
Batch: TypeAlias = torch.Tensor | Sequence[torch.Tensor]


class Loader(Protocol):
    """One way to get shuffled batches out of a store.

    Attributes
    ----------
    samples_per_epoch
        How many `epoch` delivers. Fewer than the store has: a random part of an epoch, for loaders that are too slow
        to be timed on a whole one.
    settings
        What was chosen for this loader, for the record.
    """

    samples_per_epoch: int
    settings: dict[str, object]

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch; the order depends on its number."""
        ...

    def close(self) -> None:
        """End threads and worker processes."""
        ...


def fields_of(batch: Batch) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a batch: (samples,) or (samples, targets)."""
    return (batch,) if isinstance(batch, torch.Tensor) else tuple(batch)
