"""`dataset.explain()`: what will be read, how often, with how much memory, and how well it is shuffled."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.base.page import Page, Row
from zarrfeed.base.units import format_bytes
from zarrfeed.engine.ahead import batches_ahead
from zarrfeed.engine.image_decoder import library_name
from zarrfeed.plan.budget.memory import MemoryPlan
from zarrfeed.plan.budget.mixing import perfect_mix
from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.order.carry import carries, chunk_reads, chunks_of_order
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.patches.columns import patch_reads
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.plan.samples.field_rows import describe_join
from zarrfeed.plan.samples.left_out import LeftOut
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.shuffle_measure import ShuffleMeasure, measure_shuffle
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.affinity import Part
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.report.cache_forecast import CacheExplanation, explain_cache
from zarrfeed.report.field_explanation import FieldExplanation, describe_codecs
from zarrfeed.report.patch_explanation import PatchExplanation
from zarrfeed.report.rank_sharing import RankSharing
from zarrfeed.report.shuffle_advice import remedy_of
from zarrfeed.report.source_shares import SourceShares
from zarrfeed.report.sparse_explain import explain_csr
from zarrfeed.report.store_shares import StoreShares
from zarrfeed.report.verdict import remedy_of_field, verdict
from zarrfeed.spec.field import (
    BlockKind,
    Field,
    FieldSet,
    ResidentField,
    StoredField,
    VlenField,
    described_dtype,
    dtype_name,
    has_patches,
    record_of,
    shape_of,
    stack_of,
    window_of,
)
from zarrfeed.spec.sparse import CsrField
from zarrfeed.spec.static import StaticField, is_channel
from zarrfeed.storage.chunks.blocking_reads import BlockingReads
from zarrfeed.storage.chunks.location import StoreSource

#: The quality of the shuffle is measured on the first batches of the epoch.
_SAMPLED_BATCHES = 32

#: Whether blocks, and rows in them, are permuted -> in words.
_ORDERS = {
    (True, True): "shuffled",
    (False, False): "in order",
    (True, False): "blocks shuffled, rows in order",
    (False, True): "blocks in order, rows shuffled",
}


_CARRIED = "; chunks that neighbouring blocks share are decoded once"


@dataclass(frozen=True, repr=False)
class Explanation(Page):
    """How one consumer reads a dataset. `str()`, `repr()` and notebooks show a page.

    `primary` is the name of the field whose chunks (or shards, as `block` says) make the blocks; None if all fields
    are in memory. `left_out` says which samples are not among those that are selected because of their windows.
    `cache` says what the node cache will do; None if there is none.
    `statics` are the arrays of `Data.static`, which are the same for all samples.
    `stores` says which samples each of several stores has; None for a single store, or for a join.
    `sources` says what the epoch takes of each source of a mixture; None for none. `lanes` is then that of all sources.
    `patches` says where the boxes of arrays lie that are samples, and in which columns they are read; None for none.
    `sharing` says how many ranks decode each chunk because of the lanes; `resumed` the same of an epoch that goes on.
    `shuffling` measures the shuffle; None if rows keep their order, or samples are patches. `remedy` has the options
    that would mix an order that hardly shuffles.
    `num_in_part` of the selected samples are dealt to the node of this consumer, `node` of `num_nodes`.

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
    cache: CacheExplanation | None = None
    num_in_part: int = 0
    node: int = 0
    num_nodes: int = 1
    statics: tuple[StaticField, ...] = ()
    stores: StoreShares | None = None
    sources: SourceShares | None = None
    patches: PatchExplanation | None = None
    sharing: RankSharing | None = None
    resumed: RankSharing | None = None
    shuffling: ShuffleMeasure | None = None
    remedy: str = ""

    @property
    def num_threads(self) -> int:
        """Decode threads."""
        return self.memory.num_threads

    @property
    def memory_bytes(self) -> int:
        """Most memory that is used at once, in bytes, but for batches that the user holds."""
        return self.memory.budget - self.memory.batch_room + self.max_open_batches * self.memory.batch_bytes

    def _verdict(self) -> str:
        sweeps = self.patches is not None and self.shuffle
        return verdict(
            self.fields,
            self.memory,
            self.memory_bytes,
            self.shuffling,
            sweeps=sweeps,
            mixes_better=bool(self.remedy),
        )

    def rows(self) -> list[Row]:
        """Return the rows of the page."""
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
        ]
        if self.patches is not None:
            rows += self.patches.rows()
        if self.sources is not None:
            rows += self.sources.rows(None if self.stores is None else self.stores.table)
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
        some = bool(selected) or self.num_nodes > 1
        blocks = f"{self.num_blocks} blocks of {'up to ' * some}{self.block_rows} samples"
        lanes = f" in {self.lanes} lanes" + f", mix {self.mix}" * (self.sources is None)
        rows.append(("order", f"{order}: {blocks}{lanes}"))
        rows += [] if self.sharing is None else self.sharing.rows()
        rows += [] if self.resumed is None else self.resumed.rows("in the epoch that goes on ")
        if self.strip > 1:
            rows.append(("", f"strips of {self.strip} neighbouring blocks stay together, since they share chunks"))
        if self.patches is not None:
            rows.append(("", "blocks are layers of columns"))
        elif self.primary is None:
            rows.append(("", "blocks are runs of samples, as all fields are in memory"))
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
            *([("", f"{format_bytes(memory.keep_bytes)} for chunks that columns share")] if memory.keep_bytes else []),
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
    """Work out the figures of an `Explanation` for the epoch of `plan`. Reads no data.

    `part` is what the order of the plan is of; None: of all samples.
    """
    order = plan.order
    part = part or Part.only(order)
    sources = SourceShares.of(order, plan.epoch) if isinstance(order, MixedOrder) else None
    per_batch, ideal = _shuffle_quality(plan, batch_size, sources)
    patched = dict.fromkeys(range(len(fields.fields)), (0, 0))
    if isinstance(order, SweptOrder):
        cut = [i for i, f in enumerate(fields.fields) if has_patches(f)]
        found = patch_reads(order, plan.epoch, fields.fields, plan.stride, memory.keep_bytes)
        patched |= dict(zip(cut, found, strict=True))
    return Explanation(
        num_samples=order.num_samples,
        num_selected=part.whole.length if sources is None else sum(one.length for one in sources.sources),
        steps=plan.steps,
        batch_size=batch_size,
        shuffle=order.shuffle,
        shuffle_rows=order.permutes_rows,
        num_blocks=order.num_blocks,
        block_rows=order.block_rows,
        lanes=order.lanes,
        mix=order.mix,
        strip=order.strip,
        primary=None if fields.primary is None else fields.fields[fields.primary].name,
        block=fields.block,
        fields=tuple(
            _with_remedy(
                explain_csr(f, plan, batch_size, fields if i == fields.primary else None)
                if isinstance(f, CsrField)
                else _explain_field(
                    f, plan, memory, max_open_batches, patched[i], fields if i == fields.primary else None
                ),
                str(stack_of(f) or ""),
                order,
                is_primary=i == fields.primary,
            )
            for i, f in enumerate(fields.fields)
        ),
        memory=memory,
        max_open_batches=max_open_batches,
        pinned=pinned,
        chunks_per_batch=per_batch,
        ideal_chunks_per_batch=ideal,
        left_out=() if order.selection is None else order.selection.left_out,
        cache=explain_cache(fields.fields, order),
        num_in_part=order.length,
        node=part.node,
        num_nodes=part.num_nodes,
        statics=statics,
        sources=sources,
        patches=PatchExplanation.of(order) if isinstance(order, SweptOrder) else None,
        sharing=RankSharing.of(order, plan.stride) if order.length and plan.stride > 1 else None,
        shuffling=None if fields.are_objects else measure_shuffle(order),
    )


