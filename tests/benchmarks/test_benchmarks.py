"""benchmarks/: the checksum catches what a loader can do wrong, and every loader delivers what the store holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from benchmarks.data.conversion import as_bits, convert
from benchmarks.data.far_store import FarStore
from benchmarks.data.layouts import LAYOUTS, Layout
from benchmarks.data.stores import Store, prepare_store, read_store
from benchmarks.harness.checksum import Checksum, ChecksumError, Hashes, sample_hashes, verify
from benchmarks.harness.measure import Timing, expected_hashes, verify_library_ceiling
from benchmarks.loaders import LIBRARY_CEILING, LOADERS, Batch, LibraryCeiling, why_not
from benchmarks.report.charts import BARS, draw_curves, draw_results, enough_threads
from benchmarks.report.goals import to_markdown, verdicts
from benchmarks.report.results import FIRST_EPOCH, Measurement, Summary, summarise
from benchmarks.suites import latency, throughput
from benchmarks.suites.latency import verify_repeated
from tests.support.paths import ROOT
from zarrfeed import ConfigError, CorruptChunkError, _core
from zarrfeed.base.system import usable_cores
from zarrfeed.spec.arrays.codec import CodecSpec

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
    layout = LAYOUTS["A"]

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
    layout = LAYOUTS["A"].scaled("small")

    def written(layout: Layout) -> tuple[Path, int]:
        path = prepare_store(layout, tmp_path, scale="small").path
        return path, path.stat().st_ino

    path, first = written(layout)
    assert written(replace(layout, description="other words", batch_size=3)) == (path, first)
    changed = replace(layout, codec=LAYOUTS["B-zstd"].codec)
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
    options = ["--layouts", "D", "--loaders", "zarrfeed,zarr-map-0w", "--scale", "small"]
    assert throughput.main([*options, "--data", str(tmp_path / "data"), "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "zarrfeed: 16389 samples are right" in printed
    assert "zarr-map-0w: WRONG" in printed
    assert "D was not timed" in printed
    assert not out.exists()


def run_benchmarks(*options: str) -> str:
    command = [sys.executable, "-m", "benchmarks.run", "--scale", "small", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def count_checked(printed: str) -> int:
    """Return how many loaders were right, or could not be measured and said so."""
    return printed.count("samples are right") + printed.count(": skipped, ")


def test_every_loader_delivers_layouts_with_and_without_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, whose forkserver has imported what each of its workers needs."""
    options = ["--scale", "small", "--checksum-only", "--part-samples", "32", "--data", str(tmp_path)]
    assert throughput.main([*options, "--layouts", "C,D-1024"]) == 0
    printed = capsys.readouterr().out
    assert count_checked(printed) == 2 * (len(LOADERS) + 1), "and the ceiling of the libraries"
    assert "zarr-chunkwise-workers: skipped" not in printed


def test_every_loader_without_workers_delivers_every_layout(tmp_path: Path) -> None:
    loaders = [name for name in LOADERS if not name.endswith("workers")]
    options = ["--checksum-only", "--part-samples", "32", "--data", str(tmp_path), "--loaders", ",".join(loaders)]
    assert count_checked(run_benchmarks(*options)) == len(LAYOUTS) * len(loaders)


def test_loaders_get_as_many_threads_or_workers_as_there_are_cores(tmp_path: Path) -> None:
    store = prepare_store(LAYOUTS["C"].scaled("small"), tmp_path, scale="small")
    for name in (name for name in LOADERS if name.startswith("zarr-") and "beluga" not in name and "torch" not in name):
        with closing(LOADERS[name](store, 32)) as loader:
            workers = name.endswith("workers")
            assert loader.settings["num_workers"] == usable_cores() * workers, name
            if "chunkwise" in name:
                assert loader.settings["threads"] == (1 if workers else usable_cores())


@pytest.mark.parametrize("name", ["I-int16", "I-bfloat16"])
def test_a_sample_that_was_not_converted_or_rounded_otherwise_is_caught(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name].scaled("small")
    store = prepare_store(layout, tmp_path, scale="small")
    samples = torch.from_numpy(read_store(store)[0])
    right = expected_hashes(store)
    converted = convert(layout, samples)
    assert np.array_equal(sample_hashes([as_bits(converted)]), right)
    assert converted.dtype == (torch.float32 if name == "I-int16" else torch.bfloat16)
    bits = converted.view(torch.int32 if name == "I-int16" else torch.int16)
    bits.view(len(bits), -1)[7, 5] += 1  # the neighbouring number
    assert np.flatnonzero(sample_hashes([as_bits(converted)]) != right).tolist() == [7]
    assert not np.isin(sample_hashes([samples.numpy()]), right).any()


