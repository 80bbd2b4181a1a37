"""`ZarrDataset` over what users have: stores of every kind, shards, text, packed values; and what goes wrong there."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)
from zarr.abc.buffer import Buffer
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, WrapperStore, ZipStore

import zarrfeed
from tests.support.oracle import Layout, numbered, raw_rows, read_all
from tests.support.proc import resident_bytes
from zarrfeed import ClosedError, ConfigError, CorruptChunkError, StoreReadError, ZarrDataset

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part:zarr.errors.ZarrUserWarning"),
]

N, ROWS = 60, 7


class CountingStore(WrapperStore[Store]):
    """A store that remembers what it was asked for, and whose chunks may be waited for."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.asked: list[tuple[str, Any]] = []
        self.fails = False

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Buffer | None:
        if not key.endswith("zarr.json"):
            self.asked.append((key, byte_range))
            if self.fails:
                raise OSError(5, "the network is down")
        return await super().get(key, prototype, byte_range)


def local(path: Path) -> Store:
    return LocalStore(path / "local")


def memory(_: Path) -> Store:
    return MemoryStore()


def zipped(path: Path) -> Store:
    return ZipStore(path / "a.zip", mode="w")


def fsspec(path: Path) -> Store:
    pytest.importorskip("fsspec")
    return FsspecStore.from_url(f"memory://access-{path.name}", storage_options={})


def wrapped(_: Path) -> Store:
    return CountingStore(MemoryStore())


STORES = [local, memory, zipped, fsspec, wrapped]


def write(store: Store, **options: Any) -> tuple[zarr.Array[Any], np.ndarray[Any, Any]]:
    """Write samples that say which they are, in chunks that do not compress away."""
    data = numbered((N, 4, 50), "f4")
    array: zarr.Array[Any] = zarr.create_array(
        store, shape=data.shape, dtype="f4", **{"chunks": (ROWS, 2, 50), **options}
    )
    array[...] = data
    return array, data


def check(batch: torch.Tensor, data: np.ndarray[Any, Any], indices: Any) -> None:
    assert (raw_rows(batch) == raw_rows(data[np.asarray(indices)])).all()


def random_requests(n: int, count: int, size: int) -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(-n, n, random.integers(1, size + 1)).tolist() for _ in range(count)]


# --- stores -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [None, (2 * ROWS, 4, 50)])
@pytest.mark.parametrize("cache", [0, "20 kB", "1GiB"])
@pytest.mark.parametrize("make", STORES)
def test_stores_of_every_kind_are_read_with_and_without_a_cache(
    make: Callable[[Path], Store], cache: Any, shards: Any, tmp_path: Path
) -> None:
    array, data = write(make(tmp_path), shards=shards)
    access = ZarrDataset(array, num_threads=2, cache=cache)
    for request in random_requests(N, 6, 40):
        check(access[request], data, request)
    check(access[-1][None], data, [-1])


@pytest.mark.parametrize("make", STORES)
def test_forked_workers_read_after_their_parent_did(make: Callable[[Path], Store], tmp_path: Path) -> None:
    if make is zipped:
        with ZipStore(tmp_path / "a.zip", mode="w") as store:
            _, data = write(store)
        array: Any = zarr.open_array(ZipStore(tmp_path / "a.zip", mode="r"))
    else:
        array, data = write(make(tmp_path))
    access = ZarrDataset(array, return_index=True, num_threads=2)
    check(access[[5, 40]][0], data, [5, 40])
    loader = DataLoader(
        access, batch_size=8, sampler=RandomSampler(access), num_workers=2, multiprocessing_context="fork", timeout=240
    )
    seen = []
    for batch, index in loader:
        check(batch, data, index.numpy())
        seen += index.tolist()
    assert sorted(seen) == list(range(N))
    check(access[[5, 41]][0], data, [5, 41])


@pytest.mark.parametrize("shards", [None, (2 * ROWS, 4, 50)])
def test_workers_that_unpickle_the_dataset_read_a_store_that_python_reads(shards: Any, tmp_path: Path) -> None:
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        _, data = write(store, shards=shards)
    access = ZarrDataset(zarr.open_array(ZipStore(tmp_path / "a.zip", mode="r")), return_index=True, num_threads=2)
    access[[1]]
    loader = DataLoader(access, batch_size=16, num_workers=2, multiprocessing_context="forkserver", timeout=240)
    for batch, index in loader:
        check(batch, data, index.numpy())


