"""Many stores as one against zarr-python and NumPy: any stores, one after another, are their arrays concatenated."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore, ZipStore

import zarrfeed
from tests.support.oracle import NUMCODECS_WARNING
from tests.support.scripts import run_script
from tests.support.stalls import again_after_a_stall
from zarrfeed import StoreReadError, ZarrDataset, ZarrIterableDataset
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.field import StoredField
from zarrfeed.tools import cli

Array = npt.NDArray[Any]

_CODECS: dict[str, Any] = {
    "zstd": {},
    "none": {"compressors": None},
    "slow": {"compressors": [{"name": "numcodecs.lzma", "configuration": {}}]},
    "sharded": {"shards": True},
}


def numbers(first: int, rows: int, width: int = 3) -> Array:
    """Return rows that say which sample they are, and every item where it is."""
    return ((first + np.arange(rows))[:, None] * 100 + np.arange(width)).astype("i4")


def put(group: zarr.Group, name: str, values: Array, chunk: int, codec: str = "zstd") -> None:
    options = dict(_CODECS[codec])
    chunks = (chunk, *values.shape[1:])
    if options.pop("shards", False):
        options["shards"] = (2 * chunk, *values.shape[1:])
    group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=chunks, **options)[:] = values


def make_stores(
    folder: Path, lengths: list[int], chunks: list[int], codecs: list[str], kind: str = "path"
) -> list[Any]:
    stores: list[Any] = []
    first = 0
    for number, (rows, chunk, codec) in enumerate(zip(lengths, chunks, codecs, strict=True)):
        target: Any = folder / f"s{number:03}.zarr"
        if kind == "memory":
            target = MemoryStore()
        elif kind == "zip":
            target = ZipStore(folder / f"s{number:03}.zip", mode="w")
        group = zarr.create_group(target, attributes={"history": f"written {number}"})
        put(group, "x", numbers(first, rows), chunk, codec)
        put(group, "y", np.arange(first, first + rows), 5)
        if kind == "zip":
            target.close()
        stores.append(group if kind == "memory" else str(folder / f"s{number:03}.zip") if kind == "zip" else target)
        first += rows
    return stores


def check_epoch(dataset: ZarrIterableDataset, expected: list[int]) -> list[int]:
    """Read an epoch, whose samples say which they are; return their order."""
    order: list[int] = []
    for samples, index in dataset:
        assert np.array_equal(samples["x"].numpy(), np.concatenate([numbers(i, 1) for i in index.tolist()]))
        assert torch.equal(samples["y"], index)
        order += index.tolist()
    assert sorted(order) == expected
    return order


@pytest.mark.filterwarnings(NUMCODECS_WARNING)
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_stores_of_any_lengths_and_layouts_are_their_arrays_concatenated(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=5))
    chunks = [data.draw(st.integers(1, 12)) for _ in lengths]
    codecs = [data.draw(st.sampled_from(sorted(_CODECS))) for _ in lengths]
    kind = data.draw(st.sampled_from(["path", "memory", "zip"]))
    stores = make_stores(tmp_path_factory.mktemp("many"), lengths, chunks, codecs, kind)
    total = sum(lengths)
    described = zarrfeed.open(stores)
    assert len(described) == total
    shuffle, batch = data.draw(st.booleans()), data.draw(st.integers(1, 9))
    dataset = ZarrIterableDataset(described, batch_size=batch, shuffle=shuffle, seed=3, return_index=True)
    order = check_epoch(dataset, list(range(total)))
    assert shuffle or order == list(range(total))
    at = np.array(data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=9)))
    samples = ZarrDataset(described)[at]
    assert np.array_equal(samples["x"].numpy(), np.concatenate([numbers(i, 1) for i in at]))
    store, index_in_store = described.locate(at)
    assert np.array_equal(np.concatenate(([0], np.cumsum(lengths)))[store] + index_in_store, at)
    chosen = np.unique(at)
    part = ZarrIterableDataset(described.select(chosen), batch_size=batch, shuffle=True, return_index=True)
    check_epoch(part, chosen.tolist())


def padded(row: int, offset: int, ends: Array) -> tuple[int, bool]:
    """Return the row that a window has at an offset, of segments with these ends, and whether it is padded."""
    segment = int(np.searchsorted(ends, row, side="right"))
    low, high = (0, *ends)[segment], ends[segment]
    at = row + offset
    return min(max(at, low), high - 1), not low <= at < high


@pytest.mark.parametrize("pad", ["edge", -7, "nan", None])
def test_windows_end_with_their_store_and_their_episode_or_are_padded(tmp_path: Path, pad: Any) -> None:
    lengths, offsets = [17, 1, 30, 9], (-4, -1, 0, 2, 6)
    stores = make_stores(tmp_path, lengths, [4, 4, 6, 4], ["zstd", "zstd", "sharded", "none"])
    ends = np.array([5, 17, 18, 40, 48, 57])  # episodes, and the ends of stores between them
    data = zarrfeed.open(stores).window({"x": offsets}, segment_ends=[5, 17, 40, 57], pad=pad, mask=pad is not None)
    if pad == "nan":
        with pytest.raises(zarrfeed.ConfigError, match="batches have int32, which cannot hold it"):
            ZarrDataset(data)
        data = data.cast({"x": "float32"})
    dataset = ZarrIterableDataset(data, batch_size=7, shuffle=True, seed=5, return_index=True)
    order = []
    for samples, index in dataset:
        for slot, row in enumerate(index.tolist()):
            found = [padded(row, offset, ends) for offset in offsets]
            expected = np.concatenate([numbers(at, 1) for at, _ in found]).astype(float)
            for number, (_, is_padded) in enumerate(found):
                if is_padded and pad not in ("edge", None):
                    expected[number] = float(pad)
            assert np.array_equal(samples["x"][slot].numpy(), expected, equal_nan=True)
            if pad is not None:
                assert samples["x_is_pad"][slot].tolist() == [is_padded for _, is_padded in found]
        order += index.tolist()
    complete = [row for row in range(57) if not any(padded(row, offset, ends)[1] for offset in offsets)]
    assert sorted(order) == (complete if pad is None else list(range(57)))


def test_ranks_workers_and_resuming_share_the_samples_of_many_stores(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, [40, 7, 64, 33], [4, 4, 8, 5], ["zstd"] * 3 + ["none"])
    data = zarrfeed.open(stores)
    options: dict[str, Any] = {"batch_size": 6, "shuffle": True, "seed": 9, "return_index": True}
    alone = [index.tolist() for _, index in ZarrIterableDataset(data, **options)]
    for world in (2, 3):
        parts = [ZarrIterableDataset(data, rank=r, world_size=world, even="off", **options) for r in range(world)]
        read = [i for part in parts for _, index in part for i in index.tolist()]
        assert sorted(read) == list(range(144))
    loader = zarrfeed.ZarrDataLoader(ZarrIterableDataset(data, **options), num_workers=2)
    assert sorted(i for _, index in loader for i in index.tolist()) == list(range(144))
    first = ZarrIterableDataset(data, **options)
    batches: Iterator[Any] = iter(first)
    taken = [next(batches)[1].tolist() for _ in range(5)]
    state = json.loads(json.dumps(first.state_dict()))
    again = ZarrIterableDataset(zarrfeed.open(stores), **options)
    again.load_state_dict(state)
    assert taken + [index.tolist() for _, index in again] == alone
    other = ZarrIterableDataset(zarrfeed.open(stores[:-1]), **options)
    with pytest.raises(zarrfeed.ConfigError, match="another dataset or order"):
        other.load_state_dict(state)


def test_each_chunk_is_decoded_once(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, [40, 8, 64, 33], [8, 8, 8, 11], ["zstd", "zstd", "zstd", "zstd"])
    data = zarrfeed.open(stores, variables=["x"])
    with ZarrIterableDataset(data, batch_size=4, shuffle=True, seed=1) as dataset:
        for _ in dataset:
            pass
        lanes = dataset.session.schedule.order.lanes
        read, chunks = dataset.stats().chunks_read, 5 + 1 + 8 + 3
        assert chunks <= read <= chunks + lanes - 1, "but for blocks that the end of a lane cuts"
    windows = data.window((-1, 0, 1), pad="edge")
    with ZarrIterableDataset(windows, batch_size=4) as dataset:
        for _ in dataset:
            pass
        assert dataset.stats().chunks_read == chunks


def test_text_targets_and_arrays_in_memory_are_concatenated(tmp_path: Path) -> None:
    lengths = [6, 1, 9]
    stores, labels, first = [], [], 0
    for number, rows in enumerate(lengths):
        group = zarr.create_group(tmp_path / f"{number}.zarr")
        put(group, "x", numbers(first, rows), 4)
        text = group.create_array("caption", shape=(rows,), dtype=str, chunks=(2 + number,))
        text[:] = np.array([f"sample {i}" for i in range(first, first + rows)], dtype=object)
        stores.append(tmp_path / f"{number}.zarr")
        labels.append(np.arange(first, first + rows))
        first += rows
    data = zarrfeed.open(stores, labels)
    read = []
    for samples, targets in ZarrIterableDataset(data, batch_size=5, shuffle=True):
        assert samples["caption"] == [f"sample {i}" for i in targets.tolist()]
        assert (samples["x"][:, 0] == targets * 100).all()
        read += targets.tolist()
    assert sorted(read) == list(range(16))
    assert ZarrDataset(data)[6][0]["caption"] == "sample 6"


def test_a_pattern_a_shorthand_and_concat_describe_the_same(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, [5, 9], [4, 4], ["zstd", "zstd"])
    expected = [index.tolist() for _, index in ZarrIterableDataset(stores, batch_size=4, return_index=True)]
    pattern = zarrfeed.open(f"{tmp_path}/*.zarr")
    assert pattern.stores == tuple(map(str, stores))
    joined = zarrfeed.concat(zarrfeed.open(store) for store in stores)
    nested = zarrfeed.concat([zarrfeed.open([store]) for store in stores])
    for data in (pattern, joined, nested):
        read = [index.tolist() for _, index in ZarrIterableDataset(data, batch_size=4, return_index=True)]
        assert read == expected
    assert repr(joined) == f"zarrfeed.concat([zarrfeed.open('{stores[0]}'), zarrfeed.open('{stores[1]}')])"
    assert joined == zarrfeed.concat(zarrfeed.open(store) for store in stores)


def test_what_was_done_before_concat_stays(tmp_path: Path) -> None:
    """Each store has a normalisation, and a selection, of its own."""
    stores = make_stores(tmp_path, [8, 8], [4, 4], ["zstd", "zstd"])
    first = zarrfeed.open(stores[0], variables=["x"]).select([1, 3, 5]).normalize((100.0, 2.0))
    second = zarrfeed.open(stores[1], variables=["x"]).normalize((7.0, 4.0))
    data = zarrfeed.concat([first, second])
    assert len(data) == 11
    samples = ZarrDataset(data)[list(range(11))]["x"]
    expected = [(numbers(i, 1) - 100.0) / 2.0 for i in (1, 3, 5)] + [(numbers(i, 1) - 7.0) / 4.0 for i in range(8, 16)]
    assert np.allclose(samples.numpy(), np.concatenate(expected))
    with pytest.raises(zarrfeed.ConfigError, match="normalised before"):
        data.normalize((0, 1))
    assert data.cast("bfloat16").fields[0].dtype == "bfloat16"


def test_stores_that_do_not_fit_are_errors_that_name_the_store(tmp_path: Path) -> None:
    one = zarr.create_array(tmp_path / "one.zarr", data=np.zeros((4, 3), "f4"))
    zarr.create_array(tmp_path / "wide.zarr", data=np.zeros((4, 5), "f4"))
    zarr.create_array(tmp_path / "double.zarr", data=np.zeros((4, 3), "f8"))
    group = zarr.create_group(tmp_path / "group.zarr")
    group.create_array("x", data=np.zeros((4, 3), "f4"))
    for other, what in (
        ("wide.zarr", r"samples is float32 of shape \(5,\), in .*one.zarr it is float32 of shape \(3,\)"),
        ("double.zarr", r"samples is float64 of shape \(3,\).*must have the same shape and dtype; dtype="),
        ("group.zarr", r"group.zarr: has samples\['x'\], .*one.zarr has samples; they must have the same"),
        ("none.zarr", r"none.zarr: no Zarr array is there"),
    ):
        with pytest.raises(zarrfeed.ZarrfeedError, match=what):
            zarrfeed.open([one, tmp_path / other])
    mixed = zarrfeed.concat([one, tmp_path / "double.zarr"], dtype="float32")
    assert mixed.fields[0].dtype == "float32"
    assert ZarrDataset(mixed)[5].dtype == torch.float32
    with pytest.raises(zarrfeed.ConfigError, match="must name at least one"):
        zarrfeed.open([])
    with pytest.raises(zarrfeed.ConfigError, match="got no description"):
        zarrfeed.concat([])
    with pytest.raises(zarrfeed.StoreReadError, match="no store matches"):
        zarrfeed.open(f"{tmp_path}/nothing-*.zarr")
    with pytest.raises(zarrfeed.ConfigError, match="targets: got 2 for 1 stores"):
        zarrfeed.open([one], [np.zeros(2), np.zeros(2)])
    with pytest.raises(zarrfeed.ConfigError, match="many stores"):
        zarrfeed.open([one], refresh="epoch")
    with pytest.raises(IndexError, match=r"index 8, must be in \[0, 7\]"):
        mixed.locate(8)
    with pytest.raises(zarrfeed.ConfigError, match="must be an integer"):
        mixed.locate(0.5)


@pytest.mark.parametrize("codec", ["zstd", "slow", "sharded"])
@pytest.mark.filterwarnings(NUMCODECS_WARNING)
def test_a_bad_chunk_is_an_error_of_its_store_and_can_be_skipped(tmp_path: Path, codec: str) -> None:
    stores = make_stores(tmp_path, [16, 16, 16], [4] * 3, [codec] * 3)
    data = zarrfeed.open(stores, variables=["x"])
    bad = next(path for path in sorted((stores[1] / "x" / "c").rglob("*")) if path.is_file())
    bad.write_bytes(bad.read_bytes()[:-3])
    with pytest.raises(zarrfeed.CorruptChunkError, match=r"s001.zarr/x"):
        list(ZarrIterableDataset(data, batch_size=4, shuffle=True))
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "return_index": True, "faults": {"on_error": "skip"}}
    with pytest.warns(zarrfeed.ChunkSkippedWarning):
        read = [(samples["x"], index) for samples, index in ZarrIterableDataset(data, **options)]
    samples, index = torch.cat([x for x, _ in read]), torch.cat([index for _, index in read])
    assert len(index) == 48
    assert torch.equal(samples[:, 0], (index * 100).to(torch.int32)), "a replaced sample has its own index"
    lost = 16 if codec == "sharded" else 4
    assert set(range(48)) - set(index.tolist()) <= set(range(16, 16 + lost))


class SilentStore(MemoryStore):
    """A store that never answers when it is asked for a chunk."""

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        if "c/" in key:
            await asyncio.Event().wait()
        return await super().get(key, *args, **options)


@pytest.mark.parametrize(("codec", "what"), [("zstd", "c/0/0"), ("sharded", r"c/0/0: shard index")])
@again_after_a_stall
def test_a_store_that_does_not_answer_is_named(codec: str, what: str) -> None:
    stores: list[MemoryStore] = []
    for number in range(3):
        objects: Any = {}
        put(zarr.create_group(MemoryStore(objects)), "x", numbers(4 * number, 4), 2, codec)
        stores.append(SilentStore(objects) if number == 1 else MemoryStore(objects))
    data = zarrfeed.open([zarr.open_group(store, mode="r") for store in stores])
    name = data.stores[1].removeprefix("memory://")
    with (
        pytest.raises(StoreReadError, match=rf"{name}/x chunk {what}.*: the store did not answer within 0\.3 s"),
        ZarrIterableDataset(data, batch_size=4, faults={"timeout": 0.3}) as dataset,
    ):
        list(dataset)


def test_a_store_that_is_deleted_is_an_error_and_no_fill_values(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, [8, 8], [4, 4], ["zstd", "zstd"])
    data = zarrfeed.open(stores, variables=["x"])
    for path in sorted((stores[1] / "x").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(zarrfeed.StoreReadError, match=r"s001.zarr/x/zarr.json is gone"):
        list(ZarrIterableDataset(data, batch_size=4))


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part:zarr.errors.ZarrUserWarning")
def test_stores_like_the_first_are_described_as_zarr_python_describes_them(tmp_path: Path) -> None:
    """What the documents alone tell is what opening every store tells."""
    for zarr_format in (2, 3):
        stores = []
        for number, rows in enumerate((5, 9, 2, 7)):
            path = tmp_path / f"v{zarr_format}-{number}.zarr"
            group = zarr.create_group(path, zarr_format=zarr_format, attributes={"title": f"store {number}"})
            packed: dict[str, Any] = {"scale_factor": 0.5 if number < 3 else 2.0, "add_offset": 1.0, "units": "K"}
            group.create_array(
                "t", data=numbers(number * 10, rows).astype("i2"), chunks=(4, 3), attributes=packed, fill_value=0
            )
            if number == 2:
                zarr.consolidate_metadata(path, zarr_format=zarr_format)
            stores.append(path)
        quick = zarrfeed.open(stores)
        slow = zarrfeed.concat([zarrfeed.open(store) for store in stores])
        for name in ("begin", "end", "prefixes", "rows_per_chunk"):
            ours, theirs = ([getattr(layout.parts, name) for layout in layouts_of(data)] for data in (quick, slow))
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
        read, expected = (ZarrDataset(data)[list(range(23))]["t"] for data in (quick, slow))
        assert torch.equal(read, expected)
        assert read.dtype == torch.float32
        assert read[22, 0] == (36 * 100) * 2.0 + 1.0, "the last store has a scale of its own"


def layouts_of(data: zarrfeed.Data) -> tuple[Layout, ...]:
    field = data.resolved.fields[0]
    assert isinstance(field, StoredField)
    return field.layouts


_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import sys, zarrfeed
data = zarrfeed.open(sys.argv[1] + "/*.zarr")
read = sorted(i for _, index in zarrfeed.ZarrIterableDataset(data, batch_size=16, shuffle=True, return_index=True)
              for i in index.tolist())
assert read == list(range(len(data))), read
print(len(data.stores), "stores")
"""


