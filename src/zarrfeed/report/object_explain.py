"""`ObjectIterableDataset.explain()`: the reading of objects, and whether one Zarr store would be faster."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfeed.base.page import Page, Row
from zarrfeed.base.units import format_bytes
from zarrfeed.metadata.group.objects import Objects
from zarrfeed.plan.order.order import EpochPlan
from zarrfeed.plan.schedule.resources import Resources
from zarrfeed.storage.chunks.blocking_reads import MOST_FILES, blocking_reads

#: Below this size a store is bounded by the number of requests and not by bytes: each costs some 0.1 ms of CPU.
_SMALL_FAR, _SMALL_LOCAL = 512 << 10, 32 << 10
#: Fewer objects are read once more before anybody could pack them.
_MANY = 1000
#: A shard of a store that replaces them.
_SHARD_BYTES = 64 << 20


@dataclass(frozen=True, repr=False)
class ObjectExplanation(Page):
    """One consumer's reading of objects. `str()`, `repr()` and notebooks show a page.

    Attributes
    ----------
    source
        The place of the objects, as a path or a URL.
    num_objects, num_delivered
        Number of all objects, and of those that an epoch delivers on this rank.
    stored_bytes, mean_bytes, largest_bytes
        Bytes of the objects whose size is known, in total, on average and of the largest one; 0 if no size is known.
    num_unknown
        Objects whose size is not known.
    batch_size
        Objects of a batch.
    shuffle
        True if the objects come in random order: any order of all objects is possible.
    decode
        The name of the decoder; "" if the bytes are delivered.
    num_threads
        Number of threads that decode.
    ahead_bytes
        Memory that objects which are read ahead of the batches may take.
    requested_by
        The part that asks for the objects: "threads" or "the event loop".
    most_requests
        Largest number of objects that are asked for at once; the number adapts to the store.
    packing
        The gain of one Zarr store in place of the objects, and the command that makes it; "" if there is no gain.
    cache_trouble
        The reason why the node cache does not do all that it could; "" if it does, or there is none.
    weights
        The number of objects of an epoch, and the most that one comes; "" if each comes once.
    """

    source: str
    num_objects: int
    num_delivered: int
    stored_bytes: int
    mean_bytes: int
    largest_bytes: int
    num_unknown: int
    batch_size: int
    shuffle: bool
    decode: str
    num_threads: int
    ahead_bytes: int
    requested_by: str
    most_requests: int
    packing: str
    cache_trouble: str = ""
    weights: str = ""

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        known = f"{format_bytes(self.stored_bytes)}, {format_bytes(self.mean_bytes)} each on average, the largest "
        sizes = known + format_bytes(self.largest_bytes) if self.stored_bytes else "of unknown size"
        if self.stored_bytes and self.num_unknown:
            sizes += f"; {self.num_unknown} of unknown size"
        rows = [
            ("objects", f"{self.num_objects}, {self.num_delivered} delivered in batches of {self.batch_size}"),
            ("", self.source),
            ("", sizes),
            ("order", "all objects in random order, anew in each epoch" if self.shuffle else "as listed"),
            *([("weights", self.weights)] if self.weights else []),
            ("decode", f"{self.decode}, {self.num_threads} threads" if self.decode else "none: bytes as stored"),
            ("requests", f"up to {self.most_requests} at once, by {self.requested_by}; as many as pay"),
            ("memory", f"at most {format_bytes(self.ahead_bytes)} for objects that are read ahead"),
        ]
        if self.cache_trouble:
            rows.append(("node cache", self.cache_trouble))
        if self.packing:
            rows.append(("packing", self.packing))
        return rows


def explain_objects(
    objects: Objects, plan: EpochPlan, resources: Resources, *, batch_size: int, decode: str
) -> ObjectExplanation:
    """Describe how a consumer reads objects in an epoch."""
    sizes, stored = objects.known_sizes, objects.stored
    cached = stored.cached
    return ObjectExplanation(
        source=objects.source.name,
        num_objects=len(objects),
        num_delivered=plan.steps,
        stored_bytes=objects.listing.total_bytes,
        mean_bytes=objects.mean_bytes if len(sizes) else 0,
        largest_bytes=int(sizes.max()) if len(sizes) else 0,
        num_unknown=len(objects) - len(sizes),
        batch_size=batch_size,
        shuffle=plan.order.shuffle,
        decode=decode,
        num_threads=resources.memory.num_threads,
        ahead_bytes=resources.memory.budget,
        requested_by="threads" if cached is None and blocking_reads(stored) is not None else "the event loop",
        most_requests=MOST_FILES if objects.source.is_local else stored.max_requests,
        packing=_packing(objects, decode),
        cache_trouble="" if cached is None else cached.trouble(),
        weights="" if objects.expected is None else objects.expected.row()[1],
    )


def _packing(objects: Objects, decode: str) -> str:
    """Return the reason why a Zarr store would be faster, and the command that makes it; else ""."""
    total, mean = objects.listing.total_bytes, objects.mean_bytes
    small = _SMALL_FAR if objects.stored.is_far else _SMALL_LOCAL
    if not total or mean >= small or len(objects) < _MANY:
        return ""
    shards = -(-total // _SHARD_BYTES)
    chosen = f", decode={decode!r}" if decode in ("npy", "image") else ""
    return (
        f"an object of {format_bytes(mean)} costs as much time as a larger one. As one Zarr store, {len(objects)} "
        f"objects would be {shards} shard{'s' * (shards != 1)}, read in parts: "
        f"zarrfeed.objects.to_zarr({objects.source.name!r}, 'packed.zarr'{chosen})"
    )
