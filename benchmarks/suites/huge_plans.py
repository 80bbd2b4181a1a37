"""Plans of many blocks: what the first batch, a state and a resumed run take, each in a fresh process.

    python -m benchmarks.huge_plans                          # 10^6 chunks, seconds
    python -m benchmarks.huge_plans --chunks 1e6,1e7,1e8,1e9 --out build/huge   # what docs/performance.md states

Arrays have metadata alone, so each chunk is the fill value and nothing is decoded: what is measured is the plan. The
kinds of blocks are "whole" (an array), "slice" and "step" (of its samples), "part" (of a split along the axis), and
"stores" (100 of them, each with a short last chunk). The base is the process with torch and zarrfeed imported.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import zarr

import zarrfeed
from benchmarks.harness.process import reset_peak, status_mib
from zarrfeed import Data
from zarrfeed.base.atomic_file import write_whole

KINDS = ("whole", "slice", "step", "part", "stores")
_ROWS, _STORES, _BATCHES = 10, 100, 50
_TIMEOUT_S = 600.0


def describe(kind: str, chunks: int, folder: Path) -> Data:
    """Write the metadata of arrays with so many chunks of 10 samples, and describe what is read of them."""
    count = _STORES if kind == "stores" else 1
    length = chunks // count * _ROWS - (3 if count > 1 else 0)
    paths = [folder / f"{number}.zarr" for number in range(count)]
    for path in paths:
        zarr.create_array(path, shape=(length, 8, 8), chunks=(_ROWS, 8, 8), dtype="u1")
    if kind == "stores":
        return zarrfeed.concat([zarrfeed.open(path) for path in paths])
    data = zarrfeed.open(paths[0])
    if kind == "slice":
        return data.select(slice(length // 50 + 3, length - 33))
    if kind == "step":
        return data.select(slice(7, length - 33, 3))
    return data.split([0.9, 0.1], by="contiguous")[0] if kind == "part" else data


def measure(kind: str, chunks: int) -> dict[str, Any]:
    """Return what this process takes to read some batches, to save a state, and to resume it."""
    make = zarrfeed.ZarrIterableDataset  # imports torch
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 1, "num_threads": 2}
    with tempfile.TemporaryDirectory() as directory:
        data = describe(kind, chunks, Path(directory))
        reset_peak()
        base, times = status_mib("VmRSS"), [time.perf_counter()]
        dataset = make(data, **options)
        times.append(time.perf_counter())
        passed = iter(dataset)
        next(passed)
        times.append(time.perf_counter())
        first_mib = status_mib("VmHWM") - base
        for _ in range(_BATCHES):
            next(passed)
        times.append(time.perf_counter())
        state = dataset.state_dict()
        times.append(time.perf_counter())
        expected = next(passed)
        again = make(data, **options)
        times.append(time.perf_counter())
        again.load_state_dict(json.loads(json.dumps(state)))
        resumed = next(iter(again))
        times.append(time.perf_counter())
        if not bool((resumed == expected).all()):
            raise RuntimeError("a resumed run reads another batch")
        spans = [later - earlier for earlier, later in pairwise(times)]
        return {
            "kind": kind,
            "chunks": chunks,
            "construct_s": spans[0],
            "first_s": spans[1],
            "state_s": spans[3],
            "resumed_s": spans[5],
            "first_mib": first_mib,
            "peak_mib": status_mib("VmHWM") - base,
            "lanes": state["lanes"],
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each kind and number of chunks in a fresh process; print a table, and write JSON with `--out`."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--chunks", default="1e6", help="numbers of chunks, such as 1e6,1e9")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    cases = [(kind, int(float(n))) for kind in options.kinds.split(",") for n in options.chunks.split(",")]
    if options.one:
        print(json.dumps(measure(*cases[0])))
        return 0
    print("kind      chunks  construct s  first batch s  state s  resumed s  first MiB  peak MiB  lanes")
    made = []
    for kind, chunks in cases:
        command = [sys.executable, "-m", "benchmarks.huge_plans", "--one", "--kinds", kind, "--chunks", str(chunks)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{kind} of {chunks} chunks failed:\n{done.stderr}")
        one = json.loads(done.stdout.splitlines()[-1])
        made.append(one)
        print(
            f"{kind:7s} {chunks:8.0e} {one['construct_s']:12.3f} {one['first_s']:14.3f} {one['state_s']:8.3f} "
            f"{one['resumed_s']:10.3f} {one['first_mib']:10.0f} {one['peak_mib']:9.0f} {one['lanes']:6d}",
            flush=True,
        )
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_whole(options.out / "huge_plans.json", (json.dumps(made, indent=1) + "\n").encode())
    return 0
