"""The error for a path without a Zarr node: it says what lies there, and the line in it works."""

from __future__ import annotations

import json
import re
import shlex
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from PIL import Image

import zarrfeed as zf
from zarrfeed import ConfigError, StoreReadError, ZarrDataset, ZarrIterableDataset
from zarrfeed.tools import cli

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = np.arange(24.0).reshape(8, 3)


def hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = ROWS


def cells(path: Path) -> None:
    names = [pd.DataFrame(index=pd.Index([f"n{i}" for i in range(n)], dtype=object)) for n in ROWS.shape]
    anndata.AnnData(ROWS, *names).write_h5ad(path)


def images(folder: Path) -> None:
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((4, 5, 3), i, np.uint8)).save(folder / label / f"{i}.png")


def arrays(folder: Path) -> None:
    folder.mkdir()
    for i in range(2):
        np.save(folder / f"{i}.npy", ROWS[i:])


def tar_of_samples(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for i in range(4):
            (path.parent / "value.cls").write_text(str(i))
            archive.add(path.parent / "value.cls", f"{i}.cls")
    (path.parent / "value.cls").unlink()


#: Name -> what makes it, and words of the message.
READ_TODAY: dict[str, tuple[Callable[[Path], object], str]] = {
    "it's.parquet": (lambda path: pq.write_table(pa.table({"x": ROWS[:, 0]}), path), "a Parquet, Arrow or Feather"),
    "samples.tar": (tar_of_samples, "a tar archive"),
    "one.png": (lambda path: Image.new("RGB", (4, 4)).save(path), "an image"),
    "photos": (images, "the folder has images in it"),
    "many": (arrays, "the folder has files of NumPy arrays in it: give them as a pattern"),
}


@pytest.mark.parametrize("name", READ_TODAY)
def test_the_line_in_the_message_reads_what_is_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make, words = READ_TODAY[name]
    make(tmp_path / name)
    for way in (zf.open, zf.verify, ZarrDataset):
        with pytest.raises(
            (ConfigError, StoreReadError), match=f"{re.escape(name)}: no Zarr array is there: .*{words}"
        ):
            way(name)
    with pytest.raises((ConfigError, StoreReadError)) as caught:
        zf.open(name)
    command = re.search(r"`zarrfeed (.*?)`", str(caught.value))
    assert command, str(caught.value)
    words_of_command = [word.replace("NEW", "new") for word in shlex.split(command[1])]
    assert cli.main(words_of_command) == 0, capsys.readouterr().err
    assert len(zf.open(words_of_command[-1])) > 0
    assert zarr.open(words_of_command[-1], mode="r")


def netcdf(path: Path) -> None:
    xr.Dataset({"x": (("t", "y"), ROWS)}).to_netcdf(path, engine="h5netcdf")


@pytest.mark.parametrize(
    ("name", "make", "variable"),
    [
        ("cells.h5ad", cells, "X"),
        ("a.h5", hdf5, "x"),
        ("an hdf5 file", hdf5, "x"),
        ("hdf5.zarr", hdf5, "x"),
        ("a.nc", netcdf, "x"),
    ],
)
def test_hdf5_is_read_in_place_whatever_it_is_called(
    name: str, make: Callable[[Path], None], variable: str, tmp_path: Path
) -> None:
    make(tmp_path / name)
    (batch,) = ZarrIterableDataset(zf.open(tmp_path / name, variables=[variable]), batch_size=8)
    assert np.array_equal(batch[variable], ROWS)


@pytest.mark.parametrize(("suffix", "make"), [("nc", netcdf), ("h5", hdf5), ("npy", lambda path: np.save(path, ROWS))])
def test_a_folder_of_files_that_are_read_in_place_is_given_as_a_pattern(
    suffix: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    for name in "ab":
        make(tmp_path / f"{name}.{suffix}")
    with pytest.raises(StoreReadError, match=rf"in it: give them as a pattern, '{tmp_path}/\*\.{suffix}'") as caught:
        zf.open(tmp_path)
    assert len(zf.open(re.findall("'(.*?)'", str(caught.value))[0])) == 2 * len(ROWS)


def test_a_packed_store_beside_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (4, 4)).save("a.png")
    zarr.create_array("a.zarr", data=ROWS)
    with pytest.raises(ConfigError, match=r"give 'a.zarr' beside it, .*`zarrfeed pack a.png -o NEW.zarr`"):
        zf.open("a.png")


def store(path: str) -> None:
    group = zarr.create_group(path)
    group.create_array("x", data=ROWS, chunks=(4, 3))


def tar_of_store(path: str) -> None:
    store("inner.zarr")
    with tarfile.open(path, "w") as archive:
        archive.add("inner.zarr")


def zip_of_store(_: str) -> None:
    store("s")
    with zipfile.ZipFile("s.zip", "w") as archive:
        for file in sorted(Path("s").rglob("*")):
            archive.write(file, file.relative_to("s"))


def zip_of_text(path: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text")


def folder_with(folder: str, *names: str) -> None:
    for name in names:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def stores(folder: str, *names: str) -> None:
    for name in names:
        store(f"{folder}/{name}")


#: Path that is opened -> function that makes it, the error, and its message.
OTHERS: dict[str, tuple[Callable[[str], Any], type[Exception], str]] = {
    "empty.zarr": (lambda p: Path(p).mkdir(), StoreReadError, "the folder is empty"),
    "empty.h5": (lambda p: Path(p).touch(), ConfigError, "the file is empty"),
    "table.csv": (lambda p: Path(p).write_text("a,b"), ConfigError, "is a table"),
    "x.tar.gz": (lambda p: Path(p).write_bytes(b"\x1f\x8b"), ConfigError, "decompress it first"),
    "a.pt": (lambda p: Path(p).write_bytes(b"x"), ConfigError, r"zarrfeed\.objects\.ObjectIterableDataset"),
    "store.tar": (tar_of_store, ConfigError, r"tar archive of a Zarr store.*: tar -xf store.tar -C \."),
    "text.zip": (zip_of_text, ConfigError, "a zip file without a Zarr store: unzip it"),
    "refs.json": (
        lambda p: Path(p).write_text(json.dumps({"version": 1, "refs": {}})),
        ConfigError,
        "a file of references .* without a document of Zarr",
    ),
    "repo": (lambda p: folder_with(p, "snapshots/a", "manifests/b"), StoreReadError, "an Icechunk repository"),
    "n5": (lambda p: folder_with(p, "attributes.json"), StoreReadError, "an N5 store"),
    "notes": (lambda p: folder_with(p, "a.txt"), StoreReadError, "has none of zarr.json, .zarray, .zgroup"),
    "nested": (lambda p: Path(p, "a", "b").mkdir(parents=True), StoreReadError, "folders in it, and no file"),
    "mixed": (lambda p: folder_with(p, "a.npy", "b.png"), StoreReadError, "files of NumPy arrays, images in it"),
    "plates": (lambda p: stores(p, "b.zarr", "a.zarr"), StoreReadError, r"'a.zarr', 'b.zarr': .*'plates/\*.zarr'"),
    "one": (lambda p: stores(p, "a.zarr"), StoreReadError, r"'a.zarr': give that path, such as 'one/a.zarr'"),
    "s.zarr/zarr.json": (lambda _: store("s.zarr"), ConfigError, "a part of the Zarr store s.zarr: give that path"),
    "s.zarr/x/c/0": (lambda _: store("s.zarr"), StoreReadError, "a part of the Zarr store s.zarr/x: give that path"),
    "s.zarr/x/c/0/0": (lambda _: store("s.zarr"), ConfigError, "a part of the Zarr store s.zarr/x: give that path"),
    "s.zarr/xx": (lambda _: store("s.zarr"), StoreReadError, "does not exist; did you mean 'x'"),
    "trian/x.zarr": (lambda _: store("train/x.zarr"), StoreReadError, "trian is missing; did you mean 'train'"),
    "link.zarr": (lambda p: Path(p).symlink_to("gone"), StoreReadError, "a link to something that is missing"),
    "s.zip/y": (zip_of_store, StoreReadError, r"the file s.zip has no array 'y'; `zarrfeed info s.zip --tree`"),
    "a.csv/x": (lambda _: Path("a.csv").touch(), StoreReadError, "a.csv is a file, and no folder"),
    "~/no such store.zarr": (lambda _: None, StoreReadError, "does not replace the ~ .*/no such store.zarr'"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_there_is_said(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, error, words = OTHERS[name]
    make(name)
    for given in (name, Path(name), {"a": name}):
        with pytest.raises(error, match=f"{re.escape(name)}: no Zarr array is there: .*{words}"):
            zf.open(given)
    if error is ConfigError:
        with pytest.raises(ConfigError):
            zf.open(f"file://{tmp_path}/{name}")
    else:
        with pytest.raises(StoreReadError) as caught:
            zf.open(name)
        assert caught.value.errno == 2