def write_small_stores(folder: Path, count: int) -> None:
    """Write stores of one chunk of 4 samples each, by copying the files of the first one."""
    array = zarr.create_array(folder / "s00000.zarr", shape=(4, 2), chunks=(4, 2), dtype="i4")
    array[:] = numbers(0, 4, 2)
    document = (folder / "s00000.zarr" / "zarr.json").read_bytes()
    chunk = (folder / "s00000.zarr" / "c" / "0" / "0").read_bytes()
    for number in range(1, count):
        chunks = folder / f"s{number:05}.zarr" / "c" / "0"
        chunks.mkdir(parents=True)
        (chunks / "0").write_bytes(chunk)
        (chunks.parent.parent / "zarr.json").write_bytes(document)


def test_more_stores_than_descriptors_are_read(tmp_path: Path) -> None:
    write_small_stores(tmp_path, 200)
    done = run_script(_DESCRIPTORS, str(tmp_path))
    assert done.stdout.strip() == "200 stores", done.stderr


def test_the_plan_of_many_stores_is_small(tmp_path: Path) -> None:
    """At most 10 KiB a store; 10 000 stores with --large by the benchmark `stores`."""
    count = 500
    write_small_stores(tmp_path, count)
    zarrfeed.open(f"{tmp_path}/*.zarr")
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    data = zarrfeed.open(f"{tmp_path}/*.zarr")
    dataset = ZarrIterableDataset(data, batch_size=16, shuffle=True)
    next(iter(dataset))
    gc.collect()  # cycles that the opening left, or a test before: when they would go otherwise, depends on all tests
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(data) == 4 * count
    assert used < count * 5_000


