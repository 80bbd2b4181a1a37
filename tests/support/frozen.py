"""Freeze the objects that exist when this module is imported, as the last one that a forkserver imports.

The garbage collector of a forked process would write to all of them, and so copy the memory that the processes share.
"""

from __future__ import annotations

import gc
import os

gc.collect()
gc.freeze()

_IMPORTED_BY = os.getpid()


def imported_by() -> int:
    """Return the process that imported this module: the forkserver, in a process that it forked."""
    return _IMPORTED_BY
