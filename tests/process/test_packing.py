"""`pack` in processes that are killed, and on executors of processes and clusters: no sample is lost."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support import warm
from tests.support.examples import slow
from tests.support.packing import check_packed, files_of, make_source
from tests.support.paths import ROOT
from zarrfeed.packing.pack import pack
from zarrfeed.packing.sources import stored_rows
from zarrfeed.plan.order.random_bijection import RandomBijection

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

COUNT, SEED = 2000, 12
SMALL: dict[str, Any] = {"sample_chunk": 5, "shard": 600, "jobs": 2}
#: Packs, and prints a line for each unit that is done.
_SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
from zarrfeed.packing.pack import pack
from zarrfeed.packing.sources import stored_rows
stored_rows._RESIDENT_BYTES = 0  # so that a shuffled pack has two passes
source, out, arguments = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
pack(source, out, resume=True, on_progress=lambda now: print(now.stage, now.done, now.total, flush=True), **arguments)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("packing") / "source.zarr"
    make_source(path, COUNT)
    return path


def check(out: Path, source: Path, seed: int | None) -> None:
    numbers = np.arange(COUNT) if seed is None else RandomBijection(COUNT, seed).numbers(np.arange(COUNT))
    check_packed(zarr.open_group(out, mode="r"), zarr.open_group(source, mode="r"), numbers)


def run_and_kill(source: Path, out: Path, arguments: dict[str, Any], after: int, wait_s: float) -> bool:
    """Pack in a process, and kill it some time after it did so many units; return whether it ended by itself."""
    command = [*warm.command(), "-c", _SCRIPT, str(source), str(out), json.dumps(arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=os.environ, text=True) as process:
        assert process.stdout is not None
        for _ in range(after):
            if not process.stdout.readline():
                break
        try:
            return process.wait(wait_s) == 0
        except subprocess.TimeoutExpired:
            warm.kill(process)
            status = process.wait(240)
            assert status in (0, -signal.SIGKILL)  # it may have ended just before
            return status == 0


@pytest.mark.parametrize("seed", [slow(None), SEED])
def test_a_run_that_is_killed_again_and_again_loses_nothing(
    source: Path, tmp_path: Path, seed: int | None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills, rng = 100 if request.config.getoption("--large") else 1, random.Random(seed)
    arguments, killed, rounds = SMALL | {"shuffle": seed}, 0, 0
    whole = tmp_path / "whole.zarr"
    monkeypatch.setattr(stored_rows, "_RESIDENT_BYTES", 0)
    pack(source, whole, **arguments)
    while killed < kills:
        out = tmp_path / f"out{rounds}.zarr"
        while not run_and_kill(source, out, arguments, rng.randint(1, 30), rng.random() / 50):
            killed += 1
            if killed == kills:
                pack(source, out, resume=True, **arguments)
                break
        check(out, source, seed)
        assert files_of(out) == files_of(whole)
        rounds += 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 64 MiB, in memory."""
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", path], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no disk can be mounted: {made.stderr.decode()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True, timeout=240)


@pytest.mark.parametrize("seed", [None, slow(SEED)])
def test_a_disk_that_is_full_again_and_again_loses_nothing(
    source: Path,
    tmp_path: Path,
    small_disk: Path,
    seed: int | None,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted, rng = 50 if request.config.getoption("--large") else 2, random.Random(seed)
    arguments: dict[str, Any] = SMALL | {"shuffle": seed}
    monkeypatch.setattr(stored_rows, "_RESIDENT_BYTES", 0)
    pack(source, tmp_path / "whole.zarr", **arguments)
    whole = files_of(tmp_path / "whole.zarr")
    full = rounds = 0
    while full < wanted:
        out, room = small_disk / f"out{rounds}.zarr", rng.randint(1, 64)
        while True:
            _leave_room(small_disk, room * 4096)  # of pages: the smallest file takes one
            try:
                pack(source, out, resume=True, **arguments)
                break
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                full += 1
                room = rng.randint(1, 256) if full < wanted else 8192
            assert not out.exists()
        (small_disk / "filler").unlink()
        check(out, source, seed)
        assert files_of(out) == whole
        shutil.rmtree(out)
        assert [path.name for path in small_disk.iterdir()] == []
        rounds += 1


def _leave_room(disk: Path, room: int) -> None:
    """Fill a disk with a file, but for so many bytes."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    status = os.statvfs(disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, status.f_bavail * status.f_frsize - room))


def test_processes_do_units_as_threads_do(source: Path, tmp_path: Path) -> None:
    """Units are pickled for any such process; those of a Dask cluster start with nothing imported."""
    with ProcessPoolExecutor(2, get_context("forkserver")) as executor:
        few_units = SMALL | {"shard": 3000}
        report = pack(source, tmp_path / "out.zarr", shuffle=SEED, executor=executor, verify=True, **few_units)
    assert report.proof is not None
    assert report.proof.ok
    check(tmp_path / "out.zarr", source, SEED)
