"""Objects as a stream: order, ranks, workers and states are those of Zarr datasets, and errors name objects."""

from __future__ import annotations

import errno
import itertools
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
import zarrfeed.objects
from tests.support.fault_server import Exchange, Fault, FaultServer, Reply, refusal
from tests.support.objects import content, key_of, number_of, write_objects
from tests.support.oracle import no_thread_left
from zarrfeed import ChunkSkippedWarning, ClosedError, ConfigError, CorruptChunkError, MemoryBudgetError, StoreReadError
from zarrfeed.engine import object_fetcher, object_reader
from zarrfeed.objects import ObjectIterableDataset, Objects

N = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_objects(tmp_path_factory.mktemp("objects"), N)


@pytest.fixture(scope="module")
def objects(folder: Path) -> Objects:
    return zarrfeed.objects.open(folder)


@pytest.fixture
def server(folder: Path) -> Iterator[FaultServer]:
    with FaultServer(folder) as made:
        yield made


def on_server(server: FaultServer, count: int = N, **options: Any) -> Objects:
    return zarrfeed.objects.open(server.url, keys=[(key_of(i), len(content(i))) for i in range(count)], **options)


def _three(data: memoryview, key: str, more: str) -> object:
    return data, key, more


def _wait(end: threading.Event) -> None:
    end.wait(240)


def numbers(batches: Any) -> list[int]:
    """Return the numbers of delivered objects; each is what its index says."""
    found = []
    for batch, index in batches:
        assert [number_of(one) for one in batch] == index.tolist()
        found += index.tolist()
    return found


def test_in_order_without_shuffling(objects: Objects) -> None:
    dataset = ObjectIterableDataset(objects, batch_size=64)
    batches = list(dataset)
    assert [len(batch) for batch in batches] == [64, 64, 64, 8]
    assert [number_of(one) for batch in batches for one in batch] == list(range(N))
    assert all(one.dtype == torch.uint8 for one in batches[0])


def test_every_epoch_is_another_permutation(objects: Objects) -> None:
    dataset = ObjectIterableDataset(objects, batch_size=16, shuffle=True, seed=3, return_index=True)
    epochs = [numbers(dataset) for _ in range(3)]
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    for number, epoch in enumerate(epochs):
        assert dataset.sample_order(number).tolist() == epoch


@pytest.mark.parametrize("count", [5000, 20_000])  # blocks of one object, and of several
def test_the_shuffle_is_full(tmp_path: Path, count: int) -> None:
    """Neighbours of the listing are as far apart in the order as in a permutation that is drawn uniformly."""
    found = zarrfeed.objects.open(tmp_path, keys=(str(i) for i in range(count)))
    order = ObjectIterableDataset(found, shuffle=True, seed=1).sample_order(0)
    positions = np.empty(count, np.int64)
    positions[order] = np.arange(count)
    distances = np.abs(np.diff(positions))
    assert distances.mean() == pytest.approx(count / 3, rel=0.05)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05


@pytest.mark.parametrize("world", [2, 8, 24])
def test_the_order_is_the_same_for_any_number_of_ranks(objects: Objects, world: int) -> None:
    def order(rank: int, of: int) -> list[int]:
        dataset = ObjectIterableDataset(objects, shuffle=True, rank=rank, world_size=of, even="off")
        found: list[int] = dataset.sample_order(1).tolist()
        return found

    whole = order(0, 1)
    assert [order(rank, world) for rank in range(world)] == [whole[rank::world] for rank in range(world)]


