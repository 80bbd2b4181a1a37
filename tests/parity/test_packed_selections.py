"""`pack` of a `Data`: what xarray reads from the packed store is what it selects of the source."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from zarr.storage import MemoryStore

import zarrfeed
from tests.support.examples import tries
from tests.support.oracle import CODECS, NUMCODECS_WARNING
from tests.support.packing import files_of, make_source
from tests.support.warm import command
from zarrfeed import ConfigError, ZarrDataset
from zarrfeed.packing.pack_report import PackProgress
from zarrfeed.packing.sources import stored_rows
from zarrfeed.packing.sources.arrays.data_source import DataSource

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings(NUMCODECS_WARNING),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

_CODECS = ("none", "blosc-many-blocks", "blosc-lz4-bitshuffle", "zstd", "gzip")


@pytest.fixture(autouse=True)
def _no_resident_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small sources read chunk by chunk, as large ones are: so a shuffled pack has two passes."""
    monkeypatch.setattr(stored_rows, "_RESIDENT_BYTES", 0)


def _cube(rng: np.random.Generator, lengths: dict[str, int]) -> xarray.Dataset:
    """Return variables of which some lack a dimension, with coordinates of all kinds; values count the items."""
    dims: list[str] = [name for name in ("time", "level", "y", "x") if name in lengths]
    variables: dict[str, Any] = {}
    of_variables: list[list[str]] = [dims, [name for name in dims if name != "level"], dims[:2]]
    for number, named in enumerate(of_variables):
        of_one = [named[n] for n in rng.permutation(len(named))] if rng.random() < 0.3 else named
        shape = [lengths[name] for name in of_one]
        values = np.arange(np.prod(shape)).reshape(shape) + 1000 * number
        packing = {"scale_factor": 0.5, "add_offset": 3.0} if number == 1 else {}
        variables[f"v{number}"] = (of_one, values.astype("i2" if packing else "f4"), {"units": "K", **packing})
    others = [name for name in dims if name != "time"]
    coords: dict[str, Any] = {
        "time": np.datetime64("2000-01-01", "ns") + np.arange(lengths["time"]) * np.timedelta64(6, "h"),
        "member": ("time", np.arange(lengths["time"]) % 3),
    }
    if "level" in dims:
        coords["level"] = ("level", np.arange(lengths["level"])[::-1] * 100, {"units": "hPa", "bounds": "level_bounds"})
        variables["level_bounds"] = (("level", "edge"), np.arange(2 * lengths["level"]).reshape(-1, 2) * 1.0)
    if len(others) > 1:
        coords["area"] = (others[-2:], rng.random([lengths[name] for name in others[-2:]]))
    if "x" in dims:
        coords["x"] = [f"east {n}" for n in range(lengths["x"])]
    return xarray.Dataset(variables, coords, attrs={"title": "numbered"})


def _write(cube: xarray.Dataset, path: Path, rng: np.random.Generator) -> str:
    """Write a cube in a random layout; return which."""
    zarr_format: Any = int(rng.integers(2, 4))
    encoding: dict[str, dict[str, Any]] = {}
    for name in ("v0", "v1", "v2"):
        variable = cube[name]
        codec = CODECS[_CODECS[rng.integers(len(_CODECS))]]
        make = codec.v2 if zarr_format == 2 else codec.v3
        assert make is not None
        compressors = make(variable.dtype.itemsize)
        chunks = tuple(int(rng.integers(1, n + 1)) for n in variable.shape)
        encoding[name] = {"chunks": chunks, "compressors": compressors or None}
        if zarr_format == 3 and rng.random() < 0.4:
            encoding[name]["shards"] = tuple(int(c * rng.integers(1, 3)) for c in chunks)
    cube.to_zarr(path, consolidated=False, zarr_format=zarr_format, encoding=encoding)
    return f"v{zarr_format} {encoding}"


def _random_labels(rng: np.random.Generator, labels: list[Any]) -> Any:
    """Return some labels: one, a slice or a list in any order."""
    kind = rng.integers(3)
    if kind == 0:
        return labels[rng.integers(len(labels))]
    if kind == 1:
        first, last = sorted(rng.integers(len(labels), size=2).tolist())
        return slice(labels[first], labels[last])
    return [labels[n] for n in rng.permutation(len(labels))[: rng.integers(1, len(labels) + 1)]]


