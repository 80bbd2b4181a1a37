"""Digests of samples: they add up in any order, and tell a changed value from a moved sample."""

from __future__ import annotations

import numpy as np
import pytest

from zarrfeed.packing.work.digest import MODULUS, as_text, digest_rows

ROWS = np.arange(40, dtype="i4").reshape(10, 4)
TEXT = np.array([f"n{n}" for n in range(10)], dtype=object)
NUMBERS = np.arange(10)


@pytest.mark.parametrize("rows", [ROWS, TEXT, ROWS[:, 0], ROWS.astype("M8[s]"), ROWS[:, :0]])
def test_parts_add_up_in_any_order(rows: np.ndarray) -> None:
    order = np.random.default_rng(0).permutation(10)
    parts = [digest_rows(rows[order[:3]], NUMBERS[order[:3]]), digest_rows(rows[order[3:]], NUMBERS[order[3:]])]
    assert sum(parts) % MODULUS == digest_rows(rows, NUMBERS)


def test_values_numbers_and_counts_matter() -> None:
    known = digest_rows(ROWS, NUMBERS)
    changed = ROWS.copy()
    changed[3, 2] += 1
    assert digest_rows(changed, NUMBERS) != known
    assert digest_rows(ROWS[::-1], NUMBERS) != known
    assert digest_rows(ROWS, NUMBERS + 1) != known
    for far in (2**16, 2**32, 2**62):  # all bits of a number count
        assert digest_rows(ROWS, NUMBERS + far) != known
    assert digest_rows(np.concatenate([ROWS, ROWS[:1]]), np.append(NUMBERS, 0)) != known


def test_text_and_its_bytes_have_one_digest() -> None:
    encoded = np.empty(10, object)
    encoded[:] = [text.encode() for text in TEXT]
    assert digest_rows(encoded, NUMBERS) == digest_rows(TEXT, NUMBERS)


def test_the_digest_of_known_samples_never_changes() -> None:
    assert as_text(digest_rows(ROWS, NUMBERS)) == "c4e644696144f612e2e10feea065833d"
