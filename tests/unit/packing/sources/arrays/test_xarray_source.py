"""Samples of netCDF files are the stored numbers, with the attributes by which xarray decodes the same values."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

xarray = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")

from zarrfeed import ConfigError, StoreReadError  # noqa: E402 - after what may be missing
from zarrfeed.packing.sources.arrays.xarray_source import XarraySource  # noqa: E402
from zarrfeed.packing.sources.source import SourceCall, SourceOptions  # noqa: E402

PLAIN = SourceOptions()
TIME = SourceOptions(sample_dim="time")
PACKED = {"t": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -9999, "chunksizes": (4, 2, 3)}}


def dataset(count: int, first: int = 0) -> Any:
    """Return samples that tell their numbers: packed, with missing values, with times of a calendar."""
    i = np.arange(first, first + count)
    t = i[:, None, None] + np.arange(6).reshape(2, 3) / 2
    t[:, 0, 1] = np.nan
    q = np.moveaxis(np.stack([i * 1.0, np.where(i % 2, np.nan, i)]), 1, 0).astype(np.float32)
    return xarray.Dataset(
        {
            "t": (("time", "y", "x"), t, {"units": "K", "grid_mapping": "crs"}),
            "q": (("y", "time"), q.T, {"long_name": "q"}),
            "name": ("time", np.array([f"é{n}" for n in i], object)),
            "mask": (("y", "x"), np.arange(6).reshape(2, 3)),
            "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
        },
        coords={"time": ("time", i * 6.0, {"units": "hours since 2000-02-01", "calendar": "noleap"}), "x": [5, 6, 7]},
        attrs={"title": "made", "numbers": np.array([1, 2])},
    )


def write(path: Path, made: Any, **encoding: Any) -> str:
    with_chunks = {name: {**one} for name, one in (encoding or PACKED).items() if name in made}
    for one in with_chunks.values():
        if "chunksizes" in one:
            one["chunksizes"] = (min(4, made.sizes["time"]), *one["chunksizes"][1:])
    made.to_netcdf(path, engine="h5netcdf", encoding=with_chunks)
    return str(path)


def stored_in_zarr(source: Any, path: Path) -> None:
    """Write what a source gives as arrays of a Zarr group, and nothing else."""
    group = zarr.create_group(path, attributes=dict(source.attributes))
    for field, rows in zip(source.fields, source.read(0, source.num_samples), strict=True):
        array = group.create_array(
            field.name,
            shape=rows.shape,
            dtype=str if field.kind == "text" else field.dtype,
            dimension_names=field.dims,
            attributes=dict(field.attributes),
            fill_value=field.fill_value if field.kind == "number" else "",
        )
        array[...] = rows
    for one in source.constants:
        values: Any = one.values
        array = group.create_array(one.name, shape=values.shape, dtype=values.dtype, dimension_names=one.dims)
        array.attrs.update(one.attributes)
        array[...] = one.values


def test_xarray_decodes_the_same_values(tmp_path: Path) -> None:
    lengths = [9, 1, 4]
    wholes = [dataset(count, sum(lengths[:number])) for number, count in enumerate(lengths)]
    for number, whole in enumerate(wholes):
        write(tmp_path / f"{number}.nc", whole)
    source: Any = SourceCall("xarray", (str(tmp_path),), TIME).open()
    fields = {field.name: field for field in source.fields}
    assert (source.num_samples, source.block_samples) == (14, 4)
    assert {name: (field.dtype, field.dims) for name, field in fields.items()} == {
        "t": (np.int16, ("time", "y", "x")),
        "q": (np.float32, ("time", "y")),
        "name": (object, ("time",)),
        "time": (np.float64, ("time",)),
    }
    assert sorted(one.name for one in source.constants) == ["crs", "mask", "x"]

    def check(pair: tuple[int, int]) -> None:
        made, i = dict(zip(fields, source.read(*pair), strict=True)), np.arange(*pair)
        np.testing.assert_array_equal(made["t"][:, 1, 2], 2 * i - 15)  # as packed
        np.testing.assert_array_equal(made["q"][:, 0], i)
        assert made["name"].tolist() == [f"é{n}" for n in i]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(check, [(begin, end) for begin in range(0, 15, 2) for end in range(begin, 15, 3)]))
    stored_in_zarr(source, tmp_path / "packed.zarr")
    source.close()
    ours = xarray.open_zarr(tmp_path / "packed.zarr", chunks=None, decode_times=False, consolidated=False)
    expected = xarray.concat(
        [xarray.open_dataset(tmp_path / f"{n}.nc", decode_times=False) for n in range(3)], "time", data_vars="minimal"
    )
    for name in expected.variables:
        xarray.testing.assert_equal(ours[name].variable, expected[name].variable.transpose(*ours[name].dims))
    assert ours["time"].attrs == expected["time"].attrs
    assert ours.attrs["title"] == "made"


def test_real_files_of_a_model_follow_each_other() -> None:
    folder = Path(pytest.importorskip("iris_sample_data").path) / "NEMO"
    source = XarraySource([str(folder)], SourceOptions(variables=("tos", "nav_lat")))
    files = sorted(folder.glob("*.nc"))
    made = dict(zip([field.name for field in source.fields], source.read(0, 3), strict=True))
    assert set(made) == {"tos", "time_counter"}
    for number, path in enumerate(files):
        with xarray.open_dataset(path, decode_cf=False) as expected:
            np.testing.assert_array_equal(made["tos"][number], expected["tos"][0])
            assert made["time_counter"][number] == expected["time_counter"][0]
    assert "nav_lat" in {one.name for one in source.constants}


def test_a_scalar_coordinate_makes_a_file_a_sample(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.nc", dataset(3).isel(time=number), x={})
    source = XarraySource([str(tmp_path)], TIME)
    names = [field.name for field in source.fields]
    assert source.num_samples == 3
    assert source.take(np.array([2, 0]))[names.index("time")].tolist() == [12, 0]
    assert source.read(1, 3)[names.index("q")][:, 0].tolist() == [1, 2]
    assert sorted(one.name for one in source.constants) == ["crs", "x"]


def test_what_does_not_fit_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    def refused(message: str, *paths: str, options: SourceOptions = TIME) -> None:
        with pytest.raises(ConfigError, match=message):
            XarraySource(paths, options)

    good, made = write(tmp_path / "good.nc", dataset(3)), dataset(2, 3)
    other = made.assign(mask=made["mask"] + 1)
    refused(r"mask\.nc: 'mask', which has no samples, has other values", good, write(tmp_path / "mask.nc", other))
    scale = {"t": {**PACKED["t"], "scale_factor": 0.25}}
    refused(r"scale\.nc: 't' is .*0\.25.*0\.5", good, write(tmp_path / "scale.nc", made, **scale))
    made["time"].attrs["units"] = "hours"
    refused(r"units\.nc: 'time' is number float64 .*times of shape", good, write(tmp_path / "units.nc", made))
    refused(r"less\.nc: the list of variables", good, write(tmp_path / "less.nc", dataset(2).drop_vars("q")))
    refused("sample_dim = 'tme', must be one of its dimensions: ", good, options=SourceOptions(sample_dim="tme"))
    refused("variables: 'z' is not in", good, options=SourceOptions(variables=("z",)))
    refused("no variable with a dimension", write(tmp_path / "no.nc", xarray.Dataset({"a": 1}), a={}), options=PLAIN)
    (tmp_path / "text.nc").write_text("x")
    refused(r"text\.nc: xarray does not open it .*pip install", str(tmp_path / "text.nc"))
    (tmp_path / "text.grib").write_text("x")
    refused(r"text\.grib: xarray does not open it .*pip install cfgrib", str(tmp_path / "text.grib"))
    assert XarraySource([good], PLAIN).num_samples == 3  # the first dimension of "t"
    source = XarraySource([good], TIME)
    source.close()
    Path(good).write_bytes(Path(good).read_bytes()[:-100])
    with pytest.raises(StoreReadError, match=r"good\.nc: has changed"):
        source.read(0, 1)


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ConfigError, match="xarray sources need xarray: pip install xarray"):
        SourceCall("xarray", ("x",)).open()


def test_a_damaged_hdf5_file_is_refused_without_a_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(40))
    with pytest.raises(ConfigError, match=r"a\.nc: is a damaged HDF5 file"):
        XarraySource((str(tmp_path / "a.nc"),), SourceOptions())
    gc.collect()
    assert capfd.readouterr().err == ""
