"""Packed documents of several corpora, mixed by weights or one after another; a row holds its index and corpus."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from tests.parity.test_packed_sequences import Document, documents_in, flat, pieces_of, read, samples_of
from tests.parity.test_sequences import dataset_of
from tests.support.examples import tries
from zarrfeed import ConfigError, Data, ZarrDataset, ZarrIterableDataset

#: The first index of the next corpus.
CORPUS = 1_000_000


def corpora(*lengths: Any, chunk: int = 37) -> list[Data]:
    """Return documents of so many rows for each corpus."""
    opened = []
    for number, one in enumerate(lengths):
        rows = np.arange(int(np.sum(one))) + number * CORPUS
        opened.append(zarrfeed.open({"x": zarr.array(rows, chunks=(chunk,))}).segments(np.cumsum(one)))
    return opened


def numbers_of(data: list[Data]) -> dict[tuple[Document, ...], int]:
    """Return the number of each packed sample by its documents, counted through all corpora."""
    samples = flat([flat(read(one, shuffle=False, batch_size=8)) for one in data])
    return {tuple(sample): number for number, sample in enumerate(samples)}


def check_random_mixture(random: np.random.Generator) -> None:
    lengths = [random.integers(0, 30, random.integers(5, 60)) + 1 for _ in range(int(random.integers(2, 4)))]
    length, pool = int(random.integers(5, 40)), int(random.integers(1, 9))
    packed = [one.pack_sequences(length, -1, pool=pool) for one in corpora(*lengths, chunk=int(random.integers(5, 99)))]
    weights = random.integers(1, 9, len(packed)).tolist()
    numbers = numbers_of(packed)
    assert sorted(document for sample in numbers for document in sample) == sorted(
        tuple(row + number * CORPUS for row in document)
        for number, one in enumerate(lengths)
        for document in pieces_of(one.tolist(), length, "split")
    )
    mixed = zarrfeed.mix(packed, weights, stop="all")
    epoch, size = int(random.integers(3)), int(random.integers(1, 4))
    got = read(mixed, epoch, shuffle=False, batch_size=size)
    # Oracle: a mixture of arrays that have the number of each packed sample.
    first = np.cumsum([0, *map(len, packed)])
    plain = [np.arange(begin, end) for begin, end in pairwise(first)]
    wanted = dataset_of(zarrfeed.mix(plain, weights, stop="all"), epoch, shuffle=False, batch_size=size)
    assert [[numbers[tuple(sample)] for sample in batch] for batch in got] == [batch.tolist() for batch in wanted]
    shuffled = read(mixed, epoch, batch_size=size)
    assert [corpora_of(batch) for batch in shuffled] == [corpora_of(batch) for batch in got]
    assert {tuple(sample) for sample in flat(shuffled)} <= {*numbers}
    if len(got) > 2:
        check_ranks_and_states(mixed, random)


def corpora_of(batch: list[list[Document]]) -> list[int]:
    return sorted(sample[0][0] // CORPUS for sample in batch)


def check_ranks_and_states(mixed: Data, random: np.random.Generator) -> None:
    world, epoch = int(random.choice([1, 2, 3])), int(random.integers(3))
    whole = read(mixed, epoch, batch_size=2 * world)
    ranks = [read(mixed, epoch, batch_size=2, world_size=world, rank=rank) for rank in range(world)]
    for number, batch in enumerate(whole):
        assert sorted(sample for one in ranks if number < len(one) for sample in one[number]) == sorted(batch)
    dataset = dataset_of(mixed, epoch, batch_size=2 * world)
    begun, done = iter(dataset), int(random.integers(len(whole)))
    for _ in range(done):
        next(begun)
    state = dataset.state_dict()
    rest = []
    for rank in range(3):  # goes on on three ranks
        again = dataset_of(mixed, 0, batch_size=1, world_size=3, rank=rank)
        again.load_state_dict(state)
        rest += [tuple(sample) for batch in packed_rows(again) for sample in batch]
    assert sorted(rest) == sorted(tuple(sample) for batch in whole[done:] for sample in batch)


def packed_rows(dataset: ZarrIterableDataset) -> list[list[list[Document]]]:
    return [[documents_in(one) for one in samples_of(batch)] for batch in dataset]


def test_a_mixture_of_packed_corpora_is_that_of_their_samples_on_any_ranks() -> None:
    for seed in range(tries(usual=5, large=200)):
        check_random_mixture(np.random.default_rng(seed))


def test_documents_that_are_mixed_first_are_packed_alike() -> None:
    first, second = corpora([3, 8, 5, 2, 9, 9, 1], [4, 4, 30, 2])
    packed = zarrfeed.mix([first.pack_sequences(16, -1), second.pack_sequences(16, -1)], [7, 3])
    mixed = zarrfeed.mix([first, second], [7, 3]).pack_sequences(16, -1)
    assert read(mixed, 1) == read(packed, 1)
    assert packed.source_of([0, packed.resolved.choice.num_samples - 1]).tolist() == [0, 1]


def test_parts_and_weighted_samples_of_packed_corpora_are_mixed() -> None:
    first, second = (one.pack_sequences(16, -1, pool=2) for one in corpora([3, 8, 5, 2] * 9, [4, 4, 13, 2] * 5))
    part, rest = first.split((0.6, 0.4), by="sample", seed=1)
    weights = np.arange(len(second)) % 3
    data = zarrfeed.mix([part, second.weight(weights, n=60)], [1, 1], stop="all")
    found = [tuple(sample) for sample in flat(read(data, batch_size=4))]
    numbers = numbers_of([first, second])
    counts = np.bincount([numbers[one] for one in found], minlength=len(numbers))
    assert {*np.flatnonzero(counts[: len(first)])} == {numbers[tuple(one)] for one in flat(read(part, shuffle=False))}
    assert (counts[len(first) :][weights == 0] == 0).all()
    assert (counts[len(first) :][weights > 0] > 0).all()
    assert len(rest) + len(part) == len(first)


def test_packed_corpora_one_after_another_keep_their_samples() -> None:
    corpus = corpora([3, 8, 5, 2, 9], [4, 4, 30, 2])
    packed = [one.pack_sequences(16, -1) for one in corpus]
    data = zarrfeed.concat([packed[0], packed[1].select(slice(1, None))])
    wanted = [*flat(read(packed[0], shuffle=False)), *flat(read(packed[1], shuffle=False))[1:]]
    assert flat(read(data, shuffle=False)) == wanted
    x, y = ZarrDataset(data.cast("float32").next_targets())[[0, 1]]
    assert (x["x"].dtype, tuple(y["segment_ids"].shape)) == (torch.float32, (2, 15))
    assert zarrfeed.stats(data)["x"].count == sum(len(document) for sample in wanted for document in sample)


def test_workers_deliver_the_samples_of_a_mixture_and_explain_counts_them() -> None:
    packed = [one.pack_sequences(16, -1) for one in corpora([3, 8, 5, 2] * 9, [4, 4, 13, 2] * 5)]
    data = zarrfeed.mix(packed, [7, 3])
    loader = zarrfeed.ZarrDataLoader(dataset_of(data, 1, batch_size=4), num_workers=2)
    with_workers = sorted(row for batch in loader for row in batch["x"].tolist())
    assert with_workers == sorted(row for batch in dataset_of(data, 1, batch_size=4) for row in batch["x"].tolist())
    assert "packed: 56 sequences" in str(dataset_of(data, 0).explain())


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda a, b: [a.pack_sequences(8), b.pack_sequences(9)], "is packed to 9 rows, .* to 8"),
        (lambda a, b: [a.pack_sequences(8), b], "is not packed, and others are"),
        (lambda a, b: [a, b.pack_sequences(8)], "is not packed, and others are"),
        (lambda a, b: [a.pack_sequences(8), b.pack_sequences(8, -1)], "padding has another value"),
        (lambda a, b: [a.pack_sequences(8).next_targets(), b.pack_sequences(8)], r"call next_targets\(\) after"),
    ],
)
def test_corpora_that_are_not_packed_alike_are_refused(describe: Callable[..., list[Data]], message: str) -> None:
    for join in (zarrfeed.mix, zarrfeed.concat):
        with pytest.raises(ConfigError, match=message):
            join(describe(*corpora([3, 4], [5, 6])))


def test_a_corpus_without_a_document_that_fits_is_refused() -> None:
    with pytest.raises(ConfigError, match="a source of the mixture has no sequence"):
        zarrfeed.mix(corpora([3, 4], [50])).pack_sequences(8, longer="drop")
