"""The `StorageReader` for torch.distributed.checkpoint.

Invariants: all ranks load one save; every byte that a planner gets was verified; an object is the one that the manifest
names, by length and digest.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from zarrfeed.base.errors import CorruptCheckpointError, StoreReadError
from zarrfeed.spec.description.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S
from zarrfeed.storage.checkpoint.checkpoint_file import DEFAULT_BUDGET
from zarrfeed.storage.checkpoint.checkpoint_manifest import Manifest
from zarrfeed.storage.checkpoint.checkpoint_reader import CheckpointReader
from zarrfeed.storage.checkpoint.shard_folder import CheckpointStorage, Transfer, check_same


class ZarrfeedReader(CheckpointStorage, StorageReader):
    """Read checkpoints that `ZarrfeedWriter` wrote, with `torch.distributed.checkpoint`.

    Each rank reads the byte ranges of the items that it needs, so the number of ranks may differ from that of the save,
    and a state dict may have some of the keys only. `no_dist=True` loads in one process.

    Parameters
    ----------
    location
        The folder: a path, or a URL such as `s3://bucket/run/step-100`. `checkpoint_id=` of `dcp.load` replaces it.
    storage_options
        Options of the object store, as in `zarrfeed.open`.
    memory_budget
        Bytes that are read ahead, on each rank: `"256MiB"` or a number.
    concurrency
        Requests at once, on each rank. None: found out while reading.
    retries
        Number of times that a request is retried after a transient error.
    timeout
        Seconds that a request may take, retries included.

    Raises
    ------
    ConfigError, UnsupportedError
        If the location cannot hold a checkpoint, or for an option that the store does not have.

    Notes
    -----
    Objects of Python are pickled, as in `torch.save`: load only checkpoints that you trust.

    Examples
    --------
    >>> import tempfile, warnings
    >>> import torch, torch.distributed.checkpoint as dcp
    >>> from zarrfeed.checkpoint import ZarrfeedReader, ZarrfeedWriter
    >>> warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # this is one process
    >>> folder = tempfile.mkdtemp()
    >>> _ = dcp.save({"weight": torch.ones(3)}, storage_writer=ZarrfeedWriter(folder))
    >>> state = {"weight": torch.zeros(3)}
    >>> dcp.load(state, storage_reader=ZarrfeedReader(folder))
    >>> state["weight"]
    tensor([1., 1., 1.])
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        memory_budget: int | str = DEFAULT_BUDGET,
        concurrency: int | None = None,
        retries: int = DEFAULT_RETRIES,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        super().__init__(location, Transfer(storage_options, memory_budget, concurrency, retries, timeout))
        self._manifest: Manifest | None = None
        self._ranges: dict[MetadataIndex, Any] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load, of another folder if one is named."""
        if checkpoint_id:
            self._location = checkpoint_id
        self._manifest, self._ranges = None, {}

    def read_metadata(self) -> Metadata:
        """Return the metadata of the checkpoint.

        Raises
        ------
        StoreReadError
            If the folder has no checkpoint, or cannot be read.
        ConfigError
            If zarrfeed did not write the checkpoint.
        CorruptCheckpointError
            If `.metadata` is damaged.
        """
        folder = self._folder()
        found = folder.read_manifest()
        if found is None:
            raise StoreReadError(errno.ENOENT, f"{folder.location}: holds no checkpoint")
        pickled, self._manifest = found
        metadata: Metadata = pickle.loads(pickled)
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Take over where the items are."""
        self._ranges = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan with the name of the save that this rank found."""
        assert self._manifest is not None
        return replace(plan, storage_data=self._manifest.save_id)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans, if all ranks found the same save.

        Raises
        ------
        StoreReadError
            If a save ended while the ranks read the manifest.
        """
        if len({plan.storage_data for plan in plans}) != 1:
            raise StoreReadError(
                errno.ESTALE, f"{self._location}: a save replaced the checkpoint while ranks opened it; load it again"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the items of a rank, object by object, each stored item once."""
        assert self._manifest is not None
        folder = self._folder()
        objects = {one.name: one for one in self._manifest.objects}
        by_object: dict[str, dict[MetadataIndex, list[ReadItem]]] = {}
        for item in plan.items:
            stored_in = self._ranges[item.storage_index].relative_path
            by_object.setdefault(stored_in, {}).setdefault(item.storage_index, []).append(item)
        for name, items in by_object.items():
            if name not in objects:
                raise CorruptCheckpointError(f"{folder.location}: the manifest does not name the object {name!r}")
            with folder.read_object(name) as file:
                check_same(file, objects[name], f"{folder.location}/{name}")
                for index in sorted(items, key=lambda index: int(self._ranges[index].offset)):
                    stored = self._ranges[index]
                    _hand_over(_Range(file, stored.offset, stored.length), items[index], planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done


class _Range(io.BufferedIOBase):
    """A range of an object as a file of its own, so that torch reads straight into its memory."""

    def __init__(self, file: CheckpointReader, begin: int, length: int) -> None:
        self._file, self._begin, self._length = file, begin, length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._length - self._position)
        self._file.seek(self._begin + self._position)
        content = self._file.read(left if size is None or size < 0 else min(size, left))
        self._position += len(content)
        return content

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        self._file.seek(self._begin + self._position)
        read = self._file.readinto(view[: max(0, self._length - self._position)])
        self._position += read
        return read


def _hand_over(stored: _Range, items: list[ReadItem], planner: LoadPlanner) -> None:
    """Give a planner the part that it asked for of one stored item."""
    if items[0].type == LoadItemType.BYTE_IO:
        content = stored.read()
        for item in items:
            planner.load_bytes(item, io.BytesIO(content))
        return
    tensor = torch.load(cast(IO[bytes], stored), map_location="cpu", weights_only=True)
    for item in items:
        part = tensor
        for dim, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            part = part.narrow(dim, begin, length)
        target = planner.resolve_tensor(item).detach()
        if target.size() != part.size():
            raise CorruptCheckpointError(
                f"{item.storage_index}: the checkpoint has {tuple(part.size())}, the state dict {tuple(target.size())}"
            )
        target.copy_(part)
        planner.commit_tensor(item, target)
