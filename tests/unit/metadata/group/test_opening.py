"""Icechunk repositories: an epoch reads a snapshot, and a resumed one the same snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ConfigError, StoreReadError, ZarrDataLoader, ZarrIterableDataset

icechunk = pytest.importorskip("icechunk")


def create(path: Path, samples: int) -> Any:
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="x", shape=(samples,), chunks=(8,), dtype="i8")[:] = np.arange(samples)
    session.commit("begin")
    return repository


def grow(repository: Any, samples: int, *, offset: int = 0) -> None:
    """Append samples, and write all again with an offset, so that snapshots tell themselves apart."""
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="x", mode="r+")
    array.resize((samples,))
    array[:] = np.arange(samples) + offset
    session.commit("more")


def make(source: Any, **options: Any) -> ZarrIterableDataset:
    return ZarrIterableDataset(
        zarrfeed.open(source, refresh="epoch"), **({"batch_size": 4, "shuffle": True, "num_threads": 1} | options)
    )


def values(batches: Any) -> list[int]:
    return [int(one) for batch in batches for one in batch["x"]]


def test_an_epoch_reads_a_snapshot_and_goes_on_with_it_when_it_is_resumed(tmp_path: Path) -> None:
    repository = create(tmp_path / "a", 32)
    dataset = make(repository)
    assert sorted(values(dataset)) == list(range(32))
    grow(repository, 45)  # the last chunk is not full
    running = iter(dataset)
    before = values([next(running)])
    state = json.loads(json.dumps(dataset.state_dict()))
    assert state["store"]["snapshots"] == [repository.lookup_branch("main")]
    grow(repository, 64, offset=1000)
    assert sorted(before + values(running)) == list(range(45))
    again = make(repository)
    again.load_state_dict(state)
    assert sorted(before + values(again)) == list(range(45)), "of the snapshot, not of what was written since"
    assert sorted(values(again)) == list(range(1000, 1064))


def test_workers_read_the_snapshot_of_their_epoch(tmp_path: Path) -> None:
    repository = create(tmp_path / "a", 64)
    loader = ZarrDataLoader(make(repository), num_workers=2, multiprocessing_context="forkserver")
    running = iter(loader)
    got = values([next(running)])
    grow(repository, 96, offset=1000)
    assert sorted(got + values(running)) == list(range(64))
    assert sorted(values(loader)) == list(range(1000, 1096))


def test_chunks_of_the_fill_value_are_no_error_in_a_snapshot(tmp_path: Path) -> None:
    repository = create(tmp_path / "a", 16)
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="x", mode="r+").resize((32,))
    session.commit("longer")
    assert sorted(values(make(repository))) == [0] * 16 + list(range(16))


def test_a_repository_is_opened_without_refresh_too(tmp_path: Path) -> None:
    repository = create(tmp_path / "a", 16)
    data = zarrfeed.open(repository)
    grow(repository, 32)
    assert len(list(ZarrIterableDataset(data))) == 16


def test_what_is_no_repository_or_another_is_refused(tmp_path: Path) -> None:
    repository = create(tmp_path / "a", 16)
    with pytest.raises(ConfigError, match=r"is one snapshot; give the icechunk\.Repository itself"):
        zarrfeed.open(repository.readonly_session("main").store, refresh="epoch")
    dataset = make(repository)
    next(iter(dataset))
    state = dataset.state_dict()
    with pytest.raises(ConfigError, match="names snapshots"):
        dataset.load_state_dict({**state, "store": {"samples": 16, "first": 0}})
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="x", mode="r+").resize((8,))
    session.commit("shorter")
    with pytest.raises(StoreReadError, match="had 16 samples"):
        next(iter(dataset))


@pytest.mark.parametrize("resumed_anew", [False, True])
def test_a_cache_serves_each_snapshot_its_own_bytes(tmp_path: Path, resumed_anew: bool) -> None:
    """Of each snapshot, what zarr-python reads of it: new bytes after a commit, the old ones when it is resumed."""
    repository = create(tmp_path / "a", 32)
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_limit": "1GiB"}

    def make_cached() -> ZarrIterableDataset:
        data = zarrfeed.open(repository, refresh="epoch", **options)
        return ZarrIterableDataset(data, batch_size=4, shuffle=True, num_threads=1)

    def stored(snapshot: str) -> list[int]:
        store = repository.readonly_session(snapshot_id=snapshot).store
        return sorted(int(one) for one in np.asarray(zarr.open_array(store, path="x", mode="r")[:]))

    dataset = make_cached()
    first = repository.lookup_branch("main")
    assert sorted(values(dataset)) == stored(first) == list(range(32))
    assert sorted(values(dataset)) == stored(first)
    cache = dataset.stats().cache
    assert (cache.hits, cache.misses, cache.troubles) == (4, 4, ())
    running = iter(dataset)
    before = values([next(running)])
    state = json.loads(json.dumps(dataset.state_dict()))
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="x", mode="r+")[8:16] = np.arange(8) + 1000
    second = session.commit("change a chunk that is cached")
    assert sorted(before + values(running)) == stored(first), "the epoch that runs"
    assert sorted(values(dataset)) == stored(second), "the next epoch"
    assert max(stored(second)) == 1007
    again = make_cached() if resumed_anew else dataset
    again.load_state_dict(state)
    assert sorted(before + values(again)) == stored(first), "the resumed epoch of the older snapshot"
    assert sorted(values(again)) == stored(second), "and the one after it"
    assert sorted(values(dataset)) == stored(second)
    assert dataset.stats().cache.damaged == 0
