"""The cost of weighted samples: balanced classes and weights, beside the plain epoch and beside WeightedRandomSampler.

python -m benchmarks.weights --checksum-only
python -m benchmarks.weights --scale full --repeats 7

Every side delivers shuffled batches of 64 of one store, whose samples have ten classes of 55 % to 0.2 %. Before any
of them is timed, an epoch of each side is checked: each sample is one that was written, and ours come as often as the
weights say, rounded up or down. The sides take turns. scDataset is a side where it is installed, annbatch has two with
`--peer-python peers/bin/python`, behind the others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zarr
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

import zarrfeed
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, positive
from benchmarks.harness.turns import Turn
from benchmarks.report.tables import make_console, print_rows

_BATCH, _CHUNK = 64, 16
#: Shares of the classes.
SHARES = (0.55, 0.2, 0.1, 0.06, 0.04, 0.02, 0.014, 0.009, 0.005, 0.002)
#: The side that reads one sample after another reads this part of an epoch in a turn.
_PART_OF_EPOCH = 1 / 16
WRONG = 1
_PROBE = Path(__file__).with_name("weights_probe.py")
_TIMEOUT_S = 600


@dataclass(frozen=True)
class Scale:
    """The number of samples that are written, and their shape."""

    length: int
    shape: tuple[int, ...]


SCALES = {"full": Scale(40_000, (3, 64, 64)), "small": Scale(2000, (3, 16, 16))}


@dataclass(frozen=True)
class Written:
    """The store, and the class of each sample."""

    path: Path
    label: npt.NDArray[np.int64]

    @property
    def class_weights(self) -> npt.NDArray[np.float64]:
        """One over the number of samples of each sample's class."""
        weights: npt.NDArray[np.float64] = 1 / np.bincount(self.label)[self.label]
        return weights


class Slices(Dataset[torch.Tensor]):
    """A store as a dataset that slices it with zarr-python, sample by sample."""

    def __init__(self, path: Path) -> None:
        self._array = zarr.open_array(path / "x", mode="r")

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self._array[index]))


