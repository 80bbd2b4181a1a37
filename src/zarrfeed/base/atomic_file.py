"""Files that appear as a whole or not at all, whatever ends the process or fills the disk."""

from __future__ import annotations

import errno
from pathlib import Path

from zarrfeed.base.durable_files import replace_whole
from zarrfeed.base.own_files import check_owner, followed


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file: the previous content stays until the new content is on the disk.

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
        If the file cannot be written; nothing is left of the new content, and the message names the file.
    """
    try:
        target = followed(path)
        if path.exists() and not path.is_file():
            check_owner(path)
            path.write_bytes(content)
        else:
            replace_whole(target, content, keep_mode=True)
    except OSError as error:
        why = error.strerror or repr(error)
        raise OSError(error.errno or errno.EIO, f"{path}: cannot be written: {why}") from error
