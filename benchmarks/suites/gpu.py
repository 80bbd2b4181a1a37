"""Training steps on a GPU: batches that zarrfeed reads, beside the same batches preloaded on the device.

python -m benchmarks.gpu
python -m benchmarks.gpu --pairs all --limit 1200
python -m benchmarks.gpu --pairs A:resnet50,images:vit --sides zarrfeed
python -m benchmarks.gpu --device cpu --scale tiny          # no figures: does everything run?

Each pair is a layout and a network. In each round the network trains on preloaded batches, which is the ceiling, and
then on zarrfeed's. `plain` is a map-style dataset over zarr-python in a shuffling DataLoader with worker processes;
its parts come last. Before anything is timed, samples of a batch on the device are compared with what zarr-python
reads. The JSON file and the page are written anew after each part, so a run that is cut short leaves what it had.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.utils.data import DataLoader, RandomSampler

import zarrfeed
from benchmarks.harness.deadline import Deadline
from benchmarks.harness.machine import describe_machine, machine_line
from benchmarks.harness.options import names, not_negative, positive, rate, whole
from benchmarks.report.gpu_page import write_report
from benchmarks.report.tables import make_console
from benchmarks.suites.gpu_feeds import FEEDS, SCALES, Feed
from benchmarks.suites.gpu_models import MODELS, Training
from benchmarks.suites.gpu_steps import Window, count_bytes, feed_rate, marks_of, run_steps, tensors_of
from zarrfeed.device import prefetch

_ROOT = Path(__file__).parents[2]

#: Layout and network, the most telling first; a run without `--pairs` measures the first five.
PAIRS = (
    ("A", "resnet50"),
    ("C", "vit"),
    ("forecast", "vit"),
    ("patches", "unet3d"),
    ("images", "resnet50"),
    ("E", "resnet50"),
    ("C", "resnet50"),
    ("A", "vit"),
    ("E", "vit"),
    ("images", "vit"),
)
_FIRST = 5

OURS, PLAIN = "zarrfeed", "plain"
SIDES = (OURS, PLAIN)

#: Batches that the ceiling trains on in turn: so many, or as many bytes.
_PRELOADED, _PRELOADED_BYTES = 16, 2 << 30
#: Samples of a batch that are compared with what zarr-python reads.
_COMPARED = 16
#: Copies of the data that these are taken from.
_COMPARED_COPIES = 2
#: Seconds of a part besides its steps: data are written, workers start, and the network's kernels are chosen.
_SET_UP_S = {"full": 20.0, "tiny": 0.0}
#: A sampler without an end: it draws with replacement, and never lists its draws.
_ENDLESS = 1 << 40

Batches = Iterator[Any]


@dataclass(frozen=True)
class Part:
    """One pair with one side.

    Attributes
    ----------
    layout, model, side
        Names of the layout, the network and the side.
    feed, network
        Described in words.
    compared
        Samples of a batch on the device that were compared with zarr-python.
    first_batch_s
        From opening the store to the first batch on the device, imports left out; of `plain`, the start of its workers
        is a part of it.
    feed_samples_per_s
        Samples that came to the device in a second while nothing trained; None: not measured.
    ceiling, windows
        Steps on preloaded batches and on those of the side, one of each a round; of `plain`, one round.
    """

    layout: str
    model: str
    side: str
    feed: str
    network: str
    compared: int
    first_batch_s: float
    feed_samples_per_s: float | None
    ceiling: Sequence[Window]
    windows: Sequence[Window]


def measure(layout: str, model: str, side: str, device: torch.device, options: argparse.Namespace) -> Part:
    """Measure one part.

    Raises
    ------
    AssertionError
        If a batch on the device differs from what zarr-python reads.
    """
    feed = FEEDS[layout](options.data, options.scale)
    torch.manual_seed(0)
    kind = MODELS[model](layout, feed.shape, options.scale)
    training, make_mark = Training(kind, device), marks_of(device)
    compared = compare(feed, device)
    preloaded = _preloaded(feed, device)
    for _ in range(3):  # kernels are chosen and memory is taken
        training.step(next(preloaded))
    first_s, fed = 0.0, None
    if side == OURS:
        first_s = first_batch_s(_ours(feed, device, copies=1, threads=options.threads), device)
    begin = time.perf_counter()
    ours = _ours(feed, device, copies=feed.copies, threads=options.threads)
    with ours if side == OURS else _plain(feed, device, options.workers) as batches:
        if side == OURS:
            fed = feed_rate(batches, make_mark, seconds=options.seconds / 2, warm_s=options.warm)
        else:
            next(batches)
            _wait(device)
            first_s = time.perf_counter() - begin
        ceiling: list[Window] = []
        windows: list[Window] = []
        for _ in range(options.rounds if side == OURS else 1):
            for source, found in ((preloaded, ceiling), (batches, windows)):
                window = run_steps(source, training.step, make_mark, seconds=options.seconds, warm_s=options.warm)
                found.append(window)
        return Part(
            layout,
            model,
            side,
            feed.description,
            kind.description,
            compared,
            first_s,
            fed,
            ceiling,
            windows,
        )


def compare(feed: Feed, device: torch.device) -> int:
    """Compare samples of a batch on the device with what zarr-python reads; return how many.

    Raises
    ------
    AssertionError
        If one differs.
    """
    data = feed.open(_COMPARED_COPIES)
    with _dataset(feed, data, return_index=True) as dataset:
        batches = iter(prefetch(zarrfeed.ZarrDataLoader(dataset), device))
        *tensors, index = next(batches)
        del batches
        keys = feed.keys(data, index.cpu())[:_COMPARED]
        for number, key in enumerate(keys):
            for found, expected in zip(tensors, tensors_of(feed.plain[key]), strict=True):
                if not torch.equal(found[number].cpu(), expected):
                    raise AssertionError(f"{feed.name}: sample {key} on {device} is not what zarr-python reads")
    return len(keys)


def first_batch_s(feeding: AbstractContextManager[Batches], device: torch.device) -> float:
    """Return the seconds until the first batch is on the device."""
    begin = time.perf_counter()
    with feeding as batches:
        next(batches)
        _wait(device)
        return time.perf_counter() - begin


def _preloaded(feed: Feed, device: torch.device) -> Batches:
    """Return batches that lie on the device, again and again."""
    with _ours(feed, device, copies=1) as batches:
        some = [_own(next(batches))]
        count = max(2, min(_PRELOADED, _PRELOADED_BYTES // count_bytes(some[0])))
        some += [_own(batch) for batch in islice(batches, count - 1)]
    return cycle(some)


def _dataset(feed: Feed, data: zarrfeed.Data, **more: Any) -> zarrfeed.ZarrIterableDataset:
    return zarrfeed.ZarrIterableDataset(data, batch_size=feed.batch_size, shuffle=True, seed=0, drop_last=True, **more)


@contextmanager
def _ours(feed: Feed, device: torch.device, *, copies: int, threads: int | None = None) -> Iterator[Batches]:
    """Give zarrfeed's batches on a device, epoch after epoch."""
    with _dataset(feed, feed.open(copies), num_threads=threads) as dataset:
        loader = prefetch(zarrfeed.ZarrDataLoader(dataset), device)
        batches = _endless(lambda: iter(loader))
        try:
            yield batches
        finally:
            batches.close()


