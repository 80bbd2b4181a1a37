"""The columns in which the patches of a dataset are read, in the memory that it has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zarrfeed.plan.budget.memory import MemoryPlan
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.patches.footprint import Footprint
from zarrfeed.plan.patches.sweep_choice import PatchField, carried_bytes, choose_sweep
from zarrfeed.plan.patches.sweep_cost import amplification, count_decodes, num_chunks, touched_chunks
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.spec.field import Field, StoredField, sample_bytes
from zarrfeed.spec.patch import FieldPatch

#: Up to so many patches, what an epoch decodes is counted patch by patch.
_COUNTED = 200_000
#: The same where patches begin at any voxels, and no formula says what more patches decode.
_COUNTED_OF_LISTED = 1_000_000
#: Batches that are open where patches are read, beside those that hold the blocks of all lanes.
_SPARE_BATCHES = 2


def choose_columns(
    order: SweptOrder, fields: Sequence[Field], memory: MemoryPlan, num_threads: int, lanes: int | None
) -> SweptOrder:
    """Return the order of the first epoch, in columns and lanes that suit the layout and the memory for batches.

    `lanes` is what the user said. None: chosen.
    """
    epochs = order.epochs
    choice = choose_sweep(
        epochs.tiling,
        [
            replace(one, sample_bytes=math.ceil(one.sample_bytes * epochs.samples_of_tile))
            for one in _fields_of_tiles(order, fields)
        ],
        memory=max(0, memory.batch_room + memory.carry_bytes - _SPARE_BATCHES * memory.batch_bytes),
        num_threads=num_threads,
        lanes=lanes if order.shuffle else 1,
        shuffle=order.shuffle,
        listed=epochs.is_listed,
        crops=not epochs.is_listed,
        keeps=not epochs.is_listed,
    )
    return replace(epochs, sweep=choice.sweep, lanes=choice.lanes, choice=choice).at(0)


def carried_by_lanes(order: SweptOrder, fields: Sequence[Field], lanes: int, num_threads: int) -> int:
    """Return the memory that some lanes want for decoded chunks that layers of a column share."""
    is_listed = order.epochs.is_listed
    tiling = order.epochs.tiling
    of_lane, changing = carried_bytes(tiling, _fields_of_tiles(order, fields), order.tiles.sweep, crops=not is_listed)
    if is_listed:  # blocks of one layer follow each other, and share all of its chunks
        return lanes * (of_lane + changing)
    return lanes * of_lane + min(lanes, num_threads) * changing


def chunks_of_block(order: Order, fields: Sequence[Field]) -> int:
    """Return how many chunks a block of tiles is the first to need, on average and at least 1; of other orders 1."""
    if not isinstance(order, SweptOrder) or order.epochs.is_listed or order.epochs.choice is None:
        return 1
    grid = order.epochs.tiling.typical()
    chunks = sum(num_chunks(grid, one.array) for one in patch_fields(fields))
    return max(1, chunks * order.epochs.choice.block_tiles // max(1, grid.num_tiles))


def caches_chunks(order: SweptOrder) -> bool:
    """Return whether memory that is left caches chunks that several columns need; of a resumed sweep it does, too."""
    choice = order.epochs.choice
    return not order.epochs.is_listed and (choice is None or choice.keeps)


def patch_reads(
    order: SweptOrder, epoch: int, fields: Sequence[Field], stride: int, keep_bytes: int
) -> list[tuple[int, int]]:
    """Return of each stored field how many chunks an epoch decodes, over all consumers, and how many there are.

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


def _predicted_reads(order: SweptOrder, fields: Sequence[PatchField], chunks: Sequence[int]) -> list[int]:
    """Return how many chunks of each field an epoch decodes, by the formula."""
    grid, sweep, choice = order.tiles.grid, order.tiles.sweep, order.epochs.choice
    often = [amplification(grid, one.array, sweep, order.lanes, shuffle=order.shuffle) for one in fields]
    sizes = [one.cell_bytes * count for one, count in zip(fields, chunks, strict=True)]
    of_all = sum(size * one for size, one in zip(sizes, often, strict=True)) / max(1, sum(sizes))
    repeated = 1.0  # the part of repeated decodes that a cache of chunks does not save
    if choice is not None and choice.keeps and of_all > 1:
        repeated = min(1.0, max(0.0, choice.amplification - 1) / (of_all - 1))
    return [round(count * (1 + (one - 1) * repeated)) for count, one in zip(chunks, often, strict=True)]


def patch_fields(fields: Sequence[Field]) -> list[PatchField]:
    """Return the chunks and the bytes of each array that patches are cut out of; of several layouts, of the first."""
    made = []
    for f in fields:
        if not isinstance(f, StoredField) or f.patch is None:
            continue
        spec, axes = f.spec, f.patch.axes
        num_dims = 1 + max(axis.dim for axis in axes if axis.dim is not None)
        chunk = [1] * num_dims
        # chunks along axes that patches are not cut along, and the part of them that crops have
        others, crop_share = 1, 1.0
        for axis, length, whole in zip(axes, spec.chunk_shape, spec.shape, strict=True):
            if axis.dim is not None:
                chunk[axis.dim] = length
                continue
            of_axis, items = _chunks_of_items(axis.offsets or range(whole), length)
            others *= of_axis
            crop_share *= items / (of_axis * length)
        footprint = _footprint(f.patch, chunk)
        made.append(
            PatchField(
                tuple(chunk), math.prod((others, spec.decoded_bytes)), sample_bytes(f), footprint, crop_share, others
            )
        )
    return made


def _chunks_of_items(items: Sequence[int], length: int) -> tuple[int, int]:
    """Return how many chunks of a length have some of the items, and how many these span within the chunks."""
    chunk, offset = np.divmod(np.asarray(items), length)
    return len(np.unique(chunk)), sum(int(np.ptp(offset[chunk == one])) + 1 for one in np.unique(chunk))


def _footprint(patch: FieldPatch, chunk: Sequence[int]) -> Footprint | None:
    """Return which items of an array patches have; None if they are the voxels of the grid."""
    if patch.extents is None:
        return None
    size, scale, origin, shift = ([value] * len(chunk) for value in (1, 1, 0, 0))
    pads = [True] * len(chunk)
    for axis in patch.axes:
        if axis.dim is not None:
            size[axis.dim], scale[axis.dim] = axis.size, axis.scale
            origin[axis.dim], shift[axis.dim], pads[axis.dim] = axis.origin, axis.shift, axis.border == "fill"
    return Footprint(tuple(chunk), tuple(size), patch.extents, tuple(scale), tuple(origin), tuple(shift), tuple(pads))


def _fields_of_tiles(order: SweptOrder, fields: Sequence[Field]) -> list[PatchField]:
    """Return the same where a tile is a cell: with what all patches that begin in it have."""
    found, epochs = patch_fields(fields), order.epochs
    if not epochs.is_listed:
        return found
    cell = epochs.tiling.step
    return [one if one.footprint is None else replace(one, footprint=one.footprint.of_cells(cell)) for one in found]
