"""Batches of DataLoader workers: their memory is used again, and never while somebody sees it."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from tests.support.proc import open_files, resident_bytes
from zarrfeed import ConfigError, UnsupportedError, ZarrDataset, ZarrIterableDataset
from zarrfeed.base.native import core
from zarrfeed.torch.batches import worker_memory
from zarrfeed.torch.batches.worker_memory import WorkerMemory

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

N, BATCH_SIZE, SAMPLE = 1600, 8, 1500
BATCHES = N // BATCH_SIZE
MEMORY = "2MB"
#: Batches of one worker at a time, with this memory: those that the engine has in work, and those under way.
MOST_AT_A_TIME = 16 + 6


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write samples whose values are their own index."""
    path = tmp_path_factory.mktemp("workers") / "x.zarr"
    array = zarr.create_array(path, shape=(N, SAMPLE), chunks=(40, SAMPLE), dtype="i4")
    array[:] = np.broadcast_to(np.arange(N, dtype="i4")[:, None], (N, SAMPLE))
    return path


def iterable(store: Path, **options: Any) -> ZarrIterableDataset:
    options = {"shuffle": True, "seed": 1, "memory_budget": MEMORY, **options}
    return ZarrIterableDataset(store, batch_size=BATCH_SIZE, return_index=True, **options)


def loader(dataset: Any, num_workers: int = 1, **options: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=num_workers, timeout=240, **options)


def is_whole(batch: Any) -> bool:
    """Return whether a batch (samples, index, ...) has what its index says."""
    return torch.equal(batch[0], batch[1].to(torch.int32)[:, None].expand(-1, SAMPLE))


@pytest.mark.usefixtures("warm_spawn")
@pytest.mark.parametrize(("method", "num_workers"), [("fork", 2), ("spawn", 1), ("forkserver", 2)])
def test_held_batches_stay_as_they_came_and_others_are_used_again(
    store: Path, method: str, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fourth batch is held to the end: in forked workers more than a pool has, so some lie in fresh memory."""
    monkeypatch.setattr(worker_memory, "_MOST_HELD_BYTES", 0)  # which a forked worker inherits
    held, addresses, seen = [], set(), []
    for i, batch in enumerate(loader(iterable(store), num_workers, multiprocessing_context=method)):
        assert is_whole(batch)
        seen.append(batch[1].clone())
        if i % 4 == 0:
            held.append(batch)
        else:
            addresses.add(batch[0].data_ptr())
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(N))
    assert all(is_whole(batch) for batch in held)
    shared = [batch[0].is_shared() for batch in held]  # torch's own memory is, by its name for it
    assert (True in shared) == (method == "fork")
    assert False in shared
    assert len(addresses) <= num_workers * MOST_AT_A_TIME + len(held), "the other three quarters are used again"


def test_batches_that_are_dropped_take_a_few_slots(store: Path) -> None:
    addresses = {batch[0].data_ptr() for batch in loader(iterable(store))}
    assert len(addresses) <= MOST_AT_A_TIME


class WithSlots:
    """A transform that says how many slots its worker made; pools that an earlier test left came with the fork."""

    def __call__(self, batch: Any) -> Any:
        own = [pool for pool in worker_memory._own.values() if pool.owner() == os.getpid()]
        return *batch, torch.tensor(sum(pool.num_slots() for pool in own))


def test_epochs_that_end_early_lose_no_slots(store: Path) -> None:
    batches = loader(iterable(store, transform=WithSlots()), persistent_workers=True)
    slots = []
    for _ in range(12):
        for i, batch in enumerate(batches):
            assert is_whole(batch)
            slots.append(int(batch[2]))
            if i == 3:
                break
    assert slots[0] >= 1
    assert max(slots) <= 2 * MOST_AT_A_TIME, slots  # slots of the samples, and of their index


def test_slices_and_views_hold_the_slot(store: Path) -> None:
    parts = [(batch[0][3:5, 7], batch[1][3:5]) for batch in loader(iterable(store))]
    for values, index in parts:
        assert torch.equal(values, index.to(torch.int32))


def test_map_style_requests_of_workers_are_whole(store: Path) -> None:
    dataset = ZarrDataset(store, return_index=True)
    batches: Any = torch.utils.data.DataLoader(dataset, batch_size=BATCH_SIZE, num_workers=2, timeout=240)
    held = list(batches)
    assert len(held) == BATCHES
    assert all(map(is_whole, held))


def test_a_batch_can_be_pickled_and_sent_on(store: Path) -> None:
    batch = next(iter(loader(iterable(store))))
    assert is_whole(pickle.loads(pickle.dumps(batch)))
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    queue.put(batch)
    assert is_whole(queue.get())
    assert is_whole(batch)


def test_a_forked_child_may_write_to_a_batch(store: Path) -> None:
    batch = next(iter(loader(iterable(store))))
    child = os.fork()
    if child == 0:
        status = 1
        if is_whole(batch):
            batch[0].zero_()
            status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert is_whole(batch)


def in_child(act: Callable[[], Any]) -> Any:
    """Return what a function returns in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, pickle.dumps(act()))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        content = file.read()
    os.waitpid(child, 0)
    return pickle.loads(content)


