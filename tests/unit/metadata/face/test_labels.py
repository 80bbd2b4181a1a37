"""`Data.sel` and `Data.isel`: the samples that xarray selects from the same store, and nothing else read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import zarr

import zarrfeed
from zarrfeed import ConfigError, Data, ZarrDataset, ZarrIterableDataset

N = 60
TIMES = np.datetime64("2014-11-20T00:00:00", "ns") + np.arange(N) * np.timedelta64(36, "h")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write samples that say their index, with a coordinate of times, one of labels, and an axis of latitudes."""
    dataset = xr.Dataset(
        {"x": (("time", "lat"), np.arange(N)[:, None] + np.zeros((N, 2), "i4"))},
        coords={"time": TIMES, "episode": ("time", np.arange(N) // 7), "lat": [10, 20]},
    )
    where = tmp_path_factory.mktemp("labels") / "w.zarr"
    dataset.to_zarr(where, encoding={"x": {"chunks": (5, 2)}}, consolidated=False)
    return where


def samples_of(data: Data) -> list[int]:
    """Return the index of each sample, as the values say and as `return_index` does."""
    batch, index = ZarrDataset(data, return_index=True)[np.arange(len(data))]
    assert torch.equal(batch["x"][:, 0].long(), index)
    return list(index.tolist())


@pytest.mark.parametrize(
    "label",
    [
        slice("2014-12", "2015-01-10"),
        slice(None, "2014"),
        slice("2015-01-01T12", None, 3),
        "2014-12",
        TIMES[7],
        TIMES[[3, 9, 4]],
        [str(TIMES[5]), str(TIMES[0])],
        np.arange(N) % 4 == 1,
    ],
    ids=str,
)
def test_labels_select_what_xarray_selects(path: Path, label: Any) -> None:
    opened = xr.open_zarr(path, consolidated=False, chunks=None)
    expected = np.atleast_2d(opened["x"].sel(time=label).values)[:, 0]
    data = zarrfeed.open(path, sample_dim="time")
    assert samples_of(data.sel(time=label)) == sorted(expected.tolist())
    assert samples_of(data.sel({"time": label})) == sorted(expected.tolist())


@pytest.mark.parametrize("index", [slice(3, 40, 6), slice(-5, None), [9, 3, -1], 7, -2, np.arange(N) < 4], ids=str)
def test_positions_select_what_xarray_selects(path: Path, index: Any) -> None:
    opened = xr.open_zarr(path, consolidated=False, chunks=None)
    expected = np.atleast_2d(opened["x"].isel(time=index).values)[:, 0]
    data = zarrfeed.open(path, sample_dim="time")
    assert samples_of(data.isel(time=index)) == sorted(expected.tolist())
    assert samples_of(data.isel({"time": index})) == sorted(expected.tolist())


def test_labels_and_positions_are_of_what_was_selected_before(path: Path) -> None:
    data = zarrfeed.open(path, sample_dim="time")
    opened = xr.open_zarr(path, consolidated=False, chunks=None)["x"]
    assert samples_of(data.isel(time=slice(0, 50, 3)).sel(time="2014-12")) == (
        opened.isel(time=slice(0, 50, 3)).sel(time="2014-12").values[:, 0].tolist()
    )
    assert samples_of(data.sel(time="2014-12").isel(time=[0, -1])) == (
        opened.sel(time="2014-12").isel(time=[0, -1]).values[:, 0].tolist()
    )
    assert samples_of(data.select([1, 8, 15]).sel(episode=1)) == [8]
    with pytest.raises(
        ConfigError, match=r"sel: time has no '2015': .*/time has values from .* \(index 3\) to .*index 4"
    ):
        data.select([3, 4]).sel(time="2015")


def test_labels_of_many_stores(path: Path) -> None:
    """Each with a coordinate of its own."""
    twice = zarrfeed.open([path / "x", path / "x"])
    with pytest.raises(
        ConfigError, match=r"needs a sorted coordinate; .*time and 1 more has 2014-11-20T.* \(index 60\)"
    ):
        twice.sel(time=slice("2014-12", None))
    december = twice.sel(time="2014-12")
    batch = ZarrDataset(december)[np.arange(len(december))]
    expected = xr.open_zarr(path, consolidated=False, chunks=None)["x"].sel(time="2014-12").values
    assert batch.tolist() == [*expected.tolist()] * 2


def test_other_coordinates_of_the_samples(path: Path) -> None:
    data = zarrfeed.open(path, sample_dim="time")
    assert samples_of(data.sel(episode=2)) == list(range(14, 21))
    assert samples_of(data.sel(episode=slice(3, 4))) == list(range(21, 35))
    assert samples_of(data.sel(episode=[2])) == list(range(14, 21))
    assert samples_of(data.sel(episode=[4, 2])) == [*range(14, 21), *range(28, 35)]


def test_chunks_without_a_selected_sample_are_not_read(path: Path) -> None:
    with ZarrIterableDataset(zarrfeed.open(path, sample_dim="time").sel(episode=0), batch_size=4) as dataset:
        for _ in dataset:
            pass
        assert dataset.stats().chunks_read == 2


def test_windows_read_rows_between_the_ends_of_a_slice(path: Path) -> None:
    data = zarrfeed.open(path, sample_dim="time").sel(time=slice("2014-12", None, 2)).window((0, 1))
    first = int(np.searchsorted(TIMES, np.datetime64("2014-12-01")))
    batch = ZarrDataset(data)[np.arange(len(data))]["x"][:, :, 0]
    assert batch.tolist() == [[i, i + 1] for i in range(first, N - 1, 2)]
    with pytest.raises(ConfigError, match=r"^sel\(\) follows window\(\), must precede it"):
        data.sel(time="2015")
    with pytest.raises(ConfigError, match=r"^isel\(\) follows window\(\), must precede it"):
        data.isel(time=3)


def test_a_state_knows_what_labels_selected(path: Path) -> None:
    def dataset(data: Data) -> ZarrIterableDataset:
        return ZarrIterableDataset(data, batch_size=4, shuffle=True, seed=3, rank=0, world_size=1)

    data = zarrfeed.open(path, sample_dim="time").sel(time=slice("2014-12", "2015-01"))
    with dataset(data) as whole, dataset(data) as resumed:
        batches = [batch["x"][:, 0].tolist() for batch in whole]
        resumed.load_state_dict(_after(data, dataset, 3))
        assert [batch["x"][:, 0].tolist() for batch in resumed] == batches[3:]


def _after(data: Data, dataset: Any, count: int) -> dict[str, Any]:
    with dataset(data) as stopped:
        iterator = iter(stopped)
        for _ in range(count):
            next(iterator)
        state: dict[str, Any] = stopped.state_dict()
    return state


def test_expressions_print_compare_and_pickle(path: Path) -> None:
    data = zarrfeed.open(str(path), sample_dim="time")
    one = data.sel(time=slice("2014-12", "2015")).isel(time=[0, 3])
    assert repr(one).endswith(".sel(time=slice('2014-12', '2015')).isel(time=[0, 3])")
    assert repr(data.sel({"time": TIMES[3]}, method="nearest")).endswith(f".sel(time={TIMES[3]}, method='nearest')")
    plain = zarrfeed.open(np.arange(N))
    assert (
        repr(plain.sel({"my time": "2015"}, coords=TIMES)).partition(".sel")[2].startswith("({'my time': '2015'}, coor")
    )
    assert repr(plain.sel(time="2015", coords=path / "time")).endswith(f"coords='{path / 'time'}')")
    assert one == data.sel(time=slice("2014-12", "2015")).isel(time=[0, 3])
    assert one != data.sel(time=slice("2014-12", "2016")).isel(time=[0, 3])
    assert pickle.loads(pickle.dumps(one)) == one
    assert samples_of(pickle.loads(pickle.dumps(data)).sel(episode=1)) == list(range(7, 14))


def test_coordinates_that_the_user_gives(path: Path) -> None:
    group = zarr.open_group(path, mode="r")
    for data in (zarrfeed.open({"x": np.arange(N)[:, None]}), zarrfeed.open({"x": group["x"]})):
        for coords in (TIMES, TIMES.tolist(), path / "time", group["time"]):
            if isinstance(coords, list):
                coords = [np.datetime64(one, "ns") for one in coords]
            assert samples_of(data.sel(time="2014-11", coords=coords)) == list(range(8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.sel(), "sel: names nothing, must name a dimension"),
        (lambda d: d.sel("2015"), r"sel: got '2015', must be keywords such as sel\(time=...\), or a mapping"),
        (lambda d: d.sel(time="2015", episode=3), "sel: 'time', 'episode' are all coordinates of the samples;"),
        (lambda d: d.sel({"time": "2015"}, time="2015"), "sel: 'time' is named twice"),
        (lambda d: d.sel({3: "2015"}), "sel: got the name 3, must be text"),
        (lambda d: d.isel(lat=9), r"isel of 'lat' = 9: samples\['x'\] has \d items along it"),
        (lambda d: d.isel({7: 0}), "isel: no array has the axis 7; they have 2 axes"),
        (lambda d: d.isel({1: 0, -1: 0}), "isel: names an axis twice: 1, -1"),
        (lambda d: d.isel(lat=[]), r"isel of 'lat' = \[\], must be an integer, a slice, or a list"),
        (lambda d: d.isel(lat=0).isel(lat=0), "'lat' was chosen to a single item before"),
        (
            lambda d: d.sel(tme="2015"),
            "sel: no array has the dimension 'tme'; .* are 'lat'; .*; did you mean 'time'",
        ),
        (lambda d: d.isel(tme=3), "isel: no array has the dimension 'tme'; .*; did you mean 'time'"),
        (
            lambda d: d.isel(episode=3),
            "isel: no array has the dimension 'episode'; .* are 'lat'; .* along 'time'",
        ),
        (lambda d: d.sel(time="2015", method="near"), r"method = 'near', must be one of 'nearest'; did you mean"),
        (
            lambda d: d.sel(time="2015", coords=TIMES[:3]),
            r"coords of 'time': has the shape \(3,\), must have one value",
        ),
        (lambda d: d.sel(time="2015", coords="nowhere"), "nowhere"),
        (lambda d: d.isel(time="2015"), "select is an array of shape"),
        (lambda d: d.isel(time=N), r"select has the index 60, must be in \[-60, 59\]"),
        (lambda d: d.isel(time=[3, 3]), "select names sample 3 more than once"),
        (lambda d: d.isel(time=[]), "selects nothing"),
        (lambda d: d.isel(time=3.5), "select is an array of shape"),
    ],
)
def test_arguments_that_are_refused(path: Path, call: Any, message: str) -> None:
    with pytest.raises((ConfigError, OSError), match=message):
        call(zarrfeed.open(path, sample_dim="time"))


def test_arrays_without_names_of_dimensions() -> None:
    with pytest.raises(ConfigError, match=r"isel: 'time': the arrays have no names of dimensions; use select\(\)"):
        zarrfeed.open(np.arange(N)).isel(time=3)


def test_stores_that_grow_are_selected_from_a_label_on(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    x = group.create_array("x", shape=(20, 1), dtype="i4", chunks=(5, 1), dimension_names=("time", "c"))
    time = group.create_array("time", data=np.arange(20), chunks=(5,), dimension_names=("time",))
    x[:] = np.arange(20)[:, None]
    data = zarrfeed.open(tmp_path / "g.zarr", variables=["x"], refresh="epoch").sel(time=slice(7, None))
    with ZarrIterableDataset(data, batch_size=100) as dataset:
        assert [batch["x"][:, 0].tolist() for batch in dataset] == [list(range(7, 20))]
        x.resize((30, 1))
        x[20:] = np.arange(20, 30)[:, None]
        time.resize((30,))
        time[20:] = np.arange(20, 30)
        assert [batch["x"][:, 0].tolist() for batch in dataset] == [list(range(7, 30))]
    grows = zarrfeed.open(tmp_path / "g.zarr", variables=["x"], refresh="epoch")
    for label in (slice(7, 9), slice(7, None, 2), slice(None, None), [7, 8], 7):
        with pytest.raises(ConfigError, match=r"with refresh='epoch', .*selected by slice\(label, None\)"):
            grows.sel(time=label)
    with pytest.raises(ConfigError, match="and without window="):
        zarrfeed.open(tmp_path / "g.zarr", variables=["x"], refresh="epoch", window=10).sel(time=slice(7, None))
    with pytest.raises(ConfigError, match="select of a store that is opened with refresh='epoch' must be a slice"):
        grows.isel(time=[3])


def test_calendars_that_numpy_lacks_are_selected_as_xarray_does(tmp_path: Path) -> None:
    pytest.importorskip("cftime")
    group = zarr.open_group(tmp_path / "noleap.zarr", mode="w")
    group.create_array("x", data=np.arange(90)[:, None], dimension_names=("time", "c"))
    attributes: Any = {"units": "days since 1999-12-20", "calendar": "noleap"}
    group.create_array("time", data=np.arange(90), dimension_names=("time",), attributes=attributes)
    opened = xr.open_zarr(tmp_path / "noleap.zarr", consolidated=False, chunks=None)["x"]
    data = zarrfeed.open(tmp_path / "noleap.zarr", variables=["x"])
    for label in (slice("2000-02", "2000-03-03"), "2000", opened["time"].values[[5, 3]], slice(None, "1999")):
        assert samples_of(data.sel(time=label)) == sorted(opened.sel(time=label).values[:, 0].tolist())


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["M8[ns]", "f8"])
def test_samples_without_a_time_are_found_by_no_label(tmp_path: Path, dtype: str, zarr_format: Any) -> None:
    """NaT is stored by xarray as the least int64, without an attribute: it was refused as too far away."""
    times: Any = np.datetime64("2020-01-01", "ns") + np.arange(12) * np.timedelta64(1, "D")
    if dtype == "f8":
        times = np.arange(12.0)
    lacking = [0, 4, 5, 11]
    times[lacking] = "NaT" if dtype != "f8" else np.nan
    dataset = xr.Dataset({"x": (("time", "lat"), np.arange(12)[:, None] + np.zeros((12, 2), "i4"))}, {"time": times})
    dataset.to_zarr(tmp_path / "w.zarr", consolidated=False, zarr_format=zarr_format)
    data = zarrfeed.open(tmp_path / "w.zarr", sample_dim="time")
    assert samples_of(data) == list(range(12))
    present = [1, 2, 3, 6, 7, 8, 9, 10]
    assert samples_of(data.sel(time=slice(None, None))) == present
    assert samples_of(data.sel(time=slice(times[3], times[7]))) == [3, 6, 7]
    assert samples_of(data.sel(time=slice(times[2], times[10], 2))) == [2, 6, 8, 10]
    assert samples_of(data.sel(time=[times[7], times[2]])) == [2, 7]
    assert samples_of(data.sel(time=times[7])) == [7]
    assert samples_of(data.sel(time=np.arange(12) % 4 == 0)) == [0, 4, 8]
    before, after = times[3] + (times[2] - times[1]) * 0.4 if dtype == "f8" else times[3] + np.timedelta64(9, "h"), 6
    assert samples_of(data.sel(time=before, method="nearest")) == [3], after
    assert samples_of(data.select(slice(4, None)).sel(time=slice(times[7], None))) == [7, 8, 9, 10]
    if dtype != "f8":
        assert samples_of(data.sel(time="2020-01")) == present
    for label in (times[4], [times[4]], [times[3], times[4]]):
        with pytest.raises(ConfigError, match=r"sel: time = (.*; labels of|NaT finds no sample)"):
            data.sel(time=label)
    for label in (times[4], [times[4]]):
        with pytest.raises(ConfigError, match=r"sel: time = (.*; labels of|NaT finds no sample)"):
            data.sel(time=label, method="nearest")
    with pytest.raises(ConfigError, match=r"time has values from .* \(index 6\) to .* \(index 10\)"):
        data.select(slice(4, None)).sel(time=times[1])
    with pytest.raises(ConfigError, match="has no value of any sample"):
        data.select([4, 5]).sel(time=slice(None, times[7]))


def test_a_store_that_grows_does_not_leave_out_samples_without_a_time(tmp_path: Path) -> None:
    times = np.array([1.0, 2, np.nan, 4])
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("x", data=np.arange(4), chunks=(2,), dimension_names=("time",))
    group.create_array("time", data=times, chunks=(2,), dimension_names=("time",))
    grows = zarrfeed.open(tmp_path / "g.zarr", variables=["x"], refresh="epoch")
    assert len(grows.sel(time=slice(4.0, None))) == 1
    with pytest.raises(ConfigError, match="lacks the values of some samples behind that label"):
        grows.sel(time=slice(2.0, None))


def test_missing_times_of_other_calendars(tmp_path: Path) -> None:
    pytest.importorskip("cftime")
    group = zarr.open_group(tmp_path / "noleap.zarr", mode="w")
    group.create_array("x", data=np.arange(4)[:, None], dimension_names=("time", "c"))
    attributes: Any = {"units": "days since 1999-12-20", "calendar": "noleap", "_FillValue": -1}
    group.create_array("time", data=np.array([0, -1, 2, 3]), dimension_names=("time",), attributes=attributes)
    data = zarrfeed.open(tmp_path / "noleap.zarr", variables=["x"])
    assert samples_of(data.sel(time=slice("1999-12-20", "1999-12-22"))) == [0, 2]
    assert samples_of(data.sel(time="1999")) == [0, 2, 3]


def test_a_name_of_the_sample_dimension_means_samples_in_arrays_that_have_it_twice(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    group.create_array("x", data=np.arange(12).reshape(4, 3), dimension_names=("a", "b"))
    group.create_array("y", data=np.arange(16).reshape(4, 4), dimension_names=("a", "a"))
    data = zarrfeed.open(tmp_path / "g", variables=["x", "y"])
    assert [(len(made), [one.shape for one in made.fields]) for made in (data.isel(a=[0, 2]), data.isel(b=[0, 2]))] == [
        (2, [(3,), (4,)]),
        (4, [(2,), (4,)]),
    ]
