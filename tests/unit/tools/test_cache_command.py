"""`zarrfeed cache`: what it copies, counts, checks and deletes, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import numcodecs as zarr_numcodecs

import zarrfeed
from tests.support import warm
from tests.support.counting_server import CountingServer
from tests.support.oracle import NUMCODECS_WARNING
from zarrfeed.tools import cli

pytest.importorskip("obstore")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings(NUMCODECS_WARNING),
    pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
]

N, ROWS = 48, 4
ARRAYS = ("plain", "shards", "index first", "bz2", "text", "v2")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[CountingServer]:
    """Serve a group of arrays, each stored in another way."""
    (tmp_path / "site").mkdir()
    root = zarr.create_group(tmp_path / "site" / "g.zarr")
    values = np.arange(1, N + 1)
    shards: dict[str, Any] = {
        "shards": (3 * ROWS, 300),
        "index first": {"shape": (3 * ROWS, 300), "index_location": "start"},
    }
    for name in ARRAYS[:4]:
        array = root.create_array(
            name,
            shape=(N, 300),
            chunks=(ROWS, 300),
            dtype="i4",
            shards=shards.get(name),
            compressors=[zarr_numcodecs.BZ2(level=1)] if name == "bz2" else "auto",
        )
        array[:] = values[:, None]
    text = root.create_array("text", shape=(N,), chunks=(ROWS,), dtype=str)
    text[:] = np.array([f"sample {i}" for i in range(N)], dtype=object)
    zarr.create_array(
        tmp_path / "site" / "v2.zarr", data=np.arange(N * 2.0).reshape(N, 2), chunks=(4, 2), zarr_format=2
    )
    for path in (tmp_path / "site").rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    zarr.consolidate_metadata(tmp_path / "site" / "g.zarr")
    with CountingServer(tmp_path / "site") as server:
        yield server


def run(*argv: object, status: int = 0) -> None:
    assert cli.main([str(one) for one in argv]) == status


def fails(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """Run, expect one line on stderr, nothing on stdout; return the line."""
    run(*argv, status=cli.EXIT_ERROR)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("zarrfeed: ")
    assert err.count("\n") == 1
    return str(err)


def read(url: str, cache: Path) -> zarrfeed.Stats:
    """Read an epoch and return the statistics."""
    with zarrfeed.ZarrIterableDataset(
        zarrfeed.open(url, cache=cache, cache_limit="1GiB"), batch_size=8, shuffle=True, num_threads=2
    ) as dataset:
        assert sum(len(batch) for batch in dataset) == N
        return dataset.stats()


@pytest.mark.parametrize("name", [f"g.zarr/{name}" for name in ARRAYS[:5]] + ["v2.zarr"])
def test_what_was_warmed_is_all_hits(
    site: CountingServer, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, cache = f"{site.url}/{name}", tmp_path / "cache"
    run("cache", "warm", url, "--cache", cache, "--cache-limit", "1GiB")
    out, _ = capsys.readouterr()
    assert "all of it is in the cache" in out
    assert max(site.gets.values()) <= 2  # of metadata
    site.gets.clear()
    stats = read(url, cache)
    assert stats.cache.misses == stats.cache.refused == stats.cache.unversioned == 0
    assert stats.cache.hits > 0
    assert not [path for path in site.gets if not path.endswith((".json", ".zarray", ".zattrs", ".zgroup"))]
    site.gets.clear()
    run("cache", "warm", url, "--cache", cache, "--cache-limit", "1GiB")
    out, _ = capsys.readouterr()
    assert "0 B added" in out
    assert not [path for path in site.gets if not path.endswith((".json", ".zarray", ".zattrs", ".zgroup"))]


def test_a_group_is_warmed_as_a_whole_or_by_names(
    site: CountingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, cache = f"{site.url}/g.zarr", tmp_path / "cache"
    run("cache", "warm", url, "--cache", cache, "--cache-limit", "1GiB", "--arrays", "plain", "text")
    out, _ = capsys.readouterr()
    assert "plain" in out
    assert "bz2" not in out
    run("cache", "warm", url, "--cache", cache, "--cache-limit", "1GiB")
    out, _ = capsys.readouterr()
    assert all(name in out for name in ARRAYS[:5])
    for name in ARRAYS[:5]:
        assert read(f"{url}/{name}", cache).cache.misses == 0


def test_a_limit_that_is_too_low_is_told(
    site: CountingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{site.url}/g.zarr/plain"
    run("cache", "warm", url, "--cache", tmp_path / "cache", "--cache-limit", 5 * 4096, status=cli.EXIT_FAILED)
    out, _ = capsys.readouterr()
    assert "the limit of 20.0 KiB is reached" in out
    assert "5 of 12 objects" in out
    assert "not all of it is in the cache" in out


def test_objects_without_a_version_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site").mkdir()
    zarr.create_array(tmp_path / "site" / "a.zarr", data=np.arange(N), chunks=(ROWS,))
    with CountingServer(tmp_path / "site", "nothing") as server:
        url, cache = f"{server.url}/a.zarr", tmp_path / "cache"
        run("cache", "warm", url, "--cache", cache, "--cache-limit", "1GiB", status=cli.EXIT_FAILED)
        assert "declare a version: cache_version=" in capsys.readouterr().out
        run("cache", "warm", url, "--cache", cache, "--cache-limit", "1GiB", "--cache-version", "1")
        assert "12 of 12 objects" in capsys.readouterr().out
        data = zarrfeed.open(url, cache=cache, cache_limit="1GiB", cache_version="1")
        with zarrfeed.ZarrIterableDataset(data, batch_size=8) as dataset:
            list(dataset)
            assert dataset.stats().cache.hit_ratio == 1


def test_missing_chunks_are_no_failure(
    site: CountingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site.directory / "g.zarr" / "plain" / "c" / "3" / "0").unlink()
    (site.directory / "g.zarr" / "shards" / "c" / "1" / "0").unlink()
    for name, objects in (("plain", 11), ("shards", 3)):
        url = f"{site.url}/g.zarr/{name}"
        run("cache", "warm", url, "--cache", tmp_path / "cache", "--cache-limit", "1GiB")
        assert f"{objects} of {objects} objects" in capsys.readouterr().out


def test_a_damaged_shard_is_told_and_the_others_are_copied(
    site: CountingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = site.directory / "g.zarr" / "shards" / "c" / "1" / "0"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    url, cache = f"{site.url}/g.zarr/shards", tmp_path / "cache"
    run("cache", "warm", url, "--cache", cache, "--cache-limit", "1GiB", status=cli.EXIT_FAILED)
    out, _ = capsys.readouterr()
    assert "3 of 4 objects" in out
    assert "c/1/0: shard index: " in out


def test_info_verify_and_clear(site: CountingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / "cache"
    for name in ("plain", "text"):
        run("cache", "warm", f"{site.url}/g.zarr/{name}", "--cache", cache, "--cache-limit", "1GiB")
    capsys.readouterr()
    run("cache", "info", cache)
    out, _ = capsys.readouterr()
    assert f"{site.url}: 24 entries" in out
    assert str(cache) in out
    run("cache", "verify", cache)
    assert "24 entries" in capsys.readouterr().out
    entry = next(p for p in sorted((cache / "entries").rglob("*")) if p.is_file() and p.name != "store")
    stored = bytearray(entry.read_bytes())
    stored[-1] ^= 1
    entry.write_bytes(stored)
    run("cache", "verify", cache, status=cli.EXIT_FAILED)
    out, _ = capsys.readouterr()
    assert "23 entries" in out
    assert "1 entries, which were deleted" in out
    assert not entry.exists()
    run("cache", "verify", cache)
    run("cache", "warm", f"{site.url}/g.zarr", "--cache", cache, "--cache-limit", "1GiB", "--arrays", "plain", "text")
    run("cache", "clear", cache, "--store", f"{site.url}/g.zarr/text")
    capsys.readouterr()
    run("cache", "info", cache)
    assert f"{site.url}: 12 entries" in capsys.readouterr().out
    assert read(f"{site.url}/g.zarr/plain", cache).cache.misses == 0
    assert read(f"{site.url}/g.zarr/text", cache).cache.misses >= N // ROWS
    run("cache", "clear", cache)
    capsys.readouterr()
    run("cache", "info", cache)
    out, _ = capsys.readouterr()
    assert "none: the cache is empty" in out
    assert "used        0 B" in out


def test_a_store_whose_name_begins_like_another_is_not_cleared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site").mkdir()
    for name in ("a", "a2", "a/b"):
        zarr.create_array(tmp_path / "site" / name, data=np.arange(8), chunks=(4,))
    with CountingServer(tmp_path / "site") as server:
        for name in ("a2", "a/b"):
            run("cache", "warm", f"{server.url}/{name}", "--cache", tmp_path / "cache", "--cache-limit", "1GiB")
        run("cache", "clear", tmp_path / "cache", "--store", f"{server.url}/a")
        capsys.readouterr()
        run("cache", "info", tmp_path / "cache")
        assert f"{server.url}: 2 entries" in capsys.readouterr().out


def test_a_run_that_was_interrupted_goes_on(site: CountingServer, tmp_path: Path) -> None:
    url, cache = f"{site.url}/g.zarr/plain", tmp_path / "cache"
    command = [*warm.command(), "-m", "zarrfeed", "cache", "warm", url, "--cache", str(cache), "--cache-limit", "1GiB"]
    site.pause_after(5)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert site.paused.wait(240)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    site.go_on()
    assert (process.returncode, out) == (cli.EXIT_INTERRUPTED, "")
    assert err == "zarrfeed: interrupted; the same command goes on from here\n"
    site.gets.clear()
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0
    assert "12 of 12 objects" in done.stdout
    assert sum(site.chunk_gets().values()) <= 12


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["warm", "{url}", "--cache", "{cache}", "--cache-limit", "lots"], "cache_limit = 'lots', must be bytes"),
        (["warm", "{url}", "--cache", "{cache}", "--cache-limit", "0"], "must be at least 1 byte"),
        (["warm", "{url}", "--cache", ""], "cache = '', must be the path of a directory"),
        (["warm", "{url}", "--cache", "s3://bucket/x"], "must be a local directory and no URL"),
        (["warm", "{url}", "--cache", "{file}"], "is not a directory"),
        (["warm", "{url}", "--cache", "{home}"], "has files of something else"),
        (["warm", "{url}", "--cache", "{cache}", "--cache-version", ""], "cache_version = '', must be text of 1 to"),
        (["warm", "{url}", "--cache", "{cache}", "--memory-budget", "much"], "memory_budget = 'much', must be bytes"),
        (["warm", "{url}", "--cache", "{cache}", "--timeout", "-1"], "timeout"),
        (["warm", "{url}", "--cache", "{cache}", "--arrays", "nothing"], "is an array, and not a group"),
        (["warm", "{url}/nothing", "--cache", "{cache}"], "no Zarr array is there"),
        (["warm", "ftp://host/x", "--cache", "{cache}"], "ftp:// is not supported"),
        (["warm", "{home}/nothing", "--cache", "{cache}"], "nothing"),
        (["info", "{home}"], "is no node cache of zarrfeed"),
        (["info", "{home}/nothing"], "is no node cache of zarrfeed"),
        (["verify", "{file}"], "is no node cache of zarrfeed"),
        (["verify", ""], "is no node cache of zarrfeed"),
        (["clear", "{home}"], "is no node cache of zarrfeed"),
        (["clear", "{home}", "--store", "{url}"], "is no node cache of zarrfeed"),
        (["clear", "{home}", "--store", "/local/x"], "is no node cache of zarrfeed"),
        (["clear", "{home}", "--store", "ftp://x/y"], "ftp:// is not supported"),
        (["clear", "{home}", "--storage-option", "anon=true"], "storage_options are for URLs"),
    ],
)
def test_bad_arguments_are_one_line(
    site: CountingServer, tmp_path: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.txt").write_text("mine")
    folders = {
        "url": f"{site.url}/g.zarr/plain",
        "cache": tmp_path / "cache",
        "home": tmp_path,
        "file": tmp_path / "file.txt",
    }
    assert message in fails(capsys, "cache", *(one.format(**folders) for one in argv))
    assert (tmp_path / "file.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "argv",
    [[], ["warm"], ["warm", "s3://b/x"], ["info"], ["verify"], ["clear"], ["heat"], ["info", "x", "--cache", "y"]],
)
def test_what_is_missing_or_unknown_is_told_by_the_parser(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["cache", *argv])
    assert stop.value.code == cli.EXIT_ERROR
    assert "usage: zarrfeed cache" in capsys.readouterr().err


def test_a_local_store_is_read_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=np.arange(8), chunks=(4,))
    run("cache", "warm", tmp_path / "a.zarr", "--cache", tmp_path / "cache", status=cli.EXIT_FAILED)
    assert "so a copy there would gain nothing: it is read as it is" in capsys.readouterr().out


def test_arrays_of_a_pattern_are_named_by_their_own_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A store without arrays behind others renamed all of theirs."""
    for name in ("a", "b"):
        zarr.create_group(tmp_path / f"{name}.zarr").create_array("x", data=np.arange(4))
    zarr.create_group(tmp_path / "c.zarr")
    run(
        "cache",
        "warm",
        tmp_path / "*.zarr",
        "--cache",
        tmp_path / "cache",
        "--cache-limit",
        "1MB",
        status=cli.EXIT_FAILED,
    )
    named = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "/x " in line]
    assert named == [f"{tmp_path}/a.zarr/x", f"{tmp_path}/b.zarr/x"]


def test_options_of_the_store_are_passed_on(site: CountingServer, tmp_path: Path, capsys: Any) -> None:
    text = fails(
        capsys, "cache", "warm", f"{site.url}/g.zarr", "--cache", tmp_path / "cache", "--storage-option", "nonsense=1"
    )
    assert "nonsense" in text
