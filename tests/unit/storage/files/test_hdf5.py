"""HDF5 files as stores: names, attributes and fill values, what is refused and how, and files that change."""

from __future__ import annotations

import bz2
import pickle
import struct
from pathlib import Path
from typing import Any

import h5py
import numcodecs
import numpy as np
import pytest
import scipy.sparse
import zarr

import zarrfeed
from tests.support.hdf5_files import bytes_of, write_chunk_directly
from zarrfeed.base.errors import ConfigError, StoreReadError, UnsupportedError
from zarrfeed.storage.files import hdf5
from zarrfeed.storage.files.chunk_table import ChunkTable
from zarrfeed.storage.files.data_file import DataFile
from zarrfeed.storage.files.hdf5 import is_hdf5, open_hdf5

VALUES = np.arange(24, dtype="f4").reshape(6, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.h5"


def opened(path: Path, name: str = "x") -> zarr.Array[Any]:
    return zarr.open_array(store=open_hdf5(path), path=name, mode="r")


def test_a_file_is_told_by_its_content_also_behind_a_user_block(path: Path) -> None:
    for size in (0, 512, 1024, 4096):
        with h5py.File(path, "w", userblock_size=size):
            pass
        assert is_hdf5(path)
    path.write_bytes(b"\x89HDF\r\n")
    assert not is_hdf5(path)
    path.write_bytes(b"")
    assert not is_hdf5(path)


def test_groups_attributes_and_dimensions_are_those_of_the_file(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "t"
        file["time"] = np.arange(6.0)
        file["time"].make_scale("time")
        file["time"].attrs["units"] = np.bytes_("days since 2000-01-01")
        x = file.create_dataset("deep/below/x", data=VALUES)
        x.dims[0].attach_scale(file["time"])
        x.dims[1].label = "lon"
        x.attrs.update(scale_factor=np.array([0.5], "f4"), flags=[1, 2], missing=np.nan)
    group = zarr.open_group(store=open_hdf5(path), mode="r")
    assert sorted(group) == ["deep", "time"]
    assert dict(group.attrs) == {"title": "t"}
    attributes = dict(group["deep/below/x"].attrs)
    assert str(attributes.pop("missing")) == "nan"
    assert attributes == {"scale_factor": 0.5, "flags": [1, 2], "_ARRAY_DIMENSIONS": ["time", "lon"]}
    assert dict(group["time"].attrs) == {"units": "days since 2000-01-01", "_ARRAY_DIMENSIONS": ["time"]}


def test_the_fill_value_of_missing_chunks_is_no_missing_value(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["t"] = np.arange(6)
        file["t"].make_scale("t")
        for name in ("x", "y"):
            file.create_dataset(name, (6,), "f4", chunks=(2,), fillvalue=9)
            file[name][:2] = [9, 1]
            file[name].dims[0].attach_scale(file["t"])
        file["y"].attrs["_FillValue"] = np.float32(9)
    read = {
        name: np.concatenate([one[name] for one in zarrfeed.ZarrIterableDataset(zarrfeed.open(path), batch_size=4)])
        for name in ("x", "y")
    }
    assert read["x"].tolist() == [9, 1, 9, 9, 9, 9]
    assert np.array_equal(read["y"], [np.nan, 1, *[np.nan] * 4], equal_nan=True)


def test_small_datasets_among_the_metadata_are_read(path: Path) -> None:
    with h5py.File(path, "w") as file:
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(VALUES.shape)
        h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32BE, space, created)
        file["x"][...] = VALUES
    assert np.array_equal(opened(path)[...], VALUES)
    assert opened(path).dtype == np.dtype(">f4")


def _bitshuffled(values: Any) -> bytes:
    bits = np.unpackbits(values.reshape(-1, 1).view("u1"), axis=1, bitorder="little")
    return np.packbits(bits.T, axis=1, bitorder="little").tobytes()


def _shuffled(values: Any) -> bytes:
    return bytes(numcodecs.Shuffle(4).encode(values))


def _lz4(data: bytes) -> bytes:
    return bytes(numcodecs.LZ4().encode(data))[4:]


def _zstd(values: Any) -> bytes:
    return bytes(numcodecs.Zstd(1).encode(_bitshuffled(values)))


def _in_blocks(block: int, stored: list[bytes]) -> bytes:
    """Return the chunk of VALUES of which each block is stored as such bytes."""
    return struct.pack(">QI", VALUES.nbytes, block) + b"".join(struct.pack(">I", len(one)) + one for one in stored)


@pytest.mark.parametrize(
    ("filters", "encode"),
    [
        ([(32015, (3,))], lambda raw: numcodecs.Zstd(3).encode(raw)),
        ([(32001, (2, 2, 4, 96, 5, 1, 1))], lambda raw: numcodecs.Blosc("lz4", 5, 1).encode(raw)),
        ([(2, ()), (307, (9,))], lambda raw: bz2.compress(numcodecs.Shuffle(4).encode(raw))),
        ([(2, (4,)), (32004, (64,))], lambda raw: _in_blocks(64, [_lz4(_shuffled(raw)[:64]), _shuffled(raw)[64:]])),
        ([(32008, (0, 4, 4, 0, 0))], lambda raw: _bitshuffled(raw)),
        ([(32008, (0, 4, 4, 0, 2))], lambda raw: _in_blocks(8192, [_lz4(_bitshuffled(raw))])),
        ([(32008, (0, 4, 4, 16, 3))], lambda raw: _in_blocks(64, [_zstd(raw[:4]), _zstd(raw[4:])])),
    ],
)
def test_registered_filters_with_the_framing_of_numcodecs_are_read(path: Path, filters: Any, encode: Any) -> None:
    write_chunk_directly(path, VALUES, filters, bytes(encode(VALUES)))
    assert np.array_equal(opened(path)[...], VALUES)
    assert np.array_equal(zarrfeed.ZarrDataset(zarrfeed.open(path))[4]["x"], VALUES[4])


@pytest.mark.parametrize("filters", [{}, {"shuffle": True}, {"shuffle": True, "fletcher32": True}])
def test_chunks_that_lzf_did_not_make_smaller_are_read_by_the_engine(path: Path, filters: Any) -> None:
    noise = np.random.default_rng(0).integers(0, 2**32, (6, 40), "u4")
    noise[4:] = 7
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=noise, chunks=(2, 40), compression="lzf", **filters)
        masks = [file["x"].id.get_chunk_info(n).filter_mask for n in range(3)]
    assert masks == [1 << len(filters.keys() & {"shuffle"})] * 2 + [0]
    dataset = zarrfeed.ZarrIterableDataset(zarrfeed.open(path), batch_size=6)
    assert dataset.explain().fields[0].native
    assert np.array_equal(next(iter(dataset))["x"], noise)
    assert np.array_equal(opened(path)[...], noise)
    assert not open_hdf5(path).table("x").unfiltered


def _refused(file: h5py.File) -> None:
    file["good"] = VALUES
    file["nested"] = np.zeros(6, [("a", [("b", "f4")])])
    file["lists"] = np.empty(0, h5py.vlen_dtype("i4"))
    file["references"] = np.array([file["good"].ref] * 6, h5py.ref_dtype)
    layout = h5py.VirtualLayout((6, 4), "f4")
    layout[...] = h5py.VirtualSource(file["good"])
    file.create_virtual_dataset("virtual", layout)
    h5py.h5d.create(file.id, b"times", h5py.h5t.UNIX_D64LE, h5py.h5s.create_simple((6,)))  # as PyTables writes them
    file["void"] = h5py.Empty("f4")
    file["dangling"] = h5py.SoftLink("/nowhere")
    file["away"] = h5py.ExternalLink("other.h5", "/x")
    raw = Path(file.filename).with_name("raw.bin")
    file.create_dataset("outside", (6,), "f4", external=[(str(raw), 0, 24)])[...] = VALUES[:, 0]
    file["half"] = np.zeros(6, "f4")


def test_datasets_that_cannot_be_read_are_refused_by_name_if_they_are_chosen(path: Path) -> None:
    with h5py.File(path, "w") as file:
        _refused(file)
        packed = {name: file[name][...] for name in ("virtual", "outside")}
    assert sorted(zarr.open_group(store=open_hdf5(path), mode="r")) == ["good", "half"]
    for name, reason in {
        "nested": "its items are \\[.* no place in Zarr",
        "times": "h5py cannot read its items",
        "lists": "lists of any length: pad them",
        "references": "its items are references: give the datasets",
        "virtual": "layout is virtual",
        "void": "has no values",
        "dangling": "HDF5 cannot open it",
        "away": "link to /x in other.h5",
        "outside": "external storage",
    }.items():
        with pytest.raises(UnsupportedError, match=f"x.h5/{name}: .*{reason}") as refused:
            zarrfeed.open(path, variables=[name])
        if "zarrfeed pack" in str(refused.value):  # it does
            zarrfeed.pack(path, path.with_name(name), variables=[name])
            stored = zarr.open_array(path.with_name(name), path=name, mode="r")[...]
            assert np.array_equal(np.asarray(stored), packed.pop(name))
    assert not packed
    with pytest.raises(ConfigError, match="'nowhere' is not in samples, must be one of 'good', 'half'"):
        zarrfeed.open(path, variables=["nowhere"])


def test_links_in_a_file_are_names_of_its_datasets(path: Path) -> None:
    with h5py.File(path.with_name("other.h5"), "w") as other:
        other["far"] = VALUES + 100
    with h5py.File(path, "w") as file:
        file["first/x"] = VALUES
        file["hard"], file["soft"] = file["first/x"], h5py.SoftLink("first/x")
        file["group"], file["first/up"] = file["first"], file["/"]
        file["through"], file["other"] = h5py.SoftLink("/other/far"), h5py.ExternalLink("other.h5", "/")
    data = zarrfeed.open(path, variables=["first/x", "hard", "soft"])
    for batch in zarrfeed.ZarrIterableDataset(data, batch_size=2, shuffle=True):
        assert all(np.array_equal(batch[name], batch["first/x"]) for name in batch)
    for name, reason in {
        "group/x": "x.h5/group: is the group first: give that one",
        "first/up/first/x": "x.h5/first/up: is the group /: give that one",
        "through": "link into .*other.h5",
        "other": "link to / in other.h5",
    }.items():
        with pytest.raises((ConfigError, UnsupportedError), match=reason):
            zarrfeed.open(path, variables=[name])


@pytest.mark.parametrize("name", ["time", "TIME", "_time"])
@pytest.mark.parametrize("track_order", [False, True])
def test_a_variable_of_netcdf_is_read_in_place_of_the_dimension_of_its_name(
    path: Path, name: str, track_order: bool
) -> None:
    """netCDF-4 prefixes the name of a variable that has several axes and the name of a dimension."""
    with h5py.File(path, "w", track_order=track_order) as file:
        dimension = file.create_dataset(name, (6,), "f4")
        dimension.make_scale("This is a netCDF dimension but not a netCDF variable.         6")
        file.create_dataset(f"_nc4_non_coord_{name}", data=VALUES).dims[0].attach_scale(dimension)
    assert np.array_equal(opened(path, name)[...], VALUES)
    assert np.array_equal(zarrfeed.ZarrDataset(zarrfeed.open(path))[4][name], VALUES[4])


def test_a_group_of_which_no_dataset_can_be_read_says_why(path: Path) -> None:
    write_chunk_directly(path, VALUES, [(32999, ())], b"x")
    with pytest.raises(UnsupportedError, match=r"x\.h5/x: its HDF5 filter 32999 .* pip install hdf5plugin"):
        zarrfeed.open(path)
    with pytest.raises(ConfigError, match=r"x\.h5: 'x' has filters that h5py lacks: pip install hdf5plugin"):
        zarrfeed.pack(path, path.with_name("x.zarr"))


def test_a_file_that_changed_is_an_error_that_names_it(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(2, 4))
    data = zarrfeed.open(path)
    dataset = zarrfeed.ZarrIterableDataset(data, batch_size=2)
    again = pickle.loads(pickle.dumps(dataset))
    with path.open("ab") as file:
        file.write(b"x")
    for one in (dataset, again):
        with pytest.raises(StoreReadError, match=r"x\.h5:? has changed since"):
            list(one)


@pytest.mark.parametrize("end", [100, 700, -1, -40])
def test_a_truncated_file_is_an_error_that_names_it(path: Path, end: int) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(2, 4))
    content = path.read_bytes()
    path.write_bytes(content[:end])
    with pytest.raises(StoreReadError, match=r"x\.h5: HDF5 cannot read it"):
        zarrfeed.open(path)


