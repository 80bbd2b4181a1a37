"""Packed values have the bits of xarray's, whatever the dtypes of the values and of their attributes are."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import h5netcdf
import numpy as np
import pytest
import xarray as xr
import zarr
from scipy.io import netcdf_file

import zarrfeed

STORED = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]
#: scale_factor and add_offset: neither has a short fraction in binary.
PACKINGS = list(product([None, np.float32(0.1), np.float64(0.1), 3], [None, np.float32(273.15), np.float64(273.15), 7]))


def values_of(dtype: str) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(5)
    if dtype[0] == "f":
        return (rng.random(200) * 1000).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(max(info.min, -(2**40)), min(info.max, 2**40), 200, dtype)


def written(path: Path, kind: str, fill: bool) -> None:
    """Write an array for each dtype and packing."""
    arrays = {
        f"{dtype}_{number}": (values_of(dtype), scale, offset)
        for dtype, (number, (scale, offset)) in product(STORED, enumerate(PACKINGS))
        if (scale, offset) != (None, None)
    }
    if kind == "zarr":
        group = zarr.create_group(path)
        for name, (values, scale, offset) in arrays.items():
            array = group.create_array(name, data=values, chunks=(64,), dimension_names=["n"])
            packing = {"scale_factor": scale, "add_offset": offset}
            array.attrs.update({key: np.asarray(one).item() for key, one in packing.items() if one is not None})
            if fill:
                array.attrs["_FillValue"] = xr.backends.zarr.FillValueCoder.encode(values[3], values.dtype)
        return
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"n": 200}
        for name, (values, scale, offset) in arrays.items():
            array = file.create_variable(name, ("n",), data=values, fillvalue=values[3] if fill else None)
            for key, one in (("scale_factor", scale), ("add_offset", offset)):
                if one is not None:
                    array.attrs[key] = one


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "f4"])
def test_classic_files_keep_the_dtypes_of_attributes(tmp_path: Path, dtype: str) -> None:
    with netcdf_file(path := tmp_path / "x.nc", "w", mmap=False) as file:
        file.createDimension("n", 200)
        array = file.createVariable("x", dtype, ("n",))
        array[:] = values_of(dtype)
        array.scale_factor, array.add_offset = np.array([0.1], "f4"), np.array([273.15], "f4")
    (batch,) = zarrfeed.ZarrIterableDataset(zarrfeed.open(path, variables=["x"]), batch_size=200)
    with xr.open_dataset(path, engine="scipy") as expected:
        assert np.array_equal(batch["x"], expected["x"].values.astype("f4"))


def is_followed(dtype: str, scale: Any, offset: Any, kind: str) -> bool:
    """Return whether xarray calculates as precisely as the attributes and the values are.

    It calculates with integers where scale_factor alone is given and an integer, and in float32 with values that it
    does not hold.
    """
    in_float32 = kind != "zarr" and isinstance(scale, np.float32) and isinstance(offset, np.float32 | None)
    if (in_float32 and dtype in ("i8", "u8", "f8")) or (in_float32 and offset is None and dtype in ("i4", "u4")):
        return False
    return offset is not None or not isinstance(scale, int)


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("kind", ["zarr", "h5netcdf"])
def test_packed_values_have_the_bits_of_xarray(tmp_path: Path, kind: str, fill: bool) -> None:
    written(path := tmp_path / "x", kind, fill)
    (batch,) = zarrfeed.ZarrIterableDataset(zarrfeed.open(path), batch_size=200)
    expected = xr.open_dataset(path, engine=kind, backend_kwargs={"consolidated": False} if kind == "zarr" else None)
    compared = 0
    for name, tensor in batch.items():
        found = tensor.numpy()
        dtype, number = name.split("_")
        scale, offset = PACKINGS[int(number)]
        stored = values_of(dtype)
        exact = stored.astype("f8") * (1 if scale is None else float(scale)) + (0 if offset is None else float(offset))
        exact[stored == stored[3]] = np.nan if fill else exact[3]
        assert np.allclose(found, exact, rtol=1e-5, atol=1e-4, equal_nan=True)
        if is_followed(dtype, scale, offset, kind):
            compared += 1
            assert found.dtype == ("f8" if dtype == "f8" else "f4")
            theirs = expected[name].values.astype(found.dtype)
            assert np.array_equal(found, theirs, equal_nan=True), (dtype, scale, offset)
        else:  # ours are calculated in float64
            theirs = exact.astype(found.dtype)
            assert np.array_equal(found, theirs, equal_nan=True), (dtype, scale, offset)
    assert compared == {"zarr": 140, "h5netcdf": 132}[kind]
