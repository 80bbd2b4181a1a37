"""`Data.time_features`: sines and cosines of the times of samples, against `.dt` of xarray."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray
import zarr

import zarrfeed
from zarrfeed import ConfigError, UnsupportedError, ZarrDataLoader, ZarrDataset, ZarrIterableDataset
from zarrfeed.metadata.group.time_features import calculate
from zarrfeed.spec.samples.coordinate import Coordinate

FEATURES = ("hour", "day_of_week", "month", "day_of_year", "year_fraction")


def by_xarray(times: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the features of times by xarray's (pandas') hour, weekday, month and day of the year."""
    dt = xarray.DataArray(np.asarray(times, "M8[ns]"), dims="time").dt
    hour = dt.hour + dt.minute / 60 + (dt.second + dt.microsecond / 1e6) / 3600
    leap = (dt.year % 4 == 0) & ((dt.year % 100 != 0) | (dt.year % 400 == 0))
    days, day = 365 + leap, dt.dayofyear - 1
    shares = [hour / 24, dt.dayofweek / 7, (dt.month - 1) / 12, day / days, (day + hour / 24) / days]
    columns = [function(2 * np.pi * share) for share in shares for function in (np.sin, np.cos)]
    return np.stack(columns, axis=1).astype("f4")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_features_of_any_time_are_those_of_xarray(unit: str) -> None:
    rng = np.random.default_rng(0)
    first, last = np.array(["1900-01-01", "2100-12-31"], f"M8[{unit}]").astype(np.int64)
    times = rng.integers(first, last, 3000).astype(f"M8[{unit}]")
    times[:4] = np.array(["2020-12-31T23:59:59", "2020-02-29", "1969-12-31T18", "2023-12-31T12"], f"M8[{unit}]")
    got = calculate(Coordinate("time", times, "time"), FEATURES)
    np.testing.assert_allclose(got, by_xarray(times), atol=2e-6)
    assert got.dtype == np.float32


@pytest.mark.parametrize("calendar", ["noleap", "all_leap", "360_day", "julian"])
def test_features_of_the_calendars_of_climate_models(calendar: str) -> None:
    """Times of such calendars were refused."""
    pytest.importorskip("cftime")
    times = xarray.date_range("1999-11-05T06:30", periods=200, freq="65h", calendar=calendar, use_cftime=True)
    dt = xarray.DataArray(times, dims="time").dt
    lengths: dict[str, Any] = {"noleap": 365, "all_leap": 366, "360_day": 360, "julian": 365 + (dt.year % 4 == 0)}
    days = lengths[calendar]
    hour, day = dt.hour + dt.minute / 60, dt.dayofyear - 1
    shares = [hour / 24, (dt.month - 1) / 12, day / days, (day + hour / 24) / days]
    expected = np.stack([function(2 * np.pi * share) for share in shares for function in (np.sin, np.cos)], axis=1)
    names = [name for name in FEATURES if name != "day_of_week"]
    values = np.array([*times, None], dtype=object)
    got = calculate(Coordinate("time", values, "time"), names)
    np.testing.assert_allclose(got[:-1], expected, atol=2e-6)
    assert np.isnan(got[-1]).all()
    with pytest.raises(UnsupportedError, match="no days of the week"):
        calculate(Coordinate("time", values, "time"), ["day_of_week"])


