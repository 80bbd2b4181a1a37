"""A digest of samples with their numbers that does not depend on the order in which they are read.

Source of the hash: XXH3 of 128 bits (https://github.com/Cyan4973/xxHash), seeded with the number of the sample. The
digest of several samples is the sum of their hashes modulo 2**128, so that digests of parts add up. Two sets of samples
that differ in a value, or in the number of a sample, have the same digest with a probability of about 2**-128.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xxhash import xxh3_128_intdigest

from zarrfeed.packing.sources.source import Int64, Rows, as_bytes

MODULUS = 1 << 128


def digest_rows(rows: Rows, samples: Int64) -> int:
    """Return the digest of the samples of one field, and their numbers."""
    numbers: Sequence[int] = samples.tolist()
    if rows.dtype == object:
        return sum(map(_hash, map(as_bytes, rows), numbers)) % MODULUS
    size = rows[:1].nbytes
    content = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data if rows.size else memoryview(b"")
    parts = (content[begin : begin + size] for begin in range(0, size * len(rows), max(1, size)))
    if not size:
        parts = (content for _ in numbers)
    return sum(map(_hash, parts, numbers)) % MODULUS


def as_text(digest: int) -> str:
    """Return a digest for files and people: 32 hexadecimal digits."""
    return f"{digest:032x}"


def _hash(item: bytes | memoryview, number: int) -> int:
    return xxh3_128_intdigest(item, number)
