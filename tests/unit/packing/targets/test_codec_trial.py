"""What is timed is a store that holds the samples: the engine and zarr-python read it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.packing.targets import trial_store
from zarrfeed.packing.targets.codec_trial import candidate_encodings, default_batch_size, measure_codecs
from zarrfeed.packing.targets.trial_store import TrialOptions, TrialRate, time_trial
from zarrfeed.storage.chunks.chunk_encoder import Encoding


def rows_of(dtype: str, shape: tuple[int, ...]) -> Any:
    """Return samples that begin with their own number."""
    rows = np.random.default_rng(0).integers(0, 50, shape).astype(dtype)
    rows.reshape(len(rows), -1)[:, 0] = np.arange(len(rows)) % 100
    return rows


@pytest.mark.parametrize("shard_chunks", [0, 4])
@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_a_trial_store_holds_the_samples_in_turn(tmp_path: Path, dtype: str, shard_chunks: int) -> None:
    rows = rows_of(dtype, (22, 3, 5))
    seen = []

    def read_back(path: Path, options: TrialOptions) -> TrialRate:
        array = zarr.open_array(path, mode="r")
        assert array.chunks == (4, 3, 5)
        assert (array.shards is None) == (shard_chunks == 0)
        values = np.asarray(array[...])
        np.testing.assert_array_equal(values, np.resize(rows[:20], values.shape))
        seen.append((len(values), options.batch_size))
        return TrialRate(2.0, 3.0)

    clock = iter(range(1000))
    encodings = candidate_encodings(rows.dtype)
    found = measure_codecs(
        rows,
        encodings,
        4,
        shard_chunks=shard_chunks,
        trial_bytes=12 * 4 * rows[0].nbytes,
        folder=tmp_path,
        time_trial=read_back,
        clock=lambda: float(next(clock)),
    )
    assert seen == [(48, 64)] * len(encodings)
    assert [one.encoding for one in found] == list(encodings)
    assert found[0].ratio == 1.0
    # 20 rows: a second to encode, and 5 of 12 chunks' share of a second to write
    assert found[0].write_bytes_per_s == pytest.approx(20 * rows[0].nbytes / (1 + 5 / 12))
    assert (found[0].decode_bytes_per_s, found[0].loader_bytes_per_s) == (2.0, 3.0)
    assert list(tmp_path.iterdir()) == []


def test_the_engine_reads_each_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_store, "_LEAST_S", 0.02)  # rates are not compared
    # Packed numbers, as attributes say: twice as many bytes are delivered. Fewer samples than a chunk has are repeated.
    found = measure_codecs(
        rows_of("i2", (5, 64, 64)),
        [Encoding(), Encoding.parse("plain-zstd-1"), Encoding.parse("zstd-1-bitshuffle")],
        8,
        shard_chunks=2,
        num_threads=1,
        attributes={"scale_factor": 0.5},
        trial_bytes=1 << 20,
        folder=tmp_path,
    )
    assert all(one.loader_bytes_per_s > 0 < one.decode_bytes_per_s for one in found)
    assert {one.delivered_per_decoded for one in found} == {2.0}
    assert found[0].ratio == 1.0 < found[1].ratio
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_timed_leaves_nothing(tmp_path: Path) -> None:
    def fails(*_: Any) -> TrialRate:
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        measure_codecs(rows_of("u1", (8, 4)), [Encoding()], 2, folder=tmp_path, trial_bytes=64, time_trial=fails)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("count", "encodings", "chunk_rows", "options", "message"),
    [
        (0, [Encoding()], 1, {}, "no samples"),
        (4, [], 1, {}, "at least one"),
        (4, [Encoding()], 0, {}, "chunk_rows = 0"),
        (4, [Encoding()], 1, {"shard_chunks": -1}, "shard_chunks = -1"),
    ],
)
def test_wrong_arguments_are_refused(
    count: int, encodings: list[Encoding], chunk_rows: int, options: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        measure_codecs(np.zeros((count, 2)), encodings, chunk_rows, time_trial=time_trial, **options)


@pytest.mark.parametrize(("sample_bytes", "size"), [(1, 64), (1 << 18, 64), (5 << 20, 2), (1 << 30, 1)])
def test_batches_are_not_larger_than_16_mib(sample_bytes: int, size: int) -> None:
    assert default_batch_size(sample_bytes) == size


def test_chunks_too_large_for_blosc_are_compressed_by_zstd_alone() -> None:
    assert [str(e) for e in candidate_encodings(np.dtype("f4"), 3 << 30)] == ["none", "plain-zstd-1"]
