"""`ZarrDataLoader`: what it sets right, what it refuses, and what reaches its workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import zarr

from tests.support.flat import iterable_dataset
from zarrfeed import ConfigError, MemoryBudgetError, ZarrDataLoader, ZarrIterableDataset

#: torch warns where there are more workers than cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

N = 100


@pytest.fixture
def store(tmp_path: Path) -> str:
    array = zarr.create_array(tmp_path / "x", shape=(N, 2), chunks=(10, 2), dtype="i8")
    array[:] = np.arange(N)[:, None].repeat(2, 1)
    return str(tmp_path / "x")


def make(store: str, **options: Any) -> ZarrIterableDataset:
    return iterable_dataset(store, **{"batch_size": 8, "shuffle": True} | options)


def indices(batches: Any) -> list[int]:
    return [int(v) for batch in batches for v in batch[:, 0]]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_its_length_is_the_number_of_batches(store: str, num_workers: int, drop_last: bool) -> None:
    loader = ZarrDataLoader(make(store, drop_last=drop_last), num_workers=num_workers)
    assert len(list(loader)) == len(loader) == len(loader.dataset) == (12 if drop_last else 13)  # type: ignore[arg-type]


def test_without_workers_it_hands_out_the_datasets_own_batches(store: str) -> None:
    dataset = make(store)
    loader = ZarrDataLoader(dataset)
    assert indices(loader) == dataset.sample_order(0).tolist()
    assert dataset.stats().samples == N


def test_with_workers_it_hands_out_the_same_samples(store: str) -> None:
    dataset = make(store)
    loader = ZarrDataLoader(dataset, num_workers=2)
    assert sorted(indices(loader)) == list(range(N))
    assert dataset.stats().samples == 0  # none were read here


def test_an_iterator_that_is_not_used_starts_no_worker_and_takes_no_epoch(store: str) -> None:
    dataset = make(store)
    loader = ZarrDataLoader(dataset, num_workers=2)
    for _ in range(3):
        iter(loader)
    assert loader.state_dict()["epoch"] == 0
    assert sorted(indices(loader)) == list(range(N))
    assert loader.state_dict()["epoch"] == 1


def test_set_epoch_of_the_loader_is_the_datasets(store: str) -> None:
    loader = ZarrDataLoader(make(store))
    loader.set_epoch(3)
    assert indices(loader) == make(store).sample_order(3).tolist()


@pytest.mark.parametrize("num_workers", [1, 3])
def test_its_state_counts_what_it_handed_out(store: str, num_workers: int) -> None:
    loader = ZarrDataLoader(make(store), num_workers=num_workers, prefetch_factor=4)
    running = iter(loader)
    for batches in range(1, 6):
        next(running)
        assert loader.state_dict()["position"] == 8 * batches


def test_a_plain_dataloader_with_workers_leaves_the_dataset_without_a_state(store: str) -> None:
    """The epoch's beginning, which it could give, would be a lie in the middle of one."""
    dataset = make(store)
    plain = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)
    running = iter(plain)
    next(running)
    with pytest.raises(ConfigError, match="ask a ZarrDataLoader"):
        dataset.state_dict()
    dataset.set_epoch(1)
    assert dataset.state_dict()["epoch"] == 1


class _Mark:
    """A worker_init_fn that leaves a trace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, worker: int) -> None:
        (self.folder / f"worker {worker}").touch()


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_the_users_worker_init_fn_is_called(store: str, context: str, tmp_path: Path) -> None:
    loader = ZarrDataLoader(make(store), num_workers=2, worker_init_fn=_Mark(tmp_path), multiprocessing_context=context)
    assert sorted(indices(loader)) == list(range(N))
    assert sorted(p.name for p in tmp_path.glob("worker *")) == ["worker 0", "worker 1"]


def test_what_goes_wrong_in_a_worker_reaches_the_loop(store: str) -> None:
    loader = ZarrDataLoader(make(store), num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 13
    (Path(store) / "c/3/0").write_bytes(b"no chunk")
    with pytest.raises(Exception, match=r"chunk c/3/0"):
        list(loader)


def test_workers_that_were_closed_with_their_dataset_say_so(store: str) -> None:
    dataset = make(store)
    dataset.close()
    with pytest.raises(RuntimeError, match="was closed"):
        list(ZarrDataLoader(dataset, num_workers=2))


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (lambda _: torch.utils.data.TensorDataset(torch.zeros(3)), "dataset: got a TensorDataset"),
        (lambda store: make(store, batch_size=None), "the dataset has no batch_size"),
    ],
)
def test_a_dataset_that_it_cannot_serve_is_refused(store: str, dataset: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ZarrDataLoader(dataset(store))


def test_a_budget_that_is_too_small_for_so_many_workers_is_refused_at_once(store: str) -> None:
    dataset = make(store, lanes=2, memory_budget="4KiB", num_threads=1)
    assert sorted(indices(ZarrDataLoader(dataset))) == list(range(N))
    with pytest.raises(MemoryBudgetError, match="for each of the 16 readers on this machine"):
        ZarrDataLoader(dataset, num_workers=16)


def test_the_default_budget_makes_room_for_any_number_of_workers(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x", shape=(64, 1 << 20), chunks=(16, 1 << 20), dtype="u1", compressors=None)
    array[:] = np.arange(64, dtype="u1")[:, None]
    dataset = ZarrIterableDataset(tmp_path / "x", batch_size=4, shuffle=True)
    schedule = dataset.session.schedule
    rank_info = dataset.session.rank_info()
    resources = schedule.resources(schedule.order, rank_info, rank_info.consumer(num_workers=64))
    assert resources.memory.budget > (1 << 30) // 64
    assert resources.max_open_batches >= 2
