"""`LookAhead`: the batches that come without it, bit by bit, of chunks that are decoded once for many of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from zarrfeed import ConfigError, CorruptChunkError, LookAhead, ZarrDataset
from zarrfeed.torch.datasets.array_requests import ArrayRequests
from zarrfeed.torch.datasets.look_ahead import PlannedIndices, Window

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

N, ROWS, SAMPLE = 503, 8, 100
BATCH_SIZE = 16
BATCH_BYTES = BATCH_SIZE * (4 * SAMPLE + 8)
CHUNKS = -(-N // ROWS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write samples whose values are their own index."""
    path = tmp_path_factory.mktemp("ahead") / "x.zarr"
    array = zarr.create_array(path, shape=(N, SAMPLE), chunks=(ROWS, SAMPLE), dtype="i4")
    array[:] = np.broadcast_to(np.arange(N, dtype="i4")[:, None], (N, SAMPLE))
    return path


def dataset(store: Path, cache: int = 16 * BATCH_BYTES) -> ZarrDataset:
    """Return a dataset whose cache has room for a quarter of the samples."""
    return ZarrDataset(store, return_index=True, cache=cache, num_threads=2)


def samplers() -> dict[str, Any]:
    """Return samplers by name, each with a generator of its own."""
    random = torch.Generator().manual_seed(1)
    weights = torch.rand(N, generator=random)
    return {
        "in order": SequentialSampler(range(N)),
        "random": RandomSampler(range(N), generator=random),
        "with replacement": RandomSampler(range(N), replacement=True, num_samples=700, generator=random),
        "weighted": WeightedRandomSampler(weights.tolist(), 600, generator=random),
        "distributed": DistributedSampler(range(N), num_replicas=3, rank=1, seed=7),  # type: ignore[arg-type]
    }


def check(batch: Any) -> torch.Tensor:
    """Return the indices of a batch whose samples are theirs."""
    values, index = batch
    assert torch.equal(values, index.to(torch.int32)[:, None].expand(-1, SAMPLE))
    return index  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "batches", "num_workers"),
    [
        *((name, 5, 0) for name in samplers()),
        *(("random", batches, num_workers) for batches in (1, 64) for num_workers in (0, 2)),
        ("with replacement", 5, 2),
    ],
)
def test_batches_are_those_without_it(store: Path, name: str, batches: int, num_workers: int) -> None:
    plain = BatchSampler(samplers()[name], BATCH_SIZE, drop_last=False)
    ahead = LookAhead(BatchSampler(samplers()[name], BATCH_SIZE, drop_last=False), batches)
    assert len(ahead) == len(plain)
    loader: Any = DataLoader(
        dataset(store), batch_sampler=ahead, num_workers=num_workers, timeout=240 * bool(num_workers)
    )
    for _ in range(2):  # an epoch goes on with the sampler's generator
        assert [check(batch).tolist() for batch in loader] == list(plain)


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_that_are_not_cut_into_samples(store: Path, drop_last: bool) -> None:
    ahead = LookAhead(BatchSampler(samplers()["random"], BATCH_SIZE, drop_last))
    got = [check(batch).tolist() for batch in DataLoader(dataset(store), batch_size=None, sampler=ahead)]
    assert got == list(BatchSampler(samplers()["random"], BATCH_SIZE, drop_last))


def test_a_chunk_is_decoded_once_for_a_window(store: Path) -> None:
    """A cache of 64 batches has room for 32 in a window, so for the whole epoch."""
    reads = {}
    for name in ("plain", "ahead"):
        data = dataset(store, 64 * BATCH_BYTES if name == "ahead" else 8 * BATCH_BYTES)
        batches: Any = BatchSampler(samplers()["random"], BATCH_SIZE, drop_last=False)
        for batch in DataLoader(data, batch_sampler=LookAhead(batches) if name == "ahead" else batches):
            check(batch)
        reads[name] = data.stats().chunks_read
    assert reads["ahead"] == CHUNKS
    assert reads["plain"] > 3 * CHUNKS


@pytest.mark.parametrize(("cache", "open_batches"), [(0, 1), (8, 4), (16, 8), (1000, 32)])
def test_what_is_read_ahead_takes_half_of_the_cache(store: Path, cache: int, open_batches: int) -> None:
    data = dataset(store, cache * BATCH_BYTES)
    first = next(iter(LookAhead(BatchSampler(samplers()["random"], BATCH_SIZE, drop_last=False))))
    check(data[first])
    reader = data._own.here
    assert isinstance(reader, ArrayRequests)
    coming = 0 if reader._ahead is None else len(reader._ahead._coming)
    assert 1 + coming == open_batches


def test_what_comes_in_between_is_read_too(store: Path) -> None:
    data = dataset(store)
    for number, indices in enumerate(LookAhead(BatchSampler(samplers()["random"], BATCH_SIZE, drop_last=False))):
        if number % 3 == 1:
            assert check(data[[5, 3, 5]]).tolist() == [5, 3, 5]
        if number % 5 == 2:
            assert int(data[7][1]) == 7
        assert check(data[indices]).tolist() == indices


