"""Windows read rows of their own selection, or their own part of a split, and what is left out for it is counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from tests.support.flat import iterable_dataset, map_dataset, split
from tests.support.oracle import Layout, raw_rows, read_all
from zarrfeed import ConfigError, ZarrDataset, ZarrIterableDataset
from zarrfeed.plan.choice.split import By
from zarrfeed.plan.samples.left_out import LeftOut
from zarrfeed.plan.samples.selection import Int64, Selection

N = 60
YEAR = slice(365, 730)
#: How samples of arrays without shards can be dealt.
BY: tuple[By, ...] = ("chunk", "sample", "contiguous")


def in_memory(n: int = N, **options: Any) -> ZarrIterableDataset:
    """Make a dataset of rows in memory that hold their index."""
    return iterable_dataset(np.arange(n), return_index=True, **options)


def rows_read(samples: Sequence[int] | Int64, offsets: Sequence[int]) -> set[int]:
    """List the rows that the windows of some samples consist of."""
    return {int(i) + d for i in samples for d in offsets}


def left_out(dataset: ZarrIterableDataset) -> list[LeftOut]:
    return list(dataset.explain().left_out)


offsets_ = st.lists(st.integers(-4, 4), min_size=1, max_size=3)


@st.composite
def segments(draw: st.DrawFn, n: int = N) -> list[int] | None:
    return None if draw(st.booleans()) else [*sorted(draw(st.lists(st.integers(0, n), max_size=4))), n]


@st.composite
def selects(draw: st.DrawFn, n: int = N) -> Any:
    """Draw a slice, a list, or a mask, which consists of runs."""
    kind = draw(st.sampled_from(["slice", "list", "mask"]))
    if kind == "slice":
        begin = draw(st.integers(0, n - 1))
        end = draw(st.integers(begin + 1, n))
        step = draw(st.integers(1, 5))
        # the same rows from behind
        return slice(begin, end, step) if draw(st.booleans()) else slice(end - 1, begin - 1 if begin else None, -step)
    if kind == "list":
        return draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    edges = sorted(draw(st.lists(st.integers(0, n), min_size=2, max_size=6, unique=True)))
    return np.isin(np.arange(n), [i for a, b in zip(edges[::2], edges[1::2], strict=False) for i in range(a, b)])


def rows_of(select: Any, n: int = N) -> set[int]:
    """List the rows that a selection names: of a slice all between its bounds."""
    if isinstance(select, slice):
        chosen = np.arange(n)[select]
        low, high = chosen.min(), chosen.max()
        if select.step > 0:
            high = select.stop - 1
        else:
            low = 0 if select.stop is None else select.stop + 1
        return set(range(low, high + 1))
    return set(np.arange(n)[select].tolist())


# --- select -----------------------------------------------------------------------------------------------------


@examples(300)
@given(select=st.none() | selects(), offsets=offsets_, ends=segments(), window_rows=st.data())
def test_a_sample_is_left_out_exactly_if_a_row_of_its_window_may_not_be_read(
    select: Any, offsets: list[int], ends: list[int] | None, window_rows: st.DataObject
) -> None:
    rows: Any = window_rows.draw(st.sampled_from(["selected", "all"]) | selects())
    own = [0, *offsets]
    named = np.arange(N) if select is None else np.sort(np.arange(N)[select])
    segment = np.searchsorted(ends or [N], np.arange(N), side="right")
    allowed = set(range(N))
    if not isinstance(rows, str):
        allowed = rows_of(rows)
    elif rows == "selected" and select is not None:
        allowed = rows_of(select)

    def is_whole(i: int) -> bool:
        low, high = i + min(own), i + max(own)
        return low >= 0 and high < N and segment[low] == segment[high]

    whole = [i for i in named.tolist() if is_whole(i)]
    expected = [i for i in whole if rows_read([i], own) <= allowed]
    options: dict[str, Any] = {"select": select, "offsets": offsets, "segment_ends": ends, "window_rows": rows}
    if not expected:
        for kind in (ZarrIterableDataset, ZarrDataset):
            with pytest.raises(ConfigError):
                kind(np.arange(N), **options)
        return
    dataset = in_memory(**options)
    assert dataset.sample_order(0).tolist() == expected
    assert len(map_dataset(np.arange(N), **options)) == len(expected)
    counts = [(entry.samples, entry.of) for entry in left_out(dataset)]
    losses = [(len(named) - len(whole), len(named)), (len(whole) - len(expected), len(whole))]
    assert counts == [loss for loss in losses if loss[0]]
    if ends is not None and len(whole) < len(named):
        had, has = set(segment[named].tolist()), set(segment[whole].tolist())
        first = left_out(dataset)[0]
        assert (first.segments, first.of_segments) == (len(had - has), len(had))


def test_a_year_does_not_read_the_next_one_unless_asked_to(tmp_path: Path) -> None:
    array = Layout(shape=(1000, 6), chunks=(24, 6), codec="blosc-lz4-shuffle").write(tmp_path / "x")
    stored = read_all(array)
    # targets at +1 alone: they count as windows of samples do
    for offsets in ((0, 1), {"targets": 1}):
        options: dict[str, Any] = {"offsets": offsets, "select": YEAR, "batch_size": 50, "return_index": True}
        for window_rows, last in ((None, 728), ("selected", 728), ("all", 729), (slice(0, 731), 729)):
            with iterable_dataset(tmp_path / "x", tmp_path / "x", window_rows=window_rows, **options) as dataset:
                seen = []
                for _, targets, index in dataset:
                    shift = 1 if isinstance(offsets, dict) else 0
                    of_targets = targets if shift else targets.flatten(1)
                    assert (raw_rows(of_targets) == raw_rows(stored[index.numpy() + shift])).all()
                    seen += index.tolist()
                assert seen == list(range(365, last + 1))
                lost = [] if last == 729 else [LeftOut(1, 365, "their windows read rows that are not selected")]
                assert left_out(dataset) == lost


def test_two_years_apart_do_not_read_the_year_between_them() -> None:
    year = np.arange(1000) // 100
    with in_memory(1000, offsets=(-2, 0, 3), select=(year == 3) | (year == 5)) as dataset:
        assert dataset.sample_order(0).tolist() == [*range(302, 397), *range(502, 597)]
        assert left_out(dataset) == [LeftOut(10, 200, "their windows read rows that are not selected")]


def test_every_fourth_sample_reads_all_rows_between_the_bounds_of_its_slice() -> None:
    with in_memory(100, offsets=(0, 1, 2, 3), select=slice(0, 50, 4)) as dataset:
        assert dataset.sample_order(0).tolist() == list(range(0, 48, 4))  # 48 would read 51
    with in_memory(100, offsets=(0, 1, 2, 3), select=slice(None, None, 4)) as dataset:
        assert dataset.sample_order(0).tolist() == list(range(0, 100, 4))
        assert left_out(dataset) == []


def test_a_list_that_would_lose_most_of_its_samples_is_refused_with_what_to_write() -> None:
    scattered = [0, 10, 20, 30, 40, 41]
    data = zarrfeed.open(np.arange(N))
    with pytest.raises(ConfigError, match=r"5 of 6 samples would be left out, .*rows='all'.*rows='selected'"):
        data.select(scattered).window((0, 1))
    with pytest.raises(ConfigError, match=r"5 of 5 samples would be left out, .*rows='all'"):
        data.select(scattered[:5]).window((0, 1), rows="selected")
    assert in_memory(offsets=(0, 1), select=scattered, window_rows="selected").sample_order(0).tolist() == [40]
    assert in_memory(offsets=(0, 1), select=scattered, window_rows="all").sample_order(0).tolist() == scattered
    within = in_memory(offsets=(0, 1), select=scattered, window_rows=slice(0, 41))
    assert within.sample_order(0).tolist() == [0, 10, 20, 30]
    assert left_out(within) == [LeftOut(2, 6, "their windows read rows that rows= does not name")]


def test_what_window_rows_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="rows = 'none', must be 'selected', 'all', or rows"):
        zarrfeed.open(np.arange(N)).window((1,), rows="none")


def test_a_state_knows_which_windows_were_left_out() -> None:
    state = in_memory(offsets=(0, 1), select=slice(10, 30)).state_dict()
    in_memory(offsets=(0, 1), select=slice(10, 30), window_rows="selected").load_state_dict(state)
    with pytest.raises(ConfigError, match=r"select was '19 .*', is '20 "):
        in_memory(offsets=(0, 1), select=slice(10, 30), window_rows="all").load_state_dict(state)
    train = {gap: split(in_memory(offsets=(0, 1)), [0.5, 0.5], by="contiguous", gap=gap)[0] for gap in (None, 0, 3)}
    for saved, kept in train.items():
        for gap, other in train.items():
            if gap == saved:
                other.load_state_dict(kept.state_dict())
            else:
                with pytest.raises(ConfigError, match="select was"):
                    other.load_state_dict(kept.state_dict())


# --- split ------------------------------------------------------------------------------------------------------


CHUNKED = 600


@pytest.fixture(scope="module")
def chunked(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Write arrays of 600 rows: by the length of their chunks, their paths."""
    path = tmp_path_factory.mktemp("chunked")
    for rows in (1, 3, 8, 20):
        Layout(shape=(CHUNKED,), chunks=(rows,), dtype="i2").write(path / str(rows))
    return {int(one.name): one for one in path.iterdir()}


