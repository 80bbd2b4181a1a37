"""Lanes and mix that are chosen: near a perfect shuffle, few extra reads, inside the budget, for any world size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.flat import iterable_dataset
from zarrfeed import ConfigError, ZarrIterableDataset
from zarrfeed.plan.budget.mixing import (
    TYPICAL_BATCH,
    MixingLimits,
    choose_lanes,
    choose_mixing,
    expected_mix,
    perfect_mix,
)
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.rank_lanes import LANE_COUNTS

ROWS = 16
#: Blocks from which a batch of 64 samples of a perfect shuffle draws 47.5, on average.
BLOCKS = 98
BATCH = 64


def order_of(num_samples: int, block_rows: int = ROWS, *, mix: int = 1) -> Order:
    return Order(num_samples, block_rows, shuffle=True, seed=0, lanes=1, mix=mix)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an array of `BLOCKS` chunks, the last of them short, whose items are the index of their sample."""
    path = tmp_path_factory.mktemp("mixing") / "x"
    n = BLOCKS * ROWS - 3
    array = zarr.create_array(path, shape=(n, 8), chunks=(ROWS, 8), dtype="i8")
    array[:] = np.repeat(np.arange(n), 8).reshape(n, 8)
    return str(path)


def make(store: str, **options: Any) -> ZarrIterableDataset:
    return iterable_dataset(store, batch_size=BATCH, shuffle=True, return_index=True, **options)


def indices(dataset: ZarrIterableDataset) -> list[int]:
    return [int(i) for _, index in dataset for i in index]


@pytest.mark.parametrize(
    ("num_samples", "block_rows", "room", "expected"),
    [
        (8192, 16, 16_000, 64),  # even cuts cost nothing; an eighth of the memory
        (8192, 16, 100, 2),  # half of the memory
        (10_000, 16, 10**6, 48),  # uneven: at most a tenth more reads
        (100, 100, 10**6, 1),  # one chunk
        (3, 1, 10**6, 2),
        (200, 10, 10**6, 8),  # small: mixing counts more than reading twice
    ],
)
def test_lanes_follow_from_layout_and_memory(num_samples: int, block_rows: int, room: int, expected: int) -> None:
    assert choose_lanes(order_of(num_samples, block_rows), MixingLimits(1, room)) == expected


