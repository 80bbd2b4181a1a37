"""Text and bytes of any length: lists of str and bytes in every batch, as zarr-python reads them."""

from __future__ import annotations

import asyncio
import pickle
import signal
import threading
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import torch
import zarr
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from zarr.abc.store import Store
from zarr.codecs import TransposeCodec
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.storage import FsspecStore, MemoryStore, ObjectStore, WrapperStore, ZipStore

import zarrfeed
from tests.support.examples import CHARACTERS, examples
from tests.support.flat import iterable_dataset, split
from tests.support.oracle import NUMCODECS_WARNING, AnyArray, ZarrFormat, chunk_files, numbered
from zarrfeed import (
    ConfigError,
    CorruptChunkError,
    MemoryBudgetError,
    StoreReadError,
    UnsupportedError,
    ZarrDataLoader,
    ZarrDataset,
    ZarrIterableDataset,
)
from zarrfeed.compat import zarrdataset as compat

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings(NUMCODECS_WARNING),
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec:UserWarning"),
]

N = 23

#: What there is: the dtype that zarr-python is given, its formats, and what an item is.
KINDS: dict[str, tuple[str, tuple[ZarrFormat, ...], type]] = {
    "string": ("str", (2, 3), str),
    "bytes": ("variable_length_bytes", (2, 3), bytes),
    "fixed-length text": ("U9", (2, 3), str),
}
CASES = [(kind, zarr_format) for kind, (_, formats, _) in KINDS.items() for zarr_format in formats]


def words(shape: tuple[int, ...], item: type = str, *, longest: int = 9) -> AnyArray:
    """Return objects that encode their index and differ in length; some are empty, some no ASCII."""
    flat: list[Any] = []
    for index in range(int(np.prod(shape))):
        text = f"{index}" + ("ä☃🙂" * 3)[: index % 4]
        text = "" if index % 7 == 5 else text[:longest]
        flat.append(text if item is str else text.encode() + bytes([0, 255])[: index % 3])
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(shape)


def write(
    store: Any, data: AnyArray, kind: str, zarr_format: ZarrFormat = 3, *, chunks: tuple[int, ...], **options: Any
) -> zarr.Array[Any]:
    """Store objects with zarr-python."""
    dtype: Any = KINDS[kind][0]
    if zarr_format == 2 and kind == "bytes":
        dtype = zarr.dtype.VariableLengthBytes()
    array: zarr.Array[Any] = zarr.create_array(
        store, shape=data.shape, chunks=chunks, dtype=dtype, zarr_format=zarr_format, **options
    )
    array[...] = data
    return array


def read_objects(array: zarr.Array[Any], *, sample_axis: int = 0) -> list[Any]:
    """Read all samples with zarr-python, as nested lists."""
    return np.moveaxis(np.asarray(array[...]).astype(object), sample_axis, 0).tolist()  # type: ignore[no-any-return]


def assert_vlen_samples(
    source: Any, expected: list[Any], *, batch_size: int | None = 7, shuffle: bool = True, **options: Any
) -> ZarrIterableDataset:
    """Read an epoch and fail unless every sample is delivered once, in the announced order, as `expected`."""
    seen: list[int] = []
    with iterable_dataset(
        source, batch_size=batch_size, shuffle=shuffle, return_index=True, num_threads=2, **options
    ) as dataset:
        announced = dataset.sample_order(0).tolist()
        for values, index in dataset:
            if batch_size is None:
                assert values == expected[int(index)]
                seen.append(int(index))
                continue
            assert isinstance(values, list)
            assert values == [expected[i] for i in index.tolist()]
            seen += index.tolist()
    assert seen == announced
    assert sorted(seen) == list(range(len(expected)))
    return dataset


def joined(batches: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(batches))


def item_types(values: Any) -> set[type]:
    return set().union(*map(item_types, values)) if isinstance(values, list) else {type(values)}


