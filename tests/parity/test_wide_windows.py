"""Windows with more rows than a task lists: the same batches as NumPy's, from each kind of field, in little memory."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support import warm

N, CHUNK = 5000, 1500
#: Windows of a block have 1500 times so many rows.
OFFSETS: dict[str, list[int]] = {
    "ascending": list(range(-20, 40)),
    "descending": list(range(30, -30, -1)),
    "far apart": [0, *range(900, 1900, 40), *range(-800, -100, 50)],
}


def check(data: zarrfeed.Data, offsets: list[int], *, pad: Any = None, ends: list[int] | None = None) -> None:
    """Check an epoch against the rows of an array whose values are their index."""
    first = np.array([0, *(ends or [N])])
    seen = []
    for values, index in zarrfeed.ZarrIterableDataset(data, batch_size=64, shuffle=True, return_index=True):
        sample = index.numpy()[:, None]
        rows = sample + np.array(offsets)
        segment = np.searchsorted(first, sample, side="right") - 1
        low, high = first[segment], first[segment + 1]
        wanted = np.clip(rows, low, high - 1)
        if pad is not None and pad != "edge":
            wanted = np.where((rows < low) | (rows >= high), pad, wanted)
        np.testing.assert_array_equal(values.numpy()[..., 0], wanted)
        seen += index.tolist()
    reach = max(0, -min(offsets)), max(0, max(offsets))
    kept = range(N) if pad is not None else range(reach[0], N - reach[1])
    assert sorted(seen) == list(kept)


@pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
def test_each_window_has_its_rows(tmp_path: Path, offsets: list[int]) -> None:
    values = np.stack([np.arange(N), np.arange(N) + 0.5], axis=1)
    for name, cells in (("whole", 2), ("cells", 1)):
        zarr.create_array(tmp_path / name, data=values, chunks=(CHUNK, cells))
    parts = [(0, 1700), (1700, 1800), (1800, N)]
    for number, (begin, end) in enumerate(parts):
        chunk = (CHUNK if number else 700, 2)
        zarr.create_array(tmp_path / f"part{number}", data=values[begin:end], chunks=chunk)
    for name in ("whole", "cells"):
        check(zarrfeed.open(tmp_path / name).window(offsets), offsets)
        check(zarrfeed.open(tmp_path / name).cast("float32").window(offsets), offsets)
        for pad in ("edge", -7):
            ends = [10, 1490, 1510, N]
            data = zarrfeed.open(tmp_path / name).window(offsets, pad=pad, segment_ends=ends)
            check(data, offsets, pad=pad, ends=ends)
    stores = [tmp_path / f"part{number}" for number in range(len(parts))]
    check(zarrfeed.concat(stores, contiguous=True).window(offsets), offsets)
    check(zarrfeed.open(values).window(offsets), offsets)


def test_leads_and_masks_of_wide_windows(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x", data=np.arange(N), chunks=(CHUNK,))
    offsets = [*range(15), zarrfeed.lead(20, 900)]
    data = zarrfeed.open({"x": tmp_path / "x"}).window({"x": offsets}, pad=0, mask=True)
    for batch, index in zarrfeed.ZarrIterableDataset(data, batch_size=64, shuffle=True, return_index=True):
        rows = np.concatenate(
            [index.numpy()[:, None] + np.arange(15), (index + batch["lead"]).numpy()[:, None]], axis=1
        )
        np.testing.assert_array_equal(batch["x"].numpy(), np.where(rows < N, rows, 0))
        (mask,) = (value for key, value in batch.items() if key not in ("x", "lead"))
        np.testing.assert_array_equal(mask.numpy(), rows >= N)


@pytest.mark.filterwarnings("ignore:this order hardly shuffles")
def test_samples_of_a_bad_chunk_are_replaced_by_others(tmp_path: Path) -> None:
    chunk = 500  # blocks are 4 of them, so that a block without the bad one is left
    zarr.create_array(tmp_path / "x", data=np.arange(N), chunks=(chunk,), compressors=[zarr.codecs.GzipCodec()])
    (tmp_path / "x/c/1").write_bytes(b"no gzip")
    data = zarrfeed.open(tmp_path / "x").window(range(40))
    dataset = zarrfeed.ZarrIterableDataset(
        data, batch_size=64, shuffle=True, return_index=True, faults={"on_error": "skip"}
    )
    with pytest.warns(UserWarning, match="skip"):
        batches = list(dataset)
    for values, index in batches:
        np.testing.assert_array_equal(values.numpy(), index.numpy()[:, None] + np.arange(40))
        assert not ((index.numpy() > chunk - 40) & (index.numpy() < 2 * chunk)).any()


_PROGRAM = """
import resource, sys
import numpy as np, zarrfeed
data = zarrfeed.open(sys.argv[1]).window(range(100), segment_ends=np.linspace(0, 300000, 11, dtype="i8")[1:])
dataset = zarrfeed.ZarrIterableDataset(data, batch_size=64, shuffle=True, memory_budget="64MiB")
next(iter(zarrfeed.ZarrIterableDataset(np.zeros((9, 3), "f4"), batch_size=3)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
dataset.explain()
next(iter(dataset))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_windows_of_many_rows_keep_to_the_memory_budget(tmp_path: Path) -> None:
    """1.2 MB of data took 1.6 GB under a budget of 64 MiB."""
    zarr.create_array(tmp_path / "x", data=np.arange(300000, dtype="f4"), chunks=(65536,))
    command = [*warm.command(), "-W", "ignore", "-c", _PROGRAM, str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) << 10 < 1.5 * (64 << 20)
