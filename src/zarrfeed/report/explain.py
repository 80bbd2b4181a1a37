"""`dataset.explain()`: the chunks that an epoch reads, how often, with how much memory, and how well it shuffles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.base.page import Page, Row
from zarrfeed.base.units import format_bytes
from zarrfeed.metadata.description.slab_choice import known_grains
from zarrfeed.plan.budget.memory import MemoryPlan
from zarrfeed.plan.budget.mixing import perfect_mix
from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.samples.left_out import LeftOut
from zarrfeed.plan.samples.split_part import SplitPart
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.shuffle_measure import ShuffleMeasure, measure_shuffle
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.affinity import Part
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.report.cache_forecast import CacheExplanation, explain_cache
from zarrfeed.report.explain_field import FieldReading, cast_advice, explain_field
from zarrfeed.report.field_explanation import FieldExplanation
from zarrfeed.report.field_reads import reads_of_fields, sharing_memory
from zarrfeed.report.given_shares import GivenShares
from zarrfeed.report.order_figures import figures_of
from zarrfeed.report.patch_explanation import PatchExplanation
from zarrfeed.report.rank_sharing import RankSharing
from zarrfeed.report.shuffle_advice import FindAlternatives, memory_of_good, no_alternatives, remedy_of
from zarrfeed.report.source_shares import SourceShares
from zarrfeed.report.store_shares import StoreShares
from zarrfeed.report.verdict import remedy_of_field, verdict
from zarrfeed.report.weight_shares import WeightShares
from zarrfeed.spec.fields.field import (
    BlockKind,
    FieldSet,
)
from zarrfeed.spec.fields.static import StaticField

#: The quality of the shuffle is measured on the first batches of the epoch.
_SAMPLED_BATCHES = 32

#: (blocks are permuted, rows in them are permuted) -> the order in words.
_ORDERS = {
    (True, True): "shuffled",
    (False, False): "in order",
    (True, False): "blocks shuffled, rows in order",
    (False, True): "blocks in order, rows shuffled",
}


@dataclass(frozen=True, repr=False)
class Explanation(Page):
    """One consumer's reading of a dataset. `str()`, `repr()` and notebooks show a page.

    `primary` is the name of the field whose chunks (or shards, as `block` says) make the blocks; None if all fields are
    in memory. `left_out` counts the selected samples that are left out because of their windows.
    `dealt` counts the groups and classes in the part of a split, if the split was made by these.
    `cache` is the forecast of the node cache; None if there is none.
    `statics` are the arrays of `Data.static`, which are the same for all samples.
    `stores` counts the samples of each of several stores; None for a single store, or for a join.
    `sources` counts the samples that the epoch takes of each source of a mixture; None without a mixture. In a mixture,
    `lanes` counts the lanes of all sources.
    `weights` counts the repetitions of weighted samples; None without weights. Each visit of a block counts in
    `num_blocks`.
    `crops` are the recordings that random crops are drawn of; None without crops.
    `given` counts the samples of an order that the user gave; None without one.
    `patches` describes the boxes of arrays that are samples, and the columns in which they are read; None without
    patches.
    `sharing` is the number of ranks that decode each chunk because of the lanes; `resumed` the same for a resumed
    epoch.
    `shuffling` measures the shuffle; None if rows keep their order, or samples are patches. `remedy` has the options
    that would mix an order that hardly shuffles, or the memory that would mix it well if the user named none.
    `slab_rows` are the rows of a block that is a slab of a chunk, or 0.
    Of the selected samples, `num_in_part` are dealt to the node of this consumer, which is `node` of `num_nodes`.

    Examples
    --------
    >>> import numpy as np, zarr, zarrfeed
    >>> dataset = zarrfeed.ZarrIterableDataset(zarr.array(np.arange(100.0), chunks=(10,)), batch_size=20)
    >>> explanation = dataset.explain()
    >>> explanation.num_blocks, explanation.fields[0].amplification
    (10, 1.0)
    """

    num_samples: int
    num_selected: int
    steps: int
    batch_size: int
    shuffle: bool
    shuffle_rows: bool
    num_blocks: int
    block_rows: int
    lanes: int
    mix: int
    strip: int
    primary: str | None
    block: BlockKind
    fields: tuple[FieldExplanation, ...]
    memory: MemoryPlan
    max_open_batches: int
    pinned: bool
    chunks_per_batch: float
    ideal_chunks_per_batch: float
    left_out: tuple[LeftOut, ...] = ()
    dealt: SplitPart | None = None
    cache: CacheExplanation | None = None
    num_in_part: int = 0
    node: int = 0
    num_nodes: int = 1
    statics: tuple[StaticField, ...] = ()
    stores: StoreShares | None = None
    sources: SourceShares | None = None
    weights: WeightShares | None = None
    crops: CropStarts | None = None
    given: GivenShares | None = None
    patches: PatchExplanation | None = None
    sharing: RankSharing | None = None
    resumed: RankSharing | None = None
    shuffling: ShuffleMeasure | None = None
    remedy: str = ""
    slab_rows: int = 0

    @property
    def num_threads(self) -> int:
        """Decode threads."""
        return self.memory.num_threads

    @property
    def memory_bytes(self) -> int:
        """Most memory that is used at once, in bytes, but for batches that the user holds."""
        return self.memory.budget - self.memory.batch_room + self.max_open_batches * self.memory.batch_bytes

    def _verdict(self) -> str:
        swept = self.patches is not None and self.shuffle and self.ideal_chunks_per_batch > 0
        otherwise = "keeps an order"
        if self.given is not None:
            otherwise = self.given.verdict
        elif swept:
            layers = min(1.0, self.chunks_per_batch / self.ideal_chunks_per_batch)
            otherwise = f"shuffles columns of patches, {layers:.0%} of the layers that a perfect shuffle draws from"
        return verdict(
            self.fields,
            self.memory,
            self.memory_bytes,
            self.shuffling,
            otherwise=otherwise,
            mixes_better=bool(self.remedy),
        )

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        memory = self.memory
        selected = f"{self.num_selected} selected, " * (self.num_selected < self.num_samples)
        where = "patches in this epoch" if self.patches is not None else "in the array"
        rows = [
            ("verdict", self._verdict()),
            (
                "samples",
                f"{self.num_samples} {where}, {selected}{self.steps} delivered in batches of {self.batch_size}",
            ),
            *(("", str(reason)) for reason in self.left_out),
            *([("split", str(self.dealt))] if self.dealt is not None else []),
        ]
        if self.patches is not None:
            rows += self.patches.rows()
        if self.sources is not None:
            rows += self.sources.rows(None if self.stores is None else self.stores.table)
        if self.weights is not None:
            rows += self.weights.rows()
        if self.crops is not None:
            rows.append(self.crops.row())
        if self.stores is not None and (self.sources is None or len(self.stores.selected) > len(self.sources.sources)):
            rows += self.stores.rows()
        if self.num_nodes > 1:
            part = f"its part has {self.num_in_part} samples, the same in every epoch"
            rows.append(("node", f"{self.node} of {self.num_nodes}, counted from 0: {part}"))
        for f in self.fields:
            rows += f.rows(of_stores=self.stores is None)
        rows += [(one.name, str(one)) for one in self.statics]
        has_sparse = any(f.is_sparse for f in self.fields)
        kinds = {
            "chunks of text": any(f.item_type and not f.images for f in self.fields),
            "chunks of images": any(f.images for f in self.fields),
            "cached chunks of sparse matrices": has_sparse,
        }
        cached = " and ".join(kind for kind, is_there in kinds.items() if is_there)
        order = _ORDERS[self.shuffle, self.shuffle_rows]
        some = bool(selected) or self.num_nodes > 1 or self.weights is not None or self.crops is not None
        blocks = f"{self.num_blocks} blocks of {'up to ' * some}{self.block_rows} samples"
        lanes = f" in {self.lanes} lanes" + f", mix {self.mix}" * (self.sources is None)
        rows += [("order", f"{order}: {blocks}{lanes}")] if self.given is None else self.given.rows(self.fields)
        rows += [] if self.sharing is None else self.sharing.rows()
        rows += [] if self.resumed is None else self.resumed.rows("in the epoch that goes on ")
        shared = "strips" if self.patches is None else "columns"
        if self.strip > 1:
            rows.append(("", f"strips of {self.strip} neighbouring blocks stay together, since they share chunks"))
        if self.patches is not None:
            rows.append(("", "blocks are layers of columns"))
        elif self.primary is None:
            rows.append(("", "blocks are runs of samples, as all fields are in memory"))
        elif self.slab_rows:
            rows.append(("", f"blocks are slabs of the {self.block}s of {self.primary}"))
        elif self.primary != "samples" or self.block == "shard":
            rows.append(("", f"blocks are the {self.block}s of {self.primary}"))
        rows += [
            ("mixing", f"a batch draws from {self.chunks_per_batch:.1f} distinct blocks"),
            ("", f"a batch of a perfect shuffle would draw from {self.ideal_chunks_per_batch:.1f}"),
            *([("", str(self.shuffling))] if self.shuffling is not None else []),
            *([("", f"remedy: {self.remedy}")] if self.remedy else []),
            ("memory", f"at most {format_bytes(self.memory_bytes)} of a budget of {format_bytes(memory.budget)}:"),
            (
                "",
                f"{self.max_open_batches} open batches of {format_bytes(memory.batch_bytes)}"
                + " (pinned)" * self.pinned,
            ),
            ("", f"{format_bytes(memory.scratch_bytes)} to decode, {format_bytes(memory.fetch_bytes)} to fetch,"),
            ("", f"{format_bytes(memory.resident_bytes)} of resident fields{' and indptr' * has_sparse}"),
            *([("", f"{format_bytes(memory.plan_bytes)} for the plan of an epoch")] if memory.plan_bytes else []),
            *([("", f"{format_bytes(memory.index_bytes)} for indices of shards")] if memory.index_bytes else []),
            *([("", f"{format_bytes(memory.carry_bytes)} for chunks that blocks share")] if memory.carry_bytes else []),
            *([("", f"{format_bytes(memory.keep_bytes)} for chunks that {shared} share")] if memory.keep_bytes else []),
            *([("", f"{format_bytes(memory.list_bytes)} for {cached}")] if memory.list_bytes else []),
            *([("", f"{format_bytes(memory.element_bytes)} to read chunks of sparse matrices")] * has_sparse),
            ("threads", f"{self.num_threads} decode"),
        ]
        if has_sparse:
            rows.append(("", f"{memory.element_threads} more decode chunks of sparse matrices, 1 copies their rows"))
        if memory.lacks_threads:
            rows.append(
                ("", f"as memory has no room for {memory.wanted_threads}: {format_bytes(memory.ample_budget)} has")
            )
        if memory.num_fetch_threads:
            rows.append(("", f"up to {memory.num_fetch_threads} fetch what is not in the page cache"))
        elif memory.reads_local:
            rows.append(("", "which wait for what is not in the page cache, as memory has no room for others"))
        if memory.max_requests:
            bound = "what memory allows" if memory.requests_bounded_by == "memory" else "what such a store is asked"
            asked = f"up to {memory.max_requests} chunks asked for at once in stores that are not local"
            rows.append(("", f"{asked}: {bound}"))
        return rows if self.cache is None else [*rows, *self.cache.rows()]


def explain(
    *,
    fields: FieldSet,
    plan: EpochPlan,
    batch_size: int,
    memory: MemoryPlan,
    max_open_batches: int,
    pinned: bool,
    part: Part | None = None,
    statics: tuple[StaticField, ...] = (),
) -> Explanation:
    """Work out the figures of an `Explanation` for the epoch of `plan`. Reads no data but the header of a Blosc chunk.

    `part` is what the order of the plan is of; None: of all samples.
    """
    order = plan.order
    part = part or Part.only(order)
    figures = figures_of(order, plan, fields.fields, memory.keep_bytes)
    sharing = sharing_memory(memory, batch_size, max_open_batches)
    grains = known_grains(fields) if figures.reads is None else ()
    sources, reads = figures.sources, reads_of_fields(fields.fields, plan, sharing, figures.reads, grains)
    per_batch, ideal = _shuffle_quality(plan, batch_size, sources)
    return Explanation(
        num_samples=order.num_samples,
        num_selected=part.whole.num_selected if sources is None else sum(one.length for one in sources.sources),
        steps=plan.steps,
        batch_size=batch_size,
        shuffle=order.shuffle,
        shuffle_rows=order.permutes_rows,
        num_blocks=order.by_block.num_blocks,
        block_rows=order.full_rows,
        slab_rows=0 if order.slabs is None else order.slabs.rows,
        lanes=order.lanes,
        mix=order.mix,
        strip=order.strip,
        primary=None if fields.primary is None else fields.fields[fields.primary].name,
        block=fields.block,
        fields=tuple(
            _with_remedy(
                explain_field(
                    f,
                    FieldReading(
                        plan=plan,
                        batch_size=batch_size,
                        memory=memory,
                        max_open_batches=max_open_batches,
                        reads=reads[i],
                        driven=fields if i == fields.primary else None,
                    ),
                ),
                str(f.stack or ""),
                None if figures.have_own_blocks else order,
                is_primary=i == fields.primary,
                cast_advice=cast_advice(f),
            )
            for i, f in enumerate(fields.fields)
        ),
        memory=memory,
        max_open_batches=max_open_batches,
        pinned=pinned,
        chunks_per_batch=per_batch,
        ideal_chunks_per_batch=ideal,
        left_out=() if order.selection is None else order.selection.left_out,
        dealt=None if order.selection is None else order.selection.dealt,
        cache=explain_cache(fields.fields, order),
        num_in_part=order.length,
        node=part.node,
        num_nodes=part.num_nodes,
        statics=statics,
        sources=sources,
        weights=figures.weights,
        crops=figures.crops,
        given=figures.given,
        patches=figures.patches,
        sharing=RankSharing.of(order, plan.stride) if order.length and plan.stride > 1 else None,
        shuffling=None if fields.are_objects else measure_shuffle(order),
    )


def _with_remedy(
    of: FieldExplanation, stacked: str, order: Order | None, *, is_primary: bool, cast_advice: str
) -> FieldExplanation:
    """Return the explanation of a field with the remedy for its chunks. `order` is None if its blocks are no rows."""
    remedy = ""
    if order is not None:
        remedy = remedy_of_field(of, is_primary=is_primary, lanes=order.lanes, strip=order.strip)
    return replace(of, stacked=stacked, remedy=remedy, cast_advice=cast_advice)


def explain_schedule(
    schedule: Schedule,
    rank_info: RankInfo,
    state: EpochState,
    *,
    pinned: bool,
    statics: tuple[StaticField, ...] = (),
    resumed: EpochState | None = None,
    alternatives: FindAlternatives = no_alternatives,
) -> Explanation:
    """Work out the figures of a rank's reads, without workers, in the epoch that begins in a state.

    `resumed` is the state in the middle of an epoch that the next pass goes on from, if it does. `alternatives` are the
    schedules with other options.
    """
    consumer = rank_info.consumer()
    settled = schedule.settle(state, consumer)
    resources = schedule.resources(schedule.order_of(settled), rank_info, consumer)
    plan = schedule.plan(settled, consumer, resources)
    explained = explain(
        fields=schedule.fields,
        plan=plan,
        part=schedule.part,
        batch_size=schedule.engine_batch_size,
        memory=resources.memory,
        max_open_batches=resources.max_open_batches,
        pinned=pinned,
        statics=statics,
    )
    asked = schedule, rank_info, explained.shuffling, alternatives
    explained = replace(explained, remedy=remedy_of(*asked) or memory_of_good(*asked))
    if resumed is None:
        return explained
    return replace(
        explained, resumed=RankSharing.of(schedule.order_of(schedule.settle(resumed, consumer)), plan.stride)
    )


def _shuffle_quality(plan: EpochPlan, batch_size: int, sources: SourceShares | None) -> tuple[float, float]:
    """Return distinct blocks per batch: measured on the first batches, and expected of a perfect shuffle."""
    order = plan.order
    steps = min(plan.steps, _SAMPLED_BATCHES * batch_size)
    if steps == 0:
        return 0.0, 0.0
    head = order.plan(plan.epoch, Portion(plan.strides.first, plan.stride, steps))
    blocks, _ = order.by_block.locate(core.sample_order(head.to_core()))
    batches = [blocks[i : i + batch_size] for i in range(0, steps, batch_size)]
    full = [b for b in batches if len(b) == batch_size] or batches
    measured = float(np.mean([len(np.unique(b)) for b in full]))
    return measured, perfect_mix(order.by_block, len(full[0])) if sources is None else sources.perfect_mix(len(full[0]))
