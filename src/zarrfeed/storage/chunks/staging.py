"""Files of a store on one file system, staged in a node cache on another one: whether that pays, and their versions.

Invariant: the version of a file is its inode, size and time of change, as one listing tells them when the array is
opened. A file that changed a moment ago has no version yet, because two changes within a tick of the clock look alike:
on file systems of this machine a tick is that of the kernel, on others it may be seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from zarrfeed.base.errors import printable
from zarrfeed.base.native import core
from zarrfeed.storage.access.cache_options import ArrayCache, CacheOptions, StoredObjects
from zarrfeed.storage.chunks.chunk_keys import ChunkKeys
from zarrfeed.storage.files.chunk_table import ChunkTable
from zarrfeed.storage.files.data_file import DataFile

#: Names of staged files in a cache, and of objects in staged zip files, begin so: they have absolute paths.
STORE, ZIP_STORE, TABLE_STORE = "file://", "zip://", "table://"

#: File systems whose times are those of this machine's kernel.
_LOCAL = frozenset(("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"))
#: Seconds after which another change of a file has another time: more than a tick of any kernel; of servers, whose
#: clock may differ from ours, and which may count whole seconds.
_LOCAL_TICK_S, _SERVER_TICK_S = 0.05, 2.0
#: Seconds that a server's clock may be ahead. A time beyond that was set, and no clock of a change.
_MOST_SKEW_S = 3600.0
#: Files that are looked at by one thread; of more, on a server, many are looked at at once.
_FEW, _AT_ONCE = 256, 16


def why_not_staged(path: str | Path, options: CacheOptions, form: str = "") -> str:
    """Return why a cache does not stage files at a path: it would gain nothing, or cannot; empty if it does.

    A cache that transcodes chunks, whose `form` is not empty, gains something on any file system.
    """
    shown = printable(path)
    try:
        str(path).encode()
        theirs = Path(options.path).stat()
    except UnicodeEncodeError:
        return f"{shown}: the path is no UTF-8, and a cache cannot name it: it is read as it is"
    except OSError as error:
        return options.directory().trouble() or f"cache {printable(options.path)}: {error.strerror}"
    try:
        ours = Path(path).stat()
    except OSError as error:
        return f"{shown}: {error.strerror}"
    if form or ours.st_dev != theirs.st_dev:
        return ""
    return (
        f"{shown} is on the file system of the cache {printable(options.path)}, so a copy there would gain nothing: it "
        "is read as it is; give a cache on another file system, such as a local disk or /dev/shm"
    )


def stage_array(options: CacheOptions, root: str, keys: ChunkKeys, form: str = "") -> ArrayCache:
    """Name the objects of an array in a local directory in a cache that stages them, or transcodes them to a form."""
    return _stage(options, f"{root}/", [("", root, keys)], form)


def stage_joined(options: CacheOptions, locations: Sequence[tuple[str, ChunkKeys]], form: str = "") -> ArrayCache:
    """Name the objects of arrays in several directories that are read as one: the key of an object is its path."""
    return _stage(options, "", [(f"{root}/", root, keys) for root, keys in locations], form)


def name_table(options: CacheOptions, table: ChunkTable, prefix: str) -> ArrayCache:
    """Name the chunks of an array in files, all of which have the version of its table and of the files."""
    files = [one for one in table.files if isinstance(one, DataFile)]
    whys = [why_not_staged(one.path, options, "table") for one in files]
    made = ArrayCache(options, TABLE_STORE, f"{files[0].path if files else ''}/{prefix}")
    why = next(filter(None, whys), "")
    if not why and any(found is None for one in files for _, found in _settled(str(one.path), [""])):
        why = _unsettled(1, len(files))
    return replace(made, why_off=why) if why else replace(made, versions=core.ObjectVersions(f"table {table.digest}"))


def name_far_table(options: CacheOptions, name: str, table: ChunkTable, prefix: str) -> ArrayCache:
    """Name the chunks of an array in far files, all of which have the version of its table and of the files."""
    made = ArrayCache(options, TABLE_STORE)
    files = table.far_files
    if len(files) < len(table.files):
        return replace(made, why_off=f"{name}: some of its chunks lie in local files: no chunk is cached")
    url = files[0].url.partition("://")[2].rpartition("@")[2]
    if "?" in url:
        return replace(made, why_off=f"{name}: its URL has a query, which no name in a cache may have")
    version = options.version and f"declared {options.version}"
    if version is None and not all(file.tag for file in files):
        return replace(made, why_off=f"{name}: the versions of its files are not known; cache_version= declares one")
    made = replace(made, prefix=f"{url}/{prefix}")
    return replace(made, versions=core.ObjectVersions(version or f"table {table.digest}"))


def stage_zip(options: CacheOptions, path: str, prefix: str, form: str = "") -> ArrayCache:
    """Name the objects of an array in a zip file, all of which have the version of the file."""
    why = why_not_staged(path, options, form)
    if why:
        return ArrayCache(options, ZIP_STORE, why_off=why)
    version = options.version and f"declared {options.version}"
    if version is None:
        found = [one for _, one in _settled(path, [""])]
        version = found[0][0] if found and found[0] is not None else None
    if version is None:
        return ArrayCache(options, ZIP_STORE, why_off=_unsettled(1, 1))
    return ArrayCache(options, ZIP_STORE, f"{path}/{prefix}", core.ObjectVersions(version))


def _stage(
    options: CacheOptions, prefix: str, locations: Sequence[tuple[str, str, ChunkKeys]], form: str
) -> ArrayCache:
    """Return the names in the cache of objects in some directories; keys begin with the first text of each location."""
    whys = [why_not_staged(root, options, form) for _, root, _ in locations]
    staged = [location for location, why in zip(locations, whys, strict=True) if not why]
    made = ArrayCache(options, STORE, prefix, why_off=next(filter(None, whys), ""), form=form)
    if not staged:
        return made
    if options.version is not None:
        return replace(made, versions=core.ObjectVersions("declared " + options.version))
    versions: list[tuple[str, str]] = []
    sizes: list[int] = []
    num_files = 0
    for before, root, keys in staged:
        try:
            names = list(_keys_in(root, keys))
        except OSError as error:  # a folder whose files may be read, and not listed
            made = replace(made, why_off=made.why_off or f"{printable(root)} cannot be listed: {error.strerror}")
            continue
        for name, found in _settled(root, names):
            num_files += 1
            if found is not None:
                versions.append((before + name, found[0]))
                sizes.append(found[1])
    if len(versions) < num_files:
        made = replace(made, why_off=made.why_off or _unsettled(num_files - len(versions), num_files))
    if num_files and not versions:
        return made
    return replace(made, versions=core.ObjectVersions(versions), objects=StoredObjects.of(np.array(sizes, np.int64)))


def _unsettled(count: int, of: int) -> str:
    return f"{count} of {of} files changed a moment ago and have no version yet: they are read as they are"


def version_of(status: os.stat_result) -> str:
    """Return the version of a file, as `cpp/storage/cache/object_versions.h` makes it."""
    return f"file {status.st_ino} {status.st_mtime_ns} {status.st_size}"


#: Version and size of a file; None: it has no version yet.
_Found: TypeAlias = tuple[str, int] | None


def _settled(root: str, names: Sequence[str]) -> list[tuple[str, _Found]]:
    """Return the version and size of each file that is there; waits for a tick of the kernel's clock if it has to."""
    tick = _tick_of(root)
    found = _looked_at(root, names, tick)
    if tick == _LOCAL_TICK_S and any(one is None for _, one in found):
        time.sleep(tick)
        found = _looked_at(root, names, tick)
    return found


