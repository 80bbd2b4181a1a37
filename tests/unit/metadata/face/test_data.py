"""`zarrfeed.open` and `Data`: descriptions that compose, print, compare, pickle, and refuse at once."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import pickle
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import xarray
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from zarrfeed import ConfigError, Data, UnknownOptionError, ZarrDataset, ZarrIterableDataset
from zarrfeed.metadata.face.data import _CALLED_HERE
from zarrfeed.spec.description.freeze import Secrets

N, CHUNK = 60, 7


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Write a group of three arrays with named dimensions: samples encode their index."""
    path = tmp_path / "era5.zarr"
    time = np.arange(N)
    grid = time[:, None, None] * 100 + np.arange(12).reshape(3, 4)
    dataset = xarray.Dataset(
        {
            "t2m": (("time", "level", "x"), grid.astype("f4")),
            "z": (("time", "x"), grid[:, 0].astype("i2")),
            "mask": (("x",), np.ones(4, "i1")),
        }
    )
    chunks = {"t2m": {"chunks": (CHUNK, 3, 4)}, "z": {"chunks": (CHUNK, 4)}}
    dataset.to_zarr(path, encoding=chunks, consolidated=False, zarr_format=3)
    return str(path)


def era5(store: str) -> Data:
    return zarrfeed.open(store, sample_dim="time", variables=["t2m", "z"])


#: Every method, with every argument that it has.
CHAINS: list[Callable[[Data], Data]] = [
    lambda data: data,
    lambda data: data.select(slice(5, 50)),
    lambda data: data.select(slice(None, 40, 3)).select([0, 2, -1]),
    lambda data: data.select(np.arange(N) % 2 == 0),
    lambda data: data.blocks([0, 3, -1]),
    lambda data: data.window((-2, -1, 0)),
    lambda data: data.window((1,), segment_ends=[20, N], rows="all"),
    lambda data: data.window({"t2m": (-1, 0), "z": 1}, rows=slice(0, 50)),
    lambda data: data.cast("bfloat16"),
    lambda data: data.cast({"t2m": np.float64, "z": torch.int32}),
    lambda data: data.normalize({"t2m": (3.5, 2.0), "z": ([1, 2, 3, 4], 2)}, axis="x"),
    lambda data: data.split((0.5, 0.5), by="contiguous", gap=2)[1],
    lambda data: data.split((30, 30), by="sample", seed=3)[0].select([4, 5]),
]
LONG_MASK = 3


@pytest.mark.parametrize("number", range(len(CHAINS)))
def test_a_description_prints_as_the_expression_that_makes_it_again(store: str, number: int) -> None:
    data = CHAINS[number](era5(store))
    if "sha256" in repr(data):  # long lists are printed by their hash
        assert number == LONG_MASK
        return
    again = eval(repr(data), {"zarrfeed": zarrfeed})
    assert again == data
    assert hash(again) == hash(data)
    assert repr(again) == repr(data)
    assert np.array_equal(samples_of(again), samples_of(data))


@pytest.mark.parametrize("number", range(len(CHAINS)))
def test_a_pickled_description_is_equal_and_reads_the_same(store: str, number: int) -> None:
    data = CHAINS[number](era5(store))
    copy = pickle.loads(pickle.dumps(data))
    assert copy == data
    assert hash(copy) == hash(data)
    assert copy.fields == data.fields
    assert np.array_equal(samples_of(copy), samples_of(data))


def test_no_two_of_these_descriptions_are_equal(store: str) -> None:
    made = [chain(era5(store)) for chain in CHAINS]
    assert len(set(made)) == len(made)
    assert all(a != b for i, a in enumerate(made) for b in made[:i])
    assert made[0] != repr(made[0])


def test_methods_leave_the_description_as_it_is(store: str) -> None:
    data = era5(store)
    text, fields = repr(data), data.fields
    for chain in CHAINS:
        chain(data)
    assert (repr(data), data.fields, len(data)) == (text, fields, N)
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.resolved = data.select([1]).resolved  # type: ignore[misc]


def test_equal_lists_arrays_and_tensors_make_equal_descriptions(store: str) -> None:
    data = era5(store)
    picks: list[Any] = [[3, 1], (3, 1), np.array([3, 1], "u1"), torch.tensor([3, 1])]
    assert len({data.select(pick) for pick in picks}) == 1
    assert data.select([1, 0]) != data.select([True, False] + [False] * (N - 2))
    assert data.cast("float16") == data.cast(torch.float16) == data.cast(np.float16) == data.cast("f2")
    assert data.window(range(-1, 1)) == data.window((-1, 0))
    assert zarrfeed.open(Path(store), sample_dim="time", variables=("t2m", "z")) == data


