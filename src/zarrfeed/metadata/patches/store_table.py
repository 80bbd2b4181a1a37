"""`StoreTable`: which samples of a description are in which of its stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError

Int64: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StoreTable:
    """Several stores that are one along the sample axis.

    Attributes
    ----------
    names
        The names of the stores in messages: their paths or URLs.
    first
        The first sample of each, and the number of all samples at the end, shape (stores + 1,).
    """

    names: Sequence[str]
    first: Int64

    def locate(self, samples: Int64) -> tuple[Int64, Int64]:
        """Return the number of the store of each sample, and its index there."""
        store = np.searchsorted(self.first, samples, side="right") - 1
        return store, samples - self.first[store]

    def __str__(self) -> str:
        """Return one line for people."""
        lengths = np.diff(self.first)
        least, most = int(lengths.min()), int(lengths.max())
        at_least = f"{least} to " * (least != most)
        return f"{len(self.names)} stores of {at_least}{most} samples, from {self.names[0]} to {self.names[-1]}"


def source_of(first: Sequence[int] | None, index: int | npt.ArrayLike) -> Any:
    """Return the number of the source that a sample is of, in a mixture; `first` has the first sample of each source.

    Raises
    ------
    ConfigError, IndexError
        As in `locate_samples`; ConfigError if there are no sources.
    """
    if first is None:
        raise ConfigError("source_of: these samples are no mixture, which zarrfeed.mix makes")
    sources = StoreTable((), np.array(first, dtype=np.int64))
    return locate_samples(sources, int(first[-1]), index)[0]


def locate_samples(stores: StoreTable | None, num_samples: int, index: int | npt.ArrayLike) -> tuple[Any, Any]:
    """Return the store of samples, and their index there; numbers for a number, arrays for arrays.

    Raises
    ------
    ConfigError
        If `index` is no integer, and no array of some.
    IndexError
        If there is no such sample.
    """
    named = np.asarray(index)
    if named.dtype.kind not in "iu":
        raise ConfigError(f"index = {index!r}, must be an integer or an array of integers")
    outside = named[(named < 0) | (named >= num_samples)]
    if outside.size:
        raise IndexError(f"index {outside.flat[0]}, must be in [0, {num_samples - 1}]")
    samples = named.astype(np.int64)
    store, index_in_store = (np.zeros_like(samples), samples) if stores is None else stores.locate(samples)
    return (store, index_in_store) if named.ndim else (int(store), int(index_in_store))
