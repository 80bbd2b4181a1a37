"""Chunks, shards and codecs are chosen from rates that the tests make up, so nothing here depends on time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from zarrfeed.base.errors import ConfigError
from zarrfeed.packing.targets.chunk_lengths import choose_chunk_rows, choose_shard_rows
from zarrfeed.packing.targets.codec_trial import CodecRate, candidate_encodings
from zarrfeed.packing.targets.layout_choice import (
    SampledArray,
    choose_codec,
    choose_layouts,
    training_bytes_per_s,
)
from zarrfeed.storage.chunks.chunk_encoder import Encoding


def rate(name: str, ratio: float, loader: float, delivered: float = 1.0) -> CodecRate:
    return CodecRate(Encoding.parse(name), ratio, 1e9, loader, loader, delivered)


#: Decoding GB/s of compressors, for data of any kind.
DECODES = {"none": 8e9, "lz4": 5e9, "lz4hc": 5.2e9, "zstd": 1.5e9, "plain-zstd": 1.2e9}


def measure(rows: Any, encodings: Sequence[Encoding], chunk_rows: int, **_: Any) -> list[CodecRate]:
    """Compress for real, and take the rates from the table: what `measure_codecs` does, without a clock."""
    found = []
    for encoding in encodings:
        chunk = np.ascontiguousarray(rows[:chunk_rows])
        ratio = chunk.nbytes / len(encoding.encode(chunk))
        found.append(CodecRate(encoding, ratio, 1e9, DECODES[encoding.compressor], DECODES[encoding.compressor]))
    return found


NOISE = np.random.default_rng(0).integers(0, 256, (64, 4096), dtype=np.uint8)
CONSTANT = np.full((64, 4096), 7, np.uint8)


@pytest.mark.parametrize(
    ("sample_bytes", "num_samples", "options", "rows"),
    [
        (64 << 10, 100_000, {}, 16),
        (64 << 10, 100_000, {"far": True}, 32),
        (4, 10**9, {}, 1 << 18),
        (300 << 20, 1000, {}, 1),
        (700 << 10, 1000, {}, 1),
        (64 << 10, 256, {}, 4),  # 64 chunks to shuffle
        (64 << 10, 3, {}, 1),
        (64 << 10, 100_000, {"window_rows": 24}, 16),
        (64 << 10, 100_000, {"window_rows": 33}, 32),
        (64 << 10, 100_000, {"window_rows": 5000}, 64),  # no longer than 4 MiB
    ],
)
def test_chunks_are_about_a_mebibyte(sample_bytes: int, num_samples: int, options: Any, rows: int) -> None:
    assert choose_chunk_rows(sample_bytes, num_samples, **options) == rows


@pytest.mark.parametrize("shard_bytes", [1 << 20, 64 << 20, 10**9])
@pytest.mark.parametrize("sample_bytes", [1, 1000, 64 << 10, 3 << 20, 100 << 20])
def test_shards_are_whole_chunks_and_no_larger_than_asked(sample_bytes: int, shard_bytes: int) -> None:
    chunk = choose_chunk_rows(sample_bytes, 10**6)
    shard = choose_shard_rows(sample_bytes, 10**6, chunk, shard_bytes=shard_bytes)
    assert shard % chunk == 0
    assert shard == 0 or shard > chunk
    assert shard * sample_bytes <= shard_bytes or shard == 0
    if shard == 0:
        assert 2 * chunk * sample_bytes > shard_bytes


def test_few_files_need_no_shards() -> None:
    assert choose_shard_rows(1 << 20, 63, 1) == 0
    assert choose_shard_rows(1 << 20, 64, 1) == 16  # several, which are packed side by side


def test_the_smallest_codec_of_those_that_are_about_as_fast_is_chosen() -> None:
    rates = [rate("none", 1, 5e9), rate("lz4-5-shuffle", 1.6, 4.8e9), rate("zstd-3-shuffle", 2, 1.5e9)]
    assert str(choose_codec(rates).encoding) == "lz4-5-shuffle"
    # A slow disk: what is stored decides, until the codec does.
    assert str(choose_codec(rates, 0.5e9).encoding) == "zstd-3-shuffle"
    assert str(choose_codec(rates, 100e9).encoding) == "lz4-5-shuffle"


def test_codecs_that_save_nothing_are_not_chosen() -> None:
    rates = [rate("zstd-3-noshuffle", 1.001, 4.9e9), rate("none", 1, 5e9), rate("lz4-5-noshuffle", 0.999, 9e9)]
    assert str(choose_codec(rates).encoding) == "none"
    assert str(choose_codec(rates[::2]).encoding) == "lz4-5-noshuffle"  # where it is not among the candidates


def test_a_rate_is_bounded_by_the_source_in_delivered_bytes() -> None:
    packed = rate("lz4-5-shuffle", 2.0, 6e9, delivered=2.0)  # int16 becomes float32
    assert packed.training_bytes_per_s(None) == 6e9
    assert packed.training_bytes_per_s(1e9) == 4e9
    assert packed.training_bytes_per_s(2e9) == 6e9


def test_noise_is_not_compressed_and_a_constant_is() -> None:
    (noise,) = choose_layouts([SampledArray("noise", NOISE, 100_000)], measure=measure)
    assert noise.encoding == Encoding()
    (constant,) = choose_layouts([SampledArray("x", CONSTANT, 100_000)], source_bytes_per_s=1e9, measure=measure)
    assert constant.encoding.compressor in ("lz4", "lz4hc")
    assert constant.chosen is not None
    assert constant.chosen.ratio > 20
    assert [line.split(":")[0] for line in constant.reasons] == [
        "chunks of 256 samples, 1.0 MiB",
        "shards of 16384 samples, 64.0 MiB decoded",
        str(constant.encoding),
    ]


def test_a_group_has_chunks_that_nest_and_shards_of_the_same_samples() -> None:
    seen = []

    def watched(rows: Any, encodings: Sequence[Encoding], chunk_rows: int, **options: Any) -> list[CodecRate]:
        seen.append((rows.shape[1:], chunk_rows, options["shard_chunks"]))
        return measure(rows, encodings, chunk_rows)

    arrays = [
        SampledArray("label", np.zeros(64, np.int64), 100_000),
        SampledArray("image", np.zeros((64, 128, 128), np.float32), 100_000),
        SampledArray("mask", np.zeros((64, 128, 128), np.uint8), 100_000),
        SampledArray("second", np.zeros((64, 128, 128), np.float32), 100_000),
    ]
    label, image, mask, second = choose_layouts(arrays, measure=watched)
    assert (image.chunk_rows, mask.chunk_rows) == (16, 16)
    assert {one.shard_rows for one in (image, mask, second)} == {1024}  # 64 MiB of the largest
    assert (label.chunk_rows, label.shard_rows) == (65536, 0)
    assert seen == [((128, 128), 16, 64)] * 3  # the three largest
    assert label.rates == ()
    assert label.encoding == Encoding.parse("lz4", 8)  # no array of such items was tried
    total = training_bytes_per_s([image, mask], None)
    assert image.chosen is not None
    assert mask.chosen is not None
    seconds = 4 / image.chosen.loader_bytes_per_s + 1 / mask.chosen.loader_bytes_per_s
    assert total == pytest.approx(5 / seconds)
    stored = 4 / image.chosen.ratio + 1 / mask.chosen.ratio
    assert training_bytes_per_s([image, mask], 1.0) == pytest.approx(5 / stored)
    assert training_bytes_per_s([image, mask], 1.0, 1.25) == pytest.approx(4 / stored)
    assert training_bytes_per_s([label], None) is None


def test_small_arrays_that_do_not_fit_in_memory_have_the_chunks_of_the_others() -> None:
    arrays = [
        SampledArray("image", np.zeros((64, 128, 128), np.float32), 10**8),
        SampledArray("label", np.zeros(64, np.int64), 10**8),
    ]
    image, label = choose_layouts(arrays, measure=measure)
    assert label.chunk_rows == image.chunk_rows == 16
    assert label.shard_rows == 16 << 16  # no longer index than that


def test_what_is_asked_for_is_not_chosen() -> None:
    arrays = [SampledArray("x", NOISE, 100_000), SampledArray("y", CONSTANT, 100_000)]
    codec = Encoding.parse("zstd-5-bitshuffle")
    for one in choose_layouts(arrays, chunk_rows=10, shard_bytes=None, encoding=codec, measure=measure):
        assert (one.chunk_rows, one.shard_rows, one.encoding, len(one.rates)) == (10, 0, codec, 1)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ([], {}, "arrays: there must be at least one"),
        ([("x", 10), ("y", 11)], {}, "different numbers of samples: x 10, y 11"),
        ([("x", 10)], {"chunk_rows": 0}, "chunk_rows = 0"),
        ([("x", 10)], {"shard_bytes": 0}, "shard_bytes = 0"),
        ([("x", 10)], {"window_rows": 0}, "window_rows = 0"),
    ],
)
def test_wrong_arguments_are_refused(arrays: Any, options: Any, message: str) -> None:
    sampled = [SampledArray(name, NOISE, count) for name, count in arrays]
    with pytest.raises(ConfigError, match=message):
        choose_layouts(sampled, measure=measure, **options)


def test_an_array_without_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match="x: there are no samples"):
        SampledArray("x", NOISE[:0], 10)
    with pytest.raises(ConfigError, match="num_samples = 0"):
        SampledArray("x", NOISE, 0)
    with pytest.raises(ConfigError, match="rates: there must be at least one"):
        choose_codec([])


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
def test_there_are_six_to_ten_candidates_and_each_is_another(dtype: str) -> None:
    found = candidate_encodings(np.dtype(dtype))
    assert 6 <= len(set(found)) == len(found) <= 10
    assert found[0] == Encoding()
