"""`ZarrDataset`: any samples in any order, as zarr-python reads them, through every sampler and kind of worker."""

from __future__ import annotations

import copy
import io
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    StackDataset,
    Subset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
)

from tests.support.examples import examples
from tests.support.flat import map_dataset
from tests.support.oracle import Layout, no_thread_left, raw_rows, read_all
from zarrfeed import ClosedError, ConfigError, CorruptChunkError, MemoryBudgetError, ZarrDataset
from zarrfeed.torch.batches.batch import BatchAssembler
from zarrfeed.torch.datasets import array_requests

N, ROWS = 53, 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("access")
    Layout(shape=(N, 5), chunks=(ROWS, 3), dtype="i4", codec="blosc-lz4-shuffle").write(path / "x")
    Layout(shape=(N, 2, 600), chunks=(6, 2, 600), codec="blosc-zstd-bitshuffle").write(path / "y")
    return path


def check(batch: Any, store: Path, indices: Any) -> None:
    """Fail unless a batch of x, y and the index holds exactly these samples."""
    x, y, index = batch
    wanted = np.arange(N)[indices]
    assert np.array_equal(index.numpy(), wanted)
    assert (raw_rows(x) == raw_rows(read_all(store / "x"))[wanted]).all()
    assert (raw_rows(y) == raw_rows(read_all(store / "y"))[wanted]).all()


def dataset(store: Path, **options: Any) -> ZarrDataset:
    return map_dataset(store / "x", store / "y", return_index=True, **{"num_threads": 2, **options})


requests = st.lists(st.integers(-N, N - 1), min_size=1, max_size=80)


@examples(20)
@given(several=st.lists(requests, min_size=1, max_size=4), cache=st.sampled_from([0, 1000, "30 kB", "1MiB"]))
def test_every_request_gives_the_samples_in_its_order(store: Path, several: list[list[int]], cache: Any) -> None:
    data = dataset(store, cache=cache)
    with no_thread_left():
        batches = [(data[request], default_collate(data.__getitems__(request))) for request in several]
    data.close()
    for request, (batch, collated) in zip(several, batches, strict=True):
        check(batch, store, request)
        check(collated, store, request)


def test_single_samples_are_those_of_zarr(store: Path) -> None:
    data = dataset(store)
    assert len(data) == N
    for i in (0, 7, 8, N - 1, -1, -N, np.int64(3), torch.tensor(4)):
        sample = data[i]
        assert isinstance(sample, tuple)
        check([part[None] for part in sample], store, [int(i)])
        assert sample[1].untyped_storage().nbytes() == sample[1].nbytes, "a sample holds no more than itself"
    for outside in (N, -N - 1):
        with pytest.raises(IndexError, match=rf"index {outside}, must be in \[-{N}, {N - 1}\]"):
            data[outside]
    for wrong in (1.5, "a", [[1]], slice(3)):
        with pytest.raises(ConfigError, match="must be an int or a 1-d sequence of ints"):
            data[wrong]  # type: ignore[index]
    assert [tuple(part.shape) for part in data[[]]] == [(0, 5), (0, 2, 600), (0,)]


def test_fields_of_all_kinds_are_read(store: Path) -> None:
    memory = np.arange(3 * N).reshape(N, 3)
    data = ZarrDataset({"a": store / "x", "b": memory}, store / "y", num_threads=2)
    named, y = data[[5, 5, 2]]
    assert np.array_equal(named["b"].numpy(), memory[[5, 5, 2]])
    assert (raw_rows(named["a"]) == raw_rows(read_all(store / "x"))[[5, 5, 2]]).all()
    sample, _ = data[7]
    assert np.array_equal(sample["b"].numpy(), memory[7])
    collated, _ = default_collate(data.__getitems__([1, 0]))
    assert np.array_equal(collated["b"].numpy(), memory[[1, 0]])
    assert y.shape == (3, 2, 600)
    bare = ZarrDataset(memory)
    assert np.array_equal(default_collate(bare.__getitems__([4, 1])).numpy(), memory[[4, 1]])


# --- the cache --------------------------------------------------------------------------------------------------


def test_chunks_that_are_cached_are_not_decoded_again(store: Path) -> None:
    data = ZarrDataset(store / "x", num_threads=2)
    for i in range(N):
        data[i]
    chunks = 2 * -(-N // ROWS)
    assert data.stats().chunks_read == chunks
    data[list(range(N))]  # a larger request than ever: the reader begins anew
    assert data.stats().chunks_read == 2 * chunks
    assert data.stats().samples == 2 * N


def test_without_a_cache_only_one_chunk_a_group_is_decoded(store: Path) -> None:
    data = ZarrDataset(store / "x", cache=0)
    data[[0, 1, 0, 7, 8, 0]]
    assert data.stats().chunks_read == 4
    data[[0, 1, 0, 7, 8, 0]]
    assert data.stats().chunks_read == 8


# --- loaders ----------------------------------------------------------------------------------------------------


def stack_by_hand(samples: Any) -> Any:
    return tuple(torch.stack([sample[part] for sample in samples]) for part in range(3))


def samplers(data: ZarrDataset) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "random": RandomSampler(data, generator=generator),
        "weighted": WeightedRandomSampler(torch.arange(1.0, N + 1).tolist(), 100, generator=generator),
        "distributed": DistributedSampler(data, num_replicas=3, rank=1, shuffle=True),
    }


