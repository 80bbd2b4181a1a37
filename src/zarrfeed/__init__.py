"""Stream Zarr arrays into PyTorch training: shuffled, decoded off the GIL, straight into batch memory.

Names are imported when they are first used, so that what needs no torch works without it: metadata, plans, `verify` and
the engine itself.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from zarrfeed import _import_core as _import_core  # says at once what to do if the engine was not built
from zarrfeed.errors import (
    ChunkSkippedWarning,
    ClosedError,
    ConfigError,
    CorruptChunkError,
    MemoryBudgetError,
    ProgressFileError,
    StoreReadError,
    UnknownOptionError,
    UnsupportedError,
    ZarrfeedError,
)

if TYPE_CHECKING:
    from zarrfeed.dataset import ZarrIterableDataset
    from zarrfeed.digest import Digest, audit
    from zarrfeed.explain import Explanation
    from zarrfeed.identity import rank_from_slurm, rank_from_torchrun
    from zarrfeed.loader import ZarrDataLoader
    from zarrfeed.random_access import ZarrDataset
    from zarrfeed.skipping import SkippedChunk
    from zarrfeed.splitting import split
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
    "UnknownOptionError",
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

#: Public name -> the module that defines it. None is a module's own name: importing that module would replace it.
_MODULES = {
    "Digest": "digest",
    "Explanation": "explain",
    "SkippedChunk": "skipping",
    "Stats": "stats",
    "VerifyReport": "verification",
    "ZarrDataLoader": "loader",
    "ZarrDataset": "random_access",
    "ZarrIterableDataset": "dataset",
    "audit": "digest",
    "rank_from_slurm": "identity",
    "rank_from_torchrun": "identity",
    "split": "splitting",
    "verify": "verification",
}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "torch":
                raise
            raise ImportError(f"zarrfeed.{name} needs torch: pip install torch", name="torch") from error
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List public names, imported or not."""
        return sorted({*globals(), *__all__})
