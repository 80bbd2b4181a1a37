"""`zarrfeed.join`: names, expressions, what pages say, and what is refused; tests/parity/test_joins.py has batches."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from zarrfeed import ConfigError, StoreReadError, UnsupportedError, ZarrDataset, ZarrIterableDataset

DAYS = np.arange("2020-01-01", "2020-01-11", dtype="M8[D]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write "a" of ten days, with several variables, and "b" of every second day from the third on."""
    for name, days in (("a", DAYS), ("b", DAYS[2::2])):
        group = zarr.open_group(tmp_path / f"{name}.zarr", mode="w")
        rows = (days - DAYS[0]).astype(int)
        group.create_array("x", data=rows[:, None] + 0.5, chunks=(4, 1), dimension_names=("time", "lat"))
        group.create_array("n", data=rows.astype("i4"), chunks=(3,), dimension_names=("time",))
        group.create_array("time", data=days.astype("M8[s]"), dimension_names=("time",))
        group.create_array("valid", data=days.astype("M8[s]") + np.timedelta64(1, "D"), dimension_names=("time",))
        group.create_array("mask", data=np.ones(1), dimension_names=("lat",))
    return tmp_path


def test_names_are_those_of_inputs_and_of_their_arrays(folder: Path) -> None:
    a, b = folder / "a.zarr", folder / "b.zarr"
    data = zarrfeed.join({"a": a, "b": b / "x", "c": {"n": b / "n"}}, on="time")
    assert [field.name for field in data.fields] == ["a/n", "a/valid", "a/x", "b", "c/n"]
    batch = ZarrDataset(data)[1]
    assert {name: float(batch[name]) for name in ("a/n", "a/x", "b", "c/n")} == {
        "a/n": 4,
        "a/x": 4.5,
        "b": 4.5,
        "c/n": 4,
    }
    with pytest.raises(ConfigError, match="join: two arrays would have the name 'a/n': give an input another name"):
        zarrfeed.join({"a": {"n": a / "n"}, "a/n": b / "n"})
    data = zarrfeed.join({"a": zarrfeed.open(a / "x", a / "n"), "b": zarrfeed.open(b / "x", {"late": b / "n"})})
    samples, targets = ZarrDataset(data)[[0]]
    assert (list(samples), list(targets)) == (["a", "b"], ["a", "b/late"])


def test_expressions_print_compare_and_pickle(folder: Path) -> None:
    paths = {name: str(folder / f"{name}.zarr" / "x") for name in "ab"}
    data = zarrfeed.join(paths, how="outer", missing="nan").window((0, 1))
    opened = ", ".join(f"{name!r}: zarrfeed.open({path!r})" for name, path in paths.items())
    assert repr(data) == f"zarrfeed.join({{{opened}}}, how='outer', missing='nan').window((0, 1))"
    assert data == zarrfeed.join(paths, how="outer", missing="nan").window((0, 1))
    assert data != zarrfeed.join(paths, how="outer", missing="nearest").window((0, 1))
    copy = pickle.loads(pickle.dumps(data))
    assert copy == data
    assert torch.equal(ZarrDataset(copy)[8]["a"], ZarrDataset(data)[8]["a"])
    given = zarrfeed.join({"a": np.zeros(10), "b": np.zeros(2)}, "day", coords={"a": DAYS, "b": DAYS[:2]})
    assert repr(given).endswith("on='day', coords={'a': ['2020-01-01', '2020-01-02', '2020-01-03', '2020-01-04', "
        "'2020-01-05', '2020-01-06', '2020-01-07', '2020-01-08', '2020-01-09', '2020-01-10'], "
        "'b': ['2020-01-01', '2020-01-02']})")  # fmt: skip


