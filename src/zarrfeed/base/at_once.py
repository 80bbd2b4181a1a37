"""Results of coroutines that wait for nothing: code for event loops, run by a thread that may block."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def result_at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine all of whose awaited results are there at once.

    >>> async def twice(number):
    ...     return 2 * number
    >>> result_at_once(twice(21))
    42
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a coroutine that waits for nothing has waited")
