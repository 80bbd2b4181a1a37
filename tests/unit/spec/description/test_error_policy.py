"""Chunks that cannot be read, decoded or found: what `on_error`, `missing`, `retries` and `timeout` make of them."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, RangeByteRequest, Store
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.storage import LocalStore, WrapperStore

import zarrfeed
from tests.support.flat import iterable_dataset
from tests.support.oracle import NUMCODECS_WARNING, AnyArray, assert_rows_equal, numbered
from tests.support.stalls import again_after_a_stall
from zarrfeed import (
    ChunkSkippedWarning,
    ConfigError,
    CorruptChunkError,
    StoreReadError,
    ZarrDataLoader,
    ZarrDataset,
    ZarrIterableDataset,
)
from zarrfeed.base.native import core
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.store_errors import is_transient

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings(NUMCODECS_WARNING),
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
]
skipping = pytest.mark.filterwarnings("ignore::zarrfeed.ChunkSkippedWarning")

N, ROWS = 203, 8  # the last of 26 blocks has 3 samples
NOISE = b"\x01this is no chunk of anything\x02" * 3


class FaultyStore(WrapperStore[Store]):
    """A store that does to every read of a chunk what it is told: `before(key)` may raise, or take its time."""

    before: Callable[[str], Any] = staticmethod(lambda _key: None)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Read after `before`, for chunks alone."""
        if "zarr.json" not in key:
            waiting = self.before(key)
            if waiting is not None:
                await waiting
        return await self._store.get(key, prototype, byte_range)


def make(path: Path, data: AnyArray, kind: str = "native") -> Path:
    """Write an array in blocks of 8 samples."""
    kinds: dict[str, dict[str, Any]] = {
        "native": {},
        "blosc": {"compressors": BloscCodec(cname="lz4")},
        "sharded": {"shards": (2 * ROWS, *data.shape[1:])},
        "sharded of 16": {"shards": (16 * ROWS, *data.shape[1:])},
        "checked": {"compressors": [Crc32cCodec()]},
        "general": {"compressors": [zarr_numcodecs.BZ2()]},
    }
    zarr.create_array(path, data=data, chunks=(ROWS, *data.shape[1:]), **kinds[kind])
    return path


def open_faulty(path: Path, before: Callable[[str], Any] = lambda _key: None) -> zarr.Array[Any]:
    array = zarr.open_array(FaultyStore(LocalStore(path)), mode="r")
    assert isinstance(array.store, FaultyStore)
    array.store.before = before  # of this very store: opening it made a copy
    return array


def damage(path: Path, *blocks: int) -> list[str]:
    """Write what is no chunk in the place of some; of sharded arrays of whole shards. Return the keys."""
    keys = [f"c/{block}/0" for block in blocks]
    for key in keys:
        (path / key).write_bytes(NOISE)
    return keys


def substitutes(dataset: ZarrIterableDataset, bad: set[int], n: int = N) -> dict[int, int]:
    """Return for each sample of epoch 0 what must be delivered by the definition: that row of the next good block."""
    blocks = dataset.session.schedule.order.block_order(0).tolist()
    wanted = {}
    for sample in range(n):
        block, row = divmod(sample, ROWS)
        at = sample
        while at in bad:
            block = blocks[(blocks.index(block) + 1) % len(blocks)]
            row %= min(ROWS, n - block * ROWS)
            at = block * ROWS + row
        wanted[sample] = at
    return wanted


def rows_of(blocks: list[int], n: int = N) -> set[int]:
    return {s for b in blocks for s in range(b * ROWS, min(n, (b + 1) * ROWS))}


def read(dataset: ZarrIterableDataset, data: AnyArray) -> list[int]:
    """Return the samples of the next epoch by their index, checked against the data."""
    seen: list[int] = []
    for batch in dataset:
        rows, index = batch[0], batch[-1]
        if dataset.batch_size is None:
            rows, index = rows[None], index[None]
        assert_rows_equal(rows, index, data)
        seen += index.tolist()
    return seen