class Rows:
    """A store whose samples are taken by an array of indices, as scDataset asks for them."""

    def __init__(self, path: Path) -> None:
        self._array = zarr.open_array(path / "x", mode="r")

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def __getitem__(self, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return np.asarray(self._array.oindex[index])


def scdataset_sides(written: Written) -> dict[str, Iterable[torch.Tensor]]:
    """Return the sides that scDataset has: balanced classes, drawn in blocks of 8 rows, its default, or row by row."""
    if find_spec("scdataset") is None:
        return {}
    from scdataset import ClassBalancedSampling, scDataset

    made: dict[str, Iterable[torch.Tensor]] = {}
    for block in (8, 1):
        strategy = ClassBalancedSampling(written.label, block_size=block)
        batches = scDataset(Rows(written.path), strategy, _BATCH, batch_transform=torch.from_numpy)
        made[f"scDataset, balanced in blocks of {block}"] = _Part(
            DataLoader(batches, batch_size=None), _batches_of_part(len(written.label))
        )
    return made


#: The sides by annbatch: rows of a class that it takes side by side.
_RUNS = {"annbatch, weighted classes": 1, f"annbatch, rows sorted by class, {_CHUNK} side by side": _CHUNK}


def annbatch_rows(written: Written, *, by_class: bool) -> Path:
    """Write the samples as rows, which annbatch reads, in the same chunks; rows of a class side by side if wanted."""
    path = written.path.with_name("by-class.zarr" if by_class else "rows.zarr")
    order = np.argsort(written.label, kind="stable") if by_class else np.arange(len(written.label))
    x = zarr.open_array(written.path / "x", mode="r")
    group = zarr.create_group(path)
    group.create_array("label", data=written.label[order], chunks=(4096,))
    width = int(np.prod(x.shape[1:]))
    rows = group.create_array("rows", shape=(len(order), width), chunks=(_CHUNK, width), dtype="u1")
    number = np.arange(len(order), dtype="<u4").view(np.uint8).reshape(-1, 4)
    for begin in range(0, len(order), 64 * _CHUNK):
        some = order[begin : begin + 64 * _CHUNK]
        values = np.asarray(x.oindex[some]).reshape(len(some), width)
        values[:, :4] = number[begin : begin + len(some)]
        rows[begin : begin + len(some)] = values
    return path


def annbatch_turns(written: Written, python: str, repeats: int) -> tuple[list[Turn], dict[str, str]]:
    """Return the turns of annbatch's sides, and why others are missing.

    Each turn is a process of the Python that has annbatch, and a part of an epoch.
    """
    turns, missing = list[Turn](), dict[str, str]()
    for side, chunk in _RUNS.items():
        path = annbatch_rows(written, by_class=chunk > 1)
        samples = len(written.label) // (4 if chunk > 1 else 16) // (32 * _BATCH) * 32 * _BATCH
        for repeat in range(repeats):
            command = [python, str(_PROBE), str(path), str(_BATCH), str(chunk), str(max(samples, 32 * _BATCH))]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            if done.returncode:
                missing[side] = (done.stderr.strip().splitlines() or ["no error message"])[-1]
                break
            found = json.loads(done.stdout)
            even = found["samples"] / len(SHARES)
            if not all(0.5 * even < count < 1.5 * even for count in found["classes"]):
                missing[side] = f"classes came {found['classes']} times"
                break
            rate, cpu_us = found["samples"] / found["seconds"], found["cpu_s"] * 1e6 / found["samples"]
            turns.append(Turn(side, repeat, rate, cpu_us))
    return turns, missing


class Changing:
    """A dataset whose weights change before each epoch."""

    def __init__(self, dataset: zarrfeed.ZarrIterableDataset) -> None:
        self.dataset, self._rng = dataset, np.random.default_rng(0)

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.dataset.set_sample_weights(self._rng.random(len(self.dataset.data)))
        return iter(self.dataset)


def write(folder: Path, scale: Scale) -> Written:
    """Write the store; a sample begins with its number."""
    rng = np.random.default_rng(0)
    label = rng.choice(len(SHARES), scale.length, p=SHARES)
    label[: len(SHARES)] = np.arange(len(SHARES))
    group = zarr.create_group(folder / "x.zarr")
    group.create_array("label", data=label, chunks=(4096,), dimension_names=("sample",))
    names = ("sample", *"cyx"[: len(scale.shape)])
    x = group.create_array(
        "x", shape=(scale.length, *scale.shape), chunks=(_CHUNK, *scale.shape), dtype="u1", dimension_names=names
    )
    for begin in range(0, scale.length, 16 * _CHUNK):
        count = min(16 * _CHUNK, scale.length - begin)
        samples = rng.integers(0, 16, (count, *scale.shape), np.uint8)
        samples.reshape(count, -1)[:, :4] = np.arange(begin, begin + count, dtype="<u4").view(np.uint8).reshape(-1, 4)
        x[begin : begin + count] = samples
    return Written(folder / "x.zarr", label)


def numbers_of(batches: Iterable[torch.Tensor]) -> npt.NDArray[np.int64]:
    """Return the number of each sample of an epoch."""
    firsts = [np.ascontiguousarray(batch.numpy().reshape(len(batch), -1)[:, :4]).view("<u4")[:, 0] for batch in batches]
    return np.concatenate(firsts).astype(np.int64)


def wrong_counts(numbers: npt.NDArray[np.int64], weights: npt.NDArray[Any]) -> str:
    """Return what is wrong with how often samples come in an epoch; "" if nothing is.

    >>> wrong_counts(np.array([0, 1, 1]), np.array([1.0, 2.0])), wrong_counts(np.array([0, 0, 1]), np.array([1.0, 2.0]))
    ('', '2 samples come more or less often than their weights say')
    """
    if numbers.max() >= len(weights):
        return "there are samples that were never written"
    expected = len(numbers) * weights / weights.sum()
    off = np.abs(np.bincount(numbers, minlength=len(weights)) - expected) >= 1
    return f"{int(off.sum())} samples come more or less often than their weights say" if off.any() else ""


def table(rows: Sequence[Turn]) -> list[list[str]]:
    """Return the lines of the table: medians, and the rate of each side over that of the plain epoch within a round."""
    rates: dict[str, list[float]] = {}
    cpu_us: dict[str, list[float]] = {}
    for row in rows:
        rates.setdefault(row.side, []).append(row.samples_per_s)
        cpu_us.setdefault(row.side, []).append(row.cpu_us_per_sample or 0.0)
    lines = []
    for side, measured in rates.items():
        ratios = [theirs / plain for plain, theirs in zip(rates["plain"], measured, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append([side, f"{median(measured):.0f}", f"{median(ratios):.2f}", spread, f"{median(cpu_us[side]):.1f}"])
    return lines


class _Part:
    """A part of an epoch of a loader, in each turn."""

    def __init__(self, loader: DataLoader[torch.Tensor], batches: int) -> None:
        self._loader, self._batches = loader, batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        return islice(self._loader, self._batches)


def _batches_of_part(length: int) -> int:
    return max(1, int(length * _PART_OF_EPOCH / _BATCH))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        written = write(Path(directory), SCALES[options.scale])
        data = zarrfeed.open(written.path / "x")
        length, uneven = len(data), np.random.default_rng(1).random(len(data))
        described = {
            "plain": (data, np.ones(length)),
            "balanced": (data.balance(written.label), written.class_weights),
            "weights": (data.weight(uneven), uneven),
            "weights that change": (data.weight(np.ones(length)), np.ones(length)),
        }
        ours = {
            side: stack.enter_context(zarrfeed.ZarrIterableDataset(one, batch_size=_BATCH, shuffle=True))
            for side, (one, _) in described.items()
        }
        decodes = {}
        for side, (_, weights) in described.items():
            wrong = wrong_counts(numbers_of(ours[side]), weights)
            decodes[side] = ours[side].stats().chunks_read * _CHUNK / length
            console.print(f"{side}: {wrong or 'every sample as often as it should come'}", highlight=False)
            if wrong:
                return WRONG
        sampler = WeightedRandomSampler(written.class_weights.tolist(), length)
        items: DataLoader[Any] = DataLoader(zarrfeed.ZarrDataset(data), batch_size=_BATCH, sampler=sampler)
        slices = DataLoader(Slices(written.path), batch_size=_BATCH, sampler=sampler)
        sides: dict[str, Iterable[torch.Tensor]] = {
            **ours,
            "weights that change": Changing(ours["weights that change"]),
            "WeightedRandomSampler over ZarrDataset": items,
            "WeightedRandomSampler over zarr-python": _Part(slices, _batches_of_part(length)),
            **scdataset_sides(written),
        }
        for side in list(sides)[len(ours) :]:
            if numbers_of(islice(sides[side], 4)).max() >= length:
                console.print(f"{side}: there are samples that were never written", highlight=False)
                return WRONG
        if options.checksum_only:
            return 0
        rows = [
            Turn.measured(side, repeat, batches, options.least_s)
            for repeat in range(options.repeats)
            for side, batches in sides.items()
        ]
        if options.peer_python:
            theirs, missing = annbatch_turns(written, options.peer_python, options.repeats)
            rows += theirs
            for side, why in missing.items():
                console.print(f"{side} is missing: {why}", highlight=False)
    write_document(options.out / "weights.json", decodes=decodes, rows=[asdict(row) for row in rows])
    print_rows(console, ["", "samples/s", "to plain", "of all rounds", "CPU us/sample"], table(rows), words=1)
    for side, decoded in decodes.items():
        console.print(f"{side}: a chunk is decoded {decoded:.3f} times an epoch", highlight=False)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.weights", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--peer-python", help="Python that has annbatch and zarrs; left out: no sides by annbatch")
    parser.add_argument("--least-s", type=float, default=0.5, help="that a turn of each side takes, in whole epochs")
    add_suite_options(parser, SCALES)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
