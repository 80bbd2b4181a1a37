"""Checks of the files of a local store, before zarr-python opens them.

Each file must be a regular file, since opening a named pipe would wait for its writer. A metadata file must not be
larger than 64 MiB, since zarr-python reads it whole, and parsed JSON takes several times its size in memory.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import LocalStore

from zarrfeed.base.errors import ConfigError, DecodeError, printable
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.storage.access.key_urls import path_of

#: Names of the files, of both formats; they are nodes' metadata wherever they are.
METADATA_NAMES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")

#: Each node has one of these: an array, or a group that was not left out.
NODE_NAMES = ("zarr.json", ".zarray", ".zgroup")
#: Names in a folder that are compared with one that is missing.
_MOST_NAMES = 10_000

#: Consolidated metadata of ten thousand arrays have about a third of this.
MOST_METADATA_BYTES = 64 << 20


def local_path(source: str | Path) -> Path:
    """Return the path that a path or a file:// URL names.

    Raises
    ------
    ConfigError
        As in `path_of`.
    """
    return path_of(str(source)) or Path(source)


def lacking(path: Path) -> str:
    """Say of a path without anything which part of it is missing, and which name beside that is similar."""
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    with suppress(OSError):
        names = [one.name for one in islice(missing.parent.iterdir(), _MOST_NAMES)]
        similar = did_you_mean(missing.name, names)
        which = "" if missing == path else f", {printable(missing)} is missing"
        return f"does not exist{which}{similar}"
    return "does not exist"


def check_metadata_files(node: Path) -> None:
    """Refuse a node of a local store, whose directory is given, by the kind and size of its metadata files.

    Raises
    ------
    ConfigError
        If one is not a regular file, or larger than 64 MiB.
    """
    for name in METADATA_NAMES:
        path = node / name
        try:
            found = os.stat(path)  # noqa: PTH116 (Path.stat of a name that the system does not take is a ValueError, too)
        except (OSError, ValueError):
            continue  # whoever opens it says what is wrong with it
        check_metadata_file(str(path), found.st_mode, found.st_size)


def is_node(folder: Path) -> bool:
    """Return whether a folder has the metadata of an array or of a group, good or damaged."""
    return any((folder / name).is_file() for name in NODE_NAMES)


def check_members(group: zarr.Group) -> None:
    """Check the metadata files of all that lies in a group, if its store is local.

    Raises
    ------
    ConfigError
        As in `check_metadata_files`.
    """
    if type(group.store) is not LocalStore:
        return
    with suppress(OSError), os.scandir(Path(group.store.root) / group.path) as entries:
        for entry in entries:
            if entry.is_dir():
                check_metadata_files(Path(entry.path))


def check_metadata_file(name: str, mode: int, size: int) -> None:
    """Refuse a metadata file of that kind and size.

    Raises
    ------
    ConfigError
        As in `check_metadata_files`.
    """
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{name}: is not a regular file, metadata must be one")
    if size > MOST_METADATA_BYTES:
        raise ConfigError(f"{name}: has {size} bytes, metadata must have at most {MOST_METADATA_BYTES}")


def read_chunk_file(
    root: Path, key: str, byte_range: ByteRequest | None, most: int | None = None
) -> npt.NDArray[np.uint8] | None:
    """Return a file, or a part of it as far as it is there; None if there is none.

    Raises
    ------
    DecodeError
        If all of a file is asked for, and that is more than `most` bytes.
    OSError
        If there is something that is not a regular file, or a link on the way leads to nothing. And if it cannot be
        read.
    """
    path = root / key
    check_chunk_file(root, key)
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            match byte_range:
                case None:
                    begin, end = 0, size
                    if most is not None and size > most:
                        raise DecodeError(f"holds {size} bytes, the metadata implies at most {most}")
                case RangeByteRequest():
                    begin, end = byte_range.start, min(byte_range.end, size)
                case OffsetByteRequest():
                    begin, end = byte_range.offset, size
                case SuffixByteRequest():
                    begin, end = max(0, size - byte_range.suffix), size
            file.seek(min(begin, size))  # a damaged shard index may name any offset
            return np.fromfile(file, np.uint8, max(0, end - begin))
    except FileNotFoundError:
        return None


def check_chunk_file(root: Path, key: str) -> None:
    """Raise an error unless `key` is a regular file below `root`: the rule of the engine for the chunks that it reads.

    Raises
    ------
    OSError
        If there is something that is not a regular file, or a link on the way leads to nothing.
    """
    path = root / key
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        part = root
        for name in key.split("/"):
            part /= name
            if part.is_symlink() and not part.exists():
                raise OSError(errno.ENOENT, f"{part} is a link to nothing that is there") from None
        return
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"{path} is not a regular file")
