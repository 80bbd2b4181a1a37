"""Promises outlast a power failure at any moment, and nobody is locked out by the rest that it leaves."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.forgetful import ForgetfulDisk, Image
from zarrfeed import Appender, checkpoint
from zarrfeed.storage.checkpoint.checkpoint_folder import open_folder
from zarrfeed.storage.checkpoint.checkpoint_manifest import Manifest, ShardObject, new_object_name, new_save_id
from zarrfeed.storage.checkpoint.shard_folder import ShardFolder, Transfer

#: Failures of each kind: at most, by default, and with --large.
FEW, MANY = 40, 500


@pytest.fixture
def large(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--large"))


def images(
    tmp_path: Path, work: Callable[[Path, ForgetfulDisk], None], count: int, chance: float
) -> Iterator[tuple[Image, Path]]:
    """Yield what failures left at random moments of `work`, each as a folder that is removed afterwards."""
    done = seed = 0
    while done < count:
        root = tmp_path / f"run-{seed}"
        root.mkdir()
        disk = ForgetfulDisk(root, seed, chance)
        with disk.watched():
            work(root, disk)
        disk.end()
        shutil.rmtree(root)
        seed += 1
        assert disk.images
        for image in disk.images[: count - done]:
            done += 1
            image.restore(root)
            try:
                with mock.patch.object(os, "fsync"):  # only for speed
                    yield image, root
            except BaseException as error:
                error.add_note(f"seed {seed - 1}, at {image.event!r}: {sorted(image.tree)}")
                raise
            shutil.rmtree(root)


def batch(begin: int, end: int) -> dict[str, Any]:
    number = np.arange(begin, end, dtype="i8")
    return {"x": number[:, None].repeat(3, 1), "y": number}


def visible(path: Path) -> list[int]:
    """Return the samples that a reader sees, each of which must be whole."""
    if not (path / "zarr.json").exists():
        return []
    x, y = (zarr.open_array(path / name, mode="r") for name in "xy")
    length = min(x.shape[0], y.shape[0])
    xs, ys = np.asarray(x[:length]), np.asarray(y[:length])
    assert (xs == ys[:, None]).all()
    assert (ys > 0).all(), f"a reader sees samples that are not there: {ys.tolist()}"
    return [int(one) for one in ys]


class Writers:
    """Writers of one store: some close in between, one dies with an open unit; samples are numbers from 1 on."""

    def __init__(self, path: Path, disk: ForgetfulDisk, shard_rows: int | None) -> None:
        self.path, self.disk, self.shard_rows = path, disk, shard_rows
        self.end, self.kept = 1, set[int]()
        self.disk.promise = ([], frozenset())

    def open(self) -> Appender:
        return Appender(self.path, chunk_rows=4, shard_rows=self.shard_rows)

    def append(self, appender: Appender, count: int) -> set[int]:
        begin, self.end = self.end, self.end + count
        appender.append(batch(begin, self.end))
        appender.flush()
        self.disk.promise = (visible(self.path), frozenset(self.kept))
        return set(range(begin, self.end))

    def close(self, appender: Appender, written: set[int]) -> None:
        appender.close()
        self.kept |= written
        self.disk.promise = (visible(self.path), frozenset(self.kept))


def write_and_die(path: Path, disk: ForgetfulDisk, shard_rows: int | None) -> None:
    writers = Writers(path, disk, shard_rows)
    one, two, dead = writers.open(), writers.open(), writers.open()
    of_one = writers.append(one, 6)
    writers.append(dead, 1)
    of_two = writers.append(two, 9)
    with dead._journal.lock():
        entries = dead._entries()
        dead._journal.claim(entries)
        dead._journal.write(entries)
    of_two |= writers.append(two, 8)
    writers.close(one, of_one)
    of_two |= writers.append(two, 5)
    dead._journal._alive.forget()  # type: ignore[union-attr]  # as the system does when a process is killed
    writers.close(two, of_two)
    three = writers.open()
    writers.close(three, writers.append(three, 3))


@pytest.mark.parametrize("shard_rows", [None, 8])
def test_an_appender_keeps_what_readers_saw_and_what_was_closed(
    tmp_path: Path, large: bool, shard_rows: int | None
) -> None:
    for image, root in images(
        tmp_path, lambda root, disk: write_and_die(root / "s", disk, shard_rows), MANY if large else FEW // 2, 0.1
    ):
        path = root / "s"
        seen, kept = image.promise
        assert visible(path)[: len(seen)] == seen, "the shape shrank, or samples changed"
        before = visible(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as one of lost samples
            for begin in (1000, 2000):
                with Appender(path, chunk_rows=4, shard_rows=shard_rows) as appender:
                    appender.append(batch(begin, begin + 16))
        now = visible(path)
        assert now[: len(before)] == before
        assert len(set(now)) == len(now), f"samples twice: {now}"
        waiting = 0 if shard_rows is None else shard_rows - 1
        lost = (kept | set(range(1000, 1016)) | set(range(2000, 2016))) - set(now)
        assert len(lost) <= waiting, f"lost {sorted(lost)}"


@pytest.mark.parametrize("seed", [None, 7])
def test_a_pack_is_whole_at_its_path_and_goes_on_beside_it(tmp_path: Path, large: bool, seed: int | None) -> None:
    numbers = np.arange(1, 41, dtype="i4")
    source = tmp_path / "source.zarr"
    zarr.create_array(source, data=numbers[:, None].repeat(2, 1), chunks=(8, 2))

    def packed(out: Path) -> Any:
        return zarrfeed.pack(source, out, sample_chunk=2, shard="32B", shuffle=seed, jobs=1, resume=True)

    def work(root: Path, disk: ForgetfulDisk) -> None:
        assert packed(root / "out.zarr").complete
        disk.promise = True

    for image, root in images(tmp_path, work, MANY if large else FEW // 2, 0.15):
        assert (root / "out.zarr").exists() or not image.promise, "a store that was complete is gone"
        for _ in range(1 if (root / "out.zarr").exists() else 2):  # what is at the path is whole, and then what is made
            if (root / "out.zarr").exists():
                values = np.asarray(zarr.open_array(root / "out.zarr", mode="r")[:])
                assert sorted(values[:, 0].tolist()) == numbers.tolist()
            assert packed(root / "out.zarr").complete
        assert [path.name for path in root.iterdir()] == ["out.zarr"], "nothing of the run is left"
        values = np.asarray(zarr.open_array(root / "out.zarr", mode="r")[:])
        assert sorted(values[:, 0].tolist()) == numbers.tolist()


def content_of(path: Path) -> bytes | None:
    try:
        with checkpoint.reader(path) as file:
            return file.read()
    except zarrfeed.StoreReadError:
        return None


def test_a_checkpoint_is_the_former_one_or_the_new_one(tmp_path: Path, large: bool) -> None:
    def work(root: Path, disk: ForgetfulDisk) -> None:
        disk.promise = {}
        for number, name in enumerate(["run/last", "run/step-1", "run/last", "run/step-2"]):
            with checkpoint.writer(root / name) as file:
                file.write(b"%d" % number * 1000)
            disk.promise = disk.promise | {name: b"%d" % number * 1000}

    later = {"run/last": [b"0" * 1000, b"2" * 1000], "run/step-1": [b"1" * 1000], "run/step-2": [b"3" * 1000]}
    for image, root in images(tmp_path, work, MANY if large else FEW, 0.5):
        for name, contents in later.items():
            found, promised = content_of(root / name), image.promise.get(name)
            allowed = [None, *contents] if promised is None else contents[contents.index(promised) :]
            assert found in allowed, name
        with checkpoint.writer(root / "run" / "last") as file:
            file.write(b"again")
        assert content_of(root / "run" / "last") == b"again"
        assert not list(root.glob("run/.last.*")), "what was left of a writer is removed by the next"


def test_a_distributed_checkpoint_is_the_former_one_or_the_new_one(tmp_path: Path, large: bool) -> None:
    def save(folder: ShardFolder, number: int) -> None:
        objects = []
        for rank in range(2):
            with folder.write_object(name := new_object_name(rank)) as file:
                file.write(b"%d" % number * 500)
            objects.append(ShardObject(name, file.tell(), file.digest))
        previous = folder.read_manifest()
        folder.replace_manifest(b"%d" % number, Manifest(new_save_id(), tuple(objects)), previous)
        if previous is not None:
            folder.remove_objects(one.name for one in previous[1].objects)

    def work(root: Path, disk: ForgetfulDisk) -> None:
        folder = ShardFolder(open_folder(root / "run" / "step"), Transfer())
        for number in (1, 2, 3):
            save(folder, number)
            disk.promise = number

    for image, root in images(tmp_path, work, MANY if large else FEW, 0.4):
        folder = ShardFolder(open_folder(root / "run" / "step"), Transfer())
        found = folder.read_manifest()
        assert found is not None or image.promise is None
        if found is not None:
            assert int(found[0]) >= (image.promise or 0)
            folder.check_objects(found[1].objects, every_byte=True)
        save(folder, 9)
        found = folder.read_manifest()
        assert found is not None
        folder.check_objects(found[1].objects, every_byte=True)


def test_retention_keeps_what_it_counted_and_finishes_what_it_began(tmp_path: Path, large: bool) -> None:
    def work(root: Path, disk: ForgetfulDisk) -> None:
        for step in (1, 2, 3):
            with checkpoint.writer(root / "run" / f"step-{step}") as file:
                file.write(b"%d" % step)
            checkpoint.retain(root / "run", keep_last=1)
            disk.promise = step

    for image, root in images(tmp_path, work, MANY if large else FEW, 0.4):
        newest = checkpoint.newest(root / "run")
        assert int((newest or "step-0").rpartition("-")[2]) >= (image.promise or 0)
        checkpoint.retain(root / "run", keep_last=1)
        assert newest is None or len(list((root / "run").glob("step-*"))) == 1