def private_bytes() -> int:
    return resident_bytes(kind="Anonymous")


def test_a_forked_child_takes_no_memory_for_batches_of_workers_that_ended(store: Path) -> None:
    batches = loader(ZarrIterableDataset(store, batch_size=400))
    held = [batch.numpy() for batch in batches]  # torch's threads do not survive a fork
    wanted = [batch[:, 0].tolist() for batch in held]

    def act() -> tuple[int, int, bool]:
        at_first = private_bytes()
        is_right = [batch[:, 0].tolist() for batch in held] == wanted
        held[0][:] = 0
        is_right = is_right and not held[0].any()
        after_write = private_bytes()
        is_right = is_right and in_child(lambda: [batch[:, 0].tolist() for batch in held[1:]] == wanted[1:])
        return at_first, after_write, is_right

    before = private_bytes()
    at_first, after_write, is_right = in_child(act)
    assert is_right
    assert at_first - before < held[0].nbytes, "nothing is copied at the fork"
    assert after_write - at_first < 2 * held[0].nbytes, "pages of one batch are copied as they are written to"
    assert [batch[:, 0].tolist() for batch in held] == wanted, "the parent's stay as they are"
    in_child(held.clear)
    assert [batch[:, 0].tolist() for batch in held] == wanted


def test_a_forked_child_holds_batches_of_a_living_worker_until_it_ends(store: Path) -> None:
    """Such as a worker of a second loader: nothing is copied, and the first worker does not write to what it sees."""
    batches = iter(loader(ZarrIterableDataset(store, batch_size=200), prefetch_factor=1))
    held = [next(batches).numpy() for _ in range(2)]
    wanted = [batch[:, 0].tolist() for batch in held]
    (look, to_child), (from_child, answer) = os.pipe(), os.pipe()
    before = private_bytes()
    child = os.fork()
    if child == 0:
        try:
            os.write(answer, pickle.dumps(private_bytes()))
            os.read(look, 1)
            held[0][:100] = -1
            seen = [batch[:, 0].tolist() for batch in held]
            os.write(answer, pickle.dumps(seen == [[-1] * 100 + wanted[0][100:], wanted[1]]))
        finally:
            os._exit(0)
    taken = pickle.loads(os.read(from_child, 4096)) - before
    addresses = {batch.ctypes.data for batch in held}
    del held[:]
    others = [batch.numpy() for batch in batches]  # the worker makes all of its batches meanwhile
    assert addresses.isdisjoint(batch.ctypes.data for batch in others)
    os.write(to_child, b"x")
    assert pickle.loads(os.read(from_child, 4096)), "the child sees what it inherited, and its own changes"
    os.waitpid(child, 0)
    assert taken < 600 * SAMPLE, "nothing is copied at the fork"
    for descriptor in (look, to_child, from_child, answer):
        os.close(descriptor)


