"""A local store whose objects outlast a power failure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.forgetful import ForgetfulDisk
from zarrfeed.storage.append.synced_store import SyncedStore


@pytest.mark.parametrize("shards", [None, (4, 4)])
def test_chunks_are_on_the_disk_when_the_folders_are_synced(tmp_path: Path, shards: tuple[int, int] | None) -> None:
    zarr.create_array(tmp_path / "a", shape=(8, 4), chunks=(2, 2), shards=shards, dtype="i4", fill_value=-1)
    array = zarr.open_array(SyncedStore(tmp_path / "a"), mode="r+")
    values = np.arange(32, dtype="i4").reshape(8, 4)
    array[:4] = 7
    disk = ForgetfulDisk(tmp_path, 3, 0.3)
    for path in [tmp_path / "a", *sorted((tmp_path / "a").rglob("*"))]:
        disk.adopt(path)
    with disk.watched():
        array[:] = values
        store = array.store_path.store
        assert isinstance(store, SyncedStore)
        store.sync_folders()
        disk.promise = True
    for _ in range(10):
        disk.end()
    for number, image in enumerate(disk.images):
        image.restore(tmp_path / f"left-{number}")
        left = np.asarray(zarr.open_array(tmp_path / f"left-{number}" / "a", mode="r")[:])
        if image.promise:
            assert (left == values).all()
        assert ((left == values) | (left == np.where(np.arange(8) < 4, 7, -1)[:, None])).all(), "a torn chunk"


def test_a_read_only_store_writes_nothing(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", shape=4, chunks=(2,), dtype="i4")
    array = zarr.open_array(SyncedStore(tmp_path / "a", read_only=True), mode="r")
    with pytest.raises(ValueError, match="read-only"):
        array[:] = 1
    assert not (tmp_path / "a" / "c").exists()
