"""Patterns of groups and arrays in files, and files that are listed once for all paths in them."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

import zarrfeed
from zarrfeed import ConfigError, StoreReadError
from zarrfeed.storage.files.inside_path import matching_in_files
from zarrfeed.storage.files.open_file import open_file

LENGTHS = (5, 9, 3, 1, 12)


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    """Write two files of episodes as robomimic does, one group an episode; rows have their global index."""
    first = 0
    for name, episodes in (("a.hdf5", range(3)), ("b.hdf5", range(3, 5))):
        with h5py.File(tmp_path / name, "w") as file:
            for episode in episodes:
                rows = np.arange(first, first + LENGTHS[episode])
                first += len(rows)
                group = file.create_group(f"data/demo_{episode}")
                group.create_dataset("actions", data=np.stack([rows] * 3, axis=1))
                group.create_dataset("obs/pos", data=rows.astype("f4"))
            file.create_group("mask")["train"] = np.arange(2)
    return tmp_path


@pytest.mark.parametrize(
    "wanted", ["data/demo_*", "data/*", "*/*", "data/demo_[02]", "data/demo_1", "*/demo_?/actions", "mask/*", "data/x*"]
)
def test_patterns_name_what_h5py_visits(demos: Path, wanted: str) -> None:
    expected: list[str] = []
    with h5py.File(demos / "a.hdf5") as file:
        file.visit(expected.append)
    depth = wanted.count("/")
    expected = [one for one in expected if one.count("/") == depth and fnmatch.fnmatchcase(one, wanted)]
    for pattern in (f"{demos}/a.hdf5/{wanted}", f"{demos}/a.hdf5::{wanted}", f"{demos}/[a]*.hdf5/{wanted}"):
        assert matching_in_files(pattern) == [f"{demos}/a.hdf5/{one}" for one in sorted(expected)]


def test_groups_of_a_pattern_are_one_data_set(demos: Path) -> None:
    data = zarrfeed.open(f"{demos}/*.hdf5/data/demo_*", variables=["actions", "obs/pos"])
    windows = data.window({"actions": (0, 1)})
    firsts = set(range(sum(LENGTHS))) - set((np.cumsum(LENGTHS) - 1).tolist())
    batches = list(zarrfeed.ZarrIterableDataset(windows, batch_size=4, shuffle=True, seed=3))
    rows = np.concatenate([batch["actions"].numpy()[:, :, 0] for batch in batches])
    assert set(rows[:, 0].tolist()) == firsts
    assert (rows[:, 1] == rows[:, 0] + 1).all()


def test_groups_of_a_pattern_are_segments(demos: Path) -> None:
    data = zarrfeed.open(f"{demos}/*.hdf5/data/demo_*", variables=["actions"])
    with pytest.raises(ConfigError, match=r"data.segments\(\) makes each of many stores one"):
        data.sel_segments([1, 4])
    episodes = data.segments()
    numbers = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    for split in (data, episodes):
        parts = [
            {
                int(numbers[row])
                for batch in zarrfeed.ZarrIterableDataset(part, batch_size=4)
                for row in batch["actions"][:, 0]
            }
            for part in split.split((0.6, 0.4), groups="segment", seed=1)
        ]
        assert parts[0] | parts[1] == set(range(len(LENGTHS)))
        assert not parts[0] & parts[1]
    assert len(episodes.sel_segments([1, 4])) == LENGTHS[1] + LENGTHS[4]
    with pytest.raises(ConfigError, match="this is one: give the ends"):
        zarrfeed.open(f"{demos}/a.hdf5/data/demo_0").segments()


def test_a_pattern_that_names_nothing_is_refused(demos: Path) -> None:
    for pattern in ("a.hdf5/data/x*", "a.hdf5/data/demo_*/x/y", "c*.hdf5/data/demo_*"):
        with pytest.raises(StoreReadError, match="no store matches this pattern"):
            zarrfeed.open(f"{demos}/{pattern}")
    with pytest.raises(ConfigError, match=r"the pattern '.*a.hdf5/data/\*' opens them one after another"):
        zarrfeed.open(f"{demos}/a.hdf5/data")


def test_a_file_in_use_is_listed_once(demos: Path) -> None:
    """A list of all groups of a file listed the whole file for each of them: minutes for 200 episodes."""
    path = demos / "a.hdf5"
    assert open_file(path) is not open_file(path), "a file that was just written may change within a tick of its clock"
    os.utime(path, ns=(10**18, 10**18))
    store = open_file(path)
    assert store is not None
    assert open_file(path) is store
    with h5py.File(path, "a") as file:
        file["data/demo_0"].create_dataset("more", data=np.arange(5))
    os.utime(path, ns=(10**18, 10**18 + 10**9))
    changed = open_file(path)
    assert changed is not None
    assert "data/demo_0/more" in changed.array_paths
