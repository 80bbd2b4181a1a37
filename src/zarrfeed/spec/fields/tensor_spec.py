"""`TensorSpec`: a field of a batch as the engine hands it out."""

from __future__ import annotations

from typing import TypeAlias

#: A field of a batch as DLPack describes it: code of the dtype, bits of an item, shape of a sample.
TensorSpec: TypeAlias = tuple[int, int, tuple[int, ...]]
