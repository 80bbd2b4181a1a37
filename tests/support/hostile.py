"""Open arrays whose metadata lie, each in a process with little memory, and say how that ended: run by test_hostile.py.

    python -m tests.support.hostile DIRECTORY NAME...

Each name is an array below the directory. For each a process is forked, with 3 GiB of addresses more than it has and
`SECONDS` to live, that reads the array in every way. It prints one line of JSON a name: what came of each way, and the
memory that the process took, in MiB.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import zarrfeed
from zarrfeed import ZarrDataset, ZarrfeedError, ZarrIterableDataset
from zarrfeed.tools.verify import Progress

SECONDS = 30


def stream(path: str) -> None:
    with ZarrIterableDataset(path, batch_size=4, shuffle=True, num_threads=2) as dataset:
        for _, _ in zip(range(3), dataset, strict=False):
            pass


def at_random(path: str) -> None:
    dataset = ZarrDataset(path, num_threads=2)
    dataset[0]
    dataset[[0, 0]]


def verify(path: str) -> None:
    def stop(now: Progress) -> None:
        if now.done > 10_000:
            raise KeyboardInterrupt

    try:
        report = zarrfeed.verify(path, on_progress=stop)
    except KeyboardInterrupt:
        return
    if report.arrays[0].problem:
        raise ZarrfeedError(report.arrays[0].problem)


WAYS: dict[str, Callable[[str], None]] = {"stream": stream, "at_random": at_random, "verify": verify}


def try_all(path: str) -> dict[str, object]:
    result: dict[str, object] = {}
    for way, read in WAYS.items():
        try:
            read(path)
            result[way] = "read"
        except ZarrfeedError as error:
            result[way] = f"{type(error).__name__}: {error}"[:300]
        except BaseException as error:  # noqa: BLE001 (which is what the test is about)
            result[way] = f"not ours: {error!r}"[:300]
    return result


def in_child(path: str) -> dict[str, object]:
    """Read an array in a forked process, in which nothing of zarrfeed has run yet."""
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        has = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
        limit = int(has.split()[1]) * 1024 + (3 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = try_all(path)
        result["mib"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
        os.write(here, json.dumps(result).encode())
        os._exit(0)
    os.close(here)
    with os.fdopen(there) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else dict.fromkeys(WAYS, f"not ours: the process ended with {status}") | {"mib": 0}


if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(json.dumps({"name": name} | in_child(f"{sys.argv[1]}/{name}")), flush=True)
