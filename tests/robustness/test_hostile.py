"""Stores that lie or trick: whatever is in one ends in an error of ours, soon, in little memory, and runs nothing."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support import warm
from tests.support.examples import slow
from tests.support.paths import ROOT
from zarrfeed import ConfigError, StoreReadError, ZarrDataset, ZarrfeedError, ZarrIterableDataset

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}
V3: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [40, 3],
    "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 3]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [BYTES],
    "attributes": {},
}
V2: dict[str, Any] = {
    "zarr_format": 2,
    "shape": [40, 3],
    "chunks": [4, 3],
    "dtype": "<i4",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}


def chunks(*shape: int) -> dict[str, Any]:
    return {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shape)}}}


def shards(inner: tuple[int, ...], index: Any = (BYTES, CRC), codecs: Any = (BYTES,)) -> dict[str, Any]:
    settings = {"chunk_shape": inner, "codecs": codecs, "index_codecs": index, "index_location": "end"}
    return {"codecs": [{"name": "sharding_indexed", "configuration": settings}]}


def items(name: str, length: int) -> dict[str, Any]:
    return {"data_type": {"name": name, "configuration": {"length_bytes": length}}, "fill_value": ""}


TEXT: dict[str, Any] = {"data_type": "string", "fill_value": "", "codecs": [{"name": "vlen-utf8"}]}
BZ2 = {"name": "numcodecs.bz2", "configuration": {"level": 1}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}

IN_SHARDS = shards((64, 3), codecs=shards((1, 3))["codecs"])["codecs"]


def deep(depth: int) -> Any:
    """Return codecs of which `depth` are shards, each in the one before."""
    codecs: Any = (BYTES,)
    for _ in range(depth):
        codecs = shards((64, 3), codecs=codecs)["codecs"]
    return {"codecs": codecs}


#: Name -> (what of the metadata is changed, ways to read that must fail). Others may do either, but nothing else.
ALL = ("stream", "at_random", "verify")
SIZES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "nothing": ({}, ()),
    "shape of 2**62": ({"shape": [2**62, 3]}, ALL),
    "shape of 2**64": ({"shape": [2**64, 3]}, ALL),
    "2**40 rows in chunks of 4": ({"shape": [2**40, 3]}, ALL),
    "2**32 rows in chunks of 4": ({"shape": [2**32, 3]}, ()),
    "2**31 chunks of one row": ({"shape": [2**31, 1]} | chunks(1, 1), ()),
    "2**31 chunks in a row": ({"shape": [1, 2**31]} | chunks(1, 1), ("stream", "at_random")),
    "2**22 chunks in a row": ({"shape": [2, 2**22]} | chunks(1, 1), ("stream", "at_random")),
    "a row of 2**45": ({"shape": [4, 2**45]} | chunks(1, 2**45), ALL),
    "a chunk of 2**40 rows": (chunks(2**40, 3), ALL),
    "a chunk of 2**58 rows": (chunks(2**58, 3), ALL),
    "a chunk of 2**62 by 2**62": (chunks(2**62, 2**62), ALL),
    "a chunk of no rows": (chunks(0, 3), ALL),
    "a chunk of less than no rows": (chunks(-4, 3), ALL),
    "1000 axes": ({"shape": [4] + [1] * 999} | chunks(*[1] * 1000), ALL),
    "33 axes": ({"shape": [4] + [1] * 32} | chunks(*[1] * 33), ALL),
    "32 axes": ({"shape": [4] + [1] * 31} | chunks(*[1] * 32), ()),
    "an index of 2**40": (chunks(2**40, 3) | shards((1, 3)), ALL),
    "an index of 2**28": (chunks(2**28, 3) | shards((1, 3)), ("stream", "verify")),
    "an index of 2**28, inner chunks of bz2": (
        chunks(2**28, 3) | shards((1, 3), codecs=(BYTES, BZ2)),
        ("stream", "verify"),
    ),
    "an inner chunk of 2**40 rows": (chunks(2**40, 3) | shards((2**40, 3)), ALL),
    "an index of 2**28, encoded otherwise": (chunks(2**28, 3) | shards((1, 3), (BYTES, ZSTD)), ("verify", "stream")),
    "inner chunks that do not divide": (chunks(10, 3) | shards((3, 3)), ALL),
    "shards in shards in shards": (chunks(64, 3) | shards((64, 3), codecs=IN_SHARDS), ()),
    **{f"shards that are {depth} deep": (chunks(64, 3) | deep(depth), ()) for depth in (8, 9, 60, 200)},
    "400 compressors": ({"codecs": [BYTES, *[ZSTD] * 200, *[BZ2] * 200]}, ()),
    "items of 2**31 bytes": (items("null_terminated_bytes", 2**31 - 1), ("stream", "verify")),
    "items of 2**60 bytes": (items("null_terminated_bytes", 2**60), ALL),
    "items of -5 bytes": (items("null_terminated_bytes", -5), ALL),
    "text in a chunk of 2**40": (TEXT | chunks(2**40, 3), ALL),
    "text in a chunk of 2**33 of as many": (TEXT | {"shape": [2**33, 3]} | chunks(2**33, 3), ALL),
    "a long dimension name": ({"dimension_names": ["x" * (1 << 24), "y"]}, ()),
    "dimension names that are none": ({"dimension_names": ["\x1b[2J", "\x00"]}, ()),
    "1000 checksums": ({"codecs": [BYTES] + [CRC] * 1000}, ()),
    "a filter that lacks its dtype": ({"codecs": [{"name": "numcodecs.astype", "configuration": {}}, BYTES]}, ALL),
    "300 times zstd": ({"codecs": [BYTES] + [ZSTD] * 300}, ()),
    "a list as fill value": ({"fill_value": [1] * 1000}, ALL),
    "a number of 400 digits as fill value": ({"fill_value": 10**400}, ALL),
    "attributes that are nested": ({"attributes": {"scale_factor": json.loads("[" * 900 + "]" * 900)}}, ()),
    "a scale that is a mapping": ({"attributes": {"scale_factor": {"a": 1}, "_FillValue": [[[]]]}}, ()),
    "a fill value in attributes that no number can hold": ({"attributes": {"_FillValue": 10**400}}, ()),
    "a codec that is a module": ({"codecs": [BYTES, {"name": "os.system", "configuration": {}}]}, ALL),
    "a codec that is a path": ({"codecs": [BYTES, {"name": "../../evil.so", "configuration": {}}]}, ALL),
    "a codec that unpickles": ({"codecs": [BYTES, {"name": "numcodecs.pickle", "configuration": {}}]}, ALL),
    "a separator that is a path": (
        {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "/../"}}},
        ALL,
    ),
}
SIZES_V2: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "v2, nothing": ({}, ()),
    "v2, items of 2**40 bytes": ({"dtype": "|S1099511627776", "fill_value": ""}, ALL),
    "v2, text of 500 million characters": ({"dtype": "<U500000000", "fill_value": ""}, ("stream", "verify")),
    "v2, objects": ({"dtype": "|O"}, ALL),
    "v2, objects that are unpickled": ({"dtype": "|O", "filters": [{"id": "pickle"}]}, ALL),
    "v2, objects of json2": ({"dtype": "|O", "filters": [{"id": "json2"}]}, ALL),
    "v2, objects of msgpack2": ({"dtype": "|O", "filters": [{"id": "msgpack2"}]}, ALL),
    "v2, objects of vlen-array": ({"dtype": "|O", "filters": [{"id": "vlen-array", "dtype": "<i4"}]}, ALL),
    "v2, a compressor that unpickles": ({"compressor": {"id": "pickle"}}, ALL),
    "v2, a filter that unpickles": ({"filters": [{"id": "delta", "dtype": "<i4"}, {"id": "pickle"}]}, ALL),
    "v2, a filter that nobody has": ({"filters": [{"id": "subprocess"}]}, ALL),
    "v2, a structure of 4 GB": ({"dtype": [["a", "<i4", [10**9]]], "fill_value": None}, ALL),
    "v2, 500 filters": ({"filters": [{"id": "delta", "dtype": "<i4"}] * 500}, ()),
    "v2, Blosc of no kind": ({"compressor": {"id": "blosc", "cname": "evil", "clevel": 99, "shuffle": 77}}, ()),
    **{
        f"v2, Blosc whose {option} is {value!r}": ({"compressor": {"id": "blosc", "cname": "lz4", option: value}}, ALL)
        for option, value in (
            ("shuffle", [1]),
            ("shuffle", {"a": 1}),
            ("blocksize", "abc"),
            ("blocksize", [4]),
            ("blocksize", {}),
            ("blocksize", 1e300),
            ("blocksize", math.inf),
            ("blocksize", 10**30),
        )
    },
    "v2, Blosc of negative blocks": ({"compressor": {"id": "blosc", "cname": "lz4", "blocksize": -5}}, ()),
    "v2, a separator that is a path": ({"dimension_separator": "/../"}, ALL),
    "v2, 70 axes": ({"shape": [4] * 70, "chunks": [1] * 70}, ALL),
}


#: Cases that differ in a number from another one; they run with --large alone.
ALIKE = {
    *("shape of 2**64", "2**31 chunks in a row", "a chunk of 2**58 rows", "33 axes", "an index of 2**40"),
    *("items of 2**60 bytes", "300 times zstd", "shards that are 8 deep", "shards that are 60 deep"),
    *("v2, objects of json2", "v2, objects of msgpack2", "v2, Blosc whose shuffle is [1]"),
    *(f"v2, Blosc whose blocksize is {value}" for value in ("[4]", "{}", "1e+300", str(10**30))),
}
NAMES = [slow(name) if name in ALIKE else name for name in (*SIZES, *SIZES_V2)]


@cache
def outcomes(directory: Path, *, is_large: bool) -> dict[str, dict[str, Any]]:
    """Read all of them, by name; each in a process of its own, all forked from one that imported zarrfeed."""
    for metadata, file, cases in ((V3, "zarr.json", SIZES), (V2, ".zarray", SIZES_V2)):
        for name, (change, _) in cases.items():
            (directory / name.replace("/", "_")).mkdir()
            (directory / name.replace("/", "_") / file).write_text(json.dumps(metadata | change))
    names = [name for name in (*SIZES, *SIZES_V2) if is_large or name not in ALIKE]
    script = [*warm.command(), "-W", "ignore", "-m", "tests.support.hostile", str(directory), *names]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return {result["name"]: result for result in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> dict[str, dict[str, Any]]:
    return outcomes(tmp_path_factory.mktemp("hostile"), is_large=pytestconfig.getoption("--large"))


@pytest.mark.parametrize("name", NAMES)
def test_metadata_that_lie_are_an_error_of_ours_in_little_memory(name: str, hostile: dict[str, dict[str, Any]]) -> None:
    """Too many blocks, chunks in a row or axes, and too large items, were errors of Python or NumPy once."""
    must_fail = (SIZES | SIZES_V2)[name][1]
    result = hostile[name]
    for way in ALL:
        assert not result[way].startswith("not ours"), (way, result[way])
        assert (result[way] != "read") >= (way in must_fail), (way, result[way])
    assert result["mib"] < 768


# -- metadata files ----------------------------------------------------------------------------------------------------


def store_of(path: Path, **options: Any) -> Path:
    array = zarr.create_array(path, **({"shape": (8, 2), "chunks": (2, 2), "dtype": "i4"} | options))
    array[...] = 1 + np.arange(16).reshape(8, 2)
    return path


@pytest.mark.parametrize("below", ["", "group"])
def test_metadata_that_are_too_large_or_no_file_are_refused_unread(below: str, tmp_path: Path) -> None:
    store = store_of(tmp_path / "group/a")
    opened = store.parent if below else store
    zarr.create_group(tmp_path / "group", overwrite=False, zarr_format=3)
    file = store / "zarr.json"
    file.unlink()
    os.mkfifo(file)  # opening it would wait for a writer
    for dataset in (ZarrIterableDataset, ZarrDataset):
        with pytest.raises(ConfigError, match=r"zarr\.json: is not a regular file, metadata must be one"):
            dataset(opened)
    file.unlink()
    with file.open("wb") as sparse:
        sparse.truncate(300 << 20)
    for dataset in (ZarrIterableDataset, ZarrDataset):
        with pytest.raises(ConfigError, match=r"zarr\.json: has 314572800 bytes, metadata must have at most 67108864"):
            dataset(opened)
    if below:
        assert "314572800" in zarrfeed.verify(opened).arrays[0].problem


def test_a_deep_tree_of_groups_is_walked_without_a_stack(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g.zarr")
    deep = tmp_path / "g.zarr"
    for _ in range(400):
        deep = deep / "g"
        deep.mkdir()
        (deep / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    store_of(deep / "x")
    (only,) = zarrfeed.verify(group).arrays
    assert (only.path.count("g"), only.good) == (400, 4)


# -- paths and links ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "..", "..\\secret", "/etc"])
def test_no_name_leads_out_of_the_store(name: str, tmp_path: Path) -> None:
    store_of(tmp_path / "secret", zarr_format=2)
    root = zarr.create_group(tmp_path / "g.zarr", zarr_format=2)
    store_of(tmp_path / "g.zarr/a", zarr_format=2)
    zarr.consolidate_metadata(root.store, zarr_format=2)
    with pytest.raises(ZarrfeedError):
        ZarrIterableDataset(zarrfeed.open(tmp_path / "g.zarr", variables=[name]))
    with pytest.raises(ZarrfeedError):
        zarrfeed.verify(tmp_path / "g.zarr", [name])
    consolidated = tmp_path / "g.zarr/.zmetadata"
    listed = json.loads(consolidated.read_text())
    listed["metadata"][f"{name}/.zarray"] = listed["metadata"]["a/.zarray"]
    listed["metadata"][f"{name}/.zattrs"] = {}
    consolidated.write_text(json.dumps(listed))
    with pytest.raises(ZarrfeedError):
        ZarrIterableDataset(zarrfeed.open(tmp_path / "g.zarr", variables=[name]))


@pytest.mark.parametrize("general", [False, True])
def test_a_link_to_nothing_is_an_error_and_not_the_fill_value(general: bool, tmp_path: Path) -> None:
    """A disk that is not mounted once read as fill values."""
    options = {"zarr_format": 2, "compressors": numcodecs.BZ2()} if general else {}
    store = store_of(tmp_path / "a.zarr", **options)
    chunk = store / ("1.0" if general else "c/1")
    chunk.rename(tmp_path / "elsewhere")
    chunk.symlink_to(tmp_path / "elsewhere")
    assert len(list(ZarrIterableDataset(store))) == 8
    (tmp_path / "elsewhere").rename(tmp_path / "unmounted")
    with pytest.raises(StoreReadError, match="is a link to nothing that is there") as caught:
        list(ZarrIterableDataset(store))
    assert caught.value.errno == errno.ENOENT
    report = zarrfeed.verify(store)
    assert [f.cause for f in report.findings] == ["unreadable", "link"]
    chunk.unlink()
    assert [f.cause for f in zarrfeed.verify(store).findings] == ["missing"]


def test_a_pipe_in_the_place_of_a_chunk_is_an_error_also_where_zarr_python_reads(tmp_path: Path) -> None:
    store = store_of(tmp_path / "a.zarr", zarr_format=2, compressors=numcodecs.BZ2())
    (store / "1.0").unlink()
    os.mkfifo(store / "1.0")
    with pytest.raises(StoreReadError, match="is not a regular file"):
        list(ZarrIterableDataset(store))
    assert [f.cause for f in zarrfeed.verify(store).findings] == ["unreadable"]


# -- code --------------------------------------------------------------------------------------------------------------


class Payload:
    """What runs a command where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("member", ["compressor", "filters"])
@pytest.mark.parametrize("dtype", ["|O", "<i4"])
def test_nothing_that_is_stored_is_unpickled(member: str, dtype: str, tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    store = tmp_path / "a.zarr"
    store.mkdir()
    codec = {"id": "pickle", "protocol": 5}
    metadata = V2 | {"dtype": dtype, member: codec if member == "compressor" else [codec]}
    (store / ".zarray").write_text(json.dumps(metadata))
    for i in range(10):
        (store / f"{i}.0").write_bytes(pickle.dumps(Payload(proof)))
    for read in (ZarrIterableDataset, ZarrDataset):
        with pytest.raises(ZarrfeedError):
            read(store)
    assert not zarrfeed.verify(zarr.create_group(tmp_path / "g")).arrays
    with pytest.raises(ZarrfeedError):
        zarrfeed.verify(store)
    assert not proof.exists()
    pickle.loads((store / "0.0").read_bytes())
    assert proof.exists()  # it would have been
