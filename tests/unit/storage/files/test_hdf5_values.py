"""Datasets of HDF5 that h5py decodes: each kind of items and of filters that no codec of Zarr reads, against h5py."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from tests.support.hdf5_files import masked
from zarrfeed.base.errors import CorruptChunkError, StoreReadError
from zarrfeed.storage.files.file_index import beside, write_index
from zarrfeed.storage.files.hdf5 import open_hdf5

N = 20
NUMBERS = np.arange(N * 3, dtype=">i4").reshape(N, 3)
WORDS = np.array([f"ñ{i}" * (i % 3) for i in range(N)], object)
TEXT = h5py.string_dtype()
RECORDS = np.array([(i, f"r{i}", (i, 0)) for i in range(N)], [("a", ">i2"), ("b", "S4"), ("c", "f4", (2,))])


def fixed_text(padding: int) -> Callable[[h5py.File], None]:
    """Return what writes text of fixed length that HDF5 pads otherwise than NumPy."""

    def write(file: h5py.File) -> None:
        kind = h5py.h5t.C_S1.copy()
        kind.set_size(6)
        kind.set_strpad(padding)
        h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((N,)))
        file["x"][...] = np.array([f"t{i}" for i in range(N)], "S6")

    return write


def gapped(file: h5py.File) -> None:
    dtype = np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [0, 8], "itemsize": 24})
    file["x"] = np.array([(i, -i) for i in range(N)], dtype)


def wide_float(file: h5py.File) -> None:
    wide = h5py.h5t.IEEE_F32LE.copy()
    wide.set_size(8)
    h5py.h5d.create(file.id, b"x", wide, h5py.h5s.create_simple((N,)))
    file["x"][...] = np.arange(N)


def edges(file: h5py.File) -> None:
    """Write a dataset of which nothing tells whether the chunk at its edge is shuffled, in a file of HDF5 1.10."""
    file.create_dataset("x", data=NUMBERS, chunks=(3, 3), shuffle=True)


def shuffled_behind_deflate(file: h5py.File) -> None:
    """Write chunks whose shuffle has any number of bytes, which only the compressor before it knows."""
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_chunk((7, 3))
    created.set_deflate(4)
    created.set_shuffle()
    h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32BE, h5py.h5s.create_simple(NUMBERS.shape), created)
    file["x"][...] = NUMBERS


WRITERS: dict[str, Callable[[h5py.File], Any]] = {
    "shuffle behind deflate": shuffled_behind_deflate,
    "text": lambda file: file.create_dataset("x", data=WORDS, dtype=TEXT),
    "deflated text": lambda file: file.create_dataset("x", data=WORDS, dtype=TEXT, chunks=(7,), compression="gzip"),
    "text with axes": lambda file: file.create_dataset("x", data=WORDS.reshape(5, 4), dtype=TEXT, chunks=(2, 3)),
    "text by default": lambda file: file.create_dataset("x", (N,), TEXT, chunks=(8,), fillvalue="é"),
    "terminated text": fixed_text(h5py.h5t.STR_NULLTERM),
    "text behind spaces": fixed_text(h5py.h5t.STR_SPACEPAD),
    "records": lambda file: file.create_dataset("x", data=RECORDS, chunks=(6,), compression="gzip"),
    "records with gaps": gapped,
    "odd floats": wide_float,
    "scaled": lambda file: file.create_dataset("x", data=NUMBERS, scaleoffset=0, chunks=(6, 2)),
    "szip": lambda file: file.create_dataset("x", data=NUMBERS, compression="szip", chunks=(8, 3)),
    "shuffled edges": edges,
    "nothing": lambda file: file.create_dataset("x", (N, 2), "f4", chunks=(4, 2), scaleoffset=2, fillvalue=7),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.h5"


def is_same(found: Any, expected: Any) -> bool:
    """Return whether samples, of a batch or of zarr-python, are the values that h5py has for them."""
    if isinstance(found, dict):
        return all(is_same(values, expected[name]) for name, values in found.items())
    expected = np.asarray(expected)
    if expected.dtype == object:
        decoded = np.array([one.decode() for one in expected.reshape(-1).tolist()], object)
        return np.asarray(found, object).tolist() == decoded.reshape(expected.shape).tolist()  # type: ignore[no-any-return]
    native = expected.astype(expected.dtype.newbyteorder("="))
    return bool(np.asarray(found).tobytes() == native.tobytes() or np.array_equal(found, expected))


@pytest.mark.parametrize("kind", WRITERS)
def test_values_are_those_of_h5py(path: Path, kind: str) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        WRITERS[kind](file)
        expected = file["x"][()]
    array: Any = zarr.open_array(store=pickle.loads(pickle.dumps(open_hdf5(path))), path="x", mode="r")
    values: Any = array[...]
    assert is_same({name: values[name] for name in array.dtype.names or ()} or values, expected)
    dataset = zarrfeed.ZarrIterableDataset(zarrfeed.open(path), batch_size=3, shuffle=True, seed=4, return_index=True)
    seen: list[int] = []
    for batch, index in dataset:
        seen += index.tolist()
        assert is_same(batch["x"], expected[index.numpy()])
        if kind == "records":  # zarr-python has the members that have axes as bytes
            assert (batch["x"]["c"].dtype, tuple(batch["x"]["c"].shape[1:])) == (torch.float32, (2,))
    assert sorted(seen) == list(range(len(expected)))


@pytest.mark.parametrize("kind", ["chunks", "compressed", "an index", "npy"])
def test_members_of_records_keep_their_axes(path: Path, kind: str) -> None:
    dtype = np.dtype([("a", "<i4"), ("c", ">f4", (2, 3)), ("d", "<f8", (1,))])
    records = np.zeros(N, dtype)
    records["a"], records["c"], records["d"][:, 0] = range(N), np.arange(N * 6).reshape(N, 2, 3), np.arange(N) / 2
    if kind == "npy":
        path = path.with_suffix(".npy")
        np.save(path, records)
    else:
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=records, chunks=(6,), compression="gzip" if kind == "compressed" else None)
    if kind == "an index":
        write_index(open_hdf5(path), beside(path))
    samples = zarrfeed.ZarrDataset(zarrfeed.open(path))[[7, 3, 19]]
    read = samples if kind == "npy" else samples["x"]
    for name in dtype.names or ():
        wanted = records[name][[7, 3, 19]]
        assert read[name].dtype == torch.from_numpy(wanted.astype(wanted.dtype.newbyteorder("="))).dtype
        assert np.array_equal(read[name], wanted)


def test_the_library_that_decodes_is_named(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=NUMBERS, scaleoffset=0)
    explained = str(zarrfeed.ZarrIterableDataset(zarrfeed.open(path), batch_size=4).explain())
    assert "HDF5, decoded by its library" in explained


def test_a_scalar_text_and_a_missing_chunk_are_what_h5py_reads(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["s"] = "ünder"
        file.create_dataset("x", (6,), TEXT, chunks=(2,))
        file["x"][:2] = ["a", "b"]
    group: Any = zarr.open_group(store=open_hdf5(path), mode="r")
    assert group["s"][()] == "ünder"
    assert group["x"][...].tolist() == ["a", "b", "", "", "", ""]
    strict = zarrfeed.ZarrIterableDataset(
        zarrfeed.open(path, variables=["x"]), batch_size=6, faults={"missing": "raise"}
    )
    with pytest.raises(StoreReadError, match="chunk 1: is missing"):
        list(strict)


def test_text_that_is_no_utf8_is_an_error_that_names_the_chunk(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.array([b"\xff\xfe", b"a"], object)
    with pytest.raises(CorruptChunkError, match=r"x\.h5/x chunk 0"):
        zarrfeed.ZarrDataset(zarrfeed.open(path))[1]


def test_a_chunk_that_lacks_a_filter_is_read(path: Path) -> None:
    masked(path)
    with h5py.File(path) as file:
        expected = file["x"][...]
    data = zarrfeed.open(path)
    assert np.array_equal(np.concatenate([b["x"] for b in zarrfeed.ZarrIterableDataset(data, batch_size=5)]), expected)
    assert zarrfeed.ZarrDataset(data)[13]["x"] == expected[13]


def test_a_file_that_changed_is_an_error_that_names_it(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=WORDS, dtype=TEXT)
    dataset = zarrfeed.ZarrIterableDataset(zarrfeed.open(path), batch_size=4)
    with path.open("ab") as appended:
        appended.write(b"x")
    with pytest.raises(StoreReadError, match=r"x\.h5:? has changed since"):
        list(dataset)
