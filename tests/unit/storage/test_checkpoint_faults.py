"""What writers and readers of checkpoints do about a store, a disk or a process that fails."""

from __future__ import annotations

import errno
import fcntl
import gc
import hashlib
import json
import os
import subprocess
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from obstore.store import LocalStore, MemoryStore

from benchmarks.harness.object_server import Act, ObjectServer, Request
from tests.support import warm
from tests.support.users import OTHER, VICTIM, as_user, folder_of_all, tree, two_users
from zarrfeed import checkpoint
from zarrfeed.base.errors import (
    ClosedError,
    ConfigError,
    CorruptCheckpointError,
    MemoryBudgetError,
    StoreReadError,
    StoreWriteError,
    UnsupportedError,
)
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.checkpoint import checkpoint_sink
from zarrfeed.storage.checkpoint.checkpoint_format import CHECKSUMS, PART_BYTES, TRAILER_BYTES, Footer
from zarrfeed.storage.checkpoint.checkpoint_location import FileLocation, ObjectLocation, locate_checkpoint

URL = "s3://bucket/run/step.pt"
#: The least, and so many parts as make an upload of it.
BUDGET = 2 * PART_BYTES
LARGE = 3 * PART_BYTES + 1000


def content(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with ObjectServer() as server:
        yield server


def options(server: ObjectServer, **more: Any) -> dict[str, Any]:
    return {"storage_options": server.options(), "memory_budget": BUDGET, "retries": 0} | more


def save(server: ObjectServer, data: bytes, **more: Any) -> None:
    with checkpoint.writer(URL, **options(server, **more)) as file:
        file.write(data)


def load(server: ObjectServer, **more: Any) -> bytes:
    with checkpoint.reader(URL, **options(server, **more)) as file:
        return file.read()


class On:
    """Acts on a kind of request, so many times; -1: always."""

    def __init__(self, kind: str, act: Act, times: int = 1) -> None:
        self.kind, self.act, self.left = kind, act, times

    def __call__(self, request: Request) -> Act | None:
        if request.kind != self.kind or self.left == 0:
            return None
        self.left -= 1
        return self.act


# --- servers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [Act("status", 503), Act("reset"), Act("forget")])
@pytest.mark.parametrize("kind", ["create", "part", "complete", "put"])
def test_a_request_of_an_upload_that_fails_once_is_made_again(server: ObjectServer, kind: str, act: Act) -> None:
    data = content(1000 if kind == "put" else LARGE)
    server.fault = On(kind, act)
    save(server, data, retries=3)
    assert server.hits == 1
    assert load(server) == data


@pytest.mark.parametrize("act", [Act("status", 503), Act("reset"), Act("cut"), Act("flip")])
def test_a_part_that_cannot_be_read_once_is_read_again(server: ObjectServer, act: Act) -> None:
    data = content(LARGE)
    save(server, data)
    server.fault = On("get", act, times=2)
    assert load(server, retries=3) == data
    assert server.hits == 2


def test_a_checkpoint_whose_last_answer_was_lost_counts_as_saved(server: ObjectServer) -> None:
    server.fault = On("complete", Act("forget"))
    save(server, content(LARGE))  # without retries
    assert server.hits == 1
    assert load(server) == content(LARGE)


def test_a_server_that_stores_less_than_it_says_is_found_out(server: ObjectServer) -> None:
    server.fault = On("part", Act("cut"))
    with pytest.raises(StoreWriteError, match=r"has other bytes|cannot be read back"):
        save(server, content(LARGE))
    with pytest.raises(CorruptCheckpointError):
        load(server)


def test_a_checkpoint_that_cannot_be_read_back_does_not_count_as_saved(server: ObjectServer) -> None:
    server.fault = On("get", Act("status", 403), times=-1)
    with pytest.raises(StoreWriteError, match="cannot be read back: the server answered 403"):
        save(server, content(10))


def test_a_checkpoint_that_is_replaced_is_not_mixed_with_the_new_one(server: ObjectServer) -> None:
    save(server, content(LARGE))
    with checkpoint.reader(URL, **options(server)) as file:
        assert file.read(10) == content(LARGE)[:10]
        save(server, content(LARGE, seed=1))
        with pytest.raises(StoreReadError, match="another checkpoint replaced it") as raised:
            file.read()
    assert raised.value.errno == errno.ESTALE


def test_a_part_that_failed_is_read_anew_when_it_is_asked_for_again(server: ObjectServer) -> None:
    save(server, content(LARGE))
    with checkpoint.reader(URL, **options(server)) as file:
        server.fault = On("get", Act("status", 503), times=-1)
        with pytest.raises(StoreReadError, match="503"):
            file.read()
        server.fault = None
        file.seek(0)
        assert file.read() == content(LARGE)


def test_parts_ahead_that_failed_with_the_one_that_was_read_are_read_anew(server: ObjectServer) -> None:
    save(server, content(LARGE))
    with checkpoint.reader(URL, **options(server)) as file:
        server.fault = On("get", Act("status", 503), times=-1)
        with pytest.raises(StoreReadError, match="503"):
            file.read()
        wait(file._parts.values(), timeout=30)  # all parts that were asked for ahead have failed
        assert any(part.exception() is not None for part in file._parts.values())
        server.fault = None
        file.seek(0)
        assert file.read() == content(LARGE)


def test_an_upload_never_holds_more_than_its_budget(server: ObjectServer) -> None:
    release = threading.Event()

    def stall(request: Request) -> Act | None:
        if request.kind == "part":
            release.wait(240)
        return None

    server.fault = stall
    data = np.frombuffer(content(LARGE), np.uint8)
    file = checkpoint.writer(URL, **options(server))
    written = [0]

    def write() -> None:
        for begin in range(0, len(data), 1 << 20):
            written[0] += file.write(data[begin : begin + (1 << 20)])

    thread = threading.Thread(target=write)
    thread.start()
    thread.join(1)  # it is held up: the server takes nothing
    assert thread.is_alive()
    assert written[0] <= BUDGET
    release.set()
    thread.join(240)
    file.close()
    assert load(server) == data.tobytes()


def test_an_upload_to_a_silent_server_is_given_up_without_it(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_sink, "_ABORT_S", 0.1)
    release = threading.Event()

    def stall(request: Request) -> Act | None:
        if request.kind == "part":
            release.wait(240)
        return None

    server.fault = stall
    file = checkpoint.writer(URL, **options(server))
    file.write(content(PART_BYTES + 1))
    file.abort()
    assert not release.is_set(), "the server has answered nothing"
    release.set()
    for thread in threading.enumerate():
        if thread.name == "zarrfeed-checkpoint":
            thread.join(240)
            assert not thread.is_alive()
    assert server.keys() == []


@pytest.mark.parametrize("what", ["write", "read"])
def test_memory_stays_within_the_budget(tmp_path: Path, what: str) -> None:
    path, data = tmp_path / "step.pt", np.zeros(5 * PART_BYTES, np.uint8)
    with checkpoint.writer(path) as file:
        file.write(data)
    buffer = bytearray(1 << 20)
    tracemalloc.start()
    try:
        if what == "write":
            with checkpoint.writer(path, memory_budget=BUDGET) as file:
                file.write(data)
        else:
            with checkpoint.reader(path, memory_budget=BUDGET) as reading:
                while reading.readinto(buffer):
                    pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < BUDGET + (2 << 20)
    assert (what == "write") is (peak < PART_BYTES), "of a file that is written nothing is kept"


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_two_uploads_of_one_object_are_never_mixed(server: ObjectServer, scheme: str) -> None:
    url, more = f"{scheme}://bucket/step.pt", options(server, storage_options=server.options(scheme))
    one, other = checkpoint.writer(url, **more), checkpoint.writer(url, **more)
    for file, seed in ((one, 1), (other, 2)):
        file.write(content(LARGE, seed))
    one.close()
    if scheme == "az":  # the blocks of the other are gone: Azure has one list of blocks for each name
        with pytest.raises(StoreWriteError):
            other.close()
    else:
        other.close()
    with checkpoint.reader(url, **more) as reading:
        assert reading.read() == content(LARGE, seed=1 if scheme == "az" else 2)


def test_an_upload_of_more_parts_than_a_store_takes_is_refused(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_sink, "MOST_PARTS", 2)
    with pytest.raises(MemoryBudgetError, match="raise memory_budget"):
        save(server, content(LARGE))
    assert server.keys() == []


def test_stores_of_obstore_are_written_and_read(tmp_path: Path) -> None:
    store, data = LocalStore(tmp_path), content(LARGE)
    with checkpoint.writer("run/step.pt", store=store, memory_budget=BUDGET) as file:
        file.write(data)
    with checkpoint.reader("run/step.pt", store=store) as reading:
        assert reading.read() == data
    with pytest.raises(ConfigError, match="storage_options"):
        checkpoint.reader("run/step.pt", store=store, storage_options={"anon": True})
    with pytest.raises(ConfigError, match="no key"):
        checkpoint.reader("s3://bucket/a", store=store)
    with pytest.raises(ConfigError, match="no MemoryStore"):
        checkpoint.writer("run/step.pt", store=MemoryStore())


def test_a_web_server_is_read(server: ObjectServer) -> None:
    save(server, content(LARGE))
    with checkpoint.reader(f"http://127.0.0.1:{server.port}/bucket/run/step.pt") as file:
        assert file.read() == content(LARGE)


# --- disks --------------------------------------------------------------------------------------------------------


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "step.pt"
    code = (
        "import os, sys; from zarrfeed import checkpoint\n"
        "file = checkpoint.writer(sys.argv[1]); file.write(b'x' * 1000); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([*warm.command(), "-c", code, str(path)], timeout=240, check=False)
    assert done.returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / ".step.pt.other").write_bytes(b"somebody's")
    with checkpoint.writer(path) as file:
        file.write(b"new")
    assert {found.name for found in tmp_path.iterdir()} == {"step.pt", ".step.pt.other"}


def test_two_writers_of_one_checkpoint_leave_each_other_alone(tmp_path: Path) -> None:
    path = tmp_path / "step.pt"
    with checkpoint.writer(path) as one, checkpoint.writer(path) as other:
        one.write(b"one")
        other.write(b"other")
    with checkpoint.reader(path) as file:
        assert file.read() == b"one"  # which was completed last
    assert list(tmp_path.iterdir()) == [path]


def test_a_leftover_that_becomes_locked_meanwhile_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lock = tmp_path / "step.pt", fcntl.flock
    removed: list[Path] = []

    def remove_first(descriptor: int, operation: int) -> None:
        if not removed:  # as another writer that took the new file for a leftover
            removed.extend(tmp_path.glob(".step.pt.*"))
            removed[0].unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with checkpoint.writer(path) as file:
        file.write(b"new")
    assert removed
    with checkpoint.reader(path) as reading:
        assert reading.read() == b"new"


def test_the_mode_and_the_link_of_an_older_checkpoint_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "step.pt", tmp_path / "last.pt"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    with checkpoint.writer(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    with checkpoint.reader(path) as reading:
        assert reading.read() == b"new"


def test_locations_that_cannot_be_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no regular file"):
        checkpoint.writer(tmp_path)
    with pytest.raises(StoreReadError, match="no regular file"):
        checkpoint.reader(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="no regular file"):
        checkpoint.writer(tmp_path / "pipe")
    with pytest.raises(StoreReadError, match="no regular file"):
        checkpoint.reader(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreWriteError, match="cannot be written"):
        checkpoint.writer(tmp_path / "file" / "step.pt")


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step.pt"
    with checkpoint.writer(path) as file:
        file.write(content(LARGE))
    with checkpoint.reader(path, memory_budget=BUDGET) as reading:
        assert reading.read(10) == content(LARGE)[:10]
        os.truncate(path, 2 * PART_BYTES + 5)
        with pytest.raises(CorruptCheckpointError, match="not those that were written"):
            reading.read()


# --- processes and threads ----------------------------------------------------------------------------------------


def test_a_writer_that_is_dropped_leaves_nothing(server: ObjectServer, tmp_path: Path) -> None:
    for where, more in ((URL, options(server)), (str(tmp_path / "step.pt"), {})):
        file = checkpoint.writer(where, **more)
        file.write(content(LARGE))
        del file
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "zarrfeed-checkpoint":
            thread.join(240)
    assert server.keys() == []
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_ends_before_its_writer_ends_and_leaves_nothing(server: ObjectServer) -> None:
    code = (
        "import sys, json; from zarrfeed import checkpoint\n"
        f"file = checkpoint.writer({URL!r}, **json.loads(sys.argv[1])); file.write(bytes({LARGE}))\n"
        "keep = [file]; keep.append(keep)"
    )
    command = [*warm.command(), "-c", code, json.dumps(options(server))]
    assert subprocess.run(command, timeout=240, check=False).returncode == 0
    assert server.keys() == []


def test_a_forked_process_cannot_use_what_its_parent_opened(tmp_path: Path) -> None:
    path = tmp_path / "step.pt"
    with checkpoint.writer(path) as file:
        file.write(b"old")
    writing, reading = checkpoint.writer(path), checkpoint.reader(path)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for use in (lambda: writing.write(b"x"), writing.close, lambda: reading.read(1)):
                try:
                    use()
                except ClosedError:
                    status += 1
            writing.abort()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    writing.write(b"new")
    writing.close()
    assert reading.read() == b"old"
    reading.close()


# --- torch --------------------------------------------------------------------------------------------------------


def state_of(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "weights": torch.arange(3_000_000, dtype=torch.int32) + step,
        "half": torch.ones(7).bfloat16(),
    }


def same(state: dict[str, Any], other: dict[str, Any]) -> bool:
    return state["step"] == other["step"] and all(torch.equal(state[key], other[key]) for key in ("weights", "half"))


def test_torch_saves_to_it_and_loads_from_it(server: ObjectServer, tmp_path: Path) -> None:
    for where, more in ((URL, options(server)), (str(tmp_path / "step.pt"), {})):
        with checkpoint.writer(where, **more) as file:
            torch.save(state_of(5), file)
        with checkpoint.reader(where, **more) as reading:
            assert same(torch.load(reading), state_of(5))
    for mmap in (False, True):  # what is local is a file that torch loads by itself, too
        assert same(torch.load(tmp_path / "step.pt", mmap=mmap), state_of(5))


def test_the_error_of_a_write_is_not_hidden_by_that_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save_without_room() -> None:
        with checkpoint.writer(tmp_path / "step.pt") as file:
            write = file._sink.write

            def until_full(data: Any) -> None:
                if file.tell() > 5000:
                    raise StoreWriteError(errno.ENOSPC, "no room")
                write(data)

            monkeypatch.setattr(file._sink, "write", until_full)
            torch.save(state_of(1), file)

    with pytest.raises(StoreWriteError, match="no room"):
        save_without_room()
    assert list(tmp_path.iterdir()) == []


def test_a_changed_byte_never_reaches_torch(tmp_path: Path) -> None:
    path = tmp_path / "step.pt"
    with checkpoint.writer(path) as file:
        torch.save(state_of(1), file)
    whole = path.read_bytes()
    for byte in np.random.default_rng(1).integers(0, len(whole), 10):
        changed = bytearray(whole)
        changed[byte] ^= 16
        path.write_bytes(changed)
        with pytest.raises(CorruptCheckpointError), checkpoint.reader(path) as reading:
            torch.load(reading)


# --- the format and the locations ---------------------------------------------------------------------------------


def test_a_footer_of_a_later_version_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "step.pt"
    with checkpoint.writer(path) as file:
        file.write(b"x")
    stored = bytearray(path.read_bytes())
    stored[len(stored) - TRAILER_BYTES + 18] = 2
    path.write_bytes(stored)
    with pytest.raises(UnsupportedError, match="format 2"):
        checkpoint.reader(path)


def test_parts_that_do_not_fit_the_budget_are_refused(tmp_path: Path) -> None:
    data = content(1000)
    footer = Footer(CHECKSUMS["sha256"], len(data), hashlib.sha256(data).digest(), part_bytes=1 << 40)
    (tmp_path / "step.pt").write_bytes(data + footer.pack())
    with pytest.raises(MemoryBudgetError, match=r"memory_budget = 256\.0 MiB"):
        checkpoint.reader(tmp_path / "step.pt")


def test_digests_tell_content_from_other_content(tmp_path: Path) -> None:
    digests = []
    for data in (b"", b"a", b"b", b"a", content(PART_BYTES), content(PART_BYTES) + b"\0"):
        with checkpoint.writer(tmp_path / "step.pt") as file:
            for begin in range(0, len(data), 1000):
                file.write(data[begin : begin + 1000])
        digests.append(file.digest)
    assert digests[1] == digests[3]
    assert len(set(digests)) == len(digests) - 1


def test_a_writer_has_no_digest_before_it_is_closed(tmp_path: Path) -> None:
    with checkpoint.writer(tmp_path / "step.pt") as file:
        with pytest.raises(ConfigError, match="no digest"):
            _ = file.digest
        assert (file.writable(), file.readable(), file.seekable(), file.mode) == (True, False, False, "wb")
    file.abort()
    file.close()
    with pytest.raises(ClosedError):
        file.flush()


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("s3://bucket/a/b.pt", "a/b.pt"),
        ("gs://bucket/step=5.pt", "step=5.pt"),
        ("az://container/a b.pt", "a b.pt"),
        ("abfss://container@account.dfs.core.windows.net/a.pt", "a.pt"),
        ("https://host.example/a/b.pt", "a/b.pt"),
    ],
)
def test_urls_name_an_object(url: str, key: str) -> None:
    more = {"storage_options": {"account_name": "account", "anon": True}} if url.startswith("a") else {}
    location = locate_checkpoint(url, None, more.get("storage_options"), Faults())
    assert isinstance(location, ObjectLocation)
    assert location.key == key