# --- as zarr-python reads them ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "zarr_format"), CASES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_is_a_list_of_samples(kind: str, zarr_format: ZarrFormat, shuffle: bool, tmp_path: Path) -> None:
    item = KINDS[kind][2]
    array = write(tmp_path / "a", words((N,), item), kind, zarr_format, chunks=(5,))
    expected = read_objects(array)
    assert expected == words((N,), item).tolist()
    dataset = assert_vlen_samples(tmp_path / "a", expected, shuffle=shuffle)
    assert item_types(expected) == {item}
    assert dataset.stats().chunks_read == 5  # each once
    assert dataset.stats().samples == N
    assert_vlen_samples(array, expected, shuffle=shuffle, batch_size=None)
    with ZarrIterableDataset(array, batch_size=4) as again:
        (first, *_) = again
        assert item_types(first) == {item}


@pytest.mark.parametrize(("kind", "zarr_format"), CASES)
@pytest.mark.parametrize("sample_axis", [0, 1, 2])
def test_samples_of_several_items_are_nested_lists(kind: str, zarr_format: ZarrFormat, sample_axis: int) -> None:
    data = words((11, 4, 5), KINDS[kind][2])
    options: dict[str, Any] = {"order": "F"} if zarr_format == 2 else {"filters": TransposeCodec(order=(2, 0, 1))}
    array = write(MemoryStore(), data, kind, zarr_format, chunks=(5, 3, 2), **options)
    expected = read_objects(array, sample_axis=sample_axis)
    assert_vlen_samples(array, expected, sample_axis=sample_axis)
    dataset = assert_vlen_samples(array, expected, sample_axis=sample_axis, batch_size=None, shuffle=False)
    assert dataset.stats().chunks_read == 3 * 2 * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inner", ["native", "general", "nested", "whole"])
