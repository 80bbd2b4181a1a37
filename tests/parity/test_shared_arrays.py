"""Arrays that several fields draw from: each field has its rows, and each chunk is read and decoded once for all."""

from __future__ import annotations

import warnings
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import zarr
from numcodecs import Delta
from zarr.abc.store import ByteRequest
from zarr.storage import MemoryStore, WrapperStore

import zarrfeed
from zarrfeed import CorruptChunkError, Data, ZarrDataLoader, ZarrDataset, ZarrIterableDataset
from zarrfeed.spec.fields.field import StoredField

N, ROWS, ITEMS = 256, 8, 1024
CHUNKS = N // ROWS
#: With so little memory an array of 1 MiB is not kept in memory, and blocks are single chunks.
SCARCE: dict[str, Any] = {"memory_budget": "8 MiB", "batch_size": 16, "return_index": True}

Array = npt.NDArray[Any]


def rows_of(index: Any) -> Array:
    """Return rows by their index, exact in float32: items differ, and say which row they are of."""
    return np.asarray(index, "f4")[..., None] * 4 + np.arange(ITEMS, dtype="f4") / 1024


def write(store: Any, name: str = "x", **options: Any) -> zarr.Array[Any]:
    array = zarr.create_array(store, name=name, shape=(N, ITEMS), chunks=(ROWS, ITEMS), dtype="f4", **options)
    array[:] = rows_of(np.arange(N))
    return array


class CountedStore(WrapperStore[MemoryStore]):
    """Counts how often each object is had."""

    gets: Counter[str]

    async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Any:
        self.gets[key] += 1
        return await self._store.get(key, prototype, byte_range)


def counted() -> CountedStore:
    store = CountedStore(MemoryStore())
    store.gets = Counter()
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "a.zarr"
    write(path)
    return path / "x"


def forecast(samples: Any, targets: Any) -> Data:
    """Return samples at t - 1 and t, and targets at t + 4."""
    return zarrfeed.open({"x": samples}, targets={"y": targets}).window({"x": (-1, 0), "y": 4})


def check(batches: Any) -> list[int]:
    """Compare forecasts with the rows that they consist of; return their samples."""
    seen: list[int] = []
    for x, y, index in batches:
        at = index.numpy()
        assert np.array_equal(x["x"], rows_of(at[:, None] + np.array([-1, 0])))
        assert np.array_equal(y["y"].reshape(len(at), ITEMS), rows_of(at + 4))
        seen += at.tolist()
    return seen


ALL = list(range(1, N - 4))
KINDS = ("local", "sharded", "zarr-python", "memory", "two names")


def opened_twice(kind: str, store: Path, tmp_path: Path) -> tuple[Any, Any]:
    """Return an array twice, as a user might."""
    if kind == "sharded":
        write(tmp_path / "s.zarr", shards=(4 * ROWS, ITEMS))
        return tmp_path / "s.zarr" / "x", str(tmp_path / "s.zarr" / "x")
    if kind == "zarr-python":
        write(tmp_path / "d.zarr", zarr_format=2, filters=[Delta("<f4")])
        return tmp_path / "d.zarr" / "x", tmp_path / "d.zarr" / "x"
    if kind == "memory":
        array = write(MemoryStore())
        return array, array
    return store, (zarr.open_array(store, mode="r") if kind == "two names" else store)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_and_targets_of_one_array_decode_each_chunk_once(kind: str, store: Path, tmp_path: Path) -> None:
    """It was 2.0 times in order, and 2.6 times shuffled."""
    data = forecast(*opened_twice(kind, store, tmp_path))
    for threads in (1, 3):
        with ZarrIterableDataset(data, shuffle=False, num_threads=threads, **SCARCE) as dataset:
            assert check(dataset) == ALL
            assert CHUNKS <= dataset.stats().chunks_read <= 1.1 * CHUNKS  # what is carried may find no memory
        with ZarrIterableDataset(data, shuffle=True, seed=threads, num_threads=threads, **SCARCE) as dataset:
            for epoch in (1, 2):
                assert sorted(check(dataset)) == ALL
                assert dataset.stats().chunks_read <= epoch * 1.5 * CHUNKS  # lanes end inside of blocks


