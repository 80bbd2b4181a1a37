"""Windows over coordinates with gaps against a plain statement: which rows are neighbours, and which samples remain."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
import zarr

import zarrfeed
from tests.support.examples import tries
from zarrfeed import Data, ZarrDataset, ZarrIterableDataset
from zarrfeed.base.errors import ConfigError

Int64 = npt.NDArray[np.int64]

OFFSETS: tuple[Any, ...] = (
    (0, 1),
    (-2, -1, 0, 1),
    (0, 3),
    (-4, -2),
    (1,),
    2,
    (1, 0, -1),
    (5, 6),
)


def values_with_gaps(rng: np.random.Generator, kind: str, count: int) -> npt.NDArray[Any]:
    """Return a coordinate most of whose steps are 1 of its units, with some longer ones; "down" descends."""
    steps = np.where(rng.random(count) < 0.04, rng.integers(2, 9, count), 1)
    steps[: count // 2] = np.where(rng.random(count // 2) < 0.04, 30, 1)
    ticks = np.cumsum(steps)
    if kind == "hours":
        return np.datetime64("2000-01-01", "s") + ticks * np.timedelta64(3600, "s")
    if kind == "down":
        return -6 * ticks
    return ticks * 0.1 if kind == "floats" else ticks * 7


def breaks_of(values: npt.NDArray[Any]) -> set[int]:
    """Return the rows that are no neighbours of the row before them, by the plain rule."""
    steps = np.diff(values).astype("f8")
    steps = -steps if (steps < 0).sum() > (steps > 0).sum() else steps
    rounded = np.round(steps, 9)
    distinct, counts = np.unique(rounded, return_counts=True)
    common = distinct[counts.argmax()]
    return {int(row) + 1 for row in np.flatnonzero(rounded > 1.5 * common)}


def reach_of(offsets: Any) -> tuple[int, int]:
    listed = [offsets] if isinstance(offsets, int) else list(offsets)
    return max(0, -min(listed)), max(0, max(listed))


def spans(sample: int, offsets: Any, breaks: set[int]) -> bool:
    before, after = reach_of(offsets)
    return any(row in breaks for row in range(sample - before + 1, sample + after + 1))


def write(path: Path, values: npt.NDArray[Any], chunk: int = 7) -> Path:
    """Write an array whose items are their own indices, and its coordinate, as xarray does."""
    array = xr.DataArray(np.arange(len(values)), dims=("time",), coords={"time": values}, name="x")
    array.to_dataset().to_zarr(path, mode="w", encoding={"x": {"chunks": (chunk,)}}, consolidated=False)
    return path


def ordered(data: Data) -> tuple[npt.NDArray[Any], list[int]]:
    """Return all samples in order, and their indices in the array."""
    with ZarrIterableDataset(data, batch_size=len(data), return_index=True, rank=0, world_size=1) as dataset:
        batches = [(batch["x"] if isinstance(batch, dict) else batch, index) for batch, index in dataset]
    return np.concatenate([one.numpy() for one, _ in batches]), [int(i) for _, index in batches for i in index]


@pytest.fixture(autouse=True)
def _many_are_lost() -> Any:
    """Short coordinates lose more than 5 % of their samples, which is no subject here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*samples are left out: their windows span")
        yield


