"""The folder of an unfinished store: whole files, records that are believed only with their files, one rename."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from zarrfeed import ConfigError
from zarrfeed.tools.pack.work_folder import UnitRecord, WorkFolder


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