def test_ranks_workers_and_resumed_epochs_deliver_each_forecast_once(store: Path) -> None:
    data = forecast(store, store)
    for shuffle in (False, True):
        options: dict[str, Any] = {"shuffle": shuffle, "seed": 5, **SCARCE}
        of_ranks: list[int] = []
        for rank in range(3):
            with ZarrIterableDataset(data, rank=rank, world_size=3, even="off", **options) as dataset:
                of_ranks += check(dataset)
        assert sorted(of_ranks) == ALL
        with ZarrIterableDataset(data, rank=0, world_size=1, **options) as dataset:
            whole = check(dataset)
            loader = ZarrDataLoader(dataset, num_workers=2, multiprocessing_context="fork")
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                assert sorted(check(loader)) == ALL
        with ZarrIterableDataset(data, rank=0, world_size=1, **options) as dataset:
            batches = iter(dataset)
            begun = check([next(batches) for _ in range(5)])
            state = dataset.state_dict()
        with ZarrIterableDataset(data, rank=0, world_size=1, **options) as dataset:
            dataset.load_state_dict(state)
            assert begun + check(dataset) == whole


def test_samples_by_index_read_a_chunk_once_for_both_sides(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredField, "resident_bytes", property(lambda _: 1 << 40))  # no array is small
    dataset = ZarrDataset(forecast(store, store), num_threads=1)
    picked = [17, 3, 17, 200, 96]
    x, y = dataset[picked]
    at = np.array(picked) + 1  # the first sample with a row before it
    assert np.array_equal(x["x"], rows_of(at[:, None] + np.array([-1, 0])))
    assert np.array_equal(y["y"].reshape(len(at), ITEMS), rows_of(at + 4))
    needed = {(i + offset) // ROWS for i in at for offset in (-1, 0, 4)}
    assert dataset.stats().chunks_read == len(needed)


@pytest.mark.parametrize("in_shards", [False, True])
def test_a_store_is_asked_for_an_object_once(in_shards: bool) -> None:
    kept = counted()
    array = write(kept, shards=(4 * ROWS, ITEMS) if in_shards else None)
    data = forecast(array, array)
    kept.gets.clear()
    with ZarrIterableDataset(data, shuffle=False, num_threads=2, **SCARCE) as dataset:
        assert check(dataset) == ALL
        assert dataset.stats().chunks_read <= 1.1 * CHUNKS
    chunks = {key: count for key, count in kept.gets.items() if "/c/" in key}
    assert len(chunks) == (CHUNKS // 4 if in_shards else CHUNKS)
    if not in_shards:
        assert sum(chunks.values()) <= 1.1 * CHUNKS


def converted(values: Array, dtype: torch.dtype, mean: float, std: float) -> torch.Tensor:
    return ((torch.from_numpy(values) - mean) / std).to(dtype)


@pytest.mark.parametrize("shuffle", [False, True])
def test_fields_convert_the_items_of_their_array_in_their_own_way(shuffle: bool, store: Path) -> None:
    data = zarrfeed.open({"plain": store, "half": store, "scaled": store, "again": store})
    data = data.cast({"half": "float16"}).normalize({"scaled": (8.0, 4.0), "again": (8.0, 4.0)})
    with ZarrIterableDataset(data, shuffle=shuffle, seed=1, **SCARCE) as dataset:
        seen: list[int] = []
        for batch, index in dataset:
            rows = rows_of(index.numpy())
            assert np.array_equal(batch["plain"], rows)
            assert torch.equal(batch["half"], torch.from_numpy(rows).half())
            for name in ("scaled", "again"):
                assert torch.equal(batch[name], converted(rows, torch.float32, 8.0, 4.0))
            seen += index.tolist()
        assert sorted(seen) == list(range(N))
        assert CHUNKS <= dataset.stats().chunks_read <= (1.2 if shuffle else 1) * CHUNKS


def test_columns_of_a_stack_and_windows_that_are_padded_draw_from_one_array(store: Path) -> None:
    data = zarrfeed.open({"a": store, "b": store, "c": store})
    data = data.window({"a": (0, 2), "b": (-3, 0), "c": 0}, pad="edge").cast({"a": "float32", "b": "float32"})
    data = data.stack(["a", "b"], name="ab")
    for shuffle in (False, True):
        with ZarrIterableDataset(data, shuffle=shuffle, seed=1, **SCARCE) as dataset:
            for batch, index in dataset:
                at = index.numpy()[:, None]
                a = rows_of(np.clip(at + np.array([0, 2]), 0, N - 1))
                b = rows_of(np.clip(at + np.array([-3, 0]), 0, N - 1))
                assert np.array_equal(batch["ab"], np.stack([a, b], axis=2).reshape(batch["ab"].shape))
                assert np.array_equal(batch["c"].reshape(-1, ITEMS), rows_of(index.numpy()))
            if not shuffle:
                assert dataset.stats().chunks_read <= 1.1 * CHUNKS


def test_an_array_is_a_window_and_a_static_row(store: Path) -> None:
    data = zarrfeed.open({"x": store}).window((0, 1))
    data = data.static(first=zarr.open_array(store, mode="r")[:1])
    with ZarrIterableDataset(data, shuffle=True, seed=2, **SCARCE) as dataset:
        for batch, index in dataset:
            assert np.array_equal(batch["x"], rows_of(index.numpy()[:, None] + np.array([0, 1])))
            assert np.array_equal(batch["first"][0].reshape(-1), rows_of(0))


def test_an_array_in_memory_is_read_once_for_all_fields(store: Path, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "large", data=np.zeros((N, 4096), "f4"), chunks=(4, 4096))
    for convert in (False, True):
        data = zarrfeed.open({"large": tmp_path / "large", "x": store}, targets={"y": store, "z": store})
        data = data.window({"x": (-1, 0), "y": 4, "z": 1, "large": 0})
        if convert:
            data = data.normalize({"y": (8.0, 4.0)})
        with ZarrIterableDataset(data, shuffle=True, seed=3, batch_size=16, return_index=True) as dataset:
            for x, y, index in dataset:
                at = index.numpy()
                assert np.array_equal(x["x"], rows_of(at[:, None] + np.array([-1, 0])))
                rows = rows_of(at + 4)
                wanted = converted(rows, torch.float32, 8.0, 4.0) if convert else torch.from_numpy(rows)
                assert torch.equal(y["y"].reshape(len(at), ITEMS), wanted)
                assert np.array_equal(y["z"].reshape(len(at), ITEMS), rows_of(at + 1))
            assert "kept in memory" in str(dataset.explain())
            of_large = dataset.explain().fields[0].chunk_reads
            assert dataset.stats().chunks_read <= of_large + CHUNKS


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_bad_chunk_is_bad_for_both_sides_and_is_reported_once(in_memory: bool, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "x" / "c" / "9" / "0").write_bytes(b"no chunk")
    if in_memory:
        zarr.create_array(tmp_path / "large", data=np.zeros((N, 4096), "f4"), chunks=(4, 4096))
        data = zarrfeed.open({"large": tmp_path / "large", "x": tmp_path / "x"}, targets={"y": tmp_path / "x"})
        data = data.window({"x": (-1, 0), "y": 4, "large": 0})
        options: dict[str, Any] = {"batch_size": 16, "return_index": True}
    else:
        data, options = forecast(tmp_path / "x", tmp_path / "x"), SCARCE
    bad = {i for i in ALL if 9 in {(i - 1) // ROWS, i // ROWS, (i + 4) // ROWS}}
    for shuffle in (False, True):
        faults = {"on_error": "skip", "max_errors": 1}
        with ZarrIterableDataset(data, shuffle=shuffle, seed=4, faults=faults, **options) as dataset:
            with pytest.warns(zarrfeed.ChunkSkippedWarning) as told:
                seen = check(dataset)
            assert len(seen) == len(ALL)
            assert set(seen) == set(ALL) - bad
            assert len(dataset.skipped_chunks()) == len(told) == 1
            assert dataset.skipped_chunks()[0].field == "samples['x']"
    with ZarrIterableDataset(data, shuffle=False, **options) as dataset, pytest.raises(CorruptChunkError):
        list(dataset)


def test_missing_chunks_are_the_fill_value_for_all(tmp_path: Path) -> None:
    write(tmp_path, fill_value=-7.0)
    (tmp_path / "x" / "c" / "9" / "0").unlink()
    with ZarrIterableDataset(forecast(tmp_path / "x", tmp_path / "x"), shuffle=True, seed=1, **SCARCE) as dataset:
        for x, y, index in dataset:
            at = index.numpy()
            for values, rows in ((x["x"], at[:, None] + np.array([-1, 0])), (y["y"], at[:, None] + 4)):
                wanted = np.where((rows // ROWS == 9)[..., None], -7, rows_of(rows))
                assert np.array_equal(values.reshape(wanted.shape), wanted)


def test_fields_of_many_stores_share_each_of_them(tmp_path: Path) -> None:
    lengths = (96, 64, 96)
    begin = np.cumsum([0, *lengths])
    for number, length in enumerate(lengths):
        rows = 4 if number == 1 else ROWS  # another layout
        array = zarr.create_array(
            tmp_path / f"{number}.zarr", shape=(length, ITEMS), chunks=(rows, ITEMS), dtype="f4", name="x"
        )
        array[:] = rows_of(np.arange(begin[number], begin[number + 1]))
    parts = [
        zarrfeed.open({"x": tmp_path / f"{n}.zarr" / "x"}, targets={"y": tmp_path / f"{n}.zarr" / "x"})
        for n in range(3)
    ]
    data = zarrfeed.concat(parts).window({"x": (-1, 0), "y": 4})
    chunks = 96 // ROWS + 64 // 4 + 96 // ROWS
    within = [
        i for first, end in pairwise(begin.tolist()) for i in range(first + 1, end - 4)
    ]  # windows stay in a store
    for shuffle in (False, True):
        with ZarrIterableDataset(data, shuffle=shuffle, seed=2, **SCARCE) as dataset:
            seen = check(dataset)
            assert sorted(seen) == within
            assert dataset.stats().chunks_read <= 1.5 * chunks


@pytest.mark.parametrize("shuffle", [False, True])
def test_patches_and_their_contexts_are_cut_out_of_one_array(shuffle: bool, tmp_path: Path) -> None:
    volume = np.arange(24 * 40 * 40, dtype="f4").reshape(24, 40, 40)
    zarr.create_array(tmp_path / "v", data=volume, chunks=(8, 16, 16))
    data = zarrfeed.open({"image": tmp_path / "v", "wide": tmp_path / "v"})
    data = data.patch({0: 4, 1: 8, 2: 8}, context={"wide": {0: 8, 1: 16, 2: 16}}, border="drop", pad=-1)
    padded = np.pad(volume, 8, constant_values=-1)
    with ZarrIterableDataset(data, batch_size=4, shuffle=shuffle, seed=1, return_index=True) as dataset:
        for batch, _ in dataset:
            for image, wide in zip(batch["image"].numpy(), batch["wide"].numpy(), strict=True):
                z, y, x = np.unravel_index(int(image[0, 0, 0]), volume.shape)
                assert np.array_equal(image, volume[z : z + 4, y : y + 8, x : x + 8])
                assert np.array_equal(wide, padded[z + 6 : z + 14, y + 4 : y + 20, x + 4 : x + 20])
        assert dataset.stats().chunks_read == 3 * 3 * 3
