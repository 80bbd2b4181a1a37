"""Compress samples with candidates, and time the engine's decoding of the result."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.system import usable_cores
from zarrfeed.base.units import format_bytes
from zarrfeed.packing.targets.trial_store import TrialArray, TrialOptions, TrialRate, time_trial, write_trial
from zarrfeed.storage.chunks.chunk_encoder import MOST_CHUNK_BYTES, Encoding

#: Decoded bytes of a temporary store, at most: an epoch of it is long beside its beginning and its end.
TRIAL_BYTES = 256 << 20
#: Chunks of one at least, if samples are large.
_LEAST_CHUNKS = 4
#: A temporary store takes no more than this part of the free disk.
_OF_FREE = 1 / 4
#: Batches that are tried where none are named: this many samples, but no more than these bytes.
_BATCH_SAMPLES, _BATCH_BYTES = 64, 16 << 20

#: Times a store that was written, as `time_trial` does.
TimeTrial: TypeAlias = Callable[[Path, TrialOptions], TrialRate]

#: Bytes a second of a bucket that predictions are made for.
BUCKET_BYTES_PER_S = 1e9


@dataclass(frozen=True)
class CodecRate:
    """The speed and the compression ratio of a codec, for some samples on this machine.

    Attributes
    ----------
    encoding
        The codec.
    ratio
        Decoded bytes over stored bytes.
    write_bytes_per_s
        Decoded bytes a second that are compressed, on all threads, and written to files.
    decode_bytes_per_s
        Decoded bytes a second of the engine's decoders alone, on all threads.
    loader_bytes_per_s
        Bytes a second that the loader delivers from the page cache, where it decodes each chunk once.
    delivered_per_decoded
        Delivered bytes per decoded byte: 1, unless items are converted.
    """

    encoding: Encoding
    ratio: float
    write_bytes_per_s: float
    decode_bytes_per_s: float
    loader_bytes_per_s: float
    delivered_per_decoded: float = 1.0

    def training_bytes_per_s(self, source_bytes_per_s: float | None) -> float:
        """Return the loader's rate from a disk or a bucket that delivers `source_bytes_per_s` stored bytes a second.

        The rate is the least of the loader's rate from the page cache and of the source's rate, decompressed. None: the
        source is the page cache.
        """
        if source_bytes_per_s is None:
            return self.loader_bytes_per_s
        return min(self.loader_bytes_per_s, source_bytes_per_s * self.ratio * self.delivered_per_decoded)


def candidate_encodings(dtype: np.dtype[Any], chunk_bytes: int = 0) -> tuple[Encoding, ...]:
    """Return the 8 codecs that are worth a trial for items of a dtype; 2 for chunks that are too large for Blosc.

    Examples
    --------
    >>> [str(e) for e in candidate_encodings(np.dtype("uint8"))][:3]
    ['none', 'lz4-5-noshuffle', 'lz4-9-bitshuffle']
    """
    if chunk_bytes > MOST_CHUNK_BYTES:
        names = ["none", "plain-zstd-1"]
    elif dtype.itemsize == 1:
        names = ["none", "lz4-5-noshuffle", "lz4-9-bitshuffle", "lz4hc-9-noshuffle"]
        names += ["zstd-1-noshuffle", "zstd-3-noshuffle", "zstd-3-bitshuffle", "plain-zstd-3"]
    else:
        names = ["none", "lz4-5-noshuffle", "lz4-5-shuffle", "lz4-5-bitshuffle", "lz4hc-9-shuffle"]
        names += ["zstd-1-shuffle", "zstd-3-bitshuffle", "zstd-5-shuffle"]
    return tuple(Encoding.parse(name, dtype.itemsize) for name in names)


def default_batch_size(sample_bytes: int) -> int:
    """Return the samples of a batch that is tried where the user names none: 64, or fewer where they are large."""
    most = max(1, min(_BATCH_SAMPLES, _BATCH_BYTES // max(1, sample_bytes)))
    return 1 << (most.bit_length() - 1)


def measure_codecs(
    rows: npt.NDArray[Any],
    encodings: Sequence[Encoding],
    chunk_rows: int,
    *,
    shard_chunks: int = 0,
    batch_size: int | None = None,
    num_threads: int | None = None,
    memory_budget: int | str | None = None,
    attributes: Mapping[str, Any] | None = None,
    fill_value: Any = None,
    trial_bytes: int = TRIAL_BYTES,
    folder: Path | None = None,
    time_trial: TimeTrial = time_trial,
    clock: Callable[[], float] = time.perf_counter,
) -> list[CodecRate]:
    """Compress samples with each codec, and time the engine on a temporary store of the result.

    Parameters
    ----------
    rows
        Samples, of shape (n, *shape of a sample), as they are to be stored; repeated where they fill no chunk.
    encodings
        The encodings to time.
    chunk_rows
        Samples of a chunk.
    shard_chunks
        Chunks of a shard; 0: each chunk is a file.
    batch_size, num_threads, memory_budget
        Options of the loader that is timed.
    attributes, fill_value
        Attributes and fill value of the array: packed numbers are converted as in the real store.
    trial_bytes
        Decoded bytes of the temporary store.
    folder
        Folder for temporary stores, which are made one at a time, and removed. None: the system's.
    time_trial, clock
        Functions that time a store, and writing; for tests.

    Returns
    -------
    A rate for each encoding, in their order.

    Raises
    ------
    ConfigError
        If there are no samples, no encodings, or a count that is not allowed.
    OSError
        If the disk has no room.
    """
    if len(rows) == 0 or rows.size == 0:
        raise ConfigError("rows: there are no samples to compress")
    if not encodings:
        raise ConfigError("encodings: there must be at least one")
    if chunk_rows < 1 or shard_chunks < 0:
        raise ConfigError(f"chunk_rows = {chunk_rows}, shard_chunks = {shard_chunks}: must be at least 1 and 0")
    sample_bytes = rows[0].nbytes
    options = TrialOptions(batch_size or default_batch_size(sample_bytes), num_threads, memory_budget)
    chunks = _cut(rows, chunk_rows)
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="zarrfeed-advise-", dir=folder) as made,
        ThreadPoolExecutor(num_threads or usable_cores()) as pool,
    ):
        for encoding in encodings:
            array = TrialArray(
                rows.dtype, rows.shape[1:], chunk_rows, shard_chunks, encoding, attributes or {}, fill_value
            )
            begin = clock()
            encoded = list(pool.map(encoding.encode, chunks))
            encode_s = clock() - begin
            stored = sum(map(len, encoded))
            ratio = len(chunks) * array.chunk_bytes / max(1, stored)
            count = _num_chunks(array, stored // len(chunks), trial_bytes, Path(made))
            store = Path(made) / str(encoding)
            begin = clock()
            write_trial(store, array, encoded, count)
            write_s = (clock() - begin) * len(chunks) / count
            rate = time_trial(store, options)
            shutil.rmtree(store, ignore_errors=True)
            found.append(
                CodecRate(
                    encoding,
                    ratio,
                    len(chunks) * array.chunk_bytes / max(encode_s + write_s, 1e-9),
                    rate.decode_bytes_per_s,
                    rate.loader_bytes_per_s,
                    rate.delivered_per_decoded,
                )
            )
    return found


def _cut(rows: npt.NDArray[Any], chunk_rows: int) -> list[npt.NDArray[Any]]:
    """Return whole chunks of samples, C-contiguous; too few samples are repeated."""
    if len(rows) < chunk_rows:
        rows = rows[np.arange(chunk_rows) % len(rows)]
    whole = len(rows) // chunk_rows * chunk_rows
    rows = np.ascontiguousarray(rows[:whole])
    return [rows[i : i + chunk_rows] for i in range(0, whole, chunk_rows)]


def _num_chunks(array: TrialArray, stored_bytes: int, trial_bytes: int, folder: Path) -> int:
    """Return the number of chunks of the temporary store: whole shards, for which there is room.

    Raises
    ------
    OSError
        If there is no room for a shard.
    """
    per_file = max(1, array.shard_chunks)
    count = max(_LEAST_CHUNKS, trial_bytes // max(1, array.chunk_bytes))
    count = -(-count // per_file) * per_file
    room = int(shutil.disk_usage(folder).free * _OF_FREE)
    if count * stored_bytes > room:
        count = room // max(1, stored_bytes) // per_file * per_file
    if count < 1:
        raise OSError(f"{folder}: {format_bytes(room)} may be used, which is not enough for a trial; set TMPDIR")
    return count
