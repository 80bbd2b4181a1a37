"""`verify`: every chunk is read, what is bad or missing is told exactly, and a run that was interrupted goes on."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, WrapperStore, ZipStore

import zarrfeed
from tests.support import warm
from tests.support.oracle import no_file_left, no_thread_left
from tests.support.users import OTHER, VICTIM, as_user, folder_of_all, two_users
from zarrfeed.tools import cli
from zarrfeed.tools.verify import Progress
from zarrfeed.tools.verify.progress_file import ProgressFile

pytestmark = pytest.mark.filterwarnings(
    "ignore::zarr.errors.ZarrUserWarning", "ignore::zarr.errors.UnstableSpecificationWarning"
)


def make(store: Any, **options: Any) -> zarr.Array[Any]:
    """Make an array of (30, 10) whose elements are their own indices, in 3 x 3 chunks of (10, 4)."""
    settings: dict[str, Any] = {"shape": (30, 10), "chunks": (10, 4), "dtype": "i4"} | options
    array = zarr.create_array(store, **settings)
    array[...] = 1 + np.arange(300).reshape(30, 10).astype(array.dtype)
    return array


#: Name -> what an array is made with; all that is native and some that are not.
ARRAYS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "blosc": {"compressors": BloscCodec(cname="lz4")},
    "zstd, crc32c": {"compressors": [ZstdCodec(), Crc32cCodec()]},
    "gzip": {"compressors": GzipCodec()},
    "big-endian": {"dtype": ">i4", "serializer": BytesCodec(endian="big")},
    "v2": {"zarr_format": 2},
    "v2, F, zlib": {"zarr_format": 2, "order": "F", "compressors": numcodecs.Zlib()},
    "v2, bz2": {"zarr_format": 2, "compressors": numcodecs.BZ2()},
    "v2, astype": {"zarr_format": 2, "filters": [numcodecs.AsType("<i4", "<i4")]},
    "shards": {"chunks": (5, 2), "shards": (10, 4)},
    "shards, general": {
        "chunks": (5, 2),
        "shards": (10, 4),
        "compressors": [{"name": "numcodecs.bz2", "configuration": {"level": 1}}],
    },
}


def stores(kind: str, path: Path) -> Any:
    return {"local": LocalStore(path / "a.zarr"), "memory": MemoryStore(), "zip": ZipStore(path / "a.zip", mode="w")}[
        kind
    ]


@pytest.mark.parametrize("kind", ["local", "memory", "zip"])
@pytest.mark.parametrize("name", ARRAYS)
def test_a_good_store_is_good_and_every_chunk_was_decoded(name: str, kind: str, tmp_path: Path) -> None:
    array = make(stores(kind, tmp_path), **ARRAYS[name])
    report = zarrfeed.verify(array)
    (only,) = report.arrays
    expected = 30 if "shards" in name else 9  # of 3 x 3 shards of 2 x 2, the last column lies beyond the end
    assert (only.chunks, only.good, only.missing, only.bad) == (expected, expected, 0, 0)
    assert report.ok
    assert report.findings == ()
    item = 4 * (5 * 2 if "shards" in name else 10 * 4)
    assert only.decoded_bytes == expected * item


def chunk_keys(name: str) -> list[str]:
    shape = "{}.{}" if name.startswith("v2") else "c/{}/{}"
    return [shape.format(i, j) for i, j in itertools.product(range(3), range(3))]


def unreadable_to_zarr(array: zarr.Array[Any]) -> set[tuple[int, int]]:
    """Chunks of (10, 4) that zarr-python, the oracle, fails to read."""
    failing = set()
    for i, j in itertools.product(range(3), range(3)):
        try:
            array[10 * i : 10 * i + 10, 4 * j : 4 * j + 4]
        except Exception:  # noqa: BLE001 (codecs raise anything)
            failing.add((i, j))
    return failing


@pytest.mark.parametrize("kind", ["local", "memory"])
@pytest.mark.parametrize("name", ARRAYS)
def test_what_is_told_to_be_bad_or_missing_is_exactly_that(name: str, kind: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "a.zarr") if kind == "local" else MemoryStore()
    array = make(store, **ARRAYS[name])
    keys = chunk_keys(name)
    for key, content in ((keys[1], b"?"), (keys[4], b"\x07" * 11), (keys[8], None)):
        if content is None:
            sync(store.delete(key))
        else:
            sync(store.set(key, zarr.buffer.cpu.Buffer.from_bytes(content)))
    report = zarrfeed.verify(array)
    (only,) = report.arrays
    found = {(f.key, f.cause) for f in report.findings}
    assert found == {(keys[1], "corrupt"), (keys[4], "corrupt"), (keys[8], "missing")}
    assert {keys[3 * i + j] for i, j in unreadable_to_zarr(array)} == {keys[1], keys[4]}
    assert not report.ok
    assert report.problems == (f"{only.bad} chunks bad",)
    assert only.good + only.bad + only.missing == only.chunks
    if "shards" in name:  # (0, 1) and (1, 1) hold four chunks each, (2, 2) lies over the end and holds two
        assert (only.bad, only.missing) == (8, 2)
    else:
        assert (only.bad, only.missing) == (2, 1)


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_of_a_shard_the_bad_inner_chunk_alone_is_bad(kind: str, general: bool, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "a.zarr") if kind == "local" else MemoryStore()
    array = make(store, **ARRAYS["shards, general" if general else "shards"])
    stored = sync(store.get("c/1/0", zarr.buffer.cpu.buffer_prototype))
    assert stored is not None
    shard = bytearray(stored.to_bytes())
    begin = int.from_bytes(shard[-68 + 16 : -68 + 24], "little")  # of inner chunk 1: (0, 1)
    shard[begin : begin + 12] = bytes(12)
    sync(store.set("c/1/0", zarr.buffer.cpu.Buffer.from_bytes(bytes(shard))))
    (finding,) = zarrfeed.verify(array).findings
    assert (finding.key, finding.inner, finding.cause, finding.chunks) == ("c/1/0", "0/1", "corrupt", 1)


def test_inner_chunks_that_a_shard_lacks_are_missing(tmp_path: Path) -> None:
    for store in (LocalStore(tmp_path / "a.zarr"), MemoryStore()):
        array = zarr.create_array(store, shape=(8,), chunks=(2,), shards=(8,), dtype="i4", fill_value=0)
        array[:2] = 1
        array[4:6] = 1
        report = zarrfeed.verify(array)
        assert [(f.key, f.inner, f.cause) for f in report.findings] == [
            ("c/0", "1", "missing"),
            ("c/0", "3", "missing"),
        ]
        assert report.ok
        assert zarrfeed.verify(array, missing="error").problems == ("2 chunks missing",)


class FailingStore(WrapperStore[Any]):
    """A store with a key that cannot be read."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if key.endswith("c/1/1"):
            raise OSError(errno.EIO, "the device is on fire")
        stored: Buffer | None = await self._store.get(key, prototype, byte_range)
        return stored


