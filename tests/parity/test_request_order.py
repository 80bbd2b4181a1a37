"""The order in which a store that Python reads is asked for chunks: that in which batches need them."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from zarr.abc.store import ByteRequest
from zarr.storage import MemoryStore, WrapperStore

import zarrfeed
from tests.support.examples import tries
from zarrfeed import ZarrIterableDataset

CHUNKS = 300


class LoggedStore(WrapperStore[MemoryStore]):
    """Notes the chunks that it is asked for."""

    asked: list[tuple[str, int]]

    async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Any:
        name, _, chunk = key.partition("/c/")
        if chunk:
            self.asked.append((name, int(chunk)))
        return await self._store.get(key, prototype, byte_range)


def logged(*names: str) -> LoggedStore:
    store = LoggedStore(MemoryStore())
    store.asked = []
    for name in names:
        array = zarr.create_array(store, name=name, shape=(2 * CHUNKS,), chunks=(2,), dtype="i4")
        array[:] = np.arange(2 * CHUNKS)
    store.asked.clear()
    return store


def test_chunks_are_requested_in_the_order_of_need_by_any_number_of_threads() -> None:
    for turn in range(tries(usual=4, large=30)):  # threads race: one turn may pass by chance
        store = logged("x", "y")
        data = zarrfeed.open({"x": zarr.open_array(store, path="x"), "y": zarr.open_array(store, path="y")})
        batches = list(ZarrIterableDataset(data, batch_size=4, num_threads=2 + turn % 3))
        assert [row for batch in batches for row in batch["x"].tolist()] == list(range(2 * CHUNKS))
        assert store.asked == [(name, chunk) for chunk in range(CHUNKS) for name in ("x", "y")]


def test_chunks_of_a_shuffled_epoch_are_requested_in_the_order_of_need() -> None:
    store = logged("x")
    dataset = ZarrIterableDataset(
        zarrfeed.open(zarr.open_array(store, path="x")), batch_size=4, shuffle=True, mixing={"lanes": 2}, seed=1
    )
    order = dataset.sample_order(0)
    list(dataset)
    first_needed = list(dict.fromkeys((np.asarray(order) // 2).tolist()))
    assert [chunk for _, chunk in store.asked] == first_needed
