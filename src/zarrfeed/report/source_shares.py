"""`SourceShares`: the samples that an epoch of a mixture takes of each of its sources, in a few lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zarrfeed.base.page import Row
from zarrfeed.metadata.patches.store_table import StoreTable
from zarrfeed.plan.budget.mixing import perfect_mix
from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.mixture.mixed_order import MixedOrder

#: Up to so many sources are listed one by one.
_LISTED_SOURCES = 12


@dataclass(frozen=True)
class SourceShare:
    """One source of a mixture.

    Attributes
    ----------
    length
        Number of samples of a pass over the source.
    taken
        Number of samples that an epoch takes of the source, over all ranks; more than `length` if samples are repeated.
    num_blocks, lanes, mix
        The number of blocks, the lanes and the mix of a pass over the source.
    """

    length: int
    taken: int
    num_blocks: int
    lanes: int
    mix: int

    @property
    def passes(self) -> float:
        """Number of times that an epoch reads the source."""
        return self.taken / self.length


@dataclass(frozen=True)
class WeightedShare(SourceShare):
    """A weighted source of a mixture.

    Attributes
    ----------
    most, visits
        Average number of times that the most frequent sample comes in a pass, and that a pass reads a block.
    """

    most: float
    visits: float


@dataclass(frozen=True)
class SourceShares:
    """The sources of a mixture, as an epoch takes them.

    Attributes
    ----------
    order
        The order of the mixture.
    epoch
        The epoch, counted from 0; it matters if weights change.
    sources
        The share of each source.
    """

    order: MixedOrder
    epoch: int
    sources: tuple[SourceShare, ...]

    @property
    def repeats_blocks(self) -> bool:
        """True if a pass over a weighted source reads blocks again, so that samples do not come again side by side."""
        return any(isinstance(one, WeightedShare) and one.visits > 1 for one in self.sources)

    @classmethod
    def of(cls, order: MixedOrder, epoch: int) -> SourceShares:
        """Count the samples that an epoch of a mixture takes of each source."""
        begin, end = (order.source_ends(order.begin_of(one)) for one in (epoch, epoch + 1))
        sources: list[SourceShare] = []
        for source, (one, before, after) in enumerate(zip(order.orders, begin, end, strict=True)):
            taken, visits = (after.taken - before.taken) * order.unit, order.weighted_visits(source)
            figures = one.length, taken, one.num_blocks, one.lanes, one.mix
            sources.append(WeightedShare(*figures, *visits) if visits else SourceShare(*figures))
        return cls(order, epoch, tuple(sources))

    def perfect_mix(self, batch_size: int) -> float:
        """Return the number of distinct blocks that a batch would draw from if each source were shuffled perfectly."""
        taken = np.array([one.taken for one in self.sources])
        shares = taken / taken.sum()
        if self.order.is_per_batch:
            return float(
                sum(share * perfect_mix(one, batch_size) for share, one in zip(shares, self.order.orders, strict=True))
            )
        drawn = np.rint(shares * batch_size).astype(int).tolist()
        return sum(perfect_mix(one, count) for count, one in zip(drawn, self.order.orders, strict=True) if count)

    def rows(self, stores: StoreTable | None) -> list[Row]:
        """Return the rows of a page; `stores` has the names of the sources."""
        if len(self.sources) == 1:
            return self._rows_of_one(self.sources[0])
        blend, total = self.order.blend, sum(one.taken for one in self.sources)
        of_batch = "a batch is of one source" if self.order.is_per_batch else "a batch has samples of all"
        stop = f"after {blend.stop} samples" if isinstance(blend.stop, int) else f'by stop = "{blend.stop}"'
        rows = [("mixture", f"of {len(self.sources)} sources; {of_batch}; an epoch ends {stop}")]
        if blend.changes:
            epoch = f"below are the shares of epoch {self.epoch}"
            rows.append(("", f"weights change {_times(len(blend.changes))}: {epoch}"))
        for number, one in enumerate(self.sources[:_LISTED_SOURCES]):
            what = f"{one.taken} of {one.length} samples" if one.taken < one.length else f"{one.length} samples"
            often = f", {one.passes:.3g} times" * (one.taken > one.length)
            share = f"{100 * one.taken / total:.3g} %"
            rows.append(("", f"{self._name(number, stores)}: {share}, {what} an epoch{often}"))
            rows.append(("", f"  {one.num_blocks} blocks in {one.lanes} lanes, mix {one.mix}"))
            drawn = blend.expected[number] if blend.expected else None
            if isinstance(drawn, CropStarts):
                rows.append(("", f"  random crops: {drawn.shares} in a pass"))
            if isinstance(one, WeightedShare):
                most = f"the most frequent sample comes {one.most:.3g} times in a pass"
                rows.append(("", f"  weighted: {most}, which reads a block {one.visits:.2f} times"))
        if len(self.sources) > _LISTED_SOURCES:
            rows.append(("", f"and {len(self.sources) - _LISTED_SOURCES} others"))
        return rows

    def _rows_of_one(self, one: SourceShare) -> list[Row]:
        often = (
            f"{one.passes:.3g} passes over" if one.taken > one.length else f"{100 * one.passes:.3g} % of a pass over"
        )
        goes_on = "the next one goes on where it ends"
        return [
            ("epoch", f"{one.taken} samples, {often} {one.length}; {goes_on}"),
            ("", f"{one.num_blocks} blocks in {one.lanes} lanes, mix {one.mix}"),
        ]

    def _name(self, source: int, stores: StoreTable | None) -> str:
        if stores is None:
            return f"source {source}"
        begin, end = np.searchsorted(stores.first[:-1], self.order.blend.first[source : source + 2]).tolist()
        more = end - begin - 1
        others = f" and {more} more store{'s' * (more > 1)}" * (more > 0)
        return f"{source}, {stores.names[begin]}{others}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
