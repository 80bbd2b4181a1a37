"""`pack` from end to end: what zarr-python reads from the packed store is what it reads from the source."""

from __future__ import annotations

import errno
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from tests.support.examples import examples
from tests.support.fits_files import image
from tests.support.packing import check_packed, files_of, make_source
from zarrfeed import ConfigError
from zarrfeed.packing.pack import pack
from zarrfeed.packing.pack_report import PackProgress
from zarrfeed.packing.sources import stored_rows
from zarrfeed.packing.sources.detect import call_of
from zarrfeed.packing.sources.source import SourceOptions
from zarrfeed.packing.targets import measured_codecs
from zarrfeed.packing.targets.layout_choice import LayoutAdvice
from zarrfeed.packing.work.job import PackJob
from zarrfeed.packing.work.manifest import MANIFEST
from zarrfeed.packing.work.unit_worker import UnitWorker
from zarrfeed.packing.work.work_folder import WorkFolder
from zarrfeed.plan.order.random_bijection import RandomBijection
from zarrfeed.storage.chunks.chunk_encoder import Encoding

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

COUNT = 500
#: Several units, and shards of several chunks.
SMALL: dict[str, Any] = {"sample_chunk": 5, "shard": 600}


@pytest.fixture(autouse=True)
def _no_resident_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small sources read chunk by chunk, as large ones are: so a shuffled pack has two passes."""
    monkeypatch.setattr(stored_rows, "_RESIDENT_BYTES", 0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("pack") / "source.zarr"
    make_source(path, COUNT)
    return path


def opened(path: Path) -> zarr.Group:
    return zarr.open_group(path, mode="r")


@examples(25)
@given(
    chunk=st.integers(1, 80),
    shard=st.sampled_from([None, 1, 200, 600, 5000, "1MiB"]),
    seed=st.none() | st.integers(0, 2**64 - 1),
    codec=st.sampled_from(["lz4", "none", "zstd-1-bitshuffle", "plain-zstd"]),
    jobs=st.integers(1, 3),
)
def test_the_packed_store_has_each_sample_once(
    source: Path, tmp_path_factory: pytest.TempPathFactory, chunk: int, shard: Any, seed: Any, codec: str, jobs: int
) -> None:
    out = tmp_path_factory.mktemp("packed") / "out.zarr"
    report = pack(source, out, sample_chunk=chunk, shard=shard, shuffle=seed, codec=codec, jobs=jobs, verify=True)
    assert report.complete
    assert report.proof is not None
    assert report.proof.ok
    numbers = np.arange(COUNT) if seed is None else RandomBijection(COUNT, seed).numbers(np.arange(COUNT))
    check_packed(opened(out), opened(source), numbers)
    assert [path.name for path in out.parent.iterdir()] == ["out.zarr"]  # nothing else is left


def test_attributes_coordinates_and_names_of_dimensions_are_carried_over(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "out.zarr", **SMALL)
    packed = opened(tmp_path / "out.zarr")
    assert packed.attrs["title"] == "numbered"
    x: Any = packed["x"]
    assert dict(x.attrs) == {"units": "K"}
    assert x.metadata.dimension_names == ("time", "channel")
    assert x.chunks == (5, 6)
    assert x.shards == (25, 6)
    assert np.dtype(packed["time"].dtype) == np.dtype("M8[s]")  # type: ignore[union-attr]
    manifest: Any = packed.attrs[MANIFEST]
    assert manifest["samples"] == COUNT
    assert manifest["source"] == {"kind": "zarr", "paths": [str(source)]}


def test_the_packed_store_is_one_that_datasets_read(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "out.zarr", shuffle=3, **SMALL)
    data = zarrfeed.open(tmp_path / "out.zarr", variables=["x", "time"])
    with zarrfeed.ZarrIterableDataset(data, batch_size=10, shuffle=True, even="off") as dataset:
        times = np.concatenate([batch["time"].numpy() for batch in dataset])
    assert sorted(times.tolist()) == list(range(COUNT))


def test_an_array_becomes_an_array(tmp_path: Path) -> None:
    rows = np.arange(300, dtype=">i2").reshape(100, 3)
    zarr.create_array(tmp_path / "in.zarr", data=rows, chunks=(7, 3), zarr_format=2)
    report = pack(tmp_path / "in.zarr", tmp_path / "out.zarr", verify=True)
    assert report.proof is not None
    assert report.proof.ok
    packed = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert np.array_equal(np.asarray(packed[...]), rows)
    assert MANIFEST in packed.attrs


def test_many_stores_become_one(tmp_path: Path) -> None:
    parts = [np.arange(n) + 100 * n for n in (10, 25, 3)]
    for number, part in enumerate(parts):
        zarr.create_array(tmp_path / f"{number}.zarr", data=part, chunks=(4,))
    pack([tmp_path / f"{n}.zarr" for n in range(3)], tmp_path / "out.zarr")
    assert np.array_equal(np.asarray(zarr.open_array(tmp_path / "out.zarr")[...]), np.concatenate(parts))


def test_another_axis_of_samples_becomes_the_first(tmp_path: Path) -> None:
    rows = np.arange(60).reshape(3, 20)
    zarr.create_array(tmp_path / "in.zarr", data=rows, chunks=(2, 6), dimension_names=("level", "time"))
    pack(tmp_path / "in.zarr", tmp_path / "out.zarr", sample_dim="time")
    packed = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert np.array_equal(np.asarray(packed[...]), rows.T)
    assert packed.metadata.dimension_names == ("time", "level")  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", [None, 11])
def test_parts_of_the_samples_become_groups(source: Path, tmp_path: Path, seed: int | None) -> None:
    shares = {"train": 0.5, "val": 0.3, "rest": 0.2}
    report = pack(source, tmp_path / "out.zarr", shuffle=seed, split=shares, verify=True, **SMALL)
    assert report.proof is not None
    assert report.proof.ok
    numbers = np.arange(COUNT) if seed is None else RandomBijection(COUNT, seed).numbers(np.arange(COUNT))
    for name, begin, end in (("train", 0, 250), ("val", 250, 400), ("rest", 400, 500)):
        check_packed(opened(tmp_path / "out.zarr" / name), opened(source), numbers[begin:end])


def test_a_dtype_is_converted_and_the_proof_converts_as_well(source: Path, tmp_path: Path) -> None:
    report = pack(source, tmp_path / "out.zarr", dtype={"x": "float16"}, variables=["x"], verify=True)
    assert report.proof is not None
    assert report.proof.ok
    packed, stored = opened(tmp_path / "out.zarr")["x"], opened(source)["x"]
    assert np.array_equal(np.asarray(packed[...]), np.asarray(stored[...]).astype("f2"))  # type: ignore[index]


def test_a_value_that_has_no_place_in_the_dtype_is_an_error(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "in.zarr", data=np.array([1.0, 1e6], "f4"))
    with pytest.raises(ConfigError, match="float16 cannot hold a value of the source"):
        pack(tmp_path / "in.zarr", tmp_path / "out.zarr", dtype="float16")
    assert not (tmp_path / "out.zarr").exists()


def test_the_codec_is_measured_where_that_is_asked_for(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, int]] = []

    def choose(arrays: Any, **_: Any) -> list[LayoutAdvice]:
        tried.extend((one.name, len(one.rows)) for one in arrays)
        return [LayoutAdvice(one.name, 1, COUNT, 1, 0, Encoding("zstd", 2, "bitshuffle")) for one in arrays]

    monkeypatch.setattr(measured_codecs, "choose_layouts", choose)
    pack(source, tmp_path / "out.zarr", codec={"x": "auto"})
    assert tried == [("x", COUNT)]
    x: Any = opened(tmp_path / "out.zarr")["x"]
    assert x.compressors[0].to_dict()["configuration"]["cname"] == "zstd"
    check_packed(opened(tmp_path / "out.zarr"), opened(source), np.arange(COUNT))


def test_packing_twice_writes_the_same_bytes(source: Path, tmp_path: Path) -> None:
    for name in ("a.zarr", "b.zarr"):
        pack(source, tmp_path / name, shuffle=5, jobs=2, **SMALL)
    assert files_of(tmp_path / "a.zarr") == files_of(tmp_path / "b.zarr")


def test_the_source_is_left_as_it_is(source: Path, tmp_path: Path) -> None:
    before = files_of(source)
    pack(source, tmp_path / "out.zarr", shuffle=5, **SMALL)
    assert files_of(source) == before


def test_parts_share_the_work_and_the_last_one_finishes(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    reports = [pack(source, out, part=(number, 3), **SMALL) for number in (2, 0, 1)]
    assert [report.complete for report in reports] == [False, False, True]
    assert "the last part to end finishes the store" in str(reports[0])
    check_packed(opened(out), opened(source), np.arange(COUNT))


def test_parts_of_a_shuffled_pack_come_again_for_the_second_pass(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    for _ in range(2):
        reports = [pack(source, out, part=(number, 2), shuffle=4, resume=True, **SMALL) for number in (0, 1)]
    assert reports[-1].complete
    check_packed(opened(out), opened(source), RandomBijection(COUNT, 4).numbers(np.arange(COUNT)))


def test_parts_at_the_same_time_make_one_store(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda n: pack(source, out, part=(n, 4), jobs=1, **SMALL), range(4)))
    if not any(report.complete for report in reports):  # each looked before the last one's units were done
        pack(source, out, resume=True, **SMALL)
    check_packed(opened(out), opened(source), np.arange(COUNT))


class FullDiskError(OSError):
    """What a full disk raises; no other error is expected."""


@pytest.mark.parametrize("seed", [None, 9])
def test_a_run_that_a_full_disk_ends_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    out, write, rng, runs = tmp_path / "out.zarr", WorkFolder.write, random.Random(1), 0
    left = 0

    def fail_at_times(folder: WorkFolder, name: str, parts: Any) -> int:
        nonlocal left
        left -= 1
        if left == 0:
            raise FullDiskError(errno.ENOSPC, f"{name}: No space left on device")
        return write(folder, name, parts)

    monkeypatch.setattr(WorkFolder, "write", fail_at_times)
    while True:
        left = rng.randint(5, 20)  # a unit writes 12 files
        runs += 1
        assert runs < 500
        with suppress(FullDiskError):
            pack(source, out, shuffle=seed, resume=True, jobs=2, **SMALL)
            break
        assert not out.exists()
    assert runs > 3
    monkeypatch.setattr(WorkFolder, "write", write)
    report = pack(source, out, shuffle=seed, resume=True, verify=True, **SMALL)
    assert report.proof is not None
    assert report.proof.ok
    pack(source, tmp_path / "whole.zarr", shuffle=seed, **SMALL)
    assert files_of(out) == files_of(tmp_path / "whole.zarr")


def test_units_that_are_done_are_not_done_again(source: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "out.zarr", list[PackProgress]()
    pack(source, out, part=(0, 2), **SMALL)
    written = {path: path.stat().st_mtime_ns for path in WorkFolder(out).store.rglob("*") if path.is_file()}
    pack(source, out, resume=True, on_progress=seen.append, **SMALL)
    assert seen[0].done == -(-seen[0].total // 2)
    for path, time in written.items():
        moved = out / path.relative_to(WorkFolder(out).store)
        assert moved.name == "zarr.json" or moved.stat().st_mtime_ns == time


def test_a_damaged_store_fails_the_proof(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    pack(source, out, codec="none", **SMALL)
    shard = out / "x" / "c" / "3" / "0"
    content = bytearray(shard.read_bytes())
    content[7] ^= 1
    shard.write_bytes(content)
    report = pack(source, out, codec="none", resume=True, verify=True, **SMALL)
    assert report.proof is not None
    assert report.proof.differing == ("x",)
    assert not report.ok
    assert "WRONG: the digests of source and store differ in x" in str(report)


def test_exchanged_samples_fail_the_proof(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    pack(source, out, **SMALL)
    time: Any = zarr.open_group(out)["time"]
    time[:] = np.asarray(time[...])[::-1]  # the same values, at other samples
    report = pack(source, out, resume=True, verify=True, **SMALL)
    assert report.proof is not None
    assert report.proof.differing == ("time",)


def test_nothing_is_overwritten(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out.zarr").mkdir()
    (tmp_path / "out.zarr" / "mine").touch()
    for resume in (False, True):
        with pytest.raises(FileExistsError, match="packing makes a new store"):
            pack(source, tmp_path / "out.zarr", resume=resume)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="packing makes a new store"):
        pack(source, tmp_path / "file")


def test_a_store_that_is_complete_is_left_as_it_is(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    pack(source, out, **SMALL)
    before = files_of(out)
    assert pack(source, out, resume=True, **SMALL).complete
    assert files_of(out) == before
    with pytest.raises(FileExistsError, match="packing makes a new store"):
        pack(source, out, **SMALL)
    with pytest.raises(FileExistsError, match="packing makes a new store"):
        pack(source, out, resume=True, shuffle=1, **SMALL)


def test_an_unfinished_run_is_gone_on_with_by_the_same_arguments_alone(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    pack(source, out, part=(0, 2), **SMALL)
    with pytest.raises(ConfigError, match="unfinished run; resume it"):
        pack(source, out, **SMALL)
    with pytest.raises(ConfigError, match="with other arguments"):
        pack(source, out, resume=True, shuffle=3, **SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample_chunk": 0}, "sample_chunk = 0, must be at least 1"),
        ({"shard": "much"}, "shard = 'much', must be bytes"),
        ({"codec": "gzip"}, "codec = 'gzip', must be compressor-level-shuffle"),
        ({"codec": {"y": "lz4"}}, "codec names 'y', must"),
        ({"dtype": "int8"}, "dtype of x: float32 cannot become int8"),
        ({"dtype": {"name": "f2"}}, "dtype of name: it has text, must have numbers"),
        ({"dtype": "float17"}, "must be the name of a dtype"),
        ({"shuffle": -1}, "shuffle = -1, must be at least 0"),
        ({"split": (0.5, 0.6)}, "shares must be positive and add up to 1"),
        ({"split": {"a/b": 1.0}}, "is no name for a group"),
        ({"split": (0.9999, 0.0001)}, "'val' gets none of 500 samples"),
        ({"split": (0.25,) * 4}, "give a mapping of names"),
        ({"part": (2, 2)}, "i of part = 2, must be at most 1"),
        ({"part": "1/2"}, "must be two numbers"),
        ({"variables": ["y"]}, "variables: 'y' is not in"),
        ({"executor": "slurm"}, "must be dask://HOST:PORT, ray"),
        ({"executor": 3}, "must have the method `submit`"),
        ({"jobs": 0}, "jobs = 0, must be at least 1"),
        ({"resume": 1}, "resume = 1, must be True or False"),
    ],
)
def test_arguments_that_cannot_work_are_refused(
    source: Path, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        pack(source, tmp_path / "out.zarr", **arguments)
    assert not (tmp_path / "out.zarr").exists()


def test_targets_that_cannot_hold_a_store_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is no directory; the store is made in this one"):
        pack(source, tmp_path / "no" / "out.zarr")
    with pytest.raises(ConfigError, match="must be the path of a local directory"):
        pack(source, "s3://bucket/out.zarr")


def test_a_second_pack_of_one_output_is_refused_by_name_at_once(source: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "out.zarr", list[str]()

    def another(_: PackProgress) -> None:
        if seen:
            return
        calls: list[dict[str, Any]] = [{}, {"resume": True}, {"part": (0, 2)}]
        for options in calls:
            with pytest.raises(ConfigError, match=r"out\.zarr\.packing: another call of pack works on this output"):
                pack(source, out, **options)
            seen.append(str(options))
        pack(source, tmp_path / "other.zarr")

    assert pack(source, out, on_progress=another).complete
    assert len(seen) == 3
    assert pack(source, out, resume=True).complete, "nobody holds it any more"


def test_a_whole_pack_is_refused_while_parts_are_done(source: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "out.zarr", list[str]()

    def another(_: PackProgress) -> None:
        if not seen:
            seen.append("")
            with pytest.raises(ConfigError, match="another call of pack works on this output"):
                pack(source, out, resume=True)
            pack(source, out, part=(1, 2))

    pack(source, out, part=(0, 2), on_progress=another)
    assert seen
    assert out.exists()


def test_a_source_that_changed_is_noticed_by_the_process_that_does_a_unit(tmp_path: Path) -> None:
    file, out = tmp_path / "x.npy", tmp_path / "out.zarr"
    np.save(file, np.arange(64.0))
    assert not pack(file, out, part=(0, 2), sample_chunk=4, shard=64).complete
    plan = WorkFolder(out).plan()
    assert plan is not None
    job = PackJob.from_json(plan, call_of([str(file)], None, SourceOptions()), str(out))
    assert UnitWorker(job).source.num_samples == 64
    np.save(file, np.arange(64.0) + 1)
    os.utime(file, (1, 1))
    with pytest.raises(ConfigError, match=r"x\.npy: has changed since it began to be packed"):
        _ = UnitWorker(job).source


def test_a_call_that_finds_the_work_finished_by_another_says_so(source: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "out.zarr", list[int]()

    def another(progress: PackProgress) -> None:
        if progress.done == 1 and not seen:  # on a file system without locks
            seen.append(1)
            shutil.rmtree(tmp_path / ".out.zarr.packing")
            assert pack(source, out, **SMALL).complete

    assert pack(source, out, on_progress=another, jobs=1, **SMALL).complete
    assert seen


def test_a_fits_file_is_packed_as_an_array(tmp_path: Path) -> None:
    values = np.arange(30 * 4 * 5, dtype="i4").reshape(30, 4, 5)
    (tmp_path / "x.fits").write_bytes(image(values, primary=True))
    pack(tmp_path / "x.fits", tmp_path / "x.zarr", verify=True)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x.zarr", mode="r")[:], values)
