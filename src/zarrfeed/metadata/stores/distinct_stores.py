"""Refusal of stores that have samples in common: files of one collection, and links to a store that is given, too.

Invariant: stores that are refused are read from the same bytes in all of their arrays that can be compared. Arrays in
memory, and those of stores that are neither local nor files, cannot.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from zarr.storage import ZipStore

from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.metadata.group.source_names import store_name
from zarrfeed.metadata.stores.concat import Run
from zarrfeed.metadata.stores.store_parts import ArrayLocation, locations_in
from zarrfeed.storage.access.key_urls import is_url
from zarrfeed.storage.access.local_files import local_path
from zarrfeed.storage.files.chunk_table import ChunkTable, Int64
from zarrfeed.storage.files.data_file import AnyFile, DataFile
from zarrfeed.storage.files.table_store import TableStore

#: Bytes that an array is read from: the path or URL of a folder or file, what identifies it, and offsets in it.
_Bytes: TypeAlias = tuple[str, Hashable, Int64]
_WHOLE = np.zeros(1, np.int64)


def check_are_distinct(samples: Sequence[Any], runs: Sequence[Run]) -> None:
    """Raise ConfigError if two stores of other names have samples in common; the message names both.

    Parameters
    ----------
    samples
        The stores as they were given. One that is given twice by the same name is meant twice.
    runs
        The same stores, opened.
    """
    common: dict[tuple[int, int], str] | None = None
    for column in range(min(len(run.resolved.columns) for run in runs)):
        found = list(_bytes_of_stores(runs, column))
        if found:
            pairs = {pair: where for pair, where in _pairs(found).items() if common is None or pair in common}
            common = {pair: pairs[pair] for pair in pairs if len({_name_of(samples[one]) for one in pair}) > 1}
            if not common:
                return
    for (first, second), where in (common or {}).items():
        one, other = store_name(samples[first]), store_name(samples[second])
        raise ConfigError(
            f"{other}: has samples that {one} has, too, since both are read from {printable(where)}: give one of them. "
            f"zarrfeed.concat([zarrfeed.open({one!r}), zarrfeed.open({other!r})]) reads these samples twice"
        )


def _name_of(source: Any) -> Hashable:
    """Return a name that is the same for one path, however it is spelled."""
    if isinstance(source, str | Path) and not (is_url(source) and not str(source).startswith("file:")):
        return str(local_path(source).absolute())
    return store_name(source)


def _bytes_of_stores(runs: Sequence[Run], column: int) -> Iterator[tuple[int, _Bytes]]:
    """Yield the bytes that a column of each store is read from, with the number of the store."""
    first = 0
    for run in runs:
        if run.located:
            located = [[location] for _, location in run.located[column]]
        else:
            arrays = run.resolved.columns[column].field.arrays()
            located = [[location for layout in arrays for _, location in locations_in(layout)]]
        for number, locations in enumerate(located):
            for location in locations:
                for one in _bytes_at(location):
                    yield first + number, one
        first += len(run.stores)


def _bytes_at(location: ArrayLocation) -> Iterator[_Bytes]:
    """Yield the bytes that an array is read from: nothing if that is not known."""
    if isinstance(location, str):
        yield location, _identity(location), _WHOLE
        return
    store, path = location.store, location.prefix.rstrip("/")
    table = location.table
    if isinstance(store, TableStore) and (store.lists_decoded or not store.is_by_library(path)):
        table = store.table(path)
    if table is not None:
        yield from _bytes_in(table)
    elif isinstance(store, TableStore) and store.file is not None:
        yield str(store.file), (_identity_of(store.file), path), _WHOLE
    elif isinstance(store, ZipStore):
        yield str(store.path), (_identity(str(store.path)), path), _WHOLE


def _bytes_in(table: ChunkTable) -> Iterator[_Bytes]:
    for number, file in enumerate(table.files):
        offsets = table.offsets
        if table.file_indices is not None:
            offsets = offsets[table.file_indices == number]
        if len(offsets):
            yield str(file), _identity_of(file), np.unique(offsets)


def _identity_of(file: AnyFile) -> Hashable:
    return _identity(str(file.path)) if isinstance(file, DataFile) else file.url


def _identity(path: str) -> Hashable:
    """Return what links to a file or a folder have in common with it."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path costs as much as the call
    except OSError:
        return path
    return status.st_dev, status.st_ino


def _pairs(found: Sequence[tuple[int, _Bytes]]) -> dict[tuple[int, int], str]:
    """Return the pairs of stores that have bytes in common -> the file or the folder."""
    by_file: dict[Hashable, list[tuple[int, str, Int64]]] = defaultdict(list)
    for store, (where, identity, offsets) in found:
        by_file[identity].append((store, where, offsets))
    pairs: dict[tuple[int, int], str] = {}
    for readers in by_file.values():
        if len(readers) == 1:
            continue
        stores = np.repeat([store for store, *_ in readers], [len(offsets) for *_, offsets in readers])
        offsets = np.concatenate([offsets for *_, offsets in readers])
        order = np.lexsort((stores, offsets))
        stores, offsets = stores[order], offsets[order]
        is_common = (offsets[1:] == offsets[:-1]) & (stores[1:] != stores[:-1])
        both = np.unique(np.stack([stores[:-1], stores[1:]])[:, is_common], axis=1)
        pairs.update(dict.fromkeys(zip(*both.tolist(), strict=True), readers[0][1]))
    return pairs
