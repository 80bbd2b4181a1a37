"""Samples of HDF5 files are those that h5py itself reads, and datasets that do not fit are refused by name."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

h5py = pytest.importorskip("h5py")

from zarrfeed import ConfigError, StoreReadError  # noqa: E402 - after what may be missing
from zarrfeed.packing.sources.arrays.hdf5_source import Hdf5Source  # noqa: E402
from zarrfeed.packing.sources.source import SourceCall, SourceOptions  # noqa: E402

PLAIN = SourceOptions()
COMPOUND = np.dtype([("id", ">i8"), ("xyz", "f4", (3,))])


def write(path: Path, count: int, first: int = 0, **more: Any) -> str:
    """Write samples of many types, which tell their numbers."""
    i = np.arange(first, first + count)
    records = np.zeros(count, COMPOUND)
    records["id"], records["xyz"] = i, i[:, None] + [0, 0.25, 0.5]
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "made"
        x = file.create_dataset(
            "x",
            data=i[:, None] * 100 + np.arange(6),
            chunks=(4, 6),
            maxshape=(None, 6),
            compression="gzip",
            fillvalue=-1,
        )
        x.attrs["units"], x.attrs["_FillValue"] = "K", np.array([-1])
        half = file.create_dataset("train/half", data=(i / 2).astype(np.float32))
        half.attrs["_FillValue"] = np.float32("nan")
        file["train/odd"] = i % 2 == 1
        file["train/again"] = half
        file["train/link"] = h5py.SoftLink("/x")
        file.create_dataset("text", data=[f"é{n}" for n in i], dtype=h5py.string_dtype())
        file["fixed"] = np.array([f"n{n}".encode() for n in i])
        images = file.create_dataset("image", (count,), h5py.vlen_dtype(np.uint8))
        for n, one in enumerate(i):
            images[n] = np.full(one % 4, one % 256, np.uint8)
        file.create_dataset("kind", data=i % 2 + 1, dtype=h5py.enum_dtype({"cat": 1, "dog": 2}, "u1"))
        file["record"] = records
        file["version"] = 3
        file["nothing"] = h5py.Empty("f4")
        for name, values in more.items():
            file[name] = values
    return str(path)


def test_every_sample_is_that_of_its_number(tmp_path: Path) -> None:
    lengths = [9, 1, 14]
    for number, count in enumerate(lengths):
        write(tmp_path / f"{number}.h5", count, sum(lengths[:number]))
    source: Any = SourceCall("hdf5", (str(tmp_path),)).open()
    fields = {field.name: field for field in source.fields}
    assert (source.num_samples, source.block_samples) == (24, 4)
    assert dict(source.attributes) == {"title": "made"}
    assert {one.name: one.values.tolist() for one in source.constants} == {"version": 3}

    def check(pair: tuple[int, int]) -> None:
        i, made = np.arange(*pair), dict(zip(fields, source.read(*pair), strict=True))
        assert [(rows.dtype, rows.shape[1:]) for rows in made.values()] == [(f.dtype, f.shape) for f in source.fields]
        np.testing.assert_array_equal(made["x"], i[:, None] * 100 + np.arange(6))
        half = "train.again"  # the first of its names
        np.testing.assert_array_equal(made[half], i / 2)
        np.testing.assert_array_equal(made["train.odd"], i % 2 == 1)
        np.testing.assert_array_equal(made["record.id"], i)
        np.testing.assert_array_equal(made["record.xyz"], i[:, None] + [0, 0.25, 0.5])
        np.testing.assert_array_equal(made["kind"], i % 2 + 1)
        assert made["text"].tolist() == [f"é{n}" for n in i]
        assert made["fixed"].tolist() == [f"n{n}".encode() for n in i]
        assert made["image"].tolist() == [bytes([n % 256]) * (n % 4) for n in i]

    pairs = [(begin, end) for begin in range(0, 25, 2) for end in range(begin, 25, 3)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(check, pairs))
    assert len(fields) == 9
    assert (fields["x"].fill_value, fields["x"].attributes) == (-1, {"units": "K", "_FillValue": -1})
    assert fields["train.again"].attributes == {"_FillValue": "AAAAAAAA+H8="}  # as xarray writes NaN to Zarr v3
    assert fields["kind"].attributes == {"names": ["cat", "dog"], "flag_values": [1, 2]}
    assert [fields[name].kind for name in ("text", "fixed", "image")] == ["text", "bytes", "bytes"]
    source.close()
    check((8, 20))  # what is closed is opened again


def test_dimensions_with_names_tell_the_axis(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["time"], file["lat"] = np.arange(5) * 6, np.linspace(0, 1, 5)
        file["t"] = np.arange(15).reshape(3, 5) + np.zeros((5, 1, 1))  # lat, level, time
        file["mask"] = np.ones(5)
        for name in ("time", "lat"):
            file[name].make_scale(name)
        file["t"].dims[0].attach_scale(file["lat"])
        file["t"].dims[1].label = "level"
        file["t"].dims[2].attach_scale(file["time"])
        file["mask"].dims[0].attach_scale(file["lat"])
    source = Hdf5Source([str(tmp_path / "x.h5")], SourceOptions(sample_dim="time"))
    assert [(field.name, field.shape, field.dims) for field in source.fields] == [
        ("t", (5, 3), ("time", "lat", "level")),
        ("time", (), ("time",)),
    ]
    assert source.read(2, 4)[0][:, 1, 2].tolist() == [12, 13]
    assert source.read(2, 4)[1].tolist() == [12, 18]
    assert [one.name for one in source.constants] == ["lat", "mask"]
    by_axis = Hdf5Source([str(tmp_path / "x.h5")], SourceOptions(sample_axis=2, variables=("t",)))
    assert [field.name for field in by_axis.fields] == ["t", "time"]
    with pytest.raises(ConfigError, match="no dataset has the dimension 'tme'"):
        Hdf5Source([str(tmp_path / "x.h5")], SourceOptions(sample_dim="tme"))


def test_real_files_of_others_are_read(tmp_path: Path) -> None:
    folder = Path(pytest.importorskip("iris_sample_data").path)
    path = folder / "A1B_north_america.nc"
    source = Hdf5Source([str(path)], SourceOptions(sample_dim="time"))
    with h5py.File(path) as file:
        for field, rows in zip(source.fields, source.read(7, 200), strict=True):
            np.testing.assert_array_equal(rows, file[field.name][7:200])
        assert source.num_samples == len(file["time"])
    assert {"air_temperature", "time"} <= {field.name for field in source.fields}
    assert {"latitude", "longitude"} <= {one.name for one in source.constants}
    copy = write(tmp_path / "x.h5", 4)
    with pytest.raises(ConfigError, match=r"x\.h5: .*time"):
        Hdf5Source([str(path), copy], SourceOptions(sample_dim="time"))


def test_what_does_not_fit_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    def refused(message: str, *paths: str, options: SourceOptions = PLAIN) -> None:
        with pytest.raises(ConfigError, match=message):
            Hdf5Source(paths, options)

    good = write(tmp_path / "good.h5", 4)
    refused(r"a\.h5: the list of datasets", good, write(tmp_path / "a.h5", 4, extra=np.arange(4)))
    refused(r"b\.h5: 'y' has the shape \(5,\).*choose datasets", write(tmp_path / "b.h5", 4, y=np.arange(5)))
    refused("variables: 'z' is not in", good, options=SourceOptions(variables=("z",)))
    refused("no dataset has|not the dimension", good, options=SourceOptions(sample_dim="time"))
    empty = str(tmp_path / "c.h5")
    with h5py.File(empty, "w") as file:
        file["x"] = np.zeros((0, 6))
    refused(r"c\.h5: holds no samples", empty, options=SourceOptions(variables=("x",)))
    ragged = write(tmp_path / "r.h5", 2)
    with h5py.File(ragged, "a") as file:
        file.create_dataset("ragged", (2,), h5py.vlen_dtype(np.float32))
    refused(r"r\.h5: 'ragged' has lists of different lengths: pad", ragged)
    assert len(Hdf5Source([ragged], SourceOptions(variables=("x",))).fields) == 1
    with h5py.File(ragged, "a") as file:
        file["gone"] = h5py.ExternalLink("gone.h5", "/x")
    refused(r"r\.h5: the link 'gone' leads nowhere", ragged)
    (tmp_path / "text.h5").write_text("x")
    refused(r"text\.h5: is no HDF5 file", str(tmp_path / "text.h5"))
    (tmp_path / "old.nc").write_bytes(b"CDF\x01" + bytes(100))
    refused(r"old\.nc: is netCDF of version 3, which .* xarray reads", str(tmp_path / "old.nc"))
    (tmp_path / "cut.h5").write_bytes(Path(good).read_bytes()[:-100])
    refused(r"cut\.h5: is no HDF5 file", str(tmp_path / "cut.h5"))
    units = write(tmp_path / "units.h5", 4)
    with h5py.File(units, "a") as file:
        file["x"].attrs["units"] = "C"
    refused(r"units\.h5: 'x' is .*'units': 'C'.*'units': 'K'", good, units)
    with h5py.File(units, "a") as file:
        file["x"].attrs["units"] = "K"
        file["version"][()] = 4
    refused(r"units\.h5: 'version', which has no samples, has other values", good, units)


def test_damaged_chunks_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.h5", 12)
    with h5py.File(path) as file:
        chunk = file["x"].id.get_chunk_info(1)
    with open(path, "r+b") as stream:  # noqa: PTH123 - pathlib opens no file to be changed in place
        stream.seek(chunk.byte_offset)
        stream.write(bytes(chunk.size))
    source = Hdf5Source([path], SourceOptions(variables=("x",)))
    assert source.read(0, 4)[0][3, 0] == 300
    with pytest.raises(StoreReadError, match=r"x\.h5: samples \[2, 6\)"):
        source.read(2, 6)
    os.utime(path, ns=(1, 1))
    with pytest.raises(StoreReadError, match=r"x\.h5: has changed"):
        source.read(0, 4)


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match="hdf5 sources need h5py: pip install h5py"):
        SourceCall("hdf5", ("x",)).open()
