"""Files that sources read: their bytes are those that were there when the source was opened, or it is an error."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from zarrfeed.base.array_names import why_no_name
from zarrfeed.base.errors import ConfigError, StoreReadError, printable

#: Linux reads no more in one call.
_MOST_AT_ONCE = 1 << 30
#: Characters of a name that a message shows.
_MOST_SHOWN = 80


@contextmanager
def opened(path: str, size: int, mtime_ns: int) -> Iterator[int]:
    """Open a file for a while, and give its descriptor.

    Raises
    ------
    OSError
        If it cannot be opened.
    StoreReadError
        If it has another size or time than it had.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != (size, mtime_ns):
            raise StoreReadError(errno.ESTALE, f"{printable(path)}: has changed since the source was opened")
        yield descriptor
    finally:
        os.close(descriptor)


def read_at(descriptor: int, offset: int, size: int, name: str) -> bytes:
    """Return `size` bytes from `offset` on. Any thread may call it.

    Raises
    ------
    StoreReadError
        If they cannot be read, or the file ends before; the message begins with `name`.
    """
    parts = []
    while size:
        try:
            part = os.pread(descriptor, min(size, _MOST_AT_ONCE), offset)
        except OSError as error:
            raise StoreReadError(error.errno, f"{printable(name)}: {os.strerror(error.errno or errno.EIO)}") from error
        if not part:
            raise StoreReadError(errno.EIO, f"{printable(name)}: the file ends before byte {offset + size}")
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_file(path: str, size: int, mtime_ns: int) -> bytes:
    """Return the bytes of a file.

    Raises
    ------
    OSError
        If it cannot be read; the message names it.
    StoreReadError
        If it has another size or time than it had.
    """
    with opened(path, size, mtime_ns) as descriptor:
        return read_at(descriptor, 0, size, path)


def fingerprint_of(kind: str, paths: Sequence[str], files: Iterable[tuple[str, int, int]]) -> str:
    """Return a text that identifies files: JSON, as long for a million files as for one.

    Parameters
    ----------
    kind
        Kind of the source.
    paths
        Paths that the user gave.
    files
        Name, size and time (ns) of each file, in the order of the samples.
    """
    made = hashlib.sha256(json.dumps(list(paths)).encode())
    count = total = 0
    for name, size, mtime_ns in files:
        made.update(f"{size} {mtime_ns} {name}\0".encode("utf-8", "surrogateescape"))
        count, total = count + 1, total + size
    return json.dumps({"kind": kind, "files": count, "bytes": total, "sha256": made.hexdigest()})


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first names as text that a message may have: "'a', 'b', 'c' and 7 more"."""
    shown = ", ".join(repr(printable(name)) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def check_text(name: str, what: str) -> None:
    """Raise ConfigError if a name is no UTF-8: it is to be stored as text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{what} {printable(name)} is not UTF-8: rename it") from None


def check_field_name(name: str, where: str) -> None:
    """Raise ConfigError if an array of a Zarr group cannot have this name."""
    why = why_no_name(name)
    if why is not None:
        shown = name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}..."
        raise ConfigError(f"{where}: {shown!r} cannot be the name of an array in a Zarr group, it {why}: rename it")
