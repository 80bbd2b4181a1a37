"""Splits by groups, classes, folds, hashes and times, against NumPy; every sample holds its own index in the array."""

from __future__ import annotations

import datetime
import pickle
import re
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples, tries
from tests.support.numbered import numbered, samples_of
from zarrfeed import ConfigError, Data, ZarrDataset, ZarrIterableDataset, check_disjoint

HOURS = np.arange("2000-01-01", "2004-01-01", 6, dtype="M8[h]")
DONORS = np.array(["d3", "d1", "d2", "d4"])


@pytest.fixture(scope="module")
def hourly(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    n = len(HOURS)
    path = tmp_path_factory.mktemp("splits") / "x.zarr"
    store = numbered(path, n, 16, donor=rng.integers(0, 40, n), label=rng.integers(0, 3, n))
    zarr.open_group(path).create_array(
        "time",
        data=(HOURS - HOURS[0]).astype(int),
        dimension_names=("time",),
        attributes={"units": "hours since 2000-01-01"},
    )
    return store


def test_names_of_other_libraries_say_ours() -> None:
    data = zarrfeed.open(np.arange(20))
    guesses: dict[str, tuple[Any, str]] = {
        "test_size": (0.2, "it is parts, with one number for each part"),
        "n_splits": (5, "it is folds=5, fold=0"),
        "random_state": (3, "it is seed="),
        "shuffle": (True, "by='sample'"),
        "by": ("time", 'must be "contiguous"'),
    }
    for name, (value, answer) in guesses.items():
        with pytest.raises((ConfigError, TypeError), match=re.escape(answer)):
            data.split((0.8, 0.2), **{name: value})


def column(store: str, name: str) -> np.ndarray:
    return np.asarray(zarr.open_array(f"{store}/{name}")[:])


def opened(store: str) -> Data:
    return zarrfeed.open(store, sample_dim="time", variables=["x"])


@pytest.mark.parametrize(("by", "stratified"), [(None, False), (None, True), ("hash", False)])
def test_a_group_is_in_one_part(hourly: str, by: Any, stratified: bool) -> None:
    donor, label = column(hourly, "donor"), column(hourly, "label")
    parts = opened(hourly).split((0.7, 0.3), groups="donor", stratify="label" if stratified else None, by=by)
    found = [samples_of(part) for part in parts]
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(len(HOURS)))
    assert not {*donor[found[0]]} & {*donor[found[1]]}
    if by is None:
        assert len(found[0]) / len(HOURS) == pytest.approx(0.7, abs=0.02)
    if stratified:
        shares = np.bincount(label[found[0]]) / np.bincount(label)
        assert shares == pytest.approx(0.7, abs=0.02)
    check_disjoint(*parts)
    page = str(ZarrIterableDataset(parts[1], batch_size=4).explain())
    assert f"part 1 of 2: {len(found[1])} of {len(HOURS)} samples, {len({*donor[found[1]]})} of 40 groups" in page
    if stratified:
        counts = np.bincount(label[found[1]])
        assert ", ".join(f"{code} {count}" for code, count in enumerate(counts)) in page


def test_an_array_says_the_same_as_the_column_of_its_name(hourly: str) -> None:
    donor, data = column(hourly, "donor"), opened(hourly)
    wanted = [samples_of(part).tolist() for part in data.split((0.5, 0.5), groups="donor")]
    for labels in (donor, donor.tolist(), zarr.open_array(f"{hourly}/donor"), Path(hourly) / "donor"):
        assert [samples_of(part).tolist() for part in data.split((0.5, 0.5), groups=labels)] == wanted
    some = data.select(slice(100, 400))
    of_chosen = some.split((0.5, 0.5), groups=donor[100:400])
    assert [samples_of(part).tolist() for part in of_chosen] == (
        [samples_of(part).tolist() for part in some.split((0.5, 0.5), groups="donor")]
    )
    assert {*np.concatenate([samples_of(part) for part in of_chosen])} == {*range(100, 400)}


