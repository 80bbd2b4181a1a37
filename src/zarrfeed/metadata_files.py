"""Metadata files of a local store, looked at before zarr-python opens them: kind and size.

zarr-python reads these files whole, and parsed JSON takes several times the room. So a file that is none (a named pipe
would be waited for) and one that is larger than metadata ever are is refused before it is opened.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from zarrfeed.errors import ConfigError

#: Names of the files, of both formats; they are nodes' metadata wherever they are.
METADATA_NAMES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")

#: Consolidated metadata of ten thousand arrays have about a third of this.
MOST_METADATA_BYTES = 64 << 20


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


def check_metadata_file(name: str, mode: int, size: int) -> None:
    """Refuse a metadata file of that kind and size.

    Raises
    ------
    ConfigError
        As of `check_metadata_files`.
    """
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{name}: is not a regular file, metadata must be one")
    if size > MOST_METADATA_BYTES:
        raise ConfigError(f"{name}: has {size} bytes, metadata must have at most {MOST_METADATA_BYTES}")
