"""`AnnDataSource`: cells of AnnData files, `.h5ad` and Zarr, packed as AnnData in Zarr.

HDF5 is read by h5py, and its library reads and decodes in one thread at a time. A read takes a run of cells, so memory
holds a run of each matrix. `indptr` of all sparse matrices is in memory: 8 bytes for each cell and matrix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.packing.sources.cells.anndata_elements import (
    Contents,
    Element,
    close_root,
    contents_of,
    copied,
    is_anndata,
    names_of,
    open_root,
)
from zarrfeed.packing.sources.file_source import FileSource, data_files
from zarrfeed.packing.sources.open_files import OpenFiles
from zarrfeed.packing.sources.source import Constant, CsrRows, Rows, SourceField, SourceOptions, objects_of
from zarrfeed.storage.files.data_file import DataFile

_CONCAT = "anndata.concat or anndata.experimental.concat_on_disk makes one file of such files"
#: Number of texts of a column that are measured, to choose the samples of a chunk.
_MEASURED = 16


class AnnDataSource(FileSource):
    """Cells of AnnData files, one file after the other.

    Sparse matrices (CSR), dense arrays, and columns of `obs` have a row for each cell. `var`, `varm`, `varp`, `uns` and
    `raw/var` are those of the first file. `obsp` is left out. Categorical columns have the categories of all files, in
    the order in which they are first seen.

    Parameters
    ----------
    paths
        `.h5ad` files, folders of them, and Zarr stores.
    options
        `variables` chooses elements by their paths, such as "X", "layers/counts", "obs/cell_type" or "obs".

    Raises
    ------
    ConfigError
        If a file is no AnnData, or has other variables, elements or dtypes than the first one; if h5py is missing.
    UnsupportedError
        If a matrix is stored by column.
    """

    kind = "anndata"
    is_nested = True

    def __init__(self, paths: Sequence[str], options: SourceOptions) -> None:
        super().__init__()
        if options.sample_dim is not None or options.sample_axis != 0:
            raise ConfigError("anndata: cells lie along the first axis: leave sample_dim and sample_axis out")
        self.files = tuple(_files(paths))
        self._open: OpenFiles[Any] = OpenFiles(
            lambda number: open_root(self.files[number], options.zarr_format), close_root, 4
        )
        found: list[Contents] = []
        genes: dict[str, list[str]] = {}
        for number, file in enumerate(self.files):
            with self._open.use(number) as root:
                for path in ("var", "raw/var"):
                    if path in root:
                        names = names_of(root, path)
                        _check_names(file, path, names, genes.setdefault(path, names))
                one = contents_of(root, file, options.variables)
                _check_same(file, one, found[0] if found else one)
                found.append(one)
                if number == 0:
                    groups, constants, lost = copied(root)
        first = found[0]
        self._contents = found
        self._codes: dict[str, list[Rows]] = {}
        for path in first.categories:
            union, codes = _united([one.categories[path] for one in found], path, first, self.files)
            self._codes[f"{path}/codes"] = codes
            attributes = {"encoding-type": "array", "encoding-version": "0.2.0"}
            if union.dtype == object:
                attributes["encoding-type"] = "string-array"
            constants.append(Constant(f"{path}/categories", union, None, attributes))
        fields = [self._field(path) for path in first.elements]
        self._indices = [np.dtype(object) if f.csr is None else f.csr.index for f in fields]
        parents = {"raw": {"encoding-type": "raw", "encoding-version": "0.1.0"}}
        used = {path.partition("/")[0] for path in (*groups, *first.groups, *first.elements) if path.startswith("raw/")}
        if "raw/X" not in first.elements:  # `raw` has no cells then
            groups, used = {path: one for path, one in groups.items() if not path.startswith("raw/")}, set()
            constants = [one for one in constants if not one.name.startswith("raw/")]
        #: Attributes of the groups of the packed store, parents first.
        self.groups: Mapping[str, Mapping[str, Any]] = {
            **{path: parents[path] for path in used},
            **groups,
            **first.groups,
        }
        several = ["var, varm, varp and uns are those of the first file"] if len(self.files) > 1 else []
        self.not_proved = ("var, varm, varp and uns of later files",) if len(self.files) > 1 else ()
        self._describe(
            self.files,
            [next(iter(one.elements.values())).rows for one in found],
            fields,
            block_samples=max(e.together for e in first.elements.values()),
            attributes={"encoding-type": "anndata", "encoding-version": "0.1.0"},
            constants=constants,
            layout=[[(path, [_digest(one.elements[path]) for one in found]) for path in first.elements]],
        )
        self.notes = (*dict.fromkeys(note for one in found for note in one.left_out), *lost, *several)
        with self._open.use(0):  # which each text would open again
            self.fields = tuple(self._measured(f, n) for n, f in enumerate(self.fields))

    def _field(self, path: str) -> SourceField:
        elements = [one.elements[path] for one in self._contents]
        first = elements[0]
        if first.indptr is not None:
            index = np.result_type(*(one.index for one in elements))
            pointer = np.result_type(*(one.pointer for one in elements))
            lengths = np.concatenate([np.diff(one.indptr) for one in elements if one.indptr is not None])
            csr = CsrRows(first.shape[0], index, pointer, first.dtype, lengths)
            mean = int(lengths.sum()) * (index.itemsize + first.dtype.itemsize) // max(1, len(lengths))
            return SourceField(path, np.dtype(object), (), "csr", attributes=first.attributes, mean_bytes=mean, csr=csr)
        dtype = self._codes[path][0].dtype if path in self._codes else first.dtype
        return SourceField(path, dtype, first.shape, first.kind, attributes=first.attributes)

    def _measured(self, field: SourceField, number: int) -> SourceField:
        """Return a field with its mean bytes per sample, estimated from the first samples if it is text."""
        if field.kind != "text":
            return field
        end = min(self.num_samples, _MEASURED, self._starts[1] or _MEASURED)
        some = self.read(0, int(end))[number]
        return replace(field, mean_bytes=sum(map(len, some)) // max(1, len(some)))

    def _read_file(self, number: int, begin: int, end: int) -> list[Rows]:
        elements, made = self._contents[number].elements, list[Rows]()
        with self._open.use(number) as root:
            for field, index in zip(self.fields, self._indices, strict=True):
                rows = elements[field.name].read(root, begin, end, index)
                if field.name in self._codes:
                    rows = self._codes[field.name][number][rows]
                made.append(rows)
        return made

    def close(self) -> None:
        """Close the files."""
        self._open.close()


def _files(paths: Sequence[str]) -> list[DataFile]:
    found: list[DataFile] = []
    for path in paths:
        store = "://" not in path and Path(path).is_dir() and is_anndata(path)
        found += [DataFile.of(Path(path).absolute())] if store else data_files([path], "anndata", (".h5ad",))
    return found


def _digest(element: Element) -> str:
    """Return a text that identifies an element: its rows, and their lengths."""
    lengths = b"" if element.indptr is None else element.indptr.tobytes()
    return f"{element.told} {element.rows} {hashlib.sha256(lengths).hexdigest()}"


def _check_names(file: DataFile, path: str, names: list[str], first: list[str]) -> None:
    if names == first:
        return
    if len(names) != len(first):
        what = f"{path} has {len(names)} variables, that of the first file {len(first)}"
    else:
        number = next(n for n, (a, b) in enumerate(zip(names, first, strict=True)) if a != b)
        what = f"{path} has {names[number]!r} as variable {number}, the first file has {first[number]!r}"
    raise ConfigError(f"{file}: {what}; {_CONCAT}")


def _check_same(file: DataFile, one: Contents, first: Contents) -> None:
    """Raise ConfigError, which names the first difference, unless a file has the elements of the first one."""
    for path in [*first.elements, *one.elements]:
        here, there = (element.told if (element := of.elements.get(path)) else "not there" for of in (one, first))
        if here != there:
            raise ConfigError(
                f"{file}: {path!r} is {here}, in the first file {there}; choose elements with `variables`, or {_CONCAT}"
            )
    for path in first.categories:
        a, b = (of.groups[path].get("ordered", False) for of in (one, first))
        if a != b:
            raise ConfigError(f"{file}: {path!r} has ordered = {a}, in the first file {b}; {_CONCAT}")


def _united(
    categories: Sequence[Rows], path: str, first: Contents, files: Sequence[DataFile]
) -> tuple[Rows, list[Rows]]:
    """Return the categories of all files, and for each file the new code of each code; the last one is for -1.

    Raises
    ------
    ConfigError
        If the categories of files are of several kinds, or are ordered and differ.
    """
    known: dict[Any, int] = {}
    for file, of_file in zip(files, categories, strict=True):
        if of_file.dtype.kind != categories[0].dtype.kind:
            raise ConfigError(
                f"{file}: categories of {path!r} are {of_file.dtype}, in the first file {categories[0].dtype}; "
                f"{_CONCAT}"
            )
        if first.groups[path].get("ordered") and of_file.tolist() != categories[0].tolist():
            raise ConfigError(
                f"{file}: the ordered categories of {path!r} are {of_file.tolist()}, in the first file "
                f"{categories[0].tolist()}: give all files the same (pandas: Series.cat.set_categories)"
            )
        for one in of_file.tolist():
            known.setdefault(one, len(known))
    union = objects_of(list(known))
    if categories[0].dtype != object:
        union = np.array(list(known), np.result_type(*(one.dtype for one in categories)))
    largest = first.elements[f"{path}/codes"].dtype.itemsize
    dtype = next(
        d for d in map(np.dtype, ("i1", "i2", "i4")) if len(known) <= np.iinfo(d).max and d.itemsize >= largest
    )
    codes = [np.array([*(known[one] for one in of_file.tolist()), -1], dtype) for of_file in categories]
    return union, codes
