"""The benchmark of patches: its sides deliver boxes of the array, each voxel once, and others are found."""

from __future__ import annotations

import doctest
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from benchmarks.suites import patch_peers, patch_turns, patches_probe
from benchmarks.suites.patch_cases import CASES, PLANNED, Case, create, foreground, write
from benchmarks.suites.patch_peers import PEERS, Peer, box
from benchmarks.suites.patch_turns import turned_back
from benchmarks.suites.patches import Boxes, Ours, PatchCeiling, main, our_sides, wrong_patches
from benchmarks.suites.patches_probe import Channel, Side, check

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
        ("zarrfeed", "zarrfeed, 8 lanes", "ceiling-patches", "ceiling-scatter", "ceiling-decode", "plain"), 2
    )
    for turn in document["turns"]:
        if turn["side"].startswith("zarrfeed"):
            assert turn["decodes"] >= 1
    for first in document["first_epochs"][_NAME].values():
        assert first["decodes"] == pytest.approx(first["explained"])  # the engine decodes what the plan says
    for module in (patch_peers, patch_turns, patches_probe):
        assert doctest.testmod(module).attempted > 0
        assert doctest.testmod(module).failed == 0


def test_only_the_cases_that_are_named_are_checked(capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--checksum-only", "--most-patches", "8", "--workers", "0"]
    assert main(["--cases", "hours, chunks of a day", *options]) == 0
    assert capfd.readouterr().out.count("each voxel once") == 1
    assert main(options) == 0
    assert capfd.readouterr().out.count("boxes of the array") == len(CASES)
    with pytest.raises(SystemExit):
        main(["--cases", "chunks"])


@pytest.mark.parametrize("name", [_NAME, "hours, 256 x 256", "crops 64 x 64 x 8"])
def test_patches_that_are_turned_are_compared_and_measured(name: str, tmp_path: Path) -> None:
    options = ["--turns", "--cases", name, "--repeats", "1", "--least-s", "0", "--most-patches", "8", "--workers", "0"]
    assert main([*options, "--out", str(tmp_path)]) == 0
    sides = {turn["side"] for turn in json.loads((tmp_path / "patches.json").read_bytes())["turns"]}
    assert sides > {"flipped", "rotated", "flipped and rotated"}


def test_patches_that_are_turned_otherwise_are_found(tmp_path: Path) -> None:
    case = Case((12, 12, 12), (4, 4, 4), (4, 4, 4), 5, 2, 1.5, dtype="u4", holds_index=True)
    write(tmp_path / "a", case)
    values = np.asarray(zarr.open_array(tmp_path / "a", mode="r")[...])
    with Ours(tmp_path / "a", case, "64 MiB", turned=("flip", "rotate")) as ours:
        back = turned_back(ours, ours.data.resolved.patching, case.patch)
        assert wrong_patches(back, ours.locate, values, case.patch) == ""
        assert "are others" in wrong_patches(ours, ours.locate, values, case.patch)


@pytest.mark.parametrize("name", CASES)
def test_small_voxels_are_their_own_indices(name: str, tmp_path: Path) -> None:
    case = CASES[name].small()
    write(tmp_path / "a", case)
    values = np.asarray(zarr.open_array(tmp_path / "a", mode="r")[...])
    np.testing.assert_array_equal(values, np.arange(values.size).reshape(case.shape))


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4"])
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


def test_a_patch_of_the_loop_that_differs_is_found(tmp_path: Path) -> None:
    write(tmp_path / "a", _CASE)
    values = np.asarray(zarr.open_array(tmp_path / "a", mode="r")[...])
    with Ours(tmp_path / "a", _CASE, "64 MiB") as ours:
        starts = ours.starts()
        loop = PatchCeiling(ours.data, _CASE, starts)
    assert loop.wrong(values, starts) == ""
    values[5, 6, 7] += 1
    assert loop.wrong(values, starts) == f"1 patches of {len(starts)} are others"


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


@pytest.mark.parametrize("name", ["random 64", "random 64 of foreground"])
def test_random_patches_are_measured_beside_what_explain_counts(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--cases", name, "--repeats", "1", "--least-s", "0", "--most-patches", "8", "--workers", "0"]
    assert main([*options, "--out", str(tmp_path)]) == 0
    assert f"{name}: boxes of the array;" in capfd.readouterr().out
    document = json.loads((tmp_path / "patches.json").read_bytes())
    for first in document["first_epochs"][name].values():
        assert first["decodes"] == pytest.approx(first["explained"])
        assert first["formula"] is None  # it is one for tiles
    case = CASES[name].small()
    assert case.drawn is not None
    for turn in document["turns"]:
        if turn["side"].startswith("zarrfeed"):
            # Each patch is as large as a chunk, so what is decoded for it is how often each chunk was.
            assert turn["waste"] == pytest.approx(turn["decodes"])
            assert turn["patches_per_s"] == pytest.approx(turn["passes_per_s"] * case.drawn)


def test_patches_of_the_foreground_have_it_in_the_middle(tmp_path: Path) -> None:
    case = CASES["random 64 of foreground"].small()
    mask = foreground(case)
    assert 0 < mask.mean() < 0.3
    write(tmp_path / "a", case)
    with Ours(tmp_path / "a", case, "64 MiB") as ours:
        starts = ours.starts()
    assert len(starts) == case.drawn
    middles = (starts + np.array(case.patch) // 2) * mask.shape // case.shape
    assert mask[tuple(middles.T)].all()
    full = CASES["random 64 of foreground"]
    assert all(extent % length == 0 for extent, length in zip(full.shape, foreground(full).shape, strict=True))


@pytest.mark.parametrize("name", [_NAME, "random 64"])
def test_a_library_delivers_boxes_or_is_left_out(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--checksum-only", "--most-patches", "8", "--workers", "0", "--peer-python", sys.executable]
    assert main(["--cases", name, "--peers", "all", *options]) == 0  # 1, if what one delivers were others
    assert f"{name}: boxes of the array" in capfd.readouterr().out
    sides = our_sides(CASES[name], with_grid=True)
    assert ("zarrfeed, grid" in sides) == (name == _NAME)  # which random patches do not lie on
    with pytest.raises(SystemExit):
        main(["--peers", "zarr"])


def _peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> Peer:
    """Return a peer whose process is a script; `task` is what it is asked for."""
    probe = tmp_path / "probe.py"
    probe.write_text(f"import json, sys, zlib\ntask = json.loads(sys.argv[2])\n{lines}")
    monkeypatch.setattr(patch_peers, "_PROBE", probe)
    return Peer("other", sys.executable, tmp_path / "a", tmp_path, _CASE, np.array([[0, 0, 0], [-1, 8, 3]]), 10, 0)


def test_patches_of_a_library_are_compared_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(12 * 10 * 9, dtype="u4").reshape(_CASE.shape)
    start = [2, 3, 4]  # its own sampler chose it, of 5 that it has, and it delivers float32
    crc = zlib.crc32(box(values, np.array(start), _CASE.patch).astype("f4").tobytes())
    checked = {"starts": [start], "sums": [crc], "shapes": [list(_CASE.patch)], "dtypes": ["float32"]}
    checked |= {"decoded": 1.5, "epoch": 5}
    timed = {"seconds": 0.5, "patches": 20}
    answers = f"print({json.dumps(json.dumps(checked))}, flush=True)\nfor line in sys.stdin:\n"
    answers += f"    assert float(line) == 0.25\n    print({json.dumps(json.dumps(timed))}, flush=True)\n"
    with _peer(tmp_path, monkeypatch, answers) as peer:
        assert peer.missing == ""
        assert peer.wrong(values) == ""
        assert peer.wrong(values + 1) == "1 patches of 1 are others"
        turn = peer.turn("case", "other", 0, 0.25)
        assert (turn.patches_per_s, turn.passes_per_s, turn.waste, turn.decodes) == (40, 8, 1.5, None)


def test_a_library_of_other_shapes_or_that_is_missing_or_dies_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = {"starts": [[0, 0, 0]], "sums": [0], "shapes": [[1, 3, 4, 2]], "dtypes": ["uint32"], "decoded": None}
    with _peer(tmp_path, monkeypatch, f"print({json.dumps(json.dumps(checked))})") as peer:
        assert peer.wrong(np.zeros(_CASE.shape)) == "patches of shape [[1, 3, 4, 2]]"
    with _peer(tmp_path, monkeypatch, "print(json.dumps({'missing': 'no ' + task['sampling']}))") as peer:
        assert peer.missing == "no tiles"
    with pytest.raises(RuntimeError, match="other: its process ended with status 3"):
        _peer(tmp_path, monkeypatch, "sys.exit(3)")
    assert set(PEERS) == {"tensorstore", "monai", "torchio", "xbatcher", "zarr-torch-dataset", "nnunet"}


def test_what_a_library_delivers_is_summed_patch_by_patch() -> None:
    batch = torch.arange(2 * 3 * 4 * 2, dtype=torch.float32).reshape(2, 3, 4, 2)

    def checked() -> Iterator[tuple[torch.Tensor, list[list[int]]]]:
        yield batch[:1], [[0, 0, 0]]
        yield batch[1:], [[5, 0, 1]]

    found = check(Side(checked, lambda: iter(()), len, 7))
    sums = [zlib.crc32(patch.numpy().tobytes()) for patch in batch]
    assert found == {
        "starts": [[0, 0, 0], [5, 0, 1]],
        "sums": sums,
        "shapes": [(3, 4, 2)],
        "dtypes": ["float32"],
        "decoded": 2,
        "epoch": 7,
    }


def test_a_slab_of_an_array_has_a_channel_and_remembers_its_slices() -> None:
    values = np.arange(12 * 10 * 9).reshape(12, 10, 9)
    slab = Channel(values, 4, 10)
    assert (slab.shape, slab.ndim) == ((1, 6, 10, 9), 4)
    part = slab[slice(None), slice(1, 3), slice(0, 10), slice(2, 5)]
    np.testing.assert_array_equal(part, values[None, 5:7, :, 2:5])
    assert slab.seen == [[5, 0, 2]]
