"""The permutation of blocks in an epoch, and the largest number of blocks.

Invariant: the order of the blocks is a function of (the number of blocks, their seed, the epoch, the strata) alone.
Few blocks are permuted by sorted keys, as they always were; many are laid in rotated combs, which are found one by
one. A state names the strata, so an epoch that was begun by sorted keys goes on by them.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.random import Philox  # named, since numpy imports it late: not while the first batch is awaited

from zarrfeed.base.native import core
from zarrfeed.plan.samples.selection import Int64

#: Blocks of a plan whose groups are listed, about 460 bytes each, before the epoch begins.
MOST_BLOCKS = 1 << 24
#: Blocks of an epoch order; plans of more than `MOST_BLOCKS` are unfolded while they are read.
MOST_UNFOLDED = 1 << 32
#: Up to so many blocks, epochs permute them by sorted keys. Beyond, they are laid in rotated combs
#: (cpp/plan/block_order.h), with so many strata.
COMBS_ABOVE = 1 << 22
_STRATA = 1024


class RowKeys(TypedDict):
    """The keys of the order of rows, as arguments of `core.EpochPlan`."""

    seed: int
    epoch: int
    shuffle: bool
    lanes: int
    length: int
    num_samples: int
    sample_step: int
    selected: core.SampleTable | None


def strata_for(num_blocks: int) -> int:
    """Return the strata of the combs in which a new epoch lays so many blocks; 0: it permutes them by sorted keys.

    Examples
    --------
    >>> strata_for(4_000_000), strata_for(10_000_000)
    (0, 1024)
    """
    return _STRATA if num_blocks > COMBS_ABOVE else 0


def regular_table(num_samples: int, block_rows: int) -> core.BlockTable:
    """Return the blocks of an array that is read as a whole, in the form that the engine takes."""
    full, rest = divmod(num_samples, block_rows)
    runs = [(0, block_rows)] * bool(full) + [(full, rest)] * bool(rest)
    held_index, rows = np.array(runs, dtype=np.int64).T
    first = held_index * block_rows
    stride = np.full_like(held_index, block_rows)
    return core.BlockTable.of_runs(
        held_index=held_index, block=held_index, first=first, stride=stride, rows=rows, num_blocks=full + bool(rest)
    )


def permuted(count: int, seed: int, epoch: int) -> Int64:
    """Return 0, 1, ..., count - 1 in a random order, which depends on a seed and an epoch alone.

    Random keys are sorted with the numbers in their low bits: no two are equal, so that the result depends on the keys
    alone and not on the sorting algorithm. The keys are the raw words of numpy's Philox, whose stream numpy guarantees
    to stay as it is.
    """
    numbers = np.arange(count, dtype=np.uint64)
    low_bits = np.uint64((1 << max(1, (count - 1).bit_length())) - 1)
    # 128-bit key: seed and epoch side by side, so that no two pairs share one
    keys = Philox(key=seed | (epoch << 64)).random_raw(count)
    keys = (np.asarray(keys, dtype=np.uint64) & ~low_bits) | numbers
    keys.sort()
    return (keys & low_bits).astype(np.int64)
