"""How the memory budget is spent: scratch of the threads, bytes in flight, and open batches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from zarrfeed.errors import ConfigError, MemoryBudgetError
from zarrfeed.fields import Field, ListField, StoredField, resident_bytes, sample_bytes
from zarrfeed.order import Order
from zarrfeed.shards import DEFAULT_COALESCE, Coalesce
from zarrfeed.stats import format_bytes

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DECIMAL_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
#: Indices of shards may take so much of the budget: at 1 GiB those of a million inner chunks are all kept.
_INDEX_PART = 64
#: Decoded chunks of text and bytes may take so much of the budget.
_LIST_PART = 8
_MAX_FETCH_THREADS = 16
#: Fetching may take so much of the budget: of local chunks, for which little is waited, and of those that Python reads.
_LOCAL_PART, _FED_PART = 8, 4


def parse_bytes(value: int | str, name: str = "memory_budget", *, least: int = 1) -> int:
    """Return a number of bytes from an int, or from text such as "2GiB", "512 MB" or "1e9".

    Raises
    ------
    ConfigError
        If it is no size, or below `least`; `name` is what the message calls it.
    """
    text = str(value).strip()
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)\s*([KMGT]?)(i?)B?", text, flags=re.IGNORECASE)
    try:
        if match is None:
            raise ValueError(text)
        unit = match[2].upper()
        size = int(float(match[1]) * (_UNITS[unit] if match[3] else _DECIMAL_UNITS[unit]))
    except (ValueError, OverflowError) as error:
        raise ConfigError(f'{name} = {value!r}, must be bytes or text such as "2GiB"') from error
    if size < least:
        raise ConfigError(f"{name} = {value!r}, must be at least {least} byte{'s' * (least != 1)}")
    return size


@dataclass(frozen=True)
class MemoryPlan:
    """What an engine may use.

    Attributes
    ----------
    budget
        All of it, in bytes.
    scratch_bytes
        Temporary memory of the decode threads, at most.
    fetch_bytes
        Stored bytes in flight, at most.
    resident_bytes
        Stored fields that are kept in memory.
    batch_bytes
        One batch of all fields.
    num_fetch_threads
        Threads that wait for storage.
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
    readers
        Consumers on the machine, which have as much each.
    """

    budget: int
    scratch_bytes: int
    fetch_bytes: int
    resident_bytes: int
    batch_bytes: int
    num_fetch_threads: int
    max_requests: int = 0
    requests_bounded_by: Literal["memory", "store"] = "store"
    coalesce: Coalesce = DEFAULT_COALESCE
    index_cache_bytes: tuple[int, ...] = ()
    list_cache_bytes: int = 0
    num_lists: int = 0
    readers: int = 1

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
        kept = self.resident_bytes + self.index_bytes + self.list_bytes
        return self.budget - self.scratch_bytes - self.fetch_bytes - kept

    def wanted_open_batches(self, *, required: int, tasks_in_round: int, num_threads: int) -> int:
        """Return how many batches have to be open for all threads and requests to be busy.

        The batches of the current round of lanes (`required`) have to be open; another round lets the threads go on
        while the consumer takes them.
        """
        in_flight = max(self.num_fetch_threads, self.max_requests)
        rounds = 1 + -(-(2 * num_threads + in_flight) // tasks_in_round)
        return max(2, rounds) * required

    def max_open_batches(self, order: Order, *, required: int, wanted: int) -> int:
        """Return how many batches may be open: those that are wanted, or what the budget has room for.

        Raises
        ------
        MemoryBudgetError
            If the batches that must be open at once do not fit.
        """
        room = self.batch_room // self.batch_bytes
        if required > room:
            needed = self.budget - self.batch_room + required * self.batch_bytes
            readers = f" for each of the {self.readers} readers on this machine" if self.readers > 1 else ""
            raise MemoryBudgetError(
                f"memory_budget = {format_bytes(self.budget * self.readers)}, must be at least "
                f"{format_bytes(needed * self.readers, round_up=True)}{readers}: "
                f"{format_bytes(self.scratch_bytes)} to decode, {format_bytes(self.fetch_bytes)} to fetch, "
                + (f"{format_bytes(self.index_bytes)} for indices of shards, " if self.index_bytes else "")
                + (f"{format_bytes(self.list_bytes)} for chunks of text, " if self.list_bytes else "")
                + f"{format_bytes(self.resident_bytes)} of resident fields and {required} open batches of "
                f"{format_bytes(self.batch_bytes)} (lanes = {order.lanes}, mix = {order.mix}, blocks of "
                f"{order.block_rows} samples)"
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
) -> MemoryPlan:
    """Divide the budget, for fields that are read in batches of `batch_size` samples.

    The batches that must be open come first; of what is left, fetching gets up to an eighth of the budget (a quarter
    where Python reads), and at least one chunk. So a budget that suffices is not made insufficient by adding to it.
    Requests are as many as have room, each for as much as a decoded chunk, up to what the store is asked at once.

    Indices of shards get what all of them take, up to a part of the budget and at least one. A request for several
    inner chunks holds all their bytes until the last one is decoded; chunks are decoded in the order in which they
    arrive, so one such request for each thread, and one more, is partly decoded at a time.
    """
    streamed = [f.spec for f in fields if isinstance(f, StoredField) and not f.resident]
    chunk = max((spec.decoded_bytes for spec in streamed), default=0)
    # as read, as decoded, and one more between each two decompressors
    copies = 2 + max((max(0, sum(c.name != "crc32c" for c in spec.codecs) - 1) for spec in streamed), default=0)
    scratch_bytes = num_threads * copies * chunk
    resident = sum(resident_bytes(f) for f in fields if isinstance(f, StoredField) and f.resident)
    batch_bytes = batch_size * sum(sample_bytes(f) for f in fields)
    index_cache_bytes = tuple(_index_cache_bytes(f, budget) for f in fields)
    num_lists = sum(isinstance(f, ListField) for f in fields)
    list_cache_bytes = budget // _LIST_PART // num_lists if num_lists else 0
    kept = resident + sum(index_cache_bytes) + num_lists * list_cache_bytes
    left = budget - scratch_bytes - kept - min_open_batches * batch_bytes
    local = max((spec.decoded_bytes for spec in streamed if spec.source is None), default=0)
    fed = max((spec.decoded_bytes for spec in streamed if spec.source is not None), default=0)
    kinds = 2 if local and fed else 1
    num_fetch_threads = (
        max(1, min(_MAX_FETCH_THREADS, min(budget // _LOCAL_PART, left) // kinds // local)) if local else 0
    )
    share = min(budget // _FED_PART, left) // kinds
    coalesce, merged = coalesce or DEFAULT_COALESCE, 0
    whole = max(
        (spec.shard_bytes for spec in streamed if spec.source is not None and spec.shard is not None), default=0
    )
    if whole:
        limit = max(0, min(coalesce.limit, whole, (share - fed) // (2 * (num_threads + 1))))
        coalesce = Coalesce(gap=min(coalesce.gap, limit), limit=limit)
        merged = (num_threads + 1) * limit
        fed += coalesce.gap
    most = min((spec.source.max_requests for spec in streamed if spec.source is not None), default=0)
    max_requests = max(1, min(most, (share - merged) // fed)) if fed else 0
    return MemoryPlan(
        budget=budget,
        scratch_bytes=scratch_bytes,
        fetch_bytes=num_fetch_threads * local + max_requests * fed + merged,
        resident_bytes=resident,
        batch_bytes=batch_bytes,
        num_fetch_threads=num_fetch_threads,
        max_requests=max_requests,
        requests_bounded_by="memory" if max_requests < most else "store",
        coalesce=coalesce,
        index_cache_bytes=index_cache_bytes,
        list_cache_bytes=list_cache_bytes,
        num_lists=num_lists,
    )


def _index_cache_bytes(field: Field, budget: int) -> int:
    if not isinstance(field, StoredField) or field.resident or field.spec.shard is None:
        return 0
    one = field.spec.shard.kept_index_bytes
    return max(one, min(field.spec.num_shards * one, budget // _INDEX_PART))