def test_text_in_shards(kind: str, inner: str, tmp_path: Path) -> None:
    data = words((N, 4), KINDS[kind][2])
    data[8:12] = KINDS[kind][2]()  # inner chunks that are not stored
    options: dict[str, Any] = {"chunks": (2, 4), "shards": (6, 4)}
    if inner == "general":
        options["compressors"] = zarr_numcodecs.BZ2()
    elif inner in ("nested", "whole"):
        plain = write(MemoryStore(), data, kind, chunks=(2, 4), shards=(6, 4))
        codec: Any = plain.metadata.codecs[0]  # type: ignore[union-attr]
        options = {"chunks": (12, 4), "filters": None, "compressors": None}
        options["serializer"] = type(codec)(chunk_shape=(6, 4), codecs=[codec])
        if inner == "whole":
            options |= {"chunks": (6, 4), "serializer": codec, "compressors": zarr_numcodecs.BZ2()}
    array = write(tmp_path / "a", data, kind, **options)
    expected = read_objects(array)
    if inner != "whole":
        assert_vlen_samples(array, expected, block="shard")
    for shuffle in (True, False):
        dataset = assert_vlen_samples(array, expected, shuffle=shuffle)
    stats = dataset.stats()
    assert stats.indices_read == {"native": 4, "general": 4, "nested": 2, "whole": 0}[inner]
    assert stats.chunks_read + stats.chunks_missing == {"native": 12, "general": 12, "nested": 4, "whole": 4}[inner]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an array of text or bytes, and how it is read."""
    kind, zarr_format = draw(st.sampled_from(CASES))
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    item = st.binary(max_size=6) if kind == "bytes" else st.text(CHARACTERS, max_size=6)
    if kind == "fixed-length text":  # of which NumPy strips zeros
        item = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
    size = int(np.prod(shape))
    data = np.empty(size, dtype=object)
    data[:] = draw(st.lists(item, min_size=size, max_size=size))
    chunks = tuple(draw(st.integers(1, 4)) for _ in shape)
    options: dict[str, Any] = {"chunks": chunks}
    if zarr_format == 3 and draw(st.booleans()):
        options["shards"] = tuple(n * draw(st.integers(1, 3)) for n in chunks)
    elif zarr_format == 2:
        options["compressors"] = draw(st.sampled_from([None, numcodecs.Blosc(), numcodecs.BZ2()]))
    return {
        "kind": kind,
        "zarr_format": zarr_format,
        "data": data.reshape(shape),
        "options": options,
        "read": {
            "sample_axis": draw(st.integers(0, len(shape) - 1)),
            "shuffle": draw(st.booleans()),
            "batch_size": draw(st.sampled_from([None, 1, 4])),
        },
    }


@examples(60)
@given(case=cases())
def test_any_array_of_text_reads_as_zarr_python_reads_it(case: dict[str, Any]) -> None:
    array = write(MemoryStore(), case["data"], case["kind"], case["zarr_format"], **case["options"])
    assert_vlen_samples(array, read_objects(array, sample_axis=case["read"]["sample_axis"]), **case["read"])


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("fill", ["none", "say nothing", None])
def test_chunks_that_are_missing_are_the_fill_value(zarr_format: ZarrFormat, fill: str | None) -> None:
    array: Any = zarr.create_array(
        MemoryStore(), shape=(N,), chunks=(5,), dtype="str", fill_value=fill, zarr_format=zarr_format
    )
    array[5:10] = words((5,))
    expected = read_objects(array)
    assert expected[0] == (fill or "")
    dataset = assert_vlen_samples(array, expected)
    assert (dataset.stats().chunks_read, dataset.stats().chunks_missing) == (1, 4)


@pytest.mark.parametrize("store", ["zip", "fsspec", "obstore", "memory"])
def test_stores_that_are_not_local(store: str, tmp_path: Path) -> None:
    stores: dict[str, Any] = {
        "zip": lambda: ZipStore(tmp_path / "a.zip", mode="w"),
        "fsspec": lambda: FsspecStore.from_url(f"memory://{tmp_path.name}", storage_options={}),
        "obstore": lambda: ObjectStore(pytest.importorskip("obstore.store").MemoryStore()),
        "memory": MemoryStore,
    }
    if store == "fsspec":
        pytest.importorskip("fsspec")
    array = write(stores[store](), words((N,)), "string", chunks=(5,))
    assert_vlen_samples(array, words((N,)).tolist())


# --- beside other fields ----------------------------------------------------------------------------------------


def test_groups_and_mappings_with_text_are_dicts(tmp_path: Path) -> None:
    images, names = numbered((40, 6)), words((40,))
    group = zarr.open_group(tmp_path / "g", mode="w")
    write(group.store, names, "string", chunks=(7,), name="name")
    group.create_array("image", shape=images.shape, chunks=(4, 6), dtype="f4")[...] = images
    for source in (tmp_path / "g", {"image": tmp_path / "g/image", "name": tmp_path / "g/name"}):
        with ZarrIterableDataset(source, batch_size=6, shuffle=True, return_index=True) as dataset:
            assert dataset.explain().primary == "samples['image']"  # the tensors make the blocks
            assert "looked up, chunks are kept" in str(dataset.explain())
            assert "'name': () str" in repr(dataset)
            for batch, index in dataset:
                assert set(batch) == {"image", "name"}
                assert torch.equal(batch["image"], torch.from_numpy(images[index.numpy()]))
                assert batch["name"] == names[index.numpy()].tolist()


def test_text_as_targets_and_targets_of_text(tmp_path: Path) -> None:
    images, names, labels = numbered((40, 6)), words((40, 2)), torch.arange(40)
    write(tmp_path / "names", names, "string", chunks=(7, 2))
    zarr.create_array(tmp_path / "x", shape=images.shape, chunks=(4, 6), dtype="f4")[...] = images
    with ZarrIterableDataset(tmp_path / "x", tmp_path / "names", batch_size=6, shuffle=True) as dataset:
        for rows, text in dataset:
            samples = [int(np.flatnonzero((images == row).all(1))[0]) for row in rows.numpy()]
            assert text == names[samples].tolist()
    with ZarrIterableDataset(tmp_path / "names", labels, batch_size=6, shuffle=True) as dataset:
        assert dataset.explain().primary == "samples"
        assert dataset.explain().block_rows == 7
        for text, label in dataset:
            assert text == names[label.numpy()].tolist()
    with ZarrIterableDataset(tmp_path / "names", labels, shuffle=True) as dataset:  # one by one
        assert all(text == names[int(label)].tolist() for text, label in dataset)


def test_conversions_are_of_numbers(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"x": tmp_path / "x", "name": tmp_path / "name"}
    write(tmp_path / "name", words((N,)), "string", chunks=(5,), attributes={"_FillValue": "none", "scale_factor": 2.0})
    zarr.create_array(tmp_path / "x", shape=(N, 3), chunks=(4, 3), dtype="i2")[...] = 4
    options: dict[str, Any] = {"dtype": "float16", "normalize": (2, 2)}
    with iterable_dataset(fields, batch_size=N, **options) as dataset:
        (batch,) = dataset
    assert batch["x"].dtype == torch.float16
    assert batch["name"] == words((N,)).tolist()
    for wrong in ({"dtype": {"name": "float32"}}, {"normalize": {"name": (0, 1)}}):
        with pytest.raises(ConfigError, match=r"samples\['name'\]: cannot convert text or bytes"):
            iterable_dataset(fields, batch_size=4, **wrong)
    with pytest.raises(ConfigError, match="samples: cannot convert text or bytes"):
        ZarrIterableDataset(zarrfeed.open(tmp_path / "name").cast("float32"), batch_size=4)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")
def test_text_that_xarray_wrote(zarr_format: ZarrFormat, tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    names, heat = words((N,)), np.arange(N * 2.0).reshape(N, 2)
    fixed = names.astype("U9")
    written = xarray.Dataset({"heat": (("time", "x"), heat), "name": (("time",), names), "fixed": (("time",), fixed)})
    encoding = {"heat": {"chunks": (6, 2)}, "name": {"chunks": (5,)}, "fixed": {"chunks": (4,)}}
    written.to_zarr(tmp_path / "a", zarr_format=zarr_format, encoding=encoding)
    with xarray.open_zarr(tmp_path / "a") as opened:
        for data in (
            zarrfeed.open(tmp_path / "a", sample_dim="time"),
            zarrfeed.from_xarray(opened, sample_dim="time"),
        ):
            dataset = ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True)
            for batch, index in dataset:
                assert batch["name"] == batch["fixed"] == names[index.numpy()].tolist()
                assert torch.equal(batch["heat"], torch.from_numpy(heat[index.numpy()]))
            dataset.close()


def test_a_transform_gets_the_lists() -> None:
    array = write(MemoryStore(), words((N,)), "string", chunks=(5,))
    with ZarrIterableDataset(array, batch_size=4, transform=lambda batch: [len(text) for text in batch]) as dataset:
        assert joined(dataset) == [len(text) for text in words((N,))]


def test_the_compatible_api_gives_lists_too(tmp_path: Path) -> None:
    array = write(tmp_path / "a", words((N,)), "string", chunks=(5,))
    dataset = compat.ZarrIterableDataset(samples=array, targets=array, shuffle_chunks=False, buffer_shuffle_seed=3)
    assert sorted(text for text, _ in dataset) == sorted(words((N,)))
    dataset.close()


def test_what_explain_says(tmp_path: Path) -> None:
    write(tmp_path / "a", words((N, 2)), "string", chunks=(5, 2))
    with ZarrIterableDataset(tmp_path / "a", batch_size=4, memory_budget="1GiB") as dataset:
        explanation = dataset.explain()
    (field,) = explanation.fields
    assert (field.native, field.item_type, field.slow_codecs) == (False, "str", ("vlen-utf8",))
    assert "(23, 2) string as str, Zarr v3, read chunks (5, 2), zstd + vlen-utf8" in field.description
    assert "through zarr-python, slow (lists of str; codec vlen-utf8)" in str(explanation)
    assert "at least 5 chunk reads per epoch" in str(explanation)
    assert f"{explanation.memory.list_bytes >> 20}.0 MiB for chunks of text" in str(explanation)
    write(tmp_path / "b", words((N,)), "fixed-length text", 2, chunks=(5,))
    with ZarrIterableDataset(tmp_path / "b", batch_size=4) as dataset:
        assert "slow (lists of str)" in str(dataset.explain())


# --- random access ----------------------------------------------------------------------------------------------


def test_samples_by_index(tmp_path: Path) -> None:
    names, numbers = words((40, 2)), torch.arange(40)
    write(tmp_path / "a", names, "string", chunks=(7, 1))
    dataset = ZarrDataset(tmp_path / "a", numbers)
    assert dataset[3] == (names[3].tolist(), 3)
    wanted = [5, 39, 5, -1, 0]
    text, number = dataset[wanted]
    assert (text, number.tolist()) == (names[wanted].tolist(), [5, 39, 5, 39, 0])
    assert dataset[[]][0] == []
    dataset.close()


@pytest.mark.parametrize("sample_shape", [(), (2,)])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_own_collation(sample_shape: tuple[int, ...], beside: bool, workers: int, tmp_path: Path) -> None:
    names = words((40, *sample_shape))
    write(tmp_path / "a", names, "string", chunks=(7, *sample_shape))
    source: Any = {"x": torch.arange(40), "name": tmp_path / "a"} if beside else tmp_path / "a"
    dataset = ZarrDataset(source)
    loader = DataLoader(dataset, batch_size=7, num_workers=workers, timeout=80 if workers else 0)
    batches = list(loader)
    if beside:
        assert torch.cat([batch["x"] for batch in batches]).tolist() == list(range(40))
        batches = [batch["name"] for batch in batches]
    assert joined(batches) == names.tolist()
    samples = [sample for batch in DataLoader(dataset, batch_size=7, collate_fn=list) for sample in batch]
    assert [sample["name"] if beside else sample for sample in samples] == names.tolist()
    dataset.close()


def test_chunks_are_cached_by_index_too() -> None:
    for cache, reads in ((0, 4), ("1MiB", 2)):
        array, store = recorded(chunks=(5,))
        dataset = ZarrDataset(array, cache=cache)
        for _ in range(2):
            assert dataset[[1, 0, 38]] == words((40,))[[1, 0, 38]].tolist()
        assert len(store.asked) == reads
        dataset.close()


# --- processes and states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers(context: str, tmp_path: Path) -> None:
    names = words((40, 2))
    write(tmp_path / "a", names, "string", chunks=(3, 1), shards=(6, 2))
    dataset = ZarrIterableDataset(tmp_path / "a", batch_size=8, shuffle=True, return_index=True, num_threads=1)
    next(iter(dataset))  # loop and reader exist in the parent
    for loader in (
        DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context, timeout=240),
        ZarrDataLoader(dataset, num_workers=2, multiprocessing_context=context, timeout=240),
    ):
        seen: list[int] = []
        for text, index in loader:
            assert text == names[index.numpy()].tolist()
            seen += index.tolist()
        assert sorted(seen) == list(range(40))
    dataset.close()


def test_ranks_partition_the_samples() -> None:
    array = write(MemoryStore(), words((40,)), "string", chunks=(3,))
    seen: list[str] = []
    for rank in range(3):
        with ZarrIterableDataset(
            array, batch_size=4, shuffle=True, seed=5, rank=rank, world_size=3, even="off"
        ) as dataset:
            seen += joined(dataset)
    assert sorted(seen) == sorted(words((40,)))


def test_an_epoch_goes_on_where_it_was_left() -> None:
    array = write(MemoryStore(), words((40,)), "string", chunks=(3,))
    with ZarrIterableDataset(array, batch_size=4, shuffle=True) as dataset:
        whole = list(dataset)
    with ZarrIterableDataset(array, batch_size=4, shuffle=True) as dataset:
        batches = iter(dataset)
        begun = [next(batches) for _ in range(3)]
        state = dataset.state_dict()
    with ZarrIterableDataset(array, batch_size=4, shuffle=True) as dataset:
        dataset.load_state_dict(state)
        assert begun + list(dataset) == whole
    numbers = zarr.create_array(MemoryStore(), shape=(40,), chunks=(3,), dtype="i8")
    with (
        ZarrIterableDataset(numbers, batch_size=4, shuffle=True) as dataset,
        pytest.raises(ConfigError, match=r"samples was \[40, 'str'\], is \[40, 'int64'\]"),
    ):
        dataset.load_state_dict(state)


def test_a_dataset_can_be_pickled(tmp_path: Path) -> None:
    write(tmp_path / "a", words((N,), bytes), "bytes", chunks=(5,))
    with ZarrIterableDataset(tmp_path / "a", batch_size=4) as dataset, pickle.loads(pickle.dumps(dataset)) as again:
        assert list(again) == list(dataset)


# --- what is read -----------------------------------------------------------------------------------------------


class Recording(WrapperStore[Store]):
    """A store that remembers what was asked for."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.asked: list[str] = []

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        if "zarr.json" not in key:  # which each pass looks at
            self.asked.append(key)
        return await super().get(key, prototype, byte_range)


