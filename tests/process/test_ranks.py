"""Ranks, workers and start methods in real processes: every sample once, even batches, another order each epoch."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.faults.soak.levels import left_in_shared_memory
from tests.support import ranks as on_ranks
from tests.support.flat import iterable_dataset
from tests.support.proc import all_living
from tests.support.ranks import Cell, RankError, Ranks
from tests.support.shares import assert_shared_out, rank_batches, rank_length, shuffled_order, unshuffled_order
from zarrfeed import ConfigError, Digest, ZarrDataLoader, ZarrIterableDataset, rank_from_slurm, rank_from_torchrun

SIZES = (211, 64, 5)  # a prime; one that divides by 1, 2 and 4; fewer samples than consumers
BATCH_SIZE = 6
LANES = 5
WORLD_SIZES = (1, 2, 3, 4)
EVEN = ("drop", "repeat", "off")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Arrays of several lengths whose rows hold their own index."""
    directory = tmp_path_factory.mktemp("stores")
    paths = {n: str(directory / f"{n}.zarr") for n in SIZES}
    for n, path in paths.items():
        zarr.create_array(path, data=np.repeat(np.arange(n), 3).reshape(n, 3), chunks=(4, 3))
    return paths


#: Points of the grid with workers that the usual run has: each world size, number of workers and start method.
_USUAL = ((1, 2, "fork"), (2, 1, "fork"), (3, 3, "fork"), (4, 2, "fork"), (2, 2, "forkserver"), (2, 1, "spawn"))


def grid(*, large: bool) -> Iterator[tuple[int, int, str | None]]:
    """Yield (world size, workers, start method)."""
    for world_size in WORLD_SIZES:
        yield world_size, 0, None
        for num_workers, method in itertools.product((1, 2, 3), ("fork", "forkserver", "spawn")):
            if large or (world_size, num_workers, method) in _USUAL:
                yield world_size, num_workers, method


def cells_of(stores: dict[int, str], num_workers: int, method: str | None) -> list[tuple[int, Cell]]:
    """Return (samples, cell) for every combination of what does not need a process of its own."""
    loaders = ("torch", "zarrfeed") if num_workers else ("dataset", "torch", "zarrfeed")
    return [
        (
            n,
            Cell(
                path,
                {
                    "batch_size": BATCH_SIZE,
                    "shuffle": shuffle,
                    "seed": 7,
                    "lanes": min(LANES, n) if shuffle else None,
                    "drop_last": drop_last,
                    "even": even,
                },
                via=via,
                num_workers=num_workers,
                start_method=method,
            ),
        )
        for (n, path), shuffle, even, drop_last, via in itertools.product(
            stores.items(), (True, False), EVEN, (False, True), loaders
        )
    ]


def chosen(cells: list[tuple[int, Cell]], method: str | None, world_size: int, *, large: bool) -> tuple[Any, Any]:
    """Return the cells to read one by one and those to read in the same workers, which need to start only once.

    Steps of 5 and 7 have no divisor in common with the axes of the grid, so that each value of each axis comes.
    """
    if method is None:
        return cells[:: 1 if large else 5], []
    alone, chained = ([cell for cell in cells if (cell[1].via == "torch") == chain] for chain in (False, True))
    if large:
        return alone[world_size::7], chained
    return alone[world_size :: 17 if method == "fork" else len(alone)], chained[world_size::5]


def expected_batches(n: int, cell: Cell, *, rank: int, world_size: int, epoch: int = 0) -> list[np.ndarray[Any, Any]]:
    settings = cell.dataset
    if settings["shuffle"]:
        epoch_order = shuffled_order(cell.store, epoch=epoch, seed=settings["seed"], lanes=settings["lanes"])
    else:
        epoch_order = unshuffled_order(n, min(n, world_size * max(1, cell.num_workers)))
    return rank_batches(
        epoch_order,
        rank=rank,
        world_size=world_size,
        num_workers=cell.num_workers,
        batch_size=settings["batch_size"],
        even=settings["even"],
        drop_last=settings["drop_last"],
    )


