"""Sources and stores of `pack` tests: each sample encodes its own number."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.packing.pack_report import PackProgress, PackReport
from zarrfeed.plan.order.random_bijection import RandomBijection

#: Options of a `pack` of 2000 samples in many units, for the processes of a cluster.
MANY_UNITS: dict[str, Any] = {"sample_chunk": 5, "shard": 600, "shuffle": 12, "verify": True}


def make_source(path: Path, count: int = 500) -> zarr.Group:
    """Write a group whose arrays have the sample's number in every item, with chunks that do not fit each other."""
    group = zarr.create_group(path, attributes={"title": "numbered"})
    numbers = np.arange(count)
    rows = (numbers[:, None] * 8 + np.arange(6)).astype("f4")
    rows[10:40] = 0  # whole chunks of the fill value
    group.create_array("x", data=rows, chunks=(23, 4), attributes={"units": "K"}, dimension_names=("time", "channel"))
    group.create_array("time", data=numbers.astype("M8[s]"), chunks=(100,), dimension_names=("time",))
    group.create_array("channel", data=np.arange(6) / 2, dimension_names=("channel",))
    text: Any = group.create_array("name", shape=(count,), chunks=(31,), dtype="string", dimension_names=("time",))
    text[:] = np.array([f"sample {n}" * (n % 3) for n in numbers], dtype=object)
    blobs: Any = group.create_array(
        "blob", shape=(count,), chunks=(17,), dtype="variable_length_bytes", dimension_names=("time",)
    )
    content = np.empty(count, object)
    content[:] = [n.to_bytes(4, "big") * (n % 7) for n in numbers.tolist()]
    blobs[:] = content
    return zarr.open_group(path, mode="r")


def check_packed(packed: zarr.Group, source: zarr.Group, numbers: npt.NDArray[np.int64]) -> None:
    """Compare a packed group with its source, as zarr-python reads both; `numbers` are those of its samples."""
    assert np.array_equal(_read(packed, "x"), _read(source, "x")[numbers])
    assert np.array_equal(_read(packed, "time"), _read(source, "time")[numbers])
    assert np.array_equal(_read(packed, "channel"), _read(source, "channel"))
    for name in ("name", "blob"):
        assert list(_read(packed, name)) == list(_read(source, name)[numbers])


def check_many_units(report: PackReport, out: Path, source: Path) -> None:
    """Check what `pack` made with the options `MANY_UNITS`."""
    assert report.proof is not None
    assert report.proof.ok
    read = zarr.open_group(source, mode="r")
    count = _read(read, "time").size
    numbers = RandomBijection(count, MANY_UNITS["shuffle"]).numbers(np.arange(count))
    check_packed(zarr.open_group(out, mode="r"), read, numbers)


class Killer:
    """Kills a process that does units after some of them, once: an `on_progress` of `pack`.

    Parameters
    ----------
    find
        Returns the processes that do units at the moment.
    """

    def __init__(self, find: Callable[[], list[int]]) -> None:
        self._find, self.killed = find, 0

    def __call__(self, now: PackProgress) -> None:
        if now.stage == "write" and now.done > 5 and not self.killed:
            for pid in self._find()[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.killed += 1


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _read(group: zarr.Group, name: str) -> npt.NDArray[Any]:
    array: Any = group[name]
    return np.asarray(array[...])