def test_pages_say_how_the_arrays_meet(folder: Path) -> None:
    sources: dict[str, Any] = {name: folder / f"{name}.zarr" / "x" for name in "ab"}
    page = str(ZarrIterableDataset(zarrfeed.join(sources)).explain())
    assert "6 of 10 samples left out: those of 'a' whose time 'b' lacks (" in page
    assert "joined: 4 of 4 samples have one of its 10 rows; 6 rows have no sample" in page
    data = zarrfeed.join(sources, how="outer", missing="nan")
    page = str(ZarrIterableDataset(data).explain())
    assert "left out" not in page
    assert page.count("joined: ") == 1, "the other one has the axis itself"
    assert "joined: 4 of 10 samples have one of its 4 rows" in page
    assert "joined: 4 of 10 samples have one of its 4 rows" in data._repr_html_()
    page = str(ZarrIterableDataset(zarrfeed.join(sources, how="outer").window({"a": (0, 1)})).explain())
    assert "6 of 10 samples left out: 'b' lacks their time" in page


def test_coordinates_of_other_names(folder: Path) -> None:
    a, b = folder / "a.zarr" / "n", folder / "b.zarr" / "n"
    data = zarrfeed.join({"a": a, "b": b}, on="valid")
    assert data.resolved.coordinate().name == "valid"
    assert ZarrDataset(data)[0] == {"a": 2, "b": 2}
    shifted = zarrfeed.join({"a": a, "b": b}, on="time", coords={"b": folder / "b.zarr" / "valid"})
    assert ZarrDataset(shifted)[0] == {"a": 3, "b": 2}
    assert len(shifted.sel(time="2020-01-04")) == 1
    alone = zarrfeed.join({"x": np.arange(3), "y": np.arange(3)}, coords={"x": [1, 2, 3], "y": [2, 3, 4]})
    assert len(alone) == 2


def test_integers_without_nan_are_cast_or_dropped(folder: Path) -> None:
    a, b = folder / "a.zarr" / "n", folder / "b.zarr" / "n"
    with pytest.raises(ConfigError, match="missing = 'nan': 'b' lacks rows, and is int32, which has no NaN: cast the"):
        zarrfeed.join({"a": a, "b": b}, how="outer", missing="nan")
    data = zarrfeed.join({"a": a, "b": zarrfeed.open(b).cast("float32")}, how="outer", missing="nan")
    assert torch.isnan(ZarrDataset(data)[1]["b"])
    dropped = zarrfeed.join({"a": a, "b": b}, how="outer").window({"a": (-1, 0), "b": 0})
    batch = ZarrDataset(dropped)[[0, 1, 2, 3]]
    assert batch["a"].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert batch["b"].tolist() == [2, 4, 6, 8]
    with pytest.raises(ConfigError, match="no sample is left: of all 4, their windows read rows that an array of the"):
        zarrfeed.join({"a": a, "b": b}, how="outer").window((-1, 0))
    for select in (slice(1, 3), [1, 2]):
        some = zarrfeed.join({"a": a, "b": b}, how="outer").select(select)
        assert ZarrDataset(some)[[0, 1]]["b"].tolist() == [4, 6]


def test_windows_leave_no_store_of_an_input(folder: Path) -> None:
    """Of a concatenation, windows stay in a store; and so they do after a join."""
    parts = [zarrfeed.open(folder / "a.zarr" / "x").select(rows) for rows in (slice(0, 5), slice(5, 10))]
    for index, part in enumerate(parts):
        group = zarr.open_group(folder / f"part{index}.zarr", mode="w")
        values = ZarrDataset(part)[np.arange(5)].numpy()
        group.create_array("x", data=values, chunks=(2, 1), dimension_names=("time", "lat"))
        group.create_array("time", data=DAYS[5 * index : 5 * index + 5].astype("M8[s]"), dimension_names=("time",))
    paths = [folder / f"part{index}.zarr" / "x" for index in range(2)]
    other = folder / "a.zarr" / "n"
    for contiguous, expected in ((True, range(1, 10)), (False, [1, 2, 3, 4, 6, 7, 8, 9])):
        both = zarrfeed.concat(paths, contiguous=contiguous)
        data = zarrfeed.join({"x": both, "n": other}).window((-1, 0))
        batch = ZarrDataset(data)[np.arange(len(data))]
        assert batch["n"][:, 1].tolist() == list(expected)
        assert torch.equal(batch["x"][:, :, 0], batch["n"] + 0.5)
    with pytest.raises(ConfigError, match="concatenate its inputs, and join the"):
        zarrfeed.concat([zarrfeed.join({"b": folder / "b.zarr" / "x", "n": other})] * 2)


