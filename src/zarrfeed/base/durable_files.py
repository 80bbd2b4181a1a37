"""Files that outlast a power failure: content first, then its name, then the names of the folders above.

A system that goes down may lose this, as POSIX has it:

  - the content of a file that was not synced: the file is then empty, cut, or zeros;
  - a name that was made, moved or deleted in a folder that was not synced since; each name by itself, in any order.

So whoever promises something writes in this order: sync the new file, rename it, sync its folder; and only then publish
what refers to it, or delete what it replaces.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: A disk has many writes under way at once.
_SYNCED_AT_ONCE = 16
#: So few are synced without threads.
_FEW = 3
#: Errors of a file system that cannot sync a folder, and of a folder that may not be listed.
_NO_SYNC_OF_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; file systems that cannot do so are taken as they are."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_FOLDERS:
            raise
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_FOLDERS:
            raise
    finally:
        os.close(descriptor)


def sync_all(files: Iterable[Path], folders: Iterable[Path]) -> None:
    """Wait until the content of files and the names in folders are on the disk, many at once."""
    files, folders = list(files), list(folders)
    if len(files) + len(folders) <= _FEW:
        for path in files:
            sync_file(path)
        for path in folders:
            sync_folder(path)
        return
    with ThreadPoolExecutor(_SYNCED_AT_ONCE, "zarrfeed: sync") as pool:
        list(pool.map(sync_file, files))
        list(pool.map(sync_folder, folders))


def sync_tree(folder: Path) -> None:
    """Wait until a folder, all files in it and all their names are on the disk; not its own name."""
    walked = [(Path(parent), names) for parent, _, names in os.walk(folder)]
    files = [parent / name for parent, names in walked for name in names]
    sync_all((path for path in files if not path.is_symlink()), (parent for parent, _ in walked))


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that they outlast a power failure."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def replace_whole(path: Path, content: bytes | memoryview, *, keep_mode: bool = False) -> None:
    """Replace a file by new content in one step: after a power failure it has the former content or the new one.

    The caller syncs the folder, where it matters which of the two it is. With `keep_mode` the new file has the
    permissions of the former one, if that is this user's: another user's choice of who may write is not kept.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            with contextlib.suppress(FileNotFoundError):
                if keep_mode and (status := path.stat()).st_uid == os.geteuid():
                    os.fchmod(file.fileno(), status.st_mode & 0o777)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
