"""Explain the reading of a sparse matrix: its arrays, the chunks that an epoch decodes, and those in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.base.units import format_bytes
from zarrfeed.plan.budget.element_loads import keep_batches, plan_loads
from zarrfeed.plan.order.order import EpochPlan
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.report.field_explanation import FieldExplanation, describe_codecs
from zarrfeed.report.rank_sharing import RankSharing
from zarrfeed.spec.fields.field import FieldSet
from zarrfeed.spec.fields.sparse import CsrField, Elements
from zarrfeed.spec.values.dtypes import item_bytes


def explain_csr(field: CsrField, plan: EpochPlan, batch_size: int, driven: FieldSet | None) -> FieldExplanation:
    """Describe a sparse matrix; `driven` are all fields, if it makes the blocks of these. Reads no data."""
    order, keep = core.sample_order(plan.to_core()), keep_batches(plan, batch_size)
    loads = [
        loaded
        for side in field.sides
        for loaded in [plan_loads(side[0], field.indptr, order, batch_size, keep)] * len(side)
    ]
    reads = [len(loaded.block) for loaded in loads]  # of indices, and of data
    used = sum(len(np.unique(loaded.block)) for loaded in loads)
    held = [loaded.most_at_once for loaded in loads]
    arrays = {"indices": field.indices, "data": field.data}
    held_bytes = sum(count * _block_bytes(one) for count, one in zip(held, arrays.values(), strict=True))
    codecs = [codec for one in arrays.values() for layout in one.layouts for codec in layout.spec.slow_codecs]
    conversion = field.data.layouts[0].conversion if field.after is None else field.after
    divided = "" if field.row_total is None else f"rows divided to a total of {field.row_total:g}, "
    stores = len(field.first_row) - 1
    return FieldExplanation(
        name=field.name,
        source=field.path,
        description=f"csr_matrix of {field.describe()}",
        details=(
            *(f"{name}: {_describe(one)}" for name, one in arrays.items()),
            f"at most {held[0]} chunks of indices and {held[1]} of data in memory at once, "
            f"{format_bytes(held_bytes)}, in place of open batches",
        ),
        native=not codecs,
        slow_codecs=tuple(dict.fromkeys(codecs)),
        chunks=field.indices.num_blocks + field.data.num_blocks,
        shards=sum(layout.num_shards for one in arrays.values() for layout in one.layouts),
        chunk_reads=sum(reads),
        reads_by_array=f"{reads[0]} of indices, {reads[1]} of data",
        amplification=sum(reads) / max(1, used) * RankSharing.of(plan.order, plan.stride).readers,
        conversion="" if conversion is None else f"{divided}{conversion}",
        choice="chunks are found by indptr" if driven is None else _choice(field, driven),
        stores=_stores(field.first_row) if stores > 1 else "",
    )


def _describe(elements: Elements) -> str:
    """Describe the storage of an array of elements, by its first layout."""
    layouts = elements.layouts
    spec = layouts[0].spec
    ways = f"; stored in {len(layouts)} ways, this is the first" * (len(layouts) > 1)
    shards = "" if spec.shard is None else f" in shards of {spec.shard_shape[0] * spec.chunk_shape[1]}"
    items = spec.chunk_shape[1]
    return (
        f"{spec.stored_dtype}, read chunks of {items} ({format_bytes(spec.decoded_bytes)}){shards}, "
        f"{describe_codecs(spec)}{ways}"
    )


def _choice(field: CsrField, driven: FieldSet) -> str:
    """Describe the blocks."""
    chunks = round(field.primary.num_blocks / driven.num_blocks)
    units = f"about {chunks} chunks" if driven.block == "chunk" and chunks > 1 else f"a {driven.block}"
    return f"makes the blocks: the rows that begin in {units} of {'data' if field.primary is field.data else 'indices'}"


def _block_bytes(elements: Elements) -> int:
    """Return the bytes of a full block, decoded, as it is delivered."""
    return int(elements.block_items.max()) * item_bytes(elements.dtype)


def _stores(first_row: Int64 | Sequence[int]) -> str:
    lengths = np.diff(first_row)
    least = f"{lengths.min()} to " * bool(lengths.min() < lengths.max())
    return f"in {len(lengths)} stores of {least}{lengths.max()} samples"