@pytest.mark.parametrize(
    "options", [{}, {"by": "sample"}, {"by": "contiguous"}, {"groups": "donor"}, {"stratify": "label"}]
)
def test_each_sample_is_validated_in_one_fold(hourly: str, options: dict[str, Any]) -> None:
    data = opened(hourly)
    pairs = data.split(folds=5, seed=3, **options)
    assert len(pairs) == 5
    validated = []
    for number, (train, validation) in enumerate(pairs):
        check_disjoint(train, validation)
        ours = samples_of(validation)
        assert np.array_equal(np.sort(np.concatenate([samples_of(train), ours])), np.arange(len(HOURS)))
        if number % tries(3, 1) == 1 % tries(3, 1):
            again = data.split(folds=5, fold=number, seed=3, **options)
            assert [samples_of(part).tolist() for part in again] == [samples_of(train).tolist(), ours.tolist()]
        assert len(ours) == pytest.approx(len(HOURS) / 5, rel=0.15)
        validated.append(ours)
    assert np.array_equal(np.sort(np.concatenate(validated)), np.arange(len(HOURS)))


def test_a_stratum_has_its_share_of_single_samples(hourly: str) -> None:
    label = column(hourly, "label")
    parts = opened(hourly).split((0.8, 0.2), stratify="label", by="sample")
    for part, fraction in zip(parts, (0.8, 0.2), strict=True):
        assert np.abs(np.bincount(label[samples_of(part)]) - fraction * np.bincount(label)).max() <= 1


def test_years_follow_each_other(hourly: str) -> None:
    years = HOURS.astype("M8[Y]").astype(int) + 1970
    train, validation = opened(hourly).split((0.75, 0.25), groups="time.year", by="contiguous")
    assert {*years[samples_of(train)]} == {2000, 2001, 2002}
    assert {*years[samples_of(validation)]} == {2003}
    with pytest.raises(ConfigError, match=r"time.month '1' has samples in 4 places of the array, must have one run"):
        opened(hourly).split((0.75, 0.25), groups="time.month", by="contiguous")


@pytest.mark.parametrize("part", ["year", "month", "day", "dayofyear", "hour", "date"])
def test_parts_of_dates_are_those_of_xarray(hourly: str, part: str) -> None:
    xarray = pytest.importorskip("xarray")
    wanted = getattr(xarray.DataArray(HOURS.astype("M8[ns]"), dims="time").dt, part).values
    wanted = wanted.astype("M8[D]") if part == "date" else wanted
    data = opened(hourly)
    by_name, by_value = (data.split((0.6, 0.4), groups=one, seed=5) for one in (f"time.{part}", wanted))
    assert samples_of(by_name[0]).tolist() == samples_of(by_value[0]).tolist()


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_calendars_of_climate_models_have_groups_and_gaps(calendar: str, tmp_path: Path) -> None:
    """Their times had no parts, and a gap had to be given in rows."""
    pytest.importorskip("cftime")
    xarray = pytest.importorskip("xarray")
    times = xarray.date_range("1850-01-01", periods=600, freq="3D", calendar=calendar, use_cftime=True)
    dataset = xarray.Dataset({"x": (("time",), np.arange(600))}, {"time": times})
    dataset.to_zarr(tmp_path / "x.zarr", consolidated=False)
    data = zarrfeed.open(tmp_path / "x.zarr", sample_dim="time")
    for part in ("year", "month", "dayofyear", "season"):
        wanted = getattr(dataset.time.dt, part).values
        by_name, by_value = (data.split((0.6, 0.4), groups=one, seed=5) for one in (f"time.{part}", wanted))
        assert samples_of(by_name[0]).tolist() == samples_of(by_value[0]).tolist()
    ends = [samples_of(one) for one in data.split((0.5, 0.5), by="contiguous", gap="10D")]
    apart = times[ends[1][0]] - times[ends[0][-1]]
    assert datetime.timedelta(days=10) <= apart < datetime.timedelta(days=13)


def test_a_gap_is_kept_in_years_that_nanoseconds_do_not_reach(tmp_path: Path) -> None:
    times = np.array(["2262-03-01"], "M8[s]") + np.arange(100) * np.timedelta64(1, "D")
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("x", data=np.arange(100), chunks=(10,), dimension_names=("time",))
    units: dict[str, Any] = {"units": "days since 1970-01-01", "calendar": "proleptic_gregorian"}
    days = times.astype("M8[D]").astype(np.int64)
    group.create_array("time", data=days, dimension_names=("time",), attributes=units)
    parts = zarrfeed.open(tmp_path / "x.zarr", sample_dim="time").split((0.5, 0.5), by="contiguous", gap="5D")
    assert samples_of(parts[1])[0] - samples_of(parts[0])[-1] == 5


