"""Stores that xarray wrote: what xarray reads from them comes out, sample by sample, and nothing else."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import zarr

import zarrfeed
from tests.support.flat import iterable_dataset
from tests.support.oracle import ZARR_FORMATS, AnyArray, ZarrFormat, no_thread_left
from zarrfeed import ConfigError, UnsupportedError, ZarrIterableDataset

pytestmark = pytest.mark.filterwarnings(
    "ignore:Consolidated metadata is currently not part:zarr.errors.ZarrUserWarning",
    "ignore:variable .* has multiple fill values",
    "ignore:variable .* has non-conforming",
)

N = 11


def packed_dataset() -> xr.Dataset:
    """Make variables of many kinds over (time, lat, lon); values say where they are."""
    shape = (N, 3, 4)
    steps = np.arange(np.prod(shape), dtype="f8").reshape(shape)
    holes = np.where(steps % 7 == 3, np.nan, steps)
    data = xr.Dataset(
        {
            "packed": (("time", "lat", "lon"), holes * 0.5 + 200),
            "scaled": (("time", "lat", "lon"), steps * 0.25),
            "shifted": (("time", "lat"), steps[:, :, 0] - 3),
            "counts": (("time", "lat"), holes[:, :, 1]),
            "many": (("time", "lat"), holes[:, :, 2] * 1000),
            "bytes": (("time", "lat"), np.where(steps[:, :, 0] % 5 == 2, np.nan, 130 + steps[:, :, 0] % 100)),
            "single": (("time", "lat"), holes[:, :, 0].astype("f4")),
            "double": (("time", "lat"), holes[:, :, 0]),
            "half": (("time", "lat"), holes[:, :, 0].astype("f2")),
            "wide": (("time", "lat"), holes[:, :, 0] / 3),
            "flags": (("time", "lat"), steps[:, :, 0] % 2 == 0),
            "plain": (("time", "lat"), steps[:, :, 0].astype("i4")),
            "mask": (("lat", "lon"), steps[0]),
            "number": ((), 3.0),
        },
        coords={
            "time": np.datetime64("2020-01-01") + np.arange(N) * np.timedelta64(6, "h"),
            "lat": [10.0, 20.0, 30.0],
            "area": (("lat", "lon"), steps[0]),
            "level": 500.0,
        },
    )
    encodings: dict[str, dict[str, Any]] = {
        "packed": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768},
        "scaled": {"dtype": "u1", "scale_factor": 0.25},
        "shifted": {"dtype": "i4", "add_offset": -3.0},
        "counts": {"dtype": "i2", "_FillValue": -1},
        "many": {"dtype": "i4", "_FillValue": -1},
        "bytes": {"dtype": "i1", "_FillValue": -1, "_Unsigned": "true"},
        "single": {"_FillValue": -9999.0},
        "half": {"_FillValue": -1.0},
        "wide": {"dtype": "f4", "scale_factor": 0.1, "add_offset": 1.0, "_FillValue": -1.0},
    }
    for name, encoding in encodings.items():
        data[name].encoding = encoding
    for variable in data.data_vars.values():
        if variable.ndim == 3:
            variable.encoding["chunks"] = (4, 2, 4)
    return data


@pytest.fixture(params=[(f, c) for f in ZARR_FORMATS for c in (True, False)], ids=str, scope="module")
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the variables in both formats, with consolidated metadata and without."""
    zarr_format, consolidated = request.param
    path = tmp_path_factory.mktemp("xarray") / "store.zarr"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed_dataset().to_zarr(path, zarr_format=zarr_format, consolidated=consolidated)
    return path


def opened(path: Path, **options: Any) -> xr.Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return xr.open_dataset(path, engine="zarr", chunks=None, **options)


def read(*args: Any, **options: Any) -> Any:
    """Read all samples in order, as one batch."""
    with iterable_dataset(*args, batch_size=1000, **options) as dataset:
        (batch,) = dataset
    return batch


def assert_decoded(got: torch.Tensor, expected: AnyArray) -> None:
    """Fail unless a tensor is xarray's result, rounded to the tensor's dtype once; to the last bit."""
    values = got.numpy()
    assert np.array_equal(values, expected.astype(values.dtype), equal_nan=True)
    if values.dtype == np.float32 and expected.dtype.kind == "f":
        assert not np.isnan(values).all()


def variable_names(path: Path) -> list[str]:
    data = opened(path)
    return sorted(str(name) for name in data.data_vars if "time" in data[name].dims)


