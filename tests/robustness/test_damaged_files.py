"""Files of other formats that are damaged: an error of ours, or the values that the library of the format reads."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

import zarrfeed
from tests.support import warm
from tests.support.examples import tries
from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(600)


def test_damaged_files_are_errors_or_what_their_library_reads(tmp_path: Path) -> None:
    """A signal, an error of another class or another value is a fault; the number of its line repeats it."""
    count = tries(42, 5000)
    command = [*warm.command(), "-W", "ignore", "-m", "tests.support.damaged_files", str(tmp_path), "0", str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr
    *faults, last = done.stdout.splitlines()
    assert faults == []
    counts = json.loads(last)
    assert sum(counts.values()) == count
    assert counts["values, library: values"] > count / 5
    assert sum(of for outcome, of in counts.items() if outcome.startswith("error")) > count / 20


def test_a_dataset_is_found_without_a_walk_through_its_index(tmp_path: Path) -> None:
    """HDF5 counted the nodes of each index of chunks as a file was opened, and crashed where one was damaged."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["good"] = np.arange(6)
        file.create_dataset("bad", data=np.arange(400).reshape(20, 20), chunks=(4, 3), maxshape=(None, None))
    content = bytearray(path.read_bytes())
    at = content.index(b"BTHD")  # the header of the tree
    content[at : at + 32] = bytes(32)
    path.write_bytes(content)
    code = f"""
import zarrfeed
try:
    zarrfeed.ZarrDataset(zarrfeed.open({str(path)!r} + "/bad"))[[0]]
except zarrfeed.StoreReadError as error:
    print(error)
"""
    done = subprocess.run([*warm.command(), "-c", code], capture_output=True, text=True, timeout=580, check=False)
    assert (done.returncode, "x.h5/bad: HDF5 cannot read it, it is damaged" in done.stdout) == (0, True), done
    assert zarrfeed.ZarrDataset(zarrfeed.open(path / "good"))[list(range(6))].tolist() == list(range(6))
