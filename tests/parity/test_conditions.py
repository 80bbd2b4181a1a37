"""`Data.where`, `data[...]` and `head`, against NumPy and pandas; every sample holds its own index in the array."""

from __future__ import annotations

import pickle
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from tests.support.numbered import numbered, samples_of
from zarrfeed import ConfigError, Data, ZarrIterableDataset
from zarrfeed.metadata.description import split_columns

N = 60
QUALITY = np.where(np.arange(N) % 11 == 0, np.nan, np.arange(N) * 7 % N / N)
SITE = np.array(["north", "south", "east"])[np.arange(N) % 3]
DAYS = np.arange(N)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = numbered(tmp_path_factory.mktemp("where") / "x.zarr", N, 7, quality=QUALITY, number=np.arange(N) // 4)
    group = zarr.open_group(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zarr.errors.UnstableSpecificationWarning)
        group.create_array("site", data=SITE, dimension_names=("time",))
    group.create_array("time", data=DAYS, dimension_names=("time",), attributes={"units": "days since 2015-01-01"})
    return path


@pytest.fixture
def data(store: str) -> Data:
    return zarrfeed.open(store, variables=["x"], sample_dim="time")


CONDITIONS: list[tuple[Callable[[Data], Data], np.ndarray]] = [
    (lambda data: data.where(quality=lambda q: q > 0.5), QUALITY > 0.5),
    (lambda data: data.where("quality > 0.5"), QUALITY > 0.5),
    (lambda data: data.where("quality != quality"), np.isnan(QUALITY)),
    (
        lambda data: data.where({"quality": np.isfinite}, number=lambda n: n == 3),
        np.isfinite(QUALITY) & (DAYS // 4 == 3),
    ),
    (lambda data: data.where("quality > 0.5 and site == 'north'"), (QUALITY > 0.5) & (SITE == "north")),
    (lambda data: data.where("site in ['north', 'east'] or number < 2"), (SITE != "south") | (DAYS // 4 < 2)),
    (lambda data: data.where("time >= '2015-02-01'"), DAYS >= 31),
    (lambda data: data.where("time.dt.month == 2 & ~(number == 9)"), (DAYS >= 31) & (DAYS < 59) & (DAYS // 4 != 9)),
    (lambda data: data.where({"time.month": lambda month: month == 2}), (DAYS >= 31) & (DAYS < 59)),
    (lambda data: data.where("site.str.startswith('n')"), SITE == "north"),
    (lambda data: data.where(site=lambda site: site == "east"), SITE == "east"),
]


@pytest.mark.parametrize(("choose", "mask"), CONDITIONS)
def test_samples_are_those_that_numpy_has(choose: Callable[[Data], Data], mask: np.ndarray, data: Data) -> None:
    chosen = choose(data)
    assert samples_of(chosen).tolist() == np.flatnonzero(mask).tolist()
    shuffled = ZarrIterableDataset(chosen, batch_size=5, shuffle=True, seed=3)
    assert sorted(row for batch in shuffled for row in batch["x"][:, 0].tolist()) == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(("choose", "mask"), CONDITIONS)
def test_conditions_are_of_the_samples_that_were_chosen(
    choose: Callable[[Data], Data], mask: np.ndarray, data: Data
) -> None:
    rows = np.arange(1, 59, 2)
    assert samples_of(choose(data[1:59:2])).tolist() == rows[mask[rows]].tolist()
    pairs = ZarrIterableDataset(choose(data).window((0, 1), rows="all"), batch_size=7)
    found = np.concatenate([batch["x"][:, :, 0].numpy() for batch in pairs])
    assert found.tolist() == [[row, row + 1] for row in np.flatnonzero(mask[:-1])]


@given(st.data())
@examples(60)
def test_any_conditions_in_a_row_are_one_mask(drawn: st.DataObject) -> None:
    rng = np.random.default_rng(drawn.draw(st.integers(0, 1 << 30)))
    n = drawn.draw(st.integers(1, 40))
    columns = {name: rng.integers(0, 3, n) for name in "abc"}
    group = zarr.create_group({})
    group.create_array("x", data=np.arange(n), chunks=(drawn.draw(st.integers(1, n)),), dimension_names=("time",))
    for name, values in columns.items():
        group.create_array(name, data=values, dimension_names=("time",))
    data, mask = zarrfeed.open(group, variables=["x"], sample_dim="time"), np.ones(n, dtype=bool)
    for name in drawn.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3)):
        least = drawn.draw(st.integers(0, 2))
        mask &= columns[name] >= least
        as_text = drawn.draw(st.booleans())

        def meets(values: np.ndarray, least: int = least) -> np.ndarray:
            return np.asarray(values >= least)

        if not mask.any():
            with pytest.raises(ConfigError, match=r"where: no sample of .* meets"):
                data.where(f"{name} >= {least}") if as_text else data.where({name: meets})
            return
        data = data.where(f"{name} >= {least}") if as_text else data.where({name: meets})
    assert samples_of(data).tolist() == np.flatnonzero(mask).tolist()


def test_ranks_share_them_out(data: Data) -> None:
    chosen = data.where("quality > 0.5")
    found = []
    for rank in range(3):
        share = ZarrIterableDataset(chosen, batch_size=2, shuffle=True, seed=1, rank=rank, world_size=3, even="off")
        found += [row for batch in share for row in batch["x"][:, 0].tolist()]
    assert sorted(found) == np.flatnonzero(QUALITY > 0.5).tolist()


def test_columns_of_several_stores_are_one(store: str) -> None:
    both = zarrfeed.open([store, store], variables=["x"], sample_dim="time").where("quality > 0.5 and site == 'east'")
    expected = np.flatnonzero((QUALITY > 0.5) & (SITE == "east")).tolist()
    assert samples_of(both).tolist() == [*expected, *expected]


def test_columns_of_a_table_of_anndata(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    pandas = pytest.importorskip("pandas")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pandas.option_context("future.infer_string", False):  # anndata 0.12 does not write the texts of pandas 3
            cells = anndata.AnnData(np.arange(N, dtype="f4")[:, None] + np.zeros(3, "f4"))
            cells.obs["n_genes"] = np.arange(N) * 7 % N
            cells.obs["batch"] = pandas.Categorical(SITE)
            cells.write_zarr(tmp_path / "cells.zarr")
        wanted = cells.obs.query("n_genes > 20 and batch == 'north'").index.astype(int).tolist()
        data = zarrfeed.open(tmp_path / "cells.zarr", variables=["X"])
        by_text = data.where("obs", "n_genes > 20 and batch == 'north'")
        by_function = data.where({"obs/n_genes": lambda n: n > 20, "obs/batch": lambda batch: batch == "north"})
    assert str(by_text).endswith(""".where('obs', "n_genes > 20 and batch == 'north'")""")
    for chosen in (by_text, by_function):
        assert [
            row for batch in ZarrIterableDataset(chosen, batch_size=7) for row in batch["X"][:, 0].tolist()
        ] == wanted


def test_descriptions_compare_by_the_samples_that_meet_the_conditions(data: Data) -> None:
    half = data.where(quality=lambda q: q > 0.5)
    assert half == data.where(quality=lambda q: q > 0.5)
    assert hash(half) == hash(data.where(quality=lambda q: q > 0.5))
    assert half != data.where(quality=lambda q: q > 0.4)
    assert pickle.loads(pickle.dumps(half)) == half
    assert str(half).endswith(".where(quality=<lambda>)")
    assert str(data.where("quality > 0.5")).endswith(".where('quality > 0.5')")
    assert str(data.where({"time.month": np.isfinite})).endswith(".where({'time.month': isfinite})")


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda data: data.where(), "names nothing, must name a column, such as where(quality="),
        (
            lambda data: data.where(quality=0.5),
            "quality = 0.5, must be a function of its values, such as",
        ),
        (lambda data: data.where({"site": "north"}), "sel(site=...) takes labels"),
        (lambda data: data.where("quality > 0.5", site="north"), "site = 'north', must be a function of its values"),
        (lambda data: data.where({"quality": np.isnan}, quality=np.isnan), "'quality' is named twice"),
        (lambda data: data.where(lambda q: q), "takes text, a table and text, or a mapping"),
        (lambda data: data.where(np.arange(len(data)) > 3), "select() takes masks"),
        (lambda data: data.where("quality >"), "'quality >': invalid syntax"),
        (lambda data: data.where("quality = 1"), "invalid syntax"),
        (
            lambda data: data.where("quality"),
            "'quality' gives an array of shape (60,) and dtype float64, must",
        ),
        (lambda data: data.where("1 > 0"), "names no column"),
        (lambda data: data.where("site > 5"), "site > 5"),
        (lambda data: data.where("qality > 0.5"), "'qality'"),
        (lambda data: data.where(qality=np.isnan), "'qality'"),
        (lambda data: data.where(quality=np.nansum), "the condition on quality gives an array of shape ()"),
        (lambda data: data.where("quality > 7"), "no sample of 60 meets 'quality > 7'"),
        (lambda data: data.where(quality=lambda q: q > 7), "no sample of 60 meets the condition on quality"),
        (lambda data: data.window((1,)).where("quality > 0.5"), "where() follows window(), must precede it"),
        (lambda data: data[3], "data[3]: a Data describes samples; ZarrDataset(data)[3] reads one"),
        (lambda data: data["x"], "arrays are named by open(variables=['x'])"),
        (lambda data: data[[1.5]], "must be a slice"),
        (lambda data: data.head(0), "n = 0"),
    ],
)
def test_wrong_guesses_get_an_answer(refused: Callable[[Data], Data], message: str, data: Data) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        refused(data)


def test_iterating_yields_the_samples_in_order_as_often_as_asked(data: Data) -> None:
    expected = np.flatnonzero(QUALITY > 0.5)[:5]
    chosen = data.where("quality > 0.5").head(5)
    with ZarrIterableDataset(chosen, rank=0, world_size=1) as dataset:
        samples = list(dataset)
    for _ in range(2):
        assert [str(one) for one in chosen] == [str(one) for one in samples]
    assert len(samples) == len(expected)
    assert [int(one) for one in zarrfeed.open(np.arange(N))[expected]] == expected.tolist()
    first = iter(zarrfeed.open(np.arange(N)).select([5, 3, 3], keep_order=True))
    assert [int(next(first)), int(next(first))] == [5, 3]  # and the rest is never read


def test_text_needs_pandas_and_a_function_does_not(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="needs pandas: pip install pandas; or give a function"):
        data.where("quality > 0.5")
    assert len(data.where(quality=lambda q: q > 0.5)) == np.count_nonzero(QUALITY > 0.5)


def test_a_store_that_grows_is_refused(store: str) -> None:
    growing = zarrfeed.open(store, variables=["x"], sample_dim="time", refresh="epoch")
    with pytest.raises(ConfigError, match="refresh='epoch'"):
        growing.where("quality > 0.5")


def test_a_column_is_read_once_for_all_conditions(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    read = split_columns.chosen_values
    asked: list[Any] = []

    def counting(resolved: Any, argument: str, column: Any) -> Any:
        asked.append(column)
        return read(resolved, argument, column)

    monkeypatch.setattr("zarrfeed.metadata.face.conditions.chosen_values", counting)
    data.where("quality > 0.2 and quality < 0.9 and number > 1")
    assert sorted(asked) == ["number", "quality"]


@pytest.mark.parametrize(
    "chosen", [slice(10, 20), slice(-5, None), slice(3, 500, 7), [4, 9, -1], np.arange(N) % 7 == 0]
)
def test_brackets_choose_samples_in_the_order_of_the_array(chosen: Any, data: Data) -> None:
    assert samples_of(data[chosen]).tolist() == np.sort(np.arange(N)[chosen]).tolist()
    assert data[chosen] == data.select(chosen)


def test_the_head_is_the_first_samples(data: Data) -> None:
    assert samples_of(data.head()).tolist() == [0, 1, 2, 3, 4]
    assert samples_of(data.head(500)).tolist() == list(range(N))


@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day"])
@pytest.mark.parametrize(
    "text",
    [
        "time.dt.month in [6, 7, 8]",
        "time.month >= 6 and time.month <= 8",
        "6 <= time.dt.month <= 8",
        "time.dt.month.isin([6, 7, 8])",
        "time.dt.season == 'JJA'",
        "(time.season == 'JJA') & (time.year > 2000) | (time.dt.season == 'JJA') & ~(time.dt.year > 2000)",
    ],
)
def test_parts_of_dates_are_those_of_xarray(text: str, calendar: str, tmp_path: Path) -> None:
    """Dates of calendars that NumPy lacks had no parts, and `time.month`, as xarray has it, was refused."""
    if calendar != "standard":
        pytest.importorskip("cftime")
    by_cftime = calendar != "standard"
    times = xarray.date_range("2000-01-15", periods=300, freq="5D", calendar=calendar, use_cftime=by_cftime)
    dataset = xarray.Dataset({"x": (("time",), np.arange(300))}, {"time": times})
    dataset.to_zarr(tmp_path / "x.zarr", consolidated=False)
    data = zarrfeed.open(tmp_path / "x.zarr", sample_dim="time")
    expected = np.flatnonzero(dataset.time.dt.season == "JJA")
    assert samples_of(data.where(text)).tolist() == expected.tolist()
    with pytest.raises(ConfigError, match="nothing"):
        data.where("time.dt.nothing == 1")


def test_a_missing_date_has_no_parts(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("x", data=np.arange(40), dimension_names=("row",))
    days = np.arange(40) * 10
    days[::3] = -1
    attributes: dict[str, Any] = {"units": "days since 2001-01-01", "_FillValue": -1}
    group.create_array("seen", data=days, dimension_names=("row",), attributes=attributes)
    seen = xarray.DataArray(
        np.where(days < 0, np.datetime64("NaT"), np.datetime64("2001-01-01", "ns") + days * 86400 * 10**9)
    )
    data = zarrfeed.open(tmp_path / "x.zarr", variables=["x"], sample_dim="row")
    for month in range(1, 13):
        expected = np.flatnonzero(seen.dt.month == month).tolist()
        assert samples_of(data.where(f"seen.month == {month}")).tolist() == expected
        assert samples_of(data.where(f"seen.dt.month == {month}")).tolist() == expected
    assert samples_of(data.where("seen.season == 'JJA'")).tolist() == np.flatnonzero(seen.dt.season == "JJA").tolist()


def test_an_error_in_a_condition_says_what_it_got(store: str) -> None:
    with pytest.raises(AttributeError) as caught:
        zarrfeed.open(store, variables=["x"]).where(time=lambda times: times.month == 7)  # type: ignore[attr-defined]
    assert caught.value.__notes__ == [
        "time is a NumPy array of shape (60,) and dtype datetime64[s]; parts of dates are for text: 'time.month == 7'"
    ]
