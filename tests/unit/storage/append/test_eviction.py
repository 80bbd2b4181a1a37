"""Eviction: what is older than the window goes, what a live epoch reads stays, and nothing that was not declared."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.users import OTHER, as_user, folder_of_all, give_to, tree, two_users
from zarrfeed import Appender, ConfigError, StoreReadError, ZarrDataLoader, ZarrDataset, ZarrIterableDataset
from zarrfeed.base.file_lock import is_held
from zarrfeed.metadata.stores.growth import Growth
from zarrfeed.storage.append.append_journal import side_directory
from zarrfeed.storage.append.eviction import DisposableStore

ROWS = 4


def append(path: Path, begin: int, end: int, *, zarr_format: Any = 3, disposable: bool = True) -> None:
    with Appender(path, chunk_rows=ROWS, disposable=disposable, zarr_format=zarr_format, compressors=None) as appender:
        number = np.arange(begin, end)
        appender.append({"x": number[:, None].repeat(3, 1), "y": number})


def make(path: Path, *, window: int = 16, evict: bool = True, **options: Any) -> ZarrIterableDataset:
    data = zarrfeed.open(path, refresh="epoch", window=window, evict=evict)
    return ZarrIterableDataset(data, **({"batch_size": 4, "shuffle": True, "num_threads": 1} | options))


def values(batches: Any) -> list[int]:
    delivered: list[int] = []
    for batch in batches:
        assert (batch["x"] == batch["y"][:, None]).all()
        delivered += batch["y"].tolist()
    return sorted(delivered)


def settle() -> None:
    """Wait until what is to be deleted is deleted."""
    for thread in threading.enumerate():
        if thread.name == "zarrfeed: evict":
            thread.join(240)


def chunks(path: Path, name: str = "y") -> list[int]:
    """Return the chunks of an array that exist, once what is to be deleted is deleted."""
    settle()
    below = path / name / "c" if (path / name / "zarr.json").exists() else path / name
    return sorted(int(one.name.partition(".")[0]) for one in below.iterdir() if one.name[0] not in ".z")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunks_that_are_older_than_the_window_are_deleted(tmp_path: Path, zarr_format: Any) -> None:
    path = tmp_path / "a"
    append(path, 0, 32, zarr_format=zarr_format)
    dataset = make(path, window=14)
    assert chunks(path) == list(range(8)), "opening deletes nothing"
    assert values(dataset) == list(range(18, 32))
    assert chunks(path) == chunks(path, "x") == [4, 5, 6, 7], "chunk 4 has samples 16 and 17, and 18"
    append(path, 32, 45, zarr_format=zarr_format)
    assert values(dataset) == list(range(31, 45))
    assert chunks(path) == chunks(path, "x") == [7, 8, 9, 10, 11]
    assert values(make(path, window=10)) == list(range(35, 45))
    assert chunks(path) == [8, 9, 10, 11]


def test_other_readers_begin_with_the_oldest_sample_that_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a"
    append(path, 0, 32)
    values(make(path, window=14))
    settle()
    assert values(ZarrIterableDataset(path, batch_size=4)) == list(range(18, 32))
    data = zarrfeed.open(path, refresh="epoch")
    assert (len(data), data.version) == (14, zarrfeed.open(path, refresh="epoch", window=14).version)
    assert [int(one) for one in ZarrDataset(data)[[0, 13]]["y"]] == [18, 31]
    assert values(make(path, window=100, evict=False)) == list(range(18, 32))


def test_what_a_live_epoch_reads_is_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "a"
    append(path, 0, 32)
    slow = make(path, evict=False, window=32, memory_budget="8MiB")
    running = iter(slow)
    got = values([next(running)])
    append(path, 32, 64)
    other = make(path)
    assert values(other) == list(range(48, 64))
    assert chunks(path) == list(range(16)), "the slow epoch reads from sample 0 on"
    assert sorted(got + values(running)) == list(range(32))
    assert values(other) == list(range(48, 64))
    assert chunks(path) == [12, 13, 14, 15]
    running = iter(other)
    next(running)
    state = other.state_dict()
    append(path, 64, 80)
    del running
    values(make(path))
    assert chunks(path) == [16, 17, 18, 19]
    with pytest.raises(StoreReadError, match="samples before 64 were evicted, and 48 is to be read"):
        make(path).load_state_dict(state)


@pytest.mark.parametrize("kind", [ZarrIterableDataset, ZarrDataset])
def test_a_dataset_of_several_stores_holds_what_each_of_them_has_left(tmp_path: Path, kind: Any) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    append(first, 0, 32)
    append(second, 32, 64)
    values(make(first))
    assert chunks(first) == [4, 5, 6, 7]
    dataset = kind([first, second])
    values(make(first, window=8))
    values(make(second, window=8))
    assert chunks(first) == [4, 5, 6, 7], "the dataset reads the first store from sample 16 on"
    assert chunks(second) == list(range(8)), "the dataset reads the second store from its sample 0 on"
    batches = dataset if kind is ZarrIterableDataset else [dataset[list(range(48))]]
    assert sorted(int(v) for batch in batches for v in np.ravel(batch["y"])) == list(range(16, 64))
    del batches
    dataset.close()
    values(make(first, window=8))
    values(make(second, window=8))
    assert chunks(first) == chunks(second) == [6, 7]


@pytest.mark.parametrize("kind", [ZarrIterableDataset, ZarrDataset])
def test_datasets_without_refresh_hold_what_they_opened(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "a"
    append(path, 0, 32)
    dataset = kind(path)
    assert len(pickle.loads(pickle.dumps(dataset))) == 32
    values(make(path))
    assert chunks(path) == list(range(8))
    dataset.close()
    values(make(path))
    assert chunks(path) == [4, 5, 6, 7]


def test_a_small_array_beside_large_ones_is_not_read_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    group = zarr.create_group(path)
    group.create_array("x", shape=(0, 3), chunks=(4, 3), dtype="i8")
    group.create_array("y", shape=(0,), chunks=(8,), dtype="i8")
    Appender(path).close()
    for name in "xy":  # as the Appender makes it
        document = json.loads((path / name / "zarr.json").read_text())
        document["attributes"]["zarrfeed"]["disposable"] = True
        (path / name / "zarr.json").write_text(json.dumps(document))
    with Appender(path) as appender:
        appender.append({"x": np.arange(64)[:, None].repeat(3, 1), "y": np.arange(64)})
    dataset = make(path, window=20)
    for _ in range(2):
        assert values(dataset) == list(range(44, 64))
        assert (chunks(path, "x"), chunks(path, "y")) == ([11, 12, 13, 14, 15], [5, 6, 7])


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_read_their_version_while_old_samples_go(tmp_path: Path, num_workers: int) -> None:
    path = tmp_path / "a"
    append(path, 0, 64)
    loader = ZarrDataLoader(make(path, window=32), num_workers=num_workers)
    for end in (64, 96, 128):
        running = iter(loader)
        got = values([next(running)])
        append(path, end, end + 32)
        values(make(path, window=8))  # another run, with a smaller window
        assert sorted(got + values(running)) == list(range(end - 32, end))


def test_what_an_evicting_process_left_is_deleted_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    append(path, 0, 32)
    with monkeypatch.context() as killed:
        killed.setattr(DisposableStore, "_delete", lambda *_: None)  # before it deletes anything
        values(make(path))
    assert chunks(path) == list(range(8))
    assert values(ZarrIterableDataset(path, batch_size=4)) == list(range(16, 32)), "nobody reads what may go"
    append(path, 32, 36)
    values(make(path))
    assert chunks(path) == [5, 6, 7, 8]
    assert len(zarrfeed.open(path, refresh="epoch", complete="chunks")) == 16


def hold_and_wait(path: Path, said: Any) -> None:
    running = iter(make(path, evict=False, window=32))
    next(running)
    said.put("reads")
    signal.pause()


def test_a_reader_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    append(path, 0, 32)
    context = multiprocessing.get_context("forkserver")
    said = context.SimpleQueue()
    process = context.Process(target=hold_and_wait, args=(path, said))
    process.start()
    assert said.get() == "reads"
    values(make(path))
    assert chunks(path) == list(range(8))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(240)
    values(make(path))
    assert chunks(path) == [4, 5, 6, 7]
    assert not list((side_directory(path) / "leases").iterdir())


def test_nothing_is_deleted_of_a_store_that_is_not_declared_disposable(tmp_path: Path) -> None:
    append(tmp_path / "a", 0, 32, disposable=False)
    with pytest.raises(ConfigError, match=r"is not declared disposable; only a store that was made by"):
        make(tmp_path / "a")
    append(tmp_path / "b", 0, 32)
    zarr.create_array(tmp_path / "c", shape=(32,), chunks=(4,), dtype="i8")[:] = 1
    with pytest.raises(ConfigError, match="is not declared disposable"):
        zarrfeed.open(tmp_path / "b", tmp_path / "c", refresh="epoch", window=4, evict=True)
    dataset = make(tmp_path / "b")
    metadata = tmp_path / "b" / "y" / "zarr.json"
    metadata.write_text(metadata.read_text().replace('"disposable": true', '"disposable": false'))
    with pytest.raises(ConfigError, match="nothing of it is deleted"):
        values(dataset)
    assert chunks(tmp_path / "b") == list(range(8))


def test_evict_needs_a_window_and_refresh(tmp_path: Path) -> None:
    append(tmp_path / "a", 0, 8)
    for options, message in (
        ({"refresh": "epoch", "evict": True}, "give window=, too"),
        ({"refresh": "epoch", "window": 4, "evict": 1}, "evict = 1"),
        ({"evict": True}, "give refresh='epoch', too"),
    ):
        with pytest.raises(ConfigError, match=message):
            zarrfeed.open(tmp_path / "a", **options)


def test_a_store_whose_side_cannot_be_written_is_not_read_while_it_may_lose_samples(tmp_path: Path) -> None:
    path = tmp_path / "a"
    append(path, 0, 8)
    side = side_directory(path)
    side.rename(tmp_path / "away")
    side.write_text("")
    with pytest.raises(StoreReadError, match="readers of a disposable store must be able to write there"):
        values(make(path))


def declare_disposable(path: Path, depth: int, store: str = "made up") -> None:
    """Write by hand what an Appender writes, as anybody can who makes a store for others."""
    document = json.loads((path / "zarr.json").read_text())
    marks = {"appender": 1, "store": store, "disposable": True, "depth": depth, "first": 0}
    (path / "zarr.json").write_text(json.dumps(document | {"attributes": {"zarrfeed": marks}}))


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("has_side", [False, True])
def test_an_attribute_alone_makes_no_reader_write_or_delete_anything(
    tmp_path: Path, depth: int, has_side: bool
) -> None:
    path = tmp_path / "data" / "y"
    zarr.create_array(path, data=np.arange(32), chunks=(4,))
    declare_disposable(path, depth)
    side = side_directory(path.parent if depth else path)
    if has_side:  # with the journal of another store
        with Appender(tmp_path / "other", chunk_rows=4, disposable=True) as appender:
            appender.append(np.arange(8))
        side_directory(tmp_path / "other").rename(side)
    before = tree(tmp_path)
    assert sorted(int(v) for batch in ZarrIterableDataset(path, batch_size=4) for v in batch) == list(range(32))
    assert [int(v) for v in ZarrDataset(path)[[0, 31]]] == [0, 31]
    growing = zarrfeed.open(path, refresh="epoch", window=16)
    assert sorted(int(v) for batch in ZarrIterableDataset(growing, batch_size=4) for v in batch) == list(range(16, 32))
    assert tree(tmp_path) == before
    evicting = ZarrIterableDataset(zarrfeed.open(path, refresh="epoch", window=16, evict=True), batch_size=4)
    with pytest.raises(ConfigError, match=r"no Appender keeps a journal of .*, so nothing of it is deleted"):
        list(evicting)
    assert tree(tmp_path) == before


def test_eviction_follows_no_link_out_of_the_store(tmp_path: Path) -> None:
    path, home = tmp_path / "a", tmp_path / "home"
    append(path, 0, 32)
    (path / "y" / "c").rename(home)
    (path / "y" / "c").symlink_to(home)
    before = tree(home)
    assert values(make(path)) == list(range(16, 32))
    assert chunks(path, "x") == [4, 5, 6, 7]
    assert tree(home) == before


def test_only_leases_are_swept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    append(path, 0, 32)
    leases = side_directory(path) / "leases"
    leases.mkdir()
    (leases / "thesis.tex").write_text("mine")
    (leases / "1-0123456789abcdef").write_text("0")
    assert values(make(path)) == list(range(16, 32))
    assert chunks(path) == [4, 5, 6, 7]
    assert (leases / "thesis.tex").read_text() == "mine"
    assert not (leases / "1-0123456789abcdef").exists()


@two_users
def test_a_reader_writes_nothing_beside_the_store_of_another_user() -> None:
    with folder_of_all() as folder:
        path = folder / "a"

        def make_it() -> None:
            append(path, 0, 32)
            for one in (folder / "a.zarrfeed").rglob("*"):
                one.chmod(0o777 if one.is_dir() else 0o666)
            (folder / "a.zarrfeed").chmod(0o777)

        as_user(OTHER, make_it)
        before = tree(folder)
        with pytest.warns(UserWarning, match=rf"belongs to another user \({OTHER}\) and is disposable: no lease"):
            assert values(ZarrIterableDataset(path, batch_size=4)) == list(range(32))
        assert tree(folder) == before
        assert values(make(path)) == list(range(16, 32)), "who evicts was asked to"
        assert chunks(path) == [4, 5, 6, 7]


@two_users
def test_a_reader_makes_no_file_for_a_moment_beside_its_store_in_the_folder_of_another_user() -> None:
    with folder_of_all() as folder:
        path, side = folder / "a", folder / "a.zarrfeed"
        append(path, 0, 32)
        give_to(OTHER, side)
        side.chmod(0o777)
        os.utime(side, (1, 1))

        def read() -> None:
            data = zarrfeed.open(path, window=16, refresh="epoch")
            assert values(ZarrIterableDataset(data, batch_size=4)) == list(range(16, 32))

        read()
        assert side.stat().st_mtime == 1


def test_what_a_look_found_is_held_until_the_pass_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another process could delete it in between."""
    path, hold, seen = tmp_path / "a", Growth.hold, list[int]()
    append(path, 0, 32)
    dataset = make(path)

    def count_and_hold(self: Growth, version: Any) -> Any:
        seen.append(sum(is_held(one) for one in side_directory(path).glob("leases/*")))
        return hold(self, version)

    append(path, 32, 40)
    monkeypatch.setattr(Growth, "hold", count_and_hold)
    assert values(dataset) == list(range(24, 40))
    of_look, of_pass = seen
    assert of_pass == of_look + 1


def test_the_oldest_sample_is_on_the_disk_before_anything_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done = tmp_path / "a", list[str]()
    append(path, 0, 32)
    dataset = make(path)
    synced, deleted = os.fsync, os.unlink

    def sync(descriptor: int) -> None:
        synced(descriptor)
        opened = Path(f"/proc/self/fd/{descriptor}").readlink()
        firsts = [
            json.loads((path / name / "zarr.json").read_text())["attributes"]["zarrfeed"]["first"] for name in "xy"
        ]
        done.append(f"{opened.name} {firsts}")

    def delete(name: Any, *args: Any, **kwargs: Any) -> None:
        done.append("deleted") if "dir_fd" in kwargs else None
        deleted(name, *args, **kwargs)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "unlink", delete)
    values(dataset)
    settle()
    before = done[: done.index("deleted")]
    assert "x [16, 0]" in before
    assert "y [16, 16]" in before, "the folders were synced after the documents were replaced"
