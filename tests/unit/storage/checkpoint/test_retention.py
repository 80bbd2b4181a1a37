"""Retention: the newest checkpoints stay, among them the newest whole one; what zarrfeed did not write stays, too."""

from __future__ import annotations

import doctest
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import zarrfeed.storage.checkpoint.retention
from tests.support.dcp import dcp
from zarrfeed import checkpoint
from zarrfeed.base.errors import ConfigError, StoreReadError
from zarrfeed.checkpoint import Retained, ZarrfeedReader, ZarrfeedWriter, newest, reader, retain, writer
from zarrfeed.storage.checkpoint.checkpoint_manifest import METADATA_NAME, new_object_name

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def save_file(path: Path, value: int = 0, *, at: float | None = None) -> Path:
    with writer(path) as file:
        file.write(bytes([value]) * 1000)
    return aged(path, at)


def save_folder(path: Path, value: int = 0, *, at: float | None = None) -> Path:
    dcp.save({"value": torch.full((100,), value)}, storage_writer=ZarrfeedWriter(path))
    aged(path / METADATA_NAME, at)
    return path


def aged(path: Path, at: float | None) -> Path:
    if at is not None:
        os.utime(path, (at, at))
    return path


def load_folder(path: Path) -> int:
    state = {"value": torch.zeros(100, dtype=torch.int64)}
    dcp.load(state, storage_reader=ZarrfeedReader(path))
    return int(state["value"][0])


def objects_of(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.name != METADATA_NAME)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    when = path.stat().st_mtime
    path.write_bytes(content)
    os.utime(path, (when, when))


def names(paths: tuple[str, ...]) -> list[str]:
    return [Path(path).name for path in paths]


@pytest.mark.parametrize("name", ["newest", "retain"])
def test_the_examples_of_a_docstring_do_what_they_show(name: str) -> None:
    (example,) = doctest.DocTestFinder().find(getattr(checkpoint, name), name, globs={})
    report: list[str] = []
    doctest.DocTestRunner().run(example, out=report.append)
    assert report == []


def test_older_checkpoints_are_removed_and_the_newest_stay(tmp_path: Path) -> None:
    for step in range(3):
        save_file(tmp_path / f"file-{step}.pt", at=100 + 2 * step)
        save_folder(tmp_path / f"folder-{step}", step, at=101 + 2 * step)
    done = retain(tmp_path, keep_last=3)
    assert names(done.kept) == ["folder-2", "file-2.pt", "folder-1", "file-1.pt"], "those of one step stay together"
    assert names(done.removed) == ["folder-0", "file-0.pt"]
    assert done.damaged == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names(done.kept))
    assert load_folder(tmp_path / "folder-2") == 2
    assert retain(tmp_path, keep_last=3) == Retained(done.kept, (), ())


@pytest.mark.parametrize("save", [save_file, save_folder])
def test_the_step_tells_the_age_and_no_clock_does(tmp_path: Path, save: Any) -> None:
    steps = [9, 10, 100, 11, 8]
    for ago, step in enumerate(steps):  # the clock went back between any two of them
        save(tmp_path / f"step-{step}", step, at=10_000 - 3600 * ago)
    assert newest(tmp_path) == str(tmp_path / "step-100"), "the larger number, not the larger text"
    done = retain(tmp_path, keep_last=2)
    assert names(done.kept) == ["step-100", "step-11"]
    assert names(done.removed) == ["step-10", "step-9", "step-8"]


def test_all_numbers_of_a_name_count_in_their_order(tmp_path: Path) -> None:
    for name in ("epoch=2-step=50-loss=0.12.ckpt", "epoch=1-step=100-loss=0.9.ckpt", "epoch=2-step=7-loss=0.2.ckpt"):
        save_file(tmp_path / name)
    assert (newest(tmp_path) or "").endswith("epoch=2-step=50-loss=0.12.ckpt")
    assert names(retain(tmp_path, keep_last=2).removed) == ["epoch=1-step=100-loss=0.9.ckpt"]


