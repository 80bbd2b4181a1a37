"""The benchmark of objects: every object is delivered, wrong ones are found, and listing is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.fake_gcs import INSTALL, find_fake_gcs
from benchmarks.suites.object_probe import Task, numbers_of
from benchmarks.suites.objects import main, measure_listing

pytest.importorskip("obstore")


@pytest.mark.skipif(find_fake_gcs() is None, reason=INSTALL)
def test_our_loaders_deliver_every_object(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--scale", "small", "--checksum-only", "--sizes", "100KiB", "--latency-ms", "0", "--out", str(tmp_path)]
    assert main([*options, "--sides", "zarrfeed,zarrfeed-index", "--workers", "1"]) == 0
    rows = json.loads((tmp_path / "objects.json").read_text())["reading"]
    assert [(row["side"], row["figures"]["bytes"]) for row in rows] == [
        ("zarrfeed", 20 * 102400),
        ("zarrfeed-index", 20 * 102400),
    ]
    assert "zarrfeed-index" in capfd.readouterr().out


def test_an_object_that_is_not_whole_is_found() -> None:
    task = Task("", 2, 16, 2, 1)
    objects: list[Any] = [i.to_bytes(16, "little") for i in range(2)]
    assert list(numbers_of([objects], task)) == [0, 1]
    with pytest.raises(ValueError, match="an object has 15 bytes, not 16"):
        list(numbers_of([[objects[0], objects[1][:15]]], task))


def test_listing_is_measured_against_one_request_after_the_other() -> None:
    found = measure_listing(3000, 0.0)
    assert [one["requests"] for one in found] == [1, 4, 16]
    assert found[0]["gain"] == 1
