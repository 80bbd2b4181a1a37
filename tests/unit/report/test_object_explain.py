"""What a dataset of objects says of itself."""

from __future__ import annotations

import zarrfeed.objects
from zarrfeed.objects import ObjectExplanation, ObjectIterableDataset


def explain(count: int, size: int, url: str = "https://127.0.0.1:1/data", **options: object) -> ObjectExplanation:
    objects = zarrfeed.objects.open(url, keys=((f"{i:06d}", size) for i in range(count)))
    return ObjectIterableDataset(objects, batch_size=32, **options).explain()  # type: ignore[arg-type]


def test_figures_and_page() -> None:
    found = explain(5000, 100_000, shuffle=True, decode="npy", num_threads=3, memory_budget="64MiB")
    assert (found.num_objects, found.num_delivered, found.batch_size) == (5000, 5000, 32)
    assert (found.stored_bytes, found.mean_bytes, found.largest_bytes) == (500_000_000, 100_000, 100_000)
    assert found.ahead_bytes == 64 << 20
    assert (found.shuffle, found.decode, found.num_threads) == (True, "npy", 3)
    assert (found.requested_by, found.most_requests) == ("threads", 256)
    page = str(found)
    for text in ("5000, 5000 delivered in batches of 32", "97.7 KiB each on average", "npy, 3 threads", "64.0 MiB"):
        assert text in page


def test_small_objects_of_a_far_store_had_better_be_packed() -> None:
    found = explain(5000, 100_000, decode="npy")
    assert "5000 objects would be 8 shards" in found.packing
    assert "zarrfeed.objects.to_zarr('https://127.0.0.1:1/data', 'packed.zarr', decode='npy')" in found.packing
    assert found.packing in str(found)


def test_others_had_not() -> None:
    assert explain(5000, 10_000_000).packing == ""
    assert explain(10, 1000).packing == ""
    assert explain(5000, -1).packing == ""
    assert "of unknown size" in str(explain(5000, -1))
