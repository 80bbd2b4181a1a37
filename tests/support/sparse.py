"""Sparse matrices as AnnData stores them, whose rows tell which ones they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

Matrix = npt.NDArray[Any]


def numbered_rows(count: int, columns: int, *, seed: int = 0, first: int = 0, density: float = 0.3) -> Matrix:
    """Return a matrix, most of it zeros: row i has i + 1 in a column of its own choice. Every seventh row is empty."""
    rng = np.random.default_rng((seed, first))
    rows = np.arange(first, first + count)
    values = np.where(rng.random((count, columns)) < density, -rng.integers(1, 90, (count, columns)), 0)
    values[np.arange(count), rng.integers(0, columns, count)] = rows + 1
    values[rows % 7 == 3] = 0
    return values.astype("f4")


def put_csr(
    group: zarr.Group,
    matrix: Matrix,
    *,
    chunks: int = 50,
    data_chunks: int | None = None,
    indices: str = "i4",
    data: str = "f4",
    indptr_chunks: int = 64,
    **options: Any,
) -> zarr.Group:
    """Write a matrix as AnnData does; chunks are elements of `indices`, and of `data`."""
    rows, columns = np.nonzero(matrix)
    values = matrix[rows, columns]
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(matrix.shape)})
    group.create_array("indices", data=columns.astype(indices), chunks=(chunks,), **options)
    group.create_array("data", data=values.astype(data), chunks=(data_chunks or chunks,), **options)
    indptr = np.concatenate(([0], np.cumsum(np.count_nonzero(matrix, axis=1))))
    group.create_array("indptr", data=indptr, chunks=(indptr_chunks,))
    return group


def put_column(obs: zarr.Group, name: str, kind: str, **arrays: Matrix) -> None:
    """Write a column of a table that consists of several arrays."""
    column = obs.create_group(name)
    column.attrs.update({"encoding-type": kind, "encoding-version": "0.1.0"})
    for key, values in arrays.items():
        column.create_array(key, data=values, chunks=(9,))