def _opened(path: Path) -> xarray.Dataset:
    packed = xarray.open_zarr(path, consolidated=False, chunks=None, mask_and_scale=False)
    del packed.attrs["zarrfeed_pack"]
    whole: xarray.Dataset = packed.load()
    return whole


def _same(packed: xarray.Dataset, expected: xarray.Dataset, told: str) -> None:
    for name in expected.variables:  # the packed store has the samples first
        dims = expected[name].dims
        expected_dims = ("time", *(one for one in dims if one != "time")) if "time" in dims else dims
        assert packed[name].dims == expected_dims, told
        np.testing.assert_array_equal(packed[name].transpose(*dims).values, expected[name].values, err_msg=told)
        attributes = [{key: str(value) for key, value in one[name].attrs.items()} for one in (packed, expected)]
        if name == "level_bounds":  # which have the units of their coordinate, as CF says
            attributes[1]["units"] = "hPa"
        assert attributes[0] == attributes[1], told  # as text, where NaN equals NaN
    assert set(packed.variables) == set(expected.variables), told
    assert set(packed.coords) == set(expected.coords), told
    assert packed.attrs == expected.attrs, told


def test_a_packed_selection_of_a_random_cube_is_what_xarray_selects(tmp_path: Path) -> None:
    rng = np.random.default_rng(42)
    for number in range(tries(5, 20)):
        lengths = {
            name: int(rng.integers(2, 9)) for name in ("level", "y", "x") if rng.random() < 0.8 or name == "level"
        }
        lengths["time"] = int(rng.integers(4, 30))
        cube = _cube(rng, lengths)
        source, out = tmp_path / f"{number}.zarr", tmp_path / f"{number}-packed.zarr"
        told = [f"case {number}: {lengths} {_write(cube, source, rng)}"]
        stored = xarray.open_zarr(source, consolidated=False, chunks=None, mask_and_scale=False)
        labelled = [name for name in ("level", "x") if name in lengths]
        labels: dict[str, Any] = {name: _random_labels(rng, stored[name].values.tolist()) for name in labelled}
        positions = {"y": rng.permutation(lengths["y"])[:2].tolist()} if "y" in lengths else {}
        times = sorted(rng.choice(lengths["time"], rng.integers(1, lengths["time"]), replace=False).tolist())
        data = zarrfeed.open(source, sample_dim="time").sel(labels).isel({**positions, "time": times})
        expected = stored.sel(labels).isel({**positions, "time": times})
        if rng.random() < 0.3:
            named = ["v0", "v1"]
            data = (
                zarrfeed.open(source, sample_dim="time", variables=named).sel(labels).isel({**positions, "time": times})
            )
            bounds = [name for name in ("level_bounds",) if name in expected]
            expected = expected[[*named, *bounds]]
        told.append(repr(data))
        options: dict[str, Any] = {"sample_chunk": int(rng.integers(1, 6)), "shard": (None, 600)[rng.integers(2)]}
        report = zarrfeed.pack(data, out, verify=True, **options)
        assert report.proof is not None
        assert report.proof.ok, (told, report.proof)
        _same(_opened(out), expected.load(), "\n".join(told))
        again = zarrfeed.open(out, sample_dim="time", variables=[one.name for one in data.fields])
        got, want = ZarrDataset(again)[np.arange(len(again))], ZarrDataset(data)[np.arange(len(data))]
        for name in want:
            np.testing.assert_array_equal(got[name].numpy(), want[name].numpy(), err_msg="\n".join(told))


