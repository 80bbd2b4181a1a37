"""The keys of an array's stored objects (chunks, or shards), and the check that there are any.

A chunk that a store lacks reads as the fill value, so an array whose chunks lie under other keys than its metadata say
reads as zeros without a word. Invariant: an array is refused only if none of its objects is stored, and a file whose
name ends in a number, as names of chunks do, lies below the array and below no other node. So an array that nobody has
written to is not refused, whatever notes, locks or pictures lie beside it. One object whose key has the form that the
metadata give is enough to accept the array, even if the object lies beyond the array's shape.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, ObjectStore

from zarrfeed.base.errors import StoreReadError, printable
from zarrfeed.storage.access.local_files import METADATA_NAMES
from zarrfeed.storage.access.read_store import ReadStore
from zarrfeed.storage.access.zarr_internals import ArrayV2Metadata, regular_chunk_shape
from zarrfeed.storage.files.chunk_names import ChunkNames, is_number

#: Arrays of so few objects may well hold nothing but the fill value.
FEW_OBJECTS = 3
#: Keys of a store, or names of a folder, that are looked at.
_MOST_KEYS = 10_000
#: Keys that end in a number, as those of all chunks do, whatever their prefix and separator; but for hidden files.
_MAY_BE_DATA = re.compile(r"(?!(.*/)?[._])(.*[./_-])?[0-9]+")


@dataclass(frozen=True)
class ChunkKeys(ChunkNames):
    """The keys of an array's stored objects, and the check that there are any."""

    @property
    def first(self) -> str:
        """The key of the first object."""
        return self.separator.join([*([self.prefix] if self.prefix else []), *("0" for _ in self.counts)])

    @property
    def folder(self) -> str:
        """The folder that all keys begin with: "c/", or nothing."""
        return f"{self.prefix}/" if self.prefix and self.separator == "/" else ""

    def has(self, key: str) -> bool:
        """Return whether a key is that of an object of the array, perhaps of one beyond its shape."""
        return self.index_of(key) is not None

    def misplaced(self, name: str, other: str) -> StoreReadError:
        """Return the error for an array that has another file in place of its objects."""
        return StoreReadError(
            errno.ENOENT,
            f"{name}: nothing is stored: none of its {self.num_objects} objects (chunks or shards) is there, so all "
            f"samples would be the fill value. By its metadata keys are such as {self.first!r}, but there is "
            f"{printable(other)!r}: {self._remedy(other)}",
        )

    def _remedy(self, other: str) -> str:
        where = "chunk_key_encoding in zarr.json" if self.prefix else "dimension_separator in .zarray"
        for prefix, separator in itertools.product(dict.fromkeys((self.prefix, "", "c")), "/."):
            if replace(self, prefix=prefix, separator=separator).has(other):
                if prefix == self.prefix:
                    return f"the separator of its keys is {separator!r}; set {where}"
                return "its keys are those of another encoding, or of another Zarr format; mend the metadata"
        begins = [i + 1 for i, char in enumerate(other) if char == "/"]
        inside = next((other[:i] for i in begins if self.has(other[i:])), "")
        if inside:
            return f"the chunks lie below {printable(inside)!r}; move them, or the metadata"
        return "move the chunks to where the metadata have them, or remove what does not belong to the array"


