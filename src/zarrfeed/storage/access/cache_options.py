"""The node cache: where it is, who shares it, its limit, and what the objects of one array are called in it.

Invariant: a process opens the directory of a cache once, and a process that was forked from it, or that became another
user, opens its own. `cpp/storage/cache/cache_folder.h` says who can read and write what is in the directory.
"""

from __future__ import annotations

import errno
import grp
import hashlib
import multiprocessing.util
import os
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.base.units import parse_bytes
from zarrfeed.storage.access.memory_cache import MemoryCache, MemoryFolder

#: Without a limit of the user's: this share of what the file system has free, and of what the cache has already.
_USUAL_SHARE = 0.9
#: Paths at which nothing can be made, whatever becomes of the file system.
_NO_PATHS = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP)
#: Bytes of an entry in front of its payload: some 100 bytes that name it. Entries count as whole blocks.
_USUAL_HEADER_BYTES = 160
_BLOCK_BYTES = 4096
#: The codec that chunks can be transcoded to.
_LZ4 = "lz4"

#: The directories that this process has open, by process, user, path, limit and group: a forked process opens its own.
_open: dict[tuple[int, int, str, int, int | None], core.CacheDirectory] = {}
#: The folders in memory of these.
_in_memory: dict[tuple[int, int, str, int, int | None], MemoryFolder] = {}


@dataclass(frozen=True)
class CacheOptions:
    """The directory of the node cache, and its limit.

    Attributes
    ----------
    path
        The directory, absolute.
    limit
        Bytes that it may use.
    version
        The version of all objects, as the user declares it; None: it is asked of the store.
    group
        Name or number of the group whose members share the cache; None: the user alone.
    transcode
        The codec in which chunks of slow codecs are kept; None: all bytes are kept as they are stored.
    in_memory
        True if the directory is that of a `MemoryCache`, which lives as long as the processes that use it.
    """

    path: str
    limit: int
    version: str | None = None
    group: str | int | None = None
    transcode: str | None = None
    in_memory: bool = False

    @classmethod
    def parse(
        cls,
        cache: str | Path | MemoryCache | None,
        limit: int | str | None = None,
        version: str | None = None,
        group: str | int | None = None,
        transcode: str | None = None,
    ) -> CacheOptions | None:
        """Return the options that a user gave, or None without a cache; the directory is opened.

        Raises
        ------
        ConfigError
            If the directory is of something else or another user's, or an option cannot work.
        """
        if cache is None:
            given = {"cache_limit": limit, "cache_version": version, "cache_group": group, "transcode": transcode}
            for name, value in given.items():
                if value is not None:
                    raise ConfigError(f"{name} = {value!r} without cache: give the directory of the cache, too")
            return None
        if version is not None and (not isinstance(version, str) or not 0 < len(version) <= 200):
            raise ConfigError(f"cache_version = {version!r}, must be text of 1 to 200 characters")
        if transcode is not None and transcode != _LZ4:
            raise ConfigError(f"transcode = {transcode!r}, must be {_LZ4!r} or None")
        if isinstance(cache, MemoryCache):
            for name, value in (("cache_limit", limit), ("cache_group", group)):
                if value is not None:
                    raise ConfigError(f"{name} = {value!r} with {cache!r}, which has a limit and is for one user")
            options = cls(cache.path, cache.limit_bytes, version, None, transcode, in_memory=True)
            is_new = options._key not in _open
            used = options.directory().used_bytes()
            if is_new:
                try:
                    cache.check_limit(used)
                except ConfigError:
                    _close(options._key)
                    raise
            return options
        if not isinstance(cache, str | os.PathLike) or not str(cache).strip():
            raise ConfigError(f"cache = {cache!r}, must be the path of a directory, or zarrfeed.MemoryCache(limit)")
        if "://" in str(cache):
            raise ConfigError(f"cache = {str(cache)!r}, must be a local directory and no URL")
        path = os.path.abspath(os.path.expanduser(cache))  # noqa: PTH100, PTH111 (Path.absolute leaves `..`)
        try:
            os.lstat(path)
        except ValueError as error:  # of a null character, or what cannot be encoded
            raise ConfigError(f"cache = {str(cache)!r}, must be the path of a directory") from error
        except OSError as error:  # others are a cache that is made, or that cannot be used, which is no error
            if error.errno in _NO_PATHS:
                raise ConfigError(f"cache = {str(cache)!r}: {error.strerror}") from error
        size = parse_bytes(limit, "cache_limit") if limit is not None else usual_limit(path, group)
        options = cls(path, size, version, group, transcode)
        options.directory()
        return options

    def directory(self) -> core.CacheDirectory:
        """Return the directory, which each process opens once.

        Raises
        ------
        ConfigError
            If it has files of something else, or is another user's; or if this user is not in the group.
        """
        key = self._key
        found = _open.get(key)
        if found is None:
            if self.in_memory:
                _in_memory[key] = MemoryFolder.join(self.path)
            found = _open[key] = open_directory(self.path, self.limit, key[-1])
            # Runs in workers of multiprocessing, too: who does not say that he ends is taken for dead. Folders in
            # memory are left after daemons, such as persistent workers, were ended: that is before priority -1.
            multiprocessing.util.Finalize(None, _close, (key,), exitpriority=-1 if self.in_memory else 0)
        return found

    @property
    def _key(self) -> tuple[int, int, str, int, int | None]:
        group = None if self.group is None else group_number(self.group)
        return os.getpid(), os.geteuid(), self.path, self.limit, group


