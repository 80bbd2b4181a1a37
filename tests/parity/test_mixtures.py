"""Mixtures against plain NumPy: which source each step takes, and that each pass of a source has each sample once.

`plan.mixture` says which source a step takes and which position of the source's endless sequence. So the samples of any
epoch are known but for the order of each pass. Samples say which they are.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import zarrfeed
from tests.support.examples import examples, tries
from tests.support.mixtures import (
    LENGTHS,
    Sources,
    Weights,
    dataset_of,
    errors,
    interleaved,
    mixed,
    mixture_of,
    order_of_ranks,
    read,
    rows,
    write_sources,
)
from tests.support.shares import rank_batches
from zarrfeed import Data, ZarrDataLoader
from zarrfeed.plan.mixture.mixture import Mixture

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

SOURCES = Sources.of()
USUAL = mixture_of((7, 2, 1), 3)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_sources(tmp_path_factory.mktemp("mixtures"))


def mix(paths: list[str], weights: Weights = (7, 2, 1), **options: Any) -> Data:
    return zarrfeed.mix(paths, weights, **options)


def shorten(path: Path) -> None:
    """Make a chunk one that cannot be decoded."""
    path.write_bytes(path.read_bytes()[:-3])


# --- the oracle -------------------------------------------------------------------------------------------------


def reference_order(mixture: Mixture, sources: Sources, num_steps: int) -> Any:
    """Return a mixture whose passes are permuted by NumPy."""
    source, position = mixture.at(np.arange(num_steps))
    epoch_order = np.empty(num_steps, dtype=np.int64)
    for step, (one, at) in enumerate(zip(source, position, strict=True)):
        which, in_pass = divmod(int(at), sources.lengths[one])
        epoch_order[step] = np.random.default_rng([one, which]).permutation(sources.members[one])[in_pass]
    return epoch_order


def test_the_check_of_an_order_finds_what_is_wrong() -> None:
    epoch_order = reference_order(USUAL, SOURCES, 1500)
    passes = SOURCES.check(USUAL, epoch_order)
    assert [len(passes.whole(source)) for source in range(3)] == [7, 4, 6]
    for source in range(3):
        passes.check_new_orders(source)
    with pytest.raises(AssertionError, match="has a sample of another source"):
        SOURCES.check(mixture_of((7, 2, 1), 4), epoch_order)
    with pytest.raises(AssertionError, match="has a sample of another source"):
        SOURCES.check(USUAL, epoch_order, first_step=1)
    ours = np.flatnonzero(epoch_order < LENGTHS[0])
    twice = epoch_order.copy()
    twice[ours[0]] = epoch_order[ours[1]]
    with pytest.raises(AssertionError, match="pass 0 of source 0 repeats a sample"):
        SOURCES.check(USUAL, twice)
    kinds, position = USUAL.at(np.arange(1500))
    same = SOURCES.members[0][position % LENGTHS[0]]
    with pytest.raises(AssertionError, match="two passes of source 0 have the same order"):
        SOURCES.check(USUAL, np.where(kinds == 0, same, epoch_order)).check_new_orders(0)


# --- orders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    "weights", [(7, 2, 1), (0.25, 0.5, 0.25), None, {0: (7, 2, 1), 300: (1, 0, 1), 800: (1, 8, 1)}]
)
def test_every_step_has_its_source_and_every_pass_each_sample_once(
    paths: list[str], weights: Weights, seed: int
) -> None:
    mixture = mixture_of(weights, seed)
    with dataset_of(mix(paths, weights, stop=500), seed=seed) as dataset:
        epoch_order = np.concatenate([dataset.sample_order(epoch) for epoch in range(3)])
        assert len(epoch_order) == 1500
        passes = SOURCES.check(mixture, epoch_order)
        for source in range(3):
            passes.check_new_orders(source)
        assert np.concatenate(read(dataset) + read(dataset) + read(dataset)).tolist() == epoch_order.tolist()


def test_without_shuffling_every_pass_is_in_order(paths: list[str]) -> None:
    with dataset_of(mix(paths, stop=700), shuffle=False) as dataset:
        epoch_order = np.concatenate([dataset.sample_order(epoch) for epoch in range(2)])
        passes = SOURCES.check(USUAL, epoch_order)
        assert len(passes.whole(0)) >= 6
        for source, members in enumerate(SOURCES.members):
            for order in passes.whole(source):
                assert order.tolist() == members.tolist()
        assert np.concatenate(read(dataset)).tolist() == epoch_order[:700].tolist()


@examples(16, deadline=None)
@given(data=st.data())
def test_sources_of_any_lengths_and_chunks(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    chunks = data.draw(st.lists(st.integers(1, 12), min_size=count, max_size=count))
    weights = data.draw(st.none() | st.lists(st.sampled_from([1, 1, 2, 9, 0.5]), min_size=count, max_size=count))
    seed, batch_size = data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(1, 40))
    steps, world_size = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 5))
    mixing = data.draw(st.sampled_from([None, {"lanes": 1}, {"lanes": 6}, {"lanes": 4, "mix": 2}]))
    described = zarrfeed.mix(write_sources(tmp_path_factory.mktemp("any"), lengths, chunks), weights, stop=steps)
    options: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "mixing": mixing}
    with dataset_of(described, **options) as dataset:
        delivered = np.concatenate(read(dataset) + read(dataset))
    assert len(delivered) == 2 * steps
    Sources.of(lengths).check(mixture_of(weights, seed, lengths), delivered)
    epoch_order = order_of_ranks(described, world_size, epoch=1, **options)
    assert epoch_order.tolist() == delivered[steps:].tolist()


@pytest.mark.parametrize("epoch", [0, 2])
def test_ranks_share_one_order(paths: list[str], epoch: int) -> None:
    data = mix(paths, stop=333)  # no multiple of any of them
    epoch_order = order_of_ranks(data, 1, epoch)
    for world_size in (2, 3, 8):
        assert order_of_ranks(data, world_size, epoch).tolist() == epoch_order.tolist()


def test_many_ranks_share_one_order_where_lanes_are_named(paths: list[str]) -> None:
    """Beyond 8 ranks there are at least as many lanes as ranks, as without a mixture; sources stay the same."""
    data = mix(paths, stop=200)
    epoch_orders = [order_of_ranks(data, world_size, mixing={"lanes": 12}) for world_size in (1, 12)]
    assert epoch_orders[0].tolist() == epoch_orders[1].tolist()
    sources = [data.source_of(order_of_ranks(data, world_size)) for world_size in (1, 12)]
    assert sources[0].tolist() == sources[1].tolist()


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_shares_are_near_the_weights_at_every_prefix(paths: list[str], world_size: int) -> None:
    """Of all ranks, and of each; over the ends of epochs, too."""
    data = mix(paths, stop=801)
    index = np.concatenate([order_of_ranks(data, world_size, epoch) for epoch in range(3)])
    source = data.source_of(index)
    assert max(errors(source, (7, 2, 1))) <= 8
    for column in range(24):
        assert max(errors(source[column::24], (7, 2, 1))) < 2
    for rank in range(world_size):
        assert max(errors(source[rank::world_size], (7, 2, 1))) <= 8


def test_a_schedule_counts_steps_over_epochs(paths: list[str]) -> None:
    """Weights change at step 1200, which is in the third epoch, on all ranks."""
    data = mix(paths, {0: (8, 1, 1), 1200: (0, 1, 3)}, stop=500)
    for world_size in (1, 3):
        index = np.concatenate([order_of_ranks(data, world_size, epoch) for epoch in range(4)])
        source = data.source_of(index)
        assert np.bincount(source[:1200]) == pytest.approx(np.array([960, 120, 120]), abs=8)
        assert np.bincount(source[1200:]) == pytest.approx(np.array([0, 200, 600]), abs=8)
        SOURCES.check(mixture_of({0: (8, 1, 1), 1200: (0, 1, 3)}, 3), index)


# --- epochs -----------------------------------------------------------------------------------------------------


def test_an_epoch_ends_where_stop_says(paths: list[str]) -> None:
    """One step more, or less, would break the rule; two passes of a source may overlap by a few samples."""
    lengths, delivered = {}, {}
    for stop in ("first", "longest", "all", 1, 77):
        data = mix(paths, stop=stop)
        with dataset_of(data, batch_size=None) as dataset:
            lengths[stop] = len(dataset)
            delivered[stop] = order_of_ranks(data, 1).tolist()
            assert len(delivered[stop]) == lengths[stop]
    assert (lengths[1], lengths[77]) == (1, 77)
    assert delivered["first"] == order_of_ranks(mix(paths), 1).tolist(), "the default"
    assert len(set(delivered["first"])) == lengths["first"]
    assert set(delivered["longest"]) >= set(SOURCES.members[0].tolist())
    assert set(delivered["all"]) == set(range(sum(LENGTHS)))
    source, position = USUAL.at(np.array([lengths["first"], lengths["longest"] - 1, lengths["all"] - 1]))
    is_first_pass = position < np.array(LENGTHS)[source]
    assert is_first_pass.tolist() == [False, True, True]
    assert source[1] == 0


def test_passes_of_sources_go_on_in_the_next_epoch(paths: list[str]) -> None:
    """An epoch of 50 steps is less than a pass of the first source; what it did not read comes before repetitions."""
    data = mix(paths, stop=50)
    epoch_order = np.concatenate([order_of_ranks(data, 2, epoch) for epoch in range(20)])
    passes = SOURCES.check(USUAL, epoch_order)
    assert len(passes.whole(0)) == 4
    with dataset_of(data) as dataset:
        dataset.set_epoch(7)
        assert np.concatenate(read(dataset)).tolist() == epoch_order[350:400].tolist()


@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_stay_even_and_drop_or_repeat_the_tail(paths: list[str], world_size: int) -> None:
    data = mix(paths, stop=101)
    lengths = {}
    for even in ("drop", "repeat"):
        lengths[even] = [
            sum(map(len, read(dataset_of(data, rank=rank, world_size=world_size, even=even))))
            for rank in range(world_size)
        ]
    assert lengths == {"drop": [101 // world_size] * world_size, "repeat": [-(-101 // world_size)] * world_size}


# --- workers and states -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader_class", "world_size", "num_workers"), [(DataLoader, 2, 2), (ZarrDataLoader, 3, 2), (ZarrDataLoader, 1, 3)]
)
def test_workers_deliver_the_batches_of_their_rank(
    paths: list[str], loader_class: Any, world_size: int, num_workers: int
) -> None:
    """Batch i comes from worker i mod K, and has what one consumer would read as its share of the order."""
    data = mix(paths, stop=203)
    epoch_orders = [order_of_ranks(data, 1, epoch) for epoch in range(2)]
    for rank in {0, world_size - 1}:
        dataset = dataset_of(data, rank=rank, world_size=world_size)
        batch_size = {"batch_size": None} if loader_class is DataLoader else {}
        loader = loader_class(dataset, num_workers=num_workers, timeout=240, **batch_size)
        for epoch_order in epoch_orders:
            share: dict[str, Any] = {"rank": rank, "world_size": world_size, "num_workers": num_workers}
            expected = rank_batches(epoch_order, **share, batch_size=8, even="off", drop_last=False)
            assert [batch.tolist() for batch in read(loader)] == [batch.tolist() for batch in expected]


def run_of(data: Data, world_size: int, state: Any, batches: int | None, **options: Any) -> tuple[Any, Any]:
    """Read some batches on each of some ranks, from a state on; return what came, interleaved, and the state then."""
    parts, states = [], []
    for rank in range(world_size):
        with dataset_of(data, rank=rank, world_size=world_size, **options) as dataset:
            if state is not None:
                dataset.load_state_dict(state)
            taken = read(itertools.islice(dataset, batches))
            states.append(json.loads(json.dumps(dataset.state_dict())))
        parts.append(np.concatenate(taken))
    assert all(one == states[0] for one in states), "ranks save the same"
    return interleaved(parts), states[0]


@pytest.mark.parametrize("seed", range(tries(2, 4)))
def test_a_run_continues_on_1_then_8_then_3_ranks(paths: list[str], seed: int) -> None:
    """Exactly what was left, in the same order; and the next epoch begins where this one ended."""
    rng = np.random.default_rng(seed)
    weights: Weights = (7, 2, 1) if seed % 2 else {0: (7, 2, 1), 900: (1, 1, 1)}
    data = mix(paths, weights, stop=777)
    epoch = int(rng.integers(0, 3))
    epoch_orders = [order_of_ranks(data, 1, epoch + more) for more in range(2)]
    first, second = int(rng.integers(1, 40)), int(rng.integers(1, 7))
    with dataset_of(data) as dataset:
        dataset.set_epoch(epoch)
        state = dataset.state_dict()
    got = []
    for world_size, batches in ((1, first), (8, second), (3, None)):
        epoch_order, state = run_of(data, world_size, state, batches)
        got.append(epoch_order)
    assert np.concatenate(got).tolist() == epoch_orders[0].tolist()
    assert run_of(data, 3, state, None)[0].tolist() == epoch_orders[1].tolist()


def test_a_run_with_workers_continues_on_8_then_3_ranks_without_them(paths: list[str]) -> None:
    """Two workers stop in different batches; what they did not read comes in the order in which it was left."""
    data = mix(paths, stop=300)
    epoch_order = order_of_ranks(data, 1)
    share: dict[str, Any] = {"rank": 0, "world_size": 1, "num_workers": 2, "batch_size": 8}
    used = np.concatenate(rank_batches(np.arange(300), **share, even="off", drop_last=False)[:7])
    loader = ZarrDataLoader(dataset_of(data), num_workers=2, timeout=240)
    batches = iter(loader)
    taken = np.concatenate(read(itertools.islice(batches, 7)))
    state = json.loads(json.dumps(loader.state_dict()))
    del batches
    assert taken.tolist() == epoch_order[used].tolist()
    middle, state = run_of(data, 8, state, 2)
    rest, _ = run_of(data, 3, state, None)
    assert [*middle.tolist(), *rest.tolist()] == np.delete(epoch_order, used).tolist()


def test_a_state_says_how_far_the_mixture_is(paths: list[str]) -> None:
    data = mix(paths, stop=300)
    with dataset_of(data) as dataset:
        dataset.set_epoch(2)
        read(itertools.islice(dataset, 5))
        state = dataset.state_dict()
        assert state["mixture"]["step"] == 600 + 40
        coming = 640 + np.arange(500)
        source, position = USUAL.at(coming)
        passes = [int(position[source == one].min()) // length for one, length in enumerate(LENGTHS)]
        assert state["mixture"]["epochs"] == passes, "the pass over each source that comes next"
        assert len(json.dumps(state)) < 2000
    for changed in (mix(paths, (7, 2, 2), stop=300), mix(paths, stop=301), mix(paths[:2], (7, 2), stop=300)):
        with dataset_of(changed) as other, pytest.raises(zarrfeed.ConfigError):
            other.load_state_dict(state)


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_each_chunk_of_a_pass_is_decoded_by_one_rank(tmp_path: Path, world_size: int) -> None:
    """Lanes end at chunks, and an epoch has whole passes of each source: no chunk is decoded twice in a pass."""
    lengths, chunks = (24 * 40, 24 * 20), (5, 5)
    data = zarrfeed.mix(write_sources(tmp_path, lengths, chunks), (2, 1), stop=24 * 60)
    decoded = 0
    for rank in range(world_size):
        with dataset_of(data, rank=rank, world_size=world_size, mixing={"lanes": 24}) as dataset:
            read(dataset)
            decoded += dataset.stats().chunks_read
    assert decoded == sum(length // chunk for length, chunk in zip(lengths, chunks, strict=True))


def test_a_small_memory_changes_what_is_decoded_and_never_the_order(tmp_path: Path) -> None:
    """A group of the rare source serves steps far apart; with few open batches it is decoded anew for some of them."""
    data = zarrfeed.mix(write_sources(tmp_path, (1200, 200), (12, 20)), (20, 1), stop=1260)
    epoch_orders, decoded = [], []
    for budget in ("1GiB", "44KiB", "36KiB"):  # 27 KiB are for the plan
        with dataset_of(data, memory_budget=budget, mixing={"lanes": 6}) as dataset:
            epoch_orders.append(np.concatenate(read(dataset)).tolist())
            decoded.append(dataset.stats().chunks_read)
    assert epoch_orders[0] == epoch_orders[1] == epoch_orders[2]
    assert decoded[0] < decoded[1] < decoded[2]


def test_two_passes_that_overlap_are_both_whole(tmp_path: Path) -> None:
    """Where columns differ by a few samples, two passes of a small source are open at once."""
    data = zarrfeed.mix(write_sources(tmp_path, (7, 200), (2, 9)), (5, 5), stop=240)
    with dataset_of(data, batch_size=24) as dataset:
        epoch_order = np.concatenate(read(dataset))
    passes = Sources.of((7, 200)).check(mixture_of((1, 1), 3), epoch_order)
    assert len(passes.whole(0)) >= 15


def test_a_bad_chunk_is_an_error_that_names_its_store(tmp_path: Path) -> None:
    data = mixed(tmp_path, stop="all")
    shorten(tmp_path / "source-1.zarr" / "c" / "2" / "0")
    with pytest.raises(zarrfeed.CorruptChunkError, match=r"source-1.zarr chunk c/2/0"):
        read(dataset_of(data))


@pytest.mark.parametrize("batching", ["per_sample", "per_batch"])
def test_bad_samples_are_replaced_by_samples_of_their_source(tmp_path: Path, batching: Any) -> None:
    """Each source has one good block; so whatever replaces a sample, the step keeps its source."""
    data = mixed(tmp_path, stop=480, batching=batching)
    expected = data.source_of(order_of_ranks(data, 1))
    good = [range(8, 16), range(150, 155), range(209, 217)]
    for number, kept in enumerate(({1}, {2}, {2, 3})):  # two chunks of the third source are one block
        for path in (tmp_path / f"source-{number}.zarr").glob("c/*/0"):
            if int(path.parent.name) not in kept:
                shorten(path)
    for world_size in (1, 2):
        parts = []
        for rank in range(world_size):
            options = {"faults": {"on_error": "skip", "max_errors": 1000}, "even": "off"}
            with dataset_of(data, rank=rank, world_size=world_size, **options) as dataset:
                with pytest.warns(zarrfeed.ChunkSkippedWarning):
                    parts.append(np.concatenate(read(dataset)))
                skipped = dataset.skipped_chunks()
            assert {one.epoch for one in skipped} == {0}
            assert {number for one in skipped for number in range(3) if f"source-{number}.zarr" in str(one.cause)} == {
                0,
                1,
                2,
            }
        index = interleaved(parts)
        source = data.source_of(index)
        if batching == "per_sample" or world_size == 1:
            assert source.tolist() == expected.tolist()
        for number, samples in enumerate(good):
            assert set(index[source == number].tolist()) == set(samples)


# --- one source of each batch -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (3, 0), (2, 2)])
@pytest.mark.parametrize("even", ["off", "repeat"])
def test_batches_of_one_source(paths: list[str], world_size: int, num_workers: int, even: Any) -> None:
    """The batches that all ranks take at the same time are of one source, in each epoch; passes are whole as ever.

    `stop` is no multiple of the batches of all ranks: an epoch that ended within one would shift all batches after it.
    """
    data = mix(paths, (4, 2, 1), batching="per_batch", stop=665)
    sources, epoch_orders = [], []
    for epoch in range(2):
        ranks = []
        for rank in range(world_size):
            dataset = dataset_of(data, rank=rank, world_size=world_size, even=even)
            dataset.set_epoch(epoch)
            loader = ZarrDataLoader(dataset, num_workers=num_workers, timeout=240 if num_workers else 0)
            ranks.append(read(loader))
            assert {len(batch) for batch in ranks[-1]} == {8}
        for together in zip(*ranks, strict=True):
            (source,) = set(data.source_of(np.concatenate(together)).tolist())
            sources.append(source)
        epoch_orders.append(order_of_ranks(data, world_size, epoch))
    assert set(sources) == {0, 1, 2}
    assert max(errors(np.array(sources), (4, 2, 1))) <= 8
    epoch_order = np.concatenate(epoch_orders)
    assert len(epoch_order) == 2 * 672
    for number, members in enumerate(SOURCES.members):
        ours = epoch_order[data.source_of(epoch_order) == number]
        for begin in range(0, len(ours) - len(members), len(members)):
            assert len(set(ours[begin : begin + len(members)].tolist())) == len(members)


def test_a_run_of_batches_of_one_source_is_resumed(paths: list[str]) -> None:
    data = mix(paths, batching="per_batch", stop=480)
    whole = np.concatenate([order_of_ranks(data, 2, epoch) for epoch in range(2)])
    taken, state = run_of(data, 2, None, 7)
    assert state["mixture"]["step"] == 7 * 16
    rest, state = run_of(data, 2, state, None)
    assert "mixture" not in state, "which steps an epoch has follows from batches that are not known yet"
    following, _ = run_of(data, 2, state, None)
    assert np.concatenate([taken, rest, following]).tolist() == whole.tolist()


# --- what sources may be ----------------------------------------------------------------------------------------


def test_selections_of_the_sources_and_of_the_mixture(paths: list[str]) -> None:
    members = (np.arange(10, 110, 3), LENGTHS[0] + np.array([2, 3, 5, 7, 11, 40]), SOURCES.members[2])
    selects: list[Any] = [slice(10, 110, 3), [2, 3, 5, 7, 11, 40], slice(None)]
    data = mix([zarrfeed.open(path).select(one) for path, one in zip(paths, selects, strict=True)], stop=300)  # type: ignore[misc]
    after = mix(paths, stop=300).select(np.concatenate(members))
    for described in (data, after):
        with dataset_of(described) as dataset:
            Sources(members).check(USUAL, np.concatenate(read(dataset) + read(dataset)))
    assert np.concatenate([data.source_of(one) for one in members]).tolist() == [0] * 34 + [1] * 6 + [2] * 24


def test_parts_of_a_split_are_mixtures(paths: list[str]) -> None:
    train, test = mix(paths, stop="all").split((0.75, 0.25), by="sample", seed=1)
    seen = []
    for part in (train, test):
        with dataset_of(part) as dataset:
            seen.append(set(np.concatenate(read(dataset)).tolist()))
        assert set(part.source_of(sorted(seen[-1])).tolist()) == {0, 1, 2}
    assert not seen[0] & seen[1]
    assert len(seen[0] | seen[1]) == sum(LENGTHS)


@pytest.mark.parametrize("pad", [None, "edge"])
def test_windows_stay_in_their_source(paths: list[str], pad: Any) -> None:
    data = mix(paths, stop=300).window((-1, 0, 2), pad=pad)
    ends = np.cumsum(LENGTHS)
    members = []
    for one, end in zip(SOURCES.members, ends, strict=True):
        members.append(one if pad else one[1:-2])
        assert members[-1][-1] == (end - 1 if pad else end - 3)
    epoch_order = []
    with dataset_of(data) as dataset:
        for samples, index in dataset:
            of = np.searchsorted(ends, index.numpy(), side="right")
            at = np.clip(
                index.numpy()[:, None] + (-1, 0, 2), (ends[of] - np.array(LENGTHS)[of])[:, None], ends[of, None] - 1
            )
            assert np.array_equal(samples.numpy()[..., 0], at * 100)
            epoch_order.append(index.numpy().copy())
    Sources(tuple(members)).check(USUAL, np.concatenate(epoch_order))


def test_many_stores_are_one_source(tmp_path: Path) -> None:
    paths = write_sources(tmp_path, (30, 40, 25, 9), (4, 7, 5, 5))
    sources: list[Any] = [paths[:2], paths[2], zarrfeed.open([paths[3]])]
    data = zarrfeed.mix(sources, (3, 2, 1), stop=400)
    assert data.stores == zarrfeed.concat(sources).stores
    with dataset_of(data) as dataset:
        index = np.concatenate(read(dataset))
    Sources.of((70, 25, 9)).check(mixture_of((3, 2, 1), 3), index)
    assert data.source_of(69) == 0
    assert data.locate(70) == zarrfeed.concat(sources).locate(70)
    assert data.source_of(np.array([0, 30, 70, 103])).tolist() == [0, 0, 1, 2]


def test_text_targets_dtypes_and_conversions_of_each_source(tmp_path: Path) -> None:
    sources, first = [], 0
    for number, (count, dtype) in enumerate(((30, "i4"), (20, "f8"))):
        group = zarr.create_group(tmp_path / f"{number}.zarr")
        group.create_array("x", data=rows(first, count).astype(dtype), chunks=(4, 3))
        text = group.create_array("caption", shape=(count,), dtype=str, chunks=(5,))
        text[:] = np.array([f"sample {i}" for i in range(first, first + count)], dtype=object)
        sources.append(zarrfeed.open(group, np.arange(first, first + count)))
        first += count
    with pytest.raises(zarrfeed.ConfigError, match="must have the same shape and dtype"):
        zarrfeed.mix(sources)
    sources[1] = sources[1].normalize({"x": (0.0, 2.0)})
    data = zarrfeed.mix(sources, (1, 1), stop=60, dtype="float32")
    epoch_order = []
    for samples, targets, index in dataset_of(data):
        assert samples["caption"] == [f"sample {i}" for i in targets.tolist()]
        divisor = torch.where(index < 30, 1.0, 2.0)
        assert samples["x"].dtype == torch.float32
        assert torch.equal(samples["x"][:, 1] * divisor, (index * 100 + 1).float())
        assert torch.equal(targets, index)
        epoch_order.append(index.numpy().copy())
    Sources.of((30, 20)).check(mixture_of((1, 1), 3), np.concatenate(epoch_order))
