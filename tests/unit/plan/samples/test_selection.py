"""`select=` and `split`: exactly the selected samples, through all that the order does, from only their chunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from tests.support.flat import iterable_dataset, split
from tests.support.oracle import Layout, raw_rows, read_all
from zarrfeed import ConfigError, ZarrIterableDataset, _core
from zarrfeed.compat.zarrdataset import ZarrIterableDataset as CompatDataset
from zarrfeed.plan.choice.split import block_parts
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.samples.selection import Int64, Selection, make_selection, select_samples

N, ROWS = 103, 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("select")
    Layout(shape=(N, 5), chunks=(ROWS, 3), codec="blosc-lz4-shuffle").write(path / "x")
    Layout(shape=(N, 2), chunks=(3, 2), dtype="i4").write(path / "y")
    return path


def dataset(store: Path, *targets: Any, **options: Any) -> ZarrIterableDataset:
    return iterable_dataset(store / "x", *targets, return_index=True, num_threads=2, **options)


def indices(batches: Any) -> Int64:
    got: Int64 = torch.cat([batch[-1] for batch in batches]).numpy()
    return got


@st.composite
def selects(draw: st.DrawFn, n: int = N) -> Any:
    """Draw what a user may pass."""
    kind = draw(st.sampled_from(["slice", "indices", "mask"]))
    if kind == "slice":
        limits = st.one_of(st.none(), st.integers(-n - 3, n + 3))
        step = draw(st.one_of(st.none(), st.integers(1, n), st.integers(-n, -1)))
        return slice(draw(limits), draw(limits), step)
    chosen = draw(st.lists(st.integers(0, n - 1), unique=True, max_size=n))
    if kind == "mask":
        return np.isin(np.arange(n), chosen)
    return np.array([i - n * draw(st.booleans()) for i in chosen], dtype=np.int64)


def selected(select: Any, n: int = N) -> Int64:
    """Return what numpy would take, ascending."""
    chosen: Int64 = np.sort(np.arange(n)[select])
    return chosen


# --- the order --------------------------------------------------------------------------------------------------


@st.composite
def selecting_orders(draw: st.DrawFn) -> tuple[Order, Int64]:
    n = draw(st.integers(1, 200))
    block_rows = draw(st.integers(1, n))
    select = draw(selects(n).filter(lambda s: len(selected(s, n)) > 0))
    chosen = selected(select, n)
    blocks = None
    if draw(st.booleans()):
        of = np.unique(chosen // block_rows)
        blocks = draw(st.lists(st.sampled_from(of.tolist()), min_size=1, unique=True))
        chosen = chosen[np.isin(chosen // block_rows, blocks)]
    order = Order(
        n,
        block_rows,
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 2**64 - 1)),
        lanes=draw(st.integers(1, min(12, len(chosen)))),
        mix=draw(st.integers(1, 4)),
        selection=make_selection(select, blocks, num_samples=n, block_rows=block_rows),
    )
    return order, chosen


@examples(80)
@given(selecting_orders(), st.integers(0, 5), st.integers(1, 7), st.integers(1, 20))
def test_the_selected_samples_stand_in_the_order_once_and_strides_partition_it(
    of: tuple[Order, Int64], epoch: int, stride: int, batch_size: int
) -> None:
    order, chosen = of
    assert order.length == len(chosen)
    epoch_order = _core.sample_order(order.plan(epoch).to_core())
    assert np.array_equal(np.sort(epoch_order), chosen)
    for first in range(stride):
        plan = order.plan(epoch, Portion(first=first, stride=stride))
        assert np.array_equal(_core.sample_order(plan.to_core()), epoch_order[first::stride])
        needed = _core.required_open_batches(plan.to_core(), batch_size)
        assert needed <= order.open_batches(batch_size, stride)
    if not order.shuffle and order.lanes == 1:
        assert np.array_equal(epoch_order, chosen)
    assert np.array_equal(np.unique(order.plan(epoch).segment_block), np.unique(chosen // order.block_rows))


@examples(80)
@given(st.integers(1, 120), st.data())
def test_a_selection_is_the_same_whatever_way_it_was_said(n: int, data: st.DataObject) -> None:
    select = data.draw(selects(n).filter(lambda s: len(selected(s, n)) > 0))
    block_rows = data.draw(st.integers(1, n))
    chosen = selected(select, n)
    made = make_selection(select, None, num_samples=n, block_rows=block_rows)
    again = make_selection(data.draw(st.permutations(chosen.tolist())), None, num_samples=n, block_rows=block_rows)
    if len(chosen) == n:
        assert made is None
        assert again is None
        return
    assert made is not None
    assert again is not None
    assert made.digest == again.digest
    assert np.array_equal(made.listed(), chosen)
    assert (made.samples is None) == (len(np.unique(np.diff(chosen))) <= 1), "what is evenly spaced needs no list"
    assert np.array_equal(made.blocks, np.unique(chosen // block_rows))
    apart = data.draw(st.integers(1, 9))
    held_index, begin, last = made.runs(apart)
    of_runs = [list(range(a, b + 1)) for a, b in zip(begin, last, strict=True)]
    assert not set(chosen) - ({i for run in of_runs for i in run}), "runs have all samples"
    assert all(
        (a // block_rows, b // block_rows) == (of, of)
        for a, b, of in zip(begin, last, made.blocks[held_index], strict=True)
    )
    assert all(np.diff(np.intersect1d(run, chosen)).max(initial=0) <= apart for run in of_runs)
    ends = np.diff(np.append(chosen, 2**40))
    assert len(held_index) == sum(
        d > apart or a // block_rows != (a + d) // block_rows for a, d in zip(chosen, ends, strict=True)
    )
    positions = np.array(data.draw(st.lists(st.integers(0, len(chosen) - 1), max_size=20)), dtype=np.int64)
    assert np.array_equal(made.samples_at(positions), chosen[positions])


def test_selections_that_differ_by_their_step_alone_have_other_digests() -> None:
    """Both have two samples of block 0, the first of which is sample 0."""
    every_second, every_third = (select_samples(slice(0, 4, step), 40) for step in (2, 3))
    assert isinstance(every_second, range)
    assert isinstance(every_third, range)
    first, second = (Selection.of_range(samples, 10) for samples in (every_second, every_third))
    for name in ("blocks", "rows", "first"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
    assert first.digest != second.digest


def test_a_digest_of_a_selection_stays_what_it_was() -> None:
    """States hold it: another digest of the same selection would end every run that resumes."""
    assert make_selection(slice(3, 40, 4), None, num_samples=50, block_rows=8).digest == "10 (0e27e832ac8f1a25)"  # type: ignore[union-attr]
    assert make_selection([1, 5, 6], None, num_samples=50, block_rows=8).digest == "3 (1f407760bdd893c4)"  # type: ignore[union-attr]
    assert make_selection(None, [1, 3], num_samples=50, block_rows=8).digest == "2 (8e8f6841378f772c)"  # type: ignore[union-attr]


def test_selections_that_differ_have_other_digests() -> None:
    selections = [
        Selection.of_range(range(10), 4),
        Selection.of_range(range(9), 4),
        Selection.of_range(range(1, 11), 4),
        Selection.of_range(range(0, 20, 2), 4),
        Selection.of_samples(np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 11]), 4),
        Selection.of_samples(np.array([0, 1, 2, 3, 4, 5, 6, 7, 9, 11]), 4),
    ]
    assert len({selection.digest for selection in selections}) == len(selections)


# --- the dataset ------------------------------------------------------------------------------------------------


@examples(25)
@given(
    select=selects().filter(lambda s: len(selected(s)) > 0),
    shuffle=st.booleans(),
    mix=st.integers(1, 3),
    batch_size=st.integers(1, 40),
    world_size=st.integers(1, 3),
    epoch=st.integers(0, 3),
)
def test_every_selected_sample_is_delivered_once_as_zarr_reads_it(store: Path, **options: Any) -> None:
    select, world_size, epoch = options.pop("select"), options.pop("world_size"), options.pop("epoch")
    chosen = selected(select)
    x, y = (raw_rows(read_all(store / name)) for name in ("x", "y"))
    seen = []
    for rank in range(world_size):
        with dataset(
            store, store / "y", select=select, rank=rank, world_size=world_size, even="off", **options
        ) as loader:
            loader.set_epoch(epoch)
            batches = list(loader)
            assert len(batches) == len(loader)
            if not batches:
                continue
            index = indices(batches)
            seen.append(index)
            assert np.array_equal(index, loader.sample_order(epoch))
            assert (raw_rows(torch.cat([b[0] for b in batches])) == x[index]).all()
            assert (raw_rows(torch.cat([b[1] for b in batches])) == y[index]).all()
    assert np.array_equal(np.sort(np.concatenate(seen)), chosen)


@examples(25)
@given(select=selects().filter(lambda s: len(selected(s)) > 0), shuffle=st.booleans(), data=st.data())
def test_a_run_over_a_selection_resumes_on_other_ranks(
    store: Path, select: Any, shuffle: bool, data: st.DataObject
) -> None:
    chosen = selected(select)
    batch_size, before, after = (data.draw(st.integers(1, 9)) for _ in range(3))
    options: dict[str, Any] = {"select": select, "shuffle": shuffle, "seed": 3, "even": "off"}
    taken: list[Int64] = []
    steps = data.draw(st.integers(0, len(chosen) // (batch_size * before)))
    state: Any = None
    for rank in range(before):
        with dataset(store, rank=rank, world_size=before, batch_size=batch_size, **options) as first:
            passed = iter(first)
            taken += [next(passed)[-1].numpy() for _ in range(min(steps, len(first)))]
            state = json.loads(json.dumps(first.state_dict()))
    if state["epoch"] == 1:
        return  # the first part was all of it
    for rank in range(after):
        with dataset(store, rank=rank, world_size=after, batch_size=batch_size, **options) as second:
            second.load_state_dict(state)
            taken += [batch[-1].numpy() for batch in second]
    assert np.array_equal(np.sort(np.concatenate(taken)), chosen)


def test_a_state_of_another_selection_is_refused(store: Path) -> None:
    with dataset(store, select=slice(0, 50), batch_size=4) as first:
        state = first.state_dict()
        assert state["order"]["blocks"] is None
    for select in (slice(0, 51), None, np.r_[0:49, 60]):
        with dataset(store, select=select, batch_size=4) as other, pytest.raises(ConfigError, match="select was"):
            other.load_state_dict(state)
    with dataset(store, select=np.arange(50), batch_size=4) as same:
        same.load_state_dict(state)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "select", [slice(10, 30), slice(3, None, 20), np.array([7, 8, 50, 102]), np.arange(N) % 24 == 1], ids=repr
)
def test_only_chunks_that_hold_selected_samples_are_read(store: Path, select: Any, shuffle: bool) -> None:
    chosen = selected(select)
    of_x, of_y = 2 * len(np.unique(chosen // ROWS)), len(np.unique(chosen // 3))
    options: dict[str, Any] = {"select": select, "shuffle": shuffle, "lanes": 1, "batch_size": 8}
    with dataset(store, {"y": store / "y"}, **options) as loader:
        explained = loader.explain()
        list(loader)
        resident = -(-N // 3)  # chunks of 3 do not nest in blocks of 8: the small field is kept in memory
        assert loader.stats().chunks_read == of_x + resident
        assert explained.fields[0].chunk_reads == of_x
        assert explained.fields[0].amplification == 1
        assert f"{len(chosen)} selected" in str(explained)
    with iterable_dataset(store / "y", num_threads=1, **options) as loader:
        list(loader)
        assert loader.stats().chunks_read == of_y == loader.explain().fields[0].chunk_reads


def test_select_and_blocks_compose(store: Path) -> None:
    with dataset(store, select=slice(0, 40, 3), blocks=[1, 3, 12], batch_size=4) as loader:
        assert indices(loader).tolist() == [9, 12, 15, 24, 27, 30]
    with pytest.raises(ConfigError, match="no sample in common"):
        dataset(store, select=slice(0, 8), blocks=[1])


def test_a_selection_works_on_arrays_in_memory_and_other_axes(tmp_path: Path) -> None:
    rows = np.arange(60).reshape(20, 3)
    with ZarrIterableDataset(zarrfeed.open(rows).select([5, 2, -1]), batch_size=7) as loader:
        (batch,) = loader
        assert np.array_equal(batch.numpy(), rows[[2, 5, 19]])
    array = Layout(shape=(4, 30), chunks=(3, 7), sample_axis=1).write(tmp_path / "x")
    with ZarrIterableDataset(
        zarrfeed.open(tmp_path / "x", sample_axis=1).select(slice(20, 24)), batch_size=7
    ) as loader:
        (batch,) = loader
        assert (raw_rows(batch) == raw_rows(read_all(array, sample_axis=1)[20:24])).all()


def test_lanes_are_limited_by_what_is_selected(store: Path) -> None:
    with (
        dataset(store, select=slice(0, 4), shuffle=True, lanes=5, batch_size=2) as more,
        dataset(store, select=slice(0, 4), shuffle=True, lanes=4, batch_size=2) as four,
    ):
        assert more.explain().lanes == 4
        order = indices(more).tolist()
        assert order == indices(four).tolist()
        assert sorted(order) == [0, 1, 2, 3]
    with dataset(store, select=slice(0, 1), shuffle=True, mix=4, batch_size=8) as loader:
        assert indices(loader).tolist() == [0]


@pytest.mark.parametrize(
    ("select", "message"),
    [
        (slice(5, 5), "selects nothing"),
        ([], "selects nothing"),
        (np.zeros(N, dtype=bool), "selects nothing"),
        (np.ones(N - 1, dtype=bool), f"mask of {N - 1} flags, must have one a sample, {N}"),
        ([0, 5, 0], "names sample 0 more than once"),
        ([1, 1 - N], "names sample 1 more than once"),
        ([N], rf"has the index {N}, must be in \[-{N}, {N - 1}\]"),
        ([-N - 1, N], f"has the index {-N - 1}"),
        ([0.5], "dtype float64, must be a slice"),
        ([[1, 2]], r"shape \(1, 2\)"),
        (7, r"shape \(\)"),
        ("abc", "must be a slice"),
        (slice(0, 5, 0), "step other than 0"),
        (slice("a", None), "slice of integers"),
    ],
)
def test_what_cannot_be_selected_is_refused(store: Path, select: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataset(store, select=select)


def test_indices_beyond_int64_are_out_of_range_and_not_wrapped() -> None:
    with pytest.raises(ConfigError, match="has the index"):
        select_samples(np.array([0, 2**64 - 1], dtype=np.uint64), 5)


# --- split ------------------------------------------------------------------------------------------------------


@examples(30)
@given(
    by=st.sampled_from(["chunk", "sample", "contiguous"]),
    fractions=st.lists(st.integers(1, 10), min_size=1, max_size=4),
    seed=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_parts_are_disjoint_and_cover_what_was_split(
    store: Path, by: Any, fractions: list[int], seed: int, data: st.DataObject
) -> None:
    select = data.draw(st.one_of(st.none(), selects().filter(lambda s: len(np.unique(selected(s) // ROWS)) > 3)))
    chosen = np.arange(N) if select is None else selected(select)
    shares = [part / sum(fractions) for part in fractions]
    assume(min(shares) * len(chosen) >= 1)
    with dataset(store, select=select, batch_size=16) as whole:
        parts = split(whole, shares, by=by, seed=seed)
        indexes = [part.sample_order(0) for part in parts]
        again = [part.sample_order(0) for part in split(whole, shares, by=by, seed=seed)]
        assert np.array_equal(whole.sample_order(0), chosen), "it stays as it is"
    assert all(np.array_equal(a, b) for a, b in zip(indexes, again, strict=True))
    assert np.array_equal(np.sort(np.concatenate(indexes)), chosen)
    if by == "chunk":
        blocks = [np.unique(index // ROWS) for index in indexes]
        assert len(np.unique(np.concatenate(blocks))) == sum(map(len, blocks)), "no chunk is in two parts"
        if len(parts) == 2 and select is None:
            assert abs(len(indexes[0]) - shares[0] * N) <= ROWS
        return
    reference: Any = torch.utils.data.random_split(range(len(chosen)), shares)  # type: ignore[arg-type]
    assert [len(index) for index in indexes] == [len(part) for part in reference]
    if by == "contiguous":
        assert np.array_equal(np.concatenate(indexes), chosen)


@examples(200)
@given(n=st.integers(1, 150), data=st.data())
def test_no_part_of_whole_blocks_is_ever_empty(n: int, data: st.DataObject) -> None:
    """However uneven the lengths are, as [1, 1, 101] of 103 samples in blocks of 8."""
    block_rows = data.draw(st.integers(1, n))
    select = data.draw(selects(n).filter(lambda s: len(selected(s, n)) > 0))
    blocks = np.arange(-(-n // block_rows)) if len(selected(select, n)) == n else None
    whole = make_selection(select, blocks, num_samples=n, block_rows=block_rows)
    assert whole is not None
    cuts = data.draw(st.lists(st.integers(1, whole.length), unique=True, max_size=8))
    lengths = np.diff([0, *sorted({*cuts, whole.length})])
    seed = data.draw(st.integers(0, 2**64 - 1))
    if len(lengths) > len(whole.blocks):
        with pytest.raises(ConfigError, match="every part must have a block"):
            block_parts(whole, lengths.tolist(), seed)
        return
    parts = [whole.at(np.sort(held)) for held in block_parts(whole, lengths.tolist(), seed)]
    assert len(parts) == len(lengths)
    assert all(part.length > 0 for part in parts)
    assert np.array_equal(np.sort(np.concatenate([part.blocks for part in parts])), whole.blocks)
    assert np.array_equal(np.sort(np.concatenate([part.listed() for part in parts])), selected(select, n))


@pytest.mark.parametrize("lengths", [[1, 1, 101], [101, 1, 1], [1, 101, 1], [97, 1, 1, 1, 1, 1, 1], [1] * 12 + [91]])
def test_parts_of_one_sample_get_a_block_each(lengths: list[int], store: Path) -> None:
    with dataset(store) as whole:
        parts = [len(part.sample_order(0)) for part in split(whole, lengths, by="chunk")]
        assert min(parts) > 0
        assert sum(parts) == N


def test_parts_read_their_own_samples_and_count_their_own_epochs(store: Path) -> None:
    x = raw_rows(read_all(store / "x"))
    with dataset(store, shuffle=True, seed=4, batch_size=8, drop_last=True) as whole:
        next(iter(whole))
        train, valid = split(whole, [0.8, 0.2])
        for part in (train, valid):
            first = indices(part)
            assert len(first) == len(part) * 8
            assert not np.array_equal(first, indices(part)), "the next epoch"
            assert part.state_dict()["epoch"] == 2
            with part:
                batch = next(iter(part))
                assert (raw_rows(batch[0]) == x[batch[1].numpy()]).all()
        assert whole.state_dict()["epoch"] == 0
        assert not np.intersect1d(train.sample_order(0), valid.sample_order(0)).size


def test_seeds_give_different_parts(store: Path) -> None:
    with dataset(store) as whole:
        for by in ("chunk", "sample"):
            one, other = (split(whole, [50, 53], by=by, seed=seed)[0].sample_order(0) for seed in (0, 1))
            assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ([0.5, 0.4], {}, "must be fractions with the sum 1, or numbers of samples with the sum 103"),
        ([50, 50], {}, "with the sum 103"),
        ([1.5, -0.5], {}, "must be numbers above 0"),
        ([], {}, "must be numbers above 0"),
        ({"train": slice("2000", "2010")}, {}, "a part by its labels or rows is a call of its own"),
        ((slice(0, 80), slice(80, 100)), {}, "a part by its labels or rows is a call of its own"),
        ([102.5, 0.5], {}, "numbers of samples"),
        ([0.999, 0.001], {"by": "sample"}, "every part must have one"),
        ([1 / 20] * 20, {}, '13 blocks of up to 8 samples cannot be split into 20 parts.*by="sample"'),
        ([0.5, 0.5], {"by": "rows"}, "by = 'rows', must be one of 'chunk', 'shard', 'sample', 'contiguous'"),
        ([0.5, 0.5], {"seed": -1}, "seed = -1"),
    ],
)
def test_what_cannot_be_split_is_refused(store: Path, parts: Any, options: Any, message: str) -> None:
    with dataset(store) as whole, pytest.raises(ConfigError, match=message):
        split(whole, parts, **options)


def test_the_compatible_dataset_selects_chunks_in_its_own_way(store: Path) -> None:
    """Its chunks are no part of its description, which says all samples and can be split."""
    with CompatDataset(
        samples=store / "x",
        targets=None,
        selected_chunk_indexes=[0, 2],
        chunks_shuffle_seed=1,
        buffer_shuffle_seed=2,
    ) as whole:
        assert len(whole) == 16
        assert sum(map(len, whole.data.split([0.5, 0.5]))) == N
