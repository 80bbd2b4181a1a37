"""Patches out of stores that Python reads, and of codecs that zarr-python decodes: as out of a local one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import LZMA
from zarr.storage import MemoryStore

import zarrfeed
from benchmarks.harness.object_server import ObjectServer, Stored
from tests.support.oracle import NUMCODECS_WARNING
from tests.support.patches import patch_of, read, volume
from zarrfeed import ZarrIterableDataset

SIZE = (8, 5, 7)


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    pytest.importorskip("obstore")
    with ObjectServer() as running:
        yield running


def check(data: zarrfeed.Data, **options: Any) -> None:
    """Read two epochs of patches of `volume()`, and compare each voxel."""
    dataset = ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True, **options)
    for epoch in range(2):
        count = np.zeros(volume().shape, dtype=int)
        for patch, number in read(dataset):
            start = data.locate(number)[1]
            np.testing.assert_array_equal(patch.numpy(), patch_of(volume(), start, SIZE, pad=-1))
            count[tuple(slice(max(0, s), s + p) for s, p in zip(start, SIZE, strict=True))] += 1
        assert (count == 1).all(), epoch


@pytest.mark.parametrize("options", [{"chunks": (9, 8, 7)}, {"chunks": (5, 13, 7), "shards": (10, 26, 21)}])
def test_patches_of_a_bucket_ask_for_each_chunk_about_once(
    options: dict[str, Any], server: ObjectServer, tmp_path: Path
) -> None:
    memory: Any = {}
    zarr.create_array(MemoryStore(memory), name="v.zarr", data=volume(), **options)
    for key, value in memory.items():
        if key.startswith("v.zarr/"):
            server.objects[key] = Stored((np.frombuffer(value.to_bytes(), np.uint8),), f'"{key}"')
    where: dict[str, Any] = {"storage_options": server.options()}
    data = zarrfeed.open("s3://bucket/v.zarr", **where).patch({0: 8, 1: 5, 2: 7}, pad=-1)
    check(data)
    cached = zarrfeed.open("s3://bucket/v.zarr", cache=str(tmp_path / "cache"), **where)
    check(cached.patch({0: 8, 1: 5, 2: 7}, pad=-1))
    if "shards" not in options:
        server.requests.clear()
        dataset = ZarrIterableDataset(data, batch_size=5, mixing={"lanes": 1})
        list(dataset)
        asked = Counter(one.key for one in server.requests if one.kind == "get" and "/c/" in one.key)
        assert len(asked) == 4 * 4 * 3
        stats = dataset.stats()
        again = stats.hedges + stats.retries  # requests that a busy machine answered late
        assert asked.total() <= len(asked) + again


def test_patches_of_a_store_in_memory() -> None:
    store = MemoryStore()
    zarr.create_array(store, data=volume(), chunks=(9, 8, 7))
    check(zarrfeed.open(zarr.open_array(store, mode="r")).patch({0: 8, 1: 5, 2: 7}, pad=-1))


@pytest.mark.filterwarnings(NUMCODECS_WARNING)
def test_patches_of_codecs_that_zarr_python_decodes(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "v", data=volume(), chunks=(9, 8, 7), zarr_format=2, compressors=LZMA(preset=1))
    check(zarrfeed.open(tmp_path / "v").patch({0: 8, 1: 5, 2: 7}, pad=-1))
