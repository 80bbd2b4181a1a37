"""Objects of VirtualiZarr as a `TableStore`: their manifests say where in other files each chunk lies.

VirtualiZarr has no public way to the groups of a `ManifestStore` and to the columns of a manifest, so this module reads
private attributes, as releases 2.0 to 2.5 have them. A virtual dataset is read by the references that it writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from zarr.buffer import cpu

from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.storage.files.chunk_table import ChunkTable, Extent
from zarrfeed.storage.files.data_file import FarFile
from zarrfeed.storage.files.reference_targets import ReferenceTargets
from zarrfeed.storage.files.references import References, ReferenceTables, add_documents
from zarrfeed.storage.files.table_store import TableStore

FORMAT = "virtual"


def is_manifest_store(source: object) -> bool:
    """Return whether this is a `ManifestStore`."""
    kind = type(source)
    return kind.__module__.partition(".")[0] == "virtualizarr" and kind.__name__ == "ManifestStore"


def open_manifests(source: Any) -> TableStore:
    """Return a `ManifestStore` as a store."""
    nodes = dict(_nodes("", source._group))
    arrays = {path: node for path, node in nodes.items() if hasattr(node, "manifest")}
    store = TableStore(None, FORMAT, ManifestTables(arrays), "the ManifestStore", is_zarr=True)
    store.far_reader = _ManifestChunks(source)
    documents = {
        f"{path}/zarr.json".lstrip("/"): node.metadata.to_buffer_dict(cpu.buffer_prototype)["zarr.json"].to_bytes()
        for path, node in nodes.items()
    }
    add_documents(store, documents)
    return store


def open_virtual_dataset(source: Any) -> TableStore | None:
    """Return a dataset of xarray whose values VirtualiZarr refers to as a store; None if it is anything else.

    Raises
    ------
    ConfigError
        If VirtualiZarr cannot write its references.
    """
    if not is_virtual_dataset(source):
        return None
    name = "the virtual dataset"
    try:
        entries = source.vz.to_kerchunk(format="dict")["refs"]
    except Exception as error:  # of any class
        raise ConfigError(f"{name}: VirtualiZarr cannot write its references: {error}") from error
    references = References.of_entries(name, entries, None, {})
    # VirtualiZarr keeps `_FillValue` as an attribute, and gives all arrays a fill value.
    store = TableStore(None, FORMAT, ReferenceTables(references), name)
    add_documents(store, references.documents)
    return store


def is_virtual_dataset(source: object) -> bool:
    """Return whether this is a dataset of xarray that VirtualiZarr opened: some of its values are references."""
    variables = getattr(source, "variables", {}) if type(source).__module__.startswith("xarray.") else {}
    return any(type(one._data).__module__.partition(".")[0] == "virtualizarr" for one in variables.values())


def _nodes(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    yield path, node
    for name, member in getattr(node, "_members", {}).items():
        yield from _nodes(f"{path}/{name}".lstrip("/"), member)


@dataclass
class ManifestTables:
    """Finds the chunks of an array of a `ManifestStore`, by its path."""

    arrays: dict[str, Any]

    def __call__(self, _: object, path: str) -> ChunkTable:
        """Return the table of the array at a path.

        Raises
        ------
        ConfigError, StoreReadError
            If the manifest does not fit the array, or names a file that is missing or too short.
        """
        array, name = self.arrays[path], f"the ManifestStore/{printable(path)}"
        manifest = array.manifest
        urls, offsets, lengths = (
            np.asarray(column) for column in (manifest._paths, manifest._offsets, manifest._lengths)
        )
        grid = tuple(-(-n // max(1, c)) for n, c in zip(array.shape, array.chunks, strict=True))
        if urls.shape != grid:
            raise ConfigError(f"{name}: its manifest has {urls.shape} chunks, the array has {grid}")
        is_stored = (urls != "").reshape(-1)
        targets = ReferenceTargets(name)
        used, which = np.unique(urls.reshape(-1)[is_stored], return_inverse=True)
        file_indices = np.array([targets.number_of(str(url)) for url in used], np.int32)[which]
        columns = [column.reshape(-1)[is_stored].astype(np.int64) for column in (offsets, lengths)]
        numbers = np.flatnonzero(is_stored)
        return ChunkTable.of_files(targets.files, name, grid, numbers, np.stack(columns, axis=1), file_indices)


@dataclass
class _ManifestChunks:
    """Reads chunks as a `ManifestStore` reads them, by its registry."""

    source: Any

    def check(self, url: str) -> None:
        """Raise ConfigError if the registry has no store for a URL."""
        try:
            self.source._registry.resolve(url)
        except ValueError as error:
            raise ConfigError(f"the ManifestStore: its registry has no store for {printable(url)}") from error

    async def read(self, key: str, file: FarFile, extent: Extent) -> bytes:  # noqa: ARG002 - the names of the protocol
        """Return the bytes of a chunk."""
        found = await self.source.get(key, cpu.buffer_prototype)
        return bytes(found.to_bytes())
