"""The digest of an epoch: equal for equal multisets of indices, and for nothing else that goes wrong in practice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zarrfeed import Digest, audit


def test_order_grouping_and_type_do_not_matter() -> None:
    indices = np.random.default_rng(0).permutation(1000)
    pieces = [torch.from_numpy(indices[:300]), indices[300:600].reshape(3, 100), *indices[600:].tolist()]
    assert audit(pieces) == Digest.of_range(1000)


@pytest.mark.parametrize(
    "wrong",
    [
        np.arange(999),
        np.append(np.arange(1000), 0),
        np.append(np.arange(999), 0),  # one missing, one twice
        np.append(np.arange(998), [998, 1000]),
        np.append(np.arange(998), [997, 1000]),  # the same sum
        np.append(np.arange(996), [996, 996, 999, 999]),  # the same sum
        np.zeros(1000, dtype=int),
    ],
)
def test_what_is_missing_repeated_or_exchanged_shows(wrong: np.ndarray) -> None:
    assert audit([wrong]) != Digest.of_range(1000)


def test_tensors_of_ranks_add_up_without_overflow() -> None:
    ranks = 2048
    parts = [audit([np.arange(rank, 20_000, ranks)]) for rank in range(ranks)]
    total = torch.stack([part.tensor() for part in parts]).sum(0)
    assert Digest.from_tensor(total) == Digest.of_range(20_000)
    largest = Digest(0, (2**52 - 1, 2**52 - 1)).tensor()
    assert int((largest * ranks)[1]) == (2**52 - 1) * ranks  # no overflow in an int64


def test_a_digest_stays_what_it_was() -> None:
    """Digests of two versions are compared: one that was written down must be found again."""
    assert audit([np.array([0, 1, 2**40])]) == PINNED
    assert audit([2**40, 1, 0]) == PINNED


PINNED = Digest(3, (102401472513813, 4093775021198712))


def test_nothing_has_the_digest_of_nothing() -> None:
    assert audit([]) == Digest.of_range(0) == Digest()
