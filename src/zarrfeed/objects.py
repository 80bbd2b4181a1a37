"""Datasets over buckets and folders of objects that are read as they are.

Names are imported when they are first used, so that listing needs no torch.
"""

from typing import TYPE_CHECKING

from zarrfeed.base.lazy_names import lazy_names

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

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
