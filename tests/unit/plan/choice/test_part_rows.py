"""Parts of a split that share no row: windows that are padded, and splits that cost arithmetic and no lists."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import event, given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from zarrfeed import ConfigError, Data, ZarrIterableDataset
from zarrfeed.plan.choice.part_rows import Runs

N = 60


def samples_of(data: Data) -> list[int]:
    return [int(i) for i in ZarrIterableDataset(data).sample_order(0)]


@pytest.fixture(scope="module")
def chunked(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Write arrays of 60 rows: by the length of their chunks, their paths."""
    folder: Path = tmp_path_factory.mktemp("chunked")
    for rows in (1, 3, 8):
        zarr.create_array(folder / str(rows), data=np.arange(N, dtype="i2"), chunks=(rows,))
    return {int(one.name): one for one in folder.iterdir()}


@examples(100)
@given(
    chunk=st.sampled_from([1, 3, 8]),
    select=st.sampled_from([None, slice(5, 50), slice(2, 60, 2), [*range(3, 20), *range(30, 47)]]),
    offsets=st.lists(st.integers(-7, 7), min_size=1, max_size=4, unique=True).map(sorted),
    ends=st.none() | st.lists(st.integers(1, N - 1), max_size=5, unique=True).map(lambda some: [*sorted(some), N]),
    by=st.sampled_from(["chunk", "contiguous"]),
    gap=st.integers(0, 3),
    rows=st.sampled_from(["selected", "all"]),
)
def test_padded_windows_of_two_parts_read_no_common_row(
    chunked: dict[int, Path], chunk: int, select: Any, offsets: list[int], ends: Any, by: Any, gap: int, rows: Any
) -> None:
    data = zarrfeed.open(chunked[chunk])
    own = sorted({0, *offsets})
    try:
        whole = (data if select is None else data.select(select)).window(
            offsets, pad="edge", segment_ends=ends, rows=rows
        )
        dealt = [samples_of(part) for part in whole.split((0.6, 0.4), by=by, gap=None)]
    except ConfigError:
        return
    borders: list[int] = [0, *(ends or [N])]
    if rows == "selected" and not isinstance(select, list):  # the rows of a slice are a segment
        borders = sorted({*borders, *((0, N) if select is None else (select.start, select.stop))})

    def row_of(sample: int, offset: int) -> int:
        behind = next(i for i, border in enumerate(borders) if border > sample)
        return min(max(sample + offset, borders[behind - 1]), borders[behind] - 1)

    owner = {sample: number for number, part in enumerate(dealt) for sample in part}
    for offset in sorted(own, key=lambda offset: (offset < 0, abs(offset))):
        read = [(row_of(sample, offset), number) for number, part in enumerate(dealt) for sample in part]
        for row, number in read:
            owner.setdefault(row, number)

    def stays(sample: int, number: int) -> bool:
        read = {row_of(sample, offset) for offset in own}
        near = {row + more for row in read for more in range(1, gap + 1)}
        return all(owner[row] == number for row in read) and all(owner.get(row, number) == number for row in near)

    expected = [[i for i in part if stays(i, number)] for number, part in enumerate(dealt)]
    refused = any(2 * len(kept) < len(part) for kept, part in zip(expected, dealt, strict=True))
    event(f"refused={refused} lost={expected != dealt}")
    if refused:
        with pytest.raises(ConfigError, match=r"part \d of the split: "):
            whole.split((0.6, 0.4), by=by, gap=gap)
        return
    assert [samples_of(part) for part in whole.split((0.6, 0.4), by=by, gap=gap)] == expected


@pytest.mark.parametrize("window", [{}, {"pad": "edge"}], ids=["whole", "padded"])
def test_a_split_of_a_billion_windows_lists_neither_samples_nor_rows(tmp_path: Path, window: dict[str, Any]) -> None:
    """Lists of the samples near borders, one for each of 1000 offsets, did not end in ten minutes."""
    total, segment = 10**9, 5000
    array = zarr.create_array(tmp_path / "a", shape=(total,), chunks=(10_000,), dtype="u1")
    array[:1] = 1  # or the array is empty
    data = zarrfeed.open(tmp_path / "a").window(
        range(1000), segment_ends=np.arange(segment, total + 1, segment), **window
    )
    tracemalloc.start()
    try:
        parts = data.split((0.8, 0.2), by="chunk")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20
    assert sum(map(len, parts)) == total if window else total * (segment - 999) // segment


def test_runs_know_what_they_share_and_what_is_left() -> None:
    runs = Runs(np.array([0, 10, 20]), np.array([5, 15, 30]))
    others = Runs(np.array([3, 12]), np.array([11, 22]))
    assert runs.common(others).listed().tolist() == [3, 4, 10, 12, 13, 14, 20, 21]
    assert runs.without(others).listed().tolist() == [0, 1, 2, 11, *range(22, 30)]
    assert list(Runs(np.array([0, 2, 9]), np.array([2, 5, 9])).samples()) == list(range(5))
    around = Runs.around(np.array([1, 4, 18]), 2, 20)
    assert (around.begin.tolist(), around.end.tolist()) == ([0, 16], [7, 20])
    assert len(Runs.around(np.zeros(0, np.int64), 2, 20)) == 0
