"""`DatafluxCheckpoint`, by the names of `dataflux_pytorch.dataflux_checkpoint`."""

from __future__ import annotations

from typing import Any

from zarrfeed import checkpoint
from zarrfeed.base.errors import ConfigError
from zarrfeed.checkpoint import CheckpointReader, CheckpointWriter
from zarrfeed.compat.dataflux.bucket import storage_options_of, url_of
from zarrfeed.storage.access.key_urls import url_of as url_of_key


class DatafluxCheckpoint:
    """Checkpoints straight to and from a bucket of Google.

    Parameters
    ----------
    project_name
        Not used: a bucket has its own name.
    bucket_name
        Name of the bucket.
    storage_client
        A `google.cloud.storage.Client`, whose address and credentials are taken, or `storage_options` of zarrfeed.
        None: those of the environment.

    Raises
    ------
    ConfigError
        If an argument cannot work.
    """

    def __init__(self, project_name: str | None, bucket_name: str, storage_client: Any = None) -> None:
        self.project_name = project_name
        self.bucket_name = bucket_name
        self.storage_client = storage_client
        self._url = url_of(bucket_name)
        self._options = storage_options_of(storage_client)

    def reader(self, object_name: str) -> CheckpointReader:
        """Return a binary file of a checkpoint, as `zarrfeed.checkpoint.reader` does.

        Objects that something else wrote are read, too, but cannot be checked.

        Raises
        ------
        StoreReadError
            If there is no such object, or it cannot be read.
        """
        return checkpoint.reader(self._location(object_name), storage_options=self._options, allow_plain=True)

    def writer(self, object_name: str) -> CheckpointWriter:
        """Return a binary file that becomes a checkpoint, as `zarrfeed.checkpoint.writer` does.

        Raises
        ------
        StoreWriteError
            From writing and closing: if it cannot be stored.
        """
        return checkpoint.writer(self._location(object_name), storage_options=self._options)

    def _location(self, object_name: str) -> str:
        if not isinstance(object_name, str) or not object_name.strip("/"):
            raise ConfigError(f"object_name = {object_name!r}, must be the name of an object in {self._url}")
        return url_of_key(self._url, object_name)
