"""What decoding on the GPU would copy and could save: a study (docs/decisions/0047), and no part of the package.

python -m benchmarks.nvcomp
python -m benchmarks.nvcomp --layouts A,B-zstd --scale full
python -m benchmarks.nvcomp --arrays train.zarr/x,train.zarr/y

Everywhere: the streams of stored chunks, their number and sizes, the bytes that would be copied to the GPU in place of
the decoded ones, and the CPU seconds that decoding takes beside those of reading alone. Where there are a GPU and
nvCOMP: the time to copy stored chunks, to decompress their streams, and to undo the byte shuffle and scatter rows in
one kernel, beside the time to copy decoded rows. What comes out is compared with the host's values.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import zarr

from benchmarks.data.layouts import LAYOUTS, QUICK, SCALES
from benchmarks.data.stores import prepare_store, warm_page_cache
from benchmarks.data.streams import Chunk, UnknownLayoutError, decode_on_host, stored_chunks, unfiltered
from benchmarks.harness.deadline import Deadline
from benchmarks.harness.machine import describe_machine, machine_line
from benchmarks.harness.nvcomp import ALGORITHMS, NoNvcompError, Nvcomp
from benchmarks.harness.options import names, positive, rate
from benchmarks.loaders.ceiling import Ceiling
from benchmarks.report.tables import make_console, markdown_rows, number
from benchmarks.suites.gpu_steps import Mark, marks_of
from zarrfeed.base.atomic_file import write_whole

_ROOT = Path(__file__).parents[2]
_DEFAULT = ("A", "B-blosc", "B-zstd", "B-gzip", "D", "G", "I-int16")

#: For each stream, a decoder on the GPU is told two pointers and two sizes.
_TABLE_BYTES = 32
#: Behind a zlib header of 2 bytes and before a checksum of 4 lies what nvCOMP calls Deflate.
_ZLIB_HEAD, _ZLIB_TAIL = 2, 4
#: Chunks whose values are compared with the host's.
_COMPARED = 4
#: About how long an array takes, in seconds.
_PART_S = 15.0


@dataclass(frozen=True)
class Streams:
    """The streams of an array's chunks.

    Attributes
    ----------
    name, codec, filtering
        Of the array; what undoes its streams, and what is undone behind that.
    chunks, streams
        How many were looked at.
    decoded_bytes, stored_bytes
        Of these chunks.
    raw_bytes
        Decoded bytes of streams that are stored as they are, so that they are copied and not decoded.
    smallest, middle, largest
        Decoded bytes of a stream.
    decoder
        nvCOMP's functions for it; "" if it has none.
    """

    name: str
    codec: str
    filtering: str
    chunks: int
    streams: int
    decoded_bytes: int
    stored_bytes: int
    raw_bytes: int
    smallest: int
    middle: int
    largest: int
    decoder: str

    @property
    def copied_share(self) -> float:
        """Bytes that would be copied to the GPU, tables included, over those of decoded chunks."""
        return (self.stored_bytes + _TABLE_BYTES * self.streams) / self.decoded_bytes


def survey(name: str, chunks: Sequence[Chunk]) -> Streams:
    """Return what the chunks of an array consist of."""
    decoded = np.concatenate([chunk.decoded_sizes for chunk in chunks])
    codec = chunks[0].codec
    smallest, middle, largest = (int(size) for size in np.quantile(decoded, (0, 0.5, 1), method="nearest"))
    return Streams(
        name,
        codec,
        chunks[0].filtering,
        len(chunks),
        len(decoded),
        int(decoded.sum()),
        sum(len(chunk.stored) for chunk in chunks),
        sum(int(chunk.decoded_sizes[chunk.is_raw].sum()) for chunk in chunks),
        smallest,
        middle,
        largest,
        f"nvcompBatched{ALGORITHMS[codec]}" if codec in ALGORITHMS else "",
    )


def cpu_s_per_gb(work: Callable[[], object], decoded_bytes: int, repeats: int) -> float:
    """Return the CPU seconds of this process for each decoded GB: the least of some repeats."""
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return min(found) / decoded_bytes * 1e9


def reading(path: Path) -> Callable[[], None]:
    """Return what reads all files below a folder into the same memory, and looks at nothing in them."""
    files = [file for file in path.rglob("*") if file.is_file()]
    memory = [bytearray(max((file.stat().st_size for file in files), default=0))]
    names_of_files = [os.fsencode(file) for file in files]

    def read() -> None:
        for name in names_of_files:
            opened = os.open(name, os.O_RDONLY)
            os.readv(opened, memory)
            os.close(opened)

    return read


class OnDevice:
    """Chunks in memory of the host and of a device, and the steps from stored bytes to scattered rows.

    Stored chunks are copied as they are where nvCOMP takes streams at any place; else each stream is put at a place
    that it takes. Streams that are stored as they are are copied on the device to where they belong.
    """

    def __init__(self, chunks: Sequence[Chunk], row_bytes: int, library: Nvcomp, device: torch.device) -> None:
        self._chunks, self._library, self._device = chunks, library, device
        self.codec = chunks[0].codec
        sources, sizes, places = _places(chunks, library.alignment(self.codec))
        self._stored = _on_host(_staged(chunks, places, sizes, sources), device)
        self._copy = torch.empty_like(self._stored, device=device)
        raw = np.concatenate([chunk.is_raw for chunk in chunks])
        decoded = np.concatenate([chunk.decoded_sizes for chunk in chunks])
        targets = np.cumsum(decoded) - decoded
        self.decoded_bytes = int(decoded.sum())
        self.decompressed = torch.zeros(self.decoded_bytes, dtype=torch.uint8, device=device)
        self._raw = list(zip(places[raw].tolist(), targets[raw].tolist(), decoded[raw].tolist(), strict=True))
        skipped = _ZLIB_HEAD if self.codec == "zlib" else 0
        less = _ZLIB_HEAD + _ZLIB_TAIL if self.codec == "zlib" else 0
        self._tables = {
            "sources": self._table(places[~raw] + skipped + self._copy.data_ptr()),
            "source_sizes": self._table(sizes[~raw] - less),
            "targets": self._table(targets[~raw] + self.decompressed.data_ptr()),
            "target_sizes": self._table(decoded[~raw]),
        }
        count = len(self._tables["sources"])
        self._actual = torch.zeros(count, dtype=torch.int64, device=device)
        self._statuses = torch.full((count,), -1, dtype=torch.int32, device=device)
        most = int(decoded[~raw].max(initial=0))
        temp_bytes = library.temp_bytes(self.codec, count, most, int(decoded[~raw].sum())) if count else 0
        self._temp = torch.empty(max(1, temp_bytes), dtype=torch.uint8, device=device)
        self.temp_bytes = temp_bytes
        self.rows = torch.zeros(self.decoded_bytes // row_bytes, row_bytes, dtype=torch.uint8, device=device)
        order = np.random.default_rng(0).permutation(len(self.rows))
        self.slots = torch.from_numpy(order).to(device)

    def _table(self, values: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self._device)

    def copy(self) -> None:
        """Begin to copy what is stored to the device."""
        self._copy.copy_(self._stored, non_blocking=True)

    def decompress(self) -> None:
        """Begin to decompress the streams, and to copy those that are stored as they are."""
        for place, target, length in self._raw:
            self.decompressed[target : target + length].copy_(self._copy[place : place + length])
        if not len(self._statuses):
            return
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        self._library.decompress(
            self.codec,
            **self._tables,
            actual_sizes=self._actual,
            statuses=self._statuses,
            temp=self._temp,
            stream=stream,
        )

    def scatter(self) -> None:
        """Begin to undo the byte shuffle and to copy rows to their slots."""
        first = self._chunks[0]
        typesize = first.typesize if first.filtering == "shuffle" else 1
        unshuffle_rows(self.decompressed, first.block_bytes, typesize, self.slots, self.rows)

    def check(self) -> None:
        """Compare the first chunks with the host's.

        Raises
        ------
        AssertionError
            If a stream failed or decoded to something else.
        """
        failed = self._statuses.nonzero().flatten().tolist()
        if failed:
            raise AssertionError(f"{len(failed)} of {len(self._statuses)} streams failed, the first is {failed[0]}")
        if not torch.equal(self._actual, self._tables["target_sizes"]):
            raise AssertionError("streams decoded to other lengths than the chunks say")
        begin = 0
        for chunk in self._chunks[:_COMPARED]:
            end = begin + chunk.decoded_bytes
            expected = decode_on_host(chunk)
            if unfiltered(chunk, self.decompressed[begin:end].cpu().numpy().tobytes()) != expected:
                raise AssertionError("a chunk decoded to other values than on the host")
            if chunk.filtering != "bitshuffle":
                slots = self.slots[begin // self.rows.shape[1] : end // self.rows.shape[1]]
                if self.rows[slots].cpu().numpy().tobytes() != expected:
                    raise AssertionError("rows of a chunk are not in their slots, or hold other values")
            begin = end


def _places(chunks: Sequence[Chunk], alignment: int) -> tuple[Any, Any, Any]:
    """Return where each stream lies in all chunks, how long it is, and where it is put before it is copied."""
    begins = np.cumsum([0, *(len(chunk.stored) for chunk in chunks[:-1])])
    sources = np.concatenate([chunk.offsets + begin for chunk, begin in zip(chunks, begins, strict=True)])
    sizes = np.concatenate([chunk.sizes for chunk in chunks])
    if alignment == 1:
        return sources, sizes, sources
    # a zlib stream is taken from behind its header on
    ahead = _ZLIB_HEAD if chunks[0].codec == "zlib" else 0
    rooms = -(-(sizes + alignment) // alignment) * alignment
    return sources, sizes, np.cumsum(rooms) - rooms + (alignment - ahead % alignment) % alignment


def _staged(chunks: Sequence[Chunk], places: Any, sizes: Any, sources: Any) -> Any:
    stored = np.frombuffer(b"".join(chunk.stored for chunk in chunks), np.uint8)
    if places is sources:
        return stored
    out = np.zeros(int(places[-1] + sizes[-1]), np.uint8)
    for source, size, place in zip(sources.tolist(), sizes.tolist(), places.tolist(), strict=True):
        out[place : place + size] = stored[source : source + size]
    return out


def _on_host(values: Any, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(values.copy())
    return tensor.pin_memory() if device.type == "cuda" else tensor


def unshuffle_rows(
    shuffled: torch.Tensor, block_bytes: int, typesize: int, slots: torch.Tensor, rows: torch.Tensor
) -> None:
    """Undo the byte shuffle of blocks, and copy each row to its slot: one kernel, where rows and blocks fit together.

    Parameters
    ----------
    shuffled
        Decompressed blocks, one behind the other; uint8.
    block_bytes, typesize
        Of each block, and of an item. 1: nothing is shuffled.
    slots
        For each row in the order of `shuffled`, its place in `rows`.
    rows
        Shape (rows, bytes); uint8.
    """
    count, row_bytes = rows.shape
    piece = min(block_bytes, row_bytes)
    fits = max(block_bytes, row_bytes) % piece == 0 and len(shuffled) % block_bytes == 0 and piece % typesize == 0
    if not fits:  # two kernels: the blocks first, of which the last one may be shorter
        plain = torch.cat([_unshuffled(block, typesize) for block in torch.split(shuffled, block_bytes)])
        rows.index_copy_(0, slots, plain.view(count, row_bytes))
        return
    pieces = row_bytes // piece
    # (blocks, typesize, pieces of a block, items of a piece) -> (blocks, pieces of a block, items, typesize)
    source = shuffled.view(-1, typesize, block_bytes // piece, piece // typesize).permute(0, 2, 3, 1)
    places = slots[:, None] * pieces + torch.arange(pieces, device=slots.device)
    target = rows.view(count * pieces, piece // typesize, typesize)
    target.index_put_((places.view(source.shape[:2]),), source)


def _unshuffled(block: torch.Tensor, typesize: int) -> torch.Tensor:
    whole = len(block) // typesize * typesize
    return torch.cat([block[:whole].view(typesize, -1).T.reshape(-1), block[whole:]])


def time_on_device(
    chunks: Sequence[Chunk], row_bytes: int, library: Nvcomp, device: torch.device, repeats: int
) -> dict[str, Any]:
    """Return the milliseconds of each step, and decoded GB/s of all and of copying decoded rows instead.

    Raises
    ------
    AssertionError
        If something else comes out than on the host.
    """
    on_device = OnDevice(chunks, row_bytes, library, device)
    decoded = _on_host(np.zeros(on_device.decoded_bytes, np.uint8), device)
    steps: dict[str, Callable[[], object]] = {"copy": on_device.copy, "decompress": on_device.decompress}
    if chunks[0].filtering != "bitshuffle":  # whose bits no kernel of torch puts in their places
        steps["scatter"] = on_device.scatter
    make_mark = marks_of(device)
    for step in steps.values():
        step()
    make_and_wait(make_mark)
    on_device.check()
    target = torch.empty_like(decoded, device=device)
    steps["copy decoded"] = lambda: target.copy_(decoded, non_blocking=True)
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            begin, end = make_mark(), make_mark()
            begin.record()
            step()
            end.record()
            end.synchronize()
            found[name].append(begin.elapsed_time(end))
    milliseconds = {name: median(values) for name, values in found.items()}
    alone = milliseconds["copy decoded"]
    together = sum(milliseconds.values()) - alone
    return {
        "chunks": len(chunks),
        "streams": sum(len(chunk.offsets) for chunk in chunks),
        "temp_bytes": on_device.temp_bytes,
        "ms": milliseconds,
        "gb_per_s": on_device.decoded_bytes / 1e6 / together,
        "copy_decoded_gb_per_s": on_device.decoded_bytes / 1e6 / alone,
    }


def make_and_wait(make_mark: Callable[[], Mark]) -> None:
    """Wait for all work that was given to the device."""
    mark = make_mark()
    mark.record()
    mark.synchronize()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return 1 if an array failed. Without a GPU or nvCOMP, a sentence stands in place of their figures."""
    options = _parse(arguments)
    console = make_console()
    deadline = Deadline(options.limit)
    for folder in (options.data, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    library, why_not = None, ""
    if torch.cuda.is_available():
        try:
            library = Nvcomp.find()
        except NoNvcompError as error:
            why_not = str(error)
    else:
        why_not = "there is no GPU: torch.cuda.is_available() is False"
    document: dict[str, Any] = {
        "machine": describe_machine(),
        "machine_line": machine_line(),
        "device": torch.cuda.get_device_name() if library is not None else "",
        "nvcomp": library.version() if library is not None else "",
        "why_not": why_not,
        "arrays": [],
        "failed": [],
        "left_out": deadline.left_out,
    }
    wanted = options.arrays or options.layouts
    for one in wanted:
        if deadline.allows(str(one), _PART_S if options.scale == "full" else 0.0):
            try:
                document["arrays"].append(_measure(one, options, library))
            except UnknownLayoutError as error:
                deadline.left_out.append(str(error))
            except (AssertionError, RuntimeError) as error:  # others are still to be measured
                document["failed"].append(f"{one}: {type(error).__name__}: {error}")
        write_whole(options.out / "nvcomp.json", json.dumps(document, indent=1).encode())
        write_whole(options.out / "nvcomp.md", page(document).encode())
    console.print(page(document), highlight=False, soft_wrap=True, markup=False)
    return 1 if document["failed"] else 0


def _measure(one: Any, options: argparse.Namespace, library: Nvcomp | None) -> dict[str, Any]:
    """Return what is known of an array, which is a path or the name of a layout."""
    found: dict[str, Any] = {}
    if isinstance(one, Path):
        path, name = one, one.name
    else:
        store = prepare_store(LAYOUTS[one].scaled(options.scale), options.data, scale=options.scale)
        warm_page_cache(store)
        path, name = store.samples_path, one
        decoded = store.layout.num_samples * store.layout.sample_bytes
        loop = Ceiling(store, scatter=True, num_threads=1)
        found["decode_cpu_s_per_gb"] = cpu_s_per_gb(loop.measure, decoded, options.repeats)
        found["read_cpu_s_per_gb"] = cpu_s_per_gb(reading(store.path), decoded, options.repeats)
    chunks = list(islice(stored_chunks(path), options.chunks))
    if not chunks:
        raise UnknownLayoutError(f"{path} has no chunks")
    streams = survey(name, chunks)
    found |= {"streams": asdict(streams), "copied_share": streams.copied_share, "gpu": None}
    if library is not None and streams.decoder:
        row_bytes = _row_bytes(path)
        whole = [chunk for chunk in chunks if chunk.decoded_bytes % row_bytes == 0]
        found["gpu"] = time_on_device(whole, row_bytes, library, torch.device("cuda"), options.repeats)
    return found


def _row_bytes(path: Path) -> int:
    """Return the bytes of a sample, or of the part of it that a chunk has."""
    array: Any = zarr.open_array(path, mode="r")
    row_bytes: int = math.prod(array.chunks[1:]) * array.dtype.itemsize
    return row_bytes


_COLUMNS = (
    *("array", "codec", "filter", "chunks", "streams a chunk", "bytes a stream", "stored as they are"),
    *("copied / decoded", "CPU s/GB, decoding", "CPU s/GB, reading", "nvCOMP"),
)
_GPU_COLUMNS = (
    *("array", "chunks", "streams", "copy, ms", "decompress, ms", "scatter, ms", "GB/s", "copying decoded, GB/s"),
    "besides, MiB",
)


def page(document: Any) -> str:
    """Return the page in Markdown."""
    rows = [_row(found) for found in document["arrays"]]
    lines = ["# Decoding on the GPU: a study", "", document["machine_line"] + ".", ""]
    lines += [markdown_rows(_COLUMNS, rows), *_LEGEND, "", "## On the GPU", ""]
    if document["why_not"]:
        lines += [f"Nothing was measured: {document['why_not']}."]
    else:
        on_gpu = [_gpu_row(found) for found in document["arrays"] if found["gpu"] is not None]
        lines += [f"{document['device']}, nvCOMP {document['nvcomp']}.", "", markdown_rows(_GPU_COLUMNS, on_gpu)]
        lines += _GPU_LEGEND
    for title, key in (("Failed", "failed"), ("Left out", "left_out")):
        if document[key]:
            lines += ["", f"## {title}", "", *(f"- {one}" for one in document[key])]
    return "\n".join(lines).rstrip() + "\n"


_LEGEND = (
    "- Bytes a stream: decoded ones, smallest, middle and largest. Stored as they are: the share of decoded bytes whose"
    " streams are raw.",
    "- Copied / decoded: stored bytes and a table of pointers and sizes, over the bytes that are copied today.",
    "- CPU s/GB, for each decoded GB on one thread: the bare loop that reads, decodes and scatters; and opening and "
    "reading the files alone.",
)
_GPU_LEGEND = (
    "- GB/s: decoded bytes over the three steps, one behind the other; beside them, copying decoded rows from pinned "
    "memory, without the decoding that comes before it on the host.",
    "- Besides: memory of the device that nvCOMP asks for.",
    "- Scatter: the byte shuffle is undone where rows are copied to their slots. Bit shuffle is not undone here.",
)


def _row(found: Any) -> list[str]:
    streams = Streams(**found["streams"])
    sizes = (streams.smallest, streams.middle, streams.largest)
    return [
        streams.name,
        streams.codec,
        streams.filtering,
        str(streams.chunks),
        number(streams.streams / streams.chunks),
        ", ".join(str(size) for size in dict.fromkeys(sizes)),
        f"{100 * streams.raw_bytes / streams.decoded_bytes:.0f} %",
        f"{streams.copied_share:.3f}",
        number(found.get("decode_cpu_s_per_gb")),
        number(found.get("read_cpu_s_per_gb")),
        streams.decoder or f"none: it has no {streams.codec}",
    ]


def _gpu_row(found: Any) -> list[str]:
    gpu = found["gpu"]
    steps = ("copy", "decompress", "scatter")
    return [
        found["streams"]["name"],
        str(gpu["chunks"]),
        str(gpu["streams"]),
        *(number(gpu["ms"].get(step)) for step in steps),
        number(gpu["gb_per_s"]),
        number(gpu["copy_decoded_gb_per_s"]),
        number(gpu["temp_bytes"] / 2**20),
    ]


def _paths(text: str) -> list[Path]:
    return [Path(part) for part in text.split(",")]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.nvcomp", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layouts", type=names(LAYOUTS), default=list(_DEFAULT))
    parser.add_argument("--arrays", type=_paths, default=None, help="paths of arrays of Zarr format 3, in their place")
    parser.add_argument("--scale", choices=(*SCALES, QUICK), default=QUICK)
    parser.add_argument("--chunks", type=positive, default=512, help="of each array, at most")
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--limit", type=rate, default=None, help="seconds, after which no array is begun; none: all")
    parser.add_argument("--data", type=Path, default=_ROOT / "benchmarks" / "stores")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
