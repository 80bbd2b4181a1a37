"""The benchmark of a forecaster's samples: it delivers every sample, and finds rows that are others."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import zarr

from benchmarks.suites.forecast import CHUNKS, CODECS, SCALES, Case, Scale, main, write_case, wrong_samples
from zarrfeed import _core, open

_SCALE = Scale(50, (2, 3), "1 MiB", 1 << 16)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """Write a store of 50 steps in chunks of 16."""
    return write_case("lz4", "16", tmp_path, _SCALE)


def test_all_samples_are_delivered_and_timed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--codecs", "zstd", "--chunks", "16,365", "--repeats", "2", "--seconds", "0.001", "--out", str(tmp_path)]
    assert main(options) == 0
    assert capfd.readouterr().out.count("395 samples, each once") == 2
    document = json.loads((tmp_path / "forecast.json").read_bytes())
    sides = [(row["case"], row["side"]) for row in document["rows"]]
    cases = ["chunks of 16, zstd", "chunks of 365, zstd"]
    assert sides == [(case, side) for case in cases for _ in range(2) for side in ("forecast", "ceiling")]
    assert list(document["decodes"]) == cases
    assert document["decodes"][cases[1]] == 1  # both chunks of a variable once, the second one with its padding


def test_nothing_is_timed_where_sums_alone_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every codec and length of chunks delivers each sample once."""
    monkeypatch.setitem(SCALES, "small", _SCALE)
    assert main(["--checksum-only", "--out", str(tmp_path)]) == 0
    assert capfd.readouterr().out.count("45 samples, each once") == len(CODECS) * len(CHUNKS)
    assert not list(tmp_path.iterdir())


def test_rows_of_another_sample_variable_or_epoch_are_found(case: Case) -> None:
    with closing(case.dataset()) as dataset:
        batches: list[Any] = list(dataset)
    assert wrong_samples(iter(batches), case) == ""
    (samples, targets), *rest = batches
    rolled = samples, {**targets, "t": targets["t"].roll(1, 0)}
    assert "have other rows of t" in wrong_samples(iter([rolled, *rest]), case)
    swapped = {"t": samples["t"], "u": samples["t"]}, targets
    assert "have other rows of u" in wrong_samples(iter([swapped, *rest]), case)
    assert "came [0, " in wrong_samples(iter(rest), case)
    assert "came [2, " in wrong_samples(iter([batches[0], *batches]), case)


def test_slots_of_the_ceiling_take_as_much_memory_whatever_the_chunks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[int] = []

    def measure(*_: object, window_chunks: int, copies: int, **__: object) -> tuple[float]:
        windows.append(window_chunks * copies)
        return (1.0,)

    monkeypatch.setattr(_core, "measure_ceiling", measure)
    for rows in (1, 8):
        of_chunk = rows * 6 * 4
        write_case("lz4", str(rows), tmp_path, _SCALE).ceiling()
        assert windows[-1] * of_chunk <= _SCALE.slot_bytes < (windows[-1] + 3) * of_chunk


def test_no_array_of_the_scales_is_kept_in_memory(tmp_path: Path) -> None:
    small = write_case("lz4", "16", tmp_path, SCALES["small"])
    with closing(small.dataset()) as dataset:
        assert dataset.explain().memory.resident_bytes == 0


def test_the_ceiling_decodes_each_chunk_once_for_all_copies(case: Case) -> None:
    field = open(case.path / "t").resolved.fields[0]
    _, decoded, *_ = _core.measure_ceiling(field.to_core(), num_threads=2, window_chunks=4, scatter=True, copies=3)
    array = zarr.open_array(case.path / "t", mode="r")
    assert decoded == 4 * 16 * 6 * array.dtype.itemsize
    assert case.ceiling() > 0


def test_a_value_that_differs_is_found(case: Case) -> None:
    with closing(case.dataset()) as dataset:
        (samples, targets), *rest = list(dataset)
    changed = {**samples, "u": torch.where(samples["u"] == samples["u"].max(), 0, samples["u"])}
    assert "have other rows of u" in wrong_samples(iter([(changed, targets), *rest]), replace(case))
