"""HDF5 and NetCDF4 files in place: what h5py and xarray read of them, bit for bit, in every way of reading."""

from __future__ import annotations

import pickle
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr
from torch.utils.data import DataLoader

import zarrfeed
from tests.support.examples import tries
from tests.support.hdf5_files import bytes_of, write_random
from zarrfeed import ConfigError, CorruptChunkError, ZarrDataset, ZarrIterableDataset
from zarrfeed.storage.files import chunk_table
from zarrfeed.storage.files.hdf5 import open_hdf5
from zarrfeed.tools import cli


def delivered(dataset: Any) -> tuple[list[int], dict[str, list[bytes]]]:
    """Return the indices of the samples that are delivered, and the bytes of each sample of each array."""
    order: list[int] = []
    rows: dict[str, list[bytes]] = {}
    for batch, index in dataset:
        order += index.tolist()
        for name, values in batch.items():
            rows.setdefault(name, []).extend(row.numpy().tobytes() for row in values)
    return order, rows


def expected(written: dict[str, Any], order: list[int]) -> dict[str, list[bytes]]:
    return {name: [bytes_of(values[i]) for i in order] for name, values in written.items()}


def open_all(path: Path, **options: Any) -> Any:
    return zarrfeed.open(path, decode_cf=False, **options)


@pytest.mark.parametrize("seed", range(tries(12, 40)))
def test_samples_are_those_of_h5py(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.h5"
    monkeypatch.setattr(chunk_table, "_CHUNK_BYTES", 2 ** (4 + seed % 8))
    written = write_random(path, seed)
    for name, values in written.items():
        array = zarr.open_array(store=open_hdf5(path), path=name, mode="r")
        assert bytes_of(array[...]) == bytes_of(values), name
    for shuffle in (False, True):
        dataset = ZarrIterableDataset(open_all(path), batch_size=7, shuffle=shuffle, seed=seed, return_index=True)
        order, rows = delivered(dataset)
        assert sorted(order) == list(range(len(next(iter(written.values())))))
        assert order == sorted(order) or shuffle
        assert rows == expected(written, order)


@pytest.mark.usefixtures("warm_spawn")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_the_file(tmp_path: Path, method: str) -> None:
    path = tmp_path / "x.h5"
    written = write_random(path, 3)
    dataset = ZarrIterableDataset(open_all(path), batch_size=5, shuffle=True, seed=1, return_index=True)
    order, rows = delivered(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method))
    assert sorted(order) == list(range(len(next(iter(written.values())))))
    assert rows == expected(written, order)


def test_ranks_share_a_file_and_a_state_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    written = write_random(path, 3)
    length = len(next(iter(written.values())))
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5, "return_index": True}
    seen: list[int] = []
    for rank in range(2):
        dataset = ZarrIterableDataset(open_all(path), rank=rank, world_size=2, even="off", **options)
        order, rows = delivered(dataset)
        assert rows == expected(written, order)
        seen += order
    assert sorted(seen) == list(range(length))
    whole, _ = delivered(ZarrIterableDataset(open_all(path), **options))
    begun = ZarrIterableDataset(open_all(path), **options)
    batches = iter(begun)
    first = [next(batches)[1].tolist() for _ in range(3)]
    state = pickle.loads(pickle.dumps(begun.state_dict()))
    resumed = ZarrIterableDataset(open_all(path), **options)
    resumed.load_state_dict(state)
    order, rows = delivered(resumed)
    assert list(chain(*first, order)) == whole
    assert rows == expected(written, order)


def year_of(path: Path, year: int, days: int, **encoding: Any) -> xr.Dataset:
    """Write a file of a year, whose times count from its beginning, and return what xarray reads of it."""
    rng = np.random.default_rng(year)
    times = np.datetime64(f"{year}-01-01", "ns") + np.arange(days) * np.timedelta64(1, "D")
    values = rng.integers(0, 1000, (days, 3, 4, 5)).astype("f4")
    values[rng.random(values.shape) < 0.1] = np.nan
    dims = ("time", "level", "lat", "lon")
    dataset = xr.Dataset(
        {"t": (dims, values), "z": (dims, values + 1), "mask": (dims[2:], np.arange(20.0).reshape(4, 5))},
        coords={"time": times, "level": [850, 500, 250], "lat": np.arange(4.0), "lon": np.arange(5.0)},
    )
    packed = {"dtype": "i2", "scale_factor": 0.1, "add_offset": 3.0, "_FillValue": -9999}
    stored = {"zlib": True, "chunksizes": (7, 2, 4, 5), **encoding}
    units = {"units": f"hours since {year}-01-01", "dtype": "i4"}
    dataset.to_netcdf(path, engine="h5netcdf", encoding={"t": packed | stored, "z": stored, "time": units})
    return xr.open_dataset(path, engine="h5netcdf").load()


