"""Names of passes: alike in the workers of one iterator, and never given twice, whatever users do with seeds."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.support.flat import iterable_dataset
from zarrfeed import ConfigError, ZarrDataLoader
from zarrfeed.torch.passes.epoch_iterator import Pass
from zarrfeed.torch.passes.pass_names import PassNames, group_of_worker

#: torch warns where there are more workers than cores.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]

N = 120
LOADERS = [DataLoader, StatefulDataLoader]


def make(**options: Any) -> Any:
    return iterable_dataset(np.arange(N), **{"batch_size": 5, "shuffle": True, "seed": 3} | options)


def load(dataset: Any, kind: Any = DataLoader, **options: Any) -> Any:
    """Return a loader with two workers, and the base seed that all loaders of these tests have."""
    options = {"num_workers": 2, "multiprocessing_context": "fork"} | options
    return kind(dataset, batch_size=None, generator=torch.Generator().manual_seed(5), **options)


def values(batches: Any) -> list[int]:
    return [int(value) for batch in batches for value in batch]


def is_whole(delivered: list[int]) -> bool:
    return sorted(delivered) == list(range(N))


def wait_for(path: Path) -> None:
    """Wait for a file, a minute at most."""
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.01)
    raise TimeoutError(path)


class _Gate:
    """A worker_init_fn by which one worker starts when a file is there."""

    def __init__(self, worker: int, path: Path) -> None:
        self.worker, self.path = worker, path

    def __call__(self, worker: int) -> None:
        if worker == self.worker:
            wait_for(self.path)


@pytest.mark.parametrize("kind", LOADERS)
def test_two_loaders_of_one_seed_do_not_share_a_pass_when_a_worker_starts_late(kind: Any, tmp_path: Path) -> None:
    dataset = make()
    gate = tmp_path / "go"
    late = iter(load(dataset, worker_init_fn=_Gate(1, gate)))
    first = [next(late)]
    other = values(load(dataset, kind))
    gate.touch()
    assert is_whole(other)
    assert is_whole(values([*first, *late]))


def _fail_in_worker_1(worker: int) -> None:
    if worker == 1:
        raise OSError("the node is busy")


class _Wrapper(IterableDataset[Any]):
    """A dataset of the user's around ours."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        yield from self.inner


def test_a_start_that_failed_leaves_no_pass_that_the_next_start_joins(tmp_path: Path) -> None:
    dataset = make()
    gate = tmp_path / "worker 1 began"
    with pytest.raises(OSError, match="the node is busy"):
        list(load(dataset, worker_init_fn=_fail_in_worker_1))
    assert is_whole(values(load(_Signal(dataset, gate), worker_init_fn=_Gate(0, gate))))


class _Signal(_Wrapper):
    """Leaves a file when a pass was begun in worker 1."""

    def __init__(self, inner: Any, path: Path) -> None:
        super().__init__(inner)
        self.path = path

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.inner)
        info = get_worker_info()
        if info is not None and info.id == 1:
            self.path.touch()
        yield from batches


class _Groups(IterableDataset[Any]):
    """Delivers what each worker calls its group."""

    def __iter__(self) -> Iterator[Any]:
        yield group_of_worker()


@pytest.mark.parametrize(("context", "kind"), [*itertools.product(["fork"], LOADERS), ("forkserver", DataLoader)])
def test_workers_of_one_iterator_have_one_group_and_those_of_another_have_another(context: str, kind: Any) -> None:
    loader = load(_Groups(), kind, multiprocessing_context=context)
    running = [iter(loader) for _ in range(2 if context == "fork" else 1)]  # both at once: a seed apart is not enough
    found = [set(one) for one in running]
    assert all(len(one) == 1 and None not in one for one in found), found
    assert len(set.union(*found)) == len(running), found