@examples(150)
@given(
    chunk=st.sampled_from([1, 3, 8, 20]),
    select=st.booleans(),
    offsets=offsets_,
    fractions=st.lists(st.integers(1, 5), min_size=2, max_size=3),
    by=st.sampled_from(BY),
    gap=st.integers(0, 4),
    data=st.data(),
)
def test_no_row_is_read_for_two_parts_and_nothing_is_left_out_without_need(
    chunked: dict[int, Path],
    chunk: int,
    select: bool,
    offsets: list[int],
    fractions: list[int],
    by: Any,
    gap: int,
    data: st.DataObject,
) -> None:
    own = sorted({0, *offsets})
    options: dict[str, Any] = {"offsets": offsets, "segment_ends": data.draw(segments(CHUNKED))}
    if select:
        options |= {"select": data.draw(selects(CHUNKED)), "window_rows": "all"}
    shares = [fraction / sum(fractions) for fraction in fractions]
    try:
        whole = iterable_dataset(chunked[chunk], **options)
        dealt = [part.sample_order(0) for part in split(whole, shares, by=by, gap=None)]
    except ConfigError:
        assume(False)
    assert np.array_equal(np.sort(np.concatenate(dealt)), whole.sample_order(0))

    # the definition, said row by row: whose is it, whether or not it is a sample?
    part_of = {int(i): number for number, samples in enumerate(dealt) for i in samples}
    owner: dict[int, int] = dict(part_of)
    for row in rows_read(list(part_of), own) - set(part_of):
        readers = [row - d for d in own if row - d in part_of]
        before, behind = [i for i in readers if i < row], [i for i in readers if i > row]
        owner[row] = part_of[max(before) if before else min(behind)]

    def stays(i: int, number: int) -> bool:
        near = {i + d + more for d in own for more in range(1, gap + 1)}
        return all(owner[r] == number for r in rows_read([i], own)) and all(
            owner.get(r, number) == number for r in near
        )

    expected = [[int(i) for i in samples if stays(int(i), number)] for number, samples in enumerate(dealt)]
    lost = [len(samples) - len(kept) for samples, kept in zip(dealt, expected, strict=True)]
    refused = any(
        less > 0 and (by == "sample" or 2 * less > len(samples)) for less, samples in zip(lost, dealt, strict=True)
    )
    event(f"{by} refused={refused} lost={sum(lost) > 0}")
    if refused:
        with pytest.raises(ConfigError, match=r"part \d of the split: \d+ of \d+ samples left out: .*gap=None"):
            split(whole, shares, by=by, gap=gap)
        return
    parts = split(whole, shares, by=by, gap=gap)
    assert [part.sample_order(0).tolist() for part in parts] == expected
    of_whole = left_out(whole)
    for part, less, samples in zip(parts, lost, dealt, strict=True):
        entries = left_out(part)
        assert entries[: len(of_whole)] == of_whole
        assert [(e.samples, e.of) for e in entries[len(of_whole) :]] == ([(less, len(samples))] if less else [])
    rows = [np.array(sorted(rows_read(kept, own))) for kept in expected]
    for i, mine in enumerate(rows):
        for theirs in rows[i + 1 :]:
            distance = np.abs(mine[:, None] - theirs[None, :]).min()
            assert distance > gap, "rows of two parts"


