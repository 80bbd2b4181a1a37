"""A study of decoding on the GPU (docs/decisions/0047): bytes that would be copied, CPU time that would be saved.

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
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import zarr

from benchmarks.data.layouts import LAYOUTS, QUICK, SCALES
from benchmarks.data.stores import prepare_store, warm_page_cache
from benchmarks.data.streams import UnknownLayoutError, stored_chunks, survey
from benchmarks.harness.deadline import Deadline
from benchmarks.harness.machine import describe_machine, machine_line
from benchmarks.harness.nvcomp import ALGORITHMS, NoNvcompError, Nvcomp
from benchmarks.harness.options import names, positive, rate
from benchmarks.loaders.ceiling import Ceiling
from benchmarks.report.nvcomp_page import page
from benchmarks.report.tables import make_console
from benchmarks.suites.nvcomp_device import time_on_device
from zarrfeed.base.atomic_file import write_whole

_ROOT = Path(__file__).parents[2]
_DEFAULT = ("A", "B-blosc", "B-zstd", "B-gzip", "D", "G", "I-int16")

#: About how long an array takes, in seconds.
_PART_S = 15.0


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
    if library is not None and streams.codec in ALGORITHMS:
        row_bytes = _row_bytes(path)
        whole = [chunk for chunk in chunks if chunk.decoded_bytes % row_bytes == 0]
        found["gpu"] = time_on_device(whole, row_bytes, library, torch.device("cuda"), options.repeats)
    return found


def _row_bytes(path: Path) -> int:
    """Return the bytes of a sample, or of the part of it that a chunk has."""
    array: Any = zarr.open_array(path, mode="r")
    row_bytes: int = math.prod(array.chunks[1:]) * array.dtype.itemsize
    return row_bytes


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
