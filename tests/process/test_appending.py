"""Writers in processes, killed and not, beside readers: nothing torn, nothing twice, nothing lost but by a kill."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support import appending
from zarrfeed import Appender, ClosedError

pytestmark = pytest.mark.timeout(1800)

CONTEXT = multiprocessing.get_context("forkserver")


def start(function: Any, *arguments: Any) -> Any:
    process = CONTEXT.Process(target=function, args=arguments)
    process.start()
    return process


def numbers(path: Path) -> Any:
    """Return the samples of a store, in order; each must be whole, in both arrays."""
    group = zarr.open_group(path, mode="r")
    x: Any = group["x"]
    y: Any = group["y"]
    assert x.shape[0] == y.shape[0]
    found = appending.check(x[:])
    assert (y[:] == found).all()
    return found


@pytest.mark.parametrize(
    ("appends", "writers"), [(60, 2), pytest.param(50_000, 2, marks=pytest.mark.slow)], ids=["usual", "large"]
)
def test_no_read_is_torn_beside_writers(tmp_path: Path, appends: int, writers: int) -> None:
    path, until, results = tmp_path / "a", tmp_path / "done", CONTEXT.SimpleQueue()
    writing = [start(appending.write, path, number, appends, 8) for number in range(writers)]
    reader = start(appending.read, path, until, results)
    for process in writing:
        process.join(1500)
        assert process.exitcode == 0
    until.touch()
    reader.join(120)
    found = results.get()
    assert reader.exitcode == 0, found
    total, versions = found
    print(f"{appends * writers} appends, {total} samples read in {versions} versions: 0 torn")
    assert versions > 1
    stored = numbers(path)
    for writer in range(writers):
        of_writer = stored[stored // appending.PER_WRITER == writer]
        assert sorted(of_writer - writer * appending.PER_WRITER) == list(range(len(of_writer)))


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_a_writer_that_is_killed_leaves_nothing_that_is_visible_and_no_gap(tmp_path: Path, kills: int) -> None:
    path, drawn = tmp_path / "a", random.Random(1)
    survivor = Appender(path, chunk_rows=8, compressors=None)
    mine = 0
    visible = np.empty(0, np.int64)
    for kill in range(kills):
        log = tmp_path / f"log-{kill}"
        process = start(appending.write, path, kill + 1, 10**6, 8, log)
        deadline = time.monotonic() + 60
        after = drawn.randrange(1, 500)
        while not log.exists() or int(log.read_text() or 0) < after:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.join(240)
        written = int(log.read_text() or 0)
        survivor.append({"x": appending.samples(mine, mine + 8), "y": np.arange(mine, mine + 8)})
        mine += 8
        found = numbers(path)
        assert (found[: len(visible)] == visible).all(), "what was visible stays"
        visible = found
        killed = np.sort(found[found // appending.PER_WRITER == kill + 1]) - (kill + 1) * appending.PER_WRITER
        assert (killed == np.arange(len(killed))).all(), "a prefix of what the killed writer had appended"
        assert len(killed) > written - 5 * 8, "no more is lost than what it had in memory"
    survivor.close()
    found = numbers(path)
    assert sorted(found[found < appending.PER_WRITER]) == list(range(mine))
    assert len(np.unique(found)) == len(found)
    assert len(zarrfeed.open(path, refresh="epoch")) == len(found)


def test_an_appender_is_not_used_in_a_forked_process(tmp_path: Path) -> None:
    appender = Appender(tmp_path / "a", chunk_rows=4)
    appender.append(np.arange(6))
    child = os.fork()
    if child == 0:
        try:
            appender.append(np.arange(6))
        except ClosedError:
            appender.close()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    appender.close()
    assert (np.asarray(zarr.open_array(tmp_path / "a", mode="r")[:]) == np.arange(6)).all()


def test_a_child_that_was_forked_does_not_keep_a_dead_writer_alive(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    writer = os.fork()
    if writer == 0:
        dead = Appender(tmp_path / "a", chunk_rows=4)
        dead.append(np.arange(4))
        with dead._journal.lock():
            entries = dead._entries()
            dead._journal.claim(entries)
            dead._journal.write(entries)
        if os.fork() == 0:
            os.write(writing, str(os.getpid()).encode())
            time.sleep(60)
        os._exit(0)
    os.waitpid(writer, 0)
    grandchild = int(os.read(reading, 20))
    try:
        with Appender(tmp_path / "a") as appender:
            appender.append(np.arange(4, 8))
            assert appender.num_samples == 8, "the unit of the dead writer was taken over"
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.close(reading)
        os.close(writing)
