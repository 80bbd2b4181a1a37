"""What dask made is refused at every entry, with what to pass in its place; lazily opened xarray objects are read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray
import zarr

import zarrfeed
from zarrfeed import ConfigError

DASK: Any = dask  # its functions have no types

VALUES = np.arange(48.0).reshape(12, 4)


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=VALUES, chunks=(3, 4), dimension_names=("time", "x"))
    return path


ENTRIES: dict[str, Callable[[Any, str], object]] = {
    "open": lambda array, _: zarrfeed.open(array),
    "mapping": lambda array, _: zarrfeed.open({"a": array}),
    "several stores": lambda array, store: zarrfeed.open([store, array]),
    "iterable dataset": lambda array, _: zarrfeed.ZarrIterableDataset(array, batch_size=2),
    "targets": lambda array, store: zarrfeed.ZarrIterableDataset(store, array, batch_size=2),
    "map dataset": lambda array, _: zarrfeed.ZarrDataset(array),
    "stats": lambda array, _: zarrfeed.stats(array),
    "patch_weights": lambda array, _: zarrfeed.patch_weights(array, {0: 1}, cell=4, output="weights.npz"),
    "verify": lambda array, _: zarrfeed.verify(array, progress_file=None),
    "from_xarray": lambda array, _: zarrfeed.from_xarray(array),
    "static": lambda array, store: zarrfeed.open(store).static(mask=array),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("calculates", [False, True])
def test_dask_arrays_are_refused_with_what_to_pass(store: str, entry: str, calculates: bool) -> None:
    array = DASK.array.from_zarr(store) + calculates
    with pytest.raises(
        ConfigError, match=r"got a dask Array, .*dask\.array\.from_zarr.*dask\.array\.to_zarr.*transform="
    ):
        ENTRIES[entry](array, store)


def test_other_collections_of_dask_are_refused(store: str) -> None:
    with pytest.raises(ConfigError, match=r"samples: got a dask Delayed\w*, whose tasks"):
        zarrfeed.open(DASK.delayed(functools.partial(zarr.open_array, store))())


def test_there_is_no_from_dask() -> None:
    with pytest.raises(
        AttributeError, match=r"zarrfeed has no from_dask: pass the path that dask reads to zarrfeed\.open"
    ):
        zarrfeed.from_dask  # type: ignore[attr-defined]  # noqa: B018


@pytest.fixture
def opened(store: str) -> xarray.Dataset:
    """Return the store as xarray opens it: with dask, which cuts at the chunks of the store."""
    group = zarr.create_group(f"{store}.group", zarr_format=3)
    group.create_array("v", data=VALUES, chunks=(3, 4), dimension_names=("time", "x"))
    dataset: xarray.Dataset = xarray.open_zarr(f"{store}.group", consolidated=False)
    assert dask.array.Array is type(dataset["v"].data)
    return dataset


def test_what_xarray_opened_with_dask_is_read_from_the_store(opened: xarray.Dataset) -> None:
    (batch,) = zarrfeed.ZarrIterableDataset(zarrfeed.from_xarray(opened), batch_size=12)
    assert np.array_equal(batch["v"].numpy(), VALUES)


def test_what_dask_calculated_is_refused(opened: xarray.Dataset) -> None:
    with pytest.raises(ConfigError, match=r"v.*calculated by dask \(add\): pass what .*zarrfeed\.open\('.*group'\)"):
        zarrfeed.from_xarray(opened + 1)
