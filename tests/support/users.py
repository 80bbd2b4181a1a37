"""Code that runs as another user, in a forked process, and a folder that all users can write to, as /tmp is.

Only root can become another user: tests that need two users are marked with `two_users`, which skips them elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

#: Users without a name, who own nothing.
VICTIM, OTHER = 65533, 65532
#: A group without a name.
GROUP = 65531

two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


def as_user(user: int, body: Callable[[], object], groups: Sequence[int] = ()) -> None:
    """Run code as a user (as this one where only root could change that), and fail with its traceback if it raises."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setgroups(list(groups))
                os.setgid(user)
                os.setuid(user)
            body()
            status = 0
        except BaseException:  # noqa: BLE001 (of any class: the test shows it)
            os.write(writing, traceback.format_exc().encode()[-60000:])
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"as user {user}:\n{said}"


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Give up root's right to read everything, if we have it."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def folder_of_all() -> Iterator[Path]:
    """Make a folder with the access rights of /tmp, in it; what a test has for itself is for one user."""
    folder = Path(tempfile.mkdtemp(prefix="zarrfeed-users-", dir="/tmp"))
    folder.chmod(0o1777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def give_to(user: int, *paths: Path) -> None:
    """Make files, folders or links another user's, with all that is in them."""
    for path in paths:
        inside = [] if path.is_symlink() or not path.is_dir() else list(path.rglob("*"))
        for one in (path, *inside):
            os.chown(one, user, user, follow_symlinks=False)


def tree(folder: Path) -> dict[str, bytes | str | None]:
    """Return all that is in a folder: files with their content, links with their target, folders with None."""
    return {
        str(one.relative_to(folder)): str(one.readlink())
        if one.is_symlink()
        else one.read_bytes()
        if one.is_file()
        else None
        for one in sorted(folder.rglob("*"))
    }
