"""Elements of one AnnData file, in HDF5 or Zarr: the elements with a row for each cell, and how they are read.

Source: AnnData's on-disk format (`encoding-type`), https://anndata.readthedocs.io/en/latest/fileformat-prose.html.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError, CorruptChunkError, UnsupportedError
from zarrfeed.base.json_attributes import json_attributes
from zarrfeed.metadata.array.anndata_columns import ObsColumn, column_at, encoding_in, is_group
from zarrfeed.metadata.array.array import open_node
from zarrfeed.metadata.array.known_groups import member_of
from zarrfeed.metadata.array.values import read_distinct
from zarrfeed.metadata.group.anndata import check_indptr, read_indptr
from zarrfeed.packing.sources.cells.csr_rows import to_items
from zarrfeed.packing.sources.files import some_of
from zarrfeed.packing.sources.index_arrays import check_whole, is_zarr, read_columns
from zarrfeed.packing.sources.source import Constant, Int64, Kind, Rows, bytes_of, library
from zarrfeed.storage.access.access import ZarrFormat
from zarrfeed.storage.chunks.codec_configs import as_meant
from zarrfeed.storage.files.data_file import DataFile

#: Places of elements with a row for each cell, and of elements that are copied as they are.
_OF_CELLS = ("X", "raw/X", "layers", "obsm", "obs")
_COPIED = ("var", "varm", "varp", "uns", "raw/var", "raw/varm")
#: Stored values of a matrix in one piece: so many bytes of it count as read together.
_PIECE_BYTES = 1 << 20
_OBJECT = np.dtype(object)


@dataclass
class Element:
    """An array with an item for each cell, or a sparse matrix.

    Attributes
    ----------
    path
        Path of the element below the root.
    kind, dtype, shape
        Kind, dtype and shape of an item; the dtype is that of the values.
    attributes
        Attributes of the array or of the matrix.
    rows
        Number of cells.
    together
        Number of cells that are read together.
    indptr, index
        For a sparse matrix the beginnings of its rows, and the dtype of its columns.
    pointer
        The dtype in which `indptr` is stored.
    """

    path: str
    kind: Kind
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    attributes: dict[str, Any]
    rows: int
    together: int = 1
    indptr: Int64 | None = None
    index: np.dtype[Any] = _OBJECT
    pointer: np.dtype[Any] = _OBJECT

    @property
    def told(self) -> str:
        """The properties that must be the same in all files, as messages have them; the dtype of codes may differ."""
        dtype = "codes" if self.path.endswith("/codes") else f"{self.kind} {self.dtype}"
        return f"{dtype} of shape ({', '.join(map(str, ('cells', *self.shape)))})"

    def read(self, root: Any, begin: int, end: int, index: np.dtype[Any]) -> Rows:
        """Return the items of the cells [begin, end); columns of a sparse matrix with the dtype `index`.

        Raises
        ------
        CorruptChunkError
            If a sparse matrix names a column that it lacks.
        StoreReadError
            If the store lacks columns.
        """
        node = root[self.path]
        if self.indptr is None:
            return _values(node, slice(begin, end)).astype(_OBJECT if self.kind == "text" else self.dtype, copy=False)
        begins = self.indptr[begin : end + 1]
        columns = read_columns(node["indices"], begins, self.shape[0])
        data = _values(node["data"], slice(int(begins[0]), int(begins[-1])))
        if len(columns) and (columns.min() < 0 or columns.max() >= self.shape[0]):
            raise CorruptChunkError(f"{self.path}: has a column that is not in [0, {self.shape[0]})")
        return to_items(begins - begins[0], columns.astype(index), data.astype(self.dtype, copy=False))


@dataclass
class Contents:
    """The content of one file.

    Attributes
    ----------
    elements
        Arrays of cells by their paths, in the order of the file.
    groups
        Attributes of groups, by their paths, parents first.
    categories
        Categories of categorical columns, by their paths.
    left_out
        Paths that are not packed, with the reason.
    """

    elements: dict[str, Element] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    categories: dict[str, Rows] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def open_root(file: DataFile, zarr_format: ZarrFormat | None = None) -> Any:
    """Open a file of AnnData, by h5py or zarr-python; a Zarr store in one format, if it is given.

    Raises
    ------
    ConfigError
        If it is none, or if a version of anndata wrote it that did not say what is in it.
    """
    if file.path.is_dir():
        root: Any = open_node(file.path, zarr_format)
    else:
        try:
            root = library("h5py", "anndata", "zarrfeed[pack]").File(file.path, "r")
        except OSError as error:
            raise ConfigError(f"{file}: is no HDF5 file, or a damaged one: {error}") from error
    obs: Any = root.get("obs") if is_group(root) else None
    if not is_group(obs) or _attributes(obs).get("encoding-version") == "0.1.0" or "_index" not in obs.attrs:
        close_root(root)
        raise ConfigError(
            f"{file}: is no AnnData of the present format: read it with anndata.read_h5ad, and write it anew"
        )
    return root


def close_root(root: Any) -> None:
    """Close what `open_root` opened."""
    if hasattr(root, "close"):
        root.close()


def is_anndata(folder: str | Path) -> bool:
    """Return whether a Zarr store is one of AnnData."""
    for name in ("zarr.json", ".zattrs"):
        try:
            known = parse_json(Path(folder, name).read_bytes())
            return bool((known["attributes"] if name == "zarr.json" else known).get("encoding-type") == "anndata")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return False


def index_of(root: Any, path: str) -> str:
    """Return the path of the names of cells, of `obs`, or of variables, of `var`.

    Raises
    ------
    ConfigError
        If the table does not say, or lacks them.
    """
    index = _attributes(root[path]).get("_index")
    if not isinstance(index, str) or index not in root[path]:
        raise ConfigError(f"{path}: has the attribute _index = {index!r}, must be the name of its index")
    return f"{path}/{index}"


def names_of(root: Any, path: str) -> list[str]:
    """Return these names.

    Raises
    ------
    ConfigError
        If they are none.
    """
    index = index_of(root, path)
    column = _column(root[index], index)
    if column is None:
        raise ConfigError(f"{index}: is a {encoding_in(root[index])!r}, which is no index")
    return [str(name) for name in column.read(lambda array, _: _values(array, slice(None))).tolist()]


def _column(node: Any, path: str) -> ObsColumn | None:
    return column_at(node, path, member_of if isinstance(node, zarr.Group) else None)


def contents_of(root: Any, file: DataFile, variables: tuple[str, ...] | None) -> Contents:
    """Return the content of a file to pack; `variables` names elements, such as "X" and "obs/cell_type", None: all.

    Raises
    ------
    ConfigError, UnsupportedError
        If an element is not there, is stored by column, or has not one row for each cell.
    """
    found, index = Contents(), index_of(root, "obs")
    taken: set[str] = set()
    known: list[str] = []

    def is_chosen(path: str) -> bool:
        known.append(path)
        if variables is None or path == index:
            return True
        matching = [one for one in variables if path == one or path.startswith(f"{one}/")]
        taken.update(matching)
        return bool(matching)

    for top in _OF_CELLS:
        if top in root:
            _walk(root, top, file, found, is_chosen)
    missing = [one for one in variables or () if one not in taken]
    if missing:
        raise ConfigError(f"variables: {missing[0]!r} is not in {file}, which has {', '.join(dict.fromkeys(known))}")
    rows = next(one.rows for path, one in found.elements.items() if path == index or path.startswith(f"{index}/"))
    for path, one in found.elements.items():
        if one.rows != rows:
            raise ConfigError(f"{file}: {path!r} has {one.rows} rows, must have {rows}, one for each cell")
    found.left_out += [f"{path}: pairs of cells are not packed" for path in ("obsp",) if len(list(root.get(path, ())))]
    _trim_columns(found)
    return found


def copied(root: Any) -> tuple[dict[str, dict[str, Any]], list[Constant], list[str]]:
    """Return what has no axis of cells: attributes of groups, arrays to copy, and the paths that cannot be copied."""
    groups: dict[str, dict[str, Any]] = {}
    constants: list[Constant] = []
    lost: list[str] = []
    for top in _COPIED:
        if top not in root:
            continue
        for path, node in _below(root[top], top):
            attributes = _attributes(node)
            if is_group(node):
                groups[path] = attributes
                continue
            try:
                constants.append(Constant(path, _values(node, ...), None, attributes))
            except (TypeError, ValueError, OSError):
                lost.append(f"{path}: is of a kind that Zarr lacks")
    return groups, constants, lost


def _below(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, node
    if is_group(node):
        for key in node.keys():  # noqa: SIM118 (groups of Zarr are no mappings)
            yield from _below(node[key], f"{path}/{key}")


def _walk(root: Any, path: str, file: DataFile, found: Contents, is_chosen: Any) -> None:
    """Note the elements at a path and below it."""
    node = root[path]
    attributes = _attributes(node)
    kind = attributes.get("encoding-type")
    if not is_group(node):
        if is_chosen(path):
            found.elements[path] = _array(node, path, file, attributes)
        return
    if kind in ("csr_matrix", "csc_matrix"):
        if is_chosen(path):
            found.elements[path] = _matrix(node, path, file, attributes)
        return
    column = _column(node, f"{file}: {path}")
    if column is not None:
        if not is_chosen(path):
            return
        found.groups[path] = attributes
        for name, array in column.parts.items():
            found.elements[f"{path}/{name}"] = _array(array, f"{path}/{name}", file, _attributes(array))
        if column.categories is not None:
            found.categories[path] = column.categories.read_distinct(_whole, _names)
        return
    if kind not in (None, "dict", "dataframe"):
        found.left_out.append(f"{path}: is a {kind}, which is not packed")
        return
    found.groups[path] = attributes
    keys = list(node.keys())
    if kind == "dataframe":
        columns = attributes.get("column-order", [])
        lacking = [key for key in columns if is_chosen(f"{path}/{key}") and not (isinstance(key, str) and key in node)]
        if lacking:
            raise ConfigError(f"{file}: {path!r} lists the columns {some_of(lacking)}, which are not there")
        keys = [index_of(root, path).rpartition("/")[2], *(key for key in columns if key in node)]
        if path != "obs" and any(is_chosen(f"{path}/{key}") for key in keys):
            chosen, is_chosen = is_chosen, lambda one: one == f"{path}/{keys[0]}" or chosen(one)
    for key in keys:
        _walk(root, f"{path}/{key}", file, found, is_chosen)


def _trim_columns(found: Contents) -> None:
    """Leave in the list of columns of each table those that are packed."""
    for path, attributes in found.groups.items():
        if "column-order" in attributes:
            packed = {one[len(path) + 1 :].partition("/")[0] for one in found.elements if one.startswith(f"{path}/")}
            attributes["column-order"] = [name for name in attributes["column-order"] if name in packed]


def _array(node: Any, path: str, file: DataFile, attributes: dict[str, Any]) -> Element:
    dtype, shape = node.dtype, tuple(node.shape)
    if not shape:
        raise ConfigError(f"{file}: {path!r} has no axis of cells: leave it out with `variables`")
    if dtype.kind in "OTU":
        if len(shape) > 1 or str(attributes.get("encoding-type", "string-array")) != "string-array":
            raise ConfigError(f"{file}: {path!r} has texts of shape {shape[1:]}: leave it out with `variables`")
        return Element(path, "text", _OBJECT, (), attributes, shape[0])
    if dtype.names is not None or dtype.kind not in "biufc":
        raise ConfigError(
            f"{file}: {path!r} has the dtype {dtype}, which pack does not support: leave it out with `variables`"
        )
    of_row = max(1, bytes_of(shape[1:], dtype))
    chunk = node.chunks[0] if node.chunks else _PIECE_BYTES // of_row
    return Element(
        path, "number", dtype.newbyteorder("="), shape[1:], attributes, shape[0], chunk if len(shape) > 1 else 1
    )


def _matrix(node: Any, path: str, file: DataFile, attributes: dict[str, Any]) -> Element:
    """Return a sparse matrix, whose `indptr` is read.

    Raises
    ------
    ConfigError, UnsupportedError
        If it is stored by column, or its arrays do not belong together.
    """
    if attributes["encoding-type"] == "csc_matrix":
        raise UnsupportedError(
            f"{file}: {path!r} is a csc_matrix, stored column by column, whose rows are no runs of values: convert it "
            "(in scipy: X.tocsr()) and write the file anew, or leave it out with `variables`"
        )
    rows, columns = (int(n) for n in attributes["shape"])
    data, indices, stored = node["data"], node["indices"], node["indptr"]
    if stored.shape != (rows + 1,) or data.shape != indices.shape:
        raise ConfigError(f"{file}: {path!r} has {stored.shape}, {indices.shape} and {data.shape} numbers, {rows} rows")
    if is_zarr(stored):
        indptr = read_indptr(stored, indices, columns, f"{file}: {path}")
    else:
        for name, array in (("indptr", stored), ("indices", indices)):
            check_whole(array, f"{file}: {path}/{name}")
        indptr = np.asarray(stored[:]).astype(np.int64)
        check_indptr(indptr, data.shape[0], f"{file}: {path}")
    if data.dtype.kind not in "biufc" or indices.dtype.kind not in "iu":
        raise ConfigError(
            f"{file}: {path!r} has the dtypes {data.dtype} and {indices.dtype}, which pack does not support"
        )
    del attributes["shape"]  # that of the packed store is another one
    chunk = data.chunks[0] if data.chunks else _PIECE_BYTES // data.dtype.itemsize
    together = max(2, -(-chunk * rows // max(1, data.shape[0])))
    value, index = data.dtype.newbyteorder("="), indices.dtype.newbyteorder("=")
    pointer = stored.dtype.newbyteorder("=")
    return Element(path, "csr", value, (columns,), attributes, rows, together, indptr, index, pointer)


def _names(array: Any, where: str) -> Rows:
    """Return items that are all different."""
    if is_zarr(array):
        values = read_distinct(array)
        return values.astype(object) if values.dtype.kind in "OTU" else values
    return _whole(array, where)


def _whole(array: Any, where: str) -> Rows:
    if not is_zarr(array):
        check_whole(array, where)
    return _values(array, slice(None))


def _values(node: Any, key: Any) -> Rows:
    """Return some of an array, its text as str in an array of dtype object.

    Raises
    ------
    TypeError
        If its items are of a kind that Zarr lacks.
    """
    if hasattr(node, "asstr") and node.dtype.kind == "O":
        if node.shape is None:
            raise TypeError("empty")
        return np.asarray(node.asstr()[key], object)  # TypeError for lists and references
    values = np.asarray((as_meant(node) if is_zarr(node) else node)[key])
    if values.dtype.kind in "OTU":
        return values.astype(object)
    if values.dtype.kind not in "biufc":
        raise TypeError(values.dtype)
    return values


def _attributes(node: Any) -> dict[str, Any]:
    known: Mapping[str, Any] = dict(node.attrs)
    return json_attributes(known)
