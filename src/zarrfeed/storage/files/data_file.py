"""`DataFile`: a file that is read as it was when it was opened; `FarFile`: one in an object store."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from zarrfeed.base.errors import StoreReadError, UnsupportedError, printable

#: In place of the size of a far file, which its store knows.
UNKNOWN_BYTES = 1 << 62


@dataclass(frozen=True)
class DataFile:
    """A file as it was when the source was opened."""

    path: Path
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> DataFile:
        """Return the file of a path, which exists."""
        return cls.as_in(path, path.stat())

    @classmethod
    def as_in(cls, path: Path, status: os.stat_result) -> DataFile:
        """Return the file of a path as its status says."""
        return cls(path, status.st_size, status.st_mtime_ns)

    def to_core(self) -> tuple[bytes, int, int]:
        """Convert to the engine's form, which reads the file by itself."""
        return os.fsencode(self.path), self.size, self.mtime_ns

    @classmethod
    def of_reference(cls, path: Path, name: str) -> DataFile:
        """Return a file that the chunks of an array are said to lie in.

        Raises
        ------
        StoreReadError
            If it is missing or no regular file; `name` is that of the array.
        """
        try:
            status = path.stat()
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None) or errno.EINVAL
            why = os.strerror(number)
            raise StoreReadError(number, f"{name}: its chunks lie in {printable(path)}: {why}") from error
        if not stat.S_ISREG(status.st_mode):
            raise StoreReadError(errno.EINVAL, f"{name}: its chunks lie in {printable(path)}, which is no regular file")
        return cls.as_in(path, status)

    def __str__(self) -> str:
        return printable(self.path)

    def open(self) -> IO[bytes]:
        """Open the file, for reading."""
        return self.path.open("rb")

    def read_all(self) -> bytes:
        """Return all bytes of the file, as it was."""
        found = self.path.read_bytes()
        self.check()
        return found

    def check(self, status: os.stat_result | None = None) -> None:
        """Compare the file with what it was; `status` is that of the open file, and None looks at the path.

        Raises
        ------
        StoreReadError
            If it is another file now. The errno is none of those after which a read is tried again.
        OSError
            If there is no file.
        """
        status = status or self.path.stat()
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise StoreReadError(errno.EINVAL, f"{self}: has changed since the source was opened")


@dataclass(frozen=True)
class FarFile:
    """An object that chunks lie in, by its URL.

    Attributes
    ----------
    size, tag
        The bytes of its version, and the ETag or the time of it. `UNKNOWN_BYTES` and "": they are not known.
    """

    url: str
    size: int = UNKNOWN_BYTES
    tag: str = ""

    def to_core(self) -> tuple[bytes, int, int]:
        """Convert to the engine's form, which asks Python for ranges of the object."""
        return b"", self.size, 0

    def check(self) -> None:
        """Do nothing: each answer of its store is compared with the version."""

    def open(self, mode: str = "rb") -> IO[bytes]:  # noqa: ARG002 - as a path has it
        """Open the object, for reading; only a file that was opened by its URL can be."""
        raise UnsupportedError(f"{self}: is not read as a file")

    def read(self, offset: int, length: int) -> bytes:
        """Return a range of the object, without the blocks that `open` reads; only as `open`."""
        with self.open() as file:
            file.seek(offset)
            return file.read(length)

    def beside(self, name: str) -> FarFile | None:
        """Return the object whose URL has a name in place of this one's last; None if there is none. Only as `open`."""
        raise UnsupportedError(f"{self}: {name} is not looked for beside it")

    def read_all(self) -> bytes:
        """Return all bytes of the object; only as `open`."""
        return self.read(0, self.size)

    def __str__(self) -> str:
        return printable(self.url)


AnyFile: TypeAlias = DataFile | FarFile


def file_of(source: Path | FarFile) -> AnyFile:
    """Return the file of a path as it is now, or a far one as it was opened."""
    return source if isinstance(source, FarFile) else DataFile.of(source.absolute())


def name_in(file: AnyFile, path: str) -> str:
    """Return how messages name the array or group at a path in a file: the file alone for ""."""
    return f"{file}/{printable(path)}".rstrip("/")
