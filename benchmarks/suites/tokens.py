"""The cost of batches of tokens: blocks and packed documents, beside nanoGPT's, MosaicML's and Grain's loaders.

python -m benchmarks.tokens --checksum-only
python -m benchmarks.tokens --scale full --repeats 5

All sides read one flat file of uint16, which consists of documents, and make shuffled batches of int64: blocks of
tokens with their next tokens, or whole documents that are packed. Before anything is timed, batches are checked:
targets are the next tokens, and each document comes once and whole. nanoGPT's `get_batch` draws random positions
instead. The sides take turns. MosaicML streaming and Grain are sides where they are installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

import zarrfeed
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, positive
from benchmarks.harness.turns import Turn
from benchmarks.report.tables import make_console, print_rows

WRONG = 1
#: The token that ends a document.
_END = 0
#: (x, y) of blocks; of packed documents, their tokens and segment ids.
Pair: TypeAlias = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Scale:
    """Tokens that are written, the mean length of a document, tokens of a sample, and samples of a batch."""

    tokens: int
    mean: int
    length: int
    batch_size: int


SCALES = {"full": Scale(2_000_000, 500, 1024, 64), "small": Scale(60_000, 40, 128, 8)}


@dataclass(frozen=True)
class Written:
    """The file of tokens, and the ends of its documents."""

    tokens: np.memmap[Any, np.dtype[np.uint16]]
    ends: npt.NDArray[np.int64]
    folder: Path
    scale: Scale

    @property
    def num_blocks(self) -> int:
        """Blocks whose next tokens are all there."""
        return (len(self.tokens) - 1) // self.scale.length


def write(folder: Path, scale: Scale) -> Written:
    """Write a file of documents of log-normal lengths, each of which ends with the token 0."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(scale.mean) - 0.5, 1, 2 * scale.tokens // scale.mean), 2, scale.length)
    ends = np.cumsum(lengths.astype(np.int64))
    ends = ends[ends <= scale.tokens]
    tokens = rng.integers(1, 50_000, ends[-1]).astype(np.uint16)
    tokens[ends - 1] = _END
    tokens.tofile(folder / "train.bin")
    return Written(np.memmap(folder / "train.bin", dtype="uint16", mode="r"), ends, folder, scale)


class NanoGPT:
    """Batches as nanoGPT's `get_batch` makes them: random positions, as many as an epoch of blocks has."""

    def __init__(self, written: Written) -> None:
        self._written = written

    def __iter__(self) -> Iterator[Pair]:
        data, length = self._written.tokens, self._written.scale.length
        for _ in range(self._written.num_blocks // self._written.scale.batch_size):
            positions = torch.randint(len(data) - length, (self._written.scale.batch_size,))
            x = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in positions])
            y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in positions])
            yield x, y


def block_sides(written: Written) -> dict[str, Iterable[Pair]]:
    """Return the sides that deliver blocks and their next tokens."""
    length, size = written.scale.length, written.scale.batch_size
    blocks = zarrfeed.open(written.tokens).cast("int64").window(range(length + 1), stride=length).next_targets()
    sides: dict[str, Iterable[Pair]] = {
        "zarrfeed, blocks": zarrfeed.ZarrIterableDataset(blocks, batch_size=size, shuffle=True),
        "nanoGPT's get_batch": NanoGPT(written),
    }
    with suppress(ImportError, RuntimeError):  # not installed, or beside a torchvision that does not fit torch
        streaming: Any = import_module("streaming")
        local = str(written.folder / "mds")
        with streaming.MDSWriter(out=local, columns={"tokens": f"ndarray:uint16:{length + 1}"}) as out:
            for number in range(written.num_blocks):
                out.write({"tokens": np.array(written.tokens[number * length : (number + 1) * length + 1])})
        dataset = streaming.StreamingDataset(local=local, shuffle=True, batch_size=size)

        def collated(samples: Sequence[dict[str, npt.NDArray[np.uint16]]]) -> Pair:
            rows = torch.from_numpy(np.stack([one["tokens"] for one in samples]).astype(np.int64))
            return rows[:, :-1], rows[:, 1:]

        sides["MosaicML streaming, blocks"] = DataLoader(dataset, batch_size=size, collate_fn=collated)
    return sides


