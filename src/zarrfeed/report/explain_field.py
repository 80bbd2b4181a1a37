"""Explain the reading of one field, for `dataset.explain()`: one function for each kind of field.

A kind of field that has no function here is described by its own answers (`zarrfeed.spec.fields.field_kind`), as a
field whose values are computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np

from zarrfeed.base.units import format_bytes
from zarrfeed.engine.ahead import batches_ahead
from zarrfeed.engine.image_decoder import library_name
from zarrfeed.plan.budget.memory import MemoryPlan
from zarrfeed.plan.order.carry import carries
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.samples.field_rows import describe_join
from zarrfeed.report.chosen_decodes import decoded_share
from zarrfeed.report.field_explanation import FieldExplanation, describe_codecs
from zarrfeed.report.field_reads import FieldReads
from zarrfeed.report.sparse_explain import explain_csr
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.fields.field import FieldSet, ResidentField, StoredField, VlenField
from zarrfeed.spec.fields.field_kind import FieldKind
from zarrfeed.spec.fields.sparse import CsrField
from zarrfeed.storage.chunks.blocking_reads import BlockingReads
from zarrfeed.storage.chunks.location import StoreSource

#: A dtype that torch stores and hardly computes with -> the cast without a loss, or with rounding.
_CASTS = {
    "uint16": "'int32' or 'float32' has the same numbers",
    "uint32": "'int64' or 'float64' has the same numbers",
    "uint64": "'float64' rounds numbers above 2**53",
}

_CARRIED = "; chunks that neighbouring blocks share are decoded once"


@dataclass(frozen=True)
class FieldReading:
    """An epoch in which a field is read.

    Attributes
    ----------
    plan, batch_size, memory, max_open_batches
        The plan of the epoch, its batch size, its memory and its number of open batches.
    reads
        The chunks of the field that are read.
    driven
        All fields, if the chunks of the field make the blocks of these. Else None.
    """

    plan: EpochPlan
    batch_size: int
    memory: MemoryPlan
    max_open_batches: int
    reads: FieldReads
    driven: FieldSet | None


@singledispatch
def explain_field(field: FieldKind, reading: FieldReading) -> FieldExplanation:  # noqa: ARG001 (of other kinds)
    """Describe how a field is read. Reads no data."""
    return _explain_values(field, field.describe_source() or "computed", field.described_dtype)


@explain_field.register
def _(field: ResidentField, reading: FieldReading) -> FieldExplanation:  # noqa: ARG001 (of other kinds)
    return _explain_values(field, str(field.rows), field.dtype)


@explain_field.register
def _(field: StoredField, reading: FieldReading) -> FieldExplanation:
    return replace(_explain_array(field, reading), spared=field.spared)


@explain_field.register
def _(field: VlenField, reading: FieldReading) -> FieldExplanation:
    return _explain_array(field, reading)


@explain_field.register
def _(field: CsrField, reading: FieldReading) -> FieldExplanation:
    return explain_csr(field, reading.plan, reading.batch_size, reading.driven)


def cast_advice(field: FieldKind) -> str:
    """Return the cast that delivers a dtype that torch computes with; "" if batches already have such a dtype."""
    if field.record is not None or field.dtype_name not in _CASTS:
        return ""
    return (
        f"torch hardly computes with {field.dtype_name}, and lacks its sums and comparisons: cast() converts in the "
        f"copy, and {_CASTS[field.dtype_name]}"
    )


def _explain_values(field: FieldKind, where: str, dtype: str) -> FieldExplanation:
    """Describe values that nothing is read for: they are in memory, or computed."""
    items = dtype if field.record is None else f"records of {field.described_dtype}"
    description = f"{(field.num_samples, *field.shape)} {items}"
    if field.has_one_row:
        description = f"{field.row_shape} {items}, the same for all samples"
    conversion = "" if field.conversion is None else str(field.conversion)
    window = "" if field.window is None else str(field.window)
    return FieldExplanation(
        field.name, where, description, True, 0, 0, 1.0, conversion, window, joined=describe_join(field)
    )


def _explain_array(field: StoredField | VlenField, reading: FieldReading) -> FieldExplanation:
    """Describe an array whose chunks are read."""
    plan, memory, reads, window = reading.plan, reading.memory, reading.reads, field.window
    conversion = "" if field.conversion is None else str(field.conversion)
    carried = _CARRIED * (memory.carry_bytes > 0 and carries(field))
    spec = field.spec
    layouts = field.layouts
    chunks = sum(one.num_chunks * one.spec.as_stored.num_cells for one in layouts)
    with_items = sum(one.num_chunks * one.spec.num_cells for one in layouts)
    order = (
        "" if spec.storage_order == tuple(range(len(spec.shape))) else f", stored in axis order {spec.storage_order}"
    )
    items = spec.item_type or spec.dtype.name
    size = "" if spec.item_type else f" ({format_bytes(spec.decoded_bytes)})"
    if field.record is not None:
        items = f"records of {field.described_dtype}"
    elif spec.stored_dtype != items:
        items = f"{spec.stored_dtype} as {items}"
    return FieldExplanation(
        name=field.name,
        source=spec.name,
        description=(
            f"{spec.shape} {items}, {_format(spec)}, read chunks {spec.chunk_shape}{size}, "
            f"{describe_codecs(spec)}{order}"
            + (f", in shards {spec.shard_shape}" if spec.shard is not None else "")
            + (f", samples along axis {spec.sample_axis}" if spec.sample_axis else "")
        ),
        native=not spec.slow_codecs and not spec.item_type,
        slow_codecs=spec.slow_codecs,
        chunks=0 if reads.decoded_with else chunks,
        chunk_reads=reads.decoded,
        most_chunk_reads=None if reads.most == reads.decoded else reads.most,
        amplification=reads.amplification(plan.stride),
        decodes=None if reads.decoded_bytes is None or spec.choice is not None else reads.decodes(plan.stride),
        conversion=conversion,
        window="" if window is None else str(window),
        choice=_choice(field, plan.order, reading.driven) + carried,
        shards=0 if reads.decoded_with else sum(layout.num_shards for layout in field.layouts),
        decoded_with=reads.decoded_with,
        item_type=spec.item_type,
        requested_by=_requested_by(field),
        joined=describe_join(field),
        stores=_stores(field),
        images=_images(field, memory.num_threads, batches_ahead(reading.max_open_batches)),
        reads_slabs=reads.are_slabs,
        chosen="" if spec.choice is None else spec.choice.describe(spec.shape),
        chunk_share=with_items / max(1, chunks),
        decoded_share=1.0 if spec.choice is None else decoded_share(field),
        byte_share=math.prod(spec.sample_shape) / max(1, math.prod(spec.as_stored.sample_shape)),
    )


def _images(field: StoredField | VlenField, num_threads: int, ahead: int) -> str:
    if field.images is None:
        return ""
    threads = f"{num_threads} thread{'s' * (num_threads > 1)} for images alone"
    return f"{field.images}; by {library_name()}, {threads}, up to {ahead} batch{'es' * (ahead != 1)} ahead"


def _format(spec: ArraySpec) -> str:
    """Return the format that an array is stored in."""
    file_format = spec.source.file_format if isinstance(spec.source, StoreSource) else ""
    return f"{file_format} in place" if file_format else f"Zarr v{spec.zarr_format}"


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
    return "threads" if not field.is_lookup and BlockingReads.serves(source) else "the event loop"


def _choice(field: StoredField | VlenField, order: Order, driven: FieldSet | None) -> str:
    if field.patch is not None:
        return f"cut into {field.patch}"
    rows, block_rows = field.spec.rows_per_chunk, order.block_rows
    if order.slabs is not None and not field.resident:
        slabs = f"slabs of {order.slabs.rows} row{'s' * (order.slabs.rows > 1)}"
        return f"its chunks are cut into {slabs}, which are the blocks" if driven else f"decoded for {slabs}"
    if driven is not None:
        chunks, about = -(-block_rows // rows), ""
        if driven.edges is not None:  # of several lengths
            chunks, about = round(sum(layout.num_chunks for layout in field.layouts) / driven.num_blocks), "about "
        return "makes the blocks" + f", {about}{chunks} chunks each" * (chunks > 1)
    if field.is_lookup:
        return "looked up, chunks are kept while there is memory"
    if field.resident:
        return "kept in memory"
    if block_rows % rows == 0:
        return "nests in the blocks"
    return "decoded once for each block that a chunk lies over"
