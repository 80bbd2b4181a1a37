"""Stream Zarr arrays into PyTorch training: shuffled, decoded off the GIL, straight into batch memory."""

from importlib.metadata import version

from zarrfeed.dataset import ZarrIterableDataset
from zarrfeed.errors import (
    ClosedError,
    ConfigError,
    CorruptChunkError,
    MemoryBudgetError,
    StoreReadError,
    UnsupportedError,
    ZarrfeedError,
)
from zarrfeed.explain import Explanation
from zarrfeed.stats import Stats

__version__ = version("zarrfeed")

__all__ = [
    "ClosedError",
    "ConfigError",
    "CorruptChunkError",
    "Explanation",
    "MemoryBudgetError",
    "Stats",
    "StoreReadError",
    "UnsupportedError",
    "ZarrIterableDataset",
    "ZarrfeedError",
    "__version__",
]
