"""Sharded arrays: inner chunks as zarr-python reads them, indices read once, neighbours together, damage named."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.abc.buffer import Buffer
from zarr.abc.store import RangeByteRequest, Store, SuffixByteRequest
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, TransposeCodec
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, WrapperStore, ZipStore

import zarrfeed
from tests.support.examples import examples
from tests.support.flat import iterable_dataset
from tests.support.oracle import CODECS, NUMCODECS_WARNING, AnyArray, assert_parity, chunk_files, numbered, read_all
from zarrfeed import ConfigError, CorruptChunkError, StoreReadError, ZarrIterableDataset
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.budget.memory import plan_memory
from zarrfeed.spec.arrays.sharding import Coalesce, Piece, merge_pieces

pytestmark = [pytest.mark.timeout(100), pytest.mark.filterwarnings(NUMCODECS_WARNING)]

Location = Literal["start", "end"]
Endian = Literal["little", "big"]

#: Chains inside of a shard: a view, fast paths, checksums, a chain.
INNER_CODECS = (
    *("none", "blosc-lz4-shuffle", "blosc-zstd-bitshuffle", "zstd", "gzip", "zlib", "zstd-crc32c", "crc32c"),
    "shuffle-zlib-fletcher32",
)


class CountingStore(WrapperStore[Store]):
    """A store that remembers which parts of which objects were asked for."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.asked: list[tuple[str, Any]] = []

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Buffer | None:
        if not key.endswith("zarr.json"):
            self.asked.append((key, byte_range))
        return await super().get(key, prototype, byte_range)

    def indices(self) -> Counter[str]:
        """Count the requests for the index of each shard, where it stands at the end."""
        return Counter(key for key, part in self.asked if isinstance(part, SuffixByteRequest))

    def ranges(self) -> list[tuple[str, int, int]]:
        """List what was asked for of inner chunks."""
        return [(key, part.start, part.end) for key, part in self.asked if isinstance(part, RangeByteRequest)]


def write(
    store: Any,
    data: AnyArray,
    inner: tuple[int, ...],
    shards: tuple[int, ...],
    *,
    location: Location = "end",
    crc32c: bool = True,
    index_endian: Endian = "little",
    codec: str = "zstd",
    endian: Endian = "little",
    transpose: tuple[int, ...] | None = None,
    **options: Any,
) -> zarr.Array[Any]:
    """Store `data` in shards with zarr-python."""
    compression = CODECS[codec].v3
    assert compression is not None
    codecs: list[Any] = [] if transpose is None else [TransposeCodec(order=transpose)]
    codecs += [BytesCodec(endian=endian if data.dtype.itemsize > 1 else None), *compression(data.dtype.itemsize)]
    serializer = ShardingCodec(
        chunk_shape=inner,
        codecs=codecs,
        index_codecs=[BytesCodec(endian=index_endian), *([Crc32cCodec()] if crc32c else [])],
        index_location=location,
    )
    array: zarr.Array[Any] = zarr.create_array(
        store,
        shape=data.shape,
        chunks=shards,
        dtype=data.dtype,
        serializer=serializer,
        filters=None,
        compressors=None,
        **options,
    )
    array[...] = data
    return array


# --- parity -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("crc32c", [False, True], ids=["bare", "crc32c"])
@pytest.mark.parametrize("index_endian", ["little", "big"])
def test_every_encoding_of_the_index(location: Location, crc32c: bool, index_endian: Endian, tmp_path: Path) -> None:
    data = numbered((23, 4, 5))
    for store in (tmp_path / "a", MemoryStore()):
        array = write(store, data, (3, 2, 5), (6, 4, 5), location=location, crc32c=crc32c, index_endian=index_endian)
        assert_parity(array, data)


