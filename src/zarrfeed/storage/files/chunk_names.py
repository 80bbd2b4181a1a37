"""`ChunkNames`: which chunk of an array a key names, by the array's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zarrfeed.storage.files.chunk_table import chunk_grid


def is_number(text: str) -> bool:
    """Return whether a part of a key is the index of a chunk along an axis."""
    return text.isascii() and text.isdecimal() and (text == "0" or text[0] != "0")


@dataclass(frozen=True)
class ChunkNames:
    """The keys that an array's metadata give to its stored objects.

    Attributes
    ----------
    prefix, separator
        The beginning of a key, and the character between its parts.
    counts
        Objects along each axis.
    """

    prefix: str
    separator: str
    counts: tuple[int, ...]

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> ChunkNames | None:
        """Return the keys by a metadata document of an array, of Zarr v2 or v3; None if it is no such document."""
        try:
            if document["zarr_format"] == 2:
                prefix, separator, chunks = "", document.get("dimension_separator", "."), document["chunks"]
            else:
                encoding = document["chunk_key_encoding"]
                prefix, default = {"default": ("c", "/"), "v2": ("", ".")}[encoding["name"]]
                separator = (encoding.get("configuration") or {}).get("separator", default)
                chunks = document["chunk_grid"]["configuration"]["chunk_shape"]
            counts = chunk_grid([int(n) for n in document["shape"]], [int(n) for n in chunks])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return None
        return cls(prefix, separator, counts) if separator in (".", "/") and min(counts, default=0) >= 0 else None

    @property
    def num_objects(self) -> int:
        """Objects of the array."""
        return math.prod(self.counts)

    def index_of(self, key: str) -> tuple[int, ...] | None:
        """Return the index of the chunk that a key names, perhaps beyond the shape; None if it names no chunk.

        >>> ChunkNames("c", "/", (4, 1)).index_of("c/3/0"), ChunkNames("", ".", (4, 1)).index_of("c/3/0")
        ((3, 0), None)
        """
        if not self.counts:  # the one chunk of a scalar
            return () if key == (self.prefix or "0") else None
        parts = key.split(self.separator)
        if self.prefix and parts.pop(0) != self.prefix:
            return None
        return tuple(map(int, parts)) if len(parts) == len(self.counts) and all(map(is_number, parts)) else None

    def number_of(self, key: str) -> int | None:
        """Return the number of the chunk that a key names, in C order of the grid; None if the array has none."""
        index = self.index_of(key)
        if index is None:
            return None
        number = 0
        for one, count in zip(index, self.counts, strict=True):
            if one >= count:
                return None
            number = number * count + one
        return number
