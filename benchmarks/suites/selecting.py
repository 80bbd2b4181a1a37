"""What some items of a cube cost: 13 of 37 levels, and a tenth of the map, beside a store of just these items.

python -m benchmarks.selecting --checksum-only
python -m benchmarks.selecting --scale full --repeats 5
python -m benchmarks.selecting --scale full --cases levels --chunks all --codecs lz4 --peers xarray

A sample is one time of a variable on 37 levels of 721 x 1440, with all levels in one chunk, or each in its own; Blosc
with lz4 or zstd and shuffle. The ceiling is a bare C++ loop over a store that has the chosen items alone, a chunk a
sample. Samples are compared with what zarr-python reads, before anything is timed; then the bytes that were decoded are
set against the Blosc blocks that have a chosen item, which is the least that this layout allows. Peers choose the same
by their own means: xarray in a DataLoader with two workers, xbatcher, and tensorstore where it is installed. All sides
take turns. A store is made of two distinct samples under many names.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray
import zarr

import zarrfeed
from benchmarks.data.layouts import Layout, blosc
from benchmarks.data.stores import chunk_samples, warm_page_cache
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, names, positive
from benchmarks.loaders.ceiling import usable_cores
from benchmarks.loaders.single_rows import ReadRow, SingleRows, row_loader
from benchmarks.report.tables import make_console, print_rows
from zarrfeed import _core

_BATCH = 4
_DISTINCT = 2
_DIMS = ("time", "level", "latitude", "longitude")


@dataclass(frozen=True)
class Scale:
    """Samples, and the shape of one."""

    samples: int
    shape: tuple[int, int, int]


SCALES = {"full": Scale(24, (37, 721, 1440)), "small": Scale(8, (37, 24, 48))}
CHUNKS = ("all", "one")
CODECS = ("lz4", "zstd")
CASES = ("levels", "region")
#: Compared with us, by the name of the module that they need.
PEERS = {"xarray": "xarray", "xbatcher": "xbatcher", "tensorstore": "tensorstore"}

#: Begins an epoch.
_Epoch: TypeAlias = Callable[[], Iterator[Any]]


def choice_of(case: str, shape: tuple[int, int, int]) -> dict[str, slice]:
    """Return the items of a case, by dimension.

    >>> choice_of("levels", (37, 721, 1440))
    {'level': slice(0, 37, 3)}
    >>> choice_of("region", (37, 721, 1440))
    {'latitude': slice(100, 328, None), 'longitude': slice(300, 755, None)}
    """
    if case == "levels":
        return {"level": slice(0, shape[0], 3)}
    height, width = shape[1:]
    first = round(height * 0.139), round(width * 0.2085)
    size = round(height * 0.316), round(width * 0.316)
    return {
        "latitude": slice(first[0], first[0] + size[0]),
        "longitude": slice(first[1], first[1] + size[1]),
    }


@dataclass(frozen=True)
class Case:
    """A store, the items that are chosen of it, and a store of just these."""

    name: str
    path: Path
    chosen_path: Path
    choice: dict[str, slice]
    num_samples: int

    @property
    def index(self) -> tuple[slice, ...]:
        """The items of a sample, for NumPy."""
        return tuple(self.choice.get(dim, slice(None)) for dim in _DIMS[1:])

    def dataset(self) -> zarrfeed.ZarrIterableDataset:
        """Return a dataset as a user would make it."""
        data = zarrfeed.open(self.path, sample_dim="time").isel(self.choice)
        return zarrfeed.ZarrIterableDataset(data, batch_size=_BATCH, shuffle=True, return_index=True)

    def ceiling(self) -> float:
        """Return the samples a second of the loop."""
        (field,) = zarrfeed.open(self.chosen_path).resolved.fields
        threads = usable_cores()
        seconds = _core.measure_ceiling(field.to_core(), num_threads=threads, window_chunks=2 * threads, scatter=True)[
            0
        ]
        return self.num_samples / seconds

    def least_bytes(self) -> int:
        """Return the bytes of the Blosc blocks that have a chosen item, of an epoch."""
        array = zarr.open_array(self.path / "z", mode="r")
        wanted = np.zeros((1, *array.shape[1:]), dtype=bool)
        wanted[(slice(None), *self.index)] = True
        found = 0
        for level in range(0, array.shape[1], array.chunks[1]):
            (header,) = np.fromfile(
                self.path / "z" / "c" / "0" / str(level // array.chunks[1]) / "0" / "0", "<u4", 1, offset=8
            )
            of_chunk = wanted[:, level : level + array.chunks[1]].ravel()
            items = int(header) // array.dtype.itemsize
            padded = np.append(of_chunk, np.zeros(-len(of_chunk) % items, dtype=bool))
            touched = np.flatnonzero(padded.reshape(-1, items).any(1))
            sizes = np.minimum(items, len(of_chunk) - touched * items)
            found += int(sizes.sum()) * array.dtype.itemsize
        return found * self.num_samples


def write_case(folder: Path, case: str, chunks: str, codec: str, scale: Scale) -> Case:
    """Write a cube, and a store of what is chosen of it."""
    choice = choice_of(case, scale.shape)
    made = Case(
        f"{case}, {'all levels' if chunks == 'all' else 'a level'} a chunk, {codec}",
        folder / "cube.zarr",
        folder / "chosen.zarr",
        choice,
        scale.samples,
    )
    layout = Layout(
        name="cube",
        description="",
        shape=(_DISTINCT, *scale.shape),
        chunks=(1, *scale.shape),
        codec=blosc(codec, "shuffle"),
    )
    rows = [chunk_samples(layout, number, 1) for number in range(_DISTINCT)]
    levels = scale.shape[0] if chunks == "all" else 1
    _write(made.path, rows, (1, levels, *scale.shape[1:]), layout, scale.samples)
    chosen = [row[(slice(None), *made.index)] for row in rows]
    _write(made.chosen_path, chosen, chosen[0].shape, layout, scale.samples)
    return made


def _write(path: Path, rows: Sequence[Any], chunks: tuple[int, ...], layout: Layout, samples: int) -> None:
    array = zarr.create_group(path).create_array(
        "z",
        shape=(samples, *rows[0].shape[1:]),
        chunks=chunks,
        dtype=layout.dtype,
        compressors=layout.codec,
        dimension_names=_DIMS,
    )
    for number, row in enumerate(rows):
        array[number : number + 1] = row
    for number in range(len(rows), samples):
        of_file = path / "z" / "c" / str(number % len(rows))
        for file in [one for one in of_file.rglob("*") if one.is_file()]:
            name = path / "z" / "c" / str(number) / file.relative_to(of_file)
            name.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, name)


def wrong_samples(batches: Iterator[tuple[Any, Any]], case: Case) -> str:
    """Return what is wrong with an epoch; "" if each sample came once, as zarr-python reads it."""
    array = zarr.open_array(case.path / "z", mode="r")
    written = [np.asarray(array[number])[case.index] for number in range(_DISTINCT)]
    seen: list[int] = []
    for values, index in batches:
        for value, number in zip(values["z"], index.tolist(), strict=True):
            if not np.array_equal(value.numpy(), written[number % _DISTINCT]):
                return f"sample {number} has other items"
            seen.append(number)
    return "" if sorted(seen) == list(range(case.num_samples)) else f"samples {sorted(seen)} came"


def _lazy(case: Case) -> xarray.Dataset:
    cube: xarray.Dataset = xarray.open_zarr(case.path, consolidated=False, chunks=None)[["z"]]
    return cube.isel(case.choice)


def _xarray_rows(case: Case) -> ReadRow:
    """Return a reader of samples as a user of xarray would make it."""
    variable = _lazy(case)["z"]
    return lambda number: variable.isel(time=number).values


def _by_xarray(case: Case) -> _Epoch:
    """Return epochs of a DataLoader whose two workers stay."""
    return partial(iter, row_loader(SingleRows(case.num_samples, partial(_xarray_rows, case)), _BATCH, 2))


def _by_xbatcher(case: Case) -> _Epoch:
    import xbatcher

    chosen = _lazy(case)
    sizes = {"time": _BATCH, **{dim: chosen.sizes[dim] for dim in _DIMS[1:]}}
    return lambda: (torch.from_numpy(one["z"].values) for one in xbatcher.BatchGenerator(chosen, input_dims=sizes))


def _by_tensorstore(case: Case) -> _Epoch:
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": os.fspath(case.path / "z")}}
    chosen = tensorstore.open(spec, read=True).result()[(slice(None), *case.index)]

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng(0).permutation(case.num_samples)
        asked = [chosen[order[begin : begin + _BATCH]].read() for begin in range(0, len(order), _BATCH)]
        return (torch.from_numpy(one.result()) for one in asked)

    return epoch


_MAKERS: dict[str, Callable[[Case], _Epoch]] = {
    "xarray": _by_xarray,
    "xbatcher": _by_xbatcher,
    "tensorstore": _by_tensorstore,
}


def _rate_of(batches: Iterator[Any]) -> float:
    begin, samples = time.perf_counter(), 0
    for batch in batches:
        samples += len(batch)
    return samples / (time.perf_counter() - begin)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    scale = SCALES[options.scale]
    peers = [peer for peer in options.peers if importlib.util.find_spec(PEERS[peer])]
    rates: dict[str, dict[str, list[float]]] = {}
    decoded: dict[str, float] = {}
    of_chosen: dict[str, float] = {}
    for case_name in options.cases:
        for chunks in options.chunks:
            for codec in options.codecs:
                with tempfile.TemporaryDirectory(dir=options.data) as folder, warnings.catch_warnings():
                    case = write_case(Path(folder), case_name, chunks, codec, scale)
                    warnings.simplefilter("ignore")  # of 24 samples, which hardly shuffle
                    warm_page_cache(case.path)
                    warm_page_cache(case.chosen_path)
                    with closing(case.dataset()) as dataset:
                        wrong = wrong_samples(iter(dataset), case)
                        least = case.least_bytes()
                        decoded[case.name] = dataset.stats().bytes_decoded / least
                        of_chosen[case.name] = least / zarr.open_array(case.chosen_path / "z", mode="r").nbytes
                        said = (
                            wrong or f"{case.num_samples} samples; {decoded[case.name]:.2f} of the least bytes decoded"
                        )
                        console.print(f"{case.name}: {said}", highlight=False, soft_wrap=True)
                        if wrong:
                            return 1
                        if not options.checksum_only:
                            rates[case.name] = _turns(case, dataset, peers, options.repeats)
    if options.checksum_only:
        return 0
    write_document(
        options.out / "selecting.json", scale=options.scale, decoded=decoded, least_of_chosen=of_chosen, rates=rates
    )
    head = [
        "",
        "decoded, of the least",
        "least, of the chosen",
        "samples/s",
        "of the ceiling",
        "by bytes",
        "range",
        *peers,
    ]
    print_rows(console, head, _table(rates, decoded, of_chosen, peers), words=1)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _turns(
    case: Case, dataset: zarrfeed.ZarrIterableDataset, peers: Sequence[str], repeats: int
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {side: [] for side in ("zarrfeed", "ceiling", *peers)}
    epochs = {peer: _MAKERS[peer](case) for peer in peers}
    for epoch in epochs.values():
        _rate_of(epoch())  # workers start
    for _ in range(repeats):
        found["zarrfeed"].append(_rate_of(index for _, index in dataset))
        found["ceiling"].append(case.ceiling())
        for peer in peers:
            found[peer].append(_rate_of(epochs[peer]()))
    return found


def _table(
    rates: Mapping[str, Mapping[str, list[float]]],
    decoded: Mapping[str, float],
    of_chosen: Mapping[str, float],
    peers: Sequence[str],
) -> Iterator[list[str]]:
    """Return a line for each case: the rate, its ratios to the ceiling, and to the rates of peers.

    By bytes: the decoded bytes a second, of those of the ceiling, which decodes nothing but chosen items.
    """
    for case, found in rates.items():
        ours = found["zarrfeed"]
        ratios = [a / b for a, b in zip(ours, found["ceiling"], strict=True)]
        by_bytes = [one * decoded[case] * of_chosen[case] for one in ratios]
        beside = [median(a / b for a, b in zip(ours, found[peer], strict=True)) for peer in peers]
        yield [
            case,
            f"{decoded[case]:.2f}",
            f"{of_chosen[case]:.2f}",
            f"{median(ours):.1f}",
            f"{median(ratios):.2f}",
            f"{median(by_bytes):.2f}",
            f"{min(by_bytes):.2f}-{max(by_bytes):.2f}",
            *(f"{one:.1f} x" for one in beside),
        ]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.selecting", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=names(CASES), default=list(CASES))
    parser.add_argument("--chunks", type=names(CHUNKS), default=list(CHUNKS), help="levels of a chunk")
    parser.add_argument("--codecs", type=names(CODECS), default=list(CODECS))
    parser.add_argument("--peers", type=names(PEERS), default=list(PEERS))
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--data", type=Path, default=None, help="folder for the stores; None: that of temporary files")
    add_suite_options(parser, SCALES)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
