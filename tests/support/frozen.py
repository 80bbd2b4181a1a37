"""Freeze the objects that exist when this module is imported, as the last one that a forkserver imports.

The garbage collector of a forked process would write to all of them, and so copy the memory that the processes share.
No test imports this module: in its own process, objects would be frozen that it looks for.
"""

from __future__ import annotations

import gc
import os

gc.collect()
gc.freeze()

PROCESS = os.getpid()
