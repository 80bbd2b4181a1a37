"""Files and folders beside those that a user named: check their owner before they are believed, written or deleted.

On a shared machine, another user can make a file or a folder of any name in a folder that is open to all, and guess the
names that zarrfeed uses: `.NAME.packing` beside a store, `NAME.zarrfeed`, a progress file in /tmp. Invariants:

- A side folder is used only if it is a folder and no link, and if the effective user, root or the owner of what the
  user named made it. Other users cannot write to a side folder that zarrfeed made.
- A folder in which a group, and nobody else, may write is the group's: a member can replace the store itself there. A
  side folder of such a folder and of the same group may be any member's, where the user named what others share
  (`owner` is given).
- A file in it is believed only if one of these made it, or if the folder lets a group write to it, and nobody else, as
  a umask of 002 does. It is opened without following a link at its name.
- A link at the end of a path that the user named is followed only if the effective user or root made it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import secrets
import stat
from functools import lru_cache
from pathlib import Path
from typing import IO

from zarrfeed.base.errors import ConfigError

#: Links that are followed one after the other, as the kernel does.
_MOST_LINKS = 40


def is_made_by(status: os.stat_result, folder: Path, owner: int | None = None, *, may_write: bool = True) -> bool:
    """Return whether the effective user, root or `owner` made a file or a folder.

    Parameters
    ----------
    status
        Path of the file or folder.
    folder
        A folder of the same file system. A server may show all files of this process as another user's: to find that
        user, the process makes a file there for a moment.
    owner
        The owner of the file or folder that the user of zarrfeed named; None: there is no such user.
    may_write
        If True, that file may be made. Readers write nothing, so they pass False.
    """
    known = {os.geteuid(), 0} if owner is None else {os.geteuid(), 0, owner}
    return status.st_uid in known or (may_write and status.st_uid == _user_in(folder, os.geteuid()))


def check_side_folder(path: Path, owner: int | None = None, *, may_write: bool = True) -> bool:
    """Return whether a side folder is there.

    Raises
    ------
    ConfigError
        If something else is there, or another user's folder.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        what = "a link" if stat.S_ISLNK(status.st_mode) else "no folder"
        raise ConfigError(f"{path}: is {what}, must be a folder that zarrfeed made; delete it, or name another path")
    if not is_made_by(status, path, owner, may_write=may_write) and (
        owner is None or not _is_of_group(status, path.parent)
    ):
        raise ConfigError(
            f"{path}: belongs to {name_of(status.st_uid)}, and this process runs as {name_of(os.geteuid())}: it is "
            "neither used nor changed; name another path, or have its owner delete the folder"
        )
    return True


def make_side_folder(path: Path, owner: int | None = None) -> None:
    """Make a side folder, and those above it, unless it is there; other users cannot write to it.

    Raises
    ------
    ConfigError
        If something else is there, or another user's folder.
    """
    if not check_side_folder(path, owner):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process was faster
            path.mkdir(mode=0o775)
        check_side_folder(path, owner)
    mode = stat.S_IMODE(path.lstat().st_mode)
    if mode & stat.S_IWOTH:
        with contextlib.suppress(PermissionError):  # only its owner can
            path.chmod(mode & ~stat.S_IWOTH)


def read_side_file(path: Path, owner: int | None = None, *, may_write: bool = True) -> bytes:
    """Return the content of a file in a side folder. Raises as `open_side_file`."""
    with open_side_file(path, owner, may_write=may_write) as file:
        return file.read()


def open_side_file(path: Path, owner: int | None = None, *, may_write: bool = True) -> IO[bytes]:
    """Open a file in a side folder, or beside what the user named, for reading.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    ConfigError
        If the file is a link, no regular file, or another user's.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(f"{path}: is a link, must be a file that zarrfeed wrote; delete it") from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ConfigError(f"{path}: is no regular file, must be a file that zarrfeed wrote; delete it")
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(os.fdopen(descriptor, "rb"))
        is_for_group = path.parent.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) == stat.S_IWGRP
        if not is_for_group and not is_made_by(status, path.parent, owner, may_write=may_write):
            raise ConfigError(f"{path}: belongs to {name_of(status.st_uid)}, so it is not trusted; delete it")
        stack.pop_all()
    return file


def followed(path: Path) -> Path:
    """Return the target of a path, if its last component is a link; else the path.

    Raises
    ------
    OSError
        With `ELOOP`, if another user made the link.
    """
    for _ in range(_MOST_LINKS):
        try:
            status = path.lstat()
        except FileNotFoundError:
            return path
        if not stat.S_ISLNK(status.st_mode):
            return path
        if not is_made_by(status, path.parent):
            raise OSError(
                errno.ELOOP, f"is a link that {name_of(status.st_uid)} made, which is not followed", str(path)
            )
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def check_owner(path: Path) -> None:
    """Refuse a pipe, a socket or a disk that another user put there; links, which `followed` looks at, lead anywhere.

    Only root makes devices, and in a container `/dev/null` may belong to a user whom the container does not know.

    Raises
    ------
    OSError
        With `EPERM`, if another user made it.
    """
    status = path.lstat()
    is_checked = not stat.S_ISLNK(status.st_mode) and not stat.S_ISCHR(status.st_mode)
    if is_checked and not is_made_by(status, path.parent):
        raise OSError(errno.EPERM, f"is no regular file, and belongs to {name_of(status.st_uid)}", str(path))


def _is_of_group(status: os.stat_result, parent: Path) -> bool:
    """Return whether a side folder, and the folder that it lies in, are open to one group and to nobody else."""
    above, writers = parent.stat(), stat.S_IWGRP | stat.S_IWOTH
    are_open = all(mode & writers == stat.S_IWGRP for mode in (status.st_mode, above.st_mode))
    return are_open and status.st_gid == above.st_gid


def name_of(user: int) -> str:
    """Return a user's name for messages: "alice (uid 1000)", or "uid 1000" for one without a name."""
    try:
        return f"{pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"uid {user}"


@lru_cache(maxsize=64)
def _user_in(folder: Path, user: int) -> int:
    """Return the owner that a file system shows for files which this process makes in a folder; `user` if it cannot."""
    probe = folder / f".zarrfeed-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return user
    try:
        return os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            probe.unlink()