@skipping
@pytest.mark.parametrize("kind", ["native", "blosc", "checked", "general", "sharded"])
@pytest.mark.parametrize("local", [True, False])
def test_slots_of_a_bad_chunk_get_the_same_row_of_the_next_good_block(kind: str, local: bool, tmp_path: Path) -> None:
    data = numbered((N, 5))
    path = make(tmp_path / "a.zarr", data, kind)
    blocks = [4, 5, 18, 19] if kind == "sharded" else [4, 17, 25]
    damage(path, *([2, 9] if kind == "sharded" else blocks))
    source: Any = path if local else open_faulty(path)
    expected: list[int] = []
    for threads in (1, 3):
        dataset = ZarrIterableDataset(
            source,
            batch_size=16,
            shuffle=True,
            seed=3,
            return_index=True,
            num_threads=threads,
            faults={"on_error": "skip"},
        )
        wanted = substitutes(dataset, rows_of(blocks))
        expected = [wanted[s] for s in dataset.sample_order(0).tolist()]
        assert read(dataset, data) == expected
        assert dataset.stats().chunks_skipped == len(dataset.skipped_chunks()) > 0
    assert set(expected).isdisjoint(rows_of(blocks))


@skipping
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("bad_before", [1, 2])
def test_rows_before_a_shorter_block_begin_anew_at_its_start(shuffle: bool, bad_before: int, tmp_path: Path) -> None:
    """The last block has 3 samples: rows 3 to 7 of the bad blocks right before it have no row of their number there."""
    data = numbered((N, 5))
    path = make(tmp_path / "a.zarr", data)
    options: dict[str, Any] = {"batch_size": 16, "shuffle": shuffle, "seed": 3, "return_index": True}
    dataset = iterable_dataset(path, on_error="skip", **options)
    blocks = dataset.session.schedule.order.block_order(0).tolist()
    short = blocks.index(N // ROWS)
    bad = [blocks[short - back] for back in range(1, bad_before + 1)]
    damage(path, *bad)
    epoch_order = dataset.sample_order(0).tolist()
    got = read(dataset, data)
    first = N // ROWS * ROWS
    wanted = {
        sample: first + sample % ROWS % (N - first) if sample // ROWS in bad else sample for sample in epoch_order
    }
    assert wanted == substitutes(dataset, rows_of(bad))
    assert got == [wanted[sample] for sample in epoch_order]
    assert [got.count(sample) for sample in range(first, N)] == [1 + n * bad_before for n in (3, 3, 2)]


@skipping
@pytest.mark.parametrize("world_size", [2, 3])
def test_what_is_delivered_does_not_depend_on_ranks_workers_or_where_it_began(world_size: int, tmp_path: Path) -> None:
    data = numbered((N, 5))
    path = make(tmp_path / "a.zarr", data)
    damage(path, 2, 3, 11)

    def of_rank(rank: int, **options: Any) -> ZarrIterableDataset:
        order: dict[str, Any] = {"shuffle": True, "seed": 5, "lanes": 6, "even": "off", "on_error": "skip"}
        return iterable_dataset(
            path, batch_size=16, return_index=True, rank=rank, world_size=world_size, **order | options
        )

    wanted = substitutes(of_rank(0), rows_of([2, 3, 11]))
    for rank in range(world_size):
        epoch_order = of_rank(rank).sample_order(0).tolist()
        assert read(of_rank(rank), data) == [wanted[s] for s in epoch_order]
        loader = ZarrDataLoader(of_rank(rank), num_workers=2, timeout=240)
        assert sorted(s for _, index in loader for s in index.tolist()) == sorted(wanted[s] for s in epoch_order)
        begun = of_rank(rank)
        for _ in zip(range(2), begun, strict=False):
            pass
        resumed = of_rank(rank, num_threads=1)
        resumed.load_state_dict(begun.state_dict())
        assert read(resumed, data) == [wanted[s] for s in epoch_order[32:]]


@skipping
def test_selections_windows_single_samples_and_arrays_in_order(tmp_path: Path) -> None:
    data = numbered((N, 5))
    path = make(tmp_path / "a.zarr", data)
    damage(path, 6)
    bad = rows_of([6])
    for select in (slice(3, None, 2), np.arange(N)[np.arange(N) % 7 < 3]):
        dataset = ZarrIterableDataset(
            zarrfeed.open(path).select(select), batch_size=None, return_index=True, faults={"on_error": "skip"}
        )
        epoch_order = dataset.sample_order(0)
        got = np.array(read(dataset, data))
        assert set(got) <= set(epoch_order.tolist())
        kept = ~np.isin(epoch_order, list(bad))
        assert (got[kept] == epoch_order[kept]).all()
        assert len(set(got[~kept].tolist())) > 1
    windows = ZarrIterableDataset(
        zarrfeed.open(path).window((-1, 0, 2)), batch_size=16, return_index=True, faults={"on_error": "skip"}
    )
    reach = {s for s in range(N) if {s - 1, s, s + 2} & bad}
    seen: list[int] = []
    for rows, index in windows:
        for k, offset in enumerate((-1, 0, 2)):
            assert_rows_equal(rows[:, k].contiguous(), index + offset, data)
        seen += index.tolist()
    epoch_order = windows.sample_order(0)
    assert set(seen) == set(epoch_order.tolist()) - reach
    assert all(a == b for a, b in zip(epoch_order.tolist(), seen, strict=True) if a not in reach)


@skipping
def test_windows_that_replace_others_may_share_a_chunk(tmp_path: Path) -> None:
    """Two samples of one request, of neighbouring blocks that carry a chunk from one to the other in an epoch."""
    data = numbered((360, 1), "f8")
    path = tmp_path / "a.zarr"
    zarr.create_array(path, data=data, chunks=(30, 1))
    damage(path, 3)
    for seed in range(3):
        windows = zarrfeed.open(path).window((-1, 0))
        options: dict[str, Any] = {"batch_size": 16, "return_index": True, "faults": {"on_error": "skip"}}
        with ZarrIterableDataset(windows, shuffle=True, seed=seed, **options) as dataset:
            for rows, index in dataset:
                for k, offset in enumerate((-1, 0)):
                    assert_rows_equal(rows[:, k].contiguous(), index + offset, data)


@skipping
def test_all_fields_of_a_slot_are_of_one_sample(tmp_path: Path) -> None:
    data, targets = numbered((N, 5)), numbered((N, 2), "i4")
    words = np.array([f"sample {i}" for i in range(N)], dtype=object)
    a, b = make(tmp_path / "a.zarr", data), tmp_path / "b.zarr"
    zarr.create_array(b, data=targets, chunks=(30, 2))
    text = zarr.create_array(tmp_path / "text.zarr", shape=(N,), chunks=(11,), dtype="str")
    text[:] = words
    damage(a, 4)
    (b / "c/3/0").write_bytes(NOISE)  # small: else it would be read into memory
    (tmp_path / "text.zarr/c/13").write_bytes(NOISE)
    bad = rows_of([4]) | set(range(90, 120)) | set(range(143, 154))
    parts = {"x": a, "y": b, "text": tmp_path / "text.zarr"}
    dataset = ZarrIterableDataset(parts, batch_size=16, shuffle=True, return_index=True, faults={"on_error": "skip"})
    got: list[int] = []
    for batch, index in dataset:
        assert_rows_equal(batch["x"], index, data)
        assert_rows_equal(batch["y"], index, targets)
        assert batch["text"] == words[index.numpy()].tolist()
        got += index.tolist()
    order = dataset.sample_order(0).tolist()
    assert set(got) == set(range(N)) - bad
    assert all(s == g for s, g in zip(order, got, strict=True) if s not in bad)
    fields = {chunk.field for chunk in dataset.skipped_chunks()}
    assert {"samples['x']", "samples['y']"} <= fields
    assert any(".zarr chunk c/13" in str(chunk.cause) for chunk in dataset.skipped_chunks())


@skipping
@pytest.mark.parametrize("local", [True, False])
def test_rows_that_a_field_in_memory_lacks_are_skipped_until_they_are_mended(local: bool, tmp_path: Path) -> None:
    data, targets = numbered((N, 300)), numbered((N, 2), "i4")
    path = make(tmp_path / "a.zarr", data)
    b = tmp_path / "b.zarr"
    zarr.create_array(b, data=targets, chunks=(30, 2), compressors=BloscCodec(cname="lz4"))
    whole = (b / "c/3/0").read_bytes()
    (b / "c/3/0").write_bytes(whole[:-3])
    damage(path, 2)
    bad = rows_of([2]) | set(range(90, 120))
    dataset = ZarrIterableDataset(
        path,
        b if local else open_faulty(b),
        batch_size=16,
        shuffle=True,
        return_index=True,
        faults={"on_error": "skip"},
    )
    assert "in memory" in str(dataset.explain())
    for mended in (False, False, True):
        got: list[int] = []
        if mended:
            (b / "c/3/0").write_bytes(whole)
            bad = rows_of([2])
        order = dataset.sample_order().tolist()
        for x, y, index in dataset:
            assert_rows_equal(x, index, data)
            assert_rows_equal(y, index, targets)
            got += index.tolist()
        assert set(got) == set(range(N)) - bad
        assert all(s == g for s, g in zip(order, got, strict=True) if s not in bad)
    assert sorted(chunk.key for chunk in dataset.skipped_chunks()) == ["c/2/0"] * 3 + ["c/3/0"] * 2
    (b / "c/3/0").write_bytes(whole[:-3])
    with pytest.raises(CorruptChunkError, match=r"b.zarr chunk c/3/0"):
        list(ZarrIterableDataset(path, b, batch_size=16))


def test_each_skipped_chunk_is_reported_once_an_epoch_with_its_cause(tmp_path: Path) -> None:
    data = numbered((N, 5))
    path = make(tmp_path / "a.zarr", data)
    keys = damage(path, 3, 9)
    good = (path / "c/0/0").read_bytes()
    dataset = ZarrIterableDataset(path, batch_size=16, shuffle=True, return_index=True, faults={"on_error": "skip"})
    with pytest.warns(ChunkSkippedWarning) as warned:
        read(dataset, data)
    assert len(warned) == 2
    skipped = dataset.skipped_chunks()
    assert sorted(chunk.key for chunk in skipped) == keys
    for chunk in skipped:
        assert (chunk.field, chunk.epoch) == ("samples", 0)
        assert isinstance(chunk.cause, CorruptChunkError)
        assert f"a.zarr chunk {chunk.key}: zstd" in str(chunk.cause)
    zarr.open_array(path, mode="r+")[:] = data  # mended: the next epoch is whole
    assert (path / "c/0/0").read_bytes() == good
    assert sorted(read(dataset, data)) == list(range(N))
    dataset.close()
    assert len(dataset.skipped_chunks()) == dataset.stats().chunks_skipped == 2


@skipping
@pytest.mark.parametrize("kind", ["cut off", "out of reach"])
def test_a_bad_inner_chunk_does_not_take_its_neighbours_along(kind: str, tmp_path: Path) -> None:
    """Inner chunks of a shard that lie close are read in one request, which fails as a whole."""
    data = numbered((N, 5))
    path = make(tmp_path / "a.zarr", data, "sharded of 16")
    shard = path / "c/1/0"  # inner chunks 16 to 25, of which the last one lies last
    whole = shard.read_bytes()
    spec = read_layout(path).shard
    assert spec is not None
    size = spec.stored_index_bytes
    index = core.parse_shard_index(spec.to_core(), np.frombuffer(whole[-size:], np.uint8))
    begin, length = index[3]
    ranges: list[tuple[int, int]] = []

    class Shards(FaultyStore):
        async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Any:
            if isinstance(byte_range, RangeByteRequest) and key == "c/1/0":
                ranges.append((byte_range.start, byte_range.end))
                if byte_range.start < begin + length and byte_range.end > begin:
                    if kind == "out of reach":
                        raise PermissionError(errno.EACCES, "these bytes are not to be had")
                    byte_range = RangeByteRequest(byte_range.start, int(begin) + 1)
            return await self._store.get(key, prototype, byte_range)

    array = zarr.open_array(Shards(LocalStore(path)), mode="r")
    dataset = ZarrIterableDataset(array, batch_size=16, shuffle=True, return_index=True, faults={"on_error": "skip"})
    got = read(dataset, data)
    assert set(got) == set(range(N)) - rows_of([19])
    assert [chunk.key for chunk in dataset.skipped_chunks()] == ["c/1/0 inner chunk 3/0"]
    assert any(end - start > length for start, end in ranges)  # they were asked for together


@skipping
def test_more_bad_chunks_than_allowed_raise_wherever_threads_are(tmp_path: Path) -> None:
    data = numbered((N, 5))
    path = make(tmp_path / "a.zarr", data)
    damage(path, *range(0, 26, 3))
    ends = set()
    for threads in (1, 2, 4):
        dataset = ZarrIterableDataset(
            path, batch_size=4, shuffle=True, num_threads=threads, faults={"on_error": "skip", "max_errors": 4}
        )
        with pytest.raises(CorruptChunkError, match=r"chunk 5 that cannot be read, max_errors = 4"):
            list(dataset)
        assert dataset.session.cursor is not None
        ends.add((dataset.session.cursor.delivered, tuple(chunk.key for chunk in dataset.skipped_chunks())))
    assert len(ends) == 1
    assert 0 < ends.pop()[0] < N // 4


@skipping
def test_without_any_good_sample_it_raises(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr", numbered((3 * ROWS, 5)))
    damage(path, 0, 1, 2)
    dataset = ZarrIterableDataset(path, batch_size=4, faults={"on_error": "skip"})
    with pytest.raises(CorruptChunkError, match="no block of the epoch has a good sample"):
        list(dataset)


def test_missing_chunks_are_the_fill_value_or_an_error(tmp_path: Path) -> None:
    data = numbered((N, 5), "i4")
    for kind in ("native", "general", "sharded"):
        path = make(tmp_path / kind, data, kind)
        (path / "c/3/0").unlink()
        inner = " inner chunk" if kind == "sharded" else ""
        filled = data.copy()
        first, last = (6 * ROWS, 8 * ROWS) if kind == "sharded" else (3 * ROWS, 4 * ROWS)
        filled[first:last] = 0
        assert len(read(ZarrIterableDataset(path, batch_size=16, return_index=True), filled)) == N
        with pytest.raises(StoreReadError, match=rf"{kind} chunk c/3/0{inner}.*is missing from the store") as caught:
            list(ZarrIterableDataset(path, batch_size=16, faults={"missing": "raise"}))
        assert caught.value.errno == errno.ENOENT
        with pytest.raises(StoreReadError, match="is missing"):
            ZarrDataset(path, faults={"missing": "raise"})[[0, first]]
        assert (ZarrDataset(path)[[0, first]].numpy() == filled[[0, first]]).all()
        skip = ZarrIterableDataset(
            path, batch_size=16, return_index=True, faults={"missing": "raise", "on_error": "skip"}
        )
        with pytest.warns(ChunkSkippedWarning, match="is missing"):
            assert set(read(skip, data)) == set(range(N)) - set(range(first, last))


def test_a_missing_chunk_of_text_is_an_error_if_wanted(tmp_path: Path) -> None:
    text = zarr.create_array(tmp_path / "t.zarr", shape=(9,), chunks=(3,), dtype="str")
    text[:6] = np.array(list("abcdef"), dtype=object)
    assert list(ZarrIterableDataset(text, batch_size=9)) == [[*"abcdef", "", "", ""]]
    with pytest.raises(StoreReadError, match=r"t.zarr chunk c/2: is missing"):
        list(ZarrIterableDataset(text, batch_size=9, faults={"missing": "raise"}))


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "a"), ConnectionResetError(), TimeoutError(), OSError("no number")], ids=repr
)
def test_reads_of_stores_are_tried_again(error: Exception, tmp_path: Path) -> None:
    data = numbered((N, 5))
    left = {"c/2/0": 2, "c/7/0": 1}

    def fail_at_first(key: str) -> None:
        if left.get(key, 0):
            left[key] -= 1
            raise error

    array = open_faulty(make(tmp_path / "a.zarr", data), fail_at_first)
    dataset = ZarrIterableDataset(array, batch_size=16, return_index=True)
    assert read(dataset, data) == list(range(N))
    assert dataset.stats().retries == 3
    assert "3 reads retried" in str(dataset.stats())


