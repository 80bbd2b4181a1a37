"""Files of references (kerchunk, VirtualiZarr) as a `TableStore`: JSON that says where in other files each chunk lies.

The format: https://fsspec.github.io/kerchunk/spec.html, versions 0 and 1. Invariant: chunks are those that fsspec's
reference file system finds. A reference that says something impossible is an error that names the array.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError, UnsupportedError, printable
from zarrfeed.storage.files.chunk_names import ChunkNames
from zarrfeed.storage.files.chunk_table import IN_MEMORY, WHOLE, ChunkTable
from zarrfeed.storage.files.data_file import AnyFile, DataFile, FarFile, file_of
from zarrfeed.storage.files.reference_targets import ReferenceTargets
from zarrfeed.storage.files.table_store import TableStore

#: Documents of Zarr, of which references have the content.
_DOCUMENTS = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
#: Bytes of a file that are searched for the names that references have.
_LOOKED_AT = 1 << 16
_MARK = re.compile(rb'("refs"|(\.z(array|group|attrs|metadata)|zarr\.json)")\s*:')
_MOST_DOCUMENT_BYTES = 1 << 26
_MOST_OFFSET = 1 << 62
FORMAT = "references"


def is_references(path: Path | FarFile) -> bool:
    """Return whether a file is one of references in JSON, by its content.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    with path.open("rb") as file:
        begin = file.read(_LOOKED_AT)
    return begin.lstrip().startswith(b"{") and _MARK.search(begin) is not None


def open_references(path: Path | FarFile) -> TableStore:
    """Return a file of references as a store.

    Raises
    ------
    ConfigError
        If the file is damaged.
    UnsupportedError
        If its references are made by programs (`gen`).
    """
    file = file_of(path)
    references = References.of(file)
    store = TableStore(file, FORMAT, ReferenceTables(references), is_zarr=True)
    add_documents(store, references.documents)
    return store


def add_documents(store: TableStore, documents: Mapping[str, bytes]) -> None:
    """Add documents as they are."""
    names = names_of(documents)
    for key, content in documents.items():
        store.add_document(key, content, names.get(key.rpartition("/")[0]))


def names_of(documents: Mapping[str, bytes]) -> dict[str, ChunkNames]:
    """Return the keys of the chunks of each array, by its path."""
    found = {}
    for key, content in documents.items():
        node, _, name = key.rpartition("/")
        if name not in (".zarray", "zarr.json"):
            continue
        try:
            document = parse_json(content)
        except ValueError:
            continue  # zarr-python says it when the array is opened
        names = ChunkNames.of_document(document) if isinstance(document, dict) else None
        if names is not None:
            found[node] = names
    return found


@dataclass(frozen=True)
class References:
    """The content of a file of references, or of an object that has the same.

    Attributes
    ----------
    name
        The file or the object, in messages.
    folder
        The folder of the file, or its URL, which relative paths may count from. None: they come from no file.
    documents
        Documents of Zarr, by their keys.
    names
        Keys of the chunks of each array, by its path.
    chunks
        Key below the array, and reference, of each chunk of an array, by the path of the array.
    templates
        Text for `{{name}}` in URLs, by the name.
    """

    name: str
    folder: Path | str | None
    documents: dict[str, bytes]
    names: dict[str, ChunkNames]
    chunks: dict[str, list[tuple[str, Any]]] = field(repr=False)
    templates: dict[str, str]

    @classmethod
    def of(cls, file: AnyFile) -> References:
        """Read a file of references. Raises as `open_references`."""
        entries, templates = _read(file)
        folder = file.url.rpartition("/")[0] if isinstance(file, FarFile) else file.path.parent
        return cls.of_entries(str(file), entries, folder, templates)

    @classmethod
    def of_entries(
        cls, name: str, entries: Mapping[str, Any], folder: Path | str | None, templates: dict[str, str]
    ) -> References:
        """Return references by their keys. Raises as `open_references`."""
        targets = ReferenceTargets(name, folder, templates)
        documents = {
            key: _document(f"{name}/{printable(key)}", one, targets)
            for key, one in entries.items()
            if key.rpartition("/")[2] in _DOCUMENTS
        }
        names = names_of(documents)
        chunks: dict[str, list[tuple[str, Any]]] = {path: [] for path in names}
        for key, one in entries.items():
            path, below = key.rpartition("/")[0], key
            while path and path not in names:
                path = path.rpartition("/")[0]
            if path in chunks and key not in documents:
                below = key[len(path) + 1 :] if path else key
                chunks[path].append((below, one))
        return cls(name, folder, documents, names, chunks, templates)

    def table(self, path: str) -> ChunkTable:
        """Return where the chunks of an array lie.

        Raises
        ------
        ConfigError, StoreReadError
            If a reference is none, or names a file that is missing or too short.
        """
        names, name = self.names[path], f"{self.name}/{printable(path)}".rstrip("/")
        targets = ReferenceTargets(name, self.folder, self.templates)
        in_memory = bytearray()
        numbers, extents, file_indices = [], [], []
        for key, one in self.chunks[path]:
            number = names.number_of(key)
            if number is None:
                continue
            where = f"{name} chunk {printable(key)}"
            content = _inline(where, one)
            if content is not None:
                file_index, offset, length = IN_MEMORY, len(in_memory), len(content)
                in_memory += content
            else:
                file_index, offset, length = _part(where, one, targets)
            numbers.append(number)
            file_indices.append(file_index)
            extents.append((offset, length))
        return ChunkTable.of_files(
            targets.files,
            name,
            names.counts,
            np.array(numbers, np.int64),
            np.array(extents, np.int64).reshape(-1, 2),
            np.array(file_indices, np.int32),
            bytes(in_memory),
        )


