"""Options for all arrays of a side: which arrays they convert, and what a name says beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import zarr

import zarrfeed
from tests.support.flat import iterable_dataset, map_dataset
from tests.support.oracle import AnyArray
from zarrfeed import ConfigError, ZarrDataset, ZarrIterableDataset
from zarrfeed.metadata.array.conversion import Items, by_field

N = 24
#: Hours since 1900: neither bfloat16 nor float16 holds them.
HOURS = 1_051_896 + np.arange(N)


@pytest.fixture(params=[2, 3])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Weather as xarray writes it, with a coordinate of each kind."""
    values = np.random.default_rng(3).normal(280, 10, (N, 3, 4)).astype("f4")
    times = np.datetime64("1900-01-01", "h") + HOURS.astype("m8[h]")
    dataset = xr.Dataset(
        {
            "t2m": (("time", "y", "x"), values),
            "count": (("time",), np.arange(N, dtype="i4")),
        },
        coords={
            "time": times.astype("M8[ns]"),
            "step": ("time", np.arange(N, dtype="i8") + 9601, {"long_name": "not rounded"}),
            "lat": (("time", "y", "x"), values + 1),
        },
    )
    encoding = {"time": {"units": "hours since 1900-01-01", "dtype": "i8"}}
    dataset.to_zarr(tmp_path / "w.zarr", zarr_format=request.param, encoding=encoding, consolidated=False)
    return tmp_path / "w.zarr"


NAMES = ["t2m", "count", "time", "step", "lat"]


def batch_of(*sources: Any, **options: Any) -> Any:
    """Return all samples, which both datasets deliver alike."""
    with iterable_dataset(*sources, batch_size=10**6, **options) as dataset:
        (batch,) = dataset
    access = map_dataset(*sources, **options)
    other = access[np.arange(len(access))]
    torch.testing.assert_close(batch, other, rtol=0, atol=0)
    return batch


def stored(store: Path, name: str) -> AnyArray:
    return np.asarray(zarr.open_group(store, mode="r")[name][:])  # type: ignore[index]


def test_one_dtype_leaves_coordinates_and_the_index_alone(store: Path) -> None:
    batch, index = batch_of(store, variables=NAMES, dtype="bfloat16", return_index=True)
    assert batch["t2m"].dtype == batch["count"].dtype == torch.bfloat16
    for name in ("time", "step"):
        assert batch[name].dtype == torch.int64, name
        assert np.array_equal(batch[name].numpy(), stored(store, name)), name
    assert np.array_equal(batch["time"].numpy(), HOURS)
    assert batch["lat"].dtype == torch.float32
    assert np.array_equal(batch["lat"].numpy(), stored(store, "lat"))
    assert index.dtype == torch.int64


def test_one_normalization_leaves_coordinates_alone(store: Path) -> None:
    batch = batch_of(store, variables=NAMES, normalize=(280.0, 10.0))
    assert torch.equal(batch["time"], torch.from_numpy(HOURS))
    expected = (stored(store, "t2m") - np.float32(280)) / np.float32(10)
    assert np.array_equal(batch["t2m"].numpy(), expected)


def test_a_coordinate_that_is_named_is_converted(store: Path) -> None:
    batch = batch_of(store, variables=NAMES, dtype={"samples": "bfloat16", "time": "float64"})
    assert batch["time"].dtype == torch.float64
    assert batch["t2m"].dtype == torch.bfloat16
    assert batch["step"].dtype == torch.int64
    only = batch_of(store, variables=["t2m", "time"], dtype={"time": torch.float32})
    assert (only["t2m"].dtype, only["time"].dtype) == (torch.float32, torch.float32)
    alone = batch_of(store, variables=["time"], dtype="float64")
    assert alone["time"].dtype == torch.float64, "nothing else can be meant"
    assert batch_of(store / "time", dtype="float32").dtype == torch.float32


def test_coordinates_are_known_in_mappings_too(store: Path) -> None:
    group = zarr.open_group(store, mode="r")
    for mapping in ({"a": store / "t2m", "b": store / "time"}, {"a": group["t2m"], "b": group["time"]}):
        batch = batch_of(mapping, dtype="float16")
        assert (batch["a"].dtype, batch["b"].dtype) == (torch.float16, torch.int64)
    plain = zarr.create_group(store.parent / "plain")  # times are told by their dtype, or by their units
    plain.create_array("x", data=np.ones((N, 2), "f4"))
    plain.create_array("when", data=HOURS.astype("M8[h]"))
    plain.create_array("hours", data=HOURS, attributes={"units": "hours since 1900-01-01"})
    plain.create_array("label", data=np.arange(N))
    batch = batch_of(plain, dtype="float16")
    assert [values.dtype for values in batch.values()] == [torch.int64, torch.float16, torch.int64, torch.float16]
    assert list(batch) == ["hours", "label", "when", "x"]


def test_explain_says_that_a_coordinate_is_not_converted(store: Path) -> None:
    said = "not converted: a coordinate, which cast and normalize convert where they name it"
    page = ZarrIterableDataset(zarrfeed.open(store, variables=["t2m", "time"]).cast("float16")).explain()
    assert [f.spared for f in page.fields] == [False, True]
    assert str(page).count(said) == 1
    data = zarrfeed.open(store, variables=["t2m", "time"])
    assert said not in str(ZarrIterableDataset(data).explain())
    for dtype in ({"t2m": "float16"}, {"samples": "float16", "time": "float64"}):
        assert said not in str(ZarrIterableDataset(data.cast(dtype)).explain())