def test_epochs_that_end_early_and_batches_that_are_left_out(store: Path) -> None:
    data = dataset(store)
    ahead = LookAhead(BatchSampler(samplers()["random"], BATCH_SIZE, drop_last=False))
    for stop in (1, 3, 10):
        for number, indices in enumerate(ahead):
            if number == stop:
                break
            assert check(data[indices]).tolist() == indices
    planned = list(ahead)
    for indices in [*planned[::-1], planned[3], planned[3], *planned[::4]]:
        assert check(data[indices]).tolist() == indices


def test_threads_may_ask_for_batches_of_several_windows(store: Path) -> None:
    data = dataset(store)
    several = [list(LookAhead(BatchSampler(samplers()["random"], BATCH_SIZE, drop_last=False))) for _ in range(2)]
    for both in zip(*several, strict=True):
        for indices in both:
            assert check(data[indices]).tolist() == indices


def test_an_index_out_of_range_is_an_error_of_its_own_batch(store: Path) -> None:
    ahead = LookAhead([[1, 2], [3, 4], [5, N], [6, 7]])
    data, got = dataset(store), []
    with pytest.raises(IndexError, match=f"index {N}"):  # noqa: PT012
        for indices in ahead:
            got += check(data[indices]).tolist()
    assert got == [1, 2, 3, 4]


def test_a_chunk_that_cannot_be_read_is_an_error_of_its_own_batches(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    zarr.create_array(path, shape=(N, SAMPLE), chunks=(ROWS, SAMPLE), dtype="i4")[:] = zarr.open_array(store)[:]
    (path / "c" / "20" / "0").write_bytes(b"no chunk")
    bad = set(range(20 * ROWS, 21 * ROWS))
    data, errors = dataset(path), 0
    for indices in LookAhead(BatchSampler(samplers()["random"], BATCH_SIZE, drop_last=False)):
        if bad.isdisjoint(indices):
            assert check(data[indices]).tolist() == indices
            continue
        errors += 1
        with pytest.raises(CorruptChunkError):
            data[indices]
    assert errors > 1


def test_a_sampler_that_fails_does_so_behind_its_batches(store: Path) -> None:
    def batches() -> Iterator[list[int]]:
        yield from ([1, 2], [3, 4], [5, 6])
        raise OSError("no more")

    data, got = dataset(store), []
    with pytest.raises(OSError, match="no more"):  # noqa: PT012
        for indices in LookAhead(batches(), 2):
            got += check(data[indices]).tolist()
    assert got == [1, 2, 3, 4, 5, 6]


def test_indices_are_a_list_that_can_be_pickled() -> None:
    window = Window.of(10, [[1, 2], [3], [4, 5]])
    planned = pickle.loads(pickle.dumps(PlannedIndices(window, 11)))
    assert planned == [3]
    assert isinstance(planned, PlannedIndices)
    assert (planned.number, planned.window.key) == (11, window.key)
    assert planned.window.batch(12).tolist() == [4, 5]


def test_batch_sizes_that_change(store: Path) -> None:
    batches = [list(range(i, i + 1 + i % 7)) for i in range(0, 300, 9)]
    data = dataset(store)
    assert [check(data[indices]).tolist() for indices in LookAhead(batches)] == batches


def test_it_says_what_it_wraps() -> None:
    sampler = RandomSampler(range(N))
    ahead = LookAhead(BatchSampler(sampler, 3, drop_last=True))
    assert (ahead.sampler, ahead.batch_size, ahead.drop_last) == (sampler, 3, True)


@pytest.mark.parametrize("batches", [0, -1, 1.5, True])
def test_a_wrong_number_of_batches_is_refused(batches: Any) -> None:
    with pytest.raises(ConfigError, match="batches"):
        LookAhead([[1]], batches)


def test_batches_of_anything_but_integers_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be lists of ints"):
        list(LookAhead([["a", "b"]]))  # type: ignore[list-item]


def test_integers_of_any_kind_are_taken_batch_by_batch() -> None:
    batches: list[Any] = [
        [1, 2],
        (3, 4),
        np.array([5, 6], "u8"),
        torch.tensor([7, 8]),
        np.array([9], "i2"),
        [],
        [torch.tensor(10), np.uint64(11), 12],
        range(13, 15),
        (n for n in (15, 16)),
        np.array([], "i8"),
    ]
    assert [list(one) for one in LookAhead(batches, 4)] == [
        *([1, 2], [3, 4], [5, 6], [7, 8], [9], [], [10, 11, 12], [13, 14], [15, 16], [])
    ]


def test_an_index_beyond_all_integers_is_out_of_range_and_no_other_sample(store: Path) -> None:
    data = dataset(store)
    for far in (2**63, 2**64 - 1):
        of_far: list[Any] = [[far], np.array([far], "u8"), [1, far]]
        for batch in of_far:
            (planned,) = LookAhead([batch])
            with pytest.raises(IndexError):
                data[planned]


def test_a_batch_that_is_refused_is_refused_behind_those_before_it() -> None:
    taken = []
    refused: list[Any] = [[1.5], ["a"], [None], np.array([1.0]), np.zeros((2, 2), "i8")]
    for wrong in refused:
        with pytest.raises(ConfigError, match="must be lists of ints"):  # noqa: PT012
            for batch in LookAhead([[1], [2], wrong, [3]], 10):
                taken.append(list(batch))  # noqa: PERF401
    assert taken == [[1], [2]] * 5
