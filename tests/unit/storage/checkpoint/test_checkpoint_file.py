"""Checkpoints are whole or not there, and what a reader hands out is what was written."""

from __future__ import annotations

import doctest
import io
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness.object_server import Act, ObjectServer, Request
from tests.support.examples import tries
from zarrfeed import checkpoint
from zarrfeed.base.errors import ClosedError, ConfigError, CorruptCheckpointError, StoreReadError, StoreWriteError
from zarrfeed.storage.checkpoint import checkpoint_file
from zarrfeed.storage.checkpoint.checkpoint_format import PART_BYTES, TRAILER_BYTES

SCHEMES = ("s3", "gs", "az")
MIB = 1 << 20


def content(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with ObjectServer() as server:
        yield server


class Where:
    """The location of a checkpoint: its URL, and the arguments that lead there."""

    def __init__(self, kind: str, directory: Path, server: ObjectServer) -> None:
        self.kind, self.server = kind, server
        self.url = str(directory / "run" / "step.pt") if kind == "file" else f"{kind}://bucket/run 1/step.pt"
        self.options: dict[str, Any] = {} if kind == "file" else {"storage_options": server.options(kind)}

    def writer(self, **more: Any) -> checkpoint.CheckpointWriter:
        return checkpoint.writer(self.url, **self.options | {"retries": 0} | more)

    def reader(self, **more: Any) -> checkpoint.CheckpointReader:
        return checkpoint.reader(self.url, **self.options | {"retries": 0} | more)

    def save(self, data: bytes, **more: Any) -> str:
        with self.writer(**more) as file:
            file.write(data)
        return file.digest

    def load(self, **more: Any) -> bytes:
        with self.reader(**more) as file:
            return file.read()

    def names(self) -> list[str]:
        """Return the names of all that is stored, hidden files and unfinished uploads included.

        Azure itself forgets blocks that were not committed, after a week.
        """
        if self.kind != "file":
            uploads = [] if self.kind == "az" else [name for name, parts in self.server.uploads.items() if parts]
            return self.server.keys() + uploads
        parent = Path(self.url).parent
        return sorted(found.name for found in parent.iterdir()) if parent.exists() else []


@pytest.fixture(params=["file", *SCHEMES])
def where(request: pytest.FixtureRequest, tmp_path: Path, server: ObjectServer) -> Where:
    return Where(request.param, tmp_path, server)


@pytest.mark.parametrize(
    ("size", "checksum"),
    [(size, "crc32c") for size in (0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 5)]
    + [(size, "sha256") for size in (0, PART_BYTES + 1)],
)
def test_what_was_written_is_read(where: Where, size: int, checksum: str) -> None:
    data = content(size)
    digest = where.save(data, checksum=checksum, memory_budget=2 * PART_BYTES)
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert where.save(data + b"x", checksum=checksum) != digest == where.save(data, checksum=checksum)
    with where.reader(memory_budget=2 * PART_BYTES) as file:
        assert file.read() == data
        assert (file.size, file.digest) == (size, digest)
    assert len(where.names()) == 1


def test_a_body_that_raises_leaves_the_older_checkpoint(where: Where) -> None:
    where.save(b"older")

    def write() -> None:
        with where.writer(memory_budget=2 * PART_BYTES) as file:
            file.write(content(3 * PART_BYTES))
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert where.load() == b"older"
    assert len(where.names()) == 1


def test_reads_of_any_kind_return_what_a_file_would(where: Where) -> None:
    data = content(3 * PART_BYTES + 1000)
    where.save(data)
    chooser = random.Random(3)
    expected = io.BytesIO(data)
    with where.reader(memory_budget=2 * PART_BYTES) as file:
        for _ in range(tries(25, 60)):
            position, size = chooser.randrange(len(data) + 100), chooser.choice((0, 1, 10_000, PART_BYTES + 3))
            assert file.seek(position) == expected.seek(position) == file.tell()
            assert file.read(size) == expected.read(size)
            assert file.tell() == expected.tell()
            buffer, wanted = bytearray(5000), bytearray(5000)
            assert file.readinto(buffer) == expected.readinto(wanted)
            assert buffer == wanted


def test_a_changed_byte_is_never_handed_out(where: Where) -> None:
    data = content(2 * PART_BYTES + 1000)
    where.save(data)
    chooser = random.Random(5)
    for _ in range(tries(5, 12)):
        offset = chooser.randrange(len(data) + TRAILER_BYTES + 12)
        flip(where, offset)
        with pytest.raises(CorruptCheckpointError, match=r"not those|damaged|without checksums"):
            read_all(where, data)
        flip(where, offset)
    assert where.load() == data


def read_all(where: Where, data: bytes) -> None:
    """Read until the end, and see that all of it is right."""
    with where.reader() as file:
        while piece := file.read(100_000):
            assert data[file.tell() - len(piece) : file.tell()] == piece


def flip(where: Where, offset: int) -> None:
    """Change a bit of what is stored, or change it back."""
    if where.kind == "file":
        with Path(where.url).open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 4]))
        return
    (stored,) = where.server.objects.values()
    for piece in stored.pieces:
        if offset < len(piece):
            piece[offset] ^= 4
            return
        offset -= len(piece)
    raise AssertionError("no such byte")


