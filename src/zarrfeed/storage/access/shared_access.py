"""The connections to a server that stores share while many of them are opened, and one end for all reads.

Invariant: after `give_up`, no read of metadata is begun, and those that wait for a store end at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import wait
from typing import Any, TypeVar

_T = TypeVar("_T")

#: Seconds that `give_up` waits for the reads to end.
_TIMEOUT_S = 1.0


class SharedAccess:
    """Connections, and reads of metadata that one call ends. Safe for threads.

    Attributes
    ----------
    servers
        The store of each bucket or web server by its URL. None: stores at that URL do not share connections.
    is_v3
        True if the last store that was opened is of Zarr format 3.
    """

    def __init__(self) -> None:
        self.servers: dict[str, Any] = {}
        self.is_v3 = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_over = False

    def __reduce__(self) -> tuple[type[SharedAccess], tuple[()]]:
        return SharedAccess, ()  # a copy has connections and reads of its own

    async def run(self, read: Awaitable[_T]) -> _T:
        """Await a read on the event loop, and return its result.

        Raises
        ------
        CancelledError
            If reads are given up.
        """
        task = asyncio.current_task()
        assert task is not None
        self._loop = asyncio.get_running_loop()
        self._tasks.add(task)  # before the flag is read, as `give_up` sets the flag before it looks at the tasks
        try:
            if self._is_over:
                task.cancel()
            return await read
        finally:
            self._tasks.discard(task)

    def give_up(self) -> None:
        """End all reads that are under way, and let no other begin; from any thread but the event loop's.

        Returns when they have ended, so that none is left to an interpreter that exits; or after a second.
        """
        self._is_over = True
        if self._loop is not None:
            cancel = self._cancel()
            try:
                wait([asyncio.run_coroutine_threadsafe(cancel, self._loop)], timeout=_TIMEOUT_S)
            except RuntimeError:  # the loop is closed, and nothing runs on it
                cancel.close()

    async def _cancel(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
