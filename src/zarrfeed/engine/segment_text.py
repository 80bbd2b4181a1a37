"""Look up text that samples share by the index of a sample: in memory, so nothing is read and nothing can fail."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from zarrfeed.engine.sample_lookup import SampleLookup
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import Skipped, SkippedField
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.fields.segment_text import SegmentTextField


class SegmentTextLookup(SampleLookup[NoReturn]):
    """Looks up the item of each sample.

    Parameters
    ----------
    field
        The field, whose items are in memory.
    """

    def __init__(self, field: SegmentTextField) -> None:
        self._rows = field.rows
        self._items = np.empty(len(field.items), dtype=object)
        self._items[:] = field.items

    @property
    def source(self) -> None:
        """The source of the chunks: there are none."""

    def open(self, plan: ReadPlan, max_open_batches: int) -> None:
        """Begin an epoch."""

    def close(self) -> None:
        """End the epoch."""

    def take_what_is_good(self, index: Int64) -> tuple[list[Any], list[NoReturn]]:
        """Return the items of samples, and no error."""
        return self._items[self._rows.rows_of(index)].tolist(), []

    def skippable(self, number: int, name: str) -> dict[int, SkippedField]:  # noqa: ARG002 (nothing is skipped)
        """Map the skip ids: there are none."""
        return {}

    def skipped(self, number: int, index: Int64, errors: list[NoReturn]) -> Skipped:  # noqa: ARG002 (as above)
        """Return the slots that lack their sample: there are none."""
        return [], [], []

    def stats(self) -> Stats:
        """Return the counters since this was made: nothing is counted."""
        return Stats()

    def _error_of(self, bad: NoReturn) -> BaseException:
        raise AssertionError(bad)
