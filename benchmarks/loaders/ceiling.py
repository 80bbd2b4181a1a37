"""What the machine could do at best: the same chunks, decoded on all cores by a bare C++ loop."""

from __future__ import annotations

import os

from benchmarks.conversion import conversion_options
from benchmarks.stores import Store
from zarrfeed import _core
from zarrfeed.conversion import ConversionOptions
from zarrfeed.fields import StoredField
from zarrfeed.sources import read_fields

#: Rows are scattered over the memory of so many chunks: what zarrfeed has open, roughly; of large chunks fewer.
_WINDOW_CHUNKS = 64
_WINDOW_BYTES = 128 << 20


class Ceiling:
    """Read, decode and (if asked) scatter every chunk once, in random order; nothing is delivered.

    With `scatter`, rows are copied to shuffled slots, which every loader has to do; without, the decoded chunk stays
    in the cache and is thrown away. Where a layout asks for a conversion, it is a part of the copy.
    """

    def __init__(self, store: Store, *, scatter: bool, num_threads: int | None = None) -> None:
        conversion = ConversionOptions(**conversion_options(store.layout))
        self._fields = [
            field.to_core()
            for field in read_fields(store.samples_path, store.targets_path, conversion=conversion).fields
            if isinstance(field, StoredField)
        ]
        self._scatter = scatter
        self._num_threads = num_threads or usable_cores()
        self._window_chunks = max(self._num_threads, min(_WINDOW_CHUNKS, _WINDOW_BYTES // store.layout.chunk_bytes))
        self.settings: dict[str, object] = {
            "num_threads": self._num_threads,
            "window_chunks": self._window_chunks,
            "scatter": scatter,
        }

    def measure(self) -> float:
        """Return the seconds of one pass over all arrays, without the set-up."""
        return sum(
            _core.measure_ceiling(
                field, num_threads=self._num_threads, window_chunks=self._window_chunks, scatter=self._scatter
            )[0]
            for field in self._fields
        )


def usable_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
