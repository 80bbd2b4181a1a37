"""Sets of samples: each form says the same as a list, takes few bytes, and is found without one."""

from __future__ import annotations

import pickle
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed.plan.samples import sample_set
from zarrfeed.plan.samples.sample_set import (
    SampleBuilder,
    Samples,
    SampleSet,
    as_samples,
    collected,
    compact,
    distinct,
    flagged,
    intersected,
    pieces_of,
    rank_of,
    runs_in,
    runs_of,
    stretches,
)

NUM_SAMPLES = 400
SOME = st.lists(st.integers(0, NUM_SAMPLES - 1), min_size=1, max_size=120, unique=True).map(sorted)
RUNS = st.lists(st.tuples(st.integers(0, NUM_SAMPLES - 40), st.integers(1, 40)), min_size=1, max_size=5).map(
    lambda runs: sorted({i for begin, count in runs for i in range(begin, begin + count)})
)
STEPS = st.tuples(st.integers(0, 50), st.integers(1, 9), st.integers(1, 30)).map(
    lambda of: list(range(of[0], of[0] + of[1] * of[2], of[1]))
)
CHOSEN = SOME | RUNS | STEPS


def every_form(chosen: list[int]) -> list[Samples]:
    """Return the samples in all forms, as runs of several steps too."""
    samples = np.array(chosen)
    made: list[Samples] = [as_samples(samples)]
    made += [
        sample_set._made(form, iter([samples[:7], samples[7:]]), len(samples), chosen[-1])
        for form in ("runs", "flags", "pages", "list")
    ]
    for step in (2, 3):
        breaks = np.append(True, np.diff(samples) != step)
        begin = samples[breaks]
        made.append(SampleSet("runs", (begin, np.diff(np.flatnonzero(np.append(breaks, True)))), step))
    return made


@pytest.fixture(autouse=True, params=[4, 1 << 18])
def _some_at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples are looked at at a time, so that there are many pieces; and so many as ever."""
    monkeypatch.setattr(sample_set, "AT_ONCE", request.param)
    monkeypatch.setattr(sample_set, "_FLAGS_AT_ONCE", 8 * request.param)


@examples(25)
@given(chosen=CHOSEN, other=CHOSEN)
def test_each_form_says_the_same_as_a_list(chosen: list[int], other: list[int]) -> None:
    for samples in every_form(chosen):
        form = samples.form if isinstance(samples, SampleSet) else "range"
        assert list(samples) == chosen, form
        assert np.concatenate([*pieces_of(samples)]).tolist() == chosen, form
        of = np.arange(-1, NUM_SAMPLES + 9)
        assert np.array_equal(rank_of(samples, of), np.searchsorted(chosen, of)), form
        for low, high in ((0, NUM_SAMPLES), (37, 200), (8, 9)):
            begin, end = runs_in(samples, low, high)
            inside = [i for a, b in zip(begin, end, strict=True) for i in range(a, b)]
            assert inside == [i for i in chosen if low <= i < high], form
        for others in every_form(other):
            both = intersected(samples, others, NUM_SAMPLES)
            assert list(both) == sorted({*chosen} & {*other}), form
        again = pickle.loads(pickle.dumps(samples))
        assert list(again) == chosen, form
        if isinstance(samples, SampleSet):
            numbers = np.arange(len(chosen))[::-1]
            assert samples.at(numbers).tolist() == chosen[::-1], form
            assert list(compact(samples)) == chosen, form
            assert samples[-1] == chosen[-1], form


@examples(25)
@given(chosen=CHOSEN, begin=st.integers(0, NUM_SAMPLES), count=st.integers(0, NUM_SAMPLES))
def test_what_lies_between_two_samples_is_cut_out_of_each_form(chosen: list[int], begin: int, count: int) -> None:
    for samples in every_form(chosen):
        found = intersected(samples, range(begin, begin + count), NUM_SAMPLES)
        assert list(found) == [i for i in chosen if begin <= i < begin + count], samples


@examples(25)
@given(chosen=CHOSEN)
def test_samples_have_one_form_however_they_were_found(chosen: list[int]) -> None:
    """A state knows them by it."""
    samples = np.array(chosen)
    mask = np.zeros(NUM_SAMPLES, bool)
    mask[samples] = True
    starts = np.flatnonzero(np.append(True, np.diff(samples) != 1))
    by_runs = runs_of(samples[starts], np.diff(starts, append=len(samples)), 1)
    found = [as_samples(samples), flagged(mask), collected([samples[:5], samples[5:]], NUM_SAMPLES), by_runs]
    first = found[0]
    if isinstance(first, range):
        assert all(one == first for one in found)
        return
    sets = [one for one in found if isinstance(one, SampleSet)]
    assert len(sets) == len(found), "evenly spaced samples are a range, others never"
    assert {one.form for one in sets} == {first.form}
    assert {one.digest for one in sets} == {first.digest}


def test_the_form_with_the_fewest_bytes_is_taken() -> None:
    random = np.random.default_rng(0)
    n = 1 << 18
    for chosen, form, most in (
        (np.flatnonzero(random.random(n) < 0.5), "flags", n // 8 + 1),
        (np.sort(random.choice(n, n // 100, replace=False)), "pages", 2 * (n // 100) + 8 * 6),
        (np.concatenate([np.arange(1000), np.arange(9000, n)]), "runs", 64),
        (np.array([1, 1 << 40, 1 << 41]), "list", 24),
    ):
        made = as_samples(chosen)
        assert isinstance(made, SampleSet)
        assert (made.form, made.nbytes <= most) == (form, True), made.nbytes
    assert as_samples(np.arange(5, 100, 7)) == range(5, 100, 7)


def test_runs_that_touch_are_one() -> None:
    builder = SampleBuilder(100)
    for begin, end in (([0, 5], [2, 7]), ([7], [9]), ([9, 20], [10, 21])):
        builder.add(np.array(begin), np.array(end))
    assert list(builder.samples()) == [0, 1, 5, 6, 7, 8, 9, 20]
    assert runs_of(np.array([3, 5]), np.array([1, 2]), 2) == range(3, 9, 2)
    assert runs_of(np.array([], dtype=np.int64), np.array([], dtype=np.int64), 1) == range(0)


def test_stretches_partition_the_samples() -> None:
    edges = list(
        stretches([flagged(np.random.default_rng(1).random(NUM_SAMPLES) < 0.5), range(0, NUM_SAMPLES, 3)], 400)
    )
    assert edges[0][0] == 0
    assert edges[-1][1] == NUM_SAMPLES
    assert all(a[1] == b[0] for a, b in pairwise(edges))
    assert distinct(np.array([3, 1, 3])).tolist() == [1, 3]


def test_a_mask_takes_less_memory_than_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    mask = np.random.default_rng(0).random(1 << 24, dtype=np.float32) < 0.5
    tracemalloc.start()
    flagged(mask)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.25 * mask.nbytes + (64 << 20), "the list of its samples has 67 MB, and was sorted in copies"
