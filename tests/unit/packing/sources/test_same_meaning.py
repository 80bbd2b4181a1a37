"""Stores that become one: their times by value, as xarray has them, and other numbers only where they mean the same."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray
import zarr

import zarrfeed
from zarrfeed import ConfigError
from zarrfeed.packing.pack import pack

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
]

Years = dict[int, xarray.Dataset]


def year_of(year: int, *, freq: str = "D", until: str = "03-01", **coords: Any) -> xarray.Dataset:
    """Return samples that say their time in seconds since 1970, one each `freq`; the last time is missing in 2019."""
    times = np.arange(f"{year}-01-01", f"{year}-{until}", dtype=f"M8[{freq}]").astype("M8[ns]")
    values = (times.astype("M8[s]").astype("f8"))[:, None] + np.zeros(3)
    if year == 2019:
        times[-1] = "NaT"
    dataset = xarray.Dataset({"x": (("time", "lat"), values)}, {"time": times, "lat": [10.0, 20.0, 30.0], **coords})
    dataset.x.attrs.update(units="K", long_name=f"of {year}")
    return dataset


def written(folder: Path, years: Years, kind: str, encoding: dict[int, dict[str, Any]] | None = None) -> list[str]:
    paths = []
    for year, dataset in years.items():
        path = folder / f"{year}.{'nc' if kind in ('nc', 'hdf5') else 'zarr'}"
        time = {"time": (encoding or {}).get(year, {})}
        if path.suffix == ".nc":
            dataset.to_netcdf(path, engine="h5netcdf", encoding=time)
        else:
            dataset.to_zarr(path, zarr_format=2 if kind == "v2" else 3, consolidated=False, encoding=time)
        paths.append(str(path))
    return paths


def opened(path: str | Path) -> Any:
    if str(path).endswith(".nc"):
        return xarray.open_dataset(path, engine="h5netcdf")
    return xarray.open_zarr(path, consolidated=False, chunks=None)


def times_of(*paths: str | Path) -> npt.NDArray[Any]:
    """Return what xarray decodes, as nanoseconds since 1970, and NaT as the least int64."""
    found = []
    for path in paths:
        with opened(path) as dataset:
            found.append(np.atleast_1d(dataset.time.values).astype("M8[ns]"))
    return np.concatenate(found).view(np.int64)


#: Name -> how time is stored, by year.
WAYS: dict[str, dict[int, dict[str, Any]]] = {
    "since the first date of each store": {},
    "other units": {2018: {"units": "hours since 1900-01-01"}, 2019: {"units": "days since 2000-01-01"}},
    "other dtypes": {2018: {"dtype": "i8"}, 2019: {"dtype": "f8", "units": "days since 2018-01-01"}},
    "other fill values": {2018: {"_FillValue": -1}, 2019: {"_FillValue": -7, "dtype": "i4"}},
    "other calendars of NumPy": {2018: {"calendar": "standard"}, 2019: {"calendar": "proleptic_gregorian"}},
    "a time zone": {
        2018: {"units": "hours since 2018-01-01 00:00:00 +01:00"},
        2019: {"units": "hours since 2018-01-01"},
    },
    "fractions of the first store's unit": {
        2018: {"units": "days since 2018-01-01", "dtype": "f8"},
        2019: {"units": "hours since 2018-01-01"},
    },
}


#: Name -> options of `pack`.
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "split": {"split": {"a": 0.7, "b": 0.3}},
    "shuffled": {"shuffle": 5},
}

#: Formats of stores and files.
KINDS = ("v3", "v2", "nc", "hdf5")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_times_of_several_stores_are_one_axis_by_value(kind: str, way: str, tmp_path: Path) -> None:
    """Times were copied under the units of the first store: 730 days became 365 dates, and that was proved."""
    freq = "h" if way in ("fractions of the first store's unit", "a time zone") else "D"
    paths = written(tmp_path, {year: year_of(year, freq=freq, until="01-25") for year in (2018, 2019)}, kind, WAYS[way])
    expected = times_of(*paths)
    # each kind, and each way, is packed in each mode
    mode = list(MODES)[(KINDS.index(kind) + list(WAYS).index(way)) % len(MODES)]
    out, source = tmp_path / "packed.zarr", "hdf5" if kind == "hdf5" else None
    more: dict[str, Any] = {"sample_dim": "time", "sample_chunk": 7 if freq == "D" else 7 * 24, **MODES[mode]}
    report = pack(paths, out, kind=source, verify=True, **more)
    assert report.ok, report
    assert report.proof is not None
    assert any("long_name" in line for line in report.proof.not_compared), str(report)
    groups = [out / "a", out / "b"] if mode == "split" else [out]
    got = times_of(*groups)
    samples = np.concatenate([xarray.open_zarr(one, consolidated=False).x.values[:, 0] for one in groups])
    if mode == "shuffled":
        order = np.argsort(samples)
        got, samples = got[order], samples[order]
    assert np.array_equal(got, expected)
    is_there = got != np.iinfo(np.int64).min
    assert np.array_equal(got[is_there] // 10**9, samples[is_there])
    if mode == "plain":
        packed = zarrfeed.open(out, sample_dim="time")
        assert len(packed.sel(time="2019")) == len(expected) // 2 - 1


def test_times_that_stores_count_alike_are_copied(tmp_path: Path) -> None:
    alike = {"units": "hours since 1900-01-01", "dtype": "i4"}
    paths = written(tmp_path, {y: year_of(y) for y in (2017, 2018)}, "v3", {2017: alike, 2018: alike})
    pack(paths, tmp_path / "all.zarr", verify=True)
    time: Any = zarr.open_group(tmp_path / "all.zarr")["time"]
    assert (time.dtype, time.attrs["units"]) == (np.dtype("i4"), "hours since 1900-01-01")


def test_whole_numbers_of_the_first_units_keep_them(tmp_path: Path) -> None:
    paths = written(tmp_path, {y: year_of(y) for y in (2017, 2018)}, "v3")
    pack(paths, tmp_path / "all.zarr", variables=["time"])
    time: Any = zarr.open_group(tmp_path / "all.zarr")["time"]
    assert (time.dtype, time.attrs["units"]) == (np.dtype("i8"), "days since 2017-01-01 00:00:00")
    assert np.array_equal(times_of(tmp_path / "all.zarr"), times_of(*paths))


def test_times_of_several_axes_and_of_files_that_are_a_sample(tmp_path: Path) -> None:
    steps = np.arange(2) * np.timedelta64(6, "h").astype("m8[ns]")
    years: Years = {}
    for year in (2017, 2018):
        made = year_of(year)
        years[year] = made.assign(valid=(("step", "time"), made.time.values + steps[:, None]))
    paths = written(tmp_path, years, "v3")
    pack(paths, tmp_path / "all.zarr", sample_dim="time", verify=True)
    with xarray.open_zarr(tmp_path / "all.zarr", consolidated=False) as packed:
        expected = np.concatenate([made.valid.values for made in years.values()], axis=1)
        assert np.array_equal(packed.valid.transpose("step", "time").values, expected)

    files = []
    for day in range(3):
        one = year_of(2018).isel(time=day)
        files.append(str(tmp_path / f"{day}.nc"))
        one.to_netcdf(files[-1], engine="h5netcdf", encoding={"time": {"units": f"hours since 2018-01-0{day + 1}"}})
    report = pack(files, tmp_path / "days.zarr", sample_dim="time", verify=True)
    assert report.ok
    assert np.array_equal(times_of(tmp_path / "days.zarr"), year_of(2018).time.values[:3].view(np.int64))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attribute", ["bounds", "climatology"])
def test_bounds_have_the_units_of_their_coordinate(kind: str, attribute: str, tmp_path: Path) -> None:
    """CF leaves units out of bounds: their numbers were those of each year, beside times that were counted anew."""
    years, expected = {}, []
    for year in (2017, 2018):
        made = year_of(year)
        numbers = np.arange(made.sizes["time"])[:, None] + np.array([0, 1])
        made = made.assign(span=(("time", "side"), numbers.astype("f8")))
        made.time.attrs[attribute] = "span"
        years[year] = made
        expected.append(np.datetime64(f"{year}-01-01", "ns") + numbers.astype("m8[D]"))
    paths = written(tmp_path, years, kind, {year: {"units": f"days since {year}-01-01"} for year in years})
    report = pack(paths, tmp_path / "all.zarr", kind=kind if kind == "hdf5" else None, sample_dim="time", verify=True)
    assert report.ok
    assert np.array_equal(times_of(tmp_path / "all.zarr"), times_of(*paths))
    with opened(tmp_path / "all.zarr") as packed:
        assert np.array_equal(packed.span.values.astype("M8[ns]"), np.concatenate(expected))


@pytest.mark.parametrize("units", [("s", "ns"), ("D", "ms"), ("ns", "s"), ("s", "cf"), ("cf", "h")], ids=str)
def test_datetimes_of_several_units_are_one_axis_by_value(units: tuple[str, str], tmp_path: Path) -> None:
    """The integers of nanoseconds were packed as seconds, and that was proved."""
    days = np.arange("2020-01-01", "2020-01-09", dtype="M8[D]")
    for number, unit in enumerate(units):
        group = zarr.open_group(tmp_path / f"{number}.zarr", mode="w")
        times: Any = days[4 * number :][:4].copy()
        times[2] = "NaT" if number else times[2]
        is_number = unit == "cf"
        stored = times.astype("M8[s]").astype("i8") if is_number else times.astype(f"M8[{unit}]")
        attributes: dict[str, Any] = {"units": "seconds since 1970-01-01"} if is_number else {}
        group.create_array("x", data=np.arange(8.0).reshape(4, 2), dimension_names=("time", "y"))
        group.create_array("time", data=stored, dimension_names=("time",), attributes=attributes)
    assert pack(str(tmp_path / "?.zarr"), tmp_path / "all.zarr", verify=True).ok
    days[6] = "NaT"
    assert np.array_equal(times_of(tmp_path / "all.zarr"), days.astype("M8[ns]").view(np.int64))


def test_times_are_packed_where_nothing_else_is_large(tmp_path: Path) -> None:
    """A sample of the times had more bytes than one of the copied arrays, and packing ended with ValueError."""
    years = {year: year_of(year).drop_vars("x").assign(x=("time", np.zeros(59, "i1"))) for year in (2017, 2018)}
    paths = written(tmp_path, years, "v3")
    assert pack(paths, tmp_path / "all.zarr", sample_dim="time", verify=True).ok


def test_calendars_that_nobody_decodes_need_no_cftime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cftime", None)
    for number in (0, 1):
        group = zarr.open_group(tmp_path / f"{number}.zarr", mode="w")
        said: dict[str, Any] = {"units": "days since 2000-01-01", "calendar": "noleap"}
        group.create_array("x", data=np.arange(8.0).reshape(4, 2), dimension_names=("time", "y"))
        group.create_array("time", data=np.arange(4) + 4 * number, dimension_names=("time",), attributes=said)
        group.create_array("reference", data=np.array(3), attributes=said)
    assert pack(str(tmp_path / "?.zarr"), tmp_path / "all.zarr", verify=True).ok
    assert len(zarrfeed.open(tmp_path / "all.zarr", variables=["x"]).window(range(3))) == 6


def test_calendars_without_a_place_in_numpy(tmp_path: Path) -> None:
    pytest.importorskip("cftime")
    for number, (calendar, since) in enumerate(
        (("noleap", "2000-02-27"), ("noleap", "2000-03-02"), ("360_day", "2000-03-09"))
    ):
        group = zarr.open_group(tmp_path / f"{number}.zarr", mode="w")
        group.create_array("x", data=np.arange(4.0), dimension_names=("time",))
        attributes: Any = {"units": f"days since {since}", "calendar": calendar}
        group.create_array("time", data=np.arange(4), dimension_names=("time",), attributes=attributes)
    paths = [str(tmp_path / f"{number}.zarr") for number in range(3)]
    assert pack(paths[:2], tmp_path / "all.zarr", verify=True).ok
    with xarray.open_zarr(tmp_path / "all.zarr", consolidated=False) as packed:
        assert [str(one)[5:10] for one in packed.time.values] == [
            "02-27",
            "02-28",
            "03-01",
            "03-02",
            "03-02",
            "03-03",
            "03-04",
            "03-05",
        ]
    with pytest.raises(
        ConfigError,
        match=r"2\.zarr: 'time' is stored with 'calendar': '360_day', in .*0\.zarr with 'calendar': 'noleap'",
    ):
        pack([paths[0], paths[2]], tmp_path / "other.zarr")


NO_FILL = "'_FillValue or missing_value'"
#: How the second array differs, as the message says it -> attributes of the first one, and of the second one.
NUMBERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "with 'units': 'C', in {0} with 'units': 'K'": ({"units": "K"}, {"units": "C"}),
    "with 'units': 'K', in {0} without 'units'": ({}, {"units": "K"}),
    "with 'units': 'hours', in {0} with 'units': 'days'": ({"units": "days"}, {"units": "hours"}),
    "without 'scale_factor', in {0} with 'scale_factor': 0.5": ({"scale_factor": 0.5}, {"scale_factor": 1.0}),
    "with 'add_offset': 2.0, in {0} with 'add_offset': 1.0": ({"add_offset": 1.0}, {"add_offset": 2}),
    f"with {NO_FILL}: -2, in {{0}} with {NO_FILL}: -1": ({"_FillValue": -1}, {"_FillValue": -2}),
    f"without {NO_FILL}, in {{0}} with {NO_FILL}: -1": ({"missing_value": -1}, {}),
    "without '_Unsigned', in {0} with '_Unsigned': 'uint16'": ({"_Unsigned": "true"}, {}),
    "with 'flag_values': (1, 0), in {0} with 'flag_values': (0, 1)": ({"flag_values": [0, 1]}, {"flag_values": [1, 0]}),
    "with 'flag_meanings': 'b a', in {0} with 'flag_meanings': 'a b'": (
        {"flag_meanings": "a b"},
        {"flag_meanings": "b a"},
    ),
    "with 'names': ('b', 'a'), in {0} with 'names': ('a', 'b')": ({"names": ["a", "b"]}, {"names": ["b", "a"]}),
}


@pytest.mark.parametrize("said", NUMBERS)
@pytest.mark.parametrize("suffix", ["zarr", "h5"])
def test_numbers_that_mean_other_values_are_refused(said: str, suffix: str, tmp_path: Path) -> None:
    """Values of the second store were packed under the attributes of the first one."""
    for number, attributes in enumerate(NUMBERS[said]):
        path = tmp_path / f"{number}.{suffix}"
        if suffix == "h5":
            h5py = pytest.importorskip("h5py")
            with h5py.File(path, "w") as file:
                file["x"] = np.arange(4, dtype="i2")
                file["x"].attrs.update(attributes)
        else:
            zarr.open_group(path, mode="w").create_array("x", data=np.arange(4, dtype="i2"), attributes=attributes)
    paths = [str(tmp_path / f"{number}.{suffix}") for number in (0, 1)]
    with pytest.raises(ConfigError, match=re.escape(f"{paths[1]}: 'x' is stored {said.format(paths[0])}, so equal")):
        pack(paths, tmp_path / "all.zarr", files_are="runs")
    assert not (tmp_path / "all.zarr").exists()
    assert pack(paths[:1], tmp_path / "one.zarr").complete


def test_what_is_written_otherwise_and_means_the_same_is_packed(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [
        {"units": "m s**-1", "_FillValue": -1, "long_name": "one"},
        {"units": "m/s", "missing_value": -1, "scale_factor": 1.0, "add_offset": 0},
    ]
    for number, attributes in enumerate(ways):
        group = zarr.open_group(tmp_path / f"{number}.zarr", mode="w")
        group.create_array("x", data=np.arange(4, dtype="i2") - number, attributes=attributes)
    assert pack(str(tmp_path / "?.zarr"), tmp_path / "all.zarr", verify=True).ok


def with_grid(lat: Any, dtype: str = "f8", **encoding: Any) -> xarray.Dataset:
    made = year_of(2017).assign_coords(lat=np.array(lat, dtype))
    made.lat.encoding.update(encoding)
    return made


@pytest.mark.parametrize("kind", ["v3", "v2", "nc"])
@pytest.mark.parametrize("options", [{}, {"variables": ["x", "time"]}], ids=["all", "some"])
def test_another_grid_is_refused_and_the_same_one_may_be_stored_otherwise(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """The grid of the first Zarr store was taken for all: in one of them, north was south."""
    first = with_grid([10.0, 20.0, 30.0])
    is_kept = not options or kind == "nc"
    for name, lat in {"north up": [30.0, 20.0, 10.0], "elsewhere": [10.0, 20.0, 31.0]}.items():
        folder = tmp_path / name
        folder.mkdir()
        paths = written(folder, {1: first, 2: with_grid(lat)}, kind)
        message = r"2\.(zarr|nc): 'lat', which has no samples, has other values than in .*1\."
        if not is_kept:  # tiles of a map are packed without their coordinates
            message = r"2\.zarr: 'lat' goes from 30.0 to 10.0, in .*1\.zarr from 10.0 to 30.0"
            if name == "elsewhere":
                assert pack(paths, folder / "all.zarr", sample_dim="time", verify=True, **options).ok
                continue
        with pytest.raises(ConfigError, match=message):
            pack(paths, folder / "all.zarr", sample_dim="time", **options)
    same = [
        with_grid([10, 20, 30 + 1e-13]),
        with_grid([10, 20, 30], "f4"),
        with_grid([10, 20, 30], dtype="i2", scale_factor=0.5),
    ]
    for number, other in enumerate(same):
        folder = tmp_path / f"same{number}"
        folder.mkdir()
        pack(
            written(folder, {1: first, 2: other}, kind), folder / "all.zarr", sample_dim="time", verify=True, **options
        )


def test_other_dimensions_and_arrays_are_refused(tmp_path: Path) -> None:
    square = xarray.Dataset({"x": (("time", "lat", "lon"), np.zeros((4, 3, 3)))}, {"time": np.arange(4)})
    square.to_zarr(tmp_path / "0.zarr", consolidated=False)
    square.transpose("time", "lon", "lat").to_zarr(tmp_path / "1.zarr", consolidated=False)
    square.assign(y=square.x).to_zarr(tmp_path / "2.zarr", consolidated=False)
    paths = [str(tmp_path / f"{number}.zarr") for number in range(3)]
    with pytest.raises(ConfigError, match=r"1\.zarr: 'x' has the dimensions \('time', 'lon', 'lat'\), in .*0\.zarr"):
        pack(paths[:2], tmp_path / "all.zarr")
    with pytest.raises(
        ConfigError, match=r"2\.zarr: has the arrays of samples 'time', 'x', 'y', .*0\.zarr has 'time', 'x'"
    ):
        pack([paths[0], paths[2]], tmp_path / "all.zarr")
    assert pack([paths[0], paths[2]], tmp_path / "all.zarr", variables=["x", "time"], verify=True).ok


@pytest.mark.parametrize("part", ["units", "lat", "scale"])
def test_a_store_whose_numbers_mean_something_else_is_not_proved(part: str, tmp_path: Path) -> None:
    """Digests compared stored numbers alone: attributes and arrays without samples were proved by nobody."""
    pack(written(tmp_path, {y: year_of(y) for y in (2017, 2018)}, "v3"), tmp_path / "all.zarr")
    group = zarr.open_group(tmp_path / "all.zarr")
    if part == "units":
        group["time"].attrs["units"] = "days since 2017-01-02"
    elif part == "scale":
        group["x"].attrs["scale_factor"] = 2.0
    else:
        group["lat"][1] = 21.0  # type: ignore[index]
    paths = [str(tmp_path / f"{year}.zarr") for year in (2017, 2018)]
    report = pack(paths, tmp_path / "all.zarr", verify=True, resume=True)
    name = {"units": "time", "lat": "lat", "scale": "x"}[part]
    assert report.proof is not None
    assert report.proof.differing == (name,)
    assert not report.ok
    assert f"WRONG: source and store differ in {name}" in str(report)


def test_a_store_may_lack_the_coordinate_that_nobody_packs(tmp_path: Path) -> None:
    """It ended in a KeyError."""
    paths = written(tmp_path, {2017: year_of(2017), 2018: year_of(2018)}, "v3")
    shutil.rmtree(tmp_path / "2018.zarr" / "time")
    assert pack(paths, tmp_path / "all.zarr", sample_dim="time", variables=["x"], verify=True).ok
    assert len(zarrfeed.open(tmp_path / "all.zarr").window(range(2))) == 2 * 58
