"""`zarrfeed.compat.zarrdataset`: scripts written for zarr-torch-dataset 0.0.9 run with the import line changed."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import zarr
from torch.utils.data import DataLoader, IterableDataset, default_collate

import zarrfeed
from tests.support.oracle import no_thread_left
from zarrfeed.compat.zarrdataset import ZarrDataLoader, ZarrIterableDataset
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.partition import Consumer

N, CHUNK = 500, 11  # 46 chunks, the last of 5
NUM_CHUNKS = 46
#: torch counts the processors and warns of more workers than that.
MANY_WORKERS = "ignore:This DataLoader will create:UserWarning"
#: torch's own words for pin_memory=True where there is nothing to pin for.
NO_ACCELERATOR = "ignore:'pin_memory' argument is set as true but no accelerator:UserWarning"

IN_ORDER: dict[str, Any] = {"shuffle_chunks": False, "shuffle_buffer": False}
SHUFFLED: dict[str, Any] = {"chunks_shuffle_seed": 1, "buffer_shuffle_seed": 2}


@pytest.fixture
def scalars(tmp_path: Path) -> zarr.Array[Any]:
    """Write the numbers from 0, one a sample."""
    return zarr.create_array(tmp_path / "scalars", data=np.arange(N, dtype=np.int32), chunks=(CHUNK,))


@pytest.fixture
def images(tmp_path: Path) -> zarr.Array[Any]:
    """Write samples whose items are 100 times their index, and more."""
    data = 100 * np.arange(N)[:, None, None] + np.arange(6).reshape(1, 2, 3)
    return zarr.create_array(tmp_path / "images", data=data.astype(np.float32), chunks=(CHUNK, 2, 3))


def indices_of(rows: Any) -> list[int]:
    """Return which samples of `images` these are, after a check that they are whole."""
    rows = np.asarray(rows)
    index = rows[:, 0, 0].astype(np.int64) // 100
    assert np.array_equal(rows, 100 * index[:, None, None] + np.arange(6).reshape(1, 2, 3))
    found: list[int] = index.tolist()
    return found


def numbers_of(loader: Any) -> list[int]:
    """Read an epoch of `scalars` as samples and as targets."""
    seen: list[int] = []
    for x, y in loader:
        assert torch.equal(x.long(), y.long())
        seen += x.tolist()
    return seen


# --- the interface ----------------------------------------------------------------------------------------------


def test_names_order_and_defaults_of_the_arguments_are_the_originals() -> None:
    def of(thing: Any) -> dict[str, Any]:
        parameters = inspect.signature(thing).parameters.values()
        assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters)
        return {p.name: p.default for p in parameters}

    required = inspect.Parameter.empty
    assert of(ZarrIterableDataset) == {
        "samples": required,
        "targets": required,
        "selected_chunk_indexes": None,
        "shuffle_chunks": True,
        "chunks_shuffle_seed": None,
        "shuffle_buffer": True,
        "buffer_shuffle_seed": None,
    }
    assert of(ZarrDataLoader) == {
        "dataset": required,
        "num_workers": 0,
        "batch_size": 1,
        "drop_last": False,
        "pin_memory": False,
        "multiprocessing_context": None,
        "prefetch_factor": None,
    }


def test_they_are_torchs_classes_and_keep_the_arguments_as_attributes(scalars: zarr.Array[Any]) -> None:
    targets = np.arange(N)
    dataset = ZarrIterableDataset(
        samples=scalars, targets=targets, selected_chunk_indexes=[1, -1], chunks_shuffle_seed=3
    )
    assert isinstance(dataset, IterableDataset)
    assert dataset.samples is scalars
    assert dataset.targets is targets
    assert (dataset.shuffle_chunks, dataset.shuffle_buffer) == (True, True)
    assert (dataset.chunks_shuffle_seed, dataset.buffer_shuffle_seed) == (3, None)
    assert isinstance(dataset.selected_chunk_indexes, np.ndarray)
    assert dataset.selected_chunk_indexes.tolist() == [1, -1]
    loader = ZarrDataLoader(dataset=dataset, num_workers=2, batch_size=4, prefetch_factor=3)
    assert isinstance(loader, DataLoader)
    assert isinstance(loader.dataset, ZarrIterableDataset)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 3, True)
    assert not ZarrDataLoader(dataset=dataset).persistent_workers


def test_without_a_selection_all_chunks_are_selected(scalars: zarr.Array[Any]) -> None:
    dataset = ZarrIterableDataset(samples=scalars, targets=None, **IN_ORDER)
    assert dataset.selected_chunk_indexes.tolist() == list(range(NUM_CHUNKS))


# --- what comes out ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i4", "f4", "u1", "f8", "b1", "f2"])
def test_one_dimensional_arrays_give_numpy_scalars(dtype: str, tmp_path: Path) -> None:
    data = np.arange(30).astype(dtype)
    array = zarr.create_array(tmp_path / "a", data=data, chunks=(7,))
    samples = list(ZarrIterableDataset(samples=array, targets=data, **IN_ORDER))
    assert all(type(x) is type(y) is np.dtype(dtype).type for x, y in samples)
    assert [x for x, _ in samples] == data.tolist()
    assert [y for _, y in samples] == data.tolist()
    alone = list(ZarrIterableDataset(samples=array, targets=None, **IN_ORDER))
    assert [type(x) for x in alone] == [np.dtype(dtype).type] * 30


def test_other_arrays_give_tensors(images: zarr.Array[Any]) -> None:
    samples = list(ZarrIterableDataset(samples=images, targets=None, **IN_ORDER))
    assert all(isinstance(x, torch.Tensor) and x.shape == (2, 3) and x.dtype == torch.float32 for x in samples)
    assert indices_of(torch.stack(samples)) == list(range(N))
    pairs = list(ZarrIterableDataset(samples=images, targets=np.arange(N), **SHUFFLED))
    assert all(isinstance(pair, tuple) and isinstance(pair[1], np.int64) for pair in pairs)
    assert indices_of(torch.stack([x for x, _ in pairs])) == [int(y) for _, y in pairs]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 23, 250, 1000])
@pytest.mark.parametrize("with_targets", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
def test_batches_are_what_torch_would_collate_of_the_samples(
    shuffled: bool, with_targets: bool, batch_size: int, drop_last: bool, images: zarr.Array[Any]
) -> None:
    options = SHUFFLED if shuffled else IN_ORDER
    targets = np.arange(N, dtype=np.float32) if with_targets else None
    dataset = ZarrIterableDataset(samples=images, targets=targets, **options)
    samples = list(copy.deepcopy(dataset))
    expected = [default_collate(samples[i : i + batch_size]) for i in range(0, N, batch_size)]
    if drop_last and N % batch_size:
        del expected[-1]
    loader = ZarrDataLoader(dataset=dataset, batch_size=batch_size, drop_last=drop_last)
    batches = list(loader)
    assert len(loader) == len(batches) == len(expected)
    for batch, wanted in zip(batches, expected, strict=True):
        assert type(batch) is type(wanted)
        for got, want in zip(batch, wanted, strict=True):
            assert got.dtype == want.dtype
            assert torch.equal(got, want)


def test_the_batch_size_is_1_unless_said(images: zarr.Array[Any]) -> None:
    loader = ZarrDataLoader(dataset=ZarrIterableDataset(samples=images, targets=None, **IN_ORDER))
    assert [tuple(batch.shape) for batch in loader] == [(1, 2, 3)] * N


def test_groups_and_arrays_in_memory_are_samples_and_targets(tmp_path: Path, images: zarr.Array[Any]) -> None:
    group = zarr.create_group(tmp_path / "g")
    for name, chunk in (("u", 11), ("v", 4)):
        group.create_array(name, data=np.arange(N), chunks=(chunk,))
    dataset = ZarrIterableDataset(samples=group, targets=torch.arange(N), **SHUFFLED)
    seen = []
    for x, y in ZarrDataLoader(dataset=dataset, batch_size=32):
        assert list(x) == ["u", "v"]
        assert torch.equal(x["u"], y)
        assert torch.equal(x["v"], y)
        seen += y.tolist()
    assert sorted(seen) == list(range(N))
    assert isinstance(next(iter(dataset))[0]["u"], np.int64)
    both = ZarrIterableDataset(samples=np.asarray(images[...]), targets={"y": np.arange(N)}, **SHUFFLED)
    for x, y in ZarrDataLoader(dataset=both, batch_size=32):
        assert indices_of(x) == y["y"].tolist()


def test_arrays_and_groups_in_a_memory_store_are_read() -> None:
    store = zarr.storage.MemoryStore()
    group = zarr.create_group(store)
    array = group.create_array("a", data=np.arange(N, dtype=np.int32), chunks=(CHUNK,))
    options: dict[str, Any] = {"targets": array, "chunks_shuffle_seed": 1}
    for num_workers in (0, 2):
        loader = ZarrDataLoader(
            dataset=ZarrIterableDataset(samples=array, **options),
            batch_size=17,
            num_workers=num_workers,
            multiprocessing_context="fork" if num_workers else None,
        )
        for _ in range(2):
            assert sorted(numbers_of(loader)) == list(range(N))
        of_group = ZarrDataLoader(dataset=ZarrIterableDataset(samples=group, **options), batch_size=17)
        assert all(torch.equal(x["a"], y) for x, y in of_group)


# --- order ------------------------------------------------------------------------------------------------------


def order_of(dataset: ZarrIterableDataset) -> npt.NDArray[np.int64]:
    return np.array([int(x) for x in dataset])


def test_nothing_shuffled_is_the_order_of_the_array(scalars: zarr.Array[Any]) -> None:
    assert order_of(ZarrIterableDataset(samples=scalars, targets=None, **IN_ORDER)).tolist() == list(range(N))


def test_shuffled_chunks_come_whole_and_in_order(scalars: zarr.Array[Any]) -> None:
    dataset = ZarrIterableDataset(samples=scalars, targets=None, chunks_shuffle_seed=1, shuffle_buffer=False)
    order = order_of(dataset)
    assert sorted(order) == list(range(N))
    starts = np.flatnonzero(order % CHUNK == 0)
    assert len(starts) == NUM_CHUNKS
    assert all(np.array_equal(run, run[0] + np.arange(len(run))) for run in np.split(order, starts[1:]))
    assert not np.array_equal(np.sort(order[starts]), order[starts])
    assert not np.array_equal(order, order_of(dataset))


def test_a_shuffled_buffer_over_chunks_in_order_mixes_them(scalars: zarr.Array[Any]) -> None:
    dataset = ZarrIterableDataset(samples=scalars, targets=None, shuffle_chunks=False, buffer_shuffle_seed=2)
    first, second = order_of(dataset), order_of(dataset)
    assert sorted(first) == sorted(second) == list(range(N))
    assert not np.array_equal(first, second)
    assert len(np.unique(first[:32] // CHUNK)) >= 4
    assert (np.diff(first) == 1).mean() < 0.3


def test_both_shuffled(scalars: zarr.Array[Any]) -> None:
    dataset = ZarrIterableDataset(samples=scalars, targets=None, **SHUFFLED)
    epochs = [order_of(dataset) for _ in range(3)]
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len(np.unique(epochs[0][:32] // CHUNK)) >= 4
    assert (np.diff(epochs[0]) == 1).mean() < 0.3


@pytest.mark.parametrize(
    ("chunks", "buffer", "words"),
    [
        (True, True, "shuffled: 46 blocks of 11"),
        (True, False, "blocks shuffled, rows in order: 46"),
        (False, True, "blocks in order, rows shuffled: 46"),
        (False, False, "in order: 46 blocks of 11 samples in 1 lanes"),
    ],
)
def test_explain_says_what_is_shuffled(chunks: bool, buffer: bool, words: str, scalars: zarr.Array[Any]) -> None:
    dataset = ZarrIterableDataset(
        samples=scalars, targets=None, shuffle_chunks=chunks, chunks_shuffle_seed=1, shuffle_buffer=buffer
    )
    assert f"order       {words}" in str(dataset.explain())


def test_each_seed_decides_on_its_part_of_the_order(scalars: zarr.Array[Any]) -> None:
    def order(chunks: int, buffer: int) -> npt.NDArray[np.int64]:
        return order_of(
            ZarrIterableDataset(samples=scalars, targets=None, chunks_shuffle_seed=chunks, buffer_shuffle_seed=buffer)
        )

    base = order(1, 2)
    assert np.array_equal(base, order(1, 2))
    assert np.array_equal(base // CHUNK, order(1, 3) // CHUNK)
    assert not np.array_equal(base, order(1, 3))
    assert not np.array_equal(base // CHUNK, order(4, 2) // CHUNK)


def test_without_a_buffer_seed_each_dataset_is_shuffled_by_its_own(scalars: zarr.Array[Any]) -> None:
    first, second = (ZarrIterableDataset(samples=scalars, targets=None, chunks_shuffle_seed=1) for _ in range(2))
    copies = [copy.deepcopy(first), pickle.loads(pickle.dumps(first))]
    order = order_of(first)
    assert sorted(order) == list(range(N))
    assert not np.array_equal(order, order_of(second))
    for same in copies:
        assert np.array_equal(order, order_of(same))


@pytest.mark.parametrize("seed", [0, 2**64 - 1, 2**64, 2**200 + 1, np.int64(7)])
def test_seeds_of_numpys_generators_are_seeds(seed: Any, scalars: zarr.Array[Any]) -> None:
    dataset = ZarrIterableDataset(samples=scalars, targets=None, chunks_shuffle_seed=seed, buffer_shuffle_seed=seed)
    assert sorted(order_of(dataset)) == list(range(N))


@pytest.mark.parametrize("name", ["chunks_shuffle_seed", "buffer_shuffle_seed"])
@pytest.mark.parametrize("seed", [-1, 1.0, "1", True])
def test_what_is_no_seed_is_refused(seed: Any, name: str, scalars: zarr.Array[Any]) -> None:
    with pytest.raises(ValueError, match=f"{name} = "):
        ZarrIterableDataset(samples=scalars, targets=None, **{**SHUFFLED, name: seed})


def test_a_chunk_seed_is_needed_to_shuffle_chunks_and_only_then(scalars: zarr.Array[Any]) -> None:
    with pytest.raises(ValueError, match="chunks_shuffle_seed is None"):
        ZarrIterableDataset(samples=scalars, targets=None)
    ZarrIterableDataset(samples=scalars, targets=None, shuffle_chunks=False)


# --- selections -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "selected",
    [
        *(0, 7, 45, -1, -46, np.int64(3)),
        *([1], (1,), (0, 1), (-3, -2, -1), range(40, 46), (-1, 0, 7)),
        *(np.array((1,)), np.arange(10), np.array([3, 5], dtype=np.uint8), [np.int32(4)]),
    ],
    ids=repr,
)
def test_the_chunks_that_are_named_are_read_and_no_others(selected: Any, scalars: zarr.Array[Any]) -> None:
    chunks = np.arange(N) // CHUNK
    named = np.atleast_1d(selected) % NUM_CHUNKS
    expected = np.flatnonzero(np.isin(chunks, named)).tolist()
    in_order = ZarrIterableDataset(samples=scalars, targets=scalars, selected_chunk_indexes=selected, **IN_ORDER)
    assert np.array_equal(in_order.selected_chunk_indexes, np.atleast_1d(selected))
    assert numbers_of(ZarrDataLoader(dataset=in_order, batch_size=17)) == expected
    shuffled = ZarrIterableDataset(samples=scalars, targets=scalars, selected_chunk_indexes=selected, **SHUFFLED)
    loader = ZarrDataLoader(dataset=shuffled, batch_size=17)
    assert len(loader) == -(-len(expected) // 17)
    assert sorted(numbers_of(loader)) == expected


@pytest.mark.parametrize(
    ("selected", "error", "message"),
    [
        ([], ValueError, "empty list of chunk indexes"),
        ((), ValueError, "empty list of chunk indexes"),
        (np.array([], dtype=np.int64), ValueError, "empty list of chunk indexes"),
        (46, ValueError, "one or several chunk indexes"),
        (-47, ValueError, "one or several chunk indexes"),
        ((999,), ValueError, "one or several chunk indexes"),
        ((-999, 0, 1), ValueError, "one or several chunk indexes"),
        ([2**70], (ValueError, TypeError), "chunk indexes"),
        ([1, 1], ValueError, "one or several chunk indexes .* twice"),
        ([45, -1], ValueError, "one or several chunk indexes .* twice"),
        ({1}, TypeError, "unsupported type for selected chunk indexes"),
        ({1: 2}, TypeError, "unsupported type for selected chunk indexes"),
        ("1", TypeError, "unsupported type for selected chunk indexes"),
        (b"1", TypeError, "unsupported type for selected chunk indexes"),
        (1.0, TypeError, "unsupported type for selected chunk indexes"),
        ([1.0], TypeError, "unsupported type for selected chunk indexes"),
        ([[1], [2]], TypeError, "unsupported type for selected chunk indexes"),
        ([[1], [2, 3]], TypeError, "unsupported type for selected chunk indexes"),
        ([None], TypeError, "unsupported type for selected chunk indexes"),
        (True, TypeError, "unsupported type for selected chunk indexes"),
        ([True, False], TypeError, "unsupported type for selected chunk indexes"),
        (object(), TypeError, "unsupported type for selected chunk indexes"),
        (np.array(1), TypeError, "unsupported type for selected chunk indexes"),
        (iter([1]), TypeError, "unsupported type for selected chunk indexes"),
    ],
    ids=lambda v: re.sub(" at 0x.*", "", repr(v))[:30],
)
def test_other_selections_are_refused_in_the_originals_words(
    selected: Any, error: Any, message: str, scalars: zarr.Array[Any]
) -> None:
    with pytest.raises(error, match=message):
        ZarrIterableDataset(samples=scalars, targets=None, selected_chunk_indexes=selected, **IN_ORDER)


def test_training_and_validation_on_chunks_of_one_array_share_no_sample(images: zarr.Array[Any]) -> None:
    chunks = np.arange(images.nchunks)
    training = ZarrIterableDataset(samples=images, targets=None, selected_chunk_indexes=chunks[3:], **SHUFFLED)
    validation = ZarrIterableDataset(samples=images, targets=None, selected_chunk_indexes=chunks[:3], **IN_ORDER)
    seen = [i for batch in ZarrDataLoader(dataset=training, batch_size=64) for i in indices_of(batch)]
    kept = [i for batch in ZarrDataLoader(dataset=validation, batch_size=64) for i in indices_of(batch)]
    assert kept == list(range(3 * CHUNK))
    assert sorted(seen) == list(range(3 * CHUNK, N))


def test_the_static_helpers_of_the_original(scalars: zarr.Array[Any]) -> None:
    refine, check = ZarrIterableDataset.refine_chunk_indexes, ZarrIterableDataset.check_distribution_ability
    assert refine(5, None).tolist() == [0, 1, 2, 3, 4]
    assert refine(5, -2).tolist() == [-2]
    assert refine(5, (4, 1)).tolist() == [4, 1]
    for world_size, num_workers in ((1, 0), (10, 10), (50, 1), (1000, 64)):  # any number of consumers is served
        check(scalars, None, world_size, num_workers, "samples")
    with pytest.raises(ValueError, match="world_size = 0"):
        check(scalars, None, 0, 1)
    with pytest.raises(ValueError, match="num_workers = -1"):
        check(scalars, None, 1, -1)
    with pytest.raises(ValueError, match="empty list of chunk indexes"):
        check(scalars, [], 1, 1)


@pytest.mark.parametrize("length", [3, N - 1, N + 1])
def test_targets_of_another_length_are_refused(length: int, scalars: zarr.Array[Any]) -> None:
    with pytest.raises(ValueError, match=f"{length}.*{N}"):
        ZarrIterableDataset(samples=scalars, targets=np.arange(length), **IN_ORDER)
    with pytest.raises(ValueError, match="targets: got a list"):
        ZarrIterableDataset(samples=scalars, targets=[1] * N, **IN_ORDER)


def test_a_loader_takes_its_own_kind_of_dataset_only(scalars: zarr.Array[Any]) -> None:
    other: Any = zarrfeed.ZarrIterableDataset(scalars, batch_size=3)
    with pytest.raises(ValueError, match=r"zarrfeed\.compat"):
        ZarrDataLoader(dataset=other)
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(ValueError, match="batch_size"):
            ZarrDataLoader(
                dataset=ZarrIterableDataset(samples=scalars, targets=None, **IN_ORDER),
                batch_size=wrong,  # type: ignore[arg-type]
            )


# --- workers ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(MANY_WORKERS, NO_ACCELERATOR)
@pytest.mark.parametrize(
    ("context", "num_workers", "pin_memory"),
    [("fork", 1, False), ("fork", 2, True), ("fork", 5, False), ("forkserver", 2, True)],
)
def test_workers_share_the_samples_over_three_different_epochs(
    context: str, num_workers: int, pin_memory: bool, scalars: zarr.Array[Any]
) -> None:
    dataset = ZarrIterableDataset(samples=scalars, targets=np.arange(N), chunks_shuffle_seed=1)
    loader = ZarrDataLoader(
        dataset=dataset,
        num_workers=num_workers,
        batch_size=19,
        multiprocessing_context=context,
        pin_memory=pin_memory,
        prefetch_factor=2,
    )
    epochs = [numbers_of(loader) for _ in range(3)]
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len(loader) == 27
    del loader


@pytest.mark.filterwarnings(MANY_WORKERS)
def test_more_consumers_than_chunks_are_served(scalars: zarr.Array[Any]) -> None:
    dataset = ZarrIterableDataset(samples=scalars, targets=scalars, selected_chunk_indexes=[4], **SHUFFLED)
    loader = ZarrDataLoader(dataset=dataset, num_workers=3, batch_size=2, multiprocessing_context="fork")
    assert sorted(numbers_of(loader)) == list(range(44, 55))


def chunks_of_workers(dataset: ZarrIterableDataset, num_workers: int) -> list[list[int]]:
    """Read `scalars` with torch's DataLoader, and return the chunks of each worker in the order in which they came."""

    def with_worker(samples: list[Any]) -> tuple[int, list[int]]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        return info.id, [int(sample) for sample in samples]

    rows: list[list[int]] = [[] for _ in range(num_workers)]
    loader = DataLoader(
        dataset, batch_size=17, num_workers=num_workers, collate_fn=with_worker, multiprocessing_context="fork"
    )
    for worker, batch in loader:
        rows[worker] += batch
    chunks = []
    for of_worker in rows:
        order = list(dict.fromkeys(row // CHUNK for row in of_worker))
        expected = [row for chunk in order for row in range(chunk * CHUNK, min(N, (chunk + 1) * CHUNK))]
        assert of_worker == expected, "chunks come whole, and their rows in order"
        chunks.append(order)
    return chunks


@pytest.mark.filterwarnings(MANY_WORKERS)
@pytest.mark.parametrize(
    ("options", "num_workers"),
    [
        (IN_ORDER, 1),
        (IN_ORDER, 3),
        ({**IN_ORDER, "selected_chunk_indexes": 7}, 2),
        ({**IN_ORDER, "selected_chunk_indexes": range(10)}, 3),
        ({**IN_ORDER, "selected_chunk_indexes": [-1, 4, 9]}, 2),
        ({**IN_ORDER, "selected_chunk_indexes": [-1, 4, 9]}, 5),  # of which two have nothing
        ({"chunks_shuffle_seed": 1, "shuffle_buffer": False}, 1),
        ({"chunks_shuffle_seed": 1, "shuffle_buffer": False}, 3),
    ],
    ids=repr,
)
def test_where_rows_keep_their_order_a_worker_has_whole_chunks(
    options: dict[str, Any], num_workers: int, scalars: zarr.Array[Any]
) -> None:
    dataset = ZarrIterableDataset(samples=scalars, targets=None, **options)
    selected = sorted(dataset.selected_chunk_indexes % NUM_CHUNKS)
    chunks = chunks_of_workers(dataset, num_workers)
    assert sorted(chunk for of_worker in chunks for chunk in of_worker) == selected
    each, more = divmod(len(selected), num_workers)
    assert [len(of_worker) for of_worker in chunks] == [each + (w < more) for w in range(num_workers)]
    if options.get("shuffle_chunks") is False:
        assert [chunk for of_worker in chunks for chunk in of_worker] == selected, "each worker has a run of the array"


@pytest.mark.parametrize("drop_last", [False, True])
def test_workers_batch_their_own_chunks(drop_last: bool, scalars: zarr.Array[Any]) -> None:
    """Of ten chunks of 11, the first worker has rows 0 to 54 and the second those from 55 on; each ends by itself."""
    dataset = ZarrIterableDataset(samples=scalars, targets=scalars, selected_chunk_indexes=range(10), **IN_ORDER)
    loader = ZarrDataLoader(
        dataset=dataset, batch_size=17, num_workers=2, drop_last=drop_last, multiprocessing_context="fork"
    )
    begins = [0, 55, 17, 72, 34, 89] + ([] if drop_last else [51, 106])
    lengths = [17] * 6 + ([] if drop_last else [4, 4])
    for _ in range(2):
        batches = [x.tolist() for x, _ in loader]
        assert batches == [list(range(begin, begin + n)) for begin, n in zip(begins, lengths, strict=True)]
        assert len(loader) == len(batches)


@pytest.mark.filterwarnings(MANY_WORKERS)
@pytest.mark.parametrize("options", [IN_ORDER, {"chunks_shuffle_seed": 1, "shuffle_buffer": False}], ids=repr)
def test_a_run_of_whole_chunks_resumes_at_the_very_next_batch(
    options: dict[str, Any], scalars: zarr.Array[Any]
) -> None:
    def make(num_workers: int, batch_size: int) -> ZarrDataLoader:
        dataset = ZarrIterableDataset(samples=scalars, targets=scalars, **options)
        return ZarrDataLoader(
            dataset=dataset, batch_size=batch_size, num_workers=num_workers, multiprocessing_context="fork"
        )

    loader = make(3, 17)
    whole, states = [], []
    for x, _ in loader:
        whole.append(x.tolist())
        states.append(loader.state_dict())
    assert sorted(row for batch in whole for row in batch) == list(range(N))
    for stop in (1, 29):
        resumed = make(3, 17)
        resumed.load_state_dict(states[stop - 1])
        assert [x.tolist() for x, _ in resumed] == whole[stop:]
    elsewhere = make(2, 7)
    elsewhere.load_state_dict(states[0])
    assert sorted(numbers_of(elsewhere) + whole[0]) == list(range(N))


def test_a_worker_with_whole_chunks_decodes_no_chunk_of_another(scalars: zarr.Array[Any]) -> None:
    dataset = ZarrIterableDataset(samples=scalars, targets=None, **IN_ORDER)
    schedule = dataset.session.schedule
    blocks: list[int] = []
    for worker in range(5):
        consumer = Consumer(0, 1, worker, 5)
        plan = schedule.plan(schedule.settle(EpochState(0), consumer), consumer)
        blocks += plan.segment_block.tolist()
    assert sorted(blocks) == list(range(NUM_CHUNKS))


def test_pinning_without_an_accelerator_does_what_torchs_loader_does(scalars: zarr.Array[Any]) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    dataset = ZarrIterableDataset(samples=scalars, targets=scalars, **SHUFFLED)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        batches = list(ZarrDataLoader(dataset=dataset, batch_size=100, pin_memory=True))
    assert not any(x.is_pinned() for x, _ in batches)
    assert sum(len(x) for x, _ in batches) == N


def test_a_plain_dataloader_batches_the_samples_too(scalars: zarr.Array[Any]) -> None:
    dataset = ZarrIterableDataset(samples=scalars, targets=np.arange(N), chunks_shuffle_seed=1)
    for num_workers in (0, 2):
        loader = DataLoader(
            dataset, batch_size=19, num_workers=num_workers, multiprocessing_context="fork" if num_workers else None
        )
        assert sorted(numbers_of(loader)) == list(range(N))


def test_two_loaders_of_one_dataset_and_the_dataset_itself_work_side_by_side(scalars: zarr.Array[Any]) -> None:
    dataset = ZarrIterableDataset(samples=scalars, targets=scalars, **SHUFFLED)
    loaders = [ZarrDataLoader(dataset=dataset, batch_size=size) for size in (7, 30)]
    for passes in zip(*(map(len, map(numbers_of, [loader] * 2)) for loader in loaders), strict=True):
        assert passes == (N, N)
    assert len(order_of(ZarrIterableDataset(samples=scalars, targets=None, **SHUFFLED))) == N
    with no_thread_left():
        del loaders


def test_chunks_that_need_more_memory_than_usual_are_read_nevertheless(tmp_path: Path) -> None:
    """The original holds everything in memory, so it has no limit to say."""
    array = zarr.create_array(tmp_path / "large", shape=(8, 100 << 20), chunks=(4, 100 << 20), dtype="f4")
    with pytest.raises(zarrfeed.MemoryBudgetError):
        zarrfeed.ZarrIterableDataset(array, memory_budget="1GiB")
    dataset = ZarrIterableDataset(samples=array, targets=None, **SHUFFLED)
    assert dataset.explain().memory_bytes > 2 << 30
    assert len(ZarrDataLoader(dataset=dataset, batch_size=8, num_workers=2)) == 1


# --- what zarrfeed adds -----------------------------------------------------------------------------------------


def test_a_run_resumes_with_the_buffer_seed_that_it_had(scalars: zarr.Array[Any]) -> None:
    def make() -> ZarrDataLoader:
        dataset = ZarrIterableDataset(samples=scalars, targets=scalars, chunks_shuffle_seed=1)
        return ZarrDataLoader(dataset=dataset, batch_size=20)

    loader = make()
    seen, left = [], iter(loader)
    for _ in range(9):
        seen += next(left)[0].tolist()
    state = loader.state_dict()
    rest = [x for batch, _ in left for x in batch.tolist()]
    other = make()
    other.load_state_dict(state)
    assert numbers_of(other) == rest
    assert sorted(seen + rest) == list(range(N))
