"""`SegmentTextField`: text that several samples share, such as the instruction of an episode, or a coordinate."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zarrfeed.spec.fields.field_kind import FieldKind
from zarrfeed.spec.samples.row_map import RowMap
from zarrfeed.spec.values.dtypes import item_bytes


@dataclass(frozen=True)
class SegmentTextField(FieldKind):
    """Text or bytes in memory, one item for each segment or each value: batches have lists, with each sample's item.

    The engine gives it the index of each sample, and `engine/segment_text.py` looks the item up.

    Attributes
    ----------
    items
        The text of each segment, or each text that samples have as a coordinate.
    rows
        The number of each sample's text.
    """

    name: str
    items: tuple[Any, ...]
    rows: RowMap

    sample_shape: tuple[int, ...] = ()

    @property
    def row_map(self) -> RowMap:
        """The number of each sample's text."""
        return self.rows

    @property
    def num_samples(self) -> int:
        """Length of the sample axis."""
        return len(self.rows)

    @property
    def num_rows(self) -> int:
        """Number of texts."""
        return len(self.items)

    @property
    def is_lookup(self) -> bool:
        """Always: the engine delivers indices."""
        return True

    @property
    def item_type(self) -> str:
        """The Python type of the items."""
        return "bytes" if self.items and all(isinstance(one, bytes) for one in self.items) else "str"

    @property
    def dtype_name(self) -> str:
        """The items of a batch: "str" or "bytes"."""
        return self.item_type

    @cached_property
    def sample_bytes(self) -> int:
        """Bytes of the index of a sample."""
        return item_bytes("int64")

    def describe_source(self) -> str:
        """Describe the place where the values are."""
        return "in memory"

    def describe_values(self) -> dict[str, Any]:
        """Return a hash of the text."""
        return {"values": hashlib.sha256(json.dumps(list(map(str, self.items))).encode()).hexdigest()}
