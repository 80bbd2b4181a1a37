"""Where files lie in tar archives, and that an archive that is cut off or damaged is never taken for a shorter one."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from zarrfeed import ConfigError
from zarrfeed.base.errors import CorruptChunkError
from zarrfeed.packing.sources.images.tar_index import Member, members_of

BLOCK = 512
FILES = {"a.txt": b"first", "b.txt": b"x" * 700, "c.txt": b"", "d.txt": b"y" * 512}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "a.tar"
    with tarfile.open(made, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return made


def test_members_are_those_of_tarfile(path: Path) -> None:
    with tarfile.open(path) as tar:
        wanted = [Member(one.name, one.offset_data, one.size) for one in tar.getmembers()]
    found = list(members_of(str(path)))
    assert found == wanted
    data = path.read_bytes()
    assert {one.name: data[one.offset : one.offset + one.size] for one in found} == FILES


def test_an_archive_that_is_cut_off_anywhere_is_an_error(path: Path) -> None:
    data = path.read_bytes()
    last = max(one.offset + one.size for one in members_of(str(path)))
    whole = last + BLOCK  # with one block of zeros; tar writes two, and more to fill a record
    for length in [*range(0, whole, 128), *range(0, whole, BLOCK), whole - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(CorruptChunkError, match=r"a\.tar: (is no|ends at byte|the header at byte)"):
            list(members_of(str(path)))
    path.write_bytes(data[:whole])
    assert len(list(members_of(str(path)))) == len(FILES)


def test_a_damaged_header_is_an_error(path: Path) -> None:
    data = path.read_bytes()
    headers = [one.offset - BLOCK for one in members_of(str(path))]
    for begin in headers:
        path.write_bytes(data[:begin] + b"?" + data[begin + 1 :])
        with pytest.raises(CorruptChunkError, match=r"a\.tar: (is no tar archive|the header at byte \d+ is damaged)"):
            list(members_of(str(path)))


def test_no_tar_archive_is_an_error(path: Path) -> None:
    for data in (b"", b"no archive", b"no archive " * 100):
        path.write_bytes(data)
        with pytest.raises(CorruptChunkError, match=r"a\.tar: is no tar archive"):
            list(members_of(str(path)))
    with pytest.raises(FileNotFoundError, match=r"b\.tar"):
        list(members_of(str(path.with_name("b.tar"))))


def test_an_archive_behind_another_is_an_error(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(ConfigError, match=r"bytes lie behind the end of the archive.*tar --concatenate"):
        list(members_of(str(path)))


def test_an_archive_with_much_room_behind_its_end_is_whole(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(3 << 20))
    assert len(list(members_of(str(path)))) == len(FILES)


@pytest.mark.parametrize("magic", [b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"])
def test_compressed_archives_are_refused(magic: bytes, path: Path) -> None:
    path.write_bytes(magic + bytes(1000))
    with pytest.raises(ConfigError, match=r"a\.tar: is compressed; decompress it first"):
        list(members_of(str(path)))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (tarfile.SYMTYPE, r"a\.jpg is a link to another file; .*--dereference"),
        (tarfile.LNKTYPE, r"a\.jpg is a link to another file; .*--hard-dereference"),
        (tarfile.FIFOTYPE, r"a\.jpg is neither a file nor a folder"),
        (tarfile.CHRTYPE, r"a\.jpg is neither a file nor a folder"),
    ],
)
def test_what_is_no_file_is_refused(kind: bytes, message: str, path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("a.jpg")
        info.type, info.linkname = kind, "b.jpg"
        tar.addfile(info)
    with pytest.raises(ConfigError, match=message):
        list(members_of(str(path)))


@pytest.mark.parametrize("tar_format", ["gnu", "pax"])
def test_files_with_holes_are_refused(tar_format: str, path: Path) -> None:
    holes = path.with_name("holes.npy")
    with holes.open("wb") as file:
        file.truncate(10 << 20)
        file.seek(5 << 20)
        file.write(b"x" * 4096)
    command = ["tar", "--sparse", f"--format={tar_format}", "-cf", str(path), "-C", str(path.parent), holes.name]
    subprocess.run(command, check=True, timeout=240)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ConfigError, match=r"holes\.npy is stored with holes; .*without tar --sparse"):
        list(members_of(str(path)))