@pytest.mark.parametrize("encoding", [{}, {"shuffle": True}, {"fletcher32": True, "shuffle": True}])
@pytest.mark.parametrize("given", ["pattern", "list"])
def test_years_in_files_are_one_axis_as_in_xarray(tmp_path: Path, encoding: Any, given: str) -> None:
    read = [year_of(tmp_path / f"y{year}.nc", year, days, **encoding) for year, days in ((1990, 30), (1991, 17))]
    whole = xr.concat(read, "time", data_vars="minimal")
    source: Any = tmp_path / "y*.nc" if given == "pattern" else [tmp_path / f"y{year}.nc" for year in (1990, 1991)]
    data = zarrfeed.open(source, sample_dim="time")
    assert [field.name for field in data.fields] == ["t", "z"]
    for shuffle in (False, True):
        for batch, index in ZarrIterableDataset(data, batch_size=6, shuffle=shuffle, return_index=True):
            for name in ("t", "z"):
                assert np.array_equal(batch[name], whole[name].values[index], equal_nan=True)
    chosen = data.sel(time=slice("1990-01-20", "1991-01-05"), level=500)
    (batch,) = ZarrIterableDataset(chosen, batch_size=100)
    there = whole.sel(time=slice("1990-01-20", "1991-01-05"), level=500)
    assert np.array_equal(batch["z"], there["z"], equal_nan=True)
    windows = data.window({"samples": (0, 2)}, gaps="ignore")
    for batch, index in ZarrIterableDataset(windows, batch_size=5, return_index=True):
        found = np.stack([whole["t"].values[index], whole["t"].values[index + 2]], axis=1)
        assert np.array_equal(batch["t"], found, equal_nan=True)


def test_packed_and_plain_files_and_stores_are_one_axis(tmp_path: Path) -> None:
    year_of(tmp_path / "a.nc", 1990, 9)
    other = year_of(tmp_path / "b.nc", 1991, 8, chunksizes=(3, 3, 4, 5))
    other.to_zarr(tmp_path / "b.zarr", consolidated=False, encoding={"t": {"chunks": (4, 3, 4, 5)}})
    data = zarrfeed.open([tmp_path / name for name in ("a.nc", "b.nc", "b.zarr")], sample_dim="time", variables=["z"])
    read = [batch["z"].numpy() for batch in ZarrIterableDataset(data, batch_size=4)]
    assert np.array_equal(np.concatenate(read)[9:], np.concatenate([other["z"]] * 2), equal_nan=True)


def test_random_access_and_the_command_line_read_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "y.nc"
    whole = year_of(path, 1990, 20)
    dataset = ZarrDataset(zarrfeed.open(path, sample_dim="time"))
    for i in (19, 0, 7):
        assert np.array_equal(dataset[i]["z"], whole["z"].values[i], equal_nan=True)
    for command in (
        ["info", str(path), "--sample-dim", "time"],
        ["verify", str(path)],
        ["stats", str(path), "--sample-dim", "time"],
    ):
        assert cli.main(command) == 0, capsys.readouterr()
    assert "z" in capsys.readouterr().out
    assert "HDF5 in place" in str(ZarrIterableDataset(zarrfeed.open(path, sample_dim="time"), batch_size=4).explain())


def test_verify_finds_the_damaged_chunk(tmp_path: Path) -> None:
    path = tmp_path / "y.nc"
    year_of(path, 1990, 20)
    with h5py.File(path) as file:
        chunk = file["z"].id.get_chunk_info_by_coord((7, 0, 0, 0))
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + 8] = b"\xff" * 8
    path.write_bytes(content)
    report = zarrfeed.verify(path)
    assert [(one.array, one.key, one.cause) for one in report.findings] == [("z", "1.0.0.0", "corrupt")]
    with pytest.raises(CorruptChunkError, match=r"y\.nc/z chunk 1\.0\.0\.0"):
        list(ZarrIterableDataset(zarrfeed.open(path, sample_dim="time"), batch_size=4))


def test_files_are_read_as_they_are_now(tmp_path: Path) -> None:
    path = tmp_path / "y.nc"
    year_of(path, 1990, 20)
    with pytest.raises(ConfigError, match=r"refresh = 'epoch': .*y\.nc is read as it is now"):
        zarrfeed.open(path, sample_dim="time", refresh="epoch")


def test_sparse_rows_of_anndata_files_are_those_of_scipy(tmp_path: Path) -> None:
    matrices = [sp.random(40, 30, 0.2, format="csr", dtype="f4", random_state=seed) for seed in range(2)]
    paths = [tmp_path / f"{number}.h5ad" for number in range(2)]
    for path, matrix in zip(paths, matrices, strict=True):
        with h5py.File(path, "w") as file:
            group = file.create_group("X")
            group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": matrix.shape})
            for name in ("data", "indices", "indptr"):
                group.create_dataset(name, data=getattr(matrix, name), chunks=(16,), compression="gzip")
            file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    whole = sp.vstack(matrices).toarray()
    for source, first, length in ((paths[1], 40, 40), (paths, 0, 80)):
        data = zarrfeed.open(source, variables=["X"])
        order: list[int] = []
        for batch, index in ZarrIterableDataset(data, batch_size=16, shuffle=True, return_index=True):
            assert np.array_equal(batch["X"].to_dense(), whole[first + index.numpy()])
            order += index.tolist()
        assert sorted(order) == list(range(length))


