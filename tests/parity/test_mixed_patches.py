"""Mixtures of patches against NumPy: what each patch has, which patches a pass over a source has, and whoever reads it.

Turns and shares are those of any mixture, which `test_mixture_promises.py` tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrfeed
from tests.support.mixtures import dataset_of, errors, mixture_of
from tests.support.patches import Voxels, patch_of, read, stored, volume
from tests.support.runs import Int64, Run
from zarrfeed import ConfigError, Data, ZarrIterableDataset
from zarrfeed.plan.patches.mixed_patches import MixedPatches

SIZE = (4, 5, 3)
SIZES: dict[str | int, int] = dict(enumerate(SIZE))
WEIGHTS = (4, 3, 1)
SHAPES = [(15, 13, 11), (9, 17, 8), (12, 12, 12)]
VOLUMES = [volume(shape, first=1 + 10**6 * k) for k, shape in enumerate(SHAPES)]
RNG = np.random.default_rng(2)
LABELS = [(RNG.random(shape) < 0.02).astype("u1") for shape in SHAPES]
LISTED = [RNG.integers(-2, 8, (n, 3)) for n in (40, 25, 9)]
NUMBERS = {"random": (50, 31, 12), "positions": (40, 25, 9), "grid": (4 * 3 * 4, 3 * 4 * 3, 3 * 3 * 4)}
MODES = [
    ("random", True, 150, "per_sample"),
    ("positions", True, "longest", "per_sample"),
    ("grid", False, "all", "per_sample"),
    ("positions", True, 90, "per_batch"),
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("volumes")
    chunks = [(8, 9, 7), (3, 6, 8), (5, 5, 5)]
    return [stored(folder / str(k), one, chunks=of) for k, (one, of) in enumerate(zip(VOLUMES, chunks, strict=True))]


def sources(paths: list[str], sampling: Any, **options: Any) -> list[Data]:
    made = []
    for path, listed, n in zip(paths, LISTED, NUMBERS["random"], strict=True):
        options_of: dict[str, Any] = {"random": {"n": n}, "positions": {"positions": listed}}
        own = options_of.get(sampling, {})
        made.append(zarrfeed.open(path).patch(SIZES, sampling=sampling, **own, **options))
    return made


def mixed(paths: list[str], sampling: Any, stop: Any = 150, batching: Any = "per_sample", **options: Any) -> Data:
    return zarrfeed.mix(sources(paths, sampling, **options), WEIGHTS, stop=stop, batching=batching)


def grid_starts(shape: tuple[int, ...]) -> Voxels:
    along = [np.arange(0, length, size) for length, size in zip(shape, SIZE, strict=True)]
    return np.stack([one.ravel() for one in np.meshgrid(*along, indexing="ij")], axis=1)


@pytest.mark.parametrize(("sampling", "shuffle", "stop", "batching"), MODES)
def test_each_pass_over_a_source_has_its_patches_once(
    paths: list[str], sampling: str, shuffle: bool, stop: Any, batching: Any
) -> None:
    data = mixed(paths, sampling, stop, batching)
    with dataset_of(data, shuffle=shuffle, batch_size=6) as dataset:
        epochs = [dataset.sample_order(epoch) for epoch in range(4)]
        numbers, order = np.concatenate(epochs), dataset.session.schedule.order
    assert isinstance(order, MixedPatches)
    source, position = order.with_unit(6).taken_at(np.arange(len(numbers)))
    np.testing.assert_array_equal(data.source_of(numbers), source)
    if batching == "per_sample":
        np.testing.assert_array_equal(source, mixture_of(WEIGHTS, 3).at(np.arange(len(numbers)))[0])
        assert max(errors(source, WEIGHTS)) < 8
    store, start = data.locate(numbers)
    np.testing.assert_array_equal(store, source)
    assert [data.source_of(int(number)) for number in numbers[:9]] == source[:9].tolist()
    whole = 0
    for one, n in enumerate(NUMBERS[sampling]):
        begins, of_pass = start[source == one], position[source == one] // n
        passes = [begins[of_pass == number].tolist() for number in range(of_pass.max() + 1)]
        complete = [sorted(found) for found in passes if len(found) == n]
        whole += len(complete)
        if sampling == "random":
            assert len({str(found) for found in complete}) == len(complete)  # each pass draws its own
        else:
            expected = LISTED[one] if sampling == "positions" else grid_starts(SHAPES[one])
            assert all(found == sorted(expected.tolist()) for found in complete)
    assert whole >= 5


@pytest.mark.parametrize("border", ["pad", "drop"])
def test_patches_are_those_of_the_arrays(paths: list[str], border: Any) -> None:
    data = mixed(paths, "random", 80, border=border)
    with ZarrIterableDataset(data, batch_size=9, shuffle=True, return_index=True) as dataset:
        for epoch in range(2):
            expected = dataset.sample_order(epoch).tolist()
            numbers = []
            for patch, number in read(dataset):
                source, start = data.locate(number)
                numbers.append(number)
                np.testing.assert_array_equal(patch.numpy(), patch_of(VOLUMES[source], start, SIZE))
            assert numbers == expected


def test_as_many_chunks_are_decoded_as_explained(paths: list[str]) -> None:
    one = zarrfeed.open(paths[2])
    data = zarrfeed.mix([one.patch(SIZES, sampling="random", n=n) for n in (70, 30)], [2, 1], stop=80)
    with ZarrIterableDataset(data, batch_size=8, shuffle=True) as dataset:
        for _ in range(2):
            explained, before = dataset.explain(), dataset.stats().chunks_read
            assert len(list(dataset)) == 10
            # one rank with enough memory visits each group once
            assert dataset.stats().chunks_read - before == explained.fields[0].chunk_reads
    assert "each source is read in columns of its own" in str(explained)


@pytest.mark.parametrize(("sampling", "shuffle", "stop", "batching"), [MODES[0], MODES[2]])
def test_the_order_depends_on_no_rank_and_no_worker_and_goes_on_after_a_state(
    paths: list[str], sampling: str, shuffle: bool, stop: Any, batching: Any
) -> None:
    run = Run.of(mixed(paths, sampling, stop, batching), shuffle=shuffle, batch_size=3)
    for ranks in range(1, 9):
        whole = run.on(1, epoch=ranks % 3).sample_order()
        np.testing.assert_array_equal(run.on(ranks, 0, ranks % 3).sample_order(), whole)
    many = [batch for batches in run.on(3, 2, 1).all_batches() for batch in batches]
    np.testing.assert_array_equal(np.sort(np.concatenate(many)), np.sort(run.on(1, epoch=1).sample_order()))
    whole, passing, batches_read = run.on(1, epoch=2).sample_order(), run.on(1, epoch=2), list[Int64]()
    for taken, ranks, workers in [(5, 8, 0), (2, 3, 2)]:
        batches_read += [batch for batches in passing.all_batches() for batch in batches[:taken]]
        passing = passing.after(taken, ranks, workers)
    batches_read += [batch for batches in passing.all_batches() for batch in batches]
    np.testing.assert_array_equal(np.sort(np.concatenate(batches_read)), np.sort(whole))


def test_a_state_names_the_columns_that_all_later_epochs_keep(paths: list[str]) -> None:
    data = mixed(paths, "random", 60)
    with dataset_of(data, batch_size=6) as dataset:
        orders = [dataset.sample_order(epoch) for epoch in range(3)]
        passing = iter(dataset)
        next(passing)
        state = dataset.state_dict()
    assert len(state["sweeps"]) == 3
    # other lanes and columns would be chosen here
    with dataset_of(data, batch_size=6, mixing={"lanes": 1}) as other:
        assert other.sample_order(1).tolist() != orders[1].tolist()
        other.load_state_dict(state)
        delivered = [[index for _, index in other] for _ in range(3)]
    for epoch, expected in enumerate([orders[0][6:], *orders[1:]]):
        np.testing.assert_array_equal(np.concatenate(delivered[epoch]), expected)
    with pytest.raises(ConfigError, match="damaged"), dataset_of(data) as other:
        other.load_state_dict({**state, "sweeps": state["sweeps"][:2]})
    with pytest.raises(ConfigError), dataset_of(mixed(paths, "random", 61)) as other:
        other.load_state_dict(state)


def test_a_bad_chunk_is_replaced_by_patches_of_the_same_source(paths: list[str], tmp_path: Path) -> None:
    bad = stored(tmp_path / "bad", VOLUMES[0], chunks=(8, 9, 7))
    (Path(bad) / "c" / "0" / "1" / "0").write_bytes(b"no chunk")
    data = mixed([bad, *paths[1:]], "random", 100)
    options: dict[str, Any] = {"shuffle": True, "return_index": True, "faults": {"on_error": "skip"}}
    with ZarrIterableDataset(data, batch_size=10, **options) as dataset:
        expected = dataset.sample_order(0)
        with pytest.warns(zarrfeed.ChunkSkippedWarning):
            found = list(read(dataset))
    for (patch, number), planned in zip(found, expected.tolist(), strict=True):
        source, start = data.locate(number)
        assert source == data.source_of(planned)
        np.testing.assert_array_equal(patch.numpy(), patch_of(VOLUMES[source], start, SIZE))
    assert 0 < sum(number != planned for (_, number), planned in zip(found, expected.tolist(), strict=True)) < 50


def test_weights_of_voxels_and_schedules_of_shares_hold(paths: list[str]) -> None:
    parts = [
        zarrfeed.open(path).patch(SIZES, sampling="random", n=20, weights=label, border="drop")
        for path, label in zip(paths, LABELS, strict=True)
    ]
    joined = zarrfeed.concat(parts[:2])  # each volume has its 20 patches in each pass
    data = zarrfeed.mix([joined, parts[2]], weights={0: [1, 0], 120: [0, 1]}, stop=120)
    with ZarrIterableDataset(data, shuffle=True) as dataset:
        first, second = (dataset.sample_order(epoch) for epoch in range(2))
    assert np.bincount(data.source_of(first), minlength=2).tolist() == [120, 0]
    assert np.bincount(data.source_of(second), minlength=2)[0] <= 24  # at the next row of all columns
    _, start = data.locate(first)
    of_first = start[:, 0] < SHAPES[0][0]
    assert of_first.sum() == 60
    for label, begins in ((LABELS[0], start[of_first]), (LABELS[1], start[~of_first] - (SHAPES[0][0], 0, 0))):
        assert label[tuple((begins + np.array(SIZE) // 2).T)].all()


def test_sources_that_cannot_be_mixed_say_what_can(paths: list[str]) -> None:
    one = zarrfeed.open(paths[0])
    with pytest.raises(ConfigError, match='must be of sampling = "random"'):
        zarrfeed.mix([one.patch(SIZES), one.patch(SIZES)])
    with pytest.raises(ConfigError, match="cut into other patches"):
        zarrfeed.mix([one.patch(SIZES, sampling="grid"), one.patch({0: 2}, sampling="grid")])
    with pytest.raises(ConfigError, match="must have the same shape"):
        zarrfeed.mix([one.patch(SIZES, sampling="grid"), paths[1]])
    with pytest.raises(IndexError, match="the numbers of patches are below"):
        mixed(paths, "grid").source_of(10**9)
    with pytest.raises(ConfigError, match=r"before stack\(\) and zarrfeed.mix\(\)"):
        zarrfeed.mix([paths[0], paths[0]]).patch({0: 2})
    with pytest.raises(ConfigError, match="mixture"):
        zarrfeed.ZarrDataset(mixed(paths, "grid"))
    with pytest.raises(ConfigError, match="per_batch"):
        ZarrIterableDataset(mixed(paths, "grid", 60, "per_batch"))
