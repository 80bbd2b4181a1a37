"""Whole recordings that are padded, and batches of about one length, against NumPy; every row holds its own index."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import DataLoader

import zarrfeed
from tests.support.examples import tries
from zarrfeed import ConfigError, Data, ZarrDataset, ZarrIterableDataset

#: Rows of each recording; one has none.
LENGTHS = (4, 1, 0, 9, 6, 2, 2, 7)


def recordings(lengths: Any = LENGTHS, rows: int = 5, **arrays: Any) -> Data:
    total = np.arange(int(np.sum(lengths)))
    return zarrfeed.open({"x": zarr.array(total, chunks=(rows,)), **arrays}).segments(np.cumsum(lengths))


def sequences_of(lengths: Any, most: int = 1000) -> list[tuple[int, ...]]:
    ends = np.cumsum(lengths)
    whole = [tuple(range(end - rows, end))[:most] for rows, end in zip(lengths, ends, strict=True)]
    return [one for one in whole if one]


def dataset_of(data: Data, epoch: int, **options: Any) -> ZarrIterableDataset:
    usual: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 5, "even": "off"}
    dataset = ZarrIterableDataset(data, **usual | options)
    dataset.set_epoch(epoch)
    return dataset


def stopped_and_resumed(
    data: Data, epoch: int, batches: int, **options: Any
) -> tuple[dict[str, Any], ZarrIterableDataset]:
    """Return the state of a dataset that has read some batches of an epoch, and a dataset that goes on from there."""
    dataset, again = dataset_of(data, epoch, **options), dataset_of(data, 0, **options)
    begun = iter(dataset)
    for _ in range(batches):
        next(begun)
    state = dataset.state_dict()
    again.load_state_dict(state)
    return state, again


def rows_of(batch: dict[str, Any]) -> list[tuple[int, ...]]:
    """Return the sequences of a batch, which is padded with -1 to the longest of them."""
    rows, lengths = batch["x"].numpy(), batch["length"].numpy()
    assert rows.shape == (len(lengths), lengths.max())
    assert (rows[np.arange(rows.shape[1]) >= lengths[:, None]] == -1).all()
    return [tuple(row[:length].tolist()) for row, length in zip(rows, lengths, strict=True)]


def read(data: Data, epoch: int = 0, **options: Any) -> list[list[tuple[int, ...]]]:
    return [rows_of(batch) for batch in dataset_of(data, epoch, **options)]


def test_batches_are_padded_to_their_longest_sequence() -> None:
    for most in (1000, 5):
        data = recordings().pad_sequences(-1, max_length=None if most == 1000 else most)
        wanted = sequences_of(LENGTHS, most)
        assert len(data) == len(wanted)
        in_order = read(data, shuffle=False)
        assert [row for batch in in_order for row in batch] == wanted
        assert sorted(row for batch in read(data) for row in batch) == wanted


def test_samples_have_their_own_rows_and_targets_and_values_go_along() -> None:
    total = sum(LENGTHS)
    opened = zarrfeed.open(
        {"x": np.arange(total), "two": np.arange(2 * total, dtype="f4").reshape(total, 2)}, {"y": -np.arange(total)}
    )
    data = opened.segments(np.cumsum(LENGTHS)).segment_field(name=list("abcdefgh")).pad_sequences({"x": -1, "y": 7})
    with pytest.raises(ConfigError, match="two"):
        opened.segments([total]).pad_sequences({"twoo": 1})
    data = opened.segments(np.cumsum(LENGTHS)).segment_field(name=list("abcdefgh")).pad_sequences(7)
    x, y = ZarrDataset(data)[[0, 2]]
    assert x["two"].shape == (2, 9, 2)
    assert y["y"][0].tolist() == [0, -1, -2, -3, 7, 7, 7, 7, 7]
    assert x["name"] == ["a", "d"]
    one = ZarrDataset(data)[1][0]
    assert (one["x"].tolist(), one["length"].item()) == ([4], 1)
    each = list(ZarrIterableDataset(data))
    assert [tuple(sample["x"].tolist()) for sample, _ in each] == sequences_of(LENGTHS)
    assert [len(sample["x"]) for sample, _ in DataLoader(ZarrDataset(data), batch_size=None)] == [4, 1, 9, 6, 2, 2, 7]
    collated = next(iter(DataLoader(ZarrDataset(data), batch_size=3)))
    assert collated[0]["two"].shape == (3, 9, 2)
    assert data.fields[-2].name == "length"


def test_workers_transforms_parts_and_stores_have_the_same_sequences() -> None:
    lengths = (3, 8, 5)
    ends = np.cumsum(lengths)
    arrays = [{"x": np.arange(end - rows, end)} for end, rows in zip(ends, lengths, strict=True)]
    data = zarrfeed.open(arrays).pad_sequences(-1)
    dataset = ZarrIterableDataset(data, batch_size=2, shuffle=True, seed=5)
    assert [rows_of(batch) for batch in zarrfeed.ZarrDataLoader(dataset, num_workers=2)] == read(data, batch_size=2)
    half = zarrfeed.open(arrays).select(slice(5, None)).pad_sequences(-1)
    assert read(half, shuffle=False) == [[tuple(range(5, 11)), tuple(range(11, 16))]]
    doubled = ZarrIterableDataset(data, batch_size=2, transform=lambda batch: batch["x"].sum(1) + batch["length"])
    assert torch.cat(list(doubled)).tolist() == [3 + 3 - 5, 52 + 8, 65 + 5]


def check_random_buckets(random: np.random.Generator) -> None:
    lengths = random.integers(0, 30, random.integers(1, 90))
    if not lengths.any():
        return
    world, size, pool = int(random.choice([1, 2, 3, 8])), int(random.integers(1, 4)), int(random.integers(1, 6))
    plain = recordings(lengths, int(random.integers(1, 50))).pad_sequences(-1)
    data = plain.bucket_by_length(world * size, pool=pool)
    epoch, shuffle = int(random.integers(4)), bool(random.integers(4))
    whole = read(data, epoch, batch_size=world * size, shuffle=shuffle)
    assert sorted(row for batch in whole for row in batch) == sequences_of(lengths)
    assert all(len(batch) == world * size for batch in whole[:-1])
    for first in range(0, len(whole), pool):  # no two batches of a pool overlap in their lengths
        full = sorted(sorted(map(len, batch)) for batch in whole[first : first + pool] if len(batch) == world * size)
        assert all(one[-1] <= following[0] for one, following in pairwise(full))
    if len(data) < world:
        return
    options: dict[str, Any] = {"batch_size": size, "world_size": world, "shuffle": shuffle}
    ranks = [read(data, epoch, rank=rank, **options) for rank in range(world)]
    for number, batch in enumerate(whole):
        assert sorted(row for one in ranks if number < len(one) for row in one[number]) == sorted(batch)
    done = int(random.integers(len(ranks[0])))
    state, again = stopped_and_resumed(data, epoch, done, rank=0, **options)
    assert [rows_of(batch) for batch in again] == ranks[0][done:]
    alone = dataset_of(data, 0, batch_size=world * size, shuffle=shuffle)
    alone.load_state_dict(state)
    assert [sorted(rows_of(batch)) for batch in alone] == [sorted(batch) for batch in whole[done:]]


def test_batches_of_about_one_length_are_the_same_on_any_ranks_and_after_resuming() -> None:
    for seed in range(tries(usual=5, large=300)):
        check_random_buckets(np.random.default_rng(seed))


def test_buckets_pad_less_are_drawn_anew_and_leave_out_samples_of_any_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 205)
    data = recordings(lengths, 100).pad_sequences(-1)
    bucketed = data.bucket_by_length(8, pool=10)

    def padding(batches: list[list[tuple[int, ...]]]) -> float:
        return 1 - sum(map(len, chain.from_iterable(batches))) / sum(
            len(batch) * max(map(len, batch)) for batch in batches
        )

    assert padding(read(data, batch_size=8)) > 0.4
    assert padding(read(bucketed, batch_size=8)) < 0.12
    assert read(bucketed, 0, batch_size=8) != read(bucketed, 1, batch_size=8)
    last = [np.mean(list(map(len, read(bucketed, epoch, batch_size=8)[-1]))) for epoch in range(8)]
    assert 12 < np.mean(last) < 38
    workers = zarrfeed.ZarrDataLoader(dataset_of(bucketed, 0, batch_size=8), num_workers=2)
    assert [rows_of(batch) for batch in workers] == read(bucketed, batch_size=8)


def test_samples_of_any_kind_have_lengths_that_are_named() -> None:
    data = zarrfeed.open(np.arange(40) % 4).bucket_by_length(10, pool=4, lengths=np.arange(40) % 4)
    batches = list(ZarrIterableDataset(data, batch_size=10, shuffle=True))
    assert sorted(batch.unique().item() for batch in batches) == [0, 1, 2, 3]


def test_guesses_lead_to_what_is_there(tmp_path: Path) -> None:
    np.arange(9, dtype="uint16").tofile(tmp_path / "train.bin")
    with pytest.raises(ConfigError, match=r"zarrfeed.open\(np.memmap\("):
        zarrfeed.open(tmp_path / "train.bin")
    opened: Any = recordings()
    for name, hint in (("crop", "random_crop"), ("sequences", "pad_sequences"), ("bucket", "bucket_by_length")):
        with pytest.raises(AttributeError, match=hint):
            getattr(opened, name)


def test_they_print_compare_pickle_and_are_explained() -> None:
    whole = recordings()
    data = whole.pad_sequences(-1, max_length=5).bucket_by_length(3, pool=2)
    assert repr(data).endswith(".pad_sequences(value=-1, max_length=5).bucket_by_length(3, pool=2)")
    assert data == whole.pad_sequences(-1, max_length=5).bucket_by_length(3, pool=2)
    assert data != whole.pad_sequences(-1, max_length=5).bucket_by_length(3)
    assert read(pickle.loads(pickle.dumps(data))) == read(data)
    explained = str(dataset_of(data, 0).explain())
    assert "shuffles batches of about one length" in explained
    assert "batches of 3 samples of about one length, from pools of 2 batches" in explained
    assert "shuffle=True" in repr(dataset_of(data, 0))


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda: zarrfeed.open(np.arange(9)).pad_sequences(), "the samples are one recording"),
        (lambda: recordings(length=np.arange(31)).pad_sequences(), "have an array of this name"),
        (lambda: recordings().pad_sequences(max_length=0), "max_length = 0"),
        (lambda: recordings().bucket_by_length(4), r"call pad_sequences\(\) before it, or name lengths="),
        (lambda: recordings().bucket_by_length(4, lengths=np.ones((31, 2))), "lengths"),
        (lambda: recordings().pad_sequences().bucket_by_length(4).select([0]), r"call bucket_by_length\(\) last"),
        (lambda: recordings().pad_sequences().bucket_by_length(4).weight(np.ones(7)), "cannot be weighted"),
        (lambda: dataset_of(recordings().pad_sequences().bucket_by_length(4), 0), "batch_size = 3, must divide that"),
        (lambda: ZarrDataset(recordings().pad_sequences().bucket_by_length(4)), "ZarrDataset has no epochs"),
    ],
)
def test_refusals_say_what_to_do(describe: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe()
