"""Which kind of source paths are: by suffix, by content, and what cannot be meant."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tifffile
import zarr

from tests.support.pictures import numbered_png
from zarrfeed import ConfigError
from zarrfeed.base.errors import StoreReadError
from zarrfeed.packing.sources import detect
from zarrfeed.packing.sources.detect import call_of
from zarrfeed.packing.sources.source import SourceOptions


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"?")


def names(folder: Path, paths: tuple[str, ...]) -> list[str]:
    return [os.path.relpath(path, folder) for path in paths]


@pytest.mark.parametrize(
    ("suffixes", "kind"),
    [
        (".npy .npz .NPY", "npy"),
        (".nc .nc4 .cdf .grib .grb2", "xarray"),
        (".h5 .hdf5", "hdf5"),
        (".parquet .arrow .feather", "arrow"),
        (".tar", "webdataset"),
        (".jpg .JPEG .png .webp", "images"),
        (".zarr .zip .zarr.zip", "zarr"),
    ],
)
def test_files_by_their_suffixes(suffixes: str, kind: str, tmp_path: Path) -> None:
    for suffix in suffixes.split():
        touch(tmp_path, f"a{suffix}")
        assert call_of([f"{tmp_path}/a{suffix}"]).kind == kind


def tar_bytes() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    return file.getvalue()


def npy_bytes() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (npy_bytes(), "npy"),
        (b"CDF\x05 and more", "xarray"),
        (b"GRIB and more", "xarray"),
        (b"\x89HDF\r\n\x1a\n and more", "hdf5"),
        (b"PAR1 and more", "arrow"),
        (b"ARROW1 and more", "arrow"),
        (tar_bytes(), "webdataset"),
    ],
)
def test_files_without_a_known_suffix_by_their_content(data: bytes, kind: str, tmp_path: Path) -> None:
    for name in ("no_suffix", "a.data"):
        (tmp_path / name).write_bytes(data)
        assert call_of([str(tmp_path / name)]).kind == kind


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_stores_by_their_metadata(zarr_format: int, tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "store", zarr_format=zarr_format)  # type: ignore[arg-type]
    group.create_array("x", shape=(3,), dtype="i4")
    assert call_of([f"{tmp_path}/store"]).kind == "zarr"
    assert call_of([f"{tmp_path}/store/x"]).kind == "zarr"
    with pytest.raises(ConfigError, match=r"has stores in it; name them by a pattern such as .*/\*"):
        call_of([str(tmp_path)])


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (("a/0.jpg", "b/c/1.png", "labels.csv", "README.md"), "images"),
        (("0.JPG",), "images"),
        (("part-0.parquet", "_SUCCESS"), "arrow"),
        (("dataset_info.json", "data-00000-of-00001.arrow"), "arrow"),
        (("x/0.npy", ".hidden/0.jpg", ".0.h5"), "npy"),
        (("0.h5", "1.hdf5"), "hdf5"),
    ],
)
def test_folders_by_what_is_in_them(files: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    touch(tmp_path, *files)
    call = call_of([str(tmp_path)])
    assert (call.kind, call.paths) == (kind, (str(tmp_path),))


def test_folders_of_many_classes_and_links_in_circles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_LOOKED_AT", 3)
    for name in "abcdefgh":
        (tmp_path / name).mkdir()
        for other in "abcdefgh":
            (tmp_path / name / other).symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="nothing in it is of a known kind"):
        call_of([str(tmp_path)])
    touch(tmp_path, "h/0.jpg", "h/1.npy", "h/2.jpg", "h/3.h5")
    with pytest.raises(ConfigError, match=r"several kinds: images \(.*0\.jpg\), npy \(.*1\.npy\); give"):
        call_of([str(tmp_path)])


def test_patterns_and_folders_of_archives_become_paths_in_order(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{i:02d}.tar" for i in range(12)), "note.txt")
    wanted = [f"{i:02d}.tar" for i in range(12)]
    for one in ("*.tar", "", "{00..11}.tar"):
        call = call_of([f"{tmp_path}/{one}"])
        assert call.kind == "webdataset"
        assert names(tmp_path, call.paths) == wanted
    call = call_of([f"{tmp_path}/1?.tar", f"{tmp_path}/03.tar"])
    assert names(tmp_path, call.paths) == ["10.tar", "11.tar", "03.tar"]


def test_a_kind_is_taken_at_its_word(tmp_path: Path) -> None:
    touch(tmp_path, "a.npy", "b.jpg", "c.tar")
    assert call_of([f"{tmp_path}/a.npy"], "hdf5").kind == "hdf5"
    assert call_of([str(tmp_path)], "images").paths == (str(tmp_path),)
    assert names(tmp_path, call_of([str(tmp_path)], "webdataset").paths) == ["c.tar"]
    with pytest.raises(ConfigError, match=r"kind = 'image', must be one of .*did you mean 'images'"):
        call_of([str(tmp_path)], "image")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreReadError, match=r"empty: no \.tar file is in it"):
        call_of([f"{tmp_path}/empty"], "webdataset")


def test_urls_are_stores_or_files_that_are_read_in_place() -> None:
    urls = (
        "s3://bucket/a.zarr",
        "gs://bucket/b",
        "https://host/x.nc",
        "s3://bucket/x.h5/data",
        "s3://bucket/refs.json",
    )
    call = call_of(list(urls))
    assert (call.kind, call.paths) == ("zarr", urls)
    for suffix in ("tar", "parquet", "h5ad"):
        with pytest.raises(
            ConfigError, match=rf"s3://bucket/a\.{suffix}: such files are not packed from URLs; copy it"
        ):
            call_of([f"s3://bucket/a.{suffix}"])


@pytest.mark.parametrize(
    ("files", "paths", "message"),
    [
        ((), (), "no source is given"),
        (("a.npy", "b.h5", "c.h5"), ("*",), r"of several kinds: npy \('.*/a\.npy'\), hdf5 \('.*/b\.h5' and 1 more\)"),
        (("a.npy", "b.jpg"), ("",), r"has files of several kinds: npy \(.*a\.npy\), images \(.*b\.jpg\)"),
        (("a.npy",), ("a.npy", "*.npy"), r"sources: got '.*a\.npy' twice"),
        (("a.txt",), ("",), "nothing in it is of a known kind; kind must be one of zarr, npy"),
        (("a.zarr/zarr.json", "b.zarr/zarr.json"), ("",), r"has stores in it; .*such as .*/\*\.zarr$"),
        (("a.txt",), ("a.txt",), r"a\.txt: is of no known kind; kind must be one of zarr, npy"),
        (("a.tar.gz",), ("a.tar.gz",), r"a\.tar\.gz: is compressed: decompress it first"),
        (("a.tgz",), ("a.tgz",), r"a\.tgz: is compressed: decompress it first"),
        (
            ("a.nc.dmrpp",),
            ("a.nc.dmrpp",),
            r"a\.nc\.dmrpp: is DMR\+\+, which VirtualiZarr reads: give the",
        ),
        (("a.csv",), ("a.csv",), r"a\.csv: is a table; give it as targets of a folder of images"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    files: tuple[str, ...], paths: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    touch(tmp_path, *files)
    with pytest.raises(ConfigError, match=message):
        call_of([f"{tmp_path}/{path}" for path in paths])


def test_a_missing_path_is_an_error_with_a_similar_name(tmp_path: Path) -> None:
    touch(tmp_path, "train.npy")
    with pytest.raises(StoreReadError, match=r"trian\.npy: does not exist; did you mean 'train\.npy'"):
        call_of([f"{tmp_path}/trian.npy"])


def test_targets_are_for_images_alone_and_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.png").write_bytes(numbered_png(0))
    touch(tmp_path, "a.npy")
    (tmp_path / "t.csv").write_text("file,x\n0.png,7\n")
    monkeypatch.chdir(tmp_path)
    call = call_of(["0.png"], options=SourceOptions(targets="t.csv"))
    assert (call.paths, call.options.targets) == ((f"{tmp_path}/0.png",), f"{tmp_path}/t.csv")
    monkeypatch.chdir("/")
    assert [values.tolist() for values in call.open().read(0, 1)] == [[numbered_png(0)], [7], ["0.png"]]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="targets are for folders of images, and the source is of the kind npy"):
        call_of(["a.npy"], options=SourceOptions(targets="t.csv"))
    with pytest.raises(StoreReadError, match=r"u\.csv: does not exist; did you mean 't\.csv'"):
        call_of(["0.png"], options=SourceOptions(targets="u.csv"))


def test_one_tiff_is_an_array_unless_it_is_a_picture(tmp_path: Path) -> None:
    picture, path = np.zeros((8, 9), "u1"), str(tmp_path / "x.tif")
    for values, options, kind in (
        (picture, {}, "images"),
        (np.zeros((8, 9, 3), "u1"), {"photometric": "rgb"}, "images"),
        (picture.astype("u2"), {}, "zarr"),
        (picture.astype("f4"), {}, "zarr"),
        (np.stack([picture] * 2), {"photometric": "minisblack"}, "zarr"),
        (picture, {"ome": True}, "zarr"),
        (picture, {"imagej": True}, "zarr"),
    ):
        tifffile.imwrite(path, values, **options)
        assert call_of([path]).kind == kind
    tifffile.imwrite(tmp_path / "y.tif", picture.astype("u2"))
    assert call_of([str(tmp_path / "*.tif")]).kind == call_of([str(tmp_path)]).kind == "images"
    assert call_of([path], "images").kind == "images"