def test_several_checkpoints_of_one_step_stay_together(tmp_path: Path) -> None:
    for name in ("model-100.pt", "optimizer-100.h5", "model-50.pt", "optimizer-50.h5"):
        save_file(tmp_path / name, at=1)
    done = retain(tmp_path, keep_last=1)
    assert sorted(names(done.kept)) == ["model-100.pt", "optimizer-100.h5"]
    assert sorted(names(done.removed)) == ["model-50.pt", "optimizer-50.h5"]


def test_a_checkpoint_without_a_number_stays_and_does_not_count(tmp_path: Path) -> None:
    save_file(tmp_path / "best.pt", at=10_000)
    assert newest(tmp_path) == str(tmp_path / "best.pt"), "the only one"
    save_file(tmp_path / "last.pt", at=20_000)
    with pytest.raises(ConfigError, match="has 2 checkpoints, and none has a number in its name"):
        newest(tmp_path)
    for step in (1, 2):
        save_file(tmp_path / f"step-{step}.pt", at=step)
    assert newest(tmp_path) == str(tmp_path / "step-2.pt")
    done = retain(tmp_path, keep_last=1)
    assert (names(done.kept), names(done.removed)) == (["step-2.pt", "best.pt", "last.pt"], ["step-1.pt"])


def test_the_manifest_knows_the_step_of_a_folder_that_was_renamed(tmp_path: Path) -> None:
    for step in (100, 200):
        save_folder(tmp_path / f"step-{step}", step)
    (tmp_path / "step-200").rename(tmp_path / "good-1")
    assert newest(tmp_path) == str(tmp_path / "good-1")
    assert names(retain(tmp_path, keep_last=1).removed) == ["step-100"]


def test_what_zarrfeed_did_not_write_stays(tmp_path: Path) -> None:
    ours = [save_file(tmp_path / f"step-{step}.pt", at=1000 + step) for step in range(3)]
    torch.save({"step": 1}, tmp_path / "step-foreign.pt")
    (tmp_path / "notes.txt").write_text("x" * 300)
    (tmp_path / "empty").touch()
    dcp.save({"value": torch.ones(3)}, storage_writer=dcp.FileSystemWriter(tmp_path / "step-torch"))
    (tmp_path / "deeper").mkdir()
    save_file(tmp_path / "deeper" / "step-9.pt", at=1)
    cut = save_file(tmp_path / "step-cut.pt")
    cut.write_bytes(cut.read_bytes()[:-1])
    (tmp_path / "latest").symlink_to(ours[0])
    for path in tmp_path.iterdir():
        if path not in ours:
            os.utime(path, (1, 1), follow_symlinks=False)
    before = set(tmp_path.rglob("*"))
    assert names(retain(tmp_path, keep_last=1).removed) == ["step-1.pt", "step-0.pt"]
    assert before - set(tmp_path.rglob("*")) == {ours[0], ours[1]}


@pytest.mark.parametrize("save", [save_file, save_folder])
def test_a_damaged_newest_checkpoint_does_not_count(tmp_path: Path, save: Any) -> None:
    for step in range(4):
        save(tmp_path / f"step-{step}", at=100 + step)
    newest_path = tmp_path / "step-3"
    flip(newest_path if newest_path.is_file() else objects_of(newest_path)[0], 400)
    done = retain(tmp_path, keep_last=1)
    assert names(done.kept) == ["step-2"]
    assert names(done.damaged) == ["step-3"]
    assert names(done.removed) == ["step-1", "step-0"]
    assert newest_path.exists(), "whoever wants to look at it can"


