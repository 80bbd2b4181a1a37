"""Elements of AnnData in Zarr: sparse matrices, and columns of `obs`, by their paths below the root.

Invariant: `indptr` is read here, into memory, and is checked: it ascends from 0 to the number of stored values.

Source: AnnData's on-disk format (`encoding-type`), https://anndata.readthedocs.io/en/latest/fileformat-prose.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import zarr

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.array.anndata_columns import ObsColumn, column_at
from zarrfeed.metadata.array.array import check_any_is_stored, read_layout
from zarrfeed.metadata.array.known_groups import encoding_of, member_of, refusal
from zarrfeed.metadata.array.own_metadata import OwnMetadata, read_own, with_own
from zarrfeed.metadata.array.values import absent_error, find_absent, read_distinct, read_slice, read_values
from zarrfeed.spec.arrays.array import ArraySpec, Documented
from zarrfeed.spec.arrays.layout import Layout, with_conversions
from zarrfeed.spec.fields.sparse import CsrField, Elements, Int64, absent_marker
from zarrfeed.spec.samples.window import Window
from zarrfeed.spec.values.conversion import Conversion
from zarrfeed.spec.values.dtypes import TENSOR_DTYPES
from zarrfeed.spec.values.value_step import ROW_TOTAL
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.checked_nodes import node_name
from zarrfeed.storage.access.zarr_internals import with_length

#: Columns whose categories have names: key in the batch -> names, in the order of the codes.
Categories: TypeAlias = "dict[str, tuple[Any, ...]]"
#: The nodes of zarr-python that an element may be.
Element: TypeAlias = "zarr.Array[Any] | zarr.Group"


def is_root(node: object) -> TypeGuard[zarr.Group]:
    """Return whether this is the root of an AnnData store."""
    return isinstance(node, zarr.Group) and encoding_of(node) == "anndata"


def is_csr(node: object) -> TypeGuard[zarr.Group]:
    """Return whether this is a sparse matrix whose rows are stored one after another."""
    return isinstance(node, zarr.Group) and encoding_of(node) == "csr_matrix"


def elements_by_path(
    side: str, root: zarr.Group, paths: Sequence[str]
) -> tuple[dict[str, Element], dict[str, ObsColumn]]:
    """Find elements, such as "X" and "obs/cell_type": their nodes, and the categories of those that have any.

    A categorical column is its codes. A nullable one is its values, and its mask under its own path, "obs/age/mask".

    Raises
    ------
    ConfigError, UnsupportedError
        If there is no such element, or it has no row for each cell.
    """
    found: dict[str, Element] = {}
    categories: dict[str, ObsColumn] = {}
    for path in paths:
        node = member_of(root, path) if _is_clean(path) else None
        if node is None:
            known = list(_known_paths(root))
            shown = ", ".join(map(repr, known))
            raise ConfigError(
                f"variables: {path!r} is not in {side}, must be a path below the root, such as {shown}"
                f"{did_you_mean(path, known)}"
            )
        if is_csr(node):
            found[path] = node
            continue
        column = column_at(node, node_name(node), member_of)
        if column is not None:
            found |= {f"{path}{end}": array for end, array in column.fields.items()}
            if column.categories is not None:
                categories[path] = column.categories
        else:
            assert isinstance(node, zarr.Group)  # an array is a column
            raise refusal(node) or ConfigError(f"variables: {path!r} is a group of {side}, must be an array in it")
    return found, categories


def categories_in(columns: Mapping[str, ObsColumn]) -> Categories:
    """Return the names of the categories of columns."""
    return {
        path: tuple(
            column.read_distinct(lambda array, _: read_values(array), lambda array, _: read_distinct(array)).tolist()
        )
        for path, column in columns.items()
    }


def read_csr(name: str, group: zarr.Group, access: StoreAccess) -> CsrField:
    """Describe a sparse matrix as a field; reads `indptr`.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        If the group is no such matrix, or its arrays do not belong together; names the matrix.
    """
    path = node_name(group)
    rows, columns = _shape_of(group, path)
    arrays = {key: _array_in(group, key) for key in ("indptr", "indices", "data")}
    for key, array in arrays.items():
        kinds = "iu" if key != "data" else "biuf"
        if array.ndim != 1 or array.dtype.kind not in kinds:
            wanted = "integers" if key != "data" else "numbers"
            raise ConfigError(
                f"{path}/{key}: has shape {array.shape} and dtype {array.dtype}, must have {wanted} along one axis, as "
                "a csr_matrix has"
            )
    count = arrays["data"].shape[0]
    if arrays["indices"].shape[0] != count:
        raise ConfigError(
            f"{path}: has {arrays['indices'].shape[0]} indices and {count} data, must have as many of both"
        )
    if arrays["indptr"].shape[0] != rows + 1:
        raise ConfigError(
            f"{path}/indptr: has {arrays['indptr'].shape[0]} numbers, must have {rows + 1}, one more than rows"
        )
    indptr = read_indptr(arrays["indptr"], arrays["indices"], columns, path)
    is_copy = group.metadata.consolidated_metadata is not None
    owns = dict(zip(arrays, read_own(list(arrays.values()), access), strict=True)) if is_copy else {}
    indices, data = (_elements_of(arrays[key], f"{path}/{key}", access, owns.get(key)) for key in ("indices", "data"))
    indices = _with_marker(indices, columns)
    if data.dtype not in TENSOR_DTYPES:
        raise UnsupportedError(f"{path}/data: has dtype {data.dtype}, which torch lacks")
    return CsrField(name, path, columns, indptr, np.array([0, rows]), indices, data)


def indptr_of(group: zarr.Group) -> zarr.Array[Any]:
    """Return the array of a sparse matrix that says where its rows begin."""
    return _array_in(group, "indptr")


def _shape_of(group: zarr.Group, path: str) -> tuple[int, int]:
    shape: Any = dict(group.attrs).get("shape")
    if not isinstance(shape, list | tuple) or len(shape) != 2 or not all(type(n) is int and n >= 1 for n in shape):
        raise ConfigError(f"{path}: has the attribute shape = {shape!r}, must be two numbers of at least 1")
    return shape[0], shape[1]


def read_indptr(array: zarr.Array[Any], indices: zarr.Array[Any], num_columns: int, path: str) -> Int64:
    """Read the index of the first element of each row.

    Chunks that the store lacks may have been left out by the writer: they hold the fill value, so that rows in them are
    empty. Then the rows at their edges have their own elements alone. Else they have those of several rows, and so
    columns that occur twice.

    Raises
    ------
    ConfigError, StoreReadError
        If it does not lead from 0 to the number of elements, or the store lacks chunks that it needs.
    """
    stored = read_values(array)
    indptr, absent = stored.astype(np.int64), find_absent(array, stored)
    try:
        check_indptr(indptr, indices.shape[0], path)
    except ConfigError as error:
        if absent.any():
            raise absent_error(array, absent, f"without it {error}") from error
        raise
    absent[:1] = False  # it is 0 in any store, so nothing is lost with it
    edges = np.flatnonzero(np.diff(absent.astype(np.int8)))  # a row begins in a chunk that is there, and ends in none
    for row in edges.tolist():
        begin, end = indptr[row], indptr[row + 1]
        if end - begin > num_columns or len(np.unique(read_slice(indices, begin, end))) < end - begin:
            raise absent_error(array, absent, f"row {row} would have the {end - begin} values of several rows")
    return indptr


def check_indptr(indptr: Int64, count: int, path: str) -> None:
    """Raise ConfigError unless the numbers ascend from 0 to the number of elements."""
    if indptr[0] != 0:
        raise ConfigError(f"{path}/indptr: begins with {indptr[0]}, must begin with 0")
    falls = np.flatnonzero(np.diff(indptr) < 0)
    if len(falls):
        row = int(falls[0])
        raise ConfigError(f"{path}/indptr: falls from {indptr[row]} to {indptr[row + 1]} at row {row}, must ascend")
    if indptr[-1] != count:
        raise ConfigError(f"{path}/indptr: ends with {indptr[-1]}, must end with the number of stored values, {count}")


def _elements_of(array: zarr.Array[Any], name: str, access: StoreAccess, own: OwnMetadata | None) -> Elements:
    """Return one array of elements, whose rows are its read chunks.

    An array without elements is described as if it had one, since no description has none; no row needs it.
    """
    count = array.shape[0]
    spec = replace(read_layout(array if count else with_length(array, 1), access=access), name=name)
    if count:
        spec = check_any_is_stored(spec)
    if own is not None:
        spec = with_own(spec, own)
    layout = Layout(_in_chunks(spec, count))
    nothing = np.zeros(1, dtype=np.int64)
    return Elements((layout,), nothing, nothing, np.array([0, count]))


def _with_marker(indices: Elements, num_columns: int) -> Elements:
    """Return columns whose missing chunks are told apart from stored ones."""
    (layout,) = indices.layouts
    dtype = np.dtype(layout.spec.dtype.name)
    marker = absent_marker(int(np.frombuffer(layout.spec.fill, dtype)[0]), dtype, num_columns)
    spec = replace(layout.spec, fill=np.array(marker, dtype).tobytes())
    return replace(indices, layouts=(replace(layout, spec=spec),))


def _in_chunks(spec: ArraySpec, count: int) -> ArraySpec:
    """Return an array with one axis as one with a row for each read chunk: the last one is stored with its padding.

    `count` is its length in the store.
    """
    (length,), (items,) = spec.shape, spec.chunk_shape
    return replace(
        spec,
        shape=(-(-length // items), items),
        chunk_shape=(1, items),
        storage_order=(0, 1),
        sample_axis=0,
        documented=Documented(replace(spec.as_documented, shape=(count,))),
    )


def _array_in(group: zarr.Group, name: str) -> zarr.Array[Any]:
    array = member_of(group, name)
    if not isinstance(array, zarr.Array):
        path = node_name(group)
        raise ConfigError(f"{path}: is a {encoding_of(group)} of AnnData (encoding-type) without the array {name!r}")
    return array


def _known_paths(root: zarr.Group) -> list[str]:
    """Return paths that can be named: the matrix, and the columns of obs that the table lists."""
    columns = dict(getattr(member_of(root, "obs"), "attrs", {})).get("column-order")
    listed = [name for name in columns if isinstance(name, str)] if isinstance(columns, list) else []
    return ["X", *(f"obs/{name}" for name in listed[:10])]


def _is_clean(path: str) -> bool:
    return bool(path) and not {"", ".", ".."} & set(path.split("/"))


def with_conversion(
    field: CsrField, conversions: Sequence[Conversion | None], window: Window | None, *, dense: bool
) -> CsrField:
    """Return a sparse matrix with its values converted, one conversion for each layout of them, and dense if asked.

    Raises
    ------
    UnsupportedError
        If rows are to be windows, or zeros would not stay zeros.
    """
    if window is not None:
        raise UnsupportedError(f"offsets of {field.name}: rows of sparse matrices cannot be windows")
    changing = [one for of in conversions if of is not None for one in of.steps if not one.keeps_zeros]
    if changing or any(one is not None and one.decoding is not None for one in conversions):
        method = changing[0].kind if changing else "normalize"
        raise UnsupportedError(
            f"{method} of {field.name}: it is a sparse matrix, whose zeros would not stay zeros; convert the "
            "batches (transform=), or store it as a dense array"
        )
    first = conversions[0]
    kinds = [one.kind for of in conversions if of is not None for one in of.steps]
    if first is None or ROW_TOTAL not in kinds:
        layouts = with_conversions(field.data.layouts, conversions)
        return replace(field, data=replace(field.data, layouts=layouts), dense=dense)
    if kinds.count(ROW_TOTAL) > len(conversions) or first.steps[0].kind != ROW_TOTAL:
        raise UnsupportedError(f"normalize_total of {field.name}: must be the first of the methods that change values")
    if any(one is None or one.steps != first.steps for one in conversions):
        raise UnsupportedError(f"normalize_total of {field.name}: call it behind zarrfeed.concat, for all stores alike")
    total, after = float(first.steps[0].first.array[0]), replace(first, items="float64", steps=first.steps[1:])
    return replace(field, row_total=total, after=after, dense=dense)
