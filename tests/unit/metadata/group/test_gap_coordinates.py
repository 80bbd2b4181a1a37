"""The coordinate in which gaps are found: when it is read, and what becomes of one that cannot be used."""

from __future__ import annotations

import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
import zarr.errors
from zarr.storage import LocalStore

import zarrfeed
from zarrfeed.base.errors import ConfigError, StoreReadError, UnsupportedError, ZarrfeedError

#: One of 29 windows of two rows spans a gap.
HOURS = np.array([*range(4), *range(9, 35)])


def make(path: Path, *, coordinate: Any = HOURS, dims: tuple[str, ...] | None = ("time",), units: str = "") -> Path:
    group = zarr.open_group(path, mode="w")
    group.create_array("x", data=np.arange(30), chunks=(4,), dimension_names=dims)
    if coordinate is not None:
        names = ("time", "other")[: np.ndim(coordinate)]
        array = group.create_array("time", data=np.asarray(coordinate), dimension_names=names)
        if units:
            array.attrs["units"] = units
    return path


class Counting(LocalStore):
    """A store that counts what is read of coordinates."""

    reads: list[str] = []  # noqa: RUF012 - of all copies

    async def get(self, key: str, *arguments: Any, **named: Any) -> Any:
        if "time" in key:
            self.reads.append(key)
        return await super().get(key, *arguments, **named)


def test_a_coordinate_is_read_once_and_only_for_windows_of_two_rows(tmp_path: Path) -> None:
    make(tmp_path / "x.zarr")
    data = zarrfeed.open(zarr.open_group(Counting(tmp_path / "x.zarr"), mode="r"), variables=["x"])
    Counting.reads.clear()
    for one in (data.window({"x": 0}), data.window({"x": (0,)}), data.window({"x": (0, 1)}, gaps="ignore")):
        assert len(one) > 0
    assert Counting.reads == []
    windowed = data.window({"x": (0, 1)})
    assert Counting.reads != []
    Counting.reads.clear()
    assert len(windowed) == len(data.window({"x": 1})) == len(windowed.with_offsets({"x": (0, 1)})) == 28
    assert len(data.select(slice(2, None)).window({"x": (0, 1)})) == 26
    assert Counting.reads == []


def test_nothing_is_looked_for_where_the_dimension_has_no_name_or_no_coordinate(tmp_path: Path) -> None:
    for number, (dims, coordinate) in enumerate([(None, HOURS), (("time",), None), (("time",), np.zeros((30, 2)))]):
        data = zarrfeed.open(make(tmp_path / f"{number}.zarr", dims=dims, coordinate=coordinate), variables=["x"])
        assert len(data.window({"x": (0, 1)})) == 29, number
        with pytest.raises(ConfigError, match="need a coordinate along the sample axis"):
            data.window({"x": (0, 1)}, gaps="error")
        with pytest.raises(ConfigError, match="need a coordinate along the sample axis"):
            data.window({"x": (0, 1)}, step="1h")
    assert len(zarrfeed.open(np.arange(30)).window((0, 1))) == 29


@pytest.mark.parametrize(
    ("coordinate", "units", "why"),
    [
        (np.arange(29), "", r"has the shape \(29,\)"),
        (np.arange(31), "", r"has the shape \(31,\)"),
        (HOURS, "fortnights since 2000-01-01", "has the units .*, must have"),
        (HOURS.astype("c8"), "", "dtype complex64"),
    ],
)
def test_what_is_no_coordinate_of_the_samples_warns_and_is_an_error_where_gaps_are_asked_for(
    coordinate: Any, units: str, why: str, tmp_path: Path
) -> None:
    data = zarrfeed.open(make(tmp_path / "x.zarr", coordinate=coordinate, units=units), variables=["x"])
    with pytest.warns(UserWarning, match=f"windows may span gaps, which cannot be looked for: .*{why}"):
        assert len(data.window({"x": (0, 1)})) == 29
    with pytest.raises(ZarrfeedError, match=f"gaps: .*{why}.*pass gaps='ignore'"):
        data.window({"x": (0, 1)}, gaps="error")
    assert len(data.window({"x": (0, 1)}, gaps="ignore")) == 29


