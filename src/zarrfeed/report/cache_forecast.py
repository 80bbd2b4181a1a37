"""Forecast the share of reads that the node cache will answer, from listings and headers of entries.

Invariant: a cache evicts nothing, so an entry that is in the cache now is a hit in every later epoch, and chunks that
are not there are added until the limit is reached. So, from the second epoch on, the hits are the entries that are
there now and as many more as there is room for. Epochs of all ranks count: once a cache has seen an epoch of each rank
of the machine, each of them has this hit ratio, if these ranks read all chunks. The forecast reads no chunk and no
index of a shard. If it depends on sizes that no listing tells, it is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core
from zarrfeed.base.page import Row
from zarrfeed.base.units import format_bytes
from zarrfeed.plan.order.carry import chunks_of_order
from zarrfeed.plan.order.order import Order
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.fields.field import Field
from zarrfeed.storage.access.cache_options import ArrayCache
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.node_cache import cache_of
from zarrfeed.storage.chunks.parted_source import PartedSource
from zarrfeed.storage.chunks.transcoding import share_of_cpu

#: Entries that are looked at: all of a smaller cache, a random sample of a larger one. Its error is a third of a point.
_MOST_ENTRIES = 1 << 16

_IN_MEMORY = "in memory of the job, on top of memory_budget, until the last process that uses it ends"

#: An entry: key of the object, first byte and end, whether it is of the object's version, bytes that count.
_Entry = tuple[str, int, int | None, bool, int]


@dataclass(frozen=True)
class CacheExplanation:
    """Forecast of the node cache for a dataset.

    Attributes
    ----------
    expected_hit_ratio
        Share of the reads that the cache will answer, from the second epoch on; None if it is not known. For several
        ranks, the share of their reads together. On several machines without `affinity`, the share that a cache reaches
        once its machine has read every chunk.
    entries, wanted_entries
        Number of entries that epochs read and that are in the cache now; number of all that there could be: chunks,
        inner chunks of shards and the indices of shards. For a cache with very many entries, the first is an estimate.
    entry_bytes, wanted_bytes
        Bytes of these entries, as they count against the limit; `wanted_bytes` is None if sizes are not known.
    room
        Bytes that any dataset can add to the cache now.
    limit
        Bytes that the cache may use.
    why_unknown
        The reason why `expected_hit_ratio` is None; else empty.
    troubles
        Reasons why the cache does not do all that it could, as `stats().cache.troubles` will list them.
    transcoded
        Names of the arrays whose chunks the cache keeps as Blosc-lz4: epochs from the second on decode that.
    decode_costs
        For each of these arrays, the CPU time that decoding a hit takes, such as "a quarter of the CPU time of zstd".
    notes
        Facts about the cache itself, such as that a `MemoryCache` takes memory on top of `memory_budget`.
    """

    expected_hit_ratio: float | None
    entries: int
    wanted_entries: int
    entry_bytes: int
    wanted_bytes: int | None
    room: int
    limit: int
    why_unknown: str = ""
    troubles: tuple[str, ...] = ()
    transcoded: tuple[str, ...] = ()
    decode_costs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        ratio = self.expected_hit_ratio
        expected = f"hit ratio not known: {self.why_unknown}" if ratio is None else f"{ratio:.1%} of the reads will hit"
        wanted = "" if self.wanted_bytes is None else f" of {format_bytes(self.wanted_bytes)}"
        return [
            ("node cache", expected + ", from the second epoch on" * (ratio is not None)),
            (
                "",
                f"{format_bytes(self.entry_bytes)}{wanted} are there, {self.entries} of {self.wanted_entries} entries; "
                f"room for {format_bytes(self.room)} of the limit of {format_bytes(self.limit)}",
            ),
            *[("", note) for note in self.notes],
            *[
                ("", f"keeps {name} as lz4: hits are decoded as such, for about {cost}")
                for name, cost in zip(self.transcoded, self.decode_costs, strict=True)
            ],
            *[("", trouble) for trouble in self.troubles],
        ]


def explain_cache(fields: Iterable[Field], order: Order) -> CacheExplanation | None:
    """Forecast the node cache for the epochs of an order; None without a cache."""
    arrays: dict[str, _Array] = {}
    named: list[ArrayCache] = []
    troubles = []
    for field in fields:
        spec = field.layouts[0].spec if field.layouts else None
        cached = None if spec is None else cache_of(spec)
        if spec is None or cached is None:
            continue
        source = spec.source
        named.append(cached)
        troubles.append(source.cache_trouble if isinstance(source, StoreSource) else cached.trouble())
        called = cached.to_core()
        if called is None or spec.merged is not None:  # whose entries are not counted
            continue
        whole = np.arange(_chunks_along(spec))
        chunks = whole if field.resident else chunks_of_order(order, field, field.layouts[0])
        one = _Array(spec, cached, called, chunks, field.resident)
        same = arrays.get(one.name)
        arrays[one.name] = one if same is None else same.together(one)
    if not named:
        return None
    directory = named[0].options.directory()
    forecasts = [one.forecast() for one in arrays.values()]
    room = max(0, directory.limit() - directory.used_bytes()) if directory.is_writable() else 0
    forecast = _forecast(forecasts, room, directory.limit(), tuple(dict.fromkeys(filter(None, troubles))))
    transcoded = [one.spec for one in arrays.values() if one.cached.form]
    return replace(
        forecast,
        transcoded=tuple(spec.name for spec in transcoded),
        decode_costs=tuple(map(share_of_cpu, transcoded)),
        notes=(_IN_MEMORY,) if named[0].options.in_memory else (),
    )


@dataclass(frozen=True)
class _ArrayForecast:
    """The entries of one array: those that are there, all that could be, and the bytes of one; None if unknown."""

    entries: float
    wanted: float
    entry_bytes: float
    each: float | None
    resident: bool

    @property
    def missing(self) -> float:
        return self.wanted - self.entries


def _forecast(forecasts: list[_ArrayForecast], room: int, limit: int, troubles: tuple[str, ...]) -> CacheExplanation:
    epochs = [one for one in forecasts if not one.resident]
    # Fields in memory are read once, before the first epoch.
    left = room - sum(one.missing * (one.each or 0) for one in forecasts if one.resident)
    there, wanted = sum(one.entries for one in epochs), sum(one.wanted for one in epochs)
    incomplete = [one for one in epochs if one.missing > 0]
    unsized = [one for one in incomplete if one.each is None]
    missing = sum(one.missing for one in incomplete)
    ratio: float | None = None
    why = ""
    if not wanted:
        why = "no array of the epochs is cached"
    elif left <= 0 or not incomplete:
        ratio = there / wanted
    elif unsized:
        why = "neither the store nor an entry tells how large chunks are"
    else:
        each = sum(one.missing * (one.each or 0) for one in incomplete) / missing
        ratio = (there + min(missing, math.floor(left / each))) / wanted
    known = all(one.each is not None for one in epochs)
    return CacheExplanation(
        expected_hit_ratio=ratio,
        entries=round(there),
        wanted_entries=round(wanted),
        entry_bytes=round(sum(one.entry_bytes for one in epochs)),
        wanted_bytes=round(sum(p.entry_bytes + p.missing * (p.each or 0) for p in epochs)) if known else None,
        room=room,
        limit=limit,
        why_unknown=why,
        troubles=troubles,
    )


@dataclass(frozen=True)
class _Array:
    """One array: its name in the cache, and the chunks along the sample axis that are read."""

    spec: ArraySpec
    cached: ArrayCache
    called: core.CachedArray
    chunks: npt.NDArray[np.int64]
    resident: bool

    @property
    def is_joined(self) -> bool:
        """True if keys begin with the path or the number of one of several stores."""
        of_paths = self.cached.prefix == "" and self.spec.staged is not None
        return of_paths or isinstance(self.spec.source, PartedSource)

    @property
    def name(self) -> str:
        return f"{self.cached.store}\0{self.cached.prefix}"

    def together(self, other: _Array) -> _Array:
        chunks = np.union1d(self.chunks, other.chunks)
        return _Array(self.spec, self.cached, self.called, chunks, self.resident and other.resident)

    def forecast(self) -> _ArrayForecast:
        """Compare the chunks that are read with the entries in the cache."""
        spec, shard = self.spec, self.spec.shard
        objects = self.chunks
        if shard is not None:
            objects = np.unique(self.chunks // shard.chunks[spec.sample_axis])
        wanted_objects, wanted = self._wanted(objects)
        listed, share = self.called.entries(_MOST_ENTRIES)
        counted = self._in_epochs(listed, set(objects.tolist()))
        entries = min(wanted, len(counted) / share)
        mean = sum(counted) / len(counted) if counted else None
        stored = self.cached.objects
        each: float | None
        if self.cached.form:  # the store tells other sizes; a chunk that hardly compresses is kept decoded
            each = mean or self.called.counted_bytes("c/0/0", 0, None, spec.decoded_bytes)
        elif stored is None or not stored.count:
            each = mean
        elif shard is None:
            each = stored.counted_bytes / stored.count
        else:
            each = mean if counted and len(counted) > wanted_objects else self._inner_bytes(stored.stored_bytes)
        return _ArrayForecast(entries, wanted, entries * (mean or 0), each, self.resident)

    def _wanted(self, objects: npt.NDArray[np.int64]) -> tuple[float, float]:
        """Return the number of objects that are read, and the number of reads of chunks and indices in them."""
        spec, stored = self.spec, self.cached.objects
        written = 1.0 if stored is None else min(1.0, stored.count / max(1, math.prod(_objects_along(spec))))
        along = _objects_along(spec)
        if spec.choice is not None:  # others are never read
            lengths = zip(spec.shape, spec.shard_shape, strict=True)
            along = [spec.choice.num_chunks(axis, n, s) for axis, (n, s) in enumerate(lengths)]
        across = math.prod(n for axis, n in enumerate(along) if axis != spec.sample_axis)
        num_objects = len(objects) * across * written
        if spec.shard is None:
            return num_objects, num_objects
        return num_objects, num_objects + len(self.chunks) * spec.num_cells * written

    def _inner_bytes(self, stored_bytes: int) -> float:
        """Return the average bytes of an entry, for inner chunks and indices of shards of so many bytes in all."""
        spec, stored = self.spec, self.cached.objects
        assert spec.shard is not None
        assert stored is not None
        index_bytes = spec.shard.stored_index_bytes
        written = stored.count / spec.num_shards
        num_chunks = math.prod(-(-n // c) for n, c in zip(spec.shape, spec.chunk_shape, strict=True)) * written
        inner = max(0.0, (stored_bytes - stored.count * index_bytes) / num_chunks)
        of_inner = self.called.counted_bytes("c/0/0", 0, 1 << 20, math.ceil(inner))
        of_index = self.called.counted_bytes("c/0/0", -index_bytes, None, index_bytes)
        return (num_chunks * of_inner + stored.count * of_index) / (num_chunks + stored.count)

    def _in_epochs(self, listed: list[_Entry], objects: set[int]) -> list[int]:
        """Return the bytes of the entries that are hits, or will be after their object was fetched once more."""
        found, versions = [], self.cached.versions
        assert versions is not None
        for key, _, end, is_current, counted in listed:
            if is_current or (end is None and versions.find(key)):
                if self.is_joined:
                    found.append(counted)
                    continue
                parts = key.split(self.spec.key_separator)[bool(self.spec.key_prefix) :]
                index = parts[self.spec.sample_axis] if len(parts) > self.spec.sample_axis else ""
                if index.isdigit() and int(index) in objects:
                    found.append(counted)
        return found


def _objects_along(spec: ArraySpec) -> list[int]:
    return [-(-n // s) for n, s in zip(spec.shape, spec.shard_shape, strict=True)]


def _chunks_along(spec: ArraySpec) -> int:
    return -(-spec.num_samples // spec.rows_per_chunk)
