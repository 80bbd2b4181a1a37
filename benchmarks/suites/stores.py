"""What many stores cost: opening them, and an epoch over them beside one store with the same samples, and a DataLoader.

python -m benchmarks.stores
python -m benchmarks.stores --sides zarrfeed-stores,zarrfeed-one --repeats 9
python -m benchmarks.stores --scale full
python -m benchmarks.stores --sides zarrfeed-stores --repeats 1 --served 1000

Every side delivers shuffled batches of 64. Before anything is timed, each side delivers an epoch, whose samples must be
those that were written, each once. The sides take turns.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import zarr
from torch.utils.data import ConcatDataset, DataLoader, Dataset, RandomSampler

import zarrfeed
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import names, positive
from benchmarks.report.tables import make_console, print_rows

_ROOT = Path(__file__).parents[2]
_BATCH = 64
#: Samples a chunk, and rows of a store that is opened alone.
_CHUNK, _ROWS = 16, 4


@dataclass(frozen=True)
class Scale:
    """What is written: stores to read, samples of each, on average, and their shape; stores that are only opened."""

    stores: int
    samples: int
    shape: tuple[int, ...]
    opened: int


SCALES = {"full": Scale(100, 256, (3, 64, 64), 10_000), "small": Scale(12, 24, (3, 16, 16), 200)}


@dataclass(frozen=True)
class Task:
    """What is read: the stores and the one store of a folder, by a DataLoader with so many workers."""

    folder: Path
    workers: int
    #: A DataLoader decodes a chunk for each sample: so many random ones stand for an epoch when it is timed.
    most_samples: int | None = None

    def stores(self) -> list[Path]:
        """Return the stores, in order."""
        return sorted((self.folder / "many").iterdir())


@dataclass(frozen=True)
class Row:
    """One turn of one side."""

    side: str
    repeat: int
    samples_per_s: float


@dataclass(frozen=True)
class Opened:
    """What it cost to open many stores of one chunk: seconds, KiB of Python's memory a store, and whether all came."""

    stores: int
    seconds: float
    kib_a_store: float
    is_whole: bool

    def __str__(self) -> str:
        return f"opened in {self.seconds:.2f} s, {self.kib_a_store:.1f} KiB a store"


def write(folder: Path, scale: Scale) -> Counter[int]:
    """Write stores of different lengths, and one with all of their samples; return the checksums of the samples."""
    rng = np.random.default_rng(0)
    spread = scale.samples // 4
    lengths = [scale.samples - spread + (37 * number) % (2 * spread) for number in range(scale.stores)]
    one = _create(folder / "one.zarr", sum(lengths), scale.shape)
    written: Counter[int] = Counter()
    buffer = np.empty((0, *scale.shape), np.uint8)
    first = offset = 0
    for number, length in enumerate(lengths):
        samples = rng.integers(0, 16, (length, *scale.shape), np.uint8)
        samples.reshape(length, -1)[:, :4] = np.arange(first, first + length, dtype="<u4").view(np.uint8).reshape(-1, 4)
        _create(folder / "many" / f"{number:05}.zarr", length, scale.shape)[:] = samples
        written.update(zlib.crc32(sample.tobytes()) for sample in samples)
        first += length
        buffer = np.concatenate([buffer, samples])
        whole = len(buffer) if number == len(lengths) - 1 else len(buffer) // _CHUNK * _CHUNK
        one[offset : offset + whole] = buffer[:whole]
        offset, buffer = offset + whole, buffer[whole:]
    return written


def _create(path: Path, length: int, shape: tuple[int, ...]) -> Any:
    return zarr.create_array(path, shape=(length, *shape), chunks=(_CHUNK, *shape), dtype="u1")


def write_small_stores(folder: Path, count: int) -> list[Path]:
    """Write stores of one chunk, whose samples are numbered through; return their paths."""
    zarr.create_array(
        folder / "template", shape=(_ROWS,), chunks=(_ROWS,), dtype="<i8", compressors=None, overwrite=True
    )
    metadata = (folder / "template" / "zarr.json").read_bytes()
    paths = []
    for number in range(count):
        path = folder / "small" / f"{number:06}.zarr"
        (path / "c").mkdir(parents=True, exist_ok=True)
        (path / "zarr.json").write_bytes(metadata)
        (path / "c" / "0").write_bytes(np.arange(_ROWS * number, _ROWS * (number + 1), dtype="<i8").tobytes())
        paths.append(path)
    return paths


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine, by a process of its own; yield its URL."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--protocol", "HTTP/1.1"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().split()[5]}"
        finally:
            server.kill()


def open_many(paths: Sequence[Path | str]) -> Opened:
    """Open stores, once for the clock and once for the memory, and read them."""
    begin = time.perf_counter()
    data = zarrfeed.open(paths)
    seconds = time.perf_counter() - begin
    with zarrfeed.ZarrIterableDataset(data, batch_size=1024, shuffle=True) as dataset:
        seen = torch.cat(list(dataset)).sort().values
    is_whole = torch.equal(seen, torch.arange(_ROWS * len(paths)))
    del data, dataset
    tracemalloc.start()
    data = zarrfeed.open(paths)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return Opened(len(data.stores), seconds, held / len(paths) / 1024, is_whole)


