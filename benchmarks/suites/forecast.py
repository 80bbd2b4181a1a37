"""What a forecaster's samples cost: states at t - 1 and t, and the target at t + 4, of one store of two variables.

python -m benchmarks.forecast --checksum-only
python -m benchmarks.forecast --scale full --repeats 7
python -m benchmarks.forecast --scale full --codecs lz4 --chunks 16

Samples and targets draw from the same arrays, so each chunk has to be decoded once. That is what the ceiling does, a
bare C++ loop: it decodes every chunk once, and copies each row to as many slots as samples and targets have it. Batches
are shuffled and of 32. Before anything is timed, an epoch is checked: each sample once, with the rows that were
written; and the bytes that it decoded are counted. The sides take turns. The goal is 0.9 of the ceiling, and for chunks
of 16 steps at most 1.05 decodes: decoded bytes over those of all chunks.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import zarr

import zarrfeed
from benchmarks.data.layouts import Layout, blosc
from benchmarks.data.stores import chunk_samples, warm_page_cache
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, names, positive, rate
from benchmarks.loaders.ceiling import usable_cores
from benchmarks.report.tables import make_console, print_rows
from benchmarks.report.turns import Turn, rates_of, ratios_of
from zarrfeed import _core
from zarrfeed.packing.targets.timed_passes import time_passes

_BATCH = 32
VARIABLES = ("t", "u")
#: Rows of a sample, and of its target, from its own row.
SAMPLES, TARGET = (-1, 0), 4
#: Each row that is far from both ends is in so many slots of an epoch.
_COPIES = len(SAMPLES) + 1
#: Rows of variable u begin with so much more than those of t.
_APART = 1 << 20
CODECS: dict[str, Mapping[str, Any]] = {
    "lz4": blosc("lz4", "shuffle"),
    "zstd": {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
}
CHUNKS = ("16", "1", "365")
#: The goals: a share of the ceiling, and for chunks of 16 steps what is decoded, as a multiple of all chunks.
_SHARE, _DECODES = 0.9, 1.05


@dataclass(frozen=True)
class Scale:
    """A size of the arrays that are read.

    Attributes
    ----------
    steps, shape
        Steps of each variable, and the shape of one.
    budget
        A memory budget of which a sixteenth has no room for an array.
    slot_bytes
        The size of the memory that the ceiling's rows go to, whatever the chunks are; for "full" it is larger than the
        cache of the processor, as the batches of the dataset are.
    """

    steps: int
    shape: tuple[int, ...]
    budget: str
    slot_bytes: int


#: Eight years of daily fields, and half a year of tiny ones.
SCALES = {"full": Scale(2920, (4, 64, 64), "1 GiB", 192 << 20), "small": Scale(400, (1, 16, 16), "6 MiB", 1 << 20)}


@dataclass(frozen=True)
class Case:
    """A store, and what is read of it."""

    name: str
    path: Path
    scale: Scale
    num_chunks: int
    chunk_rows: int

    @property
    def num_samples(self) -> int:
        """Rows that have all the rows of a sample and of its target."""
        return self.scale.steps - TARGET + min(SAMPLES)

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks, decoded."""
        return self.num_chunks * self.chunk_rows * math.prod(self.scale.shape) * np.dtype("f4").itemsize

    def dataset(self) -> zarrfeed.ZarrIterableDataset:
        """Return a dataset as a forecaster would make it."""
        data = zarrfeed.open(self.path, targets=self.path).window({"samples": SAMPLES, "targets": TARGET})
        return zarrfeed.ZarrIterableDataset(data, batch_size=_BATCH, shuffle=True, memory_budget=self.scale.budget)

    def ceiling(self) -> float:
        """Return the samples a second of the loop."""
        threads, chunk_bytes = usable_cores(), self.nbytes // self.num_chunks
        seconds = sum(
            _core.measure_ceiling(
                field.to_core(),
                num_threads=threads,
                window_chunks=max(threads, self.scale.slot_bytes // (_COPIES * chunk_bytes)),
                scatter=True,
                copies=_COPIES,
            )[0]
            for field in zarrfeed.open(self.path).resolved.fields
        )
        return self.num_samples / seconds


def write_case(codec: str, chunk: str, folder: Path, scale: Scale) -> Case:
    """Write a store; a row begins with its number, behind that of its variable."""
    path, rows = folder / f"{codec}-{chunk}.zarr", min(int(chunk), scale.steps)
    group = zarr.create_group(path)
    for variable, name in enumerate(VARIABLES):
        layout = Layout(
            name=name,
            description="",
            shape=(scale.steps, *scale.shape),
            chunks=(rows, *scale.shape),
            codec=CODECS[codec],
        )
        array = group.create_array(
            name,
            shape=layout.shape,
            chunks=layout.chunks,
            dtype=layout.dtype,
            compressors=layout.codec,
            dimension_names=["time", *"zyx"[-len(scale.shape) :]],
        )
        for number in range(layout.num_chunks):
            begin = number * rows
            values = chunk_samples(layout, number, min(rows, scale.steps - begin))
            values.reshape(len(values), -1)[:, 0] += variable * _APART
            array[begin : begin + len(values)] = values
    return Case(f"chunks of {chunk}, {codec}", path, scale, len(VARIABLES) * -(-scale.steps // rows), rows)


def wrong_samples(batches: Iterator[tuple[Any, Any]], case: Case) -> str:
    """Return what is wrong with an epoch; "" if each sample came once, with the rows that zarr-python reads."""
    written: dict[str, Any] = {name: np.asarray(zarr.open_array(case.path / name, mode="r")[:]) for name in VARIABLES}
    times = np.zeros(case.scale.steps, dtype=np.int64)
    for samples, targets in batches:
        step = samples["t"][:, -1].reshape(len(samples["t"]), -1)[:, 0].long().numpy()
        for name in VARIABLES:
            rows = torch.from_numpy(written[name][step[:, None] + SAMPLES])
            if not torch.equal(samples[name], rows) or not torch.equal(
                targets[name], torch.from_numpy(written[name][step + TARGET])
            ):
                return f"samples {step.tolist()} have other rows of {name}"
        times += np.bincount(step, minlength=case.scale.steps)
    wanted = np.zeros_like(times)
    wanted[-min(SAMPLES) : case.scale.steps - TARGET] = 1
    wrong = np.flatnonzero(times != wanted)
    return f"samples {wrong.tolist()} came {times[wrong].tolist()} times" if len(wrong) else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    rows: list[Turn] = []
    decodes: dict[str, float] = {}
    for codec in options.codecs:
        for chunk in options.chunks:
            with tempfile.TemporaryDirectory() as directory:
                case = write_case(codec, chunk, Path(directory), SCALES[options.scale])
                warm_page_cache(case.path)
                with closing(case.dataset()) as dataset:
                    wrong = wrong_samples(iter(dataset), case)
                    decodes[case.name] = dataset.stats().bytes_decoded / case.nbytes
                    said = wrong or f"{case.num_samples} samples, each once; {decodes[case.name]:.2f} decodes"
                    console.print(f"{case.name}: {said}", highlight=False, soft_wrap=True)
                    if wrong:
                        return 1
                    for repeat in range(0 if options.checksum_only else options.repeats):
                        rate_of_turn = time_passes(dataset, least_s=options.seconds, limit_s=math.inf)
                        rows.append(Turn(case.name, "forecast", repeat, rate_of_turn.per_s))
                        rows.append(Turn(case.name, "ceiling", repeat, case.ceiling()))
    if options.checksum_only:
        return 0
    write_document(
        options.out / "forecast.json",
        scale=options.scale,
        decodes=decodes,
        rows=[asdict(row) for row in rows],
    )
    print_rows(console, ["", "samples/s", "of the ceiling", "range", "decodes", "goal"], _table(rows, decodes), words=1)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _table(rows: Sequence[Turn], decodes: Mapping[str, float]) -> Iterator[list[str]]:
    """Return a line for each case: the rate, the ratios to the ceiling of each round, what is decoded, and the goal."""
    for case, count in decodes.items():
        rate, ratios = median(rates_of(rows, case, "forecast")), ratios_of(rows, case, "forecast", "ceiling")
        bounds = f"{min(ratios):.2f}-{max(ratios):.2f}"
        is_met = median(ratios) >= _SHARE and (count <= _DECODES or not case.startswith("chunks of 16,"))
        yield [case, f"{rate:.0f}", f"{median(ratios):.2f}", bounds, f"{count:.2f}", "reached" if is_met else "MISSED"]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.forecast", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--codecs", type=names(CODECS), default=list(CODECS))
    parser.add_argument("--chunks", type=names(dict.fromkeys(CHUNKS)), default=list(CHUNKS), help="steps of a chunk")
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--seconds", type=rate, default=0.5, help="of whole epochs that a turn takes at least")
    add_suite_options(parser, SCALES)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
