"""Samples of NumPy's files are those that NumPy itself reads, whichever files, order and axis they lie in."""

from __future__ import annotations

import io
import json
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from zarrfeed import ConfigError, StoreReadError
from zarrfeed.packing.sources.arrays import npy_source
from zarrfeed.packing.sources.arrays.npy_source import NpySource
from zarrfeed.packing.sources.source import SourceCall, SourceOptions

PLAIN, RUNS, WHOLE = SourceOptions(), SourceOptions(files_are="runs"), SourceOptions(files_are="samples")


def numbered(count: int, shape: tuple[int, ...] = (3, 4), first: int = 0, dtype: str = "f4") -> npt.NDArray[Any]:
    """Return samples of different items, each of which begins with the sample's number, times 100."""
    size = int(np.prod(shape))
    return (100 * np.arange(first, first + count)[:, None] + np.arange(size)).reshape(count, *shape).astype(dtype)


def saved(path: Path, array: npt.NDArray[Any]) -> str:
    np.save(path, array)
    return str(path)


def test_files_follow_each_other_and_threads_read_them(tmp_path: Path) -> None:
    lengths = [5, 1, 0, 7]
    starts = np.cumsum([0, *lengths])
    arrays = [numbered(n, first=int(first)) for n, first in zip(lengths, starts[:-1], strict=True)]
    for number, array in enumerate(arrays):
        saved(tmp_path / f"{number}.npy", array.astype(">f4") if number == 1 else array)
    expected = np.concatenate(arrays)
    source = SourceCall("npy", (str(tmp_path),)).open()
    assert (source.num_samples, source.block_samples, source.fields[0].mean_bytes) == (13, 1, 48)
    assert source.fields[0].dtype == np.float32
    pairs = [(begin, end) for begin in range(14) for end in range(begin, 14)]
    with ThreadPoolExecutor(4) as threads:
        for (begin, end), rows in zip(pairs, threads.map(lambda pair: source.read(*pair), pairs), strict=True):
            assert np.array_equal(rows[0], expected[begin:end])
    wanted = np.array([12, 0, 5, 6, 0, 4], np.int64)
    assert np.array_equal(source.take(wanted)[0], expected[wanted])
    assert source.take(wanted[:0])[0].shape == (0, 3, 4)
    source.close()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_any_axis_in_any_order(tmp_path: Path, axis: int, order: Any) -> None:
    samples = numbered(10, (3, 4), dtype="i8")
    path = saved(tmp_path / "x.npy", np.asarray(np.moveaxis(samples, 0, axis), order=order))
    source = NpySource([path], SourceOptions(sample_axis=axis))
    assert np.array_equal(source.read(2, 9)[0], samples[2:9])
    in_one_run = (axis, order) in ((0, "C"), (-1, "F"))
    assert (source.block_samples == 1) == in_one_run
    if not in_one_run:
        with pytest.raises(ValueError, match="samples lie together"):
            source.take(np.arange(2))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_members_are_fields(tmp_path: Path, save: Any) -> None:
    times = np.arange("2020-01", "2020-07", dtype="M8[M]")
    parts = np.zeros(6, [("id", ">i2"), ("xyz", "f4", (3,))])
    parts["id"], parts["xyz"] = np.arange(6), numbered(6, (3,))
    arrays = {
        "x": numbered(6),
        "y": np.arange(6),
        "name": np.array([f"n{i}" for i in range(6)]),
        "t": times,
        "p": parts,
    }
    save(tmp_path / "x.npz", **arrays, version=np.int64(3))
    source = NpySource([str(tmp_path / "x.npz")], PLAIN)
    made = dict(zip([field.name for field in source.fields], source.read(1, 5), strict=True))
    fields = {field.name: field for field in source.fields}
    assert list(made) == ["name", "p.id", "p.xyz", "t", "x", "y"]
    assert np.array_equal(made["x"], arrays["x"][1:5])
    assert np.array_equal(made["p.xyz"], parts["xyz"][1:5])
    assert np.array_equal(made["p.id"], [1, 2, 3, 4])
    assert (made["name"].tolist(), fields["name"].kind) == (["n1", "n2", "n3", "n4"], "text")
    assert np.array_equal(made["t"].astype("M8[D]"), times[1:5].astype("M8[D]"))
    assert fields["t"].attributes == {"units": "days since 1970-01-01", "calendar": "proleptic_gregorian"}
    assert {one.name: int(one.values) for one in source.constants} == {"version": 3}
    two = NpySource([str(tmp_path / "x.npz")], SourceOptions(variables=("y", "x")))
    assert [field.name for field in two.fields] == ["x", "y"]
    assert np.array_equal(two.take(np.array([4, 2]))[1], [4, 2])


