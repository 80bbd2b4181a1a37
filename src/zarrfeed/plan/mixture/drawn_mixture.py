"""The order of a mixture of which sources are weighted, or random crops: each pass has the samples that it draws.

Invariants, beside those of any mixture whose passes have blocks of their own (`pass_mixture.py`):

- **Draws.** Pass j over a source draws its samples as epoch j of a weighted order does, or of random crops, by the key
  of the source (`plan/order/weighted_blocks.py`, `plan/order/crop_order.py`). Any other source draws each sample once.
- **Lanes.** Lanes, mix and strip of a source are bound by its blocks with each sample once, as passes differ in their
  blocks. In a pass of fewer blocks, mix and strip are at most their number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.mixture.blend import Blend
from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.mixture.pass_mixture import PassMixture
from zarrfeed.plan.mixture.source_lanes import SourceLanes
from zarrfeed.plan.order.crop_order import CropBlocks
from zarrfeed.plan.order.drawn_order import DrawnBlocks
from zarrfeed.plan.order.keyed_random import key_of
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.weighted_blocks import MOST_VISITS, WeightedBlocks, in_blocks
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.samples.held_blocks import ListedBlocks
from zarrfeed.plan.samples.sample_set import SampleSet
from zarrfeed.plan.samples.selection import Selection

#: Purpose of the key of the counts.
_COUNTS = 0x636F756E7473


@dataclass(frozen=True, kw_only=True)
class PassOrder(Order, unfolds=True):
    """The order of one pass over a source; `selection` has the samples that it draws, as often as they come.

    Attributes
    ----------
    most_rows
        Samples of a block of any pass, at most.
    """

    most_rows: int

    @property
    def reads(self) -> Selection | None:
        """The samples that are read, in the blocks of the order."""
        return self.selection

    @property
    def max_rows(self) -> int:
        """Samples of a block, at most, in any pass."""
        return self.most_rows


@dataclass(frozen=True, eq=False)
class DrawnPasses:
    """The samples of the passes that an epoch touches.

    Attributes
    ----------
    reads
        The samples of all passes, one after another.
    begin
        (source, pass) -> the held index of its first block.
    end
        The same for the end of its blocks.
    """

    reads: Selection
    begin: dict[tuple[int, int], int]
    end: dict[tuple[int, int], int]

    @classmethod
    def of(cls, passes: Sequence[tuple[tuple[int, int], Selection]]) -> DrawnPasses:
        """Put the samples of passes one after another."""
        lengths = np.array([len(one.held) for _, one in passes])
        ends = np.cumsum(lengths).tolist()
        before = np.cumsum([0, *(one.length for _, one in passes)]).tolist()
        held = ListedBlocks(
            np.concatenate([one.blocks for _, one in passes]),
            np.concatenate([one.rows for _, one in passes]),
            np.concatenate([one.first + base for (_, one), base in zip(passes, before, strict=False)]),
        )
        samples = SampleSet("list", (np.concatenate([one.listed() for _, one in passes]),))
        names = [name for name, _ in passes]
        begins = (np.array(ends) - lengths).tolist()
        return cls(
            Selection(held, samples=samples), dict(zip(names, begins, strict=True)), dict(zip(names, ends, strict=True))
        )


class _Cache:
    """The blocks of sources, of orders that differ in lanes alone, and the passes of the epoch that was drawn last."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] = ()
        self._blocks: tuple[DrawnBlocks, ...] = ()
        self._passes: tuple[tuple[tuple[int, int], ...], DrawnPasses] | None = None

    def __reduce__(self) -> tuple[type[_Cache], tuple[()]]:
        return _Cache, ()  # another process draws them anew

    def blocks(self, order: DrawnMixture) -> tuple[DrawnBlocks, ...]:
        """Return the blocks that each source of an order draws from."""
        key = order.drawn_by
        if key != self._key or not self._blocks:
            self._key, self._blocks, self._passes = key, tuple(order.new_blocks()), None
        return self._blocks

    def passes(self, order: DrawnMixture) -> DrawnPasses:
        """Return the passes that an order's epoch touches."""
        blocks, wanted = self.blocks(order), order.touched
        if self._passes is None or self._passes[0] != wanted:
            self._passes = wanted, DrawnPasses.of([(one, blocks[one[0]].draw(one[1])) for one in wanted])
        return self._passes[1]


