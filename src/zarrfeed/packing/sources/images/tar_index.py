"""The positions of the files in a tar archive: its headers are read once, and no more of it.

Invariant: an archive is read to its end, or it is an error. The standard library's `tarfile` takes a header that it
cannot read, and a file that ends too early, for the end of the archive; so the bytes where it stopped are checked.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from zarrfeed.base.errors import ConfigError, CorruptChunkError, printable
from zarrfeed.packing.sources.files import read_at

#: First bytes of compressed files -> the program that decompresses them.
_COMPRESSED = {
    b"\x1f\x8b": "gunzip",
    b"BZh": "bunzip2",
    b"\xfd7zXZ\0": "unxz",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"\x04\x22\x4d\x18": "lz4 -d",
}
_BLOCK = 512
_READ_AT_ONCE = 1 << 20


class Member(NamedTuple):
    """A file in an archive.

    Attributes
    ----------
    name
        Path of the file in the archive.
    offset, size
        Position of its bytes in the archive, and their number.
    """

    name: str
    offset: int
    size: int


def members_of(path: str) -> Iterator[Member]:
    """Yield the files in an archive, in its order; folders are passed over.

    Raises
    ------
    ConfigError
        If it is compressed or no tar archive, or something in it is neither a file nor a folder, or it is followed by
        another archive.
    CorruptChunkError
        If it ends too early, or a header is damaged.
    OSError
        If it cannot be read.
    """
    where = printable(path)
    with Path(path).open("rb") as file:
        begin = file.read(8)
        for magic, program in _COMPRESSED.items():
            if begin.startswith(magic):
                advice = f"decompress it first ({program}), as samples are read at any offset in it"
                raise ConfigError(f"{where}: is compressed; {advice}")
        file.seek(0)
        with _opened(file, where) as tar:
            while (info := _next(tar, where)) is not None:
                if info.isdir():
                    continue
                if not info.isreg() or info.issparse():
                    raise ConfigError(f"{where}: {printable(info.name)} {_remedy(info)}")
                yield Member(info.name, info.offset_data, info.size)
            end = tar.offset
        _check_end(file.fileno(), end, where)


def _opened(file: BinaryIO, where: str) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=file, mode="r:", encoding="utf-8")
    except tarfile.TarError as error:
        raise CorruptChunkError(f"{where}: is no tar archive: {error}") from error


def _next(tar: tarfile.TarFile, where: str) -> tarfile.TarInfo | None:
    try:
        info = tar.next()
    except (tarfile.TarError, ValueError) as error:
        raise CorruptChunkError(f"{where}: is no whole tar archive: {error}") from error
    tar.members.clear()  # type: ignore[attr-defined] # it would keep them all
    return info


def _remedy(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return "is a link to another file; write the archive with tar --dereference --hard-dereference"
    if info.issparse():
        return "is stored with holes; write the archive without tar --sparse"
    return "is neither a file nor a folder"


def _check_end(descriptor: int, end: int, where: str) -> None:
    """Raise unless a block of zeros lies at `end`, and nothing but zeros behind it."""
    size = os.fstat(descriptor).st_size
    if size < end + _BLOCK:
        raise CorruptChunkError(f"{where}: ends at byte {size} without the mark of its end: it is cut off")
    if any(read_at(descriptor, end, _BLOCK, where)):
        raise CorruptChunkError(f"{where}: the header at byte {end} is damaged")
    for begin in range(end, size, _READ_AT_ONCE):
        if any(read_at(descriptor, begin, min(_READ_AT_ONCE, size - begin), where)):
            advice = "join archives with tar --concatenate, or give each by itself"
            raise ConfigError(f"{where}: bytes lie behind the end of the archive, as of another one; {advice}")
