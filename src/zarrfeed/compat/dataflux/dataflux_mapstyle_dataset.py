"""`DataFluxMapStyleDataset` and its `Config`, by the names of `dataflux_pytorch.dataflux_mapstyle_dataset`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils import data

from zarrfeed.base.validate import check_int
from zarrfeed.compat.dataflux.bucket import (
    DEFAULT_COMPOSITE_BYTES,
    BucketConfig,
    BucketDataset,
)
from zarrfeed.objects import ObjectDataset


def data_format_default(data: bytes) -> bytes:
    """Return the bytes of an object as they are."""
    return data


class Config(BucketConfig):
    """The settings of a `DataFluxMapStyleDataset`.

    Parameters
    ----------
    sort_listing_results
        Not used: objects are always sorted by name.
    max_composite_object_size, disable_compose
        No effect: objects are never composed.
    num_processes
        1 lists the bucket by one request after the other; any other number by 16 at once, or by more if it is more.
    prefix
        Text that the names of the objects begin with. None: all objects.
    max_listing_retries
        Number of times that a request of the listing is retried; five times at least.
    threads_per_process
        No effect: as many requests are made at once as pay.
    list_retry_config, download_retry_config
        `google.api_core.retry.Retry`, of which the timeout is taken; None for 300 s.
    """

    def __init__(
        self,
        sort_listing_results: bool = False,
        max_composite_object_size: int = DEFAULT_COMPOSITE_BYTES,
        num_processes: int | None = os.cpu_count(),
        prefix: str | None = None,
        max_listing_retries: int = 3,
        threads_per_process: int = 1,
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
        check_int("threads_per_process", threads_per_process, 1)
        self.threads_per_process = threads_per_process


class DataFluxMapStyleDataset(BucketDataset, data.Dataset[Any]):
    """The objects of a bucket of Google by index.

    Parameters
    ----------
    project_name
        Not used: a bucket has its own name.
    bucket_name
        Name of the bucket.
    config
        A `Config`; None: `Config()`.
    data_format_fn
        A function that makes a sample of the bytes of an object. The thread that asks for the object calls it.
    storage_client
        A `google.cloud.storage.Client`, whose address and credentials are taken, or `storage_options` of zarrfeed.
        None: those of the environment.

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
        self._dataset = ObjectDataset(found, decode="bytes", faults=faults)

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._dataset)

    def __getitem__(self, idx: int) -> Any:
        """Return an object.

        Raises
        ------
        IndexError
            If there are not so many.
        """
        return self.data_format_fn(self._dataset[idx])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the objects of a batch, which are read side by side."""
        return [self.data_format_fn(one) for one in self._dataset[list(indices)]]
