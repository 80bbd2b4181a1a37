"""Index files: a store by its index is the store without it, and an index that does not fit is never believed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
import zarr
from scipy.io import netcdf_file

import zarrfeed
from tests.support.hdf5_files import masked, write_random
from zarrfeed import ConfigError, StaleMetadataWarning, StoreReadError
from zarrfeed.storage.files.file_index import beside, is_index, open_index, write_index
from zarrfeed.storage.files.open_file import open_file, open_without_index

ROWS = np.arange(24, dtype="<i4").reshape(8, 3)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write files of each kind of table: several arrays, missing chunks, rows, text, filter masks, files, memory."""
    folder = tmp_path_factory.mktemp("sources")
    found = {f"random{seed}": folder / f"random{seed}.h5" for seed in range(6)}
    for seed, path in enumerate(found.values()):
        write_random(path, seed)
    found["masked"] = folder / "masked.h5"
    masked(found["masked"])
    found["text"] = folder / "text.h5"
    with h5py.File(found["text"], "w") as file:
        file["a/names"] = ["x", "yy", "zzz"]
        file["a/rows"] = ROWS
        file.create_dataset("lists", (2,), h5py.vlen_dtype("i4"))
    found["classic"] = folder / "classic.nc"
    with netcdf_file(str(found["classic"]), "w") as classic:
        classic.createDimension("time", None)
        classic.createVariable("t", "i4", ("time",))[:] = np.arange(5)
    target = folder / "target.bin"
    target.write_bytes(ROWS.tobytes())
    found["references"] = folder / "refs.json"
    document = {"zarr_format": 2, "shape": [8, 3], "chunks": [2, 3], "dtype": "<i4", "fill_value": None}
    refs: dict[str, Any] = {"x/.zarray": json.dumps(document | {"order": "C", "filters": None, "compressor": None})}
    refs |= {".zgroup": '{"zarr_format": 2}', "x/0.0": ROWS[:2].tobytes().decode(), "x/3.0": [str(target), 72, 24]}
    found["references"].write_text(json.dumps(refs | {"x/1.0": [str(target), 24, 24]}))
    return found


def content(store: Any) -> Any:
    """Return all that zarr-python reads of a store, and why the rest is refused."""
    group: Any = zarr.open_group(store, mode="r")
    nodes = dict(group.members(max_depth=None))
    arrays = {name: (np.asarray(one[...]).tolist(), one.dtype) for name, one in nodes.items() if hasattr(one, "dtype")}
    return arrays, {name: dict(one.attrs) for name, one in nodes.items()}, store.refused


def rows_of(path: Path) -> Any:
    """Return the rows of a file, or of one by its index."""
    store: Any = open_file(path)
    array: Any = zarr.open_array(store=store, path="a/rows", mode="r")
    return array[...]


def copied(source: Path, folder: Path) -> Path:
    """Return a copy with the time of the source."""
    shutil.copy2(source, folder / source.name)
    return folder / source.name


def test_the_store_by_an_index_is_the_store_without_it(sources: dict[str, Path], tmp_path: Path) -> None:
    for source in sources.values():
        path = copied(source, tmp_path)
        plain = open_without_index(path)
        chunks = write_index(plain, beside(path))
        found = open_file(path)
        assert found is not None
        assert repr(content(found)) == repr(content(plain))
        assert chunks == sum(len(found.table(one).offsets) for one in found.array_paths if not found.is_by_library(one))
        for name in found.array_paths:
            assert found.format_of(name) == plain.format_of(name)
            if not found.is_by_library(name):
                one, other = found.table(name), plain.table(name)
                assert (one.files, one.grid, one.name) == (other.files, other.grid, other.name)
                assert (one.unfiltered, one.padded_bytes) == (other.unfiltered, other.padded_bytes)
        assert repr(content(pickle.loads(pickle.dumps(found)))) == repr(content(plain))


def test_chunks_are_not_listed_again(sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copied(sources["text"], tmp_path)
    write_index(open_without_index(path), beside(path))
    monkeypatch.setattr(h5py, "File", None)
    data = zarrfeed.open(path, variables=["a/rows"])
    with zarrfeed.ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True) as dataset:
        for batch, index in dataset:
            assert np.array_equal(batch["a/rows"], ROWS[index])


