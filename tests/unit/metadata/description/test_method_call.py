"""`MethodCall`: each call of a method of `Data` applies itself again, and the expression keeps no array of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

import zarrfeed
from zarrfeed import ConfigError, Data
from zarrfeed.metadata.description.item_calls import NormalizeCall
from zarrfeed.metadata.description.method_call import MethodCall
from zarrfeed.metadata.description.sample_calls import PatchCall, SplitCall, WindowCall
from zarrfeed.metadata.description.value_calls import ClipCall, FillNanCall, Log1pCall, MinMaxCall
from zarrfeed.spec.description.expression import Expression
from zarrfeed.spec.fields.field import StoredField

N, LATER = 32, 48
GRID = np.arange(N * 12, dtype="f4").reshape(N, 3, 4)

#: Calls that hold for more samples, too; by the method.
GROWING: dict[str, Callable[[Data], Data]] = {
    "select": lambda data: data.select(slice(3, None)),
    "sel": lambda data: data.sel(time=slice(4, None)),
    "isel": lambda data: data.isel(time=slice(5, None, 2)),
    "window": lambda data: data.window({"t2m": (-1, 0), "z": 1}, rows="all", pad="edge", mask=True, stride=2),
    "next_targets": lambda data: data.window((0, 1)).next_targets(),
    "with_offsets": lambda data: data.window((0, 1), pad=0.0).with_offsets((-2, 0)),
    "patch": lambda data: data.patch({"x": 2}, sampling="grid", stride={"x": 1}, isel={"level": [0, 2]}),
    "cast": lambda data: data.cast({"z": "float64"}).cast("float16"),
    "normalize": lambda data: data.normalize({"t2m": (np.arange(3.0), np.ones(3))}, axis="level"),
    "log1p": lambda data: data.log1p("t2m", axis="level", index=[0, 2]),
    "log": lambda data: data.log(["t2m", "z"]),
    "sqrt": lambda data: data.sqrt(),
    "exp": lambda data: data.exp("z"),
    "clip": lambda data: data.clip(0, np.arange(3.0) + 4, axis="level"),
    "minmax": lambda data: data.minmax(-1, 40.5),
    "fill_nan": lambda data: data.fill_nan(7, field="t2m"),
    "static": lambda data: data.static(lsm=np.ones((3, 4), "f4")),
    "stack": lambda data: data.static(lsm=np.ones((3, 4), "f4")).cast("float32").stack(["t2m", "z", "lsm"]),
}
#: Calls that do not.
FIXED: dict[str, Callable[[Data], Data]] = {
    "blocks": lambda data: data.blocks([0, 1]),
    "split": lambda data: data.split((0.5, 0.5))[0],
    "time_features": lambda data: data.time_features("hour", coords=np.arange(N).astype("M8[h]")),
    "select": lambda data: data.select([2, 1, 2], keep_order=True),
    "isel": lambda data: data.isel(time=3),
    "where": lambda data: data.where(time=lambda time: time > 3),
    "window": lambda data: data.window((0,), segment_ends=[N]),
    "drop_missing": lambda data: data.drop_missing("t2m"),
    "segments": lambda data: data.segments([5, N]),
    "segment_field": lambda data: data.window((0,), segment_ends=[N]).segment_field(task=["a"]),
    "bucket_by_length": lambda data: data.segments([5, N]).pad_sequences().bucket_by_length(2),
    "pad_sequences": lambda data: data.segments([5, N]).pad_sequences(),
    "pack_sequences": lambda data: data.segments([5, N]).pack_sequences(6),
    "random_crop": lambda data: data.segments([5, N]).random_crop(2),
    "sel_segments": lambda data: data.segments([5, N]).sel_segments([0]),
    "weight": lambda data: data.weight(np.arange(N)),
    "balance": lambda data: data.balance(np.arange(N) % 3),
    "with_weights": lambda data: data.balance(np.arange(N) % 3).with_weights(np.arange(N)),
}
#: Calls for items of other kinds.
OTHERS = ("decode", "dense", "normalize_total")


def write(path: Path, begin: int, end: int) -> None:
    rows = np.arange(begin, end)
    grid = np.broadcast_to(rows[:, None, None], (len(rows), 3, 4)).astype("f4")
    dataset = xarray.Dataset(
        {"t2m": (("time", "level", "x"), grid), "z": (("time", "level", "x"), grid.astype("i2"))}, {"time": rows}
    )
    if begin:
        dataset.to_zarr(path, append_dim="time", consolidated=False)
    else:
        chunks = {name: {"chunks": (8, 3, 4)} for name in ("t2m", "z")}
        dataset.to_zarr(path, encoding=chunks, consolidated=False, zarr_format=3)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Write a store whose samples are their index."""
    write(tmp_path / "x.zarr", 0, N)
    return tmp_path / "x.zarr"


def all_calls(cls: type[MethodCall] = MethodCall) -> list[type[MethodCall]]:
    classes = [one for below in cls.__subclasses__() for one in all_calls(below)]
    return [cls, *classes] if hasattr(cls, "function") else classes


def test_every_call_is_of_a_method_and_is_tried_here() -> None:
    named = [cls.function for cls in all_calls()]
    assert sorted(named) == sorted(f".{name}" for name in {*GROWING, *FIXED, *OTHERS})
    for cls in all_calls():
        assert hasattr(Data, cls.function.removeprefix(".")), cls
        assert cls.apply is not MethodCall.apply, cls


