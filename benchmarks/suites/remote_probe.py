"""One process of `remote.py`: it verifies sides, or measures one of them, and prints the result.

A process that measures begins with fresh memory and has the threads and connections of one side alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.data.layouts import SCALES
from benchmarks.data.long_store import long_path, repeated
from benchmarks.data.stores import Store, store_path, tree_bytes
from benchmarks.harness.checksum import ChecksumError
from benchmarks.harness.measure import expected_hashes
from benchmarks.harness.nginx import count_requests
from benchmarks.harness.options import names
from benchmarks.harness.process import Heartbeat, reset_peak, status_mib
from benchmarks.harness.steps import slowdown_beside
from benchmarks.suites.remote_sides import REMOTE_LAYOUTS, SIDES, Reading, Source, remote_layout, verify_side

#: Later epochs of a shuffle than those that are timed.
_HEARTBEAT_EPOCH, _STEPS_EPOCH = 100_000, 200_000


def verify(sources: dict[str, Source], sides: Sequence[str]) -> bool:
    """Print for each layout and side whether it delivers what the store holds; return whether all do."""
    right = True
    for layout, source in sources.items():
        expected = expected_hashes(source.store)
        for side in sides:
            try:
                what = verify_side(side, source, expected)
            except ChecksumError as error:
                right = False
                what = f"WRONG: {error}"
            print(f"{layout}, {side}: {what}", flush=True)
    return right


def measure(source: Source, side: str, nginx_url: str, seconds: float) -> dict[str, object]:
    """Read with one side: an epoch that is not timed, epochs that are, and others beside a heartbeat and steps."""
    reset_peak()
    before_mib = status_mib("VmRSS")
    reading = Reading(side, source)
    first = reading.run(0, 0.0)
    requests = count_requests(nginx_url)
    waits: list[float] = []
    timing = reading.run(1, seconds, waits)
    requests = count_requests(nginx_url) - requests - 1
    with Heartbeat() as heartbeat:
        reading.run(_HEARTBEAT_EPOCH, seconds / 2)
    steps = slowdown_beside(lambda: reading.run(_STEPS_EPOCH, seconds / 2))
    peak_mib = status_mib("VmHWM")
    stored_bytes = timing.epochs * source.object_bytes
    assert timing.cpu_s is not None
    return {
        "gb_per_s": timing.gb_per_s if timing.decoded_bytes else None,
        "stored_gb_per_s": stored_bytes / timing.wall_s / 1e9,
        "cpu_s_per_stored_gb": timing.cpu_s / stored_bytes * 1e9,
        "requests_per_epoch": requests / timing.epochs,
        "objects": len(source.objects),
        "stored_bytes": source.object_bytes,
        "epochs": timing.epochs,
        "wall_s": timing.wall_s,
        "first_epoch_s": first.wall_s,
        "peak_mib": peak_mib,
        "grown_mib": peak_mib - before_mib,
        **heartbeat.figures(),
        **steps,
        **_wait_figures(waits),
        "settings": reading.settings,
    }


def rate(source: Source, side: str, seconds: float) -> dict[str, object]:
    """Read with one side: an epoch, which begins with no connection, and then epochs for so many seconds."""
    reading = Reading(side, source)
    first = reading.run(0, 0.0)
    later = reading.run(1, seconds)
    return {
        "first_gb_per_s": source.object_bytes / first.wall_s / 1e9,
        "stored_gb_per_s": later.epochs * source.object_bytes / later.wall_s / 1e9,
        "reading_s": first.wall_s + later.wall_s,
    }


def _wait_figures(waits: Sequence[float]) -> dict[str, float | None]:
    """Return the median and the 99th percentile of the waits for a batch, and the longest one, in milliseconds."""
    names = ("wait_p50_ms", "wait_p99_ms", "wait_longest_ms")
    if not waits:
        return dict.fromkeys(names)
    return {name: 1e3 * float(value) for name, value in zip(names, np.quantile(waits, (0.5, 0.99, 1.0)), strict=True)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Verify (exit status 1 if a side is wrong), or measure and print figures, as JSON in the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.remote_probe")
    add = parser.add_argument
    add("task", choices=("verify", "measure", "rate"))
    add("--layouts", type=names(REMOTE_LAYOUTS), required=True)
    add("--sides", type=names(SIDES), required=True)
    add("--scale", choices=SCALES, required=True)
    add("--data", type=Path, required=True)
    add("--server", required=True, help="URL that the sides read from: nginx, or the proxy before it")
    add("--nginx", required=True, help="URL of nginx, which counts requests")
    add("--seconds", type=float, default=2.0)
    add("--times", type=int, default=1, help="copies of the store an epoch, which remote_series.py has written")
    options = parser.parse_args(arguments)
    sources = {}
    for name in options.layouts:
        layout = remote_layout(name, options.scale)
        path = long_path(store_path(layout, options.data, scale=options.scale), options.times)
        # `remote.py` has written it
        sources[name] = Source(Store(repeated(layout, options.times), path, tree_bytes(path)), options.server)
    status = 0
    if options.task == "verify":
        status = 0 if verify(sources, options.sides) else 1
    else:
        (layout_name,), (side,) = options.layouts, options.sides
        source = sources[layout_name]
        if options.task == "measure":
            figures = measure(source, side, options.nginx, options.seconds)
        else:
            figures = rate(source, side, options.seconds)
        print(json.dumps(figures), flush=True)
    sys.stdout.flush()
    os._exit(status)  # sides are left as they are: what their threads do at exit is no part of a measurement


if __name__ == "__main__":
    main()
