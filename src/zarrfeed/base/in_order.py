"""Calls on several threads whose results come in the order of their items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from zarrfeed.base.waits import result_of

Item = TypeVar("Item")
Result = TypeVar("Result")


def results_in_order(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Generator[Result, None, None]:
    """Yield `function(item)` of each item, in their order, with at most `ahead` calls that are begun and not yielded.

    Items are taken as they are needed, as `Executor.map` does from Python 3.14 on (`buffersize`). Calls that have not
    begun are cancelled when one fails, or when the generator is closed.
    """
    left, pending = iter(items), deque[Future[Result]]()
    try:
        while True:
            pending.extend(pool.submit(function, item) for item in islice(left, ahead - len(pending)))
            if not pending:
                return
            yield result_of(pending.popleft())
    finally:
        for future in pending:
            future.cancel()
