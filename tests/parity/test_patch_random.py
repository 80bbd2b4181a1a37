"""Patches that are drawn in each epoch, against NumPy slicing; where they begin, and what they decode."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.parity.test_patch_positions import CHUNKS, SIZE, SIZES
from tests.support.patches import SHAPE, Voxels, check_ranks_and_resume, patch_of, read, stored, volume
from tests.support.runs import Run
from zarrfeed import ZarrIterableDataset


def mask() -> Voxels:
    """Return a mask of a ball in the volume."""
    away = [(x - n / 3) ** 2 for x, n in zip(np.indices(SHAPE), SHAPE, strict=True)]
    found: Voxels = np.sqrt(sum(away)) < 6
    return found


@pytest.mark.parametrize("border", ["drop", "pad", "wrap"])
@pytest.mark.parametrize("weighted", [False, True])
def test_patches_are_those_of_the_array_and_others_in_each_epoch(border: Any, weighted: bool, tmp_path: Path) -> None:
    weights = mask() if weighted else None
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS))
    data = data.patch(SIZES, sampling="random", n=60, border=border, weights=weights, pad=-3)
    dataset = ZarrIterableDataset(data, batch_size=8, shuffle=True, seed=3, return_index=True)
    wraps = (0, 1, 2) if border == "wrap" else ()
    seen = []
    for epoch in range(2):
        numbers = []
        assert len(dataset) == 8
        for patch, number in read(dataset):
            _, start = data.locate(number)
            assert border != "drop" or ((start >= 0) & (start + SIZE <= SHAPE)).all()
            np.testing.assert_array_equal(patch.numpy(), patch_of(volume(), start, SIZE, pad=-3, wraps=wraps))
            assert weights is None or weights[tuple((start + np.array(SIZE) // 2) % SHAPE)]
            numbers.append(number)
        assert numbers == dataset.sample_order(epoch).tolist()
        assert len(numbers) == len(data) == 60
        seen.append(sorted(numbers))
    assert seen[0] != seen[1]


def test_without_shuffling_all_epochs_have_the_same_patches(tmp_path: Path) -> None:
    data = zarrfeed.open(stored(tmp_path / "v", volume(), chunks=CHUNKS)).patch(SIZES, sampling="random", n=40)
    dataset = ZarrIterableDataset(data, batch_size=8, seed=1)
    assert dataset.sample_order(0).tolist() == dataset.sample_order(1).tolist()


def test_ranks_and_resuming_share_one_order(tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume(), chunks=CHUNKS)
    data = zarrfeed.open(path).patch(SIZES, sampling="random", n=100, weights=mask())
    assert check_ranks_and_resume(data, num_batches=2) == [len(data)] * 2


def test_weights_are_read_from_arrays_and_from_coarser_ones(tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume(), chunks=CHUNKS)
    coarse = mask().reshape(15, 2, 13, 2, 7, 3).sum(axis=(1, 3, 5))  # foreground voxels of each box
    on_disk = stored(tmp_path / "w", coarse, chunks=(4, 4, 4))
    made = [
        zarrfeed.open(path).patch(SIZES, sampling="random", n=4000, border="drop", weights=weights)
        for weights in (coarse, zarr.open_array(on_disk, mode="r"), on_disk, Path(on_disk))
    ]
    orders = [ZarrIterableDataset(data, shuffle=True).sample_order(0).tolist() for data in made]
    assert orders == [orders[0]] * 4
    assert made == [made[0]] * 4
    middle = made[0].locate(orders[0])[1] + np.array(SIZE) // 2
    count = np.zeros(coarse.shape)
    np.add.at(count, tuple((middle // (2, 2, 3)).T), 1)
    inside = np.zeros(SHAPE)
    inside[4 : 30 - 8 + 4 + 1, 2 : 26 - 5 + 2 + 1, 3 : 21 - 7 + 3 + 1] = 1
    wanted = coarse * inside.reshape(15, 2, 13, 2, 7, 3).sum(axis=(1, 3, 5))
    wanted = wanted / wanted.sum() * 4000
    assert (count[wanted == 0] == 0).all()
    held = wanted > 0
    freedom = held.sum() - 1
    assert ((count - wanted)[held] ** 2 / wanted[held]).sum() < freedom + 4 * np.sqrt(2 * freedom)


def test_weights_of_many_stores_follow_each_other_and_those_that_are_not_selected_do_not_count(
    tmp_path: Path,
) -> None:
    arrays = volume((30, 26)), volume((10, 26), first=1000)
    paths = [stored(tmp_path / "a", arrays[0], chunks=(8, 9)), stored(tmp_path / "b", arrays[1], chunks=(4, 26))]
    weights = np.zeros((40, 26))
    weights[[3, 20, 35], [5, 6, 7]] = 1
    data = zarrfeed.open(paths).select([*range(5), *range(10, 40)])
    data = data.patch({0: 8, 1: 5}, sampling="random", n=60, weights=weights)
    seen = set()
    for patch, number in read(ZarrIterableDataset(data, batch_size=8, shuffle=True, return_index=True)):
        store, start = data.locate(number)
        seen.add((store, *(start + np.array((4, 2))).tolist()))
        rows = slice(None) if store else slice(0, 5) if start[0] < 5 else slice(10, 30)
        expected = patch_of(arrays[store][rows], start - (rows.start or 0, 0), (8, 5))
        np.testing.assert_array_equal(patch.numpy(), expected)
    assert seen == {(0, 3, 5), (0, 20, 6), (1, 5, 7)}
    with pytest.raises(zarrfeed.ConfigError, match="weights are 0"):
        zarrfeed.open(paths).select(slice(5, 15)).patch({0: 8, 1: 5}, sampling="random", n=6, weights=weights)


@pytest.mark.parametrize("shuffle", [False, True])
def test_volumes_of_different_sizes_keep_their_numbers_of_patches_and_their_weights(
    shuffle: bool, tmp_path: Path
) -> None:
    shapes, counts = [(30, 26, 21), (12, 40, 9), (17, 17, 30)], [50, 20, 30]
    arrays = [volume(shape, first=1 + 10**6 * k) for k, shape in enumerate(shapes)]
    masks = [np.random.default_rng(k).random(shape) < 0.01 for k, shape in enumerate(shapes)]
    paths = [stored(tmp_path / str(k), array, chunks=(8, 9, 7)) for k, array in enumerate(arrays)]
    parts = [
        zarrfeed.open(path).patch(SIZES, sampling="random", n=n, weights=weights)
        for path, n, weights in zip(paths, counts, [*masks[:2], None], strict=True)
    ]
    data, nested = zarrfeed.concat(parts), zarrfeed.concat([zarrfeed.concat(parts[:2]), parts[2]])
    assert len(data) == len(nested) == 100
    dataset = ZarrIterableDataset(data, batch_size=8, shuffle=shuffle, seed=3, return_index=True)
    seen = []
    for epoch in range(2):
        stores, predicted, before = [], dataset.explain().fields[0].chunk_reads, dataset.stats().chunks_read
        for patch, number in read(dataset):
            store, start = data.locate(number)
            np.testing.assert_array_equal(patch.numpy(), patch_of(arrays[store], start, SIZE))
            assert store == 2 or masks[store][tuple(start + np.array(SIZE) // 2)]
            stores.append(store)
        assert np.bincount(stores).tolist() == counts
        assert dataset.stats().chunks_read - before == pytest.approx(predicted, rel=0.05)
        seen.append(sorted(dataset.sample_order(epoch).tolist()))
    assert (seen[0] != seen[1]) == shuffle
    of_nested = ZarrIterableDataset(nested, batch_size=8, shuffle=shuffle, seed=3).sample_order(1)
    np.testing.assert_array_equal(of_nested, dataset.sample_order(1))
    if shuffle:
        assert check_ranks_and_resume(data, num_batches=2) == [100] * 2
    run = Run.of(data, shuffle=shuffle, batch_size=4)
    for ranks, workers in itertools.product(range(1, 9), (0, 3)):
        batches = itertools.chain(*run.on(ranks, workers, 1).all_batches())
        assert np.sort(np.concatenate(list(batches))).tolist() == list(range(100)), (ranks, workers)
    # the order of a state follows from the weights of all parts
    other = zarrfeed.concat([parts[0], zarrfeed.open(paths[1]).patch(SIZES, sampling="random", n=20), parts[2]])
    with pytest.raises(zarrfeed.ConfigError, match="weights"):
        ZarrIterableDataset(other, batch_size=8, shuffle=shuffle, seed=3).load_state_dict(dataset.state_dict())


def test_drawn_patches_without_weights_are_put_together_if_they_are_as_many(tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume(), chunks=CHUNKS)
    parts = [zarrfeed.open(path).patch(SIZES, sampling="random", n=n) for n in (4, 4, 5)]
    assert len(zarrfeed.concat(parts[:2])) == 8
    with pytest.raises(zarrfeed.ConfigError, match="other patches"):
        zarrfeed.concat(parts)


@pytest.mark.parametrize(("n", "lanes"), [(60, None), (600, None), (600, 2), (2500, 8)])
def test_an_epoch_decodes_what_explain_predicts(n: int, lanes: int | None, tmp_path: Path) -> None:
    array = np.zeros((96, 96, 96), dtype="u1")
    data = zarrfeed.open(stored(tmp_path / "v", array, chunks=(16, 16, 16), fill_value=1))
    data = data.patch({0: 8, 1: 8, 2: 8}, sampling="random", n=n, border="drop")
    dataset = ZarrIterableDataset(data, batch_size=16, shuffle=True, mixing={"lanes": lanes})
    explained = dataset.explain()
    for _ in dataset:
        pass
    predicted = explained.fields[0].chunk_reads
    assert dataset.stats().chunks_read == pytest.approx(predicted, rel=0.1)
    assert predicted < n * (1 + 7 / 16) ** 3  # what they decode one by one
    assert "drawn anew" in str(explained)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"n": None}, "n = None"),
    ({"n": 0}, "n = 0"),
    ({"n": 2.5}, "n = 2.5"),
    ({"n": 3, "sampling": "tiles"}, "n = 3"),
    ({"n": None, "sampling": "tiles", "weights": np.ones(SHAPE)}, "weights"),
    ({"border": "shift"}, "border"),
    ({"positions": [[0, 0, 0]]}, "positions"),
    ({"stride": {0: 2}}, "stride"),
    ({"border": "drop", "size": {0: 31}}, "at most 30"),
    ({"weights": np.ones((30, 26))}, r"\(30, 26\)"),
    ({"weights": np.ones((4, 26, 21))}, r"\(4, 26, 21\)"),
    ({"weights": np.ones((0, 26, 21))}, r"\(0, 26, 21\)"),
    ({"weights": np.ones((60, 26, 21))}, r"\(60, 26, 21\)"),
    ({"weights": np.zeros(SHAPE)}, "weights are 0"),
    ({"weights": np.full(SHAPE, -1)}, "-1"),
    ({"weights": np.full(SHAPE, np.nan)}, "nan"),
    ({"weights": np.full(SHAPE, np.inf)}, "inf"),
    ({"weights": np.full(SHAPE, "a")}, "dtype"),
    ({"weights": np.broadcast_to(np.ones(1), (2**10,) * 3)}, "256.0 MiB"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_draws_that_cannot_be_are_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "v", volume(), chunks=CHUNKS)
    given: dict[str, Any] = {"size": SIZES, "sampling": "random", "n": 5} | arguments
    with pytest.raises(zarrfeed.ConfigError, match=message):
        zarrfeed.open(path).patch(**given)