@dataclass(frozen=True, kw_only=True)
class DrawnMixture(PassMixture):
    """The epoch order of a mixture with sources that are drawn, in one epoch; `selection` has each sample once.

    Attributes
    ----------
    expected
        For each source, the expected counts of its samples in a pass, or the recordings that they are starts in.
    """

    expected: tuple[ExpectedCounts | CropStarts, ...] = field(compare=False, repr=False)
    _cache: _Cache = field(default_factory=_Cache, compare=False, repr=False)

    @classmethod
    def drawing(cls, order: Order, blend: Blend, *, lanes: int | None, mix: int | None) -> DrawnMixture:
        """Return the order of a mixture with sources that are drawn; samples without a weight never come.

        Raises
        ------
        ConfigError
            If a source has no sample, or crops are of several sample dimensions.
        """
        plain = MixedOrder.of(order, blend, lanes=None, mix=None)
        whole, begins, expected = plain.each_once, plain.source_begin, list[ExpectedCounts | CropStarts]()
        for one, length, begin, end in zip(blend.expected, plain.lengths, begins, begins[1:], strict=False):
            if isinstance(one, CropStarts):
                one.check_samples(whole)
                expected.append(one)
            else:
                counts = ExpectedCounts.of(np.ones(length), length) if one is None else one
                expected.append(in_blocks(counts, whole.at(np.arange(begin, end))))
        if all((one.shares > 0).all() for one in expected if isinstance(one, ExpectedCounts)):
            chosen = whole
        else:
            some = [
                one.shares > 0 if isinstance(one, ExpectedCounts) else np.ones(length, bool)
                for one, length in zip(expected, plain.lengths, strict=True)
            ]
            remaining = np.sort(whole.listed()[np.concatenate(some)])
            chosen = Selection.of_samples(remaining, order.block_rows, order.edges)
            expected = [
                one.taken(np.flatnonzero(one.shares)) if isinstance(one, ExpectedCounts) else one for one in expected
            ]
        named = {one.name: getattr(order, one.name) for one in dataclasses.fields(order)}
        made = cls(
            **{**named, "selection": chosen, "lanes": 1, "mix": 1},
            blend=blend,
            expected=tuple(expected),
        )
        fitting = made.with_sources([SourceLanes(lanes or 1, mix or 1, 1)] * blend.num_sources)
        assert isinstance(fitting, cls)
        return fitting

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    # Samples

    @property
    def drawn_by(self) -> tuple[Any, ...]:
        """All that the samples of a pass depend on, beside weights, source and pass."""
        return self.seed, self.shuffle, self.block_rows, self.slabs, id(self.selection)

    def new_blocks(self) -> list[DrawnBlocks]:
        """Return the blocks that each source draws from."""
        made: list[DrawnBlocks] = []
        for source, (one, begin, end) in enumerate(
            zip(self.expected, self.source_begin, self.source_begin[1:], strict=False)
        ):
            samples, seed = self._chosen.at(np.arange(begin, end)), key_of(_COUNTS, self.source_seed(source))
            if isinstance(one, CropStarts):
                made.append(CropBlocks(samples, one, seed))
            else:
                made.append(WeightedBlocks.visiting(samples, one, seed, MOST_VISITS if self.shuffle else 1))
        return made

    @property
    def blocks(self) -> tuple[DrawnBlocks, ...]:
        """The blocks that each source draws from."""
        return self._cache.blocks(self)

    @cached_property
    def reads(self) -> Selection:
        """The samples of the passes that the epoch touches, each as often as it comes."""
        return self._cache.passes(self).reads

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The samples of a pass over each source."""
        return tuple(one.total for one in self.expected)

    @cached_property
    def max_rows(self) -> int:
        """Samples of a block, at most, in any epoch."""
        return max(one.max_rows for one in self.blocks)

    @property
    def selected_bytes(self) -> int:
        """Bytes that the samples, their weights and those of an epoch take."""
        return super().selected_bytes + self.reads.nbytes + sum(one.nbytes for one in self.expected)

    @property
    def by_block(self) -> Order:
        """The mixture of the same samples without weights, by whose blocks samples are found, counted and replaced."""
        named = {one.name: getattr(self, one.name) for one in dataclasses.fields(MixedOrder)}
        return MixedOrder(**named).with_sources(self.sources)

    def pass_order(self, source: int, number: int) -> tuple[Order, int]:
        """Return the order of a pass over a source, and the held index of its first block."""
        drawn, lanes = self._cache.passes(self), self.sources[source]
        begin, end = drawn.begin[source, number], drawn.end[source, number]
        plain = {one.name: getattr(self, one.name) for one in dataclasses.fields(Order)}
        fitting = lanes._replace(mix=min(lanes.mix, end - begin), strip=min(lanes.strip, end - begin))
        order = PassOrder(
            **{
                **plain,
                **fitting._asdict(),
                "selection": drawn.reads.at(np.arange(begin, end)),
                "seed": self.source_seed(source),
                "row_seed": None,
            },
            most_rows=self.blocks[source].max_rows,
        )
        return order, begin

    def check_blocks(self, *, listed: bool, count: int | None = None) -> None:
        """Raise ConfigError if there are more blocks, each counted once, than a plan may list."""
        super().check_blocks(listed=listed, count=len(self._chosen.held) if count is None else count)

    @property
    def _chosen(self) -> Selection:
        return self.each_once

    def weighted_visits(self, source: int) -> tuple[float, float] | None:
        """Return for a weighted source how often a pass has its most frequent sample, and reads a block; else None."""
        expected = self.expected[source]
        if self.blend.expected[source] is None or isinstance(expected, CropStarts):
            return None
        blocks = self.orders[source].blocks_at(np.arange(self.orders[source].num_blocks))
        return expected.most, len(blocks) / len(np.unique(blocks))

    # States

    def describe(self) -> dict[str, Any]:
        """Return the terms that the order of the epochs depends on, as JSON."""
        return {**super().describe(), "weights": [one.digest for one in self.expected]}
