"""The limiting stage: what the counters say of it, and runs that are bounded by one stage by construction."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.storage import MemoryStore, WrapperStore

from zarrfeed import Stats, ZarrDataset, ZarrIterableDataset
from zarrfeed.engine.stats import CONSUMER, DECODE, MEMORY, NOT_KNOWN, STORAGE

#: A run long enough to judge, whose consumer does nothing but wait.
RUN: dict[str, Any] = {"batches": 100, "consumer_wait_s": 1.0, "consumer_busy_s": 0.01}


class SlowStore(WrapperStore[Store]):
    """A store whose chunks take a while, however many are asked for at once."""

    def __init__(self, store: Store, *, delay_s: float) -> None:
        super().__init__(store)
        self._delay_s = delay_s

    def _with_store(self, store: Store) -> SlowStore:
        return type(self)(store, delay_s=self._delay_s)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if "zarr.json" not in key:
            await asyncio.sleep(self._delay_s)
        return await self._store.get(key, prototype, byte_range)


class Clock:
    """Stands for the module `time`: what is measured is what a test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def drain(dataset: ZarrIterableDataset) -> Stats:
    with dataset:
        for _ in dataset:
            pass
    return dataset.stats()


@pytest.mark.parametrize(
    ("counters", "stage"),
    [
        ({}, NOT_KNOWN),
        (RUN, NOT_KNOWN),  # nobody did anything
        (RUN | {"idle_other_s": 2.0}, NOT_KNOWN),
        (RUN | {"batches": 1, "decode_s": 2.0}, NOT_KNOWN),
        (RUN | {"consumer_wait_s": 0.01, "decode_s": 0.01}, NOT_KNOWN),
        (RUN | {"consumer_busy_s": 9.5, "decode_s": 2.0}, CONSUMER),
        (RUN | {"consumer_busy_s": 8.5, "decode_s": 2.0}, DECODE),
        (RUN | {"decode_s": 0.5, "scatter_s": 0.4, "idle_storage_s": 0.8}, DECODE),
        (RUN | {"decode_s": 0.4, "scatter_s": 0.3, "idle_storage_s": 0.8}, STORAGE),
        (RUN | {"fetch_s": 1.0, "idle_storage_s": 0.8}, DECODE),  # reading from the page cache is work
        (RUN | {"fetch_s": 9.0, "chunks_waited": 9, "decode_s": 0.1, "idle_storage_s": 0.8}, STORAGE),
        (RUN | {"decode_s": 0.6, "idle_storage_s": 0.5, "idle_memory_s": 0.7}, MEMORY),
        (RUN | {"fetch_s": 9.0, "chunks_waited": 9, "python_decode_s": 5.0, "idle_storage_s": 1.9}, DECODE),
        (RUN | {"fetch_s": 9.0, "chunks_waited": 9, "python_decode_s": 4.0, "idle_storage_s": 1.9}, STORAGE),
        (RUN | {"consumer_busy_s": 1.0, "idle_other_s": 1.5, "decode_s": 0.5}, CONSUMER),  # tiny batches
        (RUN | {"idle_other_s": 1.5, "decode_s": 0.5}, DECODE),  # too few chunks for all threads
        (RUN | {"list_s": 0.6, "idle_other_s": 1.0, "scatter_s": 0.1}, DECODE),
        (RUN | {"sparse_s": 0.6, "idle_other_s": 1.0, "decode_s": 0.2, "idle_storage_s": 0.1}, DECODE),
        (RUN | {"sparse_s": 0.6, "idle_other_s": 1.0, "decode_s": 0.1, "idle_storage_s": 0.2}, STORAGE),
    ],
)
def test_the_stage_that_takes_most_is_named(counters: dict[str, Any], stage: str) -> None:
    stats = Stats(**counters)
    assert stats.limiting_stage == stage
    assert f"\nlimit       {stage}: {stats.limit.reason}\n" in str(stats)
    assert stats.limit.advice
    assert "\n" not in stats.limit.reason + stats.limit.advice


