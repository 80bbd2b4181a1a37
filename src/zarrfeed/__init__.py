"""Stream Zarr arrays into PyTorch training: shuffled, decoded off the GIL, straight into batch memory.

Names are imported when they are first used, so that what needs no torch works without it: metadata, plans, `verify` and
the engine itself.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from zarrfeed.base import native as _native  # noqa: F401 - says at once what to do if the engine was not built
from zarrfeed.base.errors import (
    BatchTransferError,
    ChunkSkippedWarning,
    ClosedError,
    ConfigError,
    CorruptChunkError,
    MemoryBudgetError,
    ProgressFileError,
    StaleMetadataWarning,
    StoreReadError,
    UnknownOptionError,
    UnsupportedError,
    ZarrfeedError,
)
from zarrfeed.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from zarrfeed.engine.cache_stats import CacheStats
    from zarrfeed.engine.stats import Stats
    from zarrfeed.engine.substitution import SkippedChunk
    from zarrfeed.metadata.face.check_disjoint import check_disjoint
    from zarrfeed.metadata.face.concat_data import concat
    from zarrfeed.metadata.face.data import Data
    from zarrfeed.metadata.face.from_xarray import from_xarray
    from zarrfeed.metadata.face.join import join
    from zarrfeed.metadata.face.mix_data import mix
    from zarrfeed.metadata.face.open_data import open
    from zarrfeed.packing.pack import pack
    from zarrfeed.packing.pack_report import PackProgress, PackReport
    from zarrfeed.plan.windows.windows import lead
    from zarrfeed.report.explain import Explanation
    from zarrfeed.spec.arrays.sharding import Requests
    from zarrfeed.spec.description.error_policy import Faults
    from zarrfeed.spec.description.feeding import Mixing
    from zarrfeed.spec.patches.patch_weights import PatchWeights
    from zarrfeed.spec.values.statistics import FieldStatistics, Statistics
    from zarrfeed.storage.access.memory_cache import MemoryCache
    from zarrfeed.storage.append.appender import Appender
    from zarrfeed.tools.patch_weights import patch_weights
    from zarrfeed.tools.stats import stats
    from zarrfeed.tools.verify import VerifyReport, verify
    from zarrfeed.torch.datasets.iterable_dataset import ZarrIterableDataset
    from zarrfeed.torch.datasets.loader import ZarrDataLoader
    from zarrfeed.torch.datasets.look_ahead import LookAhead
    from zarrfeed.torch.datasets.map_dataset import ZarrDataset
    from zarrfeed.torch.ranks.audit import Digest, audit
    from zarrfeed.torch.ranks.distributed import rank_from_kubernetes, rank_from_slurm, rank_from_torchrun

__version__ = version("zarrfeed")

__all__ = [
    "Appender",
    "BatchTransferError",
    "CacheStats",
    "ChunkSkippedWarning",
    "ClosedError",
    "ConfigError",
    "CorruptChunkError",
    "Data",
    "Digest",
    "Explanation",
    "Faults",
    "FieldStatistics",
    "LookAhead",
    "MemoryBudgetError",
    "MemoryCache",
    "Mixing",
    "PackProgress",
    "PackReport",
    "PatchWeights",
    "ProgressFileError",
    "Requests",
    "SkippedChunk",
    "StaleMetadataWarning",
    "Statistics",
    "Stats",
    "StoreReadError",
    "UnknownOptionError",
    "UnsupportedError",
    "VerifyReport",
    "ZarrDataLoader",
    "ZarrDataset",
    "ZarrIterableDataset",
    "ZarrfeedError",
    "__version__",
    "audit",
    "check_disjoint",
    "concat",
    "from_xarray",
    "join",
    "lead",
    "mix",
    "open",
    "pack",
    "patch_weights",
    "rank_from_kubernetes",
    "rank_from_slurm",
    "rank_from_torchrun",
    "stats",
    "verify",
]

#: Public name -> the module that defines it. None is a module's own name: importing that module would replace it.
_MODULES = {
    "Appender": "storage.append.appender",
    "CacheStats": "engine.cache_stats",
    "Data": "metadata.face.data",
    "Digest": "torch.ranks.audit",
    "Explanation": "report.explain",
    "Faults": "spec.description.error_policy",
    "FieldStatistics": "spec.values.statistics",
    "LookAhead": "torch.datasets.look_ahead",
    "MemoryCache": "storage.access.memory_cache",
    "Mixing": "spec.description.feeding",
    "PackProgress": "packing.pack_report",
    "PackReport": "packing.pack_report",
    "PatchWeights": "spec.patches.patch_weights",
    "Requests": "spec.arrays.sharding",
    "SkippedChunk": "engine.substitution",
    "Statistics": "spec.values.statistics",
    "Stats": "engine.stats",
    "VerifyReport": "tools.verify",
    "ZarrDataLoader": "torch.datasets.loader",
    "ZarrDataset": "torch.datasets.map_dataset",
    "ZarrIterableDataset": "torch.datasets.iterable_dataset",
    "audit": "torch.ranks.audit",
    "check_disjoint": "metadata.face.check_disjoint",
    "concat": "metadata.face.concat_data",
    "from_xarray": "metadata.face.from_xarray",
    "open": "metadata.face.open_data",
    "join": "metadata.face.join",
    "lead": "plan.windows.windows",
    "mix": "metadata.face.mix_data",
    "pack": "packing.pack",
    "patch_weights": "tools.patch_weights",
    "rank_from_kubernetes": "torch.ranks.distributed",
    "rank_from_slurm": "torch.ranks.distributed",
    "rank_from_torchrun": "torch.ranks.distributed",
    "stats": "tools.stats",
    "verify": "tools.verify",
}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these
    __getattr__, __dir__ = lazy_names(
        __name__,
        _MODULES,
        own=("checkpoint", "compat", "device", "objects"),
        gone={
            "split": "zarrfeed.split is now Data.split: zarrfeed.open(path).split((0.8, 0.2))",
            **{
                name: f"zarrfeed has no {name}: pass the path that dask reads to zarrfeed.open"
                for name in ("from_dask", "from_dask_array")
            },
        },
    )