@pytest.mark.parametrize("verify", [True, False])
def test_a_folder_that_lacks_an_object_does_not_count(tmp_path: Path, verify: bool) -> None:
    for step in range(3):
        save_folder(tmp_path / f"step-{step}", at=100 + step)
    objects_of(tmp_path / "step-2")[0].unlink()
    assert newest(tmp_path) == str(tmp_path / "step-1")
    done = retain(tmp_path, keep_last=1, verify=verify)
    assert (names(done.kept), names(done.damaged)) == (["step-1"], ["step-2"])
    assert names(done.removed) == ["step-0"]


def test_nothing_is_removed_where_no_checkpoint_is_whole(tmp_path: Path) -> None:
    for step in range(3):
        flip(save_file(tmp_path / f"step-{step}", at=100 + step), 400)
    done = retain(tmp_path, keep_last=1)
    assert names(done.damaged) == ["step-2", "step-1", "step-0"]
    assert done.removed == done.kept == ()


def test_without_verify_no_content_is_read(tmp_path: Path) -> None:
    for step in range(3):
        save_file(tmp_path / f"step-{step}", at=100 + step)
    flip(tmp_path / "step-2", 400)
    assert names(retain(tmp_path, keep_last=1, verify=False).kept) == ["step-2"]


def test_a_save_under_way_is_not_touched(tmp_path: Path) -> None:
    """Objects without a manifest, and a manifest that changes: as between the steps of a save."""
    for step in range(3):
        save_folder(tmp_path / f"step-{step}", at=100 + step)
    under_way = tmp_path / "step-0" / new_object_name(1)  # a save over the oldest one, which has no manifest yet
    save_file(under_way)
    alone = tmp_path / "step-3" / new_object_name(0)
    save_file(alone)
    with writer(tmp_path / "file.pt") as file:
        file.write(b"1")
        assert names(retain(tmp_path, keep_last=1).removed) == ["step-1", "step-0"]
    assert under_way.exists()
    assert alone.exists()
    with reader(tmp_path / "file.pt") as file:
        assert file.read() == b"1"


def test_what_an_unfinished_save_left_goes_with_its_folder(tmp_path: Path) -> None:
    save_folder(tmp_path / "step-0", at=100)
    save_folder(tmp_path / "step-1", at=200)
    save_file(tmp_path / "step-0" / new_object_name(1), at=50)
    of_user = tmp_path / "step-0" / "notes.txt"
    of_user.write_text("mine")
    os.utime(of_user, (50, 50))
    dead = tmp_path / "step-0" / f".{new_object_name(0)}.0123456789abcdef.partial"
    dead.write_bytes(b"half an object")
    with writer(tmp_path / "step-0" / new_object_name(2)) as file:
        (alive,) = set((tmp_path / "step-0").glob(".*.partial")) - {dead}
        assert names(retain(tmp_path, keep_last=1).removed) == ["step-0"]
        assert sorted((tmp_path / "step-0").iterdir()) == sorted([of_user, alive])
        file.abort()
    assert list((tmp_path / "step-0").iterdir()) == [of_user]


def test_a_checkpoint_that_is_replaced_while_its_objects_are_removed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save writes its manifest after the objects of the former one were removed, and before the second look."""
    for step in range(2):
        save_folder(tmp_path / f"step-{step}", 1)
    checkpoint_class = zarrfeed.storage.checkpoint.retention._FolderCheckpoint
    left_behind = checkpoint_class._left_behind

    def save_meanwhile(self: Any, named: set[str]) -> list[str]:
        found = left_behind(self, named)
        save_folder(tmp_path / "step-0", 2)
        return found

    monkeypatch.setattr(checkpoint_class, "_left_behind", save_meanwhile)
    assert retain(tmp_path, keep_last=1).removed == ()
    assert load_folder(tmp_path / "step-0") == 2, "the manifest of the new save stays"


@pytest.mark.parametrize("save", [save_file, save_folder])
def test_a_checkpoint_that_was_replaced_meanwhile_stays(
    tmp_path: Path, save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save ends between the look at a checkpoint and its removal."""
    for step in range(2):
        save(tmp_path / f"step-{step}", 1, at=100 + step)
    found = zarrfeed.storage.checkpoint.retention._find

    def find_and_replace(*args: Any) -> Any:
        result = found(*args)
        save(tmp_path / "step-0", 2)
        return result

    monkeypatch.setattr(zarrfeed.storage.checkpoint.retention, "_find", find_and_replace)
    assert retain(tmp_path, keep_last=1).removed == ()
    monkeypatch.undo()
    assert newest(tmp_path) == str(tmp_path / "step-1")
    if save is save_folder:
        assert load_folder(tmp_path / "step-0") == 2


