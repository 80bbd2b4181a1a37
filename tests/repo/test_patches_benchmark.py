"""The benchmark of patches: its sides deliver boxes of the array, each voxel once, and others are found."""

from __future__ import annotations

import doctest
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from benchmarks.suites import patches
from benchmarks.suites.patch_cases import CASES, PLANNED, Case, create, write
from benchmarks.suites.patches import Boxes, Ours, box, main, wrong_patches

_CASE = Case((12, 10, 9), (4, 4, 4), (3, 4, 2), 5, 2, 1.5, dtype="u4", holds_index=True)
_NAME = "chunks 128, lz4"


def test_a_case_is_measured_beside_bare_loops_and_slicing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--cases", _NAME, "--repeats", "2", "--least-s", "0", "--most-patches", "8", "--workers", "0"]
    assert main([*options, "--out", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert f"{_NAME}: boxes of the array, each voxel once" in out
    assert all(f"{name}, not written: a chunk would be decoded" in out for name in PLANNED)
    document = json.loads((tmp_path / "patches.json").read_bytes())
    assert Counter(turn["side"] for turn in document["turns"]) == dict.fromkeys(
        ("zarrfeed", "zarrfeed, 8 lanes", "ceiling-scatter", "ceiling-decode", "plain"), 2
    )
    for turn in document["turns"]:
        if turn["side"].startswith("zarrfeed"):
            assert turn["decodes"] >= 1
    for first in document["first_epochs"][_NAME].values():
        assert first["decodes"] == pytest.approx(first["explained"])  # the engine decodes what the plan says
    assert doctest.testmod(patches).attempted > 0
    assert doctest.testmod(patches).failed == 0


def test_only_the_cases_that_are_named_are_checked(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", "hours, chunks of a day", "--checksum-only", "--most-patches", "8", "--workers", "0"]) == 0
    assert capfd.readouterr().out.count("each voxel once") == 1
    with pytest.raises(SystemExit):
        main(["--cases", "chunks"])


@pytest.mark.parametrize("name", CASES)
def test_small_voxels_are_the_numbers_of_their_places(name: str, tmp_path: Path) -> None:
    case = CASES[name].small()
    write(tmp_path / "a", case)
    values = np.asarray(zarr.open_array(tmp_path / "a", mode="r")[...])
    np.testing.assert_array_equal(values, np.arange(values.size).reshape(case.shape))


@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_full_values_fill_the_array_and_compress(dtype: str, tmp_path: Path) -> None:
    case = Case((192, 160, 160), (64, 80, 80), (8, 8, 8), 8, 8, 1.5, dtype=dtype)
    write(tmp_path / "a", case)
    stored = sum(file.stat().st_size for file in (tmp_path / "a" / "c").rglob("*") if file.is_file())
    assert 1.2 < case.decoded_bytes / stored < 4
    assert np.asarray(zarr.open_array(tmp_path / "a", mode="r")[-1]).any()


def test_a_voxel_that_differs_is_found(tmp_path: Path) -> None:
    write(tmp_path / "a", _CASE)
    values = np.asarray(zarr.open_array(tmp_path / "a", mode="r")[...])
    with Ours(tmp_path / "a", _CASE, "64 MiB") as ours:
        assert wrong_patches(ours, ours.locate, values, _CASE.patch) == ""
        values[5, 6, 7] += 1
        assert wrong_patches(ours, ours.locate, values, _CASE.patch).startswith("1 patches of ")


def test_patches_that_lack_or_come_twice_or_are_padded_with_others_are_found() -> None:
    values = np.arange(1, 17, dtype="u4").reshape(1, 4, 4)
    starts = np.array([[0, 0, 0], [0, 0, 2], [0, 2, 0], [0, 2, 2], [0, -1, 3]])
    size = (1, 2, 2)

    def wrong(numbers: list[int], *, is_whole: bool = True) -> str:
        made = torch.from_numpy(np.stack([box(values, starts[number], size) for number in numbers]))
        batches = [(made, torch.tensor(numbers))]
        return wrong_patches(batches, lambda index: starts[index], values, size, is_whole=is_whole)

    assert wrong([3, 1, 0, 2]) == ""
    assert wrong([3, 1, 0]) == "4 voxels are missing, 0 came several times"
    assert wrong([3, 1, 0], is_whole=False) == ""
    assert wrong([3, 1, 0, 2, 2]) == "0 voxels are missing, 4 came several times"
    padded = torch.from_numpy(box(values, starts[4], size))[None]
    padded[0, 0, 0, 0] = 9  # beyond the array
    one = [(padded, torch.tensor([4]))]
    assert wrong_patches(one, lambda index: starts[index], values, size, is_whole=False) == "1 patches of 1 are others"


def test_plain_slicing_returns_padded_boxes(tmp_path: Path) -> None:
    create(tmp_path / "a", _CASE)[...] = np.ones(_CASE.shape, "u4")
    boxes = Boxes(tmp_path / "a", np.array([[-1, 8, 3]]), (3, 4, 2))
    patch, number = boxes[0]
    assert (len(boxes), int(number), int(patch.sum())) == (1, 0, 2 * 2 * 2)
