"""Patches by index: the patch at the i-th position, or the i-th one of the grid, equals a slice of the volume."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zarrfeed
from tests.support.patches import Voxels, patch_of, stored, volume
from zarrfeed import ZarrDataset

SHAPES = ((30, 26, 21), (12, 17, 9))
SIZE = (6, 5, 4)
STEP = (6, 3, 4)


def volumes(folder: Path) -> list[Voxels]:
    """Write volumes of two sizes, the second of which has a chunk less; return what they hold."""
    first, second = volume(SHAPES[0]), volume(SHAPES[1], first=50_000)
    stored(folder / "0", first, chunks=(8, 9, 7))
    stored(folder / "1", second, chunks=(30, 4, 9))
    (folder / "1" / "c" / "0" / "1" / "0").unlink()
    second[:, 4:8] = 0
    return [first, second]


def grid_starts(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return where patches begin: the last one along each axis is the first one that reaches the end."""
    along = zip(shape, SIZE, STEP, strict=True)
    return list(itertools.product(*(range(0, extent - size + step, step) for extent, size, step in along)))


@pytest.mark.parametrize("cache", [0, "1 MiB"])
@pytest.mark.parametrize("sampling", ["grid", "positions"])
def test_patches_by_index_are_slices(sampling: str, cache: Any, tmp_path: Path) -> None:
    arrays = volumes(tmp_path)
    random = np.random.default_rng(1)
    listed = [random.integers(-3, 9, (40, 3)), random.integers(-3, 9, (25, 3))]
    options: list[dict[str, Any]] = [{"positions": one} for one in listed]
    if sampling == "grid":
        options = [{"stride": dict(enumerate(STEP))}] * 2
    data = zarrfeed.concat(
        [
            zarrfeed.open(tmp_path / str(i)).patch(dict(enumerate(SIZE)), sampling=sampling, pad=-1, **more)  # type: ignore[arg-type]
            for i, more in enumerate(options)
        ]
    )
    expected = [
        (number, tuple(start))
        for number, shape in enumerate(SHAPES)
        for start in (listed[number].tolist() if sampling == "positions" else grid_starts(shape))
    ]
    dataset = ZarrDataset(data, return_index=True, cache=cache)
    assert len(dataset) == len(expected)
    for _ in range(3):
        wanted = random.integers(-len(expected), len(expected), 31)
        patches, index = dataset[wanted]
        stores, starts = data.locate(index)
        for patch, which, store, start in zip(patches, wanted, stores, starts, strict=True):
            assert (store, tuple(start)) == expected[which]
            np.testing.assert_array_equal(patch.numpy(), patch_of(arrays[store], start, SIZE, pad=-1))
    one, number = dataset[7]
    np.testing.assert_array_equal(one.numpy(), patch_of(arrays[0], np.array(expected[7][1]), SIZE, pad=-1))
    assert tuple(data.locate(number)[1]) == expected[7][1]
    assert len(dataset[[]][0]) == 0
    with pytest.raises(IndexError):
        dataset[len(expected)]


def test_workers_and_samplers_take_patches(tmp_path: Path) -> None:
    (array, _) = volumes(tmp_path)
    label = stored(tmp_path / "label", volume(first=100_000), chunks=(30, 5, 21))
    data = zarrfeed.open({"image": str(tmp_path / "0"), "label": label})
    data = data.patch(dict(enumerate(SIZE)), sampling="grid", border="drop")
    dataset = ZarrDataset(data, return_index=True)
    weights = torch.rand(len(dataset), generator=torch.Generator().manual_seed(0))
    sampler = torch.utils.data.WeightedRandomSampler(weights.tolist(), 50, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2)
    count = 0
    for samples, index in loader:
        for image, mask, start in zip(samples["image"], samples["label"], data.locate(index)[1], strict=True):
            np.testing.assert_array_equal(image.numpy(), patch_of(array, start, SIZE))
            np.testing.assert_array_equal(mask.numpy(), image.numpy() + 99_999)
            count += 1
    assert count == 50
    assert "patches of" in repr(dataset)


def test_a_request_decodes_a_chunk_once(tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume((16, 16)), chunks=(8, 8))
    data = zarrfeed.open(path).patch({0: 4, 1: 4}, sampling="grid", stride={0: 2, 1: 2}, border="drop")
    dataset = ZarrDataset(data, cache=0)
    dataset[range(len(dataset))]
    assert dataset.stats().chunks_read == 4
