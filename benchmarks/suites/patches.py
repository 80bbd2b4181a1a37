"""How fast patches come out of arrays, beside bare C++ loops over the same chunks, and beside plain slicing.

python -m benchmarks.patches --checksum-only
python -m benchmarks.patches --scale full
python -m benchmarks.patches --scale full --cases "chunks 128, lz4" "hours, 256 x 256" --turns
python -m benchmarks.patches --scale full --peers all --peer-python peers/bin/python

Before anything is timed, each side delivers patches, which are compared with what zarr-python reads; our tiles have to
have each voxel once. At the small scale, a voxel is its own index. The sides take turns. One array is on the
disk at a time.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
import zarr
from rich.console import Console
from torch.utils.data import DataLoader, Dataset

import zarrfeed
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, not_negative, positive
from benchmarks.harness.process import reset_peak, status_mib
from benchmarks.loaders.ceiling import usable_cores
from benchmarks.report.tables import make_console, print_rows
from benchmarks.suites.patch_cases import CASES, PLANNED, Case, Voxels, create, foreground, write
from benchmarks.suites.patch_peers import PEERS, Peer, Turn, box, clip, parse_peers
from benchmarks.suites.patch_turns import TURNED, turned_back, turned_dims
from benchmarks.suites.patches_probe import decoded_by_slicing
from zarrfeed import _core
from zarrfeed.engine.stats import Stats
from zarrfeed.spec.fields.field import StoredField

OURS = "zarrfeed"

#: Patches, and the number of each.
Batch = tuple[torch.Tensor, torch.Tensor]
#: Numbers of patches -> where each begins, shape (patches, axes).
Locate = Callable[[Any], Voxels]


@dataclass(frozen=True)
class First:
    """A first epoch beside what `explain()` says of it.

    Attributes
    ----------
    decodes, explained, formula
        How often a chunk was decoded; how often by the count of `explain()`; how often by the formula for all epochs,
        which is one for tiles (None: there is none).
    peak_mib, most_mib
        What the epoch added to the resident memory of the process at its peak, and what `explain()` allows.
    """

    decodes: float
    explained: float
    formula: float | None
    peak_mib: float
    most_mib: float


def open_case(
    path: Path, case: Case, sampling: Literal["tiles", "grid"] = "tiles", turned: Sequence[str] = ()
) -> zarrfeed.Data:
    """Return the patches of a case; a sample axis with patches of 1 has images for samples."""
    named = zip(("z", "y", "x"), case.patch, strict=True)
    size: dict[str | int, int] = {dim: length for dim, length in named if not (dim == "z" and length == 1)}
    flip, rotate = turned_dims(size, turned)
    if case.drawn is None:
        return zarrfeed.open(path).patch(size, sampling=sampling, flip=flip, rotate=rotate)
    weights = foreground(case) if case.is_weighted else None
    how: dict[str, Any] = {"sampling": "random", "n": case.drawn, "border": "drop", "weights": weights}
    return zarrfeed.open(path).patch(size, flip=flip, rotate=rotate, **how)


class Ours:
    """Reads epochs of tiles (on a fixed grid, if said), or of random patches."""

    def __init__(
        self,
        path: Path,
        case: Case,
        budget: str,
        lanes: int | None = None,
        *,
        sampling: Literal["tiles", "grid"] = "tiles",
        turned: Sequence[str] = (),
    ) -> None:
        self.data, self._case = open_case(path, case, sampling, turned), case
        self._dataset = zarrfeed.ZarrIterableDataset(
            self.data,
            batch_size=case.batch,
            shuffle=True,
            memory_budget=budget,
            mixing=None if lanes is None else {"lanes": lanes},
            return_index=True,
        )

    def __enter__(self) -> Ours:
        self._dataset.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._dataset.__exit__(*error)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._dataset)

    def locate(self, index: Any) -> Voxels:
        """Return where patches begin."""
        starts: Voxels = self.data.locate(index)[1]
        return starts

    def starts(self) -> Voxels:
        """Return where the patches of the first epoch begin, in its order."""
        return self.locate(self._dataset.sample_order(0))

    def explain(self) -> zarrfeed.Explanation:
        """Return what the next epoch is expected to read."""
        return self._dataset.explain()

    def decodes(self, before: Stats | None = None) -> float:
        """Return how often the chunks of the array were decoded, since some figures."""
        stats = self._dataset.stats() - (before or Stats())
        return (stats.chunks_read + stats.chunks_missing) / self.explain().fields[0].chunks

    def explained(self) -> tuple[float, float | None]:
        """Return how often the next epoch should decode a chunk: by the count of `explain()`, and by the formula."""
        explanation = self.explain()
        assert explanation.patches is not None
        assert explanation.patches.choice is not None
        of_field = explanation.fields[0]
        formula = None if self._case.drawn is not None else explanation.patches.choice.amplification
        return of_field.chunk_reads / of_field.chunks, formula

    def turn(self, case: str, side: str, repeat: int, least_s: float) -> Turn:
        """Read as many whole epochs as take some seconds."""
        epochs, count, begin, before = 0, 0, time.perf_counter(), self._dataset.stats()
        seconds, cpu_s = 0.0, time.process_time()
        while epochs == 0 or seconds < least_s:
            for batch, _ in self:
                count += len(batch)
            seconds, epochs = time.perf_counter() - begin, epochs + 1
        rates = epochs / seconds, count / seconds
        shares = (self._dataset.stats() - before).thread_shares
        decodes = self.decodes(before)
        voxels = self.explain().fields[0].chunks * math.prod(self._case.chunks)
        waste = decodes * voxels / (count * math.prod(self._case.patch))
        cpu_s = (time.process_time() - cpu_s) / epochs
        return Turn(case, side, repeat, *rates, waste, decodes / epochs, shares, cpu_s)


def read_first(path: Path, case: Case, budget: str, **options: Any) -> First:
    """Read the first epoch of a new dataset."""
    reset_peak()
    before = status_mib("VmRSS")
    with Ours(path, case, budget, **options) as ours:
        explained, most_mib = ours.explained(), ours.explain().memory_bytes / (1 << 20)
        for _ in ours:
            pass
        return First(ours.decodes(), *explained, status_mib("VmHWM") - before, most_mib)


class Ceiling:
    """Decodes each chunk once in bare C++ loops; with `scatter`, copies each slice along the first axis to a slot, too.

    The loop knows no boxes: its runs are as long as a row of a chunk, those of patches are as long as a row of a patch.
    """

    def __init__(self, path: Path, patches: int, *, scatter: bool) -> None:
        (stored,) = zarrfeed.open(path).resolved.fields
        assert isinstance(stored, StoredField)
        self._field, self._patches, self._scatter = stored.to_core(), patches, scatter

    def turn(self, case: str, side: str, repeat: int, least_s: float) -> Turn:
        threads = usable_cores()
        passes, seconds = 0, 0.0
        while passes == 0 or seconds < least_s:
            took, *_ = _core.measure_ceiling(
                self._field, num_threads=threads, window_chunks=threads, scatter=self._scatter
            )
            passes, seconds = passes + 1, seconds + took
        return Turn(case, side, repeat, passes / seconds, passes / seconds * self._patches)


class PatchCeiling:
    """Decodes each chunk once in a bare C++ loop, and cuts the patches of the first epoch out of it."""

    def __init__(self, data: zarrfeed.Data, case: Case, starts: Voxels, num_threads: int | None = None) -> None:
        (stored,) = data.resolved.fields
        assert isinstance(stored, StoredField)
        self._field, self._case = stored.to_core(), case
        self._num_threads = num_threads or usable_cores()
        self._starts = np.insert(starts, 0, 0, axis=1)  # of the only volume

    def wrong(self, values: Voxels, some: Voxels) -> str:
        """Return what is wrong with some patches; "" if nothing is."""
        cut = np.empty((len(some), *self._case.patch), values.dtype)
        self._run(np.insert(some, 0, 0, axis=1), cut.reshape(-1).view("u1"))
        pairs = zip(cut, some, strict=True)
        differ = sum(not np.array_equal(patch, box(values, start, self._case.patch)) for patch, start in pairs)
        return f"{differ} patches of {len(some)} are others" if differ else ""

    def turn(self, case: str, side: str, repeat: int, least_s: float) -> Turn:
        passes, seconds = 0, 0.0
        while passes == 0 or seconds < least_s:
            passes, seconds = passes + 1, seconds + self.measure()
        return Turn(case, side, repeat, passes / seconds, passes / seconds * len(self._starts))

    def measure(self) -> float:
        """Return the seconds of one pass."""
        return self._run(self._starts)

    def _run(self, starts: Voxels, out: Voxels | None = None) -> float:
        took, _, _ = _core.measure_patch_ceiling(
            self._field, starts, num_threads=self._num_threads, window_patches=self._case.batch, out=out
        )
        return took


class Boxes(Dataset[Batch]):
    """Boxes of an array, each sliced by zarr-python and padded with 0."""

    def __init__(self, path: Path, starts: Voxels, size: Sequence[int]) -> None:
        self._array: Any = zarr.open_array(path, mode="r")
        self._starts, self._size = starts, size

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> Batch:
        patch = np.zeros(self._size, self._array.dtype)
        inside, at = clip(self._starts[number], self._size, self._array.shape)
        patch[at] = self._array[inside]
        return torch.from_numpy(patch), torch.tensor(number)


class Plain:
    """Slices random patches of the first epoch in a DataLoader, in no order that would let them share chunks."""

    def __init__(self, path: Path, case: Case, starts: Voxels, patches: int, workers: int) -> None:
        self._patches, self._starts = patches, starts
        more: dict[str, Any] = {"multiprocessing_context": "forkserver", "persistent_workers": True} if workers else {}
        self._loader = DataLoader(Boxes(path, starts, case.patch), case.batch, num_workers=workers, **more)
        self._waste = decoded_by_slicing(starts, case.patch, case.shape, case.chunks)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def locate(self, index: Any) -> Voxels:
        """Return where patches begin."""
        starts: Voxels = self._starts[np.asarray(index)]
        return starts

    def turn(self, case: str, side: str, repeat: int, least_s: float) -> Turn:
        begin, count = time.perf_counter(), 0
        while True:
            for batch, _ in self._loader:
                count += len(batch)
            if (seconds := time.perf_counter() - begin) >= least_s:
                break
        rate = count / seconds
        return Turn(case, side, repeat, rate / self._patches, rate, self._waste)


Side = Ours | Ceiling | PatchCeiling | Plain | Peer


def wrong_patches(
    batches: Iterable[Batch], locate: Locate, values: Voxels, size: Sequence[int], *, is_whole: bool = True
) -> str:
    """Return what is wrong with patches; "" if they are boxes of the array, and a whole epoch has each voxel once."""
    times = np.zeros(values.shape, np.uint8)
    wrong = patches = 0
    for batch, index in batches:
        for patch, start in zip(batch.numpy(), locate(index.numpy()), strict=True):
            inside, _ = clip(start, size, values.shape)
            times[inside] += 1
            patches += 1
            wrong += not np.array_equal(patch.reshape(size), box(values, start, size))
    if wrong:
        return f"{wrong} patches of {patches} are others"
    if is_whole and (times != 1).any():
        return f"{np.count_nonzero(times == 0)} voxels are missing, {np.count_nonzero(times > 1)} came several times"
    return ""


def our_sides(case: Case, *, with_grid: bool, with_turns: bool = False) -> dict[str, dict[str, Any]]:
    """Return the options of our sides: the lanes that zarrfeed chooses, and those of the goal.

    Other libraries lay tiles on a grid from the first voxel: `with_grid`, a side does so, too.
    """
    sides: dict[str, dict[str, Any]] = {OURS: {}, f"{OURS}, {case.lanes} lanes": {"lanes": case.lanes}}
    if with_grid and case.drawn is None:
        sides[f"{OURS}, grid"] = {"sampling": "grid"}
    return sides | ({side: {"turned": turned} for side, turned in TURNED.items()} if with_turns else {})


def planned_rows(case: Case, folder: Path, budget: str) -> tuple[float | None, float, int]:
    """Return how often an epoch would decode a chunk of an array that is not written: by the formula, and counted.

    The third figure is the memory, in MiB.
    """
    create(folder, case)
    with Ours(folder, case, budget, case.lanes) as ours:
        counted, formula = ours.explained()
        return formula, counted, ours.explain().memory_bytes >> 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    turns: list[Turn] = []
    first_epochs: dict[str, dict[str, First]] = {}
    plans = {}
    if not options.checksum_only:
        with tempfile.TemporaryDirectory() as directory:
            for number, (name, case) in enumerate(PLANNED.items()):
                folder = Path(directory) / str(number)
                plans[name] = planned_rows(_scaled(case, options.scale), folder, options.memory_budget)
    for name in options.cases:
        case = _scaled(CASES[name], options.scale)
        with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
            path = Path(directory) / "array.zarr"
            write(path, case)
            ratio = case.decoded_bytes / sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            sides, wrong = _check(path, case, options, stack, console)
            text = wrong or ("boxes of the array, each voxel once" if case.drawn is None else "boxes of the array")
            console.print(f"{name}: {text}; compressed {ratio:.1f} : 1", highlight=False)
            if wrong:
                return 1
            if options.checksum_only:
                continue
            first_epochs[name] = {
                side: read_first(path, case, options.memory_budget, **how)
                for side, how in our_sides(case, with_grid=bool(options.peers), with_turns=options.turns).items()
            }
            for repeat in range(options.repeats):
                turns += [one.turn(name, side, repeat, options.least_s) for side, one in sides.items()]
            of_case = [turn for turn in turns if turn.case == name]
            print_rows(console, _COLUMNS, table(of_case), words=1)
            print_rows(console, _COUNTS, counts(of_case, first_epochs[name]), words=1)
            for side in first_epochs[name]:
                console.print(f"{side}: {shares([turn for turn in of_case if turn.side == side])}", highlight=False)
    if options.checksum_only:
        return 0
    for name, (formula, counted, mib) in plans.items():
        goal = f"goal: {PLANNED[name].most_decodes} with {PLANNED[name].lanes} lanes"
        decoded = f"a chunk would be decoded {counted:.3f} times, by the formula {formula:.3f} times"
        text = f"{decoded}, in {mib} MiB; {goal}"
        console.print(f"{name}, not written: {text}", highlight=False, soft_wrap=True)
    write_document(
        options.out / "patches.json",
        scale=options.scale,
        turns=[asdict(turn) for turn in turns],
        first_epochs={name: {side: asdict(one) for side, one in sides.items()} for name, sides in first_epochs.items()},
        planned=plans,
    )
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _check(
    path: Path, case: Case, options: argparse.Namespace, stack: ExitStack, console: Console
) -> tuple[dict[str, Side], str]:
    """Return the sides, and what is wrong with what they deliver."""
    values: Voxels = np.asarray(zarr.open_array(path, mode="r")[...])
    budget = options.memory_budget
    hows = our_sides(case, with_grid=bool(options.peers), with_turns=options.turns)
    ours = {side: stack.enter_context(Ours(path, case, budget, **how)) for side, how in hows.items()}
    for side, one in ours.items():
        as_they_lie = turned_back(one, one.data.resolved.patching, case.patch)
        if wrong := wrong_patches(as_they_lie, one.locate, values, case.patch, is_whole=case.drawn is None):
            return {}, f"{side}: {wrong}"
    starts = ours[OURS].starts()
    patches = len(starts)
    some = starts[np.random.default_rng(0).permutation(patches)[: options.most_patches]]
    plain = Plain(path, case, some, patches, options.workers)
    if wrong := wrong_patches(plain, plain.locate, values, case.patch, is_whole=False):
        return {}, f"plain: {wrong}"
    peers: dict[str, Peer] = {}
    if options.peers and case.is_weighted:
        console.print("Other libraries are left out: they are set up to draw uniformly", highlight=False)
    for side in [] if case.is_weighted else options.peers:
        folder = path.parent / side
        folder.mkdir()
        peer = stack.enter_context(Peer(side, options.peer_python, path, folder, case, some, patches, options.workers))
        if peer.missing:
            console.print(f"{side} is left out: {peer.missing}", highlight=False, soft_wrap=True)
        elif wrong := peer.wrong(values):
            return {}, f"{side}: {wrong}"
        else:
            peers[side] = peer
    loop = PatchCeiling(ours[OURS].data, case, starts)
    if wrong := loop.wrong(values, some):
        return {}, f"ceiling-patches: {wrong}"
    ceilings: dict[str, Side] = {
        "ceiling-patches": loop,
        "ceiling-scatter": Ceiling(path, patches, scatter=True),
        "ceiling-decode": Ceiling(path, patches, scatter=False),
    }
    return {**ours, **ceilings, "plain": plain, **peers}, ""


_COLUMNS = (
    "",
    "patches/s",
    "zarrfeed to this",
    "of all rounds",
    "by CPU time",
    "times its decodes",
    "decoded over delivered",
)
_COUNTS = (*("", "decodes a chunk", "of epoch 0", "explain()", "off", "formula", "memory, MiB", "of at most"),)


def table(turns: Sequence[Turn]) -> Iterator[list[str]]:
    """Return a line for each side of a case: medians, and the passes of zarrfeed over its own within a round."""
    of_side = by_side(turns)
    first = of_side[OURS]
    for side, each in of_side.items():
        ratios = [a.passes_per_s / b.passes_per_s for a, b in zip(first, each, strict=True)]
        rate = f"{median(turn.patches_per_s for turn in each):.0f}"
        line = [side, rate, f"{median(ratios):.2f}", f"{min(ratios):.2f}-{max(ratios):.2f}"]
        cpu = [b.cpu_s / a.cpu_s for a, b in zip(first, each, strict=True) if a.cpu_s and b.cpu_s]
        line.append(f"{median(cpu):.2f}" if cpu else "")
        is_loop = side.startswith("ceiling")  # which decodes each chunk once
        line.append(f"{median(ratios) * median(turn.decodes or 1 for turn in first):.2f}" if is_loop else "")
        known = [turn.waste for turn in each if turn.waste is not None]
        yield [*line, f"{median(known):.2f}" if known else ""]


def counts(turns: Sequence[Turn], first_epochs: dict[str, First]) -> Iterator[list[str]]:
    """Return a line for each of our sides: what it decoded, and what `explain()` had said."""
    of_side = by_side(turns)
    for side, epoch in first_epochs.items():
        decodes = [turn.decodes or 0 for turn in of_side[side]]
        off = max(abs(one / epoch.explained - 1) for one in decodes)
        figures = [f"{value:.3f}" for value in (median(decodes), epoch.decodes, epoch.explained)]
        formula = "" if epoch.formula is None else f"{epoch.formula:.3f}"
        yield [side, *figures, f"{off:.1%}", formula, f"{epoch.peak_mib:.0f}", f"{epoch.most_mib:.0f}"]


def by_side(turns: Iterable[Turn]) -> dict[str, list[Turn]]:
    """Return the turns of each side."""
    of_side: dict[str, list[Turn]] = {}
    for turn in turns:
        of_side.setdefault(turn.side, []).append(turn)
    return of_side


def shares(turns: Sequence[Turn]) -> str:
    """Return what the decode threads did, in shares of their time."""
    each = {name: median(turn.threads[name] for turn in turns) for name in turns[0].threads}
    return ", ".join(f"{name} {share:.0%}" for name, share in each.items() if share >= 0.01)


def _scaled(case: Case, scale: str) -> Case:
    return case if scale == "full" else case.small()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.patches", description=(__doc__ or "").partition("\n")[0])
    # Names have commas in them, so each case is an argument of its own.
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--least-s", type=not_negative, default=1.0, help="that a turn takes, in whole epochs")
    parser.add_argument(
        "--most-patches", type=positive, default=256, help="that plain slicing and peers read in a turn"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes of plain slicing and of peers")
    parser.add_argument("--memory-budget", default="1 GiB")
    parser.add_argument("--peers", type=parse_peers, default=[], help=f"all, or some of {', '.join(PEERS)}")
    parser.add_argument("--peer-python", default=sys.executable, help="Python that has the peers, zarr and torch")
    parser.add_argument("--turns", action="store_true", help="read patches that are flipped and rotated, too")
    add_suite_options(parser, ("full", "small"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
