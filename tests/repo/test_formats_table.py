"""The tables of docs/formats.md say what is done with every codec and dtype that zarr-python has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numcodecs
import numcodecs.registry
import numpy as np
import pytest
import torch
import zarr
from zarr.dtype import data_type_registry
from zarr.storage import MemoryStore

from tests.support.oracle import CODECS, NUMCODECS_WARNING, ZARR_FORMATS, ZarrFormat
from tests.support.paths import ROOT, TESTS
from zarrfeed import ConfigError, UnsupportedError, ZarrIterableDataset

pytestmark = [
    pytest.mark.filterwarnings(NUMCODECS_WARNING),
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
]

PAGE = ROOT / "docs" / "formats.md"


def table(title: str) -> list[list[str]]:
    """Return the rows of the table of a section, without its head."""
    section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def row_of(title: str, name: str) -> list[str]:
    """Return the one row whose first cell has a name as a word."""
    word = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])")
    # what stands in parentheses behind a codec is of its own
    cells = [re.sub(r"\([^)]*\)", "", row[0]) if title == "Codecs" else row[0] for row in table(title)]
    found = [row for row, cell in zip(table(title), cells, strict=True) if word.search(cell)]
    assert found, f"{name} is in no row of {title}"
    return found[0]


def status(codec: str, zarr_format: int) -> str:
    """Return the first word that the table has on a codec in a format."""
    return re.split(r"[\s,:]", row_of("Codecs", codec)[1 if zarr_format == 2 else 2])[0]


@pytest.mark.parametrize("title", ["Codecs", "Dtypes", "Shards", "Stores"])
def test_every_row_names_tests_that_exist(title: str) -> None:
    rows = table(title)
    assert rows
    tests = {path.name for path in TESTS.rglob("test_*.py")}
    assert len({len(row) for row in rows}) == 1
    for row in rows:
        named = re.findall(r"`(test_\w+\.py)`", row[-1])
        assert named or row[-1].startswith("none"), row
        assert tests.issuperset(named), row


def test_every_codec_of_zarr_python_and_numcodecs_is_in_the_table() -> None:
    ours = {"zarrfeed-inverted"}  # of other tests
    for name in {*numcodecs.registry.codec_registry, *numcodecs.registry.entries} - ours:
        assert status(name, 2) in ("native", "general", "refused", "zarr-python")
    names = vars(zarr.registry)  # zarr-python 3.2 renamed it; it has an empty one for every name that was looked up
    registries = names["_codec_registries" if "_codec_registries" in names else "__codec_registries"]
    known = {name for name, registry in registries.items() if registry or registry.lazy_load_list}
    for name in known - ours - {"endian", "sharding_indexed"}:
        assert status(name.removeprefix("numcodecs."), 3) in ("native", "general")
    assert table("Shards")


@pytest.mark.whole_product
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_what_the_engine_decodes_is_native_in_the_table(codec: str, zarr_format: ZarrFormat) -> None:
    chain = CODECS[codec].v2 if zarr_format == 2 else CODECS[codec].v3
    if chain is None:
        return
    encoded = chain(4)
    options: dict[str, Any] = {"compressors": encoded or None}
    if zarr_format == 2:
        options = {"filters": encoded[:-1] or None, "compressors": encoded[-1] if encoded else None}
    names = [c.codec_id if zarr_format == 2 else c.to_dict()["name"].removeprefix("numcodecs.") for c in encoded]
    array: Any = zarr.create_array(
        MemoryStore(), shape=(8, 2), chunks=(4, 2), dtype="i4", zarr_format=zarr_format, **options
    )
    with ZarrIterableDataset(array) as dataset:
        assert dataset.explain().fields[0].native
    assert {status(name, zarr_format) for name in names} <= {"native"}


@pytest.mark.parametrize("name", ["bz2", "delta", "packbits", "base64", "crc32"])
def test_what_zarr_python_decodes_is_general_in_the_table(name: str) -> None:
    config = {"id": name} | {"delta": {"dtype": "|b1"}}.get(name, {})
    codec = numcodecs.get_codec(config)
    array: Any = zarr.create_array(
        MemoryStore(), shape=(8,), chunks=(4,), dtype="bool", zarr_format=2, filters=[codec], compressors=None
    )
    with ZarrIterableDataset(array) as dataset:
        assert dataset.explain().fields[0].slow_codecs == (name,)
    assert status(name, 2) == "general"


@pytest.mark.parametrize("name", ["categorize", "json2", "msgpack2", "vlen-array"])
def test_objects_that_zarr_python_has_no_dtype_for_are_refused(name: str, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="str", zarr_format=2, compressors=None)
    metadata = json.loads((tmp_path / "a" / ".zarray").read_text())
    options: dict[str, dict[str, Any]] = {
        "categorize": {"labels": ["a"], "dtype": "|O", "astype": "|u1"},
        "vlen-array": {"dtype": "<i4"},
    }
    metadata["filters"] = [{"id": name} | options.get(name, {})]
    (tmp_path / "a" / ".zarray").write_text(json.dumps(metadata))
    with pytest.raises((ConfigError, UnsupportedError), match=r"No Zarr data type found|a: "):
        ZarrIterableDataset(tmp_path / "a")
    assert status(name, 2) == "zarr-python"


def example(name: str) -> Any:
    """Return an array of a dtype of zarr-python's registry."""
    special: dict[str, Any] = {
        "fixed_length_utf32": np.dtype("U5"),
        "null_terminated_bytes": np.dtype("S5"),
        "raw_bytes": np.dtype("V5"),
        "structured": np.dtype([("x", "i4")]),
        "struct": np.dtype([("x", "i4")]),
        "numpy.datetime64": np.dtype("M8[s]"),
        "numpy.timedelta64": np.dtype("m8[s]"),
    }
    return zarr.create_array(MemoryStore(), shape=(4,), chunks=(2,), dtype=special.get(name, name))


#: name in zarr-python's registry -> a word of the first cell of its row
ROWS = {
    "fixed_length_utf32": "U5",
    "struct": "structured",
    "numpy.datetime64": "datetime64",
    "numpy.timedelta64": "timedelta64",
    **{f"{sign}int{bits}": "8 to 64 bit integers" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": "float16/32/64" for bits in (16, 32, 64)},
    **{f"complex{bits}": "complex64/128" for bits in (64, 128)},
}


@pytest.mark.parametrize("name", sorted(data_type_registry.contents))
def test_every_dtype_of_zarr_python_is_delivered_as_the_table_says(name: str) -> None:
    says = row_of("Dtypes", ROWS.get(name, name))[1]
    array = example(name)
    if says.startswith("refused"):
        with pytest.raises(UnsupportedError):
            ZarrIterableDataset(array)
        return
    with ZarrIterableDataset(array, batch_size=4) as dataset:
        (batch,) = dataset
    if "lists of" in says:
        assert f"`{type(batch[0]).__name__}`" in says
        return
    if "a dict of tensors" in says:
        assert [(name, values.dtype) for name, values in batch.items()] == [("x", torch.int32)]
        return
    got = str(batch.dtype).removeprefix("torch.")
    assert got == (name if says == "the same" else says.split()[0].rstrip(","))
    assert (batch.dim() == 2) == ("last axis" in says)
