"""Lightning's `CheckpointIO` over `zarrfeed.checkpoint`: whole or absent, verified, straight to object stores.

    trainer = lightning.Trainer(plugins=[ZarrfeedCheckpointIO()], callbacks=[ModelCheckpoint("s3://bucket/run")])

Lightning asks fsspec whether paths exist, so fsspec needs a file system for the scheme: `pip install s3fs`, or
`obstore.fsspec.register("s3")`. The bytes of checkpoints do not go through fsspec.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import IO, Any, TypeAlias, cast

import torch

from zarrfeed.base.validate import check_flags
from zarrfeed.spec.description.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S
from zarrfeed.storage.checkpoint.checkpoint_file import DEFAULT_BUDGET
from zarrfeed.storage.checkpoint.checkpoint_folder import folder_and_name
from zarrfeed.storage.checkpoint.shard_folder import Transfer

try:
    from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
except ModuleNotFoundError:  # the package pytorch-lightning has its own
    from lightning_fabric.plugins.io.checkpoint_io import CheckpointIO  # type: ignore[assignment]

MapLocation: TypeAlias = "torch.device | str | Callable[..., Any] | dict[str, str] | None"


class ZarrfeedCheckpointIO(CheckpointIO):
    """Save and load Lightning's checkpoints with `zarrfeed.checkpoint.writer` and `reader`.

    A checkpoint appears whole or not at all, replaces an older one of its name atomically, and is verified when it is
    loaded. `ModelCheckpoint(save_top_k=...)` removes checkpoints through this class, too.

    Parameters
    ----------
    storage_options
        Options of the object store, as in `zarrfeed.open`. Local paths take none.
    allow_plain
        If True, also load a checkpoint without checksums, unchecked, such as one that was saved without this plugin.
    memory_budget
        Bytes that wait to be written, or are read ahead: `"256MiB"` or a number.
    concurrency
        Requests at once. None: found out.
    retries
        Number of times that a request is retried after a transient error.
    timeout
        Seconds that a request may take, retries included.

    Raises
    ------
    ConfigError
        For an argument that cannot work.

    Examples
    --------
    >>> import lightning
    >>> from zarrfeed.compat.lightning import ZarrfeedCheckpointIO
    >>> trainer = lightning.Trainer(plugins=[ZarrfeedCheckpointIO()], accelerator="cpu", logger=False)
    """

    def __init__(
        self,
        *,
        storage_options: Mapping[str, Any] | None = None,
        allow_plain: bool = False,
        memory_budget: int | str = DEFAULT_BUDGET,
        concurrency: int | None = None,
        retries: int = DEFAULT_RETRIES,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        check_flags(allow_plain=allow_plain)
        self._transfer = Transfer(storage_options, memory_budget, concurrency, retries, timeout)
        self._allow_plain = allow_plain

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint.

        Parameters
        ----------
        checkpoint
            The checkpoint, which `torch.save` writes.
        path
            A path or a URL.
        storage_options
            The option of `Trainer.save_checkpoint`: a dict takes the place of the plugin's own options.

        Raises
        ------
        StoreWriteError
            If the checkpoint cannot be written; an older checkpoint of that name stays.
        """
        with self._transfer_of(storage_options).write(os.fspath(path)) as file:
            torch.save(checkpoint, cast(IO[bytes], file))

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: MapLocation = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return a checkpoint.

        Parameters
        ----------
        path
            A path or a URL.
        map_location, weights_only
            Arguments of `torch.load`.

        Raises
        ------
        StoreReadError
            If there is no checkpoint, or it cannot be read.
        CorruptCheckpointError
            If its bytes are not those that were written, or zarrfeed did not write it.
        """
        with self._transfer.read(os.fspath(path), allow_plain=self._allow_plain) as file:
            loaded: dict[str, Any] = torch.load(
                cast(IO[bytes], file), map_location=map_location, weights_only=weights_only
            )
        return loaded

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove the checkpoint file at a path or URL; one that is not there is no error."""
        folder, name = folder_and_name(os.fspath(path))
        self._transfer.folder(folder).remove([name])

    def _transfer_of(self, storage_options: Any) -> Transfer:
        if storage_options is None:
            return self._transfer
        return replace(self._transfer, storage_options=storage_options)
