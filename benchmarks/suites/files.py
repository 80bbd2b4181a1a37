"""The cost of files that are not Zarr: HDF5, NetCDF and NumPy files in place, beside their own readers.

python -m benchmarks.files --checksum-only
python -m benchmarks.files --scale full --repeats 5
python -m benchmarks.files --scale full --cases rows,npy --peers reader-order

Samples are rows along the first axis of an array in one file or in many. zarrfeed reads shuffled batches. The ceiling
is a bare C++ loop over the same chunks at the same offsets, each decoded once. Peers: `reader-0w` and `reader-2w` are
the format's own reader (h5py, or NumPy's memory map), which reads single rows in random order in a DataLoader with no
and with two workers; `reader-order` reads whole chunks in the order of the file, in one thread, which is the best case
of that reader and no shuffle; `xarray` is `xarray.open_mfdataset(...).isel(time=i)` in a DataLoader with two workers,
and `xbatcher` draws batches in the order of the file, where it is installed. Random rows are timed on as many samples
as `--rows` says, since h5py decodes a chunk for each. All samples of ours are compared with the reader's before
anything is timed. All sides take turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt
import torch
import xarray

import zarrfeed
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, names, positive
from benchmarks.loaders.ceiling import usable_cores, window_chunks
from benchmarks.loaders.single_rows import ReadRow, SingleRows, row_loader
from benchmarks.report.tables import make_console, print_rows
from zarrfeed import _core
from zarrfeed.spec.fields.field import StoredField

#: Sides that read in this process alone, so that its CPU seconds are theirs.
_IN_PROCESS = ("zarrfeed", "ceiling", "reader-0w", "reader-order")
PEERS = ("reader-0w", "reader-2w", "reader-order", "xarray", "xbatcher")

#: Begins an epoch: its batches.
_Epoch: TypeAlias = Callable[[], Iterator[Any]]


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
        Keyword arguments of `h5py.File.create_dataset`.
    scales
        Scale -> shape.
    """

    description: str
    suffix: str
    dtype: str
    scales: Mapping[str, Shape]
    storage: Mapping[str, Any] = field(default_factory=dict)


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
    "years": Kind(
        "50 yearly NetCDF4 files, (31, 73, 144) float32 a chunk, gzip 4 + shuffle",
        ".nc",
        "f4",
        _scales(Shape(50, 365, (73, 144), 31, 32), Shape(4, 20, (8, 16), 7, 8)),
        _GZIP,
    ),
}


class Case:
    """Files of a kind in a folder, and how they are read."""

    def __init__(self, folder: Path, kind: Kind, scale: str) -> None:
        self.kind, self.shape = kind, kind.scales[scale]
        self.paths = [folder / f"{number:04}{kind.suffix}" for number in range(self.shape.files)]
        self.num_samples = self.shape.files * self.shape.samples
        self.sample_bytes = int(np.prod(self.shape.item)) * np.dtype(kind.dtype).itemsize
        for number, path in enumerate(self.paths):
            self._write(path, number)

    def _write(self, path: Path, number: int) -> None:
        values = self._values(number)
        if path.suffix == ".npy":
            np.save(path, values)
            return
        storage = dict(self.kind.storage)
        if self.shape.rows:
            storage["chunks"] = (self.shape.rows, *self.shape.item)
        with h5py.File(path, "w") as file:
            variable = file.create_dataset("x", data=values, **storage)
            # NetCDF4's dimensions: a scale of numbers along the samples, and one without values along the others
            file["time"] = np.arange(number * len(values), (number + 1) * len(values))
            file["time"].attrs["units"] = "hours since 1990-01-01"
            file["time"].make_scale("time")
            variable.dims[0].attach_scale(file["time"])
            for axis, size in enumerate(self.shape.item, 1):
                name = f"axis{axis}"
                file[name] = np.arange(size)
                file[name].make_scale(name)
                variable.dims[axis].attach_scale(file[name])

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
    def _data(self) -> zarrfeed.Data:
        return self._opened(self.paths)

    @cached_property
    def _fields(self) -> list[StoredField]:
        fields = [field for path in self.paths for field in self._opened(path).resolved.fields]
        return [field for field in fields if isinstance(field, StoredField)]

    def _opened(self, source: Any) -> zarrfeed.Data:
        return zarrfeed.open(source, variables=None if self.kind.suffix == ".npy" else ["x"])

    def dataset(self) -> zarrfeed.ZarrIterableDataset:
        """Return a dataset as a user would make it."""
        return zarrfeed.ZarrIterableDataset(self._data, batch_size=self.shape.batch, shuffle=True, return_index=True)

    def ceiling(self) -> Iterator[float]:
        """Yield the seconds of the loop over the chunks of each file."""
        threads = usable_cores()
        for one in self._fields:
            window = window_chunks(one.spec.chunk_shape[0] * self.sample_bytes, threads)
            yield _core.measure_ceiling(one.to_core(), num_threads=threads, window_chunks=window, scatter=True)[0]

    def reader(self) -> Callable[[int], Any]:
        """Return the format's own reader of a file's array, which opens each file once."""
        opened: dict[int, Any] = {}

        def read(number: int) -> Any:
            if number not in opened:
                path = self.paths[number]
                opened[number] = np.load(path, mmap_mode="r") if path.suffix == ".npy" else h5py.File(path)["x"]
            return opened[number]

        return read


