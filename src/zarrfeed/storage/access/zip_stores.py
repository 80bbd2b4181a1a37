"""Zip archives with a Zarr store in them, whatever they are called, and whatever folder the store lies in."""

from __future__ import annotations

import zipfile
from pathlib import Path

from zarr.storage import ZipStore

from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.storage.access.file_kinds import is_zip
from zarrfeed.storage.access.local_files import NODE_NAMES

#: Stores that a message names, at most.
_MOST_NAMED = 4


def locate_in_zip(path: Path) -> tuple[ZipStore, str] | None:
    """Return a zip file as a store, and the path of the node in it; None if it is no zip file, or has no node.

    An archive of a folder has the folder's name before all keys; the store is found below it.

    Raises
    ------
    ConfigError
        If several stores lie side by side in it, or the archive is damaged.
    OSError
        If the file cannot be read.
    """
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
    if len(roots) > 1:
        named = ", ".join(map(repr, roots[:_MOST_NAMED])) + ", ..." * (len(roots) > _MOST_NAMED)
        raise ConfigError(
            f"{printable(path)}: has several Zarr nodes side by side, {named}; give one of them: "
            f"zarr.open(zarr.storage.ZipStore({printable(path)!r}, mode='r'), path={roots[0]!r}, mode='r')"
        )
    return ZipStore(path, mode="r"), roots[0]


def _above(folder: str) -> list[str]:
    """Return the folders that a folder lies in, up to the root of the archive.

    >>> _above("a/b")
    ['', 'a']
    """
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:end]) for end in range(len(parts))]
