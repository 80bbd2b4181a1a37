"""How many samples of a store are complete, what a version is of it, and that nothing else may change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import zarrfeed
from zarrfeed import ConfigError, CorruptChunkError, StoreReadError, ZarrDataset, ZarrIterableDataset
from zarrfeed.base.errors import ZarrfeedError
from zarrfeed.metadata.stores.growth import Growth
from zarrfeed.spec.description.version import Version


def create(store: Any, samples: int, **options: Any) -> zarr.Array[Any]:
    settings = {"shape": (samples, 4), "chunks": (8, 2), "dtype": "f4"} | options
    array = zarr.create_array(store, **settings)
    array[:] = np.broadcast_to(np.arange(1, samples + 1).reshape(-1, *[1] * (array.ndim - 1)), array.shape)
    return array


def growth(*sources: Any, **options: Any) -> Growth:
    opened = zarrfeed.open(*sources, refresh="epoch", **options).growth
    assert opened is not None
    return opened


def look(source: Any, known: int | None = None, **options: Any) -> int:
    return growth(source, **options).look(None if known is None else Version(known)).num_samples


@pytest.mark.parametrize("memory", [False, True])
def test_samples_count_up_to_the_first_chunk_that_is_missing(tmp_path: Path, memory: bool) -> None:
    store: Any = MemoryStore() if memory else str(tmp_path / "a")
    array = create(store, 32)
    source = array if memory else store
    opened = growth(source)
    assert opened.look().num_samples == 32
    array.resize((64, 4))  # as a writer does that sets the shape first
    assert opened.look().num_samples == 32
    array[40:64] = 1
    assert opened.look().num_samples == 32, "the chunk of samples 32 to 40 is not there"
    array[32:40, :2] = 1
    assert opened.look().num_samples == 32, "half of the chunk's cells are not there"
    array[32:40] = 1
    assert opened.look().num_samples == 64
    array.resize((67, 4))
    array[64:] = 1
    assert opened.look().num_samples == 64, "the last chunk is not full"
    assert look(source, complete="shape") == 67


def test_only_whole_shards_count(tmp_path: Path) -> None:
    array = create(tmp_path / "a", 32, shards=(16, 4))
    array.resize((64, 4))
    array[32:40] = 1
    assert look(tmp_path / "a") == 48, "a shard that exists is taken for whole"
    array.resize((50, 4))
    assert look(tmp_path / "a", 32) == 48


def test_the_shortest_field_counts(tmp_path: Path) -> None:
    for name, samples in (("x", 32), ("y", 48)):
        create(tmp_path / name, samples)
    sources: dict[str, Any] = {name: tmp_path / name for name in ("x", "y")}
    assert len(zarrfeed.open(sources, refresh="epoch")) == 32
    assert len(zarrfeed.open(tmp_path / "y", tmp_path / "x", refresh="epoch")) == 32
    with pytest.raises(ConfigError, match="must be equal"):
        zarrfeed.open(sources)


def test_consolidated_metadata_are_not_believed(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g", zarr_format=2)
    array = group.create_array("x", shape=(16,), chunks=(8,), dtype="i4")
    array[:] = np.arange(16)
    zarr.consolidate_metadata(tmp_path / "g")
    opened = growth(tmp_path / "g")
    array.append(np.arange(16, 32, dtype="i4"))
    assert opened.look().num_samples == 32


def test_a_store_that_shrank_or_changed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    create(path, 32)
    opened = growth(path)
    zarr.open_array(path, mode="r+").resize((24, 4))
    with pytest.raises(StoreReadError, match="had 32 samples along axis 0"):
        opened.look(Version(32))
    for change, message in (
        ({"dtype": "f8"}, "dtype is float64, was float32"),
        ({"chunks": (4, 2)}, r"chunk shape is \(4, 2\), was \(8, 2\)"),
        ({"shape": (32, 5)}, r"shape of a sample is \(5,\), was \(4,\)"),
        ({"compressors": None}, "codecs is"),
        ({"fill_value": 7}, "fill value is"),
        ({"chunk_key_encoding": {"name": "default", "separator": "."}}, "separator of chunk keys is"),
        ({"shape": (32,), "chunks": (8,)}, "has shape"),
    ):
        shutil.rmtree(path)
        array: Any = zarr.create_array(path, **({"shape": (32, 4), "chunks": (8, 2), "dtype": "f4"} | change))
        array[:] = 1
        with pytest.raises(StoreReadError, match=message):
            opened.look()
    shutil.rmtree(path)
    with pytest.raises(StoreReadError, match="no longer exists"):
        opened.look()


def test_a_store_without_a_complete_sample_is_refused(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", shape=(16,), chunks=(8,), dtype="i4")
    with pytest.raises(ConfigError, match="no sample is complete"):
        zarrfeed.open(tmp_path / "a", refresh="epoch")
    assert len(zarrfeed.open(tmp_path / "a", refresh="epoch", complete="shape")) == 16


def test_a_chunk_that_is_missing_afterwards_is_an_error(tmp_path: Path) -> None:
    create(tmp_path / "a", 32)
    data = zarrfeed.open(tmp_path / "a", refresh="epoch")
    (tmp_path / "a" / "c" / "2" / "1").unlink()
    with pytest.raises((StoreReadError, CorruptChunkError), match="c/2/1"):
        list(ZarrIterableDataset(data, batch_size=4))
    with pytest.raises((StoreReadError, CorruptChunkError), match="c/2/1"):
        ZarrDataset(data)[17]


def test_what_was_described_holds_for_every_version(tmp_path: Path) -> None:
    array = create(tmp_path / "a", 32)
    data = zarrfeed.open(tmp_path / "a", refresh="epoch").select(slice(-24, None)).window((-1, 0)).cast("float64")
    data = data.normalize((1, 2))
    assert len(data) == 23
    assert repr(data).endswith(
        "refresh='epoch').select(slice(-24, None)).window((-1, 0)).cast('float64').normalize((1, 2))"
    )
    assert data.growth is not None
    array.append(np.full((32, 4), 5, "f4"))
    later = data.growth.at(data.growth.look())
    assert (later.choice.length, later.choice.ascending()) == (23, range(41, 64))
    assert [(info.shape, info.dtype) for info in later.infos()] == [((2, 4), "float64")]


def test_a_version_has_the_gaps_of_its_own_samples(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a", mode="w")
    values = np.concatenate([np.arange(1.0, 33.0), np.arange(40.0, 56.0)])
    for name in ("time", "x"):
        array = group.create_array(
            name, shape=(32,), chunks=(8,), dtype="f8", fill_value=np.nan, dimension_names=["time"]
        )
        array[:] = values[:32]
    data = zarrfeed.open(tmp_path / "a", refresh="epoch", variables=["x"]).window({"x": (0, 1)})
    dataset = ZarrIterableDataset(data, batch_size=16, return_index=True, rank=0, world_size=1)

    def read(one: ZarrIterableDataset) -> list[int]:
        return [int(i) for _, index in one for i in index]

    assert read(dataset) == list(range(31))
    stored = {name: zarr.open_array(tmp_path / "a" / name, mode="r+") for name in ("time", "x")}
    for one in stored.values():
        one.resize((48,))
        one[32:] = values[32:]
    again = [i for i in range(47) if i != 31]
    assert read(dataset) == again
    state = dataset.state_dict()
    resumed = ZarrIterableDataset(
        zarrfeed.open(tmp_path / "a", refresh="epoch", variables=["x"]).window({"x": (0, 1)}),
        batch_size=16,
        return_index=True,
        rank=0,
        world_size=1,
    )
    resumed.load_state_dict(state)
    assert read(resumed) == again
    stored["x"].resize((56,))
    stored["x"][48:] = 1
    with pytest.raises(ConfigError, match=r"time: has the shape \(48,\), must have one value a sample.*gaps='ignore'"):
        read(dataset)
    stored["time"].resize((56,))
    with pytest.raises(ZarrfeedError, match=r"time: (has no value of sample 48|chunk 6 is missing)"):
        read(dataset)


def test_what_would_deal_samples_anew_is_refused(tmp_path: Path) -> None:
    create(tmp_path / "a", 32)
    data = zarrfeed.open(tmp_path / "a", refresh="epoch")
    for call, message in (
        (lambda: data.split((0.5, 0.5)), r"split\(\) cannot follow"),
        (lambda: data.blocks([0]), r"blocks\(\) cannot follow"),
        (lambda: data.select([1, 2]), "must be a slice"),
        (lambda: data.window((-1, 0), segment_ends=[16, 32]), "segment_ends"),
    ):
        with pytest.raises(ConfigError, match=message):
            call()


@pytest.mark.parametrize(("window", "newest"), [(10, 10), (24, 24), (1000, 48), ("160B", 10), ("175 B", 10)])
def test_only_the_newest_samples_are_read_and_keep_their_index(tmp_path: Path, window: int | str, newest: int) -> None:
    array = create(tmp_path / "a", 32)
    data = zarrfeed.open(tmp_path / "a", refresh="epoch", window=window)
    assert len(data) == min(32, newest)
    dataset = ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True)
    array.append(np.broadcast_to(np.arange(33, 49, dtype="f4")[:, None], (16, 4)))
    for _ in range(2):
        delivered = [(int(x), int(i)) for batch, index in dataset for x, i in zip(batch[:, 0], index, strict=True)]
        assert sorted(delivered) == [(i + 1, i) for i in range(48 - newest, 48)]
        assert (len(dataset), dataset.explain().num_samples) == (-(-newest // 5), 48)


def test_methods_count_from_the_oldest_sample_of_the_window(tmp_path: Path) -> None:
    create(tmp_path / "a", 32)
    data = zarrfeed.open(tmp_path / "a", refresh="epoch", window=16).select(slice(2, None)).window((-1, 0))
    assert data.growth is not None
    assert data.growth.at(Version(40, 24)).choice.ascending() == range(27, 40), "rows outside of it are not read"


def test_a_state_has_the_window_of_its_epoch(tmp_path: Path) -> None:
    array = create(tmp_path / "a", 32)

    def make() -> ZarrIterableDataset:
        return ZarrIterableDataset(
            zarrfeed.open(tmp_path / "a", refresh="epoch", window=12), batch_size=4, shuffle=True
        )

    running = iter(dataset := make())
    before = [int(x) for x in next(running)[:, 0]]
    state = dataset.state_dict()
    assert state["store"] == {"samples": 32, "first": 20}
    array.append(np.ones((16, 4), "f4"))
    again = make()
    again.load_state_dict(state)
    rest = [int(x) for batch in again for x in batch[:, 0]]
    assert sorted(before + rest) == list(range(21, 33))


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (0, "window = 0, must be"),
        (-1, "window = -1"),
        (1.5, "window = 1.5"),
        ("much", "window = 'much'"),
        ("8B", "at least 16"),
    ],
)
def test_windows_are_checked(tmp_path: Path, window: Any, message: str) -> None:
    create(tmp_path / "a", 32)
    with pytest.raises(ConfigError, match=message):
        zarrfeed.open(tmp_path / "a", refresh="epoch", window=window)
    with pytest.raises(ConfigError, match="give refresh='epoch'"):
        zarrfeed.open(tmp_path / "a", window=8)
