"""Locks on files: one holder, or several that share; none after their process ended, and none in a forked child."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zarrfeed.base.file_lock import Held, is_held


def test_one_holds_a_lock_or_several_share_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    one, two = Held(path, shared=True), Held(path, shared=True)
    assert not is_held(path), "asking is sharing"
    with pytest.raises(BlockingIOError):
        Held(path, wait=False)
    one.forget()
    two.forget()
    alone = Held(path, wait=False)
    assert is_held(path)
    with pytest.raises(BlockingIOError):
        Held(path, shared=True, wait=False)
    del alone
    assert not is_held(path)


def test_a_forked_child_holds_nothing(tmp_path: Path) -> None:
    held = Held(tmp_path / "lock")
    (ready, to_parent), (until, to_child) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(to_parent, b"x")
        os.read(until, 1)  # until the parent looked
        os._exit(0)
    try:
        os.read(ready, 1)
        held.forget()
        assert not is_held(tmp_path / "lock"), "the child lives, and has no copy of the lock"
    finally:
        os.write(to_child, b"x")
        os.waitpid(child, 0)
        for descriptor in (ready, to_parent, until, to_child):
            os.close(descriptor)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"):
        Held(tmp_path / "link")
    assert not is_held(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()
