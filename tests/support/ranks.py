"""Rank processes for tests: torch.distributed with gloo on this machine, started once and used for many cells.

A rank runs functions of this module that the test process sends it, and sends back what they return. Every wait has a
limit; an exception in a rank, its death or a rank that hangs fails the test with the rank's traceback or its stacks,
and the ranks are ended with all their children and started anew for the next test.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.support import warm
from tests.support.flat import iterable_dataset
from tests.support.preload import preload_forkserver, start_forkserver_when_needed
from zarrfeed import Digest, ZarrDataLoader, ZarrIterableDataset, audit

Int64 = npt.NDArray[np.int64]
T = TypeVar("T")

#: Seconds that anything may take. Generous: the machine may be busy.
LIMIT_S = 240
_GRACE_S = 30.0


class RankError(AssertionError):
    """A rank raised, died or did not answer in time."""


class Ranks:
    """Up to `count` rank processes that wait for work.

    Parameters
    ----------
    count
        The largest world size.
    start_method
        How the ranks themselves are started. "forkserver" imports torch once for all of them.
    """

    def __init__(self, count: int = 4, *, start_method: str = "forkserver") -> None:
        self._count = count
        self._context: Any = multiprocessing.get_context(start_method)
        if start_method == "forkserver":
            preload_forkserver()
        self._directory = tempfile.TemporaryDirectory(prefix="ranks-")
        self._groups = 0
        self._busy = False
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    @property
    def size(self) -> int:
        """The largest world size."""
        return self._count

    def run(
        self, function: Callable[..., T], *args: Any, world_size: int, limit_s: float = LIMIT_S, **kwargs: Any
    ) -> list[T]:
        """Run `function(*args, **kwargs)` on ranks 0 to `world_size` - 1; return what each rank returned.

        Raises
        ------
        RankError
            If a rank raised, died, or did not answer within `limit_s` seconds.
        """
        self.start(function, *args, world_size=world_size, **kwargs)
        return self.results(world_size, limit_s=limit_s)

    def start(self, function: Callable[..., Any], *args: Any, world_size: int, **kwargs: Any) -> None:
        """Begin what `run` does; `results` ends it."""
        assert 1 <= world_size <= self._count
        if self._busy:  # a test failed before it asked for the results
            self.kill()
        self._busy = True
        while len(self._processes) < world_size:
            self._start_process(len(self._processes))
        self._groups += 1
        rendezvous = str(Path(self._directory.name) / f"group-{self._groups}")
        for rank in range(world_size):
            self._pipes[rank].send((rank, world_size, rendezvous, function, args, kwargs))

    def results(self, world_size: int, *, limit_s: float) -> list[Any]:
        """Wait for what `start` began."""
        results: dict[int, Any] = {}
        errors: dict[int, str] = {}
        deadline = time.monotonic() + limit_s
        while len(results) + len(errors) < world_size:
            waiting = {r: self._pipes[r] for r in range(world_size) if r not in results and r not in errors}
            ready = wait(list(waiting.values()), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                stacks = "\n".join(self._stacks(rank) for rank in waiting)
                self.kill()
                late = "" if errors else f"no answer within {limit_s} s from ranks {sorted(waiting)}:\n{stacks}"
                raise RankError("\n".join([*errors.values(), late]))
            for rank, pipe in waiting.items():
                if pipe not in ready:
                    continue
                try:
                    succeeded, value = pipe.recv()
                except (EOFError, ConnectionError):
                    succeeded, value = False, "died"
                if succeeded:
                    results[rank] = value
                else:
                    errors[rank] = f"rank {rank} of {world_size}: {value}"
                    deadline = min(deadline, time.monotonic() + _GRACE_S)  # its peers may wait for it
        if errors:
            self.kill()
            raise RankError("\n".join(errors[rank] for rank in sorted(errors)))
        self._busy = False
        return [results[rank] for rank in range(world_size)]

    def pid(self, rank: int) -> int:
        """Return the process of a rank; it leads a process group that holds its workers."""
        pid = self._processes[rank].pid
        assert pid is not None
        return pid

    def kill(self) -> None:
        """End the ranks and everything that they started."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)
        for process in self._processes:
            process.join(timeout=240)
        for pipe in self._pipes:
            pipe.close()
        self._processes.clear()
        self._pipes.clear()
        self._busy = False

    def close(self) -> None:
        """Let idle ranks end by themselves; kill those that do not."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=5)
        self.kill()
        self._directory.cleanup()

    def _start_process(self, rank: int) -> None:
        ours, theirs = self._context.Pipe()
        arguments = theirs, self._stack_file(rank), str(warm.executable())
        process = self._context.Process(target=_serve, args=arguments, name=f"rank {rank}")
        process.start()
        theirs.close()
        if not ours.poll(LIMIT_S) or ours.recv() != "ready":
            raise RankError(f"rank {rank} did not start within {LIMIT_S} s")
        self._processes.append(process)
        self._pipes.append(ours)

    def _stack_file(self, rank: int) -> str:
        return str(Path(self._directory.name) / f"stacks-{rank}")

    def _stacks(self, rank: int) -> str:
        """Ask a rank that hangs where it is."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(rank), signal.SIGUSR1)
        time.sleep(0.2)
        return f"rank {rank}:\n{Path(self._stack_file(rank)).read_text()}"