def _looked_at(root: str, names: Sequence[str], tick: float) -> list[tuple[str, _Found]]:
    now = time.time()

    def look(some: Sequence[str]) -> list[tuple[str, _Found]]:
        found: list[tuple[str, _Found]] = []
        for name in some:
            try:
                status = os.stat(f"{root}/{name}" if name else root)  # noqa: PTH116 (one of up to millions)
            except OSError:  # whoever reads it says what is wrong
                continue
            is_settled = not now - tick <= status.st_mtime < now + _MOST_SKEW_S
            found.append((name, (version_of(status), status.st_size) if is_settled else None))
        return found

    batches = [names[i : i + _FEW] for i in range(0, len(names), _FEW)]
    if len(batches) <= 1 or tick == _LOCAL_TICK_S:
        return [one for batch in batches for one in look(batch)]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return [one for batch in threads.map(look, batches) for one in batch]


def _keys_in(root: str, keys: ChunkKeys) -> Iterator[str]:
    """Yield the keys of the objects in the directory of an array."""
    if keys.separator != "/":
        yield from (name for name in _names(root) if keys.has(name))
        return
    folders = [keys.prefix] if keys.prefix else [""]
    for _ in keys.counts[:-1]:
        folders = [
            f"{folder}/{name}".lstrip("/")
            for folder in folders
            for name in _names(f"{root}/{folder}")
            if name.isdecimal()
        ]
    for folder in folders:
        for name in _names(f"{root}/{folder}"):
            key = f"{folder}/{name}".lstrip("/")
            if keys.has(key):
                yield key


def _names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]  # noqa: PTH208 (of millions)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _tick_of(root: str) -> float:
    """Return the seconds after which another change of a file surely has another time."""
    device = Path(root).stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return _SERVER_TICK_S
    for line in mounts.splitlines():
        fields, _, more = line.partition(" - ")
        if fields.split()[2:3] == [number]:
            return _LOCAL_TICK_S if more.partition(" ")[0] in _LOCAL else _SERVER_TICK_S
    return _SERVER_TICK_S
