"""Parts of splits and shares of nodes, over layouts whose orders have slabs: those of the release before slabs.

Slabs are blocks of the epoch order alone. Rows of one chunk in training and validation would leak, and a node that
read other chunks than before would fill its cache anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ZarrIterableDataset

#: KiB of a row, rows of a chunk, and rows -> digests of the parts of `split(by="chunk")`, of `Data.blocks`, and of the
#: samples of two nodes with single rows and with windows. Recorded with commit 6f882cd0^, which had no slabs.
DIGESTS: Mapping[tuple[int, int, int], tuple[str, ...]] = {
    (64, 16, 7995): ("207f205d6ecd9e79", "c40710a8d0088fdb", "5d63d13eba8325f7", "d63f28d388f3ddca"),
    (256, 24, 9592): ("8f9d4ac2d14567a5", "d02b3a85cd33a4e9", "069c87995f4ee1cb", "5f053506dfac2a69"),
    (4096, 1, 2000): ("45151a703cf23e24", "650f0a0f0b1b3699", "f5a5d5d2f36d418d", "25b34555e85889d6"),
    (4096, 24, 2392): ("ebfdbe0a4a384599", "d02b3a85cd33a4e9", "1a1615facde85cf0", "88e66d403fa3ed92"),
    (16384, 24, 1432): ("1072f9b4566cb859", "d02b3a85cd33a4e9", "bf8d5643aae6d826", "c15c27a256cbc9eb"),
    (1024, 365, 7179): ("bcbe4107b8a4eaff", "c55bcdfe150b3143", "398d722668c4718d", "b07ceff9d8203c71"),
    (1, 2048, 204118): ("8c0acf99b7f9c1b7", "cb823612ab4ab6c9", "b524484aa25d2f08", "6d4183138cb986a8"),
}
#: Layouts whose orders have slabs in the memory of this test.
CUT = {(4096, 24), (16384, 24), (1024, 365)}


def digest(parts: Iterable[Any]) -> str:
    """Return a digest of the samples of parts, which are sets."""
    of_parts = hashlib.sha256()
    for samples in parts:
        of_parts.update(np.sort(np.asarray(samples, dtype="<i8")).tobytes() + b";")
    return of_parts.hexdigest()[:16]


def samples_of(data: Any, **options: Any) -> Any:
    with ZarrIterableDataset(data, batch_size=16, memory_budget="8GiB", **options) as dataset:
        return dataset.sample_order(0)


def shares(path: Path, kib: int, chunk_rows: int, num_rows: int) -> tuple[str, ...]:
    """Return the digests of an array of which no chunk is stored."""
    items = kib * 256
    array = zarr.create_array(
        path / f"{kib}-{chunk_rows}", shape=(num_rows, items), chunks=(chunk_rows, items), dtype="f4", compressors=None
    )
    data = zarrfeed.open(array)
    if (kib, chunk_rows) in CUT:
        with ZarrIterableDataset(
            data.window((0, 1)), batch_size=16, shuffle=True, memory_budget="8GiB", affinity="node"
        ) as cut:
            assert cut.explain().slab_rows
    nodes = [
        [
            samples_of(chosen, shuffle=True, seed=4, affinity="node", even="off", rank=rank, world_size=2)
            for rank in range(2)
        ]
        for chosen in (data, data.window((0, 1)))
    ]
    return (
        digest(samples_of(part) for part in data.split([0.7, 0.2, 0.1], by="chunk", seed=3)),
        digest([samples_of(data.blocks([0, 2, 5]))]),
        *map(digest, nodes),
    )


@pytest.mark.filterwarnings("ignore:this order hardly shuffles")
@pytest.mark.parametrize(("kib", "chunk_rows", "num_rows"), DIGESTS)
def test_parts_and_nodes_have_the_samples_that_they_had_before_slabs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kib: int, chunk_rows: int, num_rows: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert shares(tmp_path, kib, chunk_rows, num_rows) == DIGESTS[kib, chunk_rows, num_rows]