def test_every_variable_is_what_xarray_reads(store: Path) -> None:
    data = opened(store)
    batch = read(store, sample_dim="time")
    assert sorted(batch) == variable_names(store)
    assert "mask" not in batch
    for name, tensor in batch.items():
        expected = data[name].values
        assert_decoded(tensor, expected)
        if expected.dtype.kind == "f" and name not in ("double", "half"):
            assert tensor.dtype == torch.float32
    assert batch["packed"].isnan().any()
    assert batch["bytes"].nan_to_num().max() > 127
    assert batch["double"].dtype == torch.float64
    assert batch["half"].dtype == torch.float16
    assert batch["flags"].dtype == torch.bool
    assert batch["plain"].dtype == torch.int32


def test_float64_is_xarrays_own_result_to_the_last_bit(store: Path) -> None:
    data = opened(store)
    names = ["packed", "scaled", "shifted", "counts", "many", "bytes", "single", "wide"]
    batch = read(store, sample_dim="time", variables=names, dtype="float64")
    assert list(batch) == names
    for name in names:
        assert batch[name].dtype == torch.float64
        assert np.array_equal(batch[name].numpy(), data[name].values.astype("f8"), equal_nan=True)


def test_decode_cf_false_hands_out_what_is_stored(store: Path) -> None:
    data = opened(store, mask_and_scale=False)
    batch = read(store, sample_dim="time", decode_cf=False)
    for name, tensor in batch.items():
        stored = zarr.open_array(store / name, mode="r")[...]
        assert tensor.numpy().dtype == stored.dtype  # type: ignore[union-attr]
        assert np.array_equal(tensor.numpy(), stored, equal_nan=stored.dtype.kind == "f")  # type: ignore[union-attr]
        assert tuple(tensor.shape) == data[name].shape


def test_a_missing_chunk_is_the_decoded_fill_value(tmp_path: Path) -> None:
    for zarr_format in ZARR_FORMATS:
        path = tmp_path / f"v{zarr_format}"
        data = xr.Dataset({"x": (("time", "lat"), np.arange(40.0).reshape(20, 2))})
        data["x"].encoding = {
            "dtype": "i2",
            "scale_factor": 0.5,
            "add_offset": 7.0,
            "_FillValue": -5,
            "chunks": (4, 2),
        }
        data.to_zarr(path, zarr_format=zarr_format)
        (path / ("x/2.0" if zarr_format == 2 else "x/c/2/0")).unlink()
        expected = opened(path)["x"].values
        assert np.isnan(expected[8:12]).all() == (zarr_format == 2)  # v3 has a fill value of its own beside
        assert_decoded(read(path, sample_dim="time")["x"], expected)


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize(
    ("dtype", "attributes"),
    [
        ("i2", {"scale_factor": 0.1}),
        ("i2", {"add_offset": 0.1}),
        ("i4", {"scale_factor": 1e-7, "add_offset": 3.3}),
        ("u2", {"missing_value": 7}),
        ("i2", {"missing_value": [7, 9]}),
        ("i8", {"missing_value": 2**60}),
        ("i2", {"missing_value": 7, "scale_factor": 3.0}),
        ("f4", {"missing_value": 7.5}),
        ("f4", {"missing_value": -9999.9}),
        ("f8", {"missing_value": 7.5, "scale_factor": 0.1, "add_offset": 0.7}),
        ("f4", {"scale_factor": 0.1, "add_offset": 0.7}),
        ("f2", {"scale_factor": 0.1}),
        ("u1", {"_Unsigned": "false"}),
        ("i2", {"_Unsigned": "true", "scale_factor": 0.5}),
        ("i2", {"_Unsigned": "true", "missing_value": -1}),
        ("i1", {"dtype": "bool"}),
        ("i2", {"units": "m", "long_name": "x"}),
    ],
    ids=str,
)
def test_attributes_that_others_wrote_mean_what_they_mean_to_xarray(
    zarr_format: ZarrFormat, dtype: str, attributes: dict[str, Any], tmp_path: Path
) -> None:
    values = np.random.default_rng(1).integers(0, 2**8, (40, 6)).astype(dtype)
    if dtype in ("i2", "i4"):
        values[::2] = -values[::2]
    values[3:9] = 7
    values[9, :2] = 9
    if dtype[0] == "f":
        values[5, 2:] = [7.5, -9999.9, np.nan, np.inf] if dtype != "f2" else 0
    group = zarr.open_group(tmp_path, mode="w", zarr_format=zarr_format)
    options: Any = {"attributes": attributes, "fill_value": None if zarr_format == 2 else 0}
    if zarr_format == 2:
        options["attributes"] = attributes | {"_ARRAY_DIMENSIONS": ["time", "x"]}
    else:
        options["dimension_names"] = ["time", "x"]
    array = group.create_array("v", shape=values.shape, chunks=(7, 4), dtype=dtype, **options)
    array[...] = values
    expected = opened(tmp_path, consolidated=False)["v"].values
    got = read(tmp_path)["v"]
    assert_decoded(got, expected)
    if expected.dtype.kind in "biu":
        assert got.numpy().dtype == expected.dtype
    if dtype == "f4" and attributes == {"missing_value": -9999.9}:
        assert not got[5, 3].isnan()  # no float32 is -9999.9
    double = read(tmp_path, dtype={"v": "float64"} if expected.dtype.kind == "f" else None)["v"]
    if expected.dtype.kind == "f":
        assert np.array_equal(double.numpy(), expected.astype("f8"), equal_nan=True)