@pytest.mark.parametrize("gap", ["30D", datetime.timedelta(days=30), np.timedelta64(30, "D")])
@pytest.mark.parametrize("window", [None, (-2, 0, 4)])
def test_parts_are_some_time_apart(hourly: str, gap: Any, window: tuple[int, ...] | None) -> None:
    data = opened(hourly) if window is None else opened(hourly).window(window)
    train, validation = data.split((0.7, 0.3), by="contiguous", gap=gap)
    check_disjoint(train, validation)
    low, high = (0, 0) if window is None else (min(window), max(window))
    first = train.resolved.choice.listed()
    last, begin = HOURS[int(first[-1]) + high], HOURS[int(validation.resolved.choice.listed()[0]) + low]
    assert begin - last >= np.timedelta64(30, "D")
    assert begin - last < np.timedelta64(30, "D") + np.timedelta64(12, "h")
    assert len(train) + len(validation) == pytest.approx(len(data) - 120, abs=8)


def test_a_gap_in_time_heeds_missing_days(tmp_path: Path) -> None:
    """Of rows whose times are 1, 2, ..., and then far apart, a gap takes as many as lie within it."""
    time = np.cumsum(np.random.default_rng(1).integers(1, 9, 300))
    store = numbered(tmp_path / "x.zarr", 300, 10)
    zarr.open_group(store).create_array(
        "time", data=time, dimension_names=("time",), attributes={"units": "days since 2000-01-01"}
    )
    for gap in (1, 5, 17, 60):
        train, validation = opened(store).split((0.5, 0.5), by="contiguous", gap=np.timedelta64(gap, "D"))
        begin = samples_of(validation)[0]
        assert samples_of(train).tolist() == np.flatnonzero(time <= time[begin] - gap).tolist()


@pytest.mark.parametrize("day", [0.0, np.nan])
def test_a_gap_in_time_needs_times_that_ascend(tmp_path: Path, day: float) -> None:
    """A time that goes back, or one that is missing, behind which no row has a known distance."""
    time = np.arange(300, dtype=float)
    time[150] = day
    store = numbered(tmp_path / "x.zarr", 300, 10)
    zarr.open_group(store).create_array(
        "time", data=time, dimension_names=("time",), attributes={"units": "days since 2000-01-01"}
    )
    with pytest.raises(ConfigError, match=r"gap = '30D' is a time, and .*time does not ascend: give a number of rows"):
        opened(store).split((0.5, 0.5), by="contiguous", gap="30D")


def test_a_warning_says_that_parts_are_far_from_their_fractions() -> None:
    array = zarr.create_array(zarr.storage.MemoryStore(), shape=(500, 2), chunks=(250, 2), dtype="i4")
    data, label = zarrfeed.open(array), np.arange(500) % 3
    for stratify in (None, label):
        with pytest.warns(UserWarning, match=r"50% : 50% of the samples, and 80% : 20% .*: chunks are dealt whole; by"):
            assert [len(part) for part in data.split((0.8, 0.2), stratify=stratify)] == [250, 250]
    with pytest.warns(UserWarning, match="10% : 90% of the samples, and 80% : 20% .*: groups are dealt whole"):
        data.split((0.8, 0.2), groups=np.arange(500) >= 50, by="contiguous")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [len(part) for part in data.split((0.8, 0.2), by="sample", stratify=label)] == [400, 100]
        assert [len(part) for part in data.split((0.6, 0.4))] == [250, 250]  # as near as two chunks allow
        data.split(folds=2)


