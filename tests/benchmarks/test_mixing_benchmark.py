"""The benchmark of large chunks: it delivers every sample, finds rows that are others, and plans over its grid."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.suites import mixing
from benchmarks.suites.mixing import CASES, Case, Shape, main, write_case, wrong_samples

_SHAPE = Shape(6, (8, 16), 2, 5, 2, {1: "16 MiB", 2: "16 MiB"})


def _batches(case: Case) -> list[dict[str, Any]]:
    with closing(case.dataset()) as dataset:
        return [{**samples, "index": index} for samples, index in dataset]


def test_all_samples_are_delivered_and_timed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--cases", "J4,K", "--windows", "1", "--repeats", "2", "--seconds", "0.001", "--data", str(tmp_path)]
    assert main([*options, "--out", str(tmp_path / "results")]) == 0
    out = capfd.readouterr().out
    assert "144 samples, each once; 1.00 decodes" in out
    assert "480 samples, each once; 1.00 decodes" in out
    document = json.loads((tmp_path / "results" / "mixing.json").read_bytes())
    sides = [(turn["case"], turn["side"]) for turn in document["turns"]]
    assert sides == [(case, side) for case in ("J4", "K") for _ in range(2) for side in ("order", "ceiling")]
    assert [one.name for one in tmp_path.iterdir()] == ["results"]


def test_every_case_delivers_each_sample_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--checksum-only", "--data", str(tmp_path), "--out", str(tmp_path / "results")]) == 0
    assert capfd.readouterr().out.count("each once") == sum(len(shape.budgets) for shape in CASES["small"].values())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("window", [1, 2])
def test_rows_of_another_sample_file_variable_or_epoch_are_found(tmp_path: Path, window: int) -> None:
    write_case(_SHAPE, tmp_path / "a.zarr")
    assert (tmp_path / "a.zarr/v0/c/2/0/0").samefile(tmp_path / "a.zarr/v1/c/1/0/0")
    case = Case("a", tmp_path / "a.zarr", _SHAPE, window)
    batches = _batches(case)
    assert wrong_samples(iter([dict(one) for one in batches]), case) == ""
    first, *rest = batches
    other = {**first, "v1": first["v1"].roll(1, 0)}
    assert "have other rows of v1" in wrong_samples(iter([dict(other)]), case)
    swapped = {**first, "v0": first["v1"], "v1": first["v0"]}
    assert "have other rows of v0" in wrong_samples(iter([swapped]), case)
    renamed = {**first, "index": first["index"] + torch.tensor(1)}
    assert "have other rows of v0" in wrong_samples(iter([renamed]), case)
    assert "came [0, " in wrong_samples(iter([dict(one) for one in rest]), case)


def test_a_layout_of_the_grid_is_left_out(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(mixing, "GRID", ((1, 16, 200), (1024, 24, 100)))
    monkeypatch.setattr(mixing, "_GRID_BUDGETS", ("256 MiB",))
    assert main(["--grid"]) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if "KiB x" in line]
    assert [line.split()[1:3] for line in lines] == [["1", "KiB"]] * 2 + [["1024", "KiB"]] * 2
    assert "->" not in lines[0]  # chunks of 16 KiB are no better in slabs
    assert "-> 1.00" in lines[2]
    assert "refused" in lines[3]
