"""A store that reads as several copies of another one, behind each other, and takes no room: its files are links."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.data.layouts import Layout
from benchmarks.data.stores import Store


def repeated(layout: Layout, times: int) -> Layout:
    """Return the layout of so many copies behind each other."""
    return replace(layout, shape=(times * layout.num_samples, *layout.shape[1:]))


def long_path(path: Path, times: int) -> Path:
    """Return where the long store of a store is; the store itself for one copy."""
    return path if times == 1 else path.with_name(f"{path.stem}-x{times}{path.suffix}")


def times_for(layout: Layout, decoded_bytes: int) -> int:
    """Return how many copies have so many bytes; 1 where a copy would begin in the middle of a chunk or shard."""
    rows = layout.rows_per_chunk * max(1, layout.chunks_per_shard)
    return 1 if layout.num_samples % rows or layout.targets else -(-decoded_bytes // layout.decoded_bytes)


@contextmanager
def long_store(store: Store, times: int) -> Iterator[Store]:
    """Write the long store of a store of Zarr format 3 beside it, and remove it with the block."""
    if times == 1:
        yield store
        return
    path = long_path(store.path, times)
    shutil.rmtree(path, ignore_errors=True)
    try:
        samples = store.samples_path
        shutil.copytree(store.path, path, ignore=lambda directory, _: ["c"] if Path(directory) == samples else [])
        metadata = path / "samples" / "zarr.json"
        described = json.loads(metadata.read_text())
        described["shape"][0] *= times
        metadata.write_text(json.dumps(described))
        blocks = sorted((samples / "c").iterdir(), key=lambda block: int(block.name))
        for number in range(times * len(blocks)):
            block = blocks[number % len(blocks)]
            copy = path / "samples" / "c" / str(number)
            shutil.copytree(block, copy, copy_function=os.link)
        yield Store(repeated(store.layout, times), path, times * store.stored_bytes)
    finally:
        shutil.rmtree(path, ignore_errors=True)
