"""Finalizers that also run at interpreter exit, while zarr-python's event loop can still end what runs on it.

`weakref.finalize` runs at exit, too, but at a time that depends on imports: after zarr-python closed its loop, if a
library that uses `weakref.finalize` was imported before zarr-python, as torch mostly is. A finalizer that has to end
reads on the loop then raises, and asyncio complains of the reads.

Invariant: `_end_all` runs before zarr-python closes its loop. The interpreter calls exit functions in reverse order of
their registration, and this module imports zarr-python, which registers its own, first.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from zarrfeed.storage.access.zarr_internals import has_event_loop, sync  # and zarr-python: see the invariant

#: Seconds that the interpreter waits for tasks on the loop to end. A store may block the loop.
_TIMEOUT_S = 5.0

_numbers = itertools.count()
_at_exit: dict[int, tuple[Callable[..., object], tuple[object, ...]]] = {}


def finalize(owner: object, end: Callable[..., object], *arguments: object) -> Callable[[], None]:
    """Call `end(*arguments)` once: when `owner` is gone, at exit, or when the function that this returns is called."""
    number = next(_numbers)
    _at_exit[number] = end, arguments
    weakref.finalize(owner, _end, number).atexit = False
    return partial(_end, number)


def _end(number: int) -> None:
    if (found := _at_exit.pop(number, None)) is not None:
        end, arguments = found
        end(*arguments)


def _end_all() -> None:
    """Call all finalizers, the newest first; other threads may make some and end some meanwhile."""
    while _at_exit:
        with suppress(KeyError):
            _, (end, arguments) = _at_exit.popitem()
            try:
                end(*arguments)
            except Exception:  # noqa: BLE001 - the others have to run
                sys.excepthook(*sys.exc_info())
    if has_event_loop():
        with suppress(Exception):  # a store blocks the loop
            sync(_ended_tasks(), timeout=_TIMEOUT_S)


async def _ended_tasks() -> None:
    """Wait for the tasks of the loop that were cancelled."""
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.cancelling()), return_exceptions=True)


atexit.register(_end_all)
