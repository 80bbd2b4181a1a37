"""Bugs that mixtures of other libraries have, or had, each with the thread that reports it: ours must not have them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import zarrfeed
from tests.support.mixtures import LENGTHS, Sources, dataset_of, mixture_of, order_of_ranks, read, write_sources
from zarrfeed import ZarrDataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

SOURCES = Sources.of()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_sources(tmp_path_factory.mktemp("bugs"))


def test_workers_do_not_deliver_the_same_sequence(paths: list[str]) -> None:
    """huggingface/datasets #7567: all workers had the generator of the same seed, so all made the same choices.

    Their sequences of sources were identical, and, of sources that were not split into shards, their samples.
    """
    loader = DataLoader(dataset_of(zarrfeed.mix(paths, (1, 1, 1), stop="first")), batch_size=None, num_workers=2)
    batches = [batch.tolist() for batch in read(loader)]
    first, second = batches[::2], batches[1::2]
    assert not set(itertools.chain(*first)) & set(itertools.chain(*second))
    sources = [
        np.searchsorted(np.cumsum(LENGTHS), list(itertools.chain(*batches)), side="right").tolist()
        for batches in (first, second)
    ]
    assert sources[0][: len(sources[1])] != sources[1]


def test_the_shuffle_of_a_source_is_not_lost_in_the_mixture(paths: list[str]) -> None:
    """huggingface/datasets #7156, #7196: sources that had been shuffled came in order once they were combined."""
    loader = ZarrDataLoader(dataset_of(zarrfeed.mix(paths, (7, 2, 1), stop=1500)), num_workers=2, timeout=240)
    epoch_order = np.concatenate(read(loader))
    source = np.searchsorted(np.cumsum(LENGTHS), epoch_order, side="right")
    for number in range(3):
        ours = epoch_order[source == number]
        assert (np.diff(ours[: LENGTHS[number]]) < 0).mean() > 0.2
        counts = np.bincount(ours - SOURCES.members[number][0], minlength=LENGTHS[number])
        assert counts.max() - counts.min() <= 2, "passes overlap by a batch of each worker"


def test_a_source_that_begins_again_has_a_new_order(paths: list[str]) -> None:
    """huggingface/datasets #7051: with "all_exhausted", a source that was exhausted was repeated in the same order."""
    with dataset_of(zarrfeed.mix(paths, (7, 2, 1), stop=1500)) as dataset:
        passes = SOURCES.check(mixture_of((7, 2, 1), 3), dataset.sample_order(0))
    for number in range(3):
        assert len(passes.whole(number)) >= 4
        passes.check_new_orders(number)


def test_epochs_are_not_the_same_mixture(paths: list[str]) -> None:
    """hiyouga/LlamaFactory #10672: one seed when the mixture is made, so every epoch had the same samples in one order.

    With a fixed number of steps an epoch, most samples of a large source then never came.
    """
    data = zarrfeed.mix(paths, (7, 2, 1), stop=60)
    epochs = [order_of_ranks(data, 1, epoch).tolist() for epoch in range(4)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len({tuple(data.source_of(epoch).tolist()) for epoch in epochs}) == 4
    seen = [sample for epoch in epochs for sample in epoch if sample < LENGTHS[0]]
    assert len(set(seen[: LENGTHS[0] - 48])) == LENGTHS[0] - 48, (
        "nothing of the first source comes twice before all came"
    )


def test_resuming_loses_and_repeats_no_sample(paths: list[str]) -> None:
    """huggingface/datasets #7901, #7444, #8408: states lacked the shuffle buffer, so resuming lost samples."""
    data = zarrfeed.mix(paths, (7, 2, 1), stop=400)
    whole = order_of_ranks(data, 1).tolist()
    for batches in (1, 2, 3, 17, 49):
        with dataset_of(data) as stopped, dataset_of(data) as resumed:
            taken = read(itertools.islice(stopped, batches))
            resumed.load_state_dict(stopped.state_dict())
            assert np.concatenate(taken + read(resumed)).tolist() == whole


def test_every_source_is_read_to_its_end(paths: list[str]) -> None:
    """huggingface/datasets #5812, #7792: the rule of the end was lost in a shuffle, samples in workers."""
    for num_workers in (0, 2):
        dataset = dataset_of(zarrfeed.mix(paths, (7, 2, 1), stop="all"))
        loader = ZarrDataLoader(dataset, num_workers=num_workers, timeout=240 if num_workers else 0)
        assert set(np.concatenate(read(loader)).tolist()) == set(range(sum(LENGTHS)))


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_no_rank_lacks_a_source(paths: list[str], world_size: int) -> None:
    """A schedule that is dealt round robin resonates with the ranks: of 1:1 on 2 ranks, each sees one source only.

    This is what google/grain 0.2.18 does for `MapDataset.mix([a, b], weights=[1, 1])[rank::2]`.
    """
    data = zarrfeed.mix(paths[:2], (1, 1), stop=480)
    for rank in range(world_size):
        with dataset_of(data, rank=rank, world_size=world_size) as dataset:
            counts: Any = np.bincount(data.source_of(dataset.sample_order(0)), minlength=2)
        assert abs(int(counts[0]) - int(counts[1])) <= 16
