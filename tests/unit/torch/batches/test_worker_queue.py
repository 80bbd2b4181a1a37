"""A batch that a worker cannot send is an error of the loop, and what need not take a descriptor takes none."""

from __future__ import annotations

import gc
import multiprocessing
import resource
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from tests.support.proc import open_files
from zarrfeed import ZarrDataLoader, ZarrDataset, ZarrIterableDataset
from zarrfeed.base.errors import BatchTransferError
from zarrfeed.torch.batches import worker_memory

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

N, SAMPLE = 200, 2000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("queue") / "x.zarr"
    zarr.create_array(path, data=np.arange(N, dtype="i4")[:, None].repeat(SAMPLE, 1), chunks=(10, SAMPLE))
    return path


def index_of(batch: torch.Tensor) -> list[int]:
    assert (batch == batch[:, :1]).all()
    return [int(one) for one in batch[:, 0]]


class Unsendable:
    def __reduce__(self) -> Any:
        raise KeyError("no pickle of this")


def loaders(store: Path, transform: Callable[[Any], Any]) -> dict[str, Any]:
    """Return loaders of all kinds, without a timeout; each batch has 10 samples."""
    stream = ZarrIterableDataset(store, batch_size=10, transform=transform)
    samples = ZarrDataset(store)
    requests = [list(range(begin, begin + 10)) for begin in range(0, N, 10)]
    made: dict[str, Any] = {"ours": ZarrDataLoader(stream, num_workers=1)}
    made["torch's"] = torch.utils.data.DataLoader(stream, batch_size=None, num_workers=1)
    made["map style"] = torch.utils.data.DataLoader(
        samples, batch_sampler=requests, num_workers=1, collate_fn=lambda rows: transform(torch.stack([*rows]))
    )
    made["ours, persistent"] = ZarrDataLoader(stream, num_workers=1, persistent_workers=True)
    return made


def test_a_batch_that_cannot_be_pickled_is_an_error_of_the_loop(store: Path) -> None:
    made: list[Callable[[], Any]] = [lambda: lambda: 0, Unsendable, lambda: (n for n in range(3))]
    for what in made:
        for name, loader in loaders(store, partial(lambda what, batch: (batch, what()), what)).items():
            with pytest.raises(BatchTransferError, match="cannot be sent from a DataLoader worker") as caught:
                next(iter(loader))
            assert "what transform and collate_fn return must be what pickle can send" in str(caught.value), name
            traceback.clear_frames(caught.tb)  # torch's are a cycle with the error; so its workers end at once


def test_workers_outlive_the_error_of_one_of_them(store: Path) -> None:
    """Until the garbage collector came, which then waited 5 s for each worker."""
    dataset = ZarrIterableDataset(store, batch_size=10, transform=lambda batch: batch[:, 1 << 20])
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        for loader in (ZarrDataLoader(dataset, num_workers=2), ZarrDataLoader(dataset, num_workers=1, timeout=60)):
            with pytest.raises(IndexError) as caught:
                next(iter(loader))
            assert "out of bounds" in str(caught.value)  # held until here
            assert before.issuperset(multiprocessing.active_children())
    finally:
        gc.enable()


def test_batches_before_and_after_one_that_cannot_be_pickled_arrive(store: Path) -> None:
    def transform(batch: torch.Tensor) -> Any:
        return (lambda: 0) if 100 in index_of(batch) else batch

    seen = []
    batches = iter(
        torch.utils.data.DataLoader(
            ZarrIterableDataset(store, batch_size=10, transform=transform), batch_size=None, num_workers=1
        )
    )
    for _ in range(N // 10):
        try:
            seen += index_of(next(batches))
        except BatchTransferError:
            seen += [-1]
    assert seen == [*range(100), -1, *range(110, 200)]


@contextmanager
def temporary_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TMPDIR", str(path))
        patched.setattr(tempfile, "tempdir", None)
        process: Any = multiprocessing.current_process()
        patched.setitem(process._config, "tempdir", None)
        yield


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
@pytest.mark.parametrize("pool", [True, False])
def test_a_folder_in_which_no_socket_can_be_made_is_no_hang(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, pool: bool
) -> None:
    long = tmp_path / ("d" * 120)
    long.mkdir()
    if not pool:
        monkeypatch.setattr(worker_memory.WorkerMemory, "_make_pool", lambda _: None)
    sharing: Any = torch.multiprocessing
    before = sharing.get_sharing_strategy()
    sharing.set_sharing_strategy(strategy)
    try:
        with temporary_folder(long, monkeypatch):
            for name, loader in loaders(store, lambda batch: batch).items():
                assert sorted(n for batch in loader for n in index_of(batch)) == list(range(N)), name
            added = ZarrDataLoader(
                ZarrIterableDataset(store, batch_size=10, transform=lambda batch: batch + 1), num_workers=1
            )  # a tensor of torch's, which lies in no pool
            assert sorted(n for batch in added for n in index_of(batch)) == list(range(1, N + 1))
    finally:
        sharing.set_sharing_strategy(before)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_loop_that_keeps_its_batches_does_not_run_out_of_descriptors(
    store: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Without a pool: of batches of 8 kB, sent as bytes, and of 32 kB, shared; more of both than descriptors."""
    monkeypatch.setattr(worker_memory.WorkerMemory, "_make_pool", lambda _: None)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(open_files())
    data = ZarrIterableDataset(store, batch_size=rows)
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=1)
    iter(loader)  # the first start of a worker opens files that stay
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 160, before[1]))
        held = [batch for _ in range(rows) for batch in loader]
        opened = len(open_files()) - open_now
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(held) >= N
    assert sorted(n for batch in held for n in index_of(batch)) == sorted([*range(N)] * rows)
    assert opened < 160


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_loader_in_a_cycle_are_not_told_to_end(
    store: Path, monkeypatch: pytest.MonkeyPatch, persistent: bool
) -> None:
    """The garbage collector ends queues before the iterator that would tell the workers through them."""
    iterators: Any = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    monkeypatch.setattr(iterators, "__init__", iterators.__init__.__wrapped__)  # without what conftest.py adds
    before = set(multiprocessing.active_children())
    terminated: list[Any] = []
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "terminate", terminated.append)
    loader = ZarrDataLoader(
        ZarrIterableDataset(store, batch_size=10), num_workers=1, persistent_workers=persistent, prefetch_factor=1
    )
    batches = iter(loader)
    next(batches)
    cycle: list[Any] = [loader, batches]
    cycle.append(cycle)
    del loader, batches, cycle
    gc.collect()
    assert before.issuperset(multiprocessing.active_children())
    assert not terminated  # after 5 s without an end
