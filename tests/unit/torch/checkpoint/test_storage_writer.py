"""Saves with torch.distributed.checkpoint in one process: the previous checkpoint is whole, or the new one is."""

from __future__ import annotations

import doctest
import errno
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from tests.support.dcp import dcp
from zarrfeed import checkpoint
from zarrfeed.base.errors import ConfigError, StoreWriteError, UnsupportedError
from zarrfeed.checkpoint import ZarrfeedReader, ZarrfeedWriter
from zarrfeed.storage.checkpoint.checkpoint_folder import open_folder
from zarrfeed.storage.checkpoint.checkpoint_manifest import METADATA_NAME, decode
from zarrfeed.storage.checkpoint.checkpoint_sink import _LocalSink
from zarrfeed.storage.checkpoint.shard_folder import ShardFolder, Transfer

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

#: torch tells ranks of errors so, whatever their class was.
FAILED = CheckpointException


def state_of(value: int) -> dict[str, Any]:
    """Return a state dict whose every item tells the value."""
    return {
        "weights": {f"layer {i}": torch.arange(1000.0) + value for i in range(3)},
        "half": torch.full((7, 5), value, dtype=torch.bfloat16),
        "view": (torch.arange(1000) + value)[100:103],
        "scalar": torch.tensor(value),
        "empty": torch.empty(0, 3),
        "step": value,
        "names": ["a", value],
    }


def blank() -> dict[str, Any]:
    state = state_of(-1)
    return state | {"step": None, "names": None}


def assert_is(state: dict[str, Any], value: int) -> None:
    for i in range(3):
        assert torch.equal(state["weights"][f"layer {i}"], torch.arange(1000.0) + value)
    assert torch.equal(state["half"], torch.full((7, 5), value, dtype=torch.bfloat16))
    assert state["view"].tolist() == [100 + value, 101 + value, 102 + value]
    assert (int(state["scalar"]), state["step"], state["names"]) == (value, value, ["a", value])


def save(path: Path, value: int, **options: Any) -> None:
    dcp.save(state_of(value), storage_writer=ZarrfeedWriter(path, **options))


def load(path: Path) -> dict[str, Any]:
    state = blank()
    dcp.load(state, storage_reader=ZarrfeedReader(path))
    return state


def objects_of(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.name != METADATA_NAME)


@pytest.mark.parametrize("name", ["LoaderState", "ZarrfeedReader", "ZarrfeedWriter"])
def test_the_examples_of_a_docstring_do_what_they_show(name: str) -> None:
    (example,) = (
        test for test in doctest.DocTestFinder().find(getattr(checkpoint, name), name, globs={}) if test.examples
    )
    report: list[str] = []
    doctest.DocTestRunner().run(example, out=report.append)
    assert report == []


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    save(tmp_path / "a" / "b", 3)
    assert_is(load(tmp_path / "a" / "b"), 3)


def test_a_state_dict_may_have_some_of_the_keys(tmp_path: Path) -> None:
    save(tmp_path, 3)
    state: dict[str, Any] = {"scalar": torch.tensor(0), "weights": {"layer 1": torch.zeros(1000)}}
    dcp.load(state, storage_reader=ZarrfeedReader(tmp_path))
    assert int(state["scalar"]) == 3
    assert torch.equal(state["weights"]["layer 1"], torch.arange(1000.0) + 3)


