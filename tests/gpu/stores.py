"""Stores whose samples say which ones they are, and datasets over them of every kind of field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr

import zarrfeed
from tests.support.sparse import numbered_rows, put_csr
from zarrfeed import ZarrIterableDataset
from zarrfeed.torch.device.transfers import map_tensors

N, BATCH_SIZE = 96, 8


def numbers(path: Path, width: int = 300, n: int = N) -> str:
    """Write samples of which each item is the sample's index."""
    array = zarr.create_array(path, shape=(n, width), chunks=(6, width), dtype="i4")
    array[:] = np.arange(n, dtype="i4")[:, None].repeat(width, 1)
    return str(path)


def dataset(store: Any, **options: Any) -> ZarrIterableDataset:
    """Return batches in shuffled order, with the index of each sample."""
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 3, "return_index": True} | options
    return ZarrIterableDataset(store, **options)


def is_right(batch: Any) -> bool:
    """Return whether a batch of `numbers` has what its index says, on any device."""
    samples, index = batch
    return bool((samples == index[:, None].to(samples.dtype)).all().item())


def _group(path: Path) -> str:
    rng = np.random.default_rng(5)
    group = zarr.create_group(path)
    names = ("time", "lat", "lon")
    values = np.arange(N, dtype="f4")[:, None, None] + np.zeros((1, 5, 7), "f4")
    group.create_array("x", data=values, chunks=(4, 5, 7), dimension_names=names)
    group.create_array("y", data=values + 0.5, chunks=(7, 5, 7), dimension_names=names)
    group.create_array("z", data=rng.normal(size=(5, 7)).astype("f4"), dimension_names=("lat", "lon"))
    return str(path)


def _image(path: Path) -> Any:
    """Return uint8 images as (channel, row, column) floats."""
    pixels = np.zeros((N, 3, 8, 8), "u1") + np.arange(N, dtype="u1")[:, None, None, None]
    zarr.create_array(path, data=pixels, chunks=(5, 3, 8, 8))
    return zarrfeed.open(path).cast("float32")


def _records(path: Path) -> str:
    kind = np.dtype([("a", "<i4"), ("b", "<f8")])
    rows = np.zeros(N, kind)
    rows["a"], rows["b"] = np.arange(N), np.arange(N) / 2
    zarr.create_array(path, shape=(N,), chunks=(9,), dtype=kind, zarr_format=2)[:] = rows
    return str(path)


def _csr(path: Path) -> Any:
    put_csr(zarr.create_group(path), numbered_rows(N, 17))
    return zarrfeed.open(path)


def _patches(path: Path) -> Any:
    volume = np.arange(12 * 10 * 8, dtype="f4").reshape(12, 10, 8)
    zarr.create_array(path, data=volume, chunks=(4, 5, 4))
    return zarrfeed.open(path).patch({0: 4, 1: 4, 2: 4})


def _open(**options: Any) -> Callable[[Path], Any]:
    return lambda path: zarrfeed.open(_group(path), sample_dim="time", variables=["x", "y"], **options)


#: Kinds of fields -> what is opened of a folder.
KINDS: dict[str, Callable[[Path], Any]] = {
    "numbers": numbers,
    "two fields": _open(),
    "stacked": lambda path: _open()(path).stack(["x", "y"]),
    "static": lambda path: _open()(path).static("z"),
    "bfloat16": lambda path: _open()(path).cast("bfloat16"),
    "normalized": lambda path: _open()(path).normalize({"x": (1.0, 2.0), "y": (0.0, 2.0)}),
    "windows": lambda path: zarrfeed.open(numbers(path)).window((0, 1, 2)),
    "images": _image,
    "records": _records,
    "csr": _csr,
    "patches": _patches,
}


def tensors(batch: Any) -> list[torch.Tensor]:
    """Return the strided tensors of a batch in order; of a sparse one its three parts."""
    found: list[torch.Tensor] = []

    def add(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(batch, add)
    return found


def same(one: Any, other: Any) -> bool:
    """Return whether two batches have the same tensors, wherever they lie."""
    pairs = list(zip(tensors(one), tensors(other), strict=True))
    return bool(pairs) and all(a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu()) for a, b in pairs)