def _serve(pipe: Connection, stack_file: str, python: str) -> None:
    """Run what comes through the pipe until it is closed.

    `python` is a command of `warm`: it starts a forkserver, and the workers of "spawn", which imported torch anew.
    """
    os.setpgid(0, 0)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    start_forkserver_when_needed(lambda: python)
    multiprocessing.set_executable(python)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="each chunk is decoded by")
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    with Path(stack_file).open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        pipe.send("ready")
        while True:
            try:
                rank, world_size, rendezvous, function, args, kwargs = pipe.recv()
            except (EOFError, KeyboardInterrupt):
                return
            try:
                with _group(rank, world_size, rendezvous):
                    answer = True, function(*args, **kwargs)
            except BaseException:  # noqa: BLE001  (the traceback is for the test process)
                answer = False, traceback.format_exc()
            pipe.send(answer)


@contextlib.contextmanager
def _group(rank: int, world_size: int, rendezvous: str) -> Iterator[None]:
    meet(rank, world_size, rendezvous)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def meet(rank: int, world_size: int, rendezvous: str) -> None:
    """Initialise torch.distributed; ranks meet by a file, which is made."""
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=LIMIT_S),
    )
    # One that is done already must not close its sockets while another still connects to them.
    torch.distributed.barrier()


@dataclass(frozen=True)
class Cell:
    """How a rank reads a store.

    Attributes
    ----------
    store
        An int64 array whose rows hold their own index.
    dataset
        Arguments of `ZarrIterableDataset`.
    via
        "dataset": it alone; "torch": behind torch's DataLoader; "zarrfeed": behind ZarrDataLoader.
    num_workers, start_method, persistent_workers
        Of the loader.
    """

    store: str
    dataset: Mapping[str, Any] = field(default_factory=dict)
    via: str = "dataset"
    num_workers: int = 0
    start_method: str | None = None
    persistent_workers: bool = False

    def make(self) -> tuple[ZarrIterableDataset, Any]:
        """Return the dataset, and what is iterated."""
        dataset = iterable_dataset(self.store, return_index=True, num_threads=1, **self.dataset)
        if self.via == "dataset":
            assert self.num_workers == 0
            return dataset, dataset
        settings: dict[str, Any] = {
            "num_workers": self.num_workers,
            "persistent_workers": self.persistent_workers,
            "multiprocessing_context": self.start_method if self.num_workers else None,
            "timeout": LIMIT_S if self.num_workers else 0,
        }
        if self.via == "torch":
            return dataset, DataLoader(dataset, batch_size=None, **settings)
        return dataset, ZarrDataLoader(dataset, **settings)


@dataclass(frozen=True)
class Delivery:
    """What a rank got: the lengths that dataset and loader promised, and the indices of each batch of each epoch."""

    dataset_length: int
    loader_length: int
    epochs: list[list[Int64]]


def take(batches: Iterator[Any], count: int | None = None) -> list[Int64]:
    """Take batches of (samples, index), all unless told; check the samples and return the indices."""
    taken: list[Int64] = []
    while count is None or len(taken) < count:
        try:
            samples, index = next(batches)
        except StopIteration:
            break
        if not torch.equal(samples, index.view(-1, *[1] * (samples.dim() - 1)).expand(samples.shape)):
            raise AssertionError(f"samples of {samples.flatten(1)[:, 0].tolist()} came as {index.tolist()}")
        taken.append(index.numpy().copy())
    return taken