@contextmanager
def _plain(feed: Feed, device: torch.device, workers: int) -> Iterator[Batches]:
    """Give batches of a DataLoader over zarr-python, as most scripts have it."""
    more: dict[str, Any] = {"multiprocessing_context": "forkserver", "persistent_workers": True} if workers else {}
    sampler = RandomSampler(feed.plain, replacement=True, num_samples=_ENDLESS)  # type: ignore[arg-type]
    loader: Any = DataLoader(
        feed.plain,
        feed.batch_size,
        sampler=sampler,
        num_workers=workers,
        drop_last=True,
        pin_memory=device.type == "cuda",
        **more,
    )

    def moved() -> Generator[Any]:
        for batch in loader:
            copies = [tensor.to(device, non_blocking=True) for tensor in tensors_of(batch)]
            yield copies[0] if len(copies) == 1 else copies

    batches = moved()
    try:
        yield batches
    finally:
        batches.close()
        loader._iterator = None  # noqa: SLF001 - which ends the workers, and torch has no other way


def _endless(begin: Callable[[], Batches]) -> Generator[Any]:
    while True:
        yield from begin()


def _own(batch: Any) -> Any:
    """Return a batch in memory of its own: a batch on a CPU lies in the engine's, which is used again."""
    if tensors_of(batch)[0].device.type != "cpu":
        return batch
    copies = [tensor.clone() for tensor in tensors_of(batch)]
    return copies[0] if len(copies) == 1 else copies


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _prepared_device(kind: str) -> torch.device:
    if kind == "cpu":
        torch.set_num_threads(1)  # more wait by spinning, which takes the cores from the threads that decode
        return torch.device("cpu")
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    return torch.device("cuda", torch.cuda.current_device())