def test_features_of_no_time_are_nan() -> None:
    got = calculate(Coordinate("time", np.array(["NaT", "2020-01-01"], "M8[s]"), "time"), FEATURES)
    assert np.isnan(got[0]).all()
    np.testing.assert_allclose(got[1, [0, 1]], [0, 1])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Write a store with xarray; samples are their own index."""
    times = np.datetime64("2019-12-25T01:30", "ns") + np.arange(30) * np.timedelta64(17, "h")
    x = np.broadcast_to(np.arange(30.0)[:, None], (30, 4)).astype("f4")
    dataset = xarray.Dataset({"x": (("time", "lat"), x)}, {"time": times})
    encoding = {"x": {"chunks": (4, 4)}, "time": {"units": "minutes since 2000-01-01", "dtype": "int64"}}
    dataset.to_zarr(tmp_path / "a.zarr", encoding=encoding, consolidated=False)
    return tmp_path / "a.zarr"


def expected(store: Path) -> Any:
    return by_xarray(xarray.open_zarr(store, consolidated=False).time.values)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_each_sample_has_the_features_of_its_own_time(num_workers: int, store: Path) -> None:
    data = zarrfeed.open(store, sample_dim="time").select(slice(3, 27)).time_features(*FEATURES)
    data = data.cast("float16").normalize((1, 2))  # of x alone
    wanted = expected(store)
    seen: list[int] = []
    for rank in range(2):
        dataset = ZarrIterableDataset(
            data, batch_size=5, shuffle=True, seed=2, return_index=True, rank=rank, world_size=2, even="off"
        )
        loader = ZarrDataLoader(dataset, num_workers=num_workers, timeout=240 * bool(num_workers))
        for batch, index in loader:
            np.testing.assert_array_equal(batch["x"][:, 0], (index.numpy() - 1) / 2)
            np.testing.assert_allclose(batch["time_features"], wanted[index.numpy()], atol=2e-6)
            assert batch["time_features"].dtype == torch.float32
            seen += index.tolist()
    assert sorted(seen) == list(range(3, 27))


def test_a_resumed_epoch_has_them(store: Path) -> None:
    data = zarrfeed.open(store, sample_dim="time").time_features("hour")
    with ZarrIterableDataset(data, batch_size=4, shuffle=True) as whole:
        batches = [batch["time_features"] for batch in whole]
    with ZarrIterableDataset(data, batch_size=4, shuffle=True) as first:
        passes = iter(first)
        for _ in range(3):
            next(passes)
        state = first.state_dict()
    with ZarrIterableDataset(data, batch_size=4, shuffle=True) as rest:
        rest.load_state_dict(state)
        assert all(torch.equal(a["time_features"], b) for a, b in zip(rest, batches[3:], strict=True))


def test_windows_before_and_after(store: Path) -> None:
    data = zarrfeed.open(store, sample_dim="time")
    wanted = expected(store)[:, :2]
    rows = ZarrDataset(data.time_features("hour").window((-1, 0)))[5]["time_features"]
    np.testing.assert_allclose(rows, wanted[5:7], atol=2e-6)
    own = ZarrDataset(data.window((-1, 0)).time_features("hour"))[5]["time_features"]
    np.testing.assert_allclose(own, wanted[6], atol=2e-6)


def test_a_single_array_becomes_a_dict_beside_targets() -> None:
    times = np.datetime64("2020-01-01") + np.arange(6) * np.timedelta64(4, "h")
    data = zarrfeed.open(np.arange(6.0), np.arange(6)).time_features("hour", "month", coords=times)
    data = data.static(mask=1).cast({"samples": "float16", "time_features": "float64"})
    samples, targets = ZarrDataset(data)[[4, 1]]
    assert list(samples) == ["samples", "time_features", "mask"]
    np.testing.assert_allclose(samples["time_features"], by_xarray(times)[[4, 1]][:, [0, 1, 4, 5]], atol=2e-6)
    assert samples["samples"].tolist() == targets.tolist() == [4, 1]
    assert [(f.name, f.shape, f.dtype) for f in data.fields] == [
        ("samples", (), "float16"),
        ("time_features", (4,), "float64"),
        ("targets", (), "int64"),
        ("mask", (), "int64"),
    ]


def test_they_are_printed_pickled_compared_and_explained(store: Path) -> None:
    data = zarrfeed.open(store, sample_dim="time").time_features("hour", "month")
    assert repr(data).endswith(".time_features('hour', 'month')")
    again = pickle.loads(pickle.dumps(data))
    assert again == data
    assert data != zarrfeed.open(store, sample_dim="time").time_features("hour")
    with ZarrIterableDataset(data, batch_size=3) as dataset:
        assert "time_features" in str(dataset.explain())
    other = zarrfeed.open(np.zeros(3)).time_features("hour", coords=np.zeros(3, "M8[s]"))
    assert repr(other).endswith(".time_features('hour', coords=<numpy.ndarray (3,) datetime64[s]>)")
    assert list(zarrfeed.stats(data).fields) == ["x"]


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        ((), {}, "needs at least one of 'hour', 'day_of_week'"),
        (("hours",), {}, "time_features = 'hours', must be one of .*did you mean 'hour'"),
        ((3,), {}, "time_features = 3, must be one of"),
        (("hour", "hour"), {}, "'hour' is named twice"),
        (("hour",), {"coords": np.zeros(29, "M8[s]")}, r"has the shape \(29,\), must have one value a sample, \(30,\)"),
        (("hour",), {"coords": np.zeros(30)}, "has the dtype float64, must have dates"),
    ],
)
def test_bad_arguments_are_refused(features: Any, options: dict[str, Any], message: str, store: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        zarrfeed.open(store, sample_dim="time").time_features(*features, **options)


def test_what_has_no_times_or_two_is_refused(store: Path) -> None:
    data = zarrfeed.open(store, sample_dim="time")
    with pytest.raises(ConfigError, match="no names of dimensions"):
        zarrfeed.open(np.zeros(3)).time_features("hour")
    with pytest.raises(ConfigError, match="time_features: the samples already have an array of this name"):
        data.time_features("hour").time_features("month")
    with pytest.raises(ConfigError, match="time_features: the samples already have an array of this name"):
        data.static(time_features=1).time_features("month")
    with pytest.raises(ConfigError, match="the samples already have an array of this name"):
        data.time_features("month").static(time_features=1)
    with pytest.raises(ConfigError, match="cannot follow open"):
        zarrfeed.open(store, sample_dim="time", refresh="epoch").time_features("hour")
    with pytest.raises(UnsupportedError, match="a calendar that NumPy lacks"):
        calculate(Coordinate("time", np.array([object()]), "a.zarr/time"), ["day_of_week"])
    level = zarr.create_array({}, name="a", shape=(3,), dtype="f4", dimension_names=("level",))
    with pytest.raises(ConfigError, match="no coordinate 'level'"):
        zarrfeed.open(level).time_features("hour")
