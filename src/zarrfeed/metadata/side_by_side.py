"""Reads of metadata side by side, on threads that end with whoever waits for them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from zarrfeed.storage.shared_access import SharedAccess

_A = TypeVar("_A")
_B = TypeVar("_B")

#: Stores of a server that are opened at once.
AT_ONCE = 32


def side_by_side(read: Callable[[_A], _B], sources: Sequence[_A], shared: SharedAccess) -> Generator[_B]:
    """Yield what `read` returns for each source, in order; the first source is read alone.

    After an error, an interrupt, or the end of the generator, reads are given up by `shared`, and no thread is left.
    """
    is_whole = False
    try:
        if sources:
            yield read(sources[0])
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="zarrfeed-open") as pool:
            try:
                yield from pool.map(read, sources[1:])
                is_whole = True
            finally:
                if not is_whole:
                    shared.give_up()
                    pool.shutdown(wait=False, cancel_futures=True)
    finally:
        if not is_whole:
            shared.give_up()