def test_a_rewritten_store_is_another_description_although_the_expression_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x"
    zarr.create_array(path, shape=(10,), chunks=(5,), dtype="i4")
    before = zarrfeed.open(path)
    assert before == zarrfeed.open(path)
    zarr.create_array(path, shape=(10,), chunks=(2,), dtype="i4", overwrite=True)
    assert before != zarrfeed.open(path)
    assert repr(before) == repr(zarrfeed.open(path))


@pytest.mark.parametrize("dtype", ["bool", "u1", "i8", "f2", "f8", "c8"])
def test_arrays_in_memory_are_compared_by_their_values(dtype: str) -> None:
    values = (np.arange(12).reshape(4, 3) % 2).astype(dtype)
    other = values.copy()
    other[3, 2] = 1 - other[3, 2]
    assert zarrfeed.open(values) == zarrfeed.open(values.copy())
    assert zarrfeed.open(values) != zarrfeed.open(other)
    assert zarrfeed.open(values) != zarrfeed.open(values.reshape(3, 4))


def test_values_of_storage_options_are_neither_printed_nor_kept() -> None:
    arguments: dict[str, Any] = {"retries": 0, "timeout": 0.01}
    call = Secrets.of({"secret": "hunter2", "anon": False})
    assert repr(call) == "{'secret': ..., 'anon': ...}"
    assert b"hunter2" not in pickle.dumps(call)
    assert call == Secrets.of({"secret": "hunter2", "anon": False})
    assert call != Secrets.of({"secret": "hunter3", "anon": False})
    with pytest.raises(ConfigError, match="storage_options are for URLs"):
        zarrfeed.open(np.arange(3), storage_options={"anon": True}, **arguments)


