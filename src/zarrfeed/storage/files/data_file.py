"""`DataFile`: a file that is read as it was when it was opened."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from zarrfeed.base.errors import StoreReadError, printable


@dataclass(frozen=True)
class DataFile:
    """A file as it was when the source was opened."""

    path: Path
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> DataFile:
        """Return the file of a path, which exists."""
        status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns)

    def __str__(self) -> str:
        return printable(self.path)

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
