"""The benchmark of files delivers every sample of each kind, times all sides, and finds values that are others."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.compile import NoCompilerError
from benchmarks.harness.nginx import NoNginxError
from benchmarks.suites.file_cases import KINDS, open_case
from benchmarks.suites.files import main, wrong_samples
from zarrfeed import _core


def test_all_samples_of_every_kind_are_delivered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--checksum-only", "--data", str(tmp_path)]) == 0
    said = capfd.readouterr().out
    delivered = said.count(" samples; the files have ")
    assert delivered + said.count("kerchunk: skipped: ") == len(KINDS) == said.count("\n")


def test_all_sides_are_timed(tmp_path: Path) -> None:
    optional = {"netcdf4": "netCDF4", "h5netcdf": "h5netcdf", "xbatcher": "xbatcher"}
    peers = ["reader-0w", "reader-order", *(peer for peer, name in optional.items() if importlib.util.find_spec(name))]
    options = ["--cases", "years,npy,zip", "--peers", ",".join([*peers, "memory"]), "--repeats", "2", "--rows", "9"]
    assert main([*options, "--data", str(tmp_path), "--out", str(tmp_path / "results")]) == 0
    turns = json.loads((tmp_path / "results" / "files.json").read_bytes())["turns"]
    assert list(turns) == ["years", "npy", "zip"]
    assert set(turns["years"]) == {"zarrfeed", "ceiling", "memory", *peers}
    assert set(turns["npy"]) == set(turns["zip"]) == {"zarrfeed", "ceiling", "reader-0w", "reader-order"}
    for sides in turns.values():
        for measured in sides.values():
            assert len(measured) == 2
            assert all(turn["rate"] > 0 for turn in measured)


def test_references_are_read_through_a_server(tmp_path: Path) -> None:
    try:
        with open_case(tmp_path, KINDS["kerchunk"], "small") as case:
            assert case.references.startswith("http://127.0.0.1:")
            assert wrong_samples(iter(case.dataset()), case) == ""
            case.paths[0].unlink()  # the reader does not fall back to the local file
            assert case.reader()(0).shape == (case.num_samples, *case.shape.item)
    except (NoNginxError, NoCompilerError) as error:
        pytest.skip(str(error))


def test_other_values_and_other_samples_are_found(tmp_path: Path) -> None:
    with open_case(tmp_path, KINDS["years"], "small") as case:
        batches: list[Any] = list(case.dataset())
        assert wrong_samples(iter(batches), case) == ""
        samples, index = batches[0]
        assert "has other values" in wrong_samples(iter([({"x": samples["x"].roll(1, 1)}, index)]), case)
        assert "has other values" in wrong_samples(iter([(samples, (index + 1) % case.num_samples)]), case)
        assert "came" in wrong_samples(iter(batches[1:]), case)


def test_the_ceiling_reads_every_chunk_of_all_files(tmp_path: Path) -> None:
    with open_case(tmp_path, KINDS["years"], "small") as case:
        (joined,) = case.fields
        chunks = case.shape.files * -(-case.shape.samples // case.shape.rows)
        _, decoded, stored, cpu_seconds = _core.measure_ceiling(
            joined.to_core(), num_threads=2, window_chunks=4, scatter=True
        )
        assert decoded == chunks * case.shape.rows * case.sample_bytes
        assert 0 < stored < sum(path.stat().st_size for path in case.paths)
        assert cpu_seconds > 0
