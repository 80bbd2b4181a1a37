"""Mixtures, said plainly: which source each step takes, and what the samples of its steps have to be.

What is checked is stated for an order of steps, whoever delivers it. Which source a step takes comes from
`plan.mixture` alone. Of a source, nothing is known but that each of its passes is a permutation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zarr

import zarrfeed
from zarrfeed import Data, ZarrIterableDataset
from zarrfeed.plan.mixture.mixture import Mixture, parse_weights
from zarrfeed.plan.order.keyed_random import key_of

Int64: TypeAlias = npt.NDArray[np.int64]
Weights: TypeAlias = Sequence[float] | Mapping[int, Sequence[float]] | None

#: The sources of most tests: samples, and samples a chunk. The last chunks are short.
LENGTHS, CHUNKS = (140, 61, 24), (8, 5, 4)

#: What the key of a mixture is for.
_TURNS = 0x7475726E73


def rows(first: int, count: int) -> Int64:
    """Return samples that say which they are, and every item where it is: shape (count, 3)."""
    return np.asarray((first + np.arange(count))[:, None] * 100 + np.arange(3), dtype=np.int64)


def write_sources(
    folder: Path, lengths: Sequence[int] = LENGTHS, chunks: Sequence[int] = CHUNKS, first: int = 0
) -> list[str]:
    """Write a store for each source, whose samples are numbered through; return their paths."""
    paths = []
    for number, (length, chunk) in enumerate(zip(lengths, chunks, strict=True)):
        path = str(folder / f"source-{number}.zarr")
        zarr.create_array(path, data=rows(first, length), chunks=(chunk, 3))
        paths.append(path)
        first += length
    return paths


def mixture_of(weights: Weights, seed: int, lengths: Sequence[int] = LENGTHS) -> Mixture:
    """Return which source each step takes, for weights as `zarrfeed.mix` takes them, and the seed of a dataset."""
    key = key_of(_TURNS, seed)
    if weights is None:
        return Mixture(parse_weights(lengths), key)
    if not isinstance(weights, Mapping):
        return Mixture(parse_weights(weights), key)
    stages = {step: parse_weights(weights[step]) for step in sorted(weights)}
    return Mixture(stages.pop(0), key, changes=tuple(stages.items()))


@dataclass(frozen=True)
class Sources:
    """The samples of each source, by their global index.

    Attributes
    ----------
    members
        Of each source, ascending.
    """

    members: tuple[Int64, ...]

    @classmethod
    def of(cls, lengths: Sequence[int] = LENGTHS) -> Sources:
        """Return whole sources of these lengths."""
        ends = np.cumsum(lengths)
        return cls(tuple(np.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Samples of each source."""
        return tuple(len(one) for one in self.members)

    def check(self, mixture: Mixture, index: Int64, first_step: int = 0) -> Passes:
        """Check the samples of some steps, one behind the other; return the passes of the sources.

        Parameters
        ----------
        mixture
            Which source each step takes, and which position of its endless sequence.
        index
            The global indices of the samples.
        first_step
            The step of the first one.
        """
        source, position = mixture.at(first_step + np.arange(len(index)))
        made: dict[tuple[int, int], Int64] = {}
        for number, members in enumerate(self.members):
            is_of = source == number
            taken, positions = index[is_of], position[is_of]
            assert np.isin(taken, members).all(), f"a step of source {number} has a sample of another source"
            for which in np.unique(positions // len(members)).tolist():
                is_in = positions // len(members) == which
                order = taken[is_in][np.argsort(positions[is_in])]
                assert len(np.unique(order)) == len(order), f"pass {which} of source {number} repeats a sample"
                made[number, which] = order
        return Passes(self, made)


@dataclass(frozen=True)
class Passes:
    """What came of each pass of each source, in the order of the pass: (source, pass) -> global indices."""

    sources: Sources
    orders: dict[tuple[int, int], Int64]

    def whole(self, source: int) -> list[Int64]:
        """Return the passes of a source that came to their end; each of them is a permutation of its samples."""
        length = self.sources.lengths[source]
        return [order for (one, _), order in sorted(self.orders.items()) if one == source and len(order) == length]

    def check_new_orders(self, source: int) -> None:
        """Check that each whole pass of a source has an order of its own."""
        found = [tuple(order.tolist()) for order in self.whole(source)]
        assert len(found) >= 2, "too few passes to compare"
        assert len(set(found)) == len(found), f"two passes of source {source} have the same order"


def errors(source: Int64, weights: Sequence[float]) -> Iterator[float]:
    """Yield, for each source, how far any prefix of an order is from the weights, at most, in samples."""
    prefix = np.arange(1, len(source) + 1)
    for number, weight in enumerate(weights):
        yield float(np.abs(np.cumsum(source == number) - prefix * (weight / sum(weights))).max())


def dataset_of(data: Data, **options: Any) -> ZarrIterableDataset:
    """Return a dataset of one rank that reads ahead little: shuffled with seed 3, in batches of 8, with the index."""
    defaults: dict[str, Any] = {
        "batch_size": 8,
        "shuffle": True,
        "seed": 3,
        "return_index": True,
        "num_threads": 1,
        "even": "off",
        "rank": 0,
        "world_size": 1,
    }
    return ZarrIterableDataset(data, **(defaults | options))


def order_of_ranks(data: Data, world_size: int, epoch: int = 0, **options: Any) -> Int64:
    """Return the order of all ranks of an epoch, interleaved."""
    parts = []
    for rank in range(world_size):
        with dataset_of(data, rank=rank, world_size=world_size, **options) as dataset:
            parts.append(dataset.sample_order(epoch))
    return interleaved(parts)


def interleaved(parts: Sequence[Int64]) -> Int64:
    """Return the order that ranks share: sample q of rank r is sample r + W q of it."""
    epoch_order = np.full(sum(map(len, parts)), -1, dtype=np.int64)
    for rank, part in enumerate(parts):
        epoch_order[rank :: len(parts)] = part
    return epoch_order


def read(batches: Any) -> list[Int64]:
    """Return the indices of batches of (samples, index), whose samples say which they are."""
    taken = []
    for samples, index in batches:
        assert np.array_equal(samples.numpy(), index.numpy()[:, None] * 100 + np.arange(3))
        taken.append(index.numpy().copy())
    return taken


def mixed(folder: Path, weights: Weights = (7, 2, 1), **options: Any) -> Data:
    """Write the usual sources, and mix them."""
    return zarrfeed.mix(write_sources(folder), weights, **options)
