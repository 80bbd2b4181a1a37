"""Joins of random stores: batches are what `xarray.merge` makes of the same stores, windows included.

A value says which store and which time it is of, so that a row of a wrong time is found.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from torch.utils.data import DataLoader

import zarrfeed
from tests.support.oracle import AnyArray
from zarrfeed import ConfigError, CorruptChunkError, Data, ZarrDataset, ZarrIterableDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

START = np.datetime64("2000-01-01", "ns")
UNITS = {"hours": 1, "minutes": 60, "seconds": 3600, "days": 1 / 24}
NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Store:
    """A store of one variable along a time axis of its own.

    Attributes
    ----------
    hours
        The time of each sample, in hours since START.
    values
        Shape (samples, 3): number of the store x 10000 + hour, and the column in the fraction.
    """

    path: Path
    hours: AnyArray
    values: AnyArray

    def data(self) -> Data:
        return zarrfeed.open(self.path / "x")

    def opened(self, name: str) -> xr.DataArray:
        """Return what xarray opens, with exact times: it decodes fractions of days with an error of nanoseconds."""
        array: xr.DataArray = xr.open_zarr(self.path, consolidated=False, chunks=None)["x"].rename(name)
        return array.assign_coords(time=START + self.hours * np.timedelta64(1, "h"))


def make_stores(folder: Path, rng: np.random.Generator, *, count: int = 3, regular: bool = False) -> dict[str, Store]:
    """Write stores that overlap, with gaps of their own, chunks of their own, and times in units of their own."""
    stores = {}
    for number, name in enumerate(NAMES[:count]):
        first, end = int(rng.integers(0, 20)), int(rng.integers(60, 90))
        hours = np.arange(first, end, rng.integers(1, 3) if regular else 1)
        if not regular:
            hours = hours[rng.random(len(hours)) < 0.85]
        values = (number + 1) * 10_000 + hours[:, None] + np.array([0.0, 0.25, 0.5])
        group = zarr.open_group(folder / f"{name}.zarr", mode="w", zarr_format=int(rng.integers(2, 4)))  # type: ignore[arg-type]
        sharded = group.metadata.zarr_format == 3 and rng.random() < 0.5
        rows = int(rng.integers(1, 12))
        options: dict[str, Any] = {"shards": (rows * 3, 3)} if sharded else {}
        dtype = str(rng.choice(["f4", "f8"]))
        x = _array(group, "x", values.astype(dtype), (rows, int(rng.integers(1, 4)) if not sharded else 3), **options)
        x.attrs["unused"] = 1
        unit = str(rng.choice(list(UNITS)))
        time = _array(group, "time", hours * UNITS[unit], (7,))
        time.attrs["units"] = f"{unit} since 2000-01-01"
        stores[name] = Store(folder / f"{name}.zarr", hours, values.astype(dtype))
    return stores


def _array(group: zarr.Group, name: str, data: AnyArray, chunks: tuple[int, ...], **options: Any) -> zarr.Array[Any]:
    dims = ("time", "column")[: data.ndim]
    if group.metadata.zarr_format == 2:
        array = group.create_array(name, data=data, chunks=chunks)
        array.attrs["_ARRAY_DIMENSIONS"] = list(dims)
        return array
    return group.create_array(name, data=data, chunks=chunks, dimension_names=dims, **options)


def merged(stores: dict[str, Store], how: Any) -> xr.Dataset:
    """Return the oracle, in memory."""
    return xr.merge([store.opened(name) for name, store in stores.items()], join=how, compat="no_conflicts").load()


def ordered(data: Data, **options: Any) -> tuple[dict[str, AnyArray], AnyArray]:
    """Return all samples in order, and their index on the joined axis."""
    with ZarrIterableDataset(data, batch_size=7, return_index=True, **options) as dataset:
        batches = list(dataset)
    index = torch.cat([index for _, index in batches]).numpy()
    return {name: torch.cat([batch[name] for batch, _ in batches]).numpy() for name in batches[0][0]}, index


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("regular", [False, True])
def test_batches_are_what_xarray_merges(seed: int, regular: bool, tmp_path: Path) -> None:
    stores = make_stores(tmp_path, np.random.default_rng([seed, regular]), regular=regular)
    sources: dict[str, Any] = {name: store.data() for name, store in stores.items()}
    inner, outer = merged(stores, "inner"), merged(stores, "outer")
    complete = ~np.logical_or.reduce([np.isnan(outer[name].values).any(axis=1) for name in stores])
    expected = {
        ("inner", "drop"): inner,
        ("outer", "drop"): outer.isel(time=complete),
        ("outer", "nan"): outer,
        ("outer", "nearest"): xr.Dataset(
            {name: s.opened(name).reindex(time=outer["time"], method="nearest") for name, s in stores.items()}
        ),
    }
    for (how, missing), oracle in expected.items():
        if not oracle.sizes["time"]:
            with pytest.raises(ConfigError, match="join: no time is in all of the arrays"):
                zarrfeed.join(sources, how=how, missing=missing)  # type: ignore[arg-type]
            continue
        data = zarrfeed.join(sources, how=how, missing=missing)  # type: ignore[arg-type]
        assert len(data) == oracle.sizes["time"]
        got, index = ordered(data)
        times = data.resolved.coordinate().values[index]
        assert np.array_equal(times, oracle["time"].values), (how, missing)
        access = ZarrDataset(data)[np.arange(len(data))]
        for name, store in stores.items():
            wanted = oracle[name].values.astype(store.values.dtype)
            assert np.array_equal(got[name], wanted, equal_nan=True), (how, missing, name)
            assert np.array_equal(access[name].numpy(), wanted, equal_nan=True), (how, missing, name)
            assert got[name].dtype == store.values.dtype


@pytest.mark.parametrize("seed", range(4))
def test_windows_never_touch_a_gap(seed: int, tmp_path: Path) -> None:
    """Of an outer join: a sample is there if each field has each of its own rows, and the sample itself is complete."""
    rng = np.random.default_rng(seed)
    stores = make_stores(tmp_path, rng, count=2)
    offsets: dict[str, Any] = {"a": (-2, 0, 1), "b": 3}
    outer = merged(stores, "outer")
    rows = {name: outer[name].values for name in stores}
    n = outer.sizes["time"]
    choices: tuple[Any, ...] = ("drop", "nan")
    for missing in choices:
        data = zarrfeed.join({k: s.data() for k, s in stores.items()}, how="outer", missing=missing)
        windowed = data.window(offsets, gaps="ignore")  # rows that the join lacks are the subject
        lacks = {name: np.isnan(rows[name]).any(axis=1) for name in stores}
        wanted = [
            k
            for k in range(2, n - 3)
            if missing == "nan"
            or not any((lacks["a"][k], lacks["b"][k], lacks["a"][k - 2], lacks["a"][k + 1], lacks["b"][k + 3]))
        ]
        got, index = ordered(windowed)
        assert index.tolist() == wanted
        indices = np.array(wanted)
        assert np.array_equal(got["a"], rows["a"][indices[:, None] + np.array([-2, 0, 1])], equal_nan=True)
        assert np.array_equal(got["b"], rows["b"][indices + 3], equal_nan=True)
        if missing == "drop":
            said = str(ZarrIterableDataset(windowed).explain())
            assert "their windows read rows that an array of the join lacks" in said
            assert "'a' lacks their time" in said


@pytest.mark.parametrize(
    ("how", "missing"), [("inner", "drop"), ("outer", "drop"), ("outer", "nan"), ("outer", "nearest")]
)
def test_shuffled_ranks_deliver_each_joined_sample_once(how: Any, missing: Any, tmp_path: Path) -> None:
    stores = make_stores(tmp_path, np.random.default_rng(5))
    data = zarrfeed.join({name: store.data() for name, store in stores.items()}, how=how, missing=missing)
    windowed = data.window({"a": (-1, 0), "b": 0, "c": 1}, gaps="ignore")
    whole, whole_index = ordered(windowed)
    index_of = {int(sample): i for i, sample in enumerate(whole_index)}
    for world_size in (1, 3):
        seen: list[int] = []
        for rank in range(world_size):
            got, index = ordered(windowed, shuffle=True, seed=9, rank=rank, world_size=world_size, even="off")
            seen += index.tolist()
            at = np.array([index_of[int(sample)] for sample in index])
            for name in stores:
                assert np.array_equal(got[name], whole[name][at], equal_nan=True)
        assert sorted(seen) == whole_index.tolist()


def test_workers_deliver_the_same_batches_and_a_resumed_epoch_goes_on(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, np.random.default_rng(6))
    data = zarrfeed.join({name: store.data() for name, store in stores.items()}, how="outer", missing="nan").window(
        (0, 1), gaps="ignore"
    )

    def dataset() -> ZarrIterableDataset:
        return ZarrIterableDataset(data, batch_size=5, shuffle=True, seed=3, rank=0, world_size=1, return_index=True)

    def content(batches: Any) -> list[Any]:
        return [(index.tolist(), np.nan_to_num(batch["b"].numpy(), nan=-1).tolist()) for batch, index in batches]

    with dataset() as one, dataset() as resumed, dataset() as worked:
        batches = content(one)
        with dataset() as stopped:
            list(itertools.islice(stopped, 4))
            state = stopped.state_dict()
        resumed.load_state_dict(state)
        assert content(resumed) == batches[4:]
        loader = DataLoader(worked, batch_size=None, num_workers=2)
        rows = sorted(itertools.chain.from_iterable(index for index, _ in content(loader)))
        assert rows == sorted(itertools.chain.from_iterable(index for index, _ in batches))


def test_each_chunk_is_decoded_once_where_the_join_is_regular(tmp_path: Path) -> None:
    """Two stores on one axis, one of which begins later: neighbours in one are neighbours in the other."""
    for name, first in (("a", 0), ("b", 40)):
        group = zarr.open_group(tmp_path / f"{name}.zarr", mode="w")
        group.create_array("x", data=np.arange(first, 400.0)[:, None], chunks=(20, 1), dimension_names=("time", "c"))
        group.create_array("time", data=np.arange(first, 400), dimension_names=("time",))
    data = zarrfeed.join({name: tmp_path / f"{name}.zarr" for name in "ab"}, "time")
    assert [field.row_map is None for field in data.resolved.fields] == [False, True]
    with ZarrIterableDataset(data, batch_size=16) as dataset:
        for batch in dataset:
            assert torch.equal(batch["a/x"], batch["b/x"])
        assert dataset.stats().chunks_read == 18 + 18


@pytest.mark.filterwarnings("ignore:skipped:zarrfeed.ChunkSkippedWarning")
def test_a_bad_chunk_of_one_array_replaces_whole_samples(tmp_path: Path) -> None:
    for name, first, rows in (("a", 0, 20), ("b", 40, 30)):
        group = zarr.open_group(tmp_path / f"{name}.zarr", mode="w")
        group.create_array("x", data=np.arange(first, 400.0)[:, None], chunks=(rows, 1), dimension_names=("time", "c"))
        group.create_array("time", data=np.arange(first, 400), dimension_names=("time",))
    (tmp_path / "b.zarr" / "x" / "c" / "3" / "0").write_bytes(b"broken")  # times 130 to 159
    data = zarrfeed.join({name: tmp_path / f"{name}.zarr" / "x" for name in "ab"})
    with pytest.raises(CorruptChunkError, match=r"b.zarr/x chunk c/3/0"):
        list(ZarrIterableDataset(data, batch_size=16))
    for described in (data, data.window((-1, 0))):
        faults: Any = {"on_error": "skip"}
        seen: set[float] = set()
        with ZarrIterableDataset(described, batch_size=16, shuffle=True, seed=1, faults=faults) as dataset:
            for batch in dataset:
                assert torch.equal(batch["a"], batch["b"])
                seen |= set(batch["a"].reshape(len(batch["a"]), -1)[:, -1].tolist())
        lost = 30 if described is data else 31
        assert len(seen) == len(described) - lost
        assert not seen & set(range(130, 130 + lost))


def test_a_join_of_a_join_and_of_selections(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, np.random.default_rng(8))
    a, b, c = (stores[name].data() for name in NAMES)
    once = zarrfeed.join({"a": a, "b": b, "c": c}, how="outer", missing="nan")
    twice = zarrfeed.join(
        {"ab": zarrfeed.join({"a": a, "b": b}, how="outer", missing="nan"), "c": c}, how="outer", missing="nan"
    )
    got, _ = ordered(once)
    other, _ = ordered(twice)
    for name, renamed in (("a", "ab/a"), ("b", "ab/b"), ("c", "c")):
        assert np.array_equal(got[name], other[renamed], equal_nan=True)
    some = zarrfeed.join({"a": a.select(slice(3, None, 2)), "b": b.select(np.arange(len(b)) % 3 != 1)})
    chosen = {"a": stores["a"].opened("a")[3::2], "b": stores["b"].opened("b")[np.arange(len(b)) % 3 != 1]}
    oracle = xr.merge(list(chosen.values()), join="inner", compat="no_conflicts")
    got, _ = ordered(some)
    for name in chosen:
        assert np.array_equal(got[name], oracle[name].values.astype(got[name].dtype))


def test_labels_conversions_and_targets_of_joins(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, np.random.default_rng(11), count=2)
    a, b = (stores[name] for name in "ab")
    both = zarrfeed.open(a.path / "x", a.path / "x").cast("float64")
    data = zarrfeed.join({"a": both, "b": b.data().normalize((20_000.0, 2.0))}, on="time")
    assert [(field.part, field.name, field.dtype) for field in data.fields][::2] == [
        ("samples", "a", "float64"),
        ("targets", "a", str(a.values.dtype)),
    ]
    oracle = merged(stores, "inner").sel(time=slice("2000-01-02", "2000-01-03T06"))
    samples, targets = ZarrDataset(data.sel(time=slice("2000-01-02", "2000-01-03T06")))[np.arange(oracle.sizes["time"])]
    assert np.array_equal(samples["a"].numpy(), oracle["a"].values)
    assert np.array_equal(targets["a"].numpy(), oracle["a"].values)
    assert np.allclose(samples["b"].numpy(), (oracle["b"].values - 20_000) / 2)