@pytest.mark.parametrize("kind", ["hours", "down", "floats", "numbers"])
def test_a_window_spans_no_gap_whatever_the_offsets_segments_and_selection(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng([ord(letter) for letter in kind])
    for number in range(tries(5, 12)):
        count = int(rng.integers(60, 200))
        values = values_with_gaps(rng, kind, count)
        data = zarrfeed.open(write(tmp_path / f"{number}.zarr", values), variables=["x"])
        offsets = OFFSETS[int(rng.integers(len(OFFSETS)))]
        low, high = sorted(rng.choice(np.arange(5, count), 2, replace=False).tolist())
        high = max(high, low + 30)
        first, selected = 0, values
        if rng.random() < 0.5:  # gaps are those of what is selected
            data, first, selected = data.select(slice(low, high)), low, values[low:high]
        ends = None
        if rng.random() < 0.5:
            ends = np.unique([*rng.choice(np.arange(1, count), 4, replace=False).tolist(), count])
        borders = set() if ends is None else set(ends.tolist())
        breaks = {first + row for row in breaks_of(selected)} - borders
        before, after = reach_of(offsets)
        wanted = [
            sample
            for sample in range(first + before, first + len(selected) - after)
            if not spans(sample, offsets, breaks | borders)
        ]
        case = (kind, number, offsets, first, len(selected), None if ends is None else ends.tolist())
        got, index = ordered(data.window({"x": offsets}, segment_ends=ends))
        assert index == wanted, case
        rows = np.array(wanted)[:, None] + np.array([offsets] if isinstance(offsets, int) else offsets)
        assert np.array_equal(got.reshape(rows.shape), rows), case
        got, index = ordered(data.window({"x": offsets}, segment_ends=ends, gaps="ignore"))
        assert index == [
            sample
            for sample in range(first + before, first + len(selected) - after)
            if not spans(sample, offsets, borders)
        ], case


def test_a_stride_begins_anew_behind_a_gap_and_holds_for_other_offsets(tmp_path: Path) -> None:
    data = zarrfeed.open(write(tmp_path / "x.zarr", np.r_[0:10, 20:33]), sample_dim="time", variables=["x"])
    strided = data.window((0, 1, 2), stride=3)
    for described, wanted in (
        (strided, [0, 3, 6, 10, 13, 16, 19]),
        (strided.with_offsets((0, 1)), [0, 3, 6, 10, 13, 16, 19]),
        (data.window((0, 1, 2), stride=3, pad="edge"), [0, 3, 6, 9, 10, 13, 16, 19, 22]),
        (data.window((0, 1), stride=4, gaps="ignore"), [0, 4, 8, 12, 16, 20]),
        (data.window({"x": range(3)}, segment_ends=[4, 23], stride=3), [0, 4, 7, 10, 13, 16, 19]),
    ):
        windows, samples = ordered(described)
        assert samples == wanted
        assert windows[:, 0].tolist() == samples


def test_a_padded_window_is_padded_at_a_gap_as_at_the_end_of_the_array(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for number in range(8):
        count = int(rng.integers(50, 120))
        values = values_with_gaps(rng, "hours", count)
        data = zarrfeed.open(write(tmp_path / f"{number}.zarr", values), variables=["x"])
        low, high = (0, count) if number % 2 else (5, count - 5)
        data = data.select(slice(low, high))
        runs = [low, *sorted(low + row for row in breaks_of(values[low:high])), high]
        offsets = np.array([-3, -1, 0, 2])
        sample = np.arange(low, high)
        run = np.searchsorted(runs, sample, side="right")
        begin, end = np.array(runs)[run - 1], np.array(runs)[run]
        rows = sample[:, None] + offsets
        outside = (rows < begin[:, None]) | (rows >= end[:, None])
        edge = np.clip(rows, begin[:, None], end[:, None] - 1)
        asked = {"x": tuple(offsets.tolist())}
        got, index = ordered(data.window(asked, pad="edge"))
        assert (index, got.tolist()) == (sample.tolist(), edge.tolist()), number
        got, index = ordered(data.window(asked, pad=-1))
        assert got.tolist() == np.where(outside, -1, edge).tolist(), number
        masked = ZarrDataset(data.window(asked, pad="edge", mask=True))[list(range(len(sample)))]
        assert masked["x_is_pad"].numpy().tolist() == outside.tolist(), number


def test_of_many_stores_each_has_gaps_of_its_own(tmp_path: Path) -> None:
    hours = np.datetime64("2000-01-01", "s") + np.arange(40) * np.timedelta64(3600, "s")
    stores = [hours[[*range(10), *range(14, 40)]], hours[:1], hours[::6], hours[::-1], hours[[0, 1, 2, 9]]]
    paths = [write(tmp_path / f"{number}.zarr", values, chunk=5) for number, values in enumerate(stores)]
    first = np.cumsum([0, *map(len, stores)])
    inside = {
        int(begin) + row
        for begin, values in zip(first, stores, strict=False)
        for row in (breaks_of(values) if len(values) > 1 else ())
    }
    between = set(first.tolist())
    for contiguous in (False, True):
        data = zarrfeed.concat([zarrfeed.open(path, variables=["x"]) for path in paths], contiguous=contiguous)
        for offsets in ((0, 1), (-1, 2)):
            before, after = reach_of(offsets)
            breaks = inside if contiguous else inside | between
            wanted = [i for i in range(before, int(first[-1]) - after) if not spans(i, offsets, breaks)]
            assert ordered(data.window({"x": offsets}))[1] == wanted, (contiguous, offsets)
    listed = zarrfeed.open(paths, variables=["x"]).window({"x": (0, 1)})
    assert ordered(listed)[1] == [i for i in range(int(first[-1]) - 1) if not spans(i, (0, 1), inside | between)]


def test_rows_that_no_window_may_read_make_no_gaps_and_no_errors(tmp_path: Path) -> None:
    values = np.array([0, 1, 2, 2, 3, 4, 5, 1, 6, 7, 8, 12, 13, 14])
    data = zarrfeed.open(write(tmp_path / "x.zarr", values), variables=["x"])
    with pytest.raises(ConfigError, match=r"time: has a value twice, or goes back, 2 times within windows: 2 to 2 "):
        data.window({"x": (0, 1)})
    with pytest.raises(ConfigError, match=r"goes back.*5 to 1 \(samples 6 and 7\)"):
        data.window({"x": (0, 1)}, gaps="error")
    assert len(data.window({"x": (0, 1)}, gaps="ignore")) == 13
    once = np.ones(len(values), dtype=bool)
    once[[3, 7]] = False
    kept = data.select(once).window({"x": (0, 1)}, rows="selected")
    assert ordered(kept)[1] == [0, 1, 4, 5, 8, 9, 11, 12]
    assert ordered(data.select(slice(8, None)).window({"x": (0, 1)}))[1] == [8, 9, 11, 12]
    assert ordered(data.window({"x": (0, 1)}, rows=slice(8, None)))[1] == [8, 9, 11, 12]
    assert ordered(data.window({"x": (0, 1)}, segment_ends=[3, 7, 14]))[1] == [0, 1, 3, 4, 5, 8, 9, 11, 12]


@pytest.mark.parametrize(
    ("values", "step", "wanted"),
    [
        (["2000-01-01", "2000-02-01", "2000-03-01", "2000-05-01", "2000-06-15"], "month", [0, 1, 3]),
        (["2000-01-31", "2000-02-29", "2000-03-31", "2001-03-31"], np.timedelta64(1, "M"), [0, 1]),
        (["2000-01-01", "2001-01-01", "2004-01-01", "2005-01-01"], "year", [0, 2]),
        (["2000-01-01", "2000-04-01", "2000-07-01", "2000-08-01"], "3 months", [0, 1]),
        (["2000-01-01T00", "2000-01-01T06", "2000-01-01T12", "2000-01-01T15"], "6h", [0, 1]),
        (["2000-01-02", "2000-01-01", "1999-12-31", "1999-12-29"], "1 day", [0, 1]),
    ],
)
def test_a_step_explains_the_difference_that_it_names_and_no_other(
    values: list[str], step: Any, wanted: list[int], tmp_path: Path
) -> None:
    times = np.array(values, dtype="M8[s]")
    data = zarrfeed.open(write(tmp_path / "x.zarr", times), variables=["x"])
    assert ordered(data.window({"x": (0, 1)}, step=step))[1] == wanted


def test_joined_samples_are_neighbours_only_where_their_times_are(tmp_path: Path) -> None:
    hours = np.datetime64("2000-01-01", "s") + np.arange(60) * np.timedelta64(3600, "s")
    kept = {"a": np.delete(np.arange(60), [20, 21]), "b": np.delete(np.arange(60), [40])}
    paths = {name: write(tmp_path / f"{name}.zarr", hours[rows]) for name, rows in kept.items()}
    inputs = {name: zarrfeed.open(path / "x") for name, path in paths.items()}
    common = np.intersect1d(kept["a"], kept["b"])
    inner = zarrfeed.join(inputs, on="time").window((-1, 0))
    assert len(inner) == np.count_nonzero(np.diff(common) == 1)
    assert len(zarrfeed.join(inputs, on="time").window((-1, 0), gaps="ignore")) == len(common) - 1
    outer = zarrfeed.join(inputs, on="time", how="outer", missing="nearest").window((-1, 0))
    assert len(outer) == 59
    dropped = zarrfeed.join(inputs, on="time", how="outer").window((-1, 0))
    assert len(dropped) == np.count_nonzero(np.diff(common) == 1)


def test_ranks_workers_and_a_resumed_epoch_deliver_each_remaining_sample_once(tmp_path: Path) -> None:
    values = values_with_gaps(np.random.default_rng(8), "hours", 300)
    data = zarrfeed.open(write(tmp_path / "x.zarr", values), variables=["x"]).window({"x": (-1, 0, 1)})
    wanted = ordered(data)[1]
    assert len(wanted) < 298

    def dataset(rank: int = 0, world_size: int = 1) -> ZarrIterableDataset:
        return ZarrIterableDataset(
            data, batch_size=8, shuffle=True, seed=2, rank=rank, world_size=world_size, even="off", return_index=True
        )

    seen: list[int] = []
    for rank in range(3):
        with dataset(rank, 3) as one:
            seen += [int(i) for _, index in zarrfeed.ZarrDataLoader(one, num_workers=2 * (rank == 0)) for i in index]
    assert sorted(seen) == wanted
    with dataset() as one, dataset() as resumed:
        batches = iter(one)
        begun = [next(batches)[1].tolist() for _ in range(5)]
        resumed.load_state_dict(one.state_dict())
        rest = [index.tolist() for _, index in resumed]
    assert sorted(i for index in begun + rest for i in index) == wanted


def test_a_state_from_before_goes_on_with_gaps_ignored_and_is_refused_otherwise(tmp_path: Path) -> None:
    values = values_with_gaps(np.random.default_rng(9), "hours", 80)
    base = zarrfeed.open(write(tmp_path / "x.zarr", values), variables=["x"])
    cases: dict[str, Any] = {
        "windows": lambda gaps: base.window({"x": (0, 1)}, gaps=gaps),
        "padded": lambda gaps: base.window({"x": (0, 1)}, gaps=gaps, pad="edge"),
        "part": lambda gaps: base.window({"x": (0, 1)}, gaps=gaps).split((0.5, 0.5), by="contiguous")[0],
        "mixture": lambda gaps: zarrfeed.mix([base.window({"x": (0, 1)}, gaps=gaps)] * 2, [1, 2]),
        "other offsets": lambda gaps: base.window({"x": 0}, gaps=gaps).with_offsets({"x": (0, 1)}),
    }
    for name, make in cases.items():
        for shuffle in (False, True):

            def dataset(gaps: str, make: Any = make, shuffle: bool = shuffle) -> ZarrIterableDataset:
                return ZarrIterableDataset(make(gaps), batch_size=4, shuffle=shuffle, rank=0, world_size=1)

            with dataset("ignore") as running, dataset("ignore") as resumed, dataset("drop") as other:
                batches = iter(running)
                next(batches)
                state = running.state_dict()
                rest = [batch["x"].tolist() for batch in batches]
                resumed.load_state_dict(state)
                assert [batch["x"].tolist() for batch in resumed] == rest, (name, shuffle)
                with pytest.raises(ConfigError, match=r"heed gaps of the time.*gaps='ignore'\) goes on"):
                    other.load_state_dict(state)


def test_a_mixture_and_patches_read_no_window_over_a_gap(tmp_path: Path) -> None:
    hours = np.datetime64("2000-01-01", "s") + np.delete(np.arange(42), [20, 21]) * np.timedelta64(3600, "s")
    cube = xr.Dataset(
        {"x": (("time", "y"), np.arange(40)[:, None] + np.zeros((1, 4), dtype="i8"))}, coords={"time": hours}
    )
    cube.to_zarr(tmp_path / "cube.zarr", encoding={"x": {"chunks": (5, 2)}}, consolidated=False)
    windowed = zarrfeed.open(tmp_path / "cube.zarr", variables=["x"]).window({"x": (0, 1)})
    assert len(windowed) == 38
    patches = ZarrIterableDataset(windowed.patch({"y": 2}, sampling="grid"), batch_size=8)
    pairs = np.concatenate([batch["x"].numpy() for batch in patches])
    assert sorted(set(pairs[:, 0, 0].tolist())) == [i for i in range(39) if i != 19]
    assert (pairs[:, 1] == pairs[:, 0] + 1).all()
    mixed = zarrfeed.mix([windowed, windowed], weights=[1, 1])
    with ZarrIterableDataset(mixed, batch_size=4, shuffle=True, seed=0) as dataset:
        firsts = [int(i) for batch in dataset for i in batch["x"][:, 0, 0]]
    assert 19 not in firsts
    assert zarr.open_array(tmp_path / "cube.zarr" / "x", mode="r").shape == (40, 4)
