"""Figures that only some kinds of order have: of mixtures their sources, of patches their columns and decodes.

For weighted samples, it is the number of times that they come; for an order that the user gave, its windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch

from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.order.bucketed_order import BucketedOrder
from zarrfeed.plan.order.crop_order import CropOrder
from zarrfeed.plan.order.given_order import GivenOrder
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.weighted_order import WeightedOrder
from zarrfeed.plan.patches.mixed_patches import MixedPatches
from zarrfeed.plan.patches.patch_reads import mixed_reads, patch_reads
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.report.given_shares import GivenShares
from zarrfeed.report.patch_explanation import PatchExplanation
from zarrfeed.report.source_shares import SourceShares
from zarrfeed.report.weight_shares import WeightShares
from zarrfeed.spec.fields.field import Field


@dataclass(frozen=True)
class OrderFigures:
    """The figures that an epoch has because of the kind of its order.

    Attributes
    ----------
    sources
        The samples that the epoch takes of each source of a mixture; None without one.
    patches
        The patches, and the columns in which they are read; None if samples are no patches.
    weights
        The repetitions of weighted samples; None if samples have no weights.
    given
        The order that the user gave; None if there is none.
    crops
        The recordings that random crops are drawn of; None if samples are no random crops.
    reads
        For each array that patches are cut out of: the number of chunks that are decoded, and of all chunks. None:
        reads follow from the blocks of the plan.
    """

    sources: SourceShares | None = None
    patches: PatchExplanation | None = None
    weights: WeightShares | None = None
    given: GivenShares | None = None
    crops: CropStarts | None = None
    reads: Sequence[tuple[int, int]] | None = None

    @property
    def have_own_blocks(self) -> bool:
        """True if blocks of rows, and lanes of these, say nothing of how often chunks are decoded."""
        repeats = any(one is not None and one.repeats_blocks for one in (self.weights, self.sources))
        return repeats or self.patches is not None or self.given is not None


@singledispatch
def figures_of(order: Order, plan: EpochPlan, fields: Sequence[Field], keep_bytes: int) -> OrderFigures:
    """Return the figures of an epoch whose plan is given, with so much memory for chunks that are kept."""
    del order, plan, fields, keep_bytes
    return OrderFigures()


@figures_of.register
def _(order: MixedOrder, plan: EpochPlan, fields: Sequence[Field], keep_bytes: int) -> OrderFigures:
    del fields, keep_bytes
    return OrderFigures(sources=SourceShares.of(order, plan.epoch))


@figures_of.register
def _(order: MixedPatches, plan: EpochPlan, fields: Sequence[Field], keep_bytes: int) -> OrderFigures:
    del keep_bytes
    reads, patches = mixed_reads(order, plan.epoch, fields, plan.stride), PatchExplanation.of_sources(order)
    return OrderFigures(sources=SourceShares.of(order, plan.epoch), patches=patches, reads=reads)


@figures_of.register
def _(order: SweptOrder, plan: EpochPlan, fields: Sequence[Field], keep_bytes: int) -> OrderFigures:
    reads = patch_reads(order, plan.epoch, fields, plan.stride, keep_bytes)
    return OrderFigures(patches=PatchExplanation.of(order), reads=reads)


@figures_of.register
def _(order: WeightedOrder, plan: EpochPlan, fields: Sequence[Field], keep_bytes: int) -> OrderFigures:
    del plan, fields, keep_bytes
    return OrderFigures(weights=WeightShares.of(order))


@figures_of.register
def _(order: CropOrder, plan: EpochPlan, fields: Sequence[Field], keep_bytes: int) -> OrderFigures:
    del plan, fields, keep_bytes
    return OrderFigures(crops=order.expected)


@figures_of.register
def _(order: BucketedOrder, plan: EpochPlan, fields: Sequence[Field], keep_bytes: int) -> OrderFigures:
    del fields, keep_bytes
    verdict = "shuffles batches of about one length" if order.permutes else "keeps an order in each pool of batches"
    words = {"verdict": verdict, "said": order.buckets.row()[1], "remedy": ""}
    return OrderFigures(given=GivenShares.of(order, plan, **words))


@figures_of.register
def _(order: GivenOrder, plan: EpochPlan, fields: Sequence[Field], keep_bytes: int) -> OrderFigures:
    del fields, keep_bytes
    return OrderFigures(given=GivenShares.of(order, plan))
