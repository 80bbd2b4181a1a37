"""`DataFluxIterableDataset` and its `Config`, by the names of `dataflux_pytorch.dataflux_iterable_dataset`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import data

from zarrfeed.compat.dataflux.bucket import (
    DEFAULT_COMPOSITE_BYTES,
    BucketConfig,
    BucketDataset,
)
from zarrfeed.compat.dataflux.dataflux_mapstyle_dataset import data_format_default
from zarrfeed.objects import ObjectIterableDataset


class Config(BucketConfig):
    """The settings of a `DataFluxIterableDataset`: those of the other dataset, but for `threads_per_process`."""

    def __init__(
        self,
        sort_listing_results: bool = False,
        max_composite_object_size: int = DEFAULT_COMPOSITE_BYTES,
        num_processes: int | None = os.cpu_count(),
        prefix: str | None = None,
        max_listing_retries: int = 3,
        disable_compose: bool = False,
        list_retry_config: Any = None,
        download_retry_config: Any = None,
    ) -> None:
        super().__init__(
            sort_listing_results,
            max_composite_object_size,
            num_processes,
            prefix,
            max_listing_retries,
            disable_compose,
            list_retry_config,
            download_retry_config,
        )


class DataFluxIterableDataset(BucketDataset, data.IterableDataset[Any]):
    """The objects of a bucket of Google, one after the other, in the order of their names.

    With several ranks each yields all objects, as in the original. Workers of a DataLoader share them.

    Parameters
    ----------
    project_name, bucket_name, config, data_format_fn, storage_client
        Arguments of `DataFluxMapStyleDataset`, with the same meaning; `config` may be its `Config`, too.

    Attributes
    ----------
    objects
        A sequence of (name, size in bytes), sorted by name.

    Raises
    ------
    ConfigError, StoreReadError
        At construction: if an argument cannot work, or the bucket cannot be listed or has no such object.
    """

    def __init__(
        self,
        project_name: str | None,
        bucket_name: str,
        config: BucketConfig | None = None,
        data_format_fn: Callable[[bytes], Any] = data_format_default,
        storage_client: Any = None,
    ) -> None:
        super().__init__()
        config = Config() if config is None else config
        found, faults = self._open(project_name, bucket_name, config, data_format_fn, storage_client)
        self._dataset = ObjectIterableDataset(found, decode="bytes", rank=0, world_size=1, faults=faults)

    def __iter__(self) -> Iterator[Any]:
        """Yield all objects; in a worker of a DataLoader, those of its share."""
        for one in self._dataset:
            yield self.data_format_fn(one)
