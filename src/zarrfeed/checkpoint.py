"""Checkpoints straight to and from an object store or a disk, whole or not there, checked when they are read.

Names are imported when they are first used, so that `writer`, `reader`, `retain` and `newest` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zarrfeed.base.errors import CorruptCheckpointError, StoreWriteError

if TYPE_CHECKING:
    from zarrfeed.storage.checkpoint_file import reader, writer
    from zarrfeed.storage.checkpoint_reader import CheckpointReader
    from zarrfeed.storage.checkpoint_writer import CheckpointWriter
    from zarrfeed.storage.retention import Retained, newest, retain
    from zarrfeed.torch.loader_state import LoaderState
    from zarrfeed.torch.shard_reader import ZarrfeedReader
    from zarrfeed.torch.shard_writer import ZarrfeedWriter

__all__ = [
    "CheckpointReader",
    "CheckpointWriter",
    "CorruptCheckpointError",
    "LoaderState",
    "Retained",
    "StoreWriteError",
    "ZarrfeedReader",
    "ZarrfeedWriter",
    "newest",
    "reader",
    "retain",
    "writer",
]

#: Public name -> the module that defines it.
_MODULES = {
    "CheckpointReader": "storage.checkpoint_reader",
    "CheckpointWriter": "storage.checkpoint_writer",
    "LoaderState": "torch.loader_state",
    "Retained": "storage.retention",
    "ZarrfeedReader": "torch.shard_reader",
    "ZarrfeedWriter": "torch.shard_writer",
    "newest": "storage.retention",
    "reader": "storage.checkpoint_file",
    "retain": "storage.retention",
    "writer": "storage.checkpoint_file",
}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(f"zarrfeed.{_MODULES[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "torch":
                raise
            raise ImportError(f"zarrfeed.checkpoint.{name} needs torch: pip install torch", name="torch") from error
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List public names, imported or not."""
        return sorted({*globals(), *__all__})
