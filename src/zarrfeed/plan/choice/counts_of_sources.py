"""`CountsOfSources`: the expected counts of the samples of several sources of a mixture."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.samples.sample_set import Int64


@dataclass(frozen=True, eq=False)
class CountsOfSources:
    """The expected counts of the samples of several sources, some of which have weights.

    Attributes
    ----------
    sources
        The expected counts of each source; None for one without weights, and the starts of one of random crops.
    """

    sources: tuple[ExpectedCounts | CropStarts | None, ...]

    @property
    def weighted(self) -> list[ExpectedCounts]:
        """The expected counts of those that have weights."""
        return [one for one in self.sources if isinstance(one, ExpectedCounts)]

    @cached_property
    def shares(self) -> Int64:
        """The shares of all sources that have weights, one after another."""
        return np.concatenate([one.shares for one in self.weighted])

    @cached_property
    def digest(self) -> str:
        """The number of samples of a pass over each source, and a hash."""
        hashed = hashlib.sha256(" ".join(one.digest for one in self.weighted).encode()).hexdigest()
        return f"{sum(one.total for one in self.weighted)} ({hashed[:16]})"

    def with_shares(self, shares: Int64) -> CountsOfSources:
        """Return the expected counts of the same samples in other shares."""
        ends = np.cumsum([len(one.shares) for one in self.weighted])
        left = iter(np.split(shares, ends[:-1]))
        made = (one.with_shares(next(left)) if isinstance(one, ExpectedCounts) else one for one in self.sources)
        return CountsOfSources(tuple(made))

    def changed(self, source: int, weights: npt.NDArray[Any]) -> CountsOfSources:
        """Return the expected counts with other weights of a source.

        Raises
        ------
        ConfigError
            If the source has no weights, or as many others, or weights are wrong; or if a sample begins to come, or
            never comes any more: passes span epochs, and all of them have blocks of the same samples.
        """
        own = self.sources[source] if 0 <= source < len(self.sources) else None
        if not isinstance(own, ExpectedCounts):
            raise ConfigError(f"weights of source {source}, which has none: call weight() before zarrfeed.mix()")
        if weights.shape != own.shares.shape:
            raise ConfigError(
                f"weights of source {source} have the shape {weights.shape}, must be ({len(own.shares)},): one for "
                "each of its chosen samples"
            )
        made = ExpectedCounts.of(weights, own.total)
        others = np.flatnonzero((made.shares > 0) != (own.shares > 0))
        if len(others):
            raise ConfigError(
                f"weights of source {source}: sample {others[0]} has {weights[others[0]]}; weights of a mixture must "
                "be 0 where they were, and above 0 elsewhere, as passes under way have samples that come"
            )
        return CountsOfSources((*self.sources[:source], made, *self.sources[source + 1 :]))