def test_padded_windows_of_gaps(folder: Path) -> None:
    data = zarrfeed.join({name: folder / f"{name}.zarr" / "x" for name in "ab"}, how="outer", missing="nan")
    for pad, first in (("edge", [0.5, 0.5]), ("nan", [float("nan"), 0.5])):
        batch = ZarrDataset(data.window((-1, 0), pad=pad))[[0, 3]]
        np.testing.assert_equal(batch["a"][0, :, 0].numpy(), first)
        np.testing.assert_equal(batch["b"][:, :, 0].numpy(), [[np.nan, np.nan], [2.5, np.nan]])
    with pytest.raises(ConfigError, match=r"pad of samples\['b'\] = 0: rows that the join lacks are NaN"):
        data.window((-1, 0), pad=0)
    nearest = zarrfeed.join({name: folder / f"{name}.zarr" / "x" for name in "ab"}, how="outer", missing="nearest")
    assert ZarrDataset(nearest.window((-1, 0), pad=0))[0]["b"][:, 0].tolist() == [0, 2.5]


def test_time_features_static_arrays_and_statistics_of_joins(folder: Path) -> None:
    data = zarrfeed.join({name: folder / f"{name}.zarr" / "x" for name in "ab"}, how="outer", missing="nearest")
    both = data.time_features("day_of_year").static(z=np.ones(2))
    batch = ZarrDataset(both.window({"a": (0, 1)}))[[3, 5]]
    days = 2 * np.pi * np.array([3, 5]) / 366
    expected = np.stack([np.sin(days), np.cos(days)], axis=1)
    np.testing.assert_allclose(batch["time_features"].numpy(), expected, rtol=1e-6)
    assert batch["a"][:, :, 0].tolist() == [[3.5, 4.5], [5.5, 6.5]]
    assert batch["z"].shape == (2, 2)
    for joined, mean in ((data, 5.0), (zarrfeed.join({n: folder / f"{n}.zarr" / "x" for n in "ab"}), 5.5)):
        assert zarrfeed.stats(joined).fields["a"].mean.item() == pytest.approx(mean)
    each = zarrfeed.join({name: zarrfeed.open(folder / f"{name}.zarr" / "x").time_features("hour") for name in "ab"})
    assert [field.name for field in each.fields] == ["a", "a/time_features", "b", "b/time_features"]
    many = zarrfeed.concat([folder / "a.zarr" / "x", folder / "b.zarr" / "x"]).time_features("day_of_year")
    np.testing.assert_allclose(ZarrDataset(many)[10]["time_features"], ZarrDataset(many)[2]["time_features"])


