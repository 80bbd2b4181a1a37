"""benchmarks/: the checksum catches what a loader can do wrong, and every loader delivers what the store holds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # benchmarks/ is not installed

from benchmarks import latency, run  # noqa: E402
from benchmarks.checksum import Checksum, ChecksumError, Hashes, sample_hashes, verify  # noqa: E402
from benchmarks.far_store import FarStore  # noqa: E402
from benchmarks.latency import verify_repeated  # noqa: E402
from benchmarks.layouts import LAYOUTS, Layout  # noqa: E402
from benchmarks.loaders import LOADERS, Batch  # noqa: E402
from benchmarks.measure import Timing  # noqa: E402
from benchmarks.results import FIRST_EPOCH, Measurement, summarise  # noqa: E402
from benchmarks.stores import Store, prepare_store  # noqa: E402

ROWS = 40
ROWS_PER_CHUNK = 8


def make_samples(shape: tuple[int, ...] = (6, 5), dtype: str = "float32") -> npt.NDArray[Any]:
    """Return samples that differ, shape (ROWS, *shape)."""
    return np.random.default_rng(3).integers(0, 200, (ROWS, *shape)).astype(dtype)


def check(expected: Hashes, delivered: Hashes, samples_per_epoch: int = ROWS) -> float:
    return verify(
        expected,
        delivered,
        samples_per_epoch=samples_per_epoch,
        rows_per_chunk=ROWS_PER_CHUNK,
        batch_rows=[len(delivered)],
    )


def test_the_checksum_does_not_depend_on_the_order_of_samples() -> None:
    samples, targets = make_samples(), np.arange(ROWS)
    order = np.random.default_rng(1).permutation(ROWS)
    expected = sample_hashes([samples, targets])
    delivered = sample_hashes([samples[order], targets[order]])
    assert Checksum.of(expected) == Checksum.of(delivered)
    assert check(expected, delivered) == ROWS / ROWS_PER_CHUNK


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_rows_that_changed_places_within_a_sample_are_caught(dtype: str) -> None:
    samples = make_samples((6, 5), dtype)  # 30 bytes: uint8 samples are no multiple of a word
    swapped = samples.copy()
    swapped[7, [1, 4]] = samples[7, [4, 1]]
    expected, delivered = sample_hashes([samples]), sample_hashes([swapped])
    assert np.flatnonzero(expected != delivered).tolist() == [7]
    assert Checksum.of(expected) != Checksum.of(delivered)
    with pytest.raises(ChecksumError, match=r"1 missing, 0 repeated, and 1 that the store does not have"):
        check(expected, delivered)


def test_parts_of_samples_that_changed_places_between_samples_are_caught() -> None:
    samples = make_samples()
    swapped = samples.copy()
    swapped[[7, 9], 2] = samples[[9, 7], 2]
    with pytest.raises(ChecksumError, match="2 missing, 0 repeated, and 2 that"):
        check(sample_hashes([samples]), sample_hashes([swapped]))


def test_targets_of_other_samples_are_caught() -> None:
    samples, targets = make_samples(), np.arange(ROWS)
    expected = sample_hashes([samples, targets])
    mispaired = sample_hashes([samples, np.roll(targets, 1)])
    assert Checksum.of(expected) != Checksum.of(mispaired)
    with pytest.raises(ChecksumError, match=f"{ROWS} missing, 0 repeated, and {ROWS} that"):
        check(expected, mispaired)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda index: index[1:], "1 missing, 0 repeated"),
        (lambda index: np.append(index, index[5]), "0 missing, 1 repeated"),
        (lambda index: np.append(index[1:], index[5]), "1 missing, 1 repeated"),
    ],
    ids=["missing", "repeated", "one instead of another"],
)
def test_a_missing_or_repeated_sample_is_caught(
    fault: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], message: str
) -> None:
    samples = make_samples()
    index = fault(np.random.default_rng(2).permutation(ROWS))
    expected, delivered = sample_hashes([samples]), sample_hashes([samples[index]])
    assert Checksum.of(expected) != Checksum.of(delivered)
    with pytest.raises(ChecksumError, match=message):
        check(expected, delivered)


def test_a_part_of_an_epoch_is_right_if_its_samples_are_different_ones_of_the_store() -> None:
    samples = make_samples()
    expected = sample_hashes([samples])
    assert check(expected, expected[[30, 2, 31]], samples_per_epoch=3) == 2
    with pytest.raises(ChecksumError, match="1 missing, 1 repeated"):
        check(expected, expected[[30, 2, 30]], samples_per_epoch=3)


def test_ratios_are_of_the_same_round() -> None:
    layout = LAYOUTS["main"]

    def measured(loader: str, repeat: int, gb_per_s: float) -> Measurement:
        timing = Timing(1, 1, int(gb_per_s * 1e9), 1.0, None, None)
        return Measurement(layout, loader, repeat, timing, {})

    # the machine is ten times slower in round 1
    ours, other = summarise(
        [
            measured("zarrfeed", FIRST_EPOCH, 1.0),
            *(measured("zarrfeed", repeat, rate) for repeat, rate in enumerate((8.0, 0.8, 8.4))),
            *(measured("zarr-map-0w", repeat, rate) for repeat, rate in enumerate((2.0, 0.2, 2.0))),
        ]
    )
    assert (ours.gb_per_s, ours.first_epoch, ours.slowest, ours.fastest) == (8.0, 1.0, 0.8, 8.4)
    assert other.ours_over_it == pytest.approx(4.0)


def test_a_changed_layout_is_written_anew_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    layout = LAYOUTS["main"].scaled("small")

    def written(layout: Layout) -> tuple[Path, int]:
        path = prepare_store(layout, tmp_path, scale="small").path
        return path, path.stat().st_ino

    path, first = written(layout)
    assert written(replace(layout, description="other words", batch_size=3)) == (path, first)
    changed = replace(layout, codec=LAYOUTS["zstd-v3"].codec)
    _, second = written(changed)
    assert second != first
    (path / "zarr.json").unlink()  # as if it were half removed
    assert written(changed)[1] != second
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_repeated_array_is_verified_sample_by_sample() -> None:
    expected = sample_hashes([make_samples()])
    delivered = np.random.default_rng(2).permutation(np.repeat(expected, 3))
    verify_repeated(expected, delivered, 3)
    swapped = delivered.copy()
    swapped[delivered == expected[4]] = expected[5]
    for wrong in (delivered[1:], np.append(delivered, expected[0]), swapped):
        with pytest.raises(ChecksumError, match="3 times the store is 120 samples"):
            verify_repeated(expected, wrong, 3)


class _MispairedLoader:
    """Delivers all samples and all targets, but not together."""

    settings: dict[str, object] = {}  # noqa: RUF012 (as the protocol has it)

    def __init__(self, store: Store, part_samples: int) -> None:
        self._loader = LOADERS["zarr-chunkwise-0w"](store, part_samples)
        self.samples_per_epoch = self._loader.samples_per_epoch

    def epoch(self, epoch: int) -> Iterator[Batch]:
        for batch in self._loader.epoch(epoch):
            samples, targets = batch
            yield samples, torch.roll(targets, 1)

    def close(self) -> None:
        self._loader.close()


def test_nothing_is_timed_after_wrong_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(LOADERS, "zarr-map-0w", _MispairedLoader)
    out = tmp_path / "out"
    options = ["--layouts", "rows-512", "--loaders", "zarrfeed,zarr-map-0w", "--scale", "small"]
    assert run.main([*options, "--data", str(tmp_path / "data"), "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "zarrfeed: 16389 samples are right" in printed
    assert "zarr-map-0w: WRONG" in printed
    assert "nothing was timed" in printed
    assert not out.exists()


def run_benchmarks(*options: str) -> str:
    command = [sys.executable, "-m", "benchmarks.run", "--scale", "small", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_loader_delivers_every_layout(tmp_path: Path) -> None:
    printed = run_benchmarks("--checksum-only", "--part-samples", "32", "--data", str(tmp_path))
    assert printed.count("samples are right") == len(LAYOUTS) * len(LOADERS)


def test_a_run_writes_rows_and_a_chart(tmp_path: Path) -> None:
    loaders = ["zarrfeed", "zarr-map-0w", "ceiling-scatter"]
    options = ["--layouts", "main", "--loaders", ",".join(loaders), "--repeats", "2", "--min-seconds", "0"]
    out = tmp_path / "out"
    printed = run_benchmarks(*options, "--part-samples", "32", "--data", str(tmp_path / "data"), "--out", str(out))
    assert "zarr-map-0w *" in printed  # it was timed on a part of an epoch
    rows = json.loads((out / "results.json").read_text())
    timed = [(row["loader"], row["repeat"]) for row in rows if not row["first_epoch"]]
    assert sorted(timed) == sorted((loader, repeat) for loader in loaders for repeat in range(2))
    assert {row["layout_name"] for row in rows} == {"main"}
    assert (out / "results.png").read_bytes().startswith(b"\x89PNG")


def test_latency_delivers_what_is_stored_and_reports_a_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--scale", "small", "--latency-ms", "1", "--repeats", "1", "--data", str(tmp_path)]
    assert latency.main(options) == 0
    printed = capsys.readouterr().out
    sides = 3 * len(latency.CASES) * len(latency.STORES)
    assert printed.count("samples are right") == sides
    rows = [line for line in printed.splitlines() if line.startswith("│")]
    assert len(rows) == len(latency.CASES) * len(latency.STORES)
    monkeypatch.setattr(FarStore, "_lengthened", lambda _, stored: stored)  # the array is not repeated
    assert latency.main([*options, "--layouts", "main", "--stores", "memory"]) == 1
    assert "nothing was timed" in capsys.readouterr().out
