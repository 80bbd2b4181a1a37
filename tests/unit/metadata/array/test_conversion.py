"""`dtype=`, `normalize=` and `transform=`: what becomes of items between the store and the batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.flat import iterable_dataset
from tests.support.oracle import DTYPES, ZARR_FORMATS, AnyArray, Layout, ZarrFormat, no_thread_left, numbered
from zarrfeed import ConfigError, ZarrDataLoader, ZarrIterableDataset

#: Names of the dtypes that convert, as NumPy knows them.
REAL = [np.dtype(code).name for code in DTYPES if np.dtype(code).kind != "c"]
FLOATS = ("float16", "bfloat16", "float32", "float64")


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)


def to_numpy(tensor: torch.Tensor) -> AnyArray:
    """Return a tensor's values; bfloat16 as ml_dtypes'."""
    if tensor.dtype == torch.bfloat16:
        values: AnyArray = tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        return values
    return tensor.numpy()


def read(*args: Any, **options: Any) -> Any:
    """Read all samples in order, as one batch."""
    with iterable_dataset(*args, batch_size=100_000, **options) as dataset:
        (batch,) = dataset
    return batch


def rounded(values: AnyArray, name: str) -> AnyArray:
    """Round to a dtype once: through long double, which holds all items, where NumPy would round twice."""
    if name != "bfloat16":
        plain: AnyArray = values.astype(numpy_dtype(name))
        return plain
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        kept = values.astype(np.longdouble)
        # to float32 by truncation, with the last bit set where something was cut off: rounding that is rounding once
        single = kept.astype("f4")
        away = np.abs(single.astype(np.longdouble)) > np.abs(kept)
        single = np.where(away, np.nextafter(single, np.float32(0)), single)
        inexact = single.astype(np.longdouble) != kept
        bits = single.view("u4") | inexact.astype("u4")
        odd: AnyArray = bits.view("f4").astype(ml_dtypes.bfloat16)
        return odd
    if values.dtype == np.float64 or values.dtype.itemsize == 4:
        wide = values.astype("f8")
        return rounded_from_double(wide)
    return values.astype("f4").astype(ml_dtypes.bfloat16)


def rounded_from_double(values: AnyArray) -> AnyArray:
    """Round float64 to bfloat16 by choosing among the neighbours of NumPy's (twice rounded) result."""
    with np.errstate(all="ignore"):
        first = values.astype("f4").astype(ml_dtypes.bfloat16)
        bits = first.view("u2").astype(np.int64)
        best = bits.copy()
        for step in (-1, 1):
            other = np.clip(bits + step, 0, 0xFFFF).astype("u2")
            there = other.view(ml_dtypes.bfloat16).astype("f8")
            distance = np.abs(there - values)
            nearest = np.abs(best.astype("u2").view(ml_dtypes.bfloat16).astype("f8") - values)
            same_sign = (other >> 15) == (bits >> 15).astype("u2")
            better = (distance < nearest) | ((distance == nearest) & (other % 2 == 0) & (best % 2 == 1))
            best = np.where(
                better & same_sign & np.isfinite(there) & np.isfinite(first.astype("f8")), other.astype(np.int64), best
            )
    result: AnyArray = best.astype("u2").view(ml_dtypes.bfloat16)
    return result


