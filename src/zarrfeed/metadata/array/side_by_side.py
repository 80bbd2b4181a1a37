"""Reads of metadata side by side, on threads that end with whoever waits for them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from zarrfeed.base.in_order import results_in_order
from zarrfeed.storage.access.shared_access import SharedAccess

_A = TypeVar("_A")
_B = TypeVar("_B")

#: Stores of a server that are opened at once.
AT_ONCE = 32

_numbers = itertools.count()


def side_by_side(read: Callable[[_A], _B], sources: Sequence[_A], shared: SharedAccess) -> Generator[_B]:
    """Yield what `read` returns for each source, in order; the first source is read alone.

    After an error, an interrupt, or the end of the generator, reads are given up by `shared`, and no thread is left.
    """
    is_whole = False
    name = f"zarrfeed-open-{next(_numbers)}"
    try:
        if sources:
            yield read(sources[0])
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix=name) as pool:
            try:
                yield from results_in_order(pool, read, sources[1:], len(sources))
                is_whole = True
            finally:
                if not is_whole:
                    shared.give_up()
                    pool.shutdown(wait=False, cancel_futures=True)
    finally:
        if not is_whole:
            shared.give_up()
            _join(f"{name}_")


def _join(prefix: str, timeout_s: float = 1.0) -> None:
    """Wait for threads by their names: a pool does not know the one in whose start an interrupt came.

    That one is not alive yet, or never will be: it is waited for no longer than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while (threads := [t for t in threading.enumerate() if t.name.startswith(prefix)]) and time.monotonic() < deadline:
        for thread in threads:
            if thread.is_alive():
                thread.join()
        time.sleep(0.001)
