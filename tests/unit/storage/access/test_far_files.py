"""Files of HDF5 and NetCDF behind URLs: as the same files here, by ranges of one version."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
import zarr
from scipy.io import netcdf_file

import zarrfeed
from tests.support.counting_server import CountingServer
from tests.support.fault_server import Fault, FaultServer, cuts, drops, refuses
from tests.support.fits_files import image, no_image
from tests.support.hdf5_files import bytes_of, write_random
from zarrfeed import (
    ChunkSkippedWarning,
    ConfigError,
    CorruptChunkError,
    StaleMetadataWarning,
    StoreReadError,
    UnsupportedError,
    ZarrIterableDataset,
)
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.budget.memory import plan_memory
from zarrfeed.storage.access import far_files
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.far_chunks import FarChunks
from zarrfeed.storage.access.far_files import open_far_file, split_at_far_file
from zarrfeed.storage.chunks.blocking_reads import BlockingTableReads, blocking_reads
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.tools import cli

ROWS = np.arange(60, dtype="f4").reshape(20, 3)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CountingServer]:
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file.create_dataset("a/x", data=ROWS, chunks=(4, 3), compression="gzip", shuffle=True)
        file["rows"], file["names"] = ROWS, [f"name {number}" for number in range(20)]
        file.create_dataset("lists", (20,), h5py.vlen_dtype("i4"))
    with CountingServer(tmp_path) as serving:
        yield serving


def content(store: Any) -> dict[str, bytes]:
    group: Any = zarr.open_group(store, mode="r")
    return {name: bytes_of(one[...]) for name, one in group.members(max_depth=None) if hasattr(one, "dtype")}


@pytest.mark.parametrize("block_bytes", [100, 1 << 19])
def test_arrays_are_those_of_the_file(
    server: CountingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(far_files, "_BLOCK_BYTES", block_bytes)
    for seed in range(4):
        written = write_random(tmp_path / "random.h5", seed)
        store = open_far_file(f"{server.url}/random.h5", StoreAccess())
        assert content(store) == {name: bytes_of(values) for name, values in written.items()}
    with netcdf_file(str(tmp_path / "classic.nc"), "w") as classic:
        classic.createDimension("time", None)
        for name in "tu":
            classic.createVariable(name, "i4", ("time",))[:] = np.arange(7)
    store = open_far_file(f"{server.url}/classic.nc", StoreAccess())
    assert content(pickle.loads(pickle.dumps(store)))["u"] == np.arange(7, dtype="i4").tobytes()


def _read(data: Any, **options: Any) -> set[int]:
    """Read an epoch, and compare it with `ROWS`; return the indices of the samples."""
    seen: set[int] = set()
    for batch, index in ZarrIterableDataset(data, batch_size=4, return_index=True, **options):
        assert np.array_equal(batch["x"] if isinstance(batch, dict) else batch, ROWS[index])
        seen.update(index.tolist())
    return seen


def test_samples_are_read_by_ranges_of_the_file(server: CountingServer) -> None:
    for path in ("x.nc/a/x", "x.nc::a/x"):
        data = zarrfeed.open(f"{server.url}/{path}")
        assert server.gets == {"/x.nc bytes=0-524287": 1}  # all metadata are in the first block
        assert _read(data, shuffle=True) == set(range(20))
        server.gets.clear()
    group = zarrfeed.open(f"{server.url}/x.nc", variables=["rows", "names"])
    (batch,) = ZarrIterableDataset(group, batch_size=20)
    assert np.array_equal(batch["rows"], ROWS)
    assert batch["names"] == [f"name {number}" for number in range(20)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_neighbours_in_a_file_are_read_by_one_request(server: CountingServer, *, shuffle: bool) -> None:
    with h5py.File(server.directory / "x.nc") as file:
        extents = [file["a/x"].id.get_chunk_info(number) for number in range(5)]
    ranges = {f"/x.nc bytes={one.byte_offset}-{one.byte_offset + one.size - 1}" for one in extents}
    last = max(one.byte_offset + one.size for one in extents) - 1
    together = {f"/x.nc bytes={min(one.byte_offset for one in extents)}-{last}"}
    data = zarrfeed.open(f"{server.url}/x.nc/a/x")
    for requests, wanted in (({}, together), ({"coalesce_limit": 0}, ranges), ({"coalesce_limit": "1KiB"}, together)):
        server.gets.clear()
        assert _read(data, shuffle=shuffle, requests=requests) == set(range(20))
        assert set(server.gets) == wanted, requests


def test_files_of_one_axis_and_groups_of_cells_are_read_by_ranges(server: CountingServer, tmp_path: Path) -> None:
    values = np.arange(30 * 6 * 8, dtype="i4").reshape(30, 6, 8)
    names = [f"{server.url}/part{number}.h5/x" for number in range(3)]
    for number in range(3):
        with h5py.File(tmp_path / f"part{number}.h5", "w") as file:
            part = values[10 * number : 10 * number + 10]
            file.create_dataset("x", data=part, chunks=(2, 3, 4), compression="gzip", shuffle=True)
    joined = zarrfeed.open(names)
    server.gets.clear()
    for batch, index in ZarrIterableDataset(joined, batch_size=4, shuffle=True, return_index=True):
        assert np.array_equal(batch, values[index])
    asked = {name.partition(" ")[0] for name in server.gets}
    assert asked == {f"/part{number}.h5" for number in range(3)}
    assert sum(server.gets.values()) < 60  # chunks


def test_chunks_in_memory_and_whole_objects_are_read_beside_ranges(server: CountingServer, tmp_path: Path) -> None:
    refs = _references(tmp_path)
    (tmp_path / "data/whole.bin").write_bytes(ROWS[4:8].tobytes())
    refs |= {"x/0.0": "base64:" + base64.b64encode(ROWS[:4].tobytes()).decode(), "x/1.0": ["data/whole.bin"]}
    refs["x/2.0"] = ["data/whole.bin", 0, 48]
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    found: dict[int, Any] = {}
    for batch, index in ZarrIterableDataset(
        zarrfeed.open(f"{server.url}/refs.json", variables=["x"]), batch_size=4, shuffle=True, return_index=True
    ):
        found |= dict(zip(index.tolist(), batch["x"].numpy(), strict=True))
    wanted = ROWS.copy()
    wanted[8:12] = ROWS[4:8]
    assert np.array_equal([found[number] for number in range(20)], wanted)


@pytest.mark.parametrize("transcode", [None, "lz4"])
def test_the_node_cache_has_the_chunks_of_a_far_file(
    server: CountingServer, tmp_path: Path, transcode: str | None
) -> None:
    url = f"{server.url}/x.nc/a/x"
    options: Any = {"cache": tmp_path / "cache", "cache_limit": "1MiB", "transcode": transcode}
    data = pickle.loads(pickle.dumps(zarrfeed.open(url, **options)))
    server.gets.clear()
    assert _read(data, shuffle=True) == set(range(20))
    assert len(server.gets) == 1  # neighbours together
    server.gets.clear()
    dataset = ZarrIterableDataset(zarrfeed.open(url, **options), batch_size=4, return_index=True)
    for batch, index in dataset:
        assert np.array_equal(batch, ROWS[index])
    assert set(server.gets) <= {"/x.nc bytes=0-524287"}  # the metadata
    assert dataset.stats().cache.transcoded_hits == (5 if transcode else 0)
    with h5py.File(tmp_path / "x.nc", "r+") as file:
        file["a/x"][:] = -ROWS
    os.utime(tmp_path / "x.nc", ns=(0, 1))
    (batch,) = ZarrIterableDataset(zarrfeed.open(url, **options), batch_size=20)
    assert np.array_equal(batch, -ROWS)


def test_files_whose_versions_are_not_known_are_cached_under_a_declared_one(
    server: CountingServer, tmp_path: Path
) -> None:
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": _references(tmp_path)}))
    options: Any = {"variables": ["x"], "cache": tmp_path / "cache", "cache_limit": "1MiB"}
    unknown = zarrfeed.open(f"{server.url}/refs.json", **options)
    explained = str(ZarrIterableDataset(unknown, batch_size=4).explain())
    assert "the versions of its files are not known; cache_version= declares one" in explained
    declared = zarrfeed.open(f"{server.url}/refs.json", cache_version="1", **options)
    for wanted in (1, 0):
        server.gets.clear()
        assert _read(declared) == set(range(20))
        assert len(server.gets) == wanted


def test_parts_of_an_axis_in_far_files_are_cached(server: CountingServer, tmp_path: Path) -> None:
    names = [f"{server.url}/part{number}.h5/x" for number in range(2)]
    for number in range(2):
        with h5py.File(tmp_path / f"part{number}.h5", "w") as file:
            file.create_dataset("x", data=ROWS[10 * number : 10 * number + 10], chunks=(2, 3), compression="gzip")
    data = zarrfeed.open(names, cache=tmp_path / "cache", cache_limit="1MiB", transcode="lz4")
    for epoch in range(2):
        server.gets.clear()
        assert _read(data, shuffle=True) == set(range(20))
        assert bool(server.gets) == (epoch == 0)


def test_a_chunk_that_cannot_be_read_harms_no_neighbour(server: CountingServer, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.nc") as file:
        extent = file["a/x"].id.get_chunk_info(2).byte_offset
    content = bytearray((tmp_path / "x.nc").read_bytes())
    content[extent + 8 : extent + 16] = bytes(8)
    (tmp_path / "damaged.nc").write_bytes(content)
    refs = _references(tmp_path)
    (tmp_path / "data/a 1.bin").write_bytes(ROWS.tobytes()[:200])
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    damaged = zarrfeed.open(f"{server.url}/damaged.nc/a/x")
    short = zarrfeed.open(f"{server.url}/refs.json", variables=["x"])
    for data, chunk, error in ((damaged, 2, CorruptChunkError), (short, 4, StoreReadError)):
        left = set(range(20)) - set(range(4 * chunk, 4 * chunk + 4))
        dataset = ZarrIterableDataset(data, batch_size=4, faults={"on_error": "skip"})
        with pytest.warns(ChunkSkippedWarning, match=f"chunk {chunk}.0"):
            batches = list(dataset)
        assert {int(row[0]) // 3 for one in batches for row in (one["x"] if isinstance(one, dict) else one)} == left
        with pytest.raises(error, match=f"x chunk {chunk}.0: "):
            _read(data)


def test_a_request_for_neighbours_is_tried_again(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=ROWS, chunks=(4, 3), compression="gzip")
    for act in (refuses(503, "SlowDown"), cuts(0.5, reset=True), drops(reset=True)):
        with FaultServer(tmp_path) as server:
            data = zarrfeed.open(f"{server.url}/x.h5/x")
            server.fault = Fault(act, times=2)
            assert _read(data) == set(range(20))
            assert server.fault.acted == 2
            server.fault = Fault(refuses(403, "AccessDenied"))
            with pytest.raises(StoreReadError, match=r"x\.h5/x chunk [0-4]\.0: .* 403"):
                _read(data)


def test_the_memory_of_requests_for_neighbours_is_planned(server: CountingServer) -> None:
    (field,) = zarrfeed.open(f"{server.url}/x.nc/a/x").resolved.fields
    with h5py.File(server.directory / "x.nc") as file:
        stored = sum(file["a/x"].id.get_chunk_info(number).size for number in range(5))
    needs = FieldNeeds.of([field])
    assert (needs.fed_bytes, needs.fed_together_bytes) == (48, stored)
    options: dict[str, Any] = {"batch_size": 4, "num_threads": 2, "min_open_batches": 1}
    alone = plan_memory(replace(needs, fed_together_bytes=0), budget=1 << 20, **options)
    plan = plan_memory(needs, budget=1 << 20, **options)
    assert plan.coalesce.limit == stored
    assert plan.fetch_bytes >= alone.fetch_bytes + 3 * stored


def test_arrays_of_numpy_are_read_by_ranges(server: CountingServer, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    np.savez(tmp_path / "x.npz", a=ROWS, b=-ROWS)
    np.savez_compressed(tmp_path / "packed.npz", a=ROWS)
    for path, wanted in (("x.npy", ROWS), ("x.npz/a", ROWS), ("x.npz::b", -ROWS)):
        data = zarrfeed.open(f"{server.url}/{path}")
        for batch, index in ZarrIterableDataset(data, batch_size=3, shuffle=True, return_index=True):
            assert np.array_equal(batch, wanted[index])
    (batch,) = ZarrIterableDataset(zarrfeed.open(f"{server.url}/x.npz"), batch_size=20)
    assert np.array_equal(batch["a"] + batch["b"], 0 * ROWS)
    with pytest.raises(UnsupportedError, match=r"packed\.npz/a: is compressed; numpy\.savez writes members"):
        zarrfeed.open(f"{server.url}/packed.npz/a")
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:200])
    with pytest.raises(ConfigError, match=r"x\.npy: ends before its 240 bytes of items do"):
        zarrfeed.open(f"{server.url}/x.npy")


def test_images_of_fits_are_read_by_ranges(server: CountingServer, tmp_path: Path) -> None:
    (tmp_path / "x.fits").write_bytes(no_image() + image(ROWS, EXTNAME="SCI") + image(-ROWS, EXTNAME="ERR"))
    for path, wanted in (("x.fits/SCI", ROWS), ("x.fits::ERR", -ROWS)):
        (batch,) = ZarrIterableDataset(zarrfeed.open(f"{server.url}/{path}"), batch_size=1)
        assert np.array_equal(batch[0], wanted)


@pytest.mark.parametrize(
    "storage",
    [{}, {"compression": "zlib", "tile": (32, 16)}, {"compression": "zlib", "rowsperstrip": 7}, {"bits": True}],
)
def test_images_of_tiff_are_read_by_ranges(server: CountingServer, tmp_path: Path, storage: dict[str, Any]) -> None:
    values = np.arange(6 * 64 * 48, dtype="u2").reshape(6, 64, 48)
    values = values % 3 == 1 if storage.pop("bits", False) else values  # tifffile decodes those
    tifffile.imwrite(tmp_path / "x.tif", values, photometric="minisblack", **storage)
    data = pickle.loads(pickle.dumps(zarrfeed.open(f"{server.url}/x.tif")))
    for batch, index in ZarrIterableDataset(data, batch_size=2, shuffle=True, return_index=True):
        assert np.array_equal(batch, values[index])


def test_an_image_whose_planes_lie_in_several_far_files_is_refused(server: CountingServer, tmp_path: Path) -> None:
    planes = "".join(f'<TiffData FirstT="{t}"><UUID FileName="{t}.tif">urn:uuid:{t}</UUID></TiffData>' for t in (0, 1))
    sizes = 'DimensionOrder="XYZCT" Type="uint8" SizeX="8" SizeY="8" SizeZ="1" SizeC="1" SizeT="2"'
    pixels = f'<Image ID="Image:0"><Pixels ID="Pixels:0" {sizes}>{planes}</Pixels></Image>'
    described = f'<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:0">{pixels}</OME>'
    tifffile.imwrite(tmp_path / "0.tif", np.zeros((8, 8), "u1"), description=described, metadata=None)
    with pytest.raises(UnsupportedError, match=r"0\.tif: its planes lie in several files, which must be local"):
        zarrfeed.open(f"{server.url}/0.tif")


def _references(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a 1.bin").write_bytes(ROWS.tobytes())
    document = {"zarr_format": 2, "shape": [20, 3], "chunks": [4, 3], "dtype": "<f4", "fill_value": None, "order": "C"}
    return {
        ".zgroup": '{"zarr_format": 2}',
        "x/.zarray": json.dumps(document | {"filters": None, "compressor": None}),
        **{f"x/{number}.0": ["data/a 1.bin", number * 48, 48] for number in range(5)},
    }


def test_references_at_a_url_count_their_paths_from_it(server: CountingServer, tmp_path: Path) -> None:
    refs = _references(tmp_path)
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    data = pickle.loads(pickle.dumps(zarrfeed.open(f"{server.url}/refs.json", variables=["x"])))
    for batch, index in ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True):
        assert np.array_equal(batch["x"], ROWS[index])
    for local in ("/etc/x.bin", "file:///etc/x.bin"):
        (tmp_path / "local.json").write_text(json.dumps({**refs, "x/0.0": [local, 0, 48]}))
        with pytest.raises(ConfigError, match=r"local\.json/x: refers to '.*x\.bin', which is local"):
            zarrfeed.open(f"{server.url}/local.json", variables=["x"])


def test_folders_of_references_at_a_url_are_read(server: CountingServer, tmp_path: Path) -> None:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    refs, folder = _references(tmp_path), tmp_path / "refs.parq"
    (folder / "x").mkdir(parents=True)
    metadata = {key: json.loads(text) for key, text in refs.items() if isinstance(text, str)}
    (folder / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": 2}))
    chunks = [refs[f"x/{number}.0"] for number in range(5)]
    for number in range(3):
        path, offset, size = zip(*chunks[2 * number : 2 * number + 2], strict=True)
        columns = {"path": [f"{server.url}/{one}" for one in path]}
        parquet.write_table(
            arrow.table({**columns, "offset": offset, "size": size, "raw": [None] * len(path)}),
            folder / f"x/refs.{number}.parq",
        )
    for url in (f"{server.url}/refs.parq/x", f"{server.url}/refs.parq::x"):
        for batch, index in ZarrIterableDataset(zarrfeed.open(url), batch_size=4, shuffle=True, return_index=True):
            assert np.array_equal(batch, ROWS[index])


def test_threads_read_the_chunks_and_the_loop_those_of_other_readers(server: CountingServer) -> None:
    (field,) = zarrfeed.open(f"{server.url}/x.nc/a/x").resolved.fields
    source = field.layouts[0].spec.source
    assert isinstance(source, StoreSource)
    reads = blocking_reads(source)
    assert isinstance(reads, BlockingTableReads)
    stored = asyncio.run(source.get("2.0", at_once=True))
    assert stored is not None
    extent = source.store.table("a/x").find((2, 0))  # type: ignore[attr-defined]
    at = extent.offset
    for key, begin, end in (("2.0", 0, None), ("2.0", 3, 9), ("@0", at, at + extent.length), ("@0", at + 3, at + 9)):
        part = reads.get(key, begin, end)
        assert part is not None
        first, last = (begin - at, end - at) if key == "@0" else (begin, end)
        assert np.array_equal(part, stored[first:last])
    assert reads.get("7.0", 0, None) is None

    class Other(FarChunks):
        """A reader of the user's."""

    store: Any = source.store
    store.far_reader = Other(store.far_reader.access)
    assert blocking_reads(source) is None