def test_a_cut_checkpoint_is_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "step.pt", content(PART_BYTES + 1000)
    with checkpoint.writer(path) as file:
        file.write(data)
    whole = path.read_bytes()
    for size in (0, 1, 1000, len(data), len(whole) - TRAILER_BYTES, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptCheckpointError, match="without checksums"):
            checkpoint.reader(path)


def test_a_plain_checkpoint_is_read_where_that_is_allowed(tmp_path: Path) -> None:
    data = content(PART_BYTES + 5)
    (tmp_path / "plain").write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="allow_plain=True"):
        checkpoint.reader(tmp_path / "plain")
    with checkpoint.reader(tmp_path / "plain", allow_plain=True) as file:
        assert file.digest is None
        assert file.read() == data


def test_a_write_that_failed_cannot_be_closed_as_if_it_had_not(where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    file = where.writer()
    monkeypatch.setattr(file._sink, "write", fail)
    with pytest.raises(StoreWriteError, match="full"):
        file.write(b"x")
    with pytest.raises(StoreWriteError, match="failed before"):
        file.close()
    with pytest.raises(ClosedError):
        file.write(b"x")
    assert where.names() == []


def fail(_data: object) -> None:
    raise StoreWriteError(28, "full")


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [(scheme, kind) for scheme in SCHEMES for kind in ("create", "part", "complete", "put")][:-4]
    + [("az", kind) for kind in ("part", "complete", "put")],  # Azure has no request that begins an upload
)
def test_a_refused_request_leaves_the_older_checkpoint(
    tmp_path: Path, server: ObjectServer, scheme: str, kind: str
) -> None:
    where = Where(scheme, tmp_path, server)
    where.save(b"older")

    def refuse(request: Request) -> Act | None:
        return Act("status", 403) if request.kind == kind else None

    server.fault = refuse
    with pytest.raises(StoreWriteError, match="403"):
        where.save(content(5 if kind == "put" else 2 * PART_BYTES), memory_budget=2 * PART_BYTES)
    server.fault = None
    assert server.hits
    assert where.load() == b"older"


def test_there_is_no_checkpoint(where: Where) -> None:
    with pytest.raises(StoreReadError, match="no checkpoint is there"):
        where.reader()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory_budget": 1000}, "memory_budget"),
        ({"memory_budget": "much"}, "memory_budget"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"retries": -1}, "retries"),
        ({"timeout": 0}, "timeout"),
        ({"store": "s3"}, "store"),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    (tmp_path / "plain").write_bytes(b"")
    with pytest.raises(ConfigError, match=message):
        checkpoint.writer(tmp_path / "new", **arguments)
    with pytest.raises(ConfigError, match=message):
        checkpoint.reader(tmp_path / "plain", **{"allow_plain": True} | arguments)
    assert list(tmp_path.iterdir()) == [tmp_path / "plain"]


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/run/", "s3://bucket/a?b", "", "run/", 5])
def test_locations_that_name_no_checkpoint_are_refused(url: Any) -> None:
    for open_checkpoint in (checkpoint.writer, checkpoint.reader):
        with pytest.raises(ConfigError):
            open_checkpoint(url)


def test_the_examples_of_the_docstrings_do_what_they_show() -> None:
    report: list[str] = []
    tests = [test for test in doctest.DocTestFinder().find(checkpoint_file) if test.examples]
    assert {test.name.rpartition(".")[2] for test in tests} == {"reader", "writer"}
    for test in tests:
        doctest.DocTestRunner().run(test, out=report.append)
    assert report == []
