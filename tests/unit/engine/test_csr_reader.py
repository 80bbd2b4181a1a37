"""Rows of sparse matrices as batches: what scipy would slice, in every order, from every layout."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import zarrfeed
from tests.support.examples import examples
from tests.support.oracle import no_thread_left
from tests.support.sparse import Matrix, numbered_rows, put_csr
from zarrfeed import (
    ChunkSkippedWarning,
    ConfigError,
    CorruptChunkError,
    StoreReadError,
    UnsupportedError,
    ZarrDataLoader,
    ZarrDataset,
    ZarrIterableDataset,
)
from zarrfeed.base.native import core
from zarrfeed.spec.fields.sparse import absent_marker, marked_fill

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings("ignore:The codec:zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs:UserWarning"),
]

N, COLUMNS = 120, 17


def as_dense(batch: torch.Tensor) -> Matrix:
    """Return a sparse batch as numpy has it, after torch checked that it is a matrix."""
    assert batch.layout == torch.sparse_csr
    parts = (batch.crow_indices(), batch.col_indices(), batch.values())
    checked = torch.sparse_csr_tensor(*parts, size=batch.shape, check_invariants=True)
    dense: Matrix = checked.to_dense().numpy()
    return dense


def check(dataset: Any, matrix: Matrix) -> list[int]:
    """Compare every batch with the rows of the matrix; return the rows in the order in which they came."""
    order: list[int] = []
    for batch, index in dataset:
        rows = as_dense(batch) if batch.layout == torch.sparse_csr else batch.numpy()
        assert np.array_equal(rows, matrix[index.numpy()])
        order += index.tolist()
    return order


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    """Draw how a matrix is stored."""
    made: dict[str, Any] = {
        "chunks": draw(st.integers(1, 90)),
        "indices": draw(st.sampled_from(["i4", "i8", "u2", "u1"])),
        "data": draw(st.sampled_from(["f4", "f8", "i2", "bool"])),
    }
    if draw(st.booleans()):
        made["shards"] = (made["chunks"] * draw(st.integers(1, 5)),)
    elif draw(st.booleans()):
        made["data_chunks"] = draw(st.integers(1, 90))
    made["compressors"] = draw(
        st.sampled_from(["auto", None, zarr.codecs.BloscCodec(cname="lz4"), zarr.codecs.GzipCodec()])
    )
    return made


@examples(60)
@given(layout=layouts(), rows=st.integers(1, 90), density=st.sampled_from([0.0, 0.1, 0.8]), data=st.data())
def test_any_layout_in_any_order(layout: dict[str, Any], rows: int, density: float, data: st.DataObject) -> None:
    matrix = numbered_rows(rows, COLUMNS, density=density)
    group = put_csr(zarr.create_group(MemoryStore()), matrix, **layout)
    expected = matrix.astype(layout["data"])
    opened = zarrfeed.open(group)
    options: dict[str, Any] = {"batch_size": data.draw(st.integers(1, 40)), "return_index": True}
    options["seed"] = data.draw(st.integers(0, 9))
    world = data.draw(st.integers(1, 3))
    for dense in (False, True):
        described = opened.dense() if dense else opened
        shuffle = data.draw(st.booleans())
        read: list[int] = []
        for rank in range(world):
            part = ZarrIterableDataset(described, shuffle=shuffle, rank=rank, world_size=world, even="off", **options)
            read += check(part, expected)
        assert sorted(read) == list(range(rows))
    wanted = data.draw(st.lists(st.integers(-rows, rows - 1), min_size=1, max_size=30))
    assert np.array_equal(as_dense(ZarrDataset(opened)[wanted]), expected[wanted])


@examples(30)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    chunks=st.lists(st.integers(5, 60), min_size=5, max_size=5),
    batch_size=st.integers(1, 30),
)
def test_many_matrices_are_one(lengths: list[int], chunks: list[int], batch_size: int) -> None:
    """Stores are chunked as they like, and some have wider indices."""
    first, parts, groups = 0, [], []
    for number, rows in enumerate(lengths):
        parts.append(numbered_rows(rows, COLUMNS, first=first))
        if not parts[-1].any():
            parts[-1][0, 0] = 5
        kind = "i8" if number % 2 else "i4"
        groups.append(put_csr(zarr.create_group(MemoryStore()), parts[-1], chunks=chunks[number], indices=kind))
        first += rows
    matrix = np.concatenate(parts)
    data = zarrfeed.open(groups)
    nested = zarrfeed.concat([zarrfeed.concat(zarrfeed.open(one) for one in groups[:2]), *groups[2:]])
    for number, described in enumerate((data, nested.cast("float64"), nested.dense())):
        dataset = ZarrIterableDataset(described, batch_size=batch_size, shuffle=True, seed=3, return_index=True)
        assert sorted(check(dataset, matrix)) == list(range(len(matrix)))
        if number == batch_size % 3:
            dataset.explain()
    assert np.array_equal(as_dense(ZarrDataset(data)[[0, -1, 0]]), matrix[[0, -1, 0]])


def test_ranks_workers_and_resuming_share_the_rows(tmp_path: Path) -> None:
    matrix = numbered_rows(N, COLUMNS)
    data = zarrfeed.open(put_csr(zarr.create_group(tmp_path / "x.zarr"), matrix))
    options: dict[str, Any] = {"batch_size": 6, "shuffle": True, "seed": 9, "return_index": True}
    alone = check(ZarrIterableDataset(data, **options), matrix)
    assert sorted(alone) == list(range(N))
    for world in (1, 2, 3):
        parts = [ZarrIterableDataset(data, rank=r, world_size=world, even="off", **options) for r in range(world)]
        batches = [[index.tolist() for _, index in part] for part in parts]
        dealt = [
            row
            for step in range(len(batches[0]))
            for slot in range(6)
            for part in batches
            if step < len(part) and slot < len(part[step])
            for row in [part[step][slot]]
        ]
        assert sorted(dealt) == list(range(N))
        if world == 1:
            assert dealt == alone
    for context in ("fork", "forkserver"):
        loader = ZarrDataLoader(ZarrIterableDataset(data, **options), num_workers=2, multiprocessing_context=context)
        assert sorted(check(loader, matrix)) == list(range(N))
    first = ZarrIterableDataset(data, **options)
    batches_of = iter(first)
    taken = [row for _ in range(5) for row in next(batches_of)[1].tolist()]
    again = ZarrIterableDataset(pickle.loads(pickle.dumps(data)), **options)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert taken + check(again, matrix) == alone
    second = check(again, matrix)
    assert sorted(second) == sorted(alone)
    assert second != alone, "another epoch has another order"


def test_selected_rows_are_read_and_no_others(tmp_path: Path) -> None:
    matrix = numbered_rows(N, COLUMNS)
    data = zarrfeed.open(put_csr(zarr.create_group(tmp_path / "x.zarr"), matrix, chunks=20))
    mask = np.zeros(N, dtype=bool)
    mask[[5, 6, 81]] = True
    dataset = ZarrIterableDataset(data.select(mask), batch_size=2, shuffle=True, return_index=True)
    assert sorted(check(dataset, matrix)) == [5, 6, 81]
    indptr = np.concatenate(([0], np.cumsum(np.count_nonzero(matrix, axis=1))))
    needed = {chunk for row in (5, 6, 81) for chunk in range(indptr[row] // 20, (indptr[row + 1] - 1) // 20 + 1)}
    assert dataset.stats().chunks_read == 2 * len(needed)
    train, test = data.split((0.5, 0.5), by="sample", seed=1)
    read = [check(ZarrIterableDataset(part, batch_size=7, return_index=True), matrix) for part in (train, test)]
    assert sorted(read[0] + read[1]) == list(range(N))


def test_each_chunk_is_decoded_once_where_blocks_stay_together(tmp_path: Path) -> None:
    """Rows that straddle two chunks do not double the decoding."""
    matrix = numbered_rows(2000, COLUMNS)
    data = zarrfeed.open(put_csr(zarr.create_group(tmp_path / "x.zarr"), matrix, chunks=500))
    chunks = 2 * -(-np.count_nonzero(matrix) // 500)
    for shuffle, most in ((False, 1.0), (True, 1.35)):
        dataset = ZarrIterableDataset(data, batch_size=32, shuffle=shuffle, seed=2)
        for _ in dataset:
            pass
        assert chunks <= dataset.stats().chunks_read <= most * chunks
        explained = dataset.explain()
        assert explained.fields[0].chunk_reads == dataset.stats().chunks_read
        assert f"csr_matrix of 2000 rows of 17 columns, {np.count_nonzero(matrix)} stored values" in str(explained)
        assert "makes the blocks: the rows that begin in a chunk of indices; native" in str(explained)


def test_single_samples_and_requests_in_any_order(tmp_path: Path) -> None:
    matrix = numbered_rows(40, COLUMNS)
    data = zarrfeed.open(put_csr(zarr.create_group(tmp_path / "x.zarr"), matrix))
    for sample, index in ZarrIterableDataset(data, batch_size=None, shuffle=True, return_index=True):
        assert sample.shape == (COLUMNS,)
        assert np.array_equal(sample.to_dense().numpy(), matrix[int(index)])
    dataset = ZarrDataset(data)
    assert np.array_equal(dataset[-1].to_dense().numpy(), matrix[-1])
    for wanted in ([3], [10, 3, 10], [3, 17, 24], list(range(40))):  # rows 3, 10, ... are empty
        assert np.array_equal(as_dense(dataset[wanted]), matrix[wanted])
    assert dataset[[]].shape == (0, COLUMNS)
    assert ZarrDataset(data.dense())[[]].shape == (0, COLUMNS)
    assert ZarrDataset(data.dense())[4].tolist() == matrix[4].tolist()


def test_threads_end_after_a_break_and_after_close(tmp_path: Path) -> None:
    data = zarrfeed.open(put_csr(zarr.create_group(tmp_path / "x.zarr"), numbered_rows(N, COLUMNS)))
    with no_thread_left():
        dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True)
        for number, _ in enumerate(dataset):
            if number == 3:
                break
        dataset.close()
        batches = iter(ZarrIterableDataset(data, batch_size=4))
        next(batches)
        del batches


def damaged(path: Path, how: str) -> tuple[zarrfeed.Data, Matrix]:
    """Return a matrix of which one chunk of the values, or of the columns, cannot be had."""
    matrix = numbered_rows(N, COLUMNS)
    group = put_csr(zarr.create_group(path), matrix, chunks=40)
    if how == "column":
        indices: Any = group["indices"]
        indices[85] = COLUMNS  # one that there is not
    else:
        bad = path / "data" / "c" / "2"
        bad.write_bytes(bad.read_bytes()[:-9] if how == "short" else b"nonsense")
    return zarrfeed.open(path), matrix


@pytest.mark.parametrize("how", ["short", "nonsense", "column"])
def test_a_bad_chunk_is_an_error_that_names_store_and_rows(how: str, tmp_path: Path) -> None:
    data, matrix = damaged(tmp_path / "x.zarr", how)
    ends = np.cumsum(np.count_nonzero(matrix, axis=1))
    array = "indices" if how == "column" else "data"
    for dataset in (ZarrIterableDataset(data, batch_size=8), ZarrIterableDataset(data.dense(), batch_size=8)):
        with pytest.raises(CorruptChunkError, match=f"x.zarr/{array}") as error:
            list(dataset)
        first, last = (int(np.searchsorted(ends, at, side="right")) for at in (80, 119))
        begin = np.concatenate(([0], ends[:-1]))
        assert begin[first] <= 80 < ends[first]
        assert begin[last] <= 119 < ends[last]
        assert str(error.value).endswith(f"(rows {first} to {last} of {tmp_path}/x.zarr)")
    with pytest.raises(CorruptChunkError, match="rows"):
        ZarrDataset(data)[first + 1]
    assert np.array_equal(as_dense(ZarrDataset(data)[[0, N - 1]]), matrix[[0, N - 1]])


@pytest.mark.parametrize("how", ["short", "column"])
def test_rows_of_a_bad_chunk_are_replaced(how: str, tmp_path: Path) -> None:
    data, matrix = damaged(tmp_path / "x.zarr", how)
    begin = np.concatenate(([0], np.cumsum(np.count_nonzero(matrix, axis=1))))
    touched = {row for row in range(N) if begin[row] < 120 and begin[row + 1] > 80 and begin[row] < begin[row + 1]}
    orders = []
    for world in (1, 2):
        read = []
        for rank in range(world):
            dataset = ZarrIterableDataset(
                data,
                batch_size=8,
                shuffle=True,
                seed=4,
                return_index=True,
                rank=rank,
                world_size=world,
                even="off",
                faults={"on_error": "skip"},
            )
            with pytest.warns(ChunkSkippedWarning):
                read += check(dataset, matrix)
            assert dataset.skipped_chunks()
        orders.append(sorted(read))
        assert len(read) == N
        assert set(read) & touched == set()
        assert set(range(N)) - set(read) <= touched | {row for row in range(N) if begin[row] == begin[row + 1]}
    assert orders[0] == orders[1]


def test_a_missing_chunk_is_an_error_if_that_is_asked_for(tmp_path: Path) -> None:
    data, _ = damaged(tmp_path / "x.zarr", "short")
    (tmp_path / "x.zarr" / "data" / "c" / "2").unlink()
    with pytest.raises(StoreReadError, match="rows"):
        list(ZarrIterableDataset(data, batch_size=8, faults={"missing": "raise"}))


def put_elements_of(group: zarr.Group, matrix: scipy.sparse.csr_matrix, chunks: int = 7) -> zarrfeed.Data:
    """Write a matrix with its elements as they lie: in any order, and several at one index."""
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(matrix.shape)})
    for name in ("indices", "data", "indptr"):
        group.create_array(name, data=getattr(matrix, name), chunks=(chunks if name != "indptr" else 64,))
    return zarrfeed.open(group)


@pytest.mark.parametrize("dtype", ["f4", "i1", "i8", "bool"])
def test_values_that_a_row_has_in_one_column_are_added_as_scipy_adds_them(dtype: str) -> None:
    """One of them was delivered, and which one was not said. Sums of integers wrap, as in scipy."""
    rng = np.random.default_rng(4)
    lengths = rng.integers(0, 30, N)
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    indices = rng.integers(0, COLUMNS, indptr[-1]).astype("i4")  # unsorted, and of many the same
    values = (rng.integers(0, 2, len(indices)) if dtype == "bool" else rng.integers(1, 100, len(indices)) / 3).astype(
        dtype
    )
    matrix = scipy.sparse.csr_matrix((values, indices, indptr), (N, COLUMNS))
    assert not matrix.has_canonical_format
    data = put_elements_of(zarr.create_group(MemoryStore()), matrix)
    expected = matrix.toarray()
    for shuffle in (False, True):
        dataset = ZarrIterableDataset(data.dense(), batch_size=9, shuffle=shuffle, seed=2, return_index=True)
        for batch, index in dataset:
            assert np.array_equal(batch.numpy(), expected[index.numpy()]), dtype
    assert np.array_equal(ZarrDataset(data.dense())[[3, 3, 0]].numpy(), expected[[3, 3, 0]])


def test_sums_of_converted_values_are_those_of_the_sparse_batch() -> None:
    indices, values = np.array([4, 1, 4, 1, 1, 0]), np.array([1, 0.25, 2, 0.5, 100, 7], "f4")
    matrix = scipy.sparse.csr_matrix((values, indices, np.array([0, 5, 6])), (2, COLUMNS))
    data = put_elements_of(zarr.create_group(MemoryStore()), matrix)
    for dtype in ("float64", "float16", "bfloat16"):
        dense = ZarrDataset(data.cast(dtype).dense())[[0, 1]]
        assert str(dense.dtype) == f"torch.{dtype}"
        assert torch.equal(dense, torch.from_numpy(matrix.toarray()).to(dense.dtype)), dtype


def missing_columns(path: Path, matrix: Matrix, chunk: int, **options: Any) -> zarrfeed.Data:
    put_csr(zarr.create_group(path), matrix, chunks=40, **options)
    (path / "indices" / "c" / str(chunk)).unlink()
    return zarrfeed.open(path)


@pytest.mark.parametrize("indices", ["i4", "u4", "u1", "i8"])
def test_a_lost_chunk_of_columns_is_an_error_and_can_be_skipped(tmp_path: Path, indices: str) -> None:
    """Its values were delivered in column 0."""
    matrix = numbered_rows(N, COLUMNS)
    begin = np.concatenate(([0], np.cumsum(np.count_nonzero(matrix, axis=1))))
    for number, data_chunks in enumerate((40, 33)):  # in one engine with the values, and in an engine of its own
        path = tmp_path / str(number)
        data = missing_columns(path, matrix, 2, indices=indices, data_chunks=data_chunks)
        for described in (data, data.dense()):
            with pytest.raises(StoreReadError, match=f"{number}/indices: chunk 2 is missing from the store"):
                list(ZarrIterableDataset(described, batch_size=8))
            dataset = ZarrIterableDataset(
                described, batch_size=8, shuffle=True, seed=1, return_index=True, faults={"on_error": "skip"}
            )
            with pytest.warns(ChunkSkippedWarning):
                read = check(dataset, matrix)
            touched = {r for r in range(N) if begin[r] < 120 and begin[r + 1] > 80 and begin[r] < begin[r + 1]}
            assert len(read) == N
            assert not touched & set(read)


def test_of_many_matrices_the_one_that_lacks_columns_is_named(tmp_path: Path) -> None:
    matrix = numbered_rows(N, COLUMNS)
    for name in "abc":
        put_csr(zarr.create_group(tmp_path / name), matrix, chunks=40)
    (tmp_path / "b" / "indices" / "c" / "3").unlink()
    data = zarrfeed.open([tmp_path / name for name in "abc"])
    with pytest.raises(StoreReadError, match="/b/indices: chunk 3 is missing from the store"):
        list(ZarrIterableDataset(data, batch_size=50))


def test_chunks_of_columns_that_the_writer_left_out_are_read(tmp_path: Path) -> None:
    """zarr-python does not store a chunk in which all columns are 0: each row has one value there, in column 0."""
    matrix = np.zeros((N, COLUMNS), "f4")
    matrix[:80, 0] = np.arange(1, 81)
    matrix[80:] = numbered_rows(40, COLUMNS)
    for indices in ("i4", "u1"):
        path = tmp_path / indices
        put_csr(zarr.create_group(path), matrix, chunks=40, indices=indices)
        assert not (path / "indices" / "c" / "1").exists()
        for described in (zarrfeed.open(path), zarrfeed.open(path).dense()):
            dataset = ZarrIterableDataset(described, batch_size=8, shuffle=True, seed=1, return_index=True)
            assert sorted(check(dataset, matrix)) == list(range(N))
            assert np.array_equal(np.asarray(ZarrDataset(described)[5].to_dense()), matrix[5])


def test_a_fill_value_other_than_0_is_the_column_of_what_was_left_out(tmp_path: Path) -> None:
    matrix = np.zeros((N, COLUMNS), "f4")
    matrix[np.arange(N), np.where(np.arange(N) < 80, 3, 5)] = np.arange(1, N + 1)
    group = zarr.create_group(tmp_path / "x")
    put_csr(group, matrix, chunks=40, fill_value=3)
    assert not (tmp_path / "x" / "indices" / "c" / "0").exists()
    assert np.array_equal(ZarrDataset(zarrfeed.open(tmp_path / "x").dense())[list(range(N))], matrix)


@pytest.mark.parametrize(("indices", "column"), [("i4", COLUMNS), ("i8", -3), ("u4", 2**32 - 9)])
def test_a_column_that_there_is_not_is_named_with_its_row(tmp_path: Path, indices: str, column: int) -> None:
    matrix = numbered_rows(N, COLUMNS)
    stored: Any = put_csr(zarr.create_group(tmp_path / "x"), matrix, chunks=40, indices=indices)["indices"]
    stored[85] = column
    row = int(np.searchsorted(np.cumsum(np.count_nonzero(matrix, axis=1)), 85, side="right"))
    with pytest.raises(CorruptChunkError, match=f"chunk 2: row {row} has the column {column}, must be in \\[0, 16\\]"):
        list(ZarrIterableDataset(zarrfeed.open(tmp_path / "x").dense(), batch_size=8))


def test_the_marker_of_missing_columns_is_no_column_and_leads_back_to_the_fill_value() -> None:
    for dtype, columns in (("i1", 100), ("i4", 2**31 - 1), ("u1", 120), ("u2", 30_000), ("u8", 2**40), ("i8", 5)):
        for fill in (0, 3):
            marker = absent_marker(fill, np.dtype(dtype), columns)
            assert not 0 <= marker < columns
            assert marked_fill(marker, np.dtype(dtype), columns) == fill
        bounds = np.iinfo(dtype)
        for fill in {int(bounds.min), int(bounds.max), -1 if bounds.min else columns} - {0}:
            marker = absent_marker(fill, np.dtype(dtype), columns)
            assert not 0 <= marker < columns
            assert not 0 <= marked_fill(marker, np.dtype(dtype), columns) < columns, (dtype, fill)
    assert absent_marker(0, np.dtype("u1"), 256) == marked_fill(0, np.dtype("u1"), 256) == 0  # all are columns


def test_runs_are_copied_inside_of_their_memory() -> None:
    source, out = np.arange(10, dtype="i2"), np.zeros(5, dtype="i2")
    begin, count = np.array([8, 0, 3]), np.array([2, 0, 3])
    assert core.copy_runs(source, begin, count, item_bytes=2, out=out) == 10
    assert out.tolist() == [8, 9, 3, 4, 5]
    for begins, counts, message in (
        ([9], [2], "not inside"),
        ([-1], [1], "not inside"),
        ([0], [-1], "not inside"),
        ([2**62], [1], "not inside"),
        ([0, 0], [3, 3], "more items than there is room for"),
        ([0], [1, 1], "do not belong together"),
    ):
        with pytest.raises(ConfigError, match=message):
            core.copy_runs(source, np.array(begins), np.array(counts), item_bytes=2, out=out)


@pytest.mark.parametrize("dtype", ["f4", "u2", "f8"])
def test_rows_are_divided_to_one_total_as_scanpy_divides_them(dtype: str) -> None:
    matrix = np.abs(numbered_rows(60, 9))
    wanted = matrix.astype("f8")
    totals = wanted.sum(axis=1, keepdims=True)
    wanted = np.log1p(wanted / ((totals + (totals == 0)) / 1e4))
    data = zarrfeed.open(put_csr(zarr.create_group({}), matrix, data=dtype, chunks=11)).normalize_total(1e4).log1p()
    assert data.fields[0].dtype == ("sparse_csr of float64" if dtype == "f8" else "sparse_csr of float32")
    for shuffle in (False, True):
        options: dict[str, Any] = {"batch_size": 7, "shuffle": shuffle, "return_index": True}
        for rows, index in zarrfeed.ZarrIterableDataset(data, **options):
            expected = wanted[index.numpy()].astype("f8" if dtype == "f8" else "f4")
            np.testing.assert_array_almost_equal_nulp(rows.to_dense().numpy(), expected, nulp=1)
    dense = zarrfeed.ZarrDataset(data.cast("float16").dense())[[3, 1, 1, 59]]
    np.testing.assert_array_equal(dense.numpy(), wanted[[3, 1, 1, 59]].astype("f4").astype("f2"))


def test_totals_that_cannot_be_are_refused() -> None:
    matrix = zarrfeed.open(put_csr(zarr.create_group({}), numbered_rows(5, 3)))
    for data, what in (
        (zarrfeed.open(np.ones((3, 2))), "the samples have none"),
        (matrix.log1p, "must be the first"),
    ):
        with pytest.raises(UnsupportedError, match=what):
            (data() if callable(data) else data).normalize_total()
    for total in (0, np.nan, [1, 2]):
        with pytest.raises(ConfigError, match="must be a number above 0"):
            matrix.normalize_total(total)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot invert rows divided to a total of 100"):
        matrix.normalize_total(100).denormalize(np.ones((1, 3)))
