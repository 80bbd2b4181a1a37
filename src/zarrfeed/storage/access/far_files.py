"""`FarObject`: a file in an object store or on a web server, read by byte ranges; `open_far_file` opens its arrays.

Invariant: all bytes are those of one version of the object. An answer of another size, ETag or time is an error.
"""

from __future__ import annotations

import errno
import io
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import IO, Any
from urllib.parse import quote

from zarrfeed.base.errors import ConfigError, StoreReadError, printable
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.far_chunks import FarChunks, checked_version, version_of
from zarrfeed.storage.access.file_kinds import CALLED, kind_of_name, refused_by_name
from zarrfeed.storage.access.local_files import METADATA_NAMES
from zarrfeed.storage.files.data_file import FarFile
from zarrfeed.storage.files.file_index import warn_of_age
from zarrfeed.storage.files.open_file import open_by_format
from zarrfeed.storage.files.reference_folder import open_reference_folder
from zarrfeed.storage.files.table_store import TableStore

#: Bytes that a request for metadata brings, and how many of such answers are kept.
_BLOCK_BYTES, _KEPT_BLOCKS = 1 << 19, 64
#: Kinds of names, as `zarrfeed.pack` has them, of files that may be read in place.
_KINDS = ("hdf5", "anndata", "xarray", "npy")
#: Names of files that may have paths in them, beside these kinds: TIFF and its dialects, and FITS.
_TIFF_SUFFIXES = (".tif", ".tiff", ".btf", ".tf2", ".tf8", ".svs", ".lsm", ".stk", ".qptiff", ".scn")
_FITS_SUFFIXES = (".fits", ".fit", ".fts")
#: Names of folders of references end in these.
_REFERENCE_SUFFIXES = (".parq", ".parquet")
#: Stands between a file and a path in it, where it is no slash.
_BETWEEN = "::"


def split_at_far_file(url: str) -> tuple[str, str]:
    """Return the URL of a file by its name, and the path in it; "" twice if no name in the URL is that of a file.

    >>> split_at_far_file("s3://bucket/era5.nc/t2m"), split_at_far_file("s3://bucket/x.zarr")
    (('s3://bucket/era5.nc', 't2m'), ('', ''))
    >>> split_at_far_file("s3://bucket/slide.svs/0"), split_at_far_file("s3://bucket/refs.json")
    (('s3://bucket/slide.svs', '0'), ('s3://bucket/refs.json', ''))
    """
    path = url.find("/", url.find("://") + 3)  # of what is before it, an address of IPv6 has colons, too
    file, between, inside = url[max(path, 0) :].partition(_BETWEEN)
    if path >= 0 and between:
        return url[:path] + file, inside.strip("/")
    names = url.rstrip("/").split("/")
    for end in range(4, len(names) + 1):  # behind the scheme and the host
        name = names[end - 1].lower()
        if kind_of_name(name) in _KINDS or name.endswith((*_TIFF_SUFFIXES, *_FITS_SUFFIXES, *_REFERENCE_SUFFIXES)):
            return "/".join(names[:end]), "/".join(names[end:])
    is_file = len(names) >= 4 and _is_name_of_file(names[-1])
    return ("/".join(names), "") if is_file else ("", "")


def _is_name_of_file(name: str) -> bool:
    """Return whether a name is that of references or of a file that is not read in place, and of no part of a store."""
    kind = kind_of_name(name)
    return name not in METADATA_NAMES and (kind not in (None, "zarr") or refused_by_name(name) is not None)


def open_far_file(url: str, access: StoreAccess) -> TableStore | None:
    """Return the arrays of a file at a URL as a store; None if there is no such object.

    Raises
    ------
    ConfigError, StoreReadError, UnsupportedError
        If it is of no format that is read in place, is damaged, or cannot be read.
    """
    file = FarObject.of(url, access)
    if file is None and PurePath(url).suffix in _REFERENCE_SUFFIXES:
        file = FarObject.of(f"{url}/.zmetadata", access)
    return None if file is None else opened_far(file)


def opened_far(file: FarObject) -> TableStore:
    """Return the arrays of a far file as a store. Raises as `open_far_file`."""
    is_folder = file.url.endswith("/.zmetadata")
    store = open_reference_folder(file) if is_folder else open_by_format(file)
    if store is None:
        kind = kind_of_name(file.url)
        called = (
            f"is {CALLED[kind]}" if kind in CALLED and kind not in _KINDS else "is of no format that is read in place"
        )
        raise ConfigError(
            f"{file}: {called} at a URL: HDF5, NetCDF, NumPy and TIFF files and references are; copy it to this "
            "machine, and write it as Zarr by `zarrfeed pack`"
        )
    store.far_reader = file.chunks
    return store