@pytest.mark.parametrize(
    ("error", "tries"),
    [(OSError(errno.EIO, "a"), 3), (PermissionError(errno.EACCES, "a"), 1), (ValueError("a bug"), 1), (KeyError(), 1)],
    ids=repr,
)
def test_errors_that_stay_end_the_epoch_after_so_many_tries(error: Exception, tries: int, tmp_path: Path) -> None:
    asked: list[str] = []

    def fail(key: str) -> None:
        if key == "c/7/0":
            asked.append(key)
            raise error

    array = open_faulty(make(tmp_path / "a.zarr", numbered((N, 5))), fail)
    dataset = ZarrIterableDataset(array, batch_size=16, faults={"retries": 2})
    with pytest.raises(StoreReadError, match=r"chunk c/7/0: the store cannot read it") as caught:
        list(dataset)
    assert caught.value.__cause__ is error
    assert len(asked) == tries


@pytest.mark.parametrize("kind", ["native", "general", "sharded"])
@again_after_a_stall
def test_a_store_that_does_not_answer_is_an_error_that_names_the_chunk(kind: str, tmp_path: Path) -> None:
    data = numbered((N, 5))
    array = open_faulty(
        make(tmp_path / "a.zarr", data, kind), lambda key: asyncio.sleep(60) if key == "c/3/0" else None
    )
    for on_error in ("raise", "skip"):
        policy: dict[str, Any] = {"on_error": on_error, "timeout": 0.5}
        dataset = iterable_dataset(array, batch_size=16, return_index=True, **policy)
        begin = time.monotonic()
        with pytest.raises(StoreReadError, match=r"a.zarr.* chunk c/3/0.*did not answer within 0.5 s") as caught:
            list(dataset)
        assert time.monotonic() - begin < 30  # and not a minute
        assert caught.value.errno == errno.ETIMEDOUT
    assert isinstance(array.store, FaultyStore)
    array.store.before = lambda _key: None
    assert read(dataset, data) == list(range(N))