def test_a_pickled_dataset_needs_no_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.h5"
    written = write_random(path, 3)
    pickled = pickle.dumps(ZarrIterableDataset(open_all(path), batch_size=5, return_index=True))
    monkeypatch.setitem(sys.modules, "h5py", None)
    order, rows = delivered(pickle.loads(pickled))
    assert rows == expected(written, order)


def test_text_of_fixed_length_booleans_and_enumerations_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    kinds = h5py.enum_dtype({"a": 1, "b": 5}, basetype="i2")
    with h5py.File(path, "w") as file:
        file["flag"] = np.array([True, False, True])
        file["name"] = np.array([b"abc", b"", b"de"])
        file.create_dataset("kind", data=np.array([1, 5, 1]), dtype=kinds)
    (batch,) = ZarrIterableDataset(zarrfeed.open(path, variables=["flag", "kind"]), batch_size=3)
    assert batch["flag"].tolist() == [True, False, True]
    assert batch["kind"].tolist() == [1, 5, 1]
    array = zarr.open_array(store=open_hdf5(path), path="name", mode="r")
    assert np.asarray(array[...]).tolist() == [b"abc", b"", b"de"]


def test_text_of_netcdf4_is_that_of_its_zarr_twin(tmp_path: Path) -> None:
    names = np.array(["ams", "ber", "çph"], object)
    values = np.arange(24, dtype="f4").reshape(8, 3)
    notes = np.array([f"note {i}" * (i % 3) for i in range(8)], object)
    variables = {"t": (("time", "station"), values), "note": ("time", notes)}
    dataset = xr.Dataset(variables, coords={"time": np.arange(8), "station": names})
    dataset.to_netcdf(tmp_path / "x.nc", engine="h5netcdf", encoding={"note": {"chunksizes": (3,)}})
    dataset.to_zarr(tmp_path / "x.zarr", consolidated=False, zarr_format=2)
    fields = []
    for name in ("x.nc", "x.zarr"):
        data = zarrfeed.open(tmp_path / name, sample_dim="time").sel(station=["çph", "ams"])
        fields.append([(field.name, field.shape, field.dtype) for field in data.fields])
        seen: dict[int, Any] = {}
        for batch, index in ZarrIterableDataset(data, batch_size=3, shuffle=True, seed=1, return_index=True):
            seen |= {i: (batch["t"][k].tolist(), batch["note"][k]) for k, i in enumerate(index.tolist())}
        assert seen == {i: (values[i, [2, 0]].tolist(), notes[i]) for i in range(8)}
    assert fields[0] == fields[1]


def test_categories_of_an_h5ad_are_those_of_its_zarr_twin(tmp_path: Path) -> None:
    codes, kinds, donors = np.array([0, 1, 1, -1, 0, 1], "i1"), ["B", "Ŧ"], [f"d{i // 2}" for i in range(6)]
    path = tmp_path / "cells.h5ad"
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = "anndata"
        file["X"] = np.arange(12, dtype="f4").reshape(6, 2)
        file["obs/kind/codes"] = codes
        file.create_dataset("obs/kind/categories", data=kinds, dtype=h5py.string_dtype())
        file.create_dataset("obs/donor", data=donors, dtype=h5py.string_dtype(), chunks=(4,))
        file["obs/kind"].attrs.update({"encoding-type": "categorical", "ordered": False})
        for array in (file["X"], file["obs/kind/codes"], file["obs/kind/categories"], file["obs/donor"]):
            array.attrs["encoding-type"] = "string-array" if array.dtype == object else "array"
    data = zarrfeed.open(path, variables=["X", "obs/kind", "obs/donor"])
    assert data.categories == {"obs/kind": ("B", "Ŧ")}
    (batch,) = ZarrIterableDataset(data, batch_size=6)
    assert batch["obs/donor"] == donors
    parts = data.split((0.5, 0.5), groups="obs/donor", seed=0)
    held = [
        {donor for batch in ZarrIterableDataset(part, batch_size=6) for donor in batch["obs/donor"]} for part in parts
    ]
    assert not held[0] & held[1]
    assert held[0] | held[1] == set(donors)
    assert [donors[i] for i in range(6) if donors[i] == "d1"] == [
        donor for b in ZarrIterableDataset(data.where("obs", "donor == 'd1'"), batch_size=6) for donor in b["obs/donor"]
    ]
