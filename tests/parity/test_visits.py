"""Visits of blocks with samples that come often: few where many blocks are open at once, two on average elsewhere.

Every sample holds its own index in the array. The arrays are small enough that memory opens half of their blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.parity.test_weights import balanced, check_counts, expected_of, most_among_neighbours, values
from tests.support.examples import examples
from tests.support.mixtures import dataset_of
from tests.support.runs import Int64, Run
from zarrfeed import Data

N, CHUNK = 9000, 12
LABEL = np.random.default_rng(0).choice(5, N, p=[0.7, 0.2, 0.07, 0.02, 0.01])
EXPECTED = expected_of(balanced(LABEL))
#: A budget that opens few blocks at once.
SMALL = "6MiB"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    path = tmp_path_factory.mktemp("visits") / "x"
    x = np.broadcast_to(np.arange(N)[:, None], (N, 128)).astype("i4")
    return zarrfeed.open({"x": zarr.create_array(path, data=x, chunks=(CHUNK, 128))}).balance(LABEL)


@pytest.fixture(scope="module")
def run(data: Data) -> Run:
    return Run.of(data, batch_size=8)


@pytest.mark.parametrize("budget", [None, SMALL])
def test_a_chunk_is_decoded_about_once_if_many_blocks_are_open(data: Data, budget: Any) -> None:
    with dataset_of(data, memory_budget=budget) as dataset:
        for epoch in range(2):
            explained, before = dataset.explain(), dataset.stats().chunks_read
            taken = np.concatenate([values(batch) for batch in dataset])
            check_counts(taken, EXPECTED)
            assert np.array_equal(taken, dataset.sample_order(epoch))
            read, shares = dataset.stats().chunks_read - before, explained.weights
            assert read == pytest.approx(explained.fields[0].chunk_reads, rel=0.02)
            assert shares is not None
            if budget is None:
                assert shares.visits <= 1.1 * N // CHUNK
                assert read < 1.2 * N / CHUNK
            else:
                assert shares.visits > 1.4 * N / CHUNK
                assert "more memory_budget reads a block about once" in str(explained)


def test_repetitions_are_spread_as_independent_draws_are(run: Run) -> None:
    """In the order of all ranks; on one of 4 ranks a sample comes up to twice as often among 64 neighbours."""
    rng, weights = np.random.default_rng(2), balanced(LABEL)
    draws = [rng.choice(N, N, p=weights / weights.sum()) for _ in range(4)]
    orders = [run.on(1, 0, epoch).sample_order() for epoch in range(4)]
    assert max(map(most_among_neighbours, orders)) <= max(map(most_among_neighbours, draws))
    of_ranks = [np.concatenate(batches) for batches in run.on(4, 0, 1).all_batches()]
    assert max(map(most_among_neighbours, of_ranks)) <= 2 * max(map(most_among_neighbours, draws))
    assert (EXPECTED[LABEL == 4] > 15).all(), "the rarest samples come often"
    for order in orders:
        distinct = [len(np.unique(part[LABEL[part] == 4])) for part in np.array_split(order, 9)]
        assert min(distinct) > 0.4 * np.count_nonzero(LABEL == 4), "a ninth of an epoch has many of them"


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("workers", [0, 3])
def test_the_order_does_not_depend_on_who_reads_it(run: Run, ranks: int, workers: int) -> None:
    whole, one = run.on(1, 0, 3).sample_order(), run.on(ranks, workers, 3)
    if not workers:
        assert np.array_equal(one.sample_order(), whole)
    taken = np.concatenate([batch for batches in one.all_batches() for batch in batches])
    assert np.array_equal(np.sort(taken), np.sort(whole))


@examples(20)
@given(st.integers(0, 9), st.lists(st.integers(0, 120), min_size=2, max_size=2))
def test_an_epoch_goes_on_exactly_on_other_ranks(run: Run, epoch: int, stops: list[int]) -> None:
    resumed, delivered = run.on(1, 0, epoch), [np.zeros(0, np.int64)]
    for ranks, workers, taken in zip((8, 3), (0, 2), stops, strict=True):
        delivered += [batch for batches in resumed.all_batches() for batch in batches[:taken]]
        resumed = resumed.after(taken, ranks, workers)
    delivered += [batch for batches in resumed.all_batches() for batch in batches]
    assert np.array_equal(np.sort(np.concatenate(delivered)), np.sort(run.on(1, 0, epoch).sample_order()))


def read(data: Data, state: dict[str, Any] | None, stop: int | None = None, **options: Any) -> tuple[Int64, Any]:
    """Return the samples of the batches up to `stop` of a dataset that goes on from a state, and its state then."""
    with dataset_of(data, **options) as dataset:
        if state is not None:
            dataset.load_state_dict(state)
        taken = [np.zeros(0, np.int64)]
        for number, batch in enumerate(dataset, start=1):
            taken.append(values(batch))
            if number == stop:
                break
        return np.concatenate(taken), dataset.state_dict()


@pytest.mark.parametrize("budgets", [(None, SMALL), (SMALL, None)])
def test_a_state_names_the_visits_of_its_epoch_for_runs_with_another_memory(data: Data, budgets: Any) -> None:
    whole, _ = read(data, None, memory_budget=budgets[0])
    begun, state = read(data, None, 50, memory_budget=budgets[0])
    assert ("repeats" in state) == (budgets[0] is None)
    rest, _ = read(data, state, memory_budget=budgets[1])
    assert np.array_equal(np.concatenate([begun, rest]), whole)


def test_a_state_with_damaged_visits_is_refused(data: Data) -> None:
    _, state = read(data, None, 5)
    with dataset_of(data) as dataset, pytest.raises(zarrfeed.ConfigError, match="the state is damaged"):
        dataset.load_state_dict({**state, "repeats": 0})


def test_weights_that_change_choose_the_visits_of_their_epochs(data: Data) -> None:
    """Even weights need one visit; balanced ones, named later, few; a state of their epoch goes on with three ranks."""
    losses = balanced(LABEL)
    even = data.with_weights(np.ones(N))
    with dataset_of(even) as dataset:
        loader = zarrfeed.ZarrDataLoader(dataset, num_workers=1, persistent_workers=True)
        assert len(np.unique(np.concatenate([values(batch) for batch in loader]))) == N
        dataset.set_sample_weights(losses)
        taken = []
        for number, batch in enumerate(loader, start=1):
            taken.append(values(batch))
            if number == 100:
                state = loader.state_dict()
                break
        assert "repeats" in state
    for rank in range(3):
        with dataset_of(even, rank=rank, world_size=3) as dataset:
            dataset.set_sample_weights(losses)
            dataset.load_state_dict(state)
            taken += [values(batch) for batch in dataset]
    check_counts(np.concatenate(taken), EXPECTED)
