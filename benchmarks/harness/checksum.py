"""Whether a loader delivered what the store holds: each sample once, whole, and with its own target.

A sample has a hash of its bytes and those of its target, in their places: rows or targets that changed places change
it. A checksum is made of the hashes of many samples in whatever order, so that shuffled epochs have equal ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.uint64]

_WORD_BYTES = 8


class ChecksumError(Exception):
    """A loader delivered something else than the store holds."""


@dataclass(frozen=True)
class Checksum:
    """The hashes of samples, combined without regard to their order: number, sum modulo 2**64, exclusive or."""

    count: int
    total: int
    xor: int

    @classmethod
    def of(cls, hashes: Hashes) -> Checksum:
        """Combine hashes of shape (samples,)."""
        total = np.add.reduce(hashes, dtype=np.uint64)
        return cls(len(hashes), int(total), int(np.bitwise_xor.reduce(hashes)))

    def __str__(self) -> str:
        return f"{self.count} samples, sum {self.total:016x}, xor {self.xor:016x}"


def sample_hashes(fields: Sequence[npt.NDArray[Any]]) -> Hashes:
    """Return one hash per sample, of shape (rows,).

    Parameters
    ----------
    fields
        The arrays of a batch, each of shape (rows, ...): samples, or samples and targets.
    """
    position = 0
    sums = np.zeros(len(fields[0]), dtype=np.uint64)
    for field in fields:
        words = _words(field)
        sums += words @ _multipliers(position + words.shape[1])[position:]
        position += words.shape[1]
    return _mix(sums)


def verify(
    expected: Hashes, delivered: Hashes, *, samples_per_epoch: int, rows_per_chunk: int, batch_rows: Sequence[int]
) -> float:
    """Check an epoch against the store, and return how well it was shuffled.

    Parameters
    ----------
    expected
        Of the samples of the store, by sample index.
    delivered
        Of what a loader delivered, in its order.
    samples_per_epoch
        How many samples it had to deliver; all of the store's, or a part of them.
    rows_per_chunk
        Samples of a chunk of the store.
    batch_rows
        Rows of each batch, which sum to `len(delivered)`.

    Returns
    -------
    The number of chunks that a batch had samples of, averaged over the batches.

    Raises
    ------
    ChecksumError
        If a sample is missing, came twice, or is none of the store's.
    """
    by_hash = np.argsort(expected)
    rank = np.minimum(np.searchsorted(expected, delivered, sorter=by_hash), len(expected) - 1)
    index = by_hash[rank]
    known = expected[index] == delivered
    unknown = int(np.count_nonzero(~known))
    repeated = int(known.sum()) - len(np.unique(index[known]))
    missing = samples_per_epoch - int(known.sum()) + repeated
    whole = samples_per_epoch == len(expected)
    if unknown or repeated or missing or (whole and Checksum.of(expected) != Checksum.of(delivered)):
        raise ChecksumError(
            f"delivered {Checksum.of(delivered)}; the store has {Checksum.of(expected)}: of {samples_per_epoch} "
            f"samples {missing} missing, {repeated} repeated, and {unknown} that the store does not have"
        )
    ends = np.cumsum(batch_rows)
    chunks = np.split(index // rows_per_chunk, ends[:-1])
    return float(np.mean([len(np.unique(chunk)) for chunk in chunks]))


def _words(field: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """View rows as 64-bit words, with zeros behind the last byte: shape (rows, words)."""
    row_bytes = np.ascontiguousarray(field).reshape(len(field), -1).view(np.uint8)
    excess = row_bytes.shape[1] % _WORD_BYTES
    if excess:
        row_bytes = np.pad(row_bytes, ((0, 0), (0, _WORD_BYTES - excess)))
    return row_bytes.view(np.uint64)


@lru_cache(maxsize=4)
def _multipliers(count: int) -> npt.NDArray[np.uint64]:
    """Return odd numbers, one for each position in a sample: odd ones lose no bit of the word."""
    return np.random.default_rng(0).integers(2**64, size=count, dtype=np.uint64) | np.uint64(1)


def _mix(sums: Hashes) -> Hashes:
    """Scramble the words, after splitmix64.

    Sums are linear: without this step, targets that changed places between samples would cancel out in the total.
    """
    z: Hashes = sums ^ (sums >> np.uint64(30))
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def hash_batches(batches: Iterable[Sequence[npt.NDArray[Any]]]) -> tuple[Hashes, list[int]]:
    """Return the hashes of all samples in their order, and the rows of each batch."""
    hashes = list(_hash_each(batches))
    return np.concatenate(hashes) if hashes else np.zeros(0, dtype=np.uint64), [len(h) for h in hashes]


def _hash_each(batches: Iterable[Sequence[npt.NDArray[Any]]]) -> Iterator[Hashes]:
    for fields in batches:
        yield sample_hashes(fields)
