"""A node cache in memory: shared by the processes that use it, and deleted with the last one, or after its kill."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support import warm
from tests.support.users import OTHER, VICTIM, as_user, two_users
from zarrfeed import ConfigError, MemoryCache
from zarrfeed.storage.access.memory_cache import MemoryFolder, delete_abandoned

ROWS, WIDTH = 48, 500


@pytest.fixture
def cache() -> Iterator[MemoryCache]:
    """Name a cache that no other test names."""
    cache = MemoryCache("1MiB", f"test-{secrets.token_hex(8)}")
    yield cache
    delete_abandoned()
    assert not folders(cache)


def folders(cache: MemoryCache) -> list[Path]:
    """Return the folders of a cache, also those that were renamed to be deleted."""
    path = Path(cache.path)
    return list(path.parent.glob(f"{path.name}*"))


class Child:
    """A forked process that joins the folder of a cache, and stays until it is told to go, or is killed."""

    def __init__(self, cache: MemoryCache) -> None:
        joined, told = os.pipe()
        waits, self._go = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._go)
            folder = MemoryFolder.join(cache.path)
            os.write(told, b".")
            os.read(waits, 1)
            folder.leave()
            os._exit(0)
        os.close(waits)
        os.close(told)
        assert os.read(joined, 1) == b"."

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def go(self) -> None:
        os.close(self._go)
        assert os.waitpid(self._pid, 0)[1] == 0


@pytest.mark.timeout(60)
def test_the_last_process_that_uses_a_folder_deletes_it(cache: MemoryCache) -> None:
    child = Child(cache)
    mine = MemoryFolder.join(cache.path)
    Path(cache.path, "entry").write_bytes(b"of both")
    mine.leave()
    assert Path(cache.path, "entry").exists()
    child.go()
    assert not folders(cache)


@pytest.mark.timeout(60)
def test_what_a_killed_process_left_is_deleted_by_the_next_one(cache: MemoryCache) -> None:
    Child(cache).kill()
    Path(cache.path, "entry").write_bytes(b"of the dead")
    MemoryFolder.join(MemoryCache(1, f"{cache.name}-other").path).leave()
    assert not folders(cache)
    Child(cache).kill()
    Path(cache.path, "entry").write_bytes(b"of the dead")
    folder = MemoryFolder.join(cache.path)
    assert not Path(cache.path, "entry").exists()
    folder.leave()


def test_a_folder_that_others_can_read_or_a_link_is_refused_and_stays(cache: MemoryCache, tmp_path: Path) -> None:
    Path(cache.path).mkdir(mode=0o755)
    Path(cache.path).chmod(0o755)
    (tmp_path / "mine").write_text("mine")
    for _ in range(2):
        with pytest.raises(ConfigError, match="must be a folder that this user alone can read"):
            zarrfeed.open(np.zeros(3), cache=cache)
        assert os.path.lexists(cache.path)
        if not Path(cache.path).is_symlink():
            Path(cache.path).rmdir()
            Path(cache.path).symlink_to(tmp_path)
    Path(cache.path).unlink()
    assert (tmp_path / "mine").read_text() == "mine"


@two_users
def test_a_folder_that_another_user_made_is_refused_and_never_deleted() -> None:
    name = f"test-{secrets.token_hex(8)}"
    theirs = Path(f"/dev/shm/zarrfeed-memory-{VICTIM}-{name}")

    def refused() -> None:
        delete_abandoned()
        with pytest.raises(ConfigError, match=f"belongs to uid {OTHER}, with mode 0700"):
            MemoryFolder.join(MemoryCache(1, name).path)

    try:
        as_user(OTHER, lambda: theirs.mkdir(mode=0o700))
        as_user(VICTIM, refused)
        assert theirs.exists()
    finally:
        theirs.rmdir()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MemoryCache("lots"), "limit of a MemoryCache = 'lots', must be bytes or text"),
        (lambda: MemoryCache(0), "limit of a MemoryCache = 0, must be at least 1 byte"),
        (lambda: MemoryCache(1, "../x"), r"name = '../x' of a MemoryCache, must be"),
        (lambda: zarrfeed.open(np.zeros(3), cache=MemoryCache(2**60)), "which is less: give a lower limit"),
        (
            lambda: zarrfeed.open(np.zeros(3), cache=MemoryCache(1), cache_limit=1),
            r"cache_limit = 1 with zarrfeed.MemoryCache\(1\), which has a limit",
        ),
    ],
)
def test_what_cannot_work_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


EPOCHS = """
import sys
import numpy as np, zarrfeed
if __name__ == "__main__":
    path, name, workers = sys.argv[1:]
    data = zarrfeed.open(path, cache=zarrfeed.MemoryCache("1MiB", name), transcode="lz4")
    dataset = zarrfeed.ZarrIterableDataset(data, batch_size=7, seed=1, return_index=True)
    options = {"num_workers": int(workers), "persistent_workers": True} if workers != "0" else {}
    loader = zarrfeed.ZarrDataLoader(dataset, **options)
    for _ in range(2):
        found = []
        for batch, index in loader:
            assert (batch == index[:, None] * batch.shape[1] + np.arange(batch.shape[1])).all()
            found += index.tolist()
        assert sorted(found) == list(range(len(data))), found
    forecast = dataset.explain().cache
    assert forecast.expected_hit_ratio == 1 and forecast.entries == 6, forecast
    assert "in memory of the job, on top of memory_budget" in str(dataset.explain())
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_are_right_and_nothing_is_left(workers: int, cache: MemoryCache, tmp_path: Path) -> None:
    values = np.arange(ROWS * WIDTH, dtype="f4").reshape(ROWS, WIDTH)
    codec = zarr.codecs.ZstdCodec()
    zarr.create_array(tmp_path / "x.zarr", data=values, chunks=(8, WIDTH), compressors=codec)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    arguments = [str(tmp_path / "x.zarr"), cache.name, str(workers)]
    script = tmp_path / "epochs.py"
    script.write_text(EPOCHS)
    subprocess.run([*warm.command(), str(script), *arguments], check=True, timeout=100)
    assert not folders(cache)