def test_what_is_kept_is_not_asked_of_the_store_again() -> None:
    store = CountingStore(MemoryStore())
    array, data = write(store)
    access = ZarrDataset(array, num_threads=2)
    access[list(range(N))]
    chunks = 2 * -(-N // ROWS)
    store.asked.clear()
    for request in random_requests(N, 5, N):
        check(access[request], data, request)
    assert store.asked == []
    assert access.stats().chunks_read == chunks


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("cache", [0, "1GiB"])
def test_the_index_of_a_shard_is_read_once_for_many_requests(is_local: bool, cache: Any, tmp_path: Path) -> None:
    array, data = write(LocalStore(tmp_path) if is_local else MemoryStore(), shards=(2 * ROWS, 4, 50))
    access = ZarrDataset(array, num_threads=2, cache=cache)
    access[list(range(N))]  # of this size on it is one reader
    before = access.stats().indices_read
    for request in random_requests(N, 10, N):
        check(access[request], data, request)
    assert access.stats().indices_read == before == -(-N // (2 * ROWS))


def test_a_local_shard_that_was_rewritten_is_not_read_by_its_old_index(tmp_path: Path) -> None:
    array, data = write(LocalStore(tmp_path), shards=(2 * ROWS, 4, 50))
    access = ZarrDataset(array, cache=0)
    check(access[[1, 30]], data, [1, 30])
    array[...] = 0.5  # much shorter chunks
    assert (access[[1, 30]] == 0.5).all()


# --- fields -----------------------------------------------------------------------------------------------------


def test_conversions_are_those_of_numpy(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(-1000, 1000, (N, 3, 8)).astype("i2")
    array = zarr.create_array(tmp_path / "x", shape=stored.shape, chunks=(ROWS, 3, 8), dtype="i2")
    array[...] = stored
    mean, std = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]
    access = ZarrDataset(zarrfeed.open(array).cast("float32").normalize((mean, std), axis=1))
    request = [5, 5, -1, 17]
    expected = (stored[request].astype("f4") - np.array(mean, "f4")[:, None]) / np.array(std, "f4")[:, None]
    for _ in range(2):  # decoded, then kept
        batch = access[request]
        assert batch.dtype == torch.float32
        assert np.array_equal(batch.numpy(), expected)


@pytest.mark.parametrize("opened", [True, False])
def test_stores_of_xarray_are_read_by_dimension_and_variable(opened: bool, tmp_path: Path) -> None:
    values = np.where(np.arange(5 * N).reshape(5, N) % 7 == 3, np.nan, np.arange(5 * N).reshape(5, N) * 0.5)
    written = xr.Dataset({"t": (("lat", "time"), values), "u": (("time",), np.arange(N)), "v": (("time",), np.ones(N))})
    packed = {"t": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -9999, "chunks": (2, 8)}}
    written.to_zarr(tmp_path / "x", encoding=packed)
    request = [3, 59, 3, 11]
    with xr.open_zarr(tmp_path / "x") as data:
        if opened:
            access = ZarrDataset(zarrfeed.from_xarray(data, sample_dim="time", variables=["t", "u"]))
        else:
            access = ZarrDataset(zarrfeed.open(tmp_path / "x", sample_dim="time", variables=["t", "u"]))
        batch = access[request]
        assert set(batch) == {"t", "u"}
        expected = data["t"].values.T[request].astype("f4")
        assert np.array_equal(batch["t"].numpy(), expected, equal_nan=True)
        assert batch["u"].tolist() == request
        first = ZarrDataset(zarrfeed.from_xarray(data.isel(time=slice(3)), sample_dim="time", variables=["t", "u"]))
        assert np.array_equal(first[[2, 0]]["t"].numpy(), data["t"].values.T[[2, 0]].astype("f4"), equal_nan=True)
        with pytest.raises(ConfigError, match=r"samples\['t'\]: is calculated by dask \(mul\)"):
            zarrfeed.from_xarray(data * 2, sample_dim="time", variables=["t"])


@pytest.mark.parametrize("workers", [0, 2])
def test_text_beside_tensors_comes_as_lists(workers: int, tmp_path: Path) -> None:
    words = np.array([f"sample {i}" for i in range(N)], dtype=object)
    group = zarr.open_group(tmp_path / "g", mode="w")
    caption = group.create_array("caption", shape=(N,), chunks=(9,), dtype="str")
    caption[...] = words
    pixels = group.create_array("pixels", shape=(N, 6), chunks=(ROWS, 6), dtype="i4")
    pixels[...] = np.arange(N)[:, None]
    access = ZarrDataset(tmp_path / "g", num_threads=2)
    batch = access[[7, 3, 7]]
    assert batch["caption"] == ["sample 7", "sample 3", "sample 7"]
    assert access[3]["caption"] == "sample 3"
    loader = DataLoader(access, batch_size=8, sampler=RandomSampler(access), num_workers=workers, timeout=240 * workers)
    for batch in loader:
        assert batch["caption"] == [f"sample {i}" for i in batch["pixels"][:, 0].tolist()]
    only = ZarrDataset(caption)
    assert only[[1, 0]] == ["sample 1", "sample 0"]
    assert next(iter(DataLoader(only, batch_size=2))) == ["sample 0", "sample 1"]


# --- limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [local, memory])
def test_a_request_larger_than_all_memory_that_is_planned_for_is_read(
    make: Callable[[Path], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zarrfeed.torch.datasets.map_dataset.DEFAULT_BUDGET", 1000)
    array, data = write(make(tmp_path))
    access = ZarrDataset(array, cache=0)
    request = [*range(N), *range(N)]
    check(access[request], data, request)


def test_the_cache_is_bounded_over_many_requests(tmp_path: Path) -> None:
    n, chunk_bytes = 64 * 48, 64 * 4096
    array = zarr.create_array(tmp_path / "x", shape=(n, 1024), chunks=(64, 1024), dtype="f4", compressors=None)
    array[...] = np.arange(n, dtype="f4")[:, None]
    access = ZarrDataset(array, num_threads=1, cache=8 * chunk_bytes)
    random = np.random.default_rng(1)

    def read(count: int) -> None:
        for _ in range(count):
            request = random.integers(0, n, 16)
            assert access[request][:, 0].tolist() == request.tolist()

    read(30)
    before = resident_bytes()
    decoded = access.stats().chunks_read
    read(150)
    assert access.stats().chunks_read - decoded > 1000, "more than the cache holds"
    assert resident_bytes() - before < 8 * chunk_bytes, "which is a sixth of the array"


def test_workers_share_the_cache(tmp_path: Path) -> None:
    array, _ = write(LocalStore(tmp_path))
    chunk_bytes = ROWS * 2 * 50 * 4
    all_chunks = 2 * -(-N // ROWS) * (chunk_bytes + 1000)

    def worker_reads(cache: int) -> int:
        counting = ReadCounter(ZarrDataset(array, cache=cache, num_threads=1))
        loader = DataLoader(counting, batch_size=None, sampler=[list(range(N))] * 4, num_workers=2, timeout=240)
        return int(max(loader))

    chunks = 2 * -(-N // ROWS)
    assert worker_reads(2 * all_chunks) == chunks
    assert worker_reads(all_chunks) > chunks, "half of it does not hold all chunks"


class ReadCounter(torch.utils.data.Dataset[int]):
    def __init__(self, access: ZarrDataset) -> None:
        self.access = access

    def __getitem__(self, indices: list[int]) -> int:
        self.access[indices]
        return int(self.access.stats().chunks_read)


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [0, "1MiB"])
def test_after_a_request_that_failed_others_are_read(cache: Any) -> None:
    store = CountingStore(MemoryStore())
    array, data = write(store)
    access = ZarrDataset(array, num_threads=2, cache=cache)
    for _ in range(2):
        store.fails = True
        with pytest.raises(StoreReadError, match="the network is down"):
            access[[1, 50]]
        store.fails = False
        check(access[[0, 59]], data, [0, 59])
        if cache:
            access.close()
            access = ZarrDataset(array, num_threads=2, cache=cache)


@pytest.mark.parametrize("in_loader", [False, True])
def test_a_corrupt_chunk_of_a_store_that_python_reads_is_named(in_loader: bool) -> None:
    inner = MemoryStore()
    array, data = write(inner)
    inner._store_dict["c/2/0/0"] = type(inner._store_dict["c/2/0/0"]).from_bytes(b"no chunk")
    access = ZarrDataset(array, num_threads=2)
    source: Any = DataLoader(access, batch_size=4) if in_loader else map(access.__getitem__, [[2 * ROWS, 0]])
    with pytest.raises(CorruptChunkError, match="chunk c/2/0/0"):
        list(source)
    check(access[[0, 59]], data, [0, 59])


def test_close_ends_the_requests_of_other_threads() -> None:
    array, data = write(MemoryStore())
    access = ZarrDataset(array, num_threads=2, cache=0)
    outcomes: list[BaseException | None] = []
    reading = threading.Event()

    def read() -> None:
        try:
            while True:
                check(access[[3, 33]], data, [3, 33])
                reading.set()
        except BaseException as error:  # noqa: BLE001 - looked at by the main thread
            outcomes.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert reading.wait(240)
    time.sleep(0.05)
    access.close()
    for thread in threads:
        thread.join(timeout=240)
    assert not any(thread.is_alive() for thread in threads)
    assert [type(outcome) for outcome in outcomes] == [ClosedError] * 3


def test_a_copy_reads_by_itself(tmp_path: Path) -> None:
    array, data = write(LocalStore(tmp_path), shards=(2 * ROWS, 4, 50))
    access = ZarrDataset(zarrfeed.open(array).select(slice(10, 40)), cache="1MiB")
    access[[0]]
    copied = pickle.loads(pickle.dumps(access))
    access.close()
    assert len(copied) == 30
    check(copied[[0, -1]], data, [10, 39])


# --- samplers ---------------------------------------------------------------------------------------------------


def test_samplers_and_wrappers_of_torch_are_served(tmp_path: Path) -> None:
    array, data = write(LocalStore(tmp_path))
    access = ZarrDataset(array, return_index=True, num_threads=2)
    shares = []
    for rank in range(3):
        sampler: DistributedSampler[Any] = DistributedSampler(access, num_replicas=3, rank=rank)
        sampler.set_epoch(4)
        for batch, index in DataLoader(access, batch_size=8, sampler=sampler):
            check(batch, data, index.numpy())
            shares += index.tolist()
    assert sorted(shares) == list(range(N))
    parts = random_split(access, [0.7, 0.3], generator=torch.Generator().manual_seed(0))
    seen = []
    for part in (*parts, Subset(parts[0], [0, 1])):
        for batch, index in DataLoader(part, batch_size=8, shuffle=True):
            check(batch, data, index.numpy())
            seen += index.tolist()
    assert sorted(seen[:N]) == list(range(N))
    weights = torch.zeros(N)
    weights[[4, 9]] = 1
    drawn = WeightedRandomSampler(weights.tolist(), 50)
    assert {int(i) for _, index in DataLoader(access, batch_size=8, sampler=drawn) for i in index} == {4, 9}
    whole = DataLoader(access, batch_size=None, sampler=BatchSampler(RandomSampler(access), 16, drop_last=True))
    assert [len(index) for _, index in whole] == [16] * (N // 16)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_resumes(workers: int, tmp_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    array, _ = write(LocalStore(tmp_path))
    access = ZarrDataset(array, return_index=True, num_threads=1)

    def loader() -> Any:
        torch.manual_seed(5)
        return stateful.StatefulDataLoader(
            access, batch_size=8, shuffle=True, num_workers=workers, timeout=240 * bool(workers)
        )

    whole = [index.tolist() for _, index in loader()]
    assert sorted(i for batch in whole for i in batch) == list(range(N))
    first = loader()
    batches = iter(first)
    head = [next(batches)[1].tolist() for _ in range(3)]
    state = first.state_dict()
    del batches
    second = loader()
    second.load_state_dict(state)
    rest = [index.tolist() for _, index in second]
    assert head + rest == whole


def test_layouts_of_every_kind_are_read(tmp_path: Path) -> None:
    for number, codec in enumerate(("none", "blosc-zstd-bitshuffle", "gzip", "zstd-crc32c")):
        layout = Layout(shape=(N, 5, 3), chunks=(ROWS, 2, 3), codec=codec, sample_axis=number % 2)
        array = layout.write(tmp_path / codec)
        expected = read_all(array, sample_axis=number % 2)
        access = ZarrDataset(zarrfeed.open(array, sample_axis=number % 2), cache="2 kB")
        n = len(expected)
        for request in random_requests(n, 4, 20):
            assert (raw_rows(access[request]) == raw_rows(expected[request])).all()