def opened_by_index(store: TableStore, path: Path, access: StoreAccess) -> TableStore:
    """Return a far file that was opened by an index at a path; opened without it, with a warning, if it has changed.

    Raises
    ------
    StoreReadError
        If there is no such object any more, or it cannot be read. And as `open_far_file`.
    """
    assert isinstance(store.file, FarFile)
    current = FarObject.of(store.file.url, access, first_bytes=1)  # a HEAD request may need other rights
    if current is None:
        raise StoreReadError(errno.ENOENT, f"{printable(path)}: the index is of {store.file}, which cannot be read")
    if (current.size, current.tag) != (store.file.size, store.file.tag):
        warn_of_age(printable(path), current)
        return opened_far(current)
    store.file, store.far_reader = current, current.chunks
    return store


@dataclass(frozen=True)
class FarObject(FarFile):
    """A file in an object store as it was when it was opened, whose metadata are read through `open`.

    Attributes
    ----------
    chunks
        The reader of its chunks, which has the client of its store.
    blocks
        Answers of the store that are kept, by their numbers in the file; a copy in another process has none.
    """

    chunks: FarChunks = field(default_factory=lambda: FarChunks(StoreAccess()), compare=False, repr=False)
    blocks: OrderedDict[int, bytes] = field(default_factory=OrderedDict, compare=False, repr=False)

    @classmethod
    def of(cls, url: str, access: StoreAccess, first_bytes: int | None = None) -> FarObject | None:
        """Return the object at a URL, by a request for its first bytes; None if there is none, or it is refused."""
        chunks = FarChunks(access)
        chunks.check(url)
        from obstore.exceptions import BaseError

        try:
            return cls._asked(url, chunks, first_bytes)
        except (FileNotFoundError, PermissionError, BaseError):
            return None

    @classmethod
    def _asked(cls, url: str, chunks: FarChunks, first_bytes: int | None) -> FarObject:
        meta, first = _ask(url, chunks, 0, first_bytes or _BLOCK_BYTES)
        file = cls(url, *version_of(meta), chunks)
        if first_bytes is None:
            file.blocks[0] = first
        return file

    def beside(self, name: str) -> FarObject | None:
        """Return the object whose URL has a name in place of this one's last; None if there is none."""
        try:
            return self._asked(f"{self.url.rpartition('/')[0]}/{quote(name)}", self.chunks, None)
        except FileNotFoundError:
            return None

    def read_all(self) -> bytes:
        """Return all bytes of the object: of a small one those that were read when it was looked for."""
        return self.block(0) if self.size <= _BLOCK_BYTES else self.read(0, self.size)

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Return the object as a file that is read by blocks."""
        assert mode == "rb"
        return _Stream(self)  # type: ignore[return-value]

    def read(self, offset: int, length: int) -> bytes:
        """Return a range of the object, by one request."""
        meta, found = _ask(self.url, self.chunks, offset, length)
        checked_version(self, meta)
        return found

    def block(self, number: int) -> bytes:
        """Return a block of the file."""
        found = self.blocks.get(number)
        if found is None:
            found = self.read(number * _BLOCK_BYTES, _BLOCK_BYTES)
            while len(self.blocks) >= _KEPT_BLOCKS:
                self.blocks.popitem(last=False)
        self.blocks[number] = found
        self.blocks.move_to_end(number)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "blocks": OrderedDict()}


def _ask(url: str, chunks: FarChunks, begin: int, size: int) -> tuple[Any, bytes]:
    """Return what a store says of an object, and a range of its bytes, within the timeout and with retries."""
    return chunks.access.ask(lambda: chunks.get(url, {"range": (begin, begin + size)}), url)


class _Stream(io.RawIOBase):
    """A far file from a position on; h5py reads through it. Fills what it is asked for, as h5py takes for granted."""

    def __init__(self, file: FarObject) -> None:
        super().__init__()
        self._file, self._size, self._at = file, file.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, room: Any) -> int:
        wanted = memoryview(room).cast("B")
        count = max(0, min(len(wanted), self._size - self._at))
        done = 0
        while done < count:
            number, inside = divmod(self._at, _BLOCK_BYTES)
            part = self._file.block(number)[inside : inside + count - done]
            if not part:
                break
            wanted[done : done + len(part)] = part
            done += len(part)
            self._at += len(part)
        return done
