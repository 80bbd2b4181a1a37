"""The small stores that configurations read, written by zarr-python: each sample encodes its index.

A configuration calls the methods of a `Maker` by keyword arguments alone, so that its text says all of a store.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numcodecs
import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore, ZipStore

import zarrfeed

AnyArray: TypeAlias = npt.NDArray[Any]
Kept: TypeAlias = Literal["local", "memory", "zip"]

#: Name -> compressors in Zarr v3, and in v2.
CODECS: dict[str, tuple[list[Any], list[Any]]] = {
    "none": ([], []),
    "zstd": ([ZstdCodec(level=1)], [numcodecs.Zstd(level=1)]),
    "gzip": ([GzipCodec(level=1)], [numcodecs.GZip(level=1)]),
    "blosc": ([BloscCodec(cname="lz4", typesize=4)], [numcodecs.Blosc(cname="lz4", shuffle=1)]),
    "bloscz": ([BloscCodec(cname="zstd", typesize=2)], [numcodecs.Blosc(cname="zstd", shuffle=2)]),
    "crc": ([ZstdCodec(level=1), Crc32cCodec()], [numcodecs.Zstd(level=1)]),
    "bz2": ([], [numcodecs.BZ2(level=1)]),  # which the engine leaves to Python, in v2
}


def numbered(shape: Sequence[int], dtype: str = "i4", axis: int = 0, first: int = 0) -> AnyArray:
    """Return an array whose items count on along all axes, the sample axis first: items tell the index of a sample."""
    moved = [shape[axis], *(length for at, length in enumerate(shape) if at != axis % len(shape))]
    count = int(np.prod(moved)) if moved else 1
    items = np.arange(first, first + count)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        values: AnyArray = items % 3 == 0
    else:
        values = (items % 2000).astype(kind) if kind.kind == "f" and kind.itemsize == 2 else items.astype(kind)
    return np.ascontiguousarray(np.moveaxis(values.reshape(moved), 0, axis))


class Maker:
    """Writes stores below a folder.

    Parameters
    ----------
    folder
        An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def array(
        self,
        name: str,
        shape: Sequence[int],
        chunks: Sequence[int],
        *,
        dtype: str = "i4",
        codec: str = "zstd",
        v: Literal[2, 3] = 3,
        shards: Sequence[int] | None = None,
        index: Literal["start", "end"] = "end",
        axis: int = 0,
        order: Literal["C", "F"] = "C",
        transpose: bool = False,
        delta: bool = False,
        dims: Sequence[str] | None = None,
        attrs: Mapping[str, Any] | None = None,
        holes: Sequence[int] = (),
        fill: Any = 0,
        first: int = 0,
        separator: Literal[".", "/"] | None = None,
        kept: Kept = "local",
    ) -> Any:
        """Write an array; return its path, or for other stores the opened array. Chunks at `holes` are left out."""
        store, path = self._store(name, kept)
        options: dict[str, Any] = {"order": order} if v == 2 else {"dimension_names": dims}
        if shards is not None:
            options["shards"] = {"shape": tuple(shards), "index_location": index}
        if v == 3 and transpose:
            options["filters"] = [TransposeCodec(order=tuple(reversed(range(len(shape)))))]
        if v == 2 and delta:
            options["filters"] = [numcodecs.Delta(dtype=dtype)]
        if separator is not None:
            options["chunk_key_encoding"] = {"name": "v2" if v == 2 else "default", "separator": separator}
        array = zarr.create_array(
            store,
            name=path,
            shape=tuple(shape),
            chunks=tuple(chunks),
            dtype=dtype,
            zarr_format=v,
            compressors=CODECS[codec][0 if v == 3 else 1] or None,
            fill_value=fill,
            attributes=_attributes(attrs, dims, v),
            **options,
        )
        values = numbered(shape, dtype, axis, first)
        step = array.shards[axis] if array.shards is not None else array.chunks[axis]
        for number, begin in enumerate(range(0, shape[axis], step)):
            if number not in holes:
                at = (slice(None),) * (axis % len(shape)) + (slice(begin, begin + step),)
                array[at] = values[at]
        return self._opened(name, path, store, kept)

    def group(self, name: str, arrays: Mapping[str, Mapping[str, Any]], *, v: Literal[2, 3] = 3, **attrs: Any) -> Path:
        """Write a group: name of each array -> arguments of `array`."""
        zarr.create_group(LocalStore(self.folder / name), zarr_format=v, attributes=attrs or None)
        for member, options in arrays.items():
            self.array(f"{name}/{member}", **{"v": v, **options})
        return self.folder / name

    def values(
        self, name: str, data: Any, chunks: Sequence[int] | None = None, *, v: Literal[2, 3] = 3, **options: Any
    ) -> Path:
        """Write some values, such as times or labels."""
        array = np.asarray(data)
        kept = {"dimension_names": options.pop("dims", None)} if v == 3 else {}
        zarr.create_array(
            LocalStore(self.folder / name), data=array, chunks=tuple(chunks or array.shape), zarr_format=v, **kept
        ).attrs.update(options)
        return self.folder / name

    def text(
        self, name: str, count: int, chunk: int, *, v: Literal[2, 3] = 3, width: int = 0, raw: bool = False
    ) -> Path:
        """Write text, or bytes of any length: item i is `s<i>` i % 5 times. A sample has `width` items, or is one."""
        shape = (count, width) if width else (count,)
        items = [f"s{i}é" * (i % 5) for i in range(int(np.prod(shape)))]
        dtype: Any = zarr.dtype.VariableLengthBytes() if raw else str
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = zarr.create_array(
                LocalStore(self.folder / name),
                shape=shape,
                chunks=(chunk, *shape[1:]),
                dtype=dtype,
                zarr_format=2 if raw else v,
            )
            given = np.array([one.encode() for one in items] if raw else items, dtype=object)
            array[...] = given.reshape(shape)
        return self.folder / name

    def images(self, name: str, count: int, chunk: int) -> Path:
        """Write PNG images of bytes of any length, whose pixels tell their number."""
        from PIL import Image

        files = []
        for number in range(count):
            file = io.BytesIO()
            pixels = np.full((4 + number % 3, 5, 3), number, np.uint8)
            Image.fromarray(pixels).save(file, "png")
            files.append(file.getvalue())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = zarr.create_array(
                LocalStore(self.folder / name),
                shape=(count,),
                chunks=(chunk,),
                dtype=zarr.dtype.VariableLengthBytes(),
                zarr_format=2,
            )
            array[:] = np.array(files, dtype=object)
        return self.folder / name

    def records(self, name: str, count: int, chunk: int) -> Path:
        """Write an array of records (Zarr v2)."""
        kind = np.dtype([("a", "<i4"), ("b", "<f4", (2,))])
        values = np.zeros(count, kind)
        values["a"] = np.arange(count)
        values["b"] = np.arange(2 * count).reshape(count, 2)
        array = zarr.create_array(
            LocalStore(self.folder / name),
            shape=(count,),
            chunks=(chunk,),
            dtype=kind,
            zarr_format=2,
            fill_value=np.zeros((), kind)[()],
        )
        array[:] = values
        return self.folder / name

    def csr(self, name: str, rows: int, columns: int, *, chunk: int = 20, dtype: str = "f4", first: int = 0) -> Path:
        """Write a sparse matrix as AnnData does: row i has i + 1 in one of its columns."""
        matrix = _sparse(rows, columns, first)
        at, where = np.nonzero(matrix)
        group = zarr.create_group(LocalStore(self.folder / name), zarr_format=3)
        group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [rows, columns]})
        group.create_array("indices", data=where.astype("i4"), chunks=(chunk,))
        group.create_array("data", data=matrix[at, where].astype(dtype), chunks=(chunk + 3,))
        ends = np.concatenate(([0], np.cumsum(np.count_nonzero(matrix, axis=1))))
        group.create_array("indptr", data=ends, chunks=(7,))
        return self.folder / name

    def anndata(self, name: str, rows: int, columns: int, *, chunk: int = 20) -> Path:
        """Write an AnnData: a sparse matrix, and a table with a column of numbers, of text and of categories."""
        root = zarr.create_group(LocalStore(self.folder / name), zarr_format=3)
        root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        self.csr(f"{name}/X", rows, columns, chunk=chunk)
        obs = root.create_group("obs")
        obs.attrs.update(
            {"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "n", "column-order": ["n", "kind"]}
        )
        obs.create_array("n", data=np.arange(rows), chunks=(chunk,))
        obs["n"].attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        kind = obs.create_group("kind")
        kind.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False})
        kind.create_array("codes", data=(np.arange(rows) % 3).astype("i1"), chunks=(chunk,))
        kind.create_array("categories", data=np.array([10, 20, 30]), chunks=(3,))
        return self.folder / name

    def pyramid(
        self,
        name: str,
        shape: Sequence[int],
        chunk: int,
        *,
        levels: int = 2,
        v: Literal[2, 3] = 3,
        labels: bool = False,
    ) -> Path:
        """Write an OME-Zarr image whose levels halve all axes."""
        axes = "tczyx"[-len(shape) :]
        group = zarr.create_group(LocalStore(self.folder / name), zarr_format=v)
        self._put_levels(group, name, shape, chunk, levels, axes, v)
        if labels:
            below = group.create_group("labels")
            _put_ome(below, {"labels": ["cells"]})
            self._put_levels(below.create_group("cells"), f"{name}/labels/cells", shape, chunk, levels, axes, v)
        return self.folder / name

    def _put_levels(
        self, group: zarr.Group, name: str, shape: Sequence[int], chunk: int, levels: int, axes: str, v: Literal[2, 3]
    ) -> None:
        kinds = {"t": "time", "c": "channel"}
        datasets = []
        for level in range(levels):
            factor = 2**level
            lengths = [max(1, length // factor) for length in shape]
            self.array(f"{name}/{level}", lengths, [min(chunk, n) for n in lengths], dtype="u2", v=v, first=level)
            transformations = [
                {"type": "scale", "scale": [0.5 * factor] * len(shape)},
                {"type": "translation", "translation": [0.25 * (factor - 1)] * len(shape)},
            ]
            datasets.append({"path": str(level), "coordinateTransformations": transformations})
        named = [{"name": one, "type": kinds.get(one, "space")} for one in axes]
        _put_ome(group, {"multiscales": [{"axes": named, "datasets": datasets, "version": "0.4"}]})

    def dataset(self, name: str, times: int, chunk: int, *, step: int = 6, first: int = 0) -> Path:
        """Write what xarray would: packed temperatures, rain, coordinates, with CF attributes."""
        packed = {"scale_factor": 0.5, "add_offset": 3.0, "_FillValue": 7, "units": "K"}
        self.group(
            name,
            {
                "t2m": {
                    "shape": (times, 4, 5),
                    "chunks": (chunk, 3, 5),
                    "dtype": "i2",
                    "dims": ("time", "lat", "lon"),
                    "attrs": packed,
                    "first": first,
                },
                "rain": {
                    "shape": (times, 4, 5),
                    "chunks": (chunk + 1, 4, 2),
                    "dtype": "f4",
                    "dims": ("time", "lat", "lon"),
                    "first": first,
                },
            },
        )
        hours: dict[str, Any] = {"units": "hours since 2015-01-01", "calendar": "standard"}
        self.values(f"{name}/time", step * (first + np.arange(times)), dims=("time",), **hours)
        self.values(f"{name}/lat", np.arange(4.0), dims=("lat",))
        self.values(f"{name}/lon", np.arange(5.0), dims=("lon",))
        self.values(f"{name}/mask", np.arange(20.0, dtype="f4").reshape(4, 5), dims=("lat", "lon"))
        return self.folder / name

    def objects(self, name: str, count: int, *, kind: Literal["bin", "npy", "png"] = "bin") -> Path:
        """Write a folder of objects that carry their number."""
        for number in range(count):
            path = self.folder / name / f"part-{number // 10:02d}" / f"{number:04d}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            values = np.full(1 + number % 7, number, np.int32)
            if kind == "npy":
                np.save(path, values)
            elif kind == "png":
                from PIL import Image

                Image.fromarray(np.full((3 + number % 2, 4, 3), number, np.uint8)).save(path)
            else:
                path.write_bytes(values.tobytes())
        return self.folder / name

    def append(self, path: Path, more: int) -> None:
        """Append samples to an array as zarr-python does."""
        array = zarr.open_array(path, mode="r+")
        begin, row = array.shape[0], int(np.prod(array.shape[1:]))
        array.append(numbered((more, *array.shape[1:]), str(array.dtype), first=begin * row))

    def appended(self, path: Path, rows: AnyArray, *, chunk_rows: int | None = None) -> None:
        """Append samples to the array "x" of a group as an `Appender` does."""
        with zarrfeed.Appender(path, chunk_rows=chunk_rows) as appender:
            appender.append({"x": rows})

    def damage(self, path: Path, key: str) -> None:
        """Write something that is no chunk in the place of one."""
        (path / key).write_bytes(b"\xff" * 9)

    def _store(self, name: str, kept: Kept) -> tuple[Any, str | None]:
        if kept == "memory":
            return MemoryStore(), None
        if kept == "zip":
            return ZipStore(self.folder / f"{name}.zip", mode="w"), None
        return LocalStore(self.folder / name), None

    def _opened(self, name: str, path: str | None, store: Any, kept: Kept) -> Any:
        if kept == "local":
            return self.folder / name
        if kept == "zip":
            store.close()
            store = ZipStore(self.folder / f"{name}.zip", mode="r")
        return zarr.open_array(store, path=path or "", mode="r")


def _attributes(attrs: Mapping[str, Any] | None, dims: Sequence[str] | None, v: int) -> dict[str, Any]:
    named = {"_ARRAY_DIMENSIONS": list(dims)} if v == 2 and dims is not None else {}
    attributes: dict[str, Any] = json.loads(json.dumps({**(attrs or {}), **named}))
    return attributes


def _put_ome(group: zarr.Group, attributes: dict[str, Any]) -> None:
    if group.metadata.zarr_format == 3:
        group.attrs["ome"] = {"version": "0.5", **attributes}
    else:
        group.attrs.update(attributes)


def _sparse(rows: int, columns: int, first: int) -> AnyArray:
    r = np.random.default_rng((7, first))
    numbers = np.arange(first, first + rows)
    matrix = np.where(r.random((rows, columns)) < 0.3, -r.integers(1, 90, (rows, columns)), 0)
    matrix[np.arange(rows), r.integers(0, columns, rows)] = numbers + 1
    matrix[numbers % 7 == 3] = 0
    return matrix.astype("f4")