def test_chunks_outside_of_the_file_are_refused_by_name(path: Path) -> None:
    path.write_bytes(bytes(100))
    file = DataFile.of(path)
    for offset, length in ((90, 11), (101, 0), (-1, 4), (0, -1), (2**62, 2**62)):
        extents = np.array([(0, 100), (offset, length)])
        with pytest.raises(StoreReadError, match=rf"x.h5/x: chunk \(0, 1\) is said to have {length} bytes"):
            ChunkTable.of_chunks(file, f"{file}/x", (1, 2), np.arange(2), extents)
    for numbers in ([0, 0], [0, 2], [-1, 0]):
        with pytest.raises(ConfigError, match="lists a chunk twice, or outside"):
            ChunkTable.of_chunks(file, "x", (1, 2), np.array(numbers), np.zeros((2, 2), np.int64))


def test_few_chunks_of_a_huge_array_are_found(path: Path) -> None:
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (10**9, 10**3), "u1", chunks=(1, 10), maxshape=(None, 10**3))
        x[10**8, 5], x[7, 999] = 3, 4
    table = open_hdf5(path).table("x")
    assert len(table.offsets) == 2
    assert table.find((10**8, 1)) is None
    found = table.find((10**8, 0))
    assert found is not None
    assert table.read(found)[5] == 3


