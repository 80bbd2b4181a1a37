"""Static arrays as channels of a stack, as NumPy would broadcast and concatenate them."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from tests.support.oracle import AnyArray
from zarrfeed import ConfigError, ZarrDataLoader, ZarrDataset, ZarrIterableDataset

N = 24
GRID = (4, 6)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Write variables whose values tell samples apart, and arrays without the sample dimension; one is packed."""
    group = zarr.create_group(tmp_path / "a.zarr")
    for name, shape, chunks, dtype in (
        ("t2m", (N, *GRID), (3, 2, 6), "f4"),
        ("t", (N, 2, *GRID), (5, 2, 4, 6), "f4"),
        ("lsm", GRID, (2, 4), "f8"),
        ("soil", (3, *GRID), (2, 3, 4), "i2"),
    ):
        dims = ("time", "level", "lat", "lon") if len(shape) == 4 else ("time", "lat", "lon")[-len(shape) :]
        dims = ("layer", "lat", "lon") if name == "soil" else dims
        array = group.create_array(name, shape=shape, chunks=chunks, dtype=dtype, dimension_names=dims)
        array[...] = np.random.default_rng(len(name)).integers(-999, 999, shape)
    group["soil"].attrs.update({"scale_factor": 0.1, "_FillValue": 7})
    return tmp_path / "a.zarr"


def opened(store: Path, *variables: str, **options: Any) -> zarrfeed.Data:
    return zarrfeed.open(store, sample_dim="time", variables=list(variables or ("t2m", "t")), **options)


def values_of(store: Path, *names: str) -> list[AnyArray]:
    return [np.asarray(zarr.open_array(store / name, mode="r")[...]) for name in names]


def of_all(values: AnyArray, dtype: str = "f4") -> AnyArray:
    """Return what all samples have of a static array: a channel for each index before the grid."""
    channels = values.astype(dtype).reshape(-1, *GRID)
    return np.broadcast_to(channels, (N, *channels.shape))


def decoded(soil: AnyArray) -> AnyArray:
    return np.where(soil == 7, np.nan, soil * 0.1)


def check(data: zarrfeed.Data, wanted: AnyArray, **options: Any) -> None:
    """Read the samples of two ranks, shuffled, in two epochs; compare them by their index."""
    for rank in range(2):
        more: dict[str, Any] = {"rank": rank, "world_size": 2, "even": "off", "return_index": True}
        with ZarrIterableDataset(data, batch_size=7, shuffle=True, **more, **options) as dataset:
            for _ in range(2):
                for batch, index in dataset:
                    assert batch.dtype == torch.from_numpy(wanted[:1]).dtype
                    np.testing.assert_array_equal(batch, wanted[index.numpy()])


def test_stored_and_given_arrays_are_channels_that_all_samples_have(store: Path) -> None:
    t2m, t, lsm, soil = values_of(store, "t2m", "t", "lsm", "soil")
    mask = torch.arange(24).reshape(GRID) % 3 == 0
    data = opened(store).static("lsm", "soil", mask=mask).stack(["lsm", "t2m", "soil", "t", "mask"])
    parts = [of_all(lsm), t2m[:, None], of_all(decoded(soil)), t, of_all(mask.numpy())]
    wanted = np.concatenate(parts, axis=1)
    check(data, wanted)
    np.testing.assert_array_equal(ZarrDataset(data)[[3, 0, 3]], wanted[[3, 0, 3]])
    names = ("lsm", "t2m", "soil[0]", "soil[1]", "soil[2]", "t[0]", "t[1]", "mask")
    assert data.channels == {"samples": names}


def test_they_have_the_dtype_of_the_stack_and_their_own_normalisation(store: Path) -> None:
    t2m, lsm, soil = values_of(store, "t2m", "lsm", "soil")
    data = opened(store, "t2m").static("lsm", "soil").cast("float64").stack(["t2m", "soil", "lsm"])
    layers = np.array([1.0, 2.0, 3.0])
    data = data.normalize({"lsm": (3, 7)}).normalize({"soil": (layers, 2)}, axis="layer")
    scaled = (decoded(soil) - layers[:, None, None]) / 2
    parts = [t2m[:, None].astype("f8"), of_all(scaled, "f8"), of_all((lsm - 3) / 7, "f8")]
    check(data, np.concatenate(parts, axis=1))
    later = opened(store, "t2m").static("lsm").stack(["t2m", "lsm"]).normalize((1, 2)).cast("float16")
    both = np.stack([(t2m - 1) / 2, of_all(lsm)[:, 0]], axis=1)
    check(later, both.astype("f2"))


