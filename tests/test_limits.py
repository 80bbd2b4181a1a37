"""The limiting stage: what the counters say of it, and runs that are bounded by one stage by construction."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import MemoryStore, WrapperStore

from zarrfeed import Stats, ZarrDataset, ZarrIterableDataset
from zarrfeed.limits import CONSUMER, DECODE, MEMORY, NOT_KNOWN, STORAGE

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


def drain(dataset: ZarrIterableDataset, *, busy_s: float = 0.0) -> Stats:
    with dataset:
        for _ in dataset:
            time.sleep(busy_s)
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
    ],
)
def test_the_stage_that_takes_most_is_named(counters: dict[str, Any], stage: str) -> None:
    stats = Stats(**counters)
    assert stats.limiting_stage == stage
    assert f"\nlimit       {stage}: {stats.limit.reason}\n" in str(stats)
    assert stats.limit.advice
    assert "\n" not in stats.limit.reason + stats.limit.advice


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


def test_a_slow_loop_is_the_limit(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", data=np.zeros((40, 4), dtype="f4") + 1, chunks=(4, 4))
    stats = drain(ZarrIterableDataset(array, batch_size=10), busy_s=0.5)
    assert stats.limiting_stage == CONSUMER
    assert stats.consumer_busy_s >= 1.5


def test_a_slow_store_is_the_limit() -> None:
    data = np.arange(64, dtype="f4").reshape(32, 2)
    inner = MemoryStore()
    zarr.create_array(inner, data=data, chunks=(4, 2))
    array = zarr.open_array(SlowStore(inner, delay_s=0.3), mode="r")
    stats = drain(ZarrIterableDataset(array, batch_size=4, num_threads=1))
    assert stats.limiting_stage == STORAGE
    assert stats.idle_storage_s >= 0.2
    assert "bytes" in stats.limit.reason


def test_a_small_budget_is_the_limit() -> None:
    # A batch weighs 4 MiB because of its targets, so that few are open; and each one awaits its chunk.
    inner = MemoryStore()
    zarr.create_array(inner, data=np.arange(32, dtype="f4"), chunks=(4,))
    array = zarr.open_array(SlowStore(inner, delay_s=0.15), mode="r")
    targets = np.zeros((32, 1 << 18), dtype="f4")
    small = ZarrIterableDataset(array, targets, batch_size=4, num_threads=1, memory_budget="10MiB")
    assert small.explain().max_open_batches == 2
    stats = drain(small)
    assert stats.limiting_stage == MEMORY
    assert stats.idle_memory_s >= 3 * 0.1
    assert "memory_budget" in stats.limit.advice
    large = ZarrIterableDataset(array, targets, batch_size=4, num_threads=1, memory_budget="1GiB")
    assert drain(large).idle_memory_s == 0


def test_a_heavy_codec_is_the_limit(tmp_path: Path) -> None:
    data = np.random.default_rng(0).random((64, 1 << 17), dtype="f4")  # 32 MiB
    gzip = zarr.codecs.GzipCodec(level=1)
    array = zarr.create_array(tmp_path / "a.zarr", data=data, chunks=(2, 1 << 17), compressors=gzip)
    stats = drain(ZarrIterableDataset(array, batch_size=4, num_threads=1))
    assert stats.limiting_stage == DECODE
    assert stats.idle_memory_s == 0


def test_what_zarr_python_decodes_slowly_is_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zarrfeed.pipeline import ChunkDecoder

    decode = ChunkDecoder.decode

    async def slow(self: ChunkDecoder, stored: Buffer) -> Any:
        await asyncio.sleep(0.05)
        return await decode(self, stored)

    monkeypatch.setattr(ChunkDecoder, "decode", slow)
    delta = numcodecs.Delta(dtype="<i4")
    data = np.arange(64, dtype="i4")
    array = zarr.create_array(tmp_path / "a.zarr", data=data, chunks=(8,), filters=[delta], zarr_format=2)
    dataset = ZarrIterableDataset(array, batch_size=8, num_threads=1)
    assert not dataset.explain().fields[0].native
    stats = drain(dataset)
    assert stats.python_decode_s >= 8 * 0.05
    assert stats.limiting_stage == DECODE
    assert "zarr-python" in stats.limit.reason


def test_looking_text_up_counts_as_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zarrfeed.lists import ListReader

    take = ListReader.take

    def slow(self: ListReader, index: Any) -> Any:
        time.sleep(0.1)
        return take(self, index)

    monkeypatch.setattr(ListReader, "take", slow)
    data = np.array([f"caption {i}" for i in range(16)], dtype=object)
    array = zarr.create_array(tmp_path / "a.zarr", shape=(16,), chunks=(4,), dtype=str)
    array[...] = data
    stats = drain(ZarrIterableDataset(array, batch_size=4))
    assert stats.list_s >= 0.4
    assert stats.consumer_wait_s >= stats.list_s
    assert stats.limiting_stage == DECODE
    assert "text" in stats.limit.reason


def test_random_access_has_a_limit_too(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", data=np.arange(64, dtype="f4"), chunks=(8,))
    dataset = ZarrDataset(array)
    assert dataset.stats().limiting_stage == NOT_KNOWN
    for i in range(8):
        dataset[[i, 63 - i]]
    stats = dataset.stats()
    assert stats.batches == 8
    assert "limit" in str(stats)
    # So little is decoded by the consumer itself, which is still the consumer waiting.
    assert stats.decode_s > 0
    assert stats.consumer_wait_s >= stats.decode_s + stats.scatter_s


def test_an_epoch_given_up_and_begun_anew_counts_no_time_in_between(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", data=np.arange(64, dtype="f4"), chunks=(8,))
    with ZarrIterableDataset(array, batch_size=8) as dataset:
        for _ in range(3):
            next(iter(dataset))
            time.sleep(0.1)
        assert dataset.stats().consumer_busy_s < 0.1
