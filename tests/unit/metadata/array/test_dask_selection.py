"""A selection by xarray of what dask holds is read from the store as xarray computes it, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray as xr

import zarrfeed
from zarrfeed import ConfigError
from zarrfeed.metadata.array.dask_selection import NotASelectionError, selection_of

SHAPE = (12, 4, 6)
LENGTHS = {"time": 12, "level": 4, "lat": 6}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a store whose values encode their index."""
    path = str(tmp_path_factory.mktemp("dask") / "cube.zarr")
    values = np.arange(np.prod(SHAPE), dtype="f4").reshape(SHAPE)
    cube = xr.Dataset(
        {"z": (tuple(LENGTHS), values), "ps": (("time", "lat"), values[:, 0] + 0.5)},
        coords={"level": [300, 500, 700, 850], "lat": np.linspace(50, -50, 6)},
    )
    cube.to_zarr(path, encoding={"z": {"chunks": (4, 2, 5)}}, consolidated=False)
    return path


@pytest.fixture
def cube(path: str) -> xr.Dataset:
    opened: xr.Dataset = xr.open_zarr(path, consolidated=False)
    assert isinstance(opened["z"].data, dask.array.Array)
    return opened


def assert_equal_to_xarray(selected: xr.Dataset) -> None:
    data = zarrfeed.from_xarray(selected, sample_dim="time")
    samples = zarrfeed.ZarrDataset(data)[list(range(len(data)))]
    computed = selected.compute()
    for name, tensor in samples.items():
        assert np.array_equal(tensor.numpy(), computed[name].values)


@pytest.mark.parametrize(
    "select",
    [
        lambda cube: cube.sel(level=[850, 500]),
        lambda cube: cube.sel(level=500, lat=slice(40, -20)).isel(time=slice(3, 11)),
        lambda cube: cube.isel(time=cube["lat"].size * [True, False]).sel(level=[850]),
        lambda cube: cube.chunk(time=5, lat=2).isel(lat=[5, 0, 0, 3]).chunk(time=-1),
        lambda cube: xr.concat([cube.isel(time=slice(0, 5)), cube.isel(time=slice(5, 12))], "time"),
    ],
    ids=["levels", "level and region", "mask", "other chunks", "put together again"],
)
def test_selections_through_dask_are_read_from_the_store(
    cube: xr.Dataset, select: Callable[[xr.Dataset], xr.Dataset]
) -> None:
    assert_equal_to_xarray(select(cube))


@pytest.mark.parametrize("seed", range(12))
def test_random_sequences_of_selections_and_chunks(cube: xr.Dataset, seed: int) -> None:
    rng = np.random.default_rng(seed)
    selected = cube
    for _ in range(rng.integers(1, 5)):
        dim = str(rng.choice([str(one) for one in selected["z"].dims]))
        n = selected.sizes[dim]
        one_of: list[Any] = [slice(int(rng.integers(n)), None), slice(None, None, 2), np.arange(n) != n // 2]
        if dim != "time":
            one_of += [int(rng.integers(-n, n)), slice(None, None, -1), rng.integers(0, n, 3).tolist()]
        if rng.random() < 0.3:
            selected = selected.chunk({dim: int(rng.integers(1, 5))})
        elif n > 1:
            selected = selected.isel({dim: one_of[rng.integers(len(one_of))]})
    assert_equal_to_xarray(selected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cube: cube * 2, r"is calculated by dask \(mul\)"),
        (lambda cube: cube.coarsen(time=2).mean(), r"is calculated by dask \(mean_agg\)"),
        (lambda cube: cube.transpose("time", "lat", "level"), r"is calculated by dask \(transpose\)"),
        (lambda cube: cube.persist(), "is in memory"),
        (lambda cube: xr.concat([cube, cube + 0], "time"), r"is calculated by dask \(add\)"),
        (lambda cube: cube.isel(level=xr.DataArray([0, 1], dims="n"), lat=xr.DataArray([0, 1], dims="n")), ".*by dask"),
        (lambda cube: cube.isel(time=[3, 1]), "selects samples in another order than the store"),
    ],
)
def test_other_graphs_are_refused_by_what_they_do(
    cube: xr.Dataset, change: Callable[[xr.Dataset], Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"samples\['z'\]: {message}"):
        zarrfeed.from_xarray(change(cube[["z"]]), sample_dim="time")


def test_pieces_that_are_no_selection_along_each_axis_are_refused() -> None:
    source = dask.array.from_array(_Source(), chunks=(2, 2), name="x", meta=np.zeros((0, 0)))
    assert [str(one) for one in selection_of(source[:, [3, 1]])[1]] == ["slice(None, None, None)", "[3 1]"]
    other = dask.array.from_array(_Source(), chunks=(2, 2), name="y", meta=np.zeros((0, 0)))
    for array, message in (
        (dask.array.concatenate([source, other]), "comes from several stores"),
        (dask.array.block([[source[:2], source[2:]], [source[2:], source[:2]]]), "side by side that lie elsewhere"),
        (dask.array.block([[source[:2, :2], source[:2, 2:]], [source[2:, :2], source[:2, :2]]]), "side by side"),
        (source[None], "new axes"),
    ):
        with pytest.raises(NotASelectionError, match=message):
            selection_of(array)


class _Source:
    """An array that must not be read."""

    shape = (4, 4)
    ndim = 2
    dtype = np.dtype("f8")

    def __getitem__(self, key: object) -> np.ndarray[Any, Any]:
        raise AssertionError(f"values were read: {key}")