def test_an_index_of_a_file_that_changed_is_not_believed(sources: dict[str, Path], tmp_path: Path) -> None:
    path = copied(sources["text"], tmp_path)
    write_index(open_without_index(path), beside(path))
    write_index(open_without_index(path), tmp_path / "elsewhere")
    with h5py.File(path, "r+") as file:
        file["a/rows"][0] = -1
    os.utime(path, ns=(0, 1))
    for named in (path, tmp_path / "elsewhere"):
        with pytest.warns(StaleMetadataWarning, match="older than .*text.h5"):
            store = open_file(named)
        assert store is not None
        assert store.table("a/rows").files[0].mtime_ns == 1  # type: ignore[union-attr]


def test_an_index_moves_with_its_file(sources: dict[str, Path], tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    path = copied(sources["text"], before)
    write_index(open_without_index(path), beside(path))
    before.rename(after)
    for named in (after / path.name, beside(after / path.name)):
        store = open_file(named)
        assert store is not None
        assert store.table("a/rows").name == f"{after / path.name}/a/rows"
        assert np.array_equal(rows_of(named), ROWS)


def test_a_damaged_index_is_not_believed(sources: dict[str, Path], tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for name in ("random1", "masked", "references"):
        path = copied(sources[name], tmp_path)
        plain = open_without_index(path)
        expected = repr(content(plain))
        write_index(plain, beside(path))
        whole = beside(path).read_bytes()
        for _ in range(15):
            damaged = bytearray(whole[: rng.integers(len(whole))] if rng.random() < 0.3 else whole)
            for at in rng.integers(len(damaged), size=rng.integers(1, 9)) if damaged else ():
                damaged[at] = rng.integers(256)
            beside(path).write_bytes(damaged)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", StaleMetadataWarning)
                found = open_file(path)
                assert repr(content(found)) == expected
                if is_index(beside(path)):
                    try:
                        assert repr(content(open_index(beside(path), open_without_index))) == expected
                    except ConfigError as error:
                        assert beside(path).name in str(error)  # noqa: PT017


@pytest.mark.parametrize("member", ["source", "format", "is_zarr", "documents", "refused", "by_library", "tables"])
def test_an_index_whose_header_lacks_a_member_is_not_believed(
    member: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    """Its checksum is right, as of an index that another version made: the KeyError reached the user."""
    path = Path(shutil.copy2(sources["random0"], tmp_path / "x.h5"))
    write_index(open_without_index(path), beside(path))
    whole = beside(path).read_bytes()
    magic, size, _ = struct.unpack_from("<16sQI", whole)
    header = json.loads(whole[28 : 28 + size])
    del header[member]
    changed = json.dumps(header).encode().ljust(size)
    beside(path).write_bytes(struct.pack("<16sQI", magic, size, zlib.crc32(changed)) + changed + whole[28 + size :])
    with pytest.warns(StaleMetadataWarning, match=f"the index is not used .*{member}"):
        found = content(open_file(path))
    assert found == content(open_without_index(path))
    with pytest.raises(ConfigError, match=f"x.h5.index: the index is damaged .*{member}"):
        open_index(beside(path), open_without_index)


def test_only_an_index_of_ones_own_is_believed(sources: dict[str, Path], tmp_path: Path) -> None:
    path = copied(sources["text"], tmp_path)
    write_index(open_without_index(path), tmp_path / "elsewhere")
    beside(path).symlink_to(tmp_path / "elsewhere")
    with pytest.warns(StaleMetadataWarning, match="text.h5.index.* is a link"):
        assert rows_of(path)[1, 0] == 3
    beside(path).unlink()
    beside(path).write_text("of another program")
    assert rows_of(path)[1, 0] == 3


def test_an_index_that_changed_since_it_was_opened_is_left(sources: dict[str, Path], tmp_path: Path) -> None:
    path = copied(sources["text"], tmp_path)
    write_index(open_without_index(path), beside(path))
    store = open_file(path)
    assert store is not None
    beside(path).unlink()
    with pytest.warns(StaleMetadataWarning, match="a/rows"):
        assert len(store.table("a/rows").offsets) == 1
    path.unlink()
    with pytest.raises((StoreReadError, FileNotFoundError)):
        store.table("a/rows2")


def test_tiles_that_tifffile_decodes_are_read_by_an_index(tmp_path: Path) -> None:
    path, values = tmp_path / "x.tif", np.arange(3 * 32 * 32).reshape(3, 32, 32) % 3 == 1
    tifffile.imwrite(path, values, photometric="minisblack")  # one bit an item
    write_index(open_without_index(path), beside(path))
    found: Any = zarr.open_array(store=open_file(path), mode="r")
    assert np.array_equal(found[...], values)
