"""Deal units to the parts of a split: evenly in samples and classes, or by a hash of the unit's name.

Invariant: nothing is decided but by numbers and labels, so the same parts come out on every machine and with every
NumPy. What is dealt is called a unit here: a block, all samples of a group, or one sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.samples.sample_set import as_index
from zarrfeed.spec.samples.block_edges import Int64
from zarrfeed.spec.values.missing import is_missing

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SampleLabels:
    """A label for each sample that is chosen, such as its patient or its class.

    Attributes
    ----------
    name
        The name of the labels in messages.
    codes
        The index of each sample's label in `distinct`, shape (samples of the arrays,); 0 of those that are not chosen.
    distinct
        The labels, ascending, each once.
    """

    name: str
    codes: Int64
    distinct: npt.NDArray[Any]

    @classmethod
    def found(cls, name: str, values: npt.NDArray[Any], samples: range | Int64, num_samples: int) -> Self:
        """Find the distinct labels of some samples.

        Parameters
        ----------
        name
            The name of the labels in messages.
        values
            Their labels, shape (len(samples),).
        samples
            Their indices in the arrays.
        num_samples
            Number of samples of the arrays.

        Raises
        ------
        ConfigError
            If a sample has no label, or labels cannot be sorted.
        """
        lacks = is_missing(values)
        if lacks.any():
            raise ConfigError(
                f"{name}: {int(lacks.sum())} samples have no value, the first one is sample "
                f"{int(samples[int(lacks.argmax())])}; choose others with select()"
            )
        if values.dtype == object:
            try:
                values = np.asarray(sorted(set(values.tolist())) and values.tolist())
            except TypeError:
                kinds = sorted({type(value).__name__ for value in values.tolist()})
                raise ConfigError(f"{name}: has labels of the types {', '.join(kinds)}, must have one type") from None
        distinct, of_each = np.unique(values, return_inverse=True)
        codes = np.zeros(num_samples, dtype=np.int64)
        codes[as_index(samples)] = of_each
        return cls(name, codes, distinct)

    def of(self, samples: Int64) -> Int64:
        """Return the codes that some samples have, ascending, each once."""
        return np.flatnonzero(np.bincount(self.codes[samples], minlength=len(self.distinct)))

    def text(self, code: int) -> str:
        """Return a label as it is hashed and shown: the same whatever the type of the array is."""
        label = self.distinct[code]
        if isinstance(label, np.datetime64):
            return str(label.astype("M8[ns]"))
        return str(label.item() if isinstance(label, np.generic) else label)


def cut_nearest(rows: Int64, lengths: Sequence[int]) -> list[Int64]:
    """Return the units of each part in a row of units, cut where the parts' lengths are nearest; each part has a unit.

    Parameters
    ----------
    rows
        Samples of each unit; there are as many units as parts, at least.
    lengths
        Samples that each part is to have.
    """
    ends = np.cumsum(rows)
    wanted = np.cumsum(lengths)[:-1]
    # the cut behind unit i leaves ends[i] samples on its left
    after = np.clip(np.searchsorted(ends, wanted), 0, len(ends) - 1)
    before = np.maximum(after - 1, 0)
    cuts = np.where(wanted - ends[before] < ends[after] - wanted, before, after) + 1
    number = np.arange(len(cuts))
    cuts = np.maximum.accumulate(cuts - number) + number
    cuts = np.minimum(cuts, len(rows) - len(cuts) + number)
    return np.split(np.arange(len(rows)), cuts)


def deal_evenly(counts: Int64, fractions: Floats, seed: int) -> list[Int64]:
    """Deal units so that each part has its fraction of every class, as nearly as whole units allow.

    Those that hold most of a class are dealt first, each to the part that lacks its classes most. Units of one size and
    kind go to parts at random.

    Parameters
    ----------
    counts
        Samples of each unit by class, shape (units, classes); there are as many units as parts, at least.
    fractions
        The fraction of each part; their sum is 1.
    seed
        Key of the random draws.
    """
    drawn = permutation(len(counts), seed)
    share = counts / np.maximum(counts.sum(axis=0), 1)
    order = drawn[np.argsort(-share[drawn].max(axis=1), kind="stable")]
    has = np.zeros((len(fractions), counts.shape[1]))
    part = np.empty(len(counts), dtype=np.int64)
    for unit in order.tolist():
        # what the sum of (share of a class in a part)^2 / (fraction of the part) grows by: least where shares are equal
        cost = ((2 * has + share[unit]) * share[unit]).sum(axis=1) / fractions
        part[unit] = cost.argmin()
        has[part[unit]] += share[unit]
    size = share.sum(axis=1)
    for number in range(len(fractions)):
        if not (part == number).any():
            giver = np.bincount(part, minlength=len(fractions)).argmax()
            given = np.flatnonzero(part == giver)
            part[given[size[given].argmin()]] = number
    return [np.flatnonzero(part == number) for number in range(len(fractions))]


def deal_in_turn(classes: Int64, lengths: Sequence[int], seed: int) -> list[Int64]:
    """Deal single samples so that parts have just their lengths, and of each class their fraction, to within 2.

    Samples lie class by class, at random within each. The first part takes every k-th of them, the second part every
    k-th of what is left, and so on.

    Parameters
    ----------
    classes
        The class of each sample, shape (samples,).
    lengths
        Samples of each part; their sum is the number of samples.
    seed
        Key of the random draws.
    """
    drawn = permutation(len(classes), seed)
    rest = drawn[np.argsort(classes[drawn], kind="stable")]
    parts = []
    for length in lengths:
        index = np.arange(len(rest), dtype=np.int64)
        taken = (index + 1) * length // len(rest) > index * length // len(rest)
        parts.append(np.sort(rest[taken]))
        rest = rest[~taken]
    return parts


def deal_by_hash(labels: SampleLabels, fractions: Floats, seed: int) -> list[Int64]:
    """Deal groups by a hash of their labels: whatever samples or groups are added, each stays in its part."""
    ends = np.cumsum(fractions)
    parts = np.array([_hash(labels.text(code), seed) for code in range(len(labels.distinct))])
    owner = np.minimum(np.searchsorted(ends, parts, side="right"), len(fractions) - 1)
    return [np.flatnonzero(owner == number) for number in range(len(fractions))]


def _hash(text: str, seed: int) -> float:
    """Return a number in [0, 1)."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, salt=seed.to_bytes(8, "little")).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)


def permutation(n: int, seed: int) -> Int64:
    """Return a random permutation, the same in all versions of numpy: its Philox stream is guaranteed."""
    order: Int64 = np.argsort(np.random.Philox(key=seed).random_raw(n), kind="stable")
    return order
