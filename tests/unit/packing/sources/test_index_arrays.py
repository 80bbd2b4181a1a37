"""packing/sources/index_arrays.py: columns and rows that a source lacks are not packed as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

import zarrfeed
from tests.support.sparse import Matrix, numbered_rows
from zarrfeed import ZarrDataset
from zarrfeed.base.errors import StoreReadError
from zarrfeed.packing.pack import pack

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string'"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Writing zarr v2"),
]
N, COLUMNS = 60, 17


def write_cells(path: Path, matrix: Matrix) -> Path:
    """Write cells with anndata, and their sparse matrix in chunks of 16 numbers; Zarr leaves empty ones out."""
    with pd.option_context("future.infer_string", False):
        cells = anndata.AnnData(scipy.sparse.csr_matrix(matrix))
        if path.suffix == ".h5ad":
            cells.write_h5ad(path)
        else:
            cells.write_zarr(path)
    parent: Any = h5py.File(path, "r+") if path.suffix == ".h5ad" else zarr.open_group(path, mode="r+")
    for name in ("data", "indices", "indptr"):
        values = parent["X"][name][:]
        del parent["X"][name]
        made = parent["X"].create_dataset if path.suffix == ".h5ad" else parent["X"].create_array
        made(name, data=values, chunks=(16,))
    if path.suffix == ".h5ad":
        parent.close()
    else:
        zarr.consolidate_metadata(path)
    return path


def packed(source: Path, out: Path) -> Matrix:
    pack(source, out)
    matrix: Matrix = anndata.read_zarr(out).X.toarray()
    return matrix


def remove(path: Path, name: str, chunk: int) -> None:
    """Take a chunk of an array of X out of a Zarr store; of an HDF5 file, write the array anew without it."""
    if path.suffix != ".h5ad":
        (chunked,) = (path / "X" / name).glob(f"**/{chunk}")
        chunked.unlink()
        return
    with h5py.File(path, "r+") as file:
        values = file["X"][name][:]
        del file["X"][name]
        made = file["X"].create_dataset(name, values.shape, values.dtype, chunks=(16,))
        for number in range(0, len(values), 16):
            if number != 16 * chunk:
                made[number : number + 16] = values[number : number + 16]


@pytest.mark.parametrize("suffix", [".zarr", ".h5ad"])
def test_what_is_lost_of_columns_or_of_the_starts_of_rows_is_an_error(tmp_path: Path, suffix: str) -> None:
    for name, chunk in (("indices", 0), ("indices", 3), ("indptr", 0), ("indptr", 1), ("indptr", 3)):
        source = write_cells(tmp_path / f"{name}{chunk}{suffix}", numbered_rows(N, COLUMNS))
        remove(source, name, chunk)
        with pytest.raises(StoreReadError, match=f"X/{name}"):
            pack(source, tmp_path / "out.zarr")
        assert not (tmp_path / "out.zarr").exists()


def test_columns_and_empty_rows_that_the_writer_left_out_are_packed(tmp_path: Path) -> None:
    matrix = np.zeros((N, COLUMNS), "f4")
    matrix[20:52, 0] = np.arange(1, 33)
    source = write_cells(tmp_path / "x.zarr", matrix)
    assert not list((source / "X" / "indices").glob("**/1"))
    assert not list((source / "X" / "indptr").glob("**/0"))
    assert np.array_equal(packed(source, tmp_path / "out.zarr"), matrix)


def test_a_row_that_names_the_first_column_twice_is_packed_and_read(tmp_path: Path) -> None:
    """The packed store left its chunk of zeros out, and was refused as one that had lost it."""
    twice = scipy.sparse.csr_matrix((np.array([1.0, 2.0], "f4"), np.array([0, 0]), np.array([0, 2, 2])), shape=(2, 3))
    with pd.option_context("future.infer_string", False):
        anndata.AnnData(twice).write_h5ad(tmp_path / "cells.h5ad")
    assert pack(tmp_path / "cells.h5ad", tmp_path / "out.zarr", verify=True).ok
    got = ZarrDataset(zarrfeed.open(tmp_path / "out.zarr" / "X").dense())[[0, 1]]
    assert got.tolist() == [[3, 0, 0], [0, 0, 0]]