def test_a_removal_that_was_interrupted_is_finished_by_the_next(tmp_path: Path) -> None:
    for step in range(2):
        save_folder(tmp_path / f"step-{step}", at=100 + step)
    for one in objects_of(tmp_path / "step-0"):
        one.unlink()
    assert names(retain(tmp_path, keep_last=1).removed) == ["step-0"]
    assert not (tmp_path / "step-0").exists()


def test_saves_and_retention_at_the_same_time(tmp_path: Path) -> None:
    """Whenever retention looks, the newest checkpoint that was complete before it looked can be loaded after it."""
    complete: list[int] = [0]
    save_folder(tmp_path / "step-0")
    ended = threading.Event()
    errors: list[BaseException] = []

    def keep_saving() -> None:
        try:
            for step in range(1, 25):
                save_folder(tmp_path / f"step-{step}", step)
                complete.append(step)
        except BaseException as error:  # noqa: BLE001 (another thread raises it)
            errors.append(error)
        finally:
            ended.set()

    saver = threading.Thread(target=keep_saving)
    saver.start()
    rounds = 0
    while not ended.is_set() or rounds < 2:
        before = complete[-1]
        done = retain(tmp_path, keep_last=2)
        assert done.damaged == ()
        found = newest(tmp_path)
        assert found is not None
        assert load_folder(Path(found)) >= before
        rounds += 1
    saver.join(240)
    assert errors == []
    assert names(retain(tmp_path, keep_last=2).kept) == ["step-24", "step-23"]


def test_the_folder_of_checkpoints_is_named_not_a_checkpoint(tmp_path: Path) -> None:
    save_folder(tmp_path / "step-0")
    for act in (lambda: retain(tmp_path / "step-0", keep_last=1), lambda: newest(tmp_path / "step-0")):
        with pytest.raises(ConfigError, match="is itself a checkpoint"):
            act()
    assert load_folder(tmp_path / "step-0") == 0


def test_a_folder_that_does_not_exist_has_no_checkpoint(tmp_path: Path) -> None:
    assert newest(tmp_path / "none") is None
    assert retain(tmp_path / "none", keep_last=1) == Retained((), (), ())


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"keep_last": 0}, "keep_last = 0, must be at least 1"),
        ({"keep_last": True}, "keep_last = True, must be an integer"),
        ({"keep_last": 1, "verify": 1}, "verify = 1, must be True or False"),
        ({"keep_last": 1, "retries": -1}, "retries = -1"),
        ({"keep_last": 1, "timeout": 0}, "timeout = 0"),
        ({"keep_last": 1, "storage_options": {"region": "x"}}, "storage_options"),
    ],
)
def test_arguments_that_cannot_work_are_refused(tmp_path: Path, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        retain(tmp_path, **arguments)


def test_an_error_of_the_store_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(3):
        save_folder(tmp_path / f"step-{step}", at=100 + step)

    def fail(*_: Any, **__: Any) -> None:
        raise StoreReadError(5, "the store does not answer")

    monkeypatch.setattr(zarrfeed.storage.checkpoint.retention._FolderCheckpoint, "check", fail)
    with pytest.raises(StoreReadError, match="does not answer"):
        retain(tmp_path, keep_last=1)
    assert [load_folder(tmp_path / f"step-{step}") for step in range(3)] == [0, 0, 0]