def _read_one_in_worker_0(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    if worker == 0:
        next(iter(info.dataset))


@pytest.mark.parametrize("kind", [*LOADERS, ZarrDataLoader])
def test_a_worker_that_reads_something_first_still_shares_the_pass_of_the_others(kind: Any) -> None:
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "worker_init_fn": _read_one_in_worker_0}
    loader = ZarrDataLoader(make(), **options) if kind is ZarrDataLoader else load(make(), kind, **options)
    for _ in range(3):
        assert is_whole(values(loader))


class _Endless(_Wrapper):
    """Reads epoch after epoch."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.inner


@pytest.mark.parametrize("kind", LOADERS)
def test_workers_that_left_an_endless_stream_at_different_batches_begin_together_again(kind: Any) -> None:
    loader = load(_Endless(make()), kind, persistent_workers=True, prefetch_factor=1)
    for left_at in (23, 22, 47):  # a pass is 12 batches of each worker; with one read ahead, worker 0 begins its 13th
        for taken in (left_at, 24):
            delivered = values(itertools.islice(iter(loader), taken))
            assert is_whole(delivered) or taken != 24
            assert max(Counter(delivered).values()) == -(-taken // 24)


class _Threaded(_Wrapper):
    """Reads in a thread of its own."""

    def __iter__(self) -> Iterator[Any]:
        read: list[Any] = []
        thread = threading.Thread(target=lambda: read.extend(self.inner))
        thread.start()
        thread.join(240)
        yield from read


@pytest.mark.parametrize("wrap", [_Wrapper, _Threaded, lambda inner: ChainDataset([inner, make()])])
def test_a_dataset_inside_a_wrapper_is_whole_in_every_pass(wrap: Any) -> None:
    loader = load(wrap(make()), persistent_workers=True)
    for _ in range(2):
        delivered = values(loader)
        assert sorted(set(delivered)) == list(range(N))
        assert len(set(Counter(delivered).values())) == 1


def test_threads_that_start_loaders_at_once_get_whole_passes() -> None:
    dataset = make()
    loaders = [load(dataset) for _ in range(2)]
    loaders += [ZarrDataLoader(dataset, num_workers=2), ZarrDataLoader(dataset)]
    delivered: list[list[int]] = []
    threads = [threading.Thread(target=lambda one=one: delivered.append(values(one))) for one in loaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [is_whole(one) for one in delivered] == [True] * 4


def test_an_earlier_reader_is_not_kept_alive_in_a_persistent_worker() -> None:
    """Each pass that is left early would else keep its threads and memory until the worker ends."""
    # A worker that was forked while another thread of this process collected garbage would never collect any itself.
    loader = load(_Alive(make()), persistent_workers=True, num_workers=1, multiprocessing_context="forkserver")
    alive = [next(iter(loader)) for _ in range(6)]
    assert alive.count(1) >= 5, alive  # once, on a busy machine, the pass before was seen beside the new one


class _Alive(_Wrapper):
    """Delivers how many passes there are in the worker while one is read."""

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.inner)
        next(batches)
        gc.collect()
        while True:
            yield sum(
                type(one) is Pass and one.reader is not None and one._session is self.inner.session
                for one in gc.get_objects()
            )


def test_workers_of_an_unknown_kind_are_refused_unless_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make()
    info = torch.utils.data._utils.worker.WorkerInfo(id=0, num_workers=2, seed=0, dataset=dataset)
    monkeypatch.setattr("torch.utils.data.get_worker_info", lambda: info)
    with pytest.raises(ConfigError, match="one of 2 DataLoader workers of an unknown kind"):
        iter(dataset)
    info = replace(info, num_workers=1)
    assert is_whole(values(dataset))
    assert is_whole(values(dataset))


def test_a_queue_without_a_pipe_gives_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a queue of threads, or that of another release of torch: better refused than shared by chance."""
    loop = torch.utils.data._utils.worker._worker_loop
    process = multiprocessing.get_context("fork").Process(target=loop, args=(None, None, None, object()))
    monkeypatch.setattr("multiprocessing.current_process", lambda: process)
    assert group_of_worker() is None
    assert PassNames().next(1) != PassNames().next(1)
