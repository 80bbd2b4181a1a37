"""Kinds of files that are not Zarr: how the benchmark writes them, and how zarrfeed and their own readers open them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec
from zarr.storage import FsspecStore, ZipStore

import zarrfeed
from benchmarks.harness.nginx import serve
from benchmarks.harness.slow_proxy import Slowness, slowed
from benchmarks.loaders.ceiling import usable_cores, window_chunks
from zarrfeed import _core
from zarrfeed.spec.fields.field import StoredField


@dataclass(frozen=True)
class Shape:
    """Files of one array each.

    Attributes
    ----------
    files, samples
        How many files there are, and rows of each.
    item
        Shape of a row.
    rows
        Rows of a chunk.
    batch
        Samples of a batch.
    """

    files: int
    samples: int
    item: tuple[int, ...]
    rows: int
    batch: int


@dataclass(frozen=True)
class Kind:
    """A kind of files, with its shape in both scales.

    Attributes
    ----------
    description
        The data of a user.
    suffix
        The end of a file's name.
    dtype
        Dtype of the values.
    storage
        Keyword arguments of `h5py.File.create_dataset`, or of zarr's `create_array` in a zip file.
    scales
        Scale -> shape.
    far
        Whether the files are read through kerchunk's references, from a server with 20 ms of latency.
    """

    description: str
    suffix: str
    dtype: str
    scales: Mapping[str, Shape]
    storage: Mapping[str, Any] = field(default_factory=dict)
    far: bool = False

    @property
    def slow(self) -> bool:
        """Whether chunks decode so slowly that a cache keeps them as lz4."""
        return self.storage.get("compression") == "gzip"


_GZIP = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
_IMAGE = (84, 84, 3)


def _scales(full: Shape, small: Shape) -> dict[str, Shape]:
    return {"full": full, "small": small}


KINDS = {
    "hours": Kind(
        "NetCDF4, (8, 721, 1440) float32 a chunk, gzip 4 + shuffle",
        ".nc",
        "f4",
        _scales(Shape(1, 64, (721, 1440), 8, 4), Shape(1, 16, (24, 48), 8, 4)),
        _GZIP,
    ),
    "levels": Kind(
        "NetCDF4, (1, 37, 721, 1440) float32 a chunk, gzip 4 + shuffle",
        ".nc",
        "f4",
        _scales(Shape(1, 6, (37, 721, 1440), 1, 1), Shape(1, 8, (5, 24, 48), 1, 2)),
        _GZIP,
    ),
    "rows": Kind(
        "HDF5, (8, 64, 128) float32 a chunk, gzip 4 + shuffle",
        ".h5",
        "f4",
        _scales(Shape(1, 8192, (64, 128), 8, 64), Shape(1, 64, (8, 16), 8, 8)),
        _GZIP,
    ),
    "episodes-gzip": Kind(
        "HDF5, 64 episodes of images, 16 images a chunk, gzip 4",
        ".hdf5",
        "u1",
        _scales(Shape(64, 200, _IMAGE, 16, 64), Shape(3, 20, (8, 8, 3), 16, 8)),
        {"compression": "gzip", "compression_opts": 4},
    ),
    "episodes-lzf": Kind(
        "HDF5, 64 episodes of images, 16 images a chunk, lzf",
        ".hdf5",
        "u1",
        _scales(Shape(64, 200, _IMAGE, 16, 64), Shape(3, 20, (8, 8, 3), 16, 8)),
        {"compression": "lzf"},
    ),
    "episodes-raw": Kind(
        "HDF5, 64 episodes of images, contiguous",
        ".hdf5",
        "u1",
        _scales(Shape(64, 200, _IMAGE, 0, 64), Shape(3, 20, (8, 8, 3), 0, 8)),
    ),
    "npy": Kind(
        "one .npy file, rows of 32 KiB",
        ".npy",
        "f4",
        _scales(Shape(1, 16384, (64, 128), 0, 64), Shape(1, 64, (8, 16), 0, 8)),
    ),
    "zip": Kind(
        "Zarr in a zip file, (8, 64, 128) float32 a chunk, Blosc lz4 + shuffle",
        ".zip",
        "f4",
        _scales(Shape(1, 8192, (64, 128), 8, 64), Shape(1, 64, (8, 16), 8, 8)),
        {"compressors": BloscCodec(cname="lz4", shuffle="shuffle")},
    ),
    "kerchunk": Kind(
        "kerchunk's references to HDF5 at nginx with 20 ms, (8, 64, 128) float32 a chunk, gzip 4 + shuffle",
        ".h5",
        "f4",
        _scales(Shape(1, 8192, (64, 128), 8, 64), Shape(1, 64, (8, 16), 8, 8)),
        _GZIP,
        far=True,
    ),
    "years": Kind(
        "50 yearly NetCDF4 files, (31, 73, 144) float32 a chunk, gzip 4 + shuffle",
        ".nc",
        "f4",
        _scales(Shape(50, 365, (73, 144), 31, 32), Shape(4, 20, (8, 16), 7, 8)),
        _GZIP,
    ),
}


class Case:
    """Files of a kind in a folder, and how they are read; `open_case` makes it."""

    def __init__(self, folder: Path, kind: Kind, scale: str) -> None:
        self.kind, self.shape = kind, kind.scales[scale]
        self.paths = [folder / f"{number:04}{kind.suffix}" for number in range(self.shape.files)]
        self.num_samples = self.shape.files * self.shape.samples
        self.sample_bytes = int(np.prod(self.shape.item)) * np.dtype(kind.dtype).itemsize
        self.datasets = ExitStack()
        #: The file of references, by its URL, where the data are far.
        self.references = ""
        for number, path in enumerate(self.paths):
            self._write(path, number)

    def _write(self, path: Path, number: int) -> None:
        values = self._values(number)
        storage = dict(self.kind.storage)
        if self.shape.rows:
            storage["chunks"] = (self.shape.rows, *self.shape.item)
        if path.suffix == ".npy":
            np.save(path, values)
        elif path.suffix == ".zip":
            with ZipStore(path, mode="w") as store:
                zarr.create_group(store).create_array("x", data=values, dimension_names=self._names, **storage)
        else:
            _write_hdf5(path, values, number * len(values), self._names, storage)

    @property
    def _names(self) -> list[str]:
        return ["time", *(f"axis{axis}" for axis in range(1, len(self.shape.item) + 1))]

    def _values(self, number: int) -> npt.NDArray[Any]:
        """Return values like those of a field: neighbours are alike, and the last bits are not noise."""
        rng, shape = np.random.default_rng(number), (self.shape.samples, *self.shape.item)
        if self.kind.dtype == "u1":
            steps = rng.integers(-3, 4, shape, dtype=np.int8)
            return np.cumsum(steps, axis=1, dtype=np.uint8)
        values = np.empty(shape, self.kind.dtype)
        for row in values:
            row[...] = np.round(np.cumsum(rng.standard_normal(row.shape, dtype=np.float32), axis=-1) * 64) / 64
        return values

    @cached_property
    def fields(self) -> list[StoredField]:
        """The arrays of the local files; files alike are one array."""
        fields = self._opened(self.paths).resolved.fields
        return [field for field in fields if isinstance(field, StoredField)]

    def _opened(self, source: Any, **options: Any) -> zarrfeed.Data:
        variables = None if self.kind.suffix == ".npy" else ["x"]
        return zarrfeed.open(source, variables=variables, **options)

    def dataset(self, **options: Any) -> zarrfeed.ZarrIterableDataset:
        """Return a dataset as a user would make it, with options of `zarrfeed.open`."""
        data = self._opened(self.references or self.paths, **options)
        dataset = zarrfeed.ZarrIterableDataset(data, batch_size=self.shape.batch, shuffle=True, return_index=True)
        self.datasets.callback(dataset.close)
        return dataset

    def ceiling(self) -> tuple[float, float]:
        """Return the seconds of the loop over all chunks of the local files, and those of the processor."""
        threads, seconds, cpu_seconds = usable_cores(), 0.0, 0.0
        for one in self.fields:
            window = window_chunks(one.spec.chunk_shape[0] * self.sample_bytes, threads)
            done = _core.measure_ceiling(one.to_core(), num_threads=threads, window_chunks=window, scatter=True)
            seconds, cpu_seconds = seconds + done[0], cpu_seconds + done[3]
        return seconds, cpu_seconds

    def reader(self) -> Callable[[int], Any]:
        """Return the format's own reader of a file's array, which opens each file once."""
        opened: dict[int, Any] = {}

        def read(number: int) -> Any:
            if number not in opened:
                opened[number] = self._read_by_its_own(self.paths[number])
            return opened[number]

        return read

    def __getstate__(self) -> dict[str, Any]:
        """Return what DataLoader workers get: they open files, and no datasets of ours."""
        return self.__dict__ | {"datasets": ExitStack()}

    def _read_by_its_own(self, path: Path) -> Any:
        if self.references:
            return zarr.open_array(_reference_store(self.references), path="x", mode="r")
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r")
        return zarr.open_array(ZipStore(path), path="x", mode="r") if path.suffix == ".zip" else h5py.File(path)["x"]


@contextmanager
def open_case(folder: Path, kind: Kind, scale: str) -> Iterator[Case]:
    """Write the files of a kind, and serve them if they are far; close what the case opened in the end.

    Raises
    ------
    NoNginxError
        If the files are far, and nginx is not installed.
    NoCompilerError
        If the files are far, and there is no compiler for the proxy that delays requests.
    """
    case = Case(folder, kind, scale)
    with ExitStack() as stack:
        if kind.far:
            nginx = stack.enter_context(serve(folder))
            url = stack.enter_context(slowed(nginx.url, Slowness(latency_ms=20))).url
            (path,) = case.paths
            (folder / "references.json").write_text(json.dumps(_references(path, f"{url}/{path.name}")))
            case.references = f"{url}/references.json"
        stack.enter_context(case.datasets)
        yield case


def _write_hdf5(path: Path, values: npt.NDArray[Any], first: int, names: list[str], storage: Mapping[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        variable = file.create_dataset("x", data=values, **storage)
        # NetCDF4's dimensions: a scale of numbers along each axis
        for axis, (name, size) in enumerate(zip(names, values.shape, strict=True)):
            file[name] = np.arange(size) + (0 if axis else first)
            file[name].make_scale(name)
            variable.dims[axis].attach_scale(file[name])
        file[names[0]].attrs["units"] = "hours since 1990-01-01"


def _references(path: Path, url: str) -> dict[str, Any]:
    """Return references to the chunks of an HDF5 file's gzip array, as kerchunk writes them."""
    with h5py.File(path) as file:
        variable = file["x"]
        document = {
            "zarr_format": 2,
            "shape": variable.shape,
            "chunks": variable.chunks,
            "dtype": variable.dtype.str,
            "fill_value": 0,
            "order": "C",
            "filters": [{"id": "shuffle", "elementsize": variable.dtype.itemsize}],
            "compressor": {"id": "zlib", "level": 4},
        }
        found: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2}), "x/.zarray": json.dumps(document)}

        def add(chunk: Any) -> None:
            key = ".".join(str(begin // size) for begin, size in zip(chunk.chunk_offset, variable.chunks, strict=True))
            found[f"x/{key}"] = [url, chunk.byte_offset, chunk.size]

        variable.id.chunk_iter(add)
    return {"version": 1, "refs": found}


def _reference_store(references: str) -> FsspecStore:
    """Return a file of references as zarr-python reads it."""
    options = {"fo": references, "remote_protocol": "http", "remote_options": {"asynchronous": True}}
    return FsspecStore.from_url("reference://", storage_options=options, read_only=True)