@examples(25)
@given(data=st.data(), seed=st.integers(0, 2**64 - 1))
def test_parts_share_no_row(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, seed: int) -> None:
    n, chunk = data.draw(st.integers(30, 120)), data.draw(st.integers(1, 20))
    store = numbered(tmp_path_factory.mktemp("rows") / "x", n, chunk)
    choice = opened(store)
    if data.draw(st.booleans()):
        choice = choice.select(slice(data.draw(st.integers(0, 5)), None, data.draw(st.integers(1, 3))))
    groups = np.sort(np.random.default_rng(seed).integers(0, 12, n))
    options: dict[str, Any] = data.draw(
        st.sampled_from([{"groups": groups}, {"groups": groups, "by": "contiguous"}, {"groups": groups, "by": "hash"}])
    )
    windowed = data.draw(st.booleans())
    try:
        if windowed:
            choice = choice.window((0, 2), rows="all", gaps="ignore")
        parts = choice.split((0.6, 0.4), seed=seed, **options)
    except ConfigError as error:
        if re.search("every part must have one|part . of the split: .* left out|no sample", str(error)) is None:
            raise
        return
    check_disjoint(*parts)
    rows = [{*(samples_of(part)), *(samples_of(part) + 2 if windowed else ())} for part in parts]
    assert not rows[0] & rows[1]


