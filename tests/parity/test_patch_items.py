"""Patches with some items of other axes, such as channels, against NumPy indexing of the whole array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.patches import check_ranks_and_resume, patch_of, read, stored, volume
from zarrfeed import ZarrIterableDataset
from zarrfeed.base.errors import ConfigError

SIZE: dict[str | int, int] = {"y": 8, "x": 9, "z": 5}
#: Axes of the image: time, channels, then space, with channels in chunks of 3.
SHAPE, CHUNKS, NAMES = (10, 7, 18, 19), (4, 3, 8, 8), ("z", "c", "y", "x")


def image(path: Path, **options: Any) -> str:
    return stored(path, volume(SHAPE), chunks=CHUNKS, dimension_names=NAMES, **options)


@pytest.mark.parametrize(
    "index", [2, -1, slice(1, 6, 2), slice(None, None, -1), [0, 2], [6, 0, 0, 3], [True] * 6 + [False]]
)
@pytest.mark.parametrize("sampling", ["tiles", "random"])
def test_samples_have_the_selected_items_in_their_order(index: Any, sampling: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"sampling": sampling} | ({"n": 40} if sampling == "random" else {})
    data = zarrfeed.open(image(tmp_path / "v")).patch(SIZE, isel={"c": index}, **options)
    selected = volume(SHAPE)[:, index]  # NumPy's own
    axes = [1, 2] if isinstance(index, int) else [2, 3]
    count = 0
    for patch, number in read(ZarrIterableDataset(data, batch_size=5, shuffle=True, seed=3, return_index=True)):
        start = data.locate(number)[1]
        full = [0] * selected.ndim
        size = list(selected.shape)
        for axis, at, length in zip([0, *axes], start, [5, 8, 9], strict=True):
            full[axis], size[axis] = at, length
        np.testing.assert_array_equal(patch.numpy(), patch_of(selected, np.array(full), size))
        count += 1
    assert count == (40 if sampling == "random" else len(data))


def test_only_chunks_with_selected_items_are_decoded_and_counted(tmp_path: Path) -> None:
    path = image(tmp_path / "v")
    for index, chunks in (([0, 2], 1), ([0, 3], 2), (slice(None), 3)):
        data = zarrfeed.open(path).patch(SIZE, isel={"c": index}, sampling="grid")
        dataset = ZarrIterableDataset(data, batch_size=4)
        explained = dataset.explain().fields[0]
        sum(1 for _ in dataset)
        assert dataset.stats().chunks_read == explained.chunk_reads
        assert round(explained.chunk_reads / explained.amplification) == 3 * 3 * 3 * chunks
    others = list((tmp_path / "v" / "c").glob("*/1/*/*"))  # chunks with items 3, 4 and 5
    assert len(others) == 27
    for chunk in others:
        chunk.write_bytes(b"broken")
    data = zarrfeed.open(path).patch(SIZE, isel={"c": [0, 6]})
    assert sum(1 for _ in ZarrIterableDataset(data, batch_size=4, shuffle=True))


def test_ranks_and_resuming_share_one_order_and_labels_without_channels_stay_whole(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    group.create_array("image", data=volume(SHAPE), chunks=CHUNKS, dimension_names=NAMES)
    labels = volume(SHAPE)[:, 5]
    group.create_array("label", data=labels, chunks=(10, 9, 9), dimension_names=("z", "y", "x"))
    data = zarrfeed.open(str(tmp_path / "g")).patch({"y": 4, "x": 5, "z": 2}, isel={"c": [1, 5]})
    check_ranks_and_resume(data, 2)
    for sample, _ in read(ZarrIterableDataset(data, batch_size=3, shuffle=True, return_index=True)):
        np.testing.assert_array_equal(sample["image"][:, 1], sample["label"])


def test_numbers_of_channels_are_those_of_the_selected_ones(tmp_path: Path) -> None:
    path = image(tmp_path / "v")
    mean, std = np.array([3.0, 50.0]), np.array([2.0, 4.0])
    data = zarrfeed.open(path).patch(SIZE, isel={"c": [4, 1]}, sampling="grid", border="drop")
    for normalized in (
        data.normalize((mean, std), axis="c"),
        data.normalize((mean[:, None, None], std[:, None, None])),
    ):
        for patch, number in read(ZarrIterableDataset(normalized, batch_size=3, return_index=True)):
            start = data.locate(number)[1]
            box = volume(SHAPE)[:, [4, 1]][
                tuple(slice(s, s + n) for s, n in zip(np.insert(start, 1, 0), (5, 2, 8, 9), strict=True))
            ]
            expected = (box - mean[:, None, None]) / std[:, None, None]
            np.testing.assert_allclose(patch.numpy(), expected, rtol=1e-6)
    with pytest.raises(ConfigError, match="7 values, axis 2 has length 2"):
        data.normalize((np.zeros(7), np.ones(7)), axis="c")


def test_selected_channels_are_turned_stacked_and_stitched(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    channels_first = np.moveaxis(volume((7, 16, 16)), 0, 0)
    for name in "ab":
        group.create_array(
            name, data=channels_first[None].repeat(6, 0), chunks=(2, 3, 8, 8), dimension_names=("t", "c", "y", "x")
        )
    size: dict[str | int, int] = {"y": 8, "x": 8}
    data = zarrfeed.open(str(tmp_path / "g")).patch(size, isel={"c": [0, 6]}, flip=["y", "x"]).stack(["a", "b"])
    assert data.channels["samples"] == ("a[0]", "a[1]", "b[0]", "b[1]")
    assert next(iter(ZarrIterableDataset(data, batch_size=4, shuffle=True))).shape == (4, 4, 8, 8)
    grid = zarrfeed.open(str(tmp_path / "g" / "a")).patch(size, isel={"c": 6}, sampling="grid")
    dataset = ZarrIterableDataset(grid, batch_size=4, return_index=True)
    made = dataset.stitch(iter(dataset), tmp_path / "out.zarr")
    np.testing.assert_array_equal(made[:], channels_first[6][None].repeat(6, 0))


@pytest.mark.parametrize(
    ("isel", "message"),
    [
        ([0], "must be a mapping"),
        ({"q": 0}, "no array has this dimension; there are"),
        ({"chan": 0}, "no array has this dimension"),
        ({"y": 0}, "along which patches are cut"),
        ({2: 0}, "patches of samples are cut along it"),
        ({"z": 0}, "along which patches are cut"),
        ({"c": 7}, "has 7 items along it"),
        ({"c": []}, "must be an integer, a slice"),
        ({"c": slice(9, None)}, "chooses none of the 7 items"),
        ({"c": [[0]]}, "must be an integer, a slice"),
        ({"c": [0.5]}, "must be an integer, a slice"),
        ({"c": True}, "must be an integer, a slice"),
        ({"c": [True, False]}, "has 7 items along it"),
        ({True: 0}, "must name a dimension, or the number of an axis"),
    ],
)
def test_what_selects_nothing_is_refused(isel: Any, message: str, tmp_path: Path) -> None:
    data = zarrfeed.open(image(tmp_path / "v"))
    with pytest.raises(ConfigError, match=message):
        data.patch(SIZE, isel=isel)


def test_the_axis_of_samples_is_chosen_by_isel_of_the_data(tmp_path: Path) -> None:
    data = zarrfeed.open(image(tmp_path / "v"))
    with pytest.raises(ConfigError, match="samples of samples lie along it"):
        data.patch({"y": 8, "x": 9}, isel={"z": 0})
    assert [tuple(one.shape for one in made.fields) for made in (data, data.isel(c=0))] == [((7, 18, 19),), ((18, 19),)]


def test_an_expression_has_the_items(tmp_path: Path) -> None:
    data = zarrfeed.open(image(tmp_path / "v"))
    made = [data.patch(SIZE, isel={"c": one}).expression for one in ([0, 2], (0, 2), slice(0, 2), 1)]
    assert made[0] == made[1] != made[2]
    assert "isel={'c': slice(0, 2)}" in str(made[2])
    assert "isel={'c': (0, 2)}" in str(made[0])
