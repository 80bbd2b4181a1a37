"""The cost of files that are not Zarr: HDF5, NetCDF, NumPy and zip files in place, beside their own readers.

python -m benchmarks.files --checksum-only
python -m benchmarks.files --scale full --repeats 5
python -m benchmarks.files --scale full --cases rows,npy --peers reader-order

Samples are rows along the first axis of an array in one file or in many. zarrfeed reads shuffled batches. The ceiling
is a bare C++ loop over the same chunks at the same offsets of the local files, each decoded once. Peers:

- `reader-0w` and `reader-2w` are the format's own reader, which reads single rows in random order in a DataLoader with
  no and with two workers: h5py, NumPy's memory map, zarr-python for zip files and for kerchunk's references;
- `reader-order` is the same reader, which reads whole chunks in the order of the file, in one thread. That is its best
  case, and no shuffle;
- `h5netcdf` and `netcdf4` read single rows of NetCDF in a DataLoader without workers;
- `xarray` is `xarray.open_mfdataset(...).isel(time=i)` in a DataLoader with two workers, and `xbatcher` draws batches
  in the order of the file;
- `memory` is zarrfeed with a `MemoryCache`, for codecs that are slow. h5py keeps decoded chunks of its datasets, too.

Random rows are timed on as many samples as `--rows` says, since h5py decodes a chunk for each. All samples of ours are
compared with the reader's before anything is timed. All sides take turns. On a busy machine rates say little, and CPU
seconds are the figure: zarrfeed's to the ceiling's is what the engine adds to the loop. The ceiling's rate to the
reader's is the most that any loader can reach.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray

import zarrfeed
from benchmarks.harness.compile import NoCompilerError
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.nginx import NoNginxError
from benchmarks.harness.options import add_suite_options, names, positive
from benchmarks.loaders.single_rows import ReadRow, SingleRows, row_loader
from benchmarks.report.tables import make_console, print_rows
from benchmarks.suites.file_cases import KINDS, Case, open_case

#: Sides that read in this process alone, so that its CPU seconds are theirs.
_IN_PROCESS = ("zarrfeed", "ceiling", "memory", "reader-0w", "reader-order", "h5netcdf", "netcdf4")
PEERS = ("reader-0w", "reader-2w", "reader-order", "h5netcdf", "netcdf4", "xarray", "xbatcher", "memory")
#: Peers that read NetCDF alone, and the module that each needs.
_OF_NETCDF = {"h5netcdf": "h5netcdf", "netcdf4": "netCDF4", "xarray": "h5netcdf", "xbatcher": "xbatcher"}
#: Peers whose turns are whole epochs, as zarrfeed's are.
_WHOLE = ("reader-order", "memory")

#: Begins an epoch: its batches.
_Epoch: TypeAlias = Callable[[], Iterator[Any]]


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


def _rows_of(case: Case, read: Callable[[int], Any]) -> ReadRow:
    def row(number: int) -> Any:
        file, inside = divmod(number, case.shape.samples)
        return read(file)[inside]

    return row


def _reader_rows(case: Case) -> ReadRow:
    return _rows_of(case, case.reader())


def _h5netcdf_rows(case: Case) -> ReadRow:
    import h5netcdf

    files = [h5netcdf.File(path) for path in case.paths]  # variables do not keep them open
    return _rows_of(case, lambda number: files[number]["x"])


def _netcdf4_rows(case: Case) -> ReadRow:
    import netCDF4

    files = [netCDF4.Dataset(path) for path in case.paths]
    for file in files:
        file.set_auto_maskandscale(False)
    return _rows_of(case, lambda number: files[number]["x"])


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


def _indices(dataset: zarrfeed.ZarrIterableDataset) -> _Epoch:
    return lambda: (index for _, index in dataset)


def _from_memory(case: Case) -> _Epoch:
    limit = 2 * case.num_samples * case.sample_bytes + (64 << 20)
    return _indices(case.dataset(cache=zarrfeed.MemoryCache(limit, name=f"benchmark-{os.getpid()}"), transcode="lz4"))


_MAKERS: dict[str, Callable[[Case], _Epoch]] = {
    "reader-0w": lambda case: _loader(case, _reader_rows, 0),
    "reader-2w": lambda case: _loader(case, _reader_rows, 2),
    "reader-order": _in_order,
    "h5netcdf": lambda case: _loader(case, _h5netcdf_rows, 0),
    "netcdf4": lambda case: _loader(case, _netcdf4_rows, 0),
    "xarray": lambda case: _loader(case, _xarray_rows, 2),
    "xbatcher": _by_xbatcher,
    "memory": _from_memory,
}


@dataclass(frozen=True)
class Turn:
    """Samples a second of one side, and CPU seconds a decoded gigabyte; None where other processes read."""

    rate: float
    cpu_s_per_gb: float | None


def _turn_of_ceiling(case: Case) -> Turn:
    seconds, cpu_seconds = case.ceiling()
    return Turn(case.num_samples / seconds, cpu_seconds / (case.num_samples * case.sample_bytes / 1e9))


def _turn(case: Case, epoch: _Epoch, few: int | None, in_process: bool) -> Turn:
    """Take the batches of an epoch, or a few of them."""
    cpu_s, begin = time.process_time(), time.perf_counter()
    samples = sum(len(batch) for batch in itertools.islice(epoch(), few))
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_s
    return Turn(samples / wall_s, cpu_s / (samples * case.sample_bytes / 1e9) if in_process else None)


def _turns(
    case: Case, dataset: zarrfeed.ZarrIterableDataset, peers: Sequence[str], repeats: int, rows: int
) -> dict[str, list[Turn]]:
    few = -(-rows // case.shape.batch)  # random rows of the others cost a decoded chunk each
    sides: dict[str, Callable[[], Turn]] = {
        "zarrfeed": partial(_turn, case, _indices(dataset), None, True),
        "ceiling": partial(_turn_of_ceiling, case),
    }
    for peer in peers:
        sides[peer] = partial(_turn, case, _MAKERS[peer](case), None if peer in _WHOLE else few, peer in _IN_PROCESS)
    for turn in sides.values():
        turn()  # workers start, files are opened, the cache in memory is filled
    found: dict[str, list[Turn]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, turns in found.items():
            turns.append(sides[side]())
    return found


def _peers_of(case: Case, peers: Sequence[str]) -> list[str]:
    """Return the peers that read a case and are installed."""

    def reads(peer: str) -> bool:
        if peer == "memory":
            return case.kind.slow and not case.kind.far
        needed = _OF_NETCDF.get(peer)
        return needed is None or (case.kind.suffix == ".nc" and importlib.util.find_spec(needed) is not None)

    return [peer for peer in peers if reads(peer)]


def _ratio(turns: Sequence[Turn], others: Sequence[Turn]) -> float:
    return median(a.rate / b.rate for a, b in zip(turns, others, strict=True))


def _rates(found: Mapping[str, Mapping[str, list[Turn]]], peers: Sequence[str]) -> Iterator[list[str]]:
    """Return a line for each case: our rate, its ratios to those of the ceiling and of the peers, and the floor."""
    for name, sides in found.items():
        ours, ceiling = sides["zarrfeed"], sides["ceiling"]
        beside = [f"{_ratio(ours, sides[peer]):.1f} x" if peer in sides else "" for peer in peers]
        most = f"{_ratio(ceiling, sides['reader-0w']):.1f} x" if "reader-0w" in sides else ""
        yield [name, f"{median(turn.rate for turn in ours):.1f}", f"{_ratio(ours, ceiling):.2f}", *beside, most]


def _cpu_seconds(found: Mapping[str, Mapping[str, list[Turn]]], sides: Sequence[str]) -> Iterator[list[str]]:
    """Return a line for each case: CPU seconds a decoded gigabyte of the sides that read in this process."""
    for name, turns in found.items():
        known = [[t.cpu_s_per_gb for t in turns.get(side, ()) if t.cpu_s_per_gb is not None] for side in sides]
        yield [name, *(f"{median(seconds):.2f}" if seconds else "" for seconds in known)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    found: dict[str, dict[str, list[Turn]]] = {}
    for name in options.cases:
        kind = KINDS[name]
        with tempfile.TemporaryDirectory(dir=options.data) as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few samples, which hardly shuffle
            try:
                with open_case(Path(folder), kind, options.scale) as case:
                    dataset = case.dataset()
                    wrong = wrong_samples(iter(dataset), case)
                    stored = sum(path.stat().st_size for path in case.paths) / (case.num_samples * case.sample_bytes)
                    said = wrong or f"{case.num_samples} samples; the files have {stored:.0%} of the decoded bytes"
                    console.print(f"{name}: {kind.description}: {said}", highlight=False, soft_wrap=True)
                    if wrong:
                        return 1
                    if not options.checksum_only:
                        peers = _peers_of(case, options.peers)
                        found[name] = _turns(case, dataset, peers, options.repeats, options.rows)
            except (NoNginxError, NoCompilerError) as error:
                console.print(f"{name}: skipped: {error}", highlight=False, soft_wrap=True)
    if options.checksum_only:
        return 0
    turns = {name: {side: [vars(t) for t in turns] for side, turns in sides.items()} for name, sides in found.items()}
    write_document(options.out / "files.json", scale=options.scale, turns=turns)
    columns = ["", "samples/s", "of the ceiling", *options.peers, "ceiling to reader-0w"]
    print_rows(console, columns, _rates(found, options.peers), words=1)
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
