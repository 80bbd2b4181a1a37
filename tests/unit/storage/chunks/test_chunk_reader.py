"""storage/chunks/chunk_reader.py: keys, retries, the timeout and what errors say, of reads in Python."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer
from zarr.core.sync import sync
from zarr.storage import MemoryStore, WrapperStore

from tests.support.stalls import again_after_a_stall
from zarrfeed import CorruptChunkError, StoreReadError
from zarrfeed.base.errors import DecodeError
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.spec.arrays.sharding import ShardReading
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.read_counts import ReadCounts
from zarrfeed.storage.chunks.chunk_reader import ChunkReader, ReadFailure, locate_chunk
from zarrfeed.storage.chunks.location import StoreSource


class Failing(WrapperStore[MemoryStore]):
    """Raises the next of `errors` at each read of a chunk, until there is none left; counts the reads."""

    errors: ClassVar[list[BaseException]] = []
    reads = 0
    hangs = False

    async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Buffer | None:
        if "/c/" in f"/{key}":
            type(self).reads += 1
            if self.hangs:
                await asyncio.Event().wait()
            if self.errors:
                raise self.errors.pop(0)
        return await super().get(key, prototype, byte_range)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[Failing]:
    for name, value in (("errors", []), ("reads", 0), ("hangs", False)):
        monkeypatch.setattr(Failing, name, value)
    return Failing


def make_reader(store: Any, policy: Faults, counts: ReadCounts, **options: Any) -> ChunkReader:
    spec = read_layout(zarr.open_array(store, mode="r"))
    assert isinstance(spec.source, StoreSource)
    sharding = None if spec.shard is None else ShardReading(spec.shard)
    return ChunkReader(spec.source, policy, counts, sharding=sharding, **options)


@pytest.mark.parametrize("watched", [True, False])
def test_an_error_that_passes_is_tried_again_and_counted(watched: bool, failing: type[Failing]) -> None:
    zarr.create_array(inner := MemoryStore(), data=np.arange(20), chunks=(5,))
    counts = ReadCounts()
    reader = make_reader(failing(inner), Faults(retries=2), counts, is_watched=watched)
    expected = sync(reader.get("c/1"))
    assert expected is not None
    failing.errors = [OSError(errno.ESTALE, "stale"), OSError(errno.EIO, "device")]
    again = sync(reader.get("c/1"))
    assert again is not None
    assert (again == expected).all()
    assert (counts.requests, counts.retries) == (4, 2)


def test_an_error_that_stays_is_told_with_its_retries(failing: type[Failing]) -> None:
    zarr.create_array(inner := MemoryStore(), data=np.arange(20), chunks=(5,))
    reader = make_reader(failing(inner), Faults(retries=1), ReadCounts())
    failing.errors = [OSError(errno.EIO, "device"), OSError(errno.EIO, "device")]
    with pytest.raises(StoreReadError, match=r"after 1 retry in .*device"):
        sync(reader.get("c/0"))


@again_after_a_stall
def test_a_read_that_hangs_ends_with_the_timeout(failing: type[Failing]) -> None:
    zarr.create_array(inner := MemoryStore(), data=np.arange(20), chunks=(5,))
    reader = make_reader(failing(inner), Faults(timeout=0.05), ReadCounts())
    failing.hangs = True
    with pytest.raises(StoreReadError, match=r"did not answer within 0.05 s \(timeout\)") as caught:
        sync(reader.get("c/0"))
    assert caught.value.errno == errno.ETIMEDOUT
    assert failing.reads == 1


@pytest.mark.parametrize(
    "parts", [[(0, None)], [(3, 9)], [(0, 4), (4, 4), (6, 10)], [(2, 9), (5, 7)], [(7, 7)], [(0, 40), (36, 40)]]
)
def test_parts_of_an_object_come_from_one_request(parts: list[tuple[int, int | None]]) -> None:
    stored = bytes(range(40))
    zarr.create_array(
        store := MemoryStore(), data=np.frombuffer(stored, "u1"), chunks=(40,), compressors=None, filters=None
    )
    counts = ReadCounts()
    reader = make_reader(store, Faults(), counts)
    found = sync(reader.get_ranges("c/0", parts))
    expected = [np.frombuffer(stored[begin:end], "u1") for begin, end in parts]
    for data, right in zip(found, expected, strict=True):
        assert isinstance(data, np.ndarray)
        np.testing.assert_array_equal(data, right)
    assert counts.requests == (parts != [(7, 7)])  # nothing is asked for where nothing is wanted
    if parts != [(7, 7)]:
        assert sync(reader.get_ranges("c/1", parts)) == [None] * len(parts)


def test_a_part_beyond_the_end_is_an_error_and_the_others_are_read() -> None:
    zarr.create_array(store := MemoryStore(), data=np.arange(40, dtype="u1"), compressors=None, filters=None)
    first, beyond = sync(make_reader(store, Faults(), ReadCounts()).get_ranges("c/0", [(30, 38), (36, 41)]))
    assert isinstance(first, np.ndarray)
    np.testing.assert_array_equal(first, np.arange(30, 38))
    assert isinstance(beyond, CorruptChunkError)
    assert str(beyond) == "is at bytes [36, 41) by the index, but the store has only 40"


def test_a_store_that_returns_more_than_the_parts_is_an_error() -> None:
    class Whole(WrapperStore[MemoryStore]):
        async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Buffer | None:
            return await super().get(key, prototype, None if key.startswith("c/") else byte_range)

    zarr.create_array(store := MemoryStore(), data=np.arange(40, dtype="u1"), compressors=None, filters=None)
    with pytest.raises(StoreReadError, match=r"asked for bytes \[3, 9\), the store returned 40 bytes"):
        sync(make_reader(Whole(store), Faults(), ReadCounts()).get_ranges("c/0", [(3, 5), (7, 9)]))


def chunks_of(array: zarr.Array[Any], shape: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(-(-n // c)) for n, c in zip(array.shape, shape, strict=True))))


@pytest.mark.parametrize("options", [{}, {"shards": (8, 6)}, {"zarr_format": 2}], ids=["v3", "sharded", "v2"])
def test_chunks_are_where_zarr_python_writes_them(options: dict[str, Any]) -> None:
    data = np.arange(18 * 9).reshape(18, 9)  # fewer rows and columns than the grid has room for
    array = zarr.create_array(store := MemoryStore(), shape=data.shape, chunks=(4, 3), dtype="i8", **options)
    array[:] = data
    spec = read_layout(array)
    written = {key for key in store._store_dict if not key.startswith(("zarr.json", ".z"))}
    located = [locate_chunk(spec, chunk) for chunk in chunks_of(array, (4, 3))]
    assert {key for key, _ in located} == written
    assert len(set(located)) == len(located) == 15
    assert {position for _, position in located} == ({0, 1, 2, 3} if options.get("shards") else {None})


def test_inner_chunks_are_read_one_by_one() -> None:
    data = np.arange(24 * 6, dtype="i4").reshape(24, 6)
    array = zarr.create_array(
        store := MemoryStore(), shape=data.shape, chunks=(3, 2), shards=(12, 6), dtype="i4", compressors=None
    )
    array[:12] = data[:12]
    reader = make_reader(store, Faults(), counts := ReadCounts())
    spec = read_layout(array)
    for chunk in chunks_of(array, (3, 2)):
        key, position = locate_chunk(spec, chunk)
        stored = sync(reader.read(key, position))
        row, column = 3 * chunk[0], 2 * chunk[1]
        if row >= 12:
            assert stored is None
            continue
        assert stored is not None
        assert (stored.view("i4").reshape(3, 2) == data[row : row + 3, column : column + 2]).all()
    assert counts.indices_read == 1
    assert reader.inner_label(5) == "inner chunk 1/2"
    assert reader.inner_label(None) == ""


def test_what_an_error_says_of_a_chunk() -> None:
    cause = ValueError("bad header")
    damaged = DecodeError("cannot be decoded: bad header")
    damaged.__cause__ = cause
    failure = ReadFailure.of(damaged)
    assert (failure.is_corrupt, failure.text, failure.cause) == (True, "cannot be decoded: bad header", cause)
    made = failure.named("x chunk c/1: ")
    assert isinstance(made, CorruptChunkError)
    assert str(made) == "x chunk c/1: cannot be decoded: bad header"
    told = ReadFailure.of(StoreReadError(errno.ENOENT, "is missing from the store"))
    assert (told.is_corrupt, told.text, told.errno_value) == (False, "is missing from the store", errno.ENOENT)
    other = ReadFailure.of(KeyError("token"))
    assert not other.is_corrupt
    assert other.text.startswith("the store cannot read it: ")
    made = other.named("x chunk c/1: ")
    assert isinstance(made, StoreReadError)
    assert isinstance(made.__cause__, KeyError)
