"""Sparse matrices and columns of AnnData, by their paths: what is opened, and what is refused at open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.oracle import ZARR_FORMATS, ZarrFormat
from tests.support.sparse import Matrix, numbered_rows, put_column, put_csr
from zarrfeed import ConfigError, StoreReadError, UnsupportedError, ZarrDataset, ZarrIterableDataset

pytestmark = pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning")

N, COLUMNS = 60, 11


def put_cells(
    path: Path, *, first: int = 0, kinds: tuple[str, ...] = ("B", "T"), zarr_format: ZarrFormat = 3
) -> Matrix:
    """Write an AnnData store, as far as it matters, and return its matrix."""
    root = zarr.create_group(path, zarr_format=zarr_format)
    root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    matrix = numbered_rows(N, COLUMNS, first=first)
    put_csr(root.create_group("X"), matrix)
    put_csr(root.create_group("layers").create_group("twice"), 2 * matrix, chunks=33)
    root.create_group("obsm").create_array("X_pca", data=np.arange(N * 2.0).reshape(N, 2), chunks=(16, 2))
    rows = np.arange(first, first + N)
    obs = root.create_group("obs")
    columns = ["age", "name", "cell_type", "score"]
    obs.attrs.update({"encoding-type": "dataframe", "_index": "name", "column-order": columns})
    obs.create_array("age", data=rows, chunks=(25,))
    obs.create_array("name", data=np.array([f"cell-{row}" for row in rows]), chunks=(25,))
    codes = (rows % (len(kinds) + 1) - 1).astype("i1")
    put_column(obs, "cell_type", "categorical", codes=codes, categories=np.array(kinds))
    put_column(obs, "score", "nullable-integer", values=rows * 3, mask=rows % 5 == 0)
    return matrix


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_a_matrix_and_columns_come_together(zarr_format: ZarrFormat, tmp_path: Path) -> None:
    matrix = put_cells(tmp_path / "a.zarr", zarr_format=zarr_format)
    names = ["X", "obs/cell_type", "obs/name", "obs/score", "layers/twice", "obsm/X_pca"]
    data = zarrfeed.open(tmp_path / "a.zarr", variables=names)
    assert data.categories == {"obs/cell_type": ("B", "T")}
    assert [field.name for field in data.fields] == [*names[:4], "obs/score/mask", *names[4:]]
    assert data.fields[0].dtype == "sparse_csr of float32"
    for described in (data, data.dense(["X"])):
        dataset = ZarrIterableDataset(described, batch_size=7, shuffle=True, seed=1, return_index=True)
        read = []
        for cells, index in dataset:
            rows = index.numpy()
            x = cells["X"] if described is not data else cells["X"].to_dense()
            assert np.array_equal(x.numpy(), matrix[rows])
            assert np.array_equal(cells["layers/twice"].to_dense().numpy(), 2 * matrix[rows])
            assert cells["obs/cell_type"].tolist() == (rows % 3 - 1).tolist()
            assert cells["obs/name"] == [f"cell-{row}" for row in rows]
            assert cells["obs/score"].tolist() == (rows * 3).tolist()
            assert cells["obs/score/mask"].tolist() == (rows % 5 == 0).tolist()
            assert np.array_equal(cells["obsm/X_pca"][:, 0].numpy(), rows * 2.0)
            read += rows.tolist()
        assert sorted(read) == list(range(N))
    age = np.asarray(zarr.open_group(tmp_path / "a.zarr", mode="r")["obs/age"])
    chosen = data.select(age >= 50)
    assert len(chosen) == 10
    assert ZarrDataset(chosen)[0]["obs/name"] == "cell-50"
    assert repr(data.dense("X")).endswith(".dense(field='X')")


def test_columns_may_be_targets_and_matrices_may_be_named(tmp_path: Path) -> None:
    matrix = put_cells(tmp_path / "a.zarr")
    data = zarrfeed.open({"x": tmp_path / "a.zarr/X"}, {"kind": tmp_path / "a.zarr/obs/cell_type/codes"})
    x, y = ZarrDataset(data)[[5, 2]]
    assert np.array_equal(x["x"].to_dense().numpy(), matrix[[5, 2]])
    assert y["kind"].tolist() == [1, 1]
    group = zarr.open_group(tmp_path / "a.zarr", mode="r")
    for given in (group["X"], str(tmp_path / "a.zarr/X"), zarr.storage.LocalStore(tmp_path / "a.zarr/X")):
        assert np.array_equal(ZarrDataset(zarrfeed.open(given))[[7]].to_dense().numpy(), matrix[[7]])


def test_several_files_are_one_if_their_categories_are_the_same(tmp_path: Path) -> None:
    whole = np.concatenate([put_cells(tmp_path / f"{i}.zarr", first=N * i) for i in range(2)])
    data = zarrfeed.open(f"{tmp_path}/*.zarr", variables=["X", "obs/cell_type", "obs/age"])
    assert data.categories == {"obs/cell_type": ("B", "T")}
    cells = ZarrDataset(data)[[3, 2 * N - 1, N]]
    assert np.array_equal(cells["X"].to_dense().numpy(), whole[[3, 2 * N - 1, N]])
    assert cells["obs/age"].tolist() == [3, 2 * N - 1, N]
    put_cells(tmp_path / "2.zarr", first=2 * N, kinds=("T", "B"))
    with pytest.raises(ConfigError, match=r"2\.zarr: the categories of 'obs/cell_type' are not those of .*0\.zarr"):
        zarrfeed.open(f"{tmp_path}/*.zarr", variables=["X", "obs/cell_type"])
    put_csr(zarr.create_group(tmp_path / "wide"), numbered_rows(4, COLUMNS + 1))
    with pytest.raises(ConfigError, match=r"wide: samples is sparse_csr of float32 of shape \(12,\)"):
        zarrfeed.open([tmp_path / "0.zarr/X", tmp_path / "wide"])
    put_csr(zarr.create_group(tmp_path / "double"), numbered_rows(4, COLUMNS), data="f8")
    with pytest.raises(ConfigError, match=r"dtype= of zarrfeed\.concat"):
        zarrfeed.open([tmp_path / "0.zarr/X", tmp_path / "double"])
    mixed = zarrfeed.concat([tmp_path / "0.zarr/X", tmp_path / "double"], dtype="float32")
    assert np.array_equal(ZarrDataset(mixed)[[N]].to_dense().numpy(), numbered_rows(4, COLUMNS)[[0]])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["X", "obs/celltype"],
            r"'obs/celltype' is not in samples, must be a path .*'obs/age'.*did you mean 'obs/cell_t",
        ),
        (["../a.zarr"], "must be a path below the root, such as 'X', 'obs/age', 'obs/name'"),
        (["obs"], "is a dataframe of AnnData"),
        (["layers"], "'layers' is a group of samples, must be an array in it"),
        ([], "must name at least one array"),
        ("X", "must be a list of names"),
    ],
)
def test_elements_that_cannot_be_named_are_refused(names: Any, message: str, tmp_path: Path) -> None:
    put_cells(tmp_path / "a.zarr")
    with pytest.raises(ConfigError, match=message):
        zarrfeed.open(tmp_path / "a.zarr", variables=names)


def broken(group: zarr.Group, what: str) -> None:
    """Damage the metadata of a matrix, or its indptr."""
    indptr: Any = group["indptr"]
    values = np.asarray(indptr)
    if what == "falls":
        values[4] = values[3] - 1
    elif what == "end":
        values[-1] += 1
    elif what == "begin":
        values[0] = 1
    elif what == "rows":
        group.attrs["shape"] = [N + 1, COLUMNS]
    elif what == "shape":
        group.attrs["shape"] = [N]
    elif what == "missing":
        del group["data"]
    elif what == "lengths":
        array: Any = group["indices"]
        array.resize(array.shape[0] - 1)
    elif what == "float":
        del group["indices"]
        group.create_array("indices", data=np.zeros(3))
    elif what == "text":
        del group["data"]
        group.create_array("data", data=np.array(["a", "b"]))
    indptr[:] = values


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("falls", r"X/indptr: falls from \d+ to \d+ at row 3, must ascend"),
        ("end", r"X/indptr: ends with \d+, must end with the number of stored values, \d+"),
        ("begin", "X/indptr: begins with 1, must begin with 0"),
        ("rows", f"X/indptr: has {N + 1} numbers, must have {N + 2}, one more than rows"),
        ("shape", rf"X: has the attribute shape = \[{N}\], must be two numbers"),
        ("missing", "is a csr_matrix of AnnData .* without the array 'data'"),
        ("lengths", r"X: has \d+ indices and \d+ data, must have as many"),
        ("float", r"X/indices: has shape \(3,\) and dtype float64, must have integers"),
        ("text", r"X/data: has shape \(2,\) and dtype .*, must have numbers"),
    ],
)
def test_a_matrix_that_does_not_belong_together_is_refused_at_open(what: str, message: str, tmp_path: Path) -> None:
    group = put_csr(zarr.create_group(tmp_path / "X"), numbered_rows(N, COLUMNS))
    broken(group, what)
    with pytest.raises(ConfigError, match=message):
        zarrfeed.open(tmp_path / "X")


def test_what_sparse_matrices_cannot_do_is_refused(tmp_path: Path) -> None:
    put_cells(tmp_path / "a.zarr")
    data = zarrfeed.open(tmp_path / "a.zarr", variables=["X", "obs/age"])
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: data.window({"X": (0, 1)}), "rows of sparse matrices cannot be windows"),
        (lambda: data.normalize({"X": (1.0, 2.0)}), "whose zeros would not stay zeros"),
        (lambda: zarrfeed.open(tmp_path / "a.zarr/X", sample_axis=1), "sample_axis must be 0"),
        (lambda: zarrfeed.open(tmp_path / "a.zarr/X", sample_dim="cell"), "sample_dim"),
        (lambda: zarrfeed.open(tmp_path / "a.zarr/X", refresh="epoch"), "do not grow"),
    ]
    for refused, message in refusals:
        with pytest.raises(UnsupportedError, match=message):
            refused()
    mistakes: list[tuple[Callable[[], object], str]] = [
        (lambda: data.dense("obs/age"), "it is no sparse matrix"),
        (lambda: data.dense("Y"), "'Y'"),
        (lambda: data.dense([]), "must be a name, or a list of names"),
        (lambda: data.dense(3), "must be a name, or a list of names"),  # type: ignore[arg-type]
        (lambda: zarrfeed.open(np.zeros(4)).dense(), "no array is a sparse matrix"),
        (lambda: zarrfeed.open(tmp_path / "a.zarr/X", variables=["data"]).dense(), "no array is a sparse matrix"),
    ]
    for wrong, message in mistakes:
        with pytest.raises(ConfigError, match=message):
            wrong()
    with pytest.raises(ConfigError, match="has no shards"):
        ZarrIterableDataset(data, batch_size=4, shuffle=True, mixing={"block": "shard"})


def remove_chunks(folder: Path, *chunks: int) -> None:
    """Delete chunks of an array with one axis, of any format."""
    for chunk in chunks:
        (folder / (f"c/{chunk}" if (folder / "zarr.json").exists() else str(chunk))).unlink()


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize("chunk", [0, 1, 3])
def test_a_lost_chunk_of_indptr_is_an_error_at_open(chunk: int, zarr_format: ZarrFormat, tmp_path: Path) -> None:
    """The first one made the rows in it empty, and gave their values to the row after them."""
    group = zarr.create_group(tmp_path / "x", zarr_format=zarr_format)
    put_csr(group, numbered_rows(N, COLUMNS), indptr_chunks=16)
    remove_chunks(tmp_path / "x" / "indptr", chunk)
    with pytest.raises(StoreReadError, match=f"x/indptr: chunk {chunk} is missing from the store"):
        zarrfeed.open(tmp_path / "x")


def test_empty_rows_whose_chunks_of_indptr_were_left_out_are_read(tmp_path: Path) -> None:
    matrix = numbered_rows(N, COLUMNS)
    matrix[:40] = 0
    put_csr(zarr.create_group(tmp_path / "x"), matrix, indptr_chunks=16)
    assert not (tmp_path / "x" / "indptr" / "c" / "0").exists()
    assert np.array_equal(ZarrDataset(zarrfeed.open(tmp_path / "x").dense())[list(range(N))], matrix)


def test_the_first_number_of_indptr_is_not_missed(tmp_path: Path) -> None:
    """It is 0, and its row has a column twice, so that a chunk of it alone looked lost."""
    group = zarr.create_group(tmp_path / "x")
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [2, 4]})
    for name, numbers in (("indptr", [0, 3, 4]), ("indices", [3, 1, 3, 2]), ("data", [1.0, 2.0, 4.0, 8.0])):
        group.create_array(name, data=np.array(numbers), chunks=(1,))
    got = ZarrDataset(zarrfeed.open(tmp_path / "x").dense())[[0, 1]]
    assert got.tolist() == [[0, 2, 0, 5], [0, 0, 8, 0]]


def test_rows_of_two_columns_that_a_lost_chunk_of_indptr_joins_are_an_error(tmp_path: Path) -> None:
    """The values of the lost rows are fewer than the columns, so that only the columns themselves tell."""
    matrix = np.zeros((N, 400), "f4")
    matrix[:, 5] = matrix[:, 9] = np.arange(1, N + 1)
    put_csr(zarr.create_group(tmp_path / "x"), matrix, indptr_chunks=16)
    remove_chunks(tmp_path / "x" / "indptr", 0)
    with pytest.raises(StoreReadError, match="row 15 would have the 32 values of several rows"):
        zarrfeed.open(tmp_path / "x")


def test_a_lost_chunk_of_categories_is_an_error_at_open(tmp_path: Path) -> None:
    put_cells(tmp_path / "cells", kinds=tuple(map(str, range(20))))
    remove_chunks(tmp_path / "cells" / "obs" / "cell_type" / "categories", 1)
    with pytest.raises(StoreReadError, match="cell_type/categories: chunk 1 is missing from the store"):
        zarrfeed.open(tmp_path / "cells", variables=["obs/cell_type"])


def put_two(path: Path, matrix: Matrix, layer: Matrix, first: int) -> str:
    """Write cells with a matrix and a layer."""
    root = zarr.create_group(path)
    root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    put_csr(root.create_group("X"), matrix)
    put_csr(root.create_group("layers").create_group("spliced"), layer)
    obs = root.create_group("obs")
    obs.attrs.update({"encoding-type": "dataframe", "_index": "age", "column-order": ["age"]})
    obs.create_array("age", data=np.arange(first, first + N), chunks=(25,))
    return str(path)


def check_rows(data: zarrfeed.Data, key: str | None, expected: Matrix) -> None:
    """Fail unless every epoch and every look-up gives these rows, sparse and dense."""
    for described in (data, data.dense(None if key is None else [key])):
        dataset = ZarrIterableDataset(described, batch_size=7, shuffle=True, seed=1, return_index=True)
        for _ in range(2):  # the second epoch compares the metadata with those of before
            seen: list[int] = []
            for batch, index in dataset:
                rows = batch if key is None else batch[key]
                assert np.array_equal(rows.to_dense().numpy(), expected[index.numpy()])
                seen += index.tolist()
            assert sorted(seen) == list(range(len(expected)))
        some = ZarrDataset(described)[[3, 0, 3, len(expected) - 1]]
        rows = some if key is None else some[key]
        assert np.array_equal(rows.to_dense().numpy(), expected[[3, 0, 3, -1]])
        assert str(dataset.explain())


def test_a_matrix_without_stored_values_is_rows_of_zeros(tmp_path: Path) -> None:
    """Alone, beside others, as what makes the blocks, at any position among many stores, and packed."""
    some, zeros = numbered_rows(N, COLUMNS), np.zeros((N, COLUMNS), "f4")
    matrices = {"a": (some, zeros), "b": (zeros, some), "c": (zeros, zeros)}
    paths = {
        name: put_two(tmp_path / f"{name}.zarr", x, layer, N * number)
        for number, (name, (x, layer)) in enumerate(matrices.items())
    }
    check_rows(zarrfeed.open(f"{paths['a']}/layers/spliced"), None, zeros)
    for variables in (["X", "layers/spliced"], ["layers/spliced", "obs/age"]):
        check_rows(zarrfeed.open(paths["a"], variables=variables), "layers/spliced", zeros)
    check_rows(zarrfeed.open(paths["a"], variables=["layers/spliced", "X"]), "X", some)
    check_rows(zarrfeed.open(paths["c"], variables=["X", "layers/spliced"]), "X", zeros)
    for names in ("abc", "cba", "cc", "bab"):
        layers = np.concatenate([matrices[name][1] for name in names])
        check_rows(zarrfeed.concat([f"{paths[name]}/layers/spliced" for name in names]), None, layers)
    zarrfeed.pack(paths["c"], tmp_path / "packed.zarr", shuffle=1, verify=True)
    check_rows(zarrfeed.open(tmp_path / "packed.zarr", variables=["X", "layers/spliced"]), "X", zeros)


def test_a_matrix_without_stored_values_that_gets_some_is_another_one(tmp_path: Path) -> None:
    path = put_two(tmp_path / "a.zarr", numbered_rows(N, COLUMNS), np.zeros((N, COLUMNS), "f4"), 0)
    dataset = ZarrIterableDataset(f"{path}/layers/spliced", batch_size=8)
    assert len(list(dataset)) == 8
    zarr.open_group(path, mode="r+")["layers/spliced/data"].resize(7)  # type: ignore[union-attr]
    with pytest.raises(StoreReadError, match=r"data: changed since it was opened: shape is \(7,\), was \(0,\)"):
        list(dataset)


@pytest.mark.parametrize("num_stores", [1, 2])
def test_columns_are_found_where_only_the_matrix_is_read(num_stores: int, tmp_path: Path) -> None:
    put_cells(tmp_path / "a.zarr")
    path = str(tmp_path / "a.zarr")
    data = zarrfeed.open(path if num_stores == 1 else [path, path], variables=["X"])
    few = data.where({"obs/age": lambda age: age < 7, "obs/cell_type": lambda kind: kind == "T"})
    assert len(few) == 2 * num_stores  # rows 2 and 5
    assert len(data.where("obs", "age < 7")) == 7 * num_stores
