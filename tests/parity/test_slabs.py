"""Orders whose blocks are slabs of chunks, read by the engine in every mode: against NumPy, and what is promised."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

import zarrfeed
from tests.support.decodes import check_decodes
from tests.support.examples import is_large, tries
from zarrfeed import ChunkSkippedWarning, ConfigError, CorruptChunkError, Data, ZarrDataLoader, ZarrIterableDataset
from zarrfeed.metadata.description import slab_choice
from zarrfeed.plan.blocks import slab_cost
from zarrfeed.spec.description.edition import FIRST_REACHES
from zarrfeed.spec.fields.field import StoredField

ROWS, WIDTH, N = 12, 8192, 12 * 20 + 5
#: Stores of one chunk each, of two lengths.
YEARS = ((0, 30), (30, 61), (61, 91), (91, 121), (121, 152))
BLOSC = BloscCodec(cname="lz4", clevel=1, blocksize=2048)


def values(width: int, dtype: str) -> np.ndarray[Any, Any]:
    """Return rows that say which one they are, in their first item and in noise behind it."""
    noise = np.random.default_rng(width).integers(0, 100, (N, width))
    noise[:, 0] = np.arange(N)
    return noise.astype(dtype)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slabs")

    def create(name: str, data: np.ndarray[Any, Any], rows: int, codecs: Any = BLOSC, **options: Any) -> None:
        chunks = options.pop("chunks", (rows, *data.shape[1:]))
        array = zarr.create_array(
            path / name, shape=data.shape, chunks=chunks, dtype=data.dtype, compressors=codecs, **options
        )
        array[:] = data

    x = values(WIDTH, "f4")
    create("plain", x, ROWS)
    create("big", x.astype(">f4"), ROWS)
    create("zstd", x, ROWS, ZstdCodec())
    create("raw", x, ROWS, None)
    create("sharded", x, ROWS, shards=(3 * ROWS, WIDTH))
    create("cells", x, ROWS, chunks=(ROWS, WIDTH // 4))
    create("short", values(64, "f8"), ROWS)
    create("long", values(2048, "f4"), 80)
    create("others", values(4096, "i2"), 8)
    create("along", np.ascontiguousarray(x.T), ROWS, chunks=(WIDTH, ROWS), dimension_names=("x", "time"))
    for number in range(3):
        create(f"store{number}", x[number * 80 : (number + 1) * 80], ROWS)
    for number, (begin, end) in enumerate(YEARS):
        create(f"year{number}", x[begin:end], end - begin)
    return path


def random_of(name: str) -> random.Random:
    """Return a generator that is the same in each run."""
    return random.Random(name)


def opened(folder: Path, name: str) -> Data:
    if name == "stores":
        return zarrfeed.concat([zarrfeed.open(folder / f"store{number}") for number in range(3)])
    if name == "years":
        return zarrfeed.concat([zarrfeed.open(folder / f"year{number}") for number in range(len(YEARS))])
    if name == "along":
        return zarrfeed.open(zarr.open_array(folder / "along"), sample_dim="time")
    if name == "two":
        return zarrfeed.open(folder / "plain", folder / "others")
    return zarrfeed.open(folder / name)


def make(data: Data, rows: int, **options: Any) -> ZarrIterableDataset:
    mixing = {"block": rows, **options.pop("mixing", {})}
    options = {"batch_size": 8, "shuffle": True, "seed": 3, "memory_budget": "256MiB", **options}
    return ZarrIterableDataset(data, return_index=True, mixing=mixing, **options)


def check(batch: Any, offsets: tuple[int, ...] = ()) -> list[int]:
    """Check the number that each row of a batch says; return the samples."""
    *tensors, index = batch
    expected = index.numpy() if not offsets else index.numpy()[:, None] + offsets
    for tensor in tensors:
        assert np.array_equal(tensor[..., 0].numpy(), expected)
    return list(index.tolist())


def check_source(batch: Any) -> list[int]:
    """Return the samples of a batch whose rows say the same numbers."""
    samples, index = batch
    assert np.array_equal(samples[:, 0].numpy(), index.numpy())
    return list(index.tolist())


@pytest.mark.parametrize(
    "name", ["plain", "big", "raw", "sharded", "cells", "short", "along", "stores", "years", "two"]
)
@pytest.mark.parametrize("slab_rows", [(1, 6), (5, 30)])
def test_an_epoch_of_slabs_has_each_sample_once_with_its_own_rows(
    folder: Path, name: str, slab_rows: tuple[int, int]
) -> None:
    data = opened(folder, name)
    for rows in slab_rows:
        dataset = make(data, rows, mixing={"mix": 1 + rows % 2})
        for epoch in range(2):
            got = [i for batch in dataset for i in check(batch)]
            assert sorted(got) == list(range(len(data))), (rows, epoch)
            assert got == dataset.sample_order(epoch).tolist(), (rows, epoch)
        chunk_rows = {"years": 31}.get(name, ROWS)
        assert dataset.explain().slab_rows == (rows if rows < chunk_rows else 0)
        dataset.close()


@pytest.mark.parametrize("name", ["plain", "raw", "sharded", "cells"])
def test_an_epoch_decodes_as_much_as_explain_says(folder: Path, name: str) -> None:
    for rows, offsets in ((1, ()), (4, ()), (5, ()), (3, (0, 1)), (4, (-2, 0, 3))):
        if offsets and name == "raw":
            continue  # a row of two windows counts twice where nothing has to be decoded
        data = opened(folder, name)
        data = data.window(offsets) if offsets else data
        with make(data, rows, mixing={"lanes": 2}) as dataset:
            for batch in dataset:
                check(batch, offsets)
            field = dataset.explain().fields[0]
            (stored,) = dataset.data.resolved.fields
            assert isinstance(stored, StoredField)
            spec = stored.spec
            predicted = field.amplification * field.chunks * spec.decoded_bytes
            assert dataset.stats().bytes_decoded == pytest.approx(predicted, rel=0.02), (rows, offsets)


def read_windows(
    dataset: ZarrIterableDataset, x: np.ndarray[Any, Any], offsets: tuple[int, ...], steps: int
) -> list[int]:
    """Read up to so many batches; check each item of each row; return the samples."""
    got: list[int] = []
    for samples, index in itertools.islice(dataset, steps):
        rows = index.numpy()[:, None] + offsets
        assert np.array_equal(samples.numpy(), x[rows])
        got += index.tolist()
    return got


@pytest.mark.parametrize("name", ["plain", "big", "raw", "sharded", "cells", "stores", "years", "along", "zstd"])
def test_windows_find_their_rows_in_runs_that_lanes_hand_on_and_decode_all_others(folder: Path, name: str) -> None:
    """Each row says all of its items: a row outside of a run that was handed on must not be taken from its memory."""
    draw, x, data = random_of(name), values(WIDTH, "f4"), opened(folder, name)
    for _ in range(tries(2, 4)):
        rows, offsets = draw.choice((1, 2, 3, 5, 7)), draw.choice(((0, 1), (-2, 0, 3), tuple(range(6)), (0, 9)))
        chosen = data.window(offsets)
        if name == "plain" and draw.random() < 0.5:
            chosen = data.select(slice(11, 210)).window(offsets)
        options: dict[str, Any] = {
            "mixing": {"lanes": draw.choice((2, 5)), "mix": draw.choice((1, 1, 2))},
            "memory_budget": draw.choice(("16MiB", "64MiB", "1GiB")),
            "num_threads": draw.choice((1, 3)),
            "even": "off",
        }
        ranks, then, steps = draw.choice(((1, 1, 3), (2, 3, 2), (3, 2, 1)))
        runs = [make(chosen, rows, rank=rank, world_size=ranks, **options) for rank in range(ranks)]
        order = runs[0].sample_order(0) if ranks == 1 else None
        expected = sorted(i for rank in runs for i in rank.sample_order(0).tolist())
        used = [i for run in runs for i in read_windows(run, x, offsets, steps)]
        state = json.loads(json.dumps(runs[0].state_dict()))
        rest = []
        for rank in range(then):
            with make(chosen, rows, rank=rank, world_size=then, **options) as run:
                run.load_state_dict(state)
                rest += read_windows(run, x, offsets, 1000)
        for run in runs:
            run.close()
        assert sorted(used + rest) == expected, (rows, offsets, options)
        assert order is None or used + rest == order.tolist()


def test_a_state_of_slabs_that_hand_no_rows_on_goes_on_in_its_order_and_in_later_epochs(folder: Path) -> None:
    """Releases before wrote version 4: slabs with windows, in strips of one slab each."""
    offsets, x, data = (0, 1, 2), values(WIDTH, "f4"), opened(folder, "plain")
    carried = make(data.window(offsets), 2)
    assert carried.explain().strip > 1
    old = make(data.window(offsets), 2)
    old.load_state_dict(as_version_4(old.state_dict()))
    orders = [read_windows(old, x, offsets, 1000), read_windows(old, x, offsets, 1000)]
    assert orders[0] != carried.sample_order(0).tolist()
    again = make(data.window(offsets), 2)
    again.load_state_dict(as_version_4(again.state_dict()))
    used = read_windows(again, x, offsets, 5)
    state = json.loads(json.dumps(again.state_dict()))
    assert (state["version"], state["slab_rows"], "carries_rows" in state) == (4, 2, False)
    resumed = pickle.loads(pickle.dumps(make(data.window(offsets), 2)))
    resumed.load_state_dict(state)
    assert used + read_windows(resumed, x, offsets, 1000) == orders[0]
    assert read_windows(resumed, x, offsets, 1000) == orders[1]
    new = carried.state_dict()
    assert (new["version"], new["carries_rows"], new["strip_reaches"]) == (6, True, 32)
    resumed.load_state_dict(new)
    assert read_windows(resumed, x, offsets, 1000) == carried.sample_order(0).tolist()
    for damaged in ({"carries_rows": "yes"}, {"carries_rows": True, "slab_rows": 0}):
        with pytest.raises(ConfigError, match="carries_rows"):
            resumed.load_state_dict({**new, **damaged})
    for wrong in ("8", True, 0, -8, 1 << 40):
        with pytest.raises(ConfigError, match="strip_reaches"):
            resumed.load_state_dict({**new, "strip_reaches": wrong})


def test_a_state_of_short_strips_goes_on_with_them_in_its_epoch_and_in_later_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases before wrote version 5, whose strips have 8 times the rows that slabs share."""
    offsets, x, data = (0, 1, 2), values(WIDTH, "f4"), opened(folder, "plain").window((0, 1, 2))
    options: dict[str, Any] = {"mixing": {"lanes": 8}}
    with monkeypatch.context() as patch:
        patch.setattr(slab_choice, "_LONG_REACHES", FIRST_REACHES)
        old = make(data, 1, **options)
    orders = [old.sample_order(epoch).tolist() for epoch in range(2)]
    used = read_windows(old, x, offsets, 5)
    state = json.loads(json.dumps(old.state_dict()))
    assert (state["version"], "strip_reaches" in state) == (5, False)
    new = pickle.loads(pickle.dumps(make(data, 1, **options)))
    assert new.explain().strip > old.explain().strip
    assert new.sample_order(0).tolist() != orders[0]
    new.load_state_dict(state)
    assert used + read_windows(new, x, offsets, 1000) == orders[0]
    assert read_windows(new, x, offsets, 1000) == orders[1]
    later = new.state_dict()
    assert (later["version"], later["carries_rows"], later["epoch"]) == (5, True, 2)


