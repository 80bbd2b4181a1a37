"""Documents that are packed into samples of one length, and next-token targets, against NumPy; rows hold an index."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from tests.parity.test_sequences import dataset_of, recordings, stopped_and_resumed
from tests.support.examples import tries
from zarrfeed import ConfigError, Data, ZarrDataset, ZarrIterableDataset

#: A document: its rows, in order.
Document = tuple[int, ...]


def pieces_of(lengths: Sequence[int], length: int, longer: str) -> list[Document]:
    """Return the documents, without empty ones, as samples of so many rows have them."""
    found: list[Document] = []
    for end, rows in zip(np.cumsum(lengths).tolist(), lengths, strict=True):
        document = tuple(range(end - rows, end))
        if rows > length:
            pieces = [document[at : at + length] for at in range(0, rows, length)]
            found += {"split": pieces, "truncate": pieces[:1], "drop": []}[longer]
        elif rows:
            found.append(document)
    return found


def documents_in(sample: dict[str, Any]) -> list[Document]:
    """Return the documents of a sample, and check what it says of them; padding is -1."""
    rows, ids, positions = (sample[name].tolist() for name in ("x", "segment_ids", "positions"))
    used = len(rows) - ids.count(0)
    assert ids[used:] == [0] * (len(rows) - used)
    assert rows[used:] == [-1] * (len(rows) - used)
    found: list[list[int]] = []
    for row, number, position in zip(rows[:used], ids, positions, strict=False):
        if not position:
            found.append([])
        assert number == len(found)
        assert position == len(found[-1])
        found[-1].append(row)
    assert positions[used:] == list(range(len(rows) - used))
    return [tuple(one) for one in found]


def samples_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]


def read(data: Data, epoch: int = 0, **options: Any) -> list[list[list[Document]]]:
    return [[documents_in(one) for one in samples_of(batch)] for batch in dataset_of(data, epoch, **options)]


def flat(batches: Any) -> list[Any]:
    return [sample for batch in batches for sample in batch]


def check_random_packing(random: np.random.Generator) -> None:
    lengths = random.integers(0, int(random.choice([6, 40])), random.integers(1, 120)).tolist()
    length, pool = int(random.integers(1, 50)), int(random.integers(1, 9))
    longer = str(random.choice(["split", "truncate", "drop"]))
    wanted = pieces_of(lengths, length, longer)
    if not wanted:
        return
    chunk = int(random.integers(1, 300))
    data = recordings(lengths, chunk).pack_sequences(length, -1, longer=cast(Any, longer), pool=pool)
    epoch, shuffle = int(random.integers(4)), bool(random.integers(4))
    world, size = int(random.choice([1, 2, 3, 8])), int(random.integers(1, 4))
    whole = read(data, epoch, batch_size=world * size, shuffle=shuffle)
    assert sorted(document for sample in flat(whole) for document in sample) == sorted(wanted)
    assert sum(map(len, whole)) == len(data)
    if not shuffle:
        assert flat(whole) == [documents_in(ZarrDataset(data)[i]) for i in range(len(data))]
    if len(data) < world:
        return
    options: dict[str, Any] = {"batch_size": size, "world_size": world, "shuffle": shuffle}
    ranks = [read(data, epoch, rank=rank, **options) for rank in range(world)]
    assert sorted(flat(flat(ranks))) == sorted(flat(whole))
    if shuffle:
        for number, batch in enumerate(whole):
            assert sorted(sample for one in ranks if number < len(one) for sample in one[number]) == sorted(batch)
    done = int(random.integers(len(ranks[0])))
    _, again = stopped_and_resumed(data, epoch, done, rank=0, **options)
    assert [[documents_in(one) for one in samples_of(batch)] for batch in again] == ranks[0][done:]


def test_each_document_comes_once_whole_on_any_ranks_and_after_resuming() -> None:
    for seed in range(tries(usual=8, large=300)):
        check_random_packing(np.random.default_rng(seed))


def test_little_is_padding_each_chunk_is_decoded_once_and_explain_says_it() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 900)
    data = recordings(lengths, 2000).pack_sequences(256, -1)
    dataset = dataset_of(data, 0, batch_size=8)
    padding = np.mean([(batch["x"] < 0).double().mean().item() for batch in dataset])
    assert padding < 0.02
    explained = dataset.explain()
    assert f"packed: 900 sequences in {len(data)} samples of 256 rows" in str(explained)
    assert sum(one.chunk_reads for one in explained.fields) <= 1.2 * -(-int(lengths.sum()) // 2000)
    assert read(data, 0) != read(data, 1)
    workers = zarrfeed.ZarrDataLoader(dataset_of(data, 0, batch_size=8), num_workers=2)
    delivered = [documents_in(one) for batch in workers for one in samples_of(batch)]
    assert sorted(delivered) == sorted(flat(read(data, batch_size=8)))


def test_targets_values_parts_and_stores_go_along() -> None:
    lengths = (3, 8, 5, 2)
    ends = np.cumsum(lengths)
    stores = [{"x": np.arange(end - rows, end)} for end, rows in zip(ends, lengths, strict=True)]
    data = zarrfeed.open(stores).pack_sequences(9, -1)
    assert sorted(flat(flat(read(data)))) == pieces_of(lengths, 9, "split")
    total = int(ends[-1])
    two = np.arange(2 * total, dtype="f4").reshape(total, 2)
    opened = zarrfeed.open({"x": np.arange(total), "two": two}, {"y": -np.arange(total)}).segments(ends)
    x, y = ZarrDataset(opened.pack_sequences(11, {"x": -1, "two": "nan", "y": 7}))[0]
    rows = x["x"].numpy()
    assert torch.equal(y["y"], torch.where(x["x"] < 0, 7, -x["x"]))
    assert np.array_equal(x["two"].numpy(), np.where(rows[:, None] < 0, np.nan, two[rows]), equal_nan=True)
    chosen = recordings((4, 6, 3, 5)).select(slice(4, None)).pack_sequences(9, -1)
    assert sorted(flat(flat(read(chosen)))) == pieces_of((4, 6, 3, 5), 9, "split")[1:]
    reverse = chosen.select([1, 0], keep_order=True)
    assert read(reverse, shuffle=False) == [read(chosen, shuffle=False)[0][::-1]]
    assert zarrfeed.stats(chosen)["x"].mean == np.arange(4, 18).mean()
    first, second = chosen.split((0.5, 0.5), by="sample", seed=0)
    assert sorted(flat(flat(read(first)) + flat(read(second)))) == pieces_of((4, 6, 3, 5), 9, "split")[1:]


def test_a_bad_chunk_costs_the_samples_that_need_it() -> None:
    array = zarr.create_array({}, shape=(60,), chunks=(10,), dtype="i8", compressors=None)
    array[:] = np.arange(60)
    store: Any = array.store
    buffer = store._store_dict["c/2"]
    store._store_dict["c/2"] = buffer[:3]
    data = zarrfeed.open({"x": array}).segments(range(5, 61, 5)).pack_sequences(10, -1, pool=1)
    dataset = ZarrIterableDataset(data, batch_size=1, faults=zarrfeed.Faults(on_error="skip"))
    with pytest.warns(zarrfeed.ChunkSkippedWarning):
        found = [document for batch in dataset for one in samples_of(batch) for document in documents_in(one)]
    assert not {row for one in found for row in one} & set(range(20, 30))
    assert {row for one in found for row in one} == {*range(20), *range(30, 60)}


def test_states_of_other_packings_are_refused_and_packings_print_compare_and_pickle() -> None:
    whole = recordings((4, 6, 3, 5))
    data = whole.pack_sequences(9, -1, pool=2)
    assert repr(data).endswith(".pack_sequences(9, value=-1, pool=2)")
    assert data == whole.pack_sequences(9, -1, pool=2)
    assert data != whole.pack_sequences(9, -1)
    assert read(pickle.loads(pickle.dumps(data))) == read(data)
    other = dataset_of(recordings((4, 6, 5, 3)).pack_sequences(9, -1, pool=2), 0, shuffle=False)
    with pytest.raises(ConfigError, match="rows"):
        other.load_state_dict(dataset_of(data, 0, shuffle=False).state_dict())


def test_next_targets_are_views_of_the_samples_one_row_later() -> None:
    data = zarrfeed.open(np.arange(100, dtype="u2")).cast("int64").window(range(9), stride=8).next_targets()
    assert [(one.part, one.shape) for one in data.fields] == [("samples", (8,)), ("targets", (8,))]
    x, y = next(iter(ZarrIterableDataset(data, batch_size=4)))
    assert x[:, 0].tolist() == [0, 8, 16, 24]
    assert torch.equal(y, x + 1)
    assert y.data_ptr() == x.data_ptr() + 8
    every = [ZarrDataset(data)[[1]], next(iter(ZarrIterableDataset(data))), ZarrDataset(data)[0]]
    assert [tuple(x.shape) for x, _ in every] == [(1, 8), (8,), (8,)]
    loader = zarrfeed.ZarrDataLoader(ZarrIterableDataset(data, batch_size=4), num_workers=1)
    assert torch.equal(next(iter(loader))[1], y)


def test_next_targets_of_documents_keep_what_is_said_of_their_rows() -> None:
    lengths = (4, 6, 1, 3)
    batch, targets = ZarrDataset(recordings(lengths).pack_sequences(10, -1).next_targets())[[0, 1]]
    assert sorted(targets) == ["positions", "segment_ids", "x"]
    same = batch["segment_ids"] == targets["segment_ids"]
    follows = same & (targets["segment_ids"] > 0)
    assert torch.equal(targets["x"][follows], batch["x"][follows] + 1)
    assert follows.sum() == sum(lengths) - len(lengths)
    x, y = ZarrDataset(recordings(lengths).pad_sequences(-1).next_targets())[[0, 2]]
    assert (x["x"].shape, x["length"].tolist(), sorted(y)) == ((2, 3), [3, 0], ["x"])
    with ZarrIterableDataset(recordings(lengths).pad_sequences(-1).next_targets(), return_index=True) as dataset:
        assert [len(x["x"]) for x, _, _ in dataset] == [3, 5, 0, 2]


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda: zarrfeed.open(np.arange(9)).pack_sequences(4), "the samples are one recording"),
        (lambda: recordings(positions=np.arange(31)).pack_sequences(4), "have an array of this name"),
        (lambda: recordings().pack_sequences(0), "length = 0"),
        (lambda: recordings().pack_sequences(4, longer=cast(Any, "cut")), "longer = 'cut'"),
        (lambda: recordings((5, 6)).pack_sequences(4, longer="drop"), "all 2 sequences are longer than 4 rows"),
        (lambda: recordings().pack_sequences(4, "edge"), "must be a number or 'nan'"),
        (lambda: recordings((5, 6)).segment_field(kind=[1, 2]).pack_sequences(4), "has one value for a sequence"),
        (lambda: recordings().window(range(3)).pack_sequences(4), "before"),
        (lambda: recordings().pack_sequences(4).window(range(2)), r"follows pack_sequences\(\)"),
        (lambda: recordings().next_targets(), r"window\(range\(n \+ 1\)\)"),
        (lambda: recordings().window(range(1)).next_targets(), "have no two rows"),
        (lambda: zarrfeed.open(np.arange(9), np.arange(9)).window(range(3)).next_targets(), "the samples have targets"),
        (lambda: zarrfeed.concat([recordings().window(range(3)).next_targets()] * 2), "next_targets"),
        (lambda: recordings().window(range(3)).next_targets().patch({"y": 2}), r"patch\(\) follows next_targets\(\)"),
    ],
)
def test_refusals_say_what_to_do(describe: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe()
