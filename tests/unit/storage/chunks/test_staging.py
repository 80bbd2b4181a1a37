"""Local stores that a node cache on another file system stages."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import zarr
from numcodecs import AsType

import zarrfeed as zf
from zarrfeed.metadata.array.array import chunk_keys, read_layout
from zarrfeed.report.cache_forecast import CacheExplanation
from zarrfeed.storage.chunks import staging
from zarrfeed.storage.chunks.object_versions import object_keys
from zarrfeed.tools.cli import main

ROWS = 60
SHAPE = (ROWS, 6)
#: Arguments of `zarr.create_array` beside the data, and how many reads of entries an epoch makes.
LAYOUTS: dict[str, tuple[dict[str, Any], int]] = {
    "v3": ({"chunks": (5, 6)}, 12),
    "v3, chunks across samples": ({"chunks": (10, 2)}, 18),
    "v3, keys of v2": ({"chunks": (5, 6), "chunk_key_encoding": {"name": "v2", "separator": "."}}, 12),
    "v2": ({"chunks": (5, 6), "zarr_format": 2}, 12),
    "v2, nested": ({"chunks": (5, 6), "zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}}, 12),
    "shards": ({"chunks": (5, 6), "shards": (20, 6)}, 15),
    "decoded by zarr-python": ({"chunks": (5, 6), "zarr_format": 2, "filters": [AsType("i4", "i4")]}, 12),
}


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """Return a directory where a file may get the inode of one that was deleted, unlike in memory."""
    return disk_path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a directory on another file system than `tmp_path`."""
    if not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("/dev/shm is no other file system here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def values(version: int = 0) -> np.ndarray:
    return (np.arange(ROWS * SHAPE[1], dtype="i4") + 1000 * version).reshape(SHAPE)


def write(path: Path, layout: str = "v3", version: int = 0) -> Path:
    zarr.create_array(path, data=values(version), overwrite=True, **LAYOUTS[layout][0])
    return path


def opened(source: Any, disk: Path, limit: str = "64MiB", **more: Any) -> zf.Data:
    return zf.open(source, cache=disk / "cache", cache_limit=limit, **more)


def epoch_of(dataset: Any) -> dict[int, tuple[int, ...]]:
    return {int(i): tuple(row) for x, index in dataset for i, row in zip(index, x.tolist(), strict=True)}


def expected(version: int = 0) -> dict[int, tuple[int, ...]]:
    return {i: tuple(row) for i, row in enumerate(values(version).tolist())}


def forecast(dataset: zf.ZarrIterableDataset) -> CacheExplanation:
    found = dataset.explain().cache
    assert found is not None
    return found


def dataset_of(data: zf.Data, **more: Any) -> zf.ZarrIterableDataset:
    # With one lane, each chunk is read once.
    return zf.ZarrIterableDataset(data, batch_size=7, seed=3, return_index=True, **({"mixing": {"lanes": 1}} | more))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_local_store_is_not_staged(tmp_path: Path, disk: Path, layout: str, shuffle: bool) -> None:
    path = write(tmp_path / "a.zarr", layout)
    plain = dataset_of(zf.open(path), shuffle=shuffle)
    staged = dataset_of(opened(path, disk), shuffle=shuffle)
    reads = LAYOUTS[layout][1]
    assert forecast(staged).wanted_entries == reads
    for epoch in range(2):
        order = [int(i) for _, index in plain for i in index]
        found = [(int(i), tuple(row)) for x, index in staged for i, row in zip(index, x.tolist(), strict=True)]
        assert [i for i, _ in found] == order, "the order is another one than without a cache"
        assert dict(found) == expected()
        counts = staged.stats().cache
        assert (counts.misses, counts.hits) == (reads, epoch * reads)
        assert counts.troubles == ()
    explained = forecast(staged)
    assert (explained.entries, explained.expected_hit_ratio) == (reads, 1.0)
    again = dataset_of(opened(path, disk), shuffle=shuffle)
    assert epoch_of(again) == expected()
    assert again.stats().cache.misses == 0


def test_a_local_store_is_staged_where_it_lies_already(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr")
    dataset = dataset_of(zf.open(path, cache=tmp_path / "cache", cache_limit="64MiB"))
    assert epoch_of(dataset) == expected()
    assert dataset.stats().cache.misses == 0
    (trouble,) = dataset.stats().cache.troubles
    assert "so a copy there would gain nothing" in trouble
    assert trouble in str(dataset.explain())
    assert not list((tmp_path / "cache/entries").rglob("*.*"))


@pytest.mark.parametrize("layout", ["v3", "shards", "decoded by zarr-python"])
def test_a_store_that_changed_is_read_as_it_was_staged(tmp_path: Path, disk: Path, layout: str) -> None:
    path = write(tmp_path / "a.zarr", layout)
    assert epoch_of(dataset_of(opened(path, disk))) == expected()
    write(path, layout, version=1)
    changed = dataset_of(opened(path, disk))
    assert epoch_of(changed) == epoch_of(changed) == expected(1)
    assert changed.stats().cache.hits == LAYOUTS[layout][1]


@pytest.mark.parametrize("limit", ["64MiB", "8KiB"])
def test_a_shard_that_is_replaced_meanwhile_is_read_by_its_old_index(tmp_path: Path, disk: Path, limit: str) -> None:
    path = tmp_path / "a.zarr"
    rng = np.random.default_rng(0)
    versions = [rng.integers(0, 9, (ROWS, 64)).astype("i4"), rng.integers(0, 1 << 30, (ROWS, 64)).astype("i4")]
    for name, stored in zip(("old", "new"), versions, strict=True):
        zarr.create_array(tmp_path / name, data=stored, chunks=(5, 64), shards=(20, 64))
    shutil.copytree(tmp_path / "old", path)
    time.sleep(0.1)
    one = opened(path, disk, limit).select(slice(0, 5))
    assert np.array_equal(np.concatenate([x for x, _ in dataset_of(one)]), versions[0][:5])  # the index is staged
    dataset = dataset_of(opened(path, disk, limit))
    for shard in (path / "c").iterdir():
        shutil.copy(tmp_path / "new/c" / shard.name / "0", shard / "0.new")
        (shard / "0.new").rename(shard / "0")
    for _ in range(2):
        found = {int(i): x for batch, index in dataset for i, x in zip(index, batch.numpy(), strict=True)}
        for i, row in found.items():
            is_staged = i < 5 and np.array_equal(row, versions[0][i])
            assert is_staged or np.array_equal(row, versions[1][i]), f"sample {i} is of neither version"
    fresh = dataset_of(opened(path, disk, "64MiB"))
    assert all(np.array_equal(x, versions[1][index]) for x, index in fresh)


def test_a_chunk_that_is_replaced_before_it_was_staged_is_kept_as_what_it_was(tmp_path: Path, disk: Path) -> None:
    path = write(tmp_path / "a.zarr")
    dataset = dataset_of(opened(path, disk))
    write(tmp_path / "b.zarr", version=1)
    shutil.copy(tmp_path / "b.zarr/c/3/0", path / "c/3/0")
    wanted = expected() | {i: expected(1)[i] for i in range(15, 20)}
    assert epoch_of(dataset) == epoch_of(dataset) == wanted
    counts = dataset.stats().cache
    assert (counts.misses, counts.hits, counts.unversioned) == (12, 11, 1)
    assert epoch_of(dataset_of(opened(path, disk))) == wanted


def test_staged_bytes_that_are_damaged_are_served(tmp_path: Path, disk: Path) -> None:
    path = write(tmp_path / "a.zarr")
    assert epoch_of(dataset_of(opened(path, disk))) == expected()
    for entry in (disk / "cache/entries").rglob("*"):
        if entry.is_file() and entry.stat().st_size > 100:
            entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    dataset = dataset_of(opened(path, disk))
    assert epoch_of(dataset) == expected()
    assert dataset.stats().cache.damaged == 12


def test_a_cache_that_is_full_ends_the_run(tmp_path: Path, disk: Path) -> None:
    dataset = dataset_of(opened(write(tmp_path / "a.zarr"), disk, "16KiB"), shuffle=True)
    for _ in range(2):
        assert epoch_of(dataset) == expected()
    assert dataset.stats().cache.hits == 4
    assert dataset.stats().cache.refused > 0


@pytest.mark.parametrize("kind", ["list", "concat", "group", "zip", "link", "links"])
def test_a_store_of_another_kind_is_not_staged(tmp_path: Path, disk: Path, kind: str) -> None:
    first, second = write(tmp_path / "a.zarr"), write(tmp_path / "b.zarr", version=1)
    wanted, reads = expected(), 12
    source: Any = first
    if kind in ("list", "concat"):
        wanted |= {ROWS + i: row for i, row in expected(1).items()}
        source, reads = [first, second], 24
    elif kind == "group":
        zarr.create_group(tmp_path / "g.zarr")
        source = write(tmp_path / "g.zarr/x").parent
    elif kind == "zip":
        source = Path(shutil.make_archive(str(tmp_path / "a"), "zip", first))
        time.sleep(0.1)
    elif kind == "link":
        source = tmp_path / "link.zarr"
        source.symlink_to(first)
    else:  # as git-annex has files
        for number, chunk in enumerate((first / "c").rglob("0")):
            if chunk.is_file():
                chunk.rename(tmp_path / f"content{number}")
                chunk.symlink_to(tmp_path / f"content{number}")
    data = zf.concat([opened(one, disk) for one in source]) if kind == "concat" else opened(source, disk)
    dataset = dataset_of(data, shuffle=True)
    for epoch in range(2):
        found = {int(i): tuple(r) for x, index in dataset for i, r in zip(index, _only(x).tolist(), strict=True)}
        assert found == wanted
        assert (dataset.stats().cache.misses, dataset.stats().cache.hits) == (reads, epoch * reads)
    assert dataset.stats().cache.troubles == ()


def _only(batch: Any) -> Any:
    return next(iter(batch.values())) if isinstance(batch, dict) else batch


def test_workers_stage_a_store_each_for_itself(tmp_path: Path, disk: Path) -> None:
    dataset = dataset_of(opened(write(tmp_path / "a.zarr"), disk), shuffle=True)
    loader = zf.ZarrDataLoader(dataset, num_workers=2, multiprocessing_context="fork")
    assert epoch_of(loader) == epoch_of(dataset_of(opened(tmp_path / "a.zarr", disk))) == expected()
    again = dataset_of(opened(tmp_path / "a.zarr", disk))
    assert epoch_of(again) == expected()
    assert again.stats().cache.misses == 0


def test_a_map_style_dataset_is_not_staged(tmp_path: Path, disk: Path) -> None:
    path = write(tmp_path / "a.zarr")
    for hits in range(2):
        dataset = zf.ZarrDataset(opened(path, disk))
        assert dataset[17].tolist() == values()[17].tolist()
        assert (dataset.stats().cache.misses, dataset.stats().cache.hits) == (1 - hits, hits)


def test_a_store_that_grows_is_read_as_it_was(tmp_path: Path, disk: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", shape=(10, 6), dtype="i4", chunks=(5, 6))
    array[:] = values()[:10]
    dataset = dataset_of(opened(tmp_path / "a.zarr", disk, refresh="epoch", complete="shape"))
    assert len(epoch_of(dataset)) == 10
    array.resize((ROWS, 6))
    array[5:] = values()[5:] + 1
    found = epoch_of(dataset)
    assert found == {i: tuple(row) for i, row in enumerate((values() + (np.arange(ROWS) >= 5)[:, None]).tolist())}


def test_a_file_that_changed_a_moment_ago_has_a_version(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.zarr")
    monkeypatch.setattr(staging, "_LOCAL", frozenset())  # a server, whose clock is its own
    os.utime(path / "c/0/0", (0, time.time() - 60))
    dataset = dataset_of(opened(path, disk))
    assert epoch_of(dataset) == expected()
    assert (dataset.stats().cache.misses, dataset.stats().cache.unversioned) == (1, 11)
    assert dataset.stats().cache.troubles == (
        "11 of 12 files changed a moment ago and have no version yet: they are read as they are",
    )
    for number, ahead in enumerate((-60.0, 60.0, 1e6)):  # a clock that is ahead; a time that was set
        os.utime(path / f"c/{number}/0", (0, time.time() + ahead))
    versions = dict(staging._looked_at(str(path), [f"c/{number}/0" for number in range(3)], 2.0))
    assert [versions[f"c/{number}/0"] is not None for number in range(3)] == [True, False, True]


def test_a_declared_version_needs_files_that_are_old(tmp_path: Path, disk: Path) -> None:
    path = write(tmp_path / "a.zarr")
    dataset = dataset_of(opened(path, disk, cache_version="1"))
    assert epoch_of(dataset) == expected()
    write(path, version=1)
    assert epoch_of(dataset_of(opened(path, disk, cache_version="1"))) == expected()
    assert epoch_of(dataset_of(opened(path, disk, cache_version="2"))) == expected(1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_keys_of_files_are_not_those_of_the_array(tmp_path: Path, layout: str) -> None:
    spec = read_layout(write(tmp_path / "a.zarr", layout))
    (tmp_path / "a.zarr/notes.txt").write_text("no chunk")
    (tmp_path / "a.zarr/member").mkdir()
    assert sorted(staging._keys_in(str(tmp_path / "a.zarr"), chunk_keys(spec))) == sorted(object_keys(spec))


def test_many_files_are_listed_by_one_thread_and_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_FEW", 5)
    names = [str(number) for number in range(23)]
    for name in names:
        (tmp_path / name).write_text(name)
    by_many, by_one = (staging._looked_at(str(tmp_path), [*names, "gone"], tick) for tick in (-1.0, 0.05))
    assert [name for name, _ in by_many] == [name for name, _ in by_one] == names
    assert all(found is not None and found[1] == len(name) for name, found in by_many)


def test_a_cache_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    dataset = dataset_of(zf.open(write(tmp_path / "a.zarr"), cache="/proc/no-such-folder", cache_limit="1MiB"))
    assert epoch_of(dataset) == expected()
    assert "/proc/no-such-folder" in dataset.stats().cache.troubles[0]


def test_the_command_line_does_not_stage(tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zarr.create_group(tmp_path / "g.zarr")
    for name, layout in (("x", "v3"), ("s", "shards")):
        write(tmp_path / "g.zarr" / name, layout)
    warm = ["cache", "warm", str(tmp_path / "g.zarr"), "--cache", str(disk / "cache"), "--cache-limit", "64MiB"]
    assert main(warm) == 0
    assert "all of it is in the cache" in capsys.readouterr().out
    assert main(warm) == 0
    assert "0 bytes added" in capsys.readouterr().out.replace("0 B added", "0 bytes added")
    dataset = dataset_of(opened(tmp_path / "g.zarr", disk))
    for batch, index in dataset:
        assert all(np.array_equal(batch[name], values()[index]) for name in ("s", "x"))
    assert (dataset.stats().cache.misses, dataset.stats().cache.hits) == (0, 27)
    assert main(["cache", "info", str(disk / "cache")]) == 0
    assert main(["cache", "verify", str(disk / "cache")]) == 0
    assert main(["cache", "clear", str(disk / "cache"), "--store", str(tmp_path / "g.zarr/x")]) == 0
    assert forecast(dataset_of(opened(tmp_path / "g.zarr", disk))).entries == 15
    capsys.readouterr()
    beside = [*warm[:4], str(tmp_path / "cache"), *warm[5:]]
    assert main(beside) == 1
    assert "so a copy there would gain nothing" in capsys.readouterr().out


def test_versions_differ_between_languages(tmp_path: Path, disk: Path) -> None:
    dataset = dataset_of(opened(write(tmp_path / "a.zarr"), disk))
    epoch_of(dataset)
    counts = dataset.stats().cache
    assert counts.written_bytes == counts.miss_bytes > 0


def test_orders_with_every_way_to_stop_differ(tmp_path: Path, disk: Path) -> None:
    path, other = write(tmp_path / "a.zarr"), write(tmp_path / "b.zarr", "shards", version=1)
    stops: tuple[Literal["first", "all", "longest"], ...] = ("first", "all", "longest")
    for shuffle, stop in itertools.product((False, True), stops):
        plain = zf.mix([zf.open(path), zf.open(other)], weights=[2, 1], stop=stop)
        staged = zf.mix([opened(path, disk), opened(other, disk)], weights=[2, 1], stop=stop)
        found = [[x.tolist() for x, _ in dataset_of(data, shuffle=shuffle)] for data in (plain, staged)]
        assert found[0] == found[1], (shuffle, stop)


def test_a_folder_that_cannot_be_listed_is_not_told(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.zarr")

    def refuse(folder: str) -> list[str]:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(staging, "_names", refuse)
    dataset = dataset_of(opened(path, disk))
    assert epoch_of(dataset) == expected()
    assert dataset.stats().cache.troubles == (f"{path} cannot be listed: Permission denied",)
