"""The distribution of an epoch, said plainly in numpy: which rank gets which batches (docs/design/order.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed import ZarrIterableDataset

Int64: TypeAlias = npt.NDArray[np.int64]


def shuffled_order(
    store: str, *, epoch: int = 0, seed: int = 0, lanes: int | None = None, mix: int | None = None
) -> Int64:
    """Return the shuffled epoch order, in which a single consumer reads (test_order.py proves that one)."""
    alone = ZarrIterableDataset(
        store, batch_size=1, shuffle=True, seed=seed, rank=0, world_size=1, mixing={"lanes": lanes, "mix": mix}
    )
    return alone.sample_order(epoch)


def unshuffled_order(n: int, num_consumers: int) -> Int64:
    """Return the order of an epoch without shuffling: one contiguous piece a consumer, dealt round robin."""
    pieces = np.array_split(np.arange(n), num_consumers)  # the first n mod L are one longer
    return np.array([piece[i] for i in range(len(pieces[0])) for piece in pieces if i < len(piece)], dtype=np.int64)


def rank_length(n: int, *, rank: int, world_size: int, even: str) -> int:
    """Return how many samples a rank gets."""
    if even == "off":
        return len(range(rank, n, world_size))
    return n // world_size if even == "drop" else -(-n // world_size)


def rank_batches(
    epoch_order: Int64, *, rank: int, world_size: int, num_workers: int, batch_size: int, even: str, drop_last: bool
) -> list[Int64]:
    """Return the batches of a rank, in order."""
    n = len(epoch_order)
    length = rank_length(n, rank=rank, world_size=world_size, even=even)
    mine = epoch_order[(np.arange(length) * world_size + rank) % n]
    num_workers = max(1, num_workers)
    in_rounds = n // world_size // (num_workers * batch_size) * (num_workers * batch_size)  # the same on every rank
    # (rounds, samples of a worker, workers) -> (rounds, workers, samples): worker w takes every num_workers-th position
    rounds = mine[:in_rounds].reshape(-1, batch_size, num_workers).swapaxes(1, 2)
    batches = [batch for one_round in rounds for batch in one_round]
    batches += [mine[i : i + batch_size] for i in range(in_rounds, length, batch_size)]
    return [b for b in batches if len(b) == batch_size] if drop_last else batches


def assert_shared_out(delivered: Sequence[Int64], n: int, *, even: str) -> None:
    """Check what the ranks got together: each of `n` samples once, or as `even` says.

    Parameters
    ----------
    delivered
        The samples of each rank.
    n
        How many samples there are to share out.
    even
        "drop", "repeat" or "off".
    """
    world_size = len(delivered)
    counts = np.bincount(np.concatenate(delivered), minlength=n)
    assert len(counts) == n
    assert counts.min() >= (0 if even == "drop" else 1), "a sample is missing"
    expected = {"drop": n // world_size * world_size, "repeat": -(-n // world_size) * world_size, "off": n}[even]
    assert counts.sum() == expected
    assert counts.max() <= (max(1, -(-expected // n)) if even == "repeat" else 1), "a sample came twice"
    if even != "off":
        assert len({len(samples) for samples in delivered}) == 1, "ranks got different numbers of samples"
