"""The forms in which users pass an array in a file at first: each gives it, or an error that says what to write."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

import zarrfeed
from zarrfeed import ConfigError, StoreReadError, UnsupportedError, ZarrDataset, ZarrIterableDataset

VALUES = np.arange(40, dtype="f4").reshape(10, 4)


def rows(data: Any, name: Any = None) -> Any:
    """Return all samples in order."""
    batches = [batch if name is None else batch[name] for batch in ZarrIterableDataset(data, batch_size=3)]
    return np.concatenate(batches)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guesses")
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("data/x", data=VALUES, chunks=(3, 4))
        file["data/y"] = np.arange(10)
        file["lists"] = np.empty(0, h5py.vlen_dtype("i4"))
    dataset = xr.Dataset({"t": (("time", "lat"), VALUES)}, coords={"time": np.arange(10), "lat": np.arange(4)})
    dataset.to_netcdf(
        folder / "x.nc", engine="h5netcdf", encoding={"t": {"scale_factor": 0.5, "dtype": "i2", "_FillValue": -1}}
    )
    dataset.to_netcdf(folder / "x3.nc", engine="scipy")
    np.save(folder / "x.npy", VALUES)
    return folder


@pytest.mark.parametrize("path", ["x.h5/data/x", "x.h5::data/x", "x.h5::/data/x", "x.nc/t", "x3.nc::t"])
def test_a_path_leads_into_a_file(folder: Path, path: str) -> None:
    data = zarrfeed.open(f"{folder}/{path}")
    assert np.array_equal(rows(data), VALUES)
    assert eval(repr(data), {"zarrfeed": zarrfeed}) == data


def test_a_path_to_nothing_in_a_file_says_what_draws_it(folder: Path) -> None:
    for path in ("x.h5/data/z", "x.h5::data/z"):
        with pytest.raises(StoreReadError, match=r"x\.h5 has no array 'data/z'; `zarrfeed info .*x\.h5 --tree` draws"):
            zarrfeed.open(f"{folder}/{path}")
    with pytest.raises(UnsupportedError, match="lists of any length"):
        zarrfeed.open(f"{folder}/x.h5/lists")


def test_what_h5py_opened_is_opened_by_its_path(folder: Path) -> None:
    with h5py.File(folder / "x.h5") as file:
        for data in (
            zarrfeed.open(file, variables=["data/x"]),
            zarrfeed.open(file["data"], variables=["x"]),
            zarrfeed.open({"x": file["data/x"]}, file["data/y"]),
        ):
            (first,) = (field.name for field in data.fields if field.shape == (4,))
            dataset = pickle.loads(pickle.dumps(ZarrDataset(data)))
            sample = dataset[4] if len(data.fields) == 1 else dataset[4][0]
            assert np.array_equal(sample[first], VALUES[4])
        assert np.array_equal(rows(zarrfeed.open(file["data/x"])), VALUES)
        assert np.array_equal(rows(zarrfeed.open([file["data/x"]] * 2)), np.concatenate([VALUES] * 2))
        kept = file["data/x"]
    with pytest.raises(ConfigError, match="give the path of the file"):
        zarrfeed.open(kept)


@pytest.mark.parametrize(("name", "engine"), [("x.nc", "h5netcdf"), ("x3.nc", "scipy")])
def test_what_xarray_opened_of_a_file_is_read_from_it(folder: Path, name: str, engine: Any) -> None:
    with xr.open_dataset(folder / name, engine=engine) as dataset:
        with pytest.raises(ConfigError, match=r"xarray.Dataset: zarrfeed.from_xarray reads"):
            zarrfeed.open(dataset)
        assert np.array_equal(rows(zarrfeed.from_xarray(dataset, sample_dim="time"), "t"), VALUES)
        chosen = dataset.isel(time=slice(2, 9, 3), lat=[3, 1])
        assert np.array_equal(rows(zarrfeed.from_xarray(chosen, sample_dim="time"), "t"), VALUES[2:9:3][:, [3, 1]])
        assert np.array_equal(rows(zarrfeed.from_xarray(dataset["t"])), VALUES)
        with pytest.raises(ConfigError, match="its values are in memory, loaded or calculated"):
            zarrfeed.from_xarray(dataset["t"] + 1)


def test_what_numpy_maps_is_read_in_place(folder: Path) -> None:
    mapped = np.load(folder / "x.npy", mmap_mode="r")
    raw: Any = np.memmap(folder / "x.npy", "f4", "r", offset=128 + 16 * 2, shape=(3, 4))
    for array in (mapped, mapped[4:], mapped[4:9][2:], mapped[5], raw, raw[1:], mapped[:, 1:], mapped.astype("i4")):
        data = zarrfeed.open(array)
        assert np.array_equal(rows(pickle.loads(pickle.dumps(data))), array)
        for batch, index in ZarrIterableDataset(data, batch_size=2, shuffle=True, return_index=True):
            assert np.array_equal(batch, array[index.numpy()])
    assert len(pickle.dumps(zarrfeed.open(np.memmap(folder / "x.npy", "u1", "r")[:200]))) < 20_000
    changing = np.load(folder / "x.npy", mmap_mode="c")
    changing[0] = -1
    assert rows(zarrfeed.open(changing))[0].tolist() == [-1] * 4


def test_a_name_in_the_samples_is_no_target(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"targets: 'data/y' does not exist. Of .*x\.h5, variables=\['data/y'\]"):
        zarrfeed.open(folder / "x.h5", "data/y")
    assert rows(zarrfeed.open(f"{folder}/x.h5/data/x", f"{folder}/x.h5/data/y"), 1).tolist() == list(range(10))


def test_characters_of_netcdf3_are_text_along_their_last_dimension(folder: Path) -> None:
    names = np.array([b"ams", b"be", b""])
    values = xr.DataArray(VALUES[:3], dims=("station", "x"), coords={"station": names})
    values.to_dataset(name="t").to_netcdf(folder / "names.nc", engine="scipy")
    data = zarrfeed.open(folder / "names.nc", sample_dim="station")
    assert np.array_equal(rows(data.sel(station=["be", "ams"]), "t"), VALUES[:2])