@pytest.mark.parametrize("kind", ["random", "weighted", "distributed"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, stack_by_hand])
def test_loaders_with_samplers_give_what_the_sampler_says(
    kind: str, workers: int, collate: Callable[..., Any] | None, store: Path
) -> None:
    data = dataset(store)
    loader = DataLoader(data, batch_size=7, sampler=samplers(data)[kind], num_workers=workers, collate_fn=collate)
    seen = []
    for batch in loader:
        check(batch, store, batch[2].numpy())
        assert all(type(part) is torch.Tensor for part in batch)
        seen.append(batch[2])
    expected = list(samplers(data)[kind])
    got = torch.cat(seen).tolist()
    assert sorted(got) == sorted(expected) if kind == "random" else got == expected


@pytest.mark.usefixtures("warm_spawn")
@pytest.mark.parametrize(("method", "num_workers"), [("spawn", 1), ("forkserver", 2), ("fork", 2)])
def test_workers_of_every_kind_read_after_their_parent_did(method: str, num_workers: int, store: Path) -> None:
    data = dataset(store)
    check(data[[3, 1]], store, [3, 1])
    loader = DataLoader(data, batch_size=10, num_workers=num_workers, multiprocessing_context=method, timeout=240)
    assert torch.cat([batch[2] for batch in loader]).tolist() == list(range(N))
    check(data[[3, 1]], store, [3, 1])