def describe_device(device: torch.device) -> dict[str, object]:
    """Return the device's name and memory, the driver, and how fast pinned memory is copied to it."""
    if device.type == "cpu":
        return {"name": "cpu"}
    properties = torch.cuda.get_device_properties(device)
    source = torch.ones(256 << 20, dtype=torch.uint8).pin_memory()
    target = torch.empty_like(source, device=device)
    make_mark = marks_of(device)
    begin, end = make_mark(), make_mark()
    target.copy_(source, non_blocking=True)
    begin.record()
    for _ in range(4):
        target.copy_(source, non_blocking=True)
    end.record()
    end.synchronize()
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30),
        "cuda": torch.version.cuda,
        "driver": _driver(),
        "copy_gb_per_s": 4 * source.nbytes / 1e6 / begin.elapsed_time(end),
    }


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip().partition("\n")[0] or "unknown"


class Run:
    """One run of the suite: its options, its time, and the document that it fills."""

    def __init__(self, console: Console, options: argparse.Namespace) -> None:
        self._console, self._options = console, options
        self._deadline = Deadline(options.limit)
        self._device = _prepared_device(options.device)
        #: Seconds of the longest part but for its windows; at first, a guess.
        self._set_up_s = _SET_UP_S[options.scale]
        self._is_guess = True
        self.document: dict[str, Any] = {
            "machine": describe_machine(),
            "machine_line": machine_line(),
            "device": describe_device(self._device),
            "is_check": self._device.type == "cpu" or options.scale != "full",
            "rounds": options.rounds,
            "seconds": options.seconds,
            "threads": options.threads,
            "workers": options.workers,
            "parts": [],
            "failed": [],
            "left_out": self._deadline.left_out,
        }

    def measure(self) -> None:
        """Measure everything that there is time for, and write what is known after each part."""
        for side in self._options.sides:
            for layout, model in self._options.pairs:
                self._part(layout, model, side)
                write_report(self.document, self._options.out, picture=False)
            write_report(self.document, self._options.out, picture=True)

    def _part(self, layout: str, model: str, side: str) -> None:
        options, name = self._options, f"{layout} with {model}, {side}"
        if layout == "images" and find_spec("PIL") is None:
            self._deadline.left_out.append(f"{name}: Pillow is not installed")
            return
        windows_s = (2 * options.rounds + 1 if side == OURS else 2) * (options.seconds + options.warm)
        if not self._deadline.allows(name, windows_s + self._set_up_s):
            return
        begin = time.perf_counter()
        try:
            part = measure(layout, model, side, self._device, options)
        except Exception as error:  # noqa: BLE001 - other parts are still to be measured; the page says what failed
            traceback.print_exc()
            self.document["failed"].append(f"{name}: {type(error).__name__}: {error}")
            self._console.print(f"{name}: failed", highlight=False)
        else:
            self.document["parts"].append(asdict(part))
            seconds = time.perf_counter() - begin
            self._set_up_s = max(0.0 if self._is_guess else self._set_up_s, seconds - windows_s)
            self._is_guess = False
            self._console.print(f"{name}: {seconds:.0f} s", highlight=False)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return 1 if a part failed. Without a GPU, say so and return 0."""
    options = _parse(arguments)
    console = make_console()
    if options.device == "cuda" and not torch.cuda.is_available():
        console.print("No GPU: torch.cuda.is_available() is False, so nothing was measured.", highlight=False)
        return 0
    for folder in (options.data, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    options.data = options.data.resolve()  # worker processes open stores by their paths
    run = Run(console, options)
    run.measure()
    console.print((options.out / "gpu.md").read_text(), highlight=False, soft_wrap=True, markup=False)
    return 1 if run.document["failed"] else 0


def _pairs(text: str) -> list[tuple[str, str]]:
    if text in ("five", "all"):
        return list(PAIRS[:_FIRST] if text == "five" else PAIRS)
    known: Mapping[str, tuple[str, str]] = {":".join(pair): pair for pair in PAIRS}
    return [known[name] for name in names(known)(text)]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=(__doc__ or "").partition("\n")[0])
    pairs = ", ".join(":".join(pair) for pair in PAIRS)
    parser.add_argument("--pairs", type=_pairs, default="five", help=f'"five", "all", or some of {pairs}')
    parser.add_argument("--sides", type=names(SIDES), default=list(SIDES), help=", ".join(SIDES))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", choices=SCALES, default="full", help="tiny: small data and networks, as a check")
    parser.add_argument("--limit", type=rate, default=None, help="seconds, after which no part is begun; none: all")
    parser.add_argument("--seconds", type=rate, default=3.0, help="of steps a round, for each side")
    parser.add_argument("--warm", type=not_negative, default=1.0, help="seconds of steps before these")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=None, help="of zarrfeed; none: one for each core")
    parser.add_argument("--workers", type=whole, default=8, help="of the DataLoader of plain zarr-python")
    parser.add_argument("--data", type=Path, default=_ROOT / "benchmarks" / "stores")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
