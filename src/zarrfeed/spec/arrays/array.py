"""`ArraySpec`: everything the engine must know to read one stored array."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.spec.arrays.array_parts import ArrayParts
from zarrfeed.spec.arrays.codec import CodecSpec
from zarrfeed.spec.arrays.item_choice import ItemChoice, Positions
from zarrfeed.spec.arrays.sharding import ShardSpec
from zarrfeed.spec.values.conversion import Decoding


class StoreLocation(Protocol):
    """Location of the chunks of an array in a store that is no local directory (`storage/chunks/location.py`)."""

    @property
    def max_requests(self) -> int:
        """Largest number of requests that the store is asked at once."""

    @property
    def chunk_tables(self) -> Sequence[core.ChunkTable]:
        """The tables of the chunks of each part in local files, for the engine; empty where Python reads them."""

    @property
    def range_tables(self) -> Sequence[core.ChunkTable]:
        """The tables of the chunks of each part where Python reads byte ranges of files; else empty."""

    @property
    def ranges_bytes(self) -> int:
        """Bytes of all ranges of the `range_tables`, of which a request may read several; 0 without tables."""

    @property
    def max_stored_bytes(self) -> int:
        """Bytes that a chunk as stored has at most; 0 where the engine decodes it, which knows."""

    def reads_as(self, other: StoreLocation) -> bool:
        """Return True if this surely reads the same chunks as `other`, in the same way; if in doubt, False."""


class StagedArray(Protocol):
    """The name of an array of a local directory in a node cache on another disk.

    `storage/access/cache_options.py` says which directories have one.
    """

    def to_core(self) -> core.CachedArray | None:
        """Convert to the engine's form; None if the node cache holds nothing of the array."""

    def trouble(self) -> str:
        """Return why the cache does not do all that it could; empty if it does."""


@dataclass(frozen=True)
class Documented:
    """An array as its own metadata document had it when the array was opened, where that is not all in its `ArraySpec`.

    Attributes
    ----------
    spec
        The array by its own document, where the description that is read is another one: that of older consolidated
        metadata, or that of an array whose rows are read chunks. None: the two are the same.
    heeds_attributes
        True if the attributes say what the stored numbers mean (`decode_cf`). If not, the next two are empty.
    decoding
        The conversion of numbers to values by the attributes. None: the numbers are the values.
    units
        The attribute `units`; "" if there is none.
    """

    spec: ArraySpec | None = None
    heeds_attributes: bool = False
    decoding: Decoding | None = None
    units: str = ""


