"""Zarr stores as sources of `pack`: values as they are stored, with all that describes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

from zarrfeed import ConfigError, StoreReadError, UnsupportedError
from zarrfeed.packing.pack import pack
from zarrfeed.packing.sources.source import Source, SourceCall, SourceOptions

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
]


def opened(*paths: Path, **options: Any) -> Source:
    return SourceCall("zarr", tuple(map(str, paths)), SourceOptions(**options)).open()


@pytest.fixture
def weather() -> xarray.Dataset:
    hours = np.arange(20)
    made = xarray.Dataset(
        {
            "t2m": (("time", "lat", "lon"), hours[:, None, None] + np.arange(12).reshape(3, 4) / 16),
            "orography": (("lat", "lon"), np.arange(12.0).reshape(3, 4)),
        },
        coords={"time": hours.astype("M8[h]").astype("M8[ns]"), "lat": [10.0, 20.0, 30.0]},
        attrs={"title": "hours"},
    )
    made.t2m.values[3, 1, 2] = np.nan
    made.t2m.encoding.update(dtype="int16", scale_factor=1 / 16, add_offset=1.0, _FillValue=-9)
    made.t2m.attrs.update(units="K")
    return made


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("options", [{}, {"shuffle": 3}], ids=["in order", "shuffled"])
def test_xarray_reads_the_same_from_source_and_store(
    weather: xarray.Dataset, zarr_format: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    weather.to_zarr(tmp_path / "in.zarr", zarr_format=zarr_format)
    pack(tmp_path / "in.zarr", tmp_path / "out.zarr", sample_chunk=3, **options)
    packed = xarray.open_dataset(tmp_path / "out.zarr", engine="zarr", consolidated=False)
    stored = xarray.open_dataset(tmp_path / "in.zarr", engine="zarr")
    for name in ("t2m", "time"):
        assert packed[name].dims[0] == "time"
    packed = packed.sortby("time")
    assert np.array_equal(packed.t2m.values, stored.t2m.values, equal_nan=True)
    assert np.isnan(packed.t2m.values[3, 1, 2])
    for name in ("time", "lat", "orography"):
        assert np.array_equal(packed[name].values, stored[name].values)
    assert packed.t2m.attrs == stored.t2m.attrs
    assert packed.attrs["title"] == "hours"
    assert packed.t2m.encoding["dtype"] == np.int16  # still packed


def test_fields_have_the_names_dtypes_and_shapes_of_the_arrays(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("image", data=np.zeros((6, 2, 3), "u1"), chunks=(4, 2, 3))
    group.create_array("code", data=np.full(6, b"ab", "S2"), chunks=(2,))
    blob: Any = group.create_array("blob", shape=(6,), chunks=(3,), dtype="variable_length_bytes")
    content = np.empty(6, object)
    content[:] = [b"x" * 100] * 6
    blob[:] = content
    source = opened(tmp_path / "x.zarr")
    known = {f.name: (f.kind, f.dtype.str, f.shape, f.mean_bytes) for f in source.fields}
    assert known == {
        "blob": ("bytes", "|O", (), 100),
        "code": ("number", "|S2", (), 2),
        "image": ("number", "|u1", (2, 3), 6),
    }
    assert source.block_samples == 3
    assert source.read(1, 3)[1].tolist() == [b"ab", b"ab"]


def test_fixed_length_text_records_and_times_come_through(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "x.zarr")
    times = np.array(["2020-01-01", "NaT", "2021-02-03"], "M8[D]")
    group.create_array("time", data=times)
    group.create_array("letters", data=np.array([b"a", b"bcd", b""], "S3"))
    records = np.array([(1, 2.5), (3, 4.5), (5, 6.5)], [("a", "<i2"), ("b", "<f8")])
    group.create_array("record", data=records)
    pack(tmp_path / "x.zarr", tmp_path / "out.zarr", verify=True)
    packed: Any = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert np.array_equal(packed["time"][...], times, equal_nan=True)
    assert packed["letters"][...].tolist() == [b"a", b"bcd", b""]
    assert np.array_equal(packed["record"][...], records)


def test_other_samples_have_another_fingerprint(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=np.arange(10))
    zarr.create_array(tmp_path / "b.zarr", data=np.arange(11))
    first = opened(tmp_path / "a.zarr").fingerprint
    assert opened(tmp_path / "a.zarr").fingerprint == first
    assert opened(tmp_path / "b.zarr").fingerprint != first


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreReadError, match=r"no\.zarr"):
        opened(tmp_path / "no.zarr")
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("x", data=np.arange(4))
    text: Any = group.create_array("text", shape=(4, 2), dtype="string")
    text[:] = np.full((4, 2), "a", object)
    with pytest.raises(UnsupportedError, match="text of shape"):
        opened(tmp_path / "x.zarr")
    assert len(opened(tmp_path / "x.zarr", variables=("x",)).fields) == 1
    with pytest.raises(ConfigError, match="variables: 'y' is not in"):
        opened(tmp_path / "x.zarr", variables=("y",))
