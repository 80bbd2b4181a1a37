"""The chunks of one array, checked: numbered shard by shard, in slices, by threads or on zarr-python's event loop.

Invariants: each chunk of the array is in exactly one slice, and is counted as good, or is in one finding. A chunk is
good if its bytes were read and its whole chain of codecs decoded them to what the metadata promises. Only a chunk that
the store says it does not have is missing. Memory is that of the slices under way, which the budget bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import zarr
from zarr.buffer import cpu
from zarr.storage import ZipStore

from zarrfeed.base.errors import (
    MemoryBudgetError,
    StoreReadError,
    UnsupportedError,
)
from zarrfeed.base.native import core
from zarrfeed.base.units import format_bytes
from zarrfeed.metadata.array.array import check_sizes, read_layout
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.sharding import Coalesce, Piece, ShardReading, ShardSpec
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.checked_nodes import node_name
from zarrfeed.storage.access.read_counts import ReadCounts
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.access.zarr_internals import ArrayV2Metadata, regular_chunk_shape, sync
from zarrfeed.storage.chunks.chunk_reader import ChunkReader, ReadFailure
from zarrfeed.storage.chunks.codec_configs import as_meant
from zarrfeed.storage.chunks.location import StoreSource, locate_array
from zarrfeed.storage.chunks.zarr_decoder import make_decoder
from zarrfeed.tools.verify.verify_report import Cause, Finding

Int64: TypeAlias = npt.NDArray[np.int64]
#: Positions along each axis of an array; the box is their product.
Box: TypeAlias = tuple[Int64, ...]

#: A slice is so much to decode, or so many chunks: long enough to cost nothing by itself, short enough for Ctrl-C.
_SLICE_BYTES, _SLICE_CHUNKS, _SLICE_REQUESTS = 8 << 20, 4096, 64
#: Bytes that a chunk may take for each decoded byte: as stored (twice as long is plausible), decoded, between codecs.
_COPIES, _OVERHEAD = 5, 2 << 20
#: Bytes for each stored byte of an index: the parsed index, the index as stored, and memory to sort it.
_INDEX_COPIES = 3
#: Part of the budget that indices of shards are cached in.
_INDEX_DIVISOR = 8


@dataclass
class SliceResult:
    """The findings in a run of chunks."""

    good: int = 0
    stored_bytes: int = 0
    decoded_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Numbering:
    """The read chunks of an array, numbered shard by shard, as the engine's `ChunkChecker` does.

    Attributes
    ----------
    grid
        Read chunks of the array along each axis.
    along
        Chunks of a shard along each axis; ones if a chunk is an object of its own.
    selected
        The numbers of the chunks that are checked, ascending; slices count these. None: all chunks.
    """

    grid: tuple[int, ...]
    along: tuple[int, ...]
    selected: Int64 | None = None

    @property
    def objects(self) -> tuple[int, ...]:
        """Stored objects of the array along each axis."""
        return tuple(-(-n // k) for n, k in zip(self.grid, self.along, strict=True))

    @property
    def per_object(self) -> int:
        """Numbers of a stored object."""
        return math.prod(self.along)

    @property
    def num_chunks(self) -> int:
        """Chunks that are checked."""
        return math.prod(self.grid) if self.selected is None else len(self.selected)

    @property
    def num_numbers(self) -> int:
        """Numbers that slices count: of all chunks those of shards beyond the end of the array are among them."""
        return math.prod(self.objects) * self.per_object if self.selected is None else len(self.selected)

    def selecting(self, boxes: Iterable[Box] | None, chunk_shape: tuple[int, ...]) -> Numbering:
        """Return the numbering of the chunks that boxes of the array lie in; None: of all chunks."""
        if boxes is None:
            return self
        found = [np.zeros(0, dtype=np.int64)]
        for box in boxes:
            number = np.zeros(1, dtype=np.int64)
            for axis, positions in enumerate(box):
                there, inner = np.divmod(np.unique(positions // chunk_shape[axis]), self.along[axis])
                stride = math.prod(self.objects[axis + 1 :]) * self.per_object
                of_axis = there * stride + inner * math.prod(self.along[axis + 1 :])
                number = (number[:, None] + of_axis).ravel()
            found.append(number)
        return replace(self, selected=np.unique(np.concatenate(found)))

    def runs(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of numbers [first, end) that a slice [begin, end) has."""
        if self.selected is None:
            yield begin, end
            return
        numbers = self.selected[begin:end]
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            yield int(run[0]), int(run[-1]) + 1

    def locate(self, number: int) -> tuple[tuple[int, ...], int, bool]:
        """Return the object that a chunk is in, its position there, and whether it is within the array."""
        which, position = divmod(number, self.per_object)
        there = _unravel(which, self.objects)
        inner = _unravel(position, self.along)
        inside = all(o * k + i < n for o, i, k, n in zip(there, inner, self.along, self.grid, strict=True))
        return there, position, inside