def values_of(batch: Any) -> torch.Tensor:
    """Return the values of a batch, which a file with variables delivers by their names."""
    values: torch.Tensor = batch["x"] if isinstance(batch, dict) else batch
    return values


def wrong_samples(batches: Iterator[tuple[Any, Any]], case: Case) -> str:
    """Return what is wrong with an epoch; "" if each sample came once, as the format's own reader reads it."""
    read, seen = case.reader(), []
    files = {number: np.asarray(read(number)[:]) for number in range(case.shape.files)}
    for batch, index in batches:
        for value, number in zip(values_of(batch), index.tolist(), strict=True):
            file, row = divmod(number, case.shape.samples)
            if not np.array_equal(value.numpy(), files[file][row]):
                return f"sample {number} has other values"
            seen.append(number)
    return "" if sorted(seen) == list(range(case.num_samples)) else f"{len(seen)} samples came, of {case.num_samples}"


def _reader_rows(case: Case) -> ReadRow:
    read = case.reader()

    def row(number: int) -> Any:
        file, inside = divmod(number, case.shape.samples)
        return read(file)[inside]

    return row


def _xarray_rows(case: Case) -> ReadRow:
    variable = _opened_by_xarray(case)["x"]
    return lambda number: variable.isel(time=number).values


def _opened_by_xarray(case: Case) -> xarray.Dataset:
    return xarray.open_mfdataset(case.paths, engine="h5netcdf", combine="nested", concat_dim="time", decode_times=False)


def _loader(case: Case, make_reader: Callable[[Case], ReadRow], workers: int) -> _Epoch:
    rows = SingleRows(case.num_samples, partial(make_reader, case))
    return partial(iter, row_loader(rows, case.shape.batch, workers))


def _in_order(case: Case) -> _Epoch:
    """Return epochs that read a chunk, or a batch where there are no chunks, in the order of the files."""
    read, step = case.reader(), case.shape.rows or case.shape.batch

    def epoch() -> Iterator[Any]:
        for number in range(case.shape.files):
            for row in range(0, case.shape.samples, step):
                yield torch.from_numpy(np.array(read(number)[row : row + step]))

    return epoch


def _by_xbatcher(case: Case) -> _Epoch:
    import xbatcher

    opened = _opened_by_xarray(case)[["x"]]
    sizes = {**opened.sizes, "time": case.shape.batch}
    return lambda: (torch.from_numpy(one["x"].values) for one in xbatcher.BatchGenerator(opened, input_dims=sizes))


_MAKERS: dict[str, Callable[[Case], _Epoch]] = {
    "reader-0w": lambda case: _loader(case, _reader_rows, 0),
    "reader-2w": lambda case: _loader(case, _reader_rows, 2),
    "reader-order": _in_order,
    "xarray": lambda case: _loader(case, _xarray_rows, 2),
    "xbatcher": _by_xbatcher,
}


@dataclass(frozen=True)
class Turn:
    """Samples a second of one side, and CPU seconds a decoded gigabyte; None where other processes read."""

    rate: float
    cpu_s_per_gb: float | None


def _turn(side: str, batches: Iterator[Any], case: Case) -> Turn:
    """Take batches to their end; those of the ceiling are the seconds of its loops."""
    cpu_s, begin, samples, inside_s = time.process_time(), time.perf_counter(), 0, 0.0
    for batch in batches:
        if isinstance(batch, float):
            inside_s, samples = inside_s + batch, case.num_samples
        else:
            samples += len(batch)
    wall_s = inside_s or time.perf_counter() - begin
    gigabytes = samples * case.sample_bytes / 1e9
    return Turn(samples / wall_s, (time.process_time() - cpu_s) / gigabytes if side in _IN_PROCESS else None)


