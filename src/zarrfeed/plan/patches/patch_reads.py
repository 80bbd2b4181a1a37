"""The chunks of each array that an epoch of patches decodes: counted, or predicted."""

from __future__ import annotations

from collections.abc import Sequence

from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.patches.columns import patch_fields
from zarrfeed.plan.patches.decode_count import count_decodes, mixed_decodes, touched_chunks
from zarrfeed.plan.patches.mixed_patches import MixedPatches
from zarrfeed.plan.patches.sweep_choice import PatchField
from zarrfeed.plan.patches.sweep_cost import amplification, num_chunks
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.spec.fields.field import Field

#: Most patches for which an epoch's decodes are counted patch by patch.
_COUNTED = 200_000
#: The same where patches begin at any voxels, and no formula says what more patches decode.
_COUNTED_OF_LISTED = 1_000_000


def patch_reads(
    order: SweptOrder, epoch: int, fields: Sequence[Field], stride: int, keep_bytes: int
) -> list[tuple[int, int]]:
    """Return for each array the chunks that an epoch decodes, over all consumers, and the chunks that the array has.

    They are counted, or for many patches predicted: for tiles by a formula, for other patches from what the first of an
    epoch decode. Where patches begin at any voxels, chunks that no patch touches do not count. `keep_bytes` is the
    memory of each consumer for chunks that several columns need.
    """
    known = patch_fields(fields)
    arrays = [one.array for one in known]
    if order.epochs.is_listed:
        counted = min(order.length, _COUNTED_OF_LISTED)
        some = count_decodes(order, epoch, arrays, stride=stride, samples=counted)
        reads = [round(one * order.length / counted) for one in some]
        chunks = [touched_chunks(order, array) for array in arrays]
    else:
        chunks = [num_chunks(order.tiles.grid, array) for array in arrays]
        if order.length <= _COUNTED:
            sizes = [one.cell_bytes for one in known]
            reads = count_decodes(order, epoch, arrays, stride=stride, chunk_bytes=sizes, keep_bytes=keep_bytes)
        else:
            reads = _predicted_reads(order, known, chunks)
    return [(read * one.cells, count * one.cells) for read, count, one in zip(reads, chunks, known, strict=True)]


def mixed_reads(order: MixedPatches, epoch: int, fields: Sequence[Field], stride: int) -> list[tuple[int, int]]:
    """Return for each array the chunks that an epoch of a mixture decodes, over all consumers, and those it touches.

    They are counted patch by patch, as if memory had room for all that groups serve and lanes carry.
    """
    consumers = range(min(stride, order.length))
    plans = [order.plan(epoch, Portion(first, stride, -(-(order.length - first) // stride))) for first in consumers]
    counted = [(one.cells, *mixed_decodes(order, plans, one.array)) for one in patch_fields(fields)]
    return [(decoded * cells, touched * cells) for cells, decoded, touched in counted]


def _predicted_reads(order: SweptOrder, fields: Sequence[PatchField], chunks: Sequence[int]) -> list[int]:
    """Return the number of chunks of each field that an epoch decodes, by the formula."""
    grid, sweep, choice = order.tiles.grid, order.tiles.sweep, order.epochs.choice
    often = [amplification(grid, one.array, sweep, order.lanes, shuffle=order.shuffle) for one in fields]
    sizes = [one.cell_bytes * count for one, count in zip(fields, chunks, strict=True)]
    of_all = sum(size * one for size, one in zip(sizes, often, strict=True)) / max(1, sum(sizes))
    repeated = 1.0  # the part of repeated decodes that a cache of chunks does not save
    if choice is not None and choice.keeps and of_all > 1:
        repeated = min(1.0, max(0.0, choice.amplification - 1) / (of_all - 1))
    return [round(count * (1 + (one - 1) * repeated)) for count, one in zip(chunks, often, strict=True)]
