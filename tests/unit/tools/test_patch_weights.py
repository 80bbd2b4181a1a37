"""Weights that are measured of labels, against NumPy, and what is drawn with them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr

import zarrfeed
from tests.support.patches import stored
from zarrfeed import PatchWeights, ZarrIterableDataset, patch_weights
from zarrfeed.base.errors import ConfigError, CorruptChunkError

Voxels = npt.NDArray[Any]

SHAPE = (13, 22, 17)
NAMES = ("z", "y", "x")
SIZE: Mapping[str | int, int] = {"z": 3, "y": 5, "x": 4}


def labels(shape: Sequence[int] = SHAPE, seed: int = 0) -> Voxels:
    """Return labels: many of 0, fewer of 1, few of 2."""
    return np.random.default_rng(seed).choice(3, shape, p=(0.7, 0.25, 0.05)).astype("u1")


def of_voxels(weights: PatchWeights) -> Voxels:
    """Return the weight of each voxel, so that all add up to 1."""
    made = weights.values.astype(float)
    for axis, (of, length) in enumerate(zip(weights.cell, weights.shape, strict=True)):
        made = made.repeat(of, axis=axis).take(np.arange(length), axis=axis)
    found: Voxels = made / made.sum()
    return found


def expected(array: Voxels, cell: Sequence[int], shares: Mapping[int, float] | None) -> Voxels:
    """Return the same by a loop over cells."""
    wanted = array.astype(float)
    if shares is not None:
        wanted = sum(share * (array == label) / (array == label).sum() for label, share in shares.items())
    made = np.zeros(array.shape)
    for index in np.ndindex(*(-(-n // of) for n, of in zip(array.shape, cell, strict=True))):
        box = tuple(slice(i * of, (i + 1) * of) for i, of in zip(index, cell, strict=True))
        made[box] = wanted[box].mean()
    found: Voxels = made / made.sum()
    return found


@pytest.mark.parametrize("shares", [None, {0: 1, 1: 3}, {2: 0.5, 0: 0, 1: 2}])
@pytest.mark.parametrize(
    ("chunks", "cell"), [((5, 8, 6), 4), ((13, 1, 17), {"z": 2, "x": 5}), ((1, 22, 17), 1), ((4, 4, 4), 100)]
)
def test_weights_are_those_that_numpy_finds(chunks: Any, cell: Any, shares: Any, tmp_path: Path) -> None:
    path = stored(tmp_path / "l", labels(), chunks=chunks, dimension_names=NAMES)
    seen: list[Any] = []
    weights = patch_weights(path, shares, cell=cell, num_threads=3, on_progress=seen.append)
    assert weights.shape == SHAPE
    assert weights.dims == NAMES
    np.testing.assert_allclose(of_voxels(weights), expected(labels(), weights.cell, shares), rtol=1e-5, atol=1e-12)
    assert dict(weights.counts) == {label: int((labels() == label).sum()) for label in shares or ()}
    assert seen[-1].done == seen[-1].total
    again = patch_weights(path, shares, cell=cell, num_threads=1)
    np.testing.assert_array_equal(again.values, weights.values)


@pytest.mark.parametrize("dtype", ["bool", "i2", "u8", "f4", "f8"])
@pytest.mark.parametrize("sample_axis", [0, 2])
def test_masks_and_weights_of_any_dtype_are_averaged(dtype: str, sample_axis: int, tmp_path: Path) -> None:
    array = (labels() == 1) if dtype == "bool" else labels().astype(dtype)
    path = stored(tmp_path / "l", array, chunks=(5, 8, 6))
    weights = patch_weights(zarrfeed.open(path, sample_axis=sample_axis), cell=3)
    assert weights.dims is None
    first = np.moveaxis(array, sample_axis, 0)
    np.testing.assert_allclose(of_voxels(weights), expected(first, (3, 3, 3), None), rtol=1e-5)


def test_stores_follow_each_other_and_only_selected_samples_count(tmp_path: Path) -> None:
    parts = [labels((n, 6, 5), seed=n) for n in (5, 3, 9)]
    paths = [stored(tmp_path / f"l{i}", part, chunks=(2 + i, 4, 5)) for i, part in enumerate(parts)]
    array = np.concatenate(parts)
    weights = patch_weights(paths, {0: 1, 2: 1}, cell=4)
    np.testing.assert_allclose(of_voxels(weights), expected(array, (4, 4, 4), {0: 1, 2: 1}), rtol=1e-5, atol=1e-12)
    chosen = np.array([0, 1, 4, 5, 6, 11, 16])
    some = patch_weights(zarrfeed.open(paths).select(chosen), {1: 1}, cell=1)
    array[np.setdiff1d(np.arange(17), chosen)] = 0
    np.testing.assert_allclose(of_voxels(some), (array == 1) / (array == 1).sum(), rtol=1e-5)


def test_patches_have_labels_in_their_middle_in_the_given_shares(tmp_path: Path) -> None:
    array = labels((40, 30, 20))
    path = stored(tmp_path / "l", array, chunks=(16, 16, 16), dimension_names=NAMES)
    weights = patch_weights(path, {0: 1, 2: 3}, cell=1)
    size: dict[str | int, int] = {"x": 4, "z": 5, "y": 6}  # another order than that of the array
    data = zarrfeed.open(path).patch(size, sampling="random", n=4000, weights=weights)
    dataset = ZarrIterableDataset(data, batch_size=50, shuffle=True, return_index=True)
    numbers = np.concatenate([index.numpy() for _, index in dataset])
    starts = data.locate(numbers)[1]  # along z, x, y
    middle = array[starts[:, 0] + 2, starts[:, 2] + 3, starts[:, 1] + 2]
    count = np.bincount(middle, minlength=3)
    assert count[1] == 0
    assert abs(count[2] - 3000) < 5 * math.sqrt(4000 * 0.25 * 0.75)


def test_cells_at_the_end_may_be_smaller(tmp_path: Path) -> None:
    array = np.zeros((10, 9), dtype="u1")
    array[9, 8] = 1  # alone in the last cell
    path = stored(tmp_path / "l", array, chunks=(4, 4))
    weights = patch_weights(path, cell=4)
    data = zarrfeed.open(path).patch({0: 2, 1: 2}, sampling="random", n=64, weights=weights, border="wrap")
    numbers = ZarrIterableDataset(data, shuffle=True).sample_order(0)
    middle = (data.locate(np.array(numbers))[1] + 1) % array.shape
    assert {tuple(one) for one in middle.tolist()} == {(8, 8), (9, 8)}


def test_a_file_keeps_them(tmp_path: Path) -> None:
    path = stored(tmp_path / "l", labels(), chunks=(5, 8, 6), dimension_names=NAMES)
    file = tmp_path / "weights.npz"
    weights = patch_weights(path, {0: 1, 1: 1}, cell=4, output=file)
    for chunk in (tmp_path / "l" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"broken")
    kept = patch_weights(path, {1: 1, 0: 1}, cell=4, output=file)  # nothing is read
    np.testing.assert_array_equal(kept.values, weights.values)
    assert (kept.cell, kept.shape, kept.dims, dict(kept.counts)) == ((4, 4, 4), SHAPE, NAMES, dict(weights.counts))
    for changed in ({"shares": {0: 1, 1: 2}}, {"cell": 2}, {"restart": True}):
        options: dict[str, Any] = {"shares": {0: 1, 1: 1}, "cell": 4, **changed}
        with pytest.raises(CorruptChunkError):
            patch_weights(path, output=file, **options)
    np.testing.assert_array_equal(PatchWeights.load(file).values, weights.values)  # still there
    made = [
        zarrfeed.open(path).patch({"z": 4, "y": 4, "x": 4}, sampling="random", n=5, weights=one)
        for one in (weights, file, str(file), kept)
    ]
    assert made == [made[0]] * 4
    assert "PatchWeights of 13 x 22 x 17 voxels" in str(made[0])


def test_files_that_hold_something_else_stay(tmp_path: Path) -> None:
    path = stored(tmp_path / "l", labels(), chunks=(5, 8, 6))
    other = tmp_path / "other.npz"
    np.savez(other, values=np.ones(3))
    for content in (other.read_bytes(), b"no zip", b""):
        other.write_bytes(content)
        with pytest.raises(ConfigError, match="holds no weights that this version wrote"):
            patch_weights(path, output=other)
        assert other.read_bytes() == content
    with pytest.raises(OSError, match="nowhere"):
        patch_weights(path, output=tmp_path / "nowhere" / "w.npz")
    with pytest.raises(ConfigError, match=r"must end with \.npz"):
        patch_weights(path, output=tmp_path / "w.json")


def test_labels_that_no_voxel_has_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = stored(tmp_path / "l", labels(), chunks=(5, 8, 6))
    with caplog.at_level(logging.WARNING, "zarrfeed"):
        weights = patch_weights(path, {1: 1, 7: 1}, cell=1)
    assert "no voxel has one of the labels [7]" in caplog.text
    np.testing.assert_allclose(of_voxels(weights), (labels() == 1) / (labels() == 1).sum(), rtol=1e-5)
    with pytest.raises(ConfigError, match="no voxel has a label with a share"):
        patch_weights(path, {7: 1, 0: 0})


def test_large_arrays_get_larger_cells() -> None:
    huge = zarr.create_array({}, shape=(1 << 20, 1 << 13, 64), chunks=(64, 64, 64), dtype="u1")
    with pytest.raises(ConfigError, match=r"must have at most 256.0 MiB.*zarrfeed.patch_weights"):
        zarrfeed.open(huge).patch({0: 8, 1: 8, 2: 8}, sampling="random", n=4, weights=huge)
    from zarrfeed.tools.patch_weights import _parse_cell  # reading all of it would take long

    items = zarrfeed.open(huge).resolved.items[0]
    assert _parse_cell(None, items, (0, 1, 2), huge.shape, 1) == (32, 32, 32)
    assert _parse_cell(None, items, (0, 1, 2), (50, 60, 70), 1) == (1, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shares": []}, "must be a mapping of labels"),
        ({"shares": {}}, "must be a mapping of labels"),
        ({"shares": {0: -1}}, "must be a finite number"),
        ({"shares": {0: math.inf}}, "must be a finite number"),
        ({"shares": {0: 0}}, "all are 0"),
        ({"shares": {0.5: 1}}, "label"),
        ({"cell": 0}, "cell"),
        ({"cell": {"q": 1}}, "must be a dimension or an axis"),
        ({"cell": {3: 1}}, "must be a dimension or an axis"),
        ({"faults": {"on_error": "skip"}}, "must be 'raise'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "l", labels(), chunks=(5, 8, 6), dimension_names=NAMES)
    with pytest.raises(ConfigError, match=message):
        patch_weights(path, **arguments)


def test_arrays_that_are_no_labels_are_refused(tmp_path: Path) -> None:
    negative = stored(tmp_path / "n", labels().astype("i2") - 1, chunks=(5, 8, 6))
    with pytest.raises(ConfigError, match="negative, NaN or infinite"):
        patch_weights(negative)
    floats = stored(tmp_path / "f", np.full(SHAPE, np.nan), chunks=(5, 8, 6))
    with pytest.raises(ConfigError, match="negative, NaN or infinite"):
        patch_weights(floats)
    with pytest.raises(ConfigError, match="must be integers or a mask"):
        patch_weights(floats, {0: 1})
    both = zarr.create_group(tmp_path / "g")
    for name in "ab":
        both.create_array(name, data=labels(), chunks=(5, 8, 6))
    with pytest.raises(ConfigError, match="has 2 arrays, must have one"):
        patch_weights(str(tmp_path / "g"))
    with pytest.raises(ConfigError, match="must be a stored array"):
        patch_weights(np.zeros((3, 4)))
    with pytest.raises(ConfigError, match="must be a stored array"):
        patch_weights(zarrfeed.open(negative).patch({0: 4, 1: 4, 2: 4}))


def test_weights_of_another_array_are_refused(tmp_path: Path) -> None:
    path = stored(tmp_path / "l", labels(), chunks=(5, 8, 6), dimension_names=NAMES)
    data = zarrfeed.open(path)
    ones = np.ones((2, 2, 2))
    for cell, shape, dims, message in (
        ((7, 11, 9), (14, 22, 17), None, "must cover \\(13, 22, 17\\)"),
        ((7, 11), (14, 22), None, "must be \\(2, 2\\)"),
        ((7, 11, 9), SHAPE, ("a", "b", "c"), "weights have the dimensions"),
        ((7, 11, 4), SHAPE, None, "must be \\(2, 2, 5\\)"),
        ((7, 11, 0), SHAPE, None, "must be a positive number"),
    ):
        with pytest.raises(ConfigError, match=message):
            data.patch({"z": 4, "y": 4, "x": 4}, sampling="random", n=3, weights=PatchWeights(ones, cell, shape, dims))
    with pytest.raises(ConfigError, match="finite numbers of at least 0"):
        PatchWeights(-ones, (7, 11, 9), SHAPE)


@pytest.mark.parametrize("shares", [{"others": 1}, {0: 2, "others": 3}, {0: 0, 7: 1, "others": 1}])
def test_each_other_label_is_a_class_of_its_own(shares: Any, tmp_path: Path) -> None:
    array = np.zeros(SHAPE, dtype="u4")
    array[2:6, 3:9, 4:5], array[8:9, 1:3, 1:3], array[0, 20:, 10:], array[12, 0, 0] = 7, 2**31, 900, 3
    path = stored(tmp_path / "l", array, chunks=(5, 8, 6), dimension_names=NAMES)
    made = patch_weights(path, shares, cell={"y": 4})
    counts = dict(zip(*(one.tolist() for one in np.unique(array, return_counts=True)), strict=True))
    others = [label for label in counts if label not in shares]
    each = {label: shares.get(label, shares["others"] / len(others)) for label in counts}
    np.testing.assert_allclose(of_voxels(made), expected(array, (1, 4, 1), each), rtol=1e-5)
    assert made.counts == counts
    data = zarrfeed.open({"image": path, "label": path})
    named = data.patch(SIZE, sampling="random", n=5, balance={"label": shares})
    assert named == data.patch(SIZE, sampling="random", n=5, weights=patch_weights(path, shares))
    assert named == data.patch(SIZE, sampling="random", n=5, balance={path: shares})
    assert named != data.patch(SIZE, sampling="random", n=5, weights="label")


def test_a_name_of_labels_balances_them_in_the_volumes_of_all_stores(tmp_path: Path) -> None:
    paths = []
    for number, length in enumerate((9, 13)):
        group = zarr.open_group(tmp_path / f"{number}.zarr", mode="w")
        array = labels((length, 22, 17), seed=number)
        for name in ("image", "label"):
            group.create_array(name, data=array, chunks=(5, 8, 6), dimension_names=NAMES)
        paths.append(str(tmp_path / f"{number}.zarr"))
    data = zarrfeed.open(paths).patch(SIZE, sampling="random", n=3000, balance="label")
    middle: list[int] = []
    for epoch in range(2):
        store, start = data.locate(ZarrIterableDataset(data, shuffle=True).sample_order(epoch))
        at = start + np.array([1, 2, 2])
        for number, length in enumerate((9, 13)):
            middle += labels((length, 22, 17), seed=number)[tuple(at[store == number].T)].tolist()
    np.testing.assert_allclose(np.bincount(middle) / 6000, 1 / 3, atol=4 * math.sqrt(2 / 9 / 6000))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"balance": "lable"}, r"balance = 'lable', must be an array of the samples \(image, label\)"),
        ({"balance": {0: 1, 1: 1}}, "must be the name of an array of labels, or that and shares"),
        ({"balance": {"label": 3}}, "must be the name of an array of labels, or that and shares"),
        ({"balance": {"label": {"other": 1}}}, "a label of shares"),
        ({"balance": "label", "weights": "label"}, "must be one of them"),
        ({"balance": "image"}, "labels of dtype float32"),
        ({"balance": "label", "sampling": "tiles", "n": None}, "balance with sampling"),
        ({"weights": {"label": {0: 1}}}, "shares of labels are balance="),
        ({"num_samples": 3}, "it is n, with sampling='random'"),
        ({"pos": 1}, "it is balance="),
    ],
)
def test_labels_that_cannot_balance_are_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    arrays = {"image": labels().astype("f4"), "label": labels()}
    data = zarrfeed.open({n: stored(tmp_path / n, one, dimension_names=NAMES) for n, one in arrays.items()})
    given: dict[str, Any] = {"size": SIZE, "sampling": "random", "n": 5} | arguments
    with pytest.raises((ConfigError, zarrfeed.UnknownOptionError), match=message):
        data.patch(**given)