def test_without_h5py_the_error_says_what_installs_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = VALUES
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ConfigError, match=r'pip install "zarrfeed\[hdf5\]"'):
        zarrfeed.open(path)


@pytest.mark.parametrize("filters", [{"compression": "gzip"}, {"shuffle": True}])
@pytest.mark.parametrize(
    ("shape", "chunks", "most"),
    [
        ((4, 9), (2, 3), (4, None)),  # as many rows of chunks as columns of them: a wrong index lies in the array, too
        ((7, 11), (3, 5), (27, None)),
        ((3, 5, 6), (2, 4, 3), (23, None, 23)),
        ((3, 4, 5), (1, 2, 2), (9, 9, None)),
        ((6, 5), (2, 2), (None, 5)),
        ((6, 5), (2, 2), (None, 9)),
        ((6, 5), (2, 2), (9, 9)),
        ((6, 5), (2, 2), (None, None)),
    ],
)
def test_reads_chunks_where_hdf5_finds_them_not_where_it_lists_them(
    path: Path, shape: Any, chunks: Any, most: Any, filters: Any
) -> None:
    values = np.arange(1, np.prod(shape) + 1, dtype="i4").reshape(shape)
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", data=values, chunks=chunks, maxshape=most, **filters)
    np.testing.assert_array_equal(opened(path)[...], values)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("nonzero", [(), ((30, 49),), ((0, 49), (31, 2)), ((17, 23),)])
