"""A rank that would read another order than the other ranks is told so, and no rank that may differ is stopped."""

from __future__ import annotations

import copy
import functools
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed
import zarr
from torch.utils.data import DataLoader

import zarrfeed
from tests.support.examples import slow
from tests.support.ranks import Ranks
from zarrfeed import ConfigError, ZarrDataLoader, ZarrIterableDataset
from zarrfeed.torch.ranks import same_order

N, ROWS = 400, 10

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=[2, slow(4)])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Ranks of groups of one size: processes that saw more groups than others are not compared with these."""
    ranks = Ranks(request.param)
    yield ranks
    ranks.close()


def run(ranks: Ranks, function: Callable[..., Any], *args: Any) -> list[Any]:
    return ranks.run(function, *args, world_size=ranks.size)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two arrays whose rows hold their own index."""
    folder = tmp_path_factory.mktemp("orders")
    for name in ("x", "y"):
        zarr.create_array(folder / name, shape=(N, 3), chunks=(ROWS, 3), dtype="i8")[:] = np.arange(N)[:, None]
    zarr.create_array(folder / "wide", shape=(2048, 4096), chunks=(32, 4096), dtype="f4", compressors=None)
    return str(folder)


def opened(store: str, name: str = "x") -> zarrfeed.Data:
    return zarrfeed.open(Path(store) / name)


def make(store: str, **options: Any) -> ZarrIterableDataset:
    data = options.pop("data", None)
    data = opened(store) if data is None else data
    options = {"batch_size": 4, "shuffle": True, "seed": 1, **options}
    return ZarrIterableDataset(data, return_index=True, num_threads=1, **options)


def read(dataset: Any) -> list[int]:
    """Read an epoch, and return the samples; the rows are those of the samples."""
    seen = []
    for samples, index in dataset:
        assert samples[:, 0].tolist() == index.tolist()
        seen += index.tolist()
    return seen


def rank() -> int:
    return torch.distributed.get_rank()


# What differs

DIFFERENCES: dict[str, tuple[str, Callable[[str, int], ZarrIterableDataset]]] = {
    "seed": ("seed = ", lambda store, odd: make(store, seed=1 + odd)),
    "batch_size": ("batch_size = ", lambda store, odd: make(store, batch_size=4 + odd)),
    "shuffle": ("shuffle = ", lambda store, odd: make(store, shuffle=not odd)),
    "drop_last": ("drop_last = ", lambda store, odd: make(store, drop_last=bool(odd))),
    "even": ("even = ", lambda store, odd: make(store, even=("drop", "repeat")[odd])),
    "lanes": ("lanes = ", lambda store, odd: make(store, mixing={"lanes": 4 + odd})),
    "memory_budget": (
        "memory_budget = ",
        lambda store, odd: make(store, data=opened(store, "wide"), memory_budget=("256MiB", "16MiB")[odd]),
    ),
    "slabs": ("slab_rows = ", lambda store, odd: make(store, mixing={"block": 2 + odd})),
    "selection": ("select = ", lambda store, odd: make(store, data=selected(store, slice(odd, None)))),
    "split": ("blocks = ", lambda store, odd: make(store, data=opened(store).split((0.5, 0.5), seed=odd)[0])),
    "window": ("layout = ", lambda store, odd: make(store, data=opened(store).window((0, 1 + odd)))),
    "weights": ("mixture = ", lambda store, odd: make(store, data=mixed(store, (1, 1 + odd)))),
    "set_sample_weights": ("weights = ", lambda store, odd: reweighted(store, np.arange(N) + odd)),
    "patches": ("patches = ", lambda store, odd: make(store, data=opened(store).patch({0: 4 + odd}))),
}


def selected(store: str, which: Any) -> zarrfeed.Data:
    return opened(store).select(which)


def mixed(store: str, weights: tuple[float, ...]) -> zarrfeed.Data:
    return zarrfeed.mix([opened(store, name) for name in "xy"], weights=weights)


