"""The cost of epochs of slow codecs with `transcode="lz4"`, beside none, and beside an array that is stored as lz4.

python -m benchmarks.transcode
python -m benchmarks.transcode --scale full --repeats 3
python -m benchmarks.transcode --scale small --checksum-only

Each sample holds its index, and every epoch is compared with the data before it counts. The cache is new for each
repeat, so that the first epoch decodes and writes it; the second one reads it. Sides take turns. Figures are seconds of
the processor for a gigabyte of samples, and of the clock.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import zarr
from numcodecs import Blosc, Zstd

import zarrfeed
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, positive
from benchmarks.report.tables import make_console, print_rows

#: Samples, and the shape of one, which is a chunk.
SCALES = {"full": (512, (8, 256, 256)), "small": (24, (8, 32, 64))}
_BATCH = 4
_EPOCHS = 3


@dataclass(frozen=True)
class Row:
    """One epoch of one side."""

    side: str
    repeat: int
    epoch: int
    cpu_s_per_gb: float
    wall_s: float


def values(count: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return smooth fields, rounded as packed data are; the first item of each is its index."""
    rng = np.random.default_rng(0)
    made = np.round(np.cumsum(rng.standard_normal((count, *shape)), axis=-1), 2).astype(np.float32)
    made[:, 0, 0, 0] = np.arange(count)
    return made


def write(folder: Path, data: npt.NDArray[np.float32]) -> None:
    """Write the data as each side has them."""
    chunks = (1, *data.shape[1:])
    for name, codec in (("zstd", Zstd(3)), ("lz4", Blosc("lz4", shuffle=Blosc.SHUFFLE))):
        zarr.create_array(folder / f"{name}.zarr", data=data, chunks=chunks, zarr_format=2, compressors=codec)
    with h5py.File(folder / "deflate.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=chunks, compression="gzip", compression_opts=4, shuffle=True)


#: Side: its file, and whether the cache transcodes it.
SIDES = {
    "lz4": ("lz4.zarr", False),
    "zstd": ("zstd.zarr", False),
    "zstd, transcoded": ("zstd.zarr", True),
    "HDF5 deflate + shuffle": ("deflate.h5", False),
    "HDF5 deflate + shuffle, transcoded": ("deflate.h5", True),
}


def _opened(source: Path, cache: Path | None) -> zarrfeed.Data:
    if source.suffix == ".h5":
        source = source / "x"
    if cache is None:
        return zarrfeed.open(source)
    return zarrfeed.open(source, cache=cache, cache_limit="64GiB", transcode="lz4")


def measure(
    side: str, repeat: int, folder: Path, data: npt.NDArray[np.float32], *, checks: bool, num_threads: int
) -> list[Row]:
    """Read epochs; compare each with the data where it `checks`, which are no figures then."""
    name, transcodes = SIDES[side]
    cache = folder / f"cache {side} {repeat} {checks}" if transcodes else None
    options: dict[str, Any] = {"batch_size": _BATCH, "seed": 1, "num_threads": num_threads}
    dataset = zarrfeed.ZarrIterableDataset(_opened(folder / name, cache), **options)
    rows = []
    for epoch in range(_EPOCHS):
        dataset.set_epoch(epoch)
        cpu, wall, count = time.process_time(), time.perf_counter(), 0
        for batch in dataset:
            count += len(batch)
            if checks:
                found = batch.numpy()
                if not np.array_equal(found, data[found[:, 0, 0, 0].astype(int)]):
                    raise ValueError(f"{side}, epoch {epoch}: other values than were written")
        if count != len(data):
            raise ValueError(f"{side}, epoch {epoch}: {count} samples of {len(data)}")
        cpu = (time.process_time() - cpu) / (data.nbytes / 1e9)
        rows.append(Row(side, repeat, epoch, cpu, time.perf_counter() - wall))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    data = values(*SCALES[options.scale])
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        folder = Path(directory)
        write(folder, data)
        time.sleep(0.1)  # a file that was written a moment ago has no version yet
        for side in SIDES:
            measure(side, 0, folder, data, checks=True, num_threads=options.threads)
        console.print("every epoch of every side: the values that were written", highlight=False)
        if options.checksum_only:
            return 0
        for repeat in range(options.repeats):
            for side in SIDES:
                rows += measure(side, repeat, folder, data, checks=False, num_threads=options.threads)
    write_document(options.out / "transcode.json", rows=[asdict(row) for row in rows])
    table = []
    of_lz4 = _median(rows, "lz4", 1)
    for side in SIDES:
        first, second = _median(rows, side, 0), _median(rows, side, 1)
        table.append([side, *(f"{x:.2f}" for x in (*first, *second)), f"{of_lz4[0] / second[0]:.2f}"])
    titles = ["", "epoch 1: CPU s/GB", "s", "epoch 2 on: CPU s/GB", "s", "CPU of lz4 / CPU"]
    print_rows(console, titles, table, words=1)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _median(rows: Sequence[Row], side: str, epoch: int) -> tuple[float, float]:
    """Return the figures of the first epoch, or of all later ones."""
    chosen = [row for row in rows if row.side == side and (row.epoch == 0) == (epoch == 0)]
    return median(row.cpu_s_per_gb for row in chosen), median(row.wall_s for row in chosen)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.transcode", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=2, help="decode threads")
    parser.add_argument("--directory", type=Path, help="where data and caches are written")
    add_suite_options(parser, SCALES)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