@pytest.fixture(scope="module")
def years(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write three stores, one after the other in time, each with a calendar of its own beginning."""
    folder = tmp_path_factory.mktemp("years")
    for number, year in enumerate((2000, 2001, 2002)):
        values = np.arange(20 * 3 * 4, dtype="f4").reshape(20, 3, 4) + 1000 * number
        times = np.datetime64(f"{year}-01-01", "ns") + np.arange(20) * np.timedelta64(1, "D")
        cube = xarray.Dataset({"z": (("time", "level", "x"), values)}, {"time": times, "level": [300, 500, 850]})
        encoding: Any = {"z": {"chunks": (7, 1, 4)}, "time": {"units": f"hours since {year}-01-01"}}
        cube.to_zarr(folder / f"{year}.zarr", consolidated=False, encoding=encoding)
    return folder


def test_a_selection_of_many_stores_is_one_axis_whose_windows_leave_no_store(years: Path, tmp_path: Path) -> None:
    paths = sorted(years.iterdir())
    wholes = [xarray.open_zarr(path, consolidated=False, chunks=None) for path in paths]
    whole = xarray.concat(wholes, "time", join="outer")
    span = slice("2000-01-11", "2002-01-04")
    data = zarrfeed.open(str(years / "*.zarr")).sel(level=[850, 300], time=span)
    report = zarrfeed.pack(data, tmp_path / "out.zarr", verify=True)
    assert report.proof is not None
    assert report.proof.ok
    expected = whole.sel(level=[850, 300], time=span)
    packed = xarray.open_zarr(tmp_path / "out.zarr", consolidated=False, chunks=None)
    for name in ("z", "time", "level"):
        np.testing.assert_array_equal(packed[name].values, expected[name].values)
    again = zarrfeed.open(tmp_path / "out.zarr")
    assert len(again.window(range(3), gaps="ignore")) == len(data.window(range(3), gaps="ignore")) == 8 + 18 + 2


def test_windows_of_a_packed_list_span_no_sample_that_was_left_out(years: Path, tmp_path: Path) -> None:
    path = years / "2000.zarr" / "z"
    for number, samples in enumerate(([0, 1, 2, 9, 10, 11, 12, 19], np.arange(20) % 5 != 4, slice(3, None, 2))):
        out = tmp_path / f"{number}.zarr"
        zarrfeed.pack(zarrfeed.open(path).select(samples), out)
        rows = np.asarray(zarr.open_array(path, mode="r")[:])[samples]
        windows = zarrfeed.open(out).window((0, 1))
        got = ZarrDataset(windows)[np.arange(len(windows))].numpy()
        numbers = np.arange(20)[samples]
        step = 2 if isinstance(samples, slice) else 1
        pairs = [n for n in range(len(numbers) - 1) if numbers[n + 1] - numbers[n] == step]
        np.testing.assert_array_equal(got, np.stack([rows[[n, n + 1]] for n in pairs]))


def test_stores_that_say_something_else_of_their_numbers_are_refused_by_name(tmp_path: Path) -> None:
    for number in range(2):
        array = zarr.create_array(tmp_path / f"{number}.zarr", shape=(6, 4), chunks=(2, 4), dtype="i2")
        array.attrs["scale_factor"] = 1.0 + number
        array[:] = 1
    data = zarrfeed.open([tmp_path / "0.zarr", tmp_path / "1.zarr"]).isel({1: 2})
    with pytest.raises(ConfigError, match=r"1\.zarr is stored with 'scale_factor': 2.0, in .*0\.zarr without"):
        zarrfeed.pack(data, tmp_path / "out.zarr")


def test_arrays_of_several_folders_share_their_coordinates_or_are_refused(years: Path, tmp_path: Path) -> None:
    other = xarray.open_zarr(years / "2000.zarr", consolidated=False, chunks=None).load().drop_encoding()
    for name, changed in {
        "same": other,
        "level": other.assign_coords(level=[300, 500, 1000]),
        "time": other.assign_coords(time=other["time"] + np.timedelta64(1, "h")),
    }.items():
        changed.rename(z="t").to_zarr(tmp_path / name, consolidated=False)
        data = zarrfeed.open({"z": years / "2000.zarr" / "z", "t": tmp_path / name / "t"}).isel(level=[2, 0])
        if name == "same":
            assert zarrfeed.pack(data, tmp_path / "out.zarr", verify=True).proof.ok  # type: ignore[union-attr]
            packed = xarray.open_zarr(tmp_path / "out.zarr", consolidated=False, chunks=None)
            np.testing.assert_array_equal(packed["t"].values, packed["z"].values)
            assert packed["level"].values.tolist() == [850, 300]
            continue
        with pytest.raises(ConfigError, match=f"{name}.*other values"):
            zarrfeed.pack(data, tmp_path / "other.zarr")


def test_arrays_in_memory_are_packed_as_far_as_they_are_selected(tmp_path: Path) -> None:
    values = np.arange(60, dtype="f4").reshape(10, 6)
    stored = zarr.create_array(MemoryStore(), data=values + 100, chunks=(3, 2))
    data = zarrfeed.open({"x": values, "y": stored}).isel({1: [4, 0]}).select(slice(2, 9))
    assert zarrfeed.pack(data, tmp_path / "out.zarr", shuffle=3, verify=True).proof.ok  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="memory of this process"):
        zarrfeed.pack(data, tmp_path / "other.zarr", executor="dask://nowhere:1")
    packed: Any = zarr.open_group(tmp_path / "out.zarr", mode="r")
    order = np.argsort(packed["x"][:, 1])
    np.testing.assert_array_equal(packed["x"][:][order], values[2:9, [4, 0]])
    np.testing.assert_array_equal(packed["y"][:], packed["x"][:] + 100)


def test_what_a_store_cannot_hold_is_refused_with_a_remedy(years: Path, tmp_path: Path) -> None:
    one = zarrfeed.open(years / "2000.zarr")
    cases: list[tuple[Any, str]] = [
        (one.normalize((1.0, 2.0)), r"normalize\(\) changes .* zarrfeed.open\(out\).normalize\(\(1.0, 2.0\)\)"),
        (one.sel(level=500).window((0, 1)), r"window\(\) changes .* on the packed store"),
        (one.cast("float16"), r"cast\(\) changes"),
        (one.patch({"x": 2}), r"patch\(\) changes"),
        (one.stack(["z"], name="s"), r"stack\(\) changes"),
        (zarrfeed.concat([one.cast("float16"), one.cast("float16")]), r"cast\(\) changes"),
        (zarrfeed.mix([one, one]), "those of zarrfeed.mix, .* pack each of its inputs, and mix the packed stores"),
        (zarrfeed.join({"a": one, "b": one}, on="time"), "and join the packed stores"),
        (zarrfeed.open(years / "2000.zarr" / "z", years / "2001.zarr" / "z"), "a store has no sides: open samples"),
    ]
    for data, what in cases:
        with pytest.raises(ConfigError, match=what):
            zarrfeed.pack(data, tmp_path / "out.zarr")
    with pytest.raises(ConfigError, match="variables is for paths, and source is a Data: give it to"):
        zarrfeed.pack(one, tmp_path / "out.zarr", variables=["z"])
    assert list(tmp_path.iterdir()) == []


def test_static_arrays_go_along(years: Path, tmp_path: Path) -> None:
    path = shutil.copytree(years / "2000.zarr", tmp_path / "source.zarr")
    grid = np.arange(12.0).reshape(3, 4)
    zarr.open_group(path, mode="a").create_array("mask", data=grid, dimension_names=("level", "x"))
    data = zarrfeed.open(path, variables=["z"]).static("mask").sel(level=[850, 300])
    zarrfeed.pack(data, tmp_path / "out.zarr", verify=True)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr" / "mask")[:], grid[[2, 0]])
    again = zarrfeed.open(tmp_path / "out.zarr", variables=["z"]).static("mask")
    assert ZarrDataset(again)[[0]]["mask"].shape == (1, 2, 4)


@pytest.mark.usefixtures("warm_spawn")
def test_units_and_parts_in_other_processes_write_the_same(years: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(years)
    data = zarrfeed.open("2000.zarr").sel(level=[850, 300])
    options: dict[str, Any] = {"sample_chunk": 2, "shard": 100, "shuffle": 5}
    zarrfeed.pack(data, tmp_path / "whole.zarr", **options)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        zarrfeed.pack(data, tmp_path / "pool.zarr", executor=pool, **options)
    for _ in range(2):
        for part in range(2):
            zarrfeed.pack(data, tmp_path / "parts.zarr", part=(part, 2), **options)
    whole = _chunks(tmp_path / "whole.zarr")
    assert _chunks(tmp_path / "pool.zarr") == _chunks(tmp_path / "parts.zarr") == whole


def _chunks(path: Path) -> dict[str, bytes]:
    return {name: content for name, content in files_of(path).items() if not name.endswith("zarr.json")}


def test_a_run_that_was_killed_goes_on_with_the_same_selection_alone(tmp_path: Path) -> None:
    source, out = tmp_path / "source.zarr", tmp_path / "out.zarr"
    make_source(source, 500)
    data = zarrfeed.open(source, variables=["x"]).isel(channel=[3, 1], time=slice(20, None))
    options: dict[str, Any] = {"sample_chunk": 5, "shard": 100, "shuffle": 3, "jobs": 1}
    whole = zarrfeed.pack(data, tmp_path / "whole.zarr", **options)
    script = f"""
import os, signal, zarrfeed
from zarrfeed.packing.sources import stored_rows
from zarrfeed.packing.sources.arrays.data_source import DataSource
stored_rows._RESIDENT_BYTES = 0
def kill(now):
    if now.stage == "write" and now.done == {random.Random(3).randint(3, whole.units - 2)}:
        os.kill(os.getpid(), signal.SIGKILL)
data = zarrfeed.open({str(source)!r}, variables=["x"]).isel(channel=[3, 1], time=slice(20, None))
zarrfeed.pack(data, {str(out)!r}, on_progress=kill, **{options!r})
"""
    ended = subprocess.run([*command(), "-c", script], check=False, timeout=150)
    assert ended.returncode == -signal.SIGKILL
    assert not out.exists()
    with pytest.raises(ConfigError, match="an unfinished run is there, of another source or with other arguments"):
        zarrfeed.pack(data.isel(channel=[1, 0]), out, resume=True, **options)
    seen: list[PackProgress] = []
    report = zarrfeed.pack(data, out, resume=True, verify=True, on_progress=seen.append, **options)
    assert next(one for one in seen if one.stage == "write").done >= 3
    assert report.proof is not None
    assert report.proof.ok
    assert _chunks(out) == _chunks(tmp_path / "whole.zarr")


def test_a_store_of_the_same_name_elsewhere_is_another_source(years: Path, tmp_path: Path, monkeypatch: Any) -> None:
    for folder in ("first", "second"):
        shutil.copytree(years / "2000.zarr", tmp_path / folder / "a.zarr")
    prints = []
    for folder in ("first", "first", "second"):
        monkeypatch.chdir(tmp_path / folder)
        prints.append(DataSource(zarrfeed.open("a.zarr").sel(level=500), 10.0).fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_the_manifest_names_the_selection(years: Path, tmp_path: Path) -> None:
    zarrfeed.pack(zarrfeed.open(years / "2000.zarr").sel(level=500), tmp_path / "out.zarr")
    manifest: Any = zarr.open_group(tmp_path / "out.zarr", mode="r").attrs["zarrfeed_pack"]
    assert manifest["source"]["kind"] == "data"
    assert re.fullmatch(r"zarrfeed.open\('.*2000.zarr'\).sel\(level=500\)", manifest["source"]["paths"][0])


def test_samples_of_several_dimensions_become_one_with_its_coordinates(tmp_path: Path) -> None:
    shape, dims = (3, 4, 7), ("member", "level", "time")
    times = np.datetime64("2000-01-01", "ns") + np.arange(7) * np.timedelta64(6, "h")
    source = xarray.Dataset(
        {
            "x": (dims, np.arange(84, dtype="i2").reshape(shape)),
            "forcing": (("time", "level"), np.arange(28.0).reshape(7, 4)),
            "mask": ("level", np.arange(4)),
        },
        {
            "member": [5, 3, 9],
            "level": [850, 500, 300, 100],
            "time": times,
            "valid": (("time", "member"), times[:, None] + np.arange(3) * np.timedelta64(1, "h")),
        },
    )
    chunks = {"x": {"chunks": (2, 1, 1)}, "forcing": {"chunks": (3, 2)}}
    source.to_zarr(tmp_path / "in.zarr", encoding=chunks, consolidated=False)
    data = zarrfeed.open(tmp_path / "in.zarr", sample_dim=("member", "time"), variables=["x", "forcing"])
    data = data.sel(member=[9, 5], time=slice("2000-01-01T06", None), level=[300, 850])
    report = zarrfeed.pack(data, tmp_path / "out.zarr", verify=True)
    assert report.proof is not None
    assert report.proof.ok
    packed = xarray.open_zarr(tmp_path / "out.zarr", consolidated=False)
    chosen = source.sel(member=[5, 9], time=slice("2000-01-01T06", None), level=[300, 850])
    stacked = chosen.stack(sample=("member", "time")).transpose("sample", ...)
    for name in ("x", "forcing", "member", "time", "valid", "level"):
        np.testing.assert_array_equal(packed[name].values, stacked[name].values)
    assert set(packed.data_vars) == {"x", "forcing"}
    again = zarrfeed.open(tmp_path / "out.zarr")
    assert [len(one.window((0, 1))) for one in (again, data)] == [10, 10]
    assert len(again.sel(member=5)) == 6
