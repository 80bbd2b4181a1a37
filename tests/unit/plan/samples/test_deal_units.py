"""What stays together is dealt to parts: each unit once, evenly in classes, or by a hash that no other label moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed import ConfigError
from zarrfeed.plan.samples.deal_units import Floats, SampleLabels, cut_nearest, deal_by_hash, deal_evenly, deal_in_turn
from zarrfeed.spec.samples.block_edges import Int64


def fractions_of(num_parts: int, data: st.DataObject) -> Floats:
    weights = np.array(data.draw(st.lists(st.integers(1, 9), min_size=num_parts, max_size=num_parts)), dtype=float)
    fractions: Floats = weights / weights.sum()
    return fractions


def is_partition(parts: list[Int64], num_units: int) -> bool:
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(num_units))


@examples(100)
@given(data=st.data(), num_parts=st.integers(2, 5), num_classes=st.integers(1, 5), seed=st.integers(0, 2**64 - 1))
def test_units_are_dealt_once_and_every_part_has_one(
    data: st.DataObject, num_parts: int, num_classes: int, seed: int
) -> None:
    num_units = data.draw(st.integers(num_parts, 40))
    rows = st.lists(st.integers(0, 50), min_size=num_classes, max_size=num_classes)
    counts = np.array(data.draw(st.lists(rows, min_size=num_units, max_size=num_units)), dtype=np.int64)
    parts = deal_evenly(counts, fractions_of(num_parts, data), seed)
    assert is_partition(parts, num_units)
    assert all(map(len, parts))


@pytest.mark.parametrize("seed", range(5))
def test_parts_have_their_fractions_of_each_class(seed: int) -> None:
    """Of groups of one to forty samples, of which a few have a class for themselves."""
    rng = np.random.default_rng(seed)
    counts: Int64 = (rng.integers(1, 40, (200, 1)) * rng.dirichlet([0.2] * 4, 200)).astype(np.int64)
    fractions = np.array([0.7, 0.2, 0.1])
    parts = deal_evenly(counts, fractions, seed)
    reached = np.array([counts[part].sum(axis=0) for part in parts]) / counts.sum(axis=0)
    assert np.abs(reached - fractions[:, None]).max() < 0.02
    at_random = np.array([counts[rng.permutation(200)[:140]].sum(axis=0) for _ in range(20)]) / counts.sum(axis=0)
    assert np.abs(at_random - 0.7).max() > 0.04, "no part of what is tested would be reached by chance"


def test_units_of_one_kind_go_to_parts_at_random() -> None:
    counts = np.full((100, 1), 7)
    held = np.zeros(100)
    for seed in range(200):
        held[deal_evenly(counts, np.array([0.8, 0.2]), seed)[1]] += 1
    assert held.sum() == 200 * 20
    assert held.min() > 15
    assert held.max() < 70


@examples(100)
@given(data=st.data(), num_parts=st.integers(1, 5), seed=st.integers(0, 2**64 - 1))
def test_single_samples_are_dealt_to_just_the_lengths(data: st.DataObject, num_parts: int, seed: int) -> None:
    lengths = data.draw(st.lists(st.integers(1, 60), min_size=num_parts, max_size=num_parts))
    classes = np.array(data.draw(st.lists(st.integers(0, 4), min_size=sum(lengths), max_size=sum(lengths))))
    parts = deal_in_turn(classes, lengths, seed)
    assert is_partition(parts, len(classes))
    assert [len(part) for part in parts] == lengths
    for one in np.unique(classes):
        wanted = np.count_nonzero(classes == one) * np.array(lengths) / len(classes)
        got = [np.count_nonzero(classes[part] == one) for part in parts]
        assert np.abs(got - wanted).max() <= 2
        if num_parts == 2:
            assert np.abs(got - wanted).max() <= 1


def test_each_sample_of_a_class_may_come_to_each_part() -> None:
    classes = np.repeat([0, 1], 20)
    held = np.sum([np.bincount(deal_in_turn(classes, [30, 10], seed)[1], minlength=40) for seed in range(400)], axis=0)
    assert held.min() > 60
    assert held.max() < 150


def labels(values: np.ndarray) -> SampleLabels:
    return SampleLabels.found("donor", values, range(len(values)), len(values))


def test_a_group_stays_in_its_part_whatever_comes_to_it() -> None:
    few = labels(np.array([f"donor {number}" for number in range(0, 300, 3)]))
    many = labels(np.array([f"donor {number}" for number in range(1000)]))
    fractions = np.array([0.6, 0.4])
    ours, all_of = (
        [{one.text(code) for code in part} for part in deal_by_hash(one, fractions, 7)] for one in (few, many)
    )
    for part, larger in zip(ours, all_of, strict=True):
        assert part < larger
    assert 560 < len(all_of[0]) < 640
    other = [{many.text(code) for code in part} for part in deal_by_hash(many, fractions, 8)]
    assert other != all_of


def test_the_hash_is_that_of_the_label_and_not_of_its_dtype() -> None:
    numbers, days = np.arange(50), np.arange("2020-01-01", "2020-03-01", dtype="M8[D]")
    dtypes: list[tuple[np.ndarray, Any]] = [
        (numbers, "u1"),
        (numbers, "U2"),
        (numbers.astype("U2"), object),
        (days, "M8[ns]"),
    ]
    for values, alike in dtypes:
        first, second = (
            {one.text(code)[:10] for code in deal_by_hash(one, np.array([0.5, 0.5]), 1)[0]}
            for one in (labels(values), labels(values.astype(alike)))
        )
        assert first == second


def test_the_hash_is_pinned() -> None:
    """A run that is resumed years later, by another release, must not move a patient to validation."""
    parts = deal_by_hash(labels(np.arange(20)), np.array([0.8, 0.2]), 0)
    assert parts[1].tolist() == [8, 12, 15]


def test_a_sample_without_a_label_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"donor: 1 samples have no value, the first one is sample 14"):
        SampleLabels.found("donor", np.array([1.0, np.nan, 3.0]), range(10, 22, 4), 30)
    with pytest.raises(ConfigError, match=r"donor: has labels of the types int, str, must have one type"):
        labels(np.array([1, "b"], dtype=object))


@examples(100)
@given(data=st.data(), num_parts=st.integers(1, 6))
def test_a_row_of_units_is_cut_where_lengths_are_nearest(data: st.DataObject, num_parts: int) -> None:
    rows = np.array(data.draw(st.lists(st.integers(1, 30), min_size=num_parts, max_size=30)))
    cuts = sorted(data.draw(st.lists(st.integers(1, 29), min_size=num_parts - 1, max_size=num_parts - 1)))
    lengths = np.diff([0, *(np.array(cuts, dtype=int) * rows.sum() // 30), rows.sum()])
    parts = cut_nearest(rows, lengths.tolist())
    assert np.array_equal(np.concatenate(parts), np.arange(len(rows)))
    assert all(map(len, parts))