def _unravel(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for n in reversed(shape):
        number, at = divmod(number, n)
        index.append(at)
    return tuple(reversed(index))


class ArrayCheck(Protocol):
    """The chunks of one array, to be checked in slices.

    Attributes
    ----------
    numbering
        The numbering of the array's chunks.
    step, ahead
        Numbers of a slice, and slices that should be under way at once.
    """

    numbering: Numbering
    step: int
    ahead: int

    def start(self) -> None:
        """Open the array's store."""

    def submit(self, begin: int, end: int) -> Future[SliceResult]:
        """Begin to check chunks [begin, end)."""

    def close(self) -> None:
        """End the reads under way, and wait for them."""


def prepare_check(
    array: zarr.Array[Any],
    path: str,
    access: StoreAccess,
    *,
    num_threads: int,
    budget: int,
    boxes: Iterable[Box] | None = None,
) -> ArrayCheck | None:
    """Return the check of the chunks of an array that boxes lie in, or of all; None if it has no element.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        If its chunks cannot be read or decoded by anyone here.
    MemoryBudgetError
        If one chunk needs more than the budget.
    """
    if math.prod(array.metadata.shape) == 0:
        return None
    array = as_meant(array)
    spec = None
    if array.metadata.shape:
        with contextlib.suppress(UnsupportedError):  # zarr-python may decode dtypes that batches cannot hold
            spec = read_layout(array, access=access)
    if spec is not None and not spec.in_python and not isinstance(array.store, ZipStore):
        return _LocalCheck(spec, path, access.policy, num_threads=num_threads, budget=budget, boxes=boxes)
    if spec is None:
        whole = _whole_chunks(array, access, boxes)
        return _StoreCheck(array, whole, None, path, access.policy, num_threads=num_threads, budget=budget)
    axes = spec.num_key_axes
    grid = tuple(-(-n // c) for n, c in zip(spec.shape[:axes], spec.chunk_shape[:axes], strict=True))
    along = (1,) * axes if spec.shard is None else spec.shard.chunks
    assert isinstance(spec.source, StoreSource)
    source = replace(spec.source, chunk_keys=None)  # missing chunks are counted, to the last one
    numbering = Numbering(grid, along).selecting(boxes, spec.chunk_shape)
    whole = _Stored(numbering, source, spec.decoded_bytes, spec.shard, spec.item_type)
    return _StoreCheck(array, whole, spec, path, access.policy, num_threads=num_threads, budget=budget)


@dataclass(frozen=True)
class _Stored:
    """The stored chunks of an array that Python reads: their source and their kind."""

    numbering: Numbering
    source: StoreSource
    chunk_bytes: int
    shard: ShardSpec | None = None
    item_type: str = ""


def _whole_chunks(array: zarr.Array[Any], access: StoreAccess, boxes: Iterable[Box] | None) -> _Stored:
    """Return the chunks of an array that zarr-python reads: stored objects as a whole, items of any dtype."""
    metadata = array.metadata
    name = node_name(array)
    shape = regular_chunk_shape(metadata, name)
    check_sizes(name, metadata.shape, shape, array.dtype.itemsize)
    make_decoder(array, name)  # refuses codecs that run code
    key = ".zarray" if isinstance(metadata, ArrayV2Metadata) else "zarr.json"
    source = locate_array(array, key, name, native=False, in_shards=False, access=access).source
    assert source is not None  # zarr-python decodes
    grid = tuple(-(-int(n) // c) for n, c in zip(metadata.shape, shape, strict=True))
    text = "str" if array.dtype.kind in "OTU" else ""
    numbering = Numbering(grid, (1,) * len(grid)).selecting(boxes, shape)
    return _Stored(numbering, source, math.prod(shape) * array.dtype.itemsize, None, text)


def _fit(name: str, each: int, cached: int, most: int, budget: int) -> int:
    """Return the number of chunks that may be under way at once, of at most `most`.

    Raises
    ------
    MemoryBudgetError
        If not even one may.
    """
    count = min(most, (budget - cached) // each)
    if count < 1:
        raise MemoryBudgetError(
            f"{name}: memory_budget = {format_bytes(budget)}, must be at least "
            f"{format_bytes(cached + each, round_up=True)} to check a chunk of this array"
        )
    return count


def _index_bytes(shard: ShardSpec | None, num_objects: int, budget: int) -> tuple[int, int]:
    """Return the bytes that reading an index takes, and the bytes that caching some indices takes."""
    if shard is None:
        return 0, 0
    one = shard.cached_index_bytes
    return _INDEX_COPIES * one, max(one, min(num_objects * one, budget // _INDEX_DIVISOR))


class _LocalCheck:
    """Chunks of a local directory that the engine decodes: all in C++, on threads of a pool, without the GIL."""

    def __init__(
        self,
        spec: ArraySpec,
        path: str,
        policy: Faults,
        *,
        num_threads: int,
        budget: int,
        boxes: Iterable[Box] | None,
    ) -> None:
        self._path, self._policy = path, policy
        along = spec.shard.chunks if spec.shard else ()
        along += (1,) * (len(spec.shape) - len(along))
        grid = tuple(-(-n // c) for n, c in zip(spec.shape, spec.chunk_shape, strict=True))
        self.numbering = Numbering(grid, along).selecting(boxes, spec.chunk_shape)
        index, cached = _index_bytes(spec.shard, spec.num_shards, budget)
        each = _COPIES * spec.decoded_bytes + _OVERHEAD + index
        count = _fit(spec.name, each, cached, num_threads, budget)
        self._described = spec.to_core(cached if spec.shard else None)
        self.step = max(1, min(_SLICE_CHUNKS, _SLICE_BYTES // spec.decoded_bytes))
        self.ahead = 2 * count
        self._pool = ThreadPoolExecutor(count, "zarrfeed-verify")

    def start(self) -> None:
        policy = self._policy
        self._checker: core.ChunkChecker | None = core.ChunkChecker(
            self._described, max_retries=policy.retries, timeout_s=policy.timeout
        )

    def submit(self, begin: int, end: int) -> Future[SliceResult]:
        return self._pool.submit(self._check, begin, end)

    def _check(self, begin: int, end: int) -> SliceResult:
        assert self._checker is not None
        result = SliceResult()
        for first, last in self.numbering.runs(begin, end):
            good, stored_bytes, decoded_bytes, found = self._checker.check(first, last)
            result.good += good
            result.stored_bytes += stored_bytes
            result.decoded_bytes += decoded_bytes
            result.findings += [self._finding(*one) for one in found]
        return result

    def _finding(self, _: int, chunks: int, key: str, inner: str, bad: tuple[str, str] | None) -> Finding:
        if bad is None:
            return Finding(self._path, key, inner, "missing", chunks, "the store does not have it")
        cause: Cause = "corrupt" if bad[0] == "CorruptChunkError" else "unreadable"
        return Finding(self._path, key, inner, cause, chunks, bad[1])

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._checker = None  # ends its threads


class _StoreCheck:
    """Chunks that Python reads, and those that zarr-python decodes: tasks on its event loop."""

    def __init__(
        self,
        array: zarr.Array[Any],
        stored: _Stored,
        spec: ArraySpec | None,
        path: str,
        policy: Faults,
        *,
        num_threads: int,
        budget: int,
    ) -> None:
        self._path, self._metadata = path, array.metadata
        self._source, self.numbering = stored.source, stored.numbering
        self._is_in_zip = isinstance(stored.source.store, ZipStore)
        self._is_text, self._chunk_bytes = bool(stored.item_type), stored.chunk_bytes
        objects = math.prod(self.numbering.objects)
        index, cached = _index_bytes(stored.shard, objects, budget)
        coalesce = Coalesce(limit=min(Coalesce.limit, budget // 64))
        each = _COPIES * stored.chunk_bytes + _OVERHEAD + index + (coalesce.limit if stored.shard else 0)
        name = node_name(array)
        requests = _fit(name, each, cached, stored.source.max_requests, budget)
        self._checker = core.ChunkChecker(spec.to_core()) if spec and stored.source.decoder is None else None
        self.step = max(1, min(_SLICE_REQUESTS, _SLICE_BYTES // max(1, stored.chunk_bytes)))
        self.ahead = 1 + -(-requests // self.step)
        self._requests, self._decodes = asyncio.Semaphore(requests), asyncio.Semaphore(num_threads)
        self._pool = ThreadPoolExecutor(num_threads, "zarrfeed-verify")
        self._tasks: set[asyncio.Task[Any]] = set()
        sharding = None if stored.shard is None else ShardReading(stored.shard, cached, coalesce)
        self._reader = ChunkReader(stored.source, policy, ReadCounts(), sharding=sharding, spawn=self._spawn)
        self._shards = self._reader.shards

    def start(self) -> None:
        try:
            self._loop = sync(self._open())
        except Exception as error:  # of any class: a store is anybody's code
            raise StoreReadError(errno_of(error), f"the store cannot be opened: {reason_of(error)}") from error

    async def _open(self) -> asyncio.AbstractEventLoop:
        await self._source.open()
        return asyncio.get_running_loop()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def submit(self, begin: int, end: int) -> Future[SliceResult]:
        return asyncio.run_coroutine_threadsafe(self._check(begin, end), self._loop)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    async def _check(self, begin: int, end: int) -> SliceResult:
        result = SliceResult()
        # object -> numbers and positions of its chunks
        wanted: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for number in (number for run in self.numbering.runs(begin, end) for number in range(*run)):
            there, position, inside = self.numbering.locate(number)
            if inside:
                wanted.setdefault(there, []).append((number, position))
        one = self._check_chunk if self._shards is None else self._check_shard
        found = await asyncio.gather(
            *(one(result, self._metadata.encode_chunk_key(there), chunks) for there, chunks in wanted.items())
        )
        result.findings = [finding for findings in found for finding in findings]
        return result

    async def _check_chunk(self, result: SliceResult, key: str, chunks: list[tuple[int, int]]) -> list[Finding]:
        async with self._requests:
            return await self._judge(result, partial(self._reader.get, key), key, "", len(chunks))

    async def _check_shard(self, result: SliceResult, key: str, chunks: list[tuple[int, int]]) -> list[Finding]:
        shards = self._shards
        assert shards is not None
        async with self._requests:
            try:
                if self._is_in_zip:  # only a read of a whole member compares its CRC-32
                    await self._reader.get(key)
                index = await shards.index(key)
            except (MemoryError, asyncio.CancelledError):
                raise
            except Exception as error:  # noqa: BLE001 (of any class: a store is anybody's code)
                return [self._bad(key, "", len(chunks), error)]
        if index is None:
            return [self._missing(key, "", len(chunks))]
        _, groups = shards.plan(index, chunks)
        there = {piece.request_id for group in groups for piece in group}
        found = [
            (number, self._missing(key, shards.inner_name(position), 1))
            for number, position in chunks
            if number not in there
        ]
        for findings in await asyncio.gather(*(self._check_group(result, key, group) for group in groups)):
            found += findings
        return [finding for _, finding in sorted(found, key=lambda one: one[0])]

    async def _check_group(self, result: SliceResult, key: str, group: list[Piece]) -> list[tuple[int, Finding]]:
        shards = self._shards
        assert shards is not None
        found: list[tuple[int, Finding]] = []
        async with self._requests:
            read: dict[int, npt.NDArray[np.uint8] | None] = {}
            if len(group) > 1:
                try:
                    read = dict(await shards.read(key, group))
                except (MemoryError, asyncio.CancelledError):
                    raise
                except Exception:  # noqa: BLE001 (below, each is asked for by itself, to tell good ones from others)
                    read = {}

            async def bytes_of(piece: Piece) -> npt.NDArray[np.uint8] | None:
                if piece.request_id in read:
                    return read[piece.request_id]
                ((_, data),) = await shards.read(key, [piece])
                return data

            for piece in group:
                inner = shards.inner_name(piece.position)
                findings = await self._judge(result, partial(bytes_of, piece), key, inner, 1)
                found += [(piece.request_id, finding) for finding in findings]
        return found

    async def _judge(
        self,
        result: SliceResult,
        read: Callable[[], Coroutine[Any, Any, npt.NDArray[np.uint8] | None]],
        key: str,
        inner: str,
        chunks: int,
    ) -> list[Finding]:
        """Read a chunk, decode it, and count it or return the fault."""
        try:
            data = await read()
            if data is None:
                return [self._missing(key, inner, chunks)]
            async with self._decodes:
                decoded_bytes = await self._decode(data)
        except (MemoryError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 (of any class: stores and codecs are anybody's code)
            return [self._bad(key, inner, chunks, error)]
        result.good += chunks
        result.stored_bytes += len(data)
        result.decoded_bytes += decoded_bytes
        return []

    async def _decode(self, data: npt.NDArray[np.uint8]) -> int:
        """Decode a chunk and drop the result; return how much it was, which of text is not known."""
        if self._checker is not None:
            await self._loop.run_in_executor(self._pool, self._checker.check_bytes, data)
            return self._chunk_bytes
        decoder = self._source.decoder
        assert decoder is not None
        stored = cpu.Buffer.from_array_like(data)
        decoded = await (decoder.decode_items(stored) if self._is_text else decoder.decode(stored))
        return decoded.nbytes

    def _missing(self, key: str, inner: str, chunks: int) -> Finding:
        return Finding(self._path, key, inner, "missing", chunks, "the store does not have it")

    def _bad(self, key: str, inner: str, chunks: int, error: Exception) -> Finding:
        failure = ReadFailure.of(error)
        cause: Cause = "corrupt" if failure.is_corrupt else "unreadable"
        return Finding(self._path, key, inner, cause, chunks, failure.text)
