"""NetCDF files of the classic formats in place: what xarray reads of them; and headers that lie, which are errors."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from scipy.io import netcdf_file

import zarrfeed
from tests.support.examples import tries
from zarrfeed import StoreReadError, ZarrfeedError, ZarrIterableDataset
from zarrfeed.storage.files.netcdf3 import is_netcdf3, open_netcdf3

N = 37
TIMES = np.arange("2015-01-01", "2015-02-07", dtype="datetime64[D]").astype("M8[ns]")


def write(path: Path, *, records: bool, file_format: Any = "NETCDF3_64BIT", names: str = "abcde") -> xr.Dataset:
    """Write variables of several types, of which each value holds the index of its sample."""
    number = np.arange(N)
    variables = {
        "a": (("time", "lat"), (number[:, None] * 10 + np.arange(5)).astype("f4"), {"units": "K"}),
        "b": (("time",), number.astype("i1")),
        "c": (("time", "lat", "lon"), (number[:, None, None] * 100 + np.arange(15).reshape(5, 3)).astype("i2")),
        "d": (("time",), number * 0.5),
        "e": (("lat",), np.arange(5, dtype="i4")),
    }
    dataset = xr.Dataset(
        {name: variables[name] for name in names}, {"time": TIMES, "lat": np.arange(5.0)}, {"title": "classic"}
    )
    packed = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -999}
    dataset.to_netcdf(
        path,
        engine="scipy",
        format=file_format,
        unlimited_dims=["time"] if records else None,
        encoding={"a": packed} if "a" in names else {},
    )
    return dataset


def variables_of(path: Path) -> dict[str, bytes]:
    """Return the bytes of all variables, but those that have much more of them than any file here."""
    arrays = zarr.open_group(store=open_netcdf3(path), mode="r").arrays()
    return {name: np.asarray(array[...]).tobytes() for name, array in arrays if array.size < 1 << 20}


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("file_format", ["NETCDF3_CLASSIC", "NETCDF3_64BIT"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_are_those_of_xarray(records: bool, file_format: str, shuffle: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.nc"
    write(path, records=records, file_format=file_format)
    with xr.open_dataset(path, engine="scipy") as dataset:
        wanted = dataset.load()
    assert is_netcdf3(path)
    data = zarrfeed.open(path, sample_dim="time")
    assert [field.name for field in data.fields] == ["a", "b", "c", "d"]
    seen = []
    for batch, index in ZarrIterableDataset(data, batch_size=5, shuffle=shuffle, seed=1, return_index=True):
        for name, values in batch.items():
            np.testing.assert_array_equal(values.numpy(), wanted[name].values[index.numpy()])
        seen += index.tolist()
    assert sorted(seen) == list(range(N))
    assert len(data.sel(time="2015-01")) == 31
    assert zarr.open_group(store=open_netcdf3(path), mode="r").attrs["title"] == "classic"


@pytest.mark.parametrize("names", ["b", "bd", "c", "ab"])
def test_records_of_one_variable_are_not_padded(names: str, tmp_path: Path) -> None:
    path = tmp_path / "x.nc"
    dataset = write(path, records=True, names=names).drop_vars(["time"])
    dataset.to_netcdf(path, engine="scipy", unlimited_dims=["time"])
    found = variables_of(path)
    for name in names:
        values = dataset[name].values
        assert found[name] == values.astype(values.dtype.newbyteorder(">")).tobytes()


def cdf5(values: np.ndarray[Any, np.dtype[Any]], records: int) -> bytes:
    """Return a file of CDF-5 with a variable "x" of int64, whose first dimension is that of records."""
    word = struct.Struct(">q").pack
    name = word(1) + b"x\0\0\0"
    dims = (
        struct.pack(">i", 10) + word(2) + word(1) + b"t\0\0\0" + word(0) + word(1) + b"y\0\0\0" + word(values.shape[1])
    )
    none = struct.pack(">i", 0) + word(0)
    head = (
        b"CDF\x05" + word(records) + dims + none + struct.pack(">i", 11) + word(1) + name + word(2) + word(0) + word(1)
    )
    head += none + struct.pack(">i", 10) + word(values[0].nbytes)
    return head + word(len(head) + 8) + values.astype(">i8").tobytes()


@pytest.mark.parametrize("records", [6, -1])
def test_large_files_and_records_that_are_still_written(records: int, tmp_path: Path) -> None:
    path, values = tmp_path / "x.nc", np.arange(24).reshape(6, 4)
    path.write_bytes(cdf5(values, records) + b"\0" * 7)  # a seventh record that is not yet there
    assert zarrfeed.ZarrDataset(zarrfeed.open(path))[list(range(6))]["x"].tolist() == values.tolist()


def test_records_along_another_dimension_than_the_first_are_refused(tmp_path: Path) -> None:
    stored, path = cdf5(np.arange(24).reshape(6, 4), 6), tmp_path / "x.nc"
    t_then_y, y_then_t = struct.pack(">3q", 2, 0, 1), struct.pack(">3q", 2, 1, 0)
    assert stored.count(t_then_y) == 1
    path.write_bytes(stored.replace(t_then_y, y_then_t))
    with pytest.raises(StoreReadError, match=r"'x' has dimensions \(1, 0\)"):
        zarrfeed.open(path)


def test_characters_are_text_along_their_last_dimension(tmp_path: Path) -> None:
    names, path = np.array([f"n{number:03}" for number in range(N)], dtype="S4"), tmp_path / "x.nc"
    variables: Any = {"record": ("time", names), "grid": (("y", "x"), names[:12].reshape(3, 4)), "one": ((), names[7])}
    xr.Dataset(variables).to_netcdf(path, engine="scipy", unlimited_dims=["time"])
    found = zarr.open_group(store=open_netcdf3(path), mode="r")
    for name, (_, values) in variables.items():
        array: Any = found[name]
        assert (array.dtype, array.shape) == ("S4", values.shape), name
        np.testing.assert_array_equal(array[...], values)


def test_a_file_that_is_cut_is_refused_or_whole(tmp_path: Path) -> None:
    path, cut = tmp_path / "x.nc", tmp_path / "cut.nc"
    write(path, records=True)
    good, expected = path.read_bytes(), variables_of(path)
    for length in [*range(4, 800, 7), *range(800, len(good) + 1, 97)]:
        cut.write_bytes(good[:length])
        with suppress(StoreReadError):
            assert variables_of(cut) == expected


def test_a_header_that_lies_is_an_error_or_means_to_scipy_what_it_means_here(tmp_path: Path) -> None:
    path, bad = tmp_path / "x.nc", tmp_path / "bad.nc"
    write(path, records=True)
    good, rng = path.read_bytes(), np.random.default_rng(0)
    refused = compared = 0
    count = tries(100, 500)
    for _ in range(count):
        damaged = bytearray(good)
        damaged[int(rng.integers(4, 900))] = int(rng.choice([0, 1, 2, 127, 128, 255]))
        bad.write_bytes(damaged)
        try:
            found = variables_of(bad)
        except ZarrfeedError:
            refused += 1
            continue
        with suppress(Exception), netcdf_file(bad, mmap=False) as opened:
            theirs = {name: np.asarray(one[...]) for name, one in opened.variables.items()}
            for name in found.keys() & theirs.keys():
                if len(found[name]) == theirs[name].nbytes:
                    assert found[name] == theirs[name].tobytes()
                    compared += 1
    assert refused > count / 5
    assert compared > count


def test_files_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.nc"
    path.write_bytes(b"CDF\x02" + struct.pack(">i", 2**31 - 1) * 3)
    with pytest.raises(StoreReadError, match=r"x\.nc: is no NetCDF file, or a damaged or incomplete one"):
        zarrfeed.open(path)
