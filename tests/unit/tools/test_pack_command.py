"""`zarrfeed pack`: options become arguments, exit statuses tell what is left."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.packing import check_packed, make_source
from zarrfeed.packing.sources.source import KINDS as SOURCE_KINDS
from zarrfeed.tools.cli import main
from zarrfeed.tools.pack_command import KINDS

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")

COUNT = 100


@pytest.fixture
def source(tmp_path: Path) -> Path:
    make_source(tmp_path / "in.zarr", COUNT)
    return tmp_path / "in.zarr"


def run(*arguments: object) -> int:
    return main(["pack", *map(str, arguments)])


def test_a_store_is_packed_and_proved(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.zarr"
    options = (
        "--sample-chunk",
        4,
        "--shard",
        "1KiB",
        "--codec",
        "zstd-1",
        "--codec",
        "x=none",
        "--jobs",
        2,
        "--verify",
    )
    assert run(source, "-o", out, *options) == 0
    told = capsys.readouterr().out
    assert "complete, and proved: 100 samples" in told
    assert "x: float32, chunks of 4 samples, shards of 40, none" in told
    check_packed(zarr.open_group(out, mode="r"), zarr.open_group(source, mode="r"), np.arange(COUNT))


def test_options_reach_the_store(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    options = ("--variables", "x", "time", "--dtype", "x=float64", "--shard", "none", "--sample-chunk", "auto")
    assert run(source, "-o", out, *options, "--shuffle", 5, "--split", "train=0.75,val=0.25") == 0
    group: Any = zarr.open_group(out, mode="r")
    assert sorted(group["train"].array_keys()) == ["time", "x"]
    assert group["train/x"].shape == (75, 6)
    assert group["train/x"].dtype == np.float64
    assert group["train/x"].shards is None
    times = np.concatenate([group["train/time"][...], group["val/time"][...]]).astype(int)
    assert sorted(times) == list(range(COUNT))
    assert list(times) != list(range(COUNT))


def test_a_part_says_that_others_are_left(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, options = tmp_path / "out.zarr", ("--sample-chunk", 4, "--shard", "1KiB")
    assert run(source, "-o", out, *options, "--part", "0/2") == 3
    assert run(source, "-o", out, *options) == 2
    assert "resume it (--resume)" in capsys.readouterr().err
    assert run(source, "-o", out, *options, "--part", "1/2") == 0
    assert run(source, "-o", out, *options, "--resume") == 0
    assert run(source, "-o", out, *options) == 2
    assert "packing makes a new store" in capsys.readouterr().err


def test_a_difference_is_told_by_the_status(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.zarr"
    assert run(source, "-o", out, "--codec", "none") == 0
    zarr.open_group(out)["x"][3, 2] = -1  # type: ignore[index]
    assert run(source, "-o", out, "--codec", "none", "--resume", "--verify") == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--resize", "0x3"), "must be HEIGHTxWIDTH"),
        (("--split", "0.5;0.5"), "must be shares"),
        (("--split", "a=0.5,0.5"), "each share needs a name"),
        (("--split", "a=0.5,a=0.5"), "each share needs a name"),
        (("--part", "2/2"), "must be I/N"),
        (("--part", "half"), "must be I/N"),
        (("--shuffle", "-1"), "must be an integer in"),
        (("--sample-chunk", "0"), "must be an integer of at least 1"),
    ],
)
def test_options_that_cannot_work_are_refused(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run("in.zarr", "-o", "out.zarr", *arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--codec", "gzip"), "codec = 'gzip'"),
        (("--executor", "spark://host"), "must be dask://HOST:PORT"),
        (("--shard", "many"), "shard = 'many'"),
    ],
)
def test_values_that_cannot_work_are_refused(
    source: Path, tmp_path: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(source, "-o", tmp_path / "out.zarr", *arguments) == 2
    assert message in capsys.readouterr().err


def test_the_help_lists_the_kinds_of_sources(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--help")
    shown = " ".join(capsys.readouterr().out.split())
    listed = re.sub(r" \(.*?\)", "", KINDS).split(", ")
    assert listed == list(SOURCE_KINDS)
    assert f"what SOURCE is: {KINDS}" in shown
