"""Checkpoints straight to and from an object store or a disk, whole or not there, checked when they are read.

Names are imported when they are first used, so that `writer`, `reader`, `retain` and `newest` need no torch.
"""

from typing import TYPE_CHECKING

from zarrfeed.base.errors import CorruptCheckpointError, StoreWriteError
from zarrfeed.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from zarrfeed.storage.checkpoint.checkpoint_file import reader, writer
    from zarrfeed.storage.checkpoint.checkpoint_reader import CheckpointReader
    from zarrfeed.storage.checkpoint.checkpoint_writer import CheckpointWriter
    from zarrfeed.storage.checkpoint.retention import Retained, newest, retain
    from zarrfeed.torch.checkpoint.storage_reader import ZarrfeedReader
    from zarrfeed.torch.checkpoint.storage_writer import ZarrfeedWriter
    from zarrfeed.torch.datasets.loader_state import LoaderState

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
    "CheckpointReader": "storage.checkpoint.checkpoint_reader",
    "CheckpointWriter": "storage.checkpoint.checkpoint_writer",
    "LoaderState": "torch.datasets.loader_state",
    "Retained": "storage.checkpoint.retention",
    "ZarrfeedReader": "torch.checkpoint.storage_reader",
    "ZarrfeedWriter": "torch.checkpoint.storage_writer",
    "newest": "storage.checkpoint.retention",
    "reader": "storage.checkpoint.checkpoint_file",
    "retain": "storage.checkpoint.retention",
    "writer": "storage.checkpoint.checkpoint_file",
}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