def test_an_object_that_changed_is_an_error(server: CountingServer, tmp_path: Path) -> None:
    data = zarrfeed.open(f"{server.url}/x.nc/a/x")
    with h5py.File(tmp_path / "x.nc", "r+") as file:
        file["a/x"][:] = -1
    os.utime(tmp_path / "x.nc", ns=(0, 1))
    with pytest.raises(StoreReadError, match=r"x\.nc: has changed since the source was opened"):
        list(ZarrIterableDataset(data, batch_size=4))


def test_what_is_no_array_of_a_file_is_said(server: CountingServer, tmp_path: Path) -> None:
    (tmp_path / "x.grib").write_bytes(b"GRIB" + bytes(3000))
    (tmp_path / "x.png").write_bytes(b"\x89PNG" + bytes(30))
    (tmp_path / "x.csv").write_bytes(b"a,b\n1,2\n")
    (tmp_path / "short.h5").write_bytes((tmp_path / "x.nc").read_bytes()[:3000])
    zarr.create_array(tmp_path / "folder.h5", data=ROWS)
    for name, error, message in (
        ("x.nc/nothing", StoreReadError, "x.nc/nothing: the file has no array and no group 'nothing'"),
        ("x.nc/lists", UnsupportedError, "x.nc/lists: its items are lists of any length"),
        ("missing.nc", StoreReadError, "missing.nc: no Zarr array is there"),
        ("x.grib", ConfigError, "x.grib: is of no format that is read in place"),
        ("x.png", ConfigError, "x.png: is an image at a URL"),
        ("x.csv", ConfigError, "x.csv: is of no format that is read in place"),
        ("short.h5", StoreReadError, "short.h5: HDF5 cannot read it"),
    ):
        with pytest.raises(error) as caught:
            zarrfeed.open(f"{server.url}/{name}")
        assert message in str(caught.value)
    assert len(zarrfeed.open(f"{server.url}/folder.h5")) == 20  # a store of Zarr with the name of a file


