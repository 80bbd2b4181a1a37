"""The coordinates of samples: where they are found, and that their values are those that xarray decodes."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import xarray as xr
import zarr

import zarrfeed
from zarrfeed import ConfigError, CorruptChunkError, Data, StoreReadError, UnsupportedError
from zarrfeed.metadata.group.coordinates import Coordinates

N = 30
TIMES = np.datetime64("2015-01-01T00:00:00", "ns") + np.arange(N) * np.timedelta64(6, "h")


@pytest.fixture(params=[2, 3])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Write samples with a coordinate of each kind, as xarray does."""
    dataset = xr.Dataset(
        {"x": (("time", "y"), np.zeros((N, 2), "f4")), "late": (("y", "time"), np.zeros((2, N), "f4"))},
        coords={
            "time": TIMES,
            "valid": ("time", TIMES + np.timedelta64(1, "D")),
            "step": ("time", np.arange(N) * np.timedelta64(6, "h")),
            "station": ("time", np.array([f"s{i:02}" for i in range(N)], dtype=object)),
            "level": ("time", np.arange(N) * 0.5),
            "y": [10, 20],
        },
    )
    encoding = {
        "time": {"units": "hours since 1900-01-01", "dtype": "i4", "chunks": (7,)},
        "valid": {"units": "days since 2000-01-01", "dtype": "f8", "_FillValue": -1.0},
        "level": {"dtype": "i2", "scale_factor": 0.5, "add_offset": -1.0, "_FillValue": -5},
    }
    dataset.to_zarr(tmp_path / "w.zarr", zarr_format=request.param, encoding=encoding, consolidated=False)
    return tmp_path / "w.zarr"


def values_of(data: Data, name: str | None = None, given: Any = None) -> np.ndarray[Any, Any]:
    return data.resolved.coordinate(name, given).values


@pytest.mark.parametrize("name", ["time", "valid", "step", "station", "level"])
def test_values_are_those_of_xarray(store: Path, name: str) -> None:
    expected = xr.open_zarr(store, consolidated=False, chunks=None)[name].values
    got = values_of(zarrfeed.open(store, sample_dim="time"), name)
    assert np.array_equal(got, expected.astype(got.dtype))
    assert got.dtype.kind == {"time": "M", "valid": "M", "step": "m", "station": "U", "level": "f"}[name]


def test_a_coordinate_is_found_wherever_the_samples_come_from(store: Path) -> None:
    group = zarr.open_group(store, mode="r")
    memory = zarr.storage.MemoryStore()
    copied = zarr.create_group(memory, path="a/b")
    copied.create_array("time", data=TIMES)
    copied.create_array("x", data=np.zeros((N, 2)), dimension_names=("time", "y"))
    sources = {
        "group": zarrfeed.open(store, sample_dim="time"),
        "path": zarrfeed.open(store / "x"),
        "url": zarrfeed.open(f"file://{store}/x"),
        "array": zarrfeed.open(group["x"]),
        "mapping of paths": zarrfeed.open({"a": store / "x"}),
        "another axis": zarrfeed.open(store / "late", sample_axis=1),
        "beside targets": zarrfeed.open(np.zeros((N, 2)), store / "x"),
        "in a folder": zarrfeed.open(copied["x"]),
    }
    for what, data in sources.items():
        found = data.resolved.coordinate()
        assert found.name == "time", what
        assert found.is_time
        assert np.array_equal(found.values, TIMES), what
        assert "time" in found.where
    renamed = zarrfeed.open({"x": store / "x", "when": store / "time"})
    assert np.array_equal(values_of(renamed, "when"), TIMES)


