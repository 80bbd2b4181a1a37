"""The choice of the chunks, shards and codec of an array, so that it trains fastest.

Invariant: chunk lengths are powers of two, so that the chunks of all large arrays of a group nest in the blocks. A
shard is whole chunks, of the same samples in all large arrays. The codec follows from the measured rates alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.units import format_bytes
from zarrfeed.base.validate import check_counts
from zarrfeed.packing.targets.chunk_lengths import (
    CHUNK_BYTES,
    RESIDENT_BYTES,
    SHARD_BYTES,
    choose_chunk_rows,
    choose_shard_rows,
    power_of_two,
)
from zarrfeed.packing.targets.codec_trial import TRIAL_BYTES, CodecRate, candidate_encodings, measure_codecs
from zarrfeed.storage.chunks.chunk_encoder import Encoding

#: Part of the fastest codec's speed that a codec has to reach; the smallest of those that do is chosen.
_AS_FAST = 0.9
#: A codec that saves less than this part of the bytes is not worth its time.
_SAVES = 0.02
#: Arrays with less than this part of the largest array's bytes a sample have longer shards; and longer chunks, if
#: datasets keep the whole array in memory.
_SMALL = 1 / 64
#: Number of arrays of a group that are tried, the largest; the others take their codecs.
_MOST_TRIED = 3


@dataclass(frozen=True)
class SampledArray:
    """Some samples of an array that is to be stored.

    Attributes
    ----------
    name
        Name of the array.
    rows
        The samples, of shape (n, *shape of a sample), as they are to be stored.
    num_samples
        Number of samples of the whole array.
    attributes, fill_value
        Attributes and fill value of the array: packed numbers are converted as in the real store.
    """

    name: str
    rows: npt.NDArray[Any]
    num_samples: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fill_value: Any = None

    def __post_init__(self) -> None:
        check_counts(num_samples=self.num_samples)
        if self.rows.ndim == 0 or self.rows.size == 0:
            raise ConfigError(f"{self.name}: there are no samples to choose a layout from")

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample."""
        return int(self.rows[0].nbytes)


@dataclass(frozen=True)
class LayoutAdvice:
    """Advice for the storage of an array.

    Attributes
    ----------
    name
        Name of the array.
    sample_bytes, num_samples
        Bytes of a sample, and number of samples.
    chunk_rows
        Samples of a chunk.
    shard_rows
        Samples of a shard, whole chunks; 0: each chunk is an object of its own.
    encoding
        The codec.
    rates
        The rate of each candidate; empty if the array was not tried, and has another one's codec.
    chosen
        The rate of `encoding`; None if the array was not tried.
    reasons
        The reasons, a line each.
    """

    name: str
    sample_bytes: int
    num_samples: int
    chunk_rows: int
    shard_rows: int
    encoding: Encoding
    rates: tuple[CodecRate, ...] = ()
    chosen: CodecRate | None = None
    reasons: tuple[str, ...] = ()


#: Measures encodings, as `measure_codecs` does: (rows, encodings, chunk_rows, shard_chunks=..., ...) -> rates.
Measure: TypeAlias = Callable[..., list[CodecRate]]


def choose_codec(rates: Sequence[CodecRate], source_bytes_per_s: float | None = None) -> CodecRate:
    """Return the rate of the codec to take: the smallest one that trains about as fast as the fastest.

    Parameters
    ----------
    rates
        Rates of the candidates.
    source_bytes_per_s
        Stored bytes a second that a disk or a bucket brings. None: the store stays in the page cache.

    Raises
    ------
    ConfigError
        If there are no rates.
    """
    if not rates:
        raise ConfigError("rates: there must be at least one")
    # Bytes that are as many and have to be decoded are never faster, whatever a busy machine made of the rates.
    useful = [one for one in rates if one.encoding.compressor == "none" or one.ratio > 1 + _SAVES] or list(rates)
    fastest = max(one.training_bytes_per_s(source_bytes_per_s) for one in useful)
    good = [one for one in useful if one.training_bytes_per_s(source_bytes_per_s) >= _AS_FAST * fastest]
    largest = max(one.ratio for one in good)
    small = [one for one in good if one.ratio >= (1 - _SAVES) * largest]
    return max(small, key=lambda one: (one.training_bytes_per_s(source_bytes_per_s), one.write_bytes_per_s))


