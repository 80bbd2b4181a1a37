"""`zarrfeed info --tree`: every array and group of a store, and no more lines than can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from zarrfeed.tools import store_tree
from zarrfeed.tools.cli import main

TREE = """\
{path}
├── deep
│   └── er
│       └── z  (time: 23, 2) float32, chunks 4 x 2
├── empty
├── s1
│   ├── time  (23) int64, chunks 23
│   └── x  (time: 23, c: 6) float32, chunks 4 x 3, shards 8 x 6
└── scalar  () int32
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = zarr.create_group(tmp_path / "x.zarr")
    root.create_array("deep/er/z", shape=(23, 2), chunks=(4, 2), dtype="f4", dimension_names=("time", None))
    root.create_group("empty")
    root.create_array("s1/x", shape=(23, 6), chunks=(4, 3), shards=(8, 6), dtype="f4", dimension_names=("time", "c"))
    root.create_array("s1/time", data=np.arange(23))
    root.create_array("scalar", shape=(), dtype="i4")
    return tmp_path / "x.zarr"


def test_all_arrays_and_groups_are_drawn(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--tree", str(store)]) == 0
    assert capsys.readouterr().out == TREE.format(path=store)
    assert main(["info", str(store / "s1" / "x"), str(store / "empty"), "--tree"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{store}/s1/x  (time: 23, c: 6) float32, chunks 4 x 3, shards 8 x 6"
    assert second == f"{store}/empty"


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_consolidated_metadata_draw_the_same(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zarr.consolidate_metadata(store)
    assert main(["info", "--tree", str(store)]) == 0
    assert capsys.readouterr().out == TREE.format(path=store)


def test_many_lines_are_cut(store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(store_tree, "_MOST_LINES", 4)
    assert main(["info", "--tree", str(store)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == TREE.format(path=store).splitlines()[:4]
    assert lines[4:] == ["... (only the first 4 lines are drawn; give the path of a group)"]


def test_a_group_that_links_to_itself_ends(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "empty" / "again").symlink_to(store / "empty")
    assert main(["info", "--tree", str(store)]) == 0
    assert capsys.readouterr().out.count("again") == store_tree._MOST_LEVELS


def test_the_error_for_a_group_without_arrays_names_it(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(store / "deep")]) == 2
    assert capsys.readouterr().err.endswith(f"zarrfeed info --tree {store}/deep draws all that lies there\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.zarr"], "no Zarr array is there"),
        (["nowhere.zarr", "--storage-option", "anon=true"], "storage_options are for URLs"),
    ],
)
def test_arguments_that_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--tree", *arguments]) == 2
    assert message in capsys.readouterr().err