def test_metadata_are_read_once(store: str) -> None:
    data = era5(store)
    for file in Path(store).rglob("zarr.json"):
        file.rename(file.with_name("away"))
    for chain in CHAINS:
        made = chain(data)
        with ZarrIterableDataset(made, batch_size=4) as dataset:
            assert len(dataset) == -(-len(made) // 4)
        assert len(ZarrDataset(made)) == len(made)
    for file in Path(store).rglob("away"):
        file.rename(file.with_name("zarr.json"))
    assert np.array_equal(samples_of(data), np.arange(N))


def test_fields_say_what_batches_have(store: str) -> None:
    data = era5(store).window({"t2m": (-1, 0)}).cast({"z": "float16"})
    described = [(field.name, field.part, field.shape, field.dtype) for field in data.fields]
    assert described == [("t2m", "samples", (2, 3, 4), "float32"), ("z", "samples", (4,), "float16")]
    batch = ZarrDataset(data)[[0, 1]]
    for field in data.fields:
        assert batch[field.name].shape == (2, *field.shape)
        assert str(batch[field.name].dtype) == f"torch.{field.dtype}"


def test_text_and_targets_have_fields() -> None:
    names = zarr.array(np.array([["a"], ["b"], ["c"]], dtype=object), dtype=str)
    data = zarrfeed.open({"x": np.zeros((3, 2), "f4"), "name": names}, np.arange(3))
    described = [(field.name, field.part, field.shape, field.dtype) for field in data.fields]
    assert described[1:] == [("name", "samples", (1,), "str"), ("targets", "targets", (), "int64")]


def test_a_notebook_shows_the_expression_the_samples_and_the_fields(store: str) -> None:
    page = era5(store).select(slice(0, 40)).window((-1, 0))._repr_html_()
    for text in (".select(slice(0, 40))", ".window((-1, 0))", "39 of 60", "float32 of shape (2, 3, 4)", "(7, 3, 4)"):
        assert text in page
    assert "<script" not in page


def selections(n: int) -> st.SearchStrategy[Any]:
    bound = st.none() | st.integers(-n - 1, n + 1)
    return (
        st.builds(slice, bound, bound, st.none() | st.sampled_from([-3, -1, 1, 2, 5]))
        | st.lists(st.integers(-n, n - 1), min_size=1, max_size=n)
        | st.lists(st.booleans(), min_size=n, max_size=n).map(np.array)
    )


@given(data=st.data(), n=st.integers(1, 40), chunk=st.integers(1, 12))
@examples(150)
def test_selections_of_selections_are_numpys(data: st.DataObject, n: int, chunk: int) -> None:
    array = zarr.array(np.arange(n), chunks=(chunk,))
    made, expected = zarrfeed.open(array), np.arange(n)
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            chunks = data.draw(st.lists(st.integers(0, (n - 1) // chunk), min_size=1))
            kept = expected[np.isin(expected // chunk, chunks)]
            method, argument = made.blocks, chunks
        else:
            samples = data.draw(selections(len(expected)))
            kept = expected[samples]
            if not isinstance(samples, slice) and len(np.unique(kept)) < len(kept):
                kept = kept[:0]  # named twice
            method, argument = made.select, samples  # type: ignore[assignment]
        if not len(kept):
            with pytest.raises(ConfigError):
                method(argument)
            return
        made, expected = method(argument), np.sort(kept)
    assert len(made) == len(expected)
    blocks: tuple[Literal["chunk"] | None, ...] = ("chunk", None)
    for block in blocks:
        _, selection = made.resolved.planned(block=block, room=0)
        listed = np.arange(n) if selection is None else selection.listed()
        assert np.array_equal(np.sort(listed), expected)


@given(data=st.data(), n=st.integers(5, 50))
@examples(150)
def test_windows_of_slices_of_slices_read_rows_between_their_bounds(data: st.DataObject, n: int) -> None:
    first = data.draw(st.tuples(st.integers(0, n - 1), st.integers(1, n)).filter(lambda pair: pair[0] < pair[1]))
    step = data.draw(st.integers(1, 3))
    inner = range(*slice(*first, step).indices(n))
    second = data.draw(st.tuples(st.integers(0, len(inner) - 1), st.integers(1, len(inner))))
    offsets = data.draw(st.lists(st.integers(-3, 3), min_size=1, max_size=3))
    start, stop = second
    if start >= stop:
        return
    described = zarrfeed.open(np.arange(n)).select(slice(*first, step)).select(slice(start, stop))
    low = first[0] if start == 0 else inner[start]
    high = first[1] if stop == len(inner) else inner[stop]
    expected = [i for i in inner[start:stop] if all(low <= i + offset < high for offset in [0, *offsets])]
    if not expected:
        with pytest.raises(ConfigError):
            described.window(offsets)
        return
    windows = described.window(offsets)
    assert samples_of(windows).tolist() == expected
    rows = ZarrDataset(windows)[list(range(len(windows)))]
    assert np.array_equal(rows, np.add.outer(expected, offsets))


@pytest.mark.parametrize("by", ["chunk", "sample", "contiguous"])
def test_parts_are_disjoint_and_all(store: str, by: Any) -> None:
    data = era5(store).select(slice(3, 58))
    parts = data.split((0.5, 0.3, 0.2), by=by, seed=4)
    indices = np.concatenate([samples_of(part) for part in parts])
    assert np.array_equal(np.sort(indices), np.arange(3, 58))
    again = data.split((0.5, 0.3, 0.2), by=by, seed=4)
    assert again == parts
    assert data.split((0.5, 0.3, 0.2), by=by, seed=5) != parts
    assert data not in parts


def test_parts_by_shard_hold_whole_shards() -> None:
    array = zarr.create_array({}, shape=(96,), chunks=(4,), shards=(12,), dtype="i4")
    array[:] = np.arange(96)
    for part in zarrfeed.open(array).split((0.5, 0.5), by="shard", seed=1):
        shards, counts = np.unique(samples_of(part) // 12, return_counts=True)
        assert (counts == 12).all()
        assert len(shards) == 4
    by_chunk = zarrfeed.open(array).split((0.5, 0.5), by="chunk", seed=1)
    assert any((np.unique(samples_of(part) // 12, return_counts=True)[1] < 12).any() for part in by_chunk)
    with pytest.raises(ConfigError, match="has no shards"):
        zarrfeed.open(zarr.array(np.arange(9), chunks=(3,))).split((0.5, 0.5), by="shard")


def test_blocks_of_shards_serve_a_dataset_that_shuffles_either() -> None:
    array = zarr.create_array({}, shape=(96,), chunks=(4,), shards=(12,), dtype="i4")
    array[:] = np.arange(96)
    data = zarrfeed.open(array).blocks([1, -1], of="shard")
    assert np.array_equal(samples_of(data), [*range(12, 24), *range(84, 96)])
    with ZarrIterableDataset(data, batch_size=8, shuffle=True) as dataset:
        assert dataset.explain().block_rows == 12
        assert sorted(np.concatenate(list(dataset))) == [*range(12, 24), *range(84, 96)]


def test_a_state_knows_the_same_description_and_no_other(store: str) -> None:
    def dataset(data: Data) -> ZarrIterableDataset:
        return ZarrIterableDataset(data, batch_size=4, shuffle=True, seed=1)

    data = era5(store).select(slice(0, 50)).window((-1, 0))
    with dataset(data) as first:
        batches = [batch["z"] for batch in first]
        first.set_epoch(0)
        began = iter(first)
        next(began)
        state = first.state_dict()
        del began
    with dataset(pickle.loads(pickle.dumps(data))) as second:
        second.load_state_dict(state)
        assert all(torch.equal(a["z"], b) for a, b in zip(second, batches[1:], strict=True))
    others = [
        era5(store).select(slice(0, 49)).window((-1, 0)),
        era5(store).select(slice(0, 50)).window((0, 1)),
        data.cast("float16"),
        data.split((0.5, 0.5), by="contiguous")[0],
    ]
    for other in others:
        with dataset(other) as another, pytest.raises(ConfigError, match="another dataset or order"):
            another.load_state_dict(state)


def test_casts_and_normalisations_add_up(store: str) -> None:
    data = era5(store)
    expected = ZarrDataset(data)[[1, 5]]
    made = data.cast("float16").normalize({"z": (3, 2)}).normalize({"t2m": (1, 4)}).cast({"z": "float64"})
    got = ZarrDataset(made)[[1, 5]]
    assert torch.equal(got["z"], (expected["z"].double() - 3) / 2)
    assert torch.equal(got["t2m"], ((expected["t2m"] - 1) / 4).half())


def test_from_xarray_reads_what_was_opened(store: str) -> None:
    opened = xarray.open_zarr(store, consolidated=False)
    data = zarrfeed.from_xarray(opened, sample_dim="time")
    assert sorted(field.name for field in data.fields) == ["t2m", "z"]
    assert len(data) == N
    assert repr(data).startswith("zarrfeed.from_xarray(<xarray.Dataset ")
    assert f"t2m: file://{store}/t2m" in repr(data)
    assert data == zarrfeed.from_xarray(opened, sample_dim="time")
    row = ZarrDataset(data)[7]
    assert np.array_equal(row["t2m"], opened["t2m"][7])
    array = zarrfeed.from_xarray(opened["z"], np.arange(N))
    assert [field.part for field in array.fields] == ["samples", "targets"]
    with pytest.raises(ConfigError, match=r"must be an xarray\.Dataset"):
        zarrfeed.from_xarray(np.arange(3))


#: What a description of `store` refuses, and with which words: by the call that asks for it.
REFUSED: list[tuple[Callable[[Data], Any], str]] = [
    (lambda data: data.select([N]), "index 60, must be in"),
    (lambda data: data.select(slice(0, 10)).select([10]), r"index 10, must be in \[-10, 9\]"),
    (lambda data: data.select([1, 1]), "more than once"),
    (lambda data: data.select(slice(5, 5)), "selects nothing"),
    (lambda data: data.select(np.ones(3, bool)), "a mask of 3 flags"),
    (lambda data: data.select("all"), "must be a slice"),
    (lambda data: data.blocks([99]), "must be in"),
    (lambda data: data.blocks([0], of="row"), "of = 'row', must be one of"),  # type: ignore[arg-type]
    (lambda data: data.blocks([0], of="shard"), "has no shards"),
    (lambda data: data.select([0]).blocks([3]), "no sample in common"),
    (lambda data: data.blocks([0]).window((-1, 0)), r"window\(\) follows blocks\(\)"),
    (lambda data: data.window((-1, 0)).select([0]), r"select\(\) follows window\(\)"),
    (lambda data: data.window((-1, 0)).blocks([0]), r"blocks\(\) follows window\(\)"),
    (lambda data: data.window((-1, 0)).window((1,)), "called before"),
    (lambda data: data.window(()), "at least one"),
    (lambda data: data.window(None), "must be an integer"),  # type: ignore[arg-type]
    (lambda data: data.window(0.5), "must be an integer"),  # type: ignore[arg-type]
    (lambda data: data.window({"t3m": 0}), "did you mean 't2m'"),
    (lambda data: data.window((0, N)), "60 samples only"),
    (lambda data: data.window((1,), segment_ends=[3]), "must end with the number of samples, 60"),
    (lambda data: data.window((1,), rows="al"), "did you mean 'all'"),
    (lambda data: data.cast("flaot32"), "did you mean 'float32'"),
    (lambda data: data.cast(None), "dtype = None"),
    (lambda data: data.cast({"x": "float32"}), "must be one of 't2m', 'z'"),
    (lambda data: data.cast({"t2m": "int8"}), "without losing values"),
    (lambda data: data.normalize((0, 0)), "finite and above 0"),
    (lambda data: data.normalize(None), "mean_std = None"),  # type: ignore[arg-type]
    (lambda data: data.normalize({"z": ([1, 2], 1)}, axis="x"), "axis 1 has length 4"),
    (lambda data: data.normalize({"z": ([1, 2], 1)}), "must say along which axis"),
    (lambda data: data.normalize({"z": (1, 2)}).normalize({"z": (1, 2)}), "normalised before"),
    (lambda data: data.normalize({"z": (1, 2)}).cast({"z": "int64"}), "int64 cannot hold normalised values"),
    (lambda data: data.split((0.5, 0.6)), "with the sum 1"),
    (lambda data: data.split((0.5, 0.5), by="chunks"), "did you mean 'chunk'"),  # type: ignore[arg-type]
    (lambda data: data.split((0.5, 0.5), seed=-1), "seed = -1"),
    (lambda data: ZarrDataset(data, np.arange(N)), "targets are given beside a Data"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_work_is_refused_by_the_call_that_asks_for_it(store: str, number: int) -> None:
    call, words = REFUSED[number]
    data = era5(store)
    with pytest.raises(ConfigError, match=words):
        call(data)


def test_text_has_windows_and_no_numbers() -> None:
    names = zarr.array(np.array(["a", "b", "c"], dtype=object), dtype=str)
    data = zarrfeed.open({"name": names})
    assert zarrfeed.ZarrDataset(data.window((-1, 0)))[0]["name"] == ["a", "b"]
    with pytest.raises(ConfigError, match="text or bytes"):
        data.cast({"name": "float32"})


def test_misspelt_arguments_name_the_one_that_was_meant(store: str) -> None:
    with pytest.raises(UnknownOptionError, match="did you mean 'sample_dim'"):
        zarrfeed.open(store, sample_dims="time")  # type: ignore[call-arg]
    with pytest.raises(UnknownOptionError, match="did you mean 'variables'"):
        zarrfeed.from_xarray(store, variable=["x"])  # type: ignore[call-arg]
    with pytest.raises(UnknownOptionError, match=r"Data\.window\(\) .*; did you mean 'segment_ends'"):
        era5(store).window((1,), segments_ends=[N])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "module",
    [
        "metadata.face.data",
        "metadata.face.data_items",
        "metadata.face.data_samples",
        "metadata.face.open_data",
        "metadata.face.concat_data",
        "metadata.group.source_names",
        "spec.description.freeze",
        "torch.datasets.iterable_dataset",
        "torch.datasets.map_dataset",
    ],
)
def test_the_examples_in_docstrings_run(module: str) -> None:
    failed, tried = doctest.testmod(import_module(f"zarrfeed.{module}"))
    assert failed == 0
    assert tried > 0


def samples_of(data: Data) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the indices, in the array, of the samples that a dataset delivers, in the order of the array."""
    indices = ZarrDataset(data, return_index=True)[list(range(len(data)))][-1]
    assert np.array_equal(indices, np.sort(indices))
    return np.asarray(indices)


def test_a_pickle_holds_an_array_in_memory_once() -> None:
    values = np.zeros((1000, 100))
    data = zarrfeed.open(values).normalize((1, 2)).cast("float16")
    for described in (data, ZarrDataset(data), ZarrIterableDataset(data, batch_size=4)):
        assert values.nbytes < len(pickle.dumps(described)) < 1.1 * values.nbytes


@pytest.mark.parametrize(("name", "advice"), _CALLED_HERE.items())
def test_names_of_other_libraries_are_answered_with_the_name_here(name: str, advice: str) -> None:
    data = zarrfeed.open(np.arange(5))
    assert not hasattr(data, name)
    with pytest.raises(AttributeError, match=re.escape(f"'Data' object has no attribute {name!r}; {advice}")):
        getattr(data, name)
    for called in re.findall(r"([\w.]+)\(", advice):
        where = zarrfeed if called[0].isupper() or called.startswith("zarrfeed.") else zarrfeed.Data
        assert called == "len" or hasattr(where, called.removeprefix("zarrfeed."))


def test_other_names_are_no_attributes_and_copies_have_all_attributes() -> None:
    data = zarrfeed.open(np.arange(5))
    assert not hasattr(data, "__array__")
    assert copy.deepcopy(data) == copy.copy(data) == data
    with pytest.raises(AttributeError, match=r"'Data' object has no attribute 'selct'; did you mean 'select'\?$"):
        data.selct()  # type: ignore[attr-defined]
