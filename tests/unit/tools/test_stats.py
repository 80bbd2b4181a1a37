"""`stats`: NumPy's figures, bit-equal from run to run, resumed after a kill, and recognised by their samples."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import xarray
import zarr

import zarrfeed
from tests.support import warm
from tests.support.users import OTHER, VICTIM, as_user, folder_of_all, two_users
from zarrfeed.spec.values.statistics import Statistics
from zarrfeed.tools import cli, stats_command
from zarrfeed.tools.stats import Progress
from zarrfeed.tools.stats.moments import Moments

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy, of means of nothing


def check(
    field: zarrfeed.FieldStatistics, values: npt.NDArray[Any], kept: tuple[int, ...] = (), *, sample_axis: int = 0
) -> None:
    """Compare with NumPy: `values` has samples first, `kept` are axes of it."""
    values = np.moveaxis(values, sample_axis, 0).astype(np.float64)
    over = tuple(a for a in range(values.ndim) if a not in kept)
    expected = {
        "mean": np.nanmean(values, over, keepdims=True)[0],
        "std": np.nanstd(values, over, keepdims=True)[0],
        "min": np.nanmin(values, over, keepdims=True)[0],
        "max": np.nanmax(values, over, keepdims=True)[0],
        "missing": np.isnan(values).mean(over, keepdims=True)[0],
    }
    for name, array in expected.items():
        precision = 1e-9 if name == "std" else 1e-12  # values far from 0 have their spread in their last digits
        np.testing.assert_allclose(getattr(field, name), array, rtol=precision, atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(field.min, expected["min"])
    np.testing.assert_array_equal(field.max, expected["max"])


@pytest.mark.parametrize("seed", range(12))
def test_figures_of_any_layout_are_numpys(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    monkeypatch.setattr("zarrfeed.tools.stats._BATCH_BYTES", int(rng.integers(1, 5000)))
    monkeypatch.setattr("zarrfeed.tools.stats.moments._PIECE", int(rng.integers(1, 200)))
    monkeypatch.setattr("zarrfeed.tools.stats.moments._MANY_ENTRIES", int(rng.integers(0, 10)))
    ndim = int(rng.integers(1, 5))
    shape = tuple(int(n) for n in rng.integers(1, 9, ndim)) if seed else (40, 7)
    chunks = tuple(int(rng.integers(1, n + 1)) for n in shape)
    values = rng.normal(1e6, 3, shape).astype(rng.choice(["f4", "f8", "i4"]))
    if values.dtype.kind == "f":
        values[rng.random(shape) < rng.choice([0, 0.3])] = np.nan
    sample_axis = int(rng.integers(ndim))
    array = zarr.create_array({}, shape=shape, chunks=chunks, dtype=values.dtype)
    array[...] = values
    others = [a for a in range(ndim) if a != sample_axis]
    named = [a for a in others if rng.random() < 0.5]
    selected = np.flatnonzero(rng.random(shape[sample_axis]) < 0.7)
    selected = selected if len(selected) else np.array([0])
    data = zarrfeed.open(array, sample_axis=sample_axis).select(selected)
    field = zarrfeed.stats(data, axis=named or None)["samples"]
    kept = tuple(others.index(a) + 1 for a in named)
    check(field, np.take(values, selected, sample_axis), kept, sample_axis=sample_axis)
    assert field.axes == tuple(named)


def test_a_spread_far_below_the_mean_is_exact() -> None:
    """A sum of squares minus a squared sum would lose all digits."""
    steps = np.arange(70_000) % 7
    field = zarrfeed.stats(2.0**40 + steps)["samples"]
    assert field.mean[()] == 2.0**40 + 3
    assert field.std[()] == 2


def test_infinities_and_what_is_missing_altogether() -> None:
    values = np.array([[np.inf, np.nan, 1, -np.inf], [2, np.nan, 3, np.inf], [1, np.nan, np.nan, 0]])
    field = zarrfeed.stats(values, axis=1)["samples"]
    np.testing.assert_array_equal(field.mean, [np.inf, np.nan, 2, np.nan])
    np.testing.assert_array_equal(field.std, [np.nan, np.nan, 1, np.nan])
    np.testing.assert_array_equal(field.min, [1, np.nan, 1, -np.inf])
    np.testing.assert_array_equal(field.max, [np.inf, np.nan, 3, np.inf])
    np.testing.assert_array_equal(field.missing, [0, 1, 1 / 3, 0])
    again = zarrfeed.FieldStatistics.from_json(json.loads(json.dumps(field.to_json(), allow_nan=False)))
    np.testing.assert_array_equal(again.max, field.max)
    np.testing.assert_array_equal(again.mean, field.mean)
    mean, std = field.mean_std()
    assert (mean[0, 1], std[0, 1]) == (0, 1)


def test_packed_values_are_measured_as_xarray_decodes_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    t2m = rng.normal(280, 10, (30, 3, 4, 5))
    t2m[rng.random(t2m.shape) < 0.1] = np.nan
    packed = {
        "dtype": "int16",
        "scale_factor": 0.01,
        "add_offset": 273.15,
        "_FillValue": -32768,
        "chunks": (7, 2, 3, 5),
    }
    dataset = xarray.Dataset(
        {"t2m": (("time", "level", "lat", "lon"), t2m), "tp": (("time", "lat", "lon"), t2m[:, 0] * 2)},
        {"time": np.arange(30), "level": [500, 850, 1000]},
    )
    dataset.to_zarr(tmp_path / "a.zarr", encoding={"t2m": packed}, consolidated=False)
    decoded = xarray.open_zarr(tmp_path / "a.zarr", consolidated=False).isel(time=slice(3, 27))
    data = zarrfeed.open(tmp_path / "a.zarr", sample_dim="time").select(slice(3, 27)).cast("float16")
    by_level = zarrfeed.stats(data, axis="level")
    by_point = zarrfeed.stats(data.window((-1, 0)), axis=("lat", "lon"))
    for names, statistics in ((["level"], by_level), (["lat", "lon"], by_point)):
        for name, field in statistics.fields.items():
            array = decoded[name].astype("f4" if name == "t2m" else "f8")
            own = [n for n in names if n in array.dims]
            assert field.axes == tuple(own)
            window = {"time": slice(1, None)} if statistics is by_point else {}
            values = array.isel(window).astype("f8")
            over = [dim for dim in array.dims if dim not in own]
            np.testing.assert_allclose(field.mean.squeeze(), values.mean(over).values, rtol=1e-12)
            np.testing.assert_allclose(field.std.squeeze(), values.std(over).values, rtol=1e-10)
            np.testing.assert_allclose(field.missing.squeeze(), values.isnull().mean(over).values, rtol=1e-12)
            assert field.mean.shape == tuple(
                n if dim in own else 1 for dim, n in zip(array.dims[1:], array.shape[1:], strict=True)
            )


def test_the_result_is_the_same_bit_by_bit_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarrfeed.tools.stats._BATCH_BYTES", 1000)
    values = np.random.default_rng(0).normal(0, 1, (500, 3, 10))
    array = zarr.create_array({}, shape=values.shape, chunks=(7, 2, 10), dtype="f8")
    array[...] = values
    results = [zarrfeed.stats(array, axis=1, num_threads=n) for n in (1, 2, 5, 1)]
    assert all(result == results[0] for result in results)
    assert results[0] != zarrfeed.stats(values + 1, axis=1)


def test_samples_and_targets_of_one_name_have_their_full_names() -> None:
    x, y = np.arange(6.0).reshape(6, 1), np.arange(6)
    statistics = zarrfeed.stats(zarrfeed.open({"x": x, "z": x + 1}, {"x": y}))
    assert list(statistics.fields) == ["samples['x']", "z", "targets['x']"]
    assert statistics["targets['x']"].mean == 2.5


def test_text_records_coordinates_and_complex_numbers_are_left_out() -> None:
    group = zarr.create_group({})
    group.create_array("x", shape=(4, 2), dtype="f4", dimension_names=("time", "x"))[...] = 1
    group.create_array("time", shape=(4,), dtype="i8", dimension_names=("time",))[...] = 1
    group.create_array("z", shape=(4, 2), dtype="c8", dimension_names=("time", "x"))[...] = 1
    data = zarrfeed.open(group, variables=["x", "time", "z"])
    assert list(zarrfeed.stats(data).fields) == ["x"]
    with pytest.raises(zarrfeed.ConfigError, match="no arrays of numbers"):
        zarrfeed.stats(zarrfeed.open(np.zeros(4, [("a", "f4")])))


def test_bfloat16_tensors_are_measured() -> None:
    values = torch.arange(8, dtype=torch.bfloat16)
    assert zarrfeed.stats(values)["samples"].mean == 3.5


class _KilledError(Exception):
    pass


@pytest.mark.parametrize("batches", [1, 4])
def test_a_run_that_was_interrupted_goes_on_and_has_the_same_bits(
    batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zarrfeed.tools.stats._BATCH_BYTES", 8 * 30 * 7)
    values = np.random.default_rng(0).normal(0, 1, (300, 30))
    array = zarr.create_array({}, shape=values.shape, chunks=(16, 30), dtype="f8")
    array[...] = values
    data = zarrfeed.open(array).select(np.flatnonzero(np.arange(300) % 3))
    path = tmp_path / "stats.json"
    seen: list[Progress] = []

    def stop(now: Progress) -> None:
        seen.append(now)
        if len(seen) == batches:
            raise _KilledError

    with pytest.raises(_KilledError):
        zarrfeed.stats(data, axis=1, output=path, on_progress=stop)
    assert not path.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["stats.json.partial"]
    again: list[Progress] = []
    said: list[str] = []
    resumed = zarrfeed.stats(data, axis=1, output=path, on_progress=again.append, on_message=said.append)
    assert again[0].done == 7 * (batches + 1)
    assert said == [f"{7 * batches} of 200 samples were measured before"]
    assert [p.name for p in tmp_path.iterdir()] == ["stats.json"]
    assert resumed == zarrfeed.stats(data, axis=1)
    assert Statistics.load(path) == resumed


def test_a_process_that_is_killed_leaves_a_partial_result(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", shape=(64, 1 << 18), chunks=(1, 1 << 18), dtype="f4")
    array[...] = np.arange(64, dtype="f4")[:, None]
    path = tmp_path / "stats.json"
    script = (
        "import sys, zarrfeed, zarrfeed.tools.stats as tool\n"
        "tool._SAVE_EVERY_S = 0.0\n"
        "seen = []\n"
        "def tell(now):\n"
        "    seen.append(now)\n"
        "    if len(seen) == 3:\n"
        "        print('there', flush=True)\n"
        "        sys.stdin.read()\n"
        "zarrfeed.stats(sys.argv[1], output=sys.argv[2], on_progress=tell)\n"
    )
    command = [*warm.command(), "-c", script, str(tmp_path / "a.zarr"), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        warm.kill(process)
        process.wait(timeout=240)
    said: list[str] = []
    statistics = zarrfeed.stats(tmp_path / "a.zarr", output=path, on_message=said.append)
    assert said == ["32 of 64 samples were measured before"]
    assert statistics == zarrfeed.stats(tmp_path / "a.zarr")
    assert statistics["samples"].mean == 31.5


def test_a_file_serves_the_same_samples_alone(tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    array = zarr.create_array(tmp_path / "a.zarr", shape=(40, 3), chunks=(8, 3), dtype="f4")
    array[...] = np.arange(120).reshape(40, 3)
    data = zarrfeed.open(array)
    first = zarrfeed.stats(data, output=path)

    def reads(**options: Any) -> tuple[bool, list[str]]:
        progress: list[Progress] = []
        said: list[str] = []
        source = options.pop("data", data)
        zarrfeed.stats(source, output=path, on_progress=progress.append, on_message=said.append, **options)
        return bool(progress), said

    assert reads() == (False, [f"{path}: holds these statistics"])
    assert reads(data=data.normalize((1, 2)).cast("float16").window((0,))) == (
        False,
        [f"{path}: holds these statistics"],
    )
    assert reads(restart=True)[0]
    assert reads(axis=1) == (True, [f"{path}: is measured anew: those of samples are along (), not (1,)"])
    assert reads()[0]
    assert reads(data=data.select(slice(1, None)))[1] == [
        f"{path}: is measured anew: those of samples are of other samples, or of another layout"
    ]
    assert reads(data={"x": array})[1] == [f"{path}: is measured anew: they lack x"]
    assert zarrfeed.stats(data, output=path) == first
    values = np.arange(5.0)
    assert reads(data=values)[0]
    assert reads(data=values.copy()) == (False, [f"{path}: holds these statistics"])
    assert reads(data=values + 1)[0]


def test_a_partial_result_of_other_samples_or_a_damaged_one_is_not_used(tmp_path: Path) -> None:
    path, partial = tmp_path / "stats.json", tmp_path / "stats.json.partial"
    values = np.arange(40.0)

    def interrupt(_: Progress) -> None:
        raise _KilledError

    for other in (values[1:], values):
        with pytest.raises(_KilledError):
            zarrfeed.stats(other, output=path, on_progress=interrupt)
        if other is values:
            content = partial.read_bytes()
            partial.write_bytes(content[: len(content) // 2])
        said: list[str] = []
        assert zarrfeed.stats(values, output=path, on_message=said.append)["samples"].mean == 19.5
        assert said == []
        path.unlink()


def test_a_file_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    for text in ('{"mine": 1}', "no JSON", "[]"):
        path.write_text(text)
        with pytest.raises(zarrfeed.ConfigError, match=r"mine\.json: holds no statistics"):
            zarrfeed.stats(np.arange(3), output=path, restart=True)
        assert path.read_text() == text
    zarrfeed.stats(np.arange(3), output=tmp_path / "good.json")
    content = json.loads((tmp_path / "good.json").read_text())
    del content["fields"]["samples"]["mean"]
    path.write_text(json.dumps(content))
    with pytest.raises(zarrfeed.ConfigError, match="is damaged"):
        Statistics.load(path)
    with pytest.raises(OSError, match="no-such-directory"):
        zarrfeed.stats(np.arange(3), output=tmp_path / "no-such-directory" / "a.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axis": 0}, "axis = 0: is the sample axis of samples"),
        ({"axis": 2}, r"axis = 2: samples has 2 axes, shape \(4, 3\)"),
        ({"axis": True}, "axis = True, must be"),
        ({"axis": ()}, r"axis = \(\), must be"),
        ({"axis": 1.5}, "axis = 1.5, must be"),
        ({"axis": [1.5]}, "axis = 1.5, must be"),
        ({"axis": "level"}, "no array has dimension names"),
        ({"restart": 1}, "restart = 1, must be True or False"),
        ({"normalized": None}, "normalized = None, must be"),
        ({"num_threads": 0}, "num_threads = 0, must be at least 1"),
        ({"memory_budget": "much"}, "memory_budget"),
        ({"faults": {"on_error": "skip"}}, "on_error = 'skip', must be 'raise'"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(zarrfeed.ConfigError, match=message):
        zarrfeed.stats(np.zeros((4, 3)), **options)


def test_a_misspelt_dimension_gets_a_suggestion() -> None:
    array = zarr.create_array({}, shape=(4, 3), dtype="f4", dimension_names=("time", "level"))
    with pytest.raises(zarrfeed.ConfigError, match=r"must be one of the dimensions 'time', 'level'.*did you mean"):
        zarrfeed.stats(array, axis="levle")


def test_a_chunk_that_cannot_be_decoded_is_an_error(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", shape=(4, 3), chunks=(1, 3), dtype="f4")
    array[...] = 1
    (tmp_path / "a.zarr" / "c" / "2" / "0").write_bytes(b"damaged")
    with pytest.raises(zarrfeed.CorruptChunkError):
        zarrfeed.stats(tmp_path / "a.zarr")


def test_halves_are_merged_whatever_the_shape() -> None:
    rng = np.random.default_rng(3)
    for shape in itertools.product((1, 3), (1, 2), (1, 4)):
        values = rng.normal(0, 1, shape)
        none = Moments.none_yet((shape[1],))
        for one, other in ((none, Moments.of(values, (1,))), (Moments.of(values, (1,)), none)):
            merged = one.merge(other)
            np.testing.assert_array_equal(merged.mean, Moments.of(values, (1,)).mean)
            np.testing.assert_allclose(merged.squares / merged.count, values.var((0, 2)), atol=1e-15)


def test_the_command_prints_a_table_and_keeps_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = zarr.create_group(tmp_path / "a.zarr")
    values = np.arange(24.0).reshape(4, 2, 3)
    group.create_array("t", shape=(4, 2, 3), dtype="f8", dimension_names=("time", "level", "x"))[...] = values
    command = ["stats", str(tmp_path / "a.zarr"), "--sample-dim", "time"]
    assert cli.main([*command, "--axis", "level", "--output", str(tmp_path / "s.json")]) == 0
    out = capsys.readouterr().out
    assert "level 0: mean 10, std 6.75771, min 0, max 20, missing 0.000%" in out
    check(Statistics.load(tmp_path / "s.json")["t"], values, (1,))
    assert cli.main([*command, "--axis", "-1", "1", "--num-threads", "1"]) == 0
    assert "level, x 1, 2: mean" in capsys.readouterr().out
    assert cli.main([*command, "--axis", "levl"]) == 2
    assert "did you mean 'level'" in capsys.readouterr().err

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stats_command, "run", interrupted)
    assert cli.main([*command, "--output", os.devnull]) == 130
    assert "the same command goes on from here" in capsys.readouterr().err


def test_missing_categories_and_masked_values_are_no_values(tmp_path: Path) -> None:
    """-1 is pandas' code of a missing category, and what lies below the mask of a nullable column is anything."""
    root = zarr.create_group(tmp_path / "cells.zarr")
    root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    obs = root.create_group("obs", attributes={"encoding-type": "dataframe", "column-order": ["kind", "age"]})
    kind = obs.create_group("kind", attributes={"encoding-type": "categorical"})
    codes = np.array([0, -1, 2, 1, -1, 2], "i1")
    kind.create_array("codes", data=codes)
    kind.create_array("categories", data=np.array([3, 5, 8]))
    age = obs.create_group("age", attributes={"encoding-type": "nullable-integer"})
    values, mask = np.array([20, 10**6, 30, 40, 50, -(10**6)]), np.array([0, 1, 0, 0, 0, 1], bool)
    age.create_array("values", data=values)
    age.create_array("mask", data=mask)
    found = zarrfeed.stats(zarrfeed.open(tmp_path / "cells.zarr", variables=["obs/kind", "obs/age"]))
    check(found["obs/kind"], np.where(codes == -1, np.nan, codes))
    check(found["obs/age"], np.where(mask, np.nan, values))
    check(found["obs/age/mask"], mask)


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize(
    ("dtype", "attributes"),
    [("M8[ns]", {}), ("m8[s]", {}), ("i8", {"units": "days since 2000-01-01"}), ("i8", {"units": "Hours"})],
    ids=str,
)
def test_missing_times_are_no_values(dtype: str, attributes: dict[str, Any], tmp_path: Path) -> None:
    """The mean of times with one NaT was before the Big Bang."""
    times = np.array([1, np.iinfo("i8").min, 3, 5])
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("t", data=times.astype(dtype), attributes=attributes)
    found = zarrfeed.stats(zarrfeed.open(tmp_path / "a.zarr", variables=["t"]))
    check(found["t"], np.array([1, np.nan, 3, 5]))


@two_users
def test_the_partial_result_of_another_user_is_not_believed() -> None:
    with folder_of_all() as folder:
        partial = folder / "stats.json.partial"

        def interrupt(_: Progress) -> None:
            raise _KilledError

        def attack() -> None:
            with pytest.raises(_KilledError):
                zarrfeed.stats(np.arange(40.0), output=folder / "stats.json", on_progress=interrupt)

        def measure() -> None:
            before = partial.read_bytes()
            with pytest.raises(zarrfeed.ConfigError, match=rf"stats\.json\.partial: belongs to uid {OTHER}"):
                zarrfeed.stats(np.arange(40.0), output=folder / "stats.json")
            assert partial.read_bytes() == before

        as_user(OTHER, attack)
        as_user(VICTIM, measure)
