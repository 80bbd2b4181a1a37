"""`SyncedStore`: a local store whose objects outlast a power failure, once `sync_folders` returned."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from zarr.abc.buffer import Buffer
from zarr.storage import LocalStore

from zarrfeed.base.durable_files import replace_whole, sync_all


class SyncedStore(LocalStore):
    """A local store that replaces each object in one step, after its content is on the disk.

    Invariant: after a power failure an object has the former content or the new one, whole. It has the new one if
    `sync_folders` returned since it was written.
    """

    def __init__(self, root: Path | str, *, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only)
        self._guard = threading.Lock()
        self._changed: set[Path] = set()

    async def set(self, key: str, value: Buffer) -> None:
        """Write an object."""
        await asyncio.to_thread(self.set_sync, key, value)

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write an object, in this thread."""
        if self.read_only:
            raise ValueError(f"{self}: is read-only")
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, memoryview(value.to_bytes()))
        depth = key.count("/") + 1
        with self._guard:  # all folders above it: another writer may have made them and not synced them yet
            self._changed.update(path.parents[:depth])

    def sync_folders(self) -> None:
        """Wait until the disk has the names of all objects that were written."""
        with self._guard:
            changed, self._changed = self._changed, set()
        try:
            sync_all((), changed)
        except BaseException:
            with self._guard:
                self._changed |= changed
            raise
