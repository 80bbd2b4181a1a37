"""Count, check and delete the entries in the directory of a node cache.

Invariant: a directory that is no cache is refused, and none is made. The engine opens and deletes all files
(`cpp/storage/cache/cache_folder.h`), and follows no link in the directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from zarrfeed.base.errors import ConfigError, CorruptChunkError
from zarrfeed.base.native import core
from zarrfeed.base.page import Page, Row
from zarrfeed.base.system import usable_cores
from zarrfeed.base.units import format_bytes
from zarrfeed.storage.access.cache_options import group_number, open_directory
from zarrfeed.tools.verify import Progress

#: The file that marks a directory as a cache (`cpp/storage/cache/cache_folder.cc`).
_MARKER = "ZARRFEED-CACHE-1"
#: Files that are checked between two looks at Ctrl-C.
_AT_ONCE = 256
_MOST_LISTED = 20


@dataclass(frozen=True)
class CacheInfo(Page):
    """The contents of a cache: entries and their bytes by store, and the bytes that count against a limit."""

    directory: str
    used_bytes: int
    free_bytes: int
    stores: dict[str, tuple[int, int]]

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        rows = [
            ("cache", self.directory),
            ("used", f"{format_bytes(self.used_bytes)}; {format_bytes(self.free_bytes)} free on its file system"),
        ]
        for name, (entries, size) in sorted(self.stores.items()):
            rows.append(("store", f"{name}: {entries} entries, {format_bytes(size)}"))
        return rows if self.stores else [*rows, ("store", "none: the cache is empty")]


@dataclass
class CheckedCache(Page):
    """The result of a check: the number of good entries, and the damaged ones, which were deleted."""

    directory: str
    good: int = 0
    good_bytes: int = 0
    damaged: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if no entry was damaged."""
        return not self.damaged

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        rows = [
            ("cache", self.directory),
            ("good", f"{self.good} entries, {format_bytes(self.good_bytes)}"),
            ("damaged", f"{len(self.damaged)} entries" + ", which were deleted" * bool(self.damaged)),
        ]
        return rows + [("", what) for what in self.damaged[:_MOST_LISTED]]


def open_cache(path: str | Path, group: str | int | None = None) -> core.CacheDirectory:
    """Open a cache that is there.

    Raises
    ------
    ConfigError
        If there is no cache, or it is another user's.
    """
    directory = os.path.abspath(path)  # noqa: PTH100 (Path.absolute leaves `..`)
    try:
        is_there = (Path(directory) / _MARKER).is_file()
    except PermissionError:  # it is not for this user, which opening it tells
        is_there = True
    except ValueError:  # of a null character
        is_there = False
    if not is_there:
        raise ConfigError(f"{str(path)!r}: is no node cache of zarrfeed")
    return open_directory(directory, 0, None if group is None else group_number(group))


def describe_cache(path: str | Path, group: str | int | None = None) -> CacheInfo:
    """Count the entries of a cache.

    Raises
    ------
    ConfigError
        If there is no cache, or it is another user's.
    """
    directory = open_cache(path, group)
    try:
        stores: dict[str, tuple[int, int]] = {}
        for file, size in directory.files():
            folder = file.rsplit("/", 2)[0]
            count, total = stores.get(folder, (0, 0))
            stores[folder] = (count + 1, total + size)
        space = os.statvfs(directory.path())
        named = {_name_of(directory, folder): found for folder, found in stores.items()}
        return CacheInfo(directory.path(), directory.used_bytes(), space.f_bavail * space.f_frsize, named)
    finally:
        directory.close()


def check_cache(
    path: str | Path, on_progress: Callable[[Progress], None], group: str | int | None = None
) -> CheckedCache:
    """Check the checksums of all entries, and delete the entries that are damaged.

    Raises
    ------
    ConfigError
        If there is no cache, or it is another user's.
    OSError
        If an entry cannot be read or deleted.
    """
    directory = open_cache(path, group)
    try:
        files = [file for file, _ in directory.files()]
        checked = CheckedCache(directory.path())
        with ThreadPoolExecutor(usable_cores()) as threads:
            for begin in range(0, len(files), _AT_ONCE):
                for size, damage in threads.map(partial(_check, directory), files[begin : begin + _AT_ONCE]):
                    if damage:
                        checked.damaged.append(damage)
                    elif size is not None:
                        checked.good += 1
                        checked.good_bytes += size
                done = min(len(files), begin + _AT_ONCE)
                on_progress(Progress("", done, len(files), len(checked.damaged), 0, checked.good_bytes))
        if checked.damaged:
            directory.recount()
        return checked
    finally:
        directory.close()


def clear_cache(path: str | Path, store: tuple[str, str] | None = None, *, group: str | int | None = None) -> int:
    """Delete all entries, or those of one store, by its name and its path as in `name_store`. Return their bytes.

    Raises
    ------
    ConfigError
        If there is no cache, or it is another user's.
    OSError
        If an entry cannot be deleted.
    """
    directory = open_cache(path, group)
    try:
        if store is None:
            return directory.clear("")
        name, inside = store
        freed = 0
        for file, _ in directory.files():
            info = directory.read_info(file)
            if info is not None and info[0] == name and f"{info[1]}/".startswith(f"{inside}/" if inside else ""):
                freed += directory.remove(file)
        directory.recount()
        return freed
    finally:
        directory.close()


def _name_of(directory: core.CacheDirectory, folder: str) -> str:
    """Return the name of the store of a folder, or the name of the folder if it is not known."""
    return directory.store_name(folder).decode(errors="replace") or folder.rpartition("/")[2]


def _check(directory: core.CacheDirectory, file: str) -> tuple[int | None, str]:
    """Return the bytes of an entry, None if somebody replaced it meanwhile, and its damage; "" if it has none."""
    try:
        return directory.check(file), ""
    except CorruptChunkError as error:
        directory.remove(file)
        return None, str(error)
