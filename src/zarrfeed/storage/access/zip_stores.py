"""Zip archives with a Zarr store in them, whatever they are called, and whatever folder the store lies in.

Members that are stored, and not deflated, are parts of the archive's file, which the engine reads by itself.
"""

from __future__ import annotations

import errno
import os
import struct
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
from zarr.storage import ZipStore

from zarrfeed.base.errors import ConfigError, StoreReadError, printable
from zarrfeed.storage.access.file_kinds import is_zip
from zarrfeed.storage.access.local_files import NODE_NAMES
from zarrfeed.storage.access.zarr_internals import with_archive
from zarrfeed.storage.files.chunk_names import ChunkNames
from zarrfeed.storage.files.chunk_table import ChunkTable
from zarrfeed.storage.files.data_file import DataFile
from zarrfeed.storage.files.inside_path import split_at_file

#: The header before the bytes of a member: the magic, the compression, the lengths of the name and of what follows it.
_LOCAL_HEADER = struct.Struct("<4s4xH16xHH")
_MOST_OFFSET = 1 << 62
#: Flags of a member: its bytes are encrypted; its name is UTF-8.
_ENCRYPTED, _UTF8 = 0x1, 0x800
#: Stores that a message names, at most.
_MOST_NAMED = 4


def locate_in_zip(path: Path) -> tuple[ZipStore, str] | None:
    """Return a zip file as a store, and the path of the node in it; None if it is no zip file, or has no such node.

    A path may lead into the file, as in "x.zarr.zip/t2m". An archive of a folder has the folder's name before all keys;
    the store is found below it.

    Raises
    ------
    ConfigError
        If several stores lie side by side in it, or the archive is damaged.
    OSError
        If the file cannot be read.
    """
    path, inside = (path, "") if path.exists() else split_at_file(path)
    if not path.is_file() or not is_zip(path):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ConfigError(f"{printable(path)}: is a damaged zip file, or a part of one: {error}") from error
    nodes = {folder for folder, _, name in (one.rpartition("/") for one in names) if name in NODE_NAMES}
    roots = sorted(folder for folder in nodes if not any(above in nodes for above in _above(folder)))
    if not roots:
        return None
    if inside:
        node = next((one for one in (inside, f"{roots[0]}/{inside}".lstrip("/")) if one in nodes), None)
        return None if node is None else (ZipStore(path, mode="r"), node)
    if len(roots) > 1:
        named = ", ".join(map(repr, roots[:_MOST_NAMED])) + ", ..." * (len(roots) > _MOST_NAMED)
        raise ConfigError(
            f"{printable(path)}: has several Zarr nodes side by side, {named}; give one of them: "
            f"{printable(path / roots[0])!r}"
        )
    return ZipStore(path, mode="r"), roots[0]


def zip_table(store: ZipStore, path: str, names: ChunkNames) -> ChunkTable | None:
    """Return where the objects of an array lie in an archive; None if one of them is compressed, or encrypted.

    Raises
    ------
    StoreReadError
        If the archive is damaged.
    """
    return with_archive(store, partial(_table_in, Path(store.path).absolute(), path, names))


def _table_in(path: Path, array: str, names: ChunkNames, archive: zipfile.ZipFile) -> ChunkTable | None:
    """Return the table of an open archive, whose central directory has the sizes of members, and their headers."""
    prefix = f"{array}/" if array else ""
    members = [
        (number, one)
        for key, one in archive.NameToInfo.items()
        if key.startswith(prefix) and (number := names.number_of(key[len(prefix) :])) is not None
    ]
    if any(one.compress_type != zipfile.ZIP_STORED or one.flag_bits & _ENCRYPTED for _, one in members):
        return None
    name = f"{printable(path)}/{printable(array)}".rstrip("/")
    assert archive.fp is not None
    descriptor = archive.fp.fileno()
    file = DataFile.as_in(path, os.fstat(descriptor))
    extents = [(_begin_of(descriptor, one, name), one.file_size) for _, one in members]
    numbers = np.array([number for number, _ in members], np.int64)
    return ChunkTable.of_chunks(file, name, names.counts, numbers, np.array(extents, np.int64).reshape(-1, 2))


def _begin_of(descriptor: int, member: zipfile.ZipInfo, name: str) -> int:
    """Return where the bytes of a stored member begin: behind its local header, whose length it says itself."""
    key = member.orig_filename.encode("utf-8" if member.flag_bits & _UTF8 else "cp437", "surrogateescape")
    most = _LOCAL_HEADER.size + len(key)
    header = os.pread(descriptor, most, member.header_offset) if 0 <= member.header_offset < _MOST_OFFSET else b""
    if len(header) == most:
        magic, method, key_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(header)
        is_named = (magic, method, header[_LOCAL_HEADER.size :]) == (b"PK\3\4", zipfile.ZIP_STORED, key)
        if is_named and member.compress_size == member.file_size:
            return int(member.header_offset + _LOCAL_HEADER.size + key_bytes + extra_bytes)
    what = f"{name}: the archive has no member {printable(member.filename)} where its directory says: it is damaged"
    raise StoreReadError(errno.EINVAL, what)


def _above(folder: str) -> list[str]:
    """Return the folders that a folder lies in, up to the root of the archive.

    >>> _above("a/b")
    ['', 'a']
    """
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:end]) for end in range(len(parts))]
