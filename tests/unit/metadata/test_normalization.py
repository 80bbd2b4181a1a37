"""`normalize` by arrays that broadcast against a sample, and by the statistics of the samples themselves."""

from __future__ import annotations

import logging
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray
import zarr
from zarr.codecs import BloscCodec

import zarrfeed
from tests.support.examples import tries
from tests.support.oracle import AnyArray
from zarrfeed import ConfigError, Statistics
from zarrfeed.spec.values.value_step import Numbers


def broadcastable(rng: np.random.Generator, sample: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with at least two axes that broadcasts against a sample."""
    shape = tuple(n if rng.random() < 0.6 else 1 for n in sample)
    dropped = 0
    while dropped < len(shape) - 2 and rng.random() < 0.3:
        dropped += 1
    shape = shape[dropped:]
    return (1,) * (rng.integers(0, 2) + max(0, 2 - len(shape))) + shape


def expected(values: AnyArray, mean: AnyArray, std: AnyArray, result: str = "float32") -> AnyArray:
    """Return what NumPy makes of samples, in float32 where that holds every stored value."""
    exact = values.dtype == np.float32 or values.dtype.itemsize <= 2
    real = np.dtype("f4" if exact and result != "float64" else "f8")
    sample = values.shape[1:]
    mean, std = (np.broadcast_to(one.reshape(one.shape[-len(sample) :]), sample) for one in (mean, std))
    return ((values.astype(real) - mean.astype(real)) / std.astype(real)).astype(result)


def same_bits(got: torch.Tensor, wanted: AnyArray) -> None:
    assert got.numpy().dtype == wanted.dtype
    np.testing.assert_array_equal(got.numpy().view("u1"), np.ascontiguousarray(wanted).view("u1"))


def read(data: zarrfeed.Data, **options: Any) -> torch.Tensor:
    with zarrfeed.ZarrIterableDataset(data, batch_size=10_000, num_threads=2, **options) as dataset:
        (batch,) = dataset
    tensor: torch.Tensor = batch
    return tensor


@pytest.mark.parametrize("seed", range(tries(12, 40)))
def test_arrays_of_any_layout_are_normalised_as_numpy_broadcasts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ndim = int(rng.integers(3, 6))
    shape = (*(int(n) for n in rng.integers(1, 9, ndim - 1)), int(rng.choice([1, 5, 70, 1100])))
    sample_axis = int(rng.integers(ndim - 1))
    chunks = tuple(int(rng.integers(1, n + 1)) for n in shape)
    values = rng.integers(0, 100, shape).astype(rng.choice(["i2", "f4", "f8", "u1", "i4"]))
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        options["shards"] = tuple(2 * n for n in chunks)
    if rng.random() < 0.5:
        options["compressors"] = BloscCodec(cname="lz4")
    array = zarr.create_array({}, shape=shape, chunks=chunks, dtype=values.dtype, **options)
    array[...] = values
    rows = np.moveaxis(values, sample_axis, 0)
    given = broadcastable(rng, rows.shape[1:])
    mean, std = rng.normal(size=given), rng.uniform(0.5, 2, given)
    if rng.random() < 0.3:
        std = std.flat[:1].reshape(())
    result = "float64" if values.dtype == np.float64 else "float32"
    wanted = expected(rows, mean, np.broadcast_to(std, given), result)
    data = zarrfeed.open(array, sample_axis=sample_axis).normalize((mean, std))
    same_bits(read(data), wanted)
    in_memory = zarrfeed.open(values, sample_axis=sample_axis).normalize((mean, std))
    same_bits(read(in_memory), wanted)
    with zarrfeed.ZarrIterableDataset(data, batch_size=3, shuffle=True, seed=seed, return_index=True) as dataset:
        for batch, index in dataset:
            same_bits(batch, wanted[index.numpy()])
    if len(rows) > 2:
        windows = read(data.window((-1, 0, 1)))
        same_bits(windows, np.stack([wanted[i : i + 3] for i in range(len(rows) - 2)]))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
def test_the_result_is_rounded_once_to_any_float(name: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(280, 20, (9, 3, 700)).astype("f4")
    mean, std = rng.normal(280, 5, (3, 700)), rng.uniform(1, 20, (3, 700))
    got = read(zarrfeed.open(values).normalize((mean, std)).cast(name))
    wanted = torch.from_numpy(expected(values, mean, std, "float64" if name == "float64" else "float32"))
    assert torch.equal(got, wanted.to(getattr(torch, name)))


def test_packed_values_and_missing_chunks_are_normalised_by_point(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(280, 10, (12, 6, 9))
    values[rng.random(values.shape) < 0.1] = np.nan
    dataset = xarray.Dataset({"t2m": (("time", "lat", "lon"), values)})
    encoding = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768, "chunks": (5, 4, 4)}
    dataset.to_zarr(tmp_path / "a.zarr", encoding={"t2m": encoding}, consolidated=False)
    (tmp_path / "a.zarr" / "t2m" / "c" / "1" / "0" / "1").unlink()
    decoded = xarray.open_zarr(tmp_path / "a.zarr", consolidated=False).t2m.values
    mean, std = rng.normal(280, 5, (1, 6, 9)), rng.uniform(1, 20, (1, 6, 9))
    array = zarr.open_array(tmp_path / "a.zarr" / "t2m", mode="r")
    raw = np.asarray(array[...]).astype("f8")
    unpacked = np.where(raw == -32768, np.nan, raw * 0.01 + 273.15)
    np.testing.assert_allclose(unpacked, decoded, rtol=1e-6)
    got = read(zarrfeed.open(tmp_path / "a.zarr" / "t2m").normalize((mean, std)))
    np.testing.assert_array_equal(got.numpy(), ((unpacked - mean) / std).astype("f4"))
    assert (raw[5:10, :4, 4:8] == array.fill_value).all()  # of the chunk that is missing


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((4, 1), {}, r"shape \(4, 1\) does not broadcast against a sample, shape \(3, 5\)"),
        ((2, 3, 5), {}, r"shape \(2, 3, 5\) does not broadcast"),
        ((1, 2, 3, 5), {}, r"shape \(1, 2, 3, 5\) does not broadcast"),
        ((3, 5), {"axis": 1}, r"got arrays of shape \(3, 5\) with axis = 1, must have one axis"),
        ((5,), {}, r"5 values: axis must say along which axis; or give arrays with the axes of a sample"),
        ((3, 1), {"axis": [1]}, r"axis = \[1\], must be an axis"),
        ((3, 1), {"stats": "a.json"}, r"stats = 'a.json' is for normalize\('auto'\)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(shape: tuple[int, ...], options: dict[str, Any], message: str) -> None:
    data = zarrfeed.open(np.zeros((7, 3, 5), "f4"))
    with pytest.raises(ConfigError, match=message):
        data.normalize((np.zeros(shape), np.ones(shape)), **options)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan])
def test_one_bad_number_among_many_is_refused(bad: float) -> None:
    std = np.ones((30, 50))
    std[7, 9] = bad
    with pytest.raises(ConfigError, match="must be finite and above 0"):
        zarrfeed.open(np.zeros((7, 30, 50), "f4")).normalize((0, std))


def test_what_it_does_is_said_printed_pickled_and_compared() -> None:
    values = np.zeros((7, 30, 50), "f4")
    mean, std = np.arange(1500.0).reshape(1, 30, 50), np.ones((1, 1, 50))
    data = zarrfeed.open(values).normalize((mean, std))
    assert "normalize((<1x30x50 float64, sha256" in repr(data)
    with zarrfeed.ZarrIterableDataset(data, batch_size=2) as dataset:
        assert "float32 -> float32, normalised by arrays of shape (1, 30, 50)" in str(dataset.explain())
    again = pickle.loads(pickle.dumps(data))
    assert again == data
    assert hash(again) == hash(data)
    assert data != zarrfeed.open(values).normalize((mean + 1, std))
    same_bits(read(again), expected(values, mean, np.broadcast_to(std, mean.shape)))
    assert Numbers.of([1, 2]) == Numbers.of((1.0, 2.0))
    assert Numbers.of([1, 2]) != [1, 2]
    assert len({Numbers.of([1, 2]), Numbers.of([1, 2]), Numbers.of([2, 1])}) == 2


# --- normalize("auto") --------------------------------------------------------------------------------------------


def weather(path: Path) -> tuple[Path, dict[str, AnyArray]]:
    rng = np.random.default_rng(5)
    values = {"t": rng.normal(270, 20, (40, 3, 4, 5)), "z": rng.normal(5000, 300, (40, 4, 5))}
    values = {name: array.astype("f4") for name, array in values.items()}
    dims = ("time", "level", "lat", "lon")
    variables = {"t": (dims, values["t"]), "z": ((dims[0], *dims[2:]), values["z"])}
    xarray.Dataset(variables, {"time": np.arange(40)}).to_zarr(path / "a.zarr", consolidated=False)
    return path / "a.zarr", values


@pytest.mark.parametrize("axis", [None, "level", ("lat", "lon"), 1])
def test_auto_normalises_by_the_statistics_of_the_selection(axis: Any, tmp_path: Path) -> None:
    path, values = weather(tmp_path)
    data = zarrfeed.open(path, sample_dim="time").select(slice(5, 35)).normalize("auto", axis=axis).cast("float64")
    axes: dict[Any, list[tuple[int, ...]]] = {None: [(), ()], "level": [(1,), ()], 1: [(1,), (1,)]}
    kept = axes.get(axis, [(2, 3), (1, 2)])
    with zarrfeed.ZarrIterableDataset(data, batch_size=30) as dataset:
        (batch,) = dataset
    for (name, array), own in zip(values.items(), kept, strict=True):
        got = batch[name].numpy()
        over = tuple(a for a in range(array.ndim) if a not in own)
        np.testing.assert_allclose(got.mean(over), 0, atol=1e-12)
        np.testing.assert_allclose(got.std(over), 1, rtol=1e-12)
        chosen = array[5:35].astype("f8")
        wanted = (chosen - chosen.mean(over, keepdims=True)) / chosen.std(over, keepdims=True)
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
    assert f".normalize('auto'{'' if axis is None else f', axis={axis!r}'})" in repr(data)


def test_auto_says_that_it_measures_and_uses_a_file_that_fits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "zarrfeed")
    path, _ = weather(tmp_path)
    file = tmp_path / "stats.json"
    data = zarrfeed.open(path, sample_dim="time")
    measured = data.normalize("auto", axis="level")
    kept = data.normalize("auto", axis="level", stats=file)
    with monkeypatch.context() as patched:
        patched.setattr("zarrfeed.tools.stats._Run.all", None)  # nothing is measured any more
        used = data.normalize("auto", axis="level", stats=file)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO"]
    assert [record.getMessage() for record in caplog.records] == [
        "normalize('auto'): measures 40 samples now; stats='FILE' would keep the result",
        f"normalize('auto'): measures 40 samples now; the result goes to {file}",
        f"normalize('auto'): by {file}",
    ]
    assert measured == kept == used
    assert pickle.loads(pickle.dumps(used)) == used
    assert repr(used).endswith(f".normalize('auto', axis='level', stats={str(file)!r})")


def test_a_file_with_statistics_of_other_samples_is_refused_and_stays(tmp_path: Path) -> None:
    values = np.arange(40.0).reshape(20, 2)
    train, validation = zarrfeed.open(values).split((0.5, 0.5), by="contiguous")
    file = tmp_path / "stats.json"
    normalised = train.normalize("auto", stats=file)
    content = file.read_bytes()
    with pytest.raises(ConfigError, match=r"does not fit: those of samples are of other samples.*Statistics\.load"):
        validation.normalize("auto", stats=file)
    with pytest.raises(ConfigError, match=r"those of samples are along \(\), not \(1,\)"):
        train.normalize("auto", axis=1, stats=file)
    assert file.read_bytes() == content
    both = [part.normalize(Statistics.load(file)) for part in (train, validation)]
    mean, std = values[:10].mean(), values[:10].std()
    np.testing.assert_allclose(read(both[1]).numpy(), (values[10:] - mean) / std)
    same_bits(read(both[0]), read(normalised).numpy())
    for text in ("{}", "[" * 100_000):
        file.write_text(text)
        with pytest.raises(ConfigError, match="holds no statistics"):
            train.normalize("auto", stats=file)


def test_auto_leaves_targets_coordinates_and_text_alone() -> None:
    x, y = np.arange(8.0), np.arange(8.0)
    group = zarr.create_group({})
    for name, values in (("x", x), ("time", x)):
        group.create_array(name, shape=(8,), dtype="f8", dimension_names=("time",))[...] = values
    group.create_array("name", shape=(8,), dtype=str, dimension_names=("time",))[...] = np.array(list("abcdefgh"))
    data = zarrfeed.open(group, y, variables={"samples": ["x", "time", "name"]}).normalize("auto")
    with zarrfeed.ZarrIterableDataset(data, batch_size=8) as dataset:
        ((samples, targets),) = dataset
    np.testing.assert_array_equal(samples["x"], (x - 3.5) / x.std())
    np.testing.assert_array_equal(samples["time"], x)
    np.testing.assert_array_equal(targets, y)
    assert samples["name"] == list("abcdefgh")


def test_what_is_constant_becomes_zero_and_what_is_missing_stays_missing() -> None:
    values = np.array([[1.0, 5, np.nan], [3, 5, np.nan]])
    got = read(zarrfeed.open(values).normalize("auto", axis=1))
    np.testing.assert_array_equal(got, [[-1, 0, np.nan], [1, 0, np.nan]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda data: data.normalize("automatic"), r"mean_std = 'automatic', must be \(mean, std\), .*or 'auto'"),
        (lambda data: data.normalize("auto", axis="level"), "axis = 'level': no array has dimension names"),
        (lambda data: data.normalize((0, 1)).normalize("auto"), "it was normalised before"),
        (lambda data: data.normalize("auto").normalize((0, 1)), "it was normalised before"),
        (lambda _: zarrfeed.open(np.array([1, math.inf])).normalize("auto"), "it has infinite values"),
    ],
)
def test_what_auto_cannot_do_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(zarrfeed.open(np.zeros((4, 3))))


def test_a_store_that_grows_keeps_the_statistics_of_its_first_version(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    array = zarr.create_array(path, shape=(8,), chunks=(4,), dtype="f8")
    array[...] = np.arange(8.0)
    data = zarrfeed.open(path, refresh="epoch").normalize("auto")
    array.append(np.arange(8.0, 12.0))
    got = []
    with zarrfeed.ZarrIterableDataset(data, batch_size=12) as dataset:
        got = [batch.numpy() for batch in dataset]
    np.testing.assert_allclose(np.concatenate(got), (np.arange(12.0) - 3.5) / np.arange(8.0).std())
