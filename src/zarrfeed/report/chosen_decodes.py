"""The share of an array that is decoded for the items that samples have of it: counted Blosc block by Blosc block.

Invariants: a pass over all samples that decodes each chunk once decodes so many bytes, as `TouchedBlocks` does
(cpp/transform/touched_blocks.h). Blocks are taken to be as large as in the first stored chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

import numpy as np
import numpy.typing as npt

from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.field import Field
from zarrfeed.storage.chunks.blosc_blocks import stored_block_bytes

#: The engine tells no smaller blocks apart.
_LEAST_BLOCK = 128


def decoded_share(field: Field) -> float | None:
    """Return the decoded share of the bytes of an array of which samples have some items; None: it is not known.

    The share is known for local arrays that the engine decodes. In chunks without codecs only the chosen items are
    copied, and count as decoded.

    Raises
    ------
    StoreReadError, CorruptChunkError
        If the header of a stored chunk cannot be read.
    """
    decoded = total = 0.0
    for layout in field.layouts:
        spec = layout.spec
        if spec.in_python or spec.slow_codecs or spec.item_type:
            return None
        stored = layout.num_chunks * spec.as_stored.num_cells * spec.decoded_bytes
        total += stored
        codecs = [codec.name for codec in spec.codecs]
        if not codecs:
            decoded += stored * np.prod(spec.sample_shape) / np.prod(spec.as_stored.sample_shape)
            continue
        is_local = spec.source is None
        block = stored_block_bytes(layout) if codecs == ["blosc"] and is_local else None
        if block is None or block < _LEAST_BLOCK:
            decoded += layout.num_chunks * spec.num_cells * spec.decoded_bytes
        else:
            decoded += sum(count * _touched(spec, block, items) for count, items in _chunks_with_items(layout))
    return decoded / total if total else 1.0


def _chunks_with_items(layout: Layout) -> Iterator[tuple[int, list[tuple[int, ...]]]]:
    """Yield numbers of chunks with the same chosen items, and these items along each axis, counted in the chunk."""
    spec = layout.spec
    of_axes: list[Counter[tuple[int, ...]]] = []
    for axis, (length, each) in enumerate(zip(spec.shape, spec.chunk_shape, strict=True)):
        if axis == spec.sample_axis:
            lengths = [length] if layout.parts is None else (layout.parts.end - layout.parts.begin).tolist()
            rows = Counter({tuple(range(each)): sum(n // each for n in lengths)})
            rows.update(tuple(range(n % each)) for n in lengths if n % each)
            of_axes.append(+rows)
            continue
        positions = range(length) if spec.choice is None else spec.choice.positions(axis, length)
        wanted = np.unique(np.asarray(positions, dtype=np.int64))
        runs = np.split(wanted, np.flatnonzero(np.diff(wanted // each)) + 1)
        of_axes.append(Counter(tuple((run % each).tolist()) for run in runs))
    for items in product(*of_axes):
        counts = [of_axis[one] for of_axis, one in zip(of_axes, items, strict=True)]
        yield int(np.prod(counts, dtype=np.int64)), list(items)


def _touched(spec: ArraySpec, block: int, items: list[tuple[int, ...]]) -> int:
    """Return the bytes of the blocks of a chunk that some items lie in."""
    begin, end = np.zeros(1, dtype=np.int64), np.full(1, spec.dtype.itemsize, dtype=np.int64)
    stride = spec.dtype.itemsize
    for axis in reversed(spec.storage_order):
        offsets = np.asarray(items[axis], dtype=np.int64)[:, None] * stride
        begin, end = _joined((offsets + begin).ravel(), (offsets + end).ravel(), block)
        stride *= spec.chunk_shape[axis]
    first, last = begin // block, (end - 1) // block
    lacks = -spec.decoded_bytes % block if last[-1] == (spec.decoded_bytes - 1) // block else 0
    return int((last - first + 1).sum()) * block - lacks


def _joined(
    begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64], block: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return runs of bytes, ascending; those with a gap in which no block lies are one."""
    starts = np.append(True, begin[1:] - end[:-1] >= block)
    return begin[starts], end[np.append(starts[1:], True)]
