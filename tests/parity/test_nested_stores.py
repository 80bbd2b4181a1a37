"""Descriptions of several recordings, concatenated and mixed: no window, crop or padding leaves its recording.

A row holds its number among the rows of all recordings. The oracle lists the windows of each recording by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

import zarrfeed
from tests.support.examples import tries
from zarrfeed import Data, ZarrIterableDataset


def as_key(rows: Any) -> Any:
    """Return the rows of a window as a tuple, and a single row as it is."""
    return tuple(rows) if isinstance(rows, list) else rows


def rows_of(data: Data, **options: Any) -> list[Any]:
    """Return the rows of each sample, as read, in the order of the array."""
    with ZarrIterableDataset(data, batch_size=7, return_index=True, **options) as dataset:
        pairs = [pair for x, index in dataset for pair in zip(index.tolist(), map(as_key, x.tolist()), strict=True)]
    return [rows for _, rows in sorted(set(pairs))]


def windows_of(lengths: Any, offsets: tuple[int, ...], pad: str | None) -> list[tuple[int, ...]]:
    """Return the rows of each window of recordings, which have these lengths."""
    listed, first = [], 0
    for length in lengths:
        for row in range(first, first + length):
            rows = [row + offset for offset in offsets]
            nearest = [min(max(one, first), first + length - 1) for one in rows]
            if pad is not None or rows == nearest:
                listed.append(tuple(nearest))
        first += length
    return listed


def described(random: np.random.Generator, lengths: list[int], first: int) -> Data:
    """Return recordings as one description: one store each, in memory or not, or segments of one array."""
    ends = np.cumsum(lengths)
    rows = np.arange(first, first + ends[-1])
    form = random.integers(3)
    if form == 0:
        return zarrfeed.open(zarr.array(rows, chunks=(int(random.integers(1, 9)),))).segments(ends)
    parts: list[Any] = np.split(rows, ends[:-1])
    return zarrfeed.open(parts if form == 1 else [zarr.array(part, chunks=(4,)) for part in parts])


def test_no_window_leaves_a_recording_of_a_description_of_several() -> None:
    """Descriptions of several stores lost the borders between these, and padded windows those between descriptions."""
    for seed in range(tries(usual=40, large=400)):
        check_windows(np.random.default_rng(seed))


def check_windows(random: np.random.Generator) -> None:
    lengths = [random.integers(1, 12, random.integers(1, 4)).tolist() for _ in range(random.integers(1, 4))]
    firsts = np.cumsum([0, *map(sum, lengths)])
    offsets = tuple(np.unique(random.integers(-3, 4, random.integers(1, 4))).tolist())
    pad = [None, "edge"][random.integers(2)]
    expected = windows_of([length for one in lengths for length in one], offsets, pad)
    if any(not windows_of(one, offsets, pad) for one in lengths):
        return
    each = [described(random, one, int(first)) for one, first in zip(lengths, firsts, strict=False)]
    early = bool(random.integers(2))
    if early:
        each = [one.window(offsets, pad=pad) for one in each]
    mixes = bool(random.integers(2))
    joined = zarrfeed.mix(each, stop="all") if mixes else zarrfeed.concat(each)
    assert rows_of(joined if early else joined.window(offsets, pad=pad), shuffle=True) == expected


def test_sequences_and_crops_are_those_of_each_recording() -> None:
    one, other = zarrfeed.open([np.arange(0, 5), np.arange(5, 8)]), zarrfeed.open([np.arange(8, 10)])
    joined = zarrfeed.concat([one, other])
    assert len(zarrfeed.mix([one, other]).pad_sequences(-1).resolved.choice.listed()) == 3
    assert len(joined.pad_sequences(-1)) == 3
    assert set(rows_of(joined.random_crop(2))) <= set(windows_of([5, 3, 2], (0, 1), None))


def test_recordings_are_columns_by_their_number_and_so_are_split() -> None:
    lengths = [5, 3, 2, 4, 6, 3]
    parts = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
    of_row = np.repeat(np.arange(len(lengths)), lengths)
    for data in (zarrfeed.open(parts), zarrfeed.concat([zarrfeed.open(parts[:2]), zarrfeed.open(parts[2:])])):
        rows = [np.array(rows_of(part)) for part in data.split((0.5, 0.5), groups="segment")]
        assert np.sort(np.concatenate(rows)).tolist() == list(range(sum(lengths)))
        assert not set(of_row[rows[0]]) & set(of_row[rows[1]])
        assert rows_of(data.where(segment=lambda segment: segment == 4)) == list(range(14, 20))


def test_contiguous_descriptions_keep_the_borders_inside_of_them() -> None:
    one, other = zarrfeed.open([np.arange(0, 5), np.arange(5, 8)]), zarrfeed.open([np.arange(8, 12), np.arange(12, 15)])
    joined = zarrfeed.concat([one, other], contiguous=True)
    assert rows_of(joined.window((0, 1))) == windows_of([5, 7, 3], (0, 1), None)