def recorded(**options: Any) -> tuple[zarr.Array[Any], Recording]:
    memory = MemoryStore()
    write(memory, words((40,)), "string", **options)
    array = zarr.open_array(Recording(memory.with_read_only(True)), mode="r")
    store = array.store
    assert isinstance(store, Recording)
    store.asked.clear()
    return array, store


def test_chunks_that_nobody_wants_are_not_read() -> None:
    array, store = recorded(chunks=(5,))
    with ZarrIterableDataset(zarrfeed.open(array).blocks([2, 5]), batch_size=4, shuffle=True) as dataset:
        assert sorted(joined(dataset)) == sorted(words((40,))[[*range(10, 15), *range(25, 30)]])
    assert sorted(store.asked) == ["c/2", "c/5"]


def test_selected_samples_and_parts_of_a_split() -> None:
    array, store = recorded(chunks=(5,))
    chosen = [1, 3, 22, 39]
    with ZarrIterableDataset(zarrfeed.open(array).select(chosen), batch_size=3, shuffle=True) as dataset:
        assert sorted(joined(dataset)) == sorted(words((40,))[chosen])
    assert sorted(store.asked) == ["c/0", "c/4", "c/7"]
    with ZarrIterableDataset(array, batch_size=3, shuffle=True) as dataset:
        parts = split(dataset, [0.5, 0.5], by="sample", seed=1)
        assert sorted(joined(chain(*parts))) == sorted(words((40,)))
        for part in parts:
            part.close()