@pytest.mark.parametrize(
    ("counters", "reason", "advice"),
    [
        ({"decode_s": 0.1, "idle_storage_s": 0.8}, "for bytes", "disk"),
        ({"decode_s": 0.1, "idle_storage_s": 0.8, "requests": 9}, "for bytes", "a store that is nearer"),
        ({"decode_s": 0.1, "idle_memory_s": 0.8}, "for room for another batch", "memory_budget"),
        ({"fetch_s": 9, "chunks_waited": 9, "python_decode_s": 8, "idle_storage_s": 2}, "zarr-python", "native"),
        ({"list_s": 0.6}, "for text", "fixed-length"),
        ({"sparse_s": 0.6}, "for rows of sparse matrices", "lz4"),
        ({"decode_s": 0.1, "bytes_decoded": 100, "bytes_scattered": 40}, "work", "amplification"),
    ],
)
def test_what_is_said_fits_the_stage(counters: dict[str, Any], reason: str, advice: str) -> None:
    limit = Stats(**RUN | counters).limit
    assert reason in limit.reason
    assert advice in limit.advice


def test_every_counter_of_the_engine_is_the_one_of_its_name(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", data=np.arange(8), chunks=(4,))
    with ZarrIterableDataset(array, batch_size=4) as dataset:
        next(iter(dataset))
        (reader,) = dataset.session.readers._readers()
        names = list(reader._engine.stats())  # type: ignore[attr-defined]
    stats = Stats.from_core({name: 10**9 * (1 + number) for number, name in enumerate(names)})
    for number, name in enumerate(names):
        if name.endswith("_ns"):
            assert getattr(stats, name.removesuffix("_ns") + "_s") == pytest.approx(1 + number)
        elif name.startswith("cache_"):
            assert getattr(stats.cache, name.removeprefix("cache_")) == 10**9 * (1 + number)
        else:
            assert getattr(stats, name) == 10**9 * (1 + number)


def test_the_difference_of_two_readings_is_what_happened_between_them() -> None:
    before = Stats(batches=9, consumer_busy_s=9.0, consumer_wait_s=1.0, batch_memory_bytes=5)
    after = before + Stats(batches=90, consumer_wait_s=3.0, decode_s=2.0, batch_memory_bytes=2)
    assert after - before == Stats(batches=90, consumer_wait_s=3.0, decode_s=2.0, batch_memory_bytes=7)
    assert (after - before).limiting_stage == DECODE


def test_shares_of_threads_add_up_to_one() -> None:
    shares = Stats(decode_s=1, scatter_s=2, fetch_s=3, order_s=4, idle_storage_s=5, idle_memory_s=6).thread_shares
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["memory"] == pytest.approx(6 / 21)
    assert sum(Stats().thread_shares.values()) == 0


def test_time_between_two_batches_is_the_consumer_s(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", data=np.zeros((40, 4), dtype="f4") + 1, chunks=(4, 4))
    with ZarrIterableDataset(array, batch_size=10) as dataset:
        batches = iter(dataset)
        next(batches)
        assert dataset.stats().consumer_busy_s == 0, "it did not ask for a second one yet"
        next(batches)
        assert dataset.stats().consumer_busy_s > 0


def test_a_thread_that_waits_for_a_store_is_idle_for_storage() -> None:
    data = np.arange(64, dtype="f4").reshape(32, 2)
    inner = MemoryStore()
    zarr.create_array(inner, data=data, chunks=(4, 2))
    array = zarr.open_array(SlowStore(inner, delay_s=0.1), mode="r")
    stats = drain(ZarrIterableDataset(array, batch_size=4, num_threads=1))
    assert stats.idle_storage_s > 0
    assert stats.idle_memory_s == 0
    assert stats.requests == 8


def test_a_thread_that_waits_for_room_is_idle_for_memory() -> None:
    # A batch weighs 4 MiB because of its targets, so that few are open; and each one awaits its chunk.
    inner = MemoryStore()
    zarr.create_array(inner, data=np.arange(32, dtype="f4"), chunks=(4,))
    array = zarr.open_array(SlowStore(inner, delay_s=0.1), mode="r")
    targets = np.zeros((32, 1 << 18), dtype="f4")
    small = ZarrIterableDataset(array, targets, batch_size=4, num_threads=1, memory_budget="10MiB")
    assert small.explain().max_open_batches == 2
    assert drain(small).idle_memory_s > 0
    large = ZarrIterableDataset(array, targets, batch_size=4, num_threads=1, memory_budget="1GiB")
    assert drain(large).idle_memory_s == 0


def test_decoding_counts_as_work(tmp_path: Path) -> None:
    data = np.random.default_rng(0).random((16, 1 << 12), dtype="f4")
    gzip = zarr.codecs.GzipCodec(level=1)
    array = zarr.create_array(tmp_path / "a.zarr", data=data, chunks=(2, 1 << 12), compressors=gzip)
    stats = drain(ZarrIterableDataset(array, batch_size=4, num_threads=1))
    assert stats.decode_s > 0
    assert stats.idle_memory_s == stats.python_decode_s == stats.list_s == 0
    assert stats.chunks_read == 8


def test_time_in_zarr_python_s_codecs_is_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zarrfeed.engine import store_bridge as feeder
    from zarrfeed.storage.chunks.zarr_decoder import ChunkDecoder

    decode, clock = ChunkDecoder.decode, Clock()

    async def slow(self: ChunkDecoder, stored: Buffer) -> Any:
        clock.now += 100
        return await decode(self, stored)

    monkeypatch.setattr(ChunkDecoder, "decode", slow)
    monkeypatch.setattr(feeder, "time", clock)
    astype = numcodecs.AsType("<i4", "<i4")
    data = np.arange(64, dtype="i4")
    array = zarr.create_array(tmp_path / "a.zarr", data=data, chunks=(8,), filters=[astype], zarr_format=2)
    dataset = ZarrIterableDataset(array, batch_size=8, num_threads=1)
    assert not dataset.explain().fields[0].native
    assert drain(dataset).python_decode_s >= 8 * 100  # more where chunks waited for each other


def test_looking_text_up_counts_as_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zarrfeed.engine import reader as feed
    from zarrfeed.engine.vlen import VlenReader

    take, clock = VlenReader.take, Clock()

    def slow(self: VlenReader, index: Any) -> Any:
        clock.now += 100
        return take(self, index)

    monkeypatch.setattr(VlenReader, "take", slow)
    monkeypatch.setattr(feed, "time", clock)
    data = np.array([f"caption {i}" for i in range(16)], dtype=object)
    array = zarr.create_array(tmp_path / "a.zarr", shape=(16,), chunks=(4,), dtype=str)
    array[...] = data
    stats = drain(ZarrIterableDataset(array, batch_size=4))
    assert stats.list_s == 4 * 100
    assert stats.consumer_wait_s >= stats.list_s
    assert stats.consumer_busy_s < 0, "the engine took it for the consumer's, from whom it is taken"


def test_random_access_has_a_limit_too(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", data=np.arange(64, dtype="f4"), chunks=(8,))
    dataset = ZarrDataset(array)
    assert dataset.stats().limiting_stage == NOT_KNOWN
    for i in range(8):
        dataset[[i, 63 - i]]
    stats = dataset.stats()
    assert stats.batches == 8
    assert "limit" in str(stats)
    # So little is decoded by the consumer itself, inside of its wait: one interval holds the others.
    assert stats.decode_s > 0
    assert stats.consumer_wait_s >= stats.decode_s + stats.scatter_s


def test_an_epoch_given_up_and_begun_anew_counts_no_time_in_between(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", data=np.arange(64, dtype="f4"), chunks=(8,))
    with ZarrIterableDataset(array, batch_size=8) as dataset:
        for _ in range(3):
            next(iter(dataset))
        assert dataset.stats().consumer_busy_s == 0