def test_windows_are_of_coordinates_too(store: Path) -> None:
    batch = batch_of(store, variables=["t2m", "time"], offsets=(-1, 0))
    assert batch["time"].shape == (N - 1, 2)
    assert np.array_equal(batch["time"][:, 1].numpy(), HOURS[1:])


# --- "samples" and "targets" ------------------------------------------------------------------------------------


def test_samples_and_targets_stand_for_every_array_of_their_side(store: Path) -> None:
    """The form of the README, with groups on both sides."""
    samples, targets = batch_of(
        store,
        store,
        offsets={"samples": (-1, 0), "targets": 1},
        dtype={"samples": "float16", "targets": "float64"},
        normalize={"targets": (280.0, 10.0)},
        variables={"samples": ["t2m", "time"], "targets": ["t2m"]},
    )
    rows = stored(store, "t2m")
    windows = np.stack([rows[:-2], rows[1:-1]], axis=1)
    assert np.array_equal(samples["t2m"].numpy(), windows.astype("f2"))
    assert np.array_equal(samples["time"].numpy(), np.stack([HOURS[:-2], HOURS[1:-1]], axis=1))
    assert targets["t2m"].dtype == torch.float64
    np.testing.assert_allclose(targets["t2m"].numpy(), (rows[2:].astype("f8") - 280) / 10)


def test_a_name_goes_before_its_side() -> None:
    mapping = {"a": np.ones((N, 2), "f4"), "b": np.ones(N, "f4")}
    samples, targets = batch_of(mapping, np.ones(N, "f4"), dtype={"b": "float64", "samples": "float16"})
    assert (samples["a"].dtype, samples["b"].dtype) == (torch.float16, torch.float64)
    assert targets.dtype == torch.float32
    samples, _ = batch_of(mapping, np.ones(N, "f4"), offsets={"samples": (0, 1), "samples['b']": 1, "targets": 0})
    assert (samples["a"].shape, samples["b"].shape) == ((N - 1, 2, 2), (N - 1,))
    samples, _ = batch_of(mapping, np.ones(N, "f4"), dtype={"samples": "float16", "b": None})
    assert samples["b"].dtype == torch.float32


def test_an_array_that_is_called_samples_goes_before_the_side() -> None:
    mapping = {"samples": np.ones(N, "f4"), "b": np.ones(N, "f4")}
    batch = batch_of(mapping, dtype={"samples": "float64"})
    assert (batch["samples"].dtype, batch["b"].dtype) == (torch.float64, torch.float32)


def test_sides_that_are_not_there_are_refused() -> None:
    mapping = {"apple": np.ones(N, "f4")}
    named: list[dict[str, Any]] = [
        {"dtype": {"targets": "f4"}},
        {"offsets": {"targets": 1}},
        {"normalize": {"targets": (0, 1)}},
    ]
    for options in named:
        with pytest.raises(ConfigError, match="names 'targets', must be one of 'apple'"):
            iterable_dataset(mapping, **options)
    with pytest.raises(ConfigError, match=r"dtype names 'aple', must be one of 'apple'; did you mean 'apple'\?"):
        ZarrIterableDataset(zarrfeed.open(mapping).cast({"aple": "f4"}))


def test_variables_of_both_sides(store: Path) -> None:
    samples, targets = batch_of(store, store, variables={"targets": ["count"], "samples": ["lat", "t2m"]})
    assert (list(samples), list(targets)) == (["lat", "t2m"], ["count"])
    samples, targets = batch_of(store, store, variables={"targets": ["count"]})
    assert (sorted(samples), list(targets)) == (["count", "t2m"], ["count"])
    for variables, message in (
        ({"target": ["count"]}, r"variables names 'target', must be one of 'samples', 'targets'; did you mean 'target"),
        ({"targets": ["t2n"]}, r"variables: 't2n' is not in targets, must be .*; did you mean 't2m'\?"),
        ({"targets": "count"}, "variables = 'count', must be a list of names"),
        ({"targets": []}, r"variables = \[\], must name at least one array"),
    ):
        with pytest.raises(ConfigError, match=message):
            ZarrIterableDataset(zarrfeed.open(store, store, variables=variables))


@pytest.mark.parametrize("of_rows", [False, True])
def test_text_is_left_alone_beside_numbers_and_named_alone(of_rows: bool) -> None:
    text = Items("samples", "word", None, (N,), 0)
    number = Items("samples", "x", "float32", (N,), 0)
    time = Items("samples", "time", "int64", (N,), 0, is_coordinate=True)
    assert by_field("dtype", 1, [text, number, time], of_rows=of_rows) == [None, 1, 1 if of_rows else None]
    assert by_field("dtype", 1, [text, time], of_rows=of_rows) == [None, 1]
    assert by_field("dtype", 1, [text], of_rows=of_rows) == [1]
    assert by_field("dtype", {"samples": 1, "word": 2}, [text, number], of_rows=of_rows) == [2, 1]


def test_variables_of_both_sides_of_what_xarray_opened(store: Path) -> None:
    opened = xr.open_zarr(store, decode_times=False, consolidated=False, chunks=None)
    dataset = ZarrDataset(
        zarrfeed.from_xarray(opened, opened, variables={"samples": ["t2m"], "targets": ["count", "step"]})
    )
    samples, targets = dataset[7]
    assert list(samples) == ["t2m"]
    assert {name: int(value) for name, value in targets.items()} == {"count": 7, "step": 9608}