def test_a_fill_value_of_an_array_that_xarray_did_not_write_is_a_value(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x", shape=(6, 2), chunks=(4, 2), dtype="i4", zarr_format=2, fill_value=0)
    array[:4] = 5
    got = read(tmp_path / "x")
    assert got.dtype == torch.int32
    assert got[4:].tolist() == [[0, 0]] * 2


def test_v3_fill_values_are_read_as_base64_numbers_or_words(tmp_path: Path) -> None:
    values = np.array([[1.0, -1.5], [2.0, 3.0]], dtype="f4")
    texts: tuple[Any, ...] = ("AAAAAAAA+L8=", -1.5, "-1.5", "NaN", "AAAAAAAA+H8=")
    for number, text in enumerate(texts):
        array = zarr.create_array(tmp_path / str(number), shape=(2, 2), chunks=(2, 2), dtype="f4")
        array[...] = values
        array.attrs["_FillValue"] = text
        expected = values.copy()
        if number < 3:
            expected[0, 1] = np.nan
        assert np.array_equal(read(tmp_path / str(number)).numpy(), expected, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "attributes", "error", "message"),
    [
        ("i2", {"scale_factor": "big"}, ConfigError, r"scale_factor = 'big', must be a number; decode_cf=False"),
        ("i2", {"add_offset": [1, 2]}, ConfigError, r"add_offset = \[1, 2\], must be a number"),
        ("f4", {"_FillValue": "nothing"}, ConfigError, r"_FillValue = 'nothing', must be a number"),
        ("f4", {"missing_value": {"a": 1}}, ConfigError, r"missing_value = .*, must be a number"),
        ("c8", {"scale_factor": 2.0}, UnsupportedError, "fill values of complex numbers; decode_cf=False"),
    ],
)
def test_attributes_that_mean_nothing_are_refused_with_their_array(
    dtype: str, attributes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    array = zarr.create_array(tmp_path / "x", shape=(4,), chunks=(2,), dtype=dtype)
    array.attrs.update(attributes)
    with pytest.raises(error, match=f"x: .*{message}"):
        ZarrIterableDataset(tmp_path / "x")
    assert len(read(tmp_path / "x", decode_cf=False)) == 4


def test_coordinates_and_scalars_are_left_out_of_a_group(store: Path) -> None:
    assert sorted(read(store, sample_dim="time")) == variable_names(store)
    with pytest.raises(ConfigError, match="samples"):
        ZarrIterableDataset(store)  # the mask has no time
    lat = read(store, sample_dim="lat")
    assert set(lat) == {*variable_names(store), "mask"}
    assert lat["packed"].shape == (3, N, 4)
    assert_decoded(lat["packed"], np.moveaxis(opened(store)["packed"].values, 1, 0))


def test_variables_are_chosen_by_name_in_order_coordinates_too(store: Path) -> None:
    assert list(read(store, variables=["plain", "counts"])) == ["plain", "counts"]
    assert list(read(store, variables=["area"], sample_dim="lat")) == ["area"]
    for wrong, message in (
        (["nothing"], "variables: 'nothing' is not in samples, must be one of 'area', .*'wide'"),
        ([], r"variables = \[\], must name at least one"),
        (["plain", "plain"], "and each once"),
        ("plain", "must be a list of names"),
    ):
        with pytest.raises(ConfigError, match=message):
            ZarrIterableDataset(zarrfeed.open(store, variables=wrong))
    with pytest.raises(ConfigError, match=r"samples\['mask'\]: sample_dim = 'time', must be one of its dimensions"):
        ZarrIterableDataset(zarrfeed.open(store, sample_dim="time", variables=["plain", "mask"]))
    with pytest.raises(ConfigError, match="samples is an array, must be a group or a mapping"):
        ZarrIterableDataset(zarrfeed.open(store / "plain", variables=["plain"]))


def test_sample_dim_picks_the_axis_of_samples_and_of_targets_that_have_it(store: Path) -> None:
    lon_first = read(store / "packed", store / "scaled", sample_dim="lon")
    data = opened(store)
    assert_decoded(lon_first[0], np.moveaxis(data["packed"].values, 2, 0))
    assert_decoded(lon_first[1], np.moveaxis(data["scaled"].values, 2, 0))
    x, y = read(store, np.arange(N), sample_dim="time")
    assert len(x["plain"]) == len(y) == N
    with pytest.raises(ConfigError, match="sample_dim = 'time' and sample_axis = 1: give one"):
        ZarrIterableDataset(zarrfeed.open(store, sample_axis=1, sample_dim="time"))
    with pytest.raises(ConfigError, match="samples: has no dimension names, sample_dim = 'time' needs them"):
        ZarrIterableDataset(zarrfeed.open(np.zeros((4, 2)), sample_dim="time"))
    with pytest.raises(ConfigError, match="samples: the group has no data variable with the dimension 'nowhere'"):
        ZarrIterableDataset(zarrfeed.open(store, sample_dim="nowhere"))


def test_normalize_takes_a_dimension_by_its_name(store: Path) -> None:
    mean, std = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 8.0])
    batch = read(store, variables=["packed", "plain"], normalize=(mean, std), normalize_axis="lat")
    values = opened(store)["packed"].values
    assert_decoded(batch["packed"], (values - mean[:, None]) / std[:, None])
    assert_decoded(batch["plain"], (opened(store)["plain"].values - mean) / std)
    with pytest.raises(ConfigError, match=r"axis = 'level': samples\['plain'\] has the dimensions"):
        ZarrIterableDataset(zarrfeed.open(store, variables=["plain"]).normalize((mean, std), axis="level"))