@pytest.mark.parametrize("codec", INNER_CODECS)
def test_every_chain_of_inner_codecs(codec: str, tmp_path: Path) -> None:
    data = numbered((23, 16, 70), period=50)  # rows of 4480 bytes: the fused path of Blosc
    for store in (tmp_path / "a", MemoryStore()):
        assert_parity(write(store, data, (3, 16, 70), (6, 16, 70), codec=codec), data)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an array of 1 to 3 axes, its grid of shards, and how it is read."""
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 13)) for _ in range(ndim))
    inner = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    return {
        "shape": shape,
        "inner": inner,
        "shards": tuple(n * draw(st.integers(1, 4)) for n in inner),
        "dtype": draw(st.sampled_from(["u1", "i2", "f4", "c16"])),
        "sample_axis": draw(st.integers(0, ndim - 1)),
        "location": draw(st.sampled_from(["start", "end"])),
        "crc32c": draw(st.booleans()),
        "index_endian": draw(st.sampled_from(["little", "big"])),
        "endian": draw(st.sampled_from(["little", "big"])),
        "codec": draw(st.sampled_from(INNER_CODECS)),
        "transpose": draw(st.none() | st.permutations(range(ndim)).map(tuple)),
        "holes": draw(st.booleans()),
        "block": draw(st.sampled_from(["chunk", "shard"])),
        "shuffle": draw(st.booleans()),
        "batch_size": draw(st.sampled_from([None, 1, 5])),
        "coalesce_gap": draw(st.sampled_from([0, 100, "1MiB"])),
    }


@examples(40)
@given(case=cases())
def test_any_grid_of_shards_reads_as_zarr_python_reads_it(case: dict[str, Any], tmp_path_factory: Any) -> None:
    written = {k: case[k] for k in ("location", "crc32c", "index_endian", "endian", "codec", "transpose")}
    read = {k: case[k] for k in ("block", "shuffle", "batch_size", "coalesce_gap", "sample_axis")}
    data = numbered(case["shape"], case["dtype"], sample_axis=case["sample_axis"])
    if case["holes"]:  # whole inner chunks, and with luck shards, of fill values are not stored
        data[tuple(slice(0, 1 + n // 2) for n in data.shape)] = 0
    for store in (tmp_path_factory.mktemp("shards") / "a", MemoryStore()):
        array = write(store, data, case["inner"], case["shards"], fill_value=0, **written)
        assert_parity(array, read_all(array, sample_axis=case["sample_axis"]), **read)


def make_store(kind: str, tmp_path: Path) -> Store:
    if kind == "zip":
        return ZipStore(tmp_path / "a.zip", mode="w")
    if kind == "fsspec":
        pytest.importorskip("fsspec")
        return FsspecStore.from_url(f"memory://{tmp_path.name}", storage_options={})
    if kind == "obstore":
        return ObjectStore(pytest.importorskip("obstore.store").MemoryStore())
    return CountingStore(LocalStore(tmp_path / "a"))


@pytest.mark.parametrize("kind", ["zip", "fsspec", "obstore", "wrapped"])
@pytest.mark.parametrize("location", ["start", "end"])
def test_stores_that_python_reads(kind: str, location: Location, tmp_path: Path) -> None:
    data = numbered((40, 6))
    data[8:12] = 0  # a missing inner chunk
    data[16:32] = 0  # a missing shard
    array = write(make_store(kind, tmp_path), data, (4, 3), (16, 6), location=location, fill_value=0)
    for options in ({}, {"block": "shard"}, {"coalesce_limit": 0}, {"memory_budget": "150KB"}):
        assert_parity(array, data, **options)


def test_a_resident_field_may_be_sharded(tmp_path: Path) -> None:
    data, labels = numbered((40, 6)), np.arange(40)
    write(tmp_path / "x", data, (4, 6), (8, 6))
    for store in (tmp_path / "y", MemoryStore()):
        targets = write(store, labels, (3,), (9,))
        assert_parity(tmp_path / "x", data, targets, labels)


def test_values_of_missing_chunks_and_shards_are_the_fill_value(tmp_path: Path) -> None:
    data = np.full((24, 4), 7.0, "f4")
    data[:5] = 3
    array = write(tmp_path / "a", data, (2, 4), (8, 4), fill_value=7.0)
    assert len(chunk_files(tmp_path / "a")) == 1
    dataset = assert_parity(array, data, shuffle=False)
    assert dataset.stats().chunks_missing == 9
    assert dataset.stats().chunks_read == 3


def share_bytes(stored: bytes, location: Location, num_chunks: int) -> bytes:
    """Return a shard of uncompressed inner chunks that has the bytes of equal ones once; the index has a checksum."""
    words = 16 * num_chunks
    index = stored[:words] if location == "start" else stored[-words - 4 : -4]
    body, entries, entry_of = bytearray(), [], {}
    start = words + 4 if location == "start" else 0
    for offset, size in np.frombuffer(index, "<u8").reshape(-1, 2).tolist():
        if offset == 2**64 - 1:
            entries.append((offset, size))
            continue
        chunk = stored[offset : offset + size]
        if chunk not in entry_of:
            entry_of[chunk] = (start + len(body), size)
            body += chunk
        entries.append(entry_of[chunk])
    made = np.array(entries, "<u8").tobytes()
    made += int(google_crc32c.value(made)).to_bytes(4, "little")
    return made + bytes(body) if location == "start" else bytes(body) + made


@pytest.mark.parametrize("location", ["start", "end"])
def test_equal_inner_chunks_may_share_their_bytes(location: Location, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    distinct = numbered((5 * 4, 50)).reshape(5, 4, 50)
    data = distinct[rng.integers(0, 5, 16)].reshape(64, 50)
    data[12:16] = 0  # a missing inner chunk
    array = write(tmp_path / "a", data, (4, 50), (32, 50), location=location, codec="none", fill_value=0)
    before = sum(file.stat().st_size for file in chunk_files(tmp_path / "a"))
    for file in chunk_files(tmp_path / "a"):
        file.write_bytes(share_bytes(file.read_bytes(), location, 8))
    assert sum(file.stat().st_size for file in chunk_files(tmp_path / "a")) < before
    assert np.array_equal(read_all(tmp_path / "a"), data)
    for source in (tmp_path / "a", zarr.open_array(CountingStore(LocalStore(tmp_path / "a")), mode="r")):
        for options in ({}, {"block": "shard"}, {"coalesce_limit": 0}):
            assert_parity(source, data, **options)
    assert {found.cause for found in zarrfeed.verify(tmp_path / "a").findings} == {"missing"}
    assert array.shape == data.shape


# --- what is read -----------------------------------------------------------------------------------------------


def counted(n: int = 64, **options: Any) -> tuple[zarr.Array[Any], CountingStore, AnyArray]:
    """Write 8 shards (for 64 samples) of 4 inner chunks of 2 samples."""
    data = numbered((n, 50))
    store = CountingStore(MemoryStore())
    array = write(store, data, (2, 50), (8, 50), codec="none", **options)
    store.asked.clear()
    return array, store, data


def test_each_index_is_asked_for_once_and_each_byte_at_most_once() -> None:
    array, store, data = counted()
    dataset = assert_parity(array, data)
    assert store.indices() == Counter({f"c/{i}/0": 1 for i in range(8)})
    assert sum(end - begin for _, begin, end in store.ranges()) == data.nbytes
    assert dataset.stats().indices_read == 8
    assert dataset.stats().requests == len(store.asked)


def test_a_block_that_is_a_shard_is_read_in_one_request() -> None:
    array, store, data = counted()
    assert_parity(array, data, block="shard")
    assert len(store.ranges()) == 8
    assert len(store.asked) == 16


def test_requests_are_bounded_by_the_limit() -> None:
    array, store, data = counted()
    assert_parity(array, data, block="shard", coalesce_limit=2 * 2 * 200)  # of two inner chunks
    assert {end - begin for _, begin, end in store.ranges()} == {800}
    array, store, data = counted()
    assert_parity(array, data, block="shard", coalesce_limit=0)
    assert {end - begin for _, begin, end in store.ranges()} == {400}


def test_inner_chunks_that_nobody_wants_are_not_read(tmp_path: Path) -> None:
    array, store, data = counted()
    with ZarrIterableDataset(
        zarrfeed.open(array).blocks([0, 3, 17]), batch_size=2, return_index=True, requests={"coalesce_gap": 0}
    ) as dataset:
        seen = [int(i) for _, index in dataset for i in index]
    assert sorted(seen) == [0, 1, 6, 7, 34, 35]
    assert sorted((key, end - begin) for key, begin, end in store.ranges()) == [
        *[("c/0/0", 400)] * 2,
        ("c/4/0", 400),
    ]
    write(tmp_path / "a", data, (2, 50), (8, 50), codec="none")
    with ZarrIterableDataset(zarrfeed.open(tmp_path / "a").blocks([0, 3, 17]), batch_size=2) as dataset:
        assert sum(len(x) for x in dataset) == 6
        assert dataset.stats().bytes_read == 3 * 400
        assert dataset.stats().indices_read == 2


def test_indices_of_local_shards_are_read_once_by_all_threads(tmp_path: Path) -> None:
    data = numbered((256, 10))
    array = write(tmp_path / "a", data, (2, 10), (32, 10))
    assert assert_parity(array, data, num_threads=4).stats().indices_read == 8


def test_indices_are_dropped_where_the_memory_is_short(tmp_path: Path) -> None:
    data = numbered((4096, 2))
    for store in (tmp_path / "a", MemoryStore()):
        array = write(store, data, (2, 2), (64, 2), codec="none")
        dataset = assert_parity(array, data, batch_size=64, memory_budget=400_000)
        assert dataset.stats().indices_read >= 64
        assert dataset.explain().memory.index_bytes <= 400_000 // 64


def test_more_inner_chunks_than_requests_at_once_still_go_together() -> None:
    data = numbered((4000, 4))
    store = CountingStore(MemoryStore())
    array = write(store, data, (2, 4), (2000, 4), codec="none")
    store.asked.clear()
    assert_parity(array, data, block="shard", batch_size=100)
    assert len(store.ranges()) < 100  # of 2000 inner chunks


@examples(60)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30), st.booleans()), max_size=30),
    gap=st.integers(0, 25),
    limit=st.integers(0, 200),
)
def test_pieces_are_merged_within_gap_and_limit(sizes: list[tuple[int, int, bool]], gap: int, limit: int) -> None:
    at, pieces = 0, []
    for number, (before, size, wanted) in enumerate(sizes):
        at += before
        if wanted:
            pieces.append(Piece(at, at + size, number, number))
        at += size
    groups = merge_pieces(reversed(pieces), Coalesce(gap, limit))
    assert [p.request_id for group in groups for p in group] == [p.request_id for p in pieces]
    for group in groups:
        assert len(group) == 1 or group[-1].end - group[0].begin <= limit
        assert all(b.begin - a.end <= gap for a, b in pairwise(group))
    for a, b in pairwise(groups):  # none that could have been joined was left out
        assert b[0].begin - a[-1].end > gap or b[0].end - a[0].begin > limit


# --- what is said -----------------------------------------------------------------------------------------------


def test_explain_says_what_the_shards_are(tmp_path: Path) -> None:
    data = numbered((50, 6))
    write(tmp_path / "a", data, (2, 3), (8, 6))
    with ZarrIterableDataset(tmp_path / "a", batch_size=4, shuffle=True, mixing={"lanes": 1}) as dataset:
        page = dataset.explain()
    (field,) = page.fields
    assert (field.chunks, field.shards, field.amplification) == (50, 7, 1.0)
    assert (page.block, page.block_rows) == ("chunk", 2)
    assert "read chunks (2, 3)" in str(page)
    assert "in shards (8, 6)" in str(page)
    assert "50 chunks stored in 7 shards" in str(page)
    assert "for indices of shards" in str(page)
    with ZarrIterableDataset(
        tmp_path / "a", batch_size=4, shuffle=True, mixing={"lanes": 1, "block": "shard"}
    ) as dataset:
        page = dataset.explain()
    assert (page.block, page.block_rows, page.num_blocks) == ("shard", 8, 7)
    assert page.fields[0].amplification == 1.0
    assert "blocks are the shards of samples" in str(page)


def test_the_order_of_blocks_that_are_shards_is_another_one(tmp_path: Path) -> None:
    data = numbered((64, 2))
    write(tmp_path / "a", data, (2, 2), (16, 2))
    with ZarrIterableDataset(
        tmp_path / "a", batch_size=4, shuffle=True, mixing={"lanes": 1, "block": "shard"}
    ) as dataset:
        order = dataset.sample_order(0)
        state = dataset.state_dict()
    for shard in order.reshape(4, 16) // 16:
        assert len(set(shard.tolist())) == 1
    with (
        ZarrIterableDataset(tmp_path / "a", batch_size=4, shuffle=True, mixing={"lanes": 1}) as other,
        pytest.raises(ConfigError, match="block_rows"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": "inner"}, "block = 'inner', must be one of 'auto', 'slab', 'chunk', 'shard'"),
        ({"block": "shard"}, "block = 'shard', but samples .* has no shards"),
        ({"coalesce_gap": -1}, "coalesce_gap = -1, must be bytes"),
        ({"coalesce_limit": "much"}, "coalesce_limit = 'much', must be bytes"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", shape=(10, 3), chunks=(2, 3), dtype="f4")
    with pytest.raises(ConfigError, match=message):
        iterable_dataset(tmp_path / "a", batch_size=2, **options)


def test_arrays_in_memory_have_no_shards() -> None:
    with pytest.raises(ConfigError, match="no array is stored"):
        ZarrIterableDataset(np.zeros((4, 2), "f4"), batch_size=2, mixing={"block": "shard"})


def test_the_memory_for_requests_and_indices_is_within_the_budget() -> None:
    array, _, _ = counted(n=6400)
    with ZarrIterableDataset(array, batch_size=8) as dataset:
        fields = dataset.explain().fields
        stored = dataset.session.schedule.fields.fields
    assert fields[0].shards == 800
    for budget in (1 << 14, 1 << 17, 1 << 20, 1 << 30):
        plan = plan_memory(FieldNeeds.of(stored), batch_size=8, num_threads=2, budget=budget, min_open_batches=2)
        assert plan.batch_room >= 2 * plan.batch_bytes or budget < plan.least_budget
        assert plan.index_bytes <= max(plan.budget // 64, 4 * 16 + 512)


# --- damage -----------------------------------------------------------------------------------------------------

KEY = "c/1/0"


def damaged(tmp_path: Path, kind: str, change: Any, **options: Any) -> tuple[Any, bytes]:
    """Write 4 shards and change the bytes of one; return what a dataset reads."""
    data = numbered((32, 10))
    options = {"crc32c": False, "codec": "none", **options}
    write(tmp_path / "a", data, (2, 10), (8, 10), **options)
    file = tmp_path / "a" / KEY
    file.write_bytes(change(file.read_bytes()))
    if kind == "local":
        return tmp_path / "a", file.read_bytes()
    return zarr.open_array(CountingStore(LocalStore(tmp_path / "a")), mode="r"), file.read_bytes()


def read(source: Any) -> None:
    with ZarrIterableDataset(source, batch_size=4, shuffle=True, num_threads=2) as dataset:
        for _ in dataset:
            pass


def entry(number: int, offset: int, size: int) -> Any:
    """Return a function that overwrites an entry of an index at the end."""

    def change(shard: bytes) -> bytes:
        index = np.frombuffer(shard[-64:], "<u8").reshape(4, 2).copy()
        index[number] = offset, size
        return shard[:-64] + index.tobytes()

    return change


NONE = 2**64 - 1
INDEX_DAMAGE = {
    "overlap": (entry(1, 40, 80), "overlaps"),
    "overflow": (entry(0, 2**64 - 8, 80), "must lie in"),
    "huge": (entry(0, 0, 2**63), "must lie in"),
    "half-missing": (entry(0, NONE, 80), "only both together"),
    "half-missing-size": (entry(0, 0, NONE), "only both together"),
}


@pytest.mark.parametrize("kind", ["local", "fed"])
@pytest.mark.parametrize("name", INDEX_DAMAGE)
def test_an_index_that_cannot_be_is_an_error_with_the_key_of_the_shard(kind: str, name: str, tmp_path: Path) -> None:
    change, message = INDEX_DAMAGE[name]
    source, _ = damaged(tmp_path, kind, change)
    with pytest.raises(CorruptChunkError, match=f"chunk {KEY}: shard index: .*{message}"):
        read(source)


@pytest.mark.parametrize("kind", ["local", "fed"])
@pytest.mark.parametrize("location", ["start", "end"])
def test_a_wrong_checksum_of_an_index(kind: str, location: Location, tmp_path: Path) -> None:
    at = 5 if location == "start" else -40
    source, _ = damaged(
        tmp_path,
        kind,
        lambda shard: bytes(b ^ (i == at % len(shard)) for i, b in enumerate(shard)),
        location=location,
        crc32c=True,
    )
    with pytest.raises(CorruptChunkError, match=f"chunk {KEY}: shard index: .*crc32c"):
        read(source)


@pytest.mark.parametrize("kind", ["local", "fed"])
def test_a_range_beyond_the_end_of_the_shard(kind: str, tmp_path: Path) -> None:
    source, _ = damaged(tmp_path, kind, entry(3, 10_000, 80))
    message = "shard index: inner chunk 3 has offset 10000" if kind == "local" else "inner chunk 3/0: "
    with pytest.raises((CorruptChunkError, StoreReadError), match=f"chunk {KEY}: {message}"):
        read(source)


@pytest.mark.parametrize("kind", ["local", "fed"])
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("left", [0, 10, 63, 64, 100, -1])
def test_a_truncated_shard(kind: str, location: Location, left: int, tmp_path: Path) -> None:
    source, _ = damaged(tmp_path, kind, lambda shard: shard[:left], location=location)
    with pytest.raises((CorruptChunkError, StoreReadError), match=f"chunk {KEY}"):
        read(source)


@pytest.mark.parametrize("kind", ["local", "fed"])
def test_an_inner_chunk_that_does_not_decode_is_named(kind: str, tmp_path: Path) -> None:
    def change(shard: bytes) -> bytes:
        index = np.frombuffer(shard[-68:-4], "<u8").reshape(4, 2)
        begin = int(index[2, 0])
        return shard[:begin] + b"\xff" * 8 + shard[begin + 8 :]

    source, _ = damaged(tmp_path, kind, change, crc32c=True, codec="zstd")
    with pytest.raises(CorruptChunkError, match=f"chunk {KEY} inner chunk 2/0: "):
        read(source)


@pytest.mark.parametrize("kind", ["local", "fed"])
def test_an_inner_chunk_of_no_bytes_is_no_chunk(kind: str, tmp_path: Path) -> None:
    source, _ = damaged(tmp_path, kind, entry(2, 0, 0), codec="zstd")
    with pytest.raises(CorruptChunkError, match=f"chunk {KEY} inner chunk 2/0: "):
        read(source)


def test_a_shard_that_was_deleted_is_the_fill_value_and_a_deleted_store_an_error(tmp_path: Path) -> None:
    for kind in ("local", "fed"):
        source, _ = damaged(tmp_path / kind, kind, bytes)
        (tmp_path / kind / "a" / KEY).unlink()
        array = zarr.open_array(tmp_path / kind / "a", mode="r")
        assert_parity(source, read_all(array))
        dataset = ZarrIterableDataset(source, batch_size=4)
        (tmp_path / kind / "a" / "zarr.json").unlink()
        with dataset, pytest.raises(StoreReadError, match=re.escape("zarr.json is gone")):
            list(dataset)


class Failing(CountingStore):
    """A store whose indices cannot be read."""

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Buffer | None:
        if isinstance(byte_range, SuffixByteRequest):
            raise RuntimeError("no such luck")
        return await super().get(key, prototype, byte_range)


class Careless(CountingStore):
    """A store that does not know parts of objects."""

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Buffer | None:
        keep = byte_range if isinstance(byte_range, SuffixByteRequest) else None
        return await super().get(key, prototype, keep)


@pytest.mark.parametrize(
    ("kind", "message"), [(Failing, "cannot read it: RuntimeError.'no such luck'"), (Careless, "the store returned")]
)
def test_stores_that_fail_are_errors_of_the_next_batch(kind: type[CountingStore], message: str) -> None:
    memory = MemoryStore()
    write(memory, numbered((32, 10)), (2, 10), (8, 10))
    with pytest.raises(StoreReadError, match=f"chunk c/./0: .*{message}"):
        read(zarr.open_array(kind(memory), mode="r"))
