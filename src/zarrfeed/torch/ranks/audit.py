"""A digest of the samples that were delivered, in whatever order: to prove that an epoch was exact, on any cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from zarrfeed.base.errors import ConfigError

#: Sums are kept below this, so that those of 2048 ranks can be added in an int64.
_MODULUS = 1 << 52
_AT_ONCE = 1 << 20
_KEYS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True)
class Digest:
    """A digest of sample indices that does not depend on their order: their number, and two sums of hashes.

    The same indices, each as often, have the same digest. Two other sets of as many indices have the same digest with
    probability 2**-104. Digests of parts add up: `a + b`, or an all_reduce of their tensors.

    Attributes
    ----------
    count
        Number of indices; a repeated index counts as often as it came.
    sums
        Sums of two 64-bit hashes of each index, modulo 2**52.

    Examples
    --------
    >>> import zarrfeed
    >>> zarrfeed.audit([2, 0]) + zarrfeed.audit([1]) == zarrfeed.Digest.of_range(3)
    True
    """

    count: int = 0
    sums: tuple[int, int] = (0, 0)

    def __add__(self, other: Digest) -> Digest:
        first, second = (sum(pair) % _MODULUS for pair in zip(self.sums, other.sums, strict=True))
        return Digest(self.count + other.count, (first, second))

    def tensor(self) -> torch.Tensor:
        """Return an int64 tensor of shape (3,): the sum of those of all ranks is that of all they delivered."""
        return torch.tensor([self.count, *self.sums], dtype=torch.int64)

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> Digest:
        """Return the digest of a tensor, or of the sum of up to 2048 of them."""
        count, first, second = (int(value) for value in tensor.tolist())
        return cls(count, (first % _MODULUS, second % _MODULUS))

    @classmethod
    def of_range(cls, num_samples: int) -> Digest:
        """Return the digest of an epoch in which each of `num_samples` samples came exactly once."""
        starts = range(0, num_samples, _AT_ONCE)
        return audit(np.arange(start, min(num_samples, start + _AT_ONCE)) for start in starts)


def audit(indices: Iterable[torch.Tensor | npt.NDArray[np.int64] | int]) -> Digest:
    """Return the digest of sample indices, to check that an epoch delivered each sample once.

    Pass the indices that `return_index=True` delivers, or a generator that trains on the way. With several ranks, add
    up the tensors of their digests and compare on any rank::

        total = zarrfeed.audit(index for *batch, index in dataset).tensor()
        torch.distributed.all_reduce(total)
        assert Digest.from_tensor(total) == Digest.of_range(num_samples)  # with even="off": nothing is dropped

    Parameters
    ----------
    indices
        Integers, or arrays or tensors of integers, of any shape.

    Raises
    ------
    ConfigError
        If the indices are no integers.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> dataset = zarrfeed.ZarrIterableDataset(np.arange(100), batch_size=8, shuffle=True, return_index=True)
    >>> zarrfeed.audit(index for _, index in dataset) == zarrfeed.Digest.of_range(100)
    True
    """
    total = Digest()
    allowed = "must be integers, or arrays or tensors of integers"
    if isinstance(indices, str | bytes | Mapping) or not isinstance(indices, Iterable):
        raise ConfigError(f"indices = {indices!r}, {allowed}")
    for some in indices:
        values = np.asarray(some)
        if values.dtype.kind not in "iu" and values.size:
            raise ConfigError(f"indices hold {some!r}, {allowed}")
        flat = values.astype(np.uint64).ravel()
        first, second = (int(_hash(flat, key).sum(dtype=np.uint64)) % _MODULUS for key in _KEYS)
        total += Digest(len(flat), (first, second))
    return total


def _hash(values: npt.NDArray[np.uint64], key: int) -> npt.NDArray[np.uint64]:
    """SplitMix64's finisher (Steele, Lea and Flood, OOPSLA 2014) over keyed values."""
    z = (values + np.uint64(1)) * np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
