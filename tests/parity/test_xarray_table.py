"""Every row of the table "From xarray to zarrfeed" of docs/tasks/selecting.md gives the values that xarray gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import zarrfeed as zf

_PAGE = Path(__file__).parents[2] / "docs" / "tasks" / "selecting.md"
_ROWS = [
    tuple(cell.strip() for cell in line.strip("| ").split(" | "))
    for line in _PAGE.read_text().partition("## From xarray to zarrfeed")[2].splitlines()
    if line.startswith("| `")
]
#: Rows that name no expression of ours.
_PROSE = ("ds.sel(x=xr.DataArray(...), y=xr.DataArray(...))",)


def _code(cell: str) -> str:
    found = re.match(r"`([^`]*)`", cell)
    assert found is not None, cell
    return found[1]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a cube whose values encode their index, from January to March, with some missing."""
    path = str(tmp_path_factory.mktemp("table") / "cube.zarr")
    times = np.arange("2015-01-01", "2015-04-01", np.timedelta64(6, "h"), dtype="datetime64[ns]")
    shape = (len(times), 4, 3, 4)
    values = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    t2m = values[:, 0].copy()
    t2m[7, 1, 2] = np.nan
    cube = xr.Dataset(
        {
            "z": (("time", "level", "latitude", "longitude"), values),
            "t2m": (("time", "latitude", "longitude"), t2m),
            "sensor": (("time", "channel"), values[:, 0, 0, :3]),
            "forecast": (("time", "step"), values[:, 0, :, 0]),
        },
        coords={
            "time": times,
            "level": [300, 500, 700, 850],
            "step": np.array([6, 48, 54], dtype="m8[h]").astype("m8[ns]"),
            "latitude": [70.0, 50.0, 20.0],
            "quality": ("time", np.linspace(0, 1, len(times))),
            "episode": ("time", np.arange(len(times)) // 40),
        },
    )
    cube.to_zarr(path, encoding={"z": {"chunks": (50, 2, 3, 4)}}, zarr_format=2, consolidated=True)
    return path


@pytest.mark.parametrize(("theirs", "ours"), _ROWS, ids=[_code(row[0]) for row in _ROWS])
def test_a_row_of_the_table_gives_what_xarray_gives(path: str, theirs: str, ours: str) -> None:
    theirs = _code(theirs)
    if theirs in _PROSE:
        return
    opened = xr.open_zarr(path, chunks=None)
    mask = np.array([True, False, True, True])
    names: dict[str, Any] = {"xr": xr, "zf": zf, "np": np, "path": path, "mask": mask, "ds": opened}
    names["data"] = zf.open(path, sample_dim="time", variables=["z", "t2m", "sensor", "forecast"])
    expected, got = eval(theirs, names), eval(_code(ours), names)  # text of our own page
    if isinstance(got, zf.Statistics):
        for name in ("z", "sensor"):
            mean = expected[name].mean().item()
            assert got[name].mean.item() == pytest.approx(mean, rel=1e-6)
        return
    samples = zf.ZarrDataset(got)[list(range(len(got)))]
    names_of_both = expected.data_vars.keys() & samples.keys()
    assert names_of_both
    for name in names_of_both:
        tensor, wanted = samples[name], expected[name]
        first = "sample" if "sample" in wanted.dims else "time"
        if first not in wanted.dims:  # a label takes the dimension of a dataset of xarray away
            wanted = wanted.expand_dims("time")
        if theirs == "ds.isel(time=[9, 3])":  # ours is a filter
            wanted = wanted.sortby("time")
        wanted = wanted.transpose(first, *[dim for dim in ("lag",) if dim in wanted.dims], ...)
        assert np.array_equal(tensor.numpy(), wanted.values.astype(tensor.numpy().dtype), equal_nan=True), name
