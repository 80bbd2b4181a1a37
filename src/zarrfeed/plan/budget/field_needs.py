"""`FieldNeeds`: the memory that fields ask for, found once; every budget for them is divided by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from zarrfeed.plan.budget.element_loads import element_fields
from zarrfeed.spec.arrays.array import ArraySpec, StoreLocation
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.array_sources import ArraySource, array_sources, loaded_with
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.fields.sparse import CsrField

#: Blosc's compressors choose blocks of at most 1 MiB by themselves; the metadata says where they were told otherwise.
_BLOCK_BYTES = 8 << 20
_HUGE_PAGE = 2 << 20
#: Blosc chunks with rows of this size go from blocks to slots: no decoded chunk (cpp/transform/output.cc).
_MIN_FUSED_ROW = 4096


@dataclass(frozen=True)
class FieldNeeds:
    """The memory that the fields of a batch ask for.

    Attributes
    ----------
    num_fields
        Number of fields.
    sample_bytes
        Bytes of one sample in a batch, over all fields.
    resident_bytes
        Rows that are kept in memory, and pointers to the rows of sparse matrices.
    scratch_bytes
        Temporary memory of one decode thread, at most.
    chunk_bytes
        The largest read chunk, decoded; 0 if no array is streamed.
    block_bytes
        The largest Blosc block of an array that is streamed.
    local_bytes, local_chunk_bytes
        The largest chunk that the engine reads itself, as stored and decoded; 0 if there is none.
    fed_bytes
        Decoded bytes of the largest chunk of stores that Python reads; 0 if there is none.
    fed_together_bytes
        Most bytes that a request to such a store could bring at once: of the largest shard, or of the chunks in files.
    fed_requests
        Number of requests that each of these stores is asked at once; 0 if there is no such store.
    index_bytes
        For each field the bytes of one index of shards, and of all of them, in the arrays that no field before it draws
        from.
    num_lists
        Number of fields with text, bytes or images, whose decoded chunks are cached.
    elements
        The needs of each engine that reads the chunks of a sparse matrix.
    """

    num_fields: int
    sample_bytes: int
    resident_bytes: int
    scratch_bytes: int
    chunk_bytes: int
    block_bytes: int
    local_bytes: int
    local_chunk_bytes: int
    fed_bytes: int
    fed_together_bytes: int
    fed_requests: int
    index_bytes: tuple[tuple[int, int], ...]
    num_lists: int
    elements: tuple[FieldNeeds, ...]

    @classmethod
    def of(cls, fields: Sequence[Field]) -> Self:
        """Return the needs of some fields."""
        sources = array_sources(fields)
        streamed = [source.spec for source in sources]
        local = [spec for spec in streamed if not spec.in_python]
        fed = [(spec, spec.source) for spec in streamed if spec.source is not None and spec.in_python]
        matrices = [f for f in fields if isinstance(f, CsrField)]
        resident = [fields[number].resident_bytes for number in set(loaded_with(fields).values())]
        decoded = [spec.decoded_bytes for spec in streamed]
        return cls(
            num_fields=len(fields),
            sample_bytes=sum([f.sample_bytes for f in fields]),
            resident_bytes=sum(resident) + sum([f.indptr.nbytes for f in matrices]),
            scratch_bytes=_scratch_bytes(sources, fields),
            chunk_bytes=max(decoded, default=0),
            block_bytes=max(map(_block_bytes, streamed), default=0),
            local_bytes=max(map(_stored_bytes, local), default=0),
            local_chunk_bytes=max([spec.decoded_bytes for spec in local], default=0),
            fed_bytes=max([spec.decoded_bytes for spec, _ in fed], default=0),
            fed_together_bytes=max([_together_bytes(spec, store) for spec, store in fed], default=0),
            fed_requests=min([store.max_requests for _, store in fed], default=0),
            index_bytes=_index_bytes(sources, len(fields)),
            num_lists=len([f for f in fields if f.is_lookup and f.is_stored]),
            elements=tuple(
                cls.of(element_fields(side, layout))
                for matrix in matrices
                for side in matrix.sides
                for layout in range(len(side[0].layouts))
            ),
        )

    @property
    def least_index_bytes(self) -> int:
        """One index of shards for each array that has them."""
        return sum([one for one, _ in self.index_bytes])

    @property
    def num_indexed(self) -> int:
        """Number of fields with indices of shards."""
        return len([one for one, _ in self.index_bytes if one])


def _stored_bytes(spec: ArraySpec) -> int:
    """Return the most bytes that a stored chunk takes: compressors add a little to data that do not compress."""
    return _buffer_bytes(spec.decoded_bytes + spec.decoded_bytes // 128 + 64)


def _together_bytes(spec: ArraySpec, store: StoreLocation) -> int:
    """Return the most bytes that chunks of an array have which one request may read; 0 if each chunk is an object."""
    return store.ranges_bytes if spec.shard is None else spec.shard_bytes


def _buffer_bytes(size: int) -> int:
    """Return the memory of an engine's buffer (cpp/base/buffer.cc): large ones consist of huge pages."""
    if size >= _HUGE_PAGE - 64:
        return -(-size // _HUGE_PAGE) * _HUGE_PAGE
    return size and size // 64 * 64 + 64


def _block_bytes(spec: ArraySpec) -> int:
    """Return the most that a Blosc block of this array may take; 0 where the engine decodes no Blosc."""
    blocks = [c.block_bytes for c in spec.codecs if c.name == "blosc"]
    if not blocks or spec.slow_codecs:
        return 0
    # With several codecs, Blosc may have compressed the output of another codec.
    whole = spec.decoded_bytes if len(spec.codecs) == 1 else _intermediate_bytes(spec.decoded_bytes)
    return min(whole, max(_BLOCK_BYTES, *blocks))


def _intermediate_bytes(size: int) -> int:
    """Return the most that a chunk of `size` bytes takes between two codecs (cpp/codecs/codec_pipeline.cc)."""
    return size + size // 8 + 65536


def _scratch_bytes(sources: Sequence[ArraySource], fields: Sequence[Field]) -> int:
    """Return the temporary memory of one decode thread, at most: each buffer is as large as any array needs it."""
    buffers = [0] * 5
    for source in sources:
        spec = source.spec
        size, block = spec.decoded_bytes, _buffer_bytes(_block_bytes(spec))
        steps = len([c for c in spec.codecs if not c.is_checksum])
        # of several fields that draw from it, one may need the decoded chunk
        (number, layout), *others = source.draws
        fused = not others and goes_by_blocks(fields[number].layouts[layout])
        of_source = (
            _stored_bytes(spec),
            0 if fused or not steps else _buffer_bytes(size),
            min(2, max(0, steps - 1)) * _buffer_bytes(_intermediate_bytes(size)),
            block,  # before its items are put in order,
            block if fused else 0,  # and after
        )
        buffers = list(map(max, buffers, of_source))
    return sum(buffers)


def goes_by_blocks(layout: Layout) -> bool:
    """Return whether chunks surely go block by block to the slots: one Blosc, and rows that lie there as they are."""
    spec = layout.spec
    return (
        [c.name for c in spec.codecs] == ["blosc"]
        and spec.sample_axis == 0
        and spec.storage_order == tuple(range(len(spec.shape)))
        and spec.choice is None
        and spec.chunk_shape[1:] == spec.shape[1:]
        and spec.swap_bytes == 0
        and spec.sample_bytes >= _MIN_FUSED_ROW
        and layout.conversion is None
    )


def _index_bytes(sources: Sequence[ArraySource], num_fields: int) -> tuple[tuple[int, int], ...]:
    """Return for each field the memory for one index of shards, and for all, of the arrays that it draws first."""
    found = [(0, 0)] * num_fields
    for source in sources:
        spec, number = source.spec, source.fields[0]
        size = 0 if spec.shard is None else spec.shard.cached_index_bytes
        one, every = found[number]
        found[number] = one + size, every + max(1, spec.num_shards) * size
    return tuple(found)