@dataclass
class ReferenceTables:
    """Finds the chunks of an array that references describe. A copy in another process reads their file again."""

    references: References | None

    def __call__(self, file: AnyFile | None, path: str) -> ChunkTable:
        """Return the table of the array at a path."""
        if self.references is None:
            assert file is not None
            self.references = References.of(file)
        return self.references.table(path)

    def __getstate__(self) -> dict[str, Any]:
        is_file = self.references is None or self.references.folder is not None
        return {"references": None if is_file else self.references}


def _read(file: AnyFile) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the references of a file by their keys, and the templates of their URLs."""
    try:
        found = parse_json(file.read_all())
    except ValueError as error:
        raise ConfigError(f"{file}: is no file of references, or a damaged one: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: is no file of references: it has no JSON object")
    version = found.get("version")
    entries, templates = (found, {}) if version is None else (found.get("refs"), found.get("templates") or {})
    if version not in (None, 1):
        raise UnsupportedError(f"{file}: references of version {printable(str(version))}, must be 0 or 1")
    if found.get("gen") and version == 1:
        raise UnsupportedError(
            f"{file}: some of its references are to be generated (gen); write them one by one, such as by "
            "kerchunk.utils.consolidate"
        )
    if not isinstance(entries, dict) or not isinstance(templates, dict):
        raise ConfigError(f"{file}: is no file of references: refs and templates must be JSON objects")
    if not all(isinstance(one, str) for one in templates.values()):
        raise ConfigError(f"{file}: templates must be text")
    return entries, templates


def _inline(name: str, reference: object) -> bytes | None:
    """Return the bytes that stand in place of a reference; None if it refers to a file.

    Raises
    ------
    ConfigError
        If they are no base64; names the key.
    """
    if isinstance(reference, dict):
        return json.dumps(reference).encode()
    if not isinstance(reference, str):
        return None
    if not reference.startswith("base64:"):
        return reference.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(reference[7:])
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"{name}: its inline bytes are no base64: {error}") from error


def _part(name: str, reference: object, targets: ReferenceTargets) -> tuple[int, int, int]:
    """Return the number of the file that a reference names, and which bytes of it: an offset and a length."""
    match reference:
        case [url]:
            file_index = targets.number_of(url)
            file = targets.files[file_index]
            return file_index, 0, file.size if isinstance(file, DataFile) else WHOLE
        case [url, int(offset), int(length)] if 0 <= offset <= _MOST_OFFSET and 0 <= length <= _MOST_OFFSET:
            return targets.number_of(url), offset, length
    raise ConfigError(
        f"{name}: the reference is {printable(repr(reference)[:200])}, must be text, [url] or [url, offset, length]"
    )


def _document(name: str, reference: object, targets: ReferenceTargets) -> bytes:
    """Return the content of a document that references have, or refer to."""
    content = _inline(name, reference)
    if content is not None:
        return content
    file_index, offset, length = _part(name, reference, targets)
    file = targets.files[file_index]
    if not isinstance(file, DataFile) or length > _MOST_DOCUMENT_BYTES:
        raise UnsupportedError(f"{name}: the document lies in {file}, must be local, and small")
    with file.path.open("rb") as opened:
        opened.seek(offset)
        return opened.read(length)