@given(
    world=st.integers(1, 5),
    batch_size=st.integers(1, 40),
    shuffle=st.booleans(),
    even=st.sampled_from(["off", "drop", "repeat"]),
    stop=st.integers(0, 5),
    resumed_world=st.integers(1, 5),
)
def test_ranks_and_resuming_are_exact(
    objects: Objects, world: int, batch_size: int, shuffle: bool, even: Any, stop: int, resumed_world: int
) -> None:
    def dataset(rank: int, of: int) -> ObjectIterableDataset:
        return ObjectIterableDataset(
            objects,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=5,
            rank=rank,
            world_size=of,
            even=even,
            return_index=True,
        )

    first = [dataset(rank, world) for rank in range(world)]
    delivered: list[int] = []
    passes = [iter(one) for one in first]
    for batches in passes:
        delivered += numbers(itertools.islice(batches, stop))
    state = first[0].state_dict()
    for rank in range(resumed_world):
        rest = dataset(rank, resumed_world)
        rest.load_state_dict(pickle.loads(pickle.dumps(state)))
        if state["epoch"] == 0:
            delivered += numbers(rest)
        rest.close()
    for one in first:
        one.close()
    missing = set(range(N)) - set(delivered)
    if even == "off":
        assert sorted(delivered) == list(range(N))
    elif even == "drop":
        assert len(set(delivered)) == len(delivered)
        assert len(missing) < world + resumed_world
    else:
        assert not missing
        assert len(delivered) - N < world + resumed_world


def test_workers_share_what_a_rank_reads(objects: Objects) -> None:
    dataset = ObjectIterableDataset(objects, batch_size=16, shuffle=True, return_index=True)
    loader = zarrfeed.ZarrDataLoader(dataset, num_workers=2, multiprocessing_context="forkserver")
    assert sorted(numbers(loader)) == list(range(N))
    assert zarrfeed.audit(index for _, index in loader) == zarrfeed.Digest.of_range(N)


def test_single_objects_and_pickling(objects: Objects) -> None:
    dataset = pickle.loads(pickle.dumps(ObjectIterableDataset(objects, shuffle=True, return_index=True)))
    assert len(dataset) == N
    assert sorted(int(index) for one, index in dataset if number_of(one) == index) == list(range(N))


def test_transform_gets_the_batch_or_its_parts(objects: Objects) -> None:
    def parts(batch: list[bytes], index: torch.Tensor) -> int:
        return len(batch) + len(index)

    chosen = objects.select(slice(0, 6))
    options: dict[str, Any] = {"decode": "bytes", "batch_size": 3}
    assert list(ObjectIterableDataset(chosen, transform=len, **options)) == [3, 3]
    assert list(ObjectIterableDataset(chosen, transform=parts, return_index=True, **options)) == [6, 6]


def test_decode_gets_the_bytes_and_the_key(objects: Objects) -> None:
    dataset = ObjectIterableDataset(objects, decode=lambda data, key: (key, bytes(data)), batch_size=50)
    assert [pair for batch in dataset for pair in batch] == [(key_of(i), content(i)) for i in range(N)]


def test_arrays_of_our_decoders_become_tensors_and_others_stay(tmp_path: Path) -> None:
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", np.full((2, 3), i, np.float32))
    (batch,) = ObjectIterableDataset(tmp_path, decode="npy", batch_size=4, transform=torch.utils.data.default_collate)
    assert batch.shape == (4, 2, 3)
    assert batch[:, 0, 0].tolist() == [0, 1, 2, 3]
    (plain,) = ObjectIterableDataset(tmp_path, decode=lambda _: np.zeros(1), batch_size=4)
    assert isinstance(plain[0], np.ndarray)


def test_from_a_server_by_keys(server: FaultServer) -> None:
    dataset = ObjectIterableDataset(on_server(server), batch_size=16, shuffle=True, return_index=True)
    assert sorted(numbers(dataset)) == list(range(N))
    stats = dataset.stats()
    assert stats.requests - stats.hedges == N  # on a busy machine, requests are late
    assert dataset.stats().bytes_read == sum(len(content(i)) for i in range(N))
    assert dataset.explain().requested_by == "threads"