def _with_remedy(of: FieldExplanation, stacked: str, order: Order, *, is_primary: bool) -> FieldExplanation:
    """Return what is said of a field, with what to do about its chunks."""
    remedy = (
        ""
        if isinstance(order, SweptOrder)
        else remedy_of_field(of, is_primary=is_primary, lanes=order.lanes, strip=order.strip)
    )
    return replace(of, stacked=stacked, remedy=remedy)


def explain_schedule(
    schedule: Schedule,
    rank_info: RankInfo,
    state: EpochState,
    *,
    pinned: bool,
    statics: tuple[StaticField, ...] = (),
    resumed: EpochState | None = None,
) -> Explanation:
    """Work out the figures for what a rank reads, without workers, of the epoch that begins in a state.

    `resumed` is the state in the middle of an epoch that the next pass goes on from, if it does.
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
    remedy = remedy_of(schedule, rank_info, explained.shuffling)
    explained = replace(explained, remedy="" if remedy is None else str(remedy))
    if resumed is None:
        return explained
    return replace(
        explained, resumed=RankSharing.of(schedule.order_of(schedule.settle(resumed, consumer)), plan.stride)
    )


def _explain_field(
    field: Field,
    plan: EpochPlan,
    memory: MemoryPlan,
    max_open_batches: int,
    patched: tuple[int, int],
    driven: FieldSet | None,
) -> FieldExplanation:
    """Describe a field that is no sparse matrix; `driven` are all fields, if its chunks make the blocks of these.

    `patched` is what patches decode of it, and how many chunks there are.
    """
    conversion, window, carried = "", window_of(field), memory.carry_bytes > 0
    if isinstance(field, StoredField | ResidentField) and field.conversion is not None:
        conversion = str(field.conversion)
    if not isinstance(field, StoredField | VlenField):
        where, dtype = (
            (str(field.rows), field.dtype) if isinstance(field, ResidentField) else ("computed", dtype_name(field))
        )
        items = dtype if record_of(field) is None else f"records of {described_dtype(field)}"
        description = f"{(field.num_samples, *shape_of(field))} {items}"
        if is_channel(field):
            description = f"{field.row_shape} {items}, the same for all samples"
        shown = "" if window is None else str(window)
        return FieldExplanation(
            field.name, where, description, True, 0, 0, 1.0, conversion, shown, joined=describe_join(field)
        )
    spec = field.spec
    chunks = sum(layout.num_chunks * layout.spec.num_cells for layout in field.layouts)
    resident = isinstance(field, StoredField) and field.resident
    if isinstance(plan.order, SweptOrder):
        reads, used = patched
    else:
        reads, used = (chunks, chunks) if resident else chunk_reads(plan, field, carried=carried)
    if isinstance(field, VlenField):
        reads = used
    amplification = reads / max(1, used)
    if plan.stride > 1 and reads and not resident and not isinstance(plan.order, SweptOrder):
        # Other ranks read as many chunks, and may read the same ones.
        of_all = sum(len(chunks_of_order(plan.order, field, one)) * one.spec.num_cells for one in field.layouts)
        amplification = max(amplification, plan.stride * reads / max(1, of_all))
    order = (
        "" if spec.storage_order == tuple(range(len(spec.shape))) else f", stored in axis order {spec.storage_order}"
    )
    items = spec.item_type or spec.dtype.name
    size = "" if spec.item_type else f" ({format_bytes(spec.decoded_bytes)})"
    if record_of(field) is not None:
        items = f"records of {described_dtype(field)}"
    elif spec.stored_dtype != items:
        items = f"{spec.stored_dtype} as {items}"
    return FieldExplanation(
        name=field.name,
        source=spec.name,
        description=(
            f"{spec.shape} {items}, Zarr v{spec.zarr_format}, read chunks {spec.chunk_shape}{size}, "
            f"{describe_codecs(spec)}{order}"
            + (f", in shards {spec.shard_shape}" if spec.shard is not None else "")
            + (f", samples along axis {spec.sample_axis}" if spec.sample_axis else "")
        ),
        native=not spec.slow_codecs and not spec.item_type,
        slow_codecs=spec.slow_codecs,
        chunks=chunks,
        chunk_reads=reads,
        amplification=amplification,
        conversion=conversion,
        window="" if window is None else str(window),
        choice=_choice(field, plan.order.block_rows, driven) + _CARRIED * (carried and carries(field)),
        shards=sum(layout.num_shards for layout in field.layouts),
        item_type=spec.item_type,
        spared=isinstance(field, StoredField) and field.spared,
        requested_by=_requested_by(field),
        joined=describe_join(field),
        stores=_stores(field),
        images=_images(field, memory.num_threads, batches_ahead(max_open_batches)),
    )


def _images(field: StoredField | VlenField, num_threads: int, ahead: int) -> str:
    if not isinstance(field, VlenField) or field.images is None:
        return ""
    threads = f"{num_threads} thread{'s' * (num_threads > 1)} for images alone"
    return f"{field.images}; by {library_name()}, {threads}, up to {ahead} batch{'es' * (ahead != 1)} ahead"


def _stores(field: StoredField | VlenField) -> str:
    """Return in how many stores an array lies, and in how many ways these store it; "" for a single one."""
    parts = [layout.parts for layout in field.layouts if layout.parts is not None]
    if not parts:
        return ""
    rows = np.concatenate([one.end - one.begin for one in parts])
    least = f"{rows.min()} to " if rows.min() != rows.max() else ""
    chunks = [layout.spec.rows_per_chunk for layout in field.layouts]
    lengths = f" (chunks of {min(chunks)} to {max(chunks)} samples)" * (min(chunks) < max(chunks))
    ways = "" if len(parts) == 1 else f", which store it in {len(parts)} ways{lengths}; this is the first"
    return f"in {len(rows)} stores of {least}{rows.max()} samples{ways}"


def _requested_by(field: StoredField | VlenField) -> str:
    source = field.spec.source
    if not isinstance(source, StoreSource) or not source.is_far:
        return ""
    return "threads" if isinstance(field, StoredField) and BlockingReads.serves(source) else "the event loop"


def _choice(field: StoredField | VlenField, block_rows: int, driven: FieldSet | None) -> str:
    if isinstance(field, StoredField) and field.patch is not None:
        return f"cut into {field.patch}"
    rows = field.spec.rows_per_chunk
    if driven is not None:
        chunks, about = -(-block_rows // rows), ""
        if driven.edges is not None:  # of several lengths
            chunks, about = round(sum(layout.num_chunks for layout in field.layouts) / driven.num_blocks), "about "
        return "makes the blocks" + f", {about}{chunks} chunks each" * (chunks > 1)
    if isinstance(field, VlenField):
        return "looked up, chunks are kept while there is memory"
    if field.resident:
        return "kept in memory"
    if block_rows % rows == 0:
        return "nests in the blocks"
    return "decoded once for each block that a chunk lies over"


def _shuffle_quality(plan: EpochPlan, batch_size: int, sources: SourceShares | None) -> tuple[float, float]:
    """Return distinct blocks per batch: measured on the first batches, and expected of a perfect shuffle."""
    order = plan.order
    steps = min(plan.steps, _SAMPLED_BATCHES * batch_size)
    if steps == 0:
        return 0.0, 0.0
    head = order.plan(plan.epoch, first=plan.first, stride=plan.stride, steps=steps)
    blocks, _ = order.locate(core.sample_order(replace(head).to_core()))
    batches = [blocks[i : i + batch_size] for i in range(0, steps, batch_size)]
    full = [b for b in batches if len(b) == batch_size] or batches
    measured = float(np.mean([len(np.unique(b)) for b in full]))
    return measured, perfect_mix(order, len(full[0])) if sources is None else sources.perfect_mix(len(full[0]))
