"""Every promise that docs/tasks/mixtures.md and docs/design/mixtures.md make, in every mode that they make it for.

The modes are: shuffled or in order, each `stop`, each `batching`, 1 to 8 ranks, 0 to 3 workers. Plans are listed, so no
data is read. `test_mixtures.py` compares what is read with plans.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from tests.support.mixtures import (
    LENGTHS,
    Sources,
    dataset_of,
    errors,
    interleaved,
    mixture_of,
    order_of_ranks,
    read,
    write_sources,
)
from tests.support.runs import Int64, Run
from zarrfeed import Data, ZarrDataLoader
from zarrfeed.plan.mixture.blend import BATCHINGS
from zarrfeed.plan.mixture.mixture_stop import epoch_steps

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

SOURCES = Sources.of()
WEIGHTS = (7, 2, 1)
RANKS, WORKERS = range(1, 9), (0, 2, 3)  # one worker reads as none does: `Run` does not tell them apart
SHUFFLES, STOPS = (False, True), ("first", "longest", "all", 301)
LANES = st.sampled_from([None, 1, 24])
#: States that the release before order version 2 saved, and digests of what it read from there on.
EARLIER = json.loads((Path(__file__).parents[1] / "support" / "earlier_mixture_states.json").read_text())
#: A sample may come while so many of its source that should come before have not come yet.
MOST_LATE = 44


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_sources(tmp_path_factory.mktemp("promises"))


@pytest.fixture(scope="module")
def runs(paths: list[str]) -> Runs:
    return Runs(paths)


class Runs:
    """Runs of each mode over the usual sources; a dataset is made once for a mode."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self._made: dict[Any, Run] = {}
        self._orders: dict[Any, Int64] = {}

    def of(self, stop: Any, batching: Any, *, shuffle: bool, weights: tuple[int, ...] = WEIGHTS, **options: Any) -> Run:
        """Return the run of one rank over an epoch; batches have 3 samples, so that 8 ranks have 24 together."""
        key = (stop, batching, shuffle, weights, str(options))
        if key not in self._made:
            data = zarrfeed.mix(self.paths, weights, stop=stop, batching=batching)
            self._made[key] = Run.of(data, **{"shuffle": shuffle, "batch_size": 3} | options)
        return self._made[key]

    def sample_order(self, stop: Any, batching: Any, *, shuffle: bool, ranks: int, workers: int = 0) -> Int64:
        """Return the order of epoch 1; it is listed once for a mode and a setup."""
        key = (stop, batching, shuffle, ranks, workers)
        if key not in self._orders:
            self._orders[key] = self.of(stop, batching, shuffle=shuffle).on(ranks, workers, 1).sample_order()
        return self._orders[key]


def source_of(samples: Int64) -> Int64:
    """Return the sources of samples."""
    return np.searchsorted(np.cumsum(LENGTHS), samples, side="right")


def order_of_one(run: Run, ranks: int, epochs: range) -> Int64:
    """Return the order of several ranks over some epochs, from one rank whose batches are as large as all of theirs."""
    return np.concatenate([run.on(1, epoch=epoch, batch_size=3 * ranks).sample_order() for epoch in epochs])


def late(position: Int64) -> int:
    """Return how many positions of a source were left when one behind them was taken, at most."""
    return int((np.maximum.accumulate(position) - np.arange(len(position))).max())


def in_every_mode(test: Any) -> Any:
    """Let a test run in each mode, or with each pair of options: see `tests.support.covering`."""
    for name, values in (("shuffle", SHUFFLES), ("batching", BATCHINGS), ("stop", STOPS)):
        test = pytest.mark.parametrize(name, values)(test)
    return test


def setups(stop: Any) -> Iterator[tuple[int, int]]:
    """Yield ranks and workers: all ranks without workers, and half of the others; the modes together have all pairs."""
    turn = STOPS.index(stop)
    for ranks, workers in itertools.product(RANKS, WORKERS):
        if workers == 0 or (ranks + workers + turn) % 2 == 0:
            yield ranks, workers


# --- which samples, in which order ------------------------------------------------------------------------------------