def test_the_fingerprint_is_that_of_the_samples(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.npy", numbered(4))
    source = NpySource([path], PLAIN)
    assert json.loads(source.fingerprint)["samples"] == 4
    assert NpySource([path], PLAIN).fingerprint == source.fingerprint
    assert NpySource([path, path], RUNS).fingerprint != source.fingerprint
    os.utime(path, ns=(1, 1))
    assert NpySource([path], PLAIN).fingerprint != source.fingerprint
    with pytest.raises(StoreReadError, match=r"x\.npy: has changed"):
        source.read(0, 1)


def test_a_file_that_is_cut_short_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "x.npy", numbered(1000))
    source = NpySource([path], PLAIN)
    monkeypatch.setattr(npy_source.NpySource.__mro__[1], "_read_checked", lambda self, *piece: self._read_file(*piece))
    os.truncate(path, 500)
    with pytest.raises(StoreReadError, match=r"x\.npy: the file ends at byte 500"):
        source.read(0, 1000)


def test_what_does_not_fit_is_refused_by_the_name_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(message: str, *paths: str, options: SourceOptions = PLAIN) -> None:
        with pytest.raises(ConfigError, match=message):
            NpySource(paths, options)

    good = saved(tmp_path / "good.npy", numbered(4))
    refused(
        r"b\.npy: 'data' is float64 of shape \(samples, 3, 4\), in the first",
        good,
        saved(tmp_path / "b.npy", numbered(4, dtype="f8")),
    )
    refused(r"c\.npy: 'data' is .*\(samples, 3, 5\)", good, saved(tmp_path / "c.npy", numbered(4, (3, 5))))
    refused(
        r"d\.npy: has the shape \(\d+, 3, 4\), and no axis 3",
        saved(tmp_path / "d.npy", numbered(4)),
        options=SourceOptions(sample_axis=3),
    )
    refused(r"f\.npy: 'data' has samples of shape \(0,\), which", saved(tmp_path / "f.npy", np.zeros((4, 0))))
    refused(r"e\.npy: holds no samples", saved(tmp_path / "e.npy", numbered(0)))
    refused("no such file", str(tmp_path / "missing.npy"))
    refused("no such file, and no folder", str(tmp_path / "[0-9].npy"))
    refused("are local files", "s3://bucket/x.npy")
    refused("variables: 'z' is not in", good, options=SourceOptions(variables=("z",)))
    objects = np.array([{}, None], object)
    np.save(tmp_path / "o.npy", objects, allow_pickle=True)
    refused(r"o\.npy: .*Python objects", str(tmp_path / "o.npy"))
    (tmp_path / "text.npy").write_text("1,2,3")
    refused(r"text\.npy: is no file of NumPy's", str(tmp_path / "text.npy"))
    (tmp_path / "cut.npy").write_bytes(Path(good).read_bytes()[:-1])
    refused(r"cut\.npy: ends before", str(tmp_path / "cut.npy"))
    np.savez(tmp_path / "uneven.npz", x=numbered(4), y=numbered(5))
    refused(r"uneven\.npz: its arrays have different lengths \(x 4, y 5\)", str(tmp_path / "uneven.npz"))
    np.savez(tmp_path / "one.npz", x=numbered(4), v=np.int64(1))
    np.savez(tmp_path / "two.npz", x=numbered(4), v=np.int64(2))
    refused(r"two\.npz: 'v' is np\.int64\(2\), in the first", str(tmp_path / "one.npz"), str(tmp_path / "two.npz"))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "one.npz").read_bytes()[:-30])
    refused(r"cut\.npz: is no file of NumPy's", str(tmp_path / "cut.npz"))
    np.savez_compressed(tmp_path / "packed.npz", x=numbered(1000))
    monkeypatch.setattr(npy_source, "MOST_DECOMPRESSED_BYTES", 20_000)
    refused(r"packed\.npz: 'x' is compressed .*numpy\.savez", str(tmp_path / "packed.npz"))


@pytest.mark.parametrize("name", ["zarr.json", "a\\b", "../x", "n" * 256])
def test_names_that_no_array_of_a_group_can_have_are_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        for one in ("x", name):
            content = io.BytesIO()
            np.save(content, numbered(4))
            file.writestr(f"{one}.npy", content.getvalue())
    with pytest.raises(ConfigError, match=r"x\.npz: .* cannot be the name of an array in a Zarr group, it "):
        NpySource([str(tmp_path / "x.npz")], PLAIN)
