"""The rate of a disk is that of the store's own files, and the page cache is told apart from it."""

from __future__ import annotations

import itertools
from pathlib import Path

from zarrfeed.tools.advise.disk_rate import DiskRate, measure_disk


def test_files_are_read_within_bounds_and_metadata_are_not(disk_path: Path) -> None:
    for i in range(10):
        folder = disk_path / "c" / str(i)
        folder.mkdir(parents=True)
        (folder / "0").write_bytes(bytes(1000))
    (disk_path / "zarr.json").write_text("{}")
    ticks = itertools.count()
    found = measure_disk([disk_path], clock=lambda: next(ticks) * 1e-3)
    assert found is not None
    assert found.read_bytes == 10_000
    assert found.bytes_per_s > 0
    bounded = measure_disk([disk_path], most_bytes=1)
    assert bounded is not None
    assert bounded.read_bytes < 10_000


def test_a_folder_without_chunks_has_no_rate(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text("{}")
    assert measure_disk([tmp_path]) is None
    assert measure_disk([tmp_path / "gone"]) is None
    (tmp_path / "0").write_bytes(b"")
    assert measure_disk([tmp_path]) is None


def test_what_the_page_cache_had_says_nothing_of_the_disk() -> None:
    assert DiskRate(100, 5.0, 0.0).of_disk == 5.0
    assert DiskRate(100, 5.0, 0.9).of_disk is None
    assert DiskRate(100, 5.0, None).of_disk is None