def test_slabs_that_hand_no_rows_on_find_the_rows_that_they_share_cached(folder: Path) -> None:
    offsets, x = (-1, 0, 4), values(WIDTH, "f4")
    for name in ("plain", "big"):
        data = opened(folder, name).window(offsets)
        decodes = {}
        for budget in ("256MiB", "8MiB"):
            with make(data, 5, memory_budget=budget, mixing={"lanes": 4, "mix": 2}) as dataset:
                state = dataset.state_dict()
                dataset.load_state_dict(as_version_4(state) if state["version"] > 4 else state)
                told = dataset.explain()
                assert (told.slab_rows, told.strip) == (5, 1)
                assert sorted(read_windows(dataset, x, offsets, 1000)) == list(range(1, N - 4))
                decodes[budget] = told.fields[0].amplification
                used = dataset.stats()
                predicted = decodes[budget] * told.fields[0].chunks * ROWS * WIDTH * 4
                assert used.bytes_decoded == pytest.approx(predicted, rel=0.02), (name, budget)
                assert used.batch_memory_bytes + used.scratch_bytes <= 256 << 20
        assert decodes["256MiB"] <= 1.02 < 1.3 < decodes["8MiB"]


def as_version_4(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a dataset from which nothing was read, as an earlier release would have saved it."""
    assert state["version"] in (5, 6)
    later = ("carries_rows", "strip_reaches", "strip")
    return {**{name: value for name, value in state.items() if name not in later}, "version": 4}


def test_windows_of_several_arrays_with_unlike_chunks_are_handed_on_together(folder: Path) -> None:
    offsets = (0, 1, 2)
    data = opened(folder, "two").window({"samples": offsets, "targets": offsets})

    def read(dataset: ZarrIterableDataset) -> None:
        assert [i for batch in dataset for i in check(batch, offsets)] == dataset.sample_order(0).tolist()

    for rows, mix in ((1, 1), (2, 2), (5, 1), (6, 1)):
        # so little memory that the smaller array is not kept as a whole
        with make(data, rows, mixing={"lanes": 3, "mix": mix}, memory_budget="24MiB") as dataset:
            told = dataset.explain()
            assert told.strip > 1
            stored = list(zip(told.fields, (ROWS * WIDTH * 4, 8 * 4096 * 2), strict=False))  # the third is the index
            said = sum(one.amplification * one.chunks * size for one, size in stored)
            most = sum((one.most_chunk_reads or one.chunk_reads) * size for one, size in stored)
            check_decodes(dataset, read, said, most, 0.1)
            assert [i for batch in dataset for i in check(batch, offsets)] == dataset.sample_order(1).tolist()


def test_workers_hand_rows_on_each_in_its_own_lanes(folder: Path) -> None:
    offsets, x = (0, 1, 2), values(WIDTH, "f4")
    dataset = make(opened(folder, "plain").window(offsets), 2)
    loader = ZarrDataLoader(dataset, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        got: list[int] = []
        for samples, index in loader:
            assert np.array_equal(samples.numpy(), x[index.numpy()[:, None] + offsets])
            got += index.tolist()
        assert sorted(got) == list(range(N - 2))


def test_a_bad_chunk_whose_runs_are_handed_on_counts_once_and_replaces_the_same_samples(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x", shape=(N, WIDTH), chunks=(ROWS, WIDTH), dtype="f4", compressors=BLOSC)
    array[:] = values(WIDTH, "f4")
    bad, missing = (tmp_path / "x" / "c" / number / "0" for number in ("3", "7"))
    stored = bytearray(bad.read_bytes())
    stored[len(stored) // 2 :] = bytes(len(stored) - len(stored) // 2)
    bad.write_bytes(stored)
    missing.unlink()
    offsets = (0, 1, 2)
    data = zarrfeed.open(tmp_path / "x").window(offsets)
    with make(data, 2, faults={"on_error": "skip"}) as dataset:
        with pytest.warns(ChunkSkippedWarning):
            batches = list(dataset)
        assert len(dataset.skipped_chunks()) == 1
        for samples, index in batches:
            rows, known = samples[..., 0].numpy(), index.numpy()[:, None] + offsets
            shifted = rows - np.arange(3)
            absent = (known >= 7 * ROWS) & (known < 8 * ROWS)
            own = (rows == known) | absent
            replaced = ~own.all(axis=1)
            assert (shifted[replaced] // ROWS != 3).all()


def test_slabs_that_hand_rows_on_stay_within_their_memory(folder: Path) -> None:
    offsets = tuple(range(6))
    for rows in (1, 2):
        with make(opened(folder, "plain").window(offsets), rows, memory_budget="48MiB", mixing={"lanes": 8}) as dataset:
            assert dataset.explain().strip > 1
            for batch in dataset:
                check(batch, offsets)
            used = dataset.stats()
            assert used.batch_memory_bytes + used.scratch_bytes <= 48 << 20


@pytest.mark.parametrize("batch_size", [8, 48])
def test_lanes_of_single_samples_need_two_open_batches_however_many_they_are(folder: Path, batch_size: int) -> None:
    x, offsets = values(WIDTH, "f4"), tuple(range(6))
    data = opened(folder, "plain").window(offsets)
    options: dict[str, Any] = {"batch_size": batch_size, "mixing": {"lanes": 48}, "memory_budget": "48MiB"}
    ranks = [make(data, 1, rank=rank, world_size=2, even="off", **options) for rank in range(2)]
    explained = ranks[0].explain()
    assert explained.strip > 1
    assert explained.memory.required_batches == 2
    assert explained.max_open_batches < explained.lanes
    got = [i for rank in ranks for i in read_windows(rank, x, offsets, 2)]
    alone = make(data, 1, **options)
    alone.load_state_dict(ranks[1].state_dict())
    got += read_windows(alone, x, offsets, N)
    assert sorted(got) == list(range(N - 5))
    for dataset in (*ranks, alone):
        dataset.close()


def test_selections_splits_and_windows_are_cut_like_whole_arrays(folder: Path) -> None:
    data = opened(folder, "plain")
    cases: list[tuple[Data, tuple[int, ...]]] = [
        (data.select(slice(7, 200)), ()),
        (data.select(slice(1, None, 5)), ()),
        (data.select([3, 4, 5, 60, 61, 130, 7, 244]), ()),
        *((part, ()) for part in data.split([0.6, 0.4], by="chunk", seed=1)),
        *((part, ()) for part in data.split([0.6, 0.4], by="sample", seed=1)),
        (data.blocks([0, 4, 5, 20]), ()),
        (data.window((0, 1)), (0, 1)),
        (data.window((0, 1), segment_ends=[50, 51, 120, N]), (0, 1)),
        (data.select(slice(20, 180)).window((-3, 0, 5)), (-3, 0, 5)),
    ]
    for number, (chosen, offsets) in enumerate(cases):
        with make(chosen, 5, mixing={"lanes": 3}) as dataset, make(chosen, 99) as whole:
            got = [i for batch in dataset for i in check(batch, offsets)]
            assert sorted(got) == sorted(whole.sample_order(0).tolist()), number


def test_sources_of_a_mixture_have_slabs_in_the_same_proportions(folder: Path) -> None:
    sources = [zarrfeed.open(folder / f"year{number}") for number in range(3)]
    data = zarrfeed.mix([sources[0], sources[1].select(slice(2, 28)), sources[2]], weights=[3, 1, 1], stop="longest")
    for rows in (1, 4):
        with make(data, rows) as dataset, make(data, 99) as whole:
            assert (dataset.explain().slab_rows, whole.explain().slab_rows) == (rows, 0)
            for epoch in range(2):
                got = [i for batch in dataset for i in check_source(batch)]
                assert got == dataset.sample_order(epoch).tolist()
                expected = whole.sample_order(epoch)
                assert len(got) == len(expected)
                counts = [np.histogram(order, (0, 30, 61, 91))[0].tolist() for order in (got, expected)]
                assert counts[0] == counts[1], (rows, epoch)
            first = next(iter(dataset))
            state = dataset.state_dict()
            with make(data, rows) as resumed:
                resumed.load_state_dict(state)
                rest = [i for batch in resumed for i in check_source(batch)]
            assert check_source(first) + rest == dataset.sample_order(2).tolist()


@pytest.mark.parametrize("rows", [1, 5])
def test_ranks_share_slabs_and_other_ranks_go_on_where_they_stopped(folder: Path, rows: int) -> None:
    data = opened(folder, "two")
    for ranks, stop, then in ((8, 2, 4), (2, 5, 1), (3, 1, 2)):
        runs = [make(data, rows, rank=rank, world_size=ranks, even="off") for rank in range(ranks)]
        iterators = [iter(run) for run in runs]
        used = [i for _ in range(stop) for one in iterators for i in check(next(one))]
        state = json.loads(json.dumps(runs[0].state_dict()))
        assert (state["version"], state["slab_rows"]) == (4, rows)
        rest = []
        for rank in range(then):
            run = pickle.loads(pickle.dumps(make(data, rows, rank=rank, world_size=then, even="off")))
            run.load_state_dict(state)
            rest += [i for batch in run for i in check(batch)]
        assert sorted(used + rest) == list(range(N)), (ranks, stop, then)
        for run in runs:
            run.close()


def test_workers_read_slabs_and_their_loader_resumes(folder: Path) -> None:
    def loader() -> ZarrDataLoader:
        dataset = make(opened(folder, "plain"), 5)
        return ZarrDataLoader(dataset, num_workers=2, multiprocessing_context="fork")

    first = loader()
    batches = iter(first)
    used = [i for _ in range(9) for i in check(next(batches))]
    state = first.state_dict()
    del batches
    resumed = loader()
    resumed.load_state_dict(state)
    assert sorted(used + [i for batch in resumed for i in check(batch)]) == list(range(N))
    assert sorted(i for batch in resumed for i in check(batch)) == list(range(N))  # the next epoch


def test_a_state_of_whole_chunks_goes_on_with_whole_chunks_in_its_epoch_and_in_later_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (slab_choice, slab_cost):
        monkeypatch.setattr(module, "LEAST_BYTES", 1)  # so that chunks of a test are cut
    options: dict[str, Any] = {
        "batch_size": 8,
        "shuffle": True,
        "seed": 3,
        "memory_budget": "3MiB",
        "return_index": True,
    }

    def read(dataset: ZarrIterableDataset) -> list[int]:
        return [i for batch in dataset for i in check(batch)]

    data = opened(folder, "long")
    whole = ZarrIterableDataset(data, mixing={"block": "chunk"}, **options)
    expected = [whole.sample_order(epoch).tolist() for epoch in range(3)]
    used = check(next(iter(whole)))
    state = whole.state_dict()
    assert "slab_rows" not in state
    assert state["version"] == 2

    cut = ZarrIterableDataset(data, **options)
    assert cut.explain().slab_rows > 0
    orders = [cut.sample_order(epoch).tolist() for epoch in range(2)]
    assert read(cut) == orders[0]
    cut.load_state_dict(state)
    assert used + read(cut) == expected[0]
    assert cut.explain().slab_rows == 0
    assert read(cut) == expected[1]
    cut.set_epoch(2)
    assert read(cut) == expected[2]
    again = pickle.loads(pickle.dumps(ZarrIterableDataset(data, **options)))
    again.set_epoch(1)
    assert read(again) == orders[1]


def test_a_state_of_slabs_goes_on_in_a_dataset_that_would_choose_whole_chunks(folder: Path) -> None:
    data = opened(folder, "plain")
    cut = make(data, 5)
    iterator = iter(cut)
    used = check(next(iterator))
    state = cut.state_dict()
    unnamed = ZarrIterableDataset(data, batch_size=8, shuffle=True, seed=3, memory_budget="256MiB", return_index=True)
    assert unnamed.explain().slab_rows == 0
    unnamed.load_state_dict(state)
    assert used + [i for batch in unnamed for i in check(batch)] == cut.sample_order(0).tolist()
    assert [i for batch in unnamed for i in check(batch)] == cut.sample_order(1).tolist()
    for named in (99, 4):
        with pytest.raises(ConfigError, match="order of slabs of 5 rows, and mixing has block"):
            make(data, named).load_state_dict(state)
    for other, reason in ((data.patch({1: 16}), "patches"), (np.zeros((N, WIDTH)), "no chunks")):
        with pytest.raises(ConfigError, match=f"the state is of an order of slabs of 5 rows, but .*{reason}"):
            ZarrIterableDataset(other, batch_size=8, shuffle=True, seed=3).load_state_dict(state)
    for damaged in (-1, True, "5"):
        with pytest.raises(ConfigError, match="slab_rows"):
            unnamed.load_state_dict({**state, "slab_rows": damaged})


DAMAGES: dict[str, Any] = {
    "too short": lambda stored: stored[:100],
    "nearly whole": lambda stored: stored[:-1],
    "header": lambda stored: bytes([9]) + stored[1:],
    "size of a chunk": lambda stored: stored[:4] + (1 << 20).to_bytes(4, "little") + stored[8:],
    "begin of a block": lambda stored: stored[:16] + (1 << 30).to_bytes(4, "little") + stored[20:],
}


@pytest.mark.parametrize(
    ("codec", "damage"), [("raw", "too short"), ("raw", "nearly whole"), *(("blosc", damage) for damage in DAMAGES)]
)
def test_a_bad_chunk_of_slabs_counts_once_and_replaces_the_same_samples_on_any_number_of_ranks(
    codec: str, damage: str, tmp_path: Path
) -> None:
    compressor = None if codec == "raw" else BLOSC
    array = zarr.create_array(
        tmp_path / "x", shape=(N, WIDTH), chunks=(ROWS, WIDTH), dtype="f4", compressors=compressor
    )
    array[:] = values(WIDTH, "f4")
    for chunk in (3, 7):
        path = tmp_path / "x" / "c" / str(chunk) / "0"
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    bad = {*range(3 * ROWS, 4 * ROWS), *range(7 * ROWS, 8 * ROWS)}
    data = zarrfeed.open(tmp_path / "x")

    def on_rank(rank: int, ranks: int, max_errors: int = 2) -> ZarrIterableDataset:
        faults: dict[str, Any] = {"on_error": "skip", "max_errors": max_errors}
        return make(data, 5, rank=rank, world_size=ranks, even="off", faults=faults, mixing={"mix": 2, "lanes": 4})

    def read(batches: Any) -> list[tuple[int, int]]:
        return [
            pair
            for samples, index in batches
            for pair in zip(index.tolist(), samples[:, 0].int().tolist(), strict=True)
        ]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ChunkSkippedWarning)
        with on_rank(0, 1) as alone:
            expected = sorted(read(alone))
            assert len(expected) == N
            assert all(index == row and row not in bad for index, row in expected)
            assert sorted(one.key for one in alone.skipped_chunks()) == ["c/3/0", "c/7/0"]
            assert alone.stats().chunks_skipped == 2
        with on_rank(0, 1, max_errors=1) as strict, pytest.raises(CorruptChunkError, match="max_errors = 1"):
            read(strict)
        for ranks in (3,):
            got = []
            for rank in range(ranks):
                with on_rank(rank, ranks) as dataset:
                    got += read(dataset)
                    assert dataset.stats().chunks_skipped == len({one.key for one in dataset.skipped_chunks()}) <= 2
            assert sorted(got) == expected, ranks
        if damage != "too short" and not is_large():
            return
        with on_rank(0, 1) as of_workers:
            loader = ZarrDataLoader(of_workers, num_workers=2, multiprocessing_context="fork")
            assert sorted(read(loader)) == expected
        runs = [on_rank(rank, 2) for rank in range(2)]
        passes = [iter(run) for run in runs]
        got = [pair for _ in range(5) for one in passes for pair in read([next(one)])]
        state = runs[0].state_dict()
        for run in runs:
            run.close()
        for rank in range(3):
            with on_rank(rank, 3) as resumed:
                resumed.load_state_dict(state)
                got += read(resumed)
        assert sorted(got) == expected
