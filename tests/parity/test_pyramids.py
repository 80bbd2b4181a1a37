"""Patches of several levels of OME-Zarr images, against NumPy's slices of each level at the same physical position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.examples import tries
from tests.support.patches import check_ranks_and_resume, patch_of, read, turned, volume
from tests.support.pyramids import level_patch, put_ome, put_pyramid
from zarrfeed import ZarrIterableDataset
from zarrfeed.plan.patches.patch_turns import Turns

SHAPE = (45, 38, 31)
CHUNKS = [(8, 9, 7), (6, 8, 16), (4, 5, 6)]
FACTORS = {
    "planes": [(1, 1, 1), (1, 2, 2), (1, 4, 4)],
    "halves": [(1, 1, 1), (2, 2, 2), (2, 4, 4)],
    "quarters": [(1, 1, 1), (4, 4, 4), (8, 4, 4)],
}
SIZE = (12, 8, 7)

#: Of each level: its array, its factors, and its context.
Levels = dict[str, tuple[Any, Sequence[int], Sequence[int] | None]]


def image(
    folder: Path,
    factors: Sequence[Sequence[int]],
    *,
    zarr_format: Any = 3,
    shape: Sequence[int] = SHAPE,
    **options: Any,
) -> list[Any]:
    """Write an image to a folder; return its levels."""
    group = zarr.create_group(folder, zarr_format=zarr_format)
    return put_pyramid(group, shape, factors, chunks=CHUNKS[: len(factors)], **options)


def check(
    data: zarrfeed.Data,
    levels: Levels,
    *,
    size: Sequence[int] = SIZE,
    translated: bool = True,
    pad: Any = 0,
    wraps: Sequence[int] = (),
    **options: Any,
) -> int:
    """Check every voxel of a pass. Returns how many patches there were."""
    dataset = ZarrIterableDataset(data, batch_size=5, return_index=True, **options)
    count = 0
    for patch, number in read(dataset):
        _, start = data.locate(number)
        for name, (array, factor, context) in levels.items():
            expected = level_patch(array, start, size, factor, context, translated=translated, pad=pad, wraps=wraps)
            np.testing.assert_array_equal(patch[name].numpy(), expected, err_msg=f"{name} from {start}")
        count += 1
    return count


@pytest.mark.parametrize(
    ("zarr_format", "translated", "rounded"), [(2, True, "down"), (3, True, "up"), (2, False, "up"), (3, False, "down")]
)
@pytest.mark.parametrize("kind", list(FACTORS))
def test_each_level_has_the_box_of_the_same_position(
    kind: str, zarr_format: Any, translated: bool, rounded: str, tmp_path: Path
) -> None:
    factors = FACTORS[kind]
    arrays = image(tmp_path / "i", factors, zarr_format=zarr_format, rounded=rounded, translated=translated)
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", 1, "2"])
    context: Any = {"2": {"z": 9, "y": 8, "x": 7}}
    data = data.patch(dict(zip("zyx", SIZE, strict=True)), context=context, pad=-5)
    levels: Levels = {
        "0": (arrays[0], factors[0], None),
        "1": (arrays[1], factors[1], None),
        "2": (arrays[2], factors[2], (9, 8, 7)),
    }
    assert check(data, levels, translated=translated, pad=-5, shuffle=True) > 40


@pytest.mark.parametrize("seed", range(tries(5, 12)))
def test_images_of_any_shape_are_cut_as_numpy_cuts_them(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    factor, shape, size, context = (
        random.integers(low, high, 3).tolist() for low, high in ((1, 6), (5, 40), (2, 12), (1, 20))
    )
    shape = [min(voxels, 7 * side) for voxels, side in zip(shape, size, strict=True)]  # a few hundred patches at most
    translated, rounded = bool(random.integers(2)), ["up", "down"][random.integers(2)]
    pad: Any = [0, 9, "edge", "reflect"][random.integers(4)]
    factors = [(1, 1, 1), factor]
    least = [[-(-voxels // (6 * f)) for voxels, f in zip(shape, of_level, strict=True)] for of_level in factors]
    chunks = np.maximum(random.integers(1, 9, (2, 3)), least).tolist()  # at most 6 along each axis
    group = zarr.create_group(tmp_path / "i")
    arrays = put_pyramid(group, shape, factors, chunks=chunks, translated=translated, rounded=rounded, voxel=0.1 + seed)
    named: dict[str | int, int] = dict(zip("zyx", size, strict=True))
    around: dict[str | int, int] = dict(zip("zyx", context, strict=True))
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "1"]).patch(named, context={"1": around}, pad=pad)
    levels: Levels = {"0": (arrays[0], (1, 1, 1), None), "1": (arrays[1], factor, context)}
    budget = ["1 MiB", "64 MiB"][seed % 2]
    options: dict[str, Any] = {"shuffle": True, "seed": seed, "memory_budget": budget, "num_threads": 1}
    assert check(data, levels, size=size, translated=translated, pad=pad, **options)


@pytest.mark.parametrize("border", ["drop", "shift"])
@pytest.mark.parametrize("sampling", ["tiles", "grid"])
def test_borders_are_those_of_the_first_level(border: Any, sampling: Any, tmp_path: Path) -> None:
    factors = FACTORS["halves"]
    arrays = image(tmp_path / "i", factors)
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "2"])
    data = data.patch({"z": 12, "y": 8, "x": 7}, context={"2": {"y": 6}}, border=border, sampling=sampling, pad=-1)
    levels: Levels = {"0": (arrays[0], factors[0], None), "2": (arrays[2], factors[2], (6, 6, 2))}
    check(data, levels, pad=-1, shuffle=True)
    for _, number in read(ZarrIterableDataset(data, batch_size=5, return_index=True)):
        _, start = data.locate(number)
        assert (start >= 0).all()
        assert (start + SIZE <= SHAPE).all()


def test_a_periodic_dimension_goes_on_at_the_other_end_of_each_level(tmp_path: Path) -> None:
    factors = [(1, 1, 1), (1, 2, 4)]
    arrays = image(tmp_path / "i", factors, shape=(20, 26, 32))
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "1"])
    context: Any = {"1": {"x": 13, "z": 7}}  # of x more than there are
    cut = data.patch({"z": 5, "y": 8, "x": 12}, context=context, border={"z": "pad", "y": "pad", "x": "wrap"}, pad=-3)
    levels: Levels = {"0": (arrays[0], factors[0], None), "1": (arrays[1], factors[1], (7, 4, 13))}
    for seed in range(3):
        check(cut, levels, size=(5, 8, 12), pad=-3, wraps=(2,), shuffle=True, seed=seed)
    image(tmp_path / "odd", factors, shape=(20, 26, 33))
    odd = zarrfeed.open(tmp_path / "odd", multiscale=["0", "1"])
    with pytest.raises(
        zarrfeed.ConfigError, match=r'"wrap" of \'x\'.*8 voxels at a scale of 4, the first array has 33'
    ):
        odd.patch({"z": 5, "y": 8, "x": 12}, border={"x": "wrap"})


def test_positions_and_random_patches_have_all_levels(tmp_path: Path) -> None:
    factors = FACTORS["quarters"]
    arrays = image(tmp_path / "i", factors)
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "1", "2"])
    size: dict[str | int, int] = {"z": 12, "y": 8, "x": 7}
    context: Any = {"1": {"z": 9, "y": 9, "x": 9}, "2": {"z": 1, "y": 1, "x": 1}}
    levels: Levels = {
        "0": (arrays[0], factors[0], None),
        "1": (arrays[1], factors[1], (9, 9, 9)),
        "2": (arrays[2], factors[2], (1, 1, 1)),
    }
    starts = np.random.default_rng(0).integers(-np.array(SIZE) + 1, SHAPE, (60, 3))
    listed = data.patch(size, context=context, sampling="positions", positions=starts, pad="edge")
    assert check(listed, levels, pad="edge", shuffle=True) == 60
    drawn = data.patch(size, context=context, sampling="random", n=50, border="drop", pad=-2)
    for seed in range(2):
        assert check(drawn, levels, pad=-2, shuffle=True, seed=seed) == 50


def test_ranks_and_resuming_share_one_order(tmp_path: Path) -> None:
    image(tmp_path / "i", FACTORS["halves"])
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "2"])
    data = data.patch({"z": 6, "y": 8, "x": 7}, context={"2": {"z": 8, "y": 8}})
    assert len(check_ranks_and_resume(data, num_batches=4)) == 2


@pytest.mark.parametrize("budget", ["1 MiB", "3 MiB", "200 MiB"])
def test_less_memory_decodes_more_and_delivers_the_same(budget: str, tmp_path: Path) -> None:
    factors = FACTORS["quarters"][:2]
    arrays = image(tmp_path / "i", factors)
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "1"]).patch(
        {"z": 12, "y": 8, "x": 7}, context={"1": {"z": 10, "y": 9, "x": 8}}
    )
    levels: Levels = {"0": (arrays[0], factors[0], None), "1": (arrays[1], factors[1], (10, 9, 8))}
    check(data, levels, shuffle=True, memory_budget=budget, num_threads=1)


def test_a_context_may_be_of_any_array(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    arrays = {name: volume((40, 36), first) for name, first in (("image", 1), ("label", 9000))}
    for name, array in arrays.items():
        group.create_array(name, data=array, chunks=(9, 8), dimension_names=("y", "x"))
    data = zarrfeed.open(tmp_path / "g").patch({"y": 8, "x": 6}, context={"image": {"y": 17, "x": 12}}, pad="reflect")
    for patch, number in read(ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True)):
        _, start = data.locate(number)
        np.testing.assert_array_equal(patch["label"].numpy(), patch_of(arrays["label"], start, (8, 6), "reflect"))
        around = patch_of(arrays["image"], start - (4, 3), (17, 12), "reflect")
        np.testing.assert_array_equal(patch["image"].numpy(), around)


def test_labels_lie_beside_their_image(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "i", zarr_format=2)
    shape, factors = (3, 2, 20, 30, 26), [(1, 1, 1, 1, 1), (1, 1, 1, 2, 2)]
    chunks = [(1, 1, 8, 8, 8), (1, 1, 8, 8, 8)]
    levels = put_pyramid(group, shape, factors, chunks=chunks, axes="tczyx")
    labels = group.create_group("labels")
    put_ome(labels, {"labels": ["cells"]})
    of_labels = put_pyramid(
        labels.create_group("cells"),
        (3, 20, 30, 26),
        [(1, 1, 1, 1), (1, 1, 2, 2)],
        chunks=[(1, 9, 9, 9), (1, 20, 15, 13)],
        axes="tzyx",
        first=10**6,
    )
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "labels/cells", "1", "labels/cells/1"])
    assert [one.shape for one in data.fields] == [(2, 20, 30, 26), (20, 30, 26), (2, 20, 15, 13), (20, 15, 13)]
    data = data.patch({"z": 4, "y": 8, "x": 8}, context={"1": {"z": 4, "y": 8, "x": 8}})
    for patch, number in read(ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True)):
        _, (t, *start) = data.locate(number)
        at, size = np.array(start), (4, 8, 8)
        np.testing.assert_array_equal(patch["labels/cells"].numpy(), patch_of(of_labels[0][t], at, size))
        expected = level_patch(of_labels[1][t], at, size, (1, 2, 2))
        np.testing.assert_array_equal(patch["labels/cells/1"].numpy(), expected)
        for c in range(2):
            np.testing.assert_array_equal(patch["0"][c].numpy(), patch_of(levels[0][t, c], at, size))
            expected = level_patch(levels[1][t, c], at, size, (1, 2, 2), (4, 8, 8))
            np.testing.assert_array_equal(patch["1"][c].numpy(), expected)


def test_each_image_of_several_is_a_volume(tmp_path: Path) -> None:
    factors = [(1, 1, 1), (2, 2, 2)]
    shapes = [(21, 26, 22), (12, 26, 22), (33, 26, 22)]
    arrays = [image(tmp_path / str(i), factors, shape=shape, first=1 + 10**5 * i) for i, shape in enumerate(shapes)]
    size, context = (6, 8, 5), (7, 6, 3)
    named: Any = dict(zip("zyx", size, strict=True))
    paths = [tmp_path / str(i) for i in range(3)]
    opened = zarrfeed.open(paths, multiscale=["0", "1"])
    by_pattern = zarrfeed.open(str(tmp_path / "*"), multiscale=["0", "1"])
    around: Any = {"1": {"z": 7, "y": 6}}
    each = zarrfeed.concat([zarrfeed.open(p, multiscale=["0", "1"]).patch(named, context=around) for p in paths])
    for data in (opened.patch(named, context=around), by_pattern.patch(named, context=around), each):
        seen = [0, 0, 0]
        for patch, number in read(ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True)):
            store, start = data.locate(number)
            first, second = arrays[store]
            np.testing.assert_array_equal(patch["0"].numpy(), patch_of(first, start, size))
            np.testing.assert_array_equal(patch["1"].numpy(), level_patch(second, start, size, (2, 2, 2), context))
            seen[store] += 1
        assert min(seen) > 10
    assert len(zarrfeed.ZarrDataset(opened)) == 66
    np.testing.assert_array_equal(zarrfeed.ZarrDataset(opened)[30]["1"].numpy(), arrays[1][1][4])


def test_volumes_of_different_sizes_are_put_together_after_they_are_cut(tmp_path: Path) -> None:
    factors = [(1, 1, 1), (2, 4, 4)]
    shapes = [(21, 26, 22), (8, 40, 17)]
    arrays = [image(tmp_path / str(i), factors, shape=shape, rounded="up") for i, shape in enumerate(shapes)]
    size: Any = {"z": 6, "y": 8, "x": 5}
    data = zarrfeed.concat([zarrfeed.open(tmp_path / str(i), multiscale=[0, 1]).patch(size) for i in range(2)])
    for patch, number in read(ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True)):
        store, start = data.locate(number)
        np.testing.assert_array_equal(patch["0"].numpy(), patch_of(arrays[store][0], start, (6, 8, 5)))
        expected = level_patch(arrays[store][1], start, (6, 8, 5), factors[1])
        np.testing.assert_array_equal(patch["1"].numpy(), expected)


def test_selected_planes_begin_with_a_voxel_of_each_level(tmp_path: Path) -> None:
    factors = [(1, 1, 1), (4, 2, 2)]
    arrays = image(tmp_path / "i", factors)
    opened = zarrfeed.open(tmp_path / "i", multiscale=["0", "1"])
    size: Any = {"z": 8, "y": 8, "x": 8}
    data = opened.isel(z=slice(8, 30)).patch(size, context={"1": {"z": 6}}, pad=-4)
    for patch, number in read(ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True)):
        _, start = data.locate(number)
        at = start - (8, 0, 0)
        np.testing.assert_array_equal(patch["0"].numpy(), patch_of(arrays[0][8:30], at, (8, 8, 8), -4))
        expected = level_patch(arrays[1][2:7], at, (8, 8, 8), factors[1], (6, 4, 4), pad=-4)
        np.testing.assert_array_equal(patch["1"].numpy(), expected)
    with pytest.raises(zarrfeed.ConfigError, match="selected from 6 on, must be from a multiple of 4 on"):
        opened.isel(z=slice(6, 30)).patch(size)


def test_single_planes_have_the_plane_of_each_level_that_they_lie_in(tmp_path: Path) -> None:
    factors = FACTORS["quarters"]
    arrays = image(tmp_path / "i", factors, rounded="up")
    planes = zarrfeed.open(tmp_path / "i", multiscale=["0", "1", "2"])
    for batch, index in ZarrIterableDataset(planes, batch_size=6, shuffle=True, return_index=True):
        for i, z in enumerate(index.tolist()):
            np.testing.assert_array_equal(batch["0"][i].numpy(), arrays[0][z])
            np.testing.assert_array_equal(batch["1"][i].numpy(), arrays[1][z // 4])
            np.testing.assert_array_equal(batch["2"][i].numpy(), arrays[2][z // 8])
    boxes = planes.patch({"y": 8, "x": 8}, context={"2": {"y": 5}})
    for patch, number in read(ZarrIterableDataset(boxes, batch_size=6, shuffle=True, return_index=True)):
        _, (z, *start) = boxes.locate(number)
        at = np.array(start)
        np.testing.assert_array_equal(patch["0"].numpy(), patch_of(arrays[0][z], at, (8, 8)))
        np.testing.assert_array_equal(patch["1"].numpy(), level_patch(arrays[1][z // 4], at, (8, 8), (4, 4)))
        np.testing.assert_array_equal(patch["2"].numpy(), level_patch(arrays[2][z // 8], at, (8, 8), (4, 4), (5, 2)))


def test_windows_over_time_have_boxes_of_all_levels(tmp_path: Path) -> None:
    factors, size = [(1, 1, 1), (1, 2, 4)], (8, 8)
    group = zarr.create_group(tmp_path / "i")
    arrays = put_pyramid(group, (14, 26, 30), factors, chunks=[(5, 8, 8), (3, 4, 8)], axes="tyx")
    data = zarrfeed.open(group, multiscale=[0, 1]).window((-2, 0)).patch({"y": 8, "x": 8}, context={"1": {"x": 5}})
    assert [one.shape for one in data.fields] == [(2, 8, 8), (2, 4, 5)]
    for patch, number in read(ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True)):
        _, (t, *start) = data.locate(number)
        for i, offset in enumerate((-2, 0)):
            at = np.array(start)
            np.testing.assert_array_equal(patch["0"][i].numpy(), patch_of(arrays[0][t + offset], at, size))
            expected = level_patch(arrays[1][t + offset], at, size, (2, 4), (4, 5))
            np.testing.assert_array_equal(patch["1"][i].numpy(), expected)


def test_patches_by_index_have_all_levels(tmp_path: Path) -> None:
    arrays = image(tmp_path / "i", FACTORS["halves"])
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "2"])
    starts = np.random.default_rng(0).integers(0, SHAPE, (20, 3))
    context: Any = {"2": {"z": 9, "y": 5, "x": 5}}
    size: Any = dict(zip("zyx", SIZE, strict=True))
    listed = zarrfeed.ZarrDataset(data.patch(size, context=context, sampling="positions", positions=starts))
    for index, start in enumerate(starts):
        patch = listed[index]
        np.testing.assert_array_equal(patch["0"].numpy(), patch_of(arrays[0], start, SIZE))
        np.testing.assert_array_equal(patch["2"].numpy(), level_patch(arrays[2], start, SIZE, (2, 4, 4), (9, 5, 5)))


def test_a_grid_of_the_first_level_is_put_together_from_what_a_model_predicts(tmp_path: Path) -> None:
    arrays = image(tmp_path / "i", FACTORS["halves"])
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "1"])
    data = data.patch({"z": 12, "y": 8, "x": 7}, context={"1": {"z": 20}}, sampling="grid")
    dataset = ZarrIterableDataset(data, batch_size=8, return_index=True)
    put = dataset.stitch(((b["0"].float(), i) for b, i in dataset), tmp_path / "out", dtype="float64")
    np.testing.assert_array_equal(put[:], arrays[0])


def test_statistics_and_conversions_are_of_each_level(tmp_path: Path) -> None:
    arrays = image(tmp_path / "i", FACTORS["planes"])
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "2"])
    data = data.normalize({"0": (5.0, 2.0), "2": (1.0, 4.0)}).patch({"z": 12, "y": 8, "x": 7}, border="drop")
    for patch, number in read(ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True)):
        _, start = data.locate(number)
        expected = (patch_of(arrays[0], start, SIZE).astype("f4") - 5) / 2
        np.testing.assert_array_equal(patch["0"].numpy(), expected)
        expected = (level_patch(arrays[2], start, SIZE, (1, 4, 4), pad="edge").astype("f4") - 1) / 4
        inside = level_patch(np.ones_like(arrays[2]), start, SIZE, (1, 4, 4)) == 1
        np.testing.assert_array_equal(patch["2"].numpy()[inside], expected[inside])
    found = zarrfeed.stats(zarrfeed.open(tmp_path / "i", multiscale=["0", "2"]))
    assert found["0"].mean == pytest.approx(arrays[0].mean())
    assert found["2"].mean == pytest.approx(arrays[2].mean())


def test_an_epoch_decodes_what_the_page_says(tmp_path: Path) -> None:
    image(tmp_path / "i", FACTORS["halves"], shape=(64, 60, 56))
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "1", "2"])
    data = data.patch({"z": 8, "y": 8, "x": 8}, context={"2": {"z": 8, "y": 8, "x": 8}})
    several: list[dict[str, Any]] = [{}, {"memory_budget": "2 MiB"}, {"mixing": {"lanes": 2}}]
    for options in several:
        dataset = ZarrIterableDataset(data, batch_size=8, shuffle=True, num_threads=1, **options)
        predicted = [field.chunk_reads for field in dataset.explain().fields]
        list(dataset)
        assert sum(predicted) == pytest.approx(dataset.stats().chunks_read, rel=0.05), options


def test_a_lane_decodes_each_chunk_once_as_it_sweeps(tmp_path: Path) -> None:
    image(tmp_path / "i", FACTORS["halves"])
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "1", "2"])
    data = data.patch({"z": 4, "y": 8, "x": 7}, context={"2": {"z": 16, "y": 8, "x": 8}, "1": {"z": 9}})
    dataset = ZarrIterableDataset(data, batch_size=6, shuffle=False, num_threads=1)
    chunks = [one.chunks for one in dataset.explain().fields]
    list(dataset)
    assert dataset.stats().chunks_read == sum(chunks)


def test_all_levels_of_a_patch_are_turned_alike(tmp_path: Path) -> None:
    levels = image(tmp_path, FACTORS["halves"])
    size, context = (8, 8, 8), (6, 6, 6)
    data = zarrfeed.open(tmp_path, multiscale=[0, 1]).patch(
        {"z": 8, "y": 8, "x": 8},
        context={"1": dict(zip("zyx", context, strict=True))},
        flip=["z", "y", "x"],
        rotate=["z", "y", "x"],
    )
    turns = Turns(3, (0, 1, 2), (0, 1, 2))
    dataset = ZarrIterableDataset(data, batch_size=5, return_index=True, shuffle=True, seed=4)
    seen = set()
    for patch, number in read(dataset):
        _, start = data.locate(number)
        orientation = turns.at(4, 0, np.array([number]))[0]
        seen.add(tuple(orientation))
        for level, context_of in ((0, None), (1, context)):
            expected = level_patch(levels[level], start, size, FACTORS["halves"][level], context_of)
            np.testing.assert_array_equal(patch[str(level)].numpy(), turned(expected, orientation))
    assert len(seen) > 24


def test_levels_by_index_are_those_of_a_pass(tmp_path: Path) -> None:
    levels = image(tmp_path, FACTORS["halves"])
    data = zarrfeed.open(tmp_path, multiscale=[0, 1]).patch({"z": 8, "y": 8, "x": 8}, sampling="grid")
    dataset = zarrfeed.ZarrDataset(data, return_index=True)
    patches, numbers = dataset[range(0, len(dataset), 7)]
    for level in (0, 1):
        for patch, start in zip(patches[str(level)], data.locate(numbers)[1], strict=True):
            expected = level_patch(levels[level], start, (8, 8, 8), FACTORS["halves"][level])
            np.testing.assert_array_equal(patch.numpy(), expected)