def read(cell: Cell, *, epochs: int = 1, set_epochs: Mapping[int, int] | None = None) -> Delivery:
    """Read some epochs.

    Parameters
    ----------
    cell
        How.
    epochs
        How many passes.
    set_epochs
        Before which passes `set_epoch` is called, and with what.
    """
    dataset, loader = cell.make()
    lengths = len(dataset), len(loader)
    passes = []
    for number in range(epochs):
        if set_epochs is not None and number in set_epochs:
            dataset.set_epoch(set_epochs[number])
        passes.append(take(iter(loader)))
    dataset.close()
    return Delivery(*lengths, passes)


def read_all(cells: list[Cell]) -> list[Delivery]:
    """Read one epoch of each cell."""
    return [read(cell) for cell in cells]


class _Chain(IterableDataset[Any]):
    """The batches of several datasets, one dataset after the other: (which, worker, batch)."""

    def __init__(self, datasets: list[ZarrIterableDataset]) -> None:
        self._datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        for which, dataset in enumerate(self._datasets):
            for batch in dataset:
                yield which, info.id, batch


def read_chained(cells: list[Cell]) -> list[Delivery]:
    """Read one epoch of each cell in the same workers, which start once.

    The cells must have workers alike, and go through torch's DataLoader.
    """
    (num_workers,) = {cell.num_workers for cell in cells}
    (method,) = {cell.start_method for cell in cells}
    datasets = [cell.make()[0] for cell in cells]
    loader = DataLoader(
        _Chain(datasets),
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=method,
        worker_init_fn=_raise_warnings,
        timeout=LIMIT_S,
    )
    by_worker: list[list[list[Int64]]] = [[[] for _ in range(num_workers)] for _ in cells]
    for which, worker, batch in loader:
        by_worker[which][worker] += take(iter([batch]))
    lengths = [len(dataset) for dataset in datasets]
    # batch i of a rank comes from worker i mod num_workers
    return [
        Delivery(length, length, [[b for turn in zip_longest(*workers) for b in turn if b is not None]])
        for length, workers in zip(lengths, by_worker, strict=True)
    ]


def _raise_warnings(_: int) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="each chunk is decoded by")


def read_after_a_break(cell: Cell) -> Delivery:
    """Give one pass up after two batches, then read one."""
    dataset, loader = cell.make()
    take(iter(loader), 2)
    return Delivery(len(dataset), len(loader), [take(iter(loader))])


def read_made_before_the_group(cell: Cell, rendezvous: str) -> Delivery:
    """Make dataset and loader while torch.distributed is not initialised, and read when it is."""
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.distributed.destroy_process_group()
    dataset, loader = cell.make()
    meet(rank, world_size, rendezvous)
    return Delivery(len(dataset), len(loader), [take(iter(loader))])


def read_in_step_without_end(cell: Cell, started: str) -> None:
    """Read epoch after epoch, with an all-reduce after each batch."""
    _, loader = cell.make()
    ones = torch.ones(1)
    while True:
        for step, _ in enumerate(loader):
            torch.distributed.all_reduce(ones)
            if step == 3:
                Path(started).touch()


def audit_epoch(cell: Cell) -> Digest:
    """Digest what this rank gets in an epoch, and add up over the ranks."""
    _, loader = cell.make()
    total = audit(take(iter(loader))).tensor()
    torch.distributed.all_reduce(total)
    return Digest.from_tensor(total)


def save(cell: Cell, steps: int) -> tuple[list[Int64], dict[str, Any]]:
    """Take some batches; return them and the state after them."""
    dataset, loader = cell.make()
    feed = iter(loader)
    taken = take(feed, steps)
    state: dict[str, Any] = loader.state_dict()
    del feed
    dataset.close()
    return taken, state


def resume(cell: Cell, state: dict[str, Any]) -> list[Int64]:
    """Load a state and take the rest of its epoch."""
    dataset, loader = cell.make()
    loader.load_state_dict(state)
    taken = take(iter(loader))
    dataset.close()
    return taken
