"""Arrays that change under an open dataset: what a look at their metadata documents finds."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from zarr.buffer import cpu
from zarr.storage import MemoryStore, ZipStore

import zarrfeed
from tests.support.counting_server import CountingServer
from tests.support.stalls import again_after_a_stall
from zarrfeed import StoreReadError
from zarrfeed.metadata.stores.array_watch import MOST_ASKED, ArrayWatch, watched_arrays
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import Field
from zarrfeed.storage.access.shared_access import SharedAccess


def _fields(data: zarrfeed.Data) -> tuple[Field, ...]:
    return data.resolved.planned(room=0)[0].fields


def _look(watch: ArrayWatch, fields: tuple[Field, ...], turn: int = 0) -> list[str]:
    return watch.look(fields, turn, lambda: False, SharedAccess())


def _array(path: Any, **changes: Any) -> zarr.Array[Any]:
    options: dict[str, Any] = {"shape": (40, 3), "chunks": (10, 3), "dtype": "f4", "attributes": {"units": "K"}}
    array = zarr.create_array(path, overwrite=True, **(options | changes))
    array[:] = 1
    return array


CHANGES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"shape": (20, 3)}, r"shape is \(20, 3\), was \(40, 3\)"),
    ({"shape": (50, 3)}, r"shape is \(50, 3\), was \(40, 3\)"),
    ({"shape": (40, 4)}, r"shape is \(40, 4\), was \(40, 3\)"),
    ({"shape": (40,), "chunks": (10,)}, r"shape is \(40,\), was \(40, 3\)"),
    ({"dtype": "i8"}, r"dtype is int64, was float32\. Open"),
    ({"dtype": ">f4"}, "byte order is swapped, was native|dtype is >f4"),
    ({"chunks": (20, 3)}, r"chunk shape is \(20, 3\), was \(10, 3\)"),
    ({"compressors": None}, "codecs is none, was"),
    ({"fill_value": 7}, "fill value is 7.0, was 0.0"),
    ({"attributes": {"units": "degC"}}, "units are 'degC', were 'K'"),
    ({"attributes": {"units": "K", "scale_factor": 0.5}}, "scale_factor 0.5"),
)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_that_was_written_anew_in_another_way_is_decoded_as_the_old_one(
    tmp_path: Path, zarr_format: int
) -> None:
    path = tmp_path / "a.zarr"
    _array(path, zarr_format=zarr_format)
    fields = _fields(zarrfeed.open(path))
    watch = ArrayWatch(Faults())
    assert _look(watch, fields) == []
    changes = [(change, text) for change, text in CHANGES if zarr_format == 2 or change != {"dtype": ">f4"}]
    for change, text in changes:
        _array(path, zarr_format=zarr_format, **change)
        for who in (watch, ArrayWatch(Faults())):  # one that saw the array before, and one in a new process
            with pytest.raises(StoreReadError, match=text) as raised:
                _look(who, fields)
            assert "refresh='epoch'" in str(raised.value), change
            assert str(path) in str(raised.value), change
        _array(path, zarr_format=zarr_format)
        assert _look(watch, fields) == [], f"after {change} was taken back"


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_attributes_that_are_no_object_any_more_break_the_look(tmp_path: Path, zarr_format: int) -> None:
    path = tmp_path / "a.zarr"
    _array(path, zarr_format=zarr_format)
    fields = _fields(zarrfeed.open(path))
    for value in (1, "scale_factor", ["scale_factor"], True):
        if zarr_format == 2:
            (path / ".zattrs").write_text(json.dumps(value))
        else:
            document = json.loads((path / "zarr.json").read_bytes())
            (path / "zarr.json").write_text(json.dumps(document | {"attributes": value}))
        with pytest.raises(StoreReadError, match=r"changed since it was opened: .*must be an object of JSON"):
            _look(ArrayWatch(Faults()), fields)


def test_a_document_that_says_the_same_in_other_bytes_is_taken_for_a_change(tmp_path: Path) -> None:
    for zarr_format, name in ((3, "zarr.json"), (2, ".zarray")):
        path = tmp_path / f"v{zarr_format}.zarr"
        _array(path, zarr_format=zarr_format, compressors=None if zarr_format == 3 else "auto")
        fields = _fields(zarrfeed.open(path))
        watch = ArrayWatch(Faults())
        document = json.loads((path / name).read_text())
        if zarr_format == 3:
            document["attributes"] |= {"history": "somebody looked", "units": "kelvin"}
            document["codecs"] = [codec["name"] if codec["name"] == "crc32c" else codec for codec in document["codecs"]]
        (path / name).write_text(json.dumps(document, sort_keys=True, indent=7))
        assert _look(watch, fields) == [], zarr_format
        os.utime(path / name, ns=(1, 1))
        assert _look(watch, fields) == [], zarr_format
        zarr.open_array(path, mode="r+").attrs.put({})
        fields = _fields(zarrfeed.open(path))
        zarr.open_array(path, mode="r+").attrs.put({"units": "K"})
        assert _look(ArrayWatch(Faults()), fields) == [], f"{zarr_format}: units were added"


def test_a_rewrite_with_the_same_time_and_size_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    _array(path)
    document = path / "zarr.json"
    os.utime(document, ns=(10**18, 10**18))
    fields, watch = _fields(zarrfeed.open(path)), ArrayWatch(Faults())
    assert _look(watch, fields) == []
    changed = document.read_bytes().replace(b'"float32"', b'"uint32" ')
    for is_in_place in (True, False):
        if not is_in_place:
            document.unlink()
        document.write_bytes(changed)
        os.utime(document, ns=(10**18, 10**18))
        with pytest.raises(StoreReadError, match="dtype is uint32, was float32"):
            _look(watch, fields)


def test_an_array_that_is_gone_or_no_array_any_more_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    for ruin, text in (
        (lambda: shutil.rmtree(path), "zarr.json is gone"),
        (lambda: (path / "zarr.json").unlink(), "zarr.json is gone"),
        (lambda: (path / "zarr.json").write_text("{"), "is no JSON"),
        (lambda: (path / "zarr.json").write_text("[]"), "cannot read"),
        (lambda: (path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}'), "cannot read"),
    ):
        _array(path)
        fields = _fields(zarrfeed.open(path))
        ruin()
        with pytest.raises(StoreReadError, match=text):
            _look(ArrayWatch(Faults()), fields)


def test_one_of_many_stores_that_changed_is_not_found(tmp_path: Path) -> None:
    for number in range(6):
        level = 1 + number % 2  # stored alike but for the level of compression
        _array(
            tmp_path / f"{number}.zarr",
            shape=(10 + number, 3),
            compressors=zarr.codecs.ZstdCodec(level=level),
            attributes={"units": ("K", "kelvin")[number % 2]},
        )
    data = zarrfeed.open(str(tmp_path / "*.zarr"))
    fields = _fields(data)
    watch = ArrayWatch(Faults())
    assert len(list(watched_arrays(fields))) == 6
    assert _look(watch, fields) == []
    zarr.open_array(tmp_path / "4.zarr", mode="r+").resize((13, 3))
    with pytest.raises(StoreReadError, match=r"4\.zarr: .*shape is \(13, 3\), was \(14, 3\)"):
        _look(watch, fields)
    _array(tmp_path / "4.zarr", shape=(14, 3), dtype="i4")
    with pytest.raises(StoreReadError, match=r"4\.zarr: .*dtype is int32"):
        _look(watch, fields)


def test_arrays_of_groups_sparse_matrices_and_text_are_not_looked_at(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g.zarr")
    group.create_array("x", data=np.arange(8.0), chunks=(2,))
    dtype: Any = zarr.dtype.VariableLengthUTF8()
    text = zarr.create_array(tmp_path / "t.zarr", shape=(8,), chunks=(2,), dtype=dtype, zarr_format=2)
    text[:] = np.array(list("abcdefgh"), dtype=object)
    matrix = zarr.create_group(tmp_path / "m.zarr")
    matrix.attrs.update({"encoding-type": "csr_matrix", "shape": [2, 3]})
    for name, values in {"data": [7.0, 8.0], "indices": [2, 0], "indptr": [0, 1, 2]}.items():
        matrix.create_array(name, data=np.array(values), chunks=(1,))
    for path, names, change in (
        ("g.zarr", {"x"}, "g.zarr/x"),
        ("t.zarr", {"t.zarr"}, "t.zarr"),
        ("m.zarr", {"data", "indices"}, "m.zarr/indices"),
    ):
        fields, watch = _fields(zarrfeed.open(tmp_path / path)), ArrayWatch(Faults())
        assert {one.name.rpartition("/")[2] for one in watched_arrays(fields)} == names
        assert _look(watch, fields) == []
        array = zarr.open_array(tmp_path / change, mode="r+")
        array.resize((array.shape[0] + 5,))
        with pytest.raises(StoreReadError, match="shape is"):
            _look(watch, fields)


def test_what_cannot_change_is_asked_for(tmp_path: Path) -> None:
    with ZipStore(tmp_path / "a.zip", mode="w") as zipped:
        _array(zipped)
    for source in (tmp_path / "a.zip", np.arange(10.0)):
        assert not list(watched_arrays(_fields(zarrfeed.open(source))))


def test_an_array_in_any_other_store_is_not_looked_at() -> None:
    store = MemoryStore()
    fields, watch = _fields(zarrfeed.open(_array(store))), ArrayWatch(Faults())
    assert _look(watch, fields) == []
    _array(store, chunks=(20, 3))
    with pytest.raises(StoreReadError, match="chunk shape"):
        _look(watch, fields)


def test_far_documents_are_read_again_or_all_asked_for_at_each_look(tmp_path: Path) -> None:
    count = MOST_ASKED + 6
    for number in range(count):
        _array(tmp_path / f"{number:03d}.zarr")
    with CountingServer(tmp_path) as server:
        one = _fields(zarrfeed.open(f"{server.url}/003.zarr"))
        watch = ArrayWatch(Faults(retries=0))
        for turn in range(2):
            server.chunk_gets()
            assert _look(watch, one, turn) == []
            assert sum(server.gets.values()) + sum(server.heads.values()) == 1, server.gets
        _array(tmp_path / "003.zarr", dtype="i4")
        with pytest.raises(StoreReadError, match="dtype is int32"):
            _look(watch, one, 2)
        _array(tmp_path / "003.zarr")

        many = _fields(zarrfeed.open([f"{server.url}/{number:03d}.zarr" for number in range(count)]))
        seen: set[str] = set()
        for turn in range(2):
            server.chunk_gets()
            assert _look(ArrayWatch(Faults(retries=0)), many, turn) == []
            assert sum(server.gets.values()) == MOST_ASKED
            seen |= set(server.gets)
        assert len(seen) == count  # each has its turn


class _Failing(MemoryStore):
    """A store that stops to answer."""

    fails = False

    async def get(self, *args: Any, **options: Any) -> Any:
        if self.fails:
            raise ConnectionResetError("no answer")
        return await super().get(*args, **options)


def test_a_change_that_python_decodes_is_not_named(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "t.zarr", data=np.array(["a"], "U1"), chunks=(1,), zarr_format=2)
    fields = _fields(zarrfeed.open(tmp_path / "t.zarr"))
    zarr.create_array(tmp_path / "t.zarr", data=np.array(["aaa"], "U3"), chunks=(1,), zarr_format=2, overwrite=True)
    with pytest.raises(StoreReadError, match=r"dtype is fixed_length_utf32 <U3, was fixed_length_utf32 <U1\. Open"):
        _look(ArrayWatch(Faults()), fields)


def test_a_store_that_does_not_answer_ends_the_pass() -> None:
    store = _Failing()
    fields = _fields(zarrfeed.open(_array(store)))
    store.fails = True
    (trouble,) = _look(ArrayWatch(Faults(retries=0, timeout=5)), fields)
    assert "no answer" in trouble


@again_after_a_stall
def test_a_store_that_never_answers_hides_the_array_that_changed() -> None:
    class Hanging(MemoryStore):
        hangs = False

        async def get(self, key: str, *args: Any, **options: Any) -> Any:
            if Hanging.hangs:
                await asyncio.Event().wait()
            return await super().get(key, *args, **options)

    hanging, other = Hanging(), MemoryStore()
    arrays = {"a": _array(hanging), "b": _array(other)}
    fields = _fields(zarrfeed.open(arrays))
    Hanging.hangs = True
    policy = Faults(retries=0, timeout=0.5)
    (trouble,) = _look(ArrayWatch(policy), fields)
    assert "did not answer within 0.5 s (timeout)" in trouble
    _array(other, dtype="i4")
    with pytest.raises(StoreReadError, match="dtype is int32"):
        _look(ArrayWatch(policy), fields)


def test_a_document_that_is_being_written_in_a_far_store_is_taken_for_a_change() -> None:
    class Tearing(MemoryStore):
        torn = 0

        async def get(self, key: str, *args: Any, **options: Any) -> Any:
            if Tearing.torn:
                Tearing.torn -= 1
                return cpu.Buffer.from_bytes(b'{"shape": [4')
            return await super().get(key, *args, **options)

    fields = _fields(zarrfeed.open(_array(Tearing())))
    with mock.patch("zarrfeed.metadata.stores.array_watch._TORN_PAUSE_S", 0.0):
        Tearing.torn = 3
        assert _look(ArrayWatch(Faults()), fields) == []
        Tearing.torn = 99
        with pytest.raises(StoreReadError, match=r"zarr\.json is no JSON"):
            _look(ArrayWatch(Faults()), fields)