def _close(key: tuple[int, int, str, int, int | None]) -> None:
    """Close a directory that this process has open; do nothing if it has not."""
    if key in _open:
        _open.pop(key).close()
    if key in _in_memory:
        _in_memory.pop(key).leave()


def _forget_inherited() -> None:
    """Leave the folders in memory that the parent uses to it."""
    for folder in _in_memory.values():
        folder.forget()
    _in_memory.clear()


os.register_at_fork(after_in_child=_forget_inherited)


@dataclass(frozen=True)
class StoredObjects:
    """The number and the sizes of the objects of an array.

    Attributes
    ----------
    count, stored_bytes
        Number of all objects, and their bytes.
    counted_bytes
        Bytes of all objects as they count against the limit of a cache: of whole blocks, with a header each.
    """

    count: int
    stored_bytes: int
    counted_bytes: int

    @classmethod
    def of(cls, sizes: npt.NDArray[np.int64] | None) -> StoredObjects | None:
        """Make it from the sizes of all objects; None for None."""
        if sizes is None:
            return None
        blocks = -(-(sizes + _USUAL_HEADER_BYTES) // _BLOCK_BYTES)
        return cls(len(sizes), int(sizes.sum()), int(blocks.sum()) * _BLOCK_BYTES)


@dataclass(frozen=True)
class ArrayCache:
    """The names and versions of the chunks of one array in the node cache.

    Attributes
    ----------
    options
        The options of the cache.
    store, prefix
        Name of the store in the cache; what stands before the keys of the array there.
    versions
        The version of each object; None: nothing of the array is cached.
    objects
        The number and the sizes of the objects; None: the store does not tell them.
    why_off
        Why nothing of the array, or not all of it, is cached; else empty.
    form
        The form in which chunks are transcoded (`storage/chunks/transcoding.py`); empty: they are kept as stored.
    """

    options: CacheOptions
    store: str = ""
    prefix: str = ""
    versions: core.ObjectVersions | None = None
    objects: StoredObjects | None = None
    why_off: str = ""
    form: str = ""

    def to_core(self) -> core.CachedArray | None:
        """Convert it for the engine, with the directory; None if nothing is cached."""
        if self.versions is None:
            return None
        names = {"store": self.store, "prefix": self.prefix, "form": self.form}
        return core.CachedArray(self.options.directory(), versions=self.versions, **names)

    def trouble(self) -> str:
        """Return why the cache does not do all that it could; empty if it does."""
        return self.why_off or self.options.directory().trouble()


def joined_cache(parts: Sequence[ArrayCache | None], *, in_files: bool) -> ArrayCache | None:
    """Return the name of transcoded arrays in files that are one, whose keys begin with the number of the part.

    All its objects have one version: that of all parts. The first name without a form if not every part is transcoded,
    or they are not `in_files`, so that Python reads each part under its own name.
    """
    first = parts[0]
    versions = [one.versions.find("") for one in parts if one is not None and one.versions is not None and one.form]
    if first is None or not in_files or len(versions) < len(parts) or None in versions:
        return first and replace(first, form="")
    digest = hashlib.blake2b("\n".join(map(str, versions)).encode(), digest_size=16).hexdigest()
    return replace(first, prefix=f"{first.prefix}{len(parts)} parts/", versions=core.ObjectVersions(f"parts {digest}"))


def open_directory(path: str, limit: int, group: int | None) -> core.CacheDirectory:
    """Open the directory of a cache; warn, in one line, if it was open to other users and is not any more.

    Raises
    ------
    ConfigError
        If it has files of something else, or is another user's.
    """
    directory = core.CacheDirectory(os.fsencode(path), limit, group)
    if notice := directory.notice():
        warnings.warn(notice, stacklevel=2)
    return directory


def group_number(group: str | int) -> int:
    """Return the number of a group that this process is in.

    Raises
    ------
    ConfigError
        If there is no such group, or this process is not in it.
    """
    if isinstance(group, bool) or not isinstance(group, str | int) or group == "":
        raise ConfigError(f"cache_group = {group!r}, must be the name or the number of a group")
    try:
        number = grp.getgrnam(group).gr_gid if isinstance(group, str) else grp.getgrgid(group).gr_gid
    except (KeyError, ValueError, OverflowError) as error:
        if not isinstance(group, int) or not 0 <= group < 2**32 - 1:
            raise ConfigError(f"cache_group = {group!r}: this machine has no such group") from error
        number = group  # containers have groups without a name
    if os.geteuid() != 0 and number not in (os.getegid(), *os.getgroups()):
        raise ConfigError(
            f"cache_group = {group!r}: this process does not belong to that group; its groups are "
            f"{', '.join(map(str, sorted({os.getegid(), *os.getgroups()})))}"
        )
    return number


def usual_limit(path: str, group: str | int | None = None) -> int:
    """Return the limit of a cache for which the user gave none: most of what its file system has room for."""
    folder, free = Path(path), None
    while free is None:
        try:
            free = shutil.disk_usage(folder).free
        except OSError:  # it is not there, or may not be looked at
            if folder == folder.parent:
                raise
            folder = folder.parent
    used = _used_bytes(path, group)
    return max(1, int((free + used) * _USUAL_SHARE))


def _used_bytes(path: str, group: str | int | None) -> int:
    if not os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises where a folder above must not be looked into)
        return 0
    try:
        return open_directory(path, 0, None if group is None else group_number(group)).used_bytes()
    except ConfigError:  # told when it is opened
        return 0