@pytest.mark.parametrize("most", [(32, None), (None, 50), (64, None)])
def test_hdf5_is_asked_for_few_of_many_chunks_that_are_alike(
    path: Path, libver: str, nonzero: Any, most: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.zeros((32, 50), "i4")
    for number, at in enumerate(nonzero, 1):
        values[at] = number
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("x", data=values, chunks=(1, 1), maxshape=most)
    asked, shift_of = [], hdf5._shift_of

    def counted(*given: Any) -> int | None:
        asked.append(given)
        return shift_of(*given)

    np.testing.assert_array_equal(opened(path)[...], values)
    monkeypatch.setattr(hdf5, "_shift_of", counted)
    open_hdf5(path).table("x")
    assert len(asked) <= 2 * (16 + 1)  # at both indices of the first chunks, and of one that tells


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "c16", "S3"])
def test_a_checksum_that_is_shuffled_along_is_read_as_netcdf_c_writes_it(path: Path, dtype: str) -> None:
    values = np.arange(84).reshape(12, 7).astype(dtype)
    with h5py.File(path, "w") as file:
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_chunk((5, 3))
        created.set_fletcher32()
        created.set_shuffle()
        created.set_deflate(4)
        space, item = h5py.h5s.create_simple(values.shape), h5py.h5t.py_create(values.dtype)
        h5py.Dataset(h5py.h5d.create(file.id, b"x", item, space, created))[...] = values
    np.testing.assert_array_equal(opened(path)[...], values)
    for batch, index in zarrfeed.ZarrIterableDataset(
        zarrfeed.open(path), batch_size=4, shuffle=True, return_index=True
    ):
        assert bytes_of(batch["x"].numpy()) == bytes_of(values[index])


