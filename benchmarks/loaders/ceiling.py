"""What the machine could do at best: the same chunks, decoded on all cores by a bare C++ loop."""

from __future__ import annotations

import os

from benchmarks.stores import Store
from zarrfeed import _core
from zarrfeed.layout import read_layout

#: Rows are scattered over the memory of so many chunks: what zarrfeed has open, roughly.
_WINDOW_CHUNKS = 64


class Ceiling:
    """Read, decode and (if asked) scatter every chunk once, in random order; nothing is delivered.

    With `scatter`, rows are copied to shuffled slots, which every loader has to do; without, the decoded chunk stays
    in the cache and is thrown away.
    """

    def __init__(self, store: Store, *, scatter: bool) -> None:
        paths = [path for path in (store.samples_path, store.targets_path) if path is not None]
        self._fields = [read_layout(path).to_core() for path in paths]
        self._scatter = scatter
        self._num_threads = usable_cores()
        self.settings: dict[str, object] = {
            "num_threads": self._num_threads,
            "window_chunks": _WINDOW_CHUNKS,
            "scatter": scatter,
        }

    def measure(self) -> float:
        """Return the seconds of one pass over all arrays, without the set-up."""
        return sum(
            _core.measure_ceiling(
                field, num_threads=self._num_threads, window_chunks=_WINDOW_CHUNKS, scatter=self._scatter
            )[0]
            for field in self._fields
        )


def usable_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
