"""`PageStream`: a listing of obstore that can be given up at any time.

Invariant: while a request of the stream is under way, only threads of obstore's runtime drop the stream.

A request that was given up stays inside the stream, and its connection returns to the client's pool when the stream is
dropped. The pool then needs the runtime of the thread, and panics on stderr in a thread without one. Python drops
objects in any thread, the garbage collector even later. So whoever gives up a page leaves the last reference to the
stream to a task of the runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self


class PageStream:
    """The pages of a listing, in order, as an asynchronous iterator. Used by one task at a time.

    Parameters
    ----------
    store
        A store of obstore.
    prefix
        The folder that is listed, as `obstore.list` takes it; "" for all keys.
    after
        Only keys above this one are listed; "" for all.
    size
        Objects of a page.
    """

    def __init__(self, store: Any, prefix: str, *, after: str = "", size: int = 1000) -> None:
        import obstore

        self._stream: Any = obstore.list(store, prefix or None, offset=after or None, chunk_size=size)

    def __aiter__(self) -> Self:
        """Return the iterator itself."""
        return self

    async def __anext__(self) -> Sequence[Any]:
        """Return the metadata of the objects of the next page.

        Raises
        ------
        StopAsyncIteration
            If there is no further page, or one was given up. And whatever obstore raises.
        """
        if self._stream is None:
            raise StopAsyncIteration
        try:
            page: Sequence[Any] = await anext(self._stream)
        except asyncio.CancelledError:
            self._leave_to_runtime()
            raise
        return page

    def _leave_to_runtime(self) -> None:
        """Drop the stream where a task of the runtime holds it, too; then end that task."""
        stream, self._stream = self._stream, None
        task = anext(stream)
        del stream
        task.cancel()
