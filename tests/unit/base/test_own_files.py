"""Side folders and files are used if this user, root or the owner of what was named made them; no link is followed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.support.users import GROUP, OTHER, VICTIM, as_user, folder_of_all, give_to, tree, two_users
from zarrfeed import ConfigError
from zarrfeed.base.own_files import (
    check_owner,
    check_side_folder,
    followed,
    is_made_by,
    make_side_folder,
    name_of,
    read_side_file,
)


def test_a_side_folder_is_made_once_and_others_cannot_write_to_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "side"
    assert not check_side_folder(path)
    before = os.umask(0)
    try:
        make_side_folder(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o775
    (path / "file").write_text("kept")
    path.chmod(0o777)
    make_side_folder(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o775
    assert check_side_folder(path)
    assert read_side_file(path / "file") == b"kept"
    with pytest.raises(FileNotFoundError):
        read_side_file(path / "nothing")


@pytest.mark.parametrize("kind", ["link", "link to nothing", "file", "pipe"])
def test_what_is_no_folder_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    side, home = tmp_path / "side", tmp_path / "home"
    home.mkdir()
    if kind.startswith("link"):
        side.symlink_to(home if kind == "link" else tmp_path / "nothing")
    elif kind == "file":
        side.write_text("mine")
    else:
        os.mkfifo(side)
    before = tree(tmp_path) if kind != "pipe" else None
    for call in (check_side_folder, make_side_folder):
        with pytest.raises(ConfigError, match=r"side: is (a link|no folder), must be a folder that zarrfeed made"):
            call(side)
    assert before is None or tree(tmp_path) == before


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "other").write_text("{}")
    path = tmp_path / "file"
    if kind == "link":
        path.symlink_to(tmp_path / "other")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(ConfigError, match=r"file: is (a link|no regular file), must be a file that zarrfeed wrote"):
        read_side_file(path)


@two_users
def test_what_another_user_made_is_refused_unless_that_user_owns_what_was_named() -> None:
    with folder_of_all() as folder:
        side = folder / "side"
        make_side_folder(side)
        (side / "file").write_text("{}")
        give_to(OTHER, side)
        side.chmod(0o777)

        def use() -> None:
            for call in (check_side_folder, make_side_folder):
                with pytest.raises(
                    ConfigError, match=rf"belongs to uid {OTHER}, and this process runs as uid {VICTIM}"
                ):
                    call(side)
                call(side, OTHER)
            with pytest.raises(ConfigError, match=rf"file: belongs to uid {OTHER}, so it is not trusted"):
                read_side_file(side / "file")
            assert read_side_file(side / "file", OTHER) == b"{}"

        as_user(VICTIM, use)
        side.chmod(0o775)  # a group shares it
        assert read_side_file(side / "file") == b"{}"
        give_to(0, side)
        as_user(VICTIM, lambda: make_side_folder(side))  # root's may be used


@two_users
def test_a_server_that_shows_all_files_as_one_users_is_no_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    with folder_of_all() as folder:
        side = folder / "side"
        side.mkdir()
        give_to(OTHER, side)
        status = side.stat()
        assert not is_made_by(status, side)
        real = os.fstat

        def squashed(descriptor: int) -> os.stat_result:
            found = list(real(descriptor))
            found[4] = OTHER  # st_uid
            return os.stat_result(found)

        monkeypatch.setattr(os, "fstat", squashed)
        other_folder = folder / "again"  # what was found of a folder is kept
        other_folder.mkdir()
        assert is_made_by(status, other_folder)
        assert list(other_folder.iterdir()) == []
        (other_folder / "link").symlink_to(side)
        give_to(OTHER, other_folder / "link")
        assert followed(other_folder / "link") == side
        (folder / "link").symlink_to(side)
        monkeypatch.undo()
        give_to(OTHER, folder / "link")
        with pytest.raises(OSError, match=f"link that uid {OTHER} made"):
            followed(folder / "link")


@two_users
def test_a_pipe_of_another_user_is_refused_and_a_terminal_is_not() -> None:
    """In a container, /dev/null may belong to a user whom the container does not know."""
    with folder_of_all() as folder:
        os.mkfifo(folder / "pipe")
        try:
            os.mknod(folder / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("devices cannot be made here")
        give_to(OTHER, folder / "pipe", folder / "null")
        check_owner(folder / "null")
        with pytest.raises(OSError, match="is no regular file, and belongs to"):
            check_owner(folder / "pipe")


@two_users
def test_the_side_folder_of_a_group_is_any_members_where_nobody_else_can_write() -> None:
    with folder_of_all() as folder:
        for parent_mode, mode, group, is_used in (
            (0o2775, 0o2775, GROUP, True), (0o2770, 0o2770, GROUP, True), (0o2777, 0o2775, GROUP, False),
            (0o2775, 0o2777, GROUP, False), (0o2775, 0o755, GROUP, False), (0o2775, 0o775, OTHER, False),
            (0o755, 0o2775, GROUP, False),
        ):  # fmt: skip
            team = folder / f"{parent_mode:o} {mode:o} {group}"
            side = team / "side"
            side.mkdir(parents=True)
            os.chown(team, VICTIM, GROUP)
            os.chown(side, OTHER, group)
            team.chmod(parent_mode)
            side.chmod(mode)

            def use(side: Path = side, is_used: bool = is_used) -> None:
                if is_used:
                    make_side_folder(side, VICTIM)
                else:
                    with pytest.raises(ConfigError, match=f"belongs to uid {OTHER}"):
                        make_side_folder(side, VICTIM)
                with pytest.raises(ConfigError, match=f"belongs to uid {OTHER}"):
                    make_side_folder(side)  # of what the user named alone

            as_user(VICTIM, use, [GROUP])


def test_links_of_this_user_are_followed_at_the_end_of_a_path(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to(target)
    assert followed(tmp_path / "first") == target
    target.write_text("")
    assert followed(tmp_path / "first") == followed(target) == target
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels") as caught:
        followed(tmp_path / "loop")
    assert caught.value.errno == errno.ELOOP


def test_users_have_names() -> None:
    assert name_of(0) == "root (uid 0)"
    assert name_of(4000000001) == "uid 4000000001"
