"""Stores that have samples in common are refused, unless one is given twice by the same name."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
import zarr

import zarrfeed
from zarrfeed.base.errors import ConfigError

VALUES = np.arange(24, dtype="i4").reshape(6, 4)
IN_COMMON = r"{}: has samples that .*{} has, too, since both are read from .*: give one of them"


def _zarr(path: Path) -> None:
    zarr.create_array(path, data=VALUES, chunks=(2, 4))


def _group(path: Path) -> None:
    group = zarr.create_group(path)
    group.create_array("x", data=VALUES, chunks=(2, 4))
    group.create_array("y", data=VALUES, chunks=(3, 4))


def _npy(path: Path) -> None:
    np.save(path, VALUES)


def _h5(path: Path, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=VALUES, **options)


def _decoded_h5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.array([f"sample {n}" for n in range(6)], object)


def _zip(path: Path) -> None:
    with zarr.storage.ZipStore(path, mode="w", compression=zipfile.ZIP_DEFLATED) as store:
        zarr.create_array(store, data=VALUES, chunks=(2, 4))


def _tiff(path: Path) -> None:
    tifffile.imwrite(path, VALUES.reshape(6, 2, 2), photometric="minisblack")


KINDS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "array": (".zarr", _zarr),
    "group": (".zarr", _group),
    "zip": (".zip", _zip),
    "NumPy": (".npy", _npy),
    "chunked HDF5": (".h5", lambda path: _h5(path, chunks=(2, 4), compression="gzip")),
    "contiguous HDF5": (".h5", _h5),
    "HDF5 that h5py decodes": (".h5", _decoded_h5),
    "TIFF": (".tif", _tiff),
}


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("kind", KINDS)
def test_a_link_to_a_store_that_is_given_is_refused(tmp_path: Path, kind: str, link: Callable[..., None]) -> None:
    ending, write = KINDS[kind]
    write(tmp_path / f"a{ending}")
    write(tmp_path / f"b{ending}")
    assert len(zarrfeed.open(str(tmp_path / f"*{ending}"))) == 12  # equal values lie in files of their own
    if link is os.link and (tmp_path / f"a{ending}").is_dir():
        pytest.skip("there are no hard links to folders")
    link(tmp_path / f"a{ending}", tmp_path / f"c{ending}")
    for given in (str(tmp_path / f"*{ending}"), [tmp_path / f"{name}{ending}" for name in "bac"]):
        with pytest.raises(ConfigError, match=IN_COMMON.format(f"c{ending}", f"a{ending}")):
            zarrfeed.open(given)
    parts = [zarrfeed.open(tmp_path / f"{name}{ending}") for name in "ac"]
    assert len(zarrfeed.concat(parts)) == 12


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_named_twice_is_read_twice(tmp_path: Path, kind: str) -> None:
    ending, write = KINDS[kind]
    write(path := tmp_path / f"a{ending}")
    assert len(zarrfeed.open([path, str(path), f"file://{path}"])) == 18


def test_parts_of_one_file_are_distinct_and_links_between_them_are_refused(tmp_path: Path) -> None:
    with h5py.File(path := tmp_path / "demos.h5", "w") as file:
        for number in range(3):
            file[f"demo_{number}/x"] = VALUES
    assert len(zarrfeed.open(f"{path}/*")) == 18
    with h5py.File(path, "a") as file:
        file["other/x"] = file["demo_1/x"]  # a hard link
    with pytest.raises(ConfigError, match=IN_COMMON.format("other", "demo_1")):
        zarrfeed.open(f"{path}/*")


def test_stores_that_share_some_of_their_arrays_are_distinct(tmp_path: Path) -> None:
    _group(tmp_path / "a.zarr")
    _group(tmp_path / "b.zarr")
    (tmp_path / "b.zarr/y").rename(tmp_path / "old")
    (tmp_path / "b.zarr/y").symlink_to(tmp_path / "a.zarr/y")
    assert len(zarrfeed.open(str(tmp_path / "*.zarr"))) == 12
    with pytest.raises(ConfigError, match=IN_COMMON.format("b.zarr/y", "a.zarr/y")):
        zarrfeed.open([tmp_path / "a.zarr/y", tmp_path / "b.zarr/y"])


@pytest.mark.parametrize(("kind", "options"), [("uint8", {}), ("uint8", {"compression": "zlib"}), ("bit", {})])
def test_files_of_one_collection_are_refused(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    names = ["t0.ome.tif", "t1.ome.tif"]
    planes = "".join(
        f'<TiffData FirstT="{t}" IFD="0"><UUID FileName="{name}">urn:uuid:{t}</UUID></TiffData>'
        for t, name in enumerate(names)
    )
    sizes = 'DimensionOrder="XYZCT" SizeX="32" SizeY="16" SizeZ="1" SizeC="1" SizeT="2"'
    image = f'<Image ID="Image:0"><Pixels ID="Pixels:0" Type="{kind}" {sizes}>{planes}</Pixels></Image>'
    pixels = np.arange(2 * 16 * 32).reshape(2, 16, 32).astype("u1")
    pixels = pixels % 3 == 1 if kind == "bit" else pixels  # tifffile decodes those
    for t, name in enumerate(names):
        schema = "http://www.openmicroscopy.org/Schemas/OME/2016-06"
        description = f'<OME xmlns="{schema}" UUID="urn:uuid:{t}">{image}</OME>'
        tifffile.imwrite(tmp_path / name, pixels[t], description=description, metadata=None, **options)
    data = zarrfeed.open(tmp_path / names[1])
    assert np.array_equal(np.stack(zarrfeed.ZarrDataset(data)[[0, 1]]), pixels)
    with pytest.raises(ConfigError, match=IN_COMMON.format(names[1], names[0])):
        zarrfeed.open(str(tmp_path / "*.ome.tif"))


def test_references_to_a_file_that_is_given_or_to_the_same_file_are_refused(tmp_path: Path) -> None:
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(VALUES.tobytes())
    document = {"zarr_format": 2, "shape": [6, 4], "chunks": [2, 4], "dtype": "<i4", "fill_value": None, "order": "C"}

    def write(name: str, files: str) -> Path:
        chunks = {f"x/{n}.0": [str(tmp_path / f"{file}.bin"), n * 32, 32] for n, file in enumerate(files)}
        described = json.dumps(document | {"filters": None, "compressor": None})
        refs = {".zgroup": '{"zarr_format": 2}', "x/.zarray": described, **chunks}
        (tmp_path / name).write_text(json.dumps({"version": 1, "refs": refs}))
        return tmp_path / name

    first, second, mixed = write("first.json", "aaa"), write("second.json", "bbb"), write("mixed.json", "bba")
    assert len(zarrfeed.open([first, second])) == 12
    for one, other in ((first, mixed), (second, mixed)):
        with pytest.raises(ConfigError, match=IN_COMMON.format("mixed.json", one.name)):
            zarrfeed.open([one, other])
    _h5(file := tmp_path / "a.h5")
    with h5py.File(file) as opened:
        begin = opened["x"].id.get_offset()
    moved = write("of_file.json", "aaa")
    text = moved.read_text()
    for n in range(3):
        text = text.replace(f'"{tmp_path / "a.bin"}", {n * 32}, 32', f'"{file}", {begin + n * 32}, 32')
    moved.write_text(text)
    assert len(zarrfeed.open([first, file])) == 12
    with pytest.raises(ConfigError, match=IN_COMMON.format("of_file.json", "a.h5")):
        zarrfeed.open([file, moved])
