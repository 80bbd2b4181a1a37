"""`offsets=` and `segment_ends=`: windows as numpy cuts them out of what zarr-python reads, and chunks read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from tests.support.flat import iterable_dataset, map_dataset, split
from tests.support.oracle import Layout, raw_rows, read_all
from zarrfeed import (
    ConfigError,
    ZarrDataLoader,
    ZarrDataset,
    ZarrIterableDataset,
)
from zarrfeed.plan.windows.windows import chunks_in_block, parse_pad, parse_window, samples_with_windows
from zarrfeed.spec.samples.window import Pad

N = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("windows")
    Layout(shape=(N, 3, 4), chunks=(7, 2, 4), codec="blosc-lz4-shuffle").write(path / "x")
    Layout(shape=(2, N), chunks=(2, 5), dtype="i2", codec="zstd").write(path / "y")
    Layout(shape=(N, 1100), chunks=(1, 1100), codec="blosc-zstd-shuffle").write(path / "wide")
    return path


def complete(offsets: list[int], n: int, ends: list[int] | None = None) -> list[int]:
    """List the samples whose windows lie in the array, and in their segment: sample by sample."""
    segments = np.searchsorted(ends or [n], np.arange(n), side="right")
    return [
        i
        for i in range(n)
        if all(0 <= i + offset < n and segments[i + offset] == segments[i] for offset in [0, *offsets])
        and all(segments[j] == segments[i] for j in range(i + min([0, *offsets]), i + max([0, *offsets]) + 1))
    ]


def windows(rows: npt.NDArray[Any], index: Any, offsets: int | list[int]) -> npt.NDArray[np.uint8]:
    """Cut windows out of rows: the bytes of each sample."""
    return raw_rows(rows[np.asarray(index)[:, None] + np.atleast_1d(offsets)].reshape(len(index), -1))


offsets_ = st.lists(st.integers(-6, 6), min_size=1, max_size=5)


@st.composite
def segment_ends(draw: st.DrawFn) -> list[int] | None:
    if draw(st.booleans()):
        return None
    return [*sorted(draw(st.lists(st.integers(0, N), max_size=4))), N]


@examples(40)
@given(x=offsets_, y=st.none() | st.integers(-4, 4) | offsets_, ends=segment_ends(), data=st.data())
def test_every_window_is_what_numpy_cuts_out(
    x: list[int], y: int | list[int] | None, ends: list[int] | None, data: st.DataObject, store: Path
) -> None:
    offsets: dict[str, Any] = {"a": x, **({} if y is None else {"y": y})}
    all_offsets = x + ([] if y is None else np.atleast_1d(y).tolist())
    expected = complete(all_offsets, N, ends)
    sources = {"a": store / "x", "b": store / "wide"}
    options: dict[str, Any] = {
        "return_index": True,
        "offsets": {("targets" if name == "y" else name): o for name, o in offsets.items()},
        "segment_ends": ends,
        "num_threads": 2,
    }
    # targets have their samples along axis 0, so the other array is handed over turned
    targets = np.ascontiguousarray(read_all(store / "y", sample_axis=1))
    if not expected:
        with pytest.raises(ConfigError, match="offsets reach from"):
            iterable_dataset(sources, targets, **options)
        return
    shuffle = data.draw(st.booleans())
    stream = iterable_dataset(
        sources, targets, batch_size=data.draw(st.integers(1, 20)), shuffle=shuffle, seed=5, **options
    )
    seen: list[int] = []
    access = map_dataset(sources, targets, **options)
    assert len(access) == len(expected)
    request = data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1, max_size=30))
    x_rows, wide_rows = read_all(store / "x"), read_all(store / "wide")
    for named, target, index in [*stream, access[request]]:
        seen += index.tolist()
        a = raw_rows(named["a"].flatten(1))
        assert (a == windows(x_rows, index, x)).all()
        assert named["a"].shape[1:] == (len(x), 3, 4)
        assert (raw_rows(named["b"]) == windows(wide_rows, index, 0)).all()
        assert (raw_rows(target.flatten(1)) == windows(targets, index, 0 if y is None else y)).all()
        assert target.shape[1:] == ((2,) if y is None or isinstance(y, int) else (len(y), 2))
    stream.close()
    access.close()
    assert seen[-len(request) :] == [expected[i] for i in request]
    assert (sorted(seen[: -len(request)]) if shuffle else seen[: -len(request)]) == expected


def test_a_forecast_has_history_and_horizon(store: Path) -> None:
    dataset = ZarrIterableDataset(
        zarrfeed.open(store / "wide", store / "wide")
        .window({"samples": range(-2, 1), "targets": (1, 2)})
        .cast("float64"),
        batch_size=8,
        shuffle=True,
        return_index=True,
    )
    rows = read_all(store / "wide")
    for x, y, index in dataset:
        assert x.dtype == torch.float64
        expected = torch.from_numpy(rows[index.numpy()[:, None] + np.arange(-2, 1)]).double()
        assert torch.equal(x.nan_to_num(), expected.nan_to_num())
        assert (raw_rows(y.flatten(1)) == windows(rows, index, [1, 2])).all()
    assert sum(len(index) for *_, index in dataset) == N - 4


def test_ranks_workers_and_resuming_deliver_each_window_once(store: Path) -> None:
    rank_options: dict[str, Any] = {"world_size": 2, "even": "off"}

    def make(rank: int, offsets: tuple[int, int] = (-1, 1)) -> ZarrIterableDataset:
        return iterable_dataset(
            store / "x", offsets=offsets, batch_size=4, shuffle=True, return_index=True, rank=rank, **rank_options
        )

    rows, seen = read_all(store / "x"), []
    for rank in range(2):
        for x, index in ZarrDataLoader(make(rank), num_workers=2):
            assert (raw_rows(x.flatten(1)) == windows(rows, index, [-1, 1])).all()
            seen += index.tolist()
    assert sorted(seen) == list(range(1, N - 1))
    dataset = make(0)
    batches = [index.tolist() for _, index in dataset]
    begun = iter(make(0))
    first = [next(begun)[1].tolist() for _ in range(3)]
    again = make(0)
    again.load_state_dict(begun.state_dict())
    assert first + [index.tolist() for _, index in again] == batches
    with pytest.raises(ConfigError, match="the state is of another dataset"):
        make(0, (1, -1)).load_state_dict(begun.state_dict())


def test_selected_samples_keep_their_windows(store: Path) -> None:
    rows = read_all(store / "x")
    dataset = ZarrIterableDataset(
        zarrfeed.open(store / "x").select(slice(0, 20, 2)).window((-3, 3)), batch_size=3, return_index=True
    )
    batches = list(dataset)
    assert torch.cat([index for _, index in batches]).tolist() == list(range(4, 17, 2))
    for x, index in batches:
        assert (raw_rows(x.flatten(1)) == windows(rows, index, [-3, 3])).all()
    assert "7 selected" in str(dataset.explain())
    whole = ZarrIterableDataset(zarrfeed.open(store / "x").window((0, 5)), return_index=True)
    for parts in (split(whole, [0.5, 0.5], by=by, gap=None) for by in ("chunk", "sample", "contiguous")):
        assert sorted(int(index) for part in parts for _, index in part) == list(range(N - 5))


def test_chunks_of_one_sample_are_read_for_a_block_of_windows(store: Path) -> None:
    for shuffle in (False, True):
        dataset = ZarrIterableDataset(
            zarrfeed.open(store / "wide").window((-1, 0, 1)), batch_size=8, shuffle=shuffle, mixing={"lanes": 1}
        )
        explained = dataset.explain().fields[0]
        for _ in dataset:
            pass
        read = dataset.stats().chunks_read
        assert explained.chunk_reads == read
        assert read <= 1.4 * N, "a window's rows must not be read once for each sample"
        assert explained.amplification == pytest.approx(read / N)
        assert "rows at -1, +0, +1" in str(dataset.explain())


def test_blocks_have_several_chunks_where_windows_reach_far() -> None:
    three = parse_window("x", (-1, 0, 1))
    assert chunks_in_block(1, 100, [three], 1 << 20) == 8
    assert chunks_in_block(16, 100, [three], 1 << 20) == 8, "of a chunk one row is needed, and all of it is read"
    assert chunks_in_block(16, 100, [parse_window("x", range(-20, 1))], 1 << 20) == 8
    assert chunks_in_block(16, 100, [parse_window("x", range(-3, 1)), three], 1 << 20) == 8
    assert chunks_in_block(1, 1 << 20, [three], 4 << 20) == 4, "no more than there is room for"
    assert chunks_in_block(1, 1 << 30, [three], 4 << 20) == 1
    assert chunks_in_block(1, 100, [None, parse_window("y", 0)], 1 << 20) == 1


@pytest.mark.parametrize(
    ("offsets", "ends", "message"),
    [
        ([], None, "must be an integer or a sequence of at least one"),
        (1.5, None, "offsets of samples = 1.5, must be an integer"),
        ((0, "a"), None, "offsets of samples = 'a', must be an integer"),
        ({"z": 1}, None, "offsets names 'z', must be one of"),
        (0, None, r"offsets = 0: an integer is the number of rows .*, and must be at least 1; \(0,\) has one row"),
        (2**32, None, r"rows in the offsets of samples = 4294967296, must be at most 16777216"),
        (2**70, None, "offsets of samples = 1180591620717411303424, must be at most 1099511627776"),
        (-1, None, r"offsets = -1: an integer is the number of rows"),
        (N + 1, None, "offsets reach from 0 to \\+60, and there are 60 samples"),
        ((-1, 1), [10, 5, N], "segment_ends must ascend"),
        ((-1, 1), [10, 50], "segment_ends ends with 50, must end with the number of samples, 60"),
        ((-1, 1), [[N]], "must be a 1-d array of integers"),
        ((-1, 1), range(1, N + 1), "the longest segment has 1 samples"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(offsets: Any, ends: Any, message: str, store: Path) -> None:
    data = zarrfeed.open(store / "x")
    with pytest.raises(ConfigError, match=message):
        data.window(offsets, segment_ends=ends)


def test_an_integer_is_a_length_for_all_arrays_and_a_row_for_a_named_one(store: Path) -> None:
    data, rows = zarrfeed.open(store / "x"), np.asarray(zarr.open_array(store / "x")[:])
    for windows in (data.window(4), data.window(2).with_offsets(4), data.window(range(4))):
        got = ZarrDataset(windows)[list(range(len(windows)))].numpy()
        assert np.array_equal(
            got, np.lib.stride_tricks.sliding_window_view(rows, 4, axis=0).transpose(0, -1, *range(1, rows.ndim))
        )
    strided = ZarrDataset(data.window(4, stride=4))
    assert np.array_equal(strided[list(range(len(strided)))].numpy().reshape(rows.shape), rows)
    one = ZarrDataset(data.window({"samples": 4}))
    assert np.array_equal(one[list(range(len(one)))].numpy(), rows[4:])


@pytest.mark.parametrize(("pad", "value"), [(0.5, 0.5), (np.float32(0.25), 0.25), (7, 7), (np.int16(-1), -1)])
def test_a_number_pads_as_it_is_given(pad: float, value: float) -> None:
    assert parse_pad("x", pad) == Pad("fill", value)


def test_blocks_and_lists_have_no_windows(store: Path) -> None:
    with pytest.raises(ConfigError, match=r"window\(\) follows blocks\(\)"):
        ZarrIterableDataset(zarrfeed.open(store / "x").blocks([0]).window((1,)))
    with pytest.raises(ConfigError, match="no sample that select names has all rows"):
        ZarrIterableDataset(zarrfeed.open(store / "x").select([N - 1]).window((1,)))


def test_segments_may_be_empty_and_come_from_a_store(tmp_path: Path) -> None:
    ends = zarr.create_array(tmp_path / "ends", shape=(4,), dtype="i8")
    ends[:] = [0, 5, 5, 9]
    found = samples_with_windows([parse_window("x", (0, 1))], 9, ends)  # type: ignore[arg-type]
    assert np.asarray(found).tolist() == [0, 1, 2, 3, 5, 6, 7]