@pytest.mark.parametrize("kind", ["native", "general", "sharded"])
@again_after_a_stall
def test_a_store_that_is_slow_and_answers_is_no_error(kind: str, tmp_path: Path) -> None:
    """Most chunks wait behind others for longer than the timeout, and none that was asked for does."""
    data = numbered((N, 5))
    timeout_s, answer_s = 1.0, 0.1
    turn = asyncio.Lock()

    async def answer_one_by_one(_key: str) -> None:
        async with turn:
            await asyncio.sleep(answer_s)

    array = open_faulty(make(tmp_path / "a.zarr", data, kind), answer_one_by_one)
    dataset = iterable_dataset(array, batch_size=16, return_index=True, timeout=timeout_s, retries=0)
    begin = time.monotonic()
    assert read(dataset, data) == list(range(N))
    assert time.monotonic() - begin > 1.5 * timeout_s


@again_after_a_stall
def test_text_that_does_not_come_is_an_error(tmp_path: Path) -> None:
    text = zarr.create_array(tmp_path / "t.zarr", shape=(9,), chunks=(3,), dtype="str")
    text[:] = np.array(list("abcdefghi"), dtype=object)
    array = open_faulty(tmp_path / "t.zarr", lambda key: asyncio.sleep(60) if key == "c/1" else None)
    with pytest.raises(StoreReadError, match=r"chunk c/1: the store did not answer within 0.3 s"):
        list(ZarrIterableDataset(array, batch_size=9, faults={"timeout": 0.3}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "ignore"}, "on_error = 'ignore', must be one of 'raise', 'skip'"),
        ({"missing": None}, "missing = None, must be one of 'fill', 'raise'"),
        ({"max_errors": 0}, "max_errors = 0, must be at least 1"),
        ({"retries": -1}, "retries = -1, must be at least 0"),
        ({"retries": True}, "retries = True, must be an integer"),
        ({"timeout": 0}, r"timeout = 0, must be in \[0.01, 1e6\] seconds"),
        ({"timeout": float("nan")}, "timeout = nan, must be in"),
        ({"timeout": "1s"}, "timeout = '1s', must be a number of seconds"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Faults(**options)
    with pytest.raises(ConfigError, match=message):
        iterable_dataset(torch.zeros(4), **options)


def test_which_errors_may_pass() -> None:
    class GenericError(Exception):
        """As clients of object stores have them."""

    class PermissionDeniedError(Exception):
        """The same."""

    passing: list[Exception] = [OSError(n, "") for n in (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ETIMEDOUT)]
    lasting: list[Exception] = [OSError(n, "") for n in (errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ENOTDIR)]
    for error in [*passing, TimeoutError(), ConnectionError(), OSError("?"), GenericError()]:
        assert is_transient(error), error
    for error in [*lasting, PermissionDeniedError(), ValueError(), RuntimeError(), CorruptChunkError("")]:
        assert not is_transient(error), error
    for code in (errno.EMFILE, errno.ENOMEM, errno.ETIMEDOUT, errno.ESHUTDOWN):
        assert not core.is_of_chunk(code)
    assert core.is_of_chunk(errno.EIO)


def test_pauses_between_tries_double_up_to_ten_seconds_and_are_at_random() -> None:
    for tries, longest in ((0, 0.1), (1, 0.2), (5, 3.2), (7, 10), (1000, 10)):
        pauses = [core.pause_after(tries) for _ in range(200)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest
