"""The files below a folder, in the order of their keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG


def list_folder(root: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield keys and sizes of all files, in the order of the keys.

    Links are followed, but for one to a folder that it lies in. What is neither a file nor a folder is left out, and so
    is what vanishes meanwhile. Each folder is sorted by itself, with a slash behind the names of folders: that is the
    order of the keys.

    Parameters
    ----------
    root
        The folder.
    prefix
        A folder below it that is listed alone, without a slash at the end; "" for all. It need not be there.

    Raises
    ------
    OSError
        If a folder cannot be read.
    """
    start = root / prefix
    if start.is_dir():
        yield from _below(start, f"{prefix}/" if prefix else "", ())


def _below(folder: Path, prefix: str, outer: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, int]]:
    status = folder.stat()
    identity = status.st_dev, status.st_ino
    if identity in outer:
        return
    with os.scandir(folder) as entries:
        names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
    names.sort(key=os.fsencode)
    for name in names:
        if name.endswith("/"):
            yield from _below(folder / name, prefix + name, (*outer, identity))
            continue
        try:
            found = (folder / name).stat()
        except FileNotFoundError:  # a link to nothing
            continue
        if S_ISREG(found.st_mode):
            yield prefix + name, found.st_size
