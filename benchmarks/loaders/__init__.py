"""The loaders that are compared, by name; one file each, behind the protocol in `protocol.py`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from zarr.core import codec_pipeline

from benchmarks.data.layouts import Layout
from benchmarks.data.stores import Store
from benchmarks.loaders.beluga_stream import BelugaStream
from benchmarks.loaders.ceiling import Ceiling, LibraryCeiling, Yardstick, why_no_library_ceiling
from benchmarks.loaders.ours import Zarrfeed, ZarrfeedWorkers
from benchmarks.loaders.protocol import Batch, Loader, fields_of
from benchmarks.loaders.tensorstore_rows import TensorStoreRows
from benchmarks.loaders.torch_dataset import TorchDataset
from benchmarks.loaders.uncompressed import Memmap, Preloaded
from benchmarks.loaders.zarr_chunkwise import ZarrChunkwise
from benchmarks.loaders.zarr_map import ZarrMap
from zarrfeed.base.system import usable_cores

__all__ = [
    "CEILINGS",
    "LIBRARY_CEILING",
    "LOADERS",
    "OURS",
    "OURS_IN_WORKERS",
    "PLAIN_ZARR",
    "WITHOUT_CODEC",
    "YARDSTICK",
    "Batch",
    "Ceiling",
    "LibraryCeiling",
    "Loader",
    "Yardstick",
    "fields_of",
    "why_not",
]

OURS = "zarrfeed"
OURS_IN_WORKERS = "zarrfeed-workers"

_ZARRS = "zarrs.ZarrsCodecPipeline"
#: The pipeline of zarr-python 3.4 that decodes without a coroutine for each chunk; its default is another one.
_FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"
#: Loaders get as many decode threads, or worker processes, as zarrfeed has decode threads.
_CORES = usable_cores()

#: Name -> how to make it from a store and from the number of samples that a very slow one is timed on.
LOADERS: dict[str, Callable[[Store, int], Loader]] = {
    OURS: lambda store, _: Zarrfeed(store),
    OURS_IN_WORKERS: lambda store, _: ZarrfeedWorkers(store, num_workers=_CORES),
    "zarr-chunkwise-0w": lambda store, _: ZarrChunkwise(store, num_workers=0, num_threads=_CORES),
    "zarr-chunkwise-workers": lambda store, _: ZarrChunkwise(store, num_workers=_CORES, num_threads=1),
    "zarr-fused-0w": lambda store, _: ZarrChunkwise(store, num_workers=0, num_threads=_CORES, codec_pipeline=_FUSED),
    "zarr-fused-workers": lambda store, _: ZarrChunkwise(
        store, num_workers=_CORES, num_threads=1, codec_pipeline=_FUSED
    ),
    "zarr-map-0w": lambda store, part: ZarrMap(store, num_workers=0, max_samples=part),
    "zarr-map-workers": lambda store, part: ZarrMap(store, num_workers=_CORES, max_samples=part),
    "zarrs-chunkwise-0w": lambda store, _: ZarrChunkwise(
        store, num_workers=0, num_threads=_CORES, codec_pipeline=_ZARRS
    ),
    "zarrs-chunkwise-workers": lambda store, _: ZarrChunkwise(
        store, num_workers=_CORES, num_threads=1, codec_pipeline=_ZARRS
    ),
    "tensorstore": lambda store, _: TensorStoreRows(store),
    "zarr-torch-dataset-0w": lambda store, _: TorchDataset(store, num_workers=0),
    "zarr-torch-dataset-workers": lambda store, _: TorchDataset(store, num_workers=_CORES),
    "zarr-beluga": lambda store, _: BelugaStream(store),
    "numpy-memmap": lambda store, _: Memmap(store),
    "torch-in-memory": lambda store, _: Preloaded(store),
}

#: The loaders over zarr-python alone.
PLAIN_ZARR = (
    *("zarr-chunkwise-0w", "zarr-chunkwise-workers", "zarr-fused-0w", "zarr-fused-workers"),
    *("zarr-map-0w", "zarr-map-workers"),
)
#: Those that read no Zarr while they are timed.
WITHOUT_CODEC = ("numpy-memmap", "torch-in-memory")

#: Beginning of a name -> the module that it needs, of the extra `bench`.
_MODULES = {
    "zarrs-": "zarrs",
    "tensorstore": "tensorstore",
    "zarr-torch-dataset": "zarrdataset",
    "zarr-beluga": "beluga",
}

#: The same for the ceilings, which deliver nothing; loaders are compared with `YARDSTICK`.
YARDSTICK = "ceiling-scatter"
#: The ceiling in which nothing is ours.
LIBRARY_CEILING = "ceiling-library"
CEILINGS: dict[str, Callable[[Store], Yardstick]] = {
    YARDSTICK: lambda store: Ceiling(store, scatter=True),
    LIBRARY_CEILING: LibraryCeiling,
    "ceiling-decode": lambda store: Ceiling(store, scatter=False),
}


def why_not(name: str, layout: Layout) -> str:
    """Return why a loader, or a ceiling, cannot be measured on a layout here; "" if it can."""
    for beginning, module in _MODULES.items():
        if name.startswith(beginning) and find_spec(module) is None:
            return f"{module} is not installed"
    if name.startswith("zarr-fused") and not hasattr(codec_pipeline, "FusedCodecPipeline"):
        return "zarr-python 3.4 or later has its pipeline"
    if name == "zarr-beluga" and layout.name != "C":
        return "reads single time steps of float32 fields, as layout C has them"
    if name == OURS_IN_WORKERS and layout.name not in ("A", "D", "E", "G"):
        return "workers send batches of other layouts alike"
    if name == LIBRARY_CEILING:
        return why_no_library_ceiling(layout)
    return ""
