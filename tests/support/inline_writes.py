"""Writes of zarr-python without a thread for each chunk: tests write many small arrays, each of many small chunks."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from zarr.core.sync import sync

#: Functions of zarr-python that encode a chunk, or that write, look for or delete a local file.
_OF_WRITERS = {"_encode", "_encode_sync", "_put", "encode", "is_file", "unlink"}


def write_inline() -> None:
    """Let `asyncio.to_thread` run what zarr-python writes with where it is called; reading and all else as ever.

    To hand a chunk to a thread and its result back takes longer than to encode and to write it.
    """
    in_a_thread = asyncio.to_thread

    def to_thread(function: Callable[..., Any], /, *args: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        of_zarr = sys._getframe(1).f_globals.get("__name__", "").startswith("zarr.")
        if of_zarr and getattr(function, "__name__", "") in _OF_WRITERS:
            return _run(function, args, options)
        return in_a_thread(function, *args, **options)

    sync(_fill_pool())
    asyncio.to_thread = to_thread


async def _fill_pool() -> None:
    """Start all threads by which zarr-python reads, so that none begins while a test counts threads."""
    await asyncio.to_thread(int)  # makes the pool
    executor: Any = asyncio.get_running_loop()._default_executor  # type: ignore[attr-defined]
    barrier = threading.Barrier(executor._max_workers)
    await asyncio.gather(*(asyncio.to_thread(barrier.wait) for _ in range(barrier.parties)))


async def _run(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return function(*args, **options)