def test_stores_make_room_for_others_but_layouts_that_share_one_do_not_write_it_twice(tmp_path: Path) -> None:
    def written(name: str, max_bytes: int, keep: Sequence[str] = ()) -> str:
        layout = LAYOUTS[name].scaled("small")
        kept = [tmp_path / f"{k}-small.zarr" for k in keep]
        return prepare_store(layout, tmp_path, scale="small", max_bytes=max_bytes, keep=kept).path.name

    def names() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir())

    room = 12 << 20  # three stores of about 3.6 MiB
    assert written("A", room) == "A-small.zarr"
    assert written("I-bfloat16", room) == "A-small.zarr"
    for number, name in enumerate(("B-zstd", "E")):
        written(name, room)
        os.utime(tmp_path / f"{name}-small.zarr", (number, number))  # it was used long ago
    assert names() == ["A-small.zarr", "B-zstd-small.zarr", "E-small.zarr"]
    written("H", room)
    assert names() == ["A-small.zarr", "E-small.zarr", "H-small.zarr"]
    written("B-gzip", 0, keep=["E"])
    assert names() == ["B-gzip-small.zarr", "E-small.zarr"]


def test_a_verdict_names_the_fastest_of_each_kind_and_marks_what_misses_its_goal() -> None:
    def summary(layout: str, loader: str, ours_over_it: float | None, it_over_ceiling: float) -> Summary:
        return Summary(layout, loader, 5.0, 5, 5, None, None, None, True, ours_over_it, it_over_ceiling)

    (on_a,) = verdicts(
        [
            summary("A", "zarrfeed", 1.0, 0.894),
            summary("A", "ceiling-library", 0.62, 1.4),
            summary("A", "zarr-chunkwise-0w", 12.5, 0.1),
            summary("A", "zarr-map-workers", 60.0, 0.1),
            summary("A", "tensorstore", 2.4, 0.1),
            summary("A", "zarrs-chunkwise-0w", 3.0, 0.1),
            summary("A", "numpy-memmap", 1.25, 0.1),
            summary("C", "zarr-beluga", 1.1, 0.1),
        ]
    )
    assert (on_a.plain, on_a.over_plain, on_a.peer, on_a.over_peer) == ("zarr-chunkwise-0w", 12.5, "tensorstore", 2.4)
    assert (on_a.over_memmap, on_a.over_memory) == (1.25, None)
    row = to_markdown([on_a]).splitlines()[-1]
    assert row == (
        "| A | 5.00 | **0.89** | 0.9 | 0.62 | 12.5 zarr-chunkwise-0w | 12 | **2.4** tensorstore | 2.5 | 1.25 |  |"
    )


