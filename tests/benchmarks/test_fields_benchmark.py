"""The benchmark of joined, padded and stacked fields: its sides deliver every sample, and others are found."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import zarr

from benchmarks.suites.fields import CASES, Reader, Scale, main, wrong_samples

_SCALE = Scale(150, (2, 3))


def test_all_sides_deliver_every_sample_and_are_timed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--repeats", "2", "--seconds", "0.001", "--out", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert out.count("each once") == 6
    rows = json.loads((tmp_path / "fields.json").read_bytes())["rows"]
    assert Counter((row["case"], row["side"]) for row in rows) == {
        ("join", "joined"): 2,
        ("join", "each alone"): 2,
        ("pad", "padded"): 2,
        ("pad", "left out"): 2,
        ("stack", "stacked"): 2,
        ("stack", "torch.stack"): 2,
    }


def test_only_the_cases_that_are_named_are_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", "stack", "--checksum-only", "--out", str(tmp_path)]) == 0
    assert "join" not in capfd.readouterr().out
    assert not (tmp_path / "fields.json").exists()
    with pytest.raises(SystemExit):
        main(["--cases", "stacks"])
    assert "'stacks', must be one of join, pad, stack" in capfd.readouterr().err


@pytest.mark.parametrize("case", CASES)
def test_samples_are_those_of_numpy(case: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        for side in CASES[case](tmp_path, _SCALE).values():
            reader = Reader(side, stack)
            assert wrong_samples(iter(reader), side.written) == ""
            assert sum(len(batch[0]) for batch in reader) == side.samples * len(side.datas)


@pytest.mark.parametrize("case", CASES)
def test_a_value_that_differs_is_found(case: str, tmp_path: Path) -> None:
    sides = CASES[case](tmp_path, _SCALE)
    for path in {path.parent for path in tmp_path.rglob("zarr.json")}:
        array = zarr.open_array(path, mode="r+")
        array[70, 1, 1] = 1000.0
    with ExitStack() as stack:
        for side in sides.values():
            assert "samples of" in wrong_samples(iter(Reader(side, stack)), side.written)


def test_rows_of_the_wrong_sample_in_a_pair_are_found(tmp_path: Path) -> None:
    side = CASES["join"](tmp_path, _SCALE)["joined"]
    swapped = replace(side, tensors=lambda batch: (batch["first"], batch["second"].roll(1, 0)))
    with ExitStack() as stack:
        assert wrong_samples(iter(Reader(swapped, stack)), side.written).startswith(f"{side.samples} samples of")


def test_samples_that_lack_or_are_others_are_found() -> None:
    batch = (torch.arange(6.0).reshape(3, 2),)
    written = Counter({1: 1})
    assert wrong_samples(iter([]), written) == "1 samples of 1 are missing, 0 are others"
    assert wrong_samples(iter([batch]), Counter()) == "0 samples of 0 are missing, 3 are others"
