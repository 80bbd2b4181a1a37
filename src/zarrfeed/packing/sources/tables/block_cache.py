"""`BlockCache`: the blocks that threads decoded last, such as row groups, so that a block is decoded once in a row.

Invariant: a thread keeps one block at most, and threads that want the same block at the same time share it. So memory
holds no more blocks than threads, and a block that several threads read in turn is decoded once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class _Block(Generic[T]):
    """A block that lives as long as a thread keeps it or reads from it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: list[T] = []  # none: not decoded yet


class BlockCache(Generic[T]):
    """Blocks by their keys; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: WeakValueDictionary[Hashable, _Block[T]] = WeakValueDictionary()
        self._thread = threading.local()

    def get(self, key: Hashable, decode: Callable[[], T]) -> T:
        """Return the block of a key, decoded if no thread has it. An error of `decode` is raised, and not cached."""
        with self._lock:
            block = self._alive.get(key)
            if block is None:
                self._thread.block = None  # before the next one is decoded: a thread holds one at a time
                block = self._alive[key] = _Block()
            self._thread.block = block
        with block.lock:
            if not block.values:
                block.values.append(decode())
            return block.values[0]

    def clear(self) -> None:
        """Forget the blocks, but for those that threads are reading from."""
        with self._lock:
            self._alive.clear()
            self._thread = threading.local()
