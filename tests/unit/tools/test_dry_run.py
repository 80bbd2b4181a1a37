"""A dry run tells what the dataset tells that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed.base.errors import ConfigError, MemoryBudgetError
from zarrfeed.tools import dry_run

N = 96


def rows(folder: Path) -> zarrfeed.Data:
    group = zarr.create_group(folder / "a.zarr")
    group.create_array("x", data=np.zeros((N, 4), "f4"), chunks=(8, 4))
    group.create_array("y", data=np.zeros(N, "i8"), chunks=(32,))
    return zarrfeed.open(folder / "a.zarr")


def stores(folder: Path) -> zarrfeed.Data:
    for number in range(3):
        zarr.create_array(folder / f"{number}.zarr", data=np.zeros((N, 4), "f4"), chunks=(8, 4))
    return zarrfeed.open(f"{folder}/*.zarr").select(slice(5, None))


def texts(folder: Path) -> zarrfeed.Data:
    zarr.create_array(folder / "t.zarr", data=np.full(N, "text"), chunks=(8,), zarr_format=2)
    return zarrfeed.open(folder / "t.zarr")


def patches(folder: Path) -> zarrfeed.Data:
    zarr.create_array(folder / "v.zarr", data=np.zeros((32, 32), "u1"), chunks=(8, 16))
    return zarrfeed.open(folder / "v.zarr").patch({0: 12, 1: 12})


@pytest.mark.parametrize("ranks", [None, 3])
@pytest.mark.parametrize("make", [rows, stores, texts, patches])
def test_it_explains_what_the_dataset_explains(
    make: Callable[[Path], zarrfeed.Data], ranks: int | None, tmp_path: Path
) -> None:
    data = make(tmp_path)
    arguments: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "num_threads": 2}
    arguments |= {"memory_budget": "32MiB", "mixing": {"lanes": 3}}
    rank_options: dict[str, Any] = {} if ranks is None else {"rank": 0, "world_size": ranks}
    pages = []
    planned = dry_run.schedule_of(data, **arguments)
    with zarrfeed.ZarrIterableDataset(data, **arguments, **rank_options) as dataset:
        for epoch in (0, 4):
            dataset.set_epoch(epoch)
            pages.append(str(dry_run.explain(data, *planned, ranks=ranks, epoch=epoch)))
            assert pages[-1] == str(dataset.explain())
    assert str(N) in pages[0] or make is patches


def test_it_refuses_what_the_dataset_refuses(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"shuffle": True, "num_threads": 2, "mixing": {}}
    with pytest.raises(ConfigError, match="seed"):
        dry_run.schedule_of(rows(tmp_path), batch_size=5, seed=-1, memory_budget=None, **arguments)
    planned = dry_run.schedule_of(
        zarrfeed.open(tmp_path / "a.zarr"), batch_size=5, seed=0, memory_budget=64, **arguments
    )
    with pytest.raises(MemoryBudgetError):
        dry_run.explain(zarrfeed.open(tmp_path / "a.zarr"), *planned, ranks=None, epoch=0)
