"""Datasets over buckets and folders of objects that are read as they are.

Names are imported when they are first used, so that listing needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zarrfeed.storage.list_objects import list_objects
    from zarrfeed.storage.listing import Listing, StoredObject

__all__ = ["Listing", "StoredObject", "list_objects"]

#: Public name -> the module that defines it.
_MODULES = {
    "Listing": "storage.listing",
    "StoredObject": "storage.listing",
    "list_objects": "storage.list_objects",
}

if not TYPE_CHECKING:

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