def reweighted(store: str, weights: Any) -> ZarrIterableDataset:
    dataset = make(store, data=opened(store).weight(np.ones(N)))
    next(iter(dataset))
    dataset.set_sample_weights(weights)
    return dataset


def begin_with_another_order(store: str, name: str, odd_rank: int, via: str) -> str:
    """Begin a pass with arguments that differ on one rank; return the error, or ""."""
    _, of_rank = DIFFERENCES[name]
    dataset = of_rank(store, int(rank() == odd_rank))
    loaders: dict[str, Callable[[], Any]] = {
        "dataset": lambda: dataset,
        "loader": lambda: ZarrDataLoader(dataset),
        "workers": lambda: ZarrDataLoader(dataset, num_workers=1, multiprocessing_context="fork"),
        "torch": lambda: DataLoader(dataset, batch_size=None),
    }
    found = ""
    for _ in range(2):  # it stays an error
        try:
            next(iter(loaders[via]()))
        except ConfigError as error:
            found = str(error)
        else:
            found += "|read"
    torch.distributed.barrier()
    return found.removesuffix("|read|read")


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_rank_is_told_what_differs_whoever_comes_first(name: str, store: str, ranks: Ranks) -> None:
    ways = ((0, "dataset"), (1, "loader"), (1, "workers"), (0, "torch")) if name == "seed" else ((1, "dataset"),)
    for odd, via in ways:
        found = run(ranks, begin_with_another_order, store, name, odd, via)
        told = [bool(text) for text in found]
        assert told[odd] != told[1 - odd], found
        assert len({one for number, one in enumerate(told) if number != odd}) == 1
        for number, text in enumerate(found):
            if text:
                assert f"rank {number} would read another order than rank" in text
                assert DIFFERENCES[name][0] in text
                assert "|read" not in text
                assert name != "seed" or ("seed = 2, but 1 on rank" in text) == (number == odd)


# What may differ


def validate_on_rank_0(store: str) -> list[int]:
    train = make(store)
    if rank() == 0:
        validation = make(store, seed=5, batch_size=7, shuffle=False)
        next(iter(validation))
    seen = read(train)
    if rank() == 0:
        next(iter(make(store, seed=6)))
    return seen + read(train)


def look_on_rank_0(store: str) -> list[int]:
    train = make(store)
    if rank() == 0:
        next(iter(train))
        train.set_epoch(0)
    return read(train)


def name_the_rank(store: str) -> list[int]:
    here = rank(), torch.distributed.get_world_size()
    for options in (
        {"rank": here[0], "world_size": here[1]},
        {"rank": functools.partial(tuple, here)},
        {"rank": 0, "world_size": 1},
    ):
        read(make(store, seed=here[0], **options))
    return read(make(store))


def make_in_another_sequence(store: str) -> list[int]:
    names = ["x", "y"] if rank() == 0 else ["y", "x"]
    sets = {name: make(store, data=opened(store, name), seed=len(names)) for name in names}
    parts = {seed: make(store, seed=seed) for seed in ([3, 4] if rank() == 0 else [4, 3])}
    return read(sets["x"]) + read(sets["y"]) + read(parts[3]) + read(parts[4])


def make_one_each_epoch(store: str) -> list[int]:
    """Make a dataset for each epoch; begin some of them twice, as after an error of a store."""
    seen = []
    for epoch in range(12):
        for attempt in range(3):
            dataset = make(store, seed=epoch)
            if attempt < (rank() * epoch) % 3:
                next(iter(dataset))
                continue
            seen += read(dataset)
            break
    return seen


def copy_and_pickle(store: str) -> list[int]:
    dataset = make(store)
    for _ in range(rank()):
        next(iter(copy.copy(dataset)))
    dataset.set_epoch(0)
    return read(pickle.loads(pickle.dumps(dataset)))


