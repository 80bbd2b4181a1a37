"""Windows that span a gap of the coordinate: which gaps these are, and what is said of them.

Invariant: a window spans a gap if the gap lies between the first and the last row of a sample, its own row included,
and in the sample's segment; whether the row right before the gap is among the offsets does not matter. A window that is
padded spans a gap by the same rule: it is not left out, and is padded at the gap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.samples.left_out import OVER_GAP, LeftOut
from zarrfeed.plan.samples.sample_set import Int64, Samples
from zarrfeed.plan.windows.gaps import GapRule, Gaps
from zarrfeed.plan.windows.window_samples import count_between
from zarrfeed.plan.windows.windows import reach
from zarrfeed.spec.samples.window import Borders, Window

#: A user is warned if a larger share of the samples is left out.
_MOST_LOST = 0.05


def spanned_gaps(
    gaps: Gaps, samples: Samples, windows: Sequence[Window | None], ends: Int64 | None, num_samples: int
) -> Int64:
    """Return the numbers of the gaps that windows span.

    Parameters
    ----------
    gaps
        All gaps, none of which is the border of a segment.
    samples
        The samples that would be chosen if there were no gaps, ascending.
    windows
        The rows of a sample in each field.
    ends
        The sample behind the last one of each segment, ascending. None: all samples are one segment.
    num_samples
        Length of the sample axis.
    """
    before, after = reach(windows)
    first, behind = Borders(np.append(0, num_samples if ends is None else ends)).around(gaps.rows)
    begins, stops = np.maximum(gaps.rows - after, first), np.minimum(gaps.rows + before, behind)
    return np.flatnonzero(count_between(samples, begins, stops)).astype(np.int64)


def refuse_gaps(gaps: Gaps, spanned: Int64, rows: Samples, rule: GapRule) -> None:
    """Raise ConfigError if values come twice or go back between rows that windows read, or if gaps are errors.

    Parameters
    ----------
    gaps, spanned
        All gaps, and the numbers of those that windows span.
    rows
        The rows that windows may read.
    rule
        The rule by which gaps are found; it also says if they are errors.
    """
    behind = gaps.rows[spanned]
    faults = spanned[gaps.are_faults[spanned] & (count_between(rows, behind - 1, behind + 1) == 2)]
    if len(faults):
        raise ConfigError(
            f"{gaps.where}: has a value twice, or goes back, {_times(len(faults))} within windows: "
            f"{gaps.examples(faults)}. Leave such rows out with sel() or select(), name the ends of sequences with "
            "segment_ends=, or pass gaps='ignore', which takes neighbours in the store for neighbours in a window"
        )
    if rule.mode == "error" and len(spanned):
        raise ConfigError(
            f"gaps = 'error', and windows span {_gaps(len(spanned))} of {gaps.where}: {gaps.examples(spanned)}. Pass "
            "gaps='drop' to leave these windows out, or step= if another difference is regular"
        )


def padded_clause(gaps: Gaps) -> str:
    """Return a clause about the gaps, at all of which windows are padded."""
    count = len(gaps.rows)
    return f"also at {_gaps(count)} of {gaps.name!r}; the largest is {gaps.largest(np.arange(count))[1]}"


def all_over_gaps(gaps: Gaps, spanned: Int64, lost: int) -> ConfigError:
    """Return the error for samples whose windows all span a gap."""
    return ConfigError(
        f"no sample is left: the windows of all {lost} span a gap of {gaps.where}, such as {gaps.examples(spanned)}. "
        "Pass step= with the difference that is regular, such as step='6h', or gaps='ignore' to read windows over gaps"
    )


def over_gaps(gaps: Gaps, spanned: Int64, lost: int, of: int) -> LeftOut:
    """Return the count of samples that are left out as their windows span a gap."""
    largest, examples = gaps.largest(spanned), gaps.examples(spanned)
    return LeftOut(lost, of, f"{OVER_GAP} {gaps.name!r}", largest_gap=largest, examples=examples)


def gap_warning(left_out: Sequence[LeftOut]) -> str | None:
    """Return the text of a warning if many samples are left out as their windows span gaps; else None."""
    for one in left_out:
        if one.largest_gap is not None and one.samples > _MOST_LOST * one.of:
            return (
                f"{one.samples} of {one.of} samples are left out: {one.reason}, such as {one.examples}. Pass step= if "
                "another difference is regular, or gaps='ignore' to read windows over gaps"
            )
    return None


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _gaps(count: int) -> str:
    return "a gap" if count == 1 else f"{count} gaps"
