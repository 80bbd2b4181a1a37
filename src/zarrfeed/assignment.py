"""Who reads what: a consumer is one (rank, DataLoader worker) pair and takes a stride of the line."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed
import torch.utils.data


@dataclass(frozen=True)
class Consumer:
    """One reader of the line.

    Consumer v of S = world_size * num_workers takes positions v, v + S, v + 2 S, ... with
    v = rank + world_size * worker.
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1

    @property
    def first(self) -> int:
        """The first position of this consumer."""
        return self.rank + self.world_size * self.worker

    @property
    def stride(self) -> int:
        """S, the number of consumers."""
        return self.world_size * self.num_workers

    def steps(self, num_samples: int) -> int:
        """Return how many samples this consumer takes.

        The tail that does not fill a round on every rank is dropped, so that no rank has one sample more.
        """
        usable = num_samples // self.world_size * self.world_size
        return max(0, -(-(usable - self.first) // self.stride))


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and world size from torch.distributed; (0, 1) where it is not initialised."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def worker_and_count() -> tuple[int, int]:
    """Return this process's DataLoader worker number and their count; (0, 1) outside of a worker."""
    info = torch.utils.data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
