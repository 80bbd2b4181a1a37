"""`zarrfeed.mix`: what it refuses, what it says of itself, and what a dataset reads of it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed.base.errors import ConfigError

LENGTHS, CHUNKS = (70, 33, 12), (16, 7, 5)


@pytest.fixture
def stores(tmp_path: Path) -> list[str]:
    """Return three stores whose samples are their own global index."""
    paths, base = [], 0
    for number, (length, chunk) in enumerate(zip(LENGTHS, CHUNKS, strict=True)):
        array = zarr.create_array(tmp_path / f"{number}.zarr", shape=(length, 2), chunks=(chunk, 2), dtype="i8")
        array[:] = base + np.arange(length)[:, None]
        paths.append(str(tmp_path / f"{number}.zarr"))
        base += length
    return paths


def test_a_mixture_is_numbered_as_a_concatenation(stores: list[str]) -> None:
    data = zarrfeed.mix(stores, (7, 2, 1))
    assert len(data) == sum(LENGTHS)
    assert data.stores == tuple(stores)
    assert data.locate(70) == (1, 0)
    assert data.source_of(69) == 0
    np.testing.assert_array_equal(data.source_of(np.array([0, 70, 103, 114])), [0, 1, 2, 2])
    with zarrfeed.ZarrIterableDataset(data, batch_size=8, shuffle=True, return_index=True) as dataset:
        for samples, index in dataset:
            np.testing.assert_array_equal(samples[:, 0], index)


def test_several_stores_may_be_one_source(stores: list[str]) -> None:
    data = zarrfeed.mix([stores[:2], stores[2]])
    np.testing.assert_array_equal(data.source_of([0, 102, 103]), [0, 0, 1])
    assert data.resolved.blend is not None
    assert data.resolved.blend.weights == (103, 12)


def test_a_mixture_prints_compares_and_pickles(stores: list[str]) -> None:
    data = zarrfeed.mix(stores[:2], {100: [1, 1], 0: [3, 1]}, stop="all", batching="per_batch")
    assert str(data).endswith("], {0: (3, 1), 100: (1, 1)}, stop='all', batching='per_batch')")
    copied = pickle.loads(pickle.dumps(data))
    assert copied == data
    assert copied != zarrfeed.mix(stores[:2], {100: [1, 1], 0: [2, 1]}, stop="all", batching="per_batch")


def test_methods_of_a_mixture_are_those_of_a_description(stores: list[str]) -> None:
    data = zarrfeed.mix(stores, stop="all").select(slice(60, 110)).window((0, 1)).cast("float32")
    with zarrfeed.ZarrIterableDataset(data, batch_size=8, shuffle=True, return_index=True) as dataset:
        read = set()
        for samples, index in dataset:
            np.testing.assert_array_equal(samples[:, :, 0], np.stack([index, index + 1], axis=1))
            read |= set(index.tolist())
    assert read == {*range(60, 69), *range(70, 102), *range(103, 109)}  # windows do not leave a store
    train, _ = zarrfeed.mix(stores).split((0.5, 0.5), by="sample", seed=1)
    assert len(zarrfeed.ZarrIterableDataset(train, batch_size=8)) > 0


BAD: list[tuple[dict[str, Any], str]] = [
    ({"weights": (7, 2)}, r"weights = \[7, 2\], must be 3 numbers, one for each source"),
    ({"weights": (7, 2, -1)}, "must be finite numbers of at least 0"),
    ({"weights": (0, 0, 0)}, "and one above 0"),
    ({"weights": (1, 2, float("nan"))}, "must be finite numbers"),
    ({"weights": (1, 2, 0)}, "source 2 always has the weight 0; leave it out"),
    ({"weights": "721"}, "weights = '721', must be a number for each source"),
    ({"weights": 3}, "weights = 3, must be a number for each source"),
    ({"weights": (1, True, 1)}, "must be numbers"),
    ({"weights": (1, "2", 1)}, "must be numbers"),
    ({"weights": {5: (1, 1, 1)}}, "must say with which weights training begins: step 0"),
    ({"weights": {0: (1, 1, 1), 5: (1, 1)}}, r"weights = \[1, 1\] from step 5 on, must be 3 numbers"),
    ({"weights": {0: (1, 1, 1), -5: (1, 1, 1)}}, "step of weights = -5"),
    ({"weights": {"0": (1, 1, 1)}}, "step of weights = '0'"),
    ({"stop": "frist"}, "stop = 'frist', must be one of 'first', 'all', 'longest', or a number of steps.*'first'"),
    ({"stop": 0}, "stop = 0"),
    ({"stop": 1.5}, "stop = 1.5"),
    ({"stop": None}, "stop = None"),
    ({"batching": "per_rank"}, "batching = 'per_rank', must be"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_what_cannot_be_mixed_is_refused(stores: list[str], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        zarrfeed.mix(stores, **arguments)


@pytest.mark.parametrize("data", ["a path", None, 3, []])
def test_what_are_no_sources_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match=r"zarrfeed\.mix"):
        zarrfeed.mix(data)


def test_sources_that_do_not_fit_together_are_named(stores: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"2\.zarr"):
        zarrfeed.mix([*stores[:2], zarrfeed.open(stores[2]).cast("float32")])
    assert len(zarrfeed.mix([*stores[:2], zarrfeed.open(stores[2]).cast("float32")], dtype="float32")) == 115


def test_a_mixture_is_no_source_and_no_mapping(stores: list[str]) -> None:
    mixture = zarrfeed.mix(stores[:2])
    for make in (zarrfeed.mix, zarrfeed.concat):
        with pytest.raises(ConfigError, match="a mixture cannot be one of several"):
            make([mixture, stores[2]])
    with pytest.raises(ConfigError, match="join: 'a' is a mixture"):
        zarrfeed.join({"a": mixture, "b": stores[2]})
    with pytest.raises(ConfigError, match="a mixture is an order, and ZarrDataset has none"):
        zarrfeed.ZarrDataset(mixture)
    with pytest.raises(ConfigError, match=r"source_of is for what zarrfeed\.mix returns"):
        zarrfeed.open(stores[0]).source_of(0)


def test_what_a_dataset_cannot_do_with_a_mixture_is_refused(stores: list[str]) -> None:
    data = zarrfeed.mix(stores, batching="per_batch")
    with pytest.raises(ConfigError, match="batching = 'per_batch' is for batches: give the dataset a batch_size"):
        zarrfeed.ZarrIterableDataset(data)
    dataset = zarrfeed.ZarrIterableDataset(zarrfeed.mix(stores), batch_size=4, affinity="node", rank=0, world_size=1)
    assert len(list(dataset)) == len(dataset)  # one node reads all


def test_an_epoch_of_single_source_batches_keeps_its_global_batch(stores: list[str]) -> None:
    data = zarrfeed.mix(stores, (7, 2, 1), batching="per_batch", stop=96)
    dataset = zarrfeed.ZarrIterableDataset(data, batch_size=8, shuffle=True)
    batches = iter(dataset)
    next(batches)
    state = dataset.state_dict()
    other = zarrfeed.ZarrIterableDataset(data, batch_size=12, shuffle=True)
    with pytest.raises(ConfigError, match="keep ranks x batch_size the same"):
        other.load_state_dict(state)