def test_transient_errors_are_retried(server: FaultServer) -> None:
    server.fault = Fault(lambda exchange, _: exchange.send(refusal(503, "SlowDown")), times=20)
    dataset = ObjectIterableDataset(on_server(server), batch_size=16, return_index=True)
    assert numbers(dataset) == list(range(N))
    assert dataset.stats().retries == 20


def test_an_object_that_is_gone_is_named_in_its_batch(server: FaultServer) -> None:
    found = zarrfeed.objects.open(server.url, keys=[*(key_of(i) for i in range(40)), "nowhere.bin"])
    dataset = ObjectIterableDataset(found, batch_size=20)
    batches = iter(dataset)
    assert [number_of(one) for one in [*next(batches), *next(batches)]] == list(range(40))
    with pytest.raises(StoreReadError, match=r"/nowhere\.bin: is gone: it was deleted") as caught:
        next(batches)
    assert caught.value.errno == errno.ENOENT
    dataset.close()


def test_a_decoder_that_fails_names_the_object_and_keeps_its_error(objects: Objects) -> None:
    def decode(data: memoryview, key: str) -> int:
        if key == key_of(30):
            raise RuntimeError("bad magic")
        return len(data)

    dataset = ObjectIterableDataset(objects, decode=decode, batch_size=20)
    batches = iter(dataset)
    assert len(next(batches)) == 20
    with pytest.raises(CorruptChunkError, match=r"00030\.bin: decode raised RuntimeError: bad magic") as caught:
        next(batches)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(StopIteration):  # the pass ended
        next(batches)


@pytest.mark.parametrize("world", [1, 2])
def test_skipped_objects_are_replaced_the_same_way_on_all_ranks(objects: Objects, world: int) -> None:
    bad = {7, 8, 150}

    def decode(data: memoryview) -> bytes:
        if number_of(bytes(data)) in bad:
            raise ValueError("cut")
        return bytes(data)

    def of_ranks(count: int) -> dict[int, int]:
        """Return position in the epoch order -> number of the object that was delivered there."""
        delivered: dict[int, int] = {}
        for rank in range(count):
            dataset = ObjectIterableDataset(
                objects,
                decode=decode,
                batch_size=10,
                shuffle=True,
                return_index=True,
                rank=rank,
                world_size=count,
                faults={"on_error": "skip"},
            )
            wanted = dataset.sample_order(0)
            with pytest.warns(ChunkSkippedWarning, match="decode raised ValueError"):
                found = numbers(dataset)
            delivered |= {rank + count * i: number for i, number in enumerate(found)}
            assert {i for i, n in zip(wanted, found, strict=True) if i != n} <= bad
            assert not bad & set(found)
            assert {chunk.key for chunk in dataset.skipped_chunks()} <= {key_of(i) for i in bad}
        return delivered

    assert of_ranks(world) == of_ranks(1)


def test_too_many_errors_end_the_pass(objects: Objects) -> None:
    def decode(_: memoryview) -> bytes:
        raise ValueError("never")

    faults = {"on_error": "skip", "max_errors": 5}
    dataset = ObjectIterableDataset(objects, decode=decode, batch_size=10, faults=faults)
    with pytest.raises(CorruptChunkError, match="max_errors = 5"), pytest.warns(ChunkSkippedWarning):
        next(iter(dataset))


def test_a_silent_server_is_an_error_after_the_timeout(server: FaultServer) -> None:

    end = threading.Event()
    server.fault = Fault(lambda *_: _wait(end), skip=20)
    dataset = ObjectIterableDataset(
        on_server(server, timeout=0.5), batch_size=20, faults={"timeout": 0.5, "retries": 0}
    )
    with pytest.raises(StoreReadError) as caught:
        list(dataset)
    end.set()
    assert caught.value.errno == errno.ETIMEDOUT
    assert ".bin: " in str(caught.value)


