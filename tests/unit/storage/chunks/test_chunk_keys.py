"""Arrays none of whose chunks is where their metadata say: which are refused, and which hold the fill value."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import obstore
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore as ObstoreMemory
from zarr.buffer import cpu
from zarr.storage import LocalStore, MemoryStore, ObjectStore

import zarrfeed
from tests.support.oracle import ZARR_FORMATS, ZarrFormat
from zarrfeed import StoreReadError, ZarrDataset, ZarrIterableDataset
from zarrfeed.storage.chunks.chunk_keys import ChunkKeys, keys_of, misplaced_file

VALUES = np.arange(1, 401).reshape(20, 20)


def _array(store: Any, **options: Any) -> zarr.Array[Any]:
    return zarr.create_array(store, data=VALUES, **({"chunks": (4, 4)} | options))


def _without_separator(path: Path) -> None:
    document = json.loads((path / ".zarray").read_text())
    del document["dimension_separator"]
    (path / ".zarray").write_text(json.dumps(document))


def _as_default_keys(path: Path) -> None:
    document = json.loads((path / "zarr.json").read_text())
    document["chunk_key_encoding"] = {"name": "default", "configuration": {"separator": "/"}}
    (path / "zarr.json").write_text(json.dumps(document))


def _moved(path: Path) -> None:
    (path / "old").mkdir()
    shutil.move(path / "c", path / "old" / "c")


MISPLACED: dict[str, tuple[dict[str, Any], Callable[[Path], None], str, str]] = {
    "nested folders": (
        {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
        _without_separator,
        r"'0\.0', but there is '\d/\d'",
        "set dimension_separator in .zarray",
    ),
    "a moved prefix": ({}, _moved, r"'c/0/0', but there is 'old/c/\d/\d'", "the chunks lie below 'old/'"),
    "moved shards": ({"chunks": (2, 2), "shards": (4, 4)}, _moved, "'c/0/0', but there is 'old/c", "lie below 'old/'"),
    "keys of v2": (
        {"chunk_key_encoding": {"name": "v2", "separator": "."}},
        _as_default_keys,
        r"'c/0/0', but there is '\d\.\d'",
        "another encoding",
    ),
}


@pytest.mark.parametrize("case", MISPLACED)
def test_chunks_that_lie_elsewhere_are_read_as_zeros(tmp_path: Path, case: str) -> None:
    options, ruin, names, remedy = MISPLACED[case]
    path = tmp_path / "a.zarr"
    _array(path, **options)
    assert zarrfeed.verify(path).ok
    ruin(path)
    with pytest.raises(StoreReadError, match=rf"a\.zarr: nothing is stored: .*{names}.*{remedy}"):
        zarrfeed.open(path)
    report = zarrfeed.verify(path)
    assert not report.ok
    assert "nothing is stored" in str(report)
    assert report.problems == ("1 array of which nothing is stored",)
    assert report.to_dict()["arrays"][0]["misplaced"]
    for store in (LocalStore, _Other):  # which Python reads
        array = zarr.open_array(store(path, read_only=True), mode="r")
        for read in (
            lambda a=array: ZarrDataset(a, cache=0)[[0, 19]],
            lambda a=array: list(ZarrIterableDataset(a, batch_size=4)),
        ):
            with pytest.raises(StoreReadError, match="nothing is stored"):
                read()
        assert not zarrfeed.verify(array).ok


def _copied(objects: ObstoreMemory) -> MemoryStore:
    """Return objects in a store that Python reads on its event loop."""
    paths = [one["path"] for one in obstore.list(objects).collect()]
    return MemoryStore({path: cpu.Buffer.from_bytes(bytes(obstore.get(objects, path).bytes())) for path in paths})


class _Other(LocalStore):
    """A store that is none of those that are read in a way of their own."""


def test_an_array_in_an_object_store_is_read_as_zeros() -> None:
    objects = ObstoreMemory()
    array = _array(ObjectStore(objects), name="g/x")
    for one in obstore.list(objects).collect():
        if "/c/" in one["path"]:
            obstore.rename(objects, one["path"], one["path"].replace("/c/", "/old/c/"))
    for read in (
        lambda: list(ZarrIterableDataset(array, batch_size=4)),
        lambda: ZarrDataset(array, cache=0)[[0, 19]],
    ):
        with pytest.raises(StoreReadError, match=r"g/x: nothing is stored: .*'old/c/\d/\d'.*lie below 'old/'"):
            read()
    assert zarrfeed.verify(array).problems == ("1 array of which nothing is stored",)


@pytest.mark.parametrize("document", ["zarr.json", ".zarray", ".zgroup"])
def test_a_node_below_an_array_of_an_object_store_is_taken_for_its_chunks(document: str) -> None:
    objects = ObstoreMemory()
    array = zarr.create_array(ObjectStore(objects), name="a", shape=(8,), chunks=(2,), dtype="i4")
    for key in (document, "0/c/0", "0.0", "zz/1"):
        obstore.put(objects, f"a/labels/{key}", b"{}")
    (batch,) = ZarrIterableDataset(array, batch_size=8)
    assert batch.tolist() == [0] * 8
    in_python = ZarrIterableDataset(zarr.open_array(_copied(objects), path="a", mode="r"), batch_size=8)
    assert next(iter(in_python)).tolist() == [0] * 8
    assert zarrfeed.verify(array).ok
    obstore.put(objects, "a/moved/c/1", b"")
    with pytest.raises(StoreReadError, match="lie below 'moved/'"):
        list(ZarrIterableDataset(array, batch_size=8))


def test_one_of_many_stores_is_read_as_zeros(tmp_path: Path) -> None:
    for number in range(3):
        _array(tmp_path / f"{number}.zarr")
    _moved(tmp_path / "1.zarr")
    with pytest.raises(StoreReadError, match=r"1\.zarr: nothing is stored"):
        zarrfeed.open(str(tmp_path / "*.zarr"))


def test_arrays_that_describe_others_are_read_as_zeros(tmp_path: Path) -> None:
    _array(tmp_path / "mask.zarr")
    _moved(tmp_path / "mask.zarr")
    with pytest.raises(StoreReadError, match=r"mask\.zarr: nothing is stored"):
        zarrfeed.open({"x": np.zeros((3, 20, 20))}).static(mask=tmp_path / "mask.zarr")
    matrix = zarr.create_group(tmp_path / "m.zarr")
    matrix.attrs.update({"encoding-type": "csr_matrix", "shape": [2, 9]})
    for name, values in {"data": np.ones(8), "indices": [*range(4)] * 2, "indptr": [0, 4, 8]}.items():
        matrix.create_array(name, data=np.array(values), chunks=(2,))
    assert len(zarrfeed.open(tmp_path / "m.zarr")) == 2
    _moved(tmp_path / "m.zarr" / "indices")
    with pytest.raises(StoreReadError, match=r"m\.zarr/indices: nothing is stored"):
        zarrfeed.open(tmp_path / "m.zarr")


def _only_fill(path: Path) -> None:
    shutil.rmtree(path / "c")


def _all_but_one(path: Path) -> None:
    _moved(path)
    (path / "c" / "3").mkdir(parents=True)
    shutil.copy(path / "old" / "c" / "3" / "2", path / "c" / "3" / "2")


def _notes(path: Path) -> None:
    _only_fill(path)
    (path / "c" / "0").mkdir(parents=True)
    for name in ("README", ".DS_Store", "Thumbs.db", "a.lock", "map.png", "sha256sums", ".nfs0001", "c/0/Thumbs.db"):
        (path / name).write_text("zeros")
    (path / "c" / "0" / "0.0123abcd.partial").write_text("being written")


def _other_node(path: Path) -> None:
    _only_fill(path)
    _array(path / "inside")


def _beyond_the_shape(path: Path) -> None:
    (path / "c" / "9").mkdir()
    shutil.move(path / "c" / "0" / "0", path / "c" / "9" / "0")
    for row in (path / "c").glob("[0-4]"):
        shutil.rmtree(row)


@pytest.mark.parametrize("harmless", [_only_fill, _all_but_one, _notes, _other_node, _beyond_the_shape])
def test_an_array_that_holds_the_fill_value_is_refused(tmp_path: Path, harmless: Callable[[Path], None]) -> None:
    path = tmp_path / "a.zarr"
    _array(path)
    harmless(path)
    expected = np.asarray(zarr.open_array(path, mode="r")[:])
    (batch,) = ZarrIterableDataset(path, batch_size=20)
    assert np.array_equal(batch.numpy(), expected)
    report = zarrfeed.verify(zarr.open_array(path, mode="r"))
    assert report.ok
    assert ("nothing is stored of 1 array" in str(report)) == (not expected.any())


def test_an_array_of_a_few_chunks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    _array(path, chunks=(20, 8))
    _moved(path)
    assert zarrfeed.verify(path).ok
    assert not next(iter(ZarrIterableDataset(path, batch_size=20))).any()


@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    separator=st.sampled_from("/."),
    name=st.sampled_from(["default", "v2"]),
    zarr_format=st.sampled_from(ZARR_FORMATS),
    data=st.data(),
)
def test_keys_are_not_those_of_zarr_python(
    counts: list[int], separator: str, name: str, zarr_format: ZarrFormat, data: st.DataObject
) -> None:
    encoding: Any = {"name": "v2" if zarr_format == 2 else name, "separator": separator}
    array = zarr.create_array(
        {},
        shape=tuple(2 * n for n in counts),
        chunks=(2,) * len(counts),
        dtype="i1",
        zarr_format=zarr_format,
        chunk_key_encoding=encoding,
    )
    keys = keys_of(array)
    assert keys is not None
    assert keys.counts == tuple(counts)
    assert keys.first == array.metadata.encode_chunk_key((0,) * len(counts))
    chunk = tuple(data.draw(st.integers(0, n - 1)) for n in counts)
    key = array.metadata.encode_chunk_key(chunk)
    assert keys.has(key)
    for wrong in (f"x/{key}", f"{key}/0", f"{key}x", f"0{key}", ""):
        assert not keys.has(wrong), wrong


def test_a_folder_is_searched_although_the_first_chunk_is_there(tmp_path: Path) -> None:
    keys = ChunkKeys("", ".", (1000,))
    (tmp_path / "0").write_text("")
    with mock.patch.object(os, "scandir", side_effect=AssertionError("listed")):
        assert misplaced_file(tmp_path, keys) == ""
