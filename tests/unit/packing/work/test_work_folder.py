"""The folder of an unfinished store: whole files, records that are believed only with their files, one rename."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import zarrfeed
from tests.support.users import OTHER, VICTIM, as_user, folder_of_all, give_to, tree, two_users
from zarrfeed import ConfigError
from zarrfeed.packing.work.work_folder import UnitRecord, WorkFolder


@pytest.fixture
def folder(tmp_path: Path) -> WorkFolder:
    made = WorkFolder(tmp_path / "out.zarr")
    made.make({"a": 1})
    return made


def test_a_record_counts_while_its_files_are_there(folder: WorkFolder) -> None:
    record = UnitRecord([2**127 + 1, 0])
    folder.keep(record, "store/x/c/0", [b"abc", memoryview(b"de")])
    assert folder.done("write", 3) == set()
    folder.finish_unit("write", 1, record)
    assert folder.done("write", 3) == {1}
    assert folder.record("write", 1) == UnitRecord([2**127 + 1, 0], {"store/x/c/0": 5})
    assert folder.done("deal", 3) == set()
    (folder.path / "store/x/c/0").write_bytes(b"cut")
    assert folder.done("write", 3) == set()
    (folder.path / "store/x/c/0").unlink()
    assert folder.done("write", 3) == set()


def test_a_record_that_is_no_record_does_not_count(folder: WorkFolder) -> None:
    for content in (b"", b"[]", b"{}", b'{"digests": ["x"], "files": {}}', b"\xff"):
        (folder.path / "done/write-0.json").write_bytes(content)
        assert folder.record("write", 0) is None


def test_a_file_that_cannot_be_written_leaves_nothing(folder: WorkFolder) -> None:
    def parts() -> Iterator[bytes]:
        yield b"begun"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"store/x: cannot be written: No space left") as caught:
        folder.write("store/x", parts())
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(KeyboardInterrupt):
        folder.write("store/x", (_interrupt() for _ in range(1)))
    assert list((folder.path / "tmp").iterdir()) == []
    assert not (folder.path / "store/x").exists()


def _interrupt() -> bytes:
    raise KeyboardInterrupt


def test_the_plan_is_what_was_written_or_an_error(folder: WorkFolder, tmp_path: Path) -> None:
    assert folder.plan() == {"a": 1}
    assert WorkFolder(tmp_path / "other.zarr").plan() is None
    for content in ("no", "[1]"):
        (folder.path / "plan.json").write_text(content)
        with pytest.raises(ConfigError, match="is no plan"):
            folder.plan()


def test_one_works_on_an_output_or_several_that_share_it(tmp_path: Path) -> None:
    one, two, other = (WorkFolder(tmp_path / name) for name in ("out.zarr", "out.zarr", "other.zarr"))
    assert not one.hold(shared=False), "there is nothing to hold yet"
    assert list(tmp_path.iterdir()) == []
    one.make({})
    for shared in (False, True):
        with pytest.raises(ConfigError, match=rf"out\.zarr\.packing: another call .* \(process {os.getpid()} on "):
            two.hold(shared=shared)
        with pytest.raises(ConfigError, match="another call of pack works on this output"):
            two.make({}, shared=shared)
    other.make({})
    one.release()
    assert two.hold(shared=True)
    assert one.hold(shared=True)
    two.release()
    two.release()
    with pytest.raises(ConfigError, match="another call of pack works on this output"):
        two.hold(shared=False)
    one.forget()
    assert two.make({"new": 1}) == {"new": 1}, "a folder that its holder removed is made again"


def test_a_file_system_without_locks_is_used_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = WorkFolder(tmp_path / "out.zarr")
    folder.make({})
    folder.release()
    for number in (errno.ENOLCK, errno.ENOTSUP, errno.EIO):

        def refuse(*_: object, number: int = number) -> None:
            raise OSError(number, "refused")

        monkeypatch.setattr(fcntl, "flock", refuse)
        if number == errno.EIO:
            with pytest.raises(OSError, match="refused"):
                folder.hold(shared=False)
        else:
            assert folder.hold(shared=False)


def test_publishing_moves_the_store_and_forgets_the_rest(folder: WorkFolder, tmp_path: Path) -> None:
    folder.write("store/x", [b"abc"])
    folder.publish(tmp_path / "out.zarr")
    assert (tmp_path / "out.zarr/x").read_bytes() == b"abc"
    assert not folder.path.exists()


def test_publishing_never_replaces_what_is_there(folder: WorkFolder, tmp_path: Path) -> None:
    folder.write("store/x", [b"abc"])
    (tmp_path / "out.zarr").mkdir()
    (tmp_path / "out.zarr/mine").touch()
    with pytest.raises(FileExistsError, match="packing makes a new store"):
        folder.publish(tmp_path / "out.zarr")
    assert (folder.path / "store/x").exists()
    assert [path.name for path in (tmp_path / "out.zarr").iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["", "store", "tmp", "done", "rows", "spill"])
def test_a_link_in_place_of_a_folder_leads_nothing_out(tmp_path: Path, name: str) -> None:
    home, folder = tmp_path / "home", WorkFolder(tmp_path / "out.zarr")
    home.mkdir()
    (home / "zarr.json").write_text("precious")
    folder.make({"a": 1})
    moved = folder.path / name if name else folder.path
    moved.rename(tmp_path / "moved")
    moved.symlink_to(home)
    for call in (folder.plan, lambda: folder.make({"a": 1})):
        with pytest.raises(ConfigError, match="is a link, must be a folder that zarrfeed made"):
            call()
    folder.forget()
    assert tree(home) == {"zarr.json": b"precious"}


def test_a_plan_or_a_record_that_is_a_link_is_not_believed(folder: WorkFolder, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"digests": [], "files": {}}')
    (folder.path / "done/write-0.json").symlink_to(tmp_path / "other.json")
    (folder.path / "plan.json").unlink()
    (folder.path / "plan.json").symlink_to(tmp_path / "other.json")
    with pytest.raises(ConfigError, match=r"write-0\.json: is a link"):
        folder.record("write", 0)
    with pytest.raises(ConfigError, match=r"plan\.json: is a link"):
        folder.plan()


@two_users
def test_a_pack_that_another_user_prepared_is_refused() -> None:
    with folder_of_all() as folder:
        np.save(folder / "in.npy", np.arange(40).reshape(20, 2))
        work = folder / ".out.zarr.packing"

        def attack() -> None:
            WorkFolder(folder / "out.zarr").make({"a": 1})
            (work / "done" / "write-0.json").write_text('{"digests": ["0"], "files": {}}')
            (work / "store").chmod(0o777)
            work.chmod(0o777)

        as_user(OTHER, attack)
        before = tree(folder)

        def pack() -> None:
            for resume in (False, True):
                with pytest.raises(ConfigError, match=rf"\.out\.zarr\.packing: belongs to uid {OTHER}"):
                    zarrfeed.pack(folder / "in.npy", folder / "out.zarr", resume=resume, jobs=1)

        as_user(VICTIM, pack)
        pack()  # root does not believe another user either
        assert tree(folder) == before
        give_to(VICTIM, work)
        as_user(VICTIM, lambda: WorkFolder(folder / "out.zarr").forget())
        assert not work.exists()
