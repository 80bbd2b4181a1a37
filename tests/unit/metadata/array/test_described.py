"""Stores whose values or indices mean something else are no data set, nor are arrays of other coordinates a stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

import zarrfeed
from zarrfeed import ConfigError, ZarrDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
]


def write(path: Path, lat: Any = (1.0, 2.0, 3.0), first: int = 0, name: str = "x", **attributes: Any) -> Path:
    values = np.arange(first, first + 4, dtype="f4")[:, None, None] + np.zeros((4, 3, 3), "f4")
    made = xarray.Dataset({name: (("time", "lat", "lon"), values)}, {"time": np.arange(4) + first, "lat": list(lat)})
    made[name].attrs.update(attributes)
    made.to_zarr(path, consolidated=False)
    return path


def both(paths: list[Path]) -> list[Any]:
    """Return what opens stores as one: as a list, and by concat."""
    return [
        lambda: zarrfeed.open(paths, sample_dim="time"),
        lambda: zarrfeed.concat([zarrfeed.open(path, sample_dim="time") for path in paths]),
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ({"units": "degC"}, {"units": "K"}, "with 'units': 'degC', in .*a.zarr with 'units': 'K'"),
        ({"flag_meanings": "b a"}, {"flag_meanings": "a b"}, "with 'flag_meanings': 'b a', in .* 'a b'"),
        ({"flag_values": [1, 0]}, {"flag_values": [0, 1]}, r"with 'flag_values': \(1, 0\), in .*\(0, 1\)"),
        ({"names": ["b", "a"]}, {"names": ["a", "b"]}, r"with 'names': \('b', 'a'\)"),
        ({"units": "kelvin", "long_name": "one"}, {"units": "K", "long_name": "other"}, ""),
        ({}, {"units": "K"}, ""),
    ],
)
def test_values_of_one_tensor_mean_one_thing(
    ours: dict[str, Any], theirs: dict[str, Any], message: str, tmp_path: Path
) -> None:
    paths = [write(tmp_path / "a.zarr", **theirs), write(tmp_path / "b.zarr", first=4, **ours)]
    for number, opens in enumerate(both([*paths, paths[0]])):
        if not message:
            assert len(opens()) == 12, number
            continue
        with pytest.raises(ConfigError, match=rf"b\.zarr: samples\['x'\] is stored {message}"):
            opens()


def test_a_store_in_other_units_is_converted_before(tmp_path: Path) -> None:
    kelvin = zarrfeed.open(write(tmp_path / "a.zarr", units="K"), sample_dim="time")
    celsius = zarrfeed.open(write(tmp_path / "b.zarr", units="degC"), sample_dim="time")
    data = zarrfeed.concat([kelvin, celsius.normalize((-273.15, 1.0))])
    got = ZarrDataset(data)[[1, 5]]["x"][:, 0, 0]
    assert np.allclose(got, [1.0, 274.15])


def test_stored_numbers_that_are_packed_otherwise_are_no_one_tensor(tmp_path: Path) -> None:
    for number, scale in enumerate((0.5, 0.25)):
        made = xarray.Dataset({"x": (("time",), np.arange(4.0))})
        made.to_zarr(
            tmp_path / f"{number}.zarr",
            consolidated=False,
            encoding={"x": {"dtype": "i2", "scale_factor": scale, "_FillValue": -1}},
        )
    paths = [tmp_path / f"{number}.zarr" for number in (0, 1)]
    got = ZarrDataset(zarrfeed.open(paths, sample_dim="time"))[np.arange(8)]["x"]
    assert np.array_equal(got, [0, 1, 2, 3] * 2)
    with pytest.raises(ConfigError, match=r"1\.zarr: samples\['x'\] is stored with 'scale_factor': 0.25, in .* 0.5"):
        zarrfeed.open(paths, sample_dim="time", decode_cf=False)
    assert len(zarrfeed.open(paths[:1] * 2, sample_dim="time", decode_cf=False)) == 8


def test_numbers_of_times_are_no_one_tensor_where_stores_count_from_other_dates(tmp_path: Path) -> None:
    for year in (2018, 2019):
        times = np.arange(f"{year}-01-01", f"{year}-01-05", dtype="M8[D]").astype("M8[ns]")
        xarray.Dataset({"x": (("time",), np.arange(4.0))}, {"time": times}).to_zarr(
            tmp_path / f"{year}.zarr", consolidated=False
        )
    paths = [tmp_path / f"{year}.zarr" for year in (2018, 2019)]
    assert len(zarrfeed.open(paths, sample_dim="time").sel(time="2019")) == 4
    with pytest.raises(ConfigError, match=r"2019\.zarr: samples\['time'\] is stored with 'units': 'days since 2019"):
        zarrfeed.open(paths, sample_dim="time", variables=["x", "time"])
    paths = [tmp_path / f"{unit}.zarr" for unit in ("D", "ns")]
    for path in paths:
        group = zarr.open_group(path, mode="w")
        group.create_array("t", data=np.arange("2020-01-01", "2020-01-05", dtype="M8[D]").astype(f"M8[{path.stem}]"))
    with pytest.raises(ConfigError, match=r"ns\.zarr: .* 'datetime64\[ns\]', in .*by `variables`"):
        zarrfeed.open(paths)


def test_coordinates_the_other_way_round_are_refused_and_other_ones_are_not(tmp_path: Path) -> None:
    """One store has north at the top, the other at the bottom."""
    first = write(tmp_path / "a.zarr")
    south, tile = write(tmp_path / "b.zarr", (3.0, 2.0, 1.0), 4), write(tmp_path / "c.zarr", (4.0, 5.0, 6.0), 8)
    for opens in both([first, tile, first, south]):
        with pytest.raises(ConfigError, match=r"b\.zarr: 'lat' goes from 3.0 to 1.0, in .*a\.zarr from 1.0 to 3.0"):
            opens()
    rounded = write(tmp_path / "d.zarr", np.array([3.0, 2.0, 1.0]) + 1e-12, 4)
    with pytest.raises(ConfigError, match=r"d\.zarr: 'lat' goes from 3.0"):
        zarrfeed.open([first, rounded], sample_dim="time")
    for opens in both([first, tile, first]):
        data = opens()
        assert np.array_equal(ZarrDataset(data)[np.arange(12)]["x"][:, 0, 0], [0, 1, 2, 3, 8, 9, 10, 11, 0, 1, 2, 3])
    arrays = [{"x": path / "x"} for path in (first, south)]
    assert len(zarrfeed.concat([zarrfeed.open(one, sample_dim="time") for one in arrays])) == 8


def test_axes_in_another_order_are_refused(tmp_path: Path) -> None:
    square = xarray.Dataset({"x": (("time", "lat", "lon"), np.zeros((4, 3, 3)))})
    square.to_zarr(tmp_path / "a.zarr", consolidated=False)
    square.transpose("time", "lon", "lat").to_zarr(tmp_path / "b.zarr", consolidated=False)
    for opens in both([tmp_path / "a.zarr", tmp_path / "b.zarr"]):
        with pytest.raises(
            ConfigError, match=r"b\.zarr: a sample of samples\['x'\] has the axes \('lon', 'lat'\), in .*a\.zarr"
        ):
            opens()


@pytest.mark.parametrize(
    ("lat", "is_same"), [((1.0, 2.0, 3.0), True), ((1.5, 2.5, 3.5), True), ((3.0, 2.0, 1.0), False)]
)
def test_a_stack_has_one_coordinate_at_one_index(lat: Any, is_same: bool, tmp_path: Path) -> None:
    one, other = write(tmp_path / "a.zarr"), write(tmp_path / "b.zarr", lat, name="y")
    data = zarrfeed.join({"one": one, "other": other}, "time")
    assert len(data) == 4
    if is_same:
        assert ZarrDataset(data.stack(["one/x", "other/y"]))[0].shape == (2, 3, 3)
        return
    with pytest.raises(ConfigError, match=r"stack: 'other/y' has 'lat' = 3.0 at index 0, 'one/x' has 1.0"):
        data.stack(["one/x", "other/y"])


def test_times_of_a_join_are_compared_by_value(tmp_path: Path) -> None:
    times = np.arange("2018-01-01", "2018-01-11", dtype="M8[D]").astype("M8[ns]")
    for name, units in (("a", "hours since 1900-01-01"), ("b", "days since 2018-01-01")):
        made = xarray.Dataset({"x": (("time",), np.arange(10.0))}, {"time": times})
        made.to_zarr(tmp_path / f"{name}.zarr", consolidated=False, encoding={"time": {"units": units}})
    data = zarrfeed.join({"a": tmp_path / "a.zarr", "b": tmp_path / "b.zarr"}, "time")
    batch = ZarrDataset(data)[np.arange(10)]
    assert np.array_equal(batch["a/x"], batch["b/x"])
