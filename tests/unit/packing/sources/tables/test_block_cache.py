"""A block is decoded once while threads read it, and no more blocks are kept than threads."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from weakref import ref

import pytest

from zarrfeed.packing.sources.tables.block_cache import BlockCache


class Block:
    """Something that can be watched."""


def test_threads_that_want_one_block_share_it() -> None:
    blocks: BlockCache[Block] = BlockCache()
    decoded = []
    start = threading.Barrier(4, timeout=240)

    def decode() -> Block:
        decoded.append(Block())
        return decoded[-1]

    def get(_: int) -> Block:
        start.wait()
        return blocks.get(7, decode)

    with ThreadPoolExecutor(4) as threads:
        got = list(threads.map(get, range(4)))
    assert len(decoded) == 1
    assert all(one is decoded[0] for one in got)


def test_a_thread_keeps_the_last_one_alone() -> None:
    blocks: BlockCache[Block] = BlockCache()
    made: list[ref[Block]] = []

    def decode() -> Block:
        block = Block()
        gc.collect()
        assert [one for one in made if one() is not None] == []  # the one before is gone already
        made.append(ref(block))
        return block

    for key in (1, 1, 2, 2, 1):
        blocks.get(key, decode)
    assert len(made) == 3
    assert made[-1]() is not None
    blocks.clear()
    gc.collect()
    assert made[-1]() is None


def test_an_error_is_not_cached() -> None:
    blocks: BlockCache[int] = BlockCache()
    with pytest.raises(ZeroDivisionError):
        blocks.get(1, lambda: 1 // 0)
    assert blocks.get(1, lambda: 5) == 5
