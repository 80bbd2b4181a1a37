"""Zip archives: the store in one is found by any name, and stored members are read at their offsets."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed as zf
from zarrfeed import ConfigError, StoreReadError, ZarrDataset, ZarrIterableDataset
from zarrfeed.storage.access.zip_stores import locate_in_zip

ROWS = np.arange(24).reshape(8, 3)


def write_store(path: Path, zarr_format: int = 3) -> None:
    group = zarr.create_group(path, zarr_format=zarr_format)  # type: ignore[arg-type]
    group.create_array("x", data=ROWS, chunks=(4, 3))
    group.create_array("y", data=ROWS[:, 0], chunks=(8,))


def archive_of(folder: Path, path: Path, below: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        if below:
            archive.writestr("__MACOSX/._zarr.json", b"")  # as Finder adds
            archive.writestr(f"{below}/", b"")
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"{below}/{file.relative_to(folder)}".lstrip("/"))
    return path


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_store_is_read_by_any_name_and_below_any_folder(zarr_format: int, tmp_path: Path) -> None:
    write_store(tmp_path / "s", zarr_format)
    for name in ("a.zip", "a.ZIP", "a.zarr", "a.zarr.zip", "no suffix"):
        for below in ("", "s.zarr", "deep/down/s.zarr"):
            path = archive_of(tmp_path / "s", tmp_path / name, below)
            data = zf.open(path)
            where = (name, below)
            assert ZarrDataset(data)[[7, 0]]["x"].tolist() == ROWS[[7, 0]].tolist(), where
            with ZarrIterableDataset(pickle.loads(pickle.dumps(data)), batch_size=8) as batches:
                assert next(iter(batches))["y"].tolist() == ROWS[:, 0].tolist(), where
            assert not zf.verify(path).findings, where
    zf.pack(tmp_path / "a.zarr", tmp_path / "packed.zarr")
    assert ZarrDataset(tmp_path / "packed.zarr")[3]["x"].tolist() == ROWS[3].tolist()


def test_an_array_at_the_root_is_read(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x", data=ROWS, chunks=(4, 3))
    made = shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path, "x")
    assert ZarrDataset(made)[5].tolist() == ROWS[5].tolist()


def test_several_stores_in_an_archive_are_named(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_store(tmp_path / "top" / name)
    path = archive_of(tmp_path / "top", tmp_path / "several.zip")
    with pytest.raises(ConfigError, match=r"several Zarr nodes side by side, 'a', 'b'; give one of them") as caught:
        zf.open(path)
    expression = str(caught.value).partition("give one of them: ")[2]
    assert ZarrDataset(eval(expression))[2]["x"].tolist() == ROWS[2].tolist()


def test_a_damaged_archive_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_store(tmp_path / "s")
    whole = archive_of(tmp_path / "s", tmp_path / "whole.zip").read_bytes()
    (tmp_path / "part.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"part.zip: is a damaged zip file, or a part of one"):
        zf.open(tmp_path / "part.zip")


def test_nothing_is_located_in_what_is_no_zip_file(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"text")
    assert locate_in_zip(tmp_path / "a.zip") is None
    assert locate_in_zip(tmp_path) is None
    assert locate_in_zip(tmp_path / "none.zip") is None


def in_python(data: Any) -> list[bool]:
    """Return of each array whether Python reads its chunks."""
    return [layout.spec.in_python for field in data.resolved.fields for layout in field.arrays()]


def zipped(path: Path, method: int = zipfile.ZIP_STORED, comment: bytes = b"", **options: Any) -> Path:
    """Write an archive of arrays of every form: with holes, of one axis, in shards, of format 2, big-endian."""
    folder = path.with_suffix(".folder")
    group = zarr.create_group(folder)
    group.create_array("x", data=ROWS, chunks=(3, 2))
    group.create_array("sharded", data=ROWS, chunks=(1, 3), shards=(3, 3))
    holes = group.create_array("holes", shape=ROWS.shape, dtype=">i4", chunks=(2, 3), fill_value=7)
    holes[2:4] = ROWS[2:4]
    group.create_array("a/plain", data=ROWS[:, 0], chunks=(4,), compressors=None)
    with zipfile.ZipFile(path, "w", method, **options) as archive:
        archive.comment = comment
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder))
    return path


NAMES = ("x", "sharded", "holes", "a/plain")


def check_rows(data: Any, path: Path) -> None:
    """Compare epochs with what zarr-python reads."""
    group: Any = zarr.open_group(zarr.storage.ZipStore(path, mode="r"), mode="r")
    for shuffle in (False, True):
        for batch, index in ZarrIterableDataset(data, batch_size=3, shuffle=shuffle, return_index=True):
            for name in NAMES:
                assert np.array_equal(batch[name], group[name][...][index.numpy()]), name


def test_stored_members_are_read_by_the_engine_and_others_by_zarr_python(tmp_path: Path) -> None:
    stored = zipped(tmp_path / "stored.zip", comment=b"with a comment")
    with zipfile.ZipFile(tmp_path / "mixed.zip", "w") as archive, zipfile.ZipFile(stored) as source:
        for key in source.namelist():
            method = zipfile.ZIP_DEFLATED if key.startswith("x/c") else zipfile.ZIP_STORED
            archive.writestr(key, source.read(key), method)
    deflated = zipped(tmp_path / "deflated.zip", zipfile.ZIP_DEFLATED)
    self_extracting = tmp_path / "behind.zip"
    self_extracting.write_bytes(b"PK\x03\x04 is no header here" + stored.read_bytes())
    for path, expected in ((stored, [False] * 4), (self_extracting, [False] * 4), (deflated, [True] * 4)):
        data = zf.open(path, variables=NAMES)
        assert in_python(data) == expected, path
        check_rows(data, path)
    mixed = zf.open(tmp_path / "mixed.zip", variables=NAMES)
    assert sorted(in_python(mixed)) == [False, False, False, True]
    check_rows(mixed, tmp_path / "mixed.zip")


def test_an_open_store_and_copies_of_it_are_read_in_place(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip")
    store = zarr.storage.ZipStore(path, mode="r")
    group = zarr.open_group(store, mode="r")
    for source in (store, group):
        data = zf.open(source, variables=NAMES)
        assert not any(in_python(data))
        check_rows(data, path)
        check_rows(pickle.loads(pickle.dumps(data)), path)
    many = zf.open([path, zipped(tmp_path / "b.zip", zipfile.ZIP_DEFLATED)], variables=["x"])
    assert len(many) == 2 * len(ROWS)
    rows = [batch["x"].numpy() for batch in ZarrIterableDataset(many, batch_size=5)]
    assert np.array_equal(np.concatenate(rows), np.concatenate([ROWS, ROWS]))


def test_large_archives_have_their_sizes_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(zipped(tmp_path / "small.zip")) as source, zipfile.ZipFile(path, "w") as archive:
        for key in source.namelist():
            with archive.open(key, "w", force_zip64=True) as member:  # an extra field in each local header
                member.write(source.read(key))
    data = zf.open(path, variables=NAMES)
    assert not any(in_python(data))
    check_rows(data, path)


@pytest.mark.parametrize("at", ["header", "name", "method"])
def test_members_that_are_not_where_the_directory_says_are_an_error(at: str, tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip")
    with zipfile.ZipFile(path) as archive:
        begin = archive.getinfo("x/c/1/0").header_offset
    content = bytearray(path.read_bytes())
    content[begin + {"header": 0, "name": 30, "method": 8}[at]] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreReadError, match=r"a\.zip/x: the archive has no member x/c/1/0 where"):
        zf.open(path, variables=["x"])


def test_an_archive_that_changed_is_an_error(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip")
    data = zf.open(path, variables=["x"])
    os.utime(path, ns=(0, 0))
    with pytest.raises(StoreReadError, match=r"a\.zip has changed since it was opened"):
        list(ZarrIterableDataset(data, batch_size=3))


@pytest.mark.parametrize("shards", [None, (8, 3)])
def test_verify_compares_the_crc_of_stored_members(shards: Any, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "s", data=ROWS, chunks=(2, 3), shards=shards, compressors=None)
    path = archive_of(tmp_path / "s", tmp_path / "s.zip")
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(ROWS[2:4].tobytes())] ^= 1
    path.write_bytes(damaged)
    (finding,) = zf.verify(path).findings
    assert (finding.key, finding.chunks) == (("c/0/0", 4) if shards else ("c/1/0", 1))
    assert "Bad CRC-32" in finding.message
