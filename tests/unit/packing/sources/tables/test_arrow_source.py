"""Rows of tables are those that pyarrow itself reads; columns without a place in Zarr are refused with the remedy."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from tests.support.mutations import changed_bytes  # noqa: E402 - after what may be missing
from zarrfeed import ConfigError, StoreReadError, ZarrfeedError  # noqa: E402 - after what may be missing
from zarrfeed.packing.sources.source import SourceCall, SourceOptions  # noqa: E402
from zarrfeed.packing.sources.tables import arrow_files  # noqa: E402
from zarrfeed.packing.sources.tables.arrow_source import ArrowSource  # noqa: E402

PLAIN = SourceOptions()


def table_of(count: int, first: int = 0) -> Any:
    """Return rows of many types; the column "i" has their numbers, and the others tell them, too."""
    i = np.arange(first, first + count)
    tensor = pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], dim_names=["a", "b", "c"], permutation=[0, 2, 1])
    items = pa.FixedSizeListArray.from_arrays(pa.array((24 * i[:, None] + np.arange(24)).ravel().astype(np.int32)), 24)
    halves = pa.array([None if n % 5 == 0 else n / 2 for n in i.tolist()], pa.float32())
    names = pa.array([f"class {n % 7}" for n in i.tolist()], pa.string())
    grid = [[[n, n + 1, n + 2], [n + 3, n + 4, n + 5]] for n in i.tolist()]
    images = [{"bytes": bytes([n % 256]) * (n % 4), "path": None} for n in i.tolist()]
    return pa.table(
        {
            "i": pa.array(i),
            "half": halves,
            "odd": pa.array(i % 2 == 1),
            "day": pa.array(i.astype(np.int32)).cast(pa.date32()),
            "time": pa.array(i * 10**6).cast(pa.timestamp("us", "UTC")),
            "pair": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(i, 2).astype(np.int16)), 2),
            "grid": pa.array(grid, pa.list_(pa.list_(pa.float64()))),
            "tensor": pa.ExtensionArray.from_storage(tensor, items),
            "text": pa.array([f"text {n}" * (n % 3) for n in i.tolist()], pa.string()),
            "image": pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            "class": names.dictionary_encode(),
            "at": pa.array([{"x": n, "y": -n} for n in i.tolist()], pa.struct([("x", pa.int64()), ("y", pa.int64())])),
        }
    )


def parquet(path: Path, table: Any) -> None:
    pq.write_table(table, path, row_group_size=10)


def ipc_file(path: Path, table: Any) -> None:
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table.unify_dictionaries(), max_chunksize=10)


def ipc_stream(path: Path, table: Any) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)


@pytest.mark.parametrize(("write", "suffix"), [(parquet, ".parquet"), (ipc_file, ".feather"), (ipc_stream, ".arrow")])
def test_every_row_is_that_of_its_number(tmp_path: Path, write: Callable[[Path, Any], None], suffix: str) -> None:
    lengths = [35, 8, 0, 1]
    for number, count in enumerate(lengths):
        write(tmp_path / f"{number}{suffix}", table_of(count, sum(lengths[:number])))
    source: Any = SourceCall("arrow", (str(tmp_path),)).open()
    assert source.num_samples == 44
    assert source.block_samples == (1 if write is ipc_stream else 10)
    fields = {field.name: field for field in source.fields}
    assert list(fields) == [*table_of(1).column_names[:-1], "at.x", "at.y"]

    def check(pair: tuple[int, int]) -> None:
        i = np.arange(*pair)
        made = dict(zip(fields, source.read(*pair), strict=True))
        for name, rows in made.items():
            assert rows.shape == (len(i), *fields[name].shape)
            assert rows.dtype == fields[name].dtype
        expected = {
            "i": i,
            "half": np.where(i % 5 == 0, np.nan, i / 2),
            "odd": i % 2 == 1,
            "day": i,
            "time": i * 10**6,
            "pair": np.repeat(i, 2).reshape(-1, 2),
            "grid": (i[:, None] + np.arange(6)).reshape(-1, 2, 3),
            "at.x": i,
            "at.y": -i,
        }
        if len(i):
            expected["tensor"] = table_of(len(i), pair[0])["tensor"].combine_chunks().to_numpy_ndarray()
        for name, rows in expected.items():
            np.testing.assert_array_equal(made[name], rows)
        assert made["text"].tolist() == [f"text {n}" * (n % 3) for n in i]
        assert made["image"].tolist() == [bytes([n % 256]) * (n % 4) for n in i]
        names = fields["class"].attributes["names"]
        assert [names[code] for code in made["class"]] == [f"class {n % 7}" for n in i]

    pairs = [(begin, end) for begin in range(0, 45, 3) for end in range(begin, 45, 5)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(check, pairs))
    assert fields["class"].dtype == np.int8
    assert fields["tensor"].dims == (None, "a", "c", "b")
    assert fields["time"].attributes == {
        "units": "microseconds since 1970-01-01",
        "calendar": "proleptic_gregorian",
        "timezone": "UTC",
    }
    assert (fields["text"].kind, fields["image"].kind) == ("text", "bytes")
    if write is ipc_stream:
        wanted = np.array([43, 0, 7, 36, 7])
        assert np.array_equal(source.take(wanted)[0], wanted)
    source.close()


def test_a_row_group_is_decoded_once_in_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet(tmp_path / "x.parquet", table_of(30))
    source = ArrowSource([str(tmp_path / "x.parquet")], SourceOptions(variables=("i",)))
    decoded = []
    read = arrow_files._Parquet.read

    def counted(self: Any, block: int, columns: list[str]) -> Any:
        decoded.append((block, tuple(columns)))
        return read(self, block, columns)

    monkeypatch.setattr(arrow_files._Parquet, "read", counted)
    assert [source.read(n, n + 1)[0].item() for n in range(30)] == list(range(30))
    assert decoded == [(block, ("i",)) for block in range(3)]


def test_metadata_of_others_are_no_samples(tmp_path: Path) -> None:
    features = {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    metadata = {"pandas": "{}", "huggingface": json.dumps({"info": {"features": features}}), "title": "t"}
    table = pa.table({"label": [0, 1], "__index_level_0__": [5, 6]}).replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "x.parquet")
    source = ArrowSource([str(tmp_path)], PLAIN)
    assert dict(source.attributes) == {"title": "t"}
    assert [field.name for field in source.fields] == ["label", "index_level_0"]
    assert source.fields[0].attributes == {"names": ["cat", "dog"]}


def test_files_beside_a_saved_dataset_are_left_out(tmp_path: Path) -> None:
    ipc_stream(tmp_path / "data-00000-of-00001.arrow", table_of(3))
    ipc_stream(tmp_path / "cache-1.arrow", table_of(9))
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    assert ArrowSource([str(tmp_path)], PLAIN).num_samples == 3


@pytest.mark.parametrize("note", ["{", "[" * 100_000, "[]", "3", '{"info": []}', '{"info": {"features": [1]}}'])
def test_a_note_of_hugging_face_that_is_damaged_says_nothing(tmp_path: Path, note: str) -> None:
    table = pa.table({"label": [0, 1]}).replace_schema_metadata({"huggingface": note})
    pq.write_table(table, tmp_path / "x.parquet")
    assert ArrowSource([str(tmp_path)], PLAIN).fields[0].attributes == {}


@pytest.mark.parametrize(
    "text", [b"{", b"\xff", b"[" * 100_000, b"[]", b'{"_data_files": 3}', b'{"_data_files": [{}]}']
)
def test_a_list_of_the_files_of_a_dataset_that_is_damaged_is_named(tmp_path: Path, text: bytes) -> None:
    ipc_stream(tmp_path / "data-00000-of-00001.arrow", table_of(3))
    (tmp_path / "state.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"state\.json: does not name the files"):
        ArrowSource([str(tmp_path)], PLAIN)


NULLS = [1, None, 3]
TURNED = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 3, 4, 2)).transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array(NULLS), r"x\.parquet: column 'c' has 1 rows without a value"),
        (pa.array([None, "a", None]), r"x\.parquet: column 'c' has 2 rows without a value"),
        (pa.array([{"bytes": None, "path": "a.jpg"}]), "null"),
        (pa.array([1]).cast(pa.decimal128(21)), "decimal128.*cast it"),
        (pa.array([["a"]]), "lists of string, must be one a row"),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "map<.*leave it out with `variables`"),
        (pa.nulls(3), "type null"),
        (TURNED, r"tensors of 'c' have the order \(1, 2, 0\)"),
    ],
)
def test_columns_without_a_place_are_refused(tmp_path: Path, column: Any, message: str) -> None:
    pq.write_table(pa.table({"i": range(len(column)), "c": column}), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match=message):
        ArrowSource([str(tmp_path)], PLAIN).read(0, len(column))
    assert ArrowSource([str(tmp_path)], SourceOptions(variables=("i",))).num_samples == len(column)


def test_rows_that_do_not_fit_are_named(tmp_path: Path) -> None:
    def refused(message: str, *columns: Any) -> None:
        pq.write_table(pa.table({"c": pa.chunked_array(columns)}), tmp_path / "x.parquet", row_group_size=2)
        source = ArrowSource([str(tmp_path / "x.parquet")], PLAIN)
        source.read(0, 1)
        with pytest.raises(ConfigError, match=message):
            source.read(1, source.num_samples)

    refused(r"x\.parquet, row 4: 'c' has a list of 1 items, the first row one of 2", pa.array([[1, 2]] * 4 + [[3]]))
    refused(r"x\.parquet, row 3: has no value", pa.array([[1, 2]] * 3 + [[3, None]]))
    refused(r"x\.parquet, row 2: has no value", pa.array([{"a": 1}, {"a": 2}, None]))
    refused(r"x\.parquet, row 3: 'c' has a list of 0", pa.array([[[1], [2]]] * 3 + [[[], [2]]]))


def test_what_is_no_table_or_another_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(message: str, *names: str, options: SourceOptions = PLAIN) -> None:
        with pytest.raises(ConfigError, match=message):
            ArrowSource([str(tmp_path / name) for name in names], options)

    parquet(tmp_path / "a.parquet", pa.table({"x": [1, 2]}))
    parquet(tmp_path / "b.parquet", pa.table({"x": [1.0, 2.0]}))
    parquet(tmp_path / "c.parquet", pa.table({"y": [1, 2]}))
    refused(r"b\.parquet: the type of 'x' is double, in the first file int64", "a.parquet", "b.parquet")
    refused(r"c\.parquet: the list of columns is \['y'\]", "a.parquet", "c.parquet")
    refused("variables: 'z' is not in", "a.parquet", options=SourceOptions(variables=("z",)))
    (tmp_path / "text.parquet").write_text("x\n1\n")
    refused(r"text\.parquet: is neither Parquet nor Arrow", "text.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    refused(r"cut\.parquet: is damaged", "cut.parquet")
    (tmp_path / "hive" / "year=1").mkdir(parents=True)
    parquet(tmp_path / "hive" / "year=1" / "a.parquet", pa.table({"x": [1, 2]}))
    refused("folder's name has a column", "hive")
    assert ArrowSource([str(tmp_path / "hive" / "year=1")], PLAIN).num_samples == 2
    table, packed = pa.table({"x": np.zeros(10_000, np.int64)}), pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(tmp_path / "s.arrow", table.schema, options=packed) as writer:
        writer.write_table(table)
    assert ArrowSource([str(tmp_path / "s.arrow")], PLAIN).read(9_998, 10_000)[0].tolist() == [0, 0]
    monkeypatch.setattr(arrow_files, "MOST_STREAM_BYTES", 50_000)
    refused(r"s\.arrow: is a compressed stream.*new_file", "s.arrow")


def test_damaged_pages_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": np.random.default_rng(0).integers(0, 9, 10_000)}), path, use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[100:2000] = bytes(1900)
    path.write_bytes(data)
    with pytest.raises(StoreReadError, match=r"x\.parquet: samples \[0, 10000\): "):
        ArrowSource([str(path)], PLAIN).read(0, 10_000)


def test_a_damaged_file_never_ends_the_process(tmp_path: Path) -> None:
    """Arrow trusts the lengths in a batch, and aborts where they do not fit together."""
    path = tmp_path / "x.arrow"
    table = pa.table({"a": np.arange(12), "b": [f"s{i}" for i in range(12)], "c": [[1, 2]] * 12})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    whole = path.read_bytes()
    progress = tmp_path / "seed"
    child = os.fork()
    if child == 0:
        try:
            for seed in range(100):
                progress.write_text(str(seed))
                path.unlink()  # an earlier file may be mapped
                path.write_bytes(changed_bytes(whole, random.Random(seed)))
                with contextlib.suppress(ZarrfeedError, OSError):
                    source = SourceCall("arrow", (str(path),)).open()
                    source.read(0, min(source.num_samples, 512))
                    source.read(source.num_samples - 1, source.num_samples)
        except BaseException:  # noqa: BLE001 - the child must not go on as pytest
            os._exit(2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, progress.read_text()
    assert progress.read_text() == "99"


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="arrow sources need pyarrow: pip install pyarrow"):
        SourceCall("arrow", ("x",)).open()
