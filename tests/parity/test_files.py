"""HDF5 and NetCDF4 files in place: what h5py and xarray read of them, bit for bit, in every way of reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr
from torch.utils.data import DataLoader

import zarrfeed
from tests.support.hdf5_files import bytes_of, write_random
from zarrfeed import ZarrIterableDataset
from zarrfeed.storage.files.hdf5 import open_hdf5


def delivered(dataset: Any) -> tuple[list[int], dict[str, list[bytes]]]:
    """Return the indices of the samples that are delivered, and the bytes of each sample of each array."""
    order: list[int] = []
    rows: dict[str, list[bytes]] = {}
    for batch, index in dataset:
        order += index.tolist()
        for name, values in batch.items():
            rows.setdefault(name, []).extend(row.numpy().tobytes() for row in values)
    return order, rows


def expected(written: dict[str, Any], order: list[int]) -> dict[str, list[bytes]]:
    return {name: [bytes_of(values[i]) for i in order] for name, values in written.items()}


def open_all(path: Path, **options: Any) -> Any:
    return zarrfeed.open(path, decode_cf=False, **options)


@pytest.mark.parametrize("seed", range(40))
def test_samples_are_those_of_h5py(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "x.h5"
    written = write_random(path, seed)
    for name, values in written.items():
        array = zarr.open_array(store=open_hdf5(path), path=name, mode="r")
        assert bytes_of(array[...]) == bytes_of(values), name
    for shuffle in (False, True):
        dataset = ZarrIterableDataset(open_all(path), batch_size=7, shuffle=shuffle, seed=seed, return_index=True)
        order, rows = delivered(dataset)
        assert sorted(order) == list(range(len(next(iter(written.values())))))
        assert order == sorted(order) or shuffle
        assert rows == expected(written, order)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_the_file(tmp_path: Path, method: str) -> None:
    path = tmp_path / "x.h5"
    written = write_random(path, 3)
    dataset = ZarrIterableDataset(open_all(path), batch_size=5, shuffle=True, seed=1, return_index=True)
    order, rows = delivered(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method))
    assert sorted(order) == list(range(len(next(iter(written.values())))))
    assert rows == expected(written, order)
