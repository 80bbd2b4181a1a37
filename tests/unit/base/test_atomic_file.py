"""Files appear as a whole or not at all, and what is no regular file is left in its place."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.support.users import OTHER, VICTIM, as_user, folder_of_all, two_users
from zarrfeed.base.atomic_file import write_whole
from zarrfeed.tools import cli


def no_room(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_whole(path, b"first")
    assert path.read_bytes() == b"first"
    path.chmod(0o640)
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_there_stays_if_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"first")
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match=r"report\.json: cannot be written: No space left") as caught:
        write_whole(path, b"second")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"first")
    link.symlink_to(target)
    write_whole(link, b"second")
    assert link.is_symlink()
    assert target.read_bytes() == b"second"


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"report")
        assert os.read(reader, 100) == b"report"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_not_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import zarr

    zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="int32")
    full = tmp_path / "full"
    full.symlink_to("/dev/full")  # were it removed, then only the link
    argv = ["verify", str(tmp_path / "a"), "--progress-file", "none", "--json", str(full)]
    assert cli.main(argv) == cli.EXIT_ERROR
    assert f"{full}: cannot be written: No space left" in capsys.readouterr().err
    assert full.is_symlink()


@two_users
def test_a_link_or_a_pipe_that_another_user_made_is_not_written_to() -> None:
    with folder_of_all() as folder:
        target, pipe = folder / "bashrc", folder / "pipe"

        def make_target() -> None:
            target.write_text("export PATH")

        def attack() -> None:
            (folder / "link").symlink_to(target)
            (folder / "dangling").symlink_to(folder / "authorized_keys")
            os.mkfifo(pipe)
            pipe.chmod(0o666)
            (folder / "theirs").write_text("first")
            (folder / "theirs").chmod(0o666)

        def write() -> None:
            (folder / "mine").symlink_to(folder / "link")
            for name in ("link", "dangling", "mine"):
                with pytest.raises(OSError, match=rf"{name}: cannot be written: is a link that uid {OTHER}") as caught:
                    write_whole(folder / name, b"report")
                assert caught.value.errno == errno.ELOOP
            with pytest.raises(OSError, match=rf"is no regular file, and belongs to uid {OTHER}"):
                write_whole(pipe, b"report")
            assert target.read_text() == "export PATH"
            assert not (folder / "authorized_keys").exists()

        as_user(VICTIM, make_target)
        as_user(OTHER, attack)
        as_user(VICTIM, write)
        write_whole(folder / "theirs", b"second")  # as root, who may replace it
        assert stat.S_IMODE((folder / "theirs").stat().st_mode) & 0o022 == 0
