"""Files that appear as a whole or not at all, whatever ends the process or fills the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from zarrfeed.base.own_files import check_owner, followed


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file: what was there before stays until the new content is on the disk.

    Parameters
    ----------
    path
        Path of the file. A link is followed, unless another user made it. A pipe or a terminal that is there is written
        to as it is, unless another user made it.
    content
        All that the file is to have.

    Raises
    ------
    OSError
        If it cannot be written; nothing is left of the new content, and the message names the file.
    """
    try:
        target = followed(path)
        if path.exists() and not path.is_file():
            check_owner(path)
            path.write_bytes(content)
        else:
            _replace(target, content)
    except OSError as error:
        why = error.strerror or repr(error)
        raise OSError(error.errno or errno.EIO, f"{path}: cannot be written: {why}") from error


def _replace(path: Path, content: bytes | memoryview) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if status.st_uid == os.geteuid():  # another user's choice of who may write is not kept
                    os.fchmod(file.fileno(), status.st_mode & 0o777)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
