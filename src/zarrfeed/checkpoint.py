"""Checkpoints straight to and from an object store or a disk, whole or not there, checked when they are read.

Names are imported when they are first used, so that `writer` and `reader` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zarrfeed.base.errors import CorruptCheckpointError, StoreWriteError

if TYPE_CHECKING:
    from zarrfeed.storage.checkpoint_file import reader, writer
    from zarrfeed.storage.checkpoint_reader import CheckpointReader
    from zarrfeed.storage.checkpoint_writer import CheckpointWriter

__all__ = [
    "CheckpointReader",
    "CheckpointWriter",
    "CorruptCheckpointError",
    "StoreWriteError",
    "reader",
    "writer",
]

#: Public name -> the module that defines it.
_MODULES = {
    "CheckpointReader": "storage.checkpoint_reader",
    "CheckpointWriter": "storage.checkpoint_writer",
    "reader": "storage.checkpoint_file",
    "writer": "storage.checkpoint_file",
}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"zarrfeed.{_MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List public names, imported or not."""
        return sorted({*globals(), *__all__})
