"""Memory that epochs map, over the grid of layouts of `python -m benchmarks.mixing --grid`, each a sixteenth as large.

The budget bounds batches, scratch, carried and cached chunks. Batches that the user holds come on top of it, and each
pool maps memory slabs of 8 MiB. A store has one chunk file under many names.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec

import zarrfeed
from zarrfeed import MemoryBudgetError, ZarrIterableDataset

_MIB = 1 << 20
_MEMORY_SLAB = 8 * _MIB
#: KiB of a row, rows of a chunk, chunks.
GRID = ((4, 16, 60), (16, 24, 40), (256, 1, 60), (256, 24, 6), (64, 365, 2), (1, 2048, 2))
#: Variables and rows of a sample, and whether there is plenty of memory, or the least.
SAMPLES = ((1, 1, False), (1, 6, False), (1, 6, True), (3, 2, False), (3, 2, True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixing")
    for kib, rows, chunks in GRID:
        group = zarr.create_group(path / f"{kib}x{rows}")
        for variable in range(3):
            array = group.create_array(
                f"v{variable}",
                shape=(rows * chunks, kib * 256),
                chunks=(rows, kib * 256),
                dtype="float32",
                compressors=BloscCodec(cname="lz4", clevel=1),
            )
            files = path / f"{kib}x{rows}" / f"v{variable}" / "c"
            array[:rows] = np.arange(rows * kib * 256, dtype="f4").reshape(rows, -1)
            for chunk in range(1, chunks):
                (files / str(chunk)).mkdir()
                os.link(files / "0" / "0", files / str(chunk) / "0")
    return path


def least_budget(data: zarrfeed.Data, options: dict[str, Any]) -> int:
    """Return the budget that a refusal says would do."""
    with pytest.raises(MemoryBudgetError) as refusal:
        ZarrIterableDataset(data, memory_budget=_MIB // 16, **options)
    named = re.search(r"must be at least ([\d.]+) (KiB|MiB|GiB)", str(refusal.value))
    assert named is not None
    return round(float(named[1]) * {"KiB": 1 << 10, "MiB": _MIB, "GiB": 1 << 30}[named[2]])


@pytest.mark.parametrize(("kib", "rows"), [(kib, rows) for kib, rows, _ in GRID])
@pytest.mark.filterwarnings("ignore:this order hardly shuffles")
def test_an_epoch_stays_within_its_memory_from_the_least_budget_to_plenty(folder: Path, kib: int, rows: int) -> None:
    for variables, window, plenty in SAMPLES:
        data = zarrfeed.open(folder / f"{kib}x{rows}" if variables > 1 else folder / f"{kib}x{rows}" / "v0")
        options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "num_threads": 2}
        data = data.window(tuple(range(window)))
        budget = 64 * _MIB if plenty else least_budget(data, options)
        try:
            dataset = ZarrIterableDataset(data, memory_budget=budget, **options)
        except MemoryBudgetError:
            assert plenty
            continue
        with dataset:
            explained = dataset.explain()
            assert explained.memory_bytes <= budget
            for _ in itertools.islice(dataset, 8):
                pass
            used = dataset.stats()
            assert used.scratch_bytes
            pools = variables * 3  # batches, carried and cached chunks of each
            room = budget + 2 * explained.memory.batch_bytes + pools * _MEMORY_SLAB
            assert used.batch_memory_bytes + used.scratch_bytes <= room, (variables, window, plenty)