@pytest.mark.parametrize("is_said", [False, True])
def test_a_fill_value_of_0_counts_if_an_attribute_says_so(tmp_path: Path, is_said: bool) -> None:
    """In Zarr v2, zarr-python makes 0 the fill value of arrays that nobody said one of."""
    group = zarr.open_group(tmp_path / "v2.zarr", mode="w", zarr_format=2)
    for name, data in (("x", np.zeros((4, 2))), ("time", np.arange(4))):
        array = group.create_array(name, data=data)
        array.attrs["_ARRAY_DIMENSIONS"] = ["time", "y"][: data.ndim]
    group["time"].attrs["units"] = "days since 2020-01-01"
    if is_said:
        group["time"].attrs["_FillValue"] = 0
    values = values_of(zarrfeed.open(group["x"]))
    assert np.isnat(values).tolist() == [is_said, False, False, False]
    assert values[3] == np.datetime64("2020-01-04")
    if is_said:  # another one than the array's
        group["time"].attrs["_FillValue"] = 2
        assert np.isnat(values_of(zarrfeed.open(group["x"]))).tolist() == [False, False, True, False]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_lost_chunk_of_the_index_of_a_dimension_is_an_error(tmp_path: Path, zarr_format: Literal[2, 3]) -> None:
    """Its samples had the date of the fill value, and could be selected by it."""
    times = np.arange("2001-01-01", "2001-01-21", dtype="M8[D]").astype("M8[ns]")
    flags = np.zeros(20, "i4")
    dataset = xr.Dataset({"x": ("time", np.arange(20.0))}, coords={"time": times, "flag": ("time", flags)})
    encoding = {"time": {"units": "days since 2000-01-01", "dtype": "i8", "chunks": (5,)}, "flag": {"chunks": (5,)}}
    path = tmp_path / "w.zarr"
    dataset.to_zarr(path, zarr_format=zarr_format, encoding=encoding, consolidated=False)
    (path / "time" / ("2" if zarr_format == 2 else "c/2")).unlink()
    for chunk in range(4):  # of zeros, which a writer may leave out
        (path / "flag" / (str(chunk) if zarr_format == 2 else f"c/{chunk}")).unlink(missing_ok=True)
    data = zarrfeed.open(path, variables=["x"], sample_dim="time")
    with pytest.raises(StoreReadError, match="time: chunk 2 is missing from the store"):
        values_of(data, "time")
    assert values_of(data, "flag").tolist() == flags.tolist()


def test_a_coordinate_is_read_once_and_not_pickled(store: Path) -> None:
    data = zarrfeed.open(store, sample_dim="time")
    values = values_of(data)
    assert np.shares_memory(values_of(data.select(slice(3))), values)
    assert values.tobytes() not in pickle.dumps(data)
    copy = pickle.loads(pickle.dumps(data))
    assert np.array_equal(values_of(copy), values)


def test_values_in_memory(store: Path) -> None:
    data = zarrfeed.open(np.zeros((N, 2)))
    assert values_of(data, "time", TIMES).dtype == "M8[ns]"
    assert values_of(data, "time", TIMES.astype("M8[h]")).dtype == "M8[s]"
    assert values_of(data, "n", list(range(N))).dtype == np.int64
    assert values_of(data, "n", [f"a{i}" for i in range(N)]).dtype.kind == "U"
    assert np.array_equal(values_of(data, "n", store / "time"), TIMES)
    assert np.array_equal(values_of(data, "n", zarr.open_array(store / "time", mode="r")), TIMES)


def test_many_stores_have_the_coordinates_of_each(store: Path) -> None:
    """Each in units of its own, as files of one year each often are."""
    group = zarr.create_group(zarr.storage.MemoryStore())
    group.create_array("x", data=np.zeros((4, 2)), dimension_names=("time", "y"))
    days = group.create_array("time", data=np.arange(4.0), dimension_names=("time",))
    days.attrs["units"] = "days since 2020-01-01"
    parts = [zarrfeed.open(one).resolved.origin.coordinates for one in (store / "x", group["x"])]
    assert all(parts)
    both = Coordinates.concat([one for one in parts if one is not None])
    expected = [*TIMES, *(np.datetime64("2020-01-01", "ns") + np.arange(4) * np.timedelta64(1, "D"))]
    assert np.array_equal(both.read().values, expected)
    assert (both.num_samples, both.dims, both.other_dims) == (N + 4, ("time",), ("y",))
    del group["time"]
    group.create_array("time", data=np.array([True] * 4), dimension_names=("time",))
    last = zarrfeed.open(group["x"]).resolved.origin.coordinates
    with pytest.raises(ConfigError, match=r"time: has values of bool, .* of datetime64\[s\]: they must be of one kind"):
        Coordinates.concat([one for one in (parts[0], last) if one is not None]).read()


