"""Files of references: what they may say, and each way in which they can lie, as an error that names file and array."""

from __future__ import annotations

import base64
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import zarr
from torch.utils.data import DataLoader

import zarrfeed
from tests.support.counting_server import CountingServer
from zarrfeed import ConfigError, StoreReadError, UnsupportedError, ZarrDataset, ZarrIterableDataset
from zarrfeed.storage.files.chunk_names import ChunkNames
from zarrfeed.storage.files.open_file import are_references
from zarrfeed.storage.files.reference_folder import open_reference_folder
from zarrfeed.storage.files.references import is_references, open_references

ROWS = np.arange(24, dtype="<i4").reshape(8, 3)
DOCUMENT = {
    "zarr_format": 2,
    "shape": [8, 3],
    "chunks": [2, 3],
    "dtype": "<i4",
    "fill_value": None,
    "order": "C",
    "filters": None,
    "compressor": None,
}
CHUNK_BYTES = 2 * 3 * 4


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Write a file with the chunks of x, one after the other, behind 5 bytes of something else."""
    path = tmp_path / "data.bin"
    path.write_bytes(b"12345" + ROWS.tobytes())
    return path


def part(target: Any, number: int) -> list[Any]:
    return [str(target), 5 + number * CHUNK_BYTES, CHUNK_BYTES]


def references(target: Any, **changes: Any) -> dict[str, Any]:
    """Return references to the chunks of x, some of them changed: `c2=` is that of chunk 2."""
    chunks = {f"x/{number}.0": part(target, number) for number in range(4)}
    chunks |= {f"x/{name[1:]}.0": one for name, one in changes.items()}
    return {".zgroup": json.dumps({"zarr_format": 2}), "x/.zarray": json.dumps(DOCUMENT), **chunks}


def written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def read(path: Any, **options: Any) -> Any:
    """Return the rows of x, after a shuffled epoch had the same ones; in the engine and through zarr-python."""
    data = zarrfeed.open(path, **options)
    rows = np.concatenate([batch["x"] for batch in ZarrIterableDataset(data, batch_size=3)])
    for batch, index in ZarrIterableDataset(data, batch_size=3, shuffle=True, return_index=True):
        assert np.array_equal(batch["x"], rows[index])
    return rows


def stored(store: Any) -> Any:
    """Return the rows of x as zarr-python reads them."""
    group: Any = zarr.open_group(store, mode="r")
    return group["x"][...]


def test_chunks_lie_in_files_and_in_the_references(target: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.write_bytes(ROWS[2:4].tobytes())
    inline = "base64:" + base64.b64encode(ROWS[4:6].tobytes()).decode()
    plain = ROWS[6:].tobytes().decode("latin-1")
    assert plain.isascii()
    path = written(tmp_path / "refs.json", references(target, c1=[str(whole)], c2=inline, c3=plain))
    assert np.array_equal(read(path), ROWS)
    assert np.array_equal(stored(open_references(path)), ROWS)
    explained = str(ZarrIterableDataset(zarrfeed.open(path), batch_size=3).explain())
    assert "references in place" in explained


def test_a_chunk_without_a_reference_is_the_fill_value(target: Path, tmp_path: Path) -> None:
    found = references(target)
    del found["x/1.0"]
    found["x/9.0"] = found["x/01.0"] = found["x/0.0.0"] = ["nowhere", 0, 1]  # keys that nobody asks for
    rows = read(written(tmp_path / "refs.json", {"version": 1, "refs": found}))
    assert np.array_equal(rows[:2], ROWS[:2])
    assert not rows[2:4].any()


@pytest.mark.parametrize("name", ["{}", "file://{}", "file:{}", "local://{}", "{{{{u}}}}/data.bin"])
def test_paths_are_written_as_kerchunk_writes_them(target: Path, tmp_path: Path, name: str) -> None:
    content = {"version": 1, "templates": {"u": str(tmp_path)}, "refs": references(name.format(target))}
    assert np.array_equal(read(written(tmp_path / "refs.json", content)), ROWS)


@pytest.mark.usefixtures("target")
def test_relative_paths_count_from_the_current_folder_then_from_the_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "refs.json", references("data.bin"))
    assert np.array_equal(read(path), ROWS)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "data.bin").write_bytes(b"12345" + (ROWS + 1).tobytes())
    monkeypatch.chdir(elsewhere)
    assert np.array_equal(read(path), ROWS + 1)


def test_a_copy_in_another_process_reads_the_references_again(target: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "refs.json", references(target))
    store = open_references(path)
    for one in (store, pickle.loads(pickle.dumps(store))):
        assert np.array_equal(stored(one), ROWS)
    assert store == open_references(path) != open_references(written(tmp_path / "other.json", references(target)))


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"c1": ["{target}", 5, 10**6]}, StoreReadError, r"refs\.json/x: chunk \(1, 0\) .*data\.bin has 101 bytes"),
        ({"c1": ["{target}", -1, 24]}, ConfigError, r"refs\.json/x chunk 1\.0: the reference is"),
        ({"c1": ["{target}", 5, -24]}, ConfigError, r"refs\.json/x chunk 1\.0: the reference is"),
        ({"c1": ["{target}", 10**30, 24]}, ConfigError, r"refs\.json/x chunk 1\.0: the reference is"),
        ({"c1": ["{target}", 5.0, 24]}, ConfigError, r"refs\.json/x chunk 1\.0: the reference is"),
        ({"c1": ["{target}", 5]}, ConfigError, r"refs\.json/x chunk 1\.0: the reference is"),
        ({"c1": None}, ConfigError, r"refs\.json/x chunk 1\.0: the reference is None"),
        ({"c1": [None, 5, 24]}, ConfigError, r"refs\.json/x: refers to 'None'"),
        ({"c1": ["base64:!"]}, StoreReadError, r"refs\.json/x: its chunks lie in .*base64:!: No such file"),
        ({"c1": "base64:A"}, ConfigError, r"refs\.json/x chunk 1\.0: its inline bytes are no base64"),
        ({"c1": ["/nowhere/x", 5, 24]}, StoreReadError, r"refs\.json/x: its chunks lie in /nowhere/x: No such file"),
        ({"c1": ["/dev/zero", 5, 24]}, StoreReadError, r"/dev/zero, which is no regular file"),
        ({"c1": ["a\0b", 5, 24]}, StoreReadError, r"refs\.json/x: its chunks lie in"),
        ({"c1": ["{{other}}", 5, 24]}, ConfigError, r"only templates that are plain text"),
        ({"c1": ["ftp://host/x", 5, 24]}, UnsupportedError, r"ftp:// is not supported"),
    ],
)
def test_a_reference_that_lies_is_an_error(
    target: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], match: str
) -> None:
    filled = json.loads(json.dumps(changes).replace("{target}", str(target)))
    path = written(tmp_path / "refs.json", references(target, **filled))
    with pytest.raises(error, match=match):
        zarrfeed.open(path)


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        ('{"refs": ', ConfigError, "is no file of references, or a damaged one"),
        ('{"version": 1, "refs": []}', ConfigError, "refs and templates must be JSON objects"),
        ('{"version": 2, "refs": {}}', UnsupportedError, "references of version 2, must be 0 or 1"),
        ('{"version": 1, "refs": {}, "gen": [{}]}', UnsupportedError, "are to be generated"),
        ('{"version": 1, "refs": {}, "templates": {"u": 1}}', ConfigError, "templates must be text"),
        ('{"refs": ' + "[" * 100_000, ConfigError, "is no file of references, or a damaged one"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(
    tmp_path: Path, content: str, error: type[Exception], match: str
) -> None:
    path = tmp_path / "refs.json"
    path.write_text(content)
    with pytest.raises(error, match=rf"refs\.json: .*{match}"):
        zarrfeed.open(path)


def test_an_array_of_many_chunks_of_which_few_are_stored_costs_little(target: Path, tmp_path: Path) -> None:
    found = references(target)
    found["x/.zarray"] = json.dumps(DOCUMENT | {"shape": [10**12, 3]})
    with pytest.raises(ConfigError, match=r"chunks, must have at most"):
        zarrfeed.open(written(tmp_path / "refs.json", found))


def test_files_that_changed_are_errors(target: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "refs.json", references(target))
    data, dataset = zarrfeed.open(path), ZarrDataset(zarrfeed.open(path))
    os.utime(target, ns=(0, 0))
    for reading in (lambda: list(ZarrIterableDataset(data, batch_size=3)), lambda: dataset[0]):
        with pytest.raises(StoreReadError, match=r"data\.bin has changed since"):
            reading()


@pytest.mark.usefixtures("warm_spawn")
def test_chunks_in_object_stores_are_read_by_their_ranges(target: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole part"
    whole.write_bytes(ROWS[2:4].tobytes())
    with CountingServer(tmp_path) as server:
        url = f"{server.url}/data.bin"
        found = references(url, c1=[f"{server.url}/whole%20part"], c2=part(target, 2))
        path = written(tmp_path / "refs.json", found)
        options: dict[str, Any] = {"storage_options": {"allow_http": True}}
        assert np.array_equal(read(path, **options), ROWS)
        data = zarrfeed.open(path, **options)
        dataset = ZarrIterableDataset(data, batch_size=3)
        loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
        assert np.array_equal(np.concatenate([batch["x"] for batch in loader]), ROWS)
        target.write_bytes(target.read_bytes()[:90])
        for error, changes in (("ends before byte", {}), ("no such object", {"c3": [f"{server.url}/gone", 0, 24]})):
            path = written(tmp_path / "refs.json", references(url, **changes))
            with pytest.raises(StoreReadError, match=rf"x chunk 3\.0: .*{error}"):
                list(ZarrIterableDataset(zarrfeed.open(path, **options), batch_size=3))


def parquet_folder(folder: Path, columns: Callable[[int], dict[str, Any]], record_size: int = 3) -> Path:
    """Write references in Parquet files: `columns(i)` is the row of chunk `i`."""
    (folder / "x").mkdir(parents=True)
    documents = {".zgroup": {"zarr_format": 2}, "x/.zarray": DOCUMENT}
    (folder / ".zmetadata").write_text(json.dumps({"metadata": documents, "record_size": record_size}))
    for number in range(-(-4 // record_size)):
        rows = [columns(i) if i < 4 else {} for i in range(number * record_size, (number + 1) * record_size)]
        schema = pa.schema([("path", pa.string()), ("offset", pa.int64()), ("size", pa.int64()), ("raw", pa.binary())])
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / "x" / f"refs.{number}.parq")
    return folder


def test_parquet_folders_are_read(target: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.write_bytes(ROWS[2:4].tobytes())

    def columns(i: int) -> dict[str, Any]:
        if i == 1:
            return {"path": str(whole), "offset": 0, "size": 0}
        if i == 2:
            return {"raw": ROWS[4:6].tobytes()}
        return dict(zip(("path", "offset", "size"), part(target, i), strict=True))

    for record_size in (1, 3, 10):
        folder = parquet_folder(tmp_path / f"refs{record_size}.parq", columns, record_size)
        assert are_references(folder)
        assert np.array_equal(read(folder), ROWS)
        store = pickle.loads(pickle.dumps(open_reference_folder(folder)))
        assert np.array_equal(stored(store), ROWS)
    (folder / "x" / "refs.0.parq").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"refs\.0\.parq: is no Parquet file, or a damaged one"):
        zarrfeed.open(folder)
    (folder / "x" / "refs.0.parq").unlink()
    assert not read(folder).any()
    (folder / ".zmetadata").write_text(json.dumps({"metadata": {}, "record_size": 0}))
    with pytest.raises(ConfigError, match="record_size = 0"):
        zarrfeed.open(folder)


def test_references_are_known_by_their_content(target: Path, tmp_path: Path) -> None:
    for content in ({"version": 1, "refs": references(target)}, references(target)):
        assert is_references(written(tmp_path / "a.txt", content))
    assert not is_references(written(tmp_path / "b.json", {"name": "refs"}))
    assert not are_references(tmp_path)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ChunkNames("", ".", (4, 1))),
        ({"dimension_separator": "/"}, ChunkNames("", "/", (4, 1))),
        ({"chunks": [3, 2]}, ChunkNames("", ".", (3, 2))),
        ({"shape": []}, None),
        ({"shape": "x"}, None),
        ({"chunks": None}, None),
        ({"dimension_separator": 3}, None),
        ({"zarr_format": 3}, None),
    ],
)
def test_keys_follow_from_the_document(changes: dict[str, Any], names: ChunkNames | None) -> None:
    assert ChunkNames.of_document(DOCUMENT | changes) == names


def test_numbers_of_keys_are_those_in_c_order() -> None:
    names = ChunkNames("c", "/", (3, 2))
    assert [names.number_of(f"c/{i}/{j}") for i in range(3) for j in range(2)] == list(range(6))
    for key in ("c/3/0", "c/0", "0/0", "c.0.0", "c/00/0", "c/0/0/0", "c/-1/0", "c/²/0", ""):
        assert names.number_of(key) is None