def open_served(folder: Path, count: int) -> Opened:
    """Open stores of a web server."""
    paths = write_small_stores(folder, count)
    with web_server(folder / "small") as url:
        return open_many([f"{url}/{path.name}" for path in paths])


class Samples(Dataset[torch.Tensor]):
    """A map-style dataset of one store, each sample read by zarr-python."""

    def __init__(self, path: Path) -> None:
        self._array: Any = zarr.open_array(path, mode="r")

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.from_numpy(self._array[number])


Batches = Iterable[torch.Tensor]


def _stores(task: Task) -> AbstractContextManager[Batches]:
    return zarrfeed.ZarrIterableDataset(zarrfeed.open(task.stores()), batch_size=_BATCH, shuffle=True)


def _one(task: Task) -> AbstractContextManager[Batches]:
    return zarrfeed.ZarrIterableDataset(task.folder / "one.zarr", batch_size=_BATCH, shuffle=True)


class _Loader(DataLoader[torch.Tensor]):
    def close(self) -> None:
        self._iterator = None  # which ends the workers


def _loaded(task: Task) -> AbstractContextManager[Batches]:
    dataset: ConcatDataset[torch.Tensor] = ConcatDataset([Samples(path) for path in task.stores()])
    count = len(dataset)
    more: dict[str, Any] = {"multiprocessing_context": "forkserver", "persistent_workers": True}
    sampler = RandomSampler(dataset, num_samples=min(count, task.most_samples or count))
    return closing(_Loader(dataset, _BATCH, sampler=sampler, num_workers=task.workers, **more))


SIDES: dict[str, Callable[[Task], AbstractContextManager[Batches]]] = {
    "zarrfeed-stores": _stores,
    "zarrfeed-one": _one,
    "dataloader-concat": _loaded,
}


def wrong_samples(batches: Batches, written: Counter[int]) -> str:
    """Return what is wrong with an epoch; "" if each sample came once."""
    found = Counter(zlib.crc32(sample.numpy().tobytes()) for batch in batches for sample in batch)
    if found == written:
        return ""
    lacks, others = (written - found).total(), (found - written).total()
    return f"{lacks} samples of {written.total()} are missing, {others} are others"


def _rate(batches: Batches) -> float:
    """Return the samples a second of an epoch."""
    count, begin = 0, time.perf_counter()
    for batch in batches:
        count += len(batch)
    return count / (time.perf_counter() - begin)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    scale = SCALES[options.scale]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        task = Task(Path(directory), options.workers)
        written = write(task.folder, scale)
        for side in options.sides:
            with SIDES[side](task) as batches:
                wrong = wrong_samples(batches, written)
            console.print(f"{side}: {wrong or 'every sample once'}", highlight=False)
            if wrong:
                return 1
        opened = open_many(write_small_stores(task.folder, scale.opened))
        if not opened.is_whole:
            console.print("stores of one chunk: samples are missing", highlight=False)
            return 1
        served = open_served(task.folder, options.served) if options.served else None
        if options.checksum_only:
            return 0
        task = Task(task.folder, task.workers, options.most_samples)
        made = {side: SIDES[side](task) for side in options.sides}
        batches_of = {side: one.__enter__() for side, one in made.items()}
        try:
            for repeat in range(-1, options.repeats):  # in the first round memory is fresh, and workers start
                for side, batches in batches_of.items():
                    rate = _rate(batches)
                    rows += [Row(side, repeat, rate)] * (repeat >= 0)
        finally:
            for one in made.values():
                one.__exit__(None, None, None)
    write_document(
        options.out / "stores.json",
        opened=asdict(opened),
        served=None if served is None else asdict(served),
        rows=[asdict(row) for row in rows],
    )
    rates = {side: [row.samples_per_s for row in rows if row.side == side] for side in options.sides}
    first = rates[options.sides[0]]
    table = [
        [side, f"{median(rate):.0f}", f"{median(a / b for a, b in zip(first, rate, strict=True)):.2f}"]
        for side, rate in rates.items()
    ]
    print_rows(console, ["", "samples/s", f"{options.sides[0]} to this"], table, words=1)
    console.print(f"{opened.stores} stores of one chunk: {opened}", highlight=False)
    if served is not None:
        console.print(f"{served.stores} stores of one chunk, of a web server: {served}", highlight=False)
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.stores", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sides", type=names(SIDES), default=list(SIDES))
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--workers", type=positive, default=2, help="of a DataLoader")
    parser.add_argument("--most-samples", type=positive, default=2048, help="that a DataLoader is timed by")
    parser.add_argument("--checksum-only", action="store_true", help="time nothing")
    parser.add_argument("--served", type=int, default=0, help="stores of a web server that are opened, too")
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
