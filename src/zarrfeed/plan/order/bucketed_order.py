"""The kind of order that `bucket_by_length` asks for: each batch has samples of about one length.

Invariants, for batches of G samples of all ranks and pools of m batches:

1. The blocks are permuted by (seed, epoch), and their samples laid end to end. Each m G of these are a pool. A pool is
   sorted by length, equal ones at random, and cut into batches, which are permuted.
2. The last pool has what is left over. If that is no whole number of batches, the short batch is cut out of its sorted
   samples at a random place, and comes last in the epoch: so what `even="drop"` leaves out is of any length.
3. Without shuffling, blocks, equal samples and batches keep their order, and the short batch has the longest samples.

The positions of an epoch are a list, and what reads, deals and resumes a list that the user gave does so with this one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.choice.buckets import Buckets
from zarrfeed.plan.order.given_order import GivenOrder
from zarrfeed.plan.order.keyed_random import below, keys_of
from zarrfeed.plan.order.order import Order, Room
from zarrfeed.plan.order.order_state import OrderState
from zarrfeed.plan.order.remembered import Remembered
from zarrfeed.plan.samples.given_samples import GivenSamples
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.selection import Int64, Selection

#: Words of the keys, so that draws are apart.
_BLOCKS, _SAMPLES, _BATCHES, _SHORT = (0x6275636B657400 + number for number in range(4))


@dataclass(frozen=True, kw_only=True)
class BucketedOrder(GivenOrder):
    """The epoch order of samples in buckets, in one epoch; `given` has all samples, and `reads` those of the epoch.

    Attributes
    ----------
    buckets
        The lengths of the samples, the size of a batch and that of a pool.
    permutes
        True if blocks, equal samples and batches are permuted.
    """

    buckets: Buckets = field(compare=False, repr=False)
    permutes: bool = True
    _epochs: Remembered[GivenSamples] = field(default_factory=Remembered, compare=False, repr=False)

    @classmethod
    def bucketed(cls, order: Order, buckets: Buckets, *, permutes: bool) -> BucketedOrder:
        """Return the order of the samples of another order, which keeps their order, in buckets."""
        samples = order.uncut
        listed = samples.listed()
        if samples.are_boxes:  # which come box by box
            buckets = replace(buckets, lengths=buckets.lengths[np.argsort(np.argsort(listed))])
        plain = GivenOrder.of(order, GivenSamples.of(listed))
        named = {one.name: getattr(plain, one.name) for one in dataclasses.fields(plain)}
        return cls(**named, buckets=buckets, permutes=permutes)

    @cached_property
    def reads(self) -> Selection:
        """The samples of the epoch, in spans in the place of blocks."""
        samples = self._epochs.get(self.epoch, lambda: self.given.taken(self._positions()))
        return Selection(self._spans, samples=samples)

    def _positions(self) -> Int64:
        """Return the positions in `given` of the samples of the epoch, in their order."""
        buckets, key = self.buckets, (self.seed, self.epoch)
        rows = self.uncut.rows
        order = np.arange(len(rows))
        if self.permutes:
            order = np.argsort(keys_of(_BLOCKS, *key, order), kind="stable")
        positions = joined_ranges((np.cumsum(rows) - rows)[order], rows[order])
        pool = np.arange(len(positions)) // buckets.pool_rows
        tied = keys_of(_SAMPLES, *key, positions) if self.permutes else positions
        positions = positions[np.lexsort((tied, buckets.lengths[positions], pool))]
        size, (num_batches, rest) = buckets.batch_size, divmod(len(positions), buckets.batch_size)
        last = num_batches // buckets.pool * buckets.pool  # the first batch of the last pool
        before = num_batches
        if self.permutes and rest:
            before = last + int(below(keys_of(_SHORT, *key, 0), np.array([num_batches - last + 1]))[0])
        cut = slice(before * size, before * size + rest)
        batches = np.delete(positions, cut).reshape(num_batches, size)
        if self.permutes:
            number = np.arange(num_batches)
            batches = batches[np.lexsort((keys_of(_BATCHES, *key, number), number // buckets.pool))]
        return np.concatenate([batches.ravel(), positions[cut]])

    def typical_epoch(self, upcoming: int) -> int:
        """Return the epoch that comes next: epochs differ in their batches."""
        return upcoming

    def at(self, state: OrderState) -> BucketedOrder:
        """Return the order of a settled state's epoch."""
        return replace(self, epoch=state.epoch)

    def suit(self, room: Room, lanes: int | None, mix: int | None) -> GivenOrder:
        """Return the order with spans that suit the memory: whole pools, where these are shorter."""
        made = super().suit(room, lanes, mix)
        rows = max(made.span_rows // self.buckets.pool_rows * self.buckets.pool_rows, self.buckets.pool_rows)
        return made if made.span_rows < self.buckets.pool_rows else replace(made, span_rows=rows)

    def check_dealt(self) -> None:
        """Raise ConfigError: nodes would have buckets of their own."""
        raise ConfigError("affinity = 'node' is not for bucket_by_length: all nodes share the batches of one order")

    def describe(self) -> dict[str, Any]:
        """Describe all that the epoch order depends on, except for epoch and lanes, as JSON."""
        return {**self.by_block.describe(), "buckets": self.buckets.digest, "permutes": self.permutes}

    @property
    def shuffles(self) -> bool:
        """True if samples come in another order in each epoch."""
        return self.permutes

    @property
    def why_one_lane(self) -> str:
        """Why it has one lane."""
        return "batches follow the order of bucket_by_length"
