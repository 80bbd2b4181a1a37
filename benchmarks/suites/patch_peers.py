"""What every side of benchmarks/suites/patches.py measures, and the sides that are other libraries.

Each of them runs in a process of its own (patches_probe.py), which may be another Python. The process goes on from turn
to turn, so that imports and conversions are paid for once, and not timed.
"""

from __future__ import annotations

import json
import subprocess
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from benchmarks.harness.options import names
from benchmarks.suites.patch_cases import Case, Voxels
from benchmarks.suites.patches_probe import SIDES

_PROBE = Path(__file__).with_name("patches_probe.py")
_TIMEOUT_S = 300
PEERS = tuple(SIDES)


@dataclass(frozen=True)
class Turn:
    """One turn of one side.

    Attributes
    ----------
    passes_per_s
        How often it could read all patches in a second. The number of patches depends on where the tiles of an epoch
        lie, so rates are compared by passes.
    patches_per_s
        The same in patches.
    waste
        Voxels that were decoded, over voxels of the patches; None: not known.
    decodes
        How often a chunk was decoded in an epoch, on average.
    threads
        Shares of the time of the decode threads.
    cpu_s
        CPU time of a pass, of our sides. A machine that is not quiet changes it less than the rate.
    """

    case: str
    side: str
    repeat: int
    passes_per_s: float
    patches_per_s: float
    waste: float | None = None
    decodes: float | None = None
    threads: dict[str, float] = field(default_factory=dict)
    cpu_s: float | None = None


class Peer:
    """Has another library read patches: those at given starts, or as many as its own sampler chooses.

    `missing` says why it cannot: it is not installed, or has no such patches. "" if it can.
    """

    def __init__(
        self, side: str, python: str, path: Path, folder: Path, case: Case, starts: Voxels, patches: int, workers: int
    ) -> None:
        self._side, self._case, self._patches = side, case, patches
        np.save(folder / "starts.npy", starts)
        task = {
            "path": str(path),
            "folder": str(folder),
            "size": case.patch,
            "batch": case.batch,
            "starts": str(folder / "starts.npy"),
            "sampling": "tiles" if case.drawn is None else "random",
            "epoch": patches,
            "workers": workers,
        }
        self._process = subprocess.Popen(
            [python, str(_PROBE), side, json.dumps(task)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self._checked = self._answer()
        except BaseException:
            self._end()
            raise
        self.missing: str = self._checked.get("missing", "")

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._end()

    def wrong(self, values: Voxels) -> str:
        """Return what is wrong with the patches of a pass; "" if nothing is."""
        starts, size = np.array(self._checked["starts"]), self._case.patch
        if self._checked["shapes"] != [list(size)]:
            return f"patches of shape {self._checked['shapes']}"
        (dtype,) = self._checked["dtypes"]
        expected = (zlib.crc32(box(values, start, size).astype(dtype).tobytes()) for start in starts)
        differ = sum(one != other for one, other in zip(self._checked["sums"], expected, strict=True))
        return f"{differ} patches of {len(starts)} are others" if differ else ""

    def turn(self, case: str, side: str, repeat: int, least_s: float) -> Turn:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{least_s}\n")
        self._process.stdin.flush()
        answer = self._answer()
        rate = answer["patches"] / answer["seconds"]
        return Turn(
            case, side, repeat, rate / (self._checked["epoch"] or self._patches), rate, self._checked["decoded"]
        )

    def _answer(self) -> dict[str, Any]:
        timer = threading.Timer(_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise RuntimeError(f"{self._side}: its process ended with status {self._process.wait(_TIMEOUT_S)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # it ends when nothing more is asked for
        try:
            self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def clip(start: Voxels, size: Sequence[int], shape: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return what of a box lies in an array, counted in the array and in the box.

    >>> clip(np.array([-1, 3]), (4, 4), (10, 5))
    ((slice(0, 3, None), slice(3, 5, None)), (slice(1, 4, None), slice(0, 2, None)))
    """
    inside, at = [], []
    for begin, length, extent in zip(start.tolist(), size, shape, strict=True):
        low, high = max(begin, 0), min(begin + length, extent)
        inside.append(slice(low, high))
        at.append(slice(low - begin, high - begin))
    return tuple(inside), tuple(at)


def box(values: Voxels, start: Voxels, size: Sequence[int]) -> Voxels:
    """Return a box of an array, padded with 0."""
    inside, at = clip(start, size, values.shape)
    patch = np.zeros(size, values.dtype)
    patch[at] = values[inside]
    return patch


def parse_peers(text: str) -> list[str]:
    """Parse names of other libraries with commas between them, or "all"."""
    return list(PEERS) if text == "all" else names(PEERS)(text)
