"""`set_sample_weights`: weights that change between epochs, here, in workers, on ranks, and after resuming."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ConfigError, Data, ZarrDataLoader, ZarrIterableDataset

N, CHUNK = 60, 6
#: Weights whose expected counts are whole numbers, so that each epoch has exactly these counts.
FIRST, SECOND = np.tile([1, 0, 2], 20), np.tile([0, 3, 0], 20)
THIRD = np.where(np.arange(N) < 30, 2, 0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weightings") / "x.zarr"
    zarr.create_array(path, data=np.arange(N, dtype="i4"), chunks=(CHUNK,))
    return path


def described(store: Path) -> Data:
    return zarrfeed.open(store).weight(FIRST)


def make(store: Path, **options: Any) -> ZarrIterableDataset:
    options = {"batch_size": 8, "shuffle": True, "seed": 3, **options}
    return ZarrIterableDataset(described(store), return_index=True, **options)


def listed(batches: Iterable[Any]) -> list[int]:
    """Check that each sample is that of its index; return the samples in their order."""
    order: list[int] = []
    for samples, index in batches:
        assert samples.tolist() == index.tolist()
        order += index.tolist()
    return order


def check(batches: Iterable[Any], counts: np.ndarray) -> list[int]:
    """Check how often each sample comes; return the samples in their order."""
    order = listed(batches)
    assert np.bincount(order, minlength=N).tolist() == counts.tolist()
    return order


@pytest.mark.parametrize("shuffle", [False, True])
def test_weights_hold_from_the_next_epoch_on_as_if_the_dataset_had_been_made_with_them(
    store: Path, shuffle: bool
) -> None:
    dataset = make(store, shuffle=shuffle)
    expected = ZarrIterableDataset(
        zarrfeed.open(store).weight(SECOND), batch_size=8, shuffle=shuffle, seed=3, return_index=True
    )
    expected.set_epoch(1)
    check(dataset, FIRST)
    dataset.set_sample_weights(SECOND)
    assert dataset.data == zarrfeed.open(store).weight(SECOND)
    assert len(dataset) == len(list(expected))
    expected.set_epoch(1)
    assert check(dataset, SECOND) == listed(expected)
    assert check(dataset, SECOND) == listed(expected)
    dataset.set_sample_weights(FIRST)
    check(dataset, FIRST)


def test_a_pass_under_way_keeps_its_weights(store: Path) -> None:
    dataset = make(store)
    batches = iter(dataset)
    first = next(batches)
    dataset.set_sample_weights(SECOND)
    check([first, *batches], FIRST)
    check(dataset, SECOND)


@pytest.mark.parametrize(("persistent", "context"), [(False, "fork"), (True, "fork"), (True, "forkserver")])
def test_workers_read_by_the_new_weights(store: Path, persistent: bool, context: str) -> None:
    dataset, here = make(store), make(store)
    loader = ZarrDataLoader(
        dataset, num_workers=2, persistent_workers=persistent, multiprocessing_context=context, prefetch_factor=2
    )
    for weights in (FIRST, SECOND, THIRD, FIRST, THIRD, SECOND):
        dataset.set_sample_weights(weights)
        here.set_sample_weights(weights)
        assert sorted(check(loader, weights)) == sorted(check(here, weights))


def test_the_order_is_the_same_on_any_ranks(store: Path) -> None:
    def run(world_size: int) -> list[Counter[int]]:
        steps: list[Counter[int]] = []
        for rank in range(world_size):
            dataset = make(store, rank=rank, world_size=world_size, batch_size=12 // world_size)
            dataset.set_sample_weights(THIRD)
            for step, (_, index) in enumerate(dataset):
                steps += [Counter()] * (step == len(steps))
                steps[step] = steps[step] + Counter(index.tolist())
        return steps

    assert run(1) == run(2) == run(3)


def take(dataset: ZarrIterableDataset, count: int) -> tuple[list[int], dict[str, Any]]:
    """Return the samples of some batches, and the state behind them."""
    batches = iter(dataset)
    taken = listed([next(batches) for _ in range(count)])
    return taken, json.loads(json.dumps(dataset.state_dict()))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_run_goes_on_with_weights_that_are_named_again(store: Path, shuffle: bool) -> None:
    dataset = make(store, shuffle=shuffle)
    dataset.set_sample_weights(SECOND)
    whole = listed(dataset)
    dataset.set_epoch(0)
    taken, state = take(dataset, 3)
    resumed = make(store, shuffle=shuffle)
    resumed.set_sample_weights(SECOND)
    resumed.set_sample_weights(THIRD)  # the state names the weights of its epoch, whatever was set last
    resumed.load_state_dict(state)
    assert taken + listed(resumed) == whole
    check(resumed, SECOND)


def test_a_state_at_the_end_of_an_epoch_names_the_weights_that_come_next(store: Path) -> None:
    dataset = make(store)
    list(dataset)
    dataset.set_sample_weights(SECOND)
    state = dataset.state_dict()
    resumed = make(store)
    resumed.set_sample_weights(SECOND)
    resumed.load_state_dict(state)
    assert check(resumed, SECOND) == check(dataset, SECOND)


def test_a_state_goes_on_where_its_weights_are_those_of_the_description(store: Path) -> None:
    dataset = make(store)
    dataset.set_sample_weights(SECOND)
    taken, state = take(dataset, 2)
    dataset.set_epoch(0)
    whole = listed(dataset)
    resumed = ZarrIterableDataset(
        zarrfeed.open(store).weight(SECOND), batch_size=8, shuffle=True, seed=3, return_index=True
    )
    resumed.load_state_dict(state)
    assert taken + listed(resumed) == whole


def test_a_state_whose_weights_are_not_known_says_what_to_call(store: Path) -> None:
    dataset = make(store)
    dataset.set_sample_weights(SECOND)
    _, state = take(dataset, 2)
    with pytest.raises(ConfigError, match=r"call set_sample_weights\(\) with the same weights, then load the state"):
        make(store).load_state_dict(state)
    with pytest.raises(ConfigError, match="the state has weights of samples, and these have none"):
        ZarrIterableDataset(zarrfeed.open(store), batch_size=8, shuffle=True, seed=3).load_state_dict(state)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_the_weights_and_is_on_its_own(store: Path, copied: Callable[[Any], Any]) -> None:
    dataset = make(store)
    dataset.set_sample_weights(SECOND)
    other = copied(dataset)
    dataset.set_sample_weights(THIRD)
    loader = ZarrDataLoader(other, num_workers=1)
    check(loader, SECOND)
    check(dataset, THIRD)
    check(loader, SECOND)


def test_a_rest_of_an_epoch_keeps_its_weights(store: Path) -> None:
    dataset = make(store)
    _, state = take(dataset, 2)
    dataset.load_state_dict(state)
    with pytest.raises(ConfigError, match="begun with other weights: set_epoch first"):
        dataset.set_sample_weights(SECOND)
    dataset.set_epoch(1)
    dataset.set_sample_weights(SECOND)
    check(dataset, SECOND)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(7), "has the shape"),
        (np.zeros(N), "all 60 are 0"),
        (np.full(N, -1.0), "must be finite and not negative"),
    ],
)
def test_wrong_weights_are_refused_and_change_nothing(store: Path, weights: np.ndarray, message: str) -> None:
    dataset = make(store)
    with pytest.raises(ConfigError, match=message):
        dataset.set_sample_weights(weights)
    check(dataset, FIRST)


def test_samples_without_weights_are_told_what_to_call(store: Path) -> None:
    dataset = ZarrIterableDataset(zarrfeed.open(store), batch_size=8)
    with pytest.raises(ConfigError, match=r"have no weights yet; call weight\(\) or balance\(\)"):
        dataset.set_sample_weights(SECOND)


def test_weights_may_be_a_function_of_columns_and_follow_balance(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "x.zarr")
    label = np.arange(N) % 3
    for name, values in (("x", np.arange(N)), ("label", label)):
        group.create_array(name, data=values, chunks=(CHUNK,), dimension_names=["time"])
    data = zarrfeed.open(tmp_path / "x.zarr", sample_dim="time", variables=["x"]).balance("label", n=2 * N)
    with ZarrIterableDataset(data, batch_size=8, shuffle=True) as dataset:
        dataset.set_sample_weights(lambda label: label == 1)
        seen = np.concatenate([batch["x"].numpy() for batch in dataset])
    assert np.bincount(seen, minlength=N).tolist() == np.where(label == 1, 6, 0).tolist()


def test_memory_does_not_grow_with_the_number_of_changes(store: Path) -> None:
    dataset = make(store)
    weightings = dataset._session.editions.weightings
    assert weightings is not None
    rng = np.random.default_rng(0)
    for _ in range(20):
        dataset.set_sample_weights(rng.random(N))
        next(iter(dataset))
    assert len(weightings._known) == 4
    assert os.fstat(weightings._file.descriptor).st_size == 8 + 3 * 8 * N
