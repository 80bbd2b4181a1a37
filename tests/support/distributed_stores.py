"""A store with a corrupt chunk, missing ones and a sharded array, for tools that check it in several processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr


def make_damaged(path: Path) -> None:
    """Make a group of 'plain' (a chunk is corrupt, one is missing), 'shards' (likewise, of shards) and 'values'."""
    group = zarr.create_group(path)
    rng = np.random.default_rng(4)
    plain = group.create_array("plain", shape=(600, 20), chunks=(5, 20), dtype="i4")
    plain[...] = rng.integers(1, 1000, plain.shape)
    shards = group.create_array("shards", shape=(600, 20), chunks=(5, 20), shards=(30, 20), dtype="i4")
    shards[...] = rng.integers(1, 1000, shards.shape)
    values = group.create_array("values", shape=(600, 20), chunks=(7, 20), dtype="f8")
    values[...] = rng.normal(0, 1, values.shape)
    (path / "plain" / "c" / "47" / "0").write_bytes(b"damaged")
    (path / "plain" / "c" / "90" / "0").unlink()
    (path / "shards" / "c" / "11" / "0").unlink()
    shard = path / "shards" / "c" / "3" / "0"
    content = bytearray(shard.read_bytes())
    content[:8] = bytes(8)
    shard.write_bytes(content)
