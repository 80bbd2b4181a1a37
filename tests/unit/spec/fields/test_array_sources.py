"""The stored arrays of fields, each once, however many fields draw from it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from numcodecs import AsType
from zarr.storage import LocalStore, MemoryStore, ZipStore

from zarrfeed.metadata.array.array import read_layout
from zarrfeed.metadata.array.host_memory import field_in_memory
from zarrfeed.spec.arrays.array_parts import ArrayParts
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.array_sources import array_sources
from zarrfeed.spec.fields.field import Field, IndexField, StoredField
from zarrfeed.spec.samples.window import Window
from zarrfeed.spec.values.conversion import Conversion
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.parted_source import PartedSource

N = 24


def write(store: Any, name: str, *, rows: int = 4, **options: Any) -> zarr.Array[Any]:
    array = zarr.create_array(store, name=name, shape=(N, 3), chunks=(rows, 3), dtype="i4", **options)
    array[:] = np.arange(N * 3).reshape(N, 3)
    return array


def to_zip(folder: Path) -> Any:
    with ZipStore(folder / "a.zip", mode="w") as store:
        write(store, "x")
    return lambda: zarr.open_array(ZipStore(folder / "a.zip", read_only=True), path="x", mode="r")


def in_memory(_: Path) -> Any:
    objects: dict[str, Any] = {}
    write(MemoryStore(objects), "x")
    return lambda: zarr.open_array(MemoryStore(objects), path="x", mode="r")


def local(folder: Path, **options: Any) -> Any:
    write(folder / "a.zarr", "x", **options)
    return lambda: folder / "a.zarr" / "x"


OPENED: dict[str, Callable[[Path], Any]] = {
    "local": local,
    "sharded": lambda folder: local(folder, shards=(8, 3)),
    "zarr-python": lambda folder: local(folder, zarr_format=2, filters=[AsType("<i4", "<i4")]),
    "memory": in_memory,
    "zip": to_zip,
}


@pytest.mark.parametrize("kind", list(OPENED))
def test_an_array_that_is_opened_twice_is_one_source_whatever_is_made_of_its_rows(kind: str, tmp_path: Path) -> None:
    opened = OPENED[kind](tmp_path)
    one, two, three = (read_layout(opened()) for _ in range(3))
    converted = StoredField("samples", two, conversion=Conversion("int32", "float32"))
    fields: list[Field] = [
        field_in_memory("weights", torch.zeros(N, 1), 0),
        StoredField("samples", one, window=Window((-1, 0))),
        IndexField(N),
        converted,
        StoredField("targets", replace(three, name="another name")),
    ]
    (source,) = array_sources(fields)
    assert source.fields == (1, 3, 4)
    assert source.draws == ((1, 0), (3, 0), (4, 0))
    assert source.spec == one
    assert source.layout.conversion is None
    (again,) = array_sources(pickle.loads(pickle.dumps([f for f in fields if isinstance(f, StoredField)])))
    assert again.fields == (0, 1, 2)


def test_arrays_that_differ_in_anything_are_sources_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "a.zarr", "x")
    write(tmp_path / "a.zarr", "y")
    write(tmp_path / "b.zarr", "x")
    objects: dict[str, Any] = {}
    write(MemoryStore(objects), "x")
    paths = [tmp_path / "a.zarr" / "x", tmp_path / "a.zarr" / "y", tmp_path / "b.zarr" / "x"]
    specs = [read_layout(path) for path in paths]
    of_memory = [zarr.open_array(MemoryStore(held), path="x", mode="r") for held in (objects, dict(objects))]
    specs += [read_layout(array) for array in of_memory]  # with equal objects, as long as nobody writes
    specs += [read_layout(paths[0], sample_axis=1), replace(specs[0], fill=b"\1\0\0\0")]
    fields = [StoredField("x", spec) for spec in specs]
    assert [source.fields for source in array_sources(fields)] == [(number,) for number in range(len(fields))]


def test_arrays_in_memory_are_found_apart_from_those_that_are_streamed(tmp_path: Path) -> None:
    write(tmp_path / "a.zarr", "x")
    spec = read_layout(tmp_path / "a.zarr" / "x")
    fields = [StoredField(name, spec, resident=name != "streamed") for name in ("a", "streamed", "b")]
    assert [source.fields for source in array_sources(fields)] == [(1,)]
    assert [source.fields for source in array_sources(fields, resident=True)] == [(0, 2)]


def joined(name: str, stores: list[Any]) -> StoredField:
    """Return a field of several stores; the first one has chunks of another length, and is a layout of its own."""
    specs = [read_layout(zarr.open_array(store, path="x", mode="r")) for store in stores]
    layouts = []
    for first, end in ((0, 1), (1, len(specs))):
        here = specs[first:end]
        begin = np.arange(first, end) * N
        names = [one.name for one in here]
        in_python = here[0].source is not None
        prefixes = [f"{i}/".encode() if in_python else one.root.encode() for i, one in enumerate(here)]
        sources = [one.source for one in here if isinstance(one.source, StoreSource)]
        spec = replace(
            here[0], shape=(N * len(specs), 3), root="", source=PartedSource.of(sources) if sources else None
        )
        layouts.append(Layout(spec, ArrayParts(begin, begin + N, prefixes, names, here[0].rows_per_chunk)))
    return StoredField(name, layouts[0].spec, parts=layouts[0].parts, others=(layouts[1],))


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_arrays_of_many_stores_are_compared_store_by_store(kind: str, tmp_path: Path) -> None:
    stores: list[Any] = [MemoryStore() if kind == "memory" else tmp_path / name for name in "abcd"]
    for number, store in enumerate(stores):
        write(store, "x", rows=6 if number == 0 else 4)
    of_others = [*stores[:3], MemoryStore() if kind == "memory" else tmp_path / "e"]
    write(of_others[3], "x")
    names = {
        "samples": stores,
        "targets": stores,
        "of others": of_others,
        "in another order": [*stores[:2], *stores[:1:-1]],
    }
    sources = array_sources([joined(name, chosen) for name, chosen in names.items()])
    assert [source.draws for source in sources] == [
        ((0, 0), (1, 0), (2, 0), (3, 0)),
        ((0, 1), (1, 1)),
        ((2, 1),),
        ((3, 1),),
    ]


def test_a_store_that_only_wraps_an_equal_one_is_another_source(tmp_path: Path) -> None:
    write(tmp_path / "a.zarr", "x")

    class Inverted(LocalStore):
        """Like a store whose bytes differ, and which inherits the equality of the store that it extends."""

    opened = [zarr.open_array(Inverted(tmp_path / "a.zarr", read_only=True), path="x", mode="r") for _ in range(2)]
    assert opened[0].store == opened[1].store
    fields = [StoredField("x", read_layout(array)) for array in opened]
    assert len(array_sources(fields)) == 2
    assert len(array_sources([fields[0], replace(fields[0], name="y")])) == 1