def test_windows_reach_from_one_store_into_the_next_where_these_are_contiguous(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, [9, 3, 14], [4, 5, 4], ["zstd", "none", "sharded"])
    data = zarrfeed.concat(stores, contiguous=True).window({"x": (-4, 0, 5)})
    seen = []
    for samples, index in ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True):
        for slot, row in enumerate(index.tolist()):
            expected = np.concatenate([numbers(row + offset, 1) for offset in (-4, 0, 5)])
            assert np.array_equal(samples["x"][slot].numpy(), expected)
        seen += index.tolist()
    assert sorted(seen) == list(range(4, 21))


def test_labels_of_many_stores_are_those_of_each(tmp_path: Path) -> None:
    """Stores that were described without being opened are asked for their own times."""
    xarray = pytest.importorskip("xarray")
    whole = []
    for year in (2001, 2002, 2003):
        times = np.arange(f"{year}-01-01", f"{year + 1}-01-01", dtype="M8[D]").astype("M8[ns]")
        values = (np.arange(len(times)) + 1000 * (year - 2001)).astype("f4")
        dataset = xarray.Dataset({"t": (("time",), values)}, {"time": times})
        dataset.to_zarr(tmp_path / f"{year}.zarr", consolidated=False)
        whole.append(dataset)
    expected = xarray.concat(whole, "time").sel(time=slice("2001-12-30", "2002-01-02"))["t"].values
    data = zarrfeed.open(f"{tmp_path}/*.zarr").sel(time=slice("2001-12-30", "2002-01-02"))
    assert ZarrDataset(data)[list(range(4))]["t"].tolist() == expected.tolist()