def is_read(n: int, cell: Cell, world_size: int) -> bool:
    """Return whether a rank has a batch; an epoch without one is refused (tests of plan/schedule/empty_epoch.py)."""
    return any(expected_batches(n, cell, rank=rank, world_size=world_size) for rank in range(world_size))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_that_read_in_order_drop_another_tail_in_each_epoch(world_size: int, stores: dict[int, str]) -> None:
    """In 53 epochs, as many as there are blocks, the order begins at each block once; the seed has no part in it."""
    n = 211
    made = [
        ZarrIterableDataset(stores[n], batch_size=BATCH_SIZE, return_index=True, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    dropped = []
    for epoch in range(53):
        delivered = np.concatenate([dataset.sample_order(epoch) for dataset in made])
        assert len(delivered) == n // world_size * world_size
        dropped.append(frozenset(set(range(n)) - set(delivered.tolist())))
        assert len(dropped[-1]) == n % world_size
    assert len(set(dropped)) == 53
    assert all(one.isdisjoint(following) for one, following in itertools.pairwise(dropped))
    for dataset in made:  # what is read is what was listed
        for epoch in (0, 1, 2):
            read = np.concatenate([index.numpy() for _, index in dataset])
            assert np.array_equal(read, dataset.sample_order(epoch))
        dataset.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "grid_point" in metafunc.fixturenames:
        large = metafunc.config.getoption("--large")
        points = list(grid(large=large))
        ids = [f"world{w}-workers{k}-{method or 'none'}" for w, k, method in points]
        metafunc.parametrize("grid_point", points, ids=ids)


def test_the_ranks_share_every_epoch_out_exactly(
    grid_point: tuple[int, int, str | None],
    stores: dict[int, str],
    ranks: Ranks,
    request: pytest.FixtureRequest,
    record_property: Any,
) -> None:
    """The grid: world size x workers x start method x shuffle x even x drop_last x size x loader."""
    world_size, num_workers, method = grid_point
    large = request.config.getoption("--large")
    cells_with_batches = [
        (n, cell) for n, cell in cells_of(stores, num_workers, method) if is_read(n, cell, world_size)
    ]
    single, chained = chosen(cells_with_batches, method, world_size, large=large)
    record_property("cells", len(single) + len(chained))
    for some, function in ((single, on_ranks.read_all), (chained, on_ranks.read_chained)):
        if some:
            deliveries = ranks.run(function, [cell for _, cell in some], world_size=world_size, limit_s=800)
            for number, (n, cell) in enumerate(some):
                check_cell(n, cell, world_size, [on_rank[number] for on_rank in deliveries])


def check_cell(n: int, cell: Cell, world_size: int, delivered: list[on_ranks.Delivery]) -> None:
    even, drop_last = cell.dataset["even"], cell.dataset["drop_last"]
    batches = [one.epochs[0] for one in delivered]
    if not drop_last:
        whole = [np.concatenate([*of_rank, np.empty(0, np.int64)]) for of_rank in batches]
        assert_shared_out(whole, n, even=even)
    for rank, (one, got) in enumerate(zip(delivered, batches, strict=True)):
        expected = expected_batches(n, cell, rank=rank, world_size=world_size)
        assert [b.tolist() for b in got] == [b.tolist() for b in expected], f"{cell}, rank {rank} of {world_size}"
        assert one.dataset_length == one.loader_length == len(got), f"{cell}, rank {rank} of {world_size}"
    if even != "off":
        assert len({len(got) for got in batches}) == 1, f"{cell}: ranks got different numbers of batches"


@pytest.mark.parametrize("lanes", [None, 12])
def test_global_batches_are_the_same_for_every_world_size(
    stores: dict[int, str], ranks: Ranks, lanes: int | None
) -> None:
    n, global_batch = 211, 12
    epoch_order = shuffled_order(stores[n], seed=3, lanes=lanes)
    for world_size in WORLD_SIZES:
        settings = {"batch_size": global_batch // world_size, "shuffle": True, "seed": 3, "lanes": lanes}
        delivered = ranks.run(on_ranks.read, Cell(stores[n], settings), world_size=world_size)
        for step in range(n // global_batch):
            together = np.stack([one.epochs[0][step] for one in delivered], axis=1).ravel()
            assert together.tolist() == epoch_order[step * global_batch : (step + 1) * global_batch].tolist()


def test_the_tail_that_is_dropped_changes_with_the_epoch(stores: dict[int, str], ranks: Ranks) -> None:
    n, world_size, epochs = 211, 4, 5
    cell = Cell(stores[n], {"batch_size": BATCH_SIZE, "shuffle": True})
    delivered = ranks.run(on_ranks.read, cell, epochs=epochs, world_size=world_size)
    dropped = []
    for epoch in range(epochs):
        seen = np.concatenate([b for one in delivered for b in one.epochs[epoch]])
        dropped.append(frozenset(range(n)) - set(seen.tolist()))
        assert len(dropped[-1]) == n % world_size
    assert len(set(dropped)) > 1


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("via", ["dataset", "torch", "zarrfeed"])
@pytest.mark.parametrize(
    "method",
    [
        None,
        "fork",
        pytest.param("spawn", marks=pytest.mark.slow),
        pytest.param("forkserver", marks=pytest.mark.slow),
    ],
)
def test_every_pass_takes_the_next_epoch_where_nobody_calls_set_epoch(
    stores: dict[int, str], ranks: Ranks, via: str, method: str | None, persistent: bool
) -> None:
    if (method is None and persistent) or (method is not None and via == "dataset"):
        pytest.skip("no workers there")
    n, world_size, num_workers = 211, 2, 2 if method else 0
    settings = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 1, "lanes": LANES, "even": "off", "drop_last": False}
    cell = Cell(stores[n], settings, via, num_workers, method, persistent_workers=persistent)
    delivered = ranks.run(on_ranks.read, cell, epochs=3, world_size=world_size)
    assert_epochs(n, cell, delivered, epochs=[0, 1, 2])
    assert len({str(one) for one in delivered[0].epochs}) == 3, "two epochs came in the same order"


@pytest.mark.parametrize("via", ["torch", "zarrfeed"])
@pytest.mark.parametrize(
    "method",
    ["fork", pytest.param("spawn", marks=pytest.mark.slow), pytest.param("forkserver", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_in_the_parent_reaches_its_workers(
    stores: dict[int, str], ranks: Ranks, via: str, method: str, persistent: bool
) -> None:
    n, world_size = 211, 2
    settings = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 1, "lanes": LANES, "even": "off", "drop_last": False}
    cell = Cell(stores[n], settings, via, 2, method, persistent_workers=persistent)
    set_epochs = {0: 5, 2: 3, 3: 3}
    delivered = ranks.run(on_ranks.read, cell, epochs=5, set_epochs=set_epochs, world_size=world_size)
    assert_epochs(n, cell, delivered, epochs=[5, 6, 3, 3, 4])


def assert_epochs(n: int, cell: Cell, delivered: list[on_ranks.Delivery], *, epochs: list[int]) -> None:
    for number, epoch in enumerate(epochs):
        for rank, one in enumerate(delivered):
            expected = expected_batches(n, cell, rank=rank, world_size=len(delivered), epoch=epoch)
            assert [b.tolist() for b in one.epochs[number]] == [b.tolist() for b in expected], f"pass {number}"


@pytest.mark.parametrize("via", ["dataset", "torch", "zarrfeed"])
def test_a_pass_that_is_given_up_counts_as_a_pass(stores: dict[int, str], ranks: Ranks, via: str) -> None:
    n = 211
    settings = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 1, "lanes": LANES, "even": "off", "drop_last": False}
    for num_workers, persistent in ((0, False),) if via == "dataset" else ((0, False), (2, False), (2, True)):
        cell = Cell(stores[n], settings, via, num_workers, "fork", persistent_workers=persistent)
        delivered = ranks.run(on_ranks.read_after_a_break, cell, world_size=1)
        assert_epochs(n, cell, delivered, epochs=[1])


@pytest.mark.parametrize("via", ["torch", "zarrfeed"])
@pytest.mark.parametrize("method", [None, "fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_dataset_made_before_the_process_group_learns_its_rank(
    stores: dict[int, str], ranks: Ranks, tmp_path: Path, via: str, method: str | None
) -> None:
    """Scripts make their datasets before the trainer initialises torch.distributed."""
    n, num_workers = 211, 1 if method else 0
    settings = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 0, "lanes": LANES, "drop_last": False}
    cell = Cell(stores[n], settings, via, num_workers, method)
    rendezvous = str(tmp_path / "group")
    delivered = ranks.run(on_ranks.read_made_before_the_group, cell, rendezvous, world_size=2)
    for rank, one in enumerate(delivered):
        batches = rank_batches(
            shuffled_order(stores[n], lanes=LANES),
            rank=rank,
            world_size=2,
            num_workers=num_workers,
            batch_size=BATCH_SIZE,
            even="drop",
            drop_last=False,
        )
        assert [b.tolist() for b in one.epochs[0]] == [b.tolist() for b in batches]
        assert one.dataset_length == one.loader_length == len(batches)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_all_reduce_proves_an_epoch_exact(stores: dict[int, str], ranks: Ranks, num_workers: int) -> None:
    n = 211
    for even, exact in (("off", True), ("drop", False), ("repeat", False)):
        settings = {"batch_size": BATCH_SIZE, "shuffle": True, "even": even}
        cell = Cell(stores[n], settings, "zarrfeed", num_workers, "fork")
        totals = ranks.run(on_ranks.audit_epoch, cell, world_size=3)
        assert [total == Digest.of_range(n) for total in totals] == [exact] * 3


@pytest.mark.parametrize(
    ("num_workers", "method"),
    [
        (0, None),
        (2, "fork"),
        pytest.param(2, "spawn", marks=pytest.mark.slow),
        pytest.param(2, "forkserver", marks=pytest.mark.slow),
    ],
)
def test_a_killed_rank_leaves_nothing_behind(
    stores: dict[int, str], ranks: Ranks, tmp_path: Path, num_workers: int, method: str | None
) -> None:
    """Its peers get an error, its workers end, no shared memory stays, and the next run works."""
    n = 211
    cell = Cell(stores[n], {"batch_size": BATCH_SIZE, "shuffle": True}, "zarrfeed", num_workers, method)
    ranks.run(on_ranks.read, cell, world_size=2)  # whatever is made once is there
    started = tmp_path / "started"
    ranks.start(on_ranks.read_in_step_without_end, cell, str(started), world_size=2)
    wait_until(started.exists, "the ranks read")
    group = ranks.pid(1)
    members = living_in_group(group)
    os.kill(group, signal.SIGKILL)
    wait_until(lambda: not living_in_group(group), "the workers of the killed rank end")
    with pytest.raises(RankError, match=r"rank 0 of 2: (?s:.*)rank 1 of 2: died"):
        ranks.results(2, limit_s=on_ranks.LIMIT_S)
    wait_until(lambda: not left_in_shared_memory(members), "files of the killed rank and its workers are gone")
    delivered = ranks.run(on_ranks.read, cell, world_size=2)
    assert_shared_out([np.concatenate(one.epochs[0]) for one in delivered], n, even="drop")


def wait_until(condition: Any, what: str, *, limit_s: float = on_ranks.LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.05)


def living_in_group(group: int) -> list[int]:
    """Return the processes of a process group, but for those that are dead and not yet waited for."""
    return [process.number for process in all_living() if process.group == group]


@pytest.mark.parametrize(
    ("read_rank", "variables"),
    [(rank_from_torchrun, ("RANK", "WORLD_SIZE")), (rank_from_slurm, ("SLURM_PROCID", "SLURM_NTASKS"))],
    ids=["torchrun", "slurm"],
)
def test_rank_and_world_size_come_from_the_launcher_if_asked(
    stores: dict[int, str], monkeypatch: pytest.MonkeyPatch, read_rank: Any, variables: tuple[str, str]
) -> None:
    n = 211
    settings: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "return_index": True}
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=rf"\b{variables[0]}\b"):
        iterable_dataset(stores[n], rank=read_rank, **settings)
    seen = []
    for rank in range(3):
        monkeypatch.setenv(variables[0], str(rank))
        monkeypatch.setenv(variables[1], "3")
        assert len(iterable_dataset(stores[n], **settings)) == -(-n // BATCH_SIZE), "only if asked"
        dataset = iterable_dataset(stores[n], rank=read_rank, **settings)
        assert len(dataset) == -(-rank_length(n, rank=rank, world_size=3, even="drop") // BATCH_SIZE)
        seen.append(np.concatenate(on_ranks.take(iter(dataset))))
    assert_shared_out(seen, n, even="drop")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_know_the_rank_that_their_parent_was_given(stores: dict[int, str], method: str) -> None:
    n = 211
    seen = []
    for rank in range(2):
        dataset = ZarrIterableDataset(
            stores[n], batch_size=BATCH_SIZE, shuffle=True, return_index=True, rank=rank, world_size=2
        )
        loader = ZarrDataLoader(dataset, num_workers=1, multiprocessing_context=method, timeout=on_ranks.LIMIT_S)
        seen.append(np.concatenate(on_ranks.take(iter(loader))))
    assert_shared_out(seen, n, even="drop")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank = 2"),
        ({"rank": -1, "world_size": 2}, "rank = -1"),
        ({"rank": 0, "world_size": 0}, "world_size = 0"),
        ({"rank": 1}, "world_size"),
        ({"world_size": 2}, "rank"),
        ({"rank": 0.5, "world_size": 2}, "rank = 0.5"),
        ({"rank": lambda: (3, 2)}, "rank = 3"),
        ({"even": "odd"}, "even = 'odd'"),
    ],
)
def test_ranks_that_cannot_be_are_refused(stores: dict[int, str], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        iterable_dataset(stores[211], batch_size=BATCH_SIZE, **arguments)
