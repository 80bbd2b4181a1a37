"""The members of a group beside files that are no nodes, and members that are damaged."""

from __future__ import annotations

import gc
import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr

import zarrfeed as zf
from zarrfeed.base.errors import ConfigError
from zarrfeed.storage.access.group_members import arrays_of, members_of


@pytest.fixture(params=[2, 3])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a group with the arrays x, y, z and the group inner, and files as macOS and Jupyter leave them."""
    path = tmp_path / "g.zarr"
    made = zarr.create_group(path, zarr_format=request.param)
    for number, name in enumerate("zyx"):
        made.create_array(name, data=np.full(5, number), chunks=(5,))
    made.create_group("inner").create_array("deep", data=np.zeros(5), chunks=(5,))
    for name in (".DS_Store", "._zarr.json", "README.md", "c"):
        (path / name).write_text("x")
    (path / ".ipynb_checkpoints").mkdir()
    return path


def documents(group: Path, name: str) -> Path:
    return next(path for path in (group / name / "zarr.json", group / name / ".zarray") if path.exists())


def test_files_that_are_no_nodes_are_warned_of_or_listed(group: Path) -> None:
    node = zarr.open_group(group, mode="r")
    assert list(members_of(node)) == ["inner", "x", "y", "z"]
    found = arrays_of(node)
    assert list(found) == ["x", "y", "z"]
    assert [int(array[0]) for array in found.values()] == [2, 1, 0]  # type: ignore[arg-type]
    assert isinstance(members_of(node)["inner"], zarr.Group)
    assert len(zf.open(group)) == 5


@pytest.mark.parametrize("document", ["{", "[]", '{"zarr_format": 3, "node_type": "array"}', ""])
def test_a_damaged_member_is_passed_over_or_floods_the_log(
    group: Path, document: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "zy":
        documents(group, name).write_text(document)
    with caplog.at_level(logging.DEBUG):
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"g\.zarr/y: zarr-python cannot open it") as caught:
                zf.open(group)
            assert "\n" not in str(caught.value)
        gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio" and record.levelno >= logging.ERROR]


def test_consolidated_metadata_are_listed_by_requests(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(group)
    node = zarr.open_group(group, mode="r", use_consolidated=True)
    monkeypatch.setattr(type(node.store), "list_dir", None)
    assert list(members_of(node)) == ["inner", "x", "y", "z"]
