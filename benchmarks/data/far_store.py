"""A store that is far away: each request takes some time before it is served. And a long array in a small one."""

from __future__ import annotations

import asyncio
import json
from typing import Self

from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.buffer import cpu
from zarr.storage import WrapperStore

#: What the array is called in its group, and in all keys.
SAMPLES = "samples"


class FarStore(WrapperStore[Store]):
    """A store with one array, `samples`, whose requests are slow, and which is repeated along its first axis.

    Chunk (or shard) `i` is the stored one at `i mod objects`, so that an epoch can be long and take little
    memory. zarrfeed reads no wrapped store natively, whatever it wraps: all requests go through the event loop.

    Parameters
    ----------
    store
        Where `samples` is, in the default keys of Zarr v3.
    objects
        The chunks (or shards) that are stored, the last one a full one, all along the first axis.
    latency_s
        Seconds that pass before each request is served; None: it is served at once.
    times
        How often the array is repeated.
    """

    def __init__(self, store: Store, *, objects: int, latency_s: float | None, times: int) -> None:
        super().__init__(store)
        self._latency_s = latency_s
        self._times = times
        self._objects = objects

    def _with_store(self, store: Store) -> Self:
        return type(self)(store, objects=self._objects, latency_s=self._latency_s, times=self._times)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        await self._arrive()
        if not key.startswith(f"{SAMPLES}/c/"):
            data = await self._store.get(key, prototype, byte_range)
            return self._lengthened(data) if data is not None and key == f"{SAMPLES}/zarr.json" else data
        array, c, number, rest = key.split("/", 3)
        return await self._store.get(f"{array}/{c}/{int(number) % self._objects}/{rest}", prototype, byte_range)

    async def exists(self, key: str) -> bool:
        await self._arrive()
        return await self._store.exists(key)

    async def _arrive(self) -> None:
        if self._latency_s is not None:
            await asyncio.sleep(self._latency_s)

    def _lengthened(self, stored: Buffer) -> Buffer:
        metadata = json.loads(stored.to_bytes())
        metadata["shape"][0] *= self._times
        return cpu.Buffer.from_bytes(json.dumps(metadata).encode())
