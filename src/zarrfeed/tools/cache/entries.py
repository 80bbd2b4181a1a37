"""What is in the directory of a node cache: counted, checked, deleted.

What holds: a directory that is no cache is refused, and none is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from zarrfeed.base.errors import ConfigError, CorruptChunkError
from zarrfeed.base.native import core
from zarrfeed.base.page import Page, Row
from zarrfeed.base.system import usable_cores
from zarrfeed.base.units import format_bytes
from zarrfeed.tools.verify import Progress

#: In the directory of a cache (`cpp/storage/cache_directory.cc`): what says that it is one; its entries; and in the
#: folder of a store's entries, the file with the name of the store.
_MARKER, _ENTRIES, _STORE_NAME = "ZARRFEED-CACHE-1", "entries", "store"
#: Files that are checked between two looks at Ctrl-C.
_AT_ONCE = 256
_MOST_LISTED = 20


@dataclass(frozen=True)
class CacheInfo(Page):
    """What is in a cache: entries and their bytes by store, and what counts against a limit."""

    directory: str
    used_bytes: int
    free_bytes: int
    stores: dict[str, tuple[int, int]]

    def rows(self) -> list[Row]:
        """Return the rows of the page."""
        rows = [
            ("cache", self.directory),
            ("used", f"{format_bytes(self.used_bytes)}; {format_bytes(self.free_bytes)} free on its file system"),
        ]
        for name, (entries, size) in sorted(self.stores.items()):
            rows.append(("store", f"{name}: {entries} entries, {format_bytes(size)}"))
        return rows if self.stores else [*rows, ("store", "none: the cache is empty")]


@dataclass
class CheckedCache(Page):
    """What became of a check: how many entries are good; those that were damaged, and were deleted."""

    directory: str
    good: int = 0
    good_bytes: int = 0
    damaged: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no entry was damaged."""
        return not self.damaged

    def rows(self) -> list[Row]:
        """Return the rows of the page."""
        rows = [
            ("cache", self.directory),
            ("good", f"{self.good} entries, {format_bytes(self.good_bytes)}"),
            ("damaged", f"{len(self.damaged)} entries" + ", which were deleted" * bool(self.damaged)),
        ]
        return rows + [("", what) for what in self.damaged[:_MOST_LISTED]]


def open_cache(path: str | Path) -> core.CacheDirectory:
    """Open a cache that is there.

    Raises
    ------
    ConfigError
        If there is no cache.
    """
    directory = Path(os.path.abspath(path))  # noqa: PTH100 (Path.absolute leaves `..`)
    if "\0" in str(path) or not (directory / _MARKER).is_file():
        raise ConfigError(f"{str(path)!r}: is no node cache of zarrfeed")
    return core.CacheDirectory(os.fsencode(directory), 0)


def describe_cache(path: str | Path) -> CacheInfo:
    """Count what is in a cache.

    Raises
    ------
    ConfigError
        If there is no cache.
    """
    directory = open_cache(path)
    try:
        root, stores = Path(directory.path()), {}
        for folder in sorted((root / _ENTRIES).iterdir()):
            sizes = [file.stat().st_size for file in _files(folder)]
            if sizes:
                stores[_name_of(folder)] = (len(sizes), sum(sizes))
        space = os.statvfs(root)
        return CacheInfo(str(root), directory.used_bytes(), space.f_bavail * space.f_frsize, stores)
    finally:
        directory.close()


def check_cache(path: str | Path, on_progress: Callable[[Progress], None]) -> CheckedCache:
    """Check the checksums of all entries, and delete the entries that are damaged.

    Raises
    ------
    ConfigError
        If there is no cache.
    OSError
        If an entry cannot be read or deleted.
    """
    directory = open_cache(path)
    try:
        root = Path(directory.path())
        files = list(_files(root / _ENTRIES))
        checked = CheckedCache(str(root))
        with ThreadPoolExecutor(usable_cores()) as threads:
            for begin in range(0, len(files), _AT_ONCE):
                for size, damage in threads.map(_check, files[begin : begin + _AT_ONCE]):
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


def clear_cache(path: str | Path, store: tuple[str, str] | None = None) -> int:
    """Delete all entries, or those of one store: its name and its path, as of `name_store`. Return their bytes.

    Raises
    ------
    ConfigError
        If there is no cache.
    OSError
        If an entry cannot be deleted.
    """
    directory = open_cache(path)
    try:
        if store is None:
            return directory.clear("")
        name, inside = store
        freed = 0
        for file in list(_files(Path(directory.path()) / _ENTRIES)):
            info = core.read_cache_entry_info(os.fsencode(file))
            if info is not None and info[0] == name and f"{info[1]}/".startswith(f"{inside}/" if inside else ""):
                freed += file.stat().st_size
                file.unlink(missing_ok=True)
        directory.recount()
        return freed
    finally:
        directory.close()


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of entries below a folder."""
    for where, _, names in os.walk(folder):
        yield from (Path(where) / name for name in names if name != _STORE_NAME)


def _name_of(folder: Path) -> str:
    try:
        return (folder / _STORE_NAME).read_text(errors="replace") or folder.name
    except OSError:
        return folder.name


def _check(file: Path) -> tuple[int | None, str]:
    """Return the bytes of an entry, None if somebody replaced it meanwhile, and what is damaged; else empty."""
    try:
        return core.check_cache_entry(os.fsencode(file))[3], ""
    except FileNotFoundError:
        return None, ""
    except CorruptChunkError as error:
        file.unlink(missing_ok=True)
        return None, str(error)