@pytest.mark.parametrize(("lanes_in_an_eighth", "expected"), [(16, 32), (64, 64)])
def test_a_batch_that_is_not_mixed_well_gets_a_quarter_of_the_memory(lanes_in_an_eighth: int, expected: int) -> None:
    rows, room = 4096, lanes_in_an_eighth * 4096 * 8
    order = order_of(2560 * rows, rows)
    assert {choose_lanes(order, MixingLimits(b, room // b)) for b in (8, 64, 512)} == {expected}


@pytest.mark.parametrize("batch_size", [1, 8, 16, 128])
def test_the_choice_is_the_same_for_every_batch_size(store: str, batch_size: int) -> None:
    """Four ranks with batches of 16 are to deliver the global batches of one rank with batches of 64."""
    with make(store) as dataset, ZarrIterableDataset(store, batch_size=batch_size, shuffle=True) as other:
        assert dataset.explain().mix > 1
        assert np.array_equal(dataset.sample_order(3), other.sample_order(3))


def test_an_idle_budget_is_used_to_mix(store: str) -> None:
    """With lanes alone a batch would draw from 9 of 47 blocks; more lanes would decode half of the chunks twice."""
    with make(store) as dataset:
        explained = dataset.explain()
        assert explained.ideal_chunks_per_batch == pytest.approx(47.5, abs=0.5)
        assert explained.chunks_per_batch > 0.8 * explained.ideal_chunks_per_batch
        assert explained.fields[0].amplification < 1.1
        page = str(explained)
        assert f"a batch draws from {explained.chunks_per_batch:.1f} distinct blocks" in page
        assert f"a batch of a perfect shuffle would draw from {explained.ideal_chunks_per_batch:.1f}" in page
        seen = indices(dataset)
        assert sorted(seen) == list(range(BLOCKS * ROWS - 3))
        drawn = [len({i // ROWS for i in seen[at : at + BATCH]}) for at in range(0, len(seen) - BATCH, BATCH)]
        assert np.mean(drawn) > 0.8 * explained.ideal_chunks_per_batch
        assert dataset.stats().chunks_read < 1.1 * BLOCKS


@examples(200)
@given(
    num_samples=st.integers(1, 100_000),
    block_rows=st.integers(1, 5000),
    batch_size=st.integers(1, 2000),
    room=st.integers(1, 20_000),
)
def test_what_is_chosen_fits_in_the_memory_and_cuts_few_blocks(
    num_samples: int, block_rows: int, batch_size: int, room: int
) -> None:
    order = order_of(num_samples, min(num_samples, block_rows))
    lanes, mix = choose_mixing(order, MixingLimits(batch_size, room))
    assert lanes in LANE_COUNTS
    assert lanes <= num_samples
    assert 1 <= mix <= order.num_blocks
    chosen = Order(num_samples, order.block_rows, shuffle=True, seed=0, lanes=lanes, mix=mix)
    if (lanes, mix) != (1, 1):
        assert chosen.open_batches(batch_size) <= room
        assert lanes * mix * order.block_rows <= room * batch_size / 2
    extra = len(chosen.plan(0).segment_block) - order.num_blocks
    assert extra <= max(0.1 * order.num_blocks, min(8, order.num_blocks) - 1)
    # More of either is taken only while the mix is not good yet.
    if mix > 1:
        assert expected_mix(lanes, mix - 1, TYPICAL_BATCH) < 0.9 * perfect_mix(order, TYPICAL_BATCH)


def test_the_choice_is_the_same_for_up_to_8_ranks(store: str) -> None:
    chosen = set()
    for world_size in (1, 2, 3, 8):
        with make(store, rank=0, world_size=world_size) as dataset:
            explained = dataset.explain()
            chosen.add((explained.lanes, explained.mix))
    assert len(chosen) == 1
    epoch_orders = []
    for world_size in (1, 4):
        shares = [make(store, rank=r, world_size=world_size, even="off") for r in range(world_size)]
        epoch_order = np.full(BLOCKS * ROWS - 3, -1)
        for rank, share in enumerate(shares):
            epoch_order[rank::world_size] = indices(share)
            share.close()
        epoch_orders.append(epoch_order)
    assert np.array_equal(epoch_orders[0], epoch_orders[1])


def test_a_small_budget_is_kept(store: str) -> None:
    small = make(store, memory_budget="64KiB", num_threads=1).explain()
    assert small.memory_bytes <= 64 << 10
    assert small.lanes * small.mix < make(store).explain().lanes * make(store).explain().mix


def test_what_the_user_names_is_taken(store: str) -> None:
    assert (make(store, lanes=8).explain().mix, make(store, lanes=64).explain().lanes) == (1, 64)
    assert make(store, lanes=6, mix=3).explain().mix == 3
    named = make(store, mix=2).explain()
    assert named.mix == 2
    assert named.lanes in LANE_COUNTS


def test_a_state_of_an_earlier_version_goes_on_in_its_own_order(store: str) -> None:
    """Such a state has the lanes of its order beside its position, and its mix, 1, in the description of the order."""
    old = make(store, lanes=8, mix=1)
    epoch_order = old.sample_order(0)
    passed = iter(old)
    used = [int(i) for _ in range(3) for i in next(passed)[1]]
    state = passed.state_dict()
    assert state.pop("mix") == 1
    assert (state["lanes"], state["order"]["mix"]) == (8, 1)
    old.close()
    with make(store) as dataset:
        assert dataset.explain().mix > 1
        dataset.load_state_dict(state)
        assert used + indices(dataset) == epoch_order.tolist()
        assert indices(dataset) == dataset.sample_order(1).tolist(), "the next epoch has the mix that is chosen"


def test_the_mix_of_a_state_serves_its_epoch(store: str) -> None:
    """A mix that was chosen may depend on the budget: that of the run that was saved goes on."""
    whole = make(store)
    epoch_order, passed = whole.sample_order(0), iter(whole)
    used = [int(i) for _ in range(5) for i in next(passed)[1]]
    state = passed.state_dict()
    whole.close()
    with make(store, lanes=6) as other:
        other.load_state_dict(state)
        assert used + indices(other) == epoch_order.tolist()
        assert indices(other) == other.sample_order(1).tolist()
    with make(store, mix=2) as named, pytest.raises(ConfigError, match="mix was 7, is 2"):
        named.load_state_dict(state)
    for damaged in (0, 10**6):
        with make(store) as dataset, pytest.raises(ConfigError, match=r"the state is damaged: .*mix"):
            dataset.load_state_dict(state | {"order": state["order"] | {"mix": damaged}})


def test_layouts_may_be_in_memory_or_of_one_block(tmp_path: Path) -> None:
    one = zarr.create_array(tmp_path / "one", shape=(3, 2), chunks=(3, 2), dtype="f4")
    assert ZarrIterableDataset(one, batch_size=2, shuffle=True).explain().mix == 1
    held = ZarrIterableDataset(np.arange(1000), batch_size=8, shuffle=True, return_index=True)
    assert sorted(int(i) for *_, index in held for i in index) == list(range(1000))