def test_a_loader_takes_the_batch_as_it_was_decoded(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset(store)
    plain = default_collate([data[i] for i in (4, 9, 4)])
    monkeypatch.setattr(BatchAssembler, "samples_of", None)  # no sample is made on the way
    for source, indices in ((data, [4, 9, 4]), (Subset(Subset(data, [9, 4]), [1, 0, 1]), [0, 1, 2])):
        (batch,) = DataLoader(source, batch_sampler=[indices])
        assert type(batch) is list, "as torch makes of tuples"
        for mine, torchs in zip(batch, plain, strict=True):
            assert (raw_rows(mine) == raw_rows(torchs)).all()


def test_a_list_of_samples_is_collated_as_it_is(store: Path) -> None:
    data = dataset(store)
    samples = data.__getitems__([4, 9, 4])
    samples[1] = data[2]
    check(default_collate(samples), store, [4, 2, 4])
    samples = data.__getitems__([4, 9, 4])
    samples.pop()
    check(default_collate(samples), store, [4, 9])
    check(default_collate(data.__getitems__([1, 2]) + data.__getitems__([3])), store, [1, 2, 3])
    named = ZarrDataset({"a": np.arange(5)})
    changed = named.__getitems__([1, 2])
    changed[0]["a"] = torch.tensor(40)
    assert default_collate(changed)["a"].tolist() == [40, 2]


class _Indexed(torch.utils.data.Dataset[Any]):
    """A user's dataset around another one, which looks at the samples."""

    def __init__(self, inner: ZarrDataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(i, sample) for i, sample in zip(indices, self.inner.__getitems__(indices), strict=True)]


def types_in(value: Any) -> set[type]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return {type(value)}.union(*map(types_in, inside))


def test_samples_have_plain_types_that_torch_saves_and_loads(store: Path) -> None:
    """No type of ours reaches a `collate_fn` of the user's, a wrapper, or a file."""
    text = np.array([f"t{i}" for i in range(N)], object)
    zarr.create_array(store / "text", shape=(N,), chunks=(9,), dtype=str, overwrite=True)[:] = text
    x = str(store / "x")
    fields = {
        "an array": ZarrDataset(x),
        "a dict": ZarrDataset({"a": x, "text": str(store / "text")}),
        "a tuple": ZarrDataset(x, x),
        "records": ZarrDataset(np.zeros(N, [("a", "i4"), ("b", "f4")])),
    }
    plain = {torch.Tensor, dict, tuple, list, str, int}

    def same(samples: list[Any]) -> list[Any]:
        return samples

    def zipped(samples: list[Any]) -> list[Any]:
        return list(zip(samples, samples, strict=True))

    collates: dict[str, Any] = {"same": same, "list": list, "tuple": tuple, "zip": zipped}
    for name, data in fields.items():
        batches = {f"collate_fn={key}": next(iter(DataLoader(data, 3, collate_fn=f))) for key, f in collates.items()}
        batches["wrapped"] = next(iter(DataLoader(_Indexed(data), 3)))
        batches["stacked"] = next(iter(DataLoader(StackDataset(data, data), 3)))
        batches["default_convert"] = next(iter(DataLoader(data, 3, collate_fn=default_convert)))
        batches["__getitems__"] = data.__getitems__([4, 2])
        batches["none"] = data.__getitems__([])
        batches["a sample"] = data[3]
        for way, batch in batches.items():
            assert types_in(batch) <= plain, (name, way, types_in(batch))
            file = io.BytesIO()
            torch.save(batch, file)
            file.seek(0)
            for again in (torch.load(file), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
                assert str(again) == str(batch), (name, way)
        (from_worker,) = DataLoader(
            data, batch_sampler=[[5, 3]], num_workers=1, collate_fn=same, multiprocessing_context="fork", timeout=240
        )
        assert types_in(from_worker) == types_in(data.__getitems__([5, 3])), name
        assert str(from_worker) == str(data.__getitems__([5, 3])), name


def test_subsets_and_batches_of_indices_work(store: Path) -> None:
    data = dataset(store)
    subset = Subset(data, [50, 3, 3, 17])
    (batch,) = DataLoader(subset, batch_size=4)
    check(batch, store, [50, 3, 3, 17])
    batches = DataLoader(data, batch_size=None, sampler=BatchSampler(range(N), 20, drop_last=False))
    check(next(iter(batches)), store, list(range(20)))


# --- process life -----------------------------------------------------------------------------------------------


def test_threads_may_ask_at_once(store: Path) -> None:
    data = dataset(store, cache="20 kB")
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(15):
                request = random.integers(0, N, random.integers(1, 30))
                check(data[request], store, request)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


def test_a_child_forked_while_another_thread_reads_can_read(store: Path) -> None:
    data = dataset(store)
    data[[1]]
    lock = data._own.here.lock
    lock.acquire()  # as a thread that is in the middle of a request
    child = os.fork()
    if child == 0:
        try:
            check(data[[5, 2]], store, [5, 2])
        except BaseException:  # noqa: BLE001 - the exit status says it
            os._exit(1)
        os._exit(0)
    lock.release()
    assert os.waitpid(child, 0)[1] == 0


def test_a_single_sample_keeps_its_own_memory_and_no_more(store: Path) -> None:
    """After a large request the reader's buffers are as large as that, and a view of one row would keep all of it."""
    group = {"x": store / "x", "y": store / "y"}
    for data in (dataset(store), ZarrDataset(store / "y"), ZarrDataset(group, store / "x")):
        data[list(range(40))]
        data[0]
        mapped = data.stats().batch_memory_bytes
        held = [data[i % N] for i in range(200)]  # with their buffers: 200 times 40 rows of 4.8 kB
        assert data.stats().batch_memory_bytes == mapped
        assert len(held) == 200


def test_a_batch_that_is_held_is_never_overwritten(store: Path) -> None:
    data = dataset(store)
    held = [(request, data[request]) for request in ([1, 2], [9, 8], [30, 31], [2, 1])]
    for request, batch in held:
        check(batch, store, request)
    copies = pickle.loads(pickle.dumps(data))
    check(copies[[4]], store, [4])
    data.close()
    data.close()
    for request, batch in held:
        check(batch, store, request)
    with pytest.raises(ClosedError):
        data[0]


def test_an_error_in_a_chunk_is_raised_and_reading_goes_on(tmp_path: Path) -> None:
    array = Layout(shape=(20, 3), chunks=(5, 3), codec="zstd").write(tmp_path / "x")
    expected = raw_rows(read_all(array))
    (tmp_path / "x" / "c" / "2" / "0").write_bytes(b"no chunk")
    data = ZarrDataset(tmp_path / "x")
    for _ in range(2):
        with no_thread_left(), pytest.raises(CorruptChunkError, match="x chunk c/2/0"):
            data[[0, 11]]
        assert (raw_rows(data[[0, 19]]) == expected[[0, 19]]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_threads": 0}, "num_threads = 0, must be at least 1"),
        ({"cache": "big"}, "cache = 'big', must be bytes or text"),
        ({"cache": -1}, "cache = -1"),
        ({"return_index": 1}, "return_index"),
        ({"sample_axis": 2}, "sample_axis"),
    ],
)
def test_what_cannot_work_is_refused(store: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        map_dataset(store / "x", **options)


def test_requests_grow_until_what_is_asked_for_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three samples after two were refused as four: a reader had room for twice as many as the one before it."""
    samples, memory = np.arange(8 << 18, dtype="i4").reshape(8, 1 << 18), 0
    monkeypatch.setattr(array_requests, "job_bytes", lambda: memory)
    for memory in (1 << 20, (3 << 20) + 1):
        dataset = ZarrDataset(samples, num_threads=1)
        most = memory >> 20
        for rows in range(1, most + 1):
            assert np.array_equal(dataset[list(range(rows))], samples[:rows])
        with pytest.raises(MemoryBudgetError, match=rf"^{most + 1} samples at once: {most + 1}\.0 MiB are needed"):
            dataset[list(range(most + 1))]
    memory = (1 << 20) - 1
    with pytest.raises(MemoryBudgetError, match=r"^1 sample at once: 1\.0 MiB are needed"):
        ZarrDataset(samples, num_threads=1)
