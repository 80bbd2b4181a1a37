"""Mixtures of weighted sources against NumPy: every pass over a source has the counts of its weights, whoever reads it.

Plans are listed on 1 to 8 ranks, with workers, for each `stop` and `batching`, shuffled and in order, and after states;
some of them are read. Turns and shares are those of any mixture, which `test_mixture_promises.py` tests.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.parity.test_weights import balanced, check_counts, expected_of
from tests.support.mixtures import LENGTHS, dataset_of, mixture_of, read, write_sources
from tests.support.runs import Int64, Run
from zarrfeed import ConfigError, Data
from zarrfeed.plan.mixture.drawn_mixture import DrawnMixture

RNG = np.random.default_rng(1)
#: Weights of the sources: some are 0, and some samples come up to 6 times a pass; the third source has none.
QUALITY = RNG.random(LENGTHS[0]) ** 3 * (RNG.random(LENGTHS[0]) > 0.2)
LABEL = RNG.choice(2, LENGTHS[1], p=[0.9, 0.1])
WEIGHTS = (4, 3, 1)
EXPECTED = [expected_of(QUALITY), expected_of(balanced(LABEL), 90), np.ones(LENGTHS[2])]
FIRST = np.cumsum([0, *LENGTHS])
MODES = [
    (True, "first", "per_sample"),
    (False, "all", "per_sample"),
    (True, 301, "per_batch"),
    (True, "longest", "per_sample"),
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_sources(tmp_path_factory.mktemp("weighted"))


def mixed(paths: list[str], **options: Any) -> Data:
    one, two, three = map(zarrfeed.open, paths)
    return zarrfeed.mix([one.weight(QUALITY), two.balance(LABEL, n=90), three], WEIGHTS, **options)


def check_passes(samples: Int64, source: Int64, position: Int64) -> list[int]:
    """Check the counts of each pass over each source, given its samples by their positions; return the whole passes."""
    whole = []
    for number, expected in enumerate(EXPECTED):
        n = round(expected.sum())
        mine, of_pass = samples[source == number] - FIRST[number], position[source == number] // n
        assert ((mine >= 0) & (mine < LENGTHS[number])).all()
        passes = [mine[of_pass == one] for one in range(of_pass.max() + 1)]
        for one in passes:
            assert (np.bincount(one, minlength=len(expected)) <= np.ceil(expected - 1e-6)).all()
        complete = [one for one in passes if len(one) == n]
        for one in complete:
            check_counts(one, expected)
        assert number == 2 or len({tuple(np.sort(one)) for one in complete}) == len(complete)  # each is drawn anew
        whole.append(len(complete))
    return whole


@pytest.mark.parametrize(("shuffle", "stop", "batching"), MODES)
def test_each_pass_over_a_source_has_the_counts_of_its_weights(
    paths: list[str], shuffle: bool, stop: Any, batching: Any
) -> None:
    run = Run.of(mixed(paths, stop=stop, batching=batching), shuffle=shuffle, batch_size=6)
    samples = np.concatenate([run.on(1, epoch=epoch).sample_order() for epoch in range(6)])
    order = run.schedule.order
    assert isinstance(order, DrawnMixture)
    source, position = order.with_unit(6).taken_at(np.arange(len(samples)))
    if batching == "per_sample":
        np.testing.assert_array_equal(source, mixture_of(WEIGHTS, 3).at(np.arange(len(samples)))[0])
    assert min(check_passes(samples, source, position)) >= 2
    if not shuffle:  # each pass in the order of the array
        for number, expected in enumerate(EXPECTED):
            mine, n = samples[source == number], round(expected.sum())
            at = np.sort(position[source == number])
            by_position = mine[np.argsort(position[source == number])]
            assert (np.diff(by_position)[np.diff(at // n) == 0] >= 0).all()


@pytest.mark.parametrize(("shuffle", "stop", "batching"), MODES)
def test_the_order_depends_on_no_rank_and_no_worker_and_goes_on_after_a_state(
    paths: list[str], shuffle: bool, stop: Any, batching: Any
) -> None:
    run = Run.of(mixed(paths, stop=stop, batching=batching), shuffle=shuffle, batch_size=3)
    for ranks in range(1, 9):
        epoch = ranks % 3
        whole = run.on(1, epoch=epoch, batch_size=3 * ranks if batching == "per_batch" else 3).sample_order()
        np.testing.assert_array_equal(run.on(ranks, 0, epoch).sample_order(), whole)
        many = run.on(ranks, 2, epoch)
        delivered = np.concatenate([batch for batches in many.all_batches() for batch in batches])
        np.testing.assert_array_equal(np.sort(delivered), np.sort(whole))
    if batching == "per_batch":
        return
    for epoch in (0, 2):
        whole, batches_read = run.on(1, epoch=epoch).sample_order(), list[Int64]()
        passing = run.on(1, epoch=epoch)
        for taken, ranks, workers in [(5, 8, 0), (2, 3, 2)]:
            batches_read += [batch for batches in passing.all_batches() for batch in batches[:taken]]
            passing = passing.after(taken, ranks, workers)
        batches_read += [batch for batches in passing.all_batches() for batch in batches]
        np.testing.assert_array_equal(np.sort(np.concatenate(batches_read)), np.sort(whole))


@pytest.mark.parametrize("shuffle", [True, False])
def test_weights_of_one_change_nothing(paths: list[str], shuffle: bool) -> None:
    weighted = [zarrfeed.open(path).weight(np.ones(n)) for path, n in zip(paths, LENGTHS, strict=True)]
    for batching in ("per_sample", "per_batch"):
        runs = [
            Run.of(zarrfeed.mix(sources, WEIGHTS, stop=200, batching=batching), shuffle=shuffle)
            for sources in (paths, weighted)
        ]
        for epoch in (0, 3):
            one, other = (run.on(1, epoch=epoch).sample_order() for run in runs)
            np.testing.assert_array_equal(one, other)


def test_loaders_deliver_what_plans_list_and_resume(paths: list[str]) -> None:
    data = mixed(paths)
    dataset = dataset_of(data, batch_size=16)
    orders = [dataset.sample_order(epoch) for epoch in range(3)]
    for epoch_order in orders:
        np.testing.assert_array_equal(np.concatenate(read(dataset)), epoch_order)
    assert "weighted: the most frequent sample comes" in str(dataset.explain())
    dataset.set_epoch(1)
    passing = iter(dataset)
    taken = read([next(passing) for _ in range(3)])
    other = dataset_of(data, batch_size=4)
    other.load_state_dict(dataset.state_dict())
    np.testing.assert_array_equal(np.concatenate([*taken, *read(other)]), orders[1])
    three = map(zarrfeed.open, paths)
    with pytest.raises(ConfigError, match="weights"):
        dataset_of(zarrfeed.mix(three, WEIGHTS), batch_size=4).load_state_dict(dataset.state_dict())


def test_it_prints_compares_and_pickles(paths: list[str]) -> None:
    data = mixed(paths)
    assert pickle.loads(pickle.dumps(data)) == data == mixed(paths)
    assert data != zarrfeed.mix(paths, WEIGHTS)
    assert ".balance(" in repr(data)
    copied = dataset_of(pickle.loads(pickle.dumps(data)))
    np.testing.assert_array_equal(copied.sample_order(4), dataset_of(data).sample_order(4))


def test_windows_and_many_stores_of_weighted_sources(paths: list[str]) -> None:
    windows = zarrfeed.open(paths[:2]).window((0, 2))
    weights = RNG.random(len(windows)) ** 4
    data = zarrfeed.mix([windows.weight(weights), zarrfeed.open(paths[2]).window((0, 2))], [2, 1], stop=600)
    taken = []
    for samples, index in dataset_of(data):
        np.testing.assert_array_equal(samples[:, :, 0].numpy() // 100, index[:, None].numpy() + np.array([0, 2]))
        taken.append(index.numpy().copy())
    whole = np.concatenate(taken)
    expected = np.zeros(FIRST[-1])
    expected[[*range(LENGTHS[0] - 2), *range(LENGTHS[0], LENGTHS[0] + LENGTHS[1] - 2)]] = expected_of(weights)
    of_first_pass = whole[whole < FIRST[2]][: round(expected.sum()) - 44]  # the passes overlap there
    assert (np.bincount(of_first_pass, minlength=FIRST[-1]) <= np.ceil(expected)).all()


def test_explain_bounds_what_is_decoded_and_bad_samples_are_replaced(tmp_path: Path) -> None:
    paths = write_sources(tmp_path)
    data = mixed(paths, stop=400)
    dataset = dataset_of(data)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        predicted, before = dataset.explain().fields[0].chunk_reads, dataset.stats().chunks_read
        read(dataset)
        # of any mixture it counts the chunks of whole groups, of which the epoch may need a part
        decoded = dataset.stats().chunks_read - before
        assert decoded <= predicted <= 1.3 * decoded
    (Path(paths[0]) / "c/3/0").write_bytes(b"torn")
    with pytest.warns(zarrfeed.ChunkSkippedWarning):
        taken = np.concatenate(read(dataset_of(data, faults={"on_error": "skip"})))
    whole = dataset_of(data).sample_order(0)
    assert not ((taken >= 24) & (taken < 32)).any()
    good = (whole < 24) | (whole >= 32)
    np.testing.assert_array_equal(taken[good], whole[good])
    assert (taken[~good] < LENGTHS[0]).all()


def test_what_cannot_be_is_refused(paths: list[str]) -> None:
    data = mixed(paths)
    with pytest.raises(ConfigError, match=r"sources of the mixture are weighted; call weight\(\) or balance\(\) last"):
        data.select(slice(10))
    with pytest.raises(ConfigError, match=r"sources of the mixture are weighted"):
        data.window((0, 1))
    for weights, message in (
        (np.ones(4), "give a mapping of the numbers of sources"),
        ({0: np.ones(3)}, r"have the shape \(3,\), must be"),
        ({2: np.ones(LENGTHS[2])}, "weights of source 2, which has none"),
        ({7: np.ones(3)}, "weights of source 7, which has none"),
        ({0: np.ones(LENGTHS[0])}, "must be 0 where they were"),
        ({1: -np.ones(LENGTHS[1])}, "must be finite and not negative"),
    ):
        with pytest.raises(ConfigError, match=message):
            data.with_weights(weights)
    changed = data.with_weights({1: np.ones(LENGTHS[1])})
    assert changed != data
    assert changed == data.with_weights({1: np.arange(1, LENGTHS[1] + 1)}).with_weights({1: np.ones(LENGTHS[1])})
    with pytest.raises(ConfigError, match="no weights yet"):
        zarrfeed.mix(paths, WEIGHTS).with_weights({0: QUALITY})


def test_other_weights_are_named_by_columns_of_the_mixture() -> None:
    sources = []
    for n in (70, 30):
        group = zarr.create_group({})
        for name, values in (("x", np.arange(n)), ("quality", RNG.random(n) + 0.1)):
            group.create_array(name, data=values, dimension_names=("sample",))
        sources.append((zarrfeed.open(group, variables=["x"]), values))
    (one, quality), (two, _) = sources
    data = zarrfeed.mix([one.weight(np.ones(70)), two.weight("quality")], [2, 1])
    for named, weights in (
        ("quality", quality),
        (lambda quality: quality**2, quality**2),
        ({"quality": np.sqrt}, np.sqrt(quality)),
    ):
        changed, counts = data.with_weights({0: named}), data.with_weights({0: weights}).resolved.counts
        assert counts is not None
        assert changed.resolved.counts is not None
        assert changed.resolved.counts.digest == counts.digest
        assert repr(changed).count("with_weights") == 1
    with pytest.raises(ConfigError, match="no coordinate 'nothing'"):
        data.with_weights({0: "nothing"})
    with pytest.raises(ConfigError, match="weights of source 2, which has none"):
        data.with_weights({2: "quality"})


def test_weights_are_those_of_their_samples_where_blocks_are_boxes() -> None:
    """The samples of boxes come box by box, and had the weights of samples in the order of their numbers."""
    sources, firsts = [], (0, 80)
    for (members, times), first in zip(((4, 20), (2, 6)), firsts, strict=True):
        group, x = zarr.create_group({}), first + np.arange(members * times).reshape(members, times)
        group.create_array("x", data=x, chunks=(3, 7), dimension_names=("member", "time"))
        sources.append(zarrfeed.open(group, sample_dim=("member", "time"), variables=["x"]))
    weights = [RNG.random(80) ** 3, RNG.random(12)]
    weights[0][::3] = 0
    data = zarrfeed.mix([one.weight(w) for one, w in zip(sources, weights, strict=True)], [4, 1], stop=600)
    run = Run.of(data, batch_size=6)
    samples = run.sample_order()
    source, position = run.schedule.order.taken_at(np.arange(600))  # type: ignore[attr-defined]
    for number, (first, given) in enumerate(zip(firsts, weights, strict=True)):
        mine, n = source == number, len(given)
        for one in range(position[mine].max() // n):
            check_counts(samples[mine & (position // n == one)] - first, expected_of(given))


def test_weights_of_sources_change_between_epochs(paths: list[str]) -> None:
    other = np.where(QUALITY > 0, RNG.random(LENGTHS[0]) + 0.1, 0)
    balance = RNG.random(LENGTHS[1]) + 0.1
    data = mixed(paths, stop=200)
    with dataset_of(data, batch_size=10) as dataset, dataset_of(data, batch_size=10) as resumed:
        first = np.concatenate(read(dataset))
        dataset.set_sample_weights({0: other, 1: balance})
        planned = [dataset.sample_order(epoch) for epoch in range(1, 6)]
        second = np.concatenate(read(dataset))
        np.testing.assert_array_equal(second, planned[0])
        source, position = dataset.session.schedule.order.taken_at(np.arange(200, 1200))  # type: ignore[attr-defined]
        samples = np.concatenate(planned)
        for number, expected in ((0, expected_of(other)), (1, expected_of(balance, 90)), (2, EXPECTED[2])):
            n, mine = round(expected.sum()), source == number
            for one in np.unique(position[mine] // n):
                of_pass = samples[mine & (position // n == one)] - FIRST[number]
                if len(of_pass) == n:
                    check_counts(of_pass, expected)
        passing = iter(dataset)
        taken = [next(passing)[1] for _ in range(3)]
        state = dataset.state_dict()
        with pytest.raises(ConfigError, match="call set_sample_weights"):
            resumed.load_state_dict(state)
        resumed.set_sample_weights({0: other})
        resumed.set_sample_weights({1: balance})
        resumed.load_state_dict(state)
        np.testing.assert_array_equal(np.concatenate([*taken, *read(resumed)]), planned[1])
        loader = zarrfeed.ZarrDataLoader(dataset, num_workers=1, persistent_workers=True)
        dataset.set_epoch(3)
        np.testing.assert_array_equal(np.concatenate(read(loader)), planned[2])
        dataset.set_sample_weights({0: QUALITY, 1: balanced(LABEL)})
        again = np.concatenate(read(loader))
        assert dataset.session.editions.current.weights is None  # those that it was made with
    with dataset_of(data, batch_size=10) as dataset:
        np.testing.assert_array_equal(dataset.sample_order(0), first)
        np.testing.assert_array_equal(dataset.sample_order(4), again)
