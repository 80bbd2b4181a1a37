"""Samples whose windows read only what they may: against the rows of each window, one by one."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.unit.plan.samples.test_sample_set import CHOSEN, NUM_SAMPLES, every_form
from zarrfeed.plan.samples import sample_set
from zarrfeed.plan.samples.sample_set import SampleSet
from zarrfeed.plan.windows import window_samples
from zarrfeed.plan.windows.window_samples import count_between, every, reading_only, whole_windows
from zarrfeed.spec.samples.window import Borders

OFFSETS = st.lists(st.integers(-40, 40), min_size=0, max_size=8).map(lambda of: sorted({0, *of})) | st.tuples(
    st.integers(-20, 0), st.integers(0, 20), st.integers(1, 5)
).map(lambda of: sorted({0, *range(of[0], of[1] + 1, of[2])}))
ENDS = st.lists(st.integers(0, NUM_SAMPLES), max_size=8).map(lambda ends: np.array(sorted([*ends, NUM_SAMPLES])))


@pytest.fixture(autouse=True, params=[4, 1 << 18])
def _some_at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_set, "AT_ONCE", request.param)
    monkeypatch.setattr(window_samples, "AT_ONCE", request.param)
    monkeypatch.setattr(sample_set, "_FLAGS_AT_ONCE", 8 * request.param)


@examples(25)
@given(ends=ENDS, before=st.integers(0, 9), after=st.integers(0, 9))
def test_whole_windows_do_not_leave_their_segment(ends: np.ndarray, before: int, after: int) -> None:
    begins = np.concatenate(([0], ends[:-1]))
    wanted = [
        i
        for low, high in zip(begins, ends, strict=True)
        for i in range(low, high)
        if low <= i - before and i + after < high
    ]
    assert list(whole_windows(NUM_SAMPLES, ends, before, after)) == wanted
    alone = [i for i in range(NUM_SAMPLES) if i >= before and i + after < NUM_SAMPLES]
    assert list(whole_windows(NUM_SAMPLES, None, before, after)) == alone


@examples(25)
@given(chosen=CHOSEN, readable=CHOSEN, offsets=OFFSETS)
def test_a_sample_is_taken_if_all_of_its_rows_may_be_read(
    chosen: list[int], readable: list[int], offsets: list[int]
) -> None:
    rows = {*readable}
    wanted = [i for i in chosen if all(i + offset in rows for offset in offsets)]
    for samples in every_form(chosen)[:3]:
        for readables in every_form(readable):
            assert list(reading_only(samples, offsets, readables, NUM_SAMPLES)) == wanted, (samples, readables)


@examples(25)
@given(chosen=CHOSEN, readable=CHOSEN, offsets=OFFSETS, ends=ENDS)
def test_rows_that_are_padded_are_those_at_the_borders_of_the_segment(
    chosen: list[int], readable: list[int], offsets: list[int], ends: np.ndarray
) -> None:
    first = np.unique(np.append(0, ends))
    rows = {*readable}
    wanted = []
    for i in chosen:
        segment = int(np.searchsorted(first, i, side="right")) - 1
        low, high = int(first[segment]), int(first[segment + 1])
        if all(min(max(i + offset, low), high - 1) in rows for offset in offsets):
            wanted.append(i)
    for samples in every_form(chosen)[:3]:
        for readables in every_form(readable):
            found = reading_only(samples, offsets, readables, NUM_SAMPLES, Borders(first))
            assert list(found) == wanted, (samples, readables)


@examples(25)
@given(chosen=CHOSEN, ends=ENDS)
def test_samples_of_segments_are_counted(chosen: list[int], ends: np.ndarray) -> None:
    begins = np.concatenate(([0], ends[:-1]))
    wanted = [sum(a <= i < b for i in chosen) for a, b in zip(begins, ends, strict=True)]
    for samples in every_form(chosen):
        assert count_between(samples, begins, ends).tolist() == wanted


@examples(25)
@given(chosen=CHOSEN, ends=ENDS, stride=st.integers(1, 50))
def test_every_nth_sample_counts_from_the_first_one_of_its_segment(
    chosen: list[int], ends: np.ndarray, stride: int
) -> None:
    wanted = []
    for low, high in zip(np.append(0, ends[:-1]), ends, strict=True):
        of_segment = [i for i in chosen if low <= i < high]
        wanted += [i for i in of_segment if (i - of_segment[0]) % stride == 0]
    for samples in every_form(chosen):
        assert list(every(samples, stride, ends, NUM_SAMPLES)) == wanted
        assert list(every(samples, stride, None, NUM_SAMPLES)) == [i for i in chosen if (i - chosen[0]) % stride == 0]


def test_a_thousand_million_windows_are_planned_without_an_entry_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of the samples has 8 GB, one of their rows 8 TB: what is made grows with the segments alone."""
    monkeypatch.undo()
    n, offsets = 10**9, range(1000)
    random = np.random.default_rng(0)
    ends = sample_set.distinct(np.append(random.integers(1, n, 10**6), n))
    begin = np.arange(10**6, dtype=np.int64) * 1000
    runs = SampleSet("runs", (begin, random.integers(1, 999, 10**6)))
    tracemalloc.start()
    by_segments = whole_windows(n, ends, 0, 999)
    by_step = reading_only(range(0, n, 3), offsets, range(n), n)
    padded = reading_only(range(n), offsets, runs, n, Borders(np.append(0, ends)))
    lost = reading_only(runs, (0, 1), runs, n)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(by_step, range)
    assert 0 < len(by_segments) < n
    assert len(padded) < n
    assert len(lost) == len(runs) - 10**6
    assert peak < 200 << 20
