"""Patches that are flipped and rotated, against `np.flip` and `np.transpose` of what NumPy slices and pads.

`Turns.at` says which orientation each patch has; the engine draws it by code of its own.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from tests.support.patches import Voxels, check_ranks_and_resume, patch_of, read, stored, turned, volume
from zarrfeed import ZarrIterableDataset
from zarrfeed.plan.patches.patch_turns import Turns

CHUNKS = (9, 8, 7)
SIDE = 9
CUBE: dict[str | int, int] = {0: SIDE, 1: SIDE, 2: SIDE}
ALL = (0, 1, 2)


def expected(
    array: Voxels, data: zarrfeed.Data, number: int, turns: Turns, epoch: int = 0, seed: int = 0, pad: Any = 0
) -> Voxels:
    """Return what a patch must be, whose dimensions are the axes of an array."""
    start = data.locate(number)[1]
    patch = patch_of(array, start, (SIDE,) * len(start), pad)
    return turned(patch, turns.at(seed, epoch, np.array([number]))[0])


def check(data: zarrfeed.Data, array: Voxels, turns: Turns, *, pad: Any = 0, epochs: int = 2, **options: Any) -> None:
    """Read epochs, and compare their patches."""
    options = {"shuffle": True, "seed": 3} | options
    dataset = ZarrIterableDataset(data, batch_size=5, return_index=True, **options)
    for epoch in range(epochs):
        drawn = set()
        for patch, number in read(dataset):
            np.testing.assert_array_equal(patch.numpy(), expected(array, data, number, turns, epoch, 3, pad))
            drawn.add(tuple(turns.at(3, epoch, np.array([number]))[0]))
        assert len(drawn) > 1


@pytest.mark.parametrize(
    ("flip", "rotate"),
    [((0,), ()), ((1,), ()), ((2,), ()), ((), (0, 1)), ((), (1, 2)), ((), (2, 0)), ((2,), (1, 2)), (ALL, ALL)],
)
@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i4", "<f8", "<c16"])
def test_patches_of_every_width_are_turned_as_numpy_turns_them(
    dtype: str, flip: tuple[int, ...], rotate: tuple[int, ...], tmp_path: Path
) -> None:
    array = (volume() % 251).astype(dtype)
    options: dict[str, Any] = {"zarr_format": 2} if dtype[0] == ">" else {}
    path = stored(tmp_path / "v", array, chunks=CHUNKS, **options)
    data = zarrfeed.open(path).patch(CUBE, flip=flip, rotate=list(rotate))
    check(data, array.astype(array.dtype.newbyteorder("=")), Turns(3, flip, rotate), epochs=1)


@pytest.mark.parametrize("pad", [-3, "edge", "reflect"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_padding_is_turned_with_its_patch(pad: Any, shuffle: bool, tmp_path: Path) -> None:
    small = volume((7, 26, 21))  # smaller than a patch
    data = zarrfeed.open(stored(tmp_path / "v", small, chunks=(3, 8, 7))).patch(CUBE, pad=pad, flip=ALL, rotate=ALL)
    check(data, small, Turns(3, ALL, ALL), pad=pad, shuffle=shuffle, epochs=3)


def test_periodic_dimensions_are_turned(tmp_path: Path) -> None:
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS))
    data = data.patch(CUBE, border="wrap", flip=ALL, rotate=ALL)
    dataset = ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True)
    turns = Turns(3, ALL, ALL)
    for patch, number in read(dataset):
        box = patch_of(volume(), data.locate(number)[1], (SIDE,) * 3, wraps=ALL)
        np.testing.assert_array_equal(patch.numpy(), turned(box, turns.at(0, 0, np.array([number]))[0]))


def test_missing_chunks_have_the_fill_value_at_the_turned_index(tmp_path: Path) -> None:
    array = volume()
    path = stored(tmp_path / "v", array, chunks=CHUNKS, fill_value=-9)
    (tmp_path / "v" / "c" / "1" / "0" / "2").unlink()
    array[9:18, 0:8, 14:21] = -9
    check(zarrfeed.open(path).patch(CUBE, pad=-3, flip=ALL, rotate=ALL), array, Turns(3, ALL, ALL), pad=-3)


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (4, 26, 5), "shards": (8, 26, 15)},
        {"chunks": (30, 6, 21), "order": "F", "zarr_format": 2},
        {"chunks": (50, 50, 50)},
    ],
)
@pytest.mark.parametrize("budget", ["64 KiB", "1 GiB"])
def test_neither_chunks_nor_memory_change_how_patches_are_turned(
    options: dict[str, Any], budget: str, tmp_path: Path
) -> None:
    path = stored(tmp_path / "v", volume((40, 26, 21)), **options)
    data = zarrfeed.open(path).patch(CUBE, flip=ALL, rotate=ALL)
    check(data, volume((40, 26, 21)), Turns(3, ALL, ALL), memory_budget=budget if "shards" in options else "1.1 MiB")


def test_all_arrays_are_turned_alike_whatever_their_axes(tmp_path: Path) -> None:
    image = np.stack([volume(), volume() * 2, volume() * 3], axis=1)  # z, channel, y, x
    label = volume() % 251
    group = zarr.create_group(tmp_path / "g")
    group.create_array("image", data=image, dimension_names=("z", "c", "y", "x"), chunks=(8, 2, 10, 21))
    group.create_array("label", data=label.astype("u1"), dimension_names=("z", "y", "x"), chunks=(30, 4, 5))
    # The samples of each array lie along z, but its other axes are in an order of its own.
    across = np.moveaxis(volume(), (0, 1, 2), (0, 2, 1))
    group.create_array("across", data=across, dimension_names=("z", "x", "y"), chunks=(7, 6, 5))
    size: dict[str | int, int] = {"z": SIDE, "y": SIDE, "x": SIDE}
    data = zarrfeed.open(tmp_path / "g").patch(size, flip=["x", "z"], rotate=["z", "y", "x"])
    data = data.normalize({"image": ([1.0, 2.0, 3.0], [2.0, 4.0, 8.0])}, axis="c")
    mean, std = (np.array(one, dtype="f4")[:, None, None] for one in ([1, 2, 3], [2, 4, 8]))
    dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True, seed=5)
    turns = Turns(3, (2, 0), ALL)
    for epoch in range(2):
        for patch, number in read(dataset):
            of_label = expected(label, data, number, turns, epoch, 5)
            np.testing.assert_array_equal(patch["label"].numpy(), of_label)
            of_across = expected(volume(), data, number, turns, epoch, 5)  # (z, y, x), as the label
            np.testing.assert_array_equal(patch["across"].numpy(), of_across.transpose(0, 2, 1))
            inside = expected(np.ones_like(label), data, number, turns, epoch, 5) == 1
            channels = [expected(image[:, c], data, number, turns, epoch, 5).astype("f4") for c in range(3)]
            normalised = (np.stack(channels, axis=1) - mean) / std
            np.testing.assert_array_equal(patch["image"].numpy(), np.where(inside[:, None], normalised, 0))


def test_items_are_converted_to_what_they_are_without_turns(tmp_path: Path) -> None:
    array = (volume((30, 60, 60)) % 251).astype("u1")
    path = stored(tmp_path / "v", array, chunks=(20, 33, 31))
    side: dict[str | int, int] = {0: 40, 1: 40, 2: 40}
    data = zarrfeed.open(path).normalize((2.0, 3.0)).patch(side, pad="edge", flip=ALL, rotate=ALL)
    turns = Turns(3, ALL, ALL)
    for patch, number in read(ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True)):
        box = patch_of((array.astype("f4") - 2) / 3, data.locate(number)[1], (40,) * 3, "edge")
        np.testing.assert_array_equal(patch.numpy(), turned(box, turns.at(0, 0, np.array([number]))[0]))


def test_boxes_of_images_and_of_windows_over_time_are_turned(tmp_path: Path) -> None:
    field = volume((12, 26, 21))
    path = stored(tmp_path / "v", field, chunks=(5, 9, 21), dimension_names=("time", "y", "x"))
    turns = Turns(3, (1,), (1, 2))
    size: dict[str, Any] = {"size": {"y": SIDE, "x": SIDE}, "flip": ["y"], "rotate": ["y", "x"]}
    for data, offsets in (
        (zarrfeed.open(path).patch(**size), (0,)),
        (zarrfeed.open(path).window((-2, 1)).patch(**size), (-2, 1)),
    ):
        dataset = ZarrIterableDataset(data, batch_size=6, shuffle=True, return_index=True)
        for patch, number in read(dataset):
            t, y, x = data.locate(number)[1]
            rows = np.stack([patch_of(field[t + one], np.array((y, x)), (SIDE, SIDE)) for one in offsets])
            of_patch = turned(rows, turns.at(0, 0, np.array([number]))[0])
            np.testing.assert_array_equal(patch.numpy(), of_patch if len(offsets) > 1 else of_patch[0])


@pytest.mark.parametrize("sampling", ["positions", "random", "grid"])
def test_patches_of_every_sampling_are_turned_anew_in_each_epoch(sampling: Any, tmp_path: Path) -> None:
    starts = np.random.default_rng(0).integers(-4, 20, (40, 3))
    options: dict[str, Any] = {"positions": {"positions": starts}, "random": {"n": 40}, "grid": {"stride": {0: 4}}}
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS))
    data = data.patch(CUBE, sampling=sampling, flip=ALL, rotate=ALL, **options[sampling])
    for shuffle in (True, False):
        check(data, volume(), Turns(3, ALL, ALL), shuffle=shuffle, epochs=3)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_turn_patches_as_the_main_process_does(num_workers: int, tmp_path: Path) -> None:
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS)).patch(CUBE, flip=ALL, rotate=ALL)
    dataset = ZarrIterableDataset(data, batch_size=6, shuffle=True, return_index=True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=num_workers)
    for epoch in range(2):
        for patches, index in loader:
            for patch, number in zip(patches, index.tolist(), strict=True):
                of_main = expected(volume(), data, number, Turns(3, ALL, ALL), epoch)
                np.testing.assert_array_equal(patch.numpy(), of_main)


def test_ranks_and_resuming_share_orders_and_orientations(tmp_path: Path) -> None:
    array = volume((60, 40, 30))
    data = zarrfeed.open(stored(tmp_path / "v", array, chunks=CHUNKS)).patch(CUBE, flip=ALL, rotate=ALL)
    assert len(check_ranks_and_resume(data, num_batches=2)) == 2
    turns = Turns(3, ALL, ALL)

    def made(rank: int, world_size: int) -> ZarrIterableDataset:
        options: dict[str, Any] = {"rank": rank, "world_size": world_size, "return_index": True, "seed": 3}
        return ZarrIterableDataset(data, batch_size=4, shuffle=True, **options)

    whole = made(0, 1)
    whole.set_epoch(2)
    passing = iter(whole)
    next(passing)
    state = pickle.loads(pickle.dumps(whole.state_dict()))
    for rank in range(3):
        dataset = made(rank, 3)
        dataset.load_state_dict(state)
        for patch, number in read(dataset):
            np.testing.assert_array_equal(patch.numpy(), expected(array, data, number, turns, 2, 3))


def test_a_run_is_not_resumed_with_other_turns(tmp_path: Path) -> None:
    volumes = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS))
    for sampling in ({}, {"sampling": "random", "n": 30}):
        of: list[dict[str, Any]] = [{}, {"flip": [0]}, {"flip": [1]}, {"flip": [0], "rotate": [0, 1]}]
        sets = [ZarrIterableDataset(volumes.patch(CUBE, **sampling, **one)) for one in of]  # type: ignore[arg-type]
        states = [one.state_dict() for one in sets]
        for number, dataset in enumerate(sets):
            for other, state in enumerate(states):
                if number == other:
                    dataset.load_state_dict(state)
                    continue
                with pytest.raises(zarrfeed.ConfigError, match="patches"):
                    dataset.load_state_dict(state)


def test_data_that_are_turned_are_other_data(tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume(), chunks=CHUNKS)
    flipped = zarrfeed.open(path).patch(CUBE, flip=[0, 2], rotate=(1, 2))
    assert "flip=(0, 2), rotate=(1, 2)" in repr(flipped)
    copied = pickle.loads(pickle.dumps(flipped))
    assert copied == flipped
    assert flipped != zarrfeed.open(path).patch(CUBE, flip=[0, 1], rotate=(1, 2))
    assert flipped != zarrfeed.open(path).patch(CUBE)
    assert zarrfeed.open(path).patch(CUBE, flip=[], rotate=[]) == zarrfeed.open(path).patch(CUBE)
    check(copied, volume(), Turns(3, (0, 2), (1, 2)))
    check(zarrfeed.concat([flipped]), volume(), Turns(3, (0, 2), (1, 2)))
    with pytest.raises(zarrfeed.ConfigError, match="other patches"):
        zarrfeed.concat([flipped, zarrfeed.open(path).patch(CUBE)])


BAD: list[tuple[dict[str, Any], str]] = [
    ({"flip": "zy"}, "flip = 'zy', must be a list"),
    ({"flip": 1}, "flip = 1, must be a list"),
    ({"flip": None}, "flip = None, must be a list"),
    ({"flip": ["w"]}, "flip names 'w', must name a dimension that size names"),
    ({"flip": [True]}, "flip names True"),
    ({"flip": [["z"]]}, "flip names"),
    ({"flip": ["z", "x", "z"]}, "names a dimension twice"),
    ({"flip": ["c"]}, "flip names 'c'"),
    ({"rotate": "yx"}, "rotate = 'yx', must be a list"),
    ({"rotate": ["y"]}, "two dimensions"),
    ({"rotate": ["y", "y"]}, "names a dimension twice"),
    ({"rotate": ["y", "w"]}, "rotate names 'w'"),
    ({"rotate": ["z", "y"]}, r"sizes \{'z': 4, 'y': 8\}"),
    ({"rotate": ["z", "y", "x"]}, "the same"),
    ({"size": {"y": 8, "x": 8}, "flip": ["z"]}, "flip names 'z'"),  # samples have no such axis
    ({"size": {"z": 8, "y": 8, "c": 2, "x": 8}, "rotate": ["z", "y", "x", "c"]}, "or three"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_turns_that_cannot_be_are_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    array = np.zeros((20, 2, 20, 20), "u1")
    path = stored(tmp_path / "v", array, chunks=(9, 2, 9, 9), dimension_names=("z", "c", "y", "x"))
    with pytest.raises(zarrfeed.ConfigError, match=message):
        zarrfeed.open(path).patch(**{"size": {"z": 4, "y": 8, "x": 8}, **arguments})


def test_what_differs_from_voxel_to_voxel_is_not_turned(tmp_path: Path) -> None:
    array = np.zeros((20, 3, 20, 20), "u1")
    path = stored(tmp_path / "v", array, chunks=(9, 2, 9, 9), dimension_names=("z", "c", "y", "x"))
    size: dict[str | int, int] = {"z": 8, "y": 8, "x": 8}
    by_row, by_channel = np.arange(8.0)[:, None], np.arange(3.0)[:, None, None]
    data, ones = zarrfeed.open(path), np.ones(8)
    refused: list[Callable[[], object]] = [
        lambda: data.patch(size, flip=["y"]).normalize((by_row, 1.0)),
        lambda: data.patch(size, rotate=["y", "x"]).normalize((0.0, by_row + 1)),
        lambda: data.patch(size, flip=["x"]).normalize((np.arange(8.0), ones), axis="x"),
        lambda: data.patch(size, flip=["z"]).normalize((np.arange(8.0)[:, None, None, None], 1.0)),
        lambda: data.patch(size, flip=["y"]).normalize((by_channel + by_row, 1.0)),
    ]
    for call in refused:
        with pytest.raises(zarrfeed.ConfigError, match=r"differ along '[zyx]', which is flipped or rotated"):
            call()
    for allowed in (
        data.patch(size, flip=["x"]).normalize((by_row, 1.0)),
        data.patch(size, flip=["y", "x"], rotate=["y", "x"]).normalize((by_channel, 1.0)),
        data.patch(size, flip=["y", "x"]).normalize((by_channel + np.zeros((8, 8)), 1.0)),
        data.patch(size, flip=["y", "x"]).normalize(([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]), axis="c"),
    ):
        assert len(list(ZarrIterableDataset(allowed, shuffle=True))) >= 1


@pytest.mark.filterwarnings("ignore::zarrfeed.ChunkSkippedWarning")
@pytest.mark.parametrize("sampling", ["tiles", "random"])
def test_what_replaces_patches_of_bad_chunks_is_turned_as_in_its_own_place(sampling: Any, tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume((60, 40, 30)), chunks=CHUNKS)
    (tmp_path / "v" / "c" / "1" / "1" / "1").write_bytes(b"no chunk")
    n = 90 if sampling == "random" else None
    data = zarrfeed.open(path).patch(CUBE, sampling=sampling, n=n, flip=ALL, rotate=ALL)
    options: dict[str, Any] = {"faults": {"on_error": "skip"}, "return_index": True}
    dataset = ZarrIterableDataset(data, batch_size=5, shuffle=True, seed=3, **options)
    for epoch in range(2):
        wanted = dataset.sample_order(epoch).tolist()
        numbers = []
        for patch, number in read(dataset):
            of_number = expected(volume((60, 40, 30)), data, number, Turns(3, ALL, ALL), epoch, 3)
            np.testing.assert_array_equal(patch.numpy(), of_number)
            numbers.append(number)
        assert len(numbers) == len(wanted)
        assert numbers != wanted  # some were replaced


def test_patches_by_index_have_no_epoch_to_be_turned_in(tmp_path: Path) -> None:
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS))
    for turns in ({"flip": [0]}, {"rotate": [0, 1]}):
        with pytest.raises(zarrfeed.ConfigError, match="flips and rotates"):
            zarrfeed.ZarrDataset(data.patch(CUBE, sampling="grid", **turns))  # type: ignore[arg-type]


def test_stitching_refuses_patches_that_are_turned(tmp_path: Path) -> None:
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS))
    for turns in ({"flip": [0]}, {"rotate": [0, 1]}):
        dataset = ZarrIterableDataset(data.patch(CUBE, sampling="grid", **turns), return_index=True)  # type: ignore[arg-type]
        with pytest.raises(zarrfeed.ConfigError, match="flipped or rotated"):
            dataset.stitch([], tmp_path / "out")


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
@pytest.mark.parametrize("flip", [(), (1,), (0, 1)])
def test_channels_keep_their_statistics_in_runs_of_more_items_than_are_converted_at_once(
    dtype: str, flip: tuple[int, ...], tmp_path: Path
) -> None:
    """1024 items are converted at once, which is no whole number of pixels of three channels."""
    size, turns = (4, 850, 3), Turns(3, flip, ())
    pixels = np.random.default_rng(0).integers(0, 60_000, (16, 1700, 3)).astype("u2")
    pixels[4:8, :850] = 7  # a chunk that is not stored
    path = tmp_path / "v"
    array = zarr.create_array(path, shape=pixels.shape, chunks=size, dtype=dtype, fill_value=7, zarr_format=2)
    array[...] = pixels
    mean, std = np.array([100, 200, 300], "f4"), np.array([1, 2, 4], "f4")
    data = zarrfeed.open(path).patch({0: 4, 1: 850, 2: 3}, sampling="grid", border="drop", flip=flip)
    dataset = ZarrIterableDataset(data.normalize((mean, std), axis=2), batch_size=3, return_index=True, seed=3)
    count = 0
    for patch, number in read(dataset):
        wanted = patch_of(pixels, data.locate(number)[1], size)
        if flip:
            wanted = turned(wanted, turns.at(3, 0, np.array([number]))[0])
        np.testing.assert_array_equal(patch.numpy(), (wanted.astype("f4") - mean) / std)
        count += 1
    assert count == 8
