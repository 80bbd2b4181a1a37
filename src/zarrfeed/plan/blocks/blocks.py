"""Choose the chunks that make the blocks, and what to do with fields whose chunks do not nest in these blocks.

Pure: it follows from the layout, and from the memory that there is for small fields. In this order:

1. The chunks of one field, the primary one, are the blocks.
2. Where samples are windows a block is several of them, since a chunk at its end is read for the next one, too.
3. Small fields that would be decoded more than once are resident: they are read into memory once.
4. Blocks grow so that chunks of other fields nest in them, as long as they are not too large, and not too few to mix.
5. Of fields that are left, a chunk is decoded once for each block that it lies over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.plan.windows.windows import chunks_in_block
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.array_sources import array_sources, loaded_with
from zarrfeed.spec.fields.field import (
    BlockKind,
    Field,
    StoredField,
    streamed,
)
from zarrfeed.spec.samples.block_edges import Edges, StoreEdges, edges_of_grid
from zarrfeed.spec.samples.row_map import GridRows

#: Fields with fewer bytes a sample than this part of the largest one's do not decide on the blocks.
_HEAVY = 1 / 4
#: Blocks longer than this are avoided where there is a choice: 16 lanes of them fill half of the usual budget.
_BLOCK_BYTES = 32 << 20
#: Blocks do not grow until there are fewer: what is mixed is blocks.
_LEAST_BLOCKS = 32
#: Blocks of a dataset that lies in memory: many rows, to be dealt out quickly, but no more bytes than a usual chunk.
_MEMORY_BLOCK_ROWS = 64
_MEMORY_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Blocks:
    """The blocks of a dataset.

    Attributes
    ----------
    primary
        The field that makes them. None: none is stored.
    rows
        Samples of a block, at most.
    fields
        All fields.
    edges
        The first sample of each block, and the number of samples at the end. None: every block but the last one has
        `rows` samples.
    """

    primary: int | None
    rows: int
    fields: tuple[Field, ...]
    edges: Edges | None = None


def plan_blocks(
    fields: Sequence[Field], num_sample_fields: int, *, block: BlockKind = "chunk", room: int = 0, aligns: bool = True
) -> Blocks:
    """Choose the blocks, and which fields are resident in memory.

    Parameters
    ----------
    fields, num_sample_fields
        All of them; so many of them, at the beginning, are of `samples`.
    block
        "chunk": read chunks of the primary field make the blocks; "shard": its shards do.
    room
        Bytes for resident fields.
    aligns
        If True, a block may be several chunks, so that the chunks of other fields nest in it.

    Raises
    ------
    ConfigError
        If shards are to make the blocks, and there are none.
    """
    num_samples = fields[0].num_samples
    primary = choose_primary(fields[:num_sample_fields], fields, block)
    bytes_of_sample = sum([f.sample_bytes for f in fields])
    if primary is None:
        if block == "shard":
            raise ConfigError("block = 'shard', but no array is stored; must be 'chunk'")
        rows = max(1, min(_MEMORY_BLOCK_ROWS, _MEMORY_BLOCK_BYTES // bytes_of_sample))
        return Blocks(None, min(num_samples, rows), tuple(fields))
    chosen = fields[primary]
    if block == "shard" and not chosen.is_sharded:
        raise ConfigError(
            f"block = 'shard', but {chosen.label}, which makes the blocks, has no shards; must be 'chunk'"
        )
    if isinstance(chosen.row_map, GridRows):
        return _blocks_of_grid(fields, primary, chosen.row_map, block, room)
    own_edges = chosen.find_edges(of_shards=block == "shard")
    if own_edges is not None:
        with_resident = _make_small_ones_resident(fields, primary, 0, room)
        return Blocks(primary, int(np.diff(own_edges).max()), tuple(with_resident), own_edges)
    rows = block_rows(chosen, block)
    if block == "chunk":
        rows *= chunks_in_block(rows, bytes_of_sample, [f.window for f in fields], _BLOCK_BYTES)
    with_resident = _make_small_ones_resident(fields, primary, rows, room)
    if aligns and len(fields) > 1:  # the chunks of a single field nest in its own blocks
        most = min(_BLOCK_BYTES // max(1, bytes_of_sample), num_samples // _LEAST_BLOCKS)
        # Blocks, and so states that were saved before, are those of fields that do not share their arrays.
        rows = _align(rows, _make_small_ones_resident(fields, primary, rows, room, shares=False), most)
    edges = find_edges(chosen, rows, block)
    if edges is not None:
        rows = edges.max_rows if isinstance(edges, StoreEdges) else int(np.diff(edges).max())
    return Blocks(primary, min(num_samples, rows), tuple(with_resident), edges)


def _blocks_of_grid(fields: Sequence[Field], primary: int, rows: GridRows, block: BlockKind, room: int) -> Blocks:
    """Choose boxes of samples that several dimensions number: those of a chunk, or of some along the last dimension."""
    grid, several = rows.shards if block == "shard" else rows.grid, 1
    if block == "chunk":
        bytes_of_row = math.prod(grid.box[:-1]) * sum(f.sample_bytes for f in fields)
        several = chunks_in_block(grid.rows_along, bytes_of_row, [f.window for f in fields], _BLOCK_BYTES)
    edges = edges_of_grid(grid.boxes(several))
    alike = rows.grid.block_rows
    return Blocks(primary, edges.max_rows, tuple(_make_small_ones_resident(fields, primary, alike, room)), edges)


def block_rows(f: Field, block: BlockKind) -> int:
    """Return the samples of a full block if `f` makes them, where a sample has the row with its index, or in a grid."""
    if isinstance(f.row_map, GridRows):
        return math.prod((f.row_map.shards if block == "shard" else f.row_map.grid).box)
    return _kind_rows(f.layouts[0], block)


def _kind_rows(layout: Layout, block: BlockKind) -> int:
    """Return the rows of a read chunk, or of a shard."""
    spec = layout.spec
    return spec.shard_shape[spec.sample_axis] if block == "shard" else spec.rows_per_chunk


def find_edges(f: Field, rows: int, block: BlockKind) -> Edges | None:
    """Find the edges of the blocks whose chunks `f` has: their first samples, and the number of samples at the end.

    A block has as many whole chunks as `rows` rows have room for, of one store, and at least one. None where all blocks
    have `rows` samples, as one store has all of them.
    """
    if f.row_map is not None:
        begins = f.row_map.block_begins
        return np.append(begins, f.num_samples)[_edges_of_map(f, f.row_map.rows_of(begins), rows, block)]
    if f.layouts[0].parts is None:
        return None
    begin = np.concatenate([layout.parts.begin for layout in f.layouts if layout.parts is not None])
    each = [_kind_rows(layout, block) for layout in f.layouts]
    length = [one * max(1, rows // one) for one in each]
    of_store = np.repeat(length, [len(layout.parts.begin) for layout in f.layouts if layout.parts is not None])
    in_order = np.argsort(begin, kind="stable")
    begin = np.append(begin[in_order], f.num_samples)
    has_rows = np.diff(begin) > 0
    return StoreEdges(np.append(begin[:-1][has_rows], f.num_samples), of_store[in_order][has_rows].astype(np.int64))


def _edges_of_map(f: Field, row: Int64, rows: int, block: BlockKind) -> Int64:
    """Like `find_edges`, for a field with a row map: a block ends where its samples go on to chunks of another block.

    `row` has the rows of the samples that a block may begin with; edges are numbers of these. A sample without a row
    belongs to the block before it.
    """
    cell = np.full(len(row), -1)
    cells = 0
    for layout in f.layouts:
        here = (row >= 0) & (row < layout.spec.num_samples)
        chunk = np.where(here, layout.chunk_of(np.where(here, row, 0)), -1)
        per_block = max(1, max(rows, _kind_rows(layout, block)) // layout.spec.rows_per_chunk)
        cell = np.where(chunk >= 0, cells + chunk // per_block, cell)
        cells += -(-layout.num_chunks // per_block)
    known = np.maximum.accumulate(np.where(cell >= 0, np.arange(len(cell)), -1))
    cell = np.where(known >= 0, cell[known], -1)
    first = np.flatnonzero(np.diff(cell, prepend=-2))
    if len(first) > 1 and cell[0] < 0:  # samples before the first row
        first = np.delete(first, 1)
    return np.append(first, len(row))


def choose_primary(samples: Sequence[Field], fields: Sequence[Field], block: BlockKind = "chunk") -> int | None:
    """Choose the field whose chunks (or shards, as `block` says) make the blocks, from the layout alone.

    It is one of the stored tensors, or images, of `samples`, else one of its vlen fields; of the others where all
    samples are in memory.
    Among those with at least a quarter of the largest one's bytes a sample, it is the one with the longest chunks,
    since shorter ones often nest in these and longer ones are decoded once for every block that they lie over. But a
    block is to have at most 32 MiB, if any has; if none has, it is the shortest one. The first in order wins a draw.

    Parameters
    ----------
    samples, fields
        The fields of `samples`, and all fields, which begin with these.
    block
        "chunk": blocks are made of read chunks; "shard": of shards.

    Returns
    -------
    The index in `fields`; None if no field is stored.
    """
    if len(fields) == 1:
        return 0 if fields[0].is_stored else None
    candidates = (
        [i for i, f in enumerate(some) if chosen(f)]
        for some in (samples, fields)
        for chosen in (_is_large, lambda f: f.is_stored)
    )
    stored: list[int] = next(filter(None, candidates), [])
    stored = [i for i in stored if _has_all_dimensions(fields[i])] or stored
    if len(stored) < 2:
        return stored[0] if stored else None
    largest = max(fields[i].sample_bytes for i in stored)
    heavy = [i for i in stored if fields[i].sample_bytes >= _HEAVY * largest]
    row_bytes = sum(f.sample_bytes for f in fields)

    def chunk_rows(i: int) -> int:
        f = fields[i]
        edges = f.find_edges(of_shards=block == "shard")
        return min(f.num_samples, block_rows(f, block)) if edges is None else f.num_samples // len(edges)

    fitting = [i for i in heavy if chunk_rows(i) * row_bytes <= _BLOCK_BYTES]
    return max(fitting, key=chunk_rows) if fitting else min(heavy, key=chunk_rows)


def _has_all_dimensions(f: Field) -> bool:
    """Return whether an array has all sample dimensions: the chunks of others are boxes of all their indices."""
    return not isinstance(f.row_map, GridRows) or f.row_map.grid.has_all_dimensions


def _is_large(f: Field) -> bool:
    return f.is_stored and (not f.item_type or f.images is not None)


def _align(rows: int, fields: Sequence[Field], most: int) -> int:
    """Return the samples of a block, a multiple of `rows` of at most `most`, in which chunks of more fields nest.

    Those that would be decoded most often for nothing come first.
    """

    def extra_bytes(f: StoredField) -> float:
        # A chunk of c rows lies over (rows + c - gcd) / rows blocks, on average.
        chunk = f.spec.rows_per_chunk
        return f.sample_bytes * (chunk - math.gcd(rows, chunk)) / rows

    nests_not = [f for f in streamed(fields) if rows % f.spec.rows_per_chunk != 0]
    for f in sorted(nests_not, key=extra_bytes, reverse=True):
        common = math.lcm(rows, f.spec.rows_per_chunk)
        if common <= most:
            rows = common
    return rows


def _make_small_ones_resident(
    fields: Sequence[Field], primary: int, block_rows: int, room: int, *, shares: bool = True
) -> list[Field]:
    """Make stored fields resident that would be read more than once, in order, as long as they fit in `room`.

    These are those whose chunks do not nest in the blocks, or, but for the primary one, whose samples are windows.
    Blocks whose lengths differ (`block_rows` = 0) have no chunk nested in them. A field that draws from the array of
    the primary one stays with it, and fields that have the same rows in memory take room once; not so if no field
    `shares` its array.
    """
    made = list(fields)
    stored = [(i, f) for i, f in enumerate(fields) if isinstance(f, StoredField)]
    shares &= len(stored) > 1
    with_primary = [one.fields for one in array_sources(fields) if primary in one.fields] if shares else []
    for i, f in stored:
        again = not block_rows or block_rows % f.spec.rows_per_chunk != 0
        again |= i != primary and (f.window is not None or not _has_blocks_of(f, fields[primary]))
        if not again or (i != primary and [i for one in with_primary if i in one]):
            continue
        resident = [*made[:i], replace(f, resident=True), *made[i + 1 :]]
        taken = 0 if shares and loaded_with(resident)[i] != i else f.resident_bytes
        if taken <= room:
            room -= taken
            made = resident
    return made


def _has_blocks_of(f: StoredField, primary: Field) -> bool:
    """Return whether samples have the row with their index, or in a grid the rows of the primary field."""
    return f.rows is None or (isinstance(f.rows, GridRows) and f.rows == primary.row_map)
