"""What the machine could do at best: the same chunks, decoded on all cores by a bare C++ loop.

One loop runs our own codecs and copies; the other one calls the codecs' libraries and `memcpy`.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

import zarrfeed
from benchmarks.data.conversion import open_converted
from benchmarks.data.layouts import Layout
from benchmarks.data.stores import Store
from zarrfeed import _core
from zarrfeed.spec.fields.field import StoredField

#: Rows are scattered over the memory of so many chunks: what zarrfeed has open, roughly; of large chunks fewer.
_WINDOW_CHUNKS = 64
_WINDOW_BYTES = 128 << 20


class Yardstick(Protocol):
    """A loop that delivers nothing, and is timed."""

    settings: dict[str, object]

    def measure(self) -> float:
        """Return the seconds of one pass over all arrays, without the set-up."""


class Ceiling:
    """Read, decode and (if asked) scatter every chunk once, in random order; nothing is delivered.

    With `scatter`, rows are copied to shuffled slots, which every loader has to do; without, the decoded chunk stays
    in the cache and is thrown away. Where a layout asks for a conversion, it is a part of the copy.
    """

    def __init__(self, store: Store, *, scatter: bool, num_threads: int | None = None) -> None:
        data = open_converted(store.layout, store.samples_path, store.targets_path)
        self._fields = [field.to_core() for field in data.resolved.fields if isinstance(field, StoredField)]
        self._scatter = scatter
        self._num_threads = num_threads or usable_cores()
        self._window_chunks = window_chunks(store.layout.chunk_bytes, self._num_threads)
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


class LibraryCeiling:
    """Read every chunk once, decompress it by one call of the codec's library, and copy its rows by `memcpy`.

    The calls are `blosc2_decompress_ctx`, `ZSTD_decompressDCtx`, `zng_inflate` and `LZ4_decompress_safe`, into memory
    that stays in the cache; rows go to shuffled slots. No codec or copy of ours is in it, so that a slow kernel of ours
    cannot lower it.
    """

    def __init__(self, store: Store) -> None:
        fields = zarrfeed.open(store.samples_path, store.targets_path).resolved.fields
        self._fields = [field for field in fields if isinstance(field, StoredField)]
        self._num_threads = usable_cores()
        self._window_chunks = window_chunks(store.layout.chunk_bytes, self._num_threads)
        self._num_samples = store.layout.num_samples
        self.settings: dict[str, object] = {"num_threads": self._num_threads, "window_chunks": self._window_chunks}

    def measure(self) -> float:
        return sum(self._measure(field)[0] for field in self._fields)

    def read(self) -> list[npt.NDArray[np.uint8]]:
        """Return the bytes that it copies, in the order of the samples: shape (samples, bytes), for each field."""
        rows = []
        for field in self._fields:
            out = np.zeros((self._num_samples, field.sample_bytes), dtype=np.uint8)
            self._measure(field, out)
            rows.append(out)
        return rows

    def _measure(self, field: StoredField, out: npt.NDArray[np.uint8] | None = None) -> tuple[float, int, int]:
        return _core.measure_library_ceiling(
            field.to_core(),
            num_threads=self._num_threads,
            window_chunks=self._window_chunks,
            out=out,
            blosc2_library=blosc2_library(),
        )


def blosc2_library() -> str:
    """Return the path of Blosc's shared library, which comes with the blosc2 wheel."""
    spec = find_spec("blosc2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the ceiling of the codecs' libraries needs blosc2: pip install '.[bench]'")
    return str(Path(spec.origin).parent / "lib" / "libblosc2.so")


def why_no_library_ceiling(layout: Layout) -> str:
    """Return why no call of a codec's library makes samples of a layout's chunks; "" if one does."""
    return "no codec's library converts items" if layout.conversion is not None else ""


def window_chunks(chunk_bytes: int, num_threads: int) -> int:
    """Return over how many chunks of so many bytes the loops scatter rows."""
    return max(num_threads, min(_WINDOW_CHUNKS, _WINDOW_BYTES // chunk_bytes))


def usable_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