# --- from_xarray ------------------------------------------------------------------------------------------------


def from_xarray(*args: Any, **options: Any) -> Any:
    with no_thread_left(), ZarrIterableDataset(zarrfeed.from_xarray(*args, **options), batch_size=1000) as dataset:
        (batch,) = dataset
    return batch


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(got) == set(expected)
    for name, tensor in got.items():
        assert tensor.dtype == expected[name].dtype
        assert np.array_equal(tensor.numpy(), expected[name].numpy(), equal_nan=tensor.is_floating_point())


def test_an_opened_dataset_is_read_as_its_store(store: Path) -> None:
    data = opened(store)
    assert_same(from_xarray(data, sample_dim="time"), read(store, sample_dim="time"))
    x, y = from_xarray(data[["packed", "plain"]], data["counts"], sample_dim="time")
    assert_same(x, read(store, variables=["packed", "plain"]))
    assert_decoded(y, data["counts"].values)
    assert list(from_xarray(data, sample_dim="time", variables=["wide", "plain"])) == ["wide", "plain"]
    with ZarrIterableDataset(zarrfeed.from_xarray(data["packed"]), batch_size=4) as dataset:
        again = pickle.loads(pickle.dumps(dataset))
        assert torch.equal(next(iter(again)).nan_to_num(), next(iter(dataset)).nan_to_num())
        again.close()


