"""The number of samples that a chunk and a shard should have: arithmetic alone, without torch.

Invariant: lengths are powers of two, so that the chunks of all large arrays of a group nest in the blocks.
"""

from __future__ import annotations

from zarrfeed.base.validate import check_counts

#: Decoded bytes of a chunk on disk, which fits in a core's cache while it is decoded and scattered; and in a bucket,
#: where requests for less than 256 KiB stored cost more than they bring.
CHUNK_BYTES, _FAR_CHUNK_BYTES = 1 << 20, 2 << 20
#: Fewest chunks of an array, if it has as many samples: a batch of 64 can draw from as many.
_LEAST_CHUNKS = 64
#: Decoded bytes of a shard.
SHARD_BYTES = 64 << 20
#: Fewer files than this need no shards; and there are several shards, which are packed side by side.
_FEW_FILES, _LEAST_SHARDS = 64, 4
#: An array of no more bytes is read into memory at once by datasets, so that its chunks need not be those of others.
RESIDENT_BYTES = 32 << 20
#: Entries of a shard's index, at most: a reader has it in memory.
MOST_CHUNKS_PER_SHARD = 1 << 16


def choose_chunk_rows(sample_bytes: int, num_samples: int, *, window_rows: int = 1, far: bool = False) -> int:
    """Return the samples of a chunk: a power of two.

    Parameters
    ----------
    sample_bytes
        Decoded bytes of a sample of the largest array.
    num_samples
        Number of samples of the array.
    window_rows
        Rows that the window of a sample reaches over; 1: samples are no windows.
    far
        True if the store will be in a bucket, where each chunk is a request.

    Raises
    ------
    ConfigError
        If a number is below 1.

    Examples
    --------
    >>> choose_chunk_rows(64 << 10, 10_000), choose_chunk_rows(64 << 10, 10_000, far=True)
    (16, 32)
    >>> choose_chunk_rows(300 << 20, 10_000)
    1
    """
    check_counts(sample_bytes=sample_bytes, num_samples=num_samples, window_rows=window_rows)
    wanted = (_FAR_CHUNK_BYTES if far else CHUNK_BYTES) // sample_bytes
    # A window that reaches over several chunks reads all of them: at most two where chunks are as long.
    wanted = max(wanted, min(window_rows, 4 * CHUNK_BYTES // sample_bytes))
    return power_of_two(min(wanted, num_samples // _LEAST_CHUNKS))


def choose_shard_rows(sample_bytes: int, num_samples: int, chunk_rows: int, *, shard_bytes: int = SHARD_BYTES) -> int:
    """Return the samples of a shard: chunks that make `shard_bytes` decoded; 0 where few files need no shards.

    Parameters
    ----------
    sample_bytes
        Decoded bytes of a sample of the largest array.
    num_samples, chunk_rows
        Samples of the array, and of a chunk.
    shard_bytes
        Decoded bytes of a shard.

    Raises
    ------
    ConfigError
        If a number is below 1.

    Examples
    --------
    >>> choose_shard_rows(64 << 10, 100_000, 16)
    1024
    >>> choose_shard_rows(64 << 10, 512, 16)
    0
    """
    check_counts(sample_bytes=sample_bytes, num_samples=num_samples, chunk_rows=chunk_rows, shard_bytes=shard_bytes)
    count = -(-num_samples // chunk_rows)
    if count < _FEW_FILES:
        return 0
    chunks = min(shard_bytes // (sample_bytes * chunk_rows), count // _LEAST_SHARDS, MOST_CHUNKS_PER_SHARD)
    return chunk_rows * power_of_two(chunks) if chunks > 1 else 0


def power_of_two(most: int) -> int:
    """Return the largest power of two that is no more than `most`, at least 1."""
    return 1 << max(0, most.bit_length() - 1)