def test_statistics_static_fields_and_times_go_with_many_stores(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    parts = []
    for number in range(3):
        times = (np.datetime64(f"2001-0{number + 1}-01") + np.arange(4 + number)).astype("M8[ns]")
        values = (np.arange(len(times) * 3) + 100 * number).astype("f4").reshape(-1, 3)
        part = xarray.Dataset({"t": (("time", "x"), values)}, {"time": times})
        part["lsm"] = (("x",), np.arange(3, dtype="f4"))
        part.to_zarr(tmp_path / f"{number}.zarr", consolidated=False)
        parts.append(part)
    whole = xarray.concat([part[["t"]] for part in parts], "time")
    data = zarrfeed.open(f"{tmp_path}/*.zarr", sample_dim="time")
    data = data.normalize("auto").time_features("day_of_year").static("lsm")
    batch = next(iter(ZarrIterableDataset(data, batch_size=len(data))))
    expected = (whole["t"].values - whole["t"].values.mean()) / whole["t"].values.std()
    assert np.allclose(batch["t"].numpy(), expected, atol=1e-6)
    assert batch["lsm"].shape == (15, 3)
    assert batch["time_features"].shape == (15, 2)


def test_bench_refuses_what_it_does_not_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_stores(tmp_path, [4, 4], [2, 2], ["zstd", "zstd"])
    assert cli.main(["bench", f"{tmp_path}/*.zarr", "--seconds", "0.1"]) == cli.EXIT_ERROR
    assert "bench measures one store, and these are 2" in capsys.readouterr().err
    assert cli.main(["info", f"{tmp_path}/*.zarr", "--batch-size", "2"]) == 0
    page = capsys.readouterr().out
    assert "stores        in 2 stores of 4 samples\n" in page
    assert cli.main(["info", str(tmp_path / "s000.zarr"), str(tmp_path / "s001.zarr"), "--batch-size", "2"]) == 0
    assert capsys.readouterr().out == page
