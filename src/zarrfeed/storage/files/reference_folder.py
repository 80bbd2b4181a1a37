"""Folders of references in Parquet files (kerchunk, VirtualiZarr) as a `TableStore`.

The format: https://fsspec.github.io/kerchunk/spec.html#parquet-references. `.zmetadata` has the documents of Zarr v2,
and `NAME/refs.N.parq` has a row for each chunk of the array NAME, in C order, `record_size` of them in each file.
"""

from __future__ import annotations

import io
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.storage.files.chunk_names import ChunkNames
from zarrfeed.storage.files.chunk_table import IN_MEMORY, WHOLE, ChunkTable, Int64
from zarrfeed.storage.files.data_file import AnyFile, DataFile, FarFile
from zarrfeed.storage.files.reference_targets import ReferenceTargets
from zarrfeed.storage.files.references import FORMAT, add_documents, names_of
from zarrfeed.storage.files.table_store import TableStore

_METADATA = ".zmetadata"
_RECORDS = re.compile(r"refs\.(\d{1,15})\.parq")
_LOOKED_AT = 1 << 16


def is_reference_folder(path: Path) -> bool:
    """Return whether a folder has references in Parquet files.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    if not (path / _METADATA).is_file() or (path / ".zgroup").exists():
        return False
    with (path / _METADATA).open("rb") as file:
        if b'"record_size"' in file.read(_LOOKED_AT):
            return True
        file.seek(max(0, file.seek(0, 2) - _LOOKED_AT))
        return b'"record_size"' in file.read()


def open_reference_folder(path: Path | FarFile) -> TableStore:
    """Return a folder of references as a store, by its path or by its `.zmetadata` behind a URL.

    Raises
    ------
    ConfigError
        If its metadata are damaged.
    """
    file = path if isinstance(path, FarFile) else DataFile.of(path.absolute() / _METADATA)
    documents, _ = _read_metadata(file)
    store = TableStore(file, FORMAT, read_table, str(_folder_of(file)), is_zarr=True)
    add_documents(store, documents)
    return store


def _folder_of(file: AnyFile) -> Path | str:
    return file.url.rpartition("/")[0] if isinstance(file, FarFile) else file.path.parent


def read_table(file: AnyFile, path: str) -> ChunkTable:
    """Return where the chunks of an array lie.

    Raises
    ------
    ConfigError
        If a Parquet file is damaged, or pyarrow is not installed.
    StoreReadError
        If the references name a file that is missing or too short.
    """
    documents, record_size = _read_metadata(file)
    names, folder = names_of(documents)[path], _folder_of(file)
    name = f"{printable(folder)}/{printable(str(path))}".rstrip("/")
    targets = ReferenceTargets(name, folder)
    in_memory: list[bytes] = []
    found = [
        _read_record(record, names, number * record_size, targets, in_memory)
        for number, record in _records(file, path, -(-names.num_objects // record_size))
    ]
    columns = (np.concatenate([np.empty(0, np.int64), *one]) for one in zip(*found, strict=True)) if found else None
    numbers, file_indices, offsets, lengths = columns or (np.empty(0, np.int64) for _ in range(4))
    extents = np.stack([offsets, lengths], axis=1)
    file_indices = file_indices.astype(np.int32)
    return ChunkTable.of_files(targets.files, name, names.counts, numbers, extents, file_indices, b"".join(in_memory))


def _read_metadata(file: AnyFile) -> tuple[dict[str, bytes], int]:
    """Return the documents of a folder, and how many chunks a Parquet file has."""
    try:
        found = parse_json(file.read_all())
        documents = {str(key): json.dumps(one).encode() for key, one in found["metadata"].items()}
        record_size = int(found["record_size"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ConfigError(f"{file}: is no metadata of references, or damaged: {error!r}") from error
    if record_size < 1:
        raise ConfigError(f"{file}: record_size = {record_size}, must be at least 1")
    return documents, record_size


def _records(file: AnyFile, path: str, most: int) -> list[tuple[int, Path | FarFile]]:
    """Return the Parquet files of an array with their numbers."""
    if isinstance(file, FarFile):  # web servers list no names
        asked = ((number, file.beside(f"{path}/refs.{number}.parq".lstrip("/"))) for number in range(most))
        return [(number, one) for number, one in asked if one is not None]
    folder = file.path.parent / path
    names = [match for one in folder.iterdir() if (match := _RECORDS.fullmatch(one.name))] if folder.is_dir() else []
    return sorted((int(one[1]), folder / one[0]) for one in names if int(one[1]) < most)


class _Record(NamedTuple):
    """The chunks of a Parquet file: their numbers, and where each lies."""

    numbers: Int64
    file_indices: Int64
    offsets: Int64
    lengths: Int64


def _read_record(
    path: Path | FarFile, names: ChunkNames, first: int, targets: ReferenceTargets, in_memory: list[bytes]
) -> _Record:
    """Return the chunks of a Parquet file, the first of which has the number `first`."""
    table = _read_parquet(path)
    count = min(table.num_rows, names.num_objects - first)
    file_index, offset, length = np.full((3, count), IN_MEMORY, np.int64)
    is_stored = np.zeros(count, bool)
    if "path" in table.column_names:
        urls = table["path"].slice(0, count).combine_chunks()
        urls = urls if hasattr(urls, "dictionary") else urls.dictionary_encode()
        number = urls.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        used = np.unique(number[number >= 0])
        is_stored = number >= 0
        file_index[is_stored] = np.array([targets.number_of(urls.dictionary[int(i)].as_py()) for i in used], np.int64)[
            np.searchsorted(used, number[is_stored])
        ]
        offset, length = (_numbers(table, column, count, path) for column in ("offset", "size"))
        sizes = np.array([one.size if isinstance(one, DataFile) else WHOLE for one in targets.files], np.int64)
        is_whole = is_stored & (offset == 0) & (length == 0)
        length[is_whole] = sizes[file_index[is_whole]]
    if "raw" in table.column_names:
        begin = sum(map(len, in_memory))
        for i, content in enumerate(table["raw"].slice(0, count).to_pylist()):
            if content is not None:
                content = content.encode() if isinstance(content, str) else bytes(content)
                in_memory.append(content)
                file_index[i], offset[i], length[i], is_stored[i] = IN_MEMORY, begin, len(content), True
                begin += len(content)
    numbers = first + np.flatnonzero(is_stored)
    return _Record(numbers, file_index[is_stored], offset[is_stored], length[is_stored])


def _numbers(table: Any, column: str, count: int, path: Path | FarFile) -> Int64:
    try:
        values = table[column].slice(0, count).combine_chunks().fill_null(0).to_numpy(zero_copy_only=False)
        if values.dtype.kind not in "iu":
            raise ConfigError(f"{printable(str(path))}: the column {column} has {values.dtype}, must have integers")
        return np.array(values.astype(np.int64))
    except KeyError as error:
        raise ConfigError(f"{printable(str(path))}: has paths, and no column {column}") from error


def _read_parquet(path: Path | FarFile) -> Any:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            f'{printable(str(path))}: references in Parquet files are read by pyarrow: pip install "zarrfeed[virtual]"'
        ) from error
    content = path.read_all() if isinstance(path, FarFile) else b""
    try:
        return parquet.ParquetFile(io.BytesIO(content) if isinstance(path, FarFile) else path).read()
    except Exception as error:  # of any class: pyarrow's own, or those of Python
        raise ConfigError(f"{printable(str(path))}: is no Parquet file, or a damaged one: {error}") from error