def test_variables_are_as_long_as_the_dimension_of_netcdf_that_grew(path: Path) -> None:
    with h5py.File(path, "w") as file:
        time = file.create_dataset("time", (0,), "f4", maxshape=(None,), chunks=(8,))
        time.make_scale("This is a netCDF dimension but not a netCDF variable        8")
        time.attrs["_Netcdf4Dimid"] = 0
        for name, length, dtype in (("long", 8, "i4"), ("short", 3, "i4"), ("text", 2, h5py.string_dtype())):
            fill = None if name == "text" else -7
            one = file.create_dataset(name, (length,), dtype, maxshape=(None,), chunks=(2,), fillvalue=fill)
            one[...] = [b"t"] * 2 if name == "text" else np.arange(length)
            one.dims[0].attach_scale(time)
        file.create_dataset("other", (3,), "i4", maxshape=(None,), chunks=(2,))
    group: Any = zarr.open_group(store=open_hdf5(path), mode="r")
    assert group["long"][...].tolist() == list(range(8))
    assert group["short"][...].tolist() == [0, 1, 2, *[-7] * 5]
    assert group["text"][...].tolist() == ["t", "t", *[""] * 6]
    assert group["other"].shape == (3,)


@pytest.mark.parametrize("user_bytes", [0, 512])
def test_what_was_never_written_is_the_fill_value_behind_a_user_block_too(path: Path, user_bytes: int) -> None:
    with h5py.File(path, "w", userblock_size=user_bytes) as file:
        file.create_dataset("x", (40, 3), "i4", fillvalue=-3)  # HDF5 says that it lies at byte 511
        file["y"] = VALUES
    assert np.all(opened(path)[...] == -3)
    np.testing.assert_array_equal(opened(path, "y")[...], VALUES)


def test_counts_of_cell_ranger_are_a_matrix_with_a_row_for_each_cell(path: Path) -> None:
    counts = scipy.sparse.random(12, 40, 0.3, "csc", random_state=2, dtype="f4")
    counts.data = np.arange(1, counts.nnz + 1, dtype="i4")
    with h5py.File(path, "w") as file:
        matrix = file.create_group("matrix")
        for name in ("data", "indices", "indptr"):
            values = getattr(counts, name).astype("i4" if name == "data" else "i8")
            matrix.create_dataset(name, data=values, chunks=(30,), compression="gzip", shuffle=True)
        matrix["shape"] = np.array(counts.shape, "i4")
        matrix["barcodes"] = np.array([f"AAAC{number}-1".encode() for number in range(40)])
        matrix["features/id"] = np.array([f"gene{number}".encode() for number in range(12)])
    data = zarrfeed.open(path / "matrix")
    rows = [31, 0, 7, 31]
    np.testing.assert_array_equal(zarrfeed.ZarrDataset(data)[rows].to_dense().numpy(), counts.T.toarray()[rows])
    assert zarrfeed.open(path / "matrix" / "barcodes").fields[0].shape == (8,)
    with pytest.raises(ConfigError, match="matrix' is a sparse matrix, whose rows are samples"):
        zarrfeed.open(path)


def test_a_group_that_is_almost_one_of_cell_ranger_stays_a_group(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name in ("data", "indices", "indptr", "barcodes", "shape"):
            file[name] = np.arange(5)
    assert len(zarrfeed.open(path).fields) == 5
