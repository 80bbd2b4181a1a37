"""What joined, padded and stacked fields cost, each beside the same samples read without.

python -m benchmarks.fields
python -m benchmarks.fields --scale full --repeats 7
python -m benchmarks.fields --cases join
python -m benchmarks.fields --scale small --checksum-only

Every side delivers shuffled batches of 64. Before anything is timed, each side delivers an epoch, whose samples must be
those that NumPy makes of the arrays that were written, each once. The sides of a case take turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import zarr
from numpy.typing import NDArray

import zarrfeed
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, names, positive, rate
from benchmarks.report.tables import make_console, print_rows
from benchmarks.report.turns import Turn

_BATCH = 64
#: A sixteenth of it has no room for an array of the full scale, which would be decoded once and kept in memory.
_BUDGET = "256 MiB"
#: Rows a chunk of an array; of the array that is joined to it.
_CHUNK, _CHUNK_OF_SECOND = 16, 24
_OFFSETS = tuple(range(-1, 7))
_VARIABLES = ("t2m", "u10", "v10", "z500")

Array = NDArray[Any]
Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Scale:
    """What is written: rows of each array, and the shape of one."""

    rows: int
    shape: tuple[int, ...]


SCALES = {"full": Scale(4096, (64, 64)), "small": Scale(512, (16, 16))}


@dataclass(frozen=True)
class Side:
    """How samples are read: an epoch of each of these, one after another, whose batches become tuples of tensors."""

    datas: tuple[zarrfeed.Data, ...]
    tensors: Callable[[Any], Batch]
    #: How often each checksum of a sample comes in an epoch.
    written: Counter[int]
    #: Samples that an epoch of all datas is.
    samples: int


def _write(path: Path, rng: np.random.Generator, rows: int, shape: tuple[int, ...], chunk: int = _CHUNK) -> Array:
    """Write float32 of few digits, whose rows all differ, and return it."""
    values = rng.integers(0, 256, (rows, *shape)).astype("<f4") / 8
    values.reshape(rows, -1)[:, 0] = np.arange(rows)
    zarr.create_array(path, data=values, chunks=(chunk, *shape))
    return values


def _sums(*arrays: Array | torch.Tensor) -> Iterator[int]:
    """Return the checksum of each sample, which has a row of each array."""
    for rows in zip(*map(np.asarray, arrays), strict=True):
        total = 0
        for row in rows:
            total = zlib.crc32(row.tobytes(), total)
        yield total


def make_join(folder: Path, scale: Scale) -> dict[str, Side]:
    """Join two arrays that have most of their times in common, in chunks that do not nest."""
    rng = np.random.default_rng(1)
    first = _write(folder / "first.zarr", rng, scale.rows, scale.shape)
    times = np.arange(scale.rows)
    other_times = np.setdiff1d(np.arange(10, scale.rows + 10), np.arange(0, scale.rows + 10, 7))
    second = _write(folder / "second.zarr", rng, len(other_times), scale.shape, _CHUNK_OF_SECOND)
    joined = zarrfeed.join(
        {"first": folder / "first.zarr", "second": folder / "second.zarr"},
        "time",
        coords={"first": times, "second": other_times},
    )
    _, of_first, of_second = np.intersect1d(times, other_times, return_indices=True)
    alone = (
        zarrfeed.open(folder / "first.zarr").select(of_first),
        zarrfeed.open(folder / "second.zarr").select(of_second),
    )
    count = len(of_first)
    each = Counter(_sums(first[of_first])) + Counter(_sums(second[of_second]))
    both = Counter(_sums(first[of_first], second[of_second]))
    return {
        "joined": Side((joined,), lambda batch: (batch["first"], batch["second"]), both, count),
        "each alone": Side(alone, lambda batch: (batch,), each, count),
    }


def make_pad(folder: Path, scale: Scale) -> dict[str, Side]:
    """Make windows of episodes, of all samples and of those that lack no row."""
    rng = np.random.default_rng(2)
    values = _write(folder / "episodes.zarr", rng, scale.rows, scale.shape)
    ends = np.cumsum(rng.integers(20, 60, scale.rows // 20))
    ends = np.append(ends[ends < scale.rows], scale.rows)
    number = np.searchsorted(ends, np.arange(scale.rows), side="right")
    first, last = np.append(0, ends)[number], ends[number] - 1  # of the episode of each sample
    wanted = np.arange(scale.rows)[:, None] + _OFFSETS  # samples, rows of the window
    rows = np.clip(wanted, first[:, None], last[:, None])
    is_pad = rows != wanted
    whole = ~is_pad.any(1)
    data = zarrfeed.open(folder / "episodes.zarr")
    padded = data.window(_OFFSETS, segment_ends=ends, pad="edge", mask=True)
    return {
        "padded": Side(
            (padded,),
            lambda batch: (batch["samples"], batch["samples_is_pad"]),
            Counter(_sums_of_windows(values, rows, is_pad)),
            scale.rows,
        ),
        "left out": Side(
            (data.window(_OFFSETS, segment_ends=ends),),
            lambda batch: (batch,),
            Counter(_sums_of_windows(values, rows[whole])),
            int(whole.sum()),
        ),
    }


def _sums_of_windows(values: Array, rows: Array, *beside: Array) -> Iterator[int]:
    for begin in range(0, len(rows), _BATCH):  # all windows at once would be several times the array
        part = slice(begin, begin + _BATCH)
        yield from _sums(values[rows[part]], *(array[part] for array in beside))


def make_stack(folder: Path, scale: Scale) -> dict[str, Side]:
    """Put variables side by side in one tensor."""
    rng = np.random.default_rng(3)
    values = [_write(folder / "variables.zarr" / name, rng, scale.rows, scale.shape) for name in _VARIABLES]
    data = zarrfeed.open({name: folder / "variables.zarr" / name for name in _VARIABLES})
    written = Counter(_sums(*values))  # which is the checksum of them side by side, too
    return {
        "stacked": Side((data.stack(_VARIABLES),), lambda batch: (batch,), written, scale.rows),
        "torch.stack": Side(
            (data,),
            lambda batch: (torch.stack([batch[name] for name in _VARIABLES], 1),),
            written,
            scale.rows,
        ),
    }


#: The first side of each is the one that a ratio is of.
CASES: dict[str, Callable[[Path, Scale], dict[str, Side]]] = {
    "join": make_join,
    "pad": make_pad,
    "stack": make_stack,
}


class Reader:
    """Reads epochs of a side."""

    def __init__(self, side: Side, stack: ExitStack) -> None:
        self.side = side
        self._datasets = [
            stack.enter_context(
                zarrfeed.ZarrIterableDataset(data, batch_size=_BATCH, shuffle=True, memory_budget=_BUDGET)
            )
            for data in side.datas
        ]

    def __iter__(self) -> Iterator[Batch]:
        for dataset in self._datasets:
            yield from map(self.side.tensors, dataset)

    def samples_per_s(self, seconds: float) -> float:
        """Return the rate of as many epochs as take these seconds, or one."""
        begin, epochs, passed = time.perf_counter(), 0, 0.0
        while passed < seconds or epochs == 0:
            for _ in self:
                pass
            epochs, passed = epochs + 1, time.perf_counter() - begin
        return epochs * self.side.samples / passed


def wrong_samples(batches: Iterator[Batch], written: Counter[int]) -> str:
    """Return what is wrong with an epoch; "" if each sample came once."""
    found: Counter[int] = Counter()
    for batch in batches:
        found.update(_sums(*batch))
    if found == written:
        return ""
    lacks, others = (written - found).total(), (found - written).total()
    return f"{lacks} samples of {written.total()} are missing, {others} are others"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    rows: list[Turn] = []
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        readers: dict[tuple[str, str], Reader] = {}
        for case in options.cases:
            folder = Path(directory) / case
            folder.mkdir()
            for side, one in CASES[case](folder, SCALES[options.scale]).items():
                reader = readers[case, side] = Reader(one, stack)
                wrong = wrong_samples(iter(reader), one.written)
                console.print(f"{case}, {side}: {wrong or f'{one.samples} samples, each once'}", highlight=False)
                if wrong:
                    return 1
        if options.checksum_only:
            return 0
        for repeat in range(options.repeats):
            for (case, side), reader in readers.items():
                rows.append(Turn(case, side, repeat, reader.samples_per_s(options.seconds)))
    write_document(options.out / "fields.json", scale=options.scale, rows=[asdict(row) for row in rows])
    print_rows(console, ["", "", "samples/s", "first side to this", "range"], _table(rows), words=2)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _table(rows: Sequence[Turn]) -> Iterator[list[str]]:
    """Return a line for each side: its rate, and the ratios of the first side to it, of each round."""
    rates: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        rates.setdefault(row.case, {}).setdefault(row.side, []).append(row.samples_per_s)
    for case, sides in rates.items():
        first = next(iter(sides.values()))
        for side, each in sides.items():
            ratios = [a / b for a, b in zip(first, each, strict=True)]
            bounds = f"{min(ratios):.2f}-{max(ratios):.2f}"
            yield [case, side, f"{median(each):.0f}", f"{median(ratios):.2f}", bounds]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.fields", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=names(CASES), default=list(CASES))
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--seconds", type=rate, default=0.5, help="of whole epochs that a turn takes at least")
    add_suite_options(parser, SCALES)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
