"""`Data.weight` and `Data.balance` against NumPy: how often each sample comes, wherever and by whomever it is read.

Every sample holds its own index in the array. Plans are listed on 1 to 8 ranks, with workers, in every `even` and
`drop_last`, and after states; some of them are read.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from tests.support.mixtures import dataset_of, interleaved
from tests.support.numbered import numbered
from tests.support.runs import Int64, Run
from tests.support.sparse import numbered_rows, put_column, put_csr
from zarrfeed import ConfigError, Data, ZarrDataLoader, ZarrDataset, ZarrIterableDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification"),
]

N, CHUNK = 1500, 25
RNG = np.random.default_rng(0)
LABEL = RNG.choice(4, N, p=[0.7, 0.2, 0.08, 0.02])
QUALITY = RNG.random(N) * (RNG.random(N) > 0.1)
KINDS = np.array(["T cell", "B cell", "NK cell", "monocyte"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("weights") / "x.zarr"
    made = numbered(path, N, CHUNK, label=LABEL, quality=QUALITY)
    obs = zarr.open_group(path).create_group("obs")
    put_column(obs, "kind", "categorical", codes=LABEL.astype("i1"), categories=KINDS)
    return made


def opened(store: str) -> Data:
    return zarrfeed.open(store, sample_dim="time", variables=["x"])


def expected_of(weights: Any, n: int | None = None) -> np.ndarray:
    given = np.asarray(weights, dtype=float)
    return np.asarray((len(given) if n is None else n) * given / given.sum())


def check_counts(samples: Any, expected: np.ndarray) -> None:
    """Check that each sample came as often as is expected of it, rounded up or down, and all of them together."""
    counts = np.bincount(samples, minlength=len(expected))
    assert counts.sum() == round(expected.sum())
    wrong = np.flatnonzero((counts < np.floor(expected - 1e-6)) | (counts > np.ceil(expected + 1e-6)))
    assert not len(wrong), (wrong[:5], counts[wrong[:5]], expected[wrong[:5]])


def balanced(label: np.ndarray, power: float = 1.0) -> np.ndarray:
    return np.asarray((1 / np.bincount(label)[label]) ** power)


def values(batch: Any) -> Int64:
    """Return the samples of a batch of (samples, index), which both of these say."""
    samples, index = batch
    x = samples["x"] if isinstance(samples, dict) else samples
    assert np.array_equal(x.reshape(len(x), -1)[:, 0].numpy(), index.numpy())
    taken: Int64 = index.numpy().copy()
    return taken


# Where weights come from

FORMS: dict[str, tuple[Callable[[Data], Data], np.ndarray]] = {
    "an array": (lambda data: data.weight(QUALITY), expected_of(QUALITY)),
    "a column": (lambda data: data.weight("quality"), expected_of(QUALITY)),
    "an epoch of another length": (lambda data: data.weight("quality", n=401), expected_of(QUALITY, 401)),
    "whole numbers": (lambda data: data.weight(LABEL, n=int(LABEL.sum())), LABEL.astype(float)),
    "a function": (lambda data: data.weight(lambda quality: quality**2), expected_of(QUALITY**2)),
    "of two columns": (
        lambda data: data.weight(lambda quality, label: quality * (label + 1)),
        expected_of(QUALITY * (LABEL + 1)),
    ),
    "a mapping": (
        lambda data: data.weight({"quality": np.sqrt, "label": lambda label: label + 1}),
        expected_of(np.sqrt(QUALITY) * (LABEL + 1)),
    ),
    "classes": (lambda data: data.balance("label"), expected_of(balanced(LABEL))),
    "softened": (lambda data: data.balance("label", power=0.5), expected_of(balanced(LABEL, 0.5))),
    "as they are": (lambda data: data.balance("label", power=0), np.ones(N)),
    "names of classes": (lambda data: data.balance(KINDS[LABEL], n=300), expected_of(balanced(LABEL), 300)),
    "categories of AnnData": (lambda data: data.balance("obs/kind"), expected_of(balanced(LABEL))),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_samples_come_as_often_as_their_weights_say(store: str, form: str, shuffle: bool) -> None:
    weigh, expected = FORMS[form]
    data = weigh(opened(store))
    assert len(data) == round(expected.sum())
    with dataset_of(data, shuffle=shuffle) as dataset:
        for epoch in range(3):
            taken = np.concatenate([values(batch) for batch in dataset])
            check_counts(taken, expected)
            assert np.array_equal(taken, dataset.sample_order(epoch))
            assert shuffle or (np.diff(taken) >= 0).all()


def test_classes_come_equally_often(store: str) -> None:
    order = order_of(opened(store).balance("label"), 0)
    assert np.abs(np.bincount(LABEL[order]) - N / 4).max() < 40
    softened = np.bincount(LABEL[order_of(opened(store).balance("label", power=0.5), 0)])
    ratio = np.bincount(LABEL)[0] / np.bincount(LABEL)[3]
    assert softened[0] / softened[3] == pytest.approx(ratio**0.5, rel=0.15)


def order_of(data: Data, epoch: int, **options: Any) -> Int64:
    with dataset_of(data, **options) as dataset:
        return dataset.sample_order(epoch)


def most_among_neighbours(samples: Int64, neighbours: int = 64) -> int:
    """Return how often a sample comes among that many that follow each other, at most."""
    order = np.argsort(samples, kind="stable")
    same, most = samples[order], 1
    while ((same[most:] == same[:-most]) & (order[most:] - order[:-most] < neighbours)).any():
        most += 1
    return most


@pytest.mark.parametrize("shares", ["classes", "quality"])
def test_a_sample_comes_among_64_neighbours_hardly_more_often_than_by_independent_draws(
    store: str, shares: str
) -> None:
    """In the order of all ranks. One of 8 ranks reads an eighth of the chunks: there it comes up to twice as often."""
    weights = balanced(LABEL) if shares == "classes" else QUALITY**8
    run, rng = Run.of(opened(store).weight(weights), batch_size=8), np.random.default_rng(2)
    draws = [rng.choice(N, N, p=weights / weights.sum()) for _ in range(8)]
    orders = [run.on(1, 0, epoch).sample_order() for epoch in range(8)]
    assert max(map(most_among_neighbours, orders)) <= 1 + max(map(most_among_neighbours, draws))
    of_ranks = [np.concatenate(batches) for epoch in range(3) for batches in run.on(8, 0, epoch).all_batches()]
    of_draws = [one[rank::8] for one in draws for rank in range(8)]
    assert max(map(most_among_neighbours, of_ranks)) <= 2 * max(map(most_among_neighbours, of_draws))


def test_weights_are_of_the_samples_that_were_chosen_before(store: str) -> None:
    data = opened(store).where(label=lambda label: label > 0)
    few = np.flatnonzero(LABEL > 0)
    for weighted in (data.weight(QUALITY[few]), data.weight(QUALITY), data.weight("quality")):
        expected = np.zeros(N)
        expected[few] = expected_of(QUALITY[few])
        check_counts(order_of(weighted, 1), expected)
    train, validation = opened(store).split((0.8, 0.2))
    zarrfeed.check_disjoint(train.balance("label"), validation)
    assert len(train.balance("label")) == len(train) == 1200


# What is read

STORES = (700, 33, 20, 747)


def many(tmp_path: Path) -> Data:
    first, paths = 0, []
    for number, length in enumerate(STORES):
        group = zarr.create_group(tmp_path / f"{number}.zarr")
        x = np.arange(first, first + length)[:, None] + np.zeros(2, dtype=int)
        group.create_array("x", data=x, chunks=(CHUNK + number, 2))
        paths.append(str(tmp_path / f"{number}.zarr"))
        first += length
    return zarrfeed.open(paths)


def windows(tmp_path: Path) -> Data:
    x = np.arange(N)[:, None] + np.zeros(2, dtype=int)
    array = zarr.create_array(tmp_path / "w.zarr", data=x, chunks=(CHUNK, 2))
    return zarrfeed.open({"x": array}).window((0, 1, -3))


def large_rows(tmp_path: Path) -> Data:
    x = np.arange(N)[:, None] + np.zeros(2, dtype=int)
    return zarrfeed.open({"x": zarr.create_array(tmp_path / "l.zarr", data=x, chunks=(600, 2))})


def single_rows(tmp_path: Path) -> Data:
    x = np.arange(300)[:, None] + np.zeros(2, dtype=int)
    return zarrfeed.open({"x": zarr.create_array(tmp_path / "s.zarr", data=x, chunks=(1, 2))})


def in_memory(tmp_path: Path) -> Data:
    del tmp_path
    return zarrfeed.open({"x": np.arange(N)[:, None] + np.zeros(2, dtype=int)})


def stacked(tmp_path: Path) -> Data:
    arrays = {
        name: zarr.create_array(tmp_path / name, data=np.arange(N) + 0.0, chunks=(chunk,))
        for name, chunk in (("a", 25), ("b", 40))
    }
    return zarrfeed.open(arrays).stack(["a", "b"], name="x")


def sharded(tmp_path: Path) -> Data:
    x = np.arange(N)[:, None] + np.zeros(2, dtype=int)
    return zarrfeed.open({"x": zarr.create_array(tmp_path / "sh.zarr", data=x, chunks=(5, 2), shards=(50, 2))})


LAYOUTS = [many, windows, large_rows, single_rows, in_memory, stacked, sharded]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_layout_is_read_by_weights(layout: Callable[[Path], Data], shuffle: bool, tmp_path: Path) -> None:
    data = layout(tmp_path)
    chosen = np.asarray(data.resolved.choice.listed())
    weights = RNG.random(len(chosen)) ** 6
    weights[::11] = 0
    expected = np.zeros(data.resolved.choice.num_samples)
    expected[chosen] = expected_of(weights)
    with dataset_of(data.weight(weights), shuffle=shuffle, memory_budget="64MiB") as dataset:
        for _ in range(2):
            check_counts(np.concatenate([values(batch) for batch in dataset]), expected)


def test_windows_of_repeated_samples_have_their_rows(tmp_path: Path) -> None:
    data = windows(tmp_path).weight(RNG.random(N - 4) ** 9)
    for samples, index in dataset_of(data):
        assert np.array_equal(samples["x"][:, :, 0].numpy(), index.numpy()[:, None] + np.array([0, 1, -3]))


def test_slabs_of_chunks_are_drawn_from(tmp_path: Path) -> None:
    x = np.arange(2000)[:, None] + np.zeros(1024, dtype=int)
    array = zarr.create_array(tmp_path / "slabs.zarr", data=x, chunks=(500, 1024), compressors=None)
    weights = RNG.random(2000) ** 5
    with dataset_of(zarrfeed.open({"x": array}).weight(weights), mixing={"block": 130}) as dataset:
        assert dataset.explain().slab_rows == 130
        for _ in range(2):
            check_counts(np.concatenate([values(batch) for batch in dataset]), expected_of(weights))


def test_sparse_rows_and_text_come_by_their_weights(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "cells.zarr", attributes={"encoding-type": "anndata"})
    matrix = numbered_rows(300, 40)
    put_csr(group.create_group("X"), matrix)
    obs = group.create_group("obs", attributes={"encoding-type": "dataframe", "_index": "name", "column-order": ["k"]})
    obs.create_array("name", data=np.array([f"c{i}" for i in range(300)]), chunks=(30,))
    put_column(obs, "k", "categorical", codes=LABEL[:300].astype("i1"), categories=KINDS)
    data = zarrfeed.open(str(tmp_path / "cells.zarr"), variables=["X"]).balance("obs/k")
    taken = []
    for samples, index in dataset_of(data):
        rows = samples["X"] if isinstance(samples, dict) else samples
        assert np.array_equal(rows.to_dense().numpy(), matrix[index.numpy()])
        taken.append(index.numpy().copy())
    check_counts(np.concatenate(taken), expected_of(balanced(LABEL[:300])))
    names = zarr.create_array(tmp_path / "names", shape=(300,), dtype="str", chunks=(30,))
    names[:] = np.array([f"name {i}" for i in range(300)])
    for samples, index in dataset_of(zarrfeed.open(names).weight(np.arange(300))):
        assert list(samples) == [f"name {i}" for i in index.tolist()]


# Who reads it

DATA: dict[str, Callable[[Data], Data]] = {
    "classes": lambda data: data.balance("label"),
    "few": lambda data: data.weight("quality", n=333),
}


@pytest.fixture(scope="module")
def runs(store: str) -> dict[tuple[str, bool], Run]:
    return {
        (name, shuffle): Run.of(weigh(opened(store)), shuffle=shuffle, batch_size=4)
        for name, weigh in DATA.items()
        for shuffle in (True, False)
    }


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("workers", [0, 3])
def test_the_order_does_not_depend_on_who_reads_it(
    runs: dict[tuple[str, bool], Run], name: str, ranks: int, workers: int
) -> None:
    for epoch in (0, 5):
        whole = runs[name, True].on(1, 0, epoch).sample_order()
        one = runs[name, True].on(ranks, workers, epoch)
        if not workers:
            assert np.array_equal(one.sample_order(), whole)
        taken = np.concatenate([batch for batches in one.all_batches() for batch in batches])
        assert np.array_equal(np.sort(taken), np.sort(whole))
        in_order = runs[name, False].on(ranks, workers, epoch)
        taken = np.concatenate([batch for batches in in_order.all_batches() for batch in batches])
        assert np.array_equal(np.sort(taken), np.sort(whole)), "without shuffling, an epoch draws the same samples"


@pytest.mark.parametrize("even", ["drop", "repeat", "off"])
@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_share_an_epoch_evenly(runs: dict[tuple[str, bool], Run], even: Any, drop_last: bool) -> None:
    for shuffle in (True, False):
        run = runs["few", shuffle].on(5, 2, 3, even=even, drop_last=drop_last)
        delivered = [np.concatenate(batches) for batches in run.all_batches()]
        lengths = {len(one) for one in delivered}
        assert max(lengths) - min(lengths) <= (0 if even != "off" else 4)
        counts = np.bincount(np.concatenate(delivered), minlength=N)
        whole = np.bincount(runs["few", True].on(1, 0, 3).sample_order(), minlength=N)
        if even == "off" and not drop_last:
            assert np.array_equal(counts, whole)
        if even == "drop":
            assert (counts <= whole).all()
        if even == "repeat" and not drop_last:
            assert (counts >= whole).all()


@examples(60)
@given(st.data())
def test_an_epoch_goes_on_exactly_on_other_ranks_and_workers(
    runs: dict[tuple[str, bool], Run], data: st.DataObject
) -> None:
    name, shuffle = data.draw(st.sampled_from(sorted(runs)))
    epoch = data.draw(st.integers(0, 9))
    run = runs[name, shuffle].on(1, 0, epoch)
    delivered = [np.zeros(0, np.int64)]
    for ranks, workers in [(8, 0), (3, 2), (2, 0)]:
        taken = data.draw(st.integers(0, min(run.batches_left - 1, 40)))
        delivered += [batch for batches in run.all_batches() for batch in batches[:taken]]
        run = run.after(taken, ranks, workers)
        assert run.state.epoch == epoch
        if run.batches_left < 2:
            break
    delivered += [batch for batches in run.all_batches() for batch in batches]
    whole = runs[name, shuffle].on(1, 0, epoch).sample_order()
    assert np.array_equal(np.sort(np.concatenate(delivered)), np.sort(whole))


def test_a_checkpoint_of_a_loader_goes_on_exactly(store: str) -> None:
    data = opened(store).balance("label")
    with dataset_of(data) as dataset:
        loader = ZarrDataLoader(dataset, num_workers=2)
        for _ in loader:  # epoch 0
            pass
        taken = []
        for number, batch in enumerate(loader):
            taken.append(values(batch))
            if number == 70:
                state = loader.state_dict()
                break
    with dataset_of(data) as fresh:
        loader = ZarrDataLoader(fresh, num_workers=0)
        loader.load_state_dict(state)
        taken += [values(batch) for batch in loader]
        assert np.array_equal(np.sort(np.concatenate(taken)), np.sort(fresh.sample_order(1)))
        check_counts(np.concatenate(taken), expected_of(balanced(LABEL)))
        assert zarrfeed.audit(taken) == zarrfeed.audit([fresh.sample_order(1)])
    for unlike in (opened(store), opened(store).balance("label", power=0.9)):
        with dataset_of(unlike) as other, pytest.raises(ConfigError, match="weights was"):
            other.load_state_dict(state)


def test_ranks_deliver_one_order(store: str) -> None:
    data = opened(store).weight("quality")
    parts = []
    for rank in range(3):
        with dataset_of(data, rank=rank, world_size=3) as dataset:
            parts.append(np.concatenate([values(batch) for batch in dataset]))
    assert np.array_equal(interleaved(parts), order_of(data, 0))


# What is said of it

SPREAD = {"even": RNG.random(N) + 0.5, "rare": np.where(RNG.random(N) < 0.02, 60.0, 1.0), "skewed": RNG.random(N) ** 20}


@pytest.mark.parametrize("spread", SPREAD)
def test_explain_predicts_what_is_decoded(store: str, spread: str) -> None:
    weights = SPREAD[spread]
    with dataset_of(opened(store).weight(weights)) as dataset:
        for _ in range(2):
            explained, before = dataset.explain(), dataset.stats().chunks_read
            taken = np.concatenate([values(batch) for batch in dataset])
            read = dataset.stats().chunks_read - before
            assert read == pytest.approx(explained.fields[0].chunk_reads, rel=0.02)
            shares = explained.weights
            assert shares is not None
            counts = np.bincount(taken)
            assert shares.most == counts.max()
            assert shares.distinct == np.count_nonzero(counts)
            assert shares.visits == explained.num_blocks <= 2 * N // CHUNK
            if expected_of(weights).max() <= 2:
                assert shares.visits == shares.num_blocks <= N // CHUNK
            text = str(explained)
            may_come = np.count_nonzero(dataset.data.resolved.expected.shares)  # type: ignore[union-attr]
            assert f"{N} samples an epoch, of {may_come} that may come" in text
            assert ("a block is read" in text) == (shares.visits > shares.num_blocks)


def test_a_description_prints_compares_hashes_and_pickles(store: str) -> None:
    data = opened(store)
    weighted = data.balance("label", power=0.5, n=99)
    assert repr(weighted).endswith(".balance('label', power=0.5, n=99)")
    assert repr(data.weight(lambda quality: quality)).endswith(".weight(<lambda>)")
    assert repr(data.weight([1.0] * 1499 + [2])).count("<1500 float64, sha256") == 1
    same, other = data.balance("label", power=0.5, n=99), data.balance("label", power=0.5, n=98)
    assert weighted == same != other
    assert hash(weighted) == hash(same)
    assert data.weight(lambda quality: quality) == data.weight(lambda quality: quality)
    assert data.weight(lambda quality: quality) != data.weight(lambda quality: quality**2)
    copy = pickle.loads(pickle.dumps(weighted))
    assert copy == weighted
    assert np.array_equal(order_of(copy, 2), order_of(weighted, 2))
    assert weighted.cast("float32").resolved.expected is weighted.resolved.expected
    page = weighted._repr_html_()
    assert "99 samples an epoch" in page
    with dataset_of(weighted) as dataset:
        assert len(dataset) == 13
        assert "99 an epoch by weights" in repr(dataset)


def test_a_skipped_chunk_is_replaced(tmp_path: Path) -> None:
    numbered(tmp_path / "x.zarr", N, CHUNK)
    (tmp_path / "x.zarr/x/c/7/0").write_bytes(b"torn")
    data = zarrfeed.open(str(tmp_path / "x.zarr")).weight(SPREAD["rare"])
    with (
        pytest.warns(zarrfeed.ChunkSkippedWarning),
        dataset_of(data, faults={"on_error": "skip"}) as dataset,
    ):
        taken = np.concatenate([values(batch) for batch in dataset])
    assert len(taken) == N
    assert not (taken // CHUNK == 7).any()


# What is refused

REFUSED: dict[str, tuple[Callable[[Data], Any], str]] = {
    "negative": (lambda data: data.weight(QUALITY - 0.5), r"number \d+ is -0\.\d+, must be finite and not negative"),
    "nan": (lambda data: data.weight(np.where(np.arange(N) == 9, np.nan, 1)), "number 9 is nan"),
    "short": (lambda data: data.weight([1.0, 2.0]), r"weights: has the shape \(2,\), must have a value for each of"),
    "zeros": (lambda data: data.weight(np.zeros(N)), "all 1500 are 0"),
    "text": (lambda data: data.weight(KINDS[LABEL]), "must be numbers"),
    "no column": (lambda data: data.weight("qualty"), "qualty"),
    "n": (lambda data: data.weight("quality", n=0), "n = 0, must be at least 1"),
    "power": (lambda data: data.balance("label", power=-1), "power = -1, must be a finite number of at least 0"),
    "no function": (
        lambda data: data.weight({"quality": 3}),  # type: ignore[dict-item]
        "must map columns to functions",
    ),
    "a scalar": (lambda data: data.weight(lambda quality: quality.sum()), "must give a weight for each"),
    "twice": (lambda data: data.balance("label").weight("quality"), "samples are weighted already"),
    "select": (
        lambda data: data.balance("label")[:10],
        r"select: samples are weighted; call weight\(\) or balance\(\) last",
    ),
    "where": (lambda data: data.balance("label").where("label > 0"), "where: samples are weighted"),
    "sel": (lambda data: data.balance("label").isel(time=slice(5)), "isel: samples are weighted"),
    "split": (lambda data: data.balance("label").split((0.5, 0.5)), "split: samples are weighted"),
    "blocks": (lambda data: data.balance("label").blocks([0]), "blocks: samples are weighted"),
    "window": (lambda data: data.balance("label").window((0, 1)), "window: samples are weighted"),
    "offsets": (lambda data: data.window((0, 1)).weight(np.ones(N - 1)).with_offsets((0, 2)), "samples are weighted"),
    "patch": (lambda data: data.balance("label").patch({"y": 1}), r"patch: samples are weighted.*patch\(weights=\)"),
    "patches": (lambda data: data.patch({"y": 1}).weight("quality"), r"weight: samples are patches.*patch\(weights=\)"),
    "mixture": (lambda data: zarrfeed.mix([data, data]).weight([1.0] * 2 * N), r"mixture.*mix\(weights=\)"),
    "concat": (lambda data: zarrfeed.concat([data.balance("label"), data]), "weight the result"),
    "map style": (lambda data: ZarrDataset(data.balance("label")), "use ZarrIterableDataset"),
    "nodes": (
        lambda data: ZarrIterableDataset(
            data.balance("label"), batch_size=4, affinity="node", rank=0, world_size=2
        ).explain(),
        "affinity = 'node' is not for weighted samples",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_with_what_to_do(store: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, message = REFUSED[case]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(ConfigError, match=message):
        make(opened(store))


def test_a_store_that_grows_is_refused(store: str) -> None:
    growing = zarrfeed.open(store, sample_dim="time", variables=["x"], refresh="epoch")
    with pytest.raises(ConfigError, match=r"balance\(\) cannot follow open\(..., refresh='epoch'\)"):
        growing.balance("label")