def test_the_name_of_a_file_ends_its_url() -> None:
    assert split_at_far_file("s3://b.nc/a.h5ad/X") == ("s3://b.nc/a.h5ad", "X")
    assert split_at_far_file("https://host/a.nc::b/c") == ("https://host/a.nc", "b/c")
    assert split_at_far_file("gs://bucket/store.zarr/x") == ("", "")


def test_an_index_of_a_far_file_lists_no_chunks(
    server: CountingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, url = tmp_path / "x.index", f"{server.url}/x.nc"
    assert cli.main(["index", url]) == cli.EXIT_ERROR
    assert cli.main(["index", url, "-o", str(kept)]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(h5py, "File", None)
        server.gets.clear()
        data = zarrfeed.open(kept / "a/x")
        assert server.gets == {"/x.nc bytes=0-0": 1}  # for the version
        assert _read(data, shuffle=True) == set(range(20))
    os.utime(tmp_path / "x.nc", ns=(0, 1))
    with pytest.warns(StaleMetadataWarning, match=r"x\.index: the index is older than http"):
        assert len(zarrfeed.open(kept / "a/x")) == 20
    assert cli.main(["index", url, "-o", str(kept)]) == 0
    kept.write_bytes(kept.read_bytes()[:-8] + bytes(8))
    with pytest.raises(ConfigError, match=r"x\.index: the index cannot be used .*; open http"):
        zarrfeed.open(kept)
    (tmp_path / "x.nc").unlink()
    with pytest.raises(StoreReadError, match=r"x\.index: the index is of http.*x\.nc, which cannot be read"):
        zarrfeed.open(kept)
