"""Datasets over buckets and folders of objects that are read as they are.

Names are imported when they are first used, so that listing needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zarrfeed.metadata.group.objects import Objects, open
    from zarrfeed.report.object_explain import ObjectExplanation
    from zarrfeed.storage.objects.list_objects import list_objects
    from zarrfeed.storage.objects.listing import Listing, StoredObject
    from zarrfeed.tools.objects_to_zarr import to_zarr
    from zarrfeed.torch.datasets.object_iterable_dataset import ObjectIterableDataset
    from zarrfeed.torch.datasets.object_map_dataset import ObjectDataset

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
    "Listing": "storage.objects.listing",
    "ObjectDataset": "torch.datasets.object_map_dataset",
    "ObjectExplanation": "report.object_explain",
    "ObjectIterableDataset": "torch.datasets.object_iterable_dataset",
    "Objects": "metadata.group.objects",
    "open": "metadata.group.objects",
    "to_zarr": "tools.objects_to_zarr",
    "StoredObject": "storage.objects.listing",
    "list_objects": "storage.objects.list_objects",
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