def test_a_dataset_opened_as_stored_is_read_as_stored(store: Path) -> None:
    raw = opened(store, mask_and_scale=False)
    assert_same(from_xarray(raw, sample_dim="time"), read(store, sample_dim="time", decode_cf=False))
    assert_same(from_xarray(raw, sample_dim="time", decode_cf=True), read(store, sample_dim="time"))
    with pytest.raises(ConfigError, match=r"opened without decoding, .* with it: give decode_cf="):
        from_xarray(raw["packed"], opened(store)["packed"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.isel(time=slice(None, None, -1)), "selects samples in another order"),
        (lambda d: d.isel(time=[1, 0, 2]), "selects samples in another order"),
        (lambda d: d.isel(time=[1, 1]), "in another order than the store, or some twice"),
        (lambda d: d.isel(time=slice(5, 5)), "selects no sample of the stored array"),
        (lambda d: d[["packed"]].isel(time=3), r"has the dimensions \('lat', 'lon'\), stored are"),
        (lambda d: d[["packed"]].isel(time=xr.DataArray([[1, 2]], dims=("time", "n"))), "selects items of the stored"),
        (lambda d: d[["packed"]].isel(time=slice(0, 5)) * 2, "in memory, loaded or calculated"),
        (lambda d: d.load(), "in memory, loaded or calculated"),
        (lambda d: d * 2, "in memory, loaded or calculated"),
        (lambda d: d.rename_dims(lat="y"), r"has the dimensions \('time', 'y'.* stored are"),
        (lambda d: d[["number"]], "no data variable"),
        (lambda d: d.values, "must be an xarray.Dataset or an xarray.DataArray"),
    ],
)
def test_a_dataset_that_is_no_longer_its_store_is_refused_with_the_reason(
    change: Any, message: str, store: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        ZarrIterableDataset(zarrfeed.from_xarray(change(opened(store)[["packed", "plain", "number"]].drop_vars("lat"))))


def test_variables_decoded_as_times_are_refused_by_name(tmp_path: Path) -> None:
    xr.Dataset({"when": ("t", np.array(["2020-01-01", "2021-01-01"], "M8[ns]"))}).to_zarr(tmp_path / "x")
    with pytest.raises(ConfigError, match=r"samples\['when'\]: is decoded as datetime64\[ns\]"):
        ZarrIterableDataset(zarrfeed.from_xarray(opened(tmp_path / "x")))


def test_datasets_in_other_stores_need_no_path() -> None:
    memory: Any = zarr.storage.MemoryStore()  # xarray takes stores, its types do not say so
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed_dataset().to_zarr(memory, zarr_format=3, consolidated=False)
    data = xr.open_dataset(memory, engine="zarr", chunks=None, consolidated=False)
    assert_decoded(from_xarray(data, sample_dim="time")["packed"], data["packed"].values)


# --- samples that xarray selected -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "select",
    [
        lambda d: d.isel(time=slice(2, 9)),
        lambda d: d.isel(time=slice(-4, None)),
        lambda d: d.isel(time=slice(1, 10, 3)).isel(time=slice(1, None)),
        lambda d: d.isel(time=[0, 3, 4, 9]),
        lambda d: d.isel(time=slice(2, 9)).isel(time=[0, 5]),
        lambda d: d.sel(time=slice("2020-01-01T12", "2020-01-02")),
        lambda d: d.sel(time="2020-01-02"),
        lambda d: d.isel(time=slice(None)),
        lambda d: d.isel(time=np.arange(N) % 3 == 0),
    ],
)
def test_samples_that_xarray_selected(store: Path, select: Any) -> None:
    names = ["packed", "counts", "plain"]
    selected = select(opened(store)[names])
    data = zarrfeed.from_xarray(selected, selected["plain"], sample_dim="time")
    batch, targets = read(data)
    for name in names:
        assert_decoded(batch[name], selected[name].values)
    assert_decoded(targets, selected["plain"].values)
    times = data.resolved.coordinate().values[np.asarray(data.resolved.choice.ascending())]
    assert np.array_equal(times, selected["time"].values)


def test_selected_samples_print_as_a_selection(store: Path) -> None:
    data = zarrfeed.from_xarray(opened(store)[["plain"]].isel(time=slice(2, 9, 2)))
    assert repr(data).endswith(".select(slice(2, 9, 2))")
    assert len(data.window((0, 1))) == 3


def test_samples_and_targets_are_the_same_selection(store: Path) -> None:
    dataset = opened(store)[["plain"]]
    for other in (dataset, dataset.isel(time=slice(1, 6)), dataset.isel(time=[0, 1, 2, 3, 5])):
        with pytest.raises(ConfigError, match=r"targets\['plain'\] and samples\['plain'\]"):
            zarrfeed.from_xarray(dataset.isel(time=slice(0, 5)), other)


def test_labels_are_those_that_xarray_has_in_memory(store: Path) -> None:
    moved = opened(store)[["plain"]].assign_coords(time=np.arange(N) * 10)
    data = zarrfeed.from_xarray(moved, sample_dim="time").sel(time=slice(20, 40))
    assert_decoded(read(data)["plain"], moved["plain"].sel(time=slice(20, 40)).values)
    raw = zarrfeed.from_xarray(opened(store, decode_times=False)[["plain"]], sample_dim="time")
    assert raw.resolved.coordinate().values.dtype == np.int64
