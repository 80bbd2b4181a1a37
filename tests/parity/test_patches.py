"""Patches against NumPy slicing of the whole array: every voxel of every patch, and each voxel once in an epoch.

The number of a patch says where it begins, so what it must be follows from `np.pad` of the array and that number alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from tests.support.patches import SHAPE, Voxels, check_ranks_and_resume, patch_of, read, stored, volume
from zarrfeed import ZarrIterableDataset
from zarrfeed.base.errors import CorruptChunkError, StoreReadError

CHUNKS = (9, 8, 7)
SIZE = (8, 5, 7)


def check(data: zarrfeed.Data, array: Voxels, size: Sequence[int], *, pad: Any = 0, **options: Any) -> Voxels:
    """Read an epoch, compare its patches; return how often each voxel came."""
    dataset = ZarrIterableDataset(data, batch_size=5, return_index=True, **options)
    count = np.zeros(array.shape, dtype=int)
    numbers = []
    for patch, number in read(dataset):
        _, start = data.locate(number)
        np.testing.assert_array_equal(patch.numpy(), patch_of(array, start, size, pad))
        inside = tuple(slice(max(0, s), s + p) for s, p in zip(start, size, strict=True))
        count[inside] += 1
        numbers.append(number)
    assert numbers == dataset.sample_order(0).tolist()
    assert len(dataset) == -(-len(dataset.sample_order(1)) // 5)  # of the next epoch
    return count


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("budget", [None, "1.1 MiB"])
@pytest.mark.parametrize(
    "options",
    [
        {"chunks": CHUNKS},
        {"chunks": (4, 26, 5), "shards": (8, 26, 15)},
        {"chunks": (30, 6, 21), "order": "F", "zarr_format": 2},
        {"chunks": (50, 50, 50)},
    ],
)
def test_each_voxel_comes_once_and_is_that_of_the_array(
    options: dict[str, Any], budget: str | None, shuffle: bool, tmp_path: Path
) -> None:
    data = zarrfeed.open(stored(tmp_path / "v", volume(), **options)).patch({0: 8, 1: 5, 2: 7}, pad=-3)
    for seed in range(2):
        count = check(data, volume(), SIZE, pad=-3, shuffle=shuffle, seed=seed, memory_budget=budget)
        assert (count == 1).all()


@pytest.mark.parametrize("pad", [7, "edge", "reflect"])
def test_voxels_beyond_the_volume_are_padded(pad: Any, tmp_path: Path) -> None:
    small = volume((5, 26, 21))  # smaller than a patch
    data = zarrfeed.open(stored(tmp_path / "v", small, chunks=(3, 8, 7))).patch({0: 8, 1: 5, 2: 7}, pad=pad)
    for seed in range(3):
        assert (check(data, small, SIZE, pad=pad, shuffle=True, seed=seed) == 1).all()


def test_padding_with_nan_is_for_floats(tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume(), chunks=CHUNKS)
    with pytest.raises(zarrfeed.ConfigError, match="pad"):
        ZarrIterableDataset(zarrfeed.open(path).patch({0: 8}, pad="nan"))
    data = zarrfeed.open(path).cast("float32").patch({0: 8, 1: 5, 2: 7}, pad="nan")
    assert (check(data, volume().astype("f4"), SIZE, pad="nan", shuffle=True) == 1).all()


@pytest.mark.parametrize("border", ["drop", "shift", "wrap"])
def test_borders_keep_to_what_they_say(border: Any, tmp_path: Path) -> None:
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS)).patch({0: 8, 1: 5, 2: 7}, border=border)
    wraps = (0, 1, 2) if border == "wrap" else ()
    for seed in range(4):
        dataset = ZarrIterableDataset(data, batch_size=5, shuffle=True, seed=seed, return_index=True)
        count = np.zeros(SHAPE, dtype=int)
        for patch, number in read(dataset):
            _, start = data.locate(number)
            assert border == "wrap" or ((start >= 0) & (start + SIZE <= SHAPE)).all()
            np.testing.assert_array_equal(patch.numpy(), patch_of(volume(), start, SIZE, wraps=wraps))
            count[np.ix_(*((s + np.arange(p)) % n for s, p, n in zip(start, SIZE, SHAPE, strict=True)))] += 1
        assert count.max() <= {"drop": 1, "shift": 3**3, "wrap": 2**3}[border]
        assert border == "drop" or count.min() >= 1
        assert (count[:, :, 0:21] if border == "wrap" else count).min() >= (0 if border == "drop" else 1)


def test_a_grid_is_the_same_in_all_epochs(tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume(), chunks=CHUNKS)
    data = zarrfeed.open(path).patch(
        {0: 8, 1: 5, 2: 7}, sampling="grid", stride={0: 4, 2: 7}, border={0: "shift", 1: "drop", 2: "pad"}
    )
    dataset = ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True)
    for epoch in range(2):
        starts = {tuple(data.locate(number)[1].tolist()) for _, number in read(dataset)}
        z, y, x = ([0, 4, 8, 12, 16, 20, 22], [0, 5, 10, 15, 20], [0, 7, 14])
        assert starts == set(itertools.product(z, y, x)), epoch


def test_arrays_are_cut_alike_whatever_their_axes_and_chunks(tmp_path: Path) -> None:
    image = np.stack([volume(), volume() * 2, volume() * 3], axis=1)  # z, channel, y, x
    label = volume() % 251
    group = zarr.create_group(tmp_path / "g")
    options: dict[str, Any] = {"dimension_names": ("z", "c", "y", "x"), "chunks": (8, 2, 10, 21)}
    group.create_array("image", data=image, **options)
    group.create_array("label", data=label.astype("u1"), dimension_names=("z", "y", "x"), chunks=(30, 4, 5))
    data = zarrfeed.open(tmp_path / "g").patch({"z": 8, "y": 5, "x": 7}, pad=0)
    data = data.normalize({"image": ([1.0, 2.0, 3.0], [2.0, 4.0, 8.0])}, axis="c")
    assert [(one.name, one.shape) for one in data.fields] == [("image", (8, 3, 5, 7)), ("label", (8, 5, 7))]
    mean, std = (np.array(one, dtype="f4")[:, None, None] for one in ([1, 2, 3], [2, 4, 8]))
    dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True, seed=5)
    for patch, number in read(dataset):
        _, start = data.locate(number)
        expected = patch_of(label, start, SIZE)
        np.testing.assert_array_equal(patch["label"].numpy(), expected)
        inside = patch_of(np.ones(SHAPE, bool), start, SIZE, pad=False)
        channels = [patch_of(image[:, c], start, SIZE).astype("f4") for c in range(3)]
        normalised = (np.stack(channels, axis=1) - mean) / std
        np.testing.assert_array_equal(patch["image"].numpy(), np.where(inside[:, None], normalised, 0))


def test_images_over_time_are_cut_without_an_axis_over_time(tmp_path: Path) -> None:
    field = volume((12, 26, 21))
    path = stored(tmp_path / "v", field, chunks=(5, 9, 21), dimension_names=("time", "y", "x"))
    data = zarrfeed.open(path).isel(time=slice(2, 11)).patch({"y": 5, "x": 7}, border={"y": "pad", "x": "wrap"})
    dataset = ZarrIterableDataset(data, batch_size=8, shuffle=True, return_index=True)
    count = np.zeros(field.shape, dtype=int)
    for patch, number in read(dataset):
        _, (t, y, x) = data.locate(number)
        assert patch.shape == (5, 7)
        np.testing.assert_array_equal(patch.numpy(), patch_of(field[t], (y, x), (5, 7), wraps=(1,)))  # type: ignore[arg-type]
        count[t, max(0, y) : y + 5, (x + np.arange(7)) % 21] += 1
    assert (count[2:11] == 1).all()
    assert (count[:2] == 0).all()
    assert (count[11:] == 0).all()


def test_windows_of_boxes_have_the_rows_of_each_window(tmp_path: Path) -> None:
    first, second = volume((12, 26, 21)), volume((9, 26, 21), first=50_000)
    names: dict[str, Any] = {"dimension_names": ("time", "y", "x")}
    paths = [stored(tmp_path / "a", first, chunks=(5, 9, 21), **names)]
    paths.append(stored(tmp_path / "b", second, chunks=(2, 26, 8), **names))
    data = zarrfeed.open(paths, paths).select(slice(2, 20))
    data = data.window({"samples": (-2, 0), "targets": 1}).patch({"y": 8, "x": 7})
    times = {0: range(4, 11), 1: range(2, 7)}  # those whose windows lie in the slice, and in one store
    seen = []
    for _ in range(2):
        dataset = ZarrIterableDataset(data, batch_size=6, shuffle=True, return_index=True)
        for samples, targets, index in dataset:
            for patch, target, number in zip(samples, targets, index.tolist(), strict=True):
                store, (t, y, x) = data.locate(number)
                field = (first, second)[store]
                expected = [patch_of(field[t + offset], np.array((y, x)), (8, 7)) for offset in (-2, 0, 1)]
                np.testing.assert_array_equal(patch.numpy(), np.stack(expected[:2]))
                np.testing.assert_array_equal(target.numpy(), expected[2])
                seen.append((store, t))
    assert set(seen) == {(store, t) for store in (0, 1) for t in times[store]}


def test_each_store_is_a_volume_and_so_is_each_run_of_samples(tmp_path: Path) -> None:
    first, second = volume((30, 26)), volume((11, 26), first=1000)
    paths = [stored(tmp_path / "a", first, chunks=(8, 9)), stored(tmp_path / "b", second, chunks=(4, 26))]
    data = zarrfeed.open(paths).select([*range(3, 20), *range(25, 41)]).patch({0: 8, 1: 5}, pad="edge")
    assert isinstance(data.locate(0)[1], np.ndarray)
    parts = {0: [(3, 20), (25, 30)], 1: [(0, 11)]}
    counts = [np.zeros_like(first), np.zeros_like(second)]
    for seed in range(3):
        dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True, seed=seed)
        for patch, number in read(dataset):
            store, start = data.locate(number)
            begin, end = next((a, b) for a, b in parts[store] if a - 8 < start[0] < b and start[0] + 8 > a)
            array = (first, second)[store][begin:end]
            expected = patch_of(array, start - (begin, 0), (8, 5), pad="edge")
            np.testing.assert_array_equal(patch.numpy(), expected)
            rows, columns = slice(max(begin, start[0]), min(end, start[0] + 8)), slice(max(0, start[1]), start[1] + 5)
            counts[store][rows, columns] += 1
    assert set(np.unique(counts[0][3:20])) | set(np.unique(counts[0][25:])) | set(np.unique(counts[1])) == {3}
    assert counts[0].sum() == 3 * 26 * 22


def test_volumes_may_differ_in_size_and_chunks_if_each_is_cut(tmp_path: Path) -> None:
    shapes = [(30, 26), (5, 40), (17, 9)]
    arrays = [volume(shape, first=1000 * i) for i, shape in enumerate(shapes)]
    cut = []
    for i, array in enumerate(arrays):
        path = stored(tmp_path / str(i), array, chunks=(4 + i, 9 - i))
        cut.append(zarrfeed.open(path).patch({0: 8, 1: 5}, pad=-1))
    cut[0] = zarrfeed.open(tmp_path / "0").select(slice(4, 28)).patch({0: 8, 1: 5}, pad=-1)
    data = zarrfeed.concat(cut)
    counts = [np.zeros_like(array) for array in arrays]
    for seed in range(3):
        dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True, seed=seed)
        for patch, number in read(dataset):
            store, start = data.locate(number)
            rows = slice(4, 28) if store == 0 else slice(0, None)
            expected = patch_of(arrays[store][rows], start - (rows.start, 0), (8, 5), pad=-1)
            np.testing.assert_array_equal(patch.numpy(), expected)
            counts[store][max(rows.start, start[0]) : start[0] + 8, max(0, start[1]) : start[1] + 5] += 1
    counts[0][28:] = 3  # patches reach there, and have padding
    assert all(set(np.unique(one[4 * (i == 0) :])) == {3} for i, one in enumerate(counts))
    other = zarrfeed.open(tmp_path / "1").patch({0: 8, 1: 5}, pad=-2)
    with pytest.raises(zarrfeed.ConfigError, match="other patches"):
        zarrfeed.concat([cut[0], other])
    with pytest.raises(zarrfeed.ConfigError, match="same shape"):
        zarrfeed.concat([cut[0], zarrfeed.open(tmp_path / "1")])


def test_ranks_and_resuming_share_one_order(tmp_path: Path) -> None:
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS)).patch({0: 8, 1: 5, 2: 7})
    assert len(check_ranks_and_resume(data, num_batches=4)) == 2


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_read_all_patches(num_workers: int, tmp_path: Path) -> None:
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS)).patch({0: 8, 1: 5, 2: 7})
    dataset = ZarrIterableDataset(data, batch_size=6, shuffle=True, return_index=True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=num_workers)
    orders = [sorted(dataset.sample_order(epoch).tolist()) for epoch in range(2)]
    for order in orders:
        numbers = []
        for patches, index in loader:
            for patch, number in zip(patches, index.tolist(), strict=True):
                np.testing.assert_array_equal(patch.numpy(), patch_of(volume(), data.locate(number)[1], SIZE))
                numbers.append(number)
        assert sorted(numbers) == order
    assert orders[0] != orders[1]


def test_starts_are_uniform_over_epochs(tmp_path: Path) -> None:
    data = zarrfeed.open(stored(tmp_path / "v", volume((20, 20)), chunks=(7, 7))).patch({0: 4, 1: 6})
    dataset = ZarrIterableDataset(data, shuffle=True)
    phases = np.zeros((4, 6))
    epochs = 600
    for epoch in range(epochs):
        start = data.locate(dataset.sample_order(epoch)[:1])[1][0]
        phases[start[0] % 4, start[1] % 6] += 1
    expected = epochs / phases.size
    assert ((phases - expected) ** 2 / expected).sum() < 49.7  # chi-square of 23 degrees of freedom, p = 0.001


def test_missing_chunks_have_the_fill_value_and_bad_ones_are_errors_that_name_them(tmp_path: Path) -> None:
    array = volume()
    path = stored(tmp_path / "v", array, chunks=CHUNKS, fill_value=-9)
    (tmp_path / "v" / "c" / "1" / "0" / "2").unlink()
    array[9:18, 0:8, 14:21] = -9
    data = zarrfeed.open(path).patch({0: 8, 1: 5, 2: 7}, pad=-3)
    assert (check(data, array, SIZE, pad=-3, shuffle=True) == 1).all()
    with pytest.raises(StoreReadError, match="c/1/0/2: is missing"):
        list(ZarrIterableDataset(data, shuffle=True, faults={"missing": "raise"}))
    (tmp_path / "v" / "c" / "2" / "1" / "0").write_bytes(b"no chunk at all")
    with pytest.raises(CorruptChunkError, match="c/2/1/0"):
        list(ZarrIterableDataset(data, shuffle=True))


def test_a_lane_decodes_each_chunk_once_as_it_sweeps(tmp_path: Path) -> None:
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS)).patch({0: 8, 1: 5, 2: 7})
    dataset = ZarrIterableDataset(data, batch_size=6, shuffle=False)
    list(dataset)
    assert dataset.stats().chunks_read == 4 * 4 * 3


BAD: list[tuple[dict[str, Any], str]] = [
    ({"size": {}}, "size = {}"),
    ({"size": 8}, "size = 8"),
    ({"size": {0: 0}}, "size of 0"),
    ({"size": {3: 4}}, "axis 3"),
    ({"size": {"w": 4}}, "'w'"),
    ({"size": {0: 4, -3: 5}}, "twice"),
    ({"size": {1.5: 4}}, "size names 1.5"),
    ({"size": {0: 8}, "sampling": "all"}, "sampling"),
    ({"size": {0: 8}, "border": "mirror"}, "border"),
    ({"size": {0: 8}, "border": {1: "pad"}}, "border names 1"),
    ({"size": {0: 8}, "stride": {0: 4}}, "stride"),
    ({"size": {0: 8}, "stride": {0: 9}, "sampling": "grid"}, "stride = 9"),
    ({"size": {0: 8}, "stride": {1: 4}, "sampling": "grid"}, "stride names 1"),
    ({"size": {0: 8}, "pad": "zero"}, "pad = 'zero'"),
    ({"size": {0: 8}, "pad": None}, "pad = None"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume(), chunks=CHUNKS, dimension_names=("z", "y", "x"))
    with pytest.raises(zarrfeed.ConfigError, match=message):
        zarrfeed.open(path).patch(**arguments)


def test_a_patch_that_is_larger_than_its_volume_is_refused_unless_it_is_padded(tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume(), chunks=CHUNKS)
    for border in ("drop", "shift", "wrap"):
        with pytest.raises(zarrfeed.ConfigError, match="at most 30"):
            ZarrIterableDataset(zarrfeed.open(path).patch({0: 31}, border=border))


def test_what_patches_do_not_go_with_is_said(tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume(), chunks=CHUNKS)
    data = zarrfeed.open(path).patch({0: 8})
    of_order: list[Callable[[], object]] = [
        lambda: data.select(slice(3)),
        lambda: data.window((0, 1)),
        lambda: data.split((0.5, 0.5)),
        lambda: data.blocks([0]),
        lambda: data.patch({0: 8}),
        lambda: zarrfeed.mix([data, data]),
        lambda: zarrfeed.open(path).window((0, 1)).patch({0: 8}),
        lambda: data.with_offsets((0, 1)),
        lambda: ZarrIterableDataset(data, mixing={"mix": 2}),
        lambda: zarrfeed.ZarrDataset(data),
        lambda: zarrfeed.ZarrDataset(zarrfeed.open(path).patch({0: 8}, sampling="random", n=3)),
    ]
    for call in of_order:
        with pytest.raises(zarrfeed.ConfigError):
            call()
    of_reading: list[Callable[[], object]] = [
        lambda: zarrfeed.open(np.zeros((30, 30))).patch({0: 8}),
        lambda: zarrfeed.open(path).window((0, 1), pad="edge").patch({1: 8}),
    ]
    for call in of_reading:
        with pytest.raises(zarrfeed.UnsupportedError):
            call()
    with pytest.raises(IndexError):
        data.locate(10**9)
