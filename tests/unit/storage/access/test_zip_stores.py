"""Zip archives: the store in one is found, whatever the file and the folder in it are called."""

from __future__ import annotations

import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zarr

import zarrfeed as zf
from zarrfeed import ConfigError, ZarrDataset, ZarrIterableDataset
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
