"""`CropStarts`: the samples that random crops of recordings may begin with (`plan/order/crop_order.py`)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.samples.selection import Int64, Selection


@dataclass(frozen=True, eq=False)
class CropStarts:
    """The chosen samples as starts of random crops; those of a recording follow each other.

    Attributes
    ----------
    ends
        Number of starts up to the end of each recording, ascending from above 0, shape (recordings,).
    each
        Crops of a recording in an epoch.
    expected
        The expected number of crops of each recording in an epoch, in place of `each`. None: there are no weights.

    Examples
    --------
    >>> starts = CropStarts(np.array([4, 5]), each=2)
    >>> starts.total, starts.begins.tolist()
    (4, [0, 4])
    """

    ends: Int64
    each: int = 1
    expected: ExpectedCounts | None = None

    #: The words of messages for such samples.
    noun: ClassVar[str] = "random crops"
    state: ClassVar[str] = "random crops"
    how: ClassVar[str] = "by random crops"
    verb: ClassVar[str] = "crop"
    advice: ClassVar[str] = "call random_crop() last of what chooses samples"

    @property
    def total(self) -> int:
        """Samples of an epoch."""
        return self.each * len(self.ends) if self.expected is None else self.expected.total

    @property
    def most(self) -> Int64:
        """The largest number of crops of each recording in an epoch, shape (recordings,)."""
        return np.full(len(self.ends), self.each) if self.expected is None else self.expected.ceilings

    def counts(self, seed: int, epoch: int) -> Int64:
        """Return the number of crops of each recording in an epoch, shape (recordings,)."""
        if self.expected is None:
            return self.most
        return self.expected.draw(np.array([len(self.ends)]), seed, epoch)

    @property
    def shares(self) -> str:
        """The crops of each recording, in words."""
        each = f"{self.each} of each" if self.expected is None else "by weights"
        return f"{each} of {len(self.ends)} recordings"

    @cached_property
    def begins(self) -> Int64:
        """Number of starts before those of each recording, shape (recordings,)."""
        return np.append(0, self.ends[:-1])

    @cached_property
    def digest(self) -> str:
        """The number of samples of an epoch, and a hash that tells starts apart."""
        hashed = hashlib.sha256(f"crops {self.each}".encode())
        hashed.update(self.ends.astype("<i8").tobytes())
        if self.expected is not None:
            hashed.update(self.expected.digest.encode())
        return f"{self.total} ({hashed.hexdigest()[:16]})"

    @property
    def nbytes(self) -> int:
        """Bytes that the recordings take."""
        return self.ends.nbytes

    def check_samples(self, samples: Selection) -> None:
        """Raise ConfigError if blocks are boxes of several sample dimensions, in which no recording is one run."""
        if samples.are_boxes:
            raise ConfigError("random_crop is for one sample dimension, and these samples have several")

    def row(self) -> tuple[str, str]:
        """Return a row of a page for people."""
        return "crops", f"{self.total} random crops an epoch, {self.shares}"