@pytest.mark.parametrize("name", ["raw", "shards"])
def test_an_io_error_is_never_a_missing_chunk(name: str, tmp_path: Path) -> None:
    make(LocalStore(tmp_path / "a.zarr"), **ARRAYS[name])
    array = zarr.open_array(FailingStore(LocalStore(tmp_path / "a.zarr")), mode="r")
    report = zarrfeed.verify(array)
    (finding,) = report.findings
    assert (finding.key, finding.cause) == ("c/1/1", "unreadable")
    assert "the device is on fire" in finding.message
    assert report.arrays[0].missing == 0


def test_what_batches_cannot_hold_is_checked_all_the_same(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g.zarr")
    group.create_array("scalar", shape=(), dtype="f8")[...] = 1.5
    group.create_array("empty", shape=(0, 4), dtype="f8")
    group.create_array("text", shape=(5,), chunks=(2,), dtype=str)[:] = np.array(list("abcde"))
    structures = np.array([(1, 2.0), (3, 4.0), (5, 6.0)], dtype=[("a", "<i4"), ("b", "<f8")])
    group.create_array("structures", data=structures, chunks=(2,))
    report = zarrfeed.verify(group)
    assert report.ok, str(report)
    assert [(a.path, a.chunks, a.good) for a in report.arrays] == [
        ("empty", 0, 0),
        ("scalar", 1, 1),
        ("structures", 2, 2),
        ("text", 3, 3),
    ]
    for key in ("scalar/c", "structures/c/1", "text/c/2"):
        (tmp_path / "g.zarr" / key).write_bytes(b"?")
    assert [f"{f.array}/{f.key}" for f in zarrfeed.verify(group).findings] == ["scalar/c", "structures/c/1", "text/c/2"]


def test_arrays_that_cannot_be_checked_are_no_good_store_and_the_others_are_checked(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g.zarr")
    for name in ("good", "damaged", "vast"):
        make(group.store_path / name)
    (tmp_path / "g.zarr/damaged/zarr.json").write_text("{")
    metadata = json.loads((tmp_path / "g.zarr/vast/zarr.json").read_text())
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [1 << 20, 1 << 20]
    (tmp_path / "g.zarr/vast/zarr.json").write_text(json.dumps(metadata))
    report = zarrfeed.verify(group)
    problems = {a.path: a.problem for a in report.arrays}
    assert "zarr-python cannot open it" in problems["damaged"]
    assert "memory_budget = 1.0 GiB, must be at least" in problems["vast"]
    assert problems["good"] == ""
    assert report.problems == ("2 arrays could not be checked",)


def test_groups_are_entered_once_and_other_things_are_named(tmp_path: Path) -> None:
    root = zarr.create_group(tmp_path / "g.zarr")
    make(root.create_group("a/b/c").store_path / "x")
    (tmp_path / "g.zarr/a/again").symlink_to(tmp_path / "g.zarr/a")
    (tmp_path / "g.zarr/notes").mkdir()
    (tmp_path / "g.zarr/notes.txt").write_text("not Zarr")
    report = zarrfeed.verify(tmp_path / "g.zarr")
    assert [a.path for a in report.arrays] == ["a/b/c/x"]
    assert report.ignored == ("notes",)
    assert "notes" in str(report)


def test_only_what_is_named_is_checked(tmp_path: Path) -> None:
    root = zarr.create_group(tmp_path / "g.zarr")
    for name in ("x", "y", "sub/z"):
        make(root.store_path / name)
    zarr.open_group(tmp_path / "g.zarr" / "sub", mode="a")
    assert [a.path for a in zarrfeed.verify(root, ["sub", "y"]).arrays] == ["sub/z", "y"]
    for name in ("w", "../g.zarr/x", ""):
        with pytest.raises(zarrfeed.ConfigError, match="no array or group"):
            zarrfeed.verify(root, [name])
    with pytest.raises(zarrfeed.ConfigError, match="is an array"):
        zarrfeed.verify(tmp_path / "g.zarr/x", ["y"])


def test_consolidated_metadata_list_a_store_that_cannot_be_listed(tmp_path: Path) -> None:
    class Unlisted(WrapperStore[Any]):
        supports_listing = False

    root = zarr.create_group(tmp_path / "g.zarr", zarr_format=2)
    make(root.store_path / "x", zarr_format=2)
    make(root.store_path / "sub/y", zarr_format=2)
    zarr.open_group(tmp_path / "g.zarr/sub", mode="a", zarr_format=2)
    zarr.consolidate_metadata(root.store)
    group = zarr.open_group(Unlisted(LocalStore(tmp_path / "g.zarr")), mode="r")
    assert [(a.path, a.good) for a in zarrfeed.verify(group).arrays] == [("sub/y", 9), ("x", 9)]


# -- links -------------------------------------------------------------------------------------------------------------


def test_links_out_of_the_store_are_followed_and_counted(tmp_path: Path) -> None:
    make(LocalStore(tmp_path / "a.zarr"))
    (tmp_path / "a.zarr/c").rename(tmp_path / "elsewhere")
    (tmp_path / "a.zarr/c").symlink_to(tmp_path / "elsewhere")
    report = zarrfeed.verify(tmp_path / "a.zarr")
    assert report.ok
    assert report.links == 1
    assert [(f.key, f.cause) for f in report.findings] == [("c", "link")]
    assert zarrfeed.verify(tmp_path / "a.zarr", links="error").problems == ("1 link out of the store",)


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a group of two arrays of 40 chunks, one of each bad, that are read in parts of one chunk."""
    group = zarr.create_group(tmp_path / "g.zarr")
    for name in ("x", "y"):
        array = group.create_array(name, shape=(40, 8), chunks=(1, 8), dtype="i4")
        array[...] = 1 + np.arange(320).reshape(40, 8)
        (tmp_path / f"g.zarr/{name}/c/7/0").write_bytes(b"?")
    monkeypatch.setattr("zarrfeed.tools.verify.chunks._SLICE_CHUNKS", 1)
    monkeypatch.setattr("zarrfeed.tools.verify._SAVE_EVERY_S", 0.0)
    return tmp_path / "g.zarr"


def interrupt_at(number: int, seen: list[int]) -> Callable[[Progress], None]:
    def on_progress(now: Progress) -> None:
        seen.append(now.done)
        if len(seen) == number:
            raise KeyboardInterrupt

    return on_progress


@pytest.mark.parametrize("number", [1, 20, 40, 41, 79])
def test_a_run_that_was_interrupted_goes_on_and_finds_the_same(number: int, many: Path, tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        zarrfeed.verify(many, progress_file=file, on_progress=interrupt_at(number, seen))
    messages: list[str] = []
    again: list[int] = []
    report = zarrfeed.verify(
        many, progress_file=file, on_progress=lambda now: again.append(now.done), on_message=messages.append
    )
    assert again == list(range(number + 1, 81))
    assert messages == [f"{number} of 80 chunks were checked before, by {file}"]
    assert report.to_dict() == zarrfeed.verify(many).to_dict()
    assert [(f.array, f.key) for f in report.findings] == [("x", "c/7/0"), ("y", "c/7/0")]
    assert not file.exists()


def test_a_run_that_was_killed_goes_on(many: Path, tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    code = f"""
import os, signal, zarrfeed.tools.verify.chunks
zarrfeed.tools.verify.chunks._SLICE_CHUNKS = 1
zarrfeed.tools.verify._SAVE_EVERY_S = 0.0
def on_progress(now):
    if now.done == 31:
        os.kill(os.getpid(), signal.SIGKILL)
zarrfeed.verify({str(many)!r}, progress_file={str(file)!r}, on_progress=on_progress)
"""
    done = subprocess.run([*warm.command(), "-c", code], check=False, timeout=240)
    assert done.returncode == -signal.SIGKILL
    again: list[int] = []
    report = zarrfeed.verify(many, progress_file=file, on_progress=lambda now: again.append(now.done))
    assert again == list(range(31, 81))  # what was checked last had not been saved
    assert sum(a.bad for a in report.arrays) == 2
    assert list(tmp_path.glob(".progress*")) == []


def test_restart_begins_anew(many: Path, tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    with pytest.raises(KeyboardInterrupt):
        zarrfeed.verify(many, progress_file=file, on_progress=interrupt_at(20, []))
    again: list[int] = []
    zarrfeed.verify(many, progress_file=file, restart=True, on_progress=lambda now: again.append(now.done))
    assert again == list(range(1, 81))


def test_an_array_whose_metadata_changed_is_checked_anew_and_the_others_are_not(many: Path, tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    with pytest.raises(KeyboardInterrupt):
        zarrfeed.verify(many, progress_file=file, on_progress=interrupt_at(60, []))
    zarr.open_array(many / "x").resize((30, 8))
    messages: list[str] = []
    again: list[int] = []
    report = zarrfeed.verify(
        many, progress_file=file, on_progress=lambda now: again.append(now.done), on_message=messages.append
    )
    assert messages[0] == "x: its metadata changed since it was checked; it is checked anew"
    assert again == list(range(21, 71))
    assert [a.chunks for a in report.arrays] == [30, 40]
    # attributes say nothing of chunks
    with pytest.raises(KeyboardInterrupt):
        zarrfeed.verify(many, progress_file=file, on_progress=interrupt_at(60, []))
    zarr.open_array(many / "x").attrs["units"] = "m"
    again.clear()
    zarrfeed.verify(many, progress_file=file, on_progress=lambda now: again.append(now.done))
    assert again == list(range(61, 71))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"what": "something else"}', "\x00\xff"])
def test_a_file_that_is_no_progress_file_is_refused_and_left_alone(content: str, many: Path, tmp_path: Path) -> None:
    file = tmp_path / "thesis.json"
    file.write_text(content)
    for restart in (False, True):
        with pytest.raises(zarrfeed.ConfigError, match="is no progress file"):
            zarrfeed.verify(many, progress_file=file, restart=restart)
    assert file.read_text() == content


def test_a_progress_file_of_another_store_is_refused_and_left_alone(many: Path, tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    with pytest.raises(KeyboardInterrupt):
        zarrfeed.verify(many, progress_file=file, on_progress=interrupt_at(5, []))
    before = file.read_text()
    make(LocalStore(tmp_path / "other.zarr"))
    with pytest.raises(zarrfeed.ConfigError, match=r"is of the store .*g\.zarr, not of .*other\.zarr"):
        zarrfeed.verify(tmp_path / "other.zarr", progress_file=file)
    assert file.read_text() == before


@pytest.mark.parametrize("when", [1, 10])
def test_a_full_disk_is_an_error_and_never_a_good_store(
    when: int, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = itertools.count(1)

    def full(_: int) -> None:
        if next(calls) >= when:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    file = tmp_path / "progress.json"
    assert cli.main(["verify", str(many), "--progress-file", str(file)]) == cli.EXIT_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"zarrfeed: [Errno {errno.ENOSPC}] progress file {file}: cannot be written: No space left")
    assert list(tmp_path.glob(".progress*")) == []


# -- the command -------------------------------------------------------------------------------------------------------


def test_exit_status_and_json(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    none = ["--progress-file", "none"]
    assert cli.main(["verify", str(many), "--json", "-", *none]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report == zarrfeed.verify(many).to_dict()
    assert [(f["array"], f["key"], f["cause"]) for f in report["findings"]] == [
        ("x", "c/7/0", "corrupt"),
        ("y", "c/7/0", "corrupt"),
    ]
    for name in ("x", "y"):
        (many / name / "c/7/0").unlink()
    assert cli.main(["verify", str(many), "--json", str(tmp_path / "report.json"), *none]) == 0
    assert "good: 78 chunks of 2 arrays decode, 2 missing" in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text())["ok"] is True
    assert cli.main(["verify", str(many), "--missing", "error", *none]) == 1
    assert "not good: 2 chunks missing" in capsys.readouterr().out
    assert cli.main(["verify", str(many), "--json", str(tmp_path / "nowhere" / "report.json"), *none]) == 2
    assert cli.main(["verify", str(tmp_path / "nothing"), *none]) == 2
    assert cli.main(["verify", str(many), "--arrays", "z", *none]) == 2
    assert cli.main(["verify", str(many), "--variables", "z", *none]) == 2
    assert cli.main(["verify", str(many), "--variables", "x", *none]) == 0
    assert cli.main(["verify", str(many), "--memory-budget", "1 furlong", *none]) == 2


def test_the_default_progress_file_is_among_the_users_states(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        zarrfeed.verify(many, progress_file="default", on_progress=interrupt_at(9, seen))
    (file,) = (tmp_path / "state/zarrfeed").iterdir()
    assert cli.main(["verify", str(many)]) == 1
    assert f"zarrfeed: 9 of 80 chunks were checked before, by {file}" in capsys.readouterr().err
    assert not file.exists()


def test_ctrl_c_says_that_the_next_run_goes_on(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "progress.json")

    @contextmanager
    def impatient() -> Iterator[Callable[[Progress], None]]:
        yield interrupt_at(7, [])

    with monkeypatch.context() as patched:
        patched.setattr("zarrfeed.tools.verify.terminal.show_progress", impatient)
        assert cli.main(["verify", str(many), "--progress-file", file]) == cli.EXIT_INTERRUPTED
    assert capsys.readouterr() == ("", "zarrfeed: interrupted; the same command goes on from here\n")
    assert cli.main(["verify", str(many), "--progress-file", file]) == 1
    assert capsys.readouterr().err == f"zarrfeed: 7 of 80 chunks were checked before, by {file}\n"


def test_on_a_terminal_there_is_a_bar(
    many: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main(["verify", str(many), "--progress-file", "none"]) == 1
    assert "80/80" in capsys.readouterr().err


def test_names_in_a_store_do_not_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = zarr.create_group(tmp_path / "g.zarr")
    make(group.store_path / "x")
    (tmp_path / "g.zarr/x").rename(tmp_path / "g.zarr/\x1b[2Jevil\nname")
    (tmp_path / "g.zarr/\x1b[2Jevil\nname/c/0/0").write_bytes(b"?")
    assert cli.main(["verify", str(tmp_path / "g.zarr"), "--progress-file", "none"]) == 1
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "\\x1b[2Jevil\\nname" in out


@pytest.mark.parametrize(
    "options",
    [
        {"missing": "maybe"},
        {"links": True},
        {"num_threads": 0},
        {"memory_budget": "0"},
        {"restart": 1},
        {"arrays": "x"},
    ],
)
def test_an_argument_that_cannot_work_is_refused(options: dict[str, Any], many: Path) -> None:
    with pytest.raises(zarrfeed.ConfigError, match=f"{next(iter(options))} = "):
        zarrfeed.verify(many, **options)


def test_threads_and_descriptors_do_not_stay(many: Path) -> None:
    zarrfeed.verify(many)

    with no_file_left(), no_thread_left():
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                zarrfeed.verify(many, on_progress=interrupt_at(3, []))
            zarrfeed.verify(many)


def test_several_stores_are_checked_and_those_with_problems_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        make(tmp_path / f"s{number}.zarr")
    bad = next(
        path for path in sorted((tmp_path / "s1.zarr").rglob("*")) if path.is_file() and path.name[0] not in "z."
    )
    bad.write_bytes(bad.read_bytes()[:-2])
    none = ["--progress-file", "none"]
    assert cli.main(["verify", f"{tmp_path}/s*.zarr", *none]) == 1
    shown = capsys.readouterr().out
    assert "3 stores: 2 without problems, 1 with problems" in shown
    assert "s1.zarr" in shown
    assert "s0.zarr" not in shown
    assert cli.main(["verify", str(tmp_path / "s0.zarr"), str(tmp_path / "gone.zarr"), "--json", "-", *none]) == 1
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert [one["ok"] for one in report["stores"]] == [True, False]
    assert "gone.zarr: no Zarr array is there" in captured.err
    assert cli.main(["verify", f"{tmp_path}/s*.zarr", "--progress-file", str(tmp_path / "p.json")]) == cli.EXIT_ERROR
    assert "one file for 3 stores" in capsys.readouterr().err
    assert cli.main(["verify", f"{tmp_path}/nothing-*.zarr", *none]) == cli.EXIT_ERROR


@two_users
def test_the_progress_file_of_another_user_is_not_believed_and_not_replaced() -> None:
    with folder_of_all() as folder:
        zarr.create_array(folder / "a.zarr", data=np.arange(40), chunks=(4,))
        file, link = folder / "progress.json", folder / "link.json"

        def attack() -> None:
            ProgressFile(file, str(folder / "a.zarr")).save({})
            link.symlink_to(folder / "not there")

        def check() -> None:
            before = file.read_bytes()
            for restart in (False, True):
                with pytest.raises(zarrfeed.ConfigError, match=rf"progress file .*: belongs to uid {OTHER}"):
                    zarrfeed.verify(folder / "a.zarr", progress_file=file, restart=restart)
                with pytest.raises(zarrfeed.ProgressFileError, match=rf"is a link that uid {OTHER} made"):
                    zarrfeed.verify(folder / "a.zarr", progress_file=link, restart=restart)
            assert file.read_bytes() == before
            assert not (folder / "not there").exists()

        as_user(OTHER, attack)
        as_user(VICTIM, check)
