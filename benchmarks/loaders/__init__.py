"""The loaders that are compared, by name; one file each, behind the protocol in `protocol.py`."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.loaders.ceiling import Ceiling
from benchmarks.loaders.ours import Zarrfeed
from benchmarks.loaders.protocol import Batch, Loader, fields_of
from benchmarks.loaders.zarr_chunkwise import ZarrChunkwise
from benchmarks.loaders.zarr_map import ZarrMap
from benchmarks.stores import Store

__all__ = ["CEILINGS", "LOADERS", "OURS", "YARDSTICK", "Batch", "Ceiling", "Loader", "fields_of"]

OURS = "zarrfeed"

#: Name -> how to make it from a store and from the number of samples that a very slow one is timed on.
LOADERS: dict[str, Callable[[Store, int], Loader]] = {
    OURS: lambda store, _: Zarrfeed(store),
    "zarr-chunkwise-0w": lambda store, _: ZarrChunkwise(store, num_workers=0, read_threads=2),
    "zarr-chunkwise-2w": lambda store, _: ZarrChunkwise(store, num_workers=2, read_threads=1),
    "zarr-map-0w": lambda store, part: ZarrMap(store, num_workers=0, max_samples=part),
    "zarr-map-2w": lambda store, part: ZarrMap(store, num_workers=2, max_samples=part),
}

#: The same for the ceilings, which deliver nothing; loaders are compared with `YARDSTICK`.
YARDSTICK = "ceiling-scatter"
CEILINGS: dict[str, Callable[[Store], Ceiling]] = {
    YARDSTICK: lambda store: Ceiling(store, scatter=True),
    "ceiling-decode": lambda store: Ceiling(store, scatter=False),
}
