"""The hit ratio of the node cache that `explain()` expects is the one that `stats()` then measures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.counting_server import CountingServer
from zarrfeed import ZarrIterableDataset

pytest.importorskip("obstore")

#: Bytes that a chunk counts: it has 1 KiB, and a header.
COUNTED = 4096
LIMITS: tuple[Any, ...] = (
    pytest.param(0.25, marks=pytest.mark.slow),
    0.5,
    pytest.param(0.9, marks=pytest.mark.slow),
    2.0,
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[CountingServer]:
    """Serve an empty directory."""
    (tmp_path / "site").mkdir()
    with CountingServer(tmp_path / "site") as server:
        yield server


def write(server: CountingServer, name: str, chunks: int, *, shard: int = 0, width: int = 256) -> str:
    """Write an array of so many chunks with a row each, in shards of `shard` chunks; return its URL."""
    root = server.directory / name
    array = zarr.create_array(
        root,
        shape=(chunks, width),
        chunks=(1, width),
        shards=(shard, width) if shard else None,
        dtype="i4",
        compressors=None,
    )
    array[:] = np.arange(1, chunks + 1)[:, None]
    for path in root.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return f"{server.url}/{name}"


def dataset_of(data: Any) -> ZarrIterableDataset:
    return ZarrIterableDataset(data, batch_size=16, shuffle=True, seed=3, num_threads=2)


def measure(dataset: ZarrIterableDataset, samples: int) -> float:
    """Read an epoch; return its hit ratio."""
    before = dataset.stats().cache
    assert sum(len(batch[0] if isinstance(batch, tuple) else batch) for batch in dataset) == samples
    return (dataset.stats().cache - before).hit_ratio


def expected(dataset: ZarrIterableDataset) -> float:
    cache = dataset.explain().cache
    assert cache is not None
    assert cache.expected_hit_ratio is not None, cache.why_unknown
    return cache.expected_hit_ratio


def check(dataset: ZarrIterableDataset, samples: int, tolerance: float = 0.01, *, first_off: float = 0.0) -> float:
    """Compare what is expected before, and after each epoch, with what epochs 2 and 3 measure; return the last one.

    `first_off` is how much less exact the expectation before the first epoch may be.
    """
    first = expected(dataset)
    measure(dataset, samples)
    for _ in range(2):
        then = expected(dataset)
        measured = measure(dataset, samples)
        assert first == pytest.approx(measured, abs=tolerance + first_off)
        assert then == pytest.approx(measured, abs=tolerance)
    return measured


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("shard", [0, 16])
def test_it_is_what_later_epochs_measure(site: CountingServer, tmp_path: Path, shard: int, limit: float) -> None:
    url = write(site, "a.zarr", 160, shard=shard)
    entries = 160 + (160 // shard if shard else 0)
    data = zarrfeed.open(url, cache=tmp_path / "cache", cache_limit=int(limit * entries * COUNTED))
    assert check(dataset_of(data), 160) == pytest.approx(min(1, limit), abs=0.01)


@pytest.mark.parametrize("limit", LIMITS)
def test_of_few_chunks_it_is_right_to_one_chunk(site: CountingServer, tmp_path: Path, limit: float) -> None:
    url = write(site, "a.zarr", 19)
    data = zarrfeed.open(url, cache=tmp_path / "cache", cache_limit=int(limit * 19 * COUNTED))
    check(dataset_of(data), 19, 1 / 19)


@pytest.mark.parametrize("limit", LIMITS)
def test_another_array_that_fills_a_part_leaves_the_rest(site: CountingServer, tmp_path: Path, limit: float) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_limit": int(limit * 150 * COUNTED)}
    measure(dataset_of(zarrfeed.open(write(site, "other.zarr", 30), **options)), 30)
    ratio = check(dataset_of(zarrfeed.open(write(site, "a.zarr", 150), **options)), 150)
    assert ratio == pytest.approx(min(1, limit - 0.2), abs=0.01)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(("width", "blocks"), [(256, 1), (1100, 2)])
def test_fields_of_one_dataset_share_the_room(
    site: CountingServer, tmp_path: Path, limit: float, width: int, blocks: int
) -> None:
    samples, targets = write(site, "a.zarr", 120), write(site, "b.zarr", 120, width=width)
    room = int(limit * 120 * (1 + blocks) * COUNTED)
    data = zarrfeed.open(samples, targets, cache=tmp_path / "cache", cache_limit=room)
    dataset = dataset_of(data)
    assert not any(field.choice == "kept in memory" for field in dataset.explain().fields)
    # Before the first epoch, nobody knows whether small or large entries will be there first.
    check(dataset, 120, first_off=0.0 if blocks == 1 else 0.15)


def test_a_field_in_memory_takes_its_room_first_and_is_no_read_of_an_epoch(
    site: CountingServer, tmp_path: Path
) -> None:
    samples = write(site, "a.zarr", 160)
    targets = zarr.create_array(site.directory / "b.zarr", shape=(160,), chunks=(16,), dtype="i8")
    targets[:] = np.arange(1, 161)
    for path in (site.directory / "b.zarr").rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_limit": 80 * COUNTED}
    dataset = dataset_of(zarrfeed.open(samples, f"{site.url}/b.zarr", **options))
    assert [field.choice for field in dataset.explain().fields][1] == "kept in memory"
    assert check(dataset, 160) == 70 / 160


@pytest.mark.parametrize("shard", [0, 16])
def test_a_selection_reads_and_caches_its_share(site: CountingServer, tmp_path: Path, shard: int) -> None:
    data = zarrfeed.open(
        write(site, "a.zarr", 320, shard=shard), cache=tmp_path / "cache", cache_limit=80 * COUNTED
    ).select(slice(100, 260))
    dataset = dataset_of(data)
    check(dataset, 160)
    cache = dataset.explain().cache
    assert cache is not None
    assert cache.wanted_entries == 160 + (11 if shard else 0)
    assert "of the reads will hit, from the second epoch on" in str(dataset.explain())


@pytest.mark.parametrize("limit", [0.5, 2.0])
def test_ranks_of_a_machine_hit_together_what_each_expects(site: CountingServer, tmp_path: Path, limit: float) -> None:
    data = zarrfeed.open(write(site, "a.zarr", 160), cache=tmp_path / "cache", cache_limit=int(limit * 160 * COUNTED))
    ranks = [
        ZarrIterableDataset(data, batch_size=16, shuffle=True, seed=3, num_threads=1, rank=rank, world_size=2)
        for rank in range(2)
    ]
    first = [expected(dataset) for dataset in ranks]
    for dataset in ranks:
        measure(dataset, 80)
    for _ in range(2):
        then = [expected(dataset) for dataset in ranks]
        measured = np.mean([measure(dataset, 80) for dataset in ranks])
        assert first == pytest.approx([measured] * 2, abs=0.01)
        assert then == pytest.approx([measured] * 2, abs=0.01)


@pytest.mark.parametrize("limit", [0.25, 2.0])
def test_with_affinity_a_node_expects_the_hits_of_its_own_part(
    site: CountingServer, tmp_path: Path, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    url = write(site, "a.zarr", 320)
    for rank in range(2):
        data = zarrfeed.open(url, cache=tmp_path / f"node {rank}", cache_limit=int(limit * 320 * COUNTED))
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "affinity": "node"}
        dataset = ZarrIterableDataset(data, batch_size=16, shuffle=True, seed=3, num_threads=1, **options)
        assert check(dataset, 160) == pytest.approx(min(1, 2 * limit), abs=0.01)


def test_what_a_split_cached_is_no_hit_of_the_other(site: CountingServer, tmp_path: Path) -> None:
    data = zarrfeed.open(write(site, "a.zarr", 160), cache=tmp_path / "cache", cache_limit=80 * COUNTED)
    train, val = data.split((0.75, 0.25), seed=1)
    dataset, other = dataset_of(train), dataset_of(val)
    measure(other, 40)
    assert expected(other) == 1
    check(dataset, 120)


def test_chunks_that_were_never_written_are_no_reads_of_the_cache(site: CountingServer, tmp_path: Path) -> None:
    url = write(site, "a.zarr", 120)
    array = zarr.open_array(site.directory / "a.zarr", mode="r+")
    array.resize((240, 256))
    data = zarrfeed.open(url, cache=tmp_path / "cache", cache_limit=60 * COUNTED)
    assert check(dataset_of(data), 240) == pytest.approx(0.5, abs=0.01)


def test_without_sizes_it_is_not_known_until_there_are_entries(site: CountingServer, tmp_path: Path) -> None:
    url = write(site, "a.zarr", 200)
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_limit": 100 * COUNTED, "cache_version": "1"}
    dataset = dataset_of(zarrfeed.open(url, **options))
    cache = dataset.explain().cache
    assert cache is not None
    assert (cache.expected_hit_ratio, cache.wanted_bytes) == (None, None)
    assert "hit ratio not known: neither the store nor an entry tells how large chunks are" in str(dataset.explain())
    measure(dataset, 200)
    for _ in range(2):
        assert expected(dataset) == pytest.approx(measure(dataset, 200), abs=0.01)


def test_entries_of_an_older_version_are_replaced_and_no_burden(site: CountingServer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_limit": 150 * COUNTED}
    url = write(site, "a.zarr", 150)
    measure(dataset_of(zarrfeed.open(url, **options)), 150)
    for path in (site.directory / "a.zarr" / "c").rglob("*"):
        os.utime(path, (1_000_000_900, 1_000_000_900))
    assert check(dataset_of(zarrfeed.open(url, **options)), 150) == 1


def test_a_cache_that_cannot_be_written_hits_what_is_there(site: CountingServer) -> None:
    data = zarrfeed.open(write(site, "a.zarr", 20), cache="/proc/no/such/cache", cache_limit="1GiB")
    cache = dataset_of(data).explain().cache
    assert cache is not None
    assert (cache.expected_hit_ratio, cache.room) == (0.0, 0)
    assert "cannot be made" in cache.troubles[0]


def test_of_a_large_cache_a_sample_of_the_entries_is_looked_at(site: CountingServer, tmp_path: Path) -> None:
    data = zarrfeed.open(write(site, "a.zarr", 120), cache=tmp_path / "cache", cache_limit="1GiB")
    dataset = dataset_of(data)
    measure(dataset, 120)
    (field,) = dataset._session.schedule.fields.fields
    called = field.layouts[0].spec.source.cached.to_core()  # type: ignore[union-attr]
    everything, share = called.entries(1000)
    assert sorted(key for key, *_ in everything) == sorted(f"c/{i}/0" for i in range(120))
    assert {one[1:] for one in everything} == {(0, None, True, COUNTED)}
    assert share == 1
    some, share = called.entries(30)
    assert 30 <= len(some) < 120
    assert 30 / 256 <= share < 1
    assert set(some) < set(everything)


def test_without_a_cache_there_is_no_row(site: CountingServer) -> None:
    explanation = dataset_of(zarrfeed.open(write(site, "a.zarr", 20))).explain()
    assert explanation.cache is None
    assert "node cache" not in str(explanation)
