"""`select(keep_order=True)` and `epoch_size` against NumPy: whose sample comes where, whoever reads it.

Every sample holds its own index in the array. Plans are listed on 1 to 8 ranks, with workers, and after states; some of
them are read.
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
from tests.support.sparse import numbered_rows, put_csr
from zarrfeed import ConfigError, Data, ZarrDataLoader, ZarrDataset, ZarrIterableDataset
from zarrfeed.packing.sources.arrays.data_source import check_packable

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification"),
]

N, CHUNK = 600, 25
RNG = np.random.default_rng(0)
LISTED = RNG.integers(0, N, 450)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return numbered(tmp_path_factory.mktemp("given") / "x.zarr", N, CHUNK, label=np.arange(N) % 3)


def opened(store: str) -> Data:
    return zarrfeed.open(store, sample_dim="time", variables=["x"])


def listed(store: str) -> Data:
    return opened(store).select(LISTED, keep_order=True)


def values(batch: Any) -> Int64:
    """Return the samples of a batch of (samples, index), which both of these say."""
    samples, index = batch
    assert np.array_equal(samples["x"].reshape(len(index), -1)[:, 0].numpy(), index.numpy())
    taken: Int64 = index.numpy().copy()
    return taken


def global_batches(run: Run, most: int | None = None) -> list[Int64]:
    """Return the batches of all ranks together."""
    ranks = [batches[:most] for batches in run.all_batches()]
    return [interleaved([one[i] for one in ranks if i < len(one)]) for i in range(max(map(len, ranks)))]


# The order

FORMS: dict[str, tuple[Any, Int64]] = {
    "with repetitions": (LISTED.tolist(), LISTED),
    "from the end": ([-1, 5, -1], np.array([N - 1, 5, N - 1])),
    "backwards": (slice(None, None, -1), np.arange(N)[::-1]),
    "a mask": (np.arange(N) % 7 == 0, np.arange(0, N, 7)),
}


@pytest.mark.parametrize("form", FORMS)
def test_samples_come_in_the_order_of_the_list(store: str, form: str) -> None:
    select, expected = FORMS[form]
    data = opened(store).select(select, keep_order=True)
    assert len(data) == len(expected)
    with dataset_of(data, shuffle=False) as dataset:
        for epoch in range(2):
            batches = [values(batch) for batch in dataset]
            assert [len(one) for one in batches[:-1]] == [8] * (len(batches) - 1)
            assert np.array_equal(np.concatenate(batches), expected)
            assert np.array_equal(dataset.sample_order(epoch), expected)
    by_index = ZarrDataset(data)
    assert len(by_index) == len(expected)
    assert by_index[[0, 2, -1]]["x"][:, 0].tolist() == expected[[0, 2, -1]].tolist()


def test_positions_are_those_of_what_was_chosen_before(store: str) -> None:
    few = np.arange(N)[100:400:3]
    data = opened(store).where(label=lambda label: label == 1)[33:133].select([7, 7, 0], keep_order=True)
    assert order_of(data).tolist() == few[[7, 7, 0]].tolist()
    by_block = opened(store).blocks([1, 3]).select([30, 0], keep_order=True)
    assert order_of(by_block).tolist() == [80, 25]
    again = listed(store)
    assert order_of(again[10:20]).tolist() == LISTED[10:20].tolist()
    assert order_of(again.head(3)).tolist() == LISTED[:3].tolist()
    assert order_of(again[[5, 3]]).tolist() == LISTED[[3, 5]].tolist(), "positions of a filter ascend"
    assert order_of(again.select([5, 3, 3], keep_order=True)).tolist() == LISTED[[5, 3, 3]].tolist()


def order_of(data: Data, epoch: int = 0, **options: Any) -> Int64:
    with dataset_of(data, **({"shuffle": False} | options)) as dataset:
        return dataset.sample_order(epoch)


# The samples that are read


def many(folder: Path) -> Data:
    """Write stores of three layouts, one of which comes twice, so that a span has samples of all."""
    first, paths = 0, []
    for number, (length, chunk) in enumerate([(170, 16), (33, 9), (7, 9), (90, 30)]):
        group = zarr.create_group(folder / f"{number}.zarr")
        x = np.arange(first, first + length)[:, None] + np.zeros(2, dtype=int)
        group.create_array("x", data=x, chunks=(chunk, 2), fill_value=-1)
        paths.append(str(folder / f"{number}.zarr"))
        first += length
    return zarrfeed.open(paths)


def array(folder: Path, chunk: int = CHUNK, **options: Any) -> Data:
    x = np.arange(300)[:, None] + np.zeros(2, dtype=int)
    return zarrfeed.open({"x": zarr.create_array(folder, data=x, chunks=(chunk, 2), fill_value=-1, **options)})


def stacked(folder: Path) -> Data:
    arrays = {
        name: zarr.create_array(folder / name, data=np.arange(300.0), chunks=(chunk,), fill_value=-1)
        for name, chunk in (("a", 25), ("b", 40))
    }
    return zarrfeed.open(arrays).stack(["a", "b"], name="x")


LAYOUTS: dict[str, Callable[[Path], Data]] = {
    "many stores": many,
    "windows": lambda folder: array(folder).window((0, 1, -3)),
    "padded windows": lambda folder: array(folder).window((0, 30), pad="edge"),
    "chunks of a row": lambda folder: array(folder, 1),
    "shards": lambda folder: array(folder, 5, shards=(50, 2)),
    "in memory": lambda _: zarrfeed.open({"x": np.arange(300)[:, None] + np.zeros(2, dtype=int)}),
    "stacked": stacked,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_in_order_with_the_decodes_that_explain_tells(layout: str, tmp_path: Path) -> None:
    data = LAYOUTS[layout](tmp_path / "x")
    chosen = np.asarray(data.resolved.choice.listed())
    positions = RNG.integers(0, len(chosen), 400)
    ordered = data.select(positions, keep_order=True)
    for memory in (None, "1MiB"):
        with dataset_of(ordered, shuffle=False, memory_budget=memory) as dataset:
            for _ in range(2):
                told, before = dataset.explain(), dataset.stats().chunks_read
                assert np.array_equal(np.concatenate([values(batch) for batch in dataset]), chosen[positions])
                if layout != "stacked":  # whose fields are read into memory
                    assert dataset.stats().chunks_read - before == told.fields[0].chunk_reads
    for positions_asked in ([3], [5, 1, 1]):
        found = ZarrDataset(ordered, return_index=True)[positions_asked]
        assert found[1].tolist() == chosen[positions[positions_asked]].tolist()


def test_spans_of_small_memory_decode_a_chunk_once_each_on_every_rank(tmp_path: Path) -> None:
    x = np.arange(400)[:, None] + np.zeros(2000, dtype=int)
    stored = zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(20, 2000), fill_value=-1)
    data = zarrfeed.open({"x": stored}).select(RNG.permutation(400), keep_order=True)
    for ranks, small, large in ((1, "4MiB", "1GiB"), (3, "8MiB", "1GiB")):
        decodes = []
        for memory in (small, large):
            with dataset_of(data, shuffle=False, memory_budget=memory, world_size=ranks, rank=ranks - 1) as dataset:
                told = dataset.explain()
                assert np.array_equal(np.concatenate([values(batch) for batch in dataset]), dataset.sample_order(0)), (
                    "read as listed"
                )
                assert dataset.stats().chunks_read == told.fields[0].chunk_reads
                assert told.given is not None
                assert (told.given.num_spans > 1) == (memory == small)
                decodes.append(told.fields[0].chunk_reads)
                text = str(told)
                assert "given by select(keep_order=True): 400 samples an epoch, 400 different ones" in text
                assert "keep_order=False decodes it once" in text
                assert ("larger memory_budget=" in text) == (memory == small)
                assert ("decoded by up to 3 ranks" in text) == (ranks == 3)
        assert decodes[1] == 20 < decodes[0]


def test_sparse_rows_and_text_come_in_order(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "cells.zarr", attributes={"encoding-type": "anndata"})
    matrix = numbered_rows(300, 40)
    put_csr(group.create_group("X"), matrix)
    positions = RNG.integers(0, 300, 200)
    data = zarrfeed.open(str(tmp_path / "cells.zarr"), variables=["X"]).select(positions, keep_order=True)
    taken = []
    for samples, index in dataset_of(data, shuffle=False):
        rows = samples["X"] if isinstance(samples, dict) else samples
        assert np.array_equal(rows.to_dense().numpy(), matrix[index.numpy()])
        taken.append(index.numpy().copy())
    assert np.array_equal(np.concatenate(taken), positions)
    names = zarr.create_array(tmp_path / "names", shape=(300,), dtype="str", chunks=(30,))
    names[:] = np.array([f"name {i}" for i in range(300)])
    ordered = zarrfeed.open(names).select(positions, keep_order=True)
    read = [name for samples, _ in dataset_of(ordered, shuffle=False) for name in samples]
    assert read == [f"name {i}" for i in positions.tolist()]


def test_a_skipped_chunk_is_replaced(tmp_path: Path) -> None:
    path = numbered(tmp_path / "x.zarr", N, CHUNK)
    (tmp_path / "x.zarr/x/c/7/0").write_bytes(b"torn")
    with (
        pytest.warns(zarrfeed.ChunkSkippedWarning),
        dataset_of(listed(path), shuffle=False, faults={"on_error": "skip"}) as dataset,
    ):
        taken = np.concatenate([values(batch) for batch in dataset])
    good = LISTED // CHUNK != 7
    assert np.array_equal(taken[good], LISTED[good])
    assert np.isin(taken, LISTED).all()
    assert not (taken // CHUNK == 7).any()


# Who reads it


@pytest.fixture(scope="module")
def runs(store: str) -> dict[tuple[str, int | None], Run]:
    """Return the runs of one rank over a list and over all samples, with and without an epoch size."""
    sizes = (None, 37, 1000)
    of_list = {("list", size): Run.of(listed(store), shuffle=False, batch_size=4, epoch_size=size) for size in sizes}
    rest = {
        (name, size): Run.of(opened(store), shuffle=name == "shuffled", batch_size=4, epoch_size=size)
        for name in ("shuffled", "in order")
        for size in (37, 1000)
    }
    return of_list | rest


def sequence(runs: dict[tuple[str, int | None], Run], name: str, size: int | None, epoch: int) -> Int64:
    """Return what an epoch has, from what is listed or from the passes that the first epochs of one rank show."""
    length = size or len(LISTED)
    if name == "shuffled":
        run = runs[name, size]
        return run.on(1, 0, epoch).sample_order()
    endless = LISTED if name == "list" else np.arange(N)
    return np.take(endless, np.arange(epoch * length, (epoch + 1) * length), mode="wrap")


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_global_batches_are_the_same_on_any_ranks_and_workers(
    runs: dict[tuple[str, int | None], Run], ranks: int
) -> None:
    for (name, size), run in runs.items():
        for workers in (0, 3):
            expected = sequence(runs, name, size, 3)
            on = run.on(ranks, workers, 3)
            if name == "shuffled" and workers:  # which take strides
                taken = np.concatenate([batch for batches in on.all_batches() for batch in batches])
                assert np.array_equal(np.sort(taken), np.sort(expected))
                continue
            batches = global_batches(on)
            assert np.array_equal(np.concatenate(batches), expected)
            assert [len(one) for one in batches[:-1]] == [4 * ranks] * (len(batches) - 1)


@examples(25)
@given(st.data())
def test_an_epoch_goes_on_exactly_on_other_ranks_and_workers(
    runs: dict[tuple[str, int | None], Run], data: st.DataObject
) -> None:
    name, size = data.draw(st.sampled_from(sorted(runs, key=str)))
    epoch = data.draw(st.integers(0, 4))
    expected = sequence(runs, name, size, epoch)
    run = runs[name, size].on(1, 0, epoch)
    taken = [np.zeros(0, np.int64)]
    for ranks, workers in [(8, 0), (3, 2), (2, 0)]:
        if run.batches_left < 2:
            break
        count = data.draw(st.integers(0, min(run.batches_left - 1, 40)))
        taken += global_batches(run, count)
        run = run.after(count, ranks, workers)
        assert run.state.epoch == epoch
    taken += global_batches(run)
    found = np.concatenate(taken)
    if name == "shuffled":  # workers took strides
        found, expected = np.sort(found), np.sort(expected)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("even", ["drop", "repeat"])
def test_ranks_share_an_epoch_evenly(runs: dict[tuple[str, int | None], Run], even: Any) -> None:
    for (name, size), run in runs.items():
        on = run.on(5, 2, 1, even=even)
        counts = {sum(map(len, batches)) for batches in on.all_batches()}
        length = size or len(LISTED)
        assert counts == {length // 5 if even == "drop" else -(-length // 5)}
        if even == "drop" and name != "shuffled":
            found = np.concatenate(global_batches(on))
            assert np.array_equal(found, sequence(runs, name, size, 1)[: len(found)])


def test_a_checkpoint_of_a_loader_goes_on_exactly(store: str) -> None:
    with dataset_of(listed(store), shuffle=False) as dataset:
        loader = ZarrDataLoader(dataset, num_workers=2)
        taken = []
        for number, batch in enumerate(loader):
            taken.append(values(batch))
            if number == 20:
                state = loader.state_dict()
                break
    with dataset_of(listed(store), shuffle=False) as fresh:
        loader = ZarrDataLoader(fresh, num_workers=0)
        loader.load_state_dict(state)
        taken += [values(batch) for batch in loader]
    assert np.array_equal(np.concatenate(taken), LISTED)
    for unlike in (opened(store), opened(store).select(np.append(LISTED[:-1], 0), keep_order=True)):
        with dataset_of(unlike, shuffle=False) as other, pytest.raises(ConfigError, match="given was"):
            other.load_state_dict(state)


# Epochs of their own length


@pytest.mark.parametrize("size", [37, 600, 1000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_epochs_go_on_where_the_last_one_ended(store: str, size: int, shuffle: bool) -> None:
    with dataset_of(opened(store), shuffle=shuffle, epoch_size=size) as dataset:
        assert len(dataset) == -(-size // 8)
        epochs = [dataset.sample_order(epoch) for epoch in range(-(-2 * N // size))]
        read = [np.concatenate([values(batch) for batch in dataset]) for _ in range(3)]
        assert all(map(np.array_equal, read, epochs))
        passes = np.concatenate(epochs)[: 2 * N].reshape(2, N)
        assert np.array_equal(np.sort(passes, axis=1), np.tile(np.arange(N), (2, 1))), "each pass has each sample once"
        assert np.array_equal(passes[0], passes[1]) != shuffle
        assert shuffle or np.array_equal(passes[0], np.arange(N))
        dataset.set_epoch(1)
        assert np.array_equal(np.concatenate([values(batch) for batch in dataset]), epochs[1])
        told = dataset.explain()
        assert told.steps == size
        assert "the next one goes on where it ends" in str(told)
        state = dataset.state_dict()
        assert state["order"]["epoch_size"] == size
        assert state["next"] == {"pass": 2 * size // N, "position": 2 * size % N}
    with (
        dataset_of(opened(store), shuffle=shuffle, epoch_size=size + 1) as other,
        pytest.raises(ConfigError, match=f"epoch_size was {size}, is {size + 1}"),
    ):
        other.load_state_dict(state)


def test_an_epoch_of_part_of_a_list_reads_its_spans_alone(store: str) -> None:
    with dataset_of(listed(store), shuffle=False, epoch_size=200) as dataset:
        for epoch in range(4):
            told, before = dataset.explain(), dataset.stats().chunks_read
            taken = np.concatenate([values(batch) for batch in dataset])
            assert np.array_equal(taken, np.take(LISTED, np.arange(200 * epoch, 200 * epoch + 200), mode="wrap"))
            assert dataset.stats().chunks_read - before == told.fields[0].chunk_reads
            assert told.given is not None
            assert told.given.distinct == len(np.unique(taken))


# Reports and refusals


def test_a_description_prints_compares_hashes_and_pickles(store: str) -> None:
    data = opened(store)
    ordered = data.select([5, 3, 3], keep_order=True)
    assert repr(ordered).endswith(".select([5, 3, 3], keep_order=True)")
    assert ordered == data.select((5, 3, 3), keep_order=True) != data.select([3, 5, 3], keep_order=True)
    assert data.select([5, 3], keep_order=True) != data.select([5, 3])
    assert hash(ordered) == hash(data.select([5, 3, 3], keep_order=True))
    copy = pickle.loads(pickle.dumps(ordered))
    assert copy == ordered
    assert order_of(copy).tolist() == [5, 3, 3]
    assert ordered.cast("float32").resolved.given is ordered.resolved.given
    assert "given for 3 samples" in ordered._repr_html_()
    zarrfeed.check_disjoint(ordered, data[10:])


LAST = r"call select\(keep_order=True\) last of what chooses samples"
REFUSED: dict[str, tuple[Callable[[Data], Any], str]] = {
    "shuffled": (lambda data: ZarrIterableDataset(data, shuffle=True), "says in which order samples come"),
    "where": (lambda data: data.where(label=lambda label: label > 0), f"where: .*{LAST}"),
    "sel": (lambda data: data.sel(label=1), f"sel: .*{LAST}"),
    "isel": (lambda data: data.isel(time=[1]), f"isel: .*{LAST}"),
    "blocks": (lambda data: data.blocks([0]), f"blocks: .*{LAST}"),
    "window": (lambda data: data.window((0, 1)), f"window: .*{LAST}"),
    "split": (lambda data: data.split((0.5, 0.5)), f"split: .*{LAST}"),
    "weight": (lambda data: data.weight(np.ones(450)), "which says how often each comes"),
    "patch": (lambda data: data.patch({0: 2}), r"patch\(positions=\) lists patches"),
    "mix": (lambda data: zarrfeed.mix([data, data]), "cannot be an input of zarrfeed.mix; mix takes"),
    "concat": (
        lambda data: zarrfeed.concat([data, data]),
        "an input of zarrfeed.concat; select of the result",
    ),
    "join": (lambda data: zarrfeed.join({"a": data, "b": data}), "select of the result"),
    "pack": (check_packable, "pack: .*pack without keep_order"),
    "no flag": (
        lambda data: data.select([1], keep_order=1),  # type: ignore[arg-type]
        "keep_order = 1, must be True or False",
    ),
    "out of range": (lambda data: data.select([450], keep_order=True), r"index 450, must be in \[-450, 449\]"),
    "nothing": (lambda data: data.select([], keep_order=True), "selects nothing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_ordered_says_why(store: str, case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        call(listed(store))


NO_EPOCHS: dict[str, tuple[Callable[[Data], Data], str]] = {
    "weights": (lambda data: data.weight(np.ones(N)), r"weight\(n=\)"),
    "mixtures": (lambda data: zarrfeed.mix([data, data]), r"zarrfeed.mix\(stop=\)"),
    "patches": (lambda data: data.patch({"time": 2}), r"patch\(n=\)"),
}


@pytest.mark.parametrize("case", NO_EPOCHS)
def test_epochs_that_have_a_length_of_their_own_say_where(store: str, case: str) -> None:
    make, message = NO_EPOCHS[case]
    with pytest.raises(ConfigError, match=f"epoch_size is not for .*{message}"):
        ZarrIterableDataset(make(opened(store)), epoch_size=10)


def test_options_that_do_not_fit_an_epoch_size_say_why(store: str) -> None:
    with pytest.raises(ConfigError, match="epoch_size = 0, must be at least 1"):
        ZarrIterableDataset(opened(store), epoch_size=0)
    with pytest.raises(TypeError, match="it is an argument of ZarrIterableDataset"):
        ZarrDataset(opened(store), epoch_size=10)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"names sample 3 more than once.*keep_order=True"):
        opened(store).select([3, 3])