def test_a_save_replaces_the_checkpoint_and_removes_its_objects(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (before,) = objects_of(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    save(tmp_path, 2)
    assert_is(load(tmp_path), 2)
    assert not before.exists()
    assert len(objects_of(tmp_path)) == 2
    assert (tmp_path / "notes.txt").exists()


def test_a_writer_is_used_for_several_saves(tmp_path: Path) -> None:
    """Also with the planner of the previous save, which reuses its plans."""
    writer, planner = ZarrfeedWriter(tmp_path), dcp.DefaultSavePlanner(enable_plan_caching=True)
    names = set()
    for value in range(3):
        dcp.save(state_of(value), storage_writer=writer, planner=planner)
        assert_is(load(tmp_path), value)
        names |= {path.name for path in objects_of(tmp_path)}
    assert len(names) == 3, "each save has objects of its own"
    dcp.save(state_of(7), storage_writer=writer, checkpoint_id=tmp_path / "elsewhere")
    assert_is(load(tmp_path / "elsewhere"), 7)
    assert_is(load(tmp_path), 2)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:.*process group")
def test_torchs_own_reader_loads_it(tmp_path: Path) -> None:
    save(tmp_path, 3)
    state = blank()
    dcp.load(state, storage_reader=dcp.FileSystemReader(tmp_path))
    assert_is(state, 3)


def test_an_asynchronous_save_is_of_the_moment_when_it_began(tmp_path: Path) -> None:
    state = state_of(4)
    done = dcp.async_save(state, storage_writer=ZarrfeedWriter(tmp_path), no_dist=True)
    state["weights"]["layer 0"] += 100
    done.result(timeout=60)
    assert_is(load(tmp_path), 4)


def test_views_are_stored_without_the_rest_of_their_storage(tmp_path: Path) -> None:
    dcp.save({"view": torch.zeros(1 << 20)[5:8]}, storage_writer=ZarrfeedWriter(tmp_path))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 10_000


def test_the_manifest_names_each_object_with_its_digest(tmp_path: Path) -> None:
    save(tmp_path, 3)
    _, manifest = ShardFolder(open_folder(tmp_path), Transfer()).read_manifest() or (None, None)
    assert manifest is not None
    assert [one.name for one in manifest.objects] == [path.name for path in objects_of(tmp_path)]
    with Transfer().read(str(objects_of(tmp_path)[0])) as file:
        assert [(one.length, one.digest) for one in manifest.objects] == [(file.size, file.digest)]


# --- what fails -------------------------------------------------------------------------------------------------


def ordered_steps(event: str, args: tuple[Any, ...], folder: str) -> bool:
    """Return whether an audit event is a step of a save: it opens, renames or removes something in the folder."""
    return event in ("open", "os.rename", "os.remove") and any(folder in str(arg) for arg in args)


def in_child(body: Callable[[], None]) -> int:
    """Run something in a forked process; return its exit status, or -9 if it was killed."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_save_that_is_killed_at_any_step_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """SIGKILL at each file that the save opens, renames or removes, until the save gets through."""
    folder = tmp_path / "run"
    save(folder, 0)
    outcomes = []
    for step in range(1, 100):
        previous = load(folder)["step"]

        def save_and_die(value: int = step) -> None:
            left = value

            def count(event: str, args: tuple[Any, ...]) -> None:
                nonlocal left
                if ordered_steps(event, args, str(folder)):
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
            save(folder, value)

        status = in_child(save_and_die)
        assert status in (0, -signal.SIGKILL)
        loaded = load(folder)
        assert loaded["step"] in (previous, step), "the previous checkpoint or the new one"
        assert_is(loaded, loaded["step"])
        outcomes.append(loaded["step"] == step)
        if status == 0:
            break
    assert outcomes[-1], "the last save got through"
    assert False in outcomes[:-1]
    assert True in outcomes[:-1], "some were killed after the manifest was written"
    assert len(outcomes) > 8


class Failure:
    """Something that goes wrong at the n-th write of a save."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self) -> bool:
        self.left -= 1
        return self.left == 0


def fail_writes(monkeypatch: pytest.MonkeyPatch, at: int) -> Failure:
    failure, write = Failure(at), _LocalSink.write

    def failing(self: _LocalSink, data: Any) -> None:
        if failure():
            raise StoreWriteError(errno.EIO, "a write failed")
        write(self, data)

    monkeypatch.setattr(_LocalSink, "write", failing)
    return failure


def fail_fsync(monkeypatch: pytest.MonkeyPatch, at: int) -> Failure:
    failure, fsync = Failure(at), os.fsync

    def failing(descriptor: int) -> None:
        if failure():
            raise OSError(errno.EIO, "a flush failed")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    return failure


def write_short(monkeypatch: pytest.MonkeyPatch, at: int) -> Failure:
    """Write less than was asked for, once; and nothing more, as a full disk."""
    failure, write = Failure(at), os.write
    failed: list[int] = []

    def failing(descriptor: int, data: Any) -> int:
        if descriptor in failed:
            raise OSError(errno.ENOSPC, "No space left on device")
        if failure():
            failed.append(descriptor)
            return write(descriptor, bytes(data)[: len(data) // 2])
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", failing)
    return failure


@pytest.mark.parametrize("fail", [fail_writes, fail_fsync, write_short])
def test_a_save_that_fails_anywhere_leaves_the_previous_checkpoint(
    tmp_path: Path, fail: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the report on torch's fsspec writer (pytorch issue 183878) misses: no data is dropped without an error."""
    previous = 0
    causes: list[BaseException] = []

    def save_value(value: int) -> None:
        dcp.save({"step": value, "whole": torch.full((5,), value)}, storage_writer=ZarrfeedWriter(tmp_path))

    save_value(0)
    for value in range(1, 200):
        with monkeypatch.context() as patch:
            failure = fail(patch, value)
            try:
                save_value(value)
            except FAILED as error:
                causes.append(error.failures[0][0])
        state: dict[str, Any] = {"step": -1, "whole": torch.full((5,), -1)}
        dcp.load(state, storage_reader=ZarrfeedReader(tmp_path))
        assert set(state["whole"].tolist()) == {state["step"]}
        if failure.left > 0:
            assert state["step"] == value, "nothing failed any more"
            break
        # The last flush is of the directory, after the rename: then the new checkpoint is there.
        assert state["step"] == previous or (fail is fail_fsync and state["step"] == value)
        previous = state["step"]
    assert len(causes) == value - 1 > 3, "each failure was told"
    assert all(isinstance(cause, StoreWriteError) for cause in causes), "as what it was"
    assert not list(tmp_path.glob(".*.partial")), "nothing is left behind"


@pytest.mark.parametrize("harm", ["cut", "lost", "changed", "other"])
def test_an_object_that_is_not_stored_as_written_makes_no_checkpoint(
    tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that says yes and keeps less: the coordinator looks before it writes the manifest."""
    save(tmp_path, 0)
    (other,) = objects_of(tmp_path)
    write_items = ZarrfeedWriter._write_items

    def harming(self: ZarrfeedWriter, *args: Any) -> Any:
        results = write_items(self, *args)
        path = tmp_path / results[0].storage_data.object.name
        content = path.read_bytes()
        if harm == "lost":
            path.unlink()
        else:
            path.write_bytes({"cut": content[:-100], "other": other.read_bytes()}.get(harm, content[:-90] + b"?" * 90))
        return results

    monkeypatch.setattr(ZarrfeedWriter, "_write_items", harming)
    with pytest.raises(FAILED, match=r"distcp: "):
        save(tmp_path, 1)
    monkeypatch.undo()
    assert_is(load(tmp_path), 0)


def test_an_item_that_no_rank_wrote_makes_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 0)
    write_items = ZarrfeedWriter._write_items
    monkeypatch.setattr(ZarrfeedWriter, "_write_items", lambda *args: write_items(*args)[:-1])
    with pytest.raises(FAILED, match="no rank wrote MetadataIndex"):
        save(tmp_path, 1)
    monkeypatch.undo()
    assert_is(load(tmp_path), 0)


def test_objects_that_cannot_be_removed_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 0)

    def fail(*_: Any) -> None:
        raise StoreWriteError(errno.EACCES, "denied")

    with monkeypatch.context() as patch:
        patch.setattr(ShardFolder, "remove_objects", fail)
        with pytest.warns(UserWarning, match="objects of the previous checkpoint remain"):
            save(tmp_path, 1)
    assert_is(load(tmp_path), 1)


@pytest.mark.parametrize("which", [".metadata", "object"])
def test_no_changed_byte_is_loaded(tmp_path: Path, which: str) -> None:
    save(tmp_path, 0)
    path = tmp_path / METADATA_NAME if which == ".metadata" else objects_of(tmp_path)[0]
    content = path.read_bytes()
    offsets = [0, 1, len(content) // 3, len(content) // 2, len(content) - 70, len(content) - 1]
    for at in offsets:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises((FAILED, AssertionError)):
            load(tmp_path)
    path.write_bytes(content)
    assert_is(load(tmp_path), 0)


def test_an_object_of_another_save_is_refused(tmp_path: Path) -> None:
    """Its own footer is right; the manifest tells."""
    save(tmp_path / "a", 1)
    save(tmp_path / "b", 2)
    objects_of(tmp_path / "a")[0].write_bytes(objects_of(tmp_path / "b")[0].read_bytes())
    with pytest.raises(FAILED, match="the manifest says"):
        load(tmp_path / "a")


def test_a_checkpoint_of_another_writer_is_not_replaced(tmp_path: Path) -> None:
    dcp.save(state_of(1), storage_writer=dcp.FileSystemWriter(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FAILED, match=r"\.metadata"):
        save(tmp_path, 2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises((FAILED, AssertionError), match="holds no checkpoint"):
        load(tmp_path / "none")


def test_ranks_that_do_not_talk_are_refused(tmp_path: Path) -> None:
    writer = ZarrfeedWriter(tmp_path)
    with pytest.raises(UnsupportedError, match="use_collectives=False"):
        writer.set_up_storage_writer(True, rank=0, use_collectives=False)


@pytest.mark.parametrize("of", [ZarrfeedWriter, ZarrfeedReader])
@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"location": ""}, ConfigError, "must be a path or a URL"),
        ({"location": 3}, ConfigError, "must be a path or a URL"),
        ({"location": "ftp://h/x"}, UnsupportedError, "ftp:// is not supported"),
        ({"location": "http://h/x"}, ConfigError, "a web server"),
        ({"location": "x", "storage_options": {"region": "y"}}, ConfigError, "storage_options"),
        ({"location": "s3://b/x", "storage_options": {"regoin": "y"}}, ConfigError, "regoin"),
        ({"location": "x", "retries": -1}, ConfigError, "retries = -1"),
        ({"location": "x", "retries": "3"}, ConfigError, "retries = '3'"),
        ({"location": "x", "timeout": 0}, ConfigError, "timeout = 0"),
        ({"location": "x", "timeout": None}, ConfigError, "timeout = None"),
        ({"location": "x", "concurrency": 0}, ConfigError, "concurrency = 0"),
        ({"location": "x", "memory_budget": "much"}, ConfigError, "memory_budget"),
    ],
)
def test_arguments_that_cannot_work_are_refused(
    of: Any, arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        of(**arguments)
    assert not of.validate_checkpoint_id("ftp://h/x")
    assert of.validate_checkpoint_id("s3://b/x")


def test_read_back_is_a_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="read_back = 1, must be True or False"):
        ZarrfeedWriter(tmp_path, read_back=1)  # type: ignore[arg-type]


def test_a_writer_and_a_reader_travel_to_other_processes(tmp_path: Path) -> None:
    """As an asynchronous save in a process of its own does."""
    writer = pickle.loads(pickle.dumps(ZarrfeedWriter(tmp_path, retries=2)))
    dcp.save(state_of(5), storage_writer=writer)
    state = blank()
    dcp.load(state, storage_reader=pickle.loads(pickle.dumps(ZarrfeedReader(tmp_path))))
    assert_is(state, 5)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def test_decode_is_what_reads_the_manifest(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with Transfer().read(str(tmp_path / METADATA_NAME)) as file:
        pickled, manifest = decode(file.read(), "x")
    assert pickle.loads(pickled).storage_meta.save_id == manifest.save_id
