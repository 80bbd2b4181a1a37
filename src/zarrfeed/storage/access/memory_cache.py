"""A node cache in the memory of the machine, which lives as long as the processes that use it.

Its folder lies in /dev/shm, and this user alone can read it. Invariants:

- Each process that uses the folder holds a shared `flock` on it, which the kernel frees when the process ends. A
  process that gets the exclusive lock therefore knows that no other one uses the folder, and may delete it.
- The last process that uses the folder deletes it when it ends. Folders of processes that were killed are deleted by
  the next process of the same user that opens any memory cache.
- A lock counts only if the path still leads to the folder that was locked. A folder is renamed before its files are
  deleted, so nobody waits for that, and nobody joins it meanwhile.
- A forked process has the lock of its parent as long as it keeps the descriptor, so it closes that at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.job_memory import job_bytes
from zarrfeed.base.own_files import name_of
from zarrfeed.base.units import format_bytes, parse_bytes

_MEMORY = Path("/dev/shm")
#: Folders that other processes delete while this one joins them, one after the other.
_MOST_TRIES = 100
#: Threads that still write an entry while the folder is deleted: how often, and how long, they are waited for.
_DELETIONS, _PAUSE_S = 20, 0.01


@dataclass(frozen=True)
class MemoryCache:
    """A node cache in the memory of the machine, for `cache=` of `zarrfeed.open` and `zarrfeed.objects.open`.

    All processes of this user on the machine that name it share it: ranks and DataLoader workers. It is empty when the
    first of them opens it, and is deleted when the last one ends. What killed processes leave is deleted by the next
    process that opens a memory cache. Its memory comes on top of `memory_budget`, and counts as memory of the job.

    Parameters
    ----------
    limit
        Bytes that it may use, as a number or text such as "8GB"; not more than the machine has free. Where processes
        give several limits, each adds chunks up to its own.
    name
        Letters, digits, "_" and "-" that tell caches of one user apart, for jobs that share a machine and no data.

    Raises
    ------
    ConfigError
        If the limit is no size, or the name has other characters.

    Examples
    --------
    >>> import zarrfeed
    >>> zarrfeed.MemoryCache("8GB")
    zarrfeed.MemoryCache('8GB')
    """

    limit: int | str
    name: str = "shared"

    def __post_init__(self) -> None:
        _ = self.limit_bytes
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.name):
            raise ConfigError(f"name = {self.name!r} of a MemoryCache, must be 1 to 64 of A-Z, a-z, 0-9, _ and -")

    def __repr__(self) -> str:
        named = "" if self.name == "shared" else f", name={self.name!r}"
        return f"zarrfeed.MemoryCache({self.limit!r}{named})"

    @property
    def limit_bytes(self) -> int:
        """Bytes that it may use."""
        return parse_bytes(self.limit, "limit of a MemoryCache")

    @property
    def path(self) -> str:
        """The folder of its files."""
        return str(_MEMORY / f"{_prefix()}{self.name}")

    def check_limit(self, used_bytes: int) -> None:
        """Raise ConfigError if the limit is more than the cache uses already and the machine has free."""
        of_files = os.statvfs(_MEMORY)
        room = {
            f"{_MEMORY} has room for": used_bytes + of_files.f_bavail * of_files.f_frsize,
            "the machine has free": used_bytes + _available_bytes(),
            "the job may use": job_bytes(),
        }
        holder, most = min(room.items(), key=lambda item: item[1])
        if self.limit_bytes > most:
            raise ConfigError(
                f"{self!r}: {holder} {format_bytes(most)}, which is less: give a lower limit, or cache=, the path of a "
                "directory on a disk"
            )


class MemoryFolder:
    """The folder of a memory cache, which this process uses until `leave`.

    Parameters
    ----------
    path
        The folder.
    descriptor
        The open folder, with the shared lock.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def join(cls, path: str) -> MemoryFolder:
        """Use a folder, which is made if no other process uses it; delete those that killed processes left.

        Raises
        ------
        ConfigError
            If the machine has no folder in memory, or another user made something at the path.
        """
        if not _MEMORY.is_dir():
            raise ConfigError(f"MemoryCache: this machine has no {_MEMORY}: give cache=, the path of a directory")
        delete_abandoned()
        for _ in range(_MOST_TRIES):
            try:
                with contextlib.suppress(FileExistsError):
                    Path(path).mkdir(mode=0o700)
                descriptor = _open_own(Path(path))
            except FileNotFoundError:  # another process deleted it
                continue
            except OSError as error:
                raise ConfigError(f"MemoryCache: {path}: {error.strerror}") from error
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _leads_to(Path(path), descriptor):
                return cls(Path(path), descriptor)
            os.close(descriptor)
        raise ConfigError(f"MemoryCache: {path}: other processes delete it again and again")

    def leave(self) -> None:
        """Use the folder no more, and delete it if no other process uses it."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # before it is tried: of several that leave, the last one succeeds
        _delete_if_unused(self._path, self._descriptor)
        os.close(self._descriptor)

    def forget(self) -> None:
        """Close what was inherited from the process that forked this one; the folder is in use by that process."""
        os.close(self._descriptor)


def delete_abandoned() -> None:
    """Delete the folders of memory caches of this user that no process uses."""
    for path in _MEMORY.glob(f"{_prefix()}*"):
        try:
            descriptor = _open_own(path)
        except (OSError, ConfigError):  # gone, or not ours: whoever wants to use it is told
            continue
        try:
            _delete_if_unused(path, descriptor)
        finally:
            os.close(descriptor)


def _prefix() -> str:
    return f"zarrfeed-memory-{os.geteuid()}-"


def _open_own(path: Path) -> int:
    _check_owner(path, path.lstat())  # who made it is told even of a folder that cannot be opened
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_owner(path, os.fstat(descriptor))
    except ConfigError:
        os.close(descriptor)
        raise
    return descriptor


def _check_owner(path: Path, status: os.stat_result) -> None:
    """Refuse what another user made, or can read."""
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode) or mode & 0o077:
        raise ConfigError(
            f"MemoryCache: {path} belongs to {name_of(status.st_uid)}, with mode {mode:04o}, and must be a folder that "
            "this user alone can read: delete it, or give another name="
        )


def _leads_to(path: Path, descriptor: int) -> bool:
    """Return whether an open folder still has this path."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _delete_if_unused(path: Path, descriptor: int) -> None:
    """Delete a folder if no process has a lock on it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if not _leads_to(path, descriptor):
        return
    deleted = path if "." in path.name else path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    path.rename(deleted)
    for _ in range(_DELETIONS):
        shutil.rmtree(deleted, ignore_errors=True)
        if not deleted.exists():
            return
        time.sleep(_PAUSE_S)


def _available_bytes() -> int:
    """Return the bytes that the machine can give to a process without swapping."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), flags=re.MULTILINE)
    return int(found[1]) << 10 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