def test_a_column_of_anndata_is_named_by_its_path_or_its_name(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    pandas, sparse = pytest.importorskip("pandas"), pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(0)
    donor = DONORS[rng.integers(0, 4, 200)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pandas.option_context("future.infer_string", False):  # anndata 0.12 does not write the texts of pandas 3
            table = anndata.AnnData(np.arange(200, dtype="f4")[:, None] + np.zeros(3, "f4"))
            table.obs["donor"], table.obs["n"] = pandas.Categorical(donor), rng.integers(0, 9, 200)
            table.layers["raw"] = sparse.csr_matrix(table.X)
            table.write_zarr(tmp_path / "cells.zarr")
    cells = tmp_path / "cells.zarr"
    opened = [zarrfeed.open(cells, variables=names) for names in (["X"], ["layers/raw"], ["X", "obs/n"])]
    opened += [zarrfeed.open(cells / "X"), zarrfeed.open(cells / "layers/raw"), zarrfeed.open([cells / "X"] * 2)]
    for data, name in product(opened, ("obs/donor", "donor")):
        donors = np.tile(donor, len(data) // 200)
        assert len(data.sel({name: "d2"})) == np.count_nonzero(donors == "d2") > 0
        assert data.coords[name].tolist() == donors.tolist()
        train, validation = data.split((0.75, 0.25), groups=name)
        names = [{*donors[part.resolved.choice.listed()]} for part in (train, validation)]
        assert not names[0] & names[1]
        assert names[0] | names[1] == {*DONORS}
        assert [len(one) for one in names] == [3, 1]
    with pytest.raises(ConfigError, match=r"no column 'obs/donors' is stored with these samples: there is no "):
        data.split((0.5, 0.5), groups="obs/donors")
    with pytest.raises(ConfigError, match=r"no coordinate 'donors' is stored with these samples"):
        data.split((0.5, 0.5), groups="donors")


def test_a_pattern_of_stores_is_split_by_year(tmp_path: Path) -> None:
    for year in (2000, 2001, 2002, 2003):
        days = np.arange(f"{year}-01-01", f"{year + 1}-01-01", dtype="M8[D]")
        store = numbered(tmp_path / f"{year}.zarr", len(days), 30)
        zarr.open_group(store).create_array(
            "time",
            data=np.arange(len(days)),
            dimension_names=("time",),
            attributes={"units": f"days since {year}-01-01"},
        )
    data = zarrfeed.open(str(tmp_path / "*.zarr"), sample_dim="time", variables=["x"])
    train, validation = data.window((0, 1)).split((0.75, 0.25), groups="time.year", by="contiguous", gap="10D")
    check_disjoint(train, validation)
    assert len(validation) == 364
    assert len(train) in range(1080, 1088)


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_share_a_part_and_a_run_goes_on(hourly: str, shuffle: bool) -> None:
    part, _ = opened(hourly).split((0.6, 0.4), groups="donor", stratify="label")
    options = (
        {"batch_size": 5, "shuffle": shuffle, "stop": "short"} if not shuffle else {"batch_size": 5, "shuffle": True}
    )
    options.pop("stop", None)
    wanted = sorted(samples_of(part).tolist())
    of_ranks = []
    for rank in range(3):
        dataset = ZarrIterableDataset(part, rank=rank, world_size=3, even="repeat", **options)
        of_ranks += [one for batch in dataset for one in batch["x"][:, 0].tolist()]
    assert sorted({*of_ranks}) == wanted
    dataset = ZarrIterableDataset(part, **options)
    every = [batch["x"][:, 0].tolist() for batch in dataset]
    first = ZarrIterableDataset(part, **options)
    iterator = iter(first)
    got = [next(iterator)["x"][:, 0].tolist() for _ in range(9)]
    resumed = ZarrIterableDataset(opened(hourly).split((0.6, 0.4), groups="donor", stratify="label")[0], **options)
    resumed.load_state_dict(first.state_dict())
    assert got + [batch["x"][:, 0].tolist() for batch in resumed] == every
    other = ZarrIterableDataset(opened(hourly).split((0.6, 0.4), groups="donor", seed=1)[0], **options)
    with pytest.raises(ConfigError):
        other.load_state_dict(first.state_dict())


def test_a_part_prints_compares_and_travels(hourly: str) -> None:
    options: dict[str, Any] = {"by": "contiguous", "groups": "time.year"}
    part = opened(hourly).split((0.6, 0.4), gap=np.timedelta64(1, "D"), **options)[1]
    assert str(part).endswith(".split((0.6, 0.4), by='contiguous', gap='1d', groups='time.year')[1]")
    sent = pickle.loads(pickle.dumps(part))
    assert sent == part
    assert sent == opened(hourly).split((0.6, 0.4), gap="1d", **options)[1]
    assert samples_of(sent).tolist() == samples_of(part).tolist()
    assert ZarrDataset(part)[0]["x"][0] == samples_of(part)[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "parts = None and folds = None: exactly one must be given"),
        ({"parts": (0.5, 0.5), "folds": 2}, "parts = .* and folds = 2: exactly one must be given"),
        ({"parts": (0.5, 0.5), "fold": 1}, "fold = 1 names one of several folds"),
        ({"folds": 1}, "folds = 1, must be"),
        ({"folds": 3, "fold": 3}, "fold = 3, must be"),
        ({"parts": (0.5, 0.5), "by": "hash"}, 'by = "hash" deals groups by a hash of their labels: give groups'),
        ({"parts": (0.5, 0.5), "by": "sample", "groups": "donor"}, "groups are dealt whole; leave by out"),
        ({"parts": (0.5, 0.5), "by": "contiguous", "stratify": "label"}, "leave by or stratify out"),
        ({"parts": (3000, 2844), "groups": "donor"}, "must be fractions with the sum 1"),
        ({"parts": [1 / 50] * 50, "groups": "donor"}, "40 groups cannot be split into 50 parts"),
        ({"parts": (0.5, 0.5), "groups": "donator"}, "no coordinate 'donator' .* did you mean 'donor'"),
        ({"parts": (0.5, 0.5), "groups": [1, 2, 3]}, "must have a value for each of the 5844 samples"),
        (
            {"parts": (0.5, 0.5), "stratify": "label.year"},
            "label.year: the coordinate has values of int64, must",
        ),
        ({"parts": (0.5, 0.5), "gap": "soon"}, "gap = 'soon', must be a number of rows, or a length of time"),
        ({"parts": (0.5, 0.5), "gap": "2 months"}, "gap = '2 months', must be a number of rows, or a length of time"),
        ({"parts": (0.5, 0.5), "gap": 0.5}, "gap = 0.5"),
    ],
)
def test_wrong_arguments_say_what_would_be_right(hourly: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(hourly).split(**arguments)


def test_rows_that_two_parts_read_are_found(hourly: str) -> None:
    data = opened(hourly).window((0, 1, 2))
    train, validation = data.split((0.8, 0.2), by="contiguous", gap=None)
    with pytest.raises(ConfigError, match=r"parts 0 and 1 both read 2 rows of the arrays: 46\d\d, 46\d\d"):
        check_disjoint(train, validation)
    check_disjoint(*data.split((0.8, 0.2), by="contiguous"))
    check_disjoint()
    with pytest.raises(ConfigError, match="part 1 was opened as"):
        check_disjoint(train, zarrfeed.open(np.arange(10)))
    with pytest.raises(ConfigError, match="part 0 is a list, must be a Data"):
        check_disjoint([train])  # type: ignore[arg-type]
