"""`SegmentTextField`: text that all samples of a segment share, such as the instruction of an episode."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zarrfeed.spec.dtypes import item_bytes
from zarrfeed.spec.field_kind import FieldKind
from zarrfeed.spec.row_map import SegmentRows


@dataclass(frozen=True)
class SegmentTextField(FieldKind):
    """Text or bytes in memory, one item for each segment: batches have lists, with the item of each sample's segment.

    The engine gives it the index of each sample, and `engine/segment_text.py` looks the item up.

    Attributes
    ----------
    items
        The text of each segment.
    rows
        The segment of each sample.
    """

    name: str
    items: tuple[Any, ...]
    rows: SegmentRows

    sample_shape: tuple[int, ...] = ()

    @property
    def row_map(self) -> SegmentRows:
        """The segment of each sample."""
        return self.rows

    @property
    def num_samples(self) -> int:
        """Length of the sample axis."""
        return len(self.rows)

    @property
    def num_rows(self) -> int:
        """Number of segments."""
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
