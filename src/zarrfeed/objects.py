"""Datasets over buckets and folders of objects that are read as they are.

Names are imported when they are first used, so that listing needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zarrfeed.metadata.objects import Objects, open
    from zarrfeed.report.object_explain import ObjectExplanation
    from zarrfeed.storage.list_objects import list_objects
    from zarrfeed.storage.listing import Listing, StoredObject
    from zarrfeed.tools.objects_to_zarr import to_zarr
    from zarrfeed.torch.object_iterable_dataset import ObjectIterableDataset
    from zarrfeed.torch.object_map_dataset import ObjectDataset

__all__ = [
    "Listing",
    "ObjectDataset",
    "ObjectExplanation",
    "ObjectIterableDataset",
    "Objects",
    "StoredObject",
    "list_objects",
    "open",
    "to_zarr",
]

#: Public name -> the module that defines it.
_MODULES = {
    "Listing": "storage.listing",
    "ObjectDataset": "torch.object_map_dataset",
    "ObjectExplanation": "report.object_explain",
    "ObjectIterableDataset": "torch.object_iterable_dataset",
    "Objects": "metadata.objects",
    "open": "metadata.objects",
    "to_zarr": "tools.objects_to_zarr",
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
