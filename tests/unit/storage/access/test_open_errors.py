"""Metadata that zarr-python refuses: the error names the member of the document, and its value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed as zf
from zarrfeed import ConfigError
from zarrfeed.tools import cli

GONE = object()
MEMBERS = {
    "zarr.json": ("fill_value", "data_type", "chunk_grid", "chunk_key_encoding", "codecs", "shape", "node_type"),
    ".zarray": ("dtype", "chunks", "order", "shape"),
}


def write(folder: Path, key: str, stored: str = "i8", **changes: Any) -> None:
    data = np.arange(4).reshape(2, 2).astype(stored)
    array = zarr.create_array(
        folder, data=data, chunks=(2, 1), zarr_format=3 if key == "zarr.json" else 2, overwrite=True
    )
    document = json.loads((folder / key).read_bytes())
    document |= {name: value for name, value in changes.items() if value is not GONE}
    for name, value in changes.items():
        if value is GONE:
            del document[name]
    (folder / key).write_text(json.dumps(document))
    assert array.shape == (2, 2)


@pytest.mark.parametrize("key", MEMBERS)
def test_the_member_that_is_refused_is_named(key: str, tmp_path: Path) -> None:
    for member in MEMBERS[key]:
        for value, words in (
            (None, rf"{member} = null"),
            ({}, rf"{member} = \{{\}}"),
            (GONE, f"it lacks {member!r}"),
            ("x" * 1000, rf"(codec |{member} = )\"x{{1,200}}"),
        ):
            changes: dict[str, Any] = {member: value}
            write(tmp_path / "x", key, **changes)
            with pytest.raises(ConfigError, match=rf"x: zarr-python cannot open it: {words}"):
                zf.open(tmp_path / "x")


@pytest.mark.parametrize("dtype", ["i4", "f8", "M8[s]", "c8"])
def test_a_fill_value_of_null_is_named_for_every_dtype(dtype: str, tmp_path: Path) -> None:
    write(tmp_path / "x", "zarr.json", dtype, fill_value=None)
    zarr.create_group(tmp_path, overwrite=False)
    for source in (tmp_path / "x", tmp_path, {"a": tmp_path / "x"}):
        with pytest.raises(ConfigError, match=r"/x: zarr-python cannot open it: fill_value = null, must be an item of"):
            zf.open(source)
    report = zf.verify(tmp_path)
    assert "fill_value = null" in str(report.arrays[0].problem)


def test_the_command_line_names_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "x", "zarr.json", fill_value=None)
    assert cli.main(["info", str(tmp_path / "x")]) != 0
    assert "fill_value = null" in capsys.readouterr().err


def test_two_members_that_are_refused_are_told_by_zarr_python(tmp_path: Path) -> None:
    write(tmp_path / "x", "zarr.json", fill_value=None, shape=None)
    with pytest.raises(ConfigError, match="x: zarr-python cannot open it: "):
        zf.open(tmp_path / "x")


@pytest.mark.parametrize(
    ("key", "damaged"), [("zarr.json", "zarr.json"), (".zarray", ".zarray"), (".zarray", ".zattrs")]
)
def test_a_document_that_is_too_deep_for_python_is_an_error_of_ours(key: str, damaged: str, tmp_path: Path) -> None:
    """No member is blamed for it."""
    write(tmp_path / "x", key)
    document = json.loads((tmp_path / "x" / key).read_bytes()) if damaged == key else {}
    text = json.dumps({**document, "deep": "HERE"}).replace('"HERE"', "[" * 100_000 + "]" * 100_000)
    (tmp_path / "x" / damaged).write_text(text)
    for use in (zf.open, zf.verify, zf.stats, lambda store: zf.pack([store], tmp_path / "packed")):
        with pytest.raises(ConfigError, match=r"x: zarr-python cannot open it: RecursionError"):
            use(tmp_path / "x")