def test_many_stores_count_numbers_alike(tmp_path: Path) -> None:
    """Numbers of several units came as one coordinate; time differences that xarray wrote have no unit of their own."""
    for n, (length, height) in enumerate((("hours", "m"), ("seconds", "km"))):
        steps = np.arange(3 * n, 3 * n + 3) * np.timedelta64(6, "h")
        coords = {"step": ("time", steps), "height": ("time", np.arange(3.0), {"units": height})}
        x = xr.Dataset({"x": (("time",), np.arange(3.0))}, {"time": TIMES[3 * n : 3 * n + 3], **coords})
        x.to_zarr(tmp_path / f"{n}.zarr", encoding={"step": {"units": length, "dtype": "i8"}}, consolidated=False)
    data = zarrfeed.open(str(tmp_path / "*.zarr"), sample_dim="time", variables=["x"])
    expected = xr.open_mfdataset(str(tmp_path / "*.zarr"), engine="zarr", consolidated=False)["step"]
    assert np.array_equal(data.coords["step"], expected.values)
    hours = expected.values / np.timedelta64(1, "h")
    assert len(data.sel(step=slice("6h", "24h"))) == np.count_nonzero((hours >= 6) & (hours <= 24)) == 4
    with pytest.raises(ConfigError, match=r"1.zarr/height: has the units 'km', .*0.zarr/height has 'm'"):
        data.coords["height"]


def test_missing_coordinates_say_where_they_were_looked_for(store: Path) -> None:
    data = zarrfeed.open(store, sample_dim="time")
    with pytest.raises(ConfigError, match=r"no coordinate 'statoin' .*w.zarr/statoin; .*; did you mean 'station'\?"):
        values_of(data, "statoin")
    with pytest.raises(ConfigError, match=r"no coordinate 'nothing' is stored .*neither is there an array .*/nothing"):
        values_of(zarrfeed.open(store / "x"), "nothing")
    with pytest.raises(ConfigError, match=r"have no names of dimensions: name the coordinate"):
        values_of(zarrfeed.open(np.zeros(3)))
    with pytest.raises(ConfigError, match=r"no coordinate 'time' is stored with these samples, known are: none; give"):
        values_of(zarrfeed.open(np.zeros(3)), "time")
    with pytest.raises(ConfigError, match=r"w.zarr/y: lies along 'y', must lie along 'time'"):
        values_of(data, "y")
    with pytest.raises(ConfigError, match=r"w.zarr/late: is no array with one axis"):
        values_of(data, "late")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.arange(3), r"coords of 'time': has the shape \(3,\), must have one value a sample, \(30,\)"),
        (np.zeros((N, 1)), r"has the shape \(30, 1\), must have one"),
        (np.zeros(N, "c8"), "has the dtype complex64, must have times, numbers or text"),
        ([None] * N, "has the dtype object, must have"),
    ],
)
def test_values_in_memory_that_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        values_of(zarrfeed.open(np.zeros(N)), "time", given)


def test_dtypes_that_are_refused() -> None:
    data = zarrfeed.open(np.zeros(N))
    for given in (np.full(N, 2**63, "u8"), np.zeros(N, "m8[M]"), np.zeros(N, "M8[ps]")):
        with pytest.raises(UnsupportedError, match="coords of 'time': has "):
            values_of(data, "time", given)


def test_coordinates_that_cannot_be_read(store: Path) -> None:
    data = zarrfeed.open(store, sample_dim="time")
    chunks = [path for path in (store / "time").rglob("*") if path.is_file() and not path.name.startswith((".z", "z"))]
    chunks[0].write_bytes(b"no chunk")
    with pytest.raises(CorruptChunkError, match=r"w.zarr/time: cannot be decoded"):
        values_of(data)


class _Failing(zarr.storage.MemoryStore):
    """Has no chunk of the coordinate."""

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        if "time/c/" in key:
            raise OSError(errno.EIO, "the disk is broken")
        return await super().get(key, *args, **options)


def test_a_store_that_cannot_be_read() -> None:
    group = zarr.create_group(_Failing())
    group.create_array("x", data=np.zeros((4, 2)), dimension_names=("time", "y"))
    group.create_array("time", data=np.arange(4), dimension_names=("time",))
    with pytest.raises(StoreReadError, match=r"/time: .*the disk is broken") as raised:
        values_of(zarrfeed.open(group, retries=0))
    assert raised.value.errno == errno.EIO