@pytest.mark.parametrize("method", GROWING)
def test_a_call_applies_itself_to_what_a_store_has_later(store: Path, method: str) -> None:
    describe = GROWING[method]
    data = describe(zarrfeed.open(store, sample_dim="time", refresh="epoch"))
    assert data.growth is not None
    assert data.growth.calls[-1].function == f".{method}"
    write(store, N, LATER)
    later = data.growth.at(data.growth.look())
    new = describe(zarrfeed.open(store, sample_dim="time")).resolved
    assert later.length > len(data)
    assert (later.length, later.infos()) == (new.length, new.infos())
    stored = [[one for one in described.fields if isinstance(one, StoredField)] for described in (later, new)]
    assert len(stored[0]) == 2
    assert stored[0] == stored[1]
    assert list(later.choice.listed()) == list(new.choice.listed())
    copy = pickle.loads(pickle.dumps(data))
    assert copy == data
    assert copy.growth.at(copy.growth.look()).infos() == later.infos()


@pytest.mark.parametrize("method", FIXED)
def test_a_call_that_would_give_other_samples_later_is_refused(store: Path, method: str) -> None:
    FIXED[method](zarrfeed.open(store, sample_dim="time"))
    data = zarrfeed.open(store, sample_dim="time", refresh="epoch")
    with pytest.raises(ConfigError, match="refresh='epoch'"):
        FIXED[method](data)


LARGE = np.ones(200_000)
#: Calls with a large argument -> the expression knows it by its hash or its name alone.
WITH_ARRAYS: dict[str, Callable[[Data], Data]] = {
    "a mask": lambda data: data.select(LARGE > 0),
    "weights": lambda data: data.patch({0: 1}, sampling="random", n=3, weights=LARGE),
    "positions": lambda data: data.patch({0: 1}, sampling="positions", positions=np.arange(len(LARGE))[:, None]),
    "pairs": lambda data: data.normalize((np.resize(LARGE, 50_000), np.resize(LARGE, 50_000)), axis=1),
    "a static array": lambda data: data.static(mask=LARGE),
    "ends of segments": lambda data: data.window((0,), segment_ends=np.arange(1, len(LARGE) + 1)),
}


@pytest.mark.parametrize("what", WITH_ARRAYS)
def test_an_expression_keeps_no_array_of_a_call(what: str) -> None:
    wide = what == "pairs"
    shape, chunks = ((4, 50_000), (4, 50_000)) if wide else ((len(LARGE),), (10_000,))
    data = WITH_ARRAYS[what](zarrfeed.open(zarr.create_array({}, shape=shape, chunks=chunks, dtype="f4")))
    assert len(pickle.dumps(data.expression.calls)) < 2000
    assert hash(data.expression) == hash(pickle.loads(pickle.dumps(data.expression)))
    assert len(repr(data)) < 1000


def test_a_call_prints_as_it_is_called() -> None:
    shown: dict[str, MethodCall] = {
        ".window((0, 1), pad='edge')": WindowCall(range(2), pad="edge"),
        ".window({'x': (0,)}, rows=slice(3), mask=True)": WindowCall({"x": [0]}, rows=slice(3), mask=True),
        ".window((0, 1), gaps='error', step='6h')": WindowCall((0, 1), gaps="error", step=np.timedelta64(6, "h")),
        ".split((0.5, 0.5), by='sample')[1]": SplitCall([0.5, 0.5], "sample", part=1),
        ".patch({'y': 2}, flip=('y',), isel={'c': (0, 2)})": PatchCall({"y": 2}, flip=["y"], isel={"c": [0, 2]}),
        ".clip(lo=0, hi=[1.0, 2.0], axis='c')": ClipCall(0, np.array([1, 2.0]), axis="c"),
        ".log1p(field=['a', 'b'], axis=1, index=[0, 2])": Log1pCall(("a", "b"), 1, [0, 2]),
        ".fill_nan(0.5, field='x', mask=True)": FillNanCall(0.5, "x", mask=True),
        ".minmax(0, 255)": MinMaxCall(0, 255),
        ".normalize('auto', stats='s.json')": NormalizeCall("auto", stats=Path("s.json"), pairs={}),
    }
    for text, call in shown.items():
        assert str(call.frozen()) == text
        assert str(call.added_to(Expression(call.frozen()))) == text * 2


def test_with_offsets_changes_the_last_window_of_an_expression() -> None:
    first = zarrfeed.open(np.arange(10)).window((0, 1)).cast("float32")
    second = first.with_offsets(range(3))
    assert repr(second) == "zarrfeed.open(<numpy.ndarray (10,) int64>).window((0, 1, 2)).cast('float32')"
    assert second == zarrfeed.open(np.arange(10)).window((0, 1, 2)).cast("float32")


@pytest.mark.parametrize("method", ["normalize", "stack", "split", "dense"])
def test_arguments_are_refused_before_they_are_frozen(method: str) -> None:
    call: Any = next(cls for cls in all_calls() if cls.function == f".{method}")
    others: dict[str, Any] = {"pairs": None} if method == "normalize" else {}
    with pytest.raises(TypeError):
        call(5, **others).frozen()
    with pytest.raises(ConfigError):
        getattr(zarrfeed.open({"x": np.arange(6)}), method)(5)
