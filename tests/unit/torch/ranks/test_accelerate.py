"""A prepared loader tells accelerate its remainder, so that `gather_for_metrics` returns each sample once."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from zarrfeed import ZarrIterableDataset
from zarrfeed.plan.schedule.state import SavedRun
from zarrfeed.plan.shares.partition import Consumer, Division
from zarrfeed.torch.ranks.accelerate import _remainder


def gathered_last_batch(samples: int, ranks: int, **options: Any) -> tuple[list[int], list[int]]:
    """Return what comes before the last batch of all ranks, and what accelerate keeps of that."""
    before, last, remainders = [], [], set()
    for rank in range(ranks):
        dataset = ZarrIterableDataset(np.arange(samples), rank=rank, world_size=ranks, num_threads=1, **options)
        dataset.session.is_gathered = True  # as a prepared loader says
        batches = [batch.tolist() for batch in dataset]
        before += batches[:-1]
        last.append(batches[-1])
        assert dataset.session.cursor is not None
        remainders.add(_remainder(dataset.session.cursor))
    assert len({len(batch) for batch in last}) == 1, "accelerate gathers tensors of one shape"
    (remainder,) = remainders
    gathered = list(itertools.chain(*last))
    return list(itertools.chain(*before)), gathered[:remainder] if remainder else gathered


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("samples", "ranks", "batch_size"),
    [(97, 2, 8), (97, 2, 7), (97, 2, 49), (97, 3, 10), (97, 4, 10), (97, 4, 8), (96, 4, 5), (5, 8, 2), (1001, 8, 16)],
)
def test_gathered_samples_are_all_samples_once(samples: int, ranks: int, batch_size: int, shuffle: bool) -> None:
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "seed": 1}
    before, kept = gathered_last_batch(samples, ranks, even="repeat", **options)
    assert sorted(before + kept) == list(range(samples))
    if samples >= ranks:
        before, kept = gathered_last_batch(samples, ranks, even="drop", **options)
        assert len(set(before + kept)) == len(before + kept) == samples // ranks * ranks, "nothing is cut off"


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_ranks_exchange_samples_of_the_last_batch_alone(num_workers: int) -> None:
    """Global batches stay as they are, so a state of a loader that was not prepared goes on in one that is."""
    plain = Division(97, 4, num_workers, 5, "repeat")
    prepared = replace(plain, repeats_last=True)
    assert plain == prepared
    assert SavedRun(plain, 2).to_json() == SavedRun(prepared, 2).to_json()

    def positions(division: Division, rank: int, worker: int) -> list[int]:
        share = division.share(Consumer(rank, 4, worker, num_workers))
        return [*(share.first + share.stride * step for step in range(share.count)), *share.tail.tolist()]

    of_plain, of_prepared = (
        [[positions(division, rank, worker) for worker in range(num_workers)] for rank in range(4)]
        for division in (plain, prepared)
    )
    last = plain.last_batch
    final = (plain.batches(0) - 1) % num_workers  # the worker of the last batch
    for rank in range(4):
        for worker in range(num_workers):
            end = -last if worker == final else None
            assert of_plain[rank][worker][:end] == of_prepared[rank][worker][:end]
    for division in (of_plain, of_prepared):
        everything = [position for rank in division for worker in rank for position in worker]
        assert sorted(everything) == list(range(100))
    ends = [of_prepared[rank][final][-last:] for rank in range(4)]
    assert list(itertools.chain(*ends)) == list(range(100 - 4 * last, 100))