@pytest.mark.parametrize("stacks_first", [True, False])
def test_padded_rows_of_windows_have_them_too(stacks_first: bool, store: Path) -> None:
    t2m, lsm = values_of(store, "t2m", "lsm")
    data = opened(store).static("lsm").cast("float32")
    asked: dict[str, Any] = {"segment_ends": [5, N], "pad": -1, "mask": True}
    if stacks_first:
        data = data.stack(["lsm", "t2m"], name="x").window((-1, 0), **asked)
    else:
        data = data.window((-1, 0), **asked).stack(["lsm", "t2m"], name="x")
    batch = ZarrDataset(data)[[0, 4, 5]]
    assert set(batch) == {"t", "x", "t_is_pad", "x_is_pad"}
    rows = np.array([[-1, 0], [3, 4], [-1, 5]])
    values = np.where((rows < 0)[..., None, None], -1, t2m[rows])
    wanted = np.stack([np.broadcast_to(lsm, values.shape), values], axis=2)
    np.testing.assert_array_equal(batch["x"], wanted)
    np.testing.assert_array_equal(batch["x_is_pad"], rows < 0)


def test_offsets_may_be_drawn_and_change(store: Path) -> None:
    t2m, lsm = values_of(store, "t2m", "lsm")
    data = opened(store, "t2m").static("lsm").stack(["t2m", "lsm"], name="x").window((0, zarrfeed.lead(1, 3)))
    with ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True) as dataset:
        for batch, index in dataset:
            rows = np.stack([index, index + batch["lead"]], axis=1)
            np.testing.assert_array_equal(batch["x"][:, :, 0], t2m[rows])
            np.testing.assert_array_equal(batch["x"][:, :, 1], np.broadcast_to(lsm, (*rows.shape, *GRID)))
        dataset.set_offsets((0, 1, zarrfeed.lead(2, 4)))
        batch, index = next(iter(dataset))
        np.testing.assert_array_equal(batch["x"][:, 1, 0], t2m[index + 1])
        np.testing.assert_array_equal(batch["x"][:, :, 1], np.broadcast_to(lsm, (5, 3, *GRID)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_values_are_read_when_the_dataset_is_made_and_never_again(store: Path) -> None:
    t2m, lsm = values_of(store, "t2m", "lsm")
    wanted = np.stack([t2m, of_all(lsm)[:, 0]], axis=1)
    data = opened(store, "t2m").static("lsm").stack(["t2m", "lsm"])
    assert pickle.loads(pickle.dumps(data)) == data
    dataset = ZarrIterableDataset(data, batch_size=7, shuffle=True, return_index=True)
    picked = pickle.loads(pickle.dumps(ZarrDataset(data)))
    assert dataset.data == data
    shutil.rmtree(store / "lsm")
    np.testing.assert_array_equal(picked[[5, 1]], wanted[[5, 1]])
    for workers in (0, 2):
        seen = []
        for batch, index in ZarrDataLoader(dataset, num_workers=workers, timeout=240 * bool(workers)):
            np.testing.assert_array_equal(batch, wanted[index.numpy()])
            seen += index.tolist()
        assert sorted(seen) == list(range(N))
    with pytest.raises(zarrfeed.StoreReadError, match="lsm"):
        ZarrDataset(data)


def test_a_damaged_chunk_is_an_error_when_the_dataset_is_made(store: Path) -> None:
    (store / "lsm" / "c" / "1" / "1").write_bytes(b"damaged")
    data = opened(store).static("lsm").stack(["t2m", "lsm"], name="x")
    for make in (
        lambda: ZarrIterableDataset(data, batch_size=2, faults={"on_error": "skip"}),
        lambda: ZarrDataset(data),
    ):
        with pytest.raises(zarrfeed.CorruptChunkError, match=r"lsm chunk c/1/1"):
            make()


def test_a_store_that_grows_has_them_in_every_version(store: Path) -> None:
    (lsm,) = values_of(store, "lsm")
    data = opened(store, "t2m", refresh="epoch").static("lsm").stack(["lsm", "t2m"])
    with ZarrIterableDataset(data, batch_size=40, return_index=True) as dataset:
        shutil.rmtree(store / "lsm")
        zarr.open_array(store / "t2m").append(np.full((6, *GRID), 5, "f4"))
        ((batch, index),) = dataset
    assert len(index) == N + 6
    np.testing.assert_array_equal(batch[:, 0], np.broadcast_to(lsm, (N + 6, *GRID)))
    np.testing.assert_array_equal(batch[N:, 1], np.full((6, *GRID), 5))


def test_other_arrays_and_methods_stay_as_they_were(store: Path) -> None:
    lsm, soil, t2m = values_of(store, "lsm", "soil", "t2m")
    data = zarrfeed.open({"a": t2m, "b": t2m + 1}, {"y": np.arange(N)}).static(lsm=lsm, soil=soil)
    data = data.cast("float32").stack(["a", "lsm"], name="x").select(slice(4, None))
    data = data.split((0.5, 0.5), by="contiguous")[1]
    data = data.time_features("hour", coords=np.zeros(N, "M8[s]")).normalize("auto")
    samples, targets = ZarrDataset(data)[[0, 2]]
    assert list(samples) == ["b", "x", "time_features", "soil"]
    np.testing.assert_array_equal(samples["x"][:, 1], np.broadcast_to(lsm, (2, *GRID)))
    np.testing.assert_array_equal(targets["y"], [14, 16])
    assert list(zarrfeed.stats(data).fields) == ["b", "a", "y"]
    assert samples["soil"].stride(0) == 0


def test_it_is_said_printed_and_compared(store: Path) -> None:
    data = opened(store, "t2m").static("lsm", mask=np.ones(GRID)).stack(["t2m", "mask", "lsm"])
    assert repr(data).endswith(".stack(['t2m', 'mask', 'lsm'])")
    assert data == opened(store, "t2m").static("lsm", mask=np.ones(GRID)).stack(["t2m", "mask", "lsm"])
    assert data != opened(store, "t2m").static("lsm", mask=np.zeros(GRID)).stack(["t2m", "mask", "lsm"])
    other = opened(store, "t2m").static(mask=np.ones(GRID), lsm=store / "soil")
    assert data != other.stack(["t2m", "mask", "lsm"])
    assert "in memory, the same for all samples" in data._repr_html_()
    with ZarrIterableDataset(data, batch_size=2) as dataset:
        page = str(dataset.explain())
    assert f"{store}/lsm" in page
    assert "(4, 6) float64, the same for all samples" in page
    assert "channel 2 of 3 of samples" in page
    assert "converted: float64 -> float32" in page


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d.stack(["t2m", "lsn"]), "'lsn', must be one of 't2m', 't', 'lsm', 'cell'; did you mean 'lsm'"),
        (lambda d: d.stack(["lsm"]), "lsm'.*: each is the same for all samples; name an array with samples, too"),
        (lambda d: d.stack(["t2m", "cell"]), r"samples\['cell'\] ends with the axes \(\), one of .* with \(4, 6\)"),
        (lambda d: d.stack(["t2m", "lsm", "lsm"]), "'lsm' is named twice"),
        (lambda d: d.stack(["t2m", "lsm"]).static(lsm=1), "the samples already have an array of this name"),
        (lambda d: d.stack(["t2m", "lsm"], name="lsm").static(lsm=1), "the samples already have an array of this name"),
        (lambda d: d.stack(["t2m"], name="lsm"), "have an array 'lsm'; give the tensor another name"),
        (lambda d: d.stack(["t2m", "lsm"]).cast({"lsm": "float64"}), "float64.*cast"),
        (lambda d: d.stack(["t2m", "lsm"]).window({"lsm": (0, 1), "t2m": (0, 1)}), "has the windows of its stack"),
        (lambda d: zarrfeed.concat([d.stack(["t2m", "lsm"]), d]), r"call stack\(\) after"),
        (lambda d: zarrfeed.join({"a": d.stack(["t2m", "lsm"]), "b": d}), "'a' has a stack"),
    ],
)
def test_what_cannot_be_stacked_is_refused(make: Any, message: str, store: Path) -> None:
    zarr.open_group(store).create_array("time", data=np.arange(N), dimension_names=("time",))
    with pytest.raises(ConfigError, match=message):
        make(opened(store).static("lsm", cell=3.5))