def test_chunks_are_cached_as_long_as_there_is_memory() -> None:
    array, store = recorded(chunks=(5,))
    with ZarrIterableDataset(array, batch_size=4, shuffle=True, mixing={"lanes": 8}) as dataset:
        for _ in range(3):
            assert sorted(joined(dataset)) == sorted(words((40,)))
    assert sorted(store.asked) == [f"c/{i}" for i in range(8)]
    store.asked.clear()
    # room for about three chunks
    with ZarrIterableDataset(array, batch_size=4, shuffle=True, memory_budget=10_000, mixing={"lanes": 8}) as dataset:
        assert dataset.explain().memory.list_bytes == 1250
        assert sorted(joined(dataset)) == sorted(words((40,)))
    assert len(store.asked) > 8
    assert set(store.asked) == {f"c/{i}" for i in range(8)}


def test_a_budget_may_be_too_small() -> None:
    array, _ = recorded(chunks=(5,))
    with pytest.raises(MemoryBudgetError, match="must be at least 640 B: 2 open batches of 320 B"):
        ZarrIterableDataset(array, batch_size=40, memory_budget=200)


# --- what goes wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [None, (10,)])
def test_a_damaged_chunk_is_an_error_with_array_and_key(shards: Any, tmp_path: Path) -> None:
    write(tmp_path / "a", words((N,)), "string", chunks=(5,), shards=shards)
    file = chunk_files(tmp_path / "a")[1]
    good = file.read_bytes()
    with ZarrIterableDataset(tmp_path / "a", batch_size=4) as dataset:
        for bad in (b"", good[:-9], b"\xff" * len(good), b"\xff" * 9 + good[9:]):
            file.write_bytes(bad)
            with pytest.raises(CorruptChunkError, match=r"a chunk c/1: (inner chunk 0: |shard index: )?\w+"):
                list(dataset)
        file.write_bytes(good)
        assert joined(dataset) == words((N,)).tolist()  # the next epoch is not touched by it


