"""Attributes that are no object are refused, in whatever way a node is reached."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed as zf
from zarrfeed import ConfigError, ZarrIterableDataset
from zarrfeed.packing.pack import pack
from zarrfeed.storage.access.checked_nodes import checked

ROWS = np.arange(24).reshape(8, 3)
WRONG: tuple[Any, ...] = (1, "x", [1], True, 0.5)


def store(path: Path, zarr_format: Any, consolidated: bool = False) -> None:
    group = zarr.create_group(path, zarr_format=zarr_format)
    group.create_array("x", data=ROWS, chunks=(4, 3))
    group.create_array("y", data=ROWS[:, 0], chunks=(4,))
    if consolidated:
        zarr.consolidate_metadata(path)


def set_attributes(node: Path, value: Any, zarr_format: Any) -> None:
    if zarr_format == 2:
        (node / ".zattrs").write_text(json.dumps(value))
        return
    document = json.loads((node / "zarr.json").read_bytes())
    (node / "zarr.json").write_text(json.dumps(document | {"attributes": value}))


def zarr_opens(path: Path) -> bool:
    """Return whether zarr-python opens the array "x" of a store; since 3.4 it refuses some attributes itself."""
    try:
        zarr.open_array(path / "x", mode="r")
    except (TypeError, ValueError):
        return False
    return True


#: Ways to reach the array "x" of a store, or the store itself.
WAYS: dict[str, Callable[[str], Any]] = {
    "open": lambda path: zf.open(path),
    "the array": lambda path: zf.open(f"{path}/x"),
    "a mapping": lambda path: zf.open({"a": f"{path}/x"}),
    "an open group": lambda path: zf.open(zarr.open_group(path, mode="r")),
    "an open array": lambda path: zf.open(zarr.open_array(f"{path}/x", mode="r")),
    "a store": lambda path: zf.open(zarr.storage.LocalStore(path)),
    "many": lambda path: zf.open([f"{path}/x", f"{path}/x"]),
    "stats": lambda path: zf.stats(path),
    "pack": lambda path: pack(path, f"{path}.packed"),
}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("node", ["x", "."])
def test_attributes_that_are_no_object_are_refused(node: str, zarr_format: int, tmp_path: Path) -> None:
    store(tmp_path / "a.zarr", zarr_format)
    for value in WRONG:
        set_attributes(tmp_path / "a.zarr" / node, value, zarr_format)
        for way, reach in WAYS.items():
            if node == "." and way not in ("open", "stats", "pack"):
                continue  # of another node, or refused by zarr-python
            if way.startswith("an open") and not zarr_opens(tmp_path / "a.zarr"):
                continue
            with pytest.raises(ConfigError, match=r"attributes = .*, must be an object of JSON"):
                reach(str(tmp_path / "a.zarr"))
    report = zf.verify(tmp_path / "a.zarr") if node == "x" else None
    assert report is None or "must be an object of JSON" in str(report.arrays[0].problem)


def test_consolidated_attributes_that_are_no_object_are_refused(tmp_path: Path) -> None:
    store(tmp_path / "a.zarr", 2, consolidated=True)
    document = json.loads((tmp_path / "a.zarr" / ".zmetadata").read_bytes())
    document["metadata"]["x/.zattrs"] = [1]
    (tmp_path / "a.zarr" / ".zmetadata").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"attributes = \[1\], must be an object of JSON"):
        zf.open(tmp_path / "a.zarr")


def test_attributes_of_null_are_none(tmp_path: Path) -> None:
    store(tmp_path / "a.zarr", 3)
    set_attributes(tmp_path / "a.zarr" / "x", None, 3)
    with ZarrIterableDataset(tmp_path / "a.zarr", batch_size=8) as dataset:
        (batch,) = dataset
    assert batch["x"].tolist() == ROWS.tolist()


def test_a_long_value_is_cut_short(tmp_path: Path) -> None:
    store(tmp_path / "a.zarr", 3)
    set_attributes(tmp_path / "a.zarr" / "x", "y" * 10_000, 3)
    with pytest.raises(ConfigError) as caught:
        zf.open(tmp_path / "a.zarr")
    assert len(str(caught.value)) < 1000
    assert checked("no node") == "no node"
