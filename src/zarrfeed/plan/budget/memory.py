"""How the memory budget is spent: scratch of the threads, bytes in flight, and open batches.

No more than the budget is ever planned. Where it is short, things are given up in this order, each as far as need be:

1. Batches beyond those that must be open, and caches (of decoded text, of chunks of sparse matrices, and of shard
   indices but one).
2. Fetching ahead: down to one fetch thread, and one request in stores that Python reads.
3. The last fetch thread: decode threads then wait for storage themselves, each with the buffer that it has anyway.
   From the page cache that costs nothing, and as many chunks are waited for at once as there are decode threads.
4. Decode threads, down to one: each one less is that much less speed.

What is left then is needed: one chunk being decoded, one request, one index a sharded field, and the open batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from zarrfeed.base.errors import MemoryBudgetError
from zarrfeed.base.units import format_bytes
from zarrfeed.plan.budget.element_loads import element_fields
from zarrfeed.plan.order.order import Order
from zarrfeed.spec.array import ArraySpec
from zarrfeed.spec.field import Field, StoredField, VlenField, resident_bytes, sample_bytes
from zarrfeed.spec.layout import Layout
from zarrfeed.spec.sharding import DEFAULT_COALESCE, Coalesce
from zarrfeed.spec.sparse import CsrField

#: Indices of shards may take so much of the budget: at 1 GiB those of a million inner chunks are all cached.
_INDEX_DIVISOR = 64
#: Decoded chunks of text and bytes may take so much of the budget.
_VLEN_DIVISOR = 8
#: Of what is left of the budget, so much is for engines that read sparse matrices.
_ELEMENT_DIVISOR = 4
_LEAST_BLOCKS_AHEAD = 2
_MAX_FETCH_THREADS = 16
#: Fetching may take so much of the budget: of local chunks, for which little is waited, and of those that Python reads.
_LOCAL_DIVISOR, _FED_DIVISOR = 8, 4
#: Blosc's compressors choose blocks of at most 1 MiB by themselves; the metadata says where they were told otherwise.
_BLOCK_BYTES = 8 << 20
_HUGE_PAGE = 2 << 20
#: Blosc chunks with rows of this size go from blocks to slots: no decoded chunk (cpp/transform/field_decoder.cc).
_MIN_FUSED_ROW = 4096


@dataclass(frozen=True)
class MemoryPlan:
    """What an engine may use.

    Attributes
    ----------
    budget
        All of it, in bytes.
    least_budget
        The smallest that suffices.
    ample_budget
        The smallest that has room for all decode threads that are wanted, and for a fetch thread.
    scratch_bytes
        Temporary memory of the decode threads, at most.
    fetch_bytes
        Stored bytes in flight, at most.
    resident_bytes
        Stored fields that are kept in memory.
    batch_bytes
        One batch of all fields.
    required_batches
        How many must be open at once.
    num_threads, wanted_threads
        Decode threads, and how many there would be if memory had room.
    num_fetch_threads
        Threads that wait for storage; 0 if there is nothing local to read, or no room: then decode threads do.
    reads_local
        Whether the engine reads chunks itself.
    chunk_bytes
        The largest read chunk, decoded.
    block_bytes
        The largest Blosc block that there is room for.
    max_requests
        Chunks that are asked for at once where the store is read by Python; 0 if there is no such field.
    requests_bounded_by
        Why these are no more: more have no room in memory, or the store is not asked for more.
    coalesce
        What may be read in one request there, so that it fits.
    index_cache_bytes
        Memory for the indices of shards, one entry a field; 0 for those without.
    list_cache_bytes
        Memory for decoded chunks of text and bytes, of each field that has them.
    num_lists
        How many such fields there are.
    carry_bytes
        Memory for decoded chunks that neighbouring blocks share; 0 if nothing is carried.
    keep_bytes
        Memory for decoded chunks that several columns of patches need, or several lanes: what nothing else takes.
    element_bytes
        Memory of the engines that read the chunks of sparse matrices: to decode, to fetch, and for chunks that are
        decoded ahead. 0 if there is no sparse matrix.
    element_spare
        What each of these engines has beyond the least that it needs.
    element_threads
        Decode threads of these engines, all together.
    readers
        Consumers on the machine, which have as much each.
    plan_bytes
        What the plan of an epoch keeps: samples that are selected and follow no rule, and an order that is listed.
    """

    budget: int
    least_budget: int
    ample_budget: int
    scratch_bytes: int
    fetch_bytes: int
    resident_bytes: int
    batch_bytes: int
    required_batches: int
    num_threads: int
    wanted_threads: int
    num_fetch_threads: int
    chunk_bytes: int
    block_bytes: int
    reads_local: bool = False
    max_requests: int = 0
    requests_bounded_by: Literal["memory", "store"] = "store"
    coalesce: Coalesce = DEFAULT_COALESCE
    index_cache_bytes: tuple[int, ...] = ()
    list_cache_bytes: int = 0
    num_lists: int = 0
    carry_bytes: int = 0
    keep_bytes: int = 0
    element_bytes: int = 0
    element_spare: int = 0
    element_threads: int = 0
    readers: int = 1
    plan_bytes: int = 0

    @property
    def index_bytes(self) -> int:
        """Memory for indices of shards, of all fields."""
        return sum(self.index_cache_bytes)

    @property
    def list_bytes(self) -> int:
        """Memory for decoded chunks of text and bytes, of all fields."""
        return self.num_lists * self.list_cache_bytes

    @property
    def batch_room(self) -> int:
        """Bytes that are left for batches."""
        in_memory = self.resident_bytes + self.index_bytes + self.list_bytes + self.carry_bytes + self.keep_bytes
        return self.budget - self.scratch_bytes - self.fetch_bytes - in_memory - self.element_bytes - self.plan_bytes

    @property
    def fitting_batches(self) -> int:
        """Number of batches that have room at once."""
        return self.batch_room // self.batch_bytes

    @property
    def lacks_threads(self) -> bool:
        """Whether there are fewer decode threads than wanted."""
        return self.num_threads < self.wanted_threads

    def wanted_open_batches(self, *, tasks_in_round: int) -> int:
        """Return how many batches have to be open for all threads and requests to be busy.

        The batches of the current round of lanes (`required_batches`) have to be open; another round lets the threads
        go on while the consumer takes them.
        """
        in_flight = max(self.num_fetch_threads, self.max_requests)
        rounds = 1 + -(-(2 * self.num_threads + in_flight) // tasks_in_round)
        return max(2, rounds) * self.required_batches

    def max_open_batches(self, order: Order, *, wanted: int) -> int:
        """Return how many batches may be open: those that are wanted, or what the budget has room for.

        Raises
        ------
        MemoryBudgetError
            If the batches that must be open at once do not fit.
        """
        room = self.fitting_batches
        if self.required_batches > room:
            readers = f" for each of the {self.readers} readers on this machine" if self.readers > 1 else ""
            chunk = f"to decode one chunk of {format_bytes(self.chunk_bytes)} at a time"
            needs = {
                chunk: self.scratch_bytes,
                "to fetch": self.fetch_bytes,
                "for indices of shards": self.index_bytes,
                "of resident fields": self.resident_bytes,
                "for the plan": self.plan_bytes,
                "to read chunks of sparse matrices": self.element_bytes,
            }
            parts = "".join(f"{format_bytes(size)} {what}, " for what, size in needs.items() if size)
            raise MemoryBudgetError(
                f"memory_budget = {format_bytes(self.budget * self.readers)}, must be at least "
                f"{format_bytes(self.least_budget * self.readers, round_up=True)}{readers}: {parts}"
                f"{self.required_batches} open batches of {format_bytes(self.batch_bytes)} "
                f"(lanes = {order.lanes}, mix = {order.mix}, blocks of {order.block_rows} samples)"
            )
        return min(room, wanted)


def plan_memory(
    fields: Sequence[Field],
    *,
    batch_size: int,
    num_threads: int,
    budget: int,
    min_open_batches: int,
    coalesce: Coalesce | None = None,
    carry_bytes: int = 0,
    plan_bytes: int = 0,
) -> MemoryPlan:
    """Divide the budget, for fields that are read in batches of `batch_size` samples by up to `num_threads` threads.

    What cannot be done without comes first, then decode threads, a fetch thread, caches, and what is fetched ahead: up
    to an eighth of the budget (a quarter where Python reads). So a budget that suffices is not made insufficient by
    adding to it. Requests are as many as have room, each for as much as a decoded chunk, up to what the store is asked
    at once.

    Indices of shards get what all of them take, up to a part of the budget and at least one. A request for several
    inner chunks holds all their bytes until the last one is decoded; chunks are decoded in the order in which they
    arrive, so one such request for each thread, and one more, is partly decoded at a time.

    `plan_bytes` is what the plan of an epoch keeps.

    Decoded chunks that neighbouring blocks share get `carry_bytes` if so much is left, before caches do, or nothing.
    """
    stored = [f for f in fields if isinstance(f, StoredField) and not f.resident]
    streamed = [layout.spec for f in stored for layout in f.layouts]
    local = max((_stored_bytes(spec) for spec in streamed if spec.source is None), default=0)
    fed = max((spec.decoded_bytes for spec in streamed if spec.source is not None), default=0)
    block_bytes = max((_block_bytes(spec) for spec in streamed), default=0)
    of_thread = _scratch_bytes(stored)
    resident = sum(resident_bytes(f) for f in fields if isinstance(f, StoredField) and f.resident)
    matrices = [f for f in fields if isinstance(f, CsrField)]
    resident += sum(f.indptr.nbytes for f in matrices)
    engines = [
        element_fields(side, layout) for f in matrices for side in f.sides for layout in range(len(side[0].layouts))
    ]
    least_elements = sum(plan_elements(one, num_threads=num_threads).used_bytes for one in engines)
    batch_bytes = batch_size * sum(sample_bytes(f) for f in fields)
    indices = [_index_bytes(f) for f in fields]
    one_each = sum(one for one, _ in indices)
    needed = resident + one_each + min_open_batches * batch_bytes + fed + least_elements + plan_bytes
    ample = needed + num_threads * of_thread + local

    # The order of the module's docstring, from its end.
    left = budget - needed
    threads = max(1, min(num_threads, left // of_thread)) if of_thread else num_threads
    left -= threads * of_thread
    fetches = 0 < local <= left
    carry_bytes = carry_bytes if carry_bytes <= left - local * fetches else 0
    left -= carry_bytes
    element_spare = max(0, left - local * fetches) // _ELEMENT_DIVISOR // max(1, len(engines))
    of_elements = [plan_elements(one, num_threads=num_threads, spare=element_spare) for one in engines]
    element_bytes = sum(one.used_bytes for one in of_elements)
    left -= element_bytes - least_elements
    spare = max(0, left - local * fetches) // 2
    num_sharded = max(1, sum(one > 0 for one, _ in indices))
    index_share = min(budget // _INDEX_DIVISOR, spare // 2) // num_sharded
    index_cache_bytes = tuple(one and max(one, min(every, index_share)) for one, every in indices)
    num_lists = sum(isinstance(f, VlenField | CsrField) for f in fields)
    list_cache_bytes = min(budget // _VLEN_DIVISOR, spare) // num_lists if num_lists else 0
    left += fed - (sum(index_cache_bytes) - one_each) - num_lists * list_cache_bytes

    kinds = 2 if local and fed else 1
    num_fetch_threads = 0
    if fetches:
        chunk = max(spec.decoded_bytes for spec in streamed if spec.source is None)
        most = min(_MAX_FETCH_THREADS, budget // _LOCAL_DIVISOR // kinds // chunk)
        num_fetch_threads = max(1, min(most, min(left // kinds, left - fed) // local))
    share = min(min(budget // _FED_DIVISOR, left) // kinds, left - num_fetch_threads * local)
    coalesce, merged, request = coalesce or DEFAULT_COALESCE, 0, fed
    whole = max(
        (spec.shard_bytes for spec in streamed if spec.source is not None and spec.shard is not None), default=0
    )
    if whole:
        limit = max(0, min(coalesce.limit, whole, (share - fed) // (2 * (threads + 1))))
        coalesce = replace(coalesce, gap=min(coalesce.gap, limit), limit=limit)
        merged = (threads + 1) * limit
        request += coalesce.gap
    most = min((spec.source.max_requests for spec in streamed if spec.source is not None), default=0)
    max_requests = max(1, min(most, (share - merged) // request)) if fed else 0
    return MemoryPlan(
        budget=budget,
        least_budget=needed + of_thread,
        ample_budget=ample,
        scratch_bytes=threads * of_thread,
        fetch_bytes=num_fetch_threads * local + max_requests * request + merged,
        resident_bytes=resident,
        batch_bytes=batch_bytes,
        required_batches=min_open_batches,
        num_threads=threads,
        wanted_threads=num_threads,
        num_fetch_threads=num_fetch_threads,
        chunk_bytes=max((spec.decoded_bytes for spec in streamed), default=0),
        block_bytes=block_bytes,
        reads_local=local > 0,
        max_requests=max_requests,
        requests_bounded_by="memory" if max_requests < most else "store",
        coalesce=coalesce,
        index_cache_bytes=index_cache_bytes,
        list_cache_bytes=list_cache_bytes,
        num_lists=num_lists,
        carry_bytes=carry_bytes,
        plan_bytes=plan_bytes,
        element_bytes=element_bytes,
        element_spare=element_spare,
        element_threads=sum(one.plan.num_threads for one in of_elements),
    )


@dataclass(frozen=True)
class ElementMemory:
    """What an engine may use whose samples are chunks of a sparse matrix.

    Attributes
    ----------
    plan
        Its memory.
    blocks_ahead
        How many blocks of elements it decodes ahead of the batch that is made.
    """

    plan: MemoryPlan
    blocks_ahead: int

    @property
    def used_bytes(self) -> int:
        """What it uses of its budget, at most."""
        return self.plan.budget - self.plan.batch_room + self.blocks_ahead * self.plan.batch_bytes


def plan_elements(fields: Sequence[StoredField], *, num_threads: int, spare: int = 0) -> ElementMemory:
    """Divide the memory of an engine that reads chunks of a sparse matrix: the least that it needs, and `spare`."""

    def plan_with(budget: int) -> MemoryPlan:
        return plan_memory(
            fields, batch_size=1, num_threads=num_threads, budget=budget, min_open_batches=_LEAST_BLOCKS_AHEAD
        )

    plan = plan_with(plan_with(0).least_budget + spare)
    in_flight = max(plan.num_fetch_threads, plan.max_requests)
    wanted = max(2 * plan.num_threads + 2, 1 - (-(2 * plan.num_threads + in_flight) // len(fields)))
    return ElementMemory(plan, min(wanted, plan.fitting_batches))


def _stored_bytes(spec: ArraySpec) -> int:
    """Return what a buffer for a stored chunk may take: compressors add a little to what they cannot compress."""
    return _buffer_bytes(spec.decoded_bytes + spec.decoded_bytes // 128 + 64)


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
    # Of several codecs, Blosc may have compressed what another one made of the chunk.
    whole = spec.decoded_bytes if len(spec.codecs) == 1 else _intermediate_bytes(spec.decoded_bytes)
    return min(whole, max(_BLOCK_BYTES, *blocks))


def _intermediate_bytes(size: int) -> int:
    """Return the most that a chunk of `size` bytes takes between two decompressors (cpp/codecs/codec_pipeline.cc)."""
    return size + size // 8 + 65536


def _scratch_bytes(fields: Sequence[StoredField]) -> int:
    """Return the temporary memory of one decode thread, at most: each buffer is as large as any field needs it."""
    buffers = [0] * 5
    for layout in (layout for f in fields for layout in f.layouts):
        spec, size = layout.spec, layout.spec.decoded_bytes
        decompressors = sum(c.name != "crc32c" for c in spec.codecs)
        fused = _goes_by_blocks(layout)
        of_field = (
            _stored_bytes(spec),
            0 if fused or not decompressors else _buffer_bytes(size),
            min(2, max(0, decompressors - 1)) * _buffer_bytes(_intermediate_bytes(size)),
            _buffer_bytes(_block_bytes(spec)),  # before its items are put in order,
            _buffer_bytes(_block_bytes(spec)) if fused else 0,  # and after
        )
        buffers = [max(a, b) for a, b in zip(buffers, of_field, strict=True)]
    return sum(buffers)


def _goes_by_blocks(layout: Layout) -> bool:
    """Return whether chunks surely go block by block to the slots: one Blosc, and rows that lie there as they are."""
    spec = layout.spec
    return (
        [c.name for c in spec.codecs] == ["blosc"]
        and spec.sample_axis == 0
        and spec.storage_order == tuple(range(len(spec.shape)))
        and spec.chunk_shape[1:] == spec.shape[1:]
        and spec.swap_bytes == 0
        and spec.sample_bytes >= _MIN_FUSED_ROW
        and layout.conversion is None
    )


def _index_bytes(field: Field) -> tuple[int, int]:
    """Return the memory for one index of a field's shards, and for all of them."""
    if not isinstance(field, StoredField) or field.resident:
        return 0, 0
    specs = [layout.spec for layout in field.layouts]
    one = [0 if spec.shard is None else spec.shard.cached_index_bytes for spec in specs]
    return sum(one), sum(max(1, spec.num_shards) * size for spec, size in zip(specs, one, strict=True))