def test_slots_that_children_inherited_are_used_again_when_these_end(store: Path) -> None:
    batches, addresses = iter(loader(iterable(store))), set()
    for _ in range(30):
        held = next(batches)
        addresses.add(held[0].data_ptr())
        in_child(lambda: 0)
    for held in batches:
        addresses.add(held[0].data_ptr())
    assert len(addresses) < MOST_AT_A_TIME + 20, "not each child keeps a slot for ever"


def test_a_fork_that_fails_holds_no_slot(memory: WorkerMemory) -> None:
    def act() -> tuple[int, int]:
        if os.getuid() == 0:
            os.setuid(65533)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        addresses, failed = set(), 0
        for _ in range(5):
            tensor = memory(4096)
            addresses.add(tensor.data_ptr())
            try:
                if os.fork() == 0:
                    os._exit(0)
            except OSError:
                failed += 1
            del tensor
        return failed, len(addresses)

    def in_own_pool() -> tuple[int, int]:
        worker_memory._own.clear()  # the inherited pool is not this process's own
        memory._pool = None
        return act()

    assert in_child(in_own_pool) == (5, 1)


def test_what_a_forked_child_drops_stays_held_by_its_parent(store: Path) -> None:
    """The worker lives and makes its next batches; the child's copy of a tensor is not the parent's lease."""
    batches = iter(loader(iterable(store)))
    held = [next(batches)]
    in_child(held.clear)
    for _ in range(30):
        other = next(batches)
        assert other[0].data_ptr() != held[0][0].data_ptr()
    assert is_whole(held[0])


class KillsItself:
    """A transform that kills its worker at the 30th batch."""

    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, batch: Any) -> Any:
        self.batches += 1
        if self.batches == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch


def test_batches_outlive_a_worker_that_is_killed(store: Path) -> None:
    held = []
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* exited unexpectedly|killed by signal"):  # noqa: PT012
        for batch in loader(iterable(store, transform=KillsItself())):
            held.append(batch)  # noqa: PERF402 - those that came before it
    assert held
    assert all(map(is_whole, held))


