"""The division of the memory budget: scratch of the threads, bytes in flight, and open batches.

No more than the budget is ever planned. Where it is short, things are given up in this order, each as far as need be:

1. Batches beyond those that must be open, and caches (of decoded text, of chunks of sparse matrices, and of shard
   indices but one).
2. Fetching ahead: down to one fetch thread, and one request in stores that Python reads.
3. The last fetch thread: decode threads then wait for storage themselves, each with the buffer that it has anyway.
   From the page cache that costs nothing, and as many chunks are waited for at once as there are decode threads.
4. Decode threads, down to one: each one less is that much less speed. More than two have to leave room for a second
   round of batches, which they decode while the first one is taken.

The memory that is left then is needed: one chunk being decoded, one request, one index a sharded field, and the open
batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from zarrfeed.base.errors import MemoryBudgetError
from zarrfeed.base.units import format_bytes
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.order.order import Order
from zarrfeed.spec.arrays.sharding import DEFAULT_COALESCE, Coalesce

#: Indices of shards get at most the budget divided by this: at 1 GiB those of a million inner chunks are all cached.
_INDEX_DIVISOR = 64
#: Decoded chunks of text and bytes get at most the budget divided by this.
_VLEN_DIVISOR = 8
#: Engines that read sparse matrices get the left budget divided by this.
_ELEMENT_DIVISOR = 4
_LEAST_BLOCKS_AHEAD = 2
_MAX_FETCH_THREADS = 16
#: With more threads than these, a second round of batches needs room, or some find no work.
_FEW_THREADS = 2
#: Fetching gets at most the budget divided by these: for local chunks, whose waits are short, and for chunks that
#: Python reads.
_LOCAL_DIVISOR, _FED_DIVISOR = 8, 4


@dataclass(frozen=True)
class MemoryPlan:
    """The memory, threads and requests that an engine may use.

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
        Number of batches that must be open at once.
    num_threads, wanted_threads
        Decode threads, and how many there would be if memory had room.
    num_fetch_threads
        Threads that wait for storage; 0 if there is nothing local to read, or no room: then decode threads do.
    reads_local
        True if the engine reads chunks itself.
    chunk_bytes
        The largest read chunk, decoded.
    block_bytes
        The largest Blosc block that there is room for.
    max_requests
        Chunks that are asked for at once where the store is read by Python; 0 if there is no such field.
    requests_bounded_by
        The limit of these requests: "memory" has no room for more, or the "store" is not asked for more.
    coalesce
        The rule by which inner chunks share a request there, so that a request fits.
    index_cache_bytes
        Memory for the indices of shards, one entry a field; 0 for those without, and for those whose arrays an earlier
        field draws from.
    list_cache_bytes
        Memory of each field for decoded chunks of text and bytes.
    num_lists
        Number of such fields.
    carry_bytes
        Memory for decoded chunks that neighbouring blocks share; 0 if nothing is carried.
    keep_bytes
        Memory for decoded chunks that several columns of patches need, or several strips of blocks: what nothing else
        takes.
    element_bytes
        Memory of the engines that read the chunks of sparse matrices: to decode, to fetch, and for chunks that are
        decoded ahead. 0 if there is no sparse matrix.
    element_spare
        Bytes of each of these engines beyond the least that it needs.
    element_threads
        Decode threads of these engines, all together.
    readers
        Consumers on the machine, which have as much each.
    plan_bytes
        Bytes of the plan of an epoch: of samples that are selected and follow no rule, and of an order that is listed.
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
        """Memory for indices of shards, over all fields."""
        return sum(self.index_cache_bytes)

    @property
    def list_bytes(self) -> int:
        """Memory for decoded chunks of text and bytes, over all fields."""
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
        """True if there are fewer decode threads than wanted."""
        return self.num_threads < self.wanted_threads

    def wanted_open_batches(self, *, tasks_in_round: int) -> int:
        """Return the number of open batches that keeps all threads and requests busy.

        The batches of the current round of lanes (`required_batches`) have to be open; another round lets the threads
        go on while the consumer takes them.
        """
        in_flight = max(self.num_fetch_threads, self.max_requests)
        rounds = 1 + -(-(2 * self.num_threads + in_flight) // tasks_in_round)
        return max(2, rounds) * self.required_batches

    def max_open_batches(self, order: Order, *, wanted: int) -> int:
        """Return the number of batches that may be open: `wanted`, or as many as the budget has room for.

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
                f"(lanes = {order.lanes}, mix = {order.mix}, blocks of {order.full_rows} samples)"
            )
        return min(room, wanted)


def plan_memory(
    needs: FieldNeeds,
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

    The indispensable memory comes first, then decode threads, a fetch thread, caches, and what is fetched ahead: up to
    an eighth of the budget (a quarter where Python reads). So a larger budget never fails where a smaller one suffices.
    The number of requests is as large as memory allows, each with room for a decoded chunk, up to the number that the
    store is asked at once.

    Indices of shards get what all of them take, up to a part of the budget and at least one. A request for several
    chunks, of a shard or of a file, holds all their bytes until the last one is decoded. Chunks are decoded in the
    order in which they arrive, so one such request for each thread, and one more, is partly decoded at a time.

    `plan_bytes` is the memory of the plan of an epoch.

    Decoded chunks that neighbouring blocks share get `carry_bytes` if so much is left, before caches do, or nothing.
    """
    local, fed, of_thread, one_index = needs.local_bytes, needs.fed_bytes, needs.scratch_bytes, needs.least_index_bytes
    least_elements = sum(plan_elements(one, num_threads=num_threads).used_bytes for one in needs.elements)
    batch_bytes = batch_size * needs.sample_bytes
    needed = needs.resident_bytes + one_index + min_open_batches * batch_bytes + fed + least_elements + plan_bytes
    second_round = min_open_batches * batch_bytes if num_threads > _FEW_THREADS else 0
    ample = needed + num_threads * of_thread + second_round + local

    # The order of the module's docstring, from its end.
    left = budget - needed
    threads = num_threads
    if of_thread:
        few = min(num_threads, _FEW_THREADS, left // of_thread)
        threads = max(1, few, min(num_threads, (left - second_round) // of_thread))
    left -= threads * of_thread
    fetches = 0 < local <= left
    carry_bytes = carry_bytes if carry_bytes <= left - local * fetches else 0
    left -= carry_bytes
    element_spare = max(0, left - local * fetches) // _ELEMENT_DIVISOR // max(1, len(needs.elements))
    of_elements = [plan_elements(one, num_threads=num_threads, spare=element_spare) for one in needs.elements]
    element_bytes = sum([one.used_bytes for one in of_elements])
    left -= element_bytes - least_elements
    spare = max(0, left - local * fetches) // 2
    index_share = min(budget // _INDEX_DIVISOR, spare // 2) // max(1, needs.num_indexed)
    index_cache_bytes = tuple([one and max(one, min(every, index_share)) for one, every in needs.index_bytes])
    num_lists = needs.num_lists
    list_cache_bytes = min(budget // _VLEN_DIVISOR, spare) // num_lists if num_lists else 0
    left += fed - (sum(index_cache_bytes) - one_index) - num_lists * list_cache_bytes

    kinds = 2 if local and fed else 1
    num_fetch_threads = 0
    if fetches:
        most = min(_MAX_FETCH_THREADS, budget // _LOCAL_DIVISOR // kinds // needs.local_chunk_bytes)
        num_fetch_threads = max(1, min(most, min(left // kinds, left - fed) // local))
    share = min(min(budget // _FED_DIVISOR, left) // kinds, left - num_fetch_threads * local)
    coalesce, merged, request = coalesce or DEFAULT_COALESCE, 0, fed
    if needs.fed_together_bytes:
        limit = max(0, min(coalesce.limit, needs.fed_together_bytes, (share - fed) // (2 * (threads + 1))))
        coalesce = replace(coalesce, gap=min(coalesce.gap, limit), limit=limit)
        merged = (threads + 1) * limit
        request += coalesce.gap
    max_requests = max(1, min(needs.fed_requests, (share - merged) // request)) if fed else 0
    return MemoryPlan(
        budget=budget,
        least_budget=needed + of_thread,
        ample_budget=ample,
        scratch_bytes=threads * of_thread,
        fetch_bytes=num_fetch_threads * local + max_requests * request + merged,
        resident_bytes=needs.resident_bytes,
        batch_bytes=batch_bytes,
        required_batches=min_open_batches,
        num_threads=threads,
        wanted_threads=num_threads,
        num_fetch_threads=num_fetch_threads,
        chunk_bytes=needs.chunk_bytes,
        block_bytes=needs.block_bytes,
        reads_local=local > 0,
        max_requests=max_requests,
        requests_bounded_by="memory" if max_requests < needs.fed_requests else "store",
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
    """The memory of an engine whose samples are chunks of a sparse matrix.

    Attributes
    ----------
    plan
        The memory plan of the engine.
    blocks_ahead
        Number of element blocks that it decodes ahead of the batch that is made.
    """

    plan: MemoryPlan
    blocks_ahead: int

    @property
    def used_bytes(self) -> int:
        """Bytes of its budget that it uses, at most."""
        return self.plan.budget - self.plan.batch_room + self.blocks_ahead * self.plan.batch_bytes


def plan_elements(needs: FieldNeeds, *, num_threads: int, spare: int = 0) -> ElementMemory:
    """Divide the memory of an engine that reads chunks of a sparse matrix: the least that it needs, and `spare`."""

    def plan_with(budget: int) -> MemoryPlan:
        return plan_memory(
            needs, batch_size=1, num_threads=num_threads, budget=budget, min_open_batches=_LEAST_BLOCKS_AHEAD
        )

    plan = plan_with(plan_with(0).least_budget + spare)
    in_flight = max(plan.num_fetch_threads, plan.max_requests)
    wanted = max(2 * plan.num_threads + 2, 1 - (-(2 * plan.num_threads + in_flight) // needs.num_fields))
    return ElementMemory(plan, min(wanted, plan.fitting_batches))