def test_text_is_joined_where_its_rows_stay_as_they_are(folder: Path) -> None:
    words = zarr.open_group(folder / "b.zarr").create_array("word", shape=(4,), dtype=str, dimension_names=("time",))
    words[:] = np.array(list("abcd"), dtype=object)
    a, b = folder / "a.zarr" / "n", folder / "b.zarr" / "word"
    data = zarrfeed.join({"n": a, "word": b})
    assert ZarrDataset(data)[1] == {"n": 4, "word": "b"}
    with pytest.raises(
        UnsupportedError, match=r"samples\['word'\]: is str, which is joined only where its array has one"
    ):
        zarrfeed.join({"n": a, "word": b}, how="outer")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda a, _: ({"a": a},), "join: got .* must be a mapping of names to at least two"),
        (lambda a, b: ([a, b],), "join: got .* must be a mapping of names to at least two"),
        (lambda a, b: ({"a": a, "": b},), "join: has the key '', names must be text"),
        (lambda a, b: ({"a": a, 3: b},), "join: has the key 3, names must be text"),
        (lambda a, b: ({"a": a, "b": b}, 3), "on = 3, must be the name of a coordinate"),
        (lambda a, b: ({"a": a, "b": b}, "tme"), "no coordinate 'tme' is stored with these samples"),
        (lambda a, _: ({"a": a, "b": np.zeros(3)},), "join: 'b' has no names of dimensions: name the coordinate, on="),
        (lambda a, b: ({"a": a, "b": b / "nowhere"},), "join: 'b': .*nowhere: no Zarr array is there"),
        (lambda a, _: ({"a": a, "b": 3},), "join: 'b': .*got a int"),
        (lambda a, b: ({"a": a, "b": b.parent},), "join: 'b': .*they must be equal; give sample_dim='time'"),
        (lambda a, b: ({"a": a, "b": zarrfeed.open(b).window((0, 1))},), "join: 'b' has windows; make them of the res"),
        (
            lambda a, b: ({"a": a, "b": zarrfeed.open(b).static(z=np.ones(2))},),
            "join: 'b' has static arrays; add them to",
        ),
        (lambda a, b: ({"a": a, "b": zarrfeed.open(b, refresh="epoch")},), "join: 'b' is a store that grows"),
    ],
)
def test_inputs_that_are_refused(folder: Path, arguments: Any, message: str) -> None:
    with pytest.raises((ConfigError, StoreReadError), match=message):
        zarrfeed.join(*arguments(folder / "a.zarr" / "x", folder / "b.zarr" / "x"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "left"}, "how = 'left', must be one of 'inner', 'outer'"),
        ({"missing": "fill"}, "missing = 'fill', must be one of 'drop', 'nearest', 'nan'"),
        ({"missing": "nan"}, "missing = 'nan' is for how='outer': an inner join lacks no row"),
        ({"coords": DAYS}, "coords: got a ndarray, must be a mapping of names of inputs to coordinates"),
        ({"coords": {"c": DAYS}}, "coords names 'c', must be one of 'a', 'b'"),
        ({"coords": {"b": DAYS}}, r"coords of 'time': has the shape \(10,\), must have one value a sample, \(4,\)"),
        ({"coords": {"b": list("abcd")}}, r"coordinates must be of one kind: 'a' has datetime64\[s\], 'b' has <U1"),
        (
            {"coords": {"b": DAYS[[3, 2, 1, 0]]}},
            "join: 'b': coords of 'time' is not sorted: it has 2020-01-03T.* index 1",
        ),
        ({"coords": {"b": DAYS[[0, 1, 1, 2]]}}, "join: 'b': coords of 'time' has a value twice: 2020-01-02T.* index 1"),
        ({"coords": {"b": DAYS[:4] + 100}}, "join: no time is in all of the arrays: 'a' has 10 from 2020-01-01T"),
        ({"hwo": "outer"}, r"join\(\) has no argument 'hwo'; did you mean 'how'\?"),
    ],
)
def test_options_that_are_refused(folder: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        zarrfeed.join({name: folder / f"{name}.zarr" / "x" for name in "ab"}, **options)


def test_sample_dimensions_that_differ(folder: Path) -> None:
    group = zarr.open_group(folder / "c.zarr", mode="w")
    group.create_array("x", data=np.zeros(3), dimension_names=("date",))
    with pytest.raises(ConfigError, match="'a' has 'time', 'c' has 'date'; name the coordinate, on="):
        zarrfeed.join({"a": folder / "a.zarr" / "x", "c": folder / "c.zarr" / "x"})
