"""VirtualiZarr's `ManifestStore`: local files are read by the engine, others as the store itself reads them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from torch.utils.data import DataLoader

import zarrfeed
from zarrfeed import ConfigError, StoreReadError, ZarrIterableDataset
from zarrfeed.storage.files.manifests import is_manifest_store, open_manifests

parsers = pytest.importorskip("virtualizarr.parsers")
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")

ROWS = np.arange(60, dtype="f4").reshape(20, 3)


@pytest.fixture
def source(tmp_path: Path) -> Any:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=ROWS, chunks=(4, 2), compression="gzip", shuffle=True)
        holes = file.create_dataset("g/holes", ROWS.shape, chunks=(5, 3), dtype="f4", fillvalue=7)
        holes[5:10] = ROWS[5:10]
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    return parsers.HDFParser()(f"file://{tmp_path / 'a.h5'}", registry=registry)


def test_arrays_are_those_of_the_store(source: Any) -> None:
    assert is_manifest_store(source)
    assert not is_manifest_store(zarr.storage.MemoryStore())
    store = open_manifests(source)
    for one in (store, pickle.loads(pickle.dumps(store))):
        stored: Any = zarr.open_array(one, path="x", mode="r")
        assert np.array_equal(stored[...], ROWS)
    data = zarrfeed.open(source, variables=["x", "g/holes"])
    holes = np.full_like(ROWS, 7)
    holes[5:10] = ROWS[5:10]
    order = []
    dataset = ZarrIterableDataset(data, batch_size=3, shuffle=True, return_index=True)
    assert "virtual in place" in str(dataset.explain())
    for batch, index in DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn"):
        assert np.array_equal(batch["x"], ROWS[index])
        assert np.array_equal(batch["g/holes"], holes[index])
        order += index.tolist()
    assert sorted(order) == list(range(20))


def test_a_missing_file_and_one_that_no_store_is_for_are_errors(source: Any, tmp_path: Path) -> None:
    (tmp_path / "a.h5").unlink()
    with pytest.raises(StoreReadError, match=r"ManifestStore/x: its chunks lie in .*a\.h5: No such file"):
        zarrfeed.open(source, variables=["x"])
    array = source._group["x"].rename_paths("s3://bucket/a.h5")
    source._group._members["x"] = array
    with pytest.raises(ConfigError, match="its registry has no store for s3://bucket"):
        zarrfeed.open(source, variables=["x"])


def test_a_virtual_dataset_is_read_by_its_references(tmp_path: Path) -> None:
    import xarray as xr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_dataset

    values = xr.Dataset({"x": (("t", "i"), ROWS), "masked": (("t", "i"), ROWS)}, coords={"t": np.arange(20)})
    encoding: Any = {"x": {"_FillValue": None}, "masked": {"_FillValue": 7.0, "zlib": True, "chunksizes": (4, 3)}}
    values.to_netcdf(tmp_path / "a.nc", engine="h5netcdf", encoding=encoding)
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    one = open_virtual_dataset(f"file://{tmp_path / 'a.nc'}", registry=registry, parser=parsers.HDFParser())
    data = zarrfeed.open(one, sample_dim="t")
    dataset = ZarrIterableDataset(pickle.loads(pickle.dumps(data)), batch_size=20)
    batch = next(iter(dataset))
    assert np.array_equal(batch["x"], ROWS)  # 0 is no missing value
    assert np.array_equal(batch["masked"], np.where(ROWS == 7, np.nan, ROWS), equal_nan=True)
    assert dataset.explain().fields[0].native
    with pytest.raises(ConfigError, match=r"zarrfeed\.open\(dataset"):
        zarrfeed.from_xarray(one, sample_dim="t")