def test_a_loader_that_is_not_installed_is_skipped_and_the_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.loaders.find_spec", lambda _: None)
    options = ["--layouts", "C", "--loaders", "zarrfeed,tensorstore", "--scale", "small", "--checksum-only"]
    assert throughput.main([*options, "--data", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "zarrfeed: 13 samples are right" in printed
    assert "tensorstore: skipped, tensorstore is not installed" in printed


@pytest.mark.parametrize("name", [name for name in LAYOUTS if not why_not(LIBRARY_CEILING, LAYOUTS[name])])
def test_the_ceiling_of_the_libraries_reads_what_the_store_holds(name: str, tmp_path: Path) -> None:
    store = prepare_store(LAYOUTS[name].scaled("small"), tmp_path, scale="small")
    expected = expected_hashes(store)
    ceiling = LibraryCeiling(store)
    verify_library_ceiling(ceiling, expected)
    assert ceiling.measure() > 0
    wrong = expected.copy()
    wrong[3] ^= np.uint64(1)
    with pytest.raises(ChecksumError, match=f"1 of {len(expected)} samples differ from the store's, the first is 3"):
        verify_library_ceiling(ceiling, wrong)


def test_the_ceiling_of_the_libraries_says_what_it_cannot_do(tmp_path: Path) -> None:
    assert why_not(LIBRARY_CEILING, LAYOUTS["I-int16"]) == "no codec's library converts items"
    store = prepare_store(LAYOUTS["A"].scaled("small"), tmp_path, scale="small")
    (field,) = LibraryCeiling(store)._fields
    options: dict[str, Any] = {"num_threads": 1, "window_chunks": 1}
    for codecs in ((), (*field.spec.codecs, CodecSpec("crc32c", "crc32c"))):
        broken = replace(field, spec=replace(field.spec, codecs=codecs)).to_core()
        with pytest.raises(ConfigError, match="one call of a codec's library does not make samples of its chunks"):
            _core.measure_library_ceiling(broken, **options)
    with pytest.raises(ConfigError, match="out has 3 bytes"):
        _core.measure_library_ceiling(field.to_core(), **options, out=np.zeros(3, dtype=np.uint8))
    for library, reason in (
        ("", "need blosc2_library"),
        ("no/such.so", "blosc2_library: no/such.so: "),
        (_core.__file__, "blosc2_library has no blosc2_create_dctx"),
    ):
        with pytest.raises(ConfigError, match=reason):
            _core.measure_library_ceiling(field.to_core(), **options, blosc2_library=library)
    (chunk,) = (store.samples_path / "c" / "2").rglob("0/0/0")
    chunk.write_bytes(b"damaged")
    with pytest.raises(CorruptChunkError, match="c/2/0/0/0: the codec's library does not decode it"):
        LibraryCeiling(store).measure()


def test_a_run_writes_rows_and_a_chart(tmp_path: Path) -> None:
    loaders = ["zarrfeed", "zarr-map-0w", "ceiling-scatter", "ceiling-library"]
    options = ["--layouts", "A", "--loaders", ",".join(loaders), "--repeats", "2", "--min-seconds", "0"]
    out = tmp_path / "out"
    printed = run_benchmarks(*options, "--part-samples", "32", "--data", str(tmp_path / "data"), "--out", str(out))
    assert "zarr-map-0w *" in printed  # it was timed on a part of an epoch
    rows = json.loads((out / "results.json").read_text())
    timed = [(row["loader"], row["repeat"]) for row in rows if not row["first_epoch"]]
    assert sorted(timed) == sorted((loader, repeat) for loader in loaders for repeat in range(2))
    assert {row["layout_name"] for row in rows} == {"A"}
    assert re.search(r"ceiling-library: \d+ samples are right", printed)
    assert "/ codec's library" in (out / "results.md").read_text()
    assert (out / "results.png").read_bytes().startswith(b"\x89PNG")


def test_a_chart_has_a_bar_for_the_fastest_of_each_kind_and_lines_for_the_ceilings() -> None:
    def summary(layout: str, loader: str, rate: float) -> Summary:
        return Summary(layout, loader, rate, rate, rate, None, None, None, True, None, None)

    rates = {
        "zarrfeed": 6.0,
        "zarr-chunkwise-0w": 0.5,
        "zarr-map-workers": 0.1,
        "tensorstore": 1.5,
        "ceiling-scatter": 7.0,
    }
    figure = draw_results([summary(layout, *rate) for layout in ("A", "C") for rate in rates.items()], "a machine")
    for panel, layout in zip(figure.axes, ("A", "C"), strict=True):
        assert panel.get_title(loc="left").startswith(f"{layout}: ")
        assert [bar.get_width() for bar in panel.patches] == [6.0, 0.5, 1.5]
        assert [line.get_xdata()[0] for line in panel.lines] == [7.0]
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["zarrfeed", "plain zarr, best", "tensorstore"]


def test_every_loader_is_in_a_chart() -> None:
    assert sorted(name for names, _ in BARS.values() for name in names) == sorted(LOADERS)


def test_curves_say_from_where_on_more_threads_give_nothing(tmp_path: Path) -> None:
    linear, bounded = {n: 5.0 * n for n in range(1, 17)}, {n: min(5.0 * n, 40.0) for n in range(1, 17)}
    noise = {1: 5.0, 2: 5.1, 3: 4.9}
    assert [enough_threads(rates) for rates in (linear, bounded, noise)] == [None, 8, 1]
    figure = draw_curves({"zarrfeed": bounded, "ceiling-scatter": linear}, "a machine")
    (axes,) = figure.axes
    assert [len(line.get_xdata()) for line in axes.lines] == [16, 1, 16]  # the mark is a line of one point
    assert axes.lines[1].get_xdata() == [8]
    figure.savefig(tmp_path / "threads.png")
    assert (tmp_path / "threads.png").read_bytes().startswith(b"\x89PNG")


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
