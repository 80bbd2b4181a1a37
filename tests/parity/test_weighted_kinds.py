"""Balanced classes of each kind of sample: counts, joint inclusion, ranks, workers and resuming, of what is delivered.

Every sample tells its own number: an encoded image by its colour, an object by its bytes, a text by its words, a row of
a sparse matrix by its values, a stack in each of its channels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import zarr

import zarrfeed
import zarrfeed.objects
from tests.parity.test_weights import balanced, check_counts, expected_of
from tests.support.mixtures import Int64, dataset_of, interleaved
from tests.support.objects import number_of, write_objects
from tests.support.pictures import image_array, numbered_png
from tests.support.sparse import numbered_rows, put_csr
from zarrfeed import ConfigError, ZarrDataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification"),
]

N = 240
LABEL = np.random.default_rng(0).choice(3, N, p=[0.8, 0.15, 0.05])
EXPECTED = expected_of(balanced(LABEL))

#: Makes a dataset from options of `dataset_of`, and says whether a batch has the samples of some numbers.
Kind: TypeAlias = tuple[Callable[..., Any], Callable[[Any, Int64], bool]]


def images(path: Path) -> Kind:
    group = zarr.create_group(path / "images.zarr", zarr_format=2)
    image_array(group.store_path / "photo", [numbered_png(i) for i in range(N)], chunks=(16,))
    data = zarrfeed.open({"photo": zarr.open_array(path / "images.zarr/photo")}).decode("image").balance(LABEL)
    return lambda **options: dataset_of(data, **options), lambda batch, index: np.array_equal(
        [int(one[0, 0, 0]) for one in batch["photo"]], index
    )


def texts(path: Path) -> Kind:
    names = zarr.create_array(path / "names", shape=(N,), dtype="str", chunks=(16,))
    names[:] = np.array([f"name {i}" for i in range(N)])
    data = zarrfeed.open(names).balance(LABEL)
    return lambda **options: dataset_of(
        data, **options
    ), lambda batch, index: list(batch) == [f"name {i}" for i in index]


def sparse(path: Path) -> Kind:
    matrix = numbered_rows(N, 40)
    group = zarr.create_group(path / "cells.zarr", attributes={"encoding-type": "anndata"})
    put_csr(group.create_group("X"), matrix)
    data = zarrfeed.open(str(path / "cells.zarr"), variables=["X"]).balance(LABEL)

    def has(batch: Any, index: Int64) -> bool:
        rows = batch["X"] if isinstance(batch, dict) else batch
        return np.array_equal(rows.to_dense().numpy(), matrix[index])

    return lambda **options: dataset_of(data, **options), has


def stacks(path: Path) -> Kind:
    arrays = {
        name: zarr.create_array(path / name, data=np.arange(N) + 0.0, chunks=(chunk,))
        for name, chunk in (("a", 16), ("b", 24))
    }
    data = zarrfeed.open(arrays).stack(["a", "b"], name="x").balance(LABEL)

    def has(batch: Any, index: Int64) -> bool:
        return np.array_equal(batch["x"].numpy(), np.stack([index, index], 1))

    return lambda **options: dataset_of(data, **options), has


def objects(path: Path) -> Kind:
    found = zarrfeed.objects.open(write_objects(path / "objects", N)).balance(LABEL)
    return (
        lambda **options: zarrfeed.objects.ObjectIterableDataset(
            found,
            **{"batch_size": 8, "shuffle": True, "seed": 3, "return_index": True, "even": "off"}
            | {"rank": 0, "world_size": 1}
            | options,
        ),
        lambda batch, index: [number_of(one) for one in batch] == index.tolist(),
    )


@pytest.fixture(scope="module", params=[images, texts, sparse, stacks, objects])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    made: Kind = request.param(tmp_path_factory.mktemp("kinds"))
    return made


def numbers(kind: Kind, batches: Any) -> Int64:
    """Return the numbers of the samples of some batches, which their values and their index tell alike."""
    taken = [np.zeros(0, np.int64)]
    for values, index in batches:
        assert kind[1](values, index.numpy())
        taken.append(index.numpy().copy())
    return np.concatenate(taken)


def test_counts_and_pairs_of_epochs_are_those_of_the_weights(kind: Kind) -> None:
    """Chi-square of the mean count of each sample, and how often two common samples come in one epoch."""
    with kind[0]() as dataset:
        first = numbers(kind, dataset)
        check_counts(first, EXPECTED)
        assert np.array_equal(first, dataset.sample_order(0))
        counts = np.array([np.bincount(dataset.sample_order(epoch), minlength=N) for epoch in range(400)])
    assert np.abs(counts - EXPECTED).max() < 1
    spread = (counts.mean(0) - EXPECTED) / np.sqrt((EXPECTED % 1) * (1 - EXPECTED % 1) / len(counts))
    assert (spread**2).sum() < N + 5 * np.sqrt(2 * N)
    common = counts[:, np.flatnonzero(LABEL == 0)[:15]]
    chance = EXPECTED[LABEL == 0][0] ** 2
    together = [(common[:, i] & common[:, j]).mean() for i, j in itertools.combinations(range(15), 2)]
    assert 0.4 * chance < min(together) <= max(together) < 1.6 * chance


@pytest.mark.parametrize("ranks", range(2, 9))
def test_ranks_deliver_the_order_of_one(kind: Kind, ranks: int) -> None:
    parts = []
    for rank in range(ranks):
        with kind[0](rank=rank, world_size=ranks, batch_size=4) as dataset:
            parts.append(numbers(kind, dataset) if rank in (0, ranks - 1) else dataset.sample_order(0))
    with kind[0]() as dataset:
        assert np.array_equal(interleaved(parts), dataset.sample_order(0))


def test_workers_and_other_ranks_go_on_exactly(kind: Kind) -> None:
    """One rank with workers, then eight ranks, then three, each of which stops in the middle of epoch 1."""
    with kind[0]() as dataset:
        loader = ZarrDataLoader(dataset, num_workers=2, multiprocessing_context="forkserver")
        for _ in loader:
            pass
        parts = []
        for number, batch in enumerate(loader, start=1):
            parts.append(numbers(kind, [batch]))
            if number == 9:
                state = loader.state_dict()
                break
    for ranks, stop in ((8, 2), (3, None)):
        states = []
        for rank in range(ranks):
            with kind[0](rank=rank, world_size=ranks, batch_size=4) as dataset:
                dataset.load_state_dict(state)
                parts.append(numbers(kind, itertools.islice(dataset, stop)))
                states.append(dataset.state_dict())
        state = states[0]
    with kind[0]() as dataset:
        assert np.array_equal(np.sort(np.concatenate(parts)), np.sort(dataset.sample_order(1)))
        assert zarrfeed.audit(parts) == zarrfeed.audit([dataset.sample_order(1)])


# Objects


def test_objects_are_weighted_by_what_a_function_says_of_them(tmp_path: Path) -> None:
    found = zarrfeed.objects.open(write_objects(tmp_path, N))
    folders = np.arange(N) // 50
    forms = {
        "classes": (found.balance(lambda one: one.key.split("/")[0]), balanced(folders)),
        "softened": (found.balance(folders.astype(str), power=0.5), balanced(folders, 0.5)),
        "sizes": (found.weight(lambda one: one.size), found.listing.sizes),
        "some": (found.weight(folders == 3, n=99), folders == 3),
    }
    for weighted, weights in forms.values():
        assert weighted.expected is not None
        total = weighted.expected.total
        assert total == (99 if weights.dtype == bool else N)
        assert repr(weighted).endswith(f"; {total} an epoch by weights>")
        for shuffle in (True, False):
            options: dict[str, Any] = {"shuffle": shuffle, "batch_size": 16, "return_index": True}
            with zarrfeed.objects.ObjectIterableDataset(weighted, **options) as dataset:
                assert f"weights     {total} samples an epoch" in str(dataset.explain())
                taken = [index.numpy() for _, index in dataset]
                check_counts(np.concatenate(taken), expected_of(weights, total))
                assert len(dataset) == len(taken)


def test_repeated_objects_are_shuffled_fully(tmp_path: Path) -> None:
    found = zarrfeed.objects.open(tmp_path, keys=(str(i) for i in range(3000)))
    weights = np.ones(3000)
    weights[::100] = 50.0
    order = zarrfeed.objects.ObjectIterableDataset(found.weight(weights), shuffle=True, seed=1).sample_order(0)
    positions = np.flatnonzero(order % 100 == 0)
    assert len(positions) > 900
    assert abs(np.corrcoef(np.arange(3000), order)[0, 1]) < 0.07
    for sample in range(0, 3000, 100):  # a gap of 3000 is expected of a sample that comes once
        gaps = np.diff(np.flatnonzero(order == sample))
        assert gaps.mean() > 3000 / 50
        assert gaps.max() < 1500


def test_an_object_that_cannot_be_decoded_is_replaced_each_time_it_comes(tmp_path: Path) -> None:
    found, torn = zarrfeed.objects.open(write_objects(tmp_path, N)).balance(LABEL), int(np.flatnonzero(LABEL == 2)[0])

    def decode(data: memoryview) -> int:
        number = number_of(bytes(data))
        if number == torn:
            raise ValueError("torn")
        return number

    assert EXPECTED[torn] > 4
    options: dict[str, Any] = {"decode": decode, "batch_size": 8, "shuffle": True, "faults": {"on_error": "skip"}}
    with zarrfeed.objects.ObjectIterableDataset(found, **options) as dataset:
        with pytest.warns(zarrfeed.ChunkSkippedWarning):
            taken = [number for batch in dataset for number in batch]
        assert len(taken) == N
        assert torn not in taken


def test_weighted_objects_that_cannot_be_are_refused(tmp_path: Path) -> None:
    found = zarrfeed.objects.open(write_objects(tmp_path / "in", 20))
    weighted = found.weight(np.arange(20))
    refused: dict[str, Callable[[], Any]] = {
        "weight: objects are weighted; call weight": lambda: weighted.weight(np.ones(20)),
        "balance: objects are weighted": lambda: weighted.balance(np.ones(20)),
        "select: objects are weighted": lambda: weighted.select([1]),
        "ObjectDataset, which has no order: objects are weighted": lambda: zarrfeed.objects.ObjectDataset(weighted),
        "to_zarr: objects are weighted": lambda: zarrfeed.objects.to_zarr(weighted, tmp_path / "out.zarr"),
        r"weights: has the shape \(3,\), must have a value for each of 20 objects": lambda: found.weight([1, 2, 3]),
        "number 2 is -1.0, must be finite and not negative": lambda: found.weight([1, 1, -1, *[1] * 17]),
        "n = 0, must be at least 1": lambda: found.weight(np.ones(20), n=0),
        "power = -1, must be a finite number of at least 0": lambda: found.balance(np.ones(20), power=-1),
        "affinity = 'node' is not for weighted samples": lambda: zarrfeed.objects.ObjectIterableDataset(
            weighted, affinity="node", rank=0, world_size=2
        ).explain(),
    }
    for message, call in refused.items():
        with pytest.raises(ConfigError, match=message):
            call()
    with zarrfeed.objects.ObjectIterableDataset(weighted) as one:
        state = one.state_dict()
    with zarrfeed.objects.ObjectIterableDataset(found) as other, pytest.raises(ConfigError, match="weights was"):
        other.load_state_dict(state)
