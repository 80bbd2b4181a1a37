"""The `StorageWriter` for torch.distributed.checkpoint: each rank writes one object, the coordinator the manifest.

Invariants, whatever fails and whenever a rank is killed:

- An object has a name that no other save uses. So a save overwrites nothing that a visible checkpoint names.
- The coordinator writes the manifest when every item of the state dict is in an object, and every object is stored
  whole. The manifest replaces the previous one atomically. So at any time the folder is the previous checkpoint or the
  new one, and that checkpoint is whole.
- The coordinator removes objects of the previous checkpoint after that, and only those that its manifest names.

An item that a rank could not write is an error of `dcp.save` on every rank.
"""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import IO, Any, cast

import torch
from torch import distributed
from torch.distributed.checkpoint.filesystem import _StorageInfo  # torch's own readers unpickle it
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from zarrfeed.base.errors import CorruptCheckpointError, StoreWriteError, UnsupportedError
from zarrfeed.base.redaction import without_secrets
from zarrfeed.base.validate import check_flags
from zarrfeed.spec.description.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S
from zarrfeed.storage.checkpoint.checkpoint_file import DEFAULT_BUDGET
from zarrfeed.storage.checkpoint.checkpoint_manifest import Manifest, ShardObject, new_object_name, new_save_id, step_of
from zarrfeed.storage.checkpoint.shard_folder import CheckpointStorage, ShardFolder, Transfer


@dataclass(frozen=True)
class _Written:
    """The object and the offset at which a rank wrote an item; the coordinator collects them."""

    object: ShardObject
    offset: int
    length: int


class ZarrfeedWriter(CheckpointStorage, StorageWriter):
    """Write checkpoints of `torch.distributed.checkpoint` to a folder or to an object store.

    All ranks write at the same time, each one object. A folder that holds a checkpoint holds the previous one until the
    new one is complete; then the objects of the previous one are removed.

    Parameters
    ----------
    location
        A folder: a path, or a URL such as `s3://bucket/run/step-100`. `checkpoint_id=` of `dcp.save` replaces it.
    storage_options
        Options of the object store, as in `zarrfeed.open`.
    read_back
        If True, each rank reads what it wrote, and compares every byte, before the manifest is written. If False, it
        compares the length and the checksums at the end of each object. A byte that changed on its way to the store is
        then found when the checkpoint is loaded: too late for the previous one.
    memory_budget
        Bytes that wait to be written, on each rank: `"256MiB"` or a number.
    concurrency
        Requests at once, on each rank. None: found out while writing.
    retries
        Number of times that a request is retried after a transient error.
    timeout
        Seconds that a request may take, retries included.

    Raises
    ------
    ConfigError, UnsupportedError
        If the location cannot hold a checkpoint, or for an option that the store does not have.

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
        read_back: bool = False,
        memory_budget: int | str = DEFAULT_BUDGET,
        concurrency: int | None = None,
        retries: int = DEFAULT_RETRIES,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        check_flags(read_back=read_back)
        self._read_back = read_back
        super().__init__(location, Transfer(storage_options, memory_budget, concurrency, retries, timeout))
        self._save_id = new_save_id()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another save, in another folder if one is named."""
        if checkpoint_id:
            self._location = checkpoint_id
        self._save_id = new_save_id()

    def storage_meta(self) -> StorageMeta:
        """Return the folder and the name of the save."""
        return StorageMeta(checkpoint_id=self._location, save_id=self._save_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Refuse a folder whose checkpoint is not ours.

        Raises
        ------
        ConfigError
            If zarrfeed did not write the checkpoint that the folder holds.
        UnsupportedError
            If ranks are to save without talking to each other: nothing would make their objects one checkpoint.
        """
        if not kwargs.get("use_collectives", True):
            raise UnsupportedError("use_collectives=False: a checkpoint needs a coordinator, which writes its manifest")
        if is_coordinator:
            self._save_id = new_save_id()
            self._folder().read_manifest()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans. Names of objects are no part of them: a planner may use a plan for several saves."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write all items of a rank to one object."""
        done: Future[list[WriteResult]] = Future()
        done.set_result(self._write_items(plan.items, planner) if plan.items else [])
        return done

    def _write_items(self, items: Iterable[WriteItem], planner: SavePlanner) -> list[WriteResult]:
        name = new_object_name(_rank())
        ranges: list[tuple[MetadataIndex, int, int]] = []
        folder = self._folder()
        with folder.write_object(name) as file:
            for item in items:
                begin = file.tell()
                data = planner.resolve_data(item)
                if item.type == WriteItemType.BYTE_IO:
                    assert isinstance(data, io.BytesIO)
                    file.write(data.getbuffer())
                else:
                    assert isinstance(data, torch.Tensor)
                    torch.save(_without_rest_of_storage(data.detach().cpu()), cast(IO[bytes], file))
                ranges.append((item.index, begin, file.tell() - begin))
        one = ShardObject(name, file.tell(), file.digest)
        if self._read_back:
            folder.check_objects([one], every_byte=True)
        return [WriteResult(index, length, _Written(one, begin, length)) for index, begin, length in ranges]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Check what the ranks wrote, write the manifest, and remove the objects of the previous checkpoint.

        Raises
        ------
        CorruptCheckpointError
            If an item was not written, or an object is not stored as it was written. The previous checkpoint stays.
        StoreReadError, StoreWriteError
            If the store fails. The previous checkpoint stays, or the new one is there.
        """
        folder = self._folder()
        written = {result.index: result.storage_data for of_rank in results for result in of_rank}
        _check_complete(metadata, written, folder.location)
        objects = {stored.object.name: stored.object for stored in written.values()}
        folder.check_objects(objects.values())
        complete = replace(
            metadata,
            storage_data={
                index: _StorageInfo(stored.object.name, stored.offset, stored.length)
                for index, stored in written.items()
            },
            storage_meta=self.storage_meta(),
        )
        previous = folder.read_manifest()
        manifest = Manifest(self._save_id, tuple(objects.values()), step_of(folder.name))
        folder.replace_manifest(pickle.dumps(complete), manifest, previous)
        if previous is not None:
            _remove_objects(folder, previous[1])


def _rank() -> int:
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _without_rest_of_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that owns no more than it shows: torch.save writes the whole storage of a view."""
    return tensor.clone() if tensor.untyped_storage().nbytes() != tensor.nbytes else tensor


def _check_complete(metadata: Metadata, written: Mapping[MetadataIndex, object], name: str) -> None:
    """Check that every item of the state dict was written, each chunk of each tensor."""
    for key, described in metadata.state_dict_metadata.items():
        if isinstance(described, TensorStorageMetadata):
            needed = [MetadataIndex(key, chunk.offsets) for chunk in described.chunks]
        else:
            needed = [MetadataIndex(key)]
        missing = [index for index in needed if index not in written]
        if missing:
            raise CorruptCheckpointError(f"{name}: no rank wrote {missing[0]}; the checkpoint is not made")


def _remove_objects(folder: ShardFolder, previous: Manifest) -> None:
    """Remove the objects of a checkpoint that was replaced; the new one is whole, so a failure is a warning."""
    try:
        folder.remove_objects(one.name for one in previous.objects)
    except StoreWriteError as error:
        text = f"{folder.location}: objects of the previous checkpoint remain: {error}"
        warnings.warn(without_secrets(text), stacklevel=2)
