"""`verify` of a `Data`: it reads the chunks that have something selected, and no others."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from zarr.storage import MemoryStore

import zarrfeed
from tests.support.examples import tries
from tests.support.oracle import NUMCODECS_WARNING
from zarrfeed import ConfigError
from zarrfeed.tools.cli import main
from zarrfeed.tools.verify import Progress

pytestmark = [pytest.mark.timeout(200), pytest.mark.filterwarnings(NUMCODECS_WARNING)]


def _make(store: Any, shape: tuple[int, ...], rng: np.random.Generator, name: str = "x") -> zarr.Array[Any]:
    chunks = tuple(int(rng.integers(1, n + 1)) for n in shape)
    shards = tuple(int(c * rng.integers(1, 4)) for c in chunks) if rng.random() < 0.5 else None
    values = np.arange(1, np.prod(shape) + 1, dtype="f4").reshape(shape)
    codec: Any = ["auto", zarr.codecs.BloscCodec(), zarr.codecs.ZstdCodec(), None][rng.integers(4)]
    return zarr.create_array(store, name=name, data=values, chunks=chunks, shards=shards, compressors=codec)


def _chunks_with(array: zarr.Array[Any], positions: list[Any]) -> set[tuple[int, ...]]:
    """Return the indices of the read chunks that have an item at some positions, one chunk after the other."""
    wanted = np.zeros(array.shape, dtype=bool)
    wanted[np.ix_(*positions)] = True
    grid = [range(-(-n // c)) for n, c in zip(array.shape, array.chunks, strict=True)]
    found = set()
    for index in itertools.product(*grid):
        where = tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, array.chunks, strict=True))
        if wanted[where].any():
            found.add(index)
    return found


def test_as_many_chunks_are_checked_as_have_something_selected(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    for number in range(tries(15, 40)):
        shape = tuple(rng.integers(1, 14, int(rng.integers(1, 4))).tolist())
        store: Any = tmp_path / f"{number}.zarr" if rng.random() < 0.5 else MemoryStore()
        array = _make(store, shape, rng)
        samples = np.sort(rng.choice(shape[0], rng.integers(1, shape[0] + 1), replace=False))
        others = [rng.permutation(n)[: rng.integers(1, n + 1)] for n in shape[1:]]
        data = zarrfeed.open(array).select(samples)
        if others:
            data = data.isel({axis + 1: one.tolist() for axis, one in enumerate(others)})
        offsets = [0]
        if shape[0] > 3 and rng.random() < 0.5:
            try:
                data, offsets = data.window((0, 1), rows=slice(None)), [0, 1]
            except ConfigError:  # no sample is left
                continue
            samples = samples[samples + 1 < shape[0]]
        rows = np.unique(np.concatenate([samples + one for one in offsets]))
        expected = _chunks_with(array, [rows, *others])
        report = zarrfeed.verify(data, num_threads=2)
        told = f"case {number}: {shape} {array.chunks} {array.shards} {data!r}"
        assert report.ok, told
        (one,) = report.arrays
        assert (one.chunks, one.good, one.missing) == (len(expected), len(expected), 0), told


def test_damage_counts_where_it_is_selected_and_nowhere_else(tmp_path: Path) -> None:
    values = np.arange(8 * 6, dtype="f4").reshape(8, 6)
    array = zarr.create_array(tmp_path / "a.zarr", name="x", data=values, chunks=(2, 3))
    (tmp_path / "a.zarr" / "x" / "c" / "1" / "1").write_bytes(b"no chunk")
    (tmp_path / "a.zarr" / "x" / "c" / "3" / "0").unlink()
    data = zarrfeed.open({"x": array})
    found = zarrfeed.verify(data)
    assert (found.ok, found.arrays[0].bad, found.arrays[0].missing) == (False, 1, 1)
    assert [finding.key for finding in found.findings] == ["c/1/1", "c/3/0"]
    assert zarrfeed.verify(data.isel({1: [0, 2]})).ok
    assert zarrfeed.verify(data.isel({1: [0, 2]}), missing="error").problems == ("1 chunk missing",)
    assert zarrfeed.verify(data.select(slice(0, 2)), missing="error").ok
    assert zarrfeed.verify(data.select([2])).problems == ("1 chunk bad",)
    assert zarrfeed.verify(data.select([2]).isel({1: 5})).problems == ("1 chunk bad",)


def test_many_stores_are_checked_as_far_as_they_are_selected(tmp_path: Path) -> None:
    for number in range(3):
        zarr.create_array(tmp_path / f"{number}.zarr", name="x", data=np.ones((10, 4)), chunks=(3, 2))
    data = zarrfeed.open([tmp_path / f"{number}.zarr" for number in range(3)]).select(slice(8, 11)).isel({1: 3})
    report = zarrfeed.verify(data)
    assert [(one.path, one.chunks, one.good) for one in report.arrays] == [
        (str(tmp_path / "0.zarr" / "x"), 2, 2),
        (str(tmp_path / "1.zarr" / "x"), 1, 1),
    ]


def test_patches_are_checked_with_the_volumes_that_they_are_cut_out_of(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", data=np.ones((9, 8)), chunks=(3, 4))
    assert zarrfeed.verify(zarrfeed.open(array).select(slice(0, 4)).patch({1: 2})).arrays[0].good == 4


def test_a_run_goes_on_by_its_progress_file_for_the_same_selection_alone(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", name="x", data=np.ones((200, 4)), chunks=(1, 2))
    data = zarrfeed.open({"x": array})
    file = tmp_path / "progress"
    seen: list[int] = []

    def interrupt(now: Progress) -> None:
        seen.append(now.done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zarrfeed.verify(data.isel({1: 0}), progress_file=file, on_progress=interrupt)
    assert file.exists()
    with pytest.raises(ConfigError, match="is of"):
        zarrfeed.verify(data.isel({1: 3}), progress_file=file)
    said: list[str] = []
    report = zarrfeed.verify(data.isel({1: 0}), progress_file=file, on_message=said.append)
    assert "chunks were checked before" in said[0]
    assert (report.ok, report.arrays[0].chunks, report.arrays[0].good) == (True, 200, 200)


def test_arguments_that_are_for_stores_are_refused(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", data=np.ones((9, 8)), chunks=(3, 4))
    with pytest.raises(ConfigError, match="arrays is for a store, and a Data is given: open these arrays alone"):
        zarrfeed.verify(zarrfeed.open(array), arrays=["x"])
    with pytest.raises(ConfigError, match="executor is for a store"):
        zarrfeed.verify(zarrfeed.open(array), executor="ray")
    with pytest.raises(ConfigError, match="all arrays of the samples are in memory"):
        zarrfeed.verify(zarrfeed.open(np.ones(3)))


def test_the_command_line_selects_by_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cube = xarray.Dataset(
        {"z": (("time", "level"), np.arange(40.0).reshape(10, 4)), "mask": ("level", np.arange(4))},
        {"time": np.arange("1990", "2000", dtype="M8[Y]").astype("M8[ns]"), "level": [300, 500, 700, 850]},
    )
    cube.to_zarr(tmp_path / "a.zarr", consolidated=False, encoding={"z": {"chunks": (1, 2)}})
    source, out = str(tmp_path / "a.zarr"), str(tmp_path / "out.zarr")
    sel = ["--sample-dim", "time", "--sel", "time=1992..1995", "--sel", "level=850,300"]
    assert main(["pack", source, "-o", out, "--verify", *sel]) == 0
    packed = xarray.open_zarr(out, consolidated=False, chunks=None)
    for name in ("z", "mask"):
        np.testing.assert_array_equal(packed[name].values, cube.sel(time=slice("1992", "1995"), level=[850, 300])[name])
    capsys.readouterr()
    assert main(["verify", source, "--progress-file", "none", "--json", "-", *sel]) == 0
    (checked,) = json.loads(capsys.readouterr().out)["arrays"]
    assert (checked["path"], checked["chunks"], checked["good"]) == ("z", 8, 8)
    assert main(["verify", source, "--progress-file", "none", *sel[:2], "--sel", "level=100"]) == 2
    assert "100" in capsys.readouterr().err
    assert main(["info", source, *sel]) == 0
    assert "50.0% of its bytes are chosen items" in capsys.readouterr().out
    assert main(["verify", source, "--progress-file", "none", "--json", "-", "--sample-dim", "time"]) == 0
    checked = json.loads(capsys.readouterr().out)["arrays"]
    assert {one["path"]: one["good"] for one in checked} == {"z": 20, "mask": 1, "time": 1, "level": 1}


def test_samples_of_several_dimensions_are_checked_by_their_chunks(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "a.zarr")
    names = ("member", "y", "time")
    group.create_array("x", data=np.ones((5, 3, 9)), chunks=(2, 3, 1), shards=(2, 3, 2), dimension_names=names)
    group.create_array("f", data=np.ones((9, 3)), chunks=(2, 2), dimension_names=names[:0:-1])
    data = zarrfeed.open(group, sample_dim=("time", "member"), variables=["x", "f"]).select([0, 1, 4, 7, 23])
    report = zarrfeed.verify(data.isel(y=[0, 1]), num_threads=2)
    times, members = np.divmod([0, 1, 4, 7, 23], 5)
    of_x = {(int(member) // 2, int(time)) for member, time in zip(members, times, strict=True)}
    assert [(one.chunks, one.good) for one in report.arrays] == [(2, 2), (len(of_x), len(of_x))]