def keys_of(array: zarr.Array[Any]) -> ChunkKeys | None:
    """Return the keys of the stored objects of an array of zarr-python; None if they are made in another way.

    Raises
    ------
    UnsupportedError
        If its chunks differ in shape.
    """
    metadata = array.metadata
    stored = regular_chunk_shape(metadata, str(array.store_path))
    counts = tuple(-(-int(n) // c) for n, c in zip(metadata.shape, stored, strict=True))
    if isinstance(metadata, ArrayV2Metadata):
        return ChunkKeys("", metadata.dimension_separator, counts)
    encoding: Any = metadata.chunk_key_encoding
    prefixes = {"default": "c", "v2": ""}
    return ChunkKeys(prefixes[encoding.name], str(encoding.separator), counts) if encoding.name in prefixes else None


@dataclass
class _Search:
    """Evidence from the keys of a store: whether one is of the array, and which others may be.

    `nodes` are the folders of nodes below the array, each with a slash at its end.
    """

    keys: ChunkKeys
    others: list[str] = field(default_factory=list)
    nodes: set[str] = field(default_factory=set)
    seen: int = 0
    is_over: bool = False
    found: bool = False

    def add(self, key: str) -> bool:
        """Look at one key below the array; return whether enough is known."""
        self.seen += 1
        self.found |= self.keys.has(key)
        folder, name = key[: key.rfind("/") + 1], key[key.rfind("/") + 1 :]
        if folder and name in METADATA_NAMES:
            self.nodes.add(folder)
        elif _may_be_data(key):
            self.others.append(key)
        self.is_over |= self.seen >= _MOST_KEYS
        return self.found or self.is_over

    def folders(self) -> Iterator[str]:
        """Yield the folders to list, until enough is known: at first that of the objects."""
        for folder in dict.fromkeys((self.keys.folder, "")):
            if not (self.found or self.is_over):
                yield folder

    @property
    def misplaced(self) -> str:
        """A file that is there in place of all objects; "" if there is none, or if not all keys are known."""
        if self.found or self.is_over:
            return ""
        return next((key for key in self.others if not any(key.startswith(node) for node in self.nodes)), "")


def check_files(name: str, root: Path, keys: ChunkKeys) -> None:
    """Refuse an array in a local directory none of whose objects is there, while other files are.

    Raises
    ------
    StoreReadError
        Names an expected key and a file that is there.
    """
    other = misplaced_file(root, keys)
    if other:
        raise keys.misplaced(name, other)


def misplaced_file(root: Path, keys: ChunkKeys) -> str:
    """Return a file that is in the directory of an array in place of all of its objects; "" if there is none.

    Costs one look for a file where the first object is stored.
    """
    if keys.num_objects <= FEW_OBJECTS or (root / keys.first).exists():
        return ""
    try:
        if _has_object(root / keys.folder, keys, 0):
            return ""
        return next(_other_files(root, ""), "")
    except OSError:  # whoever reads the chunks says what is wrong
        return ""


def _has_object(folder: Path, keys: ChunkKeys, axis: int) -> bool:
    """Return whether a directory has an object of the array, below its first axes."""
    if keys.separator != "/":
        return folder.is_dir() and any(keys.has(entry.name) for entry in _entries(folder))
    if not folder.is_dir():
        return False
    for entry in _entries(folder):
        if is_number(entry.name):
            is_last = axis + 1 == len(keys.counts)
            if not entry.is_dir() if is_last else _has_object(Path(entry.path), keys, axis + 1):
                return True
    return False


def _other_files(folder: Path, below: str) -> Iterator[str]:
    """Yield files that may be data, and belong to no node below the array."""
    entries = sorted(islice(_entries(folder), _MOST_KEYS), key=lambda entry: entry.name)
    if below and any(entry.name in METADATA_NAMES for entry in entries):
        return
    for entry in entries:
        key = below + entry.name
        if entry.is_dir():
            yield from () if entry.name.startswith(".") else _other_files(Path(entry.path), f"{key}/")
        elif _may_be_data(key):
            yield key


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from entries


async def misplaced_key(store: Store, prefix: str, keys: ChunkKeys) -> str:
    """Return a key that is below an array in place of all of its objects; "" if there is none, or nobody can tell.

    Costs one listing, of 10,000 keys at most, that ends at the first object of the array.
    """
    if keys.num_objects <= FEW_OBJECTS or not store.supports_listing:
        return ""
    if type(store) is LocalStore:
        return misplaced_file(Path(store.root) / prefix, keys)
    if type(store) is ObjectStore:
        store = ReadStore(store.store)  # whose listing can be given up
    search = _Search(keys)
    try:
        for folder in search.folders():
            async for key in store.list_prefix(prefix + folder):
                if search.add(key.removeprefix(prefix)):
                    break
    except Exception:  # noqa: BLE001 (of any class: a server that lists nothing, or not for everybody)
        return ""
    return search.misplaced


def misplaced_listed(list_keys: Callable[[str], Iterator[str]], keys: ChunkKeys) -> str:
    """Like `misplaced`, for a store that a function lists: it yields the keys below a folder of the array."""
    if keys.num_objects <= FEW_OBJECTS:
        return ""
    search = _Search(keys)
    try:
        for folder in search.folders():
            any(search.add(key) for key in list_keys(folder))
    except Exception:  # noqa: BLE001 (of any class, as above)
        return ""
    return search.misplaced


def _may_be_data(key: str) -> bool:
    return _MAY_BE_DATA.fullmatch(key) is not None