def choose_layouts(
    arrays: Sequence[SampledArray],
    *,
    chunk_rows: int | None = None,
    shard_bytes: int | None = SHARD_BYTES,
    encoding: Encoding | None = None,
    window_rows: int = 1,
    far: bool = False,
    source_bytes_per_s: float | None = None,
    batch_size: int | None = None,
    num_threads: int | None = None,
    memory_budget: int | str | None = None,
    measure: Measure = measure_codecs,
) -> list[LayoutAdvice]:
    """Choose how arrays with the same samples should be stored; the largest are compressed and timed.

    Parameters
    ----------
    arrays
        Samples of each array.
    chunk_rows
        Samples of a chunk. None: chosen.
    shard_bytes
        Decoded bytes of a shard of the largest array. None: no shards.
    encoding
        The codec, which is then the only candidate. None: chosen among 8.
    window_rows, far
        The arguments of `choose_chunk_rows`.
    source_bytes_per_s
        The argument of `choose_codec`.
    batch_size, num_threads, memory_budget
        Options of the loader that is timed.
    measure
        Function that times the candidates: `measure_codecs`, but for tests.

    Returns
    -------
    One advice for each array, in their order.

    Raises
    ------
    ConfigError
        If there are no arrays, they have different numbers of samples, or a number is below 1.
    """
    if not arrays:
        raise ConfigError("arrays: there must be at least one")
    if len({one.num_samples for one in arrays}) > 1:
        counts = ", ".join(f"{one.name} {one.num_samples}" for one in arrays)
        raise ConfigError(f"arrays have different numbers of samples: {counts}")
    check_counts(chunk_rows=chunk_rows, shard_bytes=shard_bytes, batch_size=batch_size)
    num_samples, largest = arrays[0].num_samples, max(one.sample_bytes for one in arrays)
    rows = chunk_rows or choose_chunk_rows(largest, num_samples, window_rows=window_rows, far=far)
    small = [one.sample_bytes < _SMALL * largest for one in arrays]
    lengths = [_small_rows(one, rows) if is_small else rows for one, is_small in zip(arrays, small, strict=True)]
    shards = [
        0
        if shard_bytes is None
        else choose_shard_rows(one.sample_bytes if is_small else largest, num_samples, length, shard_bytes=shard_bytes)
        for one, is_small, length in zip(arrays, small, lengths, strict=True)
    ]
    tried: dict[int, tuple[list[CodecRate], CodecRate]] = {}
    for i in sorted(range(len(arrays)), key=lambda i: -arrays[i].sample_bytes)[:_MOST_TRIED]:
        one = arrays[i]
        dtype = one.rows.dtype
        chunk_bytes = lengths[i] * one.sample_bytes
        rates = measure(
            one.rows,
            (encoding,) if encoding is not None else candidate_encodings(dtype, chunk_bytes),
            lengths[i],
            shard_chunks=shards[i] // lengths[i],
            batch_size=batch_size,
            num_threads=num_threads,
            memory_budget=memory_budget,
            attributes=one.attributes,
            fill_value=one.fill_value,
            trial_bytes=min(TRIAL_BYTES, one.num_samples * one.sample_bytes),  # short epochs are slower, as in training
        )
        tried[i] = rates, choose_codec(rates, source_bytes_per_s)
    advices = []
    for i, one in enumerate(arrays):
        rates, chosen = tried.get(i, ([], None))
        like = None if chosen is not None else _most_alike(one, arrays, tried)
        codec = chosen.encoding if chosen is not None else encoding or _of_another(one, tried, like)
        reasons = [_chunk_reason(one, lengths[i], rows, window_rows, far), _shard_reason(one, lengths[i], shards[i])]
        reasons.append(
            _codec_reason(chosen, rates, source_bytes_per_s)
            if chosen is not None
            else f"{codec}: not tried, " + ("as asked for" if like is None else f"taken over from {arrays[like].name}")
        )
        advices.append(
            LayoutAdvice(
                one.name,
                one.sample_bytes,
                num_samples,
                lengths[i],
                shards[i],
                codec,
                tuple(rates),
                chosen,
                tuple(reasons),
            )
        )
    return advices