def test_an_array_that_was_deleted_is_an_error_and_never_fill_values(tmp_path: Path) -> None:
    write(tmp_path / "a", words((N,)), "string", chunks=(5,))
    with ZarrIterableDataset(tmp_path / "a", batch_size=4) as dataset:
        (tmp_path / "a").rename(tmp_path / "b")
        with pytest.raises(StoreReadError, match=r"a(/| chunk c/0: .*)zarr\.json is gone"):
            list(dataset)


@pytest.mark.parametrize("error", [RuntimeError("no luck"), OSError(5, "odd"), KeyboardInterrupt()], ids=repr)
def test_what_a_store_raises_reaches_the_next_batch(error: BaseException) -> None:
    class Failing(Recording):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            if key == "c/1":
                raise error
            return await super().get(key, prototype, byte_range)

    memory = MemoryStore()
    write(memory, words((N,)), "string", chunks=(5,))
    array = zarr.open_array(Failing(memory.with_read_only(True)), mode="r")
    with ZarrIterableDataset(array, batch_size=4) as dataset:
        expected = StoreReadError if isinstance(error, Exception) else KeyboardInterrupt
        with pytest.raises(expected) as caught:
            list(dataset)
        if isinstance(error, Exception):
            assert caught.value.__cause__ is error
            assert "chunk c/1: " in str(caught.value)
    with ZarrIterableDataset(zarrfeed.open(array).blocks([0]), batch_size=4) as dataset:  # the loop lives
        assert joined(dataset) == words((N,))[:5].tolist()


def test_an_interrupt_ends_the_pass_and_nothing_else() -> None:
    class Interrupting(Recording):
        interrupts = True
        released = threading.Event()

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            if key == "c/1" and Interrupting.interrupts:
                Interrupting.interrupts = False
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # it waits for this look-up
                while not Interrupting.released.is_set():
                    await asyncio.sleep(0.001)
            return await super().get(key, prototype, byte_range)

    memory = MemoryStore()
    write(memory, words((N,)), "string", chunks=(5,))
    array = zarr.open_array(Interrupting(memory.with_read_only(True)), mode="r")
    with ZarrIterableDataset(array, batch_size=4) as dataset:
        with pytest.raises(KeyboardInterrupt):
            list(dataset)
        assert joined(dataset) == words((N,)).tolist()  # while the old one is under way
        Interrupting.released.set()
        assert joined(dataset) == words((N,)).tolist()


def test_text_in_memory_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="dtype <U3 has no torch equivalent"):
        ZarrIterableDataset(np.zeros((4, 2)), np.array(["a", "abc", "", "b"]), batch_size=2)