def _turns(
    case: Case, dataset: zarrfeed.ZarrIterableDataset, peers: Sequence[str], repeats: int, rows: int
) -> dict[str, list[Turn]]:
    sides: dict[str, _Epoch] = {"zarrfeed": lambda: (index for _, index in dataset), "ceiling": case.ceiling}
    for peer in peers:
        sides[peer] = _MAKERS[peer](case)
    few = -(-rows // case.shape.batch)  # random rows of the others cost a decoded chunk each

    def batches_of(side: str) -> Iterator[Any]:
        epoch = sides[side]()
        return epoch if side in ("zarrfeed", "ceiling", "reader-order") else itertools.islice(epoch, few)

    for side in sides:
        _turn(side, batches_of(side), case)  # workers start, files are opened
    found: dict[str, list[Turn]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, turns in found.items():
            turns.append(_turn(side, batches_of(side), case))
    return found


def _peers_of(case: Case, peers: Sequence[str]) -> list[str]:
    """Return the peers that read a case: xarray reads NetCDF alone."""
    netcdf = case.kind.suffix == ".nc"
    return [
        peer
        for peer in peers
        if not peer.startswith("x") or (netcdf and (peer == "xarray" or importlib.util.find_spec(peer)))
    ]


def _rates(found: Mapping[str, Mapping[str, list[Turn]]], peers: Sequence[str]) -> Iterator[list[str]]:
    """Return a line for each case: our rate, and its ratios to those of the ceiling and of the peers."""
    for name, sides in found.items():
        ours = sides["zarrfeed"]
        ratios = {
            side: median(a.rate / b.rate for a, b in zip(ours, turns, strict=True)) for side, turns in sides.items()
        }
        beside = [f"{ratios[peer]:.1f} x" if peer in ratios else "" for peer in peers]
        yield [name, f"{median(turn.rate for turn in ours):.1f}", f"{ratios['ceiling']:.2f}", *beside]


def _cpu_seconds(found: Mapping[str, Mapping[str, list[Turn]]], sides: Sequence[str]) -> Iterator[list[str]]:
    """Return a line for each case: CPU seconds a decoded gigabyte of the sides that read in this process."""
    for name, turns in found.items():
        known = [[t.cpu_s_per_gb for t in turns.get(side, ()) if t.cpu_s_per_gb is not None] for side in sides]
        yield [name, *(f"{median(seconds):.1f}" if seconds else "" for seconds in known)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    found: dict[str, dict[str, list[Turn]]] = {}
    for name in options.cases:
        with tempfile.TemporaryDirectory(dir=options.data) as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few samples, which hardly shuffle
            case = Case(Path(folder), KINDS[name], options.scale)
            with closing(case.dataset()) as dataset:
                wrong = wrong_samples(iter(dataset), case)
                stored = sum(path.stat().st_size for path in case.paths) / (case.num_samples * case.sample_bytes)
                said = wrong or f"{case.num_samples} samples; the files have {stored:.0%} of the decoded bytes"
                console.print(f"{name}: {case.kind.description}: {said}", highlight=False, soft_wrap=True)
                if wrong:
                    return 1
                if not options.checksum_only:
                    peers = _peers_of(case, options.peers)
                    found[name] = _turns(case, dataset, peers, options.repeats, options.rows)
    if options.checksum_only:
        return 0
    turns = {name: {side: [vars(t) for t in turns] for side, turns in sides.items()} for name, sides in found.items()}
    write_document(options.out / "files.json", scale=options.scale, turns=turns)
    print_rows(console, ["", "samples/s", "of the ceiling", *options.peers], _rates(found, options.peers), words=1)
    print_rows(console, ["CPU s/GB", *_IN_PROCESS], _cpu_seconds(found, _IN_PROCESS), words=1)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.files", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=names(KINDS), default=list(KINDS))
    parser.add_argument("--peers", type=names(PEERS), default=list(PEERS))
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--rows", type=positive, default=256, help="random rows that peers read in a turn")
    parser.add_argument("--data", type=Path, default=None, help="folder for the files; None: that of temporary files")
    add_suite_options(parser, KINDS["rows"].scales)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