@in_every_mode
def test_an_epoch_has_the_same_samples_at_the_same_steps_on_any_ranks_and_workers(
    runs: Runs, stop: Any, batching: Any, shuffle: bool
) -> None:
    """Workers of a shuffled mixture take strides: the epoch has the same samples, a batch has others."""
    run = runs.of(stop, batching, shuffle=shuffle)
    expected: dict[int, Int64] = {}
    for ranks, workers in setups(stop):
        case = f"{ranks} ranks, {workers} workers"
        if batching == "per_sample":
            epoch_order = expected.setdefault(0, run.on(1, epoch=1).sample_order())
        else:  # what the batches of all ranks have together counts
            epoch_order = expected.setdefault(ranks, run.on(1, epoch=1, batch_size=3 * ranks).sample_order())
        found = runs.sample_order(stop, batching, shuffle=shuffle, ranks=ranks, workers=workers)
        assert np.sort(found).tolist() == np.sort(epoch_order).tolist(), case
        if workers < 2 or not shuffle or batching == "per_batch":
            assert found.tolist() == epoch_order.tolist(), case
        if batching == "per_batch":
            assert all(len(set(one)) == 1 for one in source_of(found).reshape(-1, 3 * ranks).tolist()), case


@in_every_mode
def test_ranks_are_even_and_their_batches_do_not_depend_on_workers(
    runs: Runs, stop: Any, batching: Any, shuffle: bool
) -> None:
    run = runs.of(stop, batching, shuffle=shuffle)
    wholes = {
        ranks: Counter(runs.sample_order(stop, batching, shuffle=shuffle, ranks=ranks).tolist()) for ranks in RANKS
    }
    for ranks, even in itertools.product(RANKS, ("drop", "repeat", "off")):
        whole = wholes[ranks]
        n = whole.total()
        for workers in WORKERS:
            case = f"{even}, {ranks} ranks, {workers} workers"
            one = run.on(ranks, workers, 1, even=even)
            division, wanted = one.division, {"drop": n // ranks, "repeat": -(-n // ranks)}.get(even)
            samples = [division.samples(rank) for rank in range(ranks)]
            assert samples == [len(range(rank, n, ranks)) if wanted is None else wanted for rank in range(ranks)], case
            assert [division.batches(rank) for rank in range(ranks)] == [-(-count // 3) for count in samples], case
            if ranks not in (2, 7) or workers not in (0, 2):
                continue
            batches = one.all_batches()
            assert [sum(map(len, of_rank)) for of_rank in batches] == samples, case
            assert all(len(batch) == 3 for of_rank in batches for batch in of_rank[:-1]), case
            found = Counter(np.concatenate([batch for of_rank in batches for batch in of_rank]).tolist())
            assert even == "repeat" or not found - whole, case
            assert even == "drop" or not whole - found, case


# --- passes over sources ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_pass_over_a_source_goes_on_although_ranks_and_workers_change_between_epochs(
    runs: Runs, shuffle: bool
) -> None:
    """Without shuffling, a run that went on with another number of them read other samples of the pass."""
    alone = runs.of(50, "per_sample", shuffle=shuffle)
    epoch_order = np.concatenate([alone.on(1, epoch=epoch).sample_order() for epoch in range(24)])
    run = alone
    changing = itertools.cycle([(1, 0), (3, 0), (2, 2), (8, 0), (5, 3), (7, 1)])
    for epoch, (ranks, workers) in zip(range(24), changing, strict=False):
        run = run.following(ranks, workers) if epoch else alone.on(ranks, workers)
        expected = epoch_order[50 * epoch : 50 * (epoch + 1)]
        assert np.sort(run.sample_order()).tolist() == np.sort(expected).tolist(), (epoch, ranks, workers)
    passes = SOURCES.check(mixture_of(WEIGHTS, 3), epoch_order)
    assert [len(passes.whole(source)) for source in range(3)] == [6, 3, 5]
    for source, members in enumerate(SOURCES.members):
        for order in passes.whole(source):
            assert shuffle or order.tolist() == members.tolist(), "a source is read in its own order"


@in_every_mode
def test_a_sample_comes_again_when_nearly_all_others_of_its_source_have_come(
    runs: Runs, stop: Any, batching: Any, shuffle: bool
) -> None:
    """In the order of delivery. Batches of one source have one column, so no sample comes again too early."""
    run = runs.of(stop, batching, shuffle=shuffle)
    for ranks in RANKS if batching == "per_batch" else (1,):  # which has the order of all others
        epoch_order = order_of_one(run, ranks, range(4))
        for members in SOURCES.members:
            counts, waiting = np.zeros(len(members), int), 0
            for sample in (epoch_order[np.isin(epoch_order, members)] - members[0]).tolist():
                waiting = max(waiting, int((counts < counts[sample]).sum()))
                counts[sample] += 1
            assert waiting <= (MOST_LATE if batching == "per_sample" else 0), f"{ranks} ranks"


@examples(60, deadline=None)
@given(data=st.data())
def test_few_samples_of_a_source_come_before_their_turn(data: st.DataObject) -> None:
    """With constant weights, columns are at most 4 samples of a source apart (proof: docs/design/mixtures.md)."""
    count = data.draw(st.integers(1, 20))
    weights = data.draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    columns = mixture_of(weights, data.draw(st.integers(0, 2**64 - 1)))
    for mixture, most in ((columns, 23 * (2 if count == 2 else 4)), (replace(columns, columns=1), 0)):
        source, position = mixture.at(np.arange(2000))
        for one in np.unique(source):
            assert late(position[source == one]) <= most


# --- epochs and shares ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_an_epoch_ends_where_stop_says(runs: Runs, batching: Any, shuffle: bool) -> None:
    for ranks in RANKS if batching == "per_batch" else (1,):
        found = {}
        for stop in (*STOPS, 1):
            run = runs.of(stop, batching, shuffle=shuffle)
            found[stop] = run.on(ranks).sample_order().tolist()
            assert run.on(ranks, epoch=3).length == len(found[stop]), "all epochs have the same length"
        unit = 3 * ranks if batching == "per_batch" else 1
        assert (len(found[1]), len(found[301])) == (unit, -(-301 // unit) * unit)
        assert len(set(found["first"])) == len(found["first"]), "no source repeats a sample"
        assert set(found["longest"]) >= set(SOURCES.members[0].tolist())
        assert set(found["all"]) == set(range(sum(LENGTHS)))
        mixture = replace(mixture_of(WEIGHTS, 3), columns=24 if batching == "per_sample" else 1)
        for stop in ("first", "longest", "all"):
            lengths = [n // unit if stop == "first" else -(-n // unit) for n in LENGTHS]
            assert len(found[stop]) == epoch_steps(mixture, lengths, stop) * unit  # type: ignore[arg-type]


@in_every_mode
def test_shares_hold_at_any_time_on_all_ranks_and_on_each(runs: Runs, stop: Any, batching: Any, shuffle: bool) -> None:
    """Each rank that has whole columns has the shares, too."""
    run = runs.of(stop, batching, shuffle=shuffle)
    epoch_orders = {
        on: source_of(order_of_one(run, on, range(3))) for on in (RANKS if batching == "per_batch" else (1,))
    }
    for ranks in RANKS:
        unit = 3 * ranks if batching == "per_batch" else 1
        source = epoch_orders[ranks if batching == "per_batch" else 1]
        assert max(errors(source[::unit], WEIGHTS)) <= 8, ranks
        for rank in range(ranks if 24 % ranks == 0 and unit == 1 else 0):
            assert max(errors(source[rank::ranks], WEIGHTS)) <= 8, (rank, ranks)


# --- resuming ---------------------------------------------------------------------------------------------------------


@examples(100, deadline=None)
@given(data=st.data())
def test_a_run_goes_on_with_exactly_the_samples_that_were_left(runs: Runs, data: st.DataObject) -> None:
    """On any ranks and workers, over the end of the epoch; at the very steps, unless workers take strides."""
    shuffle, batching = data.draw(st.booleans()), data.draw(st.sampled_from(BATCHINGS))
    stop, epoch, lanes = data.draw(st.sampled_from(STOPS)), data.draw(st.integers(0, 3)), data.draw(LANES)
    alone = runs.of(stop, batching, shuffle=shuffle, mixing={"lanes": lanes})
    by_stride = batching == "per_sample" and (shuffle or lanes == 24)
    run = alone.on(data.draw(st.sampled_from(RANKS)), data.draw(st.sampled_from(WORKERS)), epoch)
    epoch_orders = [alone.on(run.ranks, 0, epoch + more).sample_order() for more in range(2)]
    got, in_steps = [], True
    for may_stop in (True, True, False):
        taken = run.batches_left - (data.draw(st.integers(0, run.batches_left)) if may_stop else 0)
        got.append(run.sample_order(taken))
        in_steps &= run.workers < 2 or not by_stride
        # The batch of all ranks stays the same, or divides the one before, where it has one source.
        others = [one for one in RANKS if batching == "per_sample" or run.ranks % one == 0]
        run = run.after(taken, data.draw(st.sampled_from(others)), data.draw(st.sampled_from(WORKERS)))
        if run.state.epoch > epoch:
            break
    for found, epoch_order in ((np.concatenate(got), epoch_orders[0]), (run.sample_order(), epoch_orders[1])):
        assert np.sort(found).tolist() == np.sort(epoch_order).tolist()
        in_steps &= epoch_order is epoch_orders[0] or run.workers < 2 or not by_stride
        assert not in_steps or found.tolist() == epoch_order.tolist()


@examples(80, deadline=None)
@given(data=st.data())
def test_any_mixture_is_read_alike_by_any_ranks_and_workers(data: st.DataObject) -> None:
    """Sources of any lengths and chunks, weights that change, any lanes; each epoch by other ranks and workers."""
    count, numbers = data.draw(st.integers(1, 4)), st.integers(1, 50)
    lengths = data.draw(st.lists(numbers, min_size=count, max_size=count))
    arrays = [
        zarr.create_array(zarr.storage.MemoryStore(), data=np.zeros(length, dtype="u1"), chunks=(chunk,))
        for length, chunk in zip(lengths, data.draw(st.lists(numbers, min_size=count, max_size=count)), strict=True)
    ]
    shares = st.lists(st.integers(1, 9), min_size=count, max_size=count)
    weights = {0: data.draw(shares), data.draw(st.integers(1, 300)): data.draw(shares)}
    shuffle, lanes = data.draw(st.booleans()), data.draw(st.sampled_from([None, 1, 5, 24]))
    steps, seed = data.draw(st.integers(1, 120)), data.draw(st.integers(0, 2**64 - 1))
    options: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "mixing": {"lanes": lanes}}
    alone = Run.of(zarrfeed.mix(arrays, weights, stop=steps), **options)
    alone = alone.on(1, batch_size=data.draw(st.integers(1, 9)))
    run, epoch_order = alone, []
    for epoch in range(3):
        epoch_order.append(alone.on(1, epoch=epoch).sample_order())
        ranks, workers = data.draw(st.sampled_from(RANKS)), data.draw(st.sampled_from(WORKERS))
        run = run.following(ranks, workers) if epoch else alone.on(ranks, workers)
        found = run.sample_order()
        assert np.sort(found).tolist() == np.sort(epoch_order[-1]).tolist()
        if workers < 2 or (not shuffle and lanes in (None, 1)):
            assert found.tolist() == epoch_order[-1].tolist()
    passes = Sources.of(lengths).check(mixture_of(weights, seed, lengths), np.concatenate(epoch_order))
    if not shuffle and lanes in (None, 1):
        assert all((np.diff(order) > 0).all() for order in passes.orders.values())


def test_batches_of_one_source_keep_their_size_when_a_run_resumes_between_epochs(paths: list[str]) -> None:
    """Other batches of all ranks would cut a pass elsewhere: fewer ranks share a batch, more are refused."""
    data = zarrfeed.mix(paths, WEIGHTS, stop=96, batching="per_batch")
    with dataset_of(data, batch_size=6, world_size=2) as dataset:
        read(dataset)
        state = json.loads(json.dumps(dataset.state_dict()))
    assert (state["epoch"], state["position"], state["unit"]) == (1, 0, 12)
    epoch_order = order_of_ranks(data, 2, 1, batch_size=6), order_of_ranks(data, 2, 2, batch_size=6)
    with dataset_of(data, batch_size=6) as dataset:
        dataset.load_state_dict(state)
        assert len(dataset) == 16
        assert [np.concatenate(read(dataset)).tolist() for _ in epoch_order] == [one.tolist() for one in epoch_order]
    with dataset_of(data, batch_size=6, world_size=3) as dataset:
        with pytest.raises(zarrfeed.ConfigError, match=r"begun with batches of 12 .* batches of 18: .* set_epoch\(\)"):
            dataset.load_state_dict(state)
        dataset.set_epoch(1)
        read(dataset)


def test_a_pass_keeps_its_order_when_a_run_resumes_between_epochs(paths: list[str]) -> None:
    """Lanes that more ranks divide, or that another memory has room for, are for runs that begin."""
    data = zarrfeed.mix(paths, WEIGHTS, stop=50)
    of_ranks = []
    for rank in range(16):
        with dataset_of(data, rank=rank, world_size=16) as dataset:
            of_ranks.append([dataset.sample_order(epoch) for epoch in range(4)])
    epoch_order = np.concatenate([interleaved(parts) for parts in zip(*of_ranks, strict=True)])
    got, state = [], None
    for ranks, batches in ((16, 1), (16, None), (24, None), (1, None), (9, None)):
        parts = []
        for rank in range(ranks):
            with dataset_of(data, batch_size=2, rank=rank, world_size=ranks) as dataset:
                if state is not None:
                    dataset.load_state_dict(state)
                    epoch = state["epoch"]
                    assert np.array_equal(
                        dataset.sample_order(epoch), epoch_order[50 * epoch + rank : 50 * (epoch + 1) : ranks]
                    )
                parts.append(np.concatenate([np.zeros(0, np.int64), *read(itertools.islice(dataset, batches))]))
                saved = dataset.state_dict()
        state = json.loads(json.dumps(saved))
        got.append(interleaved(parts))
    assert np.concatenate(got).tolist() == epoch_order.tolist()


# --- states of earlier releases ---------------------------------------------------------------------------------------


def digest(samples: Int64) -> str:
    return hashlib.sha256(samples.astype("<i8").tobytes()).hexdigest()[:16]


def resumed(data: Data, state: Any, ranks: int, **options: Any) -> tuple[Int64, Any]:
    """Return what ranks read in the first pass from a state on, and the state then."""
    parts = []
    for rank in range(ranks):
        with dataset_of(data, rank=rank, world_size=ranks, **options) as dataset:
            dataset.load_state_dict(state)
            parts.append(np.concatenate(read(dataset)))
            state_then = json.loads(json.dumps(dataset.state_dict()))
    return interleaved(parts), state_then


@pytest.mark.parametrize(
    ("name", "ranks", "shuffle", "batching"),
    [
        ("shuffled", 1, True, "per_sample"),
        ("in_order_on_1_rank", 1, False, "per_sample"),
        ("in_order_on_3_ranks", 3, False, "per_sample"),
        ("batches_of_one_source_on_2_ranks", 2, False, "per_batch"),
    ],
)
def test_a_state_of_an_earlier_release_goes_on_as_it_began(
    paths: list[str], name: str, ranks: int, shuffle: bool, batching: Any
) -> None:
    """`digests` are of what that release read: the rest of the epoch, and the epoch after it."""
    earlier, data = EARLIER[name], zarrfeed.mix(paths, WEIGHTS, stop=300, batching=batching)
    rest, state = resumed(data, earlier["state"], ranks, shuffle=shuffle)
    following, _ = resumed(data, state, ranks, shuffle=shuffle)
    assert [digest(rest), digest(following)] == [earlier["rest"], earlier["following"]]
    if batching == "per_sample":  # and so it does on other ranks
        rest, state = resumed(data, earlier["state"], 5, shuffle=shuffle)
        following, _ = resumed(data, state, 4, shuffle=shuffle)
        assert [digest(rest), digest(following)] == [earlier["rest"], earlier["following"]]


def test_a_state_of_workers_of_an_earlier_release_goes_on_as_it_began(paths: list[str]) -> None:
    earlier, data = EARLIER["in_order_in_2_workers"], zarrfeed.mix(paths, WEIGHTS, stop=300)
    loader = ZarrDataLoader(dataset_of(data, shuffle=False), num_workers=2, timeout=240)
    loader.load_state_dict(earlier["state"])
    found = [digest(np.concatenate(read(loader))) for _ in range(2)]
    assert found == [earlier["rest"], earlier["following"]]


def test_a_state_that_does_not_say_how_a_pass_began_is_refused(paths: list[str]) -> None:
    """Between epochs, earlier releases saved nothing of the lanes, which were those of ranks and workers in order."""
    data = zarrfeed.mix(paths, WEIGHTS, stop=300)
    with dataset_of(data, shuffle=False) as dataset:
        with pytest.raises(zarrfeed.ConfigError, match=r"beginning of epoch 2 .* without shuffling.* set_epoch\(2\)"):
            dataset.load_state_dict(EARLIER["in_order_on_3_ranks"]["end"])
        dataset.load_state_dict(EARLIER["beginning"]["state"])
        dataset.set_epoch(2)
        dataset.load_state_dict(dataset.state_dict())
    rest, _ = resumed(data, EARLIER["shuffled"]["end"], 1)
    assert digest(rest) == EARLIER["shuffled"]["following"]


def test_the_order_of_mixtures_is_the_one_of_earlier_releases(paths: list[str]) -> None:
    """On one rank; a change would be a version of its own."""
    data = zarrfeed.mix(paths, WEIGHTS, stop=300)
    for shuffle in SHUFFLES:
        found = [digest(order_of_ranks(data, 1, epoch, shuffle=shuffle)) for epoch in range(3)]
        assert found == EARLIER["orders"][str(shuffle)]


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_loaders_deliver_what_plans_list(runs: Runs, batching: Any, shuffle: bool) -> None:
    data, run = zarrfeed.mix(runs.paths, WEIGHTS, stop=301, batching=batching), runs.of(301, batching, shuffle=shuffle)
    for ranks, workers, epochs in ((2, 0, 2), (1, 2, 2), (2, 3, 1)):
        for rank in range(ranks):
            dataset = dataset_of(data, batch_size=3, shuffle=shuffle, rank=rank, world_size=ranks)
            loader = ZarrDataLoader(dataset, num_workers=workers, timeout=240 if workers else 0)
            for epoch in range(epochs):
                expected = [batch.tolist() for batch in run.on(ranks, workers, epoch).batches(rank)]
                assert [batch.tolist() for batch in read(loader)] == expected, (ranks, workers, rank, epoch)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_explain_counts_what_ranks_decode(tmp_path: Path, batching: Any, shuffle: bool) -> None:
    data = zarrfeed.mix(write_sources(tmp_path, (960, 480), (40, 24)), (2, 1), stop=1440, batching=batching)
    for ranks, lanes in itertools.product((1, 2, 5), (None, 24)):
        decoded, case = 0, f"{ranks} ranks, {lanes} lanes"
        for rank in range(ranks):
            options: dict[str, Any] = {"rank": rank, "world_size": ranks, "mixing": {"lanes": lanes}}
            with dataset_of(data, batch_size=24, shuffle=shuffle, **options) as dataset:
                explained = dataset.explain()
                read(dataset)
                of_rank = dataset.stats().chunks_read
            # It counts the chunks of whole pieces, though a rank may have no row of one.
            assert of_rank <= explained.fields[0].chunk_reads <= 1.3 * of_rank, case
            decoded += of_rank
        times, said = decoded / (24 + 20), "is decoded by" in str(explained)
        if not shuffle and lanes is None:
            assert times == pytest.approx(ranks, rel=0.1), case
            assert (f"each chunk is decoded by {ranks} ranks" in str(explained)) == (ranks > 1), case
            assert ('mixing={"lanes": 24}' in str(explained)) == (ranks > 1 and 24 % ranks == 0), case
        elif lanes == 24 and 24 % ranks == 0:
            assert (times <= 2.5, said) == (True, False), case  # the ends of 24 lanes cut as many chunks