def test_a_server_counts_as_silent_while_the_process_was_stopped(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this clock the process is stopped for a minute whenever it looks for answers."""
    minutes, wait = 0, threading.Condition.wait

    def stopped_wait(condition: threading.Condition, timeout: float | None = None) -> bool:
        nonlocal minutes
        minutes += timeout == object_fetcher._LOOK_S
        return wait(condition, timeout)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 60 * minutes, perf_counter=time.perf_counter)
    monkeypatch.setattr(object_fetcher, "time", clock)
    monkeypatch.setattr(threading.Condition, "wait", stopped_wait)
    end = threading.Event()

    def answer_late(exchange: Exchange, reply: Reply) -> None:
        end.wait(240)
        exchange.send(reply)

    server.fault = Fault(answer_late, skip=3)
    threading.Timer(0.8, end.set).start()  # in the second look
    dataset = ObjectIterableDataset(on_server(server), decode=None, batch_size=20, faults={"timeout": 30})
    assert sum(len(batch) for batch in dataset) == N


@pytest.mark.parametrize("decode", ["bytes", None])
def test_a_thread_may_close_a_dataset_that_another_one_waits_for(server: FaultServer, decode: Any) -> None:
    end = threading.Event()
    server.fault = Fault(lambda *_: _wait(end))
    dataset = ObjectIterableDataset(on_server(server), batch_size=20, decode=decode)
    closing = threading.Timer(0.3, dataset.close)
    closing.start()
    with pytest.raises(ClosedError):
        next(iter(dataset))
    end.set()
    closing.join()
    with pytest.raises(ClosedError):
        iter(dataset)


def test_a_pass_that_is_left_ends_its_threads(objects: Objects) -> None:
    with no_thread_left():
        for _ in range(3):
            for batch in ObjectIterableDataset(objects, batch_size=4, decode="bytes"):
                assert len(batch) == 4
                break


def test_large_objects_are_read_in_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_fetcher, "_RANGE_BYTES", 1000)
    rng = np.random.default_rng(1)
    contents = [rng.bytes(size) for size in (0, 1, 1999, 2000, 2001, 10_000, 123_456)]
    for i, data in enumerate(contents):
        (tmp_path / str(i)).write_bytes(data)
    with FaultServer(tmp_path) as server:
        keys = [(str(i), len(data)) for i, data in enumerate(contents)]
        dataset = ObjectIterableDataset(zarrfeed.objects.open(server.url, keys=keys), decode="bytes", batch_size=3)
        assert [one for batch in dataset for one in batch] == contents
        asked = sum(method == "GET" for method, *_ in server.requests)
        ranges, stats = 4 + 3 + 10 + 124, dataset.stats()
        # on a busy machine some answers are late, and a second request may still be on its way to the server
        assert ranges <= asked <= ranges + stats.hedges + stats.retries
        assert sum(method == "HEAD" for method, *_ in server.requests) == 2 * 3
        (tmp_path / "6").write_bytes(contents[6][:50_000])  # since it was listed
        assert [one for batch in dataset for one in batch] == [*contents[:6], contents[6][:50_000]]


@pytest.mark.parametrize("local", [True, False])
def test_an_object_that_is_replaced_while_its_ranges_are_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    monkeypatch.setattr(object_fetcher, "_RANGE_BYTES", 1000)
    (tmp_path / "a").write_bytes(bytes(10_000))
    original = object_fetcher.ObjectFetcher._on_answer
    answers = []

    def on_answer(self: Any, request_id: int, answer: Any) -> None:
        answers.append(request_id)
        if len(answers) == 3:
            (tmp_path / "b").write_bytes(b"1" * 10_001)
            (tmp_path / "b").replace(tmp_path / "a")
        original(self, request_id, answer)

    monkeypatch.setattr(object_fetcher.ObjectFetcher, "_on_answer", on_answer)
    with FaultServer(tmp_path) as server:
        found = zarrfeed.objects.open(tmp_path if local else server.url, keys=[("a", 10_000)])
        dataset = ObjectIterableDataset(found, batch_size=1)
        with pytest.raises(StoreReadError, match="/a: was replaced while its ranges were read"):
            list(dataset)
        assert [len(one) for one in next(iter(dataset))] == [10_001]


def test_what_is_asked_for_ahead_keeps_to_the_budget(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [len(content(i)) for i in range(N)]
    budget, batch = 400, 8
    seen: list[int] = []
    original = object_reader.ObjectReader._ask

    def ask(self: Any) -> None:
        original(self)
        ahead = [one.sample for one in self._ahead]
        seen.append(sum(sizes[i] for i in ahead))
        assert seen[-1] <= budget or len(ahead) <= batch
        assert len(ahead) >= min(batch, len(self._order) - 0) or self._asked == len(self._order)

    monkeypatch.setattr(object_reader.ObjectReader, "_ask", ask)
    order = 8 * N  # bytes of the order, which is listed
    dataset = ObjectIterableDataset(objects, batch_size=batch, shuffle=True, memory_budget=budget + order)
    assert sum(len(one) for one in dataset) == N
    assert max(seen) > budget / 4


def test_a_batch_larger_than_the_budget_is_refused(objects: Objects) -> None:
    with pytest.raises(MemoryBudgetError, match="memory_budget"):
        ObjectIterableDataset(objects, batch_size=N, memory_budget=100)


def test_a_state_of_other_objects_is_refused(objects: Objects) -> None:
    dataset = ObjectIterableDataset(objects.select(slice(0, -1)), batch_size=8)
    next(iter(dataset))
    state = dataset.state_dict()
    dataset.close()
    others = ObjectIterableDataset(objects.select(slice(1, None)), batch_size=8)
    with pytest.raises(ConfigError, match="another dataset or order: objects was"):
        others.load_state_dict(state)


def test_what_is_read_comes_from_the_node_cache(server: FaultServer, tmp_path: Path) -> None:
    found = on_server(server, cache=tmp_path / "cache", cache_version="1")
    dataset = ObjectIterableDataset(found, batch_size=16, shuffle=True, return_index=True)
    for _ in range(2):
        assert sorted(numbers(dataset)) == list(range(N))
    assert len(server.requests) == N
    assert dataset.stats().cache.hits == N
    assert dataset.stats().cache.misses == N


def test_node_affinity(objects: Objects) -> None:
    def part(node: int) -> set[int]:
        dataset = ObjectIterableDataset(
            objects, batch_size=10, shuffle=True, return_index=True, rank=node, world_size=2, affinity="node"
        )
        return set(numbers(dataset))

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LOCAL_WORLD_SIZE", "1")
        parts = [part(0), part(1)]
    assert not parts[0] & parts[1]
    assert len(parts[0] | parts[1]) == N


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"decode": "imag"}, "decode = 'imag', must be a function or one of .*did you mean 'image'"),
        ({"decode": 7}, "decode = 7, must be a function"),
        ({"decode": _three}, "decode: the function requires 3 arguments"),
        ({"batch_size": 0}, "batch_size"),
        ({"shuffle": 1}, "shuffle = 1, must be True or False"),
        ({"drop_last": "no"}, "drop_last = 'no', must be True or False"),
        ({"seed": -1}, "seed"),
        ({"return_index": 2}, "return_index"),
        ({"affinity": "rack"}, "affinity"),
        ({"faults": {"on_eror": "skip"}}, "on_eror"),
        ({"num_threads": 0}, "num_threads"),
        ({"transform": 3}, "transform"),
        ({"memory_budget": "much"}, "memory_budget"),
    ],
)
def test_bad_options(objects: Objects, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ObjectIterableDataset(objects, **options)


def test_it_says_what_it_is(objects: Objects, folder: Path) -> None:
    dataset = ObjectIterableDataset(objects, batch_size=8, shuffle=True)
    assert repr(dataset).startswith(f"ObjectIterableDataset(<{N} objects of {folder}, ")
    assert dataset.objects is objects
    with pytest.raises(ConfigError, match="samples come as a stream"):
        dataset[0]
