"""Reads epochs of one layout below `lock_meter.c`, and prints what its locks took as JSON. `locks.py` runs it.

python -m benchmarks.suites.locks_probe NAME SCALE DATA EPOCHS
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.data.conversion import open_converted
from benchmarks.data.layouts import LAYOUTS
from benchmarks.data.stores import prepare_store, warm_page_cache
from zarrfeed import ZarrIterableDataset
from zarrfeed import _core as core

#: How many mutexes are told, of those that are locked for longest.
_TOLD = 8


#: Members of `struct row` of lock_meter.c, all of 64 bits.
_MEMBERS = ("mutex", "locks", "contended", "held_ns", "long_holds", "long_ns")


class Mutex(ctypes.Structure):
    """A mutex, as lock_meter.c tells it."""

    _fields_ = [(name, ctypes.c_uint64) for name in _MEMBERS]


def code_of(library: str) -> tuple[int, int]:
    """Return where the code of a loaded library lies."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [line[0].split("-") for line in lines if line[-1] == library and "x" in line[1]]
    return int(ranges[0][0], 16), int(ranges[-1][1], 16)


def main(arguments: list[str]) -> int:
    """Measure; return the exit status."""
    name, scale, data, epochs = arguments
    meter = ctypes.CDLL(None)
    meter.lock_meter_start.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    meter.lock_meter_stop.restype = meter.lock_meter_cost.restype = ctypes.c_uint64
    cost_ns = int(meter.lock_meter_cost())
    store = prepare_store(LAYOUTS[name].scaled(scale), Path(data), scale=scale)
    warm_page_cache(store)
    layout = store.layout
    samples = open_converted(layout, store.samples_path, store.targets_path)
    with ZarrIterableDataset(samples, batch_size=layout.batch_size, shuffle=True, seed=0) as dataset:

        def read() -> None:
            for _ in range(int(epochs)):
                count = sum(len(batch[0] if isinstance(batch, tuple) else batch) for batch in dataset)
                assert count == layout.num_samples, (count, layout.num_samples)

        read()
        before = time.process_time()
        read()
        cpu_s = time.process_time() - before
        meter.lock_meter_start(*code_of(str(core.__file__)))
        read()
        wall_ns = int(meter.lock_meter_stop())
    found: list[dict[str, Any]] = []
    row = Mutex()
    while meter.lock_meter_read(len(found), ctypes.byref(row)):
        found.append({name: getattr(row, name) for name in _MEMBERS[1:]})
    found.sort(key=lambda mutex: -mutex["held_ns"])
    chunks = layout.num_chunks * (2 if layout.targets else 1) * int(epochs)
    document = {"chunks": chunks, "cpu_s": cpu_s, "wall_ns": wall_ns, "cost_ns": cost_ns, "mutexes": found[:_TOLD]}
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