def assert_same_values(got: AnyArray, expected: AnyArray) -> None:
    """Fail unless both have the same dtype and bits; NaNs may have any payload."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    unequal = got.view(f"u{got.itemsize}") != expected.view(f"u{got.itemsize}")
    both_nan = np.isnan(got.astype("f8")) & np.isnan(expected.astype("f8"))
    assert not (unequal & ~both_nan).any()


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("source", REAL)
def test_every_real_dtype_becomes_every_float_as_numpy_rounds_it(source: str, tmp_path: Path) -> None:
    code = np.dtype(source).str[1:]
    layout = Layout(shape=(40, 3, 30), chunks=(7, 2, 30), dtype=code, codec="blosc-lz4-shuffle")
    data = layout.data()
    layout.write(tmp_path / "x")
    for name in FLOATS:
        expected = rounded(data, name)
        assert_same_values(to_numpy(read(tmp_path / "x", dtype=name)), expected)
        assert_same_values(to_numpy(read(data, dtype=name)), expected)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_16_bit_pattern_becomes_every_float_as_numpy_does(name: str) -> None:
    patterns = np.arange(2**16, dtype="u2")[None, :]
    for target in FLOATS:
        expected = patterns.view(numpy_dtype(name)).astype("f4").astype(numpy_dtype(target))
        items = torch.from_numpy(patterns).view(getattr(torch, name))
        assert_same_values(to_numpy(read(items, dtype=target)), expected)


@pytest.mark.parametrize("source", REAL)
def test_integers_become_integers_only_where_nothing_is_lost(source: str) -> None:
    data = numbered((4, 30), np.dtype(source).str[1:])
    for target in REAL:
        if target in FLOATS or target == source:
            continue
        if source not in FLOATS and np.can_cast(source, target, "safe"):
            assert_same_values(to_numpy(read(data, dtype=target)), data.astype(target))
        else:
            with pytest.raises(ConfigError, match=f"samples: cannot convert {source} to {target} without"):
                ZarrIterableDataset(zarrfeed.open(data).cast(target))


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("sample_axis", [0, 2])
@pytest.mark.parametrize("codec", ["none", "blosc-zstd-shuffle", "zstd"])
def test_layouts_of_all_kinds_are_converted(
    zarr_format: ZarrFormat, big_endian: bool, sample_axis: int, codec: str, tmp_path: Path
) -> None:
    layout = Layout(zarr_format, (9, 5, 8), (4, 3, 3), "i2", big_endian, codec, sample_axis)
    if zarr_format == 2:
        layout = layout.but(order="F")
    layout.write(tmp_path / "x")
    rows = np.moveaxis(layout.data(), sample_axis, 0)
    mean = np.arange(5) * 3.7
    channels = mean[:, None] if sample_axis == 0 else mean[None, :]
    expected = ((rows.astype("f4") - channels.astype("f4")) / np.float32(2.5)).astype("f4")
    options: dict[str, Any] = {"sample_axis": sample_axis, "normalize": (mean, 2.5), "normalize_axis": 1}
    assert_same_values(read(tmp_path / "x", **options).numpy(), expected)
    with iterable_dataset(
        tmp_path / "x", batch_size=4, shuffle=True, return_index=True, num_threads=2, **options
    ) as dataset:
        for x, index in dataset:
            assert_same_values(x.numpy(), expected[index.numpy()])


@given(
    source=st.sampled_from(REAL),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 7), st.integers(1, 90)),
    axis=st.sampled_from([1, 2, 3, -1, None]),
    target=st.sampled_from([None, "float32", "float64"]),
)
def test_normalize_is_minus_mean_over_std_along_any_axis(
    source: str, shape: tuple[int, ...], axis: int | None, target: str | None
) -> None:
    random = np.random.default_rng(len(source) + sum(shape))
    data = random.integers(0, 2 if source == "bool" else 100, shape).astype(source)
    result = target or (source if source in FLOATS else "float32")
    exact_in_float32 = source == "float32" or np.dtype(source).itemsize <= 2
    real = np.dtype("f4" if exact_in_float32 and result != "float64" else "f8")
    size = () if axis is None else (shape[axis],)
    mean, std = random.normal(size=size), random.uniform(0.5, 2, size)
    aligned = [np.expand_dims(v, tuple(range(1, len(shape) - axis % len(shape)))) if axis else v for v in (mean, std)]
    expected = (data.astype(real) - aligned[0].astype(real)) / aligned[1].astype(real)
    got = read(data, dtype=target, normalize=(mean, std), normalize_axis=axis)
    assert_same_values(got.numpy(), expected.astype(result))


def test_arguments_name_fields_of_samples_and_of_targets() -> None:
    x = {"a": np.ones((4, 2), "u1"), "b": np.ones((4, 3), "i4")}
    y = {"b": np.ones((4,), "f8"), "c": np.ones((4,), "i8")}

    def dtypes(**options: Any) -> list[torch.dtype]:
        samples, targets = read(x, y, **options)
        return [tensor.dtype for part in (samples, targets) for tensor in part.values()]

    stored = [torch.uint8, torch.int32, torch.float64, torch.int64]
    assert dtypes() == stored
    assert dtypes(dtype=torch.bfloat16) == [torch.bfloat16] * 2 + stored[2:]
    assert dtypes(normalize=(0, 1)) == [torch.float32] * 2 + stored[2:]
    assert dtypes(dtype={"a": "float16", "c": np.float32}) == [torch.float16, torch.int32, torch.float64, torch.float32]
    assert dtypes(dtype={"targets['b']": float, "samples['b']": "f4"})[1:3] == [torch.float32, torch.float64]
    assert dtypes(normalize={"c": (1.0, 2.0)})[3] == torch.float32
    single = read(x["a"], y["c"], dtype={"samples": "float32", "targets": "float64"})
    assert [tensor.dtype for tensor in single] == [torch.float32, torch.float64]
    for options, message in (
        ({"dtype": {"z": "f4"}}, "dtype names 'z', must be one of 'a', 'b', 'b', 'c'"),
        ({"normalize": {"b": (0, 1)}}, r"normalize names 'b', which is in samples and in targets: write"),
    ):
        with pytest.raises(ConfigError, match=message):
            iterable_dataset(x, y, **options)


@pytest.mark.parametrize(
    ("dtype", "options", "message"),
    [
        ("c8", {"dtype": "float32"}, "samples: cannot convert complex64 to float32; supported: bool"),
        ("c8", {"normalize": (0, 1)}, "samples: cannot convert complex64 to float32"),
        ("f4", {"dtype": "complex64"}, "samples: cannot convert float32 to complex64"),
        ("f4", {"dtype": "int64"}, "cannot convert float32 to int64 without losing values; supported: any float dtype"),
        ("i4", {"dtype": "int16"}, "cannot convert int32 to int16 without losing"),
        ("i4", {"dtype": "no dtype"}, "dtype of samples = 'no dtype', must be a dtype"),
        ("i4", {"dtype": "int64", "normalize": (0, 1)}, "int64 cannot hold normalised values, which are floats"),
        ("i4", {"normalize": 3}, r"normalize of samples: must be \(mean, std\)"),
        ("i4", {"normalize": (1, 2, 3)}, r"normalize of samples: must be \(mean, std\)"),
        ("i4", {"normalize": ([1, 2], [1, 2, 3])}, r"normalize of samples: must be \(mean, std\)"),
        ("i4", {"normalize": (0, 0)}, "std = 0.0, must be finite and above 0"),
        ("i4", {"normalize": (0, [1, -1])}, "must be finite and above 0"),
        ("i4", {"normalize": (float("nan"), 1)}, "mean = nan, must be finite"),
        ("i4", {"normalize": ([[1], [2]], 1)}, r"shape \(2, 1\) does not broadcast against a sample, shape \(3,\)"),
        ("i4", {"normalize": ([1, 2], 1)}, "2 values: axis must say along which axis"),
        ("i4", {"normalize": ([1, 2], 1), "normalize_axis": 1}, r"2 values, axis 1 has length 3 \(shape \(4, 3\)\)"),
        ("i4", {"normalize": ([1, 2], 1), "normalize_axis": 0}, "axis = 0: is the sample axis of samples"),
        ("i4", {"normalize": ([1, 2], 1), "normalize_axis": 2}, r"axis = 2: samples has 2 axes"),
        ("i4", {"normalize": ([1, 2], 1), "normalize_axis": "x"}, "samples has no dimension names, give a number"),
        ("i4", {"normalize": (0, 1), "normalize_axis": 1.5}, "must be an axis or the name of a dimension"),
        ("i4", {"transform": 3}, "transform = 3, must be callable"),
        ("i4", {"decode_cf": 1}, "decode_cf = 1, must be True or False"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_at_construction(dtype: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        iterable_dataset(np.ones((4, 3), dtype), **options)


def test_the_dtype_that_is_there_already_is_no_conversion(tmp_path: Path) -> None:
    Layout(shape=(9, 4), chunks=(3, 4), dtype="f4").write(tmp_path / "x")
    with ZarrIterableDataset(zarrfeed.open(tmp_path / "x").cast("float32")) as dataset:
        assert dataset.session.schedule.fields.fields[0].conversion is None
        assert "converted" not in str(dataset.explain())


def test_explain_says_what_becomes_of_the_items(tmp_path: Path) -> None:
    array = Layout(shape=(9, 4), chunks=(3, 4), dtype="i2").write(tmp_path / "x")
    array.attrs.update({"scale_factor": 0.5, "add_offset": 3, "missing_value": -1})
    options: dict[str, Any] = {"dtype": torch.bfloat16, "normalize": ([1, 2, 3, 4], 2.0), "normalize_axis": -1}
    with iterable_dataset(tmp_path / "x", batch_size=3, **options) as dataset:
        explanation = dataset.explain()
    said = "int16 -> bfloat16, -1 is NaN, scale 0.5, offset 3, normalised, 4 channels"
    assert explanation.fields[0].conversion == said
    assert f"converted: {said}" in str(explanation)
    assert explanation.memory.batch_bytes == 3 * 4 * 2


def test_a_state_belongs_to_the_dtype_that_it_was_saved_with(tmp_path: Path) -> None:
    Layout(shape=(9, 4), chunks=(3, 4), dtype="i2").write(tmp_path / "x")
    with ZarrIterableDataset(zarrfeed.open(tmp_path / "x").cast("float32"), batch_size=3) as dataset:
        state = dataset.state_dict()
    with (
        ZarrIterableDataset(tmp_path / "x", batch_size=3) as dataset,
        pytest.raises(ConfigError, match=r"samples was \[9, 4, 'float32'\], is \[9, 4, 'int16'\]"),
    ):
        dataset.load_state_dict(state)


def test_small_fields_that_are_kept_in_memory_are_converted_too(tmp_path: Path) -> None:
    Layout(shape=(20, 3), chunks=(6, 3)).write(tmp_path / "x")
    labels = Layout(shape=(20,), chunks=(7,), dtype="i4")
    labels.write(tmp_path / "y")
    with ZarrIterableDataset(
        zarrfeed.open(tmp_path / "x", tmp_path / "y").cast({"targets": "float16"}), batch_size=20
    ) as dataset:
        assert "kept in memory" in str(dataset.explain())
        for _ in range(2):
            ((_, y),) = dataset
            assert_same_values(to_numpy(y), labels.data().astype("f2"))


# --- transform --------------------------------------------------------------------------------------------------


def double(batch: Any) -> Any:
    return [2 * batch, torch.utils.data.get_worker_info() is not None]


def test_transform_makes_of_each_batch_what_is_yielded(tmp_path: Path) -> None:
    layout = Layout(shape=(10, 3), chunks=(4, 3), dtype="i4")
    layout.write(tmp_path / "x")
    expected = torch.from_numpy(layout.data()) * 2
    with ZarrIterableDataset(tmp_path / "x", batch_size=4, transform=double) as dataset:
        assert torch.equal(torch.cat([x for x, in_worker in dataset if not in_worker]), expected)
        got = list(ZarrDataLoader(dataset, num_workers=1, timeout=240))
        assert all(in_worker for _, in_worker in got)
        assert torch.equal(torch.cat([x for x, _ in got]), expected)
    with ZarrIterableDataset(tmp_path / "x", transform=double) as dataset:
        assert torch.equal(torch.stack([x for x, _ in dataset]), expected)


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize(("raised", "seen"), [(KeyError, KeyError), (StopIteration, RuntimeError)])
def test_what_transform_raises_passes_through_and_ends_the_pass(
    batch_size: int | None, raised: type[Exception], seen: type[Exception]
) -> None:
    calls = []

    def fail_later(batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 2:
            raise raised("no")
        return batch

    with ZarrIterableDataset(np.ones((50, 3)), batch_size=batch_size, transform=fail_later) as dataset:
        with no_thread_left():
            batches = iter(dataset)
            next(batches)
            with pytest.raises(seen):
                next(batches)
            assert next(batches, None) is None
        assert dataset.state_dict()["position"] == (batch_size or 1)  # what failed was not received


class FailsOnce:
    """A transform that raises at one batch until `note` is there, which it then writes; else it passes batches on."""

    def __init__(self, note: Path, sample: int) -> None:
        self.note, self.sample = note, sample

    def __call__(self, batch: Any) -> Any:
        if self.sample in np.atleast_1d(batch[-1].numpy()) and not self.note.exists():
            self.note.touch()
            raise KeyError("a service that does not answer")
        return batch


@pytest.mark.parametrize(("batch_size", "num_workers"), [(4, None), (None, None), (4, 0), (4, 2)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_batch_whose_transform_failed_comes_again_on_resuming(
    batch_size: int | None, num_workers: int | None, tmp_path: Path
) -> None:
    """With `num_workers` through a ZarrDataLoader, else the dataset itself."""
    n = 50

    def make(sample: int) -> tuple[ZarrIterableDataset, Any]:
        dataset = ZarrIterableDataset(
            np.arange(n),
            batch_size=batch_size,
            shuffle=True,
            return_index=True,
            transform=FailsOnce(tmp_path / "note", sample),
        )
        return dataset, dataset if num_workers is None else ZarrDataLoader(
            dataset, num_workers=num_workers, timeout=240
        )

    def of(batch: Any) -> list[int]:
        return [int(i) for i in np.atleast_1d(batch[-1].numpy())]

    dataset, loader = make(-1)
    whole = [of(batch) for batch in loader]
    dataset.close()
    for failing in (0, 3, len(whole) - 1):
        (tmp_path / "note").unlink(missing_ok=True)
        dataset, loader = make(whole[failing][0])
        batches = iter(loader)
        seen = [of(next(batches)) for _ in range(failing)]
        assert seen == whole[:failing]
        with pytest.raises(KeyError, match="a service that does not answer"):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        assert state["position"] == sum(map(len, seen))
        dataset.close()
        dataset, loader = make(whole[failing][0])
        loader.load_state_dict(state)
        rest = [of(batch) for batch in loader]
        dataset.close()
        assert set(whole[failing]) <= {i for batch in rest for i in batch}
        assert sorted(i for batch in [*seen, *rest] for i in batch) == list(range(n))
