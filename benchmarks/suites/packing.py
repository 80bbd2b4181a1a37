"""What packing costs: a badly chunked store re-chunked into shards, beside tensorstore, zarrs, zarr-python and dask.

python -m benchmarks.packing
python -m benchmarks.packing --scale full --repeats 3

Sides take turns, each in a process of its own. All write chunks of 16 samples in shards of 1024, Blosc with lz4. What
each one wrote must be the source, as zarr-python reads it.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import zarr

from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import names, positive
from benchmarks.suites.packing_probe import SIDES

_ROOT = Path(__file__).parents[2]
#: Samples of 64 KiB.
SCALES = {"full": 32_768, "small": 2048}
_SAMPLE = (128, 128)
_TIMEOUT_S = 600
_LIBRARIES = {"tensorstore": "tensorstore", "zarrs": "zarrs", "dask": "dask"}
WRONG = 1


def write(path: Path, samples: int) -> None:
    """Write a store whose chunks are 64 samples long and cut samples in two."""
    array = zarr.create_array(
        path,
        shape=(samples, *_SAMPLE),
        chunks=(64, _SAMPLE[0], _SAMPLE[1] // 2),
        dtype="float32",
        compressors=zarr.codecs.BloscCodec(typesize=4, cname="lz4", clevel=5, shuffle="shuffle"),
    )
    rng = np.random.default_rng(0)
    some = np.cumsum(rng.normal(size=(256, *_SAMPLE)).astype("f4"), axis=2).round(1)
    for begin in range(0, samples, 256):
        array[begin : begin + 256] = some + np.float32(begin)


def is_same(source: Path, out: Path) -> bool:
    """Return whether zarr-python reads the same samples from both."""
    stored, made = zarr.open_array(source, mode="r"), zarr.open_array(out, mode="r")
    return stored.shape == made.shape and all(
        np.array_equal(np.asarray(stored[n : n + 1024]), np.asarray(made[n : n + 1024]))
        for n in range(0, stored.shape[0], 1024)
    )


def turn(side: str, source: Path, out: Path) -> float:
    """Return the seconds of one side."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.suites.packing_probe", side, str(source), str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, timeout=_TIMEOUT_S, check=False)
    if ended.returncode:
        raise SystemExit(f"{side}: {ended.stderr[-2000:]}")
    return float(ended.stdout.split()[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--sides", type=names(SIDES), default=list(SIDES), metavar="NAME,...")
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--data", type=Path, help="where the stores go (default: a temporary directory)")
    parser.add_argument("--out", type=Path, help="a folder for packing.json")
    asked = parser.parse_args(arguments)
    print(machine_line())
    sides = [side for side in asked.sides if importlib.util.find_spec(_LIBRARIES.get(side, "zarr"))]
    for side in asked.sides:
        if side not in sides:
            print(f"{side}: is not installed")
    samples = SCALES[asked.scale]
    gigabytes = samples * np.prod(_SAMPLE) * 4 / 1e9
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(dir=asked.data) as folder:
        source, out = Path(folder, "in.zarr"), Path(folder, "out.zarr")
        write(source, samples)
        for number in range(asked.repeats):
            for side in sides:
                seconds[side].append(turn(side, source, out))
                if number == 0 and not is_same(source, out):
                    print(f"{side}: WRONG, its store has other samples")
                    return WRONG
    best = {side: median(of_side) for side, of_side in seconds.items()}
    for side in sides:
        ratio = best[side] / best[sides[0]]
        print(f"{side:12} {best[side]:6.2f} s  {gigabytes / best[side]:5.2f} GB/s  {ratio:5.2f} times {sides[0]}")
    if asked.out is not None:
        write_document(asked.out / "packing.json", samples=samples, seconds=seconds)
    return 0