def mapped() -> set[str]:
    """Return the descriptors and mappings of pools of this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    files = [f"{number}: {name}" for number, name in open_files().items()]
    return {text for text in [*files, *lines] if "zarrfeed-batches" in text}


def test_the_training_process_keeps_no_file_of_workers_open(store: Path) -> None:
    """Only mappings: how many files a process may open is limited, and torch counts on that number."""

    def files_of_workers() -> int:
        return sum("zarrfeed-batches" in name for name in open_files().values())

    before = files_of_workers()  # pools that earlier tests made in this process
    batches = iter(loader(iterable(store), num_workers=2))
    kept = [next(batches), next(batches)]
    assert files_of_workers() <= before
    assert all(map(is_whole, kept))


def test_memory_of_workers_that_ended_is_unmapped(store: Path) -> None:
    core.SharedPool.forget_over()
    gc.collect()
    before = mapped()  # pools that earlier tests left, which may go meanwhile
    for _ in range(3):
        batches = loader(iterable(store))
        kept = next(iter(batches))
        assert mapped() - before
        del batches
        assert is_whole(kept)
        del kept
    core.SharedPool.forget_over()
    assert not mapped() - before


def test_a_system_without_such_files_takes_torchs(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> Any:
        raise UnsupportedError("not here")

    monkeypatch.setattr(core.SharedPool, "create", refuse)
    for batch in loader(iterable(store)):  # a forked worker inherits what was set
        assert is_whole(batch)
        assert batch[0].is_shared()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> WorkerMemory:
    """Make a pool of this process, and undo at the end what that changes."""
    monkeypatch.setattr(worker_memory, "_own", {})
    monkeypatch.setattr(ForkingPickler, "_extra_reducers", dict(ForkingPickler._extra_reducers))  # type: ignore[attr-defined]
    return WorkerMemory(4096)


def test_pickled_bytes_are_used_once(memory: WorkerMemory) -> None:
    tensor = memory(100)
    tensor.fill_(7)
    (pool,) = worker_memory._own.values()
    child = os.fork()
    if child == 0:
        core.SharedPool.open(os.dup(pool.descriptor()), *worker_memory._own)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.is_opened(), "so the message carries no descriptor, which could be sent once"
    sent = bytes(ForkingPickler.dumps(tensor[10:20]))
    assert pickle.loads(sent).tolist() == [7] * 10
    with pytest.raises(ConfigError, match="unpickled a second time"):
        pickle.loads(sent)


def test_a_pool_that_is_gone_is_an_error_that_says_so(memory: WorkerMemory) -> None:
    tensor = memory(100)
    (pool,) = worker_memory._own.values()
    handle = pool.share(tensor.data_ptr(), 100)
    assert handle is not None
    with pytest.raises(ConnectionError, match=r"the worker has ended, .* batch.clone\(\)"):
        worker_memory.rebuild_storage(12345, (2**22 + 1, 3), None, handle)


@dataclass
class Retired:
    """A forked process that sent two tensors of a pool, and whose next pool has the number of that pool's descriptor.

    The tensors hold 1 and 2, those of the next pool hold 3.
    """

    number: int
    origin: tuple[int, int]
    handles: list[tuple[int, int, int, int]]
    retire: Callable[[], None]

    def message(self, number: int) -> torch.Tensor:
        """Take a message over that carries no descriptor."""
        storage = worker_memory.rebuild_storage(self.number, self.origin, None, self.handles[number])
        return torch.tensor([], dtype=torch.uint8).set_(storage)


@pytest.fixture
def worker() -> Iterator[Retired]:
    here, there = socket.socketpair()
    here.settimeout(60)
    process = os.fork()
    if process == 0:
        with suppress(BaseException):
            _own_two_pools(there)
        os._exit(1)
    there.close()
    number, descriptor, handles = pickle.loads(here.recv(4096))

    def retire() -> None:
        here.send(b"retire")
        assert here.recv(1) == b"x", "the next pool has the number of the descriptor"

    yield Retired(number, (process, descriptor), handles, retire)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    here.close()


def _own_two_pools(there: socket.socket) -> None:
    def send(pool: Any, value: int) -> Any:
        tensor = torch.utils.dlpack.from_dlpack(pool.acquire(4096))
        tensor.fill_(value)
        return pool.share(tensor.data_ptr(), 4096)

    numbers = secrets.randbits(63), secrets.randbits(63)
    pool = core.SharedPool.create(numbers[0], 1 << 20)
    descriptor = pool.descriptor()
    there.send(pickle.dumps((numbers[0], descriptor, [send(pool, 1), send(pool, 2)])))
    there.recv(16)
    pool.retire()
    del pool
    following = core.SharedPool.create(numbers[1], 1 << 20)
    send(following, 3), send(following, 3)
    there.send(b"x" if following.descriptor() == descriptor else b"-")
    signal.pause()


def test_a_batch_that_is_under_way_when_its_pool_is_retired_arrives(worker: Retired) -> None:
    """The training process keeps the pool: its worker has given the number of the descriptor to the next one."""
    first = worker.message(0)
    worker.retire()
    assert set(first.tolist()) == {1}
    del first  # the end of a lease forgets pools that nothing more comes from
    core.SharedPool.forget_over()
    assert set(worker.message(1).tolist()) == {2}


def test_a_batch_is_never_that_of_another_pool(worker: Retired) -> None:
    """A process that has not mapped the pool finds the next one under the number of its descriptor."""
    worker.retire()
    for number in range(2):
        with pytest.raises(ConnectionError, match=r"another pool's now.*batch\.clone\(\)"):
            worker.message(number)
    assert core.SharedPool.find(worker.number) is None


def test_a_file_that_has_the_number_of_a_pool_is_not_opened(tmp_path: Path, worker: Retired) -> None:
    """To open a pipe or a terminal may have effects."""
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        with pytest.raises(ConnectionError, match="is no batch memory"):
            worker_memory.rebuild_storage(worker.number, (os.getpid(), pipe), None, worker.handles[0])
    finally:
        os.close(pipe)