class Packed:
    """Batches of packed documents of ours."""

    def __init__(self, written: Written) -> None:
        data = zarrfeed.open({"tokens": written.tokens}).cast("int64").segments(written.ends)
        packed = data.pack_sequences(written.scale.length)
        self._dataset = zarrfeed.ZarrIterableDataset(packed, batch_size=written.scale.batch_size, shuffle=True)

    def __iter__(self) -> Iterator[Pair]:
        for batch in self._dataset:
            yield batch["tokens"], batch["segment_ids"]


class Documents:
    """Documents by their numbers, as Grain asks for them."""

    def __init__(self, written: Written) -> None:
        self._tokens, self._ends = written.tokens, written.ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> dict[str, npt.NDArray[np.int64]]:
        begin = self._ends[index - 1] if index else 0
        return {"tokens": self._tokens[begin : self._ends[index]].astype(np.int64)}


class GrainPacked:
    """Batches of documents that Grain packs, in the main process."""

    def __init__(self, written: Written) -> None:
        self._written = written
        self._grain: Any = import_module("grain")
        self._pack: Any = import_module("grain.experimental").BestFitPackIterDataset

    def __iter__(self) -> Iterator[Pair]:
        scale = self._written.scale
        documents = self._grain.MapDataset.source(Documents(self._written)).shuffle(seed=0).to_iter_dataset()
        packed = self._pack(documents, length_struct={"tokens": scale.length}, num_packing_bins=scale.batch_size)
        for batch in packed.batch(scale.batch_size, drop_remainder=False):
            yield torch.from_numpy(batch["tokens"]), torch.from_numpy(batch["tokens_segment_ids"])


def packed_sides(written: Written) -> dict[str, Iterable[Pair]]:
    """Return the sides that deliver packed documents."""
    sides: dict[str, Iterable[Pair]] = {"zarrfeed, packed": Packed(written)}
    with suppress(ImportError):
        sides["Grain, packed best fit"] = GrainPacked(written)
    return sides


def wrong_documents(batches: Iterable[Pair], written: Written) -> str:
    """Return what is wrong with an epoch of packed documents; "" if each comes once and whole."""
    found = []
    for tokens, ids in batches:
        edges = torch.diff(ids, dim=1, prepend=torch.zeros(len(ids), 1, dtype=ids.dtype)) != 0
        for row, starts, numbers in zip(tokens.numpy(), edges.numpy(), ids.numpy(), strict=True):
            pieces = np.split(row, np.flatnonzero(starts)[1:])
            found += [one.tobytes() for one, first in zip(pieces, numbers[starts], strict=True) if first]
    wanted = [one.tobytes() for one in np.split(written.tokens.astype(np.int64), written.ends[:-1])]
    return "" if sorted(found) == sorted(wanted) else "documents are missing, cut or repeated"


def padding_of(batches: Iterable[Pair]) -> float:
    """Return the share of padding in an epoch of packed documents."""
    counts = [((ids == 0).sum().item(), ids.numel()) for _, ids in batches]
    return sum(one for one, _ in counts) / sum(of for _, of in counts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    with tempfile.TemporaryDirectory() as directory:
        written = write(Path(directory), SCALES[options.scale])
        blocks, packed = block_sides(written), packed_sides(written)
        padding = {}
        for side, batches in blocks.items():
            if not all(torch.equal(x[:, 1:], y[:, :-1]) for x, y in islice(batches, 4)):
                console.print(f"{side}: targets are not the next tokens", highlight=False)
                return WRONG
        for side, batches in packed.items():
            padding[side] = padding_of(batches)
            wrong = wrong_documents(batches, written)
            console.print(f"{side}: {wrong or 'each document once'}; {padding[side]:.1%} padding", highlight=False)
            if wrong:
                return WRONG
        if options.checksum_only:
            return 0
        rows = [
            Turn.measured(side, repeat, (x for x, _ in batches), 0.0)
            for repeat in range(options.repeats)
            for side, batches in {**blocks, **packed}.items()
        ]
        tokens = written.scale.length
        lines = []
        for side in {**blocks, **packed}:
            own = [row for row in rows if row.side == side]
            rate = median(row.samples_per_s for row in own) * tokens / 1e6
            cpu_ns = median(row.cpu_us_per_sample or 0.0 for row in own) * 1e3 / tokens
            lines.append([side, f"{rate:.1f}", f"{cpu_ns:.1f}"])
        write_document(options.out / "tokens.json", padding=padding, rows=[asdict(row) for row in rows])
        print_rows(console, ["", "million tokens/s", "CPU ns/token"], lines, words=1)
        console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.tokens", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=positive, default=3)
    add_suite_options(parser, SCALES)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
