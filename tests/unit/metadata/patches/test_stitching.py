"""Outputs for patches in one array, against sums over the whole volume in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from zarrfeed import ZarrIterableDataset


def opened(folder: Path, shape: tuple[int, ...], chunks: tuple[int, ...], **options: Any) -> zarrfeed.Data:
    array = np.random.default_rng(0).random(shape, dtype="f4")
    zarr.create_array(folder / "v", data=array, chunks=chunks, **options)
    return zarrfeed.open(folder / "v")


def noise(count: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(count).random((count, *shape), dtype="f4"))


def means(
    shape: tuple[int, int], starts: Any, outputs: Any, *, hann: bool = False, wraps: bool = False
) -> np.ndarray[Any, Any]:
    """Return the weighted means of outputs with channels before two dimensions."""
    size = outputs.shape[-2:]
    window = [np.sin(np.pi * (np.arange(p) + 0.5) / p) ** 2 if hann else np.ones(p) for p in size]
    total, weight = np.zeros((*outputs.shape[1:-2], *shape)), np.zeros(shape)
    for start, output in zip(starts, outputs, strict=True):
        for i in range(size[0]):
            for j in range(size[1]):
                y, x = start[0] + i, start[1] + j
                if wraps:
                    y, x = y % shape[0], x % shape[1]
                if 0 <= y < shape[0] and 0 <= x < shape[1]:
                    w = window[0][i] * window[1][j]
                    total[..., y, x] += w * output[..., i, j]
                    weight[y, x] += w
    with np.errstate(invalid="ignore"):
        return total / weight


@pytest.mark.parametrize("memory", ["1 B", "1 MiB"])
@pytest.mark.parametrize("weights", ["flat", "hann"])
@pytest.mark.parametrize("border", ["pad", "drop", "shift", "wrap"])
def test_a_voxel_is_the_weighted_mean_of_its_patches(border: Any, weights: Any, memory: str, tmp_path: Path) -> None:
    data = opened(tmp_path, (19, 14), (5, 6)).patch({0: 6, 1: 5}, sampling="grid", stride={0: 4, 1: 3}, border=border)
    dataset = ZarrIterableDataset(data, batch_size=4, return_index=True)
    made: list[Any] = []

    def outputs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _, index in dataset:
            made.append((data.locate(index)[1], noise(len(index), 2, 6, 5)))
            yield made[-1][1], index

    stitched = dataset.stitch(outputs(), str(tmp_path / "out"), weights=weights, memory=memory, dtype="float64")
    starts, given = (np.concatenate([one[side] for one in made]) for side in (0, 1))
    expected = means((19, 14), starts, given, hann=weights == "hann", wraps=border == "wrap")
    assert stitched.chunks == (2, 5, 6)
    written: Any = zarr.open_array(str(tmp_path / "out"))[:]
    np.testing.assert_allclose(written, expected)
    assert np.isnan(expected).any() == (border == "drop")


def test_outputs_come_in_any_order(tmp_path: Path) -> None:
    data = opened(tmp_path, (19, 14), (5, 6)).patch({0: 6, 1: 5}, sampling="grid")
    dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    stitched = dataset.stitch(((samples, index) for samples, index in loader), {})
    stored: Any = zarr.open_array(tmp_path / "v")[:]
    np.testing.assert_allclose(stitched[:], stored, rtol=1e-6)


@pytest.mark.parametrize("memory", ["1 B", "1 MiB"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_several_volumes_become_a_group_of_arrays(shuffle: bool, memory: str, tmp_path: Path) -> None:
    shapes = [(19, 14), (6, 23), (11, 5)]
    opened_each = [opened(tmp_path / str(i), shape, (5, 6)) for i, shape in enumerate(shapes)]
    volumes = [one.patch({0: 6, 1: 5}, sampling="grid", stride={0: 4}) for one in opened_each]
    dataset = ZarrIterableDataset(zarrfeed.concat(volumes), batch_size=4, shuffle=shuffle, return_index=True)
    outputs = ((torch.stack([batch, 2 * batch], dim=1), index) for batch, index in dataset)
    group = dataset.stitch(outputs, tmp_path / "out", weights="hann", memory=memory)
    assert sorted(name for name, _ in group.arrays()) == ["0", "1", "2"]
    for number in range(len(shapes)):
        stored: Any = zarr.open_array(tmp_path / str(number) / "v", mode="r")[:]
        written: Any = zarr.open_array(tmp_path / "out" / str(number), mode="r")[:]
        np.testing.assert_allclose(written, np.stack([stored, 2 * stored]), rtol=1e-6)
    with pytest.raises(Exception, match="exists"):
        dataset.stitch(((batch, index) for batch, index in dataset), tmp_path / "out")


def test_runs_of_samples_of_one_store_are_volumes(tmp_path: Path) -> None:
    data = opened(tmp_path, (19, 14), (5, 6)).select([*range(7), *range(9, 19)]).patch({0: 6, 1: 5}, sampling="grid")
    dataset = ZarrIterableDataset(data, batch_size=4, return_index=True)
    group = dataset.stitch(((batch, index) for batch, index in dataset), {})
    stored: Any = zarr.open_array(tmp_path / "v", mode="r")[:]
    np.testing.assert_allclose(group["0"][:], stored[:7], rtol=1e-6)
    np.testing.assert_allclose(group["1"][:], stored[9:], rtol=1e-6)


def test_axes_that_patches_lack_come_first(tmp_path: Path) -> None:
    names = ("time", "c", "y", "x")
    data = opened(tmp_path, (7, 3, 12, 9), (2, 3, 5, 9), dimension_names=names).isel(time=slice(1, 6))
    data = data.patch({"y": 5, "x": 4}, sampling="grid")
    dataset = ZarrIterableDataset(data, batch_size=4, return_index=True)
    stitched = dataset.stitch(((batch.mul(2), index) for batch, index in dataset), {})
    assert stitched.shape == (5, 3, 12, 9)
    stored: Any = zarr.open_array(tmp_path / "v")[:]
    np.testing.assert_allclose(stitched[:], 2 * stored[1:6], rtol=1e-6)


def test_outputs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source = opened(tmp_path, (19, 14), (5, 6))
    data = source.patch({0: 6, 1: 5}, sampling="grid")
    dataset = ZarrIterableDataset(data, batch_size=4)
    index = dataset.sample_order()
    count = len(index)
    bad: list[tuple[list[Any], str]] = [
        ([noise(count, 6, 5)], "pairs"),
        ([(noise(count, 6, 4), index)], "must end with"),
        ([(noise(count - 1, 6, 5), index[1:])], f"{count - 1} outputs, must be one for each of {count}"),
        ([(noise(count, 6, 5), index), (noise(2, 6, 5), index[:2])], "twice"),
        ([(noise(2, 6, 5), index[[0, 0]])], "twice"),
        ([(noise(2, 6, 5), index[:3])], "of these patches"),
        ([(noise(2, 6, 5), index[:2] + 1)], "of these patches"),
        ([(noise(4, 6, 5), index[:4]), (noise(count - 4, 1, 6, 5), index[4:])], "before"),
        ([], "0 outputs"),
    ]
    for outputs, message in bad:
        with pytest.raises(zarrfeed.ConfigError, match=message):
            dataset.stitch(outputs, {})
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"weights": "gauss"}, "weights"),
        ({"dtype": "int32"}, "dtype"),
        ({"memory": "much"}, "memory"),
        ({"overwrite": 1}, "overwrite"),
    ]
    for options, message in wrong:
        with pytest.raises(zarrfeed.ConfigError, match=message):
            dataset.stitch([(noise(count, 6, 5), index)], {}, **options)
    with pytest.raises(zarrfeed.ConfigError, match="the samples are no patches"):
        ZarrIterableDataset(source).stitch([], {})
    with pytest.raises(zarrfeed.ConfigError, match="each epoch"):
        ZarrIterableDataset(source.patch({0: 6, 1: 5}), shuffle=True).stitch([], {})
