"""Stream Zarr arrays into PyTorch training: shuffled, decoded off the GIL, straight into batch memory."""

from importlib.metadata import version

from zarrfeed.dataset import ZarrIterableDataset
from zarrfeed.digest import Digest, audit
from zarrfeed.errors import (
    ChunkSkippedWarning,
    ClosedError,
    ConfigError,
    CorruptChunkError,
    MemoryBudgetError,
    ProgressFileError,
    StoreReadError,
    UnsupportedError,
    ZarrfeedError,
)
from zarrfeed.explain import Explanation
from zarrfeed.identity import rank_from_slurm, rank_from_torchrun
from zarrfeed.loader import ZarrDataLoader
from zarrfeed.random_access import ZarrDataset
from zarrfeed.skipping import SkippedChunk
from zarrfeed.split import split
from zarrfeed.stats import Stats
from zarrfeed.verification import VerifyReport, verify

__version__ = version("zarrfeed")

__all__ = [
    "ChunkSkippedWarning",
    "ClosedError",
    "ConfigError",
    "CorruptChunkError",
    "Digest",
    "Explanation",
    "MemoryBudgetError",
    "ProgressFileError",
    "SkippedChunk",
    "Stats",
    "StoreReadError",
    "UnsupportedError",
    "VerifyReport",
    "ZarrDataLoader",
    "ZarrDataset",
    "ZarrIterableDataset",
    "ZarrfeedError",
    "__version__",
    "audit",
    "rank_from_slurm",
    "rank_from_torchrun",
    "split",
    "verify",
]
