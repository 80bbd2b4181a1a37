"""Lightning Fabric and pytorch-ignite on two ranks: every sample exactly once, and the same after a stop.

All cases run in the same two processes, forked from one that has imported lightning, which takes seconds; a test looks
at one case.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.integration.test_huggingface import BATCH_SIZE, KEPT, WORLD_SIZE, N, Results, launch
from tests.support import warm

STEPS = -(-KEPT // WORLD_SIZE // BATCH_SIZE)

pytestmark = pytest.mark.timeout(300)

Batches = list[list[int]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launch(
        "tests.support.loops_rank",
        warm.command(*warm.LIGHTNING),
        tmp_path_factory.mktemp("loops"),
    )


def counts(epochs: tuple[Batches, ...]) -> Counter[int]:
    """Count the samples that all ranks got in an epoch."""
    return Counter(sample for batches in epochs for batch in batches for sample in batch)


def assert_exact(of_ranks: list[list[Batches]]) -> None:
    """Check that in each epoch, each of the samples that make ranks even came once, in another order."""
    for of_epoch in zip(*of_ranks, strict=True):
        seen = counts(of_epoch)
        assert len(seen) == seen.total() == KEPT
        assert {len(batches) for batches in of_epoch} == {STEPS}
    for epochs in of_ranks:
        assert len({str(batches) for batches in epochs}) == len(epochs)


@pytest.mark.parametrize("kind", ["zarr", "workers", "batches", "samples"])
def test_fabric_injects_no_sampler_and_each_rank_reads_its_share(ranks: Results, kind: str) -> None:
    results = [rank["fabric"] for rank in ranks]
    assert [rank["rank"] for rank in results] == [[0, 2], [1, 2]]
    assert_exact([rank[kind]["whole"] for rank in results])
    for rank in results:
        assert rank[kind]["sampler"] != "DistributedSampler"
        assert rank[kind]["length"] == STEPS


def test_fabric_splits_a_map_style_dataset_by_its_own_sampler(ranks: Results) -> None:
    """So a `ZarrDataset` needs nothing either; torch's sampler repeats samples where ranks would be uneven."""
    of_ranks = [rank["fabric"]["map"] for rank in ranks]
    assert {rank["sampler"] for rank in of_ranks} == {"DistributedSampler"}
    for of_epoch in zip(*(rank["whole"] for rank in of_ranks), strict=True):
        seen = counts(of_epoch)
        assert (len(seen), seen.total()) == (N, N + 1)


@pytest.mark.parametrize("kind", ["zarr", "workers"])
def test_fabric_saves_the_loader_and_goes_on_in_the_middle_of_an_epoch(ranks: Results, kind: str) -> None:
    for rank in ranks:
        assert rank["fabric"][kind]["resumed"] == rank["fabric"][kind]["whole"]


def epochs_of(batches: Batches, length: int = STEPS) -> list[Batches]:
    assert len(batches) % length == 0
    return [batches[begin : begin + length] for begin in range(0, len(batches), length)]


@pytest.mark.parametrize("kind", ["zarr", "workers", "batches"])
def test_an_ignite_engine_takes_epochs_one_after_the_other(ranks: Results, kind: str) -> None:
    of_ranks: list[dict[str, Any]] = [rank["ignite"][kind] for rank in ranks]
    assert {rank["length"] for rank in of_ranks} == {STEPS}
    assert_exact([epochs_of(rank["whole"]) for rank in of_ranks])
    assert {len(rank["whole"]) for rank in of_ranks} == {3 * STEPS}


@pytest.mark.parametrize("stop", [5, 0], ids=["in an epoch", "at its end"])
@pytest.mark.parametrize("kind", ["zarr", "workers"])
def test_an_ignite_checkpoint_resumes_exactly(ranks: Results, kind: str, stop: int) -> None:
    for rank in ranks:
        assert rank["ignite"][kind][f"resumed/{stop}"] == rank["ignite"][kind]["whole"]


def test_an_ignite_epoch_that_is_none_of_the_data_goes_through_the_data(ranks: Results) -> None:
    """42 batches in epochs of 7: two epochs of the data with 18 each, and 6 batches of the third."""
    for rank in ranks:
        short = rank["ignite"]["short"]
        assert short["whole"] == rank["ignite"]["zarr"]["whole"][:42]
        assert short["resumed"] == short["whole"]
