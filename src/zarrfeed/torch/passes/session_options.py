"""Options by which a session reads its dataset, beside the schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zarrfeed.plan.shares.affinity import Affinity
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.torch.batches.batch import Batch, BatchAssembler
from zarrfeed.torch.ranks.distributed import RankFinder


@dataclass(frozen=True)
class SessionOptions:
    """Options by which a dataset is read, beside its schedule.

    Attributes
    ----------
    policy
        The error policy: the treatment of a chunk that cannot be read.
    ranks
        Finds the rank that reads.
    assembler
        Makes batches of the tensors of fields.
    transform
        Called with every batch; None: batches are handed out as they are.
    pin_memory
        If True, batches lie in page-locked memory. None: they do if there is an accelerator.
    affinity
        "node": each node reads the same part of the samples in every epoch. None: every rank reads of all samples.
    may_be_empty
        True if an epoch may have no batch at all, as in the library that a dataset takes the place of.
    """

    policy: Faults
    ranks: RankFinder
    assembler: BatchAssembler
    transform: Callable[[Batch], Any] | None
    pin_memory: bool | None
    affinity: Affinity | None = None
    may_be_empty: bool = False
