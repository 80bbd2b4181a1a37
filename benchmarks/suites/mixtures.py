"""What a mixture costs: three stores mixed 7 : 2 : 1, beside each of them alone, and beside other libraries.

python -m benchmarks.mixtures --checksum-only
python -m benchmarks.mixtures --scale full --repeats 9
python -m benchmarks.mixtures --scale full --peers streaming,grain --peer-python peers/bin/python

Every side delivers shuffled batches of 64. Before anything is timed, an epoch is checked: each sample is one that was
written, the shares are the weights, and no sample of a source comes twice before all of them came once. The sides take
turns.

What the mixture is held against is the weighted rate of its sources: 10 samples of the mixture take as long as 7
samples of the first store alone, 2 of the second one and 1 of the third one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import zarr

import zarrfeed
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, names, positive
from benchmarks.harness.turns import Turn
from benchmarks.report.tables import make_console, print_rows

_PROBE = Path(__file__).with_name("mixtures_probe.py")
_BATCH, _TIMEOUT_S = 64, 600
WEIGHTS = (7, 2, 1)
#: Samples a chunk, of each source.
CHUNKS = (16, 24, 8)
#: At any prefix, a source is at most so many samples from its share (docs/design/mixtures.md, Rules).
_MOST_OFF = 8
#: The passes of a source may overlap by two samples a column, of 24.
_OVERLAP = 48
#: Epochs in which decoded chunks are counted: the second one begins in the middle of passes.
_COUNTED_EPOCHS = 2
#: The line of the table that the mixture is held against.
_SOURCES = "weighted rate of the sources"
PEERS = ("streaming", "grain")
WRONG, MISSING = 1, 2


@dataclass(frozen=True)
class Scale:
    """What is written: samples of each source, and their shape."""

    lengths: tuple[int, ...]
    shape: tuple[int, ...]


#: The third source is repeated; the second one is not read to its end.
SCALES = {
    "full": Scale((42_000, 18_000, 3000), (3, 64, 64)),
    "small": Scale((1400, 600, 100), (3, 16, 16)),
}


@dataclass(frozen=True)
class Written:
    """The sources on the disk, and the checksum of each sample, by its number."""

    paths: list[Path]
    lengths: tuple[int, ...]
    checksums: list[int]


def write(folder: Path, scale: Scale) -> Written:
    """Write the sources; a sample begins with its number, through all sources."""
    rng = np.random.default_rng(0)
    paths: list[Path] = []
    checksums: list[int] = []
    for number, (length, chunk) in enumerate(zip(scale.lengths, CHUNKS, strict=True)):
        path = folder / f"source-{number}.zarr"
        array = zarr.create_array(path, shape=(length, *scale.shape), chunks=(chunk, *scale.shape), dtype="u1")
        for begin in range(0, length, chunk * 16):
            count = min(chunk * 16, length - begin)
            samples = rng.integers(0, 16, (count, *scale.shape), np.uint8)
            numbers = np.arange(len(checksums), len(checksums) + count, dtype="<u4")
            samples.reshape(count, -1)[:, :4] = numbers.view(np.uint8).reshape(-1, 4)
            array[begin : begin + count] = samples
            checksums += [zlib.crc32(sample.tobytes()) for sample in samples]
        paths.append(path)
    return Written(paths, scale.lengths, checksums)


def mixture(written: Written, **options: Any) -> zarrfeed.Data:
    """Return the mixture that is measured: an epoch reads the first source once."""
    return zarrfeed.mix(written.paths, WEIGHTS, stop="longest", **options)


def dataset_of(data: Any, **options: Any) -> zarrfeed.ZarrIterableDataset:
    """Return a dataset as a user would make it."""
    return zarrfeed.ZarrIterableDataset(data, batch_size=_BATCH, shuffle=True, **options)


def numbers_of(batches: Iterable[torch.Tensor], written: Written) -> list[int]:
    """Return the number of each sample of an epoch; -1 for what was not written."""
    found = []
    for batch in batches:
        for sample in batch.numpy():
            number = int(sample.reshape(-1)[:4].view("<u4")[0])
            is_ours = number < len(written.checksums) and zlib.crc32(sample.tobytes()) == written.checksums[number]
            found.append(number if is_ours else -1)
    return found


def wrong_mixture(numbers: Sequence[int], written: Written, *, at_any_prefix: bool = True) -> str:
    """Return what is wrong with an epoch of a mixture, or with its shares at any prefix; "" if nothing is."""
    order = np.array(numbers, dtype=np.int64)
    if not len(order) or order.min() < 0:
        return f"{int((order < 0).sum())} samples of {len(order)} were never written"
    ends = np.cumsum(written.lengths)
    source = np.searchsorted(ends, order, side="right")
    prefix = np.arange(1, len(order) + 1)
    for one, (weight, length, end) in enumerate(zip(WEIGHTS, written.lengths, ends, strict=True)):
        is_of = source == one
        distances = np.abs(np.cumsum(is_of) - prefix * (weight / sum(WEIGHTS)))
        off = float(distances.max() if at_any_prefix else distances[-1])
        if off > _MOST_OFF:
            return f"source {one} is {off:.1f} samples from its share"
        times = np.bincount(order[is_of] - (end - length), minlength=length)
        passes = int(is_of.sum()) // length
        others = int(((times < passes) | (times > passes + 1)).sum())
        if others > _OVERLAP:
            return f"source {one} has {others} samples that came more or less than {passes} or {passes + 1} times"
    return ""


def decodes_a_chunk(written: Written, world_size: int) -> float:
    """Return how many chunks all ranks decode in some epochs, over those that hold what they deliver."""
    decoded, taken = 0, np.zeros(len(written.lengths), dtype=np.int64)
    data = mixture(written)
    for rank in range(world_size):
        with dataset_of(data, rank=rank, world_size=world_size, return_index=True) as dataset:
            for _ in range(_COUNTED_EPOCHS):
                for _samples, index in dataset:
                    taken += np.bincount(data.source_of(index), minlength=len(taken))
            decoded += dataset.stats().chunks_read
    return decoded / float((taken / np.array(CHUNKS)).sum())


def decodes_alone(written: Written) -> float:
    """Return the same of the sources by themselves, on one rank, each with its share."""
    decoded = 0.0
    for path, length, weight in zip(written.paths, written.lengths, WEIGHTS, strict=True):
        with dataset_of(path) as dataset:
            for _ in range(_COUNTED_EPOCHS):
                for _samples in dataset:
                    pass
            decoded += weight * dataset.stats().chunks_read / (length * _COUNTED_EPOCHS)
    return decoded / sum(weight / chunk for weight, chunk in zip(WEIGHTS, CHUNKS, strict=True))


def weighted_rate(rates: Sequence[float]) -> float:
    """Return the samples a second of sources that are read one behind the other, each its share.

    >>> weighted_rate([1000, 1000, 500]) == 10 / (7 / 1000 + 2 / 1000 + 1 / 500)
    True
    """
    return sum(WEIGHTS) / sum(weight / rate for weight, rate in zip(WEIGHTS, rates, strict=True))


def table(rows: Sequence[Turn]) -> list[list[str]]:
    """Return the lines of the table: medians, and the rate of the mixture over that of each side within a round."""
    rates: dict[str, list[float]] = {}
    cpu_us: dict[str, list[float]] = {}
    for row in rows:
        rates.setdefault(row.side, []).append(row.samples_per_s)
        if row.cpu_us_per_sample is not None:
            cpu_us.setdefault(row.side, []).append(row.cpu_us_per_sample)
    alone = [f"source {number} alone" for number in range(len(WEIGHTS))]
    rates[_SOURCES] = [weighted_rate(of_round) for of_round in zip(*(rates[side] for side in alone), strict=True)]
    cpu_us[_SOURCES] = [float(np.average([median(cpu_us[side]) for side in alone], weights=WEIGHTS))]
    lines = []
    for side, measured in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(rates["mixture"], measured, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        cpu = f"{median(cpu_us[side]):.1f}" if side in cpu_us else "n/a"
        lines.append([side, f"{median(measured):.0f}", f"{median(ratios):.2f}", spread, cpu])
    return lines


def probe(python: str, side: str, written: Written, folder: Path, epochs: int) -> list[dict[str, Any]] | str:
    """Return what a peer printed; or the last line of its error."""
    task = {
        "paths": [str(path) for path in written.paths],
        "weights": WEIGHTS,
        "batch_size": _BATCH,
        "steps": sum(WEIGHTS) * written.lengths[0] // WEIGHTS[0],
        "epochs": epochs,
        "folder": str(folder / side),
    }
    command = [python, str(_PROBE), side, json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no error message"])[-1]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    rows: list[Turn] = []
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        folder = Path(directory)
        written = write(folder, SCALES[options.scale])
        read: dict[str, Any] = {"mixture": mixture(written), "per batch": mixture(written, batching="per_batch")}
        read |= {f"source {number} alone": path for number, path in enumerate(written.paths)}
        sides = {side: stack.enter_context(dataset_of(data)) for side, data in read.items()}
        wrong = wrong_mixture(numbers_of(sides["mixture"], written), written)
        if not wrong and -1 in numbers_of(sides["per batch"], written):
            wrong = "per batch: there are samples that were never written"
        console.print(f"mixture: {wrong or 'every share, every pass'}", highlight=False)
        if wrong:
            return WRONG
        decodes = {"sources alone": decodes_alone(written)}
        decodes |= {f"mixture, ranks: {ranks}": decodes_a_chunk(written, ranks) for ranks in options.ranks}
        for peer in options.peers:
            answer = probe(options.peer_python, peer, written, folder, 0)
            if isinstance(answer, str):
                console.print(f"{peer} is missing: {answer}", highlight=False)
                return MISSING
            # Streaming keeps the shares of an epoch, not at every prefix.
            wrong = wrong_mixture(answer[0]["numbers"], written, at_any_prefix=False)
            console.print(f"{peer}: {wrong or 'every share of an epoch, every pass'}", highlight=False)
            if wrong:
                return WRONG
        if options.checksum_only:
            return 0
        for dataset in sides.values():  # the second epoch: memory is no longer fresh
            Turn.measured("", 0, dataset, 0)
        for repeat in range(options.repeats):
            rows += [Turn.measured(side, repeat, dataset, options.least_s) for side, dataset in sides.items()]
            for peer in options.peers:
                answer = probe(options.peer_python, peer, written, folder, 3)
                assert not isinstance(answer, str), answer
                rows.append(Turn(peer, repeat, median(one["samples"] / one["seconds"] for one in answer[1:])))
    write_document(options.out / "mixtures.json", decodes=decodes, rows=[asdict(row) for row in rows])
    print_rows(console, ["", "samples/s", "mixture to this", "of all rounds", "CPU us/sample"], table(rows), words=1)
    for who, decoded in decodes.items():
        console.print(f"{who}: a chunk is decoded {decoded:.3f} times a pass", highlight=False)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _integers(text: str) -> list[int]:
    return [positive(one) for one in text.split(",")]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.mixtures", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--least-s", type=float, default=0.5, help="that a turn of ours takes, in whole epochs")
    parser.add_argument("--ranks", type=_integers, default=[1, 2, 8], help="worlds whose decoded chunks are counted")
    parser.add_argument("--peers", type=names(PEERS), default=[])
    parser.add_argument("--peer-python", default=sys.executable, help="Python that has the peers, zarr and torch")
    add_suite_options(parser, SCALES)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