def resume(store: str) -> list[int]:
    with make(store, mixing={"lanes": 4}) as first:
        batches = iter(first)
        seen = [i for _ in range(7) for i in next(batches)[1].tolist()]
        state = first.state_dict()
    resumed = make(store)
    if rank() == 1:
        next(iter(resumed))
    if state["order"]["mix"] == resumed.state_dict()["order"]["mix"]:
        resumed.load_state_dict(state)
    else:
        resumed = make(store, mixing={"lanes": 4})
        resumed.load_state_dict(state)
    return seen + read(resumed)


def grow_offsets(store: str) -> list[int]:
    dataset = make(store, data=opened(store).window((0, 1), pad="edge"))
    if rank() == 1:
        next(iter(dataset))
        dataset.set_epoch(0)
    dataset.set_offsets((0, 1, 2))
    return [i for _, index in dataset for i in index.tolist()]


def reweigh(store: str) -> list[int]:
    dataset, seen = make(store, data=opened(store).weight(np.ones(N))), []
    for weights in ([2, 0], [0, 2]):
        dataset.set_sample_weights(np.tile(weights, N // 2))
        seen += read(dataset)
    return seen


def mix(store: str) -> list[int]:
    return [i for _, index in make(store, data=mixed(store, (1, 2))) for i in index.tolist()]


def read_in_workers(store: str) -> list[int]:
    dataset = make(store)
    return read(ZarrDataLoader(dataset, num_workers=1 + rank(), multiprocessing_context="fork"))


def fork_in_a_group(store: str) -> list[int]:
    """Read beside a forked child, which must not speak on the socket of its parent."""
    dataset = make(store)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            asked = same_order._find_board() is not None
            os.write(writer, bytes([asked]))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"\0"
    assert same_order._find_board() is not None
    return read(dataset)


@pytest.mark.parametrize(
    ("function", "times"),
    [
        (validate_on_rank_0, 2),
        (look_on_rank_0, 1),
        (name_the_rank, 1),
        (make_in_another_sequence, 4),
        (make_one_each_epoch, 12),
        (copy_and_pickle, 1),
        (resume, 1),
        (grow_offsets, 1),
        (reweigh, 2),
        (mix, None),
        (read_in_workers, 1),
        (fork_in_a_group, 1),
    ],
)
def test_ranks_that_may_differ_read_each_sample(
    function: Callable[[str], list[int]], times: int | None, store: str, ranks: Ranks
) -> None:
    seen = sorted(i for one in run(ranks, function, store) for i in one)
    if times is not None:
        assert seen == sorted(list(range(N)) * times)


# The store


def many_datasets(store: str) -> int:
    """Make more datasets than a process has entries; rank 0 alone reads, so nobody else takes part."""
    keys = torch.distributed.distributed_c10d._get_default_store().num_keys
    before = keys()
    if rank() == 0:
        for seed in range(2 * same_order._MOST_KEYS):
            next(iter(make(store, seed=seed)))
    torch.distributed.barrier()
    return int(keys() - before)


def test_a_process_leaves_few_entries_and_waits_for_nobody(store: str, ranks: Ranks) -> None:
    own = Ranks(ranks.size)  # their entries are used up, so that nothing that differs is found afterwards
    try:
        assert max(run(own, many_datasets, store)) <= same_order._MOST_KEYS + 8  # and those of the barrier
    finally:
        own.close()


def break_the_store(store: str) -> list[int]:
    def refuse(*_: Any) -> Any:
        raise torch.distributed.DistNetworkError("the host of the store is gone")

    true = torch.distributed.distributed_c10d._get_default_store
    torch.distributed.distributed_c10d._get_default_store = refuse
    try:
        return read(make(store, seed=3))
    finally:
        torch.distributed.distributed_c10d._get_default_store = true


def test_a_store_that_cannot_be_asked_stops_nobody(store: str, ranks: Ranks) -> None:
    found = run(ranks, break_the_store, store)
    assert sorted(i for one in found for i in one) == list(range(N))
