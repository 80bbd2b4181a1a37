"""Patches that begin at listed voxels, against NumPy slicing of the whole array; each position once in an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrfeed
from tests.support.patches import SHAPE, Voxels, check_ranks_and_resume, patch_of, read, stored, volume
from zarrfeed import ZarrIterableDataset

CHUNKS = (9, 8, 7)
SIZE = (8, 5, 7)
SIZES: dict[str | int, int] = dict(enumerate(SIZE))


def positions(n: int, shape: Sequence[int] = SHAPE, size: Sequence[int] = SIZE, *, key: int = 0) -> Voxels:
    """Return starts of patches that touch a volume, some of them twice."""
    drawn = np.random.default_rng(key).integers(1 - np.array(size), shape, (n, len(shape)))
    drawn[: n // 10] = drawn[n // 10 : n // 10 * 2]
    return drawn


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("budget", [None, "1 MiB"])
@pytest.mark.parametrize(
    "options",
    [
        {"chunks": CHUNKS},
        {"chunks": (4, 26, 5), "shards": (8, 26, 15)},
        {"chunks": (30, 6, 21), "order": "F", "zarr_format": 2},
        {"chunks": (50, 50, 50)},
    ],
)
def test_each_position_comes_once_with_the_voxels_of_the_array(
    options: dict[str, Any], budget: str | None, shuffle: bool, tmp_path: Path
) -> None:
    listed = positions(200)
    data = zarrfeed.open(stored(tmp_path / "v", volume(), **options))
    data = data.patch(SIZES, sampling="positions", positions=listed, pad=-3)
    assert len(data) == 200
    dataset = ZarrIterableDataset(data, batch_size=7, shuffle=shuffle, seed=3, return_index=True, memory_budget=budget)
    orders = []
    for epoch in range(2):
        assert len(dataset) == 29
        orders.append(dataset.sample_order(epoch).tolist())
        seen, explained = [], dataset.explain().fields[0].chunk_reads
        for patch, number in read(dataset):
            _, start = data.locate(number)
            np.testing.assert_array_equal(patch.numpy(), patch_of(volume(), start, SIZE, pad=-3))
            seen.append(start.tolist())
        assert sorted(seen) == sorted(listed.tolist())
        if not epoch and budget is None:
            assert dataset.stats().chunks_read == pytest.approx(explained, rel=0.1)
    assert (orders[0] != orders[1]) == shuffle


def test_positions_on_periodic_axes_go_on_at_the_other_end(tmp_path: Path) -> None:
    listed = positions(80)
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS))
    data = data.patch(SIZES, sampling="positions", positions=listed, border={0: "wrap", 1: "pad", 2: "wrap"})
    dataset = ZarrIterableDataset(data, batch_size=7, shuffle=True, return_index=True)
    expected = [patch_of(volume(), start, SIZE, wraps=(0, 2)).tolist() for start in listed]
    seen = [patch.tolist() for patch, _ in read(dataset)]
    assert sorted(seen) == sorted(expected)


def test_positions_of_images_over_time_and_of_selected_ones(tmp_path: Path) -> None:
    field = volume((12, 26, 21))
    path = stored(tmp_path / "v", field, chunks=(5, 9, 21), dimension_names=("time", "y", "x"))
    listed = np.array([(2, -4, 0), (10, 25, 20), (7, 3, 3), (2, 3, 3)])
    data = zarrfeed.open(path).isel(time=[2, 3, 7, 10]).patch({"y": 5, "x": 7}, sampling="positions", positions=listed)
    seen = []
    for patch, number in read(ZarrIterableDataset(data, batch_size=3, shuffle=True, return_index=True)):
        _, (t, y, x) = data.locate(number)
        np.testing.assert_array_equal(patch.numpy(), patch_of(field[t], np.array((y, x)), (5, 7)))
        seen.append((t, y, x))
    assert sorted(seen) == sorted(map(tuple, listed))
    with pytest.raises(zarrfeed.ConfigError, match=r"positions\[1\] = \[5, 0, 0\].*'time'"):
        zarrfeed.open(path).isel(time=[2, 3, 7]).patch(
            {"y": 5, "x": 7}, sampling="positions", positions=[(2, 0, 0), (5, 0, 0)]
        )


def test_positions_in_many_stores_name_the_store(tmp_path: Path) -> None:
    arrays = volume((30, 26)), volume((11, 26), first=1000)
    paths = [stored(tmp_path / "a", arrays[0], chunks=(8, 9)), stored(tmp_path / "b", arrays[1], chunks=(4, 26))]
    of_store = [positions(40, array.shape, (8, 5), key=k) for k, array in enumerate(arrays)]
    listed = np.concatenate([np.insert(one, 0, store, axis=1) for store, one in enumerate(of_store)])
    listed = np.random.default_rng(1).permutation(listed)
    options: dict[str, Any] = {"sampling": "positions", "pad": "edge"}
    together = zarrfeed.open(paths).patch({0: 8, 1: 5}, positions=listed, **options)
    apart = zarrfeed.concat(
        [
            zarrfeed.open(path).patch({0: 8, 1: 5}, positions=one, **options)
            for path, one in zip(paths, of_store, strict=True)
        ]
    )
    for data in (together, apart):
        seen = []
        for patch, number in read(ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True)):
            store, start = data.locate(number)
            np.testing.assert_array_equal(patch.numpy(), patch_of(arrays[store], start, (8, 5), pad="edge"))
            seen.append([store, *start.tolist()])
        assert sorted(seen) == sorted(listed.tolist())


def test_ranks_and_resuming_share_one_order(tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume(), chunks=CHUNKS)
    data = zarrfeed.open(path).patch(SIZES, sampling="positions", positions=positions(100))
    assert check_ranks_and_resume(data, num_batches=2) == [len(data)] * 2


def test_a_state_is_for_the_same_positions(tmp_path: Path) -> None:
    opened = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS))
    one, same, other = (
        opened.patch(SIZES, sampling="positions", positions=positions(30, key=key)) for key in (0, 0, 1)
    )
    assert one == same != other
    state = ZarrIterableDataset(one, shuffle=True).state_dict()
    ZarrIterableDataset(same, shuffle=True).load_state_dict(state)
    with pytest.raises(zarrfeed.ConfigError, match="positions"):
        ZarrIterableDataset(other, shuffle=True).load_state_dict(state)


def test_windows_over_time_begin_at_positions(tmp_path: Path) -> None:
    field = volume((12, 26, 21))
    path = stored(tmp_path / "v", field, chunks=(5, 9, 21), dimension_names=("time", "y", "x"))
    listed = np.array([(2, -4, 0), (10, 25, 20), (7, 3, 3), (1, 3, 3)])
    data = zarrfeed.open(path).window((-1, 0)).patch({"y": 5, "x": 7}, sampling="positions", positions=listed)
    seen = []
    for patch, number in read(ZarrIterableDataset(data, batch_size=3, shuffle=True, return_index=True)):
        _, (t, y, x) = data.locate(number)
        expected = [patch_of(field[row], np.array((y, x)), (5, 7)) for row in (t - 1, t)]
        np.testing.assert_array_equal(patch.numpy(), np.stack(expected))
        seen.append((t, y, x))
    assert sorted(seen) == sorted(map(tuple, listed))
    with pytest.raises(zarrfeed.ConfigError, match=r"positions\[0\]"):  # it has no window
        zarrfeed.open(path).window((-1, 0)).patch({"y": 5, "x": 7}, sampling="positions", positions=[(0, 0, 0)])


def test_patches_that_lie_on_no_grid_are_not_stitched(tmp_path: Path) -> None:
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS))
    dataset = ZarrIterableDataset(data.patch(SIZES, sampling="positions", positions=positions(9)), batch_size=3)
    with pytest.raises(zarrfeed.ConfigError, match="no grid"):
        dataset.stitch(dataset, tmp_path / "out")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"positions": None}, "needs them"),
    ({"positions": [[0, 0, 0]], "sampling": "tiles"}, "no other takes them"),
    ({"positions": np.zeros((4, 3))}, "float64"),
    ({"positions": [0, 0, 0]}, r"shape \(3,\)"),
    ({"positions": np.zeros((0, 3), int)}, "at least 1"),
    ({"positions": [[0, 0], [0]]}, "positions"),
    ({"positions": [[0, 0]]}, r"must be \(n, 3\)"),
    ({"positions": [[0] * 5]}, r"must be \(n, 3\)"),
    ({"positions": [[1, 0, 0, 0]]}, r"store 1, must be in \[0, 0\]"),
    ({"positions": [[0, 0, 0], [0, -5, 0]]}, r"positions\[1\] = \[0, -5, 0\]"),
    ({"positions": [[0, 0, 21]]}, r"positions\[0\] = \[0, 0, 21\]"),
    ({"positions": np.array([[0, 0, 2**63]], "u8")}, "below"),
    ({"positions": [[0, 0, 2**62]]}, "no voxel"),
    ({"positions": [[-(2**62), 0, 0]]}, "no voxel"),
    ({"positions": [[0, 0, 0]], "border": "drop"}, "border"),
    ({"positions": [[0, 0, 0]], "border": {1: "shift"}}, "border"),
    ({"positions": [[0, 0, 0]], "stride": {1: 2}}, "stride"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_positions_that_cannot_be_are_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume(), chunks=CHUNKS)
    with pytest.raises(zarrfeed.ConfigError, match=message):
        zarrfeed.open(path).patch(SIZES, **{"sampling": "positions"} | arguments)
