"""Read random configurations for a long time, check every batch, and see that nothing is left behind."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numcodecs
import torch

from tests.faults.soak import levels
from tests.faults.soak.acts import ACTS
from tests.faults.soak.draw import draw_case
from tests.faults.soak.reader import Tally

_TIMEOUT_S = 240.0
_MOST_WRONG = 10
_LEVEL_EVERY_S = 5.0
#: After so many, all that Python, zarr and torch start once has been started.
_FIRST_CONFIGURATIONS = 40
_MIB = 1 << 20


class Watchdog:
    """Ends the process, with all stacks, if a configuration takes too long."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._what = "the start"
        self._deadline = time.monotonic() + timeout_s
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin(self, what: str) -> None:
        """Begin something that has to end in time."""
        self._what, self._deadline = what, time.monotonic() + self._timeout_s
        # the thread below cannot say anything while somebody holds the GIL
        faulthandler.dump_traceback_later(self._timeout_s + 15, exit=True)

    def _watch(self) -> None:
        while time.monotonic() < self._deadline:
            time.sleep(0.5)
        print(f"HANG: {self._what} did not end within {self._timeout_s:g} s", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)


class Soak:
    """A run: what was done, and what was wrong with it."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.seed, self.directory = seed, directory
        self.tally = Tally()
        self.wrong: list[str] = []
        self.levels: list[levels.Level] = []
        self.start = levels.measure(0.0, 0)
        self.begin = time.monotonic()
        self.configurations = 0

    @property
    def seconds(self) -> float:
        """Return the time since the start."""
        return time.monotonic() - self.begin

    def configure(self, number: int) -> None:
        """Draw a configuration, and do what it says."""
        r = Random(f"{self.seed}/{number}")
        folder = self.directory / "case"
        folder.mkdir()
        about: Any = "not drawn"
        act = None
        try:
            case = draw_case(r, folder)
            about = case.about
            for act in r.choices(list(ACTS), list(ACTS.values()), k=r.randint(1, 3)):
                act(r, case, self.tally)
        except Exception:  # noqa: BLE001 (whatever it is, it is not as specified)
            doing = "" if act is None else f", {act.__name__}"
            self.add_wrong(f"configuration {number} of seed {self.seed}{doing}: {about}\n{traceback.format_exc()}")
        finally:
            shutil.rmtree(folder)
        self.configurations += 1

    def add_wrong(self, what: str) -> None:
        """Say what is wrong, and remember it."""
        self.wrong.append(what)
        print(f"WRONG: {what}", file=sys.stderr, flush=True)

    def level(self) -> None:
        """Measure what is held, and compare it with what was held after the first configurations."""
        now = levels.measure(self.seconds, self.configurations)
        self.levels.append(now)
        first = self.levels[0]
        if now.descriptors > first.descriptors:
            self.add_wrong(f"{now.descriptors} file descriptors, {first.descriptors} in the beginning")
        if now.shared > first.shared:
            self.add_wrong(f"{now.shared} mappings of shared memory, {first.shared} in the beginning")
        if len(now.threads) > len(first.threads):
            self.add_wrong(f"threads that are not Python's are left: {levels.thread_names(now.threads)}")
        if names := levels.unexpected_threads():
            self.add_wrong(f"threads of Python are left: {names}")
        if left := levels.left_in_shared_memory({os.getpid(), *self.tally.children}):
            self.add_wrong(f"left in shared memory: {left}")
        if left := [entry.name for entry in self.directory.iterdir()]:
            self.add_wrong(f"left among temporary files: {left}")

    def finish(self) -> None:
        """Judge the memory."""
        rise, allowed = levels.rise_bytes(self.levels)
        if rise > allowed:
            self.add_wrong(f"memory rises by {rise / _MIB:.1f} MiB, allowed are {allowed / _MIB:.1f}")

    def line(self) -> str:
        """Return how far it is."""
        counts = self.tally.counts
        now = self.levels[-1] if self.levels else self.start
        return (
            f"{self.seconds / 60:6.1f} min  {self.configurations:,} configurations, {counts['epochs']:,} epochs, "
            f"{counts['batches']:,} batches, {counts['samples']:,} samples, "
            f"{self.tally.errors.total():,} errors as specified, {len(self.wrong)} wrong; "
            f"RSS {now.rss_bytes / _MIB:.0f} MiB, {now.descriptors} descriptors, {len(now.threads)} foreign threads"
        )

    def report(self) -> dict[str, Any]:
        """Return the figures of the whole run."""
        first, last = self.levels[0], self.levels[-1]
        rise, allowed = levels.rise_bytes(self.levels)
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "configurations": self.configurations,
            "counts": dict(sorted(self.tally.counts.items())),
            "errors as specified": dict(sorted(self.tally.errors.items())),
            "wrong": self.wrong,
            "rss_mib": {
                "start": round(self.start.rss_bytes / _MIB, 1),
                "after the first configurations": round(first.rss_bytes / _MIB, 1),
                "end": round(last.rss_bytes / _MIB, 1),
                "peak": round(levels.peak_rss_bytes() / _MIB, 1),
                "rise of the fitted line": round(rise / _MIB, 2),
                "rise allowed": round(allowed / _MIB, 2),
                "all": [[round(one.seconds, 1), round(one.rss_bytes / _MIB, 2)] for one in self.levels],
            },
            "descriptors": {"first": first.descriptors, "end": last.descriptors},
            "shared_mappings": {"first": first.shared, "end": last.shared},
            "foreign_threads": {"start": len(self.start.threads), "end": len(last.threads)},
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--count", type=int, help="how many configurations, in place of a time")
    parser.add_argument("--seed", type=int, help="what configurations are drawn from; printed if it is not given")
    parser.add_argument("--first", type=int, default=0, help="number of the first configuration")
    parser.add_argument("--timeout", type=float, default=_TIMEOUT_S, help="seconds for one until it is a hang")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    print(f"seed {seed}, first configuration {options.first}", flush=True)
    warnings.simplefilter("ignore")
    faulthandler.enable()
    levels.settle_allocator()
    torch.set_num_threads(1)  # pools of others would start late, and stay
    numcodecs.blosc.use_threads = False
    watchdog = Watchdog(options.timeout)
    watchdog.begin("the start")
    with tempfile.TemporaryDirectory(prefix="zarrfeed-soak-") as directory:
        tempfile.tempdir = directory
        soak = Soak(seed, Path(directory))
        end = time.monotonic() + 60 * options.minutes
        next_line = next_level = 0.0
        while len(soak.wrong) < _MOST_WRONG:
            done = soak.configurations
            if done >= options.count if options.count is not None else time.monotonic() > end:
                break
            number = options.first + done
            watchdog.begin(f"configuration {number} of seed {seed}")
            soak.configure(number)
            if soak.configurations >= _FIRST_CONFIGURATIONS and soak.seconds >= next_level:
                soak.level()
                next_level = soak.seconds + _LEVEL_EVERY_S
            if soak.seconds >= next_line:
                print(soak.line(), flush=True)
                next_line = soak.seconds + 60
        watchdog.begin("the end")
        gc.collect()
        soak.level()
        soak.finish()
    print(soak.line())
    report = soak.report()
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    del report["rss_mib"]["all"]
    report["wrong"] = len(soak.wrong)
    print(json.dumps(report, indent=2), flush=True)
    faulthandler.cancel_dump_traceback_later()
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
