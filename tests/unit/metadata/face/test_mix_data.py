"""`zarrfeed.mix`: what it refuses, what it says of itself, and what a dataset reads of it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from zarrfeed.base.errors import ConfigError, ZarrfeedError

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


def test_the_source_of_an_index_is_told_in_the_shape_of_the_index(stores: list[str]) -> None:
    data = zarrfeed.mix(stores)
    ends = np.cumsum(LENGTHS)
    for source, (end, length) in enumerate(zip(ends.tolist(), LENGTHS, strict=True)):
        assert (data.source_of(end - length), data.source_of(end - 1)) == (source, source)
    assert type(data.source_of(3)) is int
    found = data.source_of([[0, 69, 70], [102, 103, 114]])
    assert found.dtype == np.int64
    assert found.tolist() == [[0, 0, 1], [1, 2, 2]]
    assert data.source_of(torch.tensor([114, 0])).tolist() == [2, 0]
    assert data.source_of(np.zeros(0, np.int64)).shape == (0,)
    outside: list[Any] = [-1, 115, [0, 115]]
    for index in outside:
        with pytest.raises(IndexError, match=r"must be in \[0, 114\]"):
            data.source_of(index)
    no_integers: list[Any] = [0.5, True, "0", None]
    for index in no_integers:
        with pytest.raises(ConfigError, match="must be an integer or an array of integers"):
            data.source_of(index)


@pytest.mark.parametrize("weights", [(0.7, 0.2, 0.1), np.array([7, 2, 1]), [70, 20, 10], {0: [7, 2, 1]}])
def test_weights_may_be_written_in_several_ways(stores: list[str], weights: Any) -> None:
    assert zarrfeed.mix(stores, weights).resolved.blend == zarrfeed.mix(stores, [7, 2, 1]).resolved.blend


def test_steps_of_a_schedule_may_be_in_any_order(stores: list[str]) -> None:
    schedule = {96: [0, 1, 1], 0: [7, 2, 1], 48: [1, 1, 1]}
    data = zarrfeed.mix(stores, schedule)
    assert data == zarrfeed.mix(stores, dict(sorted(schedule.items())))
    assert data.resolved.blend is not None
    assert data.resolved.blend.changes == ((48, (1, 1, 1)), (96, (0, 1, 1)))


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
    assert hash(copied) == hash(data)
    assert copied.resolved.blend == data.resolved.blend
    others: list[tuple[list[str], Any, dict[str, Any]]] = [
        (stores[:2], {100: [1, 1], 0: [2, 1]}, {}),
        (stores[:2], {101: [1, 1], 0: [3, 1]}, {}),
        (stores[:2], [3, 1], {}),
        (stores[1::-1], {100: [1, 1], 0: [3, 1]}, {}),
        (stores[:2], {100: [1, 1], 0: [3, 1]}, {"stop": "longest"}),
        (stores[:2], {100: [1, 1], 0: [3, 1]}, {"batching": "per_sample"}),
    ]
    for sources, weights, options in others:
        assert copied != zarrfeed.mix(sources, weights, **{"stop": "all", "batching": "per_batch", **options})


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
    ({"weights": (1, 2, float("inf"))}, "must be finite numbers"),
    ({"weights": ()}, r"weights = \[\], must be 3 numbers"),
    ({"weights": (1e-14, 1, 1)}, "must be fractions of at most 1099511627776 in lowest terms"),
    ({"weights": (1, 2, 0)}, "source 2 always has the weight 0; leave it out"),
    ({"weights": "721"}, "weights = '721', must be a number for each source"),
    ({"weights": 3}, "weights = 3, must be a number for each source"),
    ({"weights": (1, True, 1)}, "must be numbers"),
    ({"weights": (1, "2", 1)}, "must be numbers"),
    ({"weights": (1, None, 1)}, "must be numbers"),
    ({"weights": np.ones((3, 1))}, "must be numbers"),
    ({"weights": {}}, "must have weights for step 0"),
    ({"weights": {5: (1, 1, 1)}}, "must have weights for step 0"),
    ({"weights": {0: (1, 1, 1), 5: (1, 1)}}, r"weights = \[1, 1\] from step 5 on, must be 3 numbers"),
    ({"weights": {0: (1, 1, 1), -5: (1, 1, 1)}}, "step of weights = -5"),
    ({"weights": {0: (1, 1, 1), 5: 3}}, "weights = 3, must be a number for each source"),
    ({"weights": {0: (1, 1, 1), 5: (0, 0, 0)}}, "and one above 0"),
    ({"weights": {0: (7, 0, 1), 100: (1, 0, 1)}}, "source 1 always has the weight 0; leave it out"),
    ({"weights": {"0": (1, 1, 1)}}, "step of weights = '0'"),
    ({"weights": {0: (1, 1, 1), 1.5: (1, 1, 1)}}, r"step of weights = 1\.5, must be an integer"),
    ({"weights": {0: (1, 1, 1), True: (1, 1, 1)}}, "step of weights = True, must be an integer"),
    ({"weights": {0: (1, 1, 1), 1 << 62: (1, 1, 1)}}, "step of weights = 4611686018427387904, must be at most"),
    ({"stop": "frist"}, "stop = 'frist', must be one of 'first', 'all', 'longest', or a number of steps.*'first'"),
    ({"stop": 0}, "stop = 0"),
    ({"stop": -3}, "stop = -3, must be at least 1"),
    ({"stop": 1 << 62}, "stop = 4611686018427387904, must be at most"),
    ({"stop": 1.5}, "stop = 1.5"),
    ({"stop": True}, "stop = True, must be an integer"),
    ({"stop": None}, "stop = None"),
    ({"batching": "per_rank"}, "batching = 'per_rank', must be"),
    ({"batching": None}, "batching = None, must be one of 'per_sample', 'per_batch'"),
    ({"dtype": "float33"}, "'float33', must be a dtype.*did you mean 'float32'"),
    ({"dtype": "int8"}, "cannot convert int64 to int8 without losing"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_what_cannot_be_mixed_is_refused(stores: list[str], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        zarrfeed.mix(stores, **arguments)


def test_options_that_do_not_exist_are_refused(stores: list[str]) -> None:
    with pytest.raises(TypeError, match=r"mix\(\) has no argument 'weight'; did you mean 'weights'"):
        zarrfeed.mix(stores, weight=(1, 1, 1))  # type: ignore[call-arg]


@pytest.mark.parametrize("data", ["a path", None, 3, [], {}])
def test_what_are_no_sources_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match=r"zarrfeed\.mix"):
        zarrfeed.mix(data)


def test_sources_that_do_not_fit_together_are_named(stores: list[str], tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "wide.zarr", data=np.zeros((4, 5), "i8"))
    zarr.create_array(tmp_path / "empty.zarr", shape=(0, 2), chunks=(4, 2), dtype="i8")
    zarr.create_group(tmp_path / "group.zarr").create_array("x", data=np.zeros((4, 2), "i8"))
    for name, message in (
        ("wide", r"wide\.zarr: samples is int64 of shape \(5,\), in .*0\.zarr it is int64 of shape \(2,\)"),
        ("group", r"group\.zarr: has samples\['x'\], .*0\.zarr has samples; they must have the same"),
        ("empty", r"empty\.zarr: has the shape"),
        ("none", r"none\.zarr: no Zarr array is there"),
    ):
        with pytest.raises(ZarrfeedError, match=message):
            zarrfeed.mix([stores[0], tmp_path / f"{name}.zarr"])
    single = zarrfeed.open(stores[2]).cast("float32")
    with pytest.raises(ConfigError, match=r"2\.zarr"):
        zarrfeed.mix([*stores[:2], single])
    assert len(zarrfeed.mix([*stores[:2], single], dtype="float32")) == 115


def test_a_store_that_grows_is_no_source(stores: list[str]) -> None:
    with pytest.raises(ConfigError, match="a store that is opened with refresh cannot be an input of zarrfeed"):
        zarrfeed.mix([zarrfeed.open(stores[0], refresh="epoch"), stores[1]])


def test_a_mixture_is_no_source_and_no_mapping(stores: list[str]) -> None:
    mixture = zarrfeed.mix(stores[:2])
    for make in (zarrfeed.mix, zarrfeed.concat):
        with pytest.raises(ConfigError, match="a mixture cannot be an input of zarrfeed"):
            make([mixture, stores[2]])
    with pytest.raises(ConfigError, match="join: 'a' is a mixture"):
        zarrfeed.join({"a": mixture, "b": stores[2]})
    with pytest.raises(ConfigError, match="a mixture has an order, and ZarrDataset has none"):
        zarrfeed.ZarrDataset(mixture)
    with pytest.raises(ConfigError, match=r"source_of: these samples are no mixture"):
        zarrfeed.open(stores[0]).source_of(0)


def test_what_a_dataset_cannot_do_with_a_mixture_is_refused(stores: list[str]) -> None:
    data = zarrfeed.mix(stores, batching="per_batch")
    with pytest.raises(ConfigError, match="batching = 'per_batch' is for batches: give the dataset a batch_size"):
        zarrfeed.ZarrIterableDataset(data)
    dataset = zarrfeed.ZarrIterableDataset(zarrfeed.mix(stores), batch_size=4, affinity="node", rank=0, world_size=1)
    assert len(list(dataset)) == len(dataset)  # one node reads all
    with pytest.raises(ConfigError, match="affinity = 'node' is not for mixtures"):
        zarrfeed.ZarrIterableDataset(zarrfeed.mix(stores), batch_size=4, affinity="node", rank=0, world_size=2)


def test_an_epoch_that_would_not_end_is_refused_when_the_dataset_is_made(stores: list[str]) -> None:
    data = zarrfeed.mix(stores, {0: (1, 1, 1), 24: (1, 1, 0)}, stop="all")
    with pytest.raises(ConfigError, match="stop = 'all': source 2 has 12 samples, and is never read to its end"):
        zarrfeed.ZarrIterableDataset(data, batch_size=4)


def test_an_epoch_of_single_source_batches_keeps_its_global_batch(stores: list[str]) -> None:
    data = zarrfeed.mix(stores, (7, 2, 1), batching="per_batch", stop=96)
    dataset = zarrfeed.ZarrIterableDataset(data, batch_size=8, shuffle=True)
    batches = iter(dataset)
    next(batches)
    state = dataset.state_dict()
    other = zarrfeed.ZarrIterableDataset(data, batch_size=12, shuffle=True)
    with pytest.raises(ConfigError, match="keep ranks x batch_size the same"):
        other.load_state_dict(state)
