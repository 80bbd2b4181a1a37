"""`GivenSamples`: samples in an order that the user gives, in which they may repeat; 8 bytes each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core
from zarrfeed.plan.samples.sample_set import Int64, Samples, SampleSet, as_samples, distinct


@dataclass(frozen=True, eq=False)
class GivenSamples(SampleSet):
    """Samples by their indices in the array, in the order of the user; there are some.

    They are listed and looked up by their positions in that order. Ranks of samples have no meaning here.

    Examples
    --------
    >>> given = GivenSamples.of(np.array([5, 3, 3]))
    >>> len(given), list(given), list(given.each_once), list(given.taken(np.array([2, 0])))
    (3, [5, 3, 3], [3, 5], [3, 5])
    """

    @classmethod
    def of(cls, samples: Int64) -> Self:
        """Return samples in the order in which they are listed."""
        return cls("given", (np.ascontiguousarray(samples, dtype=np.int64),))

    @cached_property
    def table(self) -> core.SampleTable:
        """The samples in the form that the engine takes; it borrows the array."""
        return core.SampleTable.of_list(self.arrays[0], ascends=False)

    @property
    def each_once(self) -> Samples:
        """The samples, ascending and each once."""
        return as_samples(distinct(self.listed()))

    def taken(self, positions: npt.NDArray[np.integer]) -> Self:
        """Return the samples at some positions, in the order of these."""
        return type(self).of(self.arrays[0][positions])
