"""Samples of tar archives as WebDataset has them. The oracles are tarfile, and the real ShardWriter where it is."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.pictures import encoded, numbered_png, picture
from zarrfeed import ConfigError
from zarrfeed.base.errors import CorruptChunkError, StoreReadError
from zarrfeed.engine.image_decoder import pixels_of
from zarrfeed.packing.sources.images.webdataset_source import WebDatasetSource
from zarrfeed.packing.sources.source import SourceCall, SourceOptions
from zarrfeed.spec.fields.images import Images

Files = list[tuple[str, bytes]]


def npy(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def files_of(number: int) -> Files:
    """Return the files of a sample, which show its number."""
    key = f"{'train/' if number % 2 else ''}{number:06d}"
    return [
        (f"{key}.PNG", numbered_png(number)),
        (f"{key}.cls", b"%d\n" % (number - 3)),
        (f"{key}.txt", f"n° {number}".encode()),
        (f"{key}.json", b'{"n": %d}' % number),
        (f"{key}.left.npy", npy(np.full((2, 3), number, ">f4"))),
        (f"{key}.bin", b"\0" * number),
    ]


def archive(path: Path, files: Files, tar_format: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=tar_format) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def two_archives(folder: Path) -> list[Path]:
    first, second = ([one for i in numbers for one in files_of(i)] for numbers in (range(5), range(5, 12)))
    return [archive(folder / "0.tar", first), archive(folder / "1.tar", second)]


def opened(*paths: Path, **options: Any) -> WebDatasetSource:
    return WebDatasetSource([str(path) for path in paths], SourceOptions(**options))


def columns(source: WebDatasetSource, rows: list[Any]) -> dict[str, Any]:
    return dict(zip([field.name for field in source.fields], rows, strict=True))


def check_samples(found: dict[str, Any], numbers: list[int]) -> None:
    """Check samples against the files that were written."""
    written = [dict(files_of(i)) for i in numbers]
    assert found["key"].tolist() == [next(iter(one)).partition(".")[0] for one in written]
    assert found["png"].tolist() == [numbered_png(i) for i in numbers]
    assert found["cls"].dtype == np.int64
    assert found["cls"].tolist() == [i - 3 for i in numbers]
    assert found["txt"].tolist() == [f"n° {i}" for i in numbers]
    assert found["json"].tolist() == [f'{{"n": {i}}}' for i in numbers]
    assert found["left.npy"].dtype == ">f4"
    np.testing.assert_array_equal(found["left.npy"], np.full((1, 2, 3), 1) * np.array(numbers)[:, None, None])
    assert found["bin"].tolist() == [b"\0" * i for i in numbers]


def test_fields_are_what_extensions_say(tmp_path: Path) -> None:
    source = opened(*two_archives(tmp_path))
    assert [(one.name, one.kind, str(one.dtype), one.shape) for one in source.fields] == [
        ("png", "bytes", "object", ()),
        ("cls", "number", "int64", ()),
        ("txt", "text", "object", ()),
        ("json", "text", "object", ()),
        ("left.npy", "number", ">f4", (2, 3)),
        ("bin", "bytes", "object", ()),
        ("key", "text", "object", ()),
    ]
    assert (source.num_samples, source.block_samples, source.notes) == (12, 1, ())
    check_samples(columns(source, source.read(0, 12)), list(range(12)))
    check_samples(columns(source, source.read(3, 7)), [3, 4, 5, 6])
    source.close()


def test_samples_are_taken_in_any_order_by_several_threads(tmp_path: Path) -> None:
    source = opened(*two_archives(tmp_path))
    rng = np.random.default_rng(1)

    def take(numbers: list[int]) -> None:
        check_samples(columns(source, source.take(np.array(numbers))), numbers)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(take, [rng.permutation(12)[:8].tolist() for _ in range(40)]))


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_folders_and_files_that_are_no_samples(tar_format: int, tmp_path: Path) -> None:
    long = "folder/" * 12 + "x" * (90 if tar_format == tarfile.USTAR_FORMAT else 200) + "é"
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tar_format, encoding="utf-8") as tar:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name in ("__meta__/a.json", "README", f"{long}.jpg", "folder/._0.jpg", f"{long}.cls", "0.jpg", "0.cls"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"7"))
    source = opened(path)
    assert [values.tolist() for values in source.read(0, 2)] == [[b"7", b"7"], [7, 7], [long, "0"]]
    assert source.notes == (
        "3 files that belong to no sample are left out: '__meta__/a.json', 'README', 'folder/._0.jpg'",
    )


def test_archives_of_the_program_tar(tmp_path: Path) -> None:
    for name, data in files_of(3):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    command = ["tar", "--sort=name", "-cf", f"{tmp_path}/a.tar", "-C", f"{tmp_path}/in", "."]
    subprocess.run(command, check=True, timeout=240)
    source = opened(tmp_path / "a.tar")
    found = columns(source, source.read(0, 1))
    assert found["key"].tolist() == ["./train/000003"]
    check_samples({**found, "key": np.array(["train/000003"])}, [3])


@pytest.mark.parametrize("size", [(3, 4), (2, 2)])
def test_with_a_size_images_are_what_decode_makes_of_them(size: tuple[int, int], tmp_path: Path) -> None:
    images = [encoded(picture(i, 20, 30), "jpeg") for i in range(3)]
    files = [one for i, data in enumerate(images) for one in ((f"{i}.jpg", data), (f"{i}.seg.png", numbered_png(i)))]
    source = opened(archive(tmp_path / "a.tar", files), size=size)
    found = columns(source, source.read(0, 3))
    np.testing.assert_array_equal(found["jpg"], [pixels_of(data, Images("RGB", size)) for data in images])
    assert found["seg.png"][:, 0, 0, 0].tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"size = .*: none of the fields key is an image"):
        opened(tmp_path / "a.tar", size=size, variables=("key",))


def test_variables_leave_out_what_some_samples_lack(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar", [("0.jpg", b"a"), ("1.jpg", b"b"), ("1.txt", b"c"), ("2.jpg", b"d")])
    with pytest.raises(ConfigError, match=r"a\.tar: 0 has no file \.txt, which others have; .*variables chooses"):
        opened(path)
    assert [values.tolist() for values in opened(path, variables=("jpg",)).read(0, 3)] == [[b"a", b"b", b"d"]]
    with pytest.raises(ConfigError, match=r"variables: 'png' is not in .*a\.tar, which has jpg, txt, key"):
        opened(path, variables=("png",))


def test_files_of_a_sample_that_are_apart_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar", [("0.jpg", b"a"), ("1.jpg", b"b"), ("0.cls", b"0"), ("1.cls", b"1")])
    with pytest.raises(ConfigError, match=r"0 has no file .*must be next to each other"):
        opened(path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no sample is there"),
        ([("README", b"x")], "no sample is there; files must be called as in 0001.jpg"),
        ([("0.jpg", b"a"), ("0.JPG", b"b")], r"0\.JPG: the sample has two files \.jpg"),
        ([("0.jpg", b"")], r"a\.tar: 0\.jpg: is empty, and 0 more are"),
        ([("0.", b"a")], r"a\.tar: 0\.: '' cannot be the name of an array"),
        ([("0.__x", b"a")], "'__x' cannot be the name of an array"),
        ([("0.key", b"a")], r"files \.key cannot be a field"),
        ([("0.npy", npy(["a", "b"]))], r"a\.tar: 0\.npy: has the dtype <U1, must be numbers"),
        ([(os.fsdecode(b"\xff.jpg"), b"a")], r"a\.tar: the key .udcff is not UTF-8"),
    ],
)
def test_archives_that_cannot_be_meant_are_refused(files: Files, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(archive(tmp_path / "a.tar", files))


@pytest.mark.parametrize(
    ("name", "good", "bad", "message"),
    [
        ("cls", b"1", b"one", "cannot be decoded: invalid literal"),
        ("cls", b"1", b"9" * 19, "does not fit in int64"),
        ("txt", b"1", b"\xff", "cannot be decoded: 'utf-8'"),
        ("npy", npy(np.zeros(3)), b"no", "cannot be decoded"),
        ("npy", npy(np.zeros(3)), npy(np.zeros(4)), r"has float64 of shape \(4,\), the first sample float64 of \(3,\)"),
        ("npy", npy(np.zeros(3)), npy(np.zeros(3, "f4")), r"has float32 of shape \(3,\), the first sample float64"),
        ("jpg", numbered_png(0), b"no", "cannot be decoded as an image"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_named(
    name: str, good: bytes, bad: bytes, message: str, tmp_path: Path
) -> None:
    path = archive(tmp_path / "a.tar", [(f"0.{name}", good), (f"1.{name}", bad)])
    source = opened(path, size=(2, 2) if name == "jpg" else None)
    assert len(source.read(0, 1)[0]) == 1
    with pytest.raises(CorruptChunkError, match=message) as caught:
        source.read(0, 2)
    assert str(caught.value).startswith(f"{path}: 1.{name}: ")


def test_an_archive_that_changes_or_goes_is_an_error_and_another_fingerprint(tmp_path: Path) -> None:
    first, second = two_archives(tmp_path)
    source = opened(first, second)
    assert opened(first, second).fingerprint == source.fingerprint
    assert opened(second, first).fingerprint != source.fingerprint
    assert len(source.fingerprint) < 200
    os.utime(second, ns=(0, 0))
    assert opened(first, second).fingerprint != source.fingerprint
    source.read(0, 5)
    with pytest.raises(StoreReadError, match=r"1\.tar: has changed since the source was opened"):
        source.read(4, 6)
    second.unlink()
    with pytest.raises(FileNotFoundError, match=r"1\.tar"):
        source.read(4, 6)


def test_a_call_opens_it_again(tmp_path: Path) -> None:
    paths = tuple(map(str, two_archives(tmp_path)))
    source = SourceCall("webdataset", paths).open()
    assert isinstance(source, WebDatasetSource)
    assert (source.kind, source.num_samples, source.constants, source.attributes) == ("webdataset", 12, (), {})


def test_compressed_archives_are_refused(tmp_path: Path) -> None:
    path = two_archives(tmp_path)[0]
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ConfigError, match=r"0\.tar: is compressed; decompress it first \(gunzip\)"):
        opened(path)


def test_shards_of_the_real_writer(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.ShardWriter(f"{tmp_path}/%03d.tar", maxcount=4, verbose=0) as writer:
        for i in range(10):
            image = np.full((4, 5, 3), i, np.uint8)
            written = {"png": image, "cls": i, "json": {"n": i}, "mask.npy": np.full(3, i), "txt": f"t{i}"}
            writer.write({"__key__": f"s{i:03d}", **written})
    paths = sorted(tmp_path.glob("*.tar"))
    assert len(paths) == 3
    source = opened(*paths, size=(4, 5))
    found = columns(source, source.read(0, 10))
    assert found["key"].tolist() == [f"s{i:03d}" for i in range(10)]
    assert found["png"].shape == (10, 3, 4, 5)
    for i in range(10):
        assert (found["png"][i] == i).all()
        assert (found["mask.npy"][i] == i).all()
    assert found["cls"].tolist() == list(range(10))
    assert found["txt"].tolist() == [f"t{i}" for i in range(10)]
    assert found["json"].tolist() == [f'{{"n": {i}}}' for i in range(10)]