def test_a_coordinate_that_cannot_be_read_is_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    data = zarrfeed.open(make(tmp_path / "x.zarr"), variables=["x"])
    chunk = next(path for path in (tmp_path / "x.zarr" / "time").rglob("*") if path.name == "0")
    chunk.write_bytes(chunk.read_bytes()[:5])
    with pytest.raises(ZarrfeedError, match=r"time.*It was read to find gaps; pass gaps='ignore'"):
        data.window({"x": (0, 1)})
    shutil.rmtree(tmp_path / "x.zarr" / "time" / "c")
    with pytest.raises(StoreReadError, match=r"chunk 0 is missing.*pass gaps='ignore'"):
        data.window({"x": (0, 1)})
    assert len(data.window({"x": (0, 1)}, gaps="ignore")) == 29


def test_times_of_a_calendar_that_needs_cftime_have_gaps_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        path = make(tmp_path / f"{number}.zarr", coordinate=HOURS + 40 * number, units="hours since 2000-02-30")
        zarr.open_array(path / "time").attrs["calendar"] = "360_day"
    monkeypatch.setitem(sys.modules, "cftime", None)
    data = zarrfeed.open(tmp_path / "0.zarr", variables=["x"])
    assert len(data.window({"x": (0, 1)})) == 28
    with pytest.raises(UnsupportedError, match="needs cftime"):
        data.window({"x": (0, 1)}, step="1h")
    assert len(zarrfeed.open(str(tmp_path / "*.zarr"), variables=["x"]).window({"x": (0, 1)})) == 56
    monkeypatch.undo()
    pytest.importorskip("cftime")
    assert len(data.window({"x": (0, 1)}, step="1h")) == 28
    assert len(data.window({"x": (0, 1)})) == 28


def test_text_has_no_gaps(tmp_path: Path) -> None:
    with warnings.catch_warnings(category=zarr.errors.UnstableSpecificationWarning, action="ignore"):
        path = make(tmp_path / "x.zarr", coordinate=np.array([f"{30 - i:02}" for i in range(30)]))
    data = zarrfeed.open(path, variables=["x"])
    assert len(data.window({"x": (0, 1)})) == len(data.window({"x": (0, 1)}, gaps="error")) == 29
    with pytest.raises(ConfigError, match="values that have no differences"):
        data.window({"x": (0, 1)}, step="6h")


def test_stores_of_which_some_have_a_coordinate_have_gaps_there(tmp_path: Path) -> None:
    paths = [make(tmp_path / "0.zarr"), make(tmp_path / "1.zarr", coordinate=None), make(tmp_path / "2.zarr")]
    data = zarrfeed.concat([zarrfeed.open(path, variables=["x"]) for path in paths])
    assert len(data.window({"x": (0, 1)})) == 28 + 29 + 28


def test_stores_whose_coordinates_are_of_several_kinds_have_gaps_each(tmp_path: Path) -> None:
    paths = [make(tmp_path / "0.zarr"), make(tmp_path / "1.zarr", units="days since 2000-01-01")]
    data = zarrfeed.concat([zarrfeed.open(path, variables=["x"]) for path in paths])
    assert len(data.window({"x": (0, 1)})) == 28 + 28


def test_an_xarray_has_the_gaps_of_its_index(tmp_path: Path) -> None:
    make(tmp_path / "x.zarr", coordinate=None)
    times = np.datetime64("2000-01-01", "ns") + HOURS * np.timedelta64(3600, "s")
    opened = xr.open_zarr(tmp_path / "x.zarr", consolidated=False, chunks=None)
    assert len(zarrfeed.from_xarray(opened).window({"x": (0, 1)})) == 29
    assert len(zarrfeed.from_xarray(opened.assign_coords(time=times)).window({"x": (0, 1)})) == 28