def training_bytes_per_s(
    advices: Sequence[LayoutAdvice], source_bytes_per_s: float | None, amplification: float = 1.0
) -> float | None:
    """Return the rate of a loader of all arrays together, in bytes/s; None if none of them was tried.

    Decoding takes turns on the same threads, so times add up, and so do stored bytes. Arrays that were not tried count
    as those that were, together. `amplification` is how many bytes are decoded per byte that is delivered: 1 if each
    chunk is decoded once, as in a long epoch; a little more where lanes cut some of few chunks.
    """
    tried = [(one.sample_bytes, one.chosen) for one in advices if one.chosen is not None]
    if not tried:
        return None
    delivered = sum(size * rate.delivered_per_decoded for size, rate in tried)
    seconds = sum(size * rate.delivered_per_decoded / rate.loader_bytes_per_s for size, rate in tried)
    if source_bytes_per_s is not None:
        seconds = max(seconds, sum(size / rate.ratio for size, rate in tried) / source_bytes_per_s)
    return delivered / seconds / amplification


def _small_rows(one: SampledArray, rows: int) -> int:
    """Return the samples of a chunk of a small array: many, if the array is kept in memory, else those of a block."""
    if one.num_samples * one.sample_bytes > RESIDENT_BYTES:
        return rows
    return max(rows, power_of_two(min(CHUNK_BYTES // one.sample_bytes, one.num_samples)))


def _most_alike(
    one: SampledArray, arrays: Sequence[SampledArray], tried: Mapping[int, tuple[list[CodecRate], CodecRate]]
) -> int | None:
    """Return a tried array with the same dtype, or items of the same size; None if there is none."""
    dtype = one.rows.dtype
    same = [i for i in tried if arrays[i].rows.dtype == dtype]
    same += [i for i in tried if arrays[i].rows.dtype.itemsize == dtype.itemsize]
    return same[0] if same else None


def _of_another(
    one: SampledArray, tried: Mapping[int, tuple[list[CodecRate], CodecRate]], like: int | None
) -> Encoding:
    return Encoding.parse("lz4", one.rows.dtype.itemsize) if like is None else tried[like][1].encoding


def _chunk_reason(one: SampledArray, length: int, rows: int, window_rows: int, far: bool) -> str:
    size, count = format_bytes(length * one.sample_bytes), -(-one.num_samples // length)
    said = f"chunks of {length} sample{'s' * (length > 1)}, {size}: "
    if length > rows:
        return said + "small beside the largest array, and small enough for datasets to keep it in memory"
    if one.sample_bytes >= CHUNK_BYTES:
        why = "a sample is large, and a chunk of one sample is decoded for that sample alone"
    elif length * one.sample_bytes < CHUNK_BYTES // 2:
        why = f"shorter than what decodes fastest, so that there are {count} to shuffle"
    elif far:
        why = f"a request brings enough to be worth its cost; {count} to shuffle"
    else:
        why = f"fits in a core's cache while it is decoded and scattered; {count} to shuffle"
    return said + why + f"; windows of {window_rows} rows lie in two at most" * (1 < window_rows <= length)


def _shard_reason(one: SampledArray, length: int, shard: int) -> str:
    chunks = -(-one.num_samples // length)
    if not shard:
        return f"no shards: {chunks} object{'s' * (chunks > 1)} are few, or large enough"
    return (
        f"shards of {shard} samples, {format_bytes(shard * one.sample_bytes)} decoded: "
        f"{-(-one.num_samples // shard)} objects in place of {chunks}"
    )


def _codec_reason(chosen: CodecRate, rates: Sequence[CodecRate], source_bytes_per_s: float | None) -> str:
    fastest = max(rates, key=lambda one: one.training_bytes_per_s(source_bytes_per_s))
    per_s = chosen.training_bytes_per_s(source_bytes_per_s)
    said = f"{chosen.encoding}: {per_s / 1e9:.2f} GB/s, decoded bytes are {chosen.ratio:.2f} times those stored"
    if len(rates) == 1:
        return f"{said}; the only candidate"
    if chosen is fastest:
        return f"{said}; the fastest"
    share = per_s / max(1e-9, fastest.training_bytes_per_s(source_bytes_per_s))
    more = chosen.ratio / fastest.ratio - 1
    return f"{said}; {share:.0%} of the fastest ({fastest.encoding}), which stores {more:.0%} more"
