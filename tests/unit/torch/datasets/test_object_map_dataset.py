"""Objects by index."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zarrfeed
import zarrfeed.objects
from tests.support.fault_server import FaultServer
from tests.support.objects import content, key_of, number_of, write_objects
from zarrfeed import ClosedError, ConfigError, StoreReadError
from zarrfeed.objects import ObjectDataset

N = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_objects(tmp_path_factory.mktemp("objects"), N)


def test_objects_by_index(folder: Path) -> None:
    dataset = ObjectDataset(folder)
    assert len(dataset) == N
    assert number_of(dataset[7]) == 7
    assert number_of(dataset[-1]) == N - 1
    assert number_of(dataset[np.int64(3)]) == 3
    assert [number_of(one) for one in dataset[[5, 1, 5]]] == [5, 1, 5]
    assert dataset[[]] == []
    assert isinstance(dataset[0], torch.Tensor)
    assert dataset.stats().chunks_read == 7


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_loader_asks_for_batches(folder: Path, workers: int) -> None:
    dataset = ObjectDataset(folder, decode="bytes")
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=16,
        shuffle=True,
        num_workers=workers,
        collate_fn=list,
        multiprocessing_context="forkserver" if workers else None,
    )
    assert sorted(number_of(one) for batch in loader for one in batch) == list(range(N))


def test_threads_and_pickles(folder: Path) -> None:
    dataset = pickle.loads(pickle.dumps(ObjectDataset(folder)))
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append([number_of(one) for one in dataset[range(N)]])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert found == [list(range(N))] * 4


def test_errors_name_the_object_and_the_next_request_works(folder: Path) -> None:
    with FaultServer(folder) as server:
        dataset = ObjectDataset(zarrfeed.objects.open(server.url, keys=[key_of(3), "nowhere", key_of(4)]))
        with pytest.raises(StoreReadError, match=r"http://127\.0\.0\.1:\d+/nowhere: is gone"):
            dataset[[0, 1]]
        assert number_of(dataset[2]) == 4


@pytest.mark.parametrize("index", [N, -N - 1])
def test_an_index_out_of_range(folder: Path, index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index}, must be in"):
        ObjectDataset(folder)[[0, index]]


def test_what_is_refused(folder: Path) -> None:
    dataset = ObjectDataset(folder)
    wrong: Any
    for wrong in ("key", [1.5], [[1]]):
        with pytest.raises(ConfigError, match="must be an int or a 1-d sequence of ints"):
            dataset[wrong]
    with pytest.raises(ConfigError, match="cannot be replaced"):
        ObjectDataset(folder, faults={"on_error": "skip"})
    with pytest.raises(ConfigError, match="num_threads"):
        ObjectDataset(folder, num_threads=0)
    dataset.close()
    dataset.close()
    with pytest.raises(ClosedError):
        dataset[0]


def test_zarr_chunks(tmp_path: Path) -> None:
    import zarr

    data = np.arange(35, dtype=np.float32).reshape(7, 5)
    zarr.create_array(tmp_path / "a.zarr", data=data, chunks=(2, 5), fill_value=-1)
    dataset = ObjectDataset(tmp_path / "a.zarr", decode="zarr-chunk")
    assert [one.key for one in dataset.objects.listing] == [f"c/{i}/0" for i in range(4)]
    chunks = dataset[range(4)]
    assert all(chunk.shape == (2, 5) for chunk in chunks)
    assert np.array_equal(torch.cat(chunks)[:7], data)


@pytest.mark.parametrize("make", ["nothing", "group", "shards"])
def test_zarr_chunks_need_an_array_without_shards(tmp_path: Path, make: str) -> None:
    import zarr

    path = tmp_path / "a.zarr"
    if make == "nothing":
        write_objects(path, 2)
    elif make == "group":
        zarr.create_group(path)
        (path / "x").write_bytes(b"1")
    else:
        zarr.create_array(path, data=np.ones((8, 2)), chunks=(1, 2), shards=(4, 2))
    with pytest.raises((ConfigError, StoreReadError), match=r"no Zarr array|it is a group|has shards"):
        ObjectDataset(path, decode="zarr-chunk")


def test_content_tells_its_number() -> None:
    assert [number_of(content(i)) for i in range(20)] == list(range(20))
