"""`Buckets`: samples that come in batches of about one length; `plan/order/bucketed_order.py` orders them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Buckets:
    """The lengths of the chosen samples, and how many make a batch and a pool.

    Attributes
    ----------
    lengths
        The length of each chosen sample, in the order of the array, shape (samples,).
    batch_size
        Samples of a batch of all ranks.
    pool
        Batches of a pool, whose samples are sorted by length.
    """

    lengths: npt.NDArray[Any]
    batch_size: int
    pool: int

    #: The words of messages for such samples.
    noun: ClassVar[str] = "samples in buckets"
    state: ClassVar[str] = "bucketed by length"
    how: ClassVar[str] = "in buckets"
    verb: ClassVar[str] = "bucket"
    advice: ClassVar[str] = "call bucket_by_length() last of what chooses samples"

    @property
    def total(self) -> int:
        """Samples of an epoch."""
        return len(self.lengths)

    @property
    def pool_rows(self) -> int:
        """Samples of a pool."""
        return self.pool * self.batch_size

    @cached_property
    def digest(self) -> str:
        """The number of samples of an epoch, and a hash that tells buckets apart."""
        hashed = hashlib.sha256(f"buckets {self.batch_size} {self.pool}".encode())
        hashed.update(np.ascontiguousarray(self.lengths, dtype="<f8").tobytes())
        return f"{self.total} ({hashed.hexdigest()[:16]})"

    def row(self) -> tuple[str, str]:
        """Return a row of a page for people."""
        return "buckets", f"batches of {self.batch_size} samples of about one length, from pools of {self.pool} batches"
