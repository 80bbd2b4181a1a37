"""`StoreShares`: the part of the selected samples that each of several stores has, in a few lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zarrfeed.base.page import Row
from zarrfeed.metadata.patches.store_table import StoreTable
from zarrfeed.plan.choice.sample_choice import SampleChoice
from zarrfeed.plan.samples.sample_set import rank_of
from zarrfeed.plan.samples.selection import Int64

#: Up to so many stores are listed one by one.
_LISTED_STORES = 6


@dataclass(frozen=True, eq=False)
class StoreShares:
    """The samples of each of several stores.

    Attributes
    ----------
    table
        Table of the stores.
    selected
        Number of samples that are read of each store, shape (stores,).
    """

    table: StoreTable
    selected: Int64

    @classmethod
    def of(cls, table: StoreTable, choice: SampleChoice) -> StoreShares:
        """Count the samples that are chosen of each store."""
        if choice.length == choice.num_samples:
            return cls(table, np.diff(table.first))
        return cls(table, np.diff(rank_of(choice.ascending(), table.first)))

    @property
    def lengths(self) -> Int64:
        """Samples of each store, selected or not, shape (stores,)."""
        return np.diff(self.table.first)

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        lengths, count = self.lengths, len(self.selected)
        least = f"{lengths.min()} to " * bool(lengths.min() < lengths.max())
        rows = [("stores", f"in {count} stores of {least}{lengths.max()} samples")]
        if count <= _LISTED_STORES:
            return rows + [("", self._line(store)) for store in range(count)]
        most, fewest = int(self.selected.argmax()), int(np.where(self.selected, self.selected, 2**62).argmin())
        if self.selected[most] > self.selected[fewest]:
            rows += [("", f"most samples: {self._line(most)}"), ("", f"fewest samples: {self._line(fewest)}")]
        else:
            rows.append(("", f"each as {self._line(most)}"))
        empty = np.flatnonzero(self.selected == 0)
        if len(empty):
            rows.append(("", f"{len(empty)} stores have no sample that is read, such as {self.table.names[empty[0]]}"))
        return rows

    def _line(self, store: int) -> str:
        length, selected = int(self.lengths[store]), int(self.selected[store])
        count = f"{selected} of {length}" if selected < length else str(length)
        share = 100 * selected / int(self.selected.sum())
        return f"{self.table.names[store]}: {count} samples, {share:.3g} %"
