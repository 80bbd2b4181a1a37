"""Steps of values, such as log1p, clip and fill_nan, against NumPy, wherever samples come from."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
import xarray
import zarr

import zarrfeed
from tests.support.examples import tries
from tests.support.oracle import CODECS, AnyArray
from zarrfeed import ConfigError, Data, UnsupportedError, ZarrDataset, ZarrIterableDataset

pytestmark = pytest.mark.filterwarnings("ignore:invalid value|divide by zero|overflow:RuntimeWarning")

FUNCTIONS: dict[str, Callable[[AnyArray], AnyArray]] = {
    "log1p": np.log1p,
    "log": np.log,
    "sqrt": np.sqrt,
    "exp": np.exp,
}
N, CHANNELS, ROWS, COLUMNS = 24, 3, 5, 7
#: A call of a method, and what NumPy makes of batches (n, channels, ...), in their own dtype.
Step: TypeAlias = "tuple[Callable[[Data], Data], Callable[[AnyArray], AnyArray], str]"


def draw_step(rng: np.random.Generator, *, normalized: bool) -> Step:
    """Return a random step of samples (channels, rows, columns)."""
    kinds = [*FUNCTIONS, "clip", "minmax", "fill_nan", *([] if normalized else ["normalize"])]
    kind = str(rng.choice(kinds))
    if kind in FUNCTIONS:
        function = FUNCTIONS[kind]
        if rng.random() < 0.5:
            return lambda data: getattr(data, kind)(), function, kind
        index = [0, 2] if rng.random() < 0.5 else np.array([False, True, True])
        applied = np.zeros((CHANNELS, 1, 1), bool)
        applied[index] = True
        return (
            lambda data: getattr(data, kind)(axis=1, index=index),
            lambda x: np.where(applied, function(x), x),
            kind,
        )
    shape = {0: (), 1: (CHANNELS,), 2: (1, 1, COLUMNS)}[int(rng.integers(3))]
    axis = 1 if len(shape) == 1 else None
    a, b = np.sort(rng.normal(0, 3, (2, *shape)), axis=0)

    def spread(x: AnyArray, numbers: Any) -> AnyArray:
        return np.asarray(numbers if axis is None else numbers[:, None, None]).astype(x.dtype)

    if kind == "clip":
        return lambda data: data.clip(a, b, axis=axis), lambda x: np.clip(x, spread(x, a), spread(x, b)), kind
    if kind == "fill_nan":
        return (
            lambda data: data.fill_nan(a, axis=axis),
            lambda x: np.where(np.isnan(x), spread(x, a), x),
            kind,
        )
    if kind == "minmax":
        return lambda data: data.minmax(a, b, axis=axis), lambda x: (x - spread(x, a)) / spread(x, b - a), kind
    return (
        lambda data: data.normalize((a, b - a), axis=axis),
        lambda x: (x - spread(x, a)) / spread(x, b - a),
        kind,
    )


def draw_steps(rng: np.random.Generator) -> list[Step]:
    steps: list[Step] = []
    for _ in range(int(rng.integers(1, 5))):
        steps.append(draw_step(rng, normalized=any(kind == "normalize" for _, _, kind in steps)))
    return steps


def called(data: Data, steps: list[Step]) -> Data:
    for call, _, _ in steps:
        data = call(data)
    return data


def by_numpy(values: AnyArray, steps: list[Step], result: str) -> AnyArray:
    """Return what NumPy makes of decoded values, in the precision that docs/design/engine.md says, rounded once."""
    in_double = values.dtype.itemsize > 4 or result == "float64" or any(kind in FUNCTIONS for _, _, kind in steps)
    x = values.astype("f8" if in_double or values.dtype in (np.int32, np.uint32) else "f4")
    for _, step, _ in steps:
        x = step(x)
    return x.astype(result)


def check(got: torch.Tensor, wanted: AnyArray, steps: list[Step]) -> None:
    """Compare bit by bit, but for functions: within a unit in the last place, or what is left where values cancel."""
    values = got.numpy()
    assert values.dtype == wanted.dtype
    if any(kind in FUNCTIONS for _, _, kind in steps):
        ulp = np.finfo(wanted.dtype).eps
        rounding = 1e-12 * max((1.0, *np.abs(wanted[np.isfinite(wanted)].ravel())))
        np.testing.assert_allclose(values, wanted, rtol=max(ulp, 1e-11), atol=min(rounding, 1e-6))
    else:
        np.testing.assert_array_equal(values, wanted)


def draw_values(rng: np.random.Generator, dtype: str) -> AnyArray:
    shape = (N, CHANNELS, ROWS, COLUMNS)
    if np.dtype(dtype).kind != "f":
        return rng.integers(0, 90, shape).astype(dtype)
    values = rng.normal(0.5, 2, shape).astype(dtype)
    values[rng.random(shape) < 0.1] = np.nan
    return values


@pytest.mark.parametrize("seed", range(tries(20, 60)))
def test_any_sequence_is_that_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = draw_values(rng, str(rng.choice(["f4", "f8", "i2", "u1", ">f4", ">i2", "i4"])))
    steps = draw_steps(rng)
    if values.dtype.kind != "f":  # integers have no NaN before a step
        steps = [one for one in steps if one[2] != "fill_nan"] or [draw_step_of(rng, "clip")]
    chunks = (int(rng.integers(1, 9)), int(rng.integers(1, 4)), ROWS, int(rng.integers(1, 8)))
    codec = CODECS[str(rng.choice(["none", "blosc-many-blocks", "zstd", "gzip"]))]
    assert codec.v3 is not None
    stored = zarr.create_array(
        {}, shape=values.shape, chunks=chunks, dtype=values.dtype, compressors=codec.v3(values.dtype.itemsize)
    )
    stored[...] = values
    samples: Any = stored if rng.random() < 0.8 else values.astype(values.dtype.newbyteorder("="))
    result = "float64" if values.dtype == np.float64 else "float32"
    if rng.random() < 0.3:
        result = str(rng.choice(["float64", "float32", "float16"]))
    data = called(zarrfeed.open(samples), steps).cast(result)
    wanted = by_numpy(values.astype(values.dtype.newbyteorder("=")), steps, result)
    assert pickle.loads(pickle.dumps(data)) == data == called(zarrfeed.open(samples), steps).cast(result)
    with ZarrIterableDataset(data, batch_size=N, num_threads=2) as dataset:
        (batch,) = dataset
    check(batch, wanted, steps)
    with ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True) as dataset:
        for x, index in dataset:
            check(x, wanted[index.numpy()], steps)
    picked = rng.permutation(N)[:6]
    check(ZarrDataset(data)[picked.tolist()], wanted[picked], steps)


def draw_step_of(rng: np.random.Generator, kind: str) -> Step:
    while True:
        step = draw_step(rng, normalized=True)
        if step[2] == kind:
            return step


@pytest.mark.parametrize("seed", range(12))
def test_channels_keep_their_numbers_behind_windows_choices_patches_and_stores(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = draw_values(rng, "f4")
    steps = draw_steps(rng)
    wanted = by_numpy(values, steps, "float32")
    stored = zarr.create_array({}, shape=values.shape, chunks=(4, CHANNELS, ROWS, COLUMNS), dtype="f4")
    stored[...] = values
    data = called(zarrfeed.open(stored), steps)
    check(ZarrDataset(data.window((-1, 2)))[3], wanted[[3, 6]], steps)
    check(ZarrDataset(data.isel({1: [2, 0], 3: slice(1, 6)}))[4], wanted[4][[2, 0], :, 1:6], steps)
    check(ZarrDataset(data.isel({1: 1}))[4], wanted[4][1], steps)
    patches = data.patch({2: 3}, sampling="grid", stride={2: 2})
    first = ZarrDataset(patches)[0]
    check(first, wanted[0][:, :3], steps)
    two = zarrfeed.concat([zarrfeed.open(stored), values])
    check(ZarrDataset(called(two, steps))[[N + 3, 1]], wanted[[3, 1]], steps)
    joined = zarrfeed.concat([data, called(zarrfeed.open(stored), steps)])
    check(ZarrDataset(joined)[[N + 3, 1]], wanted[[3, 1]], steps)


def test_arrays_that_python_decodes_and_packed_arrays_are_stepped(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    raw = rng.integers(-5, 300, (N, 4)).astype("i2")
    raw[rng.random(raw.shape) < 0.2] = -9
    attributes: dict[str, Any] = {"scale_factor": 0.5, "add_offset": 1.25, "_FillValue": -9}
    decoded = np.where(raw == -9, np.nan, raw * 0.5 + 1.25)
    packed = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=raw.shape, chunks=(3, 4), dtype="i2", attributes=attributes
    )
    packed[...] = raw
    data = zarrfeed.open(packed).clip(0, 100).log1p().fill_nan(-1)
    with ZarrIterableDataset(data, batch_size=N) as dataset:
        (batch,) = dataset
    wanted = np.where(np.isnan(decoded), -1, np.log1p(np.clip(decoded, 0, 100))).astype("f4")
    np.testing.assert_array_max_ulp(batch.numpy(), wanted, 1)
    explained = str(ZarrIterableDataset(data, batch_size=4).explain())
    assert "clip 0 to 100, log1p, NaN filled with -1" in explained


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_mask_says_which_values_were_nan(num_workers: int) -> None:
    values = draw_values(np.random.default_rng(2), "f4")
    stored = zarr.create_array({}, shape=values.shape, chunks=(4, 1, ROWS, COLUMNS), dtype="f4")
    stored[...] = values
    data = zarrfeed.open({"x": stored, "y": np.arange(N)}).fill_nan(0.5, mask=True).normalize((1, 2)).cast("float16")
    assert [(one.name, one.dtype) for one in data.fields] == [("x", "float16"), ("x_is_nan", "bool"), ("y", "float16")]
    lacks = np.isnan(values)
    wanted = ((np.where(lacks, np.float32(0.5), values) - 1) / np.float32(2)).astype("f2")
    dataset = ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=num_workers) if num_workers else dataset
    seen = []
    for batch, index in loader:
        np.testing.assert_array_equal(batch["x"].numpy(), wanted[index.numpy()])
        np.testing.assert_array_equal(batch["x_is_nan"].numpy(), lacks[index.numpy()])
        seen += index.tolist()
    assert sorted(seen) == list(range(N))
    if not num_workers:
        plain = ZarrIterableDataset(zarrfeed.open({"x": stored, "y": np.arange(N)}), batch_size=N)
        masked = ZarrIterableDataset(data, batch_size=N)
        for one in (plain, masked):
            list(one)
        assert masked.stats().bytes_decoded == plain.stats().bytes_decoded  # decoded once for both


def test_a_mask_follows_windows_choices_and_stores() -> None:
    values = draw_values(np.random.default_rng(3), "f4")
    lacks = np.isnan(values)
    data = zarrfeed.open(values).fill_nan(0, mask=True)
    sample = ZarrDataset(data.window((0, 3)).isel({1: [2, 1]}))[5]
    np.testing.assert_array_equal(sample["samples_is_nan"].numpy(), lacks[[5, 8]][:, [2, 1]])
    both = zarrfeed.concat([zarrfeed.open(values), zarrfeed.open(values)]).fill_nan(0, mask=True)
    np.testing.assert_array_equal(ZarrDataset(both)[N + 7]["samples_is_nan"].numpy(), lacks[7])


def test_an_epoch_with_steps_and_masks_resumes() -> None:
    values = draw_values(np.random.default_rng(4), "f4")
    stored = zarr.create_array({}, shape=values.shape, chunks=(3, CHANNELS, ROWS, COLUMNS), dtype="f4")
    stored[...] = values
    data = zarrfeed.open(stored).log1p(axis=1, index=[1]).fill_nan(-2, mask=True)

    def make() -> ZarrIterableDataset:
        return ZarrIterableDataset(data, batch_size=4, shuffle=True, seed=3)

    whole = list(make())
    dataset = make()
    batches = iter(dataset)
    before = [next(batches), next(batches)]
    state = dataset.state_dict()
    again = make()
    again.load_state_dict(state)
    rest = [*before, *again]
    assert len(rest) == len(whole) == 6
    for one, other in zip(rest, whole, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_each_channel_of_a_stack_has_steps_of_its_own() -> None:
    rng = np.random.default_rng(5)
    tp, t2m = np.abs(rng.normal(0, 3, (2, N, 4, 6))).astype("f4")
    data = zarrfeed.open({"tp": tp, "t2m": t2m}).log1p("tp").normalize({"t2m": (1.5, 2), "tp": (0.5, 4)})
    data = data.stack(["t2m", "tp"])
    batch = ZarrDataset(data)[[4, 2]]
    wanted = np.stack([(t2m - np.float32(1.5)) / np.float32(2), ((np.log1p(tp.astype("f8")) - 0.5) / 4)], 1)
    np.testing.assert_array_max_ulp(batch.numpy(), wanted[[4, 2]].astype("f4"), 1)
    back = data.denormalize(batch)
    np.testing.assert_allclose(back.numpy(), np.stack([t2m, tp], 1)[[4, 2]], rtol=1e-5, atol=1e-5)


def test_statistics_are_of_the_values_that_normalize_gets(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    values = np.exp(rng.normal(0, 2, (40, 3))).astype("f4")
    dataset = xarray.Dataset({"tp": (("time", "channel"), values)})
    dataset.to_zarr(tmp_path / "x.zarr", zarr_format=3, consolidated=False)
    data = zarrfeed.open(tmp_path / "x.zarr", sample_dim="time")
    logs = np.log1p(values.astype("f8"))
    wanted = (logs - logs.mean(0)) / logs.std(0)
    stepped = data.log1p()
    file = tmp_path / "s.json"
    for _ in range(2):
        normalized = stepped.normalize("auto", axis="channel", stats=file)
        np.testing.assert_allclose(ZarrDataset(normalized)[list(range(40))]["tp"].numpy(), wanted, atol=1e-5)
    measured = zarrfeed.stats(stepped, axis="channel")
    assert measured["tp"].steps == zarrfeed.Statistics.load(file)["tp"].steps == "log1p"
    np.testing.assert_allclose(measured["tp"].mean, logs.mean(0), rtol=1e-6)
    np.testing.assert_array_equal(zarrfeed.stats(normalized, axis="channel")["tp"].mean, measured["tp"].mean)
    np.testing.assert_array_equal(
        ZarrDataset(stepped.normalize(measured))[3]["tp"].numpy(), ZarrDataset(normalized)[3]["tp"].numpy()
    )
    with pytest.raises(ConfigError, match="after log1p, the statistics are of those after values as they are decoded"):
        stepped.normalize(zarrfeed.stats(data, axis="channel"))
    with pytest.raises(ConfigError, match="of those after log1p"):
        data.normalize(measured)
    with pytest.raises(ConfigError, match="of other samples, or of another layout"):
        data.normalize("auto", axis="channel", stats=file)
    low, high = zarrfeed.stats(data)["tp"].min, zarrfeed.stats(data)["tp"].max
    scaled = ZarrDataset(data.minmax(low, high))[list(range(40))]["tp"]
    assert (float(scaled.min()), float(scaled.max())) == (0, 1)


def test_a_mask_may_be_a_channel_of_the_stack() -> None:
    values = np.where(np.arange(60).reshape(5, 3, 4) % 7 == 2, np.nan, 1.5).astype("f4")
    data = zarrfeed.open({"x": values, "y": np.ones_like(values)}).fill_nan(0, field="x", mask=True)
    stacked = data.cast({"x_is_nan": "float32"}).stack(["y", "x", "x_is_nan"])
    found = ZarrDataset(stacked)[range(5)].numpy()
    want = np.stack([np.nan_to_num(values), np.isnan(values)], axis=1)
    np.testing.assert_array_equal(found[:, 1:], want)
    np.testing.assert_array_equal(ZarrDataset(data.stack(["y", "x", "x_is_nan"]))[range(5)].numpy(), found)


def test_fill_nan_behind_stack_adds_masks_as_channels() -> None:
    values = np.where(np.arange(120).reshape(5, 2, 3, 4) % 7 == 2, np.nan, 1.5).astype("f4")
    data = zarrfeed.open({"x": values, "y": np.ones_like(values[:, 0]), "z": values[:, 1]})
    stacked = (
        data.stack(["y", "x"], name="in").fill_nan(0, mask=True).stack(["z", "z_is_nan"], name="z").cast("float16")
    )
    assert stacked.channels == {
        "in": ("y", "x[0]", "x[1]", "y_is_nan", "x_is_nan[0]", "x_is_nan[1]"),
        "z": ("z", "z_is_nan"),
    }
    found = ZarrDataset(stacked.window((0, 1)))[range(4)]
    assert found["in"].dtype == found["z"].dtype == torch.float16
    for step in (0, 1):
        rows = values[step : step + 4]
        want = np.concatenate(
            [np.ones((4, 1, 3, 4)), np.nan_to_num(rows), np.zeros((4, 1, 3, 4)), np.isnan(rows)], axis=1
        )
        np.testing.assert_array_equal(found["in"][:, step].numpy(), want)
        np.testing.assert_array_equal(found["z"][:, step, 1].numpy(), np.isnan(rows[:, 1]))
    some = data.stack(["y", "x"]).fill_nan(0, field="x", mask=True).select([3, 1])
    np.testing.assert_array_equal(ZarrDataset(some)[[0, 1]]["samples"][:, 3:].numpy(), np.isnan(values[[1, 3]]))


def test_sparse_rows_keep_their_zeros() -> None:
    group = zarr.create_group({})
    group.attrs.update({"encoding-type": "csr_matrix", "shape": [2, 3]})
    for name, values in {"data": [7.0, 8.0], "indices": [2, 0], "indptr": [0, 1, 2]}.items():
        group.create_array(name, data=np.array(values))
    data = zarrfeed.open(group)
    rows = ZarrDataset(data.log1p().clip(0, 2).dense())[[0, 1]].numpy()
    np.testing.assert_allclose(rows, [[0, 0, 2], [2, 0, 0]])
    np.testing.assert_allclose(ZarrDataset(data.log1p())[[0, 1]].to_dense().numpy(), np.log1p([[0, 0, 7], [8, 0, 0]]))
    for method, arguments in (("exp", ()), ("clip", (1, 2)), ("minmax", (0, 1))):
        with pytest.raises(UnsupportedError, match=f"{method} of .*zeros would not stay zeros"):
            getattr(data, method)(*arguments)
    with pytest.raises(UnsupportedError, match="a sparse matrix has no mask"):
        data.fill_nan(0, mask=True)


def ordinals(values: AnyArray) -> AnyArray:
    """Return the number of each float32 in their order, so that a difference counts units in the last place."""
    bits = values.view("i4").astype("i8")
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def check_floats(kind: str, bits: AnyArray) -> None:
    """Compare a function of the float32 values with these bits with NumPy's float64 value rounded once."""
    x = np.ascontiguousarray(bits, "u4").view("f4")
    got = ZarrDataset(getattr(zarrfeed.open(x[None]), kind)())[0].numpy()
    wanted = FUNCTIONS[kind](x.astype("f8")).astype("f4")
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(got), nan)
    distance = np.abs(ordinals(got) - ordinals(wanted))[~nan]
    assert distance.max(initial=0) <= (0 if kind == "sqrt" else 1)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_of_a_sample_of_all_floats_are_within_a_unit_in_the_last_place(kind: str) -> None:
    check_floats(kind, np.arange(0, 1 << 32, 4099, dtype="u8"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("part", range(16))
def test_functions_of_all_floats_are_within_a_unit_in_the_last_place(kind: str, part: int) -> None:
    for begin in range(part << 28, (part + 1) << 28, 1 << 24):
        check_floats(kind, np.arange(begin, begin + (1 << 24), dtype="u8"))