@dataclass(frozen=True)
class MergedAxes:
    """The axes of a stored array of which several are one axis of samples, in its `ArraySpec`.

    Attributes
    ----------
    stored
        The array with all of its axes.
    key_indices
        For each stored axis, where the index of a chunk comes from: an axis of the `ArraySpec`, and a step and a count:
        it is `chunk // step % count` along that axis.
    """

    stored: ArraySpec
    key_indices: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class ArraySpec:
    """A stored array as the engine sees it.

    Attributes
    ----------
    name
        Name in messages: the path or URL of the array.
    shape, chunk_shape
        Shapes of the array and of its read chunk, one entry per axis.
    storage_order
        Axes as stored, outermost first: (0, 1, ...) for C order.
    dtype
        NumPy dtype of the tensors, in native byte order.
    swap_bytes
        0 if stored in native byte order, else the width in bytes of the units to reverse.
    fill
        One item of the fill value in native byte order, or a pattern of items that repeats along a sample.
    codecs
        The codecs, in the order of decoding. If one is not native, zarr-python applies all of them, and the engine gets
        its output for a chunk.
    stored_dtype
        The stored dtype as zarr-python names it; `dtype` may be that of the numbers in it.
    item_type
        "str" or "bytes" for text of any length, bytes of any length and fixed-length text: batches have lists of these,
        and `dtype` is that of Python objects. Else empty.
    record
        The structured dtype of records, whose bytes are the last axis; else None.
    num_key_axes
        Axes that the array has in the store; what `shape` has beyond them is inside of an item.
    root, metadata_key
        Directory of the array, and the metadata file in it; "" for an array that is not in a local store.
    source
        The store of such an array; None for a local one, which the engine reads by itself, as it does where the store
        has `chunk_tables`.
    staged
        Name of a local array in a node cache; None: there is no cache.
    key_prefix, key_separator
        The rule by which indices of chunks, or of shards, become file names.
    shard
        The layout of read chunks in shards; None: each read chunk is an object of its own.
    choice
        The items along the other axes that samples have. None: all of them.
    merged
        The stored axes, where several of them are the sample axis; None: each axis is a stored one.
    documented
        The array by its own metadata document, where that says more than this description; None: it does not.
    """

    name: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    storage_order: tuple[int, ...]
    sample_axis: int
    dtype: np.dtype[Any]
    swap_bytes: int
    fill: bytes
    codecs: tuple[CodecSpec, ...]
    root: str
    metadata_key: str
    key_prefix: str
    key_separator: str
    zarr_format: int
    stored_dtype: str
    num_key_axes: int
    item_type: str = ""
    record: np.dtype[Any] | None = None
    shard: ShardSpec | None = None
    choice: ItemChoice | None = None
    merged: MergedAxes | None = None
    source: StoreLocation | None = field(default=None, compare=False, repr=False)
    staged: StagedArray | None = field(default=None, compare=False, repr=False)
    documented: Documented | None = field(default=None, compare=False, repr=False)

    @property
    def as_documented(self) -> ArraySpec:
        """The array as its own metadata document had it when it was opened, without a choice of items."""
        if self.documented is not None and self.documented.spec is not None:
            return self.documented.spec
        return self.as_stored if self.merged is None else self.merged.stored

    @property
    def as_stored(self) -> ArraySpec:
        """The array with all of its items."""
        return self if self.choice is None else replace(self, choice=None)

    @property
    def has_other_document(self) -> bool:
        """True if the array is described otherwise than by its own metadata document."""
        return self.documented is not None and self.documented.spec is not None

    @property
    def in_python(self) -> bool:
        """True if Python reads the chunks for the engine."""
        return self.source is not None and not self.source.chunk_tables

    @property
    def slow_codecs(self) -> tuple[str, ...]:
        """The codecs because of which zarr-python decodes this array; none where the engine does."""
        return tuple(codec.name for codec in self.codecs if not codec.native)

    @property
    def num_samples(self) -> int:
        """Length of the sample axis."""
        return self.shape[self.sample_axis]

    @property
    def chosen_shape(self) -> tuple[int, ...]:
        """Shape of the array with the items alone that samples have, without axes that they lack."""
        return self.shape if self.choice is None else self.choice.shape(self.shape)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample: the other axes, in order."""
        if self.choice is None:
            return self.shape[: self.sample_axis] + self.shape[self.sample_axis + 1 :]
        axis = self.chosen_sample_axis
        return self.chosen_shape[:axis] + self.chosen_shape[axis + 1 :]

    @property
    def chosen_sample_axis(self) -> int:
        """The sample axis, counted among the axes of `chosen_shape`."""
        if self.choice is None:
            return self.sample_axis
        return sum(one is None or not one.dropped for one in self.choice.axes[: self.sample_axis])

    @property
    def chosen_chunk_shape(self) -> tuple[int, ...]:
        """Shape of a read chunk, without axes that samples lack."""
        if self.choice is None:
            return self.chunk_shape
        kept = zip(self.chunk_shape, self.choice.axes, strict=True)
        return tuple(n for n, one in kept if one is None or not one.dropped)

    def choosing(self, axis: int, positions: Positions, *, dropped: bool) -> ArraySpec:
        """Return the array with fewer items along an axis of `chosen_shape`.

        Parameters
        ----------
        axis
            Number of the axis, not that of samples.
        positions
            Items along it, in the order of samples.
        dropped
            True if samples lose the axis.
        """
        choice = ItemChoice.of_all(len(self.shape)) if self.choice is None else self.choice
        stored = choice.axis_of(axis)
        return replace(self, choice=choice.then(stored, positions, dropped=dropped, length=self.shape[stored]))

    @property
    def sample_bytes(self) -> int:
        """Decoded bytes of one sample."""
        return math.prod(self.sample_shape) * self.dtype.itemsize

    @property
    def rows_per_chunk(self) -> int:
        """Length of a read chunk along the sample axis; it may exceed the array."""
        return self.chunk_shape[self.sample_axis]

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """Shape of a stored object: a shard, or a chunk where there are no shards."""
        along = () if self.shard is None else self.shard.chunks
        if self.merged is not None and along:
            merged = [1] * self.num_key_axes
            for (axis, _, _), n in zip(self.merged.key_indices, along, strict=True):
                merged[axis] *= n
            along = tuple(merged)
        along += (1,) * (len(self.shape) - len(along))
        return tuple(n * c for n, c in zip(along, self.chunk_shape, strict=True))

    @property
    def shard_bytes(self) -> int:
        """Bytes of one decoded stored object, padding included."""
        return math.prod(self.shard_shape) * self.dtype.itemsize

    @property
    def num_shards(self) -> int:
        """Shards of the whole array; 0 if it has none."""
        if self.shard is None:
            return 0
        if self.merged is not None:
            return self.merged.stored.num_shards
        return math.prod(-(-n // s) for n, s in zip(self.shape, self.shard_shape, strict=True))

    @cached_property
    def num_cells(self) -> int:
        """Read chunks that hold the parts of one sample; chunks without a chosen item hold none."""
        choice = self.choice
        return math.prod(
            [
                -(-n // c) if choice is None else choice.num_chunks(axis, n, c)
                for axis, (n, c) in enumerate(zip(self.shape, self.chunk_shape, strict=True))
                if axis != self.sample_axis
            ]
        )

    @cached_property
    def decoded_bytes(self) -> int:
        """Bytes of one decoded read chunk, padding included."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    def to_core(
        self, index_cache_bytes: int | None = None, parts: ArrayParts | None = None, *, is_transcoded: bool = False
    ) -> core.ArraySpec:
        """Return the specification in the form that the engine takes.

        Parameters
        ----------
        index_cache_bytes
            Memory for the indices of shards. None: as much as the engine chooses.
        parts
            The stores that its rows lie in. None: one store.
        is_transcoded
            True if a node cache of the engine transcodes its chunks.
        """
        codecs = () if self.slow_codecs else self.codecs
        return core.ArraySpec(
            name=self.name,
            shape=self.shape,
            chunk_shape=self.chunk_shape,
            storage_order=self.storage_order,
            sample_axis=self.sample_axis,
            item_bytes=self.dtype.itemsize,
            swap_bytes=self.swap_bytes,
            fill=self.fill,
            codecs=[codec.to_core() for codec in codecs],
            root=os.fsencode(self.root),
            metadata_key=self.metadata_key,
            key_prefix=self.key_prefix,
            key_separator=self.key_separator,
            num_key_axes=self.num_key_axes,
            shard=None if self.shard is None else self.shard.to_core(index_cache_bytes),
            in_python=self.in_python,
            max_stored_bytes=0 if self.source is None else self.source.max_stored_bytes,
            parts=None if parts is None else parts.to_core(),
            chosen=() if self.choice is None else self.choice.to_core(),
            tables=() if self.source is None else self.source.chunk_tables or self.source.range_tables,
            key_indices=() if self.merged is None else self.merged.key_indices,
            is_transcoded=is_transcoded,
        )
