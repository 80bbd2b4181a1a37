"""Every command takes what `zarrfeed.open` takes: each tool on each format and each way to name it, by its values."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import tifffile
import xarray as xr
import zarr
from zarr.storage import ZipStore

import zarrfeed as zf
from zarrfeed.tools import cli

#: Samples whose first item is their own index.
VALUES = np.arange(24, dtype="f4")[:, None, None] + np.linspace(0, 0.5, 12, dtype="f4").reshape(3, 4)


class Named(NamedTuple):
    """Options that name one array of VALUES, called `name` in a packed store."""

    arguments: list[str]
    name: str | None
    options: Mapping[str, Any] = {}


def _netcdf(folder: Path, **options: Any) -> Named:
    _dataset(0, 24, "1990-01-01").to_netcdf(folder / "x.nc", **options)
    return Named([f"{folder}/x.nc", "--sample-dim", "time"], "t")


def _dataset(begin: int, end: int, day: str) -> xr.Dataset:
    times = np.datetime64(day, "ns") + np.arange(end - begin) * np.timedelta64(1, "D")
    return xr.Dataset({"t": (("time", "y", "x"), VALUES[begin:end])}, coords={"time": times})


def _years(folder: Path) -> Named:
    for begin, day in ((0, "1990-01-01"), (12, "1990-01-13")):
        counted = {"time": {"units": f"days since {day}"}}
        _dataset(begin, begin + 12, day).to_netcdf(folder / f"y{begin:02d}.nc", engine="h5netcdf", encoding=counted)
    return Named([f"{folder}/y*.nc", "--sample-dim", "time"], "t")


def _hdf5(folder: Path) -> Path:
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("data/all/t", data=VALUES, chunks=(5, 3, 4), compression="gzip", shuffle=True)
        for number in range(2):
            file[f"data/demo_{number}/t"] = VALUES[number * 12 : number * 12 + 12]
    return folder / "x.h5"


def _npy(folder: Path) -> Named:
    np.save(folder / "x.npy", VALUES)
    return Named([f"{folder}/x.npy"], "data")


def _npz(folder: Path) -> Path:
    np.savez(folder / "x.npz", t=VALUES)
    return folder / "x.npz"


def _tiff(folder: Path) -> Named:
    tifffile.imwrite(
        folder / "x.ome.tif",
        VALUES,
        photometric="minisblack",
        metadata={"axes": "TYX"},
        tile=(16, 16),
        compression="zlib",
    )
    return Named([f"{folder}/x.ome.tif", "--sample-dim", "t"], None)


def _zip(folder: Path, compression: int = 0) -> Path:
    with ZipStore(folder / "x.zarr.zip", mode="w", compression=compression) as store:
        group = zarr.create_group(store)
        group.create_array("t", data=VALUES, chunks=(5, 3, 4))
    return folder / "x.zarr.zip"


def _references(folder: Path) -> Named:
    (folder / "raw.bin").write_bytes(VALUES.tobytes())
    array = {"zarr_format": 2, "shape": VALUES.shape, "chunks": [8, 3, 4], "dtype": "<f4", "fill_value": None}
    array |= {"order": "C", "filters": None, "compressor": None}
    refs = {".zgroup": '{"zarr_format": 2}', "t/.zarray": json.dumps(array)}
    chunks = {f"t/{i}.0.0": [str(folder / "raw.bin"), i * 384, 384] for i in range(3)}
    (folder / "refs.json").write_text(json.dumps({"version": 1, "refs": refs | chunks}))
    return Named([f"{folder}/refs.json"], "t")


FORMATS: dict[str, Callable[[Path], Named]] = {
    "NetCDF4": lambda folder: _netcdf(folder, engine="h5netcdf"),
    "NetCDF3": lambda folder: _netcdf(folder, engine="scipy", format="NETCDF3_CLASSIC", unlimited_dims=["time"]),
    "array in NetCDF4": lambda folder: Named([f"{_netcdf(folder, engine='h5netcdf').arguments[0]}/t"], None),
    "years": _years,
    "variable in HDF5": lambda folder: Named([f"{_hdf5(folder)}", "--variables", "data/all/t"], "data.all.t"),
    "group in HDF5": lambda folder: Named([f"{_hdf5(folder)}/data/all"], "t"),
    "array in HDF5": lambda folder: Named([f"{_hdf5(folder)}::data/all/t"], None),
    "groups in HDF5": lambda folder: Named([f"{_hdf5(folder)}/data/demo_*"], "t"),
    "NumPy": _npy,
    "archive of NumPy": lambda folder: Named([f"{_npz(folder)}"], "t"),
    "array in an archive of NumPy": lambda folder: Named([f"{_npz(folder)}/t"], None),
    "TIFF": _tiff,
    "zip": lambda folder: Named([f"{_zip(folder)}"], "t"),
    "array in a zip": lambda folder: Named([f"{_zip(folder)}/t"], None),
    "array in a deflated zip": lambda folder: Named([f"{_zip(folder, 8)}/t"], None),
    "references": _references,
}


def _run(command: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    status = cli.main([command, *arguments])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    return printed.out


@pytest.mark.parametrize("form", FORMATS)
def test_tools_take_what_open_takes(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = FORMATS[form](tmp_path)
    path = named.arguments[0]
    assert "24 in the array" in _run("info", named.arguments, capsys)
    assert "float32" in _run("info", [path, "--tree"], capsys).replace(">f4", "float32")
    _run("stats", [*named.arguments, "--output", f"{tmp_path}/stats.json"], capsys)
    (of,) = zf.Statistics.load(tmp_path / "stats.json").fields.values()
    assert of.count == VALUES.size
    found = np.ravel([of.mean, of.std, of.min, of.max])
    np.testing.assert_allclose(found, [VALUES.mean(), VALUES.std(), VALUES.min(), VALUES.max()], rtol=1e-5)
    report = json.loads(_run("verify", [*named.arguments, "--json", "-", "--progress-file", "none"], capsys))
    stores = report.get("stores", [report])
    assert all(store["ok"] for store in stores)
    assert sum(one["good"] for store in stores for one in store["arrays"]) > 0
    _run("pack", [*named.arguments, "-o", f"{tmp_path}/packed.zarr", "--verify"], capsys)
    packed = zarr.open_array(f"{tmp_path}/packed.zarr", path=named.name or "", mode="r")
    np.testing.assert_array_equal(packed[...], VALUES)


@pytest.mark.parametrize("form", ["NetCDF4", "years", "NumPy", "references"])
def test_a_damaged_file_is_found_by_every_name(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = FORMATS[form](tmp_path)
    for file in tmp_path.iterdir():
        if file.suffix != ".json":
            file.write_bytes(file.read_bytes()[:-600])
    arguments = [*named.arguments, "--progress-file", "none"]
    assert cli.main(["verify", *arguments]) in (cli.EXIT_FAILED, cli.EXIT_ERROR)
    assert capsys.readouterr() != ("", "")


def test_a_name_in_a_zip_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _zip(tmp_path)
    for command in (["info"], ["verify"], ["stats"], ["pack", "-o", f"{tmp_path}/o.zarr"]):
        assert cli.main([command[0], f"{path}/nope", *command[1:]]) == cli.EXIT_ERROR
        assert "nope" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "o.zarr", ignore_errors=True)