def test_windows_of_training_read_no_validation_row(tmp_path: Path) -> None:
    n = 2929
    array = Layout(shape=(n, 4), chunks=(24, 4), codec="blosc-lz4-shuffle").write(tmp_path / "x")
    stored = raw_rows(read_all(array))
    row_of = {stored[i].tobytes(): i for i in range(n)}
    whole = ZarrIterableDataset(
        zarrfeed.open(tmp_path / "x").window((0, 1)), batch_size=64, shuffle=True, seed=1, return_index=True
    )

    def delivered(part: ZarrIterableDataset) -> tuple[set[int], set[int]]:
        rows: set[int] = set()
        samples: set[int] = set()
        for windows, index in part:
            rows |= {row_of[row.tobytes()] for row in raw_rows(windows.flatten(0, 1))}
            samples |= set(index.tolist())
        return samples, rows

    leaking = [delivered(part) for part in split(whole, [0.8, 0.2], gap=None)]
    shared = leaking[0][1] & leaking[1][1]
    assert shared, "else this shows nothing"
    parts = split(whole, [0.8, 0.2])
    kept = [delivered(part) for part in parts]
    assert not kept[0][1] & kept[1][1]
    for part, (samples, _), (before, _) in zip(parts, kept, leaking, strict=True):
        assert samples < before
        assert len(part) == -(-len(samples) // 64)
        assert [entry.samples for entry in left_out(part)] == [1, len(before) - len(samples)]
        assert f"{len(samples)} of {n} samples of (2, 4) float32" in repr(part)
        assert f"({len(before) - len(samples)} of {len(before)} samples left out: their windows read" in repr(part)
    # one window is lost at each border between blocks of two parts: that of the sample before it
    number = np.full(n, -1)
    for i, (before, _) in enumerate(leaking):
        number[sorted(before)] = i
    borders = int((np.diff(number[: n - 1]) != 0).sum())
    assert sum(len(before) - len(samples) for (samples, _), (before, _) in zip(kept, leaking, strict=True)) == borders


def test_a_gap_keeps_parts_as_far_apart_as_asked() -> None:
    with in_memory(100, offsets=(-2, 0, 1)) as whole:
        for gap, end in ((0, 48), (5, 43)):
            first, second = split(whole, [0.5, 0.5], by="contiguous", gap=gap)
            assert first.sample_order(0).tolist() == list(range(2, end + 1 + 1))
            assert second.sample_order(0).tolist() == list(range(53, 99))
    with in_memory(100) as rows:  # samples of one row are kept apart, too
        first, second = split(rows, [0.5, 0.5], by="contiguous", gap=7)
        assert (first.sample_order(0).tolist(), second.sample_order(0).tolist()) == (
            list(range(43)),
            list(range(50, 100)),
        )
        assert "7 of 50 samples left out" in repr(first)
    with pytest.raises(ConfigError, match="gap = -1, must be"):
        split(in_memory(), [0.5, 0.5], gap=-1)


def test_windows_that_share_no_rows_can_be_drawn_one_by_one() -> None:
    with in_memory(170, offsets=range(16), select=slice(None, None, 16)) as clips:
        assert left_out(clips) == [LeftOut(1, 11, "their windows reach beyond the ends of the array")]
        for by in BY:
            parts = split(clips, [0.5, 0.5], by=by)
            assert sorted(i for part in parts for i in part.sample_order(0).tolist()) == list(range(0, 160, 16))
            assert left_out(parts[0]) == left_out(parts[1]) == left_out(clips)
    # of these two share rows: 144 and 150
    with in_memory(170, offsets=range(16), select=[*range(0, 160, 16), 150], window_rows="all") as clips:
        apart = set()
        for seed in range(12):
            drawn = [part.sample_order(0) for part in split(clips, [0.5, 0.5], by="sample", seed=seed, gap=None)]
            apart.add((144 in drawn[0]) != (150 in drawn[0]))
            if (144 in drawn[0]) == (150 in drawn[0]):
                parts = split(clips, [0.5, 0.5], by="sample", seed=seed)
                assert all(np.array_equal(part.sample_order(0), d) for part, d in zip(parts, drawn, strict=True))
            else:
                with pytest.raises(ConfigError, match=r"1 of [56] samples left out: .*gap=None"):
                    split(clips, [0.5, 0.5], by="sample", seed=seed)
        assert apart == {True, False}


def test_a_row_between_samples_belongs_to_the_nearest_one_before_it_that_reads_it() -> None:
    with in_memory(41, offsets=(-2, 0, 2), select=slice(0, None, 4)) as whole:  # row 22 is read by samples 20 and 24
        first, second = split(whole, [5, 4], by="contiguous")
        assert first.sample_order(0).tolist() == [4, 8, 12, 16, 20]
        assert second.sample_order(0).tolist() == [28, 32, 36]
    with in_memory(
        41, offsets=(-3, -2, 0, 1), select=slice(0, None, 4)
    ) as whole:  # row 21 is read by both, row 22 by sample 24
        assert split(whole, [5, 4], by="contiguous")[1].sample_order(0).tolist() == [28, 32, 36]


def test_a_part_that_would_lose_most_of_its_samples_is_refused() -> None:
    with in_memory(100, offsets=(-6, 0)) as whole:
        with pytest.raises(ConfigError, match=r"part 1 of the split: 6 of 10 samples left out: .* 6 rows back and 0"):
            split(whole, [84, 10], by="contiguous")
        assert len(split(whole, [82, 12], by="contiguous")[1]) == 6
    with in_memory(100) as rows, pytest.raises(ConfigError, match=r"part 0 .* 50 of 50 samples .*, gap = 60"):
        split(rows, [0.5, 0.5], by="contiguous", gap=60)


def test_parts_of_windows_of_one_row_remember_what_was_left_out_before() -> None:
    with in_memory(offsets=(0,), window_rows=slice(0, 50)) as whole:
        lost = [LeftOut(10, 60, "their windows read rows that rows= does not name")]
        for gap in (None, 0):
            assert [left_out(part) for part in split(whole, [0.5, 0.5], by="sample", gap=gap)] == [lost, lost]


def test_splitting_a_part_again_keeps_the_parts_of_it_apart() -> None:
    with in_memory(300, offsets=(-1, 0, 2), segment_ends=[100, 180, 300]) as whole:
        first, rest = split(whole, [0.6, 0.4], by="contiguous")
        second, third = split(rest, [0.5, 0.5], by="contiguous", gap=4)
        rows = [rows_read(part.sample_order(0), (-1, 0, 2)) for part in (first, second, third)]
        assert max(rows[0]) < min(rows[1])
        assert max(rows[1]) + 4 < min(rows[2])
        assert left_out(second)[0].reason == "their windows leave their segment"


# --- what is shown ----------------------------------------------------------------------------------------------


def test_samples_that_lack_rows_are_counted_with_the_reason() -> None:
    lengths = np.r_[[24] * 11, [22] * 2, [33] * 62, [32] * 25]
    np.random.default_rng(0).shuffle(lengths)
    ends = np.cumsum(lengths)
    n = int(ends[-1])
    options: dict[str, Any] = {"offsets": range(26), "segment_ends": ends}
    reason = "2483 of 3154 samples left out: their windows leave their segment; 13 of 100 segments have no sample left"
    dataset = iterable_dataset(np.arange(n), batch_size=8, **options)
    assert left_out(dataset) == [LeftOut(2483, 3154, "their windows leave their segment", 13, 100)]
    assert f"\n            {reason}\n" in str(dataset.explain())
    assert repr(dataset).startswith(f"ZarrIterableDataset(671 of 3154 samples of (26,) int64 ({reason}), batch_size=8")
    assert repr(map_dataset(np.arange(n), **options)) == f"ZarrDataset(671 of 3154 samples of (26,) int64 ({reason}))"
    of_ends = "5 of 60 samples left out: their windows reach beyond the ends of the array"
    assert of_ends in repr(in_memory(offsets=(-3, 2)))
    assert of_ends in str(in_memory(offsets=(-3, 2)).explain())
    assert "left out" not in str(in_memory(offsets=(0,)).explain()) + repr(in_memory())


def test_the_repr_of_a_part_says_how_many_samples_it_has(tmp_path: Path) -> None:
    Layout(shape=(103, 5), chunks=(8, 3)).write(tmp_path / "x")
    x = tmp_path / "x"
    assert f"{x}: 103 samples of (5,) float32," in repr(ZarrIterableDataset(x))
    assert f"{x}: 10 of 103 samples of (5,) float32," in repr(
        ZarrIterableDataset(zarrfeed.open(x).select(slice(10, 20)))
    )
    assert f"{x}: 15 of 103 samples of (5,) float32," in repr(ZarrIterableDataset(zarrfeed.open(x).blocks([0, 12])))
    assert repr(ZarrDataset(zarrfeed.open(x).select([1, 5]))) == f"ZarrDataset({x}: 2 of 103 samples of (5,) float32)"
    assert repr(ZarrDataset(x)) == f"ZarrDataset({x}: 103 samples of (5,) float32)"
    for by in BY:
        for part in split(ZarrIterableDataset(x), [0.3, 0.7], by=by):
            assert f": {len(part.sample_order(0))} of 103 samples of" in repr(part)


# --- selections of runs -----------------------------------------------------------------------------------------


@given(block_rows=st.integers(1, 20), chosen=st.lists(st.integers(0, 99), min_size=1, unique=True), runs=st.booleans())
def test_runs_of_samples_need_no_list(block_rows: int, chosen: list[int], runs: bool) -> None:
    samples = np.sort(chosen)
    if runs:  # of each block its samples from the first to the last one
        block = samples // block_rows
        ends = {b: (samples[block == b].min(), samples[block == b].max()) for b in block.tolist()}
        samples = np.concatenate([np.arange(low, high + 1) for low, high in ends.values()])
    made = Selection.of_runs(samples, block_rows)
    assert np.array_equal(made.listed(), samples)
    assert np.array_equal(made.blocks, np.unique(samples // block_rows))
    if runs:
        assert made.samples is None