def test_file_urls_and_paths_name_a_file(tmp_path: Path) -> None:
    for where in (tmp_path / "a b", str(tmp_path / "a b"), f"file://{tmp_path}/a%20b"):
        location = locate_checkpoint(where, None, None, Faults())
        assert isinstance(location, FileLocation)
        assert location.path == tmp_path / "a b"
    with pytest.raises(ConfigError, match="storage_options"):
        locate_checkpoint(tmp_path / "a", None, {"anon": True}, Faults())


def test_a_pipe_or_a_link_with_the_name_of_a_leftover_neither_holds_a_writer_up_nor_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "step.pt"
    (tmp_path / "thesis.tex").write_text("years of work")
    os.mkfifo(tmp_path / f".step.pt.{'0' * 16}.partial")
    (tmp_path / f".step.pt.{'1' * 16}.partial").symlink_to(tmp_path / "thesis.tex")
    (tmp_path / f".step.pt.{'2' * 16}.partial").mkdir()
    with checkpoint.writer(path) as file:
        file.write(b"new")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert len(list(tmp_path.glob(".*.partial"))) == 3


@two_users
def test_a_checkpoint_is_not_written_through_a_link_that_another_user_made() -> None:
    with folder_of_all() as folder:
        home = folder / "home"

        def make_home() -> None:
            home.mkdir(mode=0o755)
            (home / "bashrc").write_text("export PATH")
            (folder / f".step.pt.{'0' * 16}.partial").write_bytes(b"a leftover of this user")

        def attack() -> None:
            (folder / "step.pt").symlink_to(home / "bashrc")
            (folder / "last.pt").symlink_to(home / "made.pt")
            (folder / f".mine.pt.{'1' * 16}.partial").write_bytes(b"of the other user")

        def save() -> None:
            for name in ("step.pt", "last.pt"):
                with pytest.raises(StoreWriteError, match=rf"{name}: cannot be written: is a link that uid {OTHER}"):
                    checkpoint.writer(folder / name)
            assert tree(home) == {"bashrc": b"export PATH"}
            with checkpoint.writer(folder / "mine.pt") as file:
                file.write(b"new")
            with checkpoint.reader(folder / "mine.pt") as reading:
                assert reading.read() == b"new"

        as_user(VICTIM, make_home)
        as_user(OTHER, attack)
        as_user(VICTIM, save)
        assert (folder / f".mine.pt.{'1' * 16}.partial").exists(), "what another user left is theirs to remove"
